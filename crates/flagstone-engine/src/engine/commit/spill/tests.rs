use flagstone_nand::{Profile, SimNand};
use flagstone_space::LogicalPage;

use super::*;
use crate::engine::Engine;
use crate::engine::step::Fetch;
use crate::engine::store::catalog::Table;
use crate::engine::store::private_key::private_bounds;
use crate::engine::store::run::committed::CommittedRun;
use crate::testing::Database;
use crate::{Durability, Options};

const ROWS: u32 = 40_000;

/// A database with a transaction just committed that left memory, in runs of several parts.
fn spilled() -> Database<SimNand> {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(256).unwrap();
    let options = Options::default().with_memory(4 << 20);
    let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
    let table = database.table("t").unwrap();
    let mut transaction = database.begin();
    for row in 0..ROWS {
        let key = row.wrapping_mul(0x9E37_79B1).to_be_bytes();
        transaction.put(table, &key, &[row as u8; 100]).unwrap();
    }
    transaction.commit_with(Durability::Immediate).unwrap();
    database
}

/// A part of more than one page that no load has begun: the number of its run, its own number, and its
/// pages.
fn untouched(engine: &Engine) -> (usize, usize, Vec<LogicalPage>) {
    let runs = engine.runs.open.iter().enumerate();
    let parts = runs.flat_map(|(number, run)| (0..run.run.parts.len()).map(move |at| (number, at)));
    let is_fresh = |(number, part): &(usize, usize)| {
        let run = &engine.runs.open[*number];
        !run.is_loaded[*part]
            && !run.loading.contains_key(part)
            && run.run.parts[*part].pages.len() > 1
    };
    let (number, part) = parts.filter(is_fresh).last().unwrap();
    (number, part, engine.runs.open[number].run.parts[part].pages.iter().collect())
}

fn missed(step: Step<()>) -> Fetch {
    let Err(Stop::Miss(fetch)) = step else { panic!("nothing is missing: {step:?}") };
    fetch
}

/// Goal: a page of a run is not kept if its read ends after its changes were already loaded: its number
/// will have another owner. Method: two operations miss the same page, and one is done with it before
/// the other is back.
#[test]
fn a_page_that_was_taken_already_is_not_kept() {
    let database = spilled();
    let runtime = database.runtime();
    let (number, part, pages) = untouched(&runtime.engine());
    let fetch = missed(runtime.engine().load_part(number, part));
    let [first, late] = [(); 2].map(|()| runtime.read(fetch).unwrap());
    runtime.engine().fill(first).unwrap();
    let next = missed(runtime.engine().load_part(number, part));
    assert_ne!(next, fetch);
    runtime.engine().fill(late).unwrap();
    assert!(runtime.engine().pool.peek(pages[0]).is_none(), "nobody reads it any more");
    let next = runtime.read(next).unwrap();
    runtime.engine().fill(next).unwrap();
    assert!(runtime.engine().pool.peek(pages[1]).is_some(), "somebody reads it next");
}

/// Goal: a key needs a small share of a spilled transaction loaded, in any order of its keys. Method:
/// parts that hold one key, and their pages.
#[test]
fn a_key_needs_a_small_share_of_the_runs() {
    let database = spilled();
    let engine = database.runtime().engine();
    let table = Table::of(1);
    let all: usize = engine.runs.open.iter().map(|run| run.run.page_count()).sum();
    for draw in 0..50_u32 {
        let key = draw.wrapping_mul(0x2545_F491).to_be_bytes();
        let (low, high) =
            private_bounds(table, KeyRange { low: &key, high: Some(&[&key[..], &[0]].concat()) });
        let inside = KeyRange { low: &low, high: Some(&high) };
        let of_run = |run: &CommittedRun| -> usize {
            run.run.parts[run.run.parts_in(inside)].iter().map(|part| part.pages.len()).sum()
        };
        let needed: usize = engine.runs.open.iter().map(of_run).sum();
        assert!(needed * 20 <= all, "{needed} of {all} pages");
    }
}

/// Goal (rule D7): spilled changes come back in parts, for a merge as for a scan, even if all are for
/// one leaf. Method: a transaction larger than memory, in a table that was empty; the most memory that
/// changes took, and all rows.
#[test]
fn what_left_memory_comes_back_in_parts() {
    for is_scan in [false, true] {
        let database = spilled();
        let table = database.existing_table("t").unwrap().unwrap();
        let before = database.stats().engine.memory.deltas;
        let check = || {
            let transaction = database.begin();
            let rows = transaction.range(table, ..).map(|row| row.unwrap().0);
            let rows: Vec<Vec<u8>> = rows.collect();
            assert!(rows.is_sorted() && rows.len() == ROWS as usize, "{} rows", rows.len());
        };
        if is_scan {
            check();
        }
        database.merge().unwrap();
        let stats = database.stats().engine;
        let most = database.runtime().engine().memory.limits.deltas_hard;
        println!("{before} {} of {most}, {stats:?}", stats.memory.deltas);
        assert!(stats.memory.deltas <= before.max(most + most / 4), "{stats:?}");
        assert!(stats.merges_in_parts > 2, "{stats:?}");
        check();
        assert!(database.check().unwrap().is_sound());
    }
}

/// Goal (rule D7): the same where the changes are all over a table: changes loaded for one leaf are
/// merged into the leaves behind it before more are loaded. Method: all rows of a table, changed by one
/// transaction.
#[test]
fn changes_all_over_a_table_come_back_in_key_order() {
    let database = spilled();
    let table = database.existing_table("t").unwrap().unwrap();
    database.merge().unwrap();
    let before = database.stats().engine.memory.deltas;
    let mut transaction = database.begin();
    for row in (0..ROWS).rev() {
        let key = row.wrapping_mul(0x9E37_79B1).to_be_bytes();
        transaction.put(table, &key, &[!(row as u8); 100]).unwrap();
    }
    transaction.commit_with(Durability::Immediate).unwrap();
    assert!(!database.runtime().engine().runs.is_empty(), "it fits in memory");
    database.merge().unwrap();
    let stats = database.stats().engine;
    let most = database.runtime().engine().memory.limits.deltas_hard;
    println!("{before} {} of {most}, {stats:?}", stats.memory.deltas);
    assert!(stats.memory.deltas <= before.max(most + most / 4), "{stats:?}");
    let snapshot = database.snapshot().unwrap();
    for row in 0..ROWS {
        let key = row.wrapping_mul(0x9E37_79B1).to_be_bytes();
        assert_eq!(snapshot.get(table, &key).unwrap().as_deref(), Some(&[!(row as u8); 100][..]));
    }
}

/// Goal: a record names many values with pages of their own by few entries, so that only the free room
/// of the device bounds a transaction. Method: more values than a record could name one by one, on a
/// chip and a cut.
#[test]
fn many_values_are_named_by_few_entries() {
    const VALUES: u32 = 8_000;
    let profile = Profile::named("slc-2k").unwrap().with_block_count(256).unwrap();
    let options = Options::default().with_memory(4 << 20);
    let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
    let table = database.table("t").unwrap();
    let most = database.runtime().space().record_room() / flagstone_space::OPEN_GROUP_PAGE_SIZE;
    assert!(most < VALUES as usize, "{most} pages could be named one by one");
    let mut transaction = database.begin();
    for row in 0..VALUES {
        transaction.put(table, &row.to_be_bytes(), &[row as u8; 1_500]).unwrap();
    }
    transaction.commit_with(Durability::Immediate).unwrap();
    let database = Database::open_on(database.into_device().unwrap(), &options).unwrap();
    let table = database.existing_table("t").unwrap().unwrap();
    let snapshot = database.snapshot().unwrap();
    for row in 0..VALUES {
        let value = snapshot.get(table, &row.to_be_bytes()).unwrap();
        assert!(value.is_some_and(|value| value == [row as u8; 1_500]), "row {row}");
    }
}

/// Goal (rule D7): a transaction is refused for the bytes that its names take, not for the most that
/// they might: parts are named, not each page. Method: rows with long keys in one transaction on small
/// blocks, whose records are small.
#[test]
fn names_are_counted_as_parts() {
    let profile = Profile::named("tiny").unwrap().with_block_count(1_000).unwrap();
    let options = Options::default().with_memory(32 << 10);
    let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
    let table = database.table("t").unwrap();
    let mut transaction = database.begin();
    let mut put = |row: u32| {
        let key = [&[b'k'; 80][..], &row.to_be_bytes()].concat();
        transaction.put(table, &key, &[0; 8])
    };
    let rows = (0..).find(|row| put(*row).is_err()).unwrap();
    let engine = database.runtime().engine();
    println!("{rows} rows, {} of {} bytes", engine.record_size(), engine.room.view.record_room);
    assert!(engine.record_size() * 3 > engine.room.view.record_room, "{rows} rows");
}

/// Goal (rule D7): a transaction that has changed more than a record can name gets that error, not that
/// the device is full, and nothing else suffers: other transactions change rows once it is gone.
/// Method: rows in one transaction on small blocks, and values.
#[test]
fn a_transaction_that_no_record_can_name_is_too_large() {
    for size in [8, 2_000] {
        let profile = Profile::named("tiny").unwrap().with_block_count(1_000).unwrap();
        let options = Options::default().with_memory(32 << 10);
        let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
        let table = database.table("t").unwrap();
        let mut transaction = database.begin();
        let mut put = |row: u32| transaction.put(table, &row.to_be_bytes(), &vec![7; size]);
        let refused = (0..).find_map(|row| put(row).err()).unwrap();
        assert_eq!(refused, EngineError::TooLarge, "values of {size} bytes");
        drop(transaction);
        let mut transaction = database.begin();
        transaction.put(table, b"k", &vec![7; size]).unwrap();
        transaction.commit().unwrap();
        let space = database.stats().space;
        assert!(space.live_pages * 10 < space.capacity_pages, "{space:?}");
    }
}
