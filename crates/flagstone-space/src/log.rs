//! The log area: log pages numbered from 0 for ever, in blocks of the common pool.
//!
//! Owns where log pages stand and which of them are still needed. Never looks into them: fragments
//! carry their own checksums and chain.
//!
//! O1. A log page number names one page for ever; after a failed program or a restart numbers are
//!     skipped, never given out again (rule D3).
//! O2. A log block is freed only when a durable record's head lies behind it (rule D4).
//! O3. Every append is one program of slots that were never programmed before.
//!
//! Every log page carries the number of its block's first log page in the spare area; where metadata
//! stand in the data area, two pages at the front of the block do.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

use flagstone_nand::{BlockIndex, Nand, NandError, PhysicalPage};

use crate::blocks::{BlockState, Purpose};
use crate::error::SpaceError;
use crate::flash::{ReadFault, SlotProgram};
use crate::layout::LOG_HEAD_COPIES;
use crate::meta::{PageKind, PageMeta, Placement};
use crate::place::Entitlement;
use crate::space::Space;
use crate::{Cause, LogAddress, LogicalPage, SpaceBug, Version};

/// Failed blocks in a row after which an append gives up.
const ATTEMPTS_MAX: u32 = 8;

/// Block of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogBlock {
    pub(crate) block: BlockIndex,
    /// Number of its first log page.
    pub(crate) first: u64,
    /// Log pages of it that have a number; fewer than it has pages after a failed program.
    pub(crate) limit: u32,
}

impl LogBlock {
    pub(crate) fn end(&self) -> u64 {
        self.first + u64::from(self.limit)
    }
}

/// Content of a log page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogRead {
    /// The page was read; slots of the mask could not be and are filled with zeros.
    Present {
        /// Bit `i` is set when slot `i` is damaged.
        damaged_slots: u64,
        /// The page is the first of its block: earlier pages may lie on another die.
        opens_block: bool,
    },
    /// The number was skipped: no page ever had it.
    Skipped,
}

/// State of the log area.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogArea {
    pub(crate) blocks: VecDeque<LogBlock>,
    /// First page that the caller still needs.
    pub(crate) head: u64,
    /// Head of the newest durable record.
    pub(crate) durable_head: u64,
    /// Number of the page that takes the next append.
    pub(crate) next_page: u64,
    /// First free slot of that page.
    pub(crate) next_slot: u32,
    /// Whether the last block takes appends of this session.
    pub(crate) is_open: bool,
    /// Whether a longer log was asked for.
    pub(crate) is_wanted: bool,
}

impl LogArea {
    pub(crate) fn block_count(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Block that holds log page `page`.
    fn find(&self, page: u64) -> Option<LogBlock> {
        let after = self.blocks.partition_point(|block| block.first <= page);
        let block = self.blocks.get(after.checked_sub(1)?)?;
        (page < block.end()).then_some(*block)
    }
}

impl<D: Nand> Space<D> {
    /// Bytes of a log slot.
    #[must_use]
    pub fn log_slot_size(&self) -> usize {
        self.layout().log_slot_size
    }

    /// Slots of a log page.
    #[must_use]
    pub fn log_slots_per_page(&self) -> u32 {
        self.layout().geometry.page_size / self.layout().log_slot_size as u32
    }

    /// Free slots of the page that takes the next append.
    #[must_use]
    pub fn log_slots_left(&self) -> u32 {
        self.log_slots_per_page() - self.log.next_slot
    }

    /// Log pages that exist or may exist: from the head to the page that takes the next append,
    /// which is included once it holds a slot.
    #[must_use]
    pub fn log_range(&self) -> Range<u64> {
        self.log.head..self.log.next_page + u64::from(self.log.next_slot > 0)
    }

    /// Numbers in `range` that a block of the log has, in order: as many as there are pages, however
    /// far apart a damaged device puts them.
    #[must_use]
    pub fn log_numbers(&self, range: Range<u64>) -> Vec<u64> {
        let inside = |block: &LogBlock| block.first.max(range.start)..block.end().min(range.end);
        self.log.blocks.iter().flat_map(inside).collect()
    }

    /// Log pages that may be in use at a time.
    #[must_use]
    pub fn log_budget_pages(&self) -> u64 {
        self.layout().log_pages_in(self.layout().log_blocks)
    }

    /// Log pages of a block: as many may stay unused at each restart that appends.
    #[must_use]
    pub fn log_block_pages(&self) -> u64 {
        u64::from(self.layout().log_pages_per_block())
    }

    /// Log pages in use, measured against [`Space::log_budget_pages`].
    #[must_use]
    pub fn log_used_pages(&self) -> u64 {
        let pages = u64::from(self.layout().log_pages_per_block());
        let whole = u64::from(self.log.block_count()) * pages;
        let unused = match self.log.blocks.back() {
            Some(last) if self.log.is_open => last.end().saturating_sub(self.log.next_page),
            _ => 0,
        };
        let held = self
            .log
            .blocks
            .front()
            .map_or(0, |first| self.log.durable_head.saturating_sub(first.first).min(pages));
        whole.saturating_sub(unused + held)
    }

    /// Puts `bytes` into the next free slots of the current log page, with one program.
    ///
    /// Bytes that do not fit the rest of the page go to the next one. When a program fails, the
    /// append is repeated on a fresh block under a later page number.
    ///
    /// # Errors
    ///
    /// `TooLong` when a page cannot hold them; `LogFull` when the budget is used up and no other
    /// block is free; `WornOut` when that is because blocks failed.
    pub fn log_append(&mut self, bytes: &[u8]) -> Result<LogAddress, SpaceError> {
        let slots = self.find_log_slots(bytes)?;
        let mut lacks_room = false;
        for _ in 0..ATTEMPTS_MAX {
            self.open_log_block()?;
            match self.program_log(bytes) {
                Ok(()) => return Ok(self.log_appended(slots)),
                Err(NandError::ProgramFailed { .. }) => self.retire_log_block(),
                Err(NandError::NoSpace) => {
                    self.log_moves_on();
                    lacks_room = true;
                }
                Err(error) => return Err(self.fail(error)),
            }
        }
        Err(if lacks_room { SpaceError::NoRoom } else { SpaceError::WornOut })
    }

    /// The host has no room for an append: the append goes to an empty page, and where its page was empty
    /// already, to another block (H4).
    fn log_moves_on(&mut self) {
        if self.log.next_slot > 0 {
            self.log_skip_page();
        } else {
            self.doubt_prepared();
            self.log.is_open = false;
        }
    }

    /// Repeats appends that found no room beside other work, behind the places that they had.
    pub(crate) fn log_append_again(
        &mut self,
        programs: &[SlotProgram],
    ) -> Result<Option<LogAddress>, SpaceError> {
        self.log_skip_page();
        programs.iter().try_fold(None, |_, program| self.log_append(program.bytes()).map(Some))
    }

    /// As [`Space::log_append`]; the program is left to the caller where the device lets it.
    pub(crate) fn log_append_concurrent(
        &mut self,
        bytes: &[u8],
    ) -> Result<(LogAddress, Option<SlotProgram>), SpaceError> {
        let slots = self.find_log_slots(bytes)?;
        self.open_log_block()?;
        match self.begin_log_program(bytes) {
            Ok(Some(program)) => Ok((self.log_appended(slots), Some(program))),
            Ok(None) => Ok((self.log_append(bytes)?, None)),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// How many slots `bytes` take; the current page has as many left.
    fn find_log_slots(&mut self, bytes: &[u8]) -> Result<u32, SpaceError> {
        self.ready()?;
        let slots = bytes.len().div_ceil(self.log_slot_size()).max(1) as u32;
        if slots > self.log_slots_per_page() {
            let limit = self.layout().geometry.page_size as usize;
            return Err(SpaceError::TooLong { size: bytes.len(), limit });
        }
        if slots > self.log_slots_left() {
            self.log_skip_page();
        }
        Ok(slots)
    }

    fn log_appended(&mut self, slots: u32) -> LogAddress {
        let address = LogAddress { page: self.log.next_page, slot: self.log.next_slot as u8 };
        self.log.next_slot += slots;
        if self.log_slots_left() == 0 {
            self.log.next_page += 1;
            self.log.next_slot = 0;
        }
        address
    }

    /// Leaves the rest of the current log page unused, if it holds anything.
    pub fn log_skip_page(&mut self) {
        if self.log.next_slot > 0 {
            self.log.next_page += 1;
            self.log.next_slot = 0;
        }
    }

    fn open_log_block(&mut self) -> Result<(), SpaceError> {
        let mut lacks_room = false;
        for _ in 0..ATTEMPTS_MAX {
            let last_end = self.log.blocks.back().map_or(0, LogBlock::end);
            if self.log.is_open && self.log.next_page < last_end {
                return Ok(());
            }
            self.log.is_open = false;
            let (block, first) = self.take_log_block(last_end)?;
            if self.layout().placement != Placement::Header {
                return Ok(());
            }
            match self.program_log_head(block, first) {
                Ok(()) => return Ok(()),
                Err(NandError::ProgramFailed { .. }) => self.retire_log_block(),
                Err(NandError::NoSpace) => {
                    self.log_moves_on();
                    lacks_room = true;
                }
                Err(error) => return Err(self.fail(error)),
            }
        }
        Err(if lacks_room { SpaceError::NoRoom } else { SpaceError::WornOut })
    }

    /// A block for log pages behind `last_end`, and the number of its first page.
    fn take_log_block(&mut self, last_end: u64) -> Result<(BlockIndex, u64), SpaceError> {
        let block = loop {
            self.make_room_for_log()?;
            // Restarts leave half-used blocks behind: beyond its reserve the log may use blocks that a
            // collection and a checkpoint do not need, so that a restart never finds it full.
            let within = self.log.block_count() < self.layout().log_blocks;
            let entitlement = if within { Entitlement::Reserve } else { Entitlement::Surplus };
            match self.take_block(entitlement, Purpose::Log, BlockState::Log) {
                Err(SpaceError::NoRoom) if self.grow_by_step()? => {}
                Err(SpaceError::NoRoom) => return Err(SpaceError::LogFull),
                block => break block?,
            }
        };
        let first = self.log.next_page.max(last_end);
        let limit = self.layout().log_pages_per_block();
        self.log.blocks.push_back(LogBlock { block, first, limit });
        (self.log.next_page, self.log.next_slot, self.log.is_open) = (first, 0, true);
        Ok((block, first))
    }

    fn log_meta(&self, block: BlockIndex, first: u64) -> PageMeta {
        let sequence = self.blocks.get(block).sequence;
        let own = PageMeta::own(PageKind::Log, LogicalPage(0), Version(first));
        PageMeta { sequence, ..own }
    }

    fn program_log_head(&mut self, block: BlockIndex, first: u64) -> Result<(), NandError> {
        let meta = self.log_meta(block, first);
        let at = block.0 * self.layout().geometry.pages_per_block;
        (0..LOG_HEAD_COPIES)
            .try_for_each(|copy| self.flash.program_page(at + copy, &meta, &[], Cause::Metadata))
    }

    fn program_log(&mut self, bytes: &[u8]) -> Result<(), NandError> {
        let Some(last) = self.log.blocks.back().copied() else { return Ok(()) };
        let index = (self.log.next_page - last.first) as u32;
        let at = self.log_page_at(last, index);
        let opens_page = self.log.next_slot == 0;
        let in_spare = self.layout().placement != Placement::Header;
        let meta = (opens_page && in_spare).then(|| self.log_meta(last.block, last.first));
        self.flash.program_slots(at, self.log.next_slot, bytes, meta)
    }

    fn begin_log_program(&mut self, bytes: &[u8]) -> Result<Option<SlotProgram>, NandError> {
        let last = self.log.blocks.back().copied();
        let Some(last) = last.filter(|_| self.layout().placement == Placement::Header) else {
            return Ok(None);
        };
        let at = self.log_page_at(last, (self.log.next_page - last.first) as u32);
        self.flash.begin_slots(at, self.log.next_slot, bytes)
    }

    /// Where log page `page` stands; `None` outside the log and for a number that was skipped.
    #[must_use]
    pub fn log_place(&self, page: u64) -> Option<PhysicalPage> {
        let block = self.log.find(page)?;
        let at = self.log_page_at(block, (page - block.first) as u32);
        self.layout().geometry.page_from_number(at)
    }

    fn log_page_at(&self, block: LogBlock, index: u32) -> u32 {
        let layout = self.layout();
        let position = layout.log_positions.get(index as usize).copied().unwrap_or(0);
        block.block.0 * layout.geometry.pages_per_block + position
    }

    /// A program failed: pages before it stay readable, its number is skipped (O1).
    fn retire_log_block(&mut self) {
        self.log.is_open = false;
        let (page, slot) = (self.log.next_page, self.log.next_slot);
        let Some(last) = self.log.blocks.back_mut() else { return };
        let index = (page - last.first) as u32;
        // Slots programmed before the failure stay part of the log.
        last.limit = index + u32::from(slot > 0);
        let last = *last;
        self.log.next_page = page + 1;
        self.log.next_slot = 0;
        if last.limit == 0 {
            self.log.blocks.pop_back();
            self.retire(last.block);
        }
    }

    /// Reads a log page: all its slots, erased ones as `0xFF`.
    ///
    /// A page that does not read as a whole is read slot by slot, so that a torn slot does not hide
    /// the slots before it.
    ///
    /// # Errors
    ///
    /// `LogPageGone` outside the log; errors of the device.
    pub fn log_read(&mut self, page: u64, out: &mut Vec<u8>) -> Result<LogRead, SpaceError> {
        out.clear();
        if page >= self.log_range().end || page < self.log.durable_head {
            return Err(SpaceError::LogPageGone(page));
        }
        let Some(block) = self.log.find(page) else { return Ok(LogRead::Skipped) };
        let at = self.log_page_at(block, (page - block.first) as u32);
        let opens_block = page == block.first;
        out.resize(self.layout().geometry.page_size as usize, 0);
        for _ in 0..2 {
            match self.flash.read_slots(at, 0, out) {
                Ok(()) => return Ok(LogRead::Present { damaged_slots: 0, opens_block }),
                Err(ReadFault::Bad(_)) => {}
                Err(ReadFault::Device(error)) => return Err(SpaceError::Device(error)),
            }
        }
        let damaged_slots = self.log_read_slots(at, out)?;
        if damaged_slots > 0
            && self.layout().capabilities.needs_sync
            && let Some(page) = self.layout().geometry.page_from_number(at)
        {
            // No cut leaves an unreadable page in a file: its content may be durable.
            return Err(SpaceError::Device(NandError::Uncorrectable { page }));
        }
        Ok(LogRead::Present { damaged_slots, opens_block })
    }

    fn log_read_slots(&mut self, at: u32, out: &mut [u8]) -> Result<u64, SpaceError> {
        let mut damaged_slots = 0;
        let slot_size = self.log_slot_size();
        for (slot, target) in out.chunks_mut(slot_size).enumerate() {
            match self.flash.read_slots(at, slot as u32, target) {
                Ok(()) => {}
                Err(ReadFault::Bad(_)) => {
                    target.fill(0);
                    damaged_slots |= 1 << slot.min(63);
                }
                Err(ReadFault::Device(error)) => return Err(SpaceError::Device(error)),
            }
        }
        Ok(damaged_slots)
    }

    /// The caller needs no log page below `before` any more. Blocks are freed once a checkpoint
    /// has recorded it (O2).
    pub fn log_release(&mut self, before: u64) {
        let end = self.log_range().end;
        self.log.head = self.log.head.max(before.min(end));
        if self.flash.bugs.has(SpaceBug::ReuseBeforeCheckpoint) {
            self.log_head_durable(self.log.head);
        }
    }

    /// A record with log head `head` is durable: frees the blocks behind it.
    pub(crate) fn log_head_durable(&mut self, head: u64) {
        self.log.durable_head = self.log.durable_head.max(head);
        let layout_pages = u64::from(self.layout().log_pages_per_block());
        while let Some(first) = self.log.blocks.front().copied() {
            let is_last = self.log.blocks.len() == 1;
            // The block that takes appends stays, even when nothing in it is needed.
            if first.end() > head || (is_last && self.log.is_open) {
                break;
            }
            self.log.blocks.pop_front();
            if u64::from(first.limit) < layout_pages {
                // A failed program shortened it.
                self.retire(first.block);
            } else {
                self.blocks.free(first.block);
            }
        }
    }
}
