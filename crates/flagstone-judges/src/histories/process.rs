//! Sessions in a process of their own, which ends without notice: it aborts itself, or is killed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::draw::Draw;
use super::ledger::{self, LEDGER_FAILED, Recorder};
use super::program::{End, Program};
use super::record::{Finding, Notes};
use super::session::{self, LOADER};
use super::world::{self, Tables, World};

/// Arguments of a process that makes one session.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Part {
    /// Seed of the history.
    #[arg(long, value_name = "SEED", hide = true)]
    part_of: Option<u64>,
    /// Session of the history.
    #[arg(long, default_value_t = 0, hide = true)]
    part_session: u64,
    /// File of the database; ledgers lie beside it.
    #[arg(long, requires = "part_of", hide = true)]
    part_file: Option<PathBuf>,
}

fn ledger_path(file: &Path, session: u64, thread: u64) -> PathBuf {
    file.with_extension(format!("ledger-{session}-{thread}"))
}

/// Lets another process make a session; gives its notes.
///
/// # Errors
/// Faults of the judge itself.
pub(crate) fn session(
    program: &Program,
    session: u64,
    file: &Path,
    directory: &Path,
) -> anyhow::Result<Notes> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["histories", "--part-of", &program.seed.to_string()])
        .args(["--part-session", &session.to_string(), "--part-file"])
        .arg(file)
        .args(program.bug.iter().flat_map(|bug| ["--bug", bug]))
        .stdout(Stdio::null())
        .current_dir(directory)
        .spawn()
        .context("a process of its own for a session")?;
    if program.end(session) == End::InFlight {
        let mut draw = Draw::new(program.seed, 5_000 + session);
        thread::sleep(Duration::from_millis(draw.between(20, 1_500)));
        child.kill()?;
    }
    let status = child.wait()?;
    let mut notes = Notes::default();
    for thread in (0..program.threads).chain([LOADER]) {
        let path = ledger_path(file, session, thread);
        if path.exists() {
            notes.append(ledger::read(&path).with_context(|| format!("{}", path.display()))?);
            std::fs::remove_file(path)?;
        }
    }
    match status.code() {
        None | Some(0) => {}
        Some(HANGS) => {
            notes.findings.push(Finding::new("hang", "a session in a process does not end"));
        }
        Some(LEDGER_FAILED) => bail!("a ledger cannot be written"),
        Some(code) if notes.findings.is_empty() => {
            notes.findings.push(Finding::new("panic", format!("a session ended with code {code}")));
        }
        Some(_) => {}
    }
    Ok(notes)
}

/// Ends this process where nothing has moved for longer than a session may take.
///
/// A thread that waits for ever cannot be ended otherwise, and its history is the one to report.
pub(crate) fn watch(limit: Duration) {
    thread::spawn(move || {
        let mut last = BEATS.load(Ordering::Relaxed);
        loop {
            thread::sleep(limit);
            let now = BEATS.load(Ordering::Relaxed);
            if now == last {
                println!(
                    "hang: a session has not ended for {} s: the last one told of with --verbose",
                    limit.as_secs()
                );
                std::process::exit(HANGS);
            }
            last = now;
        }
    });
}

/// Longest time in which nothing moves.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(100);

/// Notes that something moves.
pub(crate) fn beat() {
    BEATS.fetch_add(1, Ordering::Relaxed);
}

static BEATS: AtomicU64 = AtomicU64::new(0);

/// Exit code of a process in which a thread waits for ever.
const HANGS: i32 = 71;

/// Whether this process is one of a session; makes that session then.
///
/// # Errors
/// Faults of the process itself.
pub(crate) fn run_part(part: &Part, bug: Option<&str>) -> anyhow::Result<bool> {
    let (Some(seed), Some(file)) = (part.part_of, &part.part_file) else { return Ok(false) };
    let (program, session) = (Program::drawn(seed), part.part_session);
    watch(WAIT_MAX / 2);
    let end = program.end(session);
    let exists = file.exists();
    let recorder = |thread| Ok(Recorder::to_file(&ledger_path(file, session, thread))?);
    let opened = session::open(None, file, &program.options, exists);
    let db = match opened {
        Ok(db) => db,
        Err(error) => {
            recorder(LOADER)?.finding(world::refused(&error));
            return Ok(true);
        }
    };
    if let Some(bug) = bug {
        super::plant(&db, bug)?;
    }
    let tables = Tables::open(&db)?;
    let mut world = World::new(db, tables, &program, session, None);
    world.may_abort = end != End::Close;
    let notes = session::threads(&world, end, &recorder)?;
    if end != End::Close || !notes.findings.is_empty() {
        for finding in notes.findings {
            eprintln!("{}: {}", finding.form, finding.text);
        }
        std::process::abort();
    }
    world.db.close()?;
    Ok(true)
}
