//! An engine of shadow pages under test, driven by one thread.
//!
//! The engine locks pages, or a page takes only a few writers: a step that a writer of other keys
//! blocks counts as refused for want of room, and no claim is made about locks. A snapshot is a
//! copy of all tables, read under shared locks, and too old from the start where a writer is in the
//! way.

use std::collections::BTreeMap;

use flagstone_engine::{Durability, EngineError, OpenError, Step, Table, Xid};
use flagstone_nand::Nand;

use super::copies::{self, Copies, Piece};
use super::script::{Direction, TABLE_COUNT};
use super::subject::{Pairs, Setup, Subject};
use crate::model::{Contents, KeyRange, SlotIndex, TableIndex};
use crate::pages::{PageEngine, PageMachine};
use crate::store::Stopping;
use crate::workload::Part;
use crate::{records, shadow};

/// The engine of the basic protocols under test.
pub type Shadow<D> = Pages<shadow::Machine<D>>;

/// The engine of the extended protocols under test.
pub type Records<D> = Pages<records::Machine<D>>;

/// An engine of shadow pages, its tables, open transactions and snapshots.
#[derive(Debug)]
pub struct Pages<M> {
    open: BTreeMap<SlotIndex, Xid>,
    snapshots: Copies,
    tables: BTreeMap<TableIndex, Table>,
    machine: M,
}

/// A lock in the way counts as no room: nothing is claimed of locks and places on pages.
fn refused(error: EngineError) -> EngineError {
    match error {
        EngineError::Deadlock => EngineError::Full,
        error => error,
    }
}

impl<M: PageMachine> Pages<M> {
    fn around(machine: M) -> Self {
        let (open, snapshots, tables) = (BTreeMap::new(), Copies::default(), BTreeMap::new());
        Self { open, snapshots, tables, machine }
    }

    fn xid(&self, slot: SlotIndex) -> Result<Xid, EngineError> {
        self.open.get(&slot).copied().ok_or(EngineError::Ended)
    }

    fn table(&self, table: TableIndex) -> Result<Table, EngineError> {
        self.tables.get(&table).copied().ok_or(EngineError::NoTable)
    }

    /// Runs an operation; a lock in the way counts as no room.
    fn run<T>(&self, operation: impl FnMut(&mut M::Engine) -> Step<T>) -> Result<T, EngineError> {
        match self.machine.attempt(operation) {
            Ok(done) => done.ok_or(EngineError::Full),
            Err(error) => Err(refused(error)),
        }
    }

    fn pairs(
        &self,
        xid: Xid,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Pairs, EngineError> {
        let pairs = copies::pairs(self.table(range.table)?, range, direction, |piece| {
            let Piece { table, range, direction, limit, rows } = piece;
            self.run(|engine| engine.scan(xid, table, range, direction, limit, rows)).map(Some)
        })?;
        Ok(pairs.unwrap_or_default())
    }

    /// Everything there is, read by one transaction.
    fn copy(&self) -> Result<Contents, EngineError> {
        let xid = self.machine.engine().begin();
        let read = |range: &KeyRange| self.pairs(xid, range, Direction::Forward).map(Some);
        let copied = copies::contents(self.tables.keys().copied(), read);
        self.machine.abort(xid);
        copied.map(Option::unwrap_or_default)
    }
}

fn opened<M: PageMachine>(device: M::Device, setup: &Setup) -> Result<M, OpenError> {
    #[cfg(feature = "seeded-bugs")]
    if let Some(bug) = setup.record_bug {
        return M::open_planted(device, &setup.options, setup.restart, bug);
    }
    M::open_by(device, &setup.options, setup.restart)
}

impl<D: Nand, M: PageMachine<Device = D>> Subject<D> for Pages<M> {
    const LOCKS_PAGES: bool = true;

    fn create(device: D, setup: &Setup) -> Result<Self, OpenError> {
        let machine = M::create(device, &setup.options)?;
        #[cfg(feature = "seeded-bugs")]
        if let Some(bug) = setup.record_bug {
            machine.plant(bug);
        }
        Ok(Self::around(machine))
    }

    fn open(device: D, setup: &Setup) -> Result<Self, OpenError> {
        let mut subject = Self::around(opened(device, setup)?);
        let xid = subject.machine.engine().begin();
        for index in (0..TABLE_COUNT).map(TableIndex) {
            if let Some(table) = subject.run(|engine| engine.open_table(xid, &index.name()))? {
                subject.tables.insert(index, table);
            }
        }
        subject.machine.abort(xid);
        Ok(subject)
    }

    fn prepare_tables(&mut self) -> Result<(), EngineError> {
        for index in (0..TABLE_COUNT).map(TableIndex) {
            let xid = self.machine.engine().begin();
            let table = self.run(|engine| engine.create_table(xid, &index.name()));
            let table = table.inspect_err(|_| self.machine.abort(xid))?;
            self.machine.commit(xid)?;
            self.tables.insert(index, table);
        }
        Ok(())
    }

    fn begin(&mut self, slot: SlotIndex) -> Result<(), EngineError> {
        let xid = self.machine.engine().begin();
        self.open.insert(slot, xid);
        Ok(())
    }

    fn get(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, EngineError> {
        self.get_part(slot, table, key, 0, usize::MAX)
    }

    fn get_part(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
        offset: usize,
        size: usize,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let (xid, table) = (self.xid(slot)?, self.table(table)?);
        let mut value = Vec::new();
        let is_there =
            self.run(|engine| engine.get_part(xid, table, key, Part { offset, size }, &mut value))?;
        Ok(is_there.then_some(value))
    }

    fn put(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), EngineError> {
        let (xid, table) = (self.xid(slot)?, self.table(table)?);
        self.run(|engine| engine.put(xid, table, key, value))
    }

    fn patch(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        let (xid, table) = (self.xid(slot)?, self.table(table)?);
        self.run(|engine| engine.patch(xid, table, key, offset, bytes))
    }

    fn delete(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
    ) -> Result<(), EngineError> {
        let (xid, table) = (self.xid(slot)?, self.table(table)?);
        self.run(|engine| engine.delete(xid, table, key))
    }

    fn scan(
        &mut self,
        slot: SlotIndex,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Pairs, EngineError> {
        self.pairs(self.xid(slot)?, range, direction)
    }

    /// The protocols have none: scripts for them draw none.
    fn savepoint(&mut self, _: SlotIndex) -> Result<(), EngineError> {
        Err(EngineError::NoSavepoint)
    }

    fn rollback_to(&mut self, _: SlotIndex, _: usize) -> Result<(), EngineError> {
        Err(EngineError::NoSavepoint)
    }

    fn commit(&mut self, slot: SlotIndex, _: Durability) -> Result<(), EngineError> {
        let xid = self.open.remove(&slot).ok_or(EngineError::Ended)?;
        // A transaction chosen to end a deadlock learns so here, when it has asked for nothing
        // since.
        self.machine.commit(xid).map_err(refused)
    }

    fn abort(&mut self, slot: SlotIndex) {
        if let Some(xid) = self.open.remove(&slot) {
            self.machine.abort(xid);
        }
    }

    fn snapshot(&mut self, slot: SlotIndex) -> Result<(), EngineError> {
        let copy = match self.copy() {
            Ok(copy) => Some(copy),
            Err(EngineError::Full) => None,
            Err(error) => return Err(error),
        };
        self.snapshots.open(slot, copy);
        Ok(())
    }

    fn snapshot_get(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, EngineError> {
        self.snapshots.get(slot, table, key)
    }

    fn snapshot_scan(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        direction: Direction,
    ) -> Result<Pairs, EngineError> {
        self.snapshots.scan(slot, table, direction)
    }

    fn snapshot_close(&mut self, slot: SlotIndex) {
        self.snapshots.close(slot);
    }

    fn checkpoint(&mut self) -> Result<(), EngineError> {
        self.machine.checkpoint_now()
    }

    fn checkpoint_begin(&mut self) -> Result<(), EngineError> {
        self.machine.checkpoint_begin();
        self.work()
    }

    fn work(&mut self) -> Result<(), EngineError> {
        self.machine.advance().map(drop)
    }

    fn collect(&mut self) -> Result<(), EngineError> {
        self.machine.advance().map(drop)
    }

    fn contents(&mut self) -> Result<Contents, EngineError> {
        self.copy()
    }

    /// Every node of every table has been parsed and fenced by reading all rows.
    fn check(&mut self) -> Result<Vec<String>, EngineError> {
        self.copy().map(|_| Vec::new())
    }

    fn close(mut self) -> Result<(), EngineError> {
        let open: Vec<SlotIndex> = self.open.keys().copied().collect();
        open.into_iter().for_each(|slot| self.abort(slot));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
