//! Making the file of a database.
//!
//! - **N1** At every moment the name of a database belongs to no file, or to a whole and durable database:
//!   the file is made under another name, which it loses when it is complete ([`Making`]). A block device has
//!   one name only.

use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use flagstone_engine::Options;
use flagstone_nand::{
    Extent, Making, OpenDeviceError, Profile, SegmentFile, kind_of, require_missing,
};

use super::Database;
use crate::OpenError;

/// Size of the file of a database, in bytes of its segments; a head of some hundred kilobytes comes on top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileSize {
    /// Size in bytes, all of which are written at creation.
    Fixed(u64),
    /// The file begins small and grows with its content, by an eighth at a time.
    Growing {
        /// Limit of the file in bytes, 1 TiB at most: each megabyte of the limit takes a byte of memory.
        limit: u64,
    },
}

impl Default for FileSize {
    fn default() -> Self {
        Self::Growing { limit: FILE_LIMIT }
    }
}

/// Limit of a file that [`Database::create`] makes.
const FILE_LIMIT: u64 = 256 << 30;

/// Highest limit of a file that grows.
const FILE_LIMIT_MAX: u64 = 1 << 40;

impl Database {
    /// Creates a database in a file that grows, from some 16 MiB to 256 GiB; for other sizes see
    /// [`Database::create_sized`], for other devices [`Database::create_on`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// use flagstone::{Database, Options};
    ///
    /// let small = Options::default().with_memory(1 << 20);
    /// Database::create(&path, &small)?.close()?;
    /// assert!(Database::create(&path, &small).is_err(), "the file is there already");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Device` when the file exists or cannot be written, `Options` or `Space` when the options do not fit.
    /// After an error no file stays.
    pub fn create(path: impl AsRef<Path>, options: &Options) -> Result<Self, OpenError> {
        Self::create_sized(path, options, FileSize::default())
    }

    /// Creates a database in a file that grows to a limit, or in a file or block device of a fixed size.
    ///
    /// A growing file is as long as its content needs, and half as much on top; it never becomes shorter, but
    /// [`Database::compact`] writes it anew. At its limit, or where the host has no room for more, it is as
    /// full as a file of that size.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// use flagstone::{Database, FileSize, Options};
    ///
    /// let size = FileSize::Growing { limit: 1 << 30 };
    /// Database::create_sized(&path, &Options::default(), size)?.close()?;
    /// assert!(std::fs::metadata(&path)?.len() < 20 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Database::create`]; `Device` with `FixedSize` when a block device should grow, with `TooLarge`
    /// for a limit above 1 TiB.
    pub fn create_sized(
        path: impl AsRef<Path>,
        options: &Options,
        size: FileSize,
    ) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let (profile, extent) = size.device()?;
        if kind_of(path)?.is_some_and(|kind| kind.is_block_device()) {
            let device = SegmentFile::create_file(path, &profile, extent)?;
            return Self::create_on(device, options);
        }
        require_missing(path)?;
        let (making, created) = make(path, &profile, extent, options)?;
        making.appear()?;
        Ok(created)
    }

    /// Opens the database of a path or, where there is no file, creates one in a file that grows.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// use flagstone::{Database, Options};
    ///
    /// for session in 0..3 {
    ///     let db = Database::open_or_create(&path, &Options::default())?;
    ///     assert_eq!(db.tables()?.len(), session);
    ///     db.table(&format!("table {session}"))?;
    ///     db.close()?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Database::open`] and [`Database::create`].
    pub fn open_or_create(path: impl AsRef<Path>, options: &Options) -> Result<Self, OpenError> {
        let path = path.as_ref();
        match Self::open(path, options) {
            Err(OpenError::Device(error)) if is_missing(&error) => {}
            opened => return opened,
        }
        match Self::create(path, options) {
            // Another thread or process has made the file meanwhile.
            Err(OpenError::Device(error)) if is_kind(&error, ErrorKind::AlreadyExists) => {
                Self::open(path, options)
            }
            created => created,
        }
    }
}

impl FileSize {
    /// The device in a file of this size.
    pub(super) fn device(self) -> Result<(Profile, Extent), OpenDeviceError> {
        let (bytes, extent) = match self {
            Self::Fixed(bytes) => (bytes, Extent::Fixed),
            Self::Growing { limit } => (limit, Extent::Growing),
        };
        if extent == Extent::Growing && bytes > FILE_LIMIT_MAX {
            let size_max = FILE_LIMIT_MAX;
            return Err(OpenDeviceError::TooLarge { size: bytes, size_max });
        }
        Ok((Profile::named("segment-file")?.with_capacity(bytes)?, extent))
    }
}

/// Makes an empty database in a file that will be called `target`. The file does not outlive a failure.
pub(super) fn make(
    target: &Path,
    profile: &Profile,
    extent: Extent,
    options: &Options,
) -> Result<(Making, Database), OpenError> {
    let (making, storage) = Making::begin(target, options.file_lock.into())?;
    let device = SegmentFile::create_in(storage, profile, extent)?;
    let created = Database::create_on(device, options)?;
    Ok((making, created))
}

fn is_missing(error: &OpenDeviceError) -> bool {
    is_kind(error, ErrorKind::NotFound)
}

fn is_kind(error: &OpenDeviceError, kind: ErrorKind) -> bool {
    let OpenDeviceError::Io { errno } = error else { return false };
    Error::from_raw_os_error(*errno).kind() == kind
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;

    use super::*;

    fn options() -> Options {
        Options::default().with_memory(1 << 20)
    }

    fn names(directory: &Path) -> Vec<OsString> {
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    fn begin(path: &Path) -> (Making, Database) {
        let (profile, extent) = FileSize::default().device().unwrap();
        make(path, &profile, extent, &options()).unwrap()
    }

    /// Goal (N1): a creation that is cut off at any moment does not prevent the next creation of the
    /// database, which removes its remains. Method: each state before the file has its name: nothing in it, a
    /// part, all of it.
    #[test]
    fn a_creation_that_was_cut_off_is_made_again() {
        let directory = tempfile::tempdir().unwrap();
        let (path, kept) = (directory.path().join("db"), directory.path().join("kept"));
        for part in [0, 1, 4096, 8 << 20, 1 << 30] {
            let (making, database) = begin(&path);
            let unfinished = making.path().to_owned();
            fs::rename(&unfinished, &kept).unwrap();
            drop((making, database));
            fs::rename(&kept, &unfinished).unwrap();
            let file = fs::OpenOptions::new().write(true).open(&unfinished).unwrap();
            file.set_len(file.metadata().unwrap().len().min(part)).unwrap();
            drop(file);
            assert!(Database::open(&path, &options()).is_err());
            Database::open_or_create(&path, &options()).unwrap().close().unwrap();
            assert_eq!(names(directory.path()), ["db"], "{part} bytes were left");
            fs::remove_file(&path).unwrap();
        }
    }

    /// Goal: a file that has the name keeps it, and no other file stays. Method: a file, a directory, links
    /// to something and to nothing; another creation that is done first.
    #[test]
    fn a_name_that_is_taken_is_left_alone() {
        use std::os::unix::fs::symlink;

        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("file"), b"mine").unwrap();
        fs::create_dir(at("directory")).unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink(at("nothing"), at("dangling")).unwrap();
        let before = names(directory.path()).len();
        for name in ["file", "directory", "link", "dangling"] {
            let error = Database::create(at(name), &options()).unwrap_err();
            assert_eq!(error.to_string(), "File exists (os error 17)", "{name}");
            assert!(Database::open_or_create(at(name), &options()).is_err(), "{name}");
        }
        assert_eq!(fs::read(at("file")).unwrap(), b"mine");
        let (making, database) = begin(&at("db"));
        Database::create(at("db"), &options()).unwrap().close().unwrap();
        drop(database);
        assert_eq!(making.appear(), Err(OpenDeviceError::Io { errno: 17 }));
        assert_eq!(names(directory.path()).len(), before + 1);
        Database::open(at("db"), &options()).unwrap().close().unwrap();
    }

    /// Goal: the second of two creators opens the database that the first has made. Method: threads that
    /// begin at once; one of them makes the file, others find it open, or come later.
    #[test]
    fn a_database_that_came_meanwhile_is_opened() {
        let directory = tempfile::tempdir().unwrap();
        for round in 0..30 {
            let path = directory.path().join(round.to_string());
            let begin = std::sync::Barrier::new(4);
            let open = || {
                begin.wait();
                match Database::open_or_create(&path, &options()) {
                    Ok(database) => database.close().unwrap(),
                    Err(OpenError::Device(OpenDeviceError::Locked)) => {}
                    Err(error) => panic!("round {round}: {error}"),
                }
            };
            std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(open))));
            Database::open(&path, &options()).unwrap().close().unwrap();
        }
    }
}
