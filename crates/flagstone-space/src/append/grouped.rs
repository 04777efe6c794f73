//! Appends that become valid together: members of an open group which take no page of their own.
//!
//! Owns where they stand until the group is committed or given up, and what becomes of them when their
//! unit moves. Never says that a group is committed: a record of the caller's log does, and names them.
//!
//! ```text
//!                       append_in_group
//!  slots erased ─────────────────────────▶ in slots that the mapping does not count
//!                                            │ commit_group      │ discard_group     │ unit moves
//!                                            ▼                   ▼                   ▼
//!                                          counted             append_blocked: the unit    a page of the group,
//!                                                              takes no others     elsewhere
//! ```
//!
//! X1. The mapping counts an append of a group when the group is committed and not before, so that every
//!     checkpoint shows all of the group or nothing (rule D6).
//! X2. A record names an append by unit, its version, and life of its block. One that stands elsewhere by now
//!     needs no name: a copy has it folded in, or a page of the group took its place, which a mount finds.
//! X3. Where the unit moves first, the group's page is durable before the unit's copy is programmed: a
//!     mount that finds the copy finds the page. It has the version that the append was given, and ranks
//!     among others as if it had been written then.
//! X4. Each append may become a page by X3: room for one is kept (rule D7).
//! X5. What was appended to was complete: a unit that a mount finds with a named append was not in flight
//!     when power went.
//! X6. A copy of a unit takes no append of a group: where damage takes the copy, a mount finds the original,
//!     and the record does not look for the append there.
//! X7. Where a mount maps what is older than the append, or nothing, damage took the unit with the append, or the page
//!     that the append became: the page is lost, not what it was before the group (U5), until a page that is newer is
//!     committed. A copy of the unit tells by its group whether it has the append: groups that append to a unit are
//!     younger than the one that wrote it, and follow each other.

use alloc::vec::Vec;

use flagstone_nand::Nand;

use super::Change;
use crate::error::SpaceError;
use crate::frontier::Stream;
use crate::groups::{GroupAppend, GroupPage, Rank};
use crate::meta::{Origin, PageKind, PageMeta, Standing};
use crate::place::Claim;
use crate::record::OpenGroupPage;
use crate::runs::ChangeForm;
use crate::space::Space;
use crate::stats::ReadPurpose;
use crate::{APPEND_SLOTS_MAX, Cause, GroupId, LogicalPage, Lsn, PageInfo, SpaceBug};

impl<D: Nand> Space<D> {
    /// Appends to a page as [`Space::append`] does; it counts only once `group` is committed. None when the
    /// page takes no append. After [`Space::ensure_room`], as for a page.
    ///
    /// Nothing of it is found by a mount: the record that commits the group has to name it, for
    /// [`Space::find_appends`].
    ///
    /// # Errors
    ///
    /// `UnknownGroup` without one; those of the device.
    pub fn append_in_group(
        &mut self,
        group: GroupId,
        page: LogicalPage,
        expected: &PageInfo,
        lsn: Lsn,
        form: ChangeForm,
        records: &[Vec<u8>],
    ) -> Result<Option<GroupAppend>, SpaceError> {
        if group == GroupId::NONE {
            return Err(SpaceError::UnknownGroup(group));
        }
        let change = Change { page, lsn, form, records };
        // A copy is known to have the append folded in by the group that it names (X7).
        let is_younger = expected.group > group;
        if is_younger
            || self.copies.get(expected.at)
            || !self.append_to(expected, group, &change)?
        {
            return Ok(None);
        }
        let count = expected.appends + records.len() as u8;
        let &PageInfo { at, sequence, version: onto, .. } = expected;
        let append = GroupAppend { page, at, sequence, count, version: self.next_version(), onto };
        self.groups.add_append(group, append);
        if self.flash.bugs.has(SpaceBug::OpenAppendsCount) {
            self.map.append(page, records.len() as u8);
        }
        Ok(Some(append))
    }

    /// Finds the appends of a group that a record of the caller's log names: they count with
    /// [`Space::commit_group`]. Restart hands them in before anything is written, or a collection would
    /// move their pages without them. Those that stand elsewhere by now are passed over (X2); where one is gone
    /// so is its page (X7), but for those that `is_freed` says a later record frees.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn find_appends(
        &mut self,
        group: GroupId,
        appends: &[GroupAppend],
        is_freed: impl Fn(LogicalPage) -> bool,
    ) -> Result<(), SpaceError> {
        for append in appends {
            if !self.may_count(append) && !self.may_come_to_count(append) {
                if !is_freed(append.page) && self.is_gone(group, append)? {
                    self.lose(append.page);
                    // What a group wrote before the unit is no more valid than what was mapped.
                    self.groups.overtake(append.page, append.onto);
                }
                continue;
            }
            // The unit is still there: of the pages that its appends were to become when power went (X3)
            // some may be missing.
            if let Some(moved) = self.groups.remove_page(group, append.page, append.version) {
                self.trimmed_unsaved.insert(moved.at);
            }
            if self.groups.get(group, append.page).is_none() {
                self.groups.add_append(group, *append);
                self.clear_suspicion(append.at);
            }
        }
        Ok(())
    }

    /// Whether what is mapped is older than the append, or nothing is (X7). A copy of the unit has its version: one that
    /// was made after the group was committed has the append, and names the group, or that of a later one. The group may
    /// have the page that the append became, and another one that is newer: if it is committed, it takes the place of
    /// what is lost.
    fn is_gone(&mut self, group: GroupId, append: &GroupAppend) -> Result<bool, SpaceError> {
        let has_become = |it: GroupPage| it.version == append.version;
        if self.groups.get(group, append.page).is_some_and(has_become) {
            return Ok(false);
        }
        let at = match self.map.get(append.page) {
            Some(at) if at == append.at => return Ok(false),
            Some(at) => at,
            None => return Ok(append.page.0 < self.map.len()),
        };
        let mut image = Vec::new();
        match self.read_unit_twice(at, &mut image, ReadPurpose::Metadata) {
            Ok(found) => {
                let is_copy_before = found.origin == Origin::Copy && found.group < group;
                Ok(found.version < append.onto || found.version == append.onto && is_copy_before)
            }
            // Whoever reads it learns of it.
            Err(SpaceError::Corrupt { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What is mapped is not what was valid last.
    pub(crate) fn lose(&mut self, page: LogicalPage) {
        if let Some(old) = self.map.clear(page) {
            self.displace(old);
            self.trimmed_unsaved.insert(old);
        }
        self.map.lose(page);
        self.lost_since.insert(page);
    }

    /// Whether the append stands on the unit that is mapped, in slots that are not counted.
    fn may_count(&self, append: &GroupAppend) -> bool {
        let have = self.map.appends(append.page);
        self.map.get(append.page) == Some(append.at)
            && self.is_of_this_life(append)
            && (have + 1..=APPEND_SLOTS_MAX).contains(&append.count)
    }

    /// Whether it stands on a page of an open group: one that was committed shortly before.
    fn may_come_to_count(&self, append: &GroupAppend) -> bool {
        let is_here = |it: OpenGroupPage| {
            (it.page, it.at) == (append.page, append.at) && it.rank == Rank::Newest
        };
        self.groups.iter().any(is_here)
            && self.is_of_this_life(append)
            && (1..=APPEND_SLOTS_MAX).contains(&append.count)
    }

    fn is_of_this_life(&self, append: &GroupAppend) -> bool {
        self.blocks.get(self.blocks.block_of(append.at)).sequence == append.sequence
    }

    /// Whether the mapping counts the append now and did not before.
    pub(crate) fn count_append(&mut self, append: &GroupAppend) -> bool {
        if !self.may_count(append) {
            return false;
        }
        let have = self.map.appends(append.page);
        self.map.append(append.page, append.count - have);
        self.pins.part(append.at);
        true
    }

    /// The unit was complete before something was appended to it (X5): it is read where it stands, and what
    /// was kept for the case that it is not may go.
    fn clear_suspicion(&mut self, at: u32) {
        if let Some(index) = self.suspects.iter().position(|suspect| suspect.at == at) {
            let suspect = self.suspects.swap_remove(index);
            suspect.fallbacks.into_iter().for_each(|pin| self.unpin(pin));
        }
    }

    /// An append of a group on the unit never counts.
    pub(crate) fn block_appends(&mut self, at: u32) {
        let sequence = self.blocks.get(self.blocks.block_of(at)).sequence;
        let blocks = &self.blocks;
        self.append_blocked
            .retain(|at, sequence| blocks.get(blocks.block_of(*at)).sequence == *sequence);
        self.append_blocked.insert(at, sequence);
    }

    /// Whether an append on the unit never counts.
    pub(super) fn is_append_blocked(&self, at: u32) -> bool {
        let sequence = self.blocks.get(self.blocks.block_of(at)).sequence;
        self.append_blocked.get(&at) == Some(&sequence)
    }

    /// The unit at `at` is about to move: an append of an open group on it becomes a page of the group (X3).
    /// Either all of them do or, where one does not read, none: the later one counts on top of the earlier.
    pub(crate) fn move_append_out(
        &mut self,
        at: u32,
        meta: &PageMeta,
        cause: Cause,
    ) -> Result<(), SpaceError> {
        let appends = match meta.kind {
            PageKind::Data => self.groups.appends_to(meta.page, at),
            _ => return Ok(()),
        };
        if appends.is_empty() || self.flash.bugs.has(SpaceBug::OpenAppendsLeft) {
            return Ok(());
        }
        let mut images = Vec::with_capacity(appends.len());
        for (_, append) in &appends {
            let (mut image, count) = (Vec::new(), Some(append.count));
            let whole = self.read_unit_with(at, &mut image, count, ReadPurpose::Relocation)?;
            images.push((whole, image));
        }
        self.block_appends(at);
        let mut placed = Vec::with_capacity(appends.len());
        for (&(group, append), (whole, image)) in appends.iter().zip(images) {
            let (standing, origin, version) = (Standing::Plain, Origin::Original, append.version);
            let copy = PageMeta { standing, origin, group, version, ..whole };
            match self.place(Stream::Cold, Claim::Reserve, copy, &image, cause) {
                Ok(to) => placed.push(to),
                Err(error) => {
                    placed.into_iter().for_each(|to| self.blocks.drop_live(to));
                    return Err(error);
                }
            }
        }
        for ((group, append), to) in appends.into_iter().zip(placed) {
            self.copies.put(to, true);
            self.groups.remove_append(group, meta.page);
            let entry = GroupPage { at: to, version: append.version, rank: Rank::Newest };
            self.groups.insert(group, meta.page, entry);
            self.flash.tally.region(meta.region).moves += 1;
        }
        self.settle_pairs()?;
        self.flash.fence().map_err(|error| self.fail(error))
    }

    /// The unit at `at` is about to move: versions of it with fewer appends, which pins hold, go their own
    /// way.
    pub(crate) fn move_pinned_out(
        &mut self,
        at: u32,
        meta: &PageMeta,
        cause: Cause,
    ) -> Result<(), SpaceError> {
        while let Some(count) = self.pins.parted(at) {
            let mut image = Vec::new();
            let old = self.read_unit_with(at, &mut image, Some(count), ReadPurpose::Relocation)?;
            let (standing, origin) = (Standing::History, Origin::Copy);
            let copy = PageMeta { standing, origin, ..old };
            let to = self.place(Stream::Cold, Claim::Reserve, copy, &image, cause)?;
            self.flash.tally.region(meta.region).moves += 1;
            self.pins.relocate_version(at, count, to);
        }
        Ok(())
    }
}
