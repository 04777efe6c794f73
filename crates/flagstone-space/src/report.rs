//! Reports of a space: counters, wear.

use alloc::vec::Vec;

use flagstone_nand::Nand;

use crate::blocks::BlockState;
use crate::space::Space;
use crate::stats::{Bill, BlockReport, EraseCounts, SpaceStats, Tally};

impl<D: Nand> Space<D> {
    /// Counters since the space was made, mounted or last reset, and its state now.
    #[must_use]
    pub fn stats(&self) -> SpaceStats {
        let tally = &self.flash.tally;
        SpaceStats {
            programs_by_cause: tally.programs,
            bytes_by_cause: tally.bytes,
            reads_by_purpose: tally.reads,
            gc_migrations: tally.gc_migrations,
            gc_merges: tally.gc_merges,
            gc_victims: tally.gc_victims,
            gc_time_ns: self.flash.busy.collection_ns,
            erases: tally.erases,
            scrubs: tally.scrubs,
            delta_appends: tally.delta_appends,
            checkpoints: tally.checkpoints,
            live_pages: self.map.mapped_count(),
            capacity_pages: self.capacity_pages(),
            free_blocks: self.blocks.free_count(),
            bad_blocks: self.lost_blocks(),
            erase_count: self.erase_counts(),
            frozen_pages: self.frozen.only_count(),
            mapping_bytes: self.mapping_bytes(),
            by_region: tally.regions.clone(),
        }
    }

    /// Programs and erases since the space was made or mounted; cheaper than all counters.
    #[must_use]
    pub fn bill(&self) -> Bill {
        self.flash.tally.bill()
    }

    /// Logical pages with a valid version.
    #[must_use]
    pub fn live_pages(&self) -> u32 {
        self.map.mapped_count()
    }

    /// Pages that take room: logical pages that have a version or were given out by [`Space::allocate`], and
    /// versions that frozen mappings alone point to.
    #[must_use]
    pub fn taken_pages(&self) -> u32 {
        self.map.taken_count() + self.frozen.only_count()
    }

    /// Memory of the mapping and the block table, in bytes.
    #[must_use]
    pub fn mapping_bytes(&self) -> usize {
        self.map.size() + self.blocks.size() + self.frozen.size()
    }

    /// Starts counting anew.
    pub fn reset_stats(&mut self) {
        self.flash.tally = Tally::default();
        self.flash.busy.collection_ns = 0;
    }

    fn erase_counts(&self) -> EraseCounts {
        let good = self.blocks.iter().filter(|(_, block)| block.state != BlockState::Bad);
        let (mut counts, mut blocks, mut sum) =
            (EraseCounts { min: u32::MAX, mean: 0.0, max: 0 }, 0_u32, 0_u64);
        for (_, block) in good {
            counts.min = counts.min.min(block.erases);
            counts.max = counts.max.max(block.erases);
            sum += u64::from(block.erases);
            blocks += 1;
        }
        if blocks == 0 {
            return EraseCounts::default();
        }
        counts.mean = sum as f64 / f64::from(blocks);
        counts
    }

    /// One line a block, for a picture of wear.
    #[must_use]
    pub fn block_report(&self) -> Vec<BlockReport> {
        let line = |(block, entry): (_, &crate::blocks::Block)| BlockReport {
            block,
            state: entry.state,
            live: entry.live,
            erases: entry.erases,
        };
        self.blocks.iter().map(line).collect()
    }
}
