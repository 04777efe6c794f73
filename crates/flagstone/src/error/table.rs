//! Errors of tables as a whole.

use std::time::Duration;

use flagstone_engine::{DecodeError, IndexFault, RowPart};
use flagstone_nand::NandError;
use flagstone_space::{LogicalPage, SpaceError as StorageError};

use super::{Error, for_how_long};
#[cfg(doc)]
use crate::{Database, Limits, Options};

/// Why a table could not be opened, created, renamed or dropped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The name of a table is longer than a key, or the name of a snapshot longer than 255 bytes.
    #[error("name of {size} bytes is longer than {size_max}")]
    NameTooLong {
        /// Bytes given.
        size: usize,
        /// Bytes allowed.
        size_max: usize,
    },
    /// The table does not exist.
    #[error("there is no such table")]
    NoTable,
    /// A table with this name exists already.
    #[error("there is a table of that name already")]
    TableExists,
    /// The name belongs to an index, which [`Database::indexed`] makes and which follows its table.
    #[error(
        "`@` stands between the names of a table and of its index: no other table is given such a name"
    )]
    IndexName,
    /// There are as many tables as possible, [`Limits::table_count_max`], or all numbers for tables are used up.
    /// A dropped table counts until its pages are free.
    #[error("there are as many tables as there may be: drop one")]
    TooManyTables,
    /// An entry of a new index is longer than `Limits::key_size_max`.
    #[error("key of {size} bytes is longer than {size_max}")]
    KeyTooLong {
        /// Bytes given.
        size: usize,
        /// Bytes allowed.
        size_max: usize,
    },
    /// A row does not decode, so that a new index cannot be made.
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
    /// Other transactions held the table as long as [`Options::lock_timeout`] allows.
    #[error("the transaction was aborted: it waited too long for a lock")]
    LockTimeout,
    /// The device has no room for the change.
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
    /// The device failed while the change was written: whether it is durable is not known.
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
    TableError:
    NoTable TableExists IndexName TooManyTables LockTimeout Full TooLarge ReadOnly OutcomeUnknown WornOut OtherProcess Poisoned;
    NameTooLong { size, size_max }
    KeyTooLong { size, size_max }
    Decode { part, source }
    Index { index, fault }
    WearBudget { wait }
    Corrupt { page, check }
    Internal { error };
    Device Storage
}
