//! Backups: a restore gives the rows of one moment, and a backup that is not whole is refused.

use std::collections::BTreeMap;

use flagstone::{BackupError, Error, OpenError, Options, VerifyOnOpen, verify_backup};
use flagstone_nand::{Profile, SimNand};
use proptest::prelude::*;

use crate::on::Database;

type Model = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

fn options() -> Options {
    Options::default().with_memory(256 << 10)
}

fn created(profile: &str, blocks: u32) -> Database<SimNand> {
    let profile = Profile::named(profile).unwrap().with_block_count(blocks).unwrap();
    Database::create_on(SimNand::new(&profile, 1), &options()).unwrap()
}

fn fill(database: &Database<SimNand>, model: &Model) {
    for (name, rows) in model {
        let table = database.table(name).unwrap();
        let mut transaction = database.begin();
        for (key, value) in rows {
            transaction.put(table, key, value).unwrap();
        }
        transaction.commit().unwrap();
    }
}

fn content(database: &Database<SimNand>) -> Model {
    let snapshot = database.snapshot().unwrap();
    let rows = |name: &str| {
        let table = database.existing_table(name).unwrap().unwrap();
        snapshot.range(table, ..).map(Result::unwrap).collect()
    };
    let names = database.tables().unwrap().into_iter();
    names.map(|name| (name.clone(), rows(&name))).collect()
}

fn backup_of(database: &Database<SimNand>) -> Vec<u8> {
    let mut backup = Vec::new();
    database.backup_to(&mut backup).unwrap();
    backup
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Tables with any content come back on another chip with other pages.
    #[test]
    fn what_was_backed_up_comes_back(
        model in prop::collection::btree_map(
            "[a-z\u{e9}]{0,3}",
            prop::collection::btree_map(
                prop::collection::vec(any::<u8>(), 0..12),
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..40),
                    prop::collection::vec(any::<u8>(), 5_000..9_000),
                ],
                0..30,
            ),
            0..4,
        )
    ) {
        let database = created("slc-2k", 64);
        fill(&database, &model);
        let mut backup = Vec::new();
        let report = database.backup_to(&mut backup).unwrap();
        let rows = model.values().map(BTreeMap::len).sum::<usize>();
        prop_assert_eq!((report.tables, report.rows), (model.len() as u64, rows as u64));
        prop_assert_eq!(verify_backup(backup.as_slice()).unwrap(), report);
        let copy = created("spi-nand", 64);
        prop_assert_eq!(copy.restore_from(backup.as_slice()).unwrap(), report);
        let copy = Database::open_on(copy.into_device().unwrap(), &options()).unwrap();
        prop_assert_eq!(content(&copy), model);
        prop_assert!(copy.check().unwrap().is_sound());
    }
}

fn small() -> Database<SimNand> {
    let database = created("slc-2k", 64);
    let rows = |count: u8| (0..count).map(|key| (vec![key], vec![key; 9])).collect();
    fill(&database, &[("a".to_owned(), rows(3)), ("b".to_owned(), rows(5))].into());
    database
}

#[test]
fn a_backup_cut_short_anywhere_is_refused() {
    let backup = backup_of(&small());
    for length in 0..backup.len() {
        match verify_backup(&backup[..length]) {
            Err(BackupError::NotABackup) => assert!(length < 12, "{length}"),
            Err(BackupError::Truncated { .. }) => assert!(length >= 12, "{length}"),
            other => panic!("{length}: {other:?}"),
        }
    }
    let mut longer = backup;
    longer.push(0);
    assert!(matches!(verify_backup(longer.as_slice()), Err(BackupError::Damaged { .. })));
}

#[test]
fn a_backup_with_any_bit_turned_is_refused() {
    let backup = backup_of(&small());
    for place in 0..backup.len() * 8 {
        let mut damaged = backup.clone();
        damaged[place / 8] ^= 1 << (place % 8);
        assert!(verify_backup(damaged.as_slice()).is_err(), "bit {place}");
    }
}

#[test]
fn another_version_is_named() {
    let mut backup = backup_of(&small());
    backup[8] = 9;
    let error = verify_backup(backup.as_slice()).unwrap_err();
    assert!(matches!(error, BackupError::Version { found: 9, known: 1 }), "{error}");
}

#[test]
fn a_database_that_holds_a_table_is_left_alone() {
    let (database, other) = (small(), created("slc-2k", 64));
    other.table("mine").unwrap();
    let error = other.restore_from(backup_of(&database).as_slice()).unwrap_err();
    assert!(matches!(error, BackupError::NotEmpty), "{error}");
    assert_eq!(other.tables().unwrap(), ["mine"]);
}

#[test]
fn a_backup_that_does_not_fit_says_so() {
    let database = created("slc-2k", 64);
    let rows = (0..6_000_u32).map(|key| (key.to_be_bytes().to_vec(), vec![1; 200])).collect();
    fill(&database, &[("t".to_owned(), rows)].into());
    let little = created("tiny", 64);
    let error = little.restore_from(backup_of(&database).as_slice()).unwrap_err();
    assert!(matches!(error, BackupError::Database(Error::Full)), "{error}");
    assert!(little.check().unwrap().is_sound());
}

#[test]
fn a_sink_that_fails_ends_the_backup() {
    let mut short = [0; 20];
    let error = small().backup_to(short.as_mut_slice()).unwrap_err();
    assert!(matches!(error, BackupError::Io(_)), "{error}");
}

/// Goal: a backup is of one moment although the database changes under it.
///
/// Method: at each progress report of the backup, money moves from an account that it has passed to one that
/// it has not, durably, with merges on the way. The backup must not see any of these moves.
#[test]
fn a_backup_under_way_sees_one_moment() {
    const ACCOUNTS: u32 = 4_000;
    let database = created("slc-2k", 64);
    let rows = (0..ACCOUNTS).map(|key| (key.to_be_bytes().to_vec(), vec![1; 50])).collect();
    fill(&database, &[("accounts".to_owned(), rows)].into());
    let before = content(&database);
    let table = database.table("accounts").unwrap();
    let mut moved = 0;
    let mut backup = Vec::new();
    let watch = |report: &flagstone::report::BackupReport| {
        let (from, to) = (report.rows as u32 - 200, ACCOUNTS - 1 - moved);
        let mut transaction = database.begin();
        transaction.put(table, &from.to_be_bytes(), &[0; 50]).unwrap();
        transaction.put(table, &to.to_be_bytes(), &[2; 50]).unwrap();
        transaction.commit().unwrap();
        database.merge().unwrap();
        moved += 1;
    };
    database.backup_watched(&mut backup, watch).unwrap();
    assert!(moved > 10, "nothing happened beside the backup");
    let copy = created("slc-2k", 64);
    copy.restore_from(backup.as_slice()).unwrap();
    assert!(content(&copy) == before);
    assert!(content(&database) != before);
}

/// Goal: a leaf that was damaged while the database was closed is found when the database is opened, if the
/// options ask for that.
///
/// Method: the bytes of one value are changed in the file, where a merge has put them.
#[test]
fn damage_is_found_on_opening_if_the_options_say_so() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let database = flagstone::Database::create(&path, &options()).unwrap();
    let table = database.table("t").unwrap();
    let mut transaction = database.begin();
    transaction.put(table, b"key", &[b'#'; 400]).unwrap();
    transaction.commit().unwrap();
    database.merge().unwrap();
    database.close().unwrap();
    let checked = options().with_verify_on_open(VerifyOnOpen::Check);
    drop(flagstone::Database::open(&path, &checked).unwrap());

    let mut file = std::fs::read(&path).unwrap();
    let at = file.windows(400).rposition(|bytes| bytes == [b'#'; 400]).unwrap();
    for place in 0..file.len() - 400 {
        if file[place..place + 400] == [b'#'; 400] {
            file[place + 7] = b'!';
        }
    }
    assert_eq!(file[at + 7], b'!');
    std::fs::write(&path, &file).unwrap();
    drop(flagstone::Database::open(&path, &options()).unwrap());
    let error = flagstone::Database::open(&path, &checked).unwrap_err();
    assert!(matches!(error, OpenError::Unsound { count: 1.., .. }), "{error}");
}

/// Goal: a restored copy is dense, where deletions have left the leaves of the original nearly empty.
///
/// Method: rows in random order, of which three quarters are deleted; both trees are merged, and counted.
#[test]
fn a_restored_copy_is_dense() {
    let options = Options::default().with_memory(1 << 20);
    let created = || {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(200).unwrap();
        Database::create_on(SimNand::new(&profile, 1), &options).unwrap()
    };
    let database = created();
    let table = database.table("t").unwrap();
    let key = |number: u32| number.wrapping_mul(2_654_435_761).to_be_bytes();
    for first in (0..20_000).step_by(500) {
        let mut transaction = database.begin();
        for number in first..first + 500 {
            transaction.put(table, &key(number), &[7; 150]).unwrap();
        }
        transaction.commit().unwrap();
    }
    database.merge().unwrap();
    let mut transaction = database.begin();
    let keep = |key: &[u8], _: &[u8]| key[3].is_multiple_of(4);
    assert_eq!(transaction.retain(table, .., keep).unwrap(), 15_000);
    transaction.commit().unwrap();
    database.merge().unwrap();
    let copy = created();
    copy.restore_from(backup_of(&database).as_slice()).unwrap();
    copy.merge().unwrap();
    let (original, copy) = (database.check().unwrap(), copy.check().unwrap());
    println!("{} leaves, {} in the copy", original.leaves, copy.leaves);
    assert_eq!((original.rows, copy.rows), (5_000, 5_000));
    let full = 5_000 * (150 + 4) / 2_048;
    assert!(copy.leaves * 10 < full * 11, "{} leaves, {full} full ones", copy.leaves);
    assert!(copy.leaves * 5 < original.leaves * 4, "{} of {}", copy.leaves, original.leaves);
}

/// Goal: the rows that a restore holds at a time fit in memory. Method: rows of a few bytes, which take many
/// times their size in memory.
#[test]
fn a_restore_of_small_rows_spills_nothing() {
    let database = created("slc-2k", 64);
    let table = database.table("t").unwrap();
    database.load_sorted(table, (0..20_000_u32).map(|row| (row.to_be_bytes(), [7]))).unwrap();
    let copy = created("slc-2k", 64);
    copy.restore_from(backup_of(&database).as_slice()).unwrap();
    let table = copy.table("t").unwrap();
    assert_eq!(copy.stats().engine.spilled_pages, 0);
    assert_eq!(copy.snapshot().unwrap().len(table).unwrap(), 20_000);
}
