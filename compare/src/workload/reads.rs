//! Reads of a table that fits every cache: 200,000 rows of 108 bytes.

use anyhow::{Result, ensure};

use super::{Client, Step, Workload, draws_of, filler};
use crate::store::Store;

const ROWS: u64 = 200_000;
const VALUE: usize = 100;
/// Reads that see one state.
const BATCH: u64 = 100;

fn load(store: &dyn Store) -> Result<()> {
    let row = |n: u64| (n.to_be_bytes().into(), filler(&mut draws_of(0, n), VALUE));
    store.load(0, &mut (0..ROWS).map(row))?;
    // Everything is read once, so that it is cached where a cache keeps it.
    store.read(&mut |txn| {
        let mut value = Vec::new();
        (0..ROWS).try_for_each(|n| txn.get(0, &n.to_be_bytes(), &mut value).map(|_| ()))
    })
}

/// Rows by key, 100 in a transaction or snapshot.
pub struct Points;

impl Workload for Points {
    fn tables(&self) -> usize {
        1
    }

    fn bytes(&self, _commits: u64) -> u64 {
        ROWS * (8 + VALUE as u64)
    }

    fn load(&self, store: &dyn Store) -> Result<()> {
        load(store)
    }

    fn step(&self, store: &dyn Store, client: &mut Client) -> Result<Step> {
        store.read(&mut |txn| {
            let mut value = Vec::new();
            for _ in 0..BATCH {
                let key = client.below(ROWS).to_be_bytes();
                ensure!(txn.get(0, &key, &mut value)? && value.len() == VALUE, "a row is missing");
            }
            Ok(())
        })?;
        Ok(Step::Reads(BATCH))
    }
}

/// Ranges of 100 rows.
pub struct Scans;

impl Workload for Scans {
    fn tables(&self) -> usize {
        1
    }

    fn bytes(&self, commits: u64) -> u64 {
        Points.bytes(commits)
    }

    fn load(&self, store: &dyn Store) -> Result<()> {
        load(store)
    }

    fn step(&self, store: &dyn Store, client: &mut Client) -> Result<Step> {
        let from = client.below(ROWS - BATCH).to_be_bytes();
        let (mut rows, mut sum) = (0, 0_u64);
        store.read(&mut |txn| {
            txn.scan(0, &from, &mut |_, value| {
                sum += u64::from(value[0]);
                rows += 1;
                rows < BATCH
            })
        })?;
        ensure!(rows == BATCH, "a scan found {rows} rows");
        std::hint::black_box(sum);
        Ok(Step::Reads(BATCH))
    }
}
