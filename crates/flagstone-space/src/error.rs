//! Errors of this floor. Every variant names the address and the caller's remedy.

use flagstone_nand::{NandError, PhysicalPage};
use thiserror::Error;

use crate::append::AppendLack;
use crate::{FrozenId, GroupId, LogicalPage, PinId};

/// Which check of a page fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Check {
    /// The device's ECC gave up.
    #[error("more bit errors than the ECC repairs")]
    Ecc,
    /// Nothing is programmed where a page should stand.
    #[error("nothing is programmed there")]
    Erased,
    /// The metadata do not decode.
    #[error("its metadata do not decode")]
    Metadata,
    /// Payload and metadata do not fit the checksum.
    #[error("its bytes do not fit the checksum")]
    Checksum,
    /// A whole page, but not the page that belongs there.
    #[error("another page stands there")]
    Identity,
}

/// Option that a device cannot carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum OptionFault {
    /// A logical page has 1 to 8 parts and fits a block.
    #[error("a logical page has 1 to 8 parts, and fits a block")]
    Parts,
    /// Four blocks at least, an even number, make the anchor ring.
    #[error("the ring of anchors takes an even number of blocks, four at least")]
    RingBlocks,
    /// The log budget leaves no room for data.
    #[error("the log would leave no room for data")]
    LogPages,
    /// Too few good blocks for ring, log, reserves and data.
    #[error("it has too few good blocks for anchors, log, reserves and data")]
    DeviceTooSmall,
    /// Pages are too small for the metadata of this floor.
    #[error("its pages are too small")]
    PageTooSmall,
}

/// Why an operation did not happen.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// No version of the page exists.
    #[error("{0} is not mapped")]
    Unmapped(LogicalPage),
    /// The number lies beyond the logical pages of this space.
    #[error("{0} is out of range")]
    OutOfRange(LogicalPage),
    /// No page of the group took its flag: whether it is committed shows the next mount.
    #[error("a flag of {0} cannot be set")]
    FlagRefused(GroupId),
    /// The page's bytes are damaged; nothing was returned as right.
    #[error("{page} is corrupt: {check}")]
    Corrupt {
        /// Physical page concerned.
        page: PhysicalPage,
        /// Check that fired.
        check: Check,
    },
    /// More bytes than fit. Nothing was written.
    #[error("{size} bytes do not fit {limit}")]
    TooLong {
        /// Bytes given.
        size: usize,
        /// Bytes that fit.
        limit: usize,
    },
    /// The page had a version that a mount did not find any more: damage took it.
    #[error("the version of {0} is lost")]
    Lost(LogicalPage),
    /// No free block for this write: the caller did not call `ensure_room` for enough pages.
    #[error("no room was ensured for this write")]
    NoRoom,
    /// Every page that may be live is live: trim something.
    #[error("the space is full")]
    Full,
    /// The log's budget is used up: release log pages and checkpoint.
    #[error("the log budget is used up")]
    LogFull,
    /// Writes were forbidden when the space was mounted.
    #[error("the space was mounted for reading only")]
    ReadOnly,
    /// Too many blocks failed: the space is read-only.
    #[error("the device is worn out")]
    WornOut,
    /// An operation failed in a way that leaves the device's state unknown: read-only from now on.
    #[error("the space is poisoned by an earlier failure")]
    Poisoned,
    /// The group has no pages here.
    #[error("{0} is not open")]
    UnknownGroup(GroupId),
    /// The group holds no version of the page.
    #[error("{1} has no version in {0}")]
    NotInGroup(GroupId, LogicalPage),
    /// The mapping was given up or never frozen.
    #[error("{0} does not exist")]
    UnknownFrozen(FrozenId),
    /// There are as many frozen mappings as a record can name: give one up.
    #[error("there are as many frozen mappings as there may be")]
    TooManyFrozen,
    /// A group that is open has a version of a page that is mapped: no mapping is frozen meanwhile.
    #[error("{0} is open")]
    GroupOpen(GroupId),
    /// The pin was released or never made.
    #[error("{0} does not exist")]
    UnknownPin(PinId),
    /// The log page lies outside the log.
    #[error("log page {0} is not in the log")]
    LogPageGone(u64),
    /// Numbers that are never used twice are used up: stored pages can be read and copied.
    #[error("the numbers of blocks are used up: copy what is stored to a new space")]
    NumbersUsedUp,
    /// The options do not fit the device.
    #[error("the options do not fit the device: {0}")]
    Options(OptionFault),
    /// The device cannot carry the append slots that a write asked for.
    #[error("the device carries no such appends: {0}")]
    Appends(AppendLack),
    /// The device reported an error that this floor cannot absorb.
    #[error(transparent)]
    Device(#[from] NandError),
}

/// Part of the format that a mount found damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Structure {
    /// A checkpoint record.
    #[error("the checkpoint")]
    Anchor,
    /// The directory of mapping pages.
    #[error("the directory of the mapping")]
    Directory,
    /// A page of the mapping or of the block table.
    #[error("the mapping")]
    Map,
}

/// Why a device could not be mounted. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MountError {
    /// No page of the device carries this format.
    #[error("the device holds no Flagstone space")]
    NotFormatted,
    /// The format is of another version.
    #[error("it has format version {found}; this program reads {supported}")]
    Version {
        /// Version found.
        found: u16,
        /// Version this code reads.
        supported: u16,
    },
    /// A structure is damaged in a way that no power cut explains.
    #[error("{what} on {page} is damaged")]
    Damaged {
        /// Structure concerned.
        what: Structure,
        /// Physical page concerned.
        page: PhysicalPage,
    },
    /// The device has fewer blocks than the newest checkpoint knows: its file was cut short.
    #[error("the device has {blocks} blocks; its newest checkpoint knows {needed}")]
    Truncated {
        /// Blocks that are there.
        blocks: u32,
        /// Blocks that were there.
        needed: u32,
    },
    /// The space was made for a device of another shape.
    #[error("the space was made for a device of another shape")]
    GeometryMismatch,
    /// The device reported an error.
    #[error(transparent)]
    Device(#[from] NandError),
}
