//! Ranges: one leaf a call, base entries and changes merged on the way.

use std::ops::Bound;

use flagstone_space::Lsn;

use crate::delta::{DeltaMap, KeyRange, Value, apply};
use crate::engine::step::Step;
use crate::engine::store::Store;
use crate::engine::store::catalog::Table;
use crate::engine::store::descent::Seek;
use crate::engine::store::pool::FrameIndex;
use crate::engine::store::snapshot::{OldLeaf, SnapshotId};
use crate::engine::store::value::Descriptor;
use crate::error::EngineError;
use crate::node::{NodeView, ValueRef};

/// Order of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Ascending keys.
    #[default]
    Forward,
    /// Descending keys.
    Backward,
}

/// Value of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowValue {
    /// The bytes.
    Inline(Vec<u8>),
    /// Pages of its own, which the caller reads.
    Large(Descriptor),
}

/// One row of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Key.
    pub key: Vec<u8>,
    /// Value.
    pub value: RowValue,
}

/// Keys still to be scanned: from `low` (inclusive) to `high` (exclusive; none = no end).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanRange {
    /// First key.
    pub low: Vec<u8>,
    /// First key above.
    pub high: Option<Vec<u8>>,
}

impl ScanRange {
    /// The range of two bounds.
    #[must_use]
    pub fn from_bounds(low: Bound<&[u8]>, high: Bound<&[u8]>) -> Self {
        let low = match low {
            Bound::Unbounded => Vec::new(),
            Bound::Included(key) => key.to_vec(),
            Bound::Excluded(key) => successor(key),
        };
        let high = match high {
            Bound::Unbounded => None,
            Bound::Included(key) => Some(successor(key)),
            Bound::Excluded(key) => Some(key.to_vec()),
        };
        Self { low, high }
    }

    /// Keys that start with `prefix`.
    #[must_use]
    pub fn prefix(prefix: &[u8]) -> Self {
        let mut high = prefix.to_vec();
        while let Some(last) = high.pop() {
            if last < u8::MAX {
                high.push(last + 1);
                return Self { low: prefix.to_vec(), high: Some(high) };
            }
        }
        Self { low: prefix.to_vec(), high: None }
    }

    /// Whether no key can be inside.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.high.as_ref().is_some_and(|high| *high <= self.low)
    }

    pub(crate) fn as_key_range(&self) -> KeyRange<'_> {
        KeyRange { low: &self.low, high: self.high.as_deref() }
    }
}

/// The smallest key above `key`.
#[must_use]
pub fn successor(key: &[u8]) -> Vec<u8> {
    let mut next = key.to_vec();
    next.push(0);
    next
}

/// Where a part of a scan takes its base from.
enum Base {
    Frame(FrameIndex),
    Old(OldLeaf),
}

/// The part of a scan that one leaf answers.
pub(in crate::engine) struct Part {
    base: Base,
    pub(in crate::engine) range: ScanRange,
}

impl Store {
    /// As `Transactions::scan` over committed rows, without a transaction.
    pub(crate) fn scan_committed(
        &mut self,
        table: Table,
        range: &ScanRange,
        direction: Direction,
        out: &mut Vec<Row>,
    ) -> Step<Option<ScanRange>> {
        self.require_whole_images()?;
        let part = self.part_of(table, range, direction, None)?;
        let rows = self.rows_of(table, &part, Lsn(u64::MAX), &DeltaMap::new())?;
        Ok(deliver(rows, part.range, range, direction, usize::MAX, out))
    }

    /// As `Transactions::scan`, as snapshot `snapshot` sees the rows; locks nothing.
    ///
    /// # Errors
    ///
    /// Stops for pages; `SnapshotTooOld` when the snapshot was ended.
    pub fn scan_snapshot(
        &mut self,
        snapshot: SnapshotId,
        table: Table,
        range: &ScanRange,
        direction: Direction,
        limit: usize,
        out: &mut Vec<Row>,
    ) -> Step<Option<ScanRange>> {
        if range.is_empty() {
            return Ok(None);
        }
        let (table, upto) = (self.own(table)?, self.snapshots.lsn(snapshot)?);
        self.require_table_at(table, upto)?;
        let part = self.part_of(table, range, direction, Some(upto))?;
        let rows = self.rows_of(table, &part, upto, &DeltaMap::new())?;
        Ok(deliver(rows, part.range, range, direction, limit, out))
    }

    /// The leaf at the near end of `range`, and the part of the range that it answers.
    pub(in crate::engine) fn part_of(
        &mut self,
        table: Table,
        range: &ScanRange,
        direction: Direction,
        snapshot: Option<Lsn>,
    ) -> Step<Part> {
        let seek = match direction {
            Direction::Forward => Seek::At(&range.low),
            Direction::Backward => Seek::Below(range.high.as_deref()),
        };
        let index = self.leaf_for(table, seek)?;
        let view = NodeView::trusted(&self.pool.frame(index).image);
        let mut part = clip(range, view.low(), view.high());
        if !self.runs.is_empty() {
            let is_left = self.has_left_runs(table, part.as_key_range(), Lsn(u64::MAX));
            self.note_run_read(is_left);
        }
        match direction {
            Direction::Forward => {
                let end = self.load_some_runs(table, part.as_key_range(), Lsn(u64::MAX))?;
                part.high = end.or(part.high);
            }
            Direction::Backward => {
                let end = self.load_last_runs(table, part.as_key_range())?;
                part.low = end.unwrap_or(part.low);
            }
        }
        clip_to_changes(&self.tree(table)?.deltas, &mut part, direction);
        let Some(upto) = snapshot else {
            return Ok(Part { base: Base::Frame(index), range: part });
        };
        match self.old_leaf_for(table, upto, &part, direction)? {
            (None, part) => Ok(Part { base: Base::Frame(index), range: part }),
            (Some(old), part) => Ok(Part { base: Base::Old(old), range: part }),
        }
    }

    /// Rows of a part in ascending order.
    pub(in crate::engine) fn rows_of(
        &mut self,
        table: Table,
        part: &Part,
        upto: Lsn,
        own: &DeltaMap,
    ) -> Result<Vec<Row>, EngineError> {
        let range = part.range.as_key_range();
        let tree = self.tree(table).map_err(|_| EngineError::NoTable)?;
        match &part.base {
            Base::Frame(index) => {
                let frame = self.pool.frame(*index);
                let view = NodeView::trusted(&frame.image);
                Ok(merge_rows(Some((&view, frame.lsn)), &tree.deltas, upto, own, range)?)
            }
            Base::Old(old) => {
                let image = self.snapshots.old_image(old);
                let view = image.map(NodeView::trusted);
                let base = view.as_ref().map(|view| (view, old.base_lsn));
                let deltas = &tree.retained.leaf(old).deltas;
                Ok(merge_rows(base, deltas, upto, own, range)?)
            }
        }
    }
}

/// Changes that one call looks at, at most: a leaf may have many more waiting.
const CHANGES_MAX: usize = 1024;

/// Shortens a part so that few changes of `deltas` lie in it.
fn clip_to_changes(deltas: &DeltaMap, part: &mut ScanRange, direction: Direction) {
    match direction {
        Direction::Forward => {
            let next = deltas.range(part.as_key_range()).nth(CHANGES_MAX);
            if let Some(key) = next.map(|entry| entry.key().to_vec()) {
                part.high = Some(key);
            }
        }
        Direction::Backward => {
            let from = part.high.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let next = deltas.backward(from).take_while(|entry| entry.key() >= part.low.as_slice());
            if let Some(key) = next.map(|entry| entry.key().to_vec()).nth(CHANGES_MAX) {
                part.low = key;
            }
        }
    }
}

/// The part of `range` inside a node's fences.
pub(super) fn clip(range: &ScanRange, low: &[u8], high: Option<&[u8]>) -> ScanRange {
    let high = match (range.high.as_deref(), high) {
        (Some(left), Some(right)) => Some(left.min(right)),
        (left, right) => left.or(right),
    };
    ScanRange { low: range.low.as_slice().max(low).to_vec(), high: high.map(<[u8]>::to_vec) }
}

/// Hands rows over and returns the rest of the range.
pub(in crate::engine) fn deliver(
    mut rows: Vec<Row>,
    part: ScanRange,
    range: &ScanRange,
    direction: Direction,
    limit: usize,
    out: &mut Vec<Row>,
) -> Option<ScanRange> {
    if direction == Direction::Backward {
        rows.reverse();
    }
    let is_cut = rows.len() > limit;
    rows.truncate(limit);
    let last = rows.last().map(|row| row.key.clone());
    out.append(&mut rows);
    let rest = match (direction, is_cut, last) {
        (Direction::Forward, true, Some(last)) => {
            ScanRange { low: successor(&last), high: range.high.clone() }
        }
        (Direction::Forward, _, _) => ScanRange { low: part.high?, high: range.high.clone() },
        (Direction::Backward, true, last) => ScanRange { low: range.low.clone(), high: last },
        (Direction::Backward, false, _) => {
            if part.low.is_empty() {
                return None;
            }
            ScanRange { low: range.low.clone(), high: Some(part.low) }
        }
    };
    (!rest.is_empty()).then_some(rest)
}

/// Base entries, committed changes and own changes of `range`, by key.
fn merge_rows(
    base: Option<(&NodeView<'_>, Lsn)>,
    deltas: &DeltaMap,
    upto: Lsn,
    own: &DeltaMap,
    range: KeyRange<'_>,
) -> Result<Vec<Row>, EngineError> {
    let base_lsn = base.map_or(Lsn::ZERO, |(_, lsn)| lsn);
    let mut entries = BaseEntries::new(base.map(|(view, _)| view), range);
    let mut changes = deltas.range(range).peekable();
    let mut own = own.range(range).peekable();
    let mut rows = Vec::new();
    loop {
        let next = [
            entries.key(),
            changes.peek().map(|entry| entry.key()),
            own.peek().map(|entry| entry.key()),
        ];
        let Some(key) = next.into_iter().flatten().min().map(<[u8]>::to_vec) else { break };
        let mut value = entries.take(&key);
        if let Some(entry) = changes.next_if(|entry| entry.key() == key) {
            for (lsn, op) in entry.versions().filter(|(lsn, _)| *lsn > base_lsn && *lsn <= upto) {
                debug_assert!(lsn <= upto, "a reader sees no later commit");
                let _ = apply(op, &mut value);
            }
        }
        if let Some(entry) = own.next_if(|entry| entry.key() == key) {
            for (_, op) in entry.versions() {
                let _ = apply(op, &mut value);
            }
        }
        if let Some(value) = value {
            rows.push(Row { key, value: row_value(value)? });
        }
    }
    Ok(rows)
}

fn row_value(value: Value) -> Result<RowValue, EngineError> {
    match value {
        Value::Inline(bytes) => Ok(RowValue::Inline(bytes)),
        Value::Ref(descriptor) => Descriptor::decode(&descriptor).map(RowValue::Large),
    }
}

/// Entries of a leaf inside a range, one at a time.
struct BaseEntries<'a> {
    view: Option<&'a NodeView<'a>>,
    index: usize,
    end: usize,
    key: Vec<u8>,
}

impl<'a> BaseEntries<'a> {
    fn new(view: Option<&'a NodeView<'a>>, range: KeyRange<'_>) -> Self {
        let place = |view: &NodeView<'_>, key: &[u8]| view.search(key).unwrap_or_else(|at| at);
        let index = view.map_or(0, |view| place(view, range.low));
        let end = view.map_or(0, |view| range.high.map_or(view.count(), |high| place(view, high)));
        let mut entries = Self { view, index, end, key: Vec::new() };
        entries.load();
        entries
    }

    fn load(&mut self) {
        self.key.clear();
        if let Some(view) = self.view
            && self.index < self.end
        {
            view.key_into(self.index, &mut self.key);
        }
    }

    fn key(&self) -> Option<&[u8]> {
        (self.index < self.end).then_some(self.key.as_slice())
    }

    /// The value of `key` if it is the next one.
    fn take(&mut self, key: &[u8]) -> Option<Value> {
        if self.key() != Some(key) {
            return None;
        }
        let value = self.view.and_then(|view| view.entry(self.index)).map(|entry| entry.value);
        self.index += 1;
        self.load();
        value.map(|value| match value {
            ValueRef::Inline(bytes) => Value::Inline(bytes.to_vec()),
            ValueRef::Ref(descriptor) => Value::Ref(descriptor.to_vec()),
        })
    }
}
