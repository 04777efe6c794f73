//! Frontiers of the log: the newest LSN appended, in a flush, and durable; boundaries, at which versions of a
//! key stay apart.

use flagstone_space::{GroupId, Lsn};

use crate::bugs::SeededBug;
use crate::engine::store::Store;
use crate::log::{ChainPoint, Flush, LogGeometry, LogWriter};

/// Pending log takes at most one part in this many of the memory budget before a flush is wanted
/// unasked.
pub(in crate::engine) const PENDING_SHARE: usize = 16;

/// A flush that is being programmed.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct FlushPoint {
    upto: Lsn,
    pub(in crate::engine) chain: ChainPoint,
    /// The last group whose pages were written before.
    pub(in crate::engine) group: Option<GroupId>,
}

/// Frontiers of the log: the newest record, the newest commit, and how far they are durable.
#[derive(Debug)]
pub(in crate::engine) struct Frontier {
    pub(in crate::engine) log: LogWriter,
    /// Newest commit record in the log, durable or not.
    pub(in crate::engine) committed: Lsn,
    /// Commits up to here must become durable soon: a caller waits for them.
    pub(in crate::engine) flush_to: Lsn,
    /// Commits up to here are waited for too, but their flush may wait for more commits.
    pub(in crate::engine) group_commit_lsn: Lsn,
    pub(in crate::engine) flush_in_flight: Option<FlushPoint>,
    /// Log page on which the last durable fragment ended.
    pub(in crate::engine) log_page: u64,
    /// The last record that frees page numbers, among the records that a restart would find in the log.
    pub(in crate::engine) freed_lsn: Lsn,
    /// States that are kept: no delta joins a change at or below one of these LSNs with a later change.
    pub(in crate::engine) kept: Vec<Lsn>,
    /// The newest change that any delta has.
    pub(in crate::engine) newest_delta: Lsn,
    /// Restart may have to forget the changes that it put back above this LSN.
    pub(in crate::engine) replay_cutoff: Option<Lsn>,
    /// Restart is putting commits back, up to this one so far: no image may claim to be complete
    /// beyond it, although later commits are durable (rule D2).
    pub(in crate::engine) replaying: Option<Lsn>,
    /// The log is read, and no transaction was let in yet.
    pub(in crate::engine) is_opening: bool,
    /// Deltas up to here were put back by restart and may be older than their base.
    pub(in crate::engine) recovered: Lsn,
}

impl Frontier {
    /// Nothing was appended to `log` yet.
    pub(super) fn new(log: LogWriter) -> Self {
        Self {
            log,
            committed: Lsn::ZERO,
            flush_to: Lsn::ZERO,
            group_commit_lsn: Lsn::ZERO,
            flush_in_flight: None,
            log_page: 0,
            freed_lsn: Lsn::ZERO,
            kept: vec![Lsn::ZERO],
            newest_delta: Lsn::ZERO,
            replay_cutoff: None,
            replaying: None,
            is_opening: false,
            recovered: Lsn::ZERO,
        }
    }
}

impl Store {
    /// The LSN that a merge prepared now is complete to: every commit at or below it is durable, and in
    /// the tree's deltas or its base.
    pub(in crate::engine) fn merge_lsn(&self) -> Lsn {
        if self.bugs.has(SeededBug::MergeBeforeDurable) {
            self.frontier.committed
        } else {
            self.frontier.replaying.unwrap_or(self.durable())
        }
    }

    /// Every commit up to here is durable.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.frontier.log.durable()
    }

    /// Whether a caller waits for log records that are not being written yet.
    #[must_use]
    pub fn is_flush_wanted(&self) -> bool {
        !self.is_poisoned()
            && self.frontier.flush_in_flight.is_none()
            && (self.frontier.flush_to > self.frontier.log.durable() || self.has_group_commit())
            && self.frontier.log.pending_bytes() > 0
    }

    /// Whether commits wait for a flush that waits for more commits: the runtime or the event loop,
    /// which keep the time, flush when the delay of the options has passed.
    #[must_use]
    pub fn awaits_group_commit(&self) -> bool {
        !self.is_poisoned() && self.frontier.group_commit_lsn > self.frontier.log.durable()
    }

    /// Whether enough has gathered to end the wait of a group commit.
    fn has_group_commit(&self) -> bool {
        let enough = self.room.view.log_page_size as f64 * self.options.group_fill;
        self.awaits_group_commit() && self.frontier.log.pending_bytes() as f64 >= enough
    }

    /// The newest commit, durable or not.
    #[must_use]
    pub fn last_commit(&self) -> Lsn {
        self.frontier.committed
    }

    /// Whether anything was appended to the log since the engine was opened.
    #[must_use]
    pub fn has_logged(&self) -> bool {
        self.frontier.log.has_appended()
    }

    /// Whether a flush is being programmed. A flush that failed on the device never ends.
    #[must_use]
    pub fn is_flushing(&self) -> bool {
        self.frontier.flush_in_flight.is_some() && !self.is_poisoned()
    }

    /// Bytes of log records that wait for a flush.
    #[must_use]
    pub fn pending_log_size(&self) -> usize {
        self.frontier.log.pending_bytes()
    }

    /// Cuts everything pending into a flush, for the runtime to program.
    pub(crate) fn seal(&mut self, geometry: LogGeometry, slots_left: u16) -> Option<Flush> {
        if self.is_poisoned() {
            return None;
        }
        let flush = self.cut_log(geometry, slots_left)?;
        let (upto, chain) = (flush.upto, self.frontier.log.chain());
        let group = self.groups.written.back().map(|last| last.group);
        self.frontier.flush_in_flight = Some(FlushPoint { upto, chain, group });
        self.refresh_boundaries();
        Some(flush)
    }

    fn cut_log(&mut self, geometry: LogGeometry, slots_left: u16) -> Option<Flush> {
        #[cfg(feature = "seeded-bugs")]
        if self.bugs.has(SeededBug::FrontierBetween) {
            return self.frontier.log.seal_half(geometry, slots_left);
        }
        self.frontier.log.seal(geometry, slots_left)
    }

    /// Asks for everything in the log to become durable.
    pub fn want_flush(&mut self) {
        self.frontier.flush_to = self.frontier.log.appended();
    }

    /// Log page on which the last durable fragment ended.
    pub(crate) fn note_log_page(&mut self, page: u64) {
        self.frontier.log_page = page;
    }

    /// Recomputes the LSNs at which versions of a key must stay apart.
    ///
    /// The durable frontier and the end of a flush in flight may become the LSN that a base is
    /// complete to; a snapshot reads at its own; a checkpoint copies up to its cutoff, and restart
    /// keeps those copies when it forgets the rest; a run that is not loaded will put changes between
    /// older and newer ones; the marker of an epoch is flushed alone.
    ///
    /// # Panics
    ///
    /// If a boundary is no state that was kept (rule D17).
    pub(in crate::engine) fn refresh_boundaries(&mut self) {
        assert!(
            self.take_boundaries() || self.bugs.has(SeededBug::FrontierBetween),
            "D17: a frontier is a state that was kept"
        );
    }

    /// Whether each boundary is a state that was kept: LSNs that are read from flash may have any value.
    pub(in crate::engine) fn take_boundaries(&mut self) -> bool {
        let mut boundaries = vec![self.frontier.log.durable()];
        boundaries.extend(self.frontier.log.marker());
        boundaries.extend(self.frontier.flush_in_flight.map(|point| point.upto));
        boundaries.extend(self.cycle.cutoff());
        boundaries.extend(self.frontier.replay_cutoff);
        self.snapshots.boundaries(&mut boundaries);
        self.runs.boundaries(&mut boundaries);
        boundaries.sort_unstable();
        boundaries.dedup();
        let was_kept = |place: &Lsn| {
            *place >= self.frontier.newest_delta || self.frontier.kept.binary_search(place).is_ok()
        };
        let are_kept = boundaries.iter().all(was_kept);
        self.frontier.kept = boundaries;
        are_kept
    }
}
