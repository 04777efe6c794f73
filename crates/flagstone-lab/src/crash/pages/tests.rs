use std::sync::Arc;

use flagstone_nand::{Profile, SimNand};
use flagstone_opponents::shadow::Restart;
#[cfg(feature = "seeded-bugs")]
use flagstone_opponents::shadow::records::RecordBug;

use super::*;
use crate::crash::explore::{self, Limits, Scenario};
use crate::crash::rig::{Capturing, Rig};
use crate::crash::run::{Runner, RunnerRig};
use crate::crash::script::{Mix, Script};
use crate::crash::{self, CutPath};
use crate::model::Model;
use crate::preset;
use crate::records::Sharing;

/// Memory of a dozen pages: the tables need more.
const MEMORY: usize = 12 * 1024;

/// A chip with so few blocks that they are collected, and long transactions on few keys.
fn scenario(name: &str, ops: usize, seed: u64) -> Scenario<SimNand> {
    let profile = Profile::named("tiny-shared").unwrap().with_block_count(26).unwrap();
    let device = SimNand::new(&profile, seed);
    let options = crash::small(preset::options(name).unwrap(), &device).with_memory(MEMORY);
    let mix = Mix {
        changes: 150,
        ends: 22,
        savepoints: 0,
        large: 0,
        snapshots: 0,
        upkeep: seed as u8 % 2 * 12,
        pieces: 40,
        ..Mix::default()
    };
    let script = Script::seeded(seed, ops, &mix);
    // Both ways of restart in turn.
    let restart = [Restart::Summaries, Restart::Scan][seed as usize % 2];
    let setup = Setup { restart, ..options.into() };
    Scenario { device, model: None, setup, script }
}

/// Sharing in a script run while the power stays.
fn sharing(scenario: &Scenario<SimNand>) -> Sharing {
    let model = Arc::new(Model::default());
    let rig: RunnerRig<SimNand> = Rig::new(scenario.device.clone(), model, Capturing::Off);
    let mut runner = Runner::<Records<_>, _>::create(rig, &scenario.setup).unwrap();
    runner.run(&scenario.script).unwrap();
    let (subject, ..) = runner.into_parts();
    subject.unwrap().machine.sharing()
}

fn explored(scenario: &Scenario<SimNand>, limits: &Limits) -> Vec<CutPath> {
    let tally = explore::explore::<Records<RunnerRig<SimNand>>, _>(scenario, limits, &|_, _| ());
    assert!(tally.states > 100, "{} states", tally.states);
    for failure in &tally.failures {
        println!("{}: {}", failure.path, failure.violation);
    }
    tally.failures.into_iter().map(|failure| failure.path).collect()
}

/// Goal: no cut harms pages that three transactions share, whose committed records stand in
/// three versions, while blocks are collected. Method: every state of scripts whose counters show
/// all of these.
#[test]
fn every_power_cut_of_shared_pages_recovers() {
    for name in ["cfc-ex", "afc-ex"] {
        let mut most = Sharing::default();
        for seed in 0..3 {
            let scenario = scenario(name, 700, seed);
            let sharing = sharing(&scenario);
            most.transactions_max = most.transactions_max.max(sharing.transactions_max);
            most.versions_max = most.versions_max.max(sharing.versions_max);
            most.collections += sharing.collections;
            most.flag_commits += sharing.flag_commits;
            most.befores_written += sharing.befores_written;
            assert_eq!(explored(&scenario, &Limits::default()), [], "{name}, seed {seed}");
        }
        println!("{name}: {most:?}");
        assert!(most.transactions_max >= 3, "{name}: {most:?}");
        assert!(most.versions_max >= 3, "{name}: {most:?}");
        assert!(most.collections > 0, "{name}: {most:?}");
        assert!(most.flag_commits > 0, "{name}: {most:?}");
        assert!(most.befores_written > 0, "{name}: {most:?}");
    }
}

/// Goal: a cut of a restart changes nothing, nor does a collection that begins during one.
/// Method: two cuts, a choice of states.
#[test]
fn a_cut_during_the_restart_of_shared_pages_changes_nothing() {
    for name in ["cfc-ex", "afc-ex"] {
        let scenario = scenario(name, 260, 1);
        let limits = Limits { depth: 2, states_max: 40, ..Limits::default() };
        assert_eq!(explored(&scenario, &limits), [], "{name}");
    }
}

/// The first violation that an exploration sees with a bug, where it sees none without the bug.
#[cfg(feature = "seeded-bugs")]
fn seen(bug: RecordBug, name: &str, ops: usize, limits: &Limits) -> Option<String> {
    let limits = Limits { failures_max: 1, ..*limits };
    (0..6).find_map(|seed| {
        let mut scenario = scenario(name, ops, seed);
        scenario.setup.record_bug = Some(bug);
        let tally =
            explore::explore::<Records<RunnerRig<SimNand>>, _>(&scenario, &limits, &|_, _| ());
        let failure = tally.failures.first()?;
        Some(format!("seed {seed}, {}: {}", failure.path, failure.violation))
    })
}

/// Goal: the explorer sees the rules of the store of shared pages that may be broken. Method: break
/// each, except rules that the tests of the store itself break.
#[cfg(feature = "seeded-bugs")]
#[test]
fn planted_bugs_of_shared_pages_are_found() {
    let flat = Limits::default();
    let deep = Limits { depth: 2, states_max: 60, ..flat };
    let cases = [
        (RecordBug::ValueBeforeDropped, "cfc-ex", 400, flat),
        (RecordBug::BackNotAwaited, "cfc-ex", 400, flat),
        (RecordBug::LogErasedEarly, "cfc-ex", 120, deep),
        (RecordBug::BlocksNotAdopted, "cfc-ex", 400, flat),
        (RecordBug::DeadNotNamed, "cfc-ex", 400, flat),
        (RecordBug::SuspectsKept, "afc-ex", 400, flat),
    ];
    let mut missed = Vec::new();
    for (bug, name, ops, limits) in cases {
        let started = std::time::Instant::now();
        let seen = seen(bug, name, ops, &limits);
        println!("{bug:?}: {:?}, {seen:?}", started.elapsed());
        if seen.is_none() {
            missed.push(bug);
        }
    }
    assert_eq!(missed, [], "bugs that nothing shows");
}
