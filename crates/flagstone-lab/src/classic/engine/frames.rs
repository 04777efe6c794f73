//! The engine's side of the buffer pool: images, room in memory, unused page numbers.
//!
//! Owns the choice of the page to write next. Never reads or writes a device.

use std::collections::BTreeMap;

use flagstone_engine::Xid;
use flagstone_engine::node::{self as node_format, NodeView};
use flagstone_engine::{EngineError, Fetch, Fetched, Step, Stop, Wait};
use flagstone_space::{LogicalPage, Lsn};

use super::super::Mistake;
use super::super::page;
use super::super::pool::Frame;
use super::super::record::Edit;
use super::{CATALOG, CHUNKS, Engine};

/// Frames that stay however much memory other things take.
const FRAMES_MIN: usize = 12;

/// Pages at the end of the pool's order that are written ahead of need, so that a read seldom waits:
/// a share of the pool, within bounds.
const CLEAN_SHARE: usize = 8;

const CLEAN_MIN: usize = 4;

const CLEAN_MAX: usize = 32;

/// Pages.
impl Engine {
    /// The image of a page, or a miss that is noted as under way.
    pub(in crate::classic) fn image(&mut self, page: LogicalPage) -> Step<&[u8]> {
        if self.pool.peek(page).is_none() {
            return Err(self.miss(page));
        }
        let frame = self.pool.get(page);
        frame.map(|frame| frame.image.as_slice()).ok_or(Stop::Wait(Wait::Memory))
    }

    fn miss(&mut self, page: LogicalPage) -> Stop {
        if !self.reads.contains(page) {
            if let Err(stop) = self.make_room(1) {
                return stop;
            }
            self.pool.misses += 1;
        }
        Stop::Miss(Fetch::Page(page, self.reads.begin(page)))
    }

    /// Makes room for `count` frames beside the frames being read.
    pub(in crate::classic) fn make_room(&mut self, count: usize) -> Step<()> {
        let wanted = (self.reads.page_count() + count) * self.pool.frame_size();
        if self.pool.shrink(self.frames_limit().saturating_sub(wanted)) {
            self.is_crowded = false;
            return Ok(());
        }
        self.is_crowded = true;
        Err(Stop::Wait(Wait::Memory))
    }

    /// Memory that frames may take: the budget less undo information and the log's tail.
    fn frames_limit(&self) -> usize {
        let others = self.debts.memory + self.log.pending_bytes();
        let rest = self.config.options.memory.saturating_sub(others);
        rest.max(FRAMES_MIN * self.pool.frame_size())
    }

    /// Takes a page that was read for a miss.
    ///
    /// # Errors
    ///
    /// `Corrupt` when the page does not match its address.
    pub fn fill(&mut self, fetched: Fetched) -> Result<(), EngineError> {
        let Fetch::Page(page, number) = fetched.fetch else { return Ok(()) };
        if self.reads.end(page, number) {
            return Ok(());
        }
        let Some((info, image)) = fetched.found else {
            self.pool.fill(page, Lsn::ZERO, self.absent(page)?);
            return Ok(());
        };
        let check = "node does not parse";
        NodeView::parse(&image).map_err(|_| EngineError::Corrupt { page, check })?;
        if self.pool.peek(page).is_none() {
            self.pool.fill(page, info.lsn, self.fitted(image));
            self.track(page, info);
        }
        Ok(())
    }

    /// A page that was never written: only the two first roots may be.
    pub(in crate::classic) fn absent(&self, page: LogicalPage) -> Result<Vec<u8>, EngineError> {
        let roots = [CATALOG, CHUNKS];
        let tree = roots.into_iter().find(|tree| self.trees.get(tree) == Some(&page));
        let check = "page is referred to but was never written";
        let tree = tree.ok_or(EngineError::Corrupt { page, check })?;
        Ok(node_format::empty_leaf(tree, self.page_size))
    }

    /// A read that was asked for failed: nothing will come.
    pub(in crate::classic) fn fetch_failed(&mut self, fetch: Fetch) {
        if let Fetch::Page(page, number) = fetch {
            self.reads.end(page, number);
        }
    }

    /// Reads of the page that are under way bring an old version.
    pub(in crate::classic) fn mark_stale(&mut self, page: LogicalPage) {
        self.reads.mark_stale(page);
    }

    /// The page that should be written now: one of the pool's oldest, when the pool is nearly full.
    /// The oldest pages are left until half of them are dirty, unless an operation waits: written
    /// together, they use every die. A page whose log is not durable yet comes after the others
    /// (A1).
    pub(in crate::classic) fn crowding_page(&self) -> Option<LogicalPage> {
        let (limit, size) = (self.frames_limit(), self.pool.frame_size());
        let ahead = (limit / size / CLEAN_SHARE).clamp(CLEAN_MIN, CLEAN_MAX);
        if !self.is_crowded && self.pool.bytes() + ahead * size < limit {
            return None;
        }
        let (mut dirty_count, mut due, mut early) = (0, None, None);
        for (page, frame) in self.pool.old_dirty(ahead) {
            dirty_count += 1;
            match frame.is_writing() {
                true => {}
                false if self.may_write(frame) => due = due.or(Some(page)),
                false => early = early.or(Some(page)),
            }
        }
        let is_time = self.is_crowded || dirty_count * 2 >= ahead;
        due.or(early).filter(|_| is_time)
    }

    /// Whether the frame may be written now (A1).
    pub(in crate::classic) fn may_write(&self, frame: &Frame) -> bool {
        frame.lsn <= self.durable() || self.config.makes(Mistake::WriteBeforeLog)
    }

    /// Takes page numbers that the space floor reserved.
    pub(in crate::classic) fn supply_pages(&mut self, pages: Vec<LogicalPage>) {
        self.unused.extend(pages);
    }

    /// Page numbers at hand.
    pub(in crate::classic) fn unused_pages(&self) -> &[LogicalPage] {
        &self.unused
    }

    /// Gives back the page numbers that a failed change of shape took.
    pub(in crate::classic) fn restore_unused(&mut self, pages: Vec<LogicalPage>) {
        self.unused = pages;
    }

    /// Whether `count` page numbers are at hand, beside the numbers that undoing may need (A7).
    pub(in crate::classic) fn admit_pages(&self, count: usize) -> Step<()> {
        const RESERVE: usize = 4;
        let growth = 2 * self.debts.growth.div_ceil(self.page_size.max(1));
        let reserve = RESERVE + growth + self.debts.pages;
        match self.unused.len() >= count + reserve {
            true => Ok(()),
            false => Err(Stop::Wait(Wait::Pages(count + reserve))),
        }
    }

    /// Whether undoing all running transactions, and a change undone by `newest`, finds room in the
    /// leaf `image` (A7).
    pub(in crate::classic) fn leaves_owed_room(
        &self,
        xid: Xid,
        image: &[u8],
        key: &[u8],
        newest: &Edit,
    ) -> bool {
        /// Bytes by which a leaf grows for each entry when its sizes become different.
        const SLOT_SIZE_MAX: usize = 8;
        let node = NodeView::trusted(image);
        let owed = self.debts.growth + newest.growth(key) + SLOT_SIZE_MAX * node.count();
        if node.used_bytes() + owed <= image.len() {
            return true;
        }
        let mut sizes = BTreeMap::new();
        for (id, transaction) in &self.transactions {
            let newest = (*id == xid).then_some((key, newest));
            let older = transaction.undo.iter().rev();
            let older = older.filter(|undo| undo.tree == node.tree());
            let edits =
                newest.into_iter().chain(older.map(|undo| (undo.key.as_slice(), &undo.edit)));
            add_largest(&node, edits, &mut sizes);
        }
        // An upper bound first: it spares building most leaves anew.
        let grows = |(key, size): (&Vec<u8>, &usize)| match node.search(key) {
            Ok(at) => size.saturating_sub(node.value(at).map_or(0, |cell| cell.bytes().len())),
            Err(_) => key.len() + size,
        };
        let slots = SLOT_SIZE_MAX * (node.count() + sizes.len());
        if node.used_bytes() + sizes.iter().map(grows).sum::<usize>() + slots <= image.len() {
            debug_assert!(page::fits_with(image, &sizes), "an upper bound");
            return true;
        }
        page::fits_with(image, &sizes)
    }

    /// The page number that is taken next.
    pub(in crate::classic) fn peek_page(&self) -> Step<LogicalPage> {
        self.unused.first().copied().ok_or(Stop::Wait(Wait::Pages(1)))
    }

    /// Takes a page number that was looked at before.
    pub(in crate::classic) fn take_this(&mut self, page: LogicalPage) -> Step<LogicalPage> {
        let place = self.unused.iter().position(|unused| *unused == page);
        let place = place.ok_or(Stop::Wait(Wait::Pages(1)))?;
        Ok(self.unused.remove(place))
    }

    pub(in crate::classic) fn take_page(&mut self) -> Step<LogicalPage> {
        self.unused.pop().ok_or(Stop::Wait(Wait::Pages(1)))
    }
}

/// Adds the largest size that each value of the leaf has while `edits` are made, in this order.
fn add_largest<'a>(
    node: &NodeView<'_>,
    edits: impl Iterator<Item = (&'a [u8], &'a Edit)>,
    sizes: &mut BTreeMap<Vec<u8>, usize>,
) {
    let mut now: BTreeMap<&[u8], Option<usize>> = BTreeMap::new();
    for (key, edit) in edits {
        if key < node.low() || node.high().is_some_and(|high| key >= high) {
            continue;
        }
        let found = || node.search(key).ok().and_then(|index| node.value(index));
        let size = now.entry(key).or_insert_with(|| found().map(|cell| cell.bytes().len()));
        *size = edit.size_after(*size);
        if let Some(size) = *size {
            let largest = sizes.entry(key.to_vec()).or_default();
            *largest = size.max(*largest);
        }
    }
}
