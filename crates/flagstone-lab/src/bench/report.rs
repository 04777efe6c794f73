//! From measurements to the run object.

use flagstone_engine::Options;
use flagstone_nand::Nand;
use flagstone_space::RegionId;

use super::{BenchDevice, Job, Warmup};
use crate::run::{
    EraseCount, Memory, Observed, Recovery, Run, RunConfig, Totals, lifetime_txns, ratio,
};
use crate::steady::Steadiness;
use crate::tally::Tally;
use crate::workload::Workload;

/// Measurements of a window.
pub(crate) struct Measured {
    pub(crate) tally: Tally,
    pub(crate) totals: Totals,
    pub(crate) elapsed_s: f64,
    pub(crate) wall_s: f64,
    pub(crate) cpu_s: Option<f64>,
    pub(crate) memory: Memory,
    pub(crate) recovery: Option<Recovery>,
    pub(crate) steadiness: Steadiness,
    pub(crate) observed: Observed,
    /// Tables and the regions that they stand in at the end.
    pub(crate) regions: Vec<(String, RegionId)>,
}

/// The run object of a window measured on `device`.
pub(crate) fn compose(
    job: Job<'_, impl Workload>,
    options: &Options,
    device: &impl Nand,
    measured: Measured,
) -> Run {
    let Measured { tally, totals, .. } = &measured;
    let counts = tally.counts();
    let block_count = device.geometry().block_count;
    let endurance = device.capabilities().endurance;
    let erases = totals.device.block_erases;
    let causes = totals.causes();
    Run {
        commits: counts.commits,
        aborts: counts.aborts,
        restarts: counts.restarts,
        elapsed_s: measured.elapsed_s,
        wall_s: measured.wall_s,
        cpu_s: measured.cpu_s,
        tps: per_second(counts.commits, measured.elapsed_s),
        latency_us: tally.latency(),
        commit_wait_us: tally.commit_wait_us(),
        user_bytes: totals.user_bytes,
        log_bytes: totals.log_bytes,
        page_reads: totals.device.page_reads,
        page_programs: totals.device.page_programs,
        partial_programs: totals.device.partial_programs,
        block_erases: erases,
        gc_migrations: totals.gc_migrations,
        gc_victims: totals.gc_victims,
        gc_time_s: seconds(totals.gc_time_ns),
        bytes_programmed: totals.device.bytes_programmed,
        write_amplification: ratio(totals.device.bytes_programmed, totals.user_bytes),
        delta_appends: causes.delta,
        out_of_place_writes: causes.data,
        pool_hits: totals.pool_hits,
        pool_misses: totals.pool_misses,
        leaf_references: totals.leaf_references[0],
        leaf_misses: totals.leaf_references[1],
        erase_count: EraseCount::of_device(device),
        lifetime_txns: lifetime_txns(endurance, block_count, counts.commits, erases),
        recovery: measured.recovery,
        memory: measured.memory,
        programs_by_cause: causes,
        translation: totals.translation_run(),
        steady: measured.steadiness.steady,
        by_region: totals.by_region(&measured.regions),
        by_class: tally.by_class(),
        config: run_config(job, options, measured.observed),
    }
}

fn run_config(
    Job { config, workload }: Job<'_, impl Workload>,
    options: &Options,
    observed: Observed,
) -> RunConfig {
    RunConfig {
        workload: workload.name(),
        device: String::from(match config.device {
            BenchDevice::Sim => "sim",
            BenchDevice::Image(_) => "image",
            BenchDevice::File(_) => "file",
            #[cfg(target_os = "linux")]
            BenchDevice::Mtd(_) => "mtd",
        }),
        profile: config.profile.name.clone(),
        preset: options.preset.clone(),
        scale: config.scale,
        clients: config.clients,
        abort_ratio: config.abort_ratio,
        backoff_us: config.backoff.as_micros() as u64,
        txns: config.txns,
        seconds: config.time_max.map(|time| time.as_secs_f64()),
        memory: options.memory,
        held_back: held_back(options),
        fill: config.fill,
        warmup: match config.warmup {
            Warmup::Auto => String::from("auto"),
            Warmup::None => String::from("none"),
            Warmup::Txns(txns) => txns.to_string(),
        },
        seed: config.seed,
        options: options.clone(),
        observed,
    }
}

/// Bytes of the budget that page frames may not take.
fn held_back(options: &Options) -> usize {
    (options.memory as f64 * (1.0 - options.techniques().frame_share)) as usize
}

/// Nanoseconds as seconds.
pub(crate) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn per_second(count: u64, elapsed_s: f64) -> f64 {
    if elapsed_s > 0.0 { count as f64 / elapsed_s } else { 0.0 }
}
