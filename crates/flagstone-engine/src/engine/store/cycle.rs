//! The checkpoint under way, as far as all layers look at it: phase, cutoff, and callers that wait.
//! The steps are layer 5's (`recovery/checkpoint.rs`).

use flagstone_space::Lsn;

use crate::engine::store::Store;
use crate::engine::store::catalog::Table;
use crate::engine::store::frontier::PENDING_SHARE;
use crate::engine::store::run::committed::CommittedRun;
use crate::log::LogPosition;

/// Copies that wait for one sync, in bytes: written in a few milliseconds, about the time that the sync
/// takes.
const COPY_BATCH_MAX: usize = 256 << 10;

/// Such copies take at most one part in this many of the log.
const COPY_LOG_SHARE: usize = 64;

/// Step of a cycle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) enum Phase {
    #[default]
    Idle,
    /// Merging leaves with deltas at or below the cutoff, from this tree and key on.
    Merging { tree: usize, from: Vec<u8> },
    /// Copying deltas from this tree and key on.
    Copying { tree: usize, after: Option<Vec<u8>> },
    /// Waiting for nodes, frames and the log to reach flash.
    Settling { copied: Lsn },
    /// The mapping checkpoint is being written.
    Saving,
}

/// Progress of checkpoints.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cycle {
    pub(in crate::engine) phase: Phase,
    pub(in crate::engine) number: u32,
    pub(in crate::engine) cutoff: Lsn,
    pub(in crate::engine) begin: LogPosition,
    /// Log page at which the last cycle ended: until the log has a later page, another cycle frees
    /// nothing.
    pub(in crate::engine) end_page: Option<u64>,
    pub(in crate::engine) is_wanted: bool,
    /// A caller waits for the end of the cycle.
    pub(in crate::engine) is_awaited: bool,
    /// Bytes that may have to be copied before the cycle ends.
    pub(in crate::engine) owed: usize,
    /// The same when the cycle began, and the log pages that commits could have beside these copies.
    pub(in crate::engine) owed_first: usize,
    pub(in crate::engine) room_first: u64,
    /// The requested checkpoint is the last of the session.
    pub(in crate::engine) is_last: bool,
    /// The next cycle merges every leaf that it can, also where cycles copy.
    pub(in crate::engine) merges_all: bool,
    /// A leaf was found that cannot be merged before this cycle, or the next one, is over.
    pub(in crate::engine) goes_first: bool,
    /// Commits counted when the last cycle began.
    pub(in crate::engine) begin_commits: u64,
    /// Memory that the changes committed since then took at first, even where they take little of it by
    /// now: restart puts all of them back.
    pub(in crate::engine) tail_size: usize,
    /// Runs that were loaded before this cycle began.
    pub(in crate::engine) loaded: Vec<CommittedRun>,
    /// Pages that became current as groups since the last checkpoint: a mount finds their groups open,
    /// and its first record has to name them all.
    pub(in crate::engine) grouped_pages: usize,
    /// The part of these pages that the checkpoint being written covers.
    pub(in crate::engine) grouped_saved: usize,
}

impl Cycle {
    /// Versions at or below this LSN must stay apart from later ones until they are copied.
    pub(crate) fn cutoff(&self) -> Option<Lsn> {
        (self.phase != Phase::Idle).then_some(self.cutoff)
    }

    pub(crate) fn resume(&mut self, number: u32) {
        self.number = number;
    }

    /// Bytes that are still to be copied, at most, where changes take `packed`.
    pub(in crate::engine) fn copies_owed(&self, packed: usize) -> usize {
        match self.phase {
            // Changes that do not merge are copied.
            Phase::Merging { .. } | Phase::Copying { .. } => self.owed.min(packed),
            _ => 0,
        }
    }

    /// A commit put changes of `size` bytes into the log's tail.
    pub(crate) fn count_committed(&mut self, size: usize) {
        self.tail_size += size;
    }

    /// A group of `pages` became current.
    pub(crate) fn count_grouped(&mut self, pages: usize) {
        self.grouped_pages += pages;
    }

    /// Pages of groups that no checkpoint covers.
    pub(crate) fn grouped_pages(&self) -> usize {
        self.grouped_pages
    }

    /// Restart put the log's tail back, which took `size` bytes.
    pub(crate) fn count_replayed(&mut self, size: usize) {
        self.tail_size = size;
    }
}

impl Store {
    /// Restart found open groups that a record names by so many entries.
    pub(crate) fn count_named(&mut self, entries: usize) {
        self.cycle.count_grouped(entries);
    }

    /// Bytes of copies in one record.
    pub(in crate::engine) fn copy_record_size(&self) -> usize {
        2 * self.payload_size
    }

    /// Copies gather until they fill this many bytes: that makes pages dense and bursts small, and
    /// changes merged meanwhile need not be copied. Where each burst takes a sync there are fewer
    /// bursts for the callers that wait, as far as memory and log have room.
    pub(in crate::engine) fn copy_batch_size(&self) -> usize {
        let least = self.copy_record_size();
        if !self.cycle.is_awaited || !self.room.view.needs_sync {
            return least;
        }
        let log_size = self.room.view.log_budget as usize * self.room.view.log_page_size;
        let most = (self.options.memory / (2 * PENDING_SHARE)).min(log_size / COPY_LOG_SHARE);
        most.min(COPY_BATCH_MAX).max(least)
    }

    /// Asks for a checkpoint, however short the log is. Pending records may have to be flushed before
    /// the cycle goes on, and the caller may be the only one to wait for them (rule D1).
    pub fn want_checkpoint(&mut self) {
        self.cycle.is_wanted = true;
        self.await_cycle();
    }

    pub(in crate::engine) fn await_cycle(&mut self) {
        self.cycle.is_awaited = true;
        self.want_flush();
    }

    /// Asks for a checkpoint without which a leaf cannot be merged, and for merges in it if the cycle
    /// under way merges.
    pub(in crate::engine) fn want_checkpoint_before_merges(&mut self) {
        self.cycle.merges_all |= matches!(self.cycle.phase, Phase::Merging { .. });
        self.cycle.goes_first = true;
        self.want_checkpoint();
    }

    /// Whether the checkpoint under way is the last one: after it, no operation needs more memory than
    /// there is.
    pub(in crate::engine) fn is_closing(&self) -> bool {
        self.cycle.is_last
    }

    /// Whether a checkpoint was asked for and is not finished.
    #[must_use]
    pub fn is_checkpointing(&self) -> bool {
        self.cycle.is_wanted || self.cycle.phase != Phase::Idle
    }

    /// Whether the checkpoint under way lets go of runs.
    pub(in crate::engine) fn covers_runs(&self) -> bool {
        !self.cycle.loaded.is_empty()
    }

    /// Whether the log went on since the last checkpoint: another checkpoint then frees a part of it.
    pub(in crate::engine) fn shortens_log(&self) -> bool {
        self.cycle.end_page.is_none_or(|end| self.frontier.log_page > end)
    }

    /// Whether as many commits as the options name have come since the last cycle began.
    pub(in crate::engine) fn is_checkpoint_due(&self) -> bool {
        let every = self.options.checkpoint_commits;
        every > 0 && self.counts.commits - self.cycle.begin_commits >= every
    }

    /// Rows of a table by its last count, with its live deltas: for estimates.
    pub(crate) fn entry_estimate(&self, table: Table) -> u64 {
        let Some(tree) = self.trees.get(table.id as usize) else { return 0 };
        u64::try_from(tree.entry_count).unwrap_or(0) + tree.deltas.len() as u64
    }
}
