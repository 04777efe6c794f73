//! Groups of deltas by the leaf that they will change, in the order in which a policy commits them.
//!
//! Owns the knowledge of each group: its key range, size, age. Never reads a node: the engine tells it
//! ranges, and keys that lie in no known range wait in a list until it does. The lazy-update B+-tree
//! keeps an orthogonal list for this; here the deltas stay in their one ordered map, and a split moves
//! none of them.
//!
//! - **G1** Groups do not overlap. The recorded size of a group is a hint: the merge that takes the
//!   group counts.
//! - **G2** Every delta lies in a group, or its key is listed, or a sweep over the tree is due.
//! - **G3** Work for a change is logarithmic in the groups; the list of keys is bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use flagstone_engine::policy::{KeyRange, LeafPlace};
use flagstone_space::LogicalPage;
use hashbrown::HashMap;

use super::{PolicyOptions, SuperGroup, VictimRule, WriteCount};
use telling::News;

mod closure;
mod telling;

/// Keys that may wait for their group before the whole tree is swept instead.
const LISTED_MAX: usize = 4096;

/// Tree and first key of a group.
pub(super) type GroupKey = (u32, Vec<u8>);

/// Where a leaf stands in its tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) high: Option<Vec<u8>>,
    pub(super) page: LogicalPage,
    /// The inner node above the leaf, and the leaf's number below that node: a hint, since splits move
    /// numbers.
    pub(super) parent: LogicalPage,
    pub(super) child: usize,
}

impl Place {
    /// First key and place of a leaf.
    pub(super) fn of(leaf: LeafPlace) -> (Vec<u8>, Self) {
        let LeafPlace { low, high, page, parent, child } = leaf;
        (low, Self { high, page, parent, child })
    }
}

/// Knowledge of a leaf that deltas wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) place: Place,
    /// Memory of its deltas, in bytes.
    pub(super) size: usize,
    /// Bytes that the leaf may grow by.
    growth: i64,
    /// Bytes of all changes that came for it, as a leaf would hold them.
    gross: usize,
    /// Bytes that the leaf uses; none when they are not known.
    used: Option<usize>,
    /// Number of the group's first change.
    first: u64,
    /// Number of the group's last change: a query is no hit (section 4.2 of the paper).
    hit: u64,
}

/// Rank of a group: the least one is committed next.
type Rank = (u64, u64);

/// The groups of all trees.
#[derive(Debug, Default)]
pub(super) struct DeltaGroups {
    rule: VictimRule,
    super_group: SuperGroup,
    groups: BTreeMap<GroupKey, Group>,
    order: BTreeSet<(Rank, GroupKey)>,
    /// Groups whose leaf is not known; kept where all have to be known.
    unread: BTreeSet<GroupKey>,
    /// Keys of deltas that lie in no group.
    listed: BTreeSet<GroupKey>,
    /// A sweep over all trees is due, from here on.
    sweep: Option<GroupKey>,
    clock: u64,
    payload_size: usize,
    groups_peak: usize,
    /// First keys of the groups by their leaf, and the news of groups: kept where an order of units is
    /// told.
    by_page: Option<HashMap<LogicalPage, GroupKey>>,
    news: Vec<News>,
    /// Groups that have come to their limit.
    full: BTreeSet<GroupKey>,
    /// Bytes of changes that may wait for a leaf; 0: any.
    gross_max: usize,
    count_writes: WriteCount,
}

impl DeltaGroups {
    pub(super) fn new(options: &PolicyOptions, payload_size: usize) -> Self {
        Self {
            rule: options.victim,
            super_group: options.super_group,
            payload_size,
            by_page: options.follows_units().then(HashMap::new),
            gross_max: (options.unit_pages * payload_size as f64) as usize,
            count_writes: options.count_writes,
            ..Self::default()
        }
    }

    /// A delta came that takes `size` bytes more and may make the leaf grow by `growth`.
    pub(super) fn note(&mut self, tree: u32, key: &[u8], size: usize, growth: i64) {
        self.clock += 1;
        let clock = self.clock;
        let Some(at) = self.group_of(tree, key) else { return self.list(tree, key) };
        let page = self.change(&at, |group| {
            group.size += size;
            group.gross += size;
            group.growth += growth;
            group.hit = clock;
        });
        self.note_full(&at);
        page.into_iter().for_each(|page| self.tell_used(page));
    }

    /// The leaf that begins at `low` has deltas of `size` bytes, by which it may grow by `growth`.
    pub(super) fn place(&mut self, (tree, low): GroupKey, place: Place, size: usize, growth: i64) {
        let range = KeyRange { low: &low, high: place.high.as_deref() };
        let known = self.forget(tree, range);
        self.clock += 1;
        let (first, hit) = known.map_or((self.clock, self.clock), |old| (old.first, old.hit));
        if size > 0 {
            let group = Group { place, size, growth, gross: 0, used: None, first, hit };
            self.order.insert((self.rank(&group), (tree, low.clone())));
            if self.super_group == SuperGroup::All {
                self.unread.insert((tree, low.clone()));
            }
            self.tell(&(tree, low.clone()), &group);
            self.groups.insert((tree, low), group);
            self.groups_peak = self.groups_peak.max(self.groups.len());
        }
    }

    /// Forgets the groups and listed keys of a range; returns the oldest group.
    pub(super) fn forget(&mut self, tree: u32, range: KeyRange<'_>) -> Option<Group> {
        let mut oldest: Option<Group> = None;
        let mut from = self.group_of(tree, range.low).map_or(range.low.to_vec(), |(_, low)| low);
        while let Some(at) = first_from(&self.groups, tree, &from)
            && (range.is_below_high(&at.1))
        {
            if let Some(group) = self.groups.remove(&at) {
                self.order.remove(&(self.rank(&group), at.clone()));
                self.unread.remove(&at);
                self.full.remove(&at);
                self.tell_gone(group.place.page);
                if oldest.as_ref().is_none_or(|old| group.first < old.first) {
                    oldest = Some(group);
                }
            }
            from = at.1;
        }
        let bounds = (Bound::Included((tree, range.low.to_vec())), Bound::Unbounded);
        while let Some(at) = self.listed.range(bounds.clone()).next().cloned()
            && at.0 == tree
            && range.is_below_high(&at.1)
        {
            self.listed.remove(&at);
        }
        oldest
    }

    /// Notes that the delta of `key` lies in no group.
    pub(super) fn list(&mut self, tree: u32, key: &[u8]) {
        if self.sweep.as_ref().is_some_and(|(at, from)| (*at, from.as_slice()) <= (tree, key)) {
            return;
        }
        if self.listed.len() < LISTED_MAX {
            self.listed.insert((tree, key.to_vec()));
        } else {
            self.listed.clear();
            self.sweep = Some((0, Vec::new()));
        }
    }

    /// The next place whose leaf has to be looked up before groups are complete.
    pub(super) fn unplaced(&self) -> Option<GroupKey> {
        self.sweep.clone().or_else(|| self.listed.first().cloned())
    }

    /// Every place before `next` has been looked up, as far as a sweep is under way.
    pub(super) fn swept_to(&mut self, next: Option<GroupKey>) {
        if self.sweep.is_some() {
            self.sweep = next;
        }
    }

    /// Whether a whole tree is being looked up.
    pub(super) fn is_sweeping(&self) -> bool {
        self.sweep.is_some()
    }

    /// The group that is to be committed after `passed` others.
    pub(super) fn ranked(&self, passed: usize) -> Option<(GroupKey, Group)> {
        let (_, at) = self.order.iter().nth(passed)?;
        Some((at.clone(), self.groups.get(at)?.clone()))
    }

    /// Whether the rank of a group rests on the used bytes of its leaf, and these are not known.
    pub(super) fn wants_leaf(&self, group: &Group) -> bool {
        self.rule == VictimRule::Cost && group.used.is_none()
    }

    /// The leaf of a group uses `used` bytes.
    pub(super) fn measure(&mut self, at: &GroupKey, used: usize) {
        self.unread.remove(at);
        self.change(at, |group| group.used = Some(used));
    }

    /// The deltas of a group take `size` bytes, as counted.
    pub(super) fn recount(&mut self, at: &GroupKey, size: usize) {
        self.change(at, |group| group.size = size);
    }

    /// Largest memory of the groups so far, roughly.
    pub(super) fn bytes_peak(&self) -> usize {
        let told = self.by_page.as_ref().map_or(0, |_| size_of::<(LogicalPage, GroupKey)>());
        self.groups_peak * (size_of::<Group>() + 2 * size_of::<(Rank, GroupKey)>() + told)
    }

    /// The group whose range holds `key`.
    fn group_of(&self, tree: u32, key: &[u8]) -> Option<GroupKey> {
        let upto = (tree, key.to_vec());
        let (at, group) = self.groups.range(..=upto).next_back()?;
        let range = KeyRange { low: &at.1, high: group.place.high.as_deref() };
        (at.0 == tree && range.contains(key)).then(|| at.clone())
    }

    /// A group, if it is still known.
    pub(super) fn get(&self, at: &GroupKey) -> Option<&Group> {
        self.groups.get(at)
    }

    /// Changes the knowledge of a group; returns its leaf.
    fn change(&mut self, at: &GroupKey, change: impl FnOnce(&mut Group)) -> Option<LogicalPage> {
        let mut group = self.groups.remove(at)?;
        self.order.remove(&(self.rank(&group), at.clone()));
        change(&mut group);
        self.order.insert((self.rank(&group), at.clone()));
        let page = group.place.page;
        self.tell(at, &group);
        self.groups.insert(at.clone(), group);
        Some(page)
    }

    fn rank(&self, group: &Group) -> Rank {
        match self.rule {
            VictimRule::Window => (0, 0),
            VictimRule::Fifo => (group.first, 0),
            VictimRule::Lru => (group.hit, 0),
            VictimRule::Biggest => (u64::MAX - group.size as u64, group.hit),
            VictimRule::Cover => (self.writes(group), u64::MAX - group.size as u64),
            VictimRule::Cost => {
                let cost = (self.gain(group) << COST_BITS) / group.size.max(1) as u64;
                (cost, group.hit)
            }
        }
    }

    /// Leaves written if the group is committed: one, and more when its leaf splits; the least
    /// possible where the leaf is not known.
    fn gain(&self, group: &Group) -> u64 {
        let Some(used) = group.used else { return 1 };
        let grown = used.saturating_add_signed(group.growth as isize);
        grown.div_ceil(self.payload_size.max(1)).max(1) as u64
    }
}

/// Bits behind the point of a cost.
const COST_BITS: u32 = 32;

fn first_from(groups: &BTreeMap<GroupKey, Group>, tree: u32, from: &[u8]) -> Option<GroupKey> {
    let (at, _) = groups.range((tree, from.to_vec())..).next()?;
    (at.0 == tree).then(|| at.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: u32 = 3;

    fn at(low: &[u8]) -> GroupKey {
        (TREE, low.to_vec())
    }

    /// Leaves `a..m` and `m..`, with 100 and 200 bytes of deltas.
    fn groups(victim: VictimRule) -> DeltaGroups {
        let options = PolicyOptions { victim, ..PolicyOptions::default() };
        let mut groups = DeltaGroups::new(&options, 1000);
        groups.place(at(b"a"), place(Some(b"m"), 1), 100, 100);
        groups.place(at(b"m"), place(None, 2), 200, 200);
        groups
    }

    /// A leaf below the inner node 0.
    fn place(high: Option<&[u8]>, page: u32) -> Place {
        let (high, page) = (high.map(<[u8]>::to_vec), LogicalPage(page));
        Place { high, page, parent: LogicalPage(0), child: page.0 as usize }
    }

    fn order(groups: &DeltaGroups) -> Vec<u32> {
        (0..).map_while(|at| groups.ranked(at)).map(|(_, group)| group.place.page.0).collect()
    }

    #[test]
    fn each_policy_has_its_order() {
        assert_eq!(order(&groups(VictimRule::Fifo)), [1, 2]);
        assert_eq!(order(&groups(VictimRule::Biggest)), [2, 1]);
        let mut lru = groups(VictimRule::Lru);
        lru.note(TREE, b"b", 1, 0);
        assert_eq!(order(&lru), [2, 1]);
        let mut fifo = groups(VictimRule::Fifo);
        fifo.note(TREE, b"b", 500, 0);
        assert_eq!(order(&fifo), [1, 2], "age is that of the group");
        let mut biggest = groups(VictimRule::Biggest);
        biggest.note(TREE, b"b", 500, 0);
        assert_eq!(order(&biggest), [1, 2]);
    }

    #[test]
    fn cost_is_what_is_written_for_what_is_freed() {
        let mut cost = groups(VictimRule::Cost);
        assert_eq!(order(&cost), [2, 1], "as by size, as long as nothing splits");
        cost.measure(&at(b"m"), 900);
        assert_eq!(order(&cost), [1, 2], "two pages for 200 bytes, a page for 100: a tie by use");
        cost.note(TREE, b"b", 0, 0);
        assert_eq!(order(&cost), [2, 1]);
    }

    #[test]
    fn equal_sizes_leave_by_last_use() {
        let mut biggest = groups(VictimRule::Biggest);
        biggest.note(TREE, b"b", 100, 0);
        assert_eq!(order(&biggest), [2, 1]);
        biggest.note(TREE, b"z", 0, 0);
        assert_eq!(order(&biggest), [1, 2]);
    }

    #[test]
    fn keys_without_a_group_wait_for_one() {
        let mut groups = groups(VictimRule::Biggest);
        groups.note(TREE, b"A", 10, 10);
        groups.note(TREE + 1, b"z", 10, 10);
        assert_eq!(groups.unplaced(), Some(at(b"A")));
        groups.place(at(b""), place(Some(b"a"), 3), 10, 10);
        assert_eq!(groups.unplaced(), Some((TREE + 1, b"z".to_vec())));
        assert_eq!(order(&groups), [2, 1, 3]);
    }

    #[test]
    fn a_range_that_changes_its_leaves_is_forgotten() {
        let mut groups = groups(VictimRule::Biggest);
        groups.forget(TREE, KeyRange { low: b"c", high: Some(b"d") });
        assert_eq!(order(&groups), [2], "whatever overlaps goes");
        groups.forget(TREE, KeyRange::ALL);
        assert_eq!(order(&groups), [0u32; 0]);
        assert!(groups.groups.is_empty() && groups.order.is_empty());
    }

    #[test]
    fn too_many_keys_make_a_sweep() {
        let options = PolicyOptions { victim: VictimRule::Lru, ..PolicyOptions::default() };
        let mut groups = DeltaGroups::new(&options, 1000);
        for key in 0..=LISTED_MAX as u32 {
            groups.note(TREE, &key.to_be_bytes(), 10, 10);
        }
        assert_eq!(groups.unplaced(), Some((0, Vec::new())));
        groups.swept_to(Some((TREE, 50u32.to_be_bytes().to_vec())));
        groups.note(TREE, &60u32.to_be_bytes(), 10, 10);
        assert!(groups.listed.is_empty(), "the sweep comes by");
        groups.note(TREE, &40u32.to_be_bytes(), 10, 10);
        assert_eq!(groups.listed.len(), 1, "it has been there");
        groups.swept_to(None);
        assert_eq!(groups.unplaced(), Some((TREE, 40u32.to_be_bytes().to_vec())));
    }
}
