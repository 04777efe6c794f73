//! The sizes of a database's parts on a device.
//!
//! Owns the length of the log, the blocks that a growing device begins with, and the smallest device. Never changes
//! a database that is there.

use flagstone_nand::{Capabilities, CellMode, Geometry, Nand};
use flagstone_space::{GcPolicy, LogRoom, SpaceError, SpaceOptions, blocks_needed};

use crate::error::{EngineError, OpenError};
use crate::options::{Collection, Options, OptionsError, WearLevelling};

/// Bytes of log for each byte of memory, when the options leave the size open: the more the log
/// holds, the fewer live deltas a checkpoint has to copy for each commit.
const LOG_MEMORY_RATIO: u64 = 4;

/// A log whose size the options leave open takes at most one part in this many of the blocks that it
/// shares with the data.
const LOG_DEVICE_SHARE: u64 = 4;

/// Static wear levelling moves at most one page in this many.
const LEVEL_SHARE: u32 = 64;

/// Log pages of the smallest log: room for a checkpoint's copies and for commits meanwhile.
const LOG_PAGES_MIN: u64 = 24;

/// Blocks of the smallest log: one that takes appends, one that a restart left half used, one with
/// the copies of a checkpoint, and one for the commits that go on meanwhile.
const LOG_BLOCKS_MIN: u64 = 4;

/// Log pages beyond which no device is large enough.
const LOG_PAGES_MAX: u32 = 1 << 24;

/// A growing device begins with the blocks that the smallest database needs, and one part in this
/// many more.
const GROWING_SPARE_SHARE: u32 = 8;

/// Logical pages of the smallest database: three times the engine's reserve.
const PAGES_MIN: u32 = 24;

/// How a device is divided for a database with these options.
///
/// # Errors
///
/// The device is too small for them, or failed.
pub fn space_options(device: &mut impl Nand, options: &Options) -> Result<SpaceOptions, OpenError> {
    let (geometry, capabilities) = (device.geometry(), device.capabilities());
    let levels = options.wear_levelling == WearLevelling::Static && wears_by_block(capabilities);
    let mut space = SpaceOptions {
        parts: options.parts as u8,
        gc_policy: match options.techniques.collection {
            Collection::Greedy => GcPolicy::Greedy,
            Collection::CostBenefit => GcPolicy::CostBenefit,
            Collection::CostAgeTimes => GcPolicy::CostAgeTimes,
        },
        static_wear: levels.then_some(LEVEL_SHARE),
        grows: device.present_blocks() < geometry.block_count,
        ..SpaceOptions::default()
    };
    let blocks = match space.grows {
        // A file: blocks that it will grow by count as present.
        true => geometry.block_count,
        false => good_blocks(device)?,
    };
    let room = LogRoom::of(geometry, capabilities, &space, blocks).map_err(SpaceError::Options)?;
    let changes = if space.grows { options.changes_max() } else { options.memory };
    space.log_pages = log_pages(&geometry, room, options, changes);
    let needed = blocks_needed(geometry, capabilities, &space, PAGES_MIN);
    let needed = needed.map_err(SpaceError::Options)?.unwrap_or(u32::MAX);
    if blocks < needed {
        let size = u64::from(needed) * geometry.block_size();
        return Err(OptionsError::TooFewBlocks { blocks, needed, size }.into());
    }
    if space.grows {
        let begun_with = needed.saturating_add(needed / GROWING_SPARE_SHARE).min(blocks);
        device.extend(begun_with).map_err(EngineError::from)?;
    }
    Ok(space)
}

fn good_blocks(device: &mut impl Nand) -> Result<u32, EngineError> {
    let mut count = 0;
    for block in device.geometry().blocks() {
        count += u32::from(!device.is_bad(block)?);
    }
    Ok(count)
}

/// Whether erases wear the blocks that the engine sees: drives level the wear of their own.
const fn wears_by_block(capabilities: Capabilities) -> bool {
    !matches!(capabilities.cell_mode, CellMode::File | CellMode::Translated)
}

/// Log pages of a database with these options, whose changes take up to `changes` bytes of memory.
fn log_pages(geometry: &Geometry, room: LogRoom, options: &Options, changes: usize) -> u32 {
    let per_block = u64::from(room.pages_per_block);
    let least = LOG_PAGES_MIN.max(LOG_BLOCKS_MIN * per_block);
    let pages = match options.log_pages {
        0 => {
            let wanted = LOG_MEMORY_RATIO.saturating_mul(changes as u64);
            let wanted = wanted / u64::from(geometry.page_size);
            wanted.min(u64::from(room.blocks) / LOG_DEVICE_SHARE * per_block)
        }
        pages => u64::from(pages),
    };
    u32::try_from(pages.max(least)).unwrap_or(LOG_PAGES_MAX).min(LOG_PAGES_MAX)
}
