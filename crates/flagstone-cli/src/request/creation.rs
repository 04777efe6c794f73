//! The device to create a database on, with its kind, its size and its ECC understood.
//!
//! Owns the defaults where an argument is missing, and the arguments that do not go together. Makes no device.

use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;

use flagstone::Options;
use flagstone_nand::{
    CellMode, EccOwner, Inconsistency, Profile, ProfileError, SegmentFile, kind_of,
};

use super::{CHIP_PROFILE, SEGMENT_PROFILE, UsageError, not_seen, profile};
use crate::args::{CreateArgs, NewArgs, RawDevice, RawEcc};
use crate::size::parse_size;

/// Device to create a database on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NewDevice {
    /// Image of a chip, with a side file.
    Image(Profile),
    /// Plain file or block device of a fixed size.
    Segments(Profile),
    /// Plain file that grows to the size of the profile; a block device, which does not, gets the other one.
    Growing(Profile, Option<Box<Profile>>),
    /// Raw NAND of Linux that is there already; its driver describes it when no profile does. The owner of the ECC
    /// counts where that profile or description leaves the ECC to the device.
    Mtd(Option<Profile>, EccOwner),
}

/// A database to create.
#[derive(Debug)]
pub(crate) struct Creation {
    /// File to create, or node of the device.
    pub(crate) path: PathBuf,
    /// Kind of device.
    pub(crate) device: NewDevice,
    /// Gives up a database that the device holds.
    pub(crate) overwrite: bool,
    /// Options of the database.
    pub(crate) options: Options,
}

impl TryFrom<CreateArgs> for Creation {
    type Error = UsageError;

    fn try_from(args: CreateArgs) -> Result<Self, UsageError> {
        args.new.try_into()
    }
}

impl TryFrom<NewArgs> for Creation {
    type Error = UsageError;

    fn try_from(args: NewArgs) -> Result<Self, UsageError> {
        let named = args.profile.as_deref();
        let capacity = args.capacity.as_deref().map(parse_size).transpose();
        let capacity = capacity.map_err(UsageError::from)?;
        let sized = |name: &str, default: Option<u64>| match capacity.or(default) {
            Some(bytes) => with_capacity(profile(name)?, bytes),
            None => profile(name),
        };
        let image = || sized(named.unwrap_or(CHIP_PROFILE), None).map(NewDevice::Image);
        let limit = args.limit.as_deref().map(limit_size).transpose()?;
        let file = || -> Result<NewDevice, UsageError> {
            let fixed = sized(named.unwrap_or(SEGMENT_PROFILE), Some(BLOCK_DEVICE_CAPACITY))?;
            if capacity.is_some() {
                return Ok(NewDevice::Segments(fixed));
            }
            let profile = profile(named.unwrap_or(SEGMENT_PROFILE))?;
            if profile.capabilities.cell_mode != CellMode::File {
                // Refused as the device is made; a chip has a size of its own.
                return Ok(NewDevice::Growing(profile, None));
            }
            let default_limit = FILE_LIMIT.min(SegmentFile::size_max(profile.geometry.page_size));
            let profile = profile.with_capacity(limit.unwrap_or(default_limit));
            let profile = profile.map_err(UsageError::Limit)?;
            Ok(NewDevice::Growing(profile, limit.is_none().then(|| Box::new(fixed))))
        };
        let device = match (args.device, named) {
            (Some(RawDevice::Image), _) => image()?,
            (Some(RawDevice::File), _) | (None, None | Some(SEGMENT_PROFILE)) => file()?,
            (None, Some(_)) => image()?,
            (Some(RawDevice::Mtd), _) if capacity.is_some() => {
                return Err(UsageError::Conflict(MTD_HAS_A_SIZE));
            }
            (Some(RawDevice::Mtd), _) => {
                NewDevice::Mtd(named.map(profile).transpose()?, EccOwner::Device)
            }
            (Some(RawDevice::Sim), _) => return Err(UsageError::Conflict(SIM_LEAVES_NOTHING)),
        };
        if limit.is_some() && !matches!(device, NewDevice::Growing(..)) {
            return Err(UsageError::Conflict(FILES_ALONE_GROW));
        }
        let is_new = match device {
            NewDevice::Mtd(..) => false,
            NewDevice::Segments(_) | NewDevice::Growing(..) => {
                let kind = kind_of(&args.path).map_err(not_seen(&args.path))?;
                !kind.is_some_and(|kind| kind.is_block_device())
            }
            NewDevice::Image(_) => true,
        };
        if args.overwrite && is_new {
            return Err(UsageError::Conflict(FILES_ARE_NEW));
        }
        let device = match args.ecc {
            Some(ecc) => device.with_ecc(ecc.into())?,
            None => device,
        };
        let options = Options::try_from(&args.engine)?;
        Ok(Self { path: args.path, device, overwrite: args.overwrite, options })
    }
}

/// A device like `profile` with room for `bytes`.
fn with_capacity(profile: Profile, bytes: u64) -> Result<Profile, UsageError> {
    let die_count = profile.geometry.die_count;
    let size_min = profile.geometry.block_size() * u64::from(die_count);
    match profile.with_capacity(bytes) {
        Err(ProfileError::Inconsistent(Inconsistency::Dies)) => {
            Err(UsageError::FewBlocks { die_count, size_min })
        }
        sized => sized.map_err(UsageError::Capacity),
    }
}

impl From<RawEcc> for EccOwner {
    fn from(ecc: RawEcc) -> Self {
        match ecc {
            RawEcc::Device => Self::Device,
            RawEcc::Own => Self::Own,
        }
    }
}

impl NewDevice {
    /// The same device with the ECC that was asked for.
    fn with_ecc(self, ecc: EccOwner) -> Result<Self, UsageError> {
        let profile = match &self {
            Self::Image(profile) => Some(profile),
            Self::Mtd(profile, _) => profile.as_ref(),
            Self::Segments(_) | Self::Growing(..) => {
                return Err(UsageError::Conflict(FILES_HAVE_NO_ECC));
            }
        };
        if ecc == EccOwner::Device && profile.is_some_and(|profile| profile.ecc == EccOwner::Own) {
            return Err(UsageError::Conflict(PROFILE_SAYS_OWN));
        }
        let with_own = |profile: Profile| profile.with_own_ecc().map_err(UsageError::Ecc);
        Ok(match (self, ecc) {
            (Self::Image(profile), EccOwner::Own) => Self::Image(with_own(profile)?),
            // The driver gives the strength as well.
            (Self::Mtd(profile, _), EccOwner::Own) => Self::Mtd(profile, EccOwner::Own),
            (device, _) => device,
        })
    }
}

const FILES_HAVE_NO_ECC: &str = "--ecc is for chips: a plain file has none";

const PROFILE_SAYS_OWN: &str =
    "--ecc device needs a profile whose ECC is the device's: this one says `ecc = \"own\"`";

/// Size that a block device is used to when none is given.
const BLOCK_DEVICE_CAPACITY: u64 = 64 << 20;

/// Size up to which a plain file grows when none is given: the same as in `Database::create`.
const FILE_LIMIT: u64 = 256 << 30;

/// Size that `text` names as the limit of a file.
pub(super) fn limit_size(text: &str) -> Result<u64, UsageError> {
    let size = parse_size(text)?;
    let must = "1 TiB at most";
    let too_large = || UsageError::Value { option: "--limit", value: text.to_owned(), must };
    if size <= FILE_LIMIT_MAX { Ok(size) } else { Err(too_large()) }
}

/// Highest limit of a file.
const FILE_LIMIT_MAX: u64 = 1 << 40;

const FILES_ALONE_GROW: &str = "--limit is for plain files: no other device grows; see --capacity";

const MTD_HAS_A_SIZE: &str =
    "--capacity has no meaning with --device mtd; make a partition of the size you want";

const FILES_ARE_NEW: &str =
    "--overwrite is for raw NAND and block devices: a file is never written over; remove it first";

const SIM_LEAVES_NOTHING: &str =
    "--device sim lives in memory and leaves nothing behind; use `bench` for it, or --device image";
