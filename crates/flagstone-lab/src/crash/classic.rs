//! The classic engine under test, driven by one thread.
//!
//! A snapshot is a copy of all tables, read under shared locks: where a writer is in the way it
//! counts as too old from the start, since nothing here may wait. Scripts count on locks on
//! records: presets with locks on pages run with record locks here.

use std::collections::BTreeMap;

use flagstone_engine::{Durability, EngineError, OpenError, Table, Xid};
use flagstone_nand::Nand;

use super::copies::{self, Copies, Piece};
use super::script::{Direction, TABLE_COUNT};
use super::subject::{Pairs, Setup, Subject};
use crate::classic::{Config, Locking, Machine, Mistake};
use crate::model::{Access, Contents, KeyRange, SlotIndex, TableIndex};

/// A classic engine, its tables, open transactions and snapshots; `MISTAKE` is the place of a
/// [`Mistake`] in [`Mistake::ALL`].
#[derive(Debug)]
pub struct Classic<D: Nand, const MISTAKE: usize = 0> {
    open: BTreeMap<SlotIndex, Open>,
    snapshots: Copies,
    tables: BTreeMap<TableIndex, Table>,
    machine: Machine<D>,
}

#[derive(Debug)]
struct Open {
    xid: Xid,
    savepoints: Vec<usize>,
}

fn config(setup: &Setup, mistake: usize) -> Config {
    let mistake = Mistake::ALL.get(mistake).copied().unwrap_or_default();
    Config { locking: Locking::Record, mistake, ..Config::of(&setup.options) }
}

impl<D: Nand, const MISTAKE: usize> Classic<D, MISTAKE> {
    fn around(machine: Machine<D>) -> Self {
        let (open, snapshots, tables) = (BTreeMap::new(), Copies::default(), BTreeMap::new());
        Self { open, snapshots, tables, machine }
    }

    fn xid(&self, slot: SlotIndex) -> Result<Xid, EngineError> {
        self.open.get(&slot).map(|open| open.xid).ok_or(EngineError::Ended)
    }

    fn table(&self, table: TableIndex) -> Result<Table, EngineError> {
        self.tables.get(&table).copied().ok_or(EngineError::NoTable)
    }

    /// Pairs of a range; none when a lock is in the way.
    fn pairs(
        &self,
        xid: Xid,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Option<Pairs>, EngineError> {
        copies::pairs(self.table(range.table)?, range, direction, |piece| {
            let Piece { table, range, direction, limit, rows } = piece;
            self.machine.attempt(|engine| engine.scan(xid, table, range, direction, limit, rows))
        })
    }

    /// Everything there is, read by one transaction; none when a lock is in the way.
    fn copy(&self) -> Result<Option<Contents>, EngineError> {
        let xid = self.machine.engine().begin();
        let read = |range: &KeyRange| self.pairs(xid, range, Direction::Forward);
        let copied = copies::contents(self.tables.keys().copied(), read);
        self.machine.engine().abort(xid);
        copied
    }

    fn find_table(&self, index: TableIndex) -> Result<Option<Table>, EngineError> {
        let xid = self.machine.engine().begin();
        let found = self.machine.run(|engine| engine.open_table(xid, &index.name()));
        self.machine.engine().abort(xid);
        found
    }

    fn make_table(&self, index: TableIndex) -> Result<Table, EngineError> {
        let xid = self.machine.engine().begin();
        let made = self.machine.run(|engine| engine.create_table(xid, &index.name()));
        match made {
            Ok(table) => self.machine.commit(xid, Durability::Immediate).map(|()| table),
            Err(error) => self.machine.abort(xid).and(Err(error)),
        }
    }
}

impl<D: Nand, const MISTAKE: usize> Subject<D> for Classic<D, MISTAKE> {
    fn create(device: D, setup: &Setup) -> Result<Self, OpenError> {
        Ok(Self::around(Machine::create(device, &config(setup, MISTAKE))?))
    }

    fn open(device: D, setup: &Setup) -> Result<Self, OpenError> {
        let mut subject = Self::around(Machine::open(device, &config(setup, MISTAKE))?);
        for index in (0..TABLE_COUNT).map(TableIndex) {
            if let Some(table) = subject.find_table(index)? {
                subject.tables.insert(index, table);
            }
        }
        Ok(subject)
    }

    fn prepare_tables(&mut self) -> Result<(), EngineError> {
        for index in (0..TABLE_COUNT).map(TableIndex) {
            let table = self.make_table(index)?;
            self.tables.insert(index, table);
        }
        Ok(())
    }

    fn begin(&mut self, slot: SlotIndex) -> Result<(), EngineError> {
        let xid = self.machine.engine().begin();
        self.open.insert(slot, Open { xid, savepoints: Vec::new() });
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
        let get = self
            .machine
            .run(|engine| engine.get_part(xid, table, key, offset, size, &mut value))?;
        Ok(get.then_some(value))
    }

    fn put(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), EngineError> {
        let (xid, table) = (self.xid(slot)?, self.table(table)?);
        self.machine.run(|engine| engine.put(xid, table, key, value))
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
        self.machine.run(|engine| engine.patch(xid, table, key, offset, bytes))
    }

    fn delete(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
    ) -> Result<(), EngineError> {
        let (xid, table) = (self.xid(slot)?, self.table(table)?);
        self.machine.run(|engine| engine.delete(xid, table, key))
    }

    fn scan(
        &mut self,
        slot: SlotIndex,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Pairs, EngineError> {
        self.pairs(self.xid(slot)?, range, direction)?.ok_or(EngineError::Deadlock)
    }

    fn savepoint(&mut self, slot: SlotIndex) -> Result<(), EngineError> {
        let open = self.open.get_mut(&slot).ok_or(EngineError::Ended)?;
        open.savepoints.push(self.machine.run(|engine| engine.savepoint(open.xid))?);
        Ok(())
    }

    fn rollback_to(&mut self, slot: SlotIndex, index: usize) -> Result<(), EngineError> {
        let open = self.open.get_mut(&slot).ok_or(EngineError::Ended)?;
        let savepoint = *open.savepoints.get(index).ok_or(EngineError::NoSavepoint)?;
        self.machine.run(|engine| engine.rollback_to(open.xid, savepoint))?;
        open.savepoints.truncate(index + 1);
        Ok(())
    }

    fn commit(&mut self, slot: SlotIndex, durability: Durability) -> Result<(), EngineError> {
        let open = self.open.remove(&slot).ok_or(EngineError::Ended)?;
        self.machine.commit(open.xid, durability)
    }

    fn abort(&mut self, slot: SlotIndex) {
        if let Some(open) = self.open.remove(&slot) {
            // A device that fails here fails the next operation too.
            let _ = self.machine.abort(open.xid);
        }
    }

    fn snapshot(&mut self, slot: SlotIndex) -> Result<(), EngineError> {
        let copy = self.copy()?;
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

    fn could_lock(
        &mut self,
        range: &KeyRange,
        access: Access,
    ) -> Result<Option<bool>, EngineError> {
        let table = self.table(range.table)?;
        let xid = self.machine.engine().begin();
        let probed = match access {
            Access::Write => self.machine.attempt(|engine| engine.lock_key(xid, table, &range.low)),
            Access::Read => self.pairs(xid, range, Direction::Forward).map(|pairs| pairs.map(drop)),
        };
        self.machine.engine().abort(xid);
        Ok(Some(probed?.is_some()))
    }

    fn checkpoint(&mut self) -> Result<(), EngineError> {
        self.machine.checkpoint_now()
    }

    fn checkpoint_begin(&mut self) -> Result<(), EngineError> {
        self.machine.engine().want_checkpoint();
        self.machine.advance().map(drop)
    }

    fn work(&mut self) -> Result<(), EngineError> {
        self.machine.advance().map(drop)
    }

    fn collect(&mut self) -> Result<(), EngineError> {
        self.machine.clean_all()
    }

    fn contents(&mut self) -> Result<Contents, EngineError> {
        self.copy()?.ok_or(EngineError::Deadlock)
    }

    fn check(&mut self) -> Result<Vec<String>, EngineError> {
        self.machine.check().map(|report| report.faults)
    }

    fn close(mut self) -> Result<(), EngineError> {
        let open: Vec<SlotIndex> = self.open.keys().copied().collect();
        open.into_iter().for_each(|slot| self.abort(slot));
        self.machine.engine().want_flush();
        self.machine.flush_now()?;
        self.machine.checkpoint_now()
    }
}

#[cfg(test)]
mod tests {
    use flagstone_nand::SimNand;

    use super::*;
    use crate::crash::explore::{Limits, Scenario, explore};
    use crate::crash::script::Script;
    use crate::crash::{RunnerRig, chip, mix_of, small};
    use crate::preset;

    fn is_found<const MISTAKE: usize>() -> bool {
        is_found_with::<MISTAKE>("berkeley-original", "tiny")
    }

    /// Whether the explorer finds the mistake in one of the first seeds.
    fn is_found_with<const MISTAKE: usize>(preset: &str, profile: &str) -> bool {
        (0..6).any(|seed| {
            let device = chip(profile, seed).unwrap();
            let options = preset::options(preset).unwrap().with_seed(seed);
            let script = Script::seeded(seed, 100, &mix_of(&options));
            let setup = Setup::from(small(options, &device));
            let scenario = Scenario { device, model: None, setup, script };
            let limits = Limits { failures_max: 1, seed, ..Limits::default() };
            let tally =
                explore::<Classic<RunnerRig<SimNand>, MISTAKE>, _>(&scenario, &limits, &|_, _| {});
            tally.failure_count > 0
        })
    }

    /// Goal: the explorer sees each rule that this engine may break. Method: break it.
    #[test]
    fn every_planted_mistake_is_found() {
        let found = [
            is_found::<1>(),
            is_found::<2>(),
            is_found::<3>(),
            is_found::<4>(),
            is_found::<5>(),
            is_found::<6>(),
            is_found::<7>(),
            is_found_with::<8>("ipa-runs", "tiny-shared"),
        ];
        let missed = found.iter().zip(&Mistake::ALL[1..]).filter(|(found, _)| !**found);
        let missed: Vec<_> = missed.map(|(_, mistake)| *mistake).collect();
        assert_eq!(missed, [], "mistakes that no state shows");
        assert!(!is_found::<0>(), "the engine without a mistake has no bad state");
        for preset in ["ipa-2x4", "ipa-runs"] {
            assert!(!is_found_with::<0>(preset, "tiny-shared"), "nor has it with {preset}");
        }
    }
}
