//! The hunt: each deliberate bug is planted in turn, and must be found.
//!
//! Owns the order in which ways of looking are tried, the cheapest first, and the table of what
//! found what. What is also seen without the bug does not count. A bug that survives the last round fails the hunt: the harness cannot see it.

use std::time::Instant;

use flagstone::{Options, SeededBug};
use flagstone_nand::{ProfileError, SimNand};
use flagstone_space::SpaceBug;
use serde::Serialize;

use super::explore::{Limits, Scenario, Tally, explore};
use super::faults::{Campaign, Trial, changed_images, full_then_deleted, swapped_pages};
use super::histories::{self, HistoryConfig};
use super::ledger::Ledger;
use super::run::RunnerRig;
use super::script::{Mix, Script};
use super::subject::{Setup, Subject};
use super::swarm::{CHIP_PROFILES, Draw};
use super::{CrashError, Flagstone, chip, file, small};

/// A bug to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quarry {
    /// A bug of the engine.
    Engine(SeededBug),
    /// A bug of the space floor.
    Space(SpaceBug),
}

/// What became of one bug.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// Name of the bug.
    pub bug: String,
    /// Rule of durability that it breaks, as its documentation says.
    pub rule: String,
    /// Way of looking that found it; none when it survived.
    pub by: Option<&'static str>,
    /// What was seen first.
    pub seen: String,
    /// Crash states and cases looked at.
    pub states: u64,
    /// Wall time.
    pub elapsed_s: f64,
}

const SPACE_BUGS: [(SpaceBug, u8); 10] = [
    (SpaceBug::EraseBeforeSync, 10),
    (SpaceBug::ReuseBeforeCheckpoint, 4),
    (SpaceBug::RelocationTakesNewVersion, 6),
    (SpaceBug::OpenGroupCounts, 1),
    (SpaceBug::ChecksumIgnored, 6),
    (SpaceBug::StaleSequenceAccepted, 6),
    (SpaceBug::SuspectNotCopied, 11),
    (SpaceBug::NumbersNotReserved, 3),
    (SpaceBug::GroupsNotListed, 4),
    (SpaceBug::FreeBlockNotErased, 11),
];

impl Quarry {
    /// Every bug that can be planted.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let engine = SeededBug::ALL.into_iter().map(Self::Engine);
        engine.chain(SPACE_BUGS.map(|(bug, _)| Self::Space(bug))).collect()
    }

    fn name(self) -> String {
        match self {
            Self::Engine(bug) => format!("{bug:?}"),
            Self::Space(bug) => format!("{bug:?}"),
        }
    }

    fn rule(self) -> u8 {
        match self {
            Self::Engine(bug) => bug.rule(),
            Self::Space(bug) => {
                SPACE_BUGS.iter().find(|(other, _)| *other == bug).map_or(0, |(_, rule)| *rule)
            }
        }
    }
}

/// A bug on its way into an engine.
#[derive(Clone, Copy, Debug)]
struct Target {
    quarry: Quarry,
    planting: Planting,
}

/// Whether the bug is there: a look without it tells what it is not to blame for.
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

/// States looked at, and the first thing that was wrong.
type Look = (u64, Option<String>);

/// One way of looking.
type Way = (&'static str, fn(Target, u64) -> Result<Look, CrashError>);

/// Ways of looking, the cheapest first.
const WAYS: [Way; 14] = [
    ("space floor, one cut", |target, seed| on_space(target, seed, 300, 1)),
    ("script, one cut", |target, seed| on_chip(target, seed, 200, Mix::default(), 1)),
    ("deferred commits, one cut", |target, seed| on_chip(target, seed, 300, DEFERRED, 1)),
    ("large values, one cut", |target, seed| on_chip(target, seed, 200, LARGE, 1)),
    ("simulated file, one cut", |target, seed| on_file(target, seed, 150, Mix::default())),
    ("full chip", when_full),
    ("damaged image", when_damaged),
    ("space floor, two cuts", |target, seed| on_space(target, seed, 25, 2)),
    ("short script, two cuts", |target, seed| on_chip(target, seed, 15, Mix::default(), 2)),
    ("space floor, tight", |target, seed| on_space(target, seed, 2000, 1)),
    ("large values, tight", |target, seed| on_chip(target, seed, 1500, LARGE, 1)),
    ("simulated file, tight", |target, seed| on_file(target, seed, 1500, LARGE)),
    ("concurrent histories", in_histories),
    ("swarm", in_swarm),
];

/// Few flushes: merges meet commits that are not durable.
const DEFERRED: Mix = Mix {
    changes: 140,
    reads: 10,
    ends: 50,
    savepoints: 4,
    large: 8,
    snapshots: 4,
    upkeep: 10,
    deferred: 240,
};

/// Many pages written and thrown away: groups, trims, collection.
const LARGE: Mix = Mix {
    changes: 70,
    reads: 10,
    ends: 60,
    savepoints: 16,
    large: 60,
    snapshots: 10,
    upkeep: 20,
    deferred: 60,
};

/// States of a run or a recovery that one look samples.
const STATES_MAX: u64 = 3000;

/// States of each level that a deep look samples.
const DEEP_STATES: u64 = 40;

fn look(tally: Tally) -> Look {
    (tally.states, tally.failures.first().map(|found| found.violation.to_string()))
}

fn look_at(campaign: &Campaign) -> Look {
    (campaign.cases, campaign.failures.first().map(|(case, found)| format!("{case}: {found}")))
}

fn limits(seed: u64, depth: u32) -> Limits {
    Limits { depth, seed, failures_max: 1, states_max: STATES_MAX, ..Limits::default() }
}

fn profile_of(seed: u64) -> &'static str {
    // The MLC chip last: its log takes most of it.
    CHIP_PROFILES[seed as usize % (CHIP_PROFILES.len() - 1)]
}

fn explored<S>(
    target: Target,
    seed: u64,
    ops: usize,
    mix: Mix,
    depth: u32,
) -> Result<Look, CrashError>
where
    S: Subject<RunnerRig<SimNand>>,
{
    let device = chip(profile_of(seed), seed)?;
    let setup = target.setup(small(Options::default().with_seed(seed), &device));
    let script = Script::seeded(seed, ops, &mix);
    let scenario = Scenario { device, model: None, setup, script };
    Ok(look(explore::<S, SimNand>(&scenario, &limits(seed, depth), &|_, _| {})))
}

fn on_space(target: Target, seed: u64, ops: usize, depth: u32) -> Result<Look, CrashError> {
    match target.quarry {
        Quarry::Engine(_) => Ok((0, None)),
        Quarry::Space(_) => explored::<Ledger<_>>(target, seed, ops, Mix::default(), depth),
    }
}

fn on_chip(
    target: Target,
    seed: u64,
    ops: usize,
    mix: Mix,
    depth: u32,
) -> Result<Look, CrashError> {
    explored::<Flagstone<_>>(target, seed, ops, mix, depth)
}

fn on_file(target: Target, seed: u64, ops: usize, mix: Mix) -> Result<Look, CrashError> {
    let device = file("segment-file")?;
    let setup = target.setup(small(Options::default().with_seed(seed), &device));
    let script = Script::seeded(seed, ops, &mix);
    let scenario = Scenario { device, model: None, setup, script };
    let tally = match target.quarry {
        Quarry::Engine(_) => explore::<Flagstone<_>, _>(&scenario, &limits(seed, 1), &|_, _| {}),
        Quarry::Space(_) => explore::<Ledger<_>, _>(&scenario, &limits(seed, 1), &|_, _| {}),
    };
    Ok(look(tally))
}

fn trial(target: Target, seed: u64) -> Result<Trial, ProfileError> {
    let chip = chip("tiny", seed)?;
    let setup = target.setup(small(Options::default().with_seed(seed), &chip));
    Ok(Trial { chip, setup, ops: 150, seed, threads: 2, stride: 1 })
}

fn when_full(target: Target, seed: u64) -> Result<Look, CrashError> {
    let trial = trial(target, seed)?;
    Ok(look_at(&full_then_deleted::<Flagstone<_>>(&trial, &[900, 2000])))
}

fn when_damaged(target: Target, seed: u64) -> Result<Look, CrashError> {
    let trial = trial(target, seed)?;
    let (cases, seen) = match target.quarry {
        Quarry::Engine(_) => look_at(&changed_images::<Flagstone<_>>(&trial, 300)),
        Quarry::Space(_) => look_at(&changed_images::<Ledger<_>>(&trial, 300)),
    };
    if seen.is_some() {
        return Ok((cases, seen));
    }
    let swapped = swapped_pages::<Ledger<_>>(&Trial { stride: 7, ..trial });
    let (more, seen) = look_at(&swapped);
    Ok((cases + more, seen))
}

/// Transactions of several clients at once, with pages that come late.
fn in_histories(target: Target, seed: u64) -> Result<Look, CrashError> {
    let mut transactions = 0;
    if matches!(target.quarry, Quarry::Space(_)) {
        return Ok((0, None));
    }
    for seed in seed * 24..seed * 24 + 24 {
        let mut config = HistoryConfig::drawn(seed)?;
        config.setup = target.setup(config.setup.options);
        match histories::run(&config) {
            Ok(totals) => transactions += totals.checked.transactions,
            Err(failure) => return Ok((transactions, Some(failure.to_string()))),
        }
    }
    Ok((transactions, None))
}

fn in_swarm(target: Target, seed: u64) -> Result<Look, CrashError> {
    let mut states = 0;
    for seed in seed * 20..seed * 20 + 20 {
        let draw = Draw::seeded(seed, DEEP_STATES);
        let setup = target.setup(draw.options.clone());
        let (more, seen) = look(draw.explore_with::<Flagstone<_>>(setup)?);
        states += more;
        if seen.is_some() {
            return Ok((states, seen));
        }
    }
    Ok((states, None))
}

/// Looks for one bug in every way, round after round with other seeds.
///
/// # Errors
///
/// When a device cannot be made.
pub fn hunt(quarry: Quarry, rounds: u64) -> Result<Found, CrashError> {
    let started = Instant::now();
    let rule = format!("D{}", quarry.rule());
    let mut found = Found {
        bug: quarry.name(),
        rule,
        by: None,
        seen: String::new(),
        states: 0,
        elapsed_s: 0.0,
    };
    'rounds: for round in 0..rounds {
        for (name, way) in WAYS {
            let planted = Target { quarry, planting: Planting::Planted };
            let (states, seen) = way(planted, round)?;
            found.states += states;
            let Some(seen) = seen else { continue };
            let (_, without) = way(Target { planting: Planting::LeftOut, ..planted }, round)?;
            if without.is_none() {
                (found.by, found.seen) = (Some(name), seen);
                break 'rounds;
            }
        }
    }
    found.elapsed_s = started.elapsed().as_secs_f64();
    Ok(found)
}

/// The table that a hunt prints.
#[must_use]
pub fn table(hunted: &[Found]) -> String {
    let mut text = format!(
        "{:<26} {:<5} {:<26} {:>9} {:>9}\n",
        "bug", "rule", "found by", "states", "seconds"
    );
    for found in hunted {
        let by = found.by.unwrap_or("NOT FOUND");
        let Found { bug, rule, states, elapsed_s, .. } = found;
        text += &format!("{bug:<26} {rule:<5} {by:<26} {states:>9} {elapsed_s:>9.2}\n");
    }
    text
}
