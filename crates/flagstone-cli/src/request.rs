//! Validated arguments: the request to a command, with every value understood.
//!
//! Owns the way from [`crate::args`] to typed values: sizes, bytes, profiles, options. Opens no
//! database; the only files read here are profiles. A [`UsageError`] means that nothing happened.

use std::ffi::OsString;
use std::fs;
use std::ops::Bound;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use flagstone::{Durability, FileSize, Options, OptionsError};
use flagstone_nand::{
    CellMode, EccOwner, Inconsistency, OpenDeviceError, Profile, ProfileError, SegmentFile,
    kind_of, suggestion,
};
use thiserror::Error;

use crate::args::{
    BackupArgs, CompactArgs, CreateArgs, DatabaseArgs, EngineArgs, ExportArgs, GetArgs, ImportArgs,
    KeyArgs, NewArgs, PutArgs, RawDevice, RawEcc, ReadArgs, RenameArgs, RestoreArgs, SalvageArgs,
    ScanArgs, SnapshotArgs, TableArgs, WearArgs,
};
use crate::escape::{BadEscape, unescape};
use crate::overrides::{self, BadOption, Scope};
use crate::size::{BadQuantity, format_size, parse_size};

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

/// A database that exists, and how to open it.
#[derive(Debug)]
pub(crate) struct Target {
    /// File of the database.
    pub(crate) path: PathBuf,
    /// Device that it must be, where one was named.
    pub(crate) profile: Option<Profile>,
    /// Options to open it with.
    pub(crate) options: Options,
    /// Snapshot that is read in its place.
    pub(crate) snapshot: Option<String>,
}

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

/// A database to write anew.
#[derive(Debug)]
pub(crate) struct Compact {
    /// Database.
    pub(crate) target: Target,
    /// Size of the new file; as before, if none.
    pub(crate) size: Option<FileSize>,
}

/// One key of a table.
#[derive(Debug)]
pub(crate) struct KeyAt {
    /// Database.
    pub(crate) target: Target,
    /// Table.
    pub(crate) table: String,
    /// Key.
    pub(crate) key: Vec<u8>,
}

/// A table of a database.
#[derive(Debug)]
pub(crate) struct TableAt {
    /// Database.
    pub(crate) target: Target,
    /// Table.
    pub(crate) table: String,
}

/// A snapshot of a database.
#[derive(Debug)]
pub(crate) struct SnapshotAt {
    /// Database.
    pub(crate) target: Target,
    /// Name of the snapshot.
    pub(crate) name: String,
}

/// A table that gets another name.
#[derive(Debug)]
pub(crate) struct Rename {
    /// The table.
    pub(crate) at: TableAt,
    /// Its new name.
    pub(crate) to: String,
}

/// One row to store.
#[derive(Debug)]
pub(crate) struct RowAt {
    /// Where.
    pub(crate) at: KeyAt,
    /// Value.
    pub(crate) value: Value,
}

/// Where a value comes from.
#[derive(Debug)]
pub(crate) enum Value {
    /// The command line.
    Bytes(Vec<u8>),
    /// A file; `-` is standard input.
    File(PathBuf),
}

/// One value to print.
#[derive(Debug)]
pub(crate) struct ValueAt {
    /// Where.
    pub(crate) at: KeyAt,
    /// How it is printed.
    pub(crate) notation: Notation,
}

/// How bytes are printed as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notation {
    /// Printable ASCII, the rest as `\xNN`, and an end of line.
    Escaped,
    /// As they are.
    Raw,
}

/// Part of a table, in one direction.
#[derive(Debug)]
pub(crate) struct Scan {
    /// Database.
    pub(crate) target: Target,
    /// Table.
    pub(crate) table: String,
    /// First key.
    pub(crate) from: Bound<Vec<u8>>,
    /// End of the keys.
    pub(crate) to: Bound<Vec<u8>>,
    /// Most rows to print.
    pub(crate) limit: usize,
    /// Direction.
    pub(crate) direction: Direction,
}

/// Order of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the first key on.
    Forward,
    /// From the last key back.
    Backward,
}

/// A backup to write.
#[derive(Debug)]
pub(crate) struct Backup {
    /// Database.
    pub(crate) target: Target,
    /// File to write; `-` is standard output.
    pub(crate) file: PathBuf,
    /// Answer to unreadable rows.
    pub(crate) damage: Damage,
}

/// Answer of a command to unreadable rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// The first one ends it.
    Ends,
    /// It reports them and goes on.
    IsSkipped,
}

impl Damage {
    const fn of(skips: bool) -> Self {
        if skips { Self::IsSkipped } else { Self::Ends }
    }
}

/// A damaged database to be saved.
#[derive(Debug)]
pub(crate) struct Salvage {
    /// Damaged database.
    pub(crate) target: Target,
    /// File to create.
    pub(crate) to: PathBuf,
}

/// A backup to read.
#[derive(Debug)]
pub(crate) struct Restore {
    /// File to read; `-` is standard input.
    pub(crate) file: PathBuf,
    /// Database to create from it; none when it is only verified.
    pub(crate) creation: Option<Creation>,
}

/// Blocks to draw.
#[derive(Debug)]
pub(crate) struct Wear {
    /// Database.
    pub(crate) target: Target,
    /// File for a picture, `-` for standard output; none draws text.
    pub(crate) svg: Option<PathBuf>,
}

/// Rows to write as lines.
#[derive(Debug)]
pub(crate) struct Export {
    /// Database.
    pub(crate) target: Target,
    /// File to write; `-` is standard output.
    pub(crate) file: PathBuf,
    /// Tables; none named means all.
    pub(crate) tables: Vec<String>,
    /// Answer to unreadable rows.
    pub(crate) damage: Damage,
}

/// Lines to store as rows.
#[derive(Debug)]
pub(crate) struct Import {
    /// Database.
    pub(crate) target: Target,
    /// File to read; `-` is standard input.
    pub(crate) file: PathBuf,
    /// Rows of a transaction.
    pub(crate) batch: u64,
    /// Grouping of rows into transactions.
    pub(crate) atomicity: Atomicity,
    /// First line that counts; the first of all is 1.
    pub(crate) first_line: u64,
}

/// How the rows of an import are grouped into transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomicity {
    /// A transaction after the other.
    Batches,
    /// All of them in one.
    Whole,
}

impl TryFrom<&EngineArgs> for Options {
    type Error = UsageError;

    fn try_from(args: &EngineArgs) -> Result<Self, UsageError> {
        engine_options(args.preset.as_deref(), args.memory.as_deref(), &args.options)
    }
}

/// Options of `preset`, with `memory` and `changes` on top.
pub(crate) fn engine_options(
    preset: Option<&str>,
    memory: Option<&str>,
    changes: &[String],
) -> Result<Options, UsageError> {
    let options = preset.map_or_else(
        || Ok(Options::default()),
        |name| {
            Options::preset(name).map_err(|error| match flagstone_lab::preset::options(name) {
                Ok(_) => UsageError::Opponent(name.to_owned()),
                Err(_) => error.into(),
            })
        },
    )?;
    changed(options, memory, changes, Scope::User)
}

/// `options` with `memory` and `changes` on top.
pub(crate) fn changed(
    mut options: Options,
    memory: Option<&str>,
    changes: &[String],
    scope: Scope,
) -> Result<Options, UsageError> {
    if let Some(memory) = memory {
        options.memory = size("--memory", memory)?;
    }
    Ok(overrides::apply(&options, changes, scope)?)
}

/// Bytes that `text` names, for the argument `option`.
pub(crate) fn size(option: &'static str, text: &str) -> Result<usize, UsageError> {
    let must = "a size that this machine can address";
    let too_large = |_| UsageError::Value { option, value: text.to_owned(), must };
    usize::try_from(parse_size(text)?).map_err(too_large)
}

/// The profile that `name` names: a shipped one, or a TOML file.
pub(crate) fn profile(name: &str) -> Result<Profile, UsageError> {
    let error = match Profile::named(name) {
        Ok(profile) => return Ok(profile),
        Err(error) => error,
    };
    let path = Path::new(name);
    let is_file = path.extension().is_some_and(|end| end == "toml")
        || kind_of(path).map_err(not_seen(path))?.is_some();
    if !is_file {
        return Err(UsageError::ProfileName(error));
    }
    let text = fs::read_to_string(path)
        .map_err(|source| UsageError::ProfileRead { path: path.into(), source })?;
    Profile::from_toml(&text)
        .map_err(|source| UsageError::ProfileFile { path: path.into(), source })
}

fn not_seen(path: &Path) -> impl FnOnce(OpenDeviceError) -> UsageError {
    |source| UsageError::Device { path: path.into(), source }
}

/// Options that a database keeps from its creation.
const FIXED: [&str; 3] = ["parts", "wear_levelling", "log_pages"];

/// Options that it keeps even when it is written anew with another size.
const FIXED_SHAPE: [&str; 2] = ["parts", "wear_levelling"];

impl TryFrom<DatabaseArgs> for Target {
    type Error = UsageError;

    fn try_from(args: DatabaseArgs) -> Result<Self, UsageError> {
        Self::new(args, &FIXED)
    }
}

impl Target {
    /// A database that exists, of which the options `fixed` cannot be changed.
    fn new(args: DatabaseArgs, fixed: &[&'static str]) -> Result<Self, UsageError> {
        let names = || args.engine.options.iter().filter_map(|change| overrides::name_of(change));
        if let Some(name) = fixed.iter().find(|fixed| names().any(|name| name == **fixed)) {
            return Err(UsageError::Fixed(name));
        }
        Ok(Self {
            profile: args.profile.as_deref().map(profile).transpose()?,
            options: Options::try_from(&args.engine)?,
            path: args.path,
            snapshot: None,
        })
    }
}

impl TryFrom<ReadArgs> for Target {
    type Error = UsageError;

    fn try_from(args: ReadArgs) -> Result<Self, UsageError> {
        Ok(Self { snapshot: args.snapshot, ..args.database.try_into()? })
    }
}

impl TryFrom<SnapshotArgs> for SnapshotAt {
    type Error = UsageError;

    fn try_from(args: SnapshotArgs) -> Result<Self, UsageError> {
        Ok(Self { target: args.database.try_into()?, name: args.name })
    }
}

/// Name of the profile that describes plain files.
pub(crate) const SEGMENT_PROFILE: &str = "segment-file";

/// Name of the profile that an image has when none is named.
pub(crate) const CHIP_PROFILE: &str = "slc-2k";

/// Profile of a drive.
pub(crate) const DRIVE_PROFILE: &str = "otf-ssd";

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
fn limit_size(text: &str) -> Result<u64, UsageError> {
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

impl TryFrom<CompactArgs> for Compact {
    type Error = UsageError;

    fn try_from(args: CompactArgs) -> Result<Self, UsageError> {
        let capacity = args.capacity.as_deref().map(parse_size).transpose()?;
        let limit = args.limit.as_deref().map(limit_size).transpose()?;
        let size = capacity.map(FileSize::Fixed);
        let size = size.or(limit.map(|limit| FileSize::Growing { limit }));
        let fixed: &[_] = if size.is_some() { &FIXED_SHAPE } else { &FIXED };
        Ok(Self { target: Target::new(args.database, fixed)?, size })
    }
}

/// A name as names are printed.
fn name(text: &str) -> Result<String, UsageError> {
    String::from_utf8(unescape(text)?).map_err(|_| UsageError::Name(text.to_owned()))
}

impl TryFrom<KeyArgs> for KeyAt {
    type Error = UsageError;

    fn try_from(args: KeyArgs) -> Result<Self, UsageError> {
        let key = unescape(args.key.as_encoded_bytes())?;
        Ok(Self { target: args.database.try_into()?, table: name(&args.table)?, key })
    }
}

impl TryFrom<TableArgs> for TableAt {
    type Error = UsageError;

    fn try_from(args: TableArgs) -> Result<Self, UsageError> {
        Ok(Self { target: args.database.try_into()?, table: name(&args.table)? })
    }
}

impl TryFrom<RenameArgs> for Rename {
    type Error = UsageError;

    fn try_from(args: RenameArgs) -> Result<Self, UsageError> {
        Ok(Self { at: args.at.try_into()?, to: name(&args.to)? })
    }
}

impl TryFrom<GetArgs> for ValueAt {
    type Error = UsageError;

    fn try_from(args: GetArgs) -> Result<Self, UsageError> {
        let notation = if args.raw { Notation::Raw } else { Notation::Escaped };
        let mut at = KeyAt::try_from(args.at)?;
        at.target.snapshot = args.snapshot;
        Ok(Self { at, notation })
    }
}

impl TryFrom<PutArgs> for RowAt {
    type Error = UsageError;

    fn try_from(args: PutArgs) -> Result<Self, UsageError> {
        let value = match (args.file, args.value) {
            (Some(path), _) => Value::File(path),
            (None, text) => Value::Bytes(unescape(text.unwrap_or_default().as_encoded_bytes())?),
        };
        let at = KeyArgs { database: args.database, table: args.table, key: args.key };
        Ok(Self { at: at.try_into()?, value })
    }
}

impl TryFrom<ScanArgs> for Scan {
    type Error = UsageError;

    fn try_from(args: ScanArgs) -> Result<Self, UsageError> {
        let key = |text: Option<OsString>| {
            text.as_ref().map(|text| unescape(text.as_encoded_bytes())).transpose()
        };
        Ok(Self {
            from: key(args.from)?.map_or(Bound::Unbounded, Bound::Included),
            to: key(args.to)?.map_or(Bound::Unbounded, Bound::Excluded),
            limit: args.limit.unwrap_or(usize::MAX),
            direction: if args.reverse { Direction::Backward } else { Direction::Forward },
            target: args.database.try_into()?,
            table: name(&args.table)?,
        })
    }
}

impl TryFrom<BackupArgs> for Backup {
    type Error = UsageError;

    fn try_from(args: BackupArgs) -> Result<Self, UsageError> {
        let damage = Damage::of(args.skip_damaged);
        Ok(Self { target: args.database.try_into()?, file: args.file, damage })
    }
}

impl TryFrom<SalvageArgs> for Salvage {
    type Error = UsageError;

    fn try_from(args: SalvageArgs) -> Result<Self, UsageError> {
        Ok(Self { target: args.database.try_into()?, to: args.to })
    }
}

impl TryFrom<RestoreArgs> for Restore {
    type Error = UsageError;

    fn try_from(args: RestoreArgs) -> Result<Self, UsageError> {
        Ok(match args.file {
            Some(file) => Self { file, creation: Some(args.new.try_into()?) },
            None => Self { file: args.new.path, creation: None },
        })
    }
}

impl TryFrom<WearArgs> for Wear {
    type Error = UsageError;

    fn try_from(args: WearArgs) -> Result<Self, UsageError> {
        Ok(Self { target: args.database.try_into()?, svg: args.svg })
    }
}

impl TryFrom<ExportArgs> for Export {
    type Error = UsageError;

    fn try_from(args: ExportArgs) -> Result<Self, UsageError> {
        let tables = args.tables.iter().map(|table| name(table)).collect::<Result<_, _>>()?;
        let damage = Damage::of(args.skip_damaged);
        Ok(Self { target: args.database.try_into()?, file: args.file, tables, damage })
    }
}

impl TryFrom<ImportArgs> for Import {
    type Error = UsageError;

    fn try_from(args: ImportArgs) -> Result<Self, UsageError> {
        Ok(Self {
            target: args.database.try_into()?,
            file: args.file,
            batch: args.batch,
            atomicity: if args.atomic { Atomicity::Whole } else { Atomicity::Batches },
            first_line: args.from_line,
        })
    }
}

/// Durability that `name` names.
pub(crate) fn durability(name: &str) -> Result<Durability, UsageError> {
    match name {
        "immediate" => Ok(Durability::Immediate),
        "group" => Ok(Durability::Group),
        "deferred" => Ok(Durability::Deferred),
        _ => Err(UsageError::Value {
            option: "--durability",
            value: name.to_owned(),
            must: "immediate, group or deferred",
        }),
    }
}
