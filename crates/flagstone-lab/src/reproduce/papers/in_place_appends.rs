//! In-Place Appends: TPC-B on the paper's board, whole pages against 2x4 in two modes.
//!
//! Owns the sizes and the claims of this paper. Questions that the paper leaves open are decided
//! here and told in the setting.
//!
//! Table 1 of the paper counts the work of two hours from a formatted chip on, in which the faster
//! schemes make more transactions. So each scheme runs as many transactions as it made there, and
//! stands beside the others a transaction and a host write; then all of them run in steady state,
//! where the blocks that were free at the start are long used up. The paper counts the erases of
//! collection. Here every block is erased when it is taken, even one that was empty before: table 1
//! counts the blocks that collection emptied, the steady runs count erases.

mod benchmarks;
mod disturb;
mod interfaces;
mod logging;

use flagstone_engine::{Durability, Options};
use flagstone_nand::Profile;

use super::super::cell::{Cell, Outcomes};
use super::super::figure::{Axis, Drawing, Figure, Panel, Series};
use super::super::rule::{Claim, change};
use super::super::{Effort, Experiment, ReproduceError};
use crate::bench::{BenchConfig, MemoryBudget, Start, Warmup, WorkloadKind};
use crate::preset;
use crate::workload::tpcb;

/// A column of table 1, with the paper's counts of two hours.
#[derive(Clone, Copy, Debug)]
struct Column {
    name: &'static str,
    preset: &'static str,
    profile: &'static str,
    /// Share of the host's writes that are appends.
    appended: f64,
    host_reads: f64,
    host_writes: f64,
    migrations: f64,
    erases: f64,
    /// Transactions a second.
    tps: f64,
}

const WHOLE: Column = Column {
    name: "[0x0]",
    preset: "ipa-0x0",
    profile: "openssd-jasmine-mlc",
    appended: 0.0,
    host_reads: 3_779_926.0,
    host_writes: 2_028_626.0,
    migrations: 605_047.0,
    erases: 15_839.0,
    tps: 260.0,
};
const PSLC: Column = Column {
    name: "[2x4] pSLC",
    preset: "ipa-2x4",
    profile: "openssd-jasmine-pslc",
    appended: 0.67,
    host_reads: 5_540_034.0,
    host_writes: 3_047_538.0,
    migrations: 153_201.0,
    erases: 7_401.0,
    tps: 380.0,
};
const ODD: Column = Column {
    name: "[2x4] odd-MLC",
    preset: "ipa-2x4",
    profile: "openssd-jasmine-odd-mlc",
    appended: 0.49,
    host_reads: 4_875_961.0,
    host_writes: 2_372_017.0,
    migrations: 315_228.0,
    erases: 7_625.0,
    tps: 313.0,
};
const COLUMNS: [Column; 3] = [WHOLE, PSLC, ODD];

/// Seconds of the paper's runs.
const PAPER_S: f64 = 7_200.0;

/// Page invalidations and collection's work in all, from the abstract.
const INVALIDATIONS: f64 = -0.67;
const COLLECTION: f64 = -0.80;
/// "Doubling the longevity."
const LIFETIME: f64 = 1.0;

/// Branches of the paper's database, which it does not name. Its counts name them: collection found
/// 30 % of a victim live, which greedy collection does at a fill of 0.57; the pages that were
/// programmed and not erased again, 606,000, were free at the start; so the data took 800,000 pages
/// of 16 KiB.
const BRANCHES: f64 = 1_024.0;
/// Share of the chip's pages that hold data at the end.
const FILL: f64 = 0.57;
/// Share of the data that memory holds: every account misses in the paper (two reads a transaction, in
/// a heap and its index).
const MEMORY_SHARE: f64 = 0.02;
const CLIENTS: u32 = 8;

/// Bytes of a delta-record on these chips: a code word.
const SLOT_SIZE: f64 = 512.0;

/// Schemes that steady runs compare, beside the columns of the table.
const SCHEMES: [&str; 4] = ["ipa-0x0", "ipa-2x4", "ipa-runs", "ipa-auto"];

#[derive(Clone, Copy, Debug)]
struct Sizes {
    branches: u32,
    /// Dies at most: each has open blocks of its own.
    dies: u32,
    /// Transactions of a steady run.
    steady_txns: u64,
}

impl Sizes {
    const fn of(effort: Effort) -> Self {
        match effort {
            Effort::Full => Self { branches: 64, dies: 8, steady_txns: 60_000 },
            Effort::Quick => Self { branches: 8, dies: 1, steady_txns: 10_000 },
        }
    }

    /// Share of the paper's sizes.
    fn share(&self) -> f64 {
        f64::from(self.branches) / BRANCHES
    }
}

/// The experiment.
pub(super) fn experiment(effort: Effort, seed: u64) -> Result<Experiment, ReproduceError> {
    let sizes = Sizes::of(effort);
    let columns = |make: &dyn Fn(&Column) -> Result<Cell, ReproduceError>| {
        COLUMNS.iter().map(make).collect::<Result<Vec<_>, _>>()
    };
    let formatted = columns(&|column| from_formatted(&sizes, column, seed))?;
    let steady = columns(&|column| in_steady_state(&sizes, column, seed))?;
    let floats = columns(&|column| with_floats(&sizes, column, seed))?;
    let schemes = SCHEMES.map(|preset| scheme(&sizes, preset, seed));
    let schemes = schemes.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(Experiment {
        paper: "in-place-appends",
        title: "In-Place Appends",
        setting: setting(&sizes, effort),
        figures: vec![
            Figure::new(
                "table-1",
                "Table 1: TPC-B from a formatted chip, as many transactions as in two hours",
                formatted,
                |outcomes| table(outcomes, "formatted"),
            ),
            Figure::new("table-1-steady", "Table 1 in steady state", steady, steady_table),
            Figure::new(
                "table-1-floats",
                "Table 1 with balances that are floating-point numbers, from a formatted chip",
                floats,
                |outcomes| table(outcomes, "floats"),
            ),
            Figure::new("schemes", "Fixed and learned schemes, in steady state", schemes, compared),
            logging::figure(effort, seed),
            interfaces::figure(&sizes, seed)?,
            disturb::figure(seed),
            benchmarks::figure(effort, seed)?,
        ],
    })
}

fn setting(sizes: &Sizes, effort: Effort) -> Vec<String> {
    vec![
        format!(
            "TPC-B with {} branches, 1/{:.0} of what the paper's counts lead to; {CLIENTS} clients",
            sizes.branches,
            1.0 / sizes.share()
        ),
        format!("data on {:.0} % of the chip's pages at the end", 100.0 * FILL),
        format!("memory {:.0} % of the data", 100.0 * MEMORY_SHARE),
        String::from(
            "profiles openssd-jasmine-mlc, -pslc and -odd-mlc; times assumed, the board's are unpublished",
        ),
        String::from(
            "no commit waits for the log, which the paper's counts leave no room for: it lies on the \
             same chip, in whole pages",
        ),
        String::from("a delta-record takes a code word of 512 bytes, tens of bytes in the paper"),
        logging::setting(effort),
        String::from(
            "conventional interface: profiles openssd-jasmine-pslc-ssd and -odd-mlc-ssd, drives of the same \
             chips that get whole pages and collect by themselves; reserve 7 %, assumed",
        ),
        String::from(
            "forced appends: rates of disturbed bits are assumed, one in 1,000 on the word line and one in \
             4,000 beside it",
        ),
        benchmarks::setting(effort),
    ]
}

/// The benchmark of a column.
fn tpcb(
    sizes: &Sizes,
    column: &Column,
    seed: u64,
) -> Result<(BenchConfig, Options), ReproduceError> {
    let mut profile = Profile::named(column.profile)?;
    profile.geometry.die_count = profile.geometry.die_count.min(sizes.dies);
    let mut config = BenchConfig::tpcb(profile, Vec::new());
    config.scale = sizes.branches;
    config.clients = CLIENTS;
    config.memory = MemoryBudget::Share(MEMORY_SHARE);
    config.fill = FILL;
    config.seed = seed;
    Ok((config, options(column.preset)?))
}

fn options(preset: &str) -> Result<Options, ReproduceError> {
    Ok(preset::options(preset)?.with_durability(Durability::Deferred))
}

/// As many transactions as the paper's two hours made, right after the load.
fn from_formatted(sizes: &Sizes, column: &Column, seed: u64) -> Result<Cell, ReproduceError> {
    let (mut config, options) = tpcb(sizes, column, seed)?;
    config.warmup = Warmup::None;
    config.start = Start::Load;
    config.txns = (column.tps * PAPER_S * sizes.share()) as u64;
    Ok(Cell::bench(format!("{} formatted", column.name), config, options))
}

fn with_floats(sizes: &Sizes, column: &Column, seed: u64) -> Result<Cell, ReproduceError> {
    let (mut config, options) = tpcb(sizes, column, seed)?;
    config.workload = WorkloadKind::Tpcb(tpcb::Dialect::ShoreKits);
    config.warmup = Warmup::None;
    config.start = Start::Load;
    config.txns = (column.tps * PAPER_S * sizes.share()) as u64;
    Ok(Cell::bench(format!("{} floats", column.name), config, options))
}

fn in_steady_state(sizes: &Sizes, column: &Column, seed: u64) -> Result<Cell, ReproduceError> {
    let (mut config, options) = tpcb(sizes, column, seed)?;
    config.txns = sizes.steady_txns;
    Ok(Cell::bench(format!("{} steady", column.name), config, options))
}

fn scheme(sizes: &Sizes, preset: &'static str, seed: u64) -> Result<Cell, ReproduceError> {
    let (mut config, options) = tpcb(sizes, &Column { preset, ..PSLC }, seed)?;
    config.txns = sizes.steady_txns;
    Ok(Cell::bench(format!("{preset} pSLC"), config, options))
}

/// Counts of a run, as the paper's table has them.
#[derive(Clone, Copy, Debug)]
struct Counts {
    appended: f64,
    /// A transaction.
    host_reads: f64,
    host_writes: f64,
    out_of_place: f64,
    /// A host write.
    migrations: f64,
    erases: f64,
    /// Blocks that collection emptied, a host write.
    victims: f64,
    /// In all.
    all_migrations: f64,
    all_victims: f64,
    gc_time_s: f64,
    tps: f64,
    lifetime: f64,
}

impl Counts {
    fn of(outcomes: &Outcomes, cell: &str) -> Result<Self, ReproduceError> {
        let value = |name| outcomes.value(cell, name);
        let commits = value("commits")?;
        let (appends, whole) = (value("delta_appends")?, value("out_of_place_writes")?);
        let writes = appends + whole;
        let (migrations, erases) = (value("gc_migrations")?, value("block_erases")?);
        let victims = value("gc_victims")?;
        Ok(Self {
            appended: appends / writes,
            host_reads: value("pool_misses")? / commits,
            host_writes: writes / commits,
            out_of_place: whole / commits,
            migrations: migrations / writes,
            erases: erases / writes,
            victims: victims / writes,
            all_migrations: migrations,
            all_victims: victims,
            gc_time_s: value("gc_time_s")? / commits,
            tps: value("tps")?,
            lifetime: value("lifetime_txns")?,
        })
    }
}

impl Column {
    fn transactions(&self) -> f64 {
        self.tps * PAPER_S
    }
}

/// Title, unit and value of a chart.
type Value = (&'static str, &'static str, fn(&Counts) -> f64);

/// Values that the charts show.
const VALUES: [Value; 7] = [
    ("Appends", "share of the host's writes", |counts| counts.appended),
    ("Host reads", "pages a transaction", |counts| counts.host_reads),
    ("Host writes", "pages and appends a transaction", |counts| counts.host_writes),
    ("Pages moved by collection", "pages a host write", |counts| counts.migrations),
    ("Blocks emptied by collection", "blocks a host write", |counts| counts.victims),
    ("Erases", "blocks a host write", |counts| counts.erases),
    ("Throughput", "transactions a second of device time", |counts| counts.tps),
];

fn panels(drawing: &mut Drawing, names: &[String], counts: &[Counts]) {
    for (title, y, value) in VALUES {
        drawing.panel(Panel {
            title: title.to_owned(),
            y: y.to_owned(),
            x: String::from("scheme"),
            axis: Axis::Names(names.to_vec()),
            series: vec![Series {
                name: title.to_lowercase(),
                values: counts.iter().map(value).collect(),
            }],
        });
    }
}

fn counts_of(outcomes: &Outcomes, when: &str) -> Result<Vec<Counts>, ReproduceError> {
    COLUMNS.iter().map(|it| Counts::of(outcomes, &format!("{} {when}", it.name))).collect()
}

fn table(outcomes: &Outcomes, when: &str) -> Result<Drawing, ReproduceError> {
    let all = counts_of(outcomes, when)?;
    let mut drawing = Drawing::default();
    panels(&mut drawing, &COLUMNS.map(|column| column.name.to_owned()), &all);
    let [whole, ..] = all.as_slice() else { return Ok(drawing) };
    for (column, ours) in COLUMNS.iter().zip(&all).skip(1) {
        let name = column.name;
        let per_txn = |it: &Column, value: f64| value / it.transactions();
        let against =
            |paper: fn(&Column) -> f64| Claim::Change(change(paper(&WHOLE), paper(column)));
        let mut claim = |item: &str, claim: Claim, ours: f64| {
            drawing.claim(format!("{item}, {name}"), &claim, &[ours]);
        };
        claim("share of appends", Claim::Share(column.appended), ours.appended);
        let reads = change(per_txn(&WHOLE, WHOLE.host_reads), per_txn(column, column.host_reads));
        let ours_reads = change(whole.host_reads, ours.host_reads);
        claim("host reads a transaction", change_or_none(reads), ours_reads);
        let writes =
            change(per_txn(&WHOLE, WHOLE.host_writes), per_txn(column, column.host_writes));
        let ours_writes = change(whole.host_writes, ours.host_writes);
        claim("host writes a transaction", change_or_none(writes), ours_writes);
        claim(
            "pages moved in the paper's time",
            against(|it| it.migrations),
            change(whole.all_migrations, ours.all_migrations),
        );
        claim(
            "collected blocks in the paper's time",
            against(|it| it.erases),
            change(whole.all_victims, ours.all_victims),
        );
        claim(
            "pages moved a host write",
            against(|it| it.migrations / it.host_writes),
            change(whole.migrations, ours.migrations),
        );
        claim(
            "collected blocks a host write",
            against(|it| it.erases / it.host_writes),
            change(whole.victims, ours.victims),
        );
        claim("throughput", against(|it| it.tps), change(whole.tps, ours.tps));
    }
    if let [whole, pslc, _] = all.as_slice() {
        let invalidated = change(whole.out_of_place, pslc.out_of_place);
        drawing.claim("page invalidations", &Claim::Change(INVALIDATIONS), &[invalidated]);
        let collection = change(whole.gc_time_s, pslc.gc_time_s);
        drawing.claim("time of collection", &Claim::Change(COLLECTION), &[collection]);
        // Cells of pSLC endure ten times as many erases; the worth of the scheme alone shows in
        // collected blocks.
        let lifetime = whole.victims * whole.host_writes / (pslc.victims * pslc.host_writes) - 1.0;
        drawing.claim("transactions a collected block", &Claim::Change(LIFETIME), &[lifetime]);
    }
    Ok(drawing)
}

/// Small changes of the paper's counts are none.
fn change_or_none(paper: f64) -> Claim {
    if paper.abs() <= super::super::rule::NO_CHANGE_MAX {
        Claim::NoChange
    } else {
        Claim::Change(paper)
    }
}

/// The paper's own counts, computed as if every programmed block were erased again.
fn steady_table(outcomes: &Outcomes) -> Result<Drawing, ReproduceError> {
    let all = counts_of(outcomes, "steady")?;
    let mut drawing = Drawing::default();
    panels(&mut drawing, &COLUMNS.map(|column| column.name.to_owned()), &all);
    let [whole, ..] = all.as_slice() else { return Ok(drawing) };
    for ((column, pages), ours) in COLUMNS.iter().zip([128.0, 64.0, 128.0]).zip(&all).skip(1) {
        let programs = |it: &Column| it.host_writes * (1.0 - it.appended) + it.migrations;
        let erases = |it: &Column, pages: f64| programs(it) / pages / it.transactions();
        let paper = change(erases(&WHOLE, 128.0), erases(column, pages));
        let per_txn = |it: &Counts| it.erases * it.host_writes;
        let ours = change(per_txn(whole), per_txn(ours));
        let item = format!("erases a transaction, {}, from the paper's programs", column.name);
        drawing.claim(item, &Claim::Change(paper), &[ours]);
    }
    Ok(drawing)
}

fn compared(outcomes: &Outcomes) -> Result<Drawing, ReproduceError> {
    let mut drawing = Drawing::default();
    let counts = SCHEMES.iter().map(|preset| Counts::of(outcomes, &format!("{preset} pSLC")));
    let counts = counts.collect::<Result<Vec<_>, _>>()?;
    panels(&mut drawing, &SCHEMES.map(str::to_owned), &counts);
    drawing.panel(Panel {
        title: String::from("Lifetime"),
        y: String::from("transactions until the blocks are worn out"),
        x: String::from("scheme"),
        axis: Axis::Names(SCHEMES.map(str::to_owned).to_vec()),
        series: vec![Series {
            name: String::from("lifetime"),
            values: counts.iter().map(|it| it.lifetime).collect(),
        }],
    });
    Ok(drawing)
}
