//! Arguments of the commands that run workloads.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::RawDevice;

/// Most transactions of a run: days of work.
const TXNS_MAX: u64 = 1_000_000_000;

/// Most operations of a workload in which every operation is cut.
const OPS_MAX: i64 = 10_000;

/// Most runs at a time.
const THREADS_MAX: i64 = 1_000;

/// Arguments of `quickstart`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone quickstart                        a few seconds; leaves nothing behind
  flagstone quickstart --dir images           keeps the two images, to look at with:
  flagstone wear images/flagstone.nand        state, live pages and erases of each block
  flagstone quickstart --txns 100000 --json   the run objects, as `bench` prints them")]
pub(crate) struct QuickstartArgs {
    /// Directory for the images [default: a temporary one, removed at the end].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Transactions of each engine, half of them before the power cut.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=TXNS_MAX))]
    pub(crate) txns: Option<u64>,
    /// Seed of everything random.
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Arguments of `bench`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone bench tpcb --profile slc-2k --memory 1MiB --txns 30000
  flagstone bench tpcb --preset flagstone,traditional --clients 16 --json
  flagstone bench tpcc --preset otf-group --profile slc-2k --scale 1 --clients 16 --json
  flagstone bench tatp --subscribers 100000 --clients 16
  flagstone bench linkbench --nodes 100000 --dialect linkbench --clients 16
  flagstone bench ycsb --dialect b --records 100000 --clients 16
  flagstone bench index --dialect w-update-mix -o victim=cost
  flagstone bench tpcb --device mtd --node /dev/mtd3 --memory 2MiB    formats it

On raw NAND that holds a database it is refused without --overwrite.

A run that is not steady ends with exit code 15 unless `--warmup none` was asked for: garbage
collection has to run throughout, and erases per commit must agree in the two halves of the run.
Workloads that never overwrite their chip (ycsb c, d and e; index writes-0) warm up for as many
transactions as they measure, and need not be steady.")]
pub(crate) struct BenchArgs {
    /// Workload: tpcb, tpcc, tatp, linkbench, ycsb or index.
    #[arg(value_name = "WORKLOAD")]
    pub(crate) workload: String,
    /// Dialect of the workload: of tpcb `spec`, shore-kits and shore-kits-local; of tpcc `spec` and
    /// dbt2; of tatp `spec`, spec-non-uniform, shore-kits and benchbase; of linkbench `spec` and
    /// linkbench; of ycsb `a`, b, c, d, e and f; of index w-query-insert, w-update-insert, `w-query-mix`, w-update-mix (names),
    /// write-intensive, read-intensive, random, aggregation and writes-0, -10, -30, -50, -70, -90,
    /// -100 (numbers), oltp (the index requests of TPC-C).
    #[arg(long, value_name = "NAME")]
    pub(crate) dialect: Option<String>,
    /// Kind of device.
    #[arg(long, value_name = "KIND", default_value = "sim")]
    pub(crate) device: RawDevice,
    /// Directory for the file of the devices `image` and `file` [default: a temporary one].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Node of the device `mtd`, a partition whose content is no longer needed: it is formatted.
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<PathBuf>,
    /// Format the node although it holds a database, whose content is lost.
    #[arg(long, requires = "node")]
    pub(crate) overwrite: bool,
    /// Profile of the device: a name, or a TOML file [default: slc-2k; segment-file on `file`; the driver's
    /// description on `mtd`].
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: Option<String>,
    /// Preset, or several with commas between them: they run one after the other.
    #[arg(long, value_name = "NAMES", default_value = "flagstone")]
    pub(crate) preset: String,
    /// Change one option of the presets; may be repeated.
    #[arg(short, long = "option", value_name = "KEY=VALUE")]
    pub(crate) options: Vec<String>,
    /// Scale: branches of TPC-B, warehouses of TPC-C, multiples of the index [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) scale: Option<u32>,
    /// Subscribers of TATP [default: 100000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) subscribers: Option<u32>,
    /// Nodes of LinkBench [default: 100000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) nodes: Option<u32>,
    /// Records of YCSB [default: 100000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) records: Option<u32>,
    /// Clients without think time; threads off the simulator.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) clients: u32,
    /// Share of the transactions that abort where they would commit (simulator).
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(crate) abort_ratio: f64,
    /// Transactions of the measured window.
    #[arg(long, value_name = "N", default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(1..=TXNS_MAX))]
    pub(crate) txns: u64,
    /// End the window after so much simulated time, although transactions are left; the chip is sized
    /// for all of them (simulator).
    #[arg(long, value_name = "S")]
    pub(crate) seconds: Option<f64>,
    /// Memory for pages and deltas together [default: a tenth of the loaded data].
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<String>,
    /// Part of the memory that is kept for deltas [default: the preset's].
    #[arg(long, value_name = "SIZE")]
    pub(crate) held_back: Option<String>,
    /// Live share of the data region at the end of the run; it sizes the chip, but for `mtd`.
    #[arg(long, value_name = "SHARE", default_value_t = 0.8)]
    pub(crate) fill: f64,
    /// Warm-up: auto (three chip overwrites), none, or a number of transactions.
    #[arg(long, value_name = "auto|none|N", default_value = "auto")]
    pub(crate) warmup: String,
    /// When a commit returns: immediate, group or deferred [default: the preset's].
    #[arg(long, value_name = "KIND")]
    pub(crate) durability: Option<String>,
    /// Seed of everything random.
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Arguments of `demo`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone demo                  prints the address of the page; Ctrl-C ends it
  flagstone demo --port 8080
  flagstone demo --json           {\"address\":\"http://127.0.0.1:34567/\"}

Programs of this machine alone can reach the page.")]
pub(crate) struct DemoArgs {
    /// Port on the loopback interface; 0 is any free one.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) port: u16,
}

/// Arguments of `crash`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone crash                                        every cut of 40 operations, every ending
  flagstone crash --depth 2 --ops 20                     cuts each recovery too
  flagstone crash --profile tiny-mlc --seed 7 --ops 40
  flagstone crash --seed 7 --cut 113 --ending torn-1     replays one state; `--cut 17+23`: 17 is cut
                                                         when those up to 23 on other dies are done;
                                                         `--ending torn-1+torn-2`: 23 is cut too

Ends with exit code 16 when a state lost or half-showed a transaction.")]
pub(crate) struct CrashArgs {
    /// Preset to test.
    #[arg(long, value_name = "NAME", default_value = "flagstone")]
    pub(crate) preset: String,
    /// Profile of the simulated device, one of `flagstone profiles`.
    #[arg(long, value_name = "PROFILE", default_value = "tiny")]
    pub(crate) profile: String,
    /// Operations of the workload.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=OPS_MAX))]
    pub(crate) ops: u32,
    /// Cuts in one history: 1, or 2 to cut each recovery too.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=2))]
    pub(crate) depth: u32,
    /// Seed of the workload and of every torn operation.
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Replay: device operation at which the power fails; two with a comma at depth 2.
    #[arg(long, value_name = "N", requires = "ending")]
    pub(crate) cut: Option<String>,
    /// Replay: how that operation ends, as a failure prints it.
    #[arg(long, value_name = "E", requires = "cut")]
    pub(crate) ending: Option<String>,
}

/// Commands of `lab`.
#[derive(Debug, Subcommand)]
pub(crate) enum RawLab {
    /// Run a paper's experiment and tell for each of its claims whether it holds here.
    ///
    /// Runs every configuration that the figures need, over the cores, and prints for each claim of
    /// the paper its value, ours, the verdict and the rule behind it. Writes the values, the charts
    /// and one page that needs no network below DIR/PAPER. Equal seeds write equal bytes.
    Reproduce(ReproduceArgs),
    /// Show the size from which on a transaction is better committed with its leaves than by the log.
    ///
    /// Counts programs at the device, with merges, checkpoints and collection, in a steady state, for
    /// transactions of 1 to 4,096 changed rows, one behind the other or anywhere: by the log, by flags in
    /// the spare area, and as the engine chooses. Writes values and charts to DIR/crossover.
    Crossover(CrossoverArgs),
    /// Compare policies side by side: for the order of merges, and for the order in which pages leave memory.
    ///
    /// Runs every policy on every index workload, all with equal memory, and prints the device's work and time for a
    /// request; then the worth of each option, changed one after the other from a paper's policy to the default.
    /// Writes values, chart and page to DIR/compare.
    Compare(CompareArgs),
}

/// Directory for results: results of smaller sizes never replace the others.
pub(crate) fn results_directory(out: Option<&Path>, is_quick: bool) -> PathBuf {
    let default = Path::new(if is_quick { "results/quick" } else { "results" });
    out.unwrap_or(default).to_owned()
}

/// Arguments of `lab compare`.
#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// Subject of the comparison.
    #[arg(value_name = "WHAT", value_parser = ["index"])]
    pub(crate) what: String,
    /// Shorter runs.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Directory for the results [default: results, with --quick results/quick].
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Runs at a time [default: the number of cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=THREADS_MAX))]
    pub(crate) threads: Option<u32>,
    /// Seed of everything random.
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Arguments of `lab crossover`.
#[derive(Args, Debug)]
pub(crate) struct CrossoverArgs {
    /// A quarter of everything.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Profile of the simulated chip: one that carries flags.
    #[arg(long, value_name = "PROFILE", default_value = "slc-2k")]
    pub(crate) profile: String,
    /// Directory for the results [default: results, with --quick results/quick].
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Runs at a time [default: the number of cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=THREADS_MAX))]
    pub(crate) threads: Option<u32>,
    /// Seed of everything random.
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Arguments of `lab reproduce`.
#[derive(Args, Debug)]
#[command(after_help = PAPERS_HELP)]
pub(crate) struct ReproduceArgs {
    /// Paper, one of the list below.
    #[arg(value_name = "PAPER")]
    pub(crate) paper: String,
    /// One figure or table of it; a wrong name prints the list [default: all].
    #[arg(value_name = "FIGURE")]
    pub(crate) figure: Option<String>,
    /// Smaller sizes in the same proportions: minutes on two cores.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Directory for the results [default: results, with --quick results/quick].
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Take the runs that DIR holds as they are, and keep each run there as it ends. Runs are known by name, sizes
    /// and seed: runs of another version are taken, too.
    #[arg(long)]
    pub(crate) resume: bool,
    /// Run nothing: draw and judge from the runs that DIR holds, and leave out figures that lack some.
    #[arg(long)]
    pub(crate) draw_only: bool,
    /// Runs at a time [default: the number of cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=THREADS_MAX))]
    pub(crate) threads: Option<u32>,
    /// Seed of everything random.
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,
}

const PAPERS_HELP: &str = "\
Papers: on-the-fly-redo, flag-commit, lazy-update-btree, lazy-split-lru, in-place-appends.
The rules behind the verdicts are in docs/REPRODUCTION.md.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_smaller_sizes_have_a_directory_of_their_own() {
        assert_eq!(results_directory(None, false), Path::new("results"));
        assert_eq!(results_directory(None, true), Path::new("results/quick"));
        assert_eq!(results_directory(Some(Path::new("x")), true), Path::new("x"));
    }
}
