//! The exhaustive explorer: every operation, every ending, as deep as asked.
//!
//! Owns the walk over crash states and the tally. Never samples: it leaves out only states that its
//! limits exclude, and endings of a second operation in flight, which take turns.
//!
//! ```text
//! clean run ── capture of operation n ──┬─ ending 1 ── recovery ── captures ── …   (depth 2)
//!                                       ├─ ending 2 ── recovery
//!                                       └─ …
//! ```
//!
//! - **E1** One run of the script gives a capture of every operation; each (capture, ending) pair
//!   is one crash state. Where operations on other dies may overtake it, there is one more state
//!   beside all of these operations, and one for each number of them with the last one cut, too, by
//!   its endings in turn.
//! - **E2** A recovery is: open, compare the content with the model, check the structure, write and
//!   commit, lose power between two operations, merge everything and collect, close, open again,
//!   compare again. A database that is full may refuse the write, which is counted; it must answer
//!   all the rest.
//! - **E3** At depth 2 every operation of that recovery is cut with every ending in its turn, and
//!   contents found once must be found again.
//! - **E4** States are independent: threads change the order of failures, never the set.

mod path;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use flagstone_engine::Durability;
use flagstone_nand::{Crashable, Ending};

pub use self::path::{BadCut, Cut, CutPath};
use super::rig::{Capture, Capturing, Rig};
use super::run::{Runner, RunnerRig, Stop, Trace, Violation};
use super::script::{KEY_COUNT, KeyIndex, Op, Script, Size, TABLE_COUNT};
use super::subject::{Setup, Subject};
use crate::model::{Model, SlotIndex, TableIndex};
use crate::parallel::each;

/// A crash state in which the promise is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// How to get there; empty for the run without a cut.
    pub path: CutPath,
    /// The violation.
    pub violation: Violation,
}

/// Findings of an exploration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Device operations at which power was cut, at the first level.
    pub points: u64,
    /// Crash states recovered from.
    pub states: u64,
    /// Of these, states whose database then had no room for the recovery's own change.
    pub probes_refused: u64,
    /// States in which the promise is broken.
    pub failure_count: u64,
    /// Of these, states whose content differs from the committed one.
    pub lost_commits: u64,
    /// The first failures found, at most [`FAILURES_KEPT`].
    pub failures: Vec<Failure>,
    /// Trace of the run without cuts.
    pub trace: Trace,
}

/// Failures kept with their replay lines; the rest is counted.
pub const FAILURES_KEPT: usize = 20;

impl Tally {
    pub(super) fn fail(&mut self, failure: Failure) {
        self.failure_count += 1;
        self.lost_commits += u64::from(matches!(failure.violation, Violation::Content(_)));
        if self.failures.len() < FAILURES_KEPT {
            self.failures.push(failure);
        }
    }

    /// Adds the findings of another exploration.
    pub fn add(&mut self, other: Self) {
        self.points += other.points;
        self.states += other.states;
        self.probes_refused += other.probes_refused;
        self.failure_count += other.failure_count;
        self.lost_commits += other.lost_commits;
        let room = FAILURES_KEPT.saturating_sub(self.failures.len());
        self.failures.extend(other.failures.into_iter().take(room));
    }
}

/// How far an exploration goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Cuts on the way to a state: 2 cuts the recoveries too.
    pub depth: u32,
    /// Seed of the draws of endings.
    pub seed: u64,
    /// Threads that recover.
    pub threads: usize,
    /// Failures after which the rest is left unexplored.
    pub failures_max: u64,
    /// States explored of one run or one recovery; a seeded choice where there are more.
    pub states_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { depth: 1, seed: 0, threads: 2, failures_max: u64::MAX, states_max: u64::MAX }
    }
}

/// Device, model and script before and between the cuts.
#[derive(Clone, Debug)]
pub struct Scenario<C> {
    /// The device before the first operation.
    pub device: C,
    /// Contents of the device; `None` for a device on which the database is still to be created.
    pub model: Option<Model>,
    /// Options of the database.
    pub setup: Setup,
    /// Script to run on it.
    pub script: Script,
}

impl<C: Crashable> Scenario<C> {
    /// The same scenario on a device that is in use: `before` was run on it, and the power went.
    ///
    /// # Errors
    ///
    /// A violation on the way.
    pub fn in_use<S>(self, before: &Script) -> Result<Self, Violation>
    where
        S: Subject<RunnerRig<C>>,
    {
        self.after::<S>(|runner| runner.run(before))
    }

    /// The same where all that `before` left was merged before the power went.
    #[cfg(any(test, feature = "seeded-bugs"))]
    pub(super) fn merged<S>(self, before: &Script) -> Result<Self, Violation>
    where
        S: Subject<RunnerRig<C>>,
    {
        self.after::<S>(|runner| {
            runner.run(before)?;
            runner.merge_all()
        })
    }

    fn after<S>(
        self,
        before: impl FnOnce(&mut Runner<S, C>) -> Result<(), Stop>,
    ) -> Result<Self, Violation>
    where
        S: Subject<RunnerRig<C>>,
    {
        let rig = Rig::new(self.device, Arc::new(Model::default()), Capturing::Off);
        let model = guarded(|| {
            let mut runner: Runner<S, C> = Runner::create(rig.clone(), &self.setup)?;
            before(&mut runner)?;
            runner.step(Op::PowerLoss)?;
            Ok(runner.model().clone())
        });
        let model = Some(model.map_err(violation_of)?);
        Ok(Self { device: rig.device(), model, setup: self.setup, script: self.script })
    }
}

/// Told after each first-level state how many are done and how many there are.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// A rig's capture with the model as its mark.
type ModelCapture<C> = Capture<C, Arc<Model>>;

/// One crash state of a run.
#[derive(Debug)]
struct State<'c, C> {
    capture: &'c ModelCapture<C>,
    ending: Ending,
    /// Asked for up to the last one that overtook it.
    beside: &'c [ModelCapture<C>],
    /// How the last operation ends.
    last: Ending,
}

impl<C> Clone for State<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for State<'_, C> {}

impl<'c, C: Crashable> State<'c, C> {
    /// Every state of a run. An operation that was overtaken and complete is none of its own: that
    /// is a cut of a later one.
    fn all(captures: &'c [ModelCapture<C>]) -> Vec<Self> {
        (0..captures.len()).flat_map(|index| Self::of(captures, index)).collect()
    }

    /// States of the capture with this index: every ending alone; every ending beside all
    /// operations that may overtake it; and beside every number of these, the last with one of its
    /// endings in turn.
    fn of(captures: &'c [ModelCapture<C>], index: usize) -> Vec<Self> {
        let (capture, later) = (&captures[index], &captures[index + 1..]);
        let state = |ending, beside, last| State { capture, ending, beside, last };
        let alone =
            capture.endings.iter().map(|ending| state(*ending, &later[..0], Ending::Complete));
        let mut states: Vec<Self> = alone.collect();
        let overtaking = capture.overtaken_by(later);
        for (turn, ending) in capture.endings_short().enumerate() {
            for (number, last) in overtaking.iter().enumerate() {
                let beside = &later[..=*last];
                if number + 1 == overtaking.len() {
                    states.push(state(ending, beside, Ending::Complete));
                }
                let short: Vec<_> = later[*last].endings_short().collect();
                if let Some(last) = short.get((index + turn + number) % short.len().max(1)) {
                    states.push(state(ending, beside, *last));
                }
            }
        }
        states
    }

    fn cut(&self) -> Cut {
        let operation = self.capture.operation;
        let until = self.beside.last().map_or(operation, |last| last.operation);
        Cut { operation, until, ending: self.ending, until_ending: self.last }
    }

    fn device(&self, seed: u64) -> C {
        self.capture.cut_beside(self.ending, self.beside, self.last, seed)
    }

    /// The requests to the engine so far, and its answers.
    fn mark(&self) -> &'c Arc<Model> {
        self.beside.last().map_or(&self.capture.mark, |last| &last.mark)
    }
}

/// Calls `run`, and makes a violation of a panic.
pub(super) fn guarded<T>(run: impl FnOnce() -> Result<T, Stop>) -> Result<T, Stop> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Violation::Panicked(text.unwrap_or_default()).into())
    })
}

/// Explores every crash state of a scenario.
#[must_use]
pub fn explore<S, C>(scenario: &Scenario<C>, limits: &Limits, progress: Progress<'_>) -> Tally
where
    S: Subject<RunnerRig<C>>,
    C: Crashable + Send + Sync,
{
    let mut tally = Tally::default();
    let captures = match clean_run::<S, C>(scenario) {
        Ok((trace, captures)) => {
            tally.trace = trace;
            captures
        }
        Err((violation, captures)) => {
            tally.fail(Failure { path: CutPath::default(), violation });
            captures
        }
    };
    tally.points = captures.len() as u64;
    let walk = Walk { limits, setup: &scenario.setup, failures: AtomicU64::new(0) };
    tally.add(Tally { points: 0, ..walk.all::<S, C>(&captures, progress) });
    tally
}

/// Visits the device of every crash state of a scenario, as it comes up again.
///
/// # Errors
///
/// A violation in the run without a cut.
pub fn each_state<S, C>(
    scenario: &Scenario<C>,
    limits: &Limits,
    visit: &(dyn Fn(C) + Sync),
) -> Result<(), Violation>
where
    S: Subject<RunnerRig<C>>,
    C: Crashable + Send + Sync,
{
    let (_, captures) = clean_run::<S, C>(scenario).map_err(|(violation, _)| violation)?;
    let walk = Walk { limits, setup: &scenario.setup, failures: AtomicU64::new(0) };
    let states = walk.chosen(&captures, limits.seed);
    each(limits.threads, &states, |state| visit(state.device(limits.seed)));
    Ok(())
}

type CleanRun<C> = Result<(Trace, Vec<ModelCapture<C>>), (Violation, Vec<ModelCapture<C>>)>;

/// Runs the script once, without a cut, and captures every operation (E1).
fn clean_run<S, C>(scenario: &Scenario<C>) -> CleanRun<C>
where
    S: Subject<RunnerRig<C>>,
    C: Crashable,
{
    let model = scenario.model.clone().unwrap_or_default();
    let rig = Rig::new(scenario.device.clone(), Arc::new(model.clone()), Capturing::On);
    let setup = &scenario.setup;
    let done = guarded(|| {
        let mut runner: Runner<S, C> = match &scenario.model {
            Some(model) => Runner::open(rig.clone(), model.clone(), setup)?,
            None => Runner::create(rig.clone(), setup)?,
        };
        runner.run(&scenario.script)?;
        runner.verify()?;
        Ok(runner.trace())
    });
    let captures = rig.take_captures();
    match done {
        Ok(trace) => Ok((trace, captures)),
        Err(stop) => Err((violation_of(stop), captures)),
    }
}

/// Without injected faults nothing may stop a run.
pub(super) fn violation_of(stop: Stop) -> Violation {
    match stop {
        Stop::Violation(violation) => violation,
        Stop::PowerOff => Violation::Fault("power went without a cut"),
        Stop::Poisoned => Violation::Fault("poisoned without a failure"),
        Stop::WornOut => Violation::Fault("worn out without wear"),
        Stop::Reported(_) => Violation::Fault("damage reported on a sound device"),
    }
}

/// The walk over all states below some captures.
struct Walk<'a> {
    limits: &'a Limits,
    setup: &'a Setup,
    failures: AtomicU64,
}

impl Walk<'_> {
    /// Recovers from every state of every capture, on several threads (E4).
    fn all<S, C>(&self, captures: &[ModelCapture<C>], progress: Progress<'_>) -> Tally
    where
        S: Subject<RunnerRig<C>>,
        C: Crashable + Send + Sync,
    {
        let states = self.chosen(captures, self.limits.seed);
        let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
        let total = Mutex::new(Tally::default());
        let work = || {
            while let Some(state) = states.get(next.fetch_add(1, Ordering::Relaxed)) {
                let mut tally = Tally::default();
                self.state::<S, C>(*state, &CutPath::default(), 1, &mut tally);
                total.lock().unwrap_or_else(PoisonError::into_inner).add(tally);
                progress(done.fetch_add(1, Ordering::Relaxed) + 1, states.len() as u64);
            }
        };
        thread::scope(|scope| {
            for _ in 0..self.limits.threads.max(1) {
                scope.spawn(work);
            }
        });
        total.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Recovers from one state, and from every state of that recovery if the depth asks for them.
    fn state<S, C>(&self, state: State<'_, C>, above: &CutPath, level: u32, tally: &mut Tally)
    where
        S: Subject<RunnerRig<C>>,
        C: Crashable,
    {
        if self.failures.load(Ordering::Relaxed) >= self.limits.failures_max {
            return;
        }
        let path = above.with(state.cut());
        let deeper = level < self.limits.depth;
        let capturing = if deeper { Capturing::On } else { Capturing::Off };
        let device = state.device(self.limits.seed);
        let rig = Rig::new(device, Arc::clone(state.mark()), capturing);
        tally.states += 1;
        let probe = state.capture.operation;
        let recovered = guarded(|| recover::<S, C>(rig.clone(), state.mark(), self.setup, probe));
        match recovered {
            Ok(probe) => tally.probes_refused += u64::from(probe == Probe::Refused),
            Err(stop) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                tally.fail(Failure { path: path.clone(), violation: violation_of(stop) });
            }
        }
        let captures = rig.take_captures();
        for below in self.chosen(&captures, self.limits.seed ^ probe) {
            self.state::<S, C>(below, &path, level + 1, tally);
        }
    }

    /// The states below some captures: all of them, or as many as the limits allow.
    fn chosen<'c, C: Crashable>(
        &self,
        captures: &'c [ModelCapture<C>],
        seed: u64,
    ) -> Vec<State<'c, C>> {
        let mut states = State::all(captures);
        let mut generator = Pcg64Mcg::seed_from_u64(seed);
        while states.len() as u64 > self.limits.states_max {
            let index = generator.next_u64() % states.len() as u64;
            states.swap_remove(index as usize);
        }
        states
    }
}

/// Outcome of the change that a recovery makes (E2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// Its commit returned.
    Written,
    /// There was no room for the change.
    Refused,
}

/// Opens after a cut and goes on working (E2). `probe` varies the written row.
pub(super) fn recover<S, C>(
    rig: RunnerRig<C>,
    model: &Model,
    setup: &Setup,
    probe: u64,
) -> Result<Probe, Stop>
where
    S: Subject<RunnerRig<C>>,
    C: Crashable,
{
    let mut runner: Runner<S, C> = Runner::open(rig, model.clone(), setup)?;
    let slot = SlotIndex(0);
    let table = TableIndex((probe % u64::from(TABLE_COUNT)) as u8);
    let key = KeyIndex((probe % u64::from(KEY_COUNT)) as u8);
    runner.step(Op::Put(slot, table, key, Size(100)))?;
    runner.step(Op::Commit(slot, Durability::Immediate))?;
    let probe = if runner.trace().full == 0 { Probe::Written } else { Probe::Refused };
    runner.step(Op::Get(slot, table, key))?;
    runner.step(Op::PowerLoss)?;
    runner.merge_all()?;
    runner.step(Op::Collect)?;
    runner.step(Op::Reopen)?;
    runner.verify()?;
    Ok(probe)
}

/// Goes to one state and recovers from it.
///
/// # Errors
///
/// `NoSuchOperation` or `NoSuchEnding` when the path leads nowhere.
pub fn replay<S, C>(
    scenario: &Scenario<C>,
    path: &CutPath,
    seed: u64,
) -> Result<Result<(), Violation>, BadCut>
where
    S: Subject<RunnerRig<C>>,
    C: Crashable,
{
    let (mut captures, mut outcome) = match clean_run::<S, C>(scenario) {
        Ok((_, captures)) => (captures, Ok(())),
        Err((violation, captures)) => (captures, Err(violation)),
    };
    for cut in &path.0 {
        let states = State::all(&captures);
        let found = states.iter().find(|state| state.cut() == *cut);
        let state = found.ok_or_else(|| BadCut::of(*cut, &captures))?;
        let rig = Rig::new(state.device(seed), Arc::clone(state.mark()), Capturing::On);
        let probe = cut.operation;
        let recovered =
            guarded(|| recover::<S, C>(rig.clone(), state.mark(), &scenario.setup, probe));
        outcome = recovered.map(drop).map_err(violation_of);
        captures = rig.take_captures();
    }
    Ok(outcome)
}

/// A crash state chosen by numbers that fit any run: the choice of fuzzers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Operation, modulo the number of operations.
    pub operation: u16,
    /// Ending, modulo the number of its possible endings.
    pub ending: u8,
}

/// Goes down one path of states, chosen by number.
///
/// # Errors
///
/// The first violation on the way.
pub fn follow<S, C>(
    scenario: &Scenario<C>,
    picks: impl Iterator<Item = Pick>,
    seed: u64,
) -> Result<(), Violation>
where
    S: Subject<RunnerRig<C>>,
    C: Crashable,
{
    let (_, mut captures) = clean_run::<S, C>(scenario).map_err(|(violation, _)| violation)?;
    for pick in picks {
        if captures.is_empty() {
            break;
        }
        let index = usize::from(pick.operation) % captures.len();
        let states = State::of(&captures, index);
        let state = states[usize::from(pick.ending) % states.len()];
        let rig = Rig::new(state.device(seed), Arc::clone(state.mark()), Capturing::On);
        let probe = state.capture.operation;
        guarded(|| recover::<S, C>(rig.clone(), state.mark(), &scenario.setup, probe))
            .map_err(violation_of)?;
        captures = rig.take_captures();
    }
    Ok(())
}
