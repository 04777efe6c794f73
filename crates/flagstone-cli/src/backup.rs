//! The commands `backup` and `restore`.
//!
//! Owns under which names files appear; what a backup holds is the library's.
//!
//! Invariants:
//! - I1: a database that is restored has its name only when it is complete, but for raw NAND and block devices;
//!   who has that name meanwhile keeps it.
//! - I2: a restore that fails leaves no file behind.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use flagstone::{BackupError, BackupReport, EngineError, MissingRange, verify_backup};
use flagstone_nand::{FileStorage, ImageNand, OpenDeviceError, sync_name};
use serde_json::json;
use tempfile::TempPath;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::files::{at, is_standard, is_stream, open_input, taken, write_new};
use crate::open::{
    Opened, announce, create_database, half_made, is_block_device, open, open_to_read, remove_files,
};
use crate::output::{Form, Output, counted, path_text};
use crate::progress::Progress;
use crate::request::{Backup, Creation, Damage, NewDevice, Restore, Target, UsageError};
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
    pass: &mut dyn FnMut(&str, MissingRange) -> Result<(), EngineError>,
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
        BackupError::Engine(source) => opened.failure(source),
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
    // What can be read only once cannot be looked at beforehand.
    let total = if is_stream(&path) { 0 } else { verify(&path)?.rows };
    let report = restore_new(creation, &path, output.form(), |report| {
        progress.report("restoring rows", report.rows, total);
    });
    progress.finish();
    show(&report?, "restored", &path, output)
}

fn verify(path: &Path) -> Result<BackupReport, Failure> {
    let (stream, _) = open_input(path)?;
    verify_backup(stream).map_err(failure(path))
}

/// Restores under another name, which the database loses when it is complete (I1).
fn restore_new(
    creation: Creation,
    backup: &Path,
    form: Form,
    watch: impl FnMut(&BackupReport),
) -> Result<BackupReport, Failure> {
    let path = creation.path.clone();
    if matches!(creation.device, NewDevice::Mtd(..)) || is_block_device(&path) {
        return restore_into(&creation, backup, watch);
    }
    let side = side_path(&creation.device, &path);
    for used in [Some(path.clone()), side].into_iter().flatten() {
        if used.try_exists().map_err(at(&used))? {
            return Err(taken(&used));
        }
    }
    announce(&creation, form)?;
    let creation = Creation { path: unfinished(&path), ..creation };
    remove_stale(&creation.path).map_err(|failure| failure.renamed(&path))?;
    let _half_made = half_made(&creation);
    let report =
        restore_into(&creation, backup, watch).map_err(|failure| failure.renamed(&path))?;
    appear(&creation, &path).inspect_err(|_| remove_files(&creation))?;
    Ok(report)
}

/// File beside an image; other devices have none.
fn side_path(device: &NewDevice, path: &Path) -> Option<PathBuf> {
    matches!(device, NewDevice::Image(_)).then(|| ImageNand::side_path(path))
}

/// Gives the files of a restored database their names, unless somebody else has one by now.
fn appear(creation: &Creation, path: &Path) -> Result<(), Failure> {
    let keep = |from: &Path, to: &Path| {
        let kept = TempPath::try_from_path(from).and_then(|file| Ok(file.persist_noclobber(to)?));
        kept.map_err(at(to))
    };
    let side = side_path(&creation.device, path);
    if let Some(side) = &side {
        keep(&ImageNand::side_path(&creation.path), side)?;
        sync_name(side).map_err(at(side))?;
    }
    if let Err(failure) = keep(&creation.path, path) {
        if let Some(side) = side {
            let _ = fs::remove_file(side);
        }
        return Err(failure);
    }
    sync_name(path).map_err(at(path))
}

/// Removes what a restore left that was cut off, unless another one is at work on it.
fn remove_stale(path: &Path) -> Result<(), Failure> {
    let storage = FileStorage::open(path);
    if let Err(source @ OpenDeviceError::Locked) = storage {
        return Err(Failure::Open { path: path.into(), source: source.into() });
    }
    // Locked until it is gone, lest somebody else takes it for stale.
    for stale in [path, &ImageNand::side_path(path)] {
        if stale.is_file() {
            fs::remove_file(stale).map_err(at(stale))?;
        }
    }
    Ok(())
}

/// Name of a database that is not restored yet.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".restoring");
    name.into()
}

fn restore_into(
    creation: &Creation,
    backup: &Path,
    watch: impl FnMut(&BackupReport),
) -> Result<BackupReport, Failure> {
    let (stream, _) = open_input(backup)?;
    create_database(creation)?;
    let profile = match &creation.device {
        NewDevice::Mtd(profile, _) => profile.clone(),
        NewDevice::Image(_) | NewDevice::Segments(_) | NewDevice::Growing(..) => None,
    };
    let path = creation.path.clone();
    let options = creation.options.clone();
    let target = Target { path, profile, options, snapshot: None };
    let restored = open(&target).and_then(|opened| {
        let report = opened.database().restore_watched(stream, watch);
        let report = report.map_err(|error| match error {
            BackupError::Engine(source) => opened.failure(source),
            error => failure(backup)(error),
        })?;
        opened.close()?;
        Ok(report)
    });
    if restored.is_err() {
        remove_files(creation);
    }
    restored
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
