//! The device of a record store: units, log pages and flags, with their contents.
//!
//! Owns the device, the sizes that follow from its geometry, and the tally by kind of work. Never
//! knows which units are live.
//!
//! F1. A unit is returned only if all its parts are there, of one version, and fit their checksums.
//! F2. A flag is programmed on the first part of a unit, and read back.

use flagstone_nand::{
    BlockIndex, Capabilities, Completion, Geometry, Nand, NandError, PhysicalPage, ProgramPart,
    ReadPart,
};

use super::note::{self, Header, Kind, Note, RawNote, SLOTS_MAX};
use super::{RecordBug, RecordOptions, SLOT_STRIDE};
use crate::evidence::Flag;
use crate::shadow::ShadowProtocol;
use crate::shadow::bugs::Bugs;
use crate::shadow::flash::{Fault, Work, WorkTally};
use crate::shadow::options::{Lack, note_offset};
use flagstone_space::bytes::crc32c;
use flagstone_space::{Check, LogicalPage, Version};

/// Sizes; constant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) geometry: Geometry,
    note_offset: u32,
    pub(super) parts: u32,
    /// Transactions that one unit carries at most, by the device's programs and spare bytes.
    pub(super) slots: usize,
    /// Bytes of a unit.
    pub(super) unit_size: usize,
    pub(super) units_per_block: u32,
}

impl Sizes {
    pub(super) fn new(
        geometry: Geometry,
        capabilities: Capabilities,
        options: &RecordOptions,
    ) -> Result<Self, Lack> {
        let note_offset = note_offset(&geometry, &capabilities, ShadowProtocol::Cfc)?;
        let room = (capabilities.spare_raw.size as usize).saturating_sub(note::NOTE_SIZE);
        // The first program of a page counts.
        let programs = capabilities.programs_spare.saturating_sub(1) as usize;
        let slots = programs.min(room / note::cells_of(0, Flag::First).1.len()).min(SLOTS_MAX);
        let parts = options.unit_pages;
        let units_per_block = geometry.pages_per_block.saturating_sub(1) / parts.max(1);
        let summary_size = note::summary_size(units_per_block, slots);
        if units_per_block == 0 || summary_size > geometry.page_size as usize {
            return Err(Lack::Room);
        }
        let unit_size = (geometry.page_size * parts) as usize;
        Ok(Self { geometry, note_offset, parts, slots, unit_size, units_per_block })
    }

    /// Bytes of a unit that are its content.
    pub(super) const fn image_size(&self) -> usize {
        self.unit_size - note::header_size(self.slots)
    }

    pub(super) const fn block_of(&self, at: u32) -> BlockIndex {
        BlockIndex(at / self.geometry.pages_per_block)
    }

    /// Block of a member.
    pub(super) const fn block_of_member(&self, address: u32) -> BlockIndex {
        self.block_of(address / SLOT_STRIDE)
    }

    pub(super) const fn first_of(&self, block: BlockIndex) -> u32 {
        block.0 * self.geometry.pages_per_block
    }

    /// First page of a block, and the one after its last.
    pub(super) const fn range_of(&self, block: BlockIndex) -> (u32, u32) {
        (self.first_of(block), self.first_of(block) + self.geometry.pages_per_block)
    }

    /// Last page of a block: its summary, unless it is one of the log's.
    pub(super) const fn last_of(&self, block: BlockIndex) -> u32 {
        self.first_of(block) + self.geometry.pages_per_block - 1
    }

    /// Every place of a unit in a block.
    pub(super) fn units_of(&self, block: BlockIndex) -> impl Iterator<Item = u32> + use<> {
        let (first, parts) = (self.first_of(block), self.parts);
        (0..self.units_per_block).map(move |unit| first + unit * parts)
    }
}

/// Device, sizes, tally.
#[derive(Clone, Debug)]
pub(super) struct Flash<D> {
    pub(super) device: D,
    pub(super) sizes: Sizes,
    pub(super) work: Work,
    tallies: [WorkTally; 3],
    pub(super) log_programs: u64,
    /// Time at which each die is idle, as far as known.
    idle_ns: Vec<u64>,
    /// When everything programmed so far is complete.
    pub(super) programs_end_ns: u64,
    pub(super) bugs: Bugs<RecordBug>,
}

impl<D: Nand> Flash<D> {
    pub(super) fn new(device: D, sizes: Sizes) -> Self {
        let idle_ns = vec![0; sizes.geometry.die_count as usize];
        let (tallies, log_programs, programs_end_ns) = (Default::default(), 0, 0);
        Self {
            device,
            sizes,
            work: Work::Host,
            tallies,
            log_programs,
            idle_ns,
            programs_end_ns,
            bugs: Bugs::default(),
        }
    }

    pub(super) const fn tally(&self, work: Work) -> WorkTally {
        self.tallies[work as usize]
    }

    pub(super) fn now(&self) -> u64 {
        self.device.now_ns()
    }

    /// Goes on no earlier than `end_ns`.
    pub(super) fn wait(&mut self, end_ns: u64) {
        self.device.advance_to(end_ns);
    }

    pub(super) fn page(&self, number: u32) -> Result<PhysicalPage, NandError> {
        let page = self.sizes.geometry.page_from_number(number);
        page.ok_or(NandError::Host { errno: 22 })
    }

    /// Takes note of an operation that was issued at `issued_ns`.
    fn count(&mut self, number: u32, issued_ns: u64, done: Completion) -> &mut WorkTally {
        let die = self.sizes.geometry.die_of(self.sizes.block_of(number)) as usize;
        let tally = &mut self.tallies[self.work as usize];
        if let Some(idle_ns) = self.idle_ns.get_mut(die) {
            tally.busy_ns += done.end_ns.saturating_sub(issued_ns.max(*idle_ns));
            *idle_ns = done.end_ns.max(*idle_ns);
        }
        tally
    }

    /// Programs one page with its note and its first flags; gives the time at which the program is
    /// complete.
    pub(super) fn program_page(
        &mut self,
        number: u32,
        note: &Note,
        flags: &[Flag],
        data: &[u8],
    ) -> Result<u64, NandError> {
        let page = self.page(number)?;
        let mut spare = note.encode(page, crc32c(data)).to_vec();
        for (slot, flag) in flags.iter().enumerate() {
            spare.extend(note::cells_of(slot, *flag).1);
        }
        let issued_ns = self.now();
        let spare_offset = self.sizes.note_offset;
        let part = ProgramPart { data_offset: 0, data, spare_offset, spare: &spare };
        let done = self.device.program(page, part)?;
        self.programs_end_ns = self.programs_end_ns.max(done.end_ns);
        match note.kind {
            Kind::Log => {
                self.count(number, issued_ns, done);
                self.log_programs += 1;
            }
            _ => self.count(number, issued_ns, done).page_programs += 1,
        }
        Ok(done.end_ns)
    }

    /// Programs the parts of a unit; gives the time at which the last one is complete.
    pub(super) fn program_unit(
        &mut self,
        at: u32,
        (page, version): (LogicalPage, Version),
        flags: &[Flag],
        bytes: &[u8],
    ) -> Result<u64, NandError> {
        debug_assert_eq!(bytes.len(), self.sizes.unit_size, "a unit is written whole");
        let parts = self.sizes.parts as u8;
        let mut end_ns = 0;
        for (part, data) in (0..).zip(bytes.chunks(self.sizes.geometry.page_size as usize)) {
            let note = Note { kind: Kind::Unit, part, parts, page, version };
            let flags = if part == 0 { flags } else { &[] };
            end_ns = self.program_page(at + u32::from(part), &note, flags, data)?.max(end_ns);
        }
        Ok(end_ns)
    }

    /// Reads a page: its note, its flags and its data, as far as `data` takes them.
    fn read(&mut self, number: u32, data: &mut [u8]) -> Result<(RawNote, Vec<Flag>), Fault> {
        let page = self.page(number)?;
        let mut spare = vec![0xFF; note::spare_size(self.sizes.slots)];
        let (issued_ns, spare_offset) = (self.now(), self.sizes.note_offset);
        let is_whole = !data.is_empty();
        let part = ReadPart { data_offset: 0, data, spare_offset, spare: &mut spare };
        let result = self.device.read(page, part);
        let done = Completion { end_ns: self.now(), ..Completion::default() };
        let tally = self.count(number, issued_ns, done);
        match is_whole {
            true => tally.page_reads += 1,
            false => tally.spare_reads += 1,
        }
        match result {
            Ok(_) => Ok((Note::decode(&spare), note::flags(&spare, self.sizes.slots))),
            Err(NandError::Uncorrectable { page }) => Err(Fault::Bad(page, Check::Ecc)),
            Err(error) => Err(Fault::Device(error)),
        }
    }

    /// Reads one page with its note.
    pub(super) fn read_page(&mut self, number: u32, data: &mut [u8]) -> Result<Note, Fault> {
        self.read_flagged(number, data).map(|(note, _)| note)
    }

    /// Reads one page with its note and its flags, at once: they may not read a second time.
    pub(super) fn read_flagged(
        &mut self,
        number: u32,
        data: &mut [u8],
    ) -> Result<(Note, Vec<Flag>), Fault> {
        let page = self.page(number)?;
        let (note, flags) = self.read(number, data)?;
        match note {
            RawNote::Erased => Err(Fault::Bad(page, Check::Erased)),
            RawNote::Damaged => Err(Fault::Bad(page, Check::Metadata)),
            RawNote::Found(note, crc) if note.matches(page, crc32c(data), crc) => Ok((note, flags)),
            RawNote::Found(..) => Err(Fault::Bad(page, Check::Checksum)),
        }
    }

    /// Reads the unit at `at` (F1): its kind, its header, and all its bytes in `target`.
    pub(super) fn read_unit(
        &mut self,
        at: u32,
        target: &mut [u8],
    ) -> Result<(Note, Header), Fault> {
        self.read_unit_flagged(at, target).map(|(note, header, _)| (note, header))
    }

    /// The same with its flags.
    pub(super) fn read_unit_flagged(
        &mut self,
        at: u32,
        target: &mut [u8],
    ) -> Result<(Note, Header, Vec<Flag>), Fault> {
        let parts = self.sizes.parts as u8;
        let mut found: Option<(Note, Vec<Flag>)> = None;
        let chunks = target.chunks_mut(self.sizes.geometry.page_size as usize);
        for (part, data) in (0..).zip(chunks) {
            let number = at + u32::from(part);
            let (note, flags) = self.read_flagged(number, data)?;
            let whole = found.get_or_insert((Note { part: 0, ..note }, flags)).0;
            if note.kind != Kind::Unit || note != (Note { part, parts, ..whole }) {
                return Err(Fault::Bad(self.page(number)?, Check::Identity));
            }
        }
        let page = self.page(at)?;
        let header = Header::decode(target).ok_or(Fault::Bad(page, Check::Metadata))?;
        found.map(|(note, flags)| (note, header, flags)).ok_or(Fault::Bad(page, Check::Metadata))
    }

    /// Note and flags of a page alone: not checked against the payload.
    pub(super) fn peek(&mut self, number: u32) -> Result<(RawNote, Vec<Flag>), NandError> {
        match self.read(number, &mut []) {
            Ok(found) => Ok(found),
            Err(Fault::Bad(..)) => Ok((RawNote::Damaged, Vec::new())),
            Err(Fault::Device(error)) => Err(error),
        }
    }

    /// Flags of the unit `page`, `version`, if it still stands at `at`.
    pub(super) fn peek_flags(
        &mut self,
        at: u32,
        (page, version): (LogicalPage, Version),
    ) -> Result<Option<Vec<Flag>>, NandError> {
        Ok(match self.peek(at)? {
            (RawNote::Found(note, _), flags) if (note.page, note.version) == (page, version) => {
                Some(flags)
            }
            _ => None,
        })
    }

    /// Programs a flag; whether it reads as programmed afterwards (F2).
    pub(super) fn program_flag(&mut self, address: u32, flag: Flag) -> Result<bool, NandError> {
        let (at, slot) = (address / SLOT_STRIDE, (address % SLOT_STRIDE) as usize);
        let page = self.page(at)?;
        if !self.device.takes_spare(page)? {
            return Ok(false);
        }
        let (offset, cells) = note::cells_of(slot, flag);
        let spare_offset = self.sizes.note_offset + offset as u32;
        let issued_ns = self.now();
        let part = ProgramPart { data_offset: 0, data: &[], spare_offset, spare: &cells };
        match self.device.program(page, part) {
            Ok(done) => {
                self.programs_end_ns = self.programs_end_ns.max(done.end_ns);
                self.count(at, issued_ns, done).flag_programs += 1;
            }
            Err(NandError::ProgramFailed { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
        let (_, flags) = self.peek(at)?;
        Ok(flags.get(slot) == Some(&flag) || self.bugs.has(RecordBug::FlagNotVerified))
    }

    /// Erases a block; gives the time at which the erase is complete.
    pub(super) fn erase(&mut self, block: BlockIndex) -> Result<u64, NandError> {
        let issued_ns = self.now();
        let done = self.device.erase(block)?;
        let first = self.sizes.first_of(block);
        self.count(first, issued_ns, done).erases += 1;
        Ok(done.end_ns)
    }
}
