//! State of the engine, its transactions, and its answers to the driver.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use flagstone_engine::Reads;
use flagstone_engine::lock::{LockOutcome, LockTable, Mode, Target};
use flagstone_engine::log::{Flush as LogFlush, LogGeometry, LogPosition, LogWriter};
use flagstone_engine::node::{self as node_format, NodeView};
use flagstone_engine::{AppendScheme, Table, Xid};
use flagstone_engine::{
    Durability, EngineError, EngineStats, Fetch, Fetched, Memory, Step, Stop, Wait,
};
use flagstone_space::{LogicalPage, Lsn};

use super::appends::{Learned, Room};
use super::checkpoint::Checkpoint;
use super::page;
use super::pool::{Frame, Pool};
use super::record::{Edit, Record};
use super::{Config, Locking, Mistake};

/// Tree of tables: name to number and root.
pub(super) const CATALOG: u32 = 0;
/// Tree of the chunks of long values.
pub(super) const CHUNKS: u32 = 1;
/// Number of the first table.
pub(super) const TABLES: u32 = 2;

/// Frames that stay however much memory other things take.
const FRAMES_MIN: usize = 12;

/// Pages at the end of the pool's order that are written ahead of need, so that a read seldom waits:
/// a share of the pool, within bounds.
const CLEAN_SHARE: usize = 8;
const CLEAN_MIN: usize = 4;
const CLEAN_MAX: usize = 32;

/// Bytes of a compensation record beside its LSNs, the key and the bytes it puts back.
const CLR_OVERHEAD: usize = 18;

/// LSNs in a compensation record, the transaction's number among them.
const CLR_LSNS: usize = 3;

/// A flush takes about one of so many parts of the log at most.
const FLUSH_SHARE: u64 = 32;

/// Pages of the log for changes of shape while undoing, beside the pages for undoing itself.
const RESHAPES_RESERVE: u64 = 4;

/// Bytes in a checkpoint record for each dirty page or running transaction, at most.
const CHECKPOINT_ENTRY: usize = 12;

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
        let records_max = self.config.options.append_scheme.records_max();
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

/// Adds the largest size that each value of the leaf has while `edits` are made, in this order.
fn add_largest<'a>(
    node: &NodeView<'_>,
    edits: impl Iterator<Item = (&'a [u8], &'a Edit)>,
    sizes: &mut BTreeMap<Vec<u8>, usize>,
) {
    let mut now: BTreeMap<&[u8], Option<usize>> = BTreeMap::new();
    for (key, edit) in edits {
        if key < node.low() || node.high().is_some_and(|high| key >= high) {
            continue;
        }
        let found = || node.search(key).ok().and_then(|index| node.value(index));
        let size = now.entry(key).or_insert_with(|| found().map(|cell| cell.bytes().len()));
        *size = edit.size_after(*size);
        if let Some(size) = *size {
            let largest = sizes.entry(key.to_vec()).or_default();
            *largest = size.max(*largest);
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

/// The log.
impl Engine {
    pub(super) fn append(&mut self, record: &Record) -> Lsn {
        self.note_record(record);
        let before = self.log.pending_bytes();
        let lsn = self.log.append_with(|out| out.extend_from_slice(&record.encode()));
        self.counts.log_bytes += (self.log.pending_bytes() - before) as u64;
        lsn
    }

    /// Every record up to here is durable.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.log.durable()
    }

    /// The newest commit, durable or not.
    #[must_use]
    pub fn last_commit(&self) -> Lsn {
        self.last_commit
    }

    /// Whether a client waits for log records that are not being written yet.
    #[must_use]
    pub fn is_flush_wanted(&self) -> bool {
        !self.is_poisoned
            && !self.is_flushing
            && (self.flush_to > self.log.durable()
                || self.has_group_commit()
                || self.is_tail_long())
            && self.log.pending_bytes() > 0
    }

    /// How long commits may wait for company before they are flushed; none when none waits.
    #[must_use]
    pub fn company(&self) -> Option<Duration> {
        let awaits = !self.is_poisoned && self.company_to > self.log.durable();
        awaits.then_some(self.config.options.group_delay)
    }

    /// Whether enough has gathered to end the wait of a group commit.
    fn has_group_commit(&self) -> bool {
        let enough = self.view.log_page_size as f64 * self.config.options.group_fill;
        self.company_to > self.log.durable() && self.log.pending_bytes() as f64 >= enough
    }

    /// Asks for everything in the log to become durable.
    pub fn want_flush(&mut self) {
        self.flush_to = self.log.appended();
    }

    /// Asks for the log to become durable up to `lsn`.
    pub(super) fn want_durable(&mut self, lsn: Lsn) {
        self.flush_to = self.flush_to.max(lsn);
    }

    /// Bytes of log records that wait for a flush.
    #[must_use]
    pub fn pending_log_size(&self) -> usize {
        self.log.pending_bytes()
    }

    /// The LSN that the next record gets.
    pub(super) fn next_lsn(&self) -> Lsn {
        next_lsn(&self.log)
    }

    /// Cuts everything pending into a flush.
    pub(super) fn seal(&mut self, shape: LogGeometry, slots_left: u16) -> Option<Sealed> {
        if self.is_poisoned {
            return None;
        }
        let place = LogPosition { page: self.log_page, chain: self.log.chain() };
        let flush = self.log.seal(shape, slots_left)?;
        self.places.push_back((self.unsealed, place));
        self.unsealed = Lsn(flush.upto.0 + 1);
        self.is_flushing = true;
        Some(Sealed(flush))
    }

    /// The flush is durable; its last fragment lies on `log_page`.
    pub(super) fn flushed(&mut self, flush: Sealed, log_page: u64) {
        self.log.completed(flush.0);
        self.log_page = log_page;
        self.is_flushing = false;
    }

    /// The last durable fragment that restart found lies on this page.
    pub(super) fn resume_log(&mut self, page: u64) {
        self.log_page = page;
    }

    /// Where the log has to be read from to see the record `lsn`.
    pub(super) fn place_of(&self, lsn: Lsn) -> LogPosition {
        let after = self.places.partition_point(|(first, _)| *first <= lsn);
        let place = after.checked_sub(1).and_then(|index| self.places.get(index));
        place.map_or_else(LogPosition::default, |(_, place)| *place)
    }

    /// Pages of the log that one flush may take, about: a restart copies the last one (D11).
    fn flush_pages_max(&self) -> u64 {
        (self.view.log_budget / FLUSH_SHARE).max(2)
    }

    /// Whether so much is pending that it has to be flushed before more is added.
    pub(super) fn is_tail_long(&self) -> bool {
        self.log.pending_bytes() as u64 >= self.flush_pages_max() * self.view.log_page_size as u64
    }

    /// Whether the log has room for `size` bytes beside the bytes owed (A7).
    pub(super) fn admit_log(&mut self, size: usize) -> Step<()> {
        if self.is_tail_long() {
            return Err(Stop::Wait(Wait::Durable(self.log.appended())));
        }
        let page_size = self.page_size.max(1);
        let tables = CHECKPOINT_ENTRY * (self.pool.dirty_count() + self.transactions.len());
        let owed = self.debts.log + self.debts.growth;
        let bytes = size + self.log.pending_bytes() + owed + 2 * tables;
        // A restart may leave a block half used, copies the last flush, and adds a page of its own;
        // another restart may follow before the head moves.
        let restart = self.flush_pages_max() + 2;
        let reserve = self.view.log_block_pages + 2 * restart + RESHAPES_RESERVE;
        let needed = self.view.log_used + bytes.div_ceil(page_size) as u64 + reserve;
        if needed <= self.view.log_budget {
            return Ok(());
        }
        if self.place_of(self.oldest_record()).page <= self.checkpoint.head_page() {
            // A transaction keeps the head where it is: no checkpoint can move it.
            return Err(EngineError::Full.into());
        }
        Err(Stop::Wait(Wait::Log))
    }

    /// First record of the oldest transaction that runs; the next record when there is none.
    pub(super) fn oldest_record(&self) -> Lsn {
        let firsts = self.transactions.values().map(|transaction| transaction.first);
        firsts.filter(|first| *first != Lsn::ZERO).min().unwrap_or(self.next_lsn())
    }
}

/// Pages.
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
        if self.pool.shrink(self.frames_limit().saturating_sub(wanted)) {
            self.is_crowded = false;
            return Ok(());
        }
        self.is_crowded = true;
        Err(Stop::Wait(Wait::Memory))
    }

    /// Memory that frames may take: the budget less undo information and the log's tail.
    fn frames_limit(&self) -> usize {
        let others = self.debts.memory + self.log.pending_bytes();
        let rest = self.config.options.memory.saturating_sub(others);
        rest.max(FRAMES_MIN * self.pool.frame_size())
    }

    /// Takes a page that was read for a miss.
    ///
    /// # Errors
    ///
    /// `Corrupt` when the page does not match its address.
    pub fn fill(&mut self, fetched: Fetched) -> Result<(), EngineError> {
        let Fetch::Page(page, number) = fetched.fetch else { return Ok(()) };
        if self.reads.end(page, number) {
            return Ok(());
        }
        let Some((info, image)) = fetched.found else {
            self.pool.fill(page, Lsn::ZERO, self.absent(page)?);
            return Ok(());
        };
        let check = "node does not parse";
        NodeView::parse(&image).map_err(|_| EngineError::Corrupt { page, check })?;
        if self.pool.peek(page).is_none() {
            self.pool.fill(page, info.lsn, self.fitted(image));
            self.track(page, info);
        }
        Ok(())
    }

    /// A page that was never written: only the two first roots may be.
    pub(super) fn absent(&self, page: LogicalPage) -> Result<Vec<u8>, EngineError> {
        let roots = [CATALOG, CHUNKS];
        let tree = roots.into_iter().find(|tree| self.trees.get(tree) == Some(&page));
        let check = "page is referred to but was never written";
        let tree = tree.ok_or(EngineError::Corrupt { page, check })?;
        Ok(node_format::empty_leaf(tree, self.page_size))
    }

    /// A read that was asked for failed: nothing will come.
    pub(super) fn fetch_failed(&mut self, fetch: Fetch) {
        if let Fetch::Page(page, number) = fetch {
            self.reads.end(page, number);
        }
    }

    /// Reads of the page that are under way bring an old version.
    pub(super) fn mark_stale(&mut self, page: LogicalPage) {
        self.reads.mark_stale(page);
    }

    /// The page that should be written now: one of the pool's oldest, when the pool is nearly full.
    /// The oldest pages are left until half of them are dirty, unless an operation waits: written
    /// together, they use every die. A page whose log is not durable yet comes after the others
    /// (A1).
    pub(super) fn crowding_page(&self) -> Option<LogicalPage> {
        let (limit, size) = (self.frames_limit(), self.pool.frame_size());
        let ahead = (limit / size / CLEAN_SHARE).clamp(CLEAN_MIN, CLEAN_MAX);
        if !self.is_crowded && self.pool.bytes() + ahead * size < limit {
            return None;
        }
        let (mut dirty_count, mut due, mut early) = (0, None, None);
        for (page, frame) in self.pool.old_dirty(ahead) {
            dirty_count += 1;
            match frame.is_writing() {
                true => {}
                false if self.may_write(frame) => due = due.or(Some(page)),
                false => early = early.or(Some(page)),
            }
        }
        let is_time = self.is_crowded || dirty_count * 2 >= ahead;
        due.or(early).filter(|_| is_time)
    }

    /// Whether the frame may be written now (A1).
    pub(super) fn may_write(&self, frame: &Frame) -> bool {
        frame.lsn <= self.durable() || self.config.makes(Mistake::WriteBeforeLog)
    }

    /// Takes page numbers that the space floor reserved.
    pub(super) fn supply_pages(&mut self, pages: Vec<LogicalPage>) {
        self.unused.extend(pages);
    }

    /// Page numbers at hand.
    pub(super) fn unused_pages(&self) -> &[LogicalPage] {
        &self.unused
    }

    /// Gives back the page numbers that a failed change of shape took.
    pub(super) fn restore_unused(&mut self, pages: Vec<LogicalPage>) {
        self.unused = pages;
    }

    /// Whether `count` page numbers are at hand, beside the numbers that undoing may need (A7).
    pub(super) fn admit_pages(&self, count: usize) -> Step<()> {
        const RESERVE: usize = 4;
        let growth = 2 * self.debts.growth.div_ceil(self.page_size.max(1));
        let reserve = RESERVE + growth + self.debts.pages;
        match self.unused.len() >= count + reserve {
            true => Ok(()),
            false => Err(Stop::Wait(Wait::Pages(count + reserve))),
        }
    }

    /// Whether undoing all running transactions, and a change undone by `newest`, finds room in the
    /// leaf `image` (A7).
    pub(super) fn leaves_owed_room(
        &self,
        xid: Xid,
        image: &[u8],
        key: &[u8],
        newest: &Edit,
    ) -> bool {
        /// Bytes by which a leaf grows for each entry when its sizes become different.
        const SLOT_SIZE_MAX: usize = 8;
        let node = NodeView::trusted(image);
        let owed = self.debts.growth + newest.growth(key) + SLOT_SIZE_MAX * node.count();
        if node.used_bytes() + owed <= image.len() {
            return true;
        }
        let mut sizes = BTreeMap::new();
        for (id, transaction) in &self.transactions {
            let newest = (*id == xid).then_some((key, newest));
            let older = transaction.undo.iter().rev();
            let older = older.filter(|undo| undo.tree == node.tree());
            let edits =
                newest.into_iter().chain(older.map(|undo| (undo.key.as_slice(), &undo.edit)));
            add_largest(&node, edits, &mut sizes);
        }
        // An upper bound first: it spares building most leaves anew.
        let grows = |(key, size): (&Vec<u8>, &usize)| match node.search(key) {
            Ok(at) => size.saturating_sub(node.value(at).map_or(0, |cell| cell.bytes().len())),
            Err(_) => key.len() + size,
        };
        let slots = SLOT_SIZE_MAX * (node.count() + sizes.len());
        if node.used_bytes() + sizes.iter().map(grows).sum::<usize>() + slots <= image.len() {
            debug_assert!(page::fits_with(image, &sizes), "an upper bound");
            return true;
        }
        page::fits_with(image, &sizes)
    }

    /// The page number that is taken next.
    pub(super) fn peek_page(&self) -> Step<LogicalPage> {
        self.unused.first().copied().ok_or(Stop::Wait(Wait::Pages(1)))
    }

    /// Takes a page number that was looked at before.
    pub(super) fn take_this(&mut self, page: LogicalPage) -> Step<LogicalPage> {
        let place = self.unused.iter().position(|unused| *unused == page);
        let place = place.ok_or(Stop::Wait(Wait::Pages(1)))?;
        Ok(self.unused.remove(place))
    }

    pub(super) fn take_page(&mut self) -> Step<LogicalPage> {
        self.unused.pop().ok_or(Stop::Wait(Wait::Pages(1)))
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
