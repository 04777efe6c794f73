//! Running operations to their end on the calling thread: reading what they miss, flushing and
//! working when they wait.

use std::time::Duration;

use flagstone_nand::Nand;
use flagstone_space::Lsn;

use super::Runtime;
use super::sleep::Woken;
use crate::bugs::SeededBug;
use crate::engine::{Engine, Fetch, Step, Stop, Table, Wait};
use crate::error::EngineError;
use crate::lock::Xid;
use crate::sync::Instant;

impl<D: Nand> Runtime<D> {
    /// Runs an operation to its end: reads the pages it misses, does the work it waits for.
    ///
    /// # Errors
    ///
    /// Errors of the operation. Without a transaction, a wait for a lock has no time limit.
    pub(crate) fn run<T>(
        &self,
        operation: impl FnMut(&mut Engine) -> Step<T>,
    ) -> Result<T, EngineError> {
        self.run_for(None, operation)
    }

    /// As [`Runtime::run`], for a transaction: the thread is woken only when this transaction's
    /// lock is granted.
    ///
    /// # Errors
    ///
    /// Errors of the operation.
    pub(crate) fn run_for<T>(
        &self,
        xid: Option<Xid>,
        operation: impl FnMut(&mut Engine) -> Step<T>,
    ) -> Result<T, EngineError> {
        self.run_after(None, xid, operation)
    }

    /// As [`Runtime::run_for`], after reading the page that a shared read missed.
    ///
    /// # Errors
    ///
    /// Errors of the operation.
    pub(crate) fn run_after<T>(
        &self,
        missed: Option<Fetch>,
        xid: Option<Xid>,
        operation: impl FnMut(&mut Engine) -> Step<T>,
    ) -> Result<T, EngineError> {
        let result = self.run_to_its_end(missed, xid, operation);
        if matches!(result, Err(EngineError::Full)) {
            self.ask_host_again();
        }
        result
    }

    fn run_to_its_end<T>(
        &self,
        missed: Option<Fetch>,
        xid: Option<Xid>,
        mut operation: impl FnMut(&mut Engine) -> Step<T>,
    ) -> Result<T, EngineError> {
        let mut idle_count = 0;
        let mut patience = Patience::default();
        let mut fetched = missed.map(|fetch| self.read(fetch)).transpose()?;
        loop {
            let mut engine = self.engine();
            // The page is used before another thread takes the engine.
            if let Some(fetched) = fetched.take() {
                engine.fill(fetched)?;
            }
            let mut step = operation(&mut engine);
            let mut poll = LOCK_POLL;
            if matches!(step, Err(Stop::Wait(Wait::Lock))) {
                poll = poll.min(patience.left(engine.options().lock_timeout));
                if let Some(xid) = xid.filter(|_| poll.is_zero()) {
                    engine.give_up(xid);
                    step = Err(EngineError::LockTimeout.into());
                }
            }
            // A transaction may have ended here, as a deadlock's victim for example: wake the
            // transactions it let in.
            let woken = engine.take_woken();
            let must_sleep = matches!(step, Err(Stop::Wait(Wait::Lock)));
            let asleep = must_sleep.then(|| self.sleepers.await_lock(xid));
            drop(engine);
            if !woken.is_empty() {
                self.sleepers.wake_locks(&woken);
            }
            if let Some(asleep) = asleep {
                self.sleepers.sleep(asleep, poll);
                continue;
            }
            match step {
                Ok(value) => return Ok(value),
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Miss(fetch)) => fetched = Some(self.read(fetch)?),
                Err(Stop::Wait(wait)) if wait.is_at_hand() => match self.supply(wait) {
                    Err(EngineError::Full) if self.free_room()? => {}
                    supplied => supplied?,
                },
                Err(Stop::Wait(wait)) => {
                    if self.serve_wait(wait)? {
                        idle_count = 0;
                    } else {
                        idle_count += 1;
                        if idle_count > IDLE_COUNT_MAX && !self.free_room()? {
                            return Err(EngineError::Full);
                        }
                    }
                }
            }
        }
    }

    /// Does the work that an operation waits for; false when there was nothing to do.
    fn serve_wait(&self, wait: Wait) -> Result<bool, EngineError> {
        let mut engine = self.engine();
        if wait != Wait::CommitPages {
            // Waiting for a device that has failed is pointless.
            engine.sound()?;
        }
        match wait {
            Wait::Log => engine.want_log_room(),
            Wait::Memory => engine.want_flush(),
            Wait::Durable(_) => engine.want_flush(),
            // Only the work of the claim: the writer would pay for other work before it is due.
            Wait::CommitPages => {
                drop(engine);
                return Ok(self.flush_now()? || self.work_now()? || self.await_flush());
            }
            // The thread that makes the snapshot goes on meanwhile.
            Wait::CommitBarrier => {
                drop(engine);
                if !self.advance()? {
                    self.await_change();
                }
                return Ok(true);
            }
            _ => {}
        }
        drop(engine);
        self.advance()
    }

    /// Frees a little of the room that waits to be freed, and that of the oldest snapshot if need
    /// be; false when no room is kept.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub(crate) fn free_room(&self) -> Result<bool, EngineError> {
        let frees = self.engine().frees_room();
        if frees {
            self.advance()?;
        }
        Ok(frees)
    }

    /// Wakes the transactions that were let in by the end of another one.
    pub(crate) fn wake_others(&self) {
        if !self.engine_shared().has_woken() {
            return;
        }
        let woken = self.engine().take_woken();
        if !woken.is_empty() {
            self.sleepers.wake_locks(&woken);
        }
    }

    /// Waits a little for another thread to change something.
    fn await_change(&self) {
        let engine = self.engine_shared();
        let asleep = self.sleepers.await_change();
        drop(engine);
        self.sleepers.sleep(asleep, CHANGE_POLL);
    }

    /// Flushes or does one piece of background work; false when there is nothing to do.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub(crate) fn advance(&self) -> Result<bool, EngineError> {
        let flushed = self.flush_now()?;
        Ok(self.work_now()? || flushed || self.await_flush())
    }

    /// Waits a little for another thread's flush, which may be the one this thread needs. False
    /// when no flush is in flight.
    pub(crate) fn await_flush(&self) -> bool {
        let is_flushing = self.engine_shared().is_flushing();
        if is_flushing {
            self.await_change();
        }
        is_flushing
    }

    /// Flushes if a flush is wanted and none is in flight.
    pub(crate) fn flush_now(&self) -> Result<bool, EngineError> {
        if !self.engine_shared().is_flush_wanted() {
            return Ok(false);
        }
        let Some(flush) = self.flush_begin()? else { return Ok(false) };
        self.flush_end(flush);
        self.wake_others();
        Ok(true)
    }

    /// Does one piece of background work, unless another thread does; false when there is none.
    pub(crate) fn work_now(&self) -> Result<bool, EngineError> {
        let Some(_token) = self.working.try_lock() else {
            self.await_change();
            return Ok(true);
        };
        if !self.engine_shared().has_work() {
            return Ok(false);
        }
        match self.work_begin() {
            Ok(Some(work)) => {
                self.work_end(work);
                self.wake_others();
                Ok(true)
            }
            Ok(None) if self.engine_shared().is_flushing() => {
                self.await_change();
                Ok(true)
            }
            Ok(None) => Ok(self.engine_shared().is_flush_wanted()),
            Err(Stop::Miss(fetch)) => {
                let read = self.read(fetch).and_then(|fetched| self.engine().fill(fetched));
                match (read, fetch) {
                    // The error goes to the thread that asks for this page itself; background work
                    // goes on without it.
                    (
                        Err(error @ (EngineError::Corrupt { .. } | EngineError::Space(_))),
                        Fetch::Page(page, _),
                    ) if self.engine().goes_without(page, &error) => {}
                    (read, _) => read?,
                }
                Ok(true)
            }
            Err(Stop::Error(error @ EngineError::Corrupt { page, .. }))
                if self.engine().goes_without(page, &error) =>
            {
                Ok(true)
            }
            Err(Stop::Wait(_)) => Ok(false),
            Err(Stop::Error(error)) => Err(error),
        }
    }
}

impl<D: Nand> Runtime<D> {
    /// Waits until every commit up to `lsn` is durable; flushes when no other thread does.
    ///
    /// # Errors
    ///
    /// `OutcomeUnknown` when the device failed meanwhile (rule D8); `OtherProcess`.
    pub(crate) fn wait_durable(&self, lsn: Lsn) -> Result<(), EngineError> {
        loop {
            let engine = self.engine_shared();
            if engine.durable() >= lsn || engine.bugs.has(SeededBug::AcknowledgeEarly) {
                return Ok(());
            }
            engine.sound().map_err(outcome_of)?;
            if engine.is_flushing() {
                let is_new = !engine.bugs.has(SeededBug::LateWakeTrusted);
                let asleep = self.sleepers.await_durable(lsn, is_new);
                drop(engine);
                if self.sleepers.sleep(asleep, LOCK_POLL) == Woken::Done {
                    return Ok(());
                }
                continue;
            }
            drop(engine);
            match self.flush_all() {
                Ok(Some(flush)) => {
                    self.flush_end(flush);
                    self.wake_others();
                }
                Ok(None) => {}
                Err(error) => return Err(outcome_of(error)),
            }
        }
    }

    /// As [`Runtime::wait_durable`], after waiting for company up to the options' delay and fill.
    pub(crate) fn wait_group(&self, lsn: Lsn) -> Result<(), EngineError> {
        let mut engine = self.engine();
        let options = engine.options();
        let (delay, fill) = (options.group_delay, options.group_fill);
        let enough = (self.log_page_size() as f64 * fill) as usize;
        let begun = Instant::now();
        while engine.durable() < lsn && engine.pending_log_size() < enough && !engine.is_poisoned()
        {
            let left = delay.saturating_sub(begun.elapsed());
            if left.is_zero() {
                break;
            }
            let asleep = self.sleepers.await_change();
            drop(engine);
            self.sleepers.sleep(asleep, left);
            engine = self.engine();
        }
        drop(engine);
        // Threads that still wait for company see that enough has come.
        self.sleepers.wake_changed();
        self.wait_durable(lsn)
    }

    /// Does at most four pieces of background work, fewer when little is left to do.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub fn work_some(&self) -> Result<(), EngineError> {
        self.flush_now()?;
        for _ in 0..WORK_AFTER_COMMIT {
            if !self.engine_shared().has_work() || !self.work_now()? {
                break;
            }
        }
        Ok(())
    }

    /// Merges leaves while the deltas that reads have loaded exceed their share of memory, at most
    /// 64 steps. Errors are ignored: the next writer meets them.
    pub(crate) fn merge_excess(&self) {
        for _ in 0..RELIEF_MAX {
            let is_full = self.engine_shared().is_full_of_changes();
            if !is_full || !self.advance().is_ok_and(|has_work| has_work) {
                break;
            }
        }
    }

    /// Brings the engine to rest: flushes, does the merges that are due, writes a checkpoint.
    ///
    /// # Errors
    ///
    /// The device failed, or has no room for the checkpoint.
    pub fn checkpoint_now(&self) -> Result<(), EngineError> {
        self.engine().want_checkpoint();
        self.finish_checkpoint()
    }

    /// As [`Runtime::checkpoint_now`], and tells the next session that nothing was written after
    /// the checkpoint.
    ///
    /// # Errors
    ///
    /// As [`Runtime::checkpoint_now`].
    pub(crate) fn close_now(&self) -> Result<(), EngineError> {
        // The next session may only read, and have no memory to load runs: they are loaded before.
        let (mut least, mut idle_count) = (usize::MAX, 0);
        loop {
            self.engine().sound()?;
            let left = self.engine().pages_to_load();
            if left == 0 || idle_count > IDLE_COUNT_MAX {
                break;
            }
            idle_count = if left < least { 0 } else { idle_count + 1 };
            least = least.min(left);
            if !self.advance()? {
                break;
            }
        }
        self.engine().want_last_checkpoint();
        self.finish_checkpoint()
    }

    /// As [`Runtime::checkpoint_now`], and every leaf with durable changes is merged.
    ///
    /// # Errors
    ///
    /// The device failed, or has no room.
    pub fn merge_now(&self) -> Result<(), EngineError> {
        self.engine().want_full_merge();
        self.finish_checkpoint()
    }

    /// Frees the pages of a dropped table as far as possible now. The rest is freed in the
    /// background.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub fn finish_drop(&self, table: Table) -> Result<(), EngineError> {
        let mut idle_count = 0;
        while idle_count < IDLE_COUNT_MAX && self.engine_shared().may_free(table) {
            idle_count = if self.advance()? { 0 } else { idle_count + 1 };
        }
        Ok(())
    }

    fn finish_checkpoint(&self) -> Result<(), EngineError> {
        let mut idle_count = 0;
        while self.engine_shared().is_checkpointing() {
            self.engine().sound()?;
            let progress = self.advance()?;
            idle_count = if progress { 0 } else { idle_count + 1 };
            if idle_count > IDLE_COUNT_MAX && !self.free_room()? {
                return Err(EngineError::Full);
            }
        }
        Ok(())
    }
}

/// Error of a commit whose flush failed: unknown outcome, since part of the flush may be on flash.
fn outcome_of(error: EngineError) -> EngineError {
    match error {
        EngineError::OtherProcess => error,
        _ => EngineError::OutcomeUnknown,
    }
}

/// How long an operation has waited for a lock.
#[derive(Debug, Default)]
struct Patience {
    since: Option<Instant>,
}

impl Patience {
    /// Rest of `limit`; a limit of zero never ends. The clock is read only where there is a limit.
    fn left(&mut self, limit: Duration) -> Duration {
        if limit.is_zero() {
            return Duration::MAX;
        }
        let since = self.since.get_or_insert_with(Instant::now);
        limit.saturating_sub(since.elapsed())
    }
}

/// Most pieces of background work that one commit does on behalf of all.
const WORK_AFTER_COMMIT: u32 = 4;

/// Most pieces of background work that one reader does for the changes it loaded.
const RELIEF_MAX: u32 = 64;

/// Fruitless rounds after which a wait is given up: the device has no way left to make room.
const IDLE_COUNT_MAX: u32 = 1_000;

/// Sleep of a thread that waits for a lock or a flush before it looks again. The poll replaces no
/// wake-up: it is long in tests, so that a missed wake-up is seen.
#[cfg(not(any(test, shuttle)))]
const LOCK_POLL: Duration = Duration::from_millis(20);
#[cfg(any(test, shuttle))]
const LOCK_POLL: Duration = crate::sync::LONG;

/// Sleep of a thread whose reason to wait may have passed already, before it looks again.
const CHANGE_POLL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests;
