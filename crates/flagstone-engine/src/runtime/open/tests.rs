use flagstone_nand::{Crashable as _, Profile, SimNand};
use flagstone_space::Cause;

use super::super::{REGION_SYSTEM, tag_of};
use crate::appends::Appends;
use crate::engine::{Stop, Table, Wait};
use crate::options::{
    AbsentLeaf, Budget, CommitBy, Compaction, Durability, Options, RelocationFolding,
};
use crate::testing::Database;

const KEYS: u32 = 500;

fn put_all(database: &Database<SimNand>, table: Table) {
    let mut transaction = database.begin();
    (0..KEYS).for_each(|key| transaction.put(table, &key.to_be_bytes(), &[7; 100]).unwrap());
    transaction.commit().unwrap();
    database.runtime().checkpoint_now().unwrap();
}

/// Commits without any background work until the log is full for users; returns the number of
/// commits.
fn fill_log(database: &Database<SimNand>, table: Table) -> u32 {
    let runtime = database.runtime();
    for number in 0.. {
        let (key, new) = ((number % KEYS).to_be_bytes(), number.to_be_bytes());
        let xid = runtime.engine().begin();
        runtime.run(|engine| engine.patch(xid, table, &key, 4, &new)).unwrap();
        let commit = runtime.run(|engine| match engine.commit(xid, Durability::Deferred) {
            Err(Stop::Wait(Wait::Log)) => Ok(None),
            step => step.map(|ticket| Some(ticket.lsn)),
        });
        let Some(lsn) = commit.unwrap() else {
            runtime.engine().abort(xid);
            return number;
        };
        runtime.wait_durable(lsn).unwrap();
    }
    unreachable!()
}

/// Goal (rule D11): a log that is full for users is no reason to write data pages while
/// opening. However often opening is cut short, the next opening has room.
#[test]
fn a_full_log_delays_no_restart() {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(128).unwrap();
    // Changes that a checkpoint merges, and of which it copies the rest.
    let options = Options::default().with_memory(1 << 20).with_log_pages(32 * 64);
    let options = options.with_checkpoint_commits(5_000).with_techniques(|techniques| {
        techniques.append_scheme = Appends::default();
        (techniques.frame_share, techniques.merge_batch) = (0.5, 0.0);
        techniques.budget = Budget::Shared;
        techniques.absent = AbsentLeaf::Read;
        techniques.relocation = RelocationFolding::Keep;
        techniques.compaction = Compaction::Merge;
        techniques.commit = CommitBy::Log;
    });
    let mut database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
    let table = database.table("t").unwrap();
    put_all(&database, table);
    let count = fill_log(&database, table);
    let mut data_free = 0;
    for restart in 0..60 {
        let mut device = database.into_device().unwrap();
        device.power_cycle();
        database = Database::open_on(device, &options).unwrap();
        let programs = database.runtime().space().stats().programs_by_cause;
        let data = Cause::ALL.iter().position(|cause| *cause == Cause::Data).unwrap();
        data_free += u32::from(programs[data] == 0);
        assert!(restart > 0 || data_free == 1, "{} data pages written", programs[data]);
    }
    assert!(data_free > 50, "{data_free} of 60 restarts write no data page");
    let table = database.existing_table("t").unwrap().unwrap();
    let last = ((count - 1) % KEYS).to_be_bytes();
    let value = database.begin().get(table, &last).unwrap().unwrap();
    assert_eq!(value[4..8], (count - 1).to_be_bytes());
    assert!(fill_log(&database, table) > 0, "a checkpoint makes room");
}

/// Goal (rule D7): commits that wait for a flush take log too, however little memory their deltas
/// take. Method: commits of a few keys, none flushed, until there is no more log for users.
#[test]
fn commits_that_wait_for_a_flush_have_room_in_the_log() {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(24).unwrap();
    let options = Options::default().with_memory(1 << 20).with_log_pages(8 * 64);
    let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
    let table = database.table("t").unwrap();
    put_all(&database, table);
    let runtime = database.runtime();
    let mut lsn = None;
    for number in 0..40_000u32 {
        let (key, new) = ((number % 20).to_be_bytes(), [number as u8; 64]);
        let xid = runtime.engine().begin();
        runtime.run(|engine| engine.patch(xid, table, &key, 4, &new)).unwrap();
        let commit = runtime.engine().commit(xid, Durability::Deferred);
        match commit {
            Ok(ticket) => lsn = Some(ticket.lsn),
            Err(Stop::Wait(Wait::Log | Wait::Memory)) => {
                runtime.engine().abort(xid);
                break;
            }
            Err(stop) => panic!("{stop:?}"),
        }
    }
    runtime.wait_durable(lsn.unwrap()).unwrap();
    runtime.checkpoint_now().unwrap();
    assert!(runtime.space().log_used_pages() < 64, "the checkpoint freed the log");
    for number in 0..20_000u32 {
        let mut transaction = database.begin();
        transaction.patch(table, &(number % 20).to_be_bytes(), 4, &[number as u8; 64]).unwrap();
        transaction.commit_with(Durability::Deferred).unwrap();
        let pending = runtime.engine().pending_log_size();
        assert!(pending <= options.memory / 8, "{pending} bytes wait for a flush");
    }
}

/// Goal (rule D7): deltas that were put back and are not merged yet take their room from later
/// commits; else each session fills a device a little further, up to its reserve. Method: rows
/// for an eighth of the chip wait in memory across a restart.
#[test]
fn growth_that_waits_is_known_after_a_restart() {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    let options = Options::default().with_memory(8 << 20);
    let database = Database::create_on(SimNand::new(&profile, 0), &options).unwrap();
    let table = database.table("t").unwrap();
    let view = database.stats().space;
    let capacity = view.capacity_pages as usize * 2048;
    for row in 0..capacity as u32 / 8 / 500 {
        let mut transaction = database.begin();
        transaction.put(table, &row.to_be_bytes(), &[1; 500]).unwrap();
        transaction.commit_with(Durability::Deferred).unwrap();
    }
    database.flush().unwrap();
    // Patches above deltas that the restart puts back hide nothing.
    let database = Database::open_on(database.into_device().unwrap(), &options).unwrap();
    let table = database.table("t").unwrap();
    for row in 0..capacity as u32 / 8 / 500 {
        let mut transaction = database.begin();
        transaction.patch(table, &row.to_be_bytes(), 9, &[2; 3]).unwrap();
        transaction.commit_with(Durability::Deferred).unwrap();
    }
    database.flush().unwrap();
    let room = |database: &Database<SimNand>| {
        let engine = database.runtime().engine();
        (0..).step_by(8 << 10).take_while(|bytes| engine.has_room_beside_growth(*bytes)).count()
    };
    let before = room(&database);
    let database = Database::open_on(database.into_device().unwrap(), &options).unwrap();
    let after = room(&database);
    assert!(after <= before, "room for {after} times 8 KiB, and {before} before");
}

/// Goal: a table that was never written shows no content of a former owner of its root's
/// number, when a cut brings it back: a page of a large transaction, or a node of another
/// table. Method: such pages are written under the numbers; opened to read, and to write.
#[test]
fn a_table_shows_nothing_of_who_had_its_number_before() {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    let options = Options::default().with_memory(1 << 20);
    let database = Database::create_on(SimNand::new(&profile, 0), &options).unwrap();
    let [table, one, other] = ["t", "one", "other"].map(|name| database.table(name).unwrap());
    put_all(&database, table);
    database.merge().unwrap();
    let runtime = database.runtime();
    let roots = runtime.engine().roots();
    let root_of = |table: Table| roots.iter().find(|(tree, _)| *tree == table.id).unwrap().1;
    let mut node = Vec::new();
    runtime.space().read(root_of(table), &mut node).unwrap();
    let tag = tag_of(runtime.engine().durable(), REGION_SYSTEM, Cause::Data);
    runtime.space().write(root_of(one), &vec![b'R'; node.len()], &tag).unwrap();
    runtime.space().write(root_of(other), &node, &tag).unwrap();

    let device = database.into_device().unwrap();
    let lengths = |database: &Database<SimNand>| {
        let snapshot = database.snapshot().unwrap();
        ["t", "one", "other"].map(|name| snapshot.len(database.table(name).unwrap()).unwrap())
    };
    let database = Database::open_read_only_on(device.clone(), &options).unwrap();
    assert_eq!(lengths(&database), [u64::from(KEYS), 0, 0]);
    let database = Database::open_on(device, &options).unwrap();
    assert_eq!(lengths(&database), [u64::from(KEYS), 0, 0]);
    let mut txn = database.begin();
    for name in ["one", "other"] {
        txn.put(database.table(name).unwrap(), b"k", b"v").unwrap();
    }
    txn.commit().unwrap();
    database.merge().unwrap();
    let database = Database::open_on(database.into_device().unwrap(), &options).unwrap();
    assert_eq!(lengths(&database), [u64::from(KEYS), 1, 1]);
    assert!(database.check().unwrap().is_sound());
}
