//! The buffer pool: images of whole pages, least recently used out first.
//!
//! Owns the frames, their order, the reason why a frame is dirty, and its changes that flash lacks.
//! Never does I/O.
//!
//! - **P1** A dirty frame is never dropped for room: it is written first (steal).
//! - **P2** `rec_lsn` is the first record whose effect flash lacks; a frame that changes while it
//!   is being written stays dirty, from that change on.
//! - **P3** The tracked changes of a frame lead from the version on flash that it names to its image,
//!   or they are too many for appends and the page is written as a whole.

use flagstone_engine::node::NodeView;
use flagstone_space::{LogicalPage, Lsn, PageInfo};
use std::collections::HashMap;

use super::appends::Changes;

/// One page in memory.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) image: Vec<u8>,
    /// Last record applied.
    pub(crate) lsn: Lsn,
    /// First record that flash lacks; none for a clean frame.
    pub(crate) rec_lsn: Option<Lsn>,
    /// The version on flash, and the differences from it.
    pub(crate) changes: Changes,
    write: Write,
    page: LogicalPage,
    previous: u32,
    next: u32,
}

/// Whether an image of a frame is on its way to flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    None,
    /// Nothing has changed since it was issued.
    Current,
    /// Changed since, first by this record.
    Overtaken(Lsn),
}

const NONE: u32 = u32::MAX;

/// Memory of a frame beside its image: the frame and its place in the index.
const FRAME_OVERHEAD: usize = size_of::<Frame>() + 2 * size_of::<(LogicalPage, u32)>();

/// The frames of an engine.
#[derive(Debug)]
pub(crate) struct Pool {
    index: HashMap<LogicalPage, u32>,
    frames: Vec<Frame>,
    free: Vec<u32>,
    head: u32,
    tail: u32,
    frame_size: usize,
    dirty_count: usize,
    bytes_peak: usize,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

impl Frame {
    /// Whether an image of the frame is on its way to flash.
    pub(crate) fn is_writing(&self) -> bool {
        self.write != Write::None
    }
}

impl Pool {
    /// A pool of frames for pages of `page_size` bytes.
    pub(crate) fn new(page_size: usize) -> Self {
        Self {
            index: HashMap::new(),
            frames: Vec::new(),
            free: Vec::new(),
            head: NONE,
            tail: NONE,
            frame_size: page_size + FRAME_OVERHEAD,
            dirty_count: 0,
            bytes_peak: 0,
            hits: 0,
            misses: 0,
        }
    }

    /// Memory of one frame.
    pub(crate) fn frame_size(&self) -> usize {
        self.frame_size
    }

    /// Memory of all frames.
    pub(crate) fn bytes(&self) -> usize {
        self.index.len() * self.frame_size
    }

    /// Largest memory of all frames so far.
    pub(crate) fn bytes_peak(&self) -> usize {
        self.bytes_peak
    }

    /// Frames with changes that flash lacks.
    pub(crate) fn dirty_count(&self) -> usize {
        self.dirty_count
    }

    /// The frame of a page, which becomes the most recently used.
    pub(crate) fn get(&mut self, page: LogicalPage) -> Option<&Frame> {
        let index = *self.index.get(&page)?;
        if self.head != index {
            self.unlink(index);
            self.link(index);
        }
        Some(&self.frames[index as usize])
    }

    /// The frame of a page, its place in the order unchanged.
    pub(crate) fn peek(&self, page: LogicalPage) -> Option<&Frame> {
        self.index.get(&page).map(|index| &self.frames[*index as usize])
    }

    /// Puts a page that was read in memory, unless it is there.
    pub(crate) fn fill(&mut self, page: LogicalPage, lsn: Lsn, image: Vec<u8>) {
        if !self.index.contains_key(&page) {
            self.add(page, lsn, image);
        }
    }

    /// The image of a page is the version `info` on flash, which takes `bytes_max` changed bytes more.
    pub(crate) fn track(&mut self, page: LogicalPage, info: PageInfo, bytes_max: usize) {
        if let Some(index) = self.index.get(&page) {
            let frame = &mut self.frames[*index as usize];
            let used = NodeView::trusted(&frame.image).used_bytes();
            frame.changes = Changes::since(info, used, bytes_max);
        }
    }

    /// Replaces the image of a page, or makes the page: the record `lsn` did it.
    pub(crate) fn change(&mut self, page: LogicalPage, lsn: Lsn, image: Vec<u8>) {
        match self.index.get(&page).copied() {
            Some(index) => {
                let frame = &mut self.frames[index as usize];
                frame.changes.replace(&frame.image, &image);
                frame.image = image;
            }
            None => self.add(page, lsn, image),
        }
        self.touch(page, lsn);
    }

    /// Changes bytes of an image in place: the record `lsn` did it.
    pub(crate) fn patch(&mut self, page: LogicalPage, lsn: Lsn, offset: usize, bytes: &[u8]) {
        if let Some(index) = self.index.get(&page) {
            let frame = &mut self.frames[*index as usize];
            if let Some(target) = frame.image.get_mut(offset..offset + bytes.len()) {
                frame.changes.patch(offset, target, bytes);
                target.copy_from_slice(bytes);
            }
        }
        self.touch(page, lsn);
    }

    fn touch(&mut self, page: LogicalPage, lsn: Lsn) {
        let Some(index) = self.index.get(&page) else { return };
        let frame = &mut self.frames[*index as usize];
        debug_assert!(frame.lsn <= lsn, "records are applied in order");
        frame.lsn = lsn;
        if frame.rec_lsn.is_none() {
            frame.rec_lsn = Some(lsn);
            self.dirty_count += 1;
        }
        if frame.write == Write::Current {
            frame.write = Write::Overtaken(lsn);
        }
    }

    /// The image goes to flash: later changes are told apart from the changes in it (P2).
    pub(crate) fn write_begun(&mut self, page: LogicalPage) {
        self.set_write(page, Write::Current);
    }

    /// The image is on flash.
    pub(crate) fn write_ended(&mut self, page: LogicalPage) {
        let before = self.set_write(page, Write::None);
        let Some(index) = self.index.get(&page) else { return };
        let frame = &mut self.frames[*index as usize];
        match before {
            Write::None => {}
            Write::Overtaken(lsn) => frame.rec_lsn = Some(lsn),
            Write::Current => {
                self.dirty_count -= usize::from(frame.rec_lsn.is_some());
                frame.rec_lsn = None;
            }
        }
    }

    /// Sets the state of the frame's write; gives the state before.
    fn set_write(&mut self, page: LogicalPage, write: Write) -> Write {
        let Some(index) = self.index.get(&page) else { return Write::None };
        std::mem::replace(&mut self.frames[*index as usize].write, write)
    }

    /// Drops a frame, dirty or not.
    pub(crate) fn remove(&mut self, page: LogicalPage) {
        let Some(index) = self.index.remove(&page) else { return };
        self.unlink(index);
        let frame = &mut self.frames[index as usize];
        self.dirty_count -= usize::from(frame.rec_lsn.take().is_some());
        frame.image = Vec::new();
        frame.changes = Changes::default();
        self.free.push(index);
    }

    /// Drops clean frames, least recently used first, until at most `bytes_max` remain; whether it
    /// got there. A dirty frame at the end of the order stops it (P1).
    pub(crate) fn shrink(&mut self, bytes_max: usize) -> bool {
        while self.bytes() > bytes_max {
            let Some(frame) = self.frames.get(self.tail as usize) else { return false };
            if frame.rec_lsn.is_some() {
                return false;
            }
            self.remove(frame.page);
        }
        true
    }

    /// Dirty frames among the `depth` least recently used, with their pages.
    pub(crate) fn old_dirty(
        &self,
        depth: usize,
    ) -> impl Iterator<Item = (LogicalPage, &Frame)> + '_ {
        let mut index = self.tail;
        let order = std::iter::from_fn(move || {
            let frame = self.frames.get(index as usize)?;
            index = frame.previous;
            Some(frame)
        });
        order.take(depth).filter(|frame| frame.rec_lsn.is_some()).map(|frame| (frame.page, frame))
    }

    /// Dirty pages with the first record that flash lacks of each.
    pub(crate) fn dirty(&self) -> impl Iterator<Item = (LogicalPage, Lsn)> + '_ {
        // In the order of the frames, which is the same in every run.
        self.frames.iter().filter_map(|frame| frame.rec_lsn.map(|lsn| (frame.page, lsn)))
    }

    /// Whether an image of the page is on its way to flash.
    pub(crate) fn is_writing(&self, page: LogicalPage) -> bool {
        self.peek(page).is_some_and(Frame::is_writing)
    }

    fn add(&mut self, page: LogicalPage, lsn: Lsn, image: Vec<u8>) {
        let (write, rec_lsn) = (Write::None, None);
        let changes = Changes::default();
        let frame = Frame { image, lsn, rec_lsn, changes, write, page, previous: NONE, next: NONE };
        let index = match self.free.pop() {
            Some(index) => {
                self.frames[index as usize] = frame;
                index
            }
            None => {
                self.frames.push(frame);
                u32::try_from(self.frames.len() - 1).unwrap_or(NONE)
            }
        };
        self.index.insert(page, index);
        self.link(index);
        self.bytes_peak = self.bytes_peak.max(self.bytes());
    }

    fn unlink(&mut self, index: u32) {
        let (previous, next) = {
            let frame = &self.frames[index as usize];
            (frame.previous, frame.next)
        };
        match previous {
            NONE => self.head = next,
            _ => self.frames[previous as usize].next = next,
        }
        match next {
            NONE => self.tail = previous,
            _ => self.frames[next as usize].previous = previous,
        }
    }

    fn link(&mut self, index: u32) {
        let head = self.head;
        self.frames[index as usize].previous = NONE;
        self.frames[index as usize].next = head;
        match head {
            NONE => self.tail = index,
            _ => self.frames[head as usize].previous = index,
        }
        self.head = index;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool_of(count: u32) -> Pool {
        let mut pool = Pool::new(100);
        (1..=count).for_each(|page| pool.fill(LogicalPage(page), Lsn(0), vec![0; 100]));
        pool
    }

    #[test]
    fn the_least_recently_used_clean_frame_goes_first() {
        let mut pool = pool_of(3);
        pool.get(LogicalPage(1));
        assert!(pool.shrink(2 * pool.frame_size()));
        assert!(pool.peek(LogicalPage(2)).is_none());
        assert!(pool.peek(LogicalPage(1)).is_some());
    }

    #[test]
    fn a_dirty_frame_stops_the_shrinking_until_it_is_written() {
        let mut pool = pool_of(2);
        pool.patch(LogicalPage(1), Lsn(5), 0, &[1]);
        assert!(!pool.shrink(pool.frame_size()));
        assert_eq!(pool.old_dirty(1).map(|(page, _)| page).collect::<Vec<_>>(), [LogicalPage(1)]);
        pool.write_begun(LogicalPage(1));
        pool.write_ended(LogicalPage(1));
        assert!(pool.shrink(pool.frame_size()));
        assert!(pool.peek(LogicalPage(1)).is_none());
    }

    #[test]
    fn a_change_during_a_write_keeps_the_frame_dirty_from_that_change_on() {
        let mut pool = pool_of(1);
        pool.patch(LogicalPage(1), Lsn(5), 0, &[1]);
        pool.write_begun(LogicalPage(1));
        pool.patch(LogicalPage(1), Lsn(7), 0, &[2]);
        pool.write_ended(LogicalPage(1));
        assert_eq!(pool.dirty().collect::<Vec<_>>(), [(LogicalPage(1), Lsn(7))]);
    }
}
