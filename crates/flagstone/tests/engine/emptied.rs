//! Full is no trap: after any filling, with any memory, all rows can be deleted, and the device is used
//! again.

use std::ops::Range;

use flagstone::{Error, Options, Table};
use flagstone_nand::{Crashable, Profile, SegmentFile, SimNand, SimStorage};

use crate::on::Database;

const KIB: usize = 1 << 10;

/// Ways to delete rows, or to shorten them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Delete,
    Retain,
    DropTable,
    Shorten,
}

const WAYS: [Way; 4] = [Way::Delete, Way::Retain, Way::DropTable, Way::Shorten];

/// Order in which keys come.
#[derive(Clone, Copy, Debug)]
enum Order {
    Rising,
    Mixed,
}

/// Parameters for filling a device.
#[derive(Clone, Copy, Debug)]
struct Load {
    memory: usize,
    /// Rows of a transaction, as long as there is room for so many.
    rows: u64,
    value_size: usize,
    order: Order,
}

impl Load {
    fn options(self) -> Options {
        Options::default().with_memory(self.memory)
    }

    fn key(self, number: u64) -> [u8; 8] {
        match self.order {
            Order::Rising => number.to_be_bytes(),
            Order::Mixed => (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16).to_be_bytes(),
        }
    }

    /// Puts rows until not one more is taken; gives their number.
    fn fill(self, database: &flagstone::Database, table: Table) -> u64 {
        let (mut count, mut rows) = (0, self.rows);
        loop {
            let mut transaction = database.begin();
            let put = (count..count + rows).try_for_each(|number| {
                transaction.put(table, &self.key(number), &vec![number as u8; self.value_size])
            });
            match put.map_err(Error::from).and_then(|()| Ok(transaction.commit()?)) {
                Ok(_) => count += rows,
                Err(Error::Full | Error::TooLarge) if rows == 1 => return count,
                Err(Error::Full | Error::TooLarge) => rows = (rows / 4).max(1),
                Err(error) => panic!("{self:?}: {error} at row {count}"),
            }
        }
    }

    /// Changes rows in one transaction.
    fn change(
        self,
        database: &flagstone::Database,
        table: Table,
        way: Way,
        mut rows: Range<u64>,
    ) -> Result<(), Error> {
        let mut transaction = database.begin();
        match way {
            Way::Delete => {
                rows.try_for_each(|number| transaction.delete(table, &self.key(number)))?;
            }
            Way::Shorten => {
                rows.try_for_each(|number| transaction.put(table, &self.key(number), b""))?;
            }
            Way::Retain => drop(transaction.retain(table, .., |_, _| false)?),
            Way::DropTable => {
                drop(transaction);
                return Ok(database.drop_table("t")?);
            }
        }
        Ok(transaction.commit().map(drop)?)
    }

    /// Changes rows in transactions as large as they are taken. A transaction that deletes never gets the
    /// error that the device is full, but that it is too large, and smaller ones pass.
    fn change_all(self, database: &flagstone::Database, table: Table, way: Way, rows: Range<u64>) {
        let (mut from, mut size) = (rows.start, rows.end - rows.start);
        while from < rows.end {
            let part = from..(from + size).min(rows.end);
            match self.change(database, table, way, part.clone()) {
                Ok(()) => from = part.end,
                Err(Error::TooLarge) if size > 1 => size /= 2,
                Err(Error::Full) if size > 1 && way == Way::Shorten => size /= 2,
                Err(error) => panic!("{self:?}, {way:?} {part:?} of {rows:?}: {error}"),
            }
        }
    }

    /// Fills the device, and empties it in one way: in one transaction if that is accepted.
    fn live<D: Crashable + Send + 'static>(self, device: D, way: Way) {
        let database = Database::create_on(device, &self.options()).unwrap();
        let table = database.table("t").unwrap();
        let count = self.fill(&database, table);
        assert!(count > 20, "{self:?}: {count} rows");
        let database = Database::open_on(database.into_device().unwrap(), &self.options()).unwrap();
        let table = database.existing_table("t").unwrap().unwrap();
        match self.change(&database, table, way, 0..count) {
            Ok(()) => {}
            Err(Error::TooLarge) if way != Way::DropTable => {}
            Err(Error::Full) if way == Way::Shorten => {}
            Err(error) => panic!("{self:?}, {way:?} all {count} rows: {error}"),
        }
        if way == Way::Shorten {
            self.change_all(&database, table, way, 0..count);
        }
        if way != Way::DropTable {
            self.change_all(&database, table, Way::Delete, 0..count);
        }
        let table = database.table("t").unwrap();
        assert_eq!(database.snapshot().unwrap().range(table, ..).count(), 0, "{self:?}, {way:?}");
        let again = self.fill(&database, table);
        assert!(again * 10 > count * 7, "{self:?}, {way:?}: {count} rows, then {again}");
        let report = database.check().unwrap();
        assert!(report.is_sound(), "{self:?}, {way:?}: {:?}", report.faults);
    }
}

fn chip(name: &str, block_count: u32) -> SimNand {
    let profile = Profile::named(name).unwrap().with_block_count(block_count).unwrap();
    SimNand::new(&profile, 1)
}

fn file(size: u64) -> SegmentFile<SimStorage> {
    let profile = Profile::named("segment-file").unwrap().with_capacity(size).unwrap();
    SegmentFile::create(SimStorage::new(profile.timing), &profile).unwrap()
}

/// A file that grows until its host has no room for more than `size_max` bytes.
fn grown_file(pages_per_block: u32, size_max: u64) -> SegmentFile<SimStorage> {
    let mut profile = Profile::named("segment-file").unwrap();
    profile.geometry.pages_per_block = pages_per_block;
    let profile = profile.with_block_count(4_096).unwrap();
    let storage = SimStorage::new(profile.timing);
    let mut storage = SegmentFile::create_growing(storage, &profile, 8).unwrap().into_storage();
    storage.set_size_max(size_max);
    SegmentFile::open(storage).unwrap()
}

/// Goal (promise 6): all rows of a full device are deleted, in one transaction, or in smaller ones where the
/// error asks for that, and the room is there again. Method: devices of each kind, full of small rows, with
/// little memory and with much, by each way to delete or to shorten; opened again in between.
#[test]
fn full_devices_are_emptied() {
    for memory in [128 * KIB, 1 << 20, 16 << 20] {
        for way in WAYS {
            let load = Load { memory, rows: 3_000, value_size: 100, order: Order::Mixed };
            load.live(grown_file(64, 6 << 20), way);
            if memory <= 1 << 20 {
                load.live(chip("tiny", 24), way);
                load.live(chip("slc-2k", 64), way);
            }
        }
    }
    let load = |memory| Load { memory, rows: 3_000, value_size: 400, order: Order::Mixed };
    load(MEMORY_MIN).live(file(FILE_SIZE), Way::Delete);
    load(1 << 20).live(file(2 * FILE_SIZE), Way::Retain);
}

/// Size of a file whose leaves have two levels of nodes above them.
const FILE_SIZE: u64 = 12 << 20;

/// Least memory of a database on pages of 4 KiB.
const MEMORY_MIN: usize = 96 * KIB;

/// The same where threads delete beside each other.
#[test]
fn a_full_device_is_emptied_by_many_threads() {
    const THREADS: u64 = 8;
    for memory in [128 * KIB, 1 << 20] {
        let load = Load { memory, rows: 300, value_size: 100, order: Order::Mixed };
        let database = Database::create_on(chip("slc-2k", 64), &load.options()).unwrap();
        let table = database.table("t").unwrap();
        let count = load.fill(&database, table);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (database, rows) =
                    (database.clone(), count * thread / THREADS..count * (thread + 1) / THREADS);
                scope.spawn(move || load.change_all(&database, table, Way::Delete, rows));
            }
        });
        assert_eq!(database.snapshot().unwrap().range(table, ..).count(), 0);
        let again = load.fill(&database, table);
        assert!(again * 10 > count * 7, "{load:?}: {count} rows, then {again}");
    }
}

/// Goal (rule D7): a file whose host has no more room for it finds room for its log, however often it is
/// filled and emptied with little memory. Method: small blocks, of which the log has few, and large
/// transactions in key order.
#[test]
fn the_log_of_a_file_that_cannot_grow_has_room() {
    for value_size in [20, 100, 400, 1_000] {
        let memory = MEMORY_MIN;
        let load = Load { memory, rows: 3_000, value_size, order: Order::Rising };
        for way in [Way::Delete, Way::Retain] {
            load.live(grown_file(8, 6 << 20), way);
        }
    }
}
