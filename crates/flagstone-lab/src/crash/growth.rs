//! Files that grow, explored: cuts inside growths, and rows of restarts between them.

use std::sync::Arc;

use flagstone_engine::Options;
use flagstone_nand::{Nand as _, SegmentFile, SimStorage};

use super::explore::{Limits, Scenario, Tally, explore};
use super::ledger::Ledger;
use super::rig::{Capturing, Rig};
use super::run::{Runner, RunnerRig};
use super::script::{GROWING, Mix, Op, Script};
use super::subject::{Setup, Subject};
use super::{Flagstone, growing_file, small};
use crate::model::Model;

type File = SegmentFile<SimStorage>;
type Engine = Flagstone<RunnerRig<File>>;

fn scenario(seed: u64, ops: usize, mix: &Mix) -> Scenario<File> {
    let device = growing_file().unwrap();
    let setup = Setup::from(small(Options::default().with_seed(seed), &device));
    Scenario { device, model: None, setup, script: Script::seeded(seed, ops, mix) }
}

fn explored<S: Subject<RunnerRig<File>>>(scenario: &Scenario<File>, depth: u32) -> Tally {
    let limits = Limits { depth, ..Limits::default() };
    explore::<S, File>(scenario, &limits, &|_, _| {})
}

/// Blocks at the beginning and at the end of a script that nothing interrupts.
fn growth(scenario: &Scenario<File>) -> (u32, u32) {
    let model = Arc::new(Model::default());
    let rig: RunnerRig<File> = Rig::new(scenario.device.clone(), model, Capturing::Off);
    let mut runner = Runner::<Engine, _>::create(rig.clone(), &scenario.setup).unwrap();
    let begin = rig.present_blocks();
    runner.run(&scenario.script).unwrap();
    (begin, rig.present_blocks())
}

/// Goal: no cut loses or half-shows a transaction while the file grows (rules D1 to D17 on such a
/// file).
/// Method: every state of scripts that make the file larger several times.
#[test]
fn every_power_cut_while_a_file_grows_recovers() {
    for seed in 0..2 {
        let scenario = scenario(seed, 400, &GROWING);
        let (begin, end) = growth(&scenario);
        assert!(end >= begin + 6, "seed {seed}: {begin} to {end}");
        let tally = explored::<Engine>(&scenario, 1);
        assert!(tally.states > 2_000, "seed {seed}: only {} states", tally.states);
        assert_eq!(tally.failures, [], "seed {seed}, of {} states", tally.states);
    }
}

/// Goal: the same where all old blocks have been used, so that new ones are used at once. Method:
/// small rows first, then more and larger ones.
#[test]
fn every_power_cut_while_a_file_in_use_grows_recovers() {
    for seed in 0..2 {
        let small_rows = Script::seeded(!seed, 250, &Mix { large: 0, ..Mix::default() });
        let scenario = scenario(seed, 100, &GROWING).in_use::<Engine>(&small_rows).unwrap();
        let tally = explored::<Engine>(&scenario, 1);
        assert!(tally.states > 1_000, "seed {seed}: only {} states", tally.states);
        assert_eq!(tally.failures, [], "seed {seed}, of {} states", tally.states);
    }
}

/// Goal: the same of the space floor alone, and two deep. Method: groups with a record each.
#[test]
fn every_power_cut_of_groups_while_a_file_grows_recovers() {
    for (seed, ops, depth) in [(1, 200, 1), (3, 8, 2)] {
        let tally = explored::<Ledger<RunnerRig<File>>>(&scenario(seed, ops, &GROWING), depth);
        assert!(tally.states > 500, "seed {seed}: only {} states", tally.states);
        assert_eq!(tally.failures, [], "seed {seed}, of {} states", tally.states);
    }
}

/// Goal: recoveries that are cut in turn end well while blocks are few. Method: short scripts, two
/// deep.
#[test]
fn every_second_cut_while_a_file_grows_recovers() {
    for seed in 4..6 {
        let tally = explored::<Engine>(&scenario(seed, 8, &GROWING), 2);
        assert!(tally.states > 500, "seed {seed}: only {} states", tally.states);
        assert_eq!(tally.failures, [], "seed {seed}, of {} states", tally.states);
    }
}

/// Goal: a file at its largest size behaves as a file of that fixed size. Method: one that is
/// filled, cut and opened over and over; scripts without a cut have to go through as they do on a
/// file of a fixed size.
#[test]
fn restarts_in_a_row_end_well() {
    for seed in 0..6 {
        let mut scenario = scenario(seed, 400, &Mix { upkeep: 90, ..GROWING });
        let is_restart = |op: &&Op| matches!(op, Op::Reopen | Op::PowerLoss);
        assert!(scenario.script.0.iter().filter(is_restart).count() > 15, "seed {seed}");
        scenario.setup = Setup::from(scenario.setup.options.with_memory(48 << 10));
        growth(&scenario);
    }
}
