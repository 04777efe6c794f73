//! Super groups: groups that save a write when they are committed together.
//!
//! Owns the three cases of the lazy-update B+-tree (section 4.4.2.3, figure 3) and their closure. Two
//! groups below one inner node belong together when
//!
//! 1. both split or merge their leaf: both write the inner node;
//! 2. one of them does, and the other is next to it;
//! 3. one merges its leaf, and the other comes after the one it is merged with, whose pointer to its
//!    neighbour changes.
//!
//! All groups below one inner node that split or merge their leaf are therefore in one super group.
//!
//! That is the paper's tree. In this one inner nodes change by deltas of their own, and leaves have no
//! pointers to each other; the savings are the records of installs, and the write of a neighbour that a
//! small leaf is merged with.
//!
//! - **S1** Only groups whose leaf is known can split or merge it; others join as neighbours.

use flagstone_engine::policy::UNDERFULL_PERCENT;

use super::{DeltaGroups, Group, GroupKey, Rank};
use crate::policies::SuperGroup;

/// Leaves that are read for one super group, at most.
const READS_MAX: usize = 32;

/// Distance of the leaf whose pointer changes when a leaf is merged with its neighbour.
const BEYOND: usize = 2;

/// Effect of a commit on a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// The leaf stays one.
    Same,
    /// The leaf splits.
    Split,
    /// The leaf becomes so small that it is merged with a neighbour.
    Merged,
}

impl DeltaGroups {
    /// How groups are committed together.
    pub(in crate::policies) fn super_group(&self) -> SuperGroup {
        self.super_group
    }

    /// A group whose leaf has to be read before the super group of `at` is known, after `reads` reads
    /// for it.
    pub(in crate::policies) fn unreadable_near(
        &self,
        at: &GroupKey,
        reads: usize,
    ) -> Option<GroupKey> {
        if reads >= READS_MAX {
            return None;
        }
        let siblings = self.siblings(at);
        let inside = self.closure(&siblings, at);
        let is_near = |other: &(&GroupKey, &Group)| {
            inside.iter().any(|(key, group)| {
                let distance = group.place.child.abs_diff(other.1.place.child);
                *key == other.0 || distance <= BEYOND || self.shape(group) != Shape::Same
            })
        };
        let mut unread = siblings.iter().filter(|(_, group)| group.used.is_none());
        unread.find(|other| is_near(other)).map(|(key, _)| (*key).clone())
    }

    /// The other groups that are committed with `at`, in key order.
    pub(in crate::policies) fn joined(&self, at: &GroupKey) -> Vec<GroupKey> {
        let siblings = self.siblings(at);
        let joined = self.closure(&siblings, at).into_iter().map(|(key, _)| key.clone());
        joined.filter(|key| key != at).collect()
    }

    /// A group whose leaf is not known.
    pub(in crate::policies) fn unread(&self) -> Option<GroupKey> {
        self.unread.first().cloned()
    }

    /// The first super groups by their least member, `count` of them, the cheapest first; among equal
    /// ones the least recently hit first.
    pub(in crate::policies) fn super_groups(&self, count: usize) -> Vec<GroupKey> {
        let mut ranked = Vec::new();
        let all: Vec<(&GroupKey, &Group)> = self.groups.iter().collect();
        // Siblings follow each other in key order.
        for family in all.chunk_by(|one, other| is_sibling(*one, *other)) {
            let joins = self.joining(family);
            let mut members = Vec::new();
            for (one, joins) in family.iter().zip(joins) {
                match joins {
                    true => members.push(*one),
                    false => ranked.push((self.rank_of(&[*one]), one.0)),
                }
            }
            if let Some((at, _)) = members.first() {
                ranked.push((self.rank_of(&members), at));
            }
        }
        let first = count.min(ranked.len());
        if first < ranked.len() {
            ranked.select_nth_unstable(first);
            ranked.truncate(first);
        }
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, at)| at.clone()).collect()
    }

    /// Pages that a super group writes for the memory that it frees, and its last hit.
    fn rank_of(&self, members: &[(&GroupKey, &Group)]) -> Rank {
        let gain: u64 = members.iter().map(|(_, group)| self.gain(group)).sum();
        let size: usize = members.iter().map(|(_, group)| group.size).sum();
        let hit = members.iter().map(|(_, group)| group.hit).min().unwrap_or(0);
        ((gain << super::COST_BITS) / size.max(1) as u64, hit)
    }

    /// Groups below the same inner node, `at` among them, in key order.
    fn siblings(&self, at: &GroupKey) -> Vec<(&GroupKey, &Group)> {
        let Some((own, group)) = self.groups.get_key_value(at) else { return Vec::new() };
        let is_near = |other: &(&GroupKey, &Group)| is_sibling((own, group), *other);
        let mut siblings: Vec<_> =
            self.groups.range(..own).rev().take_while(|other| is_near(other)).collect();
        siblings.reverse();
        siblings.extend(self.groups.range(own..).take_while(is_near));
        siblings
    }

    /// The groups of `family` that belong together with `at`.
    fn closure<'a>(
        &self,
        family: &[(&'a GroupKey, &'a Group)],
        at: &GroupKey,
    ) -> Vec<(&'a GroupKey, &'a Group)> {
        let joins = self.joining(family);
        let own = family.iter().position(|(key, _)| *key == at);
        let is_joined = own.is_some_and(|own| joins[own]);
        let pairs = family.iter().zip(joins);
        pairs
            .filter(|(one, joins)| one.0 == at || is_joined && *joins)
            .map(|(one, _)| *one)
            .collect()
    }

    /// Whether each group of a family, in key order, belongs to its super group. There is at most one:
    /// all groups that split or merge their leaf belong together (case 1), and the others to groups
    /// near them.
    fn joining(&self, family: &[(&GroupKey, &Group)]) -> Vec<bool> {
        let shapes: Vec<Shape> = family.iter().map(|(_, group)| self.shape(group)).collect();
        let mut joins: Vec<bool> = shapes.iter().map(|shape| *shape != Shape::Same).collect();
        for (place, shape) in shapes.iter().enumerate() {
            let reach = match shape {
                Shape::Same => continue,
                Shape::Split => 1,
                Shape::Merged => BEYOND,
            };
            for near in place.saturating_sub(BEYOND)..(place + BEYOND + 1).min(family.len()) {
                let (one, other) = (&family[place].1.place, &family[near].1.place);
                joins[near] |= one.child.abs_diff(other.child) <= reach;
            }
        }
        joins
    }

    /// Effect of a commit of the group on its leaf, as far as known (S1).
    fn shape(&self, group: &Group) -> Shape {
        let Some(used) = group.used else { return Shape::Same };
        let grown = used.saturating_add_signed(group.growth as isize);
        if grown > self.payload_size {
            Shape::Split
        } else if grown * 100 < self.payload_size * UNDERFULL_PERCENT {
            Shape::Merged
        } else {
            Shape::Same
        }
    }
}

fn is_sibling(one: (&GroupKey, &Group), other: (&GroupKey, &Group)) -> bool {
    one.0.0 == other.0.0 && one.1.place.parent == other.1.place.parent
}

#[cfg(test)]
mod tests {
    use flagstone_space::LogicalPage;

    use super::super::Place;
    use super::*;
    use crate::policies::{PolicyOptions, VictimRule};

    const PAYLOAD: usize = 1000;

    fn at(child: u8) -> GroupKey {
        (3, vec![child])
    }

    /// Leaves below two inner nodes, ten below each, all with a group; `used` bytes of some.
    fn groups(used: &[(u8, usize)]) -> DeltaGroups {
        let (victim, super_group) = (VictimRule::Cost, SuperGroup::All);
        let options = PolicyOptions { victim, super_group, ..PolicyOptions::default() };
        let mut groups = DeltaGroups::new(&options, PAYLOAD);
        for child in 0..20u8 {
            let place = Place {
                high: Some(vec![child + 1]),
                page: LogicalPage(100 + u32::from(child)),
                parent: LogicalPage(u32::from(child) / 10),
                child: usize::from(child) % 10,
            };
            groups.place(at(child), place, 100, 50);
            groups.measure(&at(child), 500);
        }
        used.iter().for_each(|(child, used)| groups.measure(&at(*child), *used));
        groups
    }

    fn joined(groups: &DeltaGroups, child: u8) -> Vec<u8> {
        groups.joined(&at(child)).into_iter().map(|(_, key)| key[0]).collect()
    }

    #[test]
    fn leaves_that_stay_as_they_are_save_nothing() {
        assert_eq!(joined(&groups(&[]), 4), [0u8; 0]);
    }

    #[test]
    fn splits_below_one_node_go_together_with_their_neighbours() {
        let groups = groups(&[(1, 990), (7, 990), (12, 990)]);
        assert_eq!(joined(&groups, 1), [0, 2, 6, 7, 8]);
        assert_eq!(joined(&groups, 8), [0, 1, 2, 6, 7], "whichever of them is chosen");
        assert_eq!(joined(&groups, 12), [11, 13], "another inner node");
        assert_eq!(joined(&groups, 4), [0u8; 0]);
        assert_eq!(joined(&groups, 9), [0u8; 0], "a split changes no pointer");
    }

    #[test]
    fn a_merge_reaches_the_leaf_beyond_its_neighbour() {
        assert_eq!(joined(&groups(&[(4, 100)]), 4), [2, 3, 5, 6]);
    }

    #[test]
    fn leaves_that_decide_are_read_first_and_not_too_many() {
        let mut groups = groups(&[]);
        for child in 0..20u8 {
            let place = groups.get(&at(child)).unwrap().place.clone();
            groups.place(at(child), place, 100, 50);
        }
        groups.measure(&at(4), 500);
        let mut read = Vec::new();
        while let Some(key) = groups.unreadable_near(&at(4), read.len()) {
            read.push(key.1[0]);
            groups.measure(&key, 500);
        }
        assert_eq!(read, [2, 3, 5, 6], "what is near a leaf that stays");
        groups.measure(&at(14), 990);
        let count = std::iter::successors(Some(()), |()| {
            let key = groups.unreadable_near(&at(14), 0)?;
            groups.measure(&key, 500);
            Some(())
        });
        assert_eq!(count.count() - 1, 9, "all below the node of a leaf that splits");
        assert_eq!(groups.unreadable_near(&at(0), READS_MAX), None);
    }

    #[test]
    fn super_groups_are_ranked_by_what_they_write_for_what_they_free() {
        let mut groups = groups(&[(5, 990)]);
        let size = 1000;
        groups.recount(&at(17), size);
        let ranked = groups.super_groups(usize::MAX);
        assert_eq!(ranked[0], at(17), "a page for 1000 bytes");
        assert_eq!(ranked.last(), Some(&at(4)), "four pages for 300 bytes: leaves 4 to 6 together");
        assert_eq!(ranked.len(), 18, "each group once: {ranked:?}");
        assert_eq!(groups.super_groups(2), ranked[..2]);
        assert_eq!(groups.unread(), None);
        groups.place(at(3), groups.get(&at(3)).unwrap().place.clone(), 100, 50);
        assert_eq!(groups.unread(), Some(at(3)), "whoever comes anew has to be read");
    }
}
