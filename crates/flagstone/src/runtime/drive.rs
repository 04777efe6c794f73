//! Running operations to their end on the calling thread: reading what they miss, flushing and
//! working when they wait.

use std::time::{Duration, Instant};

use flagstone_nand::Nand;
use flagstone_space::Lsn;

use super::Runtime;
use crate::bugs::SeededBug;
use crate::engine::{Engine, Step, Stop, Wait};
use crate::error::EngineError;

impl<D: Nand> Runtime<D> {
    /// Runs an operation to its end: reads what it misses, does what it waits for.
    ///
    /// # Errors
    ///
    /// Those of the operation. Lock waits are left to callers that know other transactions.
    pub(crate) fn run<T>(
        &self,
        mut operation: impl FnMut(&mut Engine) -> Step<T>,
    ) -> Result<T, EngineError> {
        let mut idle_count = 0;
        loop {
            let mut engine = self.engine();
            let step = operation(&mut engine);
            if matches!(step, Err(Stop::Wait(Wait::Lock))) {
                // Under the same latch, so that no wake-up is missed.
                self.changed.wait_for(&mut engine, LOCK_POLL);
                continue;
            }
            drop(engine);
            match step {
                Ok(value) => return Ok(value),
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Miss(fetch)) => {
                    let fetched = self.read(fetch)?;
                    self.engine().fill(fetched)?;
                }
                Err(Stop::Wait(wait @ (Wait::Pages(_) | Wait::Group))) => self.supply(wait)?,
                Err(Stop::Wait(wait)) => {
                    if self.make_way(wait)? {
                        idle_count = 0;
                    } else {
                        idle_count += 1;
                        if idle_count > IDLE_COUNT_MAX {
                            return Err(EngineError::Full);
                        }
                    }
                }
            }
        }
    }

    /// Does what an operation waits for; false when there was nothing to do.
    fn make_way(&self, wait: Wait) -> Result<bool, EngineError> {
        let mut engine = self.engine();
        match wait {
            Wait::Log => engine.want_checkpoint(),
            Wait::Memory | Wait::Durable(_) => engine.want_flush(),
            _ => {}
        }
        drop(engine);
        self.advance()
    }

    /// Waits a little for another thread to change something.
    fn await_change(&self) {
        let mut engine = self.engine();
        self.changed.wait_for(&mut engine, LOCK_POLL);
    }

    /// Flushes or does one piece of background work; false when there is nothing to do.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub(crate) fn advance(&self) -> Result<bool, EngineError> {
        let flushed = self.flush_now()?;
        Ok(self.work_now()? || flushed)
    }

    /// Flushes if somebody wants it and nobody does.
    pub(crate) fn flush_now(&self) -> Result<bool, EngineError> {
        if !self.engine().is_flush_wanted() {
            return Ok(false);
        }
        let Some(flush) = self.flush_begin()? else { return Ok(false) };
        self.flush_end(flush);
        Ok(true)
    }

    /// Does one piece of background work, unless another thread does; false when there is none.
    pub(crate) fn work_now(&self) -> Result<bool, EngineError> {
        let Some(_token) = self.working.try_lock() else {
            self.await_change();
            return Ok(true);
        };
        if !self.engine().has_work() {
            return Ok(false);
        }
        match self.work_begin() {
            Ok(Some(work)) => {
                self.work_end(work);
                Ok(true)
            }
            Ok(None) if self.engine().is_flushing() => {
                self.await_change();
                Ok(true)
            }
            Ok(None) => Ok(self.engine().is_flush_wanted()),
            Err(Stop::Miss(fetch)) => {
                let fetched = self.read(fetch)?;
                self.engine().fill(fetched)?;
                Ok(true)
            }
            Err(Stop::Wait(_)) => Ok(false),
            Err(Stop::Error(error)) => Err(error),
        }
    }
}

impl<D: Nand> Runtime<D> {
    /// Waits until every commit up to `lsn` is durable; flushes when nobody else does.
    ///
    /// # Errors
    ///
    /// `OutcomeUnknown` when the device failed meanwhile (rule D8).
    pub(crate) fn wait_durable(&self, lsn: Lsn) -> Result<(), EngineError> {
        loop {
            let mut engine = self.engine();
            if engine.durable() >= lsn || engine.bugs.has(SeededBug::AcknowledgeEarly) {
                return Ok(());
            }
            if engine.is_poisoned() {
                return Err(EngineError::OutcomeUnknown);
            }
            if engine.is_flushing() {
                self.changed.wait_for(&mut engine, LOCK_POLL);
                continue;
            }
            engine.want_flush();
            drop(engine);
            match self.flush_begin() {
                Ok(Some(flush)) => self.flush_end(flush),
                Ok(None) => {}
                Err(_) => return Err(EngineError::OutcomeUnknown),
            }
        }
    }

    /// As [`Runtime::wait_durable`], after waiting for company.
    pub(crate) fn wait_group(&self, lsn: Lsn) -> Result<(), EngineError> {
        let mut engine = self.engine();
        let options = engine.options();
        let (delay, fill) = (options.group_delay, options.group_fill);
        let enough = (self.log_page_size() as f64 * fill) as usize;
        let deadline = Instant::now() + delay;
        while engine.durable() < lsn && engine.pending_log_size() < enough {
            if self.changed.wait_until(&mut engine, deadline).timed_out() {
                break;
            }
        }
        // Whoever waits with less than enough learns that enough has come.
        self.changed.notify_all();
        drop(engine);
        self.wait_durable(lsn)
    }

    /// Does background work until little is left to do, but not for long.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub(crate) fn work_some(&self) -> Result<(), EngineError> {
        for _ in 0..WORK_AFTER_COMMIT {
            if !self.engine().has_work() || !self.work_now()? {
                break;
            }
        }
        Ok(())
    }

    /// Brings everything to rest: flushes, merges what must be, writes a checkpoint.
    ///
    /// # Errors
    ///
    /// The device failed, or has no room for the checkpoint.
    pub fn checkpoint_now(&self) -> Result<(), EngineError> {
        self.engine().want_checkpoint();
        let mut idle_count = 0;
        while self.engine().is_checkpointing() {
            let progress = self.advance()?;
            idle_count = if progress { 0 } else { idle_count + 1 };
            if idle_count > IDLE_COUNT_MAX {
                return Err(EngineError::Full);
            }
        }
        Ok(())
    }
}

/// Pieces of background work that a commit does on behalf of all, at most.
const WORK_AFTER_COMMIT: u32 = 4;

/// Fruitless rounds after which a wait is given up: the device has no way left to make room.
const IDLE_COUNT_MAX: u32 = 1_000;

/// How long a thread sleeps before it looks again, should a wake-up be missed.
const LOCK_POLL: Duration = Duration::from_millis(20);
