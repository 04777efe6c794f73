//! What an interrupted command leaves: nothing that is half made.
//!
//! Owns the list of files and directories that go when a signal ends the process, and the thread that waits for
//! one. A command that has made nothing yet is ended by the system, as ever.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

static HALF_MADE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static WATCH: Once = Once::new();

/// Something that is being made; it is gone after a signal, until this value is dropped.
#[derive(Debug)]
pub(crate) struct HalfMade {
    path: PathBuf,
}

impl HalfMade {
    pub(crate) fn new(path: &Path) -> Self {
        WATCH.call_once(watch);
        change(|list| list.push(path.to_owned()));
        Self { path: path.to_owned() }
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

fn change<T>(act: impl FnOnce(&mut Vec<PathBuf>) -> T) -> T {
    act(&mut HALF_MADE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Removes what is half made when a signal comes; then the signal ends the process, so that whoever started it sees
/// which one. Without a handler what is half made stays.
fn watch() {
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM, SIGHUP]) else { return };
    thread::spawn(move || {
        for signal in signals.forever() {
            change(|list| list.iter().for_each(|path| remove(path)));
            let _ = emulate_default_handler(signal);
        }
    });
}

/// What cannot be removed stays.
fn remove(path: &Path) {
    let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
}
