//! Devices that are slow, wear out or lose a page at the worst moment.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use flagstone::{CommitError, Durability, Error, OpenError, Options, ReadError, Table, WriteError};
use flagstone_engine::{Budget, CommitBy, FrameKind, MergeTo, Techniques};
use flagstone_nand::{
    BlockIndex, Nand, NandError, PhysicalPage, Profile, SegmentFile, SimNand, SimStorage,
};

use crate::hooked::{Call, Hook, Hooked};
use crate::on::Database;

fn options(memory: usize) -> Options {
    Options::default().with_memory(memory)
}

fn chip(blocks: u32) -> SimNand {
    SimNand::new(&Profile::named("slc-2k").unwrap().with_block_count(blocks).unwrap(), 1)
}

fn willing() -> Hook {
    Arc::new(|_| Ok(()))
}

fn key(row: u32) -> [u8; 4] {
    row.to_be_bytes()
}

/// Goal: a large commit is never refused because another thread's flush takes its time, nor reported as
/// failed and then kept. Method: syncs that take long, one thread with small commits, one with large commits
/// that are claimed.
#[test]
fn commits_that_wait_for_a_slow_flush_are_not_refused() {
    let mut profile = Profile::named("segment-file").unwrap();
    profile.geometry.pages_per_block = 32;
    let profile = profile.with_block_count(512).unwrap();
    let device = SegmentFile::create(SimStorage::new(profile.timing), &profile).unwrap();
    let is_slow = Arc::new(AtomicBool::new(false));
    let slow = Arc::clone(&is_slow);
    let hook: Hook = Arc::new(move |call| {
        if call == Call::Sync && slow.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    });
    let database = Database::create_on(
        Hooked { device, hook },
        &options(4 << 20).with_techniques(|techniques| techniques.commit = CommitBy::Claims),
    )
    .unwrap();
    let (small, large) = (database.table("small").unwrap(), database.table("large").unwrap());
    let put_all = |round: u8| {
        let mut transaction = database.begin();
        (0..600).for_each(|row| transaction.put(large, &key(row), &[round; 100]).unwrap());
        transaction.commit_with(Durability::Immediate)
    };
    put_all(0).unwrap();
    database.runtime().checkpoint_now().unwrap();
    is_slow.store(true, Ordering::Relaxed);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for row in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let mut transaction = database.begin();
                transaction.put(small, &key(row), &[1; 20]).unwrap();
                transaction.commit_with(Durability::Immediate).unwrap();
            }
        });
        let results: Vec<_> = (1..8).map(|round| put_all(round).map(drop)).collect();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(results, [const { Ok(()) }; 7]);
    });
    assert!(database.stats().engine.claimed_pages > 0, "nothing was claimed");
}

/// A chip whose log has more commits than little memory holds, the rows in the log, and the page that was
/// programmed last.
fn full_log() -> (SimNand, Vec<(u32, u32)>, PhysicalPage) {
    let last = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&last);
    let hook: Hook = Arc::new(move |call| {
        if let Call::Program(page) = call {
            *seen.lock().unwrap() = Some(page);
        }
        Ok(())
    });
    let device = Hooked { device: chip(64), hook };
    let database = Database::create_on(device, &options(1 << 20)).unwrap();
    let table = database.table("t").unwrap();
    let mut rows = BTreeMap::new();
    for round in 0..150 {
        let mut transaction = database.begin();
        for step in 0..20 {
            let row = (round * 37 + step * 11) % 800;
            transaction.put(table, &key(row), &[key(round).as_slice(), &[7; 60]].concat()).unwrap();
            rows.insert(row, round);
        }
        transaction.commit_with(Durability::Immediate).unwrap();
    }
    let device = database.into_device().unwrap().device;
    let last = last.lock().unwrap().unwrap();
    (device, rows.into_iter().collect(), last)
}

fn rows(database: &flagstone::Database, table: Table) -> Vec<(u32, u32)> {
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes[..4].try_into().unwrap());
    let snapshot = database.snapshot().unwrap();
    let found = snapshot.range(table, ..).map(Result::unwrap);
    found.map(|(key, value)| (number(&key), number(&value))).collect()
}

/// Goal: a log page that reads once and never again causes an error, and does not lose the commits in it.
/// Method: little memory reads the log twice; each page that a restart reads more than once fails at each
/// reading but the first. The last page of all is left out: if it does not read at that time, it may have
/// been in flight.
#[test]
fn a_log_page_that_is_lost_between_two_readings_is_an_error() {
    let (device, expected, last) = full_log();
    let little = options(64 << 10);
    let reads = Arc::new(Mutex::new(BTreeMap::<PhysicalPage, u32>::new()));
    let counted = Arc::clone(&reads);
    let hook: Hook = Arc::new(move |call| {
        if let Call::Read(page) = call {
            *counted.lock().unwrap().entry(page).or_default() += 1;
        }
        Ok(())
    });
    let database = Database::open_on(Hooked { device: device.clone(), hook }, &little).unwrap();
    let again = reads.lock().unwrap().clone();
    assert_eq!(rows(&database, database.existing_table("t").unwrap().unwrap()), expected);
    let (mut refused, mut opened) = (0, 0);
    for (page, count) in again.into_iter().filter(|(page, count)| *count > 1 && *page != last) {
        for nth in 1..count {
            let seen = AtomicU32::new(0);
            let hook: Hook = Arc::new(move |call| match call {
                Call::Read(read) if read == page && seen.fetch_add(1, Ordering::Relaxed) >= nth => {
                    Err(NandError::Uncorrectable { page })
                }
                _ => Ok(()),
            });
            let device = Hooked { device: device.clone(), hook };
            let Ok(database) = Database::open_on(device, &little) else {
                refused += 1;
                continue;
            };
            opened += 1;
            let table = database.existing_table("t").unwrap().unwrap();
            // A lookup may need one of the lost pages.
            let found = catch_unwind(AssertUnwindSafe(|| rows(&database, table)));
            assert!(found.is_err() || found.unwrap() == expected, "{page:?} at reading {nth}");
        }
    }
    assert!(refused > 50, "{refused} refused, {opened} opened");
}

/// Goal: a chip that accepts no more writes shows all commits. Method: rows committed by a flag and rows in
/// the log; no program and no erase succeeds from the opening on.
#[test]
fn a_chip_that_is_worn_out_shows_what_was_committed() {
    for commit in [CommitBy::Flags, CommitBy::Log] {
        let options = options(1 << 20).with_techniques(|techniques| techniques.commit = commit);
        let database = Database::create_on(chip(64), &options).unwrap();
        let table = database.table("t").unwrap();
        let put = |rows: std::ops::Range<u32>, round: u32| {
            let mut transaction = database.begin();
            for row in rows {
                let value = [key(round).as_slice(), &[7; 90]].concat();
                transaction.put(table, &key(row), &value).unwrap();
            }
            transaction.commit_with(Durability::Immediate).unwrap();
        };
        put(0..600, 1);
        database.runtime().checkpoint_now().unwrap();
        database.table("later").unwrap();
        put(0..600, 2);
        put(10..20, 3);
        let flags = database.stats().engine.flag_commits;
        let hook: Hook = Arc::new(|call| match call {
            Call::Program(page) => Err(NandError::ProgramFailed { page }),
            Call::Erase(block) => Err(NandError::EraseFailed { block }),
            _ => Ok(()),
        });
        let device = Hooked { device: database.into_device().unwrap(), hook };
        let database = Database::open_on(device, &options).unwrap();
        assert!(database.existing_table("later").unwrap().is_some());
        let round = |row| if (10..20).contains(&row) { 3 } else { 2 };
        let expected: Vec<_> = (0..600).map(|row| (row, round(row))).collect();
        let table = database.existing_table("t").unwrap().unwrap();
        assert_eq!(rows(&database, table), expected, "{commit:?}");
        assert_eq!(flags > 0, commit == CommitBy::Flags);
        let mut transaction = database.begin();
        let refused = transaction.put(table, &key(1), b"x");
        assert_eq!(refused, Err(WriteError::WornOut));
    }
}

/// Goal: a block that fails its erase and takes no mark either is left out, and writing goes on.
#[test]
fn a_block_that_takes_no_mark_is_left_out() {
    let is_bad = Arc::new(AtomicBool::new(false));
    let bad = Arc::clone(&is_bad);
    let marks = Arc::new(AtomicU32::new(0));
    let marked = Arc::clone(&marks);
    let hook: Hook = Arc::new(move |call| match call {
        _ if !bad.load(Ordering::Relaxed) => Ok(()),
        Call::Erase(block) if block.0 % 9 == 5 => Err(NandError::EraseFailed { block }),
        Call::MarkBad(_) => {
            marked.fetch_add(1, Ordering::Relaxed);
            Err(NandError::Host { errno: 5 })
        }
        _ => Ok(()),
    });
    let device = Hooked { device: chip(64), hook };
    let database = Database::create_on(device, &options(1 << 20)).unwrap();
    let table = database.table("t").unwrap();
    is_bad.store(true, Ordering::Relaxed);
    for round in 0..2_000 {
        let mut transaction = database.begin();
        for step in 0..50 {
            let row = (round * 37 + step * 11) % 4_000;
            let value = [key(round).as_slice(), &[round as u8; 100]].concat();
            transaction.put(table, &key(row), &value).unwrap();
        }
        transaction.commit_with(Durability::Immediate).unwrap();
    }
    assert!(marks.load(Ordering::Relaxed) >= 3, "no block failed");
    assert!(database.check().unwrap().is_sound());
    let mut device = database.into_device().unwrap();
    device.hook = willing();
    let database = Database::open_on(device, &options(1 << 20)).unwrap();
    assert!(database.check().unwrap().is_sound());
}

/// A chip after `rounds` commits, each with a checkpoint, and one more commit without; every block that ever
/// held a record is erased.
fn without_records(rounds: u32) -> Hooked<SimNand> {
    let programs = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&programs);
    let hook: Hook = Arc::new(move |call| {
        if let Call::Program(page) = call {
            seen.lock().unwrap().push(page);
        }
        Ok(())
    });
    let device = Hooked { device: chip(32), hook };
    let block_pages = device.geometry().pages_per_block;
    let database = Database::create_on(device, &options(1 << 20)).unwrap();
    let table = database.table("t").unwrap();
    let mut blocks = BTreeSet::new();
    for round in 0..=rounds {
        let mut transaction = database.begin();
        let value = (round as u16).to_le_bytes().repeat(20);
        (0..40).for_each(|row| transaction.put(table, &key(row), &value).unwrap());
        transaction.commit_with(Durability::Immediate).unwrap();
        if round < rounds {
            database.runtime().checkpoint_now().unwrap();
        }
        // A checkpoint ends with both copies of its record.
        let last: Vec<_> =
            std::mem::take(&mut *programs.lock().unwrap()).into_iter().rev().collect();
        let last = last.into_iter().take(if round < rounds { 2 } else { 0 });
        blocks.extend(last.map(|page| BlockIndex(page.number() / block_pages)));
    }
    assert!(blocks.len() >= 4, "{blocks:?}");
    let mut device = database.into_device().unwrap();
    device.hook = willing();
    blocks.into_iter().for_each(|block| assert!(device.erase(block).is_ok()));
    device
}

/// Goal: a device whose records are lost opens by a scan where the whole log is there, and opens again after
/// any end of that session; otherwise each opening says so, and none shows some rows without the others.
#[test]
fn a_device_without_records_shows_everything_or_nothing() {
    let mut device = without_records(100);
    for opening in 0..3 {
        let database = Database::open_on(device, &options(1 << 20)).unwrap();
        let table = database.table("t").unwrap();
        assert_eq!(database.recovery().full_scan, opening == 0);
        let value = database.begin().get(table, &key(7)).unwrap();
        assert_eq!(value, Some(100_u16.to_le_bytes().repeat(20)), "opening {opening}");
        device = database.into_device().unwrap();
    }
    let device = without_records(3_000);
    for _ in 0..2 {
        let refused = Database::open_on(device.clone(), &options(1 << 20)).map(drop);
        assert!(matches!(refused, Err(OpenError::Corrupt(_))), "{refused:?}");
    }
}

/// Goal: the next call on a failed device gets the error of the device, and no call waits for the device.
/// Method: each sync of a merge fails in turn; closing, merging and a transaction that has left memory come
/// after it.
#[test]
fn nobody_waits_for_a_device_that_has_failed() {
    let mut profile = Profile::named("segment-file").unwrap();
    profile.geometry.pages_per_block = 32;
    let profile = profile.with_block_count(256).unwrap();
    let mut failures = 0;
    for nth in 0..12 {
        let device = SegmentFile::create(SimStorage::new(profile.timing), &profile).unwrap();
        let left = Arc::new(AtomicU32::new(u32::MAX));
        let counted = Arc::clone(&left);
        let hook: Hook = Arc::new(move |call| match call {
            Call::Sync if counted.load(Ordering::Relaxed) == 0 => Err(NandError::Host { errno: 5 }),
            Call::Sync => {
                counted.fetch_sub(1, Ordering::Relaxed);
                Ok(())
            }
            _ => Ok(()),
        });
        let database = Database::create_on(Hooked { device, hook }, &options(256 << 10)).unwrap();
        let table = database.table("t").unwrap();
        let mut transaction = database.begin();
        (0..300).for_each(|row| transaction.put(table, &key(row), &[7; 200]).unwrap());
        transaction.commit_with(Durability::Deferred).unwrap();
        let mut open = database.begin();
        (0..2_000).for_each(|row| open.put(table, &key(row), &[8; 200]).unwrap());
        left.store(nth, Ordering::Relaxed);
        let merged = database.merge();
        failures += u32::from(merged.is_err());
        let (told, answer) = mpsc::channel();
        thread::spawn(move || {
            let is_refused = merged.is_err().then(|| {
                let read = open.get(table, &key(1));
                assert!(matches!(read, Ok(Some(_)) | Err(ReadError::Poisoned)), "{read:?}");
                assert!(open.commit().is_err());
                assert_eq!(database.merge(), Err(CommitError::Poisoned));
                assert_eq!(database.close(), Err(CommitError::Poisoned));
            });
            told.send(is_refused).unwrap();
        });
        let in_time = answer.recv_timeout(Duration::from_secs(60));
        assert!(in_time.is_ok(), "somebody waits for ever after sync {nth}");
    }
    assert!(failures >= 3, "{failures} syncs of a merge failed");
}

type Pages = Arc<Mutex<Vec<PhysicalPage>>>;

/// A hook that notes the page read last, and lets some pages not be read.
fn losing() -> (Hook, Pages, Pages) {
    let (last, lost) = (Pages::default(), Pages::default());
    let (seen, gone) = (Arc::clone(&last), Arc::clone(&lost));
    let hook: Hook = Arc::new(move |call| match call {
        Call::Read(page) if gone.lock().unwrap().contains(&page) => {
            Err(NandError::Uncorrectable { page })
        }
        Call::Read(page) => {
            *seen.lock().unwrap() = vec![page];
            Ok(())
        }
        _ => Ok(()),
    });
    (hook, last, lost)
}

/// Goal: a restart leaves no more changes in memory than there were before, although the log holds many more;
/// a leaf that does not read does not keep other leaves from being merged. Method: changes of all rows, many
/// times the size of memory, no clean end, and the first leaf lost; the number of waiting changes before and
/// after, where restart runs out of memory and where it has the memory of the frames.
#[test]
fn changes_meet_their_leaves_beside_one_that_does_not_read() {
    const ROWS: u32 = 8_000;
    let little = options(256 << 10);
    let roomy = options(1 << 20).with_log_pages(768).with_techniques(|techniques| {
        (techniques.budget, techniques.frame_share) = (Budget::Divided, 0.75);
    });
    for (is_lost, options) in [(false, &little), (true, &little), (false, &roomy), (true, &roomy)] {
        let (hook, last, lost) = losing();
        let database = Database::create_on(Hooked { device: chip(128), hook }, options).unwrap();
        let table = database.table("t").unwrap();
        database.load_sorted(table, (0..ROWS).map(|row| (key(row), [1; 100]))).unwrap();
        database.merge().unwrap();
        let database = Database::open_on(database.into_device().unwrap(), options).unwrap();
        let table = database.table("t").unwrap();
        database.begin().get(table, &key(0)).unwrap();
        if is_lost {
            let page = last.lock().unwrap()[0];
            lost.lock().unwrap().push(page);
        }
        let database = Database::open_on(database.into_device().unwrap(), options).unwrap();
        let table = database.table("t").unwrap();
        let is_log_full = || {
            let space = database.runtime().space();
            space.log_used_pages() * 100 > space.log_budget_pages() * 57
        };
        let mut expected = Vec::new();
        for number in 0.. {
            let mut transaction = database.begin();
            for row in number * 10..number * 10 + 10 {
                let (row, value) = (row * 4_099 % ROWS, [number as u8; 100]);
                transaction.put(table, &key(row), &value).unwrap();
                if row == ROWS / 2 {
                    expected = value.to_vec();
                }
            }
            transaction.commit_with(Durability::Immediate).unwrap();
            // The next checkpoint is near.
            if number * 10 > ROWS && is_log_full() {
                break;
            }
        }
        let before = database.stats().engine.deltas;
        let database = Database::open_on(database.into_device().unwrap(), options).unwrap();
        let table = database.table("t").unwrap();
        let (after, commits) = (database.stats().engine.deltas, database.recovery().commits);
        assert!(commits * 8 > before, "{commits} commits, {before} changes waited");
        assert!(after <= before + before / 10, "{before} changes, {after} afterwards");
        assert_eq!(database.begin().get(table, &key(ROWS / 2)), Ok(Some(expected)));
    }
}

/// Goal: a leaf that does not read costs its own rows, and stops neither changes of other rows, nor
/// checkpoints that copy or merge, nor claims. The same holds for the root of a small table. Method: both
/// fail at every reading, with changes that wait for them; all other changes are far from them.
#[test]
fn a_leaf_that_does_not_read_stops_nothing_else() {
    const ROWS: u32 = 40_000;
    const BAD: u32 = ROWS / 2;
    for commit in [CommitBy::Log, CommitBy::Claims] {
        let options = options(256 << 10).with_techniques(|techniques| techniques.commit = commit);
        let (hook, last, lost) = losing();
        let device = Hooked { device: chip(128), hook };
        let database = Database::create_on(device, &options).unwrap();
        let small = database.table("small").unwrap();
        let table = database.table("t").unwrap();
        let row = |row: u32| (key(row), [1; 100]);
        database.load_sorted(small, (0..5).map(row)).unwrap();
        database.load_sorted(table, (0..ROWS).map(row)).unwrap();
        database.merge().unwrap();
        let mut device = database.into_device().unwrap();
        for (name, row) in [("t", BAD), ("small", 3)] {
            let database = Database::open_on(device, &options).unwrap();
            let table = database.table(name).unwrap();
            database.begin().get(table, &key(row)).unwrap();
            let page = last.lock().unwrap()[0];
            lost.lock().unwrap().push(page);
            device = database.into_device().unwrap();
        }
        let database = Database::open_on(device, &options).unwrap();
        let [small, table] = ["small", "t"].map(|name| database.table(name).unwrap());
        let put = |table, rows: std::ops::Range<u32>, fill: u8| {
            let mut transaction = database.begin();
            rows.for_each(|row| transaction.put(table, &key(row), &[fill; 100]).unwrap());
            transaction.commit_with(Durability::Immediate).map(drop)
        };
        for (table, row) in [(table, BAD), (small, 3)] {
            assert_eq!(put(table, row..row + 1, 2), Ok(()));
            let found = database.begin().get(table, &key(row + 1));
            assert!(matches!(found, Err(ReadError::Storage(_))), "{found:?}");
        }
        for round in 3..100 {
            let first = u32::from(round) % 10 * 300;
            let far = first..first + 300;
            assert_eq!(put(table, far, round), Ok(()), "{commit:?}, round {round}");
            assert_eq!(put(table, BAD - 10..BAD + 10, round), Ok(()), "{commit:?}, round {round}");
            assert_eq!(database.begin().get(table, &key(BAD)).unwrap(), Some(vec![round; 100]));
        }
        database.runtime().checkpoint_now().unwrap();
        let merges = database.stats().engine.merges;
        assert_eq!(database.merge(), Ok(()));
        assert!(database.stats().engine.merges >= merges);
        let device = database.into_device().unwrap();
        let database = Database::open_on(device, &options).unwrap();
        let table = database.table("t").unwrap();
        let found = |row| database.begin().get(table, &key(row));
        assert_eq!(found(2_800), Ok(Some(vec![99; 100])));
        assert_eq!(found(BAD - 500), Ok(Some(vec![1; 100])));
        // There is no way to know any more whether leaf or change is newer.
        assert!(matches!(found(BAD), Err(ReadError::Storage(_))), "{commit:?}");
    }
}

/// Goal: leaves that are emptied beside one that does not read, and would join it, stop nothing. Method: a
/// leaf that fails at every reading, and all rows around it deleted.
#[test]
fn emptied_leaves_beside_one_that_does_not_read_stop_nothing() {
    const ROWS: u32 = 20_000;
    const BAD: u32 = ROWS / 2;
    let options = options(256 << 10);
    let (hook, last, lost) = losing();
    let database = Database::create_on(Hooked { device: chip(128), hook }, &options).unwrap();
    let table = database.table("t").unwrap();
    database.load_sorted(table, (0..ROWS).map(|row| (key(row), [1; 100]))).unwrap();
    database.merge().unwrap();
    let device = database.into_device().unwrap();
    let database = Database::open_on(device, &options).unwrap();
    let table = database.table("t").unwrap();
    database.begin().get(table, &key(BAD)).unwrap();
    let page = last.lock().unwrap()[0];
    let database = Database::open_on(database.into_device().unwrap(), &options).unwrap();
    let table = database.table("t").unwrap();
    lost.lock().unwrap().push(page);
    for far in [60, 120, 600] {
        let mut transaction = database.begin();
        (BAD - far..BAD - 20).for_each(|row| transaction.delete(table, &key(row)).unwrap());
        (BAD + 20..BAD + far).for_each(|row| transaction.delete(table, &key(row)).unwrap());
        transaction.commit_with(Durability::Immediate).unwrap();
        assert_eq!(database.merge(), Ok(()), "{far} rows");
        database.runtime().checkpoint_now().unwrap();
    }
    assert!(database.begin().get(table, &key(BAD)).is_err(), "the leaf reads");
    assert_eq!(database.begin().get(table, &key(BAD + 30)), Ok(None));
    assert_eq!(database.begin().get(table, &key(BAD + 700)), Ok(Some(vec![1; 100])));
    assert_eq!(database.close(), Ok(()));
}

/// Goal: the same where the log holds more than memory, so that a restart would have to merge.
#[test]
fn a_chip_that_is_worn_out_opens_with_little_memory() {
    let database = Database::create_on(chip(64), &options(1 << 20)).unwrap();
    let table = database.table("t").unwrap();
    for first in (0..3_000).step_by(100) {
        let mut transaction = database.begin();
        for row in first..first + 100 {
            transaction.put(table, &key(row), &[key(7).as_slice(), &[7; 90]].concat()).unwrap();
        }
        transaction.commit_with(Durability::Immediate).unwrap();
    }
    let hook: Hook = Arc::new(|call| match call {
        Call::Program(page) => Err(NandError::ProgramFailed { page }),
        Call::Erase(block) => Err(NandError::EraseFailed { block }),
        _ => Ok(()),
    });
    let device = Hooked { device: database.into_device().unwrap(), hook };
    let database = Database::open_on(device, &options(96 << 10)).unwrap();
    let table = database.existing_table("t").unwrap().unwrap();
    assert_eq!(rows(&database, table), (0..3_000).map(|row| (row, 7)).collect::<Vec<_>>());
    let mut transaction = database.begin();
    let refused = transaction.put(table, &key(1), b"x");
    assert_eq!(refused, Err(WriteError::WornOut));
}

/// Goal: closing a database whose device has failed gives the error, although the session has logged nothing.
/// Method: changes of an earlier session, whose merge fails.
#[test]
fn a_database_that_failed_is_not_closed_as_if_nothing_was() {
    let options = options(1 << 20);
    let database = Database::create_on(chip(64), &options).unwrap();
    let table = database.table("t").unwrap();
    let mut transaction = database.begin();
    (0..200).for_each(|row| transaction.put(table, &key(row), &[1; 100]).unwrap());
    transaction.commit().unwrap();
    database.clone().close().unwrap();
    let hook: Hook = Arc::new(|call| match call {
        Call::Program(_) => Err(NandError::Host { errno: 5 }),
        _ => Ok(()),
    });
    let device = Hooked { device: database.into_device().unwrap(), hook };
    let database = Database::open_on(device, &options).unwrap();
    let untouched = database.clone();
    assert!(!database.runtime().engine().has_logged());
    assert!(database.merge().is_err(), "nothing was written");
    assert!(!database.runtime().engine().has_logged());
    assert_eq!(database.close(), Err(CommitError::Poisoned));
    assert_eq!(rows(&untouched, untouched.table("t").unwrap()).len(), 200);
}

/// Goal: a transaction that has read a commit which a failure of the device takes back reads nothing more: a
/// second read would miss the other half of that commit. A transaction that begins later reads the durable
/// state, all of it. Method: two rows that each commit changes together, read before and after the device
/// fails.
#[test]
fn a_failure_tears_no_transaction_that_reads() {
    let fails = Arc::new(AtomicBool::new(false));
    let failing = Arc::clone(&fails);
    let hook: Hook = Arc::new(move |call| match call {
        Call::Program(_) if failing.load(Ordering::Relaxed) => Err(NandError::Host { errno: 5 }),
        _ => Ok(()),
    });
    let device = Hooked { device: chip(64), hook };
    let database = Database::create_on(device, &options(1 << 20)).unwrap();
    let table = database.table("t").unwrap();
    let put_all = |rows: &[u32], value: &[u8], durability| {
        let mut transaction = database.begin();
        rows.iter().for_each(|row| transaction.put(table, &key(*row), value).unwrap());
        transaction.commit_with(durability).map(drop)
    };
    put_all(&[1, 2], b"old", Durability::Immediate).unwrap();
    put_all(&[1, 2], b"new", Durability::Deferred).unwrap();
    let (reader, fresh, mut writer) = (database.begin(), database.begin(), database.begin());
    assert_eq!(reader.get(table, &key(1)), Ok(Some(b"new".to_vec())));
    assert_eq!(writer.get(table, &key(1)), Ok(Some(b"new".to_vec())));
    fails.store(true, Ordering::Relaxed);
    assert!(put_all(&[3], b"new", Durability::Immediate).is_err());
    assert_eq!(reader.get(table, &key(2)), Err(ReadError::Poisoned));
    assert_eq!(
        fresh.range(table, ..).next().map(|row| row.map(drop)),
        Some(Err(ReadError::Poisoned))
    );
    assert_eq!(writer.put(table, &key(2), b"x"), Err(WriteError::Poisoned));
    let later = database.begin();
    for row in [1, 2] {
        assert_eq!(later.get(table, &key(row)), Ok(Some(b"old".to_vec())));
    }
}

/// Goal: after a failure of the device, no read shows a part of a commit that was not durable. Method:
/// deferred commits, from two rows to more than memory takes, by every way in which an engine keeps them,
/// then a program that fails; a transaction that begins later reads the rows, and so does the next session.
#[test]
fn a_failure_takes_back_whole_commits() {
    let with = |change: fn(&mut Techniques)| options(1 << 20).with_techniques(change);
    let ways = [
        ("default", options(1 << 20)),
        ("little memory", options(96 << 10)),
        ("logged", with(|techniques| techniques.commit = CommitBy::Log)),
        ("claimed", with(|techniques| techniques.commit = CommitBy::Claims)),
        ("ahead", with(|techniques| techniques.frames = FrameKind::Ahead)),
        ("merged in memory", with(|techniques| techniques.merge_to = MergeTo::Frame)),
    ];
    const ROWS: u32 = 3_000;
    const FAR: u32 = 2_000;
    let base_of = |options: &Options| {
        let device = Hooked { device: chip(64), hook: willing() };
        let database = Database::create_on(device, options).unwrap();
        let table = database.table("t").unwrap();
        for first in (0..ROWS).step_by(100) {
            let mut transaction = database.begin();
            let mut put = |row: u32| transaction.put(table, &key(row), &[1; 50]).unwrap();
            (first..first + 100).for_each(&mut put);
            transaction.commit().unwrap();
        }
        database.merge().unwrap();
        database.into_device().unwrap()
    };
    let show = |values: &[u8]| {
        let count = |value| values.iter().filter(|other| **other == value).count();
        format!("{} old, {} new", count(1), count(2))
    };
    let cases = || {
        let counts = [1, 20, 300, 1_000, 1_800];
        counts
            .into_iter()
            .flat_map(|count| [0, 1, 2, 5, 9, 20, 40].map(|programs| (count, programs)))
    };
    for (way, options) in ways {
        for (count, programs) in cases() {
            let left = Arc::new(AtomicU32::new(u32::MAX));
            let counter = Arc::clone(&left);
            let hook: Hook = Arc::new(move |call| match call {
                Call::Program(_) if counter.load(Ordering::Relaxed) == 0 => {
                    Err(NandError::Host { errno: 5 })
                }
                Call::Program(_) => {
                    counter.fetch_sub(1, Ordering::Relaxed);
                    Ok(())
                }
                _ => Ok(()),
            });
            let mut device = base_of(&options);
            device.hook = hook;
            let database = Database::open_on(device, &options).unwrap();
            let table = database.table("t").unwrap();
            // Some of the leaves are in memory, others are not.
            let changed: Vec<u32> = (0..count).chain([FAR]).collect();
            assert!(database.begin().get(table, &key(0)).unwrap().is_some());
            left.store(programs, Ordering::Relaxed);
            let put_all = |rows: &[u32], durability| -> Result<(), Error> {
                let mut transaction = database.begin();
                let put = |row: &u32| transaction.put(table, &key(*row), &[2; 50]);
                rows.iter().try_for_each(put)?;
                Ok(transaction.commit_with(durability).map(drop)?)
            };
            // The commit may be refused: the failure may come while it takes room.
            put_all(&changed, Durability::Deferred).ok();
            let failed = (0..1_000).map(|row| put_all(&[ROWS + row], Durability::Immediate));
            assert!(failed.into_iter().any(|result| result.is_err()), "{way}, {count} rows");
            let values = |database: &Database<_>| {
                let transaction = database.begin();
                let table = database.existing_table("t")?.unwrap();
                let value = |row: &u32| Ok(transaction.get(table, &key(*row))?.unwrap()[0]);
                changed.iter().map(value).collect::<Result<Vec<u8>, Error>>()
            };
            let is_one = |values: &[u8]| values.iter().all(|value| *value == values[0]);
            let read = values(&database);
            match &read {
                Ok(values) => assert!(is_one(values), "{way}, {count} rows: {}", show(values)),
                Err(error) => assert!(matches!(error, Error::Poisoned), "{way}, {count} rows"),
            }
            left.store(u32::MAX, Ordering::Relaxed);
            let database = Database::open_on(database.into_device().unwrap(), &options).unwrap();
            let kept = values(&database).unwrap();
            assert!(is_one(&kept), "{way}, {count} rows, after a restart: {}", show(&kept));
            let is_there = |values: &[u8]| values[0] == 2;
            let was_lost = read.is_ok_and(|values| is_there(&values)) && !is_there(&kept);
            assert!(!was_lost, "{way}, {count} rows were read that no session finds");
        }
    }
}

/// Goal: in the child of a fork every call gives the error that the database belongs to another process; rows
/// that it had read stay readable. Method: a device that refuses each call as a file does in a child, from a
/// moment on.
#[test]
fn a_child_of_a_fork_is_told_whose_the_database_is() {
    let is_child = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_child);
    let hook: Hook = Arc::new(move |_| match seen.load(Ordering::Relaxed) {
        true => Err(NandError::OtherProcess),
        false => Ok(()),
    });
    for durability in [Durability::Immediate, Durability::Group, Durability::Deferred] {
        is_child.store(false, Ordering::Relaxed);
        let device = Hooked { device: chip(64), hook: Arc::clone(&hook) };
        let database = Database::create_on(device, &options(1 << 20)).unwrap();
        let table = database.table("t").unwrap();
        let put = |row: u32, durability| -> Result<(), Error> {
            let mut transaction = database.begin();
            transaction.put(table, &key(row), &[1; 100])?;
            Ok(transaction.commit_with(durability).map(drop)?)
        };
        put(1, Durability::Immediate).unwrap();
        let snapshot = database.snapshot().unwrap();
        is_child.store(true, Ordering::Relaxed);
        let committed = put(2, durability).and_then(|()| Ok(database.flush()?));
        assert!(matches!(committed, Err(Error::OtherProcess)), "{durability:?}");
        assert!(matches!(put(3, durability), Err(Error::OtherProcess)), "{durability:?}");
        assert_eq!(snapshot.get(table, &key(1)).unwrap(), Some(vec![1; 100]));
        assert_eq!(database.merge(), Err(CommitError::OtherProcess));
        assert_eq!(database.clone().close(), Err(CommitError::OtherProcess));
        drop(snapshot);
        // The parent has the rows that it had.
        is_child.store(false, Ordering::Relaxed);
        let device = database.into_device().unwrap();
        let database = Database::open_on(device, &options(1 << 20)).unwrap();
        assert_eq!(database.snapshot().unwrap().len(database.table("t").unwrap()), Ok(1));
    }
}
