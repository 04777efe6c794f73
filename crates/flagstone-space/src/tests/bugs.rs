//! Every deliberate bug is found by the exploration of power cuts.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::vec::Vec;

use flagstone_nand::{Crashable, SimNand};

use super::cuts::{Depth, Exploration, explore_from, explore_pages};
use super::devices::{file, growing_file, options, profile, sim, spare_profile};
use super::harness::{Pair, REGION};
use super::script::script;
use crate::{LogicalPage, Lsn, NoOwner, Space, SpaceBug, WriteTag};

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

/// Goal (rule D4): the flag of a group stays until a record covers the group. Method: the flagged page is replaced at
/// once and its block fills with pages that are replaced, so that nothing but the flag keeps it; a mount after each
/// write has the other page of the group as committed.
#[test]
fn flags_that_are_erased_too_early_are_missed() {
    let first_loss = |bug: Option<SpaceBug>| {
        let mut space = Space::format(sim(&profile("tiny-flags")), &options()).unwrap();
        bug.into_iter().for_each(|bug| space.plant(bug));
        let write = |space: &mut Space<SimNand>, page: u32, value: u8| {
            space.ensure_room(1, &mut NoOwner).unwrap();
            space.write(LogicalPage(page), &[value], &WriteTag::data(Lsn(1), REGION)).unwrap();
        };
        (0..8).for_each(|page| write(&mut space, page, 1));
        space.checkpoint(b"").unwrap();
        space.ensure_room(2, &mut NoOwner).unwrap();
        let group = space.new_group().unwrap();
        let tag = WriteTag::data(Lsn(2), REGION);
        space.write_claimed(group, LogicalPage(0), &[2], &tag).unwrap();
        // The page that gets the flag stands in another block.
        let block_units = space.layout().geometry.pages_per_block / space.layout().parts;
        (0..block_units).for_each(|number| write(&mut space, 2 + number % 6, 1));
        space.ensure_room(1, &mut NoOwner).unwrap();
        space.write_claimed(group, LogicalPage(1), &[2], &tag).unwrap();
        space.fence().unwrap();
        space.flag_group(group).unwrap();
        space.commit_group(group).unwrap();
        (0..600_u32).find(|round| {
            write(&mut space, 1 + round % 7, 3);
            let (mut mounted, _) = Space::mount(space.device().clone()).unwrap();
            let mut read = Vec::new();
            mounted.read(LogicalPage(0), &mut read).is_err() || read[0] != 2
        })
    };
    assert_eq!(first_loss(None), None);
    let lost = first_loss(Some(SpaceBug::FlagErased));
    assert!(lost.is_some(), "600 writes do not show it");
}
