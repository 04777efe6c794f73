//! Merges: a unit's pages with their records applied, in another block.
//!
//! ```text
//! old block    pages │ log, full        overflow sectors
//!                │       │                    │
//!                └───────┴──── records ───────┘
//! new block    pages │ carried records, if any │ free sectors        then the old block is free
//! ```

use std::collections::BTreeMap;

use flagstone_nand::Nand;

use super::format::{PartMeta, Record, SECTOR_ROOM, Version, size_of};
use super::store::{IplStore, Logged, Unit};
use super::{IplError, Mistake, Variant};

/// Input of a merge: the image in each slot, and all records.
pub(super) struct Source {
    pub(super) images: Vec<Option<Version>>,
    pub(super) records: Vec<(u8, Record)>,
}

impl<D: Nand> IplStore<D> {
    /// Whether a merge of the unit makes room, and carries over no more than it may.
    pub(super) fn can_merge(&self, number: u32) -> Result<bool, IplError> {
        if self.config.variant == Variant::Basic {
            return Ok(true);
        }
        let unit = self.unit(number)?;
        let is_there = |logged: &&Logged| {
            unit.slots.get(usize::from(logged.slot)).is_some_and(Option::is_some)
        };
        let overflow = unit.overflow.iter().map(|(_, logged)| logged);
        let (mut all, mut carried, mut sectors) = (0, 0, 0);
        for logged in unit.log.iter().flatten().chain(overflow).filter(is_there) {
            let running = logged.records.iter().filter(|(xid, _)| self.running.contains_key(xid));
            let running: u32 = running.map(|(_, count)| count).sum();
            all += logged.records.values().sum::<u32>();
            carried += running;
            sectors += u32::from(running > 0);
        }
        let share = f64::from(carried) / f64::from(all.max(1));
        Ok(sectors < self.chip.shape.log_sectors && share <= self.config.carried_max)
    }

    /// Merges a unit.
    pub(super) fn merge(&mut self, number: u32) -> Result<(), IplError> {
        let slots = self.unit(number)?.slots.clone();
        let mut images = Vec::with_capacity(slots.len());
        for (slot, page) in (0..).zip(slots) {
            let image = page.map(|_| self.read_image(number, slot)).transpose()?;
            images.push(image);
        }
        let records = self.read_log(number, None)?;
        self.stats.merges += 1;
        self.rewrite(number, Source { images, records })
    }

    /// Writes a unit into another block; pages in `source` are not read again.
    pub(super) fn rewrite(&mut self, number: u32, source: Source) -> Result<(), IplError> {
        let old = self.unit(number)?.clone();
        let Source { mut images, records } = source;
        let mut carried: BTreeMap<u8, Vec<Record>> = BTreeMap::new();
        for (slot, record) in records {
            let page = old.slots.get(usize::from(slot)).copied().flatten();
            let image = images.get_mut(usize::from(slot)).and_then(Option::as_mut);
            let (Some(page), Some(image)) = (page, image) else { continue };
            if self.running.contains_key(&record.xid) {
                carried.entry(slot).or_default().push(record);
            } else if !self.is_aborted(record.xid) {
                image.add(page, record.number);
            }
        }
        if self.config.mistake == Mistake::EraseFirst {
            self.chip.erase(old.block)?;
        }
        let block = self.take_block(0)?;
        let life = self.next_sequence();
        let pages = || (0_u8..).zip(&old.slots).filter_map(|(slot, page)| Some((slot, (*page)?)));
        let merged = pages().fold(0_u16, |merged, (slot, _)| merged | 1 << slot);
        for (slot, page) in pages() {
            let version = images[usize::from(slot)].unwrap_or_default();
            let sequence = self.next_sequence();
            let meta = PartMeta { life, sequence, unit: number, page, merged };
            self.chip.program_page(block, slot, &meta, version)?;
        }
        // The block is complete: it is the unit's current one from here on (I1).
        let unit = Unit {
            block,
            life,
            slots: old.slots.clone(),
            spent: merged,
            log: Vec::new(),
            overflow: Vec::new(),
        };
        if unit.free_slot().is_some() {
            self.roomy.push(number);
        }
        if let Some(place) = self.units.get_mut(number as usize) {
            *place = Some(unit);
        }
        self.carry_over(number, carried)?;
        self.let_go(old);
        Ok(())
    }

    /// Records of running transactions go to the log region of the new block, packed by page.
    fn carry_over(
        &mut self,
        number: u32,
        carried: BTreeMap<u8, Vec<Record>>,
    ) -> Result<(), IplError> {
        for (slot, records) in carried {
            let page = self.unit(number)?.slots.get(usize::from(slot)).copied().flatten();
            let Some(page) = page else { continue };
            self.stats.carried += records.len() as u64;
            let mut sector: Vec<Record> = Vec::new();
            for record in records {
                if size_of(&sector) + size_of(&[record]) > SECTOR_ROOM {
                    self.log_to(number, slot, page, &sector)?;
                    sector.clear();
                }
                sector.push(record);
            }
            self.log_to(number, slot, page, &sector)?;
        }
        Ok(())
    }

    /// Frees a unit that has no pages any more.
    pub(super) fn drop_unit(&mut self, number: u32) {
        let unit = self.units.get_mut(number as usize).and_then(Option::take);
        if let Some(unit) = unit {
            self.let_go(unit);
        }
    }

    /// Frees the block of a unit, and the overflow and status blocks that only its sectors still
    /// needed.
    fn let_go(&mut self, old: Unit) {
        for (at, _) in &old.overflow {
            self.free.extend(self.overflow.release(at.block));
        }
        let overflow = old.overflow.into_iter().map(|(_, logged)| logged);
        for logged in old.log.into_iter().flatten().chain(overflow) {
            for xid in logged.records.keys() {
                self.free.extend(self.statuses.drop_reference(*xid));
            }
        }
        self.free.push_back(old.block);
    }
}
