//! Numbers that stand in page metadata and mappings.

/// What the tree addresses: one or several consecutive physical pages that move together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogicalPage(pub u32);

/// Order of committed changes: `restart epoch << 40 | counter`, so that no number ever returns
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

/// Region: a set of logical pages with a scheme and counters of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u8);

/// What a program is charged to, so that write amplification can be read by cause.
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
