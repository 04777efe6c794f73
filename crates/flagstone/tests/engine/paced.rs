//! Background work is paced: no commit pays for what many commits brought.

use flagstone::{Database, Durability, Options};
use flagstone_nand::{Nand as _, Profile, SegmentFile, SimStorage};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::on;

/// What a user does to a table, again and again.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// Rows anywhere are replaced.
    Overwrite,
    /// Rows come behind the last one, and as many go at the front.
    Queue,
    /// Rows anywhere come and go.
    Churn,
}

const ROWS: u64 = 40_000;
const ROWS_A_COMMIT: u64 = 200;

/// Programs of each commit, once the log has come round.
fn programs(work: Work, commits: usize) -> Vec<u64> {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default().with_memory(2 << 20);
    let database = Database::create(directory.path().join("db"), &options).unwrap();
    let table = database.table("t").unwrap();
    let mut rng = Pcg64Mcg::seed_from_u64(7);
    let mut load = database.begin();
    for row in 0..ROWS {
        load.put(table, &row.to_be_bytes(), &[7; 100]).unwrap();
        if row % 1_000 == 999 {
            load.commit_with(Durability::Deferred).unwrap();
            load = database.begin();
        }
    }
    load.commit().unwrap();
    let count = || database.stats().space.programs_by_cause.iter().sum::<u64>();
    let (mut before, mut each, mut at) = (count(), Vec::new(), 0);
    for _ in 0..commits {
        let mut transaction = database.begin();
        for _ in 0..ROWS_A_COMMIT {
            match work {
                Work::Overwrite => {
                    let row = rng.random_range(0..ROWS);
                    transaction.put(table, &row.to_be_bytes(), &[8; 100]).unwrap();
                }
                Work::Queue => {
                    transaction.put(table, &(ROWS + at).to_be_bytes(), &[8; 100]).unwrap();
                    transaction.delete(table, &at.to_be_bytes()).unwrap();
                    at += 1;
                }
                Work::Churn => {
                    let row = rng.random_range(0..2 * ROWS);
                    match rng.random() {
                        true => transaction.put(table, &row.to_be_bytes(), &[8; 100]).unwrap(),
                        false => transaction.delete(table, &row.to_be_bytes()).unwrap(),
                    }
                }
            }
        }
        transaction.commit().unwrap();
        let now = count();
        each.push(now - before);
        before = now;
    }
    each
}

/// Goal: a commit's own work, and its share of the work in the background, is all that it waits for. Method:
/// commits of equal size, several times the log, with the options of a user; the programs of each. Before
/// cycles kept pace with commits, one commit in 500 had 1,033. A leaf that takes rows of many commits goes to
/// flash in parts of 324 pages.
#[test]
fn no_commit_pays_for_many() {
    for work in [Work::Overwrite, Work::Queue, Work::Churn] {
        let each = programs(work, 1_200);
        let mean = each.iter().sum::<u64>() / each.len() as u64;
        let most = each.iter().max().unwrap();
        println!("{work:?}: {mean} programs a commit, {most} at most");
        assert!(*most <= 70 * mean, "{work:?}: {most} programs for one commit, {mean} on average");
    }
}

/// Goal: values with pages of their own are durable by one sync a commit, and leaves that give such values up share
/// the syncs of their groups. Method: values of both kinds, replaced at random; the syncs of each commit. With a
/// sync a value and a group there were 12.
#[test]
fn large_values_are_synced_together() {
    const COMMITS: u64 = 400;
    let mut profile = Profile::named("segment-file").unwrap();
    profile.geometry.pages_per_block = 64;
    let profile = profile.with_block_count(1_024).unwrap();
    let storage = SimStorage::new(profile.timing);
    let device = SegmentFile::create_growing(storage, &profile, 8).unwrap();
    let options = Options::default().with_memory(1 << 20);
    let database = on::Database::create_on(device, &options).unwrap();
    let table = database.table("t").unwrap();
    let mut rng = Pcg64Mcg::seed_from_u64(7);
    // A row in three has pages of its own; the key fills the leaf.
    let key = |row: u64| [&row.to_be_bytes()[..], &[7; 200]].concat();
    let value = |row: u64| vec![7; if row.is_multiple_of(3) { 6_000 } else { 400 }];
    for first in (0..6_000).step_by(100) {
        let mut load = database.begin();
        (first..first + 100).for_each(|row| load.put(table, &key(row), &value(row)).unwrap());
        load.commit().unwrap();
    }
    let syncs = || database.at_device(|device| device.counters().syncs);
    let before = syncs();
    for _ in 0..COMMITS {
        let mut transaction = database.begin();
        for _ in 0..20 {
            let row = rng.random_range(0..6_000);
            transaction.put(table, &key(row), &value(row)).unwrap();
        }
        transaction.commit().unwrap();
    }
    let each = (syncs() - before) as f64 / COMMITS as f64;
    println!("{each:.1} syncs a commit");
    assert!(each <= 4.0, "{each:.1} syncs a commit");
}
