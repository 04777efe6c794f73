//! Commands on whole tables.

use serde_json::json;

use crate::failure::Failure;
use crate::open::{open, open_to_read};
use crate::output::Output;
use crate::request::{Rename, TableAt, Target};

/// Prints the names of all tables, in order.
pub(crate) fn tables(target: &Target, output: &mut Output) -> Result<(), Failure> {
    let opened = open_to_read(target)?;
    let tables = opened.run(flagstone::Database::tables)?;
    opened.close()?;
    let text = || tables.iter().map(|table| format!("{table}\n")).collect();
    Ok(output.show(&json!({ "tables": tables }), text)?)
}

/// Gives a table another name.
pub(crate) fn rename(rename: &Rename, output: &mut Output) -> Result<(), Failure> {
    let TableAt { target, table } = &rename.at;
    let opened = open(target)?;
    opened.table(table)?;
    opened.run(|database| database.rename_table(table, &rename.to))?;
    opened.close()?;
    Ok(output.show(&json!({ "table": table, "to": rename.to }), String::new)?)
}

/// Drops a table.
pub(crate) fn drop(at: &TableAt, output: &mut Output) -> Result<(), Failure> {
    let opened = open(&at.target)?;
    opened.table(&at.table)?;
    opened.run(|database| database.drop_table(&at.table))?;
    opened.close()?;
    Ok(output.show(&json!({ "table": at.table }), String::new)?)
}
