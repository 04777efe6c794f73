//! Benchmarks on the simulated chip, in device time.

use std::time::{Duration, Instant};

use flagstone_engine::blocking::Database;
use flagstone_engine::{Durability, EngineError, Options};

use super::machine::Machine;
use super::observe::{Moment, Observer, Sight, show};
use super::report::{Measured, seconds};
use super::{BenchError, Chip, Job, Phase, Progress, Start, WARMUP_STEP, Warmup};
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

/// Commits between two looks of an observer.
const LOOK_COMMITS: u64 = 20;

/// Clients of a machine.
type Clients<'m, S, W> = EventLoop<'m, <S as Drivable>::Engine, <W as Workload>::Terminal>;

/// Result of the warm-up.
struct WarmedUp {
    txns: u64,
    programs_per_txn: f64,
}

/// Runs the benchmark on the virtual clock.
pub(super) fn run<W: Workload>(
    job: Job<'_, W>,
    options: &Options,
    observer: &mut dyn Observer,
) -> Result<Run, BenchError> {
    match preset::engine_of(options) {
        EngineKind::Flagstone => run_on::<Database<Chip>, W>(job, options, observer),
        EngineKind::Classic(_) => run_on::<ClassicStore<Chip>, W>(job, options, observer),
        EngineKind::Shadow(..) => run_on::<ShadowDatabase<Chip>, W>(job, options, observer),
        EngineKind::Records(_) => run_on::<RecordDatabase<Chip>, W>(job, options, observer),
    }
}

/// Runs the benchmark on the engine of `S`.
fn run_on<S: Drivable + Store<Device = Chip>, W: Workload>(
    job: Job<'_, W>,
    options: &Options,
    observer: &mut dyn Observer,
) -> Result<Run, BenchError> {
    let config = job.config;
    let mut estimate = job.workload.first_estimate(config.clients);
    let mut chips = 1;
    loop {
        let machine: Machine<S, _> = begin(job, options, &estimate, observer)?;
        let mut clients = clients(&machine, job)?;
        let may_try_again = chips < CHIPS_MAX && config.warmup == Warmup::Auto;
        chips += 1;
        let ran = warm_up(&machine, job, &mut clients, observer).and_then(|warmup| {
            measure(&machine, job, &mut clients, &warmup, observer).map(|run| (warmup, run))
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
        return machine.finish(job, window, &acknowledged, revive, observer);
    }
}

/// A machine with the rows of a fresh database.
fn begin<S: Store<Device = Chip>, W: Workload>(
    job: Job<'_, W>,
    options: &Options,
    estimate: &Estimate,
    observer: &mut dyn Observer,
) -> Result<Machine<S, W::Tables>, BenchError> {
    let options = job.engine_options(options);
    let (profile, size) = job.chip(&options, estimate)?;
    let new = || Medium::used(&profile, job.config.seed).map_err(EngineError::Device);
    match &job.config.start {
        Start::Load => Machine::load(job, options, size, Timed::new(new()?), observer),
        Start::Image(images) => {
            let key = (&profile, size.block_count());
            let image = images.get::<S, W>(job, &options, key, new, observer)?;
            Machine::open(job, options, size, Timed::new(image))
        }
    }
}

fn clients<'m, S: Drivable + Store<Device = Chip>, W: Workload>(
    machine: &'m Machine<S, W::Tables>,
    Job { config, workload }: Job<'_, W>,
) -> Result<Clients<'m, S, W>, BenchError> {
    let durability = machine.options.durability;
    // The load leaves the dies busy; the clients begin when they are done, so that no window holds
    // the time of the load.
    machine.database.with_device(Chip::come_to_rest);
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
    observer: &mut dyn Observer,
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
        let goal = clients.commits() + WARMUP_STEP;
        let is_counted = matches!(job.config.warmup, Warmup::Txns(_));
        let goal = if is_counted { goal.min(total) } else { goal };
        advance::<S, W, _>(clients, Goal::of(goal), &mut |clients| {
            let done = if is_counted { clients.commits() } else { programs() };
            let progress = Progress { phase: Phase::WarmUp, done: done.min(total), total };
            view::<S, W>(machine, clients, observer, progress)
        })?;
        done = if is_counted { clients.commits() } else { programs() };
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
    observer: &mut dyn Observer,
) -> Result<Measured, BenchError> {
    clients.reset_tally();
    let (totals, now_ns) = (machine.totals(), clients.now_ns());
    let (started, cpu_ns) = (Instant::now(), thread_cpu_ns());
    let slices = slices(machine, job, clients, observer)?;
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
        regions: machine.database.regions()?,
    })
}

/// Processor time of this thread so far, where the system tells it.
pub(crate) fn thread_cpu_ns() -> Option<u64> {
    // First field: time spent on the processor (Linux, Documentation/scheduler/sched-stats.rst).
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

fn slices<S: Drivable, W: Workload>(
    machine: &Machine<S, W::Tables>,
    job: Job<'_, W>,
    clients: &mut Clients<'_, S, W>,
    observer: &mut dyn Observer,
) -> Result<Vec<Slice>, BenchError> {
    let (start, start_ns) = (clients.commits(), clients.now_ns());
    let mut look = |clients: &Clients<'_, S, W>| {
        let (commits, time_ns) = (clients.commits() - start, clients.now_ns() - start_ns);
        view::<S, W>(machine, clients, observer, job.progress(commits, time_ns))
    };
    look(clients)?;
    let mut before = (start, machine.erases());
    let mut slices = Vec::with_capacity(SLICE_COUNT);
    for number in 1..=SLICE_COUNT as u64 {
        let goal = job.goal(start, start_ns, number);
        advance::<S, W, _>(clients, goal, &mut look)?;
        let after = (clients.commits(), machine.erases());
        slices.push(Slice { commits: after.0 - before.0, erases: after.1 - before.1 });
        before = after;
    }
    // Transactions that run out before the time leave slices with nothing in them.
    slices.retain(|slice| slice.commits > 0);
    Ok(slices)
}

/// Where a stretch of the run ends: at these commits, or at this time, if that comes first.
#[derive(Clone, Copy)]
struct Goal {
    commits: u64,
    end_ns: u64,
}

impl Goal {
    /// A goal without a time.
    const fn of(commits: u64) -> Self {
        Self { commits, end_ns: u64::MAX }
    }
}

impl<W: Workload> Job<'_, W> {
    /// How far the window has come: by its transactions or by its time, whichever is further.
    fn progress(&self, commits: u64, time_ns: u64) -> Progress {
        let total = self.config.txns;
        let part = |time: Duration| time_ns as f64 / time.as_nanos() as f64;
        let by_time = self.config.time_max.map_or(0.0, |time| part(time) * total as f64);
        Progress { phase: Phase::Measure, done: commits.max(by_time as u64).min(total), total }
    }

    /// End of slice `number` of the window that began at `start`: slices are of equal commits, or
    /// of equal time where that is limited.
    fn goal(&self, start: u64, start_ns: u64, number: u64) -> Goal {
        let txns = self.config.txns;
        let Some(time_max) = self.config.time_max else {
            return Goal::of(start + txns * number / SLICE_COUNT as u64);
        };
        let time_ns = time_max.as_nanos() * u128::from(number) / SLICE_COUNT as u128;
        let time_ns = u64::try_from(time_ns).unwrap_or(u64::MAX);
        Goal { commits: start + txns, end_ns: start_ns.saturating_add(time_ns) }
    }
}

/// Drives the clients to a goal, and takes a look every few commits.
fn advance<S, W, L>(
    clients: &mut Clients<'_, S, W>,
    goal: Goal,
    look: &mut L,
) -> Result<(), BenchError>
where
    S: Drivable,
    W: Workload,
    L: FnMut(&Clients<'_, S, W>) -> Result<(), BenchError>,
{
    while clients.commits() < goal.commits && clients.now_ns() < goal.end_ns {
        let next = (clients.commits() + LOOK_COMMITS).min(goal.commits);
        clients.run_within(next, goal.end_ns)?;
        look(clients)?;
    }
    Ok(())
}

/// Shows the database to the observer.
fn view<S: Drivable, W: Workload>(
    machine: &Machine<S, W::Tables>,
    clients: &Clients<'_, S, W>,
    observer: &mut dyn Observer,
    progress: Progress,
) -> Result<(), BenchError> {
    let (commits, now_ns) = (clients.commits(), clients.now_ns());
    let scene = Some(&Sight(&machine.database) as &dyn super::Scene);
    show(observer, &Moment { progress, commits, now_ns, scene })
}
