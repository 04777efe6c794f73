//! The harness tested on a toy: sound ones pass, each broken one is found.

use std::sync::Arc;

use flagstone_engine::Options;
use flagstone_nand::{Profile, SimNand};

use super::explore::{Limits, Scenario, Tally, explore};
use super::faults::{Trial, changed_images, correctable_errors, full_then_deleted, swapped_pages};
use super::rig::{Capturing, Rig};
use super::run::{Runner, RunnerRig, Violation};
use super::script::{Direction, KeyIndex, Mix, Op, Script, Size};
use super::sequences::{explore_sequences, prepared};
use super::subject::{Setup, Subject};
use super::toy::Toy;
use super::{Flagstone, chip, small};
use crate::model::{Model, SlotIndex, TableIndex};

type ToyRig = RunnerRig<SimNand>;

fn explored<S: Subject<ToyRig>>(ops: usize, depth: u32, seed: u64) -> Tally {
    let device = SimNand::new(&Profile::named("tiny").unwrap(), seed);
    let script = Script::seeded(seed, ops, &Mix::default());
    let scenario = Scenario { device, model: None, setup: Setup::default(), script };
    let limits = Limits { depth, seed, ..Limits::default() };
    explore::<S, SimNand>(&scenario, &limits, &|_, _| {})
}

/// Goal: an engine that keeps the promise passes. Method: all states of a script, two deep.
#[test]
fn a_sound_engine_has_no_failure() {
    let tally = explored::<Toy<ToyRig, 0>>(40, 2, 7);
    assert!(tally.states > 1000, "only {} states", tally.states);
    assert_eq!(tally.points, tally.trace.operations, "operations that are not cut");
    assert_eq!(tally.failures, [], "of {} states", tally.states);
}

fn found_by(effort: impl Fn(u64) -> Tally) -> Option<u64> {
    (1..20).find(|seed| effort(*seed).failure_count > 0)
}

/// Goal: the harness sees each way of breaking the promise that a toy has.
/// Method: growing seeds until it does.
#[test]
fn every_broken_toy_is_found() {
    assert!(found_by(|seed| explored::<Toy<ToyRig, 2>>(120, 1, seed)).is_some(), "no checksum");
    assert!(found_by(|seed| explored::<Toy<ToyRig, 4>>(40, 1, seed)).is_some(), "early return");
    assert!(found_by(|seed| explored::<Toy<ToyRig, 5>>(40, 1, seed)).is_some(), "leaky abort");
    assert!(found_by(|seed| explored::<Toy<ToyRig, 1>>(10, 2, seed)).is_some(), "two slots");
    assert!(found_by(|seed| explored::<Toy<ToyRig, 3>>(10, 2, seed)).is_some(), "no copy");
}

/// Goal: an engine that says it is full is still asked for its contents. Method: a toy whose
/// content cannot be read once it was opened fails in every state; a toy without room for a change
/// fails in none.
#[test]
fn want_of_room_excuses_no_read() {
    let silent = explored::<Toy<ToyRig, 6>>(10, 1, 1);
    assert!(silent.states > 10);
    // The script's own restart is one more.
    assert!(silent.failure_count >= silent.states, "{} of {}", silent.failure_count, silent.states);
    let full = explored::<Toy<ToyRig, 7>>(10, 1, 1);
    assert_eq!(full.failure_count, 0, "{:?}", full.failures);
    // Where there was nothing yet to open, the recovery makes a database, which has room.
    assert!(full.probes_refused > 20 && full.probes_refused < full.states, "{full:?}");
    assert_eq!(silent.probes_refused, 0);
}

fn trial(stride: usize) -> Trial {
    Trial {
        chip: SimNand::new(&Profile::named("tiny").unwrap(), 3),
        setup: Setup::default(),
        ops: 120,
        seed: 3,
        threads: 2,
        stride,
    }
}

/// Goal: the campaigns run and a toy that survives them is not blamed.
/// Method: the faults that even a toy repairs by writing its state anew.
#[test]
fn campaigns_do_not_blame_a_sound_toy() {
    let bits = correctable_errors::<Toy<ToyRig, 0>>(&trial(1));
    assert_eq!((bits.cases, bits.failures), (4, Vec::new()));
    let full = full_then_deleted::<Toy<ToyRig, 0>>(&trial(1), &[100, 900]);
    assert_eq!((full.cases, full.failures), (2, Vec::new()));
}

/// Goal: a chip damaged where no ECC sees it is never read as other contents.
/// Method: seeded changes of an image; a toy has older states to fall back to only in its slots.
#[test]
fn changed_images_are_noticed() {
    let sound = changed_images::<Toy<ToyRig, 0>>(&trial(1), 200);
    let unnoticed = |violation: &Violation| !matches!(violation, Violation::Rewound(_));
    let wrong: Vec<_> = sound.failures.iter().filter(|(_, found)| unnoticed(found)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(!changed_images::<Toy<ToyRig, 2>>(&trial(1), 200).failures.is_empty());
}

/// Goal: one damaged page of a chip in use is told, or does no harm, on Flagstone. Method: images in
/// which a page of a group, of a run or of the head of a log block is the one that counts.
#[test]
fn one_damaged_page_is_never_taken_for_an_older_state() {
    for (profile, seed) in [("tiny", 33), ("tiny-nop1", 37), ("tiny-nop1", 48)] {
        let chip = chip(profile, seed).unwrap();
        let setup = small(Options::default().with_seed(seed), &chip).into();
        let trial = Trial { chip, setup, ops: 150, seed, threads: 2, stride: 1 };
        let found = changed_images::<Flagstone<ToyRig>>(&trial, 1000);
        assert_eq!(found.failures, Vec::new(), "{profile}, seed {seed}");
        assert!(found.reported > 100, "{profile}, seed {seed}: {found:?}");
    }
}

/// Goal: a toy without checksums takes a swapped page for its own, and is found.
#[test]
fn swapped_pages_are_found_without_checksums() {
    let is_found = |seed| {
        let swapped = swapped_pages::<Toy<ToyRig, 2>>(&Trial { seed, ..trial(7) });
        !swapped.failures.is_empty()
    };
    assert!((3..9).any(is_found));
}

/// Goal (D13): the model claims only locks that an engine must take, so that no engine is blamed
/// wrongly.
/// Method: a table filled in one transaction, then another one beside it, on Flagstone.
#[test]
fn what_a_fill_does_not_lock_is_free() {
    let (one, other, table) = (SlotIndex(0), SlotIndex(1), TableIndex(0));
    let nothing = Op::Scan(other, table, KeyIndex(7), KeyIndex(7), Direction::Forward);
    let fill = |slot| Op::Fill(slot, table, Size(4));
    let script = Script(vec![fill(one), nothing, fill(other), Op::Get(other, table, KeyIndex(7))]);
    let chip = chip("tiny", 1).unwrap();
    let setup = small(Options::default(), &chip).into();
    let rig = Rig::new(chip, Arc::new(Model::default()), Capturing::Off);
    let mut runner = Runner::<Flagstone<ToyRig>, SimNand>::create(rig, &setup).unwrap();
    assert_eq!(runner.run(&script), Ok(()));
}

#[test]
fn every_sequence_on_a_sound_toy_passes() {
    let chip = SimNand::new(&Profile::named("tiny").unwrap(), 5);
    let setup = Setup::default();
    let (device, model) = prepared::<Toy<ToyRig, 0>, _>(chip, &setup).unwrap();
    let limits = Limits::default();
    let explored =
        explore_sequences::<Toy<ToyRig, 0>, _>(&device, &model, &setup, 2, &limits, &|_, _| {});
    assert_eq!(explored.len(), 56);
    assert!(explored.iter().all(|(_, tally)| tally.states > 0 && tally.failure_count == 0));
}
