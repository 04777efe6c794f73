//! The commands that move rows between databases: `export` and `import`.
//!
//! Owns which rows go into which transaction, and what is said when one cannot be stored. The form of
//! a line is that of [`crate::lines`].
//!
//! Invariants:
//! - I1: an export is one snapshot, and its file has its name only when it is complete.
//! - I2: an import that fails names the line, and the line up to which everything is stored.
//! - I3: an import that was interrupted can be run again as it is: a row that is stored twice is
//!   the same row.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::path::PathBuf;

use flagstone::{Bill, EngineError, Table, Transaction};
use serde_json::json;

use crate::failure::{Failure, LineFault};
use crate::files::{at, is_standard, open_input, write_new};
use crate::inspect::bill_json;
use crate::lines::{LineRow, Lines, write_row};
use crate::open::{Opened, open, open_to_read};
use crate::output::{Form, Output, counted};
use crate::progress::Progress;
use crate::request::{Atomicity, Export, Import, UsageError};

/// Rows between two looks at the progress line.
const PROGRESS_ROWS: u64 = 256;

/// Bytes of keys and values after which a transaction of an import is committed, whatever its rows.
const BATCH_BYTES: usize = 1 << 20;

/// Writes all rows of some tables, one a line.
pub(crate) fn export(export: &Export, output: &mut Output) -> Result<(), Failure> {
    let to_stream = is_standard(&export.file);
    if to_stream && output.form() == Form::Json {
        return Err(UsageError::Conflict(EXPORT_IS_NOT_ONE_OBJECT).into());
    }
    let opened = open_to_read(&export.target)?;
    let names = match export.tables.as_slice() {
        [] => opened.run(flagstone::Database::tables)?,
        named => named.to_vec(),
    };
    let tables = names.into_iter().map(|name| Ok((opened.table(&name)?, name)));
    let tables: Vec<(Table, String)> = tables.collect::<Result<_, Failure>>()?;
    let mut progress = Progress::new(output.form());
    let rows = if to_stream {
        write_rows(&opened, &tables, output.stream(), &mut progress)
    } else {
        write_new(&export.file, |stream| write_rows(&opened, &tables, stream, &mut progress))
    };
    progress.finish();
    let rows = rows?;
    opened.close()?;
    if to_stream {
        return Ok(());
    }
    let (file, tables) = (&export.file, tables.len());
    let json = json!({ "file": file, "tables": tables, "rows": rows });
    let text = || {
        let (rows, tables) = (counted(rows, "row", "rows"), counted(tables, "table", "tables"));
        format!("exported {rows} of {tables} to {}\n", file.display())
    };
    Ok(output.show(&json, text)?)
}

const EXPORT_IS_NOT_ONE_OBJECT: &str =
    "an export to standard output is one object a row already; --json needs a FILE";

fn write_rows(
    opened: &Opened,
    tables: &[(Table, String)],
    stream: &mut dyn Write,
    progress: &mut Progress,
) -> Result<u64, Failure> {
    let snapshot = opened.snapshot()?;
    let total = tables.iter().map(|(table, _)| opened.len_estimate(*table)).sum::<u64>();
    let mut count = 0_u64;
    for (table, name) in tables {
        for row in snapshot.range(*table, ..) {
            let (key, value) = row.map_err(|source| opened.failure(source))?;
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
    let (rows, commits, bill) = (importer.rows, importer.commits, importer.bill);
    result?;
    opened.close()?;
    let json = json!({
        "rows": rows,
        "lines": lines.number(),
        "transactions": commits,
        "bill": bill_json(&bill),
    });
    let text = || {
        let rows = counted(rows, "row", "rows");
        let commits = counted(commits, "transaction", "transactions");
        let programs = counted(bill.programs(), "page", "pages");
        format!("imported {rows} in {commits}, {programs} programmed\n")
    };
    Ok(output.show(&json, text)?)
}

/// An import under way.
struct Importer<'a> {
    opened: &'a Opened,
    request: &'a Import,
    tables: HashMap<String, Table>,
    transaction: Option<Transaction>,
    batch_rows: u64,
    batch_bytes: usize,
    /// Line up to which everything is stored.
    stored: u64,
    rows: u64,
    commits: u64,
    bill: Bill,
}

impl<'a> Importer<'a> {
    fn new(opened: &'a Opened, request: &'a Import) -> Self {
        Self {
            opened,
            request,
            tables: HashMap::new(),
            transaction: None,
            batch_rows: 0,
            batch_bytes: 0,
            stored: request.first_line.saturating_sub(1),
            rows: 0,
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
        while let Some(row) = lines.next_row().map_err(at(path))? {
            let stored = row.map_err(LineFault::Form).and_then(|row| self.put(&row));
            if let Err(fault) = stored {
                return Err(self.give_up(lines.number(), fault));
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

    fn put(&mut self, row: &LineRow) -> Result<(), LineFault> {
        let table = match self.tables.get(&row.table) {
            Some(table) => *table,
            None => {
                let table = self.opened.database().table(&row.table)?;
                self.tables.insert(row.table.clone(), table);
                table
            }
        };
        let begin = || self.opened.database().begin();
        let transaction = self.transaction.get_or_insert_with(begin);
        transaction.put(table, &row.key, &row.value)?;
        self.batch_rows += 1;
        self.batch_bytes += row.key.len() + row.value.len();
        Ok(())
    }

    /// Makes everything up to `line` durable.
    fn commit(&mut self, line: u64) -> Result<(), Failure> {
        if let Some(transaction) = self.transaction.take() {
            let committed = transaction.commit();
            self.bill += committed.map_err(|error| self.failure(line, error.into()))?.bill;
            self.commits += 1;
        }
        self.rows += self.batch_rows;
        self.stored = line;
        (self.batch_rows, self.batch_bytes) = (0, 0);
        Ok(())
    }

    /// The failure of a line. What stands before a line that is no row is stored.
    fn give_up(&mut self, line: u64, fault: LineFault) -> Failure {
        let is_own = match &fault {
            LineFault::Form(_) => true,
            LineFault::Engine(error) => {
                matches!(error, EngineError::KeyTooLong { .. } | EngineError::ValueTooLong { .. })
            }
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
