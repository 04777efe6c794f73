//! The choice of a block: a free one to take or erase next, a full one to collect.
//!
//! Owns the order in which blocks come. Never changes the table.

use alloc::vec::Vec;
use core::cmp::Reverse;

use flagstone_nand::BlockIndex;

use super::{Block, BlockState, BlockTable, Purpose};

impl BlockTable {
    /// Free block to take next: a prepared one if there is no other.
    pub(crate) fn choose_free(&self, purpose: Purpose, safe_until: u64) -> Option<BlockIndex> {
        let prepared = || self.prepared.first().map(|block| BlockIndex(*block));
        self.choose_unprepared(purpose, safe_until).or_else(prepared)
    }

    /// Free block to erase next: a block that may be erased at once, if there is any.
    pub(crate) fn choose_unprepared(
        &self,
        purpose: Purpose,
        safe_until: u64,
    ) -> Option<BlockIndex> {
        let is_ready =
            |(_, block): &&(u32, u32)| self.get(BlockIndex(*block)).replaced_at <= safe_until;
        let least_worn = || self.free.iter().find(is_ready).or(self.free.first());
        let found = match self.rests(purpose) {
            true => {
                let mut worn = self.free.range((self.worn_limit() + 1, 0)..);
                worn.find(is_ready).or_else(|| self.free.iter().rev().find(is_ready))
            }
            false => None,
        };
        found.or_else(least_worn).map(|(_, block)| BlockIndex(*block))
    }

    /// Whether a block rests while it is used for `purpose`: all others are taken meanwhile, on average. For
    /// content that stays, worn blocks are taken and the most worn left alone; for content that ends sooner,
    /// the least worn. If the least worn served all purposes, short-lived content would get back the blocks
    /// that it has just given up.
    fn rests(&self, purpose: Purpose) -> bool {
        self.lives[purpose as usize] > self.len()
    }

    /// Closed block with the fewest live units among the blocks taken before `sequence`; among equals the
    /// block that came last.
    pub(crate) fn greedy_victim(&self, sequence: u32) -> Option<BlockIndex> {
        let is_older = |block: &&u32| self.get(BlockIndex(**block)).sequence < sequence;
        let victim = self.buckets.iter().find_map(|bucket| bucket.iter().rev().find(is_older));
        victim.map(|block| BlockIndex(*block))
    }

    /// Closed block with the highest `(1 - u) * age / 2u` among the blocks taken before `sequence`, divided
    /// by the weight that `wear` gives it; by 1 at least.
    pub(crate) fn aged_victim(
        &self,
        units_per_block: u32,
        sequence: u32,
        wear: impl Fn(&Block) -> u32,
    ) -> Option<BlockIndex> {
        let score = |block: &Block| {
            let (live, age) = (u64::from(block.live), self.clock + 1 - block.closed_at);
            let dead = u64::from(units_per_block).saturating_sub(live);
            // Scaled so that integers keep the order; live is at least 1 in a closed block.
            let cost = u128::from(2 * live.max(1)) * u128::from(wear(block).max(1));
            ((u128::from(dead) * u128::from(age)) << 20) / cost
        };
        let closed = self.buckets.iter().take(units_per_block as usize).flatten();
        closed
            .copied()
            .filter(|block| self.get(BlockIndex(*block)).sequence < sequence)
            .max_by_key(|block| (score(self.get(BlockIndex(*block))), *block))
            .map(BlockIndex)
    }

    /// Closed block that is most erases behind `erases` for each of its live units, among the blocks taken
    /// before `sequence`, except the blocks of `units`.
    pub(crate) fn rested(
        &self,
        sequence: u32,
        erases: u32,
        units: impl Iterator<Item = u32>,
    ) -> Option<BlockIndex> {
        let mut kept: Vec<BlockIndex> = units.map(|at| self.block_of(at)).collect();
        kept.sort_unstable();
        let is_rested = |(index, block): &(BlockIndex, &Block)| {
            let is_closed = block.state == BlockState::Closed && !block.stuck;
            let is_old = block.sequence < sequence && block.erases < erases;
            is_closed && is_old && kept.binary_search(index).is_err()
        };
        // In integers; among equals the block that has rested for longest.
        let gain =
            |block: &Block| (u64::from(erases - block.erases) << 32) / u64::from(block.live.max(1));
        let rested = self.iter().filter(is_rested);
        rested.max_by_key(|(_, it)| (gain(it), Reverse(it.sequence))).map(|(index, _)| index)
    }

    /// First retired block, to be drained.
    pub(crate) fn retired(&self) -> Option<BlockIndex> {
        let mut retired = self.iter().filter(|(_, block)| block.state == BlockState::Retired);
        retired.find(|(_, block)| !block.stuck).map(|(index, _)| index)
    }
}
