//! Counters of a store.

use flagstone_nand::Nand;

use super::flash::{Work, WorkTally};
use super::{ShadowStore, note::NOWHERE};
use flagstone_space::{BlockReport, LogicalPage};

/// Events that the tallies of operations do not tell.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) host_writes: u64,
    pub(super) host_reads: u64,
    pub(super) commits: u64,
    pub(super) aborts: u64,
    pub(super) flags_commit: u64,
    pub(super) flags_collection: u64,
    pub(super) flags_restart: u64,
    pub(super) relocations: u64,
    pub(super) collections: u64,
    pub(super) forced_collections: u64,
    pub(super) collection_ns: u64,
}

/// Counters of a store since it was made or mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShadowStats {
    /// Logical pages written for hosts.
    pub host_writes: u64,
    /// Logical pages read for hosts, from flash.
    pub host_reads: u64,
    /// Transactions committed.
    pub commits: u64,
    /// Transactions aborted.
    pub aborts: u64,
    /// Flags programmed by commits.
    pub flags_commit: u64,
    /// Flags programmed by collection.
    pub flags_collection: u64,
    /// Flags programmed by restart.
    pub flags_restart: u64,
    /// Logical pages moved by collection.
    pub relocations: u64,
    /// Blocks collected.
    pub collections: u64,
    /// Of these, blocks erased because a page was to be written again (SCC).
    pub forced_collections: u64,
    /// Time from the start of each collection to its last command, summed.
    pub collection_ns: u64,
    /// Operations for hosts.
    pub host: WorkTally,
    /// Operations for collection.
    pub collection: WorkTally,
    /// Operations for restart.
    pub restart: WorkTally,
    /// Pages held back in memory now (SCC, BPCC).
    pub held_back_pages: u64,
    /// Free blocks now.
    pub free_blocks: u32,
    /// Logical pages with a committed version now.
    pub mapped_pages: u32,
    /// Bytes of the mapping.
    pub mapping_size: usize,
    /// Bytes of the table of versions (BPCC).
    pub version_table_size: usize,
    /// Bytes of records kept for others (SCC, BPCC).
    pub record_table_size: usize,
    /// Bytes of the transaction table.
    pub transaction_table_size: usize,
    /// Bytes of the block table.
    pub block_table_size: usize,
}

impl<D: Nand> ShadowStore<D> {
    /// Counters, and sizes as they are now.
    #[must_use]
    pub fn stats(&self) -> ShadowStats {
        let counts = self.counts;
        let (held_back_pages, transaction_table_size) = self.table.sizes();
        let (version_table_size, record_table_size) = self.cycles.sizes();
        ShadowStats {
            host_writes: counts.host_writes,
            host_reads: counts.host_reads,
            commits: counts.commits,
            aborts: counts.aborts,
            flags_commit: counts.flags_commit,
            flags_collection: counts.flags_collection,
            flags_restart: counts.flags_restart,
            relocations: counts.relocations,
            collections: counts.collections,
            forced_collections: counts.forced_collections,
            collection_ns: counts.collection_ns,
            host: self.flash.tally(Work::Host),
            collection: self.flash.tally(Work::Collection),
            restart: self.flash.tally(Work::Restart),
            held_back_pages,
            free_blocks: self.blocks.free_count(),
            mapped_pages: self.map.iter().filter(|at| **at != NOWHERE).count() as u32,
            mapping_size: self.map.len() * size_of::<u32>(),
            version_table_size,
            record_table_size,
            transaction_table_size,
            block_table_size: self.blocks.size(),
        }
    }
}

impl<D: Nand> ShadowStore<D> {
    /// One line a block, for a picture of the device; live are units.
    #[must_use]
    pub fn block_report(&self) -> Vec<BlockReport> {
        self.blocks.report()
    }

    /// Logical pages with a committed version, ascending.
    pub fn mapped_pages(&self) -> impl Iterator<Item = LogicalPage> + '_ {
        let numbered = (0..).zip(&self.map);
        numbered.filter(|(_, at)| **at != NOWHERE).map(|(number, _)| LogicalPage(number))
    }
}
