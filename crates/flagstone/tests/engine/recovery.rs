//! Content that a restart gives back, and remains that it must not leave.

use flagstone::{Durability, Error, Options, Table, Transaction, WriteError};
use flagstone_engine::{Budget, Compaction};
use flagstone_nand::{Crashable, FaultPlan, Nand, Profile, SegmentFile, SimNand, SimStorage};

use crate::on::Database;

const MEMORY: usize = 96 << 10;

fn options() -> Options {
    Options::default().with_memory(MEMORY)
}

fn created() -> (Database<SimNand>, Table) {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    let database = Database::create_on(SimNand::new(&profile, 1), &options()).unwrap();
    let table = database.table("t").unwrap();
    (database, table)
}

fn opened_again(database: Database<SimNand>) -> (Database<SimNand>, Table) {
    let database = Database::open_on(database.into_device().unwrap(), &options()).unwrap();
    let table = database.table("t").unwrap();
    (database, table)
}

/// Commits one transaction that is larger than memory.
fn spill(database: &Database<SimNand>, table: Table) {
    let mut transaction = database.begin();
    for number in 0..2_000_u32 {
        transaction.put(table, &number.to_be_bytes(), &[number as u8; 150]).unwrap();
    }
    transaction.commit().unwrap();
    assert!(database.stats().engine.spilled_pages > 0, "the transaction fits in memory");
}

/// Does background work a piece at a time until one more checkpoint is complete.
fn work_to_checkpoint(database: &Database<SimNand>) {
    let before = database.stats().engine.checkpoints;
    work_until(database, |database| database.stats().engine.checkpoints > before);
}

/// Does the work of a checkpoint a piece at a time until `is_enough`.
fn work_until(database: &Database<SimNand>, is_enough: impl Fn(&Database<SimNand>) -> bool) {
    database.runtime().engine().want_checkpoint();
    work_on(database, is_enough);
}

/// Does waiting work a piece at a time until `is_enough`.
fn work_on(database: &Database<SimNand>, is_enough: impl Fn(&Database<SimNand>) -> bool) {
    let runtime = database.runtime();
    while !is_enough(database) {
        if runtime.engine().is_flush_wanted()
            && let Some(flush) = runtime.flush_begin().unwrap()
        {
            runtime.flush_end(flush);
        }
        match runtime.work_begin() {
            Ok(Some(work)) => runtime.work_end(work),
            Ok(None) | Err(flagstone_engine::Stop::Wait(_)) => {}
            Err(flagstone_engine::Stop::Miss(fetch)) => {
                let fetched = runtime.read(fetch).unwrap();
                runtime.engine().fill(fetched).unwrap();
            }
            Err(flagstone_engine::Stop::Error(error)) => panic!("{error}"),
        }
    }
}

/// Goal: power that goes between a checkpoint and the trims that it allows leaks no page.
#[test]
fn pages_of_a_spill_are_freed_after_a_cut() {
    let (database, table) = created();
    spill(&database, table);
    for _ in 0..2 {
        work_to_checkpoint(&database);
    }
    let (database, table) = opened_again(database);
    database.runtime().checkpoint_now().unwrap();
    let report = database.check().unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert_eq!(report.leaked_pages, 0, "{report:?}");
    assert_eq!(database.begin().len(table).unwrap(), 2_000);
}

/// Goal: a key with more versions than a page holds, kept apart by savepoints, has its last value
/// after the transaction has left memory.
#[test]
fn versions_of_a_key_may_outgrow_a_spilled_page() {
    let (database, table) = created();
    let mut transaction = database.begin();
    transaction.put(table, b"many", &[0; 400]).unwrap();
    for version in 0..300_u16 {
        transaction.savepoint().unwrap();
        let at = usize::from(version % 40) * 10;
        transaction.patch(table, b"many", at, &[version.to_le_bytes()[0]; 10]).unwrap();
        transaction.put(table, &version.to_be_bytes(), &[1; 300]).unwrap();
    }
    let expected: Vec<u8> = transaction.get(table, b"many").unwrap().unwrap();
    for part in 0..40_u16 {
        let last = (0..300_u16).rfind(|version| version % 40 == part).unwrap();
        let start = usize::from(part) * 10;
        assert_eq!(expected[start..start + 10], [last.to_le_bytes()[0]; 10], "part {part}");
    }
    transaction.commit().unwrap();
    assert!(database.stats().engine.spilled_pages > 0, "the transaction fits in memory");
    assert_eq!(database.begin().get(table, b"many").unwrap().unwrap(), expected);
    let (database, table) = opened_again(database);
    assert_eq!(database.begin().get(table, b"many").unwrap().unwrap(), expected);
    database.runtime().checkpoint_now().unwrap();
    assert_eq!(database.begin().get(table, b"many").unwrap().unwrap(), expected);
}

/// Goal (R5): a key that was changed on both sides of a savepoint has its last value, whichever
/// spilled page is loaded first. Method: two versions of every key, of sizes that end pages between
/// them, read from the first key up and from the last one down.
#[test]
fn versions_on_both_sides_of_a_savepoint_stay_in_order() {
    for is_upwards in [true, false] {
        let (database, table) = created();
        two_versions_each(&database, table);
        for step in 0..1_000_u32 {
            let number = if is_upwards { step } else { 999 - step };
            let value = database.begin().get(table, &number.to_be_bytes()).unwrap();
            assert_eq!(value.as_deref(), Some(&[2; 150][..]), "key {number}");
        }
    }
}

fn two_versions_each(database: &Database<SimNand>, table: Table) {
    let mut transaction = database.begin();
    for number in 0..1_000_u32 {
        transaction
            .put(table, &number.to_be_bytes(), &vec![1; 100 + number as usize % 64])
            .unwrap();
        transaction.savepoint().unwrap();
        transaction.put(table, &number.to_be_bytes(), &[2; 150]).unwrap();
    }
    transaction.commit().unwrap();
    assert!(database.stats().engine.spilled_pages > 0, "the transaction fits in memory");
}

/// Goal (R5, rule D7): versions of one key that take more pages than a spill writes leave memory, and
/// add up. Method: a value that is patched, a byte and a savepoint at a time, in the middle of others.
#[test]
fn versions_of_one_key_may_take_more_than_a_spill() {
    let (database, table) = created();
    let mut transaction = database.begin();
    transaction.put(table, b"a", &[7; 300]).unwrap();
    transaction.put(table, b"m", &[0; 400]).unwrap();
    transaction.put(table, b"z", &[9; 300]).unwrap();
    let mut expected = [0; 400];
    for version in 0..200_usize {
        transaction.savepoint().unwrap();
        let byte = version as u8 + 1;
        expected[2 * version..2 * version + 1].fill(byte);
        expected[300..].fill(byte);
        transaction.patch(table, b"m", 2 * version, &[byte]).unwrap();
        transaction.patch(table, b"m", 300, &[byte; 100]).unwrap();
    }
    expected[300..].fill(200);
    transaction.commit().unwrap();
    assert!(database.stats().engine.spilled_pages > 8, "all of it fits one spill");
    let check = |database: &Database<SimNand>, table: Table| {
        let get = |key: &[u8]| database.begin().get(table, key).unwrap().unwrap();
        assert_eq!((get(b"z"), get(b"a")), (vec![9; 300], vec![7; 300]));
        assert_eq!(get(b"m"), expected);
    };
    check(&database, table);
    let (database, table) = opened_again(database);
    check(&database, table);
    database.runtime().checkpoint_now().unwrap();
    check(&database, table);
}

/// Goal (R4): a change of a run that a base holds already stays apart from later ones, although a
/// checkpoint has copied it and the run is gone. Method: rows changed in a run and again in its commit
/// record, merged before a cut; then their leaves are met before the run is loaded, and they are
/// patched; then a checkpoint, and another cut.
#[test]
fn a_checkpoint_keeps_what_a_recovered_run_holds_apart() {
    const ROWS: u32 = 600;
    let row = |number: u32| number.to_be_bytes();
    let is_late = |number: &u32| number % 48 < 12;
    let merging = options().with_techniques(|techniques| techniques.compaction = Compaction::Merge);
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    let database = Database::create_on(SimNand::new(&profile, 1), &merging).unwrap();
    let table = database.table("t").unwrap();
    let mut transaction = database.begin();
    (0..ROWS).for_each(|number| transaction.put(table, &row(number), &[1; 150]).unwrap());
    for number in (0..ROWS).filter(is_late) {
        transaction.patch(table, &row(number), 0, &[2; 10]).unwrap();
    }
    transaction.commit().unwrap();
    assert!(database.stats().engine.spilled_pages > 0, "the transaction fits in memory");
    work_until(&database, |database| database.stats().engine.deltas == 0);

    let roomy = Options::default().with_memory(4 << 20);
    let database = Database::open_on(database.into_device().unwrap(), &roomy).unwrap();
    let table = database.table("t").unwrap();
    for number in (0..ROWS).step_by(48) {
        database.begin().get(table, &row(number)).unwrap();
    }
    for number in (0..ROWS).filter(is_late) {
        let mut transaction = database.begin();
        transaction.patch(table, &row(number), 20, &[3; 10]).unwrap();
        transaction.commit().unwrap();
    }
    for _ in 0..2 {
        database.runtime().checkpoint_now().unwrap();
    }
    let database = Database::open_on(database.into_device().unwrap(), &roomy).unwrap();
    let table = database.table("t").unwrap();
    for number in (0..ROWS).filter(is_late) {
        let value = database.begin().get(table, &row(number)).unwrap().unwrap();
        let parts = (&value[..10], &value[10..20], &value[20..30], &value[30..]);
        assert_eq!(parts, (&[2; 10][..], &[1; 10][..], &[3; 10][..], &[1; 120][..]), "{number}");
    }
}

/// Goal: a leaf on the device that names a replaced value is no fault, although the pages of that value are
/// nodes by now. Method: the value goes during a checkpoint that knows its pages to be free and leaves the
/// change to the log; then the power goes, and another table splits.
#[test]
fn pages_of_a_replaced_value_may_have_a_new_owner() {
    let options = Options::preset("traditional").unwrap().with_memory(1 << 20);
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
    let [large, small, _] = ["large", "small", "other"].map(|it| database.table(it).unwrap());
    let put = |table: Table, key: u32, value: &[u8], durability: Durability| {
        let mut transaction = database.begin();
        transaction.put(table, &key.to_be_bytes(), value).unwrap();
        transaction.commit_with(durability).unwrap();
    };
    put(large, 1, &[1; 40_000], Durability::Immediate);
    database.runtime().checkpoint_now().unwrap();
    put(small, 1, &[1; 10], Durability::Deferred);
    database.runtime().engine().want_checkpoint();
    assert!(matches!(database.runtime().work_begin(), Ok(None)), "it waits for the log");
    put(large, 1, &[2; 10], Durability::Immediate);
    work_on(&database, |database| database.stats().engine.checkpoints == 2);
    let database = Database::open_on(database.into_device().unwrap(), &options).unwrap();
    let [large, other] = ["large", "other"].map(|it| database.table(it).unwrap());
    for key in 0..200_u32 {
        let mut transaction = database.begin();
        transaction.put(other, &key.to_be_bytes(), &[3; 150]).unwrap();
        transaction.commit().unwrap();
    }
    let report = database.check().unwrap();
    assert!(report.is_sound() && report.leaves > 4, "{report:?}");
    let value = database.begin().get(large, &1_u32.to_be_bytes()).unwrap();
    assert_eq!(value.as_deref(), Some(&[2; 10][..]));
}

/// Seen: a checkpoint wrote the same inner node again and again, for minutes. Cause: leaves that split while
/// restart merged, for want of memory, left this node in a frame that was older than its content.
#[test]
fn inner_nodes_that_split_at_restart_are_written_once() {
    const PROGRAMS_MAX: u64 = 2_000;
    let profile = Profile::named("ls-lru-nand").unwrap().with_block_count(512).unwrap();
    let options = Options::default().with_memory(128 << 10);
    let options = options.with_techniques(|techniques| techniques.budget = Budget::Divided);
    let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
    let table = database.table("t").unwrap();
    // A permutation of the numbers: keys in no order.
    let mixed = |row: u32| {
        let row = row.wrapping_mul(0x9E37_79B1);
        let row = (row ^ row >> 15).wrapping_mul(0x85EB_CA77);
        row ^ row >> 13
    };
    let rows: Vec<u32> = (0..100_000).map(mixed).collect();
    for rows in rows.chunks(200) {
        let mut transaction = database.begin();
        rows.iter().for_each(|row| transaction.put(table, &row.to_be_bytes(), &[7; 4]).unwrap());
        transaction.commit_with(Durability::Deferred).unwrap();
    }
    database.runtime().checkpoint_now().unwrap();
    let whole = Options::preset("traditional").unwrap();
    let less = whole.with_memory(128 << 10);
    let less = less.with_techniques(|techniques| techniques.frame_share = 0.0469);
    let database = Database::open_on(database.into_device().unwrap(), &less).unwrap();
    let programs = |database: &Database<SimNand>| {
        let runtime = database.runtime();
        let space = runtime.space();
        space.device().counters().page_programs
    };
    let (begin, checkpoints) = (programs(&database), database.stats().engine.checkpoints);
    work_until(&database, |database| {
        database.stats().engine.checkpoints > checkpoints
            || programs(database) > begin + PROGRAMS_MAX
    });
    let written = programs(&database) - begin;
    assert!(written < PROGRAMS_MAX, "{written} pages, and no end of it");
}

/// Goal: a restart that has to merge may empty leaves and need new ones. A number that such a leaf gives up
/// has no other owner while commits are being put back: the image of that owner would be complete to less
/// than the record that frees the number, and the next restart that reads the record would take the page.
/// Method: deletes and then inserts, all of them put back with less memory than they take, on a chip where
/// the numbers in front of these leaves are free. Then two more restarts.
#[test]
fn numbers_that_a_merging_restart_frees_have_no_other_owner_before_its_end() {
    const ROWS: u32 = 6_000;
    let roomy = Options::default().with_memory(8 << 20).with_log_pages(1_500);
    let profile = Profile::named("slc-2k").unwrap().with_block_count(128).unwrap();
    let database = Database::create_on(SimNand::new(&profile, 1), &roomy).unwrap();
    let change = |database: &Database<SimNand>, keys: std::ops::Range<u32>, is_there: bool| {
        let table = database.table("t").unwrap();
        for number in keys {
            let mut transaction = database.begin();
            match is_there {
                true => {
                    transaction.put(table, &number.to_be_bytes(), &[number as u8; 150]).unwrap()
                }
                false => transaction.delete(table, &number.to_be_bytes()).unwrap(),
            }
            transaction.commit_with(Durability::Deferred).unwrap();
        }
    };
    change(&database, 0..ROWS, true);
    database.merge().unwrap();
    change(&database, 0..ROWS / 6, false);
    database.merge().unwrap();
    let device = database.into_device().unwrap();
    let database = Database::open_on(device, &roomy).unwrap();
    change(&database, ROWS / 6..ROWS / 2, false);
    change(&database, ROWS..ROWS + ROWS / 2, true);
    database.flush().unwrap();
    let mut device = database.into_device().unwrap();
    for memory in [96 << 10, 8 << 20, 8 << 20] {
        let database = Database::open_on(device, &roomy.clone().with_memory(memory)).unwrap();
        let table = database.table("t").unwrap();
        let report = database.check().unwrap();
        assert!(report.is_sound(), "{report:?}");
        assert_eq!(database.begin().len(table).unwrap(), u64::from(ROWS), "half went, half came");
        device = database.into_device().unwrap();
    }
}

/// Goal: a restart that has to merge does not load spilled changes of later commits: they could not be merged
/// yet, would take all memory, and the opening would never end. Method: small commits that do not fit the
/// memory of the next opening, with a spilled transaction behind them.
#[test]
fn a_merging_restart_leaves_later_spills_on_flash() {
    let options = |memory| Options::default().with_memory(memory).with_log_pages(2_000);
    let profile = Profile::named("slc-2k").unwrap().with_block_count(256).unwrap();
    let device = SimNand::new(&profile, 1);
    let database = Database::create_on(device, &options(1 << 20)).unwrap();
    let table = database.table("t").unwrap();
    for number in 0..2_000_u32 {
        let mut transaction = database.begin();
        transaction.put(table, &number.to_be_bytes(), &[1; 150]).unwrap();
        transaction.commit_with(Durability::Deferred).unwrap();
    }
    let mut transaction = database.begin();
    for number in 0..6_000_u32 {
        transaction.put(table, &number.to_be_bytes(), &[2; 150]).unwrap();
    }
    transaction.commit().unwrap();
    assert!(database.stats().engine.spilled_pages > 0, "the transaction fits in memory");
    let device = database.into_device().unwrap();
    let database = Database::open_on(device, &options(96 << 10)).unwrap();
    let table = database.table("t").unwrap();
    let recovery = database.recovery();
    assert!(recovery.commits > 2_000 && recovery.pages_written < 1_500, "{recovery:?}");
    let read = database.begin();
    for number in [0, 1_999, 2_000, 5_999_u32] {
        assert_eq!(read.get(table, &number.to_be_bytes()).unwrap(), Some(vec![2; 150]));
    }
    drop(read);
    let report = database.check().unwrap();
    assert!(report.is_sound(), "{report:?}");
}

/// Goal (rule D2): a leaf that a large transaction wrote holds more than a restart has put back so far. The
/// leaf is not merged with an emptied neighbour before that: the image would claim too little, and a change
/// from before the transaction would win over it. Method: every second stretch of keys is emptied, one key of
/// each other stretch is changed by a small commit and then claimed with its leaf; all changes are put back
/// with less memory than they take.
#[test]
fn a_merging_restart_leaves_leaves_alone_that_know_more() {
    const ROWS: u32 = 24_000;
    const STRETCH: u32 = 36;
    let options = |name: &str, memory| {
        Options::preset(name).unwrap().with_memory(memory).with_log_pages(8_000)
    };
    let profile = Profile::named("slc-2k").unwrap().with_block_count(512).unwrap();
    let device = SimNand::new(&profile, 1);
    let database = Database::create_on(device, &options("flagstone", 32 << 20)).unwrap();
    let table = database.table("t").unwrap();
    for row in 0..ROWS {
        let mut transaction = database.begin();
        transaction.put(table, &row.to_be_bytes(), &[0; 150]).unwrap();
        transaction.commit_with(Durability::Deferred).unwrap();
    }
    database.merge().unwrap();
    let is_emptied = |row: &u32| (row / STRETCH).is_multiple_of(2);
    for row in (0..ROWS).filter(is_emptied) {
        let mut transaction = database.begin();
        transaction.delete(table, &row.to_be_bytes()).unwrap();
        transaction.commit_with(Durability::Deferred).unwrap();
    }
    let kept = || (0..ROWS).filter(|row| !is_emptied(row));
    for row in kept().filter(|row| row % STRETCH == 0) {
        let mut transaction = database.begin();
        transaction.put(table, &row.to_be_bytes(), &[1; 150]).unwrap();
        transaction.commit_with(Durability::Deferred).unwrap();
    }
    database.flush().unwrap();
    let device = database.into_device().unwrap();
    let database = Database::open_on(device, &options("flagstone-claims", 32 << 20)).unwrap();
    let table = database.table("t").unwrap();
    let mut transaction = database.begin();
    kept().for_each(|row| transaction.put(table, &row.to_be_bytes(), &[2; 150]).unwrap());
    transaction.commit().unwrap();
    assert!(database.stats().engine.claimed_pages > 50, "{:?}", database.stats().engine);
    let device = database.into_device().unwrap();
    let database = Database::open_on(device, &options("flagstone", 96 << 10)).unwrap();
    let table = database.table("t").unwrap();
    assert!(database.stats().engine.reshapes > 100, "{:?}", database.stats().engine);
    database.merge().unwrap();
    let read = database.begin();
    for row in kept() {
        assert_eq!(read.get(table, &row.to_be_bytes()).unwrap(), Some(vec![2; 150]), "{row}");
    }
    assert_eq!(read.len(table).unwrap(), kept().count() as u64);
}

fn file() -> SegmentFile<SimStorage> {
    let mut profile = Profile::named("segment-file").unwrap();
    profile.geometry.pages_per_block = 32;
    let profile = profile.with_block_count(4_096).unwrap();
    SegmentFile::create_growing(SimStorage::new(profile.timing), &profile, 2).unwrap()
}

fn chip(blocks: u32) -> SimNand {
    SimNand::new(&Profile::named("slc-2k").unwrap().with_block_count(blocks).unwrap(), 1)
}

/// Puts a value into each of many transactions, ends them by `end`, and opens the device as if the power
/// had gone after the last.
fn values_then_cut<D: Nand + Send + 'static>(
    device: D,
    count: u64,
    size: impl Fn(usize) -> usize,
    end: impl Fn(Transaction),
) -> (Database<D>, Table) {
    let database = Database::create_on(device, &Options::default().with_memory(1 << 20)).unwrap();
    let table = database.table("t").unwrap();
    let value = vec![7; size(database.stats().limits.value_size_max)];
    for number in 0..count {
        let mut transaction = database.begin();
        transaction.put(table, &number.to_be_bytes(), &value).unwrap();
        end(transaction);
    }
    let device = database.into_device().unwrap();
    let database = Database::open_on(device, &Options::default().with_memory(1 << 20)).unwrap();
    let table = database.existing_table("t").unwrap().unwrap();
    (database, table)
}

/// Goal: the first record of a session can name every group that the mount finds, however many values were
/// committed or given up since the last checkpoint.
#[test]
fn groups_of_many_values_fit_the_first_record() {
    let megabyte = |_| 1 << 20;
    let largest = |size_max| size_max;
    let commit = |transaction: Transaction| assert!(transaction.commit().is_ok());
    let (database, table) = values_then_cut(file(), 30, megabyte, Transaction::abort);
    assert_eq!(database.snapshot().unwrap().range(table, ..).count(), 0);
    let (database, table) = values_then_cut(file(), 3, largest, commit);
    assert_eq!(database.snapshot().unwrap().range(table, ..).count(), 3);
    let kilobytes = |_| 300 << 10;
    let (database, table) = values_then_cut(chip(512), 100, kilobytes, Transaction::abort);
    assert_eq!(database.snapshot().unwrap().range(table, ..).count(), 0);
    let commit = |transaction: Transaction| assert!(transaction.commit().is_ok());
    let (database, table) = values_then_cut(chip(512), 60, kilobytes, commit);
    assert_eq!(database.snapshot().unwrap().range(table, ..).count(), 60);
    assert!(database.check().unwrap().is_sound());
}

fn put_rows(database: &flagstone::Database, table: Table, rows: std::ops::Range<u32>, fill: u8) {
    let mut transaction = database.begin();
    rows.for_each(|row| transaction.put(table, &row.to_be_bytes(), &[fill; 150]).unwrap());
    transaction.commit().unwrap();
}

fn fills(database: &flagstone::Database) -> Vec<u8> {
    let table = database.existing_table("t").unwrap().unwrap();
    let snapshot = database.snapshot().unwrap();
    snapshot.range(table, ..).map(|row| row.unwrap().1[0]).collect()
}

/// A device with rows in leaves and rows that wait, closed as it should be.
fn closed<D: Crashable + Send + 'static>(device: D) -> D {
    let database = Database::create_on(device, &Options::default().with_memory(1 << 20)).unwrap();
    let table = database.table("t").unwrap();
    put_rows(&database, table, 0..400, 1);
    database.merge().unwrap();
    put_rows(&database, table, 0..40, 2);
    let twin = database.clone();
    database.close().unwrap();
    twin.into_device().unwrap()
}

/// Goal (K6): a session that only reads writes nothing, with any changes waiting in the log, and leaves the
/// device closed. After a session without a clean end there is something to write.
#[test]
fn a_session_that_only_reads_writes_nothing() {
    fn reads<D: Crashable + Send + 'static>(device: D) {
        let options = Options::default().with_memory(1 << 20);
        let expected: Vec<u8> = (0..400).map(|row| if row < 40 { 2 } else { 1 }).collect();
        let mut device = closed(device);
        let before = device.state_hash();
        for _ in 0..3 {
            device.power_cycle();
            let database = Database::open_on(device, &options).unwrap();
            assert_eq!(fills(&database), expected);
            assert!(database.check().unwrap().is_sound());
            assert_eq!(database.recovery().pages_written, 0);
            let twin = database.clone();
            database.close().unwrap();
            device = twin.into_device().unwrap();
            assert_eq!(device.state_hash(), before);
        }
        let database = Database::open_on(device, &options).unwrap();
        let table = database.existing_table("t").unwrap().unwrap();
        put_rows(&database, table, 7..8, 3);
        let mut device = database.into_device().unwrap();
        device.power_cycle();
        let database = Database::open_on(device, &options).unwrap();
        assert!(database.recovery().pages_written > 0, "the last commit may have been in flight");
        assert_eq!(fills(&database)[7], 3);
    }
    reads(chip(64));
    reads(file());
}

/// Goal (K6, D11): sessions that begin on a closed device recover from every cut. Method: a session that
/// commits twice, by the log and by pages of a group, closes and goes on; each of its operations is cut with
/// every ending, and so is each operation of the following restart where that is short.
#[test]
fn every_cut_of_a_session_on_a_closed_device_recovers() {
    let options = Options::default().with_memory(1 << 20);
    let device = closed(chip(64));
    // Number of the last commit that returned before the power went.
    let session = |device: SimNand| -> (u8, SimNand) {
        let Ok(database) = Database::open_on(device.clone(), &options) else { return (2, device) };
        let table = database.existing_table("t").unwrap().unwrap();
        let mut last = 2;
        for fill in 3..6 {
            let mut transaction = database.begin();
            let put = (0..40_u32)
                .try_for_each(|row| transaction.put(table, &row.to_be_bytes(), &[fill; 150]));
            if put.is_err() || transaction.commit().is_err() {
                break;
            }
            last = fill;
            if fill == 4 {
                let twin = database.clone();
                let _ = twin.close();
            }
        }
        (last, database.into_device().unwrap())
    };
    let mut recorded = device.clone();
    recorded.record_operations();
    let (last, recorded) = session(recorded);
    assert_eq!(last, 5);
    let mut cuts = 0;
    for number in device.operation_count()..recorded.operation_count() {
        for ending in recorded.endings_at(number) {
            let mut cut = device.clone();
            cut.set_plan(FaultPlan::power_cut(1, number, ending));
            let (last, mut cut) = session(cut);
            // The commit in flight may have been committed; the answer of one restart stays the answer.
            let mut possible = vec![last, last + 1];
            for _ in 0..3 {
                cut.power_cycle();
                let database = Database::open_on(cut, &options).unwrap();
                let found = fills(&database);
                assert!(possible.contains(&found[0]), "cut {number} {ending}: {found:?}");
                assert!(found[..40].iter().all(|fill| *fill == found[0]), "cut {number} {ending}");
                assert!(database.check().unwrap().is_sound(), "cut {number} {ending}");
                possible = vec![found[0]];
                cut = database.into_device().unwrap();
            }
            cuts += 1;
        }
    }
    assert!(cuts > 50, "{cuts}");
}

/// Goal: sessions without end are kept apart by a bounded record. Method: a chip that carries flags, one row
/// that each session changes, and power that goes after each.
#[test]
fn rows_of_sessions_are_not_kept_apart_for_ever() {
    let profile = Profile::named("tiny-flags").unwrap().with_block_count(128).unwrap();
    let options = Options::default().with_memory(1 << 20);
    let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
    let table = database.table("t").unwrap();
    put_rows(&database, table, 0..20, 0);
    database.runtime().checkpoint_now().unwrap();
    let mut device = database.into_device().unwrap();
    for session in 0..400_u32 {
        device.power_cycle();
        let database = Database::open_on(device, &options).unwrap();
        let table = database.existing_table("t").unwrap().unwrap();
        let mut transaction = database.begin();
        let value = transaction.get(table, &7_u32.to_be_bytes()).unwrap().unwrap();
        assert_eq!(value[4..8], session.to_be_bytes());
        let next = (session + 1).to_be_bytes();
        transaction.patch(table, &7_u32.to_be_bytes(), 4, &next).unwrap();
        transaction.commit_with(Durability::Immediate).unwrap();
        device = database.into_device().unwrap();
    }
}

fn put_value(database: &Database<SimNand>, table: Table, row: u32, fill: u8) {
    let mut transaction = database.begin();
    transaction.put(table, &row.to_be_bytes(), &vec![fill; 5_000]).unwrap();
    transaction.commit().unwrap();
}

/// A database whose last checkpoint names many pages: values that a snapshot alone needed, enough to fill
/// four fifths of a record.
fn much_said() -> (Database<SimNand>, Table) {
    let mut profile = Profile::named("slc-2k").unwrap();
    profile.geometry.pages_per_block = 8;
    let profile = profile.with_block_count(4_096).unwrap();
    let options = Options::default().with_memory(1 << 20);
    let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
    let table = database.table("t").unwrap();
    (0..400).for_each(|row| put_value(&database, table, row, 1));
    let snapshot = database.snapshot().unwrap();
    let room = database.runtime().space().record_room();
    let said = || database.runtime().space().saved_size();
    for row in 0..400_u32 {
        let mut transaction = database.begin();
        transaction.delete(table, &row.to_be_bytes()).unwrap();
        transaction.commit().unwrap();
        if row % 10 == 9 {
            database.merge().unwrap();
        }
        if said() * 100 > room * 80 {
            break;
        }
    }
    assert!(said() * 100 > room * 80, "the record says {} of {room} bytes", said());
    drop(snapshot);
    (database, table)
}

/// Goal: the names in the last checkpoint leave room to name new values.
#[test]
fn a_record_that_says_much_leaves_room_for_what_is_open() {
    let (database, table) = much_said();
    let mut large = database.begin();
    for row in 1_000..1_100_u32 {
        large.put(table, &row.to_be_bytes(), &[3; 5_000]).unwrap();
        put_value(&database, table, row - 1_000, 4);
    }
    large.commit().unwrap();
    let expected = database.snapshot().unwrap().range(table, ..).count();
    let options = Options::default().with_memory(1 << 20);
    let database = Database::open_on(database.into_device().unwrap(), &options).unwrap();
    assert_eq!(fills(&database).len(), expected);
    assert!(database.check().unwrap().is_sound());
}

/// Goal: the names in the last checkpoint also leave room to spill transactions larger than memory, in this
/// session and in the next.
#[test]
fn a_record_that_says_much_leaves_room_for_spills() {
    let (database, table) = much_said();
    spill(&database, table);
    let (database, _) = much_said();
    let options = Options::default().with_memory(1 << 20);
    let database = Database::open_on(database.into_device().unwrap(), &options).unwrap();
    let table = database.existing_table("t").unwrap().unwrap();
    spill(&database, table);
}

/// Goal: a device that is made anew holds nothing of before, in the next session either. Method: lives that
/// end with different kinds of blocks; the last block taken may be a block of the log.
#[test]
fn a_device_made_anew_is_empty() {
    fn session(device: SimNand, act: impl Fn(&Database<SimNand>)) -> SimNand {
        let options = Options::default().with_memory(1 << 20);
        let database = Database::open_on(device, &options).unwrap();
        act(&database);
        let twin = database.clone();
        database.close().unwrap();
        twin.into_device().unwrap()
    }
    for name in ["slc-2k", "nandsim", "spi-nand", "tiny-flags", "tiny"] {
        let profile = Profile::named(name).unwrap().with_block_count(64).unwrap();
        let options = Options::default().with_memory(1 << 20);
        let made = |device| {
            let database = Database::create_on(device, &options).unwrap();
            let twin = database.clone();
            database.close().unwrap();
            twin.into_device().unwrap()
        };
        for sessions in 0..5 {
            let mut device = made(SimNand::new(&profile, 1));
            for number in 0..sessions {
                device = session(device, |database| {
                    let table = database.table("t").unwrap();
                    put_rows(database, table, number..number + 1, 1);
                });
                device = session(device, |database| assert!(!fills(database).is_empty()));
            }
            session(made(device), |database| {
                let table = database.existing_table("t").unwrap();
                assert!(table.is_none(), "{name} after {sessions} sessions");
            });
        }
    }
}

/// Leaks that a check finds once every commit is loaded, merged and released.
fn leaked(database: &Database<SimNand>) -> u64 {
    for _ in 0..3 {
        database.merge().unwrap();
    }
    let report = database.check().unwrap();
    assert!(report.is_sound(), "{report:?}");
    report.leaked_pages
}

/// Goal: a large value that no row can refer to leaves no page behind. Method: its key is too long, or its
/// table another database's, and the transaction goes on.
#[test]
fn a_value_that_is_refused_leaves_nothing() {
    let (database, table) = created();
    let elsewhere = {
        let (other, _) = created();
        other.table("another").unwrap()
    };
    let mut transaction = database.begin();
    let refused = transaction.put(table, &[0; 5_000], &[1; 20_000]);
    assert!(matches!(refused, Err(WriteError::KeyTooLong { .. })), "{refused:?}");
    assert_eq!(transaction.bill().programs(), 0, "its pages were written");
    assert_eq!(transaction.put(elsewhere, b"k", &[1; 20_000]), Err(WriteError::ForeignTable));
    assert_eq!(transaction.put(elsewhere, b"k", b"v"), Err(WriteError::ForeignTable));
    assert_eq!(transaction.delete(elsewhere, b"k"), Err(WriteError::ForeignTable));
    transaction.put(table, b"a", &[2; 20_000]).unwrap();
    transaction.commit().unwrap();
    assert_eq!(leaked(&database), 0);
    assert_eq!(database.begin().get(table, b"a").unwrap(), Some(vec![2; 20_000]));
}

/// Goal: large values of changes that left memory and were rolled back, or replaced behind a savepoint, are
/// freed. Method: both, with and without a restart in front of the loading.
#[test]
fn values_that_a_spill_rolls_back_or_replaces_are_freed() {
    for replaces in [false, true] {
        for restarts in [false, true] {
            let (mut database, mut table) = created();
            let mut transaction = database.begin();
            // The change with the lower key leaves memory first.
            let (first, second) = ([0; 4], [0, 0, 0, 1]);
            transaction.put(table, &first, &[1; 9_000]).unwrap();
            let savepoint = transaction.savepoint().unwrap();
            transaction.put(table, if replaces { &first } else { &second }, &[2; 9_000]).unwrap();
            for number in 9..2_000_u32 {
                transaction.put(table, &number.to_be_bytes(), &[3; 150]).unwrap();
            }
            if !replaces {
                transaction.rollback_to(savepoint).unwrap();
            }
            transaction.commit().unwrap();
            assert!(database.stats().engine.spilled_pages > 0, "the transaction fits in memory");
            if restarts {
                (database, table) = opened_again(database);
            }
            let fill = if replaces { 2 } else { 1 };
            assert_eq!(database.begin().get(table, &first).unwrap(), Some(vec![fill; 9_000]));
            assert_eq!(leaked(&database), 0, "replaces {replaces}, restarts {restarts}");
            assert_eq!(database.begin().get(table, &second).unwrap(), None);
        }
    }
}

/// Goal: the part of a commit that names savepoints grows with the changes that left memory, not with the
/// number of rollbacks. Method: many rollbacks behind a spill, to one savepoint and to fresh ones, some of
/// them across it.
#[test]
fn ways_back_to_savepoints_take_no_room() {
    let (database, table) = created();
    let mut transaction = database.begin();
    let put = |transaction: &mut Transaction, rows: std::ops::Range<u32>, fill: u8| {
        rows.for_each(|row| transaction.put(table, &row.to_be_bytes(), &[fill; 150]).unwrap());
    };
    put(&mut transaction, 0..1_000, 1);
    let early = transaction.savepoint().unwrap();
    put(&mut transaction, 500..2_000, 2);
    let late = transaction.savepoint().unwrap();
    assert!(database.stats().engine.spilled_pages > 0, "the transaction fits in memory");
    for way in 0..20_000 {
        let savepoint = if way % 2 == 0 { late } else { transaction.savepoint().unwrap() };
        put(&mut transaction, way..way + 1, 3);
        transaction.rollback_to(savepoint).unwrap();
    }
    let before = database.stats().engine.log_bytes;
    for _ in 0..20 {
        put(&mut transaction, 800..1_200, 4);
        transaction.rollback_to(early).unwrap();
        assert_eq!(transaction.get(table, &900_u32.to_be_bytes()).unwrap(), Some(vec![1; 150]));
    }
    put(&mut transaction, 990..1_010, 5);
    transaction.commit().unwrap();
    let logged = database.stats().engine.log_bytes - before;
    assert!(logged < 64 << 10, "{logged} bytes of log");
    let (database, table) = opened_again(database);
    for row in 0..2_000_u32 {
        let fill = match row {
            990..1_010 => Some(5),
            0..990 => Some(1),
            _ => None,
        };
        let value = database.begin().get(table, &row.to_be_bytes()).unwrap();
        assert_eq!(value, fill.map(|fill| vec![fill; 150]), "row {row}");
    }
}

#[test]
fn a_savepoint_that_was_rolled_back_is_gone() {
    let (database, table) = created();
    let mut transaction = database.begin();
    let early = transaction.savepoint().unwrap();
    transaction.put(table, b"a", b"1").unwrap();
    let late = transaction.savepoint().unwrap();
    transaction.rollback_to(early).unwrap();
    let again = transaction.savepoint().unwrap();
    transaction.put(table, b"b", b"2").unwrap();
    assert_eq!(transaction.rollback_to(late), Err(WriteError::NoSavepoint));
    transaction.rollback_to(again).unwrap();
    assert_eq!(transaction.get(table, b"b").unwrap(), None);
}

/// Goal: a large transaction behind another one has the same room, but for how its pages lie: pages that
/// follow each other are named together. Method: on small blocks, whose records hold little, as many changes
/// as one transaction may have, several times in a row.
#[test]
fn a_large_transaction_may_follow_another() {
    let profile = Profile::named("tiny").unwrap().with_block_count(400).unwrap();
    let geometry = flagstone_nand::Geometry { pages_per_block: 16, ..profile.geometry };
    let profile = Profile { geometry, ..profile };
    let options = Options::default().with_memory(64 << 10).with_log_pages(1_600);
    let put = |database: &Database<SimNand>, table, rows: u32, fill: u8| -> Result<(), Error> {
        let mut transaction = database.begin();
        for row in 0..rows {
            transaction.put(table, &row.to_be_bytes(), &[fill; 100])?;
        }
        Ok(transaction.commit().map(drop)?)
    };
    let created = || {
        let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
        let table = database.table("t").unwrap();
        (database, table)
    };
    let fits = |rows: &u32| {
        let (database, table) = created();
        put(&database, table, *rows, 1).is_ok()
    };
    let most = (1..60).map(|step| step * 50).take_while(fits).last().unwrap();
    let (database, table) = created();
    for round in 0..12 {
        // Names of pages that do not follow each other are longer.
        let rows = most - most / 16;
        let put = put(&database, table, rows, round);
        assert!(put.is_ok(), "{rows} rows, round {round}: {put:?}");
    }
    assert!(database.stats().engine.spilled_pages > 0, "{most} rows fit in memory");
}

/// Goal: a transaction may be many times larger than memory, with its keys in any order, and is there as a
/// whole after a cut; changes of keys that it changed before are found on flash. Method: twelve times the
/// memory in rows of random order, each tenth row changed again, a cut before and one after the commit.
#[test]
fn a_transaction_of_many_times_the_memory_commits() {
    const ROWS: u32 = 40_000;
    let profile = Profile::named("slc-2k").unwrap().with_block_count(512).unwrap();
    let options = Options::default().with_memory(512 << 10);
    let key = |row: u32| row.wrapping_mul(0x9E37_79B1).to_be_bytes();
    let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
    let table = database.table("t").unwrap();
    let put_all = |database: &Database<SimNand>, table| {
        let mut transaction = database.begin();
        for row in 0..ROWS {
            transaction.put(table, &key(row), &[row as u8; 150]).unwrap();
        }
        for row in (0..ROWS).step_by(10) {
            transaction.put(table, &key(row), b"again").unwrap();
        }
        assert_eq!(transaction.get(table, &key(11)).unwrap(), Some(vec![11; 150]));
        transaction
    };
    drop(put_all(&database, table));
    let transaction = put_all(&database, table);
    let mut device = database.at_device(|device| device.clone());
    device.power_cycle();
    transaction.commit().unwrap();
    let before = Database::open_on(device, &options).unwrap();
    let rows = before
        .existing_table("t")
        .unwrap()
        .map(|table| before.snapshot().unwrap().range(table, ..).count());
    assert_eq!(rows, Some(0), "nothing is there before the commit");
    let mut device = database.at_device(|device| device.clone());
    device.power_cycle();
    let after = Database::open_on(device, &options).unwrap();
    let table = after.existing_table("t").unwrap().unwrap();
    let snapshot = after.snapshot().unwrap();
    for row in (0..ROWS).step_by(7) {
        let expected = if row % 10 == 0 { b"again".to_vec() } else { vec![row as u8; 150] };
        assert_eq!(snapshot.get(table, &key(row)).unwrap(), Some(expected), "row {row}");
    }
    assert_eq!(snapshot.range(table, ..).count(), ROWS as usize);
    drop(snapshot);
    assert!(after.check().unwrap().is_sound());
}

/// Goal: a clean close merges nothing that the next session has room for. Method: sessions that end at any
/// point of a batch of merges, which frees memory ahead of need.
#[test]
fn a_close_merges_nothing_ahead() {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    let options = Options::default().with_memory(512 << 10).with_durability(Durability::Deferred);
    for rows in (6_000..8_000_u64).step_by(250) {
        let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
        let table = database.table("t").unwrap();
        for first in (0..rows).step_by(10) {
            let mut transaction = database.begin();
            for row in first..first + 10 {
                let key = row.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
                transaction.put(table, &key, &[7; 100]).unwrap();
            }
            transaction.commit().unwrap();
        }
        database.flush().unwrap();
        let before = database.stats().engine.merges;
        let observer = database.clone();
        database.close().unwrap();
        let merges = observer.stats().engine.merges - before;
        assert!(merges <= 2, "{rows} rows: {before} merges before the close, {merges} in it");
    }
}

/// Goal: a wait for a checkpoint of a file is not a wait for a sync a page. Method: the syncs of a checkpoint
/// that copies.
#[test]
fn a_checkpoint_that_is_waited_for_takes_few_syncs() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default().with_memory(4 << 20);
    let database = flagstone::Database::create(directory.path().join("db"), &options).unwrap();
    let table = database.table("t").unwrap();
    for first in (0..8_000_u32).step_by(100) {
        let mut transaction = database.begin();
        for row in first..first + 100 {
            let key = row.wrapping_mul(2_654_435_761).to_be_bytes();
            transaction.put(table, &key, &[7; 80]).unwrap();
        }
        transaction.commit().unwrap();
    }
    let syncs = || database.runtime().space().device().counters().syncs;
    let (copied, before) = (database.stats().engine.copied_deltas, syncs());
    database.runtime().checkpoint_now().unwrap();
    let copied = database.stats().engine.copied_deltas - copied;
    let syncs = syncs() - before;
    assert!(copied > 6_000 && syncs < 20, "{copied} changes copied with {syncs} syncs");
}

/// Goal: a log lets as many changes wait as it can copy. Method: small rows, of which memory could hold many
/// more, and how many wait at most, as records of 27 bytes.
#[test]
fn records_count_against_the_log_not_their_memory() {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(128).unwrap();
    let options = Options::default().with_memory(8 << 20).with_log_pages(512);
    let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
    let table = database.table("t").unwrap();
    let mut most = 0;
    for row in 0..40_000_u32 {
        let key = u64::from(row).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        let mut transaction = database.begin();
        transaction.put(table, &key, &[7; 8]).unwrap();
        transaction.commit_with(Durability::Deferred).unwrap();
        most = most.max(database.stats().engine.deltas);
    }
    let log_size = {
        let space = database.runtime().space();
        space.log_budget_pages() * u64::from(space.device().geometry().page_size)
    };
    let share = (most * 27) as f64 / log_size as f64;
    assert!((0.25..0.31).contains(&share), "{most} changes, {share:.3} of {log_size} bytes of log");
}
