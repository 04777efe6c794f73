//! On-the-fly redo in presets: the pages that leave memory, the pages that a checkpoint writes, and the pages
//! that restart does not write.

use flagstone::{Options, Table};
use flagstone_nand::{Crashable as _, Profile, SimNand};
use flagstone_space::Cause;

use crate::on::Database;

const MEMORY: usize = 256 << 10;
const ROWS: u32 = 4_000;

fn options(preset: &str) -> Options {
    crate::preset(preset).with_memory(MEMORY)
}

/// A database of `ROWS` rows on flash: several times the memory.
fn loaded(options: &Options) -> (Database<SimNand>, Table) {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    let database = Database::create_on(SimNand::new(&profile, 1), options).unwrap();
    let table = database.table("t").unwrap();
    for first in (0..ROWS).step_by(50) {
        let mut transaction = database.begin();
        for number in first..first + 50 {
            transaction.put(table, &number.to_be_bytes(), &[1; 150]).unwrap();
        }
        transaction.commit().unwrap();
    }
    database.runtime().checkpoint_now().unwrap();
    (database, table)
}

/// One commit that changes a few bytes of one row.
fn touch(database: &Database<SimNand>, table: Table, number: u32) {
    let mut transaction = database.begin();
    let key = (number.wrapping_mul(2_654_435_761) % ROWS).to_be_bytes();
    transaction.patch(table, &key, 3, &number.to_be_bytes()).unwrap();
    transaction.commit().unwrap();
}

#[test]
fn a_checkpoint_compacts_the_log_where_the_default_copies_it() {
    for (preset, merges) in [("otf-immediate", true), ("flagstone", false)] {
        let (database, table) = loaded(&options(preset));
        (0..200).for_each(|number| touch(&database, table, number));
        let before = database.stats().engine;
        database.runtime().checkpoint_now().unwrap();
        let after = database.stats().engine;
        assert_eq!(after.merges > before.merges, merges, "{preset}: pages written by age");
        assert_eq!(after.copied_deltas == before.copied_deltas, merges, "{preset}: copies");
        assert_eq!(after.deltas == 0, merges, "{preset}: {} deltas are left", after.deltas);
    }
}

#[test]
fn checkpoints_come_by_the_number_of_commits() {
    let every = options("otf-immediate").with_checkpoint_commits(100);
    let (database, table) = loaded(&every);
    let before = database.stats().engine.checkpoints;
    (0..1_000).for_each(|number| touch(&database, table, number));
    let checkpoints = database.stats().engine.checkpoints - before;
    assert!((8..=11).contains(&checkpoints), "{checkpoints} in 1,000 commits, one every 100");
}

#[test]
fn a_change_reads_its_leaf_first() {
    for (preset, reads) in [("otf-immediate", true), ("flagstone", false)] {
        let (database, table) = loaded(&options(preset));
        let before = database.stats().engine.pool_misses;
        for number in (0..ROWS).step_by(97) {
            let mut transaction = database.begin();
            transaction.put(table, &number.to_be_bytes(), &[2; 150]).unwrap();
            transaction.commit().unwrap();
        }
        let misses = database.stats().engine.pool_misses - before;
        assert_eq!(misses > 20, reads, "{preset}: {misses} misses");
    }
}

/// Frames take the memory that deltas leave, and give way again; both together stay within the budget.
#[test]
fn frames_and_redo_records_share_one_budget() {
    let options = options("otf-immediate");
    let (database, table) = loaded(&options);
    (0..300).for_each(|number| touch(&database, table, number));
    let memory = database.stats().engine.memory;
    let share = (MEMORY as f64 * options.techniques().frame_share) as usize;
    assert!(memory.bases > share + share / 4, "{} bytes of frames", memory.bases);
    assert!(memory.bases <= MEMORY, "{} bytes of frames", memory.bases);
    assert!(memory.deltas <= MEMORY - share, "{} bytes of redo", memory.deltas);
}

/// Pages programmed for any of `causes` since the database was opened.
fn pages_written(database: &Database<SimNand>, causes: &[Cause]) -> u64 {
    let programs = database.runtime().space().stats().programs_by_cause;
    let written = Cause::ALL.iter().zip(programs).filter(|(cause, _)| causes.contains(cause));
    written.map(|(_, count)| count).sum()
}

/// Power fails, and the database is opened again.
fn restarted(database: Database<SimNand>, options: &Options) -> Database<SimNand> {
    let mut device = database.into_device().unwrap();
    device.power_cycle();
    Database::open_on(device, options).unwrap()
}

/// Restart writes no data page, and nothing is undone: the first read of a page pays for its changes.
#[test]
fn restart_puts_redo_back_and_writes_no_page() {
    let options = options("otf-immediate");
    let (database, table) = loaded(&options);
    (0..150).for_each(|number| touch(&database, table, number));
    let database = restarted(database, &options);
    let causes = [Cause::Data, Cause::Relocation, Cause::Wear];
    assert_eq!(pages_written(&database, &causes), 0);
    assert!(database.stats().engine.deltas > 0, "pages owe redo");
    let table = database.existing_table("t").unwrap().unwrap();
    let last = (149u32.wrapping_mul(2_654_435_761) % ROWS).to_be_bytes();
    let value = database.begin().get(table, &last).unwrap().unwrap();
    assert_eq!(value[3..7], 149u32.to_be_bytes());
}

/// Goal (rule D11): restart writes no page at any moment at which the power fails, with any number of commits
/// between checkpoints. Method: values of many times the memory, and restarts at all stages of a checkpoint
/// and of the log's fill.
#[test]
fn restart_writes_no_page_however_long_the_log() {
    let options = options("otf-immediate");
    let (mut database, mut table) = loaded(&options);
    let (mut number, mut redo_max) = (0u32, 0);
    for round in 0..40 {
        for _ in 0..60 + 6 * round {
            let mut transaction = database.begin();
            for _ in 0..5 {
                let key = (number.wrapping_mul(2_654_435_761) % ROWS).to_be_bytes();
                transaction.put(table, &key, &[number as u8; 150]).unwrap();
                number += 1;
            }
            transaction.commit().unwrap();
        }
        database = restarted(database, &options);
        assert_eq!(pages_written(&database, &[Cause::Data]), 0, "restart {round}");
        let memory = database.stats().engine.memory;
        assert!(memory.both <= MEMORY, "restart {round}: {memory:?}");
        redo_max = redo_max.max(memory.deltas);
        table = database.existing_table("t").unwrap().unwrap();
    }
    assert!(redo_max > MEMORY / 2, "{redo_max} bytes of redo at most");
}
