//! The process whose system calls fail: it does one operation and reports the result of each step.

use std::fs::{self, File};
use std::io::{BufReader, Read as _};

use anyhow::{Context as _, bail};
use flagstone::{Database, Durability, Error, Table};

use crate::kills::plan::{Device, Mix, Plan, Session};
use crate::kills::said::{Chore, Said};
use crate::kills::script::{Appetite, BANK, numbers, table_of};
use crate::kills::worker::{Worker, apply, contents};

/// An operation whose calls fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Operation {
    /// Makes a database.
    Create,
    /// Opens one that was not closed, reads all, and closes it.
    Open,
    /// Commits of all kinds.
    Commit,
    /// Commits that make the file grow.
    Growth,
    /// Compacts.
    Compact,
    /// Writes a backup.
    Backup,
    /// Restores a backup into a new file.
    Restore,
    /// Snapshots that are kept and dropped, tables that are made, loaded, renamed and dropped.
    Chores,
    /// Commits where room is given back to the host.
    Discard,
    /// Opens to read.
    Look,
    /// Makes the image of a chip, and commits on it.
    Image,
}

impl Operation {
    pub(crate) const ALL: [Self; 11] = [
        Self::Create,
        Self::Open,
        Self::Commit,
        Self::Growth,
        Self::Compact,
        Self::Backup,
        Self::Restore,
        Self::Chores,
        Self::Discard,
        Self::Look,
        Self::Image,
    ];

    /// Numbers of transactions: before the operation, and in it.
    pub(crate) fn counts(self) -> (u64, u64) {
        match self {
            Self::Create | Self::Image => (0, 4),
            Self::Open => (30, 0),
            Self::Commit | Self::Discard => (12, 30),
            // Calls before the file grows are only counted.
            Self::Growth => (2_000, 8),
            Self::Chores => (20, 12),
            Self::Compact | Self::Backup | Self::Restore | Self::Look => (24, 0),
        }
    }

    pub(crate) fn plan(self, seed: u64) -> Plan {
        let is_large = self == Self::Growth;
        let device = if self == Self::Image { Device::Image(80) } else { Device::Growing };
        Plan {
            device,
            threads: 1,
            keys: if is_large { 4_000 } else { 60 },
            value_size_max: if is_large { 900 } else { 200 },
            large_every: if is_large { 2 } else { 25 },
            accounts: 12,
            padding: 8,
            changes_max: if is_large { 12 } else { 5 },
            big_every: 1 << 40,
            mix: Mix::Mixed(2),
            chore_every: if self == Self::Chores { 1 } else { 1 << 40 },
            kills: 0,
            preset: "flagstone",
            ..Plan::of(seed, self as u64, None)
        }
    }

    pub(crate) fn session(self, plan: &Plan) -> Session {
        let mut session = plan.session(0);
        session.options = flagstone::Options::default()
            .with_memory(if self == Self::Growth { 8 << 20 } else { 128 << 10 })
            .with_discard(self == Self::Discard);
        session.options.checkpoint_commits = if self == Self::Growth { 0 } else { 10 };
        session
    }
}

/// Task of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Task {
    /// Makes the files that the operation finds.
    Prepare,
    /// Does the operation.
    Operate,
    /// Opens the database, shows it, and repeats the operation that may have failed.
    Verify,
    /// Restores the backup and shows it.
    Restore,
}

/// Name of the backup of the operations that need one.
pub(crate) const BACKUP: &str = "backup-1";

/// How often an operation is tried.
const ATTEMPTS: u32 = 2;

/// A process at work.
pub(crate) struct Workload<'a> {
    pub(crate) worker: Worker<'a>,
    pub(crate) operation: Operation,
    /// Transactions to make before the operation, where they were counted.
    pub(crate) count: u64,
}

impl Workload<'_> {
    /// Runs until all is done; reports failures, too.
    pub(crate) fn run(&self, task: Task) -> anyhow::Result<()> {
        // The process is followed when its input ends.
        std::io::stdin().read_to_end(&mut Vec::new())?;
        let done = match task {
            Task::Prepare => self.prepare(),
            Task::Operate => self.operate(),
            Task::Verify => self.verify(),
            Task::Restore => self.restore(),
        };
        let voice = &self.worker.voice;
        match done {
            Ok(()) => voice.say(&Said::Ended),
            Err(error) => voice.say(&Said::Failed(format!("{task:?}: {error:#}"))),
        }
        Ok(())
    }

    fn prepare(&self) -> anyhow::Result<()> {
        if matches!(self.operation, Operation::Create | Operation::Image) {
            return Ok(());
        }
        self.worker.create()?;
        let database = self.worker.open()?;
        self.worker.show(&database)?;
        let bank = database.table(BANK)?;
        let own = database.table(&table_of(0))?;
        let size = fs::metadata(self.worker.path)?.len();
        for number in 1..=self.count {
            self.transaction(&database, (own, bank), number)?;
            if self.operation == Operation::Growth && fs::metadata(self.worker.path)?.len() != size
            {
                return Ok(());
            }
        }
        if self.operation == Operation::Restore {
            self.backup(&database)?;
        }
        if self.operation != Operation::Open && self.operation != Operation::Look {
            let chore = || Ok(database.close()?);
            self.worker.chore(Chore::Close, chore)?;
        }
        Ok(())
    }

    /// The operation, repeated once if it fails.
    fn operate(&self) -> anyhow::Result<()> {
        for _ in 0..ATTEMPTS {
            match self.attempt() {
                Ok(()) => break,
                Err(error) => {
                    if let Some(broken) = error.downcast_ref::<Broken>() {
                        bail!("{broken:?}: {error:#}");
                    }
                    self.worker.voice.say(&Said::Stumbled(format!("{error:#}")));
                }
            }
        }
        Ok(())
    }

    fn attempt(&self) -> anyhow::Result<()> {
        match self.operation {
            Operation::Create | Operation::Image => {
                let is_image = self.operation == Operation::Image;
                if !is_image || !self.worker.path.exists() {
                    self.worker.create()?;
                }
                self.serve()
            }
            Operation::Open
            | Operation::Commit
            | Operation::Growth
            | Operation::Chores
            | Operation::Discard => self.serve(),
            Operation::Compact => {
                Database::compact(self.worker.path, &self.worker.session.options)?;
                Ok(())
            }
            Operation::Backup => self.backup(&self.worker.open()?),
            Operation::Restore => self.restore(),
            Operation::Look => {
                let database =
                    Database::open_read_only(self.worker.path, &self.worker.session.options)?;
                self.worker.show(&database).map(drop)
            }
        }
    }

    /// Opens, shows, commits and closes.
    fn serve(&self) -> anyhow::Result<()> {
        let database = self.worker.open()?;
        let contents = self.worker.show(&database)?;
        let next = numbers(self.worker.plan, &contents)?[0] + 1;
        let bank = database.table(BANK)?;
        let own = database.table(&table_of(0))?;
        for number in next..next + self.operation.counts().1 {
            self.transaction(&database, (own, bank), number)?;
            if number.is_multiple_of(self.worker.plan.chore_every) {
                self.worker.some_chore(&database, bank, number)?;
            }
        }
        self.worker.chore(Chore::Close, || Ok(database.close()?))
    }

    /// One transaction, repeated once if it fails and has certainly changed nothing.
    fn transaction(
        &self,
        database: &Database,
        tables: (Table, Table),
        number: u64,
    ) -> anyhow::Result<()> {
        let Err(error) = self.transaction_once(database, tables, number) else { return Ok(()) };
        self.worker.voice.say(&Said::Stumbled(format!("transaction {number}: {error}")));
        let again = match error {
            Error::OutcomeUnknown => {
                // A later commit would build on one that is perhaps not there.
                let mut transaction = database.begin();
                let made = transaction.put(tables.0, b"after", b"");
                if made.is_ok() && transaction.commit_with(Durability::Immediate).is_ok() {
                    return Err(Broken::Goes.into());
                }
                Err(error)
            }
            Error::Poisoned => Err(error),
            _ => self.transaction_once(database, tables, number),
        };
        again.with_context(|| format!("transaction {number}, again"))
    }

    fn transaction_once(
        &self,
        database: &Database,
        tables: (Table, Table),
        number: u64,
    ) -> Result<(), Error> {
        let voice = &self.worker.voice;
        voice.say(&Said::Begun { thread: 0, number, appetite: Appetite::Full });
        let plan = self.worker.plan;
        let script = plan.script(0, number, Appetite::Full);
        let mut transaction = database.begin();
        apply(plan, &mut transaction, tables, &script, number)?;
        transaction.commit_with(script.durability)?;
        let is_durable = script.durability != Durability::Deferred;
        voice.say(&Said::Done { thread: 0, is_durable });
        Ok(())
    }

    fn backup(&self, database: &Database) -> anyhow::Result<()> {
        let chore = Chore::Backup(BACKUP.to_owned());
        self.worker.chore(chore.clone(), || self.worker.perform(database, &chore))
    }

    fn restore(&self) -> anyhow::Result<()> {
        let (from, to) = (self.worker.beside(BACKUP), self.worker.beside("restored"));
        match fs::remove_file(&to) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let database = Database::create(&to, &self.worker.session.options)?;
        database.restore_from(BufReader::new(File::open(from)?))?;
        self.worker.voice.show(BACKUP, contents(&database.snapshot()?)?);
        drop(database);
        Ok(fs::remove_file(to)?)
    }

    fn verify(&self) -> anyhow::Result<()> {
        let worker = &self.worker;
        let is_new = matches!(self.operation, Operation::Create | Operation::Image);
        if is_new && !worker.path.exists() {
            worker.create().context("to be made again")?;
        }
        let opened = worker.open();
        // The image of a chip is made in place: an image that was never whole is made anew.
        let database = match opened {
            Err(_) if self.operation == Operation::Image => {
                worker.create().context("to be made again")?;
                worker.open()?
            }
            opened => opened?,
        };
        worker.show(&database)?;
        database.close()?;
        match self.operation {
            Operation::Compact => self.compact_again(),
            Operation::Restore => self.restore().context("a restore afterwards"),
            _ => Ok(()),
        }
    }

    fn compact_again(&self) -> anyhow::Result<()> {
        let worker = &self.worker;
        match Database::compact(worker.path, &worker.session.options) {
            Err(flagstone::CompactError::Snapshots { .. }) => return Ok(()),
            compacted => drop(compacted.context("compaction afterwards")?),
        }
        let database = worker.open()?;
        worker.show(&database)?;
        Ok(database.close()?)
    }
}

/// A promise that the process itself sees broken.
#[derive(Clone, Copy, Debug)]
enum Broken {
    /// A handle goes on after a commit whose outcome is unknown.
    Goes,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a commit is accepted after one whose outcome is unknown")
    }
}

impl std::error::Error for Broken {}
