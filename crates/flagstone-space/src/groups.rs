//! Open groups: page versions that count only once their group is committed.
//!
//! Owns which pages an open group has and whether a newer version overtook them. Never moves the
//! mapping: see `Space::commit_group`.
//!
//! G1. A page of an open group is live, and no mapping entry points to it.
//! G2. A group keeps one version of a page: writing the page again drops the earlier one.
//! G3. What a mount would find open now fits a record: another one comes before it does not.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

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

/// All open groups.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups {
    groups: BTreeMap<GroupId, BTreeMap<LogicalPage, GroupPage>>,
    page_count: usize,
    /// Pages of groups that were closed since the last record: a mount finds those open again (G3).
    closed_count: usize,
}

impl Groups {
    pub(crate) fn ids(&self) -> Vec<GroupId> {
        self.groups.keys().copied().collect()
    }

    pub(crate) fn is_open(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
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
        (self.page_count + self.closed_count, self.closed_count)
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
        self.page_count > 0 && self.groups.values().any(|pages| pages.contains_key(&page))
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
