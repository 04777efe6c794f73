//! Errors of opening.

use flagstone_engine::{CheckFault, Corruption, OpenError as EngineOpenError, OptionsError};
use flagstone_nand::OpenDeviceError;
use flagstone_space::{MountError, SpaceError as StorageError};

use super::Error;

/// Why a database could not be created or opened. Nothing was written to a database that was there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The options are refused.
    #[error(transparent)]
    Options(OptionsError),
    /// The device could not be created or opened.
    #[error(transparent)]
    Device(OpenDeviceError),
    /// The device holds no database that can be mounted.
    #[error(transparent)]
    Mount(MountError),
    /// The pages of the database failed.
    #[error(transparent)]
    Storage(StorageError),
    /// The log or the catalog contradicts itself.
    #[error("the database is damaged: {0}")]
    Corrupt(Corruption),
    /// The check requested by `verify_on_open` found contradictions; the check wrote nothing.
    #[error("the check on opening found {count} faults, the first one: {first}")]
    Unsound {
        /// Faults found.
        count: usize,
        /// The first of them.
        first: Box<CheckFault>,
    },
    /// The changes that are in no page yet do not fit the memory, and nothing may be written. Open the database
    /// with more memory, or once for writing.
    #[error(
        "changes that no page holds yet take more than {memory} bytes of memory: give it more, or open \
         the database once for writing"
    )]
    NeedsMemory {
        /// Memory budget given, in bytes.
        memory: usize,
    },
    /// An operation of the restart failed.
    #[error(transparent)]
    Restart(Box<Error>),
}

#[doc(hidden)]
impl From<EngineOpenError> for OpenError {
    fn from(error: EngineOpenError) -> Self {
        match error {
            EngineOpenError::Options(error) => Self::Options(error),
            EngineOpenError::Device(error) => Self::Device(error),
            EngineOpenError::Mount(error) => Self::Mount(error),
            EngineOpenError::Space(error) => Self::Storage(error),
            EngineOpenError::Corrupt(fault) => Self::Corrupt(fault),
            EngineOpenError::Unsound { count, first } => Self::Unsound { count, first },
            EngineOpenError::NeedsMemory { memory } => Self::NeedsMemory { memory },
            EngineOpenError::Engine(error) => Self::Restart(Box::new(error.into())),
            other => Self::Restart(Box::new(Error::Internal { error: other.to_string() })),
        }
    }
}

impl From<OpenDeviceError> for OpenError {
    fn from(error: OpenDeviceError) -> Self {
        Self::Device(error)
    }
}

impl From<MountError> for OpenError {
    fn from(error: MountError) -> Self {
        Self::Mount(error)
    }
}

impl From<OptionsError> for OpenError {
    fn from(error: OptionsError) -> Self {
        Self::Options(error)
    }
}
