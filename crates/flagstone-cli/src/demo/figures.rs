//! The I/O statistics of finished runs in one table.
//!
//! Owns the list of figures and their comparison; the page and the CSV file show the same table. Takes every figure
//! from the run object.

use std::fmt::Write as _;

use flagstone_lab::run::{Run, ratio};
use serde_json::{Value, json};

use super::runs::Finished;
use crate::table::grouped;

/// One line of the table.
struct Figure {
    name: &'static str,
    unit: &'static str,
    kind: Kind,
    of: fn(&Run) -> Option<f64>,
}

/// How a figure is shown and compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A count of the window: shown for each transaction too, and compared by that.
    Count,
    /// Taken as it is, with so many decimals.
    Plain(usize),
}

const fn count(name: &'static str, of: fn(&Run) -> Option<f64>) -> Figure {
    Figure { name, unit: "", kind: Kind::Count, of }
}

const fn plain(
    name: &'static str,
    unit: &'static str,
    decimals: usize,
    of: fn(&Run) -> Option<f64>,
) -> Figure {
    Figure { name, unit, kind: Kind::Plain(decimals), of }
}

/// Figures under one heading.
type Group = (&'static str, &'static [Figure]);

const GROUPS: &[Group] = &[
    (
        "Transactions",
        &[
            plain("Transactions", "", 0, |run| Some(run.commits as f64)),
            plain("Simulated time", "s", 2, |run| Some(run.elapsed_s)),
            plain("Throughput", "transactions/s", 0, |run| Some(run.tps)),
            plain("Latency, median", "µs", 0, |run| Some(run.latency_us.p50)),
            plain("Latency, 99 %", "µs", 0, |run| Some(run.latency_us.p99)),
        ],
    ),
    (
        "Flash operations",
        &[
            count("Page reads", |run| Some(run.page_reads as f64)),
            count("Programs", |run| Some(programs(run))),
            count("of whole pages", |run| Some(run.page_programs as f64)),
            count("of parts of pages", |run| Some(run.partial_programs as f64)),
            count("Block erases", |run| Some(run.block_erases as f64)),
            count("Pages moved by garbage collection", |run| Some(run.gc_migrations as f64)),
        ],
    ),
    (
        "Programs by cause",
        &[
            count("Log", |run| Some(run.programs_by_cause.log as f64)),
            count("Data, out of place", |run| Some(run.programs_by_cause.data as f64)),
            count("Appends, in place", |run| Some(run.programs_by_cause.delta as f64)),
            count("Commit flags", |run| Some(run.programs_by_cause.flag as f64)),
            count("Metadata", |run| Some(run.programs_by_cause.metadata as f64)),
            count("Relocation", |run| Some(run.programs_by_cause.relocation as f64)),
            count("Wear levelling", |run| Some(run.programs_by_cause.wear as f64)),
        ],
    ),
    (
        "Page writes of the host",
        &[
            count("Page writes: data and appends", |run| Some(host_writes(run) as f64)),
            plain("Of them in place", "%", 1, |run| {
                share(run.delta_appends, host_writes(run)).map(|share| 100.0 * share)
            }),
            plain("Migrations a page write", "", 4, |run| {
                share(run.gc_migrations, host_writes(run))
            }),
            plain("Erases a page write", "", 4, |run| share(run.block_erases, host_writes(run))),
        ],
    ),
    (
        "Bytes and wear",
        &[
            count("Bytes changed by transactions", |run| Some(run.user_bytes as f64)),
            count("Bytes programmed", |run| Some(run.bytes_programmed as f64)),
            plain("Write amplification", "", 2, |run| Some(run.write_amplification)),
            plain("Erases of a block, mean", "", 2, |run| Some(run.erase_count.mean)),
            plain("Erases of a block, most", "", 0, |run| Some(f64::from(run.erase_count.max))),
            plain("Expected lifetime", "transactions", 0, |run| {
                run.lifetime_txns.map(|txns| txns as f64)
            }),
        ],
    ),
    (
        "Restart after a power cut",
        &[
            plain("Pages read", "", 0, |run| run.recovery.map(|one| one.pages_read as f64)),
            plain("Pages written", "", 0, |run| run.recovery.map(|one| one.pages_written as f64)),
            plain("Time", "ms", 1, |run| run.recovery.map(|one| 1000.0 * one.time_s)),
        ],
    ),
];

fn programs(run: &Run) -> f64 {
    (run.page_programs + run.partial_programs) as f64
}

fn host_writes(run: &Run) -> u64 {
    run.programs_by_cause.data + run.programs_by_cause.delta
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| ratio(part, whole))
}

/// Values of one figure in one run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    value: Option<f64>,
    per_transaction: Option<f64>,
    /// Ratio to the first run's value; a count is compared per transaction.
    against_first: Option<f64>,
}

impl Figure {
    fn cells(&self, finished: &[Finished]) -> Vec<Cell> {
        let first = finished.first().and_then(|one| self.compared(&one.run));
        let cell = |one: &Finished| Cell {
            value: (self.of)(&one.run),
            per_transaction: self.per_transaction(&one.run),
            against_first: self.compared(&one.run).zip(first).and_then(quotient),
        };
        finished.iter().map(cell).collect()
    }

    fn per_transaction(&self, run: &Run) -> Option<f64> {
        let is_count = self.kind == Kind::Count && run.commits > 0;
        (self.of)(run).filter(|_| is_count).map(|value| value / run.commits as f64)
    }

    fn compared(&self, run: &Run) -> Option<f64> {
        match self.kind {
            Kind::Count => self.per_transaction(run),
            Kind::Plain(_) => (self.of)(run),
        }
    }

    fn shown(&self, value: f64) -> String {
        match self.kind {
            Kind::Count | Kind::Plain(0) => grouped(value.round() as u64),
            Kind::Plain(decimals) => format!("{value:.decimals$}"),
        }
    }
}

fn quotient((value, first): (f64, f64)) -> Option<f64> {
    let quotient = value / first;
    quotient.is_finite().then_some(quotient)
}

/// The table for the page: texts to be shown as they are.
pub(super) fn table(finished: &[Finished]) -> Value {
    let runs = finished
        .iter()
        .map(|one| json!({ "label": one.label, "command": one.command, "about": about(&one.run) }));
    let groups = GROUPS.iter().map(|(name, figures)| {
        let rows: Vec<Value> = figures.iter().map(|figure| row(figure, finished)).collect();
        json!({ "name": name, "rows": rows })
    });
    json!({ "runs": runs.collect::<Vec<_>>(), "groups": groups.collect::<Vec<_>>() })
}

fn row(figure: &Figure, finished: &[Finished]) -> Value {
    let text = |value: Option<f64>, show: &dyn Fn(f64) -> String| {
        value.map_or_else(|| String::from("–"), show)
    };
    let cells = figure.cells(finished).into_iter().map(|cell| {
        json!([
            text(cell.value, &|value| figure.shown(value)),
            text(cell.per_transaction, &each),
            text(cell.against_first, &|value| format!("{value:.2}")),
        ])
    });
    json!({ "name": figure.name, "unit": figure.unit, "cells": cells.collect::<Vec<_>>() })
}

/// A share of one transaction: three decimals, or none for large values.
fn each(value: f64) -> String {
    if value < 1000.0 { format!("{value:.3}") } else { grouped(value.round() as u64) }
}

/// The benchmark of a run, and whether its figures may be compared with others.
fn about(run: &Run) -> String {
    let config = &run.config;
    let steady = if run.steady { "steady" } else { "not steady" };
    format!(
        "{}, scale {}, {} blocks of {}, {steady}",
        config.workload, config.scale, config.observed.block_count, config.profile
    )
}

/// The table as a CSV file (RFC 4180): numbers in full, a line a figure, three columns a run.
pub(super) fn csv(finished: &[Finished]) -> String {
    let mut text = String::from("group,figure,unit");
    for one in finished {
        for column in ["total", "per transaction", "against first run"] {
            // Writing to a string cannot fail.
            let _ = write!(text, ",{}", quoted(&format!("{}: {column}", one.label)));
        }
    }
    text.push_str("\r\n");
    for (group, figures) in GROUPS {
        for figure in *figures {
            let _ = write!(text, "{},{},{}", quoted(group), quoted(figure.name), figure.unit);
            for Cell { value, per_transaction, against_first } in figure.cells(finished) {
                for number in [value, per_transaction, against_first] {
                    text.push(',');
                    text.push_str(&number.map_or_else(String::new, |number| number.to_string()));
                }
            }
            text.push_str("\r\n");
        }
    }
    text
}

/// A field of a CSV file.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\r', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
