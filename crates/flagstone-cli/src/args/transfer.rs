//! Arguments of the commands that move rows between databases and files.

use std::path::PathBuf;

use clap::Args;

use super::create::NewArgs;
use super::{DatabaseArgs, ReadArgs};

/// Arguments of `export`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone export shop.db > shop.jsonl
  flagstone export shop.db shop.jsonl --table users --table orders
  flagstone export old.db | flagstone import new.db -")]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) database: ReadArgs,
    /// File to write, which must not exist; `-` is standard output.
    #[arg(value_name = "FILE", default_value = "-")]
    pub(crate) file: PathBuf,
    /// Export this table alone; may be repeated [default: all tables].
    #[arg(long = "table", value_name = "TABLE")]
    pub(crate) tables: Vec<String>,
    /// Go on past damage: keys of unreadable rows are printed, and the command ends with exit code 5.
    #[arg(long)]
    pub(crate) skip_damaged: bool,
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
    /// Begin with this line; earlier lines are not looked at.
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
    pub(crate) database: ReadArgs,
    /// File to write, which must not exist; `-` is standard output.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Go on past damage: keys of unreadable rows are printed, and the command ends with exit code 5.
    #[arg(long)]
    pub(crate) skip_damaged: bool,
}

/// Arguments of `salvage`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone salvage shop.db saved.db
  flagstone salvage chip.nand saved.db --profile slc-2k     where the profile beside the image is gone
  flagstone salvage shop.db saved.db --json > saved.json    what is missing, and what may be old")]
pub(crate) struct SalvageArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// Database to create in a file, which must not exist.
    #[arg(value_name = "OUT")]
    pub(crate) to: PathBuf,
}

/// Arguments of `restore`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone restore shop.db shop.backup --capacity 1GiB
  flagstone restore chip.nand shop.backup --profile slc-2k    on another kind of device
  flagstone restore --verify shop.backup                      reads it and says what it holds

Sizes and devices are those of `create`.")]
pub(crate) struct RestoreArgs {
    #[command(flatten)]
    pub(crate) new: NewArgs,
    /// Backup to read; `-` is standard input. With --verify, PATH is the backup.
    #[arg(value_name = "FILE", required_unless_present = "verify", conflicts_with = "verify")]
    pub(crate) file: Option<PathBuf>,
    /// Create nothing: read the backup named as PATH to its end, and print a summary of its content.
    #[arg(long)]
    pub(crate) verify: bool,
}
