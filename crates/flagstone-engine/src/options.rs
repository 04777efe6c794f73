//! Options and presets: what an engine is told to do, as one plain, printable value.
//!
//! Every row of the papers' experiments is a preset. A preset is nothing but an [`Options`] value;
//! [`Options::require`] names the capability that a device lacks for it.

use std::time::Duration;

use flagstone_nand::{Nand, nearest, suggestion};
use flagstone_space::{FlagLack, append_lack, flag_lack};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::appends::{self, AppendScheme, Appends};

/// What a frame in memory holds, and so where committed changes wait for their page write.
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

/// When a leaf that no longer fits its page is split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SplitTime {
    /// When its deltas are merged, all splits of the leaf at once.
    #[default]
    Merge,
    /// As soon as an insert does not fit.
    Eager,
}

/// When garbage collection may ask for a newer image of a page that it moves.
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
    /// The same divided by the erases that the block has seen (Chiang, Lee, Chang 1999): worn blocks
    /// wait longer.
    CostAgeTimes,
}

/// How blocks are kept from wearing out before others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WearLevelling {
    /// What will be rewritten soon takes the least worn of the free blocks, what stays a worn one.
    Dynamic,
    /// Blocks that rest are emptied as well, for at most one page in 64.
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
    /// Second chance: in the order of arrival, but what was used since then goes round once more.
    Clock,
    /// The clean ones of the `replacement_window` of least recently used frames first (Park et al.,
    /// CASES 2006).
    Cflru,
    /// As `cflru`, with a window that follows what reads and writes of the last periods cost.
    CflruAdaptive,
    /// As `cflru`, and dirty ones by clusters of neighbours (Ou, Härder, Jin, DaMoN 2009).
    Cfdc,
    /// Base copies and changes of a leaf in one order of use: of the `replacement_window` of memory,
    /// least recently used, base copies leave first; when there are none, changes meet their pages
    /// (Lazy-Split LRU). Wants [`FrameKind::Base`] and [`Budget::Shared`].
    LsLru,
}

impl Replacement {
    /// Every policy.
    pub const ALL: [Self; 6] =
        [Self::Lru, Self::Clock, Self::Cflru, Self::CflruAdaptive, Self::Cfdc, Self::LsLru];
}

/// Which leaf's deltas meet their page next, when memory runs short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Victim {
    /// The biggest group of the part of the tree that a moving hand looks at: no state a leaf.
    #[default]
    Window,
    /// The group that was begun first.
    Fifo,
    /// The group that a change came to least recently.
    Lru,
    /// The biggest group of all; of equal ones the least recently hit (lazy-update B+-tree).
    Biggest,
    /// The group that writes least pages for each byte that it frees (lazy-update B+-tree).
    Cost,
    /// The set of groups that writes fewest pages for the memory that has to be freed, splits counted
    /// (Lazy-Split LRU: write-minimised commit).
    Cover,
}

impl Victim {
    /// Every policy.
    pub const ALL: [Self; 6] =
        [Self::Window, Self::Fifo, Self::Lru, Self::Biggest, Self::Cost, Self::Cover];
}

/// Whether groups that save a write together are committed together (lazy-update B+-tree, section
/// 4.4.2.3), under the policies that rank groups. Two groups below one inner node belong together when
/// both split or merge their leaf, when one does and the other is next to it, or when one merges its
/// leaf and the other comes after the one it is merged with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SuperGroup {
    /// Each group by itself.
    #[default]
    Off,
    /// The policy chooses a group, which takes along those that belong with it: a bounded number of
    /// leaves is read for it (the paper's first approach).
    Victim,
    /// The super group that writes least pages for each byte that it frees. Every group's leaf is read
    /// once, and each choice looks at all groups (the paper's second approach).
    All,
}

impl SuperGroup {
    /// Every way.
    pub const ALL: [Self; 3] = [Self::Off, Self::Victim, Self::All];
}

/// How the pages are counted that a group would write, under [`Victim::Cover`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteCount {
    /// One where the merged leaf fits its page, else the leaves that it becomes and their parent.
    #[default]
    Exact,
    /// The formula of the paper (3.11): what the leaf uses and all its changes as pages, rounded down,
    /// and two. It counts deletes and replaced values as growth, and a leaf that fits as split.
    Paper,
}

/// Where deltas that leave memory meet their page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MergeTo {
    /// On flash: the page is written at once.
    #[default]
    Flash,
    /// In the leaf's frame, where it stays one page; that is written when it leaves memory, together
    /// with the deltas that came for it meanwhile (lazy-update B+-tree, section 4.4.2.2).
    Frame,
}

/// How the memory budget is divided between frames and deltas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Budget {
    /// Frames have their share, deltas the rest; what the log is too short for goes to frames.
    Divided,
    /// Frames begin with their share; then memory goes where it saves most, as learned from what the
    /// run pays for misses and for merges. As `divided` where frames hold what flash lacks.
    #[default]
    Adaptive,
    /// Frames have whatever deltas do not take at the moment: their share at least, but after a
    /// restart that put more back.
    Shared,
}

/// What becomes of a change whose leaf is not in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AbsentLeaf {
    /// It waits for the leaf as a delta; nothing is read.
    #[default]
    Wait,
    /// The leaf is read first, as in an engine whose changes go to frames.
    Read,
    /// It waits where others wait for the leaf already; for the first one the leaf is read (Lazy-Split
    /// LRU: what memory holds of a leaf begins with its base copy).
    ReadOnce,
}

/// How a checkpoint lets the log's head advance past live deltas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compaction {
    /// It copies them densely to the log's tail: no page is written for their age alone.
    #[default]
    Copy,
    /// It merges them into their pages, and copies what cannot be merged at that moment
    /// (on-the-fly redo: log compaction).
    Merge,
}

/// What commits a transaction that changes much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CommitBy {
    /// Whatever costs fewer programs, as measured: leaves that are worth their page are written at
    /// once, the rest is logged. Where nothing is logged and the chip carries flags, a flag commits. Many changes all
    /// over a table larger than the memory for changes are written as sorted pages instead, which wait for others.
    #[default]
    Auto,
    /// The log holds every change.
    Log,
    /// Leaves are written at once wherever they can be; a record commits.
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
    /// When the commit is durable; the flush waits for company, up to the options' delay limit.
    Group,
    /// At once; the commit becomes durable with a later flush, in order: that of a later commit that changed something, or
    /// of `Database::flush`. Where the device fails before, it is gone.
    Deferred,
}

/// What is looked at before a database that was opened is handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerifyOnOpen {
    /// What restart needs: the mapping and the log's tail.
    #[default]
    Off,
    /// Every node, large value and row, as `Database::check` does; a fault refuses the
    /// database. Costs a read of each page in use.
    Check,
}

/// Whether the file of a database has to be locked: the lock keeps every second user out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileLock {
    /// Where the file system locks none, as some across a network and in user space, the database is not opened.
    #[default]
    Required,
    /// There it is opened without a lock: whoever says so sees to it that nobody else has it open. Two who write
    /// destroy it.
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
/// Later versions add fields. Begin with a preset and change what should differ: what is not named keeps
/// its default.
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
    /// Name of the preset these options started from.
    pub preset: String,
    /// Memory budget for bases and deltas together. The mapping comes on top.
    pub memory: usize,
    /// Share of the budget for page frames under [`FrameKind::Base`]; deltas get the rest. Under
    /// [`Budget::Adaptive`] the share at the beginning.
    pub frame_share: f64,
    /// Share of the budget that uncommitted changes may take before transactions spill; a page in any case.
    pub uncommitted_share: f64,
    /// What frames hold.
    pub frames: FrameKind,
    /// Which leaf's deltas are merged next.
    pub victim: Victim,
    /// How the pages that a merge writes are counted beforehand.
    pub count_writes: WriteCount,
    /// Pages' worth of changes that may wait for one leaf before they meet it, all its splits at once;
    /// 0: as many as memory holds.
    pub unit_pages: f64,
    /// Share of the memory for deltas that a batch of merges frees once it is full; 0 merges one leaf at
    /// a time, as soon as there is no room. The default is the share that Lazy-Split LRU frees at a time.
    pub merge_batch: f64,
    /// Which of them are merged together.
    pub super_group: SuperGroup,
    /// Where they meet their page.
    pub merge_to: MergeTo,
    /// Which frame leaves memory next.
    pub replacement: Replacement,
    /// Share of the frames, or of the memory of frames and changes, least recently used, among which
    /// clean ones leave first.
    pub replacement_window: f64,
    /// How the budget is divided.
    pub budget: Budget,
    /// Whether a change of a leaf that is not in memory reads it.
    pub absent: AbsentLeaf,
    /// When leaves are split.
    pub split: SplitTime,
    /// Whether relocation merges.
    pub relocation: RelocationFolding,
    /// Victim policy of garbage collection.
    pub collection: Collection,
    /// Wear levelling on chips; files and drives have their own.
    pub wear_levelling: WearLevelling,
    /// Physical pages of a logical page.
    pub parts: u32,
    /// Physical pages that the log may occupy; 0 derives it from the memory budget. Raised to the
    /// smallest log that works on the device.
    pub log_pages: u32,
    /// Whether segments of a file or block device that hold nothing are given back to the host: as holes of a
    /// file, by zeroing that deallocates on a block device (SSD and eMMC; most SD cards know none). What was
    /// given back is asked for again before it is written. Where the file system filled up meanwhile, the session
    /// writes no more, and the database opens to be read alone until there is room. Never on NAND.
    pub discard: bool,
    /// How checkpoints treat live deltas.
    pub compaction: Compaction,
    /// Commits after which a checkpoint begins; 0 leaves it to the log's fill alone.
    pub checkpoint_commits: u64,
    /// What commits transactions that change much.
    pub commit: CommitBy,
    /// Whether small changes are appended to the page that they belong to, where that costs less than a page: `auto`,
    /// or not: `0x0`.
    pub append_scheme: Appends,
    /// Default durability of a commit.
    pub durability: Durability,
    /// Longest time a group commit waits for company, a minute at most.
    pub group_delay: Duration,
    /// Share of a log page that, once gathered, ends the wait of a group commit.
    pub group_fill: f64,
    /// Longest time a transaction waits for one lock, before it is aborted with
    /// [`crate::EngineError::LockTimeout`]; zero: until it has the lock. Ten seconds unless it is said: whoever holds
    /// the lock as long may be the thread that waits. Deadlocks are ended at once in any case.
    pub lock_timeout: Duration,
    /// Whether the file of the database has to be locked.
    pub file_lock: FileLock,
    /// What is verified when the database is opened.
    pub verify_on_open: VerifyOnOpen,
    /// Seed of the identity of a new database; none: the randomness of the system. Equal seeds and equal work make equal
    /// devices. Databases of one seed take each other's tables for their own.
    pub seed: Option<u64>,
}

/// Longest wait for a lock unless it is said: far more than a transaction takes, and less than a person's patience.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest wait for company: a lone commit waits as long.
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

/// Why a preset or an option is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// No preset has that name.
    #[error("there is no preset `{name}`{}", suggestion(*nearest))]
    UnknownPreset {
        /// Name asked for.
        name: String,
        /// Name that was probably meant.
        nearest: Option<&'static str>,
    },
    /// The memory does not hold what one operation needs at a time: 24 logical pages.
    #[error("option `memory` is {size} bytes, but must be at least {size_min}")]
    TooLittleMemory {
        /// Bytes given.
        size: usize,
        /// Bytes needed on this device.
        size_min: usize,
    },
    /// The value lies outside what the engine can work with.
    #[error("option `{option}` is {value}, but must be {must}")]
    OutOfRange {
        /// Option concerned.
        option: &'static str,
        /// Value given.
        value: String,
        /// What it must be.
        must: &'static str,
    },
    /// The device has too few blocks that work for log, reserves and data.
    #[error(
        "{blocks} good blocks are too few for these options: at least {needed} are needed, \
         {size} bytes"
    )]
    TooFewBlocks {
        /// Blocks that are not bad.
        blocks: u32,
        /// Blocks that must not be bad.
        needed: u32,
        /// Bytes of data areas that these have.
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

/// A preset: its name, what it is for, and its options.
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

/// On-the-fly redo as its paper has it: changes go to pages in memory, so these are read first; redo
/// records and frames share one budget; checkpoints write what is due; relocation knows nothing.
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

/// Lazy-Split LRU with what its paper names: half of the memory is cold (section 4.1), the changes of
/// a leaf may grow to three times its size (section 3.2.2), a leaf in memory begins with its base.
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
    /// `UnknownPreset`, with the name that was probably meant.
    pub fn preset(name: &str) -> Result<Self, OptionsError> {
        let found = PRESETS.iter().find(|preset| preset.name == name);
        found.map(|preset| (preset.make)()).ok_or_else(|| OptionsError::UnknownPreset {
            name: name.to_owned(),
            nearest: nearest(name, PRESETS.iter().map(|preset| preset.name)),
        })
    }

    /// The same options with another memory budget.
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

    /// The same options with another verification when the database is opened.
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

    /// The same options with the room of what holds nothing given back to the host, or not.
    #[must_use]
    pub fn with_discard(mut self, discard: bool) -> Self {
        self.discard = discard;
        self
    }

    /// The same options with a longest time to wait for a lock; zero waits until it is granted.
    #[must_use]
    pub fn with_lock_timeout(mut self, limit: Duration) -> Self {
        self.lock_timeout = limit;
        self
    }

    /// The same options on a file system that may lock no files: see [`FileLock`].
    #[must_use]
    pub fn with_file_lock(mut self, lock: FileLock) -> Self {
        self.file_lock = lock;
        self
    }

    /// The same options with group commit: a flush waits for company for `delay` at most, a minute or less, and no
    /// longer once the share `fill` of a log page has gathered.
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

    /// The same options with logical pages of `parts` physical ones.
    #[must_use]
    pub fn with_parts(mut self, parts: u32) -> Self {
        self.parts = parts;
        self
    }

    /// Bytes of memory that changes may come to take.
    pub(crate) fn changes_max(&self) -> usize {
        match self.budget {
            Budget::Divided => (self.memory as f64 * (1.0 - self.frame_share)) as usize,
            Budget::Adaptive | Budget::Shared => self.memory,
        }
    }

    /// The same options with a log of at most so many physical pages; 0 derives it from the memory.
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

    /// The same options with a checkpoint after so many commits; 0 leaves it to the log's fill.
    #[must_use]
    pub fn with_checkpoint_commits(mut self, commits: u64) -> Self {
        self.checkpoint_commits = commits;
        self
    }

    /// Checks the values, and that `device` can carry the preset.
    ///
    /// # Errors
    ///
    /// `OutOfRange` or `Capability`.
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
    /// Checks that `device` carries the appends that these options ask for, those included that are made
    /// only where a device carries them.
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

    /// Checks that leaves append or do not: how many, in which form and of which tables is for the lab's classic engine.
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

/// What a commit by flag needs of a device.
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
