//! Compaction: the rows of a database written anew, in order, to a file that takes the old one's place.
//!
//! Owns the change of files; rows are read through a snapshot and stored by loads, as any caller would.
//!
//! Invariants:
//! - **K1** Under the name of the database stands the old file or the new one, whole and durable, at
//!   every moment. The new one is made under another name, which it loses when it is complete ([`Making`]).
//! - **K2** The old file is not written from the moment at which it is read: it stays locked until it has
//!   lost its name.
//! - **K3** A compaction that fails leaves the database as it was, and no other file; but for
//!   [`CompactError::Unsynced`], where the new file stands in its place. A compaction that was cut off leaves
//!   its unfinished file, which the next one removes.
//! - **K4** A file with several names (hard links) is left as it is: replaced under one, it would be another
//!   database under the others.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use flagstone_engine::{Collection, Options};
use flagstone_nand::{
    Access, Extent, FileStorage, Making, Nand as _, OpenDeviceError, Profile, SegmentFile,
    require_one_name, sync_name,
};
use flagstone_space::{GcPolicy, SpaceOptions};
use tracing::info;

use super::create::make;
use super::load::LoadError;
use super::{AnyNand, Database, FileSize};
use crate::{Error, OpenError};

/// Result of a compaction: rows copied, and bytes saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactReport {
    /// Tables, empty ones included.
    pub tables: u64,
    /// Rows of all tables.
    pub rows: u64,
    /// Bytes of the file before.
    pub size_before: u64,
    /// Bytes of the file now.
    pub size: u64,
    /// Bytes of the file that held pages in use before, log and reserves apart.
    pub used_before: u64,
    /// Bytes of the file that hold pages in use now.
    pub used: u64,
}

/// Why a database was not compacted. The database is as it was, but for `Unsynced`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompactError {
    /// The database lies on a chip, on the image of one, or on a block device.
    #[error(
        "only a database in a plain file is compacted; others are copied with `backup` and `restore`"
    )]
    NotAFile,
    /// The file has several names: remove the other ones, or compact a copy.
    #[error(
        "the file has {count} names (hard links), under the others of which it would stay as it is: remove them, or \
         compact a copy"
    )]
    Linked {
        /// Number of names.
        count: u64,
    },
    /// The database cannot be opened.
    #[error(transparent)]
    Open(OpenError),
    /// The database has named snapshots, which the new file would lack: drop them first.
    #[error("snapshots are kept in it ({count}), which the new file would lack: drop them first")]
    Snapshots {
        /// Number of snapshots.
        count: usize,
    },
    /// The database cannot be read.
    #[error(transparent)]
    Database(Error),
    /// The new file cannot be made or written.
    #[error("the new file beside it: {source}")]
    New {
        /// File beside which the new one is made.
        path: PathBuf,
        /// Error of the new file.
        source: OpenError,
    },
    /// The new file took the place of the old one, with all rows in it; it is not known which of the two
    /// files would be there after a power cut.
    #[error("the new file is in place, but {path} could not be synced: {source}")]
    Unsynced {
        /// Directory of the files.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A file could not be looked at, renamed or removed.
    #[error("{path}: {source}")]
    Io {
        /// File or directory concerned.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

impl Database {
    /// Writes a database in a plain file anew, densely and in order, and puts it in the place of the old.
    ///
    /// The copy has all tables and rows, the size or limit, the log and the logical pages of the old file;
    /// the memory and the way the engine works come from `options`. A compaction needs room for a second file
    /// beside the first one. At every moment, even after a power cut, the name stands for the old file or for
    /// the new one, with all its rows.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// use flagstone::{Database, Options};
    ///
    /// let options = Options::default();
    /// let db = Database::create(&path, &options)?;
    /// let table = db.table("t")?;
    /// let mut txn = db.begin();
    /// txn.put(table, b"key", b"value")?;
    /// txn.commit()?;
    /// db.close()?;
    ///
    /// let report = Database::compact(&path, &options)?;
    /// assert_eq!((report.tables, report.rows), (1, 1));
    /// assert_eq!(Database::open(&path, &options)?.tables()?, ["t"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `NotAFile` for anything but a plain file, `Linked` for one with several names. `Open` when the
    /// database cannot be opened, for instance because it is open elsewhere; `New` when there is no room for
    /// a second file. Nothing was changed, but for `Unsynced`: the database is compacted.
    pub fn compact(
        path: impl AsRef<Path>,
        options: &Options,
    ) -> Result<CompactReport, CompactError> {
        Self::compact_watched(path, options, |_, _| {})
    }

    /// As [`Database::compact`], and gives `watch` from time to time the number of rows copied and about the
    /// number of all: 0 of 0 before the new file is made, once the database is locked.
    ///
    /// # Errors
    ///
    /// As [`Database::compact`].
    pub fn compact_watched(
        path: impl AsRef<Path>,
        options: &Options,
        watch: impl FnMut(u64, u64),
    ) -> Result<CompactReport, CompactError> {
        Self::compact_anew(path.as_ref(), options, None, watch)
    }

    /// As [`Database::compact_watched`], into a file of another size or limit, with a log that fits it.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// use flagstone::{Database, FileSize, Options};
    ///
    /// let options = Options::default();
    /// Database::create_sized(&path, &options, FileSize::Fixed(64 << 20))?.close()?;
    /// let report = Database::compact_sized(&path, &options, FileSize::default(), |_, _| {})?;
    /// assert!(report.size < report.size_before);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Database::compact`]; `New` when the rows do not fit that size.
    pub fn compact_sized(
        path: impl AsRef<Path>,
        options: &Options,
        size: FileSize,
        watch: impl FnMut(u64, u64),
    ) -> Result<CompactReport, CompactError> {
        Self::compact_anew(path.as_ref(), options, Some(size), watch)
    }

    fn compact_anew(
        path: &Path,
        options: &Options,
        size: Option<FileSize>,
        watch: impl FnMut(u64, u64),
    ) -> Result<CompactReport, CompactError> {
        // A link goes on pointing to the database.
        let path = fs::canonicalize(path).map_err(at(path))?;
        if !super::is_plain_file(&path).map_err(|error| CompactError::Open(error.into()))? {
            return Err(CompactError::NotAFile);
        }
        let old = open_file(&path, options).map_err(CompactError::Open)?;
        // Checked before the rows are written anew; checked again before the file is replaced.
        require_one_name(&path).map_err(of_file(&path))?;
        let old = Self::open_on(old, options).map_err(CompactError::Open)?;
        let report = write_anew(&old, &path, options, size, watch)?;
        info!(rows = report.rows, before = report.size_before, size = report.size, "compacted");
        Ok(report)
    }
}

/// Everything from the new file's creation to the change of names (K1).
fn write_anew(
    old: &Database,
    path: &Path,
    options: &Options,
    size: Option<FileSize>,
    mut watch: impl FnMut(u64, u64),
) -> Result<CompactReport, CompactError> {
    let count = old.named_snapshots().len();
    if count > 0 {
        return Err(CompactError::Snapshots { count });
    }
    watch(0, 0);
    let new = |source| CompactError::New { path: path.into(), source };
    let made = match size {
        Some(size) => {
            let found = *old.runtime().space().options();
            let options = as_created(options, &found).with_log_pages(options.log_pages);
            let device = size.device().map_err(OpenError::from);
            device.and_then(|(profile, extent)| make(path, &profile, extent, &options))
        }
        None => make_like(old, path, options),
    };
    let (making, copy) = made.map_err(new)?;
    // Before the first row is in the copy, so that a user who may not read the original cannot read the copy.
    keep_access(path, making.path())?;
    let report = copy_rows(old, &copy, watch).map_err(|error| match error {
        Side::Old(error) => CompactError::Database(error),
        Side::New(error) => new(OpenError::Restart(Box::new(error))),
    })?;
    let (used_before, used) = (used_bytes(old), used_bytes(&copy));
    copy.close().map_err(|error| new(OpenError::Restart(Box::new(error.into()))))?;
    let (size_before, size) = (size_of(path)?, size_of(making.path())?);
    let directory = path.parent().unwrap_or(Path::new("/"));
    making.replace().map_err(of_file(path))?;
    sync_name(path).map_err(|source| CompactError::Unsynced { path: directory.into(), source })?;
    Ok(CompactReport { size_before, size, used_before, used, ..report })
}

/// Which of two databases failed.
enum Side {
    Old(Error),
    New(Error),
}

/// Loads every table of one moment into the copy, in the order of names and keys.
fn copy_rows(
    old: &Database,
    copy: &Database,
    mut watch: impl FnMut(u64, u64),
) -> Result<CompactReport, Side> {
    let snapshot = old.snapshot().map_err(|error| Side::Old(error.into()))?;
    let tables = snapshot.named_tables().map_err(|error| Side::Old(error.into()))?;
    let total: u64 = {
        let transaction = old.begin();
        tables.iter().map(|(_, table)| transaction.len_estimate(*table)).sum()
    };
    let mut report = CompactReport::default();
    for (name, table) in tables {
        let target = copy.copied_table(&name).map_err(|error| Side::New(error.into()))?;
        let mut failed = None;
        let rows = snapshot.range(table, ..).map_while(|row| {
            report.rows += 1;
            if report.rows.is_multiple_of(WATCH_ROWS) {
                watch(report.rows, total.max(report.rows));
            }
            row.map_err(|error| failed = Some(error)).ok()
        });
        let loaded = copy.load_sorted(target, rows);
        if let Some(error) = failed {
            return Err(Side::Old(Error::from(error)));
        }
        loaded.map_err(|LoadError { source, .. }| Side::New(source))?;
        report.tables += 1;
    }
    Ok(report)
}

/// Rows between two calls of a watcher.
const WATCH_ROWS: u64 = 256;

fn open_file(path: &Path, options: &Options) -> Result<AnyNand, OpenError> {
    let storage = FileStorage::open_with(path, Access::Write, options.file_lock.into())?;
    Ok(AnyNand::new(SegmentFile::open(storage)?))
}

/// An empty database in a file of the same shape, with the options that the old one was created with.
fn make_like(
    old: &Database,
    path: &Path,
    options: &Options,
) -> Result<(Making, Database), OpenError> {
    let (geometry, rewrite_tail, found) = {
        let space = old.runtime().space();
        let device = space.device();
        (device.geometry(), device.capabilities().rewrite_tail, *space.options())
    };
    let mut profile = Profile::named("segment-file").map_err(OpenDeviceError::from)?;
    profile.geometry = geometry;
    profile.capabilities.rewrite_tail = rewrite_tail;
    let extent = if found.grows { Extent::Growing } else { Extent::Fixed };
    make(path, &profile, extent, &as_created(options, &found))
}

/// `options` with the choices of creation, as `found` in a database.
fn as_created(options: &Options, found: &SpaceOptions) -> Options {
    let collection = match found.gc_policy {
        GcPolicy::Greedy => Collection::Greedy,
        GcPolicy::CostBenefit => Collection::CostBenefit,
        GcPolicy::CostAgeTimes => Collection::CostAgeTimes,
    };
    let options = options.clone().with_parts(found.parts.into()).with_log_pages(found.log_pages);
    options.with_techniques(|techniques| techniques.collection = collection)
}

fn used_bytes(database: &Database) -> u64 {
    let space = database.runtime().space();
    let parts = u64::from(space.options().parts);
    u64::from(space.stats().live_pages) * parts * u64::from(space.device().geometry().page_size)
}

fn size_of(path: &Path) -> Result<u64, CompactError> {
    Ok(fs::metadata(path).map_err(at(path))?.len())
}

/// Gives the new file the permissions of the old one, and its owner where that is allowed.
fn keep_access(from: &Path, to: &Path) -> Result<(), CompactError> {
    use std::os::unix::fs::MetadataExt as _;
    let found = fs::metadata(from).map_err(at(from))?;
    // Only the superuser gives files away; for others they have one owner.
    let _ = std::os::unix::fs::chown(to, Some(found.uid()), Some(found.gid()));
    fs::set_permissions(to, found.permissions()).map_err(at(to))
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> CompactError {
    |source| CompactError::Io { path: path.into(), source }
}

/// Turns an error of the file `path` into the failure to report.
fn of_file(path: &Path) -> impl FnOnce(OpenDeviceError) -> CompactError {
    |error| match error {
        OpenDeviceError::Linked { count } => CompactError::Linked { count },
        OpenDeviceError::Io { errno } => at(path)(io::Error::from_raw_os_error(errno)),
        error => CompactError::Open(error.into()),
    }
}
