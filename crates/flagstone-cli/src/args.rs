//! The command line as it was typed: names and texts, still without meaning.
//!
//! Owns the shape of the command line and every word of its help. Never opens a file and never
//! interprets a value: [`crate::request`] turns these raw arguments into validated ones.

mod create;
mod device;
mod lab;
mod listings;
mod rows;
mod snapshot;
mod transfer;

use std::path::PathBuf;

use clap::{Arg, Args, Command, CommandFactory as _, Parser, Subcommand, ValueEnum};

use crate::catalog::exit_table;
pub(crate) use create::{CompactArgs, CreateArgs, NewArgs};
pub(crate) use device::{ProbeArgs, WearArgs};
pub(crate) use lab::{
    BenchArgs, CompareArgs, CrashArgs, CrossoverArgs, DemoArgs, QuickstartArgs, RawLab,
    ReproduceArgs, results_directory,
};
pub(crate) use listings::{CompletionsArgs, ManArgs, PresetsArgs, ProfilesArgs};
pub(crate) use rows::{GetArgs, KeyArgs, PutArgs, RenameArgs, ScanArgs, TableArgs};
pub(crate) use snapshot::{RawSnapshot, SnapshotArgs};
pub(crate) use transfer::{BackupArgs, ExportArgs, ImportArgs, RestoreArgs, SalvageArgs};

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
    /// Command to run.
    #[command(subcommand)]
    pub(crate) command: RawCommand,
}

/// The command line. An option takes `-1` as its value, so that the message can name the fault of the number.
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

/// All commands.
#[derive(Debug, Subcommand)]
pub(crate) enum RawCommand {
    /// Run TPC-B with both presets, cut the power half way, recover, verify, compare.
    ///
    /// Creates a database on the image of a NAND chip for each of two presets, `flagstone` and `traditional`, runs
    /// the TPC-B workload on it, cuts the power in the middle of a device operation, opens the image again, verifies
    /// that every acknowledged transaction is there and that the four sums of TPC-B agree, and finishes the run. Then
    /// it prints the work of the two engines on the flash, side by side.
    Quickstart(QuickstartArgs),
    /// Create an empty database.
    Create(CreateArgs),
    /// Store VALUE under KEY, as one durable transaction.
    ///
    /// Indexes of the table do not follow: the command warns of them.
    Put(PutArgs),
    /// Print the value under KEY.
    Get(GetArgs),
    /// Delete KEY, as one durable transaction.
    ///
    /// Indexes of the table do not follow: the command warns of them.
    Del(KeyArgs),
    /// Print the rows of a table in key order, forwards or backwards.
    Scan(ScanArgs),
    /// Print the names of all tables.
    ///
    /// Bytes outside printable ASCII are printed as \xNN; with --json names are unchanged.
    Tables(ReadArgs),
    /// Give a table another name, and its indexes with it.
    ///
    /// The indexes of `users` are the tables whose names begin with `users@`; the names of renamed indexes are printed.
    Rename(RenameArgs),
    /// Drop a table with all its rows, and its indexes with it.
    ///
    /// The indexes of `users` are the tables whose names begin with `users@`; the names of dropped indexes are printed.
    ///
    /// Its pages are free when the command ends. After an interruption the table is unchanged, or it is gone; later
    /// commands that write free the rest of its pages.
    Drop(TableArgs),
    /// Keep the database as it is now under a name, list the kept snapshots, drop one.
    ///
    /// A snapshot shares its pages with the database: later changes take room of their own until the snapshot is
    /// dropped. `get`, `scan`, `tables`, `export` and `backup` read one with --snapshot NAME.
    #[command(subcommand)]
    Snapshot(RawSnapshot),
    /// Write everything to one file, as of one moment.
    ///
    /// The file holds rows, not pages: it can be restored on another kind of device, with pages of another size, as
    /// long as the longest key and the longest value are within its limits (`stats` prints them). `restore` refuses
    /// it when a part of it is missing or damaged. The file must not exist; it appears when it is complete.
    Backup(BackupArgs),
    /// Create a database from a backup.
    ///
    /// The backup is verified before anything is created, unless it comes by standard input. The database gets its
    /// name only when it is complete, and never a name in use; on raw NAND and block devices, a failed restore leaves
    /// a part of it.
    Restore(RestoreArgs),
    /// Save the readable rows of a damaged database into a new one.
    ///
    /// The damaged one is not changed. If it opens, its rows are copied, and for an unreadable page an older version
    /// is looked for. If it does not open, every page of the device is read: rows come from the newest pages that are
    /// whole, with the changes that the log still has. Ranges of keys whose rows are missing, or may be old or
    /// deleted since, are printed by table; the exit code is 5 then. A table whose name is lost is called `table-7`.
    Salvage(SalvageArgs),
    /// Write all rows as JSON Lines, as of one moment.
    ///
    /// One object a line, `{"table":"users","key":"YWRh","value":"Y291bnRlc3M="}`: the table's name as text, key and
    /// value in base64. Tables without rows leave no line. A FILE must not exist; it appears when it is complete.
    Export(ExportArgs),
    /// Store the rows of JSON Lines, as `export` writes them.
    ///
    /// An existing key gets the new value; missing tables are created. Lines are stored in transactions of --batch
    /// rows (fewer when they are large), each durable. A line that is no row ends the import with exit code 20: the
    /// lines before it are stored, and the message names the line to go on from. An interrupted import can simply be
    /// run again.
    ///
    /// Rows of indexes (`users@city`, where there is a table `users`) are left out: the program that opens the table
    /// makes missing indexes. Existing indexes do not follow, and the command warns of them.
    Import(ImportArgs),
    /// Print tables, memory, log, and programs by cause.
    Stats(DatabaseArgs),
    /// Check the whole structure: mapping, trees, keys, values. Writes nothing.
    Check(DatabaseArgs),
    /// Merge every pending change into its leaf, and write a checkpoint.
    Merge(DatabaseArgs),
    /// Write a plain file anew, every table in order and dense, in place of the old one.
    ///
    /// The new file is made beside the old one, as PATH.compacting-INODE, and takes its name when it is complete and
    /// durable: at every moment, PATH is the old file or the new one. There must be room for both. Chips, their
    /// images and block devices are copied with `backup` and `restore` instead.
    Compact(CompactArgs),
    /// Draw the chip: state, live pages and erase count of each block.
    Wear(WearArgs),
    /// Describe a chip and, on blocks that may be used up, find out its abilities.
    ///
    /// Without --scratch the device is only read. On each scratch block, whose content is lost, it measures the time
    /// of every operation, and finds out how often a page can be programmed before it reads wrong, whether spare
    /// bytes lie outside the ECC, and the orders in which pages can be programmed. It does not find out the harm of a
    /// power cut.
    Probe(ProbeArgs),
    /// Run a workload and count every operation on the device.
    Bench(BenchArgs),
    /// Cut the power at every device operation, in every way it can end, and verify each restart.
    ///
    /// Runs a short random workload once for each (operation, ending) pair, opens the device again and compares its
    /// contents with a model: every acknowledged commit must be there, and besides these at most the commits in
    /// flight. Depth 2 also cuts each recovery at each of its operations. A failure prints the one line that replays
    /// it.
    Crash(CrashArgs),
    /// Serve a page on this machine alone: two runs side by side, to watch and to compare.
    ///
    /// Prints the address of the page and serves it until it is interrupted. You choose benchmark, scale, device,
    /// preset and scheme of in-place appends there; each run is a `bench` on the simulated chip. The page needs no
    /// network.
    Demo(DemoArgs),
    /// Experiments: reproduce the figures of a paper.
    #[command(subcommand)]
    Lab(RawLab),
    /// List the device profiles, with the abilities of each device.
    Profiles(ProfilesArgs),
    /// List the presets, or print one with all its options.
    Presets(PresetsArgs),
    /// Print the completions of a shell, to be sourced or installed.
    Completions(CompletionsArgs),
    /// Print the man page, or write one for each command.
    Man(ManArgs),
    /// List the exit codes and their meanings.
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

/// Owner of a chip's ECC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RawEcc {
    /// The chip, its controller or its driver.
    Device,
    /// Flagstone, on a chip that is reached byte by byte: allows partial programs under any ECC of the driver.
    Own,
}

/// Options of the engine: a preset, and changes to it.
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

/// A database to read from, as it is or was.
#[derive(Args, Debug)]
pub(crate) struct ReadArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// Read the snapshot that is kept under this name (see `flagstone snapshot`).
    #[arg(long, value_name = "NAME")]
    pub(crate) snapshot: Option<String>,
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

#[cfg(test)]
mod tests;
