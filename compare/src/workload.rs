//! The workloads: what is loaded, and what one client does next.

mod index;
mod long;
mod reads;
mod tatp;
pub mod tpcb;
mod ycsb;
mod zipf;

use anyhow::{Result, bail};
use rand::{Rng, RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use crate::store::Store;

/// One of several threads that run a workload.
pub struct Client {
    pub draws: Pcg64Mcg,
    pub number: u64,
    /// Steps done.
    pub sequence: u64,
}

impl Client {
    pub fn new(seed: u64, number: u64) -> Self {
        let draws = Pcg64Mcg::seed_from_u64(seed << 16 | number);
        Self { draws, number, sequence: 0 }
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draws.random_range(0..end)
    }
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A durable commit.
    Commit,
    /// So many reads.
    Reads(u64),
    /// A transaction that failed as its specification says.
    Failed,
}

pub trait Workload: Sync {
    fn tables(&self) -> usize;

    /// Bytes of keys and values when `commits` are done.
    fn bytes(&self, commits: u64) -> u64;

    /// Bytes of keys and values that `commits` write or delete.
    fn changed(&self, commits: u64) -> u64 {
        self.bytes(commits)
    }

    /// Values have 64 KiB and more.
    fn has_large_values(&self) -> bool {
        false
    }

    /// Loads what is there before the window.
    fn load(&self, store: &dyn Store) -> Result<()>;

    /// The next transaction of a client.
    fn step(&self, store: &dyn Store, client: &mut Client) -> Result<Step>;

    /// After a run, and after the restart of a killed one: whatever can be checked.
    fn verify(&self, _store: &dyn Store, _commits: u64) -> Result<()> {
        Ok(())
    }
}

/// When a workload is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// Unless others are asked for.
    Short,
    /// With all long ones, or by its name.
    Long,
    /// By its name alone.
    Named,
}

/// A workload with how it is run.
pub struct Run {
    pub name: &'static str,
    pub what: &'static str,
    pub set: Set,
    pub threads: u64,
    /// Steps that count, all threads together, when all of it is run.
    pub count: u64,
    /// Part of the steps that is run.
    pub share: f64,
    /// Commits count, not reads.
    pub is_written: bool,
    pub workload: Box<dyn Workload>,
}

impl Run {
    /// Steps that are run.
    pub fn wanted(&self) -> u64 {
        ((self.count as f64 * self.share) as u64).max(1)
    }

    /// Says what is run, for readers.
    pub fn title(&self) -> String {
        match self.share {
            1.0 => self.what.into(),
            share => format!("{}; share {share}", self.what),
        }
    }
}

fn run(
    name: &'static str,
    what: &'static str,
    threads: u64,
    count: u64,
    workload: impl Workload + 'static,
) -> Run {
    let is_written = !what.starts_with("cached");
    let workload = Box::new(workload);
    Run { name, what, set: Set::Short, threads, count, share: 1.0, is_written, workload }
}

/// Every run, in the order of the report. The tables of long ones depend on the share that is run.
pub fn all(share: f64, seed: u64) -> Vec<Run> {
    let short = short().into_iter().map(|run| Run { share, ..run });
    short.chain(long::runs(share, seed)).collect()
}

fn short() -> Vec<Run> {
    let named = |run| Run { set: Set::Named, ..run };
    let tpcb = || tpcb::Tpcb { scale: 10 };
    vec![
        run("tpcb", "TPC-B, scale 10, one thread", 1, 20_000, tpcb()),
        run("tpcb-4", "TPC-B, scale 10, four threads", 4, 40_000, tpcb()),
        run("tpcb-16", "TPC-B, scale 10, sixteen threads", 16, 80_000, tpcb()),
        named(run("tpcb-200k", "TPC-B, scale 10, one thread, long", 1, 200_000, tpcb())),
        named(run("tpcb-400k", "TPC-B, scale 10, one thread, longer", 1, 400_000, tpcb())),
        run(
            "tatp",
            "TATP, 100,000 subscribers, one thread",
            1,
            20_000,
            tatp::Tatp { count: 100_000 },
        ),
        run("index-1", "random index, one update a commit", 1, 20_000, index::Index { batch: 1 }),
        run(
            "index-100",
            "random index, 100 updates a commit",
            1,
            5_000,
            index::Index { batch: 100 },
        ),
        run(
            "ycsb-a",
            "YCSB A, 100,000 records, four threads",
            4,
            20_000,
            ycsb::Ycsb::new(100_000, 50),
        ),
        run(
            "ycsb-b",
            "YCSB B, 100,000 records, four threads",
            4,
            100_000,
            ycsb::Ycsb::new(100_000, 95),
        ),
        run(
            "load-sorted",
            "a million sorted rows, 1,000 a commit",
            1,
            1_000,
            index::Load { sorted: true },
        ),
        run(
            "load-random",
            "a million rows in random order, 1,000 a commit",
            1,
            1_000,
            index::Load { sorted: false },
        ),
        run("reads", "cached point reads, one thread", 1, 1_000_000, reads::Points),
        run("reads-2", "cached point reads, two threads", 2, 2_000_000, reads::Points),
        run("scans", "cached scans of 100 rows, one thread", 1, 5_000_000, reads::Scans),
    ]
}

/// Names of a set, in the order of the report.
pub fn names(set: Set) -> Vec<&'static str> {
    all(1.0, 0).iter().filter(|run| run.set == set).map(|run| run.name).collect()
}

/// The run called `name`.
pub fn named(name: &str, share: f64, seed: u64) -> Result<Run> {
    let mut all = all(share, seed);
    let Some(place) = all.iter().position(|run| run.name == name) else {
        let names: Vec<_> = all.iter().map(|run| run.name).collect();
        bail!("there is no workload `{name}`: {}", names.join(", "));
    };
    Ok(all.swap_remove(place))
}

/// `size` bytes that do not compress well.
fn filler(draws: &mut impl Rng, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    draws.fill_bytes(&mut bytes);
    bytes
}

/// Draws for the row of a table, whoever loads it.
fn draws_of(table: usize, row: u64) -> Pcg64Mcg {
    Pcg64Mcg::seed_from_u64((table as u64) << 56 | row)
}

/// A one-to-one scattering of 64-bit numbers.
fn scatter(number: u64) -> u64 {
    let number = (number ^ number >> 31).wrapping_mul(0x7FB5_D329_728E_A185);
    let number = (number ^ number >> 27).wrapping_mul(0x81DA_DEF4_BC2D_D44D);
    number ^ number >> 33
}
