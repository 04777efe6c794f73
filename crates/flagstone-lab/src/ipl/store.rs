//! The store: a buffer's requests to in-page logging, and the sectors and pages that they take.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use flagstone_nand::{BlockIndex, Nand};

use super::flash::{Chip, SectorAt};
use super::format::{
    PartMeta, RECORD_MIN, Record, SECTOR_ROOM, SectorHead, SectorKind, Version, size_of,
};
use super::side::{Side, Statuses};
use super::{Change, Config, IplError, IplStats, Mistake, Variant};

/// Blocks that only merges take (I5).
pub(super) const FREE_MIN: usize = 2;

/// Status blocks that are kept although fewer would do.
const STATUS_BLOCKS_SPARE: usize = 2;

/// A block of data pages and log sectors, as it is known in memory.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) block: BlockIndex,
    pub(super) life: u64,
    /// Page in each slot.
    pub(super) slots: Vec<Option<u32>>,
    /// Slots that were programmed or may have been, a bit each.
    pub(super) spent: u16,
    /// Sectors of the log region that were programmed; none where it is torn or was skipped.
    pub(super) log: Vec<Option<Logged>>,
    pub(super) overflow: Vec<(SectorAt, Logged)>,
}

/// A log sector on flash, as it is known in memory.
#[derive(Clone, Debug)]
pub(super) struct Logged {
    pub(super) slot: u8,
    /// Records of each transaction; left out where no merge asks for them (basic variant).
    pub(super) records: BTreeMap<u64, u32>,
}

impl Unit {
    pub(super) fn free_slot(&self) -> Option<u8> {
        let slots = 0..self.slots.len() as u8;
        slots.into_iter().find(|slot| self.spent >> slot & 1 == 0)
    }

    /// Numbers of log sectors of a page, or of all pages that are there.
    pub(super) fn sectors_of(&self, slot: Option<u8>) -> Vec<u32> {
        let is_asked = |logged: &Logged| match slot {
            Some(slot) => logged.slot == slot,
            None => self.slots.get(usize::from(logged.slot)).is_some_and(Option::is_some),
        };
        let logged = (0..).zip(&self.log);
        logged.filter(|(_, it)| it.as_ref().is_some_and(is_asked)).map(|(at, _)| at).collect()
    }
}

/// Records of a dirty page that are in memory alone.
pub(super) type Pending = Vec<Record>;

/// Pages under in-page logging, on a chip.
#[derive(Clone, Debug)]
pub struct IplStore<D> {
    pub(super) chip: Chip<D>,
    pub(super) config: Config,
    /// Number of the last page, sector or life.
    pub(super) sequence: u64,
    pub(super) units: Vec<Option<Unit>>,
    /// Unit and slot of each page on flash.
    pub(super) pages: HashMap<u32, (u32, u8)>,
    /// Pages that are not on flash yet.
    pub(super) new: HashMap<u32, Version>,
    /// In-memory log sectors.
    pub(super) pending: HashMap<u32, Pending>,
    /// Running transactions, and the pages with records of these transactions in memory.
    pub(super) running: BTreeMap<u64, BTreeSet<u32>>,
    /// Units that may have a free slot.
    pub(super) roomy: Vec<u32>,
    pub(super) free: VecDeque<BlockIndex>,
    pub(super) overflow: Side,
    pub(super) statuses: Statuses,
    pub(super) stats: IplStats,
}

impl<D: Nand> IplStore<D> {
    /// An empty store on `device`.
    ///
    /// # Errors
    ///
    /// `Unfit` when the device cannot carry log sectors.
    pub fn format(device: D, config: Config) -> Result<Self, IplError> {
        let chip = Chip::new(device, config.log_pages, config.mistake)?;
        let free = chip.geometry().blocks().collect();
        Ok(Self::around(chip, config, free))
    }

    pub(super) fn around(chip: Chip<D>, config: Config, free: VecDeque<BlockIndex>) -> Self {
        Self {
            chip,
            config,
            sequence: 0,
            units: Vec::new(),
            pages: HashMap::new(),
            new: HashMap::new(),
            pending: HashMap::new(),
            running: BTreeMap::new(),
            roomy: Vec::new(),
            free,
            overflow: Side::default(),
            statuses: Statuses::default(),
            stats: IplStats::default(),
        }
    }

    /// The device, to look at.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.chip.device
    }

    /// The device, for its clock, counters and faults.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.chip.device
    }

    /// Gives the device back as it is: nothing is flushed.
    #[must_use]
    pub fn into_device(self) -> D {
        self.chip.device
    }

    /// Counters of the store so far.
    #[must_use]
    pub const fn stats(&self) -> IplStats {
        self.stats
    }

    /// Bytes of a log record at most.
    #[must_use]
    pub const fn record_size_max() -> usize {
        SECTOR_ROOM
    }

    /// Whether the page exists.
    #[must_use]
    pub fn has(&self, page: u32) -> bool {
        self.pages.contains_key(&page) || self.new.contains_key(&page)
    }

    /// Makes a page in memory; change `number` stands for its content.
    pub fn create(&mut self, page: u32, number: u64) {
        let mut version = Version::default();
        version.add(page, number);
        self.forget(page);
        self.new.insert(page, version);
    }

    /// Gives a page up. Its slot is free after the next merge.
    pub fn forget(&mut self, page: u32) {
        self.new.remove(&page);
        self.pending.remove(&page);
        if let Some((number, slot)) = self.pages.remove(&page)
            && let Ok(unit) = self.unit_mut(number)
        {
            unit.slots[usize::from(slot)] = None;
            if unit.slots.iter().all(Option::is_none) {
                self.drop_unit(number);
            }
        }
    }

    /// Adds the record of a change to the page's log sector in memory, which is written first when
    /// it is full.
    ///
    /// # Errors
    ///
    /// `NoPage`; `Full`; errors of the device.
    pub fn change(&mut self, page: u32, change: Change) -> Result<(), IplError> {
        if !self.has(page) {
            return Err(IplError::NoPage(page));
        }
        let is_own = self.config.variant == Variant::Recovery && change.xid != 0;
        if let Some(version) = self.new.get_mut(&page).filter(|_| !is_own) {
            // The page is written as a whole when it leaves memory.
            version.add(page, change.number);
            return Ok(());
        }
        let size = change.size.clamp(RECORD_MIN, SECTOR_ROOM) as u16;
        let record = Record { xid: change.xid, number: change.number, size };
        let used = self.pending.get(&page).map_or(0, |records| size_of(records));
        if used + size_of(&[record]) > SECTOR_ROOM {
            self.flush(page)?;
        }
        if is_own {
            // The flush has just forgotten that the transaction has records of this page in memory.
            self.running.entry(change.xid).or_default().insert(page);
        }
        self.pending.entry(page).or_default().push(record);
        Ok(())
    }

    /// The page leaves memory, or is written for another reason: its log sector is.
    ///
    /// # Errors
    ///
    /// `Full`; errors of the device.
    pub fn flush(&mut self, page: u32) -> Result<(), IplError> {
        if let Some(version) = self.new.get(&page).copied() {
            self.write_new(page, version)?;
            self.new.remove(&page);
        }
        let Some(records) = self.pending.remove(&page) else { return Ok(()) };
        for record in &records {
            if let Some(pages) = self.running.get_mut(&record.xid) {
                pages.remove(&page);
            }
        }
        if records.is_empty() {
            return Ok(());
        }
        self.write_sector(page, &records)
    }

    /// Reads a page that is not in memory, with all changes logged for it.
    ///
    /// # Errors
    ///
    /// `NoPage`; `Corrupt`; errors of the device.
    pub fn read(&mut self, page: u32) -> Result<Version, IplError> {
        let mut version = match self.new.get(&page) {
            Some(version) => *version,
            None => self.read_flash(page)?,
        };
        for record in self.pending.get(&page).into_iter().flatten() {
            version.add(page, record.number);
        }
        Ok(version)
    }

    fn read_flash(&mut self, page: u32) -> Result<Version, IplError> {
        let (unit, slot) = self.pages.get(&page).copied().ok_or(IplError::NoPage(page))?;
        let mut version = self.read_image(unit, slot)?;
        for (_, record) in self.read_log(unit, Some(slot))? {
            if !self.is_aborted(record.xid) {
                version.add(page, record.number);
            }
        }
        Ok(version)
    }

    /// Whether the transaction has ended without a commit.
    pub(super) fn is_aborted(&self, xid: u64) -> bool {
        self.config.variant == Variant::Recovery
            && !self.statuses.has_committed(xid)
            && !self.running.contains_key(&xid)
    }

    /// Makes the transaction durable (recovery variant).
    ///
    /// # Errors
    ///
    /// `Full`; errors of the device.
    pub fn commit(&mut self, xid: u64) -> Result<(), IplError> {
        let Some(pages) = self.running.get(&xid).cloned() else { return Ok(()) };
        if self.config.mistake == Mistake::StatusFirst {
            self.write_statuses(&[xid], FREE_MIN)?;
        }
        for page in pages {
            self.flush(page)?;
        }
        if self.config.mistake != Mistake::StatusFirst && self.statuses.is_referenced(xid) {
            self.write_statuses(&[xid], FREE_MIN)?;
        }
        self.running.remove(&xid);
        Ok(())
    }

    /// Takes the transaction back: of its records only the ones on flash are left, for merges to
    /// drop (recovery variant).
    pub fn abort(&mut self, xid: u64) {
        for page in self.running.remove(&xid).unwrap_or_default() {
            if let Some(records) = self.pending.get_mut(&page) {
                records.retain(|record| record.xid != xid);
            }
        }
    }
}

/// Pages and sectors on flash.
impl<D: Nand> IplStore<D> {
    pub(super) fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Takes a free block and erases it, as long as more than `kept` are left.
    pub(super) fn take_block(&mut self, kept: usize) -> Result<BlockIndex, IplError> {
        if self.free.len() <= kept {
            return Err(IplError::Full);
        }
        let block = self.free.pop_front().ok_or(IplError::Full)?;
        self.chip.erase(block)?;
        Ok(block)
    }

    pub(super) fn unit(&self, number: u32) -> Result<&Unit, IplError> {
        let check = "no such unit";
        let unit = self.units.get(number as usize).and_then(Option::as_ref);
        unit.ok_or(IplError::Corrupt { block: BlockIndex(u32::MAX), check })
    }

    pub(super) fn unit_mut(&mut self, number: u32) -> Result<&mut Unit, IplError> {
        let check = "no such unit";
        let unit = self.units.get_mut(number as usize).and_then(Option::as_mut);
        unit.ok_or(IplError::Corrupt { block: BlockIndex(u32::MAX), check })
    }

    pub(super) fn read_image(&mut self, unit: u32, slot: u8) -> Result<Version, IplError> {
        let unit = self.unit(unit)?;
        let (block, life, page) = (unit.block, unit.life, unit.slots[usize::from(slot)]);
        let found = self.chip.read_page(block, slot)?;
        let found = found.filter(|(meta, _)| meta.life == life && Some(meta.page) == page);
        let check = "a data page does not read";
        Ok(found.ok_or(IplError::Corrupt { block, check })?.1)
    }

    /// Records of a page on flash, or of all pages of a unit, with their slots.
    pub(super) fn read_log(
        &mut self,
        unit: u32,
        slot: Option<u8>,
    ) -> Result<Vec<(u8, Record)>, IplError> {
        let unit = self.unit(unit)?;
        let (block, numbers) = (unit.block, unit.sectors_of(slot));
        let first = self.chip.log_sector(block, 0).number;
        let numbers: Vec<u32> = numbers.into_iter().map(|number| first + number).collect();
        let is_asked = |logged: &Logged| slot.is_none_or(|slot| slot == logged.slot);
        let overflow: Vec<SectorAt> =
            unit.overflow.iter().filter(|(_, it)| is_asked(it)).map(|(at, _)| *at).collect();
        let mut sectors = self.chip.read_all(block, &numbers)?;
        for at in overflow {
            sectors.extend(self.chip.read_all(at.block, &[at.number])?);
        }
        let with_slot = |(head, records): (SectorHead, Vec<Record>)| {
            records.into_iter().map(move |record| (head.slot, record))
        };
        Ok(sectors.into_iter().flat_map(with_slot).collect())
    }

    /// Writes a page that is not on flash yet into a free slot.
    fn write_new(&mut self, page: u32, version: Version) -> Result<(), IplError> {
        let (number, slot) = self.take_slot()?;
        let unit = self.unit_mut(number)?;
        unit.spent |= 1 << slot;
        let (block, life) = (unit.block, unit.life);
        let sequence = self.next_sequence();
        let meta = PartMeta { life, sequence, unit: number, page, merged: 0 };
        self.chip.program_page(block, slot, &meta, version)?;
        self.unit_mut(number)?.slots[usize::from(slot)] = Some(page);
        self.pages.insert(page, (number, slot));
        self.stats.pages_created += 1;
        Ok(())
    }

    /// A free slot, of a new unit if need be.
    fn take_slot(&mut self) -> Result<(u32, u8), IplError> {
        while let Some(number) = self.roomy.last().copied() {
            if let Ok(unit) = self.unit(number)
                && let Some(slot) = unit.free_slot()
            {
                return Ok((number, slot));
            }
            self.roomy.pop();
        }
        let block = self.take_block(FREE_MIN)?;
        let life = self.next_sequence();
        let slots = vec![None; self.chip.shape.slots as usize];
        let (log, overflow) = (Vec::new(), Vec::new());
        let unit = Unit { block, life, slots, spent: 0, log, overflow };
        let vacant = self.units.iter().position(Option::is_none);
        let number = vacant.unwrap_or(self.units.len());
        match self.units.get_mut(number) {
            Some(place) => *place = Some(unit),
            None => self.units.push(Some(unit)),
        }
        self.roomy.push(number as u32);
        Ok((number as u32, 0))
    }

    /// Writes a log sector of a page on flash, to its unit if it has room or can be given some.
    fn write_sector(&mut self, page: u32, records: &[Record]) -> Result<(), IplError> {
        let (number, slot) = self.pages.get(&page).copied().ok_or(IplError::NoPage(page))?;
        self.stats.sectors += 1;
        self.stats.record_bytes += size_of(records) as u64;
        let log_sectors = self.chip.shape.log_sectors as usize;
        if self.unit(number)?.log.len() >= log_sectors {
            if !self.can_merge(number)? {
                return self.write_overflow(number, slot, page, records);
            }
            self.merge(number)?;
        }
        self.log_to(number, slot, page, records)
    }

    /// Programs the next sector of a unit's log region.
    pub(super) fn log_to(
        &mut self,
        number: u32,
        slot: u8,
        page: u32,
        records: &[Record],
    ) -> Result<(), IplError> {
        let sequence = self.next_sequence();
        let unit = self.unit(number)?;
        let (life, place) = (unit.life, unit.log.len() as u32);
        assert!(place < self.chip.shape.log_sectors, "the log region has room");
        let at = self.chip.log_sector(unit.block, place);
        let head = SectorHead { kind: SectorKind::Log, slot, life, sequence, page };
        self.chip.program_sector(at, &head, records)?;
        let logged = self.refer(slot, records);
        self.unit_mut(number)?.log.push(Some(logged));
        Ok(())
    }

    /// Notes the transactions with records in a sector on flash (recovery variant).
    pub(super) fn refer(&mut self, slot: u8, records: &[Record]) -> Logged {
        let mut logged = Logged { slot, records: BTreeMap::new() };
        if self.config.variant == Variant::Recovery {
            for record in records.iter().filter(|record| record.xid != 0) {
                *logged.records.entry(record.xid).or_default() += 1;
            }
            logged.records.keys().for_each(|xid| self.statuses.refer(*xid));
        }
        logged
    }

    fn write_overflow(
        &mut self,
        number: u32,
        slot: u8,
        page: u32,
        records: &[Record],
    ) -> Result<(), IplError> {
        let at = match self.overflow.next(self.chip.shape.block_sectors) {
            Some(at) => at,
            None => {
                let block = self.take_block(FREE_MIN)?;
                let unused = self.overflow.begin(block);
                self.free.extend(unused);
                self.overflow.next(self.chip.shape.block_sectors).ok_or(IplError::Full)?
            }
        };
        let (life, sequence) = (self.unit(number)?.life, self.next_sequence());
        let head = SectorHead { kind: SectorKind::Overflow, slot, life, sequence, page };
        self.chip.program_sector(at, &head, records)?;
        let logged = self.refer(slot, records);
        self.overflow.need(at.block, 1);
        self.unit_mut(number)?.overflow.push((at, logged));
        self.stats.overflow_sectors += 1;
        Ok(())
    }

    /// Adds transactions to the status list, as many as there are; a block for them is taken as long as
    /// more than `kept` are left.
    pub(super) fn write_statuses(&mut self, xids: &[u64], kept: usize) -> Result<(), IplError> {
        for xids in xids.chunks(SECTOR_ROOM / RECORD_MIN) {
            let at = match self.statuses.side.next(self.chip.shape.block_sectors) {
                Some(at) => at,
                None => self.begin_status_block(kept)?,
            };
            let status = |xid: &u64| Record { xid: *xid, number: 0, size: RECORD_MIN as u16 };
            let records: Vec<Record> = xids.iter().map(status).collect();
            let sequence = self.next_sequence();
            let kind = SectorKind::Status;
            let head = SectorHead { kind, slot: 0, life: 0, sequence, page: 0 };
            self.chip.program_sector(at, &head, &records)?;
            let unused = self.statuses.tell(xids, at.block);
            self.free.extend(unused);
            self.stats.status_sectors += 1;
        }
        Ok(())
    }

    /// Begins a status block, and empties the oldest one where there are more than needed.
    fn begin_status_block(&mut self, kept: usize) -> Result<SectorAt, IplError> {
        let block = self.take_block(kept)?;
        let unused = self.statuses.side.begin(block);
        self.free.extend(unused);
        let per_block = SECTOR_ROOM / RECORD_MIN * self.chip.shape.block_sectors as usize;
        let needed = 1 + self.statuses.count().div_ceil(per_block);
        if let Some(oldest) = self.statuses.side.oldest_beyond(needed + STATUS_BLOCKS_SPARE) {
            let xids = self.statuses.of_block(oldest);
            self.write_statuses(&xids, kept)?;
        }
        self.statuses.side.next(self.chip.shape.block_sectors).ok_or(IplError::Full)
    }
}
