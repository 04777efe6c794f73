//! Lazy-Split LRU: base copies and changes of an index in one order of use.
//!
//! Owns the sizes and the claims of this paper. Questions that it leaves open are decided here and
//! told in the setting. Every policy has the same bytes of memory: the paper's changes take nine
//! bytes each, this engine's about 25, out of the same budget.

mod split;

use std::sync::Arc;

use flagstone_engine::AbsentLeaf;
use flagstone_engine::{Durability, Options};
use flagstone_nand::Profile;
use flagstone_opponents::policies::{ReplacementRule, WithPolicies as _};

use super::super::cell::{Cell, Outcome, Outcomes};
use super::super::figure::{Axis, Drawing, Figure, Panel, Series};
use super::super::rule::{Claim, Rank, change};
use super::super::{Effort, Experiment, ReproduceError};
use crate::bench::{self, BenchConfig, Images, MemoryBudget, Start, Warmup};
use crate::bftl::replay;
use crate::preset;
use crate::workload::index::Dialect;

/// A tenth of a tree of 100,000 entries of 8 bytes in leaves that are ln 2 full.
const MEMORY: usize = 128 << 10;
/// Memory of changes that do not fit their page; whole-page engines keep it, beside a merge's
/// images.
const DELTAS: usize = 4 << 10;
const MERGE_PAGES: usize = 4;
/// Data pages of all: the paper's chip is so large that nothing is ever collected.
const FILL: f64 = 0.05;
/// The paper's window (section 4.1).
const WINDOW: f64 = 0.5;
/// Windows of figure 10.
const WINDOWS: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];

const READS: &str = "page_reads";
const WRITES: &str = "programs_by_cause.data";
/// Flash time of a read, a program and an erase in seconds (table 1).
const READ_S: f64 = 80e-6;
const PROGRAM_S: f64 = 200e-6;
const ERASE_S: f64 = 1.5e-3;

const LRU: &str = "lru";
const CFLRU: &str = "cflru";
const CFDC: &str = "cfdc";
const LS_LRU: &str = "ls-lru";
/// As Lazy-Split LRU, but changes of absent leaves read nothing: this engine's way.
const LS_LRU_WAIT: &str = "ls-lru, absent=wait";
const POLICIES: [&str; 4] = [LRU, CFLRU, CFDC, LS_LRU];
/// A layer below the tree: by section 2 of the paper it writes less and searches longer.
const BFTL: &str = "bftl";
/// Engines in figure 8.
const TIMED: [&str; 6] = [LRU, CFLRU, CFDC, LS_LRU, LS_LRU_WAIT, BFTL];

/// The chip of the paper, and one with larger pages and the same times.
const SMALL: Chip = Chip { profile: "ls-lru-nand", page_size: 512, pages_per_block: 32 };
const LARGE: Chip = Chip { profile: "lazy-slc", page_size: 2048, pages_per_block: 64 };

const SYNTHESIZED: [Dialect; 3] =
    [Dialect::WriteIntensive, Dialect::ReadIntensive, Dialect::Random];
const TRACES: [Dialect; 2] = [Dialect::Oltp, Dialect::Aggregation];

/// Read/write ratios of figure 7.
const RATIOS: [(&str, Dialect); 7] = [
    ("100/0", Dialect::Writes0),
    ("90/10", Dialect::Writes10),
    ("70/30", Dialect::Writes30),
    ("50/50", Dialect::Writes50),
    ("30/70", Dialect::Writes70),
    ("10/90", Dialect::Writes90),
    ("0/100", Dialect::Writes100),
];

#[derive(Clone, Copy, Debug)]
struct Chip {
    profile: &'static str,
    page_size: usize,
    pages_per_block: u32,
}

/// Requests measured, after the rows are loaded.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    synthesized: u64,
    oltp: u64,
    olap: u64,
}

impl Sizes {
    const fn of(effort: Effort) -> Self {
        match effort {
            Effort::Full => Self { synthesized: 100_000, oltp: 1_264_928, olap: 689_486 },
            Effort::Quick => Self { synthesized: 5_000, oltp: 5_000, olap: 2_500 },
        }
    }

    const fn requests(&self, dialect: Dialect) -> u64 {
        match dialect {
            Dialect::Oltp => self.oltp,
            Dialect::Aggregation => self.olap,
            _ => self.synthesized,
        }
    }
}

/// Settings that all cells share.
struct Bench {
    sizes: Sizes,
    seed: u64,
    images: Arc<Images>,
}

/// The experiment.
pub(super) fn experiment(effort: Effort, seed: u64) -> Result<Experiment, ReproduceError> {
    let bench = Bench { sizes: Sizes::of(effort), seed, images: Arc::default() };
    let mut figures = vec![split::figure()];
    let cells = RATIOS.iter().flat_map(|(_, dialect)| {
        POLICIES.map(|policy| bench.cell(SMALL, *dialect, policy, WINDOW))
    });
    let cells = cells.collect::<Result<_, _>>()?;
    figures.push(Figure::new("7-ratio", "Figure 7: ratio of reads and writes", cells, ratio));
    for (id, title, chip) in [
        ("8-run-time", "Figure 8: run time", SMALL),
        ("8-run-time-2k", "Figure 8, with pages of 2 KiB", LARGE),
    ] {
        let cells = bench.workloads(chip)?;
        figures.push(Figure::new(id, title, cells, move |outcomes| run_time(outcomes, chip)));
    }
    let cells = bench.workloads(SMALL)?;
    figures.push(Figure::new("9-hit-ratio", "Figure 9: hit ratio", cells, hit_ratio));
    let cells = TRACES.iter().flat_map(|trace| {
        let windows = WINDOWS.iter().flat_map(|window| [(CFDC, *window), (LS_LRU, *window)]);
        let pairs = [(LRU, WINDOW)].into_iter().chain(windows);
        let bench = &bench;
        pairs.map(move |(policy, window)| bench.cell(SMALL, *trace, policy, window))
    });
    let cells = cells.collect::<Result<_, _>>()?;
    figures.push(Figure::new("10-window", "Figure 10: size of the window", cells, windows));
    Ok(Experiment {
        paper: "lazy-split-lru",
        title: "Lazy-Split LRU",
        setting: setting(&bench),
        figures,
    })
}

fn setting(bench: &Bench) -> Vec<String> {
    let sizes = &bench.sizes;
    vec![
        String::from("100,000 uniform keys and pointers of 4 bytes, loaded before"),
        format!("{} requests, a tenth of them on ranges of ten keys", sizes.synthesized),
        format!(
            "for OLTP-A {} index requests of TPC-C, for OLAP-B {} ranges: the traces are not public",
            sizes.oltp, sizes.olap
        ),
        format!("{} KiB of memory for each, about a tenth of the tree", MEMORY >> 10),
        String::from("lru, cflru and cfdc buffer whole pages and split leaves at once"),
        String::from(
            "bftl: 60 units of buffer, lists of four pages; its tables take of the same memory",
        ),
        String::from(
            "time: 80 us a page read, 200 us a page written and its share of the erase of its block; memory \
             references are not timed",
        ),
        String::from(
            "no commit waits for the log, whose programs are not counted, as in the paper",
        ),
        String::from(
            "profiles ls-lru-nand and, for pages of 2 KiB, lazy-slc, with nothing collected",
        ),
    ]
}

fn name(chip: Chip, dialect: Dialect, policy: &str, window: f64) -> String {
    let window = if policy == LRU { WINDOW } else { window };
    format!("{} {dialect} {window} {policy}", chip.page_size)
}

impl Bench {
    fn workloads(&self, chip: Chip) -> Result<Vec<Cell>, ReproduceError> {
        let dialects = SYNTHESIZED.into_iter().chain(TRACES);
        let pairs =
            dialects.flat_map(|dialect| TIMED.into_iter().map(move |policy| (dialect, policy)));
        pairs.map(|(dialect, policy)| self.cell(chip, dialect, policy, WINDOW)).collect()
    }

    fn cell(
        &self,
        chip: Chip,
        dialect: Dialect,
        policy: &str,
        window: f64,
    ) -> Result<Cell, ReproduceError> {
        let mut config = BenchConfig::index(dialect, Profile::named(chip.profile)?, Vec::new());
        config.memory = MemoryBudget::Bytes(MEMORY);
        config.fill = FILL;
        config.txns = self.sizes.requests(dialect);
        config.warmup = Warmup::None;
        config.start = Start::Image(Arc::clone(&self.images));
        config.seed = self.seed;
        let name = name(chip, dialect, policy, window);
        if policy == BFTL {
            return Ok(Cell::new(name, move |_| {
                Ok(replay::bench(&config, dialect, &|own| own)?.0.outcome())
            }));
        }
        let options = options(chip, policy)?;
        let options = options.with_policies(|policies| policies.replacement_window = window);
        // Nothing is collected, so the rule of steadiness does not apply.
        Ok(Cell::new(name, move |_| {
            let run = bench::run(&config, &options, &mut |_| ())?;
            Ok(Outcome { steady: None, ..Outcome::of(&run) })
        }))
    }
}

fn options(chip: Chip, policy: &str) -> Result<Options, ReproduceError> {
    let options = match policy {
        LS_LRU => preset::options(LS_LRU)?,
        LS_LRU_WAIT => preset::options(LS_LRU)?
            .with_techniques(|techniques| techniques.absent = AbsentLeaf::Wait),
        _ => {
            let kept = MERGE_PAGES * chip.page_size + DELTAS;
            let share = kept as f64 / MEMORY as f64;
            let rule = match policy {
                CFLRU => ReplacementRule::Cflru,
                CFDC => ReplacementRule::Cfdc,
                _ => ReplacementRule::Lru,
            };
            preset::options("traditional")?
                .with_techniques(|techniques| techniques.frame_share = share)
                .with_policies(|policies| policies.replacement = rule)
        }
    };
    Ok(options.with_durability(Durability::Deferred))
}

/// Flash time of a run in seconds.
fn time(outcomes: &Outcomes, chip: Chip, name: &str) -> Result<f64, ReproduceError> {
    let (reads, writes) = (outcomes.value(name, READS)?, outcomes.value(name, WRITES)?);
    Ok(reads * READ_S + writes * (PROGRAM_S + ERASE_S / f64::from(chip.pages_per_block)))
}

fn time_of(
    outcomes: &Outcomes,
    chip: Chip,
    dialect: Dialect,
    policy: &str,
) -> Result<f64, ReproduceError> {
    time(outcomes, chip, &name(chip, dialect, policy, WINDOW))
}

/// Change of the time from one policy to another.
fn faster(
    outcomes: &Outcomes,
    chip: Chip,
    dialect: Dialect,
    base: &str,
    ours: &str,
) -> Result<f64, ReproduceError> {
    let at = |policy| time_of(outcomes, chip, dialect, policy);
    Ok(change(at(base)?, at(ours)?))
}

/// Figure 7.
fn ratio(outcomes: &Outcomes) -> Result<Drawing, ReproduceError> {
    let mut drawing = Drawing::default();
    let change_at = |dialect, base| faster(outcomes, SMALL, dialect, base, LS_LRU);
    let balanced = Dialect::Writes50;
    for (base, claimed) in [(LRU, -0.404), (CFDC, -0.254)] {
        let item = format!("50/50, ls-lru against {base}");
        drawing.claim(item, &Claim::Change(claimed), &[change_at(balanced, base)?]);
    }
    for (label, dialect) in &RATIOS[..2] {
        for policy in [CFDC, LS_LRU] {
            let ours = faster(outcomes, SMALL, *dialect, LRU, policy)?;
            drawing.claim(format!("{label}, {policy} against lru"), &Claim::NoChange, &[ours]);
        }
    }
    for base in [LRU, CFDC] {
        let gains = RATIOS.iter().map(|(label, dialect)| Ok((*label, change_at(*dialect, base)?)));
        let gains = gains.collect::<Result<Vec<_>, ReproduceError>>()?;
        drawing.rank(format!("largest gain on {base}"), Rank::Lowest, "50/50", &gains);
    }
    let series = POLICIES.iter().map(|policy| {
        let values = RATIOS.iter().map(|(_, dialect)| time_of(outcomes, SMALL, *dialect, policy));
        Ok(Series { name: (*policy).to_owned(), values: values.collect::<Result<_, _>>()? })
    });
    drawing.panel(Panel {
        title: String::from("Flash time"),
        y: String::from("s"),
        x: String::from("reads/writes"),
        axis: Axis::Names(RATIOS.map(|(label, _)| label.to_owned()).to_vec()),
        series: series.collect::<Result<_, ReproduceError>>()?,
    });
    Ok(drawing)
}

/// A chart of one value of each policy over workloads.
fn bars(
    title: &str,
    unit: &str,
    dialects: &[Dialect],
    value: impl Fn(Dialect, &str) -> Result<f64, ReproduceError>,
) -> Result<Panel, ReproduceError> {
    let series = TIMED.iter().map(|policy| {
        let values = dialects.iter().map(|dialect| value(*dialect, policy));
        Ok(Series { name: (*policy).to_owned(), values: values.collect::<Result<_, _>>()? })
    });
    Ok(Panel {
        title: title.to_owned(),
        y: unit.to_owned(),
        x: String::from("workload"),
        axis: Axis::Names(dialects.iter().map(ToString::to_string).collect()),
        series: series.collect::<Result<_, ReproduceError>>()?,
    })
}

/// Figure 8.
fn run_time(outcomes: &Outcomes, chip: Chip) -> Result<Drawing, ReproduceError> {
    let mut drawing = Drawing::default();
    for (dialect, base, ours, claimed) in [
        (Dialect::WriteIntensive, LRU, LS_LRU, -0.388),
        (Dialect::WriteIntensive, CFDC, LS_LRU, -0.25),
        (Dialect::Random, CFDC, LS_LRU, -0.17),
        (Dialect::Random, LRU, CFDC, -0.063),
        (Dialect::Oltp, LRU, LS_LRU, -0.363),
        (Dialect::Oltp, CFDC, LS_LRU, -0.243),
    ] {
        let measured = faster(outcomes, chip, dialect, base, ours)?;
        let item = format!("{dialect}, {ours} against {base}");
        drawing.claim(item, &Claim::Change(claimed), &[measured]);
    }
    for policy in [CFDC, LS_LRU] {
        let measured = faster(outcomes, chip, Dialect::Aggregation, LRU, policy)?;
        let item = format!("aggregation, {policy} against lru");
        drawing.claim(item, &Claim::NoChange, &[measured]);
    }
    for dialect in [Dialect::WriteIntensive, Dialect::Random] {
        let pages = |of: &str| -> Result<[(&str, f64); 2], ReproduceError> {
            let at = |policy| outcomes.value(&name(chip, dialect, policy, WINDOW), of);
            Ok([(LRU, at(LRU)?), (BFTL, at(BFTL)?)])
        };
        let item = format!("{dialect}, fewer pages written, bftl or lru");
        drawing.rank(item, Rank::Lowest, BFTL, &pages(WRITES)?);
        let item = format!("{dialect}, more pages read, bftl or lru");
        drawing.rank(item, Rank::Highest, BFTL, &pages(READS)?);
    }
    for (title, dialects) in [("Synthesized", &SYNTHESIZED[..]), ("Traces", &TRACES)] {
        let at = |dialect, policy: &str| time_of(outcomes, chip, dialect, policy);
        drawing.panel(bars(title, "s", dialects, at)?);
    }
    for (title, value) in [("Pages read", READS), ("Data pages written", WRITES)] {
        let at =
            |dialect, policy: &str| outcomes.value(&name(chip, dialect, policy, WINDOW), value);
        drawing.panel(bars(title, "pages", &SYNTHESIZED, at)?);
    }
    Ok(drawing)
}

/// Figure 9.
fn hit_ratio(outcomes: &Outcomes) -> Result<Drawing, ReproduceError> {
    let mut drawing = Drawing::default();
    let at = |dialect, policy: &str| -> Result<f64, ReproduceError> {
        let name = name(SMALL, dialect, policy, WINDOW);
        let references = outcomes.value(&name, "leaf_references")?;
        Ok(1.0 - outcomes.value(&name, "leaf_misses")? / references.max(1.0))
    };
    let dialects = SYNTHESIZED.into_iter().chain(TRACES);
    for dialect in dialects.filter(|one| *one != Dialect::ReadIntensive) {
        let (lru, ours) = (at(dialect, LRU)?, at(dialect, LS_LRU)?);
        drawing.claim(
            format!("{dialect}, ls-lru slightly under lru"),
            &Claim::NoChange,
            &[change(lru, ours)],
        );
    }
    for dialect in [Dialect::WriteIntensive, Dialect::Random, Dialect::Oltp] {
        let values = [CFLRU, CFDC, LS_LRU].map(|policy| Ok((policy, at(dialect, policy)?)));
        let values = values.into_iter().collect::<Result<Vec<_>, ReproduceError>>()?;
        let item = format!("{dialect}, best of the flash-aware");
        drawing.rank(item, Rank::Highest, LS_LRU, &values);
    }
    for (title, dialects) in [("Synthesized", &SYNTHESIZED[..]), ("Traces", &TRACES)] {
        drawing.panel(bars(title, "hit ratio", dialects, at)?);
    }
    Ok(drawing)
}

/// Figure 10.
fn windows(outcomes: &Outcomes) -> Result<Drawing, ReproduceError> {
    let mut drawing = Drawing::default();
    let at = |trace, policy: &str, window| -> Result<f64, ReproduceError> {
        let base = time(outcomes, SMALL, &name(SMALL, trace, LRU, WINDOW))?;
        Ok(time(outcomes, SMALL, &name(SMALL, trace, policy, window))? / base)
    };
    let (oltp, olap) = (Dialect::Oltp, Dialect::Aggregation);
    let against = |trace, window| -> Result<f64, ReproduceError> {
        Ok(change(at(trace, CFDC, window)?, at(trace, LS_LRU, window)?))
    };
    drawing.claim(
        "oltp, 1, ls-lru against lru",
        &Claim::Change(-0.439),
        &[at(oltp, LS_LRU, 1.0)? - 1.0],
    );
    drawing.claim("oltp, 1, ls-lru against cfdc", &Claim::Change(-0.238), &[against(oltp, 1.0)?]);
    drawing.claim(
        "aggregation, 0.5, ls-lru against lru",
        &Claim::Change(-0.063),
        &[at(olap, LS_LRU, 0.5)? - 1.0],
    );
    let ours = against(olap, 0.5)?;
    drawing.claim("aggregation, 0.5, ls-lru against cfdc", &Claim::Change(-0.015), &[ours]);
    let labels = WINDOWS.map(|window| window.to_string());
    for (trace, rank, claimed) in [(oltp, Rank::Lowest, "1"), (olap, Rank::Highest, "1")] {
        let values = WINDOWS.iter().zip(&labels);
        let values =
            values.map(|(window, label)| Ok((label.as_str(), at(trace, LS_LRU, *window)?)));
        let values = values.collect::<Result<Vec<_>, ReproduceError>>()?;
        let end = if rank == Rank::Lowest { "shortest" } else { "longest" };
        drawing.rank(format!("{trace}, {end} time of ls-lru"), rank, claimed, &values);
    }
    for trace in TRACES {
        for policy in [CFDC, LS_LRU] {
            let ours = at(trace, policy, 0.0)? - 1.0;
            drawing.claim(format!("{trace}, 0, {policy} against lru"), &Claim::NoChange, &[ours]);
        }
        let series = [CFDC, LS_LRU].map(|policy| {
            let values = WINDOWS.iter().map(|window| at(trace, policy, *window));
            Ok(Series { name: policy.to_owned(), values: values.collect::<Result<_, _>>()? })
        });
        drawing.panel(Panel {
            title: trace.to_string(),
            y: String::from("time of lru"),
            x: String::from("window"),
            axis: Axis::Numbers(WINDOWS.to_vec()),
            series: series.into_iter().collect::<Result<_, ReproduceError>>()?,
        });
    }
    Ok(drawing)
}

#[cfg(test)]
mod tests;
