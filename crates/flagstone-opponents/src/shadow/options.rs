//! Options of a store of shadow pages, and the reasons why a device cannot hold one.

use std::fmt;
use std::str::FromStr;

use flagstone_nand::ProgramOrder;
use flagstone_nand::{Capabilities, CellMode, Geometry, NandError, PartialCut, PhysicalPage};
use thiserror::Error;

use super::note::{NOTE_SIZE, NOTE_SIZE_WITH_FLAG};
use crate::evidence::{Cycles, Flags};
use flagstone_space::{Check, GroupId, LogicalPage};

/// How pages prove that their transaction committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShadowProtocol {
    /// Commit-based flags: cheap aborts, collection cares for committed transactions.
    Cfc,
    /// Abort-based flags: cheap collection as long as few transactions abort.
    Afc,
    /// Simple cyclic commit: no flags; aborted records are erased before their pages are written
    /// again.
    Scc,
    /// Cyclic commit with back pointers: no flags, no erases; more to keep, longer.
    Bpcc,
}

/// Protocol by its kind of evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    Chain(Flags),
    Cycle(Cycles),
}

impl ShadowProtocol {
    /// Every protocol, in the order of reports.
    pub const ALL: [Self; 4] = [Self::Cfc, Self::Afc, Self::Scc, Self::Bpcc];

    const fn name(self) -> &'static str {
        match self {
            Self::Cfc => "cfc",
            Self::Afc => "afc",
            Self::Scc => "scc",
            Self::Bpcc => "bpcc",
        }
    }

    pub(super) const fn evidence(self) -> Evidence {
        match self {
            Self::Cfc => Evidence::Chain(Flags::Cfc),
            Self::Afc => Evidence::Chain(Flags::Afc),
            Self::Scc => Evidence::Cycle(Cycles::Scc),
            Self::Bpcc => Evidence::Cycle(Cycles::Bpcc),
        }
    }

    pub(super) const fn number(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for ShadowProtocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A name that is no protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no protocol has this name; there are cfc, afc, scc and bpcc")]
pub struct UnknownProtocol;

impl FromStr for ShadowProtocol {
    type Err = UnknownProtocol;

    fn from_str(text: &str) -> Result<Self, UnknownProtocol> {
        Self::ALL.into_iter().find(|protocol| protocol.name() == text).ok_or(UnknownProtocol)
    }
}

/// Options a store is made with; a mount must name the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShadowOptions {
    /// Protocol.
    pub protocol: ShadowProtocol,
    /// Chains link clusters, the pages of a transaction within a block, instead of pages. Flags
    /// only.
    pub block_flags: bool,
    /// Physical pages of a logical page: 1 to 8.
    pub unit_pages: u32,
    /// Blocks not offered, in percent.
    pub reserve_percent: u32,
    /// Free blocks below which blocks are collected, in percent.
    pub collect_below_percent: u32,
}

impl ShadowOptions {
    /// The setting of the paper: 8 KiB pages on 2 KiB ones, a tenth of the blocks kept back,
    /// collection below a twentieth free.
    #[must_use]
    pub const fn new(protocol: ShadowProtocol) -> Self {
        Self {
            protocol,
            block_flags: false,
            unit_pages: 4,
            reserve_percent: 10,
            collect_below_percent: 5,
        }
    }
}

/// Shortcoming of a device that rules a protocol out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Lack {
    /// Too few programs of a page between erases.
    #[error("pages take fewer than three programs (NOP), so no flag can follow; scc and bpcc fit")]
    PartialPrograms,
    /// The order rule covers later programs.
    #[error("its order rule covers re-programs, so no flag can follow; scc and bpcc fit")]
    ReprogramOrder,
    /// The spare bytes are covered by the ECC, or too few.
    #[error("it has fewer than 38 spare bytes outside its ECC for flags; scc and bpcc may fit")]
    RawSpare,
    /// A cut in a flag program may take the page along.
    #[error("a cut in a partial program may harm the whole page; scc and bpcc fit")]
    IsolatedCuts,
    /// Too few spare bytes for any protocol.
    #[error("it has fewer than 33 spare bytes; no protocol of shadow pages fits")]
    Spare,
    /// Paired cells, or no flash at all.
    #[error("a cut may harm pages written before, or it is no flash; no protocol fits")]
    Cells,
    /// Too few blocks, or pages too small.
    #[error("it is too small for the options")]
    Room,
}

/// Why an operation did not happen.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ShadowError {
    /// The device cannot carry the protocol.
    #[error("the device cannot carry {protocol}: {lack}")]
    Lacks {
        /// Protocol asked for.
        protocol: ShadowProtocol,
        /// The device's shortcoming.
        lack: Lack,
    },
    /// An option has a value it cannot take.
    #[error("an option has a value it cannot take: {0}")]
    Option(&'static str),
    /// No store of shadow pages is on the device.
    #[error("the device holds no store of shadow pages")]
    NotFormatted,
    /// The store was made with other options.
    #[error("the store was made with other options")]
    OtherOptions,
    /// The number lies beyond the logical pages.
    #[error("{0} is out of range")]
    OutOfRange(LogicalPage),
    /// An image has not the size of a page.
    #[error("an image of {size} bytes is no page of {page_size}")]
    Size {
        /// Bytes given.
        size: usize,
        /// Bytes of a page.
        page_size: usize,
    },
    /// The transaction does not run.
    #[error("{0} is not running")]
    NotRunning(GroupId),
    /// Another running transaction wrote the page: lock before writing.
    #[error("{page} was written by {by}, which is running")]
    Busy {
        /// Page asked for.
        page: LogicalPage,
        /// Transaction that wrote it.
        by: GroupId,
    },
    /// A transaction wrote more often than its pages can be numbered.
    #[error("{0} wrote too many pages")]
    TooManyPages(GroupId),
    /// No block is free and none can be made free: abort a transaction.
    #[error("the store is full")]
    Full,
    /// A page's bytes are damaged.
    #[error("{page} is corrupt: {check}")]
    Corrupt {
        /// Physical page concerned.
        page: PhysicalPage,
        /// Check that fired.
        check: Check,
    },
    /// A flag could not be set, on several pages in turn.
    #[error("a flag of {0} cannot be set")]
    FlagRefused(GroupId),
    /// An earlier failure left the device's state unknown.
    #[error("the store is poisoned by an earlier failure")]
    Poisoned,
    /// The device reported an error that this store cannot absorb.
    #[error(transparent)]
    Device(#[from] NandError),
}

/// First spare byte of the notes, or the device's shortcoming.
pub(super) fn note_offset(
    geometry: &Geometry,
    capabilities: &Capabilities,
    protocol: ShadowProtocol,
) -> Result<u32, Lack> {
    let is_alone =
        matches!(capabilities.cell_mode, CellMode::Slc | CellMode::PseudoSlc | CellMode::Tlc);
    if !is_alone || capabilities.needs_sync {
        return Err(Lack::Cells);
    }
    let fits = |offset: u32, size: u32, needed: usize| {
        size as usize >= needed && u64::from(offset) + u64::from(size) <= geometry.spare_size.into()
    };
    let (raw, covered) = (capabilities.spare_raw, capabilities.spare_covered);
    match protocol.evidence() {
        Evidence::Chain(_) if capabilities.programs_spare < 3 => Err(Lack::PartialPrograms),
        Evidence::Chain(_) if capabilities.reprogram_order != ProgramOrder::Any => {
            Err(Lack::ReprogramOrder)
        }
        Evidence::Chain(_) if capabilities.partial_cut != PartialCut::Isolated => {
            Err(Lack::IsolatedCuts)
        }
        Evidence::Chain(_) if !fits(raw.offset, raw.size, NOTE_SIZE_WITH_FLAG) => {
            Err(Lack::RawSpare)
        }
        _ if fits(raw.offset, raw.size, NOTE_SIZE) => Ok(raw.offset),
        _ if fits(covered.offset, covered.size, NOTE_SIZE) => Ok(covered.offset),
        _ => Err(Lack::Spare),
    }
}
