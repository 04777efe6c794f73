//! The chip under a store: parts and sectors, without remains of a cut.

use flagstone_nand::{BlockIndex, Geometry, Nand, NandError, PhysicalPage, ProgramPart, ReadPart};

use super::format::{
    META_SIZE, PartMeta, Record, SECTOR_SIZE, SectorHead, Version, decode_part, decode_sector,
    encode_part, encode_sector,
};
use super::{IplError, Mistake};

/// Shape of a unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Flash pages of a data page.
    pub(super) parts: u32,
    /// Data pages of a unit.
    pub(super) slots: u32,
    /// Log sectors of a flash page.
    pub(super) sectors_per_page: u32,
    /// Log sectors of a unit.
    pub(super) log_sectors: u32,
    /// Sectors of a block that holds nothing else.
    pub(super) block_sectors: u32,
}

/// A log sector on a chip: its number within its block counts from the block's first flash page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SectorAt {
    pub(super) block: BlockIndex,
    pub(super) number: u32,
}

/// Result of reading a sector: its head and records, or none where it is no sector.
pub(super) type Sector = Option<(SectorHead, Vec<Record>)>;

/// A chip, and the shape of its units.
#[derive(Clone, Debug)]
pub(super) struct Chip<D> {
    pub(super) device: D,
    pub(super) shape: Shape,
    pub(super) mistake: Mistake,
    geometry: Geometry,
    spare_offset: u32,
}

/// Bytes of a data page.
const DATA_PAGE_SIZE: u32 = 8192;

impl<D: Nand> Chip<D> {
    pub(super) fn new(device: D, log_pages: u32, mistake: Mistake) -> Result<Self, IplError> {
        let (geometry, capabilities) = (device.geometry(), device.capabilities());
        let sector_size = SECTOR_SIZE as u32;
        let sectors_per_page = geometry.page_size / sector_size;
        let programs = capabilities.programs_data.min(capabilities.programs_spare);
        if sectors_per_page == 0 || programs < sectors_per_page {
            return Err(IplError::Unfit("a flash page takes a program for each of its sectors"));
        }
        if !sector_size.is_multiple_of(capabilities.code_word.data_size) {
            return Err(IplError::Unfit("sectors are whole code words"));
        }
        if (capabilities.spare_raw.size as usize) < META_SIZE {
            return Err(IplError::Unfit("metadata of a page need raw spare bytes"));
        }
        let parts = DATA_PAGE_SIZE.div_ceil(geometry.page_size);
        let slots = (geometry.pages_per_block / parts).saturating_sub(log_pages);
        if log_pages == 0 || !(1..=16).contains(&slots) {
            return Err(IplError::Unfit("a block holds data pages and a log region"));
        }
        let log_sectors = (geometry.pages_per_block - slots * parts) * sectors_per_page;
        let block_sectors = geometry.pages_per_block * sectors_per_page;
        let shape = Shape { parts, slots, sectors_per_page, log_sectors, block_sectors };
        let spare_offset = capabilities.spare_raw.offset;
        Ok(Self { device, shape, mistake, geometry, spare_offset })
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn page(&self, block: BlockIndex, index: u32) -> Result<PhysicalPage, IplError> {
        let check = "no such page";
        self.geometry.page(block, index).ok_or(IplError::Corrupt { block, check })
    }

    pub(super) fn erase(&mut self, block: BlockIndex) -> Result<(), IplError> {
        self.device.erase(block)?;
        Ok(())
    }

    /// Sector `number` of a unit's log region.
    pub(super) fn log_sector(&self, block: BlockIndex, number: u32) -> SectorAt {
        let first = self.shape.slots * self.shape.parts * self.shape.sectors_per_page;
        SectorAt { block, number: first + number }
    }

    /// Programs a data page into a slot of a block.
    pub(super) fn program_page(
        &mut self,
        block: BlockIndex,
        slot: u8,
        meta: &PartMeta,
        version: Version,
    ) -> Result<(), IplError> {
        let mut data = vec![0; self.geometry.page_size as usize];
        for part in 0..self.shape.parts {
            let index = u32::from(slot) * self.shape.parts + part;
            let spare = encode_part(meta, version, index, &mut data);
            let page = self.page(block, index)?;
            let spare_offset = self.spare_offset;
            let part = ProgramPart { data_offset: 0, data: &data, spare_offset, spare: &spare };
            self.device.program(page, part)?;
        }
        Ok(())
    }

    /// Reads flash page `index` of a block as a part; none when the part is not whole.
    pub(super) fn read_part(
        &mut self,
        block: BlockIndex,
        index: u32,
    ) -> Result<Option<(PartMeta, Version)>, IplError> {
        let page = self.page(block, index)?;
        let mut data = vec![0; self.geometry.page_size as usize];
        let mut spare = [0; META_SIZE];
        let spare_offset = self.spare_offset;
        let part = ReadPart { data_offset: 0, data: &mut data, spare_offset, spare: &mut spare };
        match self.device.read(page, part) {
            Ok(_) => Ok(decode_part(&data, &spare, index, self.mistake)),
            Err(NandError::Uncorrectable { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the data page in a slot of a block; none when it is not whole.
    pub(super) fn read_page(
        &mut self,
        block: BlockIndex,
        slot: u8,
    ) -> Result<Option<(PartMeta, Version)>, IplError> {
        let first = u32::from(slot) * self.shape.parts;
        let Some(mut found) = self.read_part(block, first)? else { return Ok(None) };
        for index in first + 1..first + self.shape.parts {
            // Parts of one write share its sequence; each has a checksum for its content.
            match self.read_part(block, index)? {
                Some(part) if part.0 == found.0 => found = part,
                _ => return Ok(None),
            }
        }
        Ok(Some(found))
    }

    pub(super) fn program_sector(
        &mut self,
        at: SectorAt,
        head: &SectorHead,
        records: &[Record],
    ) -> Result<(), IplError> {
        let (page, data_offset) = self.place_of(at)?;
        let data = &encode_sector(head, records);
        let part = ProgramPart { data_offset, data, spare_offset: 0, spare: &[] };
        self.device.program(page, part)?;
        Ok(())
    }

    fn place_of(&self, at: SectorAt) -> Result<(PhysicalPage, u32), IplError> {
        let (index, place) =
            (at.number / self.shape.sectors_per_page, at.number % self.shape.sectors_per_page);
        Ok((self.page(at.block, index)?, place * SECTOR_SIZE as u32))
    }

    /// Reads `count` sectors of one flash page at once.
    pub(super) fn read_sectors(
        &mut self,
        first: SectorAt,
        count: u32,
    ) -> Result<Vec<Sector>, IplError> {
        let (page, data_offset) = self.place_of(first)?;
        let mut data = vec![0; count as usize * SECTOR_SIZE];
        let part = ReadPart { data_offset, data: &mut data, spare_offset: 0, spare: &mut [] };
        match self.device.read(page, part) {
            Ok(_) => {
                let sectors = data.chunks(SECTOR_SIZE);
                Ok(sectors.map(|bytes| decode_sector(bytes, self.mistake)).collect())
            }
            Err(NandError::Uncorrectable { .. }) if count > 1 => {
                // A torn sector does not take its neighbours along.
                let mut sectors = Vec::new();
                for number in first.number..first.number + count {
                    sectors.extend(self.read_sectors(SectorAt { number, ..first }, 1)?);
                }
                Ok(sectors)
            }
            Err(NandError::Uncorrectable { .. }) => Ok(vec![None]),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the sectors at `numbers` of a block, ascending: a read for each flash page with some.
    pub(super) fn read_all(
        &mut self,
        block: BlockIndex,
        numbers: &[u32],
    ) -> Result<Vec<(SectorHead, Vec<Record>)>, IplError> {
        let mut found = Vec::with_capacity(numbers.len());
        let per_page = self.shape.sectors_per_page;
        for group in numbers.chunk_by(|one, other| one / per_page == other / per_page) {
            let [first, ..] = group else { continue };
            let count = group[group.len() - 1] - first + 1;
            let sectors = self.read_sectors(SectorAt { block, number: *first }, count)?;
            for number in group {
                let sector = sectors.get((number - first) as usize).cloned().flatten();
                let check = "a log sector does not read";
                found.push(sector.ok_or(IplError::Corrupt { block, check })?);
            }
        }
        Ok(found)
    }

    /// Whether a sector reads as erased.
    pub(super) fn is_erased(&mut self, at: SectorAt) -> Result<bool, IplError> {
        let (page, data_offset) = self.place_of(at)?;
        let mut data = [0; SECTOR_SIZE];
        let part = ReadPart { data_offset, data: &mut data, spare_offset: 0, spare: &mut [] };
        match self.device.read(page, part) {
            Ok(_) => Ok(data.iter().all(|byte| *byte == 0xFF)),
            Err(NandError::Uncorrectable { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
