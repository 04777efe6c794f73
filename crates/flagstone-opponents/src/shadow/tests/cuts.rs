//! Power cuts at every numbered operation of a script and of the restart after it, with every
//! ending that the chip knows.
//!
//! After each cut the store is mounted from spare areas and from summaries; both must hold every
//! acknowledged commit, go on, and be mounted again. Nothing is sampled. A failure names options,
//! seed, step, operation and ending, which replay it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use flagstone_nand::{Crashable, Ending, FaultPlan, SimNand};

use super::super::{Restart, ShadowOptions, ShadowProtocol};
use super::harness::{Model, Mount, Pair, Step, chip, options, script, variants};

/// One exploration: its steps, and whether restarts are cut too.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exploration {
    pub(super) seed: u64,
    pub(super) block_count: u32,
    pub(super) warm_up: usize,
    pub(super) steps: usize,
    /// Steps after each recovery.
    pub(super) after: usize,
    /// Logical pages that are used.
    pub(super) pages: u32,
    pub(super) restarts: Restarts,
}

/// How many cuts follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restarts {
    Whole,
    /// Each restart is cut at each of its operations, and done again.
    Cut,
}

const BOTH: [Restart; 2] = [Restart::Scan, Restart::Summaries];

/// Number and ending of every operation that `act` does to a copy of the device.
fn cuts_of(device: &SimNand, act: impl FnOnce(&mut SimNand)) -> Vec<(u64, Ending)> {
    let mut device = device.clone();
    device.record_operations();
    let first = device.operation_count();
    act(&mut device);
    let numbers = first..device.operation_count();
    numbers
        .flat_map(|number| device.endings_at(number).into_iter().map(move |end| (number, end)))
        .collect()
}

/// Runs a step on a copy until the power goes.
fn cut(pair: &Pair, step: &Step, seed: u64, (number, ending): (u64, Ending)) -> (SimNand, Model) {
    let mut pair = pair.clone();
    pair.store.device_mut().set_plan(FaultPlan::power_cut(seed, number, ending));
    assert!(pair.apply(step).is_err(), "the operation was never reached");
    let mut device = pair.store.into_device();
    assert!(device.is_off(), "the operation was never reached");
    device.power_cycle();
    (device, pair.model)
}

fn goes_on(mut pair: Pair, steps: &[Step], how: Restart) {
    for step in steps {
        pair.apply(step).unwrap();
    }
    pair.check();
    let mut pair = pair.reopen(how);
    pair.check();
}

/// Mounts the device after a cut in both ways; gives the number of states.
fn recover(
    device: &SimNand,
    model: &Model,
    mount: Mount,
    what: &Exploration,
    after: &[Step],
) -> u64 {
    let mut states = 0;
    for how in BOTH {
        let mount = Mount { how, ..mount };
        goes_on(Pair::recover(device.clone(), model.clone(), mount), after, how);
        states += 1;
        if what.restarts == Restarts::Whole {
            continue;
        }
        let cuts = cuts_of(device, |device| {
            mount.mount(device).unwrap();
        });
        for (number, ending) in cuts {
            let mut device = device.clone();
            device.set_plan(FaultPlan::power_cut(what.seed, number, ending));
            assert!(mount.mount(&mut device).is_err(), "the operation was never reached");
            device.power_cycle();
            let run = || goes_on(Pair::recover(device, model.clone(), mount), after, how);
            let result = catch_unwind(AssertUnwindSafe(run));
            assert!(result.is_ok(), "second cut {number} {ending} in a restart, {how:?}");
            states += 1;
        }
    }
    states
}

/// Explores from a pair on; the number of states.
pub(super) fn explore_from(mut pair: Pair, what: &Exploration) -> u64 {
    let options = *pair.store.options();
    let pages = what.pages.min(pair.store.page_count() * 3 / 4);
    let all = script(what.seed, what.warm_up + what.steps + what.after + 1, pages);
    let mount = Mount { options, how: Restart::Scan, bug: pair.bug };
    let mut states = 0;
    for (index, step) in all[..what.warm_up + what.steps].iter().enumerate() {
        if index >= what.warm_up {
            let mut clean = pair.clone();
            clean.store.device_mut().record_operations();
            let first = clean.store.device().operation_count();
            clean.apply(step).unwrap();
            let device = clean.store.device();
            for number in first..device.operation_count() {
                for ending in device.endings_at(number) {
                    let run = || {
                        let (device, model) = cut(&pair, step, what.seed, (number, ending));
                        recover(&device, &model, mount, what, &all[index + 1..][..what.after])
                    };
                    let result = catch_unwind(AssertUnwindSafe(run));
                    assert!(
                        result.is_ok(),
                        "{options:?} {what:?} step {index} {step:?} cut {number} {ending}"
                    );
                    states += result.unwrap_or(0);
                }
            }
        }
        pair.apply(step).unwrap();
    }
    states
}

/// `FLAGSTONE_EFFORT=N` explores as many seeds.
fn explore(options: ShadowOptions, what: &Exploration) -> u64 {
    let seeds = (0..crate::evidence::effort() as u64).map(|more| what.seed + more);
    let states = seeds.map(|seed| {
        let pair = Pair::format(chip(what.block_count), options);
        explore_from(pair, &Exploration { seed, ..*what })
    });
    states.sum()
}

const WIDE: Exploration = Exploration {
    seed: 3,
    block_count: 14,
    warm_up: 150,
    steps: 60,
    after: 6,
    pages: 40,
    restarts: Restarts::Whole,
};

const DEEP: Exploration =
    Exploration { seed: 5, block_count: 12, steps: 2, restarts: Restarts::Cut, ..WIDE };

#[test]
fn every_cut_recovers_in_both_ways() {
    for options in variants() {
        let states = explore(options, &WIDE);
        assert!(states > 1000, "{options:?}: {states}");
    }
}

#[test]
fn every_cut_of_a_restart_recovers() {
    for options in variants() {
        let states = explore(options, &DEEP);
        assert!(states > 300, "{options:?}: {states}");
    }
}

/// Each once led to half a transaction, or to a rule of flash broken: a head left over by a cut
/// erase; a torn note taken for real; the copy of one suspect before the other; a flag on a page
/// whose block was erased in between; a flag left to a page that was in flight itself; a proof that
/// read whole only once other pages of its transaction were erased. The last ones found no room for
/// the units that a restart copies before it erases anything.
#[test]
fn seeds_that_found_something_find_nothing() {
    let (cfc, afc) = (options(ShadowProtocol::Cfc), options(ShadowProtocol::Afc));
    let (scc, bpcc) = (options(ShadowProtocol::Scc), options(ShadowProtocol::Bpcc));
    let clusters = ShadowOptions { block_flags: true, ..cfc };
    let two_pages = |options| ShadowOptions { unit_pages: 2, ..options };
    let wider = Exploration { block_count: 14, ..DEEP };
    for (options, what, seed) in [
        (cfc, WIDE, 14),
        (clusters, WIDE, 7),
        (cfc, DEEP, 14),
        (cfc, DEEP, 9),
        (cfc, DEEP, 40),
        (afc, DEEP, 14),
        (afc, DEEP, 16),
        (cfc, DEEP, 32),
        (afc, wider, 32),
        (two_pages(cfc), DEEP, 16),
        (two_pages(scc), wider, 17),
        (two_pages(bpcc), DEEP, 11),
    ] {
        explore(options, &Exploration { seed, ..what });
    }
}
