use std::sync::Arc;

use flagstone_engine::CommitBy;
use flagstone_engine::{EngineStats, Options};
use flagstone_nand::SimNand;

use super::*;
use crate::crash::explore::{self, Limits, Scenario};
use crate::crash::rig::{Capturing, Rig};
use crate::crash::run::{Runner, RunnerRig, Trace};
use crate::crash::script::{CLAIMS, KEEPING, Mix, Op, SMALL_CLAIMS, Script};
use crate::crash::{chip, small};
use crate::model::Model;
use crate::preset;

type Engine = Flagstone<RunnerRig<SimNand>>;

/// Shares of the memory for frames and for uncommitted changes: the changes of one transaction are
/// claimed, the changes of several at a time spill.
const SHARES: (f64, f64) = (0.4, 0.5);

fn with_shares(options: Options, commit: CommitBy) -> Options {
    options.with_techniques(|techniques| {
        techniques.commit = commit;
        (techniques.frame_share, techniques.uncommitted_share) = SHARES;
    })
}

/// Transactions that are claimed, spill, and put long values.
fn scenario(preset: &str, profile: &str, commit: CommitBy, seed: u64) -> Scenario<SimNand> {
    let device = chip(profile, seed).unwrap();
    let options = small(preset::options(preset).unwrap().with_seed(seed), &device);
    let options = with_shares(options, commit);
    let mix = Mix { changes: 180, ends: 24, large: 10, savepoints: 0, ..CLAIMS };
    let mut script = Script::seeded(seed, 240, &mix);
    // Counters begin again where a database is opened.
    script.0.retain(|op| !matches!(op, Op::Reopen | Op::PowerLoss));
    Scenario { device, model: None, setup: Setup::from(options), script }
}

/// Transactions that commit with the leaves they changed a little, on a chip of two dies whose pages have three slots
/// for appends each.
fn small_claims(seed: u64) -> Scenario<SimNand> {
    let device = chip("tiny-shared", seed).unwrap();
    let options = small(preset::options("flagstone").unwrap().with_seed(seed), &device);
    let options = with_shares(options, CommitBy::Claims);
    let script = Script::seeded(seed, 240, &SMALL_CLAIMS);
    Scenario { device, model: None, setup: Setup::from(options), script }
}

/// What a script does when the power stays.
fn counted(scenario: &Scenario<SimNand>) -> EngineStats {
    let model = Arc::new(Model::default());
    let rig: RunnerRig<SimNand> = Rig::new(scenario.device.clone(), model, Capturing::Off);
    let mut runner = Runner::<Engine, _>::create(rig, &scenario.setup).unwrap();
    runner.run(&scenario.script).unwrap();
    let (subject, ..) = runner.into_parts();
    subject.unwrap().database.stats()
}

/// Goal: commits by claims hold beside spills, long values and splits (rule D5 in every mixture).
/// Method: every state of scripts whose counters show all of these.
#[test]
fn every_power_cut_of_claims_beside_spills_and_long_values_recovers() {
    let ways = [
        ("flagstone", "tiny", CommitBy::Claims),
        ("flagstone-flags", "tiny-flags", CommitBy::Flags),
    ];
    for (preset, profile, commit) in ways {
        let (mut claimed, mut flags, mut spilled, mut split) = (0, 0, 0, 0);
        for seed in 0..4 {
            let scenario = scenario(preset, profile, commit, seed);
            let is_long = |op: &Op| matches!(op, Op::PutLarge(..));
            assert!(scenario.script.0.iter().any(is_long), "{preset}, seed {seed}");
            let stats = counted(&scenario);
            claimed += stats.claimed_pages;
            flags += stats.flag_commits;
            spilled += stats.spilled_pages;
            split += stats.reshapes;
            let tally = explore::explore::<Engine, _>(&scenario, &Limits::default(), &|_, _| ());
            for failure in &tally.failures {
                println!("{preset}, seed {seed}, {}: {}", failure.path, failure.violation);
            }
            assert!(tally.states > 100 && tally.failure_count == 0, "{preset}, seed {seed}");
        }
        println!(
            "{preset}: {claimed} claimed, {flags} by flags, {spilled} spilled, {split} splits"
        );
        assert!(claimed > 0 && spilled > 0 && split > 0, "{preset}: {claimed}, {spilled}, {split}");
        assert_eq!(flags > 0, commit == CommitBy::Flags, "{preset}: {flags} by flags");
    }
}

/// Goal (D5, D6): a transaction of small changes that commits with its leaves is there completely or not at all where
/// pages have slots for appends, on new chips and on used ones, where collection moves what it wrote; and where
/// recoveries are cut again. Method: states of scripts whose counters say that leaves were claimed.
#[test]
fn every_power_cut_of_small_claims_recovers() {
    let mut pages = 0;
    for seed in 0..6 {
        let new = small_claims(seed);
        let mut calm = small_claims(seed);
        calm.script.0.retain(|op| !matches!(op, Op::Reopen | Op::PowerLoss));
        pages += counted(&calm).claimed_pages;
        let before = Script::seeded(!seed, 1_200, &SMALL_CLAIMS);
        let used = small_claims(seed).in_use::<Engine>(&before).unwrap();
        for (scenario, depth) in [(&new, 1), (&used, 1), (&used, 2)] {
            let states_max = if depth == 1 { 800 } else { 60 };
            let limits = Limits { depth, states_max, ..Limits::default() };
            let tally = explore::explore::<Engine, _>(scenario, &limits, &|_, _| ());
            for failure in &tally.failures {
                println!("seed {seed}, {}: {}", failure.path, failure.violation);
            }
            assert!(tally.states > 50 && tally.failure_count == 0, "seed {seed}, depth {depth}");
        }
    }
    println!("{pages} leaves claimed");
    assert!(pages > 50, "{pages} leaves claimed");
}

/// Goal (D15, M6): kept snapshots keep their contents through a cut at any moment. Method: every
/// state of scripts that keep and drop them, on new devices and on used ones, where collection
/// moves their pages; and where recoveries are cut again.
#[test]
fn every_power_cut_with_kept_snapshots_recovers() {
    let ways = [
        ("flagstone", "tiny", CommitBy::Auto),
        ("flagstone", "tiny-shared", CommitBy::Claims),
        ("flagstone-flags", "tiny-flags", CommitBy::Flags),
        ("traditional", "tiny-mlc", CommitBy::Log),
    ];
    let mut kept = 0;
    for (preset, profile, commit) in ways {
        for seed in 0..2 {
            let device = chip(profile, seed).unwrap();
            let options = small(preset::options(preset).unwrap().with_seed(seed), &device);
            let options = options.with_techniques(|techniques| techniques.commit = commit);
            let script = Script::seeded(seed, 240, &KEEPING);
            let new = Scenario { device, model: None, setup: Setup::from(options), script };
            let before = Script::seeded(!seed, 1_200, &KEEPING);
            let used = new.clone().in_use::<Engine>(&before).unwrap();
            kept += traced(&new).kept;
            for (scenario, depth) in [(&new, 1), (&used, 1), (&used, 2)] {
                let states_max = if depth == 1 { 150 } else { 55 };
                let limits = Limits { depth, states_max, ..Limits::default() };
                let tally = explore::explore::<Engine, _>(scenario, &limits, &|_, _| ());
                for failure in &tally.failures {
                    println!("{preset}, seed {seed}, {}: {}", failure.path, failure.violation);
                }
                let is_sound = tally.states > 50 && tally.failure_count == 0;
                assert!(is_sound, "{preset} on {profile}, seed {seed}, depth {depth}");
            }
        }
    }
    assert!(kept > 15, "{kept} kept");
}

/// Trace of a script run while the power stays.
fn traced(scenario: &Scenario<SimNand>) -> Trace {
    let model = Arc::new(Model::default());
    let rig: RunnerRig<SimNand> = Rig::new(scenario.device.clone(), model, Capturing::Off);
    let mut runner = Runner::<Engine, _>::create(rig, &scenario.setup).unwrap();
    runner.run(&scenario.script).unwrap();
    runner.verify().unwrap();
    runner.trace()
}
