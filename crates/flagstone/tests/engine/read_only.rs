//! Databases that are opened for reading: nothing is written, and every commit is there.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use flagstone::{
    CommitError, Durability, Error, OpenError, Options, ReadError, Table, TableError, WriteError,
};
use flagstone_nand::{
    Crashable, EccNand, FaultPlan, ImageNand, Nand, OpenDeviceError, Profile, SegmentFile, SimNand,
    SimStorage,
};

use crate::on::Database;

const ROWS: u32 = 30;

fn options() -> Options {
    Options::default().with_memory(256 << 10)
}

/// Sets every row to `fill`, one of them to a value with pages of its own.
fn put_all(database: &flagstone::Database, table: Table, fill: u8) -> Result<(), Error> {
    let mut transaction = database.begin();
    for row in 0..ROWS {
        transaction.put(table, &row.to_be_bytes(), &[fill; 150])?;
    }
    transaction.put(table, b"large", &[fill; 9_000])?;
    Ok(transaction.commit().map(drop)?)
}

/// The value to which every row is set.
fn fill_of(database: &flagstone::Database) -> u8 {
    let table = database.existing_table("t").unwrap().unwrap();
    let rows: Vec<_> =
        database.snapshot().unwrap().range(table, ..).map(|row| row.unwrap().1).collect();
    assert_eq!(rows.len(), ROWS as usize + 1);
    assert!(rows.iter().flatten().all(|byte| *byte == rows[0][0]), "a part of a transaction");
    rows[0][0]
}

/// Every call that would write is refused; reads work.
fn refuses_writes(database: &flagstone::Database) {
    let table = database.table("t").unwrap();
    let mut transaction = database.begin();
    assert_eq!(transaction.put(table, b"key", b"value"), Err(WriteError::ReadOnly));
    assert_eq!(transaction.put(table, b"key", &[0; 9_000]), Err(WriteError::ReadOnly));
    assert_eq!(transaction.delete(table, b"large"), Err(WriteError::ReadOnly));
    assert!(transaction.contains_key(table, b"large").unwrap());
    transaction.commit().unwrap();
    assert_eq!(database.table("new"), Err(TableError::ReadOnly));
    assert_eq!(database.merge(), Err(CommitError::ReadOnly));
    let mut backup = Vec::new();
    assert_eq!(database.backup_to(&mut backup).unwrap().rows, u64::from(ROWS) + 1);
    let report = database.check().unwrap();
    assert!(report.is_sound(), "{:?}", report.faults);
    database.flush().unwrap();
}

/// Transactions one after the other, a checkpoint in between, until the power goes; gives the number of the
/// last that returned.
fn session<D: Nand + Send + 'static>(database: Database<D>) -> (u8, D) {
    let table = database.existing_table("t").unwrap().unwrap();
    let mut last = 0;
    for fill in 1..=4 {
        if put_all(&database, table, fill).is_err() {
            break;
        }
        last = fill;
        if fill == 2 && database.runtime().checkpoint_now().is_err() {
            break;
        }
    }
    (last, database.into_device().unwrap())
}

/// A device with rows, closed.
fn closed<D: Nand + Send + 'static>(device: D) -> D {
    let database = Database::create_on(device, &options()).unwrap();
    let table = database.table("t").unwrap();
    put_all(&database, table, 0).unwrap();
    let twin = database.clone();
    database.close().unwrap();
    twin.into_device().unwrap()
}

/// Opens a device for reading and then for writing; gives the value that each finds.
fn read_then_recover<D: Crashable + Send + 'static>(mut device: D) -> [u8; 2] {
    device.power_cycle();
    // Unstable cells read differently each time: a hash would show that they were read.
    let before = device.operation_count();
    let database = Database::open_read_only_on(device, &options()).unwrap();
    let read = fill_of(&database);
    refuses_writes(&database);
    let twin = database.clone();
    database.close().unwrap();
    let device = twin.into_device().unwrap();
    assert_eq!(device.operation_count(), before, "something was written");
    [read, fill_of(&Database::open_on(device, &options()).unwrap())]
}

/// Goal: after every power cut, every commit can be read without a write, and reading takes nothing from the
/// restart that follows. Method: a session on a closed device; each of its operations is cut with every
/// ending.
fn reads_after_every_cut<D: Crashable + Send + 'static>(device: D) {
    let device = closed(device);
    assert_eq!(read_then_recover(device.clone()), [0, 0]);
    let mut recorded = device.clone();
    recorded.record_operations();
    let (last, recorded) = session(Database::open_on(recorded, &options()).unwrap());
    assert_eq!(last, 4);
    let mut cuts = 0;
    for number in device.operation_count()..recorded.operation_count() {
        for ending in recorded.endings_at(number) {
            let mut cut = device.clone();
            cut.set_plan(FaultPlan::power_cut(1, number, ending));
            let (last, cut) = session(Database::open_on(cut, &options()).unwrap());
            let found = read_then_recover(cut);
            let is_right = |fill: &u8| [last, last + 1].contains(fill);
            assert!(found.iter().all(is_right), "cut {number} {ending}: {found:?} after {last}");
            cuts += 1;
        }
    }
    assert!(cuts > 50, "{cuts}");
}

#[test]
fn a_chip_is_read_after_every_cut() {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    reads_after_every_cut(SimNand::new(&profile, 1));
}

/// Goal: the same where a flag commits a group.
#[test]
fn a_chip_that_carries_flags_is_read_after_every_cut() {
    let profile = Profile::named("tiny-flags").unwrap().with_block_count(128).unwrap();
    reads_after_every_cut(SimNand::new(&profile, 1));
}

#[test]
fn a_file_is_read_after_every_cut() {
    let mut profile = Profile::named("segment-file").unwrap();
    profile.geometry.pages_per_block = 32;
    let profile = profile.with_block_count(4_096).unwrap();
    let storage = SimStorage::new(profile.timing);
    reads_after_every_cut(SegmentFile::create_growing(storage, &profile, 2).unwrap());
}

/// Goal: a transaction that spilled is read where its changes cannot be merged, and a tail that takes more
/// than the memory is refused by name; with more memory it is read.
#[test]
fn a_tail_that_outgrows_memory_asks_for_more() {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(128).unwrap();
    let large = Options::default().with_memory(8 << 20).with_log_pages(1_024);
    let database = Database::create_on(SimNand::new(&profile, 1), &large).unwrap();
    let table = database.table("t").unwrap();
    for row in 0..6_000_u32 {
        let mut transaction = database.begin();
        transaction.put(table, &row.to_be_bytes(), &[1; 100]).unwrap();
        transaction.commit_with(Durability::Deferred).unwrap();
    }
    database.flush().unwrap();
    let device = database.into_device().unwrap();
    // Of 6,000 rows 1,401 are in no leaf yet.
    let little = large.clone().with_memory(128 << 10);
    let refused = Database::open_read_only_on(device.clone(), &little).unwrap_err();
    assert!(
        matches!(refused, OpenError::NeedsMemory { memory } if memory == 128 << 10),
        "{refused}"
    );
    let enough = large.clone().with_memory(256 << 10);
    let database = Database::open_read_only_on(device.clone(), &enough).unwrap();
    let table = database.existing_table("t").unwrap().unwrap();
    assert_eq!(database.snapshot().unwrap().len(table).unwrap(), 6_000);
    let database = Database::open_read_only_on(device.clone(), &large).unwrap();
    let table = database.table("t").unwrap();
    assert_eq!(database.snapshot().unwrap().len(table).unwrap(), 6_000);
    let database = Database::open_on(device, &little).unwrap();
    let table = database.table("t").unwrap();
    assert_eq!(database.snapshot().unwrap().len(table).unwrap(), 6_000);
}

/// Goal: a session that was cut off is read with the memory that it had, although its log holds more changes
/// than that. Method: rows all over a table, many times the size of memory; sessions of several lengths,
/// three of which are read only with the changes that they had appended since their last checkpoint.
#[test]
fn a_reader_needs_no_more_memory_than_the_session_before() {
    for (seed, kib) in [(0, 512), (3, 512), (16, 512), (6, 256), (13, 256)] {
        let options = Options::default().with_memory(kib << 10);
        let profile = Profile::named("slc-2k").unwrap().with_block_count(300).unwrap();
        let database = Database::create_on(SimNand::new(&profile, seed), &options).unwrap();
        let table = database.table("t").unwrap();
        let (mut draw, mut rows) = (seed * 2 + 1, std::collections::BTreeMap::new());
        for number in 0..2_000 + seed * 150 {
            let mut transaction = database.begin();
            for _ in 0..10 {
                draw = draw
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let key = ((draw >> 33) % 20_000).to_be_bytes();
                transaction.put(table, &key, &[number as u8; 150]).unwrap();
                rows.insert(key, number as u8);
            }
            transaction.commit().unwrap();
        }
        let reader = Database::open_read_only_on(database.into_device().unwrap(), &options);
        let reader = reader.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let table = reader.existing_table("t").unwrap().unwrap();
        let snapshot = reader.snapshot().unwrap();
        for (key, byte) in &rows {
            let value = snapshot.get(table, key).unwrap();
            assert_eq!(value.as_deref(), Some(&[*byte; 150][..]), "seed {seed}");
        }
        assert_eq!(snapshot.len(table).unwrap(), rows.len() as u64);
    }
}

/// Goal: the same for transactions that spilled, of which the log has only the places of their runs. Method:
/// a transaction several times as large as memory, changed in part by a later one and by small ones; rows in
/// order, at random, and by a scan each way.
#[test]
fn what_spilled_is_read_with_the_memory_that_wrote_it() {
    let little = Options::default().with_memory(256 << 10);
    let profile = Profile::named("slc-2k").unwrap().with_block_count(256).unwrap();
    let database = Database::create_on(SimNand::new(&profile, 1), &little).unwrap();
    let table = database.table("t").unwrap();
    let put_all = |rows: &mut dyn Iterator<Item = u32>, value: u8| {
        let mut transaction = database.begin();
        rows.for_each(|row| transaction.put(table, &row.to_be_bytes(), &[value; 100]).unwrap());
        transaction.commit().unwrap();
    };
    put_all(&mut (0..10_000), 1);
    put_all(&mut (0..10_000).step_by(3), 2);
    (0..10_000).step_by(997).for_each(|row| put_all(&mut [row].into_iter(), 3));
    assert!(database.stats().engine.spilled_pages > 300);
    let wanted = |row: u32| match row {
        row if row % 997 == 0 => 3,
        row if row % 3 == 0 => 2,
        _ => 1,
    };
    let reader = Database::open_read_only_on(database.into_device().unwrap(), &little).unwrap();
    let table = reader.table("t").unwrap();
    let snapshot = reader.snapshot().unwrap();
    let transaction = reader.begin();
    for step in 0..10_000_u32 {
        let row = step.wrapping_mul(2_654_435_761) % 10_000;
        let value = match step % 2 {
            0 => snapshot.get(table, &row.to_be_bytes()),
            _ => transaction.get(table, &row.to_be_bytes()),
        };
        assert_eq!(value.unwrap().map(|value| value[0]), Some(wanted(row)), "row {row}");
    }
    let is_right = |row: Result<(Vec<u8>, Vec<u8>), ReadError>| {
        let (key, value) = row.unwrap();
        let row = u32::from_be_bytes(key[..].try_into().unwrap());
        assert_eq!(value[0], wanted(row), "row {row}");
        row
    };
    assert!(snapshot.range(table, ..).map(is_right).eq(0..10_000));
    assert!(transaction.range(table, ..).rev().map(is_right).eq((0..10_000).rev()));
    let peak = reader.stats().engine.memory.both;
    assert!(peak <= 256 << 10, "{peak} bytes");
}

/// Goal: a change that is let go comes back as it was, although a writing session has folded it with earlier
/// changes. Method: a small transaction changes a byte of a row, and one that spilled changes another; a
/// session with more memory reads that row alone, and its checkpoint copies the sum; then the row is read
/// before and after all others.
#[test]
fn what_a_checkpoint_copied_of_a_run_is_not_let_go() {
    let little = Options::default().with_memory(256 << 10);
    let profile = Profile::named("slc-2k").unwrap().with_block_count(256).unwrap();
    let database = Database::create_on(SimNand::new(&profile, 1), &little).unwrap();
    let table = database.table("t").unwrap();
    let key = |row: u32| row.to_be_bytes();
    for begin in (0..10_000).step_by(100) {
        let mut transaction = database.begin();
        (begin..begin + 100).for_each(|row| transaction.put(table, &key(row), &[1; 100]).unwrap());
        transaction.commit().unwrap();
    }
    database.merge().unwrap();
    let mut transaction = database.begin();
    transaction.patch(table, &key(5), 0, b"X").unwrap();
    transaction.commit().unwrap();
    let mut transaction = database.begin();
    transaction.patch(table, &key(5), 1, b"Y").unwrap();
    (6..10_000).for_each(|row| transaction.put(table, &key(row), &[2; 100]).unwrap());
    transaction.commit().unwrap();
    let wanted = [b"XY", &[1; 98][..]].concat();
    let large = Options::default().with_memory(16 << 20).with_log_pages(0);
    let database = Database::open_on(database.into_device().unwrap(), &large).unwrap();
    let table = database.existing_table("t").unwrap().unwrap();
    assert_eq!(database.begin().get(table, &key(5)), Ok(Some(wanted.clone())));
    database.clone().close().unwrap();
    let device = database.into_device().unwrap();
    for memory in [128, 256, 512, 1_024] {
        let options = Options::default().with_memory(memory << 10);
        let Ok(reader) = Database::open_read_only_on(device.clone(), &options) else { continue };
        let table = reader.existing_table("t").unwrap().unwrap();
        let snapshot = reader.snapshot().unwrap();
        assert_eq!(snapshot.get(table, &key(5)), Ok(Some(wanted.clone())), "{memory} KiB");
        for row in (6..10_000).step_by(7) {
            assert_eq!(snapshot.get(table, &key(row)), Ok(Some(vec![2; 100])), "{memory} KiB");
        }
        assert_eq!(snapshot.get(table, &key(5)), Ok(Some(wanted.clone())), "{memory} KiB");
    }
}

fn contents(paths: &[&Path]) -> Vec<Vec<u8>> {
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Opens a database several times for reading, from files that may not be written; none of them changes.
fn is_read_as_it_is(path: &Path, files: &[&Path], fill: u8) {
    let before = contents(files);
    for file in files {
        fs::set_permissions(file, fs::Permissions::from_mode(0o444)).unwrap();
    }
    let read_only = flagstone::Database::open(path, &options()).unwrap_err();
    assert!(matches!(read_only, OpenError::Device(OpenDeviceError::ReadOnly)), "{read_only}");
    let readers = [(); 2].map(|()| flagstone::Database::open_read_only(path, &options()).unwrap());
    for database in readers {
        assert_eq!(fill_of(&database), fill);
        refuses_writes(&database);
    }
    for file in files {
        fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
    }
    let reader = flagstone::Database::open_read_only(path, &options()).unwrap();
    let locked = flagstone::Database::open(path, &options()).unwrap_err();
    assert!(matches!(locked, OpenError::Device(OpenDeviceError::Locked)), "{locked}");
    drop(reader);
    assert!(contents(files) == before, "something was written");
    let writer = flagstone::Database::open(path, &options()).unwrap();
    let locked = flagstone::Database::open_read_only(path, &options()).unwrap_err();
    assert!(matches!(locked, OpenError::Device(OpenDeviceError::Locked)), "{locked}");
    drop(writer);
}

/// Goal: files that cannot be written are read, by several handles at a time, and none can write meanwhile.
/// Method: a plain file and an image, closed and not closed.
#[test]
fn files_that_cannot_be_written_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let (plain, image) = (directory.path().join("plain"), directory.path().join("image"));
    let side = ImageNand::side_path(&image);
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    drop(closed(EccNand::create_image(&image, &profile).unwrap()));
    flagstone::Database::create(&plain, &options()).unwrap().close().unwrap();
    for (path, files) in [(&plain, vec![plain.as_path()]), (&image, vec![image.as_path(), &side])] {
        for fill in 1..4 {
            let database = flagstone::Database::open(path, &options()).unwrap();
            let table = database.table("t").unwrap();
            put_all(&database, table, fill).unwrap();
            if fill == 2 {
                database.close().unwrap();
            } else {
                drop(database);
            }
            is_read_as_it_is(path, &files, fill);
        }
    }
    assert!(
        flagstone::Database::open_read_only(directory.path().join("none"), &options()).is_err()
    );
}
