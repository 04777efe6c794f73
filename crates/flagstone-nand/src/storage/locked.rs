//! The lock of an open file (O2).
//!
//! Owns the lock's taking, its end, and the answer to a file system that locks nothing. Never opens a file.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::ops::Deref;

use super::process::Process;
use super::{Access, FileLock, OpenDeviceError, io};

/// A file that was locked when it was opened. It lets the lock go (O2) when it is closed, not with the last copy of it: a process that this one is about to start has one
/// until it runs a program of its own. A child of a fork closes its copy alone.
#[derive(Debug)]
pub(crate) struct LockedFile {
    file: File,
    opener: Process,
}

impl LockedFile {
    /// A file of this process.
    pub(crate) fn over(file: File) -> Self {
        Self { file, opener: Process::current() }
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        if self.opener.is_current() {
            let _ = self.file.unlock();
        }
    }
}

/// Locks a file until it is closed (O2).
pub(crate) fn lock(file: &File, access: Access, lock: FileLock) -> Result<(), OpenDeviceError> {
    let locked = match access {
        Access::Write => file.try_lock(),
        Access::Read => file.try_lock_shared(),
    };
    judge_lock(locked, lock)
}

fn judge_lock(locked: Result<(), TryLockError>, lock: FileLock) -> Result<(), OpenDeviceError> {
    match locked {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(OpenDeviceError::Locked),
        Err(TryLockError::Error(error)) if has_no_locks(&error) => match lock {
            FileLock::Required => {
                Err(OpenDeviceError::NoLocks { errno: error.raw_os_error().unwrap_or(ENOLCK) })
            }
            FileLock::WherePossible => Ok(()),
        },
        Err(TryLockError::Error(error)) => Err(io(&error)),
    }
}

/// Whether the file system knows of no locks, rather than refusing one.
fn has_no_locks(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::Unsupported || error.raw_os_error() == Some(ENOLCK)
}

#[cfg(target_os = "linux")]
const ENOLCK: i32 = rustix::io::Errno::NOLCK.raw_os_error();

/// `ENOLCK` of the BSDs and macOS.
#[cfg(not(target_os = "linux"))]
const ENOLCK: i32 = 77;

#[cfg(test)]
mod tests;
