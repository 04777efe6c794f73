//! The same transactions, to the byte, on Flagstone and its peers, counted at a block device.
//!
//! Every engine runs every workload in a process of its own, so that its memory can be told. The
//! window begins when the load has settled on the device and ends when everything written has; the
//! files are then copied as a killed process would leave them, and another process times how long
//! opening the copy takes. `compare/run` makes the device and calls this; `compare/mtd` calls it on raw NAND.

mod chip;
mod disk;
mod report;
mod series;
mod store;
mod window;
mod workload;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Parser};
use serde::{Deserialize, Serialize};

use crate::disk::Disk;
use crate::store::{Limits, Plan};
use crate::window::{Latencies, Slice, Window};
use crate::workload::{Run, Set};

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
    #[arg(long, value_delimiter = ',', help = workloads_help())]
    workloads: Vec<String>,
    /// The long workloads, in place of the short ones.
    #[arg(long, conflicts_with = "workloads")]
    long: bool,
    /// Part of each workload's length. Below a tenth the tables of long ones shrink as well.
    #[arg(long, default_value_t = 1.0)]
    share: f64,
    /// Seed of all draws.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File to which each measurement is appended as a line of JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Directory for a CSV file a measurement and a picture a workload: how speed, longest commit and size of the
    /// files go over 200 slices of the window, of as many commits each.
    #[arg(long)]
    series: Option<PathBuf>,
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
    /// Keys and values that the window's commits wrote or deleted.
    changed_bytes: u64,
    latency_ms: Latencies,
    /// Speed of the second half of the window, of the first half's.
    drift: Option<f64>,
    reopen_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    series: Vec<Slice>,
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Disk(args) => compare(&args),
        Command::Chip(args) => chip::run(&args),
    }
}

fn workloads_help() -> String {
    let names = |set| workload::names(set).join(", ");
    format!(
        "Workloads, separated by commas: {}; {}; long: {} [default: those before the first semicolon]",
        names(Set::Short),
        names(Set::Named),
        names(Set::Long)
    )
}

/// The runs that are asked for.
fn runs(args: &DiskArgs) -> Result<Vec<Run>> {
    if !args.workloads.is_empty() {
        let named = |name: &String| workload::named(name, args.share, args.seed);
        return args.workloads.iter().map(named).collect();
    }
    let set = if args.long { Set::Long } else { Set::Short };
    let all = workload::all(args.share, args.seed);
    Ok(all.into_iter().filter(|run| run.set == set).collect())
}

fn compare(args: &DiskArgs) -> Result<()> {
    let runs = runs(args)?;
    if args.one || args.reopen.is_some() {
        let (Some(run), Some(engine)) = (runs.first(), args.engines.first()) else {
            bail!("one workload and one engine");
        };
        return match args.reopen {
            Some(commits) => reopen(args, run, engine, commits),
            None => one(args, run, engine),
        };
    }
    let mut failures = 0;
    for run in &runs {
        let mut measured = Vec::new();
        for engine in &args.engines {
            match measure(args, run, engine) {
                Ok(one) => measured.push(one),
                Err(error) => {
                    failures += 1;
                    eprintln!("{error:#}");
                }
            }
        }
        report(args, run, measured)?;
    }
    ensure!(failures == 0, "{failures} measurements failed");
    Ok(())
}

fn report(args: &DiskArgs, run: &Run, mut measured: Vec<Measured>) -> Result<()> {
    if let Some(directory) = &args.series {
        series::write(directory, run, &measured)?;
    }
    measured.iter_mut().for_each(|one| one.series.clear());
    if let Some(path) = &args.json {
        report::append(path, &measured)?;
    }
    report::print(run, &measured);
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
    let mut one = vec!["--one".into()];
    if let Some(directory) = &args.series {
        one.extend(["--series".into(), directory.to_string_lossy().into()]);
    }
    let mut measured: Measured = serde_json::from_str(&child(&one)?)?;
    let reopened = child(&["--reopen".into(), measured.commits.to_string()])?;
    measured.reopen_ms = Some(reopened.trim().parse().context("milliseconds")?);
    clean();
    Ok(measured)
}

fn plan(run: &Run, is_new: bool) -> Plan {
    Plan {
        tables: run.workload.tables(),
        is_new,
        limits: Limits::default(),
        has_large_values: run.workload.has_large_values(),
    }
}

fn one(args: &DiskArgs, run: &Run, engine: &str) -> Result<()> {
    let (home, plan) = (home(args), plan(run, true));
    fs::create_dir_all(&home)?;
    let disk = Disk { device: args.device.clone(), mount: args.directory.to_string_lossy().into() };
    let store = store::open(engine, &plan, &home)?;
    run.workload.load(store.as_ref())?;
    disk::forget_memory_max()?;

    let before = disk.settled()?;
    let processor_s = disk::processor_s()?;
    let window = Window::new(run.wanted(), args.series.is_some(), &disk, home.clone())?;
    let began = Instant::now();
    let done = window.run(run, store.as_ref(), args.seed)?;
    let seconds = disk::seconds(began);
    let processor_s = disk::processor_s()? - processor_s;
    // Flushes up to here are the engine's own; bytes count once they have reached the device.
    let flushes = disk.now()?.since(before).flushes;
    let after = disk.settled()?;
    // The check of a long workload has a table of its own.
    let memory = disk::memory_max()?;
    run.workload.verify(store.as_ref(), done.commits)?;

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
        data_bytes: run.workload.bytes(run.wanted()),
        changed_bytes: run.workload.changed(run.wanted()),
        latency_ms: window.latencies(),
        drift: window::drift(&window.slices()),
        reopen_ms: None,
        series: if args.series.is_some() { window.slices() } else { Vec::new() },
    };
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

fn reopen(args: &DiskArgs, run: &Run, engine: &str, commits: u64) -> Result<()> {
    let directory = killed(args);
    let began = Instant::now();
    let store = store::open(engine, &plan(run, false), Path::new(&directory))?;
    println!("{}", disk::seconds(began) * 1e3);
    run.workload.verify(store.as_ref(), commits)?;
    store.close()
}
