//! Atomic groups: several pages become valid together.
//!
//! Owns the moves from open group to mapping. Never decides whether a group is committed: that is for the
//! holder of the record or the flags.
//!
//! The order of a commit: pages of the group durable, then the record that names it, then
//! [`Space::commit_group`] (rule D1).

use alloc::vec::Vec;

use flagstone_nand::Nand;

use crate::error::SpaceError;
use crate::groups::{GroupPage, GroupSpan, Rank};
use crate::meta::{PageMeta, Standing};
use crate::place::Entitlement;
use crate::space::{Space, info_of};
use crate::stats::ReadPurpose;
use crate::{GroupId, LogicalPage, PageInfo, Version, WriteTag};

impl<D: Nand> Space<D> {
    /// A group number that was never used before (rule D3).
    ///
    /// # Errors
    ///
    /// The errors of a write: the first number of a session is reserved durably.
    pub fn new_group(&mut self) -> Result<GroupId, SpaceError> {
        self.ready()?;
        Ok(self.numbers.next_group())
    }

    /// Open groups that have pages, in order.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupId> {
        self.groups.ids()
    }

    /// Writes a version of `page` that counts only once `group` is committed. A later write of the page
    /// replaces the group's earlier version.
    ///
    /// # Errors
    ///
    /// As [`Space::write`].
    pub fn write_in_group(
        &mut self,
        group: GroupId,
        page: LogicalPage,
        payload: &[u8],
        tag: &WriteTag,
    ) -> Result<PageInfo, SpaceError> {
        self.write_grouped(group, page, payload, tag, Standing::Plain)
    }

    /// As [`Space::write_in_group`], for a group that a flag may commit where the device carries one.
    ///
    /// # Errors
    ///
    /// As [`Space::write`].
    pub fn write_claimed(
        &mut self,
        group: GroupId,
        page: LogicalPage,
        payload: &[u8],
        tag: &WriteTag,
    ) -> Result<PageInfo, SpaceError> {
        if !self.carries_flags() {
            return self.write_grouped(group, page, payload, tag, Standing::Plain);
        }
        // The flag may take one of the programs that the page can have.
        let slots_max = self.append_room().slots_max.saturating_sub(1);
        let append_slots = tag.append_slots.min(slots_max);
        let tag = WriteTag { append_slots, ..*tag };
        self.write_grouped(group, page, payload, &tag, Standing::Flagged)
    }

    fn write_grouped(
        &mut self,
        group: GroupId,
        page: LogicalPage,
        payload: &[u8],
        tag: &WriteTag,
        standing: Standing,
    ) -> Result<PageInfo, SpaceError> {
        self.ready()?;
        if group == GroupId::NONE {
            return Err(SpaceError::UnknownGroup(group));
        }
        self.check_write(page, payload, tag)?;
        let meta = PageMeta { standing, ..self.new_version(page, tag, group) };
        let at = self.place(tag.temperature.into(), Entitlement::User, meta, payload, tag.cause)?;
        let entry = GroupPage { at, version: meta.version, rank: Rank::Newest };
        if let Some(old) = self.groups.insert(group, page, entry) {
            self.blocks.drop_live(old.at);
        }
        self.flash.tally.region(tag.region).writes += 1;
        Ok(self.info_of_placed(&meta, at))
    }

    /// Reads the version of `page` that the open group holds.
    ///
    /// # Errors
    ///
    /// `NotInGroup` when the group holds none; `Corrupt`.
    pub fn read_in_group(
        &mut self,
        group: GroupId,
        page: LogicalPage,
        out: &mut Vec<u8>,
    ) -> Result<PageInfo, SpaceError> {
        let missing = SpaceError::NotInGroup(group, page);
        let entry = self.groups.get(group, page).ok_or(missing)?;
        self.read_at(entry.at, page, out).map(|meta| info_of(&meta, entry.at))
    }

    /// Pages of which the open group holds a version.
    #[must_use]
    pub fn group_pages(&self, group: GroupId) -> Vec<LogicalPage> {
        self.groups.iter().filter(|page| page.group == group).map(|page| page.page).collect()
    }

    /// Whether a page of the group, or the version of one of `pages`, may have been in flight when power
    /// went, and has not been copied since.
    #[must_use]
    pub fn is_doubtful(&self, group: Option<GroupId>, pages: &[LogicalPage]) -> bool {
        let concerned = |meta: &PageMeta| Some(meta.group) == group || pages.contains(&meta.page);
        self.suspects.iter().any(|suspect| concerned(&suspect.meta))
    }

    /// Moves the mapping to the group's pages, except where a newer version of a page is valid already (rule
    /// D6); gives the pages that moved.
    ///
    /// The caller has made the group's commit durable.
    ///
    /// # Errors
    ///
    /// `UnknownGroup` when the group has no pages.
    pub fn commit_group(&mut self, group: GroupId) -> Result<Vec<LogicalPage>, SpaceError> {
        let pages = self.groups.remove(group).ok_or(SpaceError::UnknownGroup(group))?;
        let mut moved = Vec::with_capacity(pages.len());
        for (page, entry) in pages {
            match entry.rank {
                Rank::Newest => {
                    self.map_to(page, entry.at, entry.version);
                    moved.push(page);
                }
                Rank::Overtaken => self.release_unit(entry.at),
            }
        }
        Ok(moved)
    }

    /// Looks for the pages of a committed group that a record of the caller's log names. Where such a page is
    /// gone, and the mapped version is older, damage took it: the page is lost, and does not fall back to its
    /// version before the group (U5), until a newer version is committed. Pages that a later record frees, by
    /// `is_freed`, are passed over. Restart calls this for each record before anything is written.
    ///
    /// # Errors
    ///
    /// The errors of the device.
    pub fn require_pages(
        &mut self,
        group: GroupId,
        spans: &[GroupSpan],
        is_freed: impl Fn(LogicalPage) -> bool,
    ) -> Result<(), SpaceError> {
        let end = self.map.len();
        for (page, version) in spans.iter().flat_map(|span| span.pages_below(end)) {
            let is_found = self.groups.get(group, page).is_some() || self.map.is_lost(page);
            if !is_found && !is_freed(page) && self.is_older(page, version)? {
                self.lose(page);
                self.groups.overtake(page, version);
            }
        }
        Ok(())
    }

    /// Marks a page as lost: the mapped version is not the last valid one.
    fn lose(&mut self, page: LogicalPage) {
        if let Some(old) = self.map.clear(page) {
            self.displace(old);
            self.trimmed_unsaved.insert(old);
        }
        self.map.lose(page);
        self.lost_since.insert(page);
    }

    /// Whether the mapped version of a page is older than this one, or there is none.
    fn is_older(&mut self, page: LogicalPage, version: Version) -> Result<bool, SpaceError> {
        let Some(at) = self.map.get(page) else { return Ok(true) };
        match self.read_unit_twice(at, &mut Vec::new(), ReadPurpose::Metadata) {
            Ok(found) => Ok(found.version < version),
            // The next reader of the page gets this error.
            Err(SpaceError::Corrupt { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Forgets the pages of an open group. Until the next checkpoint a mount would find the group open again,
    /// so its pages take their room until then.
    pub fn discard_group(&mut self, group: GroupId) {
        let Some(pages) = self.groups.remove(group) else { return };
        self.trimmed_unsaved.extend(pages.into_values().map(|entry| entry.at));
    }

    /// Forgets some pages of an open group, as [`Space::discard_group`] does with all of them. Until the next
    /// checkpoint a mount would find them in the group again, so the caller that commits the group names them
    /// as garbage, and writes none of them anew in this group: an older version would stand in for a new one
    /// that does not read.
    pub fn discard_pages(&mut self, group: GroupId, pages: &[LogicalPage]) {
        for page in pages {
            let Some(known) = self.groups.get(group, *page) else { continue };
            let removed = self.groups.remove_page(group, *page, known.version);
            self.trimmed_unsaved.extend(removed.map(|entry| entry.at));
        }
    }
}
