//! Read-write transactions of the blocking interface.

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flagstone_nand::Nand;
use flagstone_space::{Bill, Lsn};
use tracing::{debug, trace};

use super::rows::{KeyValue, Range};
use crate::runtime::EVENTS;
use crate::{
    CATALOG, Descriptor, Durability, EngineError, Meter, Read, Reader, Runtime, Savepoint,
    ScanRange, Table, Xid,
};

/// A commit that returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Commit {
    /// Place in the order of commits.
    pub lsn: Lsn,
    /// Work on the flash during the calls of this transaction, by their threads: the program that made it
    /// durable, and background work for all transactions, such as merges, checkpoints and garbage collection.
    /// Background work is done by the thread that finds it, so one transaction pays for work that many have
    /// put off, and a flush that several share is on one bill. The sum of all bills is the work of the
    /// device.
    pub bill: Bill,
}

/// A serializable read-write transaction; dropping it aborts.
///
/// An operation may wait for other transactions, as long as [`crate::Options::lock_timeout`] lets it. When
/// [`EngineError::Deadlock`] or [`EngineError::LockTimeout`] comes back the transaction is gone: begin it
/// again.
pub struct Transaction<D: Nand> {
    runtime: Arc<Runtime<D>>,
    xid: Xid,
    is_over: bool,
    meter: Meter,
    /// The transaction has changed something, and so has passed the budget of wear.
    is_admitted: AtomicBool,
}

impl<D: Nand> fmt::Debug for Transaction<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("xid", &self.xid).finish_non_exhaustive()
    }
}

impl<D: Nand> Transaction<D> {
    pub(super) fn begin(runtime: Arc<Runtime<D>>) -> Self {
        let xid = runtime.engine().begin();
        Self {
            runtime,
            xid,
            is_over: false,
            meter: Meter::default(),
            is_admitted: AtomicBool::new(false),
        }
    }

    /// Result of `calls`, whose work on the flash goes on the bill of the transaction.
    fn run<T>(&self, calls: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
        let result = self.meter.charge(calls);
        if matches!(result, Err(EngineError::Deadlock)) {
            debug!(target: EVENTS, xid = ?self.xid, "aborted to end a deadlock");
        }
        result
    }

    /// Asks the budget of wear, once, before the first change.
    fn admit(&self) -> Result<(), EngineError> {
        if !self.is_admitted.load(Ordering::Relaxed) {
            self.runtime.admit_change()?;
            self.is_admitted.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Durability of a commit that names none.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.runtime.durability()
    }

    /// Work on the flash in this transaction's calls so far: see [`Commit::bill`].
    #[must_use]
    pub fn bill(&self) -> Bill {
        self.meter.bill()
    }

    /// Creates the table `name`, whatever its name is.
    ///
    /// # Errors
    ///
    /// `NameTooLong`, `TooManyTables`, and the errors of [`Transaction::put`].
    pub fn create_table(&mut self, name: &str) -> Result<Table, EngineError> {
        self.admit()?;
        self.run(|| self.runtime.create_table(self.xid, name))
    }

    /// Moves the table `from` to the name `to`, in the catalog alone.
    ///
    /// # Errors
    ///
    /// `NoTable`, `TableExists`, `NameTooLong`, and the errors of [`Transaction::put`].
    pub fn rename_entry(&mut self, from: &str, to: &str) -> Result<(), EngineError> {
        self.admit()?;
        self.run(|| self.runtime.rename_table(self.xid, from, to))
    }

    /// Takes the table `name` out of the catalog; with the commit the table is dropped.
    ///
    /// # Errors
    ///
    /// `NoTable`, and the errors of [`Transaction::delete`].
    pub fn drop_entry(&mut self, name: &str) -> Result<Table, EngineError> {
        self.admit()?;
        self.run(|| self.runtime.drop_table(self.xid, name))
    }

    /// Names of tables that begin with `prefix`; no such table can appear before the transaction ends.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn names(&self, prefix: &str) -> Result<Vec<String>, EngineError> {
        let rows = self.rows(CATALOG, ScanRange::prefix(prefix.as_bytes()));
        rows.map(|row| Ok(String::from_utf8_lossy(&row?.0).into_owned())).collect()
    }

    /// The value of `key`.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        let mut value = Vec::new();
        match self.read(table, key, &mut value)? {
            Read::Absent => Ok(None),
            Read::Inline => Ok(Some(value)),
            Read::Large(descriptor) => self.load(&descriptor).map(Some),
        }
    }

    /// Whether `key` has a value. A value that has pages of its own is not loaded.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn contains_key(&self, table: Table, key: &[u8]) -> Result<bool, EngineError> {
        Ok(self.read(table, key, &mut Vec::new())? != Read::Absent)
    }

    fn read(&self, table: Table, key: &[u8], value: &mut Vec<u8>) -> Result<Read, EngineError> {
        let reader = Reader::Transaction(self.xid);
        self.run(|| self.runtime.read_key(reader, table, key, value))
    }

    /// Locks `key` before it is read for a change: read-modify-write without deadlocks.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn lock_key(&self, table: Table, key: &[u8]) -> Result<(), EngineError> {
        self.run(|| self.runtime.lock_key(self.xid, table, key))
    }

    /// `size` bytes of the value at `offset`, fewer when the value is shorter; reads no page when pending
    /// changes hold these bytes.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn get_part(
        &self,
        table: Table,
        key: &[u8],
        offset: usize,
        size: usize,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let (xid, part) = (self.xid, (offset, size));
        let mut value = Vec::new();
        match self.run(|| self.runtime.read_part(xid, table, key, part, &mut value))? {
            Read::Absent => Ok(None),
            Read::Inline => Ok(Some(value)),
            Read::Large(descriptor) => {
                let value = self.load(&descriptor)?;
                let end = offset.saturating_add(size).min(value.len());
                Ok(Some(value.get(offset..end).unwrap_or(&[]).to_vec()))
            }
        }
    }

    /// Sets the value of `key`.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        self.put_row(table, key, value)
    }

    /// As [`Transaction::put`], for cursors, which borrow the transaction as a whole.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn put_row(&self, table: Table, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        self.admit()?;
        self.run(|| self.runtime.put(self.xid, table, key, value))
    }

    fn load(&self, descriptor: &Descriptor) -> Result<Vec<u8>, EngineError> {
        self.run(|| self.runtime.load(Reader::Transaction(self.xid), descriptor))
    }

    /// Changes `bytes` at `offset` of the value of `key`; only these bytes are logged and kept.
    ///
    /// # Errors
    ///
    /// `PatchOutOfRange` when the key is absent or the value too short.
    pub fn patch(
        &mut self,
        table: Table,
        key: &[u8],
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        self.admit()?;
        self.run(|| self.runtime.patch(self.xid, table, key, offset, bytes))
    }

    /// Deletes `key`, whether it exists or not.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn delete(&mut self, table: Table, key: &[u8]) -> Result<(), EngineError> {
        self.delete_row(table, key)
    }

    /// As [`Transaction::delete`], for cursors.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn delete_row(&self, table: Table, key: &[u8]) -> Result<(), EngineError> {
        self.admit()?;
        self.run(|| self.runtime.delete(self.xid, table, key))
    }

    /// Rows of a range in ascending order; [`Range::rev`] turns it around. From the first row on, the rest of
    /// the range is locked until the transaction ends, gaps included: other transactions can read it, and
    /// wait to change it. A reader that changes nothing reads without locks in a [`super::Snapshot`].
    pub fn range<'a>(&'a self, table: Table, bounds: impl RangeBounds<&'a [u8]>) -> Range<'a, D> {
        self.rows(table, scan_range(&bounds))
    }

    /// Rows whose keys start with `prefix`.
    pub fn prefix(&self, table: Table, prefix: &[u8]) -> Range<'_, D> {
        self.rows(table, ScanRange::prefix(prefix))
    }

    /// Rows of a range in ascending order.
    pub fn rows(&self, table: Table, range: ScanRange) -> Range<'_, D> {
        let (runtime, reader) = self.reader();
        Range::new(runtime, reader, table, range).charged_to(&self.meter)
    }

    /// The bill of the transaction.
    pub const fn meter(&self) -> &Meter {
        &self.meter
    }

    /// The runtime, and the reader that the transaction is for it.
    pub fn reader(&self) -> (&Runtime<D>, Reader) {
        (&self.runtime, Reader::Transaction(self.xid))
    }

    /// The first row. Locks the whole table for changes of others, as [`Transaction::range`] does.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn first(&self, table: Table) -> Result<Option<KeyValue>, EngineError> {
        self.range(table, ..).next().transpose()
    }

    /// The last row. Locks the whole table, as [`Transaction::first`] does.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn last(&self, table: Table) -> Result<Option<KeyValue>, EngineError> {
        self.range(table, ..).rev().next().transpose()
    }

    /// How many rows the table has, counted under a lock on all of it.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn len(&self, table: Table) -> Result<u64, EngineError> {
        self.range(table, ..).count_rows()
    }

    /// How many rows the table has, roughly, at once.
    #[must_use]
    pub fn len_estimate(&self, table: Table) -> u64 {
        self.runtime.engine().len_estimate(table)
    }

    /// Marks a point to which the transaction can be rolled back.
    ///
    /// # Errors
    ///
    /// The transaction was aborted to end a deadlock.
    pub fn savepoint(&mut self) -> Result<Savepoint, EngineError> {
        self.run(|| self.runtime.savepoint(self.xid))
    }

    /// Forgets the changes made since `savepoint`.
    ///
    /// # Errors
    ///
    /// `NoSavepoint` when the savepoint is not one of this transaction's.
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<(), EngineError> {
        self.run(|| self.runtime.rollback_to(self.xid, savepoint))
    }

    /// Commits with the durability of the database's options.
    ///
    /// # Errors
    ///
    /// `Full`, `TooLarge`: nothing is committed. `OutcomeUnknown`: the device failed while it was written.
    pub fn commit(self) -> Result<Commit, EngineError> {
        let durability = self.runtime.durability();
        self.commit_with(durability)
    }

    /// Commits; with anything but `Deferred`, durable when it returns.
    ///
    /// # Errors
    ///
    /// As [`Transaction::commit`].
    pub fn commit_with(mut self, durability: Durability) -> Result<Commit, EngineError> {
        let ticket = self.run(|| self.runtime.commit(self.xid))?;
        self.is_over = true;
        self.meter.charge(|| self.runtime.settle(ticket.lsn, durability))?;
        trace!(target: EVENTS, lsn = ticket.lsn.0, ?durability, "committed");
        // Work that fails is found again by the next caller that needs it; the commit stands.
        let _ = self.meter.charge(|| self.runtime.work_some());
        Ok(Commit { lsn: ticket.place, bill: self.bill() })
    }

    /// Aborts: nothing of the transaction remains.
    pub fn abort(self) {
        drop(self);
    }
}

impl<D: Nand> Drop for Transaction<D> {
    fn drop(&mut self) {
        if !self.is_over {
            self.runtime.abort(self.xid);
        }
    }
}

/// The range of keys within `bounds`.
pub fn scan_range<'a>(bounds: &impl RangeBounds<&'a [u8]>) -> ScanRange {
    let bound = |bound: Bound<&&'a [u8]>| bound.map(|key| *key);
    ScanRange::from_bounds(bound(bounds.start_bound()), bound(bounds.end_bound()))
}
