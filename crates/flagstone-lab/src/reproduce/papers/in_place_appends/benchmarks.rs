//! The default preset beside whole pages and the paper's scheme, on all of the paper's benchmarks.
//!
//! The paper measures TPC-B alone in its table 1; TPC-C, TATP and LinkBench it names. Chips of pSLC in
//! steady state, the sizes of the data told in the setting.

use flagstone_nand::Profile;

use super::super::super::cell::{Cell, Outcomes};
use super::super::super::figure::{Axis, Drawing, Figure, Panel, Series};
use super::super::super::{Effort, ReproduceError};
use super::{CLIENTS, FILL, PSLC, options};
use crate::bench::{BenchConfig, MemoryBudget, WorkloadKind};
use crate::workload::tpcc::Cardinality;
use crate::workload::{linkbench, tatp};

/// Names of the schemes, and their presets.
const WAYS: [(&str, &str); 3] =
    [("[0x0]", "ipa-0x0"), ("[2x4]", "ipa-2x4"), ("flagstone", "flagstone")];
const BENCHMARKS: [&str; 4] = ["TPC-B", "TPC-C", "TATP", "LinkBench"];

/// Share of the data that memory holds: 2 % of the smaller ones would be no memory at all.
const MEMORY_SHARE: f64 = 0.1;

/// How much of each benchmark runs.
struct Sizes {
    branches: u32,
    warehouses: u32,
    cardinality: Cardinality,
    subscribers: u32,
    nodes: u32,
    bounds: linkbench::Bounds,
    txns: u64,
}

impl Sizes {
    const fn of(effort: Effort) -> Self {
        match effort {
            Effort::Full => Self {
                branches: 64,
                warehouses: 4,
                cardinality: Cardinality::SPEC,
                subscribers: 200_000,
                nodes: 200_000,
                bounds: linkbench::Bounds::SPEC,
                txns: 60_000,
            },
            Effort::Quick => Self {
                branches: 4,
                warehouses: 1,
                cardinality: Cardinality { items: 10_000, customers: 300, undelivered: 90 },
                subscribers: 20_000,
                nodes: 20_000,
                bounds: linkbench::Bounds::SMALL,
                txns: 10_000,
            },
        }
    }
}

/// Runs of the figure, in words.
pub(super) fn setting(effort: Effort) -> String {
    let Sizes { branches, warehouses, cardinality, subscribers, nodes, bounds, .. } =
        Sizes::of(effort);
    format!(
        "the default beside both schemes, on pSLC in steady state: TPC-B with {branches} branches, TPC-C \
         with {warehouses} warehouses of {} items, TATP with {subscribers} subscribers, LinkBench with \
         {nodes} nodes of at most {} links; memory {:.0} % of the data",
        cardinality.items,
        bounds.degree_max,
        100.0 * MEMORY_SHARE
    )
}

/// The figure.
pub(super) fn figure(effort: Effort, seed: u64) -> Result<Figure, ReproduceError> {
    let sizes = Sizes::of(effort);
    let pairs = BENCHMARKS.iter().flat_map(|it| WAYS.iter().map(move |way| (*it, *way)));
    let cells = pairs.map(|(benchmark, (way, preset))| {
        let mut config = config(benchmark, &sizes)?;
        config.clients = CLIENTS;
        config.memory = MemoryBudget::Share(MEMORY_SHARE);
        config.fill = FILL;
        config.txns = sizes.txns;
        config.seed = seed;
        Ok(Cell::bench(format!("{way} {benchmark}"), config, options(preset)?))
    });
    let cells = cells.collect::<Result<_, ReproduceError>>()?;
    Ok(Figure::new("benchmarks", "The default beside both schemes, steady state", cells, draw))
}

fn config(benchmark: &str, sizes: &Sizes) -> Result<BenchConfig, ReproduceError> {
    let mut profile = Profile::named(PSLC.profile)?;
    // Each die has open blocks of its own, and a block is large.
    profile.geometry.die_count = 1;
    let none = Vec::new();
    Ok(match benchmark {
        "TPC-B" => BenchConfig { scale: sizes.branches, ..BenchConfig::tpcb(profile, none) },
        "TPC-C" => {
            let mut config = BenchConfig::tpcc(profile, none);
            if let WorkloadKind::Tpcc { cardinality, .. } = &mut config.workload {
                *cardinality = sizes.cardinality;
            }
            BenchConfig { scale: sizes.warehouses, ..config }
        }
        "TATP" => {
            let config = BenchConfig::tatp(tatp::Dialect::default(), profile, none);
            BenchConfig { scale: sizes.subscribers, ..config }
        }
        _ => {
            let dialect = linkbench::Dialect::default();
            let workload = WorkloadKind::Linkbench { dialect, bounds: sizes.bounds };
            let config = BenchConfig::linkbench(dialect, profile, none);
            BenchConfig { scale: sizes.nodes, workload, ..config }
        }
    })
}

/// Costs counted; a lifetime counts transactions.
#[derive(Clone, Copy, Debug)]
struct Costs {
    tps: f64,
    programs: f64,
    appended: f64,
    moves: f64,
    erases: f64,
    lifetime: f64,
}

impl Costs {
    fn of(outcomes: &Outcomes, cell: &str) -> Result<Self, ReproduceError> {
        let value = |name| outcomes.value(cell, name);
        let commits = value("commits")?;
        let programs = value("page_programs")? + value("partial_programs")?;
        Ok(Self {
            tps: value("tps")?,
            programs: programs / commits,
            appended: value("delta_appends")? / programs.max(1.0),
            moves: 1000.0 * value("gc_migrations")? / commits,
            erases: 1000.0 * value("block_erases")? / commits,
            lifetime: value("lifetime_txns")?,
        })
    }
}

/// Title, unit and value of a chart.
type Value = (&'static str, &'static str, fn(&Costs) -> f64);

const VALUES: [Value; 6] = [
    ("Throughput", "transactions a second of device time", |costs| costs.tps),
    ("Programs", "a transaction", |costs| costs.programs),
    ("Appends", "share of the programs", |costs| costs.appended),
    ("Pages moved by collection", "a thousand transactions", |costs| costs.moves),
    ("Erases", "a thousand transactions", |costs| costs.erases),
    ("Lifetime", "transactions until the blocks are worn out", |costs| costs.lifetime),
];

fn draw(outcomes: &Outcomes) -> Result<Drawing, ReproduceError> {
    let mut drawing = Drawing::default();
    let of_way = |way: &str| {
        let costs = BENCHMARKS.iter().map(|it| Costs::of(outcomes, &format!("{way} {it}")));
        costs.collect::<Result<Vec<_>, _>>()
    };
    let all = WAYS.iter().map(|(way, _)| Ok((*way, of_way(way)?)));
    let all = all.collect::<Result<Vec<_>, ReproduceError>>()?;
    for (title, y, value) in VALUES {
        let series = all.iter().map(|(way, costs)| Series {
            name: (*way).to_owned(),
            values: costs.iter().map(value).collect(),
        });
        drawing.panel(Panel {
            title: title.to_owned(),
            y: y.to_owned(),
            x: String::from("benchmark"),
            axis: Axis::Names(BENCHMARKS.map(str::to_owned).to_vec()),
            series: series.collect(),
        });
    }
    Ok(drawing)
}
