//! The new database: rows go in by many transactions.

use flagstone_engine::salvage::{Salvaged, Scanned};
use flagstone_engine::{Durability, Table, successor};
use flagstone_nand::Nand;

use super::{
    KeySpan, MissingCause, SalvageError, SalvageReport, SalvagedTable, of_target, source_lost,
};
use crate::WriteError;
use crate::database::{Database, ROW_OVERHEAD, Transaction};

/// Rows between two calls of a watcher.
const WATCH_ROWS: u64 = 256;

/// Writes rows to a database.
pub(super) struct Writer<'a, W> {
    database: &'a Database,
    watch: W,
    /// The table that is written, and its place in the report.
    table: Option<(Table, usize)>,
    transaction: Option<Transaction>,
    waiting: usize,
    batch_bytes: usize,
}

impl<'a, W: FnMut(u64)> Writer<'a, W> {
    pub(super) fn new(database: &'a Database, watch: W) -> Self {
        let batch_bytes = database.batch_bytes();
        Self { database, watch, table: None, transaction: None, waiting: 0, batch_bytes }
    }

    /// The rows that come next belong to this table, which is in the report from now on.
    pub(super) fn write_to(
        &mut self,
        name: &str,
        is_invented: bool,
        report: &mut SalvageReport,
    ) -> Result<(), SalvageError> {
        self.commit()?;
        let table = self.database.copied_table(name).map_err(of_target)?;
        let known = report.tables.iter().position(|table| table.name == name);
        let index = known.unwrap_or(report.tables.len());
        if known.is_none() {
            report.tables.push(SalvagedTable { name: name.to_owned(), is_invented, rows: 0 });
        }
        self.table = Some((table, index));
        Ok(())
    }

    /// Stores the rows of a range of `table`, and reports its missing keys.
    pub(super) fn copy<S: Nand>(
        &mut self,
        source: &mut Scanned<S>,
        table: Table,
        (low, high): (&[u8], Option<&[u8]>),
        report: &mut SalvageReport,
    ) -> Result<(), SalvageError> {
        let mut stored = Ok(());
        let read = source.rows(table, low, high, |found| match found {
            Salvaged::Row { key, value } => {
                if stored.is_ok() {
                    stored = self.put(&key, &value, report);
                }
            }
            Salvaged::Missing { low, high, cause } => {
                let told = self.table.and_then(|(_, index)| report.tables.get(index));
                let table = told.map(|told| told.name.clone()).unwrap_or_default();
                report.missing.push(KeySpan { table, low, high, cause });
            }
        });
        read.map_err(source_lost)?;
        stored
    }

    /// Stores a row; a row that is too long is reported as missing.
    pub(super) fn put(
        &mut self,
        key: &[u8],
        value: &[u8],
        report: &mut SalvageReport,
    ) -> Result<(), SalvageError> {
        let Some((table, index)) = self.table else { return Ok(()) };
        let Some(told) = report.tables.get_mut(index) else { return Ok(()) };
        let transaction = self.transaction.get_or_insert_with(|| self.database.begin());
        match transaction.put(table, key, value) {
            Err(WriteError::KeyTooLong { .. } | WriteError::ValueTooLong { .. }) => {
                report.missing.push(KeySpan {
                    table: told.name.clone(),
                    low: key.to_vec(),
                    high: Some(successor(key)),
                    cause: MissingCause::TooLong,
                });
                return Ok(());
            }
            stored => stored.map_err(of_target)?,
        }
        self.waiting += key.len() + value.len() + ROW_OVERHEAD;
        told.rows += 1;
        report.rows += 1;
        report.bytes += (key.len() + value.len()) as u64;
        if report.rows.is_multiple_of(WATCH_ROWS) {
            (self.watch)(report.rows);
        }
        if self.waiting >= self.batch_bytes {
            self.commit()?;
        }
        Ok(())
    }

    /// The flush at the end makes all of them durable, in order.
    fn commit(&mut self) -> Result<(), SalvageError> {
        self.waiting = 0;
        let Some(transaction) = self.transaction.take() else { return Ok(()) };
        let committed = transaction.commit_with(Durability::Deferred);
        committed.map(drop).map_err(of_target)
    }

    /// Makes everything durable.
    pub(super) fn finish(mut self) -> Result<(), SalvageError> {
        self.commit()?;
        self.database.flush().map_err(of_target)
    }
}
