//! A file that was locked when it was opened.

use std::fs::File;
use std::ops::Deref;

use super::process::Process;

/// Lets the lock go (O2) when it is closed, not with the last copy of it: a process that this one is about to start has one
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
