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
//! choice. The next ones of the window follow while they free as much as recent merges did.

use std::collections::VecDeque;

use flagstone_space::{AppendRoom, LogicalPage, Lsn};

use crate::delta::KeyRange;
use crate::engine::merge::choose::Found;
use crate::engine::step::Step;
use crate::engine::store::catalog::Table;
use crate::engine::store::private_key::private_key;
use crate::engine::txn::Transactions;
use crate::error::EngineError;
use crate::node::NodeView;

pub(in crate::engine) mod append;
pub(in crate::engine) mod choose;
pub(in crate::engine) mod guest;
pub(in crate::engine) mod install;
pub(in crate::engine) mod prepare;
pub(in crate::engine) mod relocation;
pub(in crate::engine) mod reshape;

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
    /// Leaves of the last search that were not taken.
    found: Found,
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
    /// Leaves of the best window.
    found: Found,
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

    /// There is a new obstacle: leaves that were found before may be behind it, which only a search sees.
    fn forget_found(&mut self) {
        (self.found, self.search.found) = Default::default();
    }

    /// Where the search goes on: a tree and a key.
    pub(in crate::engine) fn place(&self) -> (Table, &[u8]) {
        (Table::of(self.tree as u32), &self.key)
    }
}

#[derive(Clone, Debug)]
struct Target {
    pub(in crate::engine) table: Table,
    pub(in crate::engine) key: Vec<u8>,
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

/// Layer 3 of the engine, the merges: which leaf's deltas meet their base next, and how the result becomes current.
#[derive(Debug)]
pub struct Merges {
    txns: Transactions,
    planner: MergePlanner,
    folding: Option<relocation::Folding>,
    /// Appends that leaves can take.
    append_room: AppendRoom,
}

stands_on!(Merges, txns: Transactions);

impl Merges {
    /// No merge yet.
    pub(in crate::engine) fn new(txns: Transactions) -> Self {
        Self {
            txns,
            planner: MergePlanner::default(),
            folding: None,
            append_room: AppendRoom::default(),
        }
    }

    /// Whether a leaf was chosen and not merged yet.
    pub(in crate::engine) fn has_chosen(&self) -> bool {
        self.planner.target.is_some() || self.has_joined() || self.has_emptied()
    }

    /// Whether merges wait for reshapes to be installed.
    pub(in crate::engine) fn must_install(&self) -> bool {
        self.planner.awaits_installs
    }

    /// The split of the leaf chosen last found no pages, and is given up: whether that is news about the
    /// leaf. None where no split asked for pages.
    pub(in crate::engine) fn give_up_split(&mut self) -> Option<bool> {
        let page = self.planner.short.take()?;
        self.planner.target = None;
        self.planner.forget_found();
        Some(self.obstacles.note_lack(page))
    }

    /// A page that the merge of the leaf chosen last wanted cannot be read, and the merge is given up:
    /// whether that is news about the page or the leaf.
    pub(in crate::engine) fn give_up_page(
        &mut self,
        page: LogicalPage,
        error: &EngineError,
    ) -> bool {
        let is_new = self.obstacles.note_unreadable(page, error);
        self.planner.forget_found();
        let target = self.planner.target.take();
        let place = target.map(|target| self.place_of(target.table, &target.key));
        // A neighbour's merge may have wanted the page.
        let Some(Ok(at)) = place else { return is_new };
        is_new || self.obstacles.note_unreadable(at.page, error)
    }

    /// Whether leaves were merged lately only because the log is short.
    pub(crate) fn take_log_wish(&mut self) -> bool {
        std::mem::take(&mut self.planner.wants_log)
    }

    /// A merge waits until the reshapes under way are installed.
    pub(in crate::engine) fn await_installs(&mut self) {
        self.planner.awaits_installs = !self.groups.written.is_empty();
        self.want_flush();
    }

    pub(in crate::engine) fn must_merge(&self) -> bool {
        let guest = self.guest.as_ref();
        let is_wanted = self.is_short() || guest.is_some_and(|guest| guest.has_due());
        is_wanted && self.has_deltas() && !self.obstacles.is_out_of_pages()
    }

    /// Whether deltas have to meet their pages for want of memory.
    fn is_short(&self) -> bool {
        self.deltas_staying() > self.merges_above()
            || self.planner.is_in_batch && !self.is_closing()
            || self.room.growth.is_reclaiming()
            || self.guest.as_ref().is_some_and(|guest| guest.is_under_way())
            || self.pool.is_dry(self.frames_max())
    }

    /// Begins a batch of merges when deltas reach their limit, and ends it when the share of the
    /// options is free again: groups grow meanwhile, and checkpoints find less to copy. There are no
    /// batches where that share is less than a few leaves, nor while a leaf finds no page to split:
    /// merges that are still possible are kept for the time when memory needs them (rule D7).
    pub(in crate::engine) fn note_batch(&mut self) {
        let (total, soft) = (self.deltas_staying(), self.merges_above());
        let batch = (soft as f64 * self.options.techniques.merge_batch) as usize;
        let is_worth =
            batch >= BATCH_LEAVES_MIN * self.payload_size && !self.obstacles.lacks_pages();
        let goes_on = is_worth && self.planner.is_in_batch && total > soft - batch;
        self.planner.wants_log |= total > soft && self.memory.limits.is_log_short;
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
    pub(in crate::engine) fn behind_unreadable(
        &self,
        table: Table,
        key: &[u8],
    ) -> Option<Option<Vec<u8>>> {
        let mut page = self.trees.get(table.id as usize)?.root?;
        let mut high = None;
        for _ in 0..=self.memory.height {
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
        self.groups.busy.is_empty()
            && !self.has_installs()
            && self.durable() >= self.frontier.committed
    }

    /// Asks for a leaf to be merged as soon as possible: an insert did not fit the leaf.
    pub(crate) fn want_merge(&mut self, table: Table, key: &[u8]) {
        if self.planner.target.is_none() {
            self.planner.target = Some(Target::new(table, key.to_vec(), Reason::Eager));
        }
    }

    /// Loads one more part, at the key where the search for leaves to merge goes on; false when there
    /// is none.
    pub(crate) fn load_next_run(&mut self) -> Step<bool> {
        let (table, key) = self.planner.place();
        let mut low = Vec::new();
        private_key(table, key, &mut low);
        let ahead = KeyRange { low: &low, high: None };
        let next = self.runs.next_left(ahead, Lsn(u64::MAX));
        let next = next.or_else(|| self.runs.next_left(KeyRange::ALL, Lsn(u64::MAX)));
        let Some((number, part)) = next else { return Ok(false) };
        self.load_part(number, part)?;
        Ok(true)
    }
}
