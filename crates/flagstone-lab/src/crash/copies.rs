//! Snapshots of the lab's own engines, which have none: copies of all tables.
//!
//! Owns the copies, and how a range is read piece by piece. A copy is read under shared locks, and
//! too old from the start where a writer is in the way, since nothing here may wait.

use std::collections::BTreeMap;

use flagstone_engine::{EngineError, Row, RowValue, ScanRange, Table};

use super::script::Direction;
use super::subject::Pairs;
use crate::model::{Contents, KeyRange, SlotIndex, TableIndex};

/// Rows of a scan's piece.
const ROWS_MAX: usize = 1_000;

/// Arguments for reading a piece of a range: all but the transaction.
#[derive(Debug)]
pub(super) struct Piece<'a> {
    pub(super) table: Table,
    pub(super) range: &'a ScanRange,
    pub(super) direction: flagstone_engine::Direction,
    pub(super) limit: usize,
    pub(super) rows: &'a mut Vec<Row>,
}

/// Pairs of a range, which `read` reads piece by piece; none when it says that a lock is in the way.
pub(super) fn pairs(
    table: Table,
    range: &KeyRange,
    direction: Direction,
    mut read: impl FnMut(Piece<'_>) -> Result<Option<Option<ScanRange>>, EngineError>,
) -> Result<Option<Pairs>, EngineError> {
    let direction = match direction {
        Direction::Forward => flagstone_engine::Direction::Forward,
        Direction::Backward => flagstone_engine::Direction::Backward,
    };
    let mut rest = Some(ScanRange { low: range.low.clone(), high: range.high.clone() });
    let mut pairs = Pairs::new();
    while let Some(range) = &rest {
        let mut rows = Vec::new();
        let piece = Piece { table, range, direction, limit: ROWS_MAX, rows: &mut rows };
        let Some(left) = read(piece)? else { return Ok(None) };
        rest = left;
        pairs.extend(rows.into_iter().map(pair));
    }
    Ok(Some(pairs))
}

fn pair(row: Row) -> (Vec<u8>, Vec<u8>) {
    match row.value {
        RowValue::Inline(value) => (row.key, value),
        // These engines give every value whole.
        RowValue::Large(_) => (row.key, Vec::new()),
    }
}

/// All pairs of `tables`, each read by `read`; none when a lock is in the way of one.
pub(super) fn contents(
    tables: impl Iterator<Item = TableIndex>,
    mut read: impl FnMut(&KeyRange) -> Result<Option<Pairs>, EngineError>,
) -> Result<Option<Contents>, EngineError> {
    let mut contents = Contents::default();
    for table in tables {
        let all = KeyRange { table, low: Vec::new(), high: None };
        let Some(pairs) = read(&all)? else { return Ok(None) };
        pairs.into_iter().for_each(|(key, value)| contents.insert(table, key, value));
    }
    Ok(Some(contents))
}

/// Open snapshots; a snapshot without a copy is too old.
#[derive(Debug, Default)]
pub(super) struct Copies(BTreeMap<SlotIndex, Option<Contents>>);

impl Copies {
    pub(super) fn open(&mut self, slot: SlotIndex, copy: Option<Contents>) {
        self.0.insert(slot, copy);
    }

    pub(super) fn close(&mut self, slot: SlotIndex) {
        self.0.remove(&slot);
    }

    fn copy(&self, slot: SlotIndex) -> Result<&Contents, EngineError> {
        let copy = self.0.get(&slot).ok_or(EngineError::Ended)?;
        copy.as_ref().ok_or(EngineError::SnapshotTooOld)
    }

    pub(super) fn get(
        &self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, EngineError> {
        Ok(self.copy(slot)?.get(&(table, key.to_vec())).map(<[u8]>::to_vec))
    }

    pub(super) fn scan(
        &self,
        slot: SlotIndex,
        table: TableIndex,
        direction: Direction,
    ) -> Result<Pairs, EngineError> {
        let owned = |(key, value): (&[u8], &[u8])| (key.to_vec(), value.to_vec());
        let copy = self.copy(slot)?;
        let mut pairs: Pairs = copy.range(table, b"", None).into_iter().map(owned).collect();
        if direction == Direction::Backward {
            pairs.reverse();
        }
        Ok(pairs)
    }
}
