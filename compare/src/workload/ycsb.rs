//! YCSB core: records of ten fields of 100 bytes, scrambled Zipfian requests; an update changes one
//! field.

use anyhow::{Result, ensure};
use rand::RngExt as _;

use super::{Client, Step, Workload, draws_of, filler};
use crate::store::Store;

const THETA: f64 = 0.99;
/// Items of the distribution and the constant that YCSB gives for them.
const ITEMS: f64 = 1e10;
const ZETA: f64 = 26.469_028_201_783_02;
const FIELD: usize = 100;
const FIELDS: u64 = 10;

pub struct Ycsb {
    records: u64,
    /// Reads in a hundred requests.
    reads: u64,
    eta: f64,
}

impl Ycsb {
    pub fn new(records: u64, reads: u64) -> Self {
        let zeta_2 = 1.0 + 0.5_f64.powf(THETA);
        let eta = (1.0 - (2.0 / ITEMS).powf(1.0 - THETA)) / (1.0 - zeta_2 / ZETA);
        Self { records, reads, eta }
    }

    fn item(&self, client: &mut Client) -> u64 {
        let u: f64 = client.draws.random();
        let uz = u * ZETA;
        let rank = if uz < 1.0 {
            0.0
        } else if uz < 1.0 + 0.5_f64.powf(THETA) {
            1.0
        } else {
            ITEMS * (self.eta * u - self.eta + 1.0).powf(1.0 / (1.0 - THETA))
        };
        fnv(rank as u64) % self.records
    }
}

fn fnv(number: u64) -> u64 {
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211);
    number.to_le_bytes().into_iter().fold(0xCBF2_9CE4_8422_2325, hash) & (u64::MAX >> 1)
}

fn key(number: u64) -> Vec<u8> {
    format!("user{}", fnv(number)).into_bytes()
}

impl Workload for Ycsb {
    fn tables(&self) -> usize {
        1
    }

    fn bytes(&self, _commits: u64) -> u64 {
        self.records * (23 + FIELDS * FIELD as u64)
    }

    fn load(&self, store: &dyn Store) -> Result<()> {
        let size = FIELD * FIELDS as usize;
        let row = |number| (key(number), filler(&mut draws_of(0, number), size));
        store.load(0, &mut (0..self.records).map(row))
    }

    fn step(&self, store: &dyn Store, client: &mut Client) -> Result<Step> {
        let key = key(self.item(client));
        if client.below(100) < self.reads {
            let mut value = Vec::new();
            store.read(&mut |txn| {
                ensure!(txn.get(0, &key, &mut value)?, "a record is missing");
                Ok(())
            })?;
            return Ok(Step::Reads(1));
        }
        let offset = client.below(FIELDS) as usize * FIELD;
        let field = filler(&mut client.draws, FIELD);
        store.write(&mut |txn| {
            txn.patch(0, &key, offset, &mut |_| field.clone(), FIELD)?;
            Ok(true)
        })?;
        Ok(Step::Commit)
    }
}
