//! The seam to a guest that chooses leaves: notifications to it, questions from it.
//!
//! Owns the questions that a [`VictimPolicy`] may ask. A view answers from memory alone; a search may
//! stop for a page, as any operation does. Never decides anything: the answer of a guest is a hint
//! (G1).

use flagstone_space::{LogicalPage, Lsn};

use crate::delta::{DeltaMap, KeyRange, Op};
use crate::engine::step::Step;
use crate::engine::store::Store;
use crate::engine::store::catalog::Table;
use crate::engine::store::descent::Seek;
use crate::engine::store::pool::FrameIndex;
use crate::engine::store::room::grown_by;
use crate::node::{NodeView, ValueRef};
use crate::policy::VictimPolicy;

/// A committed change of one key.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    table: Table,
    key: &'a [u8],
    op: Op<'a>,
}

impl<'a> Change<'a> {
    /// Table of the key.
    #[must_use]
    pub fn table(&self) -> Table {
        self.table
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// Bytes of key and operation.
    #[must_use]
    pub fn size(&self) -> usize {
        size_of_change(self.key, self.op)
    }

    /// Bytes by which the leaf grows, if it does not hold the key yet.
    #[must_use]
    pub fn growth_max(&self) -> i64 {
        growth_by(self.key, self.op)
    }
}

/// A leaf, as its inner node names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafPlace {
    /// First key of the leaf.
    pub low: Vec<u8>,
    /// First key behind the leaf; none at the end of the tree.
    pub high: Option<Vec<u8>>,
    /// Page of the leaf.
    pub page: LogicalPage,
    /// The inner node above the leaf; the leaf itself where it is the root.
    pub parent: LogicalPage,
    /// Number of the leaf below that node: a hint, since splits move numbers.
    pub child: usize,
}

impl LeafPlace {
    /// Keys of the leaf.
    #[must_use]
    pub fn range(&self) -> KeyRange<'_> {
        KeyRange { low: &self.low, high: self.high.as_deref() }
    }
}

/// Answers of the engine from memory alone.
#[derive(Clone, Copy, Debug)]
pub struct MergeView<'a> {
    pub(in crate::engine) store: &'a Store,
}

impl<'a> MergeView<'a> {
    fn deltas(&self, table: Table) -> Option<&'a DeltaMap> {
        self.store.trees.get(table.id as usize).map(|tree| &tree.deltas)
    }

    /// Memory of the deltas in a range, in bytes; 0 when there is none.
    #[must_use]
    pub fn deltas_size(&self, table: Table, range: KeyRange<'_>) -> usize {
        self.deltas(table).map_or(0, |deltas| deltas.range_bytes(range))
    }

    /// Bytes by which the leaf of a range may grow for its deltas.
    #[must_use]
    pub fn growth(&self, table: Table, range: KeyRange<'_>) -> i64 {
        let entries = self.deltas(table).into_iter().flat_map(|deltas| deltas.range(range));
        entries.map(|entry| grown_by(&entry, Lsn(u64::MAX))).sum()
    }

    /// Bytes of all changes in a range, as a leaf would hold them.
    #[must_use]
    pub fn gross(&self, table: Table, range: KeyRange<'_>) -> usize {
        let entries = self.deltas(table).into_iter().flat_map(|deltas| deltas.range(range));
        let sizes = entries.map(|entry| {
            let versions = entry.versions();
            versions.map(|(_, op)| size_of_change(entry.key(), op)).sum::<usize>()
        });
        sizes.sum()
    }

    /// Keys with deltas in a range, in order.
    pub fn keys(&self, table: Table, range: KeyRange<'_>) -> impl Iterator<Item = &'a [u8]> {
        let entries = self.deltas(table).into_iter().flat_map(move |deltas| deltas.range(range));
        entries.map(|entry| entry.key())
    }

    /// The first key with deltas in a range.
    #[must_use]
    pub fn first_key(&self, table: Table, range: KeyRange<'_>) -> Option<&'a [u8]> {
        self.keys(table, range).next()
    }

    /// The leaf of a key, if every inner node on the way is in memory.
    #[must_use]
    pub fn leaf_at_hand(&self, table: Table, key: &[u8]) -> Option<LeafPlace> {
        let pool = &self.store.pool;
        let page = self.store.trees.get(table.id as usize)?.root?;
        let mut place = LeafPlace { low: Vec::new(), high: None, page, parent: page, child: 0 };
        loop {
            let view = NodeView::trusted(&pool.frame(pool.peek(place.page)?).image);
            if view.is_leaf() {
                return Some(place);
            }
            let (child, page) = view.child_for(key)?;
            if child > 0 {
                place.low = view.separator(child);
            }
            if child + 1 < view.count() {
                place.high = Some(view.separator(child + 1));
            }
            place = LeafPlace { page, parent: place.page, child, ..place };
            if view.level() == 1 {
                return Some(place);
            }
        }
    }

    /// Used bytes of a leaf's base, if it is in memory.
    #[must_use]
    pub fn used_at_hand(&self, page: LogicalPage) -> Option<usize> {
        let index = self.store.pool.peek(page)?;
        Some(NodeView::trusted(&self.store.pool.frame(index).image).used_bytes())
    }

    /// Bytes by which a leaf grows for a change that has not joined its tree, as far as memory
    /// tells.
    #[must_use]
    pub fn growth_of(&self, change: &Change<'_>) -> Option<i64> {
        let Change { table, key, op } = *change;
        let size_after = |op: Op<'_>| match op {
            Op::Put(value) => Some(key.len() + value.len()),
            Op::PutRef(descriptor) => Some(key.len() + descriptor.len()),
            Op::Patch(patch) => Some(key.len() + patch.value_size() as usize),
            Op::Delete => Some(0),
        };
        let before = match self.deltas(table)?.versions(key).last() {
            Some((_, op)) => size_after(op),
            None => self.size_in_base(table, key),
        };
        Some(size_after(op)? as i64 - before? as i64)
    }

    /// Bytes of an entry in the base, 0 where it has none; none where the base is not in memory.
    fn size_in_base(&self, table: Table, key: &[u8]) -> Option<usize> {
        let place = self.leaf_at_hand(table, key)?;
        let pool = &self.store.pool;
        let view = NodeView::trusted(&pool.frame(pool.peek(place.page)?).image);
        let entry = view.search(key).ok().and_then(|index| view.entry(index));
        Some(entry.map_or(0, |entry| match entry.value {
            ValueRef::Inline(value) | ValueRef::Ref(value) => key.len() + value.len(),
        }))
    }

    /// Whether a leaf is free for a merge: no job uses it, and it found pages for its last split.
    #[must_use]
    pub fn is_free(&self, page: LogicalPage) -> bool {
        !self.store.groups.busy.contains(&page) && !self.store.obstacles.passes_over(page)
    }

    /// Whether a range has deltas that a merge may take now: durable ones.
    #[must_use]
    pub fn is_mergeable(&self, table: Table, range: KeyRange<'_>) -> bool {
        let upto = self.store.merge_lsn();
        self.deltas(table).is_some_and(|deltas| deltas.has_upto(range, upto))
    }

    /// Whether a table is there and has deltas.
    #[must_use]
    pub fn has_deltas(&self, table: Table) -> bool {
        let tree = self.store.trees.get(table.id as usize);
        tree.is_some_and(|tree| tree.root.is_some() && !tree.deltas.is_empty())
    }

    /// The first table behind another one.
    #[must_use]
    pub fn table_behind(&self, table: Table) -> Option<Table> {
        self.store.trees.first_from(table.id as usize + 1).map(|tree| Table::of(tree.id))
    }
}

/// Bytes of a change, as a leaf would hold it.
fn size_of_change(key: &[u8], op: Op<'_>) -> usize {
    key.len() + op.encoded_size()
}

/// Bytes by which a leaf may grow for a change: the size of the replaced row is not known.
pub(super) fn growth_by(key: &[u8], op: Op<'_>) -> i64 {
    match op {
        Op::Put(_) | Op::PutRef(_) => (key.len() + op.encoded_size()) as i64,
        Op::Delete => -(key.len() as i64),
        Op::Patch(_) => 0,
    }
}

impl Store {
    /// Tells the guest, if there is one.
    fn tell_guest(&mut self, tell: impl FnOnce(&mut dyn VictimPolicy, &MergeView<'_>)) {
        if let Some(mut guest) = self.guest.take() {
            tell(&mut *guest, &MergeView { store: self });
            self.guest = Some(guest);
        }
    }

    /// A delta is about to join its tree.
    pub(super) fn tell_delta_comes(&mut self, table: Table, key: &[u8], op: Op<'_>) {
        let is_there = |view: &MergeView<'_>| view.deltas(table).is_some();
        self.tell_guest(|guest, view| {
            if is_there(view) {
                guest.delta_comes(view, &Change { table, key, op });
            }
        });
    }

    /// The delta of `key` has joined its tree.
    pub(super) fn tell_delta_came(&mut self, table: Table, key: &[u8]) {
        self.tell_guest(|guest, view| guest.delta_came(view, table, key));
    }

    /// Deltas of a range went: the remaining ones may be for other leaves.
    pub(in crate::engine) fn tell_deltas_went(&mut self, table: Table, range: KeyRange<'_>) {
        self.tell_guest(|guest, view| guest.deltas_went(view, table, range));
    }

    /// The leaves of a range are others now.
    pub(in crate::engine) fn tell_leaves_changed(&mut self, table: Table, range: KeyRange<'_>) {
        self.tell_guest(|guest, view| guest.leaves_changed(view, table, range));
    }

    /// A query met the leaf of `key`.
    pub(in crate::engine) fn tell_query(&mut self, table: Table, key: &[u8]) {
        if let Some(guest) = &mut self.guest {
            guest.leaf_used(table, key);
        }
    }

    /// The base of a leaf is in a frame.
    pub(super) fn tell_base(&mut self, index: FrameIndex) {
        if let Some(guest) = &mut self.guest {
            let frame = self.pool.frame(index);
            guest.base_came(frame.page, NodeView::trusted(&frame.image).used_bytes());
        }
    }

    /// Whether changes wait for the leaf of `key`: no more than inner nodes are read.
    pub(in crate::engine) fn has_waiting(&mut self, table: Table, key: &[u8]) -> Step<bool> {
        if self.guest.as_ref().is_some_and(|guest| guest.knows(table, key)) {
            return Ok(true);
        }
        let index = self.node_for(table, Seek::At(key), 1)?;
        let view = NodeView::trusted(&self.pool.frame(index).image);
        let Some((child, _)) = view.child_for(key).filter(|_| !view.is_leaf()) else {
            return Ok(false);
        };
        let low = if child == 0 { view.low().to_vec() } else { view.separator(child) };
        let high = match child + 1 < view.count() {
            true => Some(view.separator(child + 1)),
            false => view.high().map(<[u8]>::to_vec),
        };
        let range = KeyRange { low: &low, high: high.as_deref() };
        Ok(self.tree(table)?.deltas.range(range).next().is_some())
    }
}
