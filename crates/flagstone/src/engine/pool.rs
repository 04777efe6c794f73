//! Page frames in memory: images of leaves, inner nodes and spilled pages, least recently used out
//! first.
//!
//! Owns the frames and their order. Never does I/O, never decides what a page means.
//!
//! Invariants:
//! - **P1** `bytes()` is the memory of all frames and never counts a frame twice.
//! - **P2** A frame that is ahead of flash is never evicted: its owner writes it first. An inner
//!   node is no exception to being droppable: what its base lacks stands in the tree's structure
//!   deltas, so it is never marked ahead.
//! - **P3** Leaves leave before inner nodes, since every search walks the latter; but the last few
//!   leaves stay, or the one just read would be gone before it is used.

use flagstone_space::{LogicalPage, Lsn};
use hashbrown::HashMap;

/// Place of a frame in the pool; valid until the next call that may evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameIndex(u32);

/// Changes a frame holds that flash lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// First commit that flash lacks: the log is kept from here.
    pub(crate) first: Lsn,
}

/// One page image in memory.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Page the image belongs to.
    pub(crate) page: LogicalPage,
    /// The image is complete up to this commit (rule D2).
    pub(crate) lsn: Lsn,
    /// The image.
    pub(crate) image: Vec<u8>,
    /// Changes that flash lacks; none for a clean copy.
    pub(crate) ahead: Option<Ahead>,
    class: Class,
    previous: u32,
    next: u32,
}

/// Which list a frame lives in (P3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Leaves and spilled pages.
    Leaf,
    /// Inner nodes.
    Inner,
}

const NONE: u32 = u32::MAX;

/// Memory a frame takes beside its image: the frame itself and its place in the index.
const FRAME_OVERHEAD: usize = size_of::<Frame>() + 2 * size_of::<(LogicalPage, u32)>();

/// Leaves that stay however many inner nodes there are: one a reader and a merge with its siblings.
pub(crate) const LEAVES_MIN: usize = 4;

/// Memory of a frame whose image has `image_size` bytes.
pub(crate) const fn frame_size(image_size: usize) -> usize {
    image_size + FRAME_OVERHEAD
}

#[derive(Clone, Copy, Debug)]
struct List {
    /// Most recently used.
    head: u32,
    /// Least recently used.
    tail: u32,
}

const EMPTY: List = List { head: NONE, tail: NONE };

/// The frames of an engine.
#[derive(Debug)]
pub(crate) struct Pool {
    index: HashMap<LogicalPage, u32>,
    frames: Vec<Frame>,
    free: Vec<u32>,
    lists: [List; 2],
    /// Frames in each list.
    counts: [usize; 2],
    bytes: usize,
    bytes_peak: usize,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

impl Pool {
    pub(crate) fn new() -> Self {
        Self {
            index: HashMap::new(),
            frames: Vec::new(),
            free: Vec::new(),
            lists: [EMPTY; 2],
            counts: [0; 2],
            bytes: 0,
            bytes_peak: 0,
            hits: 0,
            misses: 0,
        }
    }

    /// Memory of all frames.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Largest memory of all frames so far.
    pub(crate) fn bytes_peak(&self) -> usize {
        self.bytes_peak
    }

    /// The frame of `page`, which becomes the most recently used.
    pub(crate) fn get(&mut self, page: LogicalPage) -> Option<FrameIndex> {
        let index = *self.index.get(&page)?;
        if self.list(index).head != index {
            self.unlink(index);
            self.link(index);
        }
        Some(FrameIndex(index))
    }

    /// The frame of `page`, its place in the order unchanged.
    pub(crate) fn peek(&self, page: LogicalPage) -> Option<FrameIndex> {
        self.index.get(&page).copied().map(FrameIndex)
    }

    /// A frame by its place.
    pub(crate) fn frame(&self, index: FrameIndex) -> &Frame {
        &self.frames[index.0 as usize]
    }

    /// Marks a frame as ahead of flash since `first`, unless it is so already.
    pub(crate) fn mark_ahead(&mut self, index: FrameIndex, first: Lsn) {
        self.frames[index.0 as usize].ahead.get_or_insert(Ahead { first });
    }

    /// Flash has caught up with a frame.
    pub(crate) fn mark_clean(&mut self, index: FrameIndex) {
        self.frames[index.0 as usize].ahead = None;
    }

    /// Changes an image in place; what it is complete to rises only when `change` did something.
    pub(crate) fn update<R>(
        &mut self,
        index: FrameIndex,
        lsn: Lsn,
        change: impl FnOnce(&mut Vec<u8>) -> Option<R>,
    ) -> Option<R> {
        let frame = &mut self.frames[index.0 as usize];
        let before = frame.image.capacity();
        let result = change(&mut frame.image);
        let after = frame.image.capacity();
        if result.is_some() {
            frame.lsn = frame.lsn.max(lsn);
        }
        self.bytes = self.bytes + after - before;
        self.bytes_peak = self.bytes_peak.max(self.bytes);
        result
    }

    /// Puts an image in memory, in place of an older one of the same page.
    pub(crate) fn insert(
        &mut self,
        page: LogicalPage,
        lsn: Lsn,
        image: Vec<u8>,
        class: Class,
    ) -> FrameIndex {
        self.remove(page);
        self.bytes += frame_size(image.capacity());
        self.bytes_peak = self.bytes_peak.max(self.bytes);
        let frame = Frame { page, lsn, image, ahead: None, class, previous: NONE, next: NONE };
        let index = if let Some(index) = self.free.pop() {
            self.frames[index as usize] = frame;
            index
        } else {
            self.frames.push(frame);
            u32::try_from(self.frames.len() - 1).unwrap_or(NONE)
        };
        self.index.insert(page, index);
        self.counts[class as usize] += 1;
        self.link(index);
        FrameIndex(index)
    }

    /// Drops the frame of `page`, whatever it holds.
    pub(crate) fn remove(&mut self, page: LogicalPage) -> bool {
        let Some(index) = self.index.remove(&page) else { return false };
        self.unlink(index);
        self.counts[self.frames[index as usize].class as usize] -= 1;
        let image = core::mem::take(&mut self.frames[index as usize].image);
        self.bytes -= frame_size(image.capacity());
        self.free.push(index);
        true
    }

    /// Evicts clean frames until at most `bytes_max` remain or the next victim is ahead of flash,
    /// which is then returned for its owner to write (P2).
    pub(crate) fn shrink(&mut self, bytes_max: usize) -> Option<LogicalPage> {
        while self.bytes > bytes_max {
            let keeps_leaves = self.counts[0] <= LEAVES_MIN;
            let tail = match (self.lists[0].tail, self.lists[1].tail) {
                (NONE, NONE) => return None,
                (NONE, inner) => inner,
                (_, inner) if inner != NONE && keeps_leaves => inner,
                (leaf, _) => leaf,
            };
            let frame = &self.frames[tail as usize];
            if frame.ahead.is_some() {
                return Some(frame.page);
            }
            let page = frame.page;
            self.remove(page);
        }
        None
    }

    /// Pages whose frames are ahead of flash since `lsn` or before.
    pub(crate) fn ahead_since(&self, lsn: Lsn) -> impl Iterator<Item = LogicalPage> + '_ {
        let old = move |frame: &&Frame| frame.ahead.is_some_and(|ahead| ahead.first <= lsn);
        let live = |index: &u32| &self.frames[*index as usize];
        self.index.values().map(live).filter(old).map(|frame| frame.page)
    }

    fn list(&mut self, index: u32) -> &mut List {
        &mut self.lists[self.frames[index as usize].class as usize]
    }

    fn unlink(&mut self, index: u32) {
        let (previous, next) = {
            let frame = &self.frames[index as usize];
            (frame.previous, frame.next)
        };
        match previous {
            NONE => self.list(index).head = next,
            _ => self.frames[previous as usize].next = next,
        }
        match next {
            NONE => self.list(index).tail = previous,
            _ => self.frames[next as usize].previous = previous,
        }
    }

    fn link(&mut self, index: u32) {
        let head = self.list(index).head;
        self.frames[index as usize].previous = NONE;
        self.frames[index as usize].next = head;
        match head {
            NONE => self.list(index).tail = index,
            _ => self.frames[head as usize].previous = index,
        }
        self.list(index).head = index;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(pool: &mut Pool, number: u32, class: Class) {
        pool.insert(LogicalPage(number), Lsn::ZERO, vec![0; 100], class);
    }

    #[test]
    fn least_recently_used_leaves_go_first_and_inner_nodes_last() {
        let mut pool = Pool::new();
        page_of(&mut pool, 1, Class::Inner);
        for number in 2..=6 {
            page_of(&mut pool, number, Class::Leaf);
        }
        pool.get(LogicalPage(2));
        let one = 100 + FRAME_OVERHEAD;
        assert_eq!(pool.shrink(5 * one), None);
        assert!(pool.peek(LogicalPage(3)).is_none(), "3 was used least recently");
        assert!(pool.peek(LogicalPage(1)).is_some(), "inner nodes outlive leaves");
        assert_eq!(pool.shrink(4 * one), None);
        assert!(pool.peek(LogicalPage(1)).is_none(), "but not the last few leaves");
        assert_eq!(pool.shrink(0), None);
        assert_eq!(pool.bytes(), 0);
    }

    #[test]
    fn a_frame_ahead_of_flash_is_named_instead_of_evicted() {
        let mut pool = Pool::new();
        page_of(&mut pool, 7, Class::Leaf);
        let index = pool.peek(LogicalPage(7)).unwrap();
        pool.mark_ahead(index, Lsn(5));
        assert_eq!(pool.shrink(0), Some(LogicalPage(7)));
        assert_eq!(pool.ahead_since(Lsn(5)).count(), 1);
        assert_eq!(pool.ahead_since(Lsn(4)).count(), 0);
        pool.mark_clean(index);
        assert_eq!(pool.shrink(0), None);
    }
}
