//! Benchmarks on the simulated chip, in device time.

use std::time::Instant;

use flagstone::Options;
use flagstone_nand::{Crashable as _, SimNand};

use super::machine::Machine;
use super::prepare::report;
use super::report::{Measured, seconds};
use super::{BenchConfig, BenchError, OnProgress, Phase, WARMUP_STEP, Warmup};
use crate::event_loop::EventLoop;
use crate::run::Run;
use crate::sizing::Estimate;
use crate::steady::{SLICE_COUNT, Slice, Steadiness};
use crate::timed::Timed;

/// Chips tried until the fill at the end is the one asked for.
const CHIPS_MAX: u32 = 5;
/// Fill that may be missed.
const FILL_TOLERANCE: f64 = 0.01;

type SimMachine = Machine<Timed<SimNand>>;

/// What the warm-up did.
struct WarmedUp {
    txns: u64,
    programs_per_txn: f64,
}

/// Runs the benchmark on the virtual clock.
pub(super) fn run(
    config: &BenchConfig,
    options: &Options,
    on_progress: OnProgress<'_>,
) -> Result<Run, BenchError> {
    let mut estimate = Estimate::for_clients(config.clients);
    let mut chips = 1;
    loop {
        let machine = load(config, options, &estimate, on_progress)?;
        let mut clients = clients(&machine, config)?;
        let warmup = warm_up(&machine, config, &mut clients, on_progress)?;
        let window = measure(&machine, config, &mut clients, &warmup, on_progress)?;
        let miss = (window.observed.fill - config.fill).abs();
        if chips < CHIPS_MAX && miss > FILL_TOLERANCE && config.warmup == Warmup::Auto {
            // The warm-up was longer, or leaves emptier, than the chip was sized for (rule Z3).
            let full = config.full_pages(&machine.options, warmup.txns + config.txns)?;
            let live_ratio = machine.live_pages() as f64 / full.max(1) as f64;
            estimate = Estimate { programs_per_txn: warmup.programs_per_txn, live_ratio };
            chips += 1;
            continue;
        }
        let acknowledged = clients.acknowledged();
        drop(clients);
        let revive = |device: &mut Timed<SimNand>| device.inner_mut().power_cycle();
        return machine.finish(config, window, &acknowledged, revive, on_progress);
    }
}

fn load(
    config: &BenchConfig,
    options: &Options,
    estimate: &Estimate,
    on_progress: OnProgress<'_>,
) -> Result<SimMachine, BenchError> {
    let options = config.engine_options(options);
    let (profile, size) = config.chip(&options, estimate)?;
    let device = Timed::new(SimNand::new(&profile, config.seed));
    Machine::load(config, options, size, device, on_progress)
}

fn clients<'m>(machine: &'m SimMachine, config: &BenchConfig) -> Result<EventLoop<'m>, BenchError> {
    let tpcb = config.tpcb_workload();
    let durability = machine.options.durability;
    let runtime = machine.database.runtime();
    EventLoop::new(runtime, &tpcb, machine.tables, config.clients, durability)
}

fn warm_up(
    machine: &SimMachine,
    config: &BenchConfig,
    clients: &mut EventLoop<'_>,
    on_progress: OnProgress<'_>,
) -> Result<WarmedUp, BenchError> {
    let before = machine.totals();
    let programs = || machine.totals().since(&before).programs();
    let total = match config.warmup {
        Warmup::None => 0,
        Warmup::Txns(txns) => txns,
        Warmup::Auto => machine.warmup_programs(),
    };
    let mut done = 0;
    while done < total {
        let commits = clients.counts.commits;
        done = match config.warmup {
            Warmup::Auto => {
                clients.run_until(commits + WARMUP_STEP)?;
                programs()
            }
            _ => {
                clients.run_until((commits + WARMUP_STEP).min(total))?;
                clients.counts.commits
            }
        };
        report(on_progress, Phase::WarmUp, done.min(total), total);
    }
    let txns = clients.counts.commits;
    Ok(WarmedUp { txns, programs_per_txn: programs() as f64 / txns.max(1) as f64 })
}

/// The measured window, in slices.
fn measure(
    machine: &SimMachine,
    config: &BenchConfig,
    clients: &mut EventLoop<'_>,
    warmup: &WarmedUp,
    on_progress: OnProgress<'_>,
) -> Result<Measured, BenchError> {
    clients.reset_latency();
    let (counts, totals, now_ns) = (clients.counts, machine.totals(), clients.now_ns());
    let started = Instant::now();
    let slices = slices(machine, config, clients, on_progress)?;
    let wall_s = started.elapsed().as_secs_f64();
    let steadiness = Steadiness::of(&slices);
    let mut observed = machine.observe(config, warmup.txns, &steadiness);
    observed.trace_hash = machine.database.runtime().space().device().inner().trace_hash();
    Ok(Measured {
        counts: clients.counts.since(counts),
        latency: clients.latency.clone(),
        totals: machine.totals().since(&totals),
        elapsed_s: seconds(clients.now_ns() - now_ns),
        wall_s,
        memory: machine.memory(),
        recovery: None,
        steadiness,
        observed,
    })
}

fn slices(
    machine: &SimMachine,
    config: &BenchConfig,
    clients: &mut EventLoop<'_>,
    on_progress: OnProgress<'_>,
) -> Result<Vec<Slice>, BenchError> {
    let start = clients.counts.commits;
    let mut before = (start, machine.erases());
    let mut slices = Vec::with_capacity(SLICE_COUNT);
    for number in 1..=SLICE_COUNT as u64 {
        clients.run_until(start + config.txns * number / SLICE_COUNT as u64)?;
        let after = (clients.counts.commits, machine.erases());
        slices.push(Slice { commits: after.0 - before.0, erases: after.1 - before.1 });
        before = after;
        report(on_progress, Phase::Measure, after.0 - start, config.txns);
    }
    Ok(slices)
}
