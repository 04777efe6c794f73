//! How large a chip a workload needs, in closed form.
//!
//! Owns the arithmetic: live pages at the end of the run over pages of the data region = fill. The
//! log's region and the anchors come on top.
//!
//! - **Z1** The same workload, memory and fill give the same chip for every preset that writes as
//!   many pages a transaction.
//! - **Z2** The history that warm-up and window add is part of the live pages, because it is live
//!   when the run ends.
//! - **Z3** A warm-up of three overwrites adds history in proportion to the chip; the chip is the
//!   fixed point of the two.

use crate::bench::{Job, Warmup};
use crate::workload::Workload;

/// How often `Warmup::Auto` overwrites the data region.
pub const OVERWRITES: f64 = 3.0;

/// Bytes of a node's header and its fences.
const NODE_OVERHEAD: u32 = 20 + 2 * 16;
/// Bytes of an inner node for each child: 12, in nodes two thirds full.
const CHILD_SIZE: f64 = 12.0 * 1.5;

/// Contents of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Rows.
    pub rows: u64,
    /// Bytes of an entry in a leaf.
    pub entry_size: u32,
    /// Places at which rows are appended; the last leaf of each is half full on average.
    pub edges: u32,
}

/// Shape of the pages on which the workload is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PageShape {
    /// Bytes of a logical page that nodes may use.
    pub payload_size: u32,
    /// Physical pages of a logical page.
    pub parts: u32,
    /// Physical pages of a block.
    pub pages_per_block: u32,
}

/// Blocks that come on top of the data region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedBlocks {
    /// Blocks of the log.
    pub log: u32,
    /// Blocks of the anchor ring.
    pub ring: u32,
}

/// Properties of an engine that the arithmetic cannot know; a first run corrects them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Pages that a transaction programs, relocation and log included.
    pub programs_per_txn: f64,
    /// Live pages for each page that full leaves would take.
    pub live_ratio: f64,
}

impl Estimate {
    /// A first guess on the safe side: an engine that programs less warms up longer, and its
    /// history must find room. Clients share log programs, but never all programs.
    #[must_use]
    pub fn for_clients(clients: u32) -> Self {
        let programs_per_txn = (1.1 / f64::from(clients.max(1)).powf(0.45)).max(0.3);
        Self { programs_per_txn, live_ratio: 1.0 }
    }
}

/// A chip that fits a workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChipSize {
    /// Live physical pages at the end of the run.
    pub live_pages: u64,
    /// Blocks of the data region.
    pub data_blocks: u32,
    /// Pages of a block.
    pub pages_per_block: u32,
    /// Blocks on top.
    pub fixed: FixedBlocks,
    /// Transactions of warm-up and window together, as far as they can be told beforehand.
    pub txns: u64,
}

impl ChipSize {
    /// Physical pages of the data region.
    #[must_use]
    pub fn data_pages(&self) -> u64 {
        u64::from(self.data_blocks) * u64::from(self.pages_per_block)
    }

    /// Blocks of the chip.
    #[must_use]
    pub fn block_count(&self) -> u32 {
        self.data_blocks + self.fixed.log + self.fixed.ring
    }

    /// A chip that is used as it is.
    #[must_use]
    pub(crate) fn whole(block_count: u32, shape: &PageShape, txns: u64) -> Self {
        let pages_per_block = shape.pages_per_block;
        let fixed = FixedBlocks { log: 0, ring: 0 };
        let live_pages = u64::from(block_count) * u64::from(pages_per_block);
        Self { live_pages, data_blocks: block_count, pages_per_block, fixed, txns }
    }

    /// The chip for a benchmark, as far as `estimate` is right.
    #[must_use]
    pub(crate) fn of(
        Job { config, workload }: Job<'_, impl Workload>,
        shape: &PageShape,
        fixed: FixedBlocks,
        estimate: &Estimate,
    ) -> Self {
        let txns = |data_pages: f64| match config.warmup {
            Warmup::None => config.txns,
            Warmup::Txns(warmup) => config.txns + warmup,
            Warmup::Auto => {
                config.txns + (OVERWRITES * data_pages / estimate.programs_per_txn.max(0.05)) as u64
            }
        };
        let pages_per_block = shape.pages_per_block;
        let mut size =
            Self { live_pages: 0, data_blocks: 0, pages_per_block, fixed, txns: config.txns };
        // Rule Z3: each round adds the history of the last one; the steps shrink geometrically.
        const ROUNDS: u32 = 64;
        for _ in 0..ROUNDS {
            let full = live_pages(&workload.contents(size.txns, config.clients), shape);
            size.live_pages = (full as f64 * estimate.live_ratio) as u64;
            let data_pages = size.live_pages as f64 / config.fill;
            let data_blocks = (data_pages / f64::from(shape.pages_per_block)).ceil() as u32;
            if data_blocks == size.data_blocks {
                break;
            }
            size.data_blocks = data_blocks;
            size.txns = txns(data_pages);
        }
        size
    }
}

/// Physical pages that hold `contents`.
#[must_use]
pub fn live_pages(contents: &[Content], shape: &PageShape) -> u64 {
    let leaf_count: u64 = contents
        .iter()
        .map(|one| leaves(one.rows, one.entry_size, shape) + u64::from(one.edges) / 2)
        .sum();
    let inner = (leaf_count as f64 * CHILD_SIZE / f64::from(shape.payload_size)).ceil() as u64;
    (leaf_count + inner) * u64::from(shape.parts)
}

/// Full leaves for `rows` entries of `entry_size` bytes.
fn leaves(rows: u64, entry_size: u32, shape: &PageShape) -> u64 {
    let room = shape.payload_size.saturating_sub(NODE_OVERHEAD);
    rows.div_ceil(u64::from((room / entry_size).max(1)))
}

#[cfg(test)]
mod tests;
