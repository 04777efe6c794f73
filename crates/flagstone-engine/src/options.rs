//! Options and presets: the configuration of an engine, as one plain, printable value.
//!
//! Every row of the papers' experiments is a preset. A preset is nothing but an [`Options`] value;
//! [`Options::require`] names the capability that a device lacks for it.

use std::time::Duration;

use flagstone_nand::{Nand, nearest, suggestion};
use flagstone_space::{FlagLack, append_lack, flag_lack};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::appends::{self, AppendScheme, Appends};

/// Content of a frame in memory, and so the place where committed changes wait for their page
/// write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FrameKind {
    /// Frames are clean copies of their base; changes wait as deltas, also for absent leaves.
    #[default]
    Base,
    /// Frames are images ahead of flash: changes are folded in at commit and the whole page is
    /// written when the frame leaves memory.
    Ahead,
}

/// The moment at which a leaf that no longer fits its page is split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SplitTime {
    /// When the leaf's deltas are merged, all its splits at once.
    #[default]
    Merge,
    /// As soon as an insert does not fit.
    Eager,
}

/// Whether garbage collection may ask for a newer image of a page that it moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RelocationFolding {
    /// Durable deltas are folded into leaves that are moved anyway: the merge is free.
    #[default]
    Fold,
    /// Pages move unchanged.
    Keep,
}

/// Which block garbage collection cleans next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Collection {
    /// Fewest live pages.
    #[default]
    Greedy,
    /// Highest `(1 - u) * age / 2u` (Rosenblum and Ousterhout 1992, Kawaguchi et al. 1995).
    CostBenefit,
    /// As `cost-benefit`, divided by the number of erases of the block (Chiang, Lee, Chang 1999):
    /// worn blocks wait longer.
    CostAgeTimes,
}

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

/// Which frame leaves memory next, among leaves. Inner nodes stay longer, by last use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replacement {
    /// Least recently used.
    #[default]
    Lru,
    /// Second chance: in the order of arrival, but a frame used since then goes round once more.
    Clock,
    /// Clean frames first, among the `replacement_window` of least recently used ones (Park et al.,
    /// CASES 2006).
    Cflru,
    /// As `cflru`, with a window that adapts to the cost of reads and writes in the last periods.
    CflruAdaptive,
    /// As `cflru`, and dirty frames leave by clusters of neighbours (Ou, Härder, Jin, DaMoN 2009).
    Cfdc,
    /// Base copies and changes of a leaf share one order of use. In the least recently used
    /// `replacement_window` of memory, base copies leave first; without any, changes are merged
    /// into their pages (Lazy-Split LRU). Needs [`FrameKind::Base`] and [`Budget::Shared`].
    LsLru,
}

impl Replacement {
    /// Every policy.
    pub const ALL: [Self; 6] =
        [Self::Lru, Self::Clock, Self::Cflru, Self::CflruAdaptive, Self::Cfdc, Self::LsLru];
}

/// The leaf whose deltas are merged next, when memory runs short. The deltas of a leaf are a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Victim {
    /// The biggest group in the part of the tree under a moving window: needs no state per leaf.
    #[default]
    Window,
    /// The oldest group.
    Fifo,
    /// The group whose last change is oldest.
    Lru,
    /// The biggest group of all; of equal groups the least recently changed (lazy-update B+-tree).
    Biggest,
    /// The group with the fewest page writes for each byte that it frees (lazy-update B+-tree).
    Cost,
    /// The set of groups with the fewest page writes for the memory that has to be freed, splits
    /// counted (Lazy-Split LRU: write-minimised commit).
    Cover,
}

impl Victim {
    /// Every policy.
    pub const ALL: [Self; 6] =
        [Self::Window, Self::Fifo, Self::Lru, Self::Biggest, Self::Cost, Self::Cover];
}

/// Whether groups that save a write together are committed together (lazy-update B+-tree, section
/// 4.4.2.3), under the policies that rank groups. Two groups below one inner node belong together
/// in three cases: both split or both merge their leaf; one does and the other is its neighbour; or
/// one merges its leaf and the other follows the leaf it is merged with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SuperGroup {
    /// Each group by itself.
    #[default]
    Off,
    /// The policy chooses a group and adds the groups that belong with it. A bounded number of
    /// leaves is read for this (the paper's first approach).
    Victim,
    /// The super group with the fewest page writes for each byte that it frees. The leaf of every
    /// group is read once, and each choice looks at all groups (the paper's second approach).
    All,
}

impl SuperGroup {
    /// Every way.
    pub const ALL: [Self; 3] = [Self::Off, Self::Victim, Self::All];
}

/// How the page writes of a group are counted, under [`Victim::Cover`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteCount {
    /// One page where the merged leaf fits its page, else the leaves it is split into and their
    /// parent.
    #[default]
    Exact,
    /// The paper's formula (3.11): used bytes of the leaf plus all its changes, in pages, rounded
    /// down, plus two. The formula counts deletes and replaced values as growth, and a leaf that
    /// fits as split.
    Paper,
}

/// Where deltas that leave memory meet their base.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MergeTo {
    /// On flash: the page is written at once.
    #[default]
    Flash,
    /// In the leaf's frame, as long as the merged leaf fits one page. The page is written when the
    /// frame leaves memory, with the deltas that came meanwhile (lazy-update B+-tree, section
    /// 4.4.2.2).
    Frame,
}

/// How the memory budget is divided between frames and deltas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Budget {
    /// Frames have their share, deltas the rest; deltas that the log has no room for leave their
    /// memory to frames.
    Divided,
    /// Frames begin with their share; then memory goes where it saves most, learned from the cost
    /// of misses and of merges. As `divided` where frames hold changes that flash lacks.
    #[default]
    Adaptive,
    /// Frames have all memory that deltas do not take at the moment: at least their share, except
    /// after a restart that put more deltas back.
    Shared,
}

/// Treatment of a change whose leaf is not in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AbsentLeaf {
    /// The change waits for the leaf as a delta; nothing is read.
    #[default]
    Wait,
    /// The leaf is read first, as in an engine whose changes go to frames.
    Read,
    /// The change waits where other changes already wait for the leaf; for the first change the
    /// leaf is read (Lazy-Split LRU: a leaf enters memory with its base copy).
    ReadOnce,
}

/// How a checkpoint lets the log's head advance past live deltas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compaction {
    /// Copies live deltas densely to the log's tail: no page is written for their age alone.
    #[default]
    Copy,
    /// Merges live deltas into their pages, and copies the deltas that cannot be merged at that
    /// moment (on-the-fly redo: log compaction).
    Merge,
}

/// How a transaction with many changes is committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CommitBy {
    /// The way with the fewest programs, by measured costs. Leaves that are worth a page write are
    /// written at once, all other changes are logged. Where nothing is logged and the chip carries
    /// flags, a flag commits. Many scattered changes to a table larger than the memory for changes
    /// are written as a run of sorted pages, to be merged later.
    #[default]
    Auto,
    /// The log holds every change.
    Log,
    /// Leaves are written at once wherever possible; a record commits.
    Claims,
    /// As `claims`; a flag commits where nothing has to be logged. For chips that carry flags.
    Flags,
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

/// Options of an engine: sizes in bytes, shares of the memory budget between 0 and 1.
///
/// Later versions add fields. Begin with a preset and change single fields: all others keep their
/// defaults.
///
/// ```
/// # use flagstone_engine as flagstone;
/// use flagstone::Options;
///
/// let options = Options { memory: 4 << 20, parts: 2, ..Options::default() };
/// assert_eq!(options, Options { parts: 2, ..Options::default().with_memory(4 << 20) });
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Name of the preset that these options started from. Default: `flagstone`.
    pub preset: String,
    /// Memory budget for bases and deltas together, in bytes. Default: 16 MiB; at least 24 logical
    /// pages. The mapping comes on top.
    pub memory: usize,
    /// Share of the budget for page frames under [`FrameKind::Base`], above 0 and at most 1; deltas
    /// get the rest. Under [`FrameKind::Ahead`] deltas get the share and frames the rest. Under
    /// [`Budget::Adaptive`] the share at the beginning. Default: 0.15.
    pub frame_share: f64,
    /// Share of the budget that uncommitted changes may take before transactions spill, above 0 and
    /// at most 1. Bounded by half the memory for deltas, and never less than a page. Default: 0.25.
    pub uncommitted_share: f64,
    /// Content of frames. Default: `base`.
    pub frames: FrameKind,
    /// Policy for the next leaf to merge. Default: `window`.
    pub victim: Victim,
    /// How the page writes of a merge are estimated. Default: `exact`.
    pub count_writes: WriteCount,
    /// Changes that may wait for one leaf before they are merged, all splits of the leaf at once:
    /// in pages, 1 to 1000, or 0 for as many as memory holds. Default: 0.
    pub unit_pages: f64,
    /// Share of the memory for deltas that one batch of merges frees when this memory is full, 0 to
    /// 0.5; 0 merges one leaf at a time, as soon as there is no room. Default: 0.125, the share
    /// that Lazy-Split LRU frees at a time.
    pub merge_batch: f64,
    /// Which groups of deltas are merged together. Default: `off`.
    pub super_group: SuperGroup,
    /// Where deltas meet their base. Default: `flash`.
    pub merge_to: MergeTo,
    /// Policy for the next frame to leave memory. Default: `lru`.
    pub replacement: Replacement,
    /// Least recently used share of the frames, or of the memory of frames and changes, in which
    /// clean frames leave first: 0 to 1. Default: 0.5.
    pub replacement_window: f64,
    /// How the budget is divided between frames and deltas. Default: `adaptive`.
    pub budget: Budget,
    /// Whether a change reads a leaf that is not in memory. Default: `wait`.
    pub absent: AbsentLeaf,
    /// When leaves are split. Default: `merge`.
    pub split: SplitTime,
    /// Whether garbage collection merges deltas into the leaves that it moves. Default: `fold`.
    pub relocation: RelocationFolding,
    /// Victim policy of garbage collection. Default: `greedy`.
    pub collection: Collection,
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
    /// How checkpoints treat live deltas. Default: `copy`.
    pub compaction: Compaction,
    /// Commits after which a checkpoint begins. Default: 0, which leaves it to the log's fill
    /// alone.
    pub checkpoint_commits: u64,
    /// How transactions with many changes are committed. Default: `auto`.
    pub commit: CommitBy,
    /// Whether small changes are appended to their page, where an append costs less than a page:
    /// `auto` (default), or `0x0` for never.
    pub append_scheme: Appends,
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
            frame_share: 0.15,
            uncommitted_share: 0.25,
            frames: FrameKind::Base,
            victim: Victim::Window,
            count_writes: WriteCount::Exact,
            unit_pages: 0.0,
            merge_batch: 0.125,
            super_group: SuperGroup::Off,
            merge_to: MergeTo::Flash,
            replacement: Replacement::Lru,
            replacement_window: 0.5,
            budget: Budget::Adaptive,
            absent: AbsentLeaf::Wait,
            split: SplitTime::Merge,
            relocation: RelocationFolding::Fold,
            collection: Collection::Greedy,
            wear_levelling: WearLevelling::Static,
            parts: 1,
            log_pages: 0,
            discard: false,
            compaction: Compaction::Copy,
            checkpoint_commits: 0,
            commit: CommitBy::Auto,
            append_scheme: Appends::auto(),
            durability: Durability::Immediate,
            lock_timeout: LOCK_TIMEOUT,
            file_lock: FileLock::Required,
            group_delay: Duration::from_millis(5),
            group_fill: 0.75,
            verify_on_open: VerifyOnOpen::Off,
            seed: None,
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
    Preset {
        name: "otf-immediate",
        summary: "on-the-fly redo: dirty pages leave memory unwritten, checkpoints compact the log",
        make: otf_immediate,
    },
    Preset {
        name: "otf-group",
        summary: "on-the-fly redo with group commit: flushes wait for company",
        make: otf_group,
    },
    Preset {
        name: "lazy-biggest",
        summary: "lazy-update B+-tree: half the memory holds changes, the biggest group leaves first",
        make: lazy_biggest,
    },
    Preset {
        name: "lazy-cost",
        summary: "as lazy-biggest: the cheapest group leaves first, with those that belong with it",
        make: lazy_cost,
    },
    Preset {
        name: "ls-lru",
        summary: "lazy-split LRU: base copies leave before changes, which leave for fewest page writes",
        make: ls_lru,
    },
];

fn claims() -> Options {
    let preset = String::from("flagstone-claims");
    Options { preset, commit: CommitBy::Claims, ..Options::default() }
}

fn flags() -> Options {
    let preset = String::from("flagstone-flags");
    Options { preset, commit: CommitBy::Flags, ..Options::default() }
}

fn traditional() -> Options {
    Options {
        preset: String::from("traditional"),
        append_scheme: Appends::default(),
        frames: FrameKind::Ahead,
        budget: Budget::Divided,
        merge_batch: 0.0,
        split: SplitTime::Eager,
        relocation: RelocationFolding::Keep,
        commit: CommitBy::Log,
        ..Options::default()
    }
}

/// Commits between the checkpoints of the on-the-fly redo presets.
const OTF_CHECKPOINT_COMMITS: u64 = 5_000;

/// On-the-fly redo as in its paper: changes go to pages in memory, so pages are read before they
/// are changed; redo records and frames share one budget; checkpoints merge the deltas that are
/// due; relocation moves pages unchanged.
fn otf_immediate() -> Options {
    Options {
        preset: String::from("otf-immediate"),
        append_scheme: Appends::default(),
        frame_share: 0.5,
        budget: Budget::Shared,
        merge_batch: 0.0,
        absent: AbsentLeaf::Read,
        relocation: RelocationFolding::Keep,
        compaction: Compaction::Merge,
        checkpoint_commits: OTF_CHECKPOINT_COMMITS,
        commit: CommitBy::Log,
        ..Options::default()
    }
}

fn otf_group() -> Options {
    Options { preset: String::from("otf-group"), durability: Durability::Group, ..otf_immediate() }
}

/// The lazy-update B+-tree with the defaults of its paper (table 2): half of the memory is its pool.
fn lazy_biggest() -> Options {
    Options {
        preset: String::from("lazy-biggest"),
        append_scheme: Appends::default(),
        frame_share: 0.5,
        budget: Budget::Divided,
        merge_batch: 0.0,
        victim: Victim::Biggest,
        merge_to: MergeTo::Frame,
        relocation: RelocationFolding::Keep,
        commit: CommitBy::Log,
        ..Options::default()
    }
}

fn lazy_cost() -> Options {
    Options {
        preset: String::from("lazy-cost"),
        victim: Victim::Cost,
        super_group: SuperGroup::Victim,
        ..lazy_biggest()
    }
}

/// Lazy-Split LRU with the values of its paper: half of the memory is cold (section 4.1), the
/// changes of a leaf may grow to three times the leaf's size (section 3.2.2), a leaf in memory
/// begins with its base.
fn ls_lru() -> Options {
    Options {
        preset: String::from("ls-lru"),
        append_scheme: Appends::default(),
        frame_share: 0.05,
        victim: Victim::Cover,
        unit_pages: 3.0,
        merge_batch: 0.0,
        replacement: Replacement::LsLru,
        replacement_window: 0.5,
        budget: Budget::Shared,
        absent: AbsentLeaf::ReadOnce,
        relocation: RelocationFolding::Keep,
        commit: CommitBy::Log,
        ..Options::default()
    }
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

    /// Most bytes of memory that changes may take.
    pub(crate) fn changes_max(&self) -> usize {
        match self.budget {
            Budget::Divided => (self.memory as f64 * (1.0 - self.frame_share)) as usize,
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

    /// The same options with another victim policy of garbage collection.
    #[must_use]
    pub fn with_collection(mut self, collection: Collection) -> Self {
        self.collection = collection;
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
        let share = |value: f64| (0.0..=1.0).contains(&value);
        let refuse =
            |option, value: String, must| Err(OptionsError::OutOfRange { option, value, must });
        if !(1..=8).contains(&self.parts) {
            return refuse("parts", self.parts.to_string(), "between 1 and 8");
        }
        if page_size > crate::node::PAGE_SIZE_MAX {
            let must = "so few that a logical page has at most 32 KiB";
            return refuse("parts", self.parts.to_string(), must);
        }
        if !share(self.frame_share) || self.frame_share == 0.0 {
            return refuse("frame_share", self.frame_share.to_string(), "above 0 and at most 1");
        }
        if !share(self.uncommitted_share) || self.uncommitted_share == 0.0 {
            let value = self.uncommitted_share.to_string();
            return refuse("uncommitted_share", value, "above 0 and at most 1");
        }
        if !share(self.replacement_window) {
            let value = self.replacement_window.to_string();
            return refuse("replacement_window", value, "between 0 and 1");
        }
        if !(self.unit_pages == 0.0 || (1.0..=UNIT_PAGES_MAX).contains(&self.unit_pages)) {
            let must = "0, or between 1 and 1000";
            return refuse("unit_pages", self.unit_pages.to_string(), must);
        }
        if !(0.0..=0.5).contains(&self.merge_batch) {
            return refuse("merge_batch", self.merge_batch.to_string(), "between 0 and 0.5");
        }
        if self.victim == Victim::Cover && self.super_group != SuperGroup::Off {
            let value = if self.super_group == SuperGroup::All { "all" } else { "victim" };
            return refuse("super_group", value.to_owned(), "off where victim is cover");
        }
        if self.replacement == Replacement::LsLru && self.frames != FrameKind::Base {
            return refuse("frames", "ahead".to_owned(), "base where replacement is ls-lru");
        }
        if self.replacement == Replacement::LsLru && self.budget != Budget::Shared {
            let value = if self.budget == Budget::Divided { "divided" } else { "adaptive" };
            return refuse("budget", value.to_owned(), "shared where replacement is ls-lru");
        }
        if self.replacement == Replacement::LsLru && self.merge_to != MergeTo::Flash {
            return refuse("merge_to", "frame".to_owned(), "flash where replacement is ls-lru");
        }
        if !share(self.group_fill) {
            return refuse("group_fill", self.group_fill.to_string(), "between 0 and 1");
        }
        if self.group_delay > GROUP_DELAY_MAX {
            let must = "a minute at most";
            return refuse("group_delay", format!("{:?}", self.group_delay), must);
        }
        if self.commit == CommitBy::Flags
            && let Some(lack) = flag_lack(&device.geometry(), &device.capabilities())
        {
            let preset = self.preset.clone();
            let capability = capability_of(lack);
            return Err(OptionsError::Capability {
                preset,
                capability,
                instead: "flagstone-claims",
            });
        }
        self.require_slots(device, self.append_scheme.records_min())?;
        let size_min = MEMORY_PAGES_MIN * page_size;
        if self.memory < size_min {
            return Err(OptionsError::TooLittleMemory { size: self.memory, size_min });
        }
        Ok(())
    }
}

impl Options {
    /// Checks that `device` carries the appends that these options ask for, including the appends
    /// that `auto` makes only where a device carries them.
    ///
    /// # Errors
    ///
    /// `Capability`.
    pub fn require_appends(&self, device: &impl Nand) -> Result<(), OptionsError> {
        self.require_slots(device, self.append_scheme.records_max())
    }

    fn require_slots(&self, device: &impl Nand, slots: u8) -> Result<(), OptionsError> {
        match append_lack(&device.geometry(), &device.capabilities(), slots) {
            Some(lack) if slots > 0 => Err(OptionsError::Capability {
                preset: self.preset.clone(),
                capability: appends::capability_of(lack),
                instead: if self.preset.starts_with("ipa") { "ipa-0x0" } else { "flagstone" },
            }),
            _ => Ok(()),
        }
    }

    /// Checks that the scheme is `auto` or `0x0` for all tables: other forms belong to the lab's
    /// classic engine.
    pub(crate) fn require_own_appends(&self) -> Result<(), OptionsError> {
        let Appends { scheme, tables } = &self.append_scheme;
        if matches!(scheme, AppendScheme::None | AppendScheme::Auto) && tables.is_empty() {
            return Ok(());
        }
        let (option, value) = ("append_scheme", self.append_scheme.to_string());
        let must = "auto or 0x0 with this preset; others are for those called ipa-…";
        Err(OptionsError::OutOfRange { option, value, must })
    }
}

/// Largest limit of the changes that wait for one leaf, in pages.
const UNIT_PAGES_MAX: f64 = 1000.0;

/// The capability that a device lacks for commits by flag.
fn capability_of(lack: FlagLack) -> &'static str {
    match lack {
        FlagLack::Cells => "cells of one bit each, programmed page by page, for commit flags",
        FlagLack::PartialPrograms => "a second program of the spare area (NOP) for commit flags",
        FlagLack::ReprogramOrder => "later programs in any order for commit flags",
        FlagLack::IsolatedCuts => "partial programs whose cut harms nothing else for commit flags",
        FlagLack::RawSpare => "38 spare bytes outside the ECC for commit flags",
    }
}

/// Logical pages that the smallest memory budget holds: a root-to-leaf path for a merge with its
/// siblings, and as much again for the deltas and readers beside it (rule D7).
const MEMORY_PAGES_MIN: usize = 24;
