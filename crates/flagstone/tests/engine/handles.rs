//! Handles: the name of a table, a point of a transaction or a snapshot is accepted by its owner alone.

use flagstone::{Error, Options, ReadError, Savepoint, Table, WriteError};
use flagstone_engine::{SnapshotId, Stop};
use flagstone_nand::{Profile, SimNand};

use crate::on::Database;

fn database() -> Database<SimNand> {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    Database::create_on(SimNand::new(&profile, 1), &Options::default()).unwrap()
}

fn reopened(database: Database<SimNand>) -> Database<SimNand> {
    Database::open_on(database.into_device().unwrap(), &Options::default()).unwrap()
}

fn put(database: &flagstone::Database, table: Table, key: &[u8]) {
    let mut transaction = database.begin();
    transaction.put(table, key, key).unwrap();
    transaction.commit().unwrap();
}

/// Whether no transaction of a database accepts a savepoint of another one, whichever number the transaction
/// has.
fn refuses_savepoint(database: &Database<SimNand>, foreign: Savepoint) {
    let table = database.table("t").unwrap();
    for number in 0..6 {
        let mut transaction = database.begin();
        for key in 0..3_u8 {
            transaction.put(table, &[key], b"").unwrap();
            transaction.savepoint().unwrap();
        }
        let refused = transaction.rollback_to(foreign);
        assert_eq!(refused, Err(WriteError::NoSavepoint), "transaction {number}");
        assert_eq!(transaction.len(table).unwrap(), 3);
    }
}

/// A savepoint of the third transaction of a database.
fn savepoint_of(database: &Database<SimNand>) -> Savepoint {
    let table = database.table("t").unwrap();
    let mut transactions = [(); 3].map(|()| database.begin());
    transactions[2].put(table, b"k", b"v").unwrap();
    transactions[2].savepoint().unwrap()
}

/// Goal: a savepoint marks a point in one transaction, even where others have the same number. Method: the
/// savepoint of another database, of a transaction that has ended, and of the same database opened before,
/// from the same chip.
#[test]
fn a_savepoint_of_another_transaction_is_refused() {
    let (one, two) = (database(), database());
    one.table("t").unwrap();
    refuses_savepoint(&one, savepoint_of(&two));
    let ended = savepoint_of(&one);
    refuses_savepoint(&one, ended);
    let device = one.into_device().unwrap();
    let [before, after] =
        [(); 2].map(|()| Database::open_on(device.clone(), &Options::default()).unwrap());
    refuses_savepoint(&after, savepoint_of(&before));
    refuses_savepoint(&after, ended);
}

/// Every call refuses a table of another database.
fn refuses(database: &flagstone::Database, table: Table) {
    let mut transaction = database.begin();
    let (unread, refused) = (ReadError::ForeignTable, WriteError::ForeignTable);
    assert_eq!(transaction.get(table, b"k"), Err(unread.clone()));
    assert_eq!(transaction.get_part(table, b"k", 0, 1), Err(unread.clone()));
    assert_eq!(transaction.contains_key(table, b"k"), Err(unread.clone()));
    assert_eq!(transaction.lock_key(table, b"k"), Err(refused.clone()));
    assert_eq!(transaction.put(table, b"k", b"v"), Err(refused.clone()));
    assert_eq!(transaction.put(table, b"k", &[7; 50_000]), Err(refused.clone()));
    assert_eq!(transaction.patch(table, b"k", 0, b"v"), Err(refused.clone()));
    assert_eq!(transaction.delete(table, b"k"), Err(refused.clone()));
    assert_eq!(transaction.len(table), Err(unread.clone()));
    assert_eq!(transaction.retain(table, .., |_, _| false), Err(refused.clone()));
    assert_eq!(transaction.entry(table, b"k").map(drop), Err(refused.clone()));
    assert_eq!(transaction.cursor(table).seek(b"").map(drop), Err(unread.clone()));
    assert_eq!(transaction.cursor_mut(table).next().map(drop), Err(unread.clone()));
    assert_eq!(transaction.len_estimate(table), 0);
    transaction.commit().unwrap();
    let snapshot = database.snapshot().unwrap();
    assert_eq!(snapshot.get(table, b"k"), Err(unread.clone()));
    assert_eq!(snapshot.range(table, ..).next(), Some(Err(unread.clone())));
    assert_eq!(snapshot.last(table), Err(unread.clone()));
    let loaded = database.load_sorted(table, [(b"k", b"v")]);
    assert!(matches!(loaded.unwrap_err().source, Error::ForeignTable));
}

/// Goal: a table of another database is unknown here, although a table with its number exists, and stays
/// unknown after the database is opened again. Method: every call that takes a table; typed tables carry one.
#[test]
fn a_table_of_another_database_is_refused() {
    let (one, two) = (database(), database());
    let (table, other) = (one.table("t").unwrap(), two.table("other").unwrap());
    put(&one, table, b"k");
    put(&two, other, b"k");
    refuses(&one, other);
    let typed = two.typed::<u32, u32>("typed").unwrap();
    let mut transaction = one.begin();
    assert_eq!(typed.put(&mut transaction, &1, &1), Err(WriteError::ForeignTable));
    let multi = two.multi::<u32, u32>("multi").unwrap();
    assert_eq!(multi.insert(&mut transaction, &1, &1), Err(WriteError::ForeignTable));
    drop(transaction);
    let one = reopened(one);
    refuses(&one, other);
    assert_eq!(one.snapshot().unwrap().len(table).unwrap(), 1);
}

/// Goal: a dropped table is not the next table of its name, in this session and in the next, where its number
/// belongs to another.
#[test]
fn a_dropped_table_is_not_the_next_one() {
    let database = database();
    let old = database.table("t").unwrap();
    put(&database, old, b"k");
    database.drop_table("t").unwrap();
    let new = database.table("t").unwrap();
    assert_eq!(database.begin().put(old, b"x", b""), Err(WriteError::NoTable));
    assert_eq!(database.snapshot().unwrap().len(new).unwrap(), 0);
    let database = reopened(database);
    for name in ["u", "v"] {
        database.table(name).unwrap();
    }
    assert_eq!(database.begin().put(old, b"x", b""), Err(WriteError::NoTable));
    put(&database, new, b"x");
    assert_eq!(database.snapshot().unwrap().len(database.table("t").unwrap()).unwrap(), 1);
}

/// Goal: a table outlives the session: after a power cut as after a close, by a handle of any session before,
/// and in a session that only reads. Method: a table a session, each read and written by the handles of all.
#[test]
fn a_table_is_known_when_the_database_is_opened_again() {
    let mut database = database();
    let mut tables = Vec::new();
    for name in ["a", "b", "c", "d"] {
        tables.push(database.table(name).unwrap());
        for table in &tables {
            put(&database, *table, name.as_bytes());
        }
        if name == "b" {
            database.create_named_snapshot("kept").unwrap();
        }
        database = reopened(database);
    }
    let reads = |database: &Database<SimNand>| {
        for (age, table) in tables.iter().enumerate() {
            assert_eq!(database.snapshot().unwrap().len(*table).unwrap(), 4 - age as u64);
        }
    };
    reads(&database);
    let device = database.into_device().unwrap();
    reads(&Database::open_read_only_on(device, &Options::default()).unwrap());
}

/// Goal: the tables of a kept snapshot are read in it alone, and tables of the database in it where both mean
/// the same. Method: a table whose number belongs to another in the next session.
#[test]
fn tables_of_a_kept_snapshot_are_its_own() {
    let database = database();
    let [stays, goes] = ["stays", "goes"].map(|name| database.table(name).unwrap());
    put(&database, stays, b"one");
    put(&database, goes, b"secret");
    database.create_named_snapshot("kept").unwrap();
    database.drop_table("goes").unwrap();
    let database = reopened(reopened(database));
    let names = ["came", "later", "last"];
    let came = names.map(|name| database.table(name).unwrap());
    let stays = database.table("stays").unwrap();
    let kept = database.open_named_snapshot("kept").unwrap();
    assert_eq!(kept.get(stays, b"one").unwrap().as_deref(), Some(&b"one"[..]));
    for table in came {
        let found = kept.get(table, b"secret");
        let is_refused = matches!(found, Err(ReadError::ForeignTable | ReadError::NoTable));
        assert!(is_refused, "{found:?}");
    }
    let goes = kept.table("goes").unwrap().unwrap();
    assert_eq!(kept.get(goes, b"secret").unwrap().as_deref(), Some(&b"secret"[..]));
    refuses(&database, goes);
    let again = database.open_named_snapshot("kept").unwrap();
    assert_eq!(again.len(goes).unwrap(), 1, "the same snapshot");
    database.create_named_snapshot("other").unwrap();
    let other = database.open_named_snapshot("other").unwrap();
    assert_eq!(other.get(goes, b"secret"), Err(ReadError::ForeignTable));
    assert_eq!(other.len(stays).unwrap(), 1);
}

/// Goal: a driver of several engines learns of a transaction or a snapshot that it hands to the wrong one.
#[test]
fn numbers_of_one_engine_mean_nothing_to_another() {
    let (one, two) = (database(), database());
    let (table, _) = (one.table("t").unwrap(), two.table("t").unwrap());
    let (foreign, own) = (two.runtime().engine().begin(), one.runtime().engine().begin());
    assert_ne!(own, foreign);
    let ended = Err(Stop::Error(flagstone_engine::EngineError::Ended));
    assert_eq!(one.runtime().engine().delete(foreign, table, b"k"), ended);
    let id: SnapshotId = two.runtime().engine().begin_snapshot().unwrap();
    let read = one.runtime().engine().get_snapshot(id, table, b"k", &mut Vec::new());
    assert_eq!(read.map(drop), Err(Stop::Error(flagstone_engine::EngineError::NoSnapshot)));
}

/// Goal: the case that a program meets first is clear: two files, one table name. Method: plain files.
#[test]
fn a_table_of_one_file_does_not_reach_another() {
    let directory = tempfile::tempdir().unwrap();
    let make = |name: &str| -> flagstone::Database {
        flagstone::Database::create(directory.path().join(name), &Options::default()).unwrap()
    };
    let (one, two) = (make("one"), make("two"));
    let (table, other) = (one.table("t").unwrap(), two.table("u").unwrap());
    put(&one, table, b"k");
    assert_eq!(two.begin().get(table, b"k"), Err(ReadError::ForeignTable));
    assert_eq!(one.begin().get(other, b"k"), Err(ReadError::ForeignTable));
}
