use flagstone_nand::{
    Crashable as _, FaultPlan, Nand as _, PhysicalPage, Profile, ReadFault, SimNand,
};
use flagstone_space::{Cause, SpaceError};

use crate::engine::{Engine, Stop, Table, Wait};
use crate::error::EngineError;
use crate::options::{CommitBy, Compaction, Durability, Options};
use crate::testing::Database;

/// Rows of the table: the last leaf is more than half full.
const ROWS: u32 = 610;

fn options(commit: CommitBy) -> Options {
    let options = Options::default().with_memory(1 << 20);
    options.with_techniques(|techniques| techniques.commit = commit)
}

fn key(row: u32) -> [u8; 4] {
    row.to_be_bytes()
}

fn value(row: u32, round: u32) -> Vec<u8> {
    let mut value = vec![row as u8; 100];
    value[..4].copy_from_slice(&round.to_be_bytes());
    value
}

/// A table of [`ROWS`] rows, all in leaves.
fn database(commit: CommitBy) -> (Database<SimNand>, Table) {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    let merging = options(CommitBy::Log);
    let merging = merging.with_techniques(|techniques| techniques.compaction = Compaction::Merge);
    let database = Database::create_on(SimNand::new(&profile, 1), &merging).unwrap();
    let table = database.table("t").unwrap();
    put(&database, table, 0..ROWS, 0);
    database.runtime().checkpoint_now().unwrap();
    reopen(database, commit)
}

fn put(database: &Database<SimNand>, table: Table, rows: std::ops::Range<u32>, round: u32) {
    let mut transaction = database.begin();
    rows.for_each(|row| transaction.put(table, &key(row), &value(row, round)).unwrap());
    transaction.commit_with(Durability::Immediate).unwrap();
}

fn reopen(database: Database<SimNand>, commit: CommitBy) -> (Database<SimNand>, Table) {
    let mut device = database.into_device().unwrap();
    device.power_cycle();
    let database = Database::open_on(device, &options(commit)).unwrap();
    let table = database.existing_table("t").unwrap().unwrap();
    (database, table)
}

fn check(database: &Database<SimNand>, table: Table, rounds: impl Fn(u32) -> u32) {
    let transaction = database.begin();
    for row in 0..ROWS {
        let found = transaction.get(table, &key(row)).unwrap();
        assert_eq!(found, Some(value(row, rounds(row))), "row {row}");
    }
    assert!(database.check().unwrap().faults.is_empty());
}

fn claimed(database: &Database<SimNand>) -> u64 {
    database.runtime().engine().stats().claimed_pages
}

fn programs(database: &Database<SimNand>, cause: Cause) -> u64 {
    let place = Cause::ALL.iter().position(|other| *other == cause).unwrap();
    database.runtime().space().stats().programs_by_cause[place]
}

/// Goal: a large transaction is in its leaves alone, written once, with one record or one flag.
#[test]
fn a_dense_transaction_is_written_once() {
    for commit in [CommitBy::Claims, CommitBy::Flags] {
        let (database, table) = database(commit);
        put(&database, table, 0..1, 0);
        let waiting = database.runtime().engine().stats().deltas;
        let before = Cause::ALL.map(|cause| programs(&database, cause));
        put(&database, table, 0..ROWS, 1);
        let stats = database.runtime().engine().stats();
        let after = Cause::ALL.map(|cause| programs(&database, cause));
        let grown: [u64; 7] = std::array::from_fn(|index| after[index] - before[index]);
        let [log, data, _, flag, ..] = grown;
        assert_eq!((log, flag), if commit == CommitBy::Flags { (0, 1) } else { (1, 0) });
        assert!((30..80).contains(&data), "{data} leaves");
        assert!(stats.deltas <= waiting, "nothing of it waits for a merge");
        check(&database, table, |_| 1);
        let (database, table) = reopen(database, commit);
        check(&database, table, |_| 1);
    }
}

/// Leaves on the chip that hold rows of `round`.
fn pages_of_round(device: &SimNand, round: u32) -> Vec<PhysicalPage> {
    let wanted: Vec<Vec<u8>> = (0..ROWS).map(|row| value(row, round)).collect();
    let holds = |data: &[u8]| {
        data.windows(100).any(|bytes| {
            bytes[..4] == round.to_be_bytes() && wanted.iter().any(|value| value == bytes)
        })
    };
    let geometry = device.geometry();
    let pages = (0..geometry.page_count()).filter_map(|number| geometry.page_from_number(number));
    let is_leaf_with = |data: &[u8]| data[0] == 0xF1 && holds(data);
    pages.filter(|page| is_leaf_with(&device.peek(*page).data)).collect()
}

/// The device with `page` as erased.
fn without(device: &SimNand, page: PhysicalPage) -> SimNand {
    let geometry = device.geometry();
    let mut pages = (0..geometry.page_count()).filter_map(|at| geometry.page_from_number(at));
    let erased =
        pages.find(|page| device.peek(*page).data.iter().all(|byte| *byte == 0xFF)).unwrap();
    let mut device = device.clone();
    let read_faults = vec![(page, ReadFault::Misdirected { instead: erased })];
    device.set_plan(FaultPlan { read_faults, ..FaultPlan::default() });
    device
}

/// Goal (Q6): a leaf that damage took after its transaction was committed fails by name, and never
/// shows its old version. Method: a claim of many leaves; its pages, one after the other, read as
/// erased. The same again behind a checkpoint; rows of other leaves keep their values.
#[test]
fn a_claimed_leaf_that_reads_as_erased_is_lost_and_not_old() {
    let (database, table) = database(CommitBy::Claims);
    put(&database, table, 0..ROWS, 1);
    assert!(claimed(&database) > 25);
    let mut device = database.into_device().unwrap();
    device.power_cycle();
    let pages = pages_of_round(&device, 1);
    assert!(pages.len() > 25, "{} pages", pages.len());
    let rows_lost = |database: &Database<SimNand>| {
        let table = database.existing_table("t").unwrap().unwrap();
        let transaction = database.begin();
        let is_lost = |row: &u32| match transaction.get(table, &key(*row)) {
            Ok(found) => {
                assert_eq!(found, Some(value(*row, 1)), "row {row} is of before");
                false
            }
            Err(EngineError::Space(SpaceError::Lost(_))) => true,
            Err(error) => panic!("{error}"),
        };
        (0..ROWS).filter(is_lost).count()
    };
    let tried: Vec<_> = pages.into_iter().step_by(4).collect();
    let mut untold: Vec<PhysicalPage> = Vec::new();
    for page in &tried {
        let database = Database::open_on(without(&device, *page), &options(CommitBy::Claims));
        let database = database.unwrap();
        let lost = rows_lost(&database);
        untold.extend((lost == 0).then_some(*page));
        database.runtime().checkpoint_now().unwrap();
        let (database, table) = reopen(database, CommitBy::Claims);
        assert_eq!(rows_lost(&database), lost, "the checkpoint knows");
        // Changes of rows that are lost wait; others go on.
        put(&database, table, 0..1, 1);
    }
    assert!(untold.is_empty(), "of {}: {untold:?}", tried.len());
}

/// Goal (Q6): pages that a claim wrote, and pages that later replaced them, are not taken for lost.
/// Method: the same leaves are written by claims, merges and appends, moved by collection, and dropped,
/// with a cut after each step.
#[test]
fn what_replaced_a_claimed_leaf_is_not_taken_for_lost() {
    let (mut database, mut table) = database(CommitBy::Claims);
    for round in 1..40 {
        let commit = [CommitBy::Claims, CommitBy::Log, CommitBy::Claims][round as usize % 3];
        (database, table) = reopen(database, commit);
        let rows = if round % 2 == 0 { 0..ROWS } else { 0..ROWS / 2 };
        put(&database, table, rows.clone(), round);
        if round % 4 == 0 {
            database.merge().unwrap();
        }
        let rows = if rows.end == ROWS { rows } else { 0..ROWS / 2 };
        (database, table) = reopen(database, commit);
        let transaction = database.begin();
        for row in rows {
            let found = transaction.get(table, &key(row)).unwrap();
            assert_eq!(found, Some(value(row, round)), "row {row} in round {round}");
        }
        drop(transaction);
        assert!(database.check().unwrap().is_sound());
    }
    // Leaves that go because their rows do.
    let mut transaction = database.begin();
    (20..ROWS).for_each(|row| transaction.delete(table, &key(row)).unwrap());
    transaction.commit_with(Durability::Immediate).unwrap();
    database.merge().unwrap();
    (database, table) = reopen(database, CommitBy::Claims);
    assert_eq!(database.snapshot().unwrap().len(table).unwrap(), 20);
    database.drop_table("t").unwrap();
    database.flush().unwrap();
    let mut device = database.into_device().unwrap();
    device.power_cycle();
    let database = Database::open_on(device, &options(CommitBy::Claims)).unwrap();
    assert!(database.check().unwrap().is_sound());
}

/// Goal (Q2): changes after a claim are not folded with changes before it. Method: a change before, a
/// claim of the same rows, patches after; restart, checkpoint, restart.
#[test]
fn changes_around_a_claim_stay_apart() {
    for commit in [CommitBy::Claims, CommitBy::Flags] {
        let (database, table) = database(CommitBy::Log);
        put(&database, table, 10..20, 1);
        // Both sessions' changes are in the log's tail; no checkpoint comes between.
        let runtime = database.runtime();
        runtime.engine().options.techniques.commit = commit;
        put(&database, table, 0..ROWS, 2);
        runtime.engine().options.techniques.commit = CommitBy::Log;
        let mut transaction = database.begin();
        (10..20).for_each(|row| transaction.patch(table, &key(row), 0, &key(3)).unwrap());
        transaction.commit_with(Durability::Immediate).unwrap();
        let leaves = claimed(&database);
        assert!(leaves > 25, "{leaves} leaves");
        let rounds = |row| if (10..20).contains(&row) { 3 } else { 2 };
        let expected = |row| value(row, rounds(row));
        let (database, table) = reopen(database, CommitBy::Log);
        assert_eq!(database.begin().get(table, &key(12)).unwrap(), Some(expected(12)));
        database.runtime().checkpoint_now().unwrap();
        let (database, table) = reopen(database, CommitBy::Log);
        check(&database, table, rounds);
    }
}

/// Goal (Q2): the same where the cut takes the marker of a flag commit, and the patch comes in the next
/// session: only that session's own record in the log stands between the two.
#[test]
fn sessions_keep_changes_apart_without_a_marker() {
    let (database, table) = database(CommitBy::Log);
    put(&database, table, 10..20, 1);
    database.runtime().engine().options.techniques.commit = CommitBy::Flags;
    put(&database, table, 0..ROWS, 2);
    let leaves = claimed(&database);
    assert!(leaves > 25, "{leaves} leaves");
    let (database, table) = reopen(database, CommitBy::Log);
    let patched = |row: u32| {
        let mut value = value(row, 2);
        value[50..54].copy_from_slice(&[0xEE; 4]);
        value
    };
    let mut transaction = database.begin();
    (10..20).for_each(|row| transaction.patch(table, &key(row), 50, &[0xEE; 4]).unwrap());
    transaction.commit_with(Durability::Immediate).unwrap();
    let (mut database, mut table) = reopen(database, CommitBy::Log);
    for _ in 0..2 {
        for row in 10..20 {
            assert_eq!(database.begin().get(table, &key(row)).unwrap(), Some(patched(row)));
        }
        database.runtime().checkpoint_now().unwrap();
        (database, table) = reopen(database, CommitBy::Log);
    }
}

/// Goal (Q2, C2): copied changes of a checkpoint stay apart, though they leave memory before the record
/// is written. Method: the copies are in the log; a read meets the leaf, which drops the older change.
#[test]
fn copies_stay_apart_when_their_changes_leave_memory() {
    for commit in [CommitBy::Claims, CommitBy::Flags] {
        let (database, table) = database(CommitBy::Log);
        put(&database, table, 10..20, 1);
        database.runtime().engine().options.techniques.commit = commit;
        put(&database, table, 0..ROWS, 2);
        database.runtime().engine().options.techniques.commit = CommitBy::Log;
        let mut transaction = database.begin();
        (10..20).for_each(|row| transaction.patch(table, &key(row), 50, &[0xEE; 4]).unwrap());
        transaction.commit_with(Durability::Immediate).unwrap();
        let (database, table) = reopen(database, CommitBy::Log);
        let runtime = database.runtime();
        runtime.engine().want_checkpoint();
        while runtime.engine().stats().copied_deltas < 20 {
            assert!(runtime.work_now().unwrap(), "nothing was copied");
        }
        let patched = |row: u32| {
            let mut value = value(row, 2);
            value[50..54].copy_from_slice(&[0xEE; 4]);
            value
        };
        for row in 10..20 {
            assert_eq!(database.begin().get(table, &key(row)).unwrap(), Some(patched(row)));
        }
        while runtime.engine().is_checkpointing() {
            runtime.advance().unwrap();
        }
        let (database, table) = reopen(database, CommitBy::Log);
        for row in 10..20 {
            let found = database.begin().get(table, &key(row)).unwrap();
            assert_eq!(found, Some(patched(row)), "{commit:?}, row {row}");
        }
    }
}

/// Goal (Q3): a snapshot sees all of a claim or nothing, and a snapshot that begins afterwards sees the
/// claim.
#[test]
fn snapshots_see_a_claim_whole_or_not_at_all() {
    for commit in [CommitBy::Claims, CommitBy::Flags] {
        let (database, table) = database(commit);
        put(&database, table, 0..ROWS, 1);
        let before = database.snapshot().unwrap();
        put(&database, table, 0..ROWS, 2);
        let after = database.snapshot().unwrap();
        put(&database, table, 0..ROWS / 2, 3);
        for row in 0..ROWS {
            assert_eq!(before.get(table, &key(row)).unwrap(), Some(value(row, 1)), "row {row}");
            assert_eq!(after.get(table, &key(row)).unwrap(), Some(value(row, 2)), "row {row}");
        }
        assert!(claimed(&database) > 60);
        drop((before, after));
        check(&database, table, |row| if row < ROWS / 2 { 3 } else { 2 });
    }
}

/// Goal: by its own choice the engine claims dense commits and logs scattered or small ones.
#[test]
fn the_automatic_choice_follows_what_merges_cost() {
    let (database, table) = database(CommitBy::Auto);
    for round in 0..6 {
        put(&database, table, 0..ROWS, round);
    }
    let before = claimed(&database);
    assert!(before > 30, "{before} leaves");
    for round in 0..100 {
        put(&database, table, round * 5..round * 5 + 1, 6);
    }
    assert_eq!(claimed(&database), before, "one row is logged");
}

/// Goal (Q5): rows behind the last one are written once, in leaves that stay as they are. Method: loads
/// of many commits, in order, counted at the device.
#[test]
fn sorted_rows_are_written_once() {
    for commit in [CommitBy::Auto, CommitBy::Claims, CommitBy::Flags] {
        let (database, table) = database(commit);
        let before = Cause::ALL.map(|cause| programs(&database, cause));
        let (batches, batch) = (40, 200);
        for load in 0..batches {
            put(&database, table, ROWS + load * batch..ROWS + (load + 1) * batch, 0);
        }
        let after = Cause::ALL.map(|cause| programs(&database, cause));
        let grown: [u64; 7] = std::array::from_fn(|index| after[index] - before[index]);
        let [log, data, ..] = grown;
        // A row takes 106 bytes or so of a page of 2,048, and each commit writes its first leaf again.
        let pages = u64::from(batches * batch * 106 / 2_000);
        assert!(
            data < pages + pages / 20 + u64::from(batches) + 20,
            "{commit:?}: {data} of {pages}"
        );
        assert!(log <= u64::from(batches) + 2, "{commit:?}: {log} log pages");
        let (database, table) = reopen(database, commit);
        let snapshot = database.snapshot().unwrap();
        for row in 0..ROWS + batches * batch {
            assert_eq!(snapshot.get(table, &key(row)).unwrap(), Some(value(row, 0)), "row {row}");
        }
        assert!(database.check().unwrap().faults.is_empty());
    }
}

/// Key of a row between row 300 and the next one.
fn key_between(number: u32) -> Vec<u8> {
    [key(300), key(number)].concat()
}

/// Goal (Q2, Q3, Q5): a leaf that becomes several keeps changes from before and after apart, and
/// snapshots see all of the claim or nothing. Method: a change before, many rows between two others,
/// patches after; restart, checkpoint, restart.
#[test]
fn changes_around_a_leaf_that_becomes_several_stay_apart() {
    for commit in [CommitBy::Auto, CommitBy::Claims, CommitBy::Flags] {
        let (database, table) = database(CommitBy::Log);
        put(&database, table, 300..301, 1);
        let before = database.snapshot().unwrap();
        database.runtime().engine().options.techniques.commit = commit;
        let mut transaction = database.begin();
        transaction.put(table, &key(300), &value(300, 2)).unwrap();
        for number in 0..400 {
            transaction.put(table, &key_between(number), &value(number, 2)).unwrap();
        }
        transaction.commit_with(Durability::Immediate).unwrap();
        assert!(claimed(&database) > 15, "{commit:?}: {} pages", claimed(&database));
        let after = database.snapshot().unwrap();
        database.runtime().engine().options.techniques.commit = CommitBy::Log;
        let mut transaction = database.begin();
        transaction.patch(table, &key(300), 0, &key(3)).unwrap();
        transaction.patch(table, &key_between(7), 0, &key(3)).unwrap();
        transaction.commit_with(Durability::Immediate).unwrap();
        assert_eq!(before.get(table, &key(300)).unwrap(), Some(value(300, 1)));
        assert_eq!(before.get(table, &key_between(7)).unwrap(), None);
        assert_eq!(after.get(table, &key(300)).unwrap(), Some(value(300, 2)));
        assert_eq!(after.get(table, &key_between(7)).unwrap(), Some(value(7, 2)));
        drop((before, after));
        let check_all = |database: &Database<SimNand>, table| {
            check(database, table, |row| if row == 300 { 3 } else { 0 });
            let transaction = database.begin();
            for number in 0..400 {
                let expected = value(number, if number == 7 { 3 } else { 2 });
                let found = transaction.get(table, &key_between(number)).unwrap();
                assert_eq!(found, Some(expected), "{commit:?}: {number}");
            }
        };
        check_all(&database, table);
        let (database, table) = reopen(database, CommitBy::Log);
        check_all(&database, table);
        database.runtime().checkpoint_now().unwrap();
        let (database, table) = reopen(database, CommitBy::Log);
        check_all(&database, table);
    }
}

/// Goal: a leaf that no claim can write, because it becomes several, is tried once until it is merged.
/// Method: rows between others in two leaves, whose log would fill pages.
#[test]
fn a_leaf_that_outgrows_its_page_is_tried_once() {
    let (database, table) = database(CommitBy::Auto);
    let runtime = database.runtime();
    let commit = |number: u32| {
        let mut transaction = database.begin();
        for after in [100, 300] {
            for row in number * 30..number * 30 + 30 {
                let key = [key(after), key(row)].concat();
                transaction.put(table, &key, &value(row, 1)).unwrap();
            }
        }
        transaction.commit_with(Durability::Immediate).unwrap();
    };
    commit(0);
    let must_split: Vec<_> = runtime.engine().must_split.iter().copied().collect();
    assert_eq!(must_split.len(), 2, "its log would have filled a page");
    let is_removed = |page| runtime.engine().pool.remove(page);
    assert!(must_split.iter().copied().all(is_removed), "the claim has read both");
    commit(1);
    let is_read = must_split.iter().any(|page| runtime.engine().pool.peek(*page).is_some());
    assert!(!is_read, "a leaf was looked at again");
    runtime.merge_now().unwrap();
    assert!(runtime.engine().must_split.is_empty(), "they are others now");
    commit(2);
    assert!(!runtime.engine().must_split.is_empty(), "so are what would be written");
    assert_eq!(claimed(&database), 0);
    check(&database, table, |_| 0);
}

/// Goal: a commit that meets the failure of another thread reports that nothing is committed only where
/// nothing can be. Method: the owner of a claim gives up after each step; a restart finds the state
/// that the owner was told.
#[test]
fn who_gives_up_a_claim_is_told_whether_it_may_be_committed() {
    let mut answers = Vec::new();
    for (steps, flushes) in (0..).flat_map(|steps| [(steps, false), (steps, true)]) {
        let (database, table) = database(CommitBy::Claims);
        let runtime = database.runtime();
        let xid = runtime.engine().begin();
        for row in 0..ROWS {
            let put = |engine: &mut Engine| engine.put(xid, table, &key(row), &value(row, 1));
            runtime.run(put).unwrap();
        }
        let commit = || runtime.engine().commit(xid, Durability::Deferred);
        while let Err(Stop::Miss(fetch)) = commit() {
            let fetched = runtime.read(fetch).unwrap();
            runtime.engine().fill(fetched).unwrap();
        }
        assert!(matches!(commit(), Err(Stop::Wait(Wait::CommitPages))));
        let mut is_whole = false;
        for _ in 0..steps {
            match runtime.work_begin() {
                Ok(Some(work)) => runtime.work_end(work),
                Err(Stop::Miss(fetch)) => {
                    let fetched = runtime.read(fetch).unwrap();
                    runtime.engine().fill(fetched).unwrap();
                }
                _ => is_whole = true,
            }
        }
        if flushes {
            // Another thread's flush ends meanwhile.
            runtime.flush_now().unwrap();
        }
        runtime.engine().options.techniques.commit = CommitBy::Log;
        let gives_up = runtime.engine().gives_up(xid);
        answers.push(gives_up);
        if gives_up {
            runtime.abort(xid);
            assert!(!runtime.engine().is_claiming(xid), "its locks stay");
            runtime.checkpoint_now().unwrap();
        } else {
            runtime.flush_now().unwrap();
            assert!(commit().is_ok(), "after {steps} steps");
        }
        let (database, table) = reopen(database, CommitBy::Claims);
        check(&database, table, |_| u32::from(!gives_up));
        if is_whole && flushes {
            break;
        }
    }
    assert!(answers.is_sorted_by(|before, after| before >= after), "{answers:?}");
    assert!(answers.contains(&false) && answers[0], "{answers:?}");
}

/// Goal (rule D8): a commit that is acknowledged can be read. Method: the device fails elsewhere while the
/// flush of a commit is on its way, and that flush succeeds.
#[test]
fn a_flush_that_ends_after_a_failure_acknowledges_nothing() {
    let (database, table) = database(CommitBy::Log);
    let mut transaction = database.begin();
    transaction.put(table, &key(1), b"new").unwrap();
    let lsn = transaction.commit_with(Durability::Deferred).unwrap().lsn;
    let runtime = database.runtime();
    let flush = runtime.flush_begin().unwrap().unwrap();
    runtime.engine().poison(EngineError::Poisoned);
    runtime.flush_end(flush);
    assert_eq!(runtime.wait_durable(lsn), Err(EngineError::OutcomeUnknown));
    assert_eq!(database.begin().get(table, &key(1)).unwrap(), Some(value(1, 0)));
}

/// Goal: changes that a claim leaves to the log are counted until they are merged (rule D7). Method:
/// leaves that change as a whole, and one that has to split.
#[test]
fn what_a_claim_leaves_out_may_make_leaves_grow() {
    let (database, table) = database(CommitBy::Claims);
    let mut transaction = database.begin();
    for row in (0..60).chain(ROWS..ROWS + 30) {
        transaction.put(table, &key(row), &value(row, 1)).unwrap();
    }
    transaction.commit_with(Durability::Immediate).unwrap();
    assert!(claimed(&database) > 0, "nothing was claimed");
    let engine = database.runtime().engine();
    assert!(engine.has_deltas(), "all was claimed");
    assert!(engine.room.growth.bytes >= 30 * 100, "{} bytes", engine.room.growth.bytes);
}
