//! The engine: all state above the space floor, as one value that never does I/O.
//!
//! Owns the trees with their deltas, the frames, transactions, locks, the log's volatile tail and the
//! plans of background work. Never reads or programs a page, never waits, never looks at a clock: an
//! operation completes, or returns a [`Stop`] that names the missing condition, and is called again
//! once [`crate::Runtime`] or the lab's event loop has seen to that condition. That is why threads and
//! the lab's virtual clients run the very same code, and why no latch is ever held across I/O.
//!
//! Invariants:
//! - **E1** A delta in a tree is committed; uncommitted changes live in their transaction only, so
//!   an abort forgets them and does nothing else.
//! - **E2** A logical page is its base with the deltas above the base's LSN applied in LSN order.
//!   Deltas at or below that LSN are dropped when they meet the base (rule D2).
//! - **E3** A page image handed out for programming derives from durable commits only (rule D1).
//! - **E4** Between the moment a job takes a page and the moment the page is installed, the page is
//!   busy: no other job prepares an image of it.
//! - **E5** A poisoned engine appends nothing to the log and hands out no job (rule D8).

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use flagstone_space::{AppendRoom, GroupId, GroupSpan, LogicalPage, Lsn, PageInfo, PinId};
use hashbrown::{HashMap, HashSet};

use crate::bugs::{Bugs, SeededBug};
use crate::delta::{DeltaSize, DroppedRefs};
use crate::error::EngineError;
use crate::lock::{LockTable, Xid};
use crate::log::{ChainPoint, Flush, LogGeometry, LogWriter};
use crate::node;
use crate::options::{Budget, FrameKind, MergeTo, Options};
use crate::policy::{PolicySizes, VictimPolicy};

mod access;
mod admission;
mod append;
mod catalog;
mod checkpoint;
mod claim;
mod commit_costs;
mod descent;
mod dropped;
mod journal;
mod memory_tuner;
mod merge;
mod obstacles;
mod owner;
mod pool;
mod reads;
mod relocation_merge;
mod restart;
mod run_commit;
mod scan;
mod shared_read;
mod snapshot;
mod spans;
mod spill;
mod stats;
mod structure;
mod transaction;
mod trees;
mod value;

pub use access::Read;
pub(crate) use append::Append;
pub use catalog::{CATALOG, Table, id_of, table_with_id};
pub(crate) use catalog::{CATALOG_ROOT, Tree, is_name, named_root, named_table, tombstone};
pub(crate) use checkpoint::{CheckpointJob, Input, Master, MasterRun};
pub(crate) use claim::ClaimJob;
use commit_costs::CommitCosts;
pub(crate) use descent::{DEPTH_MAX, Seek, check_node, end_of_child};
pub(crate) use dropped::{Freed, Visited};
use memory_tuner::{MemoryTuner, Sizes};
pub use merge::{
    Change, Chosen, Extent, LeafPlace, MergeSearch, MergeView, Siblings, UNDERFULL_PERCENT,
    VictimChoice,
};
pub(crate) use merge::{Grouped, InstallJob, Job, PageWrite, WriteJob};
use obstacles::Obstacles;
use owner::Owner;
pub(crate) use owner::{Identity, TableOwner};
pub use pool::{LEAVES_MIN, Lru};
use pool::{Pool, frame_size};
pub use reads::{ReadNumber, Reads};
pub(crate) use restart::{MeetPoint, Replay, ReplayEffects};
pub use scan::{Direction, Row, RowValue, ScanRange, successor};
pub use shared_read::{LeafRows, LeafValue};
pub use snapshot::SnapshotId;
pub(crate) use spill::{SpillJob, entries as run_entries, is_rolled_back};
pub(crate) use stats::NodeOutline;
pub use stats::{EngineStats, Memory};
use transaction::Transaction;
pub(crate) use transaction::split_private_key;
pub use transaction::{Savepoint, Ticket};
pub use value::Descriptor;
pub(crate) use value::{Release, ValuePlan, value_page, value_page_content};

/// Result of an operation that may have to stop.
pub type Step<T> = Result<T, Stop>;

/// Why an operation could not complete now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A page must be read first: read it, hand it to [`Engine::fill`], call again.
    Miss(Fetch),
    /// A condition must hold first: see to that, call again.
    Wait(Wait),
    /// The operation fails.
    Error(EngineError),
}

impl<E: Into<EngineError>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

/// Condition that an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A lock; the transaction is named by [`Engine::take_woken`] when it may try again.
    Lock,
    /// Memory: background work frees it.
    Memory,
    /// Room in the log: a checkpoint frees it.
    Log,
    /// Unused logical pages, so many; the runtime supplies them.
    Pages(usize),
    /// A group number; the runtime supplies it.
    Group,
    /// Room for so many pages more on a device that grows; the runtime asks for it.
    Room(u64),
    /// A log of more pages than so many, on a device that grows; the runtime asks for it.
    LargerLog(u64),
    /// Room that the log has beyond its share; the runtime takes it.
    ShorterLog,
    /// Pages of values that a transaction stored and no longer names; the runtime gives them back.
    Garbage(Xid),
    /// Room on the host for the blocks that a commit brings with it; the runtime makes sure of it.
    Reserve,
    /// The log to become durable up to a commit.
    Durable(Lsn),
    /// A transaction that is being committed with its leaves: background work gets there.
    Claim,
    /// Changes on their way to the pages of a named snapshot.
    CommitBarrier,
}

impl Wait {
    /// Whether [`crate::Runtime::supply`] ends the wait at once.
    #[must_use]
    pub const fn is_at_hand(self) -> bool {
        use Wait::{Garbage, Group, LargerLog, Pages, Reserve, Room, ShorterLog};
        matches!(
            self,
            Pages(_) | Group | Room(_) | LargerLog(_) | ShorterLog | Garbage(_) | Reserve
        )
    }
}

/// A page to read from the space floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fetch {
    /// The current version of a page, asked for as this read.
    Page(LogicalPage, ReadNumber),
    /// The version that an open group wrote.
    Grouped(GroupId, LogicalPage),
    /// An old version that a snapshot keeps.
    Pinned(PinId, LogicalPage),
}

/// A page that was read; `found` is none for a page that was never written.
#[derive(Debug)]
pub struct Fetched {
    /// The request.
    pub fetch: Fetch,
    /// Metadata and payload.
    pub found: Option<(PageInfo, Vec<u8>)>,
    /// Device time of the read; 0 where no estimate uses it.
    pub cost_ns: u64,
}

impl Fetched {
    /// The requested page was never written.
    #[must_use]
    pub const fn absent(fetch: Fetch) -> Self {
        Self { fetch, found: None, cost_ns: 0 }
    }
}

/// The engine's view of the space floor; refreshed by the runtime.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpaceView {
    /// Bytes of the master record that the last checkpoint saved.
    pub(crate) record_said: usize,
    /// Bytes of a record that list the pages of open groups on flash.
    pub(crate) record_listed: usize,
    /// Log pages in use.
    pub(crate) log_used: u64,
    /// Log pages the budget allows.
    pub(crate) log_budget: u64,
    /// The same once the log has given back the pages beyond its share.
    pub(crate) log_least: u64,
    /// Bytes of a log page.
    pub(crate) log_page_size: usize,
    /// Log pages of an erase block.
    pub(crate) log_block_pages: u64,
    /// Bytes that the record of a checkpoint has for the master record and open groups.
    pub(crate) record_room: usize,
    /// The same with as many named snapshots as there may be: never less.
    pub(crate) record_room_least: usize,
    /// Logical pages that are live, or taken by the engine.
    pub(crate) taken_pages: u64,
    /// Logical pages that may be live.
    pub(crate) capacity_pages: u64,
    /// The device may become larger.
    pub(crate) can_grow: bool,
    /// The log may become larger, too.
    pub(crate) log_grows: bool,
    /// The host may have no room for the blocks that log, checkpoints and collection rely on.
    pub(crate) lacks_reserve: bool,
    /// Blocks are bad: less may be live than when the device was new.
    pub(crate) has_lost_blocks: bool,
    /// Memory of the mapping.
    pub(crate) mapping_bytes: usize,
    /// A flag in the spare area can commit a group.
    pub(crate) carries_flags: bool,
    /// Nothing written is durable before a sync, which takes longer than a few pages.
    pub(crate) needs_sync: bool,
    /// Relocations that a page write has brought with it, on average.
    pub(crate) moves_per_write: f64,
}

/// A flush that is being programmed.
#[derive(Clone, Copy, Debug)]
struct FlushPoint {
    upto: Lsn,
    chain: ChainPoint,
    /// The last group whose pages were written before.
    group: Option<GroupId>,
}

/// Limits that follow from the memory budget.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Frames may take this much.
    frames: usize,
    /// Above this, deltas are merged.
    deltas_soft: usize,
    /// Above this, commits wait for merges.
    deltas_hard: usize,
    /// Above this, the largest transaction spills.
    uncommitted: usize,
    /// Deltas beyond this could not all be copied by a checkpoint.
    deltas_copied: usize,
    /// With a longer log deltas might take more.
    is_log_short: bool,
}

/// Floor 1, the store: what is committed, how it is read, and how much room is left.
#[derive(Debug)]
pub struct Store {
    /// Owner of the handles that the engine gives out.
    owner: Owner,
    /// Tells the database from all others.
    pub(crate) identity: Identity,
    options: Options,
    payload_size: usize,
    limits: Limits,
    trees: trees::Trees,
    pool: Pool,
    tuner: MemoryTuner,
    /// Levels of the tallest tree that was seen.
    height: usize,
    log: LogWriter,
    /// Newest commit record in the log, durable or not.
    committed: Lsn,
    /// Commits up to here must become durable soon: a caller waits for them.
    flush_to: Lsn,
    /// Commits up to here are waited for too, but their flush may wait for more commits.
    group_commit_lsn: Lsn,
    flush_in_flight: Option<FlushPoint>,
    /// Restart may have to forget the changes that it put back above this LSN.
    replay_cutoff: Option<Lsn>,
    /// Restart is putting commits back, up to this one so far: no image may claim to be complete
    /// beyond it, although later commits are durable (rule D2).
    replaying: Option<Lsn>,
    /// The log is read, and no transaction was let in yet.
    is_opening: bool,
    /// The last record that frees page numbers, among the records that a restart would find in the log.
    freed_lsn: Lsn,
    /// Deltas up to here were put back by restart and may be older than their base.
    recovered: Lsn,
    /// States that are kept: no delta joins a change at or below one of these LSNs with a later change.
    floors: Vec<Lsn>,
    /// The newest change that any delta has.
    newest_delta: Lsn,
    deltas_size: usize,
    /// Bytes of committed changes as records.
    packed_size: usize,
    /// Memory that a byte of such records takes, as measured when copies of them took much of the log.
    delta_memory_ratio: f64,
    deltas_size_peak: usize,
    /// Most that frames and changes took together.
    memory_peak: usize,
    uncommitted_size: usize,
    growth: admission::Growth,
    snapshots: snapshot::Snapshots,
    /// Threads that make named snapshots: nothing is committed meanwhile.
    commit_barriers: usize,
    reads: Reads,
    unused_pages: Vec<LogicalPage>,
    unused_groups: Vec<GroupId>,
    busy: HashSet<LogicalPage>,
    obstacles: Obstacles,
    /// Chooses the leaves to merge in place of the planner's window.
    guest: Option<Box<dyn VictimPolicy>>,
    installs: VecDeque<InstallJob>,
    /// Groups whose pages are written and not durable, in the order of their writes.
    unsynced: VecDeque<Grouped>,
    trims: value::Trims,
    runs: spill::Runs,
    run_commit: run_commit::RunCommits,
    /// Leaves that become several when their waiting changes are merged: a claim left them alone.
    must_split: HashSet<LogicalPage>,
    commit_costs: CommitCosts,
    cycle: checkpoint::Cycle,
    view: SpaceView,
    /// Log page on which the last durable fragment ended.
    log_page: u64,
    /// Why nothing is written any more.
    fault: Option<EngineError>,
    /// Images in memory hold changes that a failure took back.
    has_torn_images: bool,
    counts: Counts,
    pub(crate) bugs: Bugs,
}

/// Floor 2, the transactions: their private changes, their locks, and the one that is being committed
/// with its leaves.
#[derive(Debug)]
pub struct Transactions {
    store: Store,
    transactions: HashMap<Xid, Transaction>,
    locks: LockTable,
    woken: Vec<Xid>,
    claim: Option<claim::Claim>,
    drops: dropped::Drops,
    scratch: Vec<u8>,
}

/// Floor 3, the merges: which leaf's deltas meet their base next, and how the result becomes current.
#[derive(Debug)]
pub struct Merges {
    txns: Transactions,
    planner: merge::MergePlanner,
    folding: Option<relocation_merge::Folding>,
    /// Appends that leaves can take.
    append_room: AppendRoom,
}

/// Floor 4, the commits: admission, and the three ways to flash: by the log, by leaves, by a run.
#[derive(Debug)]
pub struct Commits {
    merges: Merges,
}

/// Floor 5, recovery: checkpoints, and the restart that begins with the last one.
#[derive(Debug)]
pub struct Recovery {
    commits: Commits,
    /// Where the chain of durable fragments ends.
    durable_chain: ChainPoint,
    /// Numbers that no page gets while restart puts commits back.
    held_numbers: Vec<LogicalPage>,
    /// Group and pages of the claim whose marker was replayed last: the next record commits it.
    replayed_claim: Option<(GroupId, Vec<GroupSpan>)>,
}

/// All state above the space floor, and the order of background work. See the module's head.
#[derive(Debug)]
pub struct Engine {
    recovery: Recovery,
}

/// A floor has what the floors below it have. None of them can name a floor above.
macro_rules! stands_on {
    ($($upper:ty, $field:ident: $lower:ty;)*) => {$(
        impl Deref for $upper {
            type Target = $lower;

            fn deref(&self) -> &$lower {
                &self.$field
            }
        }

        impl DerefMut for $upper {
            fn deref_mut(&mut self) -> &mut $lower {
                &mut self.$field
            }
        }
    )*};
}

stands_on! {
    Transactions, store: Store;
    Merges, txns: Transactions;
    Commits, merges: Merges;
    Recovery, commits: Commits;
    Engine, recovery: Recovery;
}

/// Counters since the engine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    commits: u64,
    aborts: u64,
    deadlocks: u64,
    user_bytes: u64,
    log_bytes: u64,
    merges: u64,
    merged_deltas: u64,
    folds: u64,
    folded_deltas: u64,
    splits: u64,
    split_together: u64,
    reshapes_at_once: u64,
    run_commits: u64,
    merges_in_parts: u64,
    checkpoints: u64,
    copied_deltas: u64,
    spilled_pages: u64,
    claimed_pages: u64,
    flag_commits: u64,
}

impl Store {
    /// So many pages were written in `ns` of device time, with the collection that they waited for;
    /// none where there was nothing but collection.
    pub(crate) fn note_write_cost(&mut self, pages: usize, ns: u64) {
        self.pool.costs.note_write(pages as u64, ns);
    }

    /// A page took an append in `ns` of device time.
    pub(crate) fn note_append_cost(&mut self, ns: u64) {
        self.pool.costs.note_append(ns);
    }

    /// The log was programmed so many times in `ns` of device time.
    pub(crate) fn note_log_cost(&mut self, programs: usize, ns: u64) {
        self.pool.costs.note_log(programs as u64, ns);
    }

    /// Bytes of the longest key.
    #[must_use]
    pub fn key_size_max(&self) -> usize {
        node::key_size_max(self.payload_size)
    }

    /// Bytes of the longest value that is stored inside a leaf, under a key of `key_size` bytes.
    #[must_use]
    pub fn inline_value_size_max(&self, key_size: usize) -> usize {
        node::value_size_max(self.payload_size, key_size)
    }

    /// Bytes of uncommitted changes beyond which transactions spill.
    pub(crate) fn uncommitted_max(&self) -> usize {
        self.limits.uncommitted
    }

    /// Options the engine runs with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Every commit up to here is durable.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.log.durable()
    }

    /// Whether a caller waits for log records that are not being written yet.
    #[must_use]
    pub fn is_flush_wanted(&self) -> bool {
        !self.is_poisoned()
            && self.flush_in_flight.is_none()
            && (self.flush_to > self.log.durable() || self.has_group_commit())
            && self.log.pending_bytes() > 0
    }

    /// Whether commits wait for a flush that waits for more commits: the runtime or the event loop,
    /// which keep the time, flush when the delay of the options has passed.
    #[must_use]
    pub fn awaits_group_commit(&self) -> bool {
        !self.is_poisoned() && self.group_commit_lsn > self.log.durable()
    }

    /// Whether enough has gathered to end the wait of a group commit.
    fn has_group_commit(&self) -> bool {
        let enough = self.view.log_page_size as f64 * self.options.group_fill;
        self.awaits_group_commit() && self.log.pending_bytes() as f64 >= enough
    }

    /// The newest commit, durable or not.
    #[must_use]
    pub fn last_commit(&self) -> Lsn {
        self.committed
    }

    /// Whether anything was appended to the log since the engine was opened.
    #[must_use]
    pub fn has_logged(&self) -> bool {
        self.log.has_appended()
    }

    /// Whether a flush is being programmed. A flush that failed on the device never ends.
    #[must_use]
    pub fn is_flushing(&self) -> bool {
        self.flush_in_flight.is_some() && !self.is_poisoned()
    }

    /// Bytes of log records that wait for a flush.
    #[must_use]
    pub fn pending_log_size(&self) -> usize {
        self.log.pending_bytes()
    }

    /// Cuts everything pending into a flush, for the runtime to program.
    pub(crate) fn seal(&mut self, geometry: LogGeometry, slots_left: u16) -> Option<Flush> {
        if self.is_poisoned() {
            return None;
        }
        let flush = self.cut_log(geometry, slots_left)?;
        let (upto, chain) = (flush.upto, self.log.chain());
        let group = self.unsynced.back().map(|last| last.group);
        self.flush_in_flight = Some(FlushPoint { upto, chain, group });
        self.refresh_floors();
        Some(flush)
    }

    fn cut_log(&mut self, geometry: LogGeometry, slots_left: u16) -> Option<Flush> {
        #[cfg(feature = "seeded-bugs")]
        if self.bugs.has(SeededBug::FrontierBetween) {
            return self.log.seal_half(geometry, slots_left);
        }
        self.log.seal(geometry, slots_left)
    }

    /// Asks for everything in the log to become durable.
    pub fn want_flush(&mut self) {
        self.flush_to = self.log.appended();
    }

    /// Error of an unreadable page that changes wait for, if there is one.
    pub(crate) fn unreadable_error(&self) -> Option<EngineError> {
        self.obstacles.unreadable_error()
    }

    /// Whether the engine became read-only, by a device failure, by wear, or by how it was opened.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.fault.is_some()
    }

    /// Takes logical pages that the space floor reserved for new nodes and values.
    pub(crate) fn supply_pages(&mut self, pages: Vec<LogicalPage>) {
        self.view.taken_pages += pages.len() as u64;
        self.unused_pages.extend(pages);
    }

    /// How many unused logical pages are at hand.
    pub(crate) fn unused_page_count(&self) -> usize {
        self.unused_pages.len()
    }

    /// Log page on which the last durable fragment ended.
    pub(crate) fn note_log_page(&mut self, page: u64) {
        self.log_page = page;
    }

    /// Takes note of the space floor's state.
    pub(crate) fn observe(&mut self, view: SpaceView) {
        let has_grown = view.capacity_pages > self.view.capacity_pages;
        if view.taken_pages < self.view.taken_pages || has_grown {
            self.obstacles.forget_lack();
        }
        self.view = view;
        if self.packed_size > self.view.copies_max() / 2 {
            let delta_memory_ratio = self.deltas_size as f64 / self.packed_size as f64;
            self.delta_memory_ratio = delta_memory_ratio.min(UNPACKED_MAX);
        }
        if self.learns_memory_split() {
            self.learn_memory_split();
        }
        self.refresh_limits();
    }

    /// Whether the share of frames is learned. Where frames hold changes that flash lacks there is
    /// nothing to split.
    fn learns_memory_split(&self) -> bool {
        self.options.techniques.budget == Budget::Adaptive && !self.holds_images_ahead()
    }

    fn learn_memory_split(&mut self) {
        let sizes = Sizes {
            deltas: self.limits.deltas_soft,
            frame: frame_size(self.payload_size),
            frame_count: self.pool.count(),
        };
        self.tuner.learn(&self.pool.ghosts, self.pool.costs, sizes, self.log.appended());
    }

    fn refresh_limits(&mut self) {
        let share = if self.learns_memory_split() {
            self.tuner.share()
        } else {
            self.options.techniques.frame_share
        };
        let limits = Limits::of(&self.options, share, self.payload_size, self.height);
        self.limits = limits.within_log(&self.view, self.delta_memory_ratio);
        if self.options.techniques.budget != Budget::Shared {
            // Memory that the log's size keeps deltas from taking is of use to frames.
            let taken = self.limits.deltas_hard + MERGE_PAGES * self.payload_size;
            let left = self.options.memory.saturating_sub(taken);
            self.limits.frames = self.limits.frames.max(left);
        }
    }

    /// A node of this level was seen: its tree has at least one level more than this number.
    fn note_level(&mut self, level: u8) {
        let height = usize::from(level) + 1;
        if height > self.height {
            self.height = height;
            self.refresh_limits();
        }
    }

    /// Takes a group number that was never used before (rule D3).
    pub(crate) fn supply_group(&mut self, group: GroupId) {
        self.unused_groups.push(group);
    }

    fn take_page(&mut self) -> Step<LogicalPage> {
        self.unused_pages.pop().ok_or(Stop::Wait(Wait::Pages(1)))
    }

    fn take_group(&mut self) -> Step<GroupId> {
        self.unused_groups.pop().ok_or(Stop::Wait(Wait::Group))
    }

    /// Passes unless images in memory hold changes that a failure took back: they cannot be parted from
    /// the rest of the image.
    fn require_whole_images(&self) -> Step<()> {
        if self.has_torn_images { self.require_sound() } else { Ok(()) }
    }

    pub(crate) fn require_sound(&self) -> Step<()> {
        Ok(self.sound()?)
    }

    /// Passes while the device can be written.
    pub(crate) fn sound(&self) -> Result<(), EngineError> {
        self.fault.clone().map_or(Ok(()), Err)
    }

    /// Recomputes the LSNs at which versions of a key must stay apart.
    ///
    /// The durable frontier and the end of a flush in flight may become the LSN that a base is
    /// complete to; a snapshot reads at its own; a checkpoint copies up to its cutoff, and restart
    /// keeps those copies when it forgets the rest; a run that is not loaded will put changes between
    /// older and newer ones; the marker of an epoch is flushed alone.
    ///
    /// # Panics
    ///
    /// If a floor is no state that was kept (rule D17).
    fn refresh_floors(&mut self) {
        assert!(
            self.take_floors() || self.bugs.has(SeededBug::FrontierBetween),
            "D17: a frontier is a state that was kept"
        );
    }

    /// Whether each floor is a state that was kept: LSNs that are read from flash may have any value.
    fn take_floors(&mut self) -> bool {
        let mut floors = vec![self.log.durable()];
        floors.extend(self.log.marker());
        floors.extend(self.flush_in_flight.map(|point| point.upto));
        floors.extend(self.cycle.cutoff());
        floors.extend(self.replay_cutoff);
        self.snapshots.floors(&mut floors);
        self.runs.floors(&mut floors);
        floors.sort_unstable();
        floors.dedup();
        let was_kept =
            |place: &Lsn| *place >= self.newest_delta || self.floors.binary_search(place).is_ok();
        let are_kept = floors.iter().all(was_kept);
        self.floors = floors;
        are_kept
    }

    fn note_deltas_size(&mut self, before: DeltaSize, after: DeltaSize) {
        self.deltas_size = self.deltas_size + after.memory - before.memory;
        self.packed_size = self.packed_size + after.packed - before.packed;
        self.tuner.freed(before.memory.saturating_sub(after.memory));
        self.note_memory();
    }

    /// Changes or frames take more or less memory than before: frames give way where the budget is shared.
    fn note_memory(&mut self) {
        let total = self.deltas_size + self.uncommitted_size;
        self.deltas_size_peak = self.deltas_size_peak.max(total);
        if self.options.techniques.budget == Budget::Shared {
            self.pool.shrink(self.frames_max());
        }
        self.memory_peak = self.memory_peak.max(total + self.pool.bytes());
    }

    /// Memory that frames may take now.
    fn frames_max(&self) -> usize {
        let taken = self.deltas_size + self.uncommitted_size + MERGE_PAGES * self.payload_size;
        let left = self.options.memory.saturating_sub(taken);
        let most = match self.options.techniques.budget {
            // Deltas may still hold memory that was given to frames.
            Budget::Divided | Budget::Adaptive => self.limits.frames.min(left),
            Budget::Shared => left,
        };
        most.max(self.frames_min())
    }

    /// Memory that frames take at least: pages that were read for the next job stay beside pages that
    /// operations need, or each side would read again and again the pages that the other has dropped
    /// (rule D7).
    fn frames_min(&self) -> usize {
        let held = self.pool.held_count();
        let versions = (LEAVES_MIN + held) * size_of::<PageInfo>();
        (frame_count_min(self.height) + held) * frame_size(self.payload_size) + versions
    }

    fn drop_refs(&mut self, dropped: DroppedRefs, lsn: Lsn) {
        if self.runs.may_unload() {
            // Nothing is freed: a run that is loaded again drops the same references again.
            return;
        }
        for descriptor in dropped {
            self.trims.add(lsn, descriptor);
        }
    }

    /// A page has a newer image on flash: frames and reads under way of the old one are void.
    fn forget_page(&mut self, page: LogicalPage) {
        self.pool.remove(page);
        self.mark_stale(page);
        self.obstacles.found_again(page);
    }

    fn mark_stale(&mut self, page: LogicalPage) {
        self.reads.mark_stale(page);
        self.must_split.remove(&page);
    }

    fn holds_images_ahead(&self) -> bool {
        self.options.techniques.frames == FrameKind::Ahead
    }

    /// Whether frames may hold changes that flash lacks, by commits or by merges.
    fn may_be_ahead(&self) -> bool {
        self.holds_images_ahead() || self.options.techniques.merge_to == MergeTo::Frame
    }
}

impl Transactions {
    /// Transactions that may call their operation again, each named once.
    pub fn take_woken(&mut self) -> Vec<Xid> {
        std::mem::take(&mut self.woken)
    }

    /// Whether there are transactions to call again that were not named yet.
    pub(crate) fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }
}

impl Engine {
    /// An engine over a space floor whose logical pages carry `payload_size` bytes.
    pub(crate) fn new(options: Options, payload_size: usize, log: LogWriter) -> Self {
        let limits = Limits::of(&options, options.techniques.frame_share, payload_size, HEIGHT_MIN);
        let owner = Owner::unique();
        let sizes = PolicySizes { memory: options.memory, payload_size };
        let guests = options.techniques().policies.guests(sizes);
        let (memory, chain) = (options.memory, log.chain());
        let store = Store {
            owner,
            identity: Identity::draw(options.seed),
            limits,
            payload_size,
            trees: trees::Trees::new(),
            pool: Pool::new(guests.replacement.unwrap_or_else(|| Box::<Lru>::default())),
            tuner: MemoryTuner::new(options.techniques.frame_share),
            height: 1,
            log,
            committed: Lsn::ZERO,
            flush_to: Lsn::ZERO,
            group_commit_lsn: Lsn::ZERO,
            flush_in_flight: None,
            replay_cutoff: None,
            replaying: None,
            is_opening: false,
            freed_lsn: Lsn::ZERO,
            recovered: Lsn::ZERO,
            floors: vec![Lsn::ZERO],
            newest_delta: Lsn::ZERO,
            deltas_size: 0,
            packed_size: 0,
            delta_memory_ratio: 1.0,
            deltas_size_peak: 0,
            memory_peak: 0,
            uncommitted_size: 0,
            growth: admission::Growth::default(),
            snapshots: snapshot::Snapshots::of(owner),
            commit_barriers: 0,
            reads: Reads::default(),
            unused_pages: Vec::new(),
            unused_groups: Vec::new(),
            busy: HashSet::new(),
            obstacles: Obstacles::default(),
            guest: guests.victim,
            installs: VecDeque::new(),
            unsynced: VecDeque::new(),
            trims: value::Trims::default(),
            runs: spill::Runs::default(),
            run_commit: run_commit::RunCommits::default(),
            must_split: HashSet::new(),
            commit_costs: CommitCosts::default(),
            cycle: checkpoint::Cycle::default(),
            view: SpaceView::default(),
            log_page: 0,
            fault: None,
            has_torn_images: false,
            counts: Counts::default(),
            bugs: Bugs::default(),
            options,
        };
        let txns = Transactions {
            store,
            transactions: HashMap::new(),
            locks: LockTable::within(memory / LOCKS_SHARE),
            woken: Vec::new(),
            claim: None,
            drops: dropped::Drops::default(),
            scratch: Vec::new(),
        };
        let merges = Merges {
            txns,
            planner: merge::MergePlanner::default(),
            folding: None,
            append_room: AppendRoom::default(),
        };
        let recovery = Recovery {
            commits: Commits { merges },
            durable_chain: chain,
            held_numbers: Vec::new(),
            replayed_claim: None,
        };
        Self { recovery }
    }

    /// The flush in flight is durable.
    pub(crate) fn flushed(&mut self, flush: Flush) {
        self.log.completed(flush);
        if let Some(point) = self.flush_in_flight.take() {
            self.durable_chain = point.chain;
            // Only groups that have to be synced wait here, and a flush syncs every page written before
            // it.
            point.group.into_iter().for_each(|last| self.synced(last));
        }
        self.refresh_floors();
    }

    /// The device failed while the log or a page was written: nothing above the durable frontier can be
    /// relied on any more (rule D8), and all of it is taken back. A transaction that writes from now on
    /// gets `fault`, and so does an open transaction that may have read a lost commit: its later reads
    /// would see the state before that commit.
    pub(crate) fn poison(&mut self, fault: EngineError) {
        let durable = self.durable();
        let fault = self.fault.get_or_insert(fault).clone();
        for tree in &mut self.trees {
            tree.deltas.remove_newer(durable);
        }
        self.runs.remove_newer(durable);
        self.forget_drops(durable);
        self.has_torn_images |= self.pool.is_beyond(durable);
        let Transactions { transactions, woken, .. }: &mut Transactions = self;
        woken.extend(transactions.keys().copied());
        if durable < self.committed {
            let open = self.transactions.iter().filter(|(xid, own)| {
                own.claimed.is_none() && own.doom.is_none() && !self.is_claiming(**xid)
            });
            let open: Vec<Xid> = open.map(|(xid, _)| *xid).collect();
            open.into_iter().for_each(|xid| self.doom(xid, fault.clone()));
        }
    }
}

impl Limits {
    /// Limits where frames have `frame_share` of memory.
    fn of(options: &Options, frame_share: f64, payload_size: usize, height: usize) -> Self {
        let memory = options.memory;
        let share = |of: f64| (memory as f64 * of) as usize;
        let frame_share = match options.techniques.frames {
            FrameKind::Base => frame_share,
            FrameKind::Ahead => 1.0 - frame_share,
        };
        let frames_min = frame_count_min(height) * frame_size(payload_size);
        let frames = share(frame_share).max(frames_min);
        let deltas = memory.saturating_sub(frames).saturating_sub(MERGE_PAGES * payload_size);
        Self {
            frames,
            deltas_soft: deltas - deltas / 16,
            deltas_hard: deltas,
            // A page at least, however small the share: changes that a transaction cannot keep leave
            // memory a row at a time.
            uncommitted: share(options.techniques.uncommitted_share)
                .min(deltas / 2)
                .max(payload_size),
            deltas_copied: usize::MAX,
            is_log_short: false,
        }
    }
}

impl Limits {
    /// A checkpoint copies every live delta to the log's tail, beside the copies before it: deltas
    /// never take more than a share of the log, or its head could not be freed (rule D7). A byte of a
    /// copy takes `delta_memory_ratio` of memory.
    fn within_log(mut self, view: &SpaceView, delta_memory_ratio: f64) -> Self {
        let copies_max = view.copies_max();
        if copies_max < usize::MAX {
            let deltas_max = (copies_max as f64 * delta_memory_ratio) as usize;
            let deltas_max = deltas_max.max(self.uncommitted.min(1024));
            self.deltas_copied = deltas_max;
            self.is_log_short = view.log_grows && deltas_max < self.deltas_hard;
            self.deltas_hard = self.deltas_hard.min(deltas_max);
            self.deltas_soft = self.deltas_soft.min(deltas_max - deltas_max / 16);
            self.uncommitted = self.uncommitted.min(deltas_max / 2);
        }
        self
    }
}

impl SpaceView {
    /// Bytes of deltas that a checkpoint has room to copy; without bound where nothing is known of a
    /// log.
    fn copies_max(&self) -> usize {
        let pages = usize::try_from(self.log_budget).unwrap_or(usize::MAX);
        match pages.saturating_mul(self.log_page_size) {
            0 => usize::MAX,
            log_size => log_size / 100 * DELTAS_LOG_PERCENT,
        }
    }
}

/// Locks of one transaction may take one part in this many of the memory beside it.
const LOCKS_SHARE: usize = 16;

/// Share of the log's budget, in percent, that live deltas may take.
const DELTAS_LOG_PERCENT: usize = 30;

/// Upper bound of the memory that is believed for a byte of records: a ratio measured when many records
/// are gone need not hold for the records to come.
const UNPACKED_MAX: f64 = 1.5;

/// Levels of the lowest tree that memory is planned for.
const HEIGHT_MIN: usize = 4;

/// Frames of the smallest pool: a root-to-leaf path beside the leaves that stay, which include the
/// leaves of a merge with their siblings (rule D7).
const fn frame_count_min(height: usize) -> usize {
    let levels = if height > HEIGHT_MIN { height } else { HEIGHT_MIN };
    levels + LEAVES_MIN
}

/// Images a merge holds while it is being prepared and written: the new leaf and its neighbours.
const MERGE_PAGES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal (rule D7): a transaction keeps a page of changes, whichever shares the options give it:
    /// with less, each row leaves memory as a run of its own. Method: the smallest memory, all shares.
    #[test]
    fn a_transaction_keeps_a_page_whatever_the_shares() {
        for payload_size in [488, 2_012, 4_056, 16_344] {
            for percent in 0..=100_u32 {
                let share = f64::from(percent) / 100.0;
                let memory = 24 * (payload_size + 40);
                let options = Options::default().with_memory(memory);
                let options = options
                    .with_techniques(|techniques| techniques.uncommitted_share = 1.0 - share);
                let limits = Limits::of(&options, share, payload_size, HEIGHT_MIN);
                let view = SpaceView { log_budget: 248, log_page_size: 4096, ..Default::default() };
                let within = limits.within_log(&view, 1.0);
                let kept = limits.uncommitted.min(within.uncommitted);
                assert!(kept >= payload_size, "{percent} %: {limits:?}, {within:?}");
            }
        }
    }
}
