//! Trees in memory and the catalog that names them.
//!
//! The catalog is tree 0, rooted at logical page 0: table name -> tree id and root page. A root never
//! moves: when it splits, its content moves down and the root names the halves. So a tree is found by a
//! number that never changes. The entry of a dropped table is moved to a key that cannot be a name,
//! since no text begins with its first byte.

use flagstone_space::{LogicalPage, Lsn};

use crate::delta::{DeltaMap, DeltaSize, Entry, Op};
use crate::engine::step::{Step, Stop};
use crate::engine::store::dropped::Dropped;
use crate::engine::store::groups::Reshaping;
use crate::engine::store::owner::{Identity, Owner, TableOwner};
use crate::engine::store::private_key::split_private_key;
use crate::engine::store::read::Read;
use crate::engine::store::structure::Structure;
use crate::engine::store::{Store, snapshot};
use crate::error::EngineError;

/// A table of a database: cheap to copy, and valid until the table is dropped, also when the database
/// is opened again. Another database and a named snapshot have tables of their own: they refuse this
/// one with [`EngineError::ForeignTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table {
    pub(crate) id: u32,
    /// Owner that gave out the handle; none inside the engine, which has one number for each tree.
    owner: Option<(Owner, Option<Identity>)>,
}

impl Table {
    /// A table inside the engine, by its number.
    pub(crate) const fn of(id: u32) -> Self {
        Self { id, owner: None }
    }

    /// The table as `owner` gives it out.
    pub(crate) const fn owned_by(self, of: TableOwner) -> Self {
        Self { owner: Some((of.owner, of.database)), ..self }
    }

    /// Whether `of` gave it out, in this session or a former one.
    pub(crate) fn is_of(self, of: TableOwner) -> bool {
        self.owner.is_some_and(|(owner, database)| {
            owner == of.owner || database.is_some() && database == of.database
        })
    }

    /// The table inside the engine, if `owner` gave the handle out or the handle never left the engine.
    pub(crate) fn inside(self, of: TableOwner) -> Result<Self, EngineError> {
        match self.owner.is_none() || self.is_of(of) {
            true => Ok(Self::of(self.id)),
            false => Err(EngineError::ForeignTable),
        }
    }
}

/// The table with a number, for engines that give out numbers alone: an engine of this crate takes the
/// handle for its own.
#[must_use]
pub const fn table_with_id(id: u32) -> Table {
    Table::of(id)
}

/// The number of a table.
#[must_use]
pub const fn id_of(table: Table) -> u32 {
    table.id
}

/// The table of tables: its keys are names, and entries of dropped tables that are not free yet.
pub const CATALOG: Table = Table::of(0);

/// Root of the catalog.
pub(crate) const CATALOG_ROOT: LogicalPage = LogicalPage(0);

/// One tree: its state in memory beside frames.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) id: u32,
    /// None until the catalog is loaded, while restart puts deltas back.
    pub(crate) root: Option<LogicalPage>,
    /// Committed changes that leaves on flash lack.
    pub(crate) deltas: DeltaMap,
    /// Structure changes that inner nodes on flash lack.
    pub(crate) structure: Structure,
    /// Merges under way that change the tree's shape.
    pub(crate) reshaping: Reshaping,
    /// Old leaves that snapshots read.
    pub(crate) retained: snapshot::Retained,
    /// Entries of all leaves on flash, as far as counted.
    pub(crate) entry_count: i64,
    /// Release of a dropped table, until its last page is free.
    pub(crate) dropped: Option<Box<Dropped>>,
}

impl Tree {
    /// Memory of its changes, and of the old leaves that snapshots read.
    pub(in crate::engine) fn size(&self) -> DeltaSize {
        let deltas = self.deltas.size();
        DeltaSize { memory: deltas.memory + self.retained.bytes(), ..deltas }
    }

    pub(crate) fn new(id: u32, root: Option<LogicalPage>) -> Self {
        Self {
            id,
            root,
            deltas: DeltaMap::new(),
            structure: Structure::default(),
            reshaping: Reshaping::None,
            retained: snapshot::Retained::default(),
            entry_count: 0,
            dropped: None,
        }
    }

    pub(crate) fn catalog() -> Self {
        Self::new(CATALOG.id, Some(CATALOG_ROOT))
    }
}

/// Value of a catalog entry: tree id and root page, little-endian.
pub(in crate::engine) fn encode_entry(table: Table, root: LogicalPage) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&table.id.to_le_bytes());
    bytes[4..].copy_from_slice(&root.0.to_le_bytes());
    bytes
}

pub(in crate::engine) fn decode_entry(bytes: &[u8]) -> Option<(Table, LogicalPage)> {
    let (id, root) = bytes.split_first_chunk::<4>()?;
    let root: [u8; 4] = root.try_into().ok()?;
    Some((Table::of(u32::from_le_bytes(*id)), LogicalPage(u32::from_le_bytes(root))))
}

/// Number and root of the table that an entry of the catalog names.
pub(crate) fn named_root(key: &[u8], entry: &[u8]) -> Option<(u32, LogicalPage)> {
    decode_entry(entry).filter(|_| is_name(key)).map(|(table, root)| (table.id, root))
}

/// First byte of the keys of dropped tables: no text has it.
const TOMBSTONE: u8 = 0xFF;

/// Key in the catalog of a table that was dropped.
pub(crate) fn tombstone(table: Table) -> [u8; 5] {
    let [a, b, c, d] = table.id.to_be_bytes();
    [TOMBSTONE, a, b, c, d]
}

/// Whether a key of the catalog is the name of a table.
pub(crate) fn is_name(key: &[u8]) -> bool {
    key.first() != Some(&TOMBSTONE)
}

/// Name and table of an entry of the catalog, even if the table was dropped since.
pub(crate) fn named_table(key: &[u8], entry: &[u8]) -> Option<(String, Table)> {
    let (table, _) = decode_entry(entry).filter(|_| is_name(key))?;
    Some((String::from_utf8_lossy(key).into_owned(), table))
}

impl Store {
    /// The table called `name`, as committed.
    ///
    /// # Errors
    ///
    /// Stops like any read.
    pub fn open_table(&mut self, name: &str) -> Step<Option<Table>> {
        let mut value = Vec::new();
        match self.read_committed(CATALOG, name.as_bytes(), &mut value)? {
            Read::Inline => {
                Ok(decode_entry(&value).map(|(table, _)| table.owned_by(self.table_owner())))
            }
            _ => Ok(None),
        }
    }

    /// Owner of the tables of this session.
    pub(crate) const fn table_owner(&self) -> TableOwner {
        TableOwner { owner: self.owner, database: Some(self.identity) }
    }

    /// The table inside the engine that a caller names.
    pub(crate) fn own(&self, table: Table) -> Result<Table, EngineError> {
        table.inside(self.table_owner())
    }

    /// A table that was never committed is gone: its page is for the next table.
    pub(in crate::engine) fn forget_created(&mut self, table: Table) {
        let tree = self.trees.remove(table.id);
        if let Some(root) = tree.and_then(|tree| tree.root) {
            self.forget_page(root);
            self.room.unused_pages.push(root);
        }
    }

    /// Restart knows every table: changes that it met of other numbers belonged to tables that are
    /// gone.
    pub(crate) fn forget_nameless(&mut self) {
        for tree in self.trees.take_nameless() {
            self.note_deltas_size(tree.deltas.size(), DeltaMap::new().size());
        }
    }

    /// The tree's place, made when restart meets its deltas before its name.
    pub(crate) fn tree_slot(&mut self, id: u32) -> Option<&mut Tree> {
        self.trees.slot(id)
    }

    pub(crate) fn tree(&self, table: Table) -> Step<&Tree> {
        self.trees.get(table.id as usize).ok_or(Stop::Error(EngineError::NoTable))
    }

    /// Adds a committed change to its tree.
    pub(crate) fn add_delta(
        &mut self,
        table: Table,
        key: &[u8],
        op: Op<'_>,
        lsn: flagstone_space::Lsn,
    ) {
        self.tell_delta_comes(table, key, op);
        if self.snapshots.take_changed() {
            self.refresh_boundaries();
        }
        let Some(tree) = self.trees.get_mut(table.id as usize) else { return };
        self.frontier.newest_delta = self.frontier.newest_delta.max(lsn);
        let before = tree.deltas.size();
        let dropped = tree.deltas.insert(key, op, lsn, &self.frontier.kept);
        let after = tree.deltas.size();
        self.note_deltas_size(before, after);
        if !dropped.is_empty() {
            self.drop_refs(dropped, lsn);
        }
        self.tell_delta_came(table, key);
    }

    /// Whether some tree names `page` as its root.
    pub(crate) fn tree_with_root(&self, page: LogicalPage) -> Option<u32> {
        self.trees.iter().find(|tree| tree.root == Some(page)).map(|tree| tree.id)
    }

    /// Whether a table was dropped and has pages or an entry left.
    pub(crate) fn is_dropped(&self, table: Table) -> bool {
        self.trees.get(table.id as usize).is_some_and(|tree| tree.dropped.is_some())
    }

    /// Refuses a table that is gone for transactions.
    pub(in crate::engine) fn require_table(&self, id: u32) -> Result<(), EngineError> {
        let tree = self.trees.get(id as usize);
        let is_there = tree.is_some_and(|tree| tree.root.is_some() && tree.dropped.is_none());
        if is_there { Ok(()) } else { Err(EngineError::NoTable) }
    }

    /// Refuses a table that is gone for a snapshot at `upto`.
    pub(super) fn require_table_at(&self, table: Table, upto: Lsn) -> Result<(), EngineError> {
        let dropped = self.trees.get(table.id as usize).and_then(|tree| tree.dropped.as_ref());
        let is_gone = dropped.is_some_and(|dropped| dropped.lsn <= upto);
        if is_gone { Err(EngineError::NoTable) } else { Ok(()) }
    }

    /// Adds a transaction's changes of one key.
    pub(crate) fn add_entry(&mut self, entry: &Entry<'_>, lsn: Lsn) {
        let (table, key) = split_private_key(entry.key());
        for (_, op) in entry.versions() {
            self.add_delta(table, key, op, lsn);
        }
    }
}

/// Largest number of a tree: keys end at the number behind their tree's.
pub(in crate::engine) const TREE_ID_MAX: u32 = u32::MAX - 2;
