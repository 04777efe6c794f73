//! Arguments of the commands that make a database, or make it anew.

use std::path::PathBuf;

use clap::Args;

use super::{DatabaseArgs, EngineArgs, RawDevice, RawEcc};

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

/// A database to make: common arguments of `create` and `restore`.
#[derive(Args, Debug)]
pub(crate) struct NewArgs {
    /// File to create, which must not exist; with `--device mtd`, the node of the device.
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
    /// Kind of device [default: image when --profile names a chip, else file].
    #[arg(long, value_name = "KIND")]
    pub(crate) device: Option<RawDevice>,
    /// Profile of the device: a name (see `flagstone profiles`), or a TOML file. The profile of a drive makes an
    /// image of the bare chips: a database on an SSD, eMMC or SD is a plain file, without --profile.
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: Option<String>,
    /// Owner of the ECC of a chip, in place of the profile's [default: device]. Later openings find it by themselves.
    #[arg(long, value_name = "WHO")]
    pub(crate) ecc: Option<RawEcc>,
    /// Size of the device's data area [default: a plain file grows; else the profile's, or 64 MiB for a block
    /// device].
    #[arg(long, value_name = "SIZE")]
    pub(crate) capacity: Option<String>,
    /// Size up to which a plain file grows, 1 TiB at most [default: 256 GiB].
    #[arg(long, value_name = "SIZE", conflicts_with = "capacity")]
    pub(crate) limit: Option<String>,
    /// Format raw NAND or a block device that holds a database, whose content is lost.
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
    /// Give the file this size, which is then fixed [default: as before].
    #[arg(long, value_name = "SIZE")]
    pub(crate) capacity: Option<String>,
    /// Let the file grow, up to this size [default: as before].
    #[arg(long, value_name = "SIZE", conflicts_with = "capacity")]
    pub(crate) limit: Option<String>,
}
