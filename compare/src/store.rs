//! What a workload asks of every engine, and the engines by name.

mod fjall;
mod flagstone;
mod lmdb;
mod native;
mod redb;
mod sqlite;

use std::fmt;
use std::path::Path;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use self::native::{Kind, Native};

pub use self::flagstone::Chip;
pub use self::sqlite::Journal;

/// Memory that an engine may have.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of caches and what is held back, together.
    pub memory: usize,
    /// How many bytes may hold back writes: a checkpoint is due after so much log.
    pub held_back: usize,
}

/// On ordinary storage: 64 MiB, of which 16 hold back writes.
impl Default for Limits {
    fn default() -> Self {
        Self { memory: 64 << 20, held_back: 16 << 20 }
    }
}

/// Rows to load: key and value, a row a call, until it gives none.
pub type Rows<'a> = &'a mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>;
/// Receives a row of a scan; false ends it.
pub type Each<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> bool;

/// The transaction lost to another one and has to begin again.
#[derive(Debug)]
pub struct Again;

impl fmt::Display for Again {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("lost to another transaction")
    }
}

impl std::error::Error for Again {}

/// How an engine is opened.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub tables: usize,
    pub is_new: bool,
    pub limits: Limits,
    /// Values have 64 KiB and more, for engines that keep such values in another way when told to.
    pub has_large_values: bool,
}

/// An engine with its database open.
pub trait Store: Send + Sync {
    /// Loads rows in any way that leaves them durable.
    fn load(&self, table: usize, rows: Rows<'_>) -> Result<()>;

    /// Runs a serializable transaction, again while it loses to others; durable when this
    /// returns. A body that gives false is rolled back.
    fn write(&self, body: &mut dyn FnMut(&mut dyn Txn) -> Result<bool>) -> Result<bool>;

    /// Runs reads that see one state, in the engine's cheapest way.
    fn read(&self, body: &mut dyn FnMut(&mut dyn Txn) -> Result<()>) -> Result<()>;

    /// Bytes that the database takes on a device without a file system.
    fn size(&self) -> Result<u64> {
        bail!("it lies in files")
    }

    /// Closes cleanly.
    fn close(self: Box<Self>) -> Result<()>;
}

/// A transaction under way.
pub trait Txn {
    /// Reads a value; false when there is none.
    fn get(&mut self, table: usize, key: &[u8], out: &mut Vec<u8>) -> Result<bool>;

    /// As [`Txn::get`], for engines that lock rows: a change will follow.
    fn get_for_update(&mut self, table: usize, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        self.get(table, key, out)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()>;

    fn delete(&mut self, table: usize, key: &[u8]) -> Result<()>;

    /// Changes bytes of a value that is there; engines without such a call write the whole value.
    fn patch(
        &mut self,
        table: usize,
        key: &[u8],
        offset: usize,
        make: &mut dyn FnMut(&[u8]) -> Vec<u8>,
        size: usize,
    ) -> Result<()> {
        let mut value = Vec::new();
        if !self.get_for_update(table, key, &mut value)? {
            bail!("a row is missing");
        }
        let part = make(&value[offset..offset + size]);
        value[offset..offset + size].copy_from_slice(&part);
        self.put(table, key, &value)
    }

    /// Rows from a key on, in order.
    fn scan(&mut self, table: usize, from: &[u8], each: Each<'_>) -> Result<()>;
}

/// Engines by name, in the order of the tables.
pub const NAMES: &[&str] = &[
    "flagstone",
    "berkeley",
    #[cfg(feature = "rocksdb")]
    "rocksdb",
    "sqlite",
    "lmdb",
    "redb",
    "fjall",
];

/// Opens the engine called `name` in a directory of its own.
pub fn open(name: &str, plan: &Plan, directory: &Path) -> Result<Box<dyn Store>> {
    Ok(match name {
        "flagstone" => Box::new(flagstone::Flagstone::open(plan, directory)?),
        "berkeley" => Box::new(Native::open(Kind::Berkeley, plan, directory)?),
        #[cfg(feature = "rocksdb")]
        "rocksdb" => Box::new(Native::open(Kind::Rocks, plan, directory)?),
        "sqlite" => Box::new(sqlite::Sqlite::open(plan, Journal::Ahead, directory)?),
        "sqlite-rollback" => Box::new(sqlite::Sqlite::open(plan, Journal::Rollback, directory)?),
        "lmdb" => Box::new(lmdb::Lmdb::open(plan, directory)?),
        "redb" => Box::new(redb::Redb::open(plan, directory)?),
        "fjall" => Box::new(fjall::Fjall::open(plan, directory)?),
        _ => bail!("there is no engine `{name}`: {}", NAMES.join(", ")),
    })
}

/// Opens Flagstone on a chip without a file system.
pub fn open_on(chip: &Chip, plan: &Plan) -> Result<Box<dyn Store>> {
    Ok(Box::new(flagstone::Flagstone::open_on(chip, plan)?))
}

/// Rows of a batch while loading, and bytes of values from which on it is full.
const BATCH: usize = 1000;
const BATCH_BYTES: usize = 4 << 20;

fn load_in_batches(
    rows: Rows<'_>,
    mut write: impl FnMut(&[(Vec<u8>, Vec<u8>)]) -> Result<()>,
) -> Result<()> {
    loop {
        let batch = batch_of(rows);
        if batch.is_empty() {
            return Ok(());
        }
        write(&batch)?;
    }
}

fn batch_of(rows: Rows<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    while batch.len() < BATCH && bytes < BATCH_BYTES {
        let Some(row) = rows.next() else { break };
        bytes += row.1.len();
        batch.push(row);
    }
    batch
}

fn until_not_again<T>(mut body: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match body() {
            Err(error) if error.is::<Again>() => {}
            other => return other,
        }
    }
}
