//! Counters of a space, and their reports.

use alloc::vec::Vec;
use core::iter::Sum;
use core::ops::{Add, AddAssign, Sub};

use flagstone_nand::BlockIndex;

use crate::blocks::BlockState;
use crate::{Cause, RegionId};

/// Why a page was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadPurpose {
    /// The caller asked for the page.
    Data,
    /// The caller asked for a log page.
    Log,
    /// A live page was moved.
    Relocation,
    /// A mount, or metadata that a decision needed.
    Metadata,
}

/// Least, mean and largest of the erase counts of all blocks that are not bad.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EraseCounts {
    /// Fewest erases.
    pub min: u32,
    /// Mean of erases.
    pub mean: f64,
    /// Most erases.
    pub max: u32,
}

/// Counters of one region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionStats {
    /// Logical pages written by the caller.
    pub writes: u64,
    /// Logical pages moved by the collector, scrubbing and wear levelling.
    pub moves: u64,
    /// Logical pages read by the caller.
    pub reads: u64,
    /// Logical pages that took an append instead of a write.
    pub appends: u64,
}

/// Counters since the space was made or mounted, and the state it is in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpaceStats {
    /// Physical pages programmed, in the order of [`Cause::ALL`].
    pub programs_by_cause: [u64; 7],
    /// Bytes programmed, data and spare, in the order of [`Cause::ALL`].
    pub bytes_by_cause: [u64; 7],
    /// Physical pages read: data, log, relocation, metadata.
    pub reads_by_purpose: [u64; 4],
    /// Logical pages that garbage collection moved.
    pub gc_migrations: u64,
    /// Logical pages that garbage collection replaced by a newer image.
    pub gc_merges: u64,
    /// Blocks that garbage collection emptied.
    pub gc_victims: u64,
    /// Nanoseconds that dies worked for garbage collection, added up over the dies: its reads and
    /// programs, and the erases of blocks whose units were moved or replaced in this session. Waits
    /// for a die, or for an operation on another die, are not included.
    pub gc_time_ns: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Logical pages rewritten because a read needed many corrections.
    pub scrubs: u64,
    /// Appends to programmed pages.
    pub delta_appends: u64,
    /// Checkpoints made durable.
    pub checkpoints: u64,
    /// Logical pages with a version.
    pub live_pages: u32,
    /// Logical pages that may have a version or be reserved.
    pub capacity_pages: u32,
    /// Blocks that hold nothing.
    pub free_blocks: u32,
    /// Blocks that failed, retired and marked.
    pub bad_blocks: u32,
    /// Erase counts over all blocks that are not bad.
    pub erase_count: EraseCounts,
    /// Versions that frozen mappings alone keep.
    pub frozen_pages: u32,
    /// Bytes of memory that mapping and block table take.
    pub mapping_bytes: usize,
    /// Counters by region; the index is the region's number.
    pub by_region: Vec<RegionStats>,
}

/// Work done to the flash: programs and their bytes by cause, and erases.
///
/// Two readings of the counters of one space subtract, bills of different times add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bill {
    programs: [u64; 7],
    bytes: [u64; 7],
    erases: u64,
}

impl Bill {
    /// Physical pages programmed, in whole or in part.
    #[must_use]
    pub fn programs(&self) -> u64 {
        self.programs.iter().sum()
    }

    /// Bytes programmed, data and spare.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Blocks erased.
    #[must_use]
    pub const fn erases(&self) -> u64 {
        self.erases
    }

    /// Physical pages programmed for one cause.
    #[must_use]
    pub const fn programs_for(&self, cause: Cause) -> u64 {
        self.programs[cause as usize]
    }

    /// Bytes programmed for one cause, data and spare.
    #[must_use]
    pub const fn bytes_for(&self, cause: Cause) -> u64 {
        self.bytes[cause as usize]
    }

    fn combine(self, other: Self, operation: impl Fn(u64, u64) -> u64) -> Self {
        let each = |one: [u64; 7], other: [u64; 7]| {
            core::array::from_fn(|cause| operation(one[cause], other[cause]))
        };
        Self {
            programs: each(self.programs, other.programs),
            bytes: each(self.bytes, other.bytes),
            erases: operation(self.erases, other.erases),
        }
    }
}

impl Add for Bill {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.combine(other, u64::saturating_add)
    }
}

impl AddAssign for Bill {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Bill {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        self.combine(earlier, u64::saturating_sub)
    }
}

impl Sum for Bill {
    fn sum<I: Iterator<Item = Self>>(bills: I) -> Self {
        bills.fold(Self::default(), Add::add)
    }
}

/// One block, for a picture of wear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockReport {
    /// Block.
    pub block: BlockIndex,
    /// Its use.
    pub state: BlockState,
    /// Live units in the block.
    pub live: u32,
    /// Erases it has seen.
    pub erases: u32,
}

/// Counters that the floor keeps while it works.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) programs: [u64; 7],
    pub(crate) bytes: [u64; 7],
    pub(crate) reads: [u64; 4],
    pub(crate) gc_migrations: u64,
    pub(crate) gc_merges: u64,
    pub(crate) gc_victims: u64,
    pub(crate) erases: u64,
    pub(crate) scrubs: u64,
    pub(crate) delta_appends: u64,
    pub(crate) checkpoints: u64,
    pub(crate) regions: Vec<RegionStats>,
}

impl Tally {
    pub(crate) fn program(&mut self, cause: Cause, bytes: usize) {
        self.programs[cause as usize] += 1;
        self.bytes[cause as usize] += bytes as u64;
    }

    pub(crate) const fn bill(&self) -> Bill {
        Bill { programs: self.programs, bytes: self.bytes, erases: self.erases }
    }

    pub(crate) fn read(&mut self, purpose: ReadPurpose) {
        self.reads[purpose as usize] += 1;
    }

    pub(crate) fn region(&mut self, region: RegionId) -> &mut RegionStats {
        let index = usize::from(region.0);
        if index >= self.regions.len() {
            self.regions.resize(index + 1, RegionStats::default());
        }
        &mut self.regions[index]
    }
}
