//! Check and repair of indexes: an entry for each row, and no other.

use flagstone_engine::{ScanRange, successor};

use super::{IndexedTable, Kept};
use crate::database::Transaction;
use crate::typed::key::Key;
use crate::typed::table::Reads;
use crate::typed::value::Value;
use crate::{ReadError, WriteError};

/// Result of a check of the indexes of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexReport {
    /// Rows of the table.
    pub rows: u64,
    /// Entries that the rows should have.
    pub entries: u64,
    /// Entries among these that are missing.
    pub missing: u64,
    /// Entries that belong to no row.
    pub extra: u64,
}

impl IndexReport {
    /// Whether the entries are exactly the ones of the rows.
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        self.missing == 0 && self.extra == 0
    }
}

impl<K: Key, V: Value> IndexedTable<K, V> {
    /// Compares every index with the rows.
    ///
    /// # Errors
    ///
    /// See [`ReadError`]; entries that do not fit are part of the report.
    pub fn check_indexes(&self, reads: &impl Reads) -> Result<IndexReport, ReadError> {
        let mut report = IndexReport::default();
        for row in self.rows.range(reads, ..) {
            let (key, value) = row?;
            report.rows += 1;
            for (kept, entries) in self.indexes.iter().zip(self.entries(&key, &value)) {
                for (_, entry) in entries {
                    report.entries += 1;
                    report.missing += u64::from(!reads.has_row(kept.table, &entry)?);
                }
            }
        }
        for kept in &*self.indexes {
            let there = reads.rows_of(kept.table, ScanRange::prefix(&[])).count_rows()?;
            report.extra += there;
        }
        // Entries of different rows differ: they end with the rows' keys.
        report.extra -= (report.entries - report.missing).min(report.extra);
        Ok(report)
    }

    /// Makes every index fit the rows, and reports the entries that did not. Changes only the entries that
    /// differ.
    ///
    /// # Errors
    ///
    /// `Index` with `Duplicate` when rows contradict a unique index; see [`WriteError`]. After an error
    /// the transaction cannot be committed.
    pub fn repair(&self, transaction: &mut Transaction) -> Result<IndexReport, WriteError> {
        let report = self.repair_all(transaction);
        if let Err(error) = &report {
            transaction.doom(error);
        }
        report
    }

    fn repair_all(&self, transaction: &mut Transaction) -> Result<IndexReport, WriteError> {
        let mut report = IndexReport::default();
        for kept in &*self.indexes {
            report.extra += self.remove_extra(transaction, kept)?;
        }
        let mut from = ScanRange::prefix(&[]);
        loop {
            let batch = self.rows.over_range(transaction, from.clone()).take(REPAIR_ROWS);
            let batch = batch.collect::<Result<Vec<(K, V)>, _>>().map_err(WriteError::of)?;
            let Some((last, _)) = batch.last() else { return Ok(report) };
            from.low = successor(&last.to_key());
            for (key, value) in &batch {
                report.rows += 1;
                for (kept, entries) in self.indexes.iter().zip(self.entries(key, value)) {
                    for entry in entries {
                        report.entries += 1;
                        let found = transaction.contains_key(kept.table, &entry.1);
                        if !found.map_err(WriteError::of)? {
                            self.require_unique(transaction, kept, std::iter::once(&entry))?;
                            transaction.put(kept.table, &entry.1, &[])?;
                            report.missing += 1;
                        }
                    }
                }
            }
        }
    }

    /// Deletes the entries of an index that belong to no row.
    fn remove_extra(
        &self,
        transaction: &mut Transaction,
        kept: &Kept<K, V>,
    ) -> Result<u64, WriteError> {
        let mut count = 0;
        let mut from = ScanRange::prefix(&[]);
        loop {
            let batch = transaction.rows(kept.table, from.clone()).take(REPAIR_ROWS);
            let batch = batch.collect::<Result<Vec<_>, _>>().map_err(WriteError::of)?;
            let Some((last, _)) = batch.last() else { return Ok(count) };
            from.low = successor(last);
            for (entry, _) in batch {
                if !self.belongs(transaction, kept, &entry)? {
                    transaction.delete(kept.table, &entry)?;
                    count += 1;
                }
            }
        }
    }

    /// Whether some row has this entry.
    pub(super) fn belongs(
        &self,
        transaction: &Transaction,
        kept: &Kept<K, V>,
        entry: &[u8],
    ) -> Result<bool, WriteError> {
        let Ok(key) = kept.index.row_key(entry) else { return Ok(false) };
        let found = self.rows.get(transaction, &key).map_err(WriteError::of)?;
        let Some(value) = found else { return Ok(false) };
        let entries = kept.index.entries(&key, &value);
        Ok(entries.iter().any(|(_, known)| known == entry))
    }
}

/// Rows or entries that a repair reads before it changes some.
const REPAIR_ROWS: usize = 256;
