//! Entries, updates in place, cursors and `retain`, against a map.

use std::collections::BTreeMap;

use flagstone::{CommitError, Options, Table, Transaction};
use flagstone_nand::{Profile, SimNand};
use proptest::prelude::*;

use crate::on::Database;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn created() -> (Database<SimNand>, Table) {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    let options = Options::default().with_memory(128 << 10);
    let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
    let table = database.table("t").unwrap();
    (database, table)
}

/// Changes of one key, or through the cursor.
#[derive(Clone, Debug)]
enum Change {
    OrInsert(Vec<u8>, Vec<u8>),
    Flip(Vec<u8>, usize),
    Grow(Vec<u8>),
    Remove(Vec<u8>),
    RetainOdd(Vec<u8>, Vec<u8>),
    Merge,
    Seek(Vec<u8>),
    Next,
    Prev,
    Start,
    End,
    CursorPut(Vec<u8>),
    CursorDelete,
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(0..4_u8, 0..4)
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..60),
        1 => prop::collection::vec(any::<u8>(), 4_000..4_100),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (key(), value()).prop_map(|(key, value)| Change::OrInsert(key, value)),
        2 => (key(), 0..100_usize).prop_map(|(key, at)| Change::Flip(key, at)),
        1 => key().prop_map(Change::Grow),
        1 => key().prop_map(Change::Remove),
        1 => (key(), key()).prop_map(|(low, high)| Change::RetainOdd(low, high)),
        1 => Just(Change::Merge),
        1 => key().prop_map(Change::Seek),
        4 => Just(Change::Next),
        4 => Just(Change::Prev),
        1 => Just(Change::Start),
        1 => Just(Change::End),
        1 => value().prop_map(Change::CursorPut),
        1 => Just(Change::CursorDelete),
    ]
}

fn is_odd(key: &[u8], value: &[u8]) -> bool {
    (key.len() + value.len()) % 2 == 1
}

/// Changes rows through the transaction, and the map; false when `change` is none of these.
fn change_row(
    transaction: &mut Transaction,
    table: Table,
    model: &mut Model,
    change: &Change,
) -> bool {
    let flip = |value: &mut Vec<u8>, at: usize| {
        if let Some(byte) = value.get_mut(at) {
            *byte ^= 0x55;
        }
    };
    match change {
        Change::OrInsert(key, value) => {
            let entry = transaction.entry(table, key).unwrap();
            assert_eq!(entry.value(), model.get(key).map(Vec::as_slice));
            let entry = entry.or_insert(value.clone()).unwrap();
            let expected = model.entry(key.clone()).or_insert_with(|| value.clone());
            assert_eq!(entry.value(), Some(expected.as_slice()));
        }
        Change::Flip(key, at) => {
            let found = transaction.update(table, key, |value| flip(value, *at)).unwrap();
            assert_eq!(found, model.get_mut(key).map(|value| flip(value, *at)).is_some());
        }
        Change::Grow(key) => {
            let entry = transaction.entry(table, key).unwrap();
            entry.and_modify(|value| value.push(7)).unwrap();
            model.entry(key.clone()).and_modify(|value| value.push(7));
        }
        Change::Remove(key) => {
            let removed = transaction.entry(table, key).unwrap().remove().unwrap();
            assert_eq!(removed, model.remove(key));
        }
        Change::RetainOdd(low, high) => {
            let range = (low.as_slice(), high.as_slice());
            let count = transaction.retain(table, range.0..range.1, is_odd).unwrap();
            let before = model.len();
            model.retain(|key, value| key < low || key >= high || is_odd(key, value));
            assert_eq!(count, (before - model.len()) as u64);
        }
        _ => return false,
    }
    true
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Every change by entry, update and retain has the same effect on the table as on the map.
    #[test]
    fn changes_that_read_first_agree_with_a_map(
        changes in prop::collection::vec(change(), 0..60)
    ) {
        let (database, table) = created();
        let mut model = Model::new();
        for changes in changes.chunks(7) {
            let mut transaction = database.begin();
            for change in changes {
                change_row(&mut transaction, table, &mut model, change);
            }
            transaction.commit().unwrap();
            if changes.iter().any(|change| matches!(change, Change::Merge)) {
                database.merge().unwrap();
            }
            let snapshot = database.snapshot().unwrap();
            let rows: Model = snapshot.range(table, ..).map(Result::unwrap).collect();
            prop_assert_eq!(&rows, &model);
            let transaction = database.begin();
            for key in (0..4_u8).map(|byte| [byte]) {
                let is_there = model.contains_key(key.as_slice());
                prop_assert_eq!(snapshot.contains_key(table, &key).unwrap(), is_there);
                prop_assert_eq!(transaction.contains_key(table, &key).unwrap(), is_there);
            }
        }
    }

    /// A cursor that changes rows stands where a cursor over a map would stand.
    #[test]
    fn a_cursor_agrees_with_a_map(
        rows in prop::collection::btree_map(key(), value(), 0..30),
        changes in prop::collection::vec(change(), 0..60),
    ) {
        let (database, table) = created();
        let mut model = rows;
        let mut transaction = database.begin();
        for (key, value) in &model {
            transaction.put(table, key, value).unwrap();
        }
        let mut cursor = transaction.cursor_mut(table);
        // The place: all rows below it, and the row it stands on, if any.
        let mut below: Option<Vec<u8>> = None;
        let mut at_end = false;
        let mut current: Option<Vec<u8>> = None;
        for change in changes {
            let found = match &change {
                Change::Seek(key) => {
                    current = model.range(key.clone()..).next().map(|row| row.0.clone());
                    (below, at_end) = (current.clone(), current.is_none());
                    cursor.seek(key).unwrap()
                }
                Change::Next => {
                    let next = match (&below, at_end) {
                        (_, true) => None,
                        (None, _) => model.iter().next(),
                        (Some(key), _) if current.is_some() => {
                            model.range(key.clone()..).find(|row| row.0 != key)
                        }
                        (Some(key), _) => model.range(key.clone()..).next(),
                    };
                    current = next.map(|row| row.0.clone());
                    (below, at_end) = (current.clone(), current.is_none());
                    cursor.next().unwrap()
                }
                Change::Prev => {
                    let prev = match (&below, at_end) {
                        (_, true) => model.iter().next_back(),
                        (None, _) => None,
                        (Some(key), _) => model.range(..key.clone()).next_back(),
                    };
                    current = prev.map(|row| row.0.clone());
                    (below, at_end) = (current.clone(), false);
                    cursor.prev().unwrap()
                }
                Change::Start => {
                    (below, at_end, current) = (None, false, None);
                    cursor.rewind();
                    cursor.current()
                }
                Change::End => {
                    (below, at_end, current) = (None, true, None);
                    cursor.to_end();
                    cursor.current()
                }
                Change::CursorPut(value) => {
                    prop_assert_eq!(cursor.put(value).unwrap(), current.is_some());
                    if let Some(key) = &current {
                        model.insert(key.clone(), value.clone());
                    }
                    cursor.current()
                }
                Change::CursorDelete => {
                    let row = current.take().and_then(|key| model.remove_entry(&key));
                    prop_assert_eq!(cursor.delete().unwrap(), row);
                    cursor.current()
                }
                _ => cursor.current(),
            };
            let expected = current.as_ref().map(|key| (key.as_slice(), model[key].as_slice()));
            prop_assert_eq!(found, expected, "{:?}", change);
        }
        transaction.commit().unwrap();
        let rows: Model =
            database.snapshot().unwrap().range(table, ..).map(Result::unwrap).collect();
        prop_assert_eq!(rows, model);
    }
}

/// Goal: a cursor crosses batches and leaves both ways.
#[test]
fn a_cursor_walks_a_large_table_both_ways() {
    let (database, table) = created();
    let mut transaction = database.begin();
    for number in 0..3_000_u32 {
        transaction.put(table, &number.to_be_bytes(), &number.to_le_bytes()).unwrap();
    }
    transaction.commit().unwrap();
    database.merge().unwrap();
    let snapshot = database.snapshot().unwrap();
    let mut cursor = snapshot.cursor(table);
    for number in 0..3_000_u32 {
        let row = cursor.next().unwrap().unwrap();
        assert_eq!(row, (&number.to_be_bytes()[..], &number.to_le_bytes()[..]));
        if number % 250 == 249 {
            cursor.prev().unwrap();
            cursor.next().unwrap();
        }
    }
    assert_eq!(cursor.next().unwrap(), None);
    for number in (0..3_000_u32).rev() {
        assert_eq!(cursor.prev().unwrap().unwrap().0, number.to_be_bytes());
    }
    assert_eq!(cursor.prev().unwrap(), None);
}

/// Goal: rows below a short key of zeros are found from behind, however many leaves follow. Method: keys of
/// one size, whose separators take its place in the page; read by a transaction, a snapshot, and a kept
/// snapshot.
#[test]
fn a_range_ends_below_a_few_zeros() {
    let (database, table) = created();
    let mut transaction = database.begin();
    transaction.put(table, &[], b"first").unwrap();
    for number in 1..=255_u8 {
        transaction.put(table, &[number; 8], &[1; 100]).unwrap();
    }
    transaction.commit().unwrap();
    database.create_named_snapshot("kept").unwrap();
    let (transaction, snapshot) = (database.begin(), database.snapshot().unwrap());
    let kept = database.open_named_snapshot("kept").unwrap();
    for size in 1..12 {
        let zeros = vec![0; size];
        let found = [
            transaction.range(table, ..zeros.as_slice()).rev().next(),
            snapshot.range(table, ..zeros.as_slice()).rev().next(),
            kept.range(table, ..zeros.as_slice()).rev().next(),
        ];
        for row in found {
            assert_eq!(row, Some(Ok((Vec::new(), b"first".to_vec()))), "{size}");
        }
    }
}

#[test]
fn retain_crosses_its_batches() {
    let (database, table) = created();
    let mut transaction = database.begin();
    for number in 0..2_000_u32 {
        transaction.put(table, &number.to_be_bytes(), &[0; 30]).unwrap();
    }
    let keep = |key: &[u8], _: &[u8]| key[3].is_multiple_of(3);
    let all: u64 =
        (0..2_000_u32).filter(|number| !number.to_be_bytes()[3].is_multiple_of(3)).count() as u64;
    assert_eq!(transaction.retain(table, .., keep).unwrap(), all);
    assert_eq!(transaction.len(table).unwrap(), 2_000 - all);
    transaction.abort();
}

/// Goal: an update of one byte in a value logs about one byte.
#[test]
fn an_update_in_place_logs_what_differs() {
    let (database, table) = created();
    let mut transaction = database.begin();
    transaction.put(table, b"k", &[0; 500]).unwrap();
    transaction.commit().unwrap();
    let logged = |byte: usize| {
        let before = database.stats().engine.log_bytes;
        let mut transaction = database.begin();
        assert!(transaction.update(table, b"k", |value| value[byte] += 1).unwrap());
        transaction.commit().unwrap();
        database.stats().engine.log_bytes - before
    };
    for byte in [0, 250, 499] {
        let bytes = logged(byte);
        assert!(bytes < 100, "{bytes} bytes in the log for one that differs");
    }
}

#[test]
fn two_that_change_one_row_wait_for_each_other() {
    let (database, table) = created();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let mut transaction = database.begin();
                    let entry = transaction.entry(table, b"count").unwrap();
                    let entry = entry.and_modify(|value| value[0] += 1).unwrap();
                    entry.or_insert([1]).unwrap();
                    match transaction.commit() {
                        Ok(_) => {}
                        Err(CommitError::Deadlock) => {
                            panic!("the key was locked before it was read")
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    assert_eq!(database.snapshot().unwrap().get(table, b"count").unwrap(), Some(vec![200]));
}

/// Goal: the answer whether a row is there needs no read of its value. Method: a value of many pages, and the
/// reads counted.
#[test]
fn a_large_value_is_not_loaded_to_say_that_it_is_there() {
    let (database, table) = created();
    let mut transaction = database.begin();
    transaction.put(table, b"large", &[7; 40_000]).unwrap();
    assert!(transaction.contains_key(table, b"large").unwrap());
    transaction.commit().unwrap();
    let reads = || database.stats().space.reads_by_purpose.iter().sum::<u64>();
    let snapshot = database.snapshot().unwrap();
    assert!(snapshot.contains_key(table, b"large").unwrap());
    let before = reads();
    assert!(snapshot.contains_key(table, b"large").unwrap());
    assert!(database.begin().contains_key(table, b"large").unwrap());
    assert_eq!(reads(), before, "its leaf is in memory");
    assert_eq!(snapshot.get(table, b"large").unwrap().map(|value| value.len()), Some(40_000));
    assert!(reads() > before + 10, "a load is seen");
}
