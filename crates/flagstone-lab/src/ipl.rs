//! In-page logging (IPL), the opponent of in-place appends.
//!
//! Lee and Moon, "Design of flash-based DBMS: an in-page logging approach" (SIGMOD 2007). A block is
//! a *unit*: data pages, and a log region at its end. A dirty page has a log sector in memory; only
//! that sector is written when the page leaves memory. Reading a page applies its log records, and a
//! unit whose log region is full is merged into another block.
//!
//! ```text
//! unit     page 0 │ page 1 │ … │ page 14 │ log region: sectors of 512 bytes, each a program
//! page     4 flash pages; spare: life │ sequence │ unit │ page │ slots of the merge │ index │ check
//! sector   kind │ slot │ size │ life │ sequence │ page │ records of one page │ check
//! ```
//!
//! | question | rule |
//! | --- | --- |
//! | When is a log sector written? | When full, when its page leaves memory, at commits (recovery). |
//! | What does reading a page cost? | Its flash pages, and those with a log sector of it. |
//! | When is a unit merged? | When its log region is full: all pages move, records applied. |
//! | What is a commit? | Its sectors, then a sector of the status list (recovery variant). |
//! | What is an abort? | Its records in memory are dropped, those on flash by the next merge. |
//! | What if a merge would carry over too much? | The sector goes to an overflow block. |
//!
//! Pages have no content of their own here: a page is the number and the sum of the changes made to
//! it ([`Version`]), which tells a lost, a repeated and a foreign change. Records are as large on
//! flash as the log records they represent.
//!
//! Invariants:
//! - **I1** A block is a unit's current one when it is complete and of the newest life: every page that
//!   its merge wrote is whole. The block before it is not erased until then.
//! - **I2** Each block begins a life of its own; sectors name the life that they belong to, so that
//!   none outlives a merge.
//! - **I3** In the recovery variant a record counts when its transaction is in the status list; all its
//!   sectors are programmed before its status is. An entry stays while a sector refers to it.
//! - **I4** Restart never relies on a program that may have been in flight: it writes the newest
//!   page, sector or status again, and programs no cells that a cut may have touched (rule D11).
//! - **I5** Two blocks at least are free between operations: one for a merge, and one more to
//!   repeat a merge that a cut has left in doubt.
//!
//! Chips without bad blocks only. Changes of shape count as committed at once, and a page comes
//! back after a cut when it was given up shortly before: its user gives it up again.

mod flash;
mod format;
mod merge;
mod mount;
pub mod replay;
mod side;
mod store;
mod trace;

use flagstone_nand::{BlockIndex, NandError};

pub use format::Version;
pub use store::IplStore;
pub use trace::{CHANGED_MAX, Event, Recording, Trace};

/// The log that makes changes durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Variant {
    /// A log elsewhere: flushed changes are there.
    #[default]
    Basic,
    /// The log sectors themselves: committed changes are there, and nothing else.
    Recovery,
}

/// How a store is laid out and kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// The log that makes changes durable.
    pub variant: Variant,
    /// Size of the log region, in data pages; the paper's figures have 1 to 8.
    pub log_pages: u32,
    /// Share of the records in a unit that a merge may carry over, τ of the paper.
    pub carried_max: f64,
    /// A deliberate mistake that tests have to find.
    pub mistake: Mistake,
}

impl Config {
    /// The layout of the paper: one data page's worth of log in each block, τ = 0.5.
    #[must_use]
    pub const fn of(variant: Variant) -> Self {
        Self { variant, log_pages: 1, carried_max: 0.5, mistake: Mistake::None }
    }
}

/// A rule broken on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mistake {
    /// None.
    #[default]
    None,
    /// A merge erases the old block before the new one is complete (I1).
    EraseFirst,
    /// A block counts although pages of its merge are missing (I1).
    HalfMergeCounts,
    /// A page or a sector counts even with a wrong checksum.
    ChecksumIgnored,
    /// A commit writes its status before its sectors (I3).
    StatusFirst,
    /// Restart relies on programs that were in flight (I4).
    FlightTrusted,
}

/// Why an operation failed. The store can only be opened again afterwards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IplError {
    /// No block is free for another unit.
    #[error("the chip is full")]
    Full,
    /// The device cannot carry log sectors; names the device's shortcoming.
    #[error("the device cannot carry in-page logging: {0}")]
    Unfit(&'static str),
    /// The page was never created, or was given up.
    #[error("page {0} does not exist")]
    NoPage(u32),
    /// A programmed page or sector is not there.
    #[error("{check} in {block:?}")]
    Corrupt {
        /// Block concerned.
        block: BlockIndex,
        /// Check that found it.
        check: &'static str,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] NandError),
}

/// A change of a page: one log record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Transaction; 0 for changes that no abort takes back.
    pub xid: u64,
    /// Number of the change; never reused.
    pub number: u64,
    /// Bytes of its record. Large ones are several records, each with a number of its own.
    pub size: usize,
}

/// Counters of a store since it was made or opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IplStats {
    /// Log sectors written, sectors that a merge carried over and overflow sectors left out.
    pub sectors: u64,
    /// Bytes of records in them.
    pub record_bytes: u64,
    /// Merges.
    pub merges: u64,
    /// Records that merges carried over.
    pub carried: u64,
    /// Sectors in overflow blocks.
    pub overflow_sectors: u64,
    /// Sectors of the status list.
    pub status_sectors: u64,
    /// New pages written.
    pub pages_created: u64,
}

#[cfg(test)]
mod tests;
