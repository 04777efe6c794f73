//! The engine: all state above the space floor, as one value that never does I/O.
//!
//! Five layers, each a type that has the layer below: `Store`, `Transactions`, `Merges`, `Commits`,
//! `Recovery`. This file owns the order of background work, and the failure of a device; `Engine` has every
//! method of the layers. Never reads or programs a page, never waits, never looks at a clock: an
//! operation completes, or returns a [`Stop`] that names the missing condition, and is called again
//! once [`crate::Runtime`] or the lab's event loop has seen to that condition. That is why threads and
//! the lab's virtual clients run the very same code, and why no latch is ever held across I/O.
//!
//! Invariants:
//! - **E1** A delta in a tree is committed; uncommitted changes live in their transaction only, so
//!   an abort forgets them and does nothing else.
//! - **E2** A logical page is its base with the deltas above the base's LSN applied in LSN order.
//!   Deltas at or below that LSN are dropped when they meet the base (rule D2).
//! - **E3** A page that counts as soon as it is programmed derives from durable commits only; other pages
//!   count with the record that names their group (rule D1).
//! - **E4** Between the moment a job takes a page and the moment the page is installed, the page is
//!   busy: no other job prepares an image of it.
//! - **E5** A poisoned engine appends nothing to the log and hands out no job (rule D8).

use flagstone_space::LogicalPage;

use crate::engine::commit::Commits;
use crate::engine::commit::job::Next;
use crate::engine::merge::Merges;
use crate::engine::recovery::Recovery;
use crate::engine::store::Store;
use crate::engine::store::memory_tuner::MergeCost;
use crate::engine::txn::Transactions;
use crate::error::EngineError;
use crate::lock::Xid;
use crate::log;
use crate::log::{Flush, LogWriter};
use crate::options::Options;

/// A layer has all that the layer below has: methods of the store are methods of every layer. None can
/// name a layer above.
macro_rules! stands_on {
    ($upper:ty, $field:ident: $lower:ty) => {
        impl std::ops::Deref for $upper {
            type Target = $lower;

            fn deref(&self) -> &$lower {
                &self.$field
            }
        }

        impl std::ops::DerefMut for $upper {
            fn deref_mut(&mut self) -> &mut $lower {
                &mut self.$field
            }
        }
    };
}

mod commit;
mod merge;
mod recovery;
mod step;
mod store;
mod txn;

pub(crate) use commit::job::{CheckpointJob, ClaimJob, Job};
pub use merge::UNDERFULL_PERCENT;
pub use merge::guest::{Chosen, Extent, MergeSearch, Siblings, VictimChoice};
pub(crate) use recovery::master::Master;
pub(crate) use recovery::restart::{MeetPoint, Replay, ReplayEffects};
pub use step::{Fetch, Fetched, Step, Stop, Wait};
pub(crate) use store::append::Append;
pub use store::catalog::{CATALOG, Table, id_of, table_with_id};
pub(crate) use store::catalog::{CATALOG_ROOT, is_name, named_root, named_table, tombstone};
pub(crate) use store::descent::{DEPTH_MAX, Seek, check_node, end_of_child};
pub(crate) use store::dropped::Visited;
pub(crate) use store::groups::{InstallJob, PageWrite, WriteJob};
pub use store::guest::{Change, LeafPlace, MergeView};
pub(crate) use store::owner::{Identity, TableOwner};
pub use store::pool::{LEAVES_MIN, lru::Lru};
pub(crate) use store::private_key::split_private_key;
pub use store::read::Read;
pub use store::reads::{ReadNumber, Reads};
pub(crate) use store::room::SpaceView;
pub(crate) use store::run::record::{Input, MasterRun};
pub(crate) use store::run::{entries as run_entries, is_rolled_back};
pub use store::scan::{Direction, Row, RowValue, ScanRange, successor};
pub use store::shared_read::{LeafRows, LeafValue};
pub use store::snapshot::SnapshotId;
pub(crate) use store::stats::NodeOutline;
pub use store::stats::{EngineStats, Memory};
pub use store::value::Descriptor;
pub(crate) use store::value::{Release, value_page, value_page_content};
pub(crate) use txn::dropped::Freed;
pub(crate) use txn::spill::SpillJob;
pub use txn::transaction::{Savepoint, Ticket};
pub(crate) use txn::value::ValuePlan;

/// Steps without I/O that one search takes, at most.
const STEPS_MAX: usize = 16;

/// A kind of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// Move the mapping to the pages of a group.
    Install,
    /// Free pages of a dropped table.
    Free,
    /// Let go of old pages that only ended snapshots needed.
    Unpin,
    /// Free or switch pages after a commit.
    Release,
    /// Commit a transaction with its leaves.
    Claim,
    /// Commit a transaction as a run.
    RunCommit,
    /// Write changes of the largest transaction.
    Spill,
    /// Merge a leaf.
    Merge,
    /// Write a frame that is ahead of flash.
    Evict,
    /// Load a part of a run.
    LoadRuns,
    /// Go on with a checkpoint.
    Checkpoint,
    /// Go on with the release of a dropped table.
    Drop,
}

/// Background work in the order in which it is done: room that only has to be given back, commits under
/// way, memory, the log.
const ORDER: [Task; 12] = [
    Task::Install,
    Task::Free,
    Task::Unpin,
    Task::Release,
    Task::Claim,
    Task::RunCommit,
    Task::Spill,
    Task::Merge,
    Task::Evict,
    Task::LoadRuns,
    Task::Checkpoint,
    Task::Drop,
];

/// All state above the space floor, and the order of background work. See the module's head.
#[derive(Debug)]
pub struct Engine {
    recovery: Recovery,
}

stands_on!(Engine, recovery: Recovery);

impl Engine {
    /// The sync that makes all written groups durable, if there are any.
    fn sync_job(&self) -> Option<Job> {
        self.groups.written.back().map(|last| Job::Sync(last.group))
    }

    /// Whether there is background work: whether `Runtime::work_begin` would find any.
    #[must_use]
    pub fn has_work(&self) -> bool {
        let is_due = |task: &Task| self.is_due(*task);
        !self.is_poisoned() && (!self.groups.written.is_empty() || ORDER.iter().any(is_due))
    }

    /// Whether there is work of one kind.
    fn is_due(&self, task: Task) -> bool {
        match task {
            Task::Install => {
                self.groups.recorded.front().is_some_and(|install| self.may_install(install))
            }
            Task::Free => self.has_durable_freed(),
            Task::Unpin => self.snapshots.has_unpins(),
            Task::Release => self.has_release(),
            Task::Claim => self.has_claim_work(),
            Task::RunCommit => self.has_run_commits(),
            Task::Spill => self.must_spill(),
            Task::Merge => self.must_merge() || self.has_chosen(),
            Task::Evict => self.must_evict(),
            Task::LoadRuns => self.must_load_runs(),
            Task::Checkpoint => self.must_checkpoint(),
            Task::Drop => self.has_drop_work(),
        }
    }

    /// The next piece of background work; none when nothing can be done before a flush, the end of a
    /// read, or a commit.
    ///
    /// # Errors
    ///
    /// Stops like any operation: see to it and call again.
    pub(crate) fn next_job(&mut self) -> Step<Option<Job>> {
        self.pool.set_background(true);
        let next = self.search_job();
        self.pool.set_background(false);
        self.hold_for(&next);
        next
    }

    /// The search for a job came to `next`: pages that were read for the job stay until it is found.
    fn hold_for<T>(&mut self, next: &Step<T>) {
        match next {
            Err(Stop::Miss(Fetch::Page(page, _) | Fetch::Grouped(_, page))) => {
                self.pool.hold(*page)
            }
            Err(Stop::Wait(_)) => {}
            _ => self.pool.let_all_go(),
        }
    }

    fn search_job(&mut self) -> Step<Option<Job>> {
        for _ in 0..STEPS_MAX {
            if self.is_poisoned() {
                break;
            }
            if self.must_sync()
                && let Some(job) = self.sync_job()
            {
                return Ok(Some(job));
            }
            match self.next_step()? {
                Next::Job(job) => return Ok(Some(job)),
                Next::Stepped => {}
                Next::Idle => break,
            }
        }
        // No other work is to be done before.
        Ok(self.sync_job())
    }

    /// Whether groups have to become durable before other work goes on.
    fn must_sync(&self) -> bool {
        self.must_install() || self.are_images_many()
    }

    /// The first piece of work in the order of all kinds.
    fn next_step(&mut self) -> Step<Next> {
        let mut is_merging = false;
        // Merges alone could go on for ever, and leave the cycle to a commit that finds the log full.
        let first = (self.must_checkpoint() && self.is_checkpoint_behind() && !self.must_evict())
            .then_some(Task::Checkpoint);
        let of_merges = ORDER.iter().position(|task| *task == Task::Merge).unwrap_or(0);
        let (before, after) = ORDER.split_at(of_merges);
        for task in before.iter().chain(&first).chain(after) {
            match self.step(*task, &mut is_merging)? {
                Next::Idle => {}
                next => return Ok(next),
            }
        }
        // The next search for a leaf goes on where this one ended.
        let goes_on = is_merging && !self.is_flush_wanted();
        Ok(if goes_on { Next::Stepped } else { Next::Idle })
    }

    /// A piece of work of one kind, if there is any; notes whether leaves may be merged.
    fn step(&mut self, task: Task, is_merging: &mut bool) -> Step<Next> {
        let job = match task {
            Task::Claim => return self.claim_step(),
            Task::RunCommit => return self.run_commit_step(),
            Task::Merge => {
                self.note_batch();
                *is_merging = self.is_due(task) && !self.goes_before_merges();
                return if *is_merging { self.merge() } else { Ok(Next::Idle) };
            }
            Task::Checkpoint => return self.checkpoint_step(),
            Task::Drop => return self.drop_step(),
            Task::LoadRuns if self.must_load_runs() => {
                self.load_next_run()?;
                return Ok(Next::Stepped);
            }
            Task::LoadRuns => None,
            Task::Install if self.is_due(task) => {
                self.groups.recorded.pop_front().map(|install| Job::Install(Box::new(install)))
            }
            Task::Install => None,
            Task::Free => self.take_freed().map(Job::Free),
            Task::Unpin if self.is_due(task) => Some(Job::Unpin(self.snapshots.take_unpins())),
            Task::Unpin => None,
            Task::Release => {
                self.take_release().map(|(release, is_new)| Job::Release(release, is_new))
            }
            Task::Spill => match self.largest_transaction().filter(|_| self.must_spill()) {
                Some(xid) => self.plan_spill(xid)?.map(Job::Spill),
                None => None,
            },
            Task::Evict => self.evict_job()?.map(|job| Job::Write(Box::new(job))),
        };
        Ok(job.map_or(Next::Idle, Next::Job))
    }

    /// Merges a leaf; nothing where none can be merged now.
    fn merge(&mut self) -> Step<Next> {
        let Some(job) = self.merge_job()? else { return Ok(Next::Idle) };
        self.commit_costs.merged(job.pages.len());
        if self.must_merge() {
            let waited = job.waited();
            let each = |pages: usize| pages as f64 / waited.len() as f64;
            let pages_again = each(job.pages_again());
            let pages_read = each(self.pool.held_count());
            for (before, upto) in &waited {
                let age = log::distance(*before, *upto);
                self.memory.tuner.merged(MergeCost { pages_again, pages_read, age });
            }
        }
        Ok(Next::Job(Job::Write(Box::new(job))))
    }

    fn must_spill(&self) -> bool {
        self.memory.uncommitted > self.memory.limits.uncommitted
            && self.obstacles.no_spill().is_none()
    }

    /// Whether deltas take more memory than they may, and merges can help.
    pub(crate) fn is_full_of_changes(&self) -> bool {
        self.memory.deltas > self.memory.limits.deltas_hard
            && self.must_merge()
            && !self.is_poisoned()
    }

    /// There are no pages for the job that asked for them; false when the job cannot be put off.
    pub(crate) fn go_without_pages(&mut self) -> bool {
        match self.give_up_split() {
            Some(is_new) => is_new,
            None if self.claim_cannot_go_on() => true,
            None => self.obstacles.stop_spilling(EngineError::Full),
        }
    }

    /// Background work wanted a page that cannot be read, or that has the wrong content. The changes
    /// below the page stay in memory and are copied. Returns false when the damage was known and an
    /// operation needs the page all the same.
    pub(crate) fn goes_without(&mut self, page: LogicalPage, error: &EngineError) -> bool {
        self.claim_cannot_go_on() || self.give_up_page(page, error)
    }

    fn must_load_runs(&self) -> bool {
        // A run that is loaded while the last checkpoint is made would not be covered by it.
        let may_load = !self.is_replaying() && !self.is_closing();
        may_load && self.are_runs_due() && !self.must_merge() && !self.goes_before_merges()
    }

    /// The counts so far.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        let counts = &self.counts;
        EngineStats {
            commits: counts.commits,
            aborts: counts.aborts,
            deadlocks: counts.deadlocks,
            user_bytes: counts.user_bytes,
            log_bytes: counts.log_bytes,
            pool_hits: self.pool.hits,
            pool_misses: self.pool.misses,
            leaf_references: self.pool.references.found,
            leaf_misses: self.pool.references.missed,
            merges: counts.merges,
            merged_deltas: counts.merged_deltas,
            folds: counts.folds,
            folded_deltas: counts.folded_deltas,
            reshapes: counts.splits,
            split_together: counts.split_together,
            reshapes_at_once: counts.reshapes_at_once,
            run_commits: counts.run_commits,
            merges_in_parts: counts.merges_in_parts,
            checkpoints: counts.checkpoints,
            copied_deltas: counts.copied_deltas,
            spilled_pages: counts.spilled_pages,
            claimed_pages: counts.claimed_pages,
            flag_commits: counts.flag_commits,
            deltas: self.trees.iter().map(|tree| tree.deltas.len() as u64).sum(),
            memory: Memory {
                bases: self.pool.bytes_peak(),
                deltas: self.memory.deltas_peak,
                both: self.memory.peak,
                groups: self.guest.as_ref().map_or(0, |guest| guest.bytes_peak())
                    + self.pool.order_bytes_peak(),
                mapping: self.room.view.mapping_bytes,
            },
        }
    }

    /// An engine over a space floor whose logical pages carry `payload_size` bytes.
    pub(crate) fn new(options: Options, payload_size: usize, log: LogWriter) -> Self {
        let (memory, chain) = (options.memory, log.chain());
        let store = Store::new(options, payload_size, log);
        let txns = Transactions::new(store, memory);
        let commits = Commits::new(Merges::new(txns));
        Self { recovery: Recovery::new(commits, chain) }
    }

    /// The flush in flight is durable.
    pub(crate) fn flushed(&mut self, flush: Flush) {
        self.frontier.log.completed(flush);
        if let Some(point) = self.frontier.flush_in_flight.take() {
            self.durable_chain = point.chain;
            // Only groups that have to be synced wait here, and a flush syncs every page written before
            // it.
            point.group.into_iter().for_each(|last| self.synced(last));
        }
        self.refresh_boundaries();
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
        if durable < self.frontier.committed {
            let open = self.transactions.iter().filter(|(xid, own)| {
                own.claimed.is_none() && own.doom.is_none() && !self.is_claiming(**xid)
            });
            let open: Vec<Xid> = open.map(|(xid, _)| *xid).collect();
            open.into_iter().for_each(|xid| self.doom(xid, fault.clone()));
        }
    }
}
