//! Merging: which leaf's deltas meet their base next, and how the result becomes current.
//!
//! ```text
//!  choose ──▶ prepare ──▶ Write job ──▶ written ─┬─ one page, group none ──▶ installed
//!  (hand)     (images)    (no latch)             └─ several: install record in the log
//!                                                     └─ durable ──▶ Install job ──▶ installed
//! ```
//!
//! | transition | function | may be relied on afterwards |
//! | --- | --- | --- |
//! | choose | `choose_leaf` | nothing: only a hint |
//! | prepare | `prepare_merge` | images derive from durable deltas up to `upto` (D1), pages are busy |
//! | written | `written` | pages are on flash; a group's are not current yet |
//! | installed | `install` | mapping moved, merged deltas gone, later deltas stay |
//!
//! On a device that has to be synced, groups wait for a sync together, or for the sync of a commit
//! where one comes soon enough. Their records go into the log, and they are installed, in the order of
//! their writes. Splits of one tree go on beside each other as long as no node that one split writes is
//! changed by another. Only one merge job is in preparation or being written at a time, so the
//! comparison of the nodes already written with the nodes being prepared is exact.
//!
//! Victims, unless a guest chooses them (`guest`): a hand walks over the trees, one lowest inner node at a
//! time. Among the leaves below the nodes that the hand passes, the leaf whose merge frees most memory for
//! each page written is taken: the biggest group of a window, without any state a leaf, and bounded work a
//! choice.

use std::collections::VecDeque;

use flagstone_space::{Cause, GroupId, LogicalPage, Lsn, PageInfo, PinId};

use super::append::Append;
use super::checkpoint::CheckpointJob;
use super::claim::ClaimJob;
use super::dropped::Freed;
use super::memory_tuner::MergeCost;
use super::spill::SpillJob;
use super::value::Release;
use super::{Engine, Fetch, Merges, Step, Stop, Store, Table};
use crate::bugs::SeededBug;
use crate::delta::KeyRange;
use crate::error::EngineError;
use crate::lock::Xid;
use crate::log;
use crate::node::{Built, NodeView};
pub(super) use choose::grown_by;
pub use guest::{
    Change, Chosen, Extent, LeafPlace, MergeSearch, MergeView, Siblings, VictimChoice,
};

mod choose;
mod guest;
mod install;
mod prepare;
mod reshape;

/// One piece of background work that does I/O.
#[derive(Debug)]
pub(crate) enum Job {
    /// Program pages, then [`Engine::written`].
    Write(Box<WriteJob>),
    /// Make the pages of groups durable, up to this group's, then [`Engine::synced`].
    Sync(GroupId),
    /// Move the mapping to a group's pages, then [`Engine::install`], both at once.
    Install(Box<InstallJob>),
    /// Program a transaction's changes.
    Spill(SpillJob),
    /// Write or commit the leaves of a large transaction.
    Claim(ClaimJob),
    /// Free or switch pages after a commit; the flag says whether the commit is of this session.
    Release(Release, bool),
    /// Read a node of a table that was dropped, then [`Engine::visited`].
    Visit(Table, LogicalPage),
    /// Free pages of a table that was dropped, then [`Engine::freed`].
    Free(Freed),
    /// Let go of pages that only ended snapshots needed.
    Unpin(Vec<PinId>),
    /// Write a mapping checkpoint with this master record, then release the log's head.
    Checkpoint(CheckpointJob),
}

/// Result of the search for work.
#[derive(Debug)]
pub(crate) enum Next {
    /// I/O to be done.
    Job(Job),
    /// The engine moved on without I/O: look again.
    Stepped,
    /// Nothing can be done now.
    Idle,
}

/// Steps without I/O that one search takes, at most.
const STEPS_MAX: usize = 16;

/// One page to be programmed.
#[derive(Debug)]
pub(crate) struct PageWrite {
    pub(crate) page: LogicalPage,
    pub(crate) image: Vec<u8>,
    pub(crate) lsn: Lsn,
    /// The append by which the version on flash becomes the image, where the page takes one.
    pub(crate) append: Option<Append>,
    /// Metadata of the page on flash, once it is written.
    pub(crate) version: Option<PageInfo>,
}

impl PageWrite {
    pub(crate) const fn new(page: LogicalPage, image: Vec<u8>, lsn: Lsn) -> Self {
        Self { page, image, lsn, append: None, version: None }
    }
}

/// Pages to be programmed, all in one group.
#[derive(Debug)]
pub(crate) struct WriteJob {
    /// `GroupId::NONE`: one page, current as soon as it is written.
    pub(crate) group: GroupId,
    pub(crate) pages: Vec<PageWrite>,
    pub(crate) cause: Cause,
    /// The old version of this page must stay readable: pin it first.
    pub(crate) pin: Option<LogicalPage>,
    /// Whether the group's pages may become durable later, with those of other groups.
    pub(crate) may_wait: bool,
    /// Whether the pages are durable as soon as they are written.
    pub(crate) is_durable: bool,
    outcome: Outcome,
}

impl WriteJob {
    /// A job whose pages are current as soon as they are written, or whose group becomes durable at
    /// once.
    const fn new(group: GroupId, pages: Vec<PageWrite>, outcome: Outcome) -> Self {
        let (pin, may_wait, is_durable) = (None, false, false);
        Self { group, pages, cause: Cause::Data, pin, may_wait, is_durable, outcome }
    }

    /// For each leaf, the LSN of its old base and the LSN up to which this job merges; none for other
    /// jobs.
    fn waited(&self) -> Vec<(Lsn, Lsn)> {
        match &self.outcome {
            Outcome::Merged { upto, base_lsn, .. } => vec![(*base_lsn, *upto)],
            Outcome::Reshaped(reshape) => {
                reshape.old.iter().map(|old| (old.lsn, reshape.upto)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Key at which the rest of a leaf begins that merges in parts.
    pub(super) fn end(&self) -> Option<&[u8]> {
        let Outcome::Reshaped(reshape) = &self.outcome else { return None };
        reshape.rest.as_ref().map(|rest| rest.low.as_slice())
    }

    /// Pages that had a version before.
    fn pages_again(&self) -> usize {
        match &self.outcome {
            Outcome::Reshaped(reshape) => self.pages.len().saturating_sub(reshape.taken.len()),
            _ => self.pages.len(),
        }
    }
}

/// Effect of a written job on the engine.
#[derive(Debug)]
enum Outcome {
    /// A leaf's base moved up.
    Merged {
        table: Table,
        low: Vec<u8>,
        high: Option<Vec<u8>>,
        upto: Lsn,
        grown: i64,
        base_lsn: Lsn,
    },
    /// Flash caught up with a frame.
    CaughtUp,
    /// An inner node's base moved up.
    InnerWritten { table: Table, level: u8, low: Vec<u8>, high: Option<Vec<u8>>, upto: Lsn },
    /// The tree changed its shape.
    Reshaped(Box<Reshape>),
}

/// An inner node that was written: level, fences, and the LSN to which its image is complete.
type InnerRange = (u8, Vec<u8>, Option<Vec<u8>>, Lsn);

/// A change of a tree's shape.
#[derive(Debug)]
struct Reshape {
    table: Table,
    /// The new leaves hold all committed changes up to here that the bases in `old` lack.
    upto: Lsn,
    /// Inner nodes written together with the leaves: their structure deltas are in their images.
    written: Vec<InnerRange>,
    /// Node that `puts` and `deletes` change, and its level.
    parent: Option<LogicalPage>,
    level: u8,
    puts: Vec<(Vec<u8>, LogicalPage)>,
    deletes: Vec<Vec<u8>>,
    /// Nodes that merged into their neighbours.
    trims: Vec<LogicalPage>,
    /// Page numbers taken for the reshape.
    taken: Vec<LogicalPage>,
    dropped: Vec<Vec<u8>>,
    old: Vec<OldBase>,
    rest: Option<OldBase>,
    grown: i64,
    /// Bytes of deltas that go when it is installed.
    frees: usize,
    /// The transaction that its record commits.
    claim: Option<Xid>,
}

impl Reshape {
    /// Whether other splits of the tree may go on beside it: it adds nodes below a node that stays.
    fn is_shared(&self) -> bool {
        let adds = self.parent.is_some() && self.deletes.is_empty() && self.trims.is_empty();
        adds && self.rest.is_none() && self.claim.is_none()
    }

    /// Leaves that split by it; none where leaves join.
    fn leaves_split(&self) -> usize {
        if self.taken.len() >= self.old.len() { self.old.len() } else { 0 }
    }
}

/// A base that a reshape replaces.
#[derive(Debug)]
pub(super) struct OldBase {
    pub(super) page: LogicalPage,
    pub(super) low: Vec<u8>,
    pub(super) high: Option<Vec<u8>>,
    pub(super) lsn: Lsn,
}

impl OldBase {
    pub(super) fn range(&self) -> KeyRange<'_> {
        KeyRange { low: &self.low, high: self.high.as_deref() }
    }
}

/// A reshape whose pages are written and whose install record is in the log.
#[derive(Debug)]
pub(crate) struct InstallJob {
    /// LSN of the install record.
    pub(crate) lsn: Lsn,
    pub(crate) grouped: Grouped,
}

/// A reshape whose pages are written.
#[derive(Debug)]
pub(crate) struct Grouped {
    pub(crate) group: GroupId,
    pages: Vec<PageWrite>,
    reshape: Reshape,
}

impl Grouped {
    /// Pages of its group.
    pub(crate) fn page_count(&self) -> usize {
        self.pages.len()
    }

    /// Pages to be trimmed with the install.
    pub(crate) fn trims(&self) -> &[LogicalPage] {
        &self.reshape.trims
    }

    /// Whether the version of a page goes with the install.
    pub(crate) fn replaces(&self, page: LogicalPage) -> bool {
        self.pages.iter().any(|write| write.page == page) || self.reshape.trims.contains(&page)
    }

    /// Pages whose old versions snapshots need: to be pinned before the mapping moves.
    pub(crate) fn pins(&self) -> impl Iterator<Item = LogicalPage> + '_ {
        self.reshape.old.iter().map(|old| old.page)
    }
}

/// Merges of one tree under way that change its shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reshaping {
    #[default]
    None,
    /// So many merges that add nodes, each below another node or all below a node that has room for
    /// all.
    Splits(u32),
    /// A single merge that does more, or writes structure deltas that an inner node lacks.
    Alone,
}

impl Reshaping {
    pub(crate) fn is_none(self) -> bool {
        self == Self::None
    }

    /// One more merge began.
    fn begin(&mut self, is_shared: bool) {
        *self = match (*self, is_shared) {
            (Self::None, true) => Self::Splits(1),
            (Self::Splits(count), true) => Self::Splits(count + 1),
            _ => Self::Alone,
        };
    }

    /// A merge is installed, or given up.
    fn end(&mut self) {
        *self = match *self {
            Self::Splits(count) if count > 1 => Self::Splits(count - 1),
            _ => Self::None,
        };
    }
}

/// Where the search for victims goes on.
#[derive(Debug, Default)]
pub(crate) struct MergePlanner {
    tree: usize,
    key: Vec<u8>,
    /// Leaf chosen but not prepared yet: a page is being read for it, or the log written.
    target: Option<Target>,
    /// Leaves that are to be merged after the last one chosen.
    joined: VecDeque<Target>,
    /// Leaves that were written with nothing in them, each to be merged away.
    emptied: VecDeque<Target>,
    /// Frames that wait until all their changes are durable; busy meanwhile.
    waiting: Vec<(LogicalPage, Lsn)>,
    /// Bytes that recent merges freed, on average: a window is passed over if its best leaf frees less
    /// than a share of this.
    freed_average: usize,
    /// The search under way.
    search: Search,
    /// The leaf that the last merge found no page for.
    short: Option<LogicalPage>,
    /// A batch of merges is under way.
    is_in_batch: bool,
    /// A merge began that a longer log would have put off.
    wants_log: bool,
    /// Searches in a row without a leaf to merge, although no job was under way.
    empty_searches: u32,
    /// A merge waits for the reshapes under way.
    awaits_installs: bool,
}

/// A search for a victim, as far as it has come. The search is kept while a page is read for it: the
/// nodes of all its windows need not fit in memory together (rule D7).
#[derive(Debug, Default)]
struct Search {
    best: Option<(usize, Target)>,
    window_count: usize,
    /// Trees whose end the hand has reached.
    tree_count: usize,
}

impl MergePlanner {
    /// The search goes on at a key of the same tree, or with the next tree.
    fn pass_to(&mut self, next: Option<Vec<u8>>) {
        self.tree += usize::from(next.is_none());
        self.key = next.unwrap_or_default();
    }

    /// Where the search goes on: a tree and a key.
    pub(super) fn place(&self) -> (Table, &[u8]) {
        (Table::of(self.tree as u32), &self.key)
    }
}

#[derive(Clone, Debug)]
struct Target {
    table: Table,
    key: Vec<u8>,
    reason: Reason,
    /// Keys of leaves below the same node that free as much: where their leaves have to split too, all
    /// split together.
    beside: Vec<Vec<u8>>,
}

impl Target {
    const fn new(table: Table, key: Vec<u8>, reason: Reason) -> Self {
        Self { table, key, reason, beside: Vec::new() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Memory,
    Eager,
    /// Its merge saves a write beside another one.
    Joined,
    /// Nothing is left of the leaf.
    Emptied,
}

/// Searches without a result in a row that end a batch of merges.
const FRUITLESS_MAX: u32 = 64;

/// Leaves with nothing in them that are remembered, at most.
const EMPTIED_MAX: usize = 64;

/// Images of leaves that split together take at most one part in this many of the memory, and other
/// groups that are not installed as much again.
const IMAGES_SHARE: usize = 16;

/// Leaves that split together, at most: the engine's latch is held while their images are made.
const TOGETHER_MAX: usize = 16;

/// Leaves of memory that a batch of merges frees at least.
const BATCH_LEAVES_MIN: usize = 4;

/// Windows looked at for one victim, at most.
const WINDOWS_MAX: usize = 4;

/// A leaf below this share of its page, in percent, looks for a neighbour to merge with.
pub const UNDERFULL_PERCENT: usize = 25;

/// Merged neighbours fill at most this share of the page, in percent: room to grow again.
const MERGED_PERCENT: usize = 80;

impl Store {
    /// Groups that are not installed, where they wait for syncs; elsewhere an install follows at once.
    fn waiting_groups(&self) -> impl Iterator<Item = &Grouped> {
        self.open_groups().filter(|_| self.view.needs_sync)
    }

    /// Whether the images of groups that are not installed take all the memory that is meant for them.
    fn are_images_many(&self) -> bool {
        let pages: usize = self.waiting_groups().map(Grouped::page_count).sum();
        pages * self.payload_size > self.options.memory / IMAGES_SHARE
    }

    /// Memory of deltas, without the deltas that go when written groups are installed.
    fn deltas_staying(&self) -> usize {
        let leaving = self.waiting_groups().map(|job| job.reshape.frees).sum();
        (self.deltas_size + self.uncommitted_size).saturating_sub(leaving)
    }

    fn sync_job(&self) -> Option<Job> {
        self.unsynced.back().map(|last| Job::Sync(last.group))
    }

    fn may_install(&self, install: &InstallJob) -> bool {
        install.lsn <= self.durable() || self.bugs.has(SeededBug::InstallBeforeDurable)
    }
}

impl Merges {
    /// A merge waits until the reshapes under way are installed.
    pub(super) fn await_installs(&mut self) {
        self.planner.awaits_installs = !self.unsynced.is_empty();
        self.want_flush();
    }

    fn must_merge(&self) -> bool {
        let guest = self.guest.as_ref();
        let is_wanted = self.is_short() || guest.is_some_and(|guest| guest.has_due());
        is_wanted && self.has_deltas() && !self.obstacles.is_out_of_pages()
    }

    /// Whether deltas have to meet their pages for want of memory.
    fn is_short(&self) -> bool {
        self.deltas_staying() > self.merges_above()
            || self.planner.is_in_batch && !self.is_closing()
            || self.growth.is_reclaiming()
            || self.guest.as_ref().is_some_and(|guest| guest.is_under_way())
            || self.pool.is_dry(self.frames_max())
    }

    /// Begins a batch of merges when deltas reach their limit, and ends it when the share of the
    /// options is free again: groups grow meanwhile, and checkpoints find less to copy. There are no
    /// batches where that share is less than a few leaves, nor while a leaf finds no page to split:
    /// merges that are still possible are kept for the time when memory needs them (rule D7).
    fn note_batch(&mut self) {
        let (total, soft) = (self.deltas_staying(), self.merges_above());
        let batch = (soft as f64 * self.options.techniques.merge_batch) as usize;
        let is_worth =
            batch >= BATCH_LEAVES_MIN * self.payload_size && !self.obstacles.lacks_pages();
        let goes_on = is_worth && self.planner.is_in_batch && total > soft - batch;
        self.planner.wants_log |= total > soft && self.limits.is_log_short;
        self.planner.is_in_batch = total > soft || goes_on;
    }

    /// A search looks at a part of the tree: a batch ends when many searches in a row found no leaf
    /// although no job is under way, for only a lack of memory makes a merge necessary.
    fn note_empty_search(&mut self) {
        self.planner.empty_searches += 1;
        if self.planner.empty_searches >= FRUITLESS_MAX {
            self.planner.empty_searches = 0;
            self.planner.is_in_batch = false;
        }
    }

    /// Key at which the next keys begin behind a page that cannot be read, on the way to the leaf of
    /// `key`; none where every page on the way can be read, and none inside at the end of the tree.
    pub(super) fn behind_unreadable(&self, table: Table, key: &[u8]) -> Option<Option<Vec<u8>>> {
        let mut page = self.trees.get(table.id as usize)?.root?;
        let mut high = None;
        for _ in 0..=self.height {
            if self.obstacles.is_unreadable(page) {
                return Some(high);
            }
            let view = NodeView::trusted(&self.pool.frame(self.pool.peek(page)?).image);
            if view.is_leaf() {
                return None;
            }
            let (place, child) = view.child_for(key)?;
            if place + 1 < view.count() {
                high = Some(view.separator(place + 1));
            }
            page = child;
        }
        None
    }

    /// Whether no job under way can free a leaf for a merge.
    fn is_at_rest(&self) -> bool {
        self.busy.is_empty() && !self.has_installs() && self.durable() >= self.committed
    }

    /// Asks for a leaf to be merged as soon as possible: an insert did not fit the leaf.
    pub(crate) fn want_merge(&mut self, table: Table, key: &[u8]) {
        if self.planner.target.is_none() {
            self.planner.target = Some(Target::new(table, key.to_vec(), Reason::Eager));
        }
    }
}

impl Engine {
    /// Whether there is background work: whether `Runtime::work_begin` would find any.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.is_poisoned()
            && (self.installs.front().is_some_and(|install| self.may_install(install))
                || !self.unsynced.is_empty()
                || self.has_release()
                || self.has_drop_work()
                || self.has_claim_work()
                || self.has_bulk_work()
                || self.snapshots.has_unpins()
                || self.must_spill()
                || self.must_merge()
                || self.planner.target.is_some()
                || self.has_joined()
                || self.has_emptied()
                || self.must_evict()
                || self.must_load_runs()
                || self.must_checkpoint())
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
        self.planner.awaits_installs || self.are_images_many()
    }

    fn next_step(&mut self) -> Step<Next> {
        if self.installs.front().is_some_and(|install| self.may_install(install))
            && let Some(install) = self.installs.pop_front()
        {
            return Ok(Next::Job(Job::Install(Box::new(install))));
        }
        if let Some(freed) = self.take_freed() {
            return Ok(Next::Job(Job::Free(freed)));
        }
        if self.snapshots.has_unpins() {
            return Ok(Next::Job(Job::Unpin(self.snapshots.take_unpins())));
        }
        if let Some((release, is_new)) = self.take_release() {
            return Ok(Next::Job(Job::Release(release, is_new)));
        }
        match self.claim_step()? {
            Next::Idle => {}
            next => return Ok(next),
        }
        match self.run_commit_step()? {
            Next::Idle => {}
            next => return Ok(next),
        }
        if self.must_spill()
            && let Some(xid) = self.largest_transaction()
            && let Some(job) = self.plan_spill(xid)?
        {
            return Ok(Next::Job(Job::Spill(job)));
        }
        self.note_batch();
        let has_merges = self.must_merge()
            || self.planner.target.is_some()
            || self.has_joined()
            || self.has_emptied();
        let is_merging = has_merges && !self.goes_before_merges();
        if is_merging && let Some(job) = self.merge_job()? {
            self.commit_costs.merged(job.pages.len());
            if self.must_merge() {
                let waited = job.waited();
                let each = |pages: usize| pages as f64 / waited.len() as f64;
                let pages_again = each(job.pages_again());
                let pages_read = each(self.pool.held_count());
                for (before, upto) in &waited {
                    let age = log::distance(*before, *upto);
                    self.tuner.merged(MergeCost { pages_again, pages_read, age });
                }
            }
            return Ok(Next::Job(Job::Write(Box::new(job))));
        }
        if let Some(job) = self.evict_job()? {
            return Ok(Next::Job(Job::Write(Box::new(job))));
        }
        if self.must_load_runs() {
            self.load_next_run()?;
            return Ok(Next::Stepped);
        }
        match self.checkpoint_step()? {
            Next::Idle => {}
            next => return Ok(next),
        }
        match self.drop_step()? {
            Next::Idle if is_merging && !self.is_flush_wanted() => Ok(Next::Stepped),
            next => Ok(next),
        }
    }

    fn must_spill(&self) -> bool {
        self.uncommitted_size > self.limits.uncommitted && self.obstacles.no_spill().is_none()
    }

    /// Whether deltas take more memory than they may, and merges can help.
    pub(crate) fn is_full_of_changes(&self) -> bool {
        self.deltas_size > self.limits.deltas_hard && self.must_merge() && !self.is_poisoned()
    }

    /// Whether leaves were merged lately only because the log is short.
    pub(crate) fn take_log_wish(&mut self) -> bool {
        std::mem::take(&mut self.planner.wants_log)
    }

    /// There are no pages for the job that asked for them; false when the job cannot be put off.
    pub(crate) fn go_without_pages(&mut self) -> bool {
        match self.planner.short.take() {
            Some(page) => {
                self.planner.target = None;
                self.obstacles.note_lack(page)
            }
            None if self.claim_cannot_go_on() => true,
            None => self.obstacles.stop_spilling(EngineError::Full),
        }
    }

    /// Background work wanted a page that cannot be read, or that has the wrong content. The changes
    /// below the page stay in memory and are copied. Returns false when the damage was known and an
    /// operation needs the page all the same.
    pub(crate) fn goes_without(&mut self, page: LogicalPage, error: &EngineError) -> bool {
        if self.claim_cannot_go_on() {
            return true;
        }
        let is_new = self.obstacles.note_unreadable(page, error);
        let target = self.planner.target.take();
        let place = target.map(|target| self.place_of(target.table, &target.key));
        // A neighbour's merge may have wanted the page.
        let Some(Ok(at)) = place else { return is_new };
        is_new || self.obstacles.note_unreadable(at.page, error)
    }

    fn must_load_runs(&self) -> bool {
        // A run that is loaded while the last checkpoint is made would not be covered by it.
        let may_load = !self.is_replaying() && !self.is_closing();
        may_load && self.are_runs_due() && !self.must_merge() && !self.goes_before_merges()
    }
}

/// A merge whose result takes other pages than the leaf's own.
pub(super) struct ReshapePlan {
    pub(super) table: Table,
    pub(super) page: LogicalPage,
    pub(super) low: Vec<u8>,
    pub(super) high: Option<Vec<u8>>,
    pub(super) upto: Lsn,
    pub(super) pages: Vec<Built>,
    pub(super) dropped: Vec<Vec<u8>>,
    pub(super) old: Vec<OldBase>,
    /// The part of the leaf that did not merge: its last pages hold this part as it was, for keys from
    /// its low fence on.
    pub(super) rest: Option<OldBase>,
    pub(super) grown: i64,
    /// Bytes of deltas that go when it is installed.
    pub(super) frees: usize,
    /// Whether the leaf is written even if no neighbour joins it.
    pub(super) is_due: bool,
}
