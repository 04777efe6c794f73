//! The device trait and the reports of its operations.

use alloc::sync::Arc;
use core::fmt;

use thiserror::Error;

use crate::{BlockIndex, Capabilities, Geometry, PhysicalPage, SsdCounters};

/// Part of a page that one program or read touches. Empty slices touch nothing.
#[derive(Clone, Copy, Debug)]
pub struct ProgramPart<'a> {
    /// First data byte; a multiple of the code word's data size.
    pub data_offset: u32,
    /// Data bytes; whole code words.
    pub data: &'a [u8],
    /// First spare byte.
    pub spare_offset: u32,
    /// Spare bytes; bytes of `0xFF` leave cells as they are.
    pub spare: &'a [u8],
}

/// Where a read puts its bytes. Empty targets read nothing.
#[derive(Debug)]
pub struct ReadPart<'a> {
    /// First data byte; a multiple of the code word's data size.
    pub data_offset: u32,
    /// Receives data bytes; whole code words.
    pub data: &'a mut [u8],
    /// First spare byte.
    pub spare_offset: u32,
    /// Receives spare bytes.
    pub spare: &'a mut [u8],
}

/// Report of a completed operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// Device time at which the operation is complete, in nanoseconds. Wall time on real devices.
    pub end_ns: u64,
    /// Highest number of bits the ECC corrected in any one code word (reads only).
    pub corrected_bits_max: u32,
}

/// Rule of flash that an operation would break. Always a bug above the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum FlashRule {
    /// A bit would have to rise from 0 to 1 without an erase.
    #[error("bits rise by an erase alone")]
    BitsOnlyFall,
    /// The data area was programmed as often as NOP allows.
    #[error("its data area was programmed as often as it may be")]
    DataPrograms,
    /// The spare area was programmed as often as NOP allows.
    #[error("its spare area was programmed as often as it may be")]
    SparePrograms,
    /// A page was programmed for the first time after a later page of its block.
    #[error("a later page of the block is programmed")]
    FirstProgramOrder,
    /// A re-program went back behind a later page.
    #[error("a later page of the block was programmed since")]
    ReprogramOrder,
    /// A code word was programmed a second time.
    #[error("a code word is programmed once")]
    CodeWordReuse,
    /// Offset or length does not fall on code-word boundaries, or leaves the page.
    #[error("whole code words of the page are read and programmed, nothing else")]
    Alignment,
    /// The block is marked bad.
    #[error("its block is marked bad")]
    BadBlock,
}

/// Errors of a device. Every variant names the address, so a log line is enough to act on.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NandError {
    /// More bit errors than the ECC repairs. The data is gone; the block may still be good.
    #[error("uncorrectable bit errors on {page}")]
    Uncorrectable {
        /// Page read.
        page: PhysicalPage,
    },
    /// The chip reported a failed program. Retire the block; earlier pages stay readable.
    #[error("program failed on {page}")]
    ProgramFailed {
        /// Page programmed.
        page: PhysicalPage,
    },
    /// The chip reported a failed erase. Retire the block.
    #[error("erase failed on {block}")]
    EraseFailed {
        /// Block erased.
        block: BlockIndex,
    },
    /// The operation breaks a rule of flash: a bug above the device.
    #[error("a rule of flash would be broken on {page}: {rule}")]
    Rule {
        /// Page concerned.
        page: PhysicalPage,
        /// Rule concerned.
        rule: FlashRule,
    },
    /// The device lost power: nothing works until it is opened again.
    #[error("power is off")]
    PowerOff,
    /// A sync failed: nothing written since the last one can be relied on (rule D10).
    #[error("sync failed")]
    SyncFailed,
    /// The chip is write-protected: it refuses programs, erases and marks of bad blocks. Nothing is wrong with
    /// its blocks.
    #[error("the device is write-protected")]
    WriteProtected,
    /// The host has no room for more blocks. Nothing has changed; later there may be room.
    #[error("the host has no room for more blocks")]
    NoSpace,
    /// Another process opened the device: this one was forked from it. Nothing has changed.
    #[error("the device was opened by another process, from which this one was forked")]
    OtherProcess,
    /// The host side failed (file, ioctl, bus). Nothing is known about the medium.
    #[cfg_attr(feature = "std", error("{}", std::io::Error::from_raw_os_error(*errno)))]
    #[cfg_attr(not(feature = "std"), error("host error {errno}"))]
    Host {
        /// `errno` of the failed call.
        errno: i32,
    },
}

/// Counters of a device since it was made or [`Nand::reset_counters`] was called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads of a page, whole or part: each is one array read.
    pub page_reads: u64,
    /// Programs of a whole data area.
    pub page_programs: u64,
    /// Programs of part of a page: of the data area, or of the spare area alone.
    pub partial_programs: u64,
    /// Block erases.
    pub block_erases: u64,
    /// Bytes transferred by programs (data and spare).
    pub bytes_programmed: u64,
    /// Bytes transferred by reads (data and spare).
    pub bytes_read: u64,
    /// Syncs.
    pub syncs: u64,
    /// Bytes given back to the host ([`Nand::trim`]).
    pub bytes_discarded: u64,
    /// Bits the ECC corrected.
    pub corrected_bits: u64,
}

/// A flash device: erase whole blocks, program pages or parts of them, read anything.
///
/// # Power cuts
///
/// A cut during `program` leaves the code words being programmed with any content, and two reads
/// of them may differ ("unstable bits"). A cut during `erase` does the same to the whole block. On
/// multi-level cells a cut may also take the paired page, programmed and acknowledged earlier
/// (Tseng et al., DAC 2011). Where `needs_sync` holds, any subset of the writes since the last
/// `sync` may be lost. Nothing else changes.
pub trait Nand {
    /// Shape of the device; constant for its lifetime.
    fn geometry(&self) -> Geometry;

    /// Capabilities of the device; constant for its lifetime.
    fn capabilities(&self) -> Capabilities;

    /// Reads part of a page, corrected by the ECC. Erased bytes read as `0xFF`.
    ///
    /// # Errors
    ///
    /// `Uncorrectable` when the ECC gave up; the target then holds undefined bytes.
    fn read(&mut self, page: PhysicalPage, part: ReadPart<'_>) -> Result<Completion, NandError>;

    /// Programs part of a page. A part that covers the whole data area is a page program.
    ///
    /// # Errors
    ///
    /// `ProgramFailed` means that the block has to be retired; pages programmed earlier stay readable. `Rule`
    /// is a bug of the caller and changes nothing. `NoSpace` where a host has no room for the part: the
    /// part's content is then not known, and all else is as it was.
    fn program(
        &mut self,
        page: PhysicalPage,
        part: ProgramPart<'_>,
    ) -> Result<Completion, NandError>;

    /// Erases a block and spends one of its program/erase cycles.
    ///
    /// # Errors
    ///
    /// `EraseFailed` means that the block has to be retired; `NoSpace` that a host has no room for the
    /// block's next content: its present content may be gone, and it may be erased later.
    fn erase(&mut self, block: BlockIndex) -> Result<Completion, NandError>;

    /// Whether a host may have no room for blocks that are there: an erase tells.
    fn may_lack_room(&self) -> bool {
        false
    }

    /// Whether NOP lets the spare bytes of `page` be programmed once more, as far as the device
    /// knows: a real chip counts nothing, and its driver counts only the programs of this session.
    ///
    /// # Errors
    ///
    /// Host errors only.
    fn takes_spare(&mut self, page: PhysicalPage) -> Result<bool, NandError> {
        let _ = page;
        Ok(true)
    }

    /// Tells a translation layer, or a host, that the content of `count` pages from `first` on is needed no
    /// more, power cuts included. Each may read as erased from now on; where neither wants to know, nothing
    /// happens.
    fn trim(&mut self, first: PhysicalPage, count: u32) {
        let _ = (first, count);
    }

    /// Whether the block carries a bad-block mark, from the factory or from [`Nand::mark_bad`].
    ///
    /// # Errors
    ///
    /// Host errors and power loss only.
    fn is_bad(&mut self, block: BlockIndex) -> Result<bool, NandError>;

    /// Marks a block bad, for ever. Its pages are erased or lost: rescue them first (Linux erases a
    /// block before it marks it).
    ///
    /// # Errors
    ///
    /// `Host` where the block does not take the mark; `WriteProtected` where none would; power loss.
    fn mark_bad(&mut self, block: BlockIndex) -> Result<(), NandError>;

    /// Makes everything programmed and erased so far durable. Free on NAND.
    ///
    /// # Errors
    ///
    /// `SyncFailed`: the device must not be used any further (rule D10).
    fn sync(&mut self) -> Result<Completion, NandError>;

    /// Blocks that are there, from the first one on: fewer than [`Nand::geometry`] says where the device
    /// grows. The others cannot be read, programmed or erased.
    fn present_blocks(&self) -> u32 {
        self.geometry().block_count
    }

    /// Lets the first `block_count` blocks be there, durably. New ones hold nothing.
    ///
    /// # Errors
    ///
    /// `NoSpace` when the host has no room for them, or the device is as large as it can be: nothing has
    /// changed. The errors of [`Nand::sync`].
    fn extend(&mut self, block_count: u32) -> Result<(), NandError> {
        if block_count <= self.present_blocks() { Ok(()) } else { Err(NandError::NoSpace) }
    }

    /// Takes note of a program that its caller does next beside the thread that has the device,
    /// with [`SharedNand::program`]; false where [`Nand::program`] has to do it, and nothing was
    /// noted.
    ///
    /// # Errors
    ///
    /// As [`Nand::program`].
    fn begin_program(
        &mut self,
        page: PhysicalPage,
        part: &ProgramPart<'_>,
    ) -> Result<bool, NandError> {
        let _ = (page, part);
        Ok(false)
    }

    /// Operations beside the thread that has the device; none where operations take turns.
    fn shared(&self) -> Option<Arc<dyn SharedNand>> {
        None
    }

    /// Program/erase cycles `block` has seen, where the device knows; 0 where it does not.
    fn erase_count(&self, block: BlockIndex) -> u32;

    /// Operations counted since the last reset.
    fn counters(&self) -> Counters;

    /// Counters of the device's own translation layer since the last reset; none where there is no
    /// such layer.
    fn translation(&self) -> Option<SsdCounters> {
        None
    }

    /// Starts counting anew.
    fn reset_counters(&mut self);

    /// Device time in nanoseconds: no operation issued from now on starts earlier.
    fn now_ns(&self) -> u64;

    /// Moves the device's time forward to `now_ns`; the past is left alone. Does nothing on real
    /// devices, whose time is the wall clock.
    fn advance_to(&mut self, now_ns: u64);

    /// Sets the time of the caller, for callers that take turns: the wait of one does not delay the
    /// next, only busy dies do. As [`Nand::advance_to`] on real devices.
    fn resume_at(&mut self, now_ns: u64) {
        self.advance_to(now_ns);
    }
}

/// Operations that several threads may do to a device at a time.
pub trait SharedNand: fmt::Debug + Send + Sync {
    /// Reads the data area of `page` from its start. Bytes that are being programmed meanwhile may
    /// read as anything.
    ///
    /// # Errors
    ///
    /// As [`Nand::read`].
    fn read(&self, page: PhysicalPage, target: &mut [u8]) -> Result<(), NandError>;

    /// Does the program that [`Nand::begin_program`] took note of.
    ///
    /// # Errors
    ///
    /// As [`Nand::program`]; the content of the page is not known then.
    fn program(&self, page: PhysicalPage, data_offset: u32, data: &[u8]) -> Result<(), NandError>;

    /// Makes the programs and erases durable that were complete when the call began.
    ///
    /// # Errors
    ///
    /// As [`Nand::sync`].
    fn sync(&self) -> Result<(), NandError>;
}
