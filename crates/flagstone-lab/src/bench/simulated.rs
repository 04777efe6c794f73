//! Benchmarks on the simulated chip, in device time.

use std::time::Instant;

use flagstone::{Database, Durability, EngineError, Options};

use super::machine::Machine;
use super::prepare::report;
use super::report::{Measured, seconds};
use super::{BenchError, Chip, Job, OnProgress, Phase, Start, WARMUP_STEP, Warmup};
use crate::event_loop::{EventLoop, Manners};
use crate::medium::Medium;
use crate::preset::{self, EngineKind};
use crate::run::Run;
use crate::sizing::Estimate;
use crate::steady::{SLICE_COUNT, Slice, Steadiness};
use crate::store::{ClassicStore, Drivable, RecordDatabase, ShadowDatabase, Store};
use crate::timed::Timed;
use crate::workload::Workload;

/// Chips tried until the fill at the end is the one asked for.
const CHIPS_MAX: u32 = 5;
/// Fill that may be missed.
const FILL_TOLERANCE: f64 = 0.01;

/// Clients of a machine.
type Clients<'m, S, W> = EventLoop<'m, <S as Drivable>::Engine, <W as Workload>::Terminal>;

/// What the warm-up did.
struct WarmedUp {
    txns: u64,
    programs_per_txn: f64,
}

/// Runs the benchmark on the virtual clock.
pub(super) fn run<W: Workload>(
    job: Job<'_, W>,
    options: &Options,
    on_progress: OnProgress<'_>,
) -> Result<Run, BenchError> {
    match preset::engine_of(options) {
        EngineKind::Flagstone => run_on::<Database<Chip>, W>(job, options, on_progress),
        EngineKind::Classic(_) => run_on::<ClassicStore<Chip>, W>(job, options, on_progress),
        EngineKind::Shadow(..) => run_on::<ShadowDatabase<Chip>, W>(job, options, on_progress),
        EngineKind::Records(_) => run_on::<RecordDatabase<Chip>, W>(job, options, on_progress),
    }
}

/// Runs the benchmark on the engine of `S`.
fn run_on<S: Drivable + Store<Device = Chip>, W: Workload>(
    job: Job<'_, W>,
    options: &Options,
    on_progress: OnProgress<'_>,
) -> Result<Run, BenchError> {
    let config = job.config;
    let mut estimate = job.workload.first_estimate(config.clients);
    let mut chips = 1;
    loop {
        let machine: Machine<S, _> = begin(job, options, &estimate, on_progress)?;
        let mut clients = clients(&machine, job)?;
        let may_try_again = chips < CHIPS_MAX && config.warmup == Warmup::Auto;
        chips += 1;
        let ran = warm_up(&machine, job, &mut clients, on_progress).and_then(|warmup| {
            measure(&machine, job, &mut clients, &warmup, on_progress).map(|run| (warmup, run))
        });
        let (warmup, window) = match ran {
            Err(BenchError::Engine(EngineError::Full)) if may_try_again => {
                // Transactions program less than guessed, so that more of them fill the chip, or
                // they leave emptier leaves behind.
                estimate.programs_per_txn /= 2.0;
                estimate.live_ratio *= 1.1;
                continue;
            }
            other => other?,
        };
        let miss = (window.observed.fill - config.fill).abs();
        if may_try_again && miss > FILL_TOLERANCE {
            // The warm-up was longer, or leaves emptier, than the chip was sized for (rule Z3).
            let full = job.full_pages(&machine.options, warmup.txns + config.txns)?;
            let live_ratio = machine.live_pages() as f64 / full.max(1) as f64;
            estimate = Estimate { programs_per_txn: warmup.programs_per_txn, live_ratio };
            continue;
        }
        if machine.options.durability == Durability::Deferred {
            // Power is cut once all is durable: no commit was promised before.
            clients.come_to_rest()?;
            machine.database.settle()?;
        }
        let acknowledged = clients.acknowledged();
        drop(clients);
        let options = machine.options.clone();
        let revive = |device: &mut Chip| {
            device.inner_mut().power_cycle();
            S::scan_restart(|| Timed::new(device.inner().clone()), &options)
        };
        return machine.finish(job, window, &acknowledged, revive, on_progress);
    }
}

/// A machine with the rows of a fresh database.
fn begin<S: Store<Device = Chip>, W: Workload>(
    job: Job<'_, W>,
    options: &Options,
    estimate: &Estimate,
    on_progress: OnProgress<'_>,
) -> Result<Machine<S, W::Tables>, BenchError> {
    let options = job.engine_options(options);
    let (profile, size) = job.chip(&options, estimate)?;
    let new = || Medium::used(&profile, job.config.seed).map_err(EngineError::Device);
    match &job.config.start {
        Start::Load => Machine::load(job, options, size, Timed::new(new()?), on_progress),
        Start::Image(images) => {
            let key = (&profile, size.block_count());
            let image = images.get::<S, W>(job, &options, key, new, on_progress)?;
            Machine::open(job, options, size, Timed::new(image))
        }
    }
}

fn clients<'m, S: Drivable, W: Workload>(
    machine: &'m Machine<S, W::Tables>,
    Job { config, workload }: Job<'_, W>,
) -> Result<Clients<'m, S, W>, BenchError> {
    let durability = machine.options.durability;
    let engine = machine.database.engine();
    let manners = Manners {
        abort_ratio: config.abort_ratio,
        backoff_ns: config.backoff.as_nanos() as u64,
        seed: config.seed,
    };
    EventLoop::new(engine, workload, machine.tables, config.clients, durability, manners)
}

fn warm_up<S: Drivable, W: Workload>(
    machine: &Machine<S, W::Tables>,
    job: Job<'_, W>,
    clients: &mut Clients<'_, S, W>,
    on_progress: OnProgress<'_>,
) -> Result<WarmedUp, BenchError> {
    let before = machine.totals();
    let programs = || machine.totals().since(&before).programs();
    let total = match job.config.warmup {
        Warmup::None => 0,
        Warmup::Txns(txns) => txns,
        Warmup::Auto => machine.warmup_programs(),
    };
    let mut done = 0;
    while done < total {
        let commits = clients.commits();
        done = match job.config.warmup {
            Warmup::Auto => {
                clients.run_until(commits + WARMUP_STEP)?;
                programs()
            }
            _ => {
                clients.run_until((commits + WARMUP_STEP).min(total))?;
                clients.commits()
            }
        };
        report(on_progress, Phase::WarmUp, done.min(total), total);
    }
    let txns = clients.commits();
    Ok(WarmedUp { txns, programs_per_txn: programs() as f64 / txns.max(1) as f64 })
}

/// The measured window, in slices.
fn measure<S: Drivable + Store<Device = Chip>, W: Workload>(
    machine: &Machine<S, W::Tables>,
    job: Job<'_, W>,
    clients: &mut Clients<'_, S, W>,
    warmup: &WarmedUp,
    on_progress: OnProgress<'_>,
) -> Result<Measured, BenchError> {
    clients.reset_tally();
    let (totals, now_ns) = (machine.totals(), clients.now_ns());
    let (started, cpu_ns) = (Instant::now(), thread_cpu_ns());
    let slices = slices(machine, job, clients, on_progress)?;
    let wall_s = started.elapsed().as_secs_f64();
    let cpu_s = thread_cpu_ns().zip(cpu_ns).map(|(after, before)| seconds(after - before));
    let steadiness = Steadiness::of(&slices);
    let mut observed = machine.observe(job, warmup.txns, &steadiness);
    observed.trace_hash = machine.database.with_device(|device| device.inner().trace_hash());
    Ok(Measured {
        tally: clients.tally.clone(),
        totals: machine.totals().since(&totals),
        elapsed_s: seconds(clients.now_ns() - now_ns),
        wall_s,
        cpu_s,
        memory: machine.memory(),
        recovery: None,
        steadiness,
        observed,
    })
}

/// Processor time of this thread so far, where the system tells it.
fn thread_cpu_ns() -> Option<u64> {
    // First field: time spent on the processor (Linux, Documentation/scheduler/sched-stats.rst).
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

fn slices<S: Drivable, W: Workload>(
    machine: &Machine<S, W::Tables>,
    job: Job<'_, W>,
    clients: &mut Clients<'_, S, W>,
    on_progress: OnProgress<'_>,
) -> Result<Vec<Slice>, BenchError> {
    let txns = job.config.txns;
    let start = clients.commits();
    let mut before = (start, machine.erases());
    let mut slices = Vec::with_capacity(SLICE_COUNT);
    for number in 1..=SLICE_COUNT as u64 {
        clients.run_until(start + txns * number / SLICE_COUNT as u64)?;
        let after = (clients.commits(), machine.erases());
        slices.push(Slice { commits: after.0 - before.0, erases: after.1 - before.1 });
        before = after;
        report(on_progress, Phase::Measure, after.0 - start, txns);
    }
    Ok(slices)
}
