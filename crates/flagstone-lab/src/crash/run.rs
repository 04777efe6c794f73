//! Runs scripts against an engine and its model side by side.
//!
//! Owns the order of calls and every comparison. Touches the device only through its rig.
//!
//! - **U1** Every answer of the engine is compared with the model's; an error that the model does
//!   not foresee is a violation, except where the device was told to misbehave. Want of room
//!   excuses changes and upkeep alone: reads, the whole content and the structural check are
//!   answered on a full device. Engines that lock pages may refuse a read beside another
//!   transaction.
//! - **U2** The rig's mark is the model as it stood when the engine was called, with the commit in
//!   flight counted as possible: a cut in that call must find these contents.
//! - **U3** Equal scripts on equal devices give equal traces.

mod answers;
mod rows;
mod snapshots;

use std::sync::Arc;

use flagstone_engine::EngineError;
use flagstone_nand::{Crashable, NandError};

use self::answers::is_refused_whole;
use self::rows::{key_range, row_size};
use super::rig::Rig;
use super::script::{KeyIndex, Op, SLOT_COUNT, Script, Size};
use super::subject::{Setup, Subject};
use crate::model::{Access, KeyRange, Model, NotAdmitted, SlotIndex, TableIndex};

/// Behaviour that no engine may show.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The content after a power cut is no prefix of the commits.
    #[error(transparent)]
    Content(#[from] NotAdmitted),
    /// A read differs from the model.
    #[error("{doing}: read {found}, not {expected}")]
    Read {
        /// The operation.
        doing: String,
        /// The engine's answer.
        found: String,
        /// The model's answer.
        expected: String,
    },
    /// The whole content differs from the model's.
    #[error("read everything: {0}")]
    Differs(String),
    /// An operation was refused that must work.
    #[error("{doing}: refused: {error}")]
    Refused {
        /// The operation.
        doing: String,
        /// The engine's words.
        error: String,
    },
    /// An operation worked that must be refused.
    #[error("{doing}: must be refused")]
    Accepted {
        /// The operation.
        doing: String,
    },
    /// An operation got a lock that another transaction's excludes (rule D13).
    #[error("{doing}: has a lock that excludes another transaction's")]
    Locked {
        /// The operation.
        doing: String,
    },
    /// The structural check found a fault.
    #[error("the structural check found: {0}")]
    Damaged(String),
    /// A rule of flash was broken.
    #[error("a rule of flash was broken: {0}")]
    Rule(NandError),
    /// The engine panicked.
    #[error("the engine panicked: {0}")]
    Panicked(String),
    /// The engine asked for more device operations than any sound one would.
    #[error("the engine goes round in circles")]
    Endless,
    /// Damage was taken for an older state: commits were lost without an error.
    #[error("damage went unnoticed: the content is {0} changes old")]
    Rewound(usize),
    /// The device misbehaved without an error, or an error came without misbehaviour.
    #[error("{0}")]
    Fault(&'static str),
}

/// Why a run ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The device lost power.
    PowerOff,
    /// The engine refuses to go on, as it must after some failures; it has to be reopened.
    Poisoned,
    /// The device is read-only for want of spare blocks.
    WornOut,
    /// A damaged page was reported instead of wrong bytes.
    Reported(String),
    /// The engine is wrong.
    Violation(Violation),
}

impl From<Violation> for Stop {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

/// Whether reads may end with a typed error: only where the test damaged the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// All damage is within the device's power of repair.
    None,
    /// A typed error is as good as the right answer.
    Injected,
}

/// The rig of a runner: its mark is the state that a cut must find (U2).
pub type RunnerRig<C> = Rig<C, Arc<Model>>;

/// Trace of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Hash of every answer.
    pub answers: u64,
    /// Hash of every device operation.
    pub device: u64,
    /// Operations that the device counted; a cut may fall into each.
    pub operations: u64,
    /// Steps taken.
    pub steps: u64,
    /// Commits acknowledged, read-only ones left out.
    pub commits: u64,
    /// Changes and upkeep refused for want of room.
    pub full: u64,
    /// Snapshots kept under a name.
    pub kept: u64,
}

/// An engine, its model, and the device below.
#[derive(Debug)]
pub struct Runner<S, C> {
    subject: Option<S>,
    rig: RunnerRig<C>,
    model: Model,
    setup: Setup,
    damage: Damage,
    trace: Trace,
    /// Operations of the device before the run.
    operations_before: u64,
}

/// Commits that the last pages of a worn-out device may still take.
const WORN_COMMITS_MAX: u32 = 2_000;

/// Snapshots that are kept at a time: each holds room.
const KEPT_MAX: usize = 2;

/// Bytes of the largest value a script puts.
const LARGE_SIZE_MAX: usize = 3000;

/// Keys that may hold large values, so that they fit the smallest device beside the rest.
const LARGE_KEY_COUNT: u8 = 4;

impl<S: Subject<RunnerRig<C>>, C: Crashable> Runner<S, C> {
    /// The engine, while it is open.
    #[cfg(test)]
    pub(super) fn subject(&self) -> Option<&S> {
        self.subject.as_ref()
    }

    /// Makes a database on the rig's device, with the tables of scripts.
    ///
    /// # Errors
    ///
    /// Power loss, or a violation.
    pub fn create(rig: RunnerRig<C>, setup: &Setup) -> Result<Self, Stop> {
        let mut runner = Self::around(rig, Model::default(), setup);
        runner.create_database()?;
        runner.prepare_tables()?;
        Ok(runner)
    }

    fn create_database(&mut self) -> Result<(), Stop> {
        let made = S::create(self.rig.clone(), &self.setup);
        self.subject = Some(self.opened("create", made)?);
        self.model.created();
        self.rig.mark(Arc::new(self.model.clone()));
        Ok(())
    }

    /// Opens the database on the rig's device, and takes its content for a state that `model`
    /// admits.
    ///
    /// # Errors
    ///
    /// Power loss, or a violation.
    pub fn open(rig: RunnerRig<C>, model: Model, setup: &Setup) -> Result<Self, Stop> {
        Self::open_damaged(rig, model, setup, Damage::None)
    }

    /// As [`Runner::open`], on a device that was damaged on purpose.
    ///
    /// # Errors
    ///
    /// Power loss, a typed report of the damage, or a violation.
    pub fn open_damaged(
        rig: RunnerRig<C>,
        model: Model,
        setup: &Setup,
        damage: Damage,
    ) -> Result<Self, Stop> {
        let mut runner = Self::around(rig, model, setup);
        runner.damage = damage;
        runner.open_again()?;
        Ok(runner)
    }

    fn around(rig: RunnerRig<C>, model: Model, setup: &Setup) -> Self {
        rig.mark(Arc::new(model.clone()));
        let operations_before = rig.with_device(|device| device.operation_count());
        Self {
            subject: None,
            rig,
            model,
            setup: setup.clone(),
            damage: Damage::None,
            trace: Trace::default(),
            operations_before,
        }
    }

    /// Lets answers be typed errors from now on.
    pub fn expect_damage(&mut self) {
        self.damage = Damage::Injected;
    }

    /// The model as it stands.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Trace of the run so far.
    #[must_use]
    pub fn trace(&self) -> Trace {
        let before = self.operations_before;
        self.rig.with_device(|device| Trace {
            device: device.trace_hash(),
            operations: device.operation_count().saturating_sub(before),
            ..self.trace
        })
    }

    /// The model and the engine, for tests that go on by themselves.
    pub fn into_parts(self) -> (Option<S>, Model, RunnerRig<C>) {
        (self.subject, self.model, self.rig)
    }

    /// Runs every step.
    ///
    /// # Errors
    ///
    /// Why it ended early.
    pub fn run(&mut self, script: &Script) -> Result<(), Stop> {
        script.0.iter().try_for_each(|op| self.step(*op))
    }

    /// Runs one step.
    ///
    /// # Errors
    ///
    /// Why the run ends here.
    pub fn step(&mut self, op: Op) -> Result<(), Stop> {
        self.trace.steps += 1;
        let taken = match op {
            Op::Begin(slot) => self.ensure_open(slot, op).map(drop),
            Op::Put(slot, table, key, size) => {
                self.put(op, slot, table, key, row_size(table, size))
            }
            Op::PutLarge(slot, table, key, size) => self.put_large(op, slot, table, key, size),
            Op::Patch(slot, table, key, part) => self.patch(op, slot, table, key, part),
            Op::Delete(slot, table, key) => self.delete(op, slot, table, key),
            Op::Get(slot, table, key) => self.get(op, slot, table, key),
            Op::GetPart(slot, table, key, part) => self.get_part(op, slot, table, key, part),
            Op::Scan(slot, table, low, high, direction) => {
                self.scan(op, slot, key_range(table, low, high), direction)
            }
            Op::Savepoint(slot) => self.savepoint(op, slot),
            Op::RollbackTo(slot, index) => self.rollback_to(op, slot, index),
            Op::Commit(slot, durability) => self.commit(op, slot, durability),
            Op::Abort(slot) => self.abort(slot),
            Op::Fill(slot, table, size) => self.fill(op, slot, table, size),
            Op::SnapshotOpen(slot) => self.snapshot_open(op, slot),
            Op::SnapshotScan(slot, table, way) => self.snapshot_scan(op, slot, table, way),
            Op::SnapshotGet(slot, table, key) => self.snapshot_get(op, slot, table, key),
            Op::SnapshotClose(slot) => self.snapshot_close(slot),
            Op::Keep => self.keep(op),
            Op::DropKept(index) => self.drop_kept(op, index),
            Op::Checkpoint => self.upkeep(op, S::checkpoint),
            Op::CheckpointBegin => self.upkeep(op, S::checkpoint_begin),
            Op::Work(pieces) => (0..pieces).try_for_each(|_| self.upkeep(op, S::work)),
            Op::Collect => self.upkeep(op, S::collect),
            Op::Reopen => self.reopen(op),
            Op::PowerLoss => self.power_loss(),
        };
        self.note(u64::from(taken.is_ok()));
        taken?;
        self.device_is_sound()
    }

    /// Ends open transactions and snapshots, compares the whole content with the model, and checks
    /// the structure of the image.
    ///
    /// # Errors
    ///
    /// A violation, or power loss.
    pub fn verify(&mut self) -> Result<(), Stop> {
        // Reading everything would wait for the locks of open transactions.
        self.end_all()?;
        let found = self.read("read everything", S::contents)?;
        if let Some(found) = found
            && let Some(difference) = self.model.visible().difference(&found)
        {
            return Err(Violation::Differs(difference).into());
        }
        self.check_kept()?;
        self.check()
    }

    /// Commits rows until the device, which is worn out but for its last pages, refuses one: as worn
    /// out, or as full when its contents fill the remaining blocks.
    ///
    /// # Errors
    ///
    /// A violation, or power loss.
    pub fn must_be_worn_out(&mut self) -> Result<(), Stop> {
        let slot = SlotIndex(0);
        let put = Op::Put(slot, TableIndex(0), KeyIndex(1), Size(9));
        let commit = Op::Commit(slot, flagstone_engine::Durability::Immediate);
        let full = self.trace.full;
        for _ in 0..WORN_COMMITS_MAX {
            if self.trace.full > full {
                return Ok(());
            }
            match self.step(put).and_then(|()| self.step(commit)) {
                Err(Stop::WornOut | Stop::Poisoned) => return Ok(()),
                other => other?,
            }
        }
        Err(Violation::Fault("a worn-out device goes on").into())
    }

    /// Checks the structure of the image.
    ///
    /// # Errors
    ///
    /// A violation, or power loss.
    pub fn check(&mut self) -> Result<(), Stop> {
        let faults = self.read("check", S::check)?.unwrap_or_default();
        if !faults.is_empty() && self.damage == Damage::None {
            return Err(Violation::Damaged(faults.join("; ")).into());
        }
        self.device_is_sound()
    }

    /// Whether the transaction in the slot is open afterwards; begins it if the slot is free.
    fn ensure_open(&mut self, slot: SlotIndex, op: Op) -> Result<bool, Stop> {
        if self.model.is_open(slot) {
            return Ok(true);
        }
        let begun = self.ask_op(op, |subject| subject.begin(slot))?;
        if begun.is_some() {
            self.model.begin(slot);
        }
        Ok(begun.is_some())
    }

    /// Whether the step may touch `range` now; takes the lock in the model.
    fn may_touch(
        &mut self,
        op: Op,
        slot: SlotIndex,
        range: KeyRange,
        access: Access,
    ) -> Result<bool, Stop> {
        if !self.model.may_lock(slot, &range, access) {
            return self.must_be_locked(op, &range, access);
        }
        if !self.ensure_open(slot, op)? {
            return Ok(false);
        }
        self.model.lock(slot, range, access);
        Ok(true)
    }

    fn savepoint(&mut self, op: Op, slot: SlotIndex) -> Result<(), Stop> {
        if self.ensure_open(slot, op)?
            && self.ask_op(op, |subject| subject.savepoint(slot))?.is_some()
        {
            self.model.savepoint(slot);
        }
        Ok(())
    }

    fn rollback_to(&mut self, op: Op, slot: SlotIndex, index: u8) -> Result<(), Stop> {
        let count = self.model.savepoint_count(slot);
        if count == 0 {
            return Ok(());
        }
        let index = usize::from(index) % count;
        if self.change(op, slot, |subject| subject.rollback_to(slot, index))? {
            self.model.rollback_to(slot, index);
        }
        Ok(())
    }

    fn commit(
        &mut self,
        op: Op,
        slot: SlotIndex,
        durability: flagstone_engine::Durability,
    ) -> Result<(), Stop> {
        if !self.model.is_open(slot) {
            return Ok(());
        }
        let pending = self.model.commit_asked(slot);
        self.rig.mark(Arc::new(self.model.clone()));
        let answer = self.subject.as_mut().map(|subject| subject.commit(slot, durability));
        match answer {
            None => {}
            Some(Ok(())) => {
                if durability != flagstone_engine::Durability::Deferred {
                    self.model.commit_durable(pending);
                    if pending.writes() {
                        self.model.settle_written();
                    }
                }
                self.trace.commits = self.model.commit_count();
            }
            Some(Err(error)) => {
                if is_refused_whole(&error) {
                    self.model.commit_refused(pending);
                }
                self.refused(&format!("{op:?}"), &error)?;
            }
        }
        self.rig.mark(Arc::new(self.model.clone()));
        Ok(())
    }

    fn abort(&mut self, slot: SlotIndex) -> Result<(), Stop> {
        if self.model.is_open(slot) {
            if let Some(subject) = &mut self.subject {
                subject.abort(slot);
            }
            self.model.abort(slot);
        }
        Ok(())
    }

    fn upkeep(
        &mut self,
        op: Op,
        work: impl FnOnce(&mut S) -> Result<(), EngineError>,
    ) -> Result<(), Stop> {
        self.ask_op(op, work).map(drop)
    }

    /// Merges all deltas that wait for their page.
    pub(super) fn merge_all(&mut self) -> Result<(), Stop> {
        self.upkeep(Op::Collect, S::merge_all)
    }

    /// Ends every transaction and snapshot of the engine.
    fn end_all(&mut self) -> Result<(), Stop> {
        for slot in (0..SLOT_COUNT).map(SlotIndex) {
            self.abort(slot)?;
            self.snapshot_close(slot)?;
        }
        Ok(())
    }

    fn reopen(&mut self, op: Op) -> Result<(), Stop> {
        self.end_all()?;
        self.rig.mark(Arc::new(self.model.clone()));
        if let Some(subject) = self.subject.take()
            && let Err(error) = subject.close()
        {
            self.refused(&format!("{op:?}: close"), &error)?;
        } else {
            self.model.closed();
        }
        self.open_again()
    }

    fn power_loss(&mut self) -> Result<(), Stop> {
        self.subject = None;
        self.rig.with_device(Crashable::power_cycle);
        self.open_again()
    }

    /// Opens the device and takes its contents for durable, if the model admits them.
    fn open_again(&mut self) -> Result<(), Stop> {
        self.rig.mark(Arc::new(self.model.clone()));
        self.open_database()?;
        if let Some(found) = self.read("read everything", S::contents)? {
            self.model.settle(&found).map_err(Violation::from)?;
        }
        self.check_kept()?;
        self.rig.mark(Arc::new(self.model.clone()));
        self.check()?;
        self.prepare_tables()
    }

    /// Opens the database; one whose creation never returned may have to be created anew.
    fn open_database(&mut self) -> Result<(), Stop> {
        let opened = S::open(self.rig.clone(), &self.setup);
        let is_off = self.rig.with_device(|device| device.is_off());
        if opened.is_err() && !is_off && !self.model.exists() {
            return self.create_database();
        }
        self.subject = Some(self.opened("open", opened)?);
        Ok(())
    }

    fn prepare_tables(&mut self) -> Result<(), Stop> {
        let full = Violation::Fault("a database without room for its tables");
        match self.subject.as_mut().map(S::prepare_tables) {
            Some(Ok(())) => Ok(()),
            None => Err(full.into()),
            Some(Err(error)) => Err(match (self.stop_of("make tables", &error), error) {
                (Stop::PowerOff, _) => Stop::PowerOff,
                (_, EngineError::Full) => full.into(),
                (stop, _) => stop,
            }),
        }
    }

    fn device_is_sound(&self) -> Result<(), Stop> {
        match self.rig.rule_broken() {
            Some(error) => Err(Violation::Rule(error).into()),
            None if self.rig.is_exhausted() => Err(Violation::Endless.into()),
            None => Ok(()),
        }
    }

    fn note(&mut self, answer: u64) {
        let mixed = self.trace.answers.rotate_left(23) ^ answer ^ self.model.commit_count();
        self.trace.answers = mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}
