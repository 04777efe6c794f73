//! Secondary indexes and tables with several values for a key, against maps.

use std::collections::{BTreeMap, BTreeSet};

use flagstone::typed::{AnyIndex, IndexFault};
use flagstone::{
    CommitError, Index, IndexedTable, Options, ReadError, TableError, Transaction, Value,
    WriteError,
};
use flagstone_nand::{Crashable as _, Ending, FaultPlan, Profile, SimNand};
use proptest::prelude::*;

use crate::on::Database;

fn created() -> Database<SimNand> {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    Database::create_on(SimNand::new(&profile, 1), &Options::default().with_memory(256 << 10))
        .unwrap()
}

#[derive(Clone, Debug, PartialEq, Value)]
struct User {
    mail: u8,
    tags: Vec<String>,
}

const TAG: Index<i32, User, String> = Index::new("tag", |_, user| user.tags.clone());
const MAIL: Index<i32, User, (u8, bool)> =
    Index::unique("mail", |_, user| if user.mail < 200 { vec![(user.mail, true)] } else { vec![] });
const SIGN: Index<i32, User, bool> = Index::new("sign", |id, _| vec![*id < 0]);

const ALL: [&dyn AnyIndex<i32, User>; 3] = [&TAG, &MAIL, &SIGN];

fn tag() -> impl Strategy<Value = String> {
    "[ab\0]{0,2}"
}

fn user() -> impl Strategy<Value = User> {
    (prop_oneof![0..6_u8, Just(255)], prop::collection::vec(tag(), 0..4))
        .prop_map(|(mail, tags)| User { mail, tags })
}

#[derive(Clone, Debug)]
enum Change {
    Put(i32, User),
    Delete(i32),
    Retag(i32, String),
    Commit,
    Abort,
    Merge,
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => (-4..4_i32, user()).prop_map(|(id, user)| Change::Put(id, user)),
        2 => (-4..4_i32).prop_map(Change::Delete),
        2 => (-4..4_i32, tag()).prop_map(|(id, tag)| Change::Retag(id, tag)),
        1 => Just(Change::Commit),
        1 => Just(Change::Abort),
        1 => Just(Change::Merge),
    ]
}

type Model = BTreeMap<i32, User>;

fn apply(
    users: &IndexedTable<i32, User>,
    transaction: &mut Transaction,
    model: &mut Model,
    change: Change,
) {
    let taken = |model: &Model, id: i32, user: &User| {
        let same = |(other, row): (&i32, &User)| *other != id && row.mail == user.mail;
        user.mail < 200 && model.iter().any(same)
    };
    match change {
        Change::Put(id, user) => match users.put(transaction, &id, &user) {
            Ok(()) => {
                assert!(!taken(model, id, &user));
                model.insert(id, user);
            }
            Err(WriteError::Index { index, fault: IndexFault::Duplicate }) => {
                assert!(index == "mail" && taken(model, id, &user));
            }
            Err(error) => panic!("{error}"),
        },
        Change::Delete(id) => {
            assert_eq!(users.delete(transaction, &id).unwrap(), model.remove(&id).is_some());
        }
        Change::Retag(id, tag) => {
            let found = users.update(transaction, &id, |user| user.tags = vec![tag.clone()]);
            assert_eq!(
                found.unwrap(),
                model.get_mut(&id).map(|user| user.tags = vec![tag]).is_some()
            );
        }
        Change::Commit | Change::Abort | Change::Merge => {}
    }
}

fn agree(users: &IndexedTable<i32, User>, database: &Database<SimNand>, model: &Model) {
    let snapshot = database.snapshot().unwrap();
    let report = users.check_indexes(&snapshot).unwrap();
    assert!(report.is_sound() && report.rows == model.len() as u64, "{report:?}");
    let tags: BTreeSet<&String> = model.values().flat_map(|user| &user.tags).collect();
    let absent = String::from("absent");
    for tag in tags.into_iter().chain([&absent]) {
        let found = users.find(&snapshot, &TAG, tag.as_str()).unwrap();
        let found: Vec<_> = found.map(Result::unwrap).collect();
        let has = |row: &(&i32, &User)| row.1.tags.contains(tag);
        let expected: Vec<_> =
            model.iter().filter(has).map(|(id, user)| (*id, user.clone())).collect();
        assert_eq!(found, expected, "{tag:?}");
    }
    let pairs: BTreeSet<(String, i32)> = model
        .iter()
        .flat_map(|(id, user)| user.tags.iter().map(|tag| (tag.clone(), *id)))
        .collect();
    let bound = |text: &str| String::from(text);
    let range = (std::ops::Bound::Excluded(bound("a")), std::ops::Bound::Included(bound("b")));
    let inside = |pair: &&(String, i32)| pair.0.as_str() > "a" && pair.0.as_str() <= "b";
    let expected: Vec<_> = pairs.iter().filter(inside).rev().cloned().collect();
    let found = users.find_range(&snapshot, &TAG, range).unwrap().rev();
    assert_eq!(found.map(Result::unwrap).collect::<Vec<_>>(), expected);
    let all = users.find_range(&snapshot, &TAG, ..).unwrap();
    assert_eq!(all.map(Result::unwrap).collect::<BTreeSet<_>>(), pairs);
    let negative = users.find_keys(&snapshot, &SIGN, &true).unwrap().map(Result::unwrap);
    assert!(negative.eq(model.range(..0).map(|row| *row.0)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// After any changes of rows, committed or not, each index finds the rows that a search of the map finds.
    #[test]
    fn indexes_find_what_a_search_finds(changes in prop::collection::vec(change(), 0..60)) {
        let database = created();
        let users = database.indexed("users", &ALL).unwrap();
        let (mut durable, mut model) = (Model::new(), Model::new());
        let mut transaction = database.begin();
        for change in changes {
            match change {
                Change::Commit | Change::Merge => {
                    transaction.commit().unwrap();
                    durable.clone_from(&model);
                    if matches!(change, Change::Merge) {
                        database.merge().unwrap();
                    }
                    agree(&users, &database, &model);
                    transaction = database.begin();
                }
                Change::Abort => {
                    transaction.abort();
                    model.clone_from(&durable);
                    transaction = database.begin();
                }
                change => apply(&users, &mut transaction, &mut model, change),
            }
        }
        transaction.commit().unwrap();
        agree(&users, &database, &model);
    }

    /// A table with several values for a key is a set of pairs.
    #[test]
    fn a_multi_table_agrees_with_a_set(
        pairs in prop::collection::vec((any::<bool>(), tag(), tag()), 0..60),
        emptied in tag(),
    ) {
        let database = created();
        let table = database.multi::<String, String>("pairs").unwrap();
        let mut model: BTreeSet<(String, String)> = BTreeSet::new();
        let mut transaction = database.begin();
        for (adds, key, value) in pairs {
            if adds {
                table.insert(&mut transaction, &key, &value).unwrap();
                model.insert((key, value));
            } else {
                table.remove(&mut transaction, key.as_str(), &value).unwrap();
                model.remove(&(key, value));
            }
        }
        for (key, value) in &model {
            prop_assert!(table.contains(&transaction, key, value).unwrap());
            prop_assert!(table.contains_key(&transaction, key).unwrap());
            let values: Vec<_> = table.values(&transaction, key).rev().map(Result::unwrap).collect();
            let expected: Vec<_> =
                model.iter().rev().filter(|pair| pair.0 == *key).map(|pair| pair.1.clone()).collect();
            prop_assert_eq!(table.count(&transaction, key).unwrap(), expected.len() as u64);
            prop_assert_eq!(values, expected);
        }
        let count = table.remove_all(&mut transaction, &emptied).unwrap();
        let before = model.len();
        model.retain(|pair| pair.0 != emptied);
        prop_assert_eq!(count as usize, before - model.len());
        prop_assert!(!table.contains_key(&transaction, &emptied).unwrap());
        let rows: Vec<_> = table.pairs(&transaction).map(Result::unwrap).collect();
        prop_assert_eq!(rows, model.into_iter().collect::<Vec<_>>());
    }
}

/// Goal: an index that is declared later has the entries of all rows, after a restart too.
///
/// Method: more rows than one batch, and more entries than memory holds, so that making the index spills.
#[test]
fn a_new_index_finds_the_rows_that_were_there() {
    let database = created();
    let users = database.indexed("users", &[&SIGN]).unwrap();
    for first in [0, 2_500] {
        let mut transaction = database.begin();
        for id in first..first + 2_500 {
            let user = User { mail: 255, tags: vec![format!("tag {}", id % 10), "x".repeat(40)] };
            users.put(&mut transaction, &id, &user).unwrap();
        }
        transaction.commit().unwrap();
    }
    let users = database.indexed("users", &[&SIGN, &TAG]).unwrap();
    assert!(database.stats().engine.spilled_pages > 0, "the entries fit in memory");
    let options = Options::default().with_memory(256 << 10);
    let database = Database::open_on(
        {
            drop(users);
            database.into_device().unwrap()
        },
        &options,
    )
    .unwrap();
    let users = database.indexed("users", &[&SIGN, &TAG]).unwrap();
    let snapshot = database.snapshot().unwrap();
    let report = users.check_indexes(&snapshot).unwrap();
    assert!(report.is_sound() && report.entries == 15_000, "{report:?}");
    assert_eq!(users.find_keys(&snapshot, &TAG, "tag 7").unwrap().count(), 500);
    assert!(database.check().unwrap().is_sound());
}

/// Goal: a power cut while an index is made leaves no part of it (N2), and never harms the rows.
///
/// Method: the index is made on clones of one device, cut at every 7th operation, with entries that spill;
/// the database opened afterwards has no index or a sound one, and can make it.
#[test]
fn a_cut_while_an_index_is_made_leaves_all_of_it_or_nothing() {
    const ROWS: i32 = 1_500;
    let options = Options::default().with_memory(64 << 10);
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
    let users = database.indexed("users", &[]).unwrap();
    let mut transaction = database.begin();
    for id in 0..ROWS {
        let tags = vec![format!("tag {}", id % 10), "x".repeat(40)];
        users.put(&mut transaction, &id, &User { mail: 255, tags }).unwrap();
    }
    transaction.commit().unwrap();
    drop(users);
    let device = database.into_device().unwrap();
    let whole = Database::open_on(device.clone(), &options).unwrap();
    let begun = whole.at_device(|device| device.operation_count());
    drop(whole.indexed("users", &[&TAG]).unwrap());
    assert!(whole.stats().engine.spilled_pages > 0, "the entries fit in memory");
    let ended = whole.at_device(|device| device.operation_count());
    let (mut absent, mut present) = (0, 0);
    for operation in (begun..=ended).step_by(7).chain([ended]) {
        let mut device = device.clone();
        device.set_plan(FaultPlan::power_cut(1, operation, Ending::RandomBits));
        let Ok(database) = Database::open_on(device, &options) else {
            panic!("operation {operation}: the cut was meant for later");
        };
        let made = database.indexed("users", &[&TAG]).map(drop);
        let mut device = database.into_device().unwrap();
        device.power_cycle();
        device.set_plan(FaultPlan::default());
        let database = Database::open_on(device, &options).unwrap();
        match database.existing_table("users@tag").unwrap() {
            None => absent += 1,
            Some(_) => present += 1,
        }
        assert!(made.is_err() || database.existing_table("users@tag").unwrap().is_some());
        let users = database.indexed("users", &[&TAG]).unwrap();
        let report = users.check_indexes(&database.snapshot().unwrap()).unwrap();
        let sound = report.is_sound() && report.rows == ROWS as u64;
        assert!(sound, "operation {operation}: {report:?}");
        assert!(database.check().unwrap().is_sound(), "operation {operation}");
    }
    assert!(absent > 3 && present > 0, "{absent} cuts before the commit, {present} behind it");
}

#[test]
fn a_table_cannot_be_opened_without_its_indexes() {
    let database = created();
    let users = database.indexed("users", &[&SIGN]).unwrap();
    let error = database.indexed::<i32, User>("users", &[&TAG]).unwrap_err();
    let undeclared = TableError::Index { index: "sign".into(), fault: IndexFault::Undeclared };
    assert_eq!(error, undeclared);
    assert_eq!(database.tables().unwrap(), ["users", "users@sign"], "nothing was made");
    let snapshot = database.snapshot().unwrap();
    let error = users.find_keys(&snapshot, &TAG, "a").unwrap_err();
    assert_eq!(error, ReadError::Index { index: "tag".into(), fault: IndexFault::Unknown });
}

#[test]
fn a_new_unique_index_refuses_rows_that_contradict_it() {
    let database = created();
    let users = database.indexed("users", &[]).unwrap();
    let mut transaction = database.begin();
    for id in [1, 2] {
        users.put(&mut transaction, &id, &User { mail: 7, tags: vec![] }).unwrap();
    }
    transaction.commit().unwrap();
    let error = database.indexed::<i32, User>("users", &[&MAIL]).unwrap_err();
    assert_eq!(error, TableError::Index { index: "mail".into(), fault: IndexFault::Duplicate });
    assert_eq!(database.tables().unwrap(), ["users"], "nothing was made");
}

/// Goal: several new indexes are made all together, or not at all.
#[test]
fn new_indexes_are_made_in_one_transaction() {
    let database = created();
    let users = database.indexed("users", &[]).unwrap();
    let mut transaction = database.begin();
    for id in [1, 2] {
        users.put(&mut transaction, &id, &User { mail: 7, tags: vec![] }).unwrap();
    }
    transaction.commit().unwrap();
    database.indexed::<i32, User>("users", &[&TAG, &SIGN, &MAIL]).unwrap_err();
    assert_eq!(database.tables().unwrap(), ["users"]);
    let users = database.indexed::<i32, User>("users", &[&SIGN]).unwrap();
    let mut transaction = database.begin();
    users.delete(&mut transaction, &2).unwrap();
    transaction.commit().unwrap();
    let commits = database.stats().engine.commits;
    let users = database.indexed::<i32, User>("users", &[&TAG, &SIGN]).unwrap();
    assert_eq!(database.stats().engine.commits, commits + 1);
    assert!(users.check_indexes(&database.snapshot().unwrap()).unwrap().is_sound());
}

/// Goal: an entry of a unique index that belongs to no row is no duplicate. Method: rows deleted past the
/// index; their stale entries do not stop their own rows, stop other rows with an error that says `Stale`,
/// and change nothing.
#[test]
fn stale_entries_of_a_unique_index_are_no_duplicates() {
    let database = created();
    let users = database.indexed::<i32, User>("users", &[&MAIL]).unwrap();
    let user = |mail| User { mail, tags: vec![] };
    let refused = |fault| Err(WriteError::Index { index: "mail".into(), fault });
    let mut transaction = database.begin();
    for id in [1, 2, 3] {
        users.put(&mut transaction, &id, &user(id as u8)).unwrap();
    }
    users.rows().delete(&mut transaction, &1).unwrap();
    users.rows().delete(&mut transaction, &2).unwrap();
    users.rows().put(&mut transaction, &3, &user(9)).unwrap();
    users.put(&mut transaction, &1, &user(1)).unwrap();
    assert_eq!(users.put(&mut transaction, &4, &user(1)), refused(IndexFault::Duplicate));
    assert_eq!(users.put(&mut transaction, &4, &user(2)), refused(IndexFault::Stale));
    assert_eq!(users.put(&mut transaction, &4, &user(3)), refused(IndexFault::Stale));
    users.repair(&mut transaction).unwrap();
    users.put(&mut transaction, &4, &user(2)).unwrap();
    assert!(users.check_indexes(&transaction).unwrap().is_sound());
    transaction.commit().unwrap();
}

/// Goal: an error of a row takes the place of that row, and the next ones follow.
#[test]
fn rows_behind_a_stale_entry_are_found() {
    let database = created();
    let users = database.indexed::<i32, User>("users", &[&SIGN]).unwrap();
    let mut transaction = database.begin();
    for id in [1, 2, 3] {
        users.put(&mut transaction, &id, &User { mail: 255, tags: vec![] }).unwrap();
    }
    users.rows().delete(&mut transaction, &2).unwrap();
    let found = users.find(&transaction, &SIGN, &false).unwrap();
    let found: Vec<_> = found.map(|row| row.ok().map(|(id, _)| id)).collect();
    assert_eq!(found, [Some(1), None, Some(3)]);
}

/// Goal: rows changed past the index are found by a check, and put right by a repair.
#[test]
fn a_repair_changes_what_differs() {
    let database = created();
    let users = database.indexed("users", &ALL).unwrap();
    let mut transaction = database.begin();
    for id in 0..600 {
        users.put(&mut transaction, &id, &User { mail: 255, tags: vec!["a".into()] }).unwrap();
    }
    let rows = users.rows();
    rows.put(&mut transaction, &1, &User { mail: 3, tags: vec!["b".into()] }).unwrap();
    rows.delete(&mut transaction, &2).unwrap();
    let report = users.check_indexes(&transaction).unwrap();
    assert_eq!((report.missing, report.extra), (2, 3), "{report:?}");
    let stale = users.find(&transaction, &TAG, "a").unwrap().filter_map(Result::err).next();
    assert_eq!(stale, Some(ReadError::Index { index: "tag".into(), fault: IndexFault::Stale }));
    let repaired = users.repair(&mut transaction).unwrap();
    assert_eq!((repaired.missing, repaired.extra), (2, 3));
    assert!(users.check_indexes(&transaction).unwrap().is_sound());
    assert_eq!(users.repair(&mut transaction).unwrap().missing, 0);
    transaction.commit().unwrap();
}

/// Goal: a change that stops half way dooms its transaction (N1).
///
/// Method: an entry longer than any key is refused when others have been written.
#[test]
fn a_change_that_fails_half_way_cannot_be_committed() {
    let database = created();
    let users = database.indexed("users", &ALL).unwrap();
    let mut transaction = database.begin();
    users.put(&mut transaction, &1, &User { mail: 1, tags: vec![] }).unwrap();
    let tags = vec!["a".into(), "b".repeat(5_000)];
    let error = users.put(&mut transaction, &2, &User { mail: 2, tags }).unwrap_err();
    assert!(matches!(error, WriteError::KeyTooLong { .. }), "{error}");
    assert_eq!(transaction.commit().unwrap_err(), CommitError::Incomplete(Box::new(error)));
    let snapshot = database.snapshot().unwrap();
    assert_eq!(users.range(&snapshot, ..).count(), 0);
    assert!(users.check_indexes(&snapshot).unwrap().is_sound());
}
