//! The process that opened a file to write it.
//!
//! A fork shares the file, its lock included, and copies its process's knowledge of the file: two processes
//! would write over each other. So only the process that opened the file reads or writes through it.

use super::StorageError;

/// A process, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    /// This one.
    pub(crate) fn current() -> Self {
        Self(std::process::id())
    }

    #[cfg(test)]
    pub(crate) const fn of(id: u32) -> Self {
        Self(id)
    }

    pub(crate) const fn id(self) -> u32 {
        self.0
    }

    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }

    /// Refuses every other process, which was forked.
    pub(crate) fn require(self) -> Result<(), StorageError> {
        if self.is_current() { Ok(()) } else { Err(StorageError::OtherProcess) }
    }
}
