//! Errors, one enum a group of operations, each with only the variants possible there.
//!
//! [`Error`] has them all: every error of this crate turns into it by `?`. The engine below has one enum, which
//! ends here: an error that an operation cannot have becomes `Internal`, and nothing panics.

use std::time::Duration;

use flagstone_engine::{DecodeError, EngineError, IndexFault, RowPart};
use flagstone_nand::NandError;
use flagstone_space::{LogicalPage, SpaceError as StorageError};
use thiserror::Error;

/// Conversions of an enum of errors: into [`Error`], and from it, where an error that is none of the enum's
/// becomes `Internal`. Takes the names of variants without data, with fields, and with one value.
macro_rules! convert {
    ($name:ident: $($unit:ident)*; $($fields:ident { $($field:ident),* })*; $($tuple:ident)*) => {
        impl From<$name> for Error {
            fn from(error: $name) -> Self {
                match error {
                    $($name::$unit => Self::$unit,)*
                    $($name::$fields { $($field),* } => Self::$fields { $($field),* },)*
                    $($name::$tuple(it) => Self::$tuple(it),)*
                }
            }
        }

        impl $name {
            /// The same error, as one of this group of operations.
            pub(crate) fn of(error: impl Into<Error>) -> Self {
                match error.into() {
                    $(Error::$unit => Self::$unit,)*
                    $(Error::$fields { $($field),* } => Self::$fields { $($field),* },)*
                    $(Error::$tuple(it) => Self::$tuple(it),)*
                    other => Self::Internal { error: other.to_string() },
                }
            }
        }
    };
}

mod commit;
mod open;
mod read;
mod snapshot;
mod table;
mod write;

pub use commit::CommitError;
pub use open::OpenError;
pub use read::ReadError;
pub use snapshot::SnapshotError;
pub use table::TableError;
pub use write::WriteError;

use crate::salvage::SalvageError;
use crate::{BackupError, CompactError, LoadError};
#[cfg(doc)]
use crate::{Database, Limits, Options};

/// Any error of this crate.
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("db");
/// use flagstone::{Database, Error, Options};
///
/// fn count(db: &Database) -> Result<u64, Error> {
///     let visits = db.table("visits")?; // a `TableError`
///     let mut txn = db.begin();
///     let old = txn.get(visits, b"count")?; // a `ReadError`
///     let new = old.map_or(1, |old| old[0] + 1);
///     txn.put(visits, b"count", &[new])?; // a `WriteError`
///     txn.commit()?; // a `CommitError`
///     Ok(u64::from(new))
/// }
///
/// let db = Database::create(&path, &Options::default())?;
/// let counted = loop {
///     match count(&db) {
///         Err(error) if error.is_retryable() => {}
///         counted => break counted?,
///     }
/// };
/// assert_eq!(counted, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is longer than `Limits::key_size_max`.
    #[error("key of {size} bytes is longer than {size_max}")]
    KeyTooLong {
        /// Bytes given.
        size: usize,
        /// Bytes allowed.
        size_max: usize,
    },
    /// The name of a table is longer than a key, or the name of a snapshot longer than 255 bytes.
    #[error("name of {size} bytes is longer than {size_max}")]
    NameTooLong {
        /// Bytes given.
        size: usize,
        /// Bytes allowed.
        size_max: usize,
    },
    /// The value is longer than `Limits::value_size_max`.
    #[error("value of {size} bytes is longer than {size_max}")]
    ValueTooLong {
        /// Bytes given.
        size: usize,
        /// Bytes allowed.
        size_max: usize,
    },
    /// A patch reaches beyond its value, or its key does not exist.
    #[error(
        "a patch of {size} bytes at offset {offset} reaches beyond the value, or there is none"
    )]
    PatchOutOfRange {
        /// Offset given.
        offset: usize,
        /// Bytes given.
        size: usize,
    },
    /// A row of a load does not come after the row before it.
    #[error("row {row} of the load does not come behind the one before it")]
    Unsorted {
        /// Number of the row; the first is 0.
        row: u64,
    },
    /// The transaction was aborted to end a deadlock; none of its changes remain. Begin it again.
    #[error("the transaction was aborted to end a deadlock")]
    Deadlock,
    /// The transaction was aborted after waiting for a lock as long as [`Options::lock_timeout`] allows; none
    /// of its changes remain. Begin it again.
    #[error("the transaction was aborted: it waited too long for a lock")]
    LockTimeout,
    /// The transaction was aborted by an earlier error: begin it again.
    #[error("the transaction has already ended")]
    Ended,
    /// The table does not exist.
    #[error("there is no such table")]
    NoTable,
    /// The table belongs to another database or to a named snapshot.
    #[error(
        "the table is not one of this database: it belongs to another one or to a named snapshot"
    )]
    ForeignTable,
    /// A table with this name exists already.
    #[error("there is a table of that name already")]
    TableExists,
    /// The name belongs to an index, which [`Database::indexed`] makes and which follows its table.
    #[error(
        "`@` stands between the names of a table and of its index: no other table is given such a name"
    )]
    IndexName,
    /// The savepoint belongs to another transaction, of this database or of another, or was rolled back.
    #[error("the savepoint is no longer valid")]
    NoSavepoint,
    /// The snapshot was ended to free the space it held.
    #[error("the snapshot was ended because the device needed its space")]
    SnapshotTooOld,
    /// No snapshot has this name, or the snapshot was deleted since.
    #[error("there is no such snapshot")]
    NoSnapshot,
    /// A snapshot with this name exists already.
    #[error("there is a snapshot of that name already")]
    SnapshotExists,
    /// There are as many named snapshots as possible, at most 32, fewer on small blocks: delete one first.
    #[error("there are as many named snapshots as there may be: delete one")]
    TooManySnapshots,
    /// The device has no room for the change; deleting is still possible.
    #[error("the device is full")]
    Full,
    /// There are as many tables as possible, [`Limits::table_count_max`], or all numbers for tables are used up.
    /// A dropped table counts until its pages are free.
    #[error("there are as many tables as there may be: drop one")]
    TooManyTables,
    /// The transaction changes more than memory and its commit record hold, however much room the device has; or
    /// it deletes more than memory holds, on a full device. Commit in smaller parts, or give the database more
    /// memory.
    #[error(
        "the transaction is too large for the memory that there is: commit in smaller parts, or give the database more"
    )]
    TooLarge,
    /// The budget of wear is used up: the transaction has changed nothing.
    #[error("the wear budget is used up {}", for_how_long(*wait))]
    WearBudget {
        /// Time until changes are admitted again; `Duration::MAX` where they never are.
        wait: Duration,
    },
    /// The database was opened for reading only.
    #[error("the database is open for reading only")]
    ReadOnly,
    /// The device failed while the commit was written: whether the commit is durable is not known.
    #[error("the outcome of the commit is unknown")]
    OutcomeUnknown,
    /// A row does not decode as the types of its table: another program or another version wrote it.
    #[error("the {part} of the row is not of its type: {source}")]
    Decode {
        /// Part of the row: key or value.
        part: RowPart,
        /// The fault in its bytes.
        source: DecodeError,
    },
    /// An index of a typed table does not fit.
    #[error("index `{index}`: {fault}")]
    Index {
        /// Name of the index.
        index: String,
        /// The fault of the index.
        fault: IndexFault,
    },
    /// The device has no spare blocks left and is read-only now.
    #[error("the device is worn out and read-only")]
    WornOut,
    /// Another process opened the database: this process was forked from it. Nothing was written. Open the
    /// database here once the other process has closed it.
    #[error(
        "the database was opened by another process, from which this one was forked: open it here"
    )]
    OtherProcess,
    /// An earlier write failed in a way that leaves its outcome unknown: read-only from then on.
    #[error("an earlier device failure poisoned the database; reopen it")]
    Poisoned,
    /// A page contradicts itself or its neighbours.
    #[error("page {} is corrupt: {check}", page.0)]
    Corrupt {
        /// Logical page concerned.
        page: LogicalPage,
        /// The check that fired.
        check: &'static str,
    },
    /// The device failed.
    #[error(transparent)]
    Device(NandError),
    /// The pages of the database failed: one of them is damaged or lost, for example.
    #[error(transparent)]
    Storage(StorageError),
    /// The engine reported an error that this operation does not have: a fault of Flagstone.
    #[error("an error that this operation does not have: {error}")]
    Internal {
        /// The error, in words.
        error: String,
    },
    /// A database could not be created or opened.
    #[error(transparent)]
    Open(Box<OpenError>),
    /// A load ended early.
    #[error(transparent)]
    Load(Box<LoadError>),
    /// A backup could not be written, or read back.
    #[error(transparent)]
    Backup(Box<BackupError>),
    /// A database was not compacted.
    #[error(transparent)]
    Compact(Box<CompactError>),
    /// Nothing could be salvaged.
    #[error(transparent)]
    Salvage(Box<SalvageError>),
}

/// The time in whole seconds, rounded up.
fn for_how_long(wait: Duration) -> String {
    match wait {
        Duration::MAX => "for good".into(),
        _ => format!("for {} s", wait.as_nanos().div_ceil(1_000_000_000)),
    }
}

#[doc(hidden)]
impl From<EngineError> for Error {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::KeyTooLong { size, size_max } => Self::KeyTooLong { size, size_max },
            EngineError::NameTooLong { size, size_max } => Self::NameTooLong { size, size_max },
            EngineError::ValueTooLong { size, size_max } => Self::ValueTooLong { size, size_max },
            EngineError::PatchOutOfRange { offset, size } => Self::PatchOutOfRange { offset, size },
            EngineError::Unsorted { row } => Self::Unsorted { row },
            EngineError::Deadlock => Self::Deadlock,
            EngineError::LockTimeout => Self::LockTimeout,
            EngineError::Ended => Self::Ended,
            EngineError::NoTable => Self::NoTable,
            EngineError::ForeignTable => Self::ForeignTable,
            EngineError::TableExists => Self::TableExists,
            EngineError::IndexName => Self::IndexName,
            EngineError::NoSavepoint => Self::NoSavepoint,
            EngineError::SnapshotTooOld => Self::SnapshotTooOld,
            EngineError::NoSnapshot => Self::NoSnapshot,
            EngineError::SnapshotExists => Self::SnapshotExists,
            EngineError::TooManySnapshots => Self::TooManySnapshots,
            EngineError::Full => Self::Full,
            EngineError::TooManyTables => Self::TooManyTables,
            EngineError::TooLarge => Self::TooLarge,
            EngineError::WearBudget { wait } => Self::WearBudget { wait },
            EngineError::ReadOnly => Self::ReadOnly,
            EngineError::OutcomeUnknown => Self::OutcomeUnknown,
            EngineError::Decode { part, source } => Self::Decode { part, source },
            EngineError::Index { index, fault } => Self::Index { index, fault },
            EngineError::WornOut => Self::WornOut,
            EngineError::OtherProcess => Self::OtherProcess,
            EngineError::Poisoned => Self::Poisoned,
            EngineError::Corrupt { page, check } => Self::Corrupt { page, check },
            EngineError::Device(it) => Self::Device(it),
            EngineError::Space(it) => Self::Storage(it),
            other => Self::Internal { error: other.to_string() },
        }
    }
}

impl Error {
    /// Whether a transaction was aborted for the sake of others, and may succeed when it is begun again.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Deadlock | Self::LockTimeout)
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Restart(error) => *error,
            error => Self::Open(Box::new(error)),
        }
    }
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Self {
        Self::Load(Box::new(error))
    }
}

impl From<BackupError> for Error {
    fn from(error: BackupError) -> Self {
        match error {
            BackupError::Database(error) => error,
            error => Self::Backup(Box::new(error)),
        }
    }
}

impl From<CompactError> for Error {
    fn from(error: CompactError) -> Self {
        match error {
            CompactError::Database(error) => error,
            error => Self::Compact(Box::new(error)),
        }
    }
}

impl From<SalvageError> for Error {
    fn from(error: SalvageError) -> Self {
        Self::Salvage(Box::new(error))
    }
}
