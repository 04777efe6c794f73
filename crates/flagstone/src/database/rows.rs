//! Iterating over rows.

use std::fmt;

use flagstone_engine::{ScanRange, blocking};
use flagstone_nand::AnyNand;

use crate::ReadError;

/// Key and value of a row, lent by a range or a cursor.
pub type RowRef<'a> = (&'a [u8], &'a [u8]);

/// A row: key and value.
pub type KeyValue = (Vec<u8>, Vec<u8>);

/// Rows of a range. Ends after the first error.
pub struct Range<'a> {
    rows: blocking::Range<'a, AnyNand>,
}

impl fmt::Debug for Range<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows.fmt(f)
    }
}

impl<'a> Range<'a> {
    pub(super) const fn new(rows: blocking::Range<'a, AnyNand>) -> Self {
        Self { rows }
    }

    /// Place of the error that ended the range.
    pub(super) fn take_stopped(&mut self) -> Option<blocking::Stopped> {
        self.rows.take_stopped()
    }

    /// Goes on after an error: behind the row of the error, or with `rest` where it was a leaf.
    pub(super) fn go_on(&mut self, rest: Option<ScanRange>) {
        self.rows.go_on(rest);
    }

    /// The same rows in descending order; to be called before the first row is taken.
    #[must_use]
    pub fn rev(self) -> Self {
        Self { rows: self.rows.rev() }
    }

    /// Counts the rows without loading large values.
    pub(crate) fn count_rows(self) -> Result<u64, ReadError> {
        self.rows.count_rows().map_err(ReadError::of)
    }

    /// The next row, lent until the next call: as the iterator's, but without an allocation for rows that lie
    /// in memory as they are.
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
    pub fn next_row(&mut self) -> Option<Result<RowRef<'_>, ReadError>> {
        Some(self.rows.next_row()?.map_err(ReadError::of))
    }
}

impl Iterator for Range<'_> {
    type Item = Result<KeyValue, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.rows.next()?.map_err(ReadError::of))
    }
}

#[cfg(test)]
mod tests {
    use flagstone_engine::Options;
    use flagstone_nand::{Profile, SimNand};

    use crate::{Database, ReadError};

    /// Goal: reads of a snapshot that was ended say so, reads of large values too, and its ranges end there.
    /// Method: rows of a batch whose values are replaced and released before they are read.
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
        assert_eq!(rows.next(), Some(Err(ReadError::SnapshotTooOld)));
        assert_eq!(rows.next(), None);
        assert_eq!(snapshot.get(table, &[1]), Err(ReadError::SnapshotTooOld));
    }
}
