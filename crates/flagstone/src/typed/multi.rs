//! Tables with several values for one key.
//!
//! Owns nothing but a form of rows: the key and the value are the row's key, one behind the other, and
//! the row's value is empty. So the values of a key are a set in order, each is a row of its own, and
//! adding one reads and writes none of the others.

use std::fmt;
use std::marker::PhantomData;

use flagstone_engine::{ScanRange, Table};

use super::key::{EncodeKey, Finds, Key};
use super::table::{Reads, TypedRange, TypedTable, key_of};
use crate::database::{Database, Range, Transaction};
use crate::{ReadError, TableError, WriteError};

/// A table in which a key has a set of values, in order: cheap to copy, valid while the database is open.
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("db");
/// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
/// let tags = db.multi::<String, String>("tags")?;
/// let mut txn = db.begin();
/// for (page, tag) in [("home", "start"), ("news", "daily"), ("home", "public"), ("home", "start")] {
///     tags.insert(&mut txn, page, &tag.into())?;
/// }
/// tags.remove(&mut txn, "home", &"public".into())?;
/// tags.insert(&mut txn, "home", &"all".into())?;
/// txn.commit()?;
///
/// let snapshot = db.snapshot()?;
/// let home = tags.values(&snapshot, "home").collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(home, ["all", "start"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MultiTable<K, V> {
    rows: TypedTable<(K, V), ()>,
}

impl<K, V> Clone for MultiTable<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for MultiTable<K, V> {}

impl<K, V> fmt::Debug for MultiTable<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MultiTable").field(&self.rows).finish()
    }
}

impl Database {
    /// Opens a table with several values for a key, creating it durably when it does not exist.
    ///
    /// # Errors
    ///
    /// As [`Database::table`].
    pub fn multi<K: Key, V: Key>(&self, name: &str) -> Result<MultiTable<K, V>, TableError> {
        Ok(MultiTable::over(self.table(name)?))
    }
}

/// Common beginning of the rows of a key.
fn head<Q: EncodeKey + ?Sized>(key: &Q) -> Vec<u8> {
    let mut head = Vec::new();
    key.encode_part(&mut head);
    head
}

fn row<Q: EncodeKey + ?Sized, V: Key>(key: &Q, value: &V) -> Vec<u8> {
    let mut row = head(key);
    value.encode_end(&mut row);
    row
}

impl<K: Key, V: Key> MultiTable<K, V> {
    /// A table that is open, with types.
    #[must_use]
    pub const fn over(table: Table) -> Self {
        Self { rows: TypedTable::over(table) }
    }

    /// The table below.
    #[must_use]
    pub const fn table(&self) -> Table {
        self.rows.table()
    }

    /// Adds a value to the set of `key`, if it is not there yet; reads nothing.
    ///
    /// # Errors
    ///
    /// See [`WriteError`]. Key and value together are at most as long as a key.
    pub fn insert(
        &self,
        transaction: &mut Transaction,
        key: &(impl Finds<K> + ?Sized),
        value: &V,
    ) -> Result<(), WriteError> {
        transaction.put(self.table(), &row(key, value), &[])
    }

    /// Removes a value from the set of `key`, whether it is there or not; reads nothing.
    ///
    /// # Errors
    ///
    /// See [`WriteError`].
    pub fn remove(
        &self,
        transaction: &mut Transaction,
        key: &(impl Finds<K> + ?Sized),
        value: &V,
    ) -> Result<(), WriteError> {
        transaction.delete(self.table(), &row(key, value))
    }

    /// Removes all values of `key`, and gives their number.
    ///
    /// # Errors
    ///
    /// See [`WriteError`].
    pub fn remove_all(
        &self,
        transaction: &mut Transaction,
        key: &(impl Finds<K> + ?Sized),
    ) -> Result<u64, WriteError> {
        transaction.retain_in(self.table(), ScanRange::prefix(&head(key)), |_, _| false)
    }

    /// Whether `value` is one of `key`.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    pub fn contains(
        &self,
        reads: &impl Reads,
        key: &(impl Finds<K> + ?Sized),
        value: &V,
    ) -> Result<bool, ReadError> {
        reads.has_row(self.table(), &row(key, value))
    }

    /// Whether `key` has a value at all.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    pub fn contains_key(
        &self,
        reads: &impl Reads,
        key: &(impl Finds<K> + ?Sized),
    ) -> Result<bool, ReadError> {
        reads
            .rows_of(self.table(), ScanRange::prefix(&head(key)))
            .next_row()
            .transpose()
            .map(|row| row.is_some())
    }

    /// Values of `key` in ascending order; [`Values::rev`] turns it around.
    pub fn values<'a, R: Reads>(
        &self,
        reads: &'a R,
        key: &(impl Finds<K> + ?Sized),
    ) -> Values<'a, V> {
        let head = head(key);
        let rows = reads.rows_of(self.table(), ScanRange::prefix(&head));
        Values { rows, head: head.len(), types: PhantomData }
    }

    /// How many values `key` has.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    pub fn count(
        &self,
        reads: &impl Reads,
        key: &(impl Finds<K> + ?Sized),
    ) -> Result<u64, ReadError> {
        reads.rows_of(self.table(), ScanRange::prefix(&head(key))).count_rows()
    }

    /// All pairs of key and value, in ascending order.
    pub fn pairs<'a, R: Reads>(&self, reads: &'a R) -> Pairs<'a, K, V> {
        Pairs { rows: self.rows.range(reads, ..) }
    }
}

/// Values of one key. Ends after the first error of the device.
pub struct Values<'a, V> {
    rows: Range<'a>,
    /// Bytes of the key before each value.
    head: usize,
    types: PhantomData<fn() -> V>,
}

impl<V> fmt::Debug for Values<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Values").field(&self.rows).finish()
    }
}

impl<V> Values<'_, V> {
    /// The same values in descending order; to be called before the first one is taken.
    #[must_use]
    pub fn rev(self) -> Self {
        Self { rows: self.rows.rev(), ..self }
    }
}

impl<V: Key> Iterator for Values<'_, V> {
    type Item = Result<V, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let value = |key: Vec<u8>| key_of(key.get(self.head..).unwrap_or_default());
        let row = self.rows.next()?;
        Some(row.and_then(|(key, _)| value(key)))
    }
}

/// Pairs of key and value. Ends after the first error of the device.
pub struct Pairs<'a, K, V> {
    rows: TypedRange<'a, (K, V), ()>,
}

impl<K, V> fmt::Debug for Pairs<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pairs").field(&self.rows).finish()
    }
}

impl<K: Key, V: Key> Iterator for Pairs<'_, K, V> {
    type Item = Result<(K, V), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.rows.next().map(|row| row.map(|(pair, ())| pair))
    }
}
