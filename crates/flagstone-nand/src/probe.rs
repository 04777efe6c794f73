//! Capabilities of a chip, found by experiments on blocks that may be used up.
//!
//! Owns the experiments and their consequences for a profile. Never touches another block.
//!
//! - **P1** Nothing but the blocks given is programmed or erased. Each is erased before the first
//!   experiment and after the last one.
//! - **P2** Times are the device's: from the call to the end that it reports.
//! - **P3** A successful experiment shows one event on one chip. A profile takes from it no more programs
//!   than data sheets allow ([`NOP_USUAL`]), and no order of first programs but the ascending one. The harm
//!   of a power cut cannot be shown without cutting the power.

mod experiment;
#[cfg(test)]
mod tests;

use alloc::string::String;
use alloc::vec::Vec;

use thiserror::Error;

use crate::{
    BlockIndex, Capabilities, EccOwner, Geometry, Nand, NandError, Profile, ProgramOrder,
    SpareRange, Timing,
};
use experiment::Bench;

/// Programs of a page that the data sheets of single-level cells allow: NOP 4, in Numonyx's NAND01G-B2B
/// (section 6.3) and in Micron's MT29F.
pub const NOP_USUAL: u32 = 4;

/// Programs of the spare area after which an experiment stops looking for the limit.
pub const SPARE_PROGRAMS_MAX: u32 = 16;

/// Pages of a block that the experiments need.
const PAGES_MIN: u32 = 8;

/// Mean times of operations in nanoseconds; 0 for operations that did not take place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeasuredTimes {
    /// Read of a whole page.
    pub read_ns: u64,
    /// Program of a whole page with its spare area.
    pub program_ns: u64,
    /// Program of one code word.
    pub partial_program_ns: u64,
    /// Program of spare bytes alone.
    pub spare_program_ns: u64,
    /// Erase of a block.
    pub erase_ns: u64,
}

/// Findings of the experiments: of all scratch blocks the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Findings {
    /// Times.
    pub times: MeasuredTimes,
    /// Programs of a page's data area, a code word each, that left every byte of it right.
    pub programs_data: u32,
    /// Programs of the spare area of a page, its own program among them, that left data and spare bytes
    /// right; at most [`SPARE_PROGRAMS_MAX`] were tried.
    pub programs_spare: u32,
    /// Whether a page may be programmed for the first time after a later page of its block.
    pub first_program_order: ProgramOrder,
    /// Whether part of a page may be programmed after a later page.
    pub reprogram_order: ProgramOrder,
    /// Most bits that the ECC corrected in a code word meanwhile.
    pub corrected_bits_max: u32,
}

/// Why a probe gave no findings.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// No block was given.
    #[error("a probe needs at least one scratch block")]
    NoScratch,
    /// A block that does not exist.
    #[error("{0} lies outside the device")]
    Outside(BlockIndex),
    /// A block that carries a bad-block mark.
    #[error("{0} is marked bad")]
    Bad(BlockIndex),
    /// The blocks have too few pages.
    #[error("blocks of fewer than {PAGES_MIN} pages cannot be probed")]
    TooFewPages,
    /// An operation that every chip can do failed.
    #[error(transparent)]
    Device(#[from] NandError),
}

/// Mean time of reading a page, over the first page of up to `count` good blocks, in nanoseconds.
/// Reads only; the content of the pages does not matter.
///
/// # Errors
///
/// The device failed.
pub fn read_time<D: Nand>(device: &mut D, count: u32) -> Result<u64, NandError> {
    let geometry = device.geometry();
    let mut bench = Bench::new(device);
    for block in geometry.blocks().take(count as usize) {
        if bench.device.is_bad(block)? {
            continue;
        }
        if let Some(page) = geometry.page(block, 0) {
            match bench.read(page) {
                Ok(_) | Err(NandError::Uncorrectable { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(bench.times().read_ns)
}

/// Says whether every block of `scratch` can be probed. Writes nothing.
///
/// # Errors
///
/// Names the block that cannot; or the device failed.
pub fn check_scratch<D: Nand>(device: &mut D, scratch: &[BlockIndex]) -> Result<(), ProbeError> {
    let geometry = device.geometry();
    if scratch.is_empty() {
        return Err(ProbeError::NoScratch);
    }
    if geometry.pages_per_block < PAGES_MIN {
        return Err(ProbeError::TooFewPages);
    }
    for block in scratch {
        if block.0 >= geometry.block_count {
            return Err(ProbeError::Outside(*block));
        }
        if device.is_bad(*block)? {
            return Err(ProbeError::Bad(*block));
        }
    }
    Ok(())
}

/// Runs every experiment on each block of `scratch`, whose content is lost (rule P1).
///
/// # Errors
///
/// A block that cannot be used, before anything was changed; or an operation failed that has nothing to
/// do with limits.
pub fn probe<D: Nand>(device: &mut D, scratch: &[BlockIndex]) -> Result<Findings, ProbeError> {
    check_scratch(device, scratch)?;
    let mut bench = Bench::new(device);
    let found: Vec<_> =
        scratch.iter().map(|block| bench.examine(*block)).collect::<Result<_, _>>()?;
    let (times, corrected_bits_max) = (bench.times(), bench.corrected_bits_max);
    let worst = |count: fn(&experiment::Found) -> u32| found.iter().map(count).min().unwrap_or(0);
    let order = |is_any: bool| if is_any { ProgramOrder::Any } else { ProgramOrder::Ascending };
    Ok(Findings {
        times,
        programs_data: worst(|found| found.programs_data),
        programs_spare: worst(|found| found.programs_spare),
        first_program_order: order(found.iter().all(|found| found.goes_back_first)),
        reprogram_order: order(found.iter().all(|found| found.goes_back_later)),
        corrected_bits_max,
    })
}

/// User spare bytes of a device: outside its ECC where it has such bytes, else inside.
fn free_spare(capabilities: &Capabilities) -> SpareRange {
    if capabilities.spare_raw.size > 0 {
        capabilities.spare_raw
    } else {
        capabilities.spare_covered
    }
}

impl Findings {
    /// Whether spare bytes can be programmed on their own: they lie outside the ECC.
    #[must_use]
    pub const fn spare_is_free(&self) -> bool {
        self.programs_spare > 1
    }

    /// `known` with the findings, and its geometry unchanged (rule P3).
    #[must_use]
    pub fn profile(&self, known: &Profile, name: &str) -> Profile {
        let free = free_spare(&known.capabilities);
        let is_own = known.ecc == EccOwner::Own;
        let none = SpareRange { offset: 0, size: 0 };
        let (spare_raw, spare_covered) =
            if self.spare_is_free() || is_own { (free, none) } else { (none, free) };
        let Geometry { spare_size, .. } = known.geometry;
        let capabilities = Capabilities {
            programs_data: self.programs_data.clamp(1, NOP_USUAL),
            programs_spare: self.programs_spare.clamp(u32::from(spare_size > 0), NOP_USUAL),
            first_program_order: ProgramOrder::Ascending,
            reprogram_order: self.reprogram_order,
            spare_raw,
            spare_covered,
            ..known.capabilities
        };
        let times = self.times;
        let timing = Timing {
            read_ns: times.read_ns,
            read_center_ns: times.read_ns,
            read_upper_center_ns: times.read_ns,
            read_msb_ns: times.read_ns,
            program_ns: times.program_ns,
            program_center_ns: times.program_ns,
            program_upper_center_ns: times.program_ns,
            program_msb_ns: times.program_ns,
            partial_program_ns: times.partial_program_ns.max(times.spare_program_ns),
            erase_ns: times.erase_ns,
            ..Timing::default()
        };
        Profile {
            name: name.into(),
            capabilities,
            timing,
            source: String::from("flagstone probe, on scratch blocks of the chip"),
            confidence: String::from(
                "Times, spare bytes and numbers of programs measured. That a power cut in a partial \
                 program harms the page is assumed until somebody knows better: partial_cut.",
            ),
            ..known.clone()
        }
    }
}
