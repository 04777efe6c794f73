//! The library's face: a database that threads share.
//!
//! Owns nothing but a [`Runtime`]; every call runs an engine operation to its end on the calling
//! thread. Commits of several threads share a flush: the first one that finds the log free writes
//! for all.

use std::fmt;
#[cfg(target_os = "linux")]
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::sync::Arc;

use flagstone_engine::{
    CheckReport, EngineError, EngineStats, OpenError, Options, RecoveryReport, Runtime,
    VerifyOnOpen,
};
use flagstone_nand::{
    Access, EccNand, FileStorage, ImageNand, Nand, OpenDeviceError, Profile, SegmentFile, kind_of,
};
use flagstone_space::{BlockReport, SpaceStats, holds_pages};
use tracing::{debug, info};

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
pub use cursor::{Cursor, CursorMut, RowRef};
pub use entry::Entry;
pub(crate) use load::ROW_OVERHEAD;
pub use load::{LoadError, LoadReport};
pub use rows::{KeyValue, Range};
pub use snapshot::Snapshot;
pub(crate) use sound::is_damage;
pub use sound::{MissingRange, SoundRow, SoundRows};
pub(crate) use tables::{index_head, require_plain};
pub use transaction::{Commit, Transaction};

/// A device whose kind is known at run time.
pub type AnyNand = Box<dyn Nand + Send>;

/// A transactional key-value database on flash: cheap to clone, shared by threads.
///
/// It does not cross a fork: in the child, each commit and all that reaches the device gives
/// [`EngineError::OtherProcess`] and nothing is written, while the parent goes on. What is in memory is readable as it
/// was. A database that is open to be read may be read on both sides.
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
pub struct Database<D: Nand = AnyNand> {
    runtime: Arc<Runtime<D>>,
}

impl<D: Nand> fmt::Debug for Database<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").finish_non_exhaustive()
    }
}

impl<D: Nand> Clone for Database<D> {
    fn clone(&self) -> Self {
        Self { runtime: Arc::clone(&self.runtime) }
    }
}

impl Database<AnyNand> {
    /// Opens a database in a file, a NAND image or, on Linux, raw NAND (`/dev/mtdN`), whichever the
    /// path holds.
    ///
    /// Memory and everything else that `options` say may differ from one opening to the next, but
    /// for the size of logical pages and of the log, which stay as they were created.
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
    /// Options may ask for a check of all that there is:
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
    /// `Device`: no such file, no device of ours, another version, damaged, locked by another
    /// process, on a file system that locks none ([`crate::FileLock`]), or read-only. `Mount` or `Corrupt`: no database on it, or a damaged one. `Options`:
    /// they do not fit the device. Nothing was written.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self, OpenError> {
        Self::open_on(open_device(path.as_ref(), Access::Write, options)?, options)
    }

    /// Opens a database to be read: not a byte of its files is written, now or later, and they need not be
    /// writable. Several may read it at a time, in this process or in others, and nobody can open it for
    /// writing meanwhile.
    ///
    /// After a session that was not closed, what restart would write is kept in memory alone. Everything
    /// that was committed is there. So may be what had been in flight when that session ended, and whether
    /// the next opening finds it again is not decided before the database is opened for writing.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// use flagstone::{Database, EngineError, Options};
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
    ///     assert_eq!(db.begin().delete(table, b"key"), Err(EngineError::ReadOnly));
    ///     assert_eq!(db.table("new"), Err(EngineError::ReadOnly));
    /// }
    /// assert!(Database::open(&path, &options).is_err(), "while somebody reads");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Database::open`]; `NeedsMemory` when the changes that the log alone holds do not fit the memory that
    /// `options` give: mostly no more than the session that made them had. Those that had left its memory are read when
    /// they are asked for, and let go again.
    pub fn open_read_only(path: impl AsRef<Path>, options: &Options) -> Result<Self, OpenError> {
        Self::open_read_only_on(open_device(path.as_ref(), Access::Read, options)?, options)
    }
}

/// Opens the device that a path holds: a file of segments when it begins like one, a NAND image when its profile
/// lies beside it.
fn open_device(path: &Path, access: Access, options: &Options) -> Result<AnyNand, OpenDeviceError> {
    let lock = options.file_lock.into();
    #[cfg(target_os = "linux")]
    if kind_of(path)?.is_some_and(|kind| kind.is_char_device()) {
        return Ok(Box::new(match access {
            Access::Write => EccNand::open_mtd(path, None)?,
            Access::Read => EccNand::open_mtd_read_only(path, None)?,
        }));
    }
    if ImageNand::is_at(path)? {
        return Ok(Box::new(EccNand::open_image_with(path, access, lock)?));
    }
    Ok(Box::new(SegmentFile::open(FileStorage::open_with(path, access, lock)?)?))
}

/// As [`open_device`], to be read, however damaged it is, as long as something says what the pages are: `profile` does
/// where the file beside an image does not.
pub(crate) fn open_device_to_salvage(
    path: &Path,
    profile: Option<&Profile>,
) -> Result<AnyNand, OpenDeviceError> {
    #[cfg(target_os = "linux")]
    if kind_of(path)?.is_some_and(|kind| kind.is_char_device()) {
        return Ok(Box::new(EccNand::open_mtd_read_only(path, profile)?));
    }
    let is_chip = profile.is_some_and(|profile| !profile.capabilities.needs_sync);
    if is_chip || ImageNand::is_at(path)? {
        return Ok(Box::new(EccNand::open_image_damaged(path, profile)?));
    }
    let storage = FileStorage::open_read_only(path)?;
    Ok(Box::new(SegmentFile::open_damaged(storage, |device| holds_pages(device))?))
}

/// Whether a path holds neither an image nor a device of the system.
fn is_plain_file(path: &Path) -> Result<bool, OpenDeviceError> {
    Ok(kind_of(path)?.is_some_and(|kind| kind.is_file()) && !ImageNand::is_at(path)?)
}

impl<D: Nand> Database<D> {
    /// Formats a device and creates an empty database on it.
    ///
    /// ```
    /// use flagstone::{Database, Options};
    /// use flagstone_nand::{Profile, SimNand};
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
    pub fn create_on(device: D, options: &Options) -> Result<Self, OpenError> {
        let runtime = Runtime::create(device, options)?;
        info!(preset = options.preset, memory = options.memory, "created");
        Ok(Self::over(runtime))
    }

    /// Opens the database on a device, restarting it if need be.
    ///
    /// # Errors
    ///
    /// No database, a damaged one, or options that do not fit; `Unsound` when
    /// [`Options::verify_on_open`] asks for a check that finds a fault.
    pub fn open_on(device: D, options: &Options) -> Result<Self, OpenError> {
        Self::opened(Runtime::open(device, options)?, options)
    }

    /// As [`Database::open_read_only`], on a device.
    ///
    /// # Errors
    ///
    /// As [`Database::open_on`]; `NeedsMemory` as [`Database::open_read_only`].
    pub fn open_read_only_on(device: D, options: &Options) -> Result<Self, OpenError> {
        Self::opened(Runtime::open_read_only(device, options)?, options)
    }

    fn opened(runtime: Runtime<D>, options: &Options) -> Result<Self, OpenError> {
        let RecoveryReport { commits, pages_read, pages_written, full_scan, time_ns, .. } =
            runtime.recovery();
        info!(commits, pages_read, pages_written, full_scan, time_ns, "opened");
        let database = Self::over(runtime);
        if options.verify_on_open == VerifyOnOpen::Check {
            database.require_sound()?;
        }
        Ok(database)
    }

    fn require_sound(&self) -> Result<(), OpenError> {
        let faults = self.check()?.faults;
        let count = faults.len();
        match faults.into_iter().next() {
            None => Ok(()),
            Some(first) => Err(OpenError::Unsound { count, first: Box::new(first) }),
        }
    }

    /// A database over a runtime.
    #[must_use]
    pub fn over(runtime: Runtime<D>) -> Self {
        Self { runtime: Arc::new(runtime) }
    }

    /// What drives the engine: for the lab and for tests.
    #[must_use]
    pub fn runtime(&self) -> &Runtime<D> {
        &self.runtime
    }

    /// Begins a read-write transaction; dropping it aborts. See [`Transaction`].
    ///
    /// It waits for the locks of others as long as [`Options::lock_timeout`] lets it:
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// use std::time::Duration;
    /// use flagstone::{Database, EngineError, Options};
    ///
    /// let options = Options::default().with_lock_timeout(Duration::from_millis(10));
    /// let db = Database::create(&path, &options)?;
    /// let table = db.table("t")?;
    /// let mut first = db.begin();
    /// first.put(table, b"key", b"1")?;
    /// assert_eq!(db.begin().put(table, b"key", b"2"), Err(EngineError::LockTimeout));
    /// first.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn begin(&self) -> Transaction<D> {
        Transaction::begin(Arc::clone(&self.runtime))
    }

    /// Begins a snapshot of everything committed durably. See [`Snapshot`].
    ///
    /// # Errors
    ///
    /// The device failed.
    pub fn snapshot(&self) -> Result<Snapshot<D>, EngineError> {
        Snapshot::begin(Arc::clone(&self.runtime))
    }

    /// Keeps everything that was committed so far under `name`, until it is dropped: across sessions, and whatever
    /// is written later. Durable when it returns.
    ///
    /// Costs a page write for each leaf that has changes, as [`Database::merge`], and one byte of mapping for
    /// about each kilobyte. Commits wait for the last of it. Afterwards the database shares the snapshot's pages,
    /// and what is written anew takes room of its own; the device is full the sooner.
    ///
    /// There may be 32 of them. Backups hold rows of one moment, and no snapshots.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// use flagstone::{Database, EngineError, Options};
    ///
    /// let db = Database::create(&path, &Options::default())?;
    /// let stock = db.table("stock")?;
    /// let mut txn = db.begin();
    /// txn.put(stock, b"apples", b"12")?;
    /// txn.commit()?;
    /// db.keep_snapshot("monday")?;
    /// db.drop_table("stock")?;
    /// db.close()?;
    ///
    /// let db = Database::open(&path, &Options::default())?;
    /// assert_eq!(db.kept_snapshots(), ["monday"]);
    /// let monday = db.kept_snapshot("monday")?;
    /// let stock = monday.table("stock")?.ok_or("no such table")?;
    /// assert_eq!(monday.get(stock, b"apples")?.as_deref(), Some(&b"12"[..]));
    /// db.drop_snapshot("monday")?;
    /// assert_eq!(monday.get(stock, b"apples"), Err(EngineError::NoSnapshot));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `SnapshotExists`; `NameTooLong` for a name of more than 255 bytes; `Full` when changes find no room in
    /// their pages, or the mapping of the snapshot finds none, on the device or among those that a checkpoint
    /// names; what a page says that is damaged and that changes wait for; `ReadOnly`; the device failed.
    pub fn keep_snapshot(&self, name: &str) -> Result<(), EngineError> {
        self.runtime.keep_snapshot(name)?;
        info!(name, "snapshot kept");
        Ok(())
    }

    /// Names of the snapshots that are kept, oldest first.
    #[must_use]
    pub fn kept_snapshots(&self) -> Vec<String> {
        self.runtime.kept_snapshots()
    }

    /// A snapshot that is kept, to be read. Its tables are opened with [`Snapshot::table`]; one of the database is
    /// taken as well, as long as it had its name then.
    ///
    /// # Errors
    ///
    /// `NoSnapshot`.
    pub fn kept_snapshot(&self, name: &str) -> Result<Snapshot<D>, EngineError> {
        let id = self.runtime.kept_snapshot(name)?;
        Ok(Snapshot::kept(Arc::clone(&self.runtime), id))
    }

    /// Drops a snapshot that is kept, durably, and frees what it alone needs. Who still reads it gets
    /// [`EngineError::NoSnapshot`].
    ///
    /// # Errors
    ///
    /// `NoSnapshot`; `Full` when the host has no room for what was given back to it: the snapshot is dropped, but
    /// that is durable only with the next checkpoint; `ReadOnly`; the device failed.
    pub fn drop_snapshot(&self, name: &str) -> Result<(), EngineError> {
        self.runtime.drop_snapshot(name)?;
        info!(name, "snapshot dropped");
        Ok(())
    }

    /// What the engine counted since it was opened, and the sizes it accepts.
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
        let engine = self.runtime.engine();
        let limits = Limits {
            key_size_max: engine.key_size_max(),
            inline_value_size_max: engine.inline_value_size_max(engine.key_size_max()),
            value_size_max: engine.value_size_max(),
            table_count_max: engine.table_count_max(),
        };
        let stats = engine.stats();
        drop(engine);
        Stats { engine: stats, limits, space: self.runtime.space().stats() }
    }

    /// State and wear of each erase block.
    #[must_use]
    pub fn block_report(&self) -> Vec<BlockReport> {
        self.runtime.space().block_report()
    }

    /// What restart did when the database was opened.
    #[must_use]
    pub fn recovery(&self) -> RecoveryReport {
        self.runtime.recovery()
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
    /// The device failed; contradictions are part of the report.
    pub fn check(&self) -> Result<CheckReport, EngineError> {
        let report = self.runtime.check()?;
        debug!(rows = report.rows, faults = report.faults.len(), "checked");
        Ok(report)
    }

    /// Makes every commit durable.
    ///
    /// # Errors
    ///
    /// The device failed, now or before: what was not durable then is lost.
    pub fn flush(&self) -> Result<(), EngineError> {
        self.runtime.make_durable()
    }

    /// Merges all committed changes into their leaves, and writes a checkpoint: afterwards the leaves on
    /// flash hold everything that was committed before, as far as no snapshot is in the way and no leaf
    /// is being changed meanwhile. What cannot be merged stays durable as it was.
    ///
    /// Costs a page write for each leaf that has changes, which the engine otherwise puts off for as
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
    pub fn merge(&self) -> Result<(), EngineError> {
        self.runtime.merge_all()
    }

    /// Flushes and writes a checkpoint, so that the next opening has next to nothing to read, and a session
    /// that only reads writes nothing. After a session that changed nothing this writes nothing, either.
    ///
    /// A database that is dropped instead loses nothing but commits of [`Durability::Deferred`](crate::Durability::Deferred).
    ///
    /// # Errors
    ///
    /// The device failed; commits are as durable as they were.
    pub fn close(self) -> Result<(), EngineError> {
        self.runtime.close()?;
        info!("closed");
        Ok(())
    }

    /// Gives the device back as it is, as if power had been cut; none while clones are alive.
    #[must_use]
    pub fn into_device(self) -> Option<D> {
        Arc::into_inner(self.runtime).map(Runtime::into_device)
    }
}

/// What a database accepts, fixed when it is created: sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest key.
    pub key_size_max: usize,
    /// Longest value that lies inside a leaf under any key; longer ones get pages of their own.
    /// A key shorter than the longest leaves room for a value that is longer by as much.
    pub inline_value_size_max: usize,
    /// Longest value: the same for the lifetime of a database, whatever else is in it.
    pub value_size_max: usize,
    /// Tables and indexes that there may be.
    pub table_count_max: usize,
}

/// What was counted since the database was opened.
#[derive(Clone, Debug, PartialEq)]
pub struct Stats {
    /// Transactions, memory, merges.
    pub engine: EngineStats,
    /// Sizes accepted.
    pub limits: Limits,
    /// Programs by cause, garbage collection, wear.
    pub space: SpaceStats,
}
