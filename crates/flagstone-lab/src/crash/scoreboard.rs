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
use std::process::{Command, Stdio};

use flagstone_engine::{Collection, PRESETS, WearLevelling};
use flagstone_nand::{Crashable as _, Nand as _, Profile, SimNand};
use serde::{Deserialize, Serialize};

use super::explore::Limits;
use super::faults::{self, Campaign, Trial};
use super::images::{self, Tried};
use super::opening::{FORMULA, Opening, opening_reads};
use super::script::Mix;
use super::sequences::{explore_sequences, prepared};
use super::subject::Setup;
use super::swarm::CHIP_PROFILES;
use super::wear::{self, Load};
use super::{CrashConfig, CrashError, CrashReport, Flagstone, RunnerRig, chip, explore};

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

/// A judge from outside, as a program.
fn judge(arguments: &str) -> String {
    format!("cargo run --release -p flagstone-judges -- {arguments}")
}

/// Runs a command; gives the outcome that `read` takes from its output, if it succeeds. Its
/// messages of progress or of a failure are shown.
fn run_command(command: &str, read: fn(&str) -> Outcome) -> Outcome {
    match output_of(command) {
        Some((true, printed)) => read(&printed),
        answer => {
            eprintln!("{}", answer.map_or_else(String::new, |(_, printed)| printed));
            let value = format!("`{command}` fails");
            Outcome { cases: 1, failures: 1, value, ..Outcome::default() }
        }
    }
}

/// Whether a command succeeds, and its output; none when it cannot be run.
fn output_of(command: &str) -> Option<(bool, String)> {
    let mut words = command.split(' ');
    let mut program = Command::new(words.next()?);
    let output = program.args(words).stderr(Stdio::inherit()).output().ok()?;
    Some((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

/// Kills that the judge of row A6 counted; the judge fails where one lost data.
fn kills(printed: &str) -> Outcome {
    let number = |line: &str| line.split_once(" kills in ")?.0.parse::<u64>().ok();
    let cases = printed.lines().find_map(number).unwrap_or(0);
    let value = format!("{} kills, 0 lost", grouped(cases));
    Outcome { cases, value, is_met: cases >= 5_000, ..Outcome::default() }
}

/// System calls that the judge of row B10 made fail; the judge fails where one lost data.
fn failing_calls(printed: &str) -> Outcome {
    let numbers = |line: &str| {
        let (tried, rest) = line.split_once(" of ")?;
        let count = rest.split_once(" failures in ")?.0;
        Some((tried.parse::<u64>().ok()?, count.parse::<u64>().ok()?))
    };
    let (cases, count) = printed.lines().find_map(numbers).unwrap_or((0, 1));
    let value = format!("{} of {} failures, 0 lost", grouped(cases), grouped(count));
    Outcome { cases, value, is_met: cases == count, ..Outcome::default() }
}

/// Mutants that row T3 counted; the command fails where one survived.
fn mutants(printed: &str) -> Outcome {
    let number = |line: &str| line.split_once(" mutants tested in ")?.0.parse::<u64>().ok();
    let cases = printed.lines().find_map(number).unwrap_or(0);
    let value = format!("{} mutants, no survivor", grouped(cases));
    Outcome { cases, value, is_met: cases > 0, ..Outcome::default() }
}

/// How the tests of the anomalies of row E1 are called.
const ANOMALIES: [&str; 10] =
    ["g0_", "g1a_", "g1b_", "g1c_", "otv_", "pmp_", "p4_", "g_single_", "g2_item_", "g2_cycles_"];

/// Anomalies whose test passed.
fn anomalies(printed: &str) -> Outcome {
    let passed = |name: &&&str| {
        let test = format!("test isolation::{name}");
        printed.lines().any(|line| line.starts_with(&test) && line.ends_with("... ok"))
    };
    let cases = ANOMALIES.iter().filter(passed).count() as u64;
    let failures = ANOMALIES.len() as u64 - cases;
    let value = format!("{cases}/{} prevented", ANOMALIES.len());
    Outcome { cases, failures, value, is_met: failures == 0, ..Outcome::default() }
}

/// Where `.ci/run` puts the program that is not installed.
const DENY: [&str; 2] = ["cargo-deny", "target/tools/bin/cargo-deny"];

/// Row S7: the verdict of `cargo deny` on the dependencies.
fn dependencies(_: u64) -> Result<Outcome, CrashError> {
    let deny = |arguments: &str| {
        let mut programs = DENY.iter();
        let answer = programs
            .find_map(|program| output_of(&format!("{program} --all-features {arguments}")));
        answer.map(|(is_sound, _)| is_sound)
    };
    let Some(is_clean) = deny("check bans licenses sources") else {
        let value = String::from("`cargo-deny` is not installed");
        return Ok(Outcome { value, ..Outcome::default() });
    };
    let advisories = match deny("fetch db") {
        Some(true) => deny("check advisories"),
        _ => None,
    };
    Ok(clean(is_clean, advisories))
}

/// Text of row S7; without the advisories, where their database cannot be fetched.
fn clean(is_clean: bool, advisories: Option<bool>) -> Outcome {
    let word = |is_clean| if is_clean { "clean" } else { "**not clean**" };
    let value = format!("bans, licences and sources {}", word(is_clean));
    let value = match advisories {
        Some(advisories) => format!("{value}; advisories {}", word(advisories)),
        None => format!("{value}; the database of advisories could not be fetched"),
    };
    let is_met = is_clean && advisories != Some(false);
    Outcome { cases: 1, failures: u64::from(!is_met), value, is_met, ..Outcome::default() }
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

/// Operations that were cut, and operations that the device counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cuts {
    points: u64,
    operations: u64,
}

fn explored(configs: impl IntoIterator<Item = CrashConfig>) -> Result<(Cuts, Outcome), CrashError> {
    let (mut cuts, mut outcome) = (Cuts::default(), Outcome::default());
    for config in configs {
        let CrashReport { points, operations, states, failures, lost_commits, lines, .. } =
            explore(&config, &|_, _| {})?;
        lines.iter().for_each(|line| eprintln!("{line}"));
        cuts.points += points;
        cuts.operations += operations;
        outcome.cases += states;
        outcome.failures += failures;
        outcome.lost += lost_commits;
    }
    outcome.is_met = outcome.failures == 0;
    Ok((cuts, outcome))
}

fn config(preset: &str, profile: &str, ops: usize, depth: u32, seed: u64) -> CrashConfig {
    let (preset, profile) = (preset.to_owned(), profile.to_owned());
    CrashConfig { preset, profile, ops, depth, seed, ..CrashConfig::default() }
}

fn every_cut(effort: u64) -> Result<Outcome, CrashError> {
    let configs = PRESETS
        .iter()
        .flat_map(|preset| seeds(effort).map(|seed| config(preset.name, "tiny", 120, 1, seed)));
    let (cuts, outcome) = explored(configs)?;
    Ok(cuts_of_all(cuts, outcome))
}

/// Row A1: every operation that the device counted was cut.
fn cuts_of_all(Cuts { points, operations }: Cuts, mut outcome: Outcome) -> Outcome {
    outcome.is_met &= points == operations && operations > 0;
    let (points, operations) = (grouped(points), grouped(operations));
    outcome.value = format!("{points}/{operations}, {} failures", outcome.failures);
    outcome
}

fn every_state(effort: u64) -> Result<Outcome, CrashError> {
    let profiles = CHIP_PROFILES.into_iter().chain(["tiny-dies", "segment-file"]);
    let configs = profiles.flat_map(|profile| {
        seeds(effort).map(move |seed| config("flagstone", profile, 120, 1, seed))
    });
    let (cuts, mut outcome) = explored(configs)?;
    outcome.is_met &= outcome.cases >= 1_000_000;
    let (states, points) = (grouped(outcome.cases), grouped(cuts.points));
    outcome.value = format!("{states} states of {points} cuts, {} failures", outcome.failures);
    Ok(outcome)
}

/// Row E2: transactions that the judge has checked; it fails where it found an anomaly.
fn concurrent(printed: &str) -> Outcome {
    let line = printed.lines().find_map(|line| line.split_once(" transactions in "));
    let cases = line.and_then(|(count, _)| count.parse().ok()).unwrap_or(0);
    let number = |of: &str| {
        let words: Vec<&str> =
            line?.1.split([' ', ',', ';', ':']).filter(|it| !it.is_empty()).collect();
        let at = words.iter().position(|word| *word == of)?;
        words.get(at.checked_sub(1)?)?.parse::<u64>().ok()
    };
    let [snapshots, restarts] =
        ["snapshots", "restarts"].map(|of| grouped(number(of).unwrap_or(0)));
    let value = format!(
        "{} transactions, {snapshots} snapshots, {restarts} restarts, 0 anomalies",
        grouped(cases)
    );
    let is_met = cases >= 1_000_000 && printed.contains("\nanomalies: 0\n");
    Outcome {
        cases,
        failures: u64::from(!is_met && cases == 0),
        value,
        is_met,
        ..Outcome::default()
    }
}

fn two_deep(effort: u64) -> Result<Outcome, CrashError> {
    let configs = ["tiny", "tiny-nospare"].into_iter().flat_map(|profile| {
        seeds(effort).map(move |seed| config("flagstone", profile, 12, 2, seed))
    });
    let (_, mut outcome) = explored(configs)?;
    outcome.value = counted(&outcome, "states");
    Ok(outcome)
}

fn file_states(effort: u64) -> Result<Outcome, CrashError> {
    let configs = seeds(4 * effort).map(|seed| config("flagstone", "segment-file", 150, 1, seed));
    let (_, mut outcome) = explored(configs)?;
    outcome.is_met &= outcome.cases >= 100_000;
    outcome.value = counted(&outcome, "states");
    Ok(outcome)
}

fn short_sequences(effort: u64) -> Result<Outcome, CrashError> {
    let device = chip("tiny", 1)?;
    let setup: Setup = config("flagstone", "tiny", 0, 1, 1).options(&device)?.into();
    let mut outcome = Outcome { is_met: true, ..Outcome::default() };
    let length_max = if effort > 1 { 3 } else { 2 };
    match prepared::<Engine, _>(device, &setup) {
        Ok((device, model)) => {
            let limits = Limits::default();
            for (_, tally) in explore_sequences::<Engine, _>(
                &device,
                &model,
                &setup,
                length_max,
                &limits,
                &|_, _| {},
            ) {
                outcome.cases += tally.states;
                outcome.failures += tally.failure_count;
                outcome.lost += tally.lost_commits;
            }
        }
        Err(_) => outcome.failures = 1,
    }
    outcome.is_met = outcome.failures == 0 && length_max == 3;
    outcome.value = format!("length ≤ {length_max}: {}", counted(&outcome, "states"));
    Ok(outcome)
}

fn trial(profile: &str, ops: usize) -> Result<Trial, CrashError> {
    let chip = chip(profile, 1)?;
    let setup = config("flagstone", profile, ops, 1, 1).options(&chip)?.into();
    Ok(Trial { chip, setup, ops, seed: 1, threads: 2, stride: 1 })
}

fn campaign(found: &Campaign) -> Outcome {
    let failures = found.failures.len() as u64;
    for (case, violation) in &found.failures {
        eprintln!("{}, {case}: {violation}", found.id);
    }
    let mut outcome =
        Outcome { cases: found.cases, failures, lost: failures, ..Outcome::default() };
    outcome.is_met = failures == 0 && found.cases > 0;
    outcome.value = counted(&outcome, "cases");
    if found.reported > 0 {
        let _ = write!(outcome.value, ", {} answered with a typed error", grouped(found.reported));
    }
    if found.unknowable > 0 {
        let count = grouped(found.unknowable);
        let _ = write!(outcome.value, ", {count} that nobody can tell from a power cut");
    }
    outcome
}

fn correctable(_: u64) -> Result<Outcome, CrashError> {
    Ok(campaign(&faults::correctable_errors::<Engine>(&trial("tiny", 300)?)))
}

fn uncorrectable(_: u64) -> Result<Outcome, CrashError> {
    Ok(campaign(&faults::uncorrectable_pages::<Engine>(&trial("tiny", 300)?)))
}

fn failing(_: u64) -> Result<Outcome, CrashError> {
    Ok(campaign(&faults::failing_operations::<Engine>(&trial("tiny", 120)?)))
}

fn misbehaving(_: u64) -> Result<Outcome, CrashError> {
    Ok(campaign(&faults::misbehaving_blocks::<Engine>(&trial("tiny", 120)?, &faults::BLOCK_FAULTS)))
}

fn swapped(effort: u64) -> Result<Outcome, CrashError> {
    let stride = (16 / effort as usize).max(1);
    let found = faults::swapped_pages::<Engine>(&Trial { stride, ..trial("tiny", 120)? });
    Ok(share_of_pairs(campaign(&found), stride))
}

/// Row B8 asks for any two pages: a part of the pairs does not meet it.
fn share_of_pairs(mut outcome: Outcome, stride: usize) -> Outcome {
    if stride > 1 {
        outcome.is_met = false;
        let _ = write!(outcome.value, "; one pair in {stride}");
    }
    outcome
}

fn changed(effort: u64) -> Result<Outcome, CrashError> {
    Ok(campaign(&faults::changed_images::<Engine>(&trial("tiny", 120)?, 1_000 * effort)))
}

fn full(_: u64) -> Result<Outcome, CrashError> {
    // Smaller values cannot fill the chip: there are not enough keys.
    let sizes: Vec<usize> = (0..58).map(|number| 43 + 17 * number).collect();
    Ok(campaign(&faults::full_then_deleted::<Engine>(&trial("tiny", 0)?, &sizes)))
}

/// A trial on a chip whose blocks endure few erases.
fn mortal_trial(preset: &str, endurance: u32, seed: u64) -> Result<Trial, CrashError> {
    let mut trial = trial("tiny", 200)?;
    let mut profile = Profile::named("tiny")?;
    profile.capabilities.endurance = endurance;
    let profile = profile.with_block_count(trial.chip.geometry().block_count)?;
    trial.chip = SimNand::new(&profile, seed);
    trial.seed = seed << 32;
    trial.setup = config(preset, "tiny", 0, 1, seed).options(&trial.chip)?.into();
    Ok(trial)
}

fn worn_out(_: u64) -> Result<Outcome, CrashError> {
    let trial = mortal_trial("flagstone", 30, 1)?;
    let mut outcome = campaign(&wear::worn_out::<Engine>(&trial, 2_000_000));
    if outcome.is_met {
        outcome.value = format!("read-only after {} steps, all readable", grouped(outcome.cases));
    }
    Ok(outcome)
}

/// Engines that wear a chip, and their policies.
const DEATHS: [(&str, Collection, WearLevelling); 10] = {
    use Collection::{CostAgeTimes, CostBenefit, Greedy};
    use WearLevelling::{Dynamic, Static};
    [
        ("flagstone", Greedy, Static),
        ("flagstone", CostBenefit, Static),
        ("flagstone", CostAgeTimes, Static),
        ("flagstone", Greedy, Dynamic),
        ("flagstone", CostAgeTimes, Dynamic),
        ("traditional", Greedy, Static),
        ("traditional", CostBenefit, Static),
        ("traditional", CostAgeTimes, Static),
        ("traditional", Greedy, Dynamic),
        ("traditional", CostAgeTimes, Dynamic),
    ]
};

/// Which rows they write.
#[derive(Clone, Copy)]
enum DeathKeys {
    /// All alike.
    Even,
    /// Some far more than others.
    Hot,
    /// Some alone; all others are put once and rest.
    Few,
}

impl DeathKeys {
    const ALL: [Self; 3] = [Self::Even, Self::Hot, Self::Few];

    const fn name(self) -> &'static str {
        match self {
            Self::Even => "even",
            Self::Hot => "hot",
            Self::Few => "few, others rest",
        }
    }

    fn load(self) -> Load {
        let mix = Mix::default();
        match self {
            Self::Even => Load { mix, row_size: 0 },
            Self::Hot => Load { mix: Mix { hot: 200, ..mix }, row_size: 0 },
            // Operations that fill whole tables would rewrite the resting rows, and restarts wear
            // the ring.
            Self::Few => {
                let mix = Mix { hot: 255, large: 0, upkeep: 0, pieces: 0, ..mix };
                Load { mix, row_size: 250 }
            }
        }
    }
}

/// Erases that a block endures in a run to death.
const DEATH_ENDURANCE: u32 = 100;

fn run_to_death(effort: u64) -> Result<Outcome, CrashError> {
    let mut outcome = Outcome::default();
    outcome.details += "| preset | collection | levelling | keys | transactions until the end | most \
                        erases | mean erases | max/mean |\n\
                        | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    let mut worst = [0.0_f64; 2];
    let lives = DEATHS.iter().flat_map(|death| DeathKeys::ALL.map(|keys| (*death, keys)));
    for ((preset, collection, levelling), keys) in lives {
        let (mut commits, mut erases_max, mut erases_mean) = (0, 0, 0.0);
        for seed in seeds(effort) {
            let mut trial = mortal_trial(preset, DEATH_ENDURANCE, seed)?;
            trial.setup.options.collection = collection;
            trial.setup.options.wear_levelling = levelling;
            let lifetime = match wear::run_to_death::<Engine>(&trial, &keys.load(), 50_000_000) {
                Ok(lifetime) => lifetime,
                Err((lifetime, violation)) => {
                    let keys = keys.name();
                    eprintln!(
                        "{preset} {collection:?} {levelling:?} {keys} seed {seed}: {violation}"
                    );
                    outcome.failures += 1;
                    lifetime
                }
            };
            outcome.cases += 1;
            commits += lifetime.commits / effort;
            erases_max = erases_max.max(lifetime.erases_max);
            erases_mean += lifetime.erases_mean / effort as f64;
        }
        let ratio = f64::from(erases_max) / erases_mean;
        let _ = writeln!(
            outcome.details,
            "| `{preset}` | {collection:?} | {levelling:?} | {} | {} | {erases_max} | \
             {erases_mean:.1} | {ratio:.2} |",
            keys.name(),
            grouped(commits)
        );
        let worst = &mut worst[usize::from(levelling == WearLevelling::Dynamic)];
        *worst = worst.max(ratio);
    }
    outcome.is_met = outcome.failures == 0;
    outcome.lost = outcome.failures;
    outcome.value = format!(
        "max/mean at most {:.2}, {:.2} where what rests is left alone, at the end of {} lives, \
         {} failures",
        worst[0],
        worst[1],
        grouped(outcome.cases),
        outcome.failures
    );
    Ok(outcome)
}

fn opening(effort: u64) -> Result<Outcome, CrashError> {
    let mut outcome = Outcome { is_met: true, ..Outcome::default() };
    outcome.details += "| chip | pages | states opened | most reads | formula |\n";
    outcome.details += "| --- | --- | --- | --- | --- |\n";
    let mut worst: f64 = 0.0;
    for profile in CHIP_PROFILES.into_iter().chain(["slc-2k"]) {
        let mut all = Opening::default();
        for seed in seeds(effort) {
            let chip = match profile {
                "slc-2k" => SimNand::new(&Profile::named(profile)?.with_block_count(128)?, seed),
                tiny => chip(tiny, seed)?,
            };
            let limits = Limits { seed, states_max: 2_000, ..Limits::default() };
            let found = opening_reads(chip, &limits, 100)?;
            let (states, failures) = (all.states + found.states, all.failures + found.failures);
            all = Opening {
                states,
                failures,
                reads_max: all.reads_max.max(found.reads_max),
                ..found
            };
        }
        let Opening { states, failures, reads_max, bound, pages } = all;
        outcome.cases += states;
        outcome.failures += failures;
        outcome.is_met &= failures == 0 && reads_max <= bound;
        worst = worst.max(reads_max as f64 / bound as f64);
        let (pages, states) = (grouped(pages), grouped(states));
        let _ = writeln!(
            outcome.details,
            "| `{profile}` | {pages} | {states} | {reads_max} | {bound} |"
        );
    }
    let states = grouped(outcome.cases);
    outcome.value = format!(
        "at most {:.0} % of {FORMULA}, in {states} states, {} failures",
        worst * 100.0,
        outcome.failures
    );
    Ok(outcome)
}

/// Schedules of one unit of effort.
const SCHEDULES: u64 = 100_000;

fn schedules_drawn(effort: u64) -> String {
    format!(
        "env RUSTFLAGS=--cfg=shuttle cargo run --release --target-dir target/shuttle -p flagstone \
         --features seeded-bugs --example schedules -- --schedules {}",
        SCHEDULES * effort
    )
}

/// Row E3: schedules that the example counted; it fails where one did.
fn schedules(printed: &str) -> Outcome {
    let number = |line: &str| line.split_once(" schedules in ")?.0.parse::<u64>().ok();
    let cases = printed.lines().find_map(number).unwrap_or(0);
    let mut outcome = Outcome { cases, is_met: cases >= 1_000_000, ..Outcome::default() };
    outcome.value = counted(&outcome, "schedules");
    outcome
}

/// Rounds of the hunt for one bug, at most, of one unit of effort: the ways of a round that miss it
/// are drawn anew.
#[cfg(feature = "seeded-bugs")]
const ROUNDS: u64 = 3;

#[cfg(feature = "seeded-bugs")]
fn planted(effort: u64) -> Result<Outcome, CrashError> {
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
mod tests {
    use super::*;

    #[test]
    fn a_row_is_measured_or_says_that_it_is_not() {
        let outcome = Outcome { cases: 1_234_567, failures: 1, ..Outcome::default() };
        let outcome = Outcome { value: counted(&outcome, "states"), ..outcome };
        let measured =
            Measured { outcome, commit: String::from("abc1234"), command: String::from("x") };
        let text = document(&Results::from([(String::from("A2"), measured)]));
        assert!(text.contains("**not met**: 1,234,567 states, 1 failures | abc1234 | `x` |"));
        assert!(text.contains("| not measured |  |  |"));
        assert_eq!(text.lines().filter(|line| line.starts_with("| ")).count(), ROWS.len() + 2);
    }

    fn results(rows: &[(&str, Outcome)]) -> Results {
        let (commit, command) = (String::new(), String::new());
        let measured = |outcome: &Outcome| Measured {
            outcome: outcome.clone(),
            commit: commit.clone(),
            command: command.clone(),
        };
        rows.iter().map(|(id, outcome)| ((*id).to_owned(), measured(outcome))).collect()
    }

    /// Goal: row A1 has its denominator from the device. Method: cuts that leave an operation out.
    #[test]
    fn an_operation_that_is_not_cut_is_seen() {
        let sound = Outcome { is_met: true, ..Outcome::default() };
        let all = cuts_of_all(Cuts { points: 7, operations: 7 }, sound.clone());
        assert_eq!((all.value.as_str(), all.is_met), ("7/7, 0 failures", true));
        let short = cuts_of_all(Cuts { points: 6, operations: 7 }, sound.clone());
        assert_eq!((short.value.as_str(), short.is_met), ("6/7, 0 failures", false));
        assert!(!cuts_of_all(Cuts::default(), sound).is_met);
        let (cuts, _) = explored([config("flagstone", "tiny", 6, 1, 1)]).unwrap();
        assert!(cuts.points > 10 && cuts.points == cuts.operations, "{cuts:?}");
    }

    /// Goal: row A5 has every failure in it, and no bug that was planted.
    #[test]
    fn a_failure_that_is_no_loss_is_in_the_total() {
        let sound = Outcome { cases: 10, ..Outcome::default() };
        let planted = Outcome { cases: 5, failures: 1, lost: 1, ..Outcome::default() };
        let fine = total(&results(&[("A1", sound.clone()), ("T1", planted)]));
        assert!(fine.is_met && fine.value.contains("in 10 states"), "{}", fine.value);
        let panicked = Outcome { failures: 1, ..sound.clone() };
        assert!(!total(&results(&[("A1", sound), ("D1", panicked)])).is_met);
        assert!(!total(&Results::new()).is_met, "nothing was run");
    }

    #[test]
    fn a_part_of_the_pairs_does_not_meet_the_target() {
        let sound = || Outcome { is_met: true, ..Outcome::default() };
        assert!(share_of_pairs(sound(), 1).is_met);
        let part = share_of_pairs(sound(), 16);
        assert!(!part.is_met && part.value.contains("one pair in 16"));
    }

    #[test]
    fn what_nobody_can_tell_is_said() {
        let found = Campaign { cases: 3, unknowable: 2, ..Campaign::default() };
        assert!(campaign(&found).value.contains("2 that nobody can tell"));
    }

    #[test]
    fn what_a_command_did_is_counted_in_what_it_printed() {
        let kills_of = |text: &str| (kills(text).cases, kills(text).is_met);
        assert_eq!(kills_of("x\n5020 kills in 5 s, 7 of them\n"), (5_020, true));
        assert_eq!(kills_of("30 kills in 5 s, 7 of them"), (30, false));
        assert_eq!(kills_of("test result: ok. 0 passed"), (0, false));
        let checked = "500 transactions in 3 histories of 9 sessions: 7 snapshots, 4 restarts, 1 backups; 2.0 s, 250 \
                       transactions a second\nanomalies: 0\n";
        let found = concurrent(checked);
        assert_eq!(found.value, "500 transactions, 7 snapshots, 4 restarts, 0 anomalies");
        assert!(!found.is_met && concurrent(&checked.replace("500 t", "1000000 t")).is_met);
        assert!(!concurrent("1000000 transactions in 3 histories").is_met);
        assert!(!concurrent("").is_met);
        let drawn = |text: &str| (schedules(text).cases, schedules(text).is_met);
        assert_eq!(drawn("1000000 schedules in 9 s, 0 failures; x\n"), (1_000_000, true));
        assert_eq!(drawn("999500 schedules in 9 s, 0 failures; x\n"), (999_500, false));
        assert_eq!(drawn(""), (0, false));
        let calls_of = |text: &str| (failing_calls(text).cases, failing_calls(text).is_met);
        assert_eq!(calls_of("x\n500 of 500 failures in 5 s (1 did not\n"), (500, true));
        assert_eq!(calls_of("499 of 500 failures in 5 s (1 did not"), (499, false));
        assert_eq!(calls_of("test result: ok. 0 passed"), (0, false));
        let tested = |text: &str| (mutants(text).cases, mutants(text).is_met);
        assert_eq!(tested("x\n12 mutants tested in 9s: 11 caught, 1 unviable\n"), (12, true));
        assert_eq!(tested("Found 12 mutants to test"), (0, false));
        let line = |it: &&str| format!("test isolation::{it}x ... ok\n");
        let passed: String = ANOMALIES.iter().map(line).collect();
        assert_eq!(anomalies(&passed).value, "10/10 prevented");
        let one_less = anomalies(&passed.replace("test isolation::otv_x ... ok", ""));
        assert_eq!((one_less.value.as_str(), one_less.is_met), ("9/10 prevented", false));
    }

    #[test]
    fn what_cannot_be_fetched_is_said() {
        let said = |is_clean, advisories| {
            (clean(is_clean, advisories).is_met, clean(is_clean, advisories).value)
        };
        let (is_met, value) = said(true, None);
        assert!(is_met && value.contains("could not be fetched"), "{value}");
        assert!(said(true, Some(true)).0 && !said(false, Some(true)).0 && !said(false, None).0);
        let (is_met, value) = said(true, Some(false));
        assert!(!is_met && value.ends_with("advisories **not clean**"), "{value}");
    }

    /// Goal: results of images add up. Method: a drawing that fails once.
    #[test]
    fn images_go_on_where_they_stopped() {
        let draw: fn(Range<u64>) -> Result<Tried, CrashError> = |numbers| {
            let failures =
                if numbers.contains(&100_000) { vec![String::from("x")] } else { vec![] };
            Ok(Tried { images: numbers.end - numbers.start, reported: 1, failures })
        };
        let mut told = 0;
        let first = drawn(draw, 1, None, &mut |_| told += 1).unwrap();
        assert_eq!((first.cases, first.failures, told), (100_000, 0, 5));
        let both = drawn(draw, 1, Some(&first), &mut |_| told += 1).unwrap();
        assert_eq!((both.cases, both.failures, both.reported, told), (200_000, 1, 10, 10));
        assert_eq!(both, drawn(draw, 2, None, &mut |_| ()).unwrap());
        assert!(!both.is_met);
        let row = ROWS.iter().find(|row| row.id == "D1").unwrap();
        assert_eq!(row.effort_of(&both, 1), 2);
    }

    #[test]
    fn unsafe_code_is_counted_and_texts_of_it_are_not() {
        let open = ["    unsafe { go() }", "pub unsafe fn go() {}", "unsafe impl Send for A {}"];
        assert!(open.iter().all(|line| opens_unsafe(line)));
        let other = ["contains(\"unsafe {\")", "// unsafe { }", "deny(unsafe_code)"];
        assert!(!other.iter().any(|line| opens_unsafe(line)));
        assert!(!unsafe_below(Path::new("no-such-directory")).is_met);
        let own = unsafe_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
        assert!(own.is_met && own.value.starts_with("0 in "), "{}", own.value);
    }

    #[test]
    fn rows_have_names_of_their_own() {
        let names: std::collections::BTreeSet<_> = ROWS.iter().map(|row| row.id).collect();
        assert_eq!(names.len(), ROWS.len());
    }
}
