//! The pool's requests to the order of its frames, under every policy.

use std::fmt;

use flagstone_space::LogicalPage;

use super::order::PageCosts;

/// Changes that wait in memory for a leaf, beside its base copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Bytes of memory; 0 when nothing waits.
    pub(crate) size: usize,
    /// Pages that a merge is likely to write.
    pub(crate) writes: u64,
}

/// How much a victim is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Memory is almost full: only frames that the policy gives readily.
    Soon,
    /// Memory is full.
    Now,
}

/// Places of frames, by their index. The first group of functions is every policy's. The second is for
/// policies whose order holds changes too; other policies need not know of these.
pub(super) trait Places: fmt::Debug + Send + Sync {
    /// Frames in this order.
    fn count(&self) -> usize;

    /// A frame of `size` bytes came to memory.
    fn insert(&mut self, index: u32, page: LogicalPage, size: usize);

    /// A frame's image was replaced by a newer one.
    fn replace(&mut self, index: u32, page: LogicalPage, size: usize) {
        self.remove(index);
        self.insert(index, page, size);
    }

    /// A frame was used.
    fn touch(&mut self, index: u32);

    /// A frame left memory.
    fn remove(&mut self, index: u32);

    /// A frame is ahead of flash, or flash has caught up with it.
    fn set_dirty(&mut self, index: u32, is_dirty: bool);

    /// The frame to leave memory next.
    fn victim(&mut self, urgency: Urgency) -> Option<u32>;

    /// A period of evictions is over: a learned window moves on.
    fn learn(&mut self, _costs: PageCosts) {}

    /// The frames of these pages stay, however old they are, and no others.
    fn keep_only(&mut self, _pages: &[LogicalPage]) {}

    /// Frames used from now on are used by background work, or by operations again.
    fn set_background(&mut self, _is_background: bool) {}

    /// The waiting changes of a leaf are others now.
    fn note_changes(&mut self, _page: LogicalPage, _changes: Changes) {}

    /// The changes that wait for a leaf were used.
    fn use_changes(&mut self, _page: LogicalPage) {}

    /// Whether changes have to meet their pages before a frame leaves.
    fn is_dry(&self) -> bool {
        false
    }

    /// The leaf that leaves next as a whole, if changes wait for it.
    fn tail(&self) -> Option<LogicalPage> {
        None
    }

    /// Leaves whose merge is due, by the pages that the merge writes, from `writes` on; among leaves
    /// with equal writes, the leaf that frees most first.
    fn due_from(&self, _writes: u64) -> Box<dyn Iterator<Item = (LogicalPage, Changes)> + '_> {
        Box::new(std::iter::empty())
    }

    /// Largest memory so far of the order's knowledge beside frames.
    fn bytes_peak(&self) -> usize {
        0
    }
}
