//! Operations of transactions.

use flagstone_engine::lock::{Mode, Target};
use flagstone_engine::node::{self as node_format, NodeView};
use flagstone_engine::table_with_id;
use flagstone_engine::{Direction, EngineError, Row, RowValue, ScanRange, Step, Stop, Table, Xid};
use flagstone_space::LogicalPage;

use super::engine::{CATALOG, Engine, TABLES};
use super::log::{self, Record};
use super::page::Side;
use crate::classic::access::{RawRow, decode_entry, encode_entry, rows_of};
use crate::classic::page::{cell_of, trimmed};
use crate::classic::record::OwnCell;
use crate::classic::tree::{DEPTH_MAX, Seek, corrupt};
use crate::store::{Stopping, WHOLE};
use crate::workload::Part;

impl Stopping for Engine {
    fn lock_key(&mut self, xid: Xid, table: Table, key: &[u8]) -> Step<()> {
        self.lock_entry(xid, Self::tree_of(table), key, Mode::Exclusive)
    }

    fn get_part(
        &mut self,
        xid: Xid,
        table: Table,
        key: &[u8],
        Part { offset, size }: Part,
        out: &mut Vec<u8>,
    ) -> Step<bool> {
        let tree = Self::tree_of(table);
        self.lock_entry(xid, tree, key, Mode::Shared)?;
        out.clear();
        let leaf = self.leaf_of(tree, key)?;
        let node = NodeView::trusted(self.image(leaf)?);
        let Some(cell) = node.search(key).ok().and_then(|index| node.value(index)) else {
            return Ok(false);
        };
        let end = offset.saturating_add(size).min(cell.bytes().len());
        out.extend_from_slice(cell.bytes().get(offset..end).unwrap_or(&[]));
        Ok(true)
    }

    fn put(&mut self, xid: Xid, table: Table, key: &[u8], value: &[u8]) -> Step<()> {
        let size_max = node_format::value_size_max(self.node_size, key.len());
        if key.len() <= self.key_size_max() && value.len() > size_max {
            return Err(EngineError::ValueTooLong { size: value.len(), size_max }.into());
        }
        let tree = Self::tree_of(table);
        self.lock_entry(xid, tree, key, Mode::Exclusive)?;
        let new = OwnCell { bytes: value.to_vec(), is_ref: false };
        self.perform(xid, tree, key, Some(&new))?;
        self.counts.user_bytes += (key.len() + value.len()) as u64;
        Ok(())
    }

    fn patch(
        &mut self,
        xid: Xid,
        table: Table,
        key: &[u8],
        offset: usize,
        bytes: &[u8],
    ) -> Step<()> {
        let tree = Self::tree_of(table);
        self.lock_entry(xid, tree, key, Mode::Exclusive)?;
        let leaf = self.leaf_of(tree, key)?;
        let out_of_range = EngineError::PatchOutOfRange { offset, size: bytes.len() };
        let Some(mut new) = cell_of(self.image(leaf)?, key) else {
            return Err(out_of_range.into());
        };
        let end = offset.saturating_add(bytes.len());
        let target = new.bytes.get_mut(offset..end).ok_or(Stop::Error(out_of_range))?;
        target.copy_from_slice(bytes);
        self.perform(xid, tree, key, Some(&new))?;
        self.counts.user_bytes += (key.len() + bytes.len()) as u64;
        Ok(())
    }

    fn delete(&mut self, xid: Xid, table: Table, key: &[u8]) -> Step<()> {
        let tree = Self::tree_of(table);
        self.lock_entry(xid, tree, key, Mode::Exclusive)?;
        self.perform(xid, tree, key, None)?;
        self.counts.user_bytes += key.len() as u64;
        Ok(())
    }

    fn scan(
        &mut self,
        xid: Xid,
        table: Table,
        range: &ScanRange,
        direction: Direction,
        limit: usize,
        rows: &mut Vec<Row>,
    ) -> Step<Option<ScanRange>> {
        if range.high.as_ref().is_some_and(|high| *high <= range.low) {
            return Ok(None);
        }
        let tree = Self::tree_of(table);
        let (found, rest) = self.look(tree, range, direction, limit)?;
        let (low, high) = read_part(range, rest.as_ref(), direction);
        self.lock(xid, Target::Interval { tree, low, high }, Mode::Shared)?;
        let row =
            |(key, cell): (Vec<u8>, OwnCell)| Row { key, value: RowValue::Inline(cell.bytes) };
        rows.extend(found.into_iter().map(row));
        Ok(rest)
    }

    fn open_table(&mut self, xid: Xid, name: &str) -> Step<Option<Table>> {
        let mut entry = Vec::new();
        let catalog = table_with_id(CATALOG);
        if !self.get_part(xid, catalog, name.as_bytes(), WHOLE, &mut entry)? {
            return Ok(None);
        }
        let (tree, root) = decode_entry(&entry)
            .ok_or_else(|| corrupt(LogicalPage(0), "catalog does not decode"))?;
        self.trees.insert(tree, root);
        Ok(Some(table_with_id(tree)))
    }

    fn create_table(&mut self, xid: Xid, name: &str) -> Step<Table> {
        self.lock_key(xid, table_with_id(CATALOG), name.as_bytes())?;
        if let Some(table) = self.open_table(xid, name)? {
            return Ok(table);
        }
        let tree = self.trees.keys().last().map_or(TABLES, |last| (last + 1).max(TABLES));
        self.make_room(2)?;
        // The numbers in front of the root's are left to a split of the catalog.
        let root = self.next_pages(DEPTH_MAX)?.pop().ok_or(Stop::Error(EngineError::Full))?;
        self.put(xid, table_with_id(CATALOG), name.as_bytes(), &encode_entry(tree, root))?;
        self.take_page(root);
        self.add_tree(xid, tree, root);
        let leaf = node_format::empty_leaf(tree, self.node_size);
        let part = log::Part::Image { page: root, image: trimmed(&leaf) };
        let lsn = self.log.append(&Record::Shape { parts: vec![part] });
        let mut side = Side { shape: lsn, ..Side::default() };
        side.touched(lsn);
        self.sides.insert(root, side);
        self.pool.change(root, lsn, leaf);
        Ok(table_with_id(tree))
    }
}

impl Engine {
    /// The rows of one leaf at the near end of the range, and the rest of the range.
    fn look(
        &mut self,
        tree: u32,
        range: &ScanRange,
        direction: Direction,
        limit: usize,
    ) -> Step<(Vec<RawRow>, Option<ScanRange>)> {
        let seek = match direction {
            Direction::Forward => Seek::At(&range.low),
            Direction::Backward => Seek::Below(range.high.as_deref()),
        };
        let path = self.path_to(tree, seek)?;
        let leaf = path.last().copied().ok_or(Stop::Error(EngineError::NoTable))?;
        Ok(rows_of(self.image(leaf)?, range, direction, limit))
    }

    /// Learns every tree that the catalog names; only while no other operation is at work.
    pub(super) fn load_trees(&mut self) -> Step<()> {
        let mut range = Some(ScanRange { low: Vec::new(), high: None });
        while let Some(part) = range {
            let (found, rest) = self.look(CATALOG, &part, Direction::Forward, usize::MAX)?;
            for (_, cell) in found {
                let entry = decode_entry(&cell.bytes);
                let (tree, root) =
                    entry.ok_or_else(|| corrupt(LogicalPage(0), "catalog does not decode"))?;
                self.trees.insert(tree, root);
            }
            range = rest;
        }
        Ok(())
    }
}

/// The part of a range that was read when `rest` is left.
fn read_part<'a>(
    range: &'a ScanRange,
    rest: Option<&'a ScanRange>,
    direction: Direction,
) -> (&'a [u8], Option<&'a [u8]>) {
    match (rest, direction) {
        (None, _) => (&range.low, range.high.as_deref()),
        (Some(rest), Direction::Forward) => (&range.low, Some(&rest.low)),
        (Some(rest), Direction::Backward) => {
            (rest.high.as_deref().unwrap_or(&range.low), range.high.as_deref())
        }
    }
}
