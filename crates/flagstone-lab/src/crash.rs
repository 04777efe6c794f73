//! Crash exploration: every operation, every ending, one oracle.
//!
//! Owns the harness of the reliability tests: scripts, the device under test with a picture before
//! each operation, the runner that compares engine and model, and the explorer. Never decides the
//! contents that a database must have: that is [`crate::model`]'s part.
//!
//! ```text
//! seed or bytes ─▶ Script ─▶ Runner ─┬─▶ engine ─▶ Rig (device, captures)
//!                                    └─▶ Model ◀── compared after every answer
//! captures × endings ─▶ open again ─▶ Model.settle ─▶ check ─▶ write ─▶ open again
//! ```
//!
//! - **C1** Every way of testing, exhaustive, drawn, fuzzed or replayed, uses the same operations
//!   ([`script::Op`]) and the same oracle.
//! - **C2** A reported failure can be replayed by the line that is printed with it.

use std::time::Instant;

use flagstone_engine::CommitBy;
use flagstone_engine::{OpenError, Options, OptionsError};
use flagstone_nand::{
    CellMode, Crashable, EccNand, EccOwner, Nand, NandError, OpenDeviceError, Profile,
    ProfileError, SegmentFile, SimNand, SimSsd, SimStorage, Translation,
};
use flagstone_opponents::shadow::Restart;
use serde::Serialize;

pub mod classic;
mod copies;
pub mod engine;
pub mod explore;
pub mod faults;
#[cfg(feature = "seeded-bugs")]
pub mod forged;
pub mod fuzz;
#[cfg(test)]
mod growth;
pub mod histories;
#[cfg(feature = "seeded-bugs")]
pub mod hunt;
pub mod images;
pub mod ledger;
pub mod opening;
pub mod overlay;
pub mod pages;
#[cfg(test)]
mod promise;
pub mod rig;
pub mod run;
pub mod scoreboard;
pub mod script;
pub mod sequences;
pub mod subject;
pub mod swarm;
#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "seeded-bugs"))]
mod together;
#[cfg(test)]
mod toy;
pub mod wear;

pub use classic::Classic;
pub use engine::Flagstone;
pub use explore::{BadCut, Cut, CutPath, Failure, Limits, Progress, Scenario, Tally};
pub use pages::{Pages, Records, Shadow};
pub use run::{RunnerRig, Violation};
use subject::{Setup, Subject as _};

use crate::medium::real_block_count;
use crate::preset::{self, EngineKind};
use script::{Mix, Script};

/// Request to `flagstone crash`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashConfig {
    /// Preset of the database.
    pub preset: String,
    /// Profile of the device; `segment-file` explores a simulated file, a profile with a translation
    /// layer a simulated drive.
    pub profile: String,
    /// Operations of the script.
    pub ops: usize,
    /// Cuts on the way to a state.
    pub depth: u32,
    /// Seed of the script and of every draw.
    pub seed: u64,
    /// Threads.
    pub threads: usize,
}

impl Default for CrashConfig {
    fn default() -> Self {
        Self {
            preset: String::from("flagstone"),
            profile: String::from("tiny"),
            ops: 100,
            depth: 1,
            seed: 0,
            threads: std::thread::available_parallelism().map_or(1, Into::into),
        }
    }
}

/// Report that `flagstone crash` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CrashReport {
    /// Preset explored.
    pub preset: String,
    /// Device operations at which power was cut, at the first level.
    pub points: u64,
    /// Operations that the device counted in the run without a cut; 0 where that run failed.
    pub operations: u64,
    /// Crash states recovered from.
    pub states: u64,
    /// Of these, states whose database then had no room for the recovery's own change.
    pub probes_refused: u64,
    /// States in which the promise is broken.
    pub failures: u64,
    /// Of these, states whose content differs from the committed one.
    pub lost_commits: u64,
    /// Wall time.
    pub elapsed_s: f64,
    /// For people: each violation with the line that replays it; at most
    /// [`explore::FAILURES_KEPT`].
    #[serde(skip)]
    pub lines: Vec<String>,
}

/// Why an exploration could not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CrashError {
    /// The preset is refused.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The profile is refused.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The simulated file cannot be made.
    #[error(transparent)]
    Device(#[from] OpenDeviceError),
    /// The simulated drive cannot be made.
    #[error(transparent)]
    Drive(#[from] NandError),
    /// The cut names no state.
    #[error(transparent)]
    Cut(#[from] BadCut),
}

/// Blocks of an explored device: enough for the log, the reserves and some data, and no more, so
/// that blocks are collected and snapshots are cheap.
const BLOCK_COUNT: u32 = 32;

/// Log pages of an explored database: little, so that the log's head has to move.
const LOG_PAGES: u32 = 24;

/// Log pages of a classic engine: it logs undo information, too, and keeps room to undo.
const CLASSIC_LOG_PAGES: u32 = 56;

/// Logical pages that fit the memory of an explored database: little, so that pages move.
const MEMORY_PAGES: usize = 32;

/// The same for pages that transactions share: the least there may be, so that running transactions
/// are written.
const SHARED_MEMORY_PAGES: usize = 24;

/// Share of the memory for frames: the rest, for deltas, fills after some dozens of rows, so that
/// leaves are merged and split.
const FRAME_SHARE: f64 = 0.8;

/// Shares of the memory for frames and for uncommitted changes where commits claim leaves.
const CLAIM_SHARES: (f64, f64) = (0.3, 0.7);

/// Dies of an explored drive.
const DRIVE_DIES: u32 = 2;

/// Blocks of an explored drive without its reserve: a block of the host is four of them.
const DRIVE_BLOCKS: u32 = 4 * BLOCK_COUNT;

/// Smallest page of a simulated file, in bytes: two sectors, so that a page can be torn.
const FILE_PAGE_SIZE: u32 = 1024;

/// Page of an explored drive that takes appends: two sectors for content, two for them.
const APPENDING_PAGE_SIZE: u32 = 2048;

impl CrashConfig {
    /// The options of the explored database.
    ///
    /// # Errors
    ///
    /// When there is no such preset.
    pub fn options(&self, device: &impl Nand) -> Result<Options, OptionsError> {
        let options = preset::options(&self.preset)?.with_seed(self.seed);
        let options = small(options, device);
        options.require(device)?;
        if matches!(preset::engine_of(&options), EngineKind::Classic(_)) {
            options.require_appends(device)?;
        }
        Ok(options)
    }

    fn replay_line(&self, failure: &Failure) -> String {
        let Self { preset, profile, ops, depth, seed, .. } = self;
        format!(
            "flagstone crash --preset {preset} --profile {profile} --ops {ops} --depth {depth} \
             --seed {seed} {}: {}",
            failure.path, failure.violation
        )
    }

    fn report(&self, tally: Tally, started: Instant) -> CrashReport {
        CrashReport {
            preset: self.preset.clone(),
            points: tally.points,
            operations: tally.trace.operations,
            states: tally.states,
            probes_refused: tally.probes_refused,
            failures: tally.failure_count,
            lost_commits: tally.lost_commits,
            elapsed_s: started.elapsed().as_secs_f64(),
            lines: tally.failures.iter().map(|failure| self.replay_line(failure)).collect(),
        }
    }

    fn limits(&self) -> Limits {
        Limits { depth: self.depth, seed: self.seed, threads: self.threads, ..Limits::default() }
    }

    fn scenario<C: Crashable>(&self, device: C) -> Result<Scenario<C>, CrashError> {
        let options = self.options(&device)?;
        // Only the store of shadow pages itself knows the demands of its protocol on a device.
        let setup = options.clone().into();
        let refusal = match preset::engine_of(&options) {
            EngineKind::Shadow(..) => Shadow::create(device.clone(), &setup).err(),
            EngineKind::Records(_) => Records::create(device.clone(), &setup).err(),
            EngineKind::Flagstone | EngineKind::Classic(_) => None,
        };
        if let Some(OpenError::Options(error)) = refusal {
            return Err(error.into());
        }
        let script = Script::seeded(self.seed, self.ops, &mix_of(&options));
        // Both ways of restart, seed by seed.
        let restart = if self.seed.is_multiple_of(2) { Restart::Summaries } else { Restart::Scan };
        Ok(Scenario { device, model: None, setup: Setup { restart, ..options.into() }, script })
    }

    fn explore_on<C>(&self, device: C, progress: Progress<'_>) -> Result<CrashReport, CrashError>
    where
        C: Crashable + Send + Sync,
    {
        let started = Instant::now();
        let scenario = self.scenario(device)?;
        let limits = self.limits();
        let tally = match preset::engine_of(&scenario.setup.options) {
            EngineKind::Flagstone => {
                explore::explore::<Flagstone<RunnerRig<C>>, C>(&scenario, &limits, progress)
            }
            EngineKind::Classic(_) => {
                explore::explore::<Classic<RunnerRig<C>>, C>(&scenario, &limits, progress)
            }
            EngineKind::Shadow(..) => {
                explore::explore::<Shadow<RunnerRig<C>>, C>(&scenario, &limits, progress)
            }
            EngineKind::Records(_) => {
                explore::explore::<Records<RunnerRig<C>>, C>(&scenario, &limits, progress)
            }
        };
        Ok(self.report(tally, started))
    }

    fn replay_on<C>(&self, device: C, path: &CutPath) -> Result<CrashReport, CrashError>
    where
        C: Crashable + Send + Sync,
    {
        let started = Instant::now();
        let scenario = self.scenario(device)?;
        let outcome = match preset::engine_of(&scenario.setup.options) {
            EngineKind::Flagstone => {
                explore::replay::<Flagstone<RunnerRig<C>>, C>(&scenario, path, self.seed)?
            }
            EngineKind::Classic(_) => {
                explore::replay::<Classic<RunnerRig<C>>, C>(&scenario, path, self.seed)?
            }
            EngineKind::Shadow(..) => {
                explore::replay::<Shadow<RunnerRig<C>>, C>(&scenario, path, self.seed)?
            }
            EngineKind::Records(_) => {
                explore::replay::<Records<RunnerRig<C>>, C>(&scenario, path, self.seed)?
            }
        };
        let mut tally = Tally { points: 1, states: 1, ..Tally::default() };
        if let Err(violation) = outcome {
            tally.fail(Failure { path: path.clone(), violation });
        }
        Ok(self.report(tally, started))
    }
}

/// The same options with little memory and a short log, so that a short script moves pages.
#[must_use]
pub fn small(mut options: Options, device: &impl Nand) -> Options {
    let memory_pages = match preset::engine_of(&options) {
        EngineKind::Records(_) => SHARED_MEMORY_PAGES,
        _ => MEMORY_PAGES,
    };
    let page_size = device.geometry().page_size as usize * options.parts as usize;
    options.log_pages = match preset::engine_of(&options) {
        EngineKind::Flagstone | EngineKind::Shadow(..) | EngineKind::Records(_) => LOG_PAGES,
        EngineKind::Classic(_) => CLASSIC_LOG_PAGES,
    };
    let is_claiming = is_claiming(&options);
    let options = options.with_techniques(|techniques| {
        techniques.frame_share = FRAME_SHARE;
        if is_claiming {
            // A transaction that spills is not claimed.
            (techniques.frame_share, techniques.uncommitted_share) = CLAIM_SHARES;
        }
    });
    options.with_memory(memory_pages * page_size)
}

/// Operations that a script may ask of the engine that these options name.
fn mix_of(options: &Options) -> Mix {
    match preset::engine_of(options) {
        // Shadow pages have no savepoints, no values longer than a leaf takes, and no checkpoint to
        // begin.
        EngineKind::Shadow(..) => Mix { savepoints: 0, large: 0, pieces: 0, ..Mix::default() },
        EngineKind::Records(_) => Mix { savepoints: 0, large: 0, ..Mix::default() },
        EngineKind::Flagstone if is_claiming(options) => script::CLAIMS,
        EngineKind::Classic(_) if options.techniques().append_scheme.records_max() > 0 => {
            script::APPENDS
        }
        EngineKind::Flagstone | EngineKind::Classic(_) => Mix::default(),
    }
}

/// Whether commits claim every leaf that they can.
fn is_claiming(options: &Options) -> bool {
    matches!(options.techniques().commit, CommitBy::Claims | CommitBy::Flags)
}

/// A chip as the explorer uses it: the profile with few blocks.
///
/// # Errors
///
/// When there is no such profile.
pub fn chip(profile: &str, seed: u64) -> Result<SimNand, ProfileError> {
    Ok(SimNand::new(&chip_profile(profile)?, seed))
}

/// The same under ECC of our own.
///
/// # Errors
///
/// When there is no such profile.
pub fn own_chip(profile: &str, seed: u64) -> Result<EccNand<SimNand>, ProfileError> {
    EccNand::simulated(&chip_profile(profile)?, seed)
}

fn chip_profile(profile: &str) -> Result<Profile, ProfileError> {
    let profile = Profile::named(profile)?;
    let is_paired =
        matches!(profile.capabilities.cell_mode, CellMode::Mlc { .. } | CellMode::OddMlc { .. });
    // On paired cells the log uses every other page, and a sync may waste one.
    let block_count = if is_paired { 2 * BLOCK_COUNT } else { BLOCK_COUNT };
    profile.with_block_count(block_count)
}

/// A simulated file as the explorer uses it: small pages, few segments.
///
/// # Errors
///
/// When the profile does not exist, or the file cannot be made.
pub fn file(profile: &str) -> Result<SegmentFile<SimStorage>, CrashError> {
    let mut profile = Profile::named(profile)?;
    let geometry = &mut profile.geometry;
    geometry.page_size = FILE_PAGE_SIZE;
    geometry.pages_per_block = 8;
    geometry.block_count = BLOCK_COUNT;
    let profile = profile.checked()?;
    Ok(SegmentFile::create(SimStorage::new(profile.timing), &profile)?)
}

/// The same as a file that grows, from as few segments as a database needs.
///
/// # Errors
///
/// As [`file()`].
pub fn growing_file() -> Result<SegmentFile<SimStorage>, CrashError> {
    growing_file_of(FILE_PAGE_SIZE)
}

/// The same with pages of `page_size` bytes.
///
/// # Errors
///
/// As [`file()`].
pub fn growing_file_of(page_size: u32) -> Result<SegmentFile<SimStorage>, CrashError> {
    let mut profile = Profile::named("segment-file")?;
    let geometry = &mut profile.geometry;
    geometry.page_size = page_size;
    geometry.pages_per_block = 8;
    geometry.block_count = 4 * BLOCK_COUNT;
    let profile = profile.checked()?;
    Ok(SegmentFile::create_growing(SimStorage::new(profile.timing), &profile, 2)?)
}

/// A simulated drive as the explorer uses it: small blocks, few dies, and used before, so that it
/// collects within the run.
///
/// # Errors
///
/// When the profile cannot be that small, or the chips fail.
pub fn drive(
    mut profile: Profile,
    translation: Translation,
    seed: u64,
) -> Result<SimSsd, CrashError> {
    let geometry = &mut profile.geometry;
    geometry.page_size = match translation.in_place_appends {
        true => APPENDING_PAGE_SIZE,
        false => FILE_PAGE_SIZE,
    };
    geometry.pages_per_block = 8;
    geometry.die_count = DRIVE_DIES;
    profile.timing.channel_count = profile.timing.channel_count.min(DRIVE_DIES);
    let blocks = real_block_count(&profile, DRIVE_BLOCKS);
    let profile = profile.with_block_count(blocks)?;
    let mut drive = SimSsd::new(&profile, translation, seed);
    drive.precondition(seed)?;
    Ok(drive)
}

/// Device on which a configuration is explored.
enum Device {
    Chip(SimNand),
    OwnEcc(Box<EccNand<SimNand>>),
    Drive(Box<SimSsd>),
    File(SegmentFile<SimStorage>),
}

impl Device {
    fn of(config: &CrashConfig) -> Result<Self, CrashError> {
        let profile = Profile::named(&config.profile)?;
        if profile.capabilities.needs_sync {
            return file(&config.profile).map(Self::File);
        }
        match profile.translation {
            Some(translation) => {
                drive(profile, translation, config.seed).map(|drive| Self::Drive(Box::new(drive)))
            }
            None if profile.ecc == EccOwner::Own => {
                Ok(Self::OwnEcc(Box::new(own_chip(&config.profile, config.seed)?)))
            }
            None => Ok(Self::Chip(chip(&config.profile, config.seed)?)),
        }
    }
}

/// Explores every crash state of a seeded script.
///
/// # Errors
///
/// When preset or profile are refused; later failures are in the report.
pub fn explore(config: &CrashConfig, progress: Progress<'_>) -> Result<CrashReport, CrashError> {
    match Device::of(config)? {
        Device::Chip(chip) => config.explore_on(chip, progress),
        Device::OwnEcc(chip) => config.explore_on(*chip, progress),
        Device::Drive(drive) => config.explore_on(*drive, progress),
        Device::File(file) => config.explore_on(file, progress),
    }
}

/// Goes to one state and recovers from it: `--cut` and `--ending` of a replay line.
///
/// # Errors
///
/// As [`explore()`], and when the path leads nowhere.
pub fn replay(config: &CrashConfig, path: &CutPath) -> Result<CrashReport, CrashError> {
    match Device::of(config)? {
        Device::Chip(chip) => config.replay_on(chip, path),
        Device::OwnEcc(chip) => config.replay_on(*chip, path),
        Device::Drive(drive) => config.replay_on(*drive, path),
        Device::File(file) => config.replay_on(file, path),
    }
}

/// Fuzz entry: an image of a tiny chip; the first byte chooses which.
///
/// # Errors
///
/// A panic or an endless loop of the engine.
pub fn fuzz_image(bytes: &[u8]) -> Result<fuzz::ImageVerdict, Violation> {
    fuzz::image::<Flagstone<RunnerRig<SimNand>>>(bytes)
}

/// Fuzz entry: configuration, operations and two power cuts.
///
/// # Errors
///
/// The violation found.
pub fn fuzz_ops(bytes: &[u8]) -> Result<(), Violation> {
    fuzz::ops::<Flagstone<RunnerRig<SimNand>>>(bytes)
}
