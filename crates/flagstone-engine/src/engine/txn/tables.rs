//! Tables by their names, under the locks of a transaction.

use flagstone_space::{LogicalPage, Lsn};

use crate::engine::step::{Step, Stop, Wait};
use crate::engine::store::catalog::{
    CATALOG, TREE_ID_MAX, Table, decode_entry, encode_entry, is_name,
};
use crate::engine::store::read::Read;
use crate::engine::txn::Transactions;
use crate::error::EngineError;
use crate::lock::{Mode, Target, Xid};

impl Transactions {
    /// Passes when there may be one table more. Dropped tables count until they are free.
    fn demand_table(&mut self) -> Step<()> {
        if self.trees.next() > TREE_ID_MAX {
            return Err(EngineError::TooManyTables.into());
        }
        if self.trees.len() <= self.table_count_max() {
            return Ok(());
        }
        if self.drops.has_tables() {
            self.frees_room();
            return Err(Stop::Wait(Wait::Memory));
        }
        Err(EngineError::TooManyTables.into())
    }

    /// The table called `name` with its entry in the catalog, locked for a change of the entry.
    pub(crate) fn locked_entry(&mut self, xid: Xid, name: &str) -> Step<Option<(Table, Vec<u8>)>> {
        self.check_key(name.as_bytes())?;
        self.require_sound()?;
        self.lock_key(xid, CATALOG, name.as_bytes())?;
        let mut value = Vec::new();
        let read = self.get(xid, CATALOG, name.as_bytes(), &mut value)?;
        let entry = decode_entry(&value).filter(|_| read == Read::Inline);
        Ok(entry.map(|(table, _)| (table, value)))
    }

    /// Waits until the transaction has a table to itself.
    pub(crate) fn lock_table(&mut self, xid: Xid, table: Table) -> Step<()> {
        let target = Target::Interval { tree: table.id, low: &[], high: None };
        self.lock(xid, target, Mode::Exclusive)
    }

    /// Creates a table inside transaction `xid`, or opens the table of that name.
    ///
    /// # Errors
    ///
    /// Stops like any write; `Wait::Pages` when no page is at hand for the root.
    pub fn create_table(&mut self, xid: Xid, name: &str) -> Step<Table> {
        self.check_key(name.as_bytes())?;
        let mut value = Vec::new();
        if self.get(xid, CATALOG, name.as_bytes(), &mut value)? == Read::Inline {
            let found = decode_entry(&value).map(|(table, _)| table.owned_by(self.table_owner()));
            return found.ok_or(Stop::Error(EngineError::NoTable));
        }
        self.require_sound()?;
        self.demand_table()?;
        let (table, root) = (Table::of(self.trees.next()), self.take_page()?);
        if let Err(stop) = self.put(xid, CATALOG, name.as_bytes(), &encode_entry(table, root)) {
            self.room.unused_pages.push(root);
            return Err(stop);
        }
        self.transaction(xid)?.created.push(table);
        if let Some(slot) = self.tree_slot(table.id) {
            slot.root = Some(root);
        }
        Ok(table.owned_by(self.table_owner()))
    }

    /// Registers a tree that the catalog names; restart calls it once for each entry.
    pub(crate) fn register_tree(&mut self, key: &[u8], entry: &[u8]) -> Option<LogicalPage> {
        let (table, root) = decode_entry(entry)?;
        let tree = self.tree_slot(table.id)?;
        tree.root = Some(root);
        if !is_name(key) {
            self.mark_dropped(table, Lsn::ZERO);
        }
        Some(root)
    }
}
