use flagstone_nand::{Crashable as _, Profile, SimNand};
use flagstone_space::Cause;

use crate::appends::Appends;
use crate::engine::Table;
use crate::options::Options;
use crate::testing::Database;

fn key(row: u32) -> [u8; 4] {
    row.to_be_bytes()
}

fn value(row: u32, round: u32) -> Vec<u8> {
    let mut value = vec![row as u8; 100];
    value[..4].copy_from_slice(&round.to_be_bytes());
    value
}

fn chip(profile: &str) -> SimNand {
    SimNand::new(&Profile::named(profile).unwrap().with_block_count(64).unwrap(), 1)
}

fn options() -> Options {
    Options::default().with_memory(1 << 20)
}

/// A table of so many rows, all in leaves.
fn database(profile: &str, options: &Options, rows: u32) -> (Database<SimNand>, Table) {
    let database = Database::create_on(chip(profile), options).unwrap();
    let table = database.table("t").unwrap();
    put(&database, table, 0..rows, 0);
    (database, table)
}

/// Changes rows, and merges the leaves that they belong to.
fn put(database: &Database<SimNand>, table: Table, rows: std::ops::Range<u32>, round: u32) {
    let mut transaction = database.begin();
    rows.for_each(|row| transaction.put(table, &key(row), &value(row, round)).unwrap());
    transaction.commit().unwrap();
    database.runtime().merge_now().unwrap();
}

/// Programs of whole data pages, and appends.
fn programs(database: &Database<SimNand>) -> (u64, u64) {
    let place = |cause| Cause::ALL.iter().position(|other| *other == cause).unwrap();
    let programs = database.runtime().space().stats().programs_by_cause;
    (programs[place(Cause::Data)], programs[place(Cause::Delta)])
}

/// Programs that `work` makes, of both kinds.
fn during(database: &Database<SimNand>, work: impl FnOnce()) -> (u64, u64) {
    let before = programs(database);
    work();
    let after = programs(database);
    (after.0 - before.0, after.1 - before.1)
}

fn check(database: &Database<SimNand>, table: Table, rows: u32, rounds: impl Fn(u32) -> u32) {
    let transaction = database.begin();
    for row in 0..rows {
        let found = transaction.get(table, &key(row)).unwrap();
        assert_eq!(found, Some(value(row, rounds(row))), "row {row}");
    }
    assert!(database.check().unwrap().faults.is_empty());
}

/// Goal: a small change goes to the page of its leaf as long as the page takes it, and outlives a cut.
/// Method: a leaf that leaves room for two slots; the third change is a whole page with new slots.
#[test]
fn a_small_change_stays_on_the_page_of_its_leaf() {
    let (database, table) = database("slc-2k", &options(), 8);
    for round in 1..=6 {
        let grown = during(&database, || put(&database, table, 2..4, round));
        assert_eq!(grown, if round % 3 == 0 { (1, 0) } else { (0, 1) }, "round {round}");
        check(&database, table, 8, |row| if (2..4).contains(&row) { round } else { 0 });
    }
    put(&database, table, 7..8, 7);
    let mut device = database.into_device().unwrap();
    device.power_cycle();
    let database = Database::open_on(device, &options()).unwrap();
    let table = database.existing_table("t").unwrap().unwrap();
    check(&database, table, 8, |row| match row {
        7 => 7,
        2..4 => 6,
        _ => 0,
    });
    let grown = during(&database, || put(&database, table, 0..1, 8));
    assert_eq!(grown, (1, 0), "a page of an earlier session takes none");
}

/// Goal: a leaf that leaves no room, and a change that does not fit behind its leaf, are written as
/// whole pages.
#[test]
fn what_does_not_fit_behind_a_leaf_is_a_whole_page() {
    let (dense, table) = database("slc-2k", &options(), 17);
    assert_eq!(during(&dense, || put(&dense, table, 0..1, 1)), (1, 0), "full");
    let (wide, table) = database("slc-2k", &options(), 12);
    let rows = |round| {
        let mut transaction = wide.begin();
        (0..12_u32).for_each(|row| transaction.put(table, &key(row), &[round; 100]).unwrap());
        transaction.commit().unwrap();
        wide.runtime().merge_now().unwrap();
    };
    assert_eq!(during(&wide, || rows(1)), (1, 0), "every row is another");
    assert_eq!(during(&wide, || put(&wide, table, 12..16, 0)), (1, 0), "it needs the slot's room");
}

/// Goal: a snapshot reads the leaf as it was.
#[test]
fn what_a_snapshot_reads_is_not_appended_to() {
    let (database, table) = database("slc-2k", &options(), 8);
    let snapshot = database.snapshot().unwrap();
    assert_eq!(during(&database, || put(&database, table, 0..8, 1)), (1, 0));
    for row in 0..8 {
        assert_eq!(snapshot.get(table, &key(row)).unwrap(), Some(value(row, 0)), "row {row}");
    }
    drop(snapshot);
    assert_eq!(during(&database, || put(&database, table, 0..8, 2)), (0, 1));
    check(&database, table, 8, |_| 2);
}

/// Goal: collection that moves a page leaves its slots free again, and the copy in memory knows.
/// Method: another table is written over and over on a small chip.
#[test]
fn a_page_that_moved_takes_appends() {
    let (database, table) = database("slc-2k", &options(), 8);
    let other = database.table("other").unwrap();
    database.runtime().merge_now().unwrap();
    assert_eq!(during(&database, || put(&database, table, 0..1, 1)), (0, 1));
    let mut draw = 1_u32;
    for round in 0..1_000 {
        // In no order: blocks keep some pages that count when they are collected.
        draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let low = (draw >> 16) % 80 * 500;
        put_rows(&database, other, low..low + 500, round);
    }
    assert!(database.runtime().space().stats().gc_migrations > 0, "nothing was moved");
    for round in 2..4 {
        put(&database, table, 0..1, round);
    }
    check(&database, table, 8, |row| if row == 0 { 3 } else { 0 });
}

fn put_rows(database: &Database<SimNand>, table: Table, rows: std::ops::Range<u32>, round: u32) {
    let mut transaction = database.begin();
    rows.for_each(|row| transaction.put(table, &key(row), &value(row, round)[..40]).unwrap());
    transaction.commit().unwrap();
}

/// Goal: where a device takes no appends, or the options want none, every change is a whole page.
#[test]
fn nothing_is_appended_where_that_is_not_carried_or_not_wanted() {
    let with = |scheme| options().with_techniques(|techniques| techniques.append_scheme = scheme);
    let off = with(Appends::default());
    for (profile, options) in [("spi-nand", options()), ("slc-2k", off)] {
        let (database, table) = database(profile, &options, 8);
        let grown = during(&database, || put(&database, table, 0..1, 1));
        assert_eq!(grown, (1, 0), "{profile}");
        check(&database, table, 8, |row| u32::from(row == 0));
    }
}

/// Goal: schemes by table, and pairs, are refused: the lab's classic engine alone takes them.
#[test]
fn schemes_of_the_classic_engine_are_refused() {
    for scheme in ["auto,t=0x0", "0x0,t=auto", "2x4", "1xruns"] {
        let appends: Appends = scheme.parse().unwrap();
        let options = options().with_techniques(|techniques| techniques.append_scheme = appends);
        let refused = Database::create_on(chip("slc-2k"), &options).err();
        let is_told = refused.is_some_and(|error| error.to_string().contains("append_scheme"));
        assert!(is_told, "{scheme}");
    }
}

/// Goal: the parts of a leaf's metadata that an append moves, the count of its rows, their places, and
/// the LSN that it is complete to, are the append's after a mount. Method: a row between others,
/// appended; a checkpoint counts it, so that the log has nothing to bring back.
#[test]
fn the_header_of_a_leaf_comes_from_its_appends() {
    let (database, table) = database("slc-2k", &options(), 8);
    put(&database, table, 2..3, 1);
    let before = database.runtime().engine().root_of(table).unwrap();
    let lsn = |database: &Database<SimNand>| {
        let mut bytes = Vec::new();
        database.runtime().space().read(before, &mut bytes).unwrap().lsn
    };
    let first = lsn(&database);
    let add = || {
        let mut transaction = database.begin();
        transaction.put(table, &[0, 0, 0, 3, 7], b"between").unwrap();
        transaction.commit().unwrap();
        database.runtime().merge_now().unwrap();
    };
    assert_eq!(during(&database, add), (0, 1));
    let second = lsn(&database);
    assert!(second > first);
    database.runtime().close_now().unwrap();
    let database = Database::open_on(database.into_device().unwrap(), &options()).unwrap();
    assert_eq!(database.recovery().commits, 0, "the log brings nothing back");
    assert_eq!(lsn(&database), second);
    let table = database.existing_table("t").unwrap().unwrap();
    let rows: Vec<_> = database.begin().range(table, ..).map(|row| row.unwrap().0).collect();
    assert_eq!(rows.len(), 9);
    assert_eq!(rows[4], [0, 0, 0, 3, 7]);
    assert!(database.check().unwrap().faults.is_empty());
}
