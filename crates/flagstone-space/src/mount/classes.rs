//! Blocks of the record compared with the device: the second step of a mount.
//!
//! Owns the decision which blocks still live the recorded life (U1, U7), and the replacement of ring blocks that went
//! bad. Reads first pages alone, and a later one where the first does not decide.

use alloc::vec::Vec;

use flagstone_nand::{BlockIndex, Nand, NandError};

use super::Mount;
use crate::SpaceBug;
use crate::blocks::BlockState;
use crate::checkpoint::stored;
use crate::error::MountError;
use crate::format::first_page;
use crate::layout::Layout;
use crate::log::LogBlock;
use crate::meta::{PageKind, PageMeta};
use crate::record::Record;
use crate::scan::{First, find_life, is_said_twice, is_second_of_log, is_whole};

/// Whether a unit may stand at `at`, in the life of its block that the record knows (U1).
pub(super) fn stands(layout: &Layout, classes: &[Class], at: u32) -> bool {
    let block = at / layout.geometry.pages_per_block;
    let class = classes.get(block as usize).copied().unwrap_or(Class::Drop);
    layout.is_unit(at) && !matches!(class, Class::Drop | Class::Scan)
}

/// A block in the record, compared with the block's own metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Nothing of it counts: entries that point into it are dropped.
    Drop,
    /// As recorded.
    Keep,
    /// As recorded, but its first page does not read: each entry is checked.
    Verify,
    /// As recorded up to this unit; scanned from there.
    KeepAndScan(u32),
    /// A new life since the record.
    Scan,
}

/// Entry of the recorded block table.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recorded {
    pub(super) sequence: u32,
    pub(super) erases: u32,
    pub(super) state: u8,
}

impl<D: Nand> Mount<D> {
    /// Decides the state of each block (U1); returns the log's blocks.
    pub(super) fn classify(
        &mut self,
        record: &Record,
        recorded: &[Recorded],
    ) -> Result<Vec<LogBlock>, MountError> {
        let mut log = Vec::new();
        for (block, entry) in (0..).map(BlockIndex).zip(recorded) {
            if self.firsts[block.0 as usize] == First::Bad {
                continue;
            }
            if block.0 >= record.geometry.block_count
                && self.space.flash.bugs.has(SpaceBug::GrownBlocksForgotten)
            {
                continue;
            }
            if record.ring.contains(&block.0) {
                let erases = entry.erases.max(self.space.flash.device.erase_count(block));
                self.space.blocks.restore(block, BlockState::Ring, entry.sequence, erases);
                continue;
            }
            let first = self.check_first(block, entry, record.sequence_floor)?;
            log.extend(self.log_block(block, first).filter(|log| log.end() > record.log_head));
            let open = record.open.iter().find(|open| open.block == block.0);
            let class = self.class_of(first, entry, open.map(|open| open.next_page));
            self.restore_block(block, class, first, entry);
        }
        Ok(log)
    }

    fn log_block(&self, block: BlockIndex, first: First) -> Option<LogBlock> {
        let limit = self.space.layout().log_pages_per_block();
        match first {
            First::Found(meta) if meta.kind == PageKind::Log => {
                Some(LogBlock { block, first: meta.version.0, limit })
            }
            _ => None,
        }
    }

    fn restore_block(&mut self, block: BlockIndex, class: Class, first: First, entry: &Recorded) {
        self.classes[block.0 as usize] = class;
        let is_new = class == Class::Scan;
        let retired = entry.state == stored::RETIRED && !is_new;
        let state = if retired { BlockState::Retired } else { BlockState::Closed };
        let sequence = match first {
            First::Found(meta) if class != Class::Verify => meta.sequence,
            _ => entry.sequence,
        };
        // A device that counts has counted the new life too. Of lives in the log nothing else is new here.
        let counted = self.space.flash.device.erase_count(block);
        let is_erased =
            is_new || matches!(first, First::Found(meta) if meta.sequence > entry.sequence);
        let erases = counted.max(entry.erases + u32::from(is_erased));
        self.space.blocks.restore(block, state, sequence, erases);
    }

    /// First page of a block; metadata that contradict the record must fit their payload. When the
    /// first page does not read, a later page tells whether the block lives a new life.
    fn check_first(
        &mut self,
        block: BlockIndex,
        entry: &Recorded,
        floor: u32,
    ) -> Result<First, NandError> {
        let first = self.firsts[block.0 as usize];
        if self.is_unused(first, entry, floor) {
            return Ok(First::Erased);
        }
        let flash = &mut self.space.flash;
        match first {
            First::Bad => return Ok(first),
            // A log page lost later looks like an unwritten page: the next page tells. Other blocks
            // look the same after an interrupted erase, and there it counts.
            First::Erased if !flash.layout.capabilities.needs_sync => {
                if !is_second_of_log(flash, block)? {
                    return Ok(first);
                }
            }
            First::Erased | First::Damaged => {}
            First::Found(meta) => {
                let as_recorded = meta.sequence == entry.sequence && meta.kind != PageKind::Log;
                let trusted = as_recorded && entry.state != stored::FREE;
                let at = first_page(&flash.layout, block);
                if trusted
                    || flash.bugs.has(SpaceBug::StaleSequenceAccepted)
                    || meta.sequence >= floor
                        && (is_whole(flash, at, &meta)? || is_said_twice(flash, block, &meta)?)
                {
                    return Ok(first);
                }
            }
        }
        let is_new = |meta: &PageMeta| {
            let sequence = entry.sequence.max(floor);
            meta.sequence > sequence || meta.kind == PageKind::Log && meta.sequence >= sequence
        };
        let life = find_life(flash, block)?.filter(is_new);
        Ok(life.map_or(First::Damaged, First::Found))
    }

    /// Whether a block that the record calls free was never used, or last used in a life that the
    /// record knows of. Only where nothing counts behind a first page that did not survive (Q3).
    fn is_unused(&self, first: First, entry: &Recorded, floor: u32) -> bool {
        let flash = &self.space.flash;
        let decides = flash.layout.capabilities.needs_sync
            && entry.state == stored::FREE
            && !flash.bugs.has(SpaceBug::StaleSequenceAccepted);
        let is_old = match first {
            First::Erased => true,
            First::Found(meta) => meta.sequence <= entry.sequence || meta.sequence < floor,
            First::Bad | First::Damaged => false,
        };
        decides && is_old
    }

    fn class_of(&self, first: First, entry: &Recorded, open: Option<u32>) -> Class {
        let meta = match first {
            First::Found(meta) => meta,
            _ if entry.state == stored::FREE => return Class::Drop,
            _ => return Class::Verify,
        };
        if matches!(meta.kind, PageKind::Log | PageKind::Anchor) {
            return Class::Drop;
        }
        if meta.sequence > entry.sequence {
            return Class::Scan;
        }
        if entry.state == stored::FREE {
            return Class::Drop;
        }
        if meta.sequence < entry.sequence {
            // The recorded life's first page is gone: only checking its units tells.
            return Class::Verify;
        }
        match open {
            Some(next_page) => Class::KeepAndScan(next_page / self.space.layout().parts),
            None => Class::Keep,
        }
    }

    /// A ring block that went bad since the record was made is replaced by a free one: none of `log`, which
    /// no mapping page names either.
    pub(super) fn repair_ring(&mut self, log: &[LogBlock]) {
        for half in &mut self.space.ring.halves {
            for slot in &mut half.blocks {
                let block = BlockIndex(*slot);
                let known = *slot < self.space.blocks.len();
                if known && self.space.blocks.get(block).state != BlockState::Bad {
                    continue;
                }
                let closed = |index: &u32| {
                    self.classes[*index as usize] == Class::Drop
                        && self.space.blocks.get(BlockIndex(*index)).state == BlockState::Closed
                        && !log.iter().any(|log| log.block.0 == *index)
                };
                if let Some(index) = (0..self.space.blocks.len()).find(closed) {
                    let erases = self.space.blocks.get(BlockIndex(index)).erases;
                    self.space.blocks.restore(BlockIndex(index), BlockState::Ring, 0, erases);
                    *slot = index;
                }
            }
        }
    }
}
