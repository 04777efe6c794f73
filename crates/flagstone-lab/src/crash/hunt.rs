//! The hunt: each deliberate bug is planted in turn, and must be found.
//!
//! Owns the order in which ways of looking are tried, the cheapest first, and the table of bugs
//! with the way that found each. A violation that is also seen without the bug does not count. A
//! bug that survives the last round fails the hunt: the harness cannot see it.

mod own_test;
mod ways;

use std::time::Instant;

use flagstone_engine::{Options, SeededBug};
use flagstone_space::SpaceBug;
use serde::Serialize;

pub use self::own_test::OwnTest;
use self::ways::{WAYS, Way};
use super::CrashError;
use super::subject::Setup;

/// A bug to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quarry {
    /// A bug of the engine.
    Engine(SeededBug),
    /// A bug of the space floor.
    Space(SpaceBug),
}

/// Outcome for one bug.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// Name of the bug.
    pub bug: String,
    /// Number of the rule of durability that it breaks.
    pub rule: u8,
    /// Way of looking that found it; none when it survived.
    pub by: Option<&'static str>,
    /// The first violation seen, or a violation seen without the bug, too: then the engine itself
    /// has a bug.
    pub seen: String,
    /// Crash states and cases looked at.
    pub states: u64,
    /// Wall time.
    pub elapsed_s: f64,
}

impl Quarry {
    /// Every bug that can be planted.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let engine = SeededBug::ALL.into_iter().map(Self::Engine);
        engine.chain(SpaceBug::ALL.into_iter().map(Self::Space)).collect()
    }

    /// Name of the bug.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Engine(bug) => format!("{bug:?}"),
            Self::Space(bug) => format!("{bug:?}"),
        }
    }

    fn rule(self) -> u8 {
        match self {
            Self::Engine(bug) => bug.rule(),
            Self::Space(bug) => bug.rule(),
        }
    }
}

/// A bug on its way into an engine.
#[derive(Clone, Copy, Debug)]
struct Target {
    quarry: Quarry,
    planting: Planting,
}

/// Whether the bug is planted: a look without it shows the violations that it did not cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planting {
    Planted,
    LeftOut,
}

impl Target {
    fn setup(self, options: Options) -> Setup {
        match (self.planting, self.quarry) {
            (Planting::LeftOut, _) => options.into(),
            (_, Quarry::Engine(bug)) => Setup { engine_bug: Some(bug), ..options.into() },
            (_, Quarry::Space(bug)) => Setup { space_bug: Some(bug), ..options.into() },
        }
    }
}

/// Of these, how many take a second or two each.
const WAYS_AT_A_GLANCE: usize = 4;

/// Times that these ways are drawn, at most: a hunt ends when its bug is found.
const ROUNDS_AT_A_GLANCE: u64 = 6;

/// Looks for one bug in every way, round after round with other seeds.
///
/// # Errors
///
/// When a device cannot be made.
pub fn hunt(quarry: Quarry, rounds: u64) -> Result<Found, CrashError> {
    hunt_by(quarry, &WAYS, rounds)
}

/// Looks for one bug in the ways whose names hold `part`, round after round with other seeds.
///
/// # Errors
///
/// When a device cannot be made.
pub fn hunt_in(part: &str, quarry: Quarry, rounds: u64) -> Result<Found, CrashError> {
    let ways: Vec<Way> = WAYS.into_iter().filter(|(name, _)| name.contains(part)).collect();
    hunt_by(quarry, &ways, rounds)
}

/// Looks for one bug in the cheapest ways, once.
///
/// # Errors
///
/// When a device cannot be made.
pub fn glance(quarry: Quarry) -> Result<Found, CrashError> {
    hunt_by(quarry, &WAYS[..WAYS_AT_A_GLANCE], ROUNDS_AT_A_GLANCE)
}

/// Violations seen where no bug is: a way that sees it would hide every bug from the hunt.
///
/// # Errors
///
/// When a device cannot be made.
pub fn seen_without_a_bug() -> Result<Vec<String>, CrashError> {
    let mut seen = Vec::new();
    for (name, way) in WAYS {
        for quarry in [Quarry::Engine(SeededBug::SkipSync), Quarry::Space(SpaceBug::ReserveGiven)] {
            let (_, found) = way(Target { quarry, planting: Planting::LeftOut }, 0)?;
            seen.extend(found.map(|found| format!("{name}: {found}")));
        }
    }
    Ok(seen)
}

fn hunt_by(quarry: Quarry, ways: &[Way], rounds: u64) -> Result<Found, CrashError> {
    let started = Instant::now();
    let mut found = Found {
        bug: quarry.name(),
        rule: quarry.rule(),
        by: None,
        seen: String::new(),
        states: 0,
        elapsed_s: 0.0,
    };
    'rounds: for round in 0..rounds {
        for (name, way) in ways.iter().copied() {
            let planted = Target { quarry, planting: Planting::Planted };
            let (states, seen) = way(planted, round)?;
            found.states += states;
            let Some(seen) = seen else { continue };
            let (_, without) = way(Target { planting: Planting::LeftOut, ..planted }, round)?;
            let Some(other) = without else {
                (found.by, found.seen) = (Some(name), seen);
                break 'rounds;
            };
            found.seen = format!("{name}, round {round}, without a bug: {other}");
        }
    }
    found.elapsed_s = started.elapsed().as_secs_f64();
    Ok(found)
}

/// First line of the table that a hunt prints.
#[must_use]
pub fn head() -> String {
    let (bug, rule, by) = ("bug", "rule", "found by");
    format!("{bug:<26} {rule:<5} {by:<26} {:>9} {:>9}", "states", "seconds")
}

/// A bug's line in that table.
#[must_use]
pub fn line(found: &Found) -> String {
    let by = found.by.unwrap_or("NOT FOUND");
    let Found { bug, rule, states, elapsed_s, .. } = found;
    let why = if found.by.is_none() { found.seen.as_str() } else { "" };
    format!("{bug:<26} D{rule:<4} {by:<26} {states:>9} {elapsed_s:>9.2} {why}")
        .trim_end()
        .to_owned()
}

/// The table as Markdown, each row one bug.
#[must_use]
pub fn markdown(hunted: &[Found]) -> String {
    let mut text = String::from("| rule | bug | found by | crash states and cases | seconds |\n");
    text += "| --- | --- | --- | --- | --- |\n";
    for Found { bug, rule, by, states, elapsed_s, .. } in hunted {
        let by = by.unwrap_or("**not found**");
        text += &format!("| D{rule} | `{bug}` | {by} | {states} | {elapsed_s:.1} |\n");
    }
    text
}

#[cfg(test)]
mod tests;
