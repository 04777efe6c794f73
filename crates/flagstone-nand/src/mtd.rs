//! Raw NAND under Linux: `/dev/mtdN` with the kernel's ECC.
//!
//! Owns the open device and what was programmed since it was opened. Never computes ECC: the kernel or
//! the chip does.
//!
//! - **T1** A page is programmed in steps that the kernel's ECC allows: whole sub-pages, each once.
//!   What the profile says the chip can do, within what the kernel can.
//! - **T2** Rules are enforced for blocks erased since the device was opened; of others nothing is known.
//! - **T3** One process a device: it is locked as long as it is open, and refused while UBI is
//!   attached to it.
//! - **T4** A read that the ECC gave up on is an error, never data: `MEMREAD` says so, and before
//!   Linux 6.1 the counters of `ECCGETSTATS` do.

mod ioctl;
mod sysfs;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use rustix::io::Errno;

use crate::rules::{PageState, Rules, Span};
use crate::storage::OpenDeviceError;
use crate::{
    BlockIndex, Capabilities, CellMode, CodeWord, Completion, Counters, FlashRule, Geometry, Nand,
    NandError, PartialCut, PhysicalPage, Profile, ProgramOrder, ProgramPart, ReadPart, SpareRange,
    Timing,
};
use sysfs::Sysfs;

/// Type of a NAND device in `mtd_info_user`; 8 is multi-level cells, 3 is NOR.
const KIND_NAND: u8 = 4;

/// Endurance assumed of a chip of which nothing else is known.
const ENDURANCE: u32 = 100_000;

/// Programs of a spare area that a probe may try: as many as a profile can hold.
const PROBE_PROGRAMS: u32 = 255;

/// How reads learn of corrected bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// `MEMREAD`.
    Counted,
    /// Plain reads between two looks at the counters.
    Watched,
}

/// What is known of a block that was erased since the device was opened.
#[derive(Clone, Debug)]
struct BlockState {
    pages: Vec<PageState>,
    frontier: u32,
    erases: u32,
}

/// A raw NAND device.
#[derive(Debug)]
pub struct MtdNand {
    file: File,
    profile: Profile,
    rules: Rules,
    known: HashMap<BlockIndex, BlockState>,
    reading: Reading,
    counters: Counters,
    opened: Instant,
    /// Spare bytes on their way, in front of those asked for.
    spare: Vec<u8>,
}

impl MtdNand {
    /// Opens a device as its kernel driver describes it: whole pages, no partial programs beyond
    /// its sub-pages, spare bytes taken to be covered by the ECC.
    ///
    /// # Errors
    ///
    /// `Unsuitable` for what is no MTD device, `NotSlc` for anything but NAND of single-level cells,
    /// `Attached` while UBI is; `Locked`; `ReadOnly`; `Io`.
    pub fn open(path: &Path) -> Result<Self, OpenDeviceError> {
        let file = open_locked(path)?;
        let profile = described(&file, path)?;
        Ok(Self::assemble(file, profile))
    }

    /// Opens a device of which `profile` says more than the driver: partial programs, free spare
    /// bytes, what a power cut may harm.
    ///
    /// # Errors
    ///
    /// As [`MtdNand::open`], and `Profile` when the profile describes another chip.
    pub fn open_as(path: &Path, profile: &Profile) -> Result<Self, OpenDeviceError> {
        let file = open_locked(path)?;
        let found = described(&file, path)?;
        let geometry = Geometry { die_count: profile.geometry.die_count, ..found.geometry };
        let is_same = |other: Geometry| Geometry { block_count: 0, ..other };
        if is_same(geometry) != is_same(profile.geometry) {
            return Err(OpenDeviceError::Unsuitable);
        }
        let mut profile = Profile { geometry, ..profile.clone() };
        limit(&mut profile.capabilities, &found);
        Ok(Self::assemble(file, profile.checked()?))
    }

    /// Opens a device to find out what it can do: all that the kernel lets through is allowed, whether
    /// the chip can do it or not.
    ///
    /// # Errors
    ///
    /// As [`MtdNand::open`].
    pub fn open_to_probe(path: &Path) -> Result<Self, OpenDeviceError> {
        let file = open_locked(path)?;
        let mut profile = described(&file, path)?;
        let capabilities = &mut profile.capabilities;
        let free =
            std::mem::replace(&mut capabilities.spare_covered, SpareRange { offset: 0, size: 0 });
        capabilities.spare_raw = free;
        capabilities.programs_spare = PROBE_PROGRAMS;
        capabilities.first_program_order = ProgramOrder::Any;
        capabilities.reprogram_order = ProgramOrder::Any;
        Ok(Self::assemble(file, profile.checked()?))
    }

    fn assemble(file: File, profile: Profile) -> Self {
        Self {
            file,
            rules: Rules::new(profile.geometry, profile.capabilities),
            profile,
            known: HashMap::new(),
            reading: Reading::Counted,
            counters: Counters::default(),
            opened: Instant::now(),
            spare: Vec::new(),
        }
    }

    /// The profile in use.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    fn start_of(&self, page: PhysicalPage) -> u64 {
        u64::from(page.number()) * u64::from(self.profile.geometry.page_size)
    }

    fn block_start(&self, block: BlockIndex) -> Result<u64, NandError> {
        let page = self.profile.geometry.page(block, 0).ok_or(NandError::Host { errno: EINVAL })?;
        Ok(self.start_of(page))
    }

    fn done(&self, corrected_bits_max: u32) -> Completion {
        Completion { end_ns: self.now_ns(), corrected_bits_max }
    }

    /// Judges a program of a block whose state is known (rule T2).
    fn judge(&self, page: PhysicalPage, part: &ProgramPart<'_>) -> Result<Option<Span>, NandError> {
        let geometry = self.profile.geometry;
        let broken = |rule| NandError::Rule { page, rule };
        if geometry.page_from_number(page.number()).is_none()
            || self.rules.words_of(part.data_offset, part.data.len()).is_none()
            || !self.rules.is_spare(part.spare_offset, part.spare.len())
        {
            return Err(broken(FlashRule::Alignment));
        }
        let Some(block) = self.known.get(&geometry.block_of(page)) else { return Ok(None) };
        let index = geometry.index_in_block(page);
        let state = block.pages.get(index as usize).copied().unwrap_or_default();
        let span = self.rules.judge(index, state, block.frontier, part, &[]);
        span.map(Some).map_err(broken)
    }

    fn remember(&mut self, page: PhysicalPage, span: Span) {
        let geometry = self.profile.geometry;
        let index = geometry.index_in_block(page);
        let Some(block) = self.known.get_mut(&geometry.block_of(page)) else { return };
        if let Some(state) = block.pages.get_mut(index as usize) {
            *state = span.after;
        }
        block.frontier = block.frontier.max(index + 1);
    }

    /// Spare bytes from the start of the spare area on: the kernel takes no offset beside data.
    fn spare_from_start(&mut self, offset: u32, spare: &[u8]) -> &[u8] {
        self.spare.clear();
        if !spare.is_empty() {
            self.spare.resize(offset as usize, 0xFF);
            self.spare.extend_from_slice(spare);
        }
        &self.spare
    }

    fn read_parts(&mut self, page: PhysicalPage, part: &mut ReadPart<'_>) -> Result<u32, Errno> {
        let start = self.start_of(page) + u64::from(part.data_offset);
        let first = part.spare_offset as usize;
        let spare_size = if part.spare.is_empty() { 0 } else { first + part.spare.len() };
        let mut spare = std::mem::take(&mut self.spare);
        spare.clear();
        spare.resize(spare_size, 0xFF);
        let mut corrected = Err(Errno::NOTTY);
        if self.reading == Reading::Counted {
            corrected = ioctl::read(&self.file, start, part.data, &mut spare);
        }
        if matches!(corrected, Err(Errno::NOTTY | Errno::OPNOTSUPP)) {
            self.reading = Reading::Watched;
            corrected = self.read_watched(page, part, &mut spare);
        }
        if let Some(found) = spare.get(first..spare_size) {
            part.spare.copy_from_slice(found);
        }
        self.spare = spare;
        corrected
    }

    /// Rule T4 on kernels without `MEMREAD`.
    fn read_watched(
        &self,
        page: PhysicalPage,
        part: &mut ReadPart<'_>,
        spare: &mut [u8],
    ) -> Result<u32, Errno> {
        let before = ioctl::ecc_stats(&self.file)?;
        if !part.data.is_empty() {
            let start = self.start_of(page) + u64::from(part.data_offset);
            let read = self.file.read_exact_at(part.data, start);
            read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        }
        if !spare.is_empty() {
            ioctl::read_oob(&self.file, self.start_of(page), spare)?;
        }
        let after = ioctl::ecc_stats(&self.file)?;
        if after.failed != before.failed {
            return Err(Errno::BADMSG);
        }
        // The sum over all steps: no less than the most in one.
        Ok(after.corrected.wrapping_sub(before.corrected))
    }
}

/// `errno` of a call with an address outside the device.
const EINVAL: i32 = 22;

fn host(errno: Errno) -> NandError {
    NandError::Host { errno: errno.raw_os_error() }
}

fn open_locked(path: &Path) -> Result<File, OpenDeviceError> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    let file = opened.map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            OpenDeviceError::ReadOnly
        }
        _ => OpenDeviceError::Io { errno: error.raw_os_error().unwrap_or(EINVAL) },
    })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenDeviceError::Locked),
        Err(TryLockError::Error(error)) => {
            Err(OpenDeviceError::Io { errno: error.raw_os_error().unwrap_or(EINVAL) })
        }
    }
}

/// What the kernel says of the chip, and nothing more (rule T1).
fn described(file: &File, path: &Path) -> Result<Profile, OpenDeviceError> {
    let info = ioctl::info(file).map_err(|errno| match errno {
        Errno::NOTTY => OpenDeviceError::Unsuitable,
        _ => OpenDeviceError::Io { errno: errno.raw_os_error() },
    })?;
    let sysfs = Sysfs::of(path).ok_or(OpenDeviceError::Unsuitable)?;
    let is_slc = sysfs.kind().map_or(info.kind == KIND_NAND, |kind| kind == "nand");
    if info.kind != KIND_NAND || !is_slc {
        return Err(OpenDeviceError::NotSlc);
    }
    if let Some(ubi) = sysfs.ubi() {
        return Err(OpenDeviceError::Attached { ubi });
    }
    let size = sysfs.number("size").unwrap_or_else(|| info.size.into());
    let number = |name: &str| sysfs.number(name).and_then(|number| u32::try_from(number).ok());
    let free = ioctl::free_spare(file).unwrap_or((0, 0));
    let (page_size, erase_size) = (info.write_size.max(1), info.erase_size.max(1));
    let sub_page = number("subpagesize").filter(|size| *size > 0).unwrap_or(page_size);
    let steps = number("ecc_step_size").filter(|size| *size > 0).unwrap_or(page_size);
    let profile = Profile {
        name: String::from("mtd"),
        geometry: Geometry {
            page_size,
            spare_size: info.oob_size,
            pages_per_block: erase_size / page_size,
            block_count: u32::try_from(size / u64::from(erase_size)).unwrap_or(u32::MAX),
            die_count: 1,
        },
        capabilities: Capabilities {
            programs_data: page_size / sub_page,
            programs_spare: page_size / sub_page,
            first_program_order: ProgramOrder::Ascending,
            reprogram_order: ProgramOrder::Ascending,
            cell_mode: CellMode::Slc,
            code_word: CodeWord {
                data_size: sub_page.max(steps),
                strength: number("ecc_strength").unwrap_or(0),
            },
            spare_raw: SpareRange { offset: 0, size: 0 },
            spare_covered: SpareRange { offset: free.0, size: free.1 },
            partial_cut: PartialCut::PageAtRisk,
            endurance: ENDURANCE,
            rewrite_tail: false,
            needs_sync: false,
        },
        timing: Timing::default(),
        translation: None,
        source: String::from("the kernel's description of the device"),
        confidence: String::from("what the driver knows; the chip may do more"),
    };
    Ok(profile.checked()?)
}

/// Takes from a profile what the kernel's ECC does not let through (rule T1).
fn limit(capabilities: &mut Capabilities, found: &Profile) {
    let step = found.capabilities.code_word.data_size;
    let page_size = found.geometry.page_size;
    capabilities.code_word.data_size = capabilities.code_word.data_size.max(step);
    capabilities.programs_data = capabilities.programs_data.min(page_size / step.max(1));
    let free = found.capabilities.spare_covered;
    let inside = |range: SpareRange| {
        let end = (range.offset + range.size).min(free.offset + free.size);
        let offset = range.offset.max(free.offset);
        SpareRange { offset, size: end.saturating_sub(offset) }
    };
    capabilities.spare_raw = inside(capabilities.spare_raw);
    capabilities.spare_covered = inside(capabilities.spare_covered);
}

impl Nand for MtdNand {
    fn geometry(&self) -> Geometry {
        self.profile.geometry
    }

    fn capabilities(&self) -> Capabilities {
        self.profile.capabilities
    }

    fn read(
        &mut self,
        page: PhysicalPage,
        mut part: ReadPart<'_>,
    ) -> Result<Completion, NandError> {
        if self.profile.geometry.page_from_number(page.number()).is_none() {
            return Err(NandError::Rule { page, rule: FlashRule::Alignment });
        }
        let size = part.data.len() + part.spare.len();
        let read = self.read_parts(page, &mut part);
        self.counters.page_reads += 1;
        self.counters.bytes_read += size as u64;
        match read {
            Ok(corrected) => {
                self.counters.corrected_bits += u64::from(corrected);
                Ok(self.done(corrected))
            }
            Err(Errno::BADMSG) => Err(NandError::Uncorrectable { page }),
            Err(errno) => Err(host(errno)),
        }
    }

    fn program(
        &mut self,
        page: PhysicalPage,
        part: ProgramPart<'_>,
    ) -> Result<Completion, NandError> {
        let span = self.judge(page, &part)?;
        let start = self.start_of(page);
        let written = if part.data.is_empty() {
            let start = start + u64::from(part.spare_offset);
            ioctl::write_oob(&self.file, start, part.spare)
        } else {
            let start = start + u64::from(part.data_offset);
            self.spare_from_start(part.spare_offset, part.spare);
            ioctl::write(&self.file, start, part.data, &self.spare)
        };
        if let Some(span) = span {
            self.remember(page, span);
        }
        if part.data.len() == self.profile.geometry.page_size as usize {
            self.counters.page_programs += 1;
        } else {
            self.counters.partial_programs += 1;
        }
        self.counters.bytes_programmed += (part.data.len() + part.spare.len()) as u64;
        match written {
            Ok(()) => Ok(self.done(0)),
            Err(Errno::IO) => Err(NandError::ProgramFailed { page }),
            Err(errno) => Err(host(errno)),
        }
    }

    fn erase(&mut self, block: BlockIndex) -> Result<Completion, NandError> {
        let geometry = self.profile.geometry;
        let length = u64::from(geometry.page_size) * u64::from(geometry.pages_per_block);
        let erased = ioctl::erase(&self.file, self.block_start(block)?, length);
        self.counters.block_erases += 1;
        let erases = self.erase_count(block).saturating_add(1);
        let pages = vec![PageState::default(); geometry.pages_per_block as usize];
        self.known.insert(block, BlockState { pages, frontier: 0, erases });
        match erased {
            Ok(()) => Ok(self.done(0)),
            Err(Errno::IO) => Err(NandError::EraseFailed { block }),
            Err(errno) => Err(host(errno)),
        }
    }

    fn takes_spare(&mut self, page: PhysicalPage) -> Result<bool, NandError> {
        let geometry = self.profile.geometry;
        let block = self.known.get(&geometry.block_of(page));
        let index = geometry.index_in_block(page) as usize;
        let state = block.and_then(|block| block.pages.get(index)).copied();
        Ok(self.rules.takes_spare(state.unwrap_or_default()))
    }

    fn is_bad(&mut self, block: BlockIndex) -> Result<bool, NandError> {
        ioctl::is_bad(&self.file, self.block_start(block)?).map_err(host)
    }

    fn mark_bad(&mut self, block: BlockIndex) -> Result<(), NandError> {
        ioctl::mark_bad(&self.file, self.block_start(block)?).map_err(host)
    }

    fn sync(&mut self) -> Result<Completion, NandError> {
        self.counters.syncs += 1;
        Ok(self.done(0))
    }

    fn erase_count(&self, block: BlockIndex) -> u32 {
        self.known.get(&block).map_or(0, |state| state.erases)
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn reset_counters(&mut self) {
        self.counters = Counters::default();
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn advance_to(&mut self, _: u64) {}
}
