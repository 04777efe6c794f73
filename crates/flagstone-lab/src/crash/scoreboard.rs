//! The scoreboard of reliability: every row is a function that measures it.
//!
//! Owns the rows, their targets, and how results become `docs/RELIABILITY.md`. Never edits a
//! value by hand: a row is measured or says "not measured".
//!
//! - **R1** A result names the command that measured it and the commit it was measured at.
//! - **R2** A row whose target was missed says so, and stays.
//! - **R3** The numbers of a row were counted by the row; a command's numbers stand in its output.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;

use flagstone_nand::{Crashable as _, SimNand};
use serde::{Deserialize, Serialize};

mod campaigns;
mod commands;
mod cuts;
mod lives;

use self::campaigns::{
    changed, correctable, failing, full, misbehaving, swapped, trial, uncorrectable,
};
use self::commands::{
    anomalies, concurrent, dependencies, failing_calls, judge, kills, mutants, run_command,
    schedules, schedules_drawn,
};
use self::cuts::{every_cut, every_state, file_states, opening, short_sequences, two_deep};
use self::lives::{run_to_death, worn_out};
use super::images::{self, Tried};
use super::{CrashConfig, CrashError, Flagstone, RunnerRig};

type Engine = Flagstone<RunnerRig<SimNand>>;

/// Findings of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// States, cases or images tried.
    pub cases: u64,
    /// Of these, how many broke the promise.
    pub failures: u64,
    /// Of these, how many lost committed changes, or showed uncommitted ones.
    pub lost: u64,
    /// Of these, how many were answered with a typed error, where the row counts them.
    #[serde(default, skip_serializing_if = "is_none")]
    pub reported: u64,
    /// The figure in words.
    pub value: String,
    /// Whether the target is reached.
    pub is_met: bool,
    /// A table that belongs to the figure, as Markdown, or nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub details: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde asks for")]
fn is_none(count: &u64) -> bool {
    *count == 0
}

/// A row's result, with where it comes from (rule R1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// The findings.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Commit of the source tree.
    pub commit: String,
    /// Command that measures it again.
    pub command: String,
}

/// Results by row.
pub type Results = BTreeMap<String, Measured>;

/// How a row is measured.
#[derive(Clone, Copy)]
enum Way {
    /// In this process; the number is the effort, 1 the smallest.
    Here(fn(u64) -> Result<Outcome, CrashError>),
    /// In this process, of images that are drawn from their numbers: parts of the row add up.
    Images(fn(Range<u64>) -> Result<Tried, CrashError>),
    /// By a command in the source tree for this effort; its output tells the work done.
    Command(fn(u64) -> String, fn(&str) -> Outcome),
    /// Out of the rows measured so far.
    Sum,
}

/// A row of the scoreboard.
#[derive(Clone, Copy)]
pub struct Row {
    /// Its name.
    pub id: &'static str,
    /// Quantity measured.
    pub figure: &'static str,
    /// Result required.
    pub target: &'static str,
    way: Way,
}

const fn row(id: &'static str, figure: &'static str, target: &'static str, way: Way) -> Row {
    Row { id, figure, target, way }
}

/// Every row, in the order of the document.
pub const ROWS: &[Row] = &[
    row(
        "A1",
        "power cuts explored / device operations that exist, every preset",
        "N/N, 0 failures",
        Way::Here(every_cut),
    ),
    row(
        "A2",
        "crash states (A1 × endings), every chip and a file",
        "≥ 1,000,000, 0 failures",
        Way::Here(every_state),
    ),
    row(
        "A3",
        "cut during recovery, every operation, two deep",
        "all, 0 failures",
        Way::Here(two_deep),
    ),
    row(
        "A4",
        "all operation sequences of length ≤ 3 × all cuts",
        "all, 0 failures",
        Way::Here(short_sequences),
    ),
    row(
        "A5",
        "acknowledged commits lost, over all rows of this table",
        "0, with the total",
        Way::Sum,
    ),
    row(
        "A6",
        "SIGKILL loops on a real file, expected state kept by another process",
        "≥ 5,000, 0 lost",
        Way::Command(|effort| judge(&format!("kills --kills {}", 5_000 * effort)), kills),
    ),
    row(
        "A7",
        "legal subsets of unsynced file writes",
        "≥ 100,000 states, 0 failures",
        Way::Here(file_states),
    ),
    row(
        "B1",
        "0 … strength flips on each page of a full device",
        "invisible",
        Way::Here(correctable),
    ),
    row(
        "B2",
        "strength + 1 on each page in turn",
        "right or a typed error; wrong 0, panics 0",
        Way::Here(uncorrectable),
    ),
    row(
        "B4",
        "program and erase failing at each operation, once and for ever",
        "0 lost",
        Way::Here(failing),
    ),
    row("B5", "each block bad in turn × five kinds of fault", "0 lost", Way::Here(misbehaving)),
    row(
        "B6",
        "growing bad blocks until the spare is gone",
        "read-only, 100 % readable",
        Way::Here(worn_out),
    ),
    row("B8", "any two pages swapped", "detected", Way::Here(swapped)),
    row(
        "B9",
        "run to death at low endurance: max/mean erases, transactions until the end",
        "published per policy",
        Way::Here(run_to_death),
    ),
    row("C1", "full at each possible operation, then delete", "works", Way::Here(full)),
    row(
        "B10",
        "each system call of each operation on a file fails in turn, in each way",
        "every failure, 0 lost, panics 0",
        Way::Command(|_| judge("calls"), failing_calls),
    ),
    row(
        "C5",
        "device reads needed to open, worst case found",
        "under a stated formula",
        Way::Here(opening),
    ),
    row(
        "D1",
        "damaged images opened, read, written, checked",
        "≥ 10⁸ in total, 0 panics, 0 hangs",
        Way::Images(images::damaged),
    ),
    row(
        "D3",
        "a small image changed in its bytes, pages and blocks",
        "right or a typed error",
        Way::Here(changed),
    ),
    row("D5", "mutated images with checksums recomputed", "as D1", Way::Images(images::forged)),
    row(
        "E1",
        "named isolation anomalies",
        "10/10 prevented",
        Way::Command(
            |_| String::from("cargo test --release -p flagstone --test engine isolation"),
            anomalies,
        ),
    ),
    row(
        "E2",
        "random concurrent histories checked for cycles, crashes included",
        "≥ 10⁶ transactions, 0",
        Way::Command(
            |effort| judge(&format!("histories --transactions {}", 1_000_000 * effort)),
            concurrent,
        ),
    ),
    row(
        "E3",
        "shuffled thread schedules of the concurrent core",
        "≥ 10⁶, 0",
        Way::Command(schedules_drawn, schedules),
    ),
    row("T1", "seeded bugs found / planted", "all, ≥ 25", Way::Here(planted)),
    row(
        "T3",
        "mutants of the modules that keep the rules of durability (`.cargo/mutants.toml`)",
        "no unexplained survivor",
        Way::Command(|_| String::from("cargo mutants --baseline skip --colors never"), mutants),
    ),
    row("T6", "same seed twice", "same device trace", Way::Here(same_seed)),
    row("S1", "unsafe blocks outside bindings", "≤ 20", Way::Here(unsafe_blocks)),
    row(
        "S7",
        "`cargo deny`: bans, licences, sources, and advisories where they can be fetched",
        "clean",
        Way::Here(dependencies),
    ),
];

/// Images of one unit of effort, and images that the target asks for.
const IMAGES: (u64, u64) = (100_000, 100_000_000);

/// Images after which the result so far is told.
const IMAGES_AT_A_TIME: u64 = 20_000;

impl Row {
    /// Measures the row. Where its parts add up, the parts in `before` are done already, and `tell`
    /// hears of each new part.
    ///
    /// # Errors
    ///
    /// When a device or a preset is refused.
    pub fn measure(
        &self,
        effort: u64,
        so_far: &Results,
        before: Option<&Outcome>,
        tell: &mut dyn FnMut(&Outcome),
    ) -> Result<Outcome, CrashError> {
        match self.way {
            Way::Here(measure) => measure(effort),
            Way::Images(draw) => drawn(draw, effort, before, tell),
            Way::Command(command, read) => Ok(run_command(&command(effort), read)),
            Way::Sum => Ok(total(so_far)),
        }
    }

    /// The effort that makes all of `outcome` at once.
    #[must_use]
    pub fn effort_of(&self, outcome: &Outcome, effort: u64) -> u64 {
        match self.way {
            Way::Images(_) => outcome.cases.div_ceil(IMAGES.0),
            _ => effort,
        }
    }
}

/// Images number after number, behind the numbers drawn before.
fn drawn(
    draw: fn(Range<u64>) -> Result<Tried, CrashError>,
    effort: u64,
    before: Option<&Outcome>,
    tell: &mut dyn FnMut(&Outcome),
) -> Result<Outcome, CrashError> {
    let mut outcome = before.cloned().unwrap_or_default();
    let end = outcome.cases + IMAGES.0 * effort;
    while outcome.cases < end {
        let found = draw(outcome.cases..end.min(outcome.cases + IMAGES_AT_A_TIME))?;
        found.failures.iter().for_each(|failure| eprintln!("{failure}"));
        outcome.cases += found.images;
        outcome.failures += found.failures.len() as u64;
        outcome.reported += found.reported;
        outcome.is_met = outcome.failures == 0 && outcome.cases >= IMAGES.1;
        outcome.value = format!(
            "{}, {} answered with a typed error",
            counted(&outcome, "images"),
            grouped(outcome.reported)
        );
        tell(&outcome);
    }
    Ok(outcome)
}

/// The row whose engines have bugs on purpose.
const PLANTED: &str = "T1";

/// Everything that was run on an engine as it ships: losses, and failures of any other kind beside
/// them.
fn total(so_far: &Results) -> Outcome {
    let rows = || so_far.iter().filter(|(id, _)| *id != PLANTED).map(|(_, row)| &row.outcome);
    let cases = rows().map(|row| row.cases).sum();
    let lost: u64 = rows().map(|row| row.lost).sum();
    let failures: u64 = rows().map(|row| row.failures).sum();
    let value = format!(
        "{lost} lost, {failures} failures of any kind, in {} states and cases; row {PLANTED} is left out",
        grouped(cases)
    );
    Outcome { value, is_met: lost == 0 && failures == 0 && cases > 0, ..Outcome::default() }
}

fn seeds(effort: u64) -> std::ops::Range<u64> {
    1..1 + effort
}

fn config(preset: &str, profile: &str, ops: usize, depth: u32, seed: u64) -> CrashConfig {
    let (preset, profile) = (preset.to_owned(), profile.to_owned());
    CrashConfig { preset, profile, ops, depth, seed, ..CrashConfig::default() }
}

/// Rounds of the hunt for one bug, at most, of one unit of effort: the ways of a round that miss it
/// are drawn anew.
#[cfg(feature = "seeded-bugs")]
const ROUNDS: u64 = 3;

#[cfg(feature = "seeded-bugs")]
fn planted(effort: u64) -> Result<Outcome, CrashError> {
    use self::commands::output_of;
    use super::hunt::{Quarry, head, hunt, line, markdown, seen_without_a_bug};
    let noise = seen_without_a_bug()?;
    noise.iter().for_each(|seen| println!("seen without a bug: {seen}"));
    let mut hunted = Vec::new();
    println!("{}", head());
    for quarry in Quarry::all() {
        let found = match quarry.own_test() {
            Some(test) => test.found(quarry, |command| {
                output_of(command).filter(|(is_sound, _)| *is_sound).map(|(_, printed)| printed)
            }),
            None => hunt(quarry, ROUNDS * effort)?,
        };
        println!("{}", line(&found));
        hunted.push(found);
    }
    hunted.sort_by_key(|found| found.rule);
    let found = hunted.iter().filter(|found| found.by.is_some()).count();
    let cases = hunted.iter().map(|found| found.states).sum();
    let is_met = found == hunted.len() && found >= 25 && noise.is_empty();
    let value = match noise.len() {
        0 => format!("{found} of {}", hunted.len()),
        ways => {
            format!("{found} of {}, and {ways} ways see something where no bug is", hunted.len())
        }
    };
    let failures = (hunted.len() - found + noise.len()) as u64;
    let details = markdown(&hunted);
    Ok(Outcome { cases, failures, value, is_met, details, ..Outcome::default() })
}

#[cfg(not(feature = "seeded-bugs"))]
fn planted(_: u64) -> Result<Outcome, CrashError> {
    let value = String::from("needs the feature `seeded-bugs`");
    Ok(Outcome { value, ..Outcome::default() })
}

fn same_seed(_: u64) -> Result<Outcome, CrashError> {
    let trial = trial("tiny", 300)?;
    let run = || {
        let base = trial.after_script::<Engine>().ok()?;
        Some((base.chip.trace_hash(), base.chip.state_hash()))
    };
    let is_met = run().is_some_and(|first| run() == Some(first));
    let value = String::from(if is_met { "same trace, same state" } else { "they differ" });
    Ok(Outcome { cases: 1, failures: u64::from(!is_met), value, is_met, ..Outcome::default() })
}

/// Looks through the source tree, at whose root it has to run.
fn unsafe_blocks(_: u64) -> Result<Outcome, CrashError> {
    Ok(unsafe_below(Path::new("crates")))
}

fn unsafe_below(root: &Path) -> Outcome {
    let (mut files, mut blocks) = (0_u64, 0);
    let mut places = vec![root.to_owned()];
    while let Some(place) = places.pop() {
        let Ok(entries) = std::fs::read_dir(&place) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                places.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files += 1;
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                blocks += text.lines().filter(|line| opens_unsafe(line)).count() as u64;
            }
        }
    }
    let value = match files {
        0 => String::from("there are no sources here: to be run at the root of the tree"),
        files => format!("{blocks} in {files} files"),
    };
    Outcome { cases: files, value, is_met: files > 0 && blocks <= 20, ..Outcome::default() }
}

/// Whether a line of source opens something unsafe, outside comments and texts.
fn opens_unsafe(line: &str) -> bool {
    let outside: String = line.replace("\\\"", "").split('"').step_by(2).collect();
    let code = outside.split("//").next().unwrap_or_default();
    ["unsafe {", "unsafe fn ", "unsafe impl "].iter().any(|opening| code.contains(opening))
}

fn counted(outcome: &Outcome, of: &str) -> String {
    format!("{} {of}, {} failures", grouped(outcome.cases), outcome.failures)
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The document.
#[must_use]
pub fn document(results: &Results) -> String {
    let mut text = String::from(include_str!("scoreboard/head.md"));
    text += "| id | figure | target | value | commit | command |\n";
    text += "| --- | --- | --- | --- | --- | --- |\n";
    for row in ROWS {
        let (value, commit, command) = match results.get(row.id) {
            None => (String::from("not measured"), "", String::new()),
            Some(found) => {
                let missed = if found.outcome.is_met { "" } else { "**not met**: " };
                let value = format!("{missed}{}", found.outcome.value);
                (value, found.commit.as_str(), format!("`{}`", found.command))
            }
        };
        let Row { id, figure, target, .. } = row;
        let _ = writeln!(text, "| {id} | {figure} | {target} | {value} | {commit} | {command} |");
    }
    text += include_str!("scoreboard/tail.md");
    for row in ROWS {
        let details = results.get(row.id).map_or("", |found| &found.outcome.details);
        if !details.is_empty() {
            let _ = write!(text, "\n## {}: {}\n{details}", row.id, row.figure);
        }
    }
    text
}

#[cfg(test)]
mod tests;
