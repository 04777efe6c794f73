//! Failures of a command: their messages and exit codes.
//!
//! Owns the mapping from the typed errors of every crate below to [`Exit`]; knows no text but its
//! own. Every variant that concerns a file names it.
//!
//! Longer than 600 lines: one table, from each error to its code.
//!
//! Invariant I1: a variant that an error enum gains later falls to the code of its group, never to
//! success.

use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use flagstone::salvage::SalvageError;
use flagstone::{
    BackupError, CompactError, Error as DatabaseError, OpenError, OptionsError, StorageError,
};
use flagstone_engine::{EngineError, OpenError as EngineOpenError};
use flagstone_lab::bench::BenchError;
use flagstone_lab::compare::CompareError;
use flagstone_lab::crash::CrashError;
use flagstone_lab::crossover::CrossoverError;
use flagstone_lab::reproduce::ReproduceError;
use flagstone_nand::{NandError, OpenDeviceError, ProbeError, ProfileError, SideFault, suggestion};
use flagstone_space::MountError;
use serde_json::json;
use thiserror::Error;

use crate::escape::escape;
use crate::exit::Exit;
use crate::lines::BadLine;
use crate::output::{Form, counted};
use crate::overrides::BadOption;
use crate::request::UsageError;
use crate::size::format_size;

/// Why a command failed.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// The command line is wrong.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// A database could not be created or opened.
    #[error("{path}: {source}")]
    Open {
        /// File of the database.
        path: PathBuf,
        /// Why.
        source: OpenError,
    },
    /// An operation on an open database failed.
    #[error("{path}: {source}")]
    Engine {
        /// File of the database.
        path: PathBuf,
        /// Why.
        source: DatabaseError,
    },
    /// Rows are missing from the output, or may be old.
    #[error(
        "{path}: rows of {count} ranges of keys do not read, or may be old: see what was printed"
    )]
    Incomplete {
        /// File of the damaged database.
        path: PathBuf,
        /// Ranges that were reported.
        count: u64,
    },
    /// Nothing could be salvaged.
    #[error("{path}: {source}")]
    Salvage {
        /// File of the damaged database.
        path: PathBuf,
        /// Why.
        source: SalvageError,
    },
    /// The table is not there.
    #[error("{path}: there is no table `{}`{}", shown(table), suggested(nearest.as_deref()))]
    NoTable {
        /// File of the database.
        path: PathBuf,
        /// Table asked for.
        table: String,
        /// Name that was probably meant.
        nearest: Option<String>,
    },
    /// A run that was to be steady was not.
    #[error("the run is not steady: {why}; its figures must not be compared")]
    NotSteady {
        /// The run, and the rule that it broke.
        why: String,
    },
    /// A check found faults, which it has printed.
    #[error("{path}: the check found {}", counted(*count, "fault", "faults"))]
    Unsound {
        /// File of the database.
        path: PathBuf,
        /// How many.
        count: u64,
    },
    /// Crash states broke a promise; they have been printed.
    #[error("a promise was broken in {}", counted(*states, "crash state", "crash states"))]
    Broken {
        /// How many.
        states: u64,
    },
    /// The snapshot is not there.
    #[error("{path}: no snapshot `{}` is kept{}", shown(snapshot), suggested(nearest.as_deref()))]
    NoSnapshot {
        /// File of the database.
        path: PathBuf,
        /// Snapshot asked for.
        snapshot: String,
        /// Name that was probably meant.
        nearest: Option<String>,
    },
    /// The key is not there.
    #[error("{path}: table `{}` has no key `{key}`", shown(table))]
    NoKey {
        /// File of the database.
        path: PathBuf,
        /// Table.
        table: String,
        /// Key, escaped.
        key: String,
    },
    /// The image holds another device than the one named.
    #[error("{path}: the image is of {found}, not of {asked}")]
    Profile {
        /// File of the image.
        path: PathBuf,
        /// Device that the image holds.
        found: String,
        /// Device asked for.
        asked: String,
    },
    /// A file of a fixed size does not fit the file system.
    #[error(
        "{path}: it takes {}, and the file system has {} left: `--capacity` makes it smaller",
        format_size(*size),
        format_size(*free)
    )]
    NoRoom {
        /// File to be made.
        path: PathBuf,
        /// Bytes it takes.
        size: u64,
        /// Bytes there are.
        free: u64,
    },
    /// A chip that is to be formatted or used up holds a database.
    #[error("{path}: it holds a database; `--overwrite` gives it up")]
    Occupied {
        /// Node of the device, or image.
        path: PathBuf,
    },
    /// A plain file is to be probed.
    #[error("{path}: a plain file is no chip: `probe` takes raw NAND, or the image of a chip")]
    NoChip {
        /// The file.
        path: PathBuf,
    },
    /// A device could not be probed.
    #[error("{path}: {source}")]
    Probe {
        /// Node or image.
        path: PathBuf,
        /// Why.
        source: ProbeError,
    },
    /// A file other than the database could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// File.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A file that was to be a value is too long; its length is not measured.
    #[error("{path}: it is longer than the longest value, {size_max} bytes")]
    ValueTooLong {
        /// File; `-` is standard input.
        path: PathBuf,
        /// Bytes of the longest value.
        size_max: usize,
    },
    /// A line of an import could not be stored.
    #[error("{input}, line {line}: {source}; {stored}")]
    Line {
        /// File of the lines; `-` is standard input.
        input: PathBuf,
        /// Number of the line; the first is 1.
        line: u64,
        /// Why.
        source: LineFault,
        /// Lines that are stored, as the end of the sentence.
        stored: String,
    },
    /// A backup could not be written or read.
    #[error("{path}: {source}")]
    Backup {
        /// Backup.
        path: PathBuf,
        /// Why.
        source: BackupError,
    },
    /// A database was not compacted.
    #[error("{path}: {source}")]
    Compact {
        /// File of the database.
        path: PathBuf,
        /// Why.
        source: CompactError,
    },
    /// The port of a server cannot be had.
    #[error("cannot listen on this port: {0}")]
    Listen(io::Error),
    /// No directory for temporary files.
    #[error("no temporary directory: {0}")]
    Temporary(io::Error),
    /// A benchmark gave no result.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// A crash exploration could not begin.
    #[error(transparent)]
    Crash(#[from] CrashError),
    /// A reproduction gave no result.
    #[error(transparent)]
    Reproduce(#[from] ReproduceError),
    /// A count that this machine cannot hold.
    #[error("{0} is too large")]
    TooMany(&'static str),
    /// The device of Linux for raw NAND, on another system.
    #[error("raw NAND is reached through Linux alone; use --device sim, image or file")]
    #[cfg_attr(target_os = "linux", expect(dead_code, reason = "of other systems"))]
    NoMtd,
    /// Standard output.
    #[error("cannot write the output: {0}")]
    Output(io::Error),
    /// The system refuses a common right of processes, or JSON could not be made.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
}

/// Why a line of an import could not be stored.
#[derive(Debug, Error)]
pub(crate) enum LineFault {
    /// It is no row.
    #[error(transparent)]
    Form(#[from] BadLine),
    /// The database refused the row.
    #[error(transparent)]
    Engine(#[from] DatabaseError),
    /// It cannot be read to its end.
    #[error("cannot read it: {0}")]
    Read(io::Error),
}

/// A name in the notation of all commands.
fn shown(name: &str) -> String {
    escape(name.as_bytes())
}

/// The end of a message, with the name that was probably meant.
fn suggested(nearest: Option<&str>) -> String {
    suggestion(nearest.map(shown).as_deref())
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<CrossoverError> for Failure {
    fn from(error: CrossoverError) -> Self {
        match error {
            CrossoverError::Profile(error) => error.into(),
            CrossoverError::Options(error) => error.into(),
            CrossoverError::Open(error) => BenchError::Open(error).into(),
            CrossoverError::Engine(error) => BenchError::Engine(error).into(),
            CrossoverError::Lab(error) => error.into(),
            other => Self::Output(io::Error::other(other.to_string())),
        }
    }
}

impl From<CompareError> for Failure {
    fn from(error: CompareError) -> Self {
        match error {
            CompareError::Profile(error) => error.into(),
            CompareError::Options(error) => error.into(),
            CompareError::Lab(error) => error.into(),
            other => Self::Output(io::Error::other(other.to_string())),
        }
    }
}

impl From<OptionsError> for Failure {
    fn from(error: OptionsError) -> Self {
        UsageError::from(error).into()
    }
}

impl From<ProfileError> for Failure {
    fn from(error: ProfileError) -> Self {
        UsageError::ProfileName(error).into()
    }
}

impl Failure {
    /// Prints the failure on the error stream, and gives the code of the process.
    pub(crate) fn report(&self, form: Form) -> ExitCode {
        if self.is_closed_pipe() {
            return ExitCode::SUCCESS;
        }
        let exit = self.exit();
        report(exit, &self.to_string(), form);
        ExitCode::from(exit.code())
    }

    /// Whether the reader of the output went away: not a failure of this program.
    fn is_closed_pipe(&self) -> bool {
        let error = match self {
            Self::Output(error) => error.kind(),
            Self::Json(error) => return error.io_error_kind() == Some(ErrorKind::BrokenPipe),
            _ => return false,
        };
        error == ErrorKind::BrokenPipe
    }

    /// Exit code of the failure.
    #[must_use]
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Usage(error) => usage_exit(error),
            Self::Open { source, .. } => open_exit(source),
            Self::Engine { source, .. } => database_exit(source),
            Self::Line { source: LineFault::Form(BadLine::TooLong(_)), .. } => Exit::TooLong,
            Self::Line { source: LineFault::Form(_), .. } => Exit::BadInput,
            Self::Line { source: LineFault::Engine(source), .. } => database_exit(source),
            Self::Line { source: LineFault::Read(source), .. } => file_exit(source.kind()),
            Self::Backup { source, .. } => backup_exit(source),
            Self::Compact { source, .. } => compact_exit(source),
            Self::Probe { source: ProbeError::Device(error), .. } => nand_exit(error),
            Self::Probe { .. } => Exit::Usage,
            Self::NoTable { .. } | Self::NoSnapshot { .. } | Self::NoKey { .. } => Exit::Missing,
            Self::Profile { .. } => Exit::ProfileMismatch,
            Self::NotSteady { .. } => Exit::NotSteady,
            Self::Unsound { .. } | Self::Incomplete { .. } => Exit::Damaged,
            Self::Salvage { source, .. } => salvage_exit(source),
            Self::Broken { .. } => Exit::PromiseBroken,
            Self::NoRoom { .. } => Exit::Full,
            Self::NoChip { .. } => Exit::NotADatabase,
            Self::Occupied { .. } => Exit::Exists,
            Self::File { source, .. } => file_exit(source.kind()),
            Self::ValueTooLong { .. } => Exit::TooLong,
            Self::Bench(error) => bench_exit(error),
            Self::Crash(error) => crash_exit(error),
            Self::Reproduce(error) => reproduce_exit(error),
            Self::TooMany(_) => Exit::Usage,
            Self::NoMtd => Exit::NotBuilt,
            Self::Listen(_) | Self::Temporary(_) | Self::Output(_) | Self::Json(_) => Exit::Failed,
        }
    }
}

/// Prints a message on the error stream, as text or as one line of JSON.
pub(crate) fn report(exit: Exit, message: &str, form: Form) {
    let mut stream = io::stderr().lock();
    // No message is possible once the error stream itself is gone.
    let _ = match form {
        Form::Text => writeln!(stream, "flagstone: {message}"),
        Form::Json => {
            let error = json!({ "code": exit.code(), "name": exit.name(), "message": message });
            writeln!(stream, "{}", json!({ "error": error }))
        }
    };
}

/// Prints a warning on the error stream, in the same forms.
pub(crate) fn warn(message: &str, form: Form) {
    let mut stream = io::stderr().lock();
    let _ = match form {
        Form::Text => writeln!(stream, "flagstone: warning: {message}"),
        Form::Json => writeln!(stream, "{}", json!({ "warning": { "message": message } })),
    };
}

fn usage_exit(error: &UsageError) -> Exit {
    match error {
        UsageError::Preset(source) => options_exit(source),
        UsageError::ProfileRead { source, .. } => file_exit(source.kind()),
        UsageError::Device { source, .. } => device_exit(source),
        UsageError::Option(BadOption::Serde(_)) => Exit::Failed,
        _ => Exit::Usage,
    }
}

const fn options_exit(error: &OptionsError) -> Exit {
    match error {
        OptionsError::Capability { .. } | OptionsError::TooFewBlocks { .. } => Exit::Capability,
        _ => Exit::Usage,
    }
}

fn open_exit(error: &OpenError) -> Exit {
    match error {
        OpenError::Options(error) => options_exit(error),
        OpenError::Unsound { .. } => Exit::Damaged,
        OpenError::NeedsMemory { .. } => Exit::ReadOnly,
        OpenError::Device(error) => device_exit(error),
        OpenError::Mount(error) => mount_exit(error),
        OpenError::Storage(error) => space_exit(error),
        OpenError::Corrupt(_) => Exit::Damaged,
        OpenError::Restart(error) => database_exit(error),
        _ => Exit::Failed,
    }
}

/// The code of an opening in the lab, which uses the engine itself.
fn engine_open_exit(error: &EngineOpenError) -> Exit {
    match error {
        EngineOpenError::Options(error) => options_exit(error),
        EngineOpenError::Unsound { .. } | EngineOpenError::Corrupt(_) => Exit::Damaged,
        EngineOpenError::NeedsMemory { .. } => Exit::ReadOnly,
        EngineOpenError::Device(error) => device_exit(error),
        EngineOpenError::Mount(error) => mount_exit(error),
        EngineOpenError::Space(error) => space_exit(error),
        EngineOpenError::Engine(error) => engine_exit(error),
        _ => Exit::Failed,
    }
}

/// The code of an error of the engine itself.
fn engine_exit(error: &EngineError) -> Exit {
    database_exit(&error.clone().into())
}

const fn mount_exit(error: &MountError) -> Exit {
    match error {
        MountError::NotFormatted => Exit::NotADatabase,
        MountError::Version { .. } => Exit::Version,
        MountError::GeometryMismatch => Exit::ProfileMismatch,
        MountError::Device(error) => nand_exit(error),
        _ => Exit::Damaged,
    }
}

const fn space_exit(error: &StorageError) -> Exit {
    match error {
        StorageError::Full | StorageError::LogFull | StorageError::NoRoom => Exit::Full,
        StorageError::WornOut | StorageError::NumbersUsedUp => Exit::WornOut,
        StorageError::ReadOnly => Exit::ReadOnly,
        StorageError::Poisoned => Exit::Poisoned,
        StorageError::Options(_) => Exit::Capability,
        StorageError::Device(error) => nand_exit(error),
        StorageError::Corrupt { .. }
        | StorageError::Lost(_)
        | StorageError::Unmapped(_)
        | StorageError::LogPageGone(_) => Exit::Damaged,
        _ => Exit::Failed,
    }
}

const fn nand_exit(error: &NandError) -> Exit {
    match error {
        NandError::Uncorrectable { .. } => Exit::Damaged,
        NandError::Rule { .. } => Exit::Failed,
        NandError::NoSpace => Exit::Full,
        NandError::WriteProtected => Exit::ReadOnly,
        _ => Exit::Poisoned,
    }
}

fn database_exit(error: &DatabaseError) -> Exit {
    match error {
        DatabaseError::KeyTooLong { .. }
        | DatabaseError::NameTooLong { .. }
        | DatabaseError::ValueTooLong { .. } => Exit::TooLong,
        DatabaseError::IndexName => Exit::Usage,
        DatabaseError::NoTable | DatabaseError::NoSnapshot => Exit::Missing,
        DatabaseError::TableExists | DatabaseError::SnapshotExists => Exit::Exists,
        DatabaseError::Full
        | DatabaseError::TooLarge
        | DatabaseError::TooManySnapshots
        | DatabaseError::TooManyTables
        | DatabaseError::SnapshotTooOld => Exit::Full,
        DatabaseError::WornOut => Exit::WornOut,
        DatabaseError::ReadOnly => Exit::ReadOnly,
        DatabaseError::Poisoned | DatabaseError::OutcomeUnknown => Exit::Poisoned,
        DatabaseError::Corrupt { .. } => Exit::Damaged,
        DatabaseError::Device(error) => nand_exit(error),
        DatabaseError::Storage(error) => space_exit(error),
        DatabaseError::Open(error) => open_exit(error),
        DatabaseError::Backup(error) => backup_exit(error),
        DatabaseError::Compact(error) => compact_exit(error),
        DatabaseError::Salvage(error) => salvage_exit(error),
        DatabaseError::Load(error) => database_exit(&error.source),
        _ => Exit::Failed,
    }
}

fn salvage_exit(error: &SalvageError) -> Exit {
    match error {
        SalvageError::Source(error) | SalvageError::Target(error) => open_exit(error),
        SalvageError::Database(error) => database_exit(error),
        SalvageError::NotEmpty => Exit::Exists,
        _ => Exit::NotADatabase,
    }
}

fn backup_exit(error: &BackupError) -> Exit {
    match error {
        BackupError::Io(error) => file_exit(error.kind()),
        BackupError::Database(error) => database_exit(error),
        BackupError::NotABackup | BackupError::Truncated { .. } | BackupError::Damaged { .. } => {
            Exit::BadInput
        }
        BackupError::Version { .. } => Exit::Version,
        BackupError::NotEmpty => Exit::Exists,
        _ => Exit::Failed,
    }
}

fn compact_exit(error: &CompactError) -> Exit {
    match error {
        CompactError::NotAFile | CompactError::Snapshots { .. } => Exit::Usage,
        CompactError::Linked { .. } => Exit::Linked,
        CompactError::Open(error) | CompactError::New { source: error, .. } => open_exit(error),
        CompactError::Database(error) => database_exit(error),
        CompactError::Io { source, .. } | CompactError::Unsynced { source, .. } => {
            file_exit(source.kind())
        }
        _ => Exit::Failed,
    }
}

fn bench_exit(error: &BenchError) -> Exit {
    match error {
        BenchError::Config { .. } => Exit::Usage,
        BenchError::Open(error) => engine_open_exit(error),
        BenchError::Engine(error) => engine_exit(error),
        BenchError::Device { source, .. } => device_exit(source),
        BenchError::Profile(_) => Exit::Usage,
        BenchError::Sums(_)
        | BenchError::Conditions(_)
        | BenchError::Index(_)
        | BenchError::Tatp(_)
        | BenchError::Linkbench(_)
        | BenchError::Ycsb(_) => Exit::PromiseBroken,
        _ => Exit::Failed,
    }
}

fn reproduce_exit(error: &ReproduceError) -> Exit {
    match error {
        ReproduceError::UnknownPaper { .. } | ReproduceError::UnknownFigure { .. } => Exit::Usage,
        ReproduceError::Run { source, .. } => bench_exit(source),
        ReproduceError::File { source, .. } => file_exit(source.kind()),
        _ => Exit::Failed,
    }
}

const fn file_exit(kind: ErrorKind) -> Exit {
    match kind {
        ErrorKind::NotFound => Exit::NoFile,
        ErrorKind::AlreadyExists => Exit::Exists,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Exit::ReadOnly,
        ErrorKind::StorageFull => Exit::Full,
        _ => Exit::Failed,
    }
}

fn crash_exit(error: &CrashError) -> Exit {
    match error {
        CrashError::Options(error) => options_exit(error),
        CrashError::Profile(_) | CrashError::Cut(_) => Exit::Usage,
        CrashError::Device(error) => device_exit(error),
        _ => Exit::Failed,
    }
}

fn device_exit(error: &OpenDeviceError) -> Exit {
    match error {
        OpenDeviceError::NotFlagstone | OpenDeviceError::NotAFile | OpenDeviceError::NotMtd => {
            Exit::NotADatabase
        }
        OpenDeviceError::Version { .. } => Exit::Version,
        OpenDeviceError::Size { .. } | OpenDeviceError::Damaged => Exit::Damaged,
        OpenDeviceError::Side { fault, .. } => match **fault {
            SideFault::Io { errno } => file_exit(io::Error::from_raw_os_error(errno).kind()),
            _ => Exit::Damaged,
        },
        OpenDeviceError::Profile(_) => Exit::Usage,
        OpenDeviceError::Locked | OpenDeviceError::Attached { .. } => Exit::Locked,
        OpenDeviceError::ReadOnly => Exit::ReadOnly,
        OpenDeviceError::Linked { .. } => Exit::Linked,
        OpenDeviceError::FixedSize | OpenDeviceError::TooLarge { .. } => Exit::Usage,
        OpenDeviceError::Unsuitable | OpenDeviceError::NotSlc | OpenDeviceError::Ecc { .. } => {
            Exit::ProfileMismatch
        }
        OpenDeviceError::Io { errno } => file_exit(io::Error::from_raw_os_error(*errno).kind()),
        _ => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use flagstone_space::LogicalPage;

    use super::*;

    /// Goal: for any loss by damage, the code says damage. Method: errors of a mount and of a read.
    #[test]
    fn what_damage_took_is_damage() {
        let lost = || StorageError::Lost(LogicalPage(0));
        assert_eq!(open_exit(&OpenError::Storage(lost())), Exit::Damaged);
        assert_eq!(database_exit(&DatabaseError::Storage(lost())), Exit::Damaged);
        assert_eq!(space_exit(&StorageError::LogPageGone(3)), Exit::Damaged);
    }
}
