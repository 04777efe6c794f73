//! Tables that are renamed and dropped.

use std::collections::BTreeMap;

use flagstone::typed::IndexFault;
use flagstone::{Error, Index, Options, PRESETS, ReadError, Table, TableError, WriteError};
use flagstone_engine::Stop;
use flagstone_nand::{Crashable, FaultPlan, Nand, Profile, SegmentFile, SimNand, SimStorage};

use crate::on::Database;

fn options() -> Options {
    Options::default().with_memory(256 << 10)
}

fn chip(name: &str, blocks: u32) -> SimNand {
    SimNand::new(&Profile::named(name).unwrap().with_block_count(blocks).unwrap(), 1)
}

fn file() -> SegmentFile<SimStorage> {
    let mut profile = Profile::named("segment-file").unwrap();
    profile.geometry.pages_per_block = 32;
    let profile = profile.with_block_count(4_096).unwrap();
    SegmentFile::create_growing(SimStorage::new(profile.timing), &profile, 2).unwrap()
}

/// Rows of one length, and some values with pages of their own, one of these with a list of its pages.
fn fill(database: &flagstone::Database, table: Table, rows: std::ops::Range<u32>) {
    let large = (database.stats().limits.value_size_max / 2).min(300_000);
    for row in rows {
        let mut transaction = database.begin();
        let size = match row % 50 {
            7 => 9_000,
            8 => large,
            _ => 120,
        };
        transaction.put(table, &row.to_be_bytes(), &vec![row as u8; size]).unwrap();
        transaction.commit_with(flagstone::Durability::Deferred).unwrap();
    }
    database.flush().unwrap();
}

fn rows(database: &flagstone::Database, name: &str) -> Option<BTreeMap<Vec<u8>, Vec<u8>>> {
    let table = database.existing_table(name).unwrap()?;
    Some(database.snapshot().unwrap().range(table, ..).map(Result::unwrap).collect())
}

/// Does all the work that there is, as committing threads would.
fn work(database: &flagstone::Database) {
    let runtime = database.runtime();
    while runtime.engine().has_work() || runtime.engine().is_flush_wanted() {
        if runtime.engine().is_flush_wanted()
            && let Some(flush) = runtime.flush_begin().unwrap()
        {
            runtime.flush_end(flush);
        }
        match runtime.work_begin() {
            Ok(Some(work)) => runtime.work_end(work),
            Ok(None) | Err(Stop::Wait(_)) => {}
            Err(Stop::Miss(fetch)) => {
                let fetched = runtime.read(fetch).unwrap();
                runtime.engine().fill(fetched).unwrap();
            }
            Err(Stop::Error(error)) => panic!("{error}"),
        }
    }
}

/// Does all waiting work; gives the number of pages in use.
fn settled(database: &flagstone::Database) -> u32 {
    work(database);
    database.merge().unwrap();
    work(database);
    let report = database.check().unwrap();
    assert!(report.is_sound(), "{:?}", report.faults);
    assert_eq!(report.leaked_pages, 0);
    database.stats().space.live_pages
}

#[test]
fn a_renamed_table_has_its_rows_and_indexes() {
    const LENGTH: Index<u32, String, u64> = Index::new("length", |_, text| vec![text.len() as u64]);
    let database = Database::create_on(chip("slc-2k", 64), &options()).unwrap();
    let words = database.indexed("words", &[&LENGTH]).unwrap();
    let other = database.table("other").unwrap();
    let mut transaction = database.begin();
    words.put(&mut transaction, &1, &"one".into()).unwrap();
    transaction.commit().unwrap();

    assert_eq!(database.rename_table("words", "other"), Err(TableError::TableExists));
    assert_eq!(database.rename_table("word", "texts"), Err(TableError::NoTable));
    database.rename_table("words", "texts").unwrap();
    let mut transaction = database.begin();
    words.put(&mut transaction, &2, &"two".into()).unwrap();
    transaction.commit().unwrap();
    assert_eq!(database.tables().unwrap(), ["other", "texts", "texts@length"]);
    let database = Database::open_on(database.into_device().unwrap(), &options()).unwrap();
    assert!(database.existing_table("other").unwrap().is_some_and(|it| it != other));
    let undeclared = database.indexed::<u32, String>("texts", &[]).unwrap_err();
    assert!(matches!(undeclared, TableError::Index { fault: IndexFault::Undeclared, .. }));
    let texts = database.indexed("texts", &[&LENGTH]).unwrap();
    let snapshot = database.snapshot().unwrap();
    let found: Vec<_> =
        texts.find_keys(&snapshot, &LENGTH, &3).unwrap().map(Result::unwrap).collect();
    assert_eq!(found, [1, 2]);
    assert!(texts.check_indexes(&snapshot).unwrap().is_sound());
    database.rename_table("texts@length", "lengths").unwrap();
    database.indexed::<u32, String>("texts", &[]).unwrap();
}

/// Goal: a dropped table leaves no page, under every preset and wherever its changes are: in leaves, in
/// values with pages of their own, in memory. Method: every preset; the live pages before and after.
#[test]
fn a_dropped_table_leaves_nothing() {
    for preset in PRESETS {
        let options = Options::preset(preset.name).unwrap().with_memory(256 << 10);
        let profile = if preset.name == "flagstone-flags" { "tiny-flags" } else { "slc-2k" };
        let database = Database::create_on(chip(profile, 256), &options).unwrap();
        let kept = database.table("kept").unwrap();
        fill(&database, kept, 0..60);
        let before = settled(&database);
        let expected = rows(&database, "kept");
        for merges in [true, false] {
            let table = database.table("dropped").unwrap();
            fill(&database, table, 0..700);
            if merges {
                settled(&database);
                fill(&database, table, 300..320);
            }
            database.drop_table("dropped").unwrap();
            assert_eq!(database.tables().unwrap(), ["kept"], "{}", preset.name);
            assert_eq!(settled(&database), before, "{}", preset.name);
            assert_eq!(database.begin().get(table, b"key"), Err(ReadError::NoTable));
            let put = database.begin().put(table, b"key", b"value");
            assert_eq!(put, Err(WriteError::NoTable));
            assert_eq!(database.snapshot().unwrap().len(table), Err(ReadError::NoTable));
        }
        let database = Database::open_on(database.into_device().unwrap(), &options).unwrap();
        assert_eq!(rows(&database, "kept"), expected, "{}", preset.name);
        assert_eq!(settled(&database), before, "{}", preset.name);
    }
}

/// Goal: a table whose name would make it an index of another, and go with it, cannot be created; an existing
/// table with such a name can be opened, copied, and renamed to a plain name.
#[test]
fn names_of_indexes_are_given_to_indexes_alone() {
    const LENGTH: Index<u32, String, u64> = Index::new("length", |_, text| vec![text.len() as u64]);
    const MARKED: Index<u32, String, u64> = Index::new("a@b", |_, _| vec![]);
    let database = Database::create_on(chip("slc-2k", 64), &options()).unwrap();
    let words = database.indexed::<u32, String>("words", &[&LENGTH]).unwrap();
    let refused = Some(TableError::IndexName);
    assert_eq!(database.table("words@home").err(), refused);
    assert_eq!(database.table("@").err(), refused);
    assert_eq!(database.typed::<u32, u32>("words@home").err(), refused);
    assert_eq!(database.multi::<u32, u32>("words@home").err(), refused);
    assert_eq!(database.indexed::<u32, String>("words@home", &[]).err(), refused);
    let marked = database.indexed::<u32, String>("words", &[&LENGTH, &MARKED]);
    assert_eq!(marked.err(), refused);
    assert_eq!(database.rename_table("words", "texts@home"), Err(TableError::IndexName));
    assert_eq!(database.tables().unwrap(), ["words", "words@length"]);

    let old = database.copied_table("mail@home").unwrap();
    assert_eq!(database.table("mail@home"), Ok(old));
    let mut backup = Vec::new();
    database.backup_to(&mut backup).unwrap();
    let copy = Database::create_on(chip("slc-2k", 64), &options()).unwrap();
    copy.restore_from(backup.as_slice()).unwrap();
    assert_eq!(copy.tables().unwrap(), ["mail@home", "words", "words@length"]);
    copy.rename_table("mail@home", "mail").unwrap();
    assert_eq!(copy.tables().unwrap(), ["mail", "words", "words@length"]);
    drop(words);
}

#[test]
fn indexes_go_with_their_table() {
    const LENGTH: Index<u32, String, u64> = Index::new("length", |_, text| vec![text.len() as u64]);
    let database = Database::create_on(chip("slc-2k", 64), &options()).unwrap();
    database.table("kept").unwrap();
    let before = settled(&database);
    let words = database.indexed("words", &[&LENGTH]).unwrap();
    database.multi::<u32, u32>("words2").unwrap();
    let mut transaction = database.begin();
    (0..200).for_each(|key| words.put(&mut transaction, &key, &"word".into()).unwrap());
    transaction.commit().unwrap();
    settled(&database);
    database.drop_table("words").unwrap();
    assert_eq!(database.tables().unwrap(), ["kept", "words2"]);
    let mut transaction = database.begin();
    assert_eq!(words.put(&mut transaction, &1, &"late".into()), Err(WriteError::NoTable));
    drop(transaction);
    database.drop_table("words2").unwrap();
    assert_eq!(database.drop_table("words2"), Err(TableError::NoTable));
    assert_eq!(settled(&database), before);
}

/// Goal: dropping costs records in the log and no page. Method: the programs for a table of a thousand pages.
#[test]
fn a_drop_writes_no_page_of_the_table() {
    let database = Database::create_on(chip("slc-2k", 128), &options()).unwrap();
    let table = database.table("t").unwrap();
    let mut transaction = database.begin();
    for row in 0..15_000_u32 {
        transaction.put(table, &row.to_be_bytes(), &[1; 120]).unwrap();
    }
    transaction.commit().unwrap();
    let live = settled(&database);
    assert!(live > 900, "{live}");
    let before = database.stats().space;
    database.drop_table("t").unwrap();
    let after = database.stats().space;
    let sum = |counts: [u64; 7]| counts.iter().sum::<u64>();
    let programs = sum(after.programs_by_cause) - sum(before.programs_by_cause);
    assert!(programs < 60, "{programs} programs");
    assert!(after.live_pages < 10, "{}", after.live_pages);
}

/// Goal: an earlier snapshot keeps a dropped table, a later snapshot does not see it, and its pages are free
/// when the earlier one has ended.
#[test]
fn a_snapshot_from_before_keeps_a_dropped_table() {
    let database = Database::create_on(chip("slc-2k", 256), &options()).unwrap();
    database.table("kept").unwrap();
    let before = settled(&database);
    let table = database.table("t").unwrap();
    fill(&database, table, 0..500);
    database.merge().unwrap();
    fill(&database, table, 20..70);
    let expected = rows(&database, "t").unwrap();
    let snapshot = database.snapshot().unwrap();
    database.drop_table("t").unwrap();
    let late = database.snapshot().unwrap();
    assert_eq!(late.get(table, &[0; 4]), Err(ReadError::NoTable));
    let again = database.table("t").unwrap();
    fill(&database, again, 0..20);
    database.merge().unwrap();
    let seen: BTreeMap<_, _> = snapshot.range(table, ..).map(Result::unwrap).collect();
    assert!(seen == expected, "rows of the dropped table");
    assert_eq!(
        snapshot.get(table, &21_u32.to_be_bytes()).unwrap(),
        expected.get(&21_u32.to_be_bytes()[..]).cloned()
    );
    drop((snapshot, late));
    assert_eq!(rows(&database, "t").unwrap().len(), 20);
    database.drop_table("t").unwrap();
    assert_eq!(settled(&database), before);
}

/// Drops a table and goes on in another, until the power goes. Certain afterwards: the commits of the other,
/// and whether the drop returned.
fn session<D: Nand + Send + 'static>(database: Database<D>) -> (u8, bool, D) {
    let kept = database.existing_table("kept").unwrap().unwrap();
    let mut last = 0;
    let put = |number: u8| -> Result<(), Error> {
        let mut transaction = database.begin();
        (0..40_u32)
            .try_for_each(|row| transaction.put(kept, &row.to_be_bytes(), &[number; 120]))?;
        Ok(transaction.commit().map(drop)?)
    };
    last += u8::from(put(1).is_ok());
    let is_dropped = last == 1 && database.drop_table("dropped").is_ok();
    if is_dropped && !database.runtime().engine().is_poisoned() {
        last += u8::from(put(2).is_ok());
        if last == 2 && database.runtime().checkpoint_now().is_ok() {
            let again = database.table("again").map_err(Error::from).and_then(|table| {
                let mut transaction = database.begin();
                transaction.put(table, b"a", b"new")?;
                Ok(transaction.commit()?)
            });
            last += u8::from(again.is_ok());
        }
    }
    (last, is_dropped, database.into_device().unwrap())
}

/// Goal: a table is dropped as a whole or not at all, and no page of it is lost, wherever the power fails:
/// before the drop, while pages are freed, and while a restart goes on freeing them. Method: each operation
/// of a session is cut with every ending; the restart is cut again at some of its own.
fn drops_through_every_cut<D: Crashable + Send + 'static>(device: D, rows_count: u32) {
    let database = Database::create_on(device, &options()).unwrap();
    let kept = database.table("kept").unwrap();
    fill(&database, kept, 0..5);
    let mut transaction = database.begin();
    (0..40_u32).for_each(|row| transaction.put(kept, &row.to_be_bytes(), &[0; 120]).unwrap());
    transaction.commit().unwrap();
    let table = database.table("dropped").unwrap();
    fill(&database, table, 0..rows_count);
    settled(&database);
    fill(&database, table, 0..10);
    let expected = rows(&database, "dropped").unwrap();
    let twin = database.clone();
    database.close().unwrap();
    let device = twin.into_device().unwrap();
    let mut recorded = device.clone();
    recorded.record_operations();
    let (last, is_dropped, recorded) = session(Database::open_on(recorded, &options()).unwrap());
    assert_eq!((last, is_dropped), (3, true));
    let database = Database::open_on(recorded.clone(), &options()).unwrap();
    let live_without = settled(&database);
    let (mut cuts, mut without) = (0, 0);
    for number in device.operation_count()..recorded.operation_count() {
        for ending in recorded.endings_at(number) {
            let mut cut = device.clone();
            cut.set_plan(FaultPlan::power_cut(1, number, ending));
            let (last, is_dropped, mut cut) = session(Database::open_on(cut, &options()).unwrap());
            cut.power_cycle();
            let at = format!("cut {number} {ending}");
            let readers = Database::open_read_only_on(cut.clone(), &options()).unwrap();
            assert!(readers.check().unwrap().is_sound(), "{at}");
            // A second cut, in the work of the restart and in the release that goes on.
            let mut twice = cut.clone();
            twice.set_plan(FaultPlan::power_cut(2, cut.operation_count() + number % 7, ending));
            for mut cut in [cut, {
                if let Ok(database) = Database::open_on(twice.clone(), &options()) {
                    let _ = database.merge();
                    twice = database.into_device().unwrap();
                }
                twice
            }] {
                cut.set_plan(FaultPlan::default());
                cut.power_cycle();
                let database = Database::open_on(cut, &options()).unwrap();
                match rows(&database, "dropped") {
                    Some(found) => {
                        assert!(!is_dropped, "{at}: it is back");
                        assert!(found == expected, "{at}: rows are missing");
                    }
                    None => without += 1,
                }
                let kept: Vec<_> = rows(&database, "kept").unwrap().into_values().collect();
                let found = kept[0][0];
                let is_right = found == last.min(2) || found == last + 1;
                assert!(
                    is_right && kept.iter().all(|row| row[0] == found),
                    "{at}: {found} of {last}"
                );
                let is_there = database.existing_table("dropped").unwrap().is_some();
                let live = settled(&database);
                assert!(is_there || live <= live_without, "{at}: {live} of {live_without} pages");
                if is_there {
                    database.drop_table("dropped").unwrap();
                    assert!(settled(&database) <= live_without, "{at}");
                }
            }
            cuts += 1;
        }
    }
    assert!(cuts > 50 && without > 50, "{cuts} cuts, {without} without the table");
}

#[test]
fn a_chip_drops_a_table_through_every_cut() {
    drops_through_every_cut(chip("slc-2k", 96), 130);
}

#[test]
fn a_chip_that_carries_flags_drops_a_table_through_every_cut() {
    drops_through_every_cut(chip("tiny-flags", 512), 70);
}

#[test]
fn a_file_drops_a_table_through_every_cut() {
    drops_through_every_cut(file(), 130);
}

/// Goal: a device that is full is emptied by a drop.
#[test]
fn a_full_device_has_room_after_a_drop() {
    let database = Database::create_on(chip("slc-2k", 48), &options()).unwrap();
    let kept = database.table("kept").unwrap();
    fill(&database, kept, 0..5);
    let table = database.table("t").unwrap();
    let put = |table: Table, row: u32| -> Result<_, Error> {
        let mut transaction = database.begin();
        transaction.put(table, &row.to_be_bytes(), &[5; 700])?;
        Ok(transaction.commit()?)
    };
    let full = (0..).find_map(|row| put(table, row).err());
    assert!(matches!(full, Some(Error::Full)), "{full:?}");
    database.drop_table("t").unwrap();
    for row in 100..600 {
        put(kept, row).unwrap();
    }
    assert_eq!(rows(&database, "kept").unwrap().len(), 505);
    settled(&database);
}

/// Goal: tables that come and go leave nothing behind in the record of a checkpoint, and the rows of one
/// never appear in another that has its number. Method: sessions that drop a table and make two, one of which
/// stays for the next session; the content of the record; restarts after a cut and after a close.
#[test]
fn tables_without_end_come_and_go() {
    let database = Database::create_on(chip("slc-2k", 96), &options()).unwrap();
    let (mut device, mut said) = (database.into_device().unwrap(), Vec::new());
    for session in 0..40_u32 {
        device.power_cycle();
        let database = Database::open_on(device, &options()).unwrap();
        let stays = database.table("stays").unwrap();
        let seen: Vec<_> = rows(&database, "stays").unwrap().into_values().collect();
        let expected = if session == 0 { 0 } else { 30 };
        assert!(
            seen.len() == expected && seen.iter().all(|row| row[0] == session as u8),
            "{session}"
        );
        let passes = database.table("passes").unwrap();
        fill(&database, passes, 0..60);
        database.drop_table("stays").unwrap();
        let next = database.table("stays").unwrap();
        assert_ne!(next, stays, "a handle of before must not name it");
        assert_eq!(database.begin().get(stays, b"key"), Err(ReadError::NoTable));
        let mut transaction = database.begin();
        for row in 0..30_u32 {
            transaction.put(next, &row.to_be_bytes(), &[session as u8 + 1; 90]).unwrap();
        }
        transaction.commit().unwrap();
        database.drop_table("passes").unwrap();
        if session % 3 == 0 {
            database.runtime().checkpoint_now().unwrap();
        }
        said.push(database.runtime().space().saved_size());
        if session % 2 == 0 {
            let twin = database.clone();
            database.close().unwrap();
            device = twin.into_device().unwrap();
        } else {
            device = database.into_device().unwrap();
        }
    }
    let most = said[..8].iter().max().unwrap();
    assert!(said[20..].iter().all(|size| size <= most), "{said:?}");
    let database = Database::open_on(device, &options()).unwrap();
    assert!(settled(&database) < 10);
}

/// Goal: a table whose creation was given up leaves no trace: neither its number nor its page. Method: as
/// many as a record could never count.
#[test]
fn creations_that_are_given_up_cost_nothing() {
    let database = Database::create_on(chip("tiny", 400), &options()).unwrap();
    let before = settled(&database);
    let runtime = database.runtime();
    for _ in 0..3_000 {
        let xid = runtime.engine().begin();
        loop {
            let step = runtime.engine().create_table(xid, "given up");
            match step {
                Ok(_) => break,
                Err(Stop::Wait(wait)) => runtime.supply(wait).unwrap(),
                Err(Stop::Miss(fetch)) => {
                    let fetched = runtime.read(fetch).unwrap();
                    runtime.engine().fill(fetched).unwrap();
                }
                Err(Stop::Error(error)) => panic!("{error}"),
            }
        }
        runtime.engine().abort(xid);
    }
    assert_eq!(settled(&database), before);
    let table = database.table("t").unwrap();
    fill(&database, table, 0..20);
    assert_eq!(rows(&database, "t").unwrap().len(), 20);
}
