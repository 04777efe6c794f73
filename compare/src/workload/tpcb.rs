//! TPC-B: rows of 100, 100, 100 and 50 bytes, account, history, teller, branch in this order.

use anyhow::{Result, ensure};

use super::{Client, Step, Workload, draws_of, filler};
use crate::store::Store;

const ACCOUNT: usize = 0;
const HISTORY: usize = 1;
const TELLER: usize = 2;
const BRANCH: usize = 3;
const ACCOUNTS: u64 = 100_000;
const TELLERS: u64 = 10;
const ROW: usize = 100;
const DELTA_MAX: u64 = 999_999;

pub struct Tpcb {
    pub scale: u64,
}

impl Tpcb {
    fn count(&self, table: usize) -> u64 {
        match table {
            ACCOUNT => self.scale * ACCOUNTS,
            TELLER => self.scale * TELLERS,
            BRANCH => self.scale,
            _ => 0,
        }
    }
}

fn amount(bytes: &[u8]) -> i64 {
    bytes.get(..8).and_then(|bytes| bytes.try_into().ok()).map_or(0, i64::from_le_bytes)
}

fn row(table: usize, number: u64) -> Vec<u8> {
    let mut row = filler(&mut draws_of(table, number), ROW);
    row[..8].fill(0);
    row
}

impl Workload for Tpcb {
    fn tables(&self) -> usize {
        4
    }

    fn bytes(&self, commits: u64) -> u64 {
        self.scale * ACCOUNTS * 108 + commits * 66
    }

    fn load(&self, store: &dyn Store) -> Result<()> {
        for table in [ACCOUNT, TELLER, BRANCH] {
            let count = self.count(table);
            store.load(table, &mut (0..count).map(|n| (n.to_be_bytes().into(), row(table, n))))?;
        }
        Ok(())
    }

    fn step(&self, store: &dyn Store, client: &mut Client) -> Result<Step> {
        let teller = client.below(self.scale * TELLERS);
        let branch = teller / TELLERS;
        let is_local = self.scale == 1 || client.below(100) < 85;
        let of = if is_local {
            branch
        } else {
            (branch + 1 + client.below(self.scale - 1)) % self.scale
        };
        let account = of * ACCOUNTS + client.below(ACCOUNTS);
        let delta = client.below(2 * DELTA_MAX + 1) as i64 - DELTA_MAX as i64;
        let mut key = [0; 16];
        key[..8].copy_from_slice(&client.number.to_be_bytes());
        key[8..].copy_from_slice(&client.sequence.to_be_bytes());
        let mut history = filler(&mut client.draws, 50);
        for (place, number) in [delta as u64, account, teller, branch].into_iter().enumerate() {
            history[place * 8..place * 8 + 8].copy_from_slice(&number.to_le_bytes());
        }
        store.write(&mut |txn| {
            let mut add = |old: &[u8]| (amount(old) + delta).to_le_bytes().to_vec();
            txn.patch(ACCOUNT, &account.to_be_bytes(), 0, &mut add, 8)?;
            txn.put(HISTORY, &key, &history)?;
            txn.patch(TELLER, &teller.to_be_bytes(), 0, &mut add, 8)?;
            txn.patch(BRANCH, &branch.to_be_bytes(), 0, &mut add, 8)?;
            Ok(true)
        })?;
        Ok(Step::Commit)
    }

    fn verify(&self, store: &dyn Store, commits: u64) -> Result<()> {
        let (mut sums, mut rows) = ([0_i64; 4], [0_u64; 4]);
        store.read(&mut |txn| {
            for table in 0..4 {
                txn.scan(table, &[], &mut |_, value| {
                    sums[table] += amount(value);
                    rows[table] += 1;
                    true
                })?;
            }
            Ok(())
        })?;
        ensure!(rows[HISTORY] == commits, "{} commits, {} history rows", commits, rows[HISTORY]);
        ensure!(sums.iter().all(|sum| *sum == sums[0]), "the four sums differ: {sums:?}");
        Ok(())
    }
}
