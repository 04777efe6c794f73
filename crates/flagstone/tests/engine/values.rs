//! Values with pages of their own: their room in a checkpoint's record, and the holders of room that give way
//! to them.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use flagstone::{Durability, Error, Options, ReadError, Table, TableError};
use flagstone_engine::CommitBy;
use flagstone_nand::{Crashable, FaultPlan, Nand, Profile, SegmentFile, SimNand, SimStorage};

use crate::on::Database;

fn chip(name: &str, blocks: u32) -> SimNand {
    SimNand::new(&Profile::named(name).unwrap().with_block_count(blocks).unwrap(), 1)
}

fn options() -> Options {
    Options::default().with_memory(256 << 10)
}

fn set(
    database: &flagstone::Database,
    table: Table,
    key: &[u8],
    value: &[u8],
) -> Result<(), Error> {
    let mut transaction = database.begin();
    transaction.put(table, key, value)?;
    Ok(transaction.commit().map(drop)?)
}

/// No contradiction is found, and every page has an owner.
fn require_sound(database: &flagstone::Database) {
    database.merge().unwrap();
    let report = database.check().unwrap();
    assert!(report.is_sound(), "{:?}", report.faults);
    assert_eq!(report.leaked_pages, 0);
}

/// Goal (README, Limits): the oldest snapshot ends before a write is refused, and not before. Method: one
/// value set again and again on small blocks, whose records are small, while two snapshots are open.
#[test]
fn a_snapshot_ends_before_a_value_is_refused() {
    let database = Database::create_on(chip("tiny", 1_000), &options()).unwrap();
    let table = database.table("t").unwrap();
    let value = |fill: u32| vec![fill as u8; 1_500];
    set(&database, table, b"key", &value(0)).unwrap();
    let old = database.snapshot().unwrap();
    // Commits behind this snapshot make its room old: it is free as soon as the snapshot ends.
    (1..10).for_each(|number| set(&database, table, b"key", &value(number)).unwrap());
    let young = database.snapshot().unwrap();
    let mut ended = None;
    for number in 10..1_000 {
        set(&database, table, b"key", &value(number)).unwrap();
        match old.get(table, b"key") {
            Ok(seen) => assert_eq!(seen, Some(value(0))),
            Err(error) => assert!(matches!(error, ReadError::SnapshotTooOld), "{error}"),
        }
        if ended.is_none() && old.get(table, b"key").is_err() {
            ended = Some(number);
            assert!(young.get(table, b"key") == Ok(Some(value(9))), "one was enough");
        }
    }
    assert!(ended.is_some_and(|number| number > 20), "it ended at {ended:?}");
    require_sound(&database);
}

/// Goal (README, Limits): the same where the device has no room. Method: values on a small chip, each set
/// again while a snapshot is open, several times the capacity of the chip.
#[test]
fn a_snapshot_ends_before_a_device_is_full() {
    let database = Database::create_on(chip("slc-2k", 48), &options()).unwrap();
    let table = database.table("t").unwrap();
    let snapshot = database.snapshot().unwrap();
    for number in 0..400_u32 {
        let key = (number % 4).to_be_bytes();
        let put = set(&database, table, &key, &vec![number as u8; 40_000]);
        put.unwrap();
    }
    assert_eq!(snapshot.get(table, b"key"), Err(ReadError::SnapshotTooOld));
    require_sound(&database);
}

/// Goal: a value is not refused where a flush would make room. Method: values deleted by commits without a
/// wait for durability, many for a record, and one more value.
#[test]
fn a_value_is_not_refused_for_want_of_a_flush() {
    let database = Database::create_on(chip("tiny", 1_000), &options()).unwrap();
    let table = database.table("t").unwrap();
    for number in 0..100_u32 {
        set(&database, table, &number.to_be_bytes(), &[7; 1_500]).unwrap();
    }
    for number in 0..100_u32 {
        let mut transaction = database.begin();
        transaction.delete(table, &number.to_be_bytes()).unwrap();
        transaction.commit_with(Durability::Deferred).unwrap();
    }
    set(&database, table, b"key", &[7; 1_500]).unwrap();
    require_sound(&database);
}

/// Goal (README, Limits): the longest value stays the longest, with any other content, and so do all other
/// limits. Method: a value of that length, then tables, kept snapshots and tables that come and go; it is set
/// again, restored into an equal database, and compacted.
#[test]
fn the_limits_of_a_database_stay_what_they_were() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let database = flagstone::Database::create(&path, &Options::default()).unwrap();
    let table = database.table("z").unwrap();
    let limits = database.stats().limits;
    println!("{limits:?}");
    let value = vec![7; limits.value_size_max];
    set(&database, table, b"key", &value).unwrap();
    for number in 0..300 {
        database.table(&format!("a{number}")).unwrap();
    }
    (0..3).for_each(|number| database.create_named_snapshot(&format!("s{number}")).unwrap());
    assert_eq!(database.stats().limits, limits);
    set(&database, table, b"key", &value).unwrap();
    (0..3).for_each(|number| database.delete_named_snapshot(&format!("s{number}")).unwrap());
    let mut backup = Vec::new();
    database.backup_to(&mut backup).unwrap();
    database.close().unwrap();
    flagstone::Database::compact(&path, &Options::default()).unwrap();
    let database = flagstone::Database::open(&path, &Options::default()).unwrap();
    assert_eq!(database.stats().limits, limits);
    assert!(database.snapshot().unwrap().get(table_of(&database), b"key").unwrap() == Some(value));
    let restored =
        flagstone::Database::create(directory.path().join("new"), &Options::default()).unwrap();
    restored.restore_from(&backup[..]).unwrap();
    assert_eq!(restored.stats().limits, limits);
}

fn table_of(database: &flagstone::Database) -> Table {
    database.existing_table("z").unwrap().unwrap()
}

/// Goal: tables that come and go use up neither numbers nor room, and cost the same each time; too many of
/// them give an error. Method: many times the limit one after the other, and then as many as the limit at
/// once.
#[test]
fn tables_that_are_gone_leave_room_for_others() {
    let database = Database::create_on(chip("tiny", 400), &options()).unwrap();
    let (limits, max) = (database.stats().limits, database.stats().limits.table_count_max);
    for number in 0..10 * max {
        let table = database.table("passes").unwrap();
        if number % 50 == 0 {
            set(&database, table, b"key", &[7; 1_500]).unwrap();
        }
        database.drop_table("passes").unwrap();
    }
    assert_eq!(database.stats().limits, limits);
    let made = (0..).map(|number| database.table(&format!("t{number}")));
    let made: Vec<_> = made.take_while(Result::is_ok).collect();
    assert_eq!(made.len(), max);
    assert_eq!(database.table("more"), Err(TableError::TooManyTables));
    let longest = vec![7; limits.value_size_max];
    set(&database, *made[0].as_ref().unwrap(), b"key", &longest).unwrap();
    database.drop_table("t7").unwrap();
    assert!(database.table("more").is_ok());
    require_sound(&database);
}

/// Goal: the number of a table is never given to another: a handle or a kept snapshot that has it means that
/// table. Method: a table that is dropped and another that is made, in the same session and in the next.
#[test]
fn a_number_of_a_table_that_is_gone_names_no_other() {
    let mut database = Database::create_on(chip("slc-2k", 64), &options()).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..6 {
        let table = database.table("t").unwrap();
        assert!(seen.insert(table), "round {round}");
        set(&database, table, b"key", b"value").unwrap();
        database.drop_table("t").unwrap();
        assert_eq!(database.begin().get(table, b"key"), Err(ReadError::NoTable));
        let device = database.into_device().unwrap();
        database = Database::open_on(device, &options()).unwrap();
    }
}

/// Goal: a transaction that replaces or deletes its own values gets their pages back: the next values need no
/// others, and no record names the old ones for ever. Method: many times the capacity of the device, in one
/// transaction that commits; one key again and again, and another that is deleted.
#[test]
fn values_that_a_transaction_replaces_give_their_pages_back() {
    for (name, size, count) in
        [("slc-2k", 1_500, 8_000_u32), ("tiny", 1_500, 3_000), ("slc-2k", 300_000, 60)]
    {
        let database = Database::create_on(chip(name, 64), &options()).unwrap();
        let table = database.table("t").unwrap();
        let mut transaction = database.begin();
        for number in 0..count {
            let value = vec![number as u8; size];
            assert_eq!(transaction.put(table, b"key", &value), Ok(()), "{name}, {number}");
            if number % 3 == 0 {
                let put = transaction.put(table, b"other", &value);
                assert_eq!(put, Ok(()), "{name}, {number}");
                assert_eq!(transaction.delete(table, b"other"), Ok(()));
            }
        }
        transaction.commit().unwrap();
        require_sound(&database);
        let database = Database::open_on(database.into_device().unwrap(), &options()).unwrap();
        let table = database.existing_table("t").unwrap().unwrap();
        let value = database.snapshot().unwrap().get(table, b"key").unwrap();
        assert!(value == Some(vec![(count - 1) as u8; size]), "{name}, values of {size} bytes");
        assert_eq!(database.snapshot().unwrap().len(table), Ok(1));
        require_sound(&database);
    }
}

/// Goal (rule D14): a value that a savepoint may bring back stays, and goes with the savepoint's later
/// changes. Method: values that are replaced before and behind savepoints; the values after each rollback.
#[test]
fn a_value_that_a_savepoint_names_stays() {
    let database = Database::create_on(chip("slc-2k", 64), &options()).unwrap();
    let table = database.table("t").unwrap();
    let value = |fill: u8| vec![fill; 30_000];
    let mut transaction = database.begin();
    for round in 0..40 {
        transaction.put(table, b"key", &value(1)).unwrap();
        let first = transaction.savepoint().unwrap();
        for fill in 2..6 {
            transaction.put(table, b"key", &value(fill)).unwrap();
        }
        let second = transaction.savepoint().unwrap();
        transaction.put(table, b"key", &value(6)).unwrap();
        transaction.delete(table, b"key").unwrap();
        transaction.rollback_to(second).unwrap();
        assert!(transaction.get(table, b"key") == Ok(Some(value(5))), "round {round}");
        transaction.put(table, b"other", &value(7)).unwrap();
        transaction.rollback_to(first).unwrap();
        assert!(transaction.get(table, b"key") == Ok(Some(value(1))), "round {round}");
        assert_eq!(transaction.get(table, b"other"), Ok(None));
    }
    transaction.commit().unwrap();
    assert!(database.snapshot().unwrap().get(table, b"key") == Ok(Some(value(1))));
    require_sound(&database);
}

/// Goal: values take the room in a record that they need, not the most that they could need: two transactions
/// each have the longest value, and one has many of them. Method: both, beside each other.
#[test]
fn the_longest_value_fits_beside_others() {
    let database = Database::create_on(chip("slc-2k", 320), &options()).unwrap();
    let table = database.table("t").unwrap();
    let longest = vec![7; database.stats().limits.value_size_max];
    let mut transaction = database.begin();
    for number in 0..3_u8 {
        assert_eq!(transaction.put(table, &[number], &longest), Ok(()), "{number}");
    }
    set(&database, table, b"other", &longest).unwrap();
    transaction.commit().unwrap();
    assert_eq!(database.snapshot().unwrap().len(table), Ok(4));
    require_sound(&database);
}

/// Transactions that set one value several times, and store others that they delete, until the power goes;
/// some have a checkpoint in their midst. Gives the number of commits that returned.
fn session<D: Nand + Send + 'static>(database: Database<D>) -> (u8, D) {
    let table = table_of(&database);
    let run = |number: u8| -> Result<(), Error> {
        let value = |fill: u8, size: usize| vec![fill; size];
        let mut transaction = database.begin();
        for fill in 100..103 {
            transaction.put(table, b"key", &value(fill, 9_000))?;
            transaction.put(table, b"other", &value(fill, 5_000))?;
            transaction.delete(table, b"other")?;
            if fill == 101 && number.is_multiple_of(2) {
                database.runtime().checkpoint_now()?;
            }
        }
        transaction.put(table, b"key", &value(number, 9_000))?;
        Ok(transaction.commit().map(drop)?)
    };
    let commits = (1..5).take_while(|number| run(*number).is_ok()).count();
    (commits as u8, database.into_device().unwrap())
}

/// Goal (rules D4 and D12): even with pages given back by an open transaction, a cut leaves the whole value
/// of one commit, and every page has an owner. Method: each operation of a session is cut with every ending.
fn values_through_every_cut<D: Crashable + Send + 'static>(device: D) {
    let database = Database::create_on(device, &options()).unwrap();
    let table = database.table("z").unwrap();
    set(&database, table, b"key", &[0; 9_000]).unwrap();
    let twin = database.clone();
    database.close().unwrap();
    let device = twin.into_device().unwrap();
    let mut recorded = device.clone();
    recorded.record_operations();
    let (commits, recorded) = session(Database::open_on(recorded, &options()).unwrap());
    assert_eq!(commits, 4);
    let mut cuts = 0;
    for number in device.operation_count()..recorded.operation_count() {
        for ending in recorded.endings_at(number) {
            let mut cut = device.clone();
            cut.set_plan(FaultPlan::power_cut(1, number, ending));
            let Ok(database) = Database::open_on(cut, &options()) else { continue };
            let (commits, mut cut) = session(database);
            cut.power_cycle();
            cut.set_plan(FaultPlan::default());
            let database = Database::open_on(cut, &options()).unwrap();
            let value = database.snapshot().unwrap().get(table_of(&database), b"key").unwrap();
            let value = value.unwrap();
            let is_right = value[0] == commits || value[0] == commits + 1;
            let is_whole = value.len() == 9_000 && value.iter().all(|byte| *byte == value[0]);
            assert!(is_right && is_whole, "cut {number} {ending}: {} of {commits}", value[0]);
            // Another commit, so that restart's work is done.
            set(&database, table_of(&database), b"more", &[9; 5_000]).unwrap();
            require_sound(&database);
            cuts += 1;
        }
    }
    assert!(cuts > 100, "{cuts} cuts");
}

#[test]
fn a_chip_gives_values_back_through_every_cut() {
    values_through_every_cut(chip("slc-2k", 48));
}

#[test]
fn a_file_gives_values_back_through_every_cut() {
    let mut profile = Profile::named("segment-file").unwrap();
    profile.geometry.pages_per_block = 32;
    let profile = profile.with_block_count(256).unwrap();
    let storage = SimStorage::new(profile.timing);
    values_through_every_cut(SegmentFile::create_growing(storage, &profile, 4).unwrap());
}

/// Goal (D12, promise 4): a number that a restart frees again does not hide the damaged page of its next
/// owner. Method: roots of tables under numbers that a value had before, in the same part of the log; the
/// content of the roots is in no log, and they are damaged.
#[test]
fn a_damaged_root_does_not_pass_for_the_value_before_it() {
    let database = Database::create_on(chip("slc-2k", 128), &options()).unwrap();
    let values = database.table("values").unwrap();
    set(&database, values, b"key", &[9; 100_000]).unwrap();
    database.merge().unwrap();
    let mut transaction = database.begin();
    transaction.delete(values, b"key").unwrap();
    transaction.commit().unwrap();
    // The numbers that the value frees stand behind the beginning of this checkpoint.
    database.merge().unwrap();
    let mut device = database.into_device().unwrap();
    device.power_cycle();

    let claiming = options().with_techniques(|techniques| techniques.commit = CommitBy::Claims);
    let database = Database::open_on(device, &claiming).unwrap();
    let names: Vec<_> = (0..90).map(|number| format!("t{number}")).collect();
    for name in &names {
        let table = database.table(name).unwrap();
        let mut transaction = database.begin();
        for row in 0..15_u32 {
            transaction.put(table, &row.to_be_bytes(), &[5; 100]).unwrap();
        }
        transaction.commit().unwrap();
    }
    assert!(database.stats().engine.claimed_pages >= 90, "rows are logged");
    let mut device = database.into_device().unwrap();
    device.power_cycle();
    let geometry = device.geometry();
    let pages = (0..geometry.page_count())
        .filter_map(|number| geometry.page_from_number(number))
        .filter(|page| {
            let data = device.peek(*page).data;
            data[0] == 0xF1 && data.windows(90).any(|window| *window == [5; 90])
        })
        .collect::<Vec<_>>();
    assert!(pages.len() >= 90, "{} roots", pages.len());
    pages.into_iter().for_each(|page| device.flip_bits(page, 1, 40));

    let database = Database::open_on(device, &options()).unwrap();
    // Background work frees the numbers that restart found.
    let _ = database.merge();
    let snapshot = database.snapshot().unwrap();
    let passed = names.iter().filter(|name| {
        let table = database.existing_table(name).unwrap().unwrap();
        snapshot.get(table, &3_u32.to_be_bytes()).is_ok()
    });
    let passed: Vec<_> = passed.collect();
    assert!(passed.is_empty(), "{} tables read as empty", passed.len());
}

/// Goal (D7): a value does not wait for ever for room taken by the names of runs that are not being merged.
/// Method: scattered commits whose pages wait, named by the largest share of a small record that they may
/// have, and the longest value in pages far from each other.
#[test]
fn a_value_has_the_room_of_runs_that_wait() {
    let database = Database::create_on(chip("tiny", 2_000), &options()).unwrap();
    let [rows, values] = ["rows", "values"].map(|name| database.table(name).unwrap());
    let all = (0..6_000_u32).map(|row| (row.to_be_bytes(), [7; 100]));
    database.load_sorted(rows, all).unwrap();
    for number in 0..400_u32 {
        set(&database, values, &number.to_be_bytes(), &[7; 400]).unwrap();
    }
    database.merge().unwrap();
    let mut transaction = database.begin();
    for number in (0..400_u32).step_by(2) {
        transaction.delete(values, &number.to_be_bytes()).unwrap();
    }
    transaction.commit().unwrap();
    database.merge().unwrap();
    let mut device = database.into_device().unwrap();
    device.power_cycle();
    // Numbers are given out from the first one on.
    let database = Arc::new(Database::open_on(device, &options()).unwrap());
    let [rows, values] = ["rows", "values"].map(|name| database.table(name).unwrap());
    for round in 0..3_u32 {
        let mut transaction = database.begin();
        for row in 0..100 {
            transaction.put(rows, &(row * 60 + round).to_be_bytes(), &[8; 100]).unwrap();
        }
        transaction.commit().unwrap();
    }
    let stats = database.stats().engine;
    assert!(stats.run_commits >= 2, "{stats:?}");
    let value = vec![3; database.stats().limits.value_size_max];
    let (done, outcome) = mpsc::channel();
    let writer = Arc::clone(&database);
    std::thread::spawn(move || done.send(set(&writer, values, b"long", &value)));
    let outcome = outcome.recv_timeout(Duration::from_secs(60));
    let count = database.stats().engine.checkpoints - stats.checkpoints;
    assert!(matches!(outcome, Ok(Ok(()))), "after {count} checkpoints");
}

/// Goal (promise 4): a number that a record frees again does not hide the loss of its next owner. Method: a
/// table is dropped, and its numbers become roots of others, which a session writes into its first
/// checkpoint; a block of these roots is erased.
#[test]
fn a_lost_root_does_not_pass_for_the_page_before_it() {
    let claiming = options().with_techniques(|techniques| techniques.commit = CommitBy::Claims);
    let mut device = chip("slc-2k", 128);
    let database = Database::create_on(device, &claiming).unwrap();
    let former = database.table("former").unwrap();
    let all = (0..1_500_u32).map(|row| (row.to_be_bytes(), [7; 100]));
    database.load_sorted(former, all).unwrap();
    database.merge().unwrap();
    database.drop_table("former").unwrap();
    device = database.into_device().unwrap();
    device.power_cycle();
    // Numbers are given out from the first one on.
    let database = Database::open_on(device, &claiming).unwrap();
    let names: Vec<_> = (0..150).map(|number| format!("t{number}")).collect();
    for name in &names {
        let table = database.table(name).unwrap();
        let mut transaction = database.begin();
        for row in 0..15_u32 {
            transaction.put(table, &row.to_be_bytes(), &[5; 100]).unwrap();
        }
        transaction.commit().unwrap();
    }
    device = database.into_device().unwrap();
    device.power_cycle();
    let database = Database::open_on(device, &claiming).unwrap();
    let first = database.existing_table("t0").unwrap().unwrap();
    set(&database, first, b"more", b"1").unwrap();
    device = database.into_device().unwrap();
    device.power_cycle();

    let geometry = device.geometry();
    let count = |block: &flagstone_nand::BlockIndex| {
        let begin = block.0 * geometry.pages_per_block;
        let pages = (begin..begin + geometry.pages_per_block)
            .map(|number| device.peek(geometry.page_from_number(number).unwrap()).data);
        pages
            .filter(|data| data[0] == 0xF1 && data.windows(90).any(|part| *part == [5; 90]))
            .count()
    };
    let block = geometry.blocks().max_by_key(count).unwrap();
    assert!(count(&block) > 30, "{} roots in a block", count(&block));
    device.erase(block).unwrap();

    let database = Database::open_on(device, &options()).unwrap();
    let _ = database.merge();
    let snapshot = database.snapshot().unwrap();
    let (mut lost, mut empty) = (0, 0);
    for name in &names {
        let table = database.existing_table(name).unwrap().unwrap();
        match snapshot.get(table, &3_u32.to_be_bytes()) {
            Ok(None) => empty += 1,
            Ok(_) => {}
            Err(_) => lost += 1,
        }
    }
    assert!(empty == 0 && lost > 0, "{empty} tables read as empty, {lost} are lost");
}
