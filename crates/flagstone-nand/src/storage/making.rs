//! Files that have their name when they are whole.
//!
//! Owns the name that such a file has until then, and its end when it is given up.
//!
//! - **M1** Under the name of a file stands nothing, or the former file, or the whole new file, at every
//!   moment.
//! - **M2** A file that is being made is called by the number of its own inode. Another file of such a name
//!   has another number: the leftovers of a dead process are known, and no other file is removed. An empty
//!   file is no leftover.
//! - **M3** It is locked from the moment at which it has that name until it is there or given up.
//! - **M4** No name is longer than some 60 bytes, for any later name of the file.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::file::{FileStorage, Synced};
use super::names::{link_kind_of, name_anew, rename_new};
use super::process::Process;
use super::{EEXIST, FileLock, OpenDeviceError, io};
use crate::ImageNand;
use crate::mix::mix_bytes;

/// A file that is being made; a drop before the file has its name removes it.
#[derive(Debug)]
pub struct Making {
    /// Keeps the lock when the device in the file is closed (M3).
    file: Arc<Synced>,
    path: PathBuf,
    target: PathBuf,
    process: Process,
}

/// Files that this process makes.
static UNDER_WAY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Times that a file is begun before its directory is given up: a directory that shows another inode for a
/// name each time never has the file that was made.
const ATTEMPTS_MAX: u32 = 1_000;

/// Sets apart the first names of files that one process makes.
static COUNT: AtomicU64 = AtomicU64::new(0);

impl Making {
    /// Begins a file that will be called `target`: an empty one beside it, to be written. Remains of earlier
    /// ones, whose processes died, are removed (M2).
    ///
    /// # Errors
    ///
    /// `NotAFile` for a path without a name; the errors of the host.
    pub fn begin(target: &Path, lock: FileLock) -> Result<(Self, FileStorage), OpenDeviceError> {
        let name = target.file_name().ok_or(OpenDeviceError::NotAFile)?;
        let head = format!(".flagstone-{:016x}-", mix_bytes(0, name.as_encoded_bytes()));
        remove_left(target, &head);
        // Held until the file's name is in the list: `give_up_files` waits for that.
        let mut files = UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner);
        let mut refused = Vec::new();
        let begin = |_| begin_once(target, &head, lock, &mut refused).transpose();
        let begun = (0..ATTEMPTS_MAX).find_map(begin);
        let (path, storage) = begun.unwrap_or(Err(OpenDeviceError::Locked))?;
        files.push(path.clone());
        let (file, process) = (storage.synced(), Process::current());
        Ok((Self { file, path, target: target.to_owned(), process }, storage))
    }

    /// Name of the file until it is whole.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file its name, which nothing may have yet, and makes that durable. A side file beside it goes
    /// along.
    ///
    /// # Errors
    ///
    /// `Io`: something has the name (`EEXIST`), or the host refuses. Nothing of the file stays.
    pub fn appear(self) -> Result<(), OpenDeviceError> {
        self.file.sync_all().map_err(|error| io(&error))?;
        let [from, to] = [&self.path, &self.target].map(|path| ImageNand::side_path(path));
        let has_side = link_kind_of(&from)?.is_some();
        if has_side {
            name_anew(&from, &to)?;
        }
        name_anew(&self.path, &self.target).inspect_err(|_| {
            if has_side {
                let _ = fs::remove_file(&to);
            }
        })
    }

    /// Puts the file in the place of the one that has its name, whole on the medium; the name itself is durable after
    /// [`sync_name`](super::sync_name).
    ///
    /// # Errors
    ///
    /// `Linked` when the replaced file has other names, under which it would stay as it is; the errors of the
    /// host. Nothing of the new file stays.
    pub fn replace(self) -> Result<(), OpenDeviceError> {
        self.file.sync_all().map_err(|error| io(&error))?;
        require_one_name(&self.target)?;
        fs::rename(&self.path, &self.target).map_err(|error| io(&error))
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let mut files = UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|path| *path != self.path);
        // Once the file has its name, nothing is left under the temporary one; a child of a fork
        // makes nothing.
        if self.process.is_current() {
            remove(&self.path);
        }
    }
}

/// Removes every file that this process makes: for use when the process ends, by a signal for
/// example.
pub fn give_up_files() {
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|path| remove(path));
}

/// A new, empty file that is called by its number. None where the file has to be begun again: another
/// creation took it for a leftover before it had its lock (M2), or a foreign file has the name; the file's
/// number stays in use in `refused`.
fn begin_once(
    target: &Path,
    head: &str,
    lock: FileLock,
    refused: &mut Vec<FileStorage>,
) -> Result<Option<(PathBuf, FileStorage)>, OpenDeviceError> {
    let (process, number) = (Process::current().id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let first = target.with_file_name(format!("{head}new-{process}-{number}"));
    let storage = match FileStorage::create_new(&first, lock) {
        Ok(storage) => storage,
        // A process of this number died at this very place.
        Err(OpenDeviceError::Io { errno: EEXIST }) => return Ok(None),
        Err(OpenDeviceError::Locked) => {
            let _ = fs::remove_file(&first);
            return Ok(None);
        }
        Err(error) => {
            let _ = fs::remove_file(&first);
            return Err(error);
        }
    };
    let named = storage.inode().and_then(|inode| {
        let path = target.with_file_name(format!("{head}{inode}"));
        rename_new(&first, &path).map(|()| path)
    });
    match named {
        Ok(path) => return Ok(Some((path, storage))),
        Err(error) => {
            let _ = fs::remove_file(&first);
            if error != (OpenDeviceError::Io { errno: EEXIST }) {
                return Err(error);
            }
        }
    }
    refused.push(storage);
    Ok(None)
}

/// Removes a file that is not whole, and its companions. A file that cannot be removed stays.
fn remove(path: &Path) {
    let _ = fs::remove_file(path);
    let _ = fs::remove_file(ImageNand::side_path(path));
}

/// Refuses a file with other names (hard links): a replacement under one name would part them.
///
/// # Errors
///
/// `Linked`; the errors of the host.
pub fn require_one_name(path: &Path) -> Result<(), OpenDeviceError> {
    let data = fs::metadata(path).map_err(|error| io(&error))?;
    let count = data.nlink();
    match data.is_file() && count > 1 {
        true => Err(OpenDeviceError::Linked { count }),
        false => Ok(()),
    }
}

/// Removes leftovers of dead processes, where the directory can be read. A leftover that stays does no harm.
fn remove_left(target: &Path, head: &str) {
    let Ok(entries) = fs::read_dir(parent_of(target)) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if let Some(number) = name.to_str().and_then(|name| name.strip_prefix(head))
            && let Ok((true, _lock)) = is_left(&entry.path(), number)
        {
            remove(&entry.path());
        }
    }
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether a file was being made, by the number in its name, and no process works on it (M2, M3). The file is
/// locked as long as the handle that comes with the answer is open.
fn is_left(path: &Path, number: &str) -> std::io::Result<(bool, File)> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Err(ErrorKind::InvalidInput.into());
    }
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    file.try_lock()?;
    let (open, named) = (file.metadata()?, fs::symlink_metadata(path)?);
    let is_named = (open.dev(), open.ino()) == (named.dev(), named.ino());
    let is_ours = open.len() == 0 || number.parse() == Ok(open.ino());
    Ok((is_named && is_ours, file))
}

#[cfg(test)]
mod tests {
    use super::super::Storage as _;
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let names = fs::read_dir(directory).unwrap();
        let mut names: Vec<_> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn begin(target: &Path) -> (Making, FileStorage) {
        let (making, mut storage) = Making::begin(target, FileLock::Required).unwrap();
        storage.write_at(0, b"new").unwrap();
        (making, storage)
    }

    /// Leaves a file as a process does that dies.
    fn left(target: &Path) -> PathBuf {
        let (making, storage) = begin(target);
        let path = making.path().to_owned();
        let kept = path.with_extension("kept");
        fs::rename(&path, &kept).unwrap();
        drop((making, storage));
        fs::rename(&kept, &path).unwrap();
        path
    }

    /// Goal (M1, M4): a file has its name when it is whole, the longest that the host takes as well, and
    /// nothing else stays, whether the file is finished or given up.
    #[test]
    fn a_file_is_there_as_a_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["db", &"n".repeat(255)] {
            let target = directory.path().join(name);
            drop(begin(&target));
            assert!(names(directory.path()).is_empty());
            let (making, storage) = begin(&target);
            assert!(!target.exists());
            drop(storage);
            making.appear().unwrap();
            assert_eq!(fs::read(&target).unwrap(), b"new");
            assert_eq!(begin(&target).0.appear(), Err(OpenDeviceError::Io { errno: 17 }));
            fs::write(&target, b"old").unwrap();
            begin(&target).0.replace().unwrap();
            assert_eq!(fs::read(&target).unwrap(), b"new");
            assert_eq!(names(directory.path()), [name]);
            fs::remove_file(&target).unwrap();
        }
    }

    /// Goal (M2, M3): the leftovers of a dead process go, and no other file does. Method: a leftover, a file
    /// being made, and files of others under such names: a copy of a leftover, an empty directory, a link.
    #[test]
    fn what_is_left_goes_and_what_others_have_stays() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("db");
        let left = left(&target);
        let (_making, storage) = begin(&directory.path().join("other"));
        let copy = left.with_file_name(format!("{}7", left.file_name().unwrap().to_str().unwrap()));
        fs::copy(&left, &copy).unwrap();
        let (folder, link) = (left.with_extension("folder"), left.with_extension("link"));
        fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink(&copy, &link).unwrap();
        let before = names(directory.path()).len();
        let (making, beside) = (begin(&target), begin(&target));
        assert_eq!([copy.exists(), folder.exists(), link.is_symlink()], [true; 3]);
        assert_eq!(
            names(directory.path()).len(),
            before + 1,
            "one went, whose number may be taken again, two came"
        );
        drop(storage);
        beside.0.appear().unwrap();
        assert_eq!(making.0.appear(), Err(OpenDeviceError::Io { errno: 17 }));
    }

    /// Goal (M2): several creations of one file at once all get one. Method: threads that look for leftovers
    /// again and again, and meet files that have no lock yet.
    #[test]
    fn who_looks_for_files_that_were_left_keeps_nobody_from_beginning_one() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("db");
        let path = begin(&target).0.path().to_str().unwrap().to_owned();
        let head = &path[path.rfind(".flagstone").unwrap()..=path.rfind('-').unwrap()];
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_done.load(Ordering::Relaxed) {
                        remove_left(&target, head);
                    }
                });
            }
            let begun = (0..3000).all(|_| Making::begin(&target, FileLock::Required).is_ok());
            is_done.store(true, Ordering::Relaxed);
            assert!(begun);
        });
        assert!(names(directory.path()).is_empty());
    }

    /// Goal (M2): a name taken by a foreign file does not prevent the making of another file. Method: files
    /// under the names of all numbers that come next.
    #[test]
    fn a_number_whose_name_is_taken_is_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("db");
        let other = directory.path().join("somebody's");
        fs::write(&other, b"old").unwrap();
        let other_number = fs::metadata(&other).unwrap().ino();
        let made = begin(&target);
        let path = made.0.path().to_str().unwrap().to_owned();
        drop(made);
        let (head, number) = path.rsplit_once('-').unwrap();
        let number: u64 = number.parse().unwrap();
        for number in (number..number + 20).filter(|number| *number != other_number) {
            fs::hard_link(&other, format!("{head}-{number}")).unwrap();
        }
        let before = names(directory.path()).len();
        let begun = [begin(&target), begin(&target), begin(&target)];
        assert_eq!(names(directory.path()).len(), before + begun.len());
        drop(begun);
        assert_eq!(names(directory.path()).len(), before);
    }

    /// Goal: a file with two names is not parted. Method: a hard link, made before and while the new file is made.
    #[test]
    fn a_file_with_two_names_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let (target, link) = (directory.path().join("db"), directory.path().join("link"));
        fs::write(&target, b"old").unwrap();
        let (making, _storage) = begin(&target);
        fs::hard_link(&target, &link).unwrap();
        assert_eq!(require_one_name(&link), Err(OpenDeviceError::Linked { count: 2 }));
        assert_eq!(making.replace(), Err(OpenDeviceError::Linked { count: 2 }));
        assert_eq!(fs::read(&target).unwrap(), b"old");
        assert_eq!(names(directory.path()), ["db", "link"]);
    }
}
