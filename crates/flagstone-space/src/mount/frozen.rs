//! Frozen mappings at a mount: from their entries in the record to the present places of their units.
//!
//! Owns the search for units that were moved since the record (Y4). Never decides the content of the mapping
//! in use.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

use flagstone_nand::{Nand, NandError};

use super::classes::{Class, stands};
use super::{Found, Mount};
use crate::bytes::get_uint;
use crate::error::{Check, MountError, Structure};
use crate::flash::{NO_APPENDS, ReadFault};
use crate::frozen::{FROZEN_MAX, Frozen};
use crate::mapping::{Mapping, UNMAPPED};
use crate::meta::{Origin, Standing};
use crate::record::{FrozenRecord, Record};
use crate::scan::FoundUnit;
use crate::stats::ReadPurpose;
use crate::{FrozenId, GroupId, LogicalPage, SpaceBug, Version};

/// Earlier places of a suspect's unit, the latest first, with the appends that it had there.
pub(super) type FrozenLosers = BTreeMap<u32, Vec<(u32, u8)>>;

/// Units that scanning found and that frozen mappings may have (Y4).
#[derive(Debug, Default)]
pub(super) struct Moved {
    /// Frontier of the newest frozen mapping.
    below: Option<Version>,
    found: BTreeMap<LogicalPage, Vec<Found>>,
}

impl Moved {
    pub(super) fn take(&mut self, unit: &FoundUnit) {
        let meta = &unit.meta;
        let is_moved = match meta.standing {
            Standing::History => meta.origin == Origin::Original,
            Standing::Plain => meta.origin == Origin::Copy && meta.group == GroupId::NONE,
            Standing::Committed => meta.origin == Origin::Copy,
            Standing::Flagged => false,
        };
        if is_moved && self.below.is_some_and(|below| meta.version < below) {
            self.found.entry(meta.page).or_default().push(Found::from(unit));
        }
    }

    /// Places of a page's version within `window`; the place to which it was moved last comes last.
    fn of(&self, page: LogicalPage, window: &Range<Version>) -> Vec<Found> {
        let found = self.found.get(&page).into_iter().flatten();
        let mut found: Vec<_> =
            found.filter(|found| window.contains(&found.version)).copied().collect();
        // All of them were moved, to the blocks of one stream.
        found.sort_unstable_by_key(|found| (found.version, found.sequence, found.at));
        found
    }
}

/// Result of a mount's read of a page of a frozen mapping.
enum FrozenPage {
    /// The page was never written.
    Absent,
    /// The page is damaged.
    Lost,
    Present(Vec<u8>),
}

/// A record whose frozen mappings do not fit the device belongs to another device.
const MISFIT: MountError = MountError::GeometryMismatch;

impl<D: Nand> Mount<D> {
    /// Loads the frozen mappings as the record has them, before their moved units are looked for.
    pub(super) fn load_frozen(&mut self, record: &Record) -> Result<(), MountError> {
        self.space.flash.layout.set_frozen(record.frozen.len() as u32);
        for frozen in &record.frozen {
            let (id, maps) = (FrozenId(frozen.frontier), &self.space.frozen.maps);
            let is_known = maps.contains_key(&id) || maps.values().any(|it| it.slot == frozen.slot);
            let directory = self.space.layout().frozen_directory_pages() as usize;
            if frozen.slot >= FROZEN_MAX || is_known || frozen.roots.len() != directory {
                return Err(MISFIT);
            }
            let map = self.load_frozen_map(frozen)?;
            let (slot, label) = (frozen.slot, frozen.label.clone());
            self.space.frozen.maps.insert(id, Frozen { map, slot, label });
            self.moved.below = self.moved.below.max(Some(id.0));
        }
        Ok(())
    }

    fn load_frozen_map(&mut self, frozen: &FrozenRecord) -> Result<Mapping, MountError> {
        let layout = self.space.layout().clone();
        let (entries, pages) = (layout.entries_per_page(), layout.frozen_pages(frozen.slot));
        let directory = pages.end - layout.frozen_directory_pages();
        let units = &mut self.space.meta_units;
        units.resize(units.len().max(pages.end as usize), UNMAPPED);
        let roots = (directory..pages.end).zip(&frozen.roots);
        roots.for_each(|(index, root)| units[index as usize] = *root);
        let mut lost: Vec<u32> = Vec::new();
        for (page, first) in (directory..pages.end).zip((pages.start..).step_by(entries as usize)) {
            let last = (first + entries).min(directory);
            match self.read_frozen_page(page, Structure::Directory)? {
                FrozenPage::Absent => {}
                FrozenPage::Lost => lost.extend(first..last),
                FrozenPage::Present(bytes) => {
                    let units = self.space.meta_units[first as usize..last as usize].iter_mut();
                    for (target, source) in units.zip(bytes.chunks_exact(4)) {
                        *target = get_uint(source) as u32;
                    }
                }
            }
        }
        self.forget_units(pages.start + layout.map_pages..directory);
        let page_count = layout.geometry.page_count();
        let mut map = Mapping::new(layout.logical_pages, entries, page_count);
        for page in 0..layout.map_pages {
            match self.read_frozen_page(pages.start + page, Structure::Map)? {
                FrozenPage::Absent => {}
                FrozenPage::Lost => lost.push(pages.start + page),
                FrozenPage::Present(bytes) => {
                    let refused = map.load(page, &bytes, |at| layout.is_unit(at));
                    self.report.lost_pages += refused.len() as u32;
                    refused.into_iter().for_each(|page| map.lose(page));
                }
            }
        }
        for page in lost.into_iter().map(|index| index - pages.start) {
            let first = page.saturating_mul(entries);
            let numbers = first..first.saturating_add(entries).min(map.len());
            numbers.for_each(|number| map.lose(LogicalPage(number)));
            self.report.lost_pages += 1;
        }
        Ok(map)
    }

    /// A page of a frozen mapping. Damage in such a page costs the frozen mapping its entries, nothing else.
    fn read_frozen_page(&mut self, index: u32, what: Structure) -> Result<FrozenPage, MountError> {
        match self.read_meta_page(index as usize, what) {
            Ok(Some(bytes)) => Ok(FrozenPage::Present(bytes)),
            Ok(None) => Ok(FrozenPage::Absent),
            Err(MountError::Damaged { .. }) => {
                self.space.meta_units[index as usize] = UNMAPPED;
                Ok(FrozenPage::Lost)
            }
            Err(error) => Err(error),
        }
    }

    /// Points the frozen mappings to the present places of their units: for each the place to which it was
    /// moved last, if it reads whole there, as for any page (U2). Units in doubt are returned with the places
    /// where they stood before (U4).
    pub(super) fn settle_frozen(&mut self) -> Result<FrozenLosers, NandError> {
        let ids: Vec<FrozenId> = self.space.frozen.maps.keys().copied().collect();
        let mut losers = FrozenLosers::new();
        // For each page, its unit in the record for the frozen mapping before that has the page, and the
        // place where that unit was found.
        let mut before: BTreeMap<LogicalPage, (u32, Option<u32>)> = BTreeMap::new();
        for id in ids {
            for (page, at, appends) in self.frozen_in_doubt(id) {
                let found = match before.get(&page) {
                    Some((other, found)) if *other == at => *found,
                    _ => {
                        let window = self.frontier_before(id, page)..id.0;
                        self.find_frozen(page, (at, appends), &window, &mut losers)?
                    }
                };
                before.insert(page, (at, found));
                self.point_frozen(id, page, at, found);
            }
        }
        let space = &mut self.space;
        space.frozen.count(&space.map);
        Ok(losers)
    }

    /// Frontier of the frozen mapping before that has the page, or lost it. A mapping without the page says
    /// nothing of a version below its own frontier: the version may belong to a group that was open then
    /// (Y5).
    fn frontier_before(&self, id: FrozenId, page: LogicalPage) -> Version {
        let has_page = |map: &Mapping| map.get(page).is_some() || map.is_lost(page);
        let mut older = self.space.frozen.maps.range(..id).rev();
        older.find(|(_, frozen)| has_page(&frozen.map)).map_or(Version(0), |(id, _)| id.0)
    }

    /// Entries of a frozen mapping, with their appends, whose units may have left the place in the record.
    fn frozen_in_doubt(&self, id: FrozenId) -> Vec<(LogicalPage, u32, u8)> {
        let Some(frozen) = self.space.frozen.maps.get(&id) else { return Vec::new() };
        let layout = self.space.layout();
        let is_plain = |page: LogicalPage, at: u32| {
            let block = self.space.blocks.block_of(at).0 as usize;
            stands(layout, &self.classes, at)
                && self.classes.get(block) != Some(&Class::Verify)
                && !self.moved.found.contains_key(&page)
        };
        let entries = frozen.map.iter().filter(|(page, at)| !is_plain(*page, *at));
        entries.map(|(page, at)| (page, at, frozen.map.appends(page))).collect()
    }

    fn point_frozen(&mut self, id: FrozenId, page: LogicalPage, at: u32, found: Option<u32>) {
        let Some(frozen) = self.space.frozen.maps.get_mut(&id) else { return };
        match found {
            Some(found) if found == at => {}
            Some(found) => drop(frozen.map.set(page, found)),
            None => {
                frozen.map.clear(page);
                frozen.map.lose(page);
                self.report.lost_pages += 1;
            }
        }
    }

    /// Present place of the unit that a frozen mapping recorded at `recorded`; none when it is gone.
    fn find_frozen(
        &mut self,
        page: LogicalPage,
        recorded: (u32, u8),
        window: &Range<Version>,
        losers: &mut FrozenLosers,
    ) -> Result<Option<u32>, NandError> {
        let (at, appends) = recorded;
        let is_standing = stands(self.space.layout(), &self.classes, at);
        let mut places = match self.space.flash.bugs.has(SpaceBug::FrozenNotFollowed) {
            true => Vec::new(),
            false => self.moved.of(page, window),
        };
        while let Some(place) = places.pop() {
            if self.reads_whole(place.at, page, place.version)? {
                let recorded = is_standing.then_some((at, appends));
                let older = recorded.into_iter().chain(places.iter().map(|older| (older.at, 0)));
                losers.insert(place.at, older.collect());
                return Ok(Some(place.at));
            }
        }
        let is_there = is_standing && self.is_frozen_there(page, at)?;
        Ok(is_there.then_some(at))
    }

    /// Whether the unit is where the record says, in a block whose first page may not read.
    fn is_frozen_there(&mut self, page: LogicalPage, at: u32) -> Result<bool, NandError> {
        let block = self.space.blocks.block_of(at);
        if self.classes[block.0 as usize] != Class::Verify {
            return Ok(true);
        }
        let sequence = self.space.blocks.get(block).sequence;
        let mut buffer = Vec::new();
        match self.space.flash.read_unit(at, &mut buffer, NO_APPENDS, ReadPurpose::Metadata) {
            Ok(read) => Ok((read.meta.page, read.meta.sequence) == (page, sequence)),
            // The page is lost, and reads will say so.
            Err((_, ReadFault::Bad(Check::Ecc | Check::Checksum | Check::Metadata))) => Ok(true),
            Err((_, ReadFault::Bad(_))) => Ok(false),
            Err((_, ReadFault::Device(error))) => Err(error),
        }
    }
}
