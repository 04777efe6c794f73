//! Reading a database that does not open, or whose pages do not all read.
//!
//! Owns which rows come back of what is left on a device. Shares nothing with the engine that runs but its decoders, and
//! writes nothing. Whoever saves the rows says what becomes of them.
//!
//! - **SA2** A database that does not open is put together from every unit that reads whole, newest first, with the changes
//!   of each commit that the log or a run still has.
//! - **SA3** No row comes from an image or a record that does not read whole, or of a transaction that nothing says was
//!   committed while a checkpoint reads.

use thiserror::Error;

mod log;
mod pages;
mod scan;

pub use scan::{Salvaged, Scanned};

/// Why rows are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MissingCause {
    /// No page that reads holds these keys.
    #[error("no page of these keys reads")]
    Unreadable,
    /// The row is there, but a page of its large value does not read.
    #[error("a page of the value does not read")]
    Value,
    /// The row is longer than the new database stores.
    #[error("the row is too long for the new database")]
    TooLong,
}

/// Why rows may be older than they were, or rows deleted since may be back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DoubtCause {
    /// The newest page of these keys does not read; an older one does.
    #[error("the newest page of these keys does not read; an older one was taken")]
    OlderPage,
    /// A part of the log does not read: changes may have stood there.
    #[error("a part of the log does not read, where changes may have stood")]
    LogGap,
    /// Some pages do not read, and nothing says what they held.
    #[error("pages do not read that may have held newer rows")]
    LostPages,
    /// No checkpoint reads: it is not known what else there was.
    #[error("no checkpoint reads that says what there was")]
    NoCheckpoint,
    /// The device ends before the blocks that its newest checkpoint knows.
    #[error("the device was cut short")]
    CutShort,
    /// The database did not open, so nothing says for certain which pages were current.
    #[error("the database did not open: which page of these keys was the newest is not certain")]
    Unmounted,
    /// A page with changes of a large transaction does not read.
    #[error("a page with changes of a large transaction does not read")]
    LostRun,
}
