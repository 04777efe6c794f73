//! Files on a host that has no room left, although all of their own was promised to them.

use std::collections::BTreeMap;

use flagstone::{Error, Options, Table};
use flagstone_nand::{Profile, SegmentFile, SimHost, SimStorage};

use crate::on::Database;

type File = SegmentFile<SimStorage>;
type Rows = BTreeMap<u64, u8>;

fn options() -> Options {
    Options::default().with_memory(512 << 10)
}

/// A database of some rows, on a file of 128 segments of 64 KiB that grows no more.
fn made() -> (File, Rows) {
    let mut profile = Profile::named("segment-file").unwrap();
    profile.geometry.pages_per_block = 16;
    let profile = profile.with_block_count(128).unwrap();
    let file = SegmentFile::create(SimStorage::new(profile.timing), &profile).unwrap();
    let database = Database::create_on(file, &options()).unwrap();
    let table = database.table("t").unwrap();
    let mut rows = Rows::new();
    for key in 0..100 {
        put(&database, table, &mut rows, key).unwrap();
    }
    (database.into_device().unwrap(), rows)
}

fn open_on(file: File, host: Option<(&SimHost, bool)>) -> Database<File> {
    let mut storage = file.into_storage();
    if let Some((host, is_sparse)) = host {
        storage.move_to(host.clone(), is_sparse);
    }
    Database::open_on(SegmentFile::open(storage).unwrap(), &options()).unwrap()
}

fn put(db: &Database<File>, table: Table, rows: &mut Rows, key: u64) -> Result<(), Error> {
    let mut transaction = db.begin();
    transaction.put(table, &key.to_be_bytes(), &[key as u8; 700])?;
    transaction.commit()?;
    rows.insert(key, key as u8);
    Ok(())
}

fn delete(db: &Database<File>, table: Table, key: u64) -> Result<(), Error> {
    let mut transaction = db.begin();
    transaction.delete(table, &key.to_be_bytes())?;
    Ok(transaction.commit().map(drop)?)
}

fn require_rows(db: &Database<File>, rows: &Rows) {
    let table = db.existing_table("t").unwrap().unwrap();
    let snapshot = db.snapshot().unwrap();
    assert_eq!(snapshot.len(table).unwrap(), rows.len() as u64);
    for (key, byte) in rows {
        let value = snapshot.get(table, &key.to_be_bytes()).unwrap();
        assert_eq!(value.as_deref(), Some(&[*byte; 700][..]), "key {key}");
    }
}

/// Goal: a sparse copy on a full host is a full database, of which every row can be read, and which goes on
/// once the host has room. Method: holes where the file has zeros, and no room on the host to fill any of
/// them.
#[test]
fn a_sparse_copy_on_a_full_host_is_full() {
    let (file, mut rows) = made();
    let host = SimHost::in_place(0);
    let database = open_on(file, Some((&host, true)));
    let table = database.existing_table("t").unwrap().unwrap();
    for key in 0..3 {
        assert!(matches!(put(&database, table, &mut rows, 1_000 + key), Err(Error::Full)));
        assert!(matches!(delete(&database, table, key), Err(Error::Full)));
    }
    require_rows(&database, &rows);
    let database = open_on(database.into_device().unwrap(), None);
    require_rows(&database, &rows);
    let table = database.existing_table("t").unwrap().unwrap();
    assert!(matches!(put(&database, table, &mut rows, 1_000), Err(Error::Full)));
    // The opening had to write the changes that the session before left in its log.
    host.set_free(64 << 20);
    let database = open_on(database.into_device().unwrap(), None);
    let table = database.existing_table("t").unwrap().unwrap();
    for key in 1_000..4_000 {
        put(&database, table, &mut rows, key).unwrap();
    }
    require_rows(&database, &rows);
    assert!(database.check().unwrap().is_sound());
}

/// Goal: a host that runs out of room for a sparse copy while rows are written makes the database full, not
/// unsure of a commit. Method: less and less room, with holes for all of the file's zeros.
#[test]
fn a_sparse_copy_fills_its_host_to_the_brim() {
    for free in (0..3_u64 << 20).step_by(200 << 10) {
        let (file, mut rows) = made();
        let host = SimHost::in_place(free);
        let database = open_on(file, Some((&host, true)));
        let table = database.existing_table("t").unwrap().unwrap();
        let error = (1_000..9_000).find_map(|key| put(&database, table, &mut rows, key).err());
        assert!(matches!(error, Some(Error::Full)), "{free} bytes free");
        require_rows(&database, &rows);
        let database = open_on(database.into_device().unwrap(), None);
        require_rows(&database, &rows);
    }
}

/// Goal: on a full host that writes changed data elsewhere, the database is full as on any other: its rows
/// can be read, deleted and written again, and it opens. Method: rounds of filling, deleting and opening,
/// with no room on the host but the file's own.
#[test]
fn a_full_copy_on_write_host_is_a_full_device() {
    let (file, mut rows) = made();
    let host = SimHost::copy_on_write(0);
    let mut database = open_on(file, Some((&host, false)));
    for round in 0..6 {
        let table = database.existing_table("t").unwrap().unwrap();
        let keys = (round + 1) * 20_000..(round + 2) * 20_000;
        let error = keys.into_iter().find_map(|key| put(&database, table, &mut rows, key).err());
        assert!(matches!(error, Some(Error::Full)), "round {round}");
        require_rows(&database, &rows);
        if round % 2 == 0 {
            database = open_on(database.into_device().unwrap(), None);
        }
        let table = database.existing_table("t").unwrap().unwrap();
        let deleted: Vec<u64> = rows.keys().copied().filter(|key| key % 4 != round % 4).collect();
        for key in deleted {
            delete(&database, table, key).unwrap();
            rows.remove(&key);
        }
        require_rows(&database, &rows);
    }
    assert!(database.check().unwrap().is_sound());
}
