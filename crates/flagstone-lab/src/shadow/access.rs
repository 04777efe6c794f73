//! Operations of transactions.

use flagstone_engine::lock::Mode;
use flagstone_engine::node::{self as node_format, NodeView};
use flagstone_engine::table_with_id;
use flagstone_engine::{Direction, EngineError, Row, RowValue, ScanRange, Step, Stop, Table, Xid};
use flagstone_space::LogicalPage;

use super::engine::{CATALOG, Engine, TABLES};
use crate::classic::access::{decode_entry, encode_entry, rows_of};
use crate::classic::page;
use crate::classic::record::{Change, OwnCell};
use crate::classic::tree::{DEPTH_MAX, Seek, corrupt};
use crate::store::{Stopping, WHOLE};
use crate::workload::Part;

impl Stopping for Engine {
    fn lock_key(&mut self, xid: Xid, table: Table, key: &[u8]) -> Step<()> {
        self.leaf_of(xid, Self::tree_of(table), key, Mode::Exclusive).map(|_| ())
    }

    fn get_part(
        &mut self,
        xid: Xid,
        table: Table,
        key: &[u8],
        Part { offset, size }: Part,
        out: &mut Vec<u8>,
    ) -> Step<bool> {
        out.clear();
        let leaf = self.leaf_of(xid, Self::tree_of(table), key, Mode::Shared)?;
        let node = NodeView::trusted(self.image(leaf)?);
        let Some(cell) = node.search(key).ok().and_then(|index| node.value(index)) else {
            return Ok(false);
        };
        let end = offset.saturating_add(size).min(cell.bytes().len());
        out.extend_from_slice(cell.bytes().get(offset..end).unwrap_or(&[]));
        Ok(true)
    }

    fn put(&mut self, xid: Xid, table: Table, key: &[u8], value: &[u8]) -> Step<()> {
        let size_max = node_format::value_size_max(self.page_size, key.len());
        if key.len() <= self.key_size_max() && value.len() > size_max {
            return Err(EngineError::ValueTooLong { size: value.len(), size_max }.into());
        }
        self.set(xid, Self::tree_of(table), key, Some(value))?;
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
        let leaf = self.leaf_of(xid, tree, key, Mode::Exclusive)?;
        let out_of_range = EngineError::PatchOutOfRange { offset, size: bytes.len() };
        let Some(old) = page::cell_of(self.image(leaf)?, key) else {
            return Err(out_of_range.into());
        };
        let mut new = old.clone();
        let end = offset.saturating_add(bytes.len());
        let target = new.bytes.get_mut(offset..end).ok_or(Stop::Error(out_of_range))?;
        target.copy_from_slice(bytes);
        if let Some(change) = Change::between(Some(old), Some(new)) {
            self.perform(xid, tree, key, &change.redo())?;
        }
        self.counts.user_bytes += (key.len() + bytes.len()) as u64;
        Ok(())
    }

    fn delete(&mut self, xid: Xid, table: Table, key: &[u8]) -> Step<()> {
        self.set(xid, Self::tree_of(table), key, None)?;
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
        self.check(xid)?;
        if range.high.as_ref().is_some_and(|high| *high <= range.low) {
            return Ok(None);
        }
        let seek = match direction {
            Direction::Forward => Seek::At(&range.low),
            Direction::Backward => Seek::Below(range.high.as_deref()),
        };
        let leaf = self.leaf_to(xid, Self::tree_of(table), seek, Mode::Shared)?;
        let (found, rest) = rows_of(self.image(leaf)?, range, direction, limit);
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
        // The numbers in front of the root's are left to a split of the catalog, and nothing can
        // stop the creation once the catalog names the root.
        let root = self.next_pages(DEPTH_MAX)?.pop().ok_or(Stop::Error(EngineError::Full))?;
        self.put(xid, table_with_id(CATALOG), name.as_bytes(), &encode_entry(tree, root))?;
        self.lock(xid, root, Mode::Exclusive)?;
        self.take_page(xid, root);
        self.add_tree(xid, tree, root);
        self.change(xid, root, node_format::empty_leaf(tree, self.page_size));
        Ok(table_with_id(tree))
    }
}

impl Engine {
    fn leaf_of(&mut self, xid: Xid, tree: u32, key: &[u8], mode: Mode) -> Step<LogicalPage> {
        self.check(xid)?;
        let size_max = self.key_size_max();
        if key.len() > size_max {
            return Err(EngineError::KeyTooLong { size: key.len(), size_max }.into());
        }
        self.leaf_to(xid, tree, Seek::At(key), mode)
    }

    fn set(&mut self, xid: Xid, tree: u32, key: &[u8], value: Option<&[u8]>) -> Step<()> {
        let leaf = self.leaf_of(xid, tree, key, Mode::Exclusive)?;
        let old = page::cell_of(self.image(leaf)?, key);
        let new = value.map(|value| OwnCell { bytes: value.to_vec(), is_ref: false });
        match Change::between(old, new) {
            Some(change) => self.perform(xid, tree, key, &change.redo()),
            None => Ok(()),
        }
    }

    /// Learns every tree that the catalog names; only while no other operation is at work.
    pub(super) fn load_trees(&mut self, xid: Xid) -> Step<()> {
        let mut range = Some(ScanRange { low: Vec::new(), high: None });
        while let Some(part) = range {
            let leaf = self.leaf_to(xid, CATALOG, Seek::At(&part.low), Mode::Shared)?;
            let (found, rest) = rows_of(self.image(leaf)?, &part, Direction::Forward, usize::MAX);
            for (_, cell) in found {
                let entry = decode_entry(&cell.bytes);
                let (tree, root) = entry.ok_or_else(|| corrupt(leaf, "catalog does not decode"))?;
                self.trees.insert(tree, root);
            }
            range = rest;
        }
        Ok(())
    }
}
