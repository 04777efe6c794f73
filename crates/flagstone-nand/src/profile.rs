//! Named devices: geometry, rules and times, with the source of every figure.
//!
//! Owns the shipped profiles (`profiles/*.toml`) and the checks that make one usable. Never guesses: a key
//! that a profile leaves out has one documented default or is an error.
//!
//! - **F1** A profile that a function of this module returns is consistent: code words divide the page, spare
//!   ranges lie inside the spare area and apart, all addresses fit 32 bits (the addresses that an SSD shows
//!   among them), channels divide the dies, nothing takes longer than an hour. Code words of our own fit the
//!   spare area, beside the bytes of the floors above.
//! - **F2** A key that is not known is refused, with the known one named that is near it.
//! - **F3** Its rules are those of one kind of device: a chip has no rule of a file, a file none of a chip.

#[cfg(feature = "std")]
mod text;

use alloc::string::String;

use thiserror::Error;

use crate::ecc::{Layout, programmable};
use crate::{
    Capabilities, CellMode, CodeWord, Geometry, ProgramOrder, SpareRange, THIN_FACTOR, Timing,
    suggestion,
};

/// Most code words a page may have: one bit each in the state of a page.
pub const CODE_WORD_COUNT_MAX: u32 = 64;

/// Most data bytes a page may have: four times the largest NAND page known.
const PAGE_SIZE_MAX: u32 = 64 * 1024;

/// Longest time of an operation: an hour. Within this limit no sum of bytes times nanoseconds
/// overflows.
const OPERATION_NS_MAX: u64 = 3_600_000_000_000;

/// A device by name, from which the simulator and images are built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Name on the command line.
    pub name: String,
    /// Shape.
    pub geometry: Geometry,
    /// Rules, as the floors above see them.
    pub capabilities: Capabilities,
    /// Who computes the ECC.
    pub ecc: EccOwner,
    /// Latencies.
    pub timing: Timing,
    /// The translation layer that stands before the chips, where the device is an SSD.
    pub translation: Option<Translation>,
    /// Where the figures come from.
    pub source: String,
    /// How far they can be trusted.
    pub confidence: String,
}

/// Who computes the ECC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EccOwner {
    /// The device: chip, controller or driver. Its layout of the spare area is given.
    #[default]
    Device,
    /// We do, on a chip that is reached byte by byte ([`crate::EccNand`]).
    Own,
}

/// Page-mapping translation layer of an SSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// Share of the chips' pages that the host never sees, in percent.
    pub reserve_percent: u32,
    /// Whether a page that is written again is programmed in place, where that fills nothing but code
    /// words which were left erased.
    pub in_place_appends: bool,
    /// Whether a page that collection moves stays within its die; else it crosses the bus twice.
    pub copy_back: bool,
}

/// Why a profile cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// No profile has this name.
    #[error("no profile is named `{name}`{}", suggestion(nearest.as_deref()))]
    UnknownName {
        /// Name asked for.
        name: String,
        /// Shipped name that was probably meant.
        nearest: Option<String>,
    },
    /// A key that profiles do not have.
    #[error("profile key `{key}` is unknown{}", suggestion(nearest.as_deref()))]
    UnknownKey {
        /// Key found, with its table.
        key: String,
        /// Key that was probably meant.
        nearest: Option<String>,
    },
    /// A key that has no default is absent.
    #[error("profile key `{key}` is missing")]
    MissingKey {
        /// Key expected, with its table.
        key: String,
    },
    /// A value has the wrong type or lies outside its range.
    #[error("profile key `{key}` has a value it cannot take; expected {expected}")]
    BadValue {
        /// Key concerned, with its table.
        key: String,
        /// The values it takes.
        expected: &'static str,
    },
    /// The text is no TOML.
    #[error("line {line} of the profile is not TOML")]
    Syntax {
        /// First line that cannot be read, from 1.
        line: usize,
    },
    /// Two figures contradict each other.
    #[error("the profile contradicts itself: {0}")]
    Inconsistent(Inconsistency),
}

/// Relation between figures of a profile that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Inconsistency {
    /// A size or a count is zero, or larger than any device.
    #[error(
        "`page_size`, `pages_per_block`, `block_count` or `die_count` is 0, or `page_size` or `spare_size` \
         above {PAGE_SIZE_MAX}"
    )]
    Geometry,
    /// A chip is simulated block by block.
    #[error("the device has more than {BLOCK_COUNT_MAX} blocks (`block_count`)")]
    Blocks,
    /// Each die has a block at least.
    #[error("the device has more dies than blocks (`die_count`, `block_count`)")]
    Dies,
    /// Pages are numbered with 32 bits.
    #[error(
        "the device has more pages than 32 bits can number (`block_count` times `pages_per_block`)"
    )]
    PageCount,
    /// Code words must tile the page, and there are at most 64.
    #[error(
        "code words do not divide the page into at most {CODE_WORD_COUNT_MAX} parts (`code_word_size`, \
         `page_size`)"
    )]
    CodeWords,
    /// A code word repairs no more bits than it has.
    #[error("a code word repairs more bits than it has (`code_word_strength`)")]
    Strength,
    /// A spare range leaves the spare area, or two of them overlap.
    #[error("the spare ranges `spare_raw` and `spare_covered` overlap or leave the spare area")]
    Spare,
    /// NOP lies outside 1..=255.
    #[error(
        "a page allows between 1 and 255 programs (`programs_data`, and `programs_spare` where there is a spare \
         area)"
    )]
    Programs,
    /// A block takes one cycle at least.
    #[error("a block takes no cycle (`endurance`)")]
    Endurance,
    /// Code words of our own leave no room, or stand on a device that is no bare chip.
    #[error(
        "code words of our own (`ecc`) do not fit the spare area, or the device is no bare chip"
    )]
    Ecc,
    /// Times are added up in nanoseconds, and multiplied by bytes.
    #[error("an operation takes longer than an hour (`time_ns`)")]
    Times,
    /// Each channel serves as many dies as every other.
    #[error("the channels do not divide the dies (`channel_count`, `die_count`)")]
    Channels,
    /// Paired pages lie 1 to `pages_per_block - 1` apart.
    #[error("the distance of paired pages does not fit the block (`pair_distance`)")]
    PairDistance,
    /// Name of the mode of unknown cells: a drive has a translation layer, and cells behind it.
    #[error(
        "`cell_mode` says what the cells of the chips are; that they lie behind a translation layer, the table \
         `translation` says"
    )]
    Translated,
    /// A rule that a file has and nothing else.
    #[error("`{key}` is for files alone (`cell_mode = \"file\"`)")]
    FilesAlone {
        /// Key concerned.
        key: &'static str,
    },
    /// A rule that a file does not have.
    #[error("`{key}` of a file (`cell_mode = \"file\"`) must be {must}")]
    File {
        /// Key concerned.
        key: &'static str,
        /// Its value on every file.
        must: &'static str,
    },
}

/// Most blocks of a chip: four times the count of the largest profile. Each takes memory in a simulation.
const BLOCK_COUNT_MAX: u32 = 1 << 22;

/// Segments that a small file is cut into at least, as far as segments may shrink.
const SEGMENTS_WANTED: u64 = 128;

/// Pages of the smallest segment.
const SEGMENT_PAGES_MIN: u32 = 8;

impl Profile {
    /// The same device with another number of blocks.
    ///
    /// # Errors
    ///
    /// `Inconsistent` when there would be no block, or more pages than 32 bits can number.
    pub fn with_block_count(mut self, block_count: u32) -> Result<Self, ProfileError> {
        self.geometry.block_count = block_count;
        self.checked()
    }

    /// The same device with room for at least `bytes` of data: blocks are rounded up, to one at least. The
    /// segments of a file are as large as is of use: a small file has smaller ones, or reserves of whole
    /// segments would be most of it.
    ///
    /// # Errors
    ///
    /// As [`Profile::with_block_count`].
    pub fn with_capacity(mut self, bytes: u64) -> Result<Self, ProfileError> {
        let shape = &mut self.geometry;
        let is_file = self.capabilities.cell_mode == CellMode::File;
        while is_file
            && shape.pages_per_block > SEGMENT_PAGES_MIN
            && bytes / shape.block_size().max(1) < SEGMENTS_WANTED
        {
            shape.pages_per_block /= 2;
        }
        let block_count = bytes.div_ceil(shape.block_size().max(1)).max(1);
        let block_count = u32::try_from(block_count)
            .map_err(|_| ProfileError::Inconsistent(Inconsistency::PageCount))?;
        self.with_block_count(block_count)
    }

    /// The profile, if its figures agree with each other (F1).
    ///
    /// # Errors
    ///
    /// `Inconsistent`, with the first relation that does not hold.
    pub fn checked(self) -> Result<Self, ProfileError> {
        check(&self.geometry, &self.capabilities).map_err(ProfileError::Inconsistent)?;
        self.check_kind().map_err(ProfileError::Inconsistent)?;
        if self.translation.is_some()
            && self.geometry.page_count().checked_mul(THIN_FACTOR).is_none()
        {
            return Err(ProfileError::Inconsistent(Inconsistency::PageCount));
        }
        if self.timing.longest_ns() > OPERATION_NS_MAX {
            return Err(ProfileError::Inconsistent(Inconsistency::Times));
        }
        if !divides(self.timing.channel_count, self.geometry.die_count) {
            return Err(ProfileError::Inconsistent(Inconsistency::Channels));
        }
        if self.ecc == EccOwner::Own && !self.fits_own_code() {
            return Err(ProfileError::Inconsistent(Inconsistency::Ecc));
        }
        Ok(self)
    }

    /// The same chip with ECC of our own instead of the device's: as strong as it was at least, with room
    /// for metadata and flags in the spare area where the chip has it.
    ///
    /// # Errors
    ///
    /// `Inconsistent` when the spare area is too small, or the device is no bare chip.
    pub fn with_own_ecc(self) -> Result<Self, ProfileError> {
        let replaced = self.capabilities.code_word;
        self.with_own_ecc_over(replaced)
    }

    /// As [`Profile::with_own_ecc`], and as strong as `replaced` at least, the ECC that a driver has.
    pub(crate) fn with_own_ecc_over(self, replaced: CodeWord) -> Result<Self, ProfileError> {
        if self.ecc == EccOwner::Own {
            return self.checked();
        }
        let replaced = self.capabilities.code_word.or_stronger(replaced);
        let chosen = Layout::choose(&self.geometry, replaced);
        self.with_own_code(chosen.ok_or(ProfileError::Inconsistent(Inconsistency::Ecc))?)
    }

    /// The same chip with the ECC of `other`, where this profile leaves it to the device and it fits.
    #[must_use]
    pub fn with_ecc_of(&self, other: &Self) -> Self {
        let is_silent = self.ecc == EccOwner::Device && other.ecc == EccOwner::Own;
        let own = is_silent.then(|| self.clone().with_own_code(other.capabilities.code_word));
        own.and_then(Result::ok).unwrap_or_else(|| self.clone())
    }

    /// The same chip with these code words of our own.
    pub(crate) fn with_own_code(mut self, word: CodeWord) -> Result<Self, ProfileError> {
        let layout = Layout::new(&self.geometry, word);
        let layout = layout.ok_or(ProfileError::Inconsistent(Inconsistency::Ecc))?;
        self.ecc = EccOwner::Own;
        self.capabilities.code_word = word;
        self.capabilities.spare_raw = layout.raw();
        self.capabilities.spare_covered = SpareRange { offset: 0, size: 0 };
        self.checked()
    }

    /// Capabilities of the device itself: where the ECC is ours, for bytes as its cells hold them.
    #[must_use]
    pub fn device_capabilities(&self) -> Capabilities {
        let mut capabilities = self.capabilities;
        if self.ecc == EccOwner::Own {
            capabilities.code_word.strength = 0;
            capabilities.spare_raw = programmable(&self.geometry);
        }
        capabilities
    }

    /// Checks that the rules are those of one kind of device (F3).
    fn check_kind(&self) -> Result<(), Inconsistency> {
        let rules = &self.capabilities;
        match rules.cell_mode {
            CellMode::Translated => Err(Inconsistency::Translated),
            CellMode::File => self.check_file(),
            _ if rules.rewrite_tail => Err(Inconsistency::FilesAlone { key: "rewrite_tail" }),
            _ if rules.needs_sync => Err(Inconsistency::FilesAlone { key: "needs_sync" }),
            _ => Ok(()),
        }
    }

    /// Checks the values that every file has: all but the size of its pages and segments, and whether its
    /// tail may be rewritten.
    fn check_file(&self) -> Result<(), Inconsistency> {
        let rules = &self.capabilities;
        let held = [
            ("needs_sync", "true", rules.needs_sync),
            ("spare_size", "0", self.geometry.spare_size == 0),
            ("programs_data", "1", rules.programs_data == 1),
            ("first_program_order", "any", rules.first_program_order == ProgramOrder::Any),
            ("reprogram_order", "any", rules.reprogram_order == ProgramOrder::Any),
            ("code_word_size", "512", rules.code_word.data_size == 512),
            ("code_word_strength", "0", rules.code_word.strength == 0),
            ("translation", "left out", self.translation.is_none()),
        ];
        match held.into_iter().find(|(_, _, holds)| !holds) {
            Some((key, must, _)) => Err(Inconsistency::File { key, must }),
            None => Ok(()),
        }
    }

    /// Checks F1 for code words of our own.
    fn fits_own_code(&self) -> bool {
        let mode = self.capabilities.cell_mode;
        let is_chip = !matches!(mode, CellMode::File | CellMode::Translated);
        let raw = self.capabilities.spare_raw;
        let layout = Layout::new(&self.geometry, self.capabilities.code_word);
        let inside = |free: SpareRange| {
            let end = free.offset + free.size;
            raw.size == 0 || (raw.offset >= free.offset && raw.offset + raw.size <= end)
        };
        is_chip
            && self.translation.is_none()
            && self.capabilities.spare_covered.size == 0
            && layout.is_some_and(|layout| inside(layout.raw()))
    }
}

/// Whether so many channels serve so many dies; 0: each has its own.
const fn divides(channel_count: u32, die_count: u32) -> bool {
    channel_count == 0 || (channel_count <= die_count && die_count.is_multiple_of(channel_count))
}

/// Checks F1.
pub(crate) fn check(geometry: &Geometry, capabilities: &Capabilities) -> Result<(), Inconsistency> {
    let counts = [geometry.page_size, geometry.pages_per_block, geometry.block_count];
    let oversized = geometry.page_size > PAGE_SIZE_MAX || geometry.spare_size > PAGE_SIZE_MAX;
    if counts.contains(&0) || geometry.die_count == 0 || oversized {
        return Err(Inconsistency::Geometry);
    }
    if geometry.pages_per_block.checked_mul(geometry.block_count).is_none() {
        return Err(Inconsistency::PageCount);
    }
    let is_file = capabilities.cell_mode == CellMode::File;
    if !is_file && geometry.block_count > BLOCK_COUNT_MAX {
        return Err(Inconsistency::Blocks);
    }
    if geometry.die_count > geometry.block_count {
        return Err(Inconsistency::Dies);
    }
    let word_size = capabilities.code_word.data_size;
    let tiles = word_size > 0 && geometry.page_size.is_multiple_of(word_size);
    if !tiles || geometry.page_size / word_size > CODE_WORD_COUNT_MAX {
        return Err(Inconsistency::CodeWords);
    }
    if u64::from(capabilities.code_word.strength) > 8 * u64::from(word_size) {
        return Err(Inconsistency::Strength);
    }
    check_spare(geometry, capabilities)?;
    let programmable = geometry.spare_size == 0 || capabilities.programs_spare > 0;
    let counted = (1..=255).contains(&capabilities.programs_data);
    if !programmable || !counted || capabilities.programs_spare > 255 {
        return Err(Inconsistency::Programs);
    }
    if capabilities.endurance == 0 {
        return Err(Inconsistency::Endurance);
    }
    match capabilities.cell_mode {
        CellMode::Mlc { distance } | CellMode::OddMlc { distance }
            if distance == 0 || distance >= geometry.pages_per_block =>
        {
            Err(Inconsistency::PairDistance)
        }
        _ => Ok(()),
    }
}

fn check_spare(geometry: &Geometry, capabilities: &Capabilities) -> Result<(), Inconsistency> {
    let (raw, covered) = (capabilities.spare_raw, capabilities.spare_covered);
    let end = |range: SpareRange| u64::from(range.offset) + u64::from(range.size);
    let inside = |range: SpareRange| range.size == 0 || end(range) <= geometry.spare_size.into();
    let apart = raw.size == 0
        || covered.size == 0
        || end(raw) <= covered.offset.into()
        || end(covered) <= raw.offset.into();
    if inside(raw) && inside(covered) && apart { Ok(()) } else { Err(Inconsistency::Spare) }
}

#[cfg(all(test, feature = "std"))]
mod tests;
