//! fjall with serializable transactions, a cache of 48 MiB and write buffers of 8 MiB a table, no
//! compression (every engine here stores bytes as they are). Large values lie apart from their keys.

use std::path::Path;

use anyhow::Result;
use fjall::config::CompressionPolicy;
use fjall::{
    CompressionType, KeyspaceCreateOptions, KvSeparationOptions, PersistMode, Readable,
    SingleWriterTxDatabase, SingleWriterTxKeyspace,
};

use super::{Each, Limits, Plan, Rows, Store, Txn};

pub struct Fjall {
    database: SingleWriterTxDatabase,
    tables: Vec<SingleWriterTxKeyspace>,
}

impl Fjall {
    pub fn open(plan: &Plan, directory: &Path) -> Result<Self> {
        let Limits { memory, held_back } = plan.limits;
        let database = SingleWriterTxDatabase::builder(directory.join("fjall"))
            .cache_size((memory - held_back) as u64)
            .journal_compression(CompressionType::None)
            .manual_journal_persist(true)
            .open()?;
        let apart = KvSeparationOptions::default().compression(CompressionType::None);
        let apart = plan.has_large_values.then_some(apart);
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(held_back as u64 / 2)
                .data_block_compression_policy(CompressionPolicy::disabled())
                .with_kv_separation(apart.clone())
        };
        let tables = (0..plan.tables).map(|table| database.keyspace(&format!("t{table}"), options));
        let tables = tables.collect::<Result<_, _>>()?;
        Ok(Self { database, tables })
    }
}

struct Session<'a, T> {
    inner: T,
    tables: &'a [SingleWriterTxKeyspace],
}

fn get(
    readable: &impl Readable,
    table: &SingleWriterTxKeyspace,
    key: &[u8],
    out: &mut Vec<u8>,
) -> Result<bool> {
    let Some(value) = readable.get(table, key)? else { return Ok(false) };
    out.clear();
    out.extend_from_slice(&value);
    Ok(true)
}

fn scan(
    readable: &impl Readable,
    table: &SingleWriterTxKeyspace,
    from: &[u8],
    each: Each<'_>,
) -> Result<()> {
    for row in readable.range(table, from..) {
        let (key, value) = row.into_inner()?;
        if !each(&key, &value) {
            break;
        }
    }
    Ok(())
}

impl Txn for Session<'_, fjall::SingleWriterWriteTx<'_>> {
    fn get(&mut self, table: usize, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        get(&self.inner, &self.tables[table], key, out)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.inner.insert(&self.tables[table], key, value);
        Ok(())
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Result<()> {
        self.inner.remove(&self.tables[table], key);
        Ok(())
    }

    fn scan(&mut self, table: usize, from: &[u8], each: Each<'_>) -> Result<()> {
        scan(&self.inner, &self.tables[table], from, each)
    }
}

impl Txn for Session<'_, fjall::Snapshot> {
    fn get(&mut self, table: usize, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        get(&self.inner, &self.tables[table], key, out)
    }

    fn put(&mut self, _: usize, _: &[u8], _: &[u8]) -> Result<()> {
        anyhow::bail!("a snapshot is read only")
    }

    fn delete(&mut self, _: usize, _: &[u8]) -> Result<()> {
        anyhow::bail!("a snapshot is read only")
    }

    fn scan(&mut self, table: usize, from: &[u8], each: Each<'_>) -> Result<()> {
        scan(&self.inner, &self.tables[table], from, each)
    }
}

impl Store for Fjall {
    fn load(&self, table: usize, rows: Rows<'_>) -> Result<()> {
        super::load_in_batches(rows, |batch| {
            let mut transaction = self.database.write_tx();
            for (key, value) in batch {
                transaction.insert(&self.tables[table], key.as_slice(), value.as_slice());
            }
            Ok(transaction.commit()?)
        })?;
        Ok(self.database.persist(PersistMode::SyncAll)?)
    }

    fn write(&self, body: &mut dyn FnMut(&mut dyn Txn) -> Result<bool>) -> Result<bool> {
        let inner = self.database.write_tx().durability(Some(PersistMode::SyncData));
        let mut session = Session { inner, tables: &self.tables };
        let commits = body(&mut session)?;
        if commits {
            session.inner.commit()?;
        }
        Ok(commits)
    }

    fn read(&self, body: &mut dyn FnMut(&mut dyn Txn) -> Result<()>) -> Result<()> {
        body(&mut Session { inner: self.database.read_tx(), tables: &self.tables })
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.database.persist(PersistMode::SyncAll)?)
    }
}
