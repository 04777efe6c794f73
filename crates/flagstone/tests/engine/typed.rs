//! Typed tables against a map, and next to the byte interface.

use std::collections::BTreeMap;

use flagstone::{Error, Key, Options, RowPart, TypedTable, Value};
use flagstone_nand::{Profile, SimNand};
use proptest::prelude::*;

use crate::on::Database;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Key)]
struct Place {
    country: String,
    number: i32,
}

#[derive(Clone, Debug, PartialEq, Value)]
struct Person {
    name: String,
    visits: u64,
    notes: Vec<String>,
}

fn created() -> Database<SimNand> {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    Database::create_on(SimNand::new(&profile, 1), &Options::default().with_memory(1 << 20))
        .unwrap()
}

fn place() -> impl Strategy<Value = Place> {
    ("[a\0b]{0,2}", -3..3_i32).prop_map(|(country, number)| Place { country, number })
}

fn person() -> impl Strategy<Value = Person> {
    (".{0,9}", any::<u64>(), prop::collection::vec(".{0,9}", 0..4))
        .prop_map(|(name, visits, notes)| Person { name, visits, notes })
}

#[derive(Clone, Debug)]
enum Change {
    Put(Place, Person),
    Delete(Place),
    Visit(Place),
    GetOrInsert(Place, Person),
    Retain(u64),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (place(), person()).prop_map(|(place, person)| Change::Put(place, person)),
        1 => place().prop_map(Change::Delete),
        2 => place().prop_map(Change::Visit),
        2 => (place(), person()).prop_map(|(place, person)| Change::GetOrInsert(place, person)),
        1 => any::<u64>().prop_map(Change::Retain),
    ]
}

proptest! {
    /// A typed table agrees with a map of the same types, in the same order.
    #[test]
    fn a_typed_table_agrees_with_a_map(
        changes in prop::collection::vec(change(), 0..40),
        low in place(),
        high in place(),
    ) {
        let database = created();
        let table: TypedTable<Place, Person> = database.typed("people").unwrap();
        let mut model: BTreeMap<Place, Person> = BTreeMap::new();
        let mut transaction = database.begin();
        for change in changes {
            match change {
                Change::Put(place, person) => {
                    table.put(&mut transaction, &place, &person).unwrap();
                    model.insert(place, person);
                }
                Change::Delete(place) => {
                    table.delete(&mut transaction, &place).unwrap();
                    model.remove(&place);
                }
                Change::Visit(place) => {
                    let visit = |person: &mut Person| person.visits = person.visits.wrapping_add(1);
                    let found = table.update(&mut transaction, &place, visit).unwrap();
                    prop_assert_eq!(found, model.get_mut(&place).map(visit).is_some());
                }
                Change::GetOrInsert(place, person) => {
                    let got = table.get_or_insert_with(&mut transaction, &place, || person.clone());
                    prop_assert_eq!(&got.unwrap(), model.entry(place).or_insert(person));
                }
                Change::Retain(limit) => {
                    let before = model.len();
                    model.retain(|_, person| person.visits < limit);
                    let keep = |_: &Place, person: &Person| person.visits < limit;
                    let count = table.retain(&mut transaction, keep).unwrap();
                    prop_assert_eq!(count as usize, before - model.len());
                }
            }
        }
        transaction.commit().unwrap();
        let snapshot = database.snapshot().unwrap();
        let rows: Vec<_> = table.range(&snapshot, ..).map(Result::unwrap).collect();
        prop_assert_eq!(rows, model.clone().into_iter().collect::<Vec<_>>());
        prop_assert_eq!(table.len(&snapshot).unwrap(), model.len() as u64);
        for (place, person) in &model {
            prop_assert_eq!(table.get(&snapshot, place).unwrap(), Some(person.clone()));
        }
        prop_assert_eq!(table.contains_key(&snapshot, &low).unwrap(), model.contains_key(&low));
        let (low, high) = (low.clone().min(high.clone()), low.max(high));
        let rows: Vec<_> =
            table.range(&snapshot, low.clone()..=high.clone()).rev().map(Result::unwrap).collect();
        let expected: Vec<_> = model.range(low..=high).rev().map(|(key, value)| (key.clone(), value.clone())).collect();
        prop_assert_eq!(rows, expected);
    }
}

#[test]
fn texts_and_bytes_are_stored_as_they_are() {
    let database = created();
    let table = database.typed::<String, Vec<u8>>("t").unwrap();
    let mut transaction = database.begin();
    table.put(&mut transaction, "key", &b"value".to_vec()).unwrap();
    assert_eq!(transaction.get(table.table(), b"key").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(table.get(&transaction, "key").unwrap().as_deref(), Some(&b"value"[..]));
}

#[test]
fn rows_of_other_types_are_typed_errors() {
    let database = created();
    let table = database.typed::<u32, Person>("t").unwrap();
    let mut transaction = database.begin();
    transaction.put(table.table(), b"1234", b"nonsense").unwrap();
    transaction.put(table.table(), b"12345", b"nonsense").unwrap();
    let key = u32::from_be_bytes(*b"1234");
    let part_of = |error: Error| match error {
        Error::Decode { part, .. } => part,
        other => panic!("{other}"),
    };
    assert_eq!(part_of(table.get(&transaction, &key).unwrap_err().into()), RowPart::Value);
    let rows: Vec<_> =
        table.range(&transaction, ..).map(|row| part_of(row.unwrap_err().into())).collect();
    assert_eq!(rows, [RowPart::Value, RowPart::Key]);
    let error = table.retain(&mut transaction, |_, _| false).unwrap_err();
    assert_eq!(part_of(error.into()), RowPart::Value);
    assert_eq!(transaction.len(table.table()).unwrap(), 2, "what cannot be read is not deleted");
}

/// Goal: one number in a row of many bytes is a small change on flash, too.
#[test]
fn an_update_of_one_field_logs_that_field() {
    let database = created();
    let table = database.typed::<u32, Person>("t").unwrap();
    let mut transaction = database.begin();
    let person = Person { name: "Ada".into(), visits: 1, notes: vec!["x".repeat(600)] };
    table.put(&mut transaction, &1, &person).unwrap();
    transaction.commit().unwrap();
    let before = database.stats().engine.log_bytes;
    let mut transaction = database.begin();
    assert!(table.update(&mut transaction, &1, |person| person.visits += 1).unwrap());
    transaction.commit().unwrap();
    let logged = database.stats().engine.log_bytes - before;
    assert!(logged < 100, "{logged} bytes in the log for one number");
}
