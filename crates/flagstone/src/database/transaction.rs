//! Read-write transactions.

use std::fmt;
use std::ops::RangeBounds;

use flagstone_engine::blocking;
use flagstone_engine::{Durability, EngineError, Savepoint, ScanRange, Table};
use flagstone_nand::AnyNand;
use flagstone_space::{Bill, Lsn};

use super::rows::{KeyValue, Range};

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

impl Commit {
    const fn of(commit: blocking::Commit) -> Self {
        Self { lsn: commit.lsn, bill: commit.bill }
    }
}

/// A serializable read-write transaction; dropping it aborts.
///
/// An operation may wait for other transactions, as long as [`crate::Options::lock_timeout`] lets it. When
/// [`EngineError::Deadlock`] or [`EngineError::LockTimeout`] comes back the transaction is gone: begin it
/// again.
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
pub struct Transaction {
    inner: blocking::Transaction<AnyNand>,
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Transaction {
    pub(super) const fn new(inner: blocking::Transaction<AnyNand>) -> Self {
        Self { inner }
    }

    /// Makes a commit fail with `error`, since a change in several parts stopped half way.
    pub(crate) fn doom(&mut self, error: &EngineError) {
        self.inner.doom(error);
    }

    /// Work on the flash in this transaction's calls so far: see [`Commit::bill`].
    #[must_use]
    pub fn bill(&self) -> Bill {
        self.inner.bill()
    }

    /// Creates the table `name`, whatever its name is.
    pub(crate) fn create_table(&mut self, name: &str) -> Result<Table, EngineError> {
        self.inner.create_table(name)
    }

    /// The value of `key`.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        self.inner.get(table, key)
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
        self.inner.contains_key(table, key)
    }

    /// Locks `key` before it is read for a change: read-modify-write without deadlocks.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn lock_key(&self, table: Table, key: &[u8]) -> Result<(), EngineError> {
        self.inner.lock_key(table, key)
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
        self.inner.get_part(table, key, offset, size)
    }

    /// Sets the value of `key`.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        self.inner.put(table, key, value)
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
        self.inner.patch(table, key, offset, bytes)
    }

    /// Deletes `key`, whether it exists or not.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn delete(&mut self, table: Table, key: &[u8]) -> Result<(), EngineError> {
        self.inner.delete(table, key)
    }

    /// Rows of a range in ascending order; [`Range::rev`] turns it around. From the first row on, the rest of
    /// the range is locked until the transaction ends, gaps included: other transactions can read it, and
    /// wait to change it. A reader that changes nothing reads without locks in a [`crate::Snapshot`].
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
    pub fn range<'a>(&'a self, table: Table, bounds: impl RangeBounds<&'a [u8]>) -> Range<'a> {
        Range::new(self.inner.range(table, bounds))
    }

    /// Rows whose keys start with `prefix`.
    pub fn prefix(&self, table: Table, prefix: &[u8]) -> Range<'_> {
        Range::new(self.inner.prefix(table, prefix))
    }

    pub(crate) fn rows(&self, table: Table, range: ScanRange) -> Range<'_> {
        Range::new(self.inner.rows(table, range))
    }

    pub(super) const fn inner(&self) -> &blocking::Transaction<AnyNand> {
        &self.inner
    }

    /// The first row. Locks the whole table for changes of others, as [`Transaction::range`] does.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn first(&self, table: Table) -> Result<Option<KeyValue>, EngineError> {
        self.inner.first(table)
    }

    /// The last row. Locks the whole table, as [`Transaction::first`] does.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn last(&self, table: Table) -> Result<Option<KeyValue>, EngineError> {
        self.inner.last(table)
    }

    /// How many rows the table has, counted under a lock on all of it.
    ///
    /// # Errors
    ///
    /// See [`EngineError`].
    pub fn len(&self, table: Table) -> Result<u64, EngineError> {
        self.inner.len(table)
    }

    /// How many rows the table has, roughly, at once.
    #[must_use]
    pub fn len_estimate(&self, table: Table) -> u64 {
        self.inner.len_estimate(table)
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
        self.inner.savepoint()
    }

    /// Forgets the changes made since `savepoint`.
    ///
    /// # Errors
    ///
    /// `NoSavepoint` when the savepoint is not one of this transaction's.
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<(), EngineError> {
        self.inner.rollback_to(savepoint)
    }

    /// Commits with the durability of the database's options.
    ///
    /// # Errors
    ///
    /// `Full`, `TooLarge`: nothing is committed. `OutcomeUnknown`: the device failed while it was written.
    pub fn commit(self) -> Result<Commit, EngineError> {
        Ok(Commit::of(self.inner.commit()?))
    }

    /// Commits; with anything but `Deferred`, durable when it returns.
    ///
    /// # Errors
    ///
    /// As [`Transaction::commit`].
    pub fn commit_with(self, durability: Durability) -> Result<Commit, EngineError> {
        Ok(Commit::of(self.inner.commit_with(durability)?))
    }

    /// Aborts: nothing of the transaction remains.
    pub fn abort(self) {
        drop(self);
    }
}
