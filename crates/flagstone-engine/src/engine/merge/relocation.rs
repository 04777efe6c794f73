//! Deltas that meet an image without a page write of their own: in frames that are ahead of flash,
//! and in leaves that garbage collection moves anyway.

use flagstone_space::{LogicalPage, Lsn, NewerImage, PageInfo};

use crate::delta::{DeltaMap, Entry, KeyRange};
use crate::engine::merge::{Merges, UNDERFULL_PERCENT};
use crate::engine::step::Step;
use crate::engine::store::Store;
use crate::engine::store::catalog::Table;
use crate::engine::store::pool::FrameIndex;
use crate::engine::store::private_key::split_private_key;
use crate::node;
use crate::node::{NoOutline, NodeView};
use crate::options::MergeTo;

/// A leaf that is being moved with its deltas folded in.
#[derive(Debug)]
pub(crate) struct Folding {
    page: LogicalPage,
    table: Table,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
}

impl Merges {
    /// Folds the changes of a commit into the frames of their leaves, each leaf's all or none: an
    /// image that is complete to the commit must not lack a part of it.
    pub(crate) fn fold_commit(&mut self, writes: &DeltaMap, lsn: Lsn) {
        let mut entries = writes.range(KeyRange::ALL).peekable();
        while let Some(first) = entries.next() {
            let (table, key) = split_private_key(first.key());
            let Some((index, high)) = self.foldable_leaf(table, key) else {
                self.add_entry(&first, lsn);
                continue;
            };
            let mut group = vec![first];
            let is_inside = |entry: &Entry<'_>| {
                let (other, key) = split_private_key(entry.key());
                other == table && high.as_deref().is_none_or(|high| key < high)
            };
            while let Some(entry) = entries.next_if(is_inside) {
                group.push(entry);
            }
            let mut changes = DeltaMap::new();
            for entry in &group {
                for (_, op) in entry.versions() {
                    changes.insert(split_private_key(entry.key()).1, op, lsn, &[]);
                }
            }
            if self.fold_map(index, &changes, lsn) {
                self.pool.mark_ahead(index, lsn);
            } else {
                group.iter().for_each(|entry| self.add_entry(entry, lsn));
                self.want_merge(table, split_private_key(group[0].key()).1);
            }
        }
    }

    /// The frame of the leaf of `key`, with the leaf's upper fence, if changes may be folded in: it
    /// is in memory, not busy, and has no older deltas.
    fn foldable_leaf(&mut self, table: Table, key: &[u8]) -> Option<(FrameIndex, Option<Vec<u8>>)> {
        let index = self.leaf_at_hand(table, key)?;
        let frame = self.pool.frame(index);
        if self.groups.busy.contains(&frame.page) || self.has_deltas_for(table, &frame.image) {
            return None;
        }
        let high = NodeView::trusted(&frame.image).high().map(<[u8]>::to_vec);
        Some((index, high))
    }

    /// Folds the deltas that came while a frame was busy.
    pub(crate) fn absorb(&mut self, page: LogicalPage) {
        // Changes that restart has not put back yet must not count as contained (rule D2).
        let is_replaying =
            self.frontier.replaying.is_some() || self.frontier.replay_cutoff.is_some();
        if is_replaying || !self.folds_commits() || self.groups.busy.contains(&page) {
            return;
        }
        let Some(index) = self.pool.peek(page) else { return };
        let view = NodeView::trusted(&self.pool.frame(index).image);
        if !view.is_leaf() {
            return;
        }
        let table = Table::of(view.tree());
        let (low, high) = (view.low().to_vec(), view.high().map(<[u8]>::to_vec));
        let range = KeyRange { low: &low, high: high.as_deref() };
        let committed = self.frontier.committed;
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

    /// Whether merges may go to frames: snapshots read pages on flash, changes in runs come before
    /// others, and leaves that restart merges have to be written.
    pub(crate) fn merges_to_frames(&self) -> bool {
        self.options.techniques.merge_to == MergeTo::Frame
            && !self.holds_images_ahead()
            && self.snapshots.is_empty()
            && self.runs.is_empty()
            && self.frontier.replaying.is_none()
            && self.frontier.replay_cutoff.is_none()
    }

    /// Folds the deltas up to `upto` of the leaf in a frame into its image, which is ahead of flash
    /// from then on; false when that is not allowed now, or the leaf would not stay one page that is
    /// worth its place.
    pub(crate) fn merge_to_frame(&mut self, index: FrameIndex, upto: Lsn) -> Step<bool> {
        let frame = self.pool.frame(index);
        let (page, base_lsn, view) = (frame.page, frame.lsn, NodeView::trusted(&frame.image));
        if !self.merges_to_frames() || !view.is_leaf() || self.groups.busy.contains(&page) {
            return Ok(false);
        }
        let table = Table::of(view.tree());
        let (low, high) = (view.low().to_vec(), view.high().map(<[u8]>::to_vec));
        let range = KeyRange { low: &low, high: high.as_deref() };
        let count_before = view.count() as i64;
        self.drop_redundant(table, range, base_lsn);
        let is_root = self.root_of(table)? == page;
        let Store { trees, pool, payload_size, .. }: &mut Store = self;
        let Some(tree) = trees.get(table.id as usize) else { return Ok(false) };
        let deltas = &tree.deltas;
        let lsns = deltas.range(range).flat_map(|entry| entry.versions().map(|(lsn, _)| lsn));
        let Some(first) = lsns.filter(|lsn| *lsn <= upto).min() else { return Ok(false) };
        let count = deltas.range_totals(range, upto).count as u64;
        let used_min = *payload_size * UNDERFULL_PERCENT;
        let folded = pool.update(index, upto, |image| {
            let mut new = image.clone();
            let fold = node::fold_in_place(&mut new, deltas, upto, &mut NoOutline).ok()??;
            let is_small = NodeView::trusted(&new).used_bytes() * 100 < used_min;
            if !fold.dropped_refs.is_empty() || is_small && !is_root {
                return None;
            }
            *image = new;
            Some(fold.entry_count as i64 - count_before)
        });
        let Some(grown) = folded else { return Ok(false) };
        self.pool.mark_ahead(index, first);
        self.counts.merges += 1;
        self.counts.merged_deltas += count;
        self.remove_deltas(table, range, upto);
        self.count_entries(table, grown);
        Ok(true)
    }

    fn fold_map(&mut self, index: FrameIndex, changes: &DeltaMap, lsn: Lsn) -> bool {
        let folded = self.pool.update(index, lsn, |image| {
            node::fold_in_place(image, changes, Lsn(u64::MAX), &mut NoOutline).ok().flatten()
        });
        let Some(fold) = folded else { return false };
        self.drop_refs(fold.dropped_refs, lsn);
        true
    }

    fn has_deltas_for(&self, table: Table, image: &[u8]) -> bool {
        let view = NodeView::trusted(image);
        let range = KeyRange { low: view.low(), high: view.high() };
        let tree = self.trees.get(table.id as usize);
        tree.is_none_or(|tree| tree.deltas.range(range).next().is_some())
    }

    /// The image with which collection should move a live page.
    ///
    /// Returns the LSN and the append slots of the folded image, which is then in `image`; none where
    /// there is nothing to fold.
    pub fn newer_image(
        &mut self,
        page: LogicalPage,
        info: &PageInfo,
        image: &mut Vec<u8>,
    ) -> Option<NewerImage> {
        let upto = self.merge_lsn();
        if !self.folds_on_relocation()
            || self.groups.busy.contains(&page)
            || self.hides_from_snapshot(upto)
        {
            return None;
        }
        let view = NodeView::parse(image).ok()?;
        if !view.is_leaf() || !self.runs.is_empty() || info.lsn > upto {
            return None;
        }
        self.meet_base(page, info.lsn, image);
        let tree = self.trees.get(view.tree() as usize)?;
        let range = KeyRange { low: view.low(), high: view.high() };
        let pending = tree.deltas.range_totals(range, upto);
        if pending.count == 0 || self.is_ahead(page) {
            return None;
        }
        let mut folded = image.clone();
        self.widen(&mut folded);
        let fold = node::fold_in_place(&mut folded, &tree.deltas, upto, &mut NoOutline).ok()??;
        if !fold.dropped_refs.is_empty() {
            return None;
        }
        let (low, high) = (view.low().to_vec(), view.high().map(<[u8]>::to_vec));
        self.folding = Some(Folding { page, table: Table::of(view.tree()), low, high });
        let append_slots = self.slots_behind(&folded);
        folded.truncate(self.payload_size - self.append_room.size_of(append_slots));
        *image = folded;
        self.counts.folds += 1;
        self.counts.folded_deltas += pending.count as u64;
        Some(NewerImage { lsn: upto, append_slots })
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
        // Changes that restart put back may stand in a log page that is not safe yet (rule D11).
        !self.is_poisoned()
            && self.frontier.replay_cutoff.is_none()
            && self.options.techniques.relocation == crate::options::RelocationFolding::Fold
            && !self.holds_images_ahead()
    }

    fn is_ahead(&self, page: LogicalPage) -> bool {
        let frame = self.pool.peek(page).map(|index| self.pool.frame(index));
        frame.is_some_and(|frame| frame.ahead.is_some())
    }
}
