//! Wear levelling: emptying blocks that rest while others wear out.
//!
//! Owns the moment, the budget and the choice of the block. Never moves a unit itself: see
//! `collect.rs`.
//!
//! L1. The programs of levelling are a fixed share of the programs that fill erased blocks, for any content
//! of the chip: each erase earns that share of a block's units, each unit moved is paid for. Sessions too
//! short to earn a block get one when the chip's count of erases passes a multiple of the erases that earn a
//! block. L2. No unit is moved that would go by itself: none written within the chip's last round, no page of
//! the mapping, no forgotten page.

use flagstone_nand::{BlockIndex, Nand};

use crate::Cause;
use crate::collect::Owner;
use crate::error::SpaceError;
use crate::place::Entitlement;
use crate::space::Space;

/// Blocks full of units that may be earned ahead of their use.
const BLOCKS_KEPT: u64 = 4;

/// Budget of levelling, in units of which so many make one: `every`, erases that earn a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LevelCredit {
    every: u64,
    /// Units of a block.
    units: u64,
    /// Erases at which the session began.
    begun: u64,
    /// Erases that were credited.
    seen: u64,
    credit: u64,
}

impl LevelCredit {
    /// Credit of a session that began after `begun` erases, of which `every` earn a block of `units`.
    pub(crate) fn new(every: u32, units: u32, begun: u64) -> Self {
        Self { every: u64::from(every.max(1)), units: units.into(), begun, seen: begun, credit: 0 }
    }

    /// There were `erases` by now; whether some are new.
    fn earn(&mut self, erases: u64) -> bool {
        if erases <= self.seen {
            return false;
        }
        let block = self.units * self.every;
        self.credit = (self.credit + (erases - self.seen) * self.units).min(BLOCKS_KEPT * block);
        let is_due = erases / self.every > self.seen / self.every;
        if is_due && self.seen - self.begun < self.every {
            self.credit = self.credit.max(block);
        }
        self.seen = erases;
        true
    }

    /// Pays for `units`; whether there was enough.
    fn pay(&mut self, units: u32) -> bool {
        let rest = self.credit.checked_sub(u64::from(units) * self.every);
        self.credit = rest.unwrap_or(self.credit);
        rest.is_some()
    }
}

impl<D: Nand> Space<D> {
    /// Empties a block that has rested while others wore out, where it is paid for (L1); whether it did.
    pub(crate) fn level_wear(&mut self, owner: &mut dyn Owner) -> Result<bool, SpaceError> {
        let Some(every) = self.options.static_wear else { return Ok(false) };
        let (total, units) = (self.blocks.erases_total(), self.layout().units_per_block);
        let begun = total.saturating_sub(self.flash.tally.erases);
        let credit = self.level_credit.get_or_insert(LevelCredit::new(every, units, begun));
        // Looking at all blocks once an erase is enough.
        let is_news = credit.earn(total);
        let may_move = self.blocks.free_count() > self.reserved_blocks(Entitlement::User);
        // Blocks in turn are not worn while a block that was emptied lately is among them.
        let is_worn = self.blocks.erases_next() > Some(self.blocks.worn_limit());
        if !is_news || !may_move || !is_worn {
            return Ok(false);
        }
        let Some(block) = self.rested_block() else { return Ok(false) };
        let live = self.blocks.get(block).live;
        if !self.level_credit.as_mut().is_some_and(|credit| credit.pay(live)) {
            return Ok(false);
        }
        self.empty_block(block, owner, Cause::Wear)?;
        Ok(true)
    }

    /// Block that gives most erases for the units that have to be moved (L2).
    fn rested_block(&self) -> Option<BlockIndex> {
        // A unit as young as the chip's last round may be on its way out by itself.
        let sequence = self.numbers.sequence.saturating_sub(self.blocks.len());
        let stays = self.meta_units.iter().chain(&self.trimmed_unsaved).copied();
        self.blocks.rested(sequence, self.blocks.erases_mean(), stays)
    }
}
