//! Rows that a command measures.
//!
//! Owns the commands and the reading of their output (R3). Measures nothing itself.

use std::process::{Command, Stdio};

use super::super::CrashError;
use super::{Outcome, counted, grouped};

/// A judge from outside, as a program.
pub(super) fn judge(arguments: &str) -> String {
    format!("cargo run --release -p flagstone-judges -- {arguments}")
}

/// Runs a command; gives the outcome that `read` takes from its output, if it succeeds. Its
/// messages of progress or of a failure are shown.
pub(super) fn run_command(command: &str, read: fn(&str) -> Outcome) -> Outcome {
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
pub(super) fn output_of(command: &str) -> Option<(bool, String)> {
    let mut words = command.split(' ');
    let mut program = Command::new(words.next()?);
    let output = program.args(words).stderr(Stdio::inherit()).output().ok()?;
    Some((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

/// Kills that the judge of row A6 counted; the judge fails where one lost data.
pub(super) fn kills(printed: &str) -> Outcome {
    let number = |line: &str| line.split_once(" kills in ")?.0.parse::<u64>().ok();
    let cases = printed.lines().find_map(number).unwrap_or(0);
    let value = format!("{} kills, 0 lost", grouped(cases));
    Outcome { cases, value, is_met: cases >= 5_000, ..Outcome::default() }
}

/// System calls that the judge of row B10 made fail; the judge fails where one lost data.
pub(super) fn failing_calls(printed: &str) -> Outcome {
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
pub(super) fn mutants(printed: &str) -> Outcome {
    let number = |line: &str| line.split_once(" mutants tested in ")?.0.parse::<u64>().ok();
    let cases = printed.lines().find_map(number).unwrap_or(0);
    let value = format!("{} mutants, no survivor", grouped(cases));
    Outcome { cases, value, is_met: cases > 0, ..Outcome::default() }
}

/// How the tests of the anomalies of row E1 are called.
pub(super) const ANOMALIES: [&str; 10] =
    ["g0_", "g1a_", "g1b_", "g1c_", "otv_", "pmp_", "p4_", "g_single_", "g2_item_", "g2_cycles_"];

/// Anomalies whose test passed.
pub(super) fn anomalies(printed: &str) -> Outcome {
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
pub(super) fn dependencies(_: u64) -> Result<Outcome, CrashError> {
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
pub(super) fn clean(is_clean: bool, advisories: Option<bool>) -> Outcome {
    let word = |is_clean| if is_clean { "clean" } else { "**not clean**" };
    let value = format!("bans, licences and sources {}", word(is_clean));
    let value = match advisories {
        Some(advisories) => format!("{value}; advisories {}", word(advisories)),
        None => format!("{value}; the database of advisories could not be fetched"),
    };
    let is_met = is_clean && advisories != Some(false);
    Outcome { cases: 1, failures: u64::from(!is_met), value, is_met, ..Outcome::default() }
}

/// Row E2: transactions that the judge has checked; it fails where it found an anomaly.
pub(super) fn concurrent(printed: &str) -> Outcome {
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

/// Schedules of one unit of effort.
const SCHEDULES: u64 = 100_000;

pub(super) fn schedules_drawn(effort: u64) -> String {
    format!(
        "env RUSTFLAGS=--cfg=shuttle cargo run --release --target-dir target/shuttle -p flagstone \
         --features seeded-bugs --example schedules -- --schedules {}",
        SCHEDULES * effort
    )
}

/// Row E3: schedules that the example counted; it fails where one did.
pub(super) fn schedules(printed: &str) -> Outcome {
    let number = |line: &str| line.split_once(" schedules in ")?.0.parse::<u64>().ok();
    let cases = printed.lines().find_map(number).unwrap_or(0);
    let mut outcome = Outcome { cases, is_met: cases >= 1_000_000, ..Outcome::default() };
    outcome.value = counted(&outcome, "schedules");
    outcome
}
