//! The command `salvage`, and the messages of other commands about unreadable rows.
//!
//! Owns the words; the library saves the rows.

use std::convert::Infallible;
use std::fmt::{Display, Write as _};

use flagstone::Database;
use flagstone::salvage::{KeySpan, MissingRange, SalvageMethod, SalvageReport};
use serde_json::{Value, json};

use crate::escape::escape;
use crate::exit::Exit;
use crate::failure::{Failure, warn};
use crate::interrupt::HalfMade;
use crate::output::{Form, Output, counted, path_text};
use crate::progress::Progress;
use crate::request::Salvage;

/// Saves the readable rows of a damaged database into a new one.
pub(crate) fn salvage(salvage: &Salvage, output: &mut Output) -> Result<Exit, Failure> {
    let Salvage { target, to } = salvage;
    let is_there = to.symlink_metadata().is_ok();
    let name = || Ok::<_, Infallible>(to.as_path());
    let _half_made = (!is_there).then(|| HalfMade::make(name, |to| to));
    let mut progress = Progress::new(output.form());
    let watch = |rows| progress.report("saving rows", rows, 0);
    let (profile, options) = (target.profile.as_ref(), &target.options);
    let report = Database::salvage_watched(&target.path, profile, to, options, watch);
    progress.finish();
    let path = target.path.clone();
    let report = report.map_err(|source| Failure::Salvage { path, source })?;
    output.show(&report_json(salvage, &report), || report_text(salvage, &report))?;
    if report.is_complete() {
        return Ok(Exit::Ok);
    }
    let count = (report.missing.len() + report.doubtful.len()) as u64;
    Err(Failure::Incomplete { path: target.path.clone(), count })
}

fn report_json(salvage: &Salvage, report: &SalvageReport) -> Value {
    let tables = report.tables.iter().map(
        |table| json!({ "table": table.name, "rows": table.rows, "invented": table.is_invented }),
    );
    json!({
        "file": path_text(&salvage.to),
        "method": match report.method {
            SalvageMethod::Opened => "opened",
            SalvageMethod::Scanned => "scanned",
        },
        "rows": report.rows,
        "bytes": report.bytes,
        "damaged_pages": report.damaged_pages,
        "complete": report.is_complete(),
        "tables": tables.collect::<Vec<_>>(),
        "missing": report.missing.iter().map(span_json).collect::<Vec<_>>(),
        "doubtful": report.doubtful.iter().map(span_json).collect::<Vec<_>>(),
    })
}

fn span_json<C: Display>(span: &KeySpan<C>) -> Value {
    json!({
        "table": span.table,
        "from": escape(&span.low),
        "to": span.high.as_deref().map(escape),
        "cause": span.cause.to_string(),
    })
}

fn report_text(salvage: &Salvage, report: &SalvageReport) -> String {
    let rows = counted(report.rows, "row", "rows");
    let tables = counted(report.tables.len(), "table", "tables");
    let mut text = format!("saved {rows} of {tables} to {}\n", salvage.to.display());
    for table in report.tables.iter().filter(|table| table.is_invented) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "no name is left of the table that is called {} now", table.name);
    }
    for span in &report.missing {
        let _ = writeln!(
            text,
            "missing: {}: {}",
            place(&span.table, &span.low, span.high.as_deref()),
            span.cause
        );
    }
    for span in &report.doubtful {
        let _ = writeln!(
            text,
            "may be old: {}: {}",
            place(&span.table, &span.low, span.high.as_deref()),
            span.cause
        );
    }
    text
}

/// A range of keys in words.
fn place(table: &str, low: &[u8], high: Option<&[u8]>) -> String {
    let name = escape(table.as_bytes());
    match high {
        None if low.is_empty() => format!("{name}, all keys"),
        None => format!("{name}, keys from {}", escape(low)),
        Some(high) => format!("{name}, keys from {} to before {}", escape(low), escape(high)),
    }
}

/// Reports the rows that a command went on without.
pub(crate) fn tell_missing(table: &str, range: &MissingRange, form: Form) {
    let place = place(table, &range.low, range.high.as_deref());
    warn(&format!("{place} do not read: {}", range.error), form);
}
