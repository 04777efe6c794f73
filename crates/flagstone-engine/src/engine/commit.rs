//! Layer 4 of the engine, the commits: admission, and the ways of a commit to flash.
//!
//! A commit goes by the log, with its leaves (`claim`), or as a run (`run_commit`). Admission makes sure of
//! room first, in memory, in the log and on the device. Never chooses the leaf that a merge takes: layer 3
//! does.

use flagstone_space::Lsn;

use crate::bugs::SeededBug;
use crate::delta::{DeltaMap, DroppedRefs, KeyRange};
use crate::engine::merge::Merges;
use crate::engine::step::Step;
use crate::engine::store::frontier::PENDING_SHARE;
use crate::engine::store::run::keys_are_unique;
use crate::engine::txn::transaction::{Ticket, Transaction};
use crate::error::EngineError;
use crate::lock::Xid;
use crate::options::Durability;

pub(in crate::engine) mod admission;
pub(in crate::engine) mod checkpoint_size;
pub(in crate::engine) mod claim;
pub(in crate::engine) mod commit_record;
pub(in crate::engine) mod costs;
pub(in crate::engine) mod dropped;
pub(in crate::engine) mod job;
pub(in crate::engine) mod run_commit;
pub(in crate::engine) mod spill;
pub(in crate::engine) mod value;

/// Layer 4 of the engine, the commits: admission, and the three ways to flash: by the log, by leaves, by a run.
#[derive(Debug)]
pub struct Commits {
    merges: Merges,
    pub(in crate::engine) commit_costs: costs::CommitCosts,
}

stands_on!(Commits, merges: Merges);

impl Commits {
    /// No commit yet.
    pub(in crate::engine) fn new(merges: Merges) -> Self {
        Self { merges, commit_costs: costs::CommitCosts::default() }
    }

    /// Commits: gives the changes their place in the log, makes them visible and lets locks go.
    ///
    /// Durable when `Store::durable` reaches the ticket's LSN (rule D8).
    ///
    /// # Errors
    ///
    /// Stops for memory and log room; `Full` when the device has no room; nothing is committed then
    /// and the transaction goes on.
    pub fn commit(&mut self, xid: Xid, durability: Durability) -> Step<Ticket> {
        let transaction = self.settled_transaction(xid)?;
        let is_empty = transaction.writes.is_empty() && transaction.runs.is_empty();
        let (has_read, claimed) = (transaction.has_read, transaction.claimed);
        if let Some(ticket) = claimed {
            self.transactions.remove(&xid);
            self.request_flush(ticket.lsn, durability);
            return Ok(ticket);
        }
        if is_empty && !self.is_claiming(xid) {
            // After a failure it has read durable commits only.
            let waits = has_read && !self.is_poisoned() && !self.bugs.has(SeededBug::ReaderNotHeld);
            let lsn = if waits { self.frontier.committed } else { Lsn::ZERO };
            self.end(xid);
            return Ok(self.request_flush(lsn, durability));
        }
        self.demand_no_garbage(xid)?;
        self.demand_sealed(xid)?;
        self.try_page_commit(xid)?;
        self.try_run_commit(xid)?;
        self.admit_commit(xid)?;
        let Some(mut transaction) = self.transactions.remove(&xid) else {
            return Err(EngineError::Ended.into());
        };
        self.memory.uncommitted -= transaction.size;
        if !transaction.savepoints.is_empty() {
            transaction.writes = without_versions(&transaction.writes, &mut transaction.dropped);
        }
        let lsn = self.append_commit(&transaction);
        self.cycle.count_committed(transaction.size);
        self.apply_commit(&transaction, lsn);
        self.note_drops(&transaction.drops, lsn);
        self.frontier.committed = lsn;
        self.counts.commits += 1;
        if self.frontier.log.pending_bytes() > self.options.memory / PENDING_SHARE {
            // Commits without a waiting caller take memory until they are written.
            self.want_flush();
        }
        self.release_locks(xid);
        Ok(self.request_flush(lsn, durability))
    }

    /// Aborts: the changes are forgotten, nothing is written.
    pub fn abort(&mut self, xid: Xid) {
        if !self.abandon_claim(xid) {
            self.forget(xid);
        }
    }

    pub(in crate::engine) fn request_flush(&mut self, lsn: Lsn, durability: Durability) -> Ticket {
        match durability {
            Durability::Deferred => {}
            Durability::Group => {
                self.frontier.group_commit_lsn = self.frontier.group_commit_lsn.max(lsn)
            }
            Durability::Immediate => self.frontier.flush_to = self.frontier.flush_to.max(lsn),
        }
        Ticket { lsn, place: lsn }
    }

    fn apply_commit(&mut self, transaction: &Transaction, lsn: Lsn) {
        if let Some(group) = transaction.group {
            self.await_group(lsn, group);
            self.runs.commit(lsn, &transaction.runs, &transaction.rolled_back);
            self.refresh_boundaries();
            self.counts.run_commits += u64::from(transaction.commits_by_run);
            if !transaction.runs.is_empty() && !transaction.commits_by_run {
                // Its runs are many for memory, not for the leaves.
                self.ask_for_runs();
            }
        }
        if self.folds_commits() {
            self.fold_commit(&transaction.writes, lsn);
        } else {
            for entry in transaction.writes.range(KeyRange::ALL) {
                self.add_entry(&entry, lsn);
            }
        }
        // Its record lists them as garbage: a new owner of the numbers has them in another group.
        self.take_back(transaction.given_back.iter().chain(&transaction.given_saved).copied());
        let growth = transaction.growth_at_most(self.payload_size);
        self.room.growth.committed(growth);
        if growth == 0 {
            self.obstacles.note_shrinking();
        }
        self.drop_refs(transaction.dropped.clone(), lsn);
    }
}

/// The same changes, one version a key.
fn without_versions(writes: &DeltaMap, dropped: &mut DroppedRefs) -> DeltaMap {
    let mut whole = DeltaMap::new();
    for entry in writes.range(KeyRange::ALL) {
        for (number, op) in entry.versions() {
            dropped.extend(whole.insert(entry.key(), op, number, &[]));
        }
    }
    debug_assert!(keys_are_unique(&whole), "boundaries kept versions apart");
    whole
}
