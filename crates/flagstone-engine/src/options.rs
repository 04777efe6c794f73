//! Options and presets: the configuration of an engine, as one plain, printable value.
//!
//! Owns the choices that a user can make. A preset is nothing but an [`Options`] value, with the
//! [`Techniques`] that go with its name; [`Options::require`] names the capability that a device
//! lacks for it.

use std::time::Duration;

use flagstone_nand::{Nand, nearest, suggestion};
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use techniques::{
    AbsentLeaf, Budget, Collection, CommitBy, Compaction, FrameKind, MergeTo, RelocationFolding,
    Techniques,
};

mod techniques;

/// How wear is spread over the blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WearLevelling {
    /// Data that will soon be rewritten takes the least worn free block, lasting data a worn one.
    Dynamic,
    /// As `dynamic`; blocks with lasting data are also emptied, for at most one page in 64.
    #[default]
    Static,
}

/// When a commit call returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// When the commit is durable; the log is flushed as soon as the device is free.
    #[default]
    Immediate,
    /// When the commit is durable; the flush waits for company, up to [`Options::group_delay`].
    Group,
    /// At once. The commit becomes durable, in order, with the next flush: that of a later commit
    /// with changes, or that of `Database::flush`. If the device fails before, the commit is lost.
    Deferred,
}

/// Extent of the check when a database is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerifyOnOpen {
    /// The data that restart needs: the mapping and the log's tail.
    #[default]
    Off,
    /// Every node, large value and row, as `Database::check` does; a fault refuses the database.
    /// Costs one read of each page in use.
    Check,
}

/// Whether a database is opened without a lock on its file. The lock keeps a second user out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileLock {
    /// On a file system without file locks, such as some network and user-space ones, opening
    /// fails.
    #[default]
    Required,
    /// On such a file system the database is opened without a lock. The program itself must make
    /// sure that it is the only user: two writers destroy the database.
    WherePossible,
}

impl From<FileLock> for flagstone_nand::FileLock {
    fn from(lock: FileLock) -> Self {
        match lock {
            FileLock::Required => Self::Required,
            FileLock::WherePossible => Self::WherePossible,
        }
    }
}

/// Options of an engine: sizes in bytes.
///
/// Later versions add fields. Begin with the default or a preset, and change single options: all
/// others stay as they are.
///
/// ```
/// # use flagstone_engine as flagstone;
/// use flagstone::Options;
///
/// let options = Options::default().with_memory(4 << 20).with_parts(2);
/// assert_eq!((options.memory, options.parts), (4 << 20, 2));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Options {
    /// Name of the preset that these options started from. Default: `flagstone`.
    pub preset: String,
    /// Memory budget for bases and deltas together, in bytes. Default: 16 MiB; at least 24 logical
    /// pages. The mapping comes on top.
    pub memory: usize,
    /// Wear levelling on chips; files and drives level their own wear. Default: `static`.
    pub wear_levelling: WearLevelling,
    /// Physical pages of a logical page, 1 to 8; a logical page has at most 32 KiB. Default: 1.
    pub parts: u32,
    /// Physical pages that the log may occupy. Default: 0, which derives the number from the memory
    /// budget. Raised to the smallest log that works on the device.
    pub log_pages: u32,
    /// Whether empty segments of a file or block device are given back to the host. Default: no. In
    /// a file they become holes; a block device (SSD and eMMC; most SD cards cannot) deallocates
    /// them by zeroing. Space given back is requested again before it is written. If the file
    /// system has filled up meanwhile, the session writes no more, and the database opens for
    /// reading only until there is room. Never on NAND.
    pub discard: bool,
    /// Commits after which a checkpoint begins. Default: 0, which leaves it to the log's fill
    /// alone.
    pub checkpoint_commits: u64,
    /// Default durability of a commit. Default: `immediate`.
    pub durability: Durability,
    /// Longest time that a group commit waits for company, at most a minute. Default: 5 ms.
    pub group_delay: Duration,
    /// Share of a log page, 0 to 1, at which a group commit stops waiting. Default: 0.75.
    pub group_fill: f64,
    /// Longest time that a transaction waits for one lock before it is aborted with
    /// [`crate::EngineError::LockTimeout`]; zero: no limit. Default: 10 seconds, since the holder
    /// of the lock may be the very thread that waits. Deadlocks are ended at once in any case.
    pub lock_timeout: Duration,
    /// Whether a lock on the file of the database is required. Default: `required`.
    pub file_lock: FileLock,
    /// Extent of the check when the database is opened. Default: `off`.
    pub verify_on_open: VerifyOnOpen,
    /// Seed of the identity of a new database. Default: none, which draws from the system's
    /// randomness. Equal seeds and equal work make equal devices. Databases with one seed accept
    /// each other's tables as their own.
    pub seed: Option<u64>,
    #[serde(skip)]
    pub(crate) techniques: Techniques,
}

/// Default limit of a wait for a lock: far more than a transaction takes, and less than a person's
/// patience.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Upper limit of [`Options::group_delay`]: a lone commit waits for the whole delay.
const GROUP_DELAY_MAX: Duration = Duration::from_secs(60);

impl Default for Options {
    fn default() -> Self {
        Self {
            preset: String::from("flagstone"),
            memory: 16 << 20,
            wear_levelling: WearLevelling::Static,
            parts: 1,
            log_pages: 0,
            discard: false,
            checkpoint_commits: 0,
            durability: Durability::Immediate,
            group_delay: Duration::from_millis(5),
            group_fill: 0.75,
            lock_timeout: LOCK_TIMEOUT,
            file_lock: FileLock::Required,
            verify_on_open: VerifyOnOpen::Off,
            seed: None,
            techniques: Techniques::default(),
        }
    }
}

/// Reason for which a preset or an option is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// No preset has this name.
    #[error("there is no preset `{name}`{}", suggestion(*nearest))]
    UnknownPreset {
        /// Name asked for.
        name: String,
        /// Closest name of a preset, where one is near.
        nearest: Option<&'static str>,
    },
    /// The memory is too small for one operation, which needs 24 logical pages.
    #[error("option `memory` is {size} bytes, but must be at least {size_min}")]
    TooLittleMemory {
        /// Bytes given.
        size: usize,
        /// Bytes needed on this device.
        size_min: usize,
    },
    /// The value lies outside the range that the engine supports.
    #[error("option `{option}` is {value}, but must be {must}")]
    OutOfRange {
        /// Option concerned.
        option: &'static str,
        /// Value given.
        value: String,
        /// Range allowed.
        must: &'static str,
    },
    /// The device has too few good blocks for log, reserves and data.
    #[error(
        "{blocks} good blocks are too few for these options: at least {needed} are needed, \
         {size} bytes"
    )]
    TooFewBlocks {
        /// Good blocks of the device.
        blocks: u32,
        /// Good blocks needed.
        needed: u32,
        /// Size of the blocks needed, in bytes of data.
        size: u64,
    },
    /// The device lacks a capability that the preset needs.
    #[error("preset `{preset}` needs {capability}, which this device lacks; try `{instead}`")]
    Capability {
        /// Preset asked for.
        preset: String,
        /// Capability that is missing.
        capability: &'static str,
        /// Preset that fits.
        instead: &'static str,
    },
}

/// A preset: its name, its purpose, and its options.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Name on the command line.
    pub name: &'static str,
    /// One line for people.
    pub summary: &'static str,
    make: fn() -> Options,
}

/// Every preset, the default one first.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "flagstone",
        summary: "deltas in memory, lazy merges, relocation folds, packed redo-only log (default)",
        make: Options::default,
    },
    Preset {
        name: "flagstone-claims",
        summary: "the default, but every commit writes the leaves it can; a record commits them",
        make: claims,
    },
    Preset {
        name: "flagstone-flags",
        summary: "as flagstone-claims; where nothing has to be logged a flag in the spare area commits",
        make: flags,
    },
    Preset {
        name: "traditional",
        summary: "whole pages written at eviction, LRU, no-steal, eager splits; same log",
        make: traditional,
    },
];

fn claims() -> Options {
    named("flagstone-claims").with_techniques(|techniques| techniques.commit = CommitBy::Claims)
}

fn flags() -> Options {
    named("flagstone-flags").with_techniques(|techniques| techniques.commit = CommitBy::Flags)
}

fn traditional() -> Options {
    Options { techniques: Techniques::traditional(), ..named("traditional") }
}

fn named(preset: &str) -> Options {
    Options { preset: preset.to_owned(), ..Options::default() }
}

impl Options {
    /// Options of the preset called `name`.
    ///
    /// # Errors
    ///
    /// `UnknownPreset`, with the closest name of a preset, if any.
    pub fn preset(name: &str) -> Result<Self, OptionsError> {
        let found = PRESETS.iter().find(|preset| preset.name == name);
        found.map(|preset| (preset.make)()).ok_or_else(|| OptionsError::UnknownPreset {
            name: name.to_owned(),
            nearest: nearest(name, PRESETS.iter().map(|preset| preset.name)),
        })
    }

    /// The same options with another memory budget, in bytes.
    #[must_use]
    pub fn with_memory(mut self, bytes: usize) -> Self {
        self.memory = bytes;
        self
    }

    /// The same options with another seed; see [`Options::seed`].
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The same options with another check when the database is opened.
    #[must_use]
    pub fn with_verify_on_open(mut self, verify: VerifyOnOpen) -> Self {
        self.verify_on_open = verify;
        self
    }

    /// The same options with another default durability.
    #[must_use]
    pub fn with_durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// The same options, with empty segments given back to the host or not: see
    /// [`Options::discard`].
    #[must_use]
    pub fn with_discard(mut self, discard: bool) -> Self {
        self.discard = discard;
        self
    }

    /// The same options with another limit of a wait for a lock; zero: no limit.
    #[must_use]
    pub fn with_lock_timeout(mut self, limit: Duration) -> Self {
        self.lock_timeout = limit;
        self
    }

    /// The same options with or without the need of a file lock: see [`FileLock`].
    #[must_use]
    pub fn with_file_lock(mut self, lock: FileLock) -> Self {
        self.file_lock = lock;
        self
    }

    /// The same options with group commit: a flush waits for company for at most `delay` (a minute
    /// or less), and ends its wait early once the share `fill` of a log page has gathered.
    ///
    /// ```
    /// # use flagstone_engine as flagstone;
    /// use std::time::Duration;
    /// use flagstone::{Durability, Options};
    ///
    /// let options = Options::default()
    ///     .with_memory(4 << 20)
    ///     .with_group_commit(Duration::from_millis(2), 0.5)
    ///     .with_log_pages(1_024);
    /// assert_eq!(options.durability, Durability::Group);
    /// ```
    #[must_use]
    pub fn with_group_commit(mut self, delay: Duration, fill: f64) -> Self {
        self.durability = Durability::Group;
        self.group_delay = delay;
        self.group_fill = fill;
        self
    }

    /// The same options with logical pages of `parts` physical pages.
    #[must_use]
    pub fn with_parts(mut self, parts: u32) -> Self {
        self.parts = parts;
        self
    }

    /// The same options with another way of wear levelling.
    #[must_use]
    pub fn with_wear_levelling(mut self, levelling: WearLevelling) -> Self {
        self.wear_levelling = levelling;
        self
    }

    /// The techniques of the engine, for the lab and for experiments.
    #[doc(hidden)]
    #[must_use]
    pub fn techniques(&self) -> &Techniques {
        &self.techniques
    }

    /// The same options with other techniques, for the lab and for experiments.
    #[doc(hidden)]
    #[must_use]
    pub fn with_techniques(mut self, change: impl FnOnce(&mut Techniques)) -> Self {
        change(&mut self.techniques);
        self
    }

    /// Most bytes of memory that changes may take.
    pub(crate) fn changes_max(&self) -> usize {
        let Techniques { budget, frame_share, .. } = &self.techniques;
        match budget {
            Budget::Divided => (self.memory as f64 * (1.0 - frame_share)) as usize,
            Budget::Adaptive | Budget::Shared => self.memory,
        }
    }

    /// The same options with a log of at most `log_pages` physical pages; 0 derives the number from
    /// the memory.
    #[must_use]
    pub fn with_log_pages(mut self, log_pages: u32) -> Self {
        self.log_pages = log_pages;
        self
    }

    /// The same options with a checkpoint after every `commits` commits; 0 leaves it to the log's
    /// fill.
    #[must_use]
    pub fn with_checkpoint_commits(mut self, commits: u64) -> Self {
        self.checkpoint_commits = commits;
        self
    }

    /// Checks the values, and that `device` can carry the preset.
    ///
    /// # Errors
    ///
    /// `OutOfRange`, `Capability` or `TooLittleMemory`.
    pub fn require(&self, device: &impl Nand) -> Result<(), OptionsError> {
        let page_size = device.geometry().page_size as usize * self.parts as usize;
        let refuse = OptionsError::out_of_range;
        if !(1..=8).contains(&self.parts) {
            return Err(refuse("parts", self.parts.to_string(), "between 1 and 8"));
        }
        if page_size > crate::node::PAGE_SIZE_MAX {
            let must = "so few that a logical page has at most 32 KiB";
            return Err(refuse("parts", self.parts.to_string(), must));
        }
        if !(0.0..=1.0).contains(&self.group_fill) {
            return Err(refuse("group_fill", self.group_fill.to_string(), "between 0 and 1"));
        }
        if self.group_delay > GROUP_DELAY_MAX {
            let value = format!("{:?}", self.group_delay);
            return Err(refuse("group_delay", value, "a minute at most"));
        }
        self.techniques.require(self, device)?;
        let size_min = MEMORY_PAGES_MIN * page_size;
        if self.memory < size_min {
            return Err(OptionsError::TooLittleMemory { size: self.memory, size_min });
        }
        Ok(())
    }

    /// Checks that `device` carries the appends that these options ask for, including the appends
    /// that `auto` makes only where a device carries them.
    ///
    /// # Errors
    ///
    /// `Capability`.
    #[doc(hidden)]
    pub fn require_appends(&self, device: &impl Nand) -> Result<(), OptionsError> {
        self.techniques.require_appends(&self.preset, device)
    }

    /// Checks that the scheme is `auto` or `0x0` for all tables: other forms belong to the lab's
    /// classic engine.
    pub(crate) fn require_own_appends(&self) -> Result<(), OptionsError> {
        self.techniques.require_own_appends()
    }
}

impl OptionsError {
    pub(crate) fn out_of_range(option: &'static str, value: String, must: &'static str) -> Self {
        Self::OutOfRange { option, value, must }
    }
}

/// Checks a share of the memory that must not be nothing.
fn share_of(option: &'static str, value: f64) -> Result<(), OptionsError> {
    match value > 0.0 && value <= 1.0 {
        true => Ok(()),
        false => {
            Err(OptionsError::out_of_range(option, value.to_string(), "above 0 and at most 1"))
        }
    }
}

/// Logical pages that the smallest memory budget holds: a root-to-leaf path for a merge with its
/// siblings, and as much again for the deltas and readers beside it (rule D7).
const MEMORY_PAGES_MIN: usize = 24;
