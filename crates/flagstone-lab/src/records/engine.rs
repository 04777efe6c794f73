//! State of the engine: frames, locks, transactions, page numbers, the log buffer. Never does I/O.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use flagstone_engine::Reads;
use flagstone_engine::lock::{LockOutcome, LockTable, Mode, Target};
use flagstone_engine::node::{self as node_format};
use flagstone_engine::{EngineError, EngineStats, Fetched, Memory, Step, Stop, Table, Wait, Xid};
use flagstone_space::{GroupId, LogicalPage, Lsn};

use super::Config;
use super::log::{Buffer, Record, Sealed};
use super::page::{self, Before, Side};
use crate::classic::pool::Pool;
use crate::pages::PageEngine;

/// Tree of tables: name to number and root.
pub(super) const CATALOG: u32 = 0;
/// Number of the first table.
pub(super) const TABLES: u32 = 2;
/// Root of the catalog.
pub(super) const CATALOG_ROOT: LogicalPage = LogicalPage(0);

/// Lock numbers of a page: one for each transaction that it may carry.
const SLOT_STRIDE: u32 = 8;

/// A running transaction.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// Pages with pending records of the transaction.
    pub(super) pages: BTreeSet<LogicalPage>,
    /// Places that it holds among the transactions of a page.
    slots: Vec<(LogicalPage, usize)>,
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
    pub(super) checkpoints: u64,
    pub(super) stolen: u64,
    /// Commits that needed no log write.
    pub(super) by_flags: u64,
    /// Times that a page carried as many transactions as it may, and one more came.
    pub(super) crowded_pages: u64,
    /// Versions written so that a value before is on flash (H1).
    pub(super) befores_written: u64,
    /// Reads that merged several versions, and the most versions merged.
    pub(super) merged_reads: u64,
    pub(super) merged_max: u64,
}

/// The store's sizes that the engine needs to know.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// Bytes of a version's content.
    pub(super) content_size: usize,
    /// Transactions that a version may carry.
    pub(super) members_max: usize,
    pub(super) first_xid: GroupId,
    /// Log records of this session come after it.
    pub(super) lsn: Lsn,
    pub(super) mapped: Vec<LogicalPage>,
    /// Pages that there are.
    pub(super) end: u32,
    /// Blocks of the log beyond which a checkpoint is due.
    pub(super) log_blocks_max: u32,
}

/// The last checkpoint (H5).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Checkpoint {
    /// Pages that lack records up to here were noted.
    pub(super) lsn: Lsn,
    /// Batch of the log that it came before.
    pub(super) batch: u64,
    /// Commits since.
    pub(super) commits: u64,
}

/// State above the store. Never does I/O.
#[derive(Debug)]
pub struct Engine {
    pub(super) config: Config,
    pub(super) content_size: usize,
    /// Bytes of a node.
    pub(super) node_size: usize,
    members_max: usize,
    pub(super) pool: Pool,
    pub(super) sides: HashMap<LogicalPage, Side>,
    locks: LockTable,
    /// Transactions with pending records on a page (at most `members_max`).
    slots: HashMap<LogicalPage, Vec<Option<Xid>>>,
    /// Root page of each tree.
    pub(super) trees: BTreeMap<u32, LogicalPage>,
    pub(super) transactions: BTreeMap<Xid, Transaction>,
    unused: BTreeSet<LogicalPage>,
    page_next: u32,
    page_end: u32,
    xid_next: u64,
    /// Ended by a deadlock; their owners do not know yet.
    doomed: BTreeSet<Xid>,
    aborted: Vec<GroupId>,
    committing: VecDeque<Xid>,
    woken: Vec<Xid>,
    pub(super) reads: Reads,
    pub(super) log: Buffer,
    pub(super) durable: Lsn,
    /// An operation waits for the log to be durable up to here.
    pub(super) wanted: Lsn,
    /// Committed by their record; flags are unset.
    pub(super) unflagged: VecDeque<Xid>,
    pub(super) checkpoint: Checkpoint,
    /// Blocks of the log.
    pub(super) log_blocks: u32,
    pub(super) log_blocks_max: u32,
    pub(super) is_crowded: bool,
    pub(super) counts: Counts,
    is_poisoned: bool,
}

impl Engine {
    pub(super) fn new(config: Config, shape: &Shape) -> Self {
        let node_size = shape.content_size - page::section_size(shape.content_size);
        let mut engine = Self {
            pool: Pool::new(shape.content_size),
            content_size: shape.content_size,
            node_size,
            members_max: shape.members_max.min(SLOT_STRIDE as usize),
            config,
            sides: HashMap::new(),
            locks: LockTable::default(),
            slots: HashMap::new(),
            trees: BTreeMap::from([(CATALOG, CATALOG_ROOT)]),
            transactions: BTreeMap::new(),
            unused: BTreeSet::new(),
            page_next: CATALOG_ROOT.0 + 1,
            page_end: shape.end,
            xid_next: shape.first_xid.0,
            doomed: BTreeSet::new(),
            aborted: Vec::new(),
            committing: VecDeque::new(),
            woken: Vec::new(),
            reads: Reads::default(),
            log: Buffer::new(shape.lsn),
            durable: shape.lsn,
            wanted: Lsn::ZERO,
            unflagged: VecDeque::new(),
            checkpoint: Checkpoint { lsn: shape.lsn, ..Checkpoint::default() },
            log_blocks: 0,
            log_blocks_max: shape.log_blocks_max,
            is_crowded: false,
            counts: Counts::default(),
            is_poisoned: false,
        };
        for page in shape.mapped.iter().filter(|page| **page > CATALOG_ROOT) {
            engine.take_page(*page);
        }
        engine
    }

    /// Bytes of the longest key.
    #[must_use]
    pub fn key_size_max(&self) -> usize {
        node_format::key_size_max(self.node_size)
    }

    /// Takes the transaction back.
    pub fn abort(&mut self, xid: Xid) {
        if self.doomed.remove(&xid) {
            return;
        }
        self.counts.aborts += u64::from(self.end(xid));
    }

    /// Forgets all that a transaction did; false when there is none.
    pub(super) fn end(&mut self, xid: Xid) -> bool {
        let Some(transaction) = self.transactions.remove(&xid) else { return false };
        self.log.drop_xid(xid);
        for page in &transaction.pages {
            self.reads.mark_stale(*page);
            self.take_back(xid, *page);
        }
        for tree in &transaction.trees {
            self.trees.remove(tree);
        }
        self.committing.retain(|other| *other != xid);
        self.aborted.push(GroupId(xid.0));
        self.leave_slots(xid, &transaction.slots);
        self.release(xid);
        true
    }

    /// Takes a transaction's records of a page in memory back.
    fn take_back(&mut self, xid: Xid, page: LogicalPage) {
        if self.pool.peek(page).is_none() {
            return;
        }
        let Some(side) = self.sides.get_mut(&page) else { return };
        if side.is_changed_by_one(xid) {
            self.sides.remove(&page);
            self.pool.remove(page);
            return;
        }
        let own = side.pending.iter().filter(|(_, pending)| pending.xid == xid);
        let own: Vec<Vec<u8>> = own.map(|(key, _)| key.clone()).collect();
        for key in own {
            self.restore(page, key);
        }
    }

    /// Gives an entry the value before, or notes that it has to be read.
    fn restore(&mut self, page: LogicalPage, key: Vec<u8>) {
        let (Some(side), Some(frame)) = (self.sides.get_mut(&page), self.pool.peek(page)) else {
            return;
        };
        let Some(pending) = side.pending.remove(&key) else { return };
        let (image, lsn) = (&frame.image, frame.lsn);
        let restored = match &pending.before {
            Before::Known(before) => page::with_value(image, &key, before.as_ref()),
            Before::OnFlash => None,
        };
        debug_assert!(
            restored.is_some() || pending.is_before_on_flash,
            "a leaf has room for every outcome (H4)"
        );
        match restored {
            Some(image) => {
                side.touched(lsn);
                self.pool.change(page, lsn, image);
            }
            None => {
                side.invalid.insert(key);
            }
        }
    }

    pub(super) fn release(&mut self, xid: Xid) {
        let woken = self.locks.release_all(xid);
        self.woken.extend(woken);
    }

    pub(super) fn transaction(&mut self, xid: Xid) -> Step<&mut Transaction> {
        if self.is_poisoned {
            return Err(EngineError::Poisoned.into());
        }
        if self.doomed.remove(&xid) {
            return Err(EngineError::Deadlock.into());
        }
        let transaction = self.transactions.get_mut(&xid);
        transaction.filter(|it| !it.is_committing).ok_or(Stop::Error(EngineError::Ended))
    }

    /// Whether the transaction has asked to commit.
    pub(super) fn is_committing(&self, xid: Xid) -> bool {
        self.transactions.get(&xid).is_some_and(|transaction| transaction.is_committing)
    }

    /// Acquires a lock or says why not; ends the youngest transaction of a deadlock.
    pub(super) fn lock(&mut self, xid: Xid, on: Target<'_>, mode: Mode) -> Step<()> {
        self.transaction(xid)?;
        loop {
            match self.locks.acquire(xid, on, mode) {
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

    pub(super) fn lock_entry(&mut self, xid: Xid, tree: u32, key: &[u8], mode: Mode) -> Step<()> {
        let size_max = self.key_size_max();
        if key.len() > size_max {
            return Err(EngineError::KeyTooLong { size: key.len(), size_max }.into());
        }
        self.lock(xid, Target::Record { tree, key }, mode)
    }

    /// Takes a place among the transactions that have pending records on a page: as many as the
    /// page has flags. A transaction that waits for a place is in the wait-for graph.
    pub(super) fn take_slot(&mut self, xid: Xid, page: LogicalPage) -> Step<()> {
        let count = self.members_max;
        let slots = self.slots.entry(page).or_insert_with(|| vec![None; count]);
        if slots.contains(&Some(xid)) {
            return Ok(());
        }
        let free = slots.iter().position(Option::is_none);
        self.counts.crowded_pages += u64::from(free.is_none());
        let slot = free.unwrap_or(xid.0 as usize % count);
        let name = LogicalPage(page.0 * SLOT_STRIDE + slot as u32);
        self.lock(xid, Target::Page(name), Mode::Exclusive)?;
        if let Some(slots) = self.slots.get_mut(&page) {
            slots[slot] = Some(xid);
        }
        if let Some(transaction) = self.transactions.get_mut(&xid) {
            transaction.slots.push((page, slot));
        }
        Ok(())
    }

    /// A transaction with pending records on a new page gets a slot there, too. It does not ask for
    /// the slot: a transaction that asks gives up its other wait.
    pub(super) fn inherit_slots(&mut self, from: LogicalPage, to: LogicalPage) {
        let Some(holders) = self.slots.get(&from).cloned() else { return };
        let members = self.sides.get(&to).map(Side::members).unwrap_or_default();
        let mut slots = vec![None; self.members_max];
        for (slot, holder) in holders.into_iter().enumerate() {
            let Some(xid) = holder.filter(|xid| members.contains(xid)) else { continue };
            let name = |page: LogicalPage| LogicalPage(page.0 * SLOT_STRIDE + slot as u32);
            self.locks.inherit_page(name(from), name(to));
            slots[slot] = Some(xid);
            if let Some(transaction) = self.transactions.get_mut(&xid) {
                transaction.slots.push((to, slot));
            }
        }
        if slots.iter().any(Option::is_some) {
            self.slots.insert(to, slots);
        }
    }

    fn leave_slots(&mut self, xid: Xid, own: &[(LogicalPage, usize)]) {
        for (page, slot) in own {
            let Some(slots) = self.slots.get_mut(page) else { continue };
            debug_assert_eq!(slots[*slot], Some(xid), "a place has one holder");
            slots[*slot] = None;
            if slots.iter().all(Option::is_none) {
                self.slots.remove(page);
            }
        }
    }

    /// Notes that a transaction has pending records on a page.
    pub(super) fn changes(&mut self, xid: Xid, page: LogicalPage) {
        if let Some(transaction) = self.transactions.get_mut(&xid) {
            transaction.pages.insert(page);
        }
    }

    /// The page numbers that would be taken next.
    pub(super) fn next_pages(&self, count: usize) -> Step<Vec<LogicalPage>> {
        let fresh = (self.page_next..self.page_end).map(LogicalPage);
        let pages: Vec<_> = self.unused.iter().copied().chain(fresh).take(count).collect();
        if pages.len() == count { Ok(pages) } else { Err(EngineError::Full.into()) }
    }

    pub(super) fn take_page(&mut self, page: LogicalPage) {
        if !self.unused.remove(&page) && page.0 >= self.page_next {
            self.unused.extend((self.page_next..page.0).map(LogicalPage));
            self.page_next = page.0 + 1;
        }
    }

    /// Keeps `spare_count` page numbers and gives up the ones behind them; gives the first of
    /// these.
    pub(super) fn give_up_pages(&mut self, spare_count: u32) -> u32 {
        self.page_end = self.page_next.saturating_add(spare_count).min(self.page_end);
        self.page_end
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

impl PageEngine for Engine {
    fn begin(&mut self) -> Xid {
        let xid = Xid(self.xid_next);
        self.xid_next += 1;
        self.transactions.insert(xid, Transaction::default());
        xid
    }

    fn commit(&mut self, xid: Xid) -> Step<Lsn> {
        let transaction = self.transaction(xid)?;
        if transaction.pages.is_empty() {
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
        self.filled(fetched)
    }

    fn is_flush_wanted(&self) -> bool {
        let is_log_wanted = self.wanted > self.durable && !self.log.is_empty();
        !self.is_poisoned && (!self.committing.is_empty() || is_log_wanted)
    }

    fn take_woken(&mut self) -> Vec<Xid> {
        std::mem::take(&mut self.woken)
    }
}

/// Commits.
impl Engine {
    /// Takes the waiting commits: the transactions that commit by their record, the ones that need
    /// none, and the log's records. None when no transaction waits.
    pub(super) fn commit_begin(&mut self) -> Option<CommitJob> {
        if !self.is_flush_wanted() {
            return None;
        }
        let waiting: Vec<Xid> = self.committing.drain(..).collect();
        let (by_record, by_flags): (Vec<Xid>, Vec<Xid>) =
            waiting.into_iter().partition(|xid| self.needs_record(*xid));
        for xid in &by_record {
            self.log.append(&Record::Commit { xid: *xid });
        }
        let is_log_needed = !by_record.is_empty() || self.wanted > self.durable;
        let records = is_log_needed.then(|| self.log.seal());
        Some(CommitJob { by_record, by_flags, records })
    }

    /// Whether some pending record of the transaction is in memory alone.
    fn needs_record(&self, xid: Xid) -> bool {
        let Some(transaction) = self.transactions.get(&xid) else { return false };
        let is_unwritten = |page: &LogicalPage| {
            let side = self.sides.get(page).filter(|_| self.pool.peek(*page).is_some());
            side.is_some_and(|side| side.pending.values().any(|p| p.xid == xid && !p.is_written))
        };
        transaction.pages.iter().any(is_unwritten)
    }

    /// Commits are durable: their changes are plain content from now on (H6).
    pub(super) fn commit_end(&mut self, job: &Committed) {
        self.durable = self.durable.max(job.durable);
        for xid in &job.xids {
            let Some(transaction) = self.transactions.remove(xid) else { continue };
            for page in &transaction.pages {
                self.reads.mark_stale(*page);
                if let Some(side) = self.sides.get_mut(page) {
                    side.committed(*xid);
                }
            }
            self.leave_slots(*xid, &transaction.slots);
            self.counts.commits += 1;
            self.checkpoint.commits += 1;
            self.release(*xid);
        }
    }

    /// Commits could not be written for want of room: they are aborted.
    pub(super) fn commit_failed(&mut self, job: CommitJob) {
        if let Some(records) = job.records {
            self.log.put_back(records);
        }
        for xid in job.by_record.into_iter().chain(job.by_flags) {
            self.end(xid);
        }
    }

    /// Numbers in the store of transactions that were aborted, each once.
    pub(super) fn take_aborted(&mut self) -> Vec<GroupId> {
        std::mem::take(&mut self.aborted)
    }

    /// Whether an earlier device failure made the engine read-only.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.is_poisoned
    }

    /// The device failed during a write.
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
            log_bytes: self.log.bytes_appended,
            pool_hits: self.pool.hits,
            pool_misses: self.pool.misses,
            leaf_references: 0,
            leaf_misses: 0,
            reshapes: counts.splits,
            checkpoints: counts.checkpoints,
            spilled_pages: counts.stolen,
            memory: Memory { bases, groups: 0, deltas: 0, both: bases, mapping },
            ..EngineStats::default()
        }
    }
}

/// Commits on their way to flash.
#[derive(Debug)]
pub(super) struct CommitJob {
    pub(super) by_record: Vec<Xid>,
    pub(super) by_flags: Vec<Xid>,
    pub(super) records: Option<Sealed>,
}

/// Commits that are on flash.
#[derive(Debug)]
pub(super) struct Committed {
    pub(super) xids: Vec<Xid>,
    /// The log is durable up to here.
    pub(super) durable: Lsn,
}
