//! The command line as it was typed: names and texts, nothing decided yet.
//!
//! Owns the shape of the command line and every word of its help. Never opens a file and never
//! interprets a value: [`crate::request`] turns these raw arguments into validated ones.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, Args, Command, CommandFactory as _, Parser, Subcommand, ValueEnum};

use crate::catalog::exit_table;

/// Storage engine that treats flash as flash: databases, benchmarks and crash tests.
#[derive(Debug, Parser)]
#[command(
    name = "flagstone",
    version,
    propagate_version = true,
    after_help = "\
Start here:
  flagstone quickstart                           see what it does to the flash, power cut included
  flagstone create shop.db                       a database in a file
  flagstone create chip.nand --profile slc-2k    a database on the image of a NAND chip
  flagstone put shop.db users ada 'countess'     one durable transaction
  flagstone scan shop.db users --from a --to b
  flagstone export shop.db > shop.jsonl          every row, one JSON object a line

Bytes outside printable ASCII are written \\xNN, a backslash \\\\, both ways.
Sizes take B, k, KiB, kB, M, MiB, MB, G, GiB, GB, T, TiB, TB (k and KiB are 1024, kB is 1000).
`flagstone exit-codes` lists what the exit code of a failed command says."
)]
pub(crate) struct RawArgs {
    /// Print one JSON object instead of text (errors too, on the error stream).
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: RawCommand,
}

/// Most transactions of a run: days of it.
const TXNS_MAX: u64 = 1_000_000_000;

/// Most operations of a workload whose every operation is cut.
const OPS_MAX: i64 = 100_000;

/// Most runs at a time.
const THREADS_MAX: i64 = 1_000;

/// The command line, on which an option is given `-1` to be told what is wrong with it.
pub(crate) fn command() -> Command {
    with_numbers(RawArgs::command())
}

fn with_numbers(command: Command) -> Command {
    let with_number = |arg: Arg| match arg.is_positional() || !arg.get_action().takes_values() {
        true => arg,
        false => arg.allow_negative_numbers(true),
    };
    command.mut_args(with_number).mut_subcommands(with_numbers)
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum RawCommand {
    /// Run TPC-B with both presets, cut the power half way, recover, verify, compare.
    ///
    /// Creates a database on the image of a NAND chip for each of two presets, `flagstone` and
    /// `traditional`, runs the TPC-B workload on it, cuts the power in the middle of a device
    /// operation, opens the image again, verifies that every acknowledged transaction is there
    /// and that the four sums of TPC-B agree, and finishes the run. Then it prints beside each
    /// other what the two engines did to the flash.
    Quickstart(QuickstartArgs),
    /// Create an empty database.
    Create(CreateArgs),
    /// Store VALUE under KEY, as one durable transaction.
    Put(PutArgs),
    /// Print the value under KEY.
    Get(GetArgs),
    /// Delete KEY, as one durable transaction.
    Del(KeyArgs),
    /// Print the rows of a table in key order, forwards or backwards.
    Scan(ScanArgs),
    /// Write everything to one file, as of one moment.
    ///
    /// The file holds rows, not pages: it fits any device and any page size, and is refused when a part
    /// of it is missing or damaged. It appears when it is complete, and must not exist.
    Backup(BackupArgs),
    /// Create a database from a backup.
    ///
    /// The backup is verified before anything is created, unless it comes by standard input. The
    /// database has its name only when it is complete; on raw NAND, a restore that fails leaves a part
    /// of it.
    Restore(RestoreArgs),
    /// Write all rows as JSON Lines, as of one moment.
    ///
    /// One object a line, `{"table":"users","key":"YWRh","value":"Y291bnRlc3M="}`: the table's name as
    /// text, key and value in base64. Tables without rows leave no line. A FILE appears when it is
    /// complete, and must not exist.
    Export(ExportArgs),
    /// Store the rows of JSON Lines, as `export` writes them.
    ///
    /// A key that is there gets the new value; tables are created as they are met. Lines are stored in
    /// transactions of --batch rows (fewer when they are large), each durable. A line that is no row
    /// ends the import with exit code 20: what stands before it is stored, and the message says from
    /// which line to go on. An import that was interrupted can simply be run again.
    Import(ImportArgs),
    /// Print tables, memory, log, and what has been programmed for what cause.
    Stats(DatabaseArgs),
    /// Check the whole structure: mapping, trees, keys, values. Writes nothing of its own.
    Check(DatabaseArgs),
    /// Merge every pending change into its leaf, and write a checkpoint.
    Merge(DatabaseArgs),
    /// Write a plain file anew, every table in order and dense, in place of the old one.
    ///
    /// The new file is made beside the old one, as PATH.compacting, and takes its name when it is complete
    /// and durable: whatever happens meanwhile, PATH is the old file or the new one. There must be room
    /// for both. Chips, their images and block devices are copied with `backup` and `restore` instead.
    Compact(CompactArgs),
    /// Draw the chip: state, live pages and erase count of each block.
    Wear(WearArgs),
    /// Say what a chip is and, on blocks that may be used up, find out what it can do.
    ///
    /// Without --scratch the device is read and nothing else. On each scratch block, whose content is
    /// lost, it measures the time of every operation, and finds out how often a page can be programmed
    /// before it reads wrong, whether spare bytes lie outside the ECC, and in what order pages can be
    /// programmed. What a power cut harms it does not find out.
    Probe(ProbeArgs),
    /// Run a workload and count everything that it does to the device.
    Bench(BenchArgs),
    /// Cut the power at every device operation, in every way it can end, and verify each restart.
    ///
    /// Runs a short random workload once for each (operation, ending) pair, opens the device again
    /// and compares the contents with a model: every acknowledged commit is there, at most those
    /// in flight besides, nothing else. Depth 2 also cuts each recovery at each of its operations.
    /// A failure prints the one line that replays it.
    Crash(CrashArgs),
    /// Serve a page on this machine alone: two runs side by side, to watch and to compare.
    ///
    /// Prints the address of the page and serves it until it is interrupted. Benchmark, scale, device,
    /// preset and scheme of in-place appends are chosen there; each run is a `bench` on the simulated
    /// chip. The page needs no network.
    Demo(DemoArgs),
    /// Experiments: reproduce the figures of a paper.
    #[command(subcommand)]
    Lab(RawLab),
    /// List the device profiles and what each device can do.
    Profiles(ProfilesArgs),
    /// List the presets, or print one with all its options.
    Presets(PresetsArgs),
    /// Print the completions of a shell, to be sourced or installed.
    Completions(CompletionsArgs),
    /// Print the man page, or write one for each command.
    Man(ManArgs),
    /// List the exit codes and what each one says.
    #[command(after_help = exit_table())]
    ExitCodes,
}

/// Kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RawDevice {
    /// Simulated chip in memory, on a virtual clock (`bench` only).
    Sim,
    /// Image of a NAND chip in a file; it obeys and enforces the rules of the chip.
    Image,
    /// Regular file on an SSD, eMMC or SD card.
    File,
    /// Raw NAND behind the Linux MTD layer.
    Mtd,
}

/// Who computes the ECC of a chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RawEcc {
    /// The chip, its controller or its driver.
    Device,
    /// Flagstone, on a chip that is reached byte by byte: partial programs whatever the driver's ECC.
    Own,
}

/// How the engine works: a preset, and options changed from it.
#[derive(Args, Debug)]
pub(crate) struct EngineArgs {
    /// Options to start from (see `flagstone presets`).
    #[arg(long, value_name = "NAME", help_heading = "Engine")]
    pub(crate) preset: Option<String>,
    /// Memory for pages and deltas together; the mapping comes on top.
    #[arg(long, value_name = "SIZE", help_heading = "Engine")]
    pub(crate) memory: Option<String>,
    /// Change one option of the preset; may be repeated (see `flagstone presets NAME`).
    #[arg(short, long = "option", value_name = "KEY=VALUE", help_heading = "Engine")]
    pub(crate) options: Vec<String>,
}

/// A database that exists.
#[derive(Args, Debug)]
pub(crate) struct DatabaseArgs {
    /// File of the database: an image or a plain file, recognised by its content.
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
    /// Insist that the device is this one: a profile's name, or a TOML file.
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: Option<String>,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// Arguments of `create`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone create shop.db                          a plain file that grows, from 16 MiB
  flagstone create shop.db --limit 10GiB            the same, to 10 GiB at most
  flagstone create shop.db --capacity 1GiB          one of a fixed size; its bytes are written at once
  flagstone create chip.nand --profile spi-nand     a NAND image, its profile beside it
  flagstone create old.nand --profile slc-2k --preset traditional
  flagstone create own.nand --profile own.toml      from `flagstone profiles slc-2k > own.toml`

Whoever opens the database later names preset and memory anew; the device is read off the file.")]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    pub(crate) new: NewArgs,
}

/// A database to make: what `create` and `restore` share.
#[derive(Args, Debug)]
pub(crate) struct NewArgs {
    /// File to create, which must not exist; with `--device mtd`, the node of the device.
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
    /// Kind of device [default: image when --profile names a chip, else file].
    #[arg(long, value_name = "KIND")]
    pub(crate) device: Option<RawDevice>,
    /// Profile of the device: a name (see `flagstone profiles`), or a TOML file.
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: Option<String>,
    /// Who computes the ECC of a chip, if not who the profile says [default: device]. Whoever opens the
    /// database later need not say it.
    #[arg(long, value_name = "WHO")]
    pub(crate) ecc: Option<RawEcc>,
    /// Size of the device's data area [default: a plain file grows; else that of the profile, or 64 MiB for a
    /// block device].
    #[arg(long, value_name = "SIZE")]
    pub(crate) capacity: Option<String>,
    /// Size up to which a plain file grows, 1 TiB at most [default: 256 GiB].
    #[arg(long, value_name = "SIZE", conflicts_with = "capacity")]
    pub(crate) limit: Option<String>,
    /// Format raw NAND that holds a database: what it holds is lost.
    #[arg(long)]
    pub(crate) overwrite: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// Arguments of `compact`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone compact shop.db                   as large as what it holds asks for
  flagstone compact shop.db --limit 1TiB      a file of a fixed size grows from now on, or further")]
pub(crate) struct CompactArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// Give the file this size, which stays [default: as it was].
    #[arg(long, value_name = "SIZE")]
    pub(crate) capacity: Option<String>,
    /// Let the file grow, up to this size [default: as it was].
    #[arg(long, value_name = "SIZE", conflicts_with = "capacity")]
    pub(crate) limit: Option<String>,
}

/// Arguments of `put`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone put shop.db users ada countess
  flagstone put shop.db users 'k\\x00\\xff' 'two\\x0alines'    bytes as \\xNN, a backslash as \\\\
  flagstone put shop.db photos ada --file ada.jpg            a value of any bytes, up to the limit
  date | flagstone put shop.db log today --file -            (`flagstone stats` prints the limits)")]
pub(crate) struct PutArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// Table; created when it is not there.
    #[arg(value_name = "TABLE")]
    pub(crate) table: String,
    /// Key; bytes outside printable ASCII as \xNN.
    #[arg(value_name = "KEY", allow_hyphen_values = true)]
    pub(crate) key: OsString,
    /// Value; bytes outside printable ASCII as \xNN.
    #[arg(value_name = "VALUE", allow_hyphen_values = true, required_unless_present = "file")]
    pub(crate) value: Option<OsString>,
    /// Take the value from a file, byte by byte; `-` is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    pub(crate) file: Option<PathBuf>,
}

/// Arguments of `get`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone get shop.db users ada
  flagstone get shop.db photos ada --raw > ada.jpg

Ends with exit code 3 when there is no such key or table.")]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(crate) at: KeyArgs,
    /// Print the bytes of the value and nothing else; not with --json.
    #[arg(long)]
    pub(crate) raw: bool,
}

/// Arguments of `del`, and those that `get` shares.
#[derive(Args, Debug)]
pub(crate) struct KeyArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// Table.
    #[arg(value_name = "TABLE")]
    pub(crate) table: String,
    /// Key; bytes outside printable ASCII as \xNN.
    #[arg(value_name = "KEY", allow_hyphen_values = true)]
    pub(crate) key: OsString,
}

/// Arguments of `scan`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone scan shop.db users --from a --to b      keys from `a` up to `b`, without `b`
  flagstone scan shop.db users --reverse --limit 1  the last row
  flagstone scan shop.db users --json

A row is its key, a tab and its value, both with bytes outside printable ASCII as \\xNN.")]
pub(crate) struct ScanArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// Table.
    #[arg(value_name = "TABLE")]
    pub(crate) table: String,
    /// First key, inclusive.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub(crate) from: Option<OsString>,
    /// End of the keys, exclusive.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub(crate) to: Option<OsString>,
    /// Print at most this many rows.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// Start from the end.
    #[arg(long)]
    pub(crate) reverse: bool,
}

/// Arguments of `wear`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone wear chip.nand                    one character a block
  flagstone wear chip.nand --svg chip.svg     a picture; each block says its numbers when pointed at")]
pub(crate) struct WearArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// Draw a picture to this file, which must not exist; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// Arguments of `completions`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  source <(flagstone completions bash)
  flagstone completions zsh > ~/.zfunc/_flagstone
  flagstone completions fish > ~/.config/fish/completions/flagstone.fish")]
pub(crate) struct CompletionsArgs {
    /// Shell.
    #[arg(value_name = "SHELL")]
    pub(crate) shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone man | man -l -
  flagstone man --dir /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Write the page of every command to this directory, over pages of the same names.
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

/// Arguments of `export`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone export shop.db > shop.jsonl
  flagstone export shop.db shop.jsonl --table users --table orders
  flagstone export old.db | flagstone import new.db -")]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// File to write, which must not exist; `-` is standard output.
    #[arg(value_name = "FILE", default_value = "-")]
    pub(crate) file: PathBuf,
    /// Export this table alone; may be repeated [default: all tables].
    #[arg(long = "table", value_name = "TABLE")]
    pub(crate) tables: Vec<String>,
}

/// Arguments of `import`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone import shop.db shop.jsonl
  zcat shop.jsonl.gz | flagstone import shop.db -
  flagstone import shop.db shop.jsonl --from-line 1501    goes on where a bad line ended it
  flagstone import shop.db shop.jsonl --atomic            all rows or none")]
pub(crate) struct ImportArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// File of JSON Lines; `-` is standard input.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Rows of one transaction.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) batch: u64,
    /// Store all rows in one transaction: a failure stores none. New tables stay, empty.
    #[arg(long, conflicts_with = "batch")]
    pub(crate) atomic: bool,
    /// Begin with this line; those before it are not looked at.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) from_line: u64,
}

/// Arguments of `backup`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone backup shop.db shop.backup
  flagstone backup chip.nand - | ssh attic 'cat > chip.backup'")]
pub(crate) struct BackupArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// File to write, which must not exist; `-` is standard output.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// Arguments of `restore`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone restore shop.db shop.backup --capacity 1GiB
  flagstone restore chip.nand shop.backup --profile slc-2k    a backup fits any device
  flagstone restore --verify shop.backup                      reads it and says what it holds

Sizes and devices are those of `create`.")]
pub(crate) struct RestoreArgs {
    #[command(flatten)]
    pub(crate) new: NewArgs,
    /// Backup to read; `-` is standard input. With --verify, PATH is the backup.
    #[arg(value_name = "FILE", required_unless_present = "verify", conflicts_with = "verify")]
    pub(crate) file: Option<PathBuf>,
    /// Create nothing: read the backup named as PATH to its end, and say what it holds.
    #[arg(long)]
    pub(crate) verify: bool,
}

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

/// Arguments of `probe`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone probe /dev/mtd3                              what the driver says; reads alone
  flagstone probe /dev/mtd3 --scratch 1020-1023          tries four blocks, which lose their content;
                                                         refused where there is a database
  flagstone probe /dev/mtd3 --scratch 9,11 --out own.toml
  flagstone probe /dev/mtd3 --ecc own --scratch 9,11     past the driver's ECC
  flagstone create /dev/mtd3 --device mtd --profile own.toml

docs/RAW-NAND.md goes through all of it, board to backup.")]
pub(crate) struct ProbeArgs {
    /// Node of raw NAND under Linux, or the image of a chip.
    #[arg(value_name = "DEVICE")]
    pub(crate) path: PathBuf,
    /// Erase blocks that may be used up: numbers from 0 and ranges, with commas between them.
    #[arg(long, value_name = "BLOCKS")]
    pub(crate) scratch: Option<String>,
    /// Use scratch blocks up although the chip holds a database: what it holds may be lost.
    #[arg(long, requires = "scratch")]
    pub(crate) overwrite: bool,
    /// Whose ECC the experiments go through, on raw NAND [default: device].
    #[arg(long, value_name = "WHO")]
    pub(crate) ecc: Option<RawEcc>,
    /// Write a profile for `create --profile` to this file, which must not exist.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
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
    /// Node of the device `mtd`, a partition of which nothing is needed any more: it is formatted.
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<PathBuf>,
    /// Format the node although it holds a database: what it holds is lost.
    #[arg(long, requires = "node")]
    pub(crate) overwrite: bool,
    /// Profile of the device: a name, or a TOML file [default: slc-2k; segment-file on `file`; what the
    /// driver says on `mtd`].
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: Option<String>,
    /// Preset, or several with commas between them: these run one after the other.
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
    /// Part of the memory that is kept for deltas [default: that of the preset].
    #[arg(long, value_name = "SIZE")]
    pub(crate) held_back: Option<String>,
    /// Live share of the data region at the end of the run; it sizes the chip, but for `mtd`.
    #[arg(long, value_name = "SHARE", default_value_t = 0.8)]
    pub(crate) fill: f64,
    /// Warm-up: auto (three chip overwrites), none, or a number of transactions.
    #[arg(long, value_name = "auto|none|N", default_value = "auto")]
    pub(crate) warmup: String,
    /// When a commit returns: immediate, group or deferred [default: that of the preset].
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
    /// Run a paper's experiment and say of each of its claims whether it holds here.
    ///
    /// Runs every configuration that the figures need, over the cores, and prints for each claim of
    /// the paper its value, ours, the verdict and the rule behind it. Writes the values, the charts
    /// and one page that needs no network below DIR/PAPER. Equal seeds write equal bytes.
    Reproduce(ReproduceArgs),
    /// Show from which size on a transaction is better committed with its leaves than by the log.
    ///
    /// Counts programs at the device, with merges, checkpoints and collection, in a steady state, for
    /// transactions of 1 to 4,096 changed rows, one behind the other or anywhere: by the log, by flags in
    /// the spare area, and as the engine chooses. Writes values and charts to DIR/crossover.
    Crossover(CrossoverArgs),
    /// Compare policies side by side: which changes are merged first, which pages leave memory first.
    ///
    /// Runs every policy on every index workload, all with equal memory, and prints for a request what
    /// the device did and how long it took; then from a paper's policy to the default, one option
    /// after the other, what each is worth. Writes values, chart and page to DIR/compare.
    Compare(CompareArgs),
}

/// Arguments of `lab compare`.
#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// What is compared.
    #[arg(value_name = "WHAT", value_parser = ["index"])]
    pub(crate) what: String,
    /// Shorter runs.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Directory for the results.
    #[arg(long, value_name = "DIR", default_value = "results")]
    pub(crate) out: String,
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
    /// Directory for the results.
    #[arg(long, value_name = "DIR", default_value = "results")]
    pub(crate) out: String,
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
    /// One figure or table of it; a wrong name is answered with those that exist [default: all].
    #[arg(value_name = "FIGURE")]
    pub(crate) figure: Option<String>,
    /// Smaller sizes in the same proportions: minutes on two cores.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Directory for the results.
    #[arg(long, value_name = "DIR", default_value = "results")]
    pub(crate) out: String,
    /// Take the runs that DIR holds as they are, and keep each run there as it ends. They are told by
    /// name, sizes and seed: runs of another version are taken, too.
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

/// Arguments of `profiles`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone profiles                     what there is
  flagstone profiles slc-2k > own.toml   a profile to change, for --profile own.toml")]
pub(crate) struct ProfilesArgs {
    /// Print this profile as the TOML file that `--profile` takes.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
}

/// Arguments of `presets`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone presets                      what there is
  flagstone presets traditional          its options, each in the form that --option takes
  flagstone bench tpcb --preset flagstone --option parts=2")]
pub(crate) struct PresetsArgs {
    /// Print this preset with all its options, in the form that `--option` takes.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
}

#[cfg(test)]
mod tests;
