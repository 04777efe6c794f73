//! The device with notes: units are programmed and read together with their notes.
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

use super::bugs::{Bugs, ShadowBug};
use super::note::{Kind, NOTE_SIZE, NOTE_SIZE_WITH_FLAG, Note, RawNote, flag_cells};
use super::options::{Evidence, Lack, ShadowOptions, note_offset};
use super::summary;
use flagstone_space::Check;

use crate::evidence::Flag;
use flagstone_space::bytes::crc32c;

/// Kind of work the device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Host,
    Collection,
    Restart,
}

/// Operations on the device for one kind of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkTally {
    /// Pages read, data and spare area.
    pub page_reads: u64,
    /// Reads of a spare area alone.
    pub spare_reads: u64,
    /// Pages programmed, block summaries included.
    pub page_programs: u64,
    /// Flags programmed.
    pub flag_programs: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Time for which dies were busy.
    pub busy_ns: u64,
}

/// Sizes; constant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) geometry: Geometry,
    pub(super) note_offset: u32,
    /// Notes carry flags.
    pub(super) has_flags: bool,
    pub(super) parts: u32,
    /// Bytes of a logical page.
    pub(super) image_size: usize,
    pub(super) units_per_block: u32,
}

impl Sizes {
    pub(super) fn new(
        geometry: Geometry,
        capabilities: Capabilities,
        options: &ShadowOptions,
    ) -> Result<Self, Lack> {
        let note_offset = note_offset(&geometry, &capabilities, options.protocol)?;
        let parts = options.unit_pages;
        let units_per_block = geometry.pages_per_block.saturating_sub(1) / parts.max(1);
        if units_per_block == 0 || summary::size(units_per_block) > geometry.page_size as usize {
            return Err(Lack::Room);
        }
        Ok(Self {
            geometry,
            note_offset,
            has_flags: matches!(options.protocol.evidence(), Evidence::Chain(_)),
            parts,
            image_size: (geometry.page_size * parts) as usize,
            units_per_block,
        })
    }

    pub(super) const fn block_of(&self, at: u32) -> BlockIndex {
        BlockIndex(at / self.geometry.pages_per_block)
    }

    pub(super) const fn first_of(&self, block: BlockIndex) -> u32 {
        block.0 * self.geometry.pages_per_block
    }

    /// First page of a block, and the one after its last.
    pub(super) const fn range_of(&self, block: BlockIndex) -> (u32, u32) {
        (self.first_of(block), self.first_of(block) + self.geometry.pages_per_block)
    }

    /// Page that holds a block's summary.
    pub(super) const fn summary_of(&self, block: BlockIndex) -> u32 {
        self.first_of(block) + self.geometry.pages_per_block - 1
    }

    /// Every place of a unit in a block.
    pub(super) fn units_of(&self, block: BlockIndex) -> impl Iterator<Item = u32> + use<> {
        let (first, parts) = (self.first_of(block), self.parts);
        (0..self.units_per_block).map(move |unit| first + unit * parts)
    }
}

/// Why a unit could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Bad(PhysicalPage, Check),
    Device(NandError),
}

/// Device, sizes, tally.
#[derive(Clone, Debug)]
pub(super) struct Flash<D> {
    pub(super) device: D,
    pub(super) sizes: Sizes,
    pub(super) work: Work,
    pub(super) bugs: Bugs<ShadowBug>,
    tallies: [WorkTally; 3],
    /// Time at which each die is idle, as far as known.
    idle_ns: Vec<u64>,
}

impl<D: Nand> Flash<D> {
    pub(super) fn new(device: D, sizes: Sizes) -> Self {
        let idle_ns = vec![0; sizes.geometry.die_count as usize];
        let (tallies, bugs) = (Default::default(), Bugs::default());
        Self { device, sizes, work: Work::Host, bugs, tallies, idle_ns }
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

    fn page(&self, number: u32) -> Result<PhysicalPage, NandError> {
        let page = self.sizes.geometry.page_from_number(number);
        page.ok_or(NandError::Host { errno: 22 })
    }

    /// Takes note of an operation that was issued at `issued_ns`.
    fn count(&mut self, block: BlockIndex, issued_ns: u64, done: Completion) -> &mut WorkTally {
        let tally = &mut self.tallies[self.work as usize];
        let die = self.sizes.geometry.die_of(block) as usize;
        if let Some(idle_ns) = self.idle_ns.get_mut(die) {
            tally.busy_ns += done.end_ns.saturating_sub(issued_ns.max(*idle_ns));
            *idle_ns = done.end_ns;
        }
        tally
    }

    /// Programs one page with its note; gives the time at which the program is complete.
    pub(super) fn program_page(
        &mut self,
        number: u32,
        note: &Note,
        data: &[u8],
    ) -> Result<u64, NandError> {
        let page = self.page(number)?;
        let spare = note.encode(page, crc32c(data));
        let spare_offset = self.sizes.note_offset;
        let issued_ns = self.now();
        let part = ProgramPart { data_offset: 0, data, spare_offset, spare: &spare };
        let done = self.device.program(page, part)?;
        self.count(self.sizes.block_of(number), issued_ns, done).page_programs += 1;
        Ok(done.end_ns)
    }

    /// Programs the parts of a unit; gives the time at which the last one is complete.
    pub(super) fn program_unit(
        &mut self,
        at: u32,
        note: &Note,
        image: &[u8],
    ) -> Result<u64, NandError> {
        if image.len() != self.sizes.image_size {
            return Err(NandError::Host { errno: 22 });
        }
        let parts = self.sizes.parts as u8;
        let mut end_ns = 0;
        let chunks = image.chunks(self.sizes.geometry.page_size as usize);
        for (part, data) in (0..).zip(chunks) {
            let note = Note { part, parts, ..*note };
            end_ns = self.program_page(at + u32::from(part), &note, data)?;
        }
        Ok(end_ns)
    }

    /// Spare bytes that a read takes: with the flag, where there is one.
    const fn spare_size(&self) -> usize {
        if self.sizes.has_flags { NOTE_SIZE_WITH_FLAG } else { NOTE_SIZE }
    }

    /// Reads one page with its note and its flag, at once: they may not read a second time.
    pub(super) fn read_page(
        &mut self,
        number: u32,
        target: &mut [u8],
    ) -> Result<(Note, Flag), Fault> {
        let page = self.page(number)?;
        let mut spare = [0xFF; NOTE_SIZE_WITH_FLAG];
        let size = self.spare_size();
        let (spare_offset, spare) = (self.sizes.note_offset, &mut spare[..size]);
        let issued_ns = self.now();
        let part = ReadPart { data_offset: 0, data: target, spare_offset, spare };
        let result = self.device.read(page, part);
        let done = Completion { end_ns: self.now(), ..Completion::default() };
        self.count(self.sizes.block_of(number), issued_ns, done).page_reads += 1;
        match result {
            Err(NandError::Uncorrectable { page }) => return Err(Fault::Bad(page, Check::Ecc)),
            Err(error) => return Err(Fault::Device(error)),
            Ok(_) => {}
        }
        match Note::decode(spare) {
            RawNote::Erased => Err(Fault::Bad(page, Check::Erased)),
            RawNote::Damaged => Err(Fault::Bad(page, Check::Metadata)),
            RawNote::Found(note, flag, crc) if note.matches(page, crc32c(target), crc) => {
                Ok((note, flag))
            }
            RawNote::Found(..) => Err(Fault::Bad(page, Check::Checksum)),
        }
    }

    /// Reads the unit at `at` (F1), with its flag.
    pub(super) fn read_unit(&mut self, at: u32, target: &mut [u8]) -> Result<(Note, Flag), Fault> {
        let parts = self.sizes.parts as u8;
        let mut found = None;
        let chunks = target.chunks_mut(self.sizes.geometry.page_size as usize);
        for (part, data) in (0..).zip(chunks) {
            let number = at + u32::from(part);
            let (note, flag) = self.read_page(number, data)?;
            let (whole, _) = *found.get_or_insert((Note { part: 0, ..note }, flag));
            if note != (Note { part, parts, ..whole }) {
                return Err(Fault::Bad(self.page(number)?, Check::Identity));
            }
        }
        found.ok_or(Fault::Device(NandError::Host { errno: 22 }))
    }

    /// Reads the note of one page alone: not checked against the payload.
    pub(super) fn peek(&mut self, number: u32) -> Result<RawNote, NandError> {
        let page = self.page(number)?;
        let mut spare = [0xFF; NOTE_SIZE_WITH_FLAG];
        let size = self.spare_size();
        let (spare_offset, spare) = (self.sizes.note_offset, &mut spare[..size]);
        let issued_ns = self.now();
        let part = ReadPart { data_offset: 0, data: &mut [], spare_offset, spare };
        let result = self.device.read(page, part);
        let done = Completion { end_ns: self.now(), ..Completion::default() };
        self.count(self.sizes.block_of(number), issued_ns, done).spare_reads += 1;
        match result {
            Ok(_) => Ok(Note::decode(spare)),
            Err(NandError::Uncorrectable { .. }) => Ok(RawNote::Damaged),
            Err(error) => Err(error),
        }
    }

    /// Note and flag of the unit at `at`, if its first part has one.
    pub(super) fn peek_first(&mut self, at: u32) -> Result<Option<(Note, Flag)>, NandError> {
        Ok(match self.peek(at)? {
            RawNote::Found(note, flag, _) if note.part == 0 && note.kind != Kind::Summary => {
                Some((note, flag))
            }
            _ => None,
        })
    }

    /// Note and flag of the unit at `at`, if all its parts have theirs.
    pub(super) fn peek_unit(&mut self, at: u32) -> Result<Option<(Note, Flag)>, NandError> {
        let Some((note, flag)) = self.peek_first(at)? else { return Ok(None) };
        for part in 1..self.sizes.parts {
            let expected = Note { part: part as u8, ..note };
            match self.peek(at + part)? {
                RawNote::Found(found, ..) if found == expected => {}
                _ => return Ok(None),
            }
        }
        Ok(Some((note, flag)))
    }

    /// Whether an erase of a block was cut, as far as its notes tell: pages show that `notes`, the
    /// notes of its summary, do not name, or that no run of programs leaves behind.
    pub(super) fn erase_was_cut(
        &mut self,
        block: BlockIndex,
        notes: Option<Vec<Note>>,
    ) -> Result<bool, NandError> {
        if let Some(notes) = notes {
            for (at, note) in self.sizes.units_of(block).zip(notes) {
                if self.peek_unit(at)?.is_none_or(|(found, _)| found != note) {
                    return Ok(true);
                }
            }
            return Ok(false);
        }
        let first = self.sizes.first_of(block);
        let units = first..first + self.sizes.units_per_block * self.sizes.parts;
        let mut is_whole = true;
        for number in units.chain([self.sizes.summary_of(block)]) {
            match self.peek(number)? {
                RawNote::Found(..) if is_whole => {}
                RawNote::Damaged if is_whole => is_whole = false,
                RawNote::Erased => is_whole = false,
                RawNote::Found(..) | RawNote::Damaged => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Programs a flag; whether it reads as programmed afterwards (F2).
    pub(super) fn program_flag(&mut self, at: u32, flag: Flag) -> Result<bool, NandError> {
        let page = self.page(at)?;
        // A cut erase may look like a cut program: the last pages of the block alone are gone. They
        // take no more programs, and no page that shows was in flight.
        if !self.device.takes_spare(page)? {
            return self.shows_flag(at, flag);
        }
        let cells = flag_cells(flag);
        let spare_offset = self.sizes.note_offset + NOTE_SIZE as u32;
        let issued_ns = self.now();
        let part = ProgramPart { data_offset: 0, data: &[], spare_offset, spare: &cells };
        match self.device.program(page, part) {
            Ok(done) => {
                self.count(self.sizes.block_of(at), issued_ns, done).flag_programs += 1;
            }
            Err(NandError::ProgramFailed { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
        self.shows_flag(at, flag)
    }

    /// Whether a flag reads as `flag`.
    pub(super) fn shows_flag(&mut self, at: u32, flag: Flag) -> Result<bool, NandError> {
        Ok(matches!(self.peek(at)?, RawNote::Found(_, found, _) if found == flag))
    }

    /// Erases a block; gives the time at which the erase is complete.
    pub(super) fn erase(&mut self, block: BlockIndex) -> Result<u64, NandError> {
        let issued_ns = self.now();
        let done = self.device.erase(block)?;
        self.count(block, issued_ns, done).erases += 1;
        Ok(done.end_ns)
    }
}

impl From<NandError> for Fault {
    fn from(error: NandError) -> Self {
        Self::Device(error)
    }
}
