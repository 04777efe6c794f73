//! Errors of commits.

use flagstone_nand::NandError;
use flagstone_space::{LogicalPage, SpaceError as StorageError};

use super::{Error, WriteError};
#[cfg(doc)]
use crate::Options;

/// Why a transaction was not committed, or commits could not be made durable. But for `OutcomeUnknown`, nothing
/// of the transaction remains.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
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
    /// A change in several parts stopped half way, with this error: the transaction cannot be committed.
    #[error(transparent)]
    Incomplete(Box<WriteError>),
    /// The device has no room for the transaction.
    #[error("the device is full")]
    Full,
    /// The transaction changes more than memory and its commit record hold, however much room the device has; or
    /// it deletes more than memory holds, on a full device. Commit in smaller parts, or give the database more
    /// memory.
    #[error(
        "the transaction is too large for the memory that there is: commit in smaller parts, or give the database more"
    )]
    TooLarge,
    /// The database was opened for reading only.
    #[error("the database is open for reading only")]
    ReadOnly,
    /// The device failed while the commit was written: whether the commit is durable is not known.
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

impl From<CommitError> for Error {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Deadlock => Self::Deadlock,
            CommitError::LockTimeout => Self::LockTimeout,
            CommitError::Ended => Self::Ended,
            CommitError::Incomplete(it) => (*it).into(),
            CommitError::Full => Self::Full,
            CommitError::TooLarge => Self::TooLarge,
            CommitError::ReadOnly => Self::ReadOnly,
            CommitError::OutcomeUnknown => Self::OutcomeUnknown,
            CommitError::WornOut => Self::WornOut,
            CommitError::OtherProcess => Self::OtherProcess,
            CommitError::Poisoned => Self::Poisoned,
            CommitError::Corrupt { page, check } => Self::Corrupt { page, check },
            CommitError::Device(it) => Self::Device(it),
            CommitError::Storage(it) => Self::Storage(it),
            CommitError::Internal { error } => Self::Internal { error },
        }
    }
}

impl CommitError {
    /// The same error, as one of a commit.
    pub(crate) fn of(error: impl Into<Error>) -> Self {
        match error.into() {
            Error::Deadlock => Self::Deadlock,
            Error::LockTimeout => Self::LockTimeout,
            Error::Ended => Self::Ended,
            Error::Full => Self::Full,
            Error::TooLarge => Self::TooLarge,
            Error::ReadOnly => Self::ReadOnly,
            Error::OutcomeUnknown => Self::OutcomeUnknown,
            Error::WornOut => Self::WornOut,
            Error::OtherProcess => Self::OtherProcess,
            Error::Poisoned => Self::Poisoned,
            Error::Corrupt { page, check } => Self::Corrupt { page, check },
            Error::Device(it) => Self::Device(it),
            Error::Storage(it) => Self::Storage(it),
            Error::Internal { error } => Self::Internal { error },
            // A change that could not be taken back alone.
            error @ (Error::KeyTooLong { .. }
            | Error::ValueTooLong { .. }
            | Error::PatchOutOfRange { .. }
            | Error::NoTable
            | Error::ForeignTable
            | Error::NoSavepoint
            | Error::Decode { .. }
            | Error::Index { .. }
            | Error::WearBudget { .. }) => Self::Incomplete(Box::new(WriteError::of(error))),
            other => Self::Internal { error: other.to_string() },
        }
    }
}

impl CommitError {
    /// Whether the transaction was aborted for the sake of others, and may succeed when it is begun again.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Deadlock | Self::LockTimeout)
    }
}
