//! Random concurrent histories, checked for cycles: the promise of serializability.
//!
//! Owns the drawing of histories and their execution: many clients on one thread that read, scan and
//! append to lists through the engine's own interface, with flushes, merges, checkpoints, deadlocks,
//! aborts and power cuts in between, all from one seed. Never decides which reads are allowed: that
//! is the part of [`graph`], which knows nothing of engines.
//!
//! ```text
//! seed ─▶ clients ─▶ engine (one call a turn, flush and work begin and end at turns of their own)
//!            └─────▶ History ─▶ dependency graph ─▶ a cycle is a failure
//! ```
//!
//! - **Y1** Equal configurations give equal histories.
//! - **Y2** A client that waits for a lock goes on only when the engine names its transaction, so a
//!   lost wake-up is a stall, and a stall is a failure.

mod client;
pub mod graph;
#[cfg(test)]
mod tests;
pub mod threads;
mod world;

use flagstone_engine::OpenError;
use flagstone_engine::{CommitBy, EngineError};
use flagstone_nand::{Profile, SimNand};

use super::subject::Setup;
use super::swarm::{CHIP_PROFILES, FLAGS_PROFILE};
use super::{CrashError, small};
use crate::preset;
use graph::{Anomaly, Checked};
use world::World;

/// Histories to draw and run.
#[derive(Clone, Debug)]
pub struct HistoryConfig {
    /// The chip.
    pub profile: Profile,
    /// Options of the database.
    pub setup: Setup,
    /// Clients at work at a time.
    pub clients: usize,
    /// Transactions and snapshots of a history.
    pub transactions: u64,
    /// Histories, one after the other on the same database.
    pub histories: u64,
    /// Turns between power cuts, on average; 0 for none.
    pub turns_per_cut: u64,
    /// Of so many turns that could do background work, one does.
    pub idleness: u64,
    /// Seed of everything drawn.
    pub seed: u64,
}

/// Blocks of a drawn chip: room for the spills of many clients at a time.
const BLOCK_COUNT: u32 = 128;

impl HistoryConfig {
    /// The configuration of a seed: every preset on every chip in turn, a third without power cuts.
    ///
    /// # Errors
    ///
    /// When a preset or a profile is not there.
    pub fn drawn(seed: u64) -> Result<Self, CrashError> {
        let index = seed as usize;
        let presets = preset::flagstone();
        let options = preset::options(presets[index % presets.len()])?.with_seed(seed);
        let chip = match options.techniques().commit {
            CommitBy::Flags => FLAGS_PROFILE,
            _ => CHIP_PROFILES[index / presets.len() % CHIP_PROFILES.len()],
        };
        let profile = Profile::named(chip)?.with_block_count(BLOCK_COUNT)?;
        Ok(Self {
            setup: small(options, &SimNand::new(&profile, seed)).into(),
            profile,
            clients: 3 + index % 12,
            transactions: 400,
            histories: 3,
            turns_per_cut: [0, 3_000, 800][index % 3],
            idleness: 1,
            seed,
        })
    }
}

/// Numbers of checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Transactions, snapshots, reads and dependencies in checked graphs.
    pub checked: Checked,
    /// Transactions that ended a deadlock.
    pub victims: u64,
    /// Waits for locks.
    pub lock_waits: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Transactions given up for want of room.
    pub full: u64,
    /// Snapshots that the engine ended.
    pub ended_snapshots: u64,
}

impl Totals {
    /// Adds the numbers of another run.
    pub fn add(&mut self, other: &Self) {
        self.checked.add(&other.checked);
        self.victims += other.victims;
        self.lock_waits += other.lock_waits;
        self.cuts += other.cuts;
        self.full += other.full;
        self.ended_snapshots += other.ended_snapshots;
    }
}

/// A failure that no engine may show.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A history that no serial order explains.
    #[error(transparent)]
    Anomaly(#[from] Anomaly),
    /// An operation was refused that must work.
    #[error("refused: {0}")]
    Refused(#[from] EngineError),
    /// The database could not be made or opened.
    #[error("{0}")]
    Open(String),
    /// No client can go on.
    #[error("nobody can go on: {0}")]
    Stalled(String),
    /// A thread panicked.
    #[error("a thread panicked")]
    Panicked,
    /// The structural check found a fault.
    #[error("the structural check found something")]
    Unsound,
}

fn open_failed(error: OpenError) -> Failure {
    match error {
        OpenError::Engine(error) => error.into(),
        other => Failure::Open(other.to_string()),
    }
}

/// Runs and checks histories.
///
/// # Errors
///
/// The first failure.
pub fn run(config: &HistoryConfig) -> Result<Totals, Failure> {
    let mut world = World::new(config)?;
    for _ in 0..config.histories {
        world = world.live()?;
        world.judge()?;
    }
    Ok(world.totals())
}
