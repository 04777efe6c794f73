//! The run object: the report of every measured run, under the same keys everywhere.
//!
//! Owns the form of the report and how figures follow from counters; never counts anything itself.
//!
//! - **R1** Counters cover the measured window only: they are differences of [`Totals`] taken at
//!   its two ends. Peaks of memory cover the whole run.
//! - **R2** Equal seeds on the simulator give equal objects but for `wall_s` and `cpu_s`.
//! - **R3** Every option that shaped the run is in `config`, so that the object can be repeated.

mod config;
mod totals;

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

pub use config::{Observed, RunConfig};
pub use totals::Totals;

/// Report of one measured run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Transactions whose commit became durable.
    pub commits: u64,
    /// Transactions that ended without a commit.
    pub aborts: u64,
    /// Transactions begun again after a deadlock.
    pub restarts: u64,
    /// Length of the window in seconds: device time in the lab, wall time otherwise.
    pub elapsed_s: f64,
    /// Wall time of the window in seconds.
    pub wall_s: f64,
    /// Processor time of the window in seconds, on the simulator under Linux.
    #[serde(skip)]
    pub cpu_s: Option<f64>,
    /// Commits per second of `elapsed_s`.
    pub tps: f64,
    /// Time from a transaction's first begin to its durable commit.
    pub latency_us: Latency,
    /// Mean time from asking for a commit to its being durable, in microseconds.
    #[serde(skip)]
    pub commit_wait_us: f64,
    /// Bytes of keys and values that transactions changed.
    pub user_bytes: u64,
    /// Bytes of log records.
    pub log_bytes: u64,
    /// Reads of a physical page, whole or part.
    pub page_reads: u64,
    /// Programs of a whole physical page, relocation included.
    pub page_programs: u64,
    /// Programs of part of a page.
    pub partial_programs: u64,
    /// Block erases.
    pub block_erases: u64,
    /// Live pages that garbage collection moved.
    pub gc_migrations: u64,
    /// Blocks that garbage collection emptied. Not in the run object.
    #[serde(skip)]
    pub gc_victims: u64,
    /// Time that dies worked for garbage collection, its erases included and every wait left out.
    pub gc_time_s: f64,
    /// Bytes transferred by programs.
    pub bytes_programmed: u64,
    /// Bytes programmed for each byte of the user.
    pub write_amplification: f64,
    /// Appends to programmed pages.
    pub delta_appends: u64,
    /// Data pages written to a new place.
    pub out_of_place_writes: u64,
    /// Pages found in memory.
    pub pool_hits: u64,
    /// Pages read from the device.
    pub pool_misses: u64,
    /// Leaves that operations asked for, as far as the engine counts them. Not in the run object.
    #[serde(skip)]
    pub leaf_references: u64,
    /// Of these leaves, the ones for which a page had to be read. Not in the run object.
    #[serde(skip)]
    pub leaf_misses: u64,
    /// Erase counts of the blocks at the end.
    pub erase_count: EraseCount,
    /// Transactions until the blocks reach their rated endurance, with perfect wear levelling:
    /// endurance × blocks × commits / erases. None when nothing was erased.
    pub lifetime_txns: Option<u64>,
    /// Restart after the run, where it was measured.
    pub recovery: Option<Recovery>,
    /// Peaks of memory in bytes.
    pub memory: Memory,
    /// Programs by their cause.
    pub programs_by_cause: ProgramsByCause,
    /// Counters of a drive's translation layer; none on chips. The drive's own page programs, reads
    /// and erases are in the fields above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub translation: Option<TranslationRun>,
    /// Whether the window is steady, by the rule of [`crate::steady`].
    pub steady: bool,
    /// Counters of each region.
    pub by_region: BTreeMap<String, RegionRun>,
    /// Counters of each class of transactions.
    pub by_class: BTreeMap<String, ClassRun>,
    /// Everything that shaped the run.
    pub config: RunConfig,
}

/// Several runs, one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Runs {
    /// In the order in which they ran.
    pub runs: Vec<Run>,
}

/// Percentiles of latency in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half of the transactions were as fast.
    pub p50: f64,
    /// 99 % were as fast.
    pub p99: f64,
    /// 99.9 % were as fast.
    pub p999: f64,
}

/// Spread of erase counts over the blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EraseCount {
    /// Least worn block.
    pub min: u32,
    /// Mean.
    pub mean: f64,
    /// Most worn block.
    pub max: u32,
}

/// Cost of a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recovery {
    /// Physical pages read.
    pub pages_read: u64,
    /// Physical pages written.
    pub pages_written: u64,
    /// Of these, data pages: redone or undone on flash; neither log nor mapping.
    #[serde(default)]
    pub data_pages_written: u64,
    /// Changes undone.
    #[serde(default)]
    pub changes_undone: u64,
    /// Log pages copied because they may have been in flight.
    pub log_pages_copied: u64,
    /// Device time in the lab, wall time otherwise.
    pub time_s: f64,
    /// The same restart by another way, where the engine knows one: from every page's spare area.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_scan: Option<Scan>,
}

/// Cost of a restart from every page's spare area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scan {
    /// Physical pages read, or their spare areas.
    pub pages_read: u64,
    /// Device time.
    pub time_s: f64,
}

/// Peaks of memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Page frames.
    pub bases: u64,
    /// Deltas, committed and not.
    pub deltas: u64,
    /// Mapping of logical to physical pages.
    pub mapping: u64,
}

/// Programs, whole and partial, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramsByCause {
    /// Redo log.
    pub log: u64,
    /// Merged, spilled and out-of-line pages.
    pub data: u64,
    /// Appends.
    pub delta: u64,
    /// Commit flags.
    pub flag: u64,
    /// Anchors, mapping, summaries.
    pub metadata: u64,
    /// Garbage collection, scrubbing, retirement.
    pub relocation: u64,
    /// Wear levelling.
    pub wear: u64,
}

/// Work of a drive's translation layer, in pages of its mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TranslationRun {
    /// Pages that the host read.
    pub host_reads: u64,
    /// Pages that the host wrote.
    pub host_writes: u64,
    /// Pages that the host trimmed.
    pub trims: u64,
    /// Pages that the drive's collection moved.
    pub gc_programs: u64,
    /// Blocks that the drive erased.
    pub erases: u64,
    /// Pages that the host wrote again and that the drive programmed in place.
    #[serde(default)]
    pub appends: u64,
}

/// Counters of one region: logical pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionRun {
    /// Tables that stand there at the end.
    #[serde(default)]
    pub tables: Vec<String>,
    /// Pages written.
    pub writes: u64,
    /// Appends made instead.
    #[serde(default)]
    pub appends: u64,
    /// Pages moved by collection, scrubbing and wear levelling.
    pub moves: u64,
    /// Pages read.
    pub reads: u64,
}

/// Counters of one class of transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassRun {
    /// Transactions whose commit became durable.
    pub commits: u64,
    /// Transactions that ended without a commit.
    pub aborts: u64,
    /// Transactions begun again after a deadlock.
    pub restarts: u64,
    /// Time from a transaction's first begin to its durable commit.
    pub latency_us: Latency,
}

impl Latency {
    /// Percentiles of a histogram of nanoseconds.
    #[must_use]
    pub fn of(histogram: &Histogram<u32>) -> Self {
        let microseconds = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        Self { p50: microseconds(0.5), p99: microseconds(0.99), p999: microseconds(0.999) }
    }
}

impl EraseCount {
    /// Spread of the given counts; zeroes when there are none.
    #[must_use]
    pub fn of(counts: impl IntoIterator<Item = u32>) -> Self {
        let mut spread = Self { min: u32::MAX, mean: 0.0, max: 0 };
        let (mut sum, mut count) = (0_u64, 0_u64);
        for erases in counts {
            spread.min = spread.min.min(erases);
            spread.max = spread.max.max(erases);
            sum += u64::from(erases);
            count += 1;
        }
        if count == 0 {
            return Self::default();
        }
        spread.mean = sum as f64 / count as f64;
        spread
    }
}

/// Transactions that `block_count` blocks of `endurance` cycles carry at the wear of the window.
#[must_use]
pub fn lifetime_txns(endurance: u32, block_count: u32, commits: u64, erases: u64) -> Option<u64> {
    let cycles = u128::from(endurance) * u128::from(block_count);
    let txns = (cycles * u128::from(commits)).checked_div(u128::from(erases))?;
    Some(u64::try_from(txns).unwrap_or(u64::MAX))
}

/// `numerator / denominator`, or 0 when there is nothing to divide by.
#[must_use]
pub fn ratio(numerator: u64, denominator: u64) -> f64 {
    if denominator == 0 { 0.0 } else { numerator as f64 / denominator as f64 }
}

impl Run {
    /// Programs, whole and partial, of a transaction.
    #[must_use]
    pub fn programs_per_commit(&self) -> f64 {
        ratio(self.page_programs + self.partial_programs, self.commits)
    }

    /// Reads of a transaction.
    #[must_use]
    pub fn reads_per_commit(&self) -> f64 {
        ratio(self.page_reads, self.commits)
    }

    /// Erases of a thousand transactions.
    #[must_use]
    pub fn erases_per_thousand(&self) -> f64 {
        1000.0 * ratio(self.block_erases, self.commits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetime_is_cycles_times_commits_per_erase() {
        assert_eq!(lifetime_txns(100_000, 128, 50_000, 400), Some(1_600_000_000));
        assert_eq!(lifetime_txns(100_000, 128, 50_000, 0), None);
        assert_eq!(lifetime_txns(u32::MAX, u32::MAX, u64::MAX, 1), Some(u64::MAX));
    }

    #[test]
    fn erase_counts_spread_over_all_blocks() {
        let spread = EraseCount::of([3, 1, 8]);
        assert_eq!(spread, EraseCount { min: 1, mean: 4.0, max: 8 });
        assert_eq!(EraseCount::of([]), EraseCount::default());
    }

    #[test]
    fn nothing_divided_by_nothing_is_nothing() {
        assert_eq!(ratio(5, 0), 0.0);
        assert_eq!(ratio(5, 2), 2.5);
    }
}
