//! Page frames in memory: images of leaves, inner nodes and spilled pages, and the choice of the next
//! frame to leave.
//!
//! Owns the frames. Their order is a policy's ([`Replacement`]) among leaves, and the order of last use
//! among inner nodes. Never does I/O, never decides the meaning of a page.
//!
//! Invariants:
//! - **P1** `bytes()` is the memory of all frames and never counts a frame twice.
//! - **P2** A frame that is ahead of flash is never evicted: its owner writes it first. An inner node
//!   can always be dropped, too: its missing separators stand in the tree's structure deltas, so an
//!   inner node is never marked ahead.
//! - **P3** Leaves leave before inner nodes, since every search walks the latter; but the last few
//!   leaves stay, or a page just read would be gone before it is used. Where memory is only kept free
//!   for later, they stay even if there is no inner node to go in their place.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flagstone_space::{LogicalPage, Lsn, PageInfo};
use hashbrown::HashMap;

use crate::engine::store::memory_tuner::Ghosts;
use crate::engine::store::pool::costs::PageCosts;
use crate::engine::store::pool::lru::Lru;
use crate::policy::{Replacement, Urgency};

pub(in crate::engine) mod costs;
pub(in crate::engine) mod lru;

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
    /// The version on flash, where it takes appends: the image equals its content, unless the frame is
    /// ahead.
    pub(crate) version: Option<Box<PageInfo>>,
    class: Class,
    /// Used by a reader that changes nothing: counts as used last as soon as the order is asked.
    is_used: AtomicBool,
}

impl Frame {
    fn clean(page: LogicalPage, lsn: Lsn, image: Vec<u8>, class: Class) -> Self {
        let is_used = AtomicBool::new(false);
        Self { page, lsn, image, ahead: None, version: None, class, is_used }
    }

    /// Memory of the frame (P1).
    fn size(&self) -> usize {
        let version = if self.version.is_some() { size_of::<PageInfo>() } else { 0 };
        frame_size(self.image.capacity()) + version
    }
}

/// Which order a frame is in (P3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Leaves and spilled pages.
    Leaf,
    /// Inner nodes.
    Inner,
}

/// Operations' requests for leaves: base copies, or changes that wait for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct References {
    /// Requests served, in the end.
    pub(crate) found: u64,
    /// Pages that had to be read first.
    pub(crate) missed: u64,
}

/// Memory of a frame's place in its order: links, page and age, whatever the policy keeps of them.
const SPOT_SIZE: usize = 24;

/// Memory a frame takes beside its image: the frame itself, its place in index and order.
const FRAME_OVERHEAD: usize = size_of::<Frame>() + 2 * size_of::<(LogicalPage, u32)>() + SPOT_SIZE;

/// Leaves that stay however many inner nodes there are: one for a reader, and a merge's leaf with its
/// siblings.
pub const LEAVES_MIN: usize = 4;

/// Memory of a frame whose image has `image_size` bytes.
pub(crate) const fn frame_size(image_size: usize) -> usize {
    image_size + FRAME_OVERHEAD
}

/// The frames of an engine.
#[derive(Debug)]
pub(crate) struct Pool {
    index: HashMap<LogicalPage, u32>,
    frames: Vec<Frame>,
    free: Vec<u32>,
    /// Orders of leaves and of inner nodes.
    orders: [Box<dyn Replacement>; 2],
    /// Memory that stays free as long as a policy has victims that it gives readily.
    slack: usize,
    /// Device time for a page, for policies that weigh reads against writes.
    pub(crate) costs: PageCosts,
    /// Pages that left a moment ago.
    pub(crate) ghosts: Ghosts,
    bytes: usize,
    bytes_peak: usize,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// Leaves that operations asked for.
    pub(crate) references: References,
    is_background: bool,
    /// Pages read for the next job: they stay in memory until the job is prepared (rule D7).
    held: Vec<LogicalPage>,
    /// Leaves among their frames: they stay beside the last few.
    kept_leaves: usize,
    /// Leaves found by readers that change nothing, in steps of [`SHARED_READS`].
    shared_hits: AtomicU64,
    /// Pages that such readers have to wait for.
    shared_misses: AtomicU64,
    allows_shared_reads: bool,
}

/// Shared reads that a thread counts before it adds them to the common counter: threads that all write
/// one counter would wait for each other.
const SHARED_READS: u8 = 64;

thread_local! {
    static GLANCED: Cell<u8> = const { Cell::new(0) };
}

impl Pool {
    /// An empty pool whose leaves are ordered by `leaves`.
    pub(crate) fn new(leaves: Box<dyn Replacement>) -> Self {
        let (slack, allows_shared_reads) = (leaves.slack(), leaves.allows_late_touch());
        Self {
            index: HashMap::new(),
            frames: Vec::new(),
            free: Vec::new(),
            orders: [leaves, Box::<Lru>::default()],
            slack,
            costs: PageCosts::default(),
            ghosts: Ghosts::default(),
            bytes: 0,
            bytes_peak: 0,
            hits: 0,
            misses: 0,
            references: References::default(),
            is_background: false,
            held: Vec::new(),
            kept_leaves: 0,
            shared_hits: AtomicU64::new(0),
            shared_misses: AtomicU64::new(0),
            allows_shared_reads,
        }
    }

    /// Frames in memory.
    pub(crate) fn count(&self) -> usize {
        self.index.len()
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
        let index = self.peek(page)?;
        self.touch(index);
        Some(index)
    }

    /// A frame becomes the most recently used.
    pub(crate) fn touch(&mut self, index: FrameIndex) {
        self.order(index.0).touch(index.0);
    }

    /// The frame of `page`, its place in the order unchanged.
    pub(crate) fn peek(&self, page: LogicalPage) -> Option<FrameIndex> {
        self.index.get(&page).copied().map(FrameIndex)
    }

    /// Whether frames may be used without their order being told at once.
    pub(crate) fn allows_shared_reads(&self) -> bool {
        self.allows_shared_reads
    }

    /// A leaf was used by a reader that changes nothing.
    pub(crate) fn mark_used(&self, index: FrameIndex) {
        let is_used = &self.frames[index.0 as usize].is_used;
        if !is_used.load(Ordering::Relaxed) {
            is_used.store(true, Ordering::Relaxed);
        }
        let count = GLANCED.get() + 1;
        GLANCED.set(count % SHARED_READS);
        if count == SHARED_READS {
            self.shared_hits.fetch_add(u64::from(SHARED_READS), Ordering::Relaxed);
        }
    }

    /// A reader that changes nothing has to wait for a page on its way to a leaf.
    pub(crate) fn count_shared_miss(&self) {
        self.shared_misses.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts hits and misses of readers that change nothing.
    pub(crate) fn count_shared_reads(&mut self) {
        let found = std::mem::take(self.shared_hits.get_mut());
        let missed = std::mem::take(self.shared_misses.get_mut());
        self.references.found += found;
        self.hits += found;
        self.references.missed += missed;
        self.misses += missed;
    }

    /// A frame by its place.
    pub(crate) fn frame(&self, index: FrameIndex) -> &Frame {
        &self.frames[index.0 as usize]
    }

    /// Marks a frame as ahead of flash since `first`, unless it is so already.
    pub(crate) fn mark_ahead(&mut self, index: FrameIndex, first: Lsn) {
        self.frames[index.0 as usize].ahead.get_or_insert(Ahead { first });
        self.order(index.0).set_dirty(index.0, true);
    }

    /// Notes the version on flash that a frame is a copy of, if the version takes appends.
    pub(crate) fn set_version(&mut self, index: FrameIndex, info: &PageInfo) {
        let frame = &mut self.frames[index.0 as usize];
        let before = frame.size();
        frame.version = (info.appends < info.append_slots).then(|| Box::new(*info));
        self.bytes = self.bytes + frame.size() - before;
        self.bytes_peak = self.bytes_peak.max(self.bytes);
    }

    /// Whether some image ahead of flash holds changes of commits above `lsn`.
    pub(crate) fn is_beyond(&self, lsn: Lsn) -> bool {
        self.frames.iter().any(|frame| frame.ahead.is_some() && frame.lsn > lsn)
    }

    /// Flash has caught up with a frame.
    pub(crate) fn mark_clean(&mut self, index: FrameIndex) {
        self.frames[index.0 as usize].ahead = None;
        self.order(index.0).set_dirty(index.0, false);
    }

    /// Changes an image in place; the LSN that it is complete to rises only when `change` did
    /// something.
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
        let size = frame_size(image.capacity());
        if let Some(index) = self.index.get(&page).copied()
            && self.frames[index as usize].class == class
        {
            let frame = Frame::clean(page, lsn, image, class);
            let old = std::mem::replace(&mut self.frames[index as usize], frame);
            self.bytes = self.bytes + size - old.size();
            self.bytes_peak = self.bytes_peak.max(self.bytes);
            self.order(index).replace(index, page, size);
            return FrameIndex(index);
        }
        if !self.remove(page) {
            self.ghosts.came(page);
        }
        self.bytes += size;
        self.bytes_peak = self.bytes_peak.max(self.bytes);
        let frame = Frame::clean(page, lsn, image, class);
        let index = if let Some(index) = self.free.pop() {
            self.frames[index as usize] = frame;
            index
        } else {
            self.frames.push(frame);
            u32::try_from(self.frames.len() - 1).unwrap_or(u32::MAX)
        };
        self.index.insert(page, index);
        self.order(index).insert(index, page, size);
        FrameIndex(index)
    }

    /// Drops the frame of `page`, even one that is ahead of flash.
    pub(crate) fn remove(&mut self, page: LogicalPage) -> bool {
        let Some(index) = self.index.remove(&page) else { return false };
        self.order(index).remove(index);
        let frame = &mut self.frames[index as usize];
        self.bytes -= frame.size();
        (frame.image, frame.version) = (Vec::new(), None);
        self.free.push(index);
        true
    }

    /// An operation found the leaf's base or changes that it asked for.
    pub(crate) fn note_found(&mut self) {
        self.references.found += u64::from(!self.is_background);
    }

    /// An operation has to wait for a page on its way to a leaf.
    pub(crate) fn note_missed(&mut self) {
        self.count_shared_reads();
        self.references.missed += u64::from(!self.is_background);
    }

    /// Evicts clean frames until at most `bytes_max` remain or the next victim is ahead of flash,
    /// which is then returned for its owner to write (P2).
    pub(crate) fn shrink(&mut self, bytes_max: usize) -> Option<LogicalPage> {
        while self.bytes + self.slack > bytes_max {
            let urgency = if self.bytes > bytes_max { Urgency::Now } else { Urgency::Soon };
            let victim = self.victim(urgency)?;
            if std::mem::take(self.frames[victim as usize].is_used.get_mut()) {
                self.order(victim).touch(victim);
                continue;
            }
            let frame = &self.frames[victim as usize];
            if frame.ahead.is_some() {
                return Some(frame.page);
            }
            let (page, class) = (frame.page, frame.class);
            self.remove(page);
            self.ghosts.left(page, class, self.index.len());
            self.orders[0].evicted(self.costs.of_access());
        }
        None
    }

    /// The frame that leaves next (P3).
    fn victim(&mut self, urgency: Urgency) -> Option<u32> {
        let [leaves, inner] = &mut self.orders;
        let are_last_few = leaves.count() <= LEAVES_MIN + self.kept_leaves;
        match urgency {
            // Memory that stays free is worth no leaf that an operation is about to use.
            Urgency::Soon if are_last_few => None,
            Urgency::Soon => leaves.victim(urgency),
            Urgency::Now if are_last_few && inner.count() > 0 => inner.victim(urgency),
            Urgency::Now => leaves.victim(urgency).or_else(|| inner.victim(urgency)),
        }
    }

    /// Whether changes have to meet their pages before frames leave, if these may take `bytes_max`.
    pub(crate) fn is_dry(&self, bytes_max: usize) -> bool {
        self.bytes + self.slack > bytes_max && self.orders[0].is_dry()
    }

    /// The requests from now on are background work, or operations again.
    pub(crate) fn set_background(&mut self, is_background: bool) {
        self.is_background = is_background;
        self.orders[0].set_background(is_background);
    }

    /// Whether requests are background work now.
    pub(crate) fn is_background(&self) -> bool {
        self.is_background
    }

    /// Largest memory so far that the order of leaves takes beside frames.
    pub(crate) fn order_bytes_peak(&self) -> usize {
        self.orders[0].bytes_peak()
    }

    /// A page is read for the next job.
    pub(crate) fn hold(&mut self, page: LogicalPage) {
        if !self.is_held(page) {
            self.held.push(page);
        }
    }

    /// Whether a page was read for the next job.
    pub(crate) fn is_held(&self, page: LogicalPage) -> bool {
        self.held.contains(&page)
    }

    /// Pages that were read for the next job.
    pub(crate) fn held_count(&self) -> usize {
        self.held.len()
    }

    /// The next job does not need a page any more.
    pub(crate) fn let_go(&mut self, page: LogicalPage) {
        self.held.retain(|held| *held != page);
    }

    /// The next job has all that it needs, or does not need it any more.
    pub(crate) fn let_all_go(&mut self) {
        self.held.clear();
    }

    /// The frames of the pages held, in memory or about to come, stay until the next call: they count as
    /// used last, or are passed over where background work moves nothing.
    pub(crate) fn keep_held(&mut self) {
        let was_background = std::mem::replace(&mut self.is_background, true);
        let held = std::mem::take(&mut self.held);
        self.orders[0].set_background(true);
        self.orders[0].keep_only(&held);
        self.kept_leaves = 0;
        for page in &held {
            let kept = self.get(*page).map(|index| self.frame(index).class);
            self.kept_leaves += usize::from(kept == Some(Class::Leaf));
        }
        self.held = held;
        self.set_background(was_background);
    }

    /// Pages whose frames are ahead of flash since `lsn` or before, each with the first LSN that its
    /// page lacks, in no order.
    pub(crate) fn ahead_since(&self, lsn: Lsn) -> impl Iterator<Item = (Lsn, LogicalPage)> + '_ {
        self.index.values().filter_map(move |index| {
            let frame = &self.frames[*index as usize];
            let first = frame.ahead?.first;
            (first <= lsn).then_some((first, frame.page))
        })
    }

    fn order(&mut self, index: u32) -> &mut dyn Replacement {
        &mut *self.orders[self.frames[index as usize].class as usize]
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
        let mut pool = Pool::new(Box::<Lru>::default());
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
        let mut pool = Pool::new(Box::<Lru>::default());
        page_of(&mut pool, 7, Class::Leaf);
        let index = pool.peek(LogicalPage(7)).unwrap();
        pool.mark_ahead(index, Lsn(5));
        assert_eq!(pool.shrink(0), Some(LogicalPage(7)));
        assert_eq!(pool.ahead_since(Lsn(5)).count(), 1);
        assert_eq!(pool.ahead_since(Lsn(4)).count(), 0);
        pool.mark_clean(index);
        assert_eq!(pool.shrink(0), None);
    }

    /// Goal (rule D7): an operation that needs two leaves at a time finds both beside the leaves that
    /// are kept for a job. Method: as many frames as are planned for, inner nodes among them.
    #[test]
    fn kept_leaves_leave_room_for_those_of_a_reader() {
        let mut pool = Pool::new(Box::<Lru>::default());
        let kept = [1, 2, 3].map(LogicalPage);
        kept.iter().for_each(|page| page_of(&mut pool, page.0, Class::Leaf));
        (10..18).for_each(|number| page_of(&mut pool, number, Class::Inner));
        let bytes_max = pool.bytes();
        for number in [4, 5] {
            kept.iter().for_each(|page| pool.hold(*page));
            pool.keep_held();
            page_of(&mut pool, number, Class::Leaf);
            assert_eq!(pool.shrink(bytes_max), None);
        }
        let is_there = |number: &u32| pool.peek(LogicalPage(*number)).is_some();
        assert!([1, 2, 3, 4, 5].iter().all(is_there), "inner nodes make way");
    }

    /// An order of last use that wishes for free memory.
    #[derive(Debug)]
    struct Wishful {
        order: Lru,
        slack: usize,
    }

    impl Replacement for Wishful {
        fn count(&self) -> usize {
            self.order.count()
        }

        fn insert(&mut self, index: u32, page: LogicalPage, size: usize) {
            self.order.insert(index, page, size);
        }

        fn touch(&mut self, index: u32) {
            self.order.touch(index);
        }

        fn remove(&mut self, index: u32) {
            self.order.remove(index);
        }

        fn victim(&mut self, urgency: Urgency) -> Option<u32> {
            self.order.victim(urgency)
        }

        fn slack(&self) -> usize {
            self.slack
        }
    }

    /// Goal (rule D7): a leaf just read outlives the wish for free memory, however much memory is to be
    /// free beside the frames' limit, and where no inner node can go in its place. Method: frames for a
    /// path and a few leaves; trees of one leaf.
    #[test]
    fn a_page_just_read_outlives_the_wish_for_free_memory() {
        for slack in [64, 1 << 10, 16 << 10, 4 << 20] {
            let mut pool = Pool::new(Box::new(Wishful { order: Lru::default(), slack }));
            let bytes_max = 8 * (100 + FRAME_OVERHEAD);
            for number in 0..20 {
                page_of(&mut pool, number, Class::Leaf);
                assert_eq!(pool.shrink(bytes_max), None);
                let first = number.saturating_sub(LEAVES_MIN as u32 - 1);
                let is_there = |number| pool.peek(LogicalPage(number)).is_some();
                assert!((first..=number).all(is_there), "{slack} bytes");
                assert!(pool.bytes() <= bytes_max, "{slack} bytes");
            }
        }
    }

    /// Goal: two clients that read a page each in turns both come to use it, although all others are
    /// used again and again. Method: the page before the last one is still there when the last one has
    /// come.
    #[test]
    fn a_page_just_read_outlives_frames_that_are_used_again() {
        let mut pool = Pool::new(Box::<Lru>::default());
        (0..8).for_each(|number| page_of(&mut pool, number, Class::Leaf));
        let bytes_max = pool.bytes();
        (0..8).for_each(|number| assert!(pool.get(LogicalPage(number)).is_some()));
        for number in [8, 9] {
            page_of(&mut pool, number, Class::Leaf);
            assert_eq!(pool.shrink(bytes_max), None);
        }
        let is_there = |number| pool.peek(LogicalPage(number)).is_some();
        assert!(is_there(8) && is_there(9));
    }
}
