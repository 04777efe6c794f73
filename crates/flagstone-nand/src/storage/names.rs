//! Names of files: their kinds, their changes and their durability.
//!
//! Owns the calls that look at a name or change one. Never opens a file to read or write it.

use std::fs::{self, File, FileType};
use std::io::ErrorKind;
use std::path::Path;

use super::{EEXIST, OpenDeviceError, io};

/// Kind of the file at a path, links followed; none where nothing stands.
///
/// # Errors
///
/// The errors of the host: the content of the path is then not known.
pub fn kind_of(path: &Path) -> Result<Option<FileType>, OpenDeviceError> {
    found(fs::metadata(path))
}

/// As [`kind_of`], of a link itself.
///
/// # Errors
///
/// As [`kind_of`].
pub fn link_kind_of(path: &Path) -> Result<Option<FileType>, OpenDeviceError> {
    found(fs::symlink_metadata(path))
}

fn found(data: std::io::Result<fs::Metadata>) -> Result<Option<FileType>, OpenDeviceError> {
    match data {
        Ok(data) => Ok(Some(data.file_type())),
        // Nothing has a name that is too long.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidFilename) => {
            Ok(None)
        }
        Err(error) => Err(io(&error)),
    }
}

/// Makes the name of a file durable that was made or renamed: syncs the directory in which it stands.
///
/// Some file systems have no sync for directories; these order the change of a name by themselves.
///
/// # Errors
///
/// The errors of the host. The name has changed all the same.
pub fn sync_name(path: &Path) -> std::io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = File::open(parent.unwrap_or(Path::new(".")))?;
    match directory.sync_all() {
        Err(error) if error.kind() != ErrorKind::InvalidInput => Err(error),
        _ => Ok(()),
    }
}

/// Gives a file a name that nothing has yet, and makes that durable.
///
/// # Errors
///
/// `Io`: something has the name (`EEXIST`), or the host refuses. The file has the old name then, or none where it had the
/// new one and that could not be made durable.
pub(super) fn name_anew(from: &Path, to: &Path) -> Result<(), OpenDeviceError> {
    rename_new(from, to)?;
    sync_name(to).map_err(|error| {
        let _ = fs::remove_file(to);
        io(&error)
    })
}

#[cfg(target_os = "linux")]
pub(super) fn rename_new(from: &Path, to: &Path) -> Result<(), OpenDeviceError> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system supports this call.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => rename_missing(from, to),
        renamed => renamed.map_err(|error| io(&error.into())),
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn rename_new(from: &Path, to: &Path) -> Result<(), OpenDeviceError> {
    rename_missing(from, to)
}

/// As [`rename_new`], where that is not supported: a file that takes the name in between loses it.
fn rename_missing(from: &Path, to: &Path) -> Result<(), OpenDeviceError> {
    require_missing(to)?;
    fs::rename(from, to).map_err(|error| io(&error))
}

/// Refuses a name that something has, a link to nothing among others.
///
/// # Errors
///
/// `Io` with `EEXIST`, or the host's error.
pub fn require_missing(path: &Path) -> Result<(), OpenDeviceError> {
    match link_kind_of(path)? {
        Some(_) => Err(OpenDeviceError::Io { errno: EEXIST }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
