//! Read-only snapshots.

use std::fmt;
use std::ops::RangeBounds;

use flagstone_engine::{ScanRange, Table, blocking};
use flagstone_nand::AnyNand;

use super::rows::{KeyValue, Range};
use super::sound::SoundRows;
use crate::ReadError;

/// The database as it was at one durable commit. Never waits for transactions.
///
/// Old versions that the snapshot needs stay on the device while it lives. When the device needs their space,
/// the oldest snapshot ends, and its reads give [`ReadError::SnapshotTooOld`]. A named snapshot
/// ([`Database::create_named_snapshot`](super::Database::create_named_snapshot)) stays until it is dropped.
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("db");
/// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
/// let table = db.table("t")?;
/// let mut txn = db.begin();
/// txn.put(table, b"a", b"1")?;
/// txn.commit()?;
///
/// let before = db.snapshot()?;
/// let mut txn = db.begin();
/// txn.put(table, b"a", b"2")?;
/// txn.put(table, b"b", b"3")?;
/// txn.commit()?;
///
/// assert_eq!(before.get(table, b"a")?.as_deref(), Some(&b"1"[..]));
/// assert_eq!(before.len(table)?, 1);
/// assert_eq!(db.snapshot()?.last(table)?, Some((b"b".to_vec(), b"3".to_vec())));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Snapshot {
    inner: blocking::Snapshot<AnyNand>,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Snapshot {
    pub(super) const fn new(inner: blocking::Snapshot<AnyNand>) -> Self {
        Self { inner }
    }

    /// The table of that name in the snapshot: a table that was dropped or renamed since is found by its name
    /// at that time.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::get`].
    pub fn table(&self, name: &str) -> Result<Option<Table>, ReadError> {
        self.inner.table(name).map_err(ReadError::of)
    }

    /// Names of all tables of the snapshot, in order.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::get`].
    pub fn tables(&self) -> Result<Vec<String>, ReadError> {
        self.inner.tables().map_err(ReadError::of)
    }

    /// All tables of the snapshot, in order of their names.
    pub(crate) fn named_tables(&self) -> Result<Vec<(String, Table)>, ReadError> {
        self.inner.named_tables().map_err(ReadError::of)
    }

    /// The value of `key`.
    ///
    /// # Errors
    ///
    /// `SnapshotTooOld` when the snapshot was ended to free its space; `ForeignTable` for a table of another
    /// database, or of another kept snapshot.
    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        self.inner.get(table, key).map_err(ReadError::of)
    }

    /// Whether `key` has a value. A value that has pages of its own is not loaded.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::get`].
    pub fn contains_key(&self, table: Table, key: &[u8]) -> Result<bool, ReadError> {
        self.inner.contains_key(table, key).map_err(ReadError::of)
    }

    /// Rows of a range in ascending order; [`Range::rev`] turns it around.
    pub fn range<'a>(&'a self, table: Table, bounds: impl RangeBounds<&'a [u8]>) -> Range<'a> {
        Range::new(self.inner.range(table, bounds))
    }

    /// Rows of a table in ascending order, past damage: keys that do not read are given as a range, followed
    /// by the rows behind it.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// use flagstone::salvage::SoundRow;
    ///
    /// let table = db.table("t")?;
    /// let mut txn = db.begin();
    /// txn.put(table, b"a", b"1")?;
    /// txn.commit()?;
    /// for row in db.snapshot()?.sound_rows(table) {
    ///     match row? {
    ///         SoundRow::Row((key, _value)) => assert_eq!(key, b"a"),
    ///         SoundRow::Missing(range) => println!("{:?} to {:?}: {}", range.low, range.high, range.error),
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sound_rows(&self, table: Table) -> SoundRows<'_> {
        let end_of = move |key: &[u8]| self.inner.end_of_leaf(table, key);
        SoundRows::new(self.range(table, ..), Box::new(end_of))
    }

    /// Rows whose keys start with `prefix`.
    pub fn prefix(&self, table: Table, prefix: &[u8]) -> Range<'_> {
        Range::new(self.inner.prefix(table, prefix))
    }

    pub(crate) fn rows(&self, table: Table, range: ScanRange) -> Range<'_> {
        Range::new(self.inner.rows(table, range))
    }

    /// The first row.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::get`].
    pub fn first(&self, table: Table) -> Result<Option<KeyValue>, ReadError> {
        self.inner.first(table).map_err(ReadError::of)
    }

    /// The last row.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::get`].
    pub fn last(&self, table: Table) -> Result<Option<KeyValue>, ReadError> {
        self.inner.last(table).map_err(ReadError::of)
    }

    /// How many rows the table has.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::get`].
    pub fn len(&self, table: Table) -> Result<u64, ReadError> {
        self.inner.len(table).map_err(ReadError::of)
    }
}
