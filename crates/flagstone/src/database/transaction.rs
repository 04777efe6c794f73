//! Read-write transactions of the blocking interface.

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flagstone_nand::Nand;
use flagstone_space::{Bill, Lsn};
use tracing::{debug, trace};

use super::rows::{KeyValue, Range, Reader};
use super::{AnyNand, settle};
use crate::engine::{CATALOG, Descriptor, Read, Savepoint, ScanRange, Step, Table, tombstone};
use crate::error::EngineError;
use crate::lock::Xid;
use crate::options::Durability;
use crate::runtime::{Runtime, meter};
use crate::sync::Mutex;

/// A commit that returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Commit {
    /// Place in the order of commits.
    pub lsn: Lsn,
    /// What was done to the flash during the calls of this transaction, by their threads: the program that
    /// made it durable, and what they did besides for everybody, such as merges, checkpoints and garbage
    /// collection. Whoever finds work does it, so one transaction pays for what many have put off, and a
    /// flush that several share is on one bill. Bills add up to what the device did.
    ///
    /// ```
    /// use flagstone::{Cause, Database, Options};
    /// use flagstone_nand::{Profile, SimNand};
    ///
    /// let profile = Profile::named("slc-2k")?.with_block_count(64)?;
    /// let db = Database::create_on(SimNand::new(&profile, 1), &Options::default())?;
    /// let table = db.table("t")?;
    /// let mut txn = db.begin();
    /// txn.put(table, b"key", b"value")?;
    /// let bill = txn.commit()?.bill;
    /// assert_eq!(bill.programs_for(Cause::Log), 1); // one page of log, no page of data
    /// assert_eq!((bill.programs_for(Cause::Data), bill.erases()), (0, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub bill: Bill,
}

/// A serializable read-write transaction; dropping it aborts.
///
/// An operation may wait for other transactions, as long as [`crate::Options::lock_timeout`] lets it. When
/// [`EngineError::Deadlock`] or [`EngineError::LockTimeout`] comes back the transaction is gone: begin it again.
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("db");
/// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
/// use flagstone::{Durability, EngineError};
///
/// let accounts = db.table("accounts")?;
/// let pay = |amount: u64| -> Result<(), EngineError> {
///     let mut txn = db.begin();
///     let old = txn.get(accounts, b"ada")?.unwrap_or_default();
///     let old = String::from_utf8_lossy(&old).parse().unwrap_or(0);
///     txn.put(accounts, b"ada", (old + amount).to_string().as_bytes())?;
///     txn.commit_with(Durability::Group)?; // durable, and shares its flush with others
///     Ok(())
/// };
/// while let Err(EngineError::Deadlock) = pay(5) {}
/// while let Err(EngineError::Deadlock) = pay(7) {}
///
/// let mut txn = db.begin();
/// txn.patch(accounts, b"ada", 1, b"3")?; // one byte of the value
/// assert_eq!(txn.get(accounts, b"ada")?.as_deref(), Some(&b"13"[..]));
/// txn.delete(accounts, b"ada")?;
/// txn.abort();
/// assert_eq!(db.snapshot()?.get(accounts, b"ada")?.as_deref(), Some(&b"12"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Transaction<D: Nand = AnyNand> {
    runtime: Arc<Runtime<D>>,
    xid: Xid,
    is_over: bool,
    bill: Mutex<Bill>,
    /// It has changed something, and so passed the budget of wear.
    is_admitted: AtomicBool,
    /// Why it cannot be committed, if a change of it stopped half way.
    doom: Option<EngineError>,
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
            bill: Mutex::default(),
            is_admitted: AtomicBool::new(false),
            doom: None,
        }
    }

    fn run<T>(
        &self,
        operation: impl FnMut(&mut crate::Engine) -> Step<T>,
    ) -> Result<T, EngineError> {
        let result = self.metered(|| self.runtime.run_for(Some(self.xid), operation));
        if matches!(result, Err(EngineError::Deadlock)) {
            debug!(xid = ?self.xid, "aborted to end a deadlock");
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

    /// What `calls` give; what they do to the flash is on the bill of this transaction.
    fn metered<T>(&self, calls: impl FnOnce() -> T) -> T {
        meter::charging(&self.bill, calls)
    }

    /// Makes a commit fail with `error`: a change that consists of several stopped half way.
    pub(crate) fn doom(&mut self, error: &EngineError) {
        self.doom.get_or_insert_with(|| error.clone());
    }

    /// What was done to the flash in this transaction's calls so far: see [`Commit::bill`].
    #[must_use]
    pub fn bill(&self) -> Bill {
        *self.bill.lock()
    }

    pub(crate) fn create_table(&mut self, name: &str) -> Result<Table, EngineError> {
        self.admit()?;
        let xid = self.xid;
        self.run(|engine| engine.create_table(xid, name)).map_err(of_name)
    }

    /// Moves the table `from` to the name `to`, in the catalog alone.
    pub(super) fn rename_entry(&mut self, from: &str, to: &str) -> Result<(), EngineError> {
        self.admit()?;
        let xid = self.xid;
        let entry = self.run(|engine| engine.locked_entry(xid, from)).map_err(of_name)?;
        let (_, entry) = entry.ok_or(EngineError::NoTable)?;
        if self.run(|engine| engine.locked_entry(xid, to)).map_err(of_name)?.is_some() {
            return Err(EngineError::TableExists);
        }
        self.run(|engine| engine.put(xid, CATALOG, to.as_bytes(), &entry))?;
        self.run(|engine| engine.delete(xid, CATALOG, from.as_bytes()))
    }

    /// Takes the table `name` out of the catalog; the commit makes it one that was dropped.
    pub(super) fn drop_entry(&mut self, name: &str) -> Result<Table, EngineError> {
        self.admit()?;
        let xid = self.xid;
        let entry = self.run(|engine| engine.locked_entry(xid, name)).map_err(of_name)?;
        let (table, entry) = entry.ok_or(EngineError::NoTable)?;
        self.run(|engine| engine.lock_table(xid, table))?;
        self.run(|engine| engine.put(xid, CATALOG, &tombstone(table), &entry))?;
        self.run(|engine| engine.delete(xid, CATALOG, name.as_bytes()))?;
        self.run(|engine| engine.note_drop(xid, table))?;
        Ok(table)
    }

    /// Names of tables that begin with `prefix`; none comes before the transaction ends.
    pub(super) fn names(&self, prefix: &str) -> Result<Vec<String>, EngineError> {
        let rows = self.rows(CATALOG, ScanRange::prefix(prefix.as_bytes()));
        rows.map(|row| Ok(String::from_utf8_lossy(&row?.0).into_owned())).collect()
    }

    /// The value of `key`.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        let xid = self.xid;
        let mut value = Vec::new();
        match self.run(|engine| engine.get(xid, table, key, &mut value))? {
            Read::Absent => Ok(None),
            Read::Inline => Ok(Some(value)),
            Read::Large(descriptor) => self.load(&descriptor).map(Some),
        }
    }

    /// Whether `key` has a value. A value that has pages of its own is not loaded.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// let table = db.table("t")?;
    /// let mut txn = db.begin();
    /// txn.put(table, b"key", b"")?;
    /// assert!(txn.contains_key(table, b"key")?);
    /// assert!(!db.snapshot()?.contains_key(table, b"key")?, "not committed yet");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn contains_key(&self, table: Table, key: &[u8]) -> Result<bool, EngineError> {
        let xid = self.xid;
        let mut value = Vec::new();
        let read = self.run(|engine| engine.get(xid, table, key, &mut value))?;
        Ok(read != Read::Absent)
    }

    /// Locks `key` before it is read for a change: read-modify-write without deadlocks.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn lock_key(&self, table: Table, key: &[u8]) -> Result<(), EngineError> {
        let xid = self.xid;
        self.run(|engine| engine.lock_key(xid, table, key))
    }

    /// `size` bytes of the value at `offset`, fewer when it is shorter; reads no page when pending
    /// changes hold them.
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
        let xid = self.xid;
        let mut value = Vec::new();
        match self.run(|engine| engine.get_part(xid, table, key, offset, size, &mut value))? {
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
    pub(super) fn put_row(
        &self,
        table: Table,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), EngineError> {
        self.admit()?;
        let xid = self.xid;
        if value.len() <= self.runtime.engine_shared().inline_value_size_max(key.len()) {
            return self.run(|engine| engine.put(xid, table, key, value));
        }
        // What speaks against the row is to be known before its pages are written.
        self.run(|engine| engine.prepare_write(xid, table, key))?;
        let descriptor = self.store(value)?;
        let put = self.run(|engine| engine.put_ref(xid, table, key, &descriptor));
        if put.is_err() {
            self.runtime.engine().drop_stored(xid, &descriptor);
        }
        put
    }

    fn load(&self, descriptor: &Descriptor) -> Result<Vec<u8>, EngineError> {
        self.metered(|| self.runtime.load_value(descriptor))
    }

    fn store(&self, value: &[u8]) -> Result<Descriptor, EngineError> {
        let xid = self.xid;
        loop {
            let plan = self.run(|engine| engine.plan_value(xid, value.len()))?;
            let stored = self.metered(|| self.runtime.store_value(xid, &plan, value));
            let stored = self.runtime.engine().stored(xid, &plan, stored);
            self.runtime.wake_others();
            match stored {
                Err(EngineError::Full) if self.metered(|| self.runtime.free_room())? => {}
                stored => return stored.map(|()| plan.descriptor),
            }
        }
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
        let xid = self.xid;
        let large = self.run(|engine| engine.patch(xid, table, key, offset, bytes))?;
        let Some(descriptor) = large else { return Ok(()) };
        let mut value = self.load(&descriptor)?;
        let target = offset
            .checked_add(bytes.len())
            .and_then(|end| value.get_mut(offset..end))
            .ok_or(EngineError::PatchOutOfRange { offset, size: bytes.len() })?;
        target.copy_from_slice(bytes);
        self.put(table, key, &value)
    }

    /// Deletes `key`, whether it exists or not.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn delete(&mut self, table: Table, key: &[u8]) -> Result<(), EngineError> {
        self.delete_row(table, key)
    }

    pub(super) fn delete_row(&self, table: Table, key: &[u8]) -> Result<(), EngineError> {
        self.admit()?;
        let xid = self.xid;
        let deleted = self.run(|engine| engine.delete(xid, table, key));
        deleted.map_err(|error| self.runtime.engine().refusal(xid, error))
    }

    /// Rows of a range in ascending order; [`Range::rev`] turns it around. From the first row on, all of the
    /// range that is left is locked until the transaction ends, gaps included: others read it, and wait to
    /// change it. What only reads does so without locks in a [`crate::Snapshot`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// let fruit = db.table("fruit")?;
    /// let mut txn = db.begin();
    /// for name in ["apple", "apricot", "banana", "cherry"] {
    ///     txn.put(fruit, name.as_bytes(), b"")?;
    /// }
    /// let keys = |rows: flagstone::Range<'_>| -> Result<Vec<_>, flagstone::EngineError> {
    ///     rows.map(|row| Ok(String::from_utf8_lossy(&row?.0).into_owned())).collect()
    /// };
    /// assert_eq!(keys(txn.range(fruit, &b"b"[..]..))?, ["banana", "cherry"]);
    /// assert_eq!(keys(txn.range(fruit, ..&b"banana"[..]).rev())?, ["apricot", "apple"]);
    /// assert_eq!(keys(txn.prefix(fruit, b"ap"))?, ["apple", "apricot"]);
    /// assert_eq!(txn.len(fruit)?, 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn range<'a>(&'a self, table: Table, bounds: impl RangeBounds<&'a [u8]>) -> Range<'a, D> {
        self.rows(table, scan_range(&bounds))
    }

    /// Rows whose keys start with `prefix`.
    pub fn prefix(&self, table: Table, prefix: &[u8]) -> Range<'_, D> {
        self.rows(table, ScanRange::prefix(prefix))
    }

    pub(crate) fn rows(&self, table: Table, range: ScanRange) -> Range<'_, D> {
        let (runtime, reader) = self.reader();
        Range::new(runtime, reader, table, range).charged_to(&self.bill)
    }

    pub(super) const fn meter(&self) -> &Mutex<Bill> {
        &self.bill
    }

    pub(super) fn reader(&self) -> (&Runtime<D>, Reader) {
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
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// let table = db.table("t")?;
    /// let mut txn = db.begin();
    /// txn.put(table, b"kept", b"")?;
    /// let savepoint = txn.savepoint()?;
    /// txn.put(table, b"dropped", b"")?;
    /// txn.rollback_to(savepoint)?;
    /// txn.commit()?;
    /// assert_eq!(db.snapshot()?.len(table)?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The transaction was aborted to end a deadlock.
    pub fn savepoint(&mut self) -> Result<Savepoint, EngineError> {
        let xid = self.xid;
        self.run(|engine| engine.savepoint(xid))
    }

    /// Forgets the changes made since `savepoint`.
    ///
    /// # Errors
    ///
    /// `NoSavepoint` when it is not one of this transaction's.
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<(), EngineError> {
        let xid = self.xid;
        self.run(|engine| engine.rollback_to(xid, savepoint))
    }

    /// Commits with the durability of the database's options.
    ///
    /// # Errors
    ///
    /// `Full`, `TooLarge`: nothing is committed. `OutcomeUnknown`: the device failed while it was written.
    pub fn commit(self) -> Result<Commit, EngineError> {
        let durability = self.runtime.engine_shared().options().durability;
        self.commit_with(durability)
    }

    /// Commits; with anything but `Deferred`, durable when it returns.
    ///
    /// # Errors
    ///
    /// As [`Transaction::commit`].
    pub fn commit_with(mut self, durability: Durability) -> Result<Commit, EngineError> {
        if let Some(error) = self.doom.take() {
            return Err(error);
        }
        self.runtime.require_own_process()?;
        let xid = self.xid;
        // The flush is this thread's business: the engine need not ask for it.
        let ticket = loop {
            match self.run(|engine| engine.commit(xid, Durability::Deferred)) {
                Ok(ticket) => break ticket,
                Err(EngineError::OutcomeUnknown) => return Err(EngineError::OutcomeUnknown),
                Err(error) if self.runtime.engine().gives_up(xid) => {
                    return Err(match error {
                        EngineError::Full => self.runtime.engine().why_full(xid),
                        error => error,
                    });
                }
                // Work for others failed, not what commits this one: that goes on.
                Err(_) => {
                    self.runtime.await_flush();
                }
            }
        };
        self.is_over = true;
        self.metered(|| settle(&self.runtime, ticket.lsn, durability))?;
        trace!(lsn = ticket.lsn.0, ?durability, "committed");
        // Work that fails is found again by whoever needs it; the commit stands.
        let _ = self.metered(|| self.runtime.work_some());
        Ok(Commit { lsn: ticket.lsn, bill: self.bill() })
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

/// The error of a key of the catalog, which is a name to whoever gave it.
fn of_name(error: EngineError) -> EngineError {
    match error {
        EngineError::KeyTooLong { size, size_max } => EngineError::NameTooLong { size, size_max },
        error => error,
    }
}

pub(super) fn scan_range<'a>(bounds: &impl RangeBounds<&'a [u8]>) -> ScanRange {
    let bound = |bound: Bound<&&'a [u8]>| bound.map(|key| *key);
    ScanRange::from_bounds(bound(bounds.start_bound()), bound(bounds.end_bound()))
}

#[cfg(test)]
mod tests {
    use flagstone_nand::{Profile, SimNand};

    use crate::{Database, Durability, EngineError, Options, Runtime};

    /// Goal: no commit of a child of a fork is told that it stands, not even one that waits in memory. Method: a
    /// database that another process opened, by its number.
    #[test]
    fn a_child_of_a_fork_commits_nothing() {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
        let mut runtime = Runtime::create(SimNand::new(&profile, 1), &Options::default()).unwrap();
        runtime.opened_by ^= 1;
        let database = Database::over(runtime);
        for durability in [Durability::Immediate, Durability::Group, Durability::Deferred] {
            let committed = database.begin().commit_with(durability).map(drop);
            assert_eq!(committed, Err(EngineError::OtherProcess), "{durability:?}");
        }
    }
}
