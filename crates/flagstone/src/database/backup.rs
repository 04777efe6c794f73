//! Backups: a whole database as one stream of bytes, written while it is in use, and read back into
//! an empty one, on another kind of device too.
//!
//! Owns the content of a backup; [`stream`] owns its frames and their checksums. Reads through a snapshot,
//! writes through transactions, and adds no rule of durability.
//!
//! Invariants:
//! - **B1** A backup holds the view of one snapshot: every table, also an empty one, and every row.
//! - **B2** A backup is whole or refused: frames are numbered and carry checksums, the last entry counts the
//!   tables and rows before it, and nothing follows it. A backup that was cut short is reported as such.
//! - **B3** Bytes of a backup are untrusted: any bytes give rows or a typed error, and take no more memory
//!   than the longest row that is really there.
//! - **B4** Nothing is written to a database that holds a table.
//!
//! ```text
//! stream   head | frame | frame | …
//! frames   table | row | row | table | row | … | end        (an entry may lie in several frames)
//! ```

mod stream;

use std::io::{self, Read, Write};

use flagstone_engine::Durability;

use self::stream::{FrameReader, FrameWriter};
use super::load::ROW_OVERHEAD;
use super::{Database, MissingRange, Snapshot, SoundRow, Transaction};
use crate::{Error, ReadError};

/// Content of a backup, as counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupReport {
    /// Tables, empty ones included.
    pub tables: u64,
    /// Rows of all tables.
    pub rows: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
}

/// Why a backup could not be written, or read back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The stream of the backup failed.
    #[error("the stream of the backup failed: {0}")]
    Io(#[from] io::Error),
    /// The database refused an operation.
    #[error(transparent)]
    Database(#[from] Error),
    /// The stream holds something else.
    #[error("this is no backup")]
    NotABackup,
    /// The backup was written in a format of another version.
    #[error("the backup has version {found} of the format; this is version {known}")]
    Version {
        /// Version of the backup.
        found: u32,
        /// Version of this library.
        known: u32,
    },
    /// The stream ends before the backup does: it was not written to its end, or cut short.
    #[error("the backup ends too early, in frame {frame}")]
    Truncated {
        /// Number of the frame that is missing or short; the first is 0.
        frame: u64,
    },
    /// The backup contradicts itself: restore another one.
    #[error("the backup is damaged in frame {frame}: {check}")]
    Damaged {
        /// Number of the frame; the first is 0.
        frame: u64,
        /// The check that fired.
        check: &'static str,
    },
    /// The database to restore into holds tables.
    #[error("the database is not empty")]
    NotEmpty,
}

const ENTRY_TABLE: u8 = 1;
const ENTRY_ROW: u8 = 2;
const ENTRY_END: u8 = 3;

/// Longest key or name that any database stores, and more: a longer one is damage.
const KEY_SIZE_MAX: u32 = u16::MAX as u32;

/// An entry of a backup.
#[derive(Debug)]
enum Entry {
    Table(String),
    Row { key: Vec<u8>, value: Vec<u8> },
    End(BackupReport),
}

impl Database {
    /// Writes all durable commits from before the call to `sink`, while other transactions go on.
    ///
    /// The backup is of one moment, holds rows and not pages, and can be read back into a database on another
    /// kind of device, with another page size, as long as its [`Limits`](crate::Limits) allow the longest key
    /// and value: larger pages hold every row of smaller ones. A backup that was not written to its end is
    /// refused by [`Database::restore_from`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let (path, copy) = (directory.path().join("db"), directory.path().join("copy"));
    /// use flagstone::{Database, Options};
    ///
    /// let options = Options::default();
    /// let db = Database::create(&path, &options)?;
    /// let users = db.table("users")?;
    /// let mut txn = db.begin();
    /// txn.put(users, b"ada", b"countess")?;
    /// txn.commit()?;
    ///
    /// let mut backup = Vec::new(); // or a file, or a pipe
    /// let report = db.backup_to(&mut backup)?;
    /// assert_eq!((report.tables, report.rows), (1, 1));
    ///
    /// let copy = Database::create(&copy, &options)?;
    /// copy.restore_from(backup.as_slice())?;
    /// let users = copy.table("users")?;
    /// assert_eq!(copy.snapshot()?.get(users, b"ada")?.as_deref(), Some(&b"countess"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Io` of the sink. `Database` with `SnapshotTooOld` when the device needed the space of the versions
    /// that the backup was reading: begin it again.
    pub fn backup_to(&self, sink: impl Write) -> Result<BackupReport, BackupError> {
        self.backup_watched(sink, |_| {})
    }

    /// As [`Database::backup_to`], and gives `watch` its progress from time to time.
    ///
    /// # Errors
    ///
    /// As [`Database::backup_to`].
    pub fn backup_watched(
        &self,
        sink: impl Write,
        watch: impl FnMut(&BackupReport),
    ) -> Result<BackupReport, BackupError> {
        self.backup_of(&self.snapshot().map_err(Error::from)?, sink, watch)
    }

    /// As [`Database::backup_watched`], of the view of `snapshot`, named or not.
    ///
    /// # Errors
    ///
    /// As [`Database::backup_to`].
    pub fn backup_of(
        &self,
        snapshot: &Snapshot,
        sink: impl Write,
        watch: impl FnMut(&BackupReport),
    ) -> Result<BackupReport, BackupError> {
        self.backup_sound(snapshot, sink, watch, |_, missing| Err(missing.error))
    }

    /// As [`Database::backup_of`], past damage: `pass` gets the table and the keys whose rows do not read,
    /// and decides whether to go on without them.
    ///
    /// # Errors
    ///
    /// As [`Database::backup_to`], and the errors of `pass`.
    pub fn backup_sound(
        &self,
        snapshot: &Snapshot,
        sink: impl Write,
        mut watch: impl FnMut(&BackupReport),
        mut pass: impl FnMut(&str, MissingRange) -> Result<(), ReadError>,
    ) -> Result<BackupReport, BackupError> {
        let mut writer = FrameWriter::begin(sink)?;
        let mut report = BackupReport::default();
        for (name, table) in snapshot.named_tables().map_err(Error::from)? {
            put_head(&mut writer, ENTRY_TABLE, name.as_bytes())?;
            report.tables += 1;
            for row in snapshot.sound_rows(table) {
                let (key, value) = match row.map_err(Error::from)? {
                    SoundRow::Row(row) => row,
                    SoundRow::Missing(missing) => {
                        pass(&name, missing).map_err(Error::from)?;
                        continue;
                    }
                };
                put_head(&mut writer, ENTRY_ROW, &key)?;
                writer.write(&(value.len() as u64).to_le_bytes())?;
                writer.write(&value)?;
                report.rows += 1;
                report.bytes += (key.len() + value.len()) as u64;
                if report.rows.is_multiple_of(WATCH_ROWS) {
                    watch(&report);
                }
            }
        }
        let end = [report.tables, report.rows, report.bytes].map(u64::to_le_bytes);
        writer.write(&[ENTRY_END])?;
        writer.write(end.as_flattened())?;
        writer.finish()?;
        Ok(report)
    }

    /// Reads a backup into this database, which must be empty, and makes it durable.
    ///
    /// Rows go in by many transactions. When it fails, the rows read so far stay: give that database up. The
    /// caller makes sure that no other thread writes to the database meanwhile.
    ///
    /// # Errors
    ///
    /// `NotEmpty`, before anything is read; `NotABackup`, `Version`, `Truncated` or `Damaged` when the
    /// stream is not a whole backup; `Database` when the rows do not fit this database: `KeyTooLong` or
    /// `ValueTooLong` where its pages are smaller and a row is beyond its [`Limits`](crate::Limits).
    pub fn restore_from(&self, source: impl Read) -> Result<BackupReport, BackupError> {
        self.restore_watched(source, |_| {})
    }

    /// As [`Database::restore_from`], and gives `watch` its progress from time to time.
    ///
    /// # Errors
    ///
    /// As [`Database::restore_from`].
    pub fn restore_watched(
        &self,
        source: impl Read,
        mut watch: impl FnMut(&BackupReport),
    ) -> Result<BackupReport, BackupError> {
        if !self.tables().map_err(Error::from)?.is_empty() {
            return Err(BackupError::NotEmpty);
        }
        let mut table = None;
        let mut batch: Option<Transaction> = None;
        let (mut waiting, batch_bytes) = (0, self.batch_bytes());
        let report = read_entries(source, |entry, report| {
            match entry {
                Entry::Table(name) => {
                    commit(batch.take())?;
                    table = Some(self.copied_table(&name)?);
                }
                Entry::Row { key, value } => {
                    let Some(table) = table else { return Err(Error::NoTable) };
                    let transaction = batch.get_or_insert_with(|| self.begin());
                    transaction.put(table, &key, &value)?;
                    waiting += key.len() + value.len() + ROW_OVERHEAD;
                }
                Entry::End(_) => commit(batch.take())?,
            }
            if waiting >= batch_bytes {
                commit(batch.take())?;
                waiting = 0;
            }
            if report.rows.is_multiple_of(WATCH_ROWS) {
                watch(report);
            }
            Ok(())
        })?;
        self.flush().map_err(Error::from)?;
        Ok(report)
    }
}

/// Rows between two calls of a watcher.
const WATCH_ROWS: u64 = 256;

/// The flush at the end makes all of them durable, in order.
fn commit(transaction: Option<Transaction>) -> Result<(), Error> {
    transaction.map_or(Ok(()), |transaction| {
        transaction.commit_with(Durability::Deferred)?;
        Ok(())
    })
}

/// Reads a backup to its end and gives its content as counts, or the reason why it is no backup; stores
/// nothing.
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("db");
/// use flagstone::{BackupError, Database, Options, verify_backup};
///
/// let db = Database::create(&path, &Options::default())?;
/// let mut backup = Vec::new();
/// db.backup_to(&mut backup)?;
/// assert_eq!(verify_backup(backup.as_slice())?.tables, 0);
///
/// backup.pop();
/// assert!(matches!(verify_backup(backup.as_slice()), Err(BackupError::Truncated { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// The errors of [`Database::restore_from`] that concern the stream.
pub fn verify_backup(source: impl Read) -> Result<BackupReport, BackupError> {
    read_entries(source, |_, _| Ok(()))
}

/// Writes the head of an entry: its kind, and a key or name after its length.
fn put_head(writer: &mut FrameWriter<impl Write>, kind: u8, key: &[u8]) -> io::Result<()> {
    writer.write(&[kind])?;
    // Keys and names are far shorter than this; the engine has checked them.
    writer.write(&u32::try_from(key.len()).unwrap_or(u32::MAX).to_le_bytes())?;
    writer.write(key)
}

/// Hands every entry to `take`, with the counts of the entries before it, and checks the whole (B2).
fn read_entries(
    source: impl Read,
    mut take: impl FnMut(Entry, &BackupReport) -> Result<(), Error>,
) -> Result<BackupReport, BackupError> {
    let mut reader = FrameReader::begin(source)?;
    let mut report = BackupReport::default();
    loop {
        let entry = read_entry(&mut reader)?;
        match &entry {
            Entry::Table(_) => report.tables += 1,
            Entry::Row { .. } if report.tables == 0 => {
                return Err(reader.damaged("a row stands before the first table"));
            }
            Entry::Row { key, value } => {
                report.rows += 1;
                report.bytes = report.bytes.saturating_add((key.len() + value.len()) as u64);
            }
            Entry::End(counted) => {
                if *counted != report {
                    return Err(reader.damaged("its end counts something else"));
                }
                reader.finish()?;
                take(entry, &report)?;
                return Ok(report);
            }
        }
        take(entry, &report)?;
    }
}

fn read_entry(reader: &mut FrameReader<impl Read>) -> Result<Entry, BackupError> {
    let [kind] = reader.array()?;
    match kind {
        ENTRY_TABLE => {
            let name = read_key(reader)?;
            let name = String::from_utf8(name);
            Ok(Entry::Table(name.map_err(|_| reader.damaged("the name of a table is no text"))?))
        }
        ENTRY_ROW => {
            let key = read_key(reader)?;
            let size = u64::from_le_bytes(reader.array()?);
            Ok(Entry::Row { key, value: reader.bytes(size)? })
        }
        ENTRY_END => {
            let mut number = || Ok::<_, BackupError>(u64::from_le_bytes(reader.array()?));
            Ok(Entry::End(BackupReport { tables: number()?, rows: number()?, bytes: number()? }))
        }
        _ => Err(reader.damaged("an entry of unknown kind")),
    }
}

fn read_key(reader: &mut FrameReader<impl Read>) -> Result<Vec<u8>, BackupError> {
    let size = u32::from_le_bytes(reader.array()?);
    if size > KEY_SIZE_MAX {
        return Err(reader.damaged("a key is too long"));
    }
    reader.bytes(size.into())
}

#[cfg(test)]
mod tests;
