//! A real file or block device.
//!
//! Owns its opening, and the room that its writes are promised. Never decides what lies where in the file.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Seek, SeekFrom};
use std::ops::{Deref, Range};
#[cfg(target_os = "linux")]
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::fs::{FileExt, FileTypeExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

#[cfg(target_os = "linux")]
use super::direct::Direct;
use super::host::{
    ReadAlone, allocate, forget_written, has_room_alone, is_copy_on_write, is_full, punch, room_of,
    settle_given_back, write_in_place,
};
use super::locked::{self, LockedFile};
use super::names::{kind_of, sync_name};
use super::process::Process;
use super::unwritten_extents::{Advice, Fresh};
use super::{
    Access, EEXIST, EIO, ENOSPC, FileLock, OpenDeviceError, SharedStorage, Storage, StorageError,
    io,
};
use crate::Completion;

/// A file, locked as long as it is open: against everybody, or against writers.
#[derive(Debug)]
pub struct FileStorage {
    file: Arc<Synced>,
    /// A plain file, which can become longer: no block device.
    is_plain: bool,
    /// Where segments are that were never written, once it is known where they lie.
    fresh: Option<Fresh>,
    /// Bytes of a segment, once that is known.
    segment_size: Option<u64>,
    opened: Instant,
    access: Access,
}

/// A file whose syncs are counted, for all threads together.
#[derive(Debug)]
pub(super) struct Synced {
    file: LockedFile,
    /// The process that may write the file, and read it while it may change; none where nobody
    /// writes.
    process: Option<Process>,
    /// The file system moves rewrites elsewhere: by its kind, or because a write had no room where some had
    /// been reserved. Clones of a file that share its blocks are the second kind.
    moves_rewrites: AtomicBool,
    #[cfg(target_os = "linux")]
    direct: Option<Direct>,
    sync_count: AtomicU64,
}

impl Synced {
    fn require_process(&self) -> Result<(), StorageError> {
        self.process.map_or(Ok(()), Process::require)
    }
}

impl Deref for Synced {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

/// Bytes written at a time when a file is filled.
const FILL_SIZE: usize = 1 << 20;

/// Bytes looked at, and filled, at a time.
const EMPTY_STEP: usize = 4096;

impl FileStorage {
    /// Makes a new, empty file, or takes a whole block device.
    ///
    /// The content of a block device is lost once it is written, unless it is a device of ours.
    ///
    /// # Errors
    ///
    /// `Io` when the file exists or cannot be made, or the block device holds a device of ours;
    /// `Locked` when something else uses it.
    pub fn create(path: &Path) -> Result<Self, OpenDeviceError> {
        Self::create_for(path, 0, Ok)
    }

    fn create_or_take(path: &Path, size: u64) -> Result<Self, OpenDeviceError> {
        if !kind_of(path)?.is_some_and(|kind| kind.is_block_device()) {
            return Self::create_new(path, FileLock::Required);
        }
        let mut storage = Self::open(path)?;
        // Before its content is given up.
        storage.must_take(size)?;
        match crate::segment::is_ours(&mut storage)? {
            true => Err(OpenDeviceError::Io { errno: EEXIST }),
            false => Ok(storage),
        }
    }

    /// A new, empty file.
    pub(super) fn create_new(path: &Path, lock: FileLock) -> Result<Self, OpenDeviceError> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        let file = file.map_err(|error| io(&error))?;
        write_in_place(&file);
        Self::locked_at(file, path, Access::Write, lock)
    }

    /// Refuses a child of a fork.
    pub(crate) fn require_process(&self) -> Result<(), StorageError> {
        self.file.require_process()
    }

    /// Number of its inode.
    pub(super) fn inode(&self) -> Result<u64, OpenDeviceError> {
        use std::os::unix::fs::MetadataExt as _;
        Ok(self.file.metadata().map_err(|error| io(&error))?.ino())
    }

    /// The file itself, locked as long as a holder remains.
    pub(super) fn synced(&self) -> Arc<Synced> {
        Arc::clone(&self.file)
    }

    /// Hands a new, empty file or a whole block device of `size` bytes to `make`. A file does not outlive a
    /// failure; its name is durable afterwards.
    ///
    /// # Errors
    ///
    /// As [`FileStorage::create`], and the errors of `make`; `ENOSPC` for a block device with fewer bytes.
    pub(crate) fn create_for<T>(
        path: &Path,
        size: u64,
        make: impl FnOnce(Self) -> Result<T, OpenDeviceError>,
    ) -> Result<T, OpenDeviceError> {
        let storage = Self::create_or_take(path, size)?;
        let is_new = storage.can_extend();
        let mut made = make(storage);
        if is_new && let Err(error) = sync_name(path) {
            made = made.and(Err(io(&error)));
        }
        if made.is_err() && is_new {
            // A file that cannot be removed stays; the failure names the fault.
            let _ = fs::remove_file(path);
        }
        made
    }

    /// Opens an existing file or block device.
    ///
    /// # Errors
    ///
    /// `NotAFile`, `ReadOnly`, `Locked`, or `Io` with the number of the failed call.
    pub fn open(path: &Path) -> Result<Self, OpenDeviceError> {
        Self::open_with(path, Access::Write, FileLock::Required)
    }

    /// Opens an existing file or block device to be read, which it may be by several at a time. Each write
    /// fails.
    ///
    /// # Errors
    ///
    /// As [`FileStorage::open`], but for `ReadOnly`; `Locked` when a writer has the file open.
    pub fn open_read_only(path: &Path) -> Result<Self, OpenDeviceError> {
        Self::open_with(path, Access::Read, FileLock::Required)
    }

    /// Opens an existing file or block device, with a lock or where the file system has none.
    ///
    /// # Errors
    ///
    /// As [`FileStorage::open`] and [`FileStorage::open_read_only`]; `NoLocks` where a lock is required and there is
    /// none.
    pub fn open_with(path: &Path, access: Access, lock: FileLock) -> Result<Self, OpenDeviceError> {
        let writes = access == Access::Write;
        let data = fs::metadata(path).map_err(|error| io(&error))?;
        let is_block_device = data.file_type().is_block_device();
        if !data.is_file() && !is_block_device {
            return Err(OpenDeviceError::NotAFile);
        }
        // The system lets the superuser write the file all the same, but its mark was set on
        // purpose.
        if writes && data.permissions().readonly() {
            return Err(OpenDeviceError::ReadOnly);
        }
        let mut options = OpenOptions::new();
        options.read(true).write(writes);
        #[cfg(target_os = "linux")]
        if writes && is_block_device {
            // Refused while a file system or another exclusive user has it.
            options.custom_flags(rustix::fs::OFlags::EXCL.bits().cast_signed());
        }
        match options.open(path) {
            Ok(file) => Self::locked_at(file, path, access, lock),
            Err(error) if error.kind() == ErrorKind::ResourceBusy => Err(OpenDeviceError::Locked),
            Err(error) if writes && is_refusal(&error) && File::open(path).is_ok() => {
                Err(OpenDeviceError::ReadOnly)
            }
            Err(error) => Err(io(&error)),
        }
    }

    /// Locks a file that is open, if `path` still stands for it: until then another user, who had it locked, may have
    /// removed it or put another one in its place.
    fn locked_at(
        file: File,
        path: &Path,
        access: Access,
        lock: FileLock,
    ) -> Result<Self, OpenDeviceError> {
        let storage = Self::locked(file, access, lock)?;
        if storage.has_name(path)? { Ok(storage) } else { Err(OpenDeviceError::Locked) }
    }

    /// Whether `path` stands for the file that is open.
    fn has_name(&self, path: &Path) -> Result<bool, OpenDeviceError> {
        use std::os::unix::fs::MetadataExt as _;
        let open = self.file.metadata().map_err(|error| io(&error))?;
        match fs::metadata(path) {
            Ok(named) => Ok((named.dev(), named.ino()) == (open.dev(), open.ino())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(io(&error)),
        }
    }

    fn locked(file: File, access: Access, lock: FileLock) -> Result<Self, OpenDeviceError> {
        locked::lock(&file, access, lock)?;
        let is_plain = file.metadata().map_err(|error| io(&error))?.is_file();
        let writes = access == Access::Write;
        let file = Synced {
            #[cfg(target_os = "linux")]
            direct: writes.then(|| Direct::over(&file)).flatten(),
            moves_rewrites: AtomicBool::new(is_copy_on_write(&file)),
            file: LockedFile::over(file),
            process: writes.then(Process::current),
            sync_count: AtomicU64::new(0),
        };
        Ok(Self::over(file, access, is_plain))
    }

    fn over(file: Synced, access: Access, is_plain: bool) -> Self {
        let (file, opened) = (Arc::new(file), Instant::now());
        Self { file, is_plain, fresh: None, segment_size: None, opened, access }
    }

    /// Refuses a block device with fewer bytes than these.
    fn must_take(&self, size: u64) -> Result<(), StorageError> {
        let fits = self.can_extend() || self.size()? >= size;
        if fits { Ok(()) } else { Err(StorageError::NoSpace) }
    }

    /// Writes `size` bytes of `byte` from the start on, and syncs.
    ///
    /// # Errors
    ///
    /// `NoSpace` for a block device with fewer bytes: nothing was written. Host errors, a full file system among
    /// them.
    pub fn fill(&mut self, size: u64, byte: u8) -> Result<(), StorageError> {
        self.file.require_process()?;
        self.must_take(size)?;
        self.write_bytes(0, size, byte).map_err(host)?;
        self.file.sync_all().map_err(host)
    }

    fn write_bytes(&self, mut from: u64, to: u64, byte: u8) -> std::io::Result<()> {
        let chunk = vec![byte; FILL_SIZE];
        while from < to {
            let step = (to - from).min(FILL_SIZE as u64);
            self.file.write_all_at(&chunk[..step as usize], from)?;
            from += step;
        }
        Ok(())
    }

    /// Reserves room behind the end, as [`allocate`]. Where rewrites move, a segment at a time: such a file
    /// system gives back no part of a reservation as long as another part of it is needed.
    fn allocate_new(&self, from: u64, to: u64) -> std::io::Result<bool> {
        let step = self.segment_size.filter(|_| self.moves_rewrites()).unwrap_or(to - from);
        let mut at = from;
        while at < to {
            let end = (at + step.max(1)).min(to);
            if !allocate(&self.file, at, end - at)? {
                return Ok(false);
            }
            at = end;
        }
        Ok(true)
    }

    /// Fills the place of a write with zeros where that is cheaper than to leave it to the file system (F1).
    fn prepare(&mut self, offset: u64, size: usize) {
        let Some(fresh) = &mut self.fresh else { return };
        let sync_count = self.file.sync_count.load(Ordering::Relaxed);
        match fresh.note(offset, size as u64, sync_count) {
            Advice::Nothing => {}
            Advice::Look { end } if has_room_alone(&self.file, end - EMPTY_STEP as u64) => {}
            Advice::Look { .. } => fresh.settle_at(offset),
            // A failed fill costs nothing but the try.
            Advice::Fill(left) => drop(self.fill_empty(left)),
        }
    }

    fn fill_empty(&self, range: Range<u64>) -> std::io::Result<()> {
        let from = range.start.next_multiple_of(EMPTY_STEP as u64);
        let to = range.end.min(self.file.metadata()?.len());
        let (mut found, zeros) = ([0; EMPTY_STEP], [0; EMPTY_STEP]);
        // Bytes read ahead into memory would pass for content of the next place.
        let _alone = ReadAlone::new(&self.file);
        for at in (from..to).step_by(EMPTY_STEP) {
            let step = EMPTY_STEP.min((to - at) as usize);
            self.file.read_exact_at(&mut found[..step], at)?;
            if found[..step] == zeros[..step] {
                self.file.write_all_at(&zeros[..step], at)?;
            }
        }
        Ok(())
    }

    fn done(&self) -> Completion {
        Completion { end_ns: self.now_ns(), corrected_bits_max: 0 }
    }
}

/// Result of `look` at a file or block device at `path`; the look locks nobody out. No other kind is opened:
/// a pipe would wait for its writer.
pub(crate) fn look_at<T>(
    path: &Path,
    look: impl FnOnce(&mut FileStorage) -> T,
) -> Result<Option<T>, OpenDeviceError> {
    let kind = kind_of(path)?;
    if !kind.is_some_and(|kind| kind.is_file() || kind.is_block_device()) {
        return Ok(None);
    }
    let file = File::open(path).map_err(|error| io(&error))?;
    let file = Synced {
        #[cfg(target_os = "linux")]
        direct: None,
        file: LockedFile::over(file),
        process: None,
        moves_rewrites: AtomicBool::new(false),
        sync_count: AtomicU64::new(0),
    };
    let is_plain = kind.is_some_and(|kind| kind.is_file());
    Ok(Some(look(&mut FileStorage::over(file, Access::Read, is_plain))))
}

/// Whether a file refused to be written rather than to be opened.
fn is_refusal(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

fn host(error: std::io::Error) -> StorageError {
    if error.kind() == ErrorKind::UnexpectedEof {
        return StorageError::BeyondEnd;
    }
    StorageError::Host { errno: error.raw_os_error().unwrap_or(EIO) }
}

impl SharedStorage for Synced {
    fn read_at(&self, offset: u64, target: &mut [u8]) -> Result<(), StorageError> {
        self.require_process()?;
        match self.read_exact_at(target, offset).map_err(host) {
            // A medium may give bytes back at the second try.
            Err(error @ StorageError::Host { .. }) if error.is_unreadable() => {
                self.read_exact_at(target, offset).map_err(host)
            }
            read => read,
        }
    }

    fn write_at(&self, offset: u64, source: &[u8]) -> Result<(), StorageError> {
        self.require_process()?;
        #[cfg(target_os = "linux")]
        if self.direct.as_ref().is_some_and(|direct| direct.writes(offset, source)) {
            return Ok(());
        }
        let Err(error) = self.write_all_at(source, offset) else { return Ok(()) };
        if !is_full(&error) {
            return Err(host(error));
        }
        self.moves_rewrites.store(true, Ordering::Relaxed);
        Err(StorageError::NoSpace)
    }

    fn sync(&self) -> Result<(), StorageError> {
        self.require_process()?;
        self.sync_count.fetch_add(1, Ordering::Relaxed);
        self.sync_data().map_err(|_| {
            forget_written(self);
            StorageError::SyncFailed
        })
    }
}

impl Storage for FileStorage {
    fn read_at(&mut self, offset: u64, target: &mut [u8]) -> Result<Completion, StorageError> {
        SharedStorage::read_at(&*self.file, offset, target)?;
        Ok(self.done())
    }

    fn write_at(&mut self, offset: u64, source: &[u8]) -> Result<Completion, StorageError> {
        self.file.require_process()?;
        self.prepare(offset, source.len());
        SharedStorage::write_at(&*self.file, offset, source)?;
        Ok(self.done())
    }

    fn sync(&mut self) -> Result<Completion, StorageError> {
        SharedStorage::sync(&*self.file)?;
        Ok(self.done())
    }

    fn begin_write(&mut self, offset: u64, size: usize) {
        // A call that is refused then has written nothing before, either.
        if self.file.require_process().is_ok() {
            self.prepare(offset, size);
        }
    }

    fn shared(&self) -> Option<Arc<dyn SharedStorage>> {
        let shared: Arc<dyn SharedStorage> = Arc::clone(&self.file) as _;
        Some(shared)
    }

    fn is_writable(&self) -> bool {
        self.access == Access::Write
    }

    fn size(&self) -> Result<u64, StorageError> {
        // Seeking tells the size of block devices too; the position is not used otherwise.
        (&**self.file).seek(SeekFrom::End(0)).map_err(host)
    }

    fn preallocate(&mut self, size: u64) -> Result<(), StorageError> {
        if !self.moves_rewrites() || !self.can_extend() {
            return self.fill(size, 0);
        }
        // Zeros would be rewritten elsewhere; compressed, they take no room to begin with.
        match self.extend(0, size) {
            Ok(()) => self.file.sync_all().map_err(host),
            Err(StorageError::NoSpace) => Err(StorageError::Host { errno: ENOSPC }),
            Err(error) => Err(error),
        }
    }

    fn discard(&mut self, offset: u64, size: u64) -> Result<(), StorageError> {
        self.file.require_process()?;
        if let Some(fresh) = &mut self.fresh {
            fresh.forget(offset, size);
        }
        punch(&self.file, offset, size).map_err(host)
    }

    fn has_holes(&self) -> Result<bool, StorageError> {
        let data = self.file.metadata().map_err(host)?;
        Ok(self.is_plain && room_of(&self.file) < data.len())
    }

    fn moves_rewrites(&self) -> bool {
        self.file.moves_rewrites.load(Ordering::Relaxed)
    }

    fn reserve(&mut self, offset: u64, size: u64) -> Result<(), StorageError> {
        self.file.require_process()?;
        match allocate(&self.file, offset, size) {
            Err(error) if is_full(&error) => Err(StorageError::NoSpace),
            // A precaution: whether there is room, a write tells where the host does not.
            _ => Ok(()),
        }
    }

    /// Room that was given back and is reserved anew is good for one write; a promise for room with content
    /// is not.
    fn renew(&mut self, offset: u64, size: u64) -> Result<(), StorageError> {
        if !self.moves_rewrites() {
            return self.reserve(offset, size);
        }
        let before = room_of(&self.file);
        // Room that is not given back may be moved, and then a write tells.
        let _ = self.discard(offset, size);
        let reserved = self.reserve(offset, size);
        if reserved.is_ok() || room_of(&self.file) >= before {
            return reserved;
        }
        settle_given_back(&self.file);
        self.reserve(offset, size)
    }

    fn expect_segments(&mut self, origin: u64, size: u64) {
        self.segment_size = Some(size);
        self.fresh =
            (size >= EMPTY_STEP as u64 && self.can_extend()).then(|| Fresh::new(origin, size));
    }

    fn can_extend(&self) -> bool {
        self.is_plain
    }

    fn extend(&mut self, from: u64, to: u64) -> Result<(), StorageError> {
        self.file.require_process()?;
        if !self.can_extend() {
            return Err(StorageError::NoSpace);
        }
        // Room that was never written reads as zeros; bytes behind the end are gone with the old end.
        let written = self.file.set_len(from).and_then(|()| self.allocate_new(from, to));
        let written = written.and_then(|is_there| match is_there {
            true => Ok(()),
            false => self.write_bytes(from, to, 0),
        });
        written.map_err(|error| {
            let is_full = is_full(&error);
            // A half-written tail is never visible; its bytes are written over.
            let _ = self.file.set_len(from);
            if is_full { StorageError::NoSpace } else { host(error) }
        })
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn advance_to(&mut self, _now_ns: u64) {}
}

#[cfg(test)]
mod tests;
