//! The block table: the use of each block, its live units, and the free blocks.
//!
//! Owns states, live bits, the free pool and the buckets of closed blocks. Never touches
//! the device: callers report their erases and programs here.
//!
//! B1. `live` of a block is the number of its live bits. B2. A closed block with no live unit is free; a
//! closed block is in the bucket of its live count. B3. A free block's bytes are not relied on: the block is
//! erased when it is taken, or earlier in the same session. B4. A free block is prepared, unprepared or
//! withheld.
//!
//! ```text
//!          take             close              live = 0
//!   Free ───────▶ Open ───────────▶ Closed ───────────────▶ Free
//!    │ │            │ program failed   │ drained
//!    │ └▶ Log, Ring └──────▶ Retired ──┴──▶ Bad
//!    └──── erase failed ───────────────────▶ Bad
//! ```
//!
//! | transition | function |
//! | --- | --- |
//! | Free → Open, Log, Ring | `take` |
//! | Open → Closed or Free | `close` |
//! | Open, Log → Retired | `retire` |
//! | Closed → Free | `drop_live` |
//! | Log → Free | `free` |
//! | any → Bad | `set_bad` |

mod choice;

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use flagstone_nand::BlockIndex;

use crate::dead::{Dead, Listed};
use crate::mapping::Bits;

/// Use of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// Holds nothing that counts; erased when taken.
    Free,
    /// Accepts units of one stream.
    Open,
    /// Full, or closed before it was full; holds live units.
    Closed,
    /// Holds log pages.
    Log,
    /// Holds checkpoint records.
    Ring,
    /// A program failed here: its live units are being moved out, nothing is programmed.
    Retired,
    /// Never used again.
    Bad,
}

/// One block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) state: BlockState,
    /// Number of the block's current life; in the metadata of all its pages.
    pub(crate) sequence: u32,
    pub(crate) erases: u32,
    pub(crate) live: u32,
    /// Logical time at which the block was closed, for the age of cost-benefit.
    pub(crate) closed_at: u64,
    /// Holds a live unit that cannot be read: never a victim.
    pub(crate) stuck: bool,
    /// Moment at which the replacements of its units are complete ([`Flash::moment`](crate::flash::Flash)).
    pub(crate) replaced_at: u64,
    /// The block was erased in this session, and nothing was programmed since.
    pub(crate) is_prepared: bool,
    /// The block is left alone until its host is asked for room again.
    is_withheld: bool,
    /// The block is free because its units were moved or replaced: its erase is due to collection.
    pub(crate) is_reclaimed: bool,
    /// Purpose for which this session took it.
    purpose: Option<Purpose>,
    /// Position within its bucket, while closed.
    slot: u32,
}

impl Block {
    /// Moment at which the replacement of its content is complete; none where it never had a life.
    pub(crate) fn replaced(&self) -> Option<u64> {
        (self.sequence > 0).then_some(self.replaced_at)
    }
}

/// A block of which nothing is known.
const UNKNOWN: Block = Block {
    state: BlockState::Bad,
    sequence: 0,
    erases: 0,
    live: 0,
    closed_at: 0,
    stuck: false,
    replaced_at: 0,
    is_prepared: false,
    is_withheld: false,
    is_reclaimed: false,
    purpose: None,
    slot: 0,
};

/// Blocks are worn evenly as long as no block exceeds the mean by more than one part in this many.
const AHEAD_SHARE: u32 = 8;

/// Purpose for which a free block is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Pages that will be rewritten soon.
    Hot,
    /// Pages that will stay, and pages that were moved.
    Cold,
    /// Mapping, block table, directory.
    Meta,
    /// The log.
    Log,
    /// Checkpoint records: their blocks are erased in turn, for ever.
    Ring,
}

/// The block table.
#[derive(Clone, Debug)]
pub(crate) struct BlockTable {
    blocks: Vec<Block>,
    live: Bits,
    /// Free blocks that are neither prepared nor withheld, by erases.
    free: BTreeSet<(u32, u32)>,
    prepared: BTreeSet<u32>,
    withheld: BTreeSet<u32>,
    buckets: Vec<Vec<u32>>,
    pages_per_block: u32,
    /// Counts closings: the clock of cost-benefit.
    clock: u64,
    /// Moment at which every unit placed so far is complete.
    pub(crate) placed_at: u64,
    changed: Bits,
    /// Blocks in each state.
    counts: [u32; 7],
    /// Erases of all blocks that are not bad.
    erases_total: u64,
    /// Sequence of the block that was taken last.
    newest: u32,
    /// How many blocks are taken while one lives that was taken for each purpose: most outlive that.
    lives: [u32; 5],
    /// Pages that died, where the device wants to be told of them.
    pub(crate) dead: Dead,
}

impl BlockTable {
    pub(crate) fn new(block_count: u32, pages_per_block: u32, units_per_block: u32) -> Self {
        Self {
            blocks: vec![UNKNOWN; block_count as usize],
            live: Bits::new(block_count as usize * pages_per_block as usize),
            free: BTreeSet::new(),
            prepared: BTreeSet::new(),
            withheld: BTreeSet::new(),
            buckets: vec![Vec::new(); units_per_block as usize + 1],
            pages_per_block,
            clock: 0,
            placed_at: 0,
            changed: Bits::new(block_count as usize),
            counts: [0, 0, 0, 0, 0, 0, block_count],
            erases_total: 0,
            newest: 0,
            lives: [0; 5],
            dead: Dead::default(),
        }
    }

    /// Adds blocks behind the existing ones; they are bad until they are restored.
    pub(crate) fn extend(&mut self, block_count: u32) {
        let count = block_count as usize;
        let more = block_count.saturating_sub(self.len());
        self.blocks.resize(count.max(self.blocks.len()), UNKNOWN);
        self.live.extend(count * self.pages_per_block as usize);
        self.changed.extend(count);
        self.counts[BlockState::Bad as usize] += more;
    }

    pub(crate) fn get(&self, block: BlockIndex) -> &Block {
        &self.blocks[block.0 as usize]
    }

    /// Block that holds page number `at`.
    pub(crate) fn block_of(&self, at: u32) -> BlockIndex {
        BlockIndex(at / self.pages_per_block)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (BlockIndex, &Block)> {
        self.blocks.iter().enumerate().map(|(index, block)| (BlockIndex(index as u32), block))
    }

    pub(crate) fn len(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Free blocks that may be taken.
    pub(crate) fn free_count(&self) -> u32 {
        self.unprepared_count() + self.prepared_count()
    }

    /// Free blocks that are erased already.
    pub(crate) fn prepared_count(&self) -> u32 {
        self.prepared.len() as u32
    }

    /// Free blocks that are not prepared and may be taken.
    pub(crate) fn unprepared_count(&self) -> u32 {
        self.free.len() as u32
    }

    /// Free blocks that are left alone.
    pub(crate) fn withheld_count(&self) -> u32 {
        self.withheld.len() as u32
    }

    /// A free block was erased and waits to be taken.
    pub(crate) fn prepare(&mut self, block: BlockIndex) {
        assert_eq!(self.get(block).state, BlockState::Free, "only free blocks are prepared");
        self.unlink(block);
        self.blocks[block.0 as usize].is_prepared = true;
        self.link(block);
    }

    /// Prepared blocks are as others again.
    pub(crate) fn unprepare(&mut self) {
        for block in core::mem::take(&mut self.prepared) {
            let entry = &mut self.blocks[block as usize];
            entry.is_prepared = false;
            self.free.insert((entry.erases, block));
        }
    }

    /// Leaves a free block alone.
    pub(crate) fn withhold(&mut self, block: BlockIndex) {
        assert_eq!(self.get(block).state, BlockState::Free, "only free blocks are withheld");
        self.unlink(block);
        self.blocks[block.0 as usize].is_withheld = true;
        self.link(block);
    }

    /// Leaves none alone any more.
    pub(crate) fn release_withheld(&mut self) {
        for block in core::mem::take(&mut self.withheld) {
            let entry = &mut self.blocks[block as usize];
            entry.is_withheld = false;
            self.free.insert((entry.erases, block));
        }
    }

    /// Blocks in `state`.
    pub(crate) fn count(&self, state: BlockState) -> u32 {
        self.counts[state as usize]
    }

    /// Erases of all blocks that are not bad.
    pub(crate) const fn erases_total(&self) -> u64 {
        self.erases_total
    }

    /// Mean of the erases of all blocks that are not bad, rounded down.
    pub(crate) fn erases_mean(&self) -> u32 {
        let good = self.len() - self.count(BlockState::Bad);
        (self.erases_total / u64::from(good.max(1))) as u32
    }

    /// Erases beyond which a block counts as worn: it is ahead of the mean.
    pub(crate) fn worn_limit(&self) -> u32 {
        let mean = self.erases_mean();
        mean + mean / AHEAD_SHARE + 1
    }

    /// Erases of the block that is taken next for content that will be rewritten soon.
    pub(crate) fn erases_next(&self) -> Option<u32> {
        self.free.first().map(|(erases, _)| *erases)
    }

    /// Sets the state of a block as a mount or a format knows it, before any unit in it is live.
    pub(crate) fn restore(
        &mut self,
        block: BlockIndex,
        state: BlockState,
        sequence: u32,
        erases: u32,
    ) {
        self.unlink(block);
        self.changed.insert(block.0);
        let entry = &mut self.blocks[block.0 as usize];
        entry.state = state;
        entry.sequence = sequence;
        entry.purpose = None;
        entry.erases = erases;
        self.link(block);
    }

    /// The lives that free blocks began before `sequence` no longer count: a page that did not read
    /// at this mount and reads at a later one is not taken for a new life.
    pub(crate) fn end_lives(&mut self, sequence: u32) {
        for (_, block) in &self.free {
            let entry = &mut self.blocks[*block as usize];
            entry.sequence = entry.sequence.max(sequence.saturating_sub(1));
            self.changed.insert(*block);
        }
    }

    /// A free block was erased and starts a new life.
    pub(crate) fn take(
        &mut self,
        block: BlockIndex,
        purpose: Purpose,
        state: BlockState,
        sequence: u32,
    ) {
        assert_eq!(self.get(block).state, BlockState::Free, "only free blocks are taken");
        assert_eq!(self.get(block).live, 0, "a free block holds nothing live");
        self.unlink(block);
        self.changed.insert(block.0);
        let entry = &mut self.blocks[block.0 as usize];
        entry.state = state;
        entry.is_prepared = false;
        entry.sequence = sequence;
        entry.stuck = false;
        entry.purpose = Some(purpose);
        self.newest = sequence;
        self.link(block);
    }

    /// One more erase of the block.
    pub(crate) fn erased(&mut self, block: BlockIndex) {
        self.unlink(block);
        self.changed.insert(block.0);
        self.blocks[block.0 as usize].erases += 1;
        self.blocks[block.0 as usize].is_reclaimed = false;
        self.link(block);
    }

    /// The block takes no more units.
    pub(crate) fn close(&mut self, block: BlockIndex) {
        assert_eq!(self.get(block).state, BlockState::Open, "only open blocks are closed");
        self.unlink(block);
        self.clock += 1;
        let clock = self.clock;
        let entry = &mut self.blocks[block.0 as usize];
        entry.closed_at = clock;
        entry.is_reclaimed = entry.live == 0;
        entry.state = if entry.live == 0 { BlockState::Free } else { BlockState::Closed };
        if entry.state == BlockState::Free {
            self.note_life(block);
        }
        self.link(block);
        self.report_block(block);
    }

    /// A program failed in the block: it is drained, then marked bad.
    pub(crate) fn retire(&mut self, block: BlockIndex) {
        self.unlink(block);
        self.changed.insert(block.0);
        self.blocks[block.0 as usize].state = BlockState::Retired;
        self.link(block);
    }

    /// The block holds nothing that counts any more (B3).
    pub(crate) fn free(&mut self, block: BlockIndex) {
        assert_eq!(self.get(block).live, 0, "a live unit would be lost");
        self.unlink(block);
        let entry = &mut self.blocks[block.0 as usize];
        entry.state = BlockState::Free;
        entry.replaced_at = entry.replaced_at.max(self.placed_at);
        self.note_life(block);
        self.link(block);
        self.report_block(block);
    }

    /// A life of the block has ended. Short ones count more: a worn block that was to rest and does not
    /// would be taken again and again.
    fn note_life(&mut self, block: BlockIndex) {
        let entry = &mut self.blocks[block.0 as usize];
        let Some(purpose) = entry.purpose.take() else { return };
        let life = self.newest.saturating_sub(entry.sequence);
        let mean = &mut self.lives[purpose as usize];
        let weight = if life < *mean { 3 } else { 1 };
        *mean = (u64::from(*mean) * (16 - weight) + u64::from(life) * weight).div_ceil(16) as u32;
    }

    /// The block is not used again.
    pub(crate) fn set_bad(&mut self, block: BlockIndex) {
        self.unlink(block);
        self.changed.insert(block.0);
        let entry = &mut self.blocks[block.0 as usize];
        (entry.state, entry.is_prepared, entry.is_withheld) = (BlockState::Bad, false, false);
        self.link(block);
    }

    /// The collector cannot read a live unit of the block.
    pub(crate) fn set_stuck(&mut self, block: BlockIndex) {
        self.unlink(block);
        self.blocks[block.0 as usize].stuck = true;
        self.link(block);
    }

    pub(crate) fn is_live(&self, at: u32) -> bool {
        self.live.get(at)
    }

    /// The unit at `at` counts from now on.
    pub(crate) fn add_live(&mut self, at: u32) {
        let block = self.block_of(at);
        if self.live.insert(at) {
            self.unlink(block);
            self.blocks[block.0 as usize].live += 1;
            self.link(block);
        }
    }

    /// The unit at `at` counts no more; a closed block without live units becomes free (B2).
    pub(crate) fn drop_live(&mut self, at: u32) {
        let block = self.block_of(at);
        if !self.live.remove(at) {
            return;
        }
        self.unlink(block);
        let entry = &mut self.blocks[block.0 as usize];
        entry.live -= 1;
        entry.stuck = false;
        entry.replaced_at = entry.replaced_at.max(self.placed_at);
        let was_closed = entry.state == BlockState::Closed;
        if entry.live == 0 && was_closed {
            entry.state = BlockState::Free;
            entry.is_reclaimed = true;
        }
        let is_free = entry.state == BlockState::Free;
        self.link(block);
        if is_free {
            self.note_life(block);
            self.dead.block(self.pages_of(block));
        } else if was_closed {
            self.dead.unit(at, self.pages_of(block).start);
        }
    }

    /// Keeps a list of dead pages from now on, and puts the pages on it that are dead already.
    pub(crate) fn report_dead(&mut self, listed: Listed) {
        self.dead.open(listed);
        for block in (0..self.len()).map(BlockIndex) {
            self.report_block(block);
        }
    }

    /// The block is written again.
    pub(crate) fn withdraw_dead(&mut self, block: BlockIndex) {
        self.dead.withdraw(&self.pages_of(block));
    }

    /// Puts the dead pages of a free or closed block on the list.
    fn report_block(&mut self, block: BlockIndex) {
        let pages = self.pages_of(block);
        match self.get(block).state {
            BlockState::Free => self.dead.block(pages),
            BlockState::Closed => {
                let Some(parts) = self.dead.parts() else { return };
                let units = self.units_per_block() * parts;
                for at in pages.clone().take(units as usize).step_by(parts as usize) {
                    if !self.live.get(at) {
                        self.dead.unit(at, pages.start);
                    }
                }
            }
            _ => {}
        }
    }

    fn pages_of(&self, block: BlockIndex) -> Range<u32> {
        let first = block.0 * self.pages_per_block;
        first..first + self.pages_per_block
    }

    fn units_per_block(&self) -> u32 {
        self.buckets.len() as u32 - 1
    }

    /// Live units of a block, by page number.
    pub(crate) fn live_units(&self, block: BlockIndex) -> impl Iterator<Item = u32> + '_ {
        let first = block.0 * self.pages_per_block;
        (first..first + self.pages_per_block).filter(|at| self.live.get(*at))
    }

    /// Whether the block's entry changed since the last call of `mark_saved` for it.
    pub(crate) fn is_changed(&self, block: BlockIndex) -> bool {
        self.changed.get(block.0)
    }

    pub(crate) fn mark_saved(&mut self, block: BlockIndex) {
        self.changed.remove(block.0);
    }

    /// Bytes of memory.
    pub(crate) fn size(&self) -> usize {
        self.blocks.len() * size_of::<Block>() + self.live.size()
    }

    fn unlink(&mut self, block: BlockIndex) {
        let entry = self.blocks[block.0 as usize];
        self.counts[entry.state as usize] -= 1;
        if entry.state != BlockState::Bad {
            self.erases_total -= u64::from(entry.erases);
        }
        match entry.state {
            BlockState::Free if entry.is_prepared => {
                self.prepared.remove(&block.0);
            }
            BlockState::Free if entry.is_withheld => {
                self.withheld.remove(&block.0);
            }
            BlockState::Free => {
                self.free.remove(&(entry.erases, block.0));
            }
            BlockState::Closed if !entry.stuck => self.leave_bucket(entry),
            _ => {}
        }
    }

    fn leave_bucket(&mut self, entry: Block) {
        let bucket = &mut self.buckets[entry.live as usize];
        bucket.swap_remove(entry.slot as usize);
        if let Some(moved) = bucket.get(entry.slot as usize) {
            self.blocks[*moved as usize].slot = entry.slot;
        }
    }

    fn link(&mut self, block: BlockIndex) {
        let entry = self.blocks[block.0 as usize];
        self.counts[entry.state as usize] += 1;
        if entry.state != BlockState::Bad {
            self.erases_total += u64::from(entry.erases);
        }
        match entry.state {
            BlockState::Free if entry.is_prepared => {
                self.prepared.insert(block.0);
            }
            BlockState::Free if entry.is_withheld => {
                self.withheld.insert(block.0);
            }
            BlockState::Free => {
                self.free.insert((entry.erases, block.0));
            }
            BlockState::Closed if !entry.stuck => {
                let bucket = &mut self.buckets[entry.live as usize];
                self.blocks[block.0 as usize].slot = bucket.len() as u32;
                bucket.push(block.0);
            }
            _ => {}
        }
    }
}
