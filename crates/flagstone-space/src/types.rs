//! Numbers that stand in page metadata and mappings.

use core::fmt;

/// A page as the tree addresses it: one or several consecutive physical pages that move together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogicalPage(pub u32);

impl fmt::Display for LogicalPage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "logical page {}", self.0)
    }
}

/// Order of committed changes: `restart epoch << 32 | counter`, so that no number ever returns
/// (rule D3). Only the low 56 bits are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Before everything.
    pub const ZERO: Self = Self(0);
}

/// Order of page writes: `mount epoch << 32 | counter` in 48 bits; larger is newer. A page that is
/// moved unchanged keeps its version (rule D6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// Names the atomic group a page was written in; never reused (rule D3). 40 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u64);

impl GroupId {
    /// The page is valid by itself.
    pub const NONE: Self = Self(0);
}

impl fmt::Display for GroupId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "group {}", self.0)
    }
}

/// Region: a set of logical pages with a scheme and counters of its own; at most 31.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u8);

/// Cause to which a program is charged, so that write amplification can be read by cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Redo log.
    Log,
    /// Merged pages, spilled pages, out-of-line values.
    Data,
    /// Appends to programmed pages.
    Delta,
    /// Commit flags in the spare area.
    Flag,
    /// Anchors, mapping, block summaries.
    Metadata,
    /// Live pages moved by garbage collection, scrubbing or retirement.
    Relocation,
    /// Live pages moved by static wear levelling.
    Wear,
}

impl Cause {
    /// Every cause, in the order of reports.
    pub const ALL: [Self; 7] = [
        Self::Log,
        Self::Data,
        Self::Delta,
        Self::Flag,
        Self::Metadata,
        Self::Relocation,
        Self::Wear,
    ];
}

/// How soon a page is expected to be written again; decides the write stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Temperature {
    /// Rewritten soon: goes with other hot pages to the least worn blocks.
    #[default]
    Hot,
    /// Rewritten late: goes with relocated pages to the most worn blocks.
    Cold,
}

/// The writer's note on a page version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteTag {
    /// The page is complete up to this LSN (rule D2).
    pub lsn: Lsn,
    /// Region that the write is counted for.
    pub region: RegionId,
    /// Cause that the programs are charged to.
    pub cause: Cause,
    /// Write stream.
    pub temperature: Temperature,
    /// Appends that the page is to take before it is written again, at most
    /// [`crate::APPEND_SLOTS_MAX`]: its end is reserved for them.
    pub append_slots: u8,
}

impl WriteTag {
    /// Tag of a hot data page of `region`, complete to `lsn`.
    #[must_use]
    pub const fn data(lsn: Lsn, region: RegionId) -> Self {
        Self { lsn, region, cause: Cause::Data, temperature: Temperature::Hot, append_slots: 0 }
    }
}

/// Identity of the page version that a read returned or a write made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageInfo {
    /// Rank among the versions of the logical page.
    pub version: Version,
    /// The version is complete up to this LSN.
    pub lsn: Lsn,
    /// Group that wrote the version; kept by relocation (rule D12).
    pub group: GroupId,
    /// Region of the page.
    pub region: RegionId,
    /// Appends that the version was reserved for.
    pub append_slots: u8,
    /// Appends that it has taken.
    pub appends: u8,
    /// Unit that holds it, and the life of the unit's block.
    pub(crate) at: u32,
    pub(crate) sequence: u32,
}

impl PageInfo {
    /// Identity of a version that stands in no space: it takes no appends.
    #[must_use]
    pub const fn elsewhere(version: Version, lsn: Lsn, region: RegionId) -> Self {
        let group = GroupId::NONE;
        let (at, sequence) = (u32::MAX, 0);
        Self { version, lsn, group, region, append_slots: 0, appends: 0, at, sequence }
    }
}

/// Names a frozen mapping ([`crate::Space::freeze`]), for ever: its frontier, below which all its versions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrozenId(pub(crate) Version);

impl fmt::Display for FrozenId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "frozen mapping {}", self.0.0)
    }
}

/// Names one pinned page version until it is unpinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PinId(pub(crate) u64);

impl fmt::Display for PinId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "pin {}", self.0)
    }
}

/// Where a log append landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogAddress {
    /// Log page number; never reused.
    pub page: u64,
    /// First slot of the append within the page.
    pub slot: u8,
}
