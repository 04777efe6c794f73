//! An engine for tests: one map a table, which stops every operation once before it completes.

use std::collections::{BTreeMap, HashMap};

use flagstone_engine::{Direction, Row, RowValue, Table};

use super::{Intent, Operations, Part, Scan};

/// Rows of a table.
pub(crate) type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// One map a table.
#[derive(Default)]
pub(crate) struct Stuttering {
    pub(crate) tables: HashMap<Table, Map>,
    has_stopped: bool,
    /// Tables of the operations that completed.
    pub(crate) trace: Vec<Table>,
}

/// The operation must be called again.
#[derive(Debug)]
pub(crate) struct Again;

impl Stuttering {
    /// An engine that holds `tables`.
    pub(crate) fn of(tables: HashMap<Table, Map>) -> Self {
        Self { tables, ..Self::default() }
    }

    /// Puts a row of a fresh database.
    pub(crate) fn load(&mut self, table: Table, key: &[u8], value: &[u8]) {
        self.tables.entry(table).or_default().insert(key.to_vec(), value.to_vec());
    }

    /// The table's rows, once every other call; [`Again`] in between.
    fn rows(&mut self, table: Table) -> Result<&mut Map, Again> {
        self.has_stopped = !self.has_stopped;
        if self.has_stopped {
            return Err(Again);
        }
        self.trace.push(table);
        Ok(self.tables.entry(table).or_default())
    }
}

impl Operations for Stuttering {
    type Stop = Again;

    fn get(
        &mut self,
        table: Table,
        key: &[u8],
        _: Intent,
        out: &mut Vec<u8>,
    ) -> Result<bool, Again> {
        out.clear();
        let found = self.rows(table)?.get(key);
        Ok(found.map(|value| out.extend_from_slice(value)).is_some())
    }

    fn get_part(
        &mut self,
        table: Table,
        key: &[u8],
        part: Part,
        _: Intent,
        out: &mut Vec<u8>,
    ) -> Result<bool, Again> {
        out.clear();
        let found = self.rows(table)?.get(key);
        let bytes = found.map(|value| &value[part.offset..part.offset + part.size]);
        Ok(bytes.map(|bytes| out.extend_from_slice(bytes)).is_some())
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), Again> {
        self.rows(table)?.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn patch(
        &mut self,
        table: Table,
        key: &[u8],
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), Again> {
        let value = self.rows(table)?.get_mut(key).expect("a patched row exists");
        value[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> Result<(), Again> {
        self.rows(table)?.remove(key);
        Ok(())
    }

    fn scan(&mut self, table: Table, scan: &mut Scan) -> Result<(), Again> {
        let rows = self.rows(table)?;
        scan.step(|range, direction, limit, out| {
            let row = |(key, value): (&Vec<u8>, &Vec<u8>)| Row {
                key: key.clone(),
                value: RowValue::Inline(value.clone()),
            };
            let inside = rows
                .range(range.low.clone()..)
                .take_while(|(key, _)| range.high.as_ref().is_none_or(|high| *key < high));
            let found: Vec<Row> = match direction {
                Direction::Forward => inside.take(limit).map(row).collect(),
                Direction::Backward => {
                    let all: Vec<_> = inside.collect();
                    all.into_iter().rev().take(limit).map(row).collect()
                }
            };
            out.extend(found);
            Ok(None)
        })
        .map(|_| ())
    }
}
