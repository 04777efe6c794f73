//! Reading a database that does not open, or has unreadable pages.
//!
//! Owns the choice of rows to recover from the remains on a device. Shares only decoders with the
//! running engine, and writes nothing. The caller decides where the rows go.
//!
//! - **SA2** A database that does not open is put together from every unit that reads whole, newest
//!   first, with the changes of each commit that the log or a run still has.
//! - **SA3** No row comes from an image or a record that does not read whole. While a checkpoint is
//!   readable, no row comes from a transaction without proof of its commit.

use thiserror::Error;

mod log;
mod pages;
mod scan;

pub use scan::{Salvaged, Scanned};

/// Reason for which rows are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MissingCause {
    /// No readable page holds these keys.
    #[error("no page of these keys reads")]
    Unreadable,
    /// The row is there, but a page of its large value is unreadable.
    #[error("a page of the value does not read")]
    Value,
    /// The row is longer than the new database can store.
    #[error("the row is too long for the new database")]
    TooLong,
}

/// Reason for which rows may be out of date, or deleted rows may be back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DoubtCause {
    /// The newest page of these keys is unreadable; an older one was taken.
    #[error("the newest page of these keys does not read; an older one was taken")]
    OlderPage,
    /// A part of the log is unreadable: changes may have stood there.
    #[error("a part of the log does not read, where changes may have stood")]
    LogGap,
    /// Some pages are unreadable, and their former content is not known.
    #[error("pages do not read that may have held newer rows")]
    LostPages,
    /// No checkpoint is readable: the former extent of the database is not known.
    #[error("no readable checkpoint describes the database")]
    NoCheckpoint,
    /// The device ends before the last block that its newest checkpoint knows.
    #[error("the device was cut short")]
    CutShort,
    /// The database did not open, so it is not certain which pages were current.
    #[error("the database did not open: which page of these keys was the newest is not certain")]
    Unmounted,
    /// A page with changes of a large transaction is unreadable.
    #[error("a page with changes of a large transaction does not read")]
    LostRun,
}
