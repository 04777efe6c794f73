//! Loading and checking a TPC-B database through the public interface.

use std::collections::BTreeMap;

use flagstone::{Database, Durability, EngineError, Table, Transaction};
use flagstone_nand::Nand;

use super::{BenchError, OnProgress, Phase, Progress};
use crate::workload::tpcb::{Sums, TABLE_NAMES, Tables, Tpcb};
use crate::workload::{Operations, Part};

/// Rows of a commit while loading: few enough to stay within a small budget's uncommitted share.
const ROWS_PER_COMMIT: usize = 200;

impl<D: Nand> Operations for Transaction<D> {
    type Stop = EngineError;

    fn get_part(
        &mut self,
        table: Table,
        key: &[u8],
        part: Part,
        out: &mut Vec<u8>,
    ) -> Result<bool, EngineError> {
        out.clear();
        // What is read here is changed next: as SELECT FOR UPDATE.
        self.lock_key(table, key)?;
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
}

/// Loads the rows in key order, many a commit; all of it is durable when this returns.
pub(crate) fn load<D: Nand>(
    database: &Database<D>,
    tpcb: &Tpcb,
    on_progress: OnProgress<'_>,
) -> Result<Tables, BenchError> {
    let tables = open_tables(database)?;
    let total = tpcb.row_count();
    let mut rows = tpcb.rows(tables).peekable();
    let mut done = 0;
    while rows.peek().is_some() {
        let mut transaction = database.begin();
        for row in rows.by_ref().take(ROWS_PER_COMMIT) {
            transaction.put(row.table, &row.key, &row.value)?;
            done += 1;
        }
        let is_last = done == total;
        let durability = if is_last { Durability::Immediate } else { Durability::Deferred };
        transaction.commit_with(durability)?;
        report(on_progress, Phase::Load, done, total);
    }
    Ok(tables)
}

/// Tells how far a stage has come.
pub(crate) fn report(on_progress: OnProgress<'_>, phase: Phase, done: u64, total: u64) {
    on_progress(Progress { phase, done, total });
}

/// Opens the four tables, making those that are absent.
pub(crate) fn open_tables<D: Nand>(database: &Database<D>) -> Result<Tables, EngineError> {
    Tables::open(|name| database.table(name))
}

/// Scans the four tables in one snapshot.
pub(crate) fn scan<D: Nand>(database: &Database<D>, tpcb: &Tpcb) -> Result<Sums, EngineError> {
    let snapshot = database.snapshot()?;
    let mut sums = Sums::new(tpcb);
    for name in TABLE_NAMES {
        let Some(table) = database.existing_table(name)? else {
            continue;
        };
        for row in snapshot.range(table, ..) {
            let (key, value) = row?;
            match name {
                "account" => sums.add_account(&value),
                "history" => sums.add_history(&key, &value),
                "teller" => sums.add_teller(&value),
                _ => sums.add_branch(&value),
            }
        }
    }
    Ok(sums)
}

/// Checks the sums and that every acknowledged commit is there (rule B2).
pub(crate) fn verify<D: Nand>(
    database: &Database<D>,
    tpcb: &Tpcb,
    acknowledged: &BTreeMap<u64, u64>,
) -> Result<Sums, BenchError> {
    let sums = scan(database, tpcb)?;
    sums.verify(acknowledged)?;
    Ok(sums)
}
