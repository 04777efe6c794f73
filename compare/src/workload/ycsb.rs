//! YCSB core: records of ten fields of 100 bytes, scrambled Zipfian requests; an update changes one
//! field.

use anyhow::{Result, ensure};

use super::zipf::Zipf;
use super::{Client, Step, Workload, draws_of, filler};
use crate::store::Store;

const FIELD: usize = 100;
const FIELDS: u64 = 10;

pub struct Ycsb {
    records: u64,
    /// Reads in a hundred requests.
    reads: u64,
    zipf: Zipf,
}

impl Ycsb {
    pub fn new(records: u64, reads: u64) -> Self {
        Self { records, reads, zipf: Zipf::ycsb() }
    }

    fn item(&self, client: &mut Client) -> u64 {
        fnv(self.zipf.rank(&mut client.draws)) % self.records
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
