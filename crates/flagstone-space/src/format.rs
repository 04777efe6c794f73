//! Making a space, and its parts common to making and mounting.
//!
//! Owns the first record of a space. Never erases more than it uses: leftovers of an earlier format
//! are told apart by block sequences.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use flagstone_nand::{BlockIndex, Nand, NandError};

use crate::blocks::{BlockState, BlockTable};
use crate::error::{OptionFault, SpaceError};
use crate::flash::Flash;
use crate::frontier::HOLE;
use crate::frozen::FrozenMaps;
use crate::groups::Groups;
use crate::layout::Layout;
use crate::log::LogArea;
use crate::mapping::{Mapping, UNMAPPED};
use crate::meta::{PageKind, RawMeta};
use crate::numbers::Numbers;
use crate::options::SpaceOptions;
use crate::pins::Pins;
use crate::ring::Ring;
use crate::scan::{find_life, is_whole};
use crate::space::{Session, Space};

/// Records that one ring block of an earlier format may hold behind its first.
const RECORDS_GAP: u64 = 1 << 16;

const _: () = assert!(HOLE.0 == UNMAPPED);

impl<D: Nand> Space<D> {
    /// Makes an empty space on `device`; its content is lost.
    ///
    /// # Errors
    ///
    /// `Options` when the device cannot carry the options.
    pub fn format(device: D, options: &SpaceOptions) -> Result<Self, SpaceError> {
        let (geometry, blocks) = (device.geometry(), device.present_blocks());
        let layout = Layout::new(geometry, device.capabilities(), options, blocks)
            .map_err(SpaceError::Options)?;
        let mut flash = Flash::new(device, layout);
        let (sequence, record) = numbers_after_earlier_format(&mut flash)?;
        let mut blocks = empty_table(&mut flash)?;
        let ring = take_ring(&mut blocks, &flash.layout, options.ring_blocks);
        let good = blocks.len() - blocks.count(BlockState::Bad);
        if ring.len() < usize::from(options.ring_blocks) || flash.layout.capacity(good) == 0 {
            return Err(SpaceError::Options(OptionFault::DeviceTooSmall));
        }
        let pages_per_block = flash.layout.geometry.pages_per_block;
        let ring = Ring::new(&ring, &[], sequence, pages_per_block);
        let numbers = Numbers::starting(1, sequence, 1, record);
        let mut space = Self::assemble(flash, *options, blocks, ring, numbers);
        space.session = Session::Begun;
        space.checkpoint(&[])?;
        space.report_dead();
        Ok(space)
    }

    /// A space with nothing in it, around the findings of a format or a mount.
    pub(crate) fn assemble(
        flash: Flash<D>,
        options: SpaceOptions,
        blocks: BlockTable,
        ring: Ring,
        numbers: Numbers,
    ) -> Self {
        let layout = &flash.layout;
        Self {
            map: Mapping::new(
                layout.logical_pages,
                layout.entries_per_page(),
                layout.geometry.page_count(),
            ),
            meta_units: vec![UNMAPPED; (layout.directory_start + layout.directory_pages) as usize],
            meta_moving: Vec::new(),
            meta_old: Vec::new(),
            move_buffer: vec![0; layout.payload_size],
            meta_buffer: Vec::new(),
            flash,
            options,
            blocks,
            frontiers: [None, None, None],
            log: LogArea::default(),
            groups: Groups::new(options.parts),
            pins: Pins::default(),
            frozen: FrozenMaps::default(),
            ring,
            numbers,
            first_sequence: 0,
            session: Session::Mounted,
            poisoned: false,
            is_flushing: false,
            durable: None,
            trimmed_unsaved: BTreeSet::new(),
            flags: BTreeMap::new(),
            suspects: Vec::new(),
            lost_since: BTreeSet::new(),
            worn: Vec::new(),
            level_credit: None,
            growth_refused: false,
            discards: false,
        }
    }
}

/// Block table of a device that holds nothing.
pub(crate) fn empty_table<D: Nand>(flash: &mut Flash<D>) -> Result<BlockTable, NandError> {
    let layout = &flash.layout;
    let pages_per_block = layout.geometry.pages_per_block;
    let mut table = BlockTable::new(layout.blocks, pages_per_block, layout.units_per_block);
    for block in (0..layout.blocks).map(BlockIndex) {
        if !flash.device.is_bad(block)? {
            table.restore(block, BlockState::Free, 0, flash.device.erase_count(block));
        }
    }
    Ok(table)
}

/// Takes the first free blocks for the ring.
pub(crate) fn take_ring(blocks: &mut BlockTable, layout: &Layout, count: u8) -> Vec<u32> {
    let mut ring = Vec::new();
    for block in (0..layout.blocks).map(BlockIndex) {
        if ring.len() < usize::from(count) && blocks.get(block).state == BlockState::Free {
            let erases = blocks.get(block).erases;
            blocks.restore(block, BlockState::Ring, 0, erases);
            ring.push(block.0);
        }
    }
    ring
}

/// First block sequence and record number above all that an earlier format used.
fn numbers_after_earlier_format<D: Nand>(flash: &mut Flash<D>) -> Result<(u32, u64), SpaceError> {
    let (mut sequence, mut record) = (0, 0);
    for block in (0..flash.layout.blocks).map(BlockIndex) {
        if flash.device.is_bad(block)? {
            continue;
        }
        let at = first_page(&flash.layout, block);
        let found = match flash.peek(at)? {
            RawMeta::Found(meta, _) if is_whole(flash, at, &meta)? => Some(meta),
            RawMeta::Found(..) => find_life(flash, block)?,
            RawMeta::Erased | RawMeta::Damaged => None,
        };
        if let Some(meta) = found {
            sequence = sequence.max(meta.sequence.saturating_add(1));
            if meta.kind == PageKind::Anchor {
                record = record.max(meta.version.0 + RECORDS_GAP);
            }
        }
    }
    Ok((sequence.max(1), record.max(1)))
}

pub(crate) fn first_page(layout: &Layout, block: BlockIndex) -> u32 {
    block.0 * layout.geometry.pages_per_block
}
