//! Read-only snapshots of the blocking interface.

use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

use flagstone_nand::Nand;
use flagstone_space::FrozenId;

use super::AnyNand;
use super::rows::{KeyValue, Range, Reader};
use super::sound::SoundRows;
use super::transaction::scan_range;
#[cfg(test)]
use crate::engine::SnapshotId;
use crate::engine::{
    CATALOG, DEPTH_MAX, Descriptor, Engine, Read, ScanRange, Table, TableOwner, named_table,
};
use crate::error::EngineError;
use crate::runtime::Runtime;

/// The database as it was at one durable commit. Never waits for transactions.
///
/// Old versions that it needs stay on the device while it lives. When the device needs their space,
/// the oldest snapshot ends, and its reads give [`EngineError::SnapshotTooOld`]. One that is kept under a name
/// ([`Database::keep_snapshot`](super::Database::keep_snapshot)) stays until it is dropped.
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
pub struct Snapshot<D: Nand = AnyNand> {
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
        let at_hand = runtime.engine_shared().snapshot_at_hand();
        let id = at_hand.or_else(|_| runtime.run(Engine::begin_snapshot))?;
        Ok(Self { runtime, reader: Reader::Snapshot(id) })
    }

    /// One that is kept under a name.
    pub(super) fn kept(runtime: Arc<Runtime<D>>, id: FrozenId) -> Self {
        Self { runtime, reader: Reader::Kept(id) }
    }

    #[cfg(test)]
    pub(crate) fn id(&self) -> SnapshotId {
        let Reader::Snapshot(id) = self.reader else { panic!("it is kept under a name") };
        id
    }

    /// The table of that name, as the snapshot has it: one that was dropped or renamed since is found by the
    /// name that it had.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::get`].
    pub fn table(&self, name: &str) -> Result<Option<Table>, EngineError> {
        let entry = self.get(CATALOG, name.as_bytes())?;
        let found = entry.and_then(|entry| named_table(name.as_bytes(), &entry));
        let owner = self.owner()?;
        Ok(found.map(|(_, table)| table.owned_by(owner)))
    }

    /// Names of all tables that it has, in order.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::get`].
    pub fn tables(&self) -> Result<Vec<String>, EngineError> {
        Ok(self.named_tables()?.into_iter().map(|(name, _)| name).collect())
    }

    /// All tables that it has, in order of their names.
    pub(crate) fn named_tables(&self) -> Result<Vec<(String, Table)>, EngineError> {
        let owner = self.owner()?;
        let found = self.range(CATALOG, ..).map(|row| {
            let (key, entry) = row?;
            Ok(named_table(&key, &entry).map(|(name, table)| (name, table.owned_by(owner))))
        });
        found.filter_map(Result::transpose).collect()
    }

    /// Whom its tables belong to.
    fn owner(&self) -> Result<TableOwner, EngineError> {
        match self.reader {
            Reader::Kept(id) => self.runtime.kept_owner(id),
            Reader::Snapshot(_) | Reader::Transaction(_) => {
                Ok(self.runtime.engine_shared().table_owner())
            }
        }
    }

    /// The value of `key`.
    ///
    /// # Errors
    ///
    /// `SnapshotTooOld` when the snapshot was ended to free its space; `ForeignTable` for a table of another database,
    /// or of another kept snapshot.
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
        let id = match self.reader {
            Reader::Snapshot(id) => id,
            Reader::Kept(id) => return self.runtime.get_kept(id, table, key, value),
            Reader::Transaction(_) => return Err(EngineError::NoSnapshot),
        };
        let found = self.runtime.engine_shared().read_shared(id, table, key, value);
        let missed = match found {
            Ok(read) => return Ok(read),
            Err(missed) => missed,
        };
        self.runtime.run_after(missed, None, |engine| engine.get_snapshot(id, table, key, value))
    }

    fn load(&self, descriptor: &Descriptor) -> Result<Vec<u8>, EngineError> {
        self.reader.load(&self.runtime, descriptor)
    }

    /// Rows of a range in ascending order; [`Range::rev`] turns it around.
    pub fn range<'a>(&'a self, table: Table, bounds: impl RangeBounds<&'a [u8]>) -> Range<'a, D> {
        self.rows(table, scan_range(&bounds))
    }

    /// Rows of a table in ascending order, past damage: what does not read is told by its key range, and the rows
    /// behind it are given.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// use flagstone::SoundRow;
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
    pub fn sound_rows(&self, table: Table) -> SoundRows<'_, D> {
        SoundRows::new(self.range(table, ..), Box::new(move |key| self.end_of_leaf(table, key)))
    }

    /// First key behind the leaf of `key`, as far as the way to it reads; none where that is not known, or the leaf is
    /// the last one.
    fn end_of_leaf(&self, table: Table, key: &[u8]) -> Option<Vec<u8>> {
        match self.reader {
            Reader::Kept(id) => self.runtime.end_of_kept_leaf(id, table, key),
            Reader::Snapshot(_) | Reader::Transaction(_) => {
                let end_at =
                    |level| self.runtime.run(|engine| engine.end_of_child(table, key, level));
                (0..DEPTH_MAX).find_map(|level| end_at(level).ok()).flatten()
            }
        }
    }

    /// Rows whose keys start with `prefix`.
    pub fn prefix(&self, table: Table, prefix: &[u8]) -> Range<'_, D> {
        self.rows(table, ScanRange::prefix(prefix))
    }

    pub(crate) fn rows(&self, table: Table, range: ScanRange) -> Range<'_, D> {
        let (runtime, reader) = self.reader();
        Range::new(runtime, reader, table, range)
    }

    pub(super) fn reader(&self) -> (&Runtime<D>, Reader) {
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
            let has_ended = self.runtime.engine_shared().ends_snapshot(id);
            if !has_ended {
                self.runtime.engine().end_snapshot(id);
            }
        }
    }
}
