//! All index policies side by side: every order of merging with every order in which frames leave, on
//! every index workload, and the default engine against each of them.
//!
//! Owns the list of policies, the runs, the table and its files. Never knows how a policy works.
//!
//! - **C1** All policies of a workload have the same bytes of memory, the same chip and the same
//!   requests. BFTL needs more pages, and has a chip that they fill to no more than the fill asked
//!   for.
//! - **C2** Flash time is the device's time for every read, program and erase of the window, for
//!   any cause; commits do not wait for the log, as in the papers, but its programs count.
//! - **C3** Equal seeds give equal results, except for processor time.

mod files;
mod ladder;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flagstone_engine::{Durability, Options, OptionsError};
use flagstone_nand::{Counters, Profile, ProfileError, Timing};
use flagstone_opponents::policies::{ReplacementRule, SuperGroup, VictimRule, WithPolicies as _};
use serde::Serialize;

use crate::bench::{self, BenchConfig, BenchError, Images, MemoryBudget, Start, Warmup};
use crate::bftl::replay::{self, Replayed};
use crate::bftl::{self, FlushAt};
use crate::parallel;
use crate::preset;
use crate::reproduce::{Effort, ReproduceError};
use crate::run::{ProgramsByCause, Run};
use crate::workload::index::{Dialect, Keys};

pub use ladder::{STEPS, Step};

/// Name of the engine that the others are compared with.
pub const DEFAULT: &str = "flagstone";

/// The workloads; no other one lies between the ratios of reads and writes of Lazy-Split LRU's
/// figure 7.
const WORKLOADS: [Dialect; 9] = [
    Dialect::WQueryInsert,
    Dialect::WUpdateInsert,
    Dialect::WQueryMix,
    Dialect::WUpdateMix,
    Dialect::WriteIntensive,
    Dialect::ReadIntensive,
    Dialect::Random,
    Dialect::Aggregation,
    Dialect::Oltp,
];
/// Memory of the workloads on names: 36 pages of 2 KiB by the count of the lazy-update paper, 18
/// nodes and 3,072 requests of 35 bytes.
const NAMES_MEMORY: usize = 18 * 2048 + 3072 * 35;
/// Memory of the others, as a share of the bytes loaded.
const MEMORY_SHARE: f64 = 0.1;
/// Live pages of the data region: collection runs.
const FILL: f64 = 0.8;
/// The same for names, which are loaded in order: their leaves are full, so that the first inserts
/// halve them, and the chip is sized for leaves that are ln 2 full.
const NAMES_FILL: f64 = 0.6;

/// BFTL as in its paper, with a larger buffer, and with every request durable before it returns.
/// The first two lose waiting changes when power fails.
const BFTL: [(&str, BftlPolicy); 3] = [
    ("bftl", BftlPolicy { buffer_share: None, flush_at: FlushAt::Full }),
    ("bftl, larger buffer", BftlPolicy { buffer_share: Some(0.25), flush_at: FlushAt::Full }),
    ("bftl, each request", BftlPolicy { buffer_share: None, flush_at: FlushAt::Request }),
];

/// Scope of a comparison.
#[derive(Clone, Debug)]
pub struct Request {
    /// Full or quick.
    pub effort: Effort,
    /// Seed of everything random.
    pub seed: u64,
    /// Runs at a time.
    pub threads: usize,
}

/// One policy: its name and its engine.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Name in the table.
    pub name: String,
    /// The engine.
    pub engine: Engine,
}

/// Engine of a policy.
#[derive(Clone, Debug, PartialEq)]
pub enum Engine {
    /// An engine with these options.
    Options(Box<Options>),
    /// BFTL.
    Bftl(BftlPolicy),
}

/// Configuration of BFTL.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BftlPolicy {
    /// Share of memory that is reservation buffer; none for the paper's 60 units.
    pub buffer_share: Option<f64>,
    /// When units are written.
    pub flush_at: FlushAt,
}

impl Policy {
    fn new(name: impl Into<String>, options: Options) -> Self {
        Self { name: name.into(), engine: Engine::Options(Box::new(options)) }
    }
}

/// Costs of a request in a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Page reads.
    pub reads: f64,
    /// Programs, whole and partial, for any cause.
    pub programs: f64,
    /// Of these, data pages.
    pub data: f64,
    /// Block erases.
    pub erases: f64,
    /// Flash time in microseconds (rule C2).
    pub flash_us: f64,
    /// Processor time in microseconds, the simulated chip's included; none where the system does not
    /// tell it.
    pub cpu_us: Option<f64>,
    /// Look-ups of nodes that memory answered.
    pub hit_ratio: f64,
    /// Blocks of its chip, over the blocks of the engines' chip (rule C1).
    pub chip: f64,
    /// Programs by cause.
    pub causes: BTreeMap<&'static str, f64>,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Workload.
    pub workload: String,
    /// Policy.
    pub policy: String,
    /// Costs of a request.
    pub cost: Cost,
    /// Flash time of the default engine over that of this policy.
    pub default_ratio: f64,
}

/// The whole comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Seed.
    pub seed: u64,
    /// Full or quick.
    pub effort: Effort,
    /// Bytes of memory by workload.
    pub memory: BTreeMap<String, usize>,
    /// By workload and policy.
    pub lines: Vec<Line>,
    /// From a paper's policy to the default, one change after the other.
    pub steps: Vec<Step>,
}

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    /// A profile is refused.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A preset is refused.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// A run failed, which is named, or a file could not be written.
    #[error(transparent)]
    Lab(#[from] ReproduceError),
}

/// Name of a policy's variant in the options: as on the command line.
fn named(value: impl Serialize) -> String {
    let text = serde_json::to_value(value).ok();
    text.and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Orders in which frames leave: quick comparisons leave out the ones near others.
const fn replacements(effort: Effort) -> &'static [ReplacementRule] {
    match effort {
        Effort::Full => &ReplacementRule::ALL,
        Effort::Quick => &[ReplacementRule::Lru, ReplacementRule::Cflru],
    }
}

/// Every policy, the default first: to join, add a line.
///
/// # Errors
///
/// A preset that does not exist.
pub fn policies(effort: Effort) -> Result<Vec<Policy>, OptionsError> {
    let mut policies = vec![
        Policy::new(DEFAULT, preset::options(DEFAULT)?),
        Policy::new("lazy-biggest", preset::options("lazy-biggest")?),
        Policy::new("lazy-cost", preset::options("lazy-cost")?),
    ];
    let whole_pages = replacements(effort).iter().filter(|order| **order != ReplacementRule::LsLru);
    for replacement in whole_pages.copied() {
        let options = preset::options("traditional")?
            .with_policies(|policies| policies.replacement = replacement);
        policies.push(Policy::new(format!("traditional, {}", named(replacement)), options));
    }
    for victim in VictimRule::ALL {
        for replacement in replacements(effort).iter().copied() {
            let base = match replacement {
                // One order for frames and changes: a frame holds nothing that flash lacks.
                ReplacementRule::LsLru => "ls-lru",
                _ => "lazy-biggest",
            };
            let options = preset::options(base)?.with_policies(|policies| {
                (policies.victim, policies.replacement) = (victim, replacement);
                policies.super_group = SuperGroup::Off;
            });
            let name = format!("{}, {}", named(victim), named(replacement));
            policies.push(Policy::new(name, options));
        }
    }
    policies.extend(
        BFTL.map(|(name, policy)| Policy { name: name.to_owned(), engine: Engine::Bftl(policy) }),
    );
    Ok(policies)
}

/// A run: its workload and policy.
#[derive(Clone, Debug)]
struct Cell {
    dialect: Dialect,
    policy: Policy,
}

/// The first run that does the same as the run at `at`: two names may mean one policy.
fn first_alike(all: &[Cell], at: usize) -> usize {
    let unnamed = |options: &Options| {
        let mut options = options.clone();
        options.preset.clear();
        options
    };
    let is_alike = |other: &Cell| match (&other.policy.engine, &all[at].policy.engine) {
        _ if other.dialect != all[at].dialect => false,
        (Engine::Options(one), Engine::Options(two)) => {
            preset::engine_of(one) == preset::engine_of(two) && unnamed(one) == unnamed(two)
        }
        (one, two) => one == two,
    };
    all.iter().position(is_alike).unwrap_or(at)
}

/// Compares every policy on every workload; `progress` hears how many runs of how many are done.
///
/// # Errors
///
/// The first run that failed, by name.
pub fn measure(
    request: &Request,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Comparison, CompareError> {
    let policies = policies(request.effort)?;
    let steps = ladder::policies()?;
    let all: Vec<Cell> = WORKLOADS
        .into_iter()
        .flat_map(|dialect| {
            let policies = policies.iter().chain(&steps).cloned();
            policies.map(move |policy| Cell { dialect, policy })
        })
        .collect();
    let images: Arc<Images> = Arc::default();
    let done = AtomicU64::new(0);
    let firsts: Vec<usize> = (0..all.len()).filter(|at| first_alike(&all, *at) == *at).collect();
    let costs = parallel::each(request.threads, &firsts, |at| {
        let cost = cost_of(request, &all[*at], &images);
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, firsts.len() as u64);
        cost
    });
    let costs = costs.into_iter().collect::<Result<Vec<(Cost, usize)>, CompareError>>()?;
    let of: BTreeMap<usize, &(Cost, usize)> = firsts.iter().copied().zip(&costs).collect();
    let alike = (0..all.len()).filter_map(|at| of.get(&first_alike(&all, at)));
    let costs: Vec<(Cost, usize)> = alike.map(|cost| (*cost).clone()).collect();
    let mut comparison = Comparison {
        seed: request.seed,
        effort: request.effort,
        memory: BTreeMap::new(),
        lines: Vec::new(),
        steps: Vec::new(),
    };
    let each = policies.len() + steps.len();
    for (cells, costs) in all.chunks(each).zip(costs.chunks(each)) {
        let workload = cells[0].dialect.to_string();
        comparison.memory.insert(workload.clone(), costs[0].1);
        let default_us = costs[0].0.flash_us;
        for (cell, (cost, _)) in cells.iter().zip(costs).take(policies.len()) {
            let (policy, cost) = (cell.policy.name.clone(), cost.clone());
            let default_ratio = default_us / cost.flash_us;
            comparison.lines.push(Line { workload: workload.clone(), policy, cost, default_ratio });
        }
        let costs = costs[policies.len()..].iter().map(|(cost, _)| cost.flash_us);
        comparison.steps.extend(ladder::steps(&workload, &costs.collect::<Vec<_>>(), default_us));
    }
    Ok(comparison)
}

/// Requests of a window, and before it.
const fn sizes(effort: Effort, dialect: Dialect) -> (u64, u64) {
    // Workloads that mostly read are longer, so that each changes as much, as far as there are
    // names.
    let factor = match (dialect.mix().select > 500, dialect.keys()) {
        (true, Keys::Uniform) => 4,
        (true, Keys::Names) => 2,
        (false, _) => 1,
    };
    match effort {
        Effort::Full => (100_000 * factor, 50_000 * factor),
        Effort::Quick => (10_000 * factor, 10_000 * factor),
    }
}

fn cost_of(
    request: &Request,
    cell: &Cell,
    images: &Arc<Images>,
) -> Result<(Cost, usize), CompareError> {
    let dialect = cell.dialect;
    let profile = Profile::named(dialect.profile())?;
    let timing = profile.timing;
    let mut config = BenchConfig::index(dialect, profile, Vec::new());
    let (window, warmup) = sizes(request.effort, dialect);
    (config.memory, config.fill) = match dialect.keys() {
        Keys::Names => (MemoryBudget::Bytes(NAMES_MEMORY), NAMES_FILL),
        Keys::Uniform => (MemoryBudget::Share(MEMORY_SHARE), FILL),
    };
    config.txns = window;
    config.warmup = Warmup::Txns(warmup);
    config.start = Start::Image(Arc::clone(images));
    config.seed = request.seed;
    let measured = match &cell.policy.engine {
        Engine::Options(options) => {
            let options = Options::clone(options).with_durability(Durability::Deferred);
            bench::run(&config, &options, &mut |_| ())
                .map(|run| (Cost::of(&run, timing), run.config.memory))
        }
        Engine::Bftl(policy) => replay::bench(&config, dialect, &|config: bftl::Config| {
            let units =
                |share: f64| (config.memory as f64 * share) as usize / config.waiting_size();
            let buffer_units = policy.buffer_share.map_or(config.buffer_units, units);
            bftl::Config { buffer_units, flush_at: policy.flush_at, ..config }
        })
        .map(|(replayed, memory)| (Cost::of_bftl(&replayed, window, timing), memory)),
    };
    measured.map_err(|source: BenchError| {
        let cell = format!("{dialect} {}", cell.policy.name);
        ReproduceError::Run { cell, source }.into()
    })
}

impl Cost {
    fn of(run: &Run, timing: Timing) -> Self {
        let cpu_us = run.cpu_s.map(|cpu_s| cpu_s * 1e6);
        let device = Counters {
            page_reads: run.page_reads,
            page_programs: run.page_programs,
            partial_programs: run.partial_programs,
            block_erases: run.block_erases,
            ..Counters::default()
        };
        let looks = [run.pool_hits, run.pool_misses];
        Self::each(run.commits, &device, &run.programs_by_cause, looks, timing)
            .with_cpu(cpu_us, run.commits)
    }

    fn of_bftl(replayed: &Replayed, requests: u64, timing: Timing) -> Self {
        let totals = &replayed.totals;
        let cpu_us = replayed.cpu_ns.map(|cpu_ns| cpu_ns as f64 / 1e3);
        let looks = [totals.pool_hits, totals.pool_misses];
        let cost = Self::each(requests, &totals.device, &totals.causes(), looks, timing);
        Self { chip: replayed.chip, ..cost.with_cpu(cpu_us, requests) }
    }

    fn with_cpu(self, cpu_us: Option<f64>, requests: u64) -> Self {
        Self { cpu_us: cpu_us.map(|cpu_us| cpu_us / requests as f64), ..self }
    }

    /// Costs of one of so many requests; `looks` are look-ups that memory answered, and others.
    fn each(
        requests: u64,
        device: &Counters,
        programs: &ProgramsByCause,
        looks: [u64; 2],
        timing: Timing,
    ) -> Self {
        let each = |count: u64| count as f64 / requests as f64;
        let flash_ns = device.page_reads * timing.read_ns
            + device.page_programs * timing.program_ns
            + device.partial_programs * timing.partial_program_ns
            + device.block_erases * timing.erase_ns;
        let ProgramsByCause { log, data, delta, metadata, relocation, wear, .. } = *programs;
        let causes = [
            ("log", log),
            ("data", data),
            ("appends", delta),
            ("metadata", metadata),
            ("relocation", relocation),
            ("wear", wear),
        ];
        Self {
            reads: each(device.page_reads),
            programs: each(device.page_programs + device.partial_programs),
            data: each(data),
            erases: each(device.block_erases),
            flash_us: each(flash_ns) / 1000.0,
            cpu_us: None,
            hit_ratio: looks[0] as f64 / (looks[0] + looks[1]).max(1) as f64,
            chip: 1.0,
            causes: causes.map(|(name, count)| (name, each(count))).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use flagstone_nand::SimNand;

    use super::*;

    #[test]
    fn every_pair_of_policies_stands_in_the_list_once() {
        let policies = policies(Effort::Full).unwrap();
        let names: std::collections::BTreeSet<&str> =
            policies.iter().map(|policy| policy.name.as_str()).collect();
        assert_eq!(names.len(), policies.len());
        assert!(names.contains("cost, cfdc") && names.contains("fifo, clock"));
        let profile = Profile::named("ls-lru-nand").unwrap().with_block_count(256).unwrap();
        let device = SimNand::new(&profile, 1);
        for Policy { name, engine } in policies.clone() {
            if let Engine::Options(options) = engine {
                assert_eq!(options.require(&device), Ok(()), "{name}");
            }
        }
        assert_eq!(policies[0].name, DEFAULT);
    }

    #[test]
    fn a_policy_of_two_names_runs_once() {
        let cells = |dialect| {
            let policies =
                policies(Effort::Quick).unwrap().into_iter().chain(ladder::policies().unwrap());
            policies.map(move |policy| Cell { dialect, policy })
        };
        let all: Vec<Cell> = cells(Dialect::Random).chain(cells(Dialect::Oltp)).collect();
        let firsts = (0..all.len()).filter(|at| first_alike(&all, *at) == *at).count();
        let at = |name| all.iter().position(|cell| cell.policy.name == name).unwrap();
        assert_eq!(first_alike(&all, at("biggest, lru")), at("lazy-biggest"));
        assert_eq!(first_alike(&all, at("step 0")), at("lazy-cost"));
        assert!(firsts < all.len() && firsts > all.len() / 2, "{firsts} of {}", all.len());
    }

    /// Goal: the default is no worse than the policies of the papers where most requests write. Method:
    /// a short run of one workload.
    #[test]
    fn the_default_takes_less_flash_time_where_most_requests_write() {
        let request = Request { effort: Effort::Quick, seed: 1, threads: 1 };
        let images = Arc::default();
        let flash_us = |policy: &Policy| {
            let cell = Cell { dialect: Dialect::WriteIntensive, policy: policy.clone() };
            cost_of(&request, &cell, &images).unwrap().0.flash_us
        };
        let policies = policies(Effort::Quick).unwrap();
        let default_us = flash_us(&policies[0]);
        for policy in &policies[1..4] {
            assert!(default_us < flash_us(policy), "{}", policy.name);
        }
    }
}
