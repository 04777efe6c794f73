//! Errors of changing.

use std::time::Duration;

use flagstone_engine::{DecodeError, IndexFault, RowPart};
use flagstone_nand::NandError;
use flagstone_space::{LogicalPage, SpaceError as StorageError};

use super::{Error, for_how_long};
#[cfg(doc)]
use crate::Options;

/// Why a transaction could not change, lock or roll back something. After `Deadlock` and `LockTimeout` it is
/// aborted; after any other error it may go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The key is longer than `Limits::key_size_max`.
    #[error("key of {size} bytes is longer than {size_max}")]
    KeyTooLong {
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
    /// The savepoint belongs to another transaction, of this database or of another, or was rolled back.
    #[error("the savepoint is no longer valid")]
    NoSavepoint,
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
    /// The device has no room for the change; deleting is still possible.
    #[error("the device is full")]
    Full,
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
}

convert! {
    WriteError:
    Deadlock LockTimeout Ended NoTable ForeignTable NoSavepoint Full TooLarge ReadOnly WornOut OtherProcess Poisoned;
    KeyTooLong { size, size_max }
    ValueTooLong { size, size_max }
    PatchOutOfRange { offset, size }
    Decode { part, source }
    Index { index, fault }
    WearBudget { wait }
    Corrupt { page, check }
    Internal { error };
    Device Storage
}

impl WriteError {
    /// Whether the transaction was aborted for the sake of others, and may succeed when it is begun again.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Deadlock | Self::LockTimeout)
    }
}
