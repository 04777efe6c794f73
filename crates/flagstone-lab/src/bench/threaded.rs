//! Benchmarks with threads, on the wall clock: NAND images and files.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flagstone::{Database, EngineError, Options};
use flagstone_nand::{FileStorage, ImageNand, Nand, SegmentFile};
use hdrhistogram::Histogram;

use super::machine::Machine;
use super::prepare::report;
use super::report::Measured;
use super::{BenchConfig, BenchDevice, BenchError, OnProgress, Phase, WARMUP_STEP, Warmup};
use crate::event_loop::{Counts, latency_histogram};
use crate::run::Run;
use crate::sizing::Estimate;
use crate::steady::{SLICE_COUNT, Slice, Steadiness};
use crate::workload::tpcb::{HistoryKey, Outcome, Stream, Tables, Tpcb, Transfer};

/// Time between two progress reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// A client of the public interface, which lives longer than one stretch of work.
pub(crate) struct Worker {
    number: u64,
    stream: Stream,
    transfer: Transfer,
    /// Commits that returned.
    acknowledged: u64,
    counts: Counts,
    latency: Histogram<u32>,
}

/// What one or several stretches of work did.
pub(crate) struct Stretch {
    pub(crate) counts: Counts,
    pub(crate) latency: Histogram<u32>,
    pub(crate) wall: Duration,
}

impl Stretch {
    /// Nothing yet.
    pub(crate) fn new() -> Result<Self, BenchError> {
        let latency = latency_histogram()?;
        Ok(Self { counts: Counts::default(), latency, wall: Duration::ZERO })
    }

    /// Takes the workers' counts.
    fn collect(&mut self, workers: &mut [Worker], wall: Duration) {
        self.wall += wall;
        for worker in workers {
            let counts = std::mem::take(&mut worker.counts);
            self.counts.commits += counts.commits;
            self.counts.aborts += counts.aborts;
            self.counts.restarts += counts.restarts;
            // Same bounds on both sides, so that every value fits.
            let _ = self.latency.add(&worker.latency);
            worker.latency.reset();
        }
    }
}

impl Worker {
    /// Client `number`, whose history holds `acknowledged` rows; `session` tells the streams of
    /// successive lives apart.
    pub(crate) fn new(
        tpcb: &Tpcb,
        number: u64,
        acknowledged: u64,
        session: u64,
    ) -> Result<Self, BenchError> {
        let mut stream = tpcb.stream(session << 32 | number);
        let history = HistoryKey { client: number, sequence: acknowledged };
        let transfer = Transfer::new(tpcb.dialect.balance_kind(), stream.inputs(), history);
        let latency = latency_histogram()?;
        let counts = Counts::default();
        Ok(Self { number, stream, transfer, acknowledged, counts, latency })
    }

    /// One transaction, until it commits.
    fn transact<D: Nand>(
        &mut self,
        database: &Database<D>,
        tables: &Tables,
    ) -> Result<(), EngineError> {
        let started = Instant::now();
        loop {
            match self.attempt(database, tables) {
                Ok(Outcome::Ready) => break,
                Ok(Outcome::NoAccount) => self.counts.aborts += 1,
                Err(EngineError::Deadlock) => {
                    self.counts.restarts += 1;
                    self.transfer.restart();
                    continue;
                }
                Err(error) => return Err(error),
            }
            self.next_transfer();
        }
        self.acknowledged += 1;
        self.counts.commits += 1;
        let latency_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.latency.saturating_record(latency_ns);
        self.next_transfer();
        Ok(())
    }

    fn attempt<D: Nand>(
        &mut self,
        database: &Database<D>,
        tables: &Tables,
    ) -> Result<Outcome, EngineError> {
        let mut transaction = database.begin();
        let outcome = self.transfer.advance(tables, &mut transaction)?;
        match outcome {
            Outcome::Ready => transaction.commit().map(|_| outcome),
            Outcome::NoAccount => {
                transaction.abort();
                Ok(outcome)
            }
        }
    }

    fn next_transfer(&mut self) {
        let history = HistoryKey { client: self.number, sequence: self.acknowledged };
        let inputs = self.stream.inputs();
        self.transfer.reset(inputs, history);
    }
}

/// Commits that returned, one count a client.
pub(crate) fn acknowledged(workers: &[Worker]) -> BTreeMap<u64, u64> {
    workers.iter().map(|worker| (worker.number, worker.acknowledged)).collect()
}

/// Runs `txns` commits over all `workers`, one thread each, and adds them to `stretch`.
///
/// # Errors
///
/// The first error of any thread; what was acknowledged stays in workers and stretch.
pub(crate) fn work<D: Nand + Send>(
    machine: &Machine<D>,
    workers: &mut [Worker],
    txns: u64,
    stretch: &mut Stretch,
    on_done: &mut dyn FnMut(u64),
) -> Result<(), BenchError> {
    let started = Instant::now();
    let shared = Shared::new(txns, workers.len());
    let result = thread::scope(|scope| {
        let start = |worker| scope.spawn(|| shared.serve(machine, worker));
        let threads: Vec<_> = workers.iter_mut().map(start).collect();
        while shared.running.load(Ordering::Acquire) > 0 {
            on_done(shared.done.load(Ordering::Relaxed));
            thread::park_timeout(REPORT_INTERVAL);
        }
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    });
    stretch.collect(workers, started.elapsed());
    on_done(shared.done.load(Ordering::Relaxed));
    Ok(result?)
}

/// What the threads of a stretch share.
struct Shared {
    txns: u64,
    taken: AtomicU64,
    done: AtomicU64,
    has_failed: AtomicBool,
    /// Threads that have not ended; the last one wakes `waiter`.
    running: AtomicUsize,
    waiter: thread::Thread,
}

impl Shared {
    fn new(txns: u64, threads: usize) -> Self {
        Self {
            txns,
            taken: AtomicU64::new(0),
            done: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            running: AtomicUsize::new(threads),
            waiter: thread::current(),
        }
    }

    /// What one thread does.
    fn serve<D: Nand + Send>(
        &self,
        machine: &Machine<D>,
        worker: &mut Worker,
    ) -> Result<(), EngineError> {
        let result = self.transact(machine, worker);
        self.running.fetch_sub(1, Ordering::Release);
        self.waiter.unpark();
        result
    }

    /// Transactions of one thread, until all are taken or a thread has failed.
    fn transact<D: Nand + Send>(
        &self,
        machine: &Machine<D>,
        worker: &mut Worker,
    ) -> Result<(), EngineError> {
        while !self.has_failed.load(Ordering::Relaxed)
            && self.taken.fetch_add(1, Ordering::Relaxed) < self.txns
        {
            if let Err(error) = worker.transact(&machine.database, &machine.tables) {
                self.has_failed.store(true, Ordering::Relaxed);
                return Err(error);
            }
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Runs the benchmark with one thread a client.
pub(super) fn run(
    config: &BenchConfig,
    options: &Options,
    on_progress: OnProgress<'_>,
) -> Result<Run, BenchError> {
    let options = config.engine_options(options);
    let (profile, size) = config.chip(&options, &Estimate::for_clients(config.clients))?;
    let name = format!("tpcb-{}", options.preset);
    match &config.device {
        BenchDevice::File(directory) => {
            let path = directory.join(name).with_extension("flagstone");
            let storage = FileStorage::create(&path)?;
            let device = SegmentFile::create(storage, &profile)?;
            let machine = Machine::load(config, options, size, device, on_progress)?;
            run_on(machine, config, on_progress)
        }
        BenchDevice::Image(directory) => {
            let path = directory.join(name).with_extension("nand");
            let device = ImageNand::create(&path, &profile)?;
            let machine = Machine::load(config, options, size, device, on_progress)?;
            run_on(machine, config, on_progress)
        }
        BenchDevice::Sim => Err(BenchError::Config { option: "device", must: "image or file" }),
    }
}

fn run_on<D: Nand + Send>(
    machine: Machine<D>,
    config: &BenchConfig,
    on_progress: OnProgress<'_>,
) -> Result<Run, BenchError> {
    let tpcb = config.tpcb_workload();
    let numbers = 0..u64::from(config.clients);
    let workers = numbers.map(|number| Worker::new(&tpcb, number, 0, 0));
    let mut workers = workers.collect::<Result<Vec<_>, _>>()?;
    let warmup_txns = warm_up(&machine, config, &mut workers, on_progress)?;
    let totals = machine.totals();
    let mut stretch = Stretch::new()?;
    let mut slices = Vec::with_capacity(SLICE_COUNT);
    for number in 0..SLICE_COUNT as u64 {
        let done = config.txns * number / SLICE_COUNT as u64;
        let commits = config.txns * (number + 1) / SLICE_COUNT as u64 - done;
        let erases = machine.erases();
        let mut on_done = |more| report(on_progress, Phase::Measure, done + more, config.txns);
        work(&machine, &mut workers, commits, &mut stretch, &mut on_done)?;
        slices.push(Slice { commits, erases: machine.erases() - erases });
    }
    let steadiness = Steadiness::of(&slices);
    let window = Measured {
        counts: stretch.counts,
        latency: stretch.latency,
        totals: machine.totals().since(&totals),
        elapsed_s: stretch.wall.as_secs_f64(),
        wall_s: stretch.wall.as_secs_f64(),
        memory: machine.memory(),
        recovery: None,
        steadiness,
        observed: machine.observe(config, warmup_txns, &steadiness),
    };
    machine.finish(config, window, &acknowledged(&workers), |_| (), on_progress)
}

/// Commits before the window.
fn warm_up<D: Nand + Send>(
    machine: &Machine<D>,
    config: &BenchConfig,
    workers: &mut [Worker],
    on_progress: OnProgress<'_>,
) -> Result<u64, BenchError> {
    let mut stretch = Stretch::new()?;
    match config.warmup {
        Warmup::None => {}
        Warmup::Txns(txns) => {
            let mut on_done = |done| report(on_progress, Phase::WarmUp, done, txns);
            work(machine, workers, txns, &mut stretch, &mut on_done)?;
        }
        Warmup::Auto => {
            let before = machine.totals();
            let total = machine.warmup_programs();
            let mut done = 0;
            while done < total {
                work(machine, workers, WARMUP_STEP, &mut stretch, &mut |_| ())?;
                done = machine.totals().since(&before).programs();
                report(on_progress, Phase::WarmUp, done.min(total), total);
            }
        }
    }
    Ok(stretch.counts.commits)
}
