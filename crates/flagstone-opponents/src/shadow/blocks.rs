//! The block table of a store of shadow pages.
//!
//! Owns states, live counts, the free pool of each die and the buckets that the collector picks
//! from. Never touches the device.
//!
//! B1. A closed block is in the bucket of its live count, unless it is stuck.
//! B2. A free block that was not erased in this session is erased before it is programmed.
//! B3. A block that was not erased in this session takes flags only once it was looked at: its erase
//!     may have been cut.
//!
//! ```text
//!        take           close            collected
//!  Free ──────▶ Open ─────────▶ Closed ────────────▶ Free
//!    └──────── erase or mark failed ──────┴────────▶ Bad
//! ```

use std::collections::BTreeSet;

use flagstone_nand::{BlockIndex, Geometry};

use flagstone_space::{BlockReport, BlockState};

/// Use of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Holds no unit that counts; `clean` when it was erased in this session (B2).
    Free {
        clean: bool,
    },
    Open,
    Closed,
    Bad,
}

/// Whether programmed pages of a block may be programmed again (B3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cells {
    /// Not looked at since the mount.
    Unknown,
    /// No erase was cut here.
    Sound,
    /// An erase was cut here.
    Spent,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    state: State,
    cells: Cells,
    /// Position within its bucket.
    slot: u32,
    live: u16,
    /// Holds a live unit that cannot be read: never a victim.
    stuck: bool,
}

/// Candidates of one bucket that are compared by wear.
const WEAR_SAMPLE: usize = 16;

/// The block table.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    blocks: Vec<Block>,
    /// Free blocks of each die, the least worn first.
    free: Vec<BTreeSet<(u32, u32)>>,
    free_count: u32,
    buckets: Vec<Vec<u32>>,
    erases: Vec<u32>,
}

impl Blocks {
    pub(super) fn new(geometry: &Geometry, units_per_block: u32) -> Self {
        let cells = Cells::Unknown;
        let block = Block { state: State::Bad, cells, slot: 0, live: 0, stuck: false };
        Self {
            blocks: vec![block; geometry.block_count as usize],
            free: vec![BTreeSet::new(); geometry.die_count as usize],
            free_count: 0,
            buckets: vec![Vec::new(); units_per_block as usize + 1],
            erases: vec![0; geometry.block_count as usize],
        }
    }

    pub(super) fn state(&self, block: BlockIndex) -> State {
        self.blocks[block.0 as usize].state
    }

    pub(super) fn live(&self, block: BlockIndex) -> u32 {
        self.blocks[block.0 as usize].live.into()
    }

    pub(super) fn cells(&self, block: BlockIndex) -> Cells {
        self.blocks[block.0 as usize].cells
    }

    pub(super) fn set_cells(&mut self, block: BlockIndex, cells: Cells) {
        self.blocks[block.0 as usize].cells = cells;
    }

    pub(super) fn erases(&self, block: BlockIndex) -> u32 {
        self.erases[block.0 as usize]
    }

    pub(super) const fn free_count(&self) -> u32 {
        self.free_count
    }

    /// One line a block, for a picture of the device.
    pub(super) fn report(&self) -> Vec<BlockReport> {
        let line = |((number, block), erases): ((u32, &Block), &u32)| BlockReport {
            block: BlockIndex(number),
            state: match block.state {
                State::Free { .. } => BlockState::Free,
                State::Open => BlockState::Open,
                State::Closed => BlockState::Closed,
                State::Bad => BlockState::Bad,
            },
            live: block.live.into(),
            erases: *erases,
        };
        (0..).zip(&self.blocks).zip(&self.erases).map(line).collect()
    }

    /// Blocks that are not bad.
    pub(super) fn good_count(&self) -> u32 {
        self.blocks.iter().filter(|block| block.state != State::Bad).count() as u32
    }

    /// Bytes of memory.
    pub(super) fn size(&self) -> usize {
        self.blocks.len() * (size_of::<Block>() + 4) + self.free_count as usize * 8
    }

    /// Takes note of an erase.
    pub(super) fn erased(&mut self, block: BlockIndex, erases: u32) {
        self.unlink(block);
        self.erases[block.0 as usize] = erases;
        self.link(block);
    }

    pub(super) fn set_state(&mut self, block: BlockIndex, state: State) {
        self.unlink(block);
        self.blocks[block.0 as usize].state = state;
        if state == (State::Free { clean: true }) {
            self.blocks[block.0 as usize].cells = Cells::Sound;
        }
        if !matches!(state, State::Open | State::Closed) {
            self.blocks[block.0 as usize].live = 0;
            self.blocks[block.0 as usize].stuck = false;
        }
        self.link(block);
    }

    /// A unit of the block counts from now on.
    pub(super) fn add_live(&mut self, block: BlockIndex) {
        self.unlink(block);
        self.blocks[block.0 as usize].live += 1;
        self.link(block);
    }

    /// A unit of the block counts no more.
    pub(super) fn drop_live(&mut self, block: BlockIndex) {
        self.unlink(block);
        let entry = &mut self.blocks[block.0 as usize];
        debug_assert!(entry.live > 0, "a unit dies once");
        entry.live = entry.live.saturating_sub(1);
        entry.stuck = false;
        self.link(block);
    }

    pub(super) fn set_stuck(&mut self, block: BlockIndex) {
        self.unlink(block);
        self.blocks[block.0 as usize].stuck = true;
        self.link(block);
    }

    /// Least worn free block of a die.
    pub(super) fn free_on(&self, die: u32) -> Option<BlockIndex> {
        self.free.get(die as usize)?.first().map(|(_, block)| BlockIndex(*block))
    }

    /// Most worn free block of a die, for units that will stay.
    pub(super) fn worn_on(&self, die: u32) -> Option<BlockIndex> {
        self.free.get(die as usize)?.last().map(|(_, block)| BlockIndex(*block))
    }

    /// Closed block with the fewest live units; of a sample of such blocks, the least worn.
    pub(super) fn victim(&self) -> Option<BlockIndex> {
        let bucket = self.buckets.iter().find(|bucket| !bucket.is_empty())?;
        let sample = bucket.iter().rev().take(WEAR_SAMPLE);
        let least = sample.min_by_key(|block| (self.erases[**block as usize], **block));
        least.map(|block| BlockIndex(*block))
    }

    fn unlink(&mut self, block: BlockIndex) {
        let entry = self.blocks[block.0 as usize];
        match entry.state {
            State::Free { .. } => {
                let die = block.0 as usize % self.free.len();
                self.free[die].remove(&(self.erases[block.0 as usize], block.0));
                self.free_count -= 1;
            }
            State::Closed if !entry.stuck => {
                let bucket = &mut self.buckets[usize::from(entry.live)];
                bucket.swap_remove(entry.slot as usize);
                if let Some(moved) = bucket.get(entry.slot as usize) {
                    self.blocks[*moved as usize].slot = entry.slot;
                }
            }
            _ => {}
        }
    }

    fn link(&mut self, block: BlockIndex) {
        let entry = self.blocks[block.0 as usize];
        match entry.state {
            State::Free { .. } => {
                let die = block.0 as usize % self.free.len();
                self.free[die].insert((self.erases[block.0 as usize], block.0));
                self.free_count += 1;
            }
            State::Closed if !entry.stuck => {
                let bucket = &mut self.buckets[usize::from(entry.live)];
                self.blocks[block.0 as usize].slot = bucket.len() as u32;
                bucket.push(block.0);
            }
            _ => {}
        }
    }
}
