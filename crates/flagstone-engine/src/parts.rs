//! Parts of the engine on their own, for engines that are to be compared with it.
//!
//! Owns narrow faces of the lock table, the log's framing and the node formats, so that an opponent
//! runs on the very same code and a comparison is one of protocols alone. Never adds behaviour.
//!
//! Not stable: feature `parts` exists for the lab, and everything here may change in any release.

mod lock;
mod log;
mod node;
mod reads;

pub use lock::{LockAnswer, LockMode, LockOn, Locks};
pub use log::{LogDamage, LogEnd, LogFlush, LogPlace, LogScan, LogShape, LogTail};
pub use node::{
    Cell, Node, Part, empty_leaf, inner, inner_with, key_size_max, leaf, leaf_with, value_size_max,
};

pub use reads::Reads;

use flagstone_nand::Nand;
use flagstone_space::SpaceOptions;

use crate::engine::Table;
use crate::{OpenError, Options, runtime};

/// How a device is divided for a database with these options.
///
/// # Errors
///
/// The device is too small for them, or failed.
pub fn space_options(device: &mut impl Nand, options: &Options) -> Result<SpaceOptions, OpenError> {
    runtime::space_options(device, options)
}

/// Makes checksum and chain of the log's fragments in `pages` fit whatever their bytes are, and says
/// which pages changed: for tests of what stands behind the checksums.
#[cfg(feature = "seeded-bugs")]
pub fn reseal_log(pages: &mut [&mut [u8]], slot_size: usize) -> Vec<usize> {
    crate::log::reseal_all(pages, slot_size)
}

/// A table of another engine, by the number that the engine gave it.
#[must_use]
pub fn table(id: u32) -> Table {
    Table::of(id)
}

/// The number of a table.
#[must_use]
pub fn table_id(table: Table) -> u32 {
    table.id
}
