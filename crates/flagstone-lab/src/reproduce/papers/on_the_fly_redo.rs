//! On-the-fly redo: run time, input and output, and restart on TPC-C, against an ARIES engine.
//!
//! Owns the sizes and the claims of this paper. Questions that the paper leaves open are decided
//! here and told in the setting.

use std::sync::Arc;

use flagstone_engine::Options;
use flagstone_nand::Profile;

use super::super::cell::{Cell, Outcomes};
use super::super::figure::{Axis, Drawing, Figure, Panel, Series};
use super::super::rule::{Claim, change};
use super::super::{Effort, Experiment, ReproduceError};
use crate::bench::{BenchConfig, Images, MemoryBudget, Start, Warmup, WorkloadKind};
use crate::preset;
use crate::workload::tpcc::{Cardinality, DeliveryUnit, Dialect};

const ORIGINAL: &str = "berkeley-original";
const IMMEDIATE: &str = "otf-immediate";
const GROUP: &str = "otf-group";
const PRESETS: [&str; 3] = [ORIGINAL, IMMEDIATE, GROUP];
/// Presets of which the paper says nothing, for the table of restarts.
const OTHERS: [&str; 3] = ["berkeley-page-locks", "traditional", "flagstone"];
/// Which memory size that table has.
const TABLE_MEMORY: usize = 1;

/// Changes of run time against the original that figure 5 shows, the smaller first.
const TIME_GAIN: (f64, f64) = (-0.20, -0.53);
/// Changes of run time by group commit.
const GROUP_GAIN: (f64, f64) = (-0.15, -0.27);
/// Change of page reads at most.
const READS_MOST: f64 = 0.45;
/// Change of page writes at most.
const WRITES_MOST: f64 = -0.30;

const WAREHOUSES: u32 = 2;
const CLIENTS: u32 = 16;
/// Share of the drive that holds data when the original's run ends.
const FILL: f64 = 0.8;
/// Pages that the original takes for each that full leaves would take: eager splits leave them
/// emptier. Every preset gets the drive that this makes.
const PAGES_OF_ORIGINAL: f64 = 1.12;
/// Chips' pages of a database page: 8 KiB of 4 KiB pages.
const PARTS: u32 = 2;

/// Sizes of the experiment.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    cardinality: Cardinality,
    /// Kilobytes of memory for each of the paper's 20, 40 and 60 MB.
    memory_kb: [usize; 3],
    txns: u64,
    warmup: u64,
    checkpoint_commits: u64,
    log_pages: u32,
}

impl Sizes {
    fn of(effort: Effort) -> Self {
        match effort {
            Effort::Full => Self {
                cardinality: Cardinality::SPEC,
                memory_kb: [20_000, 40_000, 60_000],
                txns: 100_000,
                warmup: 50_000,
                checkpoint_commits: 5_000,
                log_pages: 8_192,
            },
            // A tenth of everything that is a size or a count.
            Effort::Quick => Self {
                cardinality: Cardinality { items: 10_000, customers: 300, undelivered: 90 },
                memory_kb: [2_000, 4_000, 6_000],
                txns: 10_000,
                warmup: 5_000,
                checkpoint_commits: 500,
                log_pages: 1_024,
            },
        }
    }

    fn labels(&self) -> [String; 3] {
        self.memory_kb.map(|kb| format!("{} MB", kb / 1000))
    }
}

/// The experiment.
pub(super) fn experiment(effort: Effort, seed: u64) -> Result<Experiment, ReproduceError> {
    let sizes = Sizes::of(effort);
    let images = Arc::new(Images::default());
    let cells = |presets: &[&str], memories: &[usize]| -> Result<Vec<Cell>, ReproduceError> {
        let pairs = presets.iter().flat_map(|preset| memories.iter().map(move |at| (*preset, *at)));
        pairs.map(|(preset, at)| cell(&sizes, preset, at, seed, &images)).collect()
    };
    let labels = sizes.labels();
    let figure = |id, title, cells, draw: fn(&Bars<'_>) -> Result<Drawing, ReproduceError>| {
        let labels = labels.clone();
        Figure::new(id, title, cells, move |outcomes| draw(&Bars { outcomes, labels: &labels }))
    };
    Ok(Experiment {
        paper: "on-the-fly-redo",
        title: "On-the-fly redo",
        setting: setting(&sizes),
        figures: vec![
            figure("5-run-time", "Figure 5: run time", cells(&PRESETS, &[0, 1, 2])?, run_time),
            figure(
                "5-group-commit",
                "Figure 5: group commit against immediate commit",
                cells(&[IMMEDIATE, GROUP], &[0, 1, 2])?,
                group_commit,
            ),
            figure("6-io", "Figure 6: reads and writes", cells(&PRESETS, &[0, 1, 2])?, io),
            figure("restart", "Restart after a power cut", cells(&PRESETS, &[0, 1, 2])?, restart),
            figure(
                "restart-presets",
                "Restart after a power cut, every preset",
                cells(&[PRESETS, OTHERS].concat(), &[TABLE_MEMORY])?,
                restart_of_all,
            ),
        ],
    })
}

fn setting(sizes: &Sizes) -> Vec<String> {
    let labels = sizes.labels().join(", ");
    vec![
        format!("TPC-C, {WAREHOUSES} warehouses, {CLIENTS} clients without think time"),
        format!("{} transactions after {} of warm-up", sizes.txns, sizes.warmup),
        format!("memory {labels}, redo records included; pages of 8 KiB"),
        format!("a checkpoint every {} commits", sizes.checkpoint_commits),
        String::from("group commit at 75 % of a log page or 5 ms of device time"),
        String::from("profile otf-ssd: a drive with its own translation layer, preconditioned"),
        String::from("CPU time is not counted"),
    ]
}

/// One bar: a preset with one of the three memory sizes.
fn cell(
    sizes: &Sizes,
    preset: &str,
    at: usize,
    seed: u64,
    images: &Arc<Images>,
) -> Result<Cell, ReproduceError> {
    let mut config = BenchConfig::tpcc(Profile::named("otf-ssd")?, Vec::new());
    config.workload = WorkloadKind::Tpcc {
        dialect: Dialect::Spec,
        delivery: DeliveryUnit::default(),
        cardinality: sizes.cardinality,
    };
    config.scale = WAREHOUSES;
    config.clients = CLIENTS;
    config.txns = sizes.txns;
    config.warmup = Warmup::Txns(sizes.warmup);
    config.memory = MemoryBudget::Bytes(sizes.memory_kb[at] * 1000);
    config.fill = FILL / PAGES_OF_ORIGINAL;
    config.start = Start::Image(Arc::clone(images));
    config.seed = seed;
    let mut options =
        Options { parts: PARTS, log_pages: sizes.log_pages, ..preset::options(preset)? };
    if options.checkpoint_commits > 0 {
        options.checkpoint_commits = sizes.checkpoint_commits;
    }
    let name = format!("{preset} {}", sizes.labels()[at]);
    Ok(Cell::bench(name, config, options))
}

/// Values of the bars: one for each preset and memory size.
struct Bars<'o> {
    outcomes: &'o Outcomes,
    labels: &'o [String; 3],
}

impl Bars<'_> {
    /// `value` of `preset` at each memory size.
    fn values(&self, preset: &str, value: &str) -> Result<Vec<f64>, ReproduceError> {
        let cell = |label: &String| self.outcomes.value(&format!("{preset} {label}"), value);
        self.labels.iter().map(cell).collect()
    }

    /// Changes of `value` from preset `base` to preset `ours`, by memory size.
    fn changes(&self, base: &str, ours: &str, value: &str) -> Result<Vec<f64>, ReproduceError> {
        let (base, ours) = (self.values(base, value)?, self.values(ours, value)?);
        Ok(base.into_iter().zip(ours).map(|(base, ours)| change(base, ours)).collect())
    }

    /// A chart of `value` for `presets`.
    fn panel(
        &self,
        (title, y): (&str, &str),
        presets: &[&str],
        value: &str,
    ) -> Result<Panel, ReproduceError> {
        let series = presets.iter().map(|preset| {
            Ok(Series { name: (*preset).to_owned(), values: self.values(preset, value)? })
        });
        Ok(Panel {
            title: title.to_owned(),
            y: y.to_owned(),
            x: String::from("memory"),
            axis: Axis::Names(self.labels.to_vec()),
            series: series.collect::<Result<_, ReproduceError>>()?,
        })
    }
}

fn run_time(bars: &Bars<'_>) -> Result<Drawing, ReproduceError> {
    const TIME: &str = "elapsed_s";
    let mut drawing = Drawing::default();
    drawing.panel(bars.panel(("Run time", "seconds of device time"), &PRESETS, TIME)?);
    let range = Claim::ChangeBetween(TIME_GAIN.0, TIME_GAIN.1);
    let mut all = Vec::new();
    for preset in [IMMEDIATE, GROUP] {
        let changes = bars.changes(ORIGINAL, preset, TIME)?;
        for (label, change) in bars.labels.iter().zip(&changes) {
            drawing.claim(format!("run time, {preset}, {label}"), &range, &[*change]);
        }
        all.extend(changes);
    }
    drawing.claim("run time, all sizes", &range, &all);
    let largest: Vec<f64> = all.chunks(3).filter_map(|changes| changes.last().copied()).collect();
    let item = format!("largest gain at {}", bars.labels[2]);
    drawing.claim(item, &Claim::ChangeUpTo(TIME_GAIN.1), &largest);
    Ok(drawing)
}

fn group_commit(bars: &Bars<'_>) -> Result<Drawing, ReproduceError> {
    let presets = [IMMEDIATE, GROUP];
    let mut drawing = Drawing::default();
    drawing.panel(bars.panel(("Run time", "seconds of device time"), &presets, "elapsed_s")?);
    let log = "programs_by_cause.log";
    drawing.panel(bars.panel(("Log writes", "writes of the log"), &presets, log)?);
    let range = Claim::ChangeBetween(GROUP_GAIN.0, GROUP_GAIN.1);
    let changes = bars.changes(IMMEDIATE, GROUP, "elapsed_s")?;
    for (label, change) in bars.labels.iter().zip(&changes) {
        drawing.claim(format!("group commit, {label}"), &range, &[*change]);
    }
    drawing.claim("group commit, all sizes", &range, &changes);
    Ok(drawing)
}

fn io(bars: &Bars<'_>) -> Result<Drawing, ReproduceError> {
    const READS: &str = "translation.host_reads";
    const WRITES: &str = "translation.host_writes";
    let mut drawing = Drawing::default();
    for (title, value) in [
        ("Page reads", READS),
        ("Page writes, log and pages", WRITES),
        ("Log writes", "programs_by_cause.log"),
        ("Page updates", "programs_by_cause.data"),
        ("Pages moved by the drive's collection", "translation.gc_programs"),
        ("Blocks erased by the drive", "translation.erases"),
    ] {
        let y = if value.ends_with("erases") { "blocks" } else { "pages of 4 KiB" };
        drawing.panel(bars.panel((title, y), &PRESETS, value)?);
    }
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for preset in [IMMEDIATE, GROUP] {
        let pairs = bars.changes(ORIGINAL, preset, READS)?;
        for (label, change) in bars.labels.iter().zip(&pairs) {
            let item = format!("page reads, {preset}, {label}");
            drawing.claim(item, &Claim::ChangeBetween(0.0, READS_MOST), &[*change]);
        }
        reads.extend(pairs);
        let pairs = bars.changes(ORIGINAL, preset, WRITES)?;
        for (label, change) in bars.labels.iter().zip(&pairs) {
            let item = format!("page writes, {preset}, {label}");
            drawing.claim(item, &Claim::ChangeBetween(0.0, WRITES_MOST), &[*change]);
        }
        writes.extend(pairs);
    }
    drawing.claim("page reads, the largest", &Claim::ChangeUpTo(READS_MOST), &reads);
    drawing.claim("page writes, the largest", &Claim::ChangeUpTo(WRITES_MOST), &writes);
    Ok(drawing)
}

/// Values told of a restart: title, unit, value.
const RESTART: [(&str, &str, &str); 4] = [
    ("Halt", "seconds of device time", "recovery.time_s"),
    ("Reads of restart", "pages of 4 KiB", "recovery.pages_read"),
    ("Writes of restart", "pages of 4 KiB", "recovery.pages_written"),
    ("Data pages written by restart", "pages of 4 KiB", "recovery.data_pages_written"),
];

fn restart(bars: &Bars<'_>) -> Result<Drawing, ReproduceError> {
    let mut drawing = Drawing::default();
    for (title, y, value) in RESTART {
        drawing.panel(bars.panel((title, y), &PRESETS, value)?);
    }
    for preset in [IMMEDIATE, GROUP] {
        let written = bars.values(preset, "recovery.data_pages_written")?;
        drawing.claim(format!("data pages written, {preset}"), &Claim::Exactly(0.0), &written);
        let undone = bars.values(preset, "recovery.changes_undone")?;
        drawing.claim(format!("changes undone, {preset}"), &Claim::Exactly(0.0), &undone);
    }
    Ok(drawing)
}

/// Every preset with one memory size. The paper claims nothing about these runs: there are charts
/// alone.
fn restart_of_all(bars: &Bars<'_>) -> Result<Drawing, ReproduceError> {
    let labels = &bars.labels[TABLE_MEMORY..=TABLE_MEMORY];
    let mut drawing = Drawing::default();
    for (title, y, value) in RESTART {
        let presets = PRESETS.iter().chain(&OTHERS);
        let series = presets.map(|preset| {
            let cell = format!("{preset} {}", labels[0]);
            let values = vec![bars.outcomes.value(&cell, value)?];
            Ok(Series { name: (*preset).to_owned(), values })
        });
        drawing.panel(Panel {
            title: title.to_owned(),
            y: y.to_owned(),
            x: String::from("memory"),
            axis: Axis::Names(labels.to_vec()),
            series: series.collect::<Result<_, ReproduceError>>()?,
        });
    }
    Ok(drawing)
}

#[cfg(test)]
mod tests {
    use super::super::super::cell::Outcome;
    use super::super::super::rule::Verdict;
    use super::*;

    /// Report of a run if everything were as the paper says.
    fn ideal(name: &str) -> Outcome {
        let (time, reads, writes) = match name.split_once(' ').map_or(name, |(preset, _)| preset) {
            ORIGINAL => (100.0, 100.0, 100.0),
            IMMEDIATE => (60.0, 140.0, 75.0),
            _ => (48.0, 145.0, 70.0),
        };
        [
            ("elapsed_s", time),
            ("translation.host_reads", reads),
            ("translation.host_writes", writes),
            ("programs_by_cause.log", 10.0),
            ("programs_by_cause.data", writes - 10.0),
            ("translation.gc_programs", writes),
            ("translation.erases", 1.0),
            ("recovery.time_s", 1.0),
            ("recovery.pages_read", 1.0),
            ("recovery.pages_written", 1.0),
            ("recovery.data_pages_written", 0.0),
            ("recovery.changes_undone", 0.0),
        ]
        .into_iter()
        .fold(Outcome::default(), |outcome, (value, number)| outcome.with(value, number))
    }

    #[test]
    fn what_the_paper_says_holds_in_every_row() {
        for effort in [Effort::Full, Effort::Quick] {
            let experiment = experiment(effort, 1).unwrap();
            let cells = experiment.figures.iter().flat_map(|figure| &figure.cells);
            let outcomes: Outcomes =
                cells.map(|cell| (cell.name().to_owned(), ideal(cell.name()))).collect();
            let mut rows = 0;
            for figure in &experiment.figures {
                for row in figure.report(&outcomes).unwrap().rows {
                    assert_eq!(row.judgement.verdict, Verdict::Holds, "{row:?}");
                    rows += 1;
                }
            }
            assert_eq!(rows, 8 + 4 + 14 + 4);
        }
    }
}
