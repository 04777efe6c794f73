//! Changes that read first: entries, updates in place, and rows that are retained.
//!
//! Owns nothing but the order of calls: the key is locked before it is read, so that two transactions
//! that change one row wait for each other instead of ending in a deadlock.

use std::fmt;
use std::ops::RangeBounds;

use flagstone_engine::blocking::scan_range;
use flagstone_engine::{ScanRange, Table, successor};

use super::rows::KeyValue;
use super::transaction::Transaction;
use crate::WriteError;

/// One key of a table, locked, with the value it has: see [`Transaction::entry`].
///
/// Changes made through an entry are part of the transaction at once.
pub struct Entry<'a> {
    transaction: &'a mut Transaction,
    table: Table,
    key: Vec<u8>,
    value: Option<Vec<u8>>,
}

impl fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("key", &self.key)
            .field("value", &self.value)
            .finish_non_exhaustive()
    }
}

impl Entry<'_> {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The value, as this entry has left it.
    #[must_use]
    pub fn value(&self) -> Option<&[u8]> {
        self.value.as_deref()
    }

    /// Sets the value, and gives the previous one.
    ///
    /// # Errors
    ///
    /// See [`WriteError`].
    pub fn insert(&mut self, value: impl Into<Vec<u8>>) -> Result<Option<Vec<u8>>, WriteError> {
        let value = value.into();
        self.transaction.put(self.table, &self.key, &value)?;
        Ok(self.value.replace(value))
    }

    /// Deletes the key, and gives its value.
    ///
    /// # Errors
    ///
    /// See [`WriteError`].
    pub fn remove(&mut self) -> Result<Option<Vec<u8>>, WriteError> {
        if self.value.is_some() {
            self.transaction.delete(self.table, &self.key)?;
        }
        Ok(self.value.take())
    }

    /// Sets the value if the key is absent.
    ///
    /// # Errors
    ///
    /// See [`WriteError`].
    pub fn or_insert(self, value: impl Into<Vec<u8>>) -> Result<Self, WriteError> {
        self.or_insert_with(|| value.into())
    }

    /// Sets the value that `make` gives if the key is absent.
    ///
    /// # Errors
    ///
    /// See [`WriteError`].
    pub fn or_insert_with(mut self, make: impl FnOnce() -> Vec<u8>) -> Result<Self, WriteError> {
        if self.value.is_none() {
            self.insert(make())?;
        }
        Ok(self)
    }

    /// Lets `change` work on the value if the key is there. A value that keeps its length is patched:
    /// only the bytes from the first to the last that differ are logged and kept.
    ///
    /// # Errors
    ///
    /// See [`WriteError`].
    pub fn and_modify(mut self, change: impl FnOnce(&mut Vec<u8>)) -> Result<Self, WriteError> {
        let Some(old) = &self.value else { return Ok(self) };
        let mut new = old.clone();
        change(&mut new);
        match difference(old, &new) {
            Difference::None => {}
            Difference::Bytes { offset, bytes } => {
                self.transaction.patch(self.table, &self.key, offset, bytes)?;
            }
            Difference::Length => self.transaction.put(self.table, &self.key, &new)?,
        }
        self.value = Some(new);
        Ok(self)
    }
}

/// How two values differ.
#[derive(Debug, PartialEq, Eq)]
enum Difference<'a> {
    None,
    /// Bytes of the new value, from the first to the last that differ.
    Bytes {
        offset: usize,
        bytes: &'a [u8],
    },
    Length,
}

fn difference<'a>(old: &[u8], new: &'a [u8]) -> Difference<'a> {
    if old.len() != new.len() {
        return Difference::Length;
    }
    let differs = |(old, new): (&u8, &u8)| old != new;
    let Some(first) = old.iter().zip(new).position(differs) else { return Difference::None };
    let last = old.iter().zip(new).rposition(differs).unwrap_or(first);
    Difference::Bytes { offset: first, bytes: &new[first..=last] }
}

impl Transaction {
    /// Locks `key`, reads its value, and gives an entry through which it can be changed.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// let visits = db.table("visits")?;
    /// let mut txn = db.begin();
    /// for page in [b"home", b"news", b"home"] {
    ///     txn.entry(visits, page)?.and_modify(|count| count[0] += 1)?.or_insert([1])?;
    /// }
    /// assert_eq!(txn.entry(visits, b"home")?.value(), Some(&[2][..]));
    /// assert_eq!(txn.entry(visits, b"news")?.remove()?, Some(vec![1]));
    /// txn.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`WriteError`].
    pub fn entry(&mut self, table: Table, key: &[u8]) -> Result<Entry<'_>, WriteError> {
        self.lock_key(table, key)?;
        let value = self.get(table, key).map_err(WriteError::of)?;
        Ok(Entry { transaction: self, table, key: key.to_vec(), value })
    }

    /// Lets `change` work on the value of `key`, in place; says whether the key was there.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// let users = db.table("users")?;
    /// let mut txn = db.begin();
    /// txn.put(users, b"ada", b"{ visits: 1, name: Ada }")?;
    /// assert!(txn.update(users, b"ada", |value| value[10] = b'2')?); // one byte is logged
    /// assert!(!txn.update(users, b"bob", |value| value.clear())?);
    /// assert_eq!(txn.get(users, b"ada")?.as_deref(), Some(&b"{ visits: 2, name: Ada }"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`WriteError`].
    pub fn update(
        &mut self,
        table: Table,
        key: &[u8],
        change: impl FnOnce(&mut Vec<u8>),
    ) -> Result<bool, WriteError> {
        let entry = self.entry(table, key)?.and_modify(change)?;
        Ok(entry.value.is_some())
    }

    /// Deletes the rows of a range for which `keep` says no, and gives their number.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// let stock = db.table("stock")?;
    /// let mut txn = db.begin();
    /// for (fruit, count) in [("apples", "12"), ("nuts", "0"), ("pears", "0")] {
    ///     txn.put(stock, fruit.as_bytes(), count.as_bytes())?;
    /// }
    /// assert_eq!(txn.retain(stock, ..&b"o"[..], |_, count| count != b"0")?, 1);
    /// assert_eq!(txn.len(stock)?, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`WriteError`]. Rows deleted before the error stay deleted in this transaction.
    pub fn retain<'a>(
        &mut self,
        table: Table,
        bounds: impl RangeBounds<&'a [u8]>,
        keep: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<u64, WriteError> {
        self.retain_in(table, scan_range(&bounds), keep)
    }

    pub(crate) fn retain_in(
        &mut self,
        table: Table,
        mut from: ScanRange,
        mut keep: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<u64, WriteError> {
        let mut count = 0;
        loop {
            let mut batch = Vec::new();
            // The rows of a batch are read before the first of them is deleted: a scan does not meet its own
            // transaction's changes half way.
            let mut last: Option<Vec<u8>> = None;
            for row in self.rows(table, from.clone()).take(RETAIN_ROWS) {
                let (key, value): KeyValue = row.map_err(WriteError::of)?;
                last = Some(key.clone());
                if !keep(&key, &value) {
                    batch.push(key);
                }
            }
            for key in &batch {
                self.delete(table, key)?;
                count += 1;
            }
            let Some(last) = last else { return Ok(count) };
            from.low = successor(&last);
        }
    }
}

/// Rows that are looked at before the ones to delete among them are deleted.
const RETAIN_ROWS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_goes_from_the_first_byte_to_the_last() {
        assert_eq!(difference(b"abc", b"abc"), Difference::None);
        assert_eq!(difference(b"", b""), Difference::None);
        assert_eq!(difference(b"abc", b"ab"), Difference::Length);
        for (new, offset, bytes) in [
            (b"xbcd", 0, &b"x"[..]),
            (b"abcx", 3, b"x"),
            (b"xbcx", 0, b"xbcx"),
            (b"axxd", 1, b"xx"),
        ] {
            assert_eq!(difference(b"abcd", new), Difference::Bytes { offset, bytes });
        }
    }
}
