//! Which version of each page is valid: the last step of a mount.
//!
//! Owns the ranking of versions (U2), the open groups (U3), the suspects and the older versions that stay for
//! them (U4). Never reads more than the blocks that have to be scanned.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use flagstone_nand::{BlockIndex, Nand, NandError};

use super::classes::Class;
use super::frozen::FrozenLosers;
use super::{Found, Mount};
use crate::blocks::BlockState;
use crate::flash::{NO_APPENDS, ReadFault};
use crate::groups::{GroupPage, Rank};
use crate::mapping::UNMAPPED;
use crate::meta::{Origin, PageKind, PageMeta, Standing};
use crate::scan::{BlockScan, FoundUnit, scan_block};
use crate::space::Suspect;
use crate::stats::ReadPurpose;
use crate::{GroupId, LogicalPage, PinId, SpaceBug, Version};

impl From<&FoundUnit> for Found {
    fn from(unit: &FoundUnit) -> Self {
        let PageMeta { version, origin, sequence, .. } = unit.meta;
        Self { version, origin, sequence, at: unit.at }
    }
}

impl<D: Nand> Mount<D> {
    pub(super) fn scan_new_blocks(&mut self) -> Result<(), NandError> {
        for index in 0..self.classes.len() {
            let from = match self.classes[index] {
                Class::Scan => 0,
                Class::KeepAndScan(from) => from,
                Class::Drop | Class::Keep | Class::Verify => continue,
            };
            let block = BlockIndex(index as u32);
            let sequence = self.space.blocks.get(block).sequence;
            let scan = scan_block(&mut self.space.flash, block, from, sequence)?;
            self.take_scan(scan)?;
        }
        Ok(())
    }

    fn take_scan(&mut self, scan: BlockScan) -> Result<(), NandError> {
        self.report.blocks_scanned += 1;
        self.report.torn_units += scan.torn_units;
        self.report.damaged_units += scan.damaged_units;
        // Where one sync makes all content durable at once, suspects need no copy.
        let is_synced = self.space.layout().capabilities.needs_sync;
        if let (Some(unit), Some(image), false) = (scan.units.last(), scan.last_image, is_synced) {
            let (at, meta) = (unit.at, unit.meta);
            self.suspects.push(Suspect { at, meta, image, fallbacks: Vec::new() });
        }
        scan.units.iter().try_for_each(|unit| self.take_unit(unit))
    }

    /// Sorts a unit into valid versions and open groups (U2, U3).
    fn take_unit(&mut self, unit: &FoundUnit) -> Result<(), NandError> {
        let meta = &unit.meta;
        self.version_max = self.version_max.max(meta.version.0);
        self.report.lsn_max = self.report.lsn_max.max(meta.lsn);
        let in_range = meta.page.0 < self.space.map.len();
        if meta.kind == PageKind::Data && in_range {
            self.moved.take(unit);
        }
        if meta.kind != PageKind::Data || !in_range || meta.standing == Standing::History {
            return Ok(());
        }
        if meta.group != GroupId::NONE {
            // Each copy of a page counts: the flag stands on one of them.
            self.evidence.push((unit.at, *meta));
        }
        let decided = meta.group == GroupId::NONE || meta.standing == Standing::Committed;
        if decided || self.space.flash.bugs.has(SpaceBug::OpenGroupCounts) {
            self.found.entry(meta.page).or_default().push(Found::from(unit));
            return Ok(());
        }
        let older = self.space.groups.get(meta.group, meta.page);
        let counts = match older {
            Some(older) if older.version == meta.version => self.is_preferred(unit, older.at)?,
            Some(older) => older.version < meta.version,
            None => true,
        };
        if counts {
            let entry = GroupPage { at: unit.at, version: meta.version, rank: Rank::Newest };
            self.space.groups.insert(meta.group, meta.page, entry);
            self.found_in_groups.insert(unit.at, Found::from(unit));
        }
        Ok(())
    }

    /// Whether a group's page that the scan found counts, rather than the same version at `other`: of two
    /// copies the later one counts if it reads whole (U2). A copy that the record knows is the earlier one.
    fn is_preferred(&mut self, unit: &FoundUnit, other: u32) -> Result<bool, NandError> {
        let is_later = self.found_in_groups.get(&other) < Some(&Found::from(unit));
        let later = if is_later { unit.at } else { other };
        let is_whole = self.reads_whole(later, unit.meta.page, unit.meta.version)?;
        Ok(is_later == is_whole)
    }

    /// Picks the newest version of each page (U2), marks live units, keeps suspects (U4).
    pub(super) fn settle(&mut self) -> Result<(), NandError> {
        self.judge_flags()?;
        let found = core::mem::take(&mut self.found);
        self.rank_groups(&found);
        let mut losers = BTreeMap::new();
        for (page, mut versions) in found {
            versions.sort_unstable();
            let Some(at) = self.take_newest(page, &mut versions)? else { continue };
            let appends = self.space.map.appends(page);
            let recorded = self.space.map.set(page, at).map(|at| (at, appends));
            let found = versions.iter().map(|found| (found.at, 0));
            let older: Vec<(u32, u8)> = recorded.into_iter().chain(found).collect();
            losers.insert(page, older);
        }
        self.note_lost();
        let frozen_losers = self.settle_frozen()?;
        let space = &mut self.space;
        let mapped = space.map.iter().map(|(_, at)| at);
        let grouped = space.groups.iter().map(|page| page.at);
        let meta = space.meta_units.iter().copied().filter(|at| *at != UNMAPPED);
        let frozen = space.frozen.iter().map(|(_, at)| at);
        for at in mapped.chain(grouped).chain(meta).chain(frozen) {
            space.blocks.add_live(at);
        }
        // A flag that proves a group committed stays until a record says so (rule D4).
        for at in space.flags.keys() {
            if !space.blocks.is_live(*at) {
                space.blocks.add_live(*at);
                space.trimmed_unsaved.insert(*at);
            }
        }
        self.keep_suspects(&losers, &frozen_losers);
        self.free_empty_blocks();
        Ok(())
    }

    /// Decides which open groups a flag has committed, where any page of them has one: their pages are
    /// versions like others (U2).
    fn judge_flags(&mut self) -> Result<(), NandError> {
        if !self.space.carries_flags() {
            return Ok(());
        }
        let mut evidence = core::mem::take(&mut self.evidence);
        for page in self.space.groups.iter().collect::<Vec<_>>() {
            let Some((meta, _)) = self.space.flash.peek_flag(page.at)? else { continue };
            if (meta.group, meta.page, meta.version) == (page.group, page.page, page.version) {
                evidence.push((page.at, meta));
            }
        }
        // While the group was open, collection may have moved all pages with flags: then the standing of the
        // copies is the evidence.
        let tells = |(_, meta): &&(u32, PageMeta)| {
            matches!(meta.standing, Standing::Flagged | Standing::Committed)
        };
        let groups = evidence.iter().filter(tells).map(|(_, meta)| meta.group);
        let groups: BTreeSet<_> =
            groups.filter(|group| self.space.groups.is_open(*group)).collect();
        let mut committed = BTreeSet::new();
        for (at, meta) in evidence.iter().filter(|(_, meta)| groups.contains(&meta.group)) {
            if self.is_flagged(*at, meta)? {
                self.space.flags.insert(*at, meta.group);
                committed.insert(meta.group);
            }
        }
        self.report.unflagged_groups = groups.difference(&committed).copied().collect();
        committed.iter().for_each(|group| self.take_group(*group));
        self.report.flagged_groups = committed.into_iter().collect();
        Ok(())
    }

    /// Whether a page says that its group is committed.
    fn is_flagged(&mut self, at: u32, meta: &PageMeta) -> Result<bool, NandError> {
        Ok(match meta.standing {
            Standing::Flagged => self.space.flash.peek_flag(at)?.is_some_and(|(_, is_set)| is_set),
            // A copy that was made when the group was committed for good.
            Standing::Committed => true,
            Standing::Plain | Standing::History => false,
        })
    }

    fn take_group(&mut self, group: GroupId) {
        let pages = self.space.groups.remove(group).unwrap_or_default();
        for (page, entry) in pages {
            if entry.rank == Rank::Newest {
                let (at, version) = (entry.at, entry.version);
                let recorded = Found { version, origin: Origin::Original, sequence: 0, at };
                let found = self.found_in_groups.get(&at).copied().unwrap_or(recorded);
                self.found.entry(page).or_default().push(found);
            }
        }
    }

    /// Takes out the newest version; where it stands in several places, the last one that reads whole (U2). A
    /// cut may have ended the move of a copy, or the erase of a block whose summary still lists one.
    fn take_newest(
        &mut self,
        page: LogicalPage,
        versions: &mut Vec<Found>,
    ) -> Result<Option<u32>, NandError> {
        let Some(newest) = versions.last().map(|found| found.version) else { return Ok(None) };
        let mut chosen = versions.len() - 1;
        let copies = versions.iter().rev().take_while(|found| found.version == newest).count();
        for index in (versions.len() - copies..versions.len()).rev().filter(|_| copies > 1) {
            if self.reads_whole(versions[index].at, page, newest)? {
                chosen = index;
                break;
            }
        }
        Ok(Some(versions.remove(chosen).at))
    }

    /// Recorded versions that are gone without a newer one (U5). A version in an open group may yet count.
    fn note_lost(&mut self) {
        let mut dropped = core::mem::take(&mut self.dropped);
        dropped.retain(|page| self.space.map.get(*page).is_none());
        dropped.iter().for_each(|page| self.space.map.lose(*page));
        let grouped: BTreeSet<_> = self.space.groups.iter().map(|page| page.page).collect();
        let lost = dropped.iter().filter(|page| !grouped.contains(page));
        self.report.lost_pages += lost.count() as u32;
    }

    pub(super) fn reads_whole(
        &mut self,
        at: u32,
        page: LogicalPage,
        version: Version,
    ) -> Result<bool, NandError> {
        let mut buffer = Vec::new();
        match self.space.flash.read_unit(at, &mut buffer, NO_APPENDS, ReadPurpose::Metadata) {
            Ok(read) => Ok((read.meta.page, read.meta.version) == (page, version)),
            Err((_, ReadFault::Bad(_))) => Ok(false),
            Err((_, ReadFault::Device(error))) => Err(error),
        }
    }

    /// Decides which group pages are overtaken: by a version found in the scan, or by the recorded mapping;
    /// the rank in the record tells the latter. The mapped page itself may be half erased by now.
    fn rank_groups(&mut self, found: &BTreeMap<LogicalPage, Vec<Found>>) {
        let overtaken: BTreeSet<_> = self.overtaken.drain(..).collect();
        self.space.groups.rank(|page, entry| {
            let newest = found.get(&page).and_then(|versions| versions.iter().max());
            let is_overtaken = match newest {
                Some(newest) => newest.version >= entry.version,
                None => overtaken.contains(&(page, entry.version)),
            };
            if is_overtaken { Rank::Overtaken } else { Rank::Newest }
        });
    }

    /// Keeps the suspects that count, and for each an older version that is no suspect (U4).
    fn keep_suspects(
        &mut self,
        losers: &BTreeMap<LogicalPage, Vec<(u32, u8)>>,
        frozen_losers: &FrozenLosers,
    ) {
        let suspects = core::mem::take(&mut self.suspects);
        let doubtful: BTreeSet<u32> = suspects.iter().map(|suspect| suspect.at).collect();
        for mut suspect in suspects {
            let page = suspect.meta.page;
            let mapped = self.space.map.get(page) == Some(suspect.at);
            if let Some(older) = losers.get(&page).filter(|_| mapped) {
                suspect.fallbacks = self.pin_fallbacks(page, older, &doubtful);
            }
            if let Some(older) = frozen_losers.get(&suspect.at).filter(|_| !mapped) {
                suspect.fallbacks = self.pin_fallbacks(page, older, &doubtful);
            }
            if mapped || self.space.blocks.is_live(suspect.at) {
                self.report.suspects += 1;
                self.space.suspects.push(suspect);
            }
        }
    }

    /// Pins older versions, newest first, down to one that was not in flight.
    fn pin_fallbacks(
        &mut self,
        page: LogicalPage,
        older: &[(u32, u8)],
        doubtful: &BTreeSet<u32>,
    ) -> Vec<PinId> {
        let mut pins = Vec::new();
        for (at, appends) in older.iter().rev() {
            self.space.blocks.add_live(*at);
            pins.push(self.space.pins.add(page, *at, *appends));
            if !doubtful.contains(at) {
                break;
            }
        }
        pins
    }

    fn free_empty_blocks(&mut self) {
        let blocks: Vec<_> =
            self.space.blocks.iter().map(|(index, block)| (index, *block)).collect();
        for (index, block) in blocks {
            if block.state == BlockState::Closed && block.live == 0 {
                self.space.blocks.free(index);
            }
        }
    }
}
