//! Processes killed at any time.
//!
//! A process works on a database. Over a pipe it reports each transaction that it begins, and each acknowledgement
//! with its durability. Another process keeps the ledger, kills the first at a random moment, and judges the database
//! as the next one finds it: commits acknowledged as durable are there, deferred commits are there in their order, no
//! transaction is there in part, snapshots and backups show one moment, and a check finds nothing. The same database
//! lives on over many kills. Some hit an opening, a compaction, a restore, a creation.
//!
//! The plan of each life follows from the seed and its number, and so does each transaction; the moments of
//! the kills depend on the machine. `judges kills --seed S --life L` lives a life again, `--repeat N` so many
//! times.

pub(crate) mod draw;
pub(crate) mod extras;
pub(crate) mod ledger;
mod life;
pub(crate) mod plan;
pub(crate) mod said;
pub(crate) mod script;
pub(crate) mod worker;

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use life::{Life, Totals};
use plan::Plan;
use worker::{Task, Worker};

/// Arguments of the judge of kills.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Ends after so many kills.
    #[arg(long, default_value_t = 5_000)]
    kills: u64,
    /// Ends after so many seconds, if not before.
    #[arg(long)]
    seconds: Option<u64>,
    /// Decides the plans of all lives; a random one if none is given.
    #[arg(long)]
    seed: Option<u64>,
    /// Lives this life alone.
    #[arg(long)]
    life: Option<u64>,
    /// Number of times that the life of `--life` is lived.
    #[arg(long, default_value_t = 1)]
    repeat: u64,
    /// Lives at a time; as many as there are cores if none is given.
    #[arg(long)]
    jobs: Option<u64>,
    /// Raw NAND of Linux, such as /dev/mtd0, to be used instead of files: ITS CONTENT IS LOST.
    #[arg(long)]
    device: Option<PathBuf>,
    /// Directory for the databases; the one for temporary files if none is given.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Plants a deliberate bug in the engine, by its name in `SeededBug`: the judge has to see it.
    #[arg(long)]
    bug: Option<String>,
    /// Copies the files before each process, so that a broken promise leaves the files it was found in.
    #[arg(long)]
    copies: bool,
    /// Task of this process, when another one started it.
    #[arg(long, hide = true)]
    task: Option<Task>,
    #[arg(long, hide = true, default_value_t = 0)]
    generation: u64,
    #[arg(long, hide = true)]
    path: Option<PathBuf>,
    #[arg(long, hide = true)]
    backup: Option<String>,
}

/// Runs the judge, and prints its findings.
///
/// # Errors
/// A promise that is broken, or a judge that could not work.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let seed = arguments.seed.unwrap_or_else(any_seed);
    match arguments.task {
        Some(task) => work(arguments, task, seed),
        None => Judge::new(arguments, seed).run(),
    }
}

/// A seed that nobody chose.
pub(crate) fn any_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The process that is killed.
fn work(arguments: &Arguments, task: Task, seed: u64) -> anyhow::Result<()> {
    let plan = Plan::of(seed, arguments.life.unwrap_or(0), arguments.device.clone());
    let worker = Worker {
        plan: &plan,
        session: plan.session(arguments.generation),
        path: arguments.path.as_deref().context("--path is missing")?,
        voice: said::Voice::new()?,
        bug: arguments.bug.as_deref(),
    };
    worker.run(task, arguments.backup.as_deref());
    Ok(())
}

/// Several lives at a time.
struct Judge<'a> {
    arguments: &'a Arguments,
    seed: u64,
    begun: Instant,
    next_life: AtomicU64,
    kills: AtomicU64,
    is_broken: AtomicBool,
    totals: Mutex<Totals>,
}

impl<'a> Judge<'a> {
    fn new(arguments: &'a Arguments, seed: u64) -> Self {
        Self {
            arguments,
            seed,
            begun: Instant::now(),
            next_life: AtomicU64::new(0),
            kills: AtomicU64::new(0),
            is_broken: AtomicBool::new(false),
            totals: Mutex::new(Totals::default()),
        }
    }

    fn run(&self) -> anyhow::Result<()> {
        println!("kills: seed {}", self.seed);
        let jobs = match (self.arguments.jobs, &self.arguments.device) {
            (_, Some(_)) => 1,
            (Some(jobs), _) => jobs,
            (None, None) => std::thread::available_parallelism()?.get() as u64,
        };
        let broken: Vec<_> = std::thread::scope(|scope| {
            let jobs: Vec<_> = (0..jobs).map(|_| scope.spawn(|| self.live())).collect();
            jobs.into_iter().filter_map(|job| job.join().ok()?.err()).collect()
        });
        self.report();
        if broken.is_empty() && !self.is_broken.load(Ordering::Relaxed) {
            return Ok(());
        }
        for error in &broken {
            eprintln!("{error:#}");
        }
        bail!("a promise is broken, or the judge is");
    }

    /// Lives one after the other until there were enough kills.
    fn live(&self) -> anyhow::Result<()> {
        while !self.ends() {
            let number = self.next_life.fetch_add(1, Ordering::Relaxed);
            if self.arguments.life.is_some() && number >= self.arguments.repeat {
                break;
            }
            let life = self.arguments.life.unwrap_or(number);
            if let Err(error) = self.live_once(life) {
                self.is_broken.store(true, Ordering::Relaxed);
                return Err(error);
            }
        }
        Ok(())
    }

    fn ends(&self) -> bool {
        let limit = self.arguments.seconds.map(Duration::from_secs);
        let is_over = limit.is_some_and(|limit| self.begun.elapsed() >= limit);
        let has_enough = self.arguments.life.is_none()
            && self.kills.load(Ordering::Relaxed) >= self.arguments.kills;
        is_over || has_enough || self.is_broken.load(Ordering::Relaxed)
    }

    fn live_once(&self, number: u64) -> anyhow::Result<()> {
        let plan = Plan::of(self.seed, number, self.arguments.device.clone());
        let parent = self.arguments.directory.clone().unwrap_or_else(std::env::temp_dir);
        let directory = tempfile::Builder::new().prefix("kills-").tempdir_in(parent)?;
        let mut life = Life::new(&plan, directory.path());
        life.bug = self.arguments.bug.as_deref();
        life.copies = self.arguments.copies.then(|| directory.path().join("before"));
        let mut counted = 0;
        let lived = life.run(&mut |kills: u64| {
            self.kills.fetch_add(kills - counted, Ordering::Relaxed);
            counted = kills;
            self.ends()
        });
        self.totals.lock().unwrap_or_else(std::sync::PoisonError::into_inner).add(&life.totals);
        lived.with_context(|| {
            let path = directory.keep();
            format!(
                "BROKEN in life {number} after {} kills, {} s; {plan:?}\nlast messages:\n{}files: {}\n\
                 again: judges kills --seed {} --life {number} --repeat 20\nbroken",
                life.totals.kills,
                self.begun.elapsed().as_secs(),
                life.last_said(),
                path.display(),
                self.seed
            )
        })
    }

    fn report(&self) {
        let totals = *self.totals.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        println!(
            "{} kills in {} s, {} of them in openings, {} in chores; {} lives, {} of them until the device \
             was full; {} transactions, {} acknowledged, {} gone that were in flight or deferred; {} \
             backups restored",
            totals.kills,
            self.begun.elapsed().as_secs(),
            totals.kills_in_opening,
            totals.kills_in_chores,
            totals.lives,
            totals.full,
            totals.begun,
            totals.acked,
            totals.taken,
            totals.restores
        );
    }
}
