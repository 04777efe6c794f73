//! Errors of reading.

use flagstone_engine::{DecodeError, IndexFault, RowPart};
use flagstone_nand::NandError;
use flagstone_space::{LogicalPage, SpaceError as StorageError};

use super::Error;
#[cfg(doc)]
use crate::Options;

/// Why rows could not be read: by a transaction or a snapshot, a range or a cursor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The key is longer than `Limits::key_size_max`.
    #[error("key of {size} bytes is longer than {size_max}")]
    KeyTooLong {
        /// Bytes given.
        size: usize,
        /// Bytes allowed.
        size_max: usize,
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
    /// The snapshot was ended to free the space it held.
    #[error("the snapshot was ended because the device needed its space")]
    SnapshotTooOld,
    /// No snapshot has this name, or the snapshot was deleted since.
    #[error("there is no such snapshot")]
    NoSnapshot,
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
    /// A page was needed in memory, and the device has no room for the changes that are in its place.
    #[error("the device is full")]
    Full,
    /// A page was needed in memory, and the changes that are in its place cannot be written: the database was opened
    /// for reading only.
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
    ReadError:
    Deadlock LockTimeout Ended NoTable ForeignTable SnapshotTooOld NoSnapshot Full ReadOnly WornOut OtherProcess Poisoned;
    KeyTooLong { size, size_max }
    Decode { part, source }
    Index { index, fault }
    Corrupt { page, check }
    Internal { error };
    Device Storage
}

impl ReadError {
    /// Whether the transaction was aborted for the sake of others, and may succeed when it is begun again.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Deadlock | Self::LockTimeout)
    }
}
