//! LMDB through heed. Its cache is the system's page cache, which nothing here bounds.

use std::fs;
use std::ops::Bound;
use std::path::Path;

use anyhow::{Result, bail};
use heed::types::Bytes;
use heed::{Env, EnvOpenOptions, RoTxn, RwTxn, WithTls};

use super::{Each, Plan, Rows, Store, Txn};

const MAP_SIZE: usize = 8 << 30;

type Table = heed::Database<Bytes, Bytes>;

pub struct Lmdb {
    env: Env,
    tables: Vec<Table>,
}

impl Lmdb {
    pub fn open(plan: &Plan, directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory)?;
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP_SIZE).max_dbs(16);
        // SAFETY: the directory is of this run alone; nothing else writes the map.
        let env = unsafe { options.open(directory)? };
        let mut transaction = env.write_txn()?;
        let tables = (0..plan.tables)
            .map(|table| env.create_database(&mut transaction, Some(&format!("t{table}"))))
            .collect::<Result<_, _>>()?;
        transaction.commit()?;
        Ok(Self { env, tables })
    }
}

struct Writer<'a> {
    transaction: RwTxn<'a>,
    tables: &'a [Table],
}

struct Reader<'a> {
    transaction: RoTxn<'a, WithTls>,
    tables: &'a [Table],
}

fn get(table: &Table, txn: &RoTxn<'_>, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
    let Some(value) = table.get(txn, key)? else { return Ok(false) };
    out.clear();
    out.extend_from_slice(value);
    Ok(true)
}

fn scan(table: &Table, txn: &RoTxn<'_>, from: &[u8], each: Each<'_>) -> Result<()> {
    // LMDB knows no empty key.
    let low = if from.is_empty() { Bound::Unbounded } else { Bound::Included(from) };
    let bounds = (low, Bound::Unbounded);
    for row in table.range(txn, &bounds)? {
        let (key, value) = row?;
        if !each(key, value) {
            break;
        }
    }
    Ok(())
}

impl Txn for Writer<'_> {
    fn get(&mut self, table: usize, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        get(&self.tables[table], &self.transaction, key, out)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.tables[table].put(&mut self.transaction, key, value)?)
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Result<()> {
        self.tables[table].delete(&mut self.transaction, key)?;
        Ok(())
    }

    fn scan(&mut self, table: usize, from: &[u8], each: Each<'_>) -> Result<()> {
        scan(&self.tables[table], &self.transaction, from, each)
    }
}

impl Txn for Reader<'_> {
    fn get(&mut self, table: usize, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        get(&self.tables[table], &self.transaction, key, out)
    }

    fn put(&mut self, _: usize, _: &[u8], _: &[u8]) -> Result<()> {
        bail!("the transaction is read only")
    }

    fn delete(&mut self, _: usize, _: &[u8]) -> Result<()> {
        bail!("the transaction is read only")
    }

    fn scan(&mut self, table: usize, from: &[u8], each: Each<'_>) -> Result<()> {
        scan(&self.tables[table], &self.transaction, from, each)
    }
}

impl Store for Lmdb {
    fn load(&self, table: usize, rows: Rows<'_>) -> Result<()> {
        let mut transaction = self.env.write_txn()?;
        for (key, value) in rows {
            self.tables[table].put(&mut transaction, &key, &value)?;
        }
        Ok(transaction.commit()?)
    }

    fn write(&self, body: &mut dyn FnMut(&mut dyn Txn) -> Result<bool>) -> Result<bool> {
        let transaction = self.env.write_txn()?;
        let mut writer = Writer { transaction, tables: &self.tables };
        let commits = body(&mut writer)?;
        if commits {
            writer.transaction.commit()?;
        }
        Ok(commits)
    }

    fn read(&self, body: &mut dyn FnMut(&mut dyn Txn) -> Result<()>) -> Result<()> {
        let transaction = self.env.read_txn()?;
        body(&mut Reader { transaction, tables: &self.tables })
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
