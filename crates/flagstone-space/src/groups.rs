//! Open groups: page versions that count only once their group is committed.
//!
//! Owns which pages an open group has and whether a newer version overtook them. Never moves the
//! mapping: see `Space::commit_group`.
//!
//! G1. A page of an open group is live, and no mapping entry points to it.
//! G2. A group keeps one version of a page: writing the page again drops the earlier one.
//! G3. What a mount would find open now fits a record: another one comes before it does not.
//! G4. An append of an open group stands on a unit that the mapping points to, in slots that it does not
//!     count. Only memory knows of it: a mount has it from the record that commits the group.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

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

/// An append that counts only once its group is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupAppend {
    /// Page that it changes.
    pub page: LogicalPage,
    /// First physical page of the unit that it stands on.
    pub at: u32,
    /// Sequence of the unit's block: another life of the block holds another unit.
    pub sequence: u32,
    /// Slots of the unit that count once the group is committed.
    pub count: u8,
    /// Version that the append becomes if its unit has to move before: younger than the unit's, older than
    /// those that were written since.
    pub version: Version,
    /// Version of the unit: whatever is older is not what was valid last. 0 where that is not known.
    pub onto: Version,
}

/// All open groups.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups {
    groups: BTreeMap<GroupId, BTreeMap<LogicalPage, GroupPage>>,
    page_count: usize,
    /// Appends of open groups, of each page in their order (G4): more than one after a mount alone.
    appends: BTreeMap<LogicalPage, Vec<(GroupId, GroupAppend)>>,
    append_count: usize,
    /// Pages of groups that were closed since the last record: a mount finds those open again (G3).
    closed_count: usize,
}

impl Groups {
    pub(crate) fn ids(&self) -> Vec<GroupId> {
        let appended = self.appends.values().flatten().map(|(group, _)| group);
        let ids: BTreeSet<_> = self.groups.keys().chain(appended).copied().collect();
        ids.into_iter().collect()
    }

    pub(crate) fn is_open(&self, group: GroupId) -> bool {
        let mut appended = self.appends.values().flatten();
        self.groups.contains_key(&group) || appended.any(|(other, _)| *other == group)
    }

    pub(crate) fn add_append(&mut self, group: GroupId, append: GroupAppend) {
        let list = self.appends.entry(append.page).or_default();
        list.push((group, append));
        list.sort_by_key(|(_, append)| append.count);
        self.append_count += 1;
    }

    /// Appends of open groups to the unit at `at`, which holds `page`, in their order.
    pub(crate) fn appends_to(&self, page: LogicalPage, at: u32) -> Vec<(GroupId, GroupAppend)> {
        let all = self.appends.get(&page).into_iter().flatten();
        all.filter(|(_, append)| append.at == at).copied().collect()
    }

    /// Takes out the group's append to `page`.
    pub(crate) fn remove_append(
        &mut self,
        group: GroupId,
        page: LogicalPage,
    ) -> Option<GroupAppend> {
        let list = self.appends.get_mut(&page)?;
        let index = list.iter().position(|(other, _)| *other == group)?;
        let (_, append) = list.remove(index);
        if list.is_empty() {
            self.appends.remove(&page);
        }
        self.append_count -= 1;
        Some(append)
    }

    /// Takes out the group's page, if it is that version.
    pub(crate) fn remove_page(
        &mut self,
        group: GroupId,
        page: LogicalPage,
        version: Version,
    ) -> Option<GroupPage> {
        let pages = self.groups.get_mut(&group)?;
        let entry = *pages.get(&page).filter(|entry| entry.version == version)?;
        pages.remove(&page);
        if pages.is_empty() {
            self.groups.remove(&group);
        }
        self.page_count -= 1;
        self.closed_count += 1;
        Some(entry)
    }

    /// Takes out all appends of the group.
    pub(crate) fn remove_appends(&mut self, group: GroupId) -> Vec<GroupAppend> {
        let is_own = |list: &Vec<(GroupId, _)>| list.iter().any(|(other, _)| *other == group);
        let pages = self.appends.iter().filter(|(_, list)| is_own(list));
        let pages: Vec<_> = pages.map(|(page, _)| *page).collect();
        let own: Vec<_> =
            pages.into_iter().filter_map(|page| self.remove_append(group, page)).collect();
        self.closed_count += own.len();
        own
    }

    /// Appends of open groups.
    pub(crate) const fn append_count(&self) -> usize {
        self.append_count
    }

    pub(crate) fn get(&self, group: GroupId, page: LogicalPage) -> Option<GroupPage> {
        self.groups.get(&group)?.get(&page).copied()
    }

    /// Decides every page's rank anew.
    pub(crate) fn rank(&mut self, decide: impl Fn(LogicalPage, &GroupPage) -> Rank) {
        for (page, entry) in self.groups.values_mut().flatten() {
            entry.rank = decide(*page, entry);
        }
    }

    /// The group's version of `page` was copied to `to`.
    pub(crate) fn relocate(&mut self, group: GroupId, page: LogicalPage, to: u32) {
        let pages = self.groups.get_mut(&group);
        if let Some(entry) = pages.and_then(|pages| pages.get_mut(&page)) {
            entry.at = to;
        }
    }

    /// Adds or replaces a page (G2); the version it replaces.
    pub(crate) fn insert(
        &mut self,
        group: GroupId,
        page: LogicalPage,
        entry: GroupPage,
    ) -> Option<GroupPage> {
        let old = self.groups.entry(group).or_default().insert(page, entry);
        self.page_count += usize::from(old.is_none());
        old
    }

    /// Takes the group out with all its pages.
    pub(crate) fn remove(&mut self, group: GroupId) -> Option<BTreeMap<LogicalPage, GroupPage>> {
        let pages = self.groups.remove(&group)?;
        self.page_count -= pages.len();
        self.closed_count += pages.len();
        Some(pages)
    }

    /// Pages that the first record after a mount may have to list, and those of them that no record lists
    /// once another one is written.
    pub(crate) const fn listed(&self) -> (usize, usize) {
        // What is appended becomes a page where its unit has to move.
        (self.page_count + self.append_count + self.closed_count, self.closed_count)
    }

    /// A record stands that lists the open groups alone.
    pub(crate) const fn recorded(&mut self) {
        self.closed_count = 0;
    }

    /// `version` of `page` is valid: older versions in open groups are overtaken.
    pub(crate) fn overtake(&mut self, page: LogicalPage, version: Version) {
        if self.page_count == 0 {
            return;
        }
        for pages in self.groups.values_mut() {
            if let Some(entry) = pages.get_mut(&page).filter(|entry| entry.version < version) {
                entry.rank = Rank::Overtaken;
            }
        }
    }

    /// Whether an open group has a version of `page`.
    pub(crate) fn has_page(&self, page: LogicalPage) -> bool {
        let is_in = |pages: &BTreeMap<_, _>| pages.contains_key(&page);
        self.page_count > 0 && self.groups.values().any(is_in) || self.appends.contains_key(&page)
    }

    /// An open group that has a version of a page that is mapped or lost, or an append to one.
    pub(crate) fn on_known(&self, map: &Mapping) -> Option<GroupId> {
        let appended = self.appends.values().flatten().map(|(group, _)| *group).next();
        let is_known = |it: &OpenGroupPage| map.get(it.page).is_some() || map.is_lost(it.page);
        appended.or_else(|| self.iter().find(is_known).map(|it| it.group))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = OpenGroupPage> + '_ {
        self.groups.iter().flat_map(|(group, pages)| {
            pages.iter().map(|(page, entry)| OpenGroupPage {
                group: *group,
                page: *page,
                at: entry.at,
                version: entry.version,
                rank: entry.rank,
            })
        })
    }
}
