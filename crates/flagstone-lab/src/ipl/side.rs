//! Blocks that hold only sectors: overflow, and the status list.
//!
//! Owns the set of needed sectors in such blocks, and the known status of transactions. Never
//! programs: the store does.

use std::collections::{BTreeMap, VecDeque};

use flagstone_nand::BlockIndex;

use super::flash::SectorAt;

/// Blocks that are written sector by sector.
#[derive(Clone, Debug, Default)]
pub(super) struct Side {
    /// Blocks, oldest first, and how many entries of each are needed.
    blocks: VecDeque<(BlockIndex, u32)>,
    /// Next sector of the newest block; none when it takes no more.
    next: Option<u32>,
}

impl Side {
    /// The next sector; none when a block has to be given first.
    pub(super) fn next(&mut self, block_sectors: u32) -> Option<SectorAt> {
        let number = self.next.filter(|number| *number < block_sectors)?;
        let (block, _) = self.blocks.back()?;
        self.next = Some(number + 1);
        Some(SectorAt { block: *block, number })
    }

    /// Adds to the number of needed entries of a block.
    pub(super) fn need(&mut self, block: BlockIndex, count: usize) {
        let found = self.blocks.iter_mut().find(|(other, _)| *other == block);
        if let Some((_, needed)) = found {
            *needed += count as u32;
        }
    }

    /// Takes an erased block; gives back the blocks that have become useless.
    pub(super) fn begin(&mut self, block: BlockIndex) -> Vec<BlockIndex> {
        self.next = None;
        let unused = self.take_useless();
        self.blocks.push_back((block, 0));
        self.next = Some(0);
        unused
    }

    /// Adds a block that a restart found, with its number of needed entries.
    pub(super) fn found(&mut self, block: BlockIndex, needed: u32) {
        self.blocks.push_back((block, needed));
        self.next = None;
    }

    /// Drops a needed entry; gives its block if the block has become useless.
    pub(super) fn release(&mut self, block: BlockIndex) -> Option<BlockIndex> {
        let is_open = self.next.is_some() && self.blocks.back().is_some_and(|it| it.0 == block);
        let place = self.blocks.iter().position(|(other, _)| *other == block)?;
        let needed = &mut self.blocks[place].1;
        *needed = needed.saturating_sub(1);
        if *needed > 0 || is_open {
            return None;
        }
        self.blocks.remove(place).map(|(block, _)| block)
    }

    /// Gives back blocks without a needed entry, but for the one that is being written.
    pub(super) fn take_useless(&mut self) -> Vec<BlockIndex> {
        let open = self.next.and(self.blocks.back()).map(|(block, _)| *block);
        let is_useless = |it: &(BlockIndex, u32)| it.1 == 0 && Some(it.0) != open;
        let useless = self.blocks.iter().copied().filter(is_useless).map(|it| it.0).collect();
        self.blocks.retain(|it| !is_useless(it));
        useless
    }

    /// The oldest block, where there are more than `count`.
    pub(super) fn oldest_beyond(&self, count: usize) -> Option<BlockIndex> {
        let oldest = self.blocks.front().filter(|_| self.blocks.len() > count)?;
        Some(oldest.0)
    }
}

/// Status of transactions whose records are on flash (I3).
#[derive(Clone, Debug, Default)]
pub(super) struct Statuses {
    pub(super) side: Side,
    /// Transactions that have committed, and the block that says so.
    committed: BTreeMap<u64, BlockIndex>,
    /// Sectors with records of each transaction.
    references: BTreeMap<u64, u32>,
}

impl Statuses {
    pub(super) fn has_committed(&self, xid: u64) -> bool {
        xid == 0 || self.committed.contains_key(&xid)
    }

    pub(super) fn is_referenced(&self, xid: u64) -> bool {
        self.references.contains_key(&xid)
    }

    pub(super) fn count(&self) -> usize {
        self.committed.len()
    }

    /// Transactions that `block` tells of.
    pub(super) fn of_block(&self, block: BlockIndex) -> Vec<u64> {
        let those = self.committed.iter().filter(|(_, other)| **other == block);
        those.map(|(xid, _)| *xid).collect()
    }

    pub(super) fn refer(&mut self, xid: u64) {
        *self.references.entry(xid).or_default() += 1;
    }

    /// A sector with records of `xid` is gone; gives the status block if it has become useless.
    pub(super) fn drop_reference(&mut self, xid: u64) -> Option<BlockIndex> {
        let count = self.references.get_mut(&xid)?;
        *count -= 1;
        if *count > 0 {
            return None;
        }
        self.references.remove(&xid);
        let block = self.committed.remove(&xid)?;
        self.side.release(block)
    }

    /// A sector in `block` tells that `xids` have committed; gives the blocks that have become
    /// useless.
    pub(super) fn tell(&mut self, xids: &[u64], block: BlockIndex) -> Vec<BlockIndex> {
        self.side.need(block, xids.len());
        let old: Vec<BlockIndex> =
            xids.iter().filter_map(|xid| self.committed.insert(*xid, block)).collect();
        old.into_iter().filter_map(|old| self.side.release(old)).collect()
    }

    /// Restart found, in `block`, that `xid` has committed; each is told once.
    pub(super) fn found(&mut self, xid: u64, block: BlockIndex) {
        self.committed.entry(xid).or_insert(block);
    }

    /// Forgets transactions that no sector refers to.
    pub(super) fn prune(&mut self) {
        let references = &self.references;
        self.committed.retain(|xid, _| references.contains_key(xid));
    }

    /// Transactions that have committed.
    pub(super) fn all(&self) -> Vec<u64> {
        self.committed.keys().copied().collect()
    }
}
