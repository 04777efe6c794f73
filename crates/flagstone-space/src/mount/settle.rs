//! Which version of each page is valid: the last step of a mount.
//!
//! Owns the ranking of versions (U2), the open groups (U3), the suspects and what stays for them
//! (U4). Never reads more than the blocks that are to be scanned.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use flagstone_nand::{BlockIndex, Nand, NandError};

use super::{Class, Mount};
use crate::blocks::BlockState;
use crate::evidence::{Flag, Flags, Shadow};
use crate::flash::{NO_APPENDS, ReadFault};
use crate::groups::{GroupPage, Rank};
use crate::mapping::UNMAPPED;
use crate::meta::{PageKind, PageMeta, Standing};
use crate::scan::{BlockScan, FoundUnit, scan_block};
use crate::space::Suspect;
use crate::stats::ReadPurpose;
use crate::{GroupId, LogicalPage, PinId, SpaceBug, Version};

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
            self.closed.extend(scan.closed.map(|closed| (block, closed)));
            self.take_scan(scan)?;
        }
        Ok(())
    }

    fn take_scan(&mut self, scan: BlockScan) -> Result<(), NandError> {
        self.report.blocks_scanned += 1;
        self.report.torn_units += scan.torn_units;
        self.report.damaged_units += scan.damaged_units;
        // Where a sync makes all of it durable at once, nothing is copied for that.
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
        if meta.kind != PageKind::Data || !in_range || meta.standing == Standing::History {
            return Ok(());
        }
        if meta.group != GroupId::NONE {
            // Each copy of a page counts: the flag stands on one of them.
            self.evidence.push((unit.at, *meta));
        }
        let decided = meta.group == GroupId::NONE || meta.standing == Standing::Committed;
        if decided || self.space.flash.bugs.has(SpaceBug::OpenGroupCounts) {
            self.found.entry(meta.page).or_default().push((meta.version, unit.at));
            return Ok(());
        }
        let older = self.space.groups.get(meta.group, meta.page);
        let is_newer = match older {
            Some(older) if older.version == meta.version => {
                !self.reads_whole(older.at, meta.page, meta.version)?
            }
            Some(older) => older.version < meta.version,
            None => true,
        };
        if is_newer {
            let entry = GroupPage { at: unit.at, version: meta.version, rank: Rank::Newest };
            self.space.groups.insert(meta.group, meta.page, entry);
        }
        Ok(())
    }

    /// Picks the newest version of each page (U2), marks what is live, keeps suspects (U4).
    pub(super) fn settle(&mut self) -> Result<(), NandError> {
        self.judge_flags()?;
        let found = core::mem::take(&mut self.found);
        self.rank_groups(&found);
        let needs = self.needs_of_blocks(&found);
        let mut losers = BTreeMap::new();
        for (page, mut versions) in found {
            versions
                .sort_unstable_by_key(|(version, at)| (*version, self.rank_of_copy(*at, &needs)));
            let Some(at) = self.take_newest(page, &mut versions)? else { continue };
            let appends = self.space.map.appends(page);
            let recorded = self.space.map.set(page, at).map(|at| (at, appends));
            let found = versions.iter().map(|(_, at)| (*at, 0));
            let older: Vec<(u32, u8)> = recorded.into_iter().chain(found).collect();
            losers.insert(page, older);
        }
        self.note_lost();
        let space = &mut self.space;
        let mapped = space.map.iter().map(|(_, at)| at);
        let grouped = space.groups.iter().map(|page| page.at);
        let meta = space.meta_units.iter().copied().filter(|at| *at != UNMAPPED);
        for at in mapped.chain(grouped).chain(meta) {
            space.blocks.add_live(at);
        }
        // A flag that proves a group committed stays until a record says so (rule D4).
        for at in space.flags.keys() {
            if !space.blocks.is_live(*at) {
                space.blocks.add_live(*at);
                space.limbo.insert(*at);
            }
        }
        self.keep_suspects(&losers);
        self.free_empty_blocks();
        Ok(())
    }

    /// Among equal copies of a page the highest is taken. A collection leaves two until the victim is
    /// erased, which may be long after it counts as free: were the original taken, that block would be
    /// free no more (rule D7), and where its erase was cut, what reads well now may not do so again. A
    /// victim is closed before its pages are copied, so the block that was closed later, or never, holds
    /// the copy. Where summaries do not tell, the block that is needed most is taken.
    fn rank_of_copy(&self, at: u32, needs: &[(u32, u32)]) -> (Version, (u32, u32), u32) {
        let block = self.block_of(at);
        let closed = self.closed.get(&BlockIndex(block as u32)).copied();
        (closed.unwrap_or(Version(u64::MAX)), needs[block], at)
    }

    /// How much each block is needed: pages that it alone holds, then copies of those that others hold
    /// too.
    fn needs_of_blocks(
        &self,
        found: &BTreeMap<LogicalPage, Vec<(Version, u32)>>,
    ) -> Vec<(u32, u32)> {
        let space = &self.space;
        let mut needs = vec![(0, 0); space.blocks.len() as usize];
        let recorded = space.map.iter().filter(|(page, _)| !found.contains_key(page));
        let grouped = space.groups.iter().map(|page| page.at);
        let meta = space.meta_units.iter().copied().filter(|at| *at != UNMAPPED);
        for at in recorded.map(|(_, at)| at).chain(grouped).chain(meta) {
            needs[self.block_of(at)].0 += 1;
        }
        for versions in found.values() {
            let newest = versions.iter().map(|(version, _)| *version).max();
            let copies = versions.iter().filter(|(version, _)| Some(*version) == newest);
            let is_alone = copies.clone().count() == 1;
            for (_, at) in copies {
                let (alone, shared) = &mut needs[self.block_of(*at)];
                *if is_alone { alone } else { shared } += 1;
            }
        }
        needs
    }

    fn block_of(&self, at: u32) -> usize {
        (at / self.space.flash.layout.geometry.pages_per_block) as usize
    }

    /// Decides which open groups a flag has committed, by the rules of evidence: their pages are
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
        // A collection may have moved all that was flagged while the group was still open: the copies
        // tell.
        let tells = |(_, meta): &&(u32, PageMeta)| {
            matches!(meta.standing, Standing::Flagged | Standing::Committed)
        };
        let groups = evidence.iter().filter(tells).map(|(_, meta)| meta.group);
        let groups: BTreeSet<_> =
            groups.filter(|group| self.space.groups.is_open(*group)).collect();
        let mut shadows = Vec::new();
        for (at, meta) in evidence.iter().filter(|(_, meta)| groups.contains(&meta.group)) {
            if let Some(flag) = self.flag_of(*at, meta)? {
                let (at, page, version, xid) = (*at, meta.page, meta.version, meta.group);
                shadows.push(Shadow { at, page, version, xid, order: 0, link: None, flag });
            }
        }
        let committed = Flags::Cfc.committed(&shadows);
        let proofs = shadows.iter().filter(|shadow| shadow.flag == Flag::True);
        self.space.flags.extend(proofs.map(|proof| (proof.at, proof.xid)));
        self.report.unflagged_groups = groups.difference(&committed).copied().collect();
        committed.iter().for_each(|group| self.take_group(*group));
        self.report.flagged_groups = committed.into_iter().collect();
        Ok(())
    }

    /// What a page says of its group's commit.
    fn flag_of(&mut self, at: u32, meta: &PageMeta) -> Result<Option<Flag>, NandError> {
        Ok(match meta.standing {
            Standing::Flagged => self.space.flash.peek_flag(at)?.map(|(_, flag)| flag),
            // A copy that was made when the group was committed for good.
            Standing::Committed => Some(Flag::True),
            Standing::Plain | Standing::History => None,
        })
    }

    fn take_group(&mut self, group: GroupId) {
        let pages = self.space.groups.remove(group).unwrap_or_default();
        for (page, entry) in pages {
            if entry.rank == Rank::Newest {
                self.found.entry(page).or_default().push((entry.version, entry.at));
            }
        }
    }

    /// Takes out the newest version, of its copies the last that reads whole: a cut may have interrupted
    /// the erase of the older one's block, whose summary still lists it (U2).
    fn take_newest(
        &mut self,
        page: LogicalPage,
        versions: &mut Vec<(Version, u32)>,
    ) -> Result<Option<u32>, NandError> {
        let Some((newest, _)) = versions.last().copied() else { return Ok(None) };
        let mut chosen = versions.len() - 1;
        let is_copy = |(version, _): &&(Version, u32)| *version == newest;
        let copies = versions.iter().rev().take_while(is_copy).count();
        for index in (versions.len() - copies..versions.len()).rev().filter(|_| copies > 1) {
            if self.reads_whole(versions[index].1, page, newest)? {
                chosen = index;
                break;
            }
        }
        Ok(Some(versions.remove(chosen).1))
    }

    /// Recorded versions that are gone without a newer one (U5). One in an open group may yet count.
    fn note_lost(&mut self) {
        let mut dropped = core::mem::take(&mut self.dropped);
        dropped.retain(|page| self.space.map.get(*page).is_none());
        dropped.iter().for_each(|page| self.space.map.lose(*page));
        let grouped: BTreeSet<_> = self.space.groups.iter().map(|page| page.page).collect();
        let lost = dropped.iter().filter(|page| !grouped.contains(page));
        self.report.lost_pages = lost.count() as u32;
    }

    fn reads_whole(
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

    /// Decides which group pages are overtaken: by a version found in the scan, or by the recorded
    /// mapping, for which the record says it. The mapped page itself may be half erased by now.
    fn rank_groups(&mut self, found: &BTreeMap<LogicalPage, Vec<(Version, u32)>>) {
        let overtaken: BTreeSet<_> = self.overtaken.drain(..).collect();
        self.space.groups.rank(|page, entry| {
            let newest = found.get(&page).and_then(|versions| versions.iter().max());
            let is_overtaken = match newest {
                Some((version, _)) => *version >= entry.version,
                None => overtaken.contains(&(page, entry.version)),
            };
            if is_overtaken { Rank::Overtaken } else { Rank::Newest }
        });
    }

    /// Keeps the suspects that count, and an older version of each that is none (U4).
    fn keep_suspects(&mut self, losers: &BTreeMap<LogicalPage, Vec<(u32, u8)>>) {
        let suspects = core::mem::take(&mut self.suspects);
        let doubtful: BTreeSet<u32> = suspects.iter().map(|suspect| suspect.at).collect();
        for mut suspect in suspects {
            let page = suspect.meta.page;
            let mapped = self.space.map.get(page) == Some(suspect.at);
            if let Some(older) = losers.get(&page).filter(|_| mapped) {
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
