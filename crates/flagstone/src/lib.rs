//! Flagstone: an embedded transactional storage engine that treats flash as flash.
#![warn(missing_docs)]

mod bugs;
mod delta;
mod engine;
mod error;
mod lock;
mod log;
mod node;
mod options;
mod runtime;

pub use bugs::SeededBug;
pub use engine::{
    Descriptor, Direction, Engine, Fetch, Fetched, Read, Row, RowValue, Savepoint, ScanRange,
    SnapshotId, Step, Stop, Table, Ticket, Wait,
};
pub use error::{Corruption, EngineError, OpenError};
pub use lock::Xid;
pub use options::{
    Collection, Durability, FrameKind, Options, OptionsError, PRESETS, Preset, RelocationFolding,
    SplitTime,
};
pub use runtime::{
    Flush, REGION_SYSTEM, REGION_TABLES, REGION_VALUES, RecoveryReport, Runtime, Work,
};
