//! System calls that fail.
//!
//! A process does one operation while another one follows its system calls with `ptrace`. Of the calls that concern
//! the files of the database it makes one fail: each call of the operation in turn, in each way in which it may fail,
//! once and from then on. The result is success or an error that has a type: no panic, no abort, no hang. Afterwards
//! the database opens, has every commit that was acknowledged as durable and none in part, a check finds nothing, the
//! next attempt succeeds, and no file is left behind.
//!
//! A failing sync comes in two kinds: the kernel keeps the written data, or drops it.

mod case;
mod fault;
mod tracer;
mod workload;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::kills::any_seed;
use crate::kills::draw::Draw;
use crate::kills::said::Voice;
use crate::kills::worker::Worker;
use case::{Bench, parse, shown};
use fault::Fault;
use tracer::Aim;
use workload::{Operation, Task, Workload};

/// Arguments of the judge of calls.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Ends after so many seconds; all failures are tried if none is given.
    #[arg(long)]
    seconds: Option<u64>,
    /// Decides the rows, and the order of the failures; a random one if none is given.
    #[arg(long)]
    seed: Option<u64>,
    /// Tries this operation alone.
    #[arg(long)]
    operation: Option<Operation>,
    /// Makes this failure alone, as a broken promise names it.
    #[arg(long)]
    aim: Option<String>,
    /// Goes on when a promise is broken, and counts each.
    #[arg(long)]
    all: bool,
    /// Lists the calls of each operation, and makes no failure.
    #[arg(long)]
    list: bool,
    /// Shows each kind of error that operations gave, and how often.
    #[arg(long)]
    errors: bool,
    /// An error that takes a failed call for an answer is a broken promise, too.
    #[arg(long)]
    strict: bool,
    /// Ends after so many failures.
    #[arg(long)]
    failures: Option<usize>,
    /// Plants a deliberate bug in the engine, by its name in `SeededBug`: the judge has to see it.
    #[arg(long)]
    bug: Option<String>,
    /// Directory for the databases; the one for temporary files if none is given.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Task of this process, when another one started it.
    #[arg(long, hide = true)]
    task: Option<Task>,
    #[arg(long, hide = true, default_value_t = 0)]
    count: u64,
}

/// Runs the judge, and prints its findings.
///
/// # Errors
/// A promise that is broken, or a judge that could not work.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let seed = arguments.seed.unwrap_or_else(any_seed);
    match arguments.task {
        Some(task) => work(arguments, task, seed),
        None => Judge::new(arguments, seed)?.run(),
    }
}

/// The process whose calls fail.
fn work(arguments: &Arguments, task: Task, seed: u64) -> anyhow::Result<()> {
    let operation = arguments.operation.context("--operation is missing")?;
    let directory = arguments.directory.as_ref().context("--directory is missing")?;
    let path = directory.join("db");
    let plan = operation.plan(seed);
    let worker = Worker {
        session: operation.session(&plan),
        plan: &plan,
        path: &path,
        voice: Voice::new()?,
        bug: arguments.bug.as_deref(),
    };
    Workload { worker, operation, count: arguments.count }.run(task)
}

/// Findings, and counts.
#[derive(Default)]
struct Found {
    /// Failures that were made, by the name of the call.
    hits: BTreeMap<&'static str, u64>,
    missed: u64,
    /// Cases in which the operation gave an error, and cases in which the failure made no difference.
    errors: u64,
    harmless: u64,
    /// Count of each kind of error, and one case of it.
    stumbles: BTreeMap<String, (u64, String)>,
    /// Errors that take a failed call for an answer, and one case of each.
    answers: BTreeMap<String, (u64, String)>,
    /// Broken promises, and one case of each.
    broken: BTreeMap<String, (u64, String)>,
}

struct Judge<'a> {
    arguments: &'a Arguments,
    seed: u64,
    begun: Instant,
    directory: tempfile::TempDir,
    found: Mutex<Found>,
}

impl<'a> Judge<'a> {
    fn new(arguments: &'a Arguments, seed: u64) -> anyhow::Result<Self> {
        let parent = arguments.directory.clone().unwrap_or_else(std::env::temp_dir);
        let directory = tempfile::Builder::new().prefix("calls-").tempdir_in(parent)?;
        let found = Mutex::default();
        Ok(Self { arguments, seed, begun: Instant::now(), directory, found })
    }

    fn run(&self) -> anyhow::Result<()> {
        println!("calls: seed {}", self.seed);
        let operations = match self.arguments.operation {
            Some(operation) => vec![operation],
            None => Operation::ALL.to_vec(),
        };
        let mut benches = Vec::new();
        for operation in operations {
            let bug = self.arguments.bug.clone();
            let bench = Bench::new(operation, self.seed, bug, self.directory.path());
            benches.push(bench.with_context(|| format!("{operation:?}"))?);
        }
        let mut cases = self.cases(&benches)?;
        let count = cases.len();
        cases.truncate(self.arguments.failures.unwrap_or(count));
        if self.arguments.list {
            list(&benches);
            return Ok(());
        }
        let tried = AtomicUsize::new(0);
        let jobs = std::thread::available_parallelism()?.get().min(cases.len());
        std::thread::scope(|scope| {
            for job in 0..jobs {
                let (cases, tried) = (&cases, &tried);
                let place = self.directory.path().join(format!("job-{job}"));
                scope.spawn(move || self.work_off(cases, tried, &place));
            }
        });
        self.report(tried.load(Ordering::Relaxed).min(cases.len()), count)
    }

    /// All failures, each operation's in an order that the seed decides, or the one that was asked for.
    fn cases<'b>(&self, benches: &'b [Bench]) -> anyhow::Result<Vec<(&'b Bench, Aim)>> {
        if let Some(aim) = &self.arguments.aim {
            let aim = parse(aim)?;
            return Ok(benches.iter().map(|bench| (bench, aim)).collect());
        }
        let mut draw = Draw::of(&[self.seed]);
        let mut cases = Vec::new();
        for bench in benches {
            let mut aims = bench.aims();
            for index in (1..aims.len()).rev() {
                aims.swap(index, draw.below(index as u64 + 1) as usize);
            }
            cases.extend(aims.into_iter().enumerate().map(|(order, aim)| (order, bench, aim)));
        }
        // Operations take turns: the longest one goes on alone when the shorter ones are finished.
        cases.sort_by_key(|(order, ..)| *order);
        Ok(cases.into_iter().map(|(_, bench, aim)| (bench, aim)).collect())
    }

    fn work_off(&self, cases: &[(&Bench, Aim)], tried: &AtomicUsize, place: &Path) {
        let limit = self.arguments.seconds.map(Duration::from_secs);
        loop {
            let is_over = limit.is_some_and(|limit| self.begun.elapsed() >= limit);
            let is_broken = !self.found().broken.is_empty() && !self.arguments.all;
            if is_over || is_broken {
                return;
            }
            let Some((bench, aim)) = cases.get(tried.fetch_add(1, Ordering::Relaxed)) else {
                return;
            };
            self.judge(bench, *aim, place);
        }
    }

    fn judge(&self, bench: &Bench, aim: Aim, place: &Path) {
        let call = bench.calls.get(aim.index);
        let name = call.map_or("", |call| call.name);
        let operation = format!("{:?}", bench.operation).to_lowercase();
        let case = format!("--operation {operation} --aim {}", shown(aim));
        let verdict = bench.judge(place, aim);
        let mut found = self.found();
        match verdict {
            Ok(verdict) => {
                *found.hits.entry(name).or_default() += u64::from(verdict.is_hit);
                found.missed += u64::from(!verdict.is_hit);
                found.errors += u64::from(!verdict.stumbles.is_empty());
                found.harmless += u64::from(verdict.is_hit && verdict.stumbles.is_empty());
                for stumble in verdict.stumbles {
                    if aim.fault == Fault::Errno(nix::libc::EIO) && is_an_answer(&stumble) {
                        let kind = format!("{operation}, {name}: {stumble}");
                        found.answers.entry(kind).or_insert_with(|| (0, case.clone())).0 += 1;
                    }
                    let kind = format!("{name} {:?}: {}", aim.fault, without_numbers(&stumble));
                    found.stumbles.entry(kind).or_insert_with(|| (0, case.clone())).0 += 1;
                }
            }
            Err(error) => {
                let last = format!("{error:#}");
                let file = call.map_or("", |call| call.path.as_str());
                eprintln!("BROKEN {case} ({name} of {file}): {last}");
                let last = last.rsplit(": ").next().unwrap_or_default();
                let kind = format!("{operation}, {name}: {}", without_numbers(last));
                found.broken.entry(kind).or_insert_with(|| (0, case)).0 += 1;
            }
        }
    }

    fn found(&self) -> std::sync::MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, tried: usize, count: usize) -> anyhow::Result<()> {
        let found = self.found();
        if self.arguments.errors {
            for (kind, (times, case)) in &found.stumbles {
                println!("{times:6} {kind}   [{case}]");
            }
        }
        let hits: Vec<_> =
            found.hits.iter().map(|(name, times)| format!("{name} {times}")).collect();
        println!(
            "{tried} of {count} failures in {} s ({} did not come about); {} told an error, {} made no \
             difference; by call: {}",
            self.begun.elapsed().as_secs(),
            found.missed,
            found.errors,
            found.harmless,
            hits.join(", ")
        );
        for (kind, (times, case)) in &found.answers {
            println!("taken for an answer {times} times: {kind}   [{case}]");
        }
        let is_misled = self.arguments.strict && !found.answers.is_empty();
        for (kind, (times, case)) in &found.broken {
            println!(
                "broken {times} times: {kind}\n  again: judges calls --seed {} {case}",
                self.seed
            );
        }
        if found.broken.is_empty() && !is_misled {
            Ok(())
        } else {
            bail!("a promise is broken, or the judge is")
        }
    }
}

/// Whether an error claims something that only an answer of the system can tell; an input or output error is no
/// answer.
fn is_an_answer(stumble: &str) -> bool {
    const ANSWERS: [&str; 6] = [
        "open already",
        "does not grow",
        "plain file",
        "no Flagstone device",
        "No space left",
        "cannot be written",
    ];
    ANSWERS.iter().any(|answer| stumble.contains(answer))
}

/// A text that is the same for messages that differ in numbers alone.
fn without_numbers(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_ascii_digit()).collect()
}

fn list(benches: &[Bench]) {
    for bench in benches {
        println!(
            "{:?}: {} calls, {} failures",
            bench.operation,
            bench.calls.len(),
            bench.aims().len()
        );
        for (index, call) in bench.calls.iter().enumerate() {
            println!("  {index:5} {} {} {:?}", call.name, call.path, &call.arguments[1..4]);
        }
    }
}
