//! Raw NAND under Linux: `/dev/mtdN` with the kernel's ECC, or byte by byte.
//!
//! Owns the open device and the record of programs since it was opened. Never computes ECC: the kernel or the
//! chip does, or [`crate::EccNand`] above it.
//!
//! - **T1** A page is programmed in steps that the kernel's ECC allows: whole sub-pages, each once. The
//!   profile's capabilities of the chip hold, within the kernel's. In raw mode the kernel sets no limits:
//!   every program sends the whole page, `0xFF` where cells are to stay as they are.
//! - **T2** Rules are enforced for blocks erased since the device was opened; of others nothing is known.
//! - **T3** One process a device: it is locked as long as it is open, and refused while UBI is
//!   attached to it.
//! - **T4** A read that the ECC gave up on is an error, never data: `MEMREAD` says so, and before
//!   Linux 6.1 the counters of `ECCGETSTATS` do.
//! - **T5** Whose ECC a chip carries is read off it when it is opened. It is never read through the
//!   other one.

mod ioctl;
mod open;
mod sysfs;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use rustix::io::Errno;

use crate::ecc::{Carried, survey};
use crate::rules::{PageState, Rules, Span};
use crate::storage::{LockedFile, OpenDeviceError, Process};
use crate::{
    BlockIndex, Capabilities, Completion, Counters, EccOwner, FlashRule, Geometry, Nand, NandError,
    PhysicalPage, Profile, ProgramOrder, ProgramPart, ReadPart, SpareRange,
};
use ioctl::Mode;
use open::{Found, limit};

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

/// Knowledge of a block that was erased since the device was opened.
#[derive(Clone, Debug)]
struct BlockState {
    pages: Vec<PageState>,
    frontier: u32,
    erases: u32,
}

/// A raw NAND device.
#[derive(Debug)]
pub struct MtdNand {
    file: LockedFile,
    /// Who may use it: a child of a fork knows other things of it than the chip.
    process: Process,
    profile: Profile,
    rules: Rules,
    known: HashMap<BlockIndex, BlockState>,
    reading: Reading,
    mode: Mode,
    counters: Counters,
    opened: Instant,
    /// A page on its way, in raw mode.
    page: Vec<u8>,
    /// Spare bytes on their way, in front of the requested ones.
    spare: Vec<u8>,
}

impl MtdNand {
    /// Opens a device as its kernel driver describes it: whole pages, no partial programs beyond
    /// its sub-pages, spare bytes taken to be covered by the ECC.
    ///
    /// # Errors
    ///
    /// `NotMtd` for a path that is no MTD device, `NotSlc` for anything but NAND of single-level cells,
    /// `Attached` while UBI is; `Ecc` for a chip with ECC of our own ([`crate::EccNand::open_mtd`]);
    /// `Locked`; `ReadOnly`; `Io`.
    pub fn open(path: &Path) -> Result<Self, OpenDeviceError> {
        Found::open(path)?.plain(None)
    }

    /// Opens a device of which `profile` says more than the driver: partial programs, free spare
    /// bytes, the harm of a power cut.
    ///
    /// # Errors
    ///
    /// As [`MtdNand::open`], and `Profile` when the profile describes another chip.
    pub fn open_as(path: &Path, profile: &Profile) -> Result<Self, OpenDeviceError> {
        Found::open(path)?.plain(Some(profile))
    }

    /// Opens a device to find out its capabilities: all that the kernel lets through is allowed, whether the
    /// chip can do it or not.
    ///
    /// # Errors
    ///
    /// As [`MtdNand::open`].
    pub fn open_to_probe(path: &Path) -> Result<Self, OpenDeviceError> {
        let Found { file, mut profile, .. } = Found::open(path)?;
        let capabilities = &mut profile.capabilities;
        let free =
            std::mem::replace(&mut capabilities.spare_covered, SpareRange { offset: 0, size: 0 });
        capabilities.spare_raw = free;
        capabilities.programs_spare = PROBE_PROGRAMS;
        capabilities.first_program_order = ProgramOrder::Any;
        capabilities.reprogram_order = ProgramOrder::Any;
        Ok(Self::assemble(file, profile.checked()?))
    }

    /// Profile of a device as `profile` gives it, with the device's size, or as the driver does where there
    /// is none. The content of the chip is not read.
    ///
    /// # Errors
    ///
    /// As [`MtdNand::open_as`].
    pub fn describe(path: &Path, profile: Option<&Profile>) -> Result<Profile, OpenDeviceError> {
        let found = Found::open(path)?;
        let mut profile = found.under(profile)?;
        if profile.ecc == EccOwner::Device {
            limit(&mut profile.capabilities, &found.profile);
        }
        Ok(profile.checked()?)
    }

    /// The device under a profile: bytes as they are where the ECC is ours.
    fn assemble(file: LockedFile, profile: Profile) -> Self {
        Self {
            file,
            process: Process::current(),
            rules: Rules::new(profile.geometry, profile.device_capabilities()),
            mode: if profile.ecc == EccOwner::Own { Mode::Raw } else { Mode::Place },
            profile,
            known: HashMap::new(),
            reading: Reading::Counted,
            counters: Counters::default(),
            opened: Instant::now(),
            page: Vec::new(),
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
            corrected = ioctl::read(&self.file, start, part.data, &mut spare, self.mode);
        }
        if lacks_counted_reads(corrected) {
            self.watch()?;
            corrected = self.read_watched(page, part, &mut spare);
        }
        if let Some(found) = spare.get(first..spare_size) {
            part.spare.copy_from_slice(found);
        }
        self.spare = spare;
        corrected
    }

    /// Has reads go without `MEMREAD` from now on.
    fn watch(&mut self) -> Result<(), Errno> {
        ioctl::set_file_mode(&self.file, self.mode)?;
        self.reading = Reading::Watched;
        Ok(())
    }

    /// Programs whole pages as they are, `0xFF` around the given bytes (T1).
    fn write_raw(&mut self, page: PhysicalPage, part: &ProgramPart<'_>) -> Result<(), Errno> {
        let geometry = self.profile.geometry;
        for (buffer, size, offset, bytes) in [
            (&mut self.page, geometry.page_size, part.data_offset, part.data),
            (&mut self.spare, geometry.spare_size, part.spare_offset, part.spare),
        ] {
            buffer.clear();
            buffer.resize(size as usize, 0xFF);
            for (target, byte) in buffer.iter_mut().skip(offset as usize).zip(bytes) {
                *target = *byte;
            }
        }
        let data = if part.data.is_empty() { &[][..] } else { &self.page };
        ioctl::write(&self.file, self.start_of(page), data, &self.spare, Mode::Raw)
    }

    fn write_placed(&mut self, page: PhysicalPage, part: &ProgramPart<'_>) -> Result<(), Errno> {
        let start = self.start_of(page);
        if part.data.is_empty() {
            let start = start + u64::from(part.spare_offset);
            return ioctl::write_oob(&self.file, start, part.spare);
        }
        let start = start + u64::from(part.data_offset);
        self.spare_from_start(part.spare_offset, part.spare);
        ioctl::write(&self.file, start, part.data, &self.spare, Mode::Place)
    }

    /// Whose code words the chip carries (T5), of a device in raw mode; none where it cannot be read raw.
    fn carried(&mut self) -> Result<Option<Carried>, NandError> {
        let geometry = self.profile.geometry;
        let found = survey(&geometry, |block, data, spare| {
            let Some(page) = geometry.page(block, 0) else { return Ok(false) };
            if self.is_bad(block)? {
                return Ok(false);
            }
            let part = ReadPart { data_offset: 0, data, spare_offset: 0, spare };
            self.read(page, part).map(|_| true)
        });
        if_read_raw(found)
    }

    /// Erases every good block; a block that cannot be erased is bad from now on, or left out in this session
    /// where it does not take its mark.
    fn erase_all(&mut self) -> Result<(), NandError> {
        for block in self.profile.geometry.blocks() {
            if self.is_bad(block)? {
                continue;
            }
            match self.erase(block) {
                Err(NandError::EraseFailed { .. }) => left_out(self.mark_bad(block))?,
                other => drop(other?),
            }
        }
        Ok(())
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

/// Error that the kernel's drivers return for raw access to a chip whose ECC cannot be switched off
/// (`nand_read_page_raw_notsupp`): a number that has a name only inside the kernel.
const ENOTSUPP: i32 = 524;

/// Whether the kernel has no `MEMREAD`: before Linux 6.1. A chip that cannot be read raw is another matter.
fn lacks_counted_reads(read: Result<u32, Errno>) -> bool {
    read == Err(Errno::NOTTY)
}

/// The finding of a raw read, or none where the chip cannot be read raw.
fn if_read_raw(found: Result<Carried, NandError>) -> Result<Option<Carried>, NandError> {
    let unsupported = [ENOTSUPP, Errno::OPNOTSUPP.raw_os_error()];
    match found {
        Err(NandError::Host { errno }) if unsupported.contains(&errno) => Ok(None),
        found => found.map(Some),
    }
}

/// `errno` of a call with an address outside the device.
const EINVAL: i32 = 22;

/// Result of a call to mark a block bad. Linux keeps a table of bad blocks as well: where a worn block does
/// not take its mark, the call fails with `EIO` although the block is bad from now on.
fn marked_bad(
    marked: Result<(), Errno>,
    is_bad: impl FnOnce() -> Result<bool, Errno>,
) -> Result<(), Errno> {
    match marked {
        Err(Errno::IO) if is_bad() == Ok(true) => Ok(()),
        marked => marked,
    }
}

/// Result of marking a block that cannot be erased: the block is left alone, whether it takes its mark or
/// not.
fn left_out(marked: Result<(), NandError>) -> Result<(), NandError> {
    match marked {
        Err(NandError::Host { .. }) => Ok(()),
        marked => marked,
    }
}

/// Meaning of a failed call. A protected chip says so for bad-block marks alone; its erases and programs end
/// as on worn blocks.
fn host(errno: Errno) -> NandError {
    match errno {
        Errno::ROFS => NandError::WriteProtected,
        errno => NandError::Host { errno: errno.raw_os_error() },
    }
}

impl Nand for MtdNand {
    fn geometry(&self) -> Geometry {
        self.profile.geometry
    }

    fn capabilities(&self) -> Capabilities {
        self.profile.device_capabilities()
    }

    fn read(
        &mut self,
        page: PhysicalPage,
        mut part: ReadPart<'_>,
    ) -> Result<Completion, NandError> {
        if self.profile.geometry.page_from_number(page.number()).is_none() {
            return Err(NandError::Rule { page, rule: FlashRule::Alignment });
        }
        self.process.require()?;
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
        self.process.require()?;
        let span = self.judge(page, &part)?;
        let written = match self.mode {
            Mode::Place => self.write_placed(page, &part),
            Mode::Raw => self.write_raw(page, &part),
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
        self.process.require()?;
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
        self.process.require()?;
        let start = self.block_start(block)?;
        let marked = ioctl::mark_bad(&self.file, start);
        marked_bad(marked, || ioctl::is_bad(&self.file, start)).map_err(host)
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
