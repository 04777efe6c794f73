//! The view of a run while it goes on.
//!
//! Owns the history of the measured window, thinned out as it grows, and the latest picture of the
//! chip. Measures nothing: every figure is a difference of the lab's counters.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use flagstone_lab::bench::{Course, Moment, Observer, Phase, Progress, Scene};
use flagstone_lab::run::{EraseCount, ProgramsByCause, Totals};
use flagstone_space::{BlockReport, BlockState};
use serde::Serialize;

/// Points of the history at which every other one is dropped.
const SAMPLES_MAX: usize = 256;

/// A run that is watched: the lab writes to it, the page reads it.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// The run is to end.
    given_up: AtomicBool,
    /// Somebody has looked since the last picture was taken.
    is_wanted: AtomicBool,
    seen: Mutex<Seen>,
}

/// The view so far.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Seen {
    /// Phase of the run.
    phase: Option<&'static str>,
    /// Done and to be done within the phase.
    done: u64,
    total: u64,
    /// The window so far.
    window: Option<Window>,
    /// The window so far, as points at even distances.
    samples: Vec<Sample>,
    /// The chip as it was when somebody looked.
    chip: Option<Chip>,
}

/// Counters of the measured window so far.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Window {
    /// Device time.
    time_s: f64,
    commits: u64,
    /// Transactions a second of device time.
    tps: f64,
    /// Programs, whole and partial.
    programs: u64,
    programs_by_cause: ProgramsByCause,
    erases: u64,
    gc_migrations: u64,
    reads: u64,
}

/// One point of the history.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sample {
    time_s: f64,
    commits: u64,
    programs: u64,
    erases: u64,
}

/// A picture of the chip.
#[derive(Clone, Debug, Serialize)]
struct Chip {
    pages_per_block: u32,
    erase_count: EraseCount,
    /// Of each block its state, live pages and erases. The state is a place in [`STATES`], or beyond it where the
    /// device hides its blocks.
    blocks: Vec<(usize, u32, u32)>,
}

/// States of a block, in the order of their numbers on the page.
const STATES: [BlockState; 7] = [
    BlockState::Free,
    BlockState::Open,
    BlockState::Closed,
    BlockState::Log,
    BlockState::Ring,
    BlockState::Retired,
    BlockState::Bad,
];

impl Watched {
    /// Lets the run end at the next look.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Whether the run was given up.
    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    /// The view so far; this call makes the watcher take the next picture.
    pub(super) fn seen(&self) -> Seen {
        self.is_wanted.store(true, Ordering::Relaxed);
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The watcher of one run.
pub(super) struct Watcher<'a> {
    watched: &'a Watched,
    /// Physical pages of a logical one.
    parts: u32,
    /// Commits, time and counters at the begin of the window.
    base: Option<(u64, u64, Totals)>,
    /// Device time between two points of the history.
    spacing_s: f64,
}

impl<'a> Watcher<'a> {
    /// A watcher that writes to `watched`.
    pub(super) const fn new(watched: &'a Watched, parts: u32) -> Self {
        Self { watched, parts, base: None, spacing_s: 0.0 }
    }

    /// The window so far; none outside it.
    fn window(&mut self, moment: &Moment<'_>, scene: &dyn Scene) -> Option<Window> {
        if moment.progress.phase != Phase::Measure {
            self.base = None;
            return None;
        }
        let totals = scene.totals();
        let base = self.base.get_or_insert_with(|| (moment.commits, moment.now_ns, totals.clone()));
        let (commits, time_ns) = (moment.commits - base.0, moment.now_ns.saturating_sub(base.1));
        let stretch = totals.since(&base.2);
        let time_s = time_ns as f64 / 1e9;
        Some(Window {
            time_s,
            commits,
            tps: if time_s > 0.0 { commits as f64 / time_s } else { 0.0 },
            programs: stretch.programs(),
            programs_by_cause: stretch.causes(),
            erases: stretch.device.block_erases,
            gc_migrations: stretch.gc_migrations,
            reads: stretch.device.page_reads,
        })
    }

    /// Adds a point to the history, and drops every other one when there are too many.
    fn sample(&mut self, samples: &mut Vec<Sample>, window: &Window) {
        let Window { time_s, commits, programs, erases, .. } = *window;
        let due_s = samples.last().map_or(0.0, |last| last.time_s + self.spacing_s);
        if time_s < due_s || (time_s <= due_s && !samples.is_empty()) {
            return;
        }
        samples.push(Sample { time_s, commits, programs, erases });
        if samples.len() >= SAMPLES_MAX {
            let mut number = 0;
            samples.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.spacing_s = time_s / samples.len() as f64;
        }
    }
}

impl Observer for Watcher<'_> {
    fn observe(&mut self, moment: &Moment<'_>) -> Course {
        if self.watched.is_given_up() {
            return Course::GiveUp;
        }
        let Progress { phase, done, total } = moment.progress;
        let is_last = phase == Phase::Measure && done == total;
        let is_wanted = is_last || self.watched.is_wanted.swap(false, Ordering::Relaxed);
        let window = moment.scene.and_then(|scene| self.window(moment, scene));
        let chip = moment.scene.filter(|_| is_wanted).map(|scene| chip(scene, self.parts));
        let mut seen = self.watched.lock();
        if phase == Phase::Load {
            // The chip turned out too small or too large, and the run began anew with another one.
            seen.samples.clear();
            seen.window = None;
            self.spacing_s = 0.0;
        }
        (seen.phase, seen.done, seen.total) = (Some(crate::bench::phase_name(phase)), done, total);
        if let Some(window) = window {
            self.sample(&mut seen.samples, &window);
            seen.window = Some(window);
        }
        if chip.is_some() {
            seen.chip = chip;
        }
        Course::GoOn
    }
}

fn chip(scene: &dyn Scene, parts: u32) -> Chip {
    let erases = scene.erase_counts();
    let line = |block: &BlockReport| {
        let state = STATES.iter().position(|state| *state == block.state);
        (state.unwrap_or(STATES.len()), block.live.saturating_mul(parts), block.erases)
    };
    let blocks = match scene.blocks() {
        Some(blocks) => blocks.iter().map(line).collect(),
        None => erases.iter().map(|erases| (STATES.len(), 0, *erases)).collect(),
    };
    let pages_per_block = scene.geometry().pages_per_block;
    Chip { pages_per_block, erase_count: EraseCount::of(erases), blocks }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_history_keeps_its_shape_in_few_points() {
        let watched = Watched::default();
        let mut watcher = Watcher::new(&watched, 1);
        let mut samples = Vec::new();
        for commits in 0..100_000_u64 {
            let window = Window { time_s: commits as f64 / 1e3, commits, ..Window::default() };
            watcher.sample(&mut samples, &window);
        }
        assert!((SAMPLES_MAX / 4..SAMPLES_MAX).contains(&samples.len()), "{}", samples.len());
        let gaps = samples.windows(2).map(|pair| pair[1].commits - pair[0].commits);
        let gaps: Vec<u64> = gaps.collect();
        let (least, most) = (gaps.iter().min().copied(), gaps.iter().max().copied());
        assert!(least > Some(0) && most <= least.map(|gap| 4 * gap), "{least:?} to {most:?}");
        assert_eq!(samples[0].commits, 0);
        assert!(samples.last().is_some_and(|last| last.commits > 98_000));
    }
}
