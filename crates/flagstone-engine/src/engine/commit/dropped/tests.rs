use flagstone_nand::{BlockIndex, Crashable as _, Nand as _, Profile, SimNand};

use crate::Options;
use crate::options::FrameKind;
use crate::testing::Database;

const ROWS: u32 = 5_000;
const VALUES: u32 = 150;

fn options() -> Options {
    Options::default().with_memory(512 << 10)
}

/// A table of rows, and a table of values with pages of their own, all in pages that a checkpoint
/// knows.
fn with_two_tables() -> SimNand {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(160).unwrap();
    let database = Database::create_on(SimNand::new(&profile, 1), &options()).unwrap();
    let [rows, values] = ["rows", "values"].map(|name| database.table(name).unwrap());
    let all = (0..ROWS).map(|row| (row.to_be_bytes(), [7; 100]));
    database.load_sorted(rows, all).unwrap();
    for row in 0..VALUES {
        let mut transaction = database.begin();
        transaction.put(values, &row.to_be_bytes(), &[9; 6_000]).unwrap();
        transaction.commit().unwrap();
    }
    database.merge().unwrap();
    database.runtime().checkpoint_now().unwrap();
    let mut device = database.into_device().unwrap();
    device.power_cycle();
    device
}

/// Erases the block that has most pages with these bytes, and nothing that leads to others.
fn lose_block(device: &mut SimNand, bytes: &[u8]) {
    let geometry = device.geometry();
    let pages_of = |block: BlockIndex| {
        let first = block.0 * geometry.pages_per_block;
        (first..first + geometry.pages_per_block)
            .map(|number| device.peek(geometry.page_from_number(number).unwrap()).data)
    };
    let is_inner = |data: &Vec<u8>| data[0] == 0xF1 && data[2] > 0;
    let holds = |data: &Vec<u8>| data.windows(bytes.len()).any(|window| window == bytes);
    let is_known = |data: &Vec<u8>| holds(data) || data.iter().all(|byte| *byte == 0xFF);
    let count = |block: &BlockIndex| pages_of(*block).filter(holds).count();
    let blocks = geometry.blocks().filter(|block| {
        let others = pages_of(*block).filter(|data| !is_known(data)).count();
        others <= 1 && !pages_of(*block).any(|data| is_inner(&data))
    });
    let block = blocks.max_by_key(count).unwrap();
    assert!(count(&block) >= 32, "{} pages in one block", count(&block));
    device.erase(block).unwrap();
}

fn lost_count(database: &Database<SimNand>) -> usize {
    let space = database.runtime().space();
    (0..20_000).filter(|page| space.is_lost(flagstone_space::LogicalPage(*page))).count()
}

/// Pages that are taken when both tables are gone, and after one more restart.
fn taken_after_drops(device: SimNand, lost_min: usize) -> [u32; 2] {
    let database = Database::open_on(device, &options()).unwrap();
    assert!(lost_count(&database) >= lost_min, "{} pages are lost", lost_count(&database));
    ["rows", "values"].iter().for_each(|name| database.drop_table(name).unwrap());
    let taken = |database: &Database<SimNand>| {
        for _ in 0..4 {
            database.merge().unwrap();
            database.runtime().checkpoint_now().unwrap();
        }
        assert_eq!(lost_count(database), 0);
        database.runtime().space().taken_pages()
    };
    let before = taken(&database);
    let mut device = database.into_device().unwrap();
    device.power_cycle();
    [before, taken(&Database::open_on(device, &options()).unwrap())]
}

/// Goal: page numbers that damage took are free again when the table is gone, and stay free.
/// Method: a block of leaves, and a block of values, are erased; as many pages are taken as without
/// the damage.
#[test]
fn a_dropped_table_gives_the_numbers_of_lost_pages_back() {
    let device = with_two_tables();
    let expected = taken_after_drops(device.clone(), 0);
    for byte in [7, 9] {
        let mut device = device.clone();
        lose_block(&mut device, &[byte; 60]);
        assert_eq!(taken_after_drops(device, 32), expected, "pages with {byte}");
    }
}

/// Goal: the same where a cut comes between the record that frees lost pages and the next
/// checkpoint. Method: the power is cut when the pages are free.
#[test]
fn numbers_of_lost_pages_stay_free_over_a_cut() {
    let mut device = with_two_tables();
    let expected = taken_after_drops(device.clone(), 0)[1];
    lose_block(&mut device, &[7; 60]);
    let database = Database::open_on(device, &options()).unwrap();
    let lost = lost_count(&database);
    // The table with lost pages last: no checkpoint that another drop waits for comes behind it.
    ["values", "rows"].iter().for_each(|name| database.drop_table(name).unwrap());
    while lost_count(&database) == lost && database.runtime().advance().unwrap() {}
    assert!(lost_count(&database) < lost, "lost pages were freed");
    let mut device = database.runtime().space().device().clone();
    device.power_cycle();
    let database = Database::open_on(device, &options()).unwrap();
    assert!(lost_count(&database) < lost, "the record frees them again");
    for _ in 0..4 {
        database.merge().unwrap();
        database.runtime().checkpoint_now().unwrap();
    }
    let taken = database.runtime().space().taken_pages();
    let left = lost_count(&database) as u32;
    assert_eq!(taken, expected + left, "but for those that nobody had freed before the cut");
}

/// Goal: a snapshot that begins after a drop does not keep pages of the table for ever. Method: the
/// table is merged between the drop and its end, while the first snapshot keeps it and the second
/// lives.
#[test]
fn a_snapshot_behind_a_drop_lets_everything_go() {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(128).unwrap();
    let options = Options::default().with_memory(256 << 10);
    let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
    let fill = |table, rows: std::ops::Range<u32>| {
        let mut transaction = database.begin();
        rows.for_each(|row| transaction.put(table, &row.to_be_bytes(), &[7; 100]).unwrap());
        transaction.commit().unwrap();
    };
    let kept = database.table("kept").unwrap();
    fill(kept, 0..20);
    database.merge().unwrap();
    let table = database.table("t").unwrap();
    fill(table, 0..500);
    database.merge().unwrap();
    fill(table, 20..70);
    let first = database.snapshot().unwrap();
    database.drop_table("t").unwrap();
    let second = database.snapshot().unwrap();
    fill(kept, 0..20);
    database.merge().unwrap();
    let retained =
        database.runtime().engine().trees.get(table.id as usize).unwrap().retained.bytes();
    assert!(retained > 0, "no old leaf is kept");
    drop(first);
    for _ in 0..10 {
        fill(kept, 0..20);
        database.merge().unwrap();
    }
    let is_gone = database.runtime().engine().trees.get(table.id as usize).is_none();
    assert!(is_gone, "the second snapshot keeps the table");
    drop(second);
    (0..3).for_each(|_| database.merge().unwrap());
    let engine = database.runtime().engine();
    let empty = crate::delta::DeltaMap::new().bytes();
    let kept: usize = engine.trees.iter().map(|tree| tree.deltas.bytes() - empty).sum();
    assert_eq!(engine.memory.deltas, kept);
}

/// Goal: (X2) the rest of a table keeps its shape while it is freed. Method: leaves that are
/// emptied right before the drop, in memory alone until the checkpoint that covers it writes them.
#[test]
fn a_table_that_is_freed_keeps_its_shape() {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(128).unwrap();
    let options = Options::default().with_memory(512 << 10);
    let options = options.with_techniques(|techniques| techniques.frames = FrameKind::Ahead);
    let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
    let table = database.table("t").unwrap();
    let rows = (0..6_000_u32).map(|row| (row.to_be_bytes(), [7; 100]));
    database.load_sorted(table, rows).unwrap();
    database.merge().unwrap();
    let mut transaction = database.begin();
    for row in 1_000..1_400_u32 {
        // A row that was read is in memory and takes the change.
        transaction.get(table, &row.to_be_bytes()).unwrap();
        transaction.delete(table, &row.to_be_bytes()).unwrap();
    }
    transaction.commit().unwrap();
    let reshapes = database.stats().engine.reshapes;
    database.drop_table("t").unwrap();
    let is_gone = database.runtime().engine().trees.get(table.id as usize).is_none();
    assert!(is_gone, "the table is not freed yet");
    assert_eq!(database.stats().engine.reshapes, reshapes, "its leaves were merged");
}
