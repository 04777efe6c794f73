//! News of groups for an order of units, and answers for the write-minimised commit of Lazy-Split LRU.
//!
//! Owns the way from a leaf to its group, the news that were not told yet, and the groups whose changes
//! have reached the limit for one leaf. News are taken after every change, so that few wait.

use flagstone_space::LogicalPage;

use super::{DeltaGroups, Group, GroupKey, Rank};
use crate::policies::WriteCount;
use crate::policies::units::Changes;

/// The new changes of a group, by its leaf; none when they were used.
pub(in crate::policies) type News = (LogicalPage, Option<Changes>);

/// Used part of a leaf of unknown content, in percent: splits at random leave ln 2 (Yao 1978).
const USED_PERCENT: usize = 69;

impl DeltaGroups {
    /// Whether an order of units is told of every group.
    pub(in crate::policies) fn tells(&self) -> bool {
        self.by_page.is_some()
    }

    /// News of groups since the last call.
    pub(in crate::policies) fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// The group of a leaf.
    pub(in crate::policies) fn group_at(&self, page: LogicalPage) -> Option<&GroupKey> {
        self.by_page.as_ref()?.get(&page)
    }

    /// Whether `key` lies in a group.
    pub(in crate::policies) fn has_group(&self, tree: u32, key: &[u8]) -> bool {
        self.group_of(tree, key).is_some()
    }

    /// Sets the bytes that the changes of a group would take in a leaf.
    pub(in crate::policies) fn set_gross(&mut self, at: &GroupKey, gross: usize) {
        self.change(at, |group| group.gross = gross);
        self.note_full(at);
    }

    /// The next group that has come to its limit; each group is named once.
    pub(in crate::policies) fn take_full(&mut self) -> Option<GroupKey> {
        self.full.pop_first()
    }

    /// Whether a group has come to its limit.
    pub(in crate::policies) fn has_full(&self) -> bool {
        !self.full.is_empty()
    }

    pub(super) fn note_full(&mut self, at: &GroupKey) {
        let gross = self.groups.get(at).map_or(0, |group| group.gross);
        if self.gross_max > 0 && gross > self.gross_max {
            self.full.insert(at.clone());
        }
    }

    /// Groups by the pages that they write, from `writes` on, with both; among groups with equal
    /// writes, the group that frees most first.
    pub(in crate::policies) fn by_writes(
        &self,
        writes: u64,
    ) -> impl Iterator<Item = (&GroupKey, &Group, u64)> {
        let first: (Rank, GroupKey) = ((writes, 0), (0, Vec::new()));
        let known = self.order.range(first..);
        known.filter_map(|((writes, _), at)| Some((at, self.groups.get(at)?, *writes)))
    }

    /// Pages that a merge of the group writes.
    pub(super) fn writes(&self, group: &Group) -> u64 {
        let page = self.payload_size.max(1);
        let used = group.used.unwrap_or(page * USED_PERCENT / 100);
        let pages = match self.count_writes {
            WriteCount::Paper => (used + group.gross) / page + 2,
            WriteCount::Exact => {
                let grown = used.saturating_add_signed(group.growth as isize);
                if grown <= page { 1 } else { grown.div_ceil(page) + 1 }
            }
        };
        pages as u64
    }

    pub(super) fn tell(&mut self, at: &GroupKey, group: &Group) {
        let changes = Changes { size: group.size, writes: self.writes(group) };
        if let Some(by_page) = &mut self.by_page {
            by_page.insert(group.place.page, at.clone());
            self.add_news(group.place.page, changes);
        }
    }

    pub(super) fn tell_gone(&mut self, page: LogicalPage) {
        if let Some(by_page) = &mut self.by_page {
            by_page.remove(&page);
            self.add_news(page, Changes::default());
        }
    }

    /// A group that is forgotten and placed again counts as if it had stayed.
    fn add_news(&mut self, page: LogicalPage, changes: Changes) {
        match self.news.last_mut() {
            Some((last, known @ Some(_))) if *last == page => *known = Some(changes),
            _ => self.news.push((page, Some(changes))),
        }
    }

    /// A query met the leaf of `key`.
    pub(in crate::policies) fn note_used(&mut self, tree: u32, key: &[u8]) {
        if self.tells()
            && let Some(at) = self.group_of(tree, key)
            && let Some(page) = self.groups.get(&at).map(|group| group.place.page)
        {
            self.tell_used(page);
        }
    }

    pub(super) fn tell_used(&mut self, page: LogicalPage) {
        if self.tells() {
            self.news.push((page, None));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Place;
    use super::*;
    use crate::policies::{PolicyOptions, VictimRule};

    const PAYLOAD: usize = 1000;

    fn groups(count_writes: WriteCount) -> DeltaGroups {
        let (victim, unit_pages) = (VictimRule::Cover, 2.0);
        let options =
            PolicyOptions { victim, count_writes, unit_pages, ..PolicyOptions::default() };
        let groups = DeltaGroups::new(&options, PAYLOAD);
        (0..4).fold(groups, |mut groups, leaf: u8| {
            let place = Place {
                high: Some(vec![leaf + 1]),
                page: LogicalPage(u32::from(leaf)),
                parent: LogicalPage(99),
                child: usize::from(leaf),
            };
            groups.place((3, vec![leaf]), place, 100 + usize::from(leaf), 0);
            groups
        })
    }

    fn writes(groups: &DeltaGroups) -> Vec<(u8, u64)> {
        groups.by_writes(0).map(|(at, _, writes)| (at.1[0], writes)).collect()
    }

    #[test]
    fn a_leaf_that_fits_is_one_write_and_a_split_takes_its_parent_along() {
        let mut exact = groups(WriteCount::Exact);
        assert_eq!(writes(&exact), [(3, 1), (2, 1), (1, 1), (0, 1)], "the largest first");
        exact.measure(&(3, vec![3]), 900);
        exact.note(3, &[3], 100, 100);
        assert_eq!(writes(&exact)[0], (3, 1), "full to the last byte");
        exact.note(3, &[3], 1, 1);
        assert_eq!(writes(&exact)[3], (3, 3), "two leaves and their parent");
        exact.note(3, &[3], 10, -10);
        assert_eq!(writes(&exact)[0], (3, 1), "deletes make room");
    }

    #[test]
    fn the_formula_of_the_paper_counts_every_change_as_growth() {
        let mut paper = groups(WriteCount::Paper);
        paper.measure(&(3, vec![3]), 900);
        paper.note(3, &[3], 50, -50);
        assert_eq!(writes(&paper)[0], (3, 2), "one more than needed");
        paper.note(3, &[3], 50, -50);
        assert_eq!(writes(&paper)[3], (3, 3));
    }

    #[test]
    fn a_leaf_is_full_at_its_limit_and_named_once() {
        let mut groups = groups(WriteCount::Exact);
        groups.note(3, &[1], 2 * PAYLOAD, 0);
        assert!(!groups.has_full());
        groups.note(3, &[1], 1, 0);
        assert_eq!(groups.take_full(), Some((3, vec![1])));
        assert_eq!(groups.take_full(), None);
        groups.note(3, &[1], 1, 0);
        groups.forget(3, flagstone_engine::policy::KeyRange::ALL);
        assert!(!groups.has_full(), "what is gone is not full");
    }

    #[test]
    fn news_say_what_became_of_a_group_last() {
        let mut groups = groups(WriteCount::Exact);
        assert_eq!(groups.take_news().len(), 4);
        groups.note(3, &[1], 10, 0);
        let changes = |size| Some(Changes { size, writes: 1 });
        assert_eq!(groups.take_news(), [(LogicalPage(1), changes(111)), (LogicalPage(1), None)]);
        let place = groups.get(&(3, vec![1])).unwrap().place.clone();
        groups.place((3, vec![1]), place, 50, 0);
        assert_eq!(groups.take_news(), [(LogicalPage(1), changes(50))], "it has not been away");
        assert_eq!(groups.group_at(LogicalPage(1)), Some(&(3, vec![1])));
    }
}
