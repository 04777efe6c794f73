//! Deltas that meet an image without a page write of their own: in frames that are ahead of flash,
//! and in leaves that garbage collection moves anyway.

use flagstone_space::{LogicalPage, Lsn, PageInfo};

use super::{Engine, Table};
use crate::delta::{DeltaMap, KeyRange, Op};
use crate::node::{self, NoOutline, NodeView};

/// A leaf that is being moved with its deltas folded in.
#[derive(Debug)]
pub(crate) struct Folding {
    page: LogicalPage,
    table: Table,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
}

impl Engine {
    /// Folds one committed change into the frame of its leaf.
    ///
    /// False when it has to be a delta: frames are clean copies here, the leaf is not in memory,
    /// is busy, has older deltas, or does not have the room.
    pub(crate) fn fold_into_frame(
        &mut self,
        table: Table,
        key: &[u8],
        op: Op<'_>,
        lsn: Lsn,
    ) -> bool {
        if !self.holds_images_ahead() || !self.snapshots.is_empty() {
            return false;
        }
        let Some(index) = self.leaf_at_hand(table, key) else { return false };
        let frame = self.pool.frame(index);
        if self.busy.contains(&frame.page) || self.has_deltas_for(table, &frame.image) {
            return false;
        }
        let mut change = DeltaMap::new();
        change.insert(key, op, lsn, &[]);
        if self.fold_map(index, &change, lsn) {
            self.pool.mark_ahead(index, lsn);
            return true;
        }
        self.want_merge(table, key);
        false
    }

    /// Folds the deltas that came while a frame was busy.
    pub(crate) fn absorb(&mut self, page: LogicalPage) {
        if !self.holds_images_ahead() || !self.snapshots.is_empty() || self.busy.contains(&page) {
            return;
        }
        let Some(index) = self.pool.peek(page) else { return };
        let view = NodeView::trusted(&self.pool.frame(index).image);
        if !view.is_leaf() {
            return;
        }
        let table = Table { id: view.tree() };
        let (low, high) = (view.low().to_vec(), view.high().map(<[u8]>::to_vec));
        let range = KeyRange { low: &low, high: high.as_deref() };
        let committed = self.committed;
        let Some(tree) = self.trees.get(table.id as usize) else { return };
        let changes = tree.deltas.copy_range(range, committed);
        let Some(first) = changes.lsn_min() else { return };
        if self.fold_map(index, &changes, committed) {
            self.pool.mark_ahead(index, first);
            self.remove_deltas(table, range, committed);
        } else {
            self.want_merge(table, &low);
        }
    }

    fn fold_map(&mut self, index: super::pool::FrameIndex, changes: &DeltaMap, lsn: Lsn) -> bool {
        let folded = self.pool.update(index, lsn, |image| {
            node::fold_in_place(image, changes, Lsn(u64::MAX), &mut NoOutline)
        });
        match folded {
            Ok(Some(fold)) => {
                self.drop_refs(fold.dropped_refs, lsn);
                true
            }
            Ok(None) | Err(_) => false,
        }
    }

    fn has_deltas_for(&self, table: Table, image: &[u8]) -> bool {
        let view = NodeView::trusted(image);
        let range = KeyRange { low: view.low(), high: view.high() };
        let tree = self.trees.get(table.id as usize);
        tree.is_none_or(|tree| tree.deltas.range(range).next().is_some())
    }

    /// A live page is about to be moved: the image that it should be moved as.
    ///
    /// Returns the LSN to which `image` is complete when durable deltas were folded in.
    pub fn newer_image(
        &mut self,
        page: LogicalPage,
        info: &PageInfo,
        image: &mut Vec<u8>,
    ) -> Option<Lsn> {
        let upto = self.merge_lsn();
        if !self.folds_on_relocation() || self.busy.contains(&page) || self.buries(upto) {
            return None;
        }
        let view = NodeView::parse(image).ok()?;
        if !view.is_leaf() || !self.runs.is_empty() || info.lsn > upto {
            return None;
        }
        let tree = self.trees.get(view.tree() as usize)?;
        let range = KeyRange { low: view.low(), high: view.high() };
        let pending = tree.deltas.range_totals(range, upto);
        if pending.count == 0 || self.is_ahead(page) {
            return None;
        }
        let mut folded = image.clone();
        let fold = node::fold_in_place(&mut folded, &tree.deltas, upto, &mut NoOutline).ok()??;
        if !fold.dropped_refs.is_empty() {
            return None;
        }
        let (low, high) = (view.low().to_vec(), view.high().map(<[u8]>::to_vec));
        self.folding = Some(Folding { page, table: Table { id: view.tree() }, low, high });
        *image = folded;
        self.counts.folds += 1;
        self.counts.folded_deltas += pending.count as u64;
        Some(upto)
    }

    /// The folded image of `page`, complete to `lsn`, is current: its deltas go.
    pub fn moved(&mut self, page: LogicalPage, lsn: Lsn) {
        self.forget_page(page);
        if let Some(folding) = self.folding.take_if(|folding| folding.page == page) {
            let range = KeyRange { low: &folding.low, high: folding.high.as_deref() };
            self.remove_deltas(folding.table, range, lsn);
        }
    }

    fn folds_on_relocation(&self) -> bool {
        !self.is_poisoned
            && self.options.relocation == crate::options::RelocationFolding::Fold
            && !self.holds_images_ahead()
    }

    fn is_ahead(&self, page: LogicalPage) -> bool {
        let frame = self.pool.peek(page).map(|index| self.pool.frame(index));
        frame.is_some_and(|frame| frame.ahead.is_some())
    }
}
