//! Files beside the database, or standard streams, as input and output of commands.
//!
//! Owns the making of a new file; knows nothing of its content.
//!
//! Invariant I1: a file that was there is never written over, and a new one has its name only when it
//! is complete and on the medium.

use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;

use flagstone_nand::sync_name;
use tempfile::NamedTempFile;

use crate::failure::Failure;
use crate::interrupt::HalfMade;

/// Whether a path stands for a standard stream.
pub(crate) fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Whether a path can be read only once: a standard stream, a pipe, a terminal.
pub(crate) fn is_stream(path: &Path) -> Result<bool, Failure> {
    if is_standard(path) {
        return Ok(true);
    }
    let kind = fs::metadata(path).map_err(at(path))?.file_type();
    Ok(kind.is_fifo() || kind.is_char_device())
}

/// Bytes free on the file system of a file to be made; none where it does not say.
pub(crate) fn free_bytes(path: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(parent_of(path)).ok()?;
    // Some file systems without a size of their own answer 0 to everything.
    (found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize))
}

/// The directory that a file lies in.
fn parent_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// The failure that an error of the file `path` is.
pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Failure {
    |source| Failure::File { path: path.into(), source }
}

/// `EEXIST` on every Unix.
pub(crate) const EEXIST: i32 = 17;

/// The failure for a file that must not be there.
pub(crate) fn taken(path: &Path) -> Failure {
    at(path)(io::Error::from_raw_os_error(EEXIST))
}

/// The stream to read, and its size in bytes; 0 when unknown.
pub(crate) fn open_input(path: &Path) -> Result<(Box<dyn BufRead>, u64), Failure> {
    if is_standard(path) {
        return Ok((Box::new(io::stdin().lock()), 0));
    }
    let file = File::open(path).map_err(at(path))?;
    let size = file.metadata().map_err(at(path))?.len();
    Ok((Box::new(BufReader::with_capacity(1 << 16, file)), size))
}

/// Writes a file that must not exist; it appears when `write` has given its result (I1).
pub(crate) fn write_new<T>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<T, Failure>,
) -> Result<T, Failure> {
    // `persist_noclobber` has the last word; this spares the work.
    if path.try_exists().map_err(at(path))? {
        return Err(taken(path));
    }
    let mut file = tempfile::Builder::new();
    // As for any new file, the process's mask takes rights of others away.
    let file = file.prefix(".flagstone-").permissions(Permissions::from_mode(0o666));
    let parent = parent_of(path);
    fs::metadata(parent).map_err(at(path))?;
    // Its own message names the temporary file.
    let (file, _half_made) = HalfMade::make(|| file.tempfile_in(parent), NamedTempFile::path)
        .map_err(|error| at(path)(error.kind().into()))?;
    // Writes to the inner file: errors of the outer one name the temporary file.
    let mut stream = BufWriter::new(file.as_file());
    let result = write(&mut stream).map_err(|failure| match failure {
        Failure::Output(source) => at(path)(source),
        failure => failure,
    })?;
    stream.into_inner().map_err(|error| at(path)(error.into_error()))?;
    keep(file, path).map_err(at(path))?;
    Ok(result)
}

fn keep(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.as_file().sync_all()?;
    file.persist_noclobber(path).map_err(|error| error.error)?;
    sync_name(path)
}
