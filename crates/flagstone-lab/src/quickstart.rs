//! The main job: TPC-B on a NAND image, a power cut in the middle, and the flash work of two
//! engines.
//!
//! Owns the course of the demonstration; prints nothing. For each preset:
//!
//! ```text
//! create the image → load → first half → power cut inside a program → reopen → verify the sums and
//! every acknowledged commit → second half → verify again → run object
//! ```
//!
//! - **Q1** The cut falls into a program of the running workload, with commits under way.
//! - **Q2** A run whose sums differ, or that lost an acknowledged commit, gives an error, never a
//!   comparison.
//! - **Q3** The run object covers both halves and the recovery between them, not the load.

use std::path::{Path, PathBuf};

use flagstone_engine::blocking::Database;
use flagstone_engine::{EngineError, Options};
use flagstone_nand::{Ending, FaultPlan, ImageNand, Nand as _, Profile};

use crate::bench::machine::{Machine, restart};
use crate::bench::observe::Listener;
use crate::bench::prepare;
use crate::bench::report::{Measured, compose};
use crate::bench::threaded::{Stretch, Worker, acknowledged, work};
use crate::bench::{BenchConfig, BenchDevice, BenchError, Job, Phase, Warmup};
use crate::run::{Recovery, Run, Totals};
use crate::sizing::Estimate;
use crate::steady::Steadiness;
use crate::workload::Workload as _;
use crate::workload::tpcb::{Dialect, Tables, Teller, Tpcb};

/// Numbered device operations between the order to cut and the cut, at most.
const CUT_AFTER_MAX: u64 = 64;
/// How the cut leaves the program it falls into.
const CUT: Ending = Ending::RandomBits;

/// Workload, engines and place of a demonstration.
#[derive(Clone, Debug)]
pub struct QuickstartConfig {
    /// Directory for the images.
    pub directory: PathBuf,
    /// Profile of the chip.
    pub profile: Profile,
    /// Engines to compare, in this order.
    pub options: Vec<Options>,
    /// Branches.
    pub scale: u32,
    /// Threads.
    pub clients: u32,
    /// Commits of both halves together.
    pub txns: u64,
    /// Seed of workload, engine and cut.
    pub seed: u64,
}

/// Stage of the demonstration, for progress reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Loading the rows.
    Load,
    /// Transactions up to the cut.
    BeforeCut,
    /// The power is gone, the database is reopened and verified.
    Recovery,
    /// Transactions after the cut.
    AfterCut,
    /// The last check.
    Verify,
}

/// How far the demonstration has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuickstartProgress<'a> {
    /// Preset under way.
    pub preset: &'a str,
    /// Stage.
    pub stage: Stage,
    /// Done within the stage.
    pub done: u64,
    /// To be done within the stage.
    pub total: u64,
}

/// Results of one engine.
#[derive(Clone, Debug)]
pub struct Life {
    /// Both halves and the recovery between them.
    pub run: Run,
    /// The cut and its outcome.
    pub cut: CutReport,
    /// The image, which stays.
    pub image: PathBuf,
}

/// The power cut and its outcome.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CutReport {
    /// Commits that had returned when the power went.
    pub acknowledged: u64,
    /// Commits found after the restart: the acknowledged ones, and at most one a client that was
    /// under way.
    pub found: u64,
    /// The sum that branches, tellers, accounts and history agree on.
    pub sum: i64,
    /// Cost of the restart.
    pub recovery: Recovery,
}

/// Runs the demonstration for each engine in turn.
///
/// # Errors
///
/// The first failure; a database that is wrong after the cut is one (rule Q2).
pub fn quickstart(
    config: &QuickstartConfig,
    on_progress: &mut dyn FnMut(QuickstartProgress<'_>),
) -> Result<Vec<Life>, BenchError> {
    config.options.iter().map(|options| live(config, options, on_progress)).collect()
}

/// One engine, from the empty image to the run object.
fn live(
    config: &QuickstartConfig,
    options: &Options,
    on_progress: &mut dyn FnMut(QuickstartProgress<'_>),
) -> Result<Life, BenchError> {
    let preset = options.preset.clone();
    let mut tell = |stage, done, total| {
        on_progress(QuickstartProgress { preset: &preset, stage, done, total });
    };
    let bench = config.bench();
    let workload = bench.tpcb_of(Dialect::Spec);
    let job = Job { config: &bench, workload: &workload };
    let image = config.directory.join(format!("{}.nand", options.preset));
    let mut journey = Journey::begin(job, options, &image, &mut tell)?;
    journey.work_until_cut(job, config.seed, &mut tell)?;
    let (journey, cut) = journey.recover(job, &image, &mut tell)?;
    let run = journey.complete(job, &mut tell)?;
    Ok(Life { run, cut, image })
}

/// Tells stage, done and total.
type Tell<'a> = &'a mut dyn FnMut(Stage, u64, u64);

/// A database on its way through the demonstration.
struct Journey {
    machine: Machine<Database<ImageNand>, Tables>,
    workers: Vec<Worker<Teller>>,
    stretch: Stretch,
    /// Counters at the start of this life of the device.
    base: Totals,
    /// Counters of earlier lives.
    earlier: Totals,
    recovery: Option<Recovery>,
}

impl Journey {
    fn begin(
        job: Job<'_, Tpcb>,
        options: &Options,
        image: &Path,
        tell: Tell<'_>,
    ) -> Result<Self, BenchError> {
        let clients = job.config.clients;
        let options = job.engine_options(options);
        let (profile, size) = job.chip(&options, &Estimate::for_clients(clients))?;
        let device = ImageNand::create(image, &profile).map_err(BenchError::at(image))?;
        let mut on_progress = |progress: crate::bench::Progress| {
            debug_assert_eq!(progress.phase, Phase::Load);
            tell(Stage::Load, progress.done, progress.total);
        };
        let machine = Machine::load(job, options, size, device, &mut Listener(&mut on_progress))?;
        let workers = Worker::all(job.workload, machine.tables, clients)?;
        let (base, earlier) = (machine.totals(), Totals::default());
        let stretch = Stretch::new(job.workload)?;
        Ok(Self { machine, workers, stretch, base, earlier, recovery: None })
    }

    /// Half of the transactions, then more until the power goes (rule Q1).
    fn work_until_cut(
        &mut self,
        job: Job<'_, Tpcb>,
        seed: u64,
        tell: Tell<'_>,
    ) -> Result<(), BenchError> {
        let half = job.config.txns / 2;
        let mut on_done = |done| tell(Stage::BeforeCut, done, half);
        work(&self.machine.database, &mut self.workers, half, &mut self.stretch, &mut on_done)?;
        self.order_cut(seed);
        let rest = job.config.txns - half;
        let result =
            work(&self.machine.database, &mut self.workers, rest, &mut self.stretch, &mut |_| ());
        match result {
            // A client that was under way learns of the cut in one of these ways.
            Err(BenchError::Engine(
                EngineError::Device(_)
                | EngineError::Space(_)
                | EngineError::OutcomeUnknown
                | EngineError::Poisoned,
            )) => Ok(()),
            other => other,
        }
    }

    /// The power goes inside one of the next programs.
    fn order_cut(&self, seed: u64) {
        let mut space = self.machine.database.runtime().space();
        let device = space.device_mut();
        let operation = device.operation_count() + 1 + seed % CUT_AFTER_MAX;
        device.set_plan(FaultPlan::power_cut(seed, operation, CUT));
    }

    /// Reopens the image as a new process would, and verifies it.
    fn recover(
        self,
        job: Job<'_, Tpcb>,
        image: &Path,
        tell: Tell<'_>,
    ) -> Result<(Self, CutReport), BenchError> {
        tell(Stage::Recovery, 0, 1);
        let Self { machine, workers, stretch, base, .. } = self;
        let earlier = machine.totals().since(&base);
        let Machine { database, tables: _, options, size } = machine;
        drop(database);
        let device = ImageNand::open(image).map_err(BenchError::at(image))?;
        let base = Totals { device: device.counters(), ..Totals::default() };
        let (recovery, database) = restart::<Database<_>>(device, &options)?;
        let tpcb = job.workload;
        let acknowledged = acknowledged(&workers);
        let sums = tpcb.sums(&database)?;
        sums.verify(&acknowledged)?;
        let cut = CutReport {
            acknowledged: acknowledged.values().flatten().sum(),
            found: sums.history_rows.values().sum(),
            sum: sums.history,
            recovery,
        };
        let rows = |number: u64| sums.history_rows.get(&number).copied().unwrap_or(0);
        let tables = prepare::open_tables(&database, tpcb)?;
        let workers = (0..u64::from(job.config.clients)).map(|number| {
            let teller = Teller::new(tpcb, tables, number, rows(number), 1);
            Worker::new(tpcb, number, teller, vec![rows(number)])
        });
        let workers = workers.collect::<Result<_, _>>()?;
        tell(Stage::Recovery, 1, 1);
        let machine = Machine { database, tables, options, size };
        let recovery = Some(recovery);
        Ok((Self { machine, workers, stretch, base, earlier, recovery }, cut))
    }

    /// The rest of the transactions, the last check, and the report.
    fn complete(mut self, job: Job<'_, Tpcb>, tell: Tell<'_>) -> Result<Run, BenchError> {
        let rest = job.config.txns.saturating_sub(self.stretch.tally.counts().commits);
        let mut on_done = |done| tell(Stage::AfterCut, done, rest);
        work(&self.machine.database, &mut self.workers, rest, &mut self.stretch, &mut on_done)?;
        let totals = self.machine.totals().since(&self.base).plus(&self.earlier);
        tell(Stage::Verify, 0, 1);
        job.workload.verify(&self.machine.database, &acknowledged(&self.workers))?;
        tell(Stage::Verify, 1, 1);
        let steadiness = Steadiness::default();
        let measured = Measured {
            tally: self.stretch.tally,
            totals,
            elapsed_s: self.stretch.wall.as_secs_f64(),
            wall_s: self.stretch.wall.as_secs_f64(),
            cpu_s: None,
            memory: self.machine.memory(),
            recovery: self.recovery,
            steadiness,
            observed: self.machine.observe(job, 0, &steadiness),
            regions: crate::store::Store::regions(&self.machine.database)?,
        };
        let space = self.machine.database.runtime().space();
        Ok(compose(job, &self.machine.options, space.device(), measured))
    }
}

impl QuickstartConfig {
    /// The demonstration at scale 1 on an `slc-2k` chip in `directory`.
    #[must_use]
    pub fn new(directory: PathBuf, profile: Profile, options: Vec<Options>) -> Self {
        Self { directory, profile, options, scale: 1, clients: 4, txns: 20_000, seed: 1 }
    }

    fn bench(&self) -> BenchConfig {
        BenchConfig {
            device: BenchDevice::Image(self.directory.clone()),
            scale: self.scale,
            clients: self.clients,
            txns: self.txns,
            warmup: Warmup::None,
            seed: self.seed,
            ..BenchConfig::tpcb(self.profile.clone(), self.options.clone())
        }
    }
}

#[cfg(test)]
mod tests;
