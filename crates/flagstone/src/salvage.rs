//! Salvage: the readable rows of a damaged database go into a new one.
//!
//! Owns the report of missing rows and of rows that may be older than they were. The engine's module of this
//! name decides which rows of a database that does not open come back; its rules are SA2 and SA3. Writes
//! nothing to the damaged device.
//!
//! - **SA1** A database that opens by a checkpoint is read as it is. Older images are looked for only where
//!   its pages do not read.
//! - **SA4** Each row that may be older than the newest commit is reported as doubtful, by table and key
//!   range.
//!
//! ```text
//! open to read ──▶ rows, leaf by leaf ──▶ (ranges that do not read) ─┐
//!      │ refused                                                     ▼
//!      └────────▶ survey of all pages ─▶ images by key ─▶ + log, runs ─▶ rows
//! ```

mod write;

use std::path::Path;

use flagstone_engine::salvage::Scanned;
#[doc(inline)]
pub use flagstone_engine::salvage::{DoubtCause, MissingCause};
use flagstone_engine::{
    CATALOG, EngineError, OpenError as EngineOpenError, Options, Runtime, VerifyOnOpen,
};
use flagstone_nand::{AnyNand, Nand, Profile};
use flagstone_space::MountError;

use self::write::Writer;
use crate::database::{Database, is_damage, open_device_to_salvage};
pub use crate::database::{MissingRange, SoundRow, SoundRows};
use crate::{Error, OpenError};

/// How a database was salvaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SalvageMethod {
    /// The database opened; pages that do not read were replaced by older images, where any were found.
    Opened,
    /// The database did not open: its pages were read one by one.
    Scanned,
}

/// Keys of a table, and the reason why their rows are missing or doubtful.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeySpan<C> {
    /// Name of the table in the new database.
    pub table: String,
    /// First key.
    pub low: Vec<u8>,
    /// First key behind the range; none = to the end of the table.
    pub high: Option<Vec<u8>>,
    /// Reason.
    pub cause: C,
}

/// A table that was salvaged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SalvagedTable {
    /// Its name in the new database.
    pub name: String,
    /// Whether the name was made up (`table-7`): the catalog does not have the name, or does not say that the
    /// table was dropped.
    pub is_invented: bool,
    /// Rows that came back.
    pub rows: u64,
}

/// Result of a salvage: the rows that came back, and the keys that did not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SalvageReport {
    /// Method.
    pub method: SalvageMethod,
    /// Tables, in order of their names where these are known.
    pub tables: Vec<SalvagedTable>,
    /// Rows of all tables.
    pub rows: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// Physical pages that hold content which does not read.
    pub damaged_pages: u64,
    /// Keys whose rows did not come back, if there were any.
    pub missing: Vec<KeySpan<MissingCause>>,
    /// Keys whose rows came back, but may be older, or may have been deleted since.
    pub doubtful: Vec<KeySpan<DoubtCause>>,
}

impl SalvageReport {
    fn new(method: SalvageMethod) -> Self {
        Self {
            method,
            tables: Vec::new(),
            rows: 0,
            bytes: 0,
            damaged_pages: 0,
            missing: Vec::new(),
            doubtful: Vec::new(),
        }
    }

    /// All rows of all tables may be old.
    fn doubt_all(&mut self, causes: &[DoubtCause]) {
        for table in &self.tables {
            self.doubtful.extend(causes.iter().map(|cause| KeySpan {
                table: table.name.clone(),
                low: Vec::new(),
                high: None,
                cause: *cause,
            }));
        }
    }

    /// Whether every row came back as it was.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.doubtful.is_empty()
    }
}

/// Why nothing could be salvaged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SalvageError {
    /// The damaged database cannot be read at all: no such file, locked, no power.
    #[error(transparent)]
    Source(OpenError),
    /// The new database could not be made.
    #[error("the new database: {0}")]
    Target(OpenError),
    /// The new database refused an operation.
    #[error("the new database: {0}")]
    Database(Error),
    /// The new database holds tables.
    #[error("the new database is not empty")]
    NotEmpty,
    /// Not one page of a database reads.
    #[error("no page of a database was found")]
    NothingFound,
}

impl Database {
    /// Saves the readable rows of a damaged database in a file, a NAND image or raw NAND into a new database
    /// in a file.
    ///
    /// The damaged database is opened for reading, and not changed. Where it does not open, all its pages are
    /// read, which takes some 200 bytes of memory for each.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let (path, saved) = (directory.path().join("db"), directory.path().join("saved"));
    /// use flagstone::{Database, Options};
    ///
    /// let db = Database::create(&path, &Options::default())?;
    /// let table = db.table("t")?;
    /// let mut txn = db.begin();
    /// txn.put(table, b"key", b"value")?;
    /// txn.commit()?;
    /// db.close()?;
    ///
    /// let report = Database::salvage(&path, &saved, &Options::default())?;
    /// assert_eq!(report.rows, 1);
    /// assert!(report.is_complete(), "nothing was damaged");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Source` when the damaged database cannot be read at all; `Target` when the new file exists or cannot
    /// be written; `NothingFound`. After an error no new file stays.
    pub fn salvage(
        path: impl AsRef<Path>,
        to: impl AsRef<Path>,
        options: &Options,
    ) -> Result<SalvageReport, SalvageError> {
        Self::salvage_watched(path, None, to, options, |_| {})
    }

    /// As [`Database::salvage`]; `profile` describes the chip where the file beside its image does not read,
    /// and `watch` gets the number of rows so far from time to time.
    ///
    /// # Errors
    ///
    /// As [`Database::salvage`].
    pub fn salvage_watched(
        path: impl AsRef<Path>,
        profile: Option<&Profile>,
        to: impl AsRef<Path>,
        options: &Options,
        watch: impl FnMut(u64),
    ) -> Result<SalvageReport, SalvageError> {
        let device = open_device_to_salvage(path.as_ref(), profile);
        let device = device.map_err(|error| SalvageError::Source(error.into()))?;
        let to = to.as_ref();
        let target = Self::create(to, options).map_err(SalvageError::Target)?;
        let salvaged = target.salvage_from(device, options, watch);
        let salvaged = salvaged.and_then(|report| {
            target.close().map_err(of_target)?;
            Ok(report)
        });
        if salvaged.is_err() {
            // The new file was made a moment ago.
            let _ = std::fs::remove_file(to);
        }
        salvaged
    }
}

/// Limit of memory for attempts to open the damaged database: the changes since its last checkpoint have to
/// fit.
const MEMORY_MAX: usize = 4 << 30;

impl Database {
    /// Saves the readable rows of the database on `source` into this one, which must be empty, and makes them
    /// durable. `watch` gets the number of rows so far from time to time.
    ///
    /// # Errors
    ///
    /// As [`Database::salvage`]; after a failure, the rows saved so far stay.
    pub fn salvage_from(
        &self,
        source: impl Nand + Send + 'static,
        options: &Options,
        watch: impl FnMut(u64),
    ) -> Result<SalvageReport, SalvageError> {
        if !self.tables().map_err(of_target)?.is_empty() {
            return Err(SalvageError::NotEmpty);
        }
        let mut source = AnyNand::new(source);
        let mut writer = Writer::new(self, watch);
        let report = match options_to_open(&mut source, options) {
            Ok(options) => {
                let damaged = Database::open_read_only_on(source, &options);
                salvage_database(damaged.map_err(SalvageError::Source)?, &mut writer)?
            }
            Err(error) if is_beyond_salvage(&error) => {
                return Err(SalvageError::Source(error.into()));
            }
            Err(_) => salvage_scanned(source, &mut writer)?,
        };
        writer.finish()?;
        Ok(report)
    }
}

/// Options that open the damaged database, with as much memory as it asks for; its faults are met later.
fn options_to_open(source: &mut AnyNand, options: &Options) -> Result<Options, EngineOpenError> {
    let mut options = options.clone().with_verify_on_open(VerifyOnOpen::Off);
    loop {
        // Another attempt with four times the memory, as long as the error is too little of it.
        match Runtime::open_read_only(&mut *source, &options).map(drop) {
            Err(EngineOpenError::NeedsMemory { .. }) if options.memory < MEMORY_MAX => {
                options.memory = options.memory.saturating_mul(4);
            }
            Err(error) => return Err(error),
            Ok(()) => return Ok(options),
        }
    }
}

/// Whether an error means that nothing can be read at all: wrong options, or a device without power.
fn is_beyond_salvage(error: &EngineOpenError) -> bool {
    use flagstone_nand::NandError::PowerOff;
    matches!(
        error,
        EngineOpenError::Options(_)
            | EngineOpenError::Mount(MountError::Device(PowerOff))
            | EngineOpenError::Engine(EngineError::Device(PowerOff))
    )
}

/// Copies the rows of a database that opens; from its pages, where these say more.
fn salvage_database<W: FnMut(u64)>(
    damaged: Database,
    writer: &mut Writer<'_, W>,
) -> Result<SalvageReport, SalvageError> {
    // Without a checkpoint there is no way to know which pages a mount missed.
    if !damaged.recovery().full_scan
        && let Some(report) = salvage_opened(&damaged, writer)?
    {
        return Ok(report);
    }
    match damaged.into_device() {
        Some(source) => salvage_scanned(source, writer),
        None => Err(SalvageError::NothingFound),
    }
}

/// Copies the rows of a database that opens; none where its catalog does not read.
fn salvage_opened<W: FnMut(u64)>(
    damaged: &Database,
    writer: &mut Writer<'_, W>,
) -> Result<Option<SalvageReport>, SalvageError> {
    let snapshot = damaged.snapshot().map_err(of_source)?;
    let tables = match snapshot.named_tables() {
        Ok(tables) => tables,
        Err(error) if is_damage(&error) => return Ok(None),
        Err(error) => return Err(of_source(error)),
    };
    let mut report = SalvageReport::new(SalvageMethod::Opened);
    let mut unread = Vec::new();
    for (name, table) in tables {
        writer.write_to(&name, false, &mut report)?;
        for row in snapshot.sound_rows(table) {
            match row.map_err(of_source)? {
                SoundRow::Row((key, value)) => writer.put(&key, &value, &mut report)?,
                SoundRow::Missing(range) => unread.push((table, name.clone(), range)),
            }
        }
    }
    drop(snapshot);
    let mut space = damaged.runtime().space();
    let survey = space.survey().map_err(|error| SalvageError::Source(OpenError::Mount(error)))?;
    let mut scanned = Scanned::of(survey).map_err(source_lost)?;
    report.damaged_pages = scanned.damaged_pages();
    for (table, name, range) in unread {
        writer.write_to(&name, false, &mut report)?;
        let span = (range.low.as_slice(), range.high.as_deref());
        writer.copy(&mut scanned, table, span, &mut report)?;
        let (low, high) = (range.low, range.high);
        report.doubtful.push(KeySpan { table: name, low, high, cause: DoubtCause::OlderPage });
    }
    if scanned.may_lack_commits() {
        report.doubt_all(&[DoubtCause::LostPages]);
    }
    Ok(Some(report))
}

/// Puts a database together from its pages, where it does not open.
fn salvage_scanned<W: FnMut(u64)>(
    source: AnyNand,
    writer: &mut Writer<'_, W>,
) -> Result<SalvageReport, SalvageError> {
    let survey = flagstone_space::Survey::of(source);
    let survey = survey.map_err(|error| SalvageError::Source(OpenError::Mount(error)))?;
    let mut scanned = Scanned::of(survey).map_err(source_lost)?;
    if scanned.is_empty() {
        return Err(SalvageError::NothingFound);
    }
    let mut report = SalvageReport::new(SalvageMethod::Scanned);
    report.damaged_pages = scanned.damaged_pages();
    for (name, table, is_invented) in scanned.tables().map_err(source_lost)? {
        writer.write_to(&name, is_invented, &mut report)?;
        writer.copy(&mut scanned, table, (&[], None), &mut report)?;
        debug_assert_ne!(table, CATALOG, "the catalog is none of the tables");
    }
    report.doubt_all(&scanned.doubts());
    Ok(report)
}

fn source_lost(error: flagstone_nand::NandError) -> SalvageError {
    of_source(EngineError::from(error))
}

/// The failure that an error of the damaged database is.
fn of_source(error: impl Into<Error>) -> SalvageError {
    SalvageError::Source(OpenError::Restart(Box::new(error.into())))
}

/// The failure that an error of the new database is.
fn of_target(error: impl Into<Error>) -> SalvageError {
    SalvageError::Database(error.into())
}
