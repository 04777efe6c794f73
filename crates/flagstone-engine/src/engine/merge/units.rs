//! Units: the groups of deltas told to the order of leaves in memory, for replacement policies that
//! evict base copies and changes in one order (Lazy-Split LRU).
//!
//! Owns the way from a group to its unit and back. The ledger knows groups by key, the order knows
//! units by page; each learns of the other's changes before the next choice.

use flagstone_space::Lsn;

use super::choose::grown_by;
use super::ledger::{GroupKey, Place};
use super::{Reason, Target, cover};
use crate::delta::{DeltaMap, KeyRange, Op};
use crate::engine::descent::Seek;
use crate::engine::pool::FrameIndex;
use crate::engine::{Engine, Step, Table};
use crate::node::{NodeView, ValueRef};

impl Engine {
    /// A query met the leaf of `key`.
    pub(in crate::engine) fn note_query(&mut self, table: Table, key: &[u8]) {
        self.planner.ledger.note_used(table.id, key);
        self.tell_units();
    }

    /// A delta of `key` came: its group is looked up at once if nothing has to be read for that.
    pub(in crate::engine) fn follow_unit(&mut self, table: Table, key: &[u8]) {
        if self.planner.ledger.tells() {
            self.place_at_hand(table, key);
            self.tell_units();
        }
    }

    /// Deltas of a range went: the remaining deltas may lie in groups of other leaves.
    pub(in crate::engine) fn follow_units(&mut self, table: Table, range: KeyRange<'_>) {
        if !self.planner.ledger.tells() {
            return;
        }
        let mut from = range.low.to_vec();
        while let Some(key) = self.first_delta(table, KeyRange { low: &from, ..range })
            && let Some(high) = self.place_at_hand(table, &key)
            && let Some(high) = high
        {
            from = high;
        }
        self.tell_units();
    }

    fn first_delta(&self, table: Table, range: KeyRange<'_>) -> Option<Vec<u8>> {
        let tree = self.trees.get(table.id as usize)?;
        tree.deltas.range(range).next().map(|entry| entry.key().to_vec())
    }

    /// The order of units learns the news of groups.
    pub(super) fn tell_units(&mut self) {
        if self.planner.ledger.tells() {
            for (page, changes) in self.planner.ledger.take_news() {
                self.pool.note_changes(page, changes);
            }
        }
    }

    /// Places the group of `key` if the inner nodes are in memory; returns the key at which its leaf
    /// ends.
    fn place_at_hand(&mut self, table: Table, key: &[u8]) -> Option<Option<Vec<u8>>> {
        if self.planner.ledger.has_group(table.id, key) {
            return None;
        }
        let (low, place) = self.leaf_place_at_hand(table, key)?;
        let high = place.high.clone();
        let range = KeyRange { low: &low, high: high.as_deref() };
        let deltas = &self.tree(table).ok()?.deltas;
        let size = deltas.range_bytes(range);
        let growth = deltas.range(range).map(|entry| grown_by(&entry, Lsn(u64::MAX))).sum();
        let gross = gross_of(deltas, range);
        let page = place.page;
        self.planner.ledger.place((table.id, low.clone()), place, size, growth);
        self.planner.ledger.set_gross(&(table.id, low), gross);
        if let Some(index) = self.pool.peek(page) {
            self.measure_unit(index);
        }
        Some(high)
    }

    /// First key and place of the leaf of `key`, by the inner nodes in memory alone.
    fn leaf_place_at_hand(&self, table: Table, key: &[u8]) -> Option<(Vec<u8>, Place)> {
        let page = self.trees.get(table.id as usize)?.root?;
        let (mut low, mut place) = (Vec::new(), Place { high: None, page, parent: page, child: 0 });
        loop {
            let view = NodeView::trusted(&self.pool.frame(self.pool.peek(place.page)?).image);
            if view.is_leaf() {
                return Some((low, place));
            }
            let (child, page) = view.child_for(key)?;
            if child > 0 {
                low = view.separator(child);
            }
            if child + 1 < view.count() {
                place.high = Some(view.separator(child + 1));
            }
            place = Place { page, parent: place.page, child, ..place };
            if view.level() == 1 {
                return Some((low, place));
            }
        }
    }

    /// Whether changes wait for the leaf of `key`: no more than inner nodes are read.
    pub(in crate::engine) fn has_unit(&mut self, table: Table, key: &[u8]) -> Step<bool> {
        if self.planner.ledger.has_group(table.id, key) {
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

    /// The base of a unit is in a frame: the pages that a merge of its changes writes follow from it.
    pub(in crate::engine) fn measure_unit(&mut self, index: FrameIndex) {
        let frame = self.pool.frame(index);
        if let Some(at) = self.planner.ledger.group_at(frame.page).cloned() {
            let used = NodeView::trusted(&frame.image).used_bytes();
            self.planner.ledger.measure(&at, used);
            self.tell_units();
        }
    }

    /// Bytes by which the leaf of `key` grows for a change, as far as memory tells; none where no order
    /// of units asks.
    pub(in crate::engine) fn growth_at_hand(
        &self,
        table: Table,
        key: &[u8],
        op: Op<'_>,
    ) -> Option<i64> {
        if !self.planner.ledger.tells() {
            return None;
        }
        let size_after = |op: Op<'_>| match op {
            Op::Put(value) => Some(key.len() + value.len()),
            Op::PutRef(descriptor) => Some(key.len() + descriptor.len()),
            Op::Patch(patch) => Some(key.len() + patch.value_size() as usize),
            Op::Delete => Some(0),
        };
        let before = match self.tree(table).ok()?.deltas.versions(key).last() {
            Some((_, op)) => size_after(op),
            None => self.size_in_base(table, key),
        };
        match (before, op) {
            (Some(before), op) => Some(size_after(op)? as i64 - before as i64),
            (None, _) => None,
        }
    }

    /// Bytes of an entry in the base, 0 where it has none; none where the base is not in memory.
    fn size_in_base(&self, table: Table, key: &[u8]) -> Option<usize> {
        let (_, place) = self.leaf_place_at_hand(table, key)?;
        let view = NodeView::trusted(&self.pool.frame(self.pool.peek(place.page)?).image);
        let entry = view.search(key).ok().and_then(|index| view.entry(index));
        Some(entry.map_or(0, |entry| match entry.value {
            ValueRef::Inline(value) | ValueRef::Ref(value) => key.len() + value.len(),
        }))
    }

    /// A leaf that has come to its limit, or that leaves memory as a whole, if one can be merged now.
    pub(super) fn choose_unit(&mut self) -> Step<Option<Target>> {
        if !self.planner.ledger.tells() {
            return Ok(None);
        }
        self.place_groups()?;
        while let Some(at) = self.planner.ledger.take_full() {
            // A leaf that cannot be merged now is full again with its next change.
            if let Some(target) = self.target_of(&at)? {
                return Ok(Some(target));
            }
        }
        let tail = self.pool.tail().filter(|_| self.is_short());
        let at = tail.and_then(|page| self.planner.ledger.group_at(page)).cloned();
        at.map_or(Ok(None), |at| self.target_of(&at))
    }

    /// The next group of the set that frees the needed memory for fewest writes.
    pub(super) fn choose_cover(&mut self) -> Step<Option<Target>> {
        self.place_groups()?;
        if let Some(target) = self.next_of_cover()? {
            return Ok(Some(target));
        }
        self.planner.cover = self.cheapest_cover().into();
        self.next_of_cover()
    }

    fn next_of_cover(&mut self) -> Step<Option<Target>> {
        while let Some(at) = self.planner.cover.pop_front() {
            if let Some(target) = self.target_of(&at)? {
                return Ok(Some(target));
            }
        }
        Ok(None)
    }

    /// The set of groups that frees its share of memory for fewest writes: from due units of the cold
    /// region if there are any, else from all groups.
    fn cheapest_cover(&self) -> Vec<GroupKey> {
        let goal = self.options.memory / COVER_SHARE;
        let is_free = |page| !self.busy.contains(&page) && !self.planner.passes_over(page);
        let cold = cover::buckets(|from| {
            let due = self.pool.due_from(from as u64).filter(|(page, _)| is_free(*page));
            due.map(|(page, changes)| (page, changes.writes as usize, changes.size))
        });
        let ledger = &self.planner.ledger;
        let cold = cover::cover(cold, goal);
        let cold = cold.into_iter().filter_map(|page| ledger.group_at(page).cloned());
        let cold: Vec<GroupKey> = cold.collect();
        if !cold.is_empty() {
            return cold;
        }
        let all = cover::buckets(|from| {
            let free =
                ledger.by_writes(from as u64).filter(|(_, group, _)| is_free(group.place.page));
            free.map(|(at, group, writes)| (at, writes as usize, group.size))
        });
        cover::cover(all, goal).into_iter().cloned().collect()
    }

    /// The leaf of a group as a target, if it can be merged now. Sizes are counted before they are
    /// believed (G1).
    pub(super) fn target_of(&mut self, at: &GroupKey) -> Step<Option<Target>> {
        let Some(group) = self.planner.ledger.get(at).cloned() else { return Ok(None) };
        let table = Table::of(at.0);
        let range = KeyRange { low: &at.1, high: group.place.high.as_deref() };
        let deltas = &self.tree(table)?.deltas;
        let size = deltas.range_bytes(range);
        let is_durable = deltas.has_upto(range, self.merge_lsn());
        if size == 0 {
            self.planner.ledger.forget(at.0, range);
        } else if size != group.size {
            self.planner.ledger.recount(at, size);
        }
        self.tell_units();
        let is_free =
            !self.busy.contains(&group.place.page) && !self.planner.passes_over(group.place.page);
        let target = Target::new(table, at.1.clone(), Reason::Memory);
        Ok((is_durable && is_free).then_some(target))
    }
}

/// Bytes that the changes of a range would take in a leaf.
pub(super) fn gross_of(deltas: &DeltaMap, range: KeyRange<'_>) -> usize {
    let size = |key: &[u8], op: Op<'_>| key.len() + op.encoded_size();
    deltas
        .range(range)
        .map(|entry| entry.versions().map(|(_, op)| size(entry.key(), op)).sum::<usize>())
        .sum()
}

/// A set of groups frees one part in this many of the memory.
const COVER_SHARE: usize = 8;
