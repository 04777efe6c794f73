//! Iterating over rows: a batch of one leaf at a time.

use std::collections::VecDeque;
use std::fmt;

use flagstone_nand::Nand;
use flagstone_space::Bill;
use parking_lot::Mutex;

use super::AnyNand;
use crate::engine::{Direction, Row, RowValue, ScanRange, SnapshotId, Step, Table};
use crate::error::EngineError;
use crate::lock::Xid;
use crate::runtime::{Runtime, meter};

/// Rows fetched at a time, at most.
const BATCH_COUNT: usize = 256;

/// A row: key and value.
pub type KeyValue = (Vec<u8>, Vec<u8>);

/// Who reads.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reader {
    /// A read-write transaction: rows are locked.
    Transaction(Xid),
    /// A snapshot: nothing is locked.
    Snapshot(SnapshotId),
}

/// Rows of a range. Ends after the first error.
pub struct Range<'a, D: Nand = AnyNand> {
    runtime: &'a Runtime<D>,
    reader: Reader,
    table: Table,
    rest: Option<ScanRange>,
    direction: Direction,
    batch: VecDeque<Row>,
    /// Whose bill it is when reading makes way by writing.
    bill: Option<&'a Mutex<Bill>>,
}

impl<D: Nand> fmt::Debug for Range<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range").field("rest", &self.rest).finish_non_exhaustive()
    }
}

impl<'a, D: Nand> Range<'a, D> {
    pub(super) fn new(
        runtime: &'a Runtime<D>,
        reader: Reader,
        table: Table,
        range: ScanRange,
    ) -> Self {
        let direction = Direction::Forward;
        Self {
            runtime,
            reader,
            table,
            rest: Some(range),
            direction,
            batch: VecDeque::new(),
            bill: None,
        }
    }

    /// The same rows; what reading them does to the flash is added to `bill`.
    pub(super) fn charged_to(self, bill: &'a Mutex<Bill>) -> Self {
        Self { bill: Some(bill), ..self }
    }

    fn metered<T>(&self, calls: impl FnOnce() -> T) -> T {
        match self.bill {
            Some(bill) => meter::charging(bill, calls),
            None => calls(),
        }
    }

    /// The same rows in descending order; to be called before the first row is taken.
    #[must_use]
    pub fn rev(mut self) -> Self {
        self.direction = match self.direction {
            Direction::Forward => Direction::Backward,
            Direction::Backward => Direction::Forward,
        };
        self
    }

    /// Counts the rows without loading large values.
    pub(crate) fn count_rows(mut self) -> Result<u64, EngineError> {
        let mut count = 0;
        while self.rest.is_some() {
            self.fetch()?;
            count += self.batch.len() as u64;
            self.batch.clear();
        }
        Ok(count)
    }

    fn fetch(&mut self) -> Result<(), EngineError> {
        let Some(range) = self.rest.take() else { return Ok(()) };
        let mut rows = Vec::new();
        let (reader, table, direction) = (self.reader, self.table, self.direction);
        let scan = |engine: &mut crate::Engine| -> Step<Option<ScanRange>> {
            rows.clear();
            match reader {
                Reader::Transaction(xid) => {
                    engine.scan(xid, table, &range, direction, BATCH_COUNT, &mut rows)
                }
                Reader::Snapshot(id) => {
                    engine.scan_snapshot(id, table, &range, direction, BATCH_COUNT, &mut rows)
                }
            }
        };
        let xid = match reader {
            Reader::Transaction(xid) => Some(xid),
            Reader::Snapshot(_) => None,
        };
        self.rest = self.metered(|| self.runtime.run_for(xid, scan))?;
        self.batch.extend(rows);
        Ok(())
    }

    fn load(&self, row: Row) -> Result<KeyValue, EngineError> {
        let value = match row.value {
            RowValue::Inline(bytes) => bytes,
            RowValue::Large(descriptor) => self.metered(|| self.runtime.load_value(&descriptor))?,
        };
        Ok((row.key, value))
    }
}

impl<D: Nand> Iterator for Range<'_, D> {
    type Item = Result<KeyValue, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.batch.is_empty() && self.rest.is_some() {
            if let Err(error) = self.fetch() {
                self.rest = None;
                return Some(Err(error));
            }
        }
        let row = self.batch.pop_front()?;
        Some(self.load(row))
    }
}
