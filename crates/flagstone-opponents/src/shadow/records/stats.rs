//! Counters of a store.

use flagstone_nand::Nand;

use flagstone_space::{BlockReport, BlockState};

use super::{LogicalPage, NOWHERE, RecordStore, Work, WorkTally};

/// Counters of a store since it was made or mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordStats {
    /// Versions written for the engine.
    pub host_writes: u64,
    /// Versions read for the engine.
    pub host_reads: u64,
    /// Flags programmed by commits.
    pub flags_commit: u64,
    /// Flags programmed by collection.
    pub flags_collection: u64,
    /// Versions moved by collection.
    pub relocations: u64,
    /// Blocks collected.
    pub collections: u64,
    /// Most transactions that one version carried.
    pub shared_max: u64,
    /// Most versions of one page that were needed at a time.
    pub chain_max: u64,
    /// Flags replaced by a line in the verdict (R6).
    pub testified: u64,
    /// Pages of the log programmed.
    pub log_programs: u64,
    /// Operations for hosts, pages of the log apart.
    pub host: WorkTally,
    /// Operations for collection.
    pub collection: WorkTally,
    /// Operations for restart.
    pub restart: WorkTally,
    /// Free blocks now.
    pub free_blocks: u32,
    /// Blocks of the log now.
    pub log_blocks: u32,
    /// Logical pages with a version now.
    pub mapped_pages: u32,
    /// Bytes of all tables.
    pub tables_size: usize,
}

impl<D: Nand> RecordStore<D> {
    /// Counters, and sizes as they are now.
    #[must_use]
    pub fn stats(&self) -> RecordStats {
        let counts = self.counts;
        let units = self.units.values().map(|unit| 40 + 8 * unit.members.len()).sum::<usize>();
        let olds = self.olds.values().map(|olds| 12 + 4 * olds.len()).sum::<usize>();
        RecordStats {
            host_writes: counts.host_writes,
            host_reads: counts.host_reads,
            flags_commit: counts.flags_commit,
            flags_collection: counts.flags_collection,
            relocations: counts.relocations,
            collections: counts.collections,
            shared_max: counts.shared_max,
            chain_max: counts.chain_max,
            testified: counts.testified,
            log_programs: self.flash.log_programs,
            host: self.flash.tally(Work::Host),
            collection: self.flash.tally(Work::Collection),
            restart: self.flash.tally(Work::Restart),
            free_blocks: self.blocks.free_count(),
            log_blocks: self.log.block_count(),
            mapped_pages: self.map.iter().filter(|at| **at != NOWHERE).count() as u32,
            tables_size: self.map.len() * 12
                + units
                + olds
                + self.table.size()
                + self.blocks.size(),
        }
    }

    /// One line a block, for a picture of the device; live are units.
    #[must_use]
    pub fn block_report(&self) -> Vec<BlockReport> {
        let mut report = self.blocks.report();
        for block in self.log.blocks() {
            if let Some(line) = report.get_mut(block.0 as usize) {
                line.state = BlockState::Log;
            }
        }
        report
    }

    /// Logical pages with a version, ascending.
    pub fn mapped_pages(&self) -> impl Iterator<Item = LogicalPage> + '_ {
        let numbered = (0..).zip(&self.map);
        numbered.filter(|(_, at)| **at != NOWHERE).map(|(number, _)| LogicalPage(number))
    }
}
