//! Open groups: page versions that count only once their group is committed.
//!
//! Owns which pages an open group has and whether a newer version overtook them. Never moves the
//! mapping: see `Space::commit_group`.
//!
//! G1. A page of an open group is live, and no mapping entry points to it. G2. A group keeps one version of a
//! page: writing the page again drops the earlier one. G3. The pages that a mount would find open now fit one
//! record: another record is written before they would not. G4. `stretch_count` is the number of entries in
//! which a record lists the pages: pages that follow each other share one.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Bound;

use crate::mapping::Mapping;
use crate::record::OpenGroupPage;
use crate::{GroupId, LogicalPage, Version};

/// Whether the mapped version of a page is newer than the group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rank {
    /// No newer version was written since.
    Newest,
    /// A newer version was written.
    Overtaken,
}

/// Version of a page in an open group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupPage {
    pub(crate) at: u32,
    pub(crate) version: Version,
    pub(crate) rank: Rank,
}

/// Versions that a group has written of consecutive pages; the versions are consecutive too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSpan {
    /// First page.
    pub page: LogicalPage,
    /// Its version.
    pub version: Version,
    /// Pages.
    pub count: u32,
}

impl GroupSpan {
    /// Each page below `end` with its version.
    pub(crate) fn pages_below(self, end: u32) -> impl Iterator<Item = (LogicalPage, Version)> {
        let pages = (self.page.0..end).take(self.count as usize).map(LogicalPage);
        pages.zip((self.version.0..=u64::MAX).map(Version))
    }

    /// Takes in the version of a page; false where the version begins another span.
    #[must_use]
    pub fn extend(&mut self, page: LogicalPage, version: Version) -> bool {
        let next =
            (self.page.0.checked_add(self.count), self.version.0.checked_add(self.count.into()));
        let is_next = next == (Some(page.0), Some(version.0));
        self.count += u32::from(is_next);
        is_next
    }
}

type Pages = BTreeMap<LogicalPage, GroupPage>;

/// All open groups.
#[derive(Clone, Debug)]
pub(crate) struct Groups {
    groups: BTreeMap<GroupId, Pages>,
    page_count: usize,
    /// Entries of a record that list them (G4).
    stretch_count: usize,
    /// Physical pages of a unit.
    parts: u8,
    /// Entries for groups that were closed since the last record: a mount finds these groups open again (G3).
    closed_count: usize,
}

impl Groups {
    pub(crate) const fn new(parts: u8) -> Self {
        Self { groups: BTreeMap::new(), page_count: 0, stretch_count: 0, parts, closed_count: 0 }
    }

    /// Changes a group's pages near `page`, and counts the entries around it anew (G4).
    fn change<T>(
        &mut self,
        group: GroupId,
        page: LogicalPage,
        act: impl FnOnce(&mut Pages) -> T,
    ) -> T {
        let parts = self.parts;
        let pages = self.groups.entry(group).or_default();
        let before = stretches_around(group, pages, page, parts);
        let result = act(pages);
        let after = stretches_around(group, pages, page, parts);
        self.stretch_count = self.stretch_count + after - before;
        if pages.is_empty() {
            self.groups.remove(&group);
        }
        result
    }

    pub(crate) fn ids(&self) -> Vec<GroupId> {
        self.groups.keys().copied().collect()
    }

    pub(crate) fn is_open(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
    }

    /// Takes out the group's page, if it is that version.
    pub(crate) fn remove_page(
        &mut self,
        group: GroupId,
        page: LogicalPage,
        version: Version,
    ) -> Option<GroupPage> {
        let entry = self.get(group, page).filter(|entry| entry.version == version)?;
        self.change(group, page, |pages| pages.remove(&page));
        self.page_count -= 1;
        self.closed_count += 1;
        Some(entry)
    }

    pub(crate) fn get(&self, group: GroupId, page: LogicalPage) -> Option<GroupPage> {
        self.groups.get(&group)?.get(&page).copied()
    }

    /// Decides every page's rank anew.
    pub(crate) fn rank(&mut self, decide: impl Fn(LogicalPage, &GroupPage) -> Rank) {
        for (page, entry) in self.groups.values_mut().flatten() {
            entry.rank = decide(*page, entry);
        }
        let counts = self.groups.iter().map(|(group, pages)| stretches(*group, pages, self.parts));
        self.stretch_count = counts.sum();
    }

    /// The group's version of `page` was copied to `to`.
    pub(crate) fn relocate(&mut self, group: GroupId, page: LogicalPage, to: u32) {
        if self.get(group, page).is_some() {
            self.change(group, page, |pages| {
                pages.entry(page).and_modify(|entry| entry.at = to);
            });
        }
    }

    /// Adds or replaces a page (G2); gives the version that it replaces.
    pub(crate) fn insert(
        &mut self,
        group: GroupId,
        page: LogicalPage,
        entry: GroupPage,
    ) -> Option<GroupPage> {
        let old = self.change(group, page, |pages| pages.insert(page, entry));
        self.page_count += usize::from(old.is_none());
        old
    }

    /// Takes the group out with all its pages.
    pub(crate) fn remove(&mut self, group: GroupId) -> Option<Pages> {
        let pages = self.groups.remove(&group)?;
        let listed = stretches(group, &pages, self.parts);
        self.page_count -= pages.len();
        self.stretch_count -= listed;
        self.closed_count += listed;
        Some(pages)
    }

    /// Entries that the first record after a mount may need, and the part of them that goes once another
    /// record is written.
    pub(crate) const fn listed(&self) -> (usize, usize) {
        (self.stretch_count + self.closed_count, self.closed_count)
    }

    /// Entries that a record has now, at most.
    pub(crate) const fn listed_open(&self) -> usize {
        self.stretch_count
    }

    /// A record is written that lists the open groups alone.
    pub(crate) const fn recorded(&mut self) {
        self.closed_count = 0;
    }

    /// `version` of `page` is valid: older versions in open groups are overtaken.
    pub(crate) fn overtake(&mut self, page: LogicalPage, version: Version) {
        if self.page_count == 0 {
            return;
        }
        let is_older = |pages: &Pages| {
            let entry = pages.get(&page);
            entry.is_some_and(|it| it.version < version && it.rank == Rank::Newest)
        };
        let older = self.groups.iter().filter(|(_, pages)| is_older(pages));
        for group in older.map(|(group, _)| *group).collect::<Vec<_>>() {
            self.change(group, page, |pages| {
                pages.entry(page).and_modify(|entry| entry.rank = Rank::Overtaken);
            });
        }
    }

    /// Whether an open group has a version of `page`.
    pub(crate) fn has_page(&self, page: LogicalPage) -> bool {
        let is_in = |pages: &BTreeMap<_, _>| pages.contains_key(&page);
        self.page_count > 0 && self.groups.values().any(is_in)
    }

    /// An open group that has a version of a page that is mapped or lost.
    pub(crate) fn on_known(&self, map: &Mapping) -> Option<GroupId> {
        let is_known = |it: &OpenGroupPage| map.get(it.page).is_some() || map.is_lost(it.page);
        self.iter().find(is_known).map(|it| it.group)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = OpenGroupPage> + '_ {
        self.groups.iter().flat_map(|(group, pages)| listed(*group, pages.iter()))
    }

    /// Whether the counts fit the pages (G4).
    #[cfg(test)]
    pub(crate) fn is_counted(&self) -> bool {
        let of_group = |(group, pages): (&GroupId, &Pages)| stretches(*group, pages, self.parts);
        self.stretch_count == self.groups.iter().map(of_group).sum::<usize>()
            && self.page_count == self.groups.values().map(BTreeMap::len).sum::<usize>()
    }
}

/// Pages of a group as a record lists them.
fn listed<'a>(
    group: GroupId,
    pages: impl Iterator<Item = (&'a LogicalPage, &'a GroupPage)>,
) -> impl Iterator<Item = OpenGroupPage> {
    pages.map(move |(page, entry)| OpenGroupPage {
        group,
        page: *page,
        at: entry.at,
        version: entry.version,
        rank: entry.rank,
    })
}

/// Entries that list pages in this order.
fn count_stretches(pages: impl Iterator<Item = OpenGroupPage>, parts: u8) -> usize {
    let mut before: Option<OpenGroupPage> = None;
    let mut count = 0;
    for page in pages {
        let is_next = before.is_some_and(|before| before.is_followed_by(&page, parts));
        count += usize::from(!is_next);
        before = Some(page);
    }
    count
}

/// Entries that list a group's pages (G4). A stretch beyond the limit of an entry takes another entry: such
/// stretches are few, and are left out.
fn stretches(group: GroupId, pages: &Pages, parts: u8) -> usize {
    count_stretches(listed(group, pages.iter()), parts)
}

/// The same count for `page` and its neighbours alone.
fn stretches_around(group: GroupId, pages: &Pages, page: LogicalPage, parts: u8) -> usize {
    let before = pages.range(..page).next_back().into_iter();
    let behind = pages.range((Bound::Excluded(page), Bound::Unbounded)).next();
    let around = before.chain(pages.get_key_value(&page)).chain(behind);
    count_stretches(listed(group, around), parts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Act {
        Insert(u64, u32, u32, u64),
        RemovePage(u64, u32),
        Remove(u64),
        Relocate(u64, u32, u32),
        Overtake(u32, u64),
        Rank(u64),
    }

    /// Few numbers, so that pages often follow each other.
    fn act() -> impl Strategy<Value = Act> {
        let (group, page, at, version) = (1_u64..3, 0_u32..8, 0_u32..4, 0_u64..4);
        prop_oneof![
            8 => (group.clone(), page.clone(), at.clone(), version.clone())
                .prop_map(|(group, page, at, version)| Act::Insert(group, page, at, version)),
            2 => (group.clone(), page.clone()).prop_map(|(group, page)| Act::RemovePage(group, page)),
            1 => group.clone().prop_map(Act::Remove),
            2 => (group, page.clone(), at)
                .prop_map(|(group, page, at)| Act::Relocate(group, page, at)),
            2 => (page, version.clone()).prop_map(|(page, version)| Act::Overtake(page, version)),
            1 => version.prop_map(Act::Rank),
        ]
    }

    proptest! {
        /// Goal (G4): the count fits the pages after every change. Method: places and versions are the page
        /// number plus a little, in units of two pages.
        #[test]
        fn entries_are_counted(acts in prop::collection::vec(act(), 0..60)) {
            let mut groups = Groups::new(2);
            for act in acts {
                match act.clone() {
                    Act::Insert(group, page, at, version) => {
                        let (at, version) = (2 * (page + at), Version(u64::from(page) + version));
                        let entry = GroupPage { at, version, rank: Rank::Newest };
                        groups.insert(GroupId(group), LogicalPage(page), entry);
                    }
                    Act::RemovePage(group, page) => {
                        let (group, page) = (GroupId(group), LogicalPage(page));
                        if let Some(entry) = groups.get(group, page) {
                            groups.remove_page(group, page, entry.version);
                        }
                    }
                    Act::Remove(group) => drop(groups.remove(GroupId(group))),
                    Act::Relocate(group, page, to) => {
                        groups.relocate(GroupId(group), LogicalPage(page), 2 * (page + to));
                    }
                    Act::Overtake(page, version) => {
                        groups.overtake(LogicalPage(page), Version(u64::from(page) + version));
                    }
                    Act::Rank(least) => groups.rank(|page, entry| {
                        let is_newest = entry.version.0 >= u64::from(page.0) + least;
                        if is_newest { Rank::Newest } else { Rank::Overtaken }
                    }),
                }
                prop_assert!(groups.is_counted(), "{act:?}");
            }
        }
    }
}
