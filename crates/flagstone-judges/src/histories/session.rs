//! One history: sessions one after the other, each ended by a cut, a kill or a close, each checked against the
//! contents at the next opening.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread;

use flagstone::{Database, Durability, OpenError, Options};

use super::checker::{self, Session, Verdict};
use super::draft::Draft;
use super::draw::Draw;
use super::ledger::Recorder;
use super::medium::{self, Medium};
use super::process;
use super::program::{End, Place, Program};
use super::record::{Area, Base, Finding, Key, List, Notes, Op, Outcome, TxnId, View, Viewer};
use super::value::Value;
use super::worker::Worker;
use super::world::{self, Churn, Stop, Tables, Whole, World};

/// Counts of the check, and its findings.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) histories: u64,
    pub(crate) sessions: u64,
    pub(crate) transactions: u64,
    pub(crate) snapshots: u64,
    pub(crate) cuts: u64,
    pub(crate) copies: u64,
    pub(crate) findings: Vec<Finding>,
}

/// Makes and checks the history of a program, in an empty directory.
///
/// # Errors
/// What keeps the judge from working.
pub(crate) fn run(program: &Program, directory: &Path, tally: &mut Tally) -> anyhow::Result<()> {
    tally.histories += 1;
    let mut history = History {
        program,
        path: directory.join("db"),
        directory,
        medium: medium::create(program.place, program.seed)?,
        base: Base::default(),
        kept: BTreeMap::new(),
    };
    for session in 0..program.sessions {
        let before = tally.findings.len();
        history.session(session, tally)?;
        if tally.findings.len() > before {
            break;
        }
    }
    Ok(())
}

/// A history in the making.
struct History<'a> {
    program: &'a Program,
    path: PathBuf,
    directory: &'a Path,
    medium: Option<Box<dyn Medium>>,
    base: Base,
    /// Named snapshots, with their contents.
    kept: BTreeMap<String, Vec<Op>>,
}

impl History<'_> {
    /// One session, and the opening behind it.
    fn session(&mut self, session: u64, tally: &mut Tally) -> anyhow::Result<()> {
        process::beat();
        let end = self.program.end(session);
        let (mut notes, begun) = match self.program.place {
            Place::Process => {
                let notes = process::session(self.program, session, &self.path, self.directory)?;
                (notes, u64::MAX)
            }
            _ => self.work(session, end)?,
        };
        let is_process = self.program.place == Place::Process;
        if is_process && notes.txns.is_empty() && !self.path.exists() {
            // It was killed before it had made a database.
            tally.findings.append(&mut notes.findings);
            return Ok(());
        }
        self.kept.extend(notes.kept.drain(..));
        let viewer = if end == End::Close { Viewer::Closed } else { Viewer::Cut };
        match self.look(viewer) {
            Ok((seen, mut findings)) => {
                notes.findings.append(&mut findings);
                notes.findings.extend(seen.found);
                let ops = seen.ops;
                let next = Base::of(&ops);
                notes.views.push(View { viewer, begun, ended: begun, ops });
                self.check(session, &notes, tally);
                self.base = next;
            }
            Err(finding) => {
                notes.findings.push(finding);
                self.check(session, &notes, tally);
            }
        }
        Ok(())
    }

    fn check(&self, number: u64, notes: &Notes, tally: &mut Tally) {
        let session = Session { number, base: &self.base, notes };
        let Verdict { committed, findings } = checker::check(&session);
        tally.sessions += 1;
        tally.transactions += committed;
        for view in &notes.views {
            match view.viewer {
                Viewer::Snapshot | Viewer::Kept => tally.snapshots += 1,
                Viewer::Backup => tally.copies += 1,
                Viewer::Cut | Viewer::Closed => tally.cuts += 1,
            }
        }
        tally.findings.extend(notes.findings.iter().cloned());
        tally.findings.extend(findings);
    }

    /// Works in this process; gives the stamp of the end.
    fn work(&mut self, session: u64, end: End) -> anyhow::Result<(Notes, u64)> {
        let opened = self.open(session > 0);
        let db = match opened {
            Ok(db) => db,
            Err(error) => {
                let findings = vec![world::refused(&error)];
                return Ok((Notes { findings, ..Notes::default() }, 0));
            }
        };
        let (notes, ended, cut) = {
            let medium = self.medium.as_deref();
            if let Some(bug) = &self.program.bug {
                super::plant(&db, bug)?;
            }
            let tables = Tables::open(&db)?;
            let mut world = World::new(db, tables, self.program, session, medium);
            world.loses_power = end == End::InFlight;
            let mut notes = threads(&world, end, &|_| Ok(Recorder::default()))?;
            let cut = world.take_cut();
            let mut draw = Draw::new(self.program.seed, 3_000 + session);
            let cut = match (cut, medium, end) {
                (cut @ Some(_), ..) => cut,
                (None, Some(medium), End::Cut | End::InFlight) => {
                    Some((world.stamp(), medium.cut(&mut draw)))
                }
                _ => None,
            };
            let stamp = world.stamp();
            if end == End::Close
                && let Err(error) = world.db.close()
            {
                notes.findings.push(Finding::new("refused", format!("a close failed: {error}")));
            }
            let ended = cut.as_ref().map_or(stamp, |(stamp, _)| *stamp);
            (notes, ended, cut.map(|(_, medium)| medium))
        };
        if cut.is_some() {
            self.medium = cut;
        }
        Ok((notes, ended))
    }

    fn open(&self, exists: bool) -> Result<Database, OpenError> {
        open(self.medium.as_deref(), &self.path, &self.program.options, exists)
    }

    /// Opens the database after a session, and looks at all of it, and at its named snapshots.
    fn look(&self, viewer: Viewer) -> Result<(Whole, Vec<Finding>), Finding> {
        let form = "restart: refused";
        let db = self.open(true).map_err(|error| world::refused(&error))?;
        let threads = self.program.threads;
        let seen = world::whole(&db, viewer.name(), threads).map_err(|stop| stop.finding(form))?;
        let mut findings = Vec::new();
        let names = db.named_snapshots();
        for (name, shown) in &self.kept {
            if !names.contains(name) {
                let text = format!("the named snapshot {name} is gone");
                findings.push(Finding::new("named snapshot: lost", text));
                continue;
            }
            let shows = || -> Result<Whole, Stop> {
                world::seen(
                    &db.open_named_snapshot(name)?,
                    &Tables::open(&db)?,
                    "named snapshot",
                    threads,
                )
            };
            let shows = shows().map_err(|stop| stop.finding(form))?;
            if shows.ops != *shown {
                let text =
                    format!("the named snapshot {name} shows something else after a restart");
                findings.push(Finding::new("named snapshot: changed", text));
            }
        }
        let faults = db.check().map_err(|error| Stop::from(error).finding(form))?.faults;
        if let Some(fault) = faults.first() {
            let text = format!("a check finds {} faults, the first one: {fault}", faults.len());
            findings.push(Finding::new("check: faults", text));
        }
        db.close().map_err(|error| Stop::from(error).finding("refused"))?;
        Ok((seen, findings))
    }
}

/// Opens, or creates, a database.
///
/// # Errors
/// Errors of the database.
pub(crate) fn open(
    medium: Option<&dyn Medium>,
    path: &Path,
    options: &Options,
    exists: bool,
) -> Result<Database, OpenError> {
    match (medium, exists) {
        (Some(medium), true) => Database::open_on(medium.device(), options),
        (Some(medium), false) => Database::create_on(medium.device(), options),
        (None, true) => Database::open(path, options),
        (None, false) => Database::create(path, options),
    }
}

/// Runs the threads of a session to its end; `recorder` gives each of them one.
///
/// # Errors
/// What keeps the judge from working.
pub(crate) fn threads(
    world: &World<'_>,
    end: End,
    recorder: &(dyn Fn(u64) -> anyhow::Result<Recorder> + Sync),
) -> anyhow::Result<Notes> {
    let mut notes = Notes::default();
    let (mut churn, mut counts) = (vec![Churn::new(); world.program.threads as usize], Vec::new());
    if world.session == 0 {
        notes.append(load(world, recorder(LOADER)?)?);
    } else {
        match world::whole(&world.db, "restart", world.program.threads) {
            Ok(whole) if whole.churn.len() == churn.len() => churn = whole.churn,
            Ok(whole) => notes.findings.extend(whole.found),
            Err(stop) => notes.findings.push(stop.finding("restart: refused")),
        }
    }
    for thread in 0..world.program.threads {
        counts.push(count_of(world, thread).map_err(|stop| anyhow::anyhow!("{stop:?}"))?);
    }
    let phases = world.program.phases(world.session);
    let workers = churn.into_iter().zip(counts).zip(0..);
    thread::scope(|scope| {
        let work = |((churn, count), thread)| {
            let phases = &phases;
            scope.spawn(move || -> anyhow::Result<Notes> {
                let mut worker = Worker::new(world, thread, churn, count, recorder(thread)?);
                worker.run(phases, end);
                Ok(worker.recorder.notes)
            })
        };
        for handle in workers.map(work).collect::<Vec<_>>() {
            match handle.join() {
                Ok(noted) => notes.append(noted?),
                Err(_) => notes.findings.push(Finding::new("panic", "a thread panicked")),
            }
        }
        Ok(notes)
    })
}

/// Number of the thread that fills tables before the others begin.
pub(crate) const LOADER: u64 = 63;

/// Fills tables.
fn load(world: &World<'_>, mut recorder: Recorder) -> anyhow::Result<Notes> {
    let program = world.program;
    let mut draw = Draw::new(program.seed, 4_000);
    let rows: Vec<u32> = (0..program.rows).collect();
    let (threads, mut sequence) = (program.threads as u32, 0);
    let mut commit = |keys: &mut dyn Iterator<Item = Key>, durability| -> anyhow::Result<()> {
        sequence += 1;
        let id = TxnId::new(world.session, LOADER, sequence);
        let mut draft = Draft::begin(world, id);
        for key in keys {
            let (version, filler) = (draft.next_version(), program.filler(&mut draw));
            let value = match key.area {
                Area::Lists => {
                    let mut list = List::default();
                    list.push(version);
                    Value::list(version, &list, filler)
                }
                _ => Value::plain(version, 0, filler),
            };
            draft.put(key, value).map_err(|stop| anyhow::anyhow!("filling: {stop:?}"))?;
        }
        recorder.intent(draft.intent(durability));
        let lsn = draft.commit(durability)?;
        recorder.ended(id, Outcome::Committed { lsn: Some(lsn) }, world.stamp());
        Ok(())
    };
    for chunk in rows.chunks(60) {
        for area in [Area::Bank, Area::Registers, Area::Lists] {
            let keys = chunk.iter().filter(|row| area == Area::Bank || **row % 3 > 0);
            commit(&mut keys.map(|row| Key::new(area, *row)), Durability::Deferred)?;
        }
    }
    let counters = (0..threads).map(|thread| Key::new(Area::Counters, thread));
    commit(&mut counters.into_iter(), Durability::Immediate)?;
    Ok(recorder.notes)
}

/// Count of a thread so far.
fn count_of(world: &World<'_>, thread: u64) -> Result<i64, Stop> {
    let key = Key::new(Area::Counters, thread as u32);
    let snapshot = world.db.snapshot()?;
    let found = snapshot.get(world.tables.of(key.area), &key.row.to_be_bytes())?;
    Ok(found.map(|bytes| world::decoded(key, &bytes)).transpose()?.map_or(0, |value| value.number))
}
