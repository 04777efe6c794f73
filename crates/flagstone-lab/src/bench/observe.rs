//! Watching a run while it goes on.
//!
//! Owns the reports to an observer, and its decisions: that the run goes on, or is given up. Never
//! changes the work of the run.
//!
//! - **O1** A run does the same to its device, observed or unobserved: looks come between two
//!   events of the loop, and change nothing.
//! - **O2** Looking is the observer's cost: sums are made only when it asks for them.

use flagstone_nand::{Geometry, Nand as _};
use flagstone_space::BlockReport;

use super::{BenchError, OnProgress, Phase, Progress};
use crate::run::Totals;
use crate::store::Store;

/// Watches a run, and may give it up.
pub trait Observer {
    /// Takes a look at the run: some hundred times in each phase but the last.
    fn observe(&mut self, moment: &Moment<'_>) -> Course;
}

/// Decision about a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// It goes on.
    GoOn,
    /// It ends now, without a report.
    GiveUp,
}

/// One moment of a run.
#[derive(Clone, Copy)]
pub struct Moment<'a> {
    /// How far the run has come.
    pub progress: Progress,
    /// Durable commits since the clients began, commits of the warm-up included; on the simulator.
    pub commits: u64,
    /// Device time on the simulator, in nanoseconds.
    pub now_ns: u64,
    /// The database; none while it is restarted and checked.
    pub scene: Option<&'a dyn Scene>,
}

/// A database and its device, as an observer sees them.
pub trait Scene {
    /// Counters since the database was created or opened.
    fn totals(&self) -> Totals;

    /// Shape of the device.
    fn geometry(&self) -> Geometry;

    /// Every block of the device; none on a drive, whose own blocks the engine does not address.
    fn blocks(&self) -> Option<Vec<BlockReport>>;

    /// Erases of every block, as the device counts them.
    fn erase_counts(&self) -> Vec<u32>;
}

/// A store that is looked at.
pub(crate) struct Sight<'a, S>(pub(crate) &'a S);

impl<S: Store> Scene for Sight<'_, S> {
    fn totals(&self) -> Totals {
        let (engine, space) = (self.0.stats(), self.0.space_stats());
        self.0.with_device(|device| Totals::of(device, &space, &engine))
    }

    fn blocks(&self) -> Option<Vec<BlockReport>> {
        let is_drive = self.0.with_device(|device| device.translation().is_some());
        (!is_drive).then(|| self.0.block_report())
    }

    fn geometry(&self) -> Geometry {
        self.0.with_device(|device| device.geometry())
    }

    fn erase_counts(&self) -> Vec<u32> {
        let counts = |device: &mut S::Device| {
            device.geometry().blocks().map(|block| device.erase_count(block)).collect()
        };
        self.0.with_device(counts)
    }
}

/// An observer that only passes on how far the run has come.
pub(crate) struct Listener<'a>(pub(crate) OnProgress<'a>);

impl Observer for Listener<'_> {
    fn observe(&mut self, moment: &Moment<'_>) -> Course {
        (self.0)(moment.progress);
        Course::GoOn
    }
}

/// Shows a moment to the observer.
///
/// # Errors
///
/// `GivenUp`, when the observer decides so.
pub(crate) fn show(observer: &mut dyn Observer, moment: &Moment<'_>) -> Result<(), BenchError> {
    match observer.observe(moment) {
        Course::GoOn => Ok(()),
        Course::GiveUp => Err(BenchError::GivenUp),
    }
}

/// Tells how far a phase has come in which there is nothing to see.
///
/// # Errors
///
/// As [`show`].
pub(crate) fn tell(
    observer: &mut dyn Observer,
    phase: Phase,
    done: u64,
    total: u64,
) -> Result<(), BenchError> {
    let progress = Progress { phase, done, total };
    show(observer, &Moment { progress, commits: 0, now_ns: 0, scene: None })
}

#[cfg(test)]
mod tests;
