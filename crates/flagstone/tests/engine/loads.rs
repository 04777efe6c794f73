//! Loads of sorted rows: whole or not at all at every power cut.

use flagstone::{Durability, Options, Table};
use flagstone_engine::CommitBy;
use flagstone_nand::{
    Crashable, EccNand, Ending, FaultPlan, OperationKind, Profile, SegmentFile, SimNand, SimStorage,
};

use crate::on::Database;

/// Rows of a commit: many leaves.
const BATCH: u32 = 60;
const BATCHES: u32 = 6;
/// Sessions that end without a checkpoint.
const SESSIONS: u32 = 60;
/// Seeds of the content that a cut leaves behind.
const SEEDS: u64 = 2;

fn options() -> Options {
    let options = Options::default().with_memory(64 << 10).with_log_pages(160);
    options.with_techniques(|techniques| {
        techniques.commit = CommitBy::Claims;
        // A transaction that spills is not claimed.
        (techniques.frame_share, techniques.uncommitted_share) = (0.3, 0.7);
    })
}

fn chip() -> SimNand {
    chip_of(160)
}

fn chip_of(blocks: u32) -> SimNand {
    SimNand::new(&Profile::named("tiny").unwrap().with_block_count(blocks).unwrap(), 1)
}

fn file() -> SegmentFile<SimStorage> {
    let mut profile = Profile::named("segment-file").unwrap();
    profile.geometry.page_size = 1024;
    profile.geometry.pages_per_block = 8;
    profile.geometry.block_count = 160;
    SegmentFile::create(SimStorage::new(profile.timing), &profile).unwrap()
}

fn value(row: u32) -> [u8; 60] {
    [row as u8 ^ 0x5A; 60]
}

fn tables(database: &flagstone::Database) -> [Table; 2] {
    ["t", "counts"].map(|name| database.existing_table(name).unwrap().unwrap())
}

/// Loads batch after batch, with a checkpoint in between; gives the number of commits that returned.
fn load(database: &flagstone::Database, [table, counts]: [Table; 2]) -> u32 {
    for batch in 0..BATCHES {
        let mut transaction = database.begin();
        for row in batch * BATCH..(batch + 1) * BATCH {
            if transaction.put(table, &row.to_be_bytes(), &value(row)).is_err() {
                return batch;
            }
        }
        // Every second one changes another table as well: its leaves cannot commit it alone.
        let is_put = batch % 2 == 0 || transaction.put(counts, b"batches", &[batch as u8]).is_ok();
        if !is_put || transaction.commit().is_err() {
            return batch;
        }
        if batch == BATCHES / 2 && database.runtime().checkpoint_now().is_err() {
            return batch + 1;
        }
    }
    BATCHES
}

/// The fault in the content of a reopened database after `returned` commits, if there is one.
fn fault_of<D: Crashable + Send + 'static>(device: D, returned: u32) -> Option<String> {
    let database = match Database::open_on(device, &options()) {
        Ok(database) => database,
        Err(error) => return Some(error.to_string()),
    };
    let (table, counts) = match ["t", "counts"].map(|name| database.table(name)) {
        [Ok(table), Ok(counts)] => (table, counts),
        [Err(error), _] | [_, Err(error)] => return Some(error.to_string()),
    };
    let mut rows = 0_u32;
    for row in database.snapshot().unwrap().range(table, ..) {
        let (key, found) = match row {
            Ok(row) => row,
            Err(error) => return Some(error.to_string()),
        };
        if key != rows.to_be_bytes() || found != value(rows) {
            return Some(format!("row {rows} is not what was put"));
        }
        rows += 1;
    }
    let is_whole =
        rows.is_multiple_of(BATCH) && rows / BATCH >= returned && rows / BATCH <= returned + 1;
    if !is_whole {
        return Some(format!("{rows} rows after {returned} commits"));
    }
    let counted = match database.begin().get(counts, b"batches") {
        Ok(counted) => counted,
        Err(error) => return Some(error.to_string()),
    };
    let last = (0..rows / BATCH).rev().find(|batch| batch % 2 == 1);
    if counted != last.map(|batch| vec![batch as u8]) {
        return Some(format!("{rows} rows beside a count of {counted:?}"));
    }
    let faults = database.check().unwrap().faults;
    (!faults.is_empty()).then(|| format!("{faults:?}"))
}

/// How an operation on cells ends.
const ON_CELLS: [Ending; 4] =
    [Ending::Untouched, Ending::LooksUntouched, Ending::RandomBits, Ending::Complete];

/// Endings for writes that were not synced on a file: any part of them may be there.
const ON_A_FILE: [Ending; 4] = [
    Ending::Untouched,
    Ending::UnsyncedSubset512 { draw: 1 },
    Ending::UnsyncedSubset4096 { draw: 2 },
    Ending::Complete,
];

/// Cuts the power at every operation of a load, with every ending; gives the states and the faults.
fn explore<D: Crashable + Clone + Send + 'static>(
    device: D,
    endings: [Ending; 4],
    begin: impl Fn(&Database<D>),
) -> (u64, Vec<String>) {
    let database = Database::create_on(device, &options()).unwrap();
    for name in ["t", "counts"] {
        database.table(name).unwrap();
    }
    database.runtime().checkpoint_now().unwrap();
    let device = database.into_device().unwrap();
    let run = |device: D| {
        let database = Database::open_on(device, &options()).unwrap();
        begin(&database);
        let returned = load(&database, tables(&database));
        let claimed = database.stats().engine.claimed_pages;
        (database.into_device().unwrap(), returned, claimed)
    };
    let (done, returned, claimed) = run(device.clone());
    assert_eq!(returned, BATCHES, "without a cut");
    assert!(claimed > 20, "{claimed} pages are claimed");
    let opened = Database::open_on(device.clone(), &options()).unwrap();
    let first = opened.into_device().unwrap().operation_count();
    let (mut states, mut faults) = (0, Vec::new());
    for operation in first..done.operation_count() {
        for ending in endings {
            for seed in 0..SEEDS {
                let mut device = device.clone();
                device.set_plan(FaultPlan::power_cut(seed, operation, ending));
                let (mut device, returned, _) = run(device);
                device.power_cycle();
                device.set_plan(FaultPlan::default());
                states += 1;
                if let Some(fault) = fault_of(device, returned) {
                    faults.push(format!("operation {operation} {ending:?} seed {seed}: {fault}"));
                }
            }
        }
    }
    (states, faults)
}

/// Goal: a commit whose rows make many leaves of one is there completely or not at all, whichever operation
/// the power cut hits. Method: every operation of a load on a chip and on a file.
#[test]
fn every_power_cut_of_a_load_leaves_whole_commits() {
    let (states, faults) = explore(chip(), ON_CELLS, |_| {});
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(states > 300, "{states} states");
    let (states, faults) = explore(file(), ON_A_FILE, |_| {});
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(states > 300, "{states} states");
}

/// Goal: the same on a chip under the engine's own ECC. Method: the same.
#[test]
fn every_power_cut_of_a_load_under_ecc_of_our_own_leaves_whole_commits() {
    let profile = Profile::named("tiny-own").unwrap().with_block_count(160).unwrap();
    let chip = EccNand::simulated(&profile, 1).unwrap();
    let (states, faults) = explore(chip, ON_CELLS, |_| {});
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(states > 300, "{states} states");
}

/// Goal: a database opens however often its loads are cut. Method: sessions that end without a
/// checkpoint, each with groups that the first record of the next one names.
#[test]
fn a_database_whose_loads_are_cut_again_and_again_opens() {
    let database = Database::create_on(chip_of(1600), &options()).unwrap();
    for name in ["t", "counts"] {
        database.table(name).unwrap();
    }
    let mut device = database.into_device().unwrap();
    let mut rows = 0_u32;
    for session in 0..SESSIONS {
        let database = Database::open_on(device, &options()).unwrap();
        let [table, _] = tables(&database);
        for _ in 0..4 {
            let mut transaction = database.begin();
            for row in rows..rows + BATCH {
                transaction.put(table, &row.to_be_bytes(), &value(row)).unwrap();
            }
            transaction.commit().unwrap();
            rows += BATCH;
        }
        let claimed = database.stats().engine.claimed_pages;
        assert!(session > 0 || claimed > 20, "{claimed} pages are claimed");
        device = database.into_device().unwrap();
    }
    let database = Database::open_on(device, &options()).unwrap();
    let [table, _] = tables(&database);
    assert_eq!(database.snapshot().unwrap().range(table, ..).count(), rows as usize);
}

/// Goal: the exploration finds bugs. Method: bugs planted in the steps of a load.
#[cfg(feature = "seeded-bugs")]
#[test]
fn planted_bugs_are_found_by_cutting_loads() {
    use flagstone::SeededBug;

    let planted = |database: &Database<_>| database.runtime().plant(Some(SeededBug::ClaimInPart));
    let (_, faults) = explore(chip(), ON_CELLS, planted);
    assert!(!faults.is_empty(), "what else the transaction changed is lost");
    let planted =
        |database: &Database<_>| database.runtime().plant(Some(SeededBug::RecordBeforePages));
    let (_, faults) = explore(file(), ON_A_FILE, planted);
    assert!(!faults.is_empty(), "the record is durable before its pages are");
}

/// Goal: leaves that have to split do so together, so that a file is not synced for each. Method: rows in
/// random order, in a memory whose share for changes is filled again and again; the syncs of the file.
#[test]
fn leaves_split_together() {
    const ROWS: u64 = 24_000;
    let profile = Profile::named("segment-file").unwrap();
    let device = SegmentFile::create(SimStorage::new(profile.timing), &profile).unwrap();
    let options = Options::default().with_memory(4 << 20);
    let database = Database::create_on(device, &options).unwrap();
    let table = database.table("t").unwrap();
    for first in (0..ROWS).step_by(500) {
        let mut transaction = database.begin();
        for row in first..first + 500 {
            let key = row.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
            transaction.put(table, &key, &[row as u8; 100]).unwrap();
        }
        transaction.commit_with(Durability::Deferred).unwrap();
    }
    database.merge().unwrap();
    let stats = database.stats();
    let leaves = u64::from(stats.space.live_pages);
    assert!(leaves > 500, "{leaves} leaves");
    assert!(stats.engine.reshapes * 2 < leaves, "{} for {leaves} leaves", stats.engine.reshapes);
    assert_eq!(database.snapshot().unwrap().len(table).unwrap(), ROWS);
    assert!(database.check().unwrap().faults.is_empty());
}

/// Goal: groups of leaves wait for the syncs of commits, instead of having each its own. Method: rows in
/// random order, all of whose commits are durable, in a memory whose share for changes is filled again and
/// again; the syncs of the file.
#[test]
fn splits_share_the_syncs_of_commits() {
    const COMMITS: u64 = 60;
    const ROWS: u64 = 500;
    let profile = Profile::named("segment-file").unwrap();
    let mut storage = SimStorage::new(profile.timing);
    storage.record_operations();
    let device = SegmentFile::create(storage, &profile).unwrap();
    let options = Options::default().with_memory(1 << 20);
    let database = Database::create_on(device, &options).unwrap();
    let table = database.table("t").unwrap();
    for first in (0..COMMITS * ROWS).step_by(ROWS as usize) {
        let mut transaction = database.begin();
        for row in first..first + ROWS {
            let key = row.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
            transaction.put(table, &key, &[row as u8; 100]).unwrap();
        }
        transaction.commit().unwrap();
    }
    let stats = database.stats().engine;
    let device = database.into_device().unwrap();
    let storage = device.storage();
    let is_sync = |number: &u64| storage.operation_kind(*number) == Some(OperationKind::Sync);
    let syncs = (0..storage.operation_count()).filter(is_sync).count() as u64;
    println!("{syncs} syncs, {stats:?}");
    assert!(stats.reshapes > COMMITS, "{stats:?}");
    assert!(stats.reshapes_at_once > 4, "{stats:?}");
    assert!(syncs < COMMITS + stats.reshapes, "{syncs} syncs, {stats:?}");
    let database = Database::open_on(device, &options).unwrap();
    let table = database.table("t").unwrap();
    assert_eq!(database.snapshot().unwrap().len(table).unwrap(), COMMITS * ROWS);
    assert!(database.check().unwrap().is_sound());
}
