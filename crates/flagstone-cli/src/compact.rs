//! The command `compact`.
//!
//! Owns its output; the library exchanges the files.

use std::path::Path;

use flagstone::report::CompactReport;
use flagstone::{CompactError, Database};
use serde_json::json;

use crate::failure::Failure;
use crate::interrupt;
use crate::output::{Output, counted, path_text};
use crate::progress::Progress;
use crate::request::{Compact, UsageError};
use crate::size::format_size;

/// Writes a database in a plain file anew.
pub(crate) fn compact(compact: &Compact, output: &mut Output) -> Result<(), Failure> {
    let Compact { target, size } = compact;
    if target.profile.is_some() {
        return Err(UsageError::Conflict(FILES_HAVE_ONE_SHAPE).into());
    }
    let mut progress = Progress::new(output.form());
    interrupt::watch_files();
    let watch = |done, total| {
        if total > 0 {
            progress.report("compacting rows", done, total);
        }
    };
    let result = match size {
        Some(size) => Database::compact_sized(&target.path, &target.options, *size, watch),
        None => Database::compact_watched(&target.path, &target.options, watch),
    };
    progress.finish();
    let report = result.map_err(|source| failure(&target.path, source))?;
    let json = json!({
        "path": path_text(&target.path),
        "tables": report.tables,
        "rows": report.rows,
        "size_before": report.size_before,
        "size": report.size,
        "used_before": report.used_before,
        "used": report.used,
    });
    Ok(output.show(&json, || text(&report))?)
}

/// The failure that an error is, which names each file once.
fn failure(path: &Path, error: CompactError) -> Failure {
    let path = path.to_owned();
    match error {
        // The file is the database, or lies beside it under a name unknown to the user.
        CompactError::Io { source, .. } => Failure::File { path, source },
        source => Failure::Compact { path, source },
    }
}

const FILES_HAVE_ONE_SHAPE: &str = "compact takes plain files alone, which need no --profile";

fn text(report: &CompactReport) -> String {
    let CompactReport { tables, rows, size_before, size, used_before, used, .. } = *report;
    let (rows, tables) = (counted(rows, "row", "rows"), counted(tables, "table", "tables"));
    let [size_before, size, used_before, used] =
        [size_before, size, used_before, used].map(format_size);
    format!(
        "compacted {rows} of {tables}\n\
         file: {size_before} before, {size} now; pages in use: {used_before} before, {used} now\n"
    )
}
