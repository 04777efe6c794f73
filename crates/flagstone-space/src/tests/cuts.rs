//! Power cuts at every numbered operation of a script, with every ending that the device knows.
//!
//! After each cut the space is mounted and compared with the model, goes on working, and is
//! mounted again. Nothing is sampled. A failure prints the seed, the step, the operation and the
//! ending, which replay it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::vec::Vec;

use flagstone_nand::{Crashable, EccNand, Ending, FaultPlan, Nand, SimNand};

use super::devices::{file, options, profile, sim, spare_profile, ssd};
use super::harness::{Pair, Sight};
use super::script::{Step, script};
use crate::SpaceOptions;

/// How many cuts follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    One,
    Two,
}

/// One exploration: its start and its steps.
pub(super) struct Exploration {
    pub(super) seed: u64,
    pub(super) warm_up: usize,
    pub(super) steps: usize,
    pub(super) depth: Depth,
}

/// Cuts of a step: number and ending of every operation it does.
fn cuts_of<D: Crashable>(pair: &Pair<D>, steps: &[Step]) -> Vec<(u64, Ending)> {
    let mut clean = pair.clone();
    clean.space.device_mut().record_operations();
    let first = clean.space.device().operation_count();
    for step in steps {
        clean.apply(*step).unwrap();
    }
    let device = clean.space.device();
    let numbers = first..device.operation_count();
    numbers
        .flat_map(|number| device.endings_at(number).into_iter().map(move |end| (number, end)))
        .collect()
}

/// Runs steps on a copy until the power goes, mounts the remains and compares.
fn cut_and_recover<D: Crashable>(
    pair: &Pair<D>,
    steps: &[Step],
    seed: u64,
    (number, ending): (u64, Ending),
) -> Pair<D> {
    let mut pair = pair.clone();
    pair.space.device_mut().set_plan(FaultPlan::power_cut(seed, number, ending));
    for step in steps {
        if pair.apply(*step).is_err() {
            break;
        }
    }
    assert!(pair.space.device().is_off(), "the operation was never reached");
    Pair::recover(pair.space.into_device(), pair.model)
}

fn goes_on<D: Crashable>(mut pair: Pair<D>, steps: &[Step]) {
    for step in steps {
        pair.apply(*step).unwrap();
    }
    pair.check(Sight::Running);
    pair.reopen();
}

fn explore<D: Crashable>(device: D, options: &SpaceOptions, what: &Exploration) -> u64 {
    explore_from(Pair::format(device, options), what)
}

/// Explores from a pair on; the number of states.
pub(super) fn explore_from<D: Crashable>(pair: Pair<D>, what: &Exploration) -> u64 {
    let pages = (pair.space.capacity_pages() - 8).min(40);
    explore_pages(pair, what, pages)
}

/// The same with a script of so many pages.
pub(super) fn explore_pages<D: Crashable>(
    mut pair: Pair<D>,
    what: &Exploration,
    pages: u32,
) -> u64 {
    let Exploration { seed, warm_up, steps, depth } = *what;
    let all = pair.model.script(seed, warm_up + steps + 8, pages);
    let mut states = 0;
    for (index, step) in all[..warm_up + steps].iter().enumerate() {
        if index >= warm_up {
            for cut in cuts_of(&pair, &[*step]) {
                let after = &all[index + 1..index + 6];
                let run = || match depth {
                    Depth::One => {
                        goes_on(cut_and_recover(&pair, &[*step], seed, cut), after);
                        1
                    }
                    Depth::Two => cut_again(&pair, *step, after, seed, cut),
                };
                let result = catch_unwind(AssertUnwindSafe(run));
                assert!(result.is_ok(), "seed {seed} step {index} {step:?} cut {cut:?}");
                states += result.unwrap_or(0);
            }
        }
        pair.apply(*step).unwrap();
    }
    states
}

/// Cuts the first writes after a recovery at each operation.
fn cut_again<D: Crashable>(
    pair: &Pair<D>,
    step: Step,
    after: &[Step],
    seed: u64,
    cut: (u64, Ending),
) -> u64 {
    let recovered = cut_and_recover(pair, &[step], seed, cut);
    let cuts = cuts_of(&recovered, &after[..1]);
    for second in &cuts {
        let run = || goes_on(cut_and_recover(&recovered, &after[..1], seed, *second), &after[1..]);
        let result = catch_unwind(AssertUnwindSafe(run));
        assert!(result.is_ok(), "second cut {second:?} in {:?}", after[0]);
    }
    cuts.len() as u64
}

const SHALLOW: Exploration = Exploration { seed: 3, warm_up: 150, steps: 60, depth: Depth::One };

#[test]
fn every_cut_on_every_tiny_profile_recovers() {
    let names = ["tiny", "tiny-nop1", "tiny-ordered", "tiny-risk", "tiny-nospare", "tiny-mlc"];
    let profiles = names.map(profile).into_iter().chain([spare_profile()]);
    for profile in profiles {
        let states = explore(sim(&profile), &options(), &SHALLOW);
        assert!(states > 300, "{}: {states}", profile.name);
    }
}

/// Goal: remains of code words of our own, of their parity and their label after a cut are never taken for
/// programmed content. Method: all endings, and a second cut behind each.
#[test]
fn every_cut_under_ecc_of_our_own_recovers() {
    let chip = EccNand::simulated(&profile("tiny-own"), 1).unwrap();
    let states = explore(chip.clone(), &options(), &SHALLOW);
    assert!(states > 300, "{states}");
    let twice = Exploration { seed: 4, warm_up: 150, steps: 6, depth: Depth::Two };
    let states = explore(chip, &options(), &twice);
    assert!(states > 500, "{states}");
}

#[test]
fn every_cut_on_a_file_recovers() {
    let states = explore(file(), &options(), &SHALLOW);
    assert!(states > 500, "{states}");
}

/// Goal: room given back to the host (E3) is never needed, however a cut ends the discard. Method: a discard
/// writes zeros, which a cut may leave in any part.
#[test]
fn every_cut_on_a_file_that_discards_recovers() {
    let pair = || Pair::format(file(), &options()).discarding();
    let states = explore_from(pair(), &Exploration { warm_up: 300, ..SHALLOW });
    assert!(states > 500, "{states}");
    for seed in 4..7 {
        let twice = Exploration { seed, warm_up: 150, steps: 6, depth: Depth::Two };
        explore_from(pair(), &twice);
    }
}

/// Goal: pages that the device was told to forget (E1 to E3) are never needed. Method: a forgotten
/// page reads as erased at once, so a mount that needs one shows an old version or none.
#[test]
fn every_cut_on_an_ssd_recovers() {
    let what = Exploration { warm_up: 300, steps: 120, ..SHALLOW };
    let states = explore(ssd(28), &options(), &what);
    assert!(states > 200, "{states}");
    explore(ssd(44), &SpaceOptions { parts: 2, ..options() }, &what);
    let twice = Exploration { seed: 4, warm_up: 150, steps: 6, depth: Depth::Two };
    explore(ssd(28), &options(), &twice);
}

#[test]
fn every_cut_with_pages_of_two_parts_recovers() {
    let profile = profile("tiny").with_block_count(40).unwrap();
    let options = SpaceOptions { parts: 2, ..options() };
    explore(sim(&profile), &options, &SHALLOW);
}

#[test]
fn every_second_cut_recovers() {
    let what = Exploration { seed: 4, warm_up: 150, steps: 6, depth: Depth::Two };
    explore(sim(&spare_profile()), &options(), &what);
    let states = explore(sim(&profile("tiny")), &options(), &what);
    assert!(states > 500, "{states}");
}

/// Goal: a record that was in flight at one cut and unreadable then is not believed at a later cut, where it
/// reads (D11). Method: every program of a checkpoint looks complete for a while, then every operation after
/// it is cut, and every operation after that cut; the chip's seed decides which reads succeed.
#[test]
fn a_record_in_flight_at_a_cut_is_not_believed_later() {
    for chip in 0..24 {
        let device = SimNand::new(&profile("tiny-risk"), chip);
        let mut pair = Pair::format(device, &options());
        for step in script(chip, 12, 40) {
            pair.apply(step).unwrap();
        }
        pair.apply(Step::Write { page: 1, cold: false }).unwrap();
        let cuts = cuts_of(&pair, &[Step::Checkpoint]);
        for cut in cuts.into_iter().filter(|cut| cut.1 == Ending::LooksComplete) {
            let recovered = cut_and_recover(&pair, &[Step::Checkpoint], chip, cut);
            cut_at_each(&recovered, chip, 2);
        }
    }
}

/// Cuts the first write of a session at each operation that looks complete or is, so many times.
fn cut_at_each(pair: &Pair<SimNand>, seed: u64, depth: u32) {
    let write = [Step::Write { page: 2, cold: false }];
    let kept = |ending: Ending| match depth {
        1 => ending == Ending::Complete,
        _ => matches!(ending, Ending::Complete | Ending::LooksComplete),
    };
    for cut in cuts_of(pair, &write).into_iter().filter(|cut| kept(cut.1)) {
        let recovered = cut_and_recover(pair, &write, seed, cut);
        if depth > 1 {
            cut_at_each(&recovered, seed, depth - 1);
        }
    }
}

/// Goal: a page that was in flight at a cut and did not read then does not come back at a later mount, where
/// it reads (U7). Method: each program of a row of writes looks complete for a while; the chip's seed decides
/// which reads succeed. Content that a mount showed is durable after the next write.
#[test]
fn a_page_not_seen_after_a_cut_never_comes_back() {
    let write = |page| Step::Write { page, cold: false };
    let row: Vec<Step> = (0..24).map(write).collect();
    for chip in 0..300 {
        let mut pair = Pair::format(SimNand::new(&profile("tiny"), chip), &options());
        for step in script(chip, 20, 40) {
            pair.apply(step).unwrap();
        }
        let cuts = cuts_of(&pair, &row);
        for cut in cuts.into_iter().filter(|cut| cut.1 == Ending::LooksComplete) {
            let mut recovered = cut_and_recover(&pair, &row, chip, cut);
            recovered.apply(write(30)).unwrap();
            recovered.reopen().reopen();
        }
    }
}

#[test]
fn every_cut_in_a_young_space_recovers() {
    let what = Exploration { seed: 8, warm_up: 0, steps: 20, depth: Depth::One };
    explore(sim(&profile("tiny")), &options(), &what);
    explore(file(), &options(), &what);
}

#[test]
fn a_cut_during_a_mount_changes_nothing() {
    let mut pair = Pair::format(sim(&profile("tiny")), &options());
    for step in script(2, 100, 30) {
        pair.apply(step).unwrap();
    }
    let before = pair.space.device().state_hash();
    let pair = pair.reopen();
    assert_eq!(pair.space.device().state_hash(), before);
    assert!(pair.space.device().counters().page_reads > 0);
}
