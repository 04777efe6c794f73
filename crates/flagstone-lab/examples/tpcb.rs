//! One TPC-B run on the simulated chip: `tpcb PRESET CLIENTS TXNS [DIALECT] [SEED]`.
//!
//! Prints the figures of a transaction and, with `JSON=1`, the whole run object.

use std::error::Error;

use flagstone_engine::Options;
use flagstone_lab::bench::{BenchConfig, WorkloadKind, run_all};
use flagstone_lab::run::Run;
use flagstone_lab::workload::tpcb::Dialect;
use flagstone_nand::Profile;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize, default: &str| {
        arguments.get(index).cloned().unwrap_or_else(|| default.to_owned())
    };
    let options = Options::preset(&argument(0, "flagstone"))?;
    let mut config = BenchConfig::tpcb(Profile::named("slc-2k")?, vec![options]);
    config.clients = argument(1, "1").parse()?;
    config.txns = argument(2, "50000").parse()?;
    let dialect = Dialect::named(&argument(3, "spec")).ok_or("unknown dialect")?;
    config.workload = WorkloadKind::Tpcb(dialect);
    config.seed = argument(4, "1").parse()?;
    let is_verbose = std::env::var_os("VERBOSE").is_some();
    let mut on_progress = |progress| {
        if is_verbose {
            eprintln!("{progress:?}");
        }
    };
    let runs = run_all(&config, &mut on_progress)?.runs;
    runs.iter().for_each(print);
    if std::env::var_os("JSON").is_some() {
        println!("{}", serde_json::to_string_pretty(&runs)?);
    }
    Ok(())
}

fn print(run: &Run) {
    let commits = run.commits as f64;
    println!("{} {} clients, {} commits", run.config.preset, run.config.clients, run.commits);
    println!(
        "  programs {:.3}  reads {:.3}  erases/1000 {:.2}  steady {} (drift {:.3} of {:.3})",
        run.programs_per_commit(),
        run.reads_per_commit(),
        run.erases_per_thousand(),
        run.steady,
        run.config.observed.drift,
        run.config.observed.drift_max,
    );
    let causes = run.programs_by_cause;
    let each = |count: u64| count as f64 / commits;
    println!(
        "  by cause: log {:.3} data {:.3} metadata {:.3} relocation {:.3} wear {:.3}",
        each(causes.log),
        each(causes.data),
        each(causes.metadata),
        each(causes.relocation),
        each(causes.wear)
    );
    println!(
        "  tps {:.0}  p50 {:.0} us  p99 {:.0} us  p999 {:.0} us  restarts {}  WA {:.2}",
        run.tps,
        run.latency_us.p50,
        run.latency_us.p99,
        run.latency_us.p999,
        run.restarts,
        run.write_amplification
    );
    println!(
        "  hits {:.3} misses {:.3}  memory {:?}  fill {:.4}  blocks {}  warmup {}",
        each(run.pool_hits),
        each(run.pool_misses),
        run.memory,
        run.config.observed.fill,
        run.config.observed.block_count,
        run.config.observed.warmup_txns
    );
    println!("  recovery {:?}", run.recovery);
    println!("  wall {:.3} s = {:.0} txn/s", run.wall_s, commits / run.wall_s);
}
