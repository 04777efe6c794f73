//! The commands that move rows between databases: `export` and `import`.
//!
//! Owns the split of rows into transactions, and the message for a row that cannot be stored. [`crate::lines`] has
//! the form of a line.
//!
//! Invariants:
//! - I1: an export is one snapshot, and its file has its name only when it is complete.
//! - I2: an import that fails names the line, and the line up to which everything is stored.
//! - I3: an import that was interrupted can be run again as it is: a row that is stored twice is
//!   the same row.
//! - I4: no import writes to an index. It cannot know whether the input has the whole index, and a missing index is
//!   made by the program that opens its table.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::PathBuf;

use flagstone::salvage::{MissingRange, SoundRow};
use flagstone::{Bill, Error, Table, Transaction};
use serde_json::json;

use crate::exit::Exit;
use crate::failure::{Failure, LineFault};
use crate::files::{at, is_standard, open_input, write_new};
use crate::inspect::bill_json;
use crate::lines::{LineRow, Lines, write_row};
use crate::open::{Opened, open, open_to_read};
use crate::output::{Form, Output, counted, path_text};
use crate::progress::Progress;
use crate::request::{Atomicity, Damage, Export, Import, UsageError};
use crate::salvage::tell_missing;

/// Rows between two looks at the progress line.
const PROGRESS_ROWS: u64 = 256;

/// Bytes of keys and values after which a transaction of an import is committed, with any number of rows.
const BATCH_BYTES: usize = 1 << 20;

/// Writes all rows of some tables, one a line.
pub(crate) fn export(export: &Export, output: &mut Output) -> Result<Exit, Failure> {
    let to_stream = is_standard(&export.file);
    if to_stream && output.form() == Form::Json {
        return Err(UsageError::Conflict(EXPORT_IS_NOT_ONE_OBJECT).into());
    }
    let opened = open_to_read(&export.target)?;
    let names = match export.tables.as_slice() {
        [] => opened.tables()?,
        named => named.to_vec(),
    };
    let tables = names.into_iter().map(|name| Ok((opened.table(&name)?, name)));
    let tables: Vec<(Table, String)> = tables.collect::<Result<_, Failure>>()?;
    let mut progress = Progress::new(output.form());
    let (form, mut skipped) = (output.form(), 0);
    let mut pass = |table: &str, range: MissingRange| match export.damage {
        Damage::Ends => Err(opened.failure(range.error)),
        Damage::IsSkipped => {
            skipped += 1;
            tell_missing(table, &range, form);
            Ok(())
        }
    };
    let rows = if to_stream {
        write_rows(&opened, &tables, output.stream(), &mut progress, &mut pass)
    } else {
        write_new(&export.file, |stream| {
            write_rows(&opened, &tables, stream, &mut progress, &mut pass)
        })
    };
    progress.finish();
    let rows = rows?;
    opened.close()?;
    let exit = match skipped {
        0 => Ok(Exit::Ok),
        count => Err(Failure::Incomplete { path: export.target.path.clone(), count }),
    };
    if to_stream {
        return exit;
    }
    let (file, tables) = (&export.file, tables.len());
    let json = json!({ "file": path_text(file), "tables": tables, "rows": rows });
    let text = || {
        let (rows, tables) = (counted(rows, "row", "rows"), counted(tables, "table", "tables"));
        format!("exported {rows} of {tables} to {}\n", file.display())
    };
    output.show(&json, text)?;
    exit
}

const EXPORT_IS_NOT_ONE_OBJECT: &str =
    "an export to standard output is one object a row already; --json needs a FILE";

fn write_rows(
    opened: &Opened,
    tables: &[(Table, String)],
    stream: &mut dyn Write,
    progress: &mut Progress,
    pass: &mut dyn FnMut(&str, MissingRange) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let snapshot = opened.snapshot()?;
    let total = tables.iter().map(|(table, _)| opened.len_estimate(*table)).sum::<u64>();
    let mut count = 0_u64;
    for (table, name) in tables {
        for row in snapshot.sound_rows(*table) {
            let (key, value) = match row.map_err(|source| opened.failure(source))? {
                SoundRow::Row(row) => row,
                SoundRow::Missing(range) => {
                    pass(name, range)?;
                    continue;
                }
            };
            write_row(stream, name, &key, &value)?;
            count += 1;
            if count.is_multiple_of(PROGRESS_ROWS) {
                progress.report("exporting rows", count, total.max(count));
            }
        }
    }
    Ok(count)
}

/// Stores the rows that a stream holds, one a line.
pub(crate) fn import(import: &Import, output: &mut Output) -> Result<(), Failure> {
    let (input, size) = open_input(&import.file)?;
    let opened = open(&import.target)?;
    let limits = opened.database().stats().limits;
    let mut lines = Lines::new(input, &limits);
    let mut progress = Progress::new(output.form());
    let mut importer = Importer::new(&opened, import);
    let result = importer.run(&mut lines, size, &mut progress);
    progress.finish();
    let Importer { rows, left_out, commits, bill, tables, .. } = importer;
    let mut changed = tables.iter().filter(|(_, table)| table.is_some() && rows > 0);
    let warned = changed.try_for_each(|(name, _)| opened.warn_of_indexes(name, output.form()));
    result?;
    warned?;
    opened.close()?;
    let json = json!({
        "rows": rows,
        "left_out": left_out,
        "lines": lines.number(),
        "transactions": commits,
        "bill": bill_json(&bill),
    });
    let text = || {
        let rows = counted(rows, "row", "rows");
        let commits = counted(commits, "transaction", "transactions");
        let programs = counted(bill.programs(), "page", "pages");
        let mut text = format!("imported {rows} in {commits}, {programs} programmed\n");
        if left_out > 0 {
            let left_out = counted(left_out, "row", "rows");
            text += &format!(
                "left out {left_out} of indexes: a program that opens the table makes them\n"
            );
        }
        text
    };
    Ok(output.show(&json, text)?)
}

/// An import under way.
struct Importer<'a> {
    opened: &'a Opened,
    request: &'a Import,
    /// Tables that were met; none for an index.
    tables: BTreeMap<String, Option<Table>>,
    transaction: Option<Transaction>,
    /// Rows of the transaction with their lines, where it may have to be made in parts.
    batch: Vec<(u64, LineRow)>,
    batch_rows: u64,
    batch_bytes: usize,
    /// Line up to which everything is stored.
    stored: u64,
    rows: u64,
    /// Rows of indexes.
    left_out: u64,
    commits: u64,
    bill: Bill,
}

impl<'a> Importer<'a> {
    fn new(opened: &'a Opened, request: &'a Import) -> Self {
        Self {
            opened,
            request,
            tables: BTreeMap::new(),
            transaction: None,
            batch: Vec::new(),
            batch_rows: 0,
            batch_bytes: 0,
            stored: request.first_line.saturating_sub(1),
            rows: 0,
            left_out: 0,
            commits: 0,
            bill: Bill::default(),
        }
    }

    fn run<R: BufRead>(
        &mut self,
        lines: &mut Lines<R>,
        size: u64,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        let path = &self.request.file;
        lines.skip_to(self.request.first_line.saturating_sub(1)).map_err(at(path))?;
        loop {
            let row = match lines.next_row() {
                Ok(Some(row)) => row.map_err(LineFault::Form),
                Ok(None) => break,
                Err(error) => return Err(self.give_up(lines.number() + 1, LineFault::Read(error))),
            };
            if let Err(fault) = row.and_then(|row| self.put(lines.number(), row)) {
                // Without room it is the first row that is not stored.
                let is_refused = matches!(&fault, LineFault::Engine(error) if is_for_room(error));
                let line = if is_refused { self.stored + 1 } else { lines.number() };
                return Err(self.give_up(line, fault));
            }
            let whole = self.batch_rows >= self.request.batch || self.batch_bytes >= BATCH_BYTES;
            if whole && self.request.atomicity == Atomicity::Batches {
                self.commit(lines.number())?;
            }
            if (self.rows + self.batch_rows).is_multiple_of(PROGRESS_ROWS) {
                progress.report("importing, bytes", lines.bytes(), size);
            }
        }
        self.commit(lines.number())
    }

    fn put(&mut self, line: u64, row: LineRow) -> Result<(), LineFault> {
        let table = match self.tables.get(&row.table) {
            Some(table) => *table,
            None => {
                let table = self.open(&row.table)?;
                self.tables.insert(row.table.clone(), table);
                table
            }
        };
        let Some(table) = table else {
            self.left_out += 1;
            return Ok(());
        };
        let begin = || self.opened.database().begin();
        let transaction = self.transaction.get_or_insert_with(begin);
        let put = transaction.put(table, &row.key, &row.value).map_err(Error::from);
        self.batch_rows += 1;
        self.batch_bytes += row.key.len() + row.value.len();
        if self.request.atomicity == Atomicity::Batches {
            self.batch.push((line, row));
        }
        match put {
            Err(error) if is_for_room(&error) && self.is_divisible() => self.store_in_parts(),
            put => Ok(put?),
        }
    }

    /// Whether the rows of the transaction may come in several.
    fn is_divisible(&self) -> bool {
        self.batch.len() > 1
    }

    /// Stores the rows of the transaction in as many as it takes: each needs room for its changes beside the old
    /// rows, and gives back the rest at its end.
    fn store_in_parts(&mut self) -> Result<(), LineFault> {
        self.transaction = None;
        (self.batch_rows, self.batch_bytes) = (0, 0);
        let mut parts = vec![std::mem::take(&mut self.batch)];
        while let Some(mut part) = parts.pop() {
            match self.store(&part) {
                Err(LineFault::Engine(error)) if is_for_room(&error) && part.len() > 1 => {
                    let rest = part.split_off(part.len() / 2);
                    parts.extend([rest, part]);
                }
                stored => stored?,
            }
        }
        Ok(())
    }

    fn store(&mut self, rows: &[(u64, LineRow)]) -> Result<(), LineFault> {
        let mut transaction = self.opened.database().begin();
        for (_, row) in rows {
            if let Some(Some(table)) = self.tables.get(&row.table) {
                transaction.put(*table, &row.key, &row.value).map_err(Error::from)?;
            }
        }
        self.bill += transaction.commit().map_err(Error::from)?.bill;
        self.commits += 1;
        self.rows += rows.len() as u64;
        self.stored = rows.last().map_or(self.stored, |(line, _)| *line);
        Ok(())
    }

    /// The table called `name`, made when it is not there; none when it is an index of another one (I4).
    fn open(&self, name: &str) -> Result<Option<Table>, Error> {
        let database = self.opened.database();
        for (at, _) in name.match_indices('@') {
            if let Some(table) = name.get(..at)
                && database.existing_table(table)?.is_some()
            {
                return Ok(None);
            }
        }
        Ok(Some(database.copied_table(name)?))
    }

    /// Makes everything up to `line` durable.
    fn commit(&mut self, line: u64) -> Result<(), Failure> {
        if let Some(transaction) = self.transaction.take() {
            match transaction.commit().map_err(Error::from) {
                Ok(committed) => {
                    self.bill += committed.bill;
                    self.commits += 1;
                    self.rows += self.batch_rows;
                }
                Err(error) if is_for_room(&error) && self.is_divisible() => {
                    let stored = self.store_in_parts();
                    stored.map_err(|fault| self.failure(self.stored + 1, fault))?;
                }
                Err(error) => return Err(self.failure(line, error.into())),
            }
        }
        self.stored = line;
        (self.batch_rows, self.batch_bytes) = (0, 0);
        self.batch.clear();
        Ok(())
    }

    /// The failure of a line. All lines before a line that is no row, or cannot be read, are stored.
    fn give_up(&mut self, line: u64, fault: LineFault) -> Failure {
        let is_own = match &fault {
            LineFault::Form(_) | LineFault::Read(_) => true,
            LineFault::Engine(error) => matches!(
                error,
                Error::KeyTooLong { .. } | Error::NameTooLong { .. } | Error::ValueTooLong { .. }
            ),
        };
        if is_own
            && self.request.atomicity == Atomicity::Batches
            && let Err(failure) = self.commit(line - 1)
        {
            return failure;
        }
        self.failure(line, fault)
    }

    fn failure(&self, line: u64, source: LineFault) -> Failure {
        let input: PathBuf = self.request.file.clone();
        let stored = match self.stored {
            0 => String::from("nothing is stored"),
            stored => format!(
                "what stands up to line {stored} is stored; go on with --from-line {}",
                stored + 1
            ),
        };
        Failure::Line { input, line, source, stored }
    }
}

/// Whether a transaction found no room: a row that does not fit with all the others may fit with few.
const fn is_for_room(error: &Error) -> bool {
    matches!(error, Error::Full | Error::TooLarge)
}

#[cfg(test)]
mod tests {
    use std::io::{self, BufReader, Cursor, Read};

    use flagstone::{Database, Options};

    use super::*;
    use crate::request::Target;

    struct Broken;

    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("pulled out"))
        }
    }

    /// Goal: an input that cannot be read to its end is reported like a line that is no row: with the number of the
    /// line, and the lines stored before it.
    #[test]
    fn an_error_of_the_input_names_the_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("db");
        Database::create(&path, &Options::default()).unwrap().close().unwrap();
        let opened =
            open(&Target { path, profile: None, options: Options::default(), snapshot: None })
                .unwrap();
        let mut text = Vec::new();
        for key in [b"a", b"b", b"c"] {
            write_row(&mut text, "t", key, b"").unwrap();
        }
        text.truncate(text.len() - 5);
        let request = |atomicity| {
            let options = Options::default();
            let target = Target { path: "db".into(), profile: None, options, snapshot: None };
            Import { target, file: "lines".into(), batch: 1_000, atomicity, first_line: 1 }
        };
        for (atomicity, stored, rows) in [
            (Atomicity::Whole, "nothing is stored", 0),
            (Atomicity::Batches, "what stands up to line 2 is stored; go on with --from-line 3", 2),
        ] {
            let limits = opened.database().stats().limits;
            let input = BufReader::new(Cursor::new(text.clone()).chain(Broken));
            let (mut lines, request) = (Lines::new(input, &limits), request(atomicity));
            let mut importer = Importer::new(&opened, &request);
            let failure = importer.run(&mut lines, 0, &mut Progress::new(Form::Json)).unwrap_err();
            drop(importer);
            assert_eq!(
                failure.to_string(),
                format!("lines, line 3: cannot read it: pulled out; {stored}")
            );
            assert_eq!(failure.exit(), crate::exit::Exit::Failed);
            let table = opened.table("t").unwrap();
            assert_eq!(opened.snapshot().unwrap().len(table), Ok(rows));
        }
    }
}
