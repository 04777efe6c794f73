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
        if wait != Wait::Claim {
            // Waiting for a device that has failed is pointless.
            engine.sound()?;
        }
        match wait {
            Wait::Log => engine.want_log_room(),
            Wait::Memory => engine.want_flush(),
            Wait::Durable(_) => engine.want_flush(),
            // Only the work of the claim: the writer would pay for other work before it is due.
            Wait::Claim => {
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
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use flagstone_nand::{Profile, SimNand};

    use super::*;
    use crate::engine::Table;
    use crate::options::{Durability, Options};
    use crate::testing::{Database, Transaction};

    fn database() -> Database<SimNand> {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
        let options = Options::default().with_memory(1 << 20);
        Database::create_on(SimNand::new(&profile, 1), &options).unwrap()
    }

    /// Locks three of five keys, or scans, in an order that depends on `number`: deadlocks are
    /// frequent.
    fn contend(
        mut transaction: Transaction<SimNand>,
        table: Table,
        number: u32,
    ) -> Result<(), EngineError> {
        for step in 0..3 {
            let key = [(number.wrapping_mul(2_654_435_761) >> (8 * step)) as u8 % 5];
            match number % 4 {
                0 => transaction.len(table).map(drop)?,
                1 => transaction.lock_key(table, &key)?,
                _ => transaction.put(table, &key, &number.to_be_bytes())?,
            }
            thread::yield_now();
        }
        if number.is_multiple_of(7) {
            return Ok(());
        }
        let deferred = number.is_multiple_of(3);
        let durability = if deferred { Durability::Deferred } else { Durability::Immediate };
        transaction.commit_with(durability).map(drop)
    }

    /// Goal: every waiting thread is woken by the thread that lets it in, without the clock.
    /// Method: threads that contend for few keys; the poll of this build is a minute.
    #[test]
    fn no_wake_up_is_missed() {
        const THREAD_COUNT: u32 = 6;
        let database = database();
        let table = database.table("t").unwrap();
        let (start, began) = (Barrier::new(THREAD_COUNT as usize), Instant::now());
        let run = |thread: u32| {
            start.wait();
            for number in (0..300).map(|number| number * THREAD_COUNT + thread) {
                while let Err(error) = contend(database.begin(), table, number) {
                    assert_eq!(error, EngineError::Deadlock, "transaction {number}");
                }
            }
        };
        thread::scope(|scope| {
            let run = &run;
            (0..THREAD_COUNT).for_each(|thread| drop(scope.spawn(move || run(thread))));
        });
        assert!(began.elapsed() < LOCK_POLL, "somebody slept until the poll");
    }

    /// Goal: no thread waits for a flush during which the device failed. Method: the engine is
    /// poisoned while a flush is under way, and the end of the flush never comes.
    #[test]
    fn nobody_waits_for_a_flush_that_failed() {
        let database = database();
        let table = database.table("t").unwrap();
        let mut txn = database.begin();
        txn.put(table, b"k", b"v").unwrap();
        txn.commit_with(Durability::Deferred).unwrap();
        let runtime = database.runtime();
        let flush = runtime.flush_all().unwrap();
        assert!(flush.is_some() && runtime.await_flush(), "nothing is under way");
        runtime.engine().poison(EngineError::Poisoned);
        assert!(!runtime.await_flush(), "it is waited for");
        assert_eq!(runtime.close_now(), Err(EngineError::Poisoned));
    }

    /// Whether a thread takes a commit for durable on a wake-up for an earlier commit, which comes
    /// late: its sleep had run out, and it sleeps for the later commit when the wake-up arrives.
    fn trusts_a_late_wake_up(bug: Option<SeededBug>) -> bool {
        let database = database();
        let runtime = database.runtime();
        #[cfg(feature = "seeded-bugs")]
        runtime.plant(bug);
        let _ = bug;
        let table = database.table("t").unwrap();
        let commit = |value: &[u8]| {
            let mut txn = database.begin();
            txn.put(table, b"k", value).unwrap();
            txn.commit_with(Durability::Deferred).unwrap().lsn
        };
        let first = commit(b"1");
        let flush = runtime.flush_all().unwrap().expect("a flush of the first commit");
        let second = commit(b"2");
        let (sender, receiver) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            let waits = scope.spawn(move || {
                let asleep = runtime.sleepers.await_durable(first, true);
                sender.send(runtime.sleepers.wake_late()).unwrap();
                assert_eq!(runtime.sleepers.sleep(asleep, Duration::ZERO), Woken::Perhaps);
                runtime.wait_durable(second).unwrap();
                runtime.engine().durable() < second
            });
            let late = receiver.recv().unwrap();
            while runtime.sleepers.count() == 0 {
                thread::yield_now();
            }
            late.arrive();
            if bug.is_some() {
                return waits.join().unwrap();
            }
            runtime.flush_end(flush);
            waits.join().unwrap()
        })
    }

    /// Goal (L3, rule D8): a wake-up that comes late acknowledges no later commit. Method: the wake-up
    /// is held back until its thread sleeps for another commit, whose flush has not begun.
    #[test]
    fn a_late_wake_up_acknowledges_no_later_commit() {
        assert!(!trusts_a_late_wake_up(None));
    }

    #[cfg(feature = "seeded-bugs")]
    #[test]
    fn late_wake_ups_that_are_trusted_are_seen() {
        assert!(trusts_a_late_wake_up(Some(SeededBug::LateWakeTrusted)));
    }

    /// Goal: a transaction that waits too long for a lock ends and releases all its locks, so that
    /// others are let in; a transaction that gets its lock in time goes on. Method: one transaction
    /// that never ends, one that waits for the first, and one that waits for a lock of the second.
    #[test]
    fn a_wait_that_takes_too_long_ends_the_transaction() {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
        let options = Options::default().with_lock_timeout(Duration::from_millis(30));
        let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
        let table = database.table("t").unwrap();
        let first = database.begin();
        first.lock_key(table, b"a").unwrap();
        let mut second = database.begin();
        second.put(table, b"b", b"lost").unwrap();
        let began = Instant::now();
        assert_eq!(second.lock_key(table, b"a"), Err(EngineError::LockTimeout));
        assert!(began.elapsed() >= options.lock_timeout, "it gave up early");
        assert_eq!(database.begin().lock_key(table, b"b"), Ok(()));
        assert_eq!(second.put(table, b"c", b""), Err(EngineError::Ended));
        assert_eq!(database.begin().get(table, b"b"), Ok(None));
        drop(first);
        assert_eq!(database.begin().lock_key(table, b"a"), Ok(()));
        assert_eq!(database.runtime().engine().lock_wait_count(), 0);
    }

    /// Goal: a deadlock's victim lets others in at once, even when another transaction finds the
    /// cycle. Method: a bystander waits for the victim; the survivor commits only after the
    /// bystander.
    #[test]
    fn the_end_of_a_deadlock_wakes_bystanders() {
        let database = database();
        let table = database.table("t").unwrap();
        let (began, [a, b, c]) = (Instant::now(), [b"a", b"b", b"c"]);
        let old = database.begin();
        let young = database.begin();
        old.lock_key(table, a).unwrap();
        young.lock_key(table, b).unwrap();
        young.lock_key(table, c).unwrap();
        let waits = |count| {
            while database.runtime().engine().lock_wait_count() < count {
                thread::yield_now();
            }
        };
        thread::scope(|scope| {
            let bystander = scope.spawn(|| database.begin().lock_key(table, c));
            waits(1);
            let victim = scope.spawn(|| young.lock_key(table, a));
            waits(2);
            assert_eq!(old.lock_key(table, b), Ok(()));
            assert_eq!(bystander.join().unwrap(), Ok(()));
            assert_eq!(victim.join().unwrap(), Err(EngineError::Deadlock));
        });
        assert!(began.elapsed() < LOCK_POLL, "somebody slept until the poll");
    }
}
