//! Read-write transactions.

use std::fmt;
use std::ops::RangeBounds;

use flagstone_engine::blocking;
use flagstone_engine::{Durability, Savepoint, ScanRange, Table};
use flagstone_nand::AnyNand;
use flagstone_space::{Bill, Lsn};

use super::rows::{KeyValue, Range};
use crate::{CommitError, ReadError, TableError, WriteError};

/// A commit that returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Commit {
    /// Place in the order of commits: no other transaction that changed something has it. A transaction
    /// that changed nothing has the place of an earlier commit, or zero if it read nothing, too.
    pub lsn: Lsn,
    /// Work on the flash during the calls of this transaction, by their threads: the program that made it
    /// durable, and background work for all transactions, such as merges, checkpoints and garbage collection.
    /// Background work is done by the thread that finds it, so one transaction pays for work that many have
    /// put off, and a flush that several share is on one bill. The sum of all bills is the work of the
    /// device.
    ///
    /// ```
    /// use flagstone::{Cause, Database, Options};
    /// use flagstone::device::{Profile, SimNand};
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
/// [`WriteError::Deadlock`] or [`WriteError::LockTimeout`] comes back, or the same of [`ReadError`], the
/// transaction is gone: begin it again ([`Error::is_retryable`](crate::Error::is_retryable)).
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("db");
/// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
/// use flagstone::{Durability, Error};
///
/// let accounts = db.table("accounts")?;
/// let pay = |amount: u64| -> Result<(), Error> {
///     let mut txn = db.begin();
///     let old = txn.get(accounts, b"ada")?.unwrap_or_default();
///     let old = String::from_utf8_lossy(&old).parse().unwrap_or(0);
///     txn.put(accounts, b"ada", (old + amount).to_string().as_bytes())?;
///     txn.commit_with(Durability::Group)?; // durable, and shares its flush with others
///     Ok(())
/// };
/// while pay(5).is_err_and(|error| error.is_retryable()) {}
/// pay(7)?;
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
    /// Error of a change that stopped half way: the transaction cannot be committed.
    doom: Option<WriteError>,
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Transaction {
    pub(super) const fn new(inner: blocking::Transaction<AnyNand>) -> Self {
        Self { inner, doom: None }
    }

    /// Makes a commit fail with `error`, since a change in several parts stopped half way.
    pub(crate) fn doom(&mut self, error: &WriteError) {
        self.doom.get_or_insert_with(|| error.clone());
    }

    /// Work on the flash in this transaction's calls so far: see [`Commit::bill`].
    #[must_use]
    pub fn bill(&self) -> Bill {
        self.inner.bill()
    }

    /// Creates the table `name`, whatever its name is.
    pub(crate) fn create_table(&mut self, name: &str) -> Result<Table, TableError> {
        self.inner.create_table(name).map_err(TableError::of)
    }

    /// The value of `key`.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        self.inner.get(table, key).map_err(ReadError::of)
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
    /// See [`ReadError`].
    pub fn contains_key(&self, table: Table, key: &[u8]) -> Result<bool, ReadError> {
        self.inner.contains_key(table, key).map_err(ReadError::of)
    }

    /// Locks `key` before it is read for a change: read-modify-write without deadlocks.
    ///
    /// # Errors
    ///
    /// See [`WriteError`].
    pub fn lock_key(&self, table: Table, key: &[u8]) -> Result<(), WriteError> {
        self.inner.lock_key(table, key).map_err(WriteError::of)
    }

    /// `size` bytes of the value at `offset`, fewer when the value is shorter; reads no page when pending
    /// changes hold these bytes.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    pub fn get_part(
        &self,
        table: Table,
        key: &[u8],
        offset: usize,
        size: usize,
    ) -> Result<Option<Vec<u8>>, ReadError> {
        self.inner.get_part(table, key, offset, size).map_err(ReadError::of)
    }

    /// Sets the value of `key`.
    ///
    /// # Errors
    ///
    /// See [`WriteError`].
    pub fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), WriteError> {
        self.inner.put(table, key, value).map_err(WriteError::of)
    }

    /// Changes `bytes` at `offset` of the value of `key`; only these bytes are logged and kept.
    ///
    /// # Errors
    ///
    /// `PatchOutOfRange` when the key is absent or the value too short; see [`WriteError`].
    pub fn patch(
        &mut self,
        table: Table,
        key: &[u8],
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), WriteError> {
        self.inner.patch(table, key, offset, bytes).map_err(WriteError::of)
    }

    /// Deletes `key`, whether it exists or not.
    ///
    /// # Errors
    ///
    /// See [`WriteError`].
    pub fn delete(&mut self, table: Table, key: &[u8]) -> Result<(), WriteError> {
        self.inner.delete(table, key).map_err(WriteError::of)
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
    /// let keys = |rows: flagstone::Range<'_>| -> Result<Vec<_>, flagstone::ReadError> {
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
    /// See [`ReadError`].
    pub fn first(&self, table: Table) -> Result<Option<KeyValue>, ReadError> {
        self.inner.first(table).map_err(ReadError::of)
    }

    /// The last row. Locks the whole table, as [`Transaction::first`] does.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    pub fn last(&self, table: Table) -> Result<Option<KeyValue>, ReadError> {
        self.inner.last(table).map_err(ReadError::of)
    }

    /// How many rows the table has, counted under a lock on all of it.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    pub fn len(&self, table: Table) -> Result<u64, ReadError> {
        self.inner.len(table).map_err(ReadError::of)
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
    /// The transaction was aborted, by the error `Deadlock` or `LockTimeout` of an operation or by this one.
    pub fn savepoint(&mut self) -> Result<Savepoint, WriteError> {
        self.inner.savepoint().map_err(WriteError::of)
    }

    /// Forgets the changes made since `savepoint`.
    ///
    /// # Errors
    ///
    /// `NoSavepoint` when the savepoint is not one of this transaction's.
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<(), WriteError> {
        self.inner.rollback_to(savepoint).map_err(WriteError::of)
    }

    /// Commits with the durability of the database's options.
    ///
    /// # Errors
    ///
    /// `Full`, `TooLarge`: nothing is committed. `OutcomeUnknown`: the device failed while it was written. See
    /// [`CommitError`].
    pub fn commit(self) -> Result<Commit, CommitError> {
        let durability = self.inner.durability();
        self.commit_with(durability)
    }

    /// Commits; with anything but `Deferred`, durable when it returns.
    ///
    /// # Errors
    ///
    /// As [`Transaction::commit`].
    pub fn commit_with(self, durability: Durability) -> Result<Commit, CommitError> {
        match self.doom {
            Some(error) => Err(CommitError::of(error)),
            None => self.inner.commit_with(durability).map(Commit::of).map_err(CommitError::of),
        }
    }

    /// Aborts: nothing of the transaction remains.
    pub fn abort(self) {
        drop(self);
    }
}
