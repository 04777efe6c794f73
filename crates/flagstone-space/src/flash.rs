//! The device with metadata: pages are programmed and read together with their metadata.
//!
//! Owns the device, its scratch buffers and the tally of operations. Never knows which page is
//! live.
//!
//! F1. A payload is returned only if metadata, page number and payload fit the checksum.
//! F2. A payload shorter than the page is programmed padded with `0xFF`.

pub(crate) mod busy;

use alloc::vec;
use alloc::vec::Vec;

use flagstone_nand::{
    BlockIndex, CellMode, Completion, Nand, NandError, PhysicalPage, ProgramPart, ReadPart,
    SharedNand,
};

use self::busy::Busy;
use crate::Cause;
use crate::append::append_lack;
use crate::bugs::{Bugs, SpaceBug};
use crate::bytes::crc32c;
use crate::error::Check;
use crate::layout::Layout;
use crate::meta::{META_SIZE, PageMeta, Placement, RawMeta};
use crate::stats::{ReadPurpose, Tally};

/// Why a page could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReadFault {
    /// The page fails this check; another copy may pass.
    Bad(Check),
    /// The device does not work.
    Device(NandError),
}

/// A page that was read and passed its checks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageRead {
    pub(crate) meta: PageMeta,
    /// The ECC corrected at least three quarters of its strength.
    pub(crate) worn: bool,
}

/// Corrected bits per code word at which a page is rewritten elsewhere: three quarters of the
/// strength, as Linux MTD does (commit 240181fd0ffa).
const fn scrub_threshold(strength: u32) -> u32 {
    (strength * 3).div_ceil(4)
}

/// A program of log slots that its caller does beside the thread that has the device.
#[derive(Debug)]
pub(crate) struct SlotProgram {
    page: PhysicalPage,
    data_offset: u32,
    data: Vec<u8>,
}

impl SlotProgram {
    pub(crate) fn run(&self, device: &dyn SharedNand) -> Result<(), NandError> {
        device.program(self.page, self.data_offset, &self.data)
    }

    /// Whole slots.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.data
    }
}

/// How many appends of a unit with such metadata count (A2).
pub(crate) type AppendsOf<'a> = &'a dyn Fn(&PageMeta) -> u8;

/// No appends: the unit as it was programmed.
pub(crate) const NO_APPENDS: AppendsOf<'static> = &|_| 0;

/// Device, scratch buffers, tally.
#[derive(Clone, Debug)]
pub(crate) struct Flash<D> {
    pub(crate) device: D,
    pub(crate) layout: Layout,
    pub(crate) tally: Tally,
    pub(crate) bugs: Bugs,
    /// Device time at which the latest program or erase is complete.
    pub(crate) end_ns: u64,
    /// The same of the last one that was asked for.
    pub(crate) last_end_ns: u64,
    /// Device time that everything so far took, reads included.
    pub(crate) busy: Busy,
    /// Programs and erases so far, counted from one: writes that a dead process left may not be durable.
    pub(crate) changes: u64,
    /// How many of them the last sync made durable (rule D10).
    pub(crate) synced: u64,
    scratch: Vec<u8>,
}

impl<D: Nand> Flash<D> {
    pub(crate) fn new(device: D, layout: Layout) -> Self {
        let scratch = vec![0xFF; layout.geometry.page_size as usize];
        let busy = Busy::new(layout.geometry.die_count);
        Self {
            device,
            layout,
            tally: Tally::default(),
            bugs: Bugs::default(),
            end_ns: 0,
            last_end_ns: 0,
            busy,
            changes: 1,
            synced: 0,
            scratch,
        }
    }

    /// Page number `number` as the device names it; the numbers this floor makes lie inside.
    pub(crate) fn page(&self, number: u32) -> Result<PhysicalPage, ReadFault> {
        self.layout.geometry.page_from_number(number).ok_or(ReadFault::Bad(Check::Identity))
    }

    pub(crate) fn die_of(&self, page: PhysicalPage) -> u32 {
        self.layout.geometry.die_of(self.layout.geometry.block_of(page))
    }

    pub(crate) fn done(&mut self, completion: Completion) {
        self.end_ns = self.end_ns.max(completion.end_ns);
        self.last_end_ns = completion.end_ns;
        self.changes += 1;
    }

    /// Programs one page with its metadata (F2).
    pub(crate) fn program_page(
        &mut self,
        number: u32,
        meta: &PageMeta,
        chunk: &[u8],
        cause: Cause,
    ) -> Result<(), NandError> {
        let chunk_size = self.layout.chunk_size_of(meta);
        debug_assert!(chunk.len() <= chunk_size, "the caller cut the payload");
        let geometry = self.layout.geometry;
        let Some(page) = geometry.page_from_number(number) else { return Ok(()) };
        let header = self.layout.placement.header_size();
        let end = header + chunk_size;
        let whole = chunk.len() == geometry.page_size as usize;
        if !whole {
            self.scratch[header..header + chunk.len()].copy_from_slice(chunk);
            self.scratch[header + chunk.len()..end].fill(0xFF);
        }
        let payload = if whole { chunk } else { &self.scratch[header..end] };
        let bytes = meta.encode(page, crc32c(payload));
        let (spare_offset, spare): (u32, &[u8]) = match self.layout.placement {
            Placement::Header => {
                self.scratch[..header].fill(0xFF);
                self.scratch[..META_SIZE].copy_from_slice(&bytes);
                (0, &[])
            }
            Placement::RawSpare { offset } | Placement::CoveredSpare { offset } => (offset, &bytes),
        };
        // Slots for appends stay erased (A1). A translation layer gets whole pages.
        let sent = match self.layout.capabilities.cell_mode {
            CellMode::Translated => geometry.page_size as usize,
            _ => end,
        };
        if !whole {
            self.scratch[end..sent].fill(0xFF);
        }
        let data = if whole { chunk } else { &self.scratch[..sent] };
        let part = ProgramPart { data_offset: 0, data, spare_offset, spare };
        self.tally.program(cause, data.len() + spare.len());
        let die = self.die_of(page);
        let completion =
            self.busy.during(&mut self.device, die, |device| device.program(page, part))?;
        self.done(completion);
        Ok(())
    }

    /// Programs part of a page.
    pub(crate) fn program_part(
        &mut self,
        page: PhysicalPage,
        part: ProgramPart<'_>,
        cause: Cause,
    ) -> Result<(), NandError> {
        self.tally.program(cause, part.data.len() + part.spare.len());
        let die = self.die_of(page);
        let completion =
            self.busy.during(&mut self.device, die, |device| device.program(page, part))?;
        self.done(completion);
        Ok(())
    }

    /// Reads data bytes of a page, without a check.
    pub(crate) fn read_data(
        &mut self,
        page: PhysicalPage,
        data_offset: u32,
        target: &mut [u8],
    ) -> Result<(), NandError> {
        self.tally.read(ReadPurpose::Metadata);
        let part = ReadPart { data_offset, data: target, spare_offset: 0, spare: &mut [] };
        let die = self.die_of(page);
        self.busy.during(&mut self.device, die, |device| device.read(page, part)).map(drop)
    }

    /// Programs log slots of a page; `meta` goes with the first slot of a page where metadata
    /// stand in the spare area.
    pub(crate) fn program_slots(
        &mut self,
        number: u32,
        slot: u32,
        bytes: &[u8],
        meta: Option<PageMeta>,
    ) -> Result<(), NandError> {
        let Some(page) = self.layout.geometry.page_from_number(number) else { return Ok(()) };
        let slot_size = self.layout.log_slot_size;
        let size = bytes.len().div_ceil(slot_size) * slot_size;
        let padded = size != bytes.len();
        if padded {
            self.scratch[..bytes.len()].copy_from_slice(bytes);
            self.scratch[bytes.len()..size].fill(0xFF);
        }
        let data = if padded { &self.scratch[..size] } else { bytes };
        let spare = meta.map(|meta| meta.encode(page, 0));
        let offset = self.layout.placement.number().1;
        let part = ProgramPart {
            data_offset: slot * slot_size as u32,
            data,
            spare_offset: if spare.is_some() { offset } else { 0 },
            spare: spare.as_ref().map_or(&[], |bytes| &bytes[..]),
        };
        self.tally.program(Cause::Log, size + part.spare.len());
        let die = self.die_of(page);
        let completion =
            self.busy.during(&mut self.device, die, |device| device.program(page, part))?;
        self.done(completion);
        Ok(())
    }

    /// Takes note of a program of log slots that is done beside the thread that has the device; none where
    /// operations take turns. The slots count as programmed once the program is over.
    pub(crate) fn begin_slots(
        &mut self,
        number: u32,
        slot: u32,
        bytes: &[u8],
    ) -> Result<Option<SlotProgram>, NandError> {
        let Some(page) = self.layout.geometry.page_from_number(number) else { return Ok(None) };
        let slot_size = self.layout.log_slot_size;
        let data_offset = slot * slot_size as u32;
        let mut data = bytes.to_vec();
        data.resize(bytes.len().next_multiple_of(slot_size), 0xFF);
        let part = ProgramPart { data_offset, data: &data, spare_offset: 0, spare: &[] };
        if !self.device.begin_program(page, &part)? {
            return Ok(None);
        }
        self.tally.program(Cause::Log, data.len());
        Ok(Some(SlotProgram { page, data_offset, data }))
    }

    /// Reads slots of a log page without any check: fragments carry their own.
    pub(crate) fn read_slots(
        &mut self,
        number: u32,
        first: u32,
        target: &mut [u8],
    ) -> Result<(), ReadFault> {
        let page = self.page(number)?;
        let data_offset = first * self.layout.log_slot_size as u32;
        self.tally.read(ReadPurpose::Log);
        let part = ReadPart { data_offset, data: target, spare_offset: 0, spare: &mut [] };
        let die = self.die_of(page);
        self.busy
            .during(&mut self.device, die, |device| device.read(page, part))
            .map(|_| ())
            .map_err(ReadFault::from)
    }

    /// Reads one page's payload into `target`, which has the size of a chunk (F1). Of the slots that end
    /// a unit, only the appends that count have to read too.
    pub(crate) fn read_page(
        &mut self,
        number: u32,
        target: &mut [u8],
        appends: AppendsOf<'_>,
        purpose: ReadPurpose,
    ) -> Result<PageRead, ReadFault> {
        match self.read_front(number, target, purpose) {
            Err(ReadFault::Bad(Check::Ecc)) => {}
            read => return read,
        }
        // A torn append in a slot says nothing about the rest of the page (A2).
        let RawMeta::Found(meta, _) = self.peek(number)? else {
            return Err(ReadFault::Bad(Check::Ecc));
        };
        // Random bits may claim slots where there are none (M2): no part of such a page can be
        // read.
        if append_lack(&self.layout.geometry, &self.layout.capabilities, meta.slots).is_some() {
            return Err(ReadFault::Bad(Check::Ecc));
        }
        let slots = usize::from(appends(&meta)) * self.layout.append_slot_size();
        let size = self.layout.chunk_size_of(&meta) + slots;
        match target.split_at_mut_checked(size) {
            Some((front, rest)) if !rest.is_empty() => {
                rest.fill(0xFF);
                self.read_front(number, front, purpose)
            }
            _ => Err(ReadFault::Bad(Check::Ecc)),
        }
    }

    /// Reads as much of a page's payload as `target` holds, and checks the part that was programmed
    /// first.
    fn read_front(
        &mut self,
        number: u32,
        target: &mut [u8],
        purpose: ReadPurpose,
    ) -> Result<PageRead, ReadFault> {
        let page = self.page(number)?;
        let mut bytes = [0xFF; META_SIZE];
        let die = self.die_of(page);
        self.tally.read(purpose);
        let completion = match self.layout.placement {
            Placement::Header => self.read_behind_header(page, &mut bytes, target)?,
            Placement::RawSpare { offset } | Placement::CoveredSpare { offset } => {
                let spare = &mut bytes[..];
                let part = ReadPart { data_offset: 0, data: target, spare_offset: offset, spare };
                self.busy.during(&mut self.device, die, |device| device.read(page, part))?
            }
        };
        let strength = self.layout.capabilities.code_word.strength;
        let corrected = completion.corrected_bits_max;
        let worn = corrected > 0 && corrected >= scrub_threshold(strength);
        let read = self.judge(page, &bytes, target)?;
        Ok(PageRead { worn, ..read })
    }

    /// Metadata of a page that was read, if its bytes are as they were programmed (F1).
    fn judge(
        &self,
        page: PhysicalPage,
        bytes: &[u8; META_SIZE],
        target: &[u8],
    ) -> Result<PageRead, ReadFault> {
        match self.decode(bytes) {
            RawMeta::Erased => Err(ReadFault::Bad(Check::Erased)),
            RawMeta::Damaged => Err(ReadFault::Bad(Check::Metadata)),
            RawMeta::Found(meta, crc) => {
                let body = target.get(..self.layout.chunk_size_of(&meta));
                let matches = body.is_some_and(|body| meta.matches(page, crc32c(body), crc));
                if !matches && !self.bugs.has(SpaceBug::ChecksumIgnored) {
                    return Err(ReadFault::Bad(Check::Checksum));
                }
                Ok(PageRead { meta, worn: false })
            }
        }
    }

    fn read_behind_header(
        &mut self,
        page: PhysicalPage,
        bytes: &mut [u8; META_SIZE],
        target: &mut [u8],
    ) -> Result<Completion, ReadFault> {
        let header = Placement::Header.header_size();
        let end = header + target.len();
        let die = self.die_of(page);
        let data = &mut self.scratch[..end];
        let part = ReadPart { data_offset: 0, data, spare_offset: 0, spare: &mut [] };
        let completion =
            self.busy.during(&mut self.device, die, |device| device.read(page, part))?;
        bytes.copy_from_slice(&self.scratch[..META_SIZE]);
        target.copy_from_slice(&self.scratch[header..end]);
        Ok(completion)
    }

    /// Metadata as read. On a file, a page that was never programmed holds zeros: no metadata are
    /// all zero.
    fn decode(&self, bytes: &[u8; META_SIZE]) -> RawMeta {
        if self.layout.capabilities.needs_sync && bytes.iter().all(|byte| *byte == 0) {
            return RawMeta::Erased;
        }
        PageMeta::decode(bytes)
    }

    /// Reads a page's metadata alone: not checked against the payload.
    pub(crate) fn peek(&mut self, number: u32) -> Result<RawMeta, NandError> {
        let Some(page) = self.layout.geometry.page_from_number(number) else {
            return Ok(RawMeta::Damaged);
        };
        let mut bytes = [0xFF; META_SIZE];
        let die = self.die_of(page);
        self.tally.read(ReadPurpose::Metadata);
        let result = match self.layout.placement {
            Placement::Header => {
                let word = self.layout.capabilities.code_word.data_size as usize;
                let size = META_SIZE.next_multiple_of(word.max(1)).min(self.scratch.len());
                let data = &mut self.scratch[..size];
                let part = ReadPart { data_offset: 0, data, spare_offset: 0, spare: &mut [] };
                let result =
                    self.busy.during(&mut self.device, die, |device| device.read(page, part));
                bytes.copy_from_slice(&self.scratch[..META_SIZE]);
                result
            }
            Placement::RawSpare { offset } | Placement::CoveredSpare { offset } => {
                let spare = &mut bytes[..];
                let part = ReadPart { data_offset: 0, data: &mut [], spare_offset: offset, spare };
                self.busy.during(&mut self.device, die, |device| device.read(page, part))
            }
        };
        match result {
            Ok(_) => Ok(self.decode(&bytes)),
            Err(NandError::Uncorrectable { .. }) => Ok(RawMeta::Damaged),
            Err(error) => Err(error),
        }
    }

    /// Programs the parts of a unit that starts at page `at`.
    pub(crate) fn program_unit(
        &mut self,
        at: u32,
        meta: &PageMeta,
        payload: &[u8],
        cause: Cause,
    ) -> Result<(), NandError> {
        let (parts, chunk_size) = (self.layout.parts, self.layout.chunk_size);
        for part in 0..parts {
            let start = (part as usize * chunk_size).min(payload.len());
            let end = (start + chunk_size).min(payload.len());
            let meta = PageMeta { part: part as u8, parts: parts as u8, ..*meta };
            self.program_page(at + part, &meta, &payload[start..end], cause)?;
        }
        Ok(())
    }

    /// Reads the unit that starts at page `at`: every part, all of one version, the appends that count
    /// folded in.
    pub(crate) fn read_unit(
        &mut self,
        at: u32,
        target: &mut Vec<u8>,
        appends: AppendsOf<'_>,
        purpose: ReadPurpose,
    ) -> Result<PageRead, (u32, ReadFault)> {
        let (parts, chunk_size) = (self.layout.parts, self.layout.chunk_size);
        target.resize(parts as usize * chunk_size, 0);
        let mut found: Option<PageRead> = None;
        for part in 0..parts {
            let start = part as usize * chunk_size;
            let target = &mut target[start..start + chunk_size];
            let read = self
                .read_page(at + part, target, appends, purpose)
                .map_err(|fault| (at + part, fault))?;
            let expected = found.map_or(PageMeta { part: 0, ..read.meta }, |read| read.meta);
            let expected = PageMeta { part: part as u8, parts: parts as u8, ..expected };
            if read.meta != expected {
                return Err((at + part, ReadFault::Bad(Check::Identity)));
            }
            let worn = read.worn || found.is_some_and(|read| read.worn);
            found = Some(PageRead { meta: read.meta, worn });
        }
        let read = found.ok_or((at, ReadFault::Bad(Check::Erased)))?;
        let meta = PageMeta { part: 0, ..read.meta };
        if meta.slots == 0 {
            return Ok(PageRead { meta, worn: read.worn });
        }
        let size = self.layout.payload_size_with(meta.slots);
        let (image, slots) = target.split_at_mut(size);
        let meta = self.fold(at, meta, image, slots, appends(&meta));
        let meta = meta.ok_or((at + parts - 1, ReadFault::Bad(Check::Checksum)))?;
        target.truncate(size);
        Ok(PageRead { meta, worn: read.worn })
    }

    /// Erases a block after the replacement of its content, complete at `replaced`, is durable (rule D10).
    /// None for a block that was never written: nothing was replaced.
    pub(crate) fn erase(
        &mut self,
        block: BlockIndex,
        replaced: Option<u64>,
    ) -> Result<(), NandError> {
        if self.layout.capabilities.needs_sync {
            let is_safe = replaced.is_none_or(|moment| self.synced > 0 && moment <= self.synced);
            if !is_safe && !self.bugs.has(SpaceBug::EraseBeforeSync) {
                self.sync()?;
            }
        } else if self.waits_for_dies() {
            // The second page of a pair, on its way, may still take the first one along.
            let mode = self.layout.capabilities.cell_mode;
            let is_paired = matches!(mode, CellMode::Mlc { .. } | CellMode::OddMlc { .. });
            self.device.advance_to(if is_paired { self.end_ns } else { replaced.unwrap_or(0) });
        }
        let die = self.layout.geometry.die_of(block);
        let completion = self.busy.during(&mut self.device, die, |device| device.erase(block))?;
        self.tally.erases += 1;
        self.done(completion);
        Ok(())
    }

    /// The moment of the last program or erase: the count of them where the device is synced, else the time at
    /// which it is complete.
    pub(crate) fn moment(&self) -> u64 {
        if self.layout.capabilities.needs_sync { self.changes } else { self.last_end_ns }
    }

    /// The moment at which everything so far has happened.
    pub(crate) fn moment_of_all(&self) -> u64 {
        if self.layout.capabilities.needs_sync { self.changes } else { self.end_ns }
    }

    /// Moment up to which a block's content has to be replaced for its erase not to wait.
    pub(crate) fn safe_until(&self) -> u64 {
        let waits_for_sync = !self.bugs.has(SpaceBug::EraseBeforeSync);
        match self.layout.capabilities.needs_sync {
            true if waits_for_sync => self.synced,
            false if self.waits_for_dies() => self.device.now_ns(),
            _ => u64::MAX,
        }
    }

    /// Whether nothing waits for a sync.
    pub(crate) fn is_settled(&self) -> bool {
        !self.layout.capabilities.needs_sync || self.synced == self.changes
    }

    /// Completes all programs and erases so far before any that follows: a device that needs syncs is synced,
    /// if anything happened since the last one; dies that work side by side are waited for.
    pub(crate) fn fence(&mut self) -> Result<(), NandError> {
        if self.layout.capabilities.needs_sync {
            return if self.is_settled() { Ok(()) } else { self.sync() };
        }
        self.await_dies();
        Ok(())
    }

    /// Completes all programs and erases so far, where dies work side by side.
    pub(crate) fn await_dies(&mut self) {
        if self.waits_for_dies() {
            self.device.advance_to(self.end_ns);
        }
    }

    /// Whether an earlier program may complete after a later one.
    fn waits_for_dies(&self) -> bool {
        self.layout.geometry.die_count > 1 && !self.bugs.has(SpaceBug::DiesNotAwaited)
    }

    pub(crate) fn sync(&mut self) -> Result<(), NandError> {
        let begin_ns = self.device.now_ns();
        let completion = self.device.sync()?;
        self.busy.count(begin_ns, completion.end_ns);
        self.end_ns = self.end_ns.max(completion.end_ns);
        self.synced = self.changes;
        Ok(())
    }
}

impl From<NandError> for ReadFault {
    fn from(error: NandError) -> Self {
        match error {
            NandError::Uncorrectable { .. } => Self::Bad(Check::Ecc),
            error => Self::Device(error),
        }
    }
}
