//! The tree on its units: reading, changing, splitting, merging and flushing nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flagstone_nand::Nand;
use flagstone_space::{
    LogicalPage, Lsn, NoOwner, RegionId, Space, SpaceOptions, SpaceStats, Version, WriteTag,
};

use super::buffer::Buffer;
use super::cache::Cache;
use super::format::{Form, Group};
use super::node::{Node, NodeId, ROOT, Unit, units_of};
use super::table::Table;
use super::{BftlError, BftlStats, Config, FlushAt, Mistake};

/// Log pages of a space that logs nothing.
const LOG_PAGES: u32 = 1;
/// Copies of nodes that are kept however little memory there is: a path and its neighbour.
const COPIES_MIN: usize = 4;
/// A node with less than this share of its entries merges with a neighbour, if both then fill less than
/// three quarters: a node just merged does not split at once.
const MERGE_BELOW: usize = 3;
const NODE_ENTRIES_MIN: usize = 4;

/// A B+-tree whose nodes are index units.
#[derive(Clone, Debug)]
pub struct Bftl<D> {
    space: Space<D>,
    config: Config,
    form: Form,
    node_max: usize,
    table: Table,
    buffer: Buffer,
    cache: Cache,
    stats: BftlStats,
    scratch: Vec<u8>,
}

/// Nodes from the root to a leaf.
struct Path {
    key: u64,
    nodes: Vec<NodeId>,
    leaf: Arc<Node>,
    /// Lowest key behind the leaf; none where nothing is.
    end: Option<u64>,
}

impl<D: Nand> Bftl<D> {
    /// Formats a device for an empty tree.
    ///
    /// # Errors
    ///
    /// The device is too small, or its pages are; it failed.
    pub fn format(device: D, config: Config) -> Result<Self, BftlError> {
        let options = SpaceOptions { log_pages: LOG_PAGES, ..SpaceOptions::default() };
        let mut space = Space::format(device, &options)?;
        space.checkpoint(&[])?;
        let mut store = Self::on(space, config)?;
        store.table.take(ROOT);
        store.buffer.begin(ROOT, 0, Vec::new());
        store.flush()?;
        Ok(store)
    }

    /// Opens a device: reads every page, and makes the table from their contents (rule B2).
    ///
    /// # Errors
    ///
    /// The device holds no tree, or the tree cannot be read.
    pub fn open(device: D, config: Config) -> Result<Self, BftlError> {
        let (space, _) = Space::mount(device)?;
        let mut store = Self::on(space, config)?;
        let mut lists: BTreeMap<NodeId, Vec<(Version, u32, bool)>> = BTreeMap::new();
        let pages: Vec<LogicalPage> = store.space.mapped_pages().collect();
        for page in &pages {
            let (groups, version) = store.read_page(page.0)?;
            for group in groups {
                lists.entry(group.node).or_default().push((version, page.0, group.is_base));
            }
        }
        for (node, mut list) in lists {
            list.sort_unstable();
            store.table.take(node);
            let base = list.iter().rposition(|(_, _, is_base)| *is_base).unwrap_or(0);
            let base = if store.config.mistake == Mistake::BaseIgnored { 0 } else { base };
            for (_, page, _) in &list[base..] {
                store.table.add(node, *page, false)?;
            }
        }
        pages.iter().for_each(|page| store.table.free_if_unused(page.0));
        // Nodes that were merged away are still on pages which others need.
        let reachable = store.reachable()?;
        store.table.keep(&reachable);
        Ok(store)
    }

    fn on(space: Space<D>, config: Config) -> Result<Self, BftlError> {
        let form = Form { key_size: config.key_size, page_size: space.payload_size() };
        if !matches!(config.key_size, 4 | 8) {
            return Err(BftlError::Unfit("keys have four or eight bytes"));
        }
        let node_max = config.node_max.unwrap_or(usize::MAX).min(form.units_max());
        if node_max < NODE_ENTRIES_MIN {
            return Err(BftlError::Unfit("a page holds a node of four entries"));
        }
        let table = Table::new(config.mistake);
        let (buffer, cache) = (Buffer::default(), Cache::default());
        let (stats, scratch) = (BftlStats::default(), Vec::new());
        Ok(Self { space, config, form, node_max, table, buffer, cache, stats, scratch })
    }

    /// How the store is kept.
    #[must_use]
    pub const fn config(&self) -> Config {
        self.config
    }

    /// Counters of the store.
    #[must_use]
    pub const fn stats(&self) -> BftlStats {
        self.stats
    }

    /// Sets all counters to zero, the counters of the floor below and of the device, too.
    pub fn reset_stats(&mut self) {
        self.stats = BftlStats::default();
        self.space.reset_stats();
        self.space.device_mut().reset_counters();
    }

    /// Counters of the floor below.
    #[must_use]
    pub fn space_stats(&self) -> SpaceStats {
        self.space.stats()
    }

    /// Bytes of memory that the table takes.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        self.table.bytes()
    }

    /// Pages that hold units, pages that no node needs among them.
    #[must_use]
    pub fn live_pages(&self) -> u32 {
        self.space.live_pages()
    }

    /// The device, to look at.
    #[must_use]
    pub fn device(&self) -> &D {
        self.space.device()
    }

    /// Gives the device back. The units in the buffer are lost.
    #[must_use]
    pub fn into_device(self) -> D {
        self.space.into_device()
    }

    /// The pointer of a key.
    ///
    /// # Errors
    ///
    /// A node cannot be read.
    pub fn get(&mut self, key: u64) -> Result<Option<u32>, BftlError> {
        Ok(self.descend(key)?.leaf.get(key))
    }

    /// Up to `count` keys with their pointers, from `key` on.
    ///
    /// # Errors
    ///
    /// A node cannot be read.
    pub fn range(&mut self, key: u64, count: usize) -> Result<Vec<(u64, u32)>, BftlError> {
        let mut rows = Vec::new();
        let mut from = Some(key);
        while let Some(key) = from.filter(|_| rows.len() < count) {
            let path = self.descend(key)?;
            rows.extend(path.leaf.from(key).iter().take(count - rows.len()));
            from = path.end;
        }
        Ok(rows)
    }

    /// Sets the pointer of a key, which need not be there.
    ///
    /// # Errors
    ///
    /// A node cannot be read or written.
    pub fn put(&mut self, key: u64, pointer: u32) -> Result<(), BftlError> {
        let path = self.descend(key)?;
        self.change(path.leaf_id(), 0, Unit::Put { key, pointer });
        self.split(&path)?;
        self.flush_if_full()
    }

    /// Takes a key out; whether it was there.
    ///
    /// # Errors
    ///
    /// A node cannot be read or written.
    pub fn delete(&mut self, key: u64) -> Result<bool, BftlError> {
        let path = self.descend(key)?;
        if path.leaf.get(key).is_none() {
            return Ok(false);
        }
        self.change(path.leaf_id(), 0, Unit::Delete { key });
        self.merge(&path.nodes)?;
        self.flush_if_full()?;
        Ok(true)
    }

    /// A request has ended: where each is to be durable, it is from now on.
    ///
    /// # Errors
    ///
    /// As [`Bftl::flush`].
    pub fn end_request(&mut self) -> Result<(), BftlError> {
        match self.config.flush_at {
            FlushAt::Full => Ok(()),
            FlushAt::Request => self.flush(),
        }
    }

    /// Makes the mapping of pages durable, so that a mount is quick.
    ///
    /// # Errors
    ///
    /// The floor below failed.
    pub fn checkpoint(&mut self) -> Result<(), BftlError> {
        self.space.ensure_room(0, &mut NoOwner)?;
        Ok(self.space.checkpoint(&[])?)
    }

    /// The path to the leaf whose range holds `key`.
    fn descend(&mut self, key: u64) -> Result<Path, BftlError> {
        let (mut nodes, mut end) = (vec![ROOT], None);
        let mut node = self.node(ROOT)?;
        while node.level > 0 {
            let place = node.child_place(key);
            let child = node.entries.get(place).map(|(_, child)| *child);
            let child = child.ok_or(BftlError::NoNode(nodes[nodes.len() - 1]))?;
            end = node.entries.get(place + 1).map(|(key, _)| *key).or(end);
            nodes.push(child);
            node = self.node(child)?;
        }
        Ok(Path { key, nodes, leaf: node, end })
    }

    /// A node as it is (rule B1).
    fn node(&mut self, id: NodeId) -> Result<Arc<Node>, BftlError> {
        self.stats.references += 1;
        if let Some(node) = self.cache.get(id) {
            self.stats.hits += 1;
            return Ok(node);
        }
        let read = self.stats.pages_read;
        let node = Arc::new(self.rebuild(id, self.buffer.get(id).cloned())?);
        self.stats.hits += u64::from(self.stats.pages_read == read);
        self.cache.insert(id, Arc::clone(&node));
        self.cache.shrink(self.copies_max());
        Ok(node)
    }

    /// Copies of nodes for which buffer and table leave memory.
    fn copies_max(&self) -> usize {
        let buffer = self.config.buffer_units * self.config.waiting_size();
        let left = self.config.memory.saturating_sub(buffer + self.table.bytes());
        (left / self.form.page_size).max(COPIES_MIN)
    }

    /// A node from its pages, and from the units that wait for it.
    fn rebuild(&mut self, id: NodeId, waiting: Option<Group>) -> Result<Node, BftlError> {
        let mut node = Node::default();
        let mistake = self.config.mistake;
        let waiting = waiting.filter(|_| mistake != Mistake::BufferIgnored);
        if waiting.as_ref().is_none_or(|group| !group.is_base) {
            let mut pages = self.table.list(id)?.to_vec();
            if mistake == Mistake::NewestFirst {
                pages.reverse();
            }
            for page in pages {
                let (groups, _) = self.read_page(page)?;
                let group = groups.into_iter().find(|group| group.node == id);
                let check = "a page lacks units of a node that lists it";
                apply(&mut node, &group.ok_or(BftlError::Corrupt { page, check })?);
            }
        }
        if let Some(group) = &waiting {
            apply(&mut node, group);
        }
        Ok(node)
    }

    fn read_page(&mut self, page: u32) -> Result<(Vec<Group>, Version), BftlError> {
        let info = self.space.read(LogicalPage(page), &mut self.scratch)?;
        self.stats.pages_read += 1;
        let groups = self.form.decode(&self.scratch);
        let check = "no page of units";
        Ok((groups.ok_or(BftlError::Corrupt { page, check })?, info.version))
    }

    /// Changes a node that was read: a unit more.
    fn change(&mut self, id: NodeId, level: u8, unit: Unit) {
        self.buffer.push(id, level, unit);
        if let Some(node) = self.cache.get_mut(id) {
            node.apply(unit);
        }
    }

    /// Makes node `id` anew of these entries.
    fn begin(&mut self, id: NodeId, level: u8, entries: &[(u64, u32)]) {
        self.buffer.begin(id, level, units_of(entries));
        self.cache.insert(id, Arc::new(Node { level, entries: entries.to_vec() }));
        self.cache.shrink(self.copies_max());
    }

    fn forget(&mut self, id: NodeId) {
        self.buffer.forget(id);
        self.cache.forget(id);
        self.table.forget(id);
    }

    /// Splits nodes that have become too large, from the leaf upwards.
    fn split(&mut self, path: &Path) -> Result<(), BftlError> {
        for depth in (0..path.nodes.len()).rev() {
            let id = path.nodes[depth];
            let node = self.node(id)?;
            if node.len() <= self.node_max {
                return Ok(());
            }
            self.stats.splits += 1;
            let place = if path.is_at_end() { node.len() - 1 } else { node.len() / 2 };
            let (low, high) = node.entries.split_at(place);
            let separator = high[0].0;
            let right = self.table.new_node();
            self.begin(right, node.level, high);
            if depth == 0 {
                let left = self.table.new_node();
                self.begin(left, node.level, low);
                self.begin(ROOT, node.level + 1, &[(0, left), (separator, right)]);
            } else {
                self.change(id, node.level, Unit::Cut { key: separator });
                let unit = Unit::Put { key: separator, pointer: right };
                self.change(path.nodes[depth - 1], node.level + 1, unit);
            }
        }
        Ok(())
    }

    /// Merges nodes that have become too small, from the leaf upwards.
    fn merge(&mut self, nodes: &[NodeId]) -> Result<(), BftlError> {
        for pair in nodes.windows(2).rev() {
            let [parent, id] = [pair[0], pair[1]];
            if !self.merge_node(parent, id)? {
                break;
            }
        }
        loop {
            let root = self.node(ROOT)?;
            let [(_, child)] = root.entries[..] else { return Ok(()) };
            if root.level == 0 {
                return Ok(());
            }
            let node = self.node(child)?;
            self.forget(child);
            self.begin(ROOT, node.level, &node.entries);
        }
    }

    /// Merges a small node with a neighbour below the same parent; whether it did.
    fn merge_node(&mut self, parent_id: NodeId, id: NodeId) -> Result<bool, BftlError> {
        let node = self.node(id)?;
        if node.len() * MERGE_BELOW >= self.node_max {
            return Ok(false);
        }
        let parent = self.node(parent_id)?;
        let place = parent.entries.iter().position(|(_, child)| *child == id);
        let place = place.ok_or(BftlError::NoNode(id))?;
        let left = if place + 1 < parent.len() { place } else { place.saturating_sub(1) };
        let [(_, left), (separator, right), ..] = parent.entries[left..] else { return Ok(false) };
        let (kept, moved) = (self.node(left)?, self.node(right)?);
        if (kept.len() + moved.len()) * 4 > self.node_max * 3 {
            return Ok(false);
        }
        self.stats.merges += 1;
        for unit in units_of(&moved.entries) {
            self.change(left, node.level, unit);
        }
        self.change(parent_id, node.level + 1, Unit::Delete { key: separator });
        self.forget(right);
        Ok(true)
    }

    fn flush_if_full(&mut self) -> Result<(), BftlError> {
        if self.buffer.count() < self.config.buffer_units { Ok(()) } else { self.flush() }
    }

    /// Writes the units in the buffer; they are durable when this returns.
    ///
    /// # Errors
    ///
    /// The floor below failed, or is full.
    pub fn flush(&mut self) -> Result<(), BftlError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let mut groups = Vec::new();
        for node in self.buffer.nodes() {
            groups.extend(self.group_to_write(node)?);
        }
        self.stats.flushes += 1;
        for page in self.form.pack(groups) {
            self.write_page(&page)?;
        }
        self.buffer = Buffer::default();
        Ok(self.space.sync()?)
    }

    /// Units that wait for a node, or the whole node where its list is full (rule B3).
    fn group_to_write(&mut self, id: NodeId) -> Result<Option<Group>, BftlError> {
        let Some(group) = self.buffer.get(id).cloned() else { return Ok(None) };
        let is_full = self.table.list(id)?.len() >= self.config.list_max;
        // More units than the node has entries: its base is smaller, and fits a page.
        if !is_full && group.units.len() <= self.node_max {
            return Ok(Some(group));
        }
        self.stats.compactions += u64::from(is_full && !group.is_base);
        let level = group.level;
        let waiting = Some(group);
        let waiting = waiting.filter(|_| self.config.mistake != Mistake::CompactionDropsWaiting);
        let node = match self.cache.get(id).filter(|_| waiting.is_some()) {
            Some(node) => node,
            None => Arc::new(self.rebuild(id, waiting)?),
        };
        Ok(Some(Group { node: id, level, is_base: true, units: units_of(&node.entries) }))
    }

    fn write_page(&mut self, groups: &[Group]) -> Result<(), BftlError> {
        let page = match self.table.free_page() {
            Some(page) => LogicalPage(page),
            None => self.space.allocate(RegionId(0))?,
        };
        self.space.ensure_room(1, &mut NoOwner)?;
        let bytes = self.form.encode(groups);
        self.space.write(page, &bytes, &WriteTag::data(Lsn::ZERO, RegionId(0)))?;
        self.stats.pages_written += 1;
        for group in groups {
            self.stats.units_written += group.units.len() as u64;
            self.table.add(group.node, page.0, group.is_base)?;
        }
        Ok(())
    }

    /// Nodes that the root leads to.
    fn reachable(&mut self) -> Result<BTreeSet<NodeId>, BftlError> {
        let mut found = BTreeSet::from([ROOT]);
        let mut left = vec![ROOT];
        while let Some(id) = left.pop() {
            let node = self.node(id)?;
            let children = node.entries.iter().filter(|_| node.level > 0).map(|(_, child)| *child);
            left.extend(children.clone().filter(|_| node.level > 1));
            found.extend(children);
        }
        Ok(found)
    }

    /// The longest list of pages.
    #[cfg(test)]
    pub(super) fn longest_list(&self) -> usize {
        self.table.longest()
    }
}

impl Path {
    fn leaf_id(&self) -> NodeId {
        self.nodes[self.nodes.len() - 1]
    }

    /// Whether the key lies behind all others: rows that come in order leave full nodes behind.
    fn is_at_end(&self) -> bool {
        self.end.is_none() && self.leaf.entries.last().is_none_or(|(last, _)| *last < self.key)
    }
}

fn apply(node: &mut Node, group: &Group) {
    if group.is_base {
        *node = Node::default();
    }
    node.level = group.level;
    group.units.iter().for_each(|unit| node.apply(*unit));
}
