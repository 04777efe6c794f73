//! Room on the host for blocks that are there: a file with holes, or a file on a file system that moves
//! rewrites elsewhere.
//!
//! Owns which free blocks are prepared, that is erased ahead of their use. Does nothing on a device whose
//! blocks always have room.
//!
//! H1. Where an erase may find no room, as many free blocks are prepared as a checkpoint, a collection and
//! the log need to go on, before a commit is admitted; beside them, the blocks that an ensured write may
//! take. H2. Prepared blocks are taken last: the others show whether the host has room. H3. A block that the
//! host has refused is withheld: the space is as full as on a device without the block, until a caller was
//! told so, and the host is asked again. Meanwhile, and while the reserve is not prepared, no room is given
//! back to the host, which would give it to others. H4. A program that finds no room has changed nothing that
//! counts. Its content goes to a page that was not written since its block was erased, at first in the same
//! block.

use flagstone_nand::{BlockIndex, Nand, NandError};

use crate::blocks::Purpose;
use crate::collect::Owner;
use crate::error::SpaceError;
use crate::place::Entitlement;
use crate::space::Space;

/// Blocks that one write may begin beside the blocks that it fills: one for each of its streams.
const BEGUN_MAX: u32 = 2;

impl<D: Nand> Space<D> {
    /// Whether blocks are to be prepared before a commit may rely on them (H1).
    #[must_use]
    pub fn lacks_reserve(&self) -> bool {
        self.flash.device.may_lack_room()
            && self.blocks.prepared_count() < self.reserve_needed()
            && self.blocks.unprepared_count() + self.blocks.withheld_count() > 0
    }

    /// Prepares the blocks that a commit relies on (H1).
    ///
    /// # Errors
    ///
    /// `Full` when the host has no room for the reserve.
    pub fn prepare_reserve(&mut self, owner: &mut dyn Owner) -> Result<(), SpaceError> {
        self.ready()?;
        let needed = self.reserve_needed();
        self.prepare(needed)?;
        if self.blocks.prepared_count() >= needed || self.blocks.withheld_count() == 0 {
            return Ok(());
        }
        // Blocks that a collection frees have room of their own.
        match self.ensure_room(0, owner) {
            Ok(()) | Err(SpaceError::Full) => {}
            Err(error) => return Err(error),
        }
        self.prepare(needed)?;
        if self.blocks.prepared_count() >= needed { Ok(()) } else { Err(SpaceError::Full) }
    }

    fn reserve_needed(&self) -> u32 {
        self.reserved_blocks(Entitlement::Surplus) + 1
    }

    /// Prepares blocks for `pages` that users may write beside the reserves, as far as the host has room (H1).
    pub(crate) fn prepare_for(&mut self, pages: u32) -> Result<(), SpaceError> {
        let filled = pages.div_ceil(self.layout().units_per_block.max(1));
        self.prepare(self.reserved_blocks(Entitlement::User) + filled + BEGUN_MAX)
    }

    /// Prepares free blocks until there are `count`, or no others, or the host refuses (H3).
    pub(crate) fn prepare(&mut self, count: u32) -> Result<(), SpaceError> {
        if !self.flash.device.may_lack_room() {
            return Ok(());
        }
        while self.blocks.prepared_count() < count {
            let safe_until = self.flash.safe_until();
            let Some(block) = self.blocks.choose_unprepared(Purpose::Log, safe_until) else {
                break;
            };
            match self.erase_free(block) {
                Ok(()) => self.blocks.prepare(block),
                Err(NandError::NoSpace) => self.blocks.withhold(block),
                Err(NandError::EraseFailed { .. }) => self.mark_bad(block)?,
                Err(error) => return Err(self.fail(error)),
            }
        }
        Ok(())
    }

    /// Erases a free block: it leaves the list of dead pages.
    pub(crate) fn erase_free(&mut self, block: BlockIndex) -> Result<(), NandError> {
        self.flash.erase(block, self.blocks.get(block).replaced())?;
        self.blocks.erased(block);
        self.blocks.withdraw_dead(block);
        Ok(())
    }

    /// A page that was not written since its block was erased found no room: the prepared blocks are as
    /// doubtful (H4).
    pub(crate) fn doubt_prepared(&mut self) {
        self.blocks.unprepare();
    }
}
