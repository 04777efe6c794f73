//! The client of an index: one request a transaction.

use std::sync::Arc;

use flagstone_engine::{Direction, ScanRange, Table};

use super::model::{Request, Rows};
use super::{Index, Keys, Mix, RANGE_ROWS};
use crate::workload::{Draws, Intent, Operations, Outcome, Scan, Terminal};

/// Endless requests, each a transaction.
#[derive(Clone, Debug)]
pub struct Client {
    table: Table,
    keys: Keys,
    mix: Mix,
    rows: Arc<Rows>,
    draws: Draws,
    request: Request,
    /// Keys of the request that are done.
    done: usize,
    scan: Option<Scan>,
    value: Vec<u8>,
}

impl Client {
    pub(super) fn new(index: &Index, table: Table, number: u64) -> Self {
        let (keys, mix) = (index.dialect.keys(), index.dialect.mix());
        let mut rows = index.rows();
        let mut draws = Draws::new(index.seed, number);
        let request = Arc::make_mut(&mut rows).request(&mix, &mut draws);
        Self { table, keys, mix, rows, draws, request, done: 0, scan: None, value: Vec::new() }
    }

    /// Rows of the index after the requests so far.
    pub(super) fn rows(&self) -> &Rows {
        &self.rows
    }

    fn begin(&mut self) {
        self.done = 0;
        self.scan = None;
    }

    fn put<O: Operations>(&mut self, engine: &mut O, rows: &[(u64, u32)]) -> Result<(), O::Stop> {
        while let Some((key, pointer)) = rows.get(self.done) {
            engine.put(self.table, self.keys.encode(*key).as_slice(), &pointer.to_le_bytes())?;
            self.done += 1;
        }
        Ok(())
    }

    fn delete<O: Operations>(&mut self, engine: &mut O, keys: &[u64]) -> Result<(), O::Stop> {
        while let Some(key) = keys.get(self.done) {
            engine.delete(self.table, self.keys.encode(*key).as_slice())?;
            self.done += 1;
        }
        Ok(())
    }

    fn select_range<O: Operations>(&mut self, engine: &mut O, key: u64) -> Result<(), O::Stop> {
        let from = || ScanRange { low: self.keys.encode(key).as_slice().to_vec(), high: None };
        let new = || Scan::new(from(), Direction::Forward, RANGE_ROWS);
        let mut scan = self.scan.take().unwrap_or_else(new);
        let outcome = engine.scan(self.table, &mut scan);
        self.scan = Some(scan);
        outcome
    }
}

impl Terminal for Client {
    fn class(&self) -> usize {
        match self.request {
            Request::Select(_) | Request::SelectRange(_) => 0,
            Request::Insert(_) => 1,
            Request::Delete(_) => 2,
            Request::Modify(_) => 3,
        }
    }

    fn advance<O: Operations>(&mut self, engine: &mut O) -> Result<Outcome, O::Stop> {
        // Taken out while the engine is asked, and put back with any answer.
        let request = std::mem::replace(&mut self.request, Request::Delete(Vec::new()));
        let done = match &request {
            Request::Select(key) => {
                let key = self.keys.encode(*key);
                engine.get(self.table, key.as_slice(), Intent::Read, &mut self.value).map(drop)
            }
            Request::SelectRange(key) => self.select_range(engine, *key),
            Request::Insert(rows) | Request::Modify(rows) => self.put(engine, rows),
            Request::Delete(keys) => self.delete(engine, keys),
        };
        self.request = request;
        done.map(|()| Outcome::Commit)
    }

    fn restart(&mut self) {
        self.begin();
    }

    fn next(&mut self, ended: Outcome) {
        let rows = Arc::make_mut(&mut self.rows);
        if ended == Outcome::Commit {
            rows.apply(&self.request);
        }
        self.request = rows.request(&self.mix, &mut self.draws);
        self.begin();
    }
}
