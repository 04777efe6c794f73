//! Arguments of the commands on rows.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::{DatabaseArgs, ReadArgs};

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
    /// Table; created when it is not there, unless its name has an `@`, as the name of an index does.
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
    /// Print only the bytes of the value; not with --json.
    #[arg(long)]
    pub(crate) raw: bool,
    /// Read the snapshot that is kept under this name (see `flagstone snapshot`).
    #[arg(long, value_name = "NAME")]
    pub(crate) snapshot: Option<String>,
}

/// Arguments of `del`, shared by `get`.
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

/// Arguments of `drop`, shared by `rename`.
#[derive(Args, Debug)]
pub(crate) struct TableArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// Table.
    #[arg(value_name = "TABLE")]
    pub(crate) table: String,
}

/// Arguments of `rename`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  flagstone rename shop.db users people")]
pub(crate) struct RenameArgs {
    #[command(flatten)]
    pub(crate) at: TableArgs,
    /// New name; no table has it, and it has no `@`.
    #[arg(value_name = "NAME")]
    pub(crate) to: String,
}

/// Arguments of `scan`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flagstone scan shop.db users --from a --to b      keys from `a` up to `b`, without `b`
  flagstone scan shop.db users --reverse --limit 1  the last row
  flagstone scan shop.db users --json

A row is its key, a tab and its value, both with bytes outside printable ASCII as \\xNN. Where a failure ends
the rows early, their JSON object has `\"complete\":false`.")]
pub(crate) struct ScanArgs {
    #[command(flatten)]
    pub(crate) database: ReadArgs,
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
