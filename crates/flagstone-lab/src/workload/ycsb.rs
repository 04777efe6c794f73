//! YCSB core: one table of records of ten fields, one request a transaction.
//!
//! Cooper et al., "Benchmarking Cloud Serving Systems with YCSB" (SoCC 2010), with the distributions of
//! the published program: 100 bytes a field, all fields read, one field updated, keys hashed.
//!
//! - **Y1** A client's requests follow from its number and from the number of its requests that
//!   ended: it chooses among the records of the load and the records that it inserted itself.
//! - **Y2** A field names the record, the client and the request that wrote it, and the rest of the
//!   field follows from these: half a field is seen.

mod audit;
mod client;
mod record;
#[cfg(test)]
mod tests;

use std::fmt;

use flagstone_engine::{EngineError, Table};
use serde::{Deserialize, Serialize};

use super::{Acknowledged, GivingUp, Put, Workload};
use crate::bench::BenchError;
use crate::sizing::Content;
use crate::store::Store;

pub use audit::Fault;
pub use client::Client;
pub use record::{FIELD_COUNT, FIELD_SIZE};

use record::{Record, VALUE_SIZE, Writer};

/// Name of the table.
const TABLE: &str = "usertable";
/// Bytes of a leaf entry: a key less the prefix that fences cut off, sizes, and the value.
const ENTRY_SIZE: u32 = 20 + VALUE_SIZE as u32;
/// Smallest logical page whose leaves take a record.
pub const PAGE_SIZE_MIN: u32 = 4096;

/// Which workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    /// Update heavy: half reads, half updates, Zipfian.
    #[default]
    A,
    /// Read mostly: 95 % reads, 5 % updates, Zipfian.
    B,
    /// Reads alone, Zipfian.
    C,
    /// Read latest: 95 % reads, 5 % inserts; the newest records are the most wanted.
    D,
    /// Short ranges: 95 % scans of 1 to 100 records, 5 % inserts, Zipfian.
    E,
    /// Read, modify, write: half reads, half updates of the records read, Zipfian.
    F,
}

/// Hundredths of the requests; the rest are reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Updates of a field.
    pub update: u64,
    /// New records.
    pub insert: u64,
    /// Ranges.
    pub scan: u64,
    /// Updates of a record that was read.
    pub modify: u64,
}

impl Dialect {
    /// Every workload.
    pub const ALL: [Self; 6] = [Self::A, Self::B, Self::C, Self::D, Self::E, Self::F];

    /// Name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
            Self::C => "c",
            Self::D => "d",
            Self::E => "e",
            Self::F => "f",
        }
    }

    /// The workload called `name`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.name() == name)
    }

    /// Its requests.
    #[must_use]
    pub const fn mix(self) -> Mix {
        let (update, insert, scan, modify) = match self {
            Self::A => (50, 0, 0, 0),
            Self::B => (5, 0, 0, 0),
            Self::C => (0, 0, 0, 0),
            Self::D => (0, 5, 0, 0),
            Self::E => (0, 5, 95, 0),
            Self::F => (0, 0, 0, 50),
        };
        Mix { update, insert, scan, modify }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A YCSB workload: which one, size and seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ycsb {
    /// Which workload.
    pub dialect: Dialect,
    /// Records to begin with.
    pub records: u32,
    /// Seed of every stream.
    pub seed: u64,
    /// Whether clients commit every transaction that can commit.
    pub giving_up: GivingUp,
    /// Records that a client is expected to insert: the key space over which its wishes are spread has
    /// room for twice as many, as in the published program.
    pub inserts: u64,
}

impl Ycsb {
    /// The workload with `records` records, whose clients never give up.
    #[must_use]
    pub const fn new(dialect: Dialect, records: u32, seed: u64) -> Self {
        Self { dialect, records, seed, giving_up: GivingUp::Never, inserts: 0 }
    }

    /// The same, of which a client makes so many requests. No more
    /// insertions are expected than ten times the records of the load, so that draws end.
    #[must_use]
    pub fn with_requests(self, requests: u64) -> Self {
        let inserts = requests.saturating_mul(self.dialect.mix().insert) / 100;
        Self { inserts: inserts.min(10 * u64::from(self.records)), ..self }
    }
}

impl Workload for Ycsb {
    type Tables = Table;
    type Terminal = Client;

    fn name(&self) -> String {
        format!("ycsb/{}", self.dialect)
    }

    fn identity(&self) -> String {
        format!("ycsb/{}/{}", self.records, self.seed)
    }

    fn classes(&self) -> &'static [&'static str] {
        &["read", "update", "insert", "scan", "read-modify-write"]
    }

    fn tables<E>(
        &self,
        mut open: impl FnMut(&'static str) -> Result<Table, E>,
    ) -> Result<Table, E> {
        open(TABLE)
    }

    fn load(&self, table: Table, put: Put<'_>) -> Result<(), EngineError> {
        let mut keys: Vec<(String, Record)> =
            (0..self.records).map(Record::loaded).map(|record| (record.key(), record)).collect();
        keys.sort_unstable();
        keys.into_iter()
            .try_for_each(|(key, record)| put(table, key.as_bytes(), &record.value(Writer::LOAD)))
    }

    fn row_count(&self) -> u64 {
        u64::from(self.records)
    }

    fn loaded_bytes(&self) -> u64 {
        self.row_count() * u64::from(ENTRY_SIZE)
    }

    fn contents(&self, txns: u64, _clients: u32) -> Vec<Content> {
        let rows = self.row_count() + txns * self.dialect.mix().insert / 100;
        vec![Content { rows, entry_size: ENTRY_SIZE, edges: 0 }]
    }

    fn terminal(&self, table: Table, number: u64) -> Client {
        Client::new(self, table, number)
    }

    fn verify<S: Store>(&self, store: &S, acknowledged: &Acknowledged) -> Result<(), BenchError> {
        audit::verify(self, store, acknowledged)
    }
}
