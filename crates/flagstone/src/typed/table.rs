//! A table whose keys and values have types.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use flagstone_engine::{DecodeError, RowPart, ScanRange, Table};

use super::key::{EncodeKey, Finds, Key, StartsWith};
use super::value::Value;
use crate::database::{Database, KeyValue, Range, Snapshot, Transaction};
use crate::{ReadError, TableError, WriteError};

mod sealed {
    pub trait Sealed {}
    impl Sealed for crate::Transaction {}
    impl Sealed for crate::Snapshot {}
}

/// Readers of a typed table: a [`Transaction`] or a [`Snapshot`].
pub trait Reads: sealed::Sealed {
    /// The value of `key`.
    #[doc(hidden)]
    fn row(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError>;

    /// Whether `key` has a value.
    #[doc(hidden)]
    fn has_row(&self, table: Table, key: &[u8]) -> Result<bool, ReadError>;

    /// Rows of a range.
    #[doc(hidden)]
    fn rows_of(&self, table: Table, range: ScanRange) -> Range<'_>;
}

impl Reads for Transaction {
    fn row(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        self.get(table, key)
    }

    fn has_row(&self, table: Table, key: &[u8]) -> Result<bool, ReadError> {
        self.contains_key(table, key)
    }

    fn rows_of(&self, table: Table, range: ScanRange) -> Range<'_> {
        self.rows(table, range)
    }
}

impl Reads for Snapshot {
    fn row(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        self.get(table, key)
    }

    fn has_row(&self, table: Table, key: &[u8]) -> Result<bool, ReadError> {
        self.contains_key(table, key)
    }

    fn rows_of(&self, table: Table, range: ScanRange) -> Range<'_> {
        self.rows(table, range)
    }
}

pub(super) fn key_of<K: Key>(bytes: &[u8]) -> Result<K, ReadError> {
    K::from_key(bytes).map_err(|source| undecodable(RowPart::Key, source))
}

pub(super) fn value_of<V: Value>(bytes: &[u8]) -> Result<V, ReadError> {
    V::from_row(bytes).map_err(|source| undecodable(RowPart::Value, source))
}

const fn undecodable(part: RowPart, source: DecodeError) -> ReadError {
    ReadError::Decode { part, source }
}

/// A table with keys of type `K` and values of type `V`: cheap to copy, valid while the database is open.
///
/// The types are a promise of the program, not part of the stored data: bytes that are no `K` or `V` give
/// [`ReadError::Decode`].
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("db");
/// use flagstone::{Database, Options, Value};
///
/// #[derive(Debug, PartialEq, Value)]
/// struct User {
///     name: String,
///     visits: u32,
/// }
///
/// let db = Database::create(&path, &Options::default())?;
/// let users = db.typed::<(String, u64), User>("users")?; // by country and number
/// let mut txn = db.begin();
/// for (country, number, name) in [("fr", 1, "Émilie"), ("fr", 2, "Marc"), ("gb", 1, "Ada")] {
///     let user = User { name: name.into(), visits: 0 };
///     users.put(&mut txn, &(country.into(), number), &user)?;
/// }
/// users.update(&mut txn, &("gb".into(), 1), |user| user.visits += 1)?;
/// txn.commit()?;
///
/// let snapshot = db.snapshot()?;
/// let ada = users.get(&snapshot, &("gb".into(), 1))?;
/// assert_eq!(ada, Some(User { name: "Ada".into(), visits: 1 }));
/// let french = users.prefix(&snapshot, &String::from("fr")).map(|row| Ok(row?.1.name));
/// assert_eq!(french.collect::<Result<Vec<_>, flagstone::ReadError>>()?, ["Émilie", "Marc"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TypedTable<K, V> {
    table: Table,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> Clone for TypedTable<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for TypedTable<K, V> {}

impl<K, V> fmt::Debug for TypedTable<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TypedTable").field(&self.table).finish()
    }
}

impl Database {
    /// Opens a table with keys and values of types, creating it durably when it does not exist.
    ///
    /// # Errors
    ///
    /// As [`Database::table`].
    pub fn typed<K: Key, V: Value>(&self, name: &str) -> Result<TypedTable<K, V>, TableError> {
        Ok(TypedTable::over(self.table(name)?))
    }
}

impl<K: Key, V: Value> TypedTable<K, V> {
    /// A table that is open, with types.
    #[must_use]
    pub const fn over(table: Table) -> Self {
        Self { table, types: PhantomData }
    }

    /// The table below.
    #[must_use]
    pub const fn table(&self) -> Table {
        self.table
    }

    /// The value of `key`.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    pub fn get(
        &self,
        reads: &impl Reads,
        key: &(impl Finds<K> + ?Sized),
    ) -> Result<Option<V>, ReadError> {
        let row = reads.row(self.table, &key.to_key())?;
        row.as_deref().map(value_of).transpose()
    }

    /// Whether `key` has a value. The value is neither loaded nor decoded.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    pub fn contains_key(
        &self,
        reads: &impl Reads,
        key: &(impl Finds<K> + ?Sized),
    ) -> Result<bool, ReadError> {
        reads.has_row(self.table, &key.to_key())
    }

    /// Sets the value of `key`; reads nothing.
    ///
    /// # Errors
    ///
    /// See [`WriteError`].
    pub fn put(
        &self,
        transaction: &mut Transaction,
        key: &(impl Finds<K> + ?Sized),
        value: &V,
    ) -> Result<(), WriteError> {
        transaction.put(self.table, &key.to_key(), &value.to_row())
    }

    /// Deletes `key`, whether it exists or not; reads nothing.
    ///
    /// # Errors
    ///
    /// See [`WriteError`].
    pub fn delete(
        &self,
        transaction: &mut Transaction,
        key: &(impl Finds<K> + ?Sized),
    ) -> Result<(), WriteError> {
        transaction.delete(self.table, &key.to_key())
    }

    /// Lets `change` work on the value of `key`, under a lock; says whether the key was there. Where the row
    /// keeps its length, only the bytes that differ are logged.
    ///
    /// # Errors
    ///
    /// See [`WriteError`].
    pub fn update(
        &self,
        transaction: &mut Transaction,
        key: &(impl Finds<K> + ?Sized),
        change: impl FnOnce(&mut V),
    ) -> Result<bool, WriteError> {
        let entry = transaction.entry(self.table, &key.to_key())?;
        let Some(row) = entry.value() else { return Ok(false) };
        let mut value: V = value_of(row).map_err(WriteError::of)?;
        change(&mut value);
        entry.and_modify(|row| *row = value.to_row())?;
        Ok(true)
    }

    /// The value of `key`; where the key is absent, it gets the value of `make` first.
    ///
    /// # Errors
    ///
    /// See [`WriteError`].
    pub fn get_or_insert_with(
        &self,
        transaction: &mut Transaction,
        key: &(impl Finds<K> + ?Sized),
        make: impl FnOnce() -> V,
    ) -> Result<V, WriteError> {
        let mut entry = transaction.entry(self.table, &key.to_key())?;
        if let Some(row) = entry.value() {
            return value_of(row).map_err(WriteError::of);
        }
        let value = make();
        entry.insert(value.to_row())?;
        Ok(value)
    }

    /// Rows of a range of keys in ascending order; [`TypedRange::rev`] turns it around.
    pub fn range<'a, R: Reads>(
        &self,
        reads: &'a R,
        bounds: impl RangeBounds<K>,
    ) -> TypedRange<'a, K, V> {
        let key = |bound: Bound<&K>| bound.map(EncodeKey::to_key);
        let (low, high) = (key(bounds.start_bound()), key(bounds.end_bound()));
        let (low, high) = (low.as_ref().map(Vec::as_slice), high.as_ref().map(Vec::as_slice));
        self.over_range(reads, ScanRange::from_bounds(low, high))
    }

    pub(super) fn over_range<'a, R: Reads>(
        &self,
        reads: &'a R,
        range: ScanRange,
    ) -> TypedRange<'a, K, V> {
        TypedRange::new(reads.rows_of(self.table, range))
    }

    /// Rows whose keys begin with `first`, the first elements of a tuple.
    pub fn prefix<'a, R: Reads, P: EncodeKey>(
        &self,
        reads: &'a R,
        first: &P,
    ) -> TypedRange<'a, K, V>
    where
        K: StartsWith<P>,
    {
        let mut prefix = Vec::new();
        first.encode_part(&mut prefix);
        TypedRange::new(reads.rows_of(self.table, ScanRange::prefix(&prefix)))
    }

    /// How many rows the table has.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    pub fn len(&self, reads: &impl Reads) -> Result<u64, ReadError> {
        reads.rows_of(self.table, ScanRange::prefix(&[])).count_rows()
    }

    /// Deletes the rows for which `keep` says no, and gives their number.
    ///
    /// # Errors
    ///
    /// See [`WriteError`]. A row that cannot be decoded stays, and ends the call.
    pub fn retain(
        &self,
        transaction: &mut Transaction,
        mut keep: impl FnMut(&K, &V) -> bool,
    ) -> Result<u64, WriteError> {
        let mut fault = None;
        let count = transaction.retain(self.table, .., |key, value| {
            if fault.is_some() {
                return true;
            }
            let row = key_of(key).and_then(|key| Ok((key, value_of(value)?)));
            row.map(|(key, value)| keep(&key, &value)).unwrap_or_else(|error| {
                fault = Some(WriteError::of(error));
                true
            })
        })?;
        fault.map_or(Ok(count), Err)
    }
}

/// Rows of a typed table. Ends after the first error of the device; a row that cannot be decoded is an
/// error of its own, and the next one follows.
pub struct TypedRange<'a, K, V> {
    rows: Range<'a>,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> fmt::Debug for TypedRange<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TypedRange").field(&self.rows).finish()
    }
}

impl<'a, K, V> TypedRange<'a, K, V> {
    fn new(rows: Range<'a>) -> Self {
        Self { rows, types: PhantomData }
    }

    /// The same rows in descending order; to be called before the first row is taken.
    #[must_use]
    pub fn rev(self) -> Self {
        Self { rows: self.rows.rev(), ..self }
    }
}

impl<K: Key, V: Value> Iterator for TypedRange<'_, K, V> {
    type Item = Result<(K, V), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let decode = |(key, value): KeyValue| Ok((key_of(&key)?, value_of(&value)?));
        self.rows.next().map(|row| row.and_then(decode))
    }
}
