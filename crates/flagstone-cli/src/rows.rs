//! The commands on rows: `create`, `put`, `get`, `del`, `scan`.
//!
//! Owns the print of rows: key and value with a tab between them, each in the notation of [`crate::escape`]. Every
//! change is one durable transaction.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _, Write};
use std::ops::Bound;

use flagstone::{Error, ReadError, Table, Transaction};
use serde_json::json;

use crate::escape::escape;
use crate::failure::Failure;
use crate::inspect::bill_json;
use crate::open::{Opened, announce, create_database, open, open_to_read};
use crate::output::{Form, Output, path_text};
use crate::request::{
    Creation, Direction, KeyAt, Notation, RowAt, Scan, UsageError, Value, ValueAt,
};
use crate::size::format_size;

/// Creates an empty database.
pub(crate) fn create(creation: &Creation, output: &mut Output) -> Result<(), Failure> {
    announce(creation, output.form())?;
    let (created, ()) = create_database(creation, |_| Ok(()))?;
    let json = json!({
        "path": path_text(&creation.path),
        "profile": created.profile,
        "data_size": created.data_size,
        "data_size_max": created.data_size_max,
        "preset": creation.options.preset,
    });
    let text = || {
        let (path, profile) = (creation.path.display(), &created.profile);
        let mut size = format_size(created.data_size);
        if created.data_size_max > created.data_size {
            let _ = write!(size, ", grows to {}", format_size(created.data_size_max));
        } else if created.grows {
            size += ", its limit";
        }
        format!("created {path}: {profile}, {size}, preset {}\n", creation.options.preset)
    };
    Ok(output.show(&json, text)?)
}

/// Stores one row.
pub(crate) fn put(row: &RowAt, output: &mut Output) -> Result<(), Failure> {
    let at = &row.at;
    let opened = open(&at.target)?;
    let value = value_of(&row.value, opened.database().stats().limits.value_size_max)?;
    let table = opened.run(|database| database.table(&at.table))?;
    let ((), bill) = opened.change(|transaction| transaction.put(table, &at.key, &value))?;
    opened.warn_of_indexes(&at.table, output.form())?;
    opened.close()?;
    let json = json!({
        "table": at.table,
        "key": escape(&at.key),
        "size": value.len(),
        "bill": bill_json(&bill),
    });
    Ok(output.show(&json, String::new)?)
}

/// The bytes of a value. Of a file, at most one byte more than the database takes is read.
fn value_of(value: &Value, size_max: usize) -> Result<Cow<'_, [u8]>, Failure> {
    let path = match value {
        Value::Bytes(bytes) => return Ok(Cow::Borrowed(bytes)),
        Value::File(path) => path,
    };
    let limit = (size_max as u64).saturating_add(1);
    let mut bytes = Vec::new();
    let read = match path.as_os_str() == "-" {
        true => io::stdin().lock().take(limit).read_to_end(&mut bytes),
        false => File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)),
    };
    read.map_err(|source| Failure::File { path: path.clone(), source })?;
    if bytes.len() > size_max {
        return Err(Failure::ValueTooLong { path: path.clone(), size_max });
    }
    Ok(Cow::Owned(bytes))
}

/// Prints one value.
pub(crate) fn get(value: &ValueAt, output: &mut Output) -> Result<(), Failure> {
    let at = &value.at;
    if value.notation == Notation::Raw && output.form() == Form::Json {
        return Err(UsageError::Conflict("--raw and --json exclude each other").into());
    }
    let notation = value.notation;
    let opened = open_to_read(&at.target)?;
    let table = opened.table(&at.table)?;
    let value = opened.snapshot()?.get(table, &at.key);
    let value = value.map_err(|source| opened.failure(source))?;
    opened.close()?;
    let value = value.ok_or_else(|| no_key(at))?;
    if notation == Notation::Raw {
        return Ok(output.stream().write_all(&value)?);
    }
    let json = json!({ "table": at.table, "key": escape(&at.key), "value": escape(&value) });
    Ok(output.show(&json, || format!("{}\n", escape(&value)))?)
}

/// Deletes one row.
pub(crate) fn delete(at: &KeyAt, output: &mut Output) -> Result<(), Failure> {
    let opened = open(&at.target)?;
    let table = opened.table(&at.table)?;
    let (found, bill) = opened.change(|transaction| delete_key(transaction, table, &at.key))?;
    if found == Presence::Present {
        opened.warn_of_indexes(&at.table, output.form())?;
    }
    opened.close()?;
    match found {
        Presence::Absent => Err(no_key(at)),
        Presence::Present => {
            let (key, bill) = (escape(&at.key), bill_json(&bill));
            let json = json!({ "table": at.table, "key": key, "bill": bill });
            Ok(output.show(&json, String::new)?)
        }
    }
}

/// Whether a key was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    /// It was.
    Present,
    /// It was not.
    Absent,
}

fn delete_key(transaction: &mut Transaction, table: Table, key: &[u8]) -> Result<Presence, Error> {
    if !transaction.contains_key(table, key)? {
        return Ok(Presence::Absent);
    }
    transaction.delete(table, key)?;
    Ok(Presence::Present)
}

fn no_key(at: &KeyAt) -> Failure {
    let path = at.target.path.clone();
    Failure::NoKey { path, table: at.table.clone(), key: escape(&at.key) }
}

/// Prints the rows of a range, in order.
pub(crate) fn scan(scan: &Scan, output: &mut Output) -> Result<(), Failure> {
    let opened = open_to_read(&scan.target)?;
    let table = opened.table(&scan.table)?;
    print_rows(&opened, table, scan, output)?;
    opened.close()
}

type Row = Result<(Vec<u8>, Vec<u8>), ReadError>;

fn print_rows(
    opened: &Opened,
    table: Table,
    scan: &Scan,
    output: &mut Output,
) -> Result<(), Failure> {
    let snapshot = opened.snapshot()?;
    let rows = snapshot.range(table, (slice(&scan.from), slice(&scan.to)));
    let rows: Box<dyn Iterator<Item = Row> + '_> = match scan.direction {
        Direction::Forward => Box::new(rows),
        Direction::Backward => Box::new(rows.rev()),
    };
    let mut printer = RowPrinter::begin(&scan.table, output)?;
    for row in rows.take(scan.limit) {
        match row {
            Ok((key, value)) => printer.row(&key, &value)?,
            Err(source) => {
                printer.end(Extent::Part)?;
                return Err(opened.failure(source));
            }
        }
    }
    Ok(printer.end(Extent::Whole)?)
}

/// How many of the rows asked for were printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// All.
    Whole,
    /// The rows before a failure.
    Part,
}

fn slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// Prints rows one by one, so that a scan of any length takes no memory.
struct RowPrinter<'a> {
    output: &'a mut Output,
    count: u64,
}

impl<'a> RowPrinter<'a> {
    fn begin(table: &str, output: &'a mut Output) -> io::Result<Self> {
        if output.form() == Form::Json {
            write!(output.stream(), "{{\"table\":{},\"rows\":[", json!(table))?;
        }
        Ok(Self { output, count: 0 })
    }

    fn row(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let (key, value) = (escape(key), escape(value));
        self.count += 1;
        match self.output.form() {
            Form::Text => writeln!(self.output.stream(), "{key}\t{value}"),
            Form::Json => {
                let comma = if self.count > 1 { "," } else { "" };
                let row = json!({ "key": key, "value": value });
                write!(self.output.stream(), "{comma}{row}")
            }
        }
    }

    /// Ends the rows; a JSON object of a part of them says so, and is one all the same.
    fn end(self, extent: Extent) -> io::Result<()> {
        if self.output.form() == Form::Json {
            let complete = if extent == Extent::Part { ",\"complete\":false" } else { "" };
            writeln!(self.output.stream(), "],\"count\":{}{complete}}}", self.count)?;
        }
        Ok(())
    }
}
