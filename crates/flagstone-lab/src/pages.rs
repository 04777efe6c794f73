//! Common parts of the lab's engines of shadow pages: an engine's interface, and the machine that
//! runs its operations to their end on a device.
//!
//! Owns the calls between such an engine and its driver or test; never knows how a commit is
//! proved.

use flagstone_engine::{
    EngineError, EngineStats, Fetch, Fetched, OpenError, Options, OptionsError, RecoveryReport,
    Step, Stop, Wait, Xid,
};
use flagstone_nand::Nand;
#[cfg(feature = "seeded-bugs")]
use flagstone_opponents::shadow::records::RecordBug;
use flagstone_opponents::shadow::{Lack, Restart, ShadowError};
use flagstone_space::{BlockReport, LogicalPage, Lsn, SpaceError, SpaceStats};
use parking_lot::MutexGuard;

use crate::store::Stopping;

/// Tag of cold pages.
pub(crate) const COLD_TAG: u64 = 0xC01D;

/// Fruitless rounds after which a wait is given up.
pub(crate) const IDLE_COUNT_MAX: u32 = 1_000;

/// An engine of shadow pages. Never does I/O.
pub trait PageEngine: Stopping {
    /// Begins a transaction.
    fn begin(&mut self) -> Xid;

    /// Asks for the commit: done when [`PageEngine::is_committed`] says so. A transaction without
    /// changes is done at once.
    ///
    /// # Errors
    ///
    /// `Deadlock` when the transaction was chosen to end one; `Ended`.
    fn commit(&mut self, xid: Xid) -> Step<Lsn>;

    /// Whether the commit that was given the place `lsn` is durable.
    fn is_committed(&self, lsn: Lsn) -> bool;

    /// Takes a page that has come.
    ///
    /// # Errors
    ///
    /// The page is damaged.
    fn fill(&mut self, fetched: Fetched) -> Result<(), EngineError>;

    /// Whether commits, or other operations, wait for a flush.
    fn is_flush_wanted(&self) -> bool;

    /// Transactions that may call their operation again, each named once.
    fn take_woken(&mut self) -> Vec<Xid>;
}

/// An engine of shadow pages on a device.
///
/// Owns two latches: store before engine, never held across a call from outside.
pub trait PageMachine: Sized {
    /// Device under the store.
    type Device: Nand;
    /// The engine.
    type Engine: PageEngine;
    /// Commits whose programs are issued.
    type Flush;
    /// Background work whose programs are issued.
    type Work;

    /// Flushes that may be under way at a time.
    const FLUSHES_MAX: usize;

    /// Formats `device` and makes an empty database on it.
    ///
    /// # Errors
    ///
    /// The device cannot carry the protocol, or failed.
    fn create(device: Self::Device, options: &Options) -> Result<Self, OpenError>;

    /// Opens the database on `device`, with pages found as `how` says.
    ///
    /// # Errors
    ///
    /// No database, one of another protocol, or a damaged one.
    fn open_by(device: Self::Device, options: &Options, how: Restart) -> Result<Self, OpenError>;

    /// As [`PageMachine::open_by`], with a bug planted that the crash exploration must find.
    #[cfg(feature = "seeded-bugs")]
    fn open_planted(
        device: Self::Device,
        options: &Options,
        how: Restart,
        _: RecordBug,
    ) -> Result<Self, OpenError> {
        Self::open_by(device, options, how)
    }

    /// Plants a bug that the crash exploration must find, where the store has such bugs.
    #[cfg(feature = "seeded-bugs")]
    fn plant(&self, _: RecordBug) {}

    /// The engine. Do not hold it across calls of the machine.
    fn engine(&self) -> MutexGuard<'_, Self::Engine>;

    /// Looks at the device.
    fn with_device<R>(&self, look: impl FnOnce(&mut Self::Device) -> R) -> R;

    /// Gives the device back as it is.
    fn into_device(self) -> Self::Device;

    /// Reads and findings of restart.
    fn recovery(&self) -> RecoveryReport;

    /// Fills the page numbers behind the last one in use, but for `spare_count`, with cold pages.
    ///
    /// # Errors
    ///
    /// The device failed.
    fn prefill(&self, spare_count: u32) -> Result<(), EngineError>;

    /// Counters of the engine.
    fn stats(&self) -> EngineStats;

    /// Counters of the store, in the form of the space floor.
    fn space_stats(&self) -> SpaceStats;

    /// Every block of the device, as the store uses it.
    fn block_report(&self) -> Vec<BlockReport>;

    /// Reads a page that an operation missed.
    ///
    /// # Errors
    ///
    /// Errors of the store; the engine has been told that nothing comes.
    fn read(&self, fetch: Fetch) -> Result<Fetched, EngineError>;

    /// Issues the programs of the next commits; none when no commit waits.
    ///
    /// # Errors
    ///
    /// `Full`: the transactions are aborted. Otherwise the device failed: the engine is poisoned.
    fn flush_begin(&self) -> Result<Option<Self::Flush>, EngineError>;

    /// The commits are durable.
    fn flush_end(&self, flush: Self::Flush);

    /// Whether there is background work to do.
    fn has_work(&self) -> bool;

    /// Does the I/O of one piece of background work; none when there is nothing to do now.
    ///
    /// # Errors
    ///
    /// Stops like any operation.
    fn work_begin(&self) -> Step<Option<Self::Work>>;

    /// Background work is done.
    fn work_end(&self, work: Self::Work);

    /// Takes the transaction back.
    fn abort(&self, xid: Xid);

    /// Has the next checkpoint taken as soon as may be, where there are any.
    fn checkpoint_begin(&self) {}

    /// Writes every dirty page and empties the log, as far as it can, where there is one.
    ///
    /// # Errors
    ///
    /// The device is full or failed.
    fn checkpoint_now(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Work that a lone commit does for all once it is durable.
    ///
    /// # Errors
    ///
    /// The device failed.
    fn after_commit(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Opens the database on `device`.
    ///
    /// # Errors
    ///
    /// As [`PageMachine::open_by`].
    fn open(device: Self::Device, options: &Options) -> Result<Self, OpenError> {
        Self::open_by(device, options, Restart::Summaries)
    }

    /// Runs an operation to its end; none when it has to wait for another transaction's lock.
    ///
    /// # Errors
    ///
    /// Errors of the operation; `Full` when no wait makes room.
    fn attempt<T>(
        &self,
        mut operation: impl FnMut(&mut Self::Engine) -> Step<T>,
    ) -> Result<Option<T>, EngineError> {
        let mut idle_count = 0;
        while idle_count <= IDLE_COUNT_MAX {
            let step = operation(&mut self.engine());
            let is_further = match step {
                Ok(value) => return Ok(Some(value)),
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Wait(Wait::Lock)) => return Ok(None),
                Err(Stop::Wait(_)) => self.advance()?,
                Err(Stop::Miss(fetch)) => self.supply(fetch)?,
            };
            idle_count = if is_further { 0 } else { idle_count + 1 };
        }
        Err(EngineError::Full)
    }

    /// As [`PageMachine::attempt`], where no other transaction holds locks.
    ///
    /// # Errors
    ///
    /// As [`PageMachine::attempt`]; `Deadlock` when another one does.
    fn run<T>(
        &self,
        operation: impl FnMut(&mut Self::Engine) -> Step<T>,
    ) -> Result<T, EngineError> {
        self.attempt(operation)?.ok_or(EngineError::Deadlock)
    }

    /// Brings the missed page; always true.
    ///
    /// # Errors
    ///
    /// As [`PageMachine::read`], or the page is damaged.
    fn supply(&self, fetch: Fetch) -> Result<bool, EngineError> {
        let fetched = self.read(fetch)?;
        self.engine().fill(fetched)?;
        Ok(true)
    }

    /// Commits waiting transactions, or does a piece of background work; false when there is
    /// nothing to do.
    ///
    /// # Errors
    ///
    /// The device is full or failed.
    fn advance(&self) -> Result<bool, EngineError> {
        if let Some(flush) = self.flush_begin()? {
            self.flush_end(flush);
            return Ok(true);
        }
        match self.work_begin() {
            Ok(Some(work)) => {
                self.work_end(work);
                Ok(true)
            }
            Ok(None) | Err(Stop::Wait(_)) => Ok(false),
            Err(Stop::Miss(fetch)) => self.supply(fetch),
            Err(Stop::Error(error)) => Err(error),
        }
    }

    /// Commits; durable when it returns.
    ///
    /// # Errors
    ///
    /// Nothing is committed, or `OutcomeUnknown`.
    fn commit(&self, xid: Xid) -> Result<(), EngineError> {
        let place = self.run(|engine| engine.commit(xid))?;
        while !self.engine().is_committed(place) {
            match self.flush_begin() {
                Ok(Some(flush)) => self.flush_end(flush),
                Err(EngineError::Full) => return Err(EngineError::Full),
                _ => return Err(EngineError::OutcomeUnknown),
            }
        }
        match self.after_commit() {
            // The commit is durable, and the next operation that needs room will meet the error.
            Err(EngineError::Full) => Ok(()),
            done => done,
        }
    }
}

/// The store's error, as the engine's error.
pub(crate) fn of_store(error: ShadowError) -> EngineError {
    match error {
        ShadowError::Full => EngineError::Full,
        ShadowError::Poisoned => EngineError::Poisoned,
        ShadowError::Device(error) => EngineError::Device(error),
        ShadowError::OutOfRange(page) => EngineError::Space(SpaceError::OutOfRange(page)),
        ShadowError::Corrupt { page, check } => {
            EngineError::Space(SpaceError::Corrupt { page, check })
        }
        ShadowError::Size { size, page_size } => {
            EngineError::Space(SpaceError::TooLong { size, limit: page_size })
        }
        ShadowError::FlagRefused(_) => EngineError::WornOut,
        ShadowError::Option(check) => EngineError::Corrupt { page: LogicalPage(0), check },
        // The engine holds the page's lock and ends no transaction twice.
        _ => EngineError::Ended,
    }
}

/// Why the store did not open; `instead` is the preset for a device that cannot carry flags.
pub(crate) fn of_open(options: &Options, error: ShadowError, instead: &'static str) -> OpenError {
    let ShadowError::Lacks { lack, .. } = error else { return of_store(error).into() };
    let (capability, instead) = match lack {
        Lack::PartialPrograms => ("three programs of a page between erases (NOP)", instead),
        Lack::ReprogramOrder => ("re-programs in any order", instead),
        Lack::IsolatedCuts => ("partial programs whose cut harms nothing else", instead),
        Lack::RawSpare => ("38 spare bytes outside the ECC", instead),
        Lack::Spare => ("33 spare bytes", "flagstone"),
        Lack::Cells => ("cells of one bit each", "flagstone"),
        Lack::Room => ("more blocks, or larger pages", "flagstone"),
    };
    OptionsError::Capability { preset: options.preset.clone(), capability, instead }.into()
}
