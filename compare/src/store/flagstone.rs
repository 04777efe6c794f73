//! Flagstone with its default options but for memory, in a file that grows or on a chip.

use std::path::{Path, PathBuf};

use anyhow::Result;
use flagstone::{Database, Durability, Error, Options, Snapshot, Table, Transaction};
use flagstone_nand::{EccNand, EccOwner, Nand as _, Profile};

use super::{Again, Each, Plan, Rows, Store, Txn};

pub struct Flagstone {
    database: Database,
    tables: Vec<Table>,
    /// Bytes of a logical page, on a chip.
    page_size: u64,
}

/// A chip behind the kernel's MTD layer.
#[derive(Clone, Debug)]
pub struct Chip {
    /// The device, such as `/dev/mtd0`.
    pub node: PathBuf,
    /// Name of the profile that says what the chip can do; the driver says it when left out.
    pub profile: Option<String>,
}

fn options(plan: &Plan) -> Options {
    Options::default().with_memory(plan.limits.memory)
}

impl Flagstone {
    pub fn open(plan: &Plan, directory: &Path) -> Result<Self> {
        let path = directory.join("flagstone");
        let options = options(plan);
        let database = match plan.is_new {
            true => Database::create(&path, &options)?,
            false => Database::open(&path, &options)?,
        };
        Self::with(database, 0, plan)
    }

    pub fn open_on(chip: &Chip, plan: &Plan) -> Result<Self> {
        let options = options(plan);
        let profile = chip.profile.as_deref().map(Profile::named).transpose()?;
        let (node, profile) = (&chip.node, profile.as_ref());
        let device = match plan.is_new {
            true => EccNand::create_mtd(node, profile, EccOwner::Device)?,
            false => EccNand::open_mtd(node, profile)?,
        };
        let page_size = u64::from(device.geometry().page_size) * u64::from(options.parts);
        let database = match plan.is_new {
            true => Database::create_on(device, &options)?,
            false => Database::open_on(device, &options)?,
        };
        Self::with(database, page_size, plan)
    }

    fn with(database: Database, page_size: u64, plan: &Plan) -> Result<Self> {
        let tables = (0..plan.tables).map(|table| database.table(&format!("t{table}")));
        let tables = tables.collect::<Result<_, _>>()?;
        Ok(Self { database, tables, page_size })
    }
}

fn again(error: impl Into<Error>) -> anyhow::Error {
    match error.into() {
        Error::Deadlock => Again.into(),
        error => error.into(),
    }
}

struct Writer<'a> {
    transaction: Transaction,
    tables: &'a [Table],
}

impl Txn for Writer<'_> {
    fn get(&mut self, table: usize, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let value = self.transaction.get(self.tables[table], key).map_err(again)?;
        Ok(hand(value, out))
    }

    fn get_for_update(&mut self, table: usize, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        self.transaction.lock_key(self.tables[table], key).map_err(again)?;
        self.get(table, key, out)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.transaction.put(self.tables[table], key, value).map_err(again)
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Result<()> {
        self.transaction.delete(self.tables[table], key).map_err(again)
    }

    fn patch(
        &mut self,
        table: usize,
        key: &[u8],
        offset: usize,
        make: &mut dyn FnMut(&[u8]) -> Vec<u8>,
        size: usize,
    ) -> Result<()> {
        let table = self.tables[table];
        self.transaction.lock_key(table, key).map_err(again)?;
        let old = self.transaction.get_part(table, key, offset, size).map_err(again)?;
        let part = make(&old.unwrap_or_default());
        self.transaction.patch(table, key, offset, &part).map_err(again)
    }

    fn scan(&mut self, table: usize, from: &[u8], each: Each<'_>) -> Result<()> {
        for row in self.transaction.range(self.tables[table], from..) {
            let (key, value) = row.map_err(again)?;
            if !each(&key, &value) {
                break;
            }
        }
        Ok(())
    }
}

struct Reader<'a> {
    snapshot: Snapshot,
    tables: &'a [Table],
}

impl Txn for Reader<'_> {
    fn get(&mut self, table: usize, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        Ok(hand(self.snapshot.get(self.tables[table], key)?, out))
    }

    fn put(&mut self, _: usize, _: &[u8], _: &[u8]) -> Result<()> {
        anyhow::bail!("a snapshot is read only")
    }

    fn delete(&mut self, _: usize, _: &[u8]) -> Result<()> {
        anyhow::bail!("a snapshot is read only")
    }

    fn scan(&mut self, table: usize, from: &[u8], each: Each<'_>) -> Result<()> {
        let mut rows = self.snapshot.range(self.tables[table], from..);
        while let Some(row) = rows.next_row() {
            let (key, value) = row?;
            if !each(key, value) {
                break;
            }
        }
        Ok(())
    }
}

fn hand(value: Option<Vec<u8>>, out: &mut Vec<u8>) -> bool {
    let is_there = value.is_some();
    *out = value.unwrap_or_default();
    is_there
}

impl Store for Flagstone {
    fn load(&self, table: usize, rows: Rows<'_>) -> Result<()> {
        super::load_in_batches(rows, |batch| {
            let mut transaction = self.database.begin();
            for (key, value) in batch {
                transaction.put(self.tables[table], key, value)?;
            }
            transaction.commit_with(Durability::Deferred)?;
            Ok(())
        })?;
        Ok(self.database.merge()?)
    }

    fn write(&self, body: &mut dyn FnMut(&mut dyn Txn) -> Result<bool>) -> Result<bool> {
        super::until_not_again(|| {
            let transaction = self.database.begin();
            let mut writer = Writer { transaction, tables: &self.tables };
            let commits = body(&mut writer)?;
            if commits {
                writer.transaction.commit().map_err(again)?;
            }
            Ok(commits)
        })
    }

    fn read(&self, body: &mut dyn FnMut(&mut dyn Txn) -> Result<()>) -> Result<()> {
        let snapshot = self.database.snapshot()?;
        body(&mut Reader { snapshot, tables: &self.tables })
    }

    fn size(&self) -> Result<u64> {
        let space = self.database.stats().space;
        Ok(u64::from(space.live_pages) * self.page_size)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.database.close()?)
    }
}
