//! Handles of a database whose calls run to their end on the calling thread.
//!
//! Owns nothing but a [`Runtime`]; every call runs an engine operation to its end. Commits of several threads
//! share a flush: the first thread that finds the log free writes for all. The crate `flagstone` is these
//! handles over any device, with errors by operation.

use std::fmt;
use std::sync::Arc;

use flagstone_nand::Nand;
use tracing::{debug, info};

use crate::runtime::EVENTS;
use crate::{
    CheckReport, EngineError, EngineStats, OpenError, Options, RecoveryReport, Runtime,
    VerifyOnOpen,
};

mod rows;
mod snapshot;
mod tables;
mod transaction;

pub use rows::{KeyValue, Range, RowRef, Stopped};
pub use snapshot::Snapshot;
pub use tables::{index_head, require_plain};
pub use transaction::{Commit, Transaction, scan_range};

/// A database on a device of type `D`: cheap to clone, shared by threads.
pub struct Database<D: Nand> {
    runtime: Arc<Runtime<D>>,
}

impl<D: Nand> fmt::Debug for Database<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").finish_non_exhaustive()
    }
}

impl<D: Nand> Clone for Database<D> {
    fn clone(&self) -> Self {
        Self { runtime: Arc::clone(&self.runtime) }
    }
}

impl<D: Nand> Database<D> {
    /// Formats a device and creates an empty database on it.
    ///
    /// # Errors
    ///
    /// The options do not fit the device, or the device failed.
    pub fn create_on(device: D, options: &Options) -> Result<Self, OpenError> {
        let runtime = Runtime::create(device, options)?;
        info!(target: EVENTS, preset = options.preset, memory = options.memory, "created");
        Ok(Self::over(runtime))
    }

    /// Opens the database on a device, with a restart where the last session was not closed.
    ///
    /// # Errors
    ///
    /// The device holds no database, or a damaged one, or the options do not fit it; `Unsound` when
    /// [`Options::verify_on_open`] asks for a check that finds a fault.
    pub fn open_on(device: D, options: &Options) -> Result<Self, OpenError> {
        Self::opened(Runtime::open(device, options)?, options)
    }

    /// Opens the database on a device for reading: nothing is written, now or later.
    ///
    /// # Errors
    ///
    /// As [`Database::open_on`]; `NeedsMemory` when the changes that only the log holds do not fit the memory.
    pub fn open_read_only_on(device: D, options: &Options) -> Result<Self, OpenError> {
        Self::opened(Runtime::open_read_only(device, options)?, options)
    }

    fn opened(runtime: Runtime<D>, options: &Options) -> Result<Self, OpenError> {
        let RecoveryReport { commits, pages_read, pages_written, full_scan, time_ns, .. } =
            runtime.recovery();
        info!(target: EVENTS, commits, pages_read, pages_written, full_scan, time_ns, "opened");
        let database = Self::over(runtime);
        if options.verify_on_open == VerifyOnOpen::Check {
            database.require_sound()?;
        }
        Ok(database)
    }

    fn require_sound(&self) -> Result<(), OpenError> {
        let faults = self.check()?.faults;
        let count = faults.len();
        match faults.into_iter().next() {
            None => Ok(()),
            Some(first) => Err(OpenError::Unsound { count, first: Box::new(first) }),
        }
    }

    /// A database over a runtime.
    #[must_use]
    pub fn over(runtime: Runtime<D>) -> Self {
        Self { runtime: Arc::new(runtime) }
    }

    /// The runtime that drives the engine.
    #[must_use]
    pub fn runtime(&self) -> &Runtime<D> {
        &self.runtime
    }

    /// Begins a read-write transaction; dropping it aborts.
    #[must_use]
    pub fn begin(&self) -> Transaction<D> {
        Transaction::begin(Arc::clone(&self.runtime))
    }

    /// Begins a snapshot of all durable commits.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub fn snapshot(&self) -> Result<Snapshot<D>, EngineError> {
        Snapshot::begin(Arc::clone(&self.runtime))
    }

    /// Keeps the present state under `name` until it is dropped; durable when this returns.
    ///
    /// # Errors
    ///
    /// `SnapshotExists`; `NameTooLong`; `Full`; the error of a damaged page for which changes wait;
    /// `ReadOnly`; the device failed.
    pub fn keep_snapshot(&self, name: &str) -> Result<(), EngineError> {
        self.runtime.keep_snapshot(name)?;
        info!(target: EVENTS, name, "named snapshot created");
        Ok(())
    }

    /// Names of the named snapshots, oldest first.
    #[must_use]
    pub fn named_snapshots(&self) -> Vec<String> {
        self.runtime.named_snapshots()
    }

    /// A named snapshot, for reading.
    ///
    /// # Errors
    ///
    /// `NoSnapshot`.
    pub fn named_snapshot(&self, name: &str) -> Result<Snapshot<D>, EngineError> {
        let id = self.runtime.named_snapshot(name)?;
        Ok(Snapshot::named(Arc::clone(&self.runtime), id))
    }

    /// Drops a named snapshot, durably, and frees the pages that it alone needs.
    ///
    /// # Errors
    ///
    /// `NoSnapshot`; `Full`; `ReadOnly`; the device failed.
    pub fn drop_snapshot(&self, name: &str) -> Result<(), EngineError> {
        self.runtime.drop_snapshot(name)?;
        info!(target: EVENTS, name, "snapshot dropped");
        Ok(())
    }

    /// Counters of the engine since the database was opened.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        self.runtime.engine().stats()
    }

    /// Work of the restart when the database was opened.
    #[must_use]
    pub fn recovery(&self) -> RecoveryReport {
        self.runtime.recovery()
    }

    /// Checks every node, large value and page, and reads every row. Writes nothing of its own.
    ///
    /// # Errors
    ///
    /// The device failed; contradictions that the check finds are part of the report.
    pub fn check(&self) -> Result<CheckReport, EngineError> {
        let report = self.runtime.check()?;
        debug!(target: EVENTS, rows = report.rows, faults = report.faults.len(), "checked");
        Ok(report)
    }

    /// Makes every commit durable.
    ///
    /// # Errors
    ///
    /// The device failed, now or before: commits that were not durable then are lost.
    pub fn flush(&self) -> Result<(), EngineError> {
        self.runtime.make_durable()
    }

    /// Merges all committed changes into their leaves, and writes a checkpoint.
    ///
    /// # Errors
    ///
    /// The device failed, or has no room; commits are as durable as they were.
    pub fn merge(&self) -> Result<(), EngineError> {
        self.runtime.merge_all()
    }

    /// Flushes and writes a checkpoint.
    ///
    /// # Errors
    ///
    /// The device failed; commits are as durable as they were.
    pub fn close(self) -> Result<(), EngineError> {
        self.runtime.close()?;
        info!(target: EVENTS, "closed");
        Ok(())
    }

    /// Gives the device back as it is, as if power had been cut; `None` while clones are alive.
    #[must_use]
    pub fn into_device(self) -> Option<D> {
        Arc::into_inner(self.runtime).map(Runtime::into_device)
    }
}
