//! Garbage collection, scrubbing, draining of failed blocks: the ways in which live units move; the moves
//! that level wear are in `level.rs`.
//!
//! Owns the choice of the block to empty, and the fate of each unit in it. Never decides which version of a
//! page is valid.
//!
//! V1. A moved unit keeps version, LSN and group (rule D6), and is marked as a copy; a newer image that the
//! owner folds in is a new version. V2. The old unit counts until the new one is programmed and the mapping
//! points to it. V3. A unit that cannot be read stays where it is: its block is left alone until the page is
//! rewritten.

use alloc::vec::Vec;

use flagstone_nand::{BlockIndex, Nand};
use thiserror::Error;

use crate::blocks::BlockState;
use crate::error::{Check, SpaceError};
use crate::flash::busy::Work;
use crate::frontier::Stream;
use crate::layout::GC_RESERVE;
use crate::meta::{Origin, PageKind, PageMeta, Standing};
use crate::options::GcPolicy;
use crate::place::Entitlement;
use crate::space::{Space, info_of};
use crate::stats::ReadPurpose;
use crate::{Cause, GroupId, LogicalPage, Lsn, PageInfo, SpaceBug, WriteTag};

/// A holder of newer content of pages in memory: relocation merges for free.
pub trait Owner {
    /// `page` is about to be moved; `image` holds its content, `info` its identity.
    ///
    /// Replaces `image` by newer, durable content and describes it; none, with `image` as it was, where there
    /// is no such content.
    fn newer_image(
        &mut self,
        page: LogicalPage,
        info: &PageInfo,
        image: &mut Vec<u8>,
    ) -> Option<NewerImage>;

    /// The newer image of `page`, complete to `lsn`, is the valid version now.
    fn moved(&mut self, page: LogicalPage, lsn: Lsn);

    /// The version of `page` stands elsewhere, unchanged but for the appends that are folded in.
    fn relocated(&mut self, page: LogicalPage, info: &PageInfo) {
        let _ = (page, info);
    }
}

/// A newer image of a page that is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewerImage {
    /// The image is complete to this LSN.
    pub lsn: Lsn,
    /// Appends that the page is to take: the image leaves room for them ([`crate::WriteTag`]).
    pub append_slots: u8,
}

/// Owner without newer content.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoOwner;

impl Owner for NoOwner {
    fn newer_image(&mut self, _: LogicalPage, _: &PageInfo, _: &mut Vec<u8>) -> Option<NewerImage> {
        None
    }

    fn moved(&mut self, _: LogicalPage, _: Lsn) {}
}

/// Why a unit is live (S2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Mapped,
    Grouped,
    /// Only a frozen mapping points to the unit.
    Frozen,
    Pinned,
    Meta,
    /// The unit was forgotten since the last record.
    Limbo,
    None,
}

impl<D: Nand> Space<D> {
    /// Collects garbage until `pages` logical pages and the log's budget can be written without
    /// collection.
    ///
    /// After a mount the reserves of log and checkpoints may be short: `ensure_room(0)` before the
    /// first log append restores them.
    ///
    /// # Errors
    ///
    /// `Full` when too many pages are live; `WornOut` when blocks that failed are the reason.
    pub fn ensure_room(&mut self, pages: u32, owner: &mut dyn Owner) -> Result<(), SpaceError> {
        self.ready()?;
        if self.is_record_crowded(pages) {
            self.checkpoint_own()?;
        }
        self.grow_for(pages)?;
        self.make_room(pages, owner)?;
        if self.level_wear(owner)? { self.make_room(pages, owner) } else { Ok(()) }
    }

    fn make_room(&mut self, pages: u32, owner: &mut dyn Owner) -> Result<(), SpaceError> {
        self.prepare_for(pages)?;
        if self.has_room(pages) {
            return Ok(());
        }
        if self.blocks.count(BlockState::Retired) > 0 {
            self.drain_retired(owner)?;
        }
        // Blocks filled during this loop are as dense as possible, or hold a mapping that the next collection
        // would write again: no block is emptied that was filled since the last gain.
        let (mut filled_since, mut free_count) = (self.numbers.sequence, self.blocks.free_count());
        let mut rounds_left = 4 * self.blocks.len() + 16;
        while !self.has_room(pages) {
            let released = self.release_trimmed(self.trimmed_enough())?;
            let gained =
                released || self.collect(owner, filled_since)? || self.release_trimmed(1)?;
            if !gained && self.blocks.free_count() > free_count {
                (filled_since, free_count) = (self.numbers.sequence, self.blocks.free_count());
            } else if !gained || rounds_left == 0 {
                if self.grow_by_step()? {
                    continue;
                }
                return Err(self.full());
            }
            rounds_left = rounds_left.saturating_sub(1);
            self.ready()?;
            self.prepare_for(pages)?;
        }
        Ok(())
    }

    /// Forgotten units for which a checkpoint is cheaper than collecting around them.
    pub(crate) fn trimmed_enough(&self) -> usize {
        2 * self.layout().units_per_block.max(self.layout().meta_pages()) as usize
    }

    /// Frees forgotten units by a checkpoint, if there are at least `enough`.
    fn release_trimmed(&mut self, enough: usize) -> Result<bool, SpaceError> {
        if self.trimmed_unsaved.len() < enough {
            return Ok(false);
        }
        self.checkpoint_own()?;
        Ok(true)
    }

    fn has_room(&self, pages: u32) -> bool {
        let reserves = self.reserved_blocks(Entitlement::User);
        self.blocks.free_count() >= reserves && self.room() >= pages
    }

    fn full(&self) -> SpaceError {
        // Room of frozen mappings can be had again by giving them up, so they do not count here.
        let worn = self.lost_blocks() > 0 && self.map.mapped_count() > self.capacity_alone();
        if worn { SpaceError::WornOut } else { SpaceError::Full }
    }

    /// Logical pages that can be written, of either temperature, without collection.
    #[must_use]
    pub fn room(&self) -> u32 {
        let left = |stream| self.frontier(stream).map_or(0, |open| open.left(self.layout()));
        let free = self.blocks.free_count().saturating_sub(self.reserved_blocks(Entitlement::User));
        free * self.layout().units_per_block + left(Stream::Hot).min(left(Stream::Cold))
    }

    /// Does one unit of background work, if there is any: moves the rest of a failed block,
    /// or rewrites a page that needs many corrections.
    ///
    /// # Errors
    ///
    /// The errors of a write.
    pub fn background(&mut self, owner: &mut dyn Owner) -> Result<bool, SpaceError> {
        self.ready()?;
        if self.blocks.count(BlockState::Retired) > 0 && self.drain_retired(owner)? {
            return Ok(true);
        }
        if let Some(at) = self.worn.pop() {
            if self.blocks.is_live(at) && self.has_spare_block() {
                self.relocate(at, owner, Cause::Relocation)?;
                self.flash.tally.scrubs += 1;
            }
            return Ok(true);
        }
        Ok(false)
    }

    fn has_spare_block(&self) -> bool {
        self.blocks.free_count() > GC_RESERVE
    }

    /// Empties one block that was taken before `sequence`; says whether there was one worth it.
    fn collect(&mut self, owner: &mut dyn Owner, sequence: u32) -> Result<bool, SpaceError> {
        let units_per_block = self.layout().units_per_block;
        let victim = match self.options.gc_policy {
            GcPolicy::Greedy => self.blocks.greedy_victim(sequence),
            GcPolicy::CostBenefit => self.blocks.aged_victim(units_per_block, sequence, |_| 1),
            GcPolicy::CostAgeTimes => {
                self.blocks.aged_victim(units_per_block, sequence, |block| block.erases)
            }
        };
        let Some(victim) = victim else { return Ok(false) };
        if self.blocks.get(victim).live >= units_per_block {
            return Ok(false);
        }
        let before = core::mem::replace(&mut self.flash.busy.work, Work::Collection);
        let emptied = self.empty_block(victim, owner, Cause::Relocation);
        self.flash.busy.work = before;
        emptied?;
        self.flash.tally.gc_victims += 1;
        Ok(true)
    }

    /// Moves every live unit of `block` elsewhere (V2); the mapping's own pages by a checkpoint.
    pub(crate) fn empty_block(
        &mut self,
        block: BlockIndex,
        owner: &mut dyn Owner,
        cause: Cause,
    ) -> Result<(), SpaceError> {
        let units: Vec<u32> = self.blocks.live_units(block).collect();
        let mut needs_record = false;
        for at in units {
            match self.relocate(at, owner, cause) {
                Ok(role) => needs_record |= matches!(role, Role::Meta | Role::Limbo),
                Err(SpaceError::Corrupt { .. }) => self.blocks.set_stuck(block),
                Err(error) => return Err(error),
            }
            if cause == Cause::Relocation {
                self.flash.tally.gc_migrations += 1;
            }
        }
        if needs_record {
            self.checkpoint_own()?;
        }
        Ok(())
    }

    /// Moves a live unit, with the owner's newer image if there is one.
    fn relocate(
        &mut self,
        at: u32,
        owner: &mut dyn Owner,
        cause: Cause,
    ) -> Result<Role, SpaceError> {
        let mut image = core::mem::take(&mut self.move_buffer);
        let result = self.relocate_with(at, owner, cause, &mut image);
        self.move_buffer = image;
        result
    }

    fn relocate_with(
        &mut self,
        at: u32,
        owner: &mut dyn Owner,
        cause: Cause,
        image: &mut Vec<u8>,
    ) -> Result<Role, SpaceError> {
        let meta = self.read_unit_twice(at, image, ReadPurpose::Relocation)?;
        self.check_identity(at, &meta)?;
        let role = self.role(at, &meta);
        if role == Role::Mapped {
            let is_held = self.pins.is_pinned(at) || self.is_frozen(at);
            let held = is_held.then(|| image.clone());
            if let Some(newer) = owner.newer_image(meta.page, &info_of(&meta, at), image) {
                self.replace_unit(at, &meta, image, newer, held.as_deref(), cause)?;
                owner.moved(meta.page, newer.lsn);
                return Ok(role);
            }
        }
        self.move_unit(at, &meta, image, cause)?;
        if role == Role::Mapped
            && let Some(to) = self.map.get(meta.page)
        {
            owner.relocated(meta.page, &self.info_of_placed(&meta, to));
        }
        Ok(if self.trimmed_unsaved.contains(&at) { Role::Limbo } else { role })
    }

    /// Writes the owner's newer image of a mapped page; an old version that is pinned or frozen moves on its
    /// own.
    fn replace_unit(
        &mut self,
        at: u32,
        meta: &PageMeta,
        image: &[u8],
        newer: NewerImage,
        held: Option<&[u8]>,
        cause: Cause,
    ) -> Result<(), SpaceError> {
        let tag =
            WriteTag { append_slots: newer.append_slots, ..WriteTag::data(newer.lsn, meta.region) };
        self.check_write(meta.page, image, &tag)?;
        let newer = self.new_version(meta.page, &tag, GroupId::NONE);
        let to = self.place(Stream::Cold, Entitlement::Reserve, newer, image, cause)?;
        self.map_to(meta.page, to, newer.version);
        self.flash.tally.gc_merges += 1;
        self.flash.tally.region(meta.region).moves += 1;
        match held {
            Some(old) => self.move_unit(at, meta, old, cause),
            None => Ok(()),
        }
    }

    /// Copies a live unit elsewhere, unchanged but for its standing (V1).
    pub(crate) fn move_unit(
        &mut self,
        at: u32,
        meta: &PageMeta,
        image: &[u8],
        cause: Cause,
    ) -> Result<(), SpaceError> {
        let role = self.role(at, meta);
        let standing = match role {
            // Until a record covers the group its flag alone decides, for all its pages together.
            Role::Mapped if self.rests_on_flag(meta.group) => meta.standing,
            Role::Mapped if meta.group != GroupId::NONE => Standing::Committed,
            // The flag stays behind; the standing of the copy says that the group has it.
            Role::Grouped if self.flags.contains_key(&at) => Standing::Committed,
            Role::Grouped => meta.standing,
            Role::Mapped => Standing::Plain,
            Role::Frozen | Role::Pinned => Standing::History,
            Role::Meta => {
                self.move_meta_page(meta.page.0);
                return Ok(());
            }
            Role::Limbo => return Ok(()),
            Role::None => {
                self.drop_stray(at, meta);
                return Ok(());
            }
        };
        // Y4
        let origin = if role == Role::Frozen { Origin::Original } else { Origin::Copy };
        let mut copy = PageMeta { standing, origin, ..*meta };
        if self.flash.bugs.has(SpaceBug::RelocationTakesNewVersion) {
            copy.version = self.next_version();
        }
        let to = self.place(Stream::Cold, Entitlement::Reserve, copy, image, cause)?;
        self.flash.tally.region(meta.region).moves += 1;
        self.pins.relocate(at, to);
        self.frozen.relocate(meta.page, at, to);
        match role {
            Role::Mapped => drop(self.map.set(meta.page, to)),
            Role::Grouped => self.groups.relocate(meta.group, meta.page, to),
            Role::Frozen | Role::Pinned | Role::Meta | Role::Limbo | Role::None => {}
        }
        // A forgotten unit waits for the record that says so, even where a frozen mapping has its copy now.
        if self.is_evidence(at) || self.trimmed_unsaved.contains(&at) {
            self.trimmed_unsaved.insert(at);
        } else {
            self.blocks.drop_live(at);
        }
        Ok(())
    }

    /// A mapping page that the next record replaces waits for that record; any other stray unit is free at
    /// once.
    fn drop_stray(&mut self, at: u32, meta: &PageMeta) {
        if meta.kind != PageKind::Map || !self.meta_old.contains(&at) {
            self.blocks.drop_live(at);
        }
    }

    /// Whether the unit is mapped, now or in a frozen mapping, or belongs to an open group.
    pub(crate) fn is_current(&self, at: u32, meta: &PageMeta) -> bool {
        matches!(self.role(at, meta), Role::Mapped | Role::Grouped | Role::Frozen)
    }

    fn role(&self, at: u32, meta: &PageMeta) -> Role {
        match meta.kind {
            PageKind::Map if self.meta_units.get(meta.page.0 as usize) == Some(&at) => Role::Meta,
            PageKind::Data if self.map.get(meta.page) == Some(at) => Role::Mapped,
            PageKind::Data => {
                let grouped = self.groups.get(meta.group, meta.page);
                if grouped.is_some_and(|entry| entry.at == at) {
                    Role::Grouped
                } else if self.is_frozen(at) {
                    Role::Frozen
                } else if self.trimmed_unsaved.contains(&at) {
                    Role::Limbo
                } else if self.pins.is_pinned(at) {
                    Role::Pinned
                } else {
                    Role::None
                }
            }
            _ => Role::None,
        }
    }

    /// Empties one failed block and marks it bad; says whether there was one.
    fn drain_retired(&mut self, owner: &mut dyn Owner) -> Result<bool, SpaceError> {
        let Some(block) = self.blocks.retired() else { return Ok(false) };
        if !self.has_spare_block() && self.blocks.get(block).live > 0 {
            return Ok(false);
        }
        self.empty_block(block, owner, Cause::Relocation)?;
        if self.blocks.get(block).live == 0 {
            // A block marked bad is not read again: its copies must be durable first.
            self.settle_pairs()?;
            self.flash.fence().map_err(|error| self.fail(error))?;
            self.mark_bad(block)?;
        }
        Ok(true)
    }

    /// Compares mapping, live bits and the metadata on flash with each other.
    ///
    /// # Errors
    ///
    /// Only errors of the device: damage is part of the result.
    pub fn verify(&mut self) -> Result<Vec<Fault>, SpaceError> {
        let mut faults = Vec::new();
        let mut buffer = Vec::new();
        let mapped: Vec<_> = self.map.iter().collect();
        for (page, at) in mapped {
            if !self.blocks.is_live(at) {
                faults.push(Fault::DeadUnit { page });
            }
            match self.read_at(at, page, &mut buffer) {
                Ok(_) => {}
                Err(SpaceError::Corrupt { check, .. }) => faults.push(Fault::Page { page, check }),
                Err(error) => return Err(error),
            }
        }
        self.verify_frozen(&mut faults, &mut buffer)?;
        self.verify_live(&mut faults);
        Ok(faults)
    }

    /// Reads the units to which frozen mappings alone point.
    fn verify_frozen(
        &mut self,
        faults: &mut Vec<Fault>,
        buffer: &mut Vec<u8>,
    ) -> Result<(), SpaceError> {
        let ids: Vec<_> = self.frozen.maps.keys().copied().collect();
        for id in ids {
            let Some(frozen) = self.frozen.maps.get(&id) else { continue };
            let own = frozen.map.iter().filter(|(page, at)| self.map.get(*page) != Some(*at));
            for page in own.map(|(page, _)| page).collect::<Vec<_>>() {
                match self.read_frozen(id, page, buffer) {
                    Ok(_) => {}
                    Err(SpaceError::Corrupt { check, .. }) => {
                        faults.push(Fault::Page { page, check });
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn verify_live(&self, faults: &mut Vec<Fault>) {
        let mut needed: Vec<u32> = self.map.iter().map(|(_, at)| at).collect();
        needed.extend(self.groups.iter().map(|page| page.at));
        needed.extend(self.pins.units());
        needed.extend(self.frozen.iter().map(|(_, at)| at));
        needed.extend(self.meta_units.iter().filter(|at| **at != crate::mapping::UNMAPPED));
        needed.extend(&self.meta_old);
        needed.extend(&self.trimmed_unsaved);
        needed.sort_unstable();
        needed.dedup();
        for (block, entry) in self.blocks.iter() {
            let live: Vec<u32> = self.blocks.live_units(block).collect();
            let stray = live.iter().any(|at| needed.binary_search(at).is_err());
            if stray || live.len() != entry.live as usize {
                faults.push(Fault::LiveCount { block });
            }
        }
        let lost = needed.iter().filter(|at| !self.blocks.is_live(**at));
        faults.extend(lost.map(|at| Fault::Freed { at: *at }));
    }
}

/// A finding of a structural check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// The mapping points to a unit that does not count as live.
    #[error("page {}: mapped to a place that does not count as live", page.0)]
    DeadUnit {
        /// Page concerned.
        page: LogicalPage,
    },
    /// The mapped unit does not hold the page.
    #[error("page {}: {check}", page.0)]
    Page {
        /// Page concerned.
        page: LogicalPage,
        /// Check that fired.
        check: Check,
    },
    /// A block counts units as live that nothing needs, or its count is wrong.
    #[error("block {}: counts live pages that nothing needs, or counts them wrong", block.0)]
    LiveCount {
        /// Block concerned.
        block: BlockIndex,
    },
    /// A needed unit does not count as live.
    #[error("physical page {at}: needed, but does not count as live")]
    Freed {
        /// First page of the unit.
        at: u32,
    },
}
