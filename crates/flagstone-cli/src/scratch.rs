//! The directory in which `quickstart` and `bench` keep the files of their devices.
//!
//! Owns a temporary directory where the caller named none, and that it is gone afterwards: at the
//! end, after a failure, and when the user interrupts. A directory that was named is kept.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;

use tempfile::TempDir;

use crate::failure::Failure;

/// Exit code of an interrupted command: 128 and the number of `SIGINT`, as shells have it.
const INTERRUPTED: i32 = 130;

/// A directory, removed with this value where it is a temporary one.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    _temporary: Option<TempDir>,
}

impl Scratch {
    /// The directory `named`, made when it is not there, or a temporary one.
    pub(crate) fn new(named: Option<&Path>) -> Result<Self, Failure> {
        if let Some(path) = named {
            let made = fs::create_dir_all(path);
            made.map_err(|source| Failure::File { path: path.into(), source })?;
            return Ok(Self { path: path.into(), _temporary: None });
        }
        let temporary = TempDir::with_prefix("flagstone-").map_err(Failure::Temporary)?;
        remove_when_interrupted(temporary.path().to_owned());
        Ok(Self { path: temporary.path().to_owned(), _temporary: Some(temporary) })
    }

    /// Path of the directory.
    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn remove_when_interrupted(path: PathBuf) {
    let remove = move || {
        let _ = fs::remove_dir_all(&path);
        process::exit(INTERRUPTED);
    };
    // Without a handler an interrupt leaves the directory to the system's own cleaning.
    let _ = ctrlc::set_handler(remove);
}
