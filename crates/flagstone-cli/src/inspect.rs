//! The commands that look at a database: `stats`, `check`, `wear`.
//!
//! Owns the print of counters and blocks. Changes no row.

use std::io::Write as _;
use std::path::Path;

use flagstone::report::{CheckReport, RecoveryReport};
use flagstone::{Bill, Stats};
use flagstone_nand::Geometry;
use flagstone_space::{BlockReport, BlockState, Cause};
use serde_json::{Value, json};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::files::{is_standard, write_new};
use crate::open::{Opened, open, open_to_read};
use crate::output::{Form, Output, counted, path_text};
use crate::picture::{self, Caption};
use crate::progress::Progress;
use crate::request::{Target, UsageError, Wear};
use crate::size::format_size;
use crate::table::{Align, Table, grouped};

/// A table of the database, and its number of rows.
struct TableSize {
    name: String,
    rows: u64,
}

/// Prints the content of a database, and the counters of its opening.
pub(crate) fn stats(target: &Target, output: &mut Output) -> Result<(), Failure> {
    let opened = open_to_read(target)?;
    let tables = table_sizes(&opened)?;
    let (stats, recovery) = (opened.database().stats(), opened.database().recovery());
    let shape = shape(&opened);
    opened.close()?;
    let json = json!({
        "tables": tables.iter().map(|table| json!({ "name": table.name, "rows": table.rows })).collect::<Vec<_>>(),
        "device": device_json(&shape),
        "limits": {
            "key_size_max": stats.limits.key_size_max,
            "inline_value_size_max": stats.limits.inline_value_size_max,
            "value_size_max": stats.limits.value_size_max,
            "table_count_max": stats.limits.table_count_max,
        },
        "space": space_json(&stats),
        "recovery": recovery_json(&recovery),
    });
    Ok(output.show(&json, || stats_text(&tables, &shape, &stats, &recovery))?)
}

fn table_sizes(opened: &Opened) -> Result<Vec<TableSize>, Failure> {
    let names = opened.run(flagstone::Database::tables)?;
    let snapshot = opened.snapshot()?;
    let rows = |name: String| {
        let table = opened.table(&name)?;
        let rows = snapshot.len(table).map_err(|source| opened.failure(source))?;
        Ok(TableSize { name, rows })
    };
    names.into_iter().map(rows).collect()
}

/// Shape of a device, with its present blocks, and its greatest size.
struct Shape {
    geometry: Geometry,
    data_size_max: u64,
}

fn shape(opened: &Opened) -> Shape {
    use flagstone_nand::Nand;
    let space = opened.database().runtime().space();
    let geometry = space.device().geometry();
    let block_count = space.device().present_blocks();
    Shape { geometry: Geometry { block_count, ..geometry }, data_size_max: geometry.data_size() }
}

fn device_json(Shape { geometry: shape, data_size_max }: &Shape) -> Value {
    json!({
        "page_size": shape.page_size,
        "spare_size": shape.spare_size,
        "pages_per_block": shape.pages_per_block,
        "block_count": shape.block_count,
        "die_count": shape.die_count,
        "data_size": shape.data_size(),
        "data_size_max": data_size_max,
    })
}

/// Name of a cause, as in the run object.
const fn cause_name(cause: Cause) -> &'static str {
    match cause {
        Cause::Log => "log",
        Cause::Data => "data",
        Cause::Delta => "delta",
        Cause::Flag => "flag",
        Cause::Metadata => "metadata",
        Cause::Relocation => "relocation",
        Cause::Wear => "wear",
    }
}

/// Cost of transactions on flash.
pub(crate) fn bill_json(bill: &Bill) -> Value {
    let of = |cause| (cause_name(cause).to_owned(), Value::from(bill.programs_for(cause)));
    let by_cause: serde_json::Map<_, _> = Cause::ALL.into_iter().map(of).collect();
    json!({
        "programs": bill.programs(),
        "bytes": bill.bytes(),
        "erases": bill.erases(),
        "programs_by_cause": by_cause,
    })
}

fn space_json(stats: &Stats) -> Value {
    let space = &stats.space;
    let causes = Cause::ALL.into_iter().zip(space.programs_by_cause);
    let by_cause: serde_json::Map<_, _> =
        causes.map(|(cause, count)| (cause_name(cause).to_owned(), Value::from(count))).collect();
    json!({
        "live_pages": space.live_pages,
        "snapshot_pages": space.frozen_pages,
        "capacity_pages": space.capacity_pages,
        "free_blocks": space.free_blocks,
        "bad_blocks": space.bad_blocks,
        "erase_count": {
            "min": space.erase_count.min,
            "mean": space.erase_count.mean,
            "max": space.erase_count.max,
        },
        "mapping_bytes": space.mapping_bytes,
        "programs_by_cause": by_cause,
    })
}

fn recovery_json(recovery: &RecoveryReport) -> Value {
    json!({
        "pages_read": recovery.pages_read,
        "pages_written": recovery.pages_written,
        "log_pages_read": recovery.log_pages_read,
        "log_pages_copied": recovery.log_pages_copied,
        "commits": recovery.commits,
        "full_scan": recovery.full_scan,
        "time_s": recovery.time_ns as f64 / 1e9,
    })
}

fn stats_text(
    tables: &[TableSize],
    shape: &Shape,
    stats: &Stats,
    recovery: &RecoveryReport,
) -> String {
    let mut rows = Table::new([("table", Align::Left), ("rows", Align::Right)]);
    for table in tables {
        rows.row([crate::escape::escape(table.name.as_bytes()), grouped(table.rows)]);
    }
    format!("{rows}\n{}\n{}", device_text(shape, stats), opening_text(stats, recovery))
}

fn device_text(shape: &Shape, stats: &Stats) -> String {
    let Shape { geometry: shape, data_size_max } = shape;
    let space = &stats.space;
    let (live, capacity) = (space.live_pages, space.capacity_pages.max(1));
    let share = 100.0 * f64::from(live) / f64::from(capacity);
    let wear = space.erase_count;
    let mut table = Table::new([("device", Align::Left), ("", Align::Right)]);
    let mut line = |name: &str, value: String| table.row([name.to_owned(), value]);
    line("data area", format_size(shape.data_size()));
    if *data_size_max > shape.data_size() {
        line("grows to", format_size(*data_size_max));
    }
    line(
        "blocks x pages x bytes",
        format!("{} x {} x {}", shape.block_count, shape.pages_per_block, shape.page_size),
    );
    line(
        "live pages",
        format!("{} of {} ({share:.1} %)", grouped(live.into()), grouped(capacity.into())),
    );
    line("free blocks", grouped(space.free_blocks.into()));
    line("bad blocks", grouped(space.bad_blocks.into()));
    line(
        "erases of a block, min / mean / max",
        format!("{} / {:.1} / {}", wear.min, wear.mean, wear.max),
    );
    line("longest key", format_size(stats.limits.key_size_max as u64));
    line("longest value", format_size(stats.limits.value_size_max as u64));
    line("memory of the mapping", format_size(space.mapping_bytes as u64));
    table.to_string()
}

fn opening_text(stats: &Stats, recovery: &RecoveryReport) -> String {
    let mut table = Table::new([("this opening", Align::Left), ("", Align::Right)]);
    let mut line = |name: &str, value: String| table.row([name.to_owned(), value]);
    line("pages read", grouped(recovery.pages_read));
    line("pages written", grouped(recovery.pages_written));
    line("commits put back from the log", grouped(recovery.commits));
    line("time, ms", format!("{:.1}", recovery.time_ns as f64 / 1e6));
    for (cause, count) in Cause::ALL.into_iter().zip(stats.space.programs_by_cause) {
        if count > 0 {
            line(&format!("programs for {}", cause_name(cause)), grouped(count));
        }
    }
    table.to_string()
}

/// Checks the structure; faults make the command fail.
pub(crate) fn check(target: &Target, output: &mut Output) -> Result<Exit, Failure> {
    let opened = open_to_read(target)?;
    let progress = Progress::spinning(output.form(), "checking");
    let report = opened.run(flagstone::Database::check);
    progress.finish();
    let report = report?;
    opened.close()?;
    let faults: Vec<String> = report.faults.iter().map(ToString::to_string).collect();
    let json = json!({
        "sound": report.is_sound(),
        "tables": report.tables,
        "rows": report.rows,
        "leaves": report.leaves,
        "inner_nodes": report.inner_nodes,
        "leaf_entries": report.leaf_entries,
        "pending": report.pending,
        "values": report.values,
        "snapshots": report.snapshots,
        "leaked_pages": report.leaked_pages,
        "faults": faults,
    });
    output.show(&json, || check_text(&report, &faults))?;
    if report.is_sound() {
        return Ok(Exit::Ok);
    }
    Err(Failure::Unsound { path: target.path.clone(), count: faults.len() as u64 })
}

/// Merges every pending change into its leaf.
pub(crate) fn merge(target: &Target, output: &mut Output) -> Result<(), Failure> {
    let opened = open(target)?;
    let pending_before = opened.database().stats().engine.deltas;
    let progress = Progress::spinning(output.form(), "merging");
    let merged = opened.run(flagstone::Database::merge);
    progress.finish();
    merged?;
    let pending = opened.database().stats().engine.deltas;
    opened.close()?;
    let json = json!({ "pending_before": pending_before, "pending": pending });
    let text = || {
        let before = counted(pending_before, "change was", "changes were");
        let left = counted(pending, "is", "are");
        format!("{before} pending, {left} left\n")
    };
    Ok(output.show(&json, text)?)
}

fn check_text(report: &CheckReport, faults: &[String]) -> String {
    let lines: String = faults.iter().map(|fault| format!("{fault}\n")).collect();
    let verdict = if report.is_sound() { "sound" } else { "damaged" };
    let tables = counted(report.tables, "table", "tables");
    let rows = counted(report.rows, "row", "rows");
    let values = counted(report.values, "large value", "large values");
    let leaves = counted(report.leaves, "leaf", "leaves");
    let entries = counted(report.leaf_entries, "entry", "entries");
    let inner_nodes = counted(report.inner_nodes, "inner node", "inner nodes");
    let pending = counted(report.pending, "change", "changes");
    let leaked = counted(report.leaked_pages, "page", "pages");
    let kept = match report.snapshots {
        0 => String::new(),
        count => format!(", {} kept", counted(count, "snapshot", "snapshots")),
    };
    format!(
        "{lines}{verdict}: {tables} with {rows}, {values}{kept}\n\
         \x20 {leaves} with {entries}, {inner_nodes}, {pending} pending, {leaked} leaked\n"
    )
}

/// Draws the blocks of the device: as text, or as a picture in a file.
pub(crate) fn wear(wear: &Wear, output: &mut Output) -> Result<(), Failure> {
    let opened = open_to_read(&wear.target)?;
    let blocks = opened.database().block_report();
    let shape = shape(&opened);
    let stats = opened.database().stats();
    opened.close()?;
    if let Some(file) = &wear.svg {
        let picture =
            picture::svg(&blocks, &caption(&wear.target, &blocks, &shape.geometry, &stats));
        return write_picture(file, &picture, output);
    }
    let rows = blocks.iter().map(|block| {
        json!({
            "block": block.block.0,
            "state": state_name(block.state),
            "live": block.live,
            "erases": block.erases,
        })
    });
    let json = json!({ "device": device_json(&shape), "blocks": rows.collect::<Vec<_>>() });
    Ok(output.show(&json, || wear_text(&blocks, &shape.geometry, &stats))?)
}

fn caption(target: &Target, blocks: &[BlockReport], shape: &Geometry, stats: &Stats) -> Caption {
    Caption {
        title: target.path.display().to_string(),
        units: units_of(blocks, shape),
        erases: erases_text(stats),
    }
}

fn write_picture(file: &Path, picture: &str, output: &mut Output) -> Result<(), Failure> {
    if is_standard(file) {
        if output.form() == Form::Json {
            let reason = "a picture on standard output leaves no room for --json";
            return Err(UsageError::Conflict(reason).into());
        }
        return Ok(output.stream().write_all(picture.as_bytes())?);
    }
    write_new(file, |stream| Ok(stream.write_all(picture.as_bytes())?))?;
    Ok(output.show(&json!({ "file": path_text(file) }), || format!("drew {}\n", file.display()))?)
}

/// Units that a block has room for, as far as the blocks tell.
fn units_of(blocks: &[BlockReport], shape: &Geometry) -> u32 {
    blocks.iter().map(|block| block.live).max().unwrap_or(0).max(shape.pages_per_block)
}

fn erases_text(stats: &Stats) -> String {
    let wear = stats.space.erase_count;
    format!("min {}, mean {:.1}, max {}", wear.min, wear.mean, wear.max)
}

pub(crate) const fn state_name(state: BlockState) -> &'static str {
    match state {
        BlockState::Free => "free",
        BlockState::Open => "open",
        BlockState::Closed => "closed",
        BlockState::Log => "log",
        BlockState::Ring => "anchors",
        BlockState::Retired => "retired",
        BlockState::Bad => "bad",
    }
}

/// Blocks of a line of the picture.
const LINE_BLOCKS: usize = 64;

/// One character a block: its live share, or its other state.
fn validity_mark(block: &BlockReport, unit_count: u32) -> char {
    match block.state {
        BlockState::Free => '.',
        BlockState::Log => 'L',
        BlockState::Ring => 'A',
        BlockState::Retired => 'r',
        BlockState::Bad => 'x',
        BlockState::Open | BlockState::Closed => {
            let tenth = block.live * 10 / unit_count.max(1);
            char::from_digit(tenth.min(9), 10).unwrap_or('9')
        }
    }
}

/// One character a block: its erases as tenths of the most worn one.
fn wear_mark(block: &BlockReport, erases_max: u32) -> char {
    if block.state == BlockState::Bad {
        return 'x';
    }
    let tenth = u64::from(block.erases) * 9 / u64::from(erases_max.max(1));
    u32::try_from(tenth).ok().and_then(|tenth| char::from_digit(tenth, 10)).unwrap_or('9')
}

fn character_map(blocks: &[BlockReport], mark: impl Fn(&BlockReport) -> char) -> String {
    let lines = blocks.chunks(LINE_BLOCKS).map(|line| {
        let first = line.first().map_or(0, |block| block.block.0);
        let marks: String = line.iter().map(&mark).collect();
        format!("{first:>7}  {marks}\n")
    });
    lines.collect()
}

fn wear_text(blocks: &[BlockReport], shape: &Geometry, stats: &Stats) -> String {
    let unit_count = units_of(blocks, shape);
    let erases_max = stats.space.erase_count.max;
    let validity = character_map(blocks, |block| validity_mark(block, unit_count));
    let erases = character_map(blocks, |block| wear_mark(block, erases_max));
    format!(
        "live pages, in tenths of a block (. free, L log, A anchors, r retired, x bad)\n{validity}\n\
         erases, in ninths of the most worn block (0 hardly any, 9 most; x bad)\n{erases}\n\
         erases of a block: {}\n",
        erases_text(stats)
    )
}
