//! The public interface: a database that threads share.
//!
//! Owns nothing: every call is one of the engine's blocking handles over [`AnyNand`], so that no type of the
//! interface depends on the device.

use std::fmt;
#[cfg(target_os = "linux")]
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use flagstone_engine::{CheckReport, EngineStats, Options, RecoveryReport, Runtime, blocking};
use flagstone_nand::{
    Access, AnyNand, EccNand, FileStorage, ImageNand, Nand, OpenDeviceError, Profile, SegmentFile,
    kind_of,
};
use flagstone_space::{BlockReport, SpaceStats, holds_pages};

use crate::{CommitError, OpenError, ReadError, SnapshotError};

mod backup;
mod budget;
mod compact;
mod create;
mod cursor;
mod entry;
mod load;
mod rows;
mod snapshot;
mod sound;
mod tables;
mod transaction;

pub use backup::{BackupError, BackupReport, verify_backup};
pub use compact::{CompactError, CompactReport};
pub use create::FileSize;
pub use cursor::{Cursor, CursorMut};
pub use entry::Entry;
pub(crate) use load::ROW_OVERHEAD;
pub use load::{LoadError, LoadReport};
pub use rows::{KeyValue, Range, RowRef};
pub use snapshot::Snapshot;
pub(crate) use sound::is_damage;
pub use sound::{MissingRange, SoundRow, SoundRows};
pub use transaction::{Commit, Transaction};

/// A transactional key-value database on flash: cheap to clone, shared by threads.
///
/// A handle does not cross a fork: in the child, each commit and every other call that reaches the device
/// gives [`CommitError::OtherProcess`] and writes nothing, while the parent goes on. Content in memory stays
/// readable as it was at the fork. A database that is open for reading may be read on both sides.
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("sensors.flag");
/// use flagstone::{Database, Options};
///
/// let database = Database::create(&path, &Options::default())?;
/// let readings = database.table("readings")?;
/// let mut transaction = database.begin();
/// transaction.put(readings, b"2026-11-20T10:00", b"21.5")?;
/// transaction.commit()?; // durable when it returns
///
/// let snapshot = database.snapshot()?;
/// assert_eq!(snapshot.get(readings, b"2026-11-20T10:00")?.as_deref(), Some(&b"21.5"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Database {
    inner: blocking::Database<AnyNand>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").finish_non_exhaustive()
    }
}

impl Clone for Database {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl Database {
    /// Opens the database that a path holds: in a file, a NAND image or, on Linux, raw NAND (`/dev/mtdN`).
    ///
    /// Memory and all other `options` may differ from one opening to the next, but for the size of logical
    /// pages and of the log, which stay as they were created.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// use flagstone::{Database, Options};
    ///
    /// let options = Options::default();
    /// let db = Database::create(&path, &options)?;
    /// db.table("t")?;
    /// assert!(Database::open(&path, &options).is_err(), "one at a time");
    /// db.close()?;
    /// assert_eq!(Database::open(&path, &options)?.tables()?, ["t"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Options may ask for a check of the whole database:
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// use flagstone::{Database, Options, VerifyOnOpen};
    ///
    /// let options = Options::default().with_verify_on_open(VerifyOnOpen::Check);
    /// Database::create(&path, &options)?.close()?;
    /// Database::open(&path, &options)?; // `OpenError::Unsound` would have named a fault
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Device`: no such file, no device of ours, another version, damaged, locked by another process, on a
    /// file system that locks none ([`crate::FileLock`]), or read-only. `Mount` or `Corrupt`: the device
    /// holds no database, or a damaged one. `Options`: the options do not fit the device. After an error
    /// nothing was written.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self, OpenError> {
        Self::open_on(open_device(path.as_ref(), Access::Write, options)?, options)
    }

    /// Opens a database for reading: not a byte of its files is written, now or later, and the files need not
    /// be writable. Several processes, or several handles of one, may read a database at a time; none can
    /// open it for writing meanwhile.
    ///
    /// After a session that was not closed, the writes of the restart are kept in memory alone. All commits
    /// are there. Commits that were in flight when that session ended may be there too; only an opening for
    /// writing decides whether the next session finds them again.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// use flagstone::{Database, Options, TableError, WriteError};
    ///
    /// let options = Options::default();
    /// let db = Database::create(&path, &options)?;
    /// let table = db.table("t")?;
    /// let mut txn = db.begin();
    /// txn.put(table, b"key", b"value")?;
    /// txn.commit()?;
    /// db.close()?;
    ///
    /// let readers = [Database::open_read_only(&path, &options)?, Database::open_read_only(&path, &options)?];
    /// for db in &readers {
    ///     let table = db.table("t")?;
    ///     assert_eq!(db.snapshot()?.get(table, b"key")?.as_deref(), Some(&b"value"[..]));
    ///     assert_eq!(db.begin().delete(table, b"key"), Err(WriteError::ReadOnly));
    ///     assert_eq!(db.table("new"), Err(TableError::ReadOnly));
    /// }
    /// assert!(Database::open(&path, &options).is_err(), "while somebody reads");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Database::open`]; `NeedsMemory` when the changes that only the log holds do not fit the memory in
    /// `options`: mostly the memory of the session that made them is enough. Changes that had left the memory
    /// of that session are read on demand, and let go again.
    pub fn open_read_only(path: impl AsRef<Path>, options: &Options) -> Result<Self, OpenError> {
        Self::open_read_only_on(open_device(path.as_ref(), Access::Read, options)?, options)
    }
}

/// Opens the device that a path holds: a file of segments when it begins like one, a NAND image when its
/// profile lies beside it.
fn open_device(path: &Path, access: Access, options: &Options) -> Result<AnyNand, OpenDeviceError> {
    let lock = options.file_lock.into();
    #[cfg(target_os = "linux")]
    if kind_of(path)?.is_some_and(|kind| kind.is_char_device()) {
        return Ok(AnyNand::new(match access {
            Access::Write => EccNand::open_mtd(path, None)?,
            Access::Read => EccNand::open_mtd_read_only(path, None)?,
        }));
    }
    if ImageNand::is_at(path)? {
        return Ok(AnyNand::new(EccNand::open_image_with(path, access, lock)?));
    }
    Ok(AnyNand::new(SegmentFile::open(FileStorage::open_with(path, access, lock)?)?))
}

/// As [`open_device`], for reading, however damaged the device is, as long as its pages are described
/// somewhere: by the file beside an image, or else by `profile`.
pub(crate) fn open_device_to_salvage(
    path: &Path,
    profile: Option<&Profile>,
) -> Result<AnyNand, OpenDeviceError> {
    #[cfg(target_os = "linux")]
    if kind_of(path)?.is_some_and(|kind| kind.is_char_device()) {
        return Ok(AnyNand::new(EccNand::open_mtd_read_only(path, profile)?));
    }
    let is_chip = profile.is_some_and(|profile| !profile.capabilities.needs_sync);
    if is_chip || ImageNand::is_at(path)? {
        return Ok(AnyNand::new(EccNand::open_image_damaged(path, profile)?));
    }
    let storage = FileStorage::open_read_only(path)?;
    Ok(AnyNand::new(SegmentFile::open_damaged(storage, |device| holds_pages(device))?))
}

/// Whether a path holds a plain file, rather than an image or a device of the system.
fn is_plain_file(path: &Path) -> Result<bool, OpenDeviceError> {
    Ok(kind_of(path)?.is_some_and(|kind| kind.is_file()) && !ImageNand::is_at(path)?)
}

impl Database {
    /// Formats a device and creates an empty database on it.
    ///
    /// ```
    /// use flagstone::{Database, Options};
    /// use flagstone::device::{Profile, SimNand};
    ///
    /// let profile = Profile::named("slc-2k")?.with_block_count(64)?;
    /// let db = Database::create_on(SimNand::new(&profile, 1), &Options::default())?;
    /// db.table("t")?;
    /// let chip = db.into_device().ok_or("still shared")?; // as if power had been cut
    /// assert_eq!(Database::open_on(chip, &Options::default())?.tables()?, ["t"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The options do not fit the device, or the device failed.
    pub fn create_on(
        device: impl Nand + Send + 'static,
        options: &Options,
    ) -> Result<Self, OpenError> {
        let inner = blocking::Database::create_on(AnyNand::new(device), options)?;
        Ok(Self { inner })
    }

    /// Opens the database on a device, with a restart where the last session was not closed.
    ///
    /// # Errors
    ///
    /// The device holds no database, or a damaged one, or the options do not fit it; `Unsound` when
    /// [`Options::verify_on_open`] asks for a check that finds a fault.
    pub fn open_on(
        device: impl Nand + Send + 'static,
        options: &Options,
    ) -> Result<Self, OpenError> {
        let inner = blocking::Database::open_on(AnyNand::new(device), options)?;
        Ok(Self { inner })
    }

    /// As [`Database::open_read_only`], on a device.
    ///
    /// # Errors
    ///
    /// As [`Database::open_on`]; `NeedsMemory` as [`Database::open_read_only`].
    pub fn open_read_only_on(
        device: impl Nand + Send + 'static,
        options: &Options,
    ) -> Result<Self, OpenError> {
        let inner = blocking::Database::open_read_only_on(AnyNand::new(device), options)?;
        Ok(Self { inner })
    }

    /// A database over a runtime.
    #[doc(hidden)]
    #[must_use]
    pub fn over(runtime: Runtime<AnyNand>) -> Self {
        Self { inner: blocking::Database::over(runtime) }
    }

    /// The runtime that drives the engine: for the lab and for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn runtime(&self) -> &Runtime<AnyNand> {
        self.inner.runtime()
    }

    /// Begins a read-write transaction; dropping it aborts. See [`Transaction`].
    ///
    /// A transaction waits for the locks of others as long as [`Options::lock_timeout`] lets it:
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// use std::time::Duration;
    /// use flagstone::{Database, Options, WriteError};
    ///
    /// let options = Options::default().with_lock_timeout(Duration::from_millis(10));
    /// let db = Database::create(&path, &options)?;
    /// let table = db.table("t")?;
    /// let mut first = db.begin();
    /// first.put(table, b"key", b"1")?;
    /// assert_eq!(db.begin().put(table, b"key", b"2"), Err(WriteError::LockTimeout));
    /// first.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn begin(&self) -> Transaction {
        Transaction::new(self.inner.begin())
    }

    /// Begins a snapshot of all durable commits. See [`Snapshot`].
    ///
    /// # Errors
    ///
    /// The device failed.
    pub fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
        Ok(Snapshot::new(self.inner.snapshot().map_err(SnapshotError::of)?))
    }

    /// Keeps the present state, with all commits so far, under `name` until it is dropped: across sessions
    /// and all later writes. Durable when this returns.
    ///
    /// Costs a page write for each leaf that has changes, as [`Database::merge`], and one byte of mapping for
    /// about each kilobyte of data. Commits wait for the last part of this work. Afterwards the database
    /// shares the snapshot's pages, and new writes take room of their own; the device is full the sooner.
    ///
    /// A database has room for 32 snapshots. Backups hold the rows of one moment, and no snapshots.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// use flagstone::{Database, Options, ReadError};
    ///
    /// let db = Database::create(&path, &Options::default())?;
    /// let stock = db.table("stock")?;
    /// let mut txn = db.begin();
    /// txn.put(stock, b"apples", b"12")?;
    /// txn.commit()?;
    /// db.create_named_snapshot("monday")?;
    /// db.drop_table("stock")?;
    /// db.close()?;
    ///
    /// let db = Database::open(&path, &Options::default())?;
    /// assert_eq!(db.named_snapshots(), ["monday"]);
    /// let monday = db.open_named_snapshot("monday")?;
    /// let stock = monday.table("stock")?.ok_or("no such table")?;
    /// assert_eq!(monday.get(stock, b"apples")?.as_deref(), Some(&b"12"[..]));
    /// db.delete_named_snapshot("monday")?;
    /// assert_eq!(monday.get(stock, b"apples"), Err(ReadError::NoSnapshot));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `SnapshotExists`; `NameTooLong` for a name of more than 255 bytes; `Full` when changes find no room in
    /// their pages, or the mapping of the snapshot finds none, on the device or among the mappings that a
    /// checkpoint names; the error of a damaged page for which changes wait; `ReadOnly`; the device failed.
    pub fn create_named_snapshot(&self, name: &str) -> Result<(), SnapshotError> {
        self.inner.keep_snapshot(name).map_err(SnapshotError::of)
    }

    /// Names of the snapshots that are kept, oldest first.
    #[must_use]
    pub fn named_snapshots(&self) -> Vec<String> {
        self.inner.named_snapshots()
    }

    /// A named snapshot, for reading. Its tables are opened with [`Snapshot::table`]; a table of the database
    /// is accepted as well, if it had its present name then.
    ///
    /// # Errors
    ///
    /// `NoSnapshot`.
    pub fn open_named_snapshot(&self, name: &str) -> Result<Snapshot, SnapshotError> {
        Ok(Snapshot::new(self.inner.named_snapshot(name).map_err(SnapshotError::of)?))
    }

    /// Drops a named snapshot, durably, and frees the pages that it alone needs. Later reads of the snapshot
    /// give [`ReadError::NoSnapshot`].
    ///
    /// # Errors
    ///
    /// `NoSnapshot`; `Full` when the host has no room for the blocks that were given back to it: the snapshot
    /// is dropped, but durably only with the next checkpoint; `ReadOnly`; the device failed.
    pub fn delete_named_snapshot(&self, name: &str) -> Result<(), SnapshotError> {
        self.inner.drop_snapshot(name).map_err(SnapshotError::of)
    }

    /// Counters of the engine since the database was opened, and the sizes it accepts.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// let stats = db.stats();
    /// assert!(stats.limits.value_size_max >= 1 << 20);
    /// assert_eq!(stats.engine.commits, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        let engine = self.runtime().engine();
        let limits = Limits {
            key_size_max: engine.key_size_max(),
            inline_value_size_max: engine.inline_value_size_max(engine.key_size_max()),
            value_size_max: engine.value_size_max(),
            table_count_max: engine.table_count_max(),
        };
        let stats = engine.stats();
        drop(engine);
        Stats { engine: stats, limits, space: self.runtime().space().stats() }
    }

    /// State and wear of each erase block.
    #[must_use]
    pub fn block_report(&self) -> Vec<BlockReport> {
        self.runtime().space().block_report()
    }

    /// Work of the restart when the database was opened.
    #[must_use]
    pub fn recovery(&self) -> RecoveryReport {
        self.runtime().recovery()
    }

    /// Checks every node, large value and page, and reads every row. Writes nothing of its own.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// let table = db.table("t")?;
    /// let mut txn = db.begin();
    /// txn.put(table, b"key", b"value")?;
    /// txn.commit()?;
    /// let report = db.check()?;
    /// assert!(report.is_sound(), "{:?}", report.faults);
    /// assert_eq!((report.tables, report.rows), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The device failed; contradictions that the check finds are part of the report.
    pub fn check(&self) -> Result<CheckReport, ReadError> {
        self.inner.check().map_err(ReadError::of)
    }

    /// Makes every commit durable.
    ///
    /// # Errors
    ///
    /// The device failed, now or before: commits that were not durable then are lost.
    pub fn flush(&self) -> Result<(), CommitError> {
        self.inner.flush().map_err(CommitError::of)
    }

    /// Merges all committed changes into their leaves, and writes a checkpoint: afterwards the leaves on
    /// flash hold all commits from before the call, as far as no snapshot is in the way and no leaf is being
    /// changed meanwhile. Changes that cannot be merged stay durable as they were.
    ///
    /// Costs a page write for each leaf that has changes; otherwise the engine puts these writes off for as
    /// long as it can. (Lazy-Split LRU, section 3.3: full merge commit.)
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// let table = db.table("t")?;
    /// let mut txn = db.begin();
    /// txn.put(table, b"key", b"value")?;
    /// txn.commit()?;
    /// db.merge()?;
    /// assert_eq!(db.stats().engine.deltas, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The device failed, or has no room; commits are as durable as they were.
    pub fn merge(&self) -> Result<(), CommitError> {
        self.inner.merge().map_err(CommitError::of)
    }

    /// Flushes and writes a checkpoint, so that the next opening has next to nothing to read, and a read-only
    /// session writes nothing. After a session without changes this writes nothing, either.
    ///
    /// A database that is dropped instead loses nothing but commits of
    /// [`Durability::Deferred`](crate::Durability::Deferred).
    ///
    /// # Errors
    ///
    /// The device failed; commits are as durable as they were.
    pub fn close(self) -> Result<(), CommitError> {
        self.inner.close().map_err(CommitError::of)
    }

    /// Gives the device back as it is, as if power had been cut; `None` while clones, transactions or
    /// snapshots are alive. [`AnyNand::downcast`] makes it the chip that it was.
    ///
    /// ```
    /// use flagstone::{Database, Options};
    /// use flagstone::device::{Nand as _, Profile, SimNand};
    ///
    /// let profile = Profile::named("slc-2k")?.with_block_count(64)?;
    /// let db = Database::create_on(SimNand::new(&profile, 1), &Options::default())?;
    /// let device = db.into_device().ok_or("still shared")?;
    /// let chip: SimNand = device.downcast().map_err(|_| "another kind of device")?;
    /// assert!(chip.counters().page_programs > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn into_device(self) -> Option<AnyNand> {
        self.inner.into_device()
    }
}

/// Limits that a database accepts, fixed when it is created: sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest key.
    pub key_size_max: usize,
    /// Longest value that lies inside a leaf under any key, in bytes; longer ones get pages of their own.
    /// Where a key is shorter than the longest, the value may be longer by the difference.
    pub inline_value_size_max: usize,
    /// Longest value, in bytes: the same for the lifetime of a database, however full it is.
    pub value_size_max: usize,
    /// Number of tables and indexes that a database can have.
    pub table_count_max: usize,
}

/// Counters since the database was opened.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Transactions, memory, merges.
    pub engine: EngineStats,
    /// Sizes accepted.
    pub limits: Limits,
    /// Programs by cause, garbage collection, wear.
    pub space: SpaceStats,
}
