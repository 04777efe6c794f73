//! Benchmarks with threads, on the wall clock: NAND images, files and raw NAND of Linux.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flagstone_engine::blocking::Database;
use flagstone_engine::{Durability, EngineError, Options};
use flagstone_nand::{EccNand, FileStorage, Nand, SegmentFile};

use super::machine::Machine;
use super::observe::{Observer, tell};
use super::report::Measured;
use super::{BenchDevice, BenchError, Job, Phase, WARMUP_STEP, Warmup};
use crate::run::Run;
use crate::sizing::Estimate;
use crate::steady::{SLICE_COUNT, Slice, Steadiness};
use crate::store::Store;
use crate::tally::Tally;
use crate::workload::{Acknowledged, Outcome, Terminal, Workload};

/// Time between two progress reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// A client of the public interface, which lives longer than one stretch of work.
pub(crate) struct Worker<T> {
    number: u64,
    terminal: T,
    /// Commits that returned, by class.
    acknowledged: Vec<u64>,
    tally: Tally,
}

/// Result of one or several stretches of work.
pub(crate) struct Stretch {
    pub(crate) tally: Tally,
    pub(crate) wall: Duration,
}

impl Stretch {
    /// Nothing yet.
    pub(crate) fn new(workload: &impl Workload) -> Result<Self, BenchError> {
        Ok(Self { tally: Tally::new(workload.classes())?, wall: Duration::ZERO })
    }

    /// Takes the workers' counts.
    fn collect<T>(&mut self, workers: &mut [Worker<T>], wall: Duration) {
        self.wall += wall;
        for worker in workers {
            self.tally.add(&worker.tally);
            worker.tally.reset();
        }
    }
}

impl<T: Terminal> Worker<T> {
    /// Client `number` of `workload`, of whose commits `acknowledged` have returned.
    pub(crate) fn new(
        workload: &impl Workload,
        number: u64,
        terminal: T,
        acknowledged: Vec<u64>,
    ) -> Result<Self, BenchError> {
        Ok(Self { number, terminal, acknowledged, tally: Tally::new(workload.classes())? })
    }

    /// One client for each of `count` threads.
    pub(crate) fn all<W: Workload<Terminal = T>>(
        workload: &W,
        tables: W::Tables,
        count: u32,
    ) -> Result<Vec<Self>, BenchError> {
        let none = vec![0; workload.classes().len()];
        let worker =
            |number| Self::new(workload, number, workload.terminal(tables, number), none.clone());
        (0..u64::from(count)).map(worker).collect()
    }

    /// One transaction, until it commits.
    fn transact<D: Nand>(&mut self, database: &Database<D>) -> Result<(), EngineError> {
        let started = Instant::now();
        loop {
            let class = self.terminal.class();
            match self.attempt(database) {
                Ok(Outcome::Commit) => break,
                Ok(Outcome::Abort) => {
                    self.tally.aborted(class);
                    self.terminal.next(Outcome::Abort);
                }
                Err(EngineError::Deadlock) => {
                    self.tally.restarted(class);
                    self.terminal.restart();
                }
                Err(error) => return Err(error),
            }
        }
        let class = self.terminal.class();
        let latency_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.tally.committed(class, latency_ns);
        if let Some(count) = self.acknowledged.get_mut(class) {
            *count += 1;
        }
        self.terminal.next(Outcome::Commit);
        Ok(())
    }

    fn attempt<D: Nand>(&mut self, database: &Database<D>) -> Result<Outcome, EngineError> {
        let mut transaction = database.begin();
        let outcome = self.terminal.advance(&mut transaction)?;
        match outcome {
            Outcome::Commit => transaction.commit().map(|_| outcome),
            Outcome::Abort => {
                transaction.abort();
                Ok(outcome)
            }
        }
    }
}

/// Commits that returned.
pub(crate) fn acknowledged<T>(workers: &[Worker<T>]) -> Acknowledged {
    workers.iter().map(|worker| (worker.number, worker.acknowledged.clone())).collect()
}

/// Runs `txns` commits over all `workers`, one thread each, and adds them to `stretch`.
///
/// # Errors
///
/// The first error of any thread; acknowledged commits stay in workers and stretch.
pub(crate) fn work<D: Nand + Send, T: Terminal + Send>(
    database: &Database<D>,
    workers: &mut [Worker<T>],
    txns: u64,
    stretch: &mut Stretch,
    on_done: &mut dyn FnMut(u64),
) -> Result<(), BenchError> {
    let started = Instant::now();
    let shared = Shared::new(txns, workers.len());
    let result = thread::scope(|scope| {
        let start = |worker| {
            let builder = thread::Builder::new();
            let started = builder.spawn_scoped(scope, || shared.serve(database, worker));
            // No other thread would count it as ended.
            started.inspect_err(|_| shared.give_up())
        };
        let threads: Vec<_> = workers.iter_mut().map(start).collect();
        while shared.running.load(Ordering::Acquire) > 0 {
            on_done(shared.done.load(Ordering::Relaxed));
            thread::park_timeout(REPORT_INTERVAL);
        }
        threads.into_iter().try_for_each(|thread| {
            match thread.map_err(BenchError::Threads)?.join() {
                Ok(result) => Ok(result?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    });
    stretch.collect(workers, started.elapsed());
    on_done(shared.done.load(Ordering::Relaxed));
    result
}

/// State that the threads of a stretch share.
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

    /// Ends the stretch for a thread that could not be started.
    fn give_up(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
        self.running.fetch_sub(1, Ordering::Release);
    }

    /// Work of one thread.
    fn serve<D: Nand + Send, T: Terminal>(
        &self,
        database: &Database<D>,
        worker: &mut Worker<T>,
    ) -> Result<(), EngineError> {
        let result = self.transact(database, worker);
        self.running.fetch_sub(1, Ordering::Release);
        self.waiter.unpark();
        result
    }

    /// Transactions of one thread, until all are taken or a thread has failed.
    fn transact<D: Nand + Send, T: Terminal>(
        &self,
        database: &Database<D>,
        worker: &mut Worker<T>,
    ) -> Result<(), EngineError> {
        while !self.has_failed.load(Ordering::Relaxed)
            && self.taken.fetch_add(1, Ordering::Relaxed) < self.txns
        {
            if let Err(error) = worker.transact(database) {
                self.has_failed.store(true, Ordering::Relaxed);
                return Err(error);
            }
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Runs the benchmark with one thread a client.
pub(super) fn run<W: Workload>(
    job: Job<'_, W>,
    options: &Options,
    observer: &mut dyn Observer,
) -> Result<Run, BenchError> {
    let options = job.engine_options(options);
    let (profile, size) = job.chip(&options, &Estimate::for_clients(job.config.clients))?;
    let name = format!("{}-{}", job.workload.name().replace('/', "-"), options.preset);
    match &job.config.device {
        BenchDevice::File(directory) => {
            let path = directory.join(name).with_extension("flagstone");
            let storage = FileStorage::create(&path);
            let device = storage.and_then(|storage| SegmentFile::create(storage, &profile));
            let device = device.map_err(BenchError::at(&path))?;
            let machine = Machine::load(job, options, size, device, observer)?;
            run_on(machine, job, observer)
        }
        BenchDevice::Image(directory) => {
            let path = directory.join(name).with_extension("nand");
            let device = EccNand::create_image(&path, &profile).map_err(BenchError::at(&path))?;
            let machine = Machine::load(job, options, size, device, observer)?;
            run_on(machine, job, observer)
        }
        #[cfg(target_os = "linux")]
        BenchDevice::Mtd(node) => {
            let device = EccNand::create_mtd(node, Some(&profile), profile.ecc);
            let device = device.map_err(BenchError::at(node))?;
            let machine = Machine::load(job, options, size, device, observer)?;
            run_on(machine, job, observer)
        }
        BenchDevice::Sim => Err(BenchError::Config { option: "device", must: "a real one" }),
    }
}

fn run_on<D: Nand + Send, W: Workload>(
    machine: Machine<Database<D>, W::Tables>,
    job: Job<'_, W>,
    observer: &mut dyn Observer,
) -> Result<Run, BenchError> {
    let Job { config, workload } = job;
    let mut workers = Worker::all(workload, machine.tables, config.clients)?;
    let warmup_txns = warm_up(&machine, job, &mut workers, observer)?;
    let totals = machine.totals();
    let mut stretch = Stretch::new(workload)?;
    let mut slices = Vec::with_capacity(SLICE_COUNT);
    for number in 0..SLICE_COUNT as u64 {
        let done = config.txns * number / SLICE_COUNT as u64;
        let commits = config.txns * (number + 1) / SLICE_COUNT as u64 - done;
        let erases = machine.erases();
        let mut listener = Telling::new(observer, Phase::Measure, config.txns);
        let mut on_done = |more| listener.tell(done + more);
        work(&machine.database, &mut workers, commits, &mut stretch, &mut on_done)?;
        listener.verdict?;
        slices.push(Slice { commits, erases: machine.erases() - erases });
    }
    let steadiness = Steadiness::of(&slices);
    let window = Measured {
        tally: stretch.tally,
        totals: machine.totals().since(&totals),
        elapsed_s: stretch.wall.as_secs_f64(),
        wall_s: stretch.wall.as_secs_f64(),
        cpu_s: None,
        memory: machine.memory(),
        recovery: None,
        steadiness,
        observed: machine.observe(job, warmup_txns, &steadiness),
        regions: machine.database.regions()?,
    };
    if machine.options.durability == Durability::Deferred {
        // No commit was promised before.
        Store::settle(&machine.database)?;
    }
    machine.finish(job, window, &acknowledged(&workers), |_| Ok(None), observer)
}

/// Tells an observer how far the threads have come; its decision takes effect when they have ended.
struct Telling<'a> {
    observer: &'a mut dyn Observer,
    phase: Phase,
    total: u64,
    verdict: Result<(), BenchError>,
}

impl<'a> Telling<'a> {
    fn new(observer: &'a mut dyn Observer, phase: Phase, total: u64) -> Self {
        Self { observer, phase, total, verdict: Ok(()) }
    }

    fn tell(&mut self, done: u64) {
        if self.verdict.is_ok() {
            self.verdict = tell(self.observer, self.phase, done, self.total);
        }
    }
}

/// Commits before the window.
fn warm_up<D: Nand + Send, W: Workload>(
    machine: &Machine<Database<D>, W::Tables>,
    Job { config, workload }: Job<'_, W>,
    workers: &mut [Worker<W::Terminal>],
    observer: &mut dyn Observer,
) -> Result<u64, BenchError> {
    let mut stretch = Stretch::new(workload)?;
    match config.warmup {
        Warmup::None => {}
        Warmup::Txns(txns) => {
            let mut listener = Telling::new(observer, Phase::WarmUp, txns);
            let mut on_done = |done| listener.tell(done);
            work(&machine.database, workers, txns, &mut stretch, &mut on_done)?;
            listener.verdict?;
        }
        Warmup::Auto => {
            let before = machine.totals();
            let total = machine.warmup_programs();
            let mut done = 0;
            while done < total {
                work(&machine.database, workers, WARMUP_STEP, &mut stretch, &mut |_| ())?;
                done = machine.totals().since(&before).programs();
                tell(observer, Phase::WarmUp, done.min(total), total)?;
            }
        }
    }
    Ok(stretch.tally.counts().commits)
}
