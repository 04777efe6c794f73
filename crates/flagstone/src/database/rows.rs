//! Iterating over rows: a batch of one leaf at a time.
//!
//! A batch is the leaf as it lies in memory where no change waits for it, else rows that were made up.

use std::collections::VecDeque;
use std::fmt;

use flagstone_nand::Nand;
use flagstone_space::{Bill, FrozenId};

use super::{AnyNand, RowRef};
use crate::engine::{
    Descriptor, Direction, LeafRows, LeafValue, Row, RowValue, ScanRange, SnapshotId, Step, Table,
};
use crate::error::EngineError;
use crate::lock::Xid;
use crate::runtime::{Runtime, meter};
use crate::sync::Mutex;

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
    /// One that is kept under a name.
    Kept(FrozenId),
}

impl Reader {
    /// Reads a large value of a row that it was given. A snapshot may have been ended since, and then its
    /// pages are gone.
    pub(super) fn load<D: Nand>(
        self,
        runtime: &Runtime<D>,
        descriptor: &Descriptor,
    ) -> Result<Vec<u8>, EngineError> {
        let kept = match self {
            Self::Kept(id) => Some(id),
            Self::Transaction(_) | Self::Snapshot(_) => None,
        };
        runtime.load_value_of(kept, descriptor).or_else(|error| {
            if let Self::Snapshot(id) = self {
                runtime.engine_shared().require_snapshot(id)?;
            }
            Err(error)
        })
    }
}

/// What an error of a range is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// The large value of this key; the rows behind it wait.
    Row(Vec<u8>),
    /// The leaf at the near end of what is left.
    Leaf(ScanRange),
}

/// Rows of a range. Ends after the first error.
pub struct Range<'a, D: Nand = AnyNand> {
    runtime: &'a Runtime<D>,
    reader: Reader,
    table: Table,
    rest: Option<ScanRange>,
    direction: Direction,
    batch: VecDeque<Row>,
    /// Rows before those of `batch`.
    leaf: LeafRows,
    /// The row that [`Range::next_row`] lent last, where it had to be made up.
    lent: KeyValue,
    /// Nothing comes any more.
    has_failed: bool,
    /// What the last error was about.
    stopped: Option<Stopped>,
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
            leaf: LeafRows::default(),
            lent: KeyValue::default(),
            has_failed: false,
            stopped: None,
            bill: None,
        }
    }

    /// What the error was about that ended the range.
    pub(super) fn take_stopped(&mut self) -> Option<Stopped> {
        self.stopped.take()
    }

    /// Goes on after an error: behind the row that it was about, or with `rest` where it was a leaf.
    pub(super) fn go_on(&mut self, rest: Option<ScanRange>) {
        self.has_failed = false;
        self.rest = rest.or(self.rest.take());
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
            count += (self.leaf.count() + self.batch.len()) as u64;
            self.leaf.clear();
            self.batch.clear();
        }
        Ok(count)
    }

    fn fetch(&mut self) -> Result<(), EngineError> {
        let Some(range) = self.rest.take() else { return Ok(()) };
        let fetched = self.fetch_part(&range);
        fetched.inspect_err(|_| self.stopped = Some(Stopped::Leaf(range)))
    }

    fn fetch_part(&mut self, range: &ScanRange) -> Result<(), EngineError> {
        if let Reader::Snapshot(id) = self.reader
            && let Some(rest) = self.runtime.engine_shared().read_leaf_shared(
                id,
                self.table,
                range,
                self.direction,
                &mut self.leaf,
            )
        {
            self.rest = rest;
            return Ok(());
        }
        let (reader, table, direction) = (self.reader, self.table, self.direction);
        if let Reader::Kept(id) = reader {
            self.rest = self.runtime.scan_kept(id, table, range, direction, &mut self.leaf)?;
            return Ok(());
        }
        let mut rows = Vec::new();
        let scan = |engine: &mut crate::Engine| -> Step<Option<ScanRange>> {
            rows.clear();
            match reader {
                Reader::Transaction(xid) => {
                    engine.scan(xid, table, range, direction, BATCH_COUNT, &mut rows)
                }
                Reader::Kept(_) => Ok(None),
                Reader::Snapshot(id) => {
                    engine.scan_snapshot(id, table, range, direction, BATCH_COUNT, &mut rows)
                }
            }
        };
        let xid = match reader {
            Reader::Transaction(xid) => Some(xid),
            Reader::Snapshot(_) | Reader::Kept(_) => None,
        };
        self.rest = self.metered(|| self.runtime.run_for(xid, scan))?;
        if xid.is_some() {
            // A snapshot needs what was loaded for it, merged or not.
            self.metered(|| self.runtime.merge_excess());
        }
        self.batch.extend(rows);
        Ok(())
    }

    /// Fetches until there is a row; false at the end.
    fn advance(&mut self) -> Result<bool, EngineError> {
        if self.has_failed {
            return Ok(false);
        }
        while self.leaf.count() == 0 && self.batch.is_empty() {
            if self.rest.is_none() {
                return Ok(false);
            }
            self.fetch()?;
        }
        Ok(true)
    }

    /// The next row, lent until the next call: as the iterator's, but nothing is allocated for rows as
    /// they lie in memory.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// let table = db.table("t")?;
    /// let mut txn = db.begin();
    /// (0..9_u8).try_for_each(|key| txn.put(table, &[key], &[1]))?;
    /// txn.commit()?;
    /// let snapshot = db.snapshot()?;
    /// let (mut rows, mut sum) = (snapshot.range(table, &[3][..]..), 0);
    /// while let Some(row) = rows.next_row() {
    ///     let (_key, value) = row?;
    ///     sum += u32::from(value[0]);
    /// }
    /// assert_eq!(sum, 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The range ends after the first error.
    pub fn next_row(&mut self) -> Option<Result<RowRef<'_>, EngineError>> {
        match self.advance() {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => return Some(Err(self.ended_by(error))),
        }
        if self.leaf.count() == 0 {
            let row = self.batch.pop_front()?;
            self.lent = match self.load(row) {
                Ok(row) => row,
                Err(error) => return Some(Err(error)),
            };
            return Some(Ok((&self.lent.0, &self.lent.1)));
        }
        let (runtime, bill, reader) = (self.runtime, self.bill, self.reader);
        let (key, value) = self.leaf.take()?;
        match value {
            LeafValue::Inline(value) => Some(Ok((key, value))),
            LeafValue::Large(descriptor) => {
                let load = || reader.load(runtime, &descriptor?);
                let loaded = match bill {
                    Some(bill) => meter::charging(bill, load),
                    None => load(),
                };
                match loaded {
                    Ok(value) => self.lent.1 = value,
                    Err(error) => {
                        self.has_failed = true;
                        self.stopped = Some(Stopped::Row(key.to_vec()));
                        return Some(Err(error));
                    }
                }
                Some(Ok((key, &self.lent.1)))
            }
        }
    }

    fn load(&mut self, row: Row) -> Result<KeyValue, EngineError> {
        let loaded = match row.value {
            RowValue::Inline(bytes) => Ok(bytes),
            RowValue::Large(descriptor) => {
                self.metered(|| self.reader.load(self.runtime, &descriptor))
            }
        };
        match loaded {
            Ok(value) => Ok((row.key, value)),
            Err(error) => {
                self.stopped = Some(Stopped::Row(row.key));
                Err(self.ended_by(error))
            }
        }
    }

    /// Nothing comes after an error.
    fn ended_by(&mut self, error: EngineError) -> EngineError {
        self.has_failed = true;
        error
    }
}

impl<D: Nand> Iterator for Range<'_, D> {
    type Item = Result<KeyValue, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        if !self.has_failed
            && self.leaf.count() == 0
            && let Some(row) = self.batch.pop_front()
        {
            return Some(self.load(row));
        }
        let row = self.next_row()?;
        Some(row.map(|(key, value)| (key.to_vec(), value.to_vec())))
    }
}

#[cfg(test)]
mod tests {
    use flagstone_nand::{Profile, SimNand};

    use crate::options::Options;
    use crate::{Database, EngineError};

    /// Goal: a snapshot that was ended says so, of large values too, and its ranges end there. Method: rows
    /// of a batch whose values are replaced and released before they are read.
    #[test]
    fn a_range_of_an_ended_snapshot_says_so_and_ends() {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
        let options = Options::default().with_memory(256 << 10);
        let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
        let table = database.table("t").unwrap();
        let put = |fill: u8| {
            let mut transaction = database.begin();
            (0..3).for_each(|key| transaction.put(table, &[key], &[fill; 9_000]).unwrap());
            transaction.commit().unwrap();
        };
        put(1);
        let snapshot = database.snapshot().unwrap();
        let mut rows = snapshot.range(table, ..);
        assert_eq!(rows.next(), Some(Ok((vec![0], vec![1; 9_000]))));
        assert!(database.runtime().engine().end_oldest_snapshot());
        put(2);
        database.merge().unwrap();
        assert_eq!(rows.next(), Some(Err(EngineError::SnapshotTooOld)));
        assert_eq!(rows.next(), None);
        assert_eq!(snapshot.get(table, &[1]), Err(EngineError::SnapshotTooOld));
    }
}
