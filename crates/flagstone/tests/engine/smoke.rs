//! The library on a simulated chip, end to end.

use std::time::Duration;

use flagstone::{CommitError, Durability, Options, WriteError};
use flagstone_nand::{Profile, SimNand};

use crate::on::Database;

fn device(blocks: u32) -> SimNand {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(blocks).unwrap();
    SimNand::new(&profile, 1)
}

#[test]
fn small_things_work_and_survive_reopening() {
    let options = Options::default().with_memory(1 << 20);
    let database = Database::create_on(device(64), &options).unwrap();
    let table = database.table("t").unwrap();
    let mut transaction = database.begin();
    for number in 0..1000u32 {
        transaction.put(table, &number.to_be_bytes(), &[7; 100]).unwrap();
    }
    transaction.commit().unwrap();
    let mut transaction = database.begin();
    transaction.patch(table, &5u32.to_be_bytes(), 10, b"hello").unwrap();
    transaction.delete(table, &6u32.to_be_bytes()).unwrap();
    assert_eq!(&transaction.get(table, &5u32.to_be_bytes()).unwrap().unwrap()[10..15], b"hello");
    assert_eq!(transaction.get(table, &6u32.to_be_bytes()).unwrap(), None);
    assert_eq!(transaction.len(table).unwrap(), 999);
    transaction.commit().unwrap();
    let device = database.into_device().unwrap();
    let database = Database::open_on(device, &options).unwrap();
    let table = database.table("t").unwrap();
    let transaction = database.begin();
    assert_eq!(&transaction.get(table, &5u32.to_be_bytes()).unwrap().unwrap()[10..15], b"hello");
    assert_eq!(transaction.len(table).unwrap(), 999);
    let backward: Vec<_> = transaction.range(table, ..).rev().map(|row| row.unwrap().0).collect();
    assert_eq!(backward.len(), 999);
    assert!(backward.is_sorted_by(|a, b| a > b));
    drop(transaction);
    println!("{:?}", database.recovery());
    let report = database.check().unwrap();
    assert!(report.is_sound(), "{report:?}");
    database.close().unwrap();
}

#[test]
fn many_commits_with_merges_and_checkpoints() {
    let options = Options::default().with_memory(128 << 10);
    let mut database = Database::create_on(device(64), &options).unwrap();
    let mut model = std::collections::BTreeMap::new();
    let mut state = 1u64;
    for round in 0..6 {
        let table = database.table("t").unwrap();
        for step in 0..2000u32 {
            let mut transaction = database.begin();
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let key = ((state >> 33) % 5000).to_be_bytes();
            if state >> 62 == 0 {
                transaction.delete(table, &key).unwrap();
                model.remove(&key);
            } else {
                let value = vec![(state >> 40) as u8; 20 + (state >> 50) as usize % 100];
                transaction.put(table, &key, &value).unwrap();
                model.insert(key, value);
            }
            let durability =
                if step % 8 == 0 { Durability::Immediate } else { Durability::Deferred };
            transaction.commit_with(durability).unwrap();
        }
        database.flush().unwrap();
        let stats = database.stats();
        println!("{round}: {:?}", stats.engine);
        let report = database.check().unwrap();
        assert!(report.is_sound(), "{report:?}");
        assert_eq!(report.leaked_pages, 0, "{report:?}");
        let device = database.into_device().unwrap();
        database = Database::open_on(device, &options).unwrap();
        println!("{:?}", database.recovery());
        let table = database.table("t").unwrap();
        let transaction = database.begin();
        let rows: Vec<_> = transaction.range(table, ..).map(|row| row.unwrap()).collect();
        assert_eq!(rows.len(), model.len());
        for ((key, value), (model_key, model_value)) in rows.iter().zip(&model) {
            assert_eq!(key, model_key);
            assert_eq!(value, model_value);
        }
        let report = database.check().unwrap();
        assert!(report.is_sound(), "{report:?}");
    }
}

/// Goal: a change that takes back a larger one of its own transaction makes the transaction smaller.
#[test]
fn a_transaction_may_shrink() {
    let database = Database::create_on(device(64), &Options::default().with_memory(1 << 20));
    let database = database.unwrap();
    let table = database.table("t").unwrap();
    let mut transaction = database.begin();
    for number in 0..100u32 {
        transaction.put(table, &number.to_be_bytes(), &[7; 400]).unwrap();
    }
    for number in 0..100u32 {
        transaction.delete(table, &number.to_be_bytes()).unwrap();
    }
    transaction.put(table, b"kept", b"1").unwrap();
    transaction.commit().unwrap();
    assert_eq!(database.begin().len(table).unwrap(), 1);
}

#[test]
fn large_values_and_large_transactions() {
    let options = Options::default().with_memory(256 << 10);
    let database = Database::create_on(device(256), &options).unwrap();
    let table = database.table("t").unwrap();
    let mut transaction = database.begin();
    let big: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
    transaction.put(table, b"big", &big).unwrap();
    transaction.commit().unwrap();
    let mut transaction = database.begin();
    for number in 0..20_000u32 {
        transaction.put(table, &number.to_be_bytes(), &[9; 50]).unwrap();
    }
    assert_eq!(transaction.get(table, &77u32.to_be_bytes()).unwrap().unwrap(), [9; 50]);
    assert_eq!(transaction.len(table).unwrap(), 20_001);
    transaction.commit().unwrap();
    println!("{:?}", database.stats().engine);
    let transaction = database.begin();
    assert_eq!(transaction.get(table, b"big").unwrap().unwrap(), big);
    assert_eq!(transaction.len(table).unwrap(), 20_001);
    drop(transaction);
    let device = database.into_device().unwrap();
    let database = Database::open_on(device, &options).unwrap();
    println!("{:?}", database.recovery());
    let table = database.table("t").unwrap();
    let transaction = database.begin();
    assert_eq!(transaction.get(table, b"big").unwrap().unwrap(), big);
    assert_eq!(transaction.len(table).unwrap(), 20_001);
}

/// Goal: a log that holds more than memory is put back by reading it twice, with merges on the
/// way (rule D11). Method: patches of rows loaded before, many commits a flush, little memory.
#[test]
fn a_log_longer_than_memory_is_put_back() {
    let mut options = Options::default().with_memory(128 << 10);
    options.log_pages = 1500;
    let mut database = Database::create_on(device(128), &options).unwrap();
    let table = database.table("t").unwrap();
    let mut transaction = database.begin();
    let mut model = vec![[0u8; 60]; 6000];
    for (number, row) in model.iter().enumerate() {
        transaction.put(table, &(number as u64).to_be_bytes(), row).unwrap();
    }
    transaction.commit().unwrap();
    let mut state = 7u64;
    for round in 0..3 {
        let table = database.table("t").unwrap();
        for step in 0..20_000u32 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let number = ((state >> 33) % 6000) as usize;
            let bytes = state.to_le_bytes();
            let mut transaction = database.begin();
            transaction.patch(table, &(number as u64).to_be_bytes(), 4, &bytes).unwrap();
            model[number][4..12].copy_from_slice(&bytes);
            transaction.commit_with(Durability::Deferred).unwrap();
            if step % 12 == 0 {
                database.flush().unwrap();
            }
        }
        database.flush().unwrap();
        let count = |database: &Database<SimNand>, table| {
            let transaction = database.begin();
            let rows = transaction.range(table, ..).map(|row| row.unwrap());
            rows.zip(&model).filter(|(row, model)| row.1 != model[..]).count()
        };
        assert_eq!(count(&database, table), 0, "round {round} before reopening");
        let device = database.into_device().unwrap();
        database = Database::open_on(device, &options).unwrap();
        let table = database.table("t").unwrap();
        println!("{:?} {:?}", database.recovery(), database.stats().engine);
        assert_eq!(count(&database, table), 0, "round {round} after reopening");
    }
}

/// Goal: the largest values of options are valid. Method: the largest memory and the longest wait for a lock,
/// on a chip and in a file that grows.
#[test]
fn options_without_end_overflow_nothing() {
    let options = Options::default().with_memory(usize::MAX);
    let options = options.with_lock_timeout(Duration::MAX).with_checkpoint_commits(u64::MAX);
    let database = Database::create_on(device(64), &options).unwrap();
    let rows = |table| (0..3_000_u32).map(move |row| (table, row.to_be_bytes()));
    let table = database.table("t").unwrap();
    for (table, key) in rows(table) {
        let mut transaction = database.begin();
        transaction.put(table, &key, &[7; 200]).unwrap();
        transaction.commit().unwrap();
    }
    database.merge().unwrap();
    let device = database.into_device().unwrap();
    let database = Database::open_on(device, &options).unwrap();
    let table = database.table("t").unwrap();
    assert_eq!(database.snapshot().unwrap().len(table), Ok(3_000));
    assert!(database.check().unwrap().is_sound());

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let database = flagstone::Database::create(&path, &options).unwrap();
    let table = database.table("t").unwrap();
    let mut transaction = database.begin();
    for (table, key) in rows(table) {
        transaction.put(table, &key, &[7; 2_000]).unwrap();
    }
    transaction.commit().unwrap();
    database.close().unwrap();
    let database = flagstone::Database::open_read_only(&path, &options).unwrap();
    let table = database.table("t").unwrap();
    assert_eq!(database.snapshot().unwrap().len(table), Ok(3_000));
}

/// Goal: a wait for more commits to share a flush has an end, since a lone commit has to end too. Method: the
/// longest duration, one just above the limit, and the limit itself.
#[test]
fn a_group_commit_that_waits_without_end_is_refused() {
    let made = |delay| {
        let options = Options::default().with_group_commit(delay, 1.0);
        Database::create_on(device(64), &options).map(drop)
    };
    for delay in [Duration::MAX, Duration::from_millis(60_001)] {
        let refused = made(delay).unwrap_err().to_string();
        assert!(refused.contains("`group_delay`") && refused.contains("a minute"), "{refused}");
    }
    made(Duration::from_secs(60)).unwrap();
}

/// Goal: two transactions of one thread do not wait for each other for ever unless the options ask for that,
/// on one row, and on different ones once one of them has locked ranges. Method: a limit that is short for
/// the test's sake.
#[test]
fn two_transactions_of_a_thread_do_not_hang() {
    let limit = Options::default().lock_timeout;
    assert!((Duration::from_secs(1)..=Duration::from_secs(60)).contains(&limit), "{limit:?}");
    let options = Options::default().with_memory(1 << 20);
    let options = options.with_lock_timeout(Duration::from_millis(1));
    let database = Database::create_on(device(128), &options).unwrap();
    let table = database.table("t").unwrap();
    let mut first = database.begin();
    for row in 0..6_000_u32 {
        first.put(table, &(row * 2).to_be_bytes(), b"first").unwrap();
    }
    for row in [0, 5_001_u32] {
        let mut second = database.begin();
        let refused = second.put(table, &row.to_be_bytes(), b"second");
        assert_eq!(refused, Err(WriteError::LockTimeout), "row {row}");
        assert_eq!(second.commit().map(drop), Err(CommitError::Ended));
    }
    first.commit().unwrap();
    assert_eq!(database.snapshot().unwrap().len(table), Ok(6_000));
}

/// Goal: nodes address 32 KiB; larger logical pages are refused, and not filled with rows that cannot be
/// found again.
#[test]
fn logical_pages_beyond_what_nodes_address_are_refused() {
    let profile = Profile::named("pslc-3d").unwrap().with_block_count(20).unwrap();
    assert_eq!(profile.geometry.page_size, 16_384);
    let options = |parts| Options::default().with_memory(4 << 20).with_parts(parts);
    let made = |parts| Database::create_on(SimNand::new(&profile, 1), &options(parts)).err();
    assert!(made(2).is_none());
    let refused = made(3).unwrap().to_string();
    assert!(refused.contains("`parts`") && refused.contains("32 KiB"), "{refused}");
}
