//! Operations of transactions.

use flagstone_engine::Table;
use flagstone_engine::lock::{Mode, Target};
use flagstone_engine::node::{self as node_format, NodeView};
use flagstone_engine::{
    AppendScheme, Direction, EngineError, Row, RowValue, ScanRange, Step, Stop, Xid, table_with_id,
};
use flagstone_space::{LogicalPage, Lsn};

use super::Locking;
use super::engine::{CATALOG, Engine, TABLES};
use super::page;
use super::record::{Change, OwnCell, Part, Record};
use super::tree::{How, Seek, corrupt};

/// A row as a leaf holds it.
pub(crate) type RawRow = (Vec<u8>, OwnCell);

impl Engine {
    /// Locks `key` for a change that depends on its value.
    ///
    /// # Errors
    ///
    /// Stops for the lock; `Deadlock` when the transaction was chosen to end one.
    pub fn lock_key(&mut self, xid: Xid, table: Table, key: &[u8]) -> Step<()> {
        self.lock_entry(xid, Self::tree_of(table), key, Mode::Exclusive)
    }

    /// Reads the value of `key` into `out`; false when there is none.
    ///
    /// # Errors
    ///
    /// Stops for locks and pages; `Deadlock` when the transaction was chosen to end one.
    pub fn get(&mut self, xid: Xid, table: Table, key: &[u8], out: &mut Vec<u8>) -> Step<bool> {
        self.get_part(xid, table, key, 0, usize::MAX, out)
    }

    /// Reads up to `size` bytes at `offset` of a value; false when there is none.
    ///
    /// # Errors
    ///
    /// As [`Engine::get`].
    pub fn get_part(
        &mut self,
        xid: Xid,
        table: Table,
        key: &[u8],
        offset: usize,
        size: usize,
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
        let end = offset.saturating_add(size);
        if cell.is_ref() {
            let cell = OwnCell { bytes: cell.bytes().to_vec(), is_ref: true };
            let long = self.long_of(leaf, &cell)?;
            *out = self.read_long(&long, offset, end)?;
        } else {
            let bytes =
                cell.bytes().get(offset.min(cell.bytes().len())..end.min(cell.bytes().len()));
            out.extend_from_slice(bytes.unwrap_or(&[]));
        }
        Ok(true)
    }

    /// Sets the value of `key`.
    ///
    /// # Errors
    ///
    /// Stops for locks, pages and room; `KeyTooLong`, `ValueTooLong`, `Full`, `Deadlock`.
    pub fn put(&mut self, xid: Xid, table: Table, key: &[u8], value: &[u8]) -> Step<()> {
        let tree = Self::tree_of(table);
        self.set(xid, tree, key, Some(value))?;
        self.counts.user_bytes += (key.len() + value.len()) as u64;
        Ok(())
    }

    /// Removes `key`, whether it exists or not.
    ///
    /// # Errors
    ///
    /// Stops for locks, pages and room; `Full`, `Deadlock`.
    pub fn delete(&mut self, xid: Xid, table: Table, key: &[u8]) -> Step<()> {
        self.set(xid, Self::tree_of(table), key, None)?;
        self.counts.user_bytes += key.len() as u64;
        Ok(())
    }

    /// Overwrites `bytes` at `offset` of a value that exists.
    ///
    /// # Errors
    ///
    /// Stops like a put; `PatchOutOfRange` when the key is absent or the value too short.
    pub fn patch(
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
        let Some(old) = page::cell_of(self.image(leaf)?, key) else {
            return Err(out_of_range.into());
        };
        let long = if old.is_ref { Some(self.long_of(leaf, &old)?) } else { None };
        let size = long.as_ref().map_or(old.bytes.len(), super::value::Long::size);
        let end = offset.checked_add(bytes.len()).filter(|end| *end <= size);
        let end = end.ok_or(Stop::Error(out_of_range))?;
        if let Some(long) = long {
            self.patch_long(xid, &long, offset, bytes)?;
        } else {
            let mut new = old.clone();
            new.bytes[offset..end].copy_from_slice(bytes);
            if let Some(change) = Change::between(Some(old), Some(new)) {
                self.perform(xid, tree, key, &How::Forward(change))?;
            }
        }
        self.counts.user_bytes += (key.len() + bytes.len()) as u64;
        Ok(())
    }

    /// Sets or removes an entry. Called again after a stop, it goes on.
    fn set(&mut self, xid: Xid, tree: u32, key: &[u8], value: Option<&[u8]>) -> Step<()> {
        self.lock_entry(xid, tree, key, Mode::Exclusive)?;
        let size_max = node_format::value_size_max(self.node_size_min(tree), key.len());
        let new = match value {
            Some(value) if value.len() > size_max => Some(self.write_long(xid, tree, key, value)?),
            Some(value) => Some(OwnCell { bytes: value.to_vec(), is_ref: false }),
            None => None,
        };
        let leaf = self.leaf_of(tree, key)?;
        let old = page::cell_of(self.image(leaf)?, key);
        if let Some(old) = old.as_ref().filter(|old| old.is_ref) {
            let long = self.long_of(leaf, old)?;
            self.drop_long(xid, &long)?;
        }
        if let Some(change) = Change::between(old, new) {
            self.perform(xid, tree, key, &How::Forward(change))?;
        }
        self.transaction(xid)?.filling = None;
        Ok(())
    }

    /// A point to which the transaction can return.
    ///
    /// # Errors
    ///
    /// `Ended`, `Deadlock`.
    pub fn savepoint(&mut self, xid: Xid) -> Step<usize> {
        self.transaction(xid).map(|transaction| transaction.undo.len())
    }

    /// Undoes the changes after a savepoint. Called again after a stop, it goes on.
    ///
    /// # Errors
    ///
    /// Stops for pages; `NoSavepoint`.
    pub fn rollback_to(&mut self, xid: Xid, savepoint: usize) -> Step<()> {
        let transaction = self.transaction(xid)?;
        transaction.filling = None;
        if transaction.undo.len() < savepoint {
            return Err(EngineError::NoSavepoint.into());
        }
        while self.undo_count(xid) > savepoint {
            self.undo_one(xid)?;
        }
        Ok(())
    }

    fn undo_count(&self, xid: Xid) -> usize {
        self.transactions.get(&xid).map_or(0, |transaction| transaction.undo.len())
    }

    /// Undoes the last change of a transaction, with a compensation (A4).
    pub(super) fn undo_one(&mut self, xid: Xid) -> Step<()> {
        let Some(transaction) = self.transactions.get(&xid) else { return Ok(()) };
        let [.., last] = transaction.undo.as_slice() else { return Ok(()) };
        let next = transaction.undo.iter().rev().nth(1).map_or(Lsn::ZERO, |u| u.lsn);
        let last = last.clone();
        self.perform(xid, last.tree, &last.key, &How::Undo { edit: last.edit, next })?;
        self.pop_undo(xid);
        Ok(())
    }

    /// Goes on with a rollback; true when the transaction is undone and gone.
    pub(super) fn roll_back(&mut self, xid: Xid) -> Step<bool> {
        if self.undo_count(xid) > 0 {
            self.undo_one(xid)?;
            return Ok(false);
        }
        let previous = self.last_of(xid);
        self.append(&Record::End { xid, previous });
        self.forget(xid);
        Ok(true)
    }

    /// Reads the next rows of `range` into `rows`, at most `limit`; gives the rest of the range.
    ///
    /// # Errors
    ///
    /// As [`Engine::get`]; rows are then as they were.
    pub fn scan(
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
        let (found, rest, leaf) = self.look(tree, range, direction, limit)?;
        match self.config.locking {
            Locking::Record => {
                let (low, high) = read_part(range, rest.as_ref(), direction);
                self.lock(xid, Target::Interval { tree, low, high }, Mode::Shared)?;
            }
            Locking::Page => self.lock(xid, Target::Page(leaf), Mode::Shared)?,
        }
        let mut values = Vec::with_capacity(found.len());
        for (_, cell) in &found {
            values.push(match cell.is_ref {
                true => {
                    let long = self.long_of(leaf, cell)?;
                    self.read_long(&long, 0, usize::MAX)?
                }
                false => cell.bytes.clone(),
            });
        }
        let pairs = found.into_iter().zip(values);
        rows.extend(pairs.map(|((key, _), value)| Row { key, value: RowValue::Inline(value) }));
        Ok(rest)
    }

    /// The rows of one leaf at the near end of the range, and the rest of the range. A row whose
    /// value lies in chunks comes alone, so that its pages find room.
    fn look(
        &mut self,
        tree: u32,
        range: &ScanRange,
        direction: Direction,
        limit: usize,
    ) -> Step<(Vec<RawRow>, Option<ScanRange>, LogicalPage)> {
        let seek = match direction {
            Direction::Forward => Seek::At(&range.low),
            Direction::Backward => Seek::Below(range.high.as_deref()),
        };
        let path = self.path_to(tree, seek)?;
        let leaf = path.last().copied().ok_or(Stop::Error(EngineError::NoTable))?;
        let (found, rest) = rows_of(self.image(leaf)?, range, direction, limit);
        Ok((found, rest, leaf))
    }

    /// Opens a table if it exists.
    ///
    /// # Errors
    ///
    /// Stops for locks and pages.
    pub fn open_table(&mut self, xid: Xid, name: &str) -> Step<Option<Table>> {
        let catalog = table_with_id(CATALOG);
        let mut entry = Vec::new();
        if !self.get(xid, catalog, name.as_bytes(), &mut entry)? {
            return Ok(None);
        }
        let tree = self.learn(name.as_bytes(), &entry);
        let tree = tree.ok_or_else(|| corrupt(LogicalPage(0), "catalog does not decode"))?;
        Ok(Some(table_with_id(tree)))
    }

    /// Opens a table, creating it when it does not exist: with the transaction's commit it is there.
    ///
    /// # Errors
    ///
    /// As a put.
    pub fn create_table(&mut self, xid: Xid, name: &str) -> Step<Table> {
        self.lock_key(xid, table_with_id(CATALOG), name.as_bytes())?;
        if let Some(table) = self.open_table(xid, name)? {
            return Ok(table);
        }
        let tree = self.trees.keys().last().map_or(TABLES, |last| (last + 1).max(TABLES));
        self.make_room(1)?;
        self.admit_log(self.page_size)?;
        self.admit_pages(1)?;
        // Kept in reserve until nothing can stop the creation any more.
        let root = self.peek_page()?;
        let mut entry = encode_entry(tree, root);
        entry.extend_from_slice(&encode_scheme(
            self.config.options.techniques().append_scheme.of(name),
        ));
        self.put(xid, table_with_id(CATALOG), name.as_bytes(), &entry)?;
        let root = self.take_this(root)?;
        self.learn(name.as_bytes(), &entry);
        let image = node_format::empty_leaf(tree, self.node_size(tree));
        let part = Part::Image { page: root, image: page::trimmed(&image) };
        self.install(vec![(part, image)]);
        Ok(table_with_id(tree))
    }

    /// Learns every tree that the catalog names; only while no other operation is at work.
    pub(super) fn load_trees(&mut self) -> Step<()> {
        let mut range = Some(ScanRange { low: Vec::new(), high: None });
        while let Some(part) = range {
            let (found, rest, leaf) = self.look(CATALOG, &part, Direction::Forward, usize::MAX)?;
            for (name, cell) in found {
                let tree = self.learn(&name, &cell.bytes);
                tree.ok_or_else(|| corrupt(leaf, "catalog does not decode"))?;
            }
            range = rest;
        }
        Ok(())
    }

    /// Keeps name, root and scheme of a tree, whose entry of the catalog this is; the tree.
    fn learn(&mut self, name: &[u8], entry: &[u8]) -> Option<u32> {
        let (place, scheme) = entry.split_at_checked(8)?;
        let (tree, root) = decode_entry(place)?;
        let scheme = decode_scheme(scheme)?;
        self.trees.insert(tree, root);
        self.schemes.insert(tree, scheme);
        self.names.insert(tree, String::from_utf8_lossy(name).into_owned());
        Some(tree)
    }
}

/// The rows of a leaf at the near end of the range, and the rest of the range; a row whose value
/// lies elsewhere comes alone.
pub(crate) fn rows_of(
    leaf: &[u8],
    range: &ScanRange,
    direction: Direction,
    limit: usize,
) -> (Vec<RawRow>, Option<ScanRange>) {
    let node = NodeView::trusted(leaf);
    let (Ok(first) | Err(first)) = node.search(&range.low);
    let end = range.high.as_deref().map_or(node.count(), |high| {
        let (Ok(end) | Err(end)) = node.search(high);
        end
    });
    let indexes: Vec<usize> = match direction {
        Direction::Forward => (first..end).collect(),
        Direction::Backward => (first..end).rev().collect(),
    };
    let mut found: Vec<RawRow> = Vec::new();
    let mut is_cut = false;
    for index in indexes {
        let is_alone = found.last().is_some_and(|(_, cell)| cell.is_ref);
        let Some(cell) = node.value(index) else { break };
        if found.len() >= limit || is_alone || (cell.is_ref() && !found.is_empty()) {
            is_cut = true;
            break;
        }
        let mut key = Vec::new();
        node.key_into(index, &mut key);
        found.push((key, OwnCell { bytes: cell.bytes().to_vec(), is_ref: cell.is_ref() }));
    }
    let is_cut = is_cut || found.len() >= limit;
    let rest = rest_of(range, &node, direction, found.last().filter(|_| is_cut));
    (found, rest)
}

/// The rest of a range behind the leaf, or behind the row `cut`.
fn rest_of(
    range: &ScanRange,
    node: &NodeView<'_>,
    direction: Direction,
    cut: Option<&RawRow>,
) -> Option<ScanRange> {
    let (mut low, mut high) = (range.low.clone(), range.high.clone());
    match (direction, cut) {
        (Direction::Forward, Some((key, _))) => {
            low.clone_from(key);
            low.push(0);
        }
        (Direction::Forward, None) => {
            low = node.high()?.to_vec();
        }
        (Direction::Backward, Some((key, _))) => high = Some(key.clone()),
        (Direction::Backward, None) => high = Some(node.low().to_vec()),
    }
    let is_left = high.as_ref().is_none_or(|high| low < *high);
    is_left.then_some(ScanRange { low, high })
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

/// The scheme of appends in an entry of the catalog: empty where there is none.
fn encode_scheme(scheme: AppendScheme) -> Vec<u8> {
    match scheme {
        AppendScheme::None => Vec::new(),
        scheme => scheme.to_string().into_bytes(),
    }
}

fn decode_scheme(bytes: &[u8]) -> Option<AppendScheme> {
    match bytes {
        [] => Some(AppendScheme::None),
        text => std::str::from_utf8(text).ok()?.parse().ok(),
    }
}

/// Entry of the catalog: tree and root.
pub(crate) fn encode_entry(tree: u32, root: LogicalPage) -> Vec<u8> {
    [tree.to_le_bytes(), root.0.to_le_bytes()].concat()
}

/// Tree and root of an entry of the catalog.
pub(crate) fn decode_entry(bytes: &[u8]) -> Option<(u32, LogicalPage)> {
    let (tree, root) = bytes.split_first_chunk::<4>()?;
    let root = u32::from_le_bytes(root.try_into().ok()?);
    Some((u32::from_le_bytes(*tree), LogicalPage(root)))
}
