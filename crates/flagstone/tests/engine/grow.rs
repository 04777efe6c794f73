//! Files that grow, through the public interface: their cost, their end, and restarts.

use std::collections::BTreeMap;

use flagstone::{Durability, Error, FileSize, Options, Table};
use flagstone_engine::Wait;
use flagstone_nand::{
    Crashable as _, Ending, FaultPlan, Nand as _, Profile, SegmentFile, SimNand, SimStorage,
    Storage as _,
};

use crate::on::Database;

type File = SegmentFile<SimStorage>;

fn options() -> Options {
    Options::default().with_memory(1 << 20)
}

/// A file that grows from as little as the options need to `blocks` segments of 32 KiB.
fn file(blocks: u32) -> File {
    file_of(8, blocks)
}

fn file_of(pages_per_block: u32, blocks: u32) -> File {
    let mut profile = Profile::named("segment-file").unwrap();
    profile.geometry.pages_per_block = pages_per_block;
    let profile = profile.with_block_count(blocks).unwrap();
    SegmentFile::create_growing(SimStorage::new(profile.timing), &profile, 2).unwrap()
}

/// A number that looks random.
fn mixed(seed: u64, index: u64) -> u64 {
    let mut state =
        seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ index.wrapping_mul(0xD1B5_4A32_D192_ED03);
    state = (state ^ (state >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    state ^ (state >> 32)
}

fn put(database: &Database<File>, table: Table, key: u64, value: &[u8]) -> Result<(), Error> {
    let mut transaction = database.begin();
    transaction.put(table, &key.to_be_bytes(), value)?;
    Ok(transaction.commit().map(drop)?)
}

fn present(database: &Database<File>) -> u32 {
    database.at_device(|device| device.present_blocks())
}

fn require_sound(database: &Database<File>) {
    let report = database.check().unwrap();
    assert!(report.is_sound(), "{:?}", report.faults);
}

/// Goal: a value, and a transaction, many times as large as the content of the file are stored. Method: a
/// file of 4 MiB, a value of 1 MiB, a transaction of 4 MiB, a log of little more than half a MiB.
#[test]
fn what_is_larger_than_the_file_makes_it_grow() {
    let database = Database::create_on(file_of(32, 4_096), &options()).unwrap();
    let table = database.table("t").unwrap();
    let begin = present(&database);
    assert!(begin < 40, "{begin}");
    let size_max = database.stats().limits.value_size_max;
    let large = vec![7; size_max.min(1 << 20)];
    put(&database, table, 0, &large).unwrap();
    let mut transaction = database.begin();
    let count = 4_000_u64;
    for number in 1..count {
        transaction.put(table, &mixed(3, number).to_be_bytes(), &[number as u8; 1_000]).unwrap();
    }
    transaction.commit().unwrap();
    assert!(present(&database) > 2 * begin, "{}", present(&database));
    require_sound(&database);
    let database = Database::open_on(database.into_device().unwrap(), &options()).unwrap();
    let table = database.existing_table("t").unwrap().unwrap();
    assert_eq!(database.snapshot().unwrap().range(table, ..).count() as u64, count);
    require_sound(&database);
}

/// Goal: a file has less than twice the bytes of its pages. Method: a sorted load, and puts in no order.
#[test]
fn a_file_has_less_than_twice_its_pages() {
    let rows = 80_000_u64;
    let value = [7_u8; 200];
    let bytes = rows * 208;
    let database = Database::create_on(file_of(32, 4_096), &options()).unwrap();
    let table = database.table("t").unwrap();
    let sorted = (0..rows).map(|number| (number.to_be_bytes(), value));
    database.load_sorted(table, sorted).unwrap();
    let size = database.into_device().unwrap().into_storage().size().unwrap();
    assert!(size < bytes * 2, "{size} for {bytes}");

    let database = Database::create_on(file_of(32, 4_096), &options()).unwrap();
    let table = database.table("t").unwrap();
    for first in (0..rows).step_by(100) {
        let mut transaction = database.begin();
        for number in first..first + 100 {
            let key = (number * 7_919 % 80_021).to_be_bytes();
            transaction.put(table, &key, &value).unwrap();
        }
        transaction.commit_with(Durability::Deferred).unwrap();
    }
    database.merge().unwrap();
    let live = database.stats().space.live_pages;
    require_sound(&database);
    let size = database.into_device().unwrap().into_storage().size().unwrap();
    assert!(size < u64::from(live) * 4096 * 2, "{size} for {live} pages");
    // The size includes leaves that splits leave half empty.
    assert!(size < bytes * 3, "{size} for {bytes}");
}

/// Goal: without room on the host the database is full, nothing is lost, deleting makes room, and new room on
/// the host is used without another opening. Method: a simulated drive with little room, then with more.
#[test]
fn a_host_without_room_is_a_full_device() {
    let mut storage = file(4_096).into_storage();
    storage.set_size_max(3 << 20);
    let device = SegmentFile::open(storage).unwrap();
    let database = Database::create_on(device, &options()).unwrap();
    let table = database.table("t").unwrap();
    let value = vec![5; 100_000];
    let fill = |from: u64| (from..).find(|key| put(&database, table, *key, &value).is_err());
    let count = fill(0).unwrap();
    assert!(count > 8, "{count}");
    assert!(matches!(put(&database, table, count, &value), Err(Error::Full)));
    require_sound(&database);
    for round in 0..20 {
        let mut transaction = database.begin();
        transaction.delete(table, &(round % count).to_be_bytes()).unwrap();
        transaction.commit().unwrap();
        put(&database, table, round % count, &value).unwrap();
    }
    let small =
        (1 << 20..).take_while(|key| put(&database, table, *key, &[1; 100]).is_ok()).count();
    assert!(small > 20, "{small}");
    require_sound(&database);
    let mut storage = database.into_device().unwrap().into_storage();
    storage.set_size_max(6 << 20);
    let device = SegmentFile::open(storage).unwrap();
    let database = Database::open_on(device, &options()).unwrap();
    let table = database.existing_table("t").unwrap().unwrap();
    let more = (count..).find(|key| put(&database, table, *key, &value).is_err()).unwrap();
    assert!(more > count + 10, "{count}, then {more}");
    let rows = database.snapshot().unwrap().range(table, ..).count();
    assert_eq!(rows, more as usize + small);
    require_sound(&database);
}

/// Goal: a nearly full file opens again after any history. Method: seeded transactions on a file that is at
/// its limit most of the time, cut anywhere, over and over, against a map.
#[test]
fn rows_of_restarts_on_a_nearly_full_file_open_again() {
    for seed in 0..8 {
        let mut device = file(44 + 4 * (seed % 4) as u32);
        let options = Options::default().with_memory(256 << 10);
        let mut rows: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let database = Database::create_on(device, &options).unwrap();
        database.table("t").unwrap();
        device = database.into_device().unwrap();
        let mut draw = (0..).map(|index| mixed(seed, index));
        let mut below = |bound: u64| draw.next().map_or(0, |number| number % bound);
        for round in 0..60 {
            let database = Database::open_on(device, &options)
                .unwrap_or_else(|error| panic!("seed {seed} round {round}: {error}"));
            let table = database.existing_table("t").unwrap().unwrap();
            let found: BTreeMap<u64, Vec<u8>> = database
                .snapshot()
                .unwrap()
                .range(table, ..)
                .map(Result::unwrap)
                .map(|(key, value)| (u64::from_be_bytes(key.try_into().unwrap()), value))
                .collect();
            // The last commit of the round before may be there or not; nothing else may differ.
            assert!(found.iter().filter(|row| !rows.contains_key(row.0)).count() <= 1);
            rows = found;
            let ending = [Ending::UnsyncedLost, Ending::Complete, Ending::Untouched];
            let number = {
                let number = database.at_device(|file| file.operation_count()) + below(60);
                let ending = ending[below(3) as usize];
                let ending = if ending == Ending::Untouched {
                    Ending::UnsyncedSubset512 { draw: 1 }
                } else {
                    ending
                };
                let plan = FaultPlan::power_cut(round, number, ending);
                database.at_device(|file| file.set_plan(plan));
                number
            };
            for _ in 0..40 {
                let key = below(120);
                let is_delete = below(5) == 0;
                let value = vec![key as u8; [40, 400, 20_000][below(3) as usize]];
                let mut transaction = database.begin();
                let changed = match is_delete {
                    true => transaction.delete(table, &key.to_be_bytes()).map(drop),
                    false => transaction.put(table, &key.to_be_bytes(), &value).map(drop),
                };
                let committed = changed.map_err(Error::from);
                let committed = committed.and_then(|()| Ok(transaction.commit()?));
                match committed {
                    Ok(_) if is_delete => drop(rows.remove(&key)),
                    Ok(_) => drop(rows.insert(key, value)),
                    Err(Error::Full) => {}
                    Err(_) => break,
                }
            }
            let is_off = database.at_device(|device| device.is_off());
            device = database.into_device().unwrap();
            assert!(is_off || device.operation_count() <= number || round > 0);
            device.power_cycle();
            device.set_plan(FaultPlan::default());
        }
    }
}

/// Puts rows in no order, a transaction each, until one is refused; gives their number. `watch` sees the
/// database behind each.
fn fill(database: &Database<File>, from: u64, mut watch: impl FnMut(&Database<File>)) -> u64 {
    let table = database.table("t").unwrap();
    let is_refused = |key: &u64| {
        let result = put(database, table, mixed(5, *key), &key.to_le_bytes().repeat(12));
        watch(database);
        result.is_err()
    };
    (from..).find(is_refused).unwrap()
}

/// Goal: room that the log got beyond its share while a file grew goes to rows once the file grows no more,
/// without another opening, and a power cut meanwhile loses none. Method: a file that is filled to its limit
/// and opened again; the same with cuts from the row before which the log becomes shorter.
#[test]
fn a_full_file_has_what_its_log_had_beyond_its_share() {
    let device = || file(128);
    let options = options().with_log_pages(512);
    let operations =
        |database: &Database<File>| database.at_device(|device| device.operation_count());
    let database = Database::create_on(device(), &options).unwrap();
    let (mut budget_max, mut shortened) = (0, 0..0);
    let count = fill(&database, 0, |database| {
        let budget = database.runtime().space().log_budget_pages();
        budget_max = budget_max.max(budget);
        match budget < budget_max {
            true if shortened.end == 0 => shortened.end = operations(database),
            false => shortened.start = operations(database),
            true => {}
        }
    });
    assert!(shortened.end > shortened.start, "{budget_max} pages of log, {shortened:?}");
    require_sound(&database);
    database.flush().unwrap();
    let database = Database::open_on(database.into_device().unwrap(), &options).unwrap();
    let again = fill(&database, count, |_| {});
    assert!(again * 20 < count * 21, "{count}, then {again}");

    let last = shortened.end + 40;
    for cut in (shortened.start..last).step_by(((last - shortened.start) / 60).max(1) as usize) {
        let database = Database::create_on(device(), &options).unwrap();
        let plan = FaultPlan::power_cut(cut, cut, Ending::UnsyncedSubset512 { draw: cut as u8 });
        database.at_device(|file| file.set_plan(plan));
        let acknowledged = fill(&database, 0, |_| {});
        let mut device = database.into_device().unwrap();
        assert!(device.is_off(), "cut {cut}");
        device.power_cycle();
        device.set_plan(FaultPlan::default());
        let database = Database::open_on(device, &options)
            .unwrap_or_else(|error| panic!("cut {cut}: {error}"));
        require_sound(&database);
        let table = database.existing_table("t").unwrap().unwrap();
        let found = database.snapshot().unwrap().range(table, ..).count() as u64;
        assert!(found >= acknowledged, "cut {cut}: {found} of {acknowledged} rows");
        let more = fill(&database, acknowledged, |_| {});
        assert!(more * 10 > count * 9, "cut {cut}: {more} of {count} rows");
        require_sound(&database);
    }
}

/// Goal: threads that read beside the device see the content of grown blocks. Method: a real file.
#[test]
fn readers_see_grown_blocks() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let size = FileSize::Growing { limit: 1 << 30 };
    let database = flagstone::Database::create_sized(&path, &options(), size).unwrap();
    let table = database.table("t").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let database = database.clone();
            scope.spawn(move || {
                for number in 0..60 {
                    let key = ((thread << 32) + number).to_be_bytes();
                    let mut transaction = database.begin();
                    transaction.put(table, &key, &vec![number as u8; 120_000]).unwrap();
                    transaction.commit_with(Durability::Deferred).unwrap();
                    let back = ((thread << 32) + number / 2).to_be_bytes();
                    let found = database.snapshot().unwrap().get(table, &back).unwrap();
                    assert!(found.is_none_or(|it| it == vec![(number / 2) as u8; 120_000]));
                }
            });
        }
    });
    assert!(std::fs::metadata(&path).unwrap().len() > 20 << 20);
    let report = database.check().unwrap();
    assert!(report.is_sound(), "{:?}", report.faults);
    database.close().unwrap();
    assert_eq!(flagstone::Database::open(&path, &options()).unwrap().check().unwrap().rows, 180);
}

/// Goal: rows that are overwritten in memory ask for no room. Method: a hundred rows, each written thousands
/// of times by commits that are never merged; the file keeps its size.
#[test]
fn a_file_does_not_grow_for_rows_that_are_overwritten() {
    let options = Options::default().with_memory(1 << 20);
    let database = Database::create_on(file_of(64, 4_096), &options).unwrap();
    let table = database.table("t").unwrap();
    let write = |count: u64| {
        for number in 0..count {
            let mut transaction = database.begin();
            transaction.put(table, &(number % 100).to_be_bytes(), &[number as u8; 200]).unwrap();
            transaction.commit_with(Durability::Deferred).unwrap();
        }
    };
    write(30_000);
    let before = present(&database);
    write(300_000);
    assert_eq!(present(&database), before, "60 MB were written to 20 kB");
}

/// Goal: a file does not grow for values that were replaced or given up. Method: as many of them as would
/// fill the file many times over.
#[test]
fn a_file_does_not_grow_for_values_that_are_gone() {
    let database = Database::create_on(file_of(32, 16_384), &options()).unwrap();
    let table = database.table("t").unwrap();
    let value = vec![7; 1 << 20];
    let mut after_ten = 0;
    for round in 0..200 {
        put(&database, table, 1, &value).unwrap();
        if round == 10 {
            after_ten = present(&database);
        }
    }
    for _ in 0..200 {
        let mut transaction = database.begin();
        transaction.put(table, &[9], &value).unwrap();
        drop(transaction);
    }
    let end = present(&database);
    assert!(end <= after_ten + after_ten / 4, "{after_ten} segments after ten, {end} at the end");
    require_sound(&database);
}

/// Goal: on a device that does not grow, values that were given up leave their room to others.
#[test]
fn values_that_were_given_up_never_fill_a_device() {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    let database = Database::create_on(SimNand::new(&profile, 1), &options()).unwrap();
    let table = database.table("t").unwrap();
    for round in 0..200 {
        let mut transaction = database.begin();
        let put = transaction.put(table, &[9], &vec![7; 200 << 10]);
        assert_eq!(put, Ok(()), "round {round}");
    }
}

/// Goal: many threads that wait for room make a file grow once. Method: two transactions that stop at the
/// same place, each of which then asks.
#[test]
fn who_waits_for_room_that_came_meanwhile_asks_for_no_more() {
    let database = Database::create_on(file_of(32, 4_096), &options()).unwrap();
    let runtime = database.runtime();
    let capacity = u64::from(runtime.space().capacity_pages());
    let begin = present(&database);
    runtime.supply(Wait::Room(capacity)).unwrap();
    let once = present(&database);
    assert!(once > begin, "{begin} segments, {once} afterwards");
    runtime.supply(Wait::Room(capacity)).unwrap();
    let budget = runtime.space().log_budget_pages();
    runtime.supply(Wait::LargerLog(budget - 1)).unwrap();
    assert_eq!(present(&database), once);
    runtime.supply(Wait::LargerLog(budget)).unwrap();
    assert!(present(&database) > once);
}

/// Goal: a restart writes nothing that leaves hold already, with any ratio of log to memory. Method: rows in
/// no order, far more than memory holds, no clean end; pages programmed until the database is open.
#[test]
fn a_restart_does_not_write_what_leaves_hold() {
    let database = Database::create_on(file_of(64, 4_096), &options()).unwrap();
    let table = database.table("t").unwrap();
    let count = 62_000;
    for first in (0..count).step_by(100) {
        let mut transaction = database.begin();
        for number in first..first + 100 {
            transaction.put(table, &mixed(1, number).to_be_bytes(), &[number as u8; 100]).unwrap();
        }
        transaction.commit().unwrap();
    }
    let device = database.into_device().unwrap();
    let before = device.counters().page_programs;
    let database = Database::open_on(device, &options()).unwrap();
    let written = database.at_device(|device| device.counters().page_programs) - before;
    assert!(database.recovery().commits > 50, "{:?}", database.recovery());
    assert!(written < 60, "{written} pages");
    let table = database.existing_table("t").unwrap().unwrap();
    assert_eq!(database.snapshot().unwrap().range(table, ..).count() as u64, count);
    require_sound(&database);
}
