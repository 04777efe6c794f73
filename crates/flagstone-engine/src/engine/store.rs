//! Layer 1 of the engine, the store: committed data, the reads of it, and the room that is left.
//!
//! Owns the trees with their deltas, the frames, the log's volatile tail, runs, snapshots and the groups of
//! pages in flight. Never sees a change before its commit (E1), and never decides which leaf is merged.

use flagstone_space::{GroupId, LogicalPage, Lsn};
use hashbrown::HashSet;

use crate::bugs::Bugs;
use crate::delta::DroppedRefs;
use crate::engine::step::{Step, Stop, Wait};
use crate::engine::store::frontier::Frontier;
use crate::engine::store::groups::Groups;
use crate::engine::store::memory::{MemoryUse, UNPACKED_MAX};
use crate::engine::store::obstacles::Obstacles;
use crate::engine::store::owner::{Identity, Owner};
use crate::engine::store::pool::Pool;
use crate::engine::store::pool::lru::Lru;
use crate::engine::store::reads::Reads;
use crate::engine::store::room::{Room, SpaceView};
use crate::error::EngineError;
use crate::log::LogWriter;
use crate::node;
use crate::options::Options;
use crate::policy::{PolicySizes, VictimPolicy};

pub(in crate::engine) mod append;
pub(in crate::engine) mod catalog;
pub(in crate::engine) mod cycle;
pub(in crate::engine) mod descent;
pub(in crate::engine) mod dropped;
pub(in crate::engine) mod frontier;
pub(in crate::engine) mod groups;
pub(in crate::engine) mod guest;
pub(in crate::engine) mod log_records;
pub(in crate::engine) mod memory;
pub(in crate::engine) mod memory_tuner;
pub(in crate::engine) mod obstacles;
pub(in crate::engine) mod owner;
pub(in crate::engine) mod pool;
pub(in crate::engine) mod private_key;
pub(in crate::engine) mod read;
pub(in crate::engine) mod reads;
pub(in crate::engine) mod room;
pub(in crate::engine) mod run;
pub(in crate::engine) mod scan;
pub(in crate::engine) mod shared_read;
pub(in crate::engine) mod snapshot;
pub(in crate::engine) mod spans;
pub(in crate::engine) mod stats;
pub(in crate::engine) mod structure;
pub(in crate::engine) mod trees;
pub(in crate::engine) mod value;

/// Layer 1 of the engine, the store: committed data, the reads of it, and the room that is left.
#[derive(Debug)]
pub struct Store {
    /// Owner of the handles that the engine gives out.
    owner: Owner,
    /// Tells the database from all others.
    pub(crate) identity: Identity,
    pub(in crate::engine) options: Options,
    pub(in crate::engine) payload_size: usize,
    pub(in crate::engine) trees: trees::Trees,
    pub(in crate::engine) pool: Pool,
    pub(in crate::engine) snapshots: snapshot::Snapshots,
    /// Threads that make named snapshots: nothing is committed meanwhile.
    pub(in crate::engine) commit_barriers: usize,
    pub(in crate::engine) reads: Reads,
    pub(in crate::engine) obstacles: Obstacles,
    /// Chooses the leaves to merge in place of the planner's window.
    pub(in crate::engine) guest: Option<Box<dyn VictimPolicy>>,
    pub(in crate::engine) trims: value::Trims,
    pub(in crate::engine) runs: run::committed::Runs,
    pub(in crate::engine) run_commit: run::load::RunCommits,
    /// Leaves that become several when their waiting changes are merged: a claim left them alone.
    pub(in crate::engine) must_split: HashSet<LogicalPage>,
    pub(in crate::engine) cycle: cycle::Cycle,
    /// Why nothing is written any more.
    pub(in crate::engine) fault: Option<EngineError>,
    /// Images in memory hold changes that a failure took back.
    pub(in crate::engine) has_torn_images: bool,
    pub(in crate::engine) counts: Counts,
    pub(crate) bugs: Bugs,
    /// Frontiers of the log.
    pub(in crate::engine) frontier: Frontier,
    /// Memory that frames and changes take.
    pub(in crate::engine) memory: MemoryUse,
    /// Room on the device and in the log.
    pub(in crate::engine) room: Room,
    /// Groups of pages in flight.
    pub(in crate::engine) groups: Groups,
}

/// Counters since the engine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct Counts {
    pub(in crate::engine) commits: u64,
    pub(in crate::engine) aborts: u64,
    pub(in crate::engine) deadlocks: u64,
    pub(in crate::engine) user_bytes: u64,
    pub(in crate::engine) log_bytes: u64,
    pub(in crate::engine) merges: u64,
    pub(in crate::engine) merged_deltas: u64,
    pub(in crate::engine) folds: u64,
    pub(in crate::engine) folded_deltas: u64,
    pub(in crate::engine) splits: u64,
    pub(in crate::engine) split_together: u64,
    pub(in crate::engine) reshapes_at_once: u64,
    pub(in crate::engine) run_commits: u64,
    pub(in crate::engine) merges_in_parts: u64,
    pub(in crate::engine) checkpoints: u64,
    pub(in crate::engine) copied_deltas: u64,
    pub(in crate::engine) spilled_pages: u64,
    pub(in crate::engine) claimed_pages: u64,
    pub(in crate::engine) flag_commits: u64,
}

impl Store {
    /// A store over a space floor whose logical pages carry `payload_size` bytes.
    pub(in crate::engine) fn new(options: Options, payload_size: usize, log: LogWriter) -> Self {
        let owner = Owner::unique();
        let sizes = PolicySizes { memory: options.memory, payload_size };
        let guests = options.techniques().policies.guests(sizes);
        Self {
            frontier: Frontier::new(log),
            memory: MemoryUse::new(&options, payload_size),
            room: Room::default(),
            groups: Groups::default(),
            owner,
            identity: Identity::draw(options.seed),
            payload_size,
            trees: trees::Trees::new(),
            pool: Pool::new(guests.replacement.unwrap_or_else(|| Box::<Lru>::default())),
            snapshots: snapshot::Snapshots::of(owner),
            commit_barriers: 0,
            reads: Reads::default(),
            obstacles: Obstacles::default(),
            guest: guests.victim,
            trims: value::Trims::default(),
            runs: run::committed::Runs::default(),
            run_commit: run::load::RunCommits::default(),
            must_split: HashSet::new(),
            cycle: cycle::Cycle::default(),
            fault: None,
            has_torn_images: false,
            counts: Counts::default(),
            bugs: Bugs::default(),
            options,
        }
    }

    /// Whether commits are being put back.
    pub(crate) fn is_replaying(&self) -> bool {
        self.frontier.replaying.is_some()
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

    /// Options the engine runs with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
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
        self.room.view.taken_pages += pages.len() as u64;
        self.room.unused_pages.extend(pages);
    }

    /// How many unused logical pages are at hand.
    pub(crate) fn unused_page_count(&self) -> usize {
        self.room.unused_pages.len()
    }

    /// Takes note of the space floor's state.
    pub(crate) fn observe(&mut self, view: SpaceView) {
        let has_grown = view.capacity_pages > self.room.view.capacity_pages;
        if view.taken_pages < self.room.view.taken_pages || has_grown {
            self.obstacles.forget_lack();
        }
        self.room.view = view;
        if self.memory.packed > self.room.view.copies_max() / 2 {
            let delta_memory_ratio = self.memory.deltas as f64 / self.memory.packed as f64;
            self.memory.unpacked_ratio = delta_memory_ratio.min(UNPACKED_MAX);
        }
        if self.learns_memory_split() {
            self.learn_memory_split();
        }
        self.refresh_limits();
    }

    /// Takes a group number that was never used before (rule D3).
    pub(crate) fn supply_group(&mut self, group: GroupId) {
        self.room.unused_groups.push(group);
    }

    pub(in crate::engine) fn take_page(&mut self) -> Step<LogicalPage> {
        self.room.unused_pages.pop().ok_or(Stop::Wait(Wait::Pages(1)))
    }

    pub(in crate::engine) fn take_group(&mut self) -> Step<GroupId> {
        self.room.unused_groups.pop().ok_or(Stop::Wait(Wait::Group))
    }

    /// Passes unless images in memory hold changes that a failure took back: they cannot be parted from
    /// the rest of the image.
    pub(in crate::engine) fn require_whole_images(&self) -> Step<()> {
        if self.has_torn_images { self.require_sound() } else { Ok(()) }
    }

    pub(crate) fn require_sound(&self) -> Step<()> {
        Ok(self.sound()?)
    }

    /// Passes while the device can be written.
    pub(crate) fn sound(&self) -> Result<(), EngineError> {
        self.fault.clone().map_or(Ok(()), Err)
    }

    pub(in crate::engine) fn drop_refs(&mut self, dropped: DroppedRefs, lsn: Lsn) {
        if self.runs.may_unload() {
            // Nothing is freed: a run that is loaded again drops the same references again.
            return;
        }
        for descriptor in dropped {
            self.trims.add(lsn, descriptor);
        }
    }

    /// A page has a newer image on flash: frames and reads under way of the old one are void.
    pub(in crate::engine) fn forget_page(&mut self, page: LogicalPage) {
        self.pool.remove(page);
        self.mark_stale(page);
        self.obstacles.found_again(page);
    }

    pub(in crate::engine) fn mark_stale(&mut self, page: LogicalPage) {
        self.reads.mark_stale(page);
        self.must_split.remove(&page);
    }
}
