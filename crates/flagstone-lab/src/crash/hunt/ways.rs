//! Ways of looking for a bug, the cheapest first.
//!
//! Owns the devices, the mixes of operations and the lengths of the scripts. Never judges a violation: the hunt does.

use flagstone_engine::CommitBy;
use flagstone_engine::Options;
use flagstone_nand::{Crashable, Profile, ProfileError, SegmentFile, SimStorage};

use super::super::explore::{Limits, Scenario, Tally, explore};
use super::super::faults::{
    Campaign, Trial, changed_closed_images, changed_images, churn, filled, full_then_deleted,
    swapped_pages,
};
use super::super::histories::{self, HistoryConfig};
use super::super::ledger::Ledger;
use super::super::run::RunnerRig;
use super::super::script::{APPENDS, CLAIMS, GROWING, KEEPING, Mix, SMALL_CLAIMS, Script};
use super::super::subject::Subject;
use super::super::swarm::{CHIP_PROFILES, Draw};
use super::super::together::Together;
use super::super::{CrashError, Flagstone, chip, file, growing_file, small};
use super::{Quarry, Target};

/// States looked at, and the first thing that was wrong.
type Look = (u64, Option<String>);

/// One way of looking.
pub(super) type Way = (&'static str, fn(Target, u64) -> Result<Look, CrashError>);

/// Ways of looking, the cheapest first.
pub(super) const WAYS: [Way; 38] = [
    ("space floor, one cut", |target, seed| on_space(target, seed, 300, &Mix::default(), 1)),
    ("script, one cut", |target, seed| on_chip(target, seed, 200, &Mix::default(), 1)),
    ("deferred commits, one cut", on_deferred),
    ("dies side by side, one cut", on_dies),
    ("hot keys, one cut", on_hot_keys),
    ("reshaped leaves, one cut", |target, seed| on_chip(target, seed, 400, &RESHAPED, 1)),
    ("leaves that split together", |target, seed| on_together(target, seed, Together::Split)),
    ("a leaf that merges in parts", |target, seed| on_together(target, seed, Together::Parts)),
    ("histories with little work", |target, seed| in_histories(target, seed, Pace::LittleWork)),
    ("claimed leaves, one cut", |target, seed| on_claims(target, seed, &FLAGS)),
    ("many leaves by a record", |target, seed| on_together(target, seed, Together::ClaimedPages)),
    ("many leaves by a flag", |target, seed| on_together(target, seed, Together::Flagged)),
    ("claims among logged commits", on_claims_among_logged),
    ("appended changes, one cut", on_appends),
    ("small claims, one cut", |target, seed| on_small_claims(target, seed, &Use::New)),
    ("large values, one cut", |target, seed| on_chip(target, seed, 200, &LARGE, 1)),
    ("simulated file, one cut", |target, seed| on_file(target, seed, &Use::New)),
    ("groups that wait for a sync", |target, seed| {
        changing_together(target, seed, Together::Groups, file("segment-file")?)
    }),
    ("file that grows, one cut", on_growing_file),
    ("space floor, in use", space_in_use),
    ("space floor, undecided", |target, seed| on_space(target, seed, 400, &UNDECIDED, 1)),
    ("file, in use", |target, seed| on_file(target, seed, &Use::Long)),
    ("chip, in use", chip_in_use),
    ("claimed leaves, in use", |target, seed| on_claims(target, seed, &FLAGS_IN_USE)),
    ("small claims, in use", |target, seed| on_small_claims(target, seed, &Use::Long)),
    ("kept snapshots, one cut", |target, seed| on_kept(target, seed, &Use::New)),
    ("kept snapshots, in use", |target, seed| on_kept(target, seed, &Use::Long)),
    ("long use, one cut", long_in_use),
    ("paired cells, one cut", on_pairs),
    ("full chip", when_full),
    ("full chip, one cut", on_full_chip),
    ("histories with many cuts", |target, seed| in_histories(target, seed, Pace::ManyCuts)),
    ("damaged image", when_damaged),
    ("space floor, two cuts", |target, seed| on_space(target, seed, 25, &Mix::default(), 2)),
    ("claimed leaves, two cuts", |target, seed| on_claims(target, seed, &FLAGS_TWICE)),
    ("short script, two cuts", |target, seed| on_chip(target, seed, 15, &Mix::default(), 2)),
    ("concurrent histories", |target, seed| in_histories(target, seed, Pace::Drawn)),
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
    hot: 0,
    pieces: 40,
    small: 0,
    kept: 0,
};

/// All transactions at the same few keys: readers meet commits that are not durable.
const HOT: Mix = Mix {
    changes: 60,
    reads: 60,
    ends: 130,
    savepoints: 2,
    large: 0,
    snapshots: 20,
    upkeep: 2,
    deferred: 150,
    hot: 230,
    pieces: 6,
    small: 0,
    kept: 0,
};

/// How many times as much memory and log there is where commits wait.
const ROOMY: usize = 3;

/// Leaves split and merge while checkpoints are under way.
const RESHAPED: Mix = Mix {
    changes: 120,
    reads: 4,
    ends: 70,
    savepoints: 0,
    large: 24,
    snapshots: 10,
    upkeep: 8,
    deferred: 120,
    hot: 0,
    pieces: 90,
    small: 0,
    kept: 0,
};

/// Groups stay undecided while blocks are collected and checkpoints are written around them.
const UNDECIDED: Mix = Mix {
    changes: 100,
    reads: 0,
    ends: 110,
    savepoints: 0,
    large: 60,
    snapshots: 0,
    upkeep: 50,
    deferred: 220,
    hot: 0,
    pieces: 30,
    small: 0,
    kept: 0,
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
    hot: 0,
    pieces: 10,
    small: 0,
    kept: 0,
};

/// States of a run or a recovery that one look samples.
const STATES_MAX: u64 = 6000;

/// States of each level that a deep look samples.
const DEEP_STATES: u64 = 40;

pub(super) fn look(tally: Tally) -> Look {
    (tally.states, tally.failures.first().map(|found| found.violation.to_string()))
}

fn look_at(campaign: &Campaign) -> Look {
    (campaign.cases, campaign.failures.first().map(|(case, found)| format!("{case}: {found}")))
}

fn limits(seed: u64, depth: u32) -> Limits {
    Limits { depth, seed, failures_max: 1, states_max: STATES_MAX, ..Limits::default() }
}

fn profile_of(seed: u64) -> &'static str {
    // All but the last, the MLC chip: its log takes most of the chip.
    CHIP_PROFILES[seed as usize % (CHIP_PROFILES.len() - 1)]
}

/// Whether the device is new or has been written for long: then blocks are collected and reused,
/// and hold old contents that a crash may bring back.
enum Use {
    New,
    Long,
}

/// Operations on a device in use before the operations of interest.
const OPS_BEFORE: usize = 700;

/// Operations before the ones that make a file grow: by then all its blocks have been used.
const OPS_WHILE_SMALL: usize = 250;

/// Operations of interest on a device in use.
const OPS_IN_USE: usize = 100;

fn explored<S, C>(
    target: Target,
    (device, used): (C, &Use),
    (seed, depth): (u64, u32),
    (ops, mix): (usize, &Mix),
) -> Look
where
    S: Subject<RunnerRig<C>>,
    C: Crashable + Send + Sync,
{
    explored_with::<S, C>(target, Options::default(), (device, used), (seed, depth), (ops, mix))
}

fn explored_with<S, C>(
    target: Target,
    options: Options,
    (device, used): (C, &Use),
    (seed, depth): (u64, u32),
    (ops, mix): (usize, &Mix),
) -> Look
where
    S: Subject<RunnerRig<C>>,
    C: Crashable + Send + Sync,
{
    let setup = target.setup(small(options.with_seed(seed), &device));
    let script = Script::seeded(seed, ops, mix);
    let scenario = Scenario { device, model: None, setup, script };
    let scenario = match used {
        Use::New => Ok(scenario),
        Use::Long => scenario.in_use::<S>(&Script::seeded(!seed, OPS_BEFORE, &LARGE)),
    };
    match scenario {
        Ok(scenario) => look(explore::<S, C>(&scenario, &limits(seed, depth), &|_, _| {})),
        Err(violation) => (0, Some(violation.to_string())),
    }
}

fn on_space(
    target: Target,
    seed: u64,
    ops: usize,
    mix: &Mix,
    depth: u32,
) -> Result<Look, CrashError> {
    if matches!(target.quarry, Quarry::Engine(_)) {
        return Ok((0, None));
    }
    let device = (chip(profile_of(seed), seed)?, &Use::New);
    Ok(explored::<Ledger<_>, _>(target, device, (seed, depth), (ops, mix)))
}

fn space_in_use(target: Target, seed: u64) -> Result<Look, CrashError> {
    if matches!(target.quarry, Quarry::Engine(_)) {
        return Ok((0, None));
    }
    let device = (chip(profile_of(seed), seed)?, &Use::Long);
    Ok(explored::<Ledger<_>, _>(target, device, (seed, 1), (OPS_IN_USE, &LARGE)))
}

fn on_chip(
    target: Target,
    seed: u64,
    ops: usize,
    mix: &Mix,
    depth: u32,
) -> Result<Look, CrashError> {
    let device = (chip(profile_of(seed), seed)?, &Use::New);
    Ok(explored::<Flagstone<_>, _>(target, device, (seed, depth), (ops, mix)))
}

fn on_deferred(target: Target, seed: u64) -> Result<Look, CrashError> {
    let (states, seen) = on_roomy_chip(target, 2 * seed, 300, &DEFERRED)?;
    if seen.is_some() {
        return Ok((states, seen));
    }
    let (more, seen) = on_roomy_chip(target, 2 * seed + 1, 300, &DEFERRED)?;
    Ok((states + more, seen))
}

/// Operations on other dies overtake the one that is cut.
fn on_dies(target: Target, seed: u64) -> Result<Look, CrashError> {
    let device = (chip("tiny-dies", seed)?, &Use::New);
    Ok(explored::<Flagstone<_>, _>(target, device, (seed, 1), (200, &Mix::default())))
}

/// How claims are looked at.
struct Claiming {
    used: Use,
    ops: usize,
    depth: u32,
}

const FLAGS: Claiming = Claiming { used: Use::New, ops: 400, depth: 1 };
const FLAGS_IN_USE: Claiming = Claiming { used: Use::Long, ops: 2 * OPS_IN_USE, depth: 1 };
const FLAGS_TWICE: Claiming = Claiming { used: Use::New, ops: 40, depth: 2 };

/// Commits claim every leaf they can, by a flag where nothing has to be logged.
fn on_claims(target: Target, seed: u64, claiming: &Claiming) -> Result<Look, CrashError> {
    let Claiming { used, ops, depth } = claiming;
    let device = (chip("tiny-flags", seed)?, used);
    let options = Options::preset("flagstone-flags")?;
    let ops = (*ops, &CLAIMS);
    Ok(explored_with::<Flagstone<_>, _>(target, options, device, (seed, *depth), ops))
}

/// Large values come in between, which are logged: claims meet rows that the log has changed
/// before, and changes afterwards.
const CLAIMS_AMONG_LOGGED: Mix = Mix {
    reads: 4,
    savepoints: 0,
    large: 12,
    snapshots: 4,
    upkeep: 4,
    hot: 160,
    small: 100,
    ..CLAIMS
};

fn on_claims_among_logged(target: Target, seed: u64) -> Result<Look, CrashError> {
    let device = (chip("tiny-flags", seed)?, &Use::New);
    let options = Options::preset("flagstone-flags")?;
    let ops = (400, &CLAIMS_AMONG_LOGGED);
    Ok(explored_with::<Flagstone<_>, _>(target, options, device, (seed, 1), ops))
}

/// Groups of several leaves in every run.
fn on_together(target: Target, seed: u64, together: Together) -> Result<Look, CrashError> {
    changing_together(target, seed, together, chip(together.profile(), seed)?)
}

fn changing_together<C: Crashable + Send + Sync>(
    target: Target,
    seed: u64,
    together: Together,
    device: C,
) -> Result<Look, CrashError> {
    let (mut scenario, before) = together.scenario(device, seed);
    scenario.setup = target.setup(scenario.setup.options);
    Ok(match scenario.merged::<Flagstone<_>>(&before) {
        Ok(scenario) => look(explore::<Flagstone<_>, _>(&scenario, &limits(seed, 1), &|_, _| {})),
        Err(violation) => (0, Some(violation.to_string())),
    })
}

/// The same, and snapshots that read earlier contents.
const APPENDED: Mix = Mix { reads: 40, snapshots: 60, ..APPENDS };

/// Small changes of a few rows, on pages that leave room for them.
fn on_appends(target: Target, seed: u64) -> Result<Look, CrashError> {
    let device = (chip("tiny-shared", seed)?, &Use::New);
    Ok(explored::<Flagstone<_>, _>(target, device, (seed, 1), (300, &APPENDED)))
}

/// The same by transactions that commit with the leaves they changed.
fn on_small_claims(target: Target, seed: u64, used: &Use) -> Result<Look, CrashError> {
    let device = (chip("tiny-shared", seed)?, used);
    let options = Options::default();
    let options = options.with_techniques(|techniques| techniques.commit = CommitBy::Claims);
    let ops = (300, &SMALL_CLAIMS);
    Ok(explored_with::<Flagstone<_>, _>(target, options, device, (seed, 1), ops))
}

/// On every second seed with a log and a memory in which commits without a waiting client can wait:
/// where a checkpoint is due all the time, its flushes take them along.
fn on_roomy_chip(target: Target, seed: u64, ops: usize, mix: &Mix) -> Result<Look, CrashError> {
    if seed.is_multiple_of(2) {
        return on_chip(target, seed, ops, mix, 1);
    }
    let device = chip(profile_of(seed), seed)?;
    let little = small(Options::default().with_seed(seed), &device);
    let roomy = little.clone().with_log_pages(little.log_pages * ROOMY as u32);
    let setup = target.setup(roomy.with_memory(little.memory * ROOMY));
    let script = Script::seeded(seed, ops, mix);
    let scenario = Scenario { device, model: None, setup, script };
    Ok(look(explore::<Flagstone<_>, _>(&scenario, &limits(seed, 1), &|_, _| {})))
}

fn on_hot_keys(target: Target, seed: u64) -> Result<Look, CrashError> {
    let mut states = 0;
    for seed in seed * 4..seed * 4 + 4 {
        let (more, seen) = on_roomy_chip(target, seed, 150, &HOT)?;
        states += more;
        if seen.is_some() {
            return Ok((states, seen));
        }
    }
    Ok((states, None))
}

fn chip_in_use(target: Target, seed: u64) -> Result<Look, CrashError> {
    let device = (chip(profile_of(seed), seed)?, &Use::Long);
    Ok(explored::<Flagstone<_>, _>(target, device, (seed, 1), (OPS_IN_USE, &DEFERRED)))
}

/// Snapshots that are kept while collection moves their pages.
fn on_kept(target: Target, seed: u64, used: &Use) -> Result<Look, CrashError> {
    let device = (chip(profile_of(seed), seed)?, used);
    Ok(explored::<Flagstone<_>, _>(target, device, (seed, 1), (OPS_IN_USE, &KEEPING)))
}

fn long_in_use(target: Target, seed: u64) -> Result<Look, CrashError> {
    let device = (chip(profile_of(seed), seed)?, &Use::Long);
    Ok(explored::<Flagstone<_>, _>(target, device, (seed, 1), (4 * OPS_IN_USE, &LARGE)))
}

fn on_file(target: Target, seed: u64, used: &Use) -> Result<Look, CrashError> {
    let device = (file("segment-file")?, used);
    let ops = match used {
        Use::New => (150, &Mix::default()),
        Use::Long => (OPS_IN_USE, &LARGE),
    };
    Ok(match target.quarry {
        Quarry::Engine(_) => explored::<Flagstone<_>, _>(target, device, (seed, 1), ops),
        Quarry::Space(_) => explored::<Ledger<_>, _>(target, device, (seed, 1), ops),
    })
}

/// Blocks that are new are used before a record knows them.
fn on_growing_file(target: Target, seed: u64) -> Result<Look, CrashError> {
    fn look_on<S: Subject<RunnerRig<SegmentFile<SimStorage>>>>(
        target: Target,
        seed: u64,
    ) -> Result<Look, CrashError> {
        let device = growing_file()?;
        let setup = target.setup(small(Options::default().with_seed(seed), &device));
        let script = Script::seeded(seed, OPS_IN_USE, &GROWING);
        let scenario = Scenario { device, model: None, setup, script };
        let before = Script::seeded(!seed, OPS_WHILE_SMALL, &Mix { large: 0, ..Mix::default() });
        Ok(match scenario.in_use::<S>(&before) {
            Ok(scenario) => look(explore::<S, _>(&scenario, &limits(seed, 1), &|_, _| {})),
            Err(violation) => (0, Some(violation.to_string())),
        })
    }
    match target.quarry {
        Quarry::Engine(_) => look_on::<Flagstone<_>>(target, seed),
        Quarry::Space(_) => look_on::<Ledger<_>>(target, seed),
    }
}

fn on_pairs(target: Target, seed: u64) -> Result<Look, CrashError> {
    let device = (chip("tiny-mlc", seed)?, &Use::New);
    let ops = (150, &Mix::default());
    Ok(match target.quarry {
        Quarry::Engine(_) => explored::<Flagstone<_>, _>(target, device, (seed, 1), ops),
        Quarry::Space(_) => explored::<Ledger<_>, _>(target, device, (seed, 1), ops),
    })
}

/// Cuts while a chip without room is emptied and filled again.
fn on_full_chip(target: Target, seed: u64) -> Result<Look, CrashError> {
    let trial = trial(target, seed)?;
    let (device, model) = match filled::<Flagstone<_>>(&trial, 120) {
        Ok((device, model)) => (device, Some(model)),
        Err(violation) => return Ok((0, Some(violation.to_string()))),
    };
    let scenario = Scenario { device, model, setup: trial.setup, script: churn(12) };
    Ok(look(explore::<Flagstone<_>, _>(&scenario, &limits(seed, 1), &|_, _| {})))
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
        Quarry::Space(_) => look_at(&changed_closed_images::<Ledger<_>>(&trial, 300)),
    };
    if seen.is_some() {
        return Ok((cases, seen));
    }
    let swapped = swapped_pages::<Ledger<_>>(&Trial { stride: 7, ..trial });
    let (more, seen) = look_at(&swapped);
    Ok((cases + more, seen))
}

/// Transactions of several clients at once, with pages that come late.
fn in_histories(target: Target, seed: u64, pace: Pace) -> Result<Look, CrashError> {
    let mut transactions = 0;
    for seed in seed * 36..seed * 36 + 36 {
        let config = pace.config(target, seed)?;
        match histories::run(&config) {
            Ok(totals) => transactions += totals.checked.transactions,
            Err(failure) => {
                let seen = format!("history of seed {seed}: {failure}");
                return Ok((transactions, Some(seen)));
            }
        }
    }
    Ok((transactions, None))
}

/// How a history goes on.
pub(super) enum Pace {
    /// As its seed has drawn it.
    Drawn,
    /// Power cuts all the time.
    ManyCuts,
    /// Background work is rare, on a chip with little room, most of which the log takes.
    LittleWork,
}

impl Pace {
    pub(super) fn config(&self, target: Target, seed: u64) -> Result<HistoryConfig, CrashError> {
        let mut config = HistoryConfig::drawn(seed)?;
        config.setup = target.setup(config.setup.options);
        match self {
            Self::Drawn => {}
            Self::ManyCuts => config.turns_per_cut = 150,
            Self::LittleWork => {
                (config.turns_per_cut, config.idleness) = (3_000, IDLENESS);
                // Engines that commit by flags need the chip that was drawn for them.
                if config.setup.options.techniques().commit != CommitBy::Flags {
                    config.profile =
                        Profile::named("tiny-mlc")?.with_block_count(TIGHT_BLOCK_COUNT)?;
                }
            }
        }
        Ok(config)
    }
}

/// Of so many turns that could do background work, one does where there is little background work.
const IDLENESS: u64 = 30;

/// Blocks of a chip of paired cells with little room for histories.
const TIGHT_BLOCK_COUNT: u32 = 64;

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
