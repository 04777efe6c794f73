//! The two sides, and the runs on them.
//!
//! Owns the threads of the runs and their results.
//!
//! - I1: a side has one run at a time.
//! - I2: a running side comes to rest after any end of its run: a panic is reported like a refusal.
//!
//! ```text
//!  Idle ──start──▶ Running ──▶ Done / Failed / GivenUp ──start──▶ Running …
//! ```

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use flagstone_lab::bench::{self, BenchError};
use flagstone_lab::run::Run;
use serde_json::{Value, json};

use super::form::{Plan, sentence};
use super::watch::{Watched, Watcher};

/// One of the two places for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// First.
    A,
    /// Second.
    B,
}

impl Side {
    /// The side that a path names.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "a" => Some(Self::A),
            "b" => Some(Self::B),
            _ => None,
        }
    }

    const fn letter(self) -> char {
        match self {
            Self::A => 'A',
            Self::B => 'B',
        }
    }
}

/// Finished runs that are kept; the oldest of the others goes when one ends.
const RESULTS_MAX: usize = 6;

/// Both sides, and the runs that have finished.
#[derive(Debug, Default)]
pub(super) struct Runs {
    sides: [Mutex<Option<Started>>; 2],
    /// Runs begun so far.
    begun: AtomicU64,
    results: Mutex<Results>,
}

/// The latest run of a side.
#[derive(Clone, Debug)]
struct Started {
    label: String,
    command: String,
    watched: Arc<Watched>,
    state: State,
}

/// Where a run stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Running,
    Done,
    GivenUp,
    /// Why there is no result.
    Failed(String),
}

/// Runs that have finished.
#[derive(Debug, Default)]
struct Results {
    /// Changes so far.
    version: u64,
    /// In the order in which they began.
    finished: Vec<Finished>,
    /// Runs that each side has finished.
    counts: [u32; 2],
}

/// A run that has finished.
#[derive(Clone, Debug)]
pub(super) struct Finished {
    /// Place among the runs that were begun.
    number: u64,
    /// Side, number on it, and label of the plan.
    pub(super) label: String,
    /// The same run on the command line.
    pub(super) command: String,
    /// Its report.
    pub(super) run: Run,
}

/// Why a run cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Busy;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runs {
    fn side(&self, side: Side) -> MutexGuard<'_, Option<Started>> {
        let [a, b] = &self.sides;
        lock(match side {
            Side::A => a,
            Side::B => b,
        })
    }

    /// Begins a run on a side.
    ///
    /// # Errors
    ///
    /// The side is busy (I1).
    pub(super) fn start(self: &Arc<Self>, side: Side, plan: Plan) -> Result<(), Busy> {
        let mut place = self.side(side);
        if place.as_ref().is_some_and(|run| run.state == State::Running) {
            return Err(Busy);
        }
        let watched = Arc::new(Watched::default());
        let (label, command) = (plan.label.clone(), plan.command.clone());
        let started =
            Started { label, command, watched: Arc::clone(&watched), state: State::Running };
        *place = Some(started);
        let runs = Arc::clone(self);
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let run = move || runs.run(side, number, &plan, &watched);
        let thread = thread::Builder::new().name(format!("demo-{}", side.letter())).spawn(run);
        if let (Err(error), Some(started)) = (thread, &mut *place) {
            started.state = State::Failed(sentence(&error.to_string()));
        }
        Ok(())
    }

    /// Runs a benchmark to any end (I2).
    fn run(&self, side: Side, number: u64, plan: &Plan, watched: &Watched) {
        let result = panic::catch_unwind(AssertUnwindSafe(|| measure(plan, watched)));
        let state = match result {
            Ok(Ok(run)) => {
                self.finish(side, number, plan, run);
                State::Done
            }
            Ok(Err(BenchError::GivenUp)) => State::GivenUp,
            Ok(Err(error)) => State::Failed(sentence(&error.to_string())),
            Err(_) => State::Failed(String::from("The run ended in a panic: a bug.")),
        };
        if let Some(started) = &mut *self.side(side) {
            started.state = state;
        }
    }

    fn finish(&self, side: Side, number: u64, plan: &Plan, run: Run) {
        let mut results = lock(&self.results);
        let count = results.counts.get_mut(side as usize).map_or(0, |count| {
            *count += 1;
            *count
        });
        let label = format!("{}{count}: {}", side.letter(), plan.label);
        let place = results.finished.partition_point(|earlier| earlier.number < number);
        let command = plan.command.clone();
        results.finished.insert(place, Finished { number, label, command, run });
        if results.finished.len() > RESULTS_MAX {
            // Not the one that has just ended, should it have begun before all others.
            results.finished.remove(usize::from(place == 0));
        }
        results.version += 1;
    }

    /// Lets the run of a side end; false when there is none.
    pub(super) fn give_up(&self, side: Side) -> bool {
        let place = self.side(side);
        let running = place.as_ref().filter(|run| run.state == State::Running);
        running.inspect(|run| run.watched.give_up()).is_some()
    }

    /// Lets both runs end.
    pub(super) fn give_up_all(&self) {
        for side in [Side::A, Side::B] {
            self.give_up(side);
        }
    }

    /// The runs that have finished, in the order in which they began.
    pub(super) fn finished(&self) -> Vec<Finished> {
        lock(&self.results).finished.clone()
    }

    /// Forgets the runs that have finished.
    pub(super) fn forget(&self) {
        let mut results = lock(&self.results);
        *results = Results { version: results.version + 1, ..Results::default() };
    }

    /// Both sides as they stand, and the version of the results.
    pub(super) fn state(&self) -> Value {
        json!({
            "a": self.side(Side::A).as_ref().map(Started::state),
            "b": self.side(Side::B).as_ref().map(Started::state),
            "results": lock(&self.results).version,
        })
    }
}

fn measure(plan: &Plan, watched: &Watched) -> Result<Run, BenchError> {
    let options = plan.config.options.first().cloned().unwrap_or_default();
    let mut watcher = Watcher::new(watched, options.parts);
    bench::run_observed(&plan.config, &options, &mut watcher)
}

impl Started {
    fn state(&self) -> Value {
        let (state, message) = match &self.state {
            State::Running if self.watched.is_given_up() => ("ending", None),
            State::Running => ("running", None),
            State::Done => ("done", None),
            State::GivenUp => ("cancelled", None),
            State::Failed(message) => ("failed", Some(message)),
        };
        json!({
            "label": self.label,
            "command": self.command,
            "state": state,
            "message": message,
            "seen": self.watched.seen(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::form::Form;

    /// Goal: a run that ends is kept, although all kept runs began later.
    #[test]
    fn a_run_that_ends_is_kept() {
        let form = json!({
            "benchmark": "tpcb", "scale": "1", "txns": "10", "clients": "1", "warmup": "none",
            "fill": "40", "seed": "1", "profile": "slc-2k", "preset": "flagstone",
        });
        let form: Form = serde_json::from_value(form).unwrap();
        let plan = form.plan().unwrap();
        let run = measure(&plan, &Watched::default()).unwrap();
        let runs = Runs::default();
        let kept = || runs.finished().iter().map(|run| run.number).collect::<Vec<_>>();
        for number in 1..=RESULTS_MAX as u64 {
            runs.finish(Side::A, number, &plan, run.clone());
        }
        runs.finish(Side::B, 0, &plan, run.clone());
        assert_eq!(kept(), [0, 2, 3, 4, 5, 6]);
        runs.finish(Side::A, 7, &plan, run);
        assert_eq!(kept(), [2, 3, 4, 5, 6, 7]);
    }
}
