//! Calls to the host about one file: its room, its place on the disk, its copies in memory.
//!
//! Owns the differences between systems and between file systems. Never reads or writes content, and keeps no state.

use std::fs::File;
use std::io::ErrorKind;

use super::ENOSPC;

/// Whether the file system or a quota leaves no room; or a limit of the process, where it ignores `SIGXFSZ`, which
/// ends it otherwise.
pub(super) fn is_full(error: &std::io::Error) -> bool {
    use ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
        || error.raw_os_error() == Some(ENOSPC)
}

/// Reserves room, so that a lack shows here and not in a later sync, after which nothing could be relied on.
/// The room reads as zeros where nothing was. False where the file system reserves none: writes take room.
#[cfg(target_os = "linux")]
pub(super) fn allocate(file: &File, from: u64, size: u64) -> std::io::Result<bool> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    match rustix::io::retry_on_intr(|| fallocate(file, FallocateFlags::empty(), from, size)) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn allocate(_: &File, _: u64, _: u64) -> std::io::Result<bool> {
    Ok(false)
}

/// Whether the file system is known to move rewrites elsewhere: btrfs, bcachefs, ZFS and NILFS. The file
/// system below a network or an overlay shows its kind when a write finds no room.
#[cfg(target_os = "linux")]
pub(super) fn is_copy_on_write(file: &File) -> bool {
    use rustix::fs::{IFlags, fstatfs, ioctl_getflags};
    // `statfs(2)`, `linux/magic.h`; ZFS as OpenZFS has it in `sys/fs/zfs.h`.
    const KINDS: [u64; 4] = [0x9123_683E, 0xCA45_1A4E, 0x2FC1_2FC1, 0x3434];
    let is_kind = |kind: u64| KINDS.contains(&(kind & 0xFFFF_FFFF));
    fstatfs(file).is_ok_and(|found| is_kind(found.f_type as u64))
        && !ioctl_getflags(file).is_ok_and(|flags| flags.contains(IFlags::NOCOW))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn is_copy_on_write(_: &File) -> bool {
    false
}

/// Asks a file system that would move rewrites elsewhere to write a new, empty file in place: only for such a
/// file can room be reserved. Pages have checksums of their own.
#[cfg(target_os = "linux")]
pub(super) fn write_in_place(file: &File) {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    if is_copy_on_write(file)
        && let Ok(flags) = ioctl_getflags(file)
    {
        // Not all of them can.
        let _ = ioctl_setflags(file, flags | IFlags::NOCOW);
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn write_in_place(_: &File) {}

/// Nothing is read ahead meanwhile, where the system can be asked for that.
pub(super) struct ReadAlone<'a>(&'a File);

impl<'a> ReadAlone<'a> {
    pub(super) fn new(file: &'a File) -> Self {
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
pub(super) fn has_room_alone(file: &File, offset: u64) -> bool {
    use rustix::fs::{SeekFrom, seek};
    match seek(file, SeekFrom::Data(offset)) {
        Ok(data) => data > offset,
        Err(rustix::io::Errno::NXIO) => true,
        Err(_) => false,
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn has_room_alone(_: &File, _: u64) -> bool {
    false
}

/// Bytes that a file takes of its host.
pub(super) fn room_of(file: &File) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    file.metadata().map_or(0, |data| data.blocks() * 512)
}

/// Some file systems let nobody have room that was given back before they have written all that they hold in
/// memory.
#[cfg(target_os = "linux")]
pub(super) fn settle_given_back(file: &File) {
    // Where it fails there is no more room than before.
    let _ = rustix::fs::syncfs(file);
}

#[cfg(not(target_os = "linux"))]
pub(super) fn settle_given_back(_: &File) {}

/// Makes a hole of bytes, which a block device below discards.
#[cfg(target_os = "linux")]
pub(super) fn punch(file: &File, offset: u64, size: u64) -> std::io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::io::retry_on_intr(|| fallocate(file, flags, offset, size))?)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn punch(_: &File, _: u64, _: u64) -> std::io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

/// Linux keeps bytes in memory that it could not write, and takes them for written: the next process to open
/// the file would read bytes that the medium lacks, and no sync would write them. Without the copies in
/// memory, reads tell what is there.
#[cfg(target_os = "linux")]
pub(super) fn forget_written(file: &File) {
    // The sync has failed all the same.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}

#[cfg(not(target_os = "linux"))]
pub(super) fn forget_written(_: &File) {}
