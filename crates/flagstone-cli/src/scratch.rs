//! The directory in which `quickstart` and `bench` keep the files of their devices.
//!
//! Owns a temporary directory where the caller named none, and removes it: at the end, after a failure, and when the
//! user interrupts. A named directory is kept.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::failure::Failure;
use crate::interrupt::HalfMade;

/// A directory, removed with this value where it is a temporary one.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    _temporary: Option<(TempDir, HalfMade)>,
}

impl Scratch {
    /// The directory `named`, made when it is not there, or a temporary one.
    pub(crate) fn new(named: Option<&Path>) -> Result<Self, Failure> {
        if let Some(path) = named {
            let made = fs::create_dir_all(path);
            made.map_err(|source| Failure::File { path: path.into(), source })?;
            return Ok(Self { path: path.into(), _temporary: None });
        }
        let temporary = HalfMade::make(|| TempDir::with_prefix("flagstone-"), TempDir::path)
            .map_err(Failure::Temporary)?;
        Ok(Self { path: temporary.0.path().to_owned(), _temporary: Some(temporary) })
    }

    /// Path of the directory.
    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}
