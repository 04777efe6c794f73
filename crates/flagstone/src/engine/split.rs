//! The split of memory between frames and deltas, learned from what a run pays for misses and merges.
//!
//! Owns the share of the frames and what speaks for changing it. Never moves memory itself: limits
//! follow the share, frames and deltas follow their limits.
//!
//! More memory for frames would have saved the reads of pages that left a moment before: they are
//! remembered for as long as a few frames more would have kept them. More memory for deltas would have
//! let every merge wait a little longer, by the time that deltas take to fill that memory: a leaf that
//! is merged every T would have been merged every T + D, and D / (T + D) of its merges saved. How long
//! a leaf was left alone says the LSN of its base. Leaves that are written once and never again (rows
//! that only arrive) therefore ask for nothing. Checkpoints copy what deltas there are: that speaks
//! against them. Prices are those that the device took lately.
//!
//! - **S1** Only events of a period count; every period moves the share by one step at most.
//! - **S2** What is remembered of pages that left is bounded by a share of the frames.

use std::collections::VecDeque;

use flagstone_space::LogicalPage;
use hashbrown::HashMap;

use super::pool::PageCosts;

/// Smallest share of memory that frames may have, and the largest. With fewer frames than clients
/// each would read what another is about to drop.
const SHARE_MIN: f64 = 0.1;
const SHARE_MAX: f64 = 0.9;

/// What the share changes by.
const STEP: f64 = 0.01;

/// Saved reads and merges, together, that make a period.
const PERIOD_EVENTS: u64 = 100;

/// How much dearer one side must be before memory goes to it.
const MARGIN: f64 = 1.2;

/// Pages that left memory lately: as many as one part in this many of the frames.
const GHOST_SHARE: usize = 8;

/// Fewest of them.
const GHOSTS_MIN: usize = 8;

/// Pages that a few frames more would have kept.
#[derive(Debug, Default)]
pub(crate) struct Ghosts {
    /// Pages in the order in which they left, with the number of their leaving.
    order: VecDeque<(LogicalPage, u64)>,
    left: HashMap<LogicalPage, u64>,
    count: u64,
    hits: u64,
}

impl Ghosts {
    /// A page left memory that holds `frames` now.
    pub(crate) fn left(&mut self, page: LogicalPage, frames: usize) {
        self.count += 1;
        self.left.insert(page, self.count);
        self.order.push_back((page, self.count));
        while self.order.len() > Self::room(frames)
            && let Some((page, number)) = self.order.pop_front()
        {
            if self.left.get(&page) == Some(&number) {
                self.left.remove(&page);
            }
        }
    }

    /// A page came to memory.
    pub(crate) fn came(&mut self, page: LogicalPage) {
        self.hits += u64::from(self.left.remove(&page).is_some());
    }

    fn room(frames: usize) -> usize {
        (frames / GHOST_SHARE).max(GHOSTS_MIN)
    }
}

/// What a period paid.
#[derive(Clone, Copy, Debug, Default)]
struct Period {
    merges: u64,
    /// Pages whose writing and reading a little more memory for deltas would have saved.
    written: f64,
    read: f64,
    /// Log pages that copies of deltas took.
    copied: f64,
    /// Bytes of deltas that met their page.
    freed: usize,
    /// Ghosts hit before it.
    ghost_hits: u64,
    /// Position in the log where it began.
    begin: u64,
}

/// A merge for want of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MergeCost {
    pub(crate) pages_written: usize,
    pub(crate) pages_read: usize,
    /// Log written since the leaf was written before, as LSNs count it.
    pub(crate) age: u64,
}

/// The little more memory is one part in this many of what deltas may take.
const DELTAS_SHARE: usize = 16;

/// How much memory there is to split, and in what pieces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Memory that deltas may take.
    pub(crate) deltas: usize,
    /// Memory of a frame.
    pub(crate) frame: usize,
    /// Frames in memory.
    pub(crate) frame_count: usize,
}

/// The learned share.
#[derive(Debug)]
pub(crate) struct Split {
    share: f64,
    period: Period,
    /// How much longer merges could wait with a little more memory, as LSNs count it; none before
    /// the first period is over.
    delay: Option<f64>,
}

impl Split {
    pub(crate) fn new(share: f64) -> Self {
        Self { share, period: Period::default(), delay: None }
    }

    /// Share of memory for frames.
    pub(crate) fn share(&self) -> f64 {
        self.share
    }

    /// A leaf is merged for want of memory.
    pub(crate) fn merged(&mut self, cost: MergeCost) {
        let saved = self.delay.map_or(0.0, |delay| delay / (cost.age as f64 + delay));
        self.period.merges += 1;
        self.period.written += saved * cost.pages_written as f64;
        self.period.read += saved * cost.pages_read as f64;
    }

    /// Deltas of so many bytes met their page.
    pub(crate) fn freed(&mut self, bytes: usize) {
        self.period.freed += bytes;
    }

    /// A checkpoint copied deltas that take so many log pages.
    pub(crate) fn copied(&mut self, log_pages: f64) {
        self.period.copied += log_pages;
    }

    /// Ends the period when enough has happened. `lsn` is the log's end.
    pub(crate) fn learn(&mut self, ghosts: &Ghosts, costs: PageCosts, sizes: Sizes, lsn: u64) {
        let hits = ghosts.hits - self.period.ghost_hits;
        if hits + self.period.merges < PERIOD_EVENTS {
            return;
        }
        let Period { written, read, copied, freed, begin, .. } = self.period;
        let ghost_bytes = Ghosts::room(sizes.frame_count) * sizes.frame;
        let frames = hits as f64 * costs.read() / ghost_bytes as f64;
        let more = (sizes.deltas / DELTAS_SHARE).max(1) as f64;
        let merges = (written * costs.write() + read * costs.read()) / more;
        let deltas = merges - copied * costs.write() / sizes.deltas.max(1) as f64;
        let is_known = self.delay.is_some();
        self.delay = Some(more / freed.max(1) as f64 * lsn.saturating_sub(begin) as f64);
        self.period = Period { ghost_hits: ghosts.hits, begin: lsn, ..Period::default() };
        if !is_known {
            return;
        }
        if frames > deltas * MARGIN {
            self.share = (self.share + STEP).min(SHARE_MAX);
        } else if deltas > frames * MARGIN {
            self.share = (self.share - STEP).max(SHARE_MIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { deltas: 100_000, frame: 2_000, frame_count: 100 };

    fn costs() -> PageCosts {
        let mut costs = PageCosts::default();
        costs.note_read(80);
        costs.note_write(300);
        costs
    }

    fn page(number: u32) -> LogicalPage {
        LogicalPage(number)
    }

    /// Two periods: the first one teaches how fast deltas come.
    fn periods(
        split: &mut Split,
        ghosts: &mut Ghosts,
        mut event: impl FnMut(&mut Split, &mut Ghosts),
    ) {
        for lsn in 0..2 * PERIOD_EVENTS {
            event(split, ghosts);
            split.learn(ghosts, costs(), SIZES, 100 * lsn);
        }
    }

    #[test]
    fn pages_that_come_back_soon_ask_for_frames() {
        let (mut split, mut ghosts) = (Split::new(0.2), Ghosts::default());
        periods(&mut split, &mut ghosts, |_, ghosts| {
            ghosts.left(page(1), 100);
            ghosts.came(page(1));
        });
        assert!(split.share() > 0.2);
    }

    #[test]
    fn pages_that_come_back_late_ask_for_nothing() {
        let mut ghosts = Ghosts::default();
        for round in 0..1_000 {
            ghosts.left(page(round % 50), 100);
            ghosts.came(page((round + 30) % 50));
        }
        assert_eq!(ghosts.hits, 0, "twenty pages ago is longer than twelve frames would have kept");
        assert!(ghosts.order.len() <= 12 && ghosts.left.len() <= 12, "S2");
    }

    /// Share after merges of leaves that are as old as given, beside a few pages that come back.
    fn after_merges(age: u64, copied: f64) -> f64 {
        let (mut split, mut ghosts) = (Split::new(0.2), Ghosts::default());
        let mut number = 0;
        periods(&mut split, &mut ghosts, |split, ghosts| {
            number += 1;
            if number % 10 == 0 {
                ghosts.left(page(1), 100);
                ghosts.came(page(1));
            }
            split.freed(1_000);
            split.merged(MergeCost { pages_written: 1, pages_read: 1, age });
            split.copied(copied);
        });
        split.share()
    }

    #[test]
    fn merges_of_leaves_that_were_just_written_ask_for_deltas() {
        assert!(after_merges(2_000, 0.0) < 0.2);
        assert!(after_merges(10_000_000, 0.0) > 0.2, "those of leaves written once do not");
    }

    #[test]
    fn what_checkpoints_copy_speaks_against_deltas() {
        assert!(after_merges(2_000, 10.0) > 0.2);
    }
}
