//! The same transactions, to the byte, on Flagstone and its peers, counted at a block device.
//!
//! Every engine runs every workload in a process of its own, so that its memory can be told. The
//! window begins when the load has settled on the device and ends when everything written has; the
//! files are then copied as a killed process would leave them, and another process times how long
//! opening the copy takes. `compare/run` makes the device and calls this; `compare/mtd` calls it on raw NAND.

mod chip;
mod disk;
mod report;
mod store;
mod workload;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser};
use serde::{Deserialize, Serialize};

use crate::disk::Disk;
use crate::store::{Limits, Plan, Store};
use crate::workload::{Client, Run, Step};

/// Runs the same transactions on Flagstone and its peers.
#[derive(Clone, Parser)]
enum Command {
    /// On a block device.
    Disk(DiskArgs),
    /// TPC-B on a raw NAND chip, one engine and one phase.
    Chip(chip::ChipArgs),
}

#[derive(Clone, Args)]
struct DiskArgs {
    /// Directory on the device that is counted.
    #[arg(long)]
    directory: PathBuf,
    /// Name of that device under /sys/block.
    #[arg(long)]
    device: String,
    /// Engines, separated by commas.
    #[arg(long, value_delimiter = ',', default_values = store::NAMES.to_vec())]
    engines: Vec<String>,
    /// Workloads, separated by commas; all but the long ones when left out.
    #[arg(long, value_delimiter = ',')]
    workloads: Vec<String>,
    /// Part of each workload's length.
    #[arg(long, default_value_t = 1.0)]
    share: f64,
    /// Seed of all draws.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File to which each measurement is appended as a line of JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Measures one engine on one workload in this process and prints JSON.
    #[arg(long, hide = true)]
    one: bool,
    /// Opens what `--one` left and prints how long that took.
    #[arg(long, hide = true)]
    reopen: Option<u64>,
}

/// What one engine did on one workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Measured {
    workload: String,
    engine: String,
    commits: u64,
    reads: u64,
    failed: u64,
    seconds: f64,
    processor_s: f64,
    bytes: u64,
    flushes: u64,
    close_bytes: u64,
    memory: u64,
    file_bytes: u64,
    data_bytes: u64,
    reopen_ms: Option<f64>,
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Disk(args) => compare(&args),
        Command::Chip(args) => chip::run(&args),
    }
}

fn compare(args: &DiskArgs) -> Result<()> {
    let workloads = if args.workloads.is_empty() {
        let all = workload::all();
        all.iter()
            .map(|run| run.name)
            .filter(|name| !name.ends_with("0k"))
            .map(Into::into)
            .collect()
    } else {
        args.workloads.clone()
    };
    if args.one || args.reopen.is_some() {
        let (Some(name), Some(engine)) = (workloads.first(), args.engines.first()) else {
            bail!("one workload and one engine");
        };
        let run = workload::named(name)?;
        return match args.reopen {
            Some(commits) => reopen(args, &run, engine, commits),
            None => one(args, &run, engine),
        };
    }
    for name in &workloads {
        let run = workload::named(name)?;
        let mut measured = Vec::new();
        for engine in &args.engines {
            match measure(args, &run, engine) {
                Ok(one) => measured.push(one),
                Err(error) => eprintln!("{error:#}"),
            }
        }
        if let Some(path) = &args.json {
            report::append(path, &measured)?;
        }
        report::print(&run, &measured);
    }
    Ok(())
}

fn home(args: &DiskArgs) -> PathBuf {
    args.directory.join("database")
}

fn killed(args: &DiskArgs) -> PathBuf {
    args.directory.join("killed")
}

/// Runs an engine in processes of its own.
fn measure(args: &DiskArgs, run: &Run, engine: &str) -> Result<Measured> {
    eprintln!("{}: {engine}", run.name);
    let clean = || {
        for directory in [home(args), killed(args)] {
            let _ = fs::remove_dir_all(directory);
        }
    };
    clean();
    let child = |more: &[String]| -> Result<String> {
        let output = process::Command::new(std::env::current_exe()?)
            .arg("disk")
            .args(["--directory", &args.directory.to_string_lossy(), "--device", &args.device])
            .args(["--engines", engine, "--workloads", run.name])
            .args(["--share", &args.share.to_string(), "--seed", &args.seed.to_string()])
            .args(more)
            .stderr(Stdio::inherit())
            .output()?;
        if !output.status.success() {
            bail!("{engine} failed on {}", run.name);
        }
        Ok(String::from_utf8(output.stdout)?)
    };
    let mut measured: Measured = serde_json::from_str(&child(&["--one".into()])?)?;
    let reopened = child(&["--reopen".into(), measured.commits.to_string()])?;
    measured.reopen_ms = Some(reopened.trim().parse().context("milliseconds")?);
    clean();
    Ok(measured)
}

fn plan(run: &Run, is_new: bool) -> Plan {
    Plan { tables: run.workload.tables(), is_new, limits: Limits::default() }
}

fn one(args: &DiskArgs, run: &Run, engine: &str) -> Result<()> {
    let (home, plan) = (home(args), plan(run, true));
    fs::create_dir_all(&home)?;
    let disk = Disk { device: args.device.clone(), mount: args.directory.to_string_lossy().into() };
    let store = store::open(engine, &plan, &home)?;
    run.workload.load(store.as_ref())?;
    disk::forget_memory_max()?;

    let before = disk.settled()?;
    let (processor_s, began) = (disk::processor_s()?, Instant::now());
    let done = window(args, run, store.as_ref())?;
    let seconds = disk::seconds(began);
    let processor_s = disk::processor_s()? - processor_s;
    // Flushes up to here are the engine's own; bytes count once they have reached the device.
    let flushes = disk.now()?.since(before).flushes;
    let after = disk.settled()?;
    run.workload.verify(store.as_ref(), done.commits)?;
    let memory = disk::memory_max()?;

    disk::copy(&home, &killed(args))?;
    let before_close = disk.settled()?;
    store.close()?;
    let closed = disk.settled()?;
    let measured = Measured {
        workload: run.name.into(),
        engine: engine.into(),
        commits: done.commits,
        reads: done.reads,
        failed: done.failed,
        seconds,
        processor_s,
        bytes: after.since(before).written,
        flushes,
        close_bytes: closed.since(before_close).written,
        memory,
        file_bytes: disk::size_of(&home)?,
        data_bytes: run.workload.bytes((run.count as f64 * args.share) as u64),
        reopen_ms: None,
    };
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

#[derive(Default)]
struct Done {
    commits: u64,
    reads: u64,
    failed: u64,
}

/// All threads until enough has been counted: commits, or reads where nothing is written.
fn window(args: &DiskArgs, run: &Run, store: &dyn Store) -> Result<Done> {
    let wanted = ((run.count as f64 * args.share) as u64).max(1);
    let counted = AtomicU64::new(0);
    let client = |number| -> Result<Done> {
        let mut client = Client::new(args.seed, number);
        let mut done = Done::default();
        while counted.load(Ordering::Relaxed) < wanted {
            let step = run.workload.step(store, &mut client)?;
            client.sequence += 1;
            match step {
                Step::Commit => done.commits += 1,
                Step::Reads(count) => done.reads += count,
                Step::Failed => done.failed += 1,
            }
            let counts = match step {
                Step::Commit => 1,
                Step::Reads(count) if !run.is_written => count,
                _ => 0,
            };
            counted.fetch_add(counts, Ordering::Relaxed);
        }
        Ok(done)
    };
    thread::scope(|scope| {
        let client = &client;
        let threads: Vec<_> =
            (0..run.threads).map(|number| scope.spawn(move || client(number))).collect();
        let mut sum = Done::default();
        for thread in threads {
            let Ok(done) = thread.join() else { bail!("a client panicked") };
            let done = done?;
            sum.commits += done.commits;
            sum.reads += done.reads;
            sum.failed += done.failed;
        }
        Ok(sum)
    })
}

fn reopen(args: &DiskArgs, run: &Run, engine: &str, commits: u64) -> Result<()> {
    let directory = killed(args);
    let began = Instant::now();
    let store = store::open(engine, &plan(run, false), Path::new(&directory))?;
    println!("{}", disk::seconds(began) * 1e3);
    run.workload.verify(store.as_ref(), commits)?;
    store.close()
}
