//! Byte storage below the devices that live in files: a real file, or a simulated one.
//!
//! Owns reading, writing and syncing bytes at offsets. Never knows pages or blocks.
//!
//! - **O1** Written bytes are visible at once and durable after the next successful `sync`.
//! - **O2** One user at a time, or several that only read: an open file is locked until it is dropped, where the file
//!   system locks any or a lock is required. A child of a fork is another user.
//! - **O3** A sync through a [`SharedStorage`] covers every write, by any thread, that returned before the
//!   sync began.

#[cfg(target_os = "linux")]
mod direct;
mod file;
mod host;
mod locked;
mod making;
mod names;
mod process;
mod sim;
mod unwritten_extents;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

pub use file::FileStorage;
pub(crate) use file::look_at;
#[cfg(target_os = "linux")]
pub(crate) use locked::{LockedFile, lock};
pub use making::{Making, give_up_files, require_one_name};
pub use names::{kind_of, link_kind_of, require_missing, sync_name};
pub(crate) use process::Process;
pub use sim::{SimHost, SimStorage};

use crate::{CodeWord, Completion, NandError};

/// Errors of storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StorageError {
    /// Simulated storage lost power.
    #[error("power is off")]
    PowerOff,
    /// The sync failed: nothing since the last one can be relied on, and it must not be retried.
    #[error("sync failed")]
    SyncFailed,
    /// The range lies beyond the end.
    #[error("bytes beyond the end of the file")]
    BeyondEnd,
    /// There is no room for more bytes.
    #[error("no room for more bytes")]
    NoSpace,
    /// Another process opened the file: this one was forked from it.
    #[error("the file was opened by another process, from which this one was forked")]
    OtherProcess,
    /// The operating system refused the call.
    #[error("{}", std::io::Error::from_raw_os_error(*errno))]
    Host {
        /// `errno` of the failed call.
        errno: i32,
    },
}

impl StorageError {
    /// Whether the fault lies in the requested bytes alone: they lie behind the end, or the medium does not
    /// give them back.
    pub(crate) fn is_unreadable(self) -> bool {
        match self {
            Self::BeyondEnd => true,
            Self::Host { errno } => [EIO, ENODATA, EILSEQ, EBADMSG].contains(&errno),
            _ => false,
        }
    }
}

/// Purpose for which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everything, alone.
    Write,
    /// Reading alone, beside others that read.
    Read,
}

/// Treatment of a file on a file system without locks, as some across a network and in user space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileLock {
    /// The file is not opened: nothing would keep a second user out.
    #[default]
    Required,
    /// The file is opened all the same: the caller makes sure that nobody else has it open.
    WherePossible,
}

/// `EIO` on every Unix: for failures that carry no number of their own.
pub(crate) const EIO: i32 = 5;

/// `ENODATA`, `EILSEQ` and `EBADMSG` of Linux: the medium does not give bytes back, or others than were written.
pub(crate) const ENODATA: i32 = 61;
pub(crate) const EILSEQ: i32 = 84;
pub(crate) const EBADMSG: i32 = 74;

/// `EEXIST` on every Unix.
pub(crate) const EEXIST: i32 = 17;

/// `ENOSPC` on every Unix.
pub(crate) const ENOSPC: i32 = 28;

impl From<StorageError> for NandError {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::PowerOff => Self::PowerOff,
            StorageError::SyncFailed => Self::SyncFailed,
            StorageError::BeyondEnd => Self::Host { errno: EIO },
            StorageError::NoSpace => Self::NoSpace,
            StorageError::OtherProcess => Self::OtherProcess,
            StorageError::Host { errno } => Self::Host { errno },
        }
    }
}

/// The error that a host call gave.
fn io(error: &std::io::Error) -> OpenDeviceError {
    OpenDeviceError::Io { errno: error.raw_os_error().unwrap_or(EIO) }
}

/// Why a device file cannot be created or opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenDeviceError {
    /// Nothing in the file says that it is one of ours.
    #[error(
        "the file is no Flagstone device; a NAND image is one with its profile beside it, in the \
         file of the same name with `.toml` behind"
    )]
    NotFlagstone,
    /// The file has a format version that this program does not read.
    #[error("the file has format version {found}; this program reads {known}")]
    Version {
        /// Version in the file.
        found: u32,
        /// Newest version known.
        known: u32,
    },
    /// The file is shorter or longer than its geometry says.
    #[error("the file has {found} bytes; its geometry asks for {expected}")]
    Size {
        /// Bytes by the geometry.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// Both copies of the file's head are damaged.
    #[error("the description of the device is damaged")]
    Damaged,
    /// The side file of an image is damaged, or cannot be read or written.
    #[error("the profile beside the image, {}: {fault}", path.display())]
    Side {
        /// Side file.
        path: PathBuf,
        /// The fault in the side file.
        fault: Box<SideFault>,
    },
    /// The profile given cannot be used.
    #[error(transparent)]
    Profile(#[from] crate::ProfileError),
    /// A directory, a pipe, a socket.
    #[error("it is no plain file, block device or MTD node")]
    NotAFile,
    /// No device of the Linux MTD layer.
    #[error("it is no MTD device, such as /dev/mtd0")]
    NotMtd,
    /// Another process has the file open, or this one has it already.
    #[error("the device is open already, in another process or in this one")]
    Locked,
    /// The file system locks no files. Option `file_lock` of a database, or [`FileLock::WherePossible`], opens it
    /// without a lock.
    #[error(
        "the file system locks no files ({}): with option file_lock=where-possible the file is opened without a \
         lock, and you see to it that nobody else has it open",
        std::io::Error::from_raw_os_error(*errno)
    )]
    NoLocks {
        /// `errno` of the failed call.
        errno: i32,
    },
    /// The file has several names (hard links): replaced under one of them, it would stay as it was under the others.
    #[error(
        "the file has {count} names (hard links): replaced under one, it would stay as it is under the others"
    )]
    Linked {
        /// How many.
        count: u64,
    },
    /// The file cannot be written.
    #[error("the device cannot be written")]
    ReadOnly,
    /// The file could grow beyond the limit of a device.
    #[error("a file grows to {size_max} bytes at most, in pages of this size; {size} are too many")]
    TooLarge {
        /// Limit asked for, in bytes.
        size: u64,
        /// Highest limit, in bytes.
        size_max: u64,
    },
    /// A block device has a size of its own.
    #[error("a block device has a size of its own: it does not grow")]
    FixedSize,
    /// The profile describes no device of this kind.
    #[error("the profile is not one for this kind of device")]
    Unsuitable,
    /// The chip carries other code words than the profile says. Open the chip without a profile, or with a
    /// profile that leaves the ECC to the device: the chip then names its code words.
    #[error("the chip carries {found}; the profile says {asked}")]
    Ecc {
        /// Code words of the chip.
        found: CodeWords,
        /// The code words of the profile.
        asked: CodeWords,
    },
    /// The device is no NAND chip with single-level cells.
    #[error("the device is no NAND chip with single-level cells")]
    NotSlc,
    /// UBI holds the device: its content belongs to UBI's volumes.
    #[error("UBI is attached to the device as {ubi}; detach it first (ubidetach)")]
    Attached {
        /// Name of the UBI device.
        ubi: String,
    },
    /// A host call failed.
    #[error("{}", std::io::Error::from_raw_os_error(*errno))]
    Io {
        /// `errno` of the failed call.
        errno: i32,
    },
}

/// Fault in the side file of an image.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SideFault {
    /// The profile in the side file.
    #[error(transparent)]
    Profile(#[from] crate::ProfileError),
    /// The side file is no text.
    #[error("it is no text")]
    Text,
    /// Its table of the image's blocks.
    #[error("its table `image` is damaged")]
    Blocks,
    /// A host call failed.
    #[error("{}", std::io::Error::from_raw_os_error(*errno))]
    Io {
        /// `errno` of the failed call.
        errno: i32,
    },
}

/// Whose code words a chip carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeWords {
    /// The device's own.
    Device,
    /// Ours, of this size and strength.
    Own(CodeWord),
}

impl fmt::Display for CodeWords {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device => formatter.write_str("no code words of Flagstone's own"),
            Self::Own(CodeWord { data_size, strength }) => {
                write!(
                    formatter,
                    "code words of Flagstone's own, {strength} bits in {data_size} bytes"
                )
            }
        }
    }
}

impl From<StorageError> for OpenDeviceError {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::Host { errno } => Self::Io { errno },
            StorageError::NoSpace => Self::Io { errno: ENOSPC },
            _ => Self::Io { errno: EIO },
        }
    }
}

/// Bytes at offsets.
pub trait Storage {
    /// Fills `target` from byte `offset` on.
    ///
    /// # Errors
    ///
    /// `BeyondEnd` when there are not enough bytes; host errors and power loss.
    fn read_at(&mut self, offset: u64, target: &mut [u8]) -> Result<Completion, StorageError>;

    /// Writes `source` at byte `offset`; durable after the next sync (O1).
    ///
    /// # Errors
    ///
    /// `NoSpace` when the host has no room for the write; other host errors and power loss. The content of
    /// the bytes is not known then.
    fn write_at(&mut self, offset: u64, source: &[u8]) -> Result<Completion, StorageError>;

    /// Makes everything written durable.
    ///
    /// # Errors
    ///
    /// `SyncFailed`: the caller must give up, not retry.
    fn sync(&mut self) -> Result<Completion, StorageError>;

    /// Whether the storage was opened to be written.
    fn is_writable(&self) -> bool {
        true
    }

    /// Bytes the storage holds.
    ///
    /// # Errors
    ///
    /// Host errors and power loss.
    fn size(&self) -> Result<u64, StorageError>;

    /// Gives the storage `size` bytes of zero that are durable and really allocated.
    ///
    /// # Errors
    ///
    /// `NoSpace` where the storage has a size of its own and fewer bytes: nothing was written. Host errors (a full
    /// file system among them) and power loss.
    fn preallocate(&mut self, size: u64) -> Result<(), StorageError>;

    /// From `origin` on lie segments of `size` bytes, each of which is written from its start on.
    fn expect_segments(&mut self, _origin: u64, _size: u64) {}

    /// Whether the storage can become longer.
    fn can_extend(&self) -> bool {
        true
    }

    /// Makes the storage longer: zeros from byte `from` to byte `to`, in place of any bytes behind `from`.
    /// They are durable after the next sync (O1), and that sync takes no more room for them.
    ///
    /// # Errors
    ///
    /// `NoSpace` when there is no room, or the storage has a size of its own: it ends at `from` again.
    /// Other host errors and power loss.
    fn extend(&mut self, from: u64, to: u64) -> Result<(), StorageError>;

    /// Gives `size` bytes at `offset` back to the host, where it takes them: each sector reads as zeros or as
    /// it did until it is written again.
    ///
    /// # Errors
    ///
    /// Host errors, power loss.
    fn discard(&mut self, offset: u64, size: u64) -> Result<(), StorageError>;

    /// Whether some bytes have no room of their own.
    ///
    /// # Errors
    ///
    /// Host errors.
    fn has_holes(&self) -> Result<bool, StorageError> {
        Ok(false)
    }

    /// Whether the host moves rewrites elsewhere, so that room which it promised is good for one write alone.
    fn moves_rewrites(&self) -> bool {
        false
    }

    /// Makes sure of room for `size` bytes at `offset` that may have been discarded; their content stays.
    ///
    /// # Errors
    ///
    /// `NoSpace` when there is no room: nothing changed. Power loss.
    fn reserve(&mut self, offset: u64, size: u64) -> Result<(), StorageError>;

    /// As [`Storage::reserve`], for bytes whose content is not needed: each may be written once more, even
    /// where the host moves rewrites.
    ///
    /// # Errors
    ///
    /// `NoSpace` when there is no room: the content may be gone. Power loss.
    fn renew(&mut self, offset: u64, size: u64) -> Result<(), StorageError> {
        self.reserve(offset, size)
    }

    /// Gets ready for a write through [`SharedStorage::write_at`], which comes next.
    fn begin_write(&mut self, _offset: u64, _size: usize) {}

    /// Operations beside the thread that has the storage; none where operations take turns.
    fn shared(&self) -> Option<Arc<dyn SharedStorage>> {
        None
    }

    /// Time in nanoseconds: virtual, or wall time since the storage was opened.
    fn now_ns(&self) -> u64;

    /// Moves virtual time forward.
    fn advance_to(&mut self, now_ns: u64);
}

/// Operations that several threads may do to storage at a time.
pub trait SharedStorage: fmt::Debug + Send + Sync {
    /// Fills `target` from byte `offset` on. Bytes that are being written meanwhile read as the old
    /// ones, the new ones, or parts of both.
    ///
    /// # Errors
    ///
    /// As [`Storage::read_at`].
    fn read_at(&self, offset: u64, target: &mut [u8]) -> Result<(), StorageError>;

    /// Writes `source` at byte `offset`, where nobody else writes meanwhile.
    ///
    /// # Errors
    ///
    /// As [`Storage::write_at`].
    fn write_at(&self, offset: u64, source: &[u8]) -> Result<(), StorageError>;

    /// Makes the writes durable that had returned when the call began (O3).
    ///
    /// # Errors
    ///
    /// As [`Storage::sync`].
    fn sync(&self) -> Result<(), StorageError>;
}
