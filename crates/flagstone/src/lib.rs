//! Flagstone: an embedded transactional storage engine that treats flash as flash.
#![warn(missing_docs)]

mod bugs;
mod database;
mod delta;
mod engine;
mod error;
#[cfg_attr(not(test), expect(dead_code, reason = "page locks and wait edges are for comparisons"))]
mod lock;
mod log;
mod node;
mod options;
mod runtime;

pub use bugs::SeededBug;
pub use database::{
    AnyNand, Commit, Database, KeyValue, Limits, Range, Snapshot, Stats, Transaction,
};
pub use engine::{
    Descriptor, Direction, Engine, EngineStats, Fetch, Fetched, Memory, Read, Row, RowValue,
    Savepoint, ScanRange, SnapshotId, Step, Stop, Table, Ticket, Wait,
};
pub use error::{Corruption, EngineError, OpenError};
pub use lock::Xid;
pub use options::{
    AbsentLeaf, Budget, Collection, Compaction, Durability, FrameKind, Options, OptionsError,
    PRESETS, Preset, RelocationFolding, SplitTime,
};
pub use runtime::{
    CheckFault, CheckReport, Flush, REGION_SYSTEM, REGION_TABLES, REGION_VALUES, RecoveryReport,
    Runtime, Work,
};
