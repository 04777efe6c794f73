//! Loads: many rows that come in the order of their keys, a large commit at a time.

use flagstone_engine::{Durability, Table};
use flagstone_space::Bill;

use super::{Database, Transaction};
use crate::Error;

/// Rows that a load stored, and the cost of its commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadReport {
    /// Rows that are durable.
    pub rows: u64,
    /// Commits that they took.
    pub commits: u64,
    /// Work on the flash for these rows.
    pub bill: Bill,
}

/// Why a load ended early. Rows of earlier commits stay stored.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", how_far(*stored))]
#[non_exhaustive]
pub struct LoadError {
    /// Number of rows from the beginning that are durable: a load that is continued begins behind them.
    pub stored: u64,
    /// Error that ended the load.
    pub source: Error,
}

/// How far a load came, as the beginning of a sentence.
fn how_far(stored: u64) -> String {
    match stored {
        0 => String::from("the load stored no row"),
        1 => String::from("the load ended after one row, which is stored"),
        rows => format!("the load ended after {rows} rows, which are stored"),
    }
}

/// Memory of a row that waits for its commit, beside key and value.
pub(crate) const ROW_OVERHEAD: usize = 64;

impl Database {
    /// Stores rows that come in ascending order of their keys, and gives their number, which may be 0.
    ///
    /// Rows that fall between two neighbours of the table, or behind its last row, are written once: a commit
    /// consists of the leaves that they fill, and the log holds only the places of these leaves. Other rows
    /// are stored as any transaction stores them. Commits are as large as memory allows, each is durable
    /// before the next begins, and each is there as a whole or not at all.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// use flagstone::{Database, Options};
    ///
    /// let db = Database::create(&path, &Options::default())?;
    /// let squares = db.table("squares")?;
    /// let rows = (0..10_000_u64).map(|n| (n.to_be_bytes(), (n * n).to_be_bytes()));
    /// assert_eq!(db.load_sorted(squares, rows)?.rows, 10_000);
    ///
    /// let found = db.snapshot()?.get(squares, &99_u64.to_be_bytes())?;
    /// assert_eq!(found.as_deref(), Some(&9801_u64.to_be_bytes()[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Unsorted`] when a key is not above the one before it; the errors of
    /// [`Transaction::put`] and [`Transaction::commit`]. Each says how many rows are stored.
    pub fn load_sorted<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        table: Table,
        rows: impl IntoIterator<Item = (K, V)>,
    ) -> Result<LoadReport, LoadError> {
        let mut load = Load {
            database: self,
            table,
            bytes_max: self.batch_bytes(),
            report: LoadReport::default(),
            transaction: None,
            rows: 0,
            bytes: 0,
            last: None,
        };
        let mut rows = rows.into_iter();
        let stored = rows.try_for_each(|(key, value)| load.put(key.as_ref(), value.as_ref()));
        match stored.and_then(|()| load.commit()) {
            Ok(()) => Ok(load.report),
            Err(source) => Err(LoadError { stored: load.report.rows, source }),
        }
    }

    /// Bytes of rows that one commit may hold and stay in memory until then.
    pub(crate) fn batch_bytes(&self) -> usize {
        self.runtime().engine().load_size_max()
    }
}

/// A load under way.
struct Load<'a> {
    database: &'a Database,
    table: Table,
    bytes_max: usize,
    report: LoadReport,
    /// Holds the rows that wait for their commit.
    transaction: Option<Transaction>,
    rows: u64,
    bytes: usize,
    last: Option<Vec<u8>>,
}

impl Load<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        if self.last.as_deref().is_some_and(|last| key <= last) {
            return Err(Error::Unsorted { row: self.report.rows + self.rows });
        }
        let size = key.len() + value.len() + ROW_OVERHEAD;
        if self.bytes + size > self.bytes_max {
            self.commit()?;
        }
        let transaction = self.transaction.get_or_insert_with(|| self.database.begin());
        transaction.put(self.table, key, value)?;
        let last = self.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        (self.rows, self.bytes) = (self.rows + 1, self.bytes + size);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Error> {
        let Some(transaction) = self.transaction.take() else { return Ok(()) };
        self.report.bill += transaction.commit_with(Durability::Immediate)?.bill;
        self.report.commits += 1;
        self.report.rows += self.rows;
        (self.rows, self.bytes) = (0, 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use flagstone_nand::{Profile, SimNand};
    use flagstone_space::Cause;

    use super::*;
    use crate::Options;

    fn database() -> (Database, Table) {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(128).unwrap();
        let options = Options::default().with_memory(1 << 20);
        let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
        let table = database.table("t").unwrap();
        (database, table)
    }

    fn row(number: u32) -> ([u8; 4], [u8; 96]) {
        (number.to_be_bytes(), [number as u8; 96])
    }

    /// Goal: all pages that a load programs, log and inner nodes included, take little more than its rows.
    /// Method: 4 MB of rows, counted at the device.
    #[test]
    fn a_load_programs_little_more_than_its_rows() {
        let (database, table) = database();
        let count = 40_000;
        let report = database.load_sorted(table, (0..count).map(row)).unwrap();
        assert_eq!(report.rows, u64::from(count));
        assert!(report.commits > 10, "{report:?}");
        let pages = u64::from(count) * 100 / 2048;
        let (programs, log) = (report.bill.programs(), report.bill.programs_for(Cause::Log));
        assert!(programs * 100 < pages * 115, "{programs} for {pages}: {report:?}");
        assert!(log < 3 * report.commits, "{log} log pages: {report:?}");
        assert_eq!(database.snapshot().unwrap().range(table, ..).count(), count as usize);
        assert!(database.check().unwrap().faults.is_empty());
    }

    /// Goal: after an error the caller knows where to go on. Method: a row out of order, and one too long.
    #[test]
    fn a_load_that_ends_early_says_what_is_stored() {
        let (database, table) = database();
        let rows = (0..9_000).map(row).chain([row(17)]);
        let error = database.load_sorted(table, rows).unwrap_err();
        assert!(matches!(error.source, Error::Unsorted { row: 9_000 }), "{error}");
        assert!(error.stored > 0 && error.stored < 9_000, "{error}");
        let stored = database.snapshot().unwrap().range(table, ..).count();
        assert_eq!(stored as u64, error.stored);
        let rows = (error.stored as u32..9_000).map(row);
        database.load_sorted(table, rows).unwrap();
        assert_eq!(database.snapshot().unwrap().range(table, ..).count(), 9_000);
        let long = [(vec![0xFF; 4_000], Vec::new())];
        let error = database.load_sorted(table, long).unwrap_err();
        assert!(matches!(error.source, Error::KeyTooLong { .. }), "{error}");
        assert_eq!(error.stored, 0);
        assert!(error.to_string().starts_with("the load stored no row: key of"), "{error}");
    }

    /// Goal: a load without rows succeeds and reports 0 rows stored. Method: no rows, also into a table with
    /// rows.
    #[test]
    fn a_load_without_rows_stores_none_and_costs_nothing() {
        let (database, table) = database();
        let none = || std::iter::empty::<([u8; 4], [u8; 96])>();
        assert_eq!(database.load_sorted(table, none()).unwrap(), LoadReport::default());
        database.load_sorted(table, [row(1)]).unwrap();
        assert_eq!(database.load_sorted(table, none()).unwrap(), LoadReport::default());
        assert_eq!(database.snapshot().unwrap().range(table, ..).count(), 1);
        assert_eq!(how_far(1), "the load ended after one row, which is stored");
    }

    /// Goal: rows that fall among others are stored all the same. Method: every second row, then the rest.
    #[test]
    fn loads_may_fall_among_other_rows() {
        let (database, table) = database();
        database.load_sorted(table, (0..5_000).map(|number| row(number * 2))).unwrap();
        database.load_sorted(table, (0..5_000).map(|number| row(number * 2 + 1))).unwrap();
        let found: Vec<_> =
            database.snapshot().unwrap().range(table, ..).map(Result::unwrap).collect();
        let expected = (0..10_000).map(row).map(|(key, value)| (key.to_vec(), value.to_vec()));
        assert!(found.into_iter().eq(expected));
    }

    /// Goal: a cut after a load finds a database that opens: the record of a mount names all pages of the
    /// groups since the last checkpoint, and has room for few. Method: blocks of eight small pages.
    #[test]
    fn a_load_of_many_groups_can_be_opened_after_a_cut() {
        let profile = Profile::named("tiny").unwrap().with_block_count(400).unwrap();
        let geometry = flagstone_nand::Geometry { pages_per_block: 16, ..profile.geometry };
        let profile = Profile { geometry, ..profile };
        let options = Options::default().with_memory(256 << 10).with_log_pages(1_600);
        let options = options.with_techniques(|techniques| techniques.frame_share = 0.3);
        let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
        let table = database.table("t").unwrap();
        let count = 9_000;
        let rows = (0..count).map(|number: u32| (number.to_be_bytes(), [7; 96]));
        let report = database.load_sorted(table, rows).unwrap();
        let pages = database.stats().engine.claimed_pages;
        assert!(pages > 600, "{pages} pages are claimed: {report:?}");
        let database = Database::open_on(database.into_device().unwrap(), &options).unwrap();
        let table = database.existing_table("t").unwrap().unwrap();
        assert_eq!(database.snapshot().unwrap().range(table, ..).count(), count as usize);
    }

    /// Goal: rows that a load reports as stored are durable, with any durability of commits in the options.
    #[test]
    fn what_a_load_stores_is_durable() {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
        let options = Options::default().with_memory(1 << 20).with_durability(Durability::Deferred);
        let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
        database.table("t").unwrap();
        let database = Database::open_on(database.into_device().unwrap(), &options).unwrap();
        assert_eq!(database.tables().unwrap(), ["t"]);
        let table = database.table("t").unwrap();
        assert_eq!(database.load_sorted(table, (0..10).map(row)).unwrap().rows, 10);
        let database = Database::open_on(database.into_device().unwrap(), &options).unwrap();
        let table = database.table("t").unwrap();
        assert_eq!(database.snapshot().unwrap().range(table, ..).count(), 10);
    }
}
