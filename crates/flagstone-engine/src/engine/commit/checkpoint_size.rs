//! The size that the record of a checkpoint may come to, and whether a checkpoint is due.

use flagstone_space::OPEN_GROUP_PAGE_SIZE;

use crate::engine::commit::Commits;
use crate::engine::store::cycle::Phase;
use crate::engine::store::room::MASTER_HEAD_SIZE;
use crate::engine::store::run::record::MasterRun;
use crate::options::Compaction;

/// One part in this many of the memory that restart may fill is the tail of the log at which a cycle
/// that merges begins.
const TAIL_SHARE: usize = 2;

/// Share of the log budget, in percent, at which a cycle begins.
const BEGIN_PERCENT: u64 = 60;

/// Log blocks that must be left when a cycle begins, for logs of few blocks.
const BEGIN_BLOCKS: u64 = 3;

/// A cycle begins while commits have room for at least one part in this many of the bytes that it may have to copy:
/// each commit then brings so many times its own bytes of copies with it, at most.
const COPIES_A_COMMIT: usize = 4;

/// Bytes of a deferred release, at most, without the value or the pages that it releases.
pub(in crate::engine) const RELEASE_SIZE: usize = 20;

impl Commits {
    pub(crate) fn must_checkpoint(&self) -> bool {
        if self.frontier.replaying.is_some() {
            // The log is being read: no part of it may go.
            return false;
        }
        match self.cycle.phase {
            Phase::Idle => {
                self.cycle.is_wanted
                    || self.is_checkpoint_due()
                    || self.is_tail_long()
                    || self.is_record_crowded()
                    || (self.is_log_filling() || self.is_record_filling() || self.are_loaded_many())
                        && self.shortens_log()
            }
            Phase::Merging { .. } => true,
            // A page full of copies is waiting to be written: the flush comes first. Records that the
            // flush leaves behind may be as many bytes again.
            Phase::Copying { .. } => {
                self.frontier.log.pending_bytes() < self.copy_batch_size()
                    || !self.is_flush_wanted() && self.frontier.flush_in_flight.is_none()
            }
            Phase::Settling { copied } => {
                copied <= self.durable()
                    || !self.is_flush_wanted() && self.frontier.flush_in_flight.is_none()
            }
            Phase::Saving => false,
        }
    }

    /// Whether the log is so long that a checkpoint has to free a part of it.
    pub(in crate::engine) fn is_log_filling(&self) -> bool {
        let copies = self.memory.packed;
        self.room.view.log_used > self.log_pages_below(BEGIN_PERCENT, BEGIN_BLOCKS)
            || self.room_beside(copies + copies / COPIES_A_COMMIT) == 0
    }

    /// Whether the cycle under way has to go on before other work: the log's room for commits went faster
    /// than the bytes to be copied, since the cycle began, or half of it is gone and all is copied.
    pub(in crate::engine) fn is_checkpoint_behind(&self) -> bool {
        let owed = self.cycle.copies_owed(self.memory.packed);
        let room = self.room_beside(owed);
        match self.cycle.phase {
            Phase::Idle => self.is_log_filling(),
            Phase::Merging { .. } | Phase::Copying { .. } => {
                let (owed_first, room_first) = (self.cycle.owed_first, self.cycle.room_first);
                let is_late = |left: u128, first: u128| {
                    left * u128::from(room_first) > first * u128::from(room)
                };
                owed > 0 && room == 0 || is_late(owed as u128, owed_first as u128)
            }
            // Nodes and a record are left, a short piece of work: half of the room is kept for it.
            Phase::Settling { .. } | Phase::Saving => 2 * room <= self.cycle.room_first,
        }
    }

    /// Whether the log's tail should be cut, or restart may have to merge (rule D11): a second tail as
    /// long may come before the cycle ends. Copying would not shorten the tail.
    fn is_tail_long(&self) -> bool {
        self.options.techniques.compaction == Compaction::Merge
            && self.cycle.tail_size > self.replay_size_max() / TAIL_SHARE
    }

    /// Bytes that the record of a checkpoint may come to need for unfinished work: the master record,
    /// and the pages of open groups.
    pub(crate) fn record_size(&self) -> usize {
        let releases = self.trims.deferred().map(|(_, release)| RELEASE_SIZE + release.size());
        let open = self.transactions.values().map(|transaction| transaction.named_size());
        let bare =
            self.runs.bare_lsns().map(|lsn| MasterRun::size_of(&MasterRun::bare(lsn).run, 0));
        let lists = releases.chain(open).chain(bare).sum::<usize>() + self.run_record_size();
        MASTER_HEAD_SIZE + self.counts_size() + lists + self.open_pages_size()
    }

    /// Bytes of that record that name the runs of committed transactions.
    fn run_record_size(&self) -> usize {
        let runs = self.runs.unfinished().chain(&self.cycle.loaded);
        runs.map(|run| run.named_size).sum()
    }

    /// Bytes of that record that go when background work has loaded every run and released all pages
    /// that may go.
    pub(crate) fn passing_record_size(&self) -> usize {
        let ready = self.trims.ready(self.durable(), self.snapshots.oldest());
        let released = ready.map(|release| RELEASE_SIZE + release.size()).sum::<usize>();
        // Only the space floor can tell which of the pages belong to groups that are about to be
        // closed.
        let listed = if self.trims.has_groups() { self.room.view.record_listed } else { 0 };
        self.run_record_size() + released + listed
    }

    /// Bytes of that record that list pages of open groups: the pages on flash when the engine last saw
    /// the space floor, and the pages that may have come since.
    pub(crate) fn open_pages_size(&self) -> usize {
        let installs = self.open_groups().map(|job| job.page_count());
        let open = self.transactions.values().map(|transaction| transaction.unwritten);
        let pages = installs.chain(open).sum::<usize>() + self.claimed_page_count();
        self.room.view.record_listed + pages * OPEN_GROUP_PAGE_SIZE
    }
}
