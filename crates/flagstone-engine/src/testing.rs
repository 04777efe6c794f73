//! A database for the tests of this crate: the runtime behind the part of the public interface that
//! they call.
//!
//! Owns only an [`Arc`] of a [`Runtime`]. Compiled for tests only.

use std::collections::VecDeque;
use std::ops::RangeFull;
use std::sync::Arc;

use flagstone_nand::Nand;
use flagstone_space::SpaceStats;

use crate::engine::{
    Direction, EngineStats, LeafRows, LeafValue, Read, Row, RowValue, ScanRange, SnapshotId, Table,
    Ticket,
};
use crate::error::{EngineError, OpenError};
use crate::lock::Xid;
use crate::options::{Durability, Options};
use crate::runtime::{CheckReport, Reader, RecoveryReport, Runtime};

/// Key and value.
type KeyValue = (Vec<u8>, Vec<u8>);

/// Bytes that a loaded row takes beside its key and value.
const ROW_OVERHEAD: usize = 64;

/// A database.
pub(crate) struct Database<D: Nand> {
    runtime: Arc<Runtime<D>>,
}

/// Counters of the engine and the space.
pub(crate) struct Stats {
    pub(crate) engine: EngineStats,
    pub(crate) space: SpaceStats,
}

impl<D: Nand> Clone for Database<D> {
    fn clone(&self) -> Self {
        Self { runtime: Arc::clone(&self.runtime) }
    }
}

impl<D: Nand> Database<D> {
    pub(crate) fn create_on(device: D, options: &Options) -> Result<Self, OpenError> {
        Runtime::create(device, options).map(Self::over)
    }

    pub(crate) fn open_on(device: D, options: &Options) -> Result<Self, OpenError> {
        Runtime::open(device, options).map(Self::over)
    }

    pub(crate) fn open_read_only_on(device: D, options: &Options) -> Result<Self, OpenError> {
        Runtime::open_read_only(device, options).map(Self::over)
    }

    pub(crate) fn over(runtime: Runtime<D>) -> Self {
        Self { runtime: Arc::new(runtime) }
    }

    pub(crate) fn runtime(&self) -> &Runtime<D> {
        &self.runtime
    }

    pub(crate) fn into_device(self) -> Option<D> {
        Arc::into_inner(self.runtime).map(Runtime::into_device)
    }

    pub(crate) fn begin(&self) -> Transaction<D> {
        let xid = self.runtime.engine().begin();
        Transaction { runtime: Arc::clone(&self.runtime), xid, is_over: false }
    }

    pub(crate) fn snapshot(&self) -> Result<Snapshot<D>, EngineError> {
        let id = self.runtime.begin_snapshot()?;
        Ok(Snapshot { runtime: Arc::clone(&self.runtime), id })
    }

    /// The table with this name, created if there is none.
    pub(crate) fn table(&self, name: &str) -> Result<Table, EngineError> {
        if let Some(table) = self.existing_table(name)? {
            return Ok(table);
        }
        let transaction = self.begin();
        let table = self.runtime.create_table(transaction.xid, name)?;
        transaction.commit_with(Durability::Immediate)?;
        Ok(table)
    }

    pub(crate) fn existing_table(&self, name: &str) -> Result<Option<Table>, EngineError> {
        self.runtime.open_table(name)
    }

    pub(crate) fn drop_table(&self, name: &str) -> Result<(), EngineError> {
        let transaction = self.begin();
        let table = self.runtime.drop_table(transaction.xid, name)?;
        transaction.commit_with(Durability::Immediate)?;
        // The table is gone, whether or not its pages can be freed now.
        let _ = self.runtime.finish_drop(table);
        Ok(())
    }

    /// Stores rows in key order, with as many rows per commit as stay in memory.
    pub(crate) fn load_sorted<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        table: Table,
        rows: impl IntoIterator<Item = (K, V)>,
    ) -> Result<(), EngineError> {
        let most = self.runtime.engine().load_size_max();
        let (mut transaction, mut size) = (self.begin(), 0);
        for (key, value) in rows {
            let (key, value) = (key.as_ref(), value.as_ref());
            let row_size = key.len() + value.len() + ROW_OVERHEAD;
            if size + row_size > most {
                let full = std::mem::replace(&mut transaction, self.begin());
                full.commit_with(Durability::Immediate)?;
                size = 0;
            }
            transaction.put(table, key, value)?;
            size += row_size;
        }
        transaction.commit_with(Durability::Immediate).map(drop)
    }

    pub(crate) fn stats(&self) -> Stats {
        let engine = self.runtime.engine().stats();
        Stats { engine, space: self.runtime.space().stats() }
    }

    pub(crate) fn recovery(&self) -> RecoveryReport {
        self.runtime.recovery()
    }

    pub(crate) fn close(self) -> Result<(), EngineError> {
        self.runtime.close()
    }

    pub(crate) fn check(&self) -> Result<CheckReport, EngineError> {
        self.runtime.check()
    }

    pub(crate) fn flush(&self) -> Result<(), EngineError> {
        self.runtime.make_durable()
    }

    pub(crate) fn merge(&self) -> Result<(), EngineError> {
        self.runtime.merge_all()
    }
}

/// A transaction; dropping it aborts.
pub(crate) struct Transaction<D: Nand> {
    runtime: Arc<Runtime<D>>,
    xid: Xid,
    is_over: bool,
}

impl<D: Nand> Transaction<D> {
    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        get(&self.runtime, Reader::Transaction(self.xid), table, key)
    }

    pub(crate) fn lock_key(&self, table: Table, key: &[u8]) -> Result<(), EngineError> {
        self.runtime.lock_key(self.xid, table, key)
    }

    pub(crate) fn put(
        &mut self,
        table: Table,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), EngineError> {
        self.runtime.admit_change()?;
        self.runtime.put(self.xid, table, key, value)
    }

    pub(crate) fn patch(
        &mut self,
        table: Table,
        key: &[u8],
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        self.runtime.admit_change()?;
        self.runtime.patch(self.xid, table, key, offset, bytes)
    }

    pub(crate) fn delete(&mut self, table: Table, key: &[u8]) -> Result<(), EngineError> {
        self.runtime.admit_change()?;
        self.runtime.delete(self.xid, table, key)
    }

    pub(crate) fn len(&self, table: Table) -> Result<u64, EngineError> {
        count(self.range(table, ..))
    }

    pub(crate) fn range(&self, table: Table, _: RangeFull) -> Rows<'_, D> {
        Rows::new(&self.runtime, Reader::Transaction(self.xid), table)
    }

    pub(crate) fn commit(self) -> Result<Ticket, EngineError> {
        let durability = self.runtime.engine().options().durability;
        self.commit_with(durability)
    }

    pub(crate) fn commit_with(mut self, durability: Durability) -> Result<Ticket, EngineError> {
        let ticket = self.runtime.commit(self.xid)?;
        self.is_over = true;
        self.runtime.settle(ticket.lsn, durability)?;
        let _ = self.runtime.work_some();
        Ok(ticket)
    }
}

impl<D: Nand> Drop for Transaction<D> {
    fn drop(&mut self) {
        if !self.is_over {
            self.runtime.abort(self.xid);
        }
    }
}

/// A snapshot; dropping it ends it.
pub(crate) struct Snapshot<D: Nand> {
    runtime: Arc<Runtime<D>>,
    id: SnapshotId,
}

impl<D: Nand> Snapshot<D> {
    pub(crate) fn id(&self) -> SnapshotId {
        self.id
    }

    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        get(&self.runtime, Reader::Snapshot(self.id), table, key)
    }

    pub(crate) fn len(&self, table: Table) -> Result<u64, EngineError> {
        count(self.range(table, ..))
    }

    pub(crate) fn range(&self, table: Table, _: RangeFull) -> Rows<'_, D> {
        Rows::new(&self.runtime, Reader::Snapshot(self.id), table)
    }
}

impl<D: Nand> Drop for Snapshot<D> {
    fn drop(&mut self) {
        self.runtime.end_snapshot(self.id);
    }
}

fn get<D: Nand>(
    runtime: &Runtime<D>,
    reader: Reader,
    table: Table,
    key: &[u8],
) -> Result<Option<Vec<u8>>, EngineError> {
    let mut value = Vec::new();
    match runtime.read_key(reader, table, key, &mut value)? {
        Read::Absent => Ok(None),
        Read::Inline => Ok(Some(value)),
        Read::Large(descriptor) => runtime.load(reader, &descriptor).map(Some),
    }
}

fn count<D: Nand>(mut rows: Rows<'_, D>) -> Result<u64, EngineError> {
    rows.try_fold(0, |count, row| row.map(|_| count + 1))
}

/// Rows of a table, read a batch at a time.
pub(crate) struct Rows<'a, D: Nand> {
    runtime: &'a Runtime<D>,
    reader: Reader,
    table: Table,
    rest: Option<ScanRange>,
    leaf: LeafRows,
    batch: VecDeque<Row>,
}

impl<'a, D: Nand> Rows<'a, D> {
    fn new(runtime: &'a Runtime<D>, reader: Reader, table: Table) -> Self {
        let rest = Some(ScanRange { low: Vec::new(), high: None });
        let (leaf, batch) = (LeafRows::default(), VecDeque::new());
        Self { runtime, reader, table, rest, leaf, batch }
    }

    fn row(&mut self) -> Result<Option<KeyValue>, EngineError> {
        loop {
            if let Some((key, value)) = self.leaf.take() {
                let value = match value {
                    LeafValue::Inline(bytes) => bytes.to_vec(),
                    LeafValue::Large(descriptor) => self.runtime.load(self.reader, &descriptor?)?,
                };
                return Ok(Some((key.to_vec(), value)));
            }
            if let Some(row) = self.batch.pop_front() {
                let value = match row.value {
                    RowValue::Inline(bytes) => bytes,
                    RowValue::Large(descriptor) => self.runtime.load(self.reader, &descriptor)?,
                };
                return Ok(Some((row.key, value)));
            }
            let Some(range) = self.rest.take() else { return Ok(None) };
            let out = (&mut self.leaf, &mut self.batch);
            let (reader, forward) = (self.reader, Direction::Forward);
            self.rest = self.runtime.read_rows(reader, self.table, &range, forward, out)?;
        }
    }
}

impl<D: Nand> Iterator for Rows<'_, D> {
    type Item = Result<KeyValue, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.row().transpose()
    }
}
