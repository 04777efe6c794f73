//! The process that is killed: it opens a database, shows its contents, and works until it dies.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use flagstone::{
    BackupError, CommitError, CompactError, Database, Durability, Error, LoadError, ReadError,
    Snapshot, SnapshotError, Table, TableError, Transaction, WriteError,
};
#[cfg(target_os = "linux")]
use flagstone_nand::EccOwner;
use flagstone_nand::{EccNand, Profile};

use super::draw::Draw;
use super::extras::{SCRATCH, scratch_rows};
use super::plan::{Device, Plan, Session};
use super::said::{Chore, LIVE, Said, Voice};
use super::script::{Appetite, BANK, Change, Contents, balance, numbers, table_of};

/// Task of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Task {
    /// Makes the database.
    Create,
    /// Opens it, shows it, and works until it is killed.
    Work,
    /// Opens it, shows it, compacts it, shows it again and closes it.
    Finish,
    /// Opens it to be read, and shows it.
    Look,
    /// Restores a backup beside it, and shows the result.
    Restore,
}

/// A process at work.
pub(crate) struct Worker<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) session: Session,
    pub(crate) path: &'a Path,
    pub(crate) voice: Voice,
    /// Deliberate bug of the engine.
    pub(crate) bug: Option<&'a str>,
}

/// Why a thread stops.
enum Stop {
    /// The session is to be closed.
    Close,
    /// There is no room for a change that needs none, or next to none.
    Full,
}

/// Most snapshots, and most scratch tables, at a time.
const KEPT_MAX: usize = 3;

impl Worker<'_> {
    /// Runs until all is done; reports failures, too.
    pub(crate) fn run(&self, task: Task, backup: Option<&str>) {
        let done = match task {
            Task::Create => self.create(),
            Task::Work => self.work(),
            Task::Finish => self.finish(),
            Task::Look => self.look(),
            Task::Restore => self.restore(backup.unwrap_or_default()),
        };
        match done {
            Ok(()) => self.voice.say(&Said::Ended),
            Err(error) => self.voice.say(&Said::Failed(format!("{task:?}: {error:#}"))),
        }
    }

    pub(crate) fn create(&self) -> anyhow::Result<()> {
        let (path, options) = (self.path, &self.session.options);
        let database = match &self.plan.device {
            Device::Growing | Device::Fixed(_) if path.exists() => Database::open(path, options)?,
            Device::Growing | Device::Fixed(_) => {
                Database::create_sized(path, options, self.plan.file_size())?
            }
            Device::Image(blocks) => {
                for left in [path.to_owned(), flagstone_nand::ImageNand::side_path(path)] {
                    if left.exists() {
                        fs::remove_file(left)?;
                    }
                }
                let profile = Profile::named("slc-2k")?.with_block_count(*blocks)?;
                let device = EccNand::create_image(path, &profile)?;
                Database::create_on(device, options)?
            }
            #[cfg(target_os = "linux")]
            Device::Node(node) => {
                let device = EccNand::create_mtd(node, None, EccOwner::Device)?;
                Database::create_on(device, options)?
            }
            #[cfg(not(target_os = "linux"))]
            Device::Node(_) => bail!("raw NAND needs Linux"),
        };
        ensure!(database.tables()?.is_empty(), "a new database has tables");
        self.voice.say(&Said::Created);
        Ok(())
    }

    pub(crate) fn open(&self) -> anyhow::Result<Database> {
        let database = Database::open(self.path, &self.session.options);
        let database = database.context("the database does not open")?;
        if let Some(bug) = self.bug {
            plant(&database, bug)?;
        }
        Ok(database)
    }

    /// Reports the contents of a database and of each kept snapshot, and the result of a check.
    pub(crate) fn show(&self, database: &Database) -> anyhow::Result<Contents> {
        let contents = contents(&database.snapshot()?)?;
        for name in database.named_snapshots() {
            let kept = self::contents(&database.open_named_snapshot(&name)?);
            self.voice.show(&name, kept.with_context(|| format!("snapshot {name}"))?);
        }
        self.voice.show(LIVE, contents.clone());
        let report = database.check()?;
        ensure!(report.is_sound(), "check finds {:?}", report.faults);
        self.voice.say(&Said::Sound);
        Ok(contents)
    }

    fn work(&self) -> anyhow::Result<()> {
        if self.session.compacts && self.plan.device.is_plain_file() {
            self.compact()?;
        }
        let mut database = self.open()?;
        let contents = self.show(&database)?;
        self.voice.say(&Said::Opened);
        let mut next: Vec<_> =
            numbers(self.plan, &contents)?.into_iter().map(|number| number + 1).collect();
        drop(contents);
        loop {
            if let Stop::Full = self.threads(&database, &mut next)? {
                self.voice.say(&Said::Full);
                return Ok(());
            }
            self.chore(Chore::Close, || Ok(database.close()?))?;
            database = self.open()?;
        }
    }

    /// All threads, until the session is to be closed.
    fn threads(&self, database: &Database, next: &mut [u64]) -> anyhow::Result<Stop> {
        let bank = database.table(BANK)?;
        let stops: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0_u8..)
                .zip(next.iter_mut())
                .map(|(thread, next)| {
                    scope.spawn(move || self.thread(database, bank, thread, next))
                })
                .collect();
            threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
        });
        let mut all = Stop::Close;
        for stop in stops {
            match stop {
                Ok(Ok(Stop::Close)) => {}
                Ok(Ok(Stop::Full)) => all = Stop::Full,
                Ok(Err(error)) => return Err(error),
                Err(_) => bail!("a thread panicked"),
            }
        }
        Ok(all)
    }

    fn thread(
        &self,
        database: &Database,
        bank: Table,
        thread: u8,
        next: &mut u64,
    ) -> anyhow::Result<Stop> {
        let own = database.table(&table_of(thread))?;
        for _ in 0..self.session.closes_after {
            if !self.transaction(database, (own, bank), thread, *next)? {
                return Ok(Stop::Full);
            }
            if thread == 0 && next.is_multiple_of(self.plan.chore_every) {
                match self.some_chore(database, bank, *next) {
                    Err(error) if is_full(&error) => return Ok(Stop::Full),
                    done => done?,
                }
            }
            *next += 1;
        }
        Ok(Stop::Close)
    }

    /// One transaction, again and again until it is committed; false where the device is full.
    fn transaction(
        &self,
        database: &Database,
        tables: (Table, Table),
        thread: u8,
        number: u64,
    ) -> anyhow::Result<bool> {
        let mut appetite = Appetite::Full;
        loop {
            self.voice.say(&Said::Begun { thread, number, appetite });
            let script = self.plan.script(thread, number, appetite);
            let is_durable = script.durability != Durability::Deferred;
            let mut transaction = database.begin();
            let made = apply(self.plan, &mut transaction, tables, &script, number);
            match made.and_then(|()| Ok(transaction.commit_with(script.durability)?)) {
                Ok(_) => {
                    self.voice.say(&Said::Done { thread, is_durable });
                    return Ok(true);
                }
                Err(error) if error.is_retryable() => {}
                Err(Error::Full | Error::TooLarge) if appetite == Appetite::Full => {
                    appetite = Appetite::Lean;
                }
                Err(Error::Full) => return Ok(false),
                Err(error) => {
                    return Err(error).with_context(|| format!("transaction {number}"));
                }
            }
        }
    }

    pub(crate) fn chore(
        &self,
        chore: Chore,
        work: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let name = chore.to_string();
        self.voice.say(&Said::Chore(chore));
        match work() {
            // A backup is cut short then, and has to be refused.
            Err(error) if is_any(&error, |error| matches!(error, Error::SnapshotTooOld)) => Ok(()),
            done => {
                done.with_context(|| name)?;
                self.voice.say(&Said::ChoreDone);
                Ok(())
            }
        }
    }

    /// A step besides transactions, chosen by the number and by the present tables and snapshots.
    pub(crate) fn some_chore(
        &self,
        database: &Database,
        bank: Table,
        number: u64,
    ) -> anyhow::Result<()> {
        let mut draw = Draw::of(&[self.plan.seed, self.plan.life, 4, number]);
        let kept = database.named_snapshots();
        let tables = database.tables()?;
        let mut scratch = tables.into_iter().filter(|name| name.starts_with(SCRATCH));
        let (first, second) = (scratch.next(), scratch.next());
        let chore = match (draw.below(10), first) {
            (0, _) => Chore::Flush,
            (1, _) => Chore::Merge,
            (2 | 3, _) if kept.len() < KEPT_MAX => Chore::Keep(format!("kept-{number}")),
            (2..5, _) => match kept.into_iter().next() {
                Some(oldest) => Chore::Forget(oldest),
                None => Chore::Flush,
            },
            (5, _) if draw.one_in(4) => Chore::Backup(format!("backup-{number}")),
            (5 | 6, _) => return self.read_bank(database, bank),
            (7, Some(table)) => Chore::Rename(table, format!("{SCRATCH}-new-{number}")),
            (_, Some(table)) if second.is_some() => Chore::Drop(table),
            _ => return self.make_table(database, &format!("{SCRATCH}-{number}"), draw.one_in(3)),
        };
        self.chore(chore.clone(), || self.perform(database, &chore))
    }

    pub(crate) fn perform(&self, database: &Database, chore: &Chore) -> anyhow::Result<()> {
        match chore {
            Chore::Flush => database.flush()?,
            Chore::Merge => database.merge()?,
            Chore::Keep(name) => database.create_named_snapshot(name)?,
            Chore::Forget(name) => database.delete_named_snapshot(name)?,
            Chore::Rename(from, to) => database.rename_table(from, to)?,
            Chore::Drop(name) => database.drop_table(name)?,
            Chore::Backup(name) => {
                let mut file = BufWriter::new(File::create(self.beside(name))?);
                database.backup_to(&mut file)?;
                file.flush()?;
            }
            other => bail!("no chore of this kind: {other}"),
        }
        Ok(())
    }

    fn make_table(&self, database: &Database, name: &str, is_load: bool) -> anyhow::Result<()> {
        let rows = scratch_rows(self.plan, name);
        let own = name.to_owned();
        self.chore(Chore::Make(own.clone()), || {
            database.table(name).map(drop).map_err(Into::into)
        })?;
        let table = database.table(name)?;
        if is_load {
            return self.chore(Chore::Load(own), || match database.load_sorted(table, rows) {
                Ok(_) => Ok(()),
                Err(LoadError { source, .. }) => Err(source.into()),
            });
        }
        self.chore(Chore::Fill(own), || {
            let mut transaction = database.begin();
            for (key, value) in &rows {
                transaction.put(table, key, value)?;
            }
            transaction.commit_with(Durability::Immediate)?;
            Ok(())
        })
    }

    /// Every snapshot has the money that there is.
    fn read_bank(&self, database: &Database, bank: Table) -> anyhow::Result<()> {
        let snapshot = database.snapshot()?;
        let mut sum = 0;
        for row in snapshot.range(bank, ..) {
            match row {
                Ok((_, row)) => sum += balance(Some(&row)),
                Err(ReadError::SnapshotTooOld) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        ensure!(sum == 0, "a snapshot shows half a transaction: the bank has {sum}");
        Ok(())
    }

    fn compact(&self) -> anyhow::Result<()> {
        self.voice.say(&Said::Chore(Chore::Compact));
        match Database::compact(self.path, &self.session.options) {
            Ok(_) | Err(CompactError::Snapshots { .. }) => {}
            Err(error) => return Err(error).context("compaction"),
        }
        Ok(())
    }

    fn finish(&self) -> anyhow::Result<()> {
        let database = self.open()?;
        self.show(&database)?;
        for name in database.named_snapshots() {
            self.chore(Chore::Forget(name.clone()), || Ok(database.delete_named_snapshot(&name)?))?;
        }
        database.close()?;
        if self.plan.device.is_plain_file() {
            self.compact()?;
        }
        let database = self.open()?;
        self.show(&database)?;
        Ok(database.close()?)
    }

    fn look(&self) -> anyhow::Result<()> {
        match Database::open_read_only(self.path, &self.session.options) {
            Err(flagstone::OpenError::NeedsMemory { .. }) => Ok(()),
            database => self.show(&database.context("to be read")?).map(drop),
        }
    }

    fn restore(&self, backup: &str) -> anyhow::Result<()> {
        let (from, to) = (self.beside(backup), self.beside("restored"));
        let options = &self.session.options;
        if to.exists() {
            // The database that a killed restore left opens, and is sound.
            let left = Database::open(&to, options).context("a restore that was killed")?;
            ensure!(left.check()?.is_sound(), "check, after a restore that was killed");
            drop(left);
            fs::remove_file(&to)?;
        }
        let database = Database::create(&to, options)?;
        match database.restore_from(BufReader::new(File::open(from)?)) {
            Ok(_) => self.voice.show(backup, contents(&database.snapshot()?)?),
            Err(
                error @ (BackupError::Truncated { .. }
                | BackupError::NotABackup
                | BackupError::Damaged { .. }),
            ) => self.voice.say(&Said::Refused(error.to_string())),
            Err(error) => return Err(error).context("restore"),
        }
        drop(database);
        Ok(fs::remove_file(to)?)
    }

    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        beside(self.plan, self.path, name)
    }
}

/// Plants a deliberate bug, by its name.
#[cfg(feature = "seeded-bugs")]
fn plant(database: &Database, name: &str) -> anyhow::Result<()> {
    let bug = flagstone::SeededBug::ALL.into_iter().find(|bug| format!("{bug:?}") == name);
    ensure!(bug.is_some(), "there is no deliberate bug {name}");
    database.runtime().plant(bug);
    Ok(())
}

#[cfg(not(feature = "seeded-bugs"))]
fn plant(_: &Database, name: &str) -> anyhow::Result<()> {
    bail!("deliberate bugs such as {name} need the feature `seeded-bugs`")
}

/// Place of another file of a database: beside its file, or where temporary files are.
pub(crate) fn beside(plan: &Plan, path: &Path, name: &str) -> PathBuf {
    match plan.device {
        Device::Node(_) => std::env::temp_dir().join(name),
        _ => path.with_file_name(name),
    }
}

fn is_full(error: &anyhow::Error) -> bool {
    is_any(error, |error| matches!(error, Error::Full | Error::TooLarge))
}

/// Whether the engine gave such an error, under any context.
pub(crate) fn is_any(error: &anyhow::Error, is_one: impl Fn(&Error) -> bool) -> bool {
    error.chain().any(|cause| match cause.downcast_ref() {
        Some(BackupError::Database(error)) => is_one(error),
        _ => operation_error(cause).is_some_and(|error| is_one(&error)),
    })
}

/// The error of an operation of the database that `cause` is.
fn operation_error(cause: &(dyn std::error::Error + 'static)) -> Option<Error> {
    fn of<E: Clone + Into<Error> + std::error::Error + 'static>(
        cause: &(dyn std::error::Error + 'static),
    ) -> Option<Error> {
        cause.downcast_ref::<E>().cloned().map(Into::into)
    }
    of::<ReadError>(cause)
        .or_else(|| of::<WriteError>(cause))
        .or_else(|| of::<CommitError>(cause))
        .or_else(|| of::<TableError>(cause))
        .or_else(|| of::<SnapshotError>(cause))
}

pub(crate) fn apply(
    plan: &Plan,
    transaction: &mut Transaction,
    (own, bank): (Table, Table),
    script: &super::script::Script,
    number: u64,
) -> Result<(), Error> {
    if !script.undone.is_empty() {
        let savepoint = transaction.savepoint()?;
        script.undone.iter().try_for_each(|change| make(transaction, own, change))?;
        transaction.rollback_to(savepoint)?;
    }
    script.changes.iter().try_for_each(|change| make(transaction, own, change))?;
    for (account, amount) in &script.transfers {
        let key = account.to_be_bytes();
        transaction.lock_key(bank, &key)?;
        let before = balance(transaction.get(bank, &key)?.as_deref());
        transaction.put(bank, &key, &plan.account(before + amount))?;
    }
    Ok(transaction.put(own, super::script::NUMBER, &number.to_be_bytes())?)
}

fn make(transaction: &mut Transaction, table: Table, change: &Change) -> Result<(), WriteError> {
    match change {
        Change::Put { key, value } => transaction.put(table, key, value),
        Change::Delete { key } => transaction.delete(table, key),
        Change::Patch { key, offset, bytes } => {
            match transaction.patch(table, key, *offset, bytes) {
                Err(WriteError::PatchOutOfRange { .. }) => transaction.put(table, key, bytes),
                patched => patched,
            }
        }
    }
}

/// All rows of all tables.
pub(crate) fn contents(snapshot: &Snapshot) -> anyhow::Result<Contents> {
    let mut contents = Contents::new();
    for name in snapshot.tables()? {
        let table = snapshot.table(&name)?.context("a table that has a name")?;
        let rows = snapshot.range(table, ..).collect::<Result<_, _>>()?;
        contents.insert(name, rows);
    }
    Ok(contents)
}
