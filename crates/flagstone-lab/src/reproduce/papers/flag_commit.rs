//! Flag commit: throughput, garbage collection and restart on TPC-C, against cyclic commit.
//!
//! Owns the sizes and the claims of this paper. Questions that the paper leaves open are decided
//! here and told in the setting. The extended protocols, figures 15 to 19, are in [`extended`].

mod extended;

use std::sync::Arc;
use std::time::Duration;

use flagstone_engine::Options;
use flagstone_nand::Profile;

use super::super::cell::{Cell, Outcomes};
use super::super::figure::{Axis, Drawing, Figure, Panel, Series};
use super::super::rule::{Claim, Rank, change};
use super::super::{Effort, Experiment, ReproduceError};
use crate::bench::{BenchConfig, ChipUse, Images, MemoryBudget, Start, Warmup, WorkloadKind};
use crate::preset;
use crate::workload::tpcc::{Cardinality, DeliveryUnit, Dialect};

/// Chip of the paper.
const PROFILE: &str = "flagcommit-slc";
const PROTOCOLS: [&str; 4] = ["cfc", "afc", "bpcc", "scc"];
/// Share of transactions that abort, but in figure 14.
const ABORTS: f64 = 0.05;
/// Shares of figure 14.
const ABORT_RATIOS: [f64; 6] = [0.01, 0.05, 0.10, 0.20, 0.30, 0.50];

const CLIENTS: u32 = 50;
/// Physical pages of a logical one: 8 KiB of 2 KiB.
const PARTS: u32 = 4;
/// Images of a full chip that memory holds beside the runs on them: runs of a protocol follow each
/// other.
const IMAGES_MAX: usize = 1;
/// Bytes of a frame's page.
const PAGE_SIZE: usize = 8192;
/// Longest wait of a deadlock's victim: about a transaction's execution time.
const BACKOFF: Duration = Duration::from_millis(100);

/// Sizes of the experiment.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    warehouses: u32,
    cardinality: Cardinality,
    /// Blocks of the chip; none is the profile's own size.
    blocks: Option<u32>,
    /// Frames of the pool.
    frames: usize,
    txns: u64,
    warmup: u64,
}

impl Sizes {
    fn of(effort: Effort) -> Self {
        match effort {
            Effort::Full => Self {
                warehouses: 20,
                cardinality: Cardinality::SPEC,
                blocks: None,
                frames: 512,
                // Eleven pages a commit: the free pages turn over once every 36,000 commits.
                txns: 120_000,
                warmup: 60_000,
            },
            // Chip and database a hundredth; the clients, and so frames and warehouses, stay.
            Effort::Quick => Self {
                warehouses: 20,
                cardinality: Cardinality { items: 1_000, customers: 30, undelivered: 9 },
                blocks: Some(2_621),
                frames: 512,
                txns: 2_000,
                warmup: 2_000,
            },
        }
    }
}

/// The experiment.
pub(super) fn experiment(effort: Effort, seed: u64) -> Result<Experiment, ReproduceError> {
    let sizes = Sizes::of(effort);
    let images = Arc::new(Images::at_most(IMAGES_MAX));
    let cells = |ratios: &[f64]| -> Result<Vec<Cell>, ReproduceError> {
        let pairs = PROTOCOLS.iter().flat_map(|name| ratios.iter().map(move |at| (*name, *at)));
        pairs.map(|(name, ratio)| cell(&sizes, name, ratio, seed, &images)).collect()
    };
    Ok(Experiment {
        paper: "flag-commit",
        title: "Flag commit",
        setting: setting(&sizes),
        figures: vec![
            Figure::new(
                "12-throughput",
                "Figure 12: throughput and execution time",
                cells(&[ABORTS])?,
                throughput,
            ),
            Figure::new(
                "13-collection",
                "Figure 13: garbage collection and restart",
                cells(&[ABORTS])?,
                collection,
            ),
            Figure::new("14-aborts", "Figure 14: share of aborts", cells(&ABORT_RATIOS)?, aborts),
            Figure::new("table-3", "Table 3: memory of the tables", cells(&[ABORTS])?, memory),
            Figure::new("cost-model", "Section 3.3: the cost model", cells(&[ABORTS])?, cost_model),
        ]
        .into_iter()
        .chain(extended::figures(effort, seed, &images)?)
        .collect(),
    })
}

fn setting(sizes: &Sizes) -> Vec<String> {
    vec![
        format!(
            "TPC-C (dbt2), {} warehouses, {CLIENTS} clients without think time",
            sizes.warehouses
        ),
        format!("{} transactions after {} of warm-up", sizes.txns, sizes.warmup),
        format!("{} frames of 8 KiB, LRU; {:.0} % aborts", sizes.frames, 100.0 * ABORTS),
        String::from("profile flagcommit-slc, the rest of the chip filled with cold pages"),
        String::from("locks on pages, to the end; a deadlock's victim waits up to 100 ms"),
        String::from("cfc and afc with the block-based technique; CPU time is not counted"),
        String::from("extended protocols and wal: locks on records, three transactions a page"),
        String::from("restart reads block summaries; beside it, every page's spare area"),
    ]
}

fn name_of(protocol: &str, ratio: f64) -> String {
    format!("{protocol} {:.0} %", 100.0 * ratio)
}

fn cell(
    sizes: &Sizes,
    protocol: &str,
    ratio: f64,
    seed: u64,
    images: &Arc<Images>,
) -> Result<Cell, ReproduceError> {
    let mut config = config(sizes, seed, images)?;
    config.abort_ratio = ratio;
    let options = Options { parts: PARTS, ..preset::options(protocol)? };
    Ok(Cell::bench(name_of(protocol, ratio), config, options))
}

/// The setting of every run, but for the parameter that its figure varies.
fn config(sizes: &Sizes, seed: u64, images: &Arc<Images>) -> Result<BenchConfig, ReproduceError> {
    let mut profile = Profile::named(PROFILE)?;
    if let Some(blocks) = sizes.blocks {
        profile = profile.with_block_count(blocks)?;
    }
    let mut config = BenchConfig::tpcc(profile, Vec::new());
    config.workload = WorkloadKind::Tpcc {
        dialect: Dialect::Dbt2,
        delivery: DeliveryUnit::default(),
        cardinality: sizes.cardinality,
    };
    config.scale = sizes.warehouses;
    config.clients = CLIENTS;
    config.abort_ratio = ABORTS;
    config.backoff = BACKOFF;
    config.txns = sizes.txns;
    config.warmup = Warmup::Txns(sizes.warmup);
    config.memory = MemoryBudget::Bytes(sizes.frames * PAGE_SIZE);
    config.chip = ChipUse::Prefilled;
    config.start = Start::Image(Arc::clone(images));
    config.seed = seed;
    Ok(config)
}

/// One value of every protocol.
fn values(outcomes: &Outcomes, ratio: f64, value: &str) -> Result<Vec<f64>, ReproduceError> {
    PROTOCOLS.iter().map(|name| outcomes.value(&name_of(name, ratio), value)).collect()
}

fn one(
    outcomes: &Outcomes,
    protocol: &str,
    ratio: f64,
    value: &str,
) -> Result<f64, ReproduceError> {
    outcomes.value(&name_of(protocol, ratio), value)
}

/// Mean time of a transaction, from the number of clients (Little's law).
fn execution_s(outcomes: &Outcomes, protocol: &str, ratio: f64) -> Result<f64, ReproduceError> {
    let value = |name| one(outcomes, protocol, ratio, name);
    Ok(f64::from(CLIENTS) * value("elapsed_s")? / (value("commits")? + value("aborts")?))
}

/// Share of collection in the cost of all operations: the paper's "total execution cost" knows no
/// idle dies.
fn collection_share(
    outcomes: &Outcomes,
    protocol: &str,
    ratio: f64,
) -> Result<f64, ReproduceError> {
    let value = |name| one(outcomes, protocol, ratio, name);
    let timing = Profile::named(PROFILE)?.timing;
    let busy_ns = timing.read_ns as f64 * value("page_reads")?
        + timing.program_ns as f64 * value("page_programs")?
        + timing.partial_program_ns as f64 * value("partial_programs")?
        + timing.erase_ns as f64 * value("block_erases")?;
    Ok(value("gc_time_s")? * 1e9 / busy_ns)
}

/// Collection for each commit, in seconds of a die.
fn collection_cost(outcomes: &Outcomes, protocol: &str, ratio: f64) -> Result<f64, ReproduceError> {
    let value = |name| one(outcomes, protocol, ratio, name);
    Ok(value("gc_time_s")? / value("commits")?)
}

fn bars(title: &str, y: &str, series: &str, values: Vec<f64>) -> Panel {
    Panel {
        title: title.to_owned(),
        y: y.to_owned(),
        x: String::from("protocol"),
        axis: Axis::Names(PROTOCOLS.map(str::to_owned).to_vec()),
        series: vec![Series { name: series.to_owned(), values }],
    }
}

fn each(
    mut of: impl FnMut(&'static str) -> Result<f64, ReproduceError>,
) -> Result<Vec<f64>, ReproduceError> {
    PROTOCOLS.iter().map(|name| of(name)).collect()
}

fn throughput(outcomes: &Outcomes) -> Result<Drawing, ReproduceError> {
    let mut drawing = Drawing::default();
    let tps = values(outcomes, ABORTS, "tps")?;
    drawing.panel(bars("Throughput", "commits a second", "throughput", tps));
    let times = each(|name| execution_s(outcomes, name, ABORTS))?;
    drawing.panel(bars("Execution time", "seconds", "execution time", times));
    let claims =
        [("afc", "bpcc", 0.35), ("afc", "scc", 1.10), ("cfc", "bpcc", 0.24), ("cfc", "scc", 0.94)];
    for (ours, base, claimed) in claims {
        let tps = |name| one(outcomes, name, ABORTS, "tps");
        let gain = change(tps(base)?, tps(ours)?);
        drawing.claim(format!("throughput, {ours} over {base}"), &Claim::Change(claimed), &[gain]);
        // The same clients: the time of a transaction is the inverse of the throughput.
        let time = |name| execution_s(outcomes, name, ABORTS);
        let shorter = change(time(base)?, time(ours)?);
        let claim = Claim::Change(1.0 / (1.0 + claimed) - 1.0);
        drawing.claim(format!("execution time, {ours} against {base}"), &claim, &[shorter]);
    }
    Ok(drawing)
}

/// One value of both ways of restart.
fn restart_panel(
    outcomes: &Outcomes,
    title: &str,
    y: &str,
    value: &str,
) -> Result<Panel, ReproduceError> {
    let mut panel =
        bars(title, y, "summaries", values(outcomes, ABORTS, &format!("recovery.{value}"))?);
    let scanned = values(outcomes, ABORTS, &format!("recovery.by_scan.{value}"))?;
    panel.series.push(Series { name: String::from("scan"), values: scanned });
    Ok(panel)
}

fn collection(outcomes: &Outcomes) -> Result<Drawing, ReproduceError> {
    let mut drawing = Drawing::default();
    let costs = each(|name| collection_cost(outcomes, name, ABORTS))?;
    drawing.panel(bars("Garbage collection", "seconds of a die a commit", "collection", costs));
    let shares = each(|name| collection_share(outcomes, name, ABORTS))?;
    drawing.panel(bars(
        "Share of collection",
        "share of all operations' time",
        "collection",
        shares,
    ));
    let restarts = values(outcomes, ABORTS, "recovery.time_s")?;
    drawing.panel(restart_panel(outcomes, "Restart", "seconds", "time_s")?);
    drawing.panel(restart_panel(outcomes, "Reads of a restart", "pages", "pages_read")?);
    for (base, claimed) in [("cfc", -0.13), ("bpcc", -0.34), ("scc", -0.58)] {
        let cost = |name| collection_cost(outcomes, name, ABORTS);
        let less = change(cost(base)?, cost("afc")?);
        drawing.claim(format!("collection, afc against {base}"), &Claim::Change(claimed), &[less]);
    }
    for (name, bound) in [("bpcc", 0.35), ("scc", 0.55)] {
        let share = collection_share(outcomes, name, ABORTS)?;
        drawing.claim(format!("share of collection, {name}"), &Claim::ShareAbove(bound), &[share]);
    }
    let named: Vec<(&str, f64)> = PROTOCOLS.iter().copied().zip(restarts).collect();
    drawing.rank("longest restart", Rank::Highest, "afc", &named);
    for base in ["bpcc", "scc"] {
        let time = |name| one(outcomes, name, ABORTS, "recovery.time_s");
        let apart = change(time(base)?, time("cfc")?);
        drawing.claim(format!("restart, cfc against {base}"), &Claim::NoChange, &[apart]);
    }
    Ok(drawing)
}

fn lines(
    title: &str,
    y: &str,
    mut of: impl FnMut(&str, f64) -> Result<f64, ReproduceError>,
) -> Result<Panel, ReproduceError> {
    let series = PROTOCOLS.iter().map(|name| {
        let values = ABORT_RATIOS.iter().map(|ratio| of(name, *ratio));
        Ok(Series { name: (*name).to_owned(), values: values.collect::<Result<_, _>>()? })
    });
    Ok(Panel {
        title: title.to_owned(),
        y: y.to_owned(),
        x: String::from("share of aborts, percent"),
        axis: Axis::Numbers(ABORT_RATIOS.map(|ratio| 100.0 * ratio).to_vec()),
        series: series.collect::<Result<_, ReproduceError>>()?,
    })
}

/// Smallest share of aborts at which cfc is ahead of afc, between the measured ones; none when it
/// never is.
fn crossing(outcomes: &Outcomes) -> Result<Option<f64>, ReproduceError> {
    let lead = |ratio: f64| -> Result<f64, ReproduceError> {
        let tps = |name| one(outcomes, name, ratio, "tps");
        Ok(change(tps("afc")?, tps("cfc")?))
    };
    let mut before: Option<(f64, f64)> = None;
    for ratio in ABORT_RATIOS {
        let ahead = lead(ratio)?;
        if ahead > 0.0 {
            return Ok(Some(match before {
                Some((at, behind)) => at + (ratio - at) * behind / (behind - ahead),
                None => ratio,
            }));
        }
        before = Some((ratio, ahead));
    }
    Ok(None)
}

fn aborts(outcomes: &Outcomes) -> Result<Drawing, ReproduceError> {
    let mut drawing = Drawing::default();
    let tps = |name: &str, ratio| one(outcomes, name, ratio, "tps");
    let cost = |name: &str, ratio| collection_cost(outcomes, name, ratio);
    drawing.panel(lines("Throughput", "commits a second", tps)?);
    drawing.panel(lines("Garbage collection", "seconds of a die a commit", cost)?);
    let (few, many) = (ABORT_RATIOS[0], ABORT_RATIOS[ABORT_RATIOS.len() - 1]);
    let claims =
        [("bpcc", few, 0.12), ("bpcc", many, 0.47), ("scc", few, 0.77), ("scc", many, 1.53)];
    for (base, ratio, claimed) in claims {
        let gain = change(tps(base, ratio)?, tps("cfc", ratio)?);
        let item = format!("throughput, cfc over {base}, {:.0} % aborts", 100.0 * ratio);
        drawing.claim(item, &Claim::Change(claimed), &[gain]);
    }
    let crossing = crossing(outcomes)?.unwrap_or(f64::NAN);
    drawing.claim("aborts above which cfc is ahead of afc", &Claim::Share(0.15), &[crossing]);
    for (base, claimed) in [("bpcc", 0.38), ("scc", 0.72)] {
        let more = change(cost(base, few)?, cost(base, many)?);
        drawing.claim(
            format!("collection a commit, {base}, 1 % to 50 % aborts"),
            &Claim::Change(claimed),
            &[more],
        );
    }
    for name in PROTOCOLS {
        let ends = [("1 %", tps(name, few)?), ("20 %", tps(name, 0.20)?)];
        let highest = if name == "cfc" { "20 %" } else { "1 %" };
        drawing.rank(
            format!("aborts of the higher throughput, {name}"),
            Rank::Highest,
            highest,
            &ends,
        );
    }
    Ok(drawing)
}

/// Megabytes of the tables that the paper gives for each protocol.
const TABLE_MB: [(&str, f64); 4] =
    [("cfc", 59.88), ("afc", 59.88), ("bpcc", 63.10), ("scc", 60.24)];

fn memory(outcomes: &Outcomes) -> Result<Drawing, ReproduceError> {
    let mut drawing = Drawing::default();
    let mb = |name: &str| -> Result<f64, ReproduceError> {
        Ok(one(outcomes, name, ABORTS, "memory.mapping")? / 1e6)
    };
    drawing.panel(bars("Memory of the tables", "megabytes", "tables", each(mb)?));
    for (name, paper) in TABLE_MB.into_iter().filter(|(name, _)| *name != "cfc") {
        let (paper, ours) = (paper - TABLE_MB[0].1, mb(name)? - mb("cfc")?);
        let claim = if paper == 0.0 { Claim::Exactly(0.0) } else { Claim::Value(paper, "MB") };
        drawing.claim(format!("more than cfc: {name}"), &claim, &[ours]);
    }
    Ok(drawing)
}

/// The model's `C = αCr + βCw + (1−δ)Cbit + γβk(…)Cbit + γβCe`, without the terms that are counted
/// exactly on both sides: the model's forecast of flags set by collection.
fn cost_model(outcomes: &Outcomes) -> Result<Drawing, ReproduceError> {
    let mut drawing = Drawing::default();
    for name in ["cfc", "afc"] {
        let value = |what| one(outcomes, name, ABORTS, what);
        let commits = value("commits")?;
        let share = if name == "cfc" { 1.0 - ABORTS } else { ABORTS };
        // A page that is reclaimed was written by a transaction that needs a flag with this share.
        let per_txn = value("programs_by_cause.data")? / f64::from(PARTS) / commits;
        let ours = value("programs_by_cause.flag")? / commits;
        let model = (1.0 - ABORTS) + per_txn * share;
        drawing.claim(
            format!("flags programmed a commit, {name}, by the model"),
            &Claim::Value(model, "flags"),
            &[ours],
        );
    }
    Ok(drawing)
}

#[cfg(test)]
mod tests {
    use super::super::super::cell::Outcome;
    use super::super::super::rule::Verdict;
    use super::*;

    /// Figures of the basic protocols.
    const BASIC_FIGURES: usize = 5;

    /// Commits a second at each of [`ABORT_RATIOS`], as the paper's gains ask for.
    fn tps(protocol: &str) -> [f64; 6] {
        match protocol {
            "cfc" => [122.0, 124.0, 125.0, 126.0, 124.0, 120.0],
            "afc" => [138.0, 135.0, 130.0, 121.3, 112.0, 100.0],
            "bpcc" => [108.9, 100.0, 98.0, 95.0, 90.0, 81.6],
            _ => [68.9, 64.3, 62.0, 58.0, 54.0, 47.4],
        }
    }

    /// Collection a commit, its share of all time, and its growth from 1 % to 50 % aborts.
    fn collection_of(protocol: &str) -> (f64, f64, f64) {
        match protocol {
            "cfc" => (1.0 / 0.87, 0.3, 0.0),
            "afc" => (1.0, 0.3, 0.0),
            "bpcc" => (1.0 / 0.66, 0.4, 0.38),
            _ => (1.0 / 0.42, 0.6, 0.72),
        }
    }

    /// A run as the paper saw it.
    fn ideal(protocol: &str, index: usize) -> Outcome {
        let (ratio, tps) = (ABORT_RATIOS[index], tps(protocol)[index]);
        let (cost, share, more) = collection_of(protocol);
        let commits = 1000.0;
        let gc_time_s = commits * cost * (1.0 + more * (ratio - 0.01) / 0.49);
        let program_s = Profile::named(PROFILE).unwrap().timing.program_ns as f64 / 1e9;
        let per_txn = 10.0;
        let by_model = per_txn * if protocol == "cfc" { 1.0 - ABORTS } else { ABORTS };
        let table = TABLE_MB.into_iter().find(|(name, _)| *name == protocol).unwrap();
        let restart_s = if protocol == "afc" { 10.0 } else { 1.0 };
        [
            ("tps", tps),
            ("commits", commits),
            ("aborts", commits * ratio / (1.0 - ratio)),
            ("elapsed_s", commits / tps),
            ("gc_time_s", gc_time_s),
            ("page_reads", 0.0),
            ("page_programs", gc_time_s / share / program_s),
            ("partial_programs", 0.0),
            ("block_erases", 0.0),
            ("programs_by_cause.data", commits * per_txn * f64::from(PARTS)),
            ("programs_by_cause.flag", commits * (1.0 - ABORTS + by_model)),
            ("recovery.time_s", restart_s),
            ("recovery.pages_read", restart_s),
            ("recovery.by_scan.time_s", 20.0),
            ("recovery.by_scan.pages_read", 20.0),
            ("memory.mapping", table.1 * 1e6),
        ]
        .into_iter()
        .fold(Outcome::default(), |outcome, (value, number)| outcome.with(value, number))
    }

    #[test]
    fn what_the_paper_says_holds_in_every_row_that_is_measured() {
        let pairs = PROTOCOLS.iter().flat_map(|name| (0..ABORT_RATIOS.len()).map(|at| (*name, at)));
        let outcomes: Outcomes =
            pairs.map(|(name, at)| (name_of(name, ABORT_RATIOS[at]), ideal(name, at))).collect();
        for effort in [Effort::Full, Effort::Quick] {
            let experiment = experiment(effort, 1).unwrap();
            let mut rows = 0;
            for figure in experiment.figures.iter().take(BASIC_FIGURES) {
                for row in figure.report(&outcomes).unwrap().rows {
                    assert_eq!(row.judgement.verdict, Verdict::Holds, "{row:?}");
                    rows += 1;
                }
            }
            assert_eq!(rows, 8 + 8 + 11 + 3 + 2);
        }
    }
}
