//! Benchmarks: one configuration in, one run object for each preset out.
//!
//! Owns the course of a run: size the chip, load, warm up, measure, verify, restart. Never does a
//! transaction itself: that is the workload's, driven by the event loop or by threads.
//!
//! - **B1** The window begins after the warm-up and covers exactly the transactions asked for, or
//!   the transactions within the time asked for.
//! - **B2** Every run ends with the four sums checked, and every acknowledged commit found; on the
//!   simulator after a power cut and a restart.
//! - **B3** On the simulator only `wall_s` and `cpu_s` depend on the host.

mod chip;
mod images;
pub(crate) mod machine;
pub(crate) mod observe;
pub(crate) mod prepare;
pub(crate) mod report;
pub(crate) mod simulated;
pub(crate) mod threaded;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flagstone_engine::{EngineError, OpenError, Options};
use flagstone_nand::{OpenDeviceError, Profile};
use thiserror::Error;

use crate::medium::Medium;
use crate::preset::{self, EngineKind};
use crate::run::{Run, Runs};
use crate::timed::Timed;
use crate::workload::index::{self, Index};
use crate::workload::linkbench::{self, Linkbench};
use crate::workload::tatp::{self, Tatp};
use crate::workload::tpcb::{self, SumsFault, Tpcb};
use crate::workload::tpcc::{self, Setting, Tpcc};
use crate::workload::ycsb::{self, Ycsb};
use crate::workload::{GivingUp, Workload};

pub use images::Images;
pub use observe::{Course, Moment, Observer, Scene};

/// Commits between two looks at an automatic warm-up.
const WARMUP_STEP: u64 = 500;

/// Workload, engines and device of a benchmark.
#[derive(Clone, Debug)]
pub struct BenchConfig {
    /// Workload and dialect.
    pub workload: WorkloadKind,
    /// Device to run on.
    pub device: BenchDevice,
    /// Profile of the chip; its block count is replaced by the workload's need.
    pub profile: Profile,
    /// Options of each engine, run one after the other. Memory and seed are replaced by this
    /// configuration's.
    pub options: Vec<Options>,
    /// Scale of the workload: branches of TPC-B, warehouses of TPC-C, subscribers of TATP,
    /// nodes of LinkBench, records of YCSB.
    pub scale: u32,
    /// Clients of the simulator, threads elsewhere.
    pub clients: u32,
    /// Which transactions of TPC-C there are.
    pub mix: tpcc::Mix,
    /// Share of the transactions that abort where they would commit; simulator only.
    pub abort_ratio: f64,
    /// Longest random wait of a deadlock's victim before it begins again; simulator only.
    pub backoff: Duration,
    /// Commits of the measured window; the chip is sized for them.
    pub txns: u64,
    /// Device time after which the window ends although transactions are left; simulator only.
    pub time_max: Option<Duration>,
    /// Memory budget.
    pub memory: MemoryBudget,
    /// Bytes of the budget that are held back for deltas; none leaves it to the preset.
    pub held_back: Option<usize>,
    /// Live pages / pages of the data region at the end of the run.
    pub fill: f64,
    /// Size of the chip, and the data beside the workload's.
    pub chip: ChipUse,
    /// Start of a run on the simulator.
    pub start: Start,
    /// Work before the window.
    pub warmup: Warmup,
    /// Seed of workload and engine.
    pub seed: u64,
}

/// Workload of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadKind {
    /// TPC-B.
    Tpcb(tpcb::Dialect),
    /// TPC-C.
    Tpcc {
        /// Whose habits to follow.
        dialect: tpcc::Dialect,
        /// Orders that a Delivery delivers.
        delivery: tpcc::DeliveryUnit,
        /// Rows to begin with.
        cardinality: tpcc::Cardinality,
    },
    /// One table of short keys.
    Index(index::Dialect),
    /// TATP.
    Tatp(tatp::Dialect),
    /// LinkBench.
    Linkbench {
        /// Whose habits to follow.
        dialect: linkbench::Dialect,
        /// How far degrees and lists go.
        bounds: linkbench::Bounds,
    },
    /// YCSB core.
    Ycsb(ycsb::Dialect),
}

impl WorkloadKind {
    /// Whether the workload overwrites a device sooner or later, even with few new rows: only then
    /// is there a steady state to warm up to.
    #[must_use]
    pub const fn overwrites(self) -> bool {
        match self {
            Self::Index(dialect) => !matches!(dialect, index::Dialect::Writes0),
            Self::Ycsb(dialect) => {
                matches!(dialect, ycsb::Dialect::A | ycsb::Dialect::B | ycsb::Dialect::F)
            }
            _ => true,
        }
    }

    /// Smallest and largest scale.
    const fn scales(self) -> ([u32; 2], &'static str) {
        match self {
            Self::Tatp(_) | Self::Ycsb(_) => ([1, 100_000_000], "between 1 and 100,000,000"),
            Self::Linkbench { .. } => {
                ([linkbench::NODES_MIN, 1_000_000_000], "between 1,024 and 1,000,000,000")
            }
            _ => ([1, 10_000], "between 1 and 10,000"),
        }
    }
}

/// Size of a run's chip, and the data beside the workload's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChipUse {
    /// As large as the workload needs to fill it as asked.
    #[default]
    Fitted,
    /// As large as its profile says; the room that the workload leaves free holds cold pages, which
    /// are neither read nor written. The number of warm-up transactions must be known.
    Prefilled,
    /// As large as its profile says, at any fill.
    Whole,
}

/// Start of a run on the simulator.
#[derive(Clone, Debug)]
pub enum Start {
    /// An empty chip, which the engine that is measured loads.
    Load,
    /// An image, loaded once for all runs that share these.
    Image(Arc<Images>),
}

/// Device of a benchmark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BenchDevice {
    /// The simulated chip, on the virtual clock.
    Sim,
    /// A NAND image in this directory, with threads, on the wall clock.
    Image(PathBuf),
    /// A regular file in this directory, with threads, on the wall clock.
    File(PathBuf),
    /// Raw NAND of Linux behind this node, with threads, on the wall clock. Its size is given
    /// ([`ChipUse::Whole`]), and its former contents are lost.
    #[cfg(target_os = "linux")]
    Mtd(PathBuf),
}

/// Memory budget of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemoryBudget {
    /// Share of the bytes of keys and values that are loaded.
    Share(f64),
    /// Bytes.
    Bytes(usize),
}

/// Work before the measured window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Warmup {
    /// Until the chip has been overwritten three times; as many transactions as the window has where
    /// the workload never overwrites it.
    #[default]
    Auto,
    /// Nothing: the window starts right after the load.
    None,
    /// This many transactions.
    Txns(u64),
}

/// Stage of a run, for progress reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Loading the rows.
    Load,
    /// Before the window.
    WarmUp,
    /// The measured window.
    Measure,
    /// Restart and check of the sums.
    Verify,
}

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Stage.
    pub phase: Phase,
    /// Done within the stage.
    pub done: u64,
    /// To be done within the stage.
    pub total: u64,
}

/// Receives progress reports: a few hundred a run.
pub type OnProgress<'a> = &'a mut dyn FnMut(Progress);

/// Most clients that are threads: far more than a device serves at a time, far fewer than a system
/// has room for.
const THREADS_MAX: u32 = 1_000;

/// Why a benchmark gave no result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The configuration contradicts itself.
    #[error("`{option}` must be {must}")]
    Config {
        /// Setting concerned.
        option: &'static str,
        /// The condition that it must meet.
        must: &'static str,
    },
    /// The database could not be created or reopened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The engine refused an operation.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The database is wrong: a transaction is lost or half there.
    #[error("the database is wrong after the run: {0}")]
    Sums(#[from] SumsFault),
    /// The database is wrong: a transaction is lost or half there.
    #[error("the database is wrong: {0}")]
    Conditions(#[from] tpcc::Fault),
    /// The database is wrong: a transaction is lost or half there.
    #[error("the index is wrong: {0}")]
    Index(#[from] index::Fault),
    /// The database is wrong: a transaction is lost or half there.
    #[error("the subscribers are wrong: {0}")]
    Tatp(#[from] tatp::Fault),
    /// The database is wrong: a transaction is lost or half there.
    #[error("the graph is wrong: {0}")]
    Linkbench(#[from] linkbench::Fault),
    /// The database is wrong: a transaction is lost or half there.
    #[error("the records are wrong: {0}")]
    Ycsb(#[from] ycsb::Fault),
    /// The database is still in use when its device is wanted back.
    #[error("the database is still in use")]
    Shared,
    /// The profile cannot carry a chip of the size needed.
    #[error(transparent)]
    Profile(#[from] flagstone_nand::ProfileError),
    /// The image, the file or the node could not be made a device.
    #[error("{}: {source}", path.display())]
    Device {
        /// Which.
        path: PathBuf,
        /// Why.
        source: OpenDeviceError,
    },
    /// The system starts no more threads: take fewer clients.
    #[error("no thread for each client: {0}")]
    Threads(std::io::Error),
    /// A page trace could not be replayed.
    #[error("the replay failed: {0}")]
    Replay(String),
    /// No histogram for the latencies.
    #[error(transparent)]
    Histogram(#[from] hdrhistogram::CreationError),
    /// The observer gave the run up.
    #[error("the run was given up")]
    GivenUp,
    /// Every client waits and nothing is under way that could wake one: a bug of the engine.
    #[error("all clients wait for ever at {now_ns} ns: {waits}")]
    Stalled {
        /// Device time.
        now_ns: u64,
        /// The events they wait for.
        waits: String,
    },
}

impl BenchError {
    /// The error of a device at `path`.
    pub(crate) fn at(path: &Path) -> impl FnOnce(OpenDeviceError) -> Self {
        |source| Self::Device { path: path.into(), source }
    }
}

/// Runs the benchmark with each of its options in turn.
///
/// # Errors
///
/// The first run that fails.
pub fn run_all(config: &BenchConfig, on_progress: OnProgress<'_>) -> Result<Runs, BenchError> {
    let runs = config.options.iter().map(|options| run(config, options, on_progress));
    Ok(Runs { runs: runs.collect::<Result<_, _>>()? })
}

/// Runs the benchmark once, with `options`.
///
/// # Errors
///
/// Why there is no result, or the fault of the database.
pub fn run(
    config: &BenchConfig,
    options: &Options,
    on_progress: OnProgress<'_>,
) -> Result<Run, BenchError> {
    run_observed(config, options, &mut observe::Listener(on_progress))
}

/// Runs the benchmark once, with `options`, while `observer` watches (rule O1).
///
/// # Errors
///
/// As [`run`]; `GivenUp` when the observer gave it up.
pub fn run_observed(
    config: &BenchConfig,
    options: &Options,
    observer: &mut dyn Observer,
) -> Result<Run, BenchError> {
    config.require()?;
    config.require_device_for(options)?;
    let config = &config.clone().with_an_end();
    match config.workload {
        WorkloadKind::Tpcb(dialect) => {
            let workload = &config.tpcb_of(dialect);
            run_job(Job { config, workload }, options, observer)
        }
        WorkloadKind::Tpcc { dialect, delivery, cardinality } => {
            let scale = u16::try_from(config.scale).unwrap_or(u16::MAX);
            let mix = config.mix;
            let setting =
                Setting { delivery, cardinality, mix, ..Setting::new(dialect, scale, config.seed) };
            let workload = &Tpcc::new(setting);
            run_job(Job { config, workload }, options, observer)
        }
        WorkloadKind::Index(dialect) => {
            let workload = &Index::new(dialect, config.scale, config.seed);
            run_job(Job { config, workload }, options, observer)
        }
        WorkloadKind::Tatp(dialect) => {
            let giving_up = config.giving_up();
            let workload = &Tatp { giving_up, ..Tatp::new(dialect, config.scale, config.seed) };
            run_job(Job { config, workload }, options, observer)
        }
        WorkloadKind::Linkbench { dialect, bounds } => {
            let BenchConfig { scale, clients, seed, .. } = *config;
            let setting = linkbench::Setting::new(dialect, scale, clients, seed);
            let giving_up = config.giving_up();
            let setting = linkbench::Setting { bounds, giving_up, ..setting };
            let workload = &Linkbench::new(setting);
            run_job(Job { config, workload }, options, observer)
        }
        WorkloadKind::Ycsb(dialect) => {
            let page_size = config.profile.geometry.page_size * options.parts;
            if page_size < ycsb::PAGE_SIZE_MIN {
                let must = "so many flash pages that a logical page has 4,096 bytes";
                return Err(BenchError::Config { option: "parts", must });
            }
            let giving_up = config.giving_up();
            let workload = Ycsb { giving_up, ..Ycsb::new(dialect, config.scale, config.seed) };
            let requests = config.requests() / u64::from(config.clients.max(1));
            let workload = &workload.with_requests(requests);
            run_job(Job { config, workload }, options, observer)
        }
    }
}

fn run_job<W: Workload>(
    job: Job<'_, W>,
    options: &Options,
    observer: &mut dyn Observer,
) -> Result<Run, BenchError> {
    match &job.config.device {
        BenchDevice::Sim => simulated::run(job, options, observer),
        _ => threaded::run(job, options, observer),
    }
}

/// Device of benchmarks on the simulator.
type Chip = Timed<Medium>;

/// A configuration with its workload.
#[derive(Debug)]
pub(crate) struct Job<'a, W> {
    pub(crate) config: &'a BenchConfig,
    pub(crate) workload: &'a W,
}

impl<W> Clone for Job<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Job<'_, W> {}

impl BenchConfig {
    /// TPC-B at scale 1 on the simulated chip of `profile`: memory a tenth of the data, fill 0.8,
    /// warmed up.
    #[must_use]
    pub fn tpcb(profile: Profile, options: Vec<Options>) -> Self {
        Self {
            workload: WorkloadKind::Tpcb(tpcb::Dialect::Spec),
            device: BenchDevice::Sim,
            profile,
            options,
            scale: 1,
            clients: 1,
            mix: tpcc::Mix::All,
            abort_ratio: 0.0,
            backoff: Duration::ZERO,
            txns: 50_000,
            time_max: None,
            memory: MemoryBudget::Share(0.1),
            held_back: None,
            fill: 0.8,
            chip: ChipUse::Fitted,
            start: Start::Load,
            warmup: Warmup::Auto,
            seed: 1,
        }
    }

    /// TPC-C with one warehouse on the simulated chip of `profile`: memory a tenth of the data,
    /// fill 0.8, warmed up, from an image.
    #[must_use]
    pub fn tpcc(profile: Profile, options: Vec<Options>) -> Self {
        let workload = WorkloadKind::Tpcc {
            dialect: tpcc::Dialect::Spec,
            delivery: tpcc::DeliveryUnit::default(),
            cardinality: tpcc::Cardinality::SPEC,
        };
        let start = Start::Image(Arc::default());
        Self { workload, start, clients: 16, ..Self::tpcb(profile, options) }
    }

    /// An index workload on the simulated chip of `profile`: memory a tenth of the data, fill 0.8,
    /// warmed up, from an image.
    #[must_use]
    pub fn index(dialect: index::Dialect, profile: Profile, options: Vec<Options>) -> Self {
        let workload = WorkloadKind::Index(dialect);
        let start = Start::Image(Arc::default());
        Self { workload, start, ..Self::tpcb(profile, options) }
    }

    /// TATP with 100,000 subscribers on the simulated chip of `profile`: memory a tenth of the data,
    /// fill 0.8, warmed up, from an image.
    #[must_use]
    pub fn tatp(dialect: tatp::Dialect, profile: Profile, options: Vec<Options>) -> Self {
        let workload = WorkloadKind::Tatp(dialect);
        let start = Start::Image(Arc::default());
        Self { workload, start, scale: 100_000, ..Self::tpcb(profile, options) }
    }

    /// LinkBench with 100,000 nodes on the simulated chip of `profile`: memory a tenth of the data,
    /// fill 0.8, warmed up, from an image.
    #[must_use]
    pub fn linkbench(dialect: linkbench::Dialect, profile: Profile, options: Vec<Options>) -> Self {
        let workload = WorkloadKind::Linkbench { dialect, bounds: linkbench::Bounds::SPEC };
        let start = Start::Image(Arc::default());
        Self { workload, start, scale: 100_000, ..Self::tpcb(profile, options) }
    }

    /// YCSB with 100,000 records on the simulated device of `profile`: memory a tenth of the data, fill
    /// 0.8, warmed up, from an image.
    #[must_use]
    pub fn ycsb(dialect: ycsb::Dialect, profile: Profile, options: Vec<Options>) -> Self {
        let workload = WorkloadKind::Ycsb(dialect);
        let start = Start::Image(Arc::default());
        Self { workload, start, scale: 100_000, ..Self::tpcb(profile, options) }
    }

    /// The same, without a warm-up that would never end.
    fn with_an_end(self) -> Self {
        match self.warmup {
            Warmup::Auto if !self.workload.overwrites() => {
                Self { warmup: Warmup::Txns(self.txns), ..self }
            }
            _ => self,
        }
    }

    /// Transactions of warm-up and window, as far as their number is known.
    fn requests(&self) -> u64 {
        let before = match self.warmup {
            Warmup::Auto => self.txns,
            Warmup::None => 0,
            Warmup::Txns(txns) => txns,
        };
        self.txns.saturating_add(before)
    }

    /// Whether clients give up at will.
    fn giving_up(&self) -> GivingUp {
        if self.abort_ratio > 0.0 { GivingUp::AtWill } else { GivingUp::Never }
    }

    /// TPC-B at the scale and with the seed of this configuration.
    #[must_use]
    pub(crate) fn tpcb_of(&self, dialect: tpcb::Dialect) -> Tpcb {
        Tpcb { dialect, scale: self.scale, seed: self.seed }
    }

    /// Classic engines run on the virtual clock only.
    fn require_device_for(&self, options: &Options) -> Result<(), BenchError> {
        let engine = preset::engine_of(options);
        if matches!(engine, EngineKind::Shadow(..) | EngineKind::Records(_))
            && options.techniques().append_scheme.records_max() > 0
        {
            let must = "0x0 with this preset; those that append are called ipa-…";
            return Err(BenchError::Config { option: "append_scheme", must });
        }
        match (engine, &self.device) {
            (EngineKind::Flagstone, _) | (_, BenchDevice::Sim) => Ok(()),
            _ => Err(BenchError::Config { option: "device", must: "sim for a classic engine" }),
        }
    }

    fn require(&self) -> Result<(), BenchError> {
        let refuse = |option, must| Err(BenchError::Config { option, must });
        let ([scale_min, scale_max], scales) = self.workload.scales();
        if !(scale_min..=scale_max).contains(&self.scale) {
            return refuse("scale", scales);
        }
        if self.clients == 0 || self.clients > 100_000 {
            return refuse("clients", "between 1 and 100,000");
        }
        if self.device != BenchDevice::Sim && self.clients > THREADS_MAX {
            return refuse("clients", "1,000 at most off the simulator: each is a thread there");
        }
        let is_index = matches!(self.workload, WorkloadKind::Index(_));
        if is_index && self.clients != 1 {
            return refuse("clients", "1 for an index workload");
        }
        if is_index && self.abort_ratio > 0.0 {
            return refuse("abort-ratio", "0 for an index workload");
        }
        if !(0.0..1.0).contains(&self.abort_ratio) {
            return refuse("abort-ratio", "at least 0 and below 1");
        }
        if self.abort_ratio > 0.0 && self.device != BenchDevice::Sim {
            return refuse("abort-ratio", "0 on anything but the simulator");
        }
        if self.time_max.is_some_and(|time| time.is_zero()) {
            return refuse("seconds", "more than 0");
        }
        if self.time_max.is_some() && self.device != BenchDevice::Sim {
            return refuse("seconds", "left out on anything but the simulator");
        }
        if self.chip == ChipUse::Prefilled && matches!(self.warmup, Warmup::Auto) {
            return refuse("warmup", "a number of transactions on a prefilled chip");
        }
        if self.txns == 0 {
            return refuse("txns", "at least 1");
        }
        if !(0.05..=0.95).contains(&self.fill) {
            return refuse("fill", "between 0.05 and 0.95");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
