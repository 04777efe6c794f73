//! Growth: more blocks of a device that is not as large as it can be.
//!
//! Owns when a space grows and by how much. Never moves a page.
//!
//! E1. A new block is free and was never used. No record has to say so: a mount finds a block that its record
//! does not know, even if it was written since. E2. Where the host has no room, nothing has changed, and the
//! space goes on as on a device of that size. E3. A space grows before it refuses anything for want of room,
//! and before it would collect blocks that are nearly all live. E4. Every mount looks behind the blocks that
//! its record knows; a device that ends before them was cut short. E5. Room that a record gives back is not
//! asked of the host. E6. The log takes more blocks only where it fills its own or a longer log was asked
//! for, and live pages keep their room. Where the device grows no more, the log gives them back before data
//! are refused.

use flagstone_nand::{BlockIndex, Nand, NandError};

use crate::blocks::BlockState;
use crate::error::SpaceError;
use crate::layout::Layout;
use crate::space::{Session, Space};

/// Share of the capacity, in percent, up to which pages are live before the space grows: beside the log a file is
/// a little more than a quarter larger than its pages; a collection finds a fifth of a block dead at least.
const FILL_PERCENT: u64 = 80;

/// A step is one part in this many of the present size: each costs a sync, and leaves that much unused.
const STEP_SHARE: u32 = 8;

/// Bytes of the largest step taken ahead of demand: other writers wait for it.
const STEP_SIZE_MAX: u64 = 64 << 20;

impl<D: Nand> Space<D> {
    /// Whether the device may have more blocks, and did not refuse them when it was asked last.
    #[must_use]
    pub fn can_grow(&self) -> bool {
        self.options.grows
            && !self.growth_refused
            && !self.poisoned
            && self.session != Session::ReadOnly
            && self.layout().blocks < self.layout().geometry.block_count
    }

    /// Whether the log's budget grows with the device.
    #[must_use]
    pub fn log_grows(&self) -> bool {
        self.can_grow() && self.layout().log_grows()
    }

    /// Blocks that are there.
    #[must_use]
    pub fn present_blocks(&self) -> u32 {
        self.layout().blocks
    }

    /// Whether the host had no room when it was asked last.
    #[must_use]
    pub fn was_refused(&self) -> bool {
        self.growth_refused || self.blocks.withheld_count() > 0
    }

    /// The host is asked again for room, and for more blocks, when they are needed again (H3).
    pub fn retry_growth(&mut self) {
        self.growth_refused = false;
        self.blocks.release_withheld();
    }

    /// Grows, if need be and as far as the device can, so that `pages` more logical pages can be live and
    /// collection still finds enough that is dead. Whether it grew.
    ///
    /// # Errors
    ///
    /// The errors of a failed sync; a host without room is no error.
    pub fn grow_for(&mut self, pages: u32) -> Result<bool, SpaceError> {
        let taken = u64::from(self.taken_pages()) + u64::from(pages);
        let is_roomy = |space: &Self, trimmed_unsaved: usize| {
            space.is_roomy(space.capacity_pages(), taken + trimmed_unsaved as u64)
        };
        if !self.can_grow() || is_roomy(self, self.trimmed_unsaved.len()) {
            return Ok(false);
        }
        if self.trimmed_unsaved.len() >= self.trimmed_enough() && is_roomy(self, 0) {
            self.ready()?;
            self.checkpoint_own()?;
        }
        if is_roomy(self, self.trimmed_unsaved.len()) {
            return Ok(false);
        }
        self.grow_until_roomy(self.layout().clone(), taken + self.trimmed_unsaved.len() as u64)
    }

    /// Grows by the steps that give `wanted` pages room in a space of this layout.
    fn grow_until_roomy(&mut self, mut layout: Layout, wanted: u64) -> Result<bool, SpaceError> {
        let (step, limit, lost) = (self.step(), layout.geometry.block_count, self.lost_blocks());
        loop {
            let blocks = layout.blocks.saturating_add(step).min(limit);
            layout.set_blocks(blocks);
            if blocks == limit || self.is_roomy(layout.capacity(blocks - lost), wanted) {
                return self.extend(blocks);
            }
        }
    }

    /// Asks for a longer log, however much of it is filled (E6): it gets a larger share with the next block that it
    /// takes, if there is room.
    pub fn want_log(&mut self) {
        self.log.is_wanted = true;
    }

    /// The log is about to take one more block: it gets a larger share where that was asked for, or once it
    /// fills half of its blocks (E6).
    pub(crate) fn make_room_for_log(&mut self) -> Result<(), SpaceError> {
        let is_filling = self.log.block_count() * 2 > self.layout().log_blocks;
        let is_wanted = core::mem::take(&mut self.log.is_wanted);
        if is_filling || is_wanted {
            self.widen_log()?;
        }
        Ok(())
    }

    /// Gives the log a larger share, if there is room (E6); whether it has one then.
    ///
    /// # Errors
    ///
    /// As [`Space::grow_for`].
    pub fn widen_log(&mut self) -> Result<bool, SpaceError> {
        if !self.can_grow() {
            return Ok(false);
        }
        let taken = u64::from(self.taken_pages()) + self.trimmed_unsaved.len() as u64;
        let is_roomy = |space: &Self, layout: &Layout| {
            space.is_roomy(layout.capacity(layout.blocks - space.lost_blocks()), taken)
        };
        let mut layout = self.layout().clone();
        if !layout.widen_log(0) {
            return Ok(false);
        }
        if !is_roomy(self, &layout) {
            self.grow_until_roomy(layout.clone(), taken)?;
            layout.set_blocks(self.layout().blocks);
        }
        let is_wider = is_roomy(self, &layout);
        if is_wider {
            self.flash.layout = layout;
        }
        Ok(is_wider)
    }

    /// Log pages that may be in use at a time once [`Space::shorten_log`] was called: as many as before where the device
    /// may grow.
    #[must_use]
    pub fn log_least_pages(&self) -> u64 {
        let layout = self.layout();
        let blocks = match self.can_grow() {
            true => layout.log_blocks,
            false => layout.log_blocks_least(),
        };
        layout.log_pages_in(blocks)
    }

    /// Takes the blocks from the log that exceed its share and are not filled, where the device grows no
    /// more: data may have them (E6).
    pub fn shorten_log(&mut self) {
        if !self.can_grow() {
            let filled = self.log.block_count();
            self.flash.layout.shorten_log(filled);
        }
    }

    /// Grows by a step because a log of `budget` pages is too small, unless it is larger by now.
    ///
    /// # Errors
    ///
    /// As [`Space::grow_for`].
    pub fn grow_log(&mut self, budget: u64) -> Result<(), SpaceError> {
        if self.log_budget_pages() <= budget {
            self.grow_by_step()?;
        }
        Ok(())
    }

    /// Grows by a step, without regard to free room; whether there was one.
    ///
    /// # Errors
    ///
    /// As [`Space::grow_for`].
    pub(crate) fn grow_by_step(&mut self) -> Result<bool, SpaceError> {
        if !self.can_grow() {
            return Ok(false);
        }
        let limit = self.layout().geometry.block_count;
        self.extend(self.layout().blocks.saturating_add(self.step()).min(limit))
    }

    fn is_roomy(&self, capacity: u32, wanted: u64) -> bool {
        wanted * 100 <= u64::from(capacity) * FILL_PERCENT
    }

    fn step(&self) -> u32 {
        let layout = self.layout();
        let most = STEP_SIZE_MAX / layout.geometry.block_size().max(1);
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        (layout.blocks / STEP_SHARE).min(most).max(1)
    }

    fn extend(&mut self, mut block_count: u32) -> Result<bool, SpaceError> {
        let known = self.layout().blocks;
        loop {
            match self.flash.device.extend(block_count) {
                Ok(()) => break,
                // There may be room for less.
                Err(NandError::NoSpace) if block_count - known > 1 => {
                    block_count = known + (block_count - known) / 2;
                }
                Err(NandError::NoSpace) => {
                    self.growth_refused = true;
                    return Ok(false);
                }
                Err(error) => return Err(self.fail(error)),
            }
        }
        // Room that free blocks had given back was asked of the host with that of the new ones.
        self.report_dead();
        self.flash.layout.set_blocks(block_count);
        self.blocks.extend(block_count);
        self.map.extend(self.layout().logical_pages);
        for block in (known..block_count).map(BlockIndex) {
            let is_bad = self.flash.device.is_bad(block).map_err(|error| self.fail(error))?;
            let state = if is_bad { BlockState::Bad } else { BlockState::Free };
            self.blocks.restore(block, state, 0, self.flash.device.erase_count(block));
        }
        Ok(true)
    }
}
