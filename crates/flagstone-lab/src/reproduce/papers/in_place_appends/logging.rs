//! In-place appends against in-page logging (IPL), by replays of page traces.
//!
//! The paper's footnote: traces of TPC-B, TPC-C and TATP, replayed by IPL's own simulator on the flash
//! of its paper. Here both are replayed on that flash, on a simulated chip (`ipl-2007`). Questions
//! that the footnote leaves open are decided here:
//!
//! - Pages are 8 KiB. Each store gets the trace of the same transactions on pages of its own
//!   layout: pages that take appends have two code words less.
//! - The log of transactions lies elsewhere, as for IPL without its recovery; the variant that needs
//!   no log stands beside the others and is not judged.
//! - The second half of the transactions is counted.

use flagstone_engine::AppendScheme;
use flagstone_engine::Durability;
use flagstone_nand::{Profile, SimNand};

use super::super::super::cell::{Cell, OnShare, Outcome, Outcomes};
use super::super::super::figure::{Axis, Drawing, Figure, Panel, Series};
use super::super::super::rule::{Claim, change};
use super::super::super::{Effort, ReproduceError};
use crate::bench::BenchError;
use crate::ipl::replay::{ReplayError, Replayed, on_ipl, on_space};
use crate::ipl::{Config, Recording, Trace, Variant};
use crate::medium::Medium;
use crate::preset;
use crate::workload::Workload;
use crate::workload::tatp::{self, Tatp};
use crate::workload::tpcb::{self, Tpcb};
use crate::workload::tpcc::{self, Cardinality, Setting, Tpcc};

const PROFILE: &str = "ipl-2007";
/// Flash pages of a page of 8 KiB.
const PARTS: u8 = 4;
/// Share of the chip's pages that hold data at the end, by pages without room for appends.
const FILL: f64 = 0.7;
/// Share of the data that memory holds: 20 MB of 1 GB in IPL's paper.
const MEMORY_SHARE: f64 = 0.02;
/// Pages that memory holds at least, where the data are small.
const FRAMES_MIN: usize = 32;
const PAGE_SIZE: usize = 8192;
const CLIENTS: u32 = 8;
/// Data pages of a unit: the pages of a block but one, in which the log region or metadata lie.
const PAGES_PER_BLOCK: f64 = 15.0;
/// Blocks beside blocks of data: the log's region, anchors, and blocks kept free.
const EXTRA_BLOCKS: u32 = 16;

const WORKLOADS: [&str; 3] = ["TPC-B", "TPC-C", "TATP"];
/// Stores by the prefix of their numbers, with their names in the charts.
const STORES: [(&str, &str); 5] = [
    ("whole", "whole pages"),
    ("ipl", "IPL"),
    ("ipl-recovery", "IPL with recovery"),
    ("2x4", "appends [2x4]"),
    ("runs", "appends of byte runs"),
];

/// Fewer writes, and fewer erases, than IPL.
const WRITES: (f64, f64) = (-0.23, -0.62);
const ERASES: (f64, f64) = (-0.29, -0.74);

/// How much of each workload is run: its scale, and its commits.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    branches: u32,
    cardinality: Cardinality,
    subscribers: u32,
    commits: [u64; 3],
}

impl Sizes {
    const fn of(effort: Effort) -> Self {
        match effort {
            Effort::Full => Self {
                branches: 8,
                cardinality: Cardinality::SPEC,
                subscribers: 200_000,
                commits: [80_000, 16_000, 400_000],
            },
            Effort::Quick => Self {
                branches: 1,
                cardinality: Cardinality { items: 10_000, customers: 300, undelivered: 90 },
                subscribers: 10_000,
                commits: [8_000, 1_200, 20_000],
            },
        }
    }
}

/// Text of the setting about this figure.
pub(super) fn setting(effort: Effort) -> String {
    let sizes = Sizes::of(effort);
    format!(
        "against IPL: profile {PROFILE}, pages of 8 KiB, units of 15 pages and 16 sectors; TPC-B with \
         {} branches, TPC-C with 1 warehouse of {} items, TATP with {} subscribers; {CLIENTS} clients, \
         memory {:.0} % of the data, data on {:.0} % of the chip, no log on it; the second half of \
         {} transactions each is counted",
        sizes.branches,
        sizes.cardinality.items,
        sizes.subscribers,
        100.0 * MEMORY_SHARE,
        100.0 * FILL,
        sizes.commits.map(|commits| commits.to_string()).join(", "),
    )
}

/// The figure.
pub(super) fn figure(effort: Effort, seed: u64) -> Figure {
    let sizes = Sizes::of(effort);
    let [tpcb, tpcc, tatp] = sizes.commits;
    let cells = vec![
        cell(WORKLOADS[0], seed, tpcb, move || Tpcb {
            dialect: tpcb::Dialect::Spec,
            scale: sizes.branches,
            seed,
        }),
        cell(WORKLOADS[1], seed, tpcc, move || {
            let setting = Setting::new(tpcc::Dialect::Spec, 1, seed);
            Tpcc::new(Setting { cardinality: sizes.cardinality, ..setting })
        }),
        cell(WORKLOADS[2], seed, tatp, move || {
            Tatp::new(tatp::Dialect::Spec, sizes.subscribers, seed)
        }),
    ];
    Figure::new(
        "ipl",
        "In-place appends against in-page logging, by replays of traces",
        cells,
        draw,
    )
}

/// A workload's cell: its traces, replayed on every store.
fn cell<W: Workload>(
    name: &str,
    seed: u64,
    commits: u64,
    workload: impl Fn() -> W + Send + Sync + 'static,
) -> Cell {
    Cell::new(format!("{name} on {PROFILE}"), move |on_share| {
        measure(&workload(), seed, commits, on_share)
    })
}

fn measure(
    workload: &impl Workload,
    seed: u64,
    commits: u64,
    on_share: OnShare<'_>,
) -> Result<Outcome, BenchError> {
    let trace = |preset: &str, on_share: &mut dyn FnMut(f64)| {
        record(workload, preset, (seed, commits), on_share)
    };
    let warmup = commits / 2;
    let plain = trace("ipa-0x0", &mut |share| on_share(0.3 * share))?;
    let pages = plain.page_count_max();
    let blocks = blocks_for(pages);
    let profile = Profile::named(PROFILE)?.with_block_count(blocks)?;
    let chip = || SimNand::new(&profile, seed);
    let ipl = |variant| on_ipl(&plain, chip(), Config::of(variant), warmup);
    let mut outcome = Outcome { steady: Some(true), ..Outcome::default() };
    add(&mut outcome, "whole", on_space(&plain, chip(), PARTS, AppendScheme::None, warmup))?;
    on_share(0.4);
    add(&mut outcome, "ipl", ipl(Variant::Basic))?;
    add(&mut outcome, "ipl-recovery", ipl(Variant::Recovery))?;
    on_share(0.6);
    drop(plain);
    let slotted = trace("ipa-2x4", &mut |share| on_share(0.6 + 0.3 * share))?;
    let pairs = AppendScheme::Pairs { records: 2, bytes: 4 };
    let runs = AppendScheme::Runs { records: 2 };
    add(&mut outcome, "2x4", on_space(&slotted, chip(), PARTS, pairs, warmup))?;
    // The cost of the room for appends: the same run on a chip that has this room on top.
    let larger = blocks_for(slotted.page_count_max());
    let larger = SimNand::new(&Profile::named(PROFILE)?.with_block_count(larger)?, seed);
    add(&mut outcome, "2x4-larger-chip", on_space(&slotted, larger, PARTS, pairs, warmup))?;
    add(&mut outcome, "runs", on_space(&slotted, chip(), PARTS, runs, warmup))?;
    let drifts =
        STORES.iter().filter_map(|(store, _)| outcome.values.get(&format!("{store}.drift")));
    let drift = drifts.copied().fold(0.0, f64::max);
    outcome.config = serde_json::json!({
        "workload": workload.name(),
        "profile": PROFILE,
        "block_count": blocks,
        "pages": pages,
        "pages_slotted": slotted.page_count_max(),
        "clients": CLIENTS,
        "commits": commits,
        "warmup_txns": warmup,
        "seed": seed,
        "observed": { "drift": drift },
    });
    Ok(outcome)
}

/// Blocks of a chip for so many pages.
fn blocks_for(pages: usize) -> u32 {
    (pages as f64 / FILL / PAGES_PER_BLOCK).ceil() as u32 + EXTRA_BLOCKS
}

/// The trace of a workload on pages of a preset's layout.
fn record(
    workload: &impl Workload,
    preset: &str,
    (seed, commits): (u64, u64),
    on_share: &mut dyn FnMut(f64),
) -> Result<Trace, BenchError> {
    let memory = (workload.loaded_bytes() as f64 * MEMORY_SHARE) as usize;
    let memory = memory.max(FRAMES_MIN * PAGE_SIZE);
    let options = preset::options(preset).map_err(flagstone_engine::OpenError::from)?;
    let options = options.with_memory(memory).with_parts(PARTS.into()).with_seed(seed);
    let options = options.with_durability(Durability::Deferred);
    // Large enough for any run: the work of this chip is not counted.
    let block_size = 16 * PAGE_SIZE as u64;
    let blocks = 3 * workload.loaded_bytes() / block_size + commits / 50 + 200;
    let profile = Profile::named(PROFILE)?.with_block_count(blocks as u32)?;
    let medium = Medium::new(&profile, seed)?;
    let recording = Recording { options, clients: CLIENTS, commits, seed };
    Trace::record(&recording, workload, medium, on_share)
}

/// Adds the counters of a replay, divided by its commits.
fn add(
    outcome: &mut Outcome,
    store: &str,
    replayed: Result<Replayed, ReplayError>,
) -> Result<(), BenchError> {
    let replayed = replayed?;
    let (device, commits) = (replayed.device, replayed.commits.max(1) as f64);
    let programs = device.page_programs + device.partial_programs;
    let counts = [
        ("host_reads", replayed.reads),
        ("host_writes", replayed.writes),
        ("appends", replayed.appends),
        ("page_reads", device.page_reads),
        ("page_programs", device.page_programs),
        ("partial_programs", device.partial_programs),
        ("programs", programs),
        ("operations", device.page_reads + programs),
        ("bytes_programmed", device.bytes_programmed),
        ("erases", device.block_erases),
        ("time_us", replayed.time_ns / 1000),
    ];
    for (name, count) in counts {
        outcome.values.insert(format!("{store}.{name}"), count as f64 / commits);
    }
    let ipl = replayed.ipl;
    let all = [
        ("sectors", ipl.sectors),
        ("record_bytes", ipl.record_bytes),
        ("merges", ipl.merges),
        ("carried", ipl.carried),
        ("overflow_sectors", ipl.overflow_sectors),
        ("status_sectors", ipl.status_sectors),
    ];
    for (name, count) in all.into_iter().filter(|_| ipl.sectors > 0) {
        outcome.values.insert(format!("{store}.all_{name}"), count as f64);
    }
    outcome.values.insert(format!("{store}.drift"), replayed.steadiness.drift);
    outcome.steady = outcome.steady.map(|steady| steady && replayed.steadiness.steady);
    Ok(())
}

/// Title, unit and value of a chart.
const CHARTS: [(&str, &str, &str); 5] = [
    ("Reads", "flash pages a transaction", "page_reads"),
    ("Programs", "flash pages and parts of them a transaction", "programs"),
    ("Bytes programmed", "bytes a transaction", "bytes_programmed"),
    ("Erases", "blocks a transaction", "erases"),
    ("Device time", "microseconds a transaction", "time_us"),
];

/// One value of a store, for each workload.
fn values(outcomes: &Outcomes, store: &str, value: &str) -> Result<Vec<f64>, ReproduceError> {
    let of =
        |name: &&str| outcomes.value(&format!("{name} on {PROFILE}"), &format!("{store}.{value}"));
    WORKLOADS.iter().map(of).collect()
}

fn draw(outcomes: &Outcomes) -> Result<Drawing, ReproduceError> {
    let mut drawing = Drawing::default();
    for (title, y, value) in CHARTS {
        let series = STORES.iter().map(|(store, name)| {
            Ok(Series { name: (*name).to_owned(), values: values(outcomes, store, value)? })
        });
        drawing.panel(Panel {
            title: title.to_owned(),
            y: y.to_owned(),
            x: String::from("workload"),
            axis: Axis::Names(WORKLOADS.map(str::to_owned).to_vec()),
            series: series.collect::<Result<_, ReproduceError>>()?,
        });
    }
    let changes = |value: &str| -> Result<Vec<f64>, ReproduceError> {
        let (ipl, appends) = (values(outcomes, "ipl", value)?, values(outcomes, "2x4", value)?);
        Ok(ipl.iter().zip(&appends).map(|(ipl, appends)| change(*ipl, *appends)).collect())
    };
    let (writes, erases) =
        (Claim::ChangeBetween(WRITES.0, WRITES.1), Claim::ChangeBetween(ERASES.0, ERASES.1));
    drawing.claim("programs, [2x4] against IPL", &writes, &changes("programs")?);
    drawing.claim("reads and programs, [2x4] against IPL", &writes, &changes("operations")?);
    drawing.claim("erases, [2x4] against IPL", &erases, &changes("erases")?);
    Ok(drawing)
}
