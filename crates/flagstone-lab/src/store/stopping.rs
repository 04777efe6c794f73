//! Common parts of the lab's own engines: operations that complete or stop, and a machine that runs
//! them to their end.

use std::sync::Arc;

use flagstone_engine::{Direction, EngineError, Row, RowValue, ScanRange, Step, Stop, Table, Xid};
use parking_lot::MutexGuard;

use super::OnRow;
use crate::workload::{Intent, Operations, Part, Scan};

/// An engine whose operations complete or name the event they wait for.
pub trait Stopping {
    /// Locks the record or the page of `key` for a change that depends on its value.
    ///
    /// # Errors
    ///
    /// The engine's reason to stop, here as everywhere below.
    fn lock_key(&mut self, xid: Xid, table: Table, key: &[u8]) -> Step<()>;

    /// Reads a part of the value of `key`; false when there is none.
    ///
    /// # Errors
    ///
    /// Stops.
    fn get_part(
        &mut self,
        xid: Xid,
        table: Table,
        key: &[u8],
        part: Part,
        out: &mut Vec<u8>,
    ) -> Step<bool>;

    /// Sets the value of `key`.
    ///
    /// # Errors
    ///
    /// Stops.
    fn put(&mut self, xid: Xid, table: Table, key: &[u8], value: &[u8]) -> Step<()>;

    /// Overwrites `bytes` at `offset` of a value.
    ///
    /// # Errors
    ///
    /// Stops.
    fn patch(
        &mut self,
        xid: Xid,
        table: Table,
        key: &[u8],
        offset: usize,
        bytes: &[u8],
    ) -> Step<()>;

    /// Removes `key`.
    ///
    /// # Errors
    ///
    /// Stops.
    fn delete(&mut self, xid: Xid, table: Table, key: &[u8]) -> Step<()>;

    /// Reads the next rows of a range; gives the rest of the range.
    ///
    /// # Errors
    ///
    /// Stops.
    fn scan(
        &mut self,
        xid: Xid,
        table: Table,
        range: &ScanRange,
        direction: Direction,
        limit: usize,
        rows: &mut Vec<Row>,
    ) -> Step<Option<ScanRange>>;

    /// Opens a table if it exists.
    ///
    /// # Errors
    ///
    /// Stops.
    fn open_table(&mut self, xid: Xid, name: &str) -> Step<Option<Table>>;

    /// Opens a table, creating it when it does not exist: with the transaction's commit it is there.
    ///
    /// # Errors
    ///
    /// Stops like a put.
    fn create_table(&mut self, xid: Xid, name: &str) -> Step<Table>;
}

/// An engine on a device, on the calling thread.
pub trait Machinery {
    /// The engine.
    type Engine: Stopping;

    /// Runs an operation to its end.
    ///
    /// # Errors
    ///
    /// Errors of the operation; `Deadlock` when another transaction holds a lock.
    fn complete<T>(
        &self,
        operation: impl FnMut(&mut Self::Engine) -> Step<T>,
    ) -> Result<T, EngineError>;

    /// Takes a transaction back.
    fn take_back(&self, xid: Xid);
}

/// A transaction on the calling thread; dropping it aborts.
#[derive(Debug)]
pub struct EngineTransaction<M: Machinery> {
    pub(super) machine: Arc<M>,
    pub(super) xid: Xid,
}

impl<M: Machinery> Drop for EngineTransaction<M> {
    fn drop(&mut self) {
        self.machine.take_back(self.xid);
    }
}

/// Operations of one transaction; holds the engine's latch.
#[derive(Debug)]
pub struct LatchedSession<'e, E> {
    pub(super) engine: MutexGuard<'e, E>,
    pub(super) xid: Xid,
}

impl<M: Machinery> EngineTransaction<M> {
    fn run<T>(
        &self,
        mut operation: impl FnMut(&mut M::Engine, Xid) -> Step<T>,
    ) -> Result<T, EngineError> {
        self.machine.complete(|engine| operation(engine, self.xid))
    }

    fn rows(
        &self,
        table: Table,
        range: &ScanRange,
        direction: Direction,
        limit: usize,
        rows: &mut Vec<Row>,
    ) -> Result<Option<ScanRange>, EngineError> {
        self.run(|engine, xid| engine.scan(xid, table, range, direction, limit, rows))
    }

    /// Hands every row of the tables to `on_row`: locks kept to the end make it one state of all.
    pub(super) fn visit(&self, names: &[&str], on_row: OnRow<'_>) -> Result<(), EngineError> {
        for (place, name) in names.iter().enumerate() {
            let Some(table) = self.run(|engine, xid| engine.open_table(xid, name))? else {
                continue;
            };
            let mut rest = Some(ScanRange { low: Vec::new(), high: None });
            while let Some(range) = rest {
                let mut rows = Vec::new();
                rest = self.rows(table, &range, Direction::Forward, usize::MAX, &mut rows)?;
                for row in rows {
                    if let RowValue::Inline(value) = row.value {
                        on_row(place, &row.key, &value);
                    }
                }
            }
        }
        Ok(())
    }
}

/// The whole of a value.
pub(crate) const WHOLE: Part = Part { offset: 0, size: usize::MAX };

impl<M: Machinery> Operations for EngineTransaction<M> {
    type Stop = EngineError;

    fn get(
        &mut self,
        table: Table,
        key: &[u8],
        intent: Intent,
        out: &mut Vec<u8>,
    ) -> Result<bool, EngineError> {
        self.get_part(table, key, WHOLE, intent, out)
    }

    fn get_part(
        &mut self,
        table: Table,
        key: &[u8],
        part: Part,
        intent: Intent,
        out: &mut Vec<u8>,
    ) -> Result<bool, EngineError> {
        if intent == Intent::Change {
            self.run(|engine, xid| engine.lock_key(xid, table, key))?;
        }
        self.run(|engine, xid| engine.get_part(xid, table, key, part, out))
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        self.run(|engine, xid| engine.put(xid, table, key, value))
    }

    fn patch(
        &mut self,
        table: Table,
        key: &[u8],
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        self.run(|engine, xid| engine.patch(xid, table, key, offset, bytes))
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> Result<(), EngineError> {
        self.run(|engine, xid| engine.delete(xid, table, key))
    }

    fn scan(&mut self, table: Table, scan: &mut Scan) -> Result<(), EngineError> {
        while scan
            .step(|range, direction, limit, rows| self.rows(table, range, direction, limit, rows))?
        {
        }
        Ok(())
    }
}

impl<E: Stopping> Operations for LatchedSession<'_, E> {
    type Stop = Stop;

    fn get(&mut self, table: Table, key: &[u8], intent: Intent, out: &mut Vec<u8>) -> Step<bool> {
        self.get_part(table, key, WHOLE, intent, out)
    }

    fn get_part(
        &mut self,
        table: Table,
        key: &[u8],
        part: Part,
        intent: Intent,
        out: &mut Vec<u8>,
    ) -> Step<bool> {
        if intent == Intent::Change {
            self.engine.lock_key(self.xid, table, key)?;
        }
        self.engine.get_part(self.xid, table, key, part, out)
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Step<()> {
        self.engine.put(self.xid, table, key, value)
    }

    fn patch(&mut self, table: Table, key: &[u8], offset: usize, bytes: &[u8]) -> Step<()> {
        self.engine.patch(self.xid, table, key, offset, bytes)
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> Step<()> {
        self.engine.delete(self.xid, table, key)
    }

    fn scan(&mut self, table: Table, scan: &mut Scan) -> Step<()> {
        let (engine, xid) = (&mut self.engine, self.xid);
        while scan.step(|range, direction, limit, rows| {
            engine.scan(xid, table, range, direction, limit, rows)
        })? {}
        Ok(())
    }
}
