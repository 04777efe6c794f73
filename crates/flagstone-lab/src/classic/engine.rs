//! State of the engine, its transactions, and its answers to the driver.

mod frames;
mod logging;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use flagstone_engine::AppendScheme;
use flagstone_engine::Reads;
use flagstone_engine::lock::{LockOutcome, LockTable, Mode, Target};
use flagstone_engine::log::{Flush as LogFlush, LogPosition, LogWriter};
use flagstone_engine::node as node_format;
use flagstone_engine::{Durability, EngineError, EngineStats, Memory, Step, Stop, Wait};
use flagstone_engine::{Table, Xid};
use flagstone_space::{LogicalPage, Lsn};

use super::appends::{Learned, Room};
use super::checkpoint::Checkpoint;
use super::pool::Pool;
use super::record::{Edit, Record};
use super::{Config, Locking};

/// Tree of tables: name to number and root.
pub(super) const CATALOG: u32 = 0;
/// Tree of the chunks of long values.
pub(super) const CHUNKS: u32 = 1;
/// Number of the first table.
pub(super) const TABLES: u32 = 2;

/// Bytes of a compensation record beside its LSNs, the key and the bytes it puts back.
const CLR_OVERHEAD: usize = 18;

/// LSNs in a compensation record, the transaction's number among them.
const CLR_LSNS: usize = 3;

/// The engine's knowledge of the space floor.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct View {
    pub(super) log_used: u64,
    pub(super) log_budget: u64,
    pub(super) log_block_pages: u64,
    pub(super) log_page_size: usize,
    pub(super) mapping_bytes: usize,
}

/// How a change is undone.
#[derive(Clone, Debug)]
pub(super) struct Undo {
    pub(super) lsn: Lsn,
    pub(super) tree: u32,
    pub(super) key: Vec<u8>,
    pub(super) edit: Edit,
}

impl Undo {
    fn size(&self) -> usize {
        size_of::<Self>() + self.key.len() + self.edit.size()
    }

    /// Bytes of log that undoing it takes.
    fn debt(&self) -> usize {
        // Undone later, with larger LSNs: one more byte each covers a log 128 times as long.
        let lsn_size = 1 + (64 - self.lsn.0.leading_zeros() as usize).div_ceil(7);
        CLR_OVERHEAD + CLR_LSNS * lsn_size + self.key.len() + self.edit.size()
    }
}

/// A running transaction.
#[derive(Clone, Debug, Default)]
pub(super) struct Transaction {
    /// First record; zero before there is one.
    pub(super) first: Lsn,
    /// Last record.
    pub(super) last: Lsn,
    /// Changes to be undone, oldest first.
    pub(super) undo: Vec<Undo>,
    /// Whether it is being rolled back to its beginning.
    pub(super) is_ending: bool,
    /// The chunks of a value that are being written.
    pub(super) filling: Option<super::value::Filling>,
}

/// Resources owed to running transactions (A7).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Debts {
    /// Memory of the changes to be undone.
    memory: usize,
    /// Bytes of log that undoing takes.
    log: usize,
    /// Bytes by which undoing makes leaves grow.
    growth: usize,
    /// Pages given up while transactions could be undone: undoing may need as many.
    pages: usize,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) commits: u64,
    pub(super) aborts: u64,
    pub(super) deadlocks: u64,
    pub(super) user_bytes: u64,
    pub(super) log_bytes: u64,
    pub(super) splits: u64,
    pub(super) checkpoints: u64,
    pub(super) undone: u64,
}

/// State above the space floor. Never does I/O.
#[derive(Debug)]
pub struct Engine {
    pub(super) config: Config,
    /// Bytes of a page that takes no appends.
    pub(super) page_size: usize,
    pub(super) room: Room,
    pub(super) pool: Pool,
    pub(super) locks: LockTable,
    /// Root page of each tree.
    pub(super) trees: BTreeMap<u32, LogicalPage>,
    /// Scheme of each tree whose pages take appends.
    pub(super) schemes: BTreeMap<u32, AppendScheme>,
    /// Observations of trees with an automatic scheme.
    pub(super) learned: BTreeMap<u32, Learned>,
    pub(super) names: BTreeMap<u32, String>,
    pub(super) transactions: BTreeMap<Xid, Transaction>,
    pub(super) debts: Debts,
    pub(super) xid_next: u64,
    /// Ended by a deadlock; their owners do not know yet.
    doomed: BTreeSet<Xid>,
    /// Transactions to be rolled back.
    pub(super) rollbacks: VecDeque<Xid>,
    woken: Vec<Xid>,
    pub(super) log: LogWriter,
    /// First record of each flush, and where it stands.
    pub(super) places: VecDeque<(Lsn, LogPosition)>,
    /// First record that is not in a flush yet.
    unsealed: Lsn,
    /// Log page on which the last durable fragment ended.
    log_page: u64,
    flush_to: Lsn,
    /// Commits up to here wait for company.
    company_to: Lsn,
    is_flushing: bool,
    pub(super) last_commit: Lsn,
    reads: Reads,
    unused: Vec<LogicalPage>,
    /// Pages given up, with the record that did it.
    pub(super) freed: VecDeque<(Lsn, LogicalPage)>,
    pub(super) checkpoint: Checkpoint,
    /// An operation waits for a frame.
    is_crowded: bool,
    pub(super) view: View,
    pub(super) counts: Counts,
    undo_peak: usize,
    is_poisoned: bool,
    /// Events of pages, where a trace is recorded.
    pub(super) events: Option<Vec<crate::ipl::Event>>,
}

/// A flush of the log.
#[derive(Debug)]
pub(super) struct Sealed(LogFlush);

impl Sealed {
    pub(super) fn fragments(&self) -> impl Iterator<Item = &[u8]> {
        self.0.fragments.iter().map(|fragment| fragment.bytes.as_slice())
    }
}

impl Engine {
    /// An empty engine over pages with so much `room`, whose log goes on at `place`.
    pub(super) fn new(config: Config, room: Room, log: LogWriter, place: LogPosition) -> Self {
        let page_size = room.whole();
        let roots = [(CATALOG, LogicalPage(0)), (CHUNKS, LogicalPage(1))];
        Self {
            pool: Pool::new(page_size),
            page_size,
            room,
            config,
            locks: LockTable::default(),
            trees: BTreeMap::from(roots),
            schemes: BTreeMap::new(),
            names: BTreeMap::new(),
            learned: BTreeMap::new(),
            transactions: BTreeMap::new(),
            debts: Debts::default(),
            xid_next: 1,
            doomed: BTreeSet::new(),
            rollbacks: VecDeque::new(),
            woken: Vec::new(),
            unsealed: next_lsn(&log),
            log,
            places: VecDeque::from([(Lsn::ZERO, place)]),
            log_page: place.page,
            flush_to: Lsn::ZERO,
            company_to: Lsn::ZERO,
            is_flushing: false,
            last_commit: Lsn::ZERO,
            reads: Reads::default(),
            unused: Vec::new(),
            freed: VecDeque::new(),
            checkpoint: Checkpoint::default(),
            is_crowded: false,
            view: View::default(),
            counts: Counts::default(),
            undo_peak: 0,
            is_poisoned: false,
            events: None,
        }
    }

    /// Bytes of the longest key.
    #[must_use]
    pub fn key_size_max(&self) -> usize {
        let records_max = self.config.options.techniques().append_scheme.records_max();
        node_format::key_size_max(self.room.node(AppendScheme::Runs { records: records_max }))
    }

    /// Begins a transaction.
    pub fn begin(&mut self) -> Xid {
        let xid = Xid(self.xid_next);
        self.xid_next += 1;
        self.transactions.insert(xid, Transaction::default());
        xid
    }

    /// Gives the commit its place in the log: durable when [`Engine::durable`] reaches it. Locks go
    /// now (rule D8), so a reader's own end waits for the commits that it may have read.
    ///
    /// # Errors
    ///
    /// `Deadlock` when the transaction was chosen to end one; `Ended`.
    pub fn commit(&mut self, xid: Xid, durability: Durability) -> Step<Lsn> {
        let transaction = self.transaction(xid)?;
        let previous = transaction.last;
        if previous != Lsn::ZERO {
            self.last_commit = self.append(&Record::Commit { xid, previous });
            self.counts.commits += 1;
            self.checkpoint.count_commit();
        }
        self.note_commit(xid);
        self.forget(xid);
        match durability {
            Durability::Deferred => {}
            Durability::Group => self.company_to = self.last_commit,
            Durability::Immediate => self.flush_to = self.flush_to.max(self.last_commit),
        }
        Ok(self.last_commit)
    }

    /// Takes the transaction back; the background work undoes it, and then its locks go.
    pub fn abort(&mut self, xid: Xid) {
        if self.doomed.remove(&xid) {
            return;
        }
        let Some(transaction) = self.transactions.get(&xid) else { return };
        if transaction.is_ending {
            return;
        }
        self.counts.aborts += 1;
        self.end(xid);
    }

    /// Begins the rollback of a transaction.
    pub(super) fn end(&mut self, xid: Xid) {
        let Some(transaction) = self.transactions.get_mut(&xid) else { return };
        transaction.is_ending = true;
        let previous = transaction.last;
        if previous == Lsn::ZERO {
            self.forget(xid);
            return;
        }
        let lsn = self.append(&Record::Abort { xid, previous });
        self.link(xid, lsn);
        self.rollbacks.push_back(xid);
    }

    /// Drops the state of a transaction that has ended, and its locks.
    pub(super) fn forget(&mut self, xid: Xid) {
        if let Some(transaction) = self.transactions.remove(&xid) {
            transaction.undo.iter().for_each(|undo| self.debts.pay(undo));
        }
        let woken = self.locks.release_all(xid);
        self.woken.extend(woken);
    }

    /// Whether a transaction has not been undone yet.
    #[must_use]
    pub fn is_running(&self, xid: Xid) -> bool {
        self.transactions.contains_key(&xid)
    }

    pub(super) fn transaction(&mut self, xid: Xid) -> Step<&mut Transaction> {
        if self.is_poisoned {
            return Err(EngineError::Poisoned.into());
        }
        if self.doomed.remove(&xid) {
            return Err(EngineError::Deadlock.into());
        }
        let transaction = self.transactions.get_mut(&xid);
        transaction.filter(|it| !it.is_ending).ok_or(Stop::Error(EngineError::Ended))
    }

    /// The record `lsn` is the last of the transaction.
    pub(super) fn link(&mut self, xid: Xid, lsn: Lsn) {
        if let Some(transaction) = self.transactions.get_mut(&xid) {
            if transaction.first == Lsn::ZERO {
                transaction.first = lsn;
            }
            transaction.last = lsn;
        }
    }

    /// Last record of a transaction.
    pub(super) fn last_of(&self, xid: Xid) -> Lsn {
        self.transactions.get(&xid).map_or(Lsn::ZERO, |transaction| transaction.last)
    }

    pub(super) fn push_undo(&mut self, xid: Xid, undo: Undo) {
        let Some(transaction) = self.transactions.get_mut(&xid) else { return };
        self.debts.take(&undo);
        self.undo_peak = self.undo_peak.max(self.debts.memory);
        transaction.undo.push(undo);
    }

    pub(super) fn pop_undo(&mut self, xid: Xid) {
        let Some(transaction) = self.transactions.get_mut(&xid) else { return };
        if let Some(undo) = transaction.undo.pop() {
            self.debts.pay(&undo);
        }
    }

    /// The change of a transaction to be undone next.
    pub(super) fn top_undo(&self, xid: Xid) -> Option<&Undo> {
        self.transactions.get(&xid)?.undo.last()
    }

    /// The transaction whose next change to be undone is the latest of all.
    pub(super) fn latest_loser(&self) -> Option<Xid> {
        let next = |it: &Transaction| it.undo.last().map_or(Lsn::ZERO, |undo| undo.lsn);
        self.transactions.iter().max_by_key(|(_, it)| next(it)).map(|(xid, _)| *xid)
    }

    /// Acquires a lock or says why not; ends the youngest transaction of a deadlock.
    pub(super) fn lock(&mut self, xid: Xid, on: Target<'_>, mode: Mode) -> Step<()> {
        self.transaction(xid)?;
        loop {
            match self.locks.acquire(xid, on, mode) {
                LockOutcome::Granted => return Ok(()),
                LockOutcome::Wait => return Err(Stop::Wait(Wait::Lock)),
                LockOutcome::Deadlock { victim } => {
                    self.doom(victim);
                    if victim == xid {
                        self.doomed.remove(&xid);
                        return Err(EngineError::Deadlock.into());
                    }
                }
            }
        }
    }

    /// Ends a deadlock's victim; it learns so at its next call. Its locks go when it is undone.
    fn doom(&mut self, victim: Xid) {
        self.counts.deadlocks += 1;
        let woken = self.locks.cancel_wait(victim);
        self.woken.extend(woken);
        self.doomed.insert(victim);
        self.woken.push(victim);
        self.end(victim);
    }

    /// Locks the entry of `key` or its page, by the granule of locks.
    pub(super) fn lock_entry(&mut self, xid: Xid, tree: u32, key: &[u8], mode: Mode) -> Step<()> {
        if key.len() > self.key_size_max() {
            let size_max = self.key_size_max();
            return Err(EngineError::KeyTooLong { size: key.len(), size_max }.into());
        }
        match self.config.locking {
            Locking::Record => self.lock(xid, Target::Record { tree, key }, mode),
            Locking::Page => {
                self.transaction(xid)?;
                let page = self.leaf_of(tree, key)?;
                self.lock(xid, Target::Page(page), mode)
            }
        }
    }
}

/// The LSN that the next record of a log gets.
fn next_lsn(log: &LogWriter) -> Lsn {
    flagstone_engine::log::lsn(log.epoch(), log.counter() + 1)
}

impl Debts {
    fn take(&mut self, undo: &Undo) {
        self.memory += undo.size();
        self.log += undo.debt();
        self.growth += undo.edit.growth(&undo.key);
    }

    fn pay(&mut self, undo: &Undo) {
        self.memory -= undo.size();
        self.log -= undo.debt();
        self.growth -= undo.edit.growth(&undo.key);
        if self.growth == 0 {
            self.pages = 0;
        }
    }

    /// A page was given up by a transaction that runs.
    pub(super) fn take_page(&mut self) {
        self.pages += 1;
    }
}

/// Questions of the driver.
impl Engine {
    /// Transactions that may call their operation again, each named once.
    pub fn take_woken(&mut self) -> Vec<Xid> {
        std::mem::take(&mut self.woken)
    }

    /// Whether an earlier device failure made the engine read-only.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.is_poisoned
    }

    /// The device failed while the log or a page was written.
    pub(super) fn poison(&mut self) {
        self.is_poisoned = true;
        self.woken.extend(self.transactions.keys().copied());
    }

    pub(super) fn observe(&mut self, view: View) {
        self.view = view;
    }

    /// Whether a table with this number exists.
    pub(super) fn root(&self, tree: u32) -> Step<LogicalPage> {
        self.trees.get(&tree).copied().ok_or(Stop::Error(EngineError::NoTable))
    }

    pub(super) fn tree_of(table: Table) -> u32 {
        flagstone_engine::id_of(table)
    }

    /// Counters so far.
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
            leaf_references: 0,
            leaf_misses: 0,
            reshapes: counts.splits,
            checkpoints: counts.checkpoints,
            memory: Memory {
                bases: self.pool.bytes_peak(),
                groups: 0,
                deltas: self.undo_peak,
                both: self.pool.bytes_peak() + self.undo_peak,
                mapping: self.view.mapping_bytes,
            },
            ..EngineStats::default()
        }
    }
}
