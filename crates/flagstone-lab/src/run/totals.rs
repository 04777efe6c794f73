//! Counters at one moment, and the report of the stretch between two moments.

use flagstone_engine::EngineStats;
use flagstone_nand::{Counters, Nand, SsdCounters};
use flagstone_space::{Cause, RegionId, RegionStats, SpaceStats};
use std::collections::BTreeMap;

use super::{EraseCount, Memory, ProgramsByCause, RegionRun, TranslationRun};

/// Counters of all floors at one moment, or between two (rule R1).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// Counters of the device.
    pub device: Counters,
    /// Counters of a drive's translation layer; none on chips.
    pub translation: Option<SsdCounters>,
    /// Programs by cause, in the order of [`Cause::ALL`].
    pub programs_by_cause: [u64; 7],
    /// Pages moved by collection.
    pub gc_migrations: u64,
    /// Blocks emptied by collection.
    pub gc_victims: u64,
    /// Time that dies worked for collection.
    pub gc_time_ns: u64,
    /// Bytes that transactions changed.
    pub user_bytes: u64,
    /// Bytes of log records.
    pub log_bytes: u64,
    /// Pages found in memory.
    pub pool_hits: u64,
    /// Pages read.
    pub pool_misses: u64,
    /// Leaves that operations asked for, and of these, the ones that had to be read.
    pub leaf_references: [u64; 2],
    /// Writes, moves, reads and appends of each region.
    pub regions: Vec<[u64; 4]>,
}

impl Totals {
    /// Counters as they stand.
    #[must_use]
    pub fn of(device: &impl Nand, space: &SpaceStats, engine: &EngineStats) -> Self {
        let of_region = |one: &RegionStats| [one.writes, one.moves, one.reads, one.appends];
        let regions = space.by_region.iter().map(of_region);
        Self {
            device: device.counters(),
            translation: device.translation(),
            programs_by_cause: space.programs_by_cause,
            gc_migrations: space.gc_migrations,
            gc_victims: space.gc_victims,
            gc_time_ns: space.gc_time_ns,
            user_bytes: engine.user_bytes,
            log_bytes: engine.log_bytes,
            pool_hits: engine.pool_hits,
            pool_misses: engine.pool_misses,
            leaf_references: [engine.leaf_references, engine.leaf_misses],
            regions: regions.collect(),
        }
    }

    /// Counters since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.combine(earlier, u64::saturating_sub)
    }

    /// The sum of two stretches.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.combine(other, u64::saturating_add)
    }

    /// Programs, whole and partial.
    #[must_use]
    pub fn programs(&self) -> u64 {
        self.device.page_programs + self.device.partial_programs
    }

    /// Programs charged to `cause`.
    #[must_use]
    pub fn programs_of(&self, cause: Cause) -> u64 {
        self.programs_by_cause.get(cause as usize).copied().unwrap_or(0)
    }

    /// Programs by cause, as reported.
    #[must_use]
    pub fn causes(&self) -> ProgramsByCause {
        ProgramsByCause {
            log: self.programs_of(Cause::Log),
            data: self.programs_of(Cause::Data),
            delta: self.programs_of(Cause::Delta),
            flag: self.programs_of(Cause::Flag),
            metadata: self.programs_of(Cause::Metadata),
            relocation: self.programs_of(Cause::Relocation),
            wear: self.programs_of(Cause::Wear),
        }
    }

    /// The drive's own work, as reported.
    #[must_use]
    pub fn translation_run(&self) -> Option<TranslationRun> {
        self.translation.map(|counters| TranslationRun {
            host_reads: counters.host_reads,
            host_writes: counters.host_writes,
            trims: counters.trims,
            gc_programs: counters.gc_programs,
            erases: counters.erases,
            appends: counters.appends,
        })
    }

    /// Regions, as reported: by number, with the tables that stand there.
    #[must_use]
    pub fn by_region(&self, tables: &[(String, RegionId)]) -> BTreeMap<String, RegionRun> {
        let regions = self.regions.iter().copied().enumerate();
        let report = |(number, [writes, moves, reads, appends]): (usize, [u64; 4])| {
            let there = tables.iter().filter(|(_, region)| usize::from(region.0) == number);
            let tables = there.map(|(name, _)| name.clone()).collect();
            (number.to_string(), RegionRun { tables, writes, appends, moves, reads })
        };
        regions.map(report).collect()
    }

    fn combine(&self, other: &Self, with: impl Fn(u64, u64) -> u64) -> Self {
        let mut regions = self.regions.clone();
        regions.resize(regions.len().max(other.regions.len()), [0; 4]);
        for (one, two) in regions.iter_mut().zip(&other.regions) {
            *one = zip(*one, *two, &with);
        }
        Self {
            device: combine_device(&self.device, &other.device, &with),
            translation: self.translation.map(|one| {
                combine_translation(&one, &other.translation.unwrap_or_default(), &with)
            }),
            programs_by_cause: zip(self.programs_by_cause, other.programs_by_cause, &with),
            gc_migrations: with(self.gc_migrations, other.gc_migrations),
            gc_victims: with(self.gc_victims, other.gc_victims),
            gc_time_ns: with(self.gc_time_ns, other.gc_time_ns),
            user_bytes: with(self.user_bytes, other.user_bytes),
            log_bytes: with(self.log_bytes, other.log_bytes),
            pool_hits: with(self.pool_hits, other.pool_hits),
            pool_misses: with(self.pool_misses, other.pool_misses),
            leaf_references: zip(self.leaf_references, other.leaf_references, &with),
            regions,
        }
    }
}

fn combine_device(one: &Counters, two: &Counters, with: &impl Fn(u64, u64) -> u64) -> Counters {
    Counters {
        page_reads: with(one.page_reads, two.page_reads),
        page_programs: with(one.page_programs, two.page_programs),
        partial_programs: with(one.partial_programs, two.partial_programs),
        block_erases: with(one.block_erases, two.block_erases),
        bytes_programmed: with(one.bytes_programmed, two.bytes_programmed),
        bytes_read: with(one.bytes_read, two.bytes_read),
        syncs: with(one.syncs, two.syncs),
        bytes_discarded: with(one.bytes_discarded, two.bytes_discarded),
        corrected_bits: with(one.corrected_bits, two.corrected_bits),
    }
}

fn combine_translation(
    one: &SsdCounters,
    two: &SsdCounters,
    with: &impl Fn(u64, u64) -> u64,
) -> SsdCounters {
    SsdCounters {
        host_reads: with(one.host_reads, two.host_reads),
        host_writes: with(one.host_writes, two.host_writes),
        trims: with(one.trims, two.trims),
        gc_programs: with(one.gc_programs, two.gc_programs),
        erases: with(one.erases, two.erases),
        appends: with(one.appends, two.appends),
    }
}

fn zip<const N: usize>(one: [u64; N], two: [u64; N], with: &impl Fn(u64, u64) -> u64) -> [u64; N] {
    std::array::from_fn(|index| with(one[index], two[index]))
}

impl EraseCount {
    /// Spread of the erase counts of `device`'s blocks.
    #[must_use]
    pub fn of_device(device: &impl Nand) -> Self {
        Self::of(device.geometry().blocks().map(|block| device.erase_count(block)))
    }
}

impl Memory {
    /// Peaks that the floors report.
    #[must_use]
    pub fn of(space: &SpaceStats, engine: &EngineStats) -> Self {
        Self {
            bases: engine.memory.bases as u64,
            deltas: engine.memory.deltas as u64,
            mapping: space.mapping_bytes as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_is_the_difference_of_its_ends() {
        let earlier = Totals { gc_migrations: 3, regions: vec![[1, 1, 1, 0]], ..Totals::default() };
        let mut later = earlier.clone();
        later.gc_migrations = 10;
        later.regions = vec![[5, 2, 1, 4], [7, 0, 0, 0]];
        later.device.page_programs = 4;
        let stretch = later.since(&earlier);
        assert_eq!(stretch.gc_migrations, 7);
        assert_eq!(stretch.regions, [[4, 1, 0, 4], [7, 0, 0, 0]]);
        assert_eq!(stretch.programs(), 4);
        assert_eq!(earlier.plus(&stretch), later);
    }
}
