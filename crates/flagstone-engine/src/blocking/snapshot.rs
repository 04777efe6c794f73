//! Read-only snapshots of the blocking interface.

use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

use flagstone_nand::Nand;
use flagstone_space::FrozenId;

use super::rows::{KeyValue, Range};
use super::transaction::scan_range;
use crate::{CATALOG, Descriptor, EngineError, Read, Reader, Runtime, ScanRange, Table};

/// The database as it was at one durable commit. Never waits for transactions.
///
/// Old versions that the snapshot needs stay on the device while it lives. When the device needs their space,
/// the oldest snapshot ends, and its reads give [`EngineError::SnapshotTooOld`]. A named snapshot
/// ([`Database::keep_snapshot`](super::Database::keep_snapshot)) stays until it is dropped.
pub struct Snapshot<D: Nand> {
    runtime: Arc<Runtime<D>>,
    reader: Reader,
}

impl<D: Nand> fmt::Debug for Snapshot<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("reader", &self.reader).finish_non_exhaustive()
    }
}

impl<D: Nand> Snapshot<D> {
    pub(super) fn begin(runtime: Arc<Runtime<D>>) -> Result<Self, EngineError> {
        let id = runtime.begin_snapshot()?;
        Ok(Self { runtime, reader: Reader::Snapshot(id) })
    }

    /// A named snapshot.
    pub(super) fn named(runtime: Arc<Runtime<D>>, id: FrozenId) -> Self {
        Self { runtime, reader: Reader::Named(id) }
    }

    /// The table of that name in the snapshot: a table that was dropped or renamed since is found by its name
    /// at that time.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::get`].
    pub fn table(&self, name: &str) -> Result<Option<Table>, EngineError> {
        let Some(entry) = self.get(CATALOG, name.as_bytes())? else { return Ok(None) };
        let found = self.runtime.named_table(self.reader, name.as_bytes(), &entry)?;
        Ok(found.map(|(_, table)| table))
    }

    /// Names of all tables of the snapshot, in order.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::get`].
    pub fn tables(&self) -> Result<Vec<String>, EngineError> {
        Ok(self.named_tables()?.into_iter().map(|(name, _)| name).collect())
    }

    /// All tables of the snapshot, in order of their names.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::get`].
    pub fn named_tables(&self) -> Result<Vec<(String, Table)>, EngineError> {
        let found = self.range(CATALOG, ..).map(|row| {
            let (key, entry) = row?;
            self.runtime.named_table(self.reader, &key, &entry)
        });
        found.filter_map(Result::transpose).collect()
    }

    /// The value of `key`.
    ///
    /// # Errors
    ///
    /// `SnapshotTooOld` when the snapshot was ended to free its space; `ForeignTable` for a table of another
    /// database, or of another named snapshot.
    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        let mut value = Vec::new();
        match self.read(table, key, &mut value)? {
            Read::Absent => Ok(None),
            Read::Inline => Ok(Some(value)),
            Read::Large(descriptor) => self.load(&descriptor).map(Some),
        }
    }

    /// Whether `key` has a value. A value that has pages of its own is not loaded.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::get`].
    pub fn contains_key(&self, table: Table, key: &[u8]) -> Result<bool, EngineError> {
        Ok(self.read(table, key, &mut Vec::new())? != Read::Absent)
    }

    fn read(&self, table: Table, key: &[u8], value: &mut Vec<u8>) -> Result<Read, EngineError> {
        self.runtime.read_key(self.reader, table, key, value)
    }

    fn load(&self, descriptor: &Descriptor) -> Result<Vec<u8>, EngineError> {
        self.runtime.load(self.reader, descriptor)
    }

    /// Rows of a range in ascending order; [`Range::rev`] turns it around.
    pub fn range<'a>(&'a self, table: Table, bounds: impl RangeBounds<&'a [u8]>) -> Range<'a, D> {
        self.rows(table, scan_range(&bounds))
    }

    /// Rows whose keys start with `prefix`.
    pub fn prefix(&self, table: Table, prefix: &[u8]) -> Range<'_, D> {
        self.rows(table, ScanRange::prefix(prefix))
    }

    /// Rows of a range in ascending order.
    pub fn rows(&self, table: Table, range: ScanRange) -> Range<'_, D> {
        let (runtime, reader) = self.reader();
        Range::new(runtime, reader, table, range)
    }

    /// The end of the leaf of `key`, as far as the way to the leaf reads.
    #[must_use]
    pub fn end_of_leaf(&self, table: Table, key: &[u8]) -> Option<Vec<u8>> {
        self.runtime.end_of_leaf(self.reader, table, key)
    }

    /// The runtime, and the reader that the snapshot is for it.
    pub fn reader(&self) -> (&Runtime<D>, Reader) {
        (&self.runtime, self.reader)
    }

    /// The first row.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::get`].
    pub fn first(&self, table: Table) -> Result<Option<KeyValue>, EngineError> {
        self.range(table, ..).next().transpose()
    }

    /// The last row.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::get`].
    pub fn last(&self, table: Table) -> Result<Option<KeyValue>, EngineError> {
        self.range(table, ..).rev().next().transpose()
    }

    /// How many rows the table has.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::get`].
    pub fn len(&self, table: Table) -> Result<u64, EngineError> {
        self.range(table, ..).count_rows()
    }
}

impl<D: Nand> Drop for Snapshot<D> {
    fn drop(&mut self) {
        if let Reader::Snapshot(id) = self.reader {
            self.runtime.end_snapshot(id);
        }
    }
}
