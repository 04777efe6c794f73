//! A real file or block device.

use std::fs::{self, File, OpenOptions, TryLockError};
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
use super::locked::LockedFile;
use super::making::{kind_of, link_kind_of};
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
        self::lock(&file, access, lock)?;
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

/// Locks a file until it is closed (O2).
pub(crate) fn lock(file: &File, access: Access, lock: FileLock) -> Result<(), OpenDeviceError> {
    let locked = match access {
        Access::Write => file.try_lock(),
        Access::Read => file.try_lock_shared(),
    };
    judge_lock(locked, lock)
}

fn judge_lock(locked: Result<(), TryLockError>, lock: FileLock) -> Result<(), OpenDeviceError> {
    match locked {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(OpenDeviceError::Locked),
        Err(TryLockError::Error(error)) if has_no_locks(&error) => match lock {
            FileLock::Required => {
                Err(OpenDeviceError::NoLocks { errno: error.raw_os_error().unwrap_or(ENOLCK) })
            }
            FileLock::WherePossible => Ok(()),
        },
        Err(TryLockError::Error(error)) => Err(io(&error)),
    }
}

/// Whether the file system knows of no locks, rather than refusing one.
fn has_no_locks(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::Unsupported || error.raw_os_error() == Some(ENOLCK)
}

#[cfg(target_os = "linux")]
const ENOLCK: i32 = rustix::io::Errno::NOLCK.raw_os_error();

/// `ENOLCK` of the BSDs and macOS.
#[cfg(not(target_os = "linux"))]
const ENOLCK: i32 = 77;

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

/// Whether the file system or a quota leaves no room; or a limit of the process, where it ignores `SIGXFSZ`, which
/// ends it otherwise.
fn is_full(error: &std::io::Error) -> bool {
    use ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
        || error.raw_os_error() == Some(ENOSPC)
}

/// Reserves room, so that a lack shows here and not in a later sync, after which nothing could be relied on.
/// The room reads as zeros where nothing was. False where the file system reserves none: writes take room.
#[cfg(target_os = "linux")]
fn allocate(file: &File, from: u64, size: u64) -> std::io::Result<bool> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    match rustix::io::retry_on_intr(|| fallocate(file, FallocateFlags::empty(), from, size)) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether the file system is known to move rewrites elsewhere: btrfs, bcachefs, ZFS and NILFS. The file
/// system below a network or an overlay shows its kind when a write finds no room.
#[cfg(target_os = "linux")]
fn is_copy_on_write(file: &File) -> bool {
    use rustix::fs::{IFlags, fstatfs, ioctl_getflags};
    // `statfs(2)`, `linux/magic.h`; ZFS as OpenZFS has it in `sys/fs/zfs.h`.
    const KINDS: [u64; 4] = [0x9123_683E, 0xCA45_1A4E, 0x2FC1_2FC1, 0x3434];
    let is_kind = |kind: u64| KINDS.contains(&(kind & 0xFFFF_FFFF));
    fstatfs(file).is_ok_and(|found| is_kind(found.f_type as u64))
        && !ioctl_getflags(file).is_ok_and(|flags| flags.contains(IFlags::NOCOW))
}

#[cfg(not(target_os = "linux"))]
fn is_copy_on_write(_: &File) -> bool {
    false
}

/// Asks a file system that would move rewrites elsewhere to write a new, empty file in place: only for such a
/// file can room be reserved. Pages have checksums of their own.
#[cfg(target_os = "linux")]
fn write_in_place(file: &File) {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    if is_copy_on_write(file)
        && let Ok(flags) = ioctl_getflags(file)
    {
        // Not all of them can.
        let _ = ioctl_setflags(file, flags | IFlags::NOCOW);
    }
}

#[cfg(not(target_os = "linux"))]
fn write_in_place(_: &File) {}

/// Nothing is read ahead meanwhile, where the system can be asked for that.
struct ReadAlone<'a>(&'a File);

impl<'a> ReadAlone<'a> {
    fn new(file: &'a File) -> Self {
        expect_reads(file, Reads::Alone);
        Self(file)
    }
}

impl Drop for ReadAlone<'_> {
    fn drop(&mut self) {
        expect_reads(self.0, Reads::Any);
    }
}

/// Expected reads of a file.
enum Reads {
    /// Each by itself.
    Alone,
    /// Reads of any kind.
    Any,
}

#[cfg(target_os = "linux")]
fn expect_reads(file: &File, reads: Reads) {
    use rustix::fs::{Advice, fadvise};
    let advice = match reads {
        Reads::Alone => Advice::Random,
        Reads::Any => Advice::Normal,
    };
    // Advice only: a failure does not matter.
    let _ = fadvise(file, 0, None, advice);
}

#[cfg(not(target_os = "linux"))]
fn expect_reads(_: &File, _: Reads) {}

/// Whether a place has room without content, as far as the file system tells.
#[cfg(target_os = "linux")]
fn has_room_alone(file: &File, offset: u64) -> bool {
    use rustix::fs::{SeekFrom, seek};
    match seek(file, SeekFrom::Data(offset)) {
        Ok(data) => data > offset,
        Err(rustix::io::Errno::NXIO) => true,
        Err(_) => false,
    }
}

#[cfg(not(target_os = "linux"))]
fn has_room_alone(_: &File, _: u64) -> bool {
    false
}

/// Bytes that a file takes of its host.
fn room_of(file: &File) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    file.metadata().map_or(0, |data| data.blocks() * 512)
}

/// Some file systems let nobody have room that was given back before they have written all that they hold in
/// memory.
#[cfg(target_os = "linux")]
fn settle_given_back(file: &File) {
    // Where it fails there is no more room than before.
    let _ = rustix::fs::syncfs(file);
}

#[cfg(not(target_os = "linux"))]
fn settle_given_back(_: &File) {}

/// Makes a hole of bytes, which a block device below discards.
#[cfg(target_os = "linux")]
fn punch(file: &File, offset: u64, size: u64) -> std::io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::io::retry_on_intr(|| fallocate(file, flags, offset, size))?)
}

#[cfg(not(target_os = "linux"))]
fn punch(_: &File, _: u64, _: u64) -> std::io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
fn allocate(_: &File, _: u64, _: u64) -> std::io::Result<bool> {
    Ok(false)
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

/// Linux keeps bytes in memory that it could not write, and takes them for written: the next process to open
/// the file would read bytes that the medium lacks, and no sync would write them. Without the copies in
/// memory, reads tell what is there.
#[cfg(target_os = "linux")]
fn forget_written(file: &File) {
    // The sync has failed all the same.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}

#[cfg(not(target_os = "linux"))]
fn forget_written(_: &File) {}

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
mod tests {
    use super::*;

    /// Goal: bytes that a failed sync leaves in the page cache are not read again. Method: a read that must
    /// not wait for the disk, before and after; a file system that has no disk, or does not tell, shows
    /// nothing.
    #[cfg(target_os = "linux")]
    /// Goal (O2): a process that closes a file may open it again at once. Method: a copy of the open
    /// descriptor, such as a process that is being started has.
    #[test]
    fn a_closed_file_is_free_whoever_has_a_copy_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let storage = FileStorage::create(&path).unwrap();
        let copy = storage.synced().try_clone().unwrap();
        assert_eq!(FileStorage::open(&path).unwrap_err(), OpenDeviceError::Locked);
        drop(storage);
        drop(FileStorage::open(&path).unwrap());
        drop(copy);
    }

    #[test]
    fn a_failed_sync_leaves_nothing_in_the_page_cache() {
        use std::io::IoSliceMut;

        use rustix::io::{Errno, ReadWriteFlags};

        // Where the tests are built there is a disk, mostly; where temporary files are, mostly not.
        let beside = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let directory = tempfile::tempdir_in(beside).unwrap();
        let path = directory.path().join("cached");
        fs::write(&path, [7; 4096]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_data().unwrap();
        let at_once = || {
            let mut target = [0; 4096];
            let mut slices = [IoSliceMut::new(&mut target)];
            rustix::io::preadv2(&file, &mut slices, 0, ReadWriteFlags::NOWAIT)
        };
        let before = at_once();
        forget_written(&file);
        match (before, at_once()) {
            (Ok(4096), Err(Errno::AGAIN)) | (Err(Errno::OPNOTSUPP), _) => {}
            (_, after) => {
                let disk = rustix::fs::fstatfs(&file).unwrap().f_type;
                assert!(is_memory(disk), "{after:?} on a file system of type {disk:#x}");
            }
        }
        assert_eq!(fs::read(&path).unwrap(), [7; 4096]);
    }

    /// `tmpfs`, `ramfs` and `overlayfs`: the last passes advice on as it likes.
    #[cfg(target_os = "linux")]
    fn is_memory(kind: rustix::fs::FsWord) -> bool {
        [0x0102_1994, 0x8584_58F6, 0x794C_7630].contains(&(kind as u64))
    }

    /// Goal: new room of a file is written once where much is written at a time, and is ready for small
    /// writes soon where little is. Method: one segment of each; the file system is asked which extents were
    /// written. One that reserves no room has zeros from the start, and shows nothing.
    #[cfg(target_os = "linux")]
    #[test]
    fn room_is_filled_where_little_is_written_at_a_time() {
        const SEGMENT: u64 = 64 * 4096;
        let beside = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let directory = tempfile::tempdir_in(beside).unwrap();
        let mut storage = FileStorage::create(&directory.path().join("grown")).unwrap();
        storage.expect_segments(4096, SEGMENT);
        storage.extend(0, 4096 + 3 * SEGMENT).unwrap();
        storage.sync().unwrap();
        let is_fresh = has_room_alone(&storage.file, 4096);
        for page in 0..32 {
            storage.write_at(4096 + page * 4096, &[1; 4096]).unwrap();
        }
        storage.sync().unwrap();
        for sector in 0..8 {
            storage.write_at(4096 + SEGMENT + sector * 512, &[2; 512]).unwrap();
            storage.sync().unwrap();
        }
        let ends = [1, 2, 3].map(|segments| 4096 + segments * SEGMENT - 4096);
        let is_left = ends.map(|end| has_room_alone(&storage.file, end));
        assert_eq!(is_left, [is_fresh, false, is_fresh]);
        let mut content = vec![0; 3 * SEGMENT as usize];
        storage.read_at(4096, &mut content).unwrap();
        let (first, others) = content.split_at(SEGMENT as usize);
        assert!(first[..32 * 4096].iter().all(|byte| *byte == 1));
        assert!(others[..8 * 512].iter().all(|byte| *byte == 2));
        assert!(first[32 * 4096..].iter().chain(&others[8 * 512..]).all(|byte| *byte == 0));
    }

    /// Goal: nothing but zeros is ever filled, for any answer of the file system about a place
    /// (F1).
    #[test]
    fn content_is_never_filled() {
        let directory = tempfile::tempdir().unwrap();
        let mut storage = FileStorage::create(&directory.path().join("file")).unwrap();
        storage.fill(8 * 4096, 0).unwrap();
        storage.write_at(3 * 4096, &[3]).unwrap();
        storage.write_at(6 * 4096 - 1, &[6]).unwrap();
        storage.fill_empty(100..9 * 4096).unwrap();
        let mut content = vec![1; 8 * 4096];
        storage.read_at(0, &mut content).unwrap();
        let held: Vec<_> = content.iter().enumerate().filter(|(_, byte)| **byte != 0).collect();
        assert_eq!(held, [(3 * 4096, &3), (6 * 4096 - 1, &6)]);
        assert_eq!(storage.size(), Ok(8 * 4096));
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named_read_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, [0; 10]).unwrap();
        let mut permissions = fs::metadata(&path).unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(&path, permissions).unwrap();
        assert_eq!(FileStorage::open(&path).unwrap_err(), OpenDeviceError::ReadOnly);
        let mut storage = FileStorage::open_read_only(&path).unwrap();
        storage.read_at(9, &mut [0]).unwrap();
        assert!(storage.write_at(0, &[1]).is_err());
    }

    #[test]
    fn whoever_reads_shares_a_file_and_keeps_out_who_writes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, [0; 10]).unwrap();
        let readers = [(); 2].map(|()| FileStorage::open_read_only(&path).unwrap());
        assert_eq!(FileStorage::open(&path).unwrap_err(), OpenDeviceError::Locked);
        drop(readers);
        let _writer = FileStorage::open(&path).unwrap();
        assert_eq!(FileStorage::open_read_only(&path).unwrap_err(), OpenDeviceError::Locked);
    }

    /// Goal: a process that waited for a file does not get one that has lost its name meanwhile. Method: the
    /// file is replaced between its opening and the look at its name.
    #[test]
    fn a_file_that_was_replaced_is_not_the_one_of_that_name() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("file"), directory.path().join("other"));
        let storage = FileStorage::create(&path).unwrap();
        assert_eq!(storage.has_name(&path), Ok(true));
        fs::write(&other, [0; 10]).unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(storage.has_name(&path), Ok(false));
    }

    /// Goal: a process that makes or opens a file has the file of that name. Method: a file that another user
    /// removes before it is locked, and a file that another one replaces.
    #[test]
    fn a_file_that_was_removed_before_it_was_locked_is_not_made() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let make = || OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
        let locked =
            |file| FileStorage::locked_at(file, &path, Access::Write, FileLock::Required).map(drop);
        let file = make();
        fs::remove_file(&path).unwrap();
        assert_eq!(locked(file.try_clone().unwrap()), Err(OpenDeviceError::Locked));
        let other = make();
        assert_eq!(locked(file), Err(OpenDeviceError::Locked));
        assert_eq!(locked(other), Ok(()));
    }

    /// Goal: where the file system locks nothing, a file is opened only on the caller's word, and a locked
    /// file on nobody's. Method: the error numbers of such file systems.
    #[test]
    fn a_file_system_without_locks_is_named() {
        use std::io::Error;

        for errno in [ENOLCK, rustix::io::Errno::OPNOTSUPP.raw_os_error()] {
            let refused = || Err(TryLockError::Error(Error::from_raw_os_error(errno)));
            let error = judge_lock(refused(), FileLock::Required).unwrap_err();
            assert_eq!(error, OpenDeviceError::NoLocks { errno });
            assert!(error.to_string().contains("file_lock=where-possible"), "{error}");
            assert_eq!(judge_lock(refused(), FileLock::WherePossible), Ok(()));
        }
        for lock in [FileLock::Required, FileLock::WherePossible] {
            let locked = judge_lock(Err(TryLockError::WouldBlock), lock);
            assert_eq!(locked, Err(OpenDeviceError::Locked));
            let failed = Err(TryLockError::Error(Error::from_raw_os_error(EIO)));
            assert_eq!(judge_lock(failed, lock), Err(OpenDeviceError::Io { errno: EIO }));
        }
    }

    /// Goal: a child of a fork neither writes nor reads, nor takes anything from its parent when it ends. Method: the
    /// storage of another process, the side file of an image included.
    #[test]
    fn a_child_of_a_fork_reads_and_writes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut storage = FileStorage::create(&path).unwrap();
        storage.fill(8192, 7).unwrap();
        let child = |storage: &mut FileStorage| {
            Arc::get_mut(&mut storage.file).unwrap().process = Some(Process::of(1));
        };
        child(&mut storage);
        let refused = Err(StorageError::OtherProcess);
        assert_eq!(storage.read_at(0, &mut [0; 8]), refused);
        assert_eq!(storage.write_at(0, &[1; 8]), refused);
        assert_eq!(storage.sync(), refused);
        let refused = Err(StorageError::OtherProcess);
        assert_eq!(storage.preallocate(4096), refused);
        assert_eq!(storage.extend(8192, 16384), refused);
        assert_eq!(storage.discard(0, 4096), refused);
        assert_eq!(storage.reserve(0, 4096), refused);
        storage.begin_write(0, 8);
        let shared = storage.shared().unwrap();
        assert_eq!(shared.write_at(0, &[1; 8]), refused);
        assert_eq!(shared.sync(), refused);
        drop((shared, storage));
        assert_eq!(fs::read(&path).unwrap(), [7; 8192]);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    /// Goal: a file that cannot be looked at is not taken for missing, nor for another. Method: a path
    /// through a file.
    #[test]
    fn a_failed_look_is_no_answer() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let storage = FileStorage::create(&path).unwrap();
        let beyond = path.join("beyond");
        let failed = OpenDeviceError::Io { errno: 20 };
        assert_eq!(require_missing(&beyond), Err(failed.clone()));
        assert_eq!(kind_of(&beyond), Err(failed.clone()));
        assert_eq!(storage.has_name(&beyond), Err(failed.clone()));
        assert_eq!(look_at(&beyond, |_| ()), Err(failed.clone()));
        assert_eq!(FileStorage::create(&beyond).unwrap_err(), failed);
        assert_eq!(crate::ImageNand::is_at(&beyond), Err(failed));
    }

    #[test]
    fn reads_beyond_the_end_and_second_creations_fail() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut storage = FileStorage::create(&path).unwrap();
        storage.fill(3_000_000, 7).unwrap();
        assert_eq!(storage.size(), Ok(3_000_000));
        assert_eq!(storage.read_at(2_999_999, &mut [0; 2]), Err(StorageError::BeyondEnd));
        storage.write_at(5, &[1, 2]).unwrap();
        storage.sync().unwrap();
        let mut found = [0; 4];
        storage.read_at(4, &mut found).unwrap();
        assert_eq!(found, [7, 1, 2, 7]);
        let exists = OpenDeviceError::Io { errno: 17 };
        assert_eq!(FileStorage::create(&path).unwrap_err(), exists);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_name_is_durable_where_directories_can_be_synced() {
        let directory = tempfile::tempdir().unwrap();
        sync_name(&directory.path().join("file")).unwrap();
        sync_name(Path::new("file")).unwrap();
        // Its directories know no sync.
        sync_name(Path::new("/proc/self/file")).unwrap();
        let error = sync_name(&directory.path().join("none/file")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    /// Runs `test` with the node of a loop device over a file of such bytes, where this user may make one,
    /// and gives the content of the file afterwards.
    #[cfg(target_os = "linux")]
    fn with_disk(bytes: &[u8], test: impl FnOnce(&Path)) -> Option<Vec<u8>> {
        use std::process::Command;

        let directory = tempfile::tempdir().unwrap();
        let disk = directory.path().join("disk");
        fs::write(&disk, bytes).unwrap();
        let losetup = |arguments: &[&str]| -> Option<String> {
            let output = Command::new("losetup").args(arguments).output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().into())
        };
        let name = losetup(&["--find", "--show", &disk.to_string_lossy()])?;
        let run = std::panic::AssertUnwindSafe(|| test(Path::new(&name)));
        let result = std::panic::catch_unwind(run);
        losetup(&["-d", &name]);
        assert!(result.is_ok());
        Some(fs::read(&disk).unwrap())
    }

    /// Goal: a block device on which a device does not fit keeps what it holds, a device of ours too. Method: loop
    /// devices, where this user may make them.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_block_device_that_is_too_small_keeps_what_it_holds() {
        use crate::{Extent, OpenDeviceError, Profile, SegmentFile};

        let profile = Profile::named("segment-file").unwrap().with_capacity(8 << 20).unwrap();
        let full = OpenDeviceError::Io { errno: ENOSPC };
        let foreign = vec![7; 1 << 20];
        let mut ours = foreign.clone();
        ours[..8].copy_from_slice(b"FLAGSEG\0");
        for bytes in [foreign, ours] {
            let found = with_disk(&bytes, |path| {
                let made = SegmentFile::create_file(path, &profile, Extent::Fixed);
                assert_eq!(made.unwrap_err(), full);
                let made = SegmentFile::create(FileStorage::open(path).unwrap(), &profile);
                assert_eq!(made.unwrap_err(), full);
            });
            assert!(found.is_none_or(|found| found == bytes));
        }
    }

    /// Goal: an empty segment is discarded on a block device. Method: a loop device, over a file that gets a
    /// hole.
    #[test]
    #[cfg(target_os = "linux")]
    fn segments_of_a_block_device_are_discarded() {
        use crate::{Extent, Nand as _, ProgramPart, SegmentFile};

        let profile =
            crate::Profile::named("segment-file").unwrap().with_capacity(8 << 20).unwrap();
        let mut page = None;
        let found = with_disk(&vec![7; 12 << 20], |path| {
            let mut nand = SegmentFile::create_file(path, &profile, Extent::Fixed).unwrap();
            let first = nand.geometry().page(crate::BlockIndex(1), 0).unwrap();
            let part =
                ProgramPart { data_offset: 0, data: &[0x5A; 4096], spare_offset: 0, spare: &[] };
            nand.program(first, part).unwrap();
            nand.sync().unwrap();
            nand.trim(first, nand.geometry().pages_per_block);
            page = (nand.counters().bytes_discarded > 0).then_some([0x5A; 4096]);
            nand.sync().unwrap();
        });
        if let (Some(found), Some(page)) = (found, page) {
            assert!(!found.chunks(4096).any(|chunk| chunk == page), "the page is still there");
        }
    }

    /// Goal: a whole block device is a device, and is neither taken twice nor overwritten. Method: a
    /// loop device, where this user may make one; elsewhere there is nothing to test.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_block_device_is_taken_as_a_whole() {
        use crate::{Nand as _, ProgramPart, SegmentFile};

        with_disk(&vec![7; 12 << 20], |path| {
            let profile = crate::Profile::named("segment-file").unwrap();
            let profile = profile.with_capacity(8 << 20).unwrap();
            let storage = FileStorage::create(path).unwrap();
            assert!(storage.size().unwrap() >= 12 << 20);
            assert_eq!(FileStorage::open(path).unwrap_err(), OpenDeviceError::Locked);
            let mut nand = SegmentFile::create(storage, &profile).unwrap();
            let page = nand.geometry().page(crate::BlockIndex(0), 0).unwrap();
            let part =
                ProgramPart { data_offset: 512, data: &[3; 512], spare_offset: 0, spare: &[] };
            nand.program(page, part).unwrap();
            nand.sync().unwrap();
            drop(nand);
            let taken = OpenDeviceError::Io { errno: EEXIST };
            assert_eq!(FileStorage::create(path).unwrap_err(), taken);
            SegmentFile::open(FileStorage::open(path).unwrap()).unwrap();
        });
    }
}
