//! Secondary indexes of typed tables, kept in the transaction that changes a row.
//!
//! Owns the entries of each row, and the name of the table of each index: `users@city` for the index `city`
//! of the table `users`. An entry is a row of a [`MultiTable`](super::MultiTable): the index key of the row,
//! then its own key.
//!
//! Invariants:
//! - **N1** A transaction that changes a row through [`IndexedTable`] changes its entries too, or cannot
//!   be committed.
//! - **N2** An index is there with the entries of all rows, or not at all: it is made in one transaction, and
//!   no other table is given such a name.
//! - **N3** A table is opened with every index that it has: no change of a row forgets one.

mod found;
mod repair;

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use flagstone_engine::blocking::{index_head, require_plain};
use flagstone_engine::{IndexFault, ScanRange, Table};

use super::DecodeError;
use super::key::{EncodeKey, Finds, Key};
use super::multi::{MultiTable, Values};
use super::table::{Reads, TypedRange, TypedTable, value_of};
use super::value::Value;
use crate::database::{Database, Transaction};
use crate::{Error, ReadError, TableError, WriteError};

pub use found::{Found, FoundRows};
pub use repair::IndexReport;

/// Whether several rows may have the same index key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Uniqueness {
    Any,
    One,
}

/// A secondary index: a name, and the function that gives the index keys of a row.
///
/// Both are part of the program. A function that no longer gives the index keys under which a row was stored
/// makes the index wrong: give the new function a new name, or repair the index.
pub struct Index<K, V, I> {
    name: &'static str,
    uniqueness: Uniqueness,
    found_by: fn(&K, &V) -> Vec<I>,
}

impl<K, V, I> fmt::Debug for Index<K, V, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<K: Key, V: Value, I: Key> Index<K, V, I> {
    /// An index by the keys that `found_by` gives: none, one or several.
    #[must_use]
    pub const fn new(name: &'static str, found_by: fn(&K, &V) -> Vec<I>) -> Self {
        Self { name, uniqueness: Uniqueness::Any, found_by }
    }

    /// As [`Index::new`]; a second row with the same index key is refused.
    #[must_use]
    pub const fn unique(name: &'static str, found_by: fn(&K, &V) -> Vec<I>) -> Self {
        Self { name, uniqueness: Uniqueness::One, found_by }
    }
}

/// The head of an entry, and the whole.
type IndexEntry = (Vec<u8>, Vec<u8>);

/// An index without its type `I`, so that indexes of different types fit one list. Implemented by [`Index`]
/// alone.
pub trait AnyIndex<K, V>: fmt::Debug + Sync + sealed::Sealed {
    #[doc(hidden)]
    fn name(&self) -> &'static str;

    #[doc(hidden)]
    fn is_unique(&self) -> bool;

    #[doc(hidden)]
    fn entries(&self, key: &K, value: &V) -> Vec<(Vec<u8>, Vec<u8>)>;

    #[doc(hidden)]
    fn row_key(&self, entry: &[u8]) -> Result<K, DecodeError>;
}

mod sealed {
    pub trait Sealed {}
    impl<K, V, I> Sealed for super::Index<K, V, I> {}
}

impl<K: Key, V: Value, I: Key> AnyIndex<K, V> for Index<K, V, I> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is_unique(&self) -> bool {
        self.uniqueness == Uniqueness::One
    }

    fn entries(&self, key: &K, value: &V) -> Vec<IndexEntry> {
        let entry = |found_by: I| {
            let head = head_of(&found_by);
            let mut entry = head.clone();
            key.encode_end(&mut entry);
            (head, entry)
        };
        (self.found_by)(key, value).into_iter().map(entry).collect()
    }

    fn row_key(&self, mut entry: &[u8]) -> Result<K, DecodeError> {
        I::decode_part(&mut entry)?;
        K::decode_end(entry)
    }
}

fn head_of(found_by: &(impl EncodeKey + ?Sized)) -> Vec<u8> {
    let mut head = Vec::new();
    found_by.encode_part(&mut head);
    head
}

/// An index and the table of its entries.
struct Kept<K: 'static, V: 'static> {
    index: &'static dyn AnyIndex<K, V>,
    table: Table,
}

impl<K, V> Clone for Kept<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for Kept<K, V> {}

/// A typed table with secondary indexes: see [`Database::indexed`].
pub struct IndexedTable<K: 'static, V: 'static> {
    rows: TypedTable<K, V>,
    indexes: Arc<[Kept<K, V>]>,
}

impl<K, V> Clone for IndexedTable<K, V> {
    fn clone(&self) -> Self {
        Self { rows: self.rows, indexes: Arc::clone(&self.indexes) }
    }
}

impl<K, V> fmt::Debug for IndexedTable<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.indexes.iter().map(|kept| kept.index);
        f.debug_struct("IndexedTable")
            .field("rows", &self.rows)
            .field("indexes", &names.collect::<Vec<_>>())
            .finish()
    }
}

impl Database {
    /// Opens a typed table with its secondary indexes, creating the missing ones: the table first, then all
    /// indexes that are new with the entries of all rows, in one transaction.
    ///
    /// Each index is a table of its own, `users@city` for `city`. Rows have to be changed through a table
    /// that was opened with all indexes, after the last one was made: a handle that was opened before does
    /// not know it, and the byte interface below knows nothing of indexes.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// use flagstone::{Index, Value, WriteError};
    /// use flagstone::typed::IndexFault;
    ///
    /// #[derive(Debug, Value)]
    /// struct User {
    ///     mail: String,
    ///     city: Option<String>,
    /// }
    ///
    /// const CITY: Index<u64, User, String> =
    ///     Index::new("city", |_, user| user.city.iter().cloned().collect());
    /// const MAIL: Index<u64, User, String> = Index::unique("mail", |_, user| vec![user.mail.clone()]);
    ///
    /// let users = db.indexed("users", &[&CITY, &MAIL])?;
    /// let mut txn = db.begin();
    /// for (id, mail, city) in [(1, "ada@x", "London"), (2, "emilie@x", "Paris"), (3, "marc@x", "Paris")] {
    ///     users.put(&mut txn, &id, &User { mail: mail.into(), city: Some(city.into()) })?;
    /// }
    /// let parisians = users.find_keys(&txn, &CITY, "Paris")?.collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(parisians, [2, 3]);
    ///
    /// users.update(&mut txn, &2, |user| user.city = None)?;
    /// assert_eq!(users.find(&txn, &CITY, "Paris")?.count(), 1);
    /// let taken = users.put(&mut txn, &4, &User { mail: "ada@x".into(), city: None });
    /// assert!(matches!(taken, Err(WriteError::Index { fault: IndexFault::Duplicate, .. })));
    /// txn.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Index` with `Undeclared` when the table has an index that is not among `indexes`, with
    /// `Duplicate` when rows that are there contradict a new unique one: then no index is made. `IndexName`
    /// when the name of the table or of an index that is new has an `@`; else as [`Database::table`].
    pub fn indexed<K: Key, V: Value>(
        &self,
        name: &str,
        indexes: &[&'static dyn AnyIndex<K, V>],
    ) -> Result<IndexedTable<K, V>, TableError> {
        let rows = self.typed::<K, V>(name)?;
        let head = index_head(name);
        for table in self.tables()? {
            if let Some(found) = table.strip_prefix(&head)
                && !indexes.iter().any(|index| index.name() == found)
            {
                return Err(TableError::of(fault(found, IndexFault::Undeclared)));
            }
        }
        let mut kept = Vec::with_capacity(indexes.len());
        let mut missing = Vec::new();
        for index in indexes {
            let name = format!("{head}{}", index.name());
            match self.existing_table(&name)? {
                Some(table) => kept.push(Kept { index: *index, table }),
                None => {
                    require_plain(index.name()).map_err(TableError::of)?;
                    missing.push((*index, name));
                }
            }
        }
        if !missing.is_empty() {
            kept.extend_from_slice(&self.make_indexes(rows, &missing)?);
        }
        Ok(IndexedTable { rows, indexes: kept.into() })
    }

    /// Makes indexes with the entries of all rows (N2).
    fn make_indexes<K: Key, V: Value>(
        &self,
        rows: TypedTable<K, V>,
        missing: &[(&'static dyn AnyIndex<K, V>, String)],
    ) -> Result<Arc<[Kept<K, V>]>, TableError> {
        self.change_tables(|transaction| {
            let made = missing.iter().map(|(index, name)| {
                let table = transaction.create_table(name)?;
                Ok(Kept { index: *index, table })
            });
            let indexed = IndexedTable { rows, indexes: made.collect::<Result<_, Error>>()? };
            indexed.repair(transaction)?;
            Ok(indexed.indexes)
        })
    }
}

fn fault(index: &str, fault: IndexFault) -> ReadError {
    ReadError::Index { index: index.to_owned(), fault }
}

impl<K: Key, V: Value> IndexedTable<K, V> {
    /// The table of the rows, for reading. Changes go through the indexed table.
    #[must_use]
    pub const fn rows(&self) -> TypedTable<K, V> {
        self.rows
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
        self.rows.get(reads, key)
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
        self.rows.contains_key(reads, key)
    }

    /// Rows of a range of keys, as [`TypedTable::range`].
    pub fn range<'a, R: Reads>(
        &self,
        reads: &'a R,
        bounds: impl RangeBounds<K>,
    ) -> TypedRange<'a, K, V> {
        self.rows.range(reads, bounds)
    }

    /// Sets the value of `key`, and the entries of the row. Reads the old value.
    ///
    /// # Errors
    ///
    /// `Index` with `Duplicate`, or with `Stale` where a unique index has an entry in the way that belongs to
    /// no row: nothing is changed. After any other error the transaction may have changed a part, and cannot
    /// be committed (N1).
    pub fn put(&self, transaction: &mut Transaction, key: &K, value: &V) -> Result<(), WriteError> {
        self.change(transaction, key, |_| {
            Some(Change::Put(value.to_row(), self.entries(key, value)))
        })
        .map(|_found| ())
    }

    /// Deletes `key` and the entries of its row; says whether it was there.
    ///
    /// # Errors
    ///
    /// As [`IndexedTable::put`].
    pub fn delete(&self, transaction: &mut Transaction, key: &K) -> Result<bool, WriteError> {
        self.change(transaction, key, |old| old.map(|_| Change::Delete))
    }

    /// Lets `change` work on the value of `key`, and changes the entries of the row accordingly; says whether
    /// the key was there.
    ///
    /// # Errors
    ///
    /// As [`IndexedTable::put`].
    pub fn update(
        &self,
        transaction: &mut Transaction,
        key: &K,
        change: impl FnOnce(&mut V),
    ) -> Result<bool, WriteError> {
        self.change(transaction, key, |old| {
            let mut value = old?;
            change(&mut value);
            Some(Change::Put(value.to_row(), self.entries(key, &value)))
        })
    }

    /// Entries of a row in each index, sorted.
    fn entries(&self, key: &K, value: &V) -> Vec<Vec<IndexEntry>> {
        let sorted = |kept: &Kept<K, V>| {
            let mut entries = kept.index.entries(key, value);
            entries.sort_unstable();
            entries.dedup();
            entries
        };
        self.indexes.iter().map(sorted).collect()
    }

    /// Changes the row of `key` as `decide` says, and its entries; says whether the row was there.
    fn change(
        &self,
        transaction: &mut Transaction,
        key: &K,
        decide: impl FnOnce(Option<V>) -> Option<Change>,
    ) -> Result<bool, WriteError> {
        let row_key = key.to_key();
        transaction.lock_key(self.rows.table(), &row_key)?;
        let old = transaction.get(self.rows.table(), &row_key).map_err(WriteError::of)?;
        let was_there = old.is_some();
        let old = old.as_deref().map(value_of).transpose();
        let old: Option<V> = old.map_err(WriteError::of)?;
        let none = || vec![Vec::new(); self.indexes.len()];
        let before = old.as_ref().map_or_else(none, |old| self.entries(key, old));
        let Some(change) = decide(old) else { return Ok(was_there) };
        let after = match &change {
            Change::Put(_, entries) => entries.clone(),
            Change::Delete => none(),
        };
        let steps: Vec<_> = self.indexes.iter().zip(before.iter().zip(&after)).collect();
        for (kept, (before, after)) in &steps {
            self.require_unique(transaction, kept, added(before, after))?;
        }
        let changed = (|| {
            for (kept, (before, after)) in &steps {
                for (_, entry) in added(after, before) {
                    transaction.delete(kept.table, entry)?;
                }
                for (_, entry) in added(before, after) {
                    transaction.put(kept.table, entry, &[])?;
                }
            }
            match &change {
                Change::Put(row, _) => {
                    let entry = transaction.entry(self.rows.table(), &row_key)?;
                    entry.and_modify(|old| old.clone_from(row))?.or_insert(row.as_slice())?;
                    Ok(())
                }
                Change::Delete => transaction.delete(self.rows.table(), &row_key),
            }
        })();
        if let Err(error) = &changed {
            transaction.doom(error);
        }
        changed.map(|()| was_there)
    }

    /// Refuses entries of a unique index whose place is taken by another row. The same entry of the same row
    /// may be there already, stale: it is no conflict.
    fn require_unique<'e>(
        &self,
        transaction: &Transaction,
        kept: &Kept<K, V>,
        entries: impl Iterator<Item = &'e IndexEntry>,
    ) -> Result<(), WriteError> {
        if !kept.index.is_unique() {
            return Ok(());
        }
        for (head, entry) in entries {
            for other in transaction.prefix(kept.table, head) {
                let (other, _) = other.map_err(WriteError::of)?;
                if other == *entry {
                    continue;
                }
                let found = match self.belongs(transaction, kept, &other)? {
                    true => IndexFault::Duplicate,
                    false => IndexFault::Stale,
                };
                return Err(WriteError::of(fault(kept.index.name(), found)));
            }
        }
        Ok(())
    }

    fn kept<I: Key>(&self, index: &Index<K, V, I>) -> Result<&Kept<K, V>, ReadError> {
        let found = self.indexes.iter().find(|kept| kept.index.name() == index.name);
        found.ok_or_else(|| fault(index.name, IndexFault::Unknown))
    }

    /// Keys of the rows with the index key `found_by`, in ascending order.
    ///
    /// # Errors
    ///
    /// `Index` with `Unknown` when the table was opened without this index.
    pub fn find_keys<'a, R: Reads, I: Key>(
        &self,
        reads: &'a R,
        index: &Index<K, V, I>,
        found_by: &(impl Finds<I> + ?Sized),
    ) -> Result<Values<'a, K>, ReadError> {
        let table = self.kept(index)?.table;
        Ok(MultiTable::<I, K>::over(table).values(reads, found_by))
    }

    /// Rows with the index key `found_by`, in ascending order of their keys.
    ///
    /// # Errors
    ///
    /// As [`IndexedTable::find_keys`].
    pub fn find<'a, R: Reads, I: Key>(
        &self,
        reads: &'a R,
        index: &Index<K, V, I>,
        found_by: &(impl Finds<I> + ?Sized),
    ) -> Result<FoundRows<'a, K, V, R>, ReadError> {
        let keys = self.find_keys(reads, index, found_by)?;
        Ok(FoundRows { keys, rows: self.rows, index: index.name, reads })
    }

    /// Index keys in a range, each with the key of its row, in ascending order.
    ///
    /// # Errors
    ///
    /// As [`IndexedTable::find_keys`].
    pub fn find_range<'a, R: Reads, I: Key>(
        &self,
        reads: &'a R,
        index: &Index<K, V, I>,
        bounds: impl RangeBounds<I>,
    ) -> Result<Found<'a, I, K>, ReadError> {
        let table = self.kept(index)?.table;
        // An entry goes on behind its index key: a bound stands before or behind all entries of this key.
        let (mut low, mut high) = (Vec::new(), None);
        match bounds.start_bound() {
            Bound::Unbounded => {}
            Bound::Included(first) => low = head_of(first),
            Bound::Excluded(before) => match ScanRange::prefix(&head_of(before)).high {
                Some(behind) => low = behind,
                None => high = Some(Vec::new()),
            },
        }
        match bounds.end_bound() {
            Bound::Unbounded => {}
            Bound::Included(last) => high = high.or(ScanRange::prefix(&head_of(last)).high),
            Bound::Excluded(behind) => high = high.or_else(|| Some(head_of(behind))),
        }
        let entries = TypedTable::<(I, K), ()>::over(table);
        Ok(Found { entries: entries.over_range(reads, ScanRange { low, high }) })
    }
}

/// A change of a row.
enum Change {
    /// Its bytes, and its entries.
    Put(Vec<u8>, Vec<Vec<IndexEntry>>),
    Delete,
}

/// Entries that `after` has and `before` lacks; both are sorted.
fn added<'a>(
    before: &'a [IndexEntry],
    after: &'a [IndexEntry],
) -> impl Iterator<Item = &'a IndexEntry> {
    after.iter().filter(|entry| before.binary_search(entry).is_err())
}
