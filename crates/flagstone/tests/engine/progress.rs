//! Rule D7: every wait comes to its end, with as little memory and log as there may be.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use flagstone::{Durability, Options, PRESETS, Table};
use flagstone_engine::Stop;
use flagstone_nand::{Crashable as _, Ending, FaultPlan, Nand as _, NandError, Profile, SimNand};

use crate::hooked::{Call, Hooked};
use crate::on::Database;

const PAGE_SIZE: usize = 512;

/// The smallest memory that an engine takes.
fn options(preset: &str) -> Options {
    Options::preset(preset).unwrap().with_memory(24 * PAGE_SIZE)
}

fn created(profile: &str, block_count: u32, options: &Options) -> Database<SimNand> {
    let profile = Profile::named(profile).unwrap().with_block_count(block_count).unwrap();
    Database::create_on(SimNand::new(&profile, 1), options).unwrap()
}

fn read_count(database: &Database<SimNand>) -> u64 {
    database.at_device(|device| device.counters().page_reads)
}

/// Bytes without a pattern.
fn scrambled(number: u32, size: usize) -> Vec<u8> {
    let mut state = u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..size).map(|_| next()).collect()
}

/// Keys that share long beginnings, each with some others, so that nodes have few children and the
/// tree is tall.
fn tall_key(database: &Database<SimNand>, number: u32) -> Vec<u8> {
    let size_max = database.stats().limits.key_size_max;
    let mut key = scrambled(number / 24 + 1, size_max - 1);
    key.push(number as u8);
    key
}

fn put_row(database: &Database<SimNand>, table: Table, key: &[u8], value: u8) {
    let mut transaction = database.begin();
    transaction.put(table, key, &[value; 60]).unwrap();
    transaction.commit_with(Durability::Deferred).unwrap();
}

/// Goal: a search reads no more than the nodes of one path, each once.
#[test]
fn the_path_of_a_tall_tree_fits_the_smallest_memory() {
    let database = created("tiny", 500, &options("flagstone"));
    let table = database.table("t").unwrap();
    let count = 3_000;
    (0..count).for_each(|number| put_row(&database, table, &tall_key(&database, number), 1));
    database.runtime().checkpoint_now().unwrap();
    for number in (0..count).step_by(17) {
        let before = read_count(&database);
        let value = database.begin().get(table, &tall_key(&database, number)).unwrap();
        assert_eq!(value.as_deref(), Some(&[1; 60][..]), "row {number}");
        let reads = read_count(&database) - before;
        assert!(reads <= 24, "{reads} reads for row {number}");
    }
}

/// Does background work until none is left, with `between` before each piece.
fn work_off(database: &Database<SimNand>, mut between: impl FnMut(u32)) {
    let runtime = database.runtime();
    for step in 0.. {
        assert!(step < 1_000, "work goes round in circles");
        if runtime.engine().is_flush_wanted()
            && let Some(flush) = runtime.flush_begin().unwrap()
        {
            runtime.flush_end(flush);
        }
        if !runtime.engine().has_work() {
            return;
        }
        match runtime.work_begin() {
            Ok(Some(work)) => runtime.work_end(work),
            Ok(None) | Err(Stop::Wait(_)) => {}
            Err(Stop::Miss(fetch)) => {
                let fetched = runtime.read(fetch).unwrap();
                runtime.engine().fill(fetched).unwrap();
            }
            Err(Stop::Error(error)) => panic!("{error}"),
        }
        between(step);
    }
}

/// Goal: work comes to its end although the nodes of its search do not fit in memory together, and although
/// readers fill the memory with other nodes meanwhile. Method: trees that are tall, and changes scattered
/// over them.
#[test]
fn work_ends_in_the_smallest_memory_beside_readers() {
    for preset in ["flagstone", "traditional"] {
        let database = created("tiny", 400, &options(preset));
        let tables = ["a", "b", "c", "d"].map(|name| database.table(name).unwrap());
        let count = 600;
        for number in 0..count * 4 {
            let key = tall_key(&database, number / 4);
            put_row(&database, tables[number as usize % 4], &key, 1);
        }
        for number in 0..400_u32 {
            let key = tall_key(&database, number.wrapping_mul(2_654_435_761) % count);
            put_row(&database, tables[number as usize % 4], &key, 2);
            database.runtime().engine().want_checkpoint();
            work_off(&database, |step| {
                for table in tables {
                    let key = tall_key(&database, step.wrapping_mul(40_503) % count);
                    database.begin().get(table, &key).unwrap();
                }
            });
        }
    }
}

/// Commits one row; whether the power lasted.
fn commit_row(device: SimNand, options: &Options, number: u8) -> (SimNand, bool) {
    let database = Database::open_on(device, options).unwrap();
    let table = database.existing_table("t").unwrap().unwrap();
    let mut transaction = database.begin();
    let is_put = transaction.put(table, &[number], b"value").is_ok();
    let is_done = is_put && transaction.commit().is_ok();
    (database.into_device().unwrap(), is_done)
}

/// The device after a session that took room in the log for its first commit, and was cut off before the
/// record was in it.
fn after_a_session_without_a_record(device: &SimNand, options: &Options) -> SimNand {
    let opened = Database::open_on(device.clone(), options).unwrap().into_device().unwrap();
    let end = commit_row(device.clone(), options, 0).0.operation_count();
    let cut_at = |operation: u64| {
        let mut device = device.clone();
        device.set_plan(FaultPlan::power_cut(1, operation, Ending::RandomBits));
        let (mut device, is_done) = commit_row(device, options, 0);
        device.power_cycle();
        device.set_plan(FaultPlan::default());
        (!is_done).then_some(device)
    };
    let leaves_no_record = |device: &SimNand| {
        let opened = Database::open_on(device.clone(), options).unwrap();
        opened.recovery().log_pages_copied == 0
    };
    let operations = opened.operation_count()..end;
    operations.rev().filter_map(cut_at).find(leaves_no_record).unwrap()
}

/// Goal: sessions that took room in the log and left no record there do not use up the log. Method: cuts
/// within the first program of many sessions in a row.
#[test]
fn sessions_without_a_record_leave_the_log_its_room() {
    let options = options("traditional").with_log_pages(24);
    let database = created("tiny-nospare", 40, &options);
    database.table("t").unwrap();
    database.runtime().checkpoint_now().unwrap();
    let mut device = database.into_device().unwrap();
    for session in 0..6 {
        device = after_a_session_without_a_record(&device, &options);
        let database = Database::open_on(device.clone(), &options).unwrap();
        let used = database.runtime().space().log_used_pages();
        assert!(used <= 12, "{used} log pages hold nothing after session {session}");
    }
    for number in 0..20 {
        let (after, is_done) = commit_row(device, &options, number);
        assert!(is_done);
        device = after;
    }
}

/// The device, which fails where more pages are read than any opening may need.
fn with_bounded_reads(device: SimNand, read_count_max: u32) -> Hooked<SimNand> {
    let count = AtomicU32::new(0);
    let hook = move |call| match call {
        Call::Read(page) if count.fetch_add(1, Ordering::Relaxed) >= read_count_max => {
            Err(NandError::Uncorrectable { page })
        }
        _ => Ok(()),
    };
    Hooked { device, hook: Arc::new(hook) }
}

/// Rows of one table all over its leaves, and rows of tables with one leaf each, all of them in the log
/// alone; then a cut.
fn cut_with_many_changes(options: &Options) -> SimNand {
    let database = created("tiny", 1_000, options);
    let table = database.table("wide").unwrap();
    (0..2_000_u32).for_each(|row| put_row(&database, table, &row.to_be_bytes(), 1));
    let narrow: Vec<_> =
        (0..12).map(|number| database.table(&format!("t{number}")).unwrap()).collect();
    for row in 0..6_000_u32 {
        put_row(&database, table, &(row.wrapping_mul(769) % 2_000).to_be_bytes(), 2);
        put_row(&database, narrow[row as usize % narrow.len()], b"key", row as u8);
    }
    database.flush().unwrap();
    let mut device = database.into_device().unwrap();
    device.power_cycle();
    device
}

/// Goal: an opening ends, with any memory. Method: many changes that the log alone has, in trees of many
/// leaves and of one; opened with other memory by every preset, on a device that counts its reads.
#[test]
fn every_opening_ends_whatever_the_memory() {
    const READS_MAX: u32 = 400_000;
    let presets = PRESETS.iter().map(|preset| Options::preset(preset.name).unwrap());
    let device = cut_with_many_changes(&Options::default().with_memory(2 << 20));
    // Some presets want a chip with other capabilities.
    for way in presets.filter(|way| way.require(&device).is_ok()) {
        for memory in [24 * PAGE_SIZE, 96 << 10, 160 << 10, 256 << 10] {
            let options = way.clone().with_memory(memory);
            let told = format!("{}, {memory} bytes", options.preset);
            let database =
                Database::open_on(with_bounded_reads(device.clone(), READS_MAX), &options);
            let database = database.unwrap_or_else(|error| panic!("{told}: {error}"));
            let table = database.table("wide").unwrap();
            for row in (0..2_000_u32).step_by(97) {
                let found = database.begin().get(table, &row.to_be_bytes()).unwrap();
                assert_eq!(found.as_deref(), Some(&[2; 60][..]), "{told}, row {row}");
            }
        }
    }
}
