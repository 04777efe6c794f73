//! One operation with one call that fails: the state before, the run, and the promises that hold afterwards.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

use super::fault::{Call, Fault};
use super::tracer::{self, Aim, Traced};
use super::workload::{BACKUP, Operation, Task};
use crate::kills::extras::{Backup, Extras, Found};
use crate::kills::ledger::Ledger;
use crate::kills::plan::Plan;
use crate::kills::said::{LIVE, Said};
use crate::kills::script::Contents;

/// Shared setup of the processes of one operation.
pub(crate) struct Bench {
    pub(crate) operation: Operation,
    seed: u64,
    /// Deliberate bug of the engine.
    bug: Option<String>,
    plan: Plan,
    /// Directory with the files that the operation finds.
    template: PathBuf,
    /// Transactions that were made before.
    count: u64,
    record: Record,
    /// Rows of the backup that the operation restores.
    prepared: Option<Contents>,
    /// Calls of the operation where none fails.
    pub(crate) calls: Vec<Call>,
}

/// Messages about a database, taken in.
#[derive(Clone)]
struct Record {
    ledger: Ledger,
    extras: Extras,
    partial: Found,
    /// Rows of a restored backup.
    restored: Found,
    stumbles: Vec<String>,
    is_created: bool,
}

impl Record {
    fn new(plan: &Plan) -> Self {
        Self {
            ledger: Ledger::new(plan),
            extras: Extras::default(),
            partial: Found::new(),
            restored: Found::new(),
            stumbles: Vec::new(),
            is_created: false,
        }
    }

    /// Takes in the messages of a process, and judges each state of the database that it showed.
    fn hear(&mut self, plan: &Plan, said: &[Said], is_reader: bool) -> anyhow::Result<()> {
        for said in said {
            self.ledger.hear(said)?;
            self.extras.hear(plan, said, &self.ledger);
            match said {
                Said::Created => self.is_created = true,
                Said::Rows { source, table, rows } => {
                    let contents = self.partial.entry(source.clone()).or_default();
                    contents.insert(table.clone(), rows.clone());
                }
                Said::Whole { source } if source == LIVE => {
                    let mut found = std::mem::take(&mut self.partial);
                    found.entry(LIVE.to_owned()).or_default();
                    self.judge(plan, &found, is_reader)?;
                }
                Said::Whole { source } if source == BACKUP => {
                    let contents = self.partial.remove(source).unwrap_or_default();
                    self.restored.insert(source.clone(), contents);
                }
                Said::Stumbled(why) => {
                    self.partial.clear();
                    self.stumbles.push(why.clone());
                }
                Said::Failed(why) => bail!("{why}"),
                _ => {}
            }
        }
        Ok(())
    }

    fn judge(&mut self, plan: &Plan, found: &Found, is_reader: bool) -> anyhow::Result<()> {
        let bounds = self.ledger.bounds_of_durable();
        let model = self.ledger.judge(plan, &found[LIVE], &bounds)?;
        let extras = self.extras.judge(plan, found, &model.numbers, &self.ledger)?;
        if !is_reader {
            self.extras = extras;
            self.ledger.settle(model);
        }
        Ok(())
    }
}

/// Result of a case.
pub(crate) struct Verdict {
    pub(crate) is_hit: bool,
    /// Errors that the operation gave.
    pub(crate) stumbles: Vec<String>,
}

impl Bench {
    /// Makes the files that the operation finds, and counts its calls.
    ///
    /// # Errors
    /// The operation does not work without a failure, or `ptrace` is refused.
    pub(crate) fn new(
        operation: Operation,
        seed: u64,
        bug: Option<String>,
        parent: &Path,
    ) -> anyhow::Result<Self> {
        let template = parent.join(format!("{operation:?}").to_lowercase());
        let plan = operation.plan(seed);
        let record = Record::new(&plan);
        let count = operation.counts().0;
        let mut bench = Self {
            operation,
            seed,
            bug,
            plan,
            template,
            count,
            record,
            prepared: None,
            calls: Vec::new(),
        };
        bench.prepare()?;
        if operation == Operation::Growth {
            // Stops a few transactions before the file grows.
            let counted = bench.record.ledger.begun_numbers()[0];
            ensure!(counted < bench.count, "the file does not grow");
            bench.count = counted.saturating_sub(4);
            bench.record = Record::new(&bench.plan);
            fs::remove_dir_all(&bench.template)?;
            bench.prepare()?;
        }
        bench.record.is_created = false;
        let place = parent.join("probe");
        let traced = bench.operate(&place, None)?;
        if operation == Operation::Restore {
            let mut record = bench.record.clone();
            record.hear(&bench.plan, &traced.said, false)?;
            bench.prepared = record.restored.remove(BACKUP);
            let backup = bench.record.extras.take_backups().pop().context("a backup")?;
            let contents = bench.prepared.as_ref().context("a restored backup")?;
            backup.judge(&bench.plan, contents, &record.ledger)?;
        }
        bench.verify(&place, &traced).context("without any failure")?;
        bench.calls = traced.calls;
        Ok(bench)
    }

    fn prepare(&mut self) -> anyhow::Result<()> {
        fs::create_dir_all(&self.template)?;
        let said = self.run_alone(&self.template, Task::Prepare)?;
        self.record.hear(&self.plan, &said, false).context("what comes before")
    }

    /// Every failure of every call: once, and from then on.
    pub(crate) fn aims(&self) -> Vec<Aim> {
        let of_call = |(index, call): (usize, &Call)| {
            let once =
                call.faults().into_iter().map(move |fault| Aim { index, fault, lasts: false });
            let lasting = call.lasting_faults().into_iter();
            once.chain(lasting.map(move |fault| Aim { index, fault, lasts: true }))
                .collect::<Vec<_>>()
        };
        self.calls.iter().enumerate().flat_map(of_call).collect()
    }

    /// Runs the operation with one failure, and judges.
    ///
    /// # Errors
    /// The promise that is broken.
    pub(crate) fn judge(&self, place: &Path, aim: Aim) -> anyhow::Result<Verdict> {
        let traced = self.operate(place, Some(aim))?;
        let said = || {
            let last = traced.said.iter().rev().take(12).rev();
            last.map(|said| format!("\n  {said}")).collect::<String>()
        };
        if let Err(how) = &traced.end {
            bail!("the process did not end by itself: {how}; it said{}", said());
        }
        let stumbles = self.verify(place, &traced).with_context(|| format!("it said{}", said()))?;
        Ok(Verdict { is_hit: traced.is_hit, stumbles })
    }

    fn operate(&self, place: &Path, aim: Option<Aim>) -> anyhow::Result<Traced> {
        copy(&self.template, place)?;
        tracer::run(&mut self.command(place, Task::Operate)?, place, aim)
    }

    fn command(&self, place: &Path, task: Task) -> anyhow::Result<Command> {
        let name = |value: &dyn clap_name::Name| value.name();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["calls", "--seed", &self.seed.to_string(), "--directory"]).arg(place);
        command.args(["--operation", &name(&self.operation), "--task", &name(&task)]);
        command.args(["--count", &self.count.to_string()]);
        // The tasks before and behind it are judged without the bug.
        if let Some(bug) = &self.bug
            && task == Task::Operate
        {
            command.args(["--bug", bug]);
        }
        Ok(command)
    }

    /// Runs a process without a tracer.
    fn run_alone(&self, place: &Path, task: Task) -> anyhow::Result<Vec<Said>> {
        use std::process::Stdio;
        let mut command = self.command(place, task)?;
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut pipe = std::io::BufReader::new(child.stdout.take().context("its output")?);
        let mut said = Vec::new();
        while let Some(next) = Said::read(&mut pipe)? {
            said.push(next);
        }
        let status = child.wait()?;
        ensure!(status.success(), "{task:?} ended with {status}");
        Ok(said)
    }

    /// Judges the answer of the operation and the files after it; gives the errors that it reported.
    fn verify(&self, place: &Path, traced: &Traced) -> anyhow::Result<Vec<String>> {
        let mut record = self.record.clone();
        let is_reader = self.operation == Operation::Look;
        record.hear(&self.plan, &traced.said, is_reader)?;
        for backup in record.extras.take_backups() {
            self.verify_backup(place, &backup, &record)?;
        }
        if let Some(contents) = record.restored.get(BACKUP) {
            let has_all = self.prepared.as_ref() == Some(contents);
            ensure!(has_all, "a restored database has other rows than the backup");
        }
        let is_new = matches!(self.operation, Operation::Create | Operation::Image);
        let is_there = place.join("db").exists();
        ensure!(is_there || (is_new && !record.is_created), "the database is gone");
        let said = self.run_alone(place, Task::Verify)?;
        let stumbles = std::mem::take(&mut record.stumbles);
        record.hear(&self.plan, &said, false).context("afterwards")?;
        ensure!(said.last() == Some(&Said::Ended), "the process that verifies did not end");
        for entry in fs::read_dir(place)? {
            let name = entry?.file_name();
            let is_ours = ["db", "db.toml", BACKUP, "restored"].iter().any(|ours| name == **ours)
                || name.to_string_lossy().starts_with("backup-");
            ensure!(is_ours, "{} was left behind", name.display());
        }
        Ok(stumbles)
    }

    /// Whether a finished backup is whole, and an unfinished one is refused or whole.
    fn verify_backup(&self, place: &Path, backup: &Backup, record: &Record) -> anyhow::Result<()> {
        if backup.name != BACKUP || !place.join(BACKUP).exists() {
            return Ok(());
        }
        let said = self.run_alone(place, Task::Restore)?;
        let mut restored = Found::new();
        for said in &said {
            match said {
                Said::Rows { table, rows, .. } => {
                    let contents = restored.entry(BACKUP.to_owned()).or_default();
                    contents.insert(table.clone(), rows.clone());
                }
                Said::Failed(why) if backup.is_whole => bail!("a whole backup is refused: {why}"),
                Said::Failed(_) => return Ok(()),
                _ => {}
            }
        }
        let contents = restored.get(BACKUP).context("a restore showed nothing")?;
        backup.judge(&self.plan, contents, &record.ledger).context("a backup")
    }
}

/// Names of the values of options on the command line.
mod clap_name {
    /// A value that has a name there.
    pub(super) trait Name {
        fn name(&self) -> String;
    }

    impl<T: clap::ValueEnum> Name for T {
        fn name(&self) -> String {
            self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
        }
    }
}

/// Copies the files of a directory to an empty one. Zeros become holes.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let mut source = File::open(entry.path())?;
        let mut target = File::create(to.join(entry.file_name()))?;
        let mut chunk = vec![0; 1 << 16];
        loop {
            let size = source.read(&mut chunk)?;
            if size == 0 {
                break;
            }
            if chunk[..size].iter().all(|byte| *byte == 0) {
                target.seek(SeekFrom::Current(size as i64))?;
            } else {
                target.write_all(&chunk[..size])?;
            }
        }
        target.set_len(source.metadata()?.len())?;
    }
    Ok(())
}

/// A failure as it is given on the command line.
pub(crate) fn shown(aim: Aim) -> String {
    let fault = match aim.fault {
        Fault::Errno(errno) => format!("errno-{errno}"),
        Fault::Dropped(errno) => format!("dropped-{errno}"),
        Fault::Short => String::from("short"),
    };
    format!("{}:{fault}{}", aim.index, if aim.lasts { ":lasts" } else { "" })
}

/// The failure that [`shown`] shows.
pub(crate) fn parse(text: &str) -> anyhow::Result<Aim> {
    let mut words = text.split(':');
    let index = words.next().context("the number of a call")?.parse()?;
    let fault = words.next().context("a fault")?;
    let lasts = words.next() == Some("lasts");
    let fault = match fault.split_once('-') {
        Some(("errno", errno)) => Fault::Errno(errno.parse()?),
        Some(("dropped", errno)) => Fault::Dropped(errno.parse()?),
        None if fault == "short" => Fault::Short,
        _ => bail!("no fault: {fault}"),
    };
    Ok(Aim { index, fault, lasts })
}
