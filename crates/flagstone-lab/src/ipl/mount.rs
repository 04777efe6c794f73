//! Restart: which blocks are current, which records are logged in them, which transactions have
//! committed.
//!
//! ```text
//! scan ─▶ current block of each unit ─▶ page in each slot ─▶ sectors by life ─▶ statuses
//!                                                                                  │
//!         overflow is merged ◀─ statuses written anew ◀─ newest page or sector written again (I4)
//! ```
//!
//! A cut at any moment leaves the same evidence for the next restart: a block that it might fall
//! back to is erased only once its replacement has been written after the cut.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use flagstone_nand::{BlockIndex, Nand};

use super::flash::{Chip, Sector, SectorAt};
use super::format::{PartMeta, Record, SectorHead, SectorKind, Version};
use super::merge::Source;
use super::store::{IplStore, Unit};
use super::{Config, IplError, Mistake};

/// Findings of a scan in a block.
struct Found {
    block: BlockIndex,
    /// Whole data pages by slot.
    pages: Vec<Option<(PartMeta, Version)>>,
    /// Sectors where no data page is.
    sectors: Vec<(SectorAt, SectorHead, Vec<Record>)>,
    /// Sectors of the log region up to the last one that is not erased.
    log_used: u32,
}

impl Found {
    /// The block's life and unit, if it is complete: a block of a merge counts when all pages of the
    /// merge are whole (I1).
    fn identity(&self, mistake: Mistake) -> Option<(u64, u32)> {
        let (meta, _) = self.pages.iter().flatten().next()?;
        // Pages that came later do not belong to the merge.
        let merged = self.pages.iter().flatten().fold(0, |all, (meta, _)| all | meta.merged);
        let is_whole = |slot: &usize| self.pages.get(*slot).is_some_and(Option::is_some);
        let mut slots = (0..u16::BITS as usize).filter(|slot| merged >> slot & 1 == 1);
        let is_complete = slots.all(|slot| is_whole(&slot));
        (is_complete || mistake == Mistake::HalfMergeCounts).then_some((meta.life, meta.unit))
    }

    /// Newest page or log sector of this life.
    fn newest(&self) -> u64 {
        let pages = self.pages.iter().flatten().map(|(meta, _)| meta.sequence);
        let sectors = self.sectors.iter().map(|(_, head, _)| head.sequence);
        pages.chain(sectors).max().unwrap_or(0)
    }
}

impl<D: Nand> IplStore<D> {
    /// Opens the store on `device`: everything that was flushed is there, or in the recovery variant
    /// everything that was committed and nothing else.
    ///
    /// # Errors
    ///
    /// `Unfit`; `Full` when no block is free to repeat programs that were in flight; errors of the
    /// device.
    pub fn open(device: D, config: Config) -> Result<Self, IplError> {
        let mut chip = Chip::new(device, config.log_pages, config.mistake)?;
        let mut found = Vec::new();
        for block in chip.geometry().blocks() {
            found.push(scan(&mut chip, block)?);
        }
        let mut store = Self::around(chip, config, VecDeque::new());
        store.sequence = found.iter().map(Found::newest).max().unwrap_or(0);
        let (current, older) = choose(&found, config.mistake);
        store.place_units(&found, &current);
        store.find_sectors(&found, &current);
        store.statuses.prune();
        store.find_free(&found, &older);
        store.repeat_newest(&found, &current)?;
        let committed = store.statuses.all();
        store.write_statuses(&committed, 1)?;
        let useless = store.statuses.side.take_useless();
        store.free.extend(useless);
        store.merge_overflow()?;
        Ok(store)
    }

    /// Units with the pages in their current blocks. A page that stands in two blocks moved: the
    /// newer one counts.
    fn place_units(&mut self, found: &[Found], current: &BTreeMap<u32, usize>) {
        let mut newest: HashMap<u32, u64> = HashMap::new();
        let last = current.keys().next_back().map_or(0, |last| *last as usize + 1);
        self.units = vec![None; last];
        for (number, at) in current {
            let Found { block, pages, .. } = &found[*at];
            for (slot, (meta, _)) in
                (0_u8..).zip(pages).filter_map(|(slot, it)| Some((slot, (*it)?)))
            {
                let known = newest.entry(meta.page).or_default();
                if meta.sequence > *known {
                    *known = meta.sequence;
                    self.pages.insert(meta.page, (*number, slot));
                }
            }
            let life = pages.iter().flatten().map(|(meta, _)| meta.life).next().unwrap_or(0);
            // A cut may have left the cells of any free slot in doubt.
            let (slots, spent) = (vec![None; pages.len()], u16::MAX);
            let (log, overflow) = (Vec::new(), Vec::new());
            let unit = Unit { block: *block, life, slots, spent, log, overflow };
            self.units[*number as usize] = Some(unit);
        }
        for (page, (number, slot)) in self.pages.clone() {
            if let Ok(unit) = self.unit_mut(number) {
                unit.slots[usize::from(slot)] = Some(page);
            }
        }
    }

    /// Log sectors of the current lives, and the status list.
    fn find_sectors(&mut self, found: &[Found], current: &BTreeMap<u32, usize>) {
        let lives: HashMap<u64, u32> = (0..)
            .zip(&self.units)
            .filter_map(|(number, unit)| Some((unit.as_ref()?.life, number)))
            .collect();
        for (number, at) in current {
            let skipped = u32::from(self.config.mistake != Mistake::FlightTrusted);
            let used = (found[*at].log_used + skipped).min(self.chip.shape.log_sectors);
            if let Ok(unit) = self.unit_mut(*number) {
                // The sector behind the last one may have been in flight, and still read as erased.
                unit.log = vec![None; used as usize];
            }
        }
        let mut overflow: Vec<_> = Vec::new();
        for (at, head, records) in found.iter().flat_map(|found| &found.sectors) {
            let number = lives.get(&head.life).copied();
            match (head.kind, number) {
                (SectorKind::Log, Some(number)) => {
                    let first = self.chip.log_sector(at.block, 0).number;
                    let place = at.number.checked_sub(first).map(|place| place as usize);
                    let is_own = self.unit(number).is_ok_and(|unit| unit.block == at.block);
                    let Some(place) = place.filter(|_| is_own) else { continue };
                    let logged = self.refer(head.slot, records);
                    if let Ok(unit) = self.unit_mut(number)
                        && let Some(known) = unit.log.get_mut(place)
                    {
                        *known = Some(logged);
                    }
                }
                (SectorKind::Overflow, Some(number)) => overflow.push((number, *at, head, records)),
                (SectorKind::Status, _) => {
                    records.iter().for_each(|record| self.statuses.found(record.xid, at.block));
                }
                _ => {}
            }
        }
        for (number, at, head, records) in overflow {
            let logged = self.refer(head.slot, records);
            if let Ok(unit) = self.unit_mut(number) {
                unit.overflow.push((at, logged));
            }
        }
    }

    /// Free blocks; blocks that hold an older life of a unit are taken last, because the newest one
    /// may turn out to be unreadable until it is written again.
    fn find_free(&mut self, found: &[Found], older: &BTreeSet<BlockIndex>) {
        let mut used: BTreeSet<BlockIndex> =
            self.units.iter().flatten().map(|it| it.block).collect();
        let mut overflow: BTreeMap<BlockIndex, u32> = BTreeMap::new();
        for (at, _) in self.units.iter().flatten().flat_map(|unit| &unit.overflow) {
            *overflow.entry(at.block).or_default() += 1;
        }
        for (block, count) in overflow {
            used.insert(block);
            self.overflow.found(block, count);
        }
        for Found { block, sectors, .. } in found {
            if sectors.iter().any(|(_, head, _)| head.kind == SectorKind::Status)
                && used.insert(*block)
            {
                let count = self.statuses.of_block(*block).len();
                self.statuses.side.found(*block, count as u32);
            }
        }
        let blocks = || self.chip.geometry().blocks().filter(|block| !used.contains(block));
        let (last, first): (Vec<_>, Vec<_>) = blocks().partition(|block| older.contains(block));
        self.free = first.into_iter().chain(last).collect();
    }

    /// Writes the unit of the newest page or sector again, as the scan read it: a cut may have left
    /// it readable for a while only (I4).
    fn repeat_newest(
        &mut self,
        found: &[Found],
        current: &BTreeMap<u32, usize>,
    ) -> Result<(), IplError> {
        if self.config.mistake == Mistake::FlightTrusted {
            return Ok(());
        }
        let Some((number, at)) = self.newest(found, current) else { return Ok(()) };
        let unit = self.unit(number)?;
        let images = found[at].pages.iter().zip(&unit.slots);
        let images: Vec<_> = images
            .map(|(page, is_there)| is_there.and(*page).map(|(_, version)| version))
            .collect();
        let life = unit.life;
        let sectors = found.iter().flat_map(|found| &found.sectors);
        let own = sectors.filter(|(_, head, _)| head.life == life);
        let records = own
            .flat_map(|(_, head, records)| records.iter().map(move |record| (head.slot, *record)));
        let records = records.collect();
        if images.iter().all(Option::is_none) {
            self.drop_unit(number);
            return Ok(());
        }
        self.rewrite(number, Source { images, records })
    }

    /// The unit of the newest page or sector, and its place in `found`; none when the newest of all is
    /// in the status list, which is written anew anyway.
    fn newest(&self, found: &[Found], current: &BTreeMap<u32, usize>) -> Option<(u32, usize)> {
        let mut logged: HashMap<u64, u64> = HashMap::new();
        let mut status = 0;
        for (_, head, _) in found.iter().flat_map(|found| &found.sectors) {
            let newest = match head.kind {
                SectorKind::Status => &mut status,
                _ => logged.entry(head.life).or_default(),
            };
            *newest = head.sequence.max(*newest);
        }
        let units = current.iter().filter_map(|(number, at)| {
            let pages = found[*at].pages.iter().flatten().map(|(meta, _)| meta.sequence).max()?;
            let life = self.unit(*number).ok()?.life;
            Some((logged.get(&life).map_or(pages, |sectors| pages.max(*sectors)), *number, *at))
        });
        let (newest, number, at) = units.max()?;
        (newest > status).then_some((number, at))
    }

    /// Merges units with overflow sectors: nothing runs that would have to be carried over.
    fn merge_overflow(&mut self) -> Result<(), IplError> {
        for number in 0..self.units.len() as u32 {
            if self.unit(number).is_ok_and(|unit| !unit.overflow.is_empty()) {
                self.merge(number)?;
            }
        }
        Ok(())
    }
}

/// The current block of each unit, as its place in `found`, and blocks with an older complete life.
fn choose(found: &[Found], mistake: Mistake) -> (BTreeMap<u32, usize>, BTreeSet<BlockIndex>) {
    let mut newest: BTreeMap<u32, (u64, usize)> = BTreeMap::new();
    let mut older = BTreeSet::new();
    for (at, block) in found.iter().enumerate() {
        let Some((life, unit)) = block.identity(mistake) else { continue };
        match newest.get_mut(&unit) {
            Some((known, _)) if *known > life => {
                older.insert(block.block);
            }
            Some(known) => {
                older.insert(found[known.1].block);
                *known = (life, at);
            }
            None => {
                newest.insert(unit, (life, at));
            }
        }
    }
    (newest.into_iter().map(|(unit, (_, at))| (unit, at)).collect(), older)
}

/// Reads a block.
fn scan<D: Nand>(chip: &mut Chip<D>, block: BlockIndex) -> Result<Found, IplError> {
    let shape = chip.shape;
    let mut found = Found { block, pages: Vec::new(), sectors: Vec::new(), log_used: 0 };
    for slot in 0..shape.slots as u8 {
        found.pages.push(chip.read_page(block, slot)?);
    }
    // Only one life began since the last erase; older pages are remains of an erase that was cut.
    let life = found.pages.iter().flatten().map(|(meta, _)| meta.life).max();
    for page in &mut found.pages {
        *page = page.filter(|(meta, _)| Some(meta.life) == life);
    }
    let first_log = chip.log_sector(block, 0).number;
    for first in (0..shape.block_sectors).step_by(shape.sectors_per_page as usize) {
        let at = SectorAt { block, number: first };
        let sectors: Vec<Sector> = chip.read_sectors(at, shape.sectors_per_page)?;
        for (number, sector) in (first..).zip(sectors) {
            let at = SectorAt { block, number };
            if number >= first_log && (sector.is_some() || !chip.is_erased(at)?) {
                found.log_used = number - first_log + 1;
            }
            found.sectors.extend(sector.map(|(head, records)| (at, head, records)));
        }
    }
    Ok(found)
}
