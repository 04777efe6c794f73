//! Refusals of command lines of the right shape.
//!
//! Owns their texts. Never reads an argument.

use std::path::PathBuf;

use flagstone::OptionsError;
use flagstone_nand::{OpenDeviceError, ProfileError, suggestion};
use thiserror::Error;

use crate::escape::BadEscape;
use crate::overrides::BadOption;
use crate::size::{BadQuantity, format_size};

/// Why a command line of the right shape is refused.
#[derive(Debug, Error)]
pub(crate) enum UsageError {
    /// A key or a value is no notation of bytes.
    #[error(transparent)]
    Escape(#[from] BadEscape),
    /// The bytes of a name are no text.
    #[error("`{0}` is no name: its bytes are not UTF-8")]
    Name(String),
    /// A size or a duration cannot be read.
    #[error(transparent)]
    Quantity(#[from] BadQuantity),
    /// An option is unknown, or cannot have the value.
    #[error(transparent)]
    Option(#[from] BadOption),
    /// A preset is unknown, or an option out of its range.
    #[error(transparent)]
    Preset(#[from] OptionsError),
    /// The preset is an engine of the lab, which keeps no databases.
    #[error("preset `{0}` is an engine to compare with, for `bench`, `crash` and `lab` alone")]
    Opponent(String),
    /// No profile has this name, and there is no such file.
    #[error("{}", no_profile(.0))]
    ProfileName(ProfileError),
    /// The profile file is wrong.
    #[error("profile {path}: {source}")]
    ProfileFile {
        /// File given.
        path: PathBuf,
        /// Fault in it.
        source: ProfileError,
    },
    /// The profile file cannot be read.
    #[error("profile {path}: {source}")]
    ProfileRead {
        /// File given.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// A file that was named cannot be looked at.
    #[error("{path}: {source}")]
    Device {
        /// File given.
        path: PathBuf,
        /// Error of the system.
        source: OpenDeviceError,
    },
    /// ECC of our own does not fit the chip.
    #[error("--ecc own: {0}")]
    Ecc(ProfileError),
    /// The limit does not fit the profile.
    #[error("--limit: {}", of_size(.0))]
    Limit(ProfileError),
    /// The capacity does not fit the profile.
    #[error("--capacity: {}", of_size(.0))]
    Capacity(ProfileError),
    /// The capacity is less than a block of each die.
    #[error(
        "--capacity: the device has {die_count} dies, each with a block at least: {} is the least",
        format_size(*size_min)
    )]
    FewBlocks {
        /// Dies of the profile.
        die_count: u32,
        /// Bytes of a block on each.
        size_min: u64,
    },
    /// An option that a database keeps from its creation.
    #[error("option `{0}` is decided when a database is created, and stays; leave it out")]
    Fixed(&'static str),
    /// A value outside its range or list.
    #[error("{option} cannot be `{value}`; it must be {must}")]
    Value {
        /// Argument concerned.
        option: &'static str,
        /// Text given.
        value: String,
        /// Allowed values.
        must: &'static str,
    },
    /// Two arguments that do not go together.
    #[error("{0}")]
    Conflict(&'static str),
}

/// Why a device cannot have a size: its profile alone has no fault.
fn of_size(error: &ProfileError) -> String {
    match error {
        ProfileError::Inconsistent(relation) => relation.to_string(),
        error => error.to_string(),
    }
}

/// Says that neither a profile nor a file has the name.
fn no_profile(error: &ProfileError) -> String {
    match error {
        ProfileError::UnknownName { name, nearest } => {
            let suggestion = suggestion(nearest.as_deref());
            format!("no profile and no file is named `{name}`{suggestion}")
        }
        error => error.to_string(),
    }
}
