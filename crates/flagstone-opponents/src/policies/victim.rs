//! The guest that chooses leaves by their groups of deltas.
//!
//! Owns the way from the engine to the groups and back: it looks up the leaves of deltas that lie in no
//! group, counts what a rule rests on, and tells the order of units of each change. Never believes a
//! size that it has not counted.

use std::collections::VecDeque;

use flagstone_engine::policy::{
    Change, Chosen, Extent, KeyRange, LeafPlace, MergeSearch, MergeView, PolicySizes, VictimChoice,
    VictimPolicy,
};
use flagstone_engine::{Step, Table, id_of, table_with_id};
use flagstone_space::LogicalPage;

use super::groups::{DeltaGroups, GroupKey, Place};
use super::units::SharedUnits;
use super::{PolicyOptions, SuperGroup, VictimRule, cover};

/// Groups of higher rank that are passed over for one that can be merged now, at most.
const PASSED_MAX: usize = 64;

/// A set of groups frees one part in this many of the memory.
const COVER_SHARE: usize = 8;

/// Chooses leaves by their groups of deltas.
#[derive(Debug)]
pub(super) struct GroupVictim {
    rule: VictimRule,
    groups: DeltaGroups,
    /// Groups that are still to be merged together: the rest of the set that was chosen last.
    cover: VecDeque<GroupKey>,
    /// Bytes that a set frees.
    cover_goal: usize,
    /// Leaves read so far to find the members of a super group.
    joining_reads: usize,
    /// The order of base copies and changes, where there is one.
    units: Option<SharedUnits>,
}

impl GroupVictim {
    pub(super) fn new(
        options: &PolicyOptions,
        sizes: PolicySizes,
        units: Option<SharedUnits>,
    ) -> Self {
        Self {
            rule: options.victim,
            groups: DeltaGroups::new(options, sizes.payload_size),
            cover: VecDeque::new(),
            cover_goal: sizes.memory / COVER_SHARE,
            joining_reads: 0,
            units,
        }
    }

    fn is_short(&self, search: &MergeSearch<'_>) -> bool {
        search.is_short() || self.is_under_way()
    }

    /// The order of units learns the news of groups.
    fn tell_units(&mut self) {
        if !self.groups.tells() {
            return;
        }
        let news = self.groups.take_news();
        let Some(units) = &self.units else { return };
        let mut units = units.lock();
        for (page, changes) in news {
            match changes {
                Some(changes) => units.note_changes(page, changes),
                None => units.use_changes(page),
            }
        }
    }

    /// Notes the group of a leaf, with its deltas as they are counted now.
    fn place(&mut self, view: &MergeView<'_>, table: Table, leaf: LeafPlace) {
        let range = leaf.range();
        let size = view.deltas_size(table, range);
        let (growth, gross) = (view.growth(table, range), view.gross(table, range));
        let (low, place) = Place::of(leaf);
        let at = (id_of(table), low);
        self.groups.place(at.clone(), place, size, growth);
        self.groups.set_gross(&at, gross);
    }

    /// Places the group of `key` if the inner nodes are in memory; returns the key at which its leaf
    /// ends.
    fn place_at_hand(
        &mut self,
        view: &MergeView<'_>,
        table: Table,
        key: &[u8],
    ) -> Option<Option<Vec<u8>>> {
        if self.groups.has_group(id_of(table), key) {
            return None;
        }
        let leaf = view.leaf_at_hand(table, key)?;
        let (page, high) = (leaf.page, leaf.high.clone());
        self.place(view, table, leaf);
        if let Some(used) = view.used_at_hand(page) {
            self.base_came(page, used);
        }
        Some(high)
    }

    /// Looks up the leaves of deltas that lie in no group.
    fn place_groups(&mut self, search: &mut MergeSearch<'_>) -> Step<()> {
        while let Some((id, key)) = self.groups.unplaced() {
            let table = table_with_id(id);
            let next = if search.view().has_deltas(table) {
                self.place_below(search, table, &key)?.map(|high| (id, high))
            } else {
                self.groups.forget(id, KeyRange::ALL);
                None
            };
            let behind = || Some((id_of(search.view().table_behind(table)?), Vec::new()));
            self.groups.swept_to(next.or_else(behind));
            self.tell_units();
        }
        Ok(())
    }

    /// Notes the group of `key`, or on a sweep all groups below the same inner node; returns the key at
    /// which the next node begins.
    fn place_below(
        &mut self,
        search: &mut MergeSearch<'_>,
        table: Table,
        key: &[u8],
    ) -> Step<Option<Vec<u8>>> {
        let extent = if self.groups.is_sweeping() { Extent::Siblings } else { Extent::Leaf };
        let siblings = search.siblings(table, key, extent)?;
        let view = search.view();
        siblings.leaves.into_iter().for_each(|leaf| self.place(&view, table, leaf));
        Ok(siblings.next)
    }

    /// Notes the used bytes of a group's leaf.
    fn measure(&mut self, search: &mut MergeSearch<'_>, at: &GroupKey) -> Step<()> {
        let used = search.used_bytes(table_with_id(at.0), &at.1)?;
        self.groups.measure(at, used);
        Ok(())
    }

    /// A leaf that has come to its limit, or that leaves memory as a whole, if one can be merged now.
    fn choose_unit(&mut self, search: &mut MergeSearch<'_>) -> Step<Option<Chosen>> {
        if !self.groups.tells() {
            return Ok(None);
        }
        self.place_groups(search)?;
        while let Some(at) = self.groups.take_full() {
            // A leaf that cannot be merged now is full again with its next change.
            if let Some(chosen) = self.chosen_of(search, &at) {
                return Ok(Some(chosen));
            }
        }
        let tail = self.units.as_ref().and_then(|units| units.lock().tail());
        let tail = tail.filter(|_| self.is_short(search));
        let at = tail.and_then(|page| self.groups.group_at(page)).cloned();
        Ok(at.and_then(|at| self.chosen_of(search, &at)))
    }

    fn choose_by_rule(&mut self, search: &mut MergeSearch<'_>) -> Step<VictimChoice> {
        let chosen = match (self.rule, self.groups.super_group()) {
            (VictimRule::Window, _) => return Ok(VictimChoice::Window),
            (VictimRule::Cover, _) => self.choose_cover(search)?,
            (_, SuperGroup::Off) => self.choose_group(search)?,
            (_, SuperGroup::Victim) => match self.choose_group(search)? {
                Some(chosen) => Some(self.widened(search, chosen)?),
                None => None,
            },
            (_, SuperGroup::All) => self.choose_super_group(search)?,
        };
        Ok(chosen.map_or(VictimChoice::None, VictimChoice::Leaf))
    }

    /// The group that the rule ranks first among groups that can be merged now. Sizes are counted
    /// before they are believed, leaves read where the rank rests on their content.
    fn choose_group(&mut self, search: &mut MergeSearch<'_>) -> Step<Option<Chosen>> {
        self.place_groups(search)?;
        let mut passed = 0;
        while let Some((at, group)) = self.groups.ranked(passed) {
            let (view, table) = (search.view(), table_with_id(at.0));
            let range = KeyRange { low: &at.1, high: group.place.high.as_deref() };
            let size = view.deltas_size(table, range);
            if size == 0 {
                self.groups.forget(at.0, range);
            } else if size != group.size {
                self.groups.recount(&at, size);
            } else if !view.is_mergeable(table, range) || !view.is_free(group.place.page) {
                passed += 1;
                if passed > PASSED_MAX {
                    break;
                }
            } else if self.groups.wants_leaf(&group) {
                self.measure(search, &at)?;
            } else {
                return Ok(Some(Chosen { table, key: at.1, joined: None }));
            }
        }
        Ok(None)
    }

    /// Adds the groups that belong with a chosen one; they are to be merged after it.
    fn widened(&mut self, search: &mut MergeSearch<'_>, chosen: Chosen) -> Step<Chosen> {
        let at = (id_of(chosen.table), chosen.key.clone());
        while let Some(next) = self.groups.unreadable_near(&at, self.joining_reads) {
            self.measure(search, &next)?;
            self.joining_reads += 1;
        }
        self.joining_reads = 0;
        Ok(Chosen { joined: Some(self.joined(&at)), ..chosen })
    }

    /// First keys of the groups that belong with the group at `at`.
    fn joined(&self, at: &GroupKey) -> Vec<Vec<u8>> {
        self.groups.joined(at).into_iter().map(|(_, key)| key).collect()
    }

    /// The cheapest of all super groups, by its first group that can be merged now.
    fn choose_super_group(&mut self, search: &mut MergeSearch<'_>) -> Step<Option<Chosen>> {
        self.place_groups(search)?;
        while let Some(at) = self.groups.unread() {
            self.measure(search, &at)?;
        }
        let view = search.view();
        for at in self.groups.super_groups(PASSED_MAX) {
            let Some(group) = self.groups.get(&at) else { continue };
            let (page, high) = (group.place.page, group.place.high.clone());
            let table = table_with_id(at.0);
            let range = KeyRange { low: &at.1, high: high.as_deref() };
            if view.first_key(table, range).is_none() {
                self.groups.forget(at.0, range);
            } else if view.is_free(page) && view.is_mergeable(table, range) {
                let joined = Some(self.joined(&at));
                return Ok(Some(Chosen { table, key: at.1, joined }));
            }
        }
        Ok(None)
    }

    /// The next group of the set that frees the needed memory for fewest writes.
    fn choose_cover(&mut self, search: &mut MergeSearch<'_>) -> Step<Option<Chosen>> {
        self.place_groups(search)?;
        if let Some(chosen) = self.next_of_cover(search) {
            return Ok(Some(chosen));
        }
        self.cover = self.cheapest_cover(&search.view()).into();
        Ok(self.next_of_cover(search))
    }

    fn next_of_cover(&mut self, search: &MergeSearch<'_>) -> Option<Chosen> {
        while let Some(at) = self.cover.pop_front() {
            if let Some(chosen) = self.chosen_of(search, &at) {
                return Some(chosen);
            }
        }
        None
    }

    /// The set of groups that frees its share of memory for fewest writes: from due units of the cold
    /// region if there are any, else from all groups.
    fn cheapest_cover(&self, view: &MergeView<'_>) -> Vec<GroupKey> {
        let cold = self.cheapest_units(view).into_iter();
        let cold: Vec<GroupKey> =
            cold.filter_map(|page| self.groups.group_at(page).cloned()).collect();
        if !cold.is_empty() {
            return cold;
        }
        let all = cover::buckets(|from| {
            let groups = self.groups.by_writes(from as u64);
            let free = groups.filter(|(_, group, _)| view.is_free(group.place.page));
            free.map(|(at, group, writes)| (at, writes as usize, group.size))
        });
        cover::cover(all, self.cover_goal).into_iter().cloned().collect()
    }

    /// Leaves of that set among the due units of the cold region.
    fn cheapest_units(&self, view: &MergeView<'_>) -> Vec<LogicalPage> {
        let Some(units) = &self.units else { return Vec::new() };
        let units = units.lock();
        let cold = cover::buckets(|from| {
            let due = units.due_from(from as u64).filter(|(page, _)| view.is_free(*page));
            due.map(|(page, changes)| (page, changes.writes as usize, changes.size))
        });
        cover::cover(cold, self.cover_goal)
    }

    /// The leaf of a group, if it can be merged now. Sizes are counted before they are believed.
    fn chosen_of(&mut self, search: &MergeSearch<'_>, at: &GroupKey) -> Option<Chosen> {
        let group = self.groups.get(at).cloned()?;
        let (view, table) = (search.view(), table_with_id(at.0));
        let range = KeyRange { low: &at.1, high: group.place.high.as_deref() };
        let size = view.deltas_size(table, range);
        if size == 0 {
            self.groups.forget(at.0, range);
        } else if size != group.size {
            self.groups.recount(at, size);
        }
        self.tell_units();
        let can_be_merged = view.is_mergeable(table, range) && view.is_free(group.place.page);
        can_be_merged.then(|| Chosen { table, key: at.1.clone(), joined: None })
    }
}

impl VictimPolicy for GroupVictim {
    fn delta_comes(&mut self, view: &MergeView<'_>, change: &Change<'_>) {
        let known = if self.groups.tells() { view.growth_of(change) } else { None };
        let growth = known.unwrap_or_else(|| change.growth_max());
        self.groups.note(id_of(change.table()), change.key(), change.size(), growth);
    }

    /// Its group is looked up at once if nothing has to be read for that.
    fn delta_came(&mut self, view: &MergeView<'_>, table: Table, key: &[u8]) {
        if self.groups.tells() {
            self.place_at_hand(view, table, key);
            self.tell_units();
        }
    }

    /// The remaining deltas may lie in groups of other leaves.
    fn deltas_went(&mut self, view: &MergeView<'_>, table: Table, range: KeyRange<'_>) {
        self.groups.forget(id_of(table), range);
        view.keys(table, range).for_each(|key| self.groups.list(id_of(table), key));
        if !self.groups.tells() {
            return;
        }
        let mut from = range.low.to_vec();
        while let Some(key) = view.first_key(table, KeyRange { low: &from, ..range })
            && let Some(Some(high)) = self.place_at_hand(view, table, key)
        {
            from = high;
        }
        self.tell_units();
    }

    fn leaves_changed(&mut self, view: &MergeView<'_>, table: Table, range: KeyRange<'_>) {
        if self.groups.tells() {
            self.deltas_went(view, table, range);
        }
    }

    fn leaf_used(&mut self, table: Table, key: &[u8]) {
        self.groups.note_used(id_of(table), key);
        self.tell_units();
    }

    /// The pages that a merge of its changes writes follow from it.
    fn base_came(&mut self, page: LogicalPage, used: usize) {
        if let Some(at) = self.groups.group_at(page).cloned() {
            self.groups.measure(&at, used);
            self.tell_units();
        }
    }

    fn knows(&self, table: Table, key: &[u8]) -> bool {
        self.groups.has_group(id_of(table), key)
    }

    fn has_due(&self) -> bool {
        self.groups.has_full()
    }

    fn is_under_way(&self) -> bool {
        !self.cover.is_empty()
    }

    fn choose(&mut self, search: &mut MergeSearch<'_>) -> Step<VictimChoice> {
        if let Some(chosen) = self.choose_unit(search)? {
            return Ok(VictimChoice::Leaf(chosen));
        }
        if !self.is_short(search) {
            return Ok(VictimChoice::None);
        }
        let chosen = self.choose_by_rule(search);
        self.tell_units();
        chosen
    }

    fn bytes_peak(&self) -> usize {
        self.groups.bytes_peak()
    }
}
