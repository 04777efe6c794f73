use flagstone_nand::{Nand, Profile, SegmentFile, SimNand, SimStorage};
use flagstone_space::{GroupId, NoOwner, SpaceError, WriteTag};

use crate::delta::DeltaMap;
use crate::engine::store::groups::{Grouped, IMAGES_SHARE};
use crate::engine::{Engine, Stop, Table};
use crate::error::EngineError;
use crate::options::{Budget, CommitBy, Durability, Options};
use crate::runtime::{REGION_TABLES, Runtime};
use crate::testing::Database;

/// Rows of the table: on some dozen leaves, before these grow.
const ROWS: u32 = 400;

/// Bytes of a row at first, and of a row that makes its leaf split.
const SIZES: [usize; 2] = [60, 160];

/// Room for the images of several leaves that split together.
const MEMORY: usize = 320 << 10;

/// Pieces of background work after which the awaited event must have happened.
const PIECES_MAX: u32 = 1_000;

fn options() -> Options {
    Options::default().with_memory(MEMORY).with_log_pages(128).with_techniques(|techniques| {
        (techniques.budget, techniques.frame_share) = (Budget::Divided, 0.85);
        techniques.commit = CommitBy::Log;
    })
}

/// A chip with all rows in their leaves, at their first size.
fn loaded() -> (Database<SimNand>, Table) {
    let mut profile = Profile::named("slc-2k").unwrap();
    profile.geometry.pages_per_block = 16;
    loaded_on(SimNand::new(&profile.with_block_count(48).unwrap(), 1))
}

fn loaded_on<D: Nand>(device: D) -> (Database<D>, Table) {
    let database = Database::create_on(device, &options()).unwrap();
    let table = database.table("t").unwrap();
    let mut transaction = database.begin();
    for row in 0..ROWS {
        transaction.put(table, &row.to_be_bytes(), &[1; SIZES[0]]).unwrap();
    }
    transaction.commit().unwrap();
    database.merge().unwrap();
    (database, table)
}

/// Rows all over the leaves grow, until memory asks for merges; none is made.
fn grow<D: Nand>(runtime: &Runtime<D>, table: Table) {
    // Odd numbers first, then the others.
    for row in (1..ROWS).step_by(2).chain((0..ROWS).step_by(2)) {
        if runtime.engine().must_merge() {
            break;
        }
        let xid = runtime.engine().begin();
        let put = |engine: &mut Engine| engine.put(xid, table, &row.to_be_bytes(), &[2; SIZES[1]]);
        runtime.run(put).unwrap();
        runtime.run(|engine| engine.commit(xid, Durability::Deferred)).unwrap();
    }
    runtime.engine().want_flush();
    runtime.flush_now().unwrap();
    assert!(runtime.engine().must_merge(), "all changes fit in memory");
}

/// Does one piece of background work, or flushes or reads if the work waits for that.
fn work<D: Nand>(runtime: &Runtime<D>) {
    match runtime.work_begin() {
        Ok(Some(work)) => runtime.work_end(work),
        Ok(None) | Err(Stop::Wait(_)) => drop(runtime.flush_now().unwrap()),
        Err(Stop::Miss(fetch)) => {
            let fetched = runtime.read(fetch).unwrap();
            runtime.engine().fill(fetched).unwrap();
        }
        Err(Stop::Error(error)) => panic!("work for all ends with an error: {error}"),
    }
}

/// Goal: a leaf that was chosen, and whose table went before its merge, is let go: the caller that works in
/// the background hears nothing of it. Method: a leaf of a table that is not there, as one that waits and as one
/// that was emptied.
#[test]
fn a_chosen_leaf_of_a_table_that_went_is_let_go() {
    let (database, table) = loaded();
    let gone = Table::of(table.id + 1);
    let runtime = database.runtime();
    assert!(runtime.engine().trees.get(gone.id as usize).is_none());
    runtime.engine().want_merge(gone, b"k");
    assert!(matches!(runtime.work_begin(), Ok(None)));
    runtime.engine().note_emptied(gone, b"k");
    assert!(runtime.engine().has_work());
    assert!(matches!(runtime.work_begin(), Ok(None)));
    assert!(!runtime.engine().has_work());
}

/// Writes copies of pages under undecided groups, until no more than `left` pages are free.
fn fill(runtime: &Runtime<SimNand>, left: u32) -> Vec<GroupId> {
    let mut space = runtime.space();
    let (mut groups, mut image) = (Vec::new(), Vec::new());
    loop {
        let group = space.new_group().unwrap();
        groups.push(group);
        let pages: Vec<_> = space.mapped_pages().collect();
        for page in pages {
            match space.ensure_room(left + 1, &mut NoOwner) {
                Ok(()) => {}
                Err(SpaceError::Full) => return groups,
                Err(error) => panic!("{error}"),
            }
            let lsn = space.read(page, &mut image).unwrap().lsn;
            let tag = WriteTag::data(lsn, REGION_TABLES);
            space.write_in_group(group, page, &image, &tag).unwrap();
        }
    }
}

fn check(database: &Database<SimNand>, table: Table) {
    let report = database.check().unwrap();
    assert!(report.is_sound() && report.leaked_pages == 0, "{report:?}");
    let snapshot = database.snapshot().unwrap();
    let mut rows = snapshot.range(table, ..);
    for row in 0..ROWS {
        let (key, value) = rows.next().unwrap().unwrap();
        assert_eq!(key, row.to_be_bytes());
        assert!(value == [1; SIZES[0]] || value == [2; SIZES[1]], "row {row}");
    }
    assert!(rows.next().is_none());
}

/// Goal: leaves that find no room to split together stay as they were, no error is reported, and they
/// split one by one (rule D7). Method: a device whose room is taken by undecided groups, so that a few
/// pages are left; the same with room, where they split together.
#[test]
fn leaves_that_find_no_room_together_split_one_by_one() {
    for is_full in [false, true] {
        let (database, table) = loaded();
        let runtime = database.runtime();
        grow(runtime, table);
        let groups = if is_full { fill(runtime, 4) } else { Vec::new() };
        let engine = runtime.engine();
        let (numbers, splits) = (engine.room.unused_pages.len(), engine.counts.splits);
        drop(engine);
        let mut pieces = 0;
        let is_done = |runtime: &Runtime<SimNand>| match is_full {
            true => runtime.engine().obstacles.are_splits_single(),
            false => runtime.engine().counts.split_together > 0,
        };
        while !is_done(runtime) {
            work(runtime);
            pieces += 1;
            assert!(pieces < PIECES_MAX, "no leaf splits");
        }
        if is_full {
            let engine = runtime.engine();
            assert!(engine.groups.busy.is_empty(), "{:?} are given back", engine.groups.busy);
            assert!(engine.trees.iter().all(|tree| tree.reshaping.is_none()), "the tree is free");
            assert!(engine.room.unused_pages.len() >= numbers, "numbers are given back");
            assert_eq!(engine.counts.splits, splits, "nothing is installed");
        }
        let mut space = runtime.space();
        groups.into_iter().for_each(|group| space.discard_group(group));
        drop(space);
        while runtime.engine().must_merge() {
            work(runtime);
            pieces += 1;
            assert!(pieces < PIECES_MAX, "there is no end of merging");
        }
        let together = runtime.engine().counts.split_together;
        assert!(if is_full { together == 1 } else { together > 2 }, "{together} leaves at once");
        database.merge().unwrap();
        check(&database, table);
        let device = database.into_device().unwrap();
        let database = Database::open_on(device, &options()).unwrap();
        check(&database, database.table("t").unwrap());
    }
}

/// No snapshot is left: the old leaves kept for it are gone, and `pins` pinned versions with them.
fn nothing_is_kept(database: &Database<SimNand>, table: Table, pins: usize) {
    let runtime = database.runtime();
    let mut engine = runtime.engine();
    assert!(engine.snapshots.is_empty(), "a snapshot is left");
    assert!(engine.trees.iter().all(|tree| tree.retained.is_empty()), "old leaves are kept");
    let unpins = engine.snapshots.take_unpins();
    drop(engine);
    assert_eq!(unpins.len(), pins, "versions that nobody pins any more");
    let mut space = runtime.space();
    unpins.into_iter().for_each(|pin| space.unpin(pin));
    drop(space);
    database.merge().unwrap();
    let engine = runtime.engine();
    let empty = DeltaMap::new().size().memory;
    let sizes = engine.trees.iter().map(|tree| tree.size().memory - empty);
    assert_eq!(sizes.sum::<usize>(), engine.memory.deltas, "what they took is given back");
    drop(engine);
    check(database, table);
}

/// Goal (D15): old leaves that a snapshot needs take no memory and no pages once it has ended, although
/// it ends while they are being installed. Method: leaves that split together, the first of which have
/// as many changes as may be kept for snapshots.
#[test]
fn a_snapshot_that_ends_within_an_install_leaves_nothing() {
    let (database, table) = loaded();
    let runtime = database.runtime();
    let snapshot = database.snapshot().unwrap();
    grow(runtime, table);
    let mut leaves = 0;
    for _ in 0..PIECES_MAX {
        leaves =
            runtime.engine().groups.recorded.front().map_or(0, |job| job.grouped.reshape.old.len());
        work(runtime);
        if runtime.engine().snapshots.is_empty() {
            break;
        }
    }
    assert!(leaves > 2, "it ends while {leaves} leaves are installed");
    let read = snapshot.get(table, &0_u32.to_be_bytes());
    assert_eq!(read, Err(EngineError::SnapshotTooOld));
    nothing_is_kept(&database, table, leaves);
}

/// Goal (D15, Q3): the same where a transaction commits with its leaves. Method: a row of each leaf in one
/// transaction, behind changes of all rows that the snapshot does not see.
#[test]
fn a_snapshot_that_ends_within_a_claim_leaves_nothing() {
    let (database, table) = loaded();
    let runtime = database.runtime();
    let snapshot = database.snapshot().unwrap();
    let put = |rows: &mut dyn Iterator<Item = u32>, fill: u8| {
        let xid = runtime.engine().begin();
        for row in rows {
            let value = vec![fill; SIZES[usize::from(fill) - 1]];
            runtime.run(|engine| engine.put(xid, table, &row.to_be_bytes(), &value)).unwrap();
        }
        runtime.run(|engine| engine.commit(xid, Durability::Deferred)).unwrap();
    };
    (0..ROWS).for_each(|row| put(&mut (row..=row), 1));
    runtime.engine().want_flush();
    runtime.flush_now().unwrap();
    let mut engine = runtime.engine();
    assert!(!engine.snapshots.is_empty() && !engine.must_merge(), "merges come first");
    engine.options.techniques.commit = CommitBy::Claims;
    drop(engine);
    put(&mut (0..ROWS).step_by(20), 1);
    let leaves = runtime.engine().counts.claimed_pages as usize;
    assert!(leaves > 8, "{leaves} leaves are claimed");
    let read = snapshot.get(table, &0_u32.to_be_bytes());
    assert_eq!(read, Err(EngineError::SnapshotTooOld), "what is kept takes little");
    nothing_is_kept(&database, table, leaves);
}

/// Goal (D15): the same where the snapshot ends while the leaf that it needed is being written. Method:
/// a leaf with changes of rows that do not grow.
#[test]
fn a_snapshot_that_ends_while_a_leaf_is_written_leaves_nothing() {
    let (database, table) = loaded();
    let runtime = database.runtime();
    let snapshot = database.snapshot().unwrap();
    let mut transaction = database.begin();
    transaction.put(table, &0_u32.to_be_bytes(), &[1; SIZES[0]]).unwrap();
    transaction.commit().unwrap();
    runtime.engine().want_full_merge();
    let work = loop {
        match runtime.work_begin() {
            Ok(Some(work)) if runtime.engine().groups.busy.is_empty() => runtime.work_end(work),
            Ok(Some(work)) => break work,
            Ok(None) | Err(Stop::Wait(_)) => drop(runtime.flush_now().unwrap()),
            Err(Stop::Miss(fetch)) => {
                let fetched = runtime.read(fetch).unwrap();
                runtime.engine().fill(fetched).unwrap();
            }
            Err(Stop::Error(error)) => panic!("{error}"),
        }
    };
    drop(snapshot);
    runtime.work_end(work);
    nothing_is_kept(&database, table, 1);
}

/// Goal (rule D1): a flush makes only groups durable whose pages were written before its sync began,
/// and no group is installed before its record is durable. Method: leaves of a file split while a flush
/// is under way.
#[test]
fn a_flush_under_way_makes_no_later_group_durable() {
    let profile = Profile::named("segment-file").unwrap();
    let file = SegmentFile::create(SimStorage::new(profile.timing), &profile).unwrap();
    let (database, table) = loaded_on(file);
    let runtime = database.runtime();
    grow(runtime, table);
    let commit = || {
        let xid = runtime.engine().begin();
        runtime.run(|engine| engine.put(xid, table, b"another", b"row")).unwrap();
        runtime.run(|engine| engine.commit(xid, Durability::Deferred)).unwrap();
        runtime.engine().want_flush();
    };
    let counts = || {
        let engine = runtime.engine();
        (engine.groups.written.len(), engine.groups.recorded.len(), engine.counts.splits)
    };
    let (.., splits) = counts();
    commit();
    let flush = runtime.flush_begin().unwrap().unwrap();
    for _ in 0..PIECES_MAX {
        if counts().0 > 0 {
            break;
        }
        work(runtime);
    }
    assert_eq!(counts(), (1, 0, splits));
    runtime.flush_end(flush);
    assert_eq!(counts(), (1, 0, splits), "it was written after the sync had begun");
    commit();
    runtime.flush_now().unwrap();
    assert_eq!(counts(), (0, 1, splits), "its record waits for a flush");
    commit();
    runtime.flush_now().unwrap();
    work(runtime);
    assert_eq!(counts(), (0, 0, splits + 1));
    database.merge().unwrap();
    assert!(database.check().unwrap().is_sound());
}

/// Goal (rule D7): images of groups that wait for syncs take a bounded share of memory, also where no
/// commit brings a sync. Method: rows all over a file's leaves that split them, in commits that wait
/// for nothing; the largest size of images at any time.
#[test]
fn images_that_wait_for_syncs_are_bounded() {
    const LOADED: u32 = 60_000;
    let profile = Profile::named("segment-file").unwrap();
    let file = SegmentFile::create(SimStorage::new(profile.timing), &profile).unwrap();
    let options = Options::default().with_memory(1 << 20);
    let database = Database::create_on(file, &options).unwrap();
    let table = database.table("t").unwrap();
    let put = |rows: std::ops::Range<u32>, key: &dyn Fn(u32) -> u32| {
        let mut transaction = database.begin();
        for row in rows {
            transaction.put(table, &key(row).to_be_bytes(), &[row as u8; 100]).unwrap();
        }
        transaction.commit_with(Durability::Deferred).unwrap();
    };
    (0..LOADED / 500).for_each(|at| put(at * 500..(at + 1) * 500, &|row| row << 8));
    database.merge().unwrap();
    let (mut most, mut groups) = (0, 0);
    for row in 0..8_000 {
        put(row..row + 1, &|row| ((row.wrapping_mul(0x9E37_79B1) >> 8) % LOADED) << 8 | 1);
        let engine = database.runtime().engine();
        let pages: usize = engine.open_groups().map(Grouped::page_count).sum();
        most = most.max(pages * engine.payload_size);
        groups = groups.max(engine.open_groups().count());
    }
    println!("{most} bytes of images, {groups} groups");
    assert!(groups > 1, "none waits for another");
    // The images already there, and one group more.
    assert!(most <= 2 * options.memory / IMAGES_SHARE, "{most} bytes");
    assert!(database.check().unwrap().is_sound());
}
