//! The engine of Flagstone, floors 2 to 4: formats of log and nodes, the engine, and the runtime that drives it
//! on a device.
//!
//! **Unstable**: for the lab and for experiments. Everything here may change in any release.
//! Programs use the crate `flagstone`, which re-exports the lasting part of this one.
//!
//! Owns the engine, which is pure state ([`Engine`]), and the runtime, which carries out its
//! requests on the space floor ([`Runtime`]). Never knows a type of the public interface:
//! `flagstone` stands on this crate, and so does the lab.
//!
//! | to | use |
//! | --- | --- |
//! | run operations on the calling thread | [`blocking::Database`], and below it [`Runtime`] |
//! | drive the engine by a clock of one's own | [`Runtime::engine`], [`Step`], [`Runtime::work_begin`], [`Runtime::flush_begin`] |
//! | read a database that does not open | [`salvage`] |
//! | choose the leaves and frames that leave memory by a policy of one's own | [`policy`], [`Techniques`] |
//! | build another engine on the same locks, log framing and nodes | [`lock`], [`log`], [`node`], [`Reads`] |
#![warn(missing_docs)]

mod appends;
pub mod blocking;
mod bugs;
mod delta;
mod engine;
mod error;
pub mod lock;
pub mod log;
pub mod node;
mod options;
pub mod policy;
mod runtime;
pub mod salvage;
mod sync;
#[cfg(test)]
mod testing;

pub use appends::{AppendScheme, Appends, BadScheme};
pub use bugs::SeededBug;
pub use engine::{
    CATALOG, Descriptor, Direction, Engine, EngineStats, Fetch, Fetched, LeafRows, LeafValue,
    Memory, Read, ReadNumber, Reads, Row, RowValue, Savepoint, ScanRange, SnapshotId, Step, Stop,
    Table, Ticket, Wait, id_of, successor, table_with_id,
};
pub use error::{Corruption, DecodeError, EngineError, IndexFault, OpenError, RowPart};
pub use lock::Xid;
pub use options::{
    AbsentLeaf, Budget, Collection, CommitBy, Compaction, Durability, FileLock, FrameKind, MergeTo,
    Options, OptionsError, PRESETS, Preset, RelocationFolding, Techniques, VerifyOnOpen,
    WearLevelling,
};
#[cfg(shuttle)]
pub use sync::let_long_waits_end;

pub use runtime::{
    Allowance, AtLimit, CheckFault, CheckReport, Flush, Meter, REGION_SYSTEM, REGION_TABLES,
    REGION_VALUES, Reader, RecoveryReport, Runtime, SpaceGuard, WearBudget, WearStatus, Work,
    space_options,
};
