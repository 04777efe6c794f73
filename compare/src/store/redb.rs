//! redb, all memory a cache.

use std::path::Path;

use anyhow::{Result, bail};
use redb::{
    Builder, Database, Durability, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable,
    TableDefinition, WriteTransaction,
};

use super::{Each, Plan, Rows, Store, Txn};

const TABLES: [TableDefinition<'static, &[u8], &[u8]>; 6] = [
    TableDefinition::new("t0"),
    TableDefinition::new("t1"),
    TableDefinition::new("t2"),
    TableDefinition::new("t3"),
    TableDefinition::new("t4"),
    TableDefinition::new("t5"),
];

pub struct Redb {
    database: Database,
}

impl Redb {
    pub fn open(plan: &Plan, directory: &Path) -> Result<Self> {
        let path = directory.join("redb");
        let database = Builder::new().set_cache_size(plan.limits.memory).create(path)?;
        if plan.is_new {
            let transaction = database.begin_write()?;
            for table in TABLES.iter().take(plan.tables) {
                transaction.open_table(*table)?;
            }
            transaction.commit()?;
        }
        Ok(Self { database })
    }
}

struct Writer {
    transaction: WriteTransaction,
}

struct Reader {
    transaction: ReadTransaction,
    tables: [Option<ReadOnlyTable<&'static [u8], &'static [u8]>>; TABLES.len()],
}

impl Reader {
    fn table(&mut self, table: usize) -> Result<&ReadOnlyTable<&'static [u8], &'static [u8]>> {
        let place = &mut self.tables[table];
        if place.is_none() {
            *place = Some(self.transaction.open_table(TABLES[table])?);
        }
        place.as_ref().ok_or_else(|| anyhow::anyhow!("opened above"))
    }
}

fn get(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &[u8],
    out: &mut Vec<u8>,
) -> Result<bool> {
    let Some(value) = table.get(key)? else { return Ok(false) };
    out.clear();
    out.extend_from_slice(value.value());
    Ok(true)
}

fn scan(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    from: &[u8],
    each: Each<'_>,
) -> Result<()> {
    for row in table.range(from..)? {
        let (key, value) = row?;
        if !each(key.value(), value.value()) {
            break;
        }
    }
    Ok(())
}

impl Txn for Writer {
    fn get(&mut self, table: usize, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        get(&self.transaction.open_table(TABLES[table])?, key, out)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.transaction.open_table(TABLES[table])?.insert(key, value)?;
        Ok(())
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Result<()> {
        self.transaction.open_table(TABLES[table])?.remove(key)?;
        Ok(())
    }

    fn scan(&mut self, table: usize, from: &[u8], each: Each<'_>) -> Result<()> {
        scan(&self.transaction.open_table(TABLES[table])?, from, each)
    }
}

impl Txn for Reader {
    fn get(&mut self, table: usize, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        get(self.table(table)?, key, out)
    }

    fn put(&mut self, _: usize, _: &[u8], _: &[u8]) -> Result<()> {
        bail!("the transaction is read only")
    }

    fn delete(&mut self, _: usize, _: &[u8]) -> Result<()> {
        bail!("the transaction is read only")
    }

    fn scan(&mut self, table: usize, from: &[u8], each: Each<'_>) -> Result<()> {
        scan(self.table(table)?, from, each)
    }
}

impl Store for Redb {
    fn load(&self, table: usize, rows: Rows<'_>) -> Result<()> {
        super::load_in_batches(rows, |batch| {
            let mut transaction = self.database.begin_write()?;
            transaction.set_durability(Durability::None)?;
            let mut open = transaction.open_table(TABLES[table])?;
            for (key, value) in batch {
                open.insert(key.as_slice(), value.as_slice())?;
            }
            drop(open);
            Ok(transaction.commit()?)
        })?;
        Ok(self.database.begin_write()?.commit()?)
    }

    fn write(&self, body: &mut dyn FnMut(&mut dyn Txn) -> Result<bool>) -> Result<bool> {
        let mut writer = Writer { transaction: self.database.begin_write()? };
        let commits = body(&mut writer)?;
        if commits {
            writer.transaction.commit()?;
        } else {
            writer.transaction.abort()?;
        }
        Ok(commits)
    }

    fn read(&self, body: &mut dyn FnMut(&mut dyn Txn) -> Result<()>) -> Result<()> {
        let transaction = self.database.begin_read()?;
        body(&mut Reader { transaction, tables: Default::default() })
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
