//! Named snapshots: a mapping that the space floor freezes, read without the engine.
//!
//! Owns the moment at which every commit is in the pages, and the nodes read last. Never writes a
//! page.
//!
//! Invariants:
//! - **T1** A named snapshot has no changes beside its pages: it is made when all earlier commits
//!   have reached the leaves, and nothing is committed meanwhile.
//! - **T2** A read from a snapshot never returns content of another page or of another moment:
//!   nodes are cached by snapshot and page, and snapshot numbers are not reused.
//! - **T3** A table handle of the database reads a snapshot only where both use the same name and
//!   number for the table: the number of a table dropped since may belong to another.

use std::collections::VecDeque;
use std::sync::Arc;

use flagstone_nand::Nand;
use flagstone_space::{FROZEN_LABEL_SIZE_MAX, FrozenId, LogicalPage, SpaceError};
use hashbrown::{HashMap, HashSet};

use super::{Folding, Runtime};
use crate::engine::{
    CATALOG, CATALOG_ROOT, DEPTH_MAX, Descriptor, Direction, LeafRows, LeafValue, Read, ScanRange,
    Seek, Table, TableOwner, check_node, end_of_child, named_root,
};
use crate::error::EngineError;
use crate::node::{self, NodeView, ValueRef};

/// Nodes of named snapshots kept in memory: paths to the leaves that are read in turn.
const NODES_MAX: usize = 32;

/// Rounds without progress after which a snapshot is given up.
const ROUNDS_MAX: u32 = 4;

/// A node of a named snapshot.
#[derive(Debug)]
struct NamedNode {
    id: FrozenId,
    page: LogicalPage,
    image: Arc<[u8]>,
}

/// The tables of a named snapshot.
#[derive(Debug)]
struct NamedTables {
    /// Owner of the tables that the snapshot gives out.
    owner: TableOwner,
    roots: HashMap<u32, LogicalPage>,
    /// Numbers of the tables that have the same name and number in the database (T3).
    shared: HashSet<u32>,
}

impl NamedTables {
    /// The root of a table that the snapshot gave out, or that `database` gave out if it is the
    /// same table.
    fn root_of(&self, table: Table, database: TableOwner) -> Result<LogicalPage, EngineError> {
        if !table.is_of(database) {
            table.inside(self.owner)?;
        }
        let root = *self.roots.get(&table.id).ok_or(EngineError::NoTable)?;
        match table.is_of(database) && !self.shared.contains(&table.id) {
            true => Err(EngineError::ForeignTable),
            false => Ok(root),
        }
    }
}

/// Content of named snapshots that was read last.
#[derive(Debug, Default)]
pub(super) struct NamedReads {
    /// Most recently read at the end.
    nodes: VecDeque<NamedNode>,
    tables: HashMap<FrozenId, Arc<NamedTables>>,
}

impl NamedReads {
    fn node(&mut self, id: FrozenId, page: LogicalPage) -> Option<Arc<[u8]>> {
        let index = self.nodes.iter().position(|node| (node.id, node.page) == (id, page))?;
        let node = self.nodes.remove(index)?;
        let image = Arc::clone(&node.image);
        self.nodes.push_back(node);
        Some(image)
    }

    fn keep(&mut self, node: NamedNode) {
        if self.nodes.len() >= NODES_MAX {
            self.nodes.pop_front();
        }
        self.nodes.push_back(node);
    }

    fn forget(&mut self, id: FrozenId) {
        self.nodes.retain(|node| node.id != id);
        self.tables.remove(&id);
    }
}

/// Commits wait as long as this value lives.
struct CommitBarrier<'a, D: Nand>(&'a Runtime<D>);

impl<D: Nand> Drop for CommitBarrier<'_, D> {
    fn drop(&mut self) {
        self.0.engine().end_commit_barrier();
        self.0.sleepers.wake_changed();
    }
}

impl<D: Nand> Runtime<D> {
    /// Keeps everything committed so far under `name`, durably (T1).
    ///
    /// # Errors
    ///
    /// `NameTooLong` above 255 bytes; `SnapshotExists`; `TooManySnapshots`; `Full` when the device
    /// has no room for the mapping, or for the pages of changes that must be merged; damage in
    /// these pages; the device failed.
    pub fn keep_snapshot(&self, name: &str) -> Result<FrozenId, EngineError> {
        self.engine().sound()?;
        let (size, size_max) = (name.len(), FROZEN_LABEL_SIZE_MAX);
        if size > size_max {
            return Err(EngineError::NameTooLong { size, size_max });
        }
        self.require_no_snapshot(name)?;
        // Most of the merging happens before the barrier, while other commits go on.
        self.load_runs()?;
        self.merge_now()?;
        self.engine().begin_commit_barrier();
        let _barrier = CommitBarrier(self);
        self.load_runs()?;
        for _ in 0..ROUNDS_MAX {
            let committed = self.engine().last_commit();
            self.wait_durable(committed)?;
            self.merge_now()?;
            if let Some(id) = self.freeze_at_rest(name)? {
                return Ok(id);
            }
            self.advance()?;
        }
        // Changes of an unreadable page never reach it.
        Err(self.engine().unreadable_error().unwrap_or(EngineError::Full))
    }

    /// Merges until the changes that left memory before their commit are loaded again, as many at a
    /// time as fit.
    pub(crate) fn load_runs(&self) -> Result<(), EngineError> {
        let (mut least, mut idle) = (usize::MAX, 0);
        loop {
            let left = self.engine().ask_for_all_runs();
            if left == 0 || idle > ROUNDS_MAX {
                return Ok(());
            }
            idle = if left < least { 0 } else { idle + 1 };
            least = least.min(left);
            self.merge_now()?;
            self.advance()?;
        }
    }

    /// Freezes the mapping, if all committed changes are in their pages.
    fn freeze_at_rest(&self, name: &str) -> Result<Option<FrozenId>, EngineError> {
        let _still = self.working.lock();
        self.require_no_snapshot(name)?;
        let mut space = self.space();
        if !self.engine().is_all_in_pages() {
            return Ok(None);
        }
        let frozen = space.freeze(name.as_bytes(), &mut Folding(&self.engine));
        self.observe(&space);
        match frozen {
            Ok(id) => Ok(Some(id)),
            Err(SpaceError::GroupOpen(_)) => Ok(None),
            Err(SpaceError::TooManyFrozen) => Err(EngineError::TooManySnapshots),
            // The record, or the device, has no room for the mapping.
            Err(SpaceError::Full | SpaceError::NoRoom | SpaceError::TooLong { .. }) => {
                Err(EngineError::Full)
            }
            Err(error) => self.poison_for(error.into()),
        }
    }

    /// Gives a named snapshot up, durably. Also on a worn device, which this may make usable again.
    ///
    /// # Errors
    ///
    /// `NoSnapshot`; the device failed.
    pub fn drop_snapshot(&self, name: &str) -> Result<(), EngineError> {
        let sound = self.engine().sound();
        // On a worn device the space floor is still sound: its record names only pages that count.
        sound.or_else(|fault| if fault == EngineError::WornOut { Ok(()) } else { Err(fault) })?;
        let id = self.named_snapshot(name)?;
        let mut space = self.space();
        let thawed = space.thaw(id);
        self.named.lock().forget(id);
        self.observe(&space);
        match thawed {
            Ok(()) => Ok(()),
            Err(SpaceError::UnknownFrozen(_)) => Err(EngineError::NoSnapshot),
            // The snapshot is gone; the next checkpoint makes that durable.
            Err(SpaceError::Full | SpaceError::NoRoom) => Err(EngineError::Full),
            Err(error) => self.poison_for(error.into()),
        }
    }

    /// Names of the named snapshots, oldest first.
    #[must_use]
    pub fn named_snapshots(&self) -> Vec<String> {
        let frozen = self.space().frozen();
        frozen.into_iter().map(|(_, label)| String::from_utf8_lossy(&label).into_owned()).collect()
    }

    /// The snapshot with this name.
    ///
    /// # Errors
    ///
    /// `NoSnapshot`.
    pub fn named_snapshot(&self, name: &str) -> Result<FrozenId, EngineError> {
        let frozen = self.space().frozen();
        let found = frozen.into_iter().find(|(_, label)| label == name.as_bytes());
        found.map(|(id, _)| id).ok_or(EngineError::NoSnapshot)
    }

    fn require_no_snapshot(&self, name: &str) -> Result<(), EngineError> {
        match self.named_snapshot(name) {
            Ok(_) => Err(EngineError::SnapshotExists),
            Err(_) => Ok(()),
        }
    }

    /// Reads `key` in the named snapshot.
    ///
    /// # Errors
    ///
    /// `NoSnapshot` once the snapshot was given up, `NoTable` when it has no table with this
    /// number, `ForeignTable` when the number was another table's; damage.
    pub(crate) fn get_named(
        &self,
        id: FrozenId,
        table: Table,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Read, EngineError> {
        self.engine_shared().check_key(key)?;
        let image = self.named_leaf(id, table, Seek::At(key))?;
        let view = NodeView::trusted(&image);
        out.clear();
        let entry = view.search(key).ok().and_then(|index| view.entry(index));
        match entry.map(|entry| entry.value) {
            None => Ok(Read::Absent),
            Some(ValueRef::Inline(bytes)) => {
                out.extend_from_slice(bytes);
                Ok(Read::Inline)
            }
            Some(ValueRef::Ref(descriptor)) => Ok(Read::Large(Descriptor::decode(descriptor)?)),
        }
    }

    /// Reads the rows of the leaf at the near end of `range`; returns the rest of the range.
    ///
    /// # Errors
    ///
    /// As [`Runtime::get_named`].
    pub(crate) fn scan_named(
        &self,
        id: FrozenId,
        table: Table,
        range: &ScanRange,
        direction: Direction,
        out: &mut LeafRows,
    ) -> Result<Option<ScanRange>, EngineError> {
        if range.is_empty() {
            return Ok(None);
        }
        let image = self.named_leaf(id, table, Seek::near(range, direction))?;
        Ok(out.take_from(&NodeView::trusted(&image), range, direction))
    }

    /// Reads every row of a named snapshot, with large values; unreadable data is reported to
    /// `fault`.
    ///
    /// # Errors
    ///
    /// Errors that `fault` returns.
    pub(super) fn check_named(
        &self,
        id: FrozenId,
        mut fault: impl FnMut(LogicalPage, EngineError) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let tables = match self.named_tables(id) {
            Ok(tables) => tables,
            Err(error) => return fault(CATALOG_ROOT, error),
        };
        for (tree, root) in &tables.roots {
            if let Err(error) = self.read_named(id, Table::of(*tree)) {
                fault(*root, error)?;
            }
        }
        Ok(())
    }

    fn read_named(&self, id: FrozenId, table: Table) -> Result<(), EngineError> {
        let mut rows = LeafRows::default();
        let mut rest = Some(ScanRange { low: Vec::new(), high: None });
        while let Some(range) = rest {
            rest = self.scan_named(id, table, &range, Direction::Forward, &mut rows)?;
            while let Some((_, value)) = rows.take() {
                if let LeafValue::Large(descriptor) = value {
                    self.load_value_of(Some(id), &descriptor?)?;
                }
            }
        }
        Ok(())
    }

    fn named_leaf(
        &self,
        id: FrozenId,
        table: Table,
        seek: Seek<'_>,
    ) -> Result<Arc<[u8]>, EngineError> {
        let root = match table {
            CATALOG => CATALOG_ROOT,
            _ => self.named_tables(id)?.root_of(table, self.engine_shared().table_owner())?,
        };
        let mut page = root;
        let mut parent: Option<(Arc<[u8]>, usize)> = None;
        for _ in 0..DEPTH_MAX {
            let image = self.named_node(id, table, page, parent.is_none())?;
            let view = NodeView::trusted(&image);
            let place = parent.as_ref().map(|(above, place)| (NodeView::trusted(above), *place));
            check_node(table, page, &view, place.as_ref().map(|(view, place)| (view, *place)))?;
            if view.is_leaf() {
                return Ok(image);
            }
            let (place, child) = seek.child_of(page, &view)?;
            (parent, page) = (Some((image, place)), child);
        }
        Err(EngineError::Corrupt { page: root, check: "tree is deeper than any tree can be" })
    }

    /// First key behind the leaf of `key`, if the path to the leaf is readable.
    pub(crate) fn end_of_named_leaf(
        &self,
        id: FrozenId,
        table: Table,
        key: &[u8],
    ) -> Option<Vec<u8>> {
        let mut page = match table {
            CATALOG => CATALOG_ROOT,
            _ => self
                .named_tables(id)
                .ok()?
                .root_of(table, self.engine_shared().table_owner())
                .ok()?,
        };
        let mut end = None;
        for depth in 0..DEPTH_MAX {
            let Ok(image) = self.named_node(id, table, page, depth == 0) else { return end };
            let view = NodeView::trusted(&image);
            end = end_of_child(&view, key);
            match view.child_for(key) {
                Some((_, child)) => page = child,
                None => return end,
            }
        }
        end
    }

    fn named_node(
        &self,
        id: FrozenId,
        table: Table,
        page: LogicalPage,
        is_root: bool,
    ) -> Result<Arc<[u8]>, EngineError> {
        if let Some(image) = self.named.lock().node(id, page) {
            return Ok(image);
        }
        let mut image = Vec::new();
        let mut space = self.space();
        let size = space.payload_size();
        match space.read_frozen(id, page, &mut image) {
            Ok(_) => image.resize(size, 0xFF),
            // A root that was never written is an empty leaf.
            Err(SpaceError::Unmapped(_)) if is_root => image = node::empty_leaf(table.id, size),
            Err(error) => return Err(error.into()),
        }
        drop(space);
        NodeView::parse(&image)
            .map_err(|_| EngineError::Corrupt { page, check: "node does not parse" })?;
        let image: Arc<[u8]> = image.into();
        self.named.lock().keep(NamedNode { id, page, image: Arc::clone(&image) });
        Ok(image)
    }

    /// Owner of the tables that a named snapshot gives out.
    pub(crate) fn named_owner(&self, id: FrozenId) -> Result<TableOwner, EngineError> {
        Ok(self.named_tables(id)?.owner)
    }

    /// The tables in the snapshot's catalog.
    fn named_tables(&self, id: FrozenId) -> Result<Arc<NamedTables>, EngineError> {
        if let Some(tables) = self.named.lock().tables.get(&id) {
            return Ok(Arc::clone(tables));
        }
        let now: HashMap<_, _> = self.catalog()?.into_iter().collect();
        let number_now = |name: &[u8]| Some(named_root(name, now.get(name)?)?.0);
        let (mut roots, mut shared) = (HashMap::new(), HashSet::new());
        let mut rows = LeafRows::default();
        let mut rest = Some(ScanRange { low: Vec::new(), high: None });
        while let Some(range) = rest {
            rest = self.scan_named(id, CATALOG, &range, Direction::Forward, &mut rows)?;
            while let Some((key, value)) = rows.take() {
                let LeafValue::Inline(entry) = value else { continue };
                let Some((number, root)) = named_root(key, entry) else { continue };
                roots.insert(number, root);
                if number_now(key) == Some(number) {
                    shared.insert(number);
                }
            }
        }
        let found = Arc::new(NamedTables { owner: TableOwner::alone(), roots, shared });
        // The first caller may have given tables out already: its set is kept.
        let mut named = self.named.lock();
        Ok(Arc::clone(named.tables.entry(id).or_insert(found)))
    }
}
