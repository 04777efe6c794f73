//! Every deliberate bug is found by the exploration of power cuts.

use std::panic::{AssertUnwindSafe, catch_unwind};

use flagstone_nand::Crashable;

use super::cuts::{Depth, Exploration, explore_from, explore_pages};
use super::harness::{Pair, file, growing_file, options, profile, script, sim, spare_profile};
use crate::SpaceBug;

/// Whether any of a few explorations trips over the bug.
fn is_found<D: Crashable>(device: &D, bug: SpaceBug, depth: Depth) -> bool {
    let steps = if depth == Depth::Two { 12 } else { 80 };
    (1..=4).any(|seed| {
        let mut pair = Pair::format(device.clone(), &options());
        pair.space.plant(bug);
        pair.model.bug = Some(bug);
        let what = Exploration { seed, warm_up: 150, steps, depth };
        let run = || explore_from(pair, &what);
        catch_unwind(AssertUnwindSafe(run)).is_err()
    })
}

/// Goal: E1. Method: files in use, which grow: new blocks are used before old ones.
#[test]
fn grown_blocks_that_a_mount_forgets_are_missed() {
    let is_found = |seed| {
        let (device, options) = growing_file(22, 120);
        let mut pair = Pair::format(device, &options);
        pair.space.plant(SpaceBug::GrownBlocksForgotten);
        pair.model.bug = Some(SpaceBug::GrownBlocksForgotten);
        for step in script(seed, 200, 20) {
            pair.apply(step).unwrap();
        }
        let what = Exploration { seed, warm_up: 0, steps: 80, depth: Depth::One };
        let run = || explore_pages(pair, &what, 90);
        catch_unwind(AssertUnwindSafe(run)).is_err()
    };
    assert!((3..9).any(is_found));
}

#[test]
fn every_planted_bug_is_found() {
    let chip = sim(&profile("tiny"));
    let spare = sim(&spare_profile());
    let missed = |found: bool, bug: SpaceBug| (!found).then_some(bug);
    let results = [
        missed(is_found(&file(), SpaceBug::EraseBeforeSync, Depth::One), SpaceBug::EraseBeforeSync),
        missed(
            is_found(&chip, SpaceBug::ReuseBeforeCheckpoint, Depth::One),
            SpaceBug::ReuseBeforeCheckpoint,
        ),
        missed(
            is_found(&chip, SpaceBug::RelocationTakesNewVersion, Depth::One),
            SpaceBug::RelocationTakesNewVersion,
        ),
        missed(is_found(&chip, SpaceBug::OpenGroupCounts, Depth::One), SpaceBug::OpenGroupCounts),
        missed(is_found(&chip, SpaceBug::ChecksumIgnored, Depth::One), SpaceBug::ChecksumIgnored),
        missed(
            is_found(&file(), SpaceBug::StaleSequenceAccepted, Depth::One),
            SpaceBug::StaleSequenceAccepted,
        ),
        missed(is_found(&chip, SpaceBug::SuspectNotCopied, Depth::Two), SpaceBug::SuspectNotCopied),
        missed(
            is_found(&spare, SpaceBug::NumbersNotReserved, Depth::Two),
            SpaceBug::NumbersNotReserved,
        ),
        missed(is_found(&chip, SpaceBug::GroupsNotListed, Depth::One), SpaceBug::GroupsNotListed),
        missed(
            is_found(&chip, SpaceBug::FreeBlockNotErased, Depth::One),
            SpaceBug::FreeBlockNotErased,
        ),
    ];
    let missed: std::vec::Vec<_> = results.into_iter().flatten().collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
