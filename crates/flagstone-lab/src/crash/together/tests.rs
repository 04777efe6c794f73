use std::sync::Arc;

use flagstone_engine::EngineStats;
use flagstone_nand::SimNand;

use super::*;
use crate::crash::Flagstone;
use crate::crash::explore::{Limits, Tally, explore};
use crate::crash::rig::{Capturing, Rig};
use crate::crash::run::{Runner, RunnerRig};
use crate::crash::{chip, file};

type Engine<C> = Flagstone<RunnerRig<C>>;

/// States of each level where recoveries are cut in turn.
const DEEP_STATES: u64 = 24;

fn scenario(together: Together) -> Scenario<SimNand> {
    scenario_on(together, chip(together.profile(), 1).unwrap())
}

fn scenario_on<C: Crashable>(together: Together, device: C) -> Scenario<C> {
    let (scenario, before) = together.scenario(device, 1);
    scenario.merged::<Engine<C>>(&before).unwrap()
}

/// Counters of the engine after each step of the script, while the power stays.
fn counted<C: Crashable>(scenario: &Scenario<C>) -> Vec<EngineStats> {
    let model = scenario.model.clone().unwrap();
    let rig: RunnerRig<C> =
        Rig::new(scenario.device.clone(), Arc::new(model.clone()), Capturing::Off);
    let mut runner = Runner::<Engine<C>, _>::open(rig, model, &scenario.setup).unwrap();
    let mut counted = Vec::new();
    for op in &scenario.script.0 {
        runner.step(*op).unwrap();
        counted.push(runner.subject().unwrap().engine_stats());
    }
    counted
}

/// Explores every state, and some states whose recovery is cut in turn.
fn explored<C: Crashable + Send + Sync>(together: Together, scenario: &Scenario<C>) {
    for depth in [1, 2] {
        let states_max = if depth == 1 { u64::MAX } else { DEEP_STATES };
        let limits = Limits { depth, states_max, ..Limits::default() };
        let tally: Tally = explore::<Engine<C>, _>(scenario, &limits, &|_, _| {});
        println!("{together:?}, depth {depth}: {} points, {} states", tally.points, tally.states);
        assert!(tally.states > 300, "{together:?}: only {} states", tally.states);
        assert_eq!(tally.failures, [], "{together:?}, depth {depth}");
    }
}

/// Goal (rule D1): three leaves and more that split under one group do so completely or not at all.
/// Method: every state of a script whose counters say that they do, on chips and on a file.
#[test]
fn every_power_cut_of_leaves_that_split_together_recovers() {
    fn explored_on<C: Crashable + Send + Sync>(device: C) {
        let scenario = scenario_on(Together::Split, device);
        let last = *counted(&scenario).last().unwrap();
        assert!(last.split_together > 2, "{last:?}");
        explored(Together::Split, &scenario);
    }
    for profile in ["tiny", "tiny-dies"] {
        explored_on(chip(profile, 1).unwrap());
    }
    explored_on(file("segment-file").unwrap());
}

/// Goal (rule D1): groups that wait for one sync are each there completely or not at all, and later
/// changes only with them. Method: every state of a script on a file whose counters say that two
/// wait at once.
#[test]
fn every_power_cut_of_groups_that_wait_for_a_sync_recovers() {
    let scenario = scenario_on(Together::Groups, file("segment-file").unwrap());
    let last = *counted(&scenario).last().unwrap();
    assert!(last.reshapes_at_once > 1, "{last:?}");
    explored(Together::Groups, &scenario);
}

/// Goal (rules D1, D2): a leaf of which a part is installed, and the changes that wait for its
/// rest, are there completely with a cut anywhere between the parts. Method: every state of a
/// script whose counters say that it merges in several parts, on chips of different kinds.
#[test]
fn every_power_cut_of_a_leaf_that_merges_in_parts_recovers() {
    for profile in ["tiny", "tiny-dies", "tiny-mlc"] {
        let scenario = scenario_on(Together::Parts, chip(profile, 1).unwrap());
        let last = *counted(&scenario).last().unwrap();
        assert!(last.merges_in_parts > 1, "{profile}: {last:?}");
        explored(Together::Parts, &scenario);
    }
}

/// Leaves with which one transaction of the script commits, and commits by a flag: where most do. Leaves that
/// become several are left out.
fn claimed(scenario: &Scenario<SimNand>) -> (u64, u64) {
    let counted = counted(scenario);
    let steps = counted.array_windows().filter(|[before, after]| before.reshapes == after.reshapes);
    let commits = steps.map(|[before, after]| {
        (after.claimed_pages - before.claimed_pages, after.flag_commits - before.flag_commits)
    });
    let several = commits.filter(|(leaves, _)| *leaves > 2);
    several.max_by_key(|(leaves, flags)| (*flags, *leaves)).unwrap_or_default()
}

/// Goal (rules D5, D6): a transaction that commits with three leaves and more is there completely or not at
/// all, whether a record commits them, or a flag. Method: every state of scripts whose counters say that there
/// are such transactions.
#[test]
fn every_power_cut_of_transactions_with_many_leaves_recovers() {
    for together in [Together::ClaimedPages, Together::Flagged] {
        let scenario = scenario(together);
        let (leaves, flags) = claimed(&scenario);
        println!("{together:?}: {leaves} leaves, {flags} flags");
        assert!(leaves > 2, "{together:?}: {leaves} leaves");
        assert_eq!(flags > 0, together == Together::Flagged, "{flags} flags");
        explored(together, &scenario);
    }
}

/// Goal: these explorations see. Method: bugs planted in the explored mechanism; each is seen after
/// a cut, and leaves the run without a cut alone.
#[cfg(feature = "seeded-bugs")]
#[test]
fn bugs_of_leaves_that_change_together_are_found() {
    use flagstone_engine::SeededBug;
    use flagstone_space::SpaceBug;

    use crate::crash::hunt::Quarry;

    let planted = [
        (Together::Split, Quarry::Engine(SeededBug::SplitsUnnamed)),
        (Together::Split, Quarry::Space(SpaceBug::OpenGroupCounts)),
        (Together::Parts, Quarry::Engine(SeededBug::RestUnnamed)),
        (Together::Parts, Quarry::Engine(SeededBug::SkipInstalls)),
        (Together::Parts, Quarry::Space(SpaceBug::OpenGroupCounts)),
        (Together::ClaimedPages, Quarry::Engine(SeededBug::CommitGroupsAtMount)),
        (Together::Flagged, Quarry::Space(SpaceBug::FlagTrustedInFlight)),
    ];
    let on_file = scenario_on(Together::Groups, file("segment-file").unwrap());
    found(Together::Groups, Quarry::Engine(SeededBug::RecordBeforePages), on_file);
    for (together, quarry) in planted {
        found(together, quarry, scenario(together));
    }

    fn found<C: Crashable + Send + Sync>(
        together: Together,
        quarry: Quarry,
        mut scenario: Scenario<C>,
    ) {
        match quarry {
            Quarry::Engine(bug) => scenario.setup.engine_bug = Some(bug),
            Quarry::Space(bug) => scenario.setup.space_bug = Some(bug),
        }
        let tally = explore::<Engine<_>, _>(&scenario, &Limits::default(), &|_, _| {});
        let (found, states) = (tally.failure_count, tally.states);
        println!("{together:?}, {}: in {found} of {states} states", quarry.name());
        assert!(found > 0, "{together:?}: {} is not seen", quarry.name());
        let is_cut = tally.failures.iter().all(|failure| !failure.path.0.is_empty());
        assert!(is_cut, "{together:?}: {} shows without a cut", quarry.name());
    }
}
