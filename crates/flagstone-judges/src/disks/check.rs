//! Checks a state: it opens, holds whole transactions and every durable one, and can be written.

use std::fs::{self, File};
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context as _, bail, ensure};
use flagstone::{Database, OpenError, Options, Snapshot, verify_backup};

use super::progress::{History, Progress};
use super::script::{COUNTER, Script, Step, Tables, counter_key};
use super::workload::DATABASE;

/// Table that checks write to.
pub(super) const PROBE: &str = "probe";

/// Reference for the check of a state.
pub(super) struct Court<'a> {
    pub(super) script: &'a Script,
    pub(super) history: History<'a>,
}

/// Variant of the check: the bits of a number that differs from state to state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner(pub(super) u64);

impl Manner {
    fn reads_first(self) -> bool {
        self.0 & 1 == 1
    }

    fn closes(self) -> bool {
        self.0 >> 1 & 1 == 1
    }

    /// Default options, or the workload's.
    fn options(self, script: &Script) -> Options {
        let is_default = self.0 >> 2 & 1 == 1;
        if is_default { Options::default() } else { script.options.clone() }
    }

    /// One of `count` states.
    fn one_of(self, count: u64) -> bool {
        (self.0 >> 8).is_multiple_of(count)
    }
}

/// Steps of each chain that a database shows.
type Shown = Vec<usize>;

impl Court<'_> {
    /// Checks the state in `directory`.
    ///
    /// # Errors
    /// The promise that is broken.
    pub(super) fn judge(
        &mut self,
        directory: &Path,
        progress: &Progress,
        manner: Manner,
    ) -> anyhow::Result<()> {
        let path = directory.join(DATABASE);
        let options = manner.options(self.script);
        if !path.exists() {
            ensure!(progress.done(0) == 0, "the database has no name");
            let created = Database::open_or_create(&path, &options);
            let created =
                created.context("what a creation left keeps the next one from its work")?;
            return write(&created);
        }
        if manner.reads_first() {
            self.read_only(&path, &options, progress).context("opened to be read")?;
        }
        let shown = self.write_and_read(&path, &options, progress, manner)?;
        let database = Database::open(&path, &options).context("opened again")?;
        let again = self.shown(&database, progress, manner).context("opened again")?;
        ensure!(again == shown, "opened again, it shows steps {again:?}, not {shown:?}");
        require_probe(&database)?;
        drop(database);
        self.beside(directory, progress, manner)
    }

    fn read_only(
        &mut self,
        path: &Path,
        options: &Options,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let before = fs::metadata(path)?.modified()?;
        let database = match Database::open_read_only(path, options) {
            // The error says that it needs more memory.
            Err(OpenError::NeedsMemory { .. }) => {
                Database::open_read_only(path, &Options::default())?
            }
            opened => opened?,
        };
        self.shown(&database, progress, Manner(0))?;
        drop(database);
        ensure!(fs::metadata(path)?.modified()? == before, "reading has written");
        Ok(())
    }

    fn write_and_read(
        &mut self,
        path: &Path,
        options: &Options,
        progress: &Progress,
        manner: Manner,
    ) -> anyhow::Result<Shown> {
        let database = Database::open(path, options).context("opened to be written")?;
        let shown = self.shown(&database, progress, manner)?;
        let report = database.check().context("the check")?;
        ensure!(report.faults.is_empty(), "the check finds {:?}", report.faults);
        write(&database)?;
        if manner.closes() {
            database.close().context("closing")?;
        }
        Ok(shown)
    }

    /// The steps that a database shows, if each is whole and all required ones are there.
    fn shown(
        &mut self,
        database: &Database,
        progress: &Progress,
        manner: Manner,
    ) -> anyhow::Result<Shown> {
        let snapshot = database.snapshot()?;
        let numbers = self.numbers(&snapshot)?;
        let mut names = snapshot.tables()?;
        names.retain(|name| name != PROBE);
        let mut shown = Vec::new();
        for (chain, number) in numbers.into_iter().enumerate() {
            let (least, most) = (progress.durable(chain), progress.begun(chain));
            let fitting = (least..=most).filter(|count| self.number_after(chain, *count) == number);
            let fitting: Vec<usize> = fitting.collect();
            let fits = |court: &mut Self, count: usize| {
                let tables = court.history.after(chain, count)?;
                anyhow::Ok(chain > 0 || tables.0.keys().eq(names.iter()))
            };
            let mut found = None;
            for count in fitting {
                if found.is_none() && fits(self, count)? {
                    found = Some(count);
                }
            }
            let found = found.with_context(|| {
                let of = format!("chain {chain} shows transaction {number} and tables {names:?}");
                format!("{of}, but {least} steps are durable and {most} were begun")
            })?;
            shown.push(found);
        }
        self.require_order(&shown, progress)?;
        let tables: anyhow::Result<Vec<_>> = shown
            .iter()
            .enumerate()
            .map(|(chain, count)| self.history.after(chain, *count))
            .collect();
        let loading = self.script.chain(0).get(shown[0]).filter(|_| progress.begun(0) > shown[0]);
        compare(&snapshot, &tables?, loading)
            .with_context(|| format!("after the steps {shown:?}, as its counters say"))?;
        self.require_kept(database, progress, shown[0], manner)?;
        Ok(shown)
    }

    /// Numbers of the transactions that a database shows last, of each chain.
    fn numbers(&self, snapshot: &Snapshot) -> anyhow::Result<Vec<u64>> {
        let table = snapshot.table(COUNTER)?;
        let numbers = (0..self.script.chain_count()).map(|chain| {
            let Some(table) = table else { return Ok(0) };
            let value = snapshot.get(table, &counter_key(chain))?;
            let number = value.map(|value| value.as_slice().try_into().map(u64::from_le_bytes));
            number.unwrap_or(Ok(0)).context("a counter has another size")
        });
        numbers.collect()
    }

    /// Number of the last transaction among the first steps of a chain.
    fn number_after(&self, chain: usize, count: usize) -> u64 {
        let steps = &self.script.chain(chain)[..count];
        let last = steps.iter().rposition(|step| matches!(step, Step::Commit { .. }));
        last.map_or(0, |last| last as u64 + 1)
    }

    /// Requires, with each transaction, all transactions of other chains that were committed before it began.
    fn require_order(&self, shown: &Shown, progress: &Progress) -> anyhow::Result<()> {
        for (other, count) in shown.iter().enumerate() {
            let Some(last) = self.number_after(other, *count).checked_sub(1) else { continue };
            for (chain, has) in shown.iter().enumerate() {
                let needed = progress.done_before(chain, other, last as usize);
                ensure!(
                    self.number_after(chain, needed) <= self.number_after(chain, *has),
                    "step {other}.{last} is there, but of chain {chain} only {has} steps are, and \
                     {needed} were done before it began"
                );
            }
        }
        Ok(())
    }

    fn require_kept(
        &mut self,
        database: &Database,
        progress: &Progress,
        shown: usize,
        manner: Manner,
    ) -> anyhow::Result<()> {
        let found = database.named_snapshots();
        let fits = |kept: &super::progress::Kept| {
            kept.len() == found.len() && found.iter().all(|name| kept.contains_key(name))
        };
        let possible =
            [progress.done(0), progress.begun(0)].map(|count| self.history.kept_after(count));
        let kept = possible.iter().find(|kept| fits(kept));
        let kept =
            kept.with_context(|| format!("kept snapshots are {found:?}, not {possible:?}"))?;
        for (name, step) in kept {
            ensure!(*step <= shown, "snapshot {name} is there, but not what it keeps");
            if manner.one_of(2) {
                let tables = self.history.after(0, *step)?;
                compare(&database.open_named_snapshot(name)?, &[tables], None)
                    .with_context(|| format!("snapshot {name}"))?;
            }
        }
        Ok(())
    }

    /// Backups and the databases restored from them.
    fn beside(
        &mut self,
        directory: &Path,
        progress: &Progress,
        manner: Manner,
    ) -> anyhow::Result<()> {
        let steps = self.script.chain(0);
        for (index, step) in steps[..progress.begun(0)].iter().enumerate() {
            let is_done = index < progress.done(0);
            // Older ones are looked at from time to time.
            if index + 3 < progress.done(0) && !manner.one_of(16) {
                continue;
            }
            match step {
                Step::Backup(name) => {
                    let path = directory.join(name);
                    ensure!(!is_done || path.exists(), "{name} is gone");
                    if path.exists() {
                        let verified = verify_backup(File::open(&path)?);
                        verified.with_context(|| format!("{name} is not whole"))?;
                    }
                }
                Step::Restore { backup, copy } => {
                    let taken = steps
                        .iter()
                        .position(|step| matches!(step, Step::Backup(name) if name == backup));
                    let taken = self.history.after(0, taken.context("no such backup")?)?;
                    self.copy(&directory.join(copy), is_done, &taken)
                        .with_context(|| format!("the copy {copy}"))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A database into which a backup was restored, wholly or in part.
    fn copy(&self, path: &Path, is_done: bool, taken: &Rc<Tables>) -> anyhow::Result<()> {
        if !path.exists() {
            ensure!(!is_done, "is gone");
            return Ok(());
        }
        let database = Database::open(path, &self.script.options)?;
        let report = database.check()?;
        ensure!(report.faults.is_empty(), "the check finds {:?}", report.faults);
        let snapshot = database.snapshot()?;
        if is_done {
            ensure!(snapshot.tables()?.iter().eq(taken.0.keys()), "other tables");
            return compare(&snapshot, std::slice::from_ref(taken), None);
        }
        for name in snapshot.tables()? {
            let rows = taken.0.get(&name).context("a table that the backup has not")?;
            let table = snapshot.table(&name)?.context("a table that is not there")?;
            for row in snapshot.range(table, ..) {
                let (key, value) = row?;
                ensure!(rows.get(&key).is_some_and(|row| row[..] == value[..]), "another row");
            }
        }
        Ok(())
    }
}

/// Chain of a row.
fn chain_of(table: &str, key: &[u8], count: usize) -> usize {
    let is_counter = table == COUNTER;
    let digit = key.last().filter(|_| is_counter || key.iter().rev().nth(1) == Some(&b'.'));
    let chain = digit.map_or(0, |digit| usize::from(digit.wrapping_sub(b'0')));
    if chain < count { chain } else { 0 }
}

/// Compares all rows of a snapshot with the rows that chains have made. A load that is under way has its first rows.
fn compare(
    snapshot: &Snapshot,
    chains: &[Rc<Tables>],
    loading: Option<&Step>,
) -> anyhow::Result<()> {
    for name in chains[0].0.keys() {
        let table = snapshot.table(name)?.with_context(|| format!("table {name} is gone"))?;
        let rows = snapshot.range(table, ..).map(|row| Ok(row?));
        if let Some(Step::Load { table, rows: loaded }) = loading
            && table == name
        {
            require_beginning(rows, loaded).with_context(|| format!("table {name}"))?;
            continue;
        }
        let expected: usize =
            chains.iter().filter_map(|it| it.0.get(name)).map(|it| it.len()).sum();
        let mut found = 0;
        for row in rows {
            let (key, value): (Vec<u8>, Vec<u8>) = row?;
            found += 1;
            let chain = &chains[chain_of(name, &key, chains.len())];
            let row = chain.0.get(name).and_then(|rows| rows.get(&key));
            if row.is_none_or(|row| row[..] != value[..]) {
                let size = row.map(|row| row.len());
                let key = String::from_utf8_lossy(&key);
                bail!("table {name}, row {key} has {} bytes, not {size:?}, or others", value.len());
            }
        }
        ensure!(found == expected, "table {name} has {found} rows, not {expected}");
    }
    Ok(())
}

fn require_beginning(
    found: impl Iterator<Item = anyhow::Result<(Vec<u8>, Vec<u8>)>>,
    loaded: &[(Vec<u8>, super::script::Bytes)],
) -> anyhow::Result<()> {
    let mut loaded = loaded.iter();
    for row in found {
        let (key, value) = row?;
        let is_next = loaded.next().is_some_and(|next| next.0 == key && next.1.make() == value);
        ensure!(is_next, "row {} does not belong there", String::from_utf8_lossy(&key));
    }
    Ok(())
}

/// A database that was opened takes a durable transaction.
fn write(database: &Database) -> anyhow::Result<()> {
    let table = database.table(PROBE).context("a write")?;
    let mut transaction = database.begin();
    transaction.put(table, b"probe", b"written").context("a write")?;
    transaction.commit().context("a write")?;
    Ok(())
}

fn require_probe(database: &Database) -> anyhow::Result<()> {
    let table = database.existing_table(PROBE)?.context("the write is gone")?;
    let value = database.snapshot()?.get(table, b"probe")?;
    ensure!(value.as_deref() == Some(b"written"), "the write is gone");
    Ok(())
}
