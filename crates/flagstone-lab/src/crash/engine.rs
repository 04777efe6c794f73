//! Flagstone under test: the handles of the shipped interface, driven by one thread.
//!
//! Owns open transactions and snapshots by slot. Uses the handles that the public interface
//! is made of, so that the shipped code is explored; only merging on demand goes through its runtime.
//!
//! - **T1** Dropping it is a power loss: nothing is flushed.

use std::collections::BTreeMap;
use std::ops::Bound;

use flagstone_engine::Direction::Forward;
use flagstone_engine::blocking::{Database, Snapshot, Transaction};
use flagstone_engine::{
    Durability, Engine, EngineError, Fetch, OpenError, Savepoint, ScanRange, Step, Stop, Table,
    Wait, Xid,
};
use flagstone_nand::Nand;

use super::script::{Direction, KEY_COUNT, KeyIndex, TABLE_COUNT, key_bytes};
use super::subject::{Pairs, Setup, Subject};
use crate::model::{Access, Contents, KeyRange, SlotIndex, TableIndex};

/// A database, its tables, open transactions and snapshots.
#[derive(Debug)]
pub struct Flagstone<D: Nand> {
    open: BTreeMap<SlotIndex, Open<D>>,
    snapshots: BTreeMap<SlotIndex, Snapshot<D>>,
    tables: BTreeMap<TableIndex, Table>,
    database: Database<D>,
}

#[derive(Debug)]
struct Open<D: Nand> {
    transaction: Transaction<D>,
    savepoints: Vec<Savepoint>,
}

/// Outcome of a step that must not wait.
enum Probe<T> {
    Done(T),
    Locked,
    Unknown,
}

/// Pieces of background work after which merging on demand must have come to rest.
const WORK_COUNT_MAX: u32 = 100_000;

impl<D: Nand> Flagstone<D> {
    fn around(database: Database<D>) -> Self {
        let (open, snapshots, tables) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { open, snapshots, tables, database }
    }

    fn transaction(&mut self, slot: SlotIndex) -> Result<&mut Transaction<D>, EngineError> {
        let open = self.open.get_mut(&slot).ok_or(EngineError::Ended)?;
        Ok(&mut open.transaction)
    }

    fn table(&self, table: TableIndex) -> Result<Table, EngineError> {
        self.tables.get(&table).copied().ok_or(EngineError::NoTable)
    }

    fn find_tables(&mut self) -> Result<(), EngineError> {
        for index in (0..TABLE_COUNT).map(TableIndex) {
            if let Some(table) = self.database.existing_table(&index.name())? {
                self.tables.insert(index, table);
            }
        }
        Ok(())
    }

    /// Runs `step` as a transaction of its own that never waits; none when it has to.
    fn probe<T>(
        &self,
        mut step: impl FnMut(&mut Engine, Xid) -> Step<T>,
    ) -> Result<Probe<T>, EngineError> {
        let runtime = self.database.runtime();
        let xid = runtime.engine().begin();
        let answer = loop {
            let answer = step(&mut runtime.engine(), xid);
            match answer {
                Ok(value) => break Ok(Probe::Done(value)),
                Err(Stop::Wait(Wait::Lock)) => break Ok(Probe::Locked),
                Err(Stop::Wait(_)) => break Ok(Probe::Unknown),
                Err(Stop::Error(error)) => break Err(error),
                Err(Stop::Miss(fetch)) => match self.overtaken_read(fetch) {
                    Ok(()) => {}
                    Err(error) => break Err(error),
                },
            }
        };
        runtime.engine().abort(xid);
        runtime.engine().take_woken();
        answer
    }

    /// Reads a page with background work between the read and its arrival (rule D15).
    fn overtaken_read(&self, fetch: Fetch) -> Result<(), EngineError> {
        let fetched = self.database.runtime().read(fetch)?;
        let worked = self.work_piece();
        self.database.runtime().engine().fill(fetched)?;
        worked.map(drop)
    }

    /// Reads one row of each table, as work goes on.
    fn read_beside_work(&self, number: u8) -> Result<(), EngineError> {
        for (index, table) in &self.tables {
            let key = key_bytes(*index, KeyIndex(number % KEY_COUNT));
            let mut value = Vec::new();
            self.probe(|engine, xid| engine.get(xid, *table, &key, &mut value))?;
        }
        Ok(())
    }

    /// Does one piece of background work; false when there is none.
    fn work_piece(&self) -> Result<bool, EngineError> {
        let runtime = self.database.runtime();
        if !runtime.engine().has_work() {
            return Ok(false);
        }
        match runtime.work_begin() {
            Ok(Some(work)) => {
                runtime.work_end(work);
                Ok(true)
            }
            Ok(None) | Err(Stop::Wait(_)) => Ok(false),
            Err(Stop::Miss(fetch)) => {
                let fetched = runtime.read(fetch)?;
                runtime.engine().fill(fetched)?;
                Ok(true)
            }
            Err(Stop::Error(error)) => Err(error),
        }
    }
}

fn scanned(
    rows: impl Iterator<Item = Result<(Vec<u8>, Vec<u8>), EngineError>>,
) -> Result<Pairs, EngineError> {
    rows.collect()
}

fn bounds(range: &KeyRange) -> (Bound<&[u8]>, Bound<&[u8]>) {
    let high = range.high.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    (Bound::Included(range.low.as_slice()), high)
}

#[cfg(test)]
impl<D: Nand> Flagstone<D> {
    /// Counters of the floor below.
    pub(super) fn stats(&self) -> flagstone_space::SpaceStats {
        self.database.runtime().space().stats()
    }

    /// Counters of the engine.
    pub(super) fn engine_stats(&self) -> flagstone_engine::EngineStats {
        self.database.stats()
    }
}

/// Rows of a table that a snapshot shows.
fn shown<D: Nand>(
    snapshot: &Snapshot<D>,
    index: TableIndex,
    contents: &mut Contents,
) -> Result<(), EngineError> {
    let Some(table) = snapshot.table(&index.name())? else { return Ok(()) };
    for row in snapshot.range(table, ..) {
        let (key, value) = row?;
        contents.insert(index, key, value);
    }
    Ok(())
}

impl<D: Nand> Subject<D> for Flagstone<D> {
    fn create(device: D, setup: &Setup) -> Result<Self, OpenError> {
        let database = Database::create_on(device, &setup.options)?;
        setup.plant(database.runtime());
        Ok(Self::around(database))
    }

    fn open(device: D, setup: &Setup) -> Result<Self, OpenError> {
        let mut subject = Self::around(Database::over(setup.open(device)?));
        subject.find_tables()?;
        Ok(subject)
    }

    fn prepare_tables(&mut self) -> Result<(), EngineError> {
        for index in (0..TABLE_COUNT).map(TableIndex) {
            let table = self.database.table(&index.name())?;
            self.tables.insert(index, table);
        }
        Ok(())
    }

    fn begin(&mut self, slot: SlotIndex) -> Result<(), EngineError> {
        let transaction = self.database.begin();
        self.open.insert(slot, Open { transaction, savepoints: Vec::new() });
        Ok(())
    }

    fn get(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let table = self.table(table)?;
        self.transaction(slot)?.get(table, key)
    }

    fn get_part(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
        offset: usize,
        size: usize,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let table = self.table(table)?;
        self.transaction(slot)?.get_part(table, key, offset, size)
    }

    fn put(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), EngineError> {
        let table = self.table(table)?;
        self.transaction(slot)?.put(table, key, value)
    }

    fn patch(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        let table = self.table(table)?;
        self.transaction(slot)?.patch(table, key, offset, bytes)
    }

    fn delete(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
    ) -> Result<(), EngineError> {
        let table = self.table(table)?;
        self.transaction(slot)?.delete(table, key)
    }

    fn scan(
        &mut self,
        slot: SlotIndex,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Pairs, EngineError> {
        let table = self.table(range.table)?;
        let rows = self.transaction(slot)?.range(table, bounds(range));
        match direction {
            Direction::Forward => scanned(rows),
            Direction::Backward => scanned(rows.rev()),
        }
    }

    fn savepoint(&mut self, slot: SlotIndex) -> Result<(), EngineError> {
        let savepoint = self.transaction(slot)?.savepoint()?;
        if let Some(open) = self.open.get_mut(&slot) {
            open.savepoints.push(savepoint);
        }
        Ok(())
    }

    fn rollback_to(&mut self, slot: SlotIndex, index: usize) -> Result<(), EngineError> {
        let open = self.open.get_mut(&slot).ok_or(EngineError::Ended)?;
        let savepoint = *open.savepoints.get(index).ok_or(EngineError::NoSavepoint)?;
        open.transaction.rollback_to(savepoint)?;
        open.savepoints.truncate(index + 1);
        Ok(())
    }

    fn commit(&mut self, slot: SlotIndex, durability: Durability) -> Result<(), EngineError> {
        let open = self.open.remove(&slot).ok_or(EngineError::Ended)?;
        open.transaction.commit_with(durability).map(drop)
    }

    fn abort(&mut self, slot: SlotIndex) {
        self.open.remove(&slot);
    }

    fn snapshot(&mut self, slot: SlotIndex) -> Result<(), EngineError> {
        let snapshot = self.database.snapshot()?;
        self.snapshots.insert(slot, snapshot);
        Ok(())
    }

    fn snapshot_get(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let table = self.table(table)?;
        self.snapshots.get(&slot).ok_or(EngineError::Ended)?.get(table, key)
    }

    fn snapshot_scan(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        direction: Direction,
    ) -> Result<Pairs, EngineError> {
        let table = self.table(table)?;
        let rows = self.snapshots.get(&slot).ok_or(EngineError::Ended)?.range(table, ..);
        match direction {
            Direction::Forward => scanned(rows),
            Direction::Backward => scanned(rows.rev()),
        }
    }

    fn keep(&mut self, name: &str) -> Result<(), EngineError> {
        self.database.keep_snapshot(name)
    }

    fn drop_kept(&mut self, name: &str) -> Result<(), EngineError> {
        self.database.drop_snapshot(name)
    }

    fn kept(&mut self) -> Result<Option<BTreeMap<String, Contents>>, EngineError> {
        let mut kept = BTreeMap::new();
        for name in self.database.named_snapshots() {
            let snapshot = self.database.named_snapshot(&name)?;
            let mut contents = Contents::default();
            let mut tables = (0..TABLE_COUNT).map(TableIndex);
            tables.try_for_each(|index| shown(&snapshot, index, &mut contents))?;
            kept.insert(name, contents);
        }
        Ok(Some(kept))
    }

    fn snapshot_close(&mut self, slot: SlotIndex) {
        self.snapshots.remove(&slot);
    }

    fn could_lock(
        &mut self,
        range: &KeyRange,
        access: Access,
    ) -> Result<Option<bool>, EngineError> {
        let table = self.table(range.table)?;
        let scan = ScanRange { low: range.low.clone(), high: range.high.clone() };
        let probed = match access {
            Access::Write => self.probe(|engine, xid| engine.delete(xid, table, &range.low))?,
            Access::Read => self.probe(|engine, xid| {
                let mut rows = Vec::new();
                engine.scan(xid, table, &scan, Forward, 1, &mut rows).map(drop)
            })?,
        };
        Ok(match probed {
            Probe::Done(()) => Some(true),
            Probe::Locked => Some(false),
            Probe::Unknown => None,
        })
    }

    fn checkpoint(&mut self) -> Result<(), EngineError> {
        self.database.runtime().checkpoint_now()
    }

    fn checkpoint_begin(&mut self) -> Result<(), EngineError> {
        self.database.runtime().engine().want_checkpoint();
        self.work_piece().map(drop)
    }

    fn work(&mut self) -> Result<(), EngineError> {
        self.work_piece().map(drop)
    }

    fn collect(&mut self) -> Result<(), EngineError> {
        for number in 0..WORK_COUNT_MAX {
            self.read_beside_work(number as u8)?;
            if !self.work_piece()? {
                return Ok(());
            }
        }
        // An engine that never comes to rest: the runner's device budget reports it.
        Err(EngineError::Full)
    }

    fn merge_all(&mut self) -> Result<(), EngineError> {
        match self.database.runtime().merge_now() {
            Err(EngineError::Full) => Ok(()),
            merged => merged,
        }
    }

    fn contents(&mut self) -> Result<Contents, EngineError> {
        let transaction = self.database.begin();
        let mut contents = Contents::default();
        for (index, table) in &self.tables {
            for row in transaction.range(*table, ..) {
                let (key, value) = row?;
                contents.insert(*index, key, value);
            }
        }
        Ok(contents)
    }

    fn check(&mut self) -> Result<Vec<String>, EngineError> {
        let report = self.database.check()?;
        Ok(report.faults.iter().map(|fault| format!("{fault:?}")).collect())
    }

    fn close(self) -> Result<(), EngineError> {
        let Self { open, snapshots, database, .. } = self;
        drop((open, snapshots));
        database.close()
    }
}

#[cfg(test)]
mod tests;
