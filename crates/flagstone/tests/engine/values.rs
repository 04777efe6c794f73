//! Values with pages of their own: what they need of a checkpoint's record, and what gives way to them.

use flagstone::{Database, Durability, EngineError, Options, Table};
use flagstone_nand::{Nand, Profile, SimNand};

fn chip(name: &str, blocks: u32) -> SimNand {
    SimNand::new(&Profile::named(name).unwrap().with_block_count(blocks).unwrap(), 1)
}

fn options() -> Options {
    Options::default().with_memory(256 << 10)
}

fn set<D: Nand>(
    database: &Database<D>,
    table: Table,
    key: &[u8],
    value: &[u8],
) -> Result<(), EngineError> {
    let mut transaction = database.begin();
    transaction.put(table, key, value)?;
    transaction.commit().map(drop)
}

/// Nothing contradicts itself, and no page is nobody's.
fn require_sound<D: Nand>(database: &Database<D>) {
    database.merge().unwrap();
    let report = database.check().unwrap();
    assert!(report.is_sound(), "{:?}", report.faults);
    assert_eq!(report.leaked_pages, 0);
}

/// Goal (README, Limits): the oldest snapshot ends before a write is refused, and not before. Method: one value set
/// again and again on small blocks, whose records are small, while two snapshots are open.
#[test]
fn a_snapshot_ends_before_a_value_is_refused() {
    let database = Database::create_on(chip("tiny", 1_000), &options()).unwrap();
    let table = database.table("t").unwrap();
    let value = |fill: u32| vec![fill as u8; 1_500];
    set(&database, table, b"key", &value(0)).unwrap();
    let old = database.snapshot().unwrap();
    // What it keeps is old enough to make room by its end alone.
    (1..10).for_each(|number| set(&database, table, b"key", &value(number)).unwrap());
    let young = database.snapshot().unwrap();
    let mut ended = None;
    for number in 10..1_000 {
        assert_eq!(set(&database, table, b"key", &value(number)), Ok(()), "{number}");
        match old.get(table, b"key") {
            Ok(seen) => assert_eq!(seen, Some(value(0))),
            Err(error) => assert_eq!(error, EngineError::SnapshotTooOld),
        }
        if ended.is_none() && old.get(table, b"key").is_err() {
            ended = Some(number);
            assert!(young.get(table, b"key") == Ok(Some(value(9))), "one was enough");
        }
    }
    assert!(ended.is_some_and(|number| number > 20), "it ended at {ended:?}");
    require_sound(&database);
}

/// Goal (README, Limits): the same where the device has no room. Method: values on a small chip, each set again while a
/// snapshot is open, several times what the chip holds.
#[test]
fn a_snapshot_ends_before_a_device_is_full() {
    let database = Database::create_on(chip("slc-2k", 48), &options()).unwrap();
    let table = database.table("t").unwrap();
    let snapshot = database.snapshot().unwrap();
    for number in 0..400_u32 {
        let key = (number % 4).to_be_bytes();
        let put = set(&database, table, &key, &vec![number as u8; 40_000]);
        assert_eq!(put, Ok(()), "{number}");
    }
    assert_eq!(snapshot.get(table, b"key"), Err(EngineError::SnapshotTooOld));
    require_sound(&database);
}

/// Goal: a value is not refused for what only waits for a flush. Method: values that are deleted by commits of which
/// nobody waits for one, many for a record, and one more.
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
    assert_eq!(set(&database, table, b"key", &[7; 1_500]), Ok(()));
    require_sound(&database);
}
