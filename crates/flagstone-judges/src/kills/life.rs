//! Life of one database, in the process that keeps the ledger: it starts other processes, kills them, and judges the
//! database as the next one finds it.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use super::extras::{Backup, Extras, Found};
use super::ledger::Ledger;
use super::plan::{Device, Plan, Session};
use super::said::{Chore, LIVE, Said};
use super::script::{Contents, Model};
use super::worker::{Task, beside};
use crate::patience::Patience;

/// Counts of lives.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) lives: u64,
    pub(crate) kills: u64,
    /// Kills before the database was open and shown.
    pub(crate) kills_in_opening: u64,
    /// Kills while a chore was being done.
    pub(crate) kills_in_chores: u64,
    pub(crate) begun: u64,
    pub(crate) acked: u64,
    /// Transactions that had begun, and are not there.
    pub(crate) taken: u64,
    pub(crate) restores: u64,
    /// Lives that ended because the device was full.
    pub(crate) full: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, other: &Self) {
        self.lives += other.lives;
        self.kills += other.kills;
        self.kills_in_opening += other.kills_in_opening;
        self.kills_in_chores += other.kills_in_chores;
        self.begun += other.begun;
        self.acked += other.acked;
        self.taken += other.taken;
        self.restores += other.restores;
        self.full += other.full;
    }
}

/// Longest silence of a process.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Messages kept for the report of a fault.
const REMEMBERED: usize = 40;

/// A life that goes on.
pub(crate) struct Life<'a> {
    plan: &'a Plan,
    path: PathBuf,
    /// Directory for copies of the files before each working process, if requested.
    pub(crate) copies: Option<PathBuf>,
    /// Deliberate bug of the engine.
    pub(crate) bug: Option<&'a str>,
    generation: u64,
    ledger: Ledger,
    extras: Extras,
    /// Time from the start of a process until the database has been shown.
    opening: Duration,
    pub(crate) totals: Totals,
    last_said: VecDeque<String>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Killed,
    /// It had done all.
    Ended,
    /// There was no room.
    Full,
}

/// A working process, and its messages.
struct Process {
    child: Child,
    said: Receiver<anyhow::Result<Said>>,
    begun: Instant,
}

/// Next event of a process.
enum Next {
    Said(Said),
    /// It has ended; no message is left.
    Gone,
    /// It is time to kill it.
    Due,
}

impl Process {
    /// The next event, until `due`.
    fn next(&self, due: Option<Instant>) -> anyhow::Result<Next> {
        let mut patience = Patience::with(self.child.id(), SILENCE_MAX.as_secs());
        loop {
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(Next::Due);
            }
            let silence = left.map_or(SILENCE_MAX, |left| left.min(SILENCE_MAX));
            match self.said.recv_timeout(silence) {
                Ok(said) => return said.map(Next::Said),
                Err(RecvTimeoutError::Disconnected) => return Ok(Next::Gone),
                Err(RecvTimeoutError::Timeout) if silence == SILENCE_MAX && patience.is_over() => {
                    bail!("the process hangs")
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn require_end(&mut self, end: Option<End>) -> anyhow::Result<()> {
        let status = self.child.wait()?;
        ensure!(status.success() || end == Some(End::Killed), "the process ended with {status}");
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Messages of a process, taken in.
#[derive(Default)]
struct Heard {
    found: Found,
    partial: Found,
    count_begun: u64,
    in_chore: bool,
    is_shown: bool,
    is_created: bool,
    end: Option<End>,
    refused: Option<String>,
}

impl<'a> Life<'a> {
    pub(crate) fn new(plan: &'a Plan, directory: &Path) -> Self {
        let path = match &plan.device {
            Device::Node(node) => node.clone(),
            _ => directory.join("db"),
        };
        Self {
            plan,
            path,
            copies: None,
            bug: None,
            generation: 0,
            ledger: Ledger::new(plan),
            extras: Extras::default(),
            opening: Duration::from_millis(20),
            totals: Totals { lives: 1, ..Totals::default() },
            last_said: VecDeque::new(),
        }
    }

    /// The last messages, one a line.
    pub(crate) fn last_said(&self) -> String {
        self.last_said.iter().map(|said| format!("  {said}\n")).collect()
    }

    /// Lives until it has been killed as often as planned, or until `ends`, which is told of the kills, is true.
    ///
    /// # Errors
    /// The promise that is broken.
    pub(crate) fn run(&mut self, ends: &mut dyn FnMut(u64) -> bool) -> anyhow::Result<()> {
        self.create()?;
        while self.totals.kills < self.plan.kills && !ends(self.totals.kills) {
            self.generation += 1;
            let generation = self.generation;
            let end = self.work().with_context(|| format!("generation {generation}"))?;
            if end == End::Full {
                self.totals.full += 1;
                break;
            }
        }
        self.finish()
    }

    /// Makes the database, killed meanwhile some times.
    fn create(&mut self) -> anyhow::Result<()> {
        loop {
            self.generation += 1;
            let session = self.plan.session(self.generation);
            let is_killed = session.kill.after_begun == 0;
            let kill = is_killed.then_some(session.kill.delay_permille);
            let heard = self.run_beside(Task::Create, None, kill).context("creation")?;
            if heard.is_created {
                return Ok(());
            }
            self.totals.kills += 1;
            self.totals.kills_in_opening += 1;
        }
    }

    /// One process that works until it is killed, after the looks that come before it.
    fn work(&mut self) -> anyhow::Result<End> {
        let session = self.plan.session(self.generation);
        if session.is_looked_at {
            let heard = self.run_beside(Task::Look, None, None).context("read-only")?;
            if let Some(contents) = heard.found.get(LIVE) {
                let bounds = self.ledger.bounds_of_durable();
                let model = self.ledger.judge(self.plan, contents, &bounds).context("read-only")?;
                self.extras.judge(self.plan, &heard.found, &model.numbers, &self.ledger)?;
            }
        }
        self.copy()?;
        let process = self.start(Task::Work, None)?;
        let heard = self.hear(process, Some(&session))?;
        let end = heard.end.unwrap_or(End::Killed);
        if end == End::Killed {
            self.totals.kills += 1;
            self.totals.kills_in_opening += u64::from(!heard.is_shown);
            self.totals.kills_in_chores += u64::from(heard.in_chore);
        }
        self.restore_backups()?;
        Ok(end)
    }

    /// Keeps the files as the next process finds them.
    fn copy(&self) -> anyhow::Result<()> {
        let Some(copies) = &self.copies else { return Ok(()) };
        std::fs::create_dir_all(copies)?;
        for entry in std::fs::read_dir(self.path.parent().context("a directory")?)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                std::fs::copy(entry.path(), copies.join(entry.file_name()))?;
            }
        }
        Ok(())
    }

    /// Opens, compacts and opens again; only the database stays.
    fn finish(&mut self) -> anyhow::Result<()> {
        self.generation += 1;
        let process = self.start(Task::Finish, None)?;
        let heard = self.hear(process, None).context("the end")?;
        ensure!(heard.end == Some(End::Ended), "the last process did not end by itself");
        if self.plan.device.is_plain_file() {
            let directory = self.path.parent().context("a directory")?;
            for entry in std::fs::read_dir(directory)? {
                let name = entry?.file_name();
                let is_ours = name == "db"
                    || name == "before"
                    || name.to_string_lossy().starts_with("backup-");
                ensure!(is_ours, "{} was left behind", name.display());
            }
        }
        Ok(())
    }

    fn start(&self, task: Task, backup: Option<&str>) -> anyhow::Result<Process> {
        let plan = self.plan;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("kills");
        command.args(["--seed", &plan.seed.to_string(), "--life", &plan.life.to_string()]);
        command.args(["--generation", &self.generation.to_string(), "--path"]).arg(&self.path);
        command.arg("--task").arg(format!("{task:?}").to_lowercase());
        if let Device::Node(node) = &plan.device {
            command.arg("--device").arg(node);
        }
        if let Some(backup) = backup {
            command.args(["--backup", backup]);
        }
        if let Some(bug) = self.bug {
            command.args(["--bug", bug]);
        }
        let begun = Instant::now();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut pipe = std::io::BufReader::new(child.stdout.take().context("its output")?);
        let (sender, said) = channel();
        std::thread::spawn(move || {
            while let Some(next) = Said::read(&mut pipe).transpose() {
                if sender.send(next).is_err() {
                    break;
                }
            }
        });
        Ok(Process { child, said, begun })
    }

    /// Hears a process until it ends, or is killed as the session plans; judges the contents that it shows.
    fn hear(&mut self, mut process: Process, session: Option<&Session>) -> anyhow::Result<Heard> {
        let mut heard = Heard::default();
        let mut kill_at = None;
        loop {
            if let Some(session) = session
                && kill_at.is_none()
                && heard.count_begun >= session.kill.after_begun
            {
                let delay = self.opening * session.kill.delay_permille as u32 / 1_000;
                let from = if heard.count_begun == 0 { process.begun } else { Instant::now() };
                kill_at = Some(from + delay);
            }
            match process.next(kill_at)? {
                Next::Said(said) => self.take(&process, &mut heard, said)?,
                Next::Gone => break,
                Next::Due => {
                    process.child.kill()?;
                    heard.end = Some(End::Killed);
                    break;
                }
            }
        }
        while let Next::Said(said) = process.next(None)? {
            self.take(&process, &mut heard, said)?;
        }
        process.require_end(heard.end)?;
        Ok(heard)
    }

    /// One message.
    fn take(&mut self, process: &Process, heard: &mut Heard, said: Said) -> anyhow::Result<()> {
        if self.last_said.len() == REMEMBERED {
            self.last_said.pop_front();
        }
        self.last_said.push_back(said.to_string());
        self.ledger.hear(&said)?;
        self.extras.hear(self.plan, &said, &self.ledger);
        match said {
            Said::Created => heard.is_created = true,
            Said::Begun { .. } => {
                heard.count_begun += 1;
                self.totals.begun += 1;
            }
            Said::Done { .. } => self.totals.acked += 1,
            Said::Chore(chore) => {
                heard.count_begun += u64::from(chore != Chore::Compact);
                heard.in_chore = true;
            }
            Said::ChoreDone => heard.in_chore = false,
            Said::Rows { source, table, rows } => {
                heard.partial.entry(source).or_default().insert(table, rows);
            }
            Said::Whole { source } => {
                let contents = heard.partial.remove(&source).unwrap_or_default();
                let is_live = source == LIVE;
                heard.found.insert(source, contents);
                if is_live {
                    self.judge(&std::mem::take(&mut heard.found))?;
                }
            }
            Said::Opened => {
                heard.is_shown = true;
                heard.in_chore = false;
                self.opening = process.begun.elapsed();
            }
            Said::Sound | Said::Stumbled(_) => {}
            Said::Refused(why) => heard.refused = Some(why),
            Said::Full => heard.end = Some(End::Full),
            Said::Ended => heard.end = heard.end.or(Some(End::Ended)),
            Said::Failed(why) => bail!("{why}"),
        }
        Ok(())
    }

    /// Judges the contents of a database open for writing, and goes on from there.
    fn judge(&mut self, found: &Found) -> anyhow::Result<()> {
        let contents = found.get(LIVE).context("the database itself")?;
        let model = self.judge_live(contents)?;
        let extras = self.extras.judge(self.plan, found, &model.numbers, &self.ledger)?;
        let begun = self.ledger.begun_numbers();
        let taken = begun.iter().zip(&model.numbers).map(|(begun, found)| begun - found);
        self.totals.taken += taken.sum::<u64>();
        self.extras = extras;
        self.ledger.settle(model);
        Ok(())
    }

    fn judge_live(&self, contents: &Contents) -> anyhow::Result<Model> {
        self.ledger.judge(self.plan, contents, &self.ledger.bounds_of_durable())
    }

    /// Restores the backups that the last process wrote, once killed half way and once to the end.
    fn restore_backups(&mut self) -> anyhow::Result<()> {
        for backup in self.extras.take_backups() {
            let name = backup.name.clone();
            let path = beside(self.plan, &self.path, &name);
            if path.exists() {
                let killed = self.run_beside(Task::Restore, Some(&name), Some(500))?;
                self.totals.kills += u64::from(killed.end == Some(End::Killed));
                let heard = self.run_beside(Task::Restore, Some(&name), None)?;
                self.judge_restored(&backup, &heard).with_context(|| name)?;
                std::fs::remove_file(path)?;
            } else {
                ensure!(!backup.is_whole, "the file of {name} is gone");
            }
        }
        Ok(())
    }

    fn judge_restored(&mut self, backup: &Backup, heard: &Heard) -> anyhow::Result<()> {
        match (heard.found.get(&backup.name), &heard.refused) {
            (Some(contents), _) => {
                self.totals.restores += 1;
                backup.judge(self.plan, contents, &self.ledger)
            }
            (None, Some(why)) => {
                ensure!(!backup.is_whole, "a whole backup is refused: {why}");
                Ok(())
            }
            (None, None) => bail!("a restore showed nothing"),
        }
    }

    /// Runs a process that shows no rows of the database open for writing; kills it after a share of an opening's time,
    /// in parts of a thousand.
    fn run_beside(
        &mut self,
        task: Task,
        backup: Option<&str>,
        kill_permille: Option<u64>,
    ) -> anyhow::Result<Heard> {
        let mut process = self.start(task, backup)?;
        let mut heard = Heard::default();
        if let Some(permille) = kill_permille {
            let at = process.begun + self.opening * permille as u32 / 1_000;
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            process.child.kill()?;
            heard.end = Some(End::Killed);
        }
        while let Next::Said(said) = process.next(None)? {
            match said {
                Said::Created => heard.is_created = true,
                Said::Rows { source, table, rows } => {
                    heard.partial.entry(source).or_default().insert(table, rows);
                }
                Said::Whole { source } => {
                    let contents = heard.partial.remove(&source).unwrap_or_default();
                    heard.found.insert(source, contents);
                }
                Said::Refused(why) => heard.refused = Some(why),
                Said::Failed(why) => bail!("{why}"),
                _ => {}
            }
        }
        process.require_end(heard.end)?;
        Ok(heard)
    }
}
