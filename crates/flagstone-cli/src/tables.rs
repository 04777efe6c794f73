//! Commands on whole tables.

use serde_json::json;

use crate::escape::escape;
use crate::failure::Failure;
use crate::open::{open, open_to_read};
use crate::output::Output;
use crate::request::{Rename, TableAt, Target};

/// Prints the names of all tables, in order.
pub(crate) fn tables(target: &Target, output: &mut Output) -> Result<(), Failure> {
    let opened = open_to_read(target)?;
    let tables = opened.tables()?;
    opened.close()?;
    let text = || tables.iter().map(|table| escape(table.as_bytes()) + "\n").collect();
    Ok(output.show(&json!({ "tables": tables }), text)?)
}

/// Gives a table another name.
pub(crate) fn rename(rename: &Rename, output: &mut Output) -> Result<(), Failure> {
    let TableAt { target, table } = &rename.at;
    let opened = open(target)?;
    opened.table(table)?;
    let indexes = opened.indexes(table)?;
    opened.run(|database| database.rename_table(table, &rename.to))?;
    opened.close()?;
    let json = json!({ "table": table, "to": rename.to, "indexes": indexes });
    Ok(output.show(&json, || with_it("renamed", &indexes))?)
}

/// Drops a table.
pub(crate) fn drop(at: &TableAt, output: &mut Output) -> Result<(), Failure> {
    let opened = open(&at.target)?;
    opened.table(&at.table)?;
    let indexes = opened.indexes(&at.table)?;
    opened.run(|database| database.drop_table(&at.table))?;
    opened.close()?;
    let json = json!({ "table": at.table, "indexes": indexes });
    Ok(output.show(&json, || with_it("dropped", &indexes))?)
}

/// The indexes that went with their table, a line each.
fn with_it(verb: &str, indexes: &[String]) -> String {
    let line = |index: &String| format!("{verb} with it: {}\n", escape(index.as_bytes()));
    indexes.iter().map(line).collect()
}
