//! The command `bench`: a workload on a device, and the run object it gives.
//!
//! Owns the way from arguments to a [`BenchConfig`] and the run as text. Measures nothing.

use std::path::Path;
use std::time::Duration;

use flagstone_lab::bench::{
    BenchConfig, BenchDevice, ChipUse, MemoryBudget, Warmup, WorkloadKind, run_all,
};
use flagstone_lab::preset;
use flagstone_lab::run::Run;
use flagstone_lab::workload::{index, linkbench, tatp, tpcb, tpcc, ycsb};
use flagstone_nand::Profile;

use crate::args::{BenchArgs, RawDevice};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::open::{mtd_profile, require_no_database};
use crate::output::Output;
use crate::overrides::{self, Scope};
use crate::progress::Progress;
use crate::request::{self, CHIP_PROFILE, DRIVE_PROFILE, SEGMENT_PROFILE, UsageError};
use crate::scratch::Scratch;
use crate::size::parse_size;
use crate::table::{Table, grouped};

/// A benchmark to run.
#[derive(Debug)]
struct BenchRequest {
    config: BenchConfig,
    /// Whether figures of a run that is not steady are a failure.
    unsteady: Unsteady,
    /// Holds the device's file.
    _scratch: Option<Scratch>,
}

/// Meaning of an unsteady run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unsteady {
    /// The figures must not be compared.
    Fails,
    /// It was asked for.
    Accepted,
}

/// Runs `bench`.
pub(crate) fn bench(args: &BenchArgs, output: &mut Output) -> Result<Exit, Failure> {
    let request = validate(args)?;
    if let Some(node) = node(args)?
        && !args.overwrite
    {
        require_no_database(node, Some(&request.config.profile))?;
    }
    let mut progress = Progress::new(output.form());
    let mut on_progress = |state: flagstone_lab::bench::Progress| {
        progress.report(phase_name(state.phase), state.done, state.total);
    };
    let result = run_all(&request.config, &mut on_progress);
    progress.finish();
    let runs = result?;
    match runs.runs.as_slice() {
        [run] => output.show(run, || run_table(&runs.runs))?,
        _ => output.show(&runs, || run_table(&runs.runs))?,
    }
    verdict(&runs.runs, request.unsteady)
}

fn verdict(runs: &[Run], unsteady: Unsteady) -> Result<Exit, Failure> {
    let why = |run: &Run| format!("{}: {}", run.config.preset, why_unsteady(run));
    match runs.iter().find(|run| !run.steady) {
        Some(run) if unsteady == Unsteady::Fails => Err(Failure::NotSteady { why: why(run) }),
        _ => Ok(Exit::Ok),
    }
}

/// Which rule of steadiness a run broke.
fn why_unsteady(run: &Run) -> String {
    let seen = &run.config.observed;
    if seen.drift <= seen.drift_max {
        return String::from("a quarter of the window or more went without garbage collection");
    }
    let (drift, chance) = (100.0 * seen.drift, 100.0 * seen.drift_max);
    format!(
        "the halves of the window are {drift:.1} % apart in erases a commit, {chance:.1} % may be chance"
    )
}

/// Name of a phase, for people.
pub(crate) const fn phase_name(phase: flagstone_lab::bench::Phase) -> &'static str {
    use flagstone_lab::bench::Phase;
    match phase {
        Phase::Load => "load",
        Phase::WarmUp => "warm up",
        Phase::Measure => "measure",
        Phase::Verify => "verify",
    }
}

/// The benchmark that the arguments describe.
pub(crate) fn config(args: &BenchArgs) -> Result<BenchConfig, Failure> {
    validate(args).map(|request| request.config)
}

fn validate(args: &BenchArgs) -> Result<BenchRequest, Failure> {
    let workload = workload(args)?;
    let (device, scratch) = device(args)?;
    let profile = profile(args, workload)?;
    let mut config = match workload {
        WorkloadKind::Tpcb(_) => BenchConfig::tpcb(profile, presets(args)?),
        WorkloadKind::Tpcc { .. } => BenchConfig::tpcc(profile, presets(args)?),
        WorkloadKind::Index(dialect) => BenchConfig::index(dialect, profile, presets(args)?),
        WorkloadKind::Tatp(dialect) => BenchConfig::tatp(dialect, profile, presets(args)?),
        WorkloadKind::Linkbench { dialect, .. } => {
            BenchConfig::linkbench(dialect, profile, presets(args)?)
        }
        WorkloadKind::Ycsb(dialect) => BenchConfig::ycsb(dialect, profile, presets(args)?),
    };
    config.workload = workload;
    config.device = device;
    if args.device == RawDevice::Mtd {
        config.chip = ChipUse::Whole;
    }
    config.scale = scale(args, workload)?.unwrap_or(config.scale);
    config.clients = args.clients;
    config.abort_ratio = args.abort_ratio;
    config.txns = args.txns;
    config.time_max = args.seconds.map(seconds).transpose()?;
    config.memory = match &args.memory {
        Some(text) => MemoryBudget::Bytes(request::size("--memory", text)?),
        None if names(&args.options, "memory") => {
            return Err(UsageError::Conflict("the memory of a run is set by --memory").into());
        }
        None => MemoryBudget::Share(0.1),
    };
    let held_back = args.held_back.as_deref();
    config.held_back = held_back.map(|text| request::size("--held-back", text)).transpose()?;
    config.fill = args.fill;
    config.warmup = warmup(&args.warmup)?;
    config.seed = args.seed;
    let is_accepted = config.warmup == Warmup::None || !config.workload.overwrites();
    let unsteady = if is_accepted { Unsteady::Accepted } else { Unsteady::Fails };
    Ok(BenchRequest { config, unsteady, _scratch: scratch })
}

/// Whether one of the `KEY=VALUE` changes the option called `name`.
fn names(changes: &[String], name: &str) -> bool {
    changes.iter().any(|change| overrides::name_of(change).as_deref() == Some(name))
}

/// Scale of the workload, from its own option; none where it was not given.
fn scale(args: &BenchArgs, workload: WorkloadKind) -> Result<Option<u32>, UsageError> {
    let own = match workload {
        WorkloadKind::Tatp(_) => "--subscribers",
        WorkloadKind::Linkbench { .. } => "--nodes",
        WorkloadKind::Ycsb(_) => "--records",
        WorkloadKind::Tpcb(_) | WorkloadKind::Tpcc { .. } | WorkloadKind::Index(_) => "--scale",
    };
    let given = [
        ("--scale", args.scale, "the sizes of tatp, linkbench and ycsb have options of their own"),
        ("--subscribers", args.subscribers, "--subscribers goes with tatp alone"),
        ("--nodes", args.nodes, "--nodes goes with linkbench alone"),
        ("--records", args.records, "--records goes with ycsb alone"),
    ];
    let foreign = given.iter().find(|(name, count, _)| *name != own && count.is_some());
    if let Some((_, _, conflict)) = foreign {
        return Err(UsageError::Conflict(conflict));
    }
    Ok(given.iter().find_map(|(name, count, _)| count.filter(|_| *name == own)))
}

/// Profile of the device: the named one, or one that fits device and workload.
fn profile(args: &BenchArgs, workload: WorkloadKind) -> Result<Profile, Failure> {
    if let Some(node) = node(args)? {
        let named = args.profile.as_deref().map(request::profile).transpose()?;
        return mtd_profile(node, named.as_ref());
    }
    let default_profile = match (args.device, workload) {
        (RawDevice::File, _) => SEGMENT_PROFILE,
        (_, WorkloadKind::Index(dialect)) => dialect.profile(),
        (_, WorkloadKind::Ycsb(_)) => DRIVE_PROFILE,
        _ => CHIP_PROFILE,
    };
    Ok(request::profile(args.profile.as_deref().unwrap_or(default_profile))?)
}

/// Node of the device `mtd`; none for other devices.
fn node(args: &BenchArgs) -> Result<Option<&Path>, UsageError> {
    match (args.device, args.node.as_deref()) {
        (RawDevice::Mtd, None) => Err(UsageError::Conflict("--device mtd needs --node")),
        (RawDevice::Mtd, node) => Ok(node),
        (_, Some(_)) => Err(UsageError::Conflict("--node goes with --device mtd alone")),
        (_, None) => Ok(None),
    }
}

const INDEX_DIALECTS: &str = "w-query-insert, w-update-insert, w-query-mix, w-update-mix, \
    write-intensive, read-intensive, random, aggregation, oltp or writes-0, -10, -30, -50, -70, \
    -90, -100";

/// Workload and dialect.
fn workload(args: &BenchArgs) -> Result<WorkloadKind, UsageError> {
    let default = match args.workload.as_str() {
        "index" => index::Dialect::default().name(),
        "ycsb" => ycsb::Dialect::default().name(),
        _ => "spec",
    };
    let dialect = args.dialect.as_deref().unwrap_or(default);
    match args.workload.as_str() {
        "tpcb" => tpcb::Dialect::named(dialect)
            .map(WorkloadKind::Tpcb)
            .ok_or_else(|| unfit("--dialect", dialect, "spec, shore-kits or shore-kits-local")),
        "tpcc" => tpcc::Dialect::named(dialect)
            .map(|dialect| WorkloadKind::Tpcc {
                dialect,
                delivery: tpcc::DeliveryUnit::default(),
                cardinality: tpcc::Cardinality::SPEC,
            })
            .ok_or_else(|| unfit("--dialect", dialect, "spec or dbt2")),
        "index" => index::Dialect::named(dialect)
            .map(WorkloadKind::Index)
            .ok_or_else(|| unfit("--dialect", dialect, INDEX_DIALECTS)),
        "tatp" => tatp::Dialect::named(dialect).map(WorkloadKind::Tatp).ok_or_else(|| {
            unfit("--dialect", dialect, "spec, spec-non-uniform, shore-kits or benchbase")
        }),
        "linkbench" => linkbench::Dialect::named(dialect)
            .map(|dialect| WorkloadKind::Linkbench { dialect, bounds: linkbench::Bounds::SPEC })
            .ok_or_else(|| unfit("--dialect", dialect, "spec or linkbench")),
        "ycsb" => ycsb::Dialect::named(dialect)
            .map(WorkloadKind::Ycsb)
            .ok_or_else(|| unfit("--dialect", dialect, "a, b, c, d, e or f")),
        other => Err(unfit("WORKLOAD", other, "tpcb, tpcc, tatp, linkbench, ycsb or index")),
    }
}

fn unfit(option: &'static str, value: &str, must: &'static str) -> UsageError {
    UsageError::Value { option, value: value.to_owned(), must }
}

fn presets(args: &BenchArgs) -> Result<Vec<flagstone::Options>, UsageError> {
    let durability = args.durability.as_deref().map(request::durability).transpose()?;
    let options = args.preset.split(',').map(|name| {
        let mut options = request::changed(
            preset::options(name.trim())?,
            None,
            &args.options,
            Scope::Experiment,
        )?;
        options.durability = durability.unwrap_or(options.durability);
        Ok(options)
    });
    options.collect()
}

fn seconds(number: f64) -> Result<Duration, UsageError> {
    Duration::try_from_secs_f64(number)
        .map_err(|_| unfit("--seconds", &number.to_string(), "a positive number of seconds"))
}

fn warmup(text: &str) -> Result<Warmup, UsageError> {
    match text {
        "auto" => Ok(Warmup::Auto),
        "none" => Ok(Warmup::None),
        _ => {
            let txns = parse_size(text);
            txns.map(Warmup::Txns)
                .map_err(|_| unfit("--warmup", text, "auto, none or a number of transactions"))
        }
    }
}

/// The device, and the directory that holds it where it is a file.
fn device(args: &BenchArgs) -> Result<(BenchDevice, Option<Scratch>), Failure> {
    if let Some(node) = node(args)? {
        return Ok((mtd(node)?, None));
    }
    let on_files = match args.device {
        RawDevice::Sim | RawDevice::Mtd => return Ok((BenchDevice::Sim, None)),
        RawDevice::Image => BenchDevice::Image,
        RawDevice::File => BenchDevice::File,
    };
    let scratch = Scratch::new(args.dir.as_deref())?;
    Ok((on_files(scratch.path().to_owned()), Some(scratch)))
}

#[cfg(target_os = "linux")]
fn mtd(node: &Path) -> Result<BenchDevice, Failure> {
    Ok(BenchDevice::Mtd(node.into()))
}

#[cfg(not(target_os = "linux"))]
fn mtd(_: &Path) -> Result<BenchDevice, Failure> {
    Err(Failure::NoMtd)
}

/// The runs beside each other, one column each.
pub(crate) fn run_table(runs: &[Run]) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut line = |name: &str, cell: &dyn Fn(&Run) -> String| {
        rows.push(std::iter::once(name.to_owned()).chain(runs.iter().map(cell)).collect());
    };
    line("commits", &|run| grouped(run.commits));
    line("restarts after deadlock", &|run| grouped(run.restarts));
    line("elapsed, s", &|run| format!("{:.3}", run.elapsed_s));
    line("transactions a second", &|run| format!("{:.0}", run.tps));
    line("latency p50 / p99 / p99.9, us", &|run| {
        let latency = run.latency_us;
        format!("{:.0} / {:.0} / {:.0}", latency.p50, latency.p99, latency.p999)
    });
    for class in classes(runs) {
        line(&format!("  {class}: commits, p50 / p99, us"), &|run| {
            let one = run.by_class.get(class).copied().unwrap_or_default();
            let latency = one.latency_us;
            format!("{}, {:.0} / {:.0}", grouped(one.commits), latency.p50, latency.p99)
        });
        if runs.iter().any(|run| success(run, class).is_some_and(|share| share < 1.0)) {
            line("    committed, % of those that ended", &|run| {
                success(run, class)
                    .map_or_else(String::new, |share| format!("{:.1}", 100.0 * share))
            });
        }
    }
    line("programs a transaction", &|run| format!("{:.3}", run.programs_per_commit()));
    line("reads a transaction", &|run| format!("{:.3}", run.reads_per_commit()));
    line("erases a thousand transactions", &|run| format!("{:.2}", run.erases_per_thousand()));
    line("write amplification", &|run| format!("{:.2}", run.write_amplification));
    line("page programs", &|run| grouped(run.page_programs));
    line("partial programs", &|run| grouped(run.partial_programs));
    line("  for the log", &|run| grouped(run.programs_by_cause.log));
    line("  for data", &|run| grouped(run.programs_by_cause.data));
    line("  for appends", &|run| grouped(run.programs_by_cause.delta));
    line("  for flags", &|run| grouped(run.programs_by_cause.flag));
    line("  for metadata", &|run| grouped(run.programs_by_cause.metadata));
    line("  for relocation", &|run| grouped(run.programs_by_cause.relocation));
    line("  for wear levelling", &|run| grouped(run.programs_by_cause.wear));
    line("page reads", &|run| grouped(run.page_reads));
    line("block erases", &|run| grouped(run.block_erases));
    line("erase count min / mean / max", &|run| {
        let wear = run.erase_count;
        format!("{} / {:.1} / {}", wear.min, wear.mean, wear.max)
    });
    line("expected lifetime, transactions", &|run| lifetime(run));
    line("hits / misses of memory", &|run| {
        format!("{} / {}", grouped(run.pool_hits), grouped(run.pool_misses))
    });
    line("steady", &|run| (if run.steady { "yes" } else { "no" }).to_owned());
    line("  erases of the halves apart, %", &|run| {
        format!("{:.1}", 100.0 * run.config.observed.drift)
    });
    line("  of these by chance, at most", &|run| {
        format!("{:.1}", 100.0 * run.config.observed.drift_max)
    });
    line("wall time, s", &|run| format!("{:.3}", run.wall_s));
    let heads = runs.iter().map(|run| run.config.preset.as_str());
    Table::with_rows(std::iter::once("").chain(heads), rows).to_string()
}

/// Share of a class's transactions that committed; none where there were none.
fn success(run: &Run, class: &str) -> Option<f64> {
    let one = run.by_class.get(class)?;
    let ended = one.commits + one.aborts;
    (ended > 0).then(|| one.commits as f64 / ended as f64)
}

/// Classes of transactions, where there are several.
fn classes(runs: &[Run]) -> Vec<&str> {
    let first = runs.first().map(|run| &run.by_class).filter(|classes| classes.len() > 1);
    first.into_iter().flat_map(|classes| classes.keys().map(String::as_str)).collect()
}

/// Transactions that the chip's rated cycles carry.
pub(crate) fn lifetime(run: &Run) -> String {
    run.lifetime_txns.map_or_else(|| String::from("no erase yet"), grouped)
}
