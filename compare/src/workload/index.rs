//! A table of random 8-byte keys and 16-byte values, and bulk loads of 100-byte rows.

use anyhow::{Result, ensure};

use super::{Client, Step, Workload, draws_of, filler, scatter};
use crate::store::{Store, Txn};

const ROWS: u64 = 1_000_000;
const VALUE: usize = 16;

/// Updates of random rows.
pub struct Index {
    /// Updates a commit.
    pub batch: u64,
}

impl Workload for Index {
    fn tables(&self) -> usize {
        1
    }

    fn bytes(&self, _commits: u64) -> u64 {
        ROWS * (8 + VALUE as u64)
    }

    fn load(&self, store: &dyn Store) -> Result<()> {
        let mut keys: Vec<u64> = (0..ROWS).map(scatter).collect();
        keys.sort_unstable();
        let rows = keys.into_iter();
        store.load(0, &mut rows.map(|key| (key.to_be_bytes().into(), key.to_le_bytes().repeat(2))))
    }

    fn step(&self, store: &dyn Store, client: &mut Client) -> Result<Step> {
        let updates: Vec<_> = (0..self.batch)
            .map(|_| (scatter(client.below(ROWS)), filler(&mut client.draws, VALUE)))
            .collect();
        store.write(&mut |txn| {
            updates.iter().try_for_each(|(key, value)| txn.put(0, &key.to_be_bytes(), value))?;
            Ok(true)
        })?;
        Ok(Step::Commit)
    }

    fn verify(&self, store: &dyn Store, _commits: u64) -> Result<()> {
        expect_rows(store, ROWS)
    }
}

const LOADED: usize = 100;
const BATCH: u64 = 1000;

/// Bulk load: a commit adds [`BATCH`] rows.
pub struct Load {
    pub sorted: bool,
}

impl Workload for Load {
    fn tables(&self) -> usize {
        1
    }

    fn bytes(&self, commits: u64) -> u64 {
        commits * BATCH * (8 + LOADED as u64)
    }

    fn load(&self, _store: &dyn Store) -> Result<()> {
        Ok(())
    }

    fn step(&self, store: &dyn Store, client: &mut Client) -> Result<Step> {
        let start = client.sequence * BATCH;
        let mut insert = |txn: &mut dyn Txn| {
            for row in start..start + BATCH {
                let key = if self.sorted { row } else { scatter(row) };
                txn.put(0, &key.to_be_bytes(), &filler(&mut draws_of(0, row), LOADED))?;
            }
            Ok(true)
        };
        store.write(&mut insert)?;
        Ok(Step::Commit)
    }

    fn verify(&self, store: &dyn Store, commits: u64) -> Result<()> {
        expect_rows(store, commits * BATCH)
    }
}

fn expect_rows(store: &dyn Store, expected: u64) -> Result<()> {
    let mut rows = 0;
    store.read(&mut |txn| {
        txn.scan(0, &[], &mut |_, _| {
            rows += 1;
            true
        })
    })?;
    ensure!(rows == expected, "{rows} rows instead of {expected}");
    Ok(())
}
