//! Iterating over rows: a batch of one leaf at a time.
//!
//! A batch is the leaf as it lies in memory where no change waits for it, else a list of rows put together
//! from leaf and changes.

use std::collections::VecDeque;
use std::fmt;

use flagstone_nand::Nand;

use crate::{
    Direction, EngineError, LeafRows, LeafValue, Meter, Reader, Row, RowValue, Runtime, ScanRange,
    Table,
};

/// Key and value of a row, borrowed.
pub type RowRef<'a> = (&'a [u8], &'a [u8]);

/// A row: key and value.
pub type KeyValue = (Vec<u8>, Vec<u8>);

/// Place of an error in a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The large value of this key; the rows behind it wait.
    Row(Vec<u8>),
    /// The leaf at the near end of the remaining range.
    Leaf(ScanRange),
}

/// Rows of a range. Ends after the first error.
pub struct Range<'a, D: Nand> {
    runtime: &'a Runtime<D>,
    reader: Reader,
    table: Table,
    rest: Option<ScanRange>,
    direction: Direction,
    batch: VecDeque<Row>,
    /// Rows of a leaf, which come before the rows of `batch`.
    leaf: LeafRows,
    /// The row that [`Range::next_row`] lent last, where it had to be made up.
    lent: KeyValue,
    /// No more rows come.
    has_failed: bool,
    /// Place of the last error.
    stopped: Option<Stopped>,
    /// Bill for reads that write, to make room in memory.
    meter: Option<&'a Meter>,
}

impl<D: Nand> fmt::Debug for Range<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range").field("rest", &self.rest).finish_non_exhaustive()
    }
}

impl<'a, D: Nand> Range<'a, D> {
    /// Rows of `range`, as `reader` sees them.
    pub fn new(runtime: &'a Runtime<D>, reader: Reader, table: Table, range: ScanRange) -> Self {
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
            meter: None,
        }
    }

    /// Place of the error that ended the range.
    pub fn take_stopped(&mut self) -> Option<Stopped> {
        self.stopped.take()
    }

    /// Goes on after an error: behind the row of the error, or with `rest` where it was a leaf.
    pub fn go_on(&mut self, rest: Option<ScanRange>) {
        self.has_failed = false;
        self.rest = rest.or(self.rest.take());
    }

    /// The same rows; the work on the flash for reading them is added to the bill of `meter`.
    #[must_use]
    pub fn charged_to(self, meter: &'a Meter) -> Self {
        Self { meter: Some(meter), ..self }
    }

    fn metered<T>(&self, calls: impl FnOnce() -> T) -> T {
        match self.meter {
            Some(meter) => meter.charge(calls),
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
    ///
    /// # Errors
    ///
    /// The errors of reading a row.
    pub fn count_rows(mut self) -> Result<u64, EngineError> {
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
        let (runtime, reader, table) = (self.runtime, self.reader, self.table);
        let out = (&mut self.leaf, &mut self.batch);
        let read = || runtime.read_rows(reader, table, range, self.direction, out);
        self.rest = match self.meter {
            Some(meter) => meter.charge(read),
            None => read(),
        }?;
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

    /// The next row, lent until the next call: as the iterator's, but without an allocation for rows that lie
    /// in memory as they are.
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
        let (runtime, meter, reader) = (self.runtime, self.meter, self.reader);
        let (key, value) = self.leaf.take()?;
        match value {
            LeafValue::Inline(value) => Some(Ok((key, value))),
            LeafValue::Large(descriptor) => {
                let load = || runtime.load(reader, &descriptor?);
                let loaded = match meter {
                    Some(meter) => meter.charge(load),
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
                self.metered(|| self.runtime.load(self.reader, &descriptor))
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
