//! Sizes and counts that follow from a device and its options.
//!
//! Owns the arithmetic of blocks, units and reserves; holds no state.
//!
//! L1. A *unit* is a logical page on flash: `parts` consecutive physical pages of one block. L2.
//! The last `summary_pages` pages of a data block hold no unit. L3. `capacity_pages` units can be
//! live and a collection still finds a dead one (rule D7). L4. Where a device grows, sizes and
//! reserves follow the blocks that exist; numbers of mapping pages follow the blocks that can
//! exist, so that they keep their meaning.

use alloc::vec::Vec;
use core::ops::Range;

use flagstone_nand::{Capabilities, CellRole, Geometry};

use crate::error::OptionFault;
use crate::meta::Placement;
use crate::options::SpaceOptions;
use crate::summary;

/// Bytes of a block's entry in the block table.
pub(crate) const BLOCK_ENTRY_SIZE: usize = 9;

/// Addresses of mapping pages that fit the checkpoint record itself.
pub(crate) const DIRECT_MAX: u32 = 64;

/// Pages of a log block that say where its pages belong, where log pages cannot say it themselves:
/// two, so that one unreadable page does not hide the others.
pub(crate) const LOG_HEAD_COPIES: u32 = 2;

/// Blocks that garbage collection may use when users may not.
pub(crate) const GC_RESERVE: u32 = 3;

/// Where a device grows the log may take one part in so many of the blocks that are there, until it is as large as
/// the options want it.
const LOG_SHARE: u32 = 4;

/// One part in so many where the log fills its blocks: with a short log, memory for changes is of no use, and
/// they are merged before they have gathered. 400,000 rows of 100 bytes in random order wrote 4.0, 2.8 and
/// 1.4 times their bytes as leaves with a quarter, a third and half of the file for the log.
const LOG_SHARE_MOST: u32 = 2;

/// Blocks that the log of a growing device may have all the same.
const LOG_BLOCKS_MIN: u32 = 6;

/// Sizes and counts; constant for the lifetime of a mounted space, unless it grows.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Shape of the device when it is as large as it can be.
    pub(crate) geometry: Geometry,
    /// Blocks that are there.
    pub(crate) blocks: u32,
    pub(crate) capabilities: Capabilities,
    pub(crate) placement: Placement,
    pub(crate) parts: u32,
    /// Payload bytes of a physical page.
    pub(crate) chunk_size: usize,
    /// Payload bytes of a unit.
    pub(crate) payload_size: usize,
    pub(crate) units_per_block: u32,
    pub(crate) summary_pages: u32,
    /// Logical pages that have a number.
    pub(crate) logical_pages: u32,
    /// Pages of the mapping and of the block table.
    pub(crate) map_pages: u32,
    pub(crate) table_pages: u32,
    /// Number of the first page of the block table among all pages of the mapping (L4).
    pub(crate) table_start: u32,
    /// First number of the directory, and its pages.
    pub(crate) directory_start: u32,
    pub(crate) directory_pages: u32,
    /// Mappings that are frozen beside the one in use.
    frozen: u32,
    /// Positions within a log block that hold log pages, in order.
    pub(crate) log_positions: Vec<u32>,
    pub(crate) log_blocks: u32,
    pub(crate) log_slot_size: usize,
    pub(crate) ring_blocks: u32,
    /// Blocks that one checkpoint may take.
    pub(crate) meta_reserve: u32,
    /// Blocks of the log that the options ask for.
    log_blocks_wanted: u32,
    /// Blocks that the log got beyond its share because it filled half of its own; forgotten by a mount that
    /// finds it shorter.
    log_blocks_filled: u32,
    /// Whether the log follows the blocks that are there.
    grows: bool,
    /// Units of a block that are filled when pairs are settled once in it (rule D9).
    units_filled: u32,
}

/// Room that a log has on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRoom {
    /// Log pages of an erase block: fewer than its pages where cells are paired (rule D9).
    pub pages_per_block: u32,
    /// Good blocks that log and data share: the device without ring and reserves.
    pub blocks: u32,
}

impl LogRoom {
    /// Room on a device of `good_blocks` blocks that work, regardless of the log's size in
    /// `options`.
    ///
    /// # Errors
    ///
    /// The device or the options do not fit this floor at all.
    pub fn of(
        geometry: Geometry,
        capabilities: Capabilities,
        options: &SpaceOptions,
        good_blocks: u32,
    ) -> Result<Self, OptionFault> {
        let layout = Layout::sized(geometry, capabilities, options, geometry.block_count)?;
        let held = layout.held_blocks(layout.meta_pages()) - layout.log_blocks;
        let blocks = good_blocks.saturating_sub(held);
        Ok(Self { pages_per_block: layout.log_pages_per_block(), blocks })
    }
}

/// Good blocks that a device of this kind needs for `pages` live logical pages beside ring, log and
/// reserves; none when no number of blocks will do.
///
/// # Errors
///
/// The device or the options do not fit this floor at all.
pub fn blocks_needed(
    geometry: Geometry,
    capabilities: Capabilities,
    options: &SpaceOptions,
    pages: u32,
) -> Result<Option<u32>, OptionFault> {
    if options.grows {
        let mut layout = Layout::sized(geometry, capabilities, options, 0)?;
        let mut is_enough = |block_count: &u32| {
            layout.set_blocks(*block_count);
            layout.capacity(*block_count) >= pages
        };
        return Ok((LOG_BLOCKS_MIN..=geometry.block_count).find(&mut is_enough));
    }
    let log_blocks =
        Layout::sized(geometry, capabilities, options, geometry.block_count)?.log_blocks;
    let is_enough = |block_count: &u32| {
        let geometry = Geometry { block_count: *block_count, ..geometry };
        let layout = Layout::sized(geometry, capabilities, options, *block_count);
        layout.is_ok_and(|layout| layout.capacity(*block_count) >= pages)
    };
    Ok((log_blocks..BLOCKS_MAX).find(is_enough))
}

/// Blocks beyond which no device is looked for.
const BLOCKS_MAX: u32 = 1 << 20;

impl Layout {
    /// Sizes for a device with so many blocks, or the error that rules them out.
    pub(crate) fn new(
        geometry: Geometry,
        capabilities: Capabilities,
        options: &SpaceOptions,
        blocks: u32,
    ) -> Result<Self, OptionFault> {
        let layout = Self::sized(geometry, capabilities, options, blocks)?;
        if layout.logical_pages == 0 {
            return Err(OptionFault::LogPages);
        }
        if layout.capacity(blocks) == 0 {
            return Err(OptionFault::DeviceTooSmall);
        }
        Ok(layout)
    }

    /// Sizes for a device, which may turn out to have no room for data.
    fn sized(
        geometry: Geometry,
        capabilities: Capabilities,
        options: &SpaceOptions,
        blocks: u32,
    ) -> Result<Self, OptionFault> {
        let placement = Placement::choose(&geometry, &capabilities);
        let parts = u32::from(options.parts);
        if parts == 0 || parts > 8 || parts > geometry.pages_per_block {
            return Err(OptionFault::Parts);
        }
        if options.ring_blocks < 4 || !options.ring_blocks.is_multiple_of(2) {
            return Err(OptionFault::RingBlocks);
        }
        let chunk_size = (geometry.page_size as usize)
            .checked_sub(placement.header_size())
            .filter(|size| *size >= 64)
            .ok_or(OptionFault::PageTooSmall)?;
        let summary_pages = summary_pages(&geometry, parts, chunk_size);
        let log_positions = log_positions(&geometry, &capabilities, placement);
        let log_pages_per_block = u32::try_from(log_positions.len()).unwrap_or(u32::MAX);
        if log_pages_per_block == 0 {
            return Err(OptionFault::PageTooSmall);
        }
        let slot_size = capabilities.log_slot_size(geometry.page_size) as usize;
        // One block more than the budget: a head that stands within a block holds all of it.
        let log_blocks = options.log_pages.div_ceil(log_pages_per_block).max(1) + 1;
        let mut layout = Self {
            geometry,
            blocks,
            capabilities,
            placement,
            parts,
            chunk_size,
            payload_size: chunk_size * parts as usize,
            units_per_block: (geometry.pages_per_block - summary_pages) / parts,
            summary_pages,
            logical_pages: 0,
            map_pages: 0,
            table_pages: 0,
            table_start: 0,
            directory_start: 0,
            directory_pages: 0,
            frozen: 0,
            log_blocks,
            log_blocks_wanted: log_blocks,
            log_blocks_filled: 0,
            grows: options.grows,
            log_positions,
            log_slot_size: slot_size.clamp(1, geometry.page_size as usize),
            ring_blocks: options.ring_blocks.into(),
            meta_reserve: 0,
            units_filled: 1,
        };
        layout.units_filled = layout.count_filled();
        layout.number_pages();
        layout.set_blocks(blocks);
        Ok(layout)
    }

    /// Layout that reads single pages, for a device whose options are not known yet.
    pub(crate) fn probe(geometry: Geometry, capabilities: Capabilities) -> Option<Self> {
        let placement = Placement::choose(&geometry, &capabilities);
        let chunk_size = (geometry.page_size as usize).checked_sub(placement.header_size())?;
        Some(Self {
            geometry,
            blocks: geometry.block_count,
            capabilities,
            placement,
            parts: 1,
            chunk_size,
            payload_size: chunk_size,
            units_per_block: geometry.pages_per_block,
            summary_pages: 0,
            logical_pages: 0,
            map_pages: 0,
            table_pages: 0,
            table_start: 0,
            directory_start: 0,
            directory_pages: 0,
            frozen: 0,
            log_blocks_wanted: 0,
            log_blocks_filled: 0,
            grows: false,
            log_positions: log_positions(&geometry, &capabilities, placement),
            log_blocks: 0,
            log_slot_size: capabilities.log_slot_size(geometry.page_size).max(1) as usize,
            ring_blocks: 0,
            meta_reserve: 0,
            units_filled: 1,
        })
    }

    /// Numbers the pages of the mapping as on the largest device (L4).
    fn number_pages(&mut self) {
        self.set_blocks(self.geometry.block_count);
        self.table_start = self.map_pages;
        self.directory_start = self.map_pages + self.table_pages;
        if self.directory_start > DIRECT_MAX {
            self.directory_pages = self.directory_start.div_ceil(self.entries_per_page());
        }
    }

    /// Counts the sizes of `blocks` blocks.
    pub(crate) fn set_blocks(&mut self, blocks: u32) {
        self.blocks = blocks;
        if self.grows {
            self.log_blocks = self.log_blocks_for(self.log_blocks_filled);
        }
        // Numbers of a device that grows stay the same, no matter which share a build gives to the log.
        let log_blocks = if self.grows { 0 } else { self.log_blocks };
        let data_blocks = blocks.saturating_sub(self.ring_blocks + log_blocks);
        self.logical_pages = data_blocks * self.units_per_block;
        self.map_pages = self.logical_pages.div_ceil(self.entries_per_page());
        self.table_pages = blocks.div_ceil(self.table_entries_per_page());
        self.meta_reserve = self.blocks_for(self.meta_pages());
    }

    /// Whether a unit may stand at `at`: at pages of a summary, and inside of units, none does.
    pub(crate) fn is_unit(&self, at: u32) -> bool {
        let offset = at % self.geometry.pages_per_block;
        let is_inside = at < self.geometry.page_count();
        is_inside && offset.is_multiple_of(self.parts) && offset / self.parts < self.units_per_block
    }

    /// Log pages that may be in use in so many blocks.
    pub(crate) fn log_pages_in(&self, blocks: u32) -> u64 {
        // One block less: the head may stand at the end of its block and hold all of it.
        u64::from(blocks.saturating_sub(1)) * u64::from(self.log_pages_per_block())
    }

    /// Blocks for the log of a device that grows, if it got so many beyond its share.
    fn log_blocks_for(&self, filled: u32) -> u32 {
        let share = filled.min(self.blocks / LOG_SHARE_MOST).max(self.blocks / LOG_SHARE);
        self.log_blocks_wanted.min(share.max(LOG_BLOCKS_MIN))
    }

    /// Blocks of the log once it is back at its share.
    pub(crate) fn log_blocks_least(&self) -> u32 {
        if self.grows { self.log_blocks_for(0) } else { self.log_blocks }
    }

    /// Takes the blocks from the log of a growing device that exceed both its share and `least`.
    pub(crate) fn shorten_log(&mut self, least: u32) {
        self.log_blocks_filled = self.log_blocks_filled.min(least);
        self.set_blocks(self.blocks);
    }

    /// Gives the log of a device that grows a quarter more than it has, or `least` blocks; whether it has more then.
    pub(crate) fn widen_log(&mut self, least: u32) -> bool {
        let before = self.log_blocks;
        self.log_blocks_filled = self.log_blocks_filled.max(least).max(before + before.div_ceil(4));
        self.set_blocks(self.blocks);
        self.log_blocks > before
    }

    /// Counts the room that so many frozen mappings take.
    pub(crate) fn set_frozen(&mut self, count: u32) {
        self.frozen = count;
        self.set_blocks(self.blocks);
    }

    /// Number of the first page of frozen mappings among all pages of the mapping.
    pub(crate) const fn frozen_start(&self) -> u32 {
        self.directory_start + self.directory_pages
    }

    /// Numbers of the pages of the frozen mapping in a slot: its own, then its directory's.
    pub(crate) fn frozen_pages(&self, slot: u8) -> Range<u32> {
        let size = self.table_start + self.frozen_directory_pages();
        let first = self.frozen_start() + u32::from(slot) * size;
        first..first + size
    }

    /// Pages of a frozen mapping's directory, which the record names.
    pub(crate) fn frozen_directory_pages(&self) -> u32 {
        self.table_start.div_ceil(self.entries_per_page())
    }

    /// Mapping entries, or directory addresses, of one page.
    pub(crate) const fn entries_per_page(&self) -> u32 {
        (self.payload_size / 4) as u32
    }

    /// Block-table entries of one page.
    pub(crate) const fn table_entries_per_page(&self) -> u32 {
        (self.payload_size / BLOCK_ENTRY_SIZE) as u32
    }

    /// Pages of the metadata stream that one checkpoint may write.
    pub(crate) const fn meta_pages(&self) -> u32 {
        let entries = self.entries_per_page();
        self.own_meta_pages() + self.frozen * (self.map_pages + self.map_pages.div_ceil(entries))
    }

    /// Metadata pages without those of frozen mappings.
    const fn own_meta_pages(&self) -> u32 {
        let entries = self.entries_per_page();
        // Pages of the mapping stand in front of the directory, pages of the block table somewhere in it.
        let reached = self.map_pages.div_ceil(entries) + self.table_pages.div_ceil(entries) + 1;
        let all = self.directory_pages;
        self.map_pages + self.table_pages + if reached < all { reached } else { all }
    }

    /// Logical pages that may be live when `good_blocks` blocks work (L3).
    pub(crate) fn capacity(&self, good_blocks: u32) -> u32 {
        self.capacity_beside(good_blocks, self.meta_pages())
    }

    /// Logical pages that may be live when no mapping is frozen.
    pub(crate) fn capacity_alone(&self, good_blocks: u32) -> u32 {
        self.capacity_beside(good_blocks, self.own_meta_pages())
    }

    fn capacity_beside(&self, good_blocks: u32, meta_pages: u32) -> u32 {
        let left = good_blocks.saturating_sub(self.held_blocks(meta_pages));
        (left * self.units_filled).min(self.logical_pages)
    }

    /// Blocks never given to users where one checkpoint may write `meta_pages`.
    fn held_blocks(&self, meta_pages: u32) -> u32 {
        let meta = self.blocks_for(meta_pages) + self.blocks_for(2 * meta_pages);
        // Two open streams, and one block's worth of dead pages for the collector to find.
        self.ring_blocks + self.log_blocks + meta + GC_RESERVE + 3
    }

    /// Blocks that `meta_pages` may take.
    const fn blocks_for(&self, meta_pages: u32) -> u32 {
        meta_pages.div_ceil(self.units_filled) + 1
    }

    fn count_filled(&self) -> u32 {
        let pages = self.geometry.pages_per_block;
        let reach = |page| match self.capabilities.cell_role(page, pages) {
            CellRole::Lsb { partner } => partner - page,
            CellRole::Alone | CellRole::Msb { .. } => 0,
        };
        let skipped = (0..pages).map(reach).max().unwrap_or(0).div_ceil(self.parts);
        self.units_per_block.saturating_sub(skipped).max(1)
    }

    /// Whether more blocks give the log more.
    pub(crate) const fn log_grows(&self) -> bool {
        self.log_blocks < self.log_blocks_wanted
    }

    /// Log pages of a log block.
    pub(crate) fn log_pages_per_block(&self) -> u32 {
        self.log_positions.len() as u32
    }

    /// First page of a block's summary; `None` where blocks are too short for one.
    pub(crate) fn summary_start(&self) -> Option<u32> {
        (self.summary_pages > 0).then(|| self.geometry.pages_per_block - self.summary_pages)
    }
}

/// Trailing pages that a summary takes: none where it would cost more than a quarter of a block.
fn summary_pages(geometry: &Geometry, parts: u32, chunk_size: usize) -> u32 {
    let pages = geometry.pages_per_block;
    let size = summary::size(pages / parts);
    let needed = size.div_ceil(chunk_size) as u32;
    let without = pages / parts;
    let with = pages.saturating_sub(needed) / parts;
    // A summary of more pages than the region byte counts is of no use either.
    if needed > 64 || with * 4 < without * 3 { 0 } else { needed }
}

/// Pages of a block whose content no later program in the block can harm (rule D9): the log uses
/// no MSB page, so the partner of a log page is never programmed.
fn log_positions(
    geometry: &Geometry,
    capabilities: &Capabilities,
    placement: Placement,
) -> Vec<u32> {
    let pages = geometry.pages_per_block;
    let first = if placement == Placement::Header { LOG_HEAD_COPIES } else { 0 };
    (first..pages)
        .filter(|page| !matches!(capabilities.cell_role(*page, pages), CellRole::Msb { .. }))
        .collect()
}
