//! Index workloads: one table of short keys and pointers, one request a transaction.
//!
//! Owns the workloads of the two papers on indexes. Of the lazy-update B+-tree: keys made of names,
//! 540,936 to begin with, queries and updates four to one or one to four, inserts alone or with
//! deletes. Of Lazy-Split LRU: 100,000 uniform 4-byte keys, requests on one key and on ranges of ten.
//! `aggregation` stands for the paper's OLAP trace, which is not public: 1.5 % of the requests write;
//! `oltp`, the index requests of TPC-C, for its OLTP trace, of which 74.1 % write.
//!
//! - **X1** There is one client: its draws depend on its own changes.
//! - **X2** The rows that the index must hold follow from the number of commits alone.

mod client;
mod model;
mod names;
mod oltp;

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use flagstone_engine::{EngineError, Table};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Acknowledged, Put, Terminal as _, Workload};
use crate::bench::BenchError;
use crate::sizing::{Content, Estimate};
use crate::store::Store;

pub use client::Client;
pub use names::{ORIGIN, Skew};

pub(crate) use model::Request;

use model::Rows;
use oltp::Oltp;

/// Rows of a request on a range.
const RANGE_ROWS: usize = 10;
/// Commits that may have become durable without having returned.
const AHEAD_MAX: u64 = 1;
/// Name of the table.
const TABLE: &str = "index";

/// Which requests come, in thousandths; the rest are modifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Queries.
    pub select: u16,
    /// New keys.
    pub insert: u16,
    /// Keys that go.
    pub delete: u16,
    /// Requests on a range of ten keys instead of one.
    pub range: u16,
}

/// Where keys come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Names of people, 8 bytes.
    Names,
    /// Even numbers of 4 bytes.
    Uniform,
}

/// Bytes of a key.
#[derive(Clone, Copy, Debug)]
struct KeyBytes {
    bytes: [u8; 8],
    start: usize,
}

impl KeyBytes {
    fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl Keys {
    /// Largest key.
    #[must_use]
    pub const fn max(self) -> u64 {
        match self {
            Self::Names => u64::MAX,
            Self::Uniform => u32::MAX as u64,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Names => "Names",
            Self::Uniform => "Uniform",
        }
    }

    pub(crate) const fn size(self) -> usize {
        match self {
            Self::Names => 8,
            Self::Uniform => 4,
        }
    }

    const fn encode(self, key: u64) -> KeyBytes {
        KeyBytes { bytes: key.to_be_bytes(), start: 8 - self.size() }
    }

    fn decode(self, bytes: &[u8]) -> Option<u64> {
        (bytes.len() == self.size())
            .then(|| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }
}

/// Which workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    /// Names; 80 % queries, 20 % inserts.
    WQueryInsert,
    /// Names; 20 % queries, 80 % inserts.
    WUpdateInsert,
    /// Names; 80 % queries; of the updates 60 % inserts, 40 % deletes.
    #[default]
    WQueryMix,
    /// Names; 20 % queries; of the updates 60 % inserts, 40 % deletes.
    WUpdateMix,
    /// Uniform; 10 % queries, the rest in equal parts.
    WriteIntensive,
    /// Uniform; 90 % queries, 3 % inserts, 3 % deletes, 4 % modifications.
    ReadIntensive,
    /// Uniform; equal parts.
    Random,
    /// Uniform; ranges alone, 1.5 % of them modifications.
    Aggregation,
    /// The index requests of TPC-C; 74.1 % write.
    Oltp,
    /// Uniform; queries alone.
    #[serde(rename = "writes-0")]
    Writes0,
    /// Uniform; 10 % write, in equal parts, as in the variants below.
    #[serde(rename = "writes-10")]
    Writes10,
    /// Uniform; 30 % write.
    #[serde(rename = "writes-30")]
    Writes30,
    /// Uniform; 50 % write.
    #[serde(rename = "writes-50")]
    Writes50,
    /// Uniform; 70 % write.
    #[serde(rename = "writes-70")]
    Writes70,
    /// Uniform; 90 % write.
    #[serde(rename = "writes-90")]
    Writes90,
    /// Uniform; all write.
    #[serde(rename = "writes-100")]
    Writes100,
}

impl Dialect {
    /// Every workload.
    pub const ALL: [Self; 16] = [
        Self::WQueryInsert,
        Self::WUpdateInsert,
        Self::WQueryMix,
        Self::WUpdateMix,
        Self::WriteIntensive,
        Self::ReadIntensive,
        Self::Random,
        Self::Aggregation,
        Self::Oltp,
        Self::Writes0,
        Self::Writes10,
        Self::Writes30,
        Self::Writes50,
        Self::Writes70,
        Self::Writes90,
        Self::Writes100,
    ];

    /// Name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::WQueryInsert => "w-query-insert",
            Self::WUpdateInsert => "w-update-insert",
            Self::WQueryMix => "w-query-mix",
            Self::WUpdateMix => "w-update-mix",
            Self::WriteIntensive => "write-intensive",
            Self::ReadIntensive => "read-intensive",
            Self::Random => "random",
            Self::Aggregation => "aggregation",
            Self::Oltp => "oltp",
            Self::Writes0 => "writes-0",
            Self::Writes10 => "writes-10",
            Self::Writes30 => "writes-30",
            Self::Writes50 => "writes-50",
            Self::Writes70 => "writes-70",
            Self::Writes90 => "writes-90",
            Self::Writes100 => "writes-100",
        }
    }

    /// The workload called `name`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.name() == name)
    }

    /// Its keys.
    #[must_use]
    pub const fn keys(self) -> Keys {
        match self {
            Self::WQueryInsert | Self::WUpdateInsert | Self::WQueryMix | Self::WUpdateMix => {
                Keys::Names
            }
            _ => Keys::Uniform,
        }
    }

    /// Its requests.
    #[must_use]
    pub const fn mix(self) -> Mix {
        let (select, insert, delete, range) = match self {
            Self::WQueryInsert => (800, 200, 0, 0),
            Self::WUpdateInsert => (200, 800, 0, 0),
            Self::WQueryMix => (800, 120, 80, 0),
            Self::WUpdateMix => (200, 480, 320, 0),
            Self::WriteIntensive => (100, 300, 300, 100),
            Self::ReadIntensive => (900, 30, 30, 100),
            Self::Random => (250, 250, 250, 100),
            Self::Aggregation => (985, 0, 0, 1000),
            Self::Oltp => (259, 109, 32, 0),
            Self::Writes0 => (1000, 0, 0, 100),
            Self::Writes10 => (900, 33, 33, 100),
            Self::Writes30 => (700, 100, 100, 100),
            Self::Writes50 => (500, 167, 167, 100),
            Self::Writes70 => (300, 233, 233, 100),
            Self::Writes90 => (100, 300, 300, 100),
            Self::Writes100 => (0, 333, 333, 100),
        };
        Mix { select, insert, delete, range }
    }

    /// Profile of the chip on which its paper runs.
    #[must_use]
    pub const fn profile(self) -> &'static str {
        match self.keys() {
            Keys::Names => "lazy-slc",
            Keys::Uniform => "ls-lru-nand",
        }
    }

    /// Rows to begin with, at scale 1.
    const fn loaded_count(self) -> u64 {
        match self.keys() {
            Keys::Names => 540_936,
            Keys::Uniform => 100_000,
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A request on one key, without its effect on an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Look a key up.
    Select(u64),
    /// A new key.
    Insert(u64),
    /// A key that goes.
    Delete(u64),
}

/// Endless requests, each committed as it is drawn: the client's requests.
#[derive(Debug)]
pub(crate) struct Requests {
    rows: Arc<Rows>,
    mix: Mix,
    draws: super::Draws,
}

impl Requests {
    pub(crate) fn next(&mut self) -> Request {
        let rows = Arc::make_mut(&mut self.rows);
        let request = rows.request(&self.mix, &mut self.draws);
        rows.apply(&request);
        request
    }

    /// The pointer of a key after the requests so far.
    pub(crate) fn get(&self, key: u64) -> Option<u32> {
        self.rows.get(key)
    }

    /// Rows that a request on a range finds, from `key` on.
    pub(crate) fn range(&self, key: u64) -> Vec<(u64, u32)> {
        self.rows.iter_from(key).take(RANGE_ROWS).collect()
    }

    /// All rows.
    pub(crate) fn all(&self) -> Vec<(u64, u32)> {
        self.rows.iter().collect()
    }
}

/// The requests on one key.
#[derive(Debug)]
pub(crate) struct Steps(Requests);

impl Iterator for Steps {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        loop {
            return Some(match self.0.next() {
                Request::Select(key) => Step::Select(key),
                Request::Insert(rows) => Step::Insert(rows.first()?.0),
                Request::Delete(keys) => Step::Delete(*keys.first()?),
                Request::SelectRange(_) | Request::Modify(_) => continue,
            });
        }
    }
}

/// An index workload: dialect, size and seed.
#[derive(Clone, Debug)]
pub struct Index {
    /// Which workload.
    pub dialect: Dialect,
    /// Thousandths of the rows of the papers.
    thousandths: u64,
    /// Seed of every stream.
    pub seed: u64,
    rows: OnceLock<Arc<Rows>>,
}

impl Index {
    /// `scale` times the rows of the papers.
    #[must_use]
    pub const fn new(dialect: Dialect, scale: u32, seed: u64) -> Self {
        Self::small(dialect, scale as u64 * 1000, seed)
    }

    /// So many thousandths of the rows of the papers.
    #[must_use]
    pub const fn small(dialect: Dialect, thousandths: u64, seed: u64) -> Self {
        Self { dialect, thousandths, seed, rows: OnceLock::new() }
    }

    fn loaded_count(&self) -> u64 {
        if self.dialect == Dialect::Oltp {
            return Oltp::new(self.thousandths).keys().count() as u64;
        }
        self.dialect.loaded_count() * self.thousandths / 1000
    }

    /// The rows to begin with.
    fn rows(&self) -> Arc<Rows> {
        Arc::clone(self.rows.get_or_init(|| self.shared_rows()))
    }

    /// The rows, drawn once for runs of equal size that follow each other.
    fn shared_rows(&self) -> Arc<Rows> {
        static LAST: Mutex<Option<(String, Arc<Rows>)>> = Mutex::new(None);
        let identity = self.identity();
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((drawn, rows)) = &*last
            && *drawn == identity
        {
            return Arc::clone(rows);
        }
        let rows = Arc::new(Rows::loaded(self));
        *last = Some((identity, Arc::clone(&rows)));
        rows
    }

    /// How evenly the keys to begin with are spread.
    #[must_use]
    pub fn skew(&self) -> Skew {
        let keys: Vec<u64> = self.rows().iter().map(|(key, _)| key).collect();
        Skew::of(&keys, self.dialect.keys().max())
    }

    /// The keys to begin with, in the order in which they were drawn.
    pub(crate) fn keys_in_order(&self) -> Vec<u64> {
        self.rows().in_order().to_vec()
    }

    /// The requests of the client.
    pub(crate) fn requests(&self) -> Requests {
        let mut rows = self.rows();
        Arc::make_mut(&mut rows);
        Requests { rows, mix: self.dialect.mix(), draws: super::Draws::new(self.seed, 0) }
    }

    /// The client's requests on one key.
    pub(crate) fn steps(&self) -> Steps {
        Steps(self.requests())
    }

    /// Rows that a request on a range reads.
    pub(crate) const fn range_rows() -> usize {
        RANGE_ROWS
    }

    /// The rows to begin with, in the order in which they are loaded.
    pub(crate) fn rows_to_load(&self) -> Vec<(u64, u32)> {
        let rows = self.rows();
        match self.dialect.keys() {
            Keys::Names => rows.iter().collect(),
            // As they were drawn: the leaves of Lazy-Split LRU's trees have grown by splits.
            Keys::Uniform => rows.drawn().collect(),
        }
    }

    const fn entry_size(&self) -> u64 {
        self.dialect.keys().size() as u64 + size_of::<u32>() as u64
    }
}

impl Workload for Index {
    type Tables = Table;
    type Terminal = Client;

    fn name(&self) -> String {
        format!("index/{}", self.dialect)
    }

    fn identity(&self) -> String {
        let rows = if self.dialect == Dialect::Oltp { "Oltp" } else { self.dialect.keys().name() };
        format!("index/{rows}/{}/{}", self.thousandths, self.seed)
    }

    fn classes(&self) -> &'static [&'static str] {
        &["select", "insert", "delete", "modify"]
    }

    fn tables<E>(
        &self,
        mut open: impl FnMut(&'static str) -> Result<Table, E>,
    ) -> Result<Table, E> {
        open(TABLE)
    }

    fn load(&self, table: Table, put: Put<'_>) -> Result<(), EngineError> {
        let keys = self.dialect.keys();
        self.rows_to_load().into_iter().try_for_each(|(key, pointer)| {
            put(table, keys.encode(key).as_slice(), &pointer.to_le_bytes())
        })
    }

    fn row_count(&self) -> u64 {
        self.loaded_count()
    }

    fn loaded_bytes(&self) -> u64 {
        self.loaded_count() * self.entry_size()
    }

    fn contents(&self, txns: u64, _clients: u32) -> Vec<Content> {
        let Mix { insert, delete, range, .. } = self.dialect.mix();
        let rows_a_request = 1000 + u64::from(range) * (RANGE_ROWS as u64 - 1);
        let net = u64::from(insert.saturating_sub(delete)) * rows_a_request;
        let growth = match self.dialect {
            Dialect::Oltp => txns * oltp::GROWTH / 1000,
            _ => txns * net / 1_000_000,
        };
        let rows = self.loaded_count() + growth;
        vec![Content { rows, entry_size: self.entry_size() as u32, edges: 0 }]
    }

    fn first_estimate(&self, clients: u32) -> Estimate {
        // Leaves that split where keys come at random are ln 2 full (Yao 1978).
        Estimate { live_ratio: 1.0 / std::f64::consts::LN_2, ..Estimate::for_clients(clients) }
    }

    fn terminal(&self, table: Table, number: u64) -> Client {
        Client::new(self, table, number)
    }

    fn verify<S: Store>(&self, store: &S, acknowledged: &Acknowledged) -> Result<(), BenchError> {
        let keys = self.dialect.keys();
        let mut found: Vec<Option<(u64, u32)>> = Vec::new();
        store.visit(&[TABLE], &mut |_, key, value| {
            let pointer = value.try_into().ok().map(u32::from_le_bytes);
            found.push(keys.decode(key).zip(pointer));
        })?;
        let returned: u64 = acknowledged.values().flatten().sum();
        let table = store.table(TABLE)?;
        let mut client = Client::new(self, table, 0);
        (0..returned).for_each(|_| client.next(super::Outcome::Commit));
        for _ in 0..=AHEAD_MAX {
            if client.rows().iter().map(Some).eq(found.iter().copied()) {
                return Ok(());
            }
            client.next(super::Outcome::Commit);
        }
        let first = Client::fault(self, table, returned, &found);
        Err(Fault { commits: returned, found: found.len(), first }.into())
    }
}

/// The index does not hold the rows that the commits leave.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{found} keys after {commits} commits: {first}")]
pub struct Fault {
    /// Commits that returned.
    pub commits: u64,
    /// Keys in the table.
    pub found: usize,
    /// The first difference.
    pub first: String,
}

impl Client {
    /// The first difference between the table's rows and the rows that `commits` leave.
    fn fault(index: &Index, table: Table, commits: u64, found: &[Option<(u64, u32)>]) -> String {
        let mut client = Self::new(index, table, 0);
        (0..commits).for_each(|_| client.next(super::Outcome::Commit));
        let expected: Vec<_> = client.rows().iter().map(Some).collect();
        let place = expected.iter().zip(found).position(|(expected, found)| expected != found);
        let place = place.unwrap_or(expected.len().min(found.len()));
        let at = |rows: &[Option<(u64, u32)>]| format!("{:?}", rows.get(place));
        format!("entry {place} is {}, not {}", at(found), at(&expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Outcome;

    fn keys_of(index: &Index) -> Vec<u64> {
        index.rows().iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn equal_seeds_begin_with_equal_rows_and_go_on_alike() {
        let new = |seed| Index::small(Dialect::WUpdateMix, 4, seed);
        assert_eq!(keys_of(&new(3)), keys_of(&new(3)));
        assert_ne!(keys_of(&new(3)), keys_of(&new(4)));
        let table = flagstone_engine::table_with_id(2);
        let after = |seed| {
            let mut client = Client::new(&new(seed), table, 0);
            (0..2000).for_each(|_| client.next(Outcome::Commit));
            client.rows().iter().collect::<Vec<_>>()
        };
        assert_eq!(after(3), after(3));
    }

    #[test]
    fn an_aborted_request_changes_nothing() {
        let index = Index::small(Dialect::WriteIntensive, 10, 1);
        let mut client = Client::new(&index, flagstone_engine::table_with_id(2), 0);
        (0..500).for_each(|_| client.next(Outcome::Abort));
        assert_eq!(
            client.rows().iter().collect::<Vec<_>>(),
            index.rows().iter().collect::<Vec<_>>()
        );
    }

    #[test]
    fn requests_come_in_the_shares_of_their_dialect() {
        // Requests of `Oltp` come in transactions, whose shares its own test counts.
        for dialect in Dialect::ALL.into_iter().filter(|one| *one != Dialect::Oltp) {
            let index = Index::small(dialect, 10, 1);
            let mut client = Client::new(&index, flagstone_engine::table_with_id(2), 0);
            let mut counts = [0_u32; 4];
            for _ in 0..20_000 {
                counts[client.class()] += 1;
                client.next(Outcome::Commit);
            }
            let Mix { select, insert, delete, .. } = dialect.mix();
            let modify = 1000 - select - insert - delete;
            for (count, share) in counts.into_iter().zip([select, insert, delete, modify]) {
                let expected = u32::from(share) * 20;
                assert!(count.abs_diff(expected) < 300, "{dialect}: {counts:?}");
            }
        }
    }

    #[test]
    fn names_crowd_and_numbers_do_not() {
        let names = Index::small(Dialect::WQueryMix, 100, 1).skew();
        assert!(names.fullest_hundredth > 0.03 && names.distance > 0.1, "{names:?}");
        let numbers = Index::small(Dialect::Random, 1000, 1).skew();
        assert!(numbers.fullest_hundredth < 0.012 && numbers.distance < 0.01, "{numbers:?}");
    }
}
