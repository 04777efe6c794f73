//! Operations that workloads ask of an engine inside one transaction.

use flagstone_engine::{Direction, Row, ScanRange, Table};

/// Purpose of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// For its own sake: others may read too.
    Read,
    /// For a change of the same key: as SELECT FOR UPDATE.
    Change,
}

/// A run of bytes within a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First byte.
    pub offset: usize,
    /// Number of bytes.
    pub size: usize,
}

/// Operations inside one transaction.
///
/// `Stop` ends a call early: it is a wait that the caller resolves before it calls again, or an
/// error.
pub trait Operations {
    /// Why an operation did not complete.
    type Stop;

    /// Reads a value into `out`; `false` when the key is absent.
    ///
    /// # Errors
    ///
    /// The engine's reason to stop.
    fn get(
        &mut self,
        table: Table,
        key: &[u8],
        intent: Intent,
        out: &mut Vec<u8>,
    ) -> Result<bool, Self::Stop>;

    /// Reads the bytes `part` of a value into `out`; `false` when the key is absent.
    ///
    /// # Errors
    ///
    /// The engine's reason to stop.
    fn get_part(
        &mut self,
        table: Table,
        key: &[u8],
        part: Part,
        intent: Intent,
        out: &mut Vec<u8>,
    ) -> Result<bool, Self::Stop>;

    /// Writes a whole value, whether the key exists or not.
    ///
    /// # Errors
    ///
    /// The engine's reason to stop.
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), Self::Stop>;

    /// Overwrites `bytes` at `offset` of a value that exists.
    ///
    /// # Errors
    ///
    /// The engine's reason to stop.
    fn patch(
        &mut self,
        table: Table,
        key: &[u8],
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), Self::Stop>;

    /// Removes a key, whether it exists or not.
    ///
    /// # Errors
    ///
    /// The engine's reason to stop.
    fn delete(&mut self, table: Table, key: &[u8]) -> Result<(), Self::Stop>;

    /// Reads on in `scan` until its range or its limit is reached. No other transaction can put a
    /// row into the range read until this one ends.
    ///
    /// # Errors
    ///
    /// The engine's reason to stop; the rows found so far stay in `scan`.
    fn scan(&mut self, table: Table, scan: &mut Scan) -> Result<(), Self::Stop>;
}

/// A range under way: its rest, and the rows found.
#[derive(Clone, Debug)]
pub struct Scan {
    rest: Option<ScanRange>,
    direction: Direction,
    limit: usize,
    rows: Vec<Row>,
}

impl Scan {
    /// The first `limit` rows of `range` in `direction`.
    #[must_use]
    pub fn new(range: ScanRange, direction: Direction, limit: usize) -> Self {
        Self { rest: Some(range), direction, limit, rows: Vec::new() }
    }

    /// Rows found so far, in the order of the scan.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Reads one piece with `read`, which is given the rest of the range, the direction, the number
    /// of rows wanted and the list to append them to, and returns the new rest; `false` when
    /// nothing is left to read.
    ///
    /// # Errors
    ///
    /// That of `read`.
    pub fn step<E>(
        &mut self,
        read: impl FnOnce(&ScanRange, Direction, usize, &mut Vec<Row>) -> Result<Option<ScanRange>, E>,
    ) -> Result<bool, E> {
        let wanted = self.limit.saturating_sub(self.rows.len());
        let Some(range) = self.rest.as_ref().filter(|_| wanted > 0) else { return Ok(false) };
        self.rest = read(range, self.direction, wanted, &mut self.rows)?;
        Ok(true)
    }
}
