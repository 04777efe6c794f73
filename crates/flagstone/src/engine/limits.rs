//! How the memory budget is divided: what frames, deltas and uncommitted changes may take.
//!
//! Never measures and never decides when the division changes: the engine does.
//!
//! - **B1** Frames, a merge and deltas have what one operation needs at a time, whatever their shares: with the
//!   smallest memory that an engine takes, too.

use super::SpaceView;
use super::pool::{LEAVES_MIN, frame_size};
use crate::options::{FrameKind, Options};

/// Limits that follow from the memory budget.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Frames may take this much.
    pub(super) frames: usize,
    /// Above this, deltas are merged.
    pub(super) deltas_soft: usize,
    /// Above this, commits wait for merges.
    pub(super) deltas_hard: usize,
    /// Above this, the largest transaction spills.
    pub(super) uncommitted: usize,
    /// With a longer log deltas might take more.
    pub(super) is_log_short: bool,
}

impl Limits {
    /// Limits where frames have `frame_share` of memory.
    pub(super) fn of(
        options: &Options,
        frame_share: f64,
        payload_size: usize,
        height: usize,
    ) -> Self {
        let memory = options.memory;
        let share = |of: f64| (memory as f64 * of) as usize;
        let frame_share = match options.frames {
            FrameKind::Base => frame_share,
            FrameKind::Ahead => 1.0 - frame_share,
        };
        let frames_min = frame_count_min(height) * frame_size(payload_size);
        let beside_frames = MERGE_PAGES * payload_size;
        // However little deltas save: what a transaction cannot keep is written a row at a time (B1).
        let frames_max = memory.saturating_sub(beside_frames + DELTA_PAGES_MIN * payload_size);
        let frames = share(frame_share).min(frames_max).max(frames_min);
        let deltas = memory.saturating_sub(frames).saturating_sub(beside_frames);
        Self {
            frames,
            deltas_soft: deltas - deltas / 16,
            deltas_hard: deltas,
            uncommitted: share(options.uncommitted_share).min(deltas / 2),
            is_log_short: false,
        }
    }

    /// A checkpoint copies every live delta to the log's tail, beside the copies before it: deltas
    /// never take more than a share of the log, or it could not be freed (rule D7). A byte of a copy takes
    /// `unpacked` of memory.
    pub(super) fn within_log(mut self, view: &SpaceView, unpacked: f64) -> Self {
        let copies_max = view.copies_max();
        if copies_max < usize::MAX {
            let deltas_max = (copies_max as f64 * unpacked) as usize;
            let deltas_max = deltas_max.max(self.uncommitted.min(1024));
            self.is_log_short = view.log_grows && deltas_max < self.deltas_hard;
            self.deltas_hard = self.deltas_hard.min(deltas_max);
            self.deltas_soft = self.deltas_soft.min(deltas_max - deltas_max / 16);
            self.uncommitted = self.uncommitted.min(self.deltas_hard / 2);
        }
        self
    }
}

/// Levels of the lowest tree that memory is planned for.
pub(super) const HEIGHT_MIN: usize = 4;

/// Frames of the smallest pool: a root-to-leaf path beside the leaves that stay, those of a merge
/// with its siblings among them (rule D7).
pub(super) const fn frame_count_min(height: usize) -> usize {
    let levels = if height > HEIGHT_MIN { height } else { HEIGHT_MIN };
    levels + LEAVES_MIN
}

/// Images a merge holds while it is being prepared and written: the new leaf and its neighbours.
pub(super) const MERGE_PAGES: usize = 4;

/// Images that deltas have room for at least: half of it is for a transaction, which spills a page at a time.
const DELTA_PAGES_MIN: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal (B1): nobody is left without memory, whatever frames are worth. Method: the smallest memory, all shares.
    #[test]
    fn deltas_have_room_whatever_the_share_of_frames() {
        for payload_size in [488, 2_012, 4_056, 16_344] {
            let options = Options::default().with_memory(24 * (payload_size + 40));
            for (percent, height) in (0..=100_u32).flat_map(|percent| [(percent, 1), (percent, 9)])
            {
                let limits = Limits::of(&options, f64::from(percent) / 100.0, payload_size, height);
                let taken = limits.frames + limits.deltas_hard + MERGE_PAGES * payload_size;
                assert!(taken <= options.memory, "{percent} %: more than there is: {limits:?}");
                assert!(limits.frames >= frame_count_min(height) * frame_size(payload_size));
                assert!(limits.deltas_hard >= 2 * payload_size, "{percent} %: {limits:?}");
                assert!(limits.uncommitted >= payload_size, "{percent} %: {limits:?}");
            }
        }
    }
}
