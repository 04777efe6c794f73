//! The process that is recorded: carries out a script, and tells its ledger before and after each step.
//!
//! Marks are lines of a file, a write each, `begin CHAIN STEP` and `done CHAIN STEP`; or marks in the log of a device.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context as _, bail};
use flagstone::{Database, Transaction};

use super::check::PROBE;
use super::logged;
use super::progress::promises_nothing;
use super::script::{COUNTER, Change, Script, Step, counter_key};

/// Name of the database in the recorded directory.
pub(super) const DATABASE: &str = "db";

/// Target of the marks.
pub(super) enum Ledger {
    File(Mutex<File>),
    /// The log of a device with this name. A mark takes a process, so steps that promise nothing are not told.
    Device(String),
}

impl Ledger {
    fn mark(&self, what: &str, chain: usize, index: usize, step: &Step) -> anyhow::Result<()> {
        match self {
            Self::File(file) => {
                let mut file = file.lock().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
                // One call a mark.
                Ok(file.write_all(format!("{what} {chain} {index}\n").as_bytes())?)
            }
            Self::Device(_) if promises_nothing(step) => Ok(()),
            Self::Device(name) => logged::mark(name, &format!("{what}-{index}")),
        }
    }
}

/// State of a chain at work.
struct Session<'a> {
    directory: &'a Path,
    script: &'a Script,
    bug: Option<&'a str>,
    database: Option<Database>,
}

/// Runs a script in `directory`, with a deliberate bug planted if one is named.
///
/// # Errors
/// The engine refused a step; no such bug.
pub(super) fn run(
    script: &Script,
    directory: &Path,
    ledger: &Ledger,
    bug: Option<&str>,
) -> anyhow::Result<()> {
    let mut session = Session { directory, script, bug, database: None };
    session.chain(0, ledger)?;
    let database = session.database.clone();
    std::thread::scope(|scope| {
        let threads = (1..script.chain_count()).map(|chain| {
            let database = database.clone();
            scope.spawn(move || Session { directory, script, bug, database }.chain(chain, ledger))
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => bail!("a thread panicked"),
        })
    })
}

/// Opens the database in `directory`, as after a power cut, and commits a transaction of no chain.
///
/// # Errors
/// The engine refused.
pub(super) fn reopen(script: &Script, directory: &Path) -> anyhow::Result<()> {
    let database = Database::open(directory.join(DATABASE), &script.options)?;
    let table = database.table(PROBE)?;
    let mut transaction = database.begin();
    transaction.put(table, b"reopened", b"")?;
    transaction.commit()?;
    Ok(())
}

impl Session<'_> {
    fn chain(&mut self, chain: usize, ledger: &Ledger) -> anyhow::Result<()> {
        let script = self.script;
        for (index, step) in script.chain(chain).iter().enumerate() {
            ledger.mark("begin", chain, index, step)?;
            self.step(chain, index, step).with_context(|| format!("step {chain}.{index}"))?;
            ledger.mark("done", chain, index, step)?;
        }
        Ok(())
    }

    fn path(&self) -> PathBuf {
        self.directory.join(DATABASE)
    }

    fn database(&self) -> anyhow::Result<&Database> {
        self.database.as_ref().context("no database is open")
    }

    fn opened(&mut self, database: Database) -> anyhow::Result<()> {
        if let Some(name) = self.bug {
            plant(&database, name)?;
        }
        self.database = Some(database);
        Ok(())
    }

    fn step(&mut self, chain: usize, index: usize, step: &Step) -> anyhow::Result<()> {
        match step {
            Step::Create => {
                let options = &self.script.options;
                self.opened(Database::create_sized(self.path(), options, self.script.size)?)?;
            }
            Step::CreateTable(name) => drop(self.database()?.table(name)?),
            Step::RenameTable(from, to) => self.database()?.rename_table(from, to)?,
            Step::DropTable(name) => self.database()?.drop_table(name)?,
            Step::Commit { durability, changes, undone } => {
                let database = self.database()?;
                let mut transaction = database.begin();
                if !undone.is_empty() {
                    let savepoint = transaction.savepoint()?;
                    change_all(database, &mut transaction, undone)?;
                    transaction.rollback_to(savepoint)?;
                }
                change_all(database, &mut transaction, changes)?;
                let counter = database.table(COUNTER)?;
                let number = (index as u64 + 1).to_le_bytes();
                transaction.put(counter, &counter_key(chain), &number)?;
                transaction.commit_with(*durability)?;
            }
            Step::Abort(changes) => {
                let database = self.database()?;
                let mut transaction = database.begin();
                change_all(database, &mut transaction, changes)?;
                transaction.abort();
            }
            Step::Load { table, rows } => {
                let database = self.database()?;
                let table = database.table(table)?;
                let rows = rows.iter().map(|(key, value)| (key, value.make()));
                database.load_sorted(table, rows)?;
            }
            Step::Keep(name) => self.database()?.create_named_snapshot(name)?,
            Step::Forget(name) => self.database()?.delete_named_snapshot(name)?,
            Step::Flush => self.database()?.flush()?,
            Step::Merge => self.database()?.merge()?,
            Step::Reopen { closes } => self.reopen(*closes)?,
            Step::Compact => {
                self.close()?;
                Database::compact(self.path(), &self.script.options)?;
                self.opened(Database::open(self.path(), &self.script.options)?)?;
            }
            Step::Backup(name) => self.back_up(name)?,
            Step::Restore { backup, copy } => self.restore(backup, copy)?,
        }
        Ok(())
    }

    fn close(&mut self) -> anyhow::Result<()> {
        Ok(self.database.take().context("no database is open")?.close()?)
    }

    fn reopen(&mut self, closes: bool) -> anyhow::Result<()> {
        if closes {
            self.close()?;
        } else {
            drop(self.database.take());
        }
        let database = Database::open(self.path(), &self.script.options)?;
        self.opened(database)
    }

    /// Backs up as a careful program does: a name stands for a whole backup.
    fn back_up(&self, name: &str) -> anyhow::Result<()> {
        let unfinished = self.directory.join(format!("{name}.part"));
        let mut sink = BufWriter::with_capacity(64 << 10, File::create_new(&unfinished)?);
        self.database()?.backup_to(&mut sink)?;
        sink.into_inner().map_err(|error| error.into_error())?.sync_all()?;
        fs::rename(&unfinished, self.directory.join(name))?;
        Ok(File::open(self.directory)?.sync_all()?)
    }

    fn restore(&self, backup: &str, copy: &str) -> anyhow::Result<()> {
        let options = &self.script.options;
        let path = self.directory.join(copy);
        let copy = Database::create_sized(path, options, self.script.size)?;
        copy.restore_from(File::open(self.directory.join(backup))?)?;
        Ok(())
    }
}

fn change_all(
    database: &Database,
    transaction: &mut Transaction,
    changes: &[Change],
) -> anyhow::Result<()> {
    for change in changes {
        match change {
            Change::Put { table, key, value } => {
                transaction.put(database.table(table)?, key, &value.make())?;
            }
            Change::Delete { table, key } => transaction.delete(database.table(table)?, key)?,
            Change::Patch { table, key, offset, bytes } => {
                transaction.patch(database.table(table)?, key, *offset, &bytes.make())?;
            }
        }
    }
    Ok(())
}

#[cfg(feature = "seeded-bugs")]
fn plant(database: &Database, name: &str) -> anyhow::Result<()> {
    let bug = flagstone::SeededBug::ALL.into_iter().find(|bug| format!("{bug:?}") == name);
    database.runtime().plant(Some(bug.with_context(|| format!("no bug `{name}`"))?));
    Ok(())
}

#[cfg(not(feature = "seeded-bugs"))]
fn plant(_: &Database, name: &str) -> anyhow::Result<()> {
    bail!("bug `{name}` cannot be planted: built without the feature `seeded-bugs`")
}
