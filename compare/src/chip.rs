//! TPC-B on a raw NAND chip that the kernel simulates: Flagstone on the chip itself, a peer on UBIFS.
//!
//! `compare/mtd` boots a guest that calls this, a phase a process: `load`, then `run` in a group of processes of
//! bounded memory, and `verify` on a copy of the chip that was taken in the middle of things. What the chip does is
//! counted by the kernel and read here, so that a window begins and ends between two commits.

use std::fs::{self, File};
use std::io::{self, BufRead as _};
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use rustix::fs::syncfs;
use serde::{Deserialize, Serialize};

use crate::disk;
use crate::store::{self, Limits, Plan, Store};
use crate::workload::tpcb::Tpcb;
use crate::workload::{Client, Step, Workload as _};

const WORKLOAD: Tpcb = Tpcb { scale: 1 };
const SEED: u64 = 1;
/// Parts of a window, which tell whether it is steady.
const PARTS: u64 = 2;
/// Commits behind the window, and again before each look at the chip.
const BEHIND: u64 = 20;

// Prices of the chip's operations, in microseconds.
const READ_US: f64 = 80.0;
const PROGRAM_US: f64 = 200.0;
const ERASE_US: f64 = 1500.0;

#[derive(Clone, Args)]
pub struct ChipArgs {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    phase: Phase,
}

/// An engine and where it is.
#[derive(Clone, Args)]
struct Target {
    /// Engine.
    #[arg(long)]
    engine: String,
    /// Directory on UBIFS, for engines that need a file system.
    #[arg(long, required_unless_present = "node")]
    directory: Option<PathBuf>,
    /// The chip, such as /dev/mtd0, for Flagstone.
    #[arg(long)]
    node: Option<PathBuf>,
    /// Profile of the chip; what its driver says when left out.
    #[arg(long)]
    profile: Option<String>,
    /// Memory for the engine's caches, KiB.
    #[arg(long, default_value_t = 2048)]
    memory: usize,
    /// How much of the log may hold back writes, KiB.
    #[arg(long, default_value_t = 1024)]
    held_back: usize,
}

#[derive(Clone, Subcommand)]
enum Phase {
    /// Creates and loads.
    Load,
    /// Warms up and measures; then commits some more whenever it reads a line, and says how many there are.
    Run {
        /// Transactions before the window.
        #[arg(long)]
        warmup: u64,
        /// Transactions of the window.
        #[arg(long)]
        txns: u64,
        /// Histogram of the kernel that counts what the chip does.
        #[arg(long)]
        counters: PathBuf,
        /// File for what was measured.
        #[arg(long)]
        out: PathBuf,
    },
    /// Opens what a power cut left, checks that it is what so many commits made, and prints a row of the table.
    Verify {
        #[arg(long)]
        commits: u64,
        /// What `run` measured.
        #[arg(long)]
        measured: PathBuf,
        /// Name of the row.
        #[arg(long)]
        label: String,
    },
}

/// What the chip did.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Counts {
    reads: u64,
    programs: u64,
    erases: u64,
}

impl Counts {
    /// Reads the histogram, whose lines are `{ action:     100003 } hitcount:     17`.
    fn read(path: &PathBuf) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let count = |action: &str| {
            let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let line = lines.find(|words| words.get(1..3) == Some(&["action:", action]));
            line.and_then(|words| words.last()?.parse().ok()).unwrap_or(0)
        };
        Ok(Self { reads: count("100003"), programs: count("200004"), erases: count("30000b") })
    }

    fn since(self, before: Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            programs: self.programs - before.programs,
            erases: self.erases - before.erases,
        }
    }

    fn flash_us(self) -> f64 {
        self.reads as f64 * READ_US
            + self.programs as f64 * PROGRAM_US
            + self.erases as f64 * ERASE_US
    }
}

/// What `run` leaves for `verify`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Measured {
    engine: String,
    limits: Limits,
    warmup: u64,
    txns: u64,
    /// All of the window, then its parts.
    window: Counts,
    parts: Vec<Counts>,
    seconds: f64,
    file_bytes: u64,
    memory: u64,
}

impl Target {
    fn open(&self, is_new: bool) -> Result<Box<dyn Store>> {
        let limits = Limits { memory: self.memory << 10, held_back: self.held_back << 10 };
        let plan = Plan { tables: WORKLOAD.tables(), is_new, limits, has_large_values: false };
        match (&self.node, &self.directory) {
            (Some(node), _) => {
                let chip = store::Chip { node: node.clone(), profile: self.profile.clone() };
                store::open_on(&chip, &plan)
            }
            (None, Some(directory)) => {
                fs::create_dir_all(directory)?;
                store::open(&self.engine, &plan, directory)
            }
            (None, None) => anyhow::bail!("neither a directory nor a chip"),
        }
    }

    /// Waits until nothing is held back by the file system. A chip without one holds nothing back.
    fn settle(&self) -> Result<()> {
        if let Some(directory) = &self.directory {
            syncfs(File::open(directory)?).map_err(io::Error::from)?;
        }
        Ok(())
    }

    fn size(&self, store: &dyn Store) -> Result<u64> {
        match &self.directory {
            Some(directory) => disk::size_of(directory),
            None => store.size(),
        }
    }
}

pub fn run(args: &ChipArgs) -> Result<()> {
    let target = &args.target;
    match &args.phase {
        Phase::Load => {
            let store = target.open(true)?;
            WORKLOAD.load(store.as_ref())?;
            store.close()
        }
        Phase::Run { warmup, txns, counters, out } => {
            let store = target.open(false)?;
            let mut client = Client::new(SEED, 0);
            steps(store.as_ref(), &mut client, *warmup)?;
            let measured = measure(target, store.as_ref(), &mut client, *txns, counters)?;
            let measured = Measured { warmup: *warmup, ..measured };
            fs::write(out, serde_json::to_string(&measured)?)?;
            // Without a line more, the process is killed as it is.
            for line in io::stdin().lock().lines() {
                line?;
                steps(store.as_ref(), &mut client, BEHIND)?;
                println!("{}", client.sequence);
            }
            Ok(())
        }
        Phase::Verify { commits, measured, label } => {
            let measured = serde_json::from_str(&fs::read_to_string(measured)?)?;
            let store = target.open(false)?;
            WORKLOAD.verify(store.as_ref(), *commits)?;
            print_row(label, &measured);
            Ok(())
        }
    }
}

fn steps(store: &dyn Store, client: &mut Client, count: u64) -> Result<()> {
    for _ in 0..count {
        let step = WORKLOAD.step(store, client)?;
        anyhow::ensure!(step == Step::Commit, "a transaction of TPC-B failed");
        client.sequence += 1;
    }
    Ok(())
}

fn measure(
    target: &Target,
    store: &dyn Store,
    client: &mut Client,
    txns: u64,
    counters: &PathBuf,
) -> Result<Measured> {
    let began = std::time::Instant::now();
    target.settle()?;
    let first = Counts::read(counters)?;
    let (mut before, mut parts) = (first, Vec::new());
    for part in 0..PARTS {
        steps(store, client, txns * (part + 1) / PARTS - txns * part / PARTS)?;
        target.settle()?;
        let now = Counts::read(counters)?;
        parts.push(now.since(before));
        before = now;
    }
    Ok(Measured {
        engine: target.engine.clone(),
        limits: Limits { memory: target.memory << 10, held_back: target.held_back << 10 },
        warmup: 0,
        txns,
        window: before.since(first),
        parts,
        seconds: disk::seconds(began),
        file_bytes: target.size(store)?,
        memory: disk::memory_max()?,
    })
}

/// A row of the table, in Markdown.
fn print_row(label: &str, measured: &Measured) {
    let Measured { window, parts, txns, .. } = measured;
    let per = |count: u64| count as f64 / *txns as f64;
    let part_txns = *txns as f64 / parts.len() as f64;
    let trend: Vec<_> =
        parts.iter().map(|part| format!("{:.3}", part.flash_us() / 1e3 / part_txns)).collect();
    println!(
        "| {label} | {:.2} | {:.2} | {:.1} | {:.3} | {} | {:.1} | all |",
        per(window.programs),
        per(window.reads),
        per(window.erases) * 1e3,
        window.flash_us() / 1e3 / *txns as f64,
        trend.join(", "),
        measured.file_bytes as f64 / f64::from(1 << 20),
    );
}
