//! Rows and keys that an index finds.

use std::fmt;

use flagstone_engine::IndexFault;

use super::fault;
use crate::ReadError;
use crate::typed::key::Key;
use crate::typed::multi::Values;
use crate::typed::table::{Reads, TypedRange, TypedTable};
use crate::typed::value::Value;

/// Rows found through an index. Ends after an error of the index; an error of a row takes the place of that
/// row, and the next rows follow.
pub struct FoundRows<'a, K, V, R: Reads> {
    pub(super) keys: Values<'a, K>,
    pub(super) rows: TypedTable<K, V>,
    pub(super) index: &'static str,
    pub(super) reads: &'a R,
}

impl<K, V, R: Reads> fmt::Debug for FoundRows<'_, K, V, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FoundRows").field("index", &self.index).finish_non_exhaustive()
    }
}

impl<K, V, R: Reads> FoundRows<'_, K, V, R> {
    /// The same rows in descending order; to be called before the first row is taken.
    #[must_use]
    pub fn rev(self) -> Self {
        Self { keys: self.keys.rev(), ..self }
    }
}

impl<K: Key, V: Value, R: Reads> Iterator for FoundRows<'_, K, V, R> {
    type Item = Result<(K, V), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = |key: K| {
            let value = self.rows.get(self.reads, &key)?;
            let value = value.ok_or_else(|| fault(self.index, IndexFault::Stale))?;
            Ok((key, value))
        };
        let key = self.keys.next()?;
        Some(key.and_then(row))
    }
}

/// Entries of a range of an index: index keys, and keys of rows.
pub struct Found<'a, I, K> {
    pub(super) entries: TypedRange<'a, (I, K), ()>,
}

impl<I, K> fmt::Debug for Found<'_, I, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Found").field(&self.entries).finish()
    }
}

impl<I, K> Found<'_, I, K> {
    /// The same entries in descending order; to be called before the first entry is taken.
    #[must_use]
    pub fn rev(self) -> Self {
        Self { entries: self.entries.rev() }
    }
}

impl<I: Key, K: Key> Iterator for Found<'_, I, K> {
    type Item = Result<(I, K), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.entries.next().map(|entry| entry.map(|(entry, ())| entry))
    }
}
