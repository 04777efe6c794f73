//! Placing units: the write path below every logical page.
//!
//! Owns taking blocks, failed programs and block summaries. Never moves the mapping.
//!
//! W1. A block is erased in this session before anything is programmed into it (rule D11). W2. A
//! block is erased only when the replacement of its content is durable: synced where the device
//! needs it, out of reach of later programs where cells are paired (rules D9, D10). W3. A failed
//! program retires its block; the unit goes elsewhere, units before it stay readable. W4. Users
//! never take the blocks that a collection, a checkpoint and the log need (rule D7).

use flagstone_nand::{BlockIndex, CellMode, Nand, NandError};

use crate::blocks::{BlockState, Purpose};
use crate::error::SpaceError;
use crate::flash::busy::Work;
use crate::frontier::{Frontier, Stream};
use crate::layout::GC_RESERVE;
use crate::meta::{PageKind, PageMeta};
use crate::space::Space;
use crate::summary::{self, SummaryHead};
use crate::{Cause, LogicalPage, SpaceBug};

/// Failed programs in a row after which a write gives up.
const ATTEMPTS_MAX: u32 = 8;

/// Who asks for a block: decides which reserves it may use (W4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entitlement {
    /// A write of the caller.
    User,
    /// The log, beyond its budget.
    Surplus,
    /// Work that gives back at least as many blocks as it takes: a collection frees its victim, a
    /// checkpoint the mapping pages and log blocks it replaces, the copies at the start of a
    /// session free the copies of the session before. And the log within its budget.
    Reserve,
}

impl<D: Nand> Space<D> {
    /// Programs a unit at the frontier of `stream`; its first page, live from now on.
    pub(crate) fn place(
        &mut self,
        stream: Stream,
        entitlement: Entitlement,
        meta: PageMeta,
        payload: &[u8],
        cause: Cause,
    ) -> Result<u32, SpaceError> {
        let (mut entitlement, mut lacks_room) = (entitlement, false);
        for _ in 0..ATTEMPTS_MAX {
            let (at, sequence) = self.next_slot(stream, entitlement)?;
            let meta = PageMeta { sequence, ..meta };
            match self.flash.program_unit(at, &meta, payload, cause) {
                Ok(()) => {
                    self.placed(stream, at, meta)?;
                    return Ok(at);
                }
                Err(NandError::ProgramFailed { .. }) => self.retire_frontier(stream),
                Err(NandError::NoSpace) => {
                    self.leave_frontier(stream);
                    lacks_room = true;
                }
                Err(error) => return Err(self.fail(error)),
            }
            // The room that was ensured did not count on a failure.
            if entitlement == Entitlement::User {
                entitlement = Entitlement::Reserve;
            }
        }
        Err(if lacks_room { SpaceError::NoRoom } else { SpaceError::WornOut })
    }

    fn next_slot(
        &mut self,
        stream: Stream,
        entitlement: Entitlement,
    ) -> Result<(u32, u32), SpaceError> {
        let index = stream as usize;
        if self.frontiers[index].is_none() {
            let purpose = match stream {
                Stream::Hot => Purpose::Hot,
                Stream::Cold => Purpose::Cold,
                Stream::Meta => Purpose::Meta,
            };
            let block = self.take_block(entitlement, purpose, BlockState::Open)?;
            let sequence = self.blocks.get(block).sequence;
            let units = alloc::vec::Vec::with_capacity(self.layout().units_per_block as usize);
            self.frontiers[index] = Some(Frontier { block, sequence, units });
        }
        let frontier = self.frontiers[index].as_ref().ok_or(SpaceError::NoRoom)?;
        let at = frontier.next_page(&self.flash.layout).ok_or(SpaceError::NoRoom)?;
        Ok((at, frontier.sequence))
    }

    fn placed(&mut self, stream: Stream, at: u32, meta: PageMeta) -> Result<(), SpaceError> {
        self.blocks.placed_at = self.blocks.placed_at.max(self.flash.moment());
        self.blocks.add_live(at);
        let Some(frontier) = &mut self.frontiers[stream as usize] else { return Ok(()) };
        frontier.units.push(meta);
        if frontier.left(&self.flash.layout) == 0 {
            self.finish_block(stream)?;
        }
        Ok(())
    }

    /// Writes the summary of a full block and closes it.
    pub(crate) fn finish_block(&mut self, stream: Stream) -> Result<(), SpaceError> {
        let Some(frontier) = self.frontiers[stream as usize].take() else { return Ok(()) };
        match self.program_summary(&frontier) {
            // Without a summary, a mount reads the same facts from the block's pages.
            Ok(()) | Err(NandError::NoSpace) => self.blocks.close(frontier.block),
            Err(NandError::ProgramFailed { .. }) => self.retire(frontier.block),
            Err(error) => return Err(self.fail(error)),
        }
        Ok(())
    }

    fn program_summary(&mut self, frontier: &Frontier) -> Result<(), NandError> {
        let layout = &self.flash.layout;
        let Some(start) = layout.summary_start() else { return Ok(()) };
        let (chunk_size, pages) = (layout.chunk_size, layout.geometry.pages_per_block);
        let head = SummaryHead {
            parts: self.options.parts,
            grows: self.options.grows,
            ring_blocks: self.options.ring_blocks,
            log_pages: self.options.log_pages,
            logical_pages: layout.logical_pages,
            sequence: frontier.sequence,
            sequence_floor: self.ring.sequence_floor,
        };
        let mut bytes = core::mem::take(&mut self.meta_buffer);
        summary::encode(&head, &frontier.units, &mut bytes);
        let mut result = Ok(());
        for (index, chunk) in bytes.chunks(chunk_size).enumerate() {
            let version = self.numbers.next_version();
            let meta = PageMeta::own(PageKind::Summary, LogicalPage(index as u32), version);
            let meta = PageMeta { sequence: frontier.sequence, ..meta };
            let at = frontier.block.0 * pages + start + index as u32;
            result =
                result.and_then(|()| self.flash.program_page(at, &meta, chunk, Cause::Metadata));
        }
        self.meta_buffer = bytes;
        result
    }

    fn retire_frontier(&mut self, stream: Stream) {
        if let Some(frontier) = self.frontiers[stream as usize].take() {
            self.retire(frontier.block);
        }
    }

    /// Nothing more goes to the block of `stream`: the host has no room there (H4).
    fn leave_frontier(&mut self, stream: Stream) {
        self.doubt_prepared();
        if let Some(frontier) = self.frontiers[stream as usize].take() {
            self.blocks.close(frontier.block);
        }
    }

    /// A program failed in `block` (W3): nothing more goes there, its units move out later.
    pub(crate) fn retire(&mut self, block: BlockIndex) {
        self.blocks.retire(block);
    }

    /// Marks a block bad, for ever; where the chip does not take the mark, for this session: its content does
    /// not count, and a later session that takes the block finds out again.
    pub(crate) fn mark_bad(&mut self, block: BlockIndex) -> Result<(), SpaceError> {
        match self.flash.device.mark_bad(block) {
            Ok(()) | Err(NandError::Host { .. } | NandError::NoSpace) => {}
            Err(error) => return Err(self.fail(error)),
        }
        self.blocks.set_bad(block);
        Ok(())
    }

    /// Takes and erases a free block (W1, W2, W4).
    pub(crate) fn take_block(
        &mut self,
        entitlement: Entitlement,
        purpose: Purpose,
        state: BlockState,
    ) -> Result<BlockIndex, SpaceError> {
        if !self.flash.bugs.has(SpaceBug::EraseBeforeSync) {
            self.settle_pairs()?;
        }
        self.tell_dead();
        let mut entitlement = entitlement;
        while self.blocks.free_count() > self.reserved_blocks(entitlement) {
            let safe_until = self.flash.safe_until();
            let Some(block) = self.blocks.choose_free(purpose, safe_until) else { break };
            if self.flash.bugs.has(SpaceBug::FreeBlockNotErased)
                && self.blocks.get(block).erases == 0
            {
                let sequence = self.numbers.next_sequence();
                self.blocks.take(block, purpose, state, sequence);
                return Ok(block);
            }
            let work = self.flash.busy.work;
            if self.blocks.get(block).is_reclaimed {
                self.flash.busy.work = Work::Collection;
            }
            let erased = match self.blocks.get(block).is_prepared {
                true => Ok(()),
                false => self.erase_free(block),
            };
            self.flash.busy.work = work;
            match erased {
                Ok(()) => {
                    let sequence = self.numbers.next_sequence();
                    self.blocks.take(block, purpose, state, sequence);
                    return Ok(block);
                }
                Err(NandError::EraseFailed { .. }) => {
                    self.mark_bad(block)?;
                    // The room that was ensured did not count on it.
                    entitlement = Entitlement::Reserve;
                }
                // Others may have room; prepared ones do (H3).
                Err(NandError::NoSpace) => self.blocks.withhold(block),
                Err(error) => return Err(self.fail(error)),
            }
        }
        Err(if self.lost_blocks() > 0 { SpaceError::WornOut } else { SpaceError::NoRoom })
    }

    /// Free blocks that `entitlement` has to leave alone (W4).
    pub(crate) fn reserved_blocks(&self, entitlement: Entitlement) -> u32 {
        if self.flash.bugs.has(SpaceBug::ReserveGiven) {
            return 0;
        }
        let reserve = self.layout().meta_reserve + GC_RESERVE;
        match entitlement {
            Entitlement::User => {
                // A log that has used up its budget still finds a block to go on in: a restart
                // begins one.
                let left = self.layout().log_blocks.saturating_sub(self.log.block_count());
                reserve + left.max(1)
            }
            Entitlement::Surplus => reserve,
            Entitlement::Reserve => 0,
        }
    }

    /// Leaves no programmed page in an open block to a partner that is still to come (rule D9).
    pub(crate) fn settle_pairs(&mut self) -> Result<(), SpaceError> {
        let mode = self.layout().capabilities.cell_mode;
        let is_paired = matches!(mode, CellMode::Mlc { .. } | CellMode::OddMlc { .. });
        if !is_paired || self.flash.bugs.has(SpaceBug::PairsNotSettled) {
            return Ok(());
        }
        for stream in Stream::ALL {
            let layout = &self.flash.layout;
            let Some(frontier) = &mut self.frontiers[stream as usize] else { continue };
            frontier.settle_pairs(layout);
            if frontier.left(layout) == 0 {
                self.finish_block(stream)?;
            }
        }
        Ok(())
    }
}
