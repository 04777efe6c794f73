//! Validated arguments: the request to a command, with every value understood.
//!
//! Owns the way from [`crate::args`] to typed values: sizes, bytes, profiles, options. Opens no
//! database; the only files read here are profiles. A [`UsageError`] means that nothing happened.

mod creation;
mod error;

use std::ffi::OsString;
use std::fs;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use flagstone::{Durability, FileSize, Options};
use flagstone_nand::{OpenDeviceError, Profile, kind_of};

use self::creation::limit_size;
pub(crate) use self::creation::{Creation, NewDevice};
pub(crate) use self::error::UsageError;
use crate::args::{
    BackupArgs, CompactArgs, DatabaseArgs, EngineArgs, ExportArgs, GetArgs, ImportArgs, KeyArgs,
    PutArgs, ReadArgs, RenameArgs, RestoreArgs, SalvageArgs, ScanArgs, SnapshotArgs, TableArgs,
    WearArgs,
};
use crate::escape::unescape;
use crate::overrides::{self, Scope};
use crate::size::parse_size;

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
