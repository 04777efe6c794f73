//! An interrupted command leaves no half-made files.
//!
//! Owns the list of files and directories that go when a signal ends the process, and the thread that waits for
//! one. A command that has made nothing yet is ended by the system, as ever.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;

use flagstone_nand::give_up_files;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

static HALF_MADE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static WATCH: Once = Once::new();

/// A file or directory that is being made; a signal removes it, until this value is dropped.
#[derive(Debug)]
pub(crate) struct HalfMade {
    path: PathBuf,
}

impl HalfMade {
    /// Makes a file by `make`, which also chooses its name: a signal that comes meanwhile waits for the result.
    pub(crate) fn make<T, E>(
        make: impl FnOnce() -> Result<T, E>,
        path_of: impl FnOnce(&T) -> &Path,
    ) -> Result<(T, Self), E> {
        WATCH.call_once(watch);
        change(|list| {
            let made = make()?;
            let path = path_of(&made).to_owned();
            list.push(path.clone());
            Ok((made, Self { path }))
        })
    }
}

impl Drop for HalfMade {
    fn drop(&mut self) {
        // Another one may be at work on the same file.
        change(|list| {
            let place = list.iter().position(|path| *path == self.path);
            place.map(|place| list.swap_remove(place))
        });
    }
}

/// Files that are being made for databases go after a signal, too.
pub(crate) fn watch_files() {
    WATCH.call_once(watch);
}

fn change<T>(act: impl FnOnce(&mut Vec<PathBuf>) -> T) -> T {
    act(&mut HALF_MADE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Removes half-made files when a signal comes. Then the same signal ends the process, so that its parent sees it.
/// Without a handler half-made files stay.
fn watch() {
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM, SIGHUP]) else { return };
    thread::spawn(move || {
        for signal in signals.forever() {
            change(|list| list.iter().for_each(|path| remove(path)));
            give_up_files();
            let _ = emulate_default_handler(signal);
        }
    });
}

/// Removes a file or directory if possible.
fn remove(path: &Path) {
    let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// Goal: no signal comes between the making of a file and its entry in the list, or the file would stay. Method:
    /// the thread that removes half-made files has to wait while one is made, and finds it then.
    #[test]
    fn what_is_made_is_known_before_a_signal_is_heard() {
        let make = || {
            assert!(HALF_MADE.try_lock().is_err(), "a signal waits");
            TempDir::new()
        };
        let (made, half_made) = HalfMade::make(make, TempDir::path).unwrap();
        let is_known = || change(|list| list.iter().any(|path| path == made.path()));
        assert!(is_known());
        drop(half_made);
        assert!(!is_known());
    }
}
