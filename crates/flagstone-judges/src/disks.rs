//! Disks as the kernel makes them.
//!
//! A process works on a database like any user's; a recorder follows its system calls. From the record come the
//! states that a power cut can leave of its files: each write that no sync covers is there or not, write by write,
//! sector by sector, with old or new lengths and names. Each state is made as real files, opened, and checked against
//! the promises that the process had by the time of the cut.
//!
//! | module | owns |
//! | --- | --- |
//! | [`script`], [`scripts`] | the steps of workloads, and the tables after each step |
//! | [`workload`] | the process that is recorded |
//! | [`tracer`], [`record`] | the recorder, and its notes |
//! | [`disk`], [`cuts`] | the durable bytes at each place of a record, and the states that a cut there can leave |
//! | [`place`] | states as real files |
//! | [`progress`], [`check`] | the steps that must be there, and the check for them |
//! | [`mod@bench`] | a process that judges states |
//! | [`logged`] | the same behind file systems, from the writes that reached their block device |

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::{Args, Subcommand};

use self::bench::{Effort, Share, Sum};
use self::logged::Device;
use self::record::Record;
use self::workload::Ledger;
use crate::patience::Patience;

mod bench;
mod check;
mod cuts;
mod disk;
mod logged;
mod place;
mod progress;
mod record;
mod script;
mod scripts;
mod tracer;
mod workload;

/// Arguments of the judge of disks.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    part: Option<Part>,
    /// States to judge, each opened and checked.
    #[arg(long, default_value_t = 100_000)]
    states: u64,
    /// Judges for so long instead, recordings included.
    #[arg(long)]
    seconds: Option<u64>,
    /// First seed of the workloads; each round takes the next.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Workloads; all if none is named.
    #[arg(long = "script")]
    scripts: Vec<String>,
    /// Processes that judge; as many as there are cores if not given.
    #[arg(long)]
    jobs: Option<u64>,
    /// Directory for records of broken promises.
    #[arg(long, default_value = "disks-broken")]
    keep: PathBuf,
    /// Deliberate bug of the engine, planted in the workloads (feature `seeded-bugs`).
    #[arg(long)]
    bug: Option<String>,
}

#[derive(Subcommand)]
enum Part {
    /// Lists the workloads.
    Scripts,
    /// Judges one state of a record that was kept.
    Replay(Replay),
    /// The process that is recorded.
    #[command(hide = true)]
    Workload(Workload),
    /// A process that judges.
    #[command(hide = true)]
    Bench(Bench),
    /// Packs the image of a block device: all bytes but zeros.
    #[command(hide = true)]
    Pack { from: PathBuf, to: PathBuf },
    /// Lays a packed device into a file.
    #[command(hide = true)]
    Lay { packed: PathBuf, to: PathBuf },
    /// Runs a workload where a device of `dm-log-writes` is mounted.
    #[command(hide = true)]
    Logged { script: String, seed: u64, mount: PathBuf, device: String },
    /// Judges the states in a log of `dm-log-writes`, at every flush.
    #[command(hide = true)]
    ReplayLog(logged::Replay),
}

#[derive(Args)]
struct Replay {
    record: PathBuf,
    place: usize,
    cut: usize,
    /// Leaves the files of the state in this directory, and does not open them.
    #[arg(long)]
    leave: Option<PathBuf>,
}

#[derive(Args)]
struct Workload {
    script: String,
    seed: u64,
    directory: PathBuf,
    ledger: PathBuf,
    #[arg(long)]
    bug: Option<String>,
    /// Opens the state that is there instead.
    #[arg(long)]
    reopens: bool,
}

#[derive(Args)]
struct Bench {
    record: PathBuf,
    home: PathBuf,
    number: u64,
    of: u64,
    #[arg(long, default_value_t = 0)]
    states: u64,
    #[arg(long)]
    millis: Option<u64>,
}

/// A state takes no longer than this, or its opening hangs.
const HANGS_AFTER: Duration = Duration::from_secs(120);

/// Runs the judge, and prints its findings.
///
/// # Errors
/// A promise that is broken, or a judge that could not work.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.part {
        None => judge(arguments),
        Some(Part::Scripts) => {
            scripts::NAMES.iter().for_each(|(name, about)| println!("{name:<11} {about}"));
            Ok(())
        }
        Some(Part::Replay(replay)) => replay_state(replay),
        Some(Part::Workload(it)) => {
            // Wait for the recorder.
            std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
            let script = scripts::script(&it.script, it.seed)?;
            if it.reopens {
                return workload::reopen(&script, &it.directory);
            }
            let ledger = Ledger::File(Mutex::new(File::create(&it.ledger)?));
            workload::run(&script, &it.directory, &ledger, it.bug.as_deref())
        }
        Some(Part::Pack { from, to }) => Device::pack(from, to),
        Some(Part::Lay { packed, to }) => Device::unpack(packed)?.lay(to),
        Some(Part::Logged { script, seed, mount, device }) => {
            let directory = logged::prepare(mount)?;
            // Earlier states are not judged.
            logged::mark(device, "ready")?;
            let ledger = Ledger::Device(device.clone());
            workload::run(&scripts::script(script, *seed)?, &directory, &ledger, None)
        }
        Some(Part::ReplayLog(it)) => logged::replay(it),
        Some(Part::Bench(it)) => {
            let record = load(&it.record)?;
            let effort = match it.millis {
                Some(millis) => Effort::Time(Duration::from_millis(millis)),
                None => Effort::States(it.states),
            };
            bench::run(&record, &it.home, Share { number: it.number, of: it.of, effort })
        }
    }
}

fn load(path: &Path) -> anyhow::Result<Record> {
    Record::load(BufReader::with_capacity(1 << 20, File::open(path)?))
}

fn replay_state(replay: &Replay) -> anyhow::Result<()> {
    let record = load(&replay.record)?;
    let scratch = scratch()?;
    let home = replay.leave.as_deref().unwrap_or(scratch.path());
    bench::replay(&record, home, replay.place, replay.cut, replay.leave.is_some())?;
    if replay.leave.is_none() {
        println!("no promise is broken");
    }
    Ok(())
}

/// A directory in memory where there is one: states come and go by the thousand.
fn scratch() -> std::io::Result<tempfile::TempDir> {
    let builder = || {
        let mut builder = tempfile::Builder::new();
        builder.prefix("flagstone-disks-");
        builder
    };
    builder().tempdir_in("/dev/shm").or_else(|_| builder().tempdir())
}

/// Rounds of all workloads, until enough states are judged.
fn judge(arguments: &Arguments) -> anyhow::Result<()> {
    let names: Vec<&str> = match arguments.scripts.is_empty() {
        true => scripts::NAMES.iter().map(|(name, _)| *name).collect(),
        false => arguments.scripts.iter().map(String::as_str).collect(),
    };
    let begun = Instant::now();
    let time = arguments.seconds.map(Duration::from_secs);
    let mut total = Sum::default();
    for round in 0.. {
        // The next round would break the same promises.
        if total.broken > 0 {
            break;
        }
        for (index, name) in names.iter().enumerate() {
            let parts = (names.len() - index) as u64;
            let is_enough = match time {
                Some(time) => begun.elapsed() >= time,
                None => total.states >= arguments.states,
            };
            if is_enough {
                return verdict(&total, begun.elapsed());
            }
            let part = match time {
                Some(time) => {
                    Effort::Time(time.saturating_sub(begun.elapsed()) / u32::try_from(parts)?)
                }
                None => Effort::States((arguments.states - total.states).div_ceil(parts)),
            };
            total.add(&workload_judged(arguments, name, arguments.seed + round, part)?);
        }
    }
    verdict(&total, begun.elapsed())
}

fn verdict(total: &Sum, time: Duration) -> anyhow::Result<()> {
    println!("{:<19}{total}, in {} s", "together", time.as_secs());
    ensure!(total.broken == 0, "promises are broken in {} states", total.broken);
    Ok(())
}

/// Records a workload, and judges its states; and, for a quarter of the effort, states that a second cut leaves, while
/// the database is opened after the first.
fn workload_judged(
    arguments: &Arguments,
    name: &str,
    seed: u64,
    effort: Effort,
) -> anyhow::Result<Sum> {
    let begun = Instant::now();
    let scratch = scratch()?;
    let first = scratch.path().join("first");
    let record = record_workload(name, seed, arguments.bug.as_deref())?;
    record.store(BufWriter::with_capacity(1 << 20, File::create(&first)?))?;
    let recorded = begun.elapsed();
    let effort = match effort {
        Effort::Time(time) => Effort::Time(time.saturating_sub(recorded)),
        effort => effort,
    };
    let mut sum =
        record_judged(arguments, (name, seed), &first, scratch.path(), effort.part(3, 4))?;
    for number in 0..REOPENINGS {
        let home = scratch.path().join(format!("reopening{number}"));
        let drawn = bench::draw(&record, &home, disk::mix(seed, number))?;
        let Some(marks) = drawn.filter(|_| sum.broken == 0) else { continue };
        let second = scratch.path().join("second");
        let mut again = record_reopening(&record, &home.join("state"))?;
        again.put_before(marks);
        again.store(BufWriter::new(File::create(&second)?))?;
        let label = format!("{name}-reopened{number}");
        let effort = effort.part(1, 4 * REOPENINGS);
        sum.add(&record_judged(arguments, (&label, seed), &second, scratch.path(), effort)?);
        fs::remove_dir_all(home)?;
    }
    let times = (recorded.as_secs_f32(), begun.elapsed().as_secs_f32());
    let label = format!("{name} {seed}");
    println!("{label:<19}{sum}, in {:.0} s, {:.1} of them recording", times.1, times.0);
    Ok(sum)
}

/// States of each workload that are opened under the recorder.
const REOPENINGS: u64 = 2;

/// Judges the states of a record in processes of their own.
fn record_judged(
    arguments: &Arguments,
    label: (&str, u64),
    record: &Path,
    home: &Path,
    effort: Effort,
) -> anyhow::Result<Sum> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let jobs = arguments.jobs.unwrap_or(cores).max(1);
    let mut benches = Vec::new();
    for number in 0..jobs {
        benches.push(start(record, &home.join(number.to_string()), (number, jobs), effort)?);
    }
    let mut sum = Sum::default();
    for (child, lines) in benches {
        sum.add_share(&listen(arguments, label, record, child, &lines)?);
    }
    for number in 0..jobs {
        fs::remove_dir_all(home.join(number.to_string()))?;
    }
    Ok(sum)
}

fn this_program() -> anyhow::Result<Command> {
    Ok(Command::new(std::env::current_exe()?))
}

fn record_workload(name: &str, seed: u64, bug: Option<&str>) -> anyhow::Result<Record> {
    let home = tempfile::Builder::new().prefix("flagstone-disks-").tempdir()?;
    let home = fs::canonicalize(home.path())?;
    let (directory, ledger) = (home.join("directory"), home.join("ledger"));
    fs::create_dir(&directory)?;
    let mut command = this_program()?;
    command.args(["disks", "workload", name, &seed.to_string()]).args([&directory, &ledger]);
    if let Some(bug) = bug {
        command.args(["--bug", bug]);
    }
    let events = tracer::record(&mut command, &directory, &ledger)
        .with_context(|| format!("workload `{name}`, seed {seed}"))?;
    Ok(Record { script: name.to_owned(), seed, events })
}

/// Records the opening of a database that a cut has left.
fn record_reopening(first: &Record, directory: &Path) -> anyhow::Result<Record> {
    let directory = fs::canonicalize(directory)?;
    let mut command = this_program()?;
    command.args(["disks", "workload", &first.script, &first.seed.to_string()]);
    command.arg(&directory).arg("no ledger").arg("--reopens");
    let events = tracer::record(&mut command, &directory, Path::new("no ledger"))
        .with_context(|| format!("opening a state of `{}`, seed {}", first.script, first.seed))?;
    Ok(Record { script: first.script.clone(), seed: first.seed, events })
}

type Lines = Receiver<String>;

fn start(
    record: &Path,
    home: &Path,
    (number, of): (u64, u64),
    effort: Effort,
) -> anyhow::Result<(Child, Lines)> {
    let mut command = this_program()?;
    command.args(["disks", "bench"]).args([record, home]);
    command.args([number.to_string(), of.to_string()]);
    match effort {
        Effort::States(states) => command.args(["--states", &states.div_ceil(of).to_string()]),
        Effort::Time(time) => command.args(["--millis", &time.as_millis().to_string()]),
    };
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let output = BufReader::new(child.stdout.take().context("no output")?);
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        // A closed receiver has heard enough.
        let _ = output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line));
    });
    Ok((child, lines))
}

/// Hears a process that judges to its end, and keeps the record when it finds something.
fn listen(
    arguments: &Arguments,
    (name, seed): (&str, u64),
    record: &Path,
    mut child: Child,
    lines: &Lines,
) -> anyhow::Result<Sum> {
    let mut at = String::from("0 0");
    let mut sum = None;
    let mut broken = 0;
    let mut report = |state: &str, text: &str| -> anyhow::Result<()> {
        broken += 1;
        let kept = keep(arguments, (name, seed), record)?;
        println!("BROKEN {name} {seed}: {text}");
        println!("  replay: judges disks replay {} {state}", kept.display());
        Ok(())
    };
    let mut patience = Patience::with(child.id(), HANGS_AFTER.as_secs());
    loop {
        match lines.recv_timeout(HANGS_AFTER) {
            Ok(line) => match line.split_once(' ') {
                Some(("at", state)) => {
                    state.clone_into(&mut at);
                    patience = Patience::with(child.id(), HANGS_AFTER.as_secs());
                }
                Some(("broken", rest)) => {
                    let mut words = rest.splitn(3, ' ');
                    let (place, cut) = (words.next(), words.next());
                    let state = [place.unwrap_or_default(), cut.unwrap_or_default()].join(" ");
                    report(&state, words.next().unwrap_or_default())?;
                }
                Some(("sum", numbers)) => sum = Some(Sum::parse(numbers)?),
                _ => bail!("a judging process says `{line}`"),
            },
            Err(RecvTimeoutError::Timeout) if !patience.is_over() => {}
            Err(RecvTimeoutError::Timeout) => {
                report(&at, "does not come to an end")?;
                child.kill()?;
                child.wait()?;
                break;
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = child.wait()?;
                if sum.is_none() {
                    report(&at, &format!("the process that opened it ended with {status}"))?;
                }
                break;
            }
        }
    }
    Ok(sum.unwrap_or(Sum { broken, ..Sum::default() }))
}

fn keep(
    arguments: &Arguments,
    (name, seed): (&str, u64),
    record: &Path,
) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(&arguments.keep)?;
    let bug = arguments.bug.as_deref().map_or_else(String::new, |bug| format!("-{bug}"));
    let kept = arguments.keep.join(format!("{name}-{seed}{bug}.record"));
    if !kept.exists() {
        fs::copy(record, &kept)?;
    }
    Ok(kept)
}
