//! Commands on snapshots that are kept under a name.

use serde_json::json;

use crate::args::RawSnapshot;
use crate::escape::escape;
use crate::failure::Failure;
use crate::open::{open, open_to_read};
use crate::output::Output;
use crate::request::{SnapshotAt, Target};

pub(crate) fn snapshot(command: RawSnapshot, output: &mut Output) -> Result<(), Failure> {
    match command {
        RawSnapshot::Keep(args) => keep(&args.try_into()?, output),
        RawSnapshot::List(args) => list(&args.try_into()?, output),
        RawSnapshot::Drop(args) => drop(&args.try_into()?, output),
    }
}

fn keep(at: &SnapshotAt, output: &mut Output) -> Result<(), Failure> {
    let opened = open(&at.target)?;
    opened.run(|database| database.create_named_snapshot(&at.name))?;
    opened.close()?;
    Ok(output.show(&json!({ "snapshot": at.name }), String::new)?)
}

fn list(target: &Target, output: &mut Output) -> Result<(), Failure> {
    let opened = open_to_read(target)?;
    let names = opened.database().named_snapshots();
    let alone = opened.database().stats().space.frozen_pages;
    opened.close()?;
    let json = json!({ "snapshots": names, "snapshot_pages": alone });
    let text = || names.iter().map(|name| escape(name.as_bytes()) + "\n").collect();
    Ok(output.show(&json, text)?)
}

fn drop(at: &SnapshotAt, output: &mut Output) -> Result<(), Failure> {
    let opened = open(&at.target)?;
    opened.require_snapshot(&at.name)?;
    opened.run(|database| database.delete_named_snapshot(&at.name))?;
    opened.close()?;
    Ok(output.show(&json!({ "snapshot": at.name }), String::new)?)
}
