//! Operations run to their end.
//!
//! Owns the order of the waits that an operation meets. Never touches a page: the machine does.

use flagstone_engine::{Durability, EngineError, Step, Stop, Wait, Xid};
use flagstone_nand::Nand;
use flagstone_space::{LogicalPage, Lsn};

use super::super::Mistake;
use super::super::engine::Engine;
use super::Machine;

/// Pieces of background work that a commit does on behalf of all, at most.
const WORK_AFTER_COMMIT: u32 = 4;

/// Fruitless rounds after which a wait is given up.
const IDLE_COUNT_MAX: u32 = 1_000;

/// Operations on the calling thread.
impl<D: Nand> Machine<D> {
    /// Runs an operation to its end; none when it has to wait for another transaction's lock.
    ///
    /// # Errors
    ///
    /// Errors of the operation; `Full` when no wait makes room.
    pub fn attempt<T>(
        &self,
        mut operation: impl FnMut(&mut Engine) -> Step<T>,
    ) -> Result<Option<T>, EngineError> {
        let mut idle_count = 0;
        while idle_count <= IDLE_COUNT_MAX {
            let step = operation(&mut self.engine());
            let progress = match step {
                Ok(value) => return Ok(Some(value)),
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Wait(Wait::Lock)) => {
                    if self.engine().rollbacks.is_empty() {
                        return Ok(None);
                    }
                    self.advance()?
                }
                Err(stop) => self.resolve(stop)?,
            };
            idle_count = if progress { 0 } else { idle_count + 1 };
        }
        Err(EngineError::Full)
    }

    /// As [`Machine::attempt`], where no other transaction holds locks.
    ///
    /// # Errors
    ///
    /// As [`Machine::attempt`]; `Deadlock` when another one does.
    pub fn run<T>(&self, operation: impl FnMut(&mut Engine) -> Step<T>) -> Result<T, EngineError> {
        self.attempt(operation)?.ok_or(EngineError::Deadlock)
    }

    /// Sees to the cause of an operation's stop; false when there was nothing to do.
    fn resolve(&self, stop: Stop) -> Result<bool, EngineError> {
        match stop {
            Stop::Miss(fetch) => {
                let fetched = self.read(fetch)?;
                self.engine().fill(fetched)?;
                return Ok(true);
            }
            Stop::Wait(wait @ Wait::Pages(_)) => {
                if let Err(error) = self.supply(wait) {
                    return self.free_pages(error);
                }
                return Ok(true);
            }
            Stop::Wait(wait) => self.want(wait),
            Stop::Error(error) => return Err(error),
        }
        self.advance()
    }

    /// Pages given up come back once that is durable.
    pub(super) fn free_pages(&self, error: EngineError) -> Result<bool, EngineError> {
        if error != EngineError::Full || self.engine().freed.is_empty() {
            return Err(error);
        }
        self.engine().want_flush();
        self.flush_now()?;
        self.trim()?;
        Ok(true)
    }

    /// Asks for the event that ends a wait.
    pub fn want(&self, wait: Wait) {
        match wait {
            Wait::Log => self.engine().want_log_room(),
            Wait::Durable(lsn) => self.engine().want_durable(lsn),
            _ => {}
        }
    }

    /// Flushes or does one piece of background work; false when there is nothing to do.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub fn advance(&self) -> Result<bool, EngineError> {
        let is_wanted = self.engine().is_flush_wanted();
        let flushed = is_wanted && self.flush_now()?;
        let worked = match self.work_begin() {
            Ok(Some(work)) => {
                self.work_end(work);
                true
            }
            Err(Stop::Miss(fetch)) => {
                let fetched = self.read(fetch)?;
                self.engine().fill(fetched)?;
                true
            }
            Ok(None) | Err(Stop::Wait(_)) => false,
            Err(Stop::Error(error)) => return Err(error),
        };
        Ok(worked || flushed)
    }

    /// Flushes the log's pending records.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub fn flush_now(&self) -> Result<bool, EngineError> {
        let Some(flush) = self.flush_begin()? else { return Ok(false) };
        self.flush_end(flush);
        Ok(true)
    }

    /// Commits, durably unless deferred.
    ///
    /// # Errors
    ///
    /// Nothing is committed, or `OutcomeUnknown`.
    pub fn commit(&self, xid: Xid, durability: Durability) -> Result<(), EngineError> {
        let lsn = self.run(|engine| engine.commit(xid, durability))?;
        let is_early = self.engine().config.makes(Mistake::AcknowledgeEarly);
        if durability != Durability::Deferred && !is_early {
            self.wait_durable(lsn)?;
        }
        // The commit stands, even if the remaining work fails.
        let _ = self.work_some();
        Ok(())
    }

    /// Does background work until little is left to do, but not for long.
    fn work_some(&self) -> Result<(), EngineError> {
        for _ in 0..WORK_AFTER_COMMIT {
            if !self.has_work() || !self.advance()? {
                break;
            }
        }
        Ok(())
    }

    /// Writes every dirty page, even of running transactions, and does all waiting work.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub fn clean_all(&self) -> Result<(), EngineError> {
        self.engine().want_flush();
        self.flush_now()?;
        let dirty: Vec<LogicalPage> = self.engine().pool.dirty().map(|(page, _)| page).collect();
        for page in dirty {
            if let Some(work) = self.write(page)? {
                self.work_end(work);
            }
        }
        while self.has_work() && self.advance()? {}
        Ok(())
    }

    /// Waits until every record up to `lsn` is durable.
    ///
    /// # Errors
    ///
    /// `OutcomeUnknown` when the device failed.
    pub fn wait_durable(&self, lsn: Lsn) -> Result<(), EngineError> {
        while self.engine().durable() < lsn {
            match self.flush_now() {
                Ok(true) => {}
                _ => return Err(EngineError::OutcomeUnknown),
            }
        }
        Ok(())
    }

    /// Aborts, and undoes before it returns.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub fn abort(&self, xid: Xid) -> Result<(), EngineError> {
        self.engine().abort(xid);
        let mut idle_count = 0;
        while self.engine().is_running(xid) && idle_count <= IDLE_COUNT_MAX {
            if self.engine().is_poisoned() {
                return Err(EngineError::Poisoned);
            }
            let progress = self.advance()?;
            idle_count = if progress { 0 } else { idle_count + 1 };
        }
        Ok(())
    }

    /// Writes everything and moves the log's head as far as it goes.
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
