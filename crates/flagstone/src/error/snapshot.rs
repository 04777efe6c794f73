//! Errors of snapshots.

use flagstone_nand::NandError;
use flagstone_space::{LogicalPage, SpaceError as StorageError};

use super::Error;

/// Why a snapshot could not be begun, created, opened or deleted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The name is longer than 255 bytes.
    #[error("name of {size} bytes is longer than {size_max}")]
    NameTooLong {
        /// Bytes given.
        size: usize,
        /// Bytes allowed.
        size_max: usize,
    },
    /// A snapshot with this name exists already.
    #[error("there is a snapshot of that name already")]
    SnapshotExists,
    /// No snapshot has this name, or the snapshot was deleted since.
    #[error("there is no such snapshot")]
    NoSnapshot,
    /// There are as many named snapshots as possible, at most 32, fewer on small blocks: delete one first.
    #[error("there are as many named snapshots as there may be: delete one")]
    TooManySnapshots,
    /// The device has no room for the changes that wait, or for the snapshot.
    #[error("the device is full")]
    Full,
    /// The database was opened for reading only.
    #[error("the database is open for reading only")]
    ReadOnly,
    /// The device failed while commits were made durable.
    #[error("the outcome of the commit is unknown")]
    OutcomeUnknown,
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
    SnapshotError:
    SnapshotExists NoSnapshot TooManySnapshots Full ReadOnly OutcomeUnknown WornOut OtherProcess Poisoned;
    NameTooLong { size, size_max }
    Corrupt { page, check }
    Internal { error };
    Device Storage
}
