//! Errors of the public interface, one enum per group of operations.

use std::time::Duration;

use flagstone_nand::NandError;
use flagstone_space::{LogicalPage, MountError, SpaceError};
use thiserror::Error;

use crate::options::OptionsError;
use crate::runtime::CheckFault;

mod typed;

pub use typed::{DecodeError, IndexFault, RowPart};

/// Reason for which a database could not be created or opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The options are refused.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The device could not be created or opened.
    #[error(transparent)]
    Device(#[from] flagstone_nand::OpenDeviceError),
    /// The device holds no database that can be mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The space floor failed.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// The log or the catalog contradicts itself.
    #[error("the database is damaged: {0}")]
    Corrupt(#[from] Corruption),
    /// The check requested by `verify_on_open` found contradictions; the check wrote nothing.
    #[error("the check on opening found {count} faults, the first one: {first}")]
    Unsound {
        /// Faults found.
        count: usize,
        /// The first of them.
        first: Box<CheckFault>,
    },
    /// The changes that are in no page yet do not fit the memory, and nothing may be written. Open
    /// the database with more memory, or once for writing.
    #[error(
        "changes that no page holds yet take more than {memory} bytes of memory: give it more, or open \
         the database once for writing"
    )]
    NeedsMemory {
        /// Memory budget given, in bytes.
        memory: usize,
    },
    /// The engine refused an operation during restart.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A contradiction found on flash, with its place and the check that fired.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{check}{}", place(*page))]
pub struct Corruption {
    /// Logical page concerned, where there is one.
    pub page: Option<LogicalPage>,
    /// The check that fired.
    pub check: &'static str,
}

/// ` on page N`, where there is a page.
fn place(page: Option<LogicalPage>) -> String {
    page.map_or_else(String::new, |page| format!(" on page {}", page.0))
}

/// Reason for which an operation of a transaction or snapshot failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EngineError {
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
    /// The value is longer than the largest value that the engine stores.
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
    /// The transaction was aborted after waiting for a lock as long as
    /// [`crate::Options::lock_timeout`] allows; none of its changes remain. Begin it again.
    #[error("the transaction was aborted: it waited too long for a lock")]
    LockTimeout,
    /// The transaction has ended.
    #[error("the transaction has already ended")]
    Ended,
    /// The table does not exist.
    #[error("there is no such table")]
    NoTable,
    /// The table belongs to another database or to a named snapshot.
    #[error(
        "the table is not one of this database: it belongs to another one or to a kept snapshot"
    )]
    ForeignTable,
    /// A table with this name exists already.
    #[error("there is a table of that name already")]
    TableExists,
    /// The name belongs to an index, which `Database::indexed` makes and which follows its table.
    #[error(
        "`@` stands between the names of a table and of its index: no other table is given such a name"
    )]
    IndexName,
    /// The savepoint belongs to another transaction, of this database or of another, or was rolled
    /// back.
    #[error("the savepoint is no longer valid")]
    NoSavepoint,
    /// The snapshot was ended to free the space it held.
    #[error("the snapshot was ended because the device needed its space")]
    SnapshotTooOld,
    /// No snapshot has this name, or the snapshot was dropped since.
    #[error("there is no such snapshot")]
    NoSnapshot,
    /// A snapshot with this name exists already.
    #[error("there is a snapshot of that name already")]
    SnapshotExists,
    /// There are as many named snapshots as possible, at most 32, fewer on small blocks: drop one
    /// first.
    #[error("there are as many kept snapshots as there may be: drop one")]
    TooManySnapshots,
    /// The device has no room for the change; deleting is still possible.
    #[error("the device is full")]
    Full,
    /// There are as many tables as possible, `Limits::table_count_max`, or all numbers for tables
    /// are used up. A dropped table counts until its pages are free.
    #[error("there are as many tables as there may be: drop one")]
    TooManyTables,
    /// The transaction changes more than memory and its commit record hold, however much room the
    /// device has; or it deletes more than memory holds, on a full device. Commit in smaller parts,
    /// or give the database more memory.
    #[error(
        "the transaction is too large for the memory that there is: commit in smaller parts, or give the database more"
    )]
    TooLarge,
    /// The device has no spare blocks left and is read-only now.
    #[error("the device is worn out and read-only")]
    WornOut,
    /// The budget of wear is used up: the transaction has changed nothing.
    #[error("the wear budget is used up {}", for_how_long(*wait))]
    WearBudget {
        /// Time until changes are admitted again; `Duration::MAX` where they never are.
        wait: Duration,
    },
    /// The database was opened for reading only.
    #[error("the database is open for reading only")]
    ReadOnly,
    /// Another process opened the database: this process was forked from it. Nothing was written.
    /// Open the database here once the other process has closed it.
    #[error(
        "the database was opened by another process, from which this one was forked: open it here"
    )]
    OtherProcess,
    /// An earlier write failed in a way that leaves its outcome unknown: read-only from then on.
    #[error("an earlier device failure poisoned the database; reopen it")]
    Poisoned,
    /// The device failed while the commit was written: whether the commit is durable is not known.
    #[error("the outcome of the commit is unknown")]
    OutcomeUnknown,
    /// A row does not decode as the types of its table: another program or another version wrote
    /// it.
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
    /// The space floor failed.
    #[error(transparent)]
    Space(SpaceError),
}

impl From<NandError> for EngineError {
    fn from(error: NandError) -> Self {
        match error {
            NandError::OtherProcess => Self::OtherProcess,
            error => Self::Device(error),
        }
    }
}

/// The time in whole seconds, rounded up.
fn for_how_long(wait: Duration) -> String {
    match wait {
        Duration::MAX => "for good".into(),
        _ => format!("for {} s", wait.as_nanos().div_ceil(1_000_000_000)),
    }
}

impl From<SpaceError> for EngineError {
    fn from(error: SpaceError) -> Self {
        match error {
            // Room was ensured before: the host gave it to others meanwhile.
            SpaceError::Full | SpaceError::NoRoom => Self::Full,
            SpaceError::TooManyFrozen => Self::TooManySnapshots,
            SpaceError::WornOut => Self::WornOut,
            SpaceError::ReadOnly => Self::ReadOnly,
            SpaceError::UnknownFrozen(_) => Self::NoSnapshot,
            SpaceError::Device(device) => device.into(),
            other => Self::Space(other),
        }
    }
}
