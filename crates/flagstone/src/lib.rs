//! Flagstone: an embedded transactional storage engine that treats flash as flash.
//!
//! Ordered tables of byte strings, serializable transactions, snapshots, on a file, on the image of
//! a NAND chip, or on any device that implements [`Nand`](device::Nand).
//!
//! ```
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("shop.db");
//! use flagstone::{Database, Options};
//!
//! let db = Database::create(&path, &Options::default())?;
//! let stock = db.table("stock")?;
//! let mut txn = db.begin();
//! txn.put(stock, b"apples", b"12")?;
//! txn.commit()?; // durable when it returns
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | to | use |
//! | --- | --- |
//! | create or open a database | [`Database::create`], [`Database::open`], [`Options`] |
//! | read one that must not, or cannot, be written | [`Database::open_read_only`] |
//! | open a table; only if it exists; list all | [`Database::table`], [`Database::existing_table`], [`Database::tables`] |
//! | rename a table, drop it | [`Database::rename_table`], [`Database::drop_table`] |
//! | read and change rows | [`Database::begin`], [`Transaction`] |
//! | read, then change one row | [`Transaction::entry`], [`Transaction::update`] |
//! | keys and values of Rust types | [`Database::typed`], [`TypedTable`], [`Key`](trait@Key), [`Value`](trait@Value), [`typed`] |
//! | find rows by an index; several values for a key | [`Database::indexed`], [`Database::multi`] |
//! | walk both ways, delete many | [`Snapshot::cursor`], [`Transaction::cursor_mut`], [`Transaction::retain`] |
//! | read without waiting | [`Database::snapshot`], [`Snapshot`] |
//! | choose when a commit returns | [`Durability`], [`Transaction::commit_with`] |
//! | copy a database | [`Database::backup_to`], [`Database::restore_from`], [`verify_backup`] |
//! | read past damage; save rows of a damaged database | [`Snapshot::sound_rows`], [`Database::salvage`], [`salvage`] |
//! | run on another device, or in memory | [`Database::create_on`], [`Database::open_on`], [`device`] |
//! | store many rows that come in order, each page written once | [`Database::load_sorted`] |
//! | see the cost of a transaction to the flash | [`Commit::bill`], [`Bill`] |
//! | limit the wear of the flash in a day | [`Database::set_wear_budget`], [`wear`] |
//! | tell errors apart | [`Error`], and the errors of each group of operations |
//! | look inside | [`Database::stats`], [`Database::check`], [`Database::block_report`], [`report`] |
//!
//! Keys are at most [`Limits::key_size_max`] bytes: the smaller of 1 KiB and about a quarter of a
//! logical page. Values may be larger than pages and than the memory budget's share for them.
//!
//! # Features
//!
//! | feature | adds |
//! | --- | --- |
//! | `derive` (default) | `#[derive(Key)]` and `#[derive(Value)]`, for typed tables |
//! | `seeded-bugs` | deliberate bugs, which the crash explorer has to find: never in a program |
//!
//! # Events
//!
//! With a subscriber of `tracing` installed, target `flagstone` reports at level INFO each database created,
//! opened and closed, at DEBUG each checkpoint, check and deadlock, at TRACE each commit, and at WARN that a
//! failing device has poisoned the database.
#![warn(missing_docs)]

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

// Derived code names the crate from outside, in its own tests too.
extern crate self as flagstone;

mod database;
mod error;
pub mod salvage;
pub mod typed;

pub use database::{
    BackupError, Commit, CompactError, Cursor, CursorMut, Database, Entry, FileSize, KeyValue,
    Limits, LoadError, Range, RowRef, Snapshot, Stats, Transaction, verify_backup,
};
pub use error::{CommitError, Error, OpenError, ReadError, SnapshotError, TableError, WriteError};
#[cfg(feature = "derive")]
pub use flagstone_derive::{Key, Value};
#[cfg(feature = "seeded-bugs")]
#[doc(hidden)]
pub use flagstone_engine::SeededBug;
#[doc(inline)]
pub use flagstone_engine::{
    Corruption, DecodeError, Durability, FileLock, Options, OptionsError, PRESETS, Preset, RowPart,
    Savepoint, Table, VerifyOnOpen,
};
#[doc(inline)]
pub use flagstone_space::{Bill, Cause, Lsn, MountError, SpaceError as StorageError};
pub use typed::index::{Index, IndexedTable};
pub use typed::key::{EncodeKey, Key};
pub use typed::multi::MultiTable;
pub use typed::table::TypedTable;
pub use typed::value::Value;

/// Reports: counters, findings of a check, figures of a backup, a load, a restart.
pub mod report {
    #[doc(inline)]
    pub use flagstone_engine::{CheckFault, CheckReport, EngineStats, Memory, RecoveryReport};
    #[doc(inline)]
    pub use flagstone_space::{BlockReport, LogicalPage, SpaceStats};

    pub use crate::database::{BackupReport, CompactReport, LoadReport};
}

/// Wear of the flash: how it is levelled, and how much of it a day may take.
pub mod wear {
    #[doc(inline)]
    pub use flagstone_engine::{Allowance, AtLimit, WearBudget, WearLevelling, WearStatus};
}

/// Devices: to run a database on a device of one's own, or on a simulated chip, which tests in memory use.
///
/// ```
/// use flagstone::device::{Profile, SimNand};
/// use flagstone::{Database, Options};
///
/// let profile = Profile::named("slc-2k")?.with_block_count(64)?;
/// let db = Database::create_on(SimNand::new(&profile, 1), &Options::default())?;
/// db.table("t")?;
/// let chip = db.into_device().ok_or("still shared")?; // as if power had been cut
/// assert_eq!(Database::open_on(chip, &Options::default())?.tables()?, ["t"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A device implements [`Nand`](device::Nand). What it can do is in its [`Capabilities`](device::Capabilities):
/// no code above asks for its type.
pub mod device {
    #[doc(inline)]
    pub use flagstone_nand::{
        AnyNand, BlockIndex, Capabilities, Completion, Counters, EccNand, Geometry, ImageNand,
        Nand, NandError, OpenDeviceError, PhysicalPage, Profile, ProfileError, ProgramPart,
        ReadPart, SegmentFile, SimNand,
    };
}
