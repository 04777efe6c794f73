//! A database as the lab needs it, with any engine inside.
//!
//! Owns the two traits between workloads and engines; never decides which transactions are run or
//! which values are measured.
//!
//! - [`Store`]: created, loaded, looked through and reopened on the calling thread.
//! - [`Driven`]: the same engine driven step by step, by clients on a virtual clock.
//!
//! Two rules for implementations:
//!
//! - **V1** Both sides of one database run the same engine code.
//! - **V2** A driven engine never waits: an operation completes or returns the event it waits for,
//!   and is called again once that event has come.

use std::time::Duration;

use flagstone_engine::blocking::Database;
use flagstone_engine::blocking::Transaction;
use flagstone_engine::{
    Durability, EngineError, EngineStats, Fetch, Fetched, OpenError, Options, RecoveryReport, Step,
    Table, Wait, Xid,
};
use flagstone_engine::{Flush, Runtime, Stop, Work};
use flagstone_nand::Nand;
use flagstone_space::{BlockReport, Lsn, RegionId, SpaceStats};

use crate::run::Scan;
use crate::timed::Timed;
use crate::workload::Operations;

mod blocking;
mod classic;
mod cold;
mod pages;
mod session;
mod stopping;

pub use classic::{ClassicSession, ClassicStore, ClassicTransaction};
pub use pages::{PageStore, RecordDatabase, ShadowDatabase};
pub use session::Session;
pub(crate) use stopping::WHOLE;
pub use stopping::{EngineTransaction, LatchedSession, Machinery, Stopping};

/// A database whose operations run to their end on the calling thread.
pub trait Store: Sized {
    /// Device under it.
    type Device: Nand;
    /// A read-write transaction, which aborts when it is dropped.
    type Transaction: Operations<Stop = EngineError>;

    /// Formats `device` and makes an empty database on it.
    ///
    /// # Errors
    ///
    /// The options do not fit the device, or the device failed.
    fn create(device: Self::Device, options: &Options) -> Result<Self, OpenError>;

    /// Opens the database on `device`, restarting it if need be.
    ///
    /// # Errors
    ///
    /// No database, a damaged one, or options that do not fit.
    fn open(device: Self::Device, options: &Options) -> Result<Self, OpenError>;

    /// Gives the device back as it is, as if power had been cut; none while it is in use.
    fn into_device(self) -> Option<Self::Device>;

    /// Cost of a restart from every page's spare area, on a copy of the device; none when the
    /// engine knows no such way, or no other.
    ///
    /// # Errors
    ///
    /// As [`Store::open`].
    fn scan_restart(
        _copy: impl FnOnce() -> Self::Device,
        _options: &Options,
    ) -> Result<Option<Scan>, OpenError> {
        Ok(None)
    }

    /// Work of restart when the database was opened.
    fn recovery(&self) -> RecoveryReport;

    /// Changes that restart undid; zero for an engine that logs no undo.
    fn changes_undone(&self) -> u64 {
        0
    }

    /// Counters of the engine since it was opened.
    fn stats(&self) -> EngineStats;

    /// Looks at the device.
    fn with_device<R>(&self, look: impl FnOnce(&mut Self::Device) -> R) -> R;

    /// Counters of the space floor since it was mounted.
    fn space_stats(&self) -> SpaceStats;

    /// Tables by name, with the regions in which their pages are written at present; none where the
    /// engine has no regions.
    ///
    /// # Errors
    ///
    /// The device failed.
    fn regions(&self) -> Result<Vec<(String, RegionId)>, EngineError> {
        Ok(Vec::new())
    }

    /// Every block of the device, as the store uses it.
    fn block_report(&self) -> Vec<BlockReport>;

    /// Makes every commit durable and brings the database to rest, so that opening it again has
    /// next to nothing to do.
    ///
    /// # Errors
    ///
    /// The device is full or failed.
    fn settle(&self) -> Result<(), EngineError>;

    /// Fills the unused logical pages with cold ones, but for `spare_count`: each repeats a word,
    /// and is never read or written again.
    ///
    /// # Errors
    ///
    /// The device failed.
    fn prefill(&self, spare_count: u32) -> Result<(), EngineError>;

    /// Opens a table, creating it durably when it does not exist.
    ///
    /// # Errors
    ///
    /// The device is full or failed.
    fn table(&self, name: &str) -> Result<Table, EngineError>;

    /// Begins a transaction.
    fn begin(&self) -> Self::Transaction;

    /// Commits; with anything but `Deferred`, durable when it returns.
    ///
    /// # Errors
    ///
    /// Nothing is committed, or `OutcomeUnknown`.
    fn commit(
        &self,
        transaction: Self::Transaction,
        durability: Durability,
    ) -> Result<(), EngineError>;

    /// Hands every row of the tables called `names` to `on_row`, with the table's place in `names`:
    /// one state of all tables, each table in key order. A table that is absent has no rows.
    ///
    /// # Errors
    ///
    /// The device failed.
    fn visit(&self, names: &[&str], on_row: OnRow<'_>) -> Result<(), EngineError>;
}

/// Takes a row: the place of its table, key and value.
pub type OnRow<'a> = &'a mut dyn FnMut(usize, &[u8], &[u8]);

/// An engine that an event loop drives (rule V2).
pub trait Driven {
    /// A transaction's operations.
    type Session<'a>: Operations<Stop = Stop>
    where
        Self: 'a;
    /// A flush of the log whose programs are issued.
    type Flush;
    /// Background work whose I/O is issued.
    type Work;

    /// Begins a transaction.
    fn begin(&self) -> Xid;

    /// The operations of transaction `xid`.
    fn session(&self, xid: Xid) -> Self::Session<'_>;

    /// Gives the commit its place in the log; it is durable when [`Driven::durable`] reaches it.
    ///
    /// # Errors
    ///
    /// The engine's reason to stop.
    fn commit(&self, xid: Xid, durability: Durability) -> Step<Lsn>;

    /// Undoes the transaction.
    ///
    /// # Errors
    ///
    /// The engine's reason to stop.
    fn abort(&self, xid: Xid) -> Step<()>;

    /// Issues the read of a page that was missed.
    ///
    /// # Errors
    ///
    /// The device failed.
    fn read(&self, fetch: Fetch) -> Result<Fetched, EngineError>;

    /// Takes a page that has come.
    ///
    /// # Errors
    ///
    /// The page is damaged.
    fn fill(&self, fetched: Fetched) -> Result<(), EngineError>;

    /// Gives the resource that `wait` asks for at once; `false` when other work has to bring it.
    ///
    /// # Errors
    ///
    /// The device is full or failed.
    fn supply(&self, wait: Wait) -> Result<bool, EngineError>;

    /// Asks for the work that ends `wait`.
    fn want(&self, wait: Wait);

    /// Every commit up to here is durable.
    fn durable(&self) -> Lsn;

    /// Whether the commit `lsn` is durable.
    fn is_durable(&self, lsn: Lsn) -> bool {
        lsn <= self.durable()
    }

    /// Flushes that may be under way at a time.
    fn flushes_max(&self) -> usize {
        1
    }

    /// Pieces of background work that may be under way at a time.
    fn works_max(&self) -> usize {
        1
    }

    /// Transactions that may call their operation again, each named once.
    fn take_woken(&self) -> Vec<Xid>;

    /// Whether a client waits for log records that are not being written yet.
    fn is_flush_wanted(&self) -> bool;

    /// How long commits may wait for company before they are flushed; none when they do not.
    fn company(&self) -> Option<Duration> {
        None
    }

    /// Issues a flush of the log; none when there is nothing to flush.
    ///
    /// # Errors
    ///
    /// The device failed.
    fn flush_begin(&self) -> Result<Option<Self::Flush>, EngineError>;

    /// The flush is durable.
    fn flush_end(&self, flush: Self::Flush);

    /// Whether there is background work to do.
    fn has_work(&self) -> bool;

    /// Issues a piece of background work; none when there is nothing to do now.
    ///
    /// # Errors
    ///
    /// Stops like any operation.
    fn work_begin(&self) -> Step<Option<Self::Work>>;

    /// The background work is done.
    fn work_end(&self, work: Self::Work);

    /// Device time reached.
    fn now_ns(&self) -> u64;

    /// Operations issued from here on start no earlier than `now_ns`.
    fn at(&self, now_ns: u64);

    /// When the last of the operations since [`Driven::at`] ends; 0 when there were none.
    fn take_end_ns(&self) -> u64;
}

/// A store whose engine an event loop can drive.
pub trait Drivable: Store {
    /// The engine inside.
    type Engine: Driven;

    /// The engine inside.
    fn engine(&self) -> &Self::Engine;
}
