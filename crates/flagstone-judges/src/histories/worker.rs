//! One thread of a session: its transactions, snapshots and other steps of the program, drawn from its seed.

mod pieces;

use std::collections::BTreeMap;
use std::process;
use std::time::Instant;

use flagstone::{CommitError, Durability, Snapshot};

use super::draft::Draft;
use super::draw::Draw;
use super::ledger::Recorder;
use super::program::{End, Phase, Piece};
use super::record::{Area, Finding, Flush, Key, Look, Op, Outcome, Txn, TxnId, View, Viewer};
use super::world::{
    self, CHURN_TABLES, Churn, Looker, Stop, World, churn_hash, churn_name, copied, whole,
};

/// A snapshot that is read again later.
struct Held {
    snapshot: Snapshot,
    seen: Vec<Op>,
    rows: u32,
    txns_left: u64,
}

/// Form of a finding: a snapshot lacks a commit that was durable before.
const STALE: &str = "snapshot: stale";

/// Findings of one form that a thread reports in a session.
const TOLD_MAX: u32 = 3;

/// Cuts that a thread makes in a session, not counting the ones after a finding.
const CUTS_MAX: u32 = 8;

/// One thread of a session.
pub(crate) struct Worker<'a> {
    world: &'a World<'a>,
    thread: u64,
    draw: Draw,
    pub(crate) recorder: Recorder,
    sequence: u64,
    counted: i64,
    /// Counts that are durable.
    durable: i64,
    /// Lists that the newest transaction appended to, each with the number of elements that it ever had.
    appended: Vec<(Key, u64)>,
    /// Rows that the newest transaction changed, as it had found them.
    replaced: Vec<(Key, Look)>,
    churn: Churn,
    held: Option<Held>,
    /// Cuts and backups that may still be made.
    cuts_left: u32,
    backups_left: u32,
    kept_left: u32,
    /// Number of findings, by form.
    found: BTreeMap<String, u32>,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(
        world: &'a World<'a>,
        thread: u64,
        churn: Churn,
        counted: i64,
        recorder: Recorder,
    ) -> Self {
        let seed = world.program.seed;
        let draw = Draw::new(seed, (world.session + 1) << 20 | (thread + 1) << 8);
        Self {
            world,
            thread,
            draw,
            recorder,
            sequence: 0,
            counted,
            durable: counted,
            appended: Vec::new(),
            replaced: Vec::new(),
            churn,
            held: None,
            cuts_left: if world.medium.is_some() { CUTS_MAX } else { 0 },
            backups_left: u32::from(thread < 2),
            kept_left: u32::from(thread == 0) * 2,
            found: BTreeMap::new(),
        }
    }

    fn next_id(&mut self) -> TxnId {
        self.sequence += 1;
        TxnId::new(self.world.session, self.thread, self.sequence)
    }

    /// Runs the stretches of a session, which ends when the first thread is through.
    pub(crate) fn run(&mut self, phases: &[Phase], end: End) {
        let threads = self.world.program.threads;
        let count: u64 = phases.iter().map(|phase| phase.txns.div_ceil(threads)).sum();
        let falls = (end == End::InFlight && self.thread == 0).then(|| self.draw.below(count));
        let mut done = 0;
        for phase in phases {
            for _ in 0..phase.txns.div_ceil(threads) {
                if self.world.is_over() || Instant::now() > self.world.deadline {
                    return self.end(end);
                }
                if falls == Some(done) {
                    self.world.cut_soon(&mut self.draw);
                }
                done += 1;
                let world = self.world;
                match world.step(|| self.step(phase)) {
                    Ok(()) | Err(Stop::Retry) => {}
                    Err(Stop::Over(_)) if self.world.loses_power => return self.world.finish(),
                    Err(Stop::Over(error)) => {
                        self.found(Finding::new(
                            "refused",
                            format!("a device that works: {error}"),
                        ));
                        return self.world.finish();
                    }
                    Err(Stop::Found(finding)) => self.found(finding),
                }
            }
        }
        self.end(end);
    }

    fn end(&mut self, end: End) {
        match end {
            End::Cut if self.world.is_over() => {}
            // Others may be at work, or be through with it.
            End::Cut if self.draw.one_in(2) => self.world.cut(&mut self.draw),
            End::Cut => self.world.step(|| self.world.hush(|| self.world.cut(&mut self.draw))),
            End::InFlight | End::Close => {}
        }
    }

    /// Reports a finding, and looks at the state that a cut at this very moment would leave.
    fn found(&mut self, finding: Finding) {
        let count = self.found.entry(finding.form.clone()).or_default();
        *count += 1;
        let (count, is_stale) = (*count, finding.form == STALE);
        if count <= TOLD_MAX {
            self.recorder.finding(finding);
        }
        if self.world.may_abort {
            self.world.hush(|| process::abort());
        }
        // A durable commit that a snapshot lacks may well be lost.
        if count > TOLD_MAX * if is_stale { 20 } else { 1 } {
            return;
        }
        self.cuts_left += 1;
        if let Err(Stop::Found(found)) = self.cut(true) {
            self.recorder.finding(found);
        }
    }

    fn step(&mut self, phase: &Phase) -> Result<(), Stop> {
        let durability = phase.pace.next(self.thread, &mut self.draw);
        if phase.lot(durability).piece(&mut self.draw) == Piece::Churn && self.draw.one_in(3) {
            self.change_tables()?;
        }
        self.transaction(phase, durability)?;
        if durability != Durability::Deferred {
            self.after_durable(phase)?;
        }
        if self.draw.one_in(phase.snapshot_in) {
            self.snapshot()?;
        }
        self.read_again()?;
        match self.draw.below(20_000) {
            0..3 => self.flush(false),
            3 => self.flush(true),
            4..6 => self.keep(),
            6..8 => self.backup(),
            8..10 => self.cut(false),
            _ => Ok(()),
        }
    }

    /// The promise of a durable commit holds at once, for snapshots and for cuts.
    fn after_durable(&mut self, phase: &Phase) -> Result<(), Stop> {
        if self.world.program.is_pressed || self.draw.one_in(3) {
            self.fresh()?;
        }
        if self.draw.one_in(phase.cut_in) {
            let hushes = self.draw.one_in(2);
            self.cut(hushes)?;
        }
        if self.world.may_abort && self.draw.one_in(400) {
            if self.draw.one_in(2) {
                self.world.hush(|| process::abort());
            }
            process::abort();
        }
        Ok(())
    }

    fn row(&mut self, share: u32) -> u32 {
        let rows = (self.world.program.rows / share).max(2);
        // Half of all choices fall on an eighth of the rows.
        let end = if self.draw.one_in(2) { (rows / 8).max(2) } else { rows };
        self.draw.below(u64::from(end)) as u32
    }

    fn key(&mut self, area: Area) -> Key {
        let share = if area == Area::Members || area == Area::Tags { 4 } else { 1 };
        Key::new(area, self.row(share))
    }

    fn filler(&mut self) -> u32 {
        self.world.program.filler(&mut self.draw)
    }

    fn transaction(&mut self, phase: &Phase, durability: Durability) -> Result<(), Stop> {
        let id = self.next_id();
        let mut draft = Draft::begin(self.world, id);
        let mut churn = self.churn.clone();
        let counts = self.draw.one_in(phase.count_in);
        let lot = phase.lot(durability);
        let built = self.build(&mut draft, lot, &mut churn, counts);
        let aborts = self.draw.one_in(60);
        let mut intent = draft.intent(durability);
        let changes = intent.ops.iter().any(|op| matches!(op, Op::Write(..)));
        if self.world.may_have_fallen() && (built.is_err() || aborts || !changes) {
            intent.ops.retain(|op| matches!(op, Op::Write(..) | Op::Hidden(_)));
        }
        self.appended.clear();
        self.replaced.clear();
        if built.is_err() || aborts {
            intent.outcome = Outcome::Aborted;
            drop(draft);
            intent.ended = Some(self.world.stamp());
            self.recorder.txn(intent);
            return built;
        }
        self.appended = appended(&intent);
        self.replaced = replaced(&intent);
        let waits = intent.waits();
        self.recorder.intent(intent);
        let committed = draft.commit(durability);
        let ended = self.world.stamp();
        match committed {
            Ok(lsn) => {
                self.recorder.ended(id, Outcome::Committed { lsn: Some(lsn) }, ended);
                self.churn = churn;
                self.counted += i64::from(counts);
                if durability != Durability::Deferred && waits {
                    self.durable = self.counted;
                }
                Ok(())
            }
            Err(
                CommitError::Deadlock
                | CommitError::LockTimeout
                | CommitError::Full
                | CommitError::TooLarge,
            ) => {
                self.appended.clear();
                self.replaced.clear();
                self.recorder.ended(id, Outcome::Aborted, ended);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Makes, renames or drops one of the thread's own tables: each is a transaction by itself.
    fn change_tables(&mut self) -> Result<(), Stop> {
        let number = self.draw.below(u64::from(CHURN_TABLES)) as u32;
        let other = self.draw.below(u64::from(CHURN_TABLES)) as u32;
        let (name, new_name) = (churn_name(self.thread, number), churn_name(self.thread, other));
        let mut churn = self.churn.clone();
        let rows = churn.remove(&number);
        enum Change {
            Make,
            Rename,
            Drop,
        }
        let change = match rows {
            None => {
                churn.insert(number, BTreeMap::new());
                Change::Make
            }
            Some(rows) if !churn.contains_key(&other) && other != number => {
                churn.insert(other, rows);
                Change::Rename
            }
            Some(_) => Change::Drop,
        };
        let id = self.next_id();
        let key = Key::new(Area::Churn, self.thread as u32);
        let write = Op::Write(key, id.version(1), Look::Content(churn_hash(&churn)));
        self.recorder.intent(Txn {
            id,
            begun: self.world.stamp(),
            ended: None,
            outcome: Outcome::Unknown,
            is_durable: true,
            ops: vec![write],
        });
        let changed = match change {
            Change::Make => self.world.db.table(&name).map(drop),
            Change::Rename => self.world.db.rename_table(&name, &new_name),
            Change::Drop => self.world.db.drop_table(&name),
        };
        let ended = self.world.stamp();
        match changed {
            Ok(()) => {
                self.recorder.ended(id, Outcome::Committed { lsn: None }, ended);
                self.churn = churn;
                Ok(())
            }
            Err(error) => match Stop::from(error) {
                Stop::Retry => {
                    self.recorder.ended(id, Outcome::Aborted, ended);
                    Ok(())
                }
                stop => Err(stop),
            },
        }
    }

    /// A snapshot has every commit that was durable before it was taken.
    fn fresh(&mut self) -> Result<(), Stop> {
        let begun = self.world.stamp();
        let snapshot = self.world.db.snapshot()?;
        let ended = self.world.stamp();
        let mut looker = Looker::new(&snapshot);
        let counter = Key::new(Area::Counters, self.thread as u32);
        let seen = looker.row(&self.world.tables, counter)?.map_or(0, |value| value.number);
        let key = self.key(Area::Bank);
        looker.row(&self.world.tables, key)?;
        let mut lacks = (seen < self.durable)
            .then(|| format!("count {} is durable, a snapshot has {seen}", self.durable));
        for (key, count) in &self.appended {
            let list = looker.row(&self.world.tables, *key)?.map(|value| value.to_list());
            let seen = list.map_or(0, |list| list.before + list.elements.len() as u64);
            if seen < *count {
                lacks = Some(format!("{count} of {key} are durable, a snapshot has {seen}"));
            }
        }
        for (key, old) in &self.replaced {
            let seen = looker.row(&self.world.tables, *key)?;
            if seen.map_or(Look::Absent, |value| Look::Version(value.version)) == *old {
                lacks = Some(format!("a change of {key} is durable, a snapshot has {old}"));
            }
        }
        let ops = looker.ops;
        self.recorder.view(View { viewer: Viewer::Snapshot, begun, ended, ops });
        let Some(lacks) = lacks else { return Ok(()) };
        let text = format!("thread {}: {lacks}", self.thread);
        Err(Finding::new(STALE, text).into())
    }

    /// Looks at a part of the whole, the bank among it.
    fn snapshot(&mut self) -> Result<(), Stop> {
        let begun = self.world.stamp();
        let snapshot = self.world.db.snapshot()?;
        let ended = self.world.stamp();
        let rows = self.row(1);
        let (seen, found) = self.look(&snapshot, rows)?;
        self.recorder.view(View { viewer: Viewer::Snapshot, begun, ended, ops: seen.clone() });
        if let Some(found) = found {
            return Err(found.into());
        }
        if self.held.is_none() && self.draw.one_in(4) {
            let txns_left = self.draw.between(1, 400);
            self.held = Some(Held { snapshot, seen, rows, txns_left });
        }
        Ok(())
    }

    fn look(&self, snapshot: &Snapshot, rows: u32) -> Result<(Vec<Op>, Option<Finding>), Stop> {
        let tables = &self.world.tables;
        let mut looker = Looker::new(snapshot);
        for thread in 0..self.world.program.threads {
            looker.row(tables, Key::new(Area::Counters, thread as u32))?;
        }
        for area in [Area::Lists, Area::Registers] {
            let last = Key::new(area, rows.saturating_add(16));
            looker.rows(tables.of(area), Key::new(area, rows), last)?;
        }
        looker.tags(tables.tags, Some(rows / 4))?;
        match looker.bank(tables.of(Area::Bank), "snapshot") {
            Ok(()) => Ok((looker.ops, None)),
            Err(Stop::Found(found)) => Ok((looker.ops, Some(found))),
            Err(stop) => Err(stop),
        }
    }

    /// A snapshot reads the same again, in spite of commits meanwhile.
    fn read_again(&mut self) -> Result<(), Stop> {
        let Some(held) = &mut self.held else { return Ok(()) };
        held.txns_left -= 1;
        if held.txns_left > 0 {
            return Ok(());
        }
        let Some(held) = self.held.take() else { return Ok(()) };
        let (seen, _) = self.look(&held.snapshot, held.rows)?;
        if seen == held.seen {
            return Ok(());
        }
        let text = format!("thread {}: a snapshot reads otherwise the second time", self.thread);
        Err(Finding::new("snapshot: changed", text).into())
    }

    fn flush(&mut self, merges: bool) -> Result<(), Stop> {
        let begun = self.world.stamp();
        match if merges { self.world.db.merge() } else { self.world.db.flush() } {
            Ok(()) => {}
            Err(CommitError::Full) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let ended = self.world.stamp();
        self.recorder.flush(Flush { begun, ended });
        self.durable = self.counted;
        Ok(())
    }

    /// Keeps a snapshot under a name, and looks at it.
    fn keep(&mut self) -> Result<(), Stop> {
        if self.kept_left == 0 {
            return Ok(());
        }
        self.kept_left -= 1;
        let name = format!("kept-{}-{}", self.world.session, self.kept_left);
        let begun = self.world.stamp();
        self.world.db.create_named_snapshot(&name)?;
        let ended = self.world.stamp();
        let snapshot = self.world.db.open_named_snapshot(&name)?;
        let threads = self.world.program.threads;
        let seen = world::seen(&snapshot, &self.world.tables, Viewer::Kept.name(), threads)?;
        self.recorder.kept(name, seen.ops.clone());
        self.recorder.view(View { viewer: Viewer::Kept, begun, ended, ops: seen.ops });
        seen.found.map_or(Ok(()), |found| Err(found.into()))
    }

    fn backup(&mut self) -> Result<(), Stop> {
        if self.backups_left == 0 {
            return Ok(());
        }
        self.backups_left -= 1;
        let begun = self.world.stamp();
        let (copy, taken) = copied(self.world)?;
        let view = View { viewer: Viewer::Backup, begun, ended: taken, ops: copy.ops };
        self.recorder.view(view);
        copy.found.map_or(Ok(()), |found| Err(found.into()))
    }

    /// Reads, now and then so much that work for memory is done meanwhile.
    fn read_much(&mut self) -> Result<(), Stop> {
        if self.draw.one_in(3) {
            return Ok(());
        }
        let txn = self.world.db.begin();
        for area in [Area::Bank, Area::Lists, Area::Registers] {
            for row in txn.range(self.world.tables.of(area), ..) {
                row?;
            }
        }
        Ok(())
    }

    /// Looks at the state that a power cut at this moment would leave.
    fn cut(&mut self, hushes: bool) -> Result<(), Stop> {
        let Some(medium) = self.world.medium.filter(|_| self.cuts_left > 0) else { return Ok(()) };
        self.cuts_left -= 1;
        let begun = self.world.stamp();
        let device = match hushes {
            true => self.world.hush(|| {
                self.read_much()?;
                Ok::<_, Stop>(medium.cut(&mut self.draw).device())
            })?,
            false => medium.cut(&mut self.draw).device(),
        };
        let ended = self.world.stamp();
        let db = flagstone::Database::open_on(device, &self.world.program.options);
        let db = db.map_err(|error| world::refused(&error))?;
        let seen = whole(&db, Viewer::Cut.name(), self.world.program.threads)
            .map_err(|stop| stop.finding("restart: refused"))?;
        self.recorder.view(View { viewer: Viewer::Cut, begun, ended, ops: seen.ops });
        seen.found.map_or(Ok(()), |found| Err(found.into()))
    }
}

/// The lists that a transaction appends to, each with the number of elements that it will ever have had.
fn appended(txn: &Txn) -> Vec<(Key, u64)> {
    let written =
        |key: &Key| txn.ops.iter().any(|op| matches!(op, Op::Write(other, ..) if other == key));
    let count = |op: &Op| match op {
        Op::List(key, list) if list.elements.last().is_some_and(|last| last.writer() == txn.id) => {
            written(key).then(|| (*key, list.before + list.elements.len() as u64))
        }
        _ => None,
    };
    txn.ops.iter().filter_map(count).take(4).collect()
}

/// The rows that a transaction found and changed. A missing row may be missing again.
fn replaced(txn: &Txn) -> Vec<(Key, Look)> {
    let written =
        |key: &Key| txn.ops.iter().any(|op| matches!(op, Op::Write(other, ..) if other == key));
    let found = |op: &Op| match op {
        Op::Read(key, look @ Look::Version(_))
            if matches!(key.area, Area::Registers | Area::Bank) =>
        {
            written(key).then_some((*key, *look))
        }
        _ => None,
    };
    txn.ops.iter().filter_map(found).take(4).collect()
}
