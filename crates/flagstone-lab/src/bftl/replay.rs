//! An index workload on BFTL: the requests that the engines get, one after the other, each checked.
//!
//! - **R1** Rows are loaded as the engines load them, then the warm-up, then the window. Counters
//!   are the device's.
//! - **R2** The result of a query is compared with the rows that the requests before it left; at
//!   the end, everything.

use flagstone_engine::{EngineError, EngineStats, Options};
use flagstone_nand::{Profile, ProfileError, SimNand};
use flagstone_space::SpaceError;

use super::{Bftl, BftlError, BftlStats, Config};
use crate::bench::simulated::thread_cpu_ns;
use crate::bench::{BenchConfig, BenchError, Job, Warmup};
use crate::reproduce::cell::Outcome;
use crate::run::Totals;
use crate::workload::Workload as _;
use crate::workload::index::{Dialect, Index, Request, Requests};

/// Requests between two checkpoints of the mapping, as in the classic engine's presets.
const CHECKPOINT_REQUESTS: u64 = 5_000;
/// Blocks that hold no data: the anchor ring, and the blocks that the floor keeps for a log.
const FIXED_BLOCKS: u32 = 6;
/// Chips tried until one is not fuller than asked.
const CHIPS_MAX: u32 = 8;

/// Device and sizes of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// Profile of the chip.
    pub profile: &'a Profile,
    /// Blocks of the chip, as for the engines; more where the chip would be fuller than `fill`.
    pub block_count: u32,
    /// Live pages over pages for data at the end, at most.
    pub fill: f64,
    /// Requests before the window.
    pub warmup: u64,
    /// Requests of the window.
    pub requests: u64,
}

/// Counters of a window.
#[derive(Clone, Debug, Default)]
pub struct Replayed {
    /// Counters of device and space; pool and leaves are nodes in memory.
    pub totals: Totals,
    /// Counters of the layer.
    pub layer: BftlStats,
    /// Blocks of the chip, over the number of blocks given.
    pub chip: f64,
    /// Live pages over pages for data at the end.
    pub fill: f64,
    /// Bytes of the node translation table at the end.
    pub table_bytes: usize,
    /// Processor time, where the system tells it.
    pub cpu_ns: Option<u64>,
}

/// Why a replay ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The store failed.
    #[error(transparent)]
    Bftl(#[from] BftlError),
    /// The chip is refused.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A request did not find the expected rows (rule R2).
    #[error("request {number} found {found:?} instead of {expected:?}")]
    Wrong {
        /// Number of the request.
        number: u64,
        /// The rows it found.
        found: Vec<(u64, u32)>,
        /// The expected rows.
        expected: Vec<(u64, u32)>,
    },
}

impl ReplayError {
    fn is_full(&self) -> bool {
        matches!(self, Self::Bftl(BftlError::Space(SpaceError::Full)))
    }
}

impl From<ReplayError> for BenchError {
    fn from(error: ReplayError) -> Self {
        match error {
            ReplayError::Bftl(BftlError::Space(error)) => Self::Engine(EngineError::from(error)),
            ReplayError::Profile(error) => Self::Profile(error),
            error => Self::Replay(error.to_string()),
        }
    }
}

/// Runs the benchmark of an index on BFTL, with the memory, the chip and the requests that an
/// engine would have: gives its counters, and the bytes of memory. `adapt` changes BFTL's
/// configuration.
///
/// # Errors
///
/// As [`run`]; the configuration is refused.
pub(crate) fn bench(
    config: &BenchConfig,
    dialect: Dialect,
    adapt: &dyn Fn(Config) -> Config,
) -> Result<(Replayed, usize), BenchError> {
    let index = Index::new(dialect, config.scale, config.seed);
    let job = Job { config, workload: &index };
    let options = job.engine_options(&Options::default());
    let (profile, size) = job.chip(&options, &index.first_estimate(config.clients))?;
    let warmup = if let Warmup::Txns(warmup) = config.warmup { warmup } else { 0 };
    let setup = Setup {
        profile: &profile,
        block_count: size.block_count(),
        fill: config.fill,
        warmup,
        requests: config.txns,
    };
    let own = adapt(Config::new(dialect.keys().size(), options.memory));
    Ok((run(&index, own, setup)?, options.memory))
}

impl Replayed {
    /// Numbers as a run of an engine reports them.
    pub(crate) fn outcome(&self) -> Outcome {
        let totals = &self.totals;
        let counts = [
            ("page_reads", totals.device.page_reads),
            ("page_programs", totals.device.page_programs),
            ("block_erases", totals.device.block_erases),
            ("programs_by_cause.data", totals.causes().data),
            ("leaf_references", totals.pool_hits + totals.pool_misses),
            ("leaf_misses", totals.pool_misses),
            ("compactions", self.layer.compactions),
            ("table_bytes", self.table_bytes as u64),
        ];
        let outcome = Outcome::default();
        counts.into_iter().fold(outcome, |outcome, (name, count)| outcome.with(name, count as f64))
    }
}

/// Runs `index` on BFTL.
///
/// # Errors
///
/// The store failed, or a request did not find the expected rows.
pub fn run(index: &Index, config: Config, setup: Setup<'_>) -> Result<Replayed, ReplayError> {
    let given = f64::from(setup.block_count);
    let mut setup = setup;
    let mut chips = 1;
    loop {
        let replayed = run_on(index, config, setup);
        let data_blocks = f64::from(setup.block_count.saturating_sub(FIXED_BLOCKS));
        let more = match &replayed {
            Ok(replayed) => replayed.fill / setup.fill,
            Err(error) if error.is_full() => 1.5,
            Err(_) => 1.0,
        };
        let block_count = (data_blocks * more).ceil() as u32 + FIXED_BLOCKS;
        if block_count <= setup.block_count || chips == CHIPS_MAX {
            let chip = f64::from(setup.block_count) / given;
            return replayed.map(|replayed| Replayed { chip, ..replayed });
        }
        (setup.block_count, chips) = (block_count, chips + 1);
    }
}

fn run_on(index: &Index, config: Config, setup: Setup<'_>) -> Result<Replayed, ReplayError> {
    let profile = setup.profile.clone().with_block_count(setup.block_count)?;
    let mut store = Bftl::format(SimNand::new(&profile, index.seed), config)?;
    for (number, (key, pointer)) in (1..).zip(index.rows_to_load()) {
        store.put(key, pointer)?;
        if number % CHECKPOINT_REQUESTS == 0 {
            store.checkpoint()?;
        }
    }
    store.flush()?;
    store.checkpoint()?;
    let mut client = Client { requests: index.requests(), store, number: 0 };
    client.run(setup.warmup)?;
    client.store.reset_stats();
    let cpu_ns = thread_cpu_ns();
    client.run(setup.requests)?;
    let cpu_ns = thread_cpu_ns().zip(cpu_ns).map(|(after, before)| after - before);
    let (totals, layer) = client.counted();
    let mut replayed = Replayed { totals, layer, cpu_ns, ..Replayed::default() };
    let data_blocks = setup.block_count.saturating_sub(FIXED_BLOCKS);
    let data_pages = data_blocks * profile.geometry.pages_per_block;
    replayed.fill = f64::from(client.store.live_pages()) / f64::from(data_pages.max(1));
    replayed.table_bytes = client.store.table_bytes();
    client.check_all()?;
    Ok(replayed)
}

/// A client and its tree.
struct Client {
    requests: Requests,
    store: Bftl<SimNand>,
    number: u64,
}

impl Client {
    fn run(&mut self, count: u64) -> Result<(), ReplayError> {
        for _ in 0..count {
            self.number += 1;
            let request = self.requests.next();
            self.request(&request)?;
            self.store.end_request()?;
            if self.number.is_multiple_of(CHECKPOINT_REQUESTS) {
                self.store.checkpoint()?;
            }
        }
        Ok(())
    }

    fn request(&mut self, request: &Request) -> Result<(), ReplayError> {
        match request {
            Request::Select(key) => {
                let found = self.store.get(*key)?.map(|pointer| (*key, pointer));
                let expected = self.requests.get(*key).map(|pointer| (*key, pointer));
                self.check(found.into_iter().collect(), expected.into_iter().collect())
            }
            Request::SelectRange(key) => {
                let expected = self.requests.range(*key);
                let found = self.store.range(*key, Index::range_rows())?;
                self.check(found, expected)
            }
            Request::Insert(rows) | Request::Modify(rows) => {
                for (key, pointer) in rows {
                    self.store.put(*key, *pointer)?;
                }
                Ok(())
            }
            Request::Delete(keys) => {
                for key in keys {
                    self.store.delete(*key)?;
                }
                Ok(())
            }
        }
    }

    fn check_all(&mut self) -> Result<(), ReplayError> {
        let expected = self.requests.all();
        let found = self.store.range(0, usize::MAX)?;
        if found == expected {
            return Ok(());
        }
        // The first difference tells more than all rows.
        let place = found.iter().zip(&expected).take_while(|(one, other)| one == other).count();
        let at = |rows: &[(u64, u32)]| rows.get(place).copied().into_iter().collect();
        self.check(at(&found), at(&expected))
    }

    fn check(&self, found: Vec<(u64, u32)>, expected: Vec<(u64, u32)>) -> Result<(), ReplayError> {
        let number = self.number;
        if found == expected { Ok(()) } else { Err(ReplayError::Wrong { number, found, expected }) }
    }

    fn counted(&self) -> (Totals, BftlStats) {
        let layer = self.store.stats();
        let engine = EngineStats::default();
        let mut totals = Totals::of(self.store.device(), &self.store.space_stats(), &engine);
        totals.pool_hits = layer.hits;
        totals.pool_misses = layer.references - layer.hits;
        (totals, layer)
    }
}
