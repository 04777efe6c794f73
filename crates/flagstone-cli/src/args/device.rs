//! Arguments of the commands that look at a chip.

use std::path::PathBuf;

use clap::Args;

use super::{DatabaseArgs, RawEcc};

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
    /// Use scratch blocks up although the chip holds a database, whose content may be lost.
    #[arg(long, requires = "scratch")]
    pub(crate) overwrite: bool,
    /// Owner of the ECC that the experiments use, on raw NAND [default: device].
    #[arg(long, value_name = "WHO")]
    pub(crate) ecc: Option<RawEcc>,
    /// Write a profile for `create --profile` to this file, which must not exist.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}
