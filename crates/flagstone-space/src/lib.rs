//! Floor 1: logical pages on flash.
//!
//! Owns the mapping from logical pages to flash, garbage collection, wear levelling, bad blocks,
//! atomic groups, the blocks of the log, and the way back after a power cut. Never knows the
//! meaning of a page or a log record.
//!
//! A device is one pool of blocks. A few of them are the *anchor ring*, which holds checkpoint
//! records; all others are given, block by block, to streams: log, mapping, hot pages, cold and
//! moved pages. A logical page is written out of place as a *unit* of consecutive physical pages;
//! a mapping in memory points to the newest valid unit, and metadata on each physical page tell a
//! mount which page and version it is.
//!
//! Every operation names its invariants by the letters of its module: S (`space`), W (`place`),
//! V (`collect`), K (`checkpoint`), U (`mount`), A (`append`), and rules of durability as D1 to D17.
#![cfg_attr(not(feature = "std"), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod append;
mod blocks;
mod bugs;
pub mod bytes;
mod checkpoint;
mod collect;
mod concurrent_io;
mod dead;
mod error;
mod flags;
mod flash;
#[cfg(feature = "seeded-bugs")]
#[doc(hidden)]
pub mod forge;
mod format;
mod frontier;
mod frozen;
mod group_ops;
mod groups;
mod grow;
mod host;
mod layout;
mod level;
mod log;
mod mapping;
mod meta;
mod mount;
mod numbers;
mod options;
mod pins;
mod place;
mod record;
mod report;
mod ring;
pub mod runs;
mod scan;
mod space;
mod stats;
mod summary;
mod survey;
mod types;

#[cfg(test)]
mod tests;

pub use append::{APPEND_SLOTS_MAX, AppendLack, AppendRoom, append_lack};
pub use blocks::BlockState;
#[doc(hidden)]
pub use bugs::SpaceBug;
pub use checkpoint::CheckpointUnderWay;
pub use collect::{Fault, NewerImage, NoOwner, Owner};
pub use concurrent_io::{FlushTicket, ReadTicket, SyncTicket};
pub use error::{Check, MountError, OptionFault, SpaceError, Structure};
pub use flags::{FlagLack, flag_lack};
pub use frozen::{FROZEN_LABEL_SIZE_MAX, FROZEN_MAX};
pub use groups::GroupSpan;
pub use layout::{LogRoom, blocks_needed};
pub use log::LogRead;
pub use mount::MountReport;
pub use options::{GcPolicy, SpaceOptions};
pub use record::OPEN_GROUP_PAGE_SIZE;
pub use space::Space;
pub use stats::{Bill, BlockReport, EraseCounts, ReadPurpose, RegionStats, SpaceStats};
pub use survey::{Proof, Survey, SurveyUnit, holds_pages};
pub use types::{
    Cause, FrozenId, GroupId, LogAddress, LogicalPage, Lsn, PageInfo, PinId, RegionId, Temperature,
    Version, WriteTag,
};
