//! The commands `backup` and `restore`.
//!
//! Owns the names of files; the content of a backup is the library's.
//!
//! Invariants:
//! - I1: a database that is restored has its name only when it is complete, but for raw NAND and block devices; a
//!   file that takes this name meanwhile keeps it.
//! - I2: a restore that fails leaves no file behind.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use flagstone::report::BackupReport;
use flagstone::salvage::MissingRange;
use flagstone::{BackupError, ReadError, verify_backup};
use serde_json::json;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::files::{is_standard, is_stream, open_input, write_new};
use crate::open::{Opened, announce, create_database, open_to_read};
use crate::output::{Form, Output, counted, path_text};
use crate::progress::Progress;
use crate::request::{Backup, Creation, Damage, Restore, UsageError};
use crate::salvage::tell_missing;

fn failure(path: &Path) -> impl FnOnce(BackupError) -> Failure {
    |source| match source {
        BackupError::Io(source) => Failure::File { path: path.into(), source },
        source => Failure::Backup { path: path.into(), source },
    }
}

/// Writes a backup of the whole database.
pub(crate) fn backup(backup: &Backup, output: &mut Output) -> Result<Exit, Failure> {
    let to_stream = is_standard(&backup.file);
    if to_stream && output.form() == Form::Json {
        return Err(UsageError::Conflict(BACKUP_IS_NO_JSON).into());
    }
    let opened = open_to_read(&backup.target)?;
    let mut progress = Progress::new(output.form());
    let (form, mut skipped) = (output.form(), 0);
    let mut pass = |table: &str, range: MissingRange| match backup.damage {
        Damage::Ends => Err(range.error),
        Damage::IsSkipped => {
            skipped += 1;
            tell_missing(table, &range, form);
            Ok(())
        }
    };
    let report = match to_stream {
        true => write_backup(&opened, output.stream(), &mut progress, &mut pass),
        false => write_new(&backup.file, |stream| {
            write_backup(&opened, stream, &mut progress, &mut pass)
        }),
    };
    progress.finish();
    let report = report?;
    opened.close()?;
    if !to_stream {
        show(&report, "backed up", &backup.file, output)?;
    }
    match skipped {
        0 => Ok(Exit::Ok),
        count => Err(Failure::Incomplete { path: backup.target.path.clone(), count }),
    }
}

const BACKUP_IS_NO_JSON: &str = "a backup to standard output leaves no room for --json";

fn write_backup(
    opened: &Opened,
    stream: &mut dyn Write,
    progress: &mut Progress,
    pass: &mut dyn FnMut(&str, MissingRange) -> Result<(), ReadError>,
) -> Result<BackupReport, Failure> {
    let database = opened.database();
    let total = rows_of(opened)?;
    let watch = |report: &BackupReport| {
        progress.report("backing up rows", report.rows, total.max(report.rows));
    };
    let (snapshot, stream) = (opened.snapshot()?, BufWriter::new(stream));
    let result = database.backup_sound(&snapshot, stream, watch, pass);
    result.map_err(|error| match error {
        BackupError::Io(error) => Failure::Output(error),
        BackupError::Database(source) => opened.failure(source),
        other => Failure::Output(io::Error::other(other.to_string())),
    })
}

fn rows_of(opened: &Opened) -> Result<u64, Failure> {
    let rows = opened.tables()?;
    let rows = rows.iter().map(|name| Ok(opened.len_estimate(opened.table(name)?)));
    rows.sum()
}

/// Creates a database from a backup, or only reads the backup.
pub(crate) fn restore(restore: Restore, output: &mut Output) -> Result<(), Failure> {
    let mut progress = Progress::new(output.form());
    let path = restore.file;
    let Some(creation) = restore.creation else {
        return show(&verify(&path)?, "whole:", &path, output);
    };
    // An input that can be read only once cannot be looked at beforehand.
    let total = if is_stream(&path)? { 0 } else { verify(&path)?.rows };
    let report = restore_new(&creation, &path, output.form(), |report| {
        progress.report("restoring rows", report.rows, total);
    });
    progress.finish();
    show(&report?, "restored", &path, output)
}

fn verify(path: &Path) -> Result<BackupReport, Failure> {
    let (stream, _) = open_input(path)?;
    verify_backup(stream).map_err(failure(path))
}

/// Restores into a database that gets its name when it is complete (I1).
fn restore_new(
    creation: &Creation,
    backup: &Path,
    form: Form,
    watch: impl FnMut(&BackupReport),
) -> Result<BackupReport, Failure> {
    announce(creation, form)?;
    let (stream, _) = open_input(backup)?;
    let restore = |opened: &Opened| {
        let report = opened.database().restore_watched(stream, watch);
        report.map_err(|error| match error {
            BackupError::Database(source) => opened.failure(source),
            error => failure(backup)(error),
        })
    };
    create_database(creation, restore).map(|(_, report)| report)
}

fn show(
    report: &BackupReport,
    verb: &str,
    file: &Path,
    output: &mut Output,
) -> Result<(), Failure> {
    let BackupReport { tables, rows, bytes, .. } = report;
    let json = json!({ "file": path_text(file), "tables": tables, "rows": rows, "bytes": bytes });
    let text = || {
        let (rows, tables) = (counted(*rows, "row", "rows"), counted(*tables, "table", "tables"));
        format!("{verb} {rows} of {tables} ({})\n", file.display())
    };
    Ok(output.show(&json, text)?)
}
