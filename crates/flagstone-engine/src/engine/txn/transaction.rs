//! Transactions: private changes, locks, savepoints, and the end without a commit. The commit is layer 4's
//! (`engine/commit.rs`).
//!
//! ```text
//!            begin            commit record has its LSN        record durable
//!   (none) ─────────▶ Running ─────────────────────────▶ Committed ─────────▶ Durable
//!                        │  locks go, changes become deltas             tickets end
//!                        │ abort, deadlock
//!                        ▼
//!                     (none): changes forgotten, nothing written
//! ```

use std::collections::BTreeSet;

use flagstone_space::{GroupId, LogicalPage, Lsn};
use hashbrown::hash_map;

use crate::delta::{DeltaMap, DroppedRefs, KeyRange, Op};
use crate::engine::step::{Step, Stop, Wait};
use crate::engine::store::catalog::Table;
use crate::engine::store::owner::next_xid;
use crate::engine::store::private_key::{private_key, split_private_key};
use crate::engine::store::run::Run;
use crate::engine::store::run::record::MasterRun;
use crate::engine::txn::Transactions;
use crate::engine::txn::spill::{Gathering, OwnVersion, Stamp};
use crate::error::EngineError;
use crate::lock::{LockOutcome, Mode, Target, Xid};

/// Benefit of claiming a transaction's leaves, as far as they were looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prospect {
    /// Private key up to which they were looked at.
    pub(in crate::engine) looked: Vec<u8>,
    /// Bytes of the transaction's changes up to there.
    pub(in crate::engine) looked_bytes: usize,
    /// First private key of a leaf that is worth its page.
    pub(in crate::engine) first: Option<Vec<u8>>,
    /// Programs saved.
    pub(in crate::engine) gain: f64,
}

/// How changes of a transaction lie in its tables, as far as they were looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spread {
    /// Private key up to which they were looked at.
    pub(in crate::engine) looked: Vec<u8>,
    pub(in crate::engine) places: usize,
    /// Number of these places where the next change has another leaf.
    pub(in crate::engine) alone: usize,
}

/// A commit that has its place among all commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The commit, and everything it read, is durable when `Store::durable` reaches this.
    pub lsn: Lsn,
    /// Place in the order of commits. No other transaction that changed something has it. A
    /// transaction that changed nothing has the place of the newest commit in the log, or none
    /// (zero) if it read nothing, too.
    pub place: Lsn,
}

/// A point in a transaction to which it can be rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint {
    xid: Xid,
    sequence: u64,
}

/// A transaction that is running.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    /// Own changes: key = tree id (big-endian) then key, LSN = number of the change.
    pub(crate) writes: DeltaMap,
    /// Number of the last change.
    pub(in crate::engine) sequence: u64,
    /// Changes up to these numbers must stay apart from later ones.
    pub(in crate::engine) savepoints: Vec<Lsn>,
    /// Changes that left memory, oldest first.
    pub(crate) runs: Vec<Run>,
    /// Number of the last change when changes last left memory.
    pub(in crate::engine) spilled_to: u64,
    /// Numbers of changes inside runs that were rolled back: (above, up to), apart and in order.
    pub(crate) rolled_back: Vec<(u64, u64)>,
    /// Group of the pages it wrote before its commit.
    pub(crate) group: Option<GroupId>,
    /// Out-of-line values that it stored and no longer needs.
    pub(crate) dropped: DroppedRefs,
    /// Pages of values in its group may not be durable yet.
    pub(in crate::engine) is_unsealed: bool,
    /// Pages of such values that its group no longer has, but may have had in the last checkpoint.
    pub(in crate::engine) given_back: Vec<LogicalPage>,
    /// The part of these pages that the checkpoint being written does not list in the group.
    pub(in crate::engine) given_saved: Vec<LogicalPage>,
    /// Page numbers it took for its group.
    pub(crate) pages: BTreeSet<LogicalPage>,
    /// Number of these pages that may not be on flash yet.
    pub(in crate::engine) unwritten: usize,
    /// Key at which the changes begin that leave memory next.
    pub(in crate::engine) spill_next: Vec<u8>,
    /// Tables that it has made.
    pub(crate) created: Vec<Table>,
    /// Spilled changes that a scan or a read has gathered.
    pub(crate) gathering: Option<Gathering>,
    /// Some of its changes are on their way to flash: neither in memory nor in a run.
    pub(crate) is_spilling: bool,
    /// Memory of `writes` as counted in the engine's total.
    pub(in crate::engine) size: usize,
    /// Bytes by which it may make leaves grow.
    pub(in crate::engine) growth: usize,
    /// It has set a value: it does more than delete.
    pub(in crate::engine) has_put: bool,
    pub(in crate::engine) weighing: Weighing,
    pub(in crate::engine) has_read: bool,
    /// Benefit of claiming its leaves.
    pub(in crate::engine) prospect: Prospect,
    /// It is not worth a claim, or found no room for one.
    pub(in crate::engine) is_refused: bool,
    pub(in crate::engine) spread: Spread,
    /// It commits by a run that may wait.
    pub(in crate::engine) commits_by_run: bool,
    /// It commits by the log, even if there is room for a run.
    pub(in crate::engine) commits_by_log: bool,
    /// It is committed with its leaves, and durable: the LSN of its ticket.
    pub(in crate::engine) claimed: Option<Ticket>,
    /// Tables that it drops.
    pub(in crate::engine) drops: Vec<Table>,
    /// Error with which it was ended; its owner gets the error at its next call.
    pub(crate) doom: Option<EngineError>,
}

/// Progress of comparing a transaction's changes with the rows that they replace.
#[derive(Debug, Default)]
pub(in crate::engine) struct Weighing {
    /// Number of its last change when the comparison began.
    sequence: u64,
    /// Private key up to which changes were compared.
    looked: Vec<u8>,
    growth: usize,
    is_done: bool,
}

impl Transaction {
    /// Whether its growth was counted beside the rows that it replaces.
    pub(in crate::engine) fn is_weighed(&self) -> bool {
        self.weighing.is_done && self.weighing.sequence == self.sequence
    }

    /// The next change to compare with the row that it replaces: its private key, and the bytes by
    /// which it makes its leaf grow if it replaces none.
    pub(in crate::engine) fn next_to_weigh(&mut self) -> Option<(Vec<u8>, usize)> {
        if self.weighing.sequence != self.sequence {
            self.weighing = Weighing { sequence: self.sequence, ..Weighing::default() };
        }
        let behind = KeyRange { low: &self.weighing.looked, high: None };
        let entry = self.writes.range(behind).next()?;
        let key_size = split_private_key(entry.key()).1.len();
        let puts = entry.versions().filter(|(_, op)| matches!(op, Op::Put(_) | Op::PutRef(_)));
        let grown = puts.map(|(_, op)| growth_of(key_size, op)).max().unwrap_or(0);
        Some((entry.key().to_vec(), grown))
    }

    /// The change of `key` makes its leaf grow by so much.
    pub(in crate::engine) fn note_weighed(&mut self, key: &[u8], grown: usize) {
        self.weighing.growth += grown;
        self.weighing.looked = [key, &[0]].concat();
    }

    /// All changes were compared; returns whether they make leaves grow by less than was known.
    pub(in crate::engine) fn take_weighed(&mut self) -> bool {
        self.weighing.is_done = true;
        let before = std::mem::replace(&mut self.growth, self.weighing.growth);
        self.growth = self.growth.min(before);
        self.growth < before
    }

    /// Bytes of the names in its commit record: runs, and values that it drops.
    pub(crate) fn named_size(&self) -> usize {
        let run = |run: &Run| MasterRun::size_of(run, self.rolled_back.len());
        self.runs.iter().map(run).chain(self.dropped.iter().map(|value| 20 + value.len())).sum()
    }

    /// Bytes of the pages that it gave back, in its commit record.
    pub(in crate::engine) fn garbage_size(&self) -> usize {
        (self.given_back.len() + self.given_saved.len()) * size_of::<u32>()
    }

    /// Is another value after each change, and after each savepoint that the transaction goes back to.
    pub(crate) fn stamp(&self) -> Stamp {
        (self.sequence, self.runs.len())
    }

    /// Bytes by which it may make leaves grow: changes that were rolled back, or replaced each other,
    /// were counted one by one.
    pub(in crate::engine) fn growth_at_most(&self, payload_size: usize) -> usize {
        let pages: usize = self.runs.iter().map(Run::page_count).sum();
        self.growth.min(2 * self.size + pages * payload_size)
    }

    /// Forgets spilled changes behind `mark`.
    fn roll_runs_back(&mut self, mark: u64) {
        // Savepoints behind the mark are gone, and so are the ranges that began there.
        let inner = self.rolled_back.iter().rposition(|(above, _)| *above < mark);
        self.rolled_back.truncate(inner.map_or(0, |last| last + 1));
        match self.rolled_back.last_mut() {
            Some((_, upto)) if *upto >= mark => *upto = self.spilled_to,
            _ => self.rolled_back.push((mark, self.spilled_to)),
        }
    }
}

/// Bytes of a leaf entry beside key and value.
const ENTRY_OVERHEAD: usize = 8;

/// Bytes by which a put may make its leaf grow.
pub(in crate::engine) fn growth_of(key_size: usize, op: Op<'_>) -> usize {
    key_size + op.encoded_size() + ENTRY_OVERHEAD
}

impl Transactions {
    /// Begins a read-write transaction.
    pub fn begin(&mut self) -> Xid {
        let xid = next_xid();
        self.transactions.insert(xid, Transaction::default());
        xid
    }

    /// Marks a point to which the transaction can be rolled back.
    ///
    /// # Errors
    ///
    /// `Ended` or `Deadlock` when there is no such transaction any more.
    pub fn savepoint(&mut self, xid: Xid) -> Step<Savepoint> {
        let transaction = self.transaction(xid)?;
        let sequence = transaction.sequence;
        if transaction.savepoints.last() != Some(&Lsn(sequence)) {
            transaction.savepoints.push(Lsn(sequence));
        }
        Ok(Savepoint { xid, sequence })
    }

    /// Forgets the changes made since `savepoint`; its locks stay.
    ///
    /// # Errors
    ///
    /// `NoSavepoint` when it is another transaction's, of any database, or was rolled back itself.
    pub fn rollback_to(&mut self, xid: Xid, savepoint: Savepoint) -> Step<()> {
        let transaction = self.settled_transaction(xid)?;
        let mark = Lsn(savepoint.sequence);
        if savepoint.xid != xid || !transaction.savepoints.contains(&mark) {
            return Err(EngineError::NoSavepoint.into());
        }
        transaction.savepoints.retain(|other| *other <= mark);
        let dropped = transaction.writes.remove_newer(mark);
        transaction.dropped.extend(dropped);
        if transaction.spilled_to > mark.0 {
            transaction.roll_runs_back(mark.0);
        }
        // The changes gathered from the runs are of another state, and no later savepoint may get the
        // number of a savepoint that is gone.
        transaction.sequence += 1;
        self.recount(xid);
        Ok(())
    }

    /// Ends a transaction, if it has not ended, without commit.
    pub(in crate::engine) fn forget(&mut self, xid: Xid) {
        if let Some(transaction) = self.transactions.get(&xid) {
            if transaction.doom.is_none() {
                self.counts.aborts += 1;
            }
            self.end(xid);
        }
    }

    /// Ends a transaction without commit.
    pub(in crate::engine) fn end(&mut self, xid: Xid) {
        let Some(transaction) = self.transactions.remove(&xid) else { return };
        self.memory.uncommitted -= transaction.size;
        if let Some(group) = transaction.group {
            self.trims.discard_group(group);
        }
        let Transaction { pages, given_back, given_saved, created, .. } = transaction;
        self.take_back(pages.into_iter().chain(given_back).chain(given_saved));
        created.into_iter().for_each(|table| self.forget_created(table));
        self.release_locks(xid);
    }

    /// Page numbers that their owner needs no more.
    pub(in crate::engine) fn take_back(&mut self, pages: impl Iterator<Item = LogicalPage>) {
        for page in pages {
            // Leaves that found no pages for a split may find some now.
            self.obstacles.forget_lack();
            // The number will have another owner: no trace of this one may be found under it.
            self.forget_page(page);
            self.room.unused_pages.push(page);
        }
    }

    pub(in crate::engine) fn release_locks(&mut self, xid: Xid) {
        self.obstacles.allow_spilling();
        let woken = self.locks.release_all(xid);
        self.woken.extend(woken);
    }

    pub(crate) fn transaction(&mut self, xid: Xid) -> Step<&mut Transaction> {
        match self.transactions.entry(xid) {
            hash_map::Entry::Occupied(found) if found.get().doom.is_none() => Ok(found.into_mut()),
            hash_map::Entry::Occupied(doomed) => {
                Err(doomed.remove().doom.unwrap_or(EngineError::Ended).into())
            }
            hash_map::Entry::Vacant(_) => Err(EngineError::Ended.into()),
        }
    }

    /// The transaction, once none of its changes are on their way to flash.
    pub(crate) fn settled_transaction(&mut self, xid: Xid) -> Step<&mut Transaction> {
        let transaction = self.transaction(xid)?;
        if transaction.is_spilling { Err(Stop::Wait(Wait::Memory)) } else { Ok(transaction) }
    }

    pub(crate) fn note_read(&mut self, xid: Xid) -> Step<()> {
        self.require_whole_images()?;
        self.transaction(xid)?.has_read = true;
        Ok(())
    }

    /// Acquires a lock, or stops with the reason; ends the youngest transaction of a deadlock.
    pub(crate) fn lock(&mut self, xid: Xid, target: Target<'_>, mode: Mode) -> Step<()> {
        self.transaction(xid)?;
        loop {
            match self.locks.acquire(xid, target, mode) {
                LockOutcome::Granted => return Ok(self.require_table(target.tree())?),
                LockOutcome::Wait => return Err(Stop::Wait(Wait::Lock)),
                LockOutcome::Deadlock { victim } => {
                    self.counts.deadlocks += 1;
                    self.doom(victim, EngineError::Deadlock);
                    if victim == xid {
                        self.transactions.remove(&xid);
                        return Err(EngineError::Deadlock.into());
                    }
                }
            }
        }
    }

    /// Ends a transaction that waits no longer.
    pub(crate) fn give_up(&mut self, xid: Xid) {
        self.counts.aborts += 1;
        self.end(xid);
    }

    /// Takes everything from a transaction; the owner gets the error at its next call.
    pub(crate) fn doom(&mut self, victim: Xid, error: EngineError) {
        self.end(victim);
        let doomed = Transaction { doom: Some(error), ..Transaction::default() };
        self.transactions.insert(victim, doomed);
        self.woken.push(victim);
    }

    /// Adds a change to the transaction's own.
    pub(crate) fn write(&mut self, xid: Xid, table: Table, key: &[u8], op: Op<'_>) -> Step<()> {
        let mut scratch = std::mem::take(&mut self.scratch);
        private_key(table, key, &mut scratch);
        let transaction = self.transaction(xid)?;
        transaction.sequence += 1;
        if matches!(op, Op::Put(_) | Op::PutRef(_)) {
            transaction.growth += growth_of(key.len(), op);
            transaction.has_put = true;
        }
        let before = transaction.writes.bytes();
        let number = Lsn(transaction.sequence);
        let dropped = transaction.writes.insert(&scratch, op, number, &transaction.savepoints);
        transaction.dropped.extend(dropped);
        // A change may take back a larger one.
        let size = (transaction.size + transaction.writes.bytes()).saturating_sub(before);
        let old_size = std::mem::replace(&mut transaction.size, size);
        self.memory.uncommitted = self.memory.uncommitted + size - old_size;
        self.note_memory();
        self.scratch = scratch;
        Ok(())
    }

    /// Whether the transaction may add a change now; the largest one spills when not (rule D7).
    pub(crate) fn admit_write(&mut self, xid: Xid) -> Step<()> {
        self.demand_no_garbage(xid)?;
        let is_crowded = self.may_be_ahead() && {
            let frames_max = self.frames_max();
            self.pool.shrink(frames_max);
            self.frames_exceed()
        };
        let is_large = self.memory.uncommitted > self.memory.limits.uncommitted;
        if let Some(why) = self.obstacles.no_spill().filter(|_| is_large) {
            let why = why.clone();
            // A transaction that is small beside the others goes on all the same, and may make room.
            let share = self.memory.limits.uncommitted / self.transactions.len().max(1);
            let is_small = self.transaction(xid)?.size <= share;
            return if is_small { Ok(()) } else { Err(self.refusal(xid, why).into()) };
        }
        if is_large || is_crowded {
            return Err(Stop::Wait(Wait::Memory));
        }
        Ok(())
    }

    /// Error for a transaction that finds no room. A transaction that only deletes makes room once it
    /// commits: in smaller parts it can.
    pub(crate) fn refusal(&self, xid: Xid, why: EngineError) -> EngineError {
        let deletes = |own: &Transaction| !own.has_put && (own.size > 0 || !own.runs.is_empty());
        match self.transactions.get(&xid).is_some_and(deletes) {
            true if why == EngineError::Full => EngineError::TooLarge,
            _ => why,
        }
    }

    /// The transaction's own changes to `key`, oldest first.
    pub(crate) fn own_versions(
        &mut self,
        xid: Xid,
        table: Table,
        key: &[u8],
    ) -> Step<Vec<OwnVersion>> {
        let transaction = self.settled_transaction(xid)?;
        if transaction.writes.is_empty() && transaction.runs.is_empty() {
            return Ok(Vec::new());
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        private_key(table, key, &mut scratch);
        let result = self.own_versions_of(xid, &scratch);
        self.scratch = scratch;
        result
    }

    fn own_versions_of(&mut self, xid: Xid, key: &[u8]) -> Step<Vec<OwnVersion>> {
        let mut versions = self.spilled_versions(xid, key)?;
        let transaction = self.transaction(xid)?;
        versions.extend(transaction.writes.versions(key).map(|(_, op)| OwnVersion::of(op)));
        Ok(versions)
    }

    /// Memory and growth that a commit moves to the trees.
    pub(crate) fn demand_of(&self, xid: Xid) -> (usize, usize) {
        let demand = |transaction: &Transaction| {
            (transaction.size, transaction.growth_at_most(self.payload_size))
        };
        self.transactions.get(&xid).map_or((0, 0), demand)
    }

    /// Counts the memory of a transaction's changes anew.
    pub(crate) fn recount(&mut self, xid: Xid) {
        let Some(transaction) = self.transactions.get_mut(&xid) else { return };
        let size = if transaction.writes.is_empty() { 0 } else { transaction.writes.bytes() };
        let old_size = std::mem::replace(&mut transaction.size, size);
        self.memory.uncommitted = self.memory.uncommitted + size - old_size;
    }

    /// The running transaction with most changes in memory.
    pub(crate) fn largest_transaction(&self) -> Option<Xid> {
        let sized = self
            .transactions
            .iter()
            .filter(|(xid, transaction)| transaction.size > 0 && !self.is_claiming(**xid));
        sized.max_by_key(|(xid, transaction)| (transaction.size, **xid)).map(|(xid, _)| *xid)
    }

    /// Transactions that wait for a lock.
    #[must_use]
    pub fn lock_wait_count(&self) -> usize {
        self.locks.waiting_count()
    }

    pub(crate) fn count_user_bytes(&mut self, size: usize) {
        self.counts.user_bytes += size as u64;
    }
}
