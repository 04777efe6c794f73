//! Commits without a wait for durability: snapshots, backups and restarts after a cut show each of them
//! whole.
//!
//! The rows add up to 0 after each transaction. More log than a sixteenth of the memory waits again and
//! again, so that flushes begin which no commit asked for.

use std::sync::atomic::{AtomicBool, Ordering};

use flagstone::{Durability, Error, Options, Table, verify_backup};
use flagstone_nand::{Profile, SimNand};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::on::Database;

const ACCOUNTS: u32 = 400;

fn options() -> Options {
    Options::default().with_memory(128 << 10)
}

fn chip(seed: u64) -> SimNand {
    SimNand::new(&Profile::named("slc-2k").unwrap().with_block_count(200).unwrap(), seed)
}

fn amount(value: &[u8]) -> i64 {
    i64::from_be_bytes(value[..8].try_into().unwrap())
}

fn value(amount: i64) -> Vec<u8> {
    [&amount.to_be_bytes()[..], &[0; 100]].concat()
}

fn accounts(database: &flagstone::Database) -> Table {
    let table = database.table("accounts").unwrap();
    let mut transaction = database.begin();
    for account in 0..ACCOUNTS {
        transaction.put(table, &account.to_be_bytes(), &value(0)).unwrap();
    }
    transaction.commit().unwrap();
    table
}

fn transfer(database: &flagstone::Database, table: Table, rng: &mut Pcg64Mcg) {
    let [from, to] = [(); 2].map(|()| rng.random_range(0..ACCOUNTS));
    let by = rng.random_range(1..1_000);
    let mut transaction = database.begin();
    for (account, change) in [(from, -by), (to, by)] {
        let key = account.to_be_bytes();
        let before = amount(&transaction.get(table, &key).unwrap().unwrap());
        transaction.put(table, &key, &value(before + change)).unwrap();
    }
    transaction.commit_with(Durability::Deferred).unwrap();
}

fn sum(database: &flagstone::Database, table: Table) -> i64 {
    let snapshot = database.snapshot().unwrap();
    snapshot.range(table, ..).map(|row| amount(&row.unwrap().1)).sum()
}

/// Sum of all accounts after a cut behind `count` transfers.
fn sum_after_a_cut(count: u32, plant: impl Fn(&Database<SimNand>)) -> i64 {
    let database = Database::create_on(chip(1), &options()).unwrap();
    let table = accounts(&database);
    plant(&database);
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    (0..count).for_each(|_| transfer(&database, table, &mut rng));
    let database = Database::open_on(database.into_device().unwrap(), &options()).unwrap();
    assert!(database.check().unwrap().is_sound());
    let table = database.existing_table("accounts").unwrap().unwrap();
    sum(&database, table)
}

/// Number of snapshots between `count` transfers that show half of a transfer.
fn torn_snapshots(count: u32, plant: impl Fn(&Database<SimNand>)) -> u32 {
    let database = Database::create_on(chip(1), &options()).unwrap();
    let table = accounts(&database);
    plant(&database);
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let mut torn = 0;
    for _ in 0..count {
        transfer(&database, table, &mut rng);
        torn += u32::from(sum(&database, table) != 0);
    }
    torn
}

#[test]
fn a_cut_leaves_no_half_of_a_deferred_commit() {
    for count in (500..4_000).step_by(250) {
        assert_eq!(sum_after_a_cut(count, |_| {}), 0, "cut after {count} transfers");
    }
}

#[test]
fn snapshots_show_no_half_of_a_deferred_commit() {
    assert_eq!(torn_snapshots(1_500, |_| {}), 0);
}

#[test]
fn a_backup_holds_no_half_of_a_deferred_commit() {
    let database = Database::create_on(chip(1), &options()).unwrap();
    let table = accounts(&database);
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    for _ in 0..10 {
        (0..333).for_each(|_| transfer(&database, table, &mut rng));
        let mut backup = Vec::new();
        database.backup_to(&mut backup).unwrap();
        verify_backup(&backup[..]).unwrap();
        let copy = Database::create_on(chip(2), &options()).unwrap();
        copy.restore_from(&backup[..]).unwrap();
        let table = copy.existing_table("accounts").unwrap().unwrap();
        assert_eq!(sum(&copy, table), 0);
    }
}

/// Goal: a durable commit is in every snapshot that begins after it, and there after a cut, beside any
/// deferred commits of other threads. Method: a thread counts rows of its own up, each durably, beside
/// threads of transfers.
#[test]
fn what_was_acknowledged_beside_deferred_commits_stays() {
    for seed in 0..6 {
        let database = Database::create_on(chip(seed), &options()).unwrap();
        let (table, counts) = (accounts(&database), database.table("counts").unwrap());
        let is_done = AtomicBool::new(false);
        let is_left = || !is_done.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (database, mut rng) = (&database, Pcg64Mcg::seed_from_u64(seed * 3 + thread));
                scope.spawn(move || {
                    while is_left() {
                        deferred_load(database, table, &mut rng);
                    }
                });
            }
            for count in 1..=300_u32 {
                let key = (count % 7).to_be_bytes();
                let mut transaction = database.begin();
                transaction.put(counts, &key, &value(i64::from(count))).unwrap();
                transaction.commit_with(Durability::Immediate).unwrap();
                let seen = database.snapshot().unwrap().get(counts, &key).unwrap();
                assert_eq!(seen.map(|seen| amount(&seen)), Some(i64::from(count)), "seed {seed}");
            }
            is_done.store(true, Ordering::Relaxed);
        });
        let database = Database::open_on(database.into_device().unwrap(), &options()).unwrap();
        let (table, counts) =
            (database.table("accounts").unwrap(), database.table("counts").unwrap());
        let snapshot = database.snapshot().unwrap();
        for count in 294..=300_u32 {
            let found = snapshot.get(counts, &(count % 7).to_be_bytes()).unwrap();
            assert_eq!(found.map(|found| amount(&found)), Some(i64::from(count)), "seed {seed}");
        }
        assert_eq!(sum(&database, table), 0, "seed {seed}");
    }
}

/// A transfer to many accounts, unless another thread is in its way.
fn deferred_load(database: &Database<SimNand>, table: Table, rng: &mut Pcg64Mcg) {
    let first = rng.random_range(0..ACCOUNTS);
    let mut transaction = database.begin();
    let mut change = |account: u32, by: i64| -> Result<(), Error> {
        let key = (account % ACCOUNTS).to_be_bytes();
        transaction.lock_key(table, &key)?;
        let before = transaction.get(table, &key)?.map_or(0, |before| amount(&before));
        Ok(transaction.put(table, &key, &value(before + by))?)
    };
    let done = (1..20).try_for_each(|step| change(first + step * 7, 1));
    if done.and_then(|()| change(first, -19)).is_ok() {
        let _ = transaction.commit_with(Durability::Deferred);
    }
}

/// Goal: these tests see a flush that ends between commits. Method: one is planted.
#[cfg(feature = "seeded-bugs")]
#[test]
fn a_frontier_between_commits_is_seen() {
    let plant = |database: &Database<SimNand>| {
        database.runtime().plant(Some(flagstone::SeededBug::FrontierBetween));
    };
    assert_ne!(torn_snapshots(1_500, plant), 0, "by snapshots");
    assert!((500..4_000).step_by(250).any(|count| sum_after_a_cut(count, plant) != 0), "by cuts");
}
