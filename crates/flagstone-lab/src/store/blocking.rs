//! The Flagstone engine behind the public interface.

use flagstone_engine::{Direction, REGION_TABLES, Row, RowValue, ScanRange};

use super::{
    BlockReport, Database, Drivable, Durability, EngineError, EngineStats, Nand, OnRow, OpenError,
    Operations, Options, RecoveryReport, RegionId, Runtime, SpaceStats, Store, Table, Timed,
    Transaction, cold,
};
use crate::workload::{Intent, Part, Scan};

impl<D: Nand> Store for Database<D> {
    type Device = D;
    type Transaction = Transaction<D>;

    fn create(device: D, options: &Options) -> Result<Self, OpenError> {
        Self::create_on(device, options)
    }

    fn open(device: D, options: &Options) -> Result<Self, OpenError> {
        Self::open_on(device, options)
    }

    fn into_device(self) -> Option<D> {
        Self::into_device(self)
    }

    fn recovery(&self) -> RecoveryReport {
        Self::recovery(self)
    }

    fn stats(&self) -> EngineStats {
        self.runtime().engine().stats()
    }

    fn with_device<R>(&self, look: impl FnOnce(&mut D) -> R) -> R {
        look(self.runtime().space().device_mut())
    }

    fn space_stats(&self) -> SpaceStats {
        self.runtime().space().stats()
    }

    fn regions(&self) -> Result<Vec<(String, RegionId)>, EngineError> {
        Ok(self.tables()?.into_iter().map(|name| (name, REGION_TABLES)).collect())
    }

    fn block_report(&self) -> Vec<BlockReport> {
        self.runtime().space().block_report()
    }

    fn settle(&self) -> Result<(), EngineError> {
        self.flush()?;
        self.runtime().checkpoint_now()
    }

    fn prefill(&self, spare_count: u32) -> Result<(), EngineError> {
        cold::prefill(&mut self.runtime().space(), spare_count)
    }

    fn table(&self, name: &str) -> Result<Table, EngineError> {
        Self::table(self, name)
    }

    fn begin(&self) -> Transaction<D> {
        Self::begin(self)
    }

    fn commit(
        &self,
        transaction: Transaction<D>,
        durability: Durability,
    ) -> Result<(), EngineError> {
        transaction.commit_with(durability).map(|_| ())
    }

    fn visit(&self, names: &[&str], on_row: OnRow<'_>) -> Result<(), EngineError> {
        let snapshot = self.snapshot()?;
        for (place, name) in names.iter().enumerate() {
            let Some(table) = self.existing_table(name)? else { continue };
            for row in snapshot.range(table, ..) {
                let (key, value) = row?;
                on_row(place, &key, &value);
            }
        }
        Ok(())
    }
}

impl<D: Nand> Drivable for Database<Timed<D>> {
    type Engine = Runtime<Timed<D>>;

    fn engine(&self) -> &Self::Engine {
        self.runtime()
    }
}

impl<D: Nand> Operations for Transaction<D> {
    type Stop = EngineError;

    fn get(
        &mut self,
        table: Table,
        key: &[u8],
        intent: Intent,
        out: &mut Vec<u8>,
    ) -> Result<bool, EngineError> {
        out.clear();
        if intent == Intent::Change {
            self.lock_key(table, key)?;
        }
        let found = Transaction::get(self, table, key)?;
        Ok(found.map(|bytes| *out = bytes).is_some())
    }

    fn get_part(
        &mut self,
        table: Table,
        key: &[u8],
        part: Part,
        intent: Intent,
        out: &mut Vec<u8>,
    ) -> Result<bool, EngineError> {
        out.clear();
        if intent == Intent::Change {
            self.lock_key(table, key)?;
        }
        let found = Transaction::get_part(self, table, key, part.offset, part.size)?;
        Ok(found.map(|bytes| out.extend_from_slice(&bytes)).is_some())
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        Transaction::put(self, table, key, value)
    }

    fn patch(
        &mut self,
        table: Table,
        key: &[u8],
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        Transaction::patch(self, table, key, offset, bytes)
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> Result<(), EngineError> {
        Transaction::delete(self, table, key)
    }

    fn scan(&mut self, table: Table, scan: &mut Scan) -> Result<(), EngineError> {
        scan.step(|range, direction, limit, rows| {
            *rows = collect(self, table, range, direction, limit)?;
            Ok(None)
        })
        .map(|_| ())
    }
}

/// The first `limit` rows of `range`.
fn collect<D: Nand>(
    transaction: &Transaction<D>,
    table: Table,
    range: &ScanRange,
    direction: Direction,
    limit: usize,
) -> Result<Vec<Row>, EngineError> {
    use std::ops::Bound;
    let high = range.high.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let rows = transaction.range(table, (Bound::Included(range.low.as_slice()), high));
    let rows = match direction {
        Direction::Forward => rows,
        Direction::Backward => rows.rev(),
    };
    let inline = |(key, value)| Row { key, value: RowValue::Inline(value) };
    rows.take(limit).map(|row| row.map(inline)).collect()
}
