//! State of the engine: frames, locks, transactions, page numbers. Never does I/O.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use flagstone_engine::Reads;
use flagstone_engine::lock::{LockOutcome, LockTable, Mode, Target};
use flagstone_engine::node::{self as node_format, NodeView};
use flagstone_engine::{
    EngineError, EngineStats, Fetch, Fetched, Memory, Step, Stop, Table, Wait, Xid,
};
use flagstone_space::{GroupId, LogicalPage, Lsn};

use super::Config;
use crate::classic::pool::Pool;
use crate::pages::PageEngine;

/// Tree of tables: name to number and root.
pub(super) const CATALOG: u32 = 0;
/// Number of the first table.
pub(super) const TABLES: u32 = 2;
/// Root of the catalog.
const CATALOG_ROOT: LogicalPage = LogicalPage(0);

/// Frames that there are however little memory the options give.
const FRAMES_MIN: usize = 12;

/// Pages at the end of the pool's order that are written ahead of need: a share of the pool, within
/// bounds.
const CLEAN_SHARE: usize = 8;
const CLEAN_MIN: usize = 4;
const CLEAN_MAX: usize = 32;

/// A running transaction.
#[derive(Debug, Default)]
struct Transaction {
    /// Its number in the store, once a page of it is there.
    group: Option<GroupId>,
    /// Pages that it has changed.
    changed: BTreeSet<LogicalPage>,
    /// Page numbers that it took.
    taken: Vec<LogicalPage>,
    /// Trees that it made.
    trees: Vec<u32>,
    /// It has asked to commit: its changes are final.
    is_committing: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) commits: u64,
    pub(super) aborts: u64,
    pub(super) deadlocks: u64,
    pub(super) user_bytes: u64,
    pub(super) splits: u64,
}

/// Page numbers: the ones given out lie below `next`, but for the unused ones.
#[derive(Debug)]
struct Numbers {
    unused: BTreeSet<LogicalPage>,
    next: u32,
    /// Pages that there are.
    end: u32,
}

impl Numbers {
    /// The `count` numbers that would be taken next.
    fn peek(&self, count: usize) -> Option<Vec<LogicalPage>> {
        let fresh = (self.next..self.end).map(LogicalPage);
        let pages: Vec<_> = self.unused.iter().copied().chain(fresh).take(count).collect();
        (pages.len() == count).then_some(pages)
    }

    fn take(&mut self, page: LogicalPage) {
        if !self.unused.remove(&page) && page.0 >= self.next {
            self.unused.extend((self.next..page.0).map(LogicalPage));
            self.next = page.0 + 1;
        }
    }
}

/// State above the store. Never does I/O.
#[derive(Debug)]
pub struct Engine {
    pub(super) config: Config,
    pub(super) page_size: usize,
    pub(super) pool: Pool,
    locks: LockTable,
    /// Root page of each tree.
    pub(super) trees: BTreeMap<u32, LogicalPage>,
    transactions: BTreeMap<Xid, Transaction>,
    /// Transaction whose uncommitted change each page carries.
    owners: HashMap<LogicalPage, Xid>,
    numbers: Numbers,
    xid_next: u64,
    /// Ended by a deadlock; their owners do not know yet.
    doomed: BTreeSet<Xid>,
    /// Numbers in the store of transactions that were aborted.
    aborted: Vec<GroupId>,
    /// Transactions that have asked to commit and whose pages are not being written yet.
    committing: VecDeque<Xid>,
    woken: Vec<Xid>,
    reads: Reads,
    /// Changes made so far: the order of images.
    changes: Lsn,
    /// An operation waits for a frame.
    is_crowded: bool,
    pub(super) counts: Counts,
    is_poisoned: bool,
}

impl Engine {
    /// An engine over pages of `page_size` bytes, of which pages in `mapped` have content and pages
    /// from `end` on are not its own.
    pub(super) fn new(
        config: Config,
        page_size: usize,
        mapped: impl Iterator<Item = LogicalPage>,
        end: u32,
    ) -> Self {
        let mut numbers = Numbers { unused: BTreeSet::new(), next: CATALOG_ROOT.0 + 1, end };
        for page in mapped.filter(|page| (CATALOG_ROOT.0 + 1..end).contains(&page.0)) {
            numbers.unused.extend((numbers.next..page.0).map(LogicalPage));
            numbers.next = page.0 + 1;
        }
        Self {
            pool: Pool::new(page_size),
            page_size,
            config,
            locks: LockTable::default(),
            trees: BTreeMap::from([(CATALOG, CATALOG_ROOT)]),
            transactions: BTreeMap::new(),
            owners: HashMap::new(),
            numbers,
            xid_next: 1,
            doomed: BTreeSet::new(),
            aborted: Vec::new(),
            committing: VecDeque::new(),
            woken: Vec::new(),
            reads: Reads::default(),
            changes: Lsn::ZERO,
            is_crowded: false,
            counts: Counts::default(),
            is_poisoned: false,
        }
    }

    /// Bytes of the longest key.
    #[must_use]
    pub fn key_size_max(&self) -> usize {
        node_format::key_size_max(self.page_size)
    }

    /// Takes the transaction back.
    pub fn abort(&mut self, xid: Xid) {
        if self.doomed.remove(&xid) {
            return;
        }
        self.counts.aborts += u64::from(self.end(xid));
    }

    /// Forgets all that a transaction did (H5); false when there is none.
    fn end(&mut self, xid: Xid) -> bool {
        let Some(transaction) = self.transactions.remove(&xid) else { return false };
        for page in &transaction.changed {
            self.owners.remove(page);
            self.pool.remove(*page);
            self.mark_stale(*page);
        }
        for tree in &transaction.trees {
            self.trees.remove(tree);
        }
        self.numbers.unused.extend(transaction.taken);
        self.committing.retain(|other| *other != xid);
        self.aborted.extend(transaction.group);
        self.release(xid);
        true
    }

    fn release(&mut self, xid: Xid) {
        let woken = self.locks.release_all(xid);
        self.woken.extend(woken);
    }

    fn transaction(&mut self, xid: Xid) -> Step<&mut Transaction> {
        if self.is_poisoned {
            return Err(EngineError::Poisoned.into());
        }
        if self.doomed.remove(&xid) {
            return Err(EngineError::Deadlock.into());
        }
        let transaction = self.transactions.get_mut(&xid);
        transaction.filter(|it| !it.is_committing).ok_or(Stop::Error(EngineError::Ended))
    }

    /// Fails unless the transaction may go on.
    pub(super) fn check(&mut self, xid: Xid) -> Step<()> {
        self.transaction(xid).map(|_| ())
    }

    /// Acquires a page's lock or says why not; ends the youngest transaction of a deadlock.
    pub(super) fn lock(&mut self, xid: Xid, page: LogicalPage, mode: Mode) -> Step<()> {
        self.check(xid)?;
        loop {
            match self.locks.acquire(xid, Target::Page(page), mode) {
                LockOutcome::Granted => return Ok(()),
                LockOutcome::Wait => return Err(Stop::Wait(Wait::Lock)),
                LockOutcome::Deadlock { victim } => {
                    self.counts.deadlocks += 1;
                    self.end(victim);
                    if victim == xid {
                        return Err(EngineError::Deadlock.into());
                    }
                    self.doomed.insert(victim);
                    self.woken.push(victim);
                }
            }
        }
    }

    /// Waits until the page carries no change of another transaction (H2), for the lock `mode`: a
    /// transaction that will need the page exclusively asks for this mode at once, or two waiting
    /// transactions would wait for each other.
    pub(super) fn see(&mut self, xid: Xid, page: LogicalPage, mode: Mode) -> Step<()> {
        match self.owners.get(&page) {
            Some(owner) if *owner != xid => self.lock(xid, page, mode),
            _ => Ok(()),
        }
    }

    /// Replaces the image of a page whose lock is held (H1).
    pub(super) fn change(&mut self, xid: Xid, page: LogicalPage, image: Vec<u8>) {
        let stamp = self.own(xid, page);
        self.pool.change(page, stamp, image);
    }

    /// Changes bytes of a page whose lock is held (H1).
    pub(super) fn patch_page(&mut self, xid: Xid, page: LogicalPage, offset: usize, bytes: &[u8]) {
        let stamp = self.own(xid, page);
        self.pool.patch(page, stamp, offset, bytes);
    }

    fn own(&mut self, xid: Xid, page: LogicalPage) -> Lsn {
        if self.owners.insert(page, xid).is_none() {
            self.mark_stale(page);
        }
        if let Some(transaction) = self.transactions.get_mut(&xid) {
            transaction.changed.insert(page);
        }
        self.changes = Lsn(self.changes.0 + 1);
        self.changes
    }

    /// The page numbers that would be taken next.
    pub(super) fn next_pages(&self, count: usize) -> Step<Vec<LogicalPage>> {
        self.numbers.peek(count).ok_or(Stop::Error(EngineError::Full))
    }

    /// Keeps `spare_count` page numbers and gives up the ones behind them; gives the first of
    /// these.
    pub(super) fn give_up_pages(&mut self, spare_count: u32) -> u32 {
        let numbers = &mut self.numbers;
        numbers.end = numbers.next.saturating_add(spare_count).min(numbers.end);
        numbers.end
    }

    /// Takes a page number, until the transaction ends.
    pub(super) fn take_page(&mut self, xid: Xid, page: LogicalPage) {
        self.numbers.take(page);
        if let Some(transaction) = self.transactions.get_mut(&xid) {
            transaction.taken.push(page);
        }
    }

    /// A tree that the transaction made.
    pub(super) fn add_tree(&mut self, xid: Xid, tree: u32, root: LogicalPage) {
        self.trees.insert(tree, root);
        if let Some(transaction) = self.transactions.get_mut(&xid) {
            transaction.trees.push(tree);
        }
    }

    /// The root of a tree.
    pub(super) fn root(&self, tree: u32) -> Step<LogicalPage> {
        self.trees.get(&tree).copied().ok_or(Stop::Error(EngineError::NoTable))
    }

    pub(super) fn tree_of(table: Table) -> u32 {
        flagstone_engine::id_of(table)
    }
}

/// Frames.
impl Engine {
    /// The image of a page, or a miss that is noted as under way.
    pub(super) fn image(&mut self, page: LogicalPage) -> Step<&[u8]> {
        if self.pool.peek(page).is_none() {
            return Err(self.miss(page));
        }
        let frame = self.pool.get(page);
        frame.map(|frame| frame.image.as_slice()).ok_or(Stop::Wait(Wait::Memory))
    }

    fn miss(&mut self, page: LogicalPage) -> Stop {
        if !self.reads.contains(page) {
            if let Err(stop) = self.make_room(1) {
                return stop;
            }
            self.pool.misses += 1;
        }
        Stop::Miss(Fetch::Page(page, self.reads.begin(page)))
    }

    /// Makes room for `count` frames beside the frames being read.
    pub(super) fn make_room(&mut self, count: usize) -> Step<()> {
        let wanted = (self.reads.page_count() + count) * self.pool.frame_size();
        self.is_crowded = !self.pool.shrink(self.frames_limit().saturating_sub(wanted));
        if self.is_crowded { Err(Stop::Wait(Wait::Memory)) } else { Ok(()) }
    }

    fn frames_limit(&self) -> usize {
        self.config.options.memory.max(FRAMES_MIN * self.pool.frame_size())
    }

    /// A read that was asked for failed: nothing will come.
    pub(super) fn fetch_failed(&mut self, fetch: Fetch) {
        if let Fetch::Page(page, number) = fetch {
            self.reads.end(page, number);
        }
    }

    fn mark_stale(&mut self, page: LogicalPage) {
        self.reads.mark_stale(page);
    }

    /// Dirty pages that should be written now: the pool's oldest, when it is nearly full.
    pub(super) fn crowding_pages(&self) -> Vec<LogicalPage> {
        let frames = self.frames_limit() / self.pool.frame_size().max(1);
        let depth = (frames / CLEAN_SHARE).clamp(CLEAN_MIN, CLEAN_MAX);
        let is_full = self.pool.bytes() + depth * self.pool.frame_size() > self.frames_limit();
        if !is_full && !self.is_crowded {
            return Vec::new();
        }
        let is_idle = |page: &LogicalPage| {
            let owner = self.owners.get(page).and_then(|owner| self.transactions.get(owner));
            owner.is_some_and(|owner| !owner.is_committing)
        };
        self.pool.old_dirty(depth).map(|(page, _)| page).filter(is_idle).collect()
    }
}

impl PageEngine for Engine {
    fn begin(&mut self) -> Xid {
        let xid = Xid(self.xid_next);
        self.xid_next += 1;
        self.transactions.insert(xid, Transaction::default());
        xid
    }

    fn commit(&mut self, xid: Xid) -> Step<Lsn> {
        let transaction = self.transaction(xid)?;
        if transaction.changed.is_empty() {
            self.transactions.remove(&xid);
            self.release(xid);
            return Ok(Lsn::ZERO);
        }
        transaction.is_committing = true;
        self.committing.push_back(xid);
        Ok(Lsn(xid.0))
    }

    fn is_committed(&self, lsn: Lsn) -> bool {
        !self.transactions.contains_key(&Xid(lsn.0))
    }

    fn fill(&mut self, fetched: Fetched) -> Result<(), EngineError> {
        let Fetch::Page(page, number) = fetched.fetch else { return Ok(()) };
        if self.reads.end(page, number) {
            return Ok(());
        }
        let image = match fetched.found {
            Some((_, image)) => image,
            None if page == CATALOG_ROOT => node_format::empty_leaf(CATALOG, self.page_size),
            None => {
                let check = "page is referred to but was never written";
                return Err(EngineError::Corrupt { page, check });
            }
        };
        let check = "node does not parse";
        NodeView::parse(&image).map_err(|_| EngineError::Corrupt { page, check })?;
        self.pool.fill(page, self.changes, image);
        Ok(())
    }

    fn is_flush_wanted(&self) -> bool {
        !self.is_poisoned && !self.committing.is_empty()
    }

    fn take_woken(&mut self) -> Vec<Xid> {
        std::mem::take(&mut self.woken)
    }
}

/// Questions of the machine.
impl Engine {
    /// The transaction whose uncommitted change a page carries, with its number in the store.
    pub(super) fn owner(&self, page: LogicalPage) -> Option<(Xid, Option<GroupId>)> {
        let xid = *self.owners.get(&page)?;
        Some((xid, self.transactions.get(&xid)?.group))
    }

    /// The store calls a transaction `group`.
    pub(super) fn named(&mut self, xid: Xid, group: GroupId) {
        if let Some(transaction) = self.transactions.get_mut(&xid) {
            transaction.group = Some(group);
        }
    }

    /// Numbers in the store of transactions that were aborted, each once.
    pub(super) fn take_aborted(&mut self) -> Vec<GroupId> {
        std::mem::take(&mut self.aborted)
    }

    /// The next commit whose pages are to be written: its transaction, its number in the store, and
    /// the images that the store lacks.
    pub(super) fn commit_begin(&mut self) -> Option<CommitJob> {
        let xid = self.committing.pop_front()?;
        let transaction = self.transactions.get(&xid)?;
        let dirty = |page: &LogicalPage| {
            let frame = self.pool.peek(*page).filter(|frame| frame.rec_lsn.is_some())?;
            Some((*page, frame.image.clone()))
        };
        let pages: Vec<_> = transaction.changed.iter().filter_map(dirty).collect();
        let group = transaction.group;
        pages.iter().for_each(|(page, _)| self.pool.write_begun(*page));
        Some(CommitJob { xid, group, pages })
    }

    /// The commit of a transaction is on flash (H4).
    pub(super) fn commit_end(&mut self, xid: Xid) {
        let Some(transaction) = self.transactions.remove(&xid) else { return };
        for page in &transaction.changed {
            self.pool.write_ended(*page);
            self.owners.remove(page);
        }
        self.counts.commits += 1;
        self.release(xid);
    }

    /// The commit could not be written for want of room: the transaction is aborted.
    pub(super) fn commit_failed(&mut self, xid: Xid) {
        self.end(xid);
    }

    /// Whether an earlier device failure made the engine read-only.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.is_poisoned
    }

    /// The device failed while a page was written.
    pub(super) fn poison(&mut self) {
        self.is_poisoned = true;
        self.woken.extend(self.transactions.keys().copied());
    }

    /// Counters so far; `mapping` is the memory of the store's tables.
    #[must_use]
    pub fn stats(&self, mapping: usize) -> EngineStats {
        let bases = self.pool.bytes_peak();
        let counts = &self.counts;
        EngineStats {
            commits: counts.commits,
            aborts: counts.aborts,
            deadlocks: counts.deadlocks,
            user_bytes: counts.user_bytes,
            pool_hits: self.pool.hits,
            pool_misses: self.pool.misses,
            leaf_references: 0,
            leaf_misses: 0,
            reshapes: counts.splits,
            memory: Memory { bases, groups: 0, deltas: 0, both: bases, mapping },
            ..EngineStats::default()
        }
    }
}

/// A commit whose pages are to be written.
#[derive(Debug)]
pub(super) struct CommitJob {
    pub(super) xid: Xid,
    pub(super) group: Option<GroupId>,
    pub(super) pages: Vec<(LogicalPage, Vec<u8>)>,
}
