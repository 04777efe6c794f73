//! Memory: the limits that follow from the budget, and the shares that frames and changes take.

use flagstone_space::PageInfo;

use crate::delta::DeltaSize;
use crate::engine::store::Store;
use crate::engine::store::memory_tuner::{MemoryTuner, Sizes};
use crate::engine::store::pool::{LEAVES_MIN, frame_size};
use crate::engine::store::room::SpaceView;
use crate::options::{Budget, Compaction, FrameKind, MergeTo, Options};

/// Limits that follow from the memory budget.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Limits {
    /// Frames may take this much.
    frames: usize,
    /// Above this, deltas are merged.
    pub(in crate::engine) deltas_soft: usize,
    /// Above this, commits wait for merges.
    pub(in crate::engine) deltas_hard: usize,
    /// Above this, the largest transaction spills.
    pub(in crate::engine) uncommitted: usize,
    /// Deltas beyond this could not all be copied by a checkpoint.
    pub(in crate::engine) deltas_copied: usize,
    /// With a longer log deltas might take more.
    pub(in crate::engine) is_log_short: bool,
}

/// Memory that frames and changes take, beside the limits for both.
#[derive(Debug)]
pub(in crate::engine) struct MemoryUse {
    pub(in crate::engine) limits: Limits,
    pub(in crate::engine) tuner: MemoryTuner,
    /// Levels of the tallest tree that was seen.
    pub(in crate::engine) height: usize,
    /// Memory of committed changes.
    pub(in crate::engine) deltas: usize,
    /// Bytes of committed changes as records.
    pub(in crate::engine) packed: usize,
    /// Memory that a byte of such records takes, as measured when copies of them took much of the log.
    pub(in crate::engine) unpacked_ratio: f64,
    /// Memory of changes that no commit made visible.
    pub(in crate::engine) uncommitted: usize,
    /// Most that changes took.
    pub(in crate::engine) deltas_peak: usize,
    /// Most that frames and changes took together.
    pub(in crate::engine) peak: usize,
}

impl MemoryUse {
    /// Nothing is in memory yet.
    pub(super) fn new(options: &Options, payload_size: usize) -> Self {
        let frame_share = options.techniques.frame_share;
        Self {
            limits: Limits::of(options, frame_share, payload_size, HEIGHT_MIN),
            tuner: MemoryTuner::new(frame_share),
            height: 1,
            deltas: 0,
            packed: 0,
            unpacked_ratio: 1.0,
            uncommitted: 0,
            deltas_peak: 0,
            peak: 0,
        }
    }
}

impl Store {
    /// Whether frames that are ahead of flash take more than their share and the memory kept for
    /// merges: transactions that want to change more wait until some are written.
    pub(crate) fn frames_exceed(&self) -> bool {
        self.pool.bytes() > self.frames_max() + MERGE_PAGES * self.payload_size
    }

    /// Whether commits may go straight into frames: snapshots read older versions, and changes
    /// that are still on flash come before them.
    pub(crate) fn folds_commits(&self) -> bool {
        self.holds_images_ahead() && self.snapshots.is_empty() && self.runs.is_empty()
    }

    /// Memory that restart may fill: no frame needs its share yet.
    pub(crate) fn replay_size_max(&self) -> usize {
        let frames = self.frames_min() + MERGE_PAGES * self.payload_size;
        self.options.memory.saturating_sub(frames).max(self.memory.limits.deltas_soft)
    }

    /// Whether more changes are left at the end than a checkpoint may have to copy: the log has no room
    /// for them (rule D7).
    pub(crate) fn exceeds_copies(&self) -> bool {
        self.options.techniques.compaction == Compaction::Copy
            && self.memory.packed > self.room.view.copies_max()
    }

    /// Above this size, changes are merged to make room. Until users come, frames do not need their
    /// share, and changes that a checkpoint has room to copy need not be merged for it.
    pub(in crate::engine) fn merges_above(&self) -> usize {
        match self.frontier.is_opening && !self.exceeds_copies() {
            true => self.replay_size_max(),
            false => self.memory.limits.deltas_soft.saturating_sub(self.kept_for_parts()),
        }
    }

    /// So many pages were written in `ns` of device time, with the collection that they waited for;
    /// none where there was nothing but collection.
    pub(crate) fn note_write_cost(&mut self, pages: usize, ns: u64) {
        self.pool.costs.note_write(pages as u64, ns);
    }

    /// A page took an append in `ns` of device time.
    pub(crate) fn note_append_cost(&mut self, ns: u64) {
        self.pool.costs.note_append(ns);
    }

    /// The log was programmed so many times in `ns` of device time.
    pub(crate) fn note_log_cost(&mut self, programs: usize, ns: u64) {
        self.pool.costs.note_log(programs as u64, ns);
    }

    /// Bytes of uncommitted changes beyond which transactions spill.
    pub(crate) fn uncommitted_max(&self) -> usize {
        self.memory.limits.uncommitted
    }

    /// Whether the share of frames is learned. Where frames hold changes that flash lacks there is
    /// nothing to split.
    pub(super) fn learns_memory_split(&self) -> bool {
        self.options.techniques.budget == Budget::Adaptive && !self.holds_images_ahead()
    }

    pub(super) fn learn_memory_split(&mut self) {
        let sizes = Sizes {
            deltas: self.memory.limits.deltas_soft,
            frame: frame_size(self.payload_size),
            frame_count: self.pool.count(),
        };
        self.memory.tuner.learn(
            &self.pool.ghosts,
            self.pool.costs,
            sizes,
            self.frontier.log.appended(),
        );
    }

    pub(super) fn refresh_limits(&mut self) {
        let share = if self.learns_memory_split() {
            self.memory.tuner.share()
        } else {
            self.options.techniques.frame_share
        };
        let limits = Limits::of(&self.options, share, self.payload_size, self.memory.height);
        self.memory.limits = limits.within_log(&self.room.view, self.memory.unpacked_ratio);
        if self.options.techniques.budget != Budget::Shared {
            // Memory that the log's size keeps deltas from taking is of use to frames.
            let taken = self.memory.limits.deltas_hard + MERGE_PAGES * self.payload_size;
            let left = self.options.memory.saturating_sub(taken);
            self.memory.limits.frames = self.memory.limits.frames.max(left);
        }
    }

    /// A node of this level was seen: its tree has at least one level more than this number.
    pub(super) fn note_level(&mut self, level: u8) {
        let height = usize::from(level) + 1;
        if height > self.memory.height {
            self.memory.height = height;
            self.refresh_limits();
        }
    }

    pub(in crate::engine) fn note_deltas_size(&mut self, before: DeltaSize, after: DeltaSize) {
        self.memory.deltas = self.memory.deltas + after.memory - before.memory;
        self.memory.packed = self.memory.packed + after.packed - before.packed;
        self.memory.tuner.freed(before.memory.saturating_sub(after.memory));
        self.note_memory();
    }

    /// Changes or frames take more or less memory than before: frames give way where the budget is shared.
    pub(in crate::engine) fn note_memory(&mut self) {
        let total = self.memory.deltas + self.memory.uncommitted;
        self.memory.deltas_peak = self.memory.deltas_peak.max(total);
        if self.options.techniques.budget == Budget::Shared {
            self.pool.shrink(self.frames_max());
        }
        self.memory.peak = self.memory.peak.max(total + self.pool.bytes());
    }

    /// Memory that frames may take now.
    pub(in crate::engine) fn frames_max(&self) -> usize {
        let taken = self.memory.deltas + self.memory.uncommitted + MERGE_PAGES * self.payload_size;
        let left = self.options.memory.saturating_sub(taken);
        let most = match self.options.techniques.budget {
            // Deltas may still hold memory that was given to frames.
            Budget::Divided | Budget::Adaptive => self.memory.limits.frames.min(left),
            Budget::Shared => left,
        };
        most.max(self.frames_min())
    }

    /// Memory that frames take at least: pages that were read for the next job stay beside pages that
    /// operations need, or each side would read again and again the pages that the other has dropped
    /// (rule D7).
    fn frames_min(&self) -> usize {
        let held = self.pool.held_count();
        let versions = (LEAVES_MIN + held) * size_of::<PageInfo>();
        (frame_count_min(self.memory.height) + held) * frame_size(self.payload_size) + versions
    }

    pub(in crate::engine) fn holds_images_ahead(&self) -> bool {
        self.options.techniques.frames == FrameKind::Ahead
    }

    /// Whether frames may hold changes that flash lacks, by commits or by merges.
    pub(in crate::engine) fn may_be_ahead(&self) -> bool {
        self.holds_images_ahead() || self.options.techniques.merge_to == MergeTo::Frame
    }
}

impl Limits {
    /// Limits where frames have `frame_share` of memory.
    pub(in crate::engine) fn of(
        options: &Options,
        frame_share: f64,
        payload_size: usize,
        height: usize,
    ) -> Self {
        let memory = options.memory;
        let share = |of: f64| (memory as f64 * of) as usize;
        let frame_share = match options.techniques.frames {
            FrameKind::Base => frame_share,
            FrameKind::Ahead => 1.0 - frame_share,
        };
        let frames_min = frame_count_min(height) * frame_size(payload_size);
        let frames = share(frame_share).max(frames_min);
        let deltas = memory.saturating_sub(frames).saturating_sub(MERGE_PAGES * payload_size);
        Self {
            frames,
            deltas_soft: deltas - deltas / 16,
            deltas_hard: deltas,
            // A page at least, however small the share: changes that a transaction cannot keep leave
            // memory a row at a time.
            uncommitted: share(options.techniques.uncommitted_share)
                .min(deltas / 2)
                .max(payload_size),
            deltas_copied: usize::MAX,
            is_log_short: false,
        }
    }
}

impl Limits {
    /// A checkpoint copies every live delta to the log's tail, beside the copies before it: deltas
    /// never take more than a share of the log, or its head could not be freed (rule D7). A byte of a
    /// copy takes `delta_memory_ratio` of memory.
    fn within_log(mut self, view: &SpaceView, delta_memory_ratio: f64) -> Self {
        let copies_max = view.copies_max();
        if copies_max < usize::MAX {
            let deltas_max = (copies_max as f64 * delta_memory_ratio) as usize;
            let deltas_max = deltas_max.max(self.uncommitted.min(1024));
            self.deltas_copied = deltas_max;
            self.is_log_short = view.log_grows && deltas_max < self.deltas_hard;
            self.deltas_hard = self.deltas_hard.min(deltas_max);
            self.deltas_soft = self.deltas_soft.min(deltas_max - deltas_max / 16);
            self.uncommitted = self.uncommitted.min(deltas_max / 2);
        }
        self
    }
}

/// Share of the log's budget, in percent, that live deltas may take.
pub(super) const DELTAS_LOG_PERCENT: usize = 30;

/// Upper bound of the memory that is believed for a byte of records: a ratio measured when many records
/// are gone need not hold for the records to come.
pub(in crate::engine) const UNPACKED_MAX: f64 = 1.5;

/// Levels of the lowest tree that memory is planned for.
pub(super) const HEIGHT_MIN: usize = 4;

/// Frames of the smallest pool: a root-to-leaf path beside the leaves that stay, which include the
/// leaves of a merge with their siblings (rule D7).
const fn frame_count_min(height: usize) -> usize {
    let levels = if height > HEIGHT_MIN { height } else { HEIGHT_MIN };
    levels + LEAVES_MIN
}

/// Images a merge holds while it is being prepared and written: the new leaf and its neighbours.
pub(in crate::engine) const MERGE_PAGES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal (rule D7): a transaction keeps a page of changes, whichever shares the options give it:
    /// with less, each row leaves memory as a run of its own. Method: the smallest memory, all shares.
    #[test]
    fn a_transaction_keeps_a_page_whatever_the_shares() {
        for payload_size in [488, 2_012, 4_056, 16_344] {
            for percent in 0..=100_u32 {
                let share = f64::from(percent) / 100.0;
                let memory = 24 * (payload_size + 40);
                let options = Options::default().with_memory(memory);
                let options = options
                    .with_techniques(|techniques| techniques.uncommitted_share = 1.0 - share);
                let limits = Limits::of(&options, share, payload_size, HEIGHT_MIN);
                let view = SpaceView { log_budget: 248, log_page_size: 4096, ..Default::default() };
                let within = limits.within_log(&view, 1.0);
                let kept = limits.uncommitted.min(within.uncommitted);
                assert!(kept >= payload_size, "{percent} %: {limits:?}, {within:?}");
            }
        }
    }
}
