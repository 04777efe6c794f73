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
