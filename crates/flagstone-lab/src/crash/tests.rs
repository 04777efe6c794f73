//! The harness tested on a toy: sound ones pass, each broken one is found.

use flagstone::Options;
use flagstone_nand::{Profile, SimNand};

use super::explore::{Limits, Scenario, Tally, explore};
use super::run::RunnerRig;
use super::script::{Mix, Script};
use super::subject::Subject;
use super::toy::Toy;

type ToyRig = RunnerRig<SimNand>;

fn explored<S: Subject<ToyRig>>(ops: usize, depth: u32, seed: u64) -> Tally {
    let device = SimNand::new(&Profile::named("tiny").unwrap(), seed);
    let script = Script::seeded(seed, ops, &Mix::default());
    let scenario = Scenario { device, model: None, options: Options::default(), script };
    let limits = Limits { depth, seed, ..Limits::default() };
    explore::<S, SimNand>(&scenario, &limits, &|_, _| {})
}

/// Goal: an engine that keeps the promise passes. Method: all states of a script, two deep.
#[test]
fn a_sound_engine_has_no_failure() {
    let tally = explored::<Toy<ToyRig, 0>>(40, 2, 7);
    assert!(tally.states > 1000, "only {} states", tally.states);
    assert_eq!(tally.failures, [], "of {} states", tally.states);
}

fn found_by(effort: impl Fn(u64) -> Tally) -> Option<u64> {
    (1..20).find(|seed| effort(*seed).failure_count > 0)
}

/// Goal: the harness sees each way of breaking the promise that a toy has.
/// Method: growing seeds until it does.
#[test]
fn every_broken_toy_is_found() {
    assert!(found_by(|seed| explored::<Toy<ToyRig, 2>>(40, 1, seed)).is_some(), "no checksum");
    assert!(found_by(|seed| explored::<Toy<ToyRig, 4>>(40, 1, seed)).is_some(), "early return");
    assert!(found_by(|seed| explored::<Toy<ToyRig, 5>>(40, 1, seed)).is_some(), "leaky abort");
    assert!(found_by(|seed| explored::<Toy<ToyRig, 1>>(10, 2, seed)).is_some(), "two slots");
    assert!(found_by(|seed| explored::<Toy<ToyRig, 3>>(10, 2, seed)).is_some(), "no copy");
}
