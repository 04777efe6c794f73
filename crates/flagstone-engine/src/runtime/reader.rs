//! Reading on the calling thread: one key, or the rows of a leaf at a time.
//!
//! Owns the choice between the ways to read: shared, in turn, or past the engine. Never keeps a
//! position in a table.

use std::collections::VecDeque;

use flagstone_nand::Nand;
use flagstone_space::FrozenId;

use super::Runtime;
use crate::engine::{
    DEPTH_MAX, Descriptor, Direction, Engine, LeafRows, Read, Row, ScanRange, SnapshotId, Step,
    Table, named_table,
};
use crate::error::EngineError;
use crate::lock::Xid;

/// Rows of a batch; a shared read returns the rows of one leaf instead.
const BATCH_COUNT: usize = 256;

/// The kind of reader.
#[derive(Clone, Copy, Debug)]
pub enum Reader {
    /// A transaction, which locks the keys it reads.
    Transaction(Xid),
    /// A snapshot.
    Snapshot(SnapshotId),
    /// A named snapshot.
    Named(FrozenId),
}

impl<D: Nand> Runtime<D> {
    /// Begins a snapshot of everything committed durably.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub fn begin_snapshot(&self) -> Result<SnapshotId, EngineError> {
        let at_hand = self.engine_shared().snapshot_at_hand();
        at_hand.or_else(|_| self.run(|engine| engine.begin_snapshot()))
    }

    /// Ends a snapshot.
    pub fn end_snapshot(&self, id: SnapshotId) {
        let has_ended = self.engine_shared().ends_snapshot(id);
        if !has_ended {
            self.engine().end_snapshot(id);
        }
    }

    /// Reads `key` into `out`; a large value is loaded with [`Runtime::load`].
    ///
    /// # Errors
    ///
    /// Errors of the reader: a deadlock, an ended snapshot, a foreign table; the device failed.
    pub fn read_key(
        &self,
        reader: Reader,
        table: Table,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Read, EngineError> {
        let id = match reader {
            Reader::Transaction(xid) => {
                return self.run_for(Some(xid), |engine| engine.get(xid, table, key, out));
            }
            Reader::Named(id) => return self.get_named(id, table, key, out),
            Reader::Snapshot(id) => id,
        };
        let found = self.engine_shared().read_shared(id, table, key, out);
        let missed = match found {
            Ok(read) => return Ok(read),
            Err(missed) => missed,
        };
        self.run_after(missed, None, |engine| engine.get_snapshot(id, table, key, out))
    }

    /// Reads up to `size` bytes at `offset` of the value of `key` into `out`, where the value lies
    /// in its leaf.
    ///
    /// # Errors
    ///
    /// As [`Runtime::read_key`].
    pub fn read_part(
        &self,
        xid: Xid,
        table: Table,
        key: &[u8],
        (offset, size): (usize, usize),
        out: &mut Vec<u8>,
    ) -> Result<Read, EngineError> {
        self.run_for(Some(xid), |engine| engine.get_part(xid, table, key, offset, size, out))
    }

    /// Reads a large value.
    ///
    /// # Errors
    ///
    /// The snapshot was ended; a page of the value is unreadable.
    pub fn load(&self, reader: Reader, descriptor: &Descriptor) -> Result<Vec<u8>, EngineError> {
        let named = match reader {
            Reader::Named(id) => Some(id),
            Reader::Transaction(_) | Reader::Snapshot(_) => None,
        };
        self.load_value_of(named, descriptor).or_else(|error| {
            if let Reader::Snapshot(id) = reader {
                self.engine_shared().require_snapshot(id)?;
            }
            Err(error)
        })
    }

    /// Reads the rows at the near end of `range` and returns the rest of the range. The rows go
    /// into `leaf` where they lie unchanged in one leaf, else into `batch`.
    ///
    /// # Errors
    ///
    /// As [`Runtime::read_key`].
    pub fn read_rows(
        &self,
        reader: Reader,
        table: Table,
        range: &ScanRange,
        direction: Direction,
        (leaf, batch): (&mut LeafRows, &mut VecDeque<Row>),
    ) -> Result<Option<ScanRange>, EngineError> {
        if let Reader::Snapshot(id) = reader
            && let Some(rest) =
                self.engine_shared().read_leaf_shared(id, table, range, direction, leaf)
        {
            return Ok(rest);
        }
        if let Reader::Named(id) = reader {
            return self.scan_named(id, table, range, direction, leaf);
        }
        let mut rows = Vec::new();
        let scan = |engine: &mut Engine| -> Step<Option<ScanRange>> {
            rows.clear();
            match reader {
                Reader::Transaction(xid) => {
                    engine.scan(xid, table, range, direction, BATCH_COUNT, &mut rows)
                }
                Reader::Named(_) => Ok(None),
                Reader::Snapshot(id) => {
                    engine.scan_snapshot(id, table, range, direction, BATCH_COUNT, &mut rows)
                }
            }
        };
        let xid = match reader {
            Reader::Transaction(xid) => Some(xid),
            Reader::Snapshot(_) | Reader::Named(_) => None,
        };
        let rest = self.run_for(xid, scan)?;
        if xid.is_some() {
            // Only for transactions: a snapshot needs the loaded changes, merged or not.
            self.merge_excess();
        }
        batch.extend(rows);
        Ok(rest)
    }

    /// First key behind the leaf of `key`, if the path to the leaf is readable.
    #[must_use]
    pub fn end_of_leaf(&self, reader: Reader, table: Table, key: &[u8]) -> Option<Vec<u8>> {
        match reader {
            Reader::Named(id) => self.end_of_named_leaf(id, table, key),
            Reader::Snapshot(_) | Reader::Transaction(_) => {
                let end_at = |level| self.run(|engine| engine.end_of_child(table, key, level));
                (0..DEPTH_MAX).find_map(|level| end_at(level).ok()).flatten()
            }
        }
    }

    /// The table that a row of [`crate::CATALOG`] names, as a handle for the reader; `None` where
    /// the name is not current any more.
    ///
    /// # Errors
    ///
    /// `NoSnapshot`; the catalog of a named snapshot is unreadable.
    pub fn named_table(
        &self,
        reader: Reader,
        key: &[u8],
        entry: &[u8],
    ) -> Result<Option<(String, Table)>, EngineError> {
        let owner = match reader {
            Reader::Named(id) => self.named_owner(id)?,
            Reader::Snapshot(_) | Reader::Transaction(_) => self.engine_shared().table_owner(),
        };
        Ok(named_table(key, entry).map(|(name, table)| (name, table.owned_by(owner))))
    }
}
