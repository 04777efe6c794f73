//! Floor 0 of Flagstone: flash devices.
//!
//! One trait, [`Nand`], and the devices behind it. Upper floors ask a device for its [`Geometry`]
//! and its [`Capabilities`], never for its type.
//!
//! - [`SimNand`]: a chip in memory, with virtual time, snapshots and any fault ([`FaultPlan`]).
//! - [`ImageNand`]: a chip in a file, byte for byte as in a dump with spare.
//! - [`SimSsd`]: chips behind a translation layer, seen through a block interface.
//! - `MtdNand`: a raw NAND chip behind the Linux kernel, `/dev/mtdN`.
//! - [`EccNand`]: any of these chips under ECC of our own, where its profile says so.
//! - [`SegmentFile`]: a file or a block device, on a [`FileStorage`] or a [`SimStorage`].
//!
//! Every device enforces the rules of flash as far as it can: bits only fall, NOP, program order,
//! erase before reuse, no second program of a code word. A violation is [`NandError::Rule`], always
//! a bug above.
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

mod address;
mod any;
mod cells;
mod device;
mod ecc;
mod fault;
mod forward;
mod geometry;
#[cfg(feature = "std")]
mod image;
mod mix;
#[cfg(all(feature = "std", target_os = "linux"))]
mod mtd;
mod nearest;
mod probe;
mod profile;
mod rules;
#[cfg(feature = "std")]
mod segment;
mod sim;
mod ssd;
#[cfg(feature = "std")]
mod storage;
mod timing;

pub use address::{BlockIndex, PhysicalPage};
pub use any::AnyNand;
pub use cells::{CellRole, PageType};
pub use device::{
    Completion, Counters, FlashRule, Nand, NandError, ProgramPart, ReadPart, SharedNand,
};
pub use ecc::EccNand;
pub use fault::{
    BlockFault, Crashable, Ending, Failure, FaultPlan, OperationKind, Persistence, PowerCut,
    ReadFault, SyncFailure, UnknownEnding, WearOut,
};
pub use geometry::{
    Capabilities, CellMode, CodeWord, Geometry, PartialCut, ProgramOrder, SpareRange,
};
#[cfg(feature = "std")]
pub use image::ImageNand;
#[cfg(all(feature = "std", target_os = "linux"))]
pub use mtd::MtdNand;
#[cfg(feature = "std")]
pub use nearest::nearest;
pub use nearest::suggestion;
pub use probe::{
    Findings, MeasuredTimes, NOP_USUAL, ProbeError, SPARE_PROGRAMS_MAX, check_scratch, probe,
    read_time,
};
pub use profile::{
    CODE_WORD_COUNT_MAX, EccOwner, Inconsistency, Profile, ProfileError, Translation,
};
#[cfg(feature = "std")]
pub use segment::{Extent, SegmentFile};
pub use sim::{PageContent, SimNand};
pub use ssd::{SimSsd, SsdCounters, THIN_FACTOR};
#[cfg(feature = "std")]
pub use storage::{
    Access, CodeWords, FileLock, FileStorage, Making, OpenDeviceError, SharedStorage, SideFault,
    SimHost, SimStorage, Storage, StorageError, give_up_files, kind_of, link_kind_of,
    require_missing, require_one_name, sync_name,
};
pub use timing::Timing;
