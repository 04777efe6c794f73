//! Frozen mappings: their content after every event, and their cost.

use std::vec::Vec;

use flagstone_nand::{BlockFault, BlockIndex, Crashable, FaultPlan, Nand, Profile};

use super::cuts::{Depth, Exploration, explore_from, explore_pages};
use super::devices::{file, growing_file, options, profile, sim, spare_profile};
use super::harness::{Pair, REGION, content};
use super::protected::Protectable;
use super::script::{Draw, Step};
use crate::{FROZEN_MAX, LogicalPage, Lsn, NoOwner, Space, SpaceError, SpaceOptions, WriteTag};

/// Pages that are written: beside the units that frozen mappings keep they leave room.
const PAGES: u32 = 16;

const SHALLOW: Exploration = Exploration { seed: 3, warm_up: 200, steps: 60, depth: Depth::One };

fn explore<D: Crashable>(pair: Pair<D>, what: &Exploration) -> u64 {
    explore_pages(pair.freezing(), what, PAGES)
}

/// Chips whose pages take appends, too.
fn fine_profile() -> Profile {
    let mut profile = profile("tiny");
    profile.capabilities.code_word.data_size = 128;
    profile
}

/// Goal (Y1 to Y4): frozen mappings show what they showed, after a cut at any operation. Method: all of them, on
/// each kind of device, with collection at work.
#[test]
fn every_cut_with_frozen_mappings_recovers() {
    let names = ["tiny", "tiny-nop1", "tiny-ordered", "tiny-risk", "tiny-mlc"];
    for profile in names.map(profile).into_iter().chain([spare_profile()]) {
        for seed in 3..6 {
            let pair = Pair::format(sim(&profile), &options());
            let states = explore(pair, &Exploration { seed, ..SHALLOW });
            assert!(states > 300, "{}: {states}", profile.name);
        }
    }
    for seed in 3..6 {
        let what = Exploration { seed, ..SHALLOW };
        explore(Pair::format(sim(&fine_profile()), &options()).with_slots(2), &what);
        explore(Pair::format(file(), &options()), &what);
        let (device, options) = growing_file(22, 120);
        explore(Pair::format(device, &options), &what);
    }
}

#[test]
fn every_second_cut_with_frozen_mappings_recovers() {
    for seed in 4..7 {
        let what = Exploration { seed, warm_up: 200, steps: 6, depth: Depth::Two };
        explore(Pair::format(sim(&profile("tiny")), &options()), &what);
        explore(Pair::format(sim(&spare_profile()), &options()), &what);
    }
}

/// Goal: the exploration finds the bugs that it is there for.
#[cfg(feature = "seeded-bugs")]
#[test]
fn planted_bugs_of_frozen_mappings_are_found() {
    for bug in [crate::SpaceBug::FrozenIgnored, crate::SpaceBug::FrozenNotFollowed] {
        let is_found = |seed| {
            let mut pair = Pair::format(sim(&profile("tiny")), &options());
            pair.space.plant(bug);
            pair.model.bug = Some(bug);
            let what = Exploration { seed, ..SHALLOW };
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| explore(pair, &what))).is_err()
        };
        assert!((1..=4).any(is_found), "{bug:?}");
    }
}

fn filled(pages: u32) -> Space<flagstone_nand::SimNand> {
    let mut space = Space::format(sim(&profile("tiny")), &options()).unwrap();
    (0..pages).for_each(|page| write(&mut space, page, 1).unwrap());
    space
}

fn write<D: Nand>(space: &mut Space<D>, page: u32, stamp: u64) -> Result<(), SpaceError> {
    let page = LogicalPage(page);
    let image = content(page, stamp, space.payload_size());
    space.ensure_room(1, &mut NoOwner)?;
    space.write(page, &image, &WriteTag::data(Lsn(1), REGION)).map(drop)
}

/// Goal (rule D7): a device that a frozen mapping has filled is of use again once it is given up. Method: pages
/// are written anew until there is no room.
#[test]
fn a_device_that_a_frozen_mapping_fills_is_freed_by_its_end() {
    let pages = filled(0).capacity_pages() * 3 / 4;
    let mut space = filled(pages);
    let before = space.taken_pages();
    let id = space.freeze(b"first", &mut NoOwner).unwrap();
    assert_eq!(space.taken_pages(), before, "its units are shared");
    let all = space.capacity_pages() * 3 / 2;
    let full = (0..all).cycle().take(3_000).find_map(|page| write(&mut space, page, 2).err());
    assert_eq!(full, Some(SpaceError::Full));
    assert!(space.taken_pages() > before);
    assert!(matches!(space.freeze(b"second", &mut NoOwner), Err(SpaceError::Full)));
    assert_eq!(space.frozen().len(), 1);
    let mut bytes = Vec::new();
    for page in (0..pages).map(LogicalPage) {
        space.read_frozen(id, page, &mut bytes).unwrap();
        assert!(bytes == content(page, 1, bytes.len()), "{page:?}");
    }
    assert_eq!(space.verify().unwrap(), []);
    space.thaw(id).unwrap();
    assert_eq!((space.taken_pages(), space.frozen()), (space.live_pages(), Vec::new()));
    let live = space.live_pages();
    (0..pages).cycle().take(3_000).for_each(|page| write(&mut space, page, 3).unwrap());
    assert_eq!(space.verify().unwrap(), []);
    let (mut space, report) = Space::mount(space.into_device()).unwrap();
    assert_eq!(report.lost_pages, 0);
    assert_eq!(space.verify().unwrap(), []);
    assert_eq!(space.taken_pages(), live);
}

/// Goal: limits are told, and a refused request leaves nothing behind.
#[test]
fn labels_and_numbers_have_limits() {
    let mut space = filled(2);
    assert!(matches!(space.freeze(&[7; 256], &mut NoOwner), Err(SpaceError::TooLong { .. })));
    let group = space.new_group().unwrap();
    let tag = WriteTag::data(Lsn(1), REGION);
    space.write_in_group(group, LogicalPage(1), &[1], &tag).unwrap();
    assert_eq!(space.freeze(b"open", &mut NoOwner), Err(SpaceError::GroupOpen(group)));
    space.discard_group(group);
    let capacity = space.capacity_pages();
    let mut ids = Vec::new();
    for count in 0..=FROZEN_MAX {
        match space.freeze(&[count], &mut NoOwner) {
            Ok(id) => ids.push(id),
            Err(error) => {
                assert_eq!(error, SpaceError::Full);
                break;
            }
        }
    }
    assert!((2..=usize::from(FROZEN_MAX)).contains(&ids.len()), "{}", ids.len());
    let labels: Vec<_> = space.frozen().into_iter().map(|(_, label)| label).collect();
    assert!(labels.iter().enumerate().all(|(count, label)| *label == [count as u8]));
    let (mut space, _) = Space::mount(space.into_device()).unwrap();
    assert_eq!(space.frozen().len(), ids.len());
    ids.into_iter().rev().for_each(|id| space.thaw(id).unwrap());
    assert_eq!(space.capacity_pages(), capacity);
    assert!(matches!(
        space.read_frozen(crate::FrozenId(crate::Version(0)), LogicalPage(0), &mut Vec::new()),
        Err(SpaceError::UnknownFrozen(_))
    ));
    assert_eq!(space.verify().unwrap(), []);
}

/// Goal: mappings of several pages, with a directory of their own. Method: a chip of many small pages; of the
/// frozen one, only pages with moved units are written again.
#[test]
fn a_large_frozen_mapping_is_written_once() {
    let profile = profile("tiny").with_block_count(600).unwrap();
    let mut space = Space::format(sim(&profile), &SpaceOptions { ..options() }).unwrap();
    (0..1_400).for_each(|page| write(&mut space, page, 1).unwrap());
    space.checkpoint(b"").unwrap();
    let roots = space.durable.as_ref().map(|record| record.roots.len());
    let id = space.freeze(b"large", &mut NoOwner).unwrap();
    assert_eq!(space.durable.as_ref().map(|record| record.roots.len()), roots);
    let before = space.device().counters().page_programs;
    space.checkpoint(b"").unwrap();
    let written = space.device().counters().page_programs - before;
    assert!(written < 6, "{written} pages for a checkpoint of nothing");
    (0..1_400).for_each(|page| write(&mut space, page, 2).unwrap());
    let (mut space, _) = Space::mount(space.into_device()).unwrap();
    let mut bytes = Vec::new();
    for page in (0..1_400).map(LogicalPage) {
        space.read_frozen(id, page, &mut bytes).unwrap();
        assert!(bytes == content(page, 1, bytes.len()), "{page:?}");
    }
    assert_eq!(space.verify().unwrap(), []);
}

/// Goal: damage in the pages of a frozen mapping costs that mapping alone. Method: each page of its mapping and
/// of its directory in turn.
#[test]
fn damage_in_a_frozen_mapping_costs_nothing_else() {
    let profile = profile("tiny").with_block_count(200).unwrap();
    let mut space = Space::format(sim(&profile), &options()).unwrap();
    (0..300).for_each(|page| write(&mut space, page, 1).unwrap());
    let id = space.freeze(b"kept", &mut NoOwner).unwrap();
    (0..300).for_each(|page| write(&mut space, page, 2).unwrap());
    space.checkpoint(b"").unwrap();
    let slot = space.layout().frozen_pages(0);
    let units: Vec<u32> = slot.map(|index| space.meta_units[index as usize]).collect();
    let written: Vec<u32> = units.into_iter().filter(|at| *at != u32::MAX).collect();
    assert!(written.len() > 2, "{written:?}");
    let device = space.into_device();
    for at in written {
        let mut device = device.clone();
        let page = device.geometry().page_from_number(at).unwrap();
        device.flip_bits(page, 0, device.capabilities().code_word.strength + 1);
        let (mut space, report) = Space::mount(device).unwrap();
        assert!(
            report.lost_pages > 0,
            "{page:?} {:?}",
            space.read_frozen(id, LogicalPage(0), &mut Vec::new())
        );
        let (mut bytes, mut lost) = (Vec::new(), 0);
        for page in (0..300).map(LogicalPage) {
            space.read(page, &mut bytes).unwrap();
            assert!(bytes == content(page, 2, bytes.len()), "{page:?}");
            match space.read_frozen(id, page, &mut bytes) {
                Ok(_) => assert!(bytes == content(page, 1, bytes.len()), "{page:?}"),
                Err(SpaceError::Lost(_)) => lost += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(lost > 0);
        assert_eq!(space.verify().unwrap(), []);
        space.thaw(id).unwrap();
        (0..300).for_each(|page| write(&mut space, page, 3).unwrap());
        assert_eq!(space.verify().unwrap(), []);
        let (space, report) = Space::mount(space.into_device()).unwrap();
        assert_eq!((report.lost_pages, space.frozen()), (0, Vec::new()));
    }
}

/// Goal (rule D7): a chip with failed blocks that has no room for a frozen mapping is full, not worn out, and goes on.
/// Method: pages up to the capacity that is left.
#[test]
fn no_room_for_a_frozen_mapping_is_no_wear() {
    let mut space = Space::format(sim(&profile("tiny")), &options()).unwrap();
    let block_faults = (8..12).map(|block| (BlockIndex(block), BlockFault::ProgramFails)).collect();
    space.device_mut().set_plan(FaultPlan { block_faults, ..FaultPlan::default() });
    while let Ok(page) = space.allocate(REGION) {
        write(&mut space, page.0, 1).unwrap();
    }
    assert!(space.lost_blocks() > 0, "no block has failed");
    assert_eq!(space.freeze(b"kept", &mut NoOwner), Err(SpaceError::Full));
    assert_eq!(space.frozen(), Vec::new());
    write(&mut space, 0, 2).unwrap();
    assert_eq!(space.verify().unwrap(), []);
}

/// A space where a group wrote `page`, which was not mapped, before the first mapping was frozen, and was committed
/// before the second; the rest of it holds pages that are written all the time.
fn frozen_around_a_commit<D: Crashable>(mut pair: Pair<D>, page: u32) -> Pair<D> {
    let group = [Step::WriteInGroup { page, slot: 0 }, Step::Freeze, Step::Commit { slot: 0 }];
    for step in group.into_iter().chain([Step::Freeze]) {
        pair.apply(step).unwrap();
    }
    assert_eq!(pair.space.frozen().len(), 2);
    pair
}

/// Goal (Y4, Y5): a page of a group that was open on it when one mapping was frozen is in the next. Method: every cut
/// while collection moves the page.
#[test]
fn every_cut_after_a_group_outlived_a_frozen_mapping_recovers() {
    for seed in 1..4 {
        let pair = frozen_around_a_commit(Pair::format(sim(&profile("tiny")), &options()), 40);
        let what = Exploration { seed, warm_up: 150, steps: 80, depth: Depth::One };
        let states = explore_from(pair, &what);
        assert!(states > 300, "{states}");
    }
    explore_from(frozen_around_a_commit(Pair::format(file(), &options()), 40), &SHALLOW);
}

/// Goal: a page of a frozen mapping that found no room is written by the next checkpoint. Method: a host that has no
/// room for a block now and then; a mount behind the checkpoint that comes after.
#[test]
fn a_page_of_a_frozen_mapping_that_found_no_room_is_written_later() {
    let mut space = Space::format(Protectable::new(false), &options()).unwrap();
    // Their neighbours are written anew, or collection would leave them alone.
    for page in 0..PAGES {
        [page, PAGES, PAGES].into_iter().for_each(|page| write(&mut space, page, 1).unwrap());
    }
    let id = space.freeze(b"kept", &mut NoOwner).unwrap();
    let pages = space.capacity_pages() * 3 / 4 - PAGES;
    let (mut draw, mut refused, mut dirty) = (Draw(5), 0, 0);
    for round in 0..600 {
        (0..8).for_each(|_| write(&mut space, draw.below(pages.into()) as u32, 2).unwrap());
        let is_dirty = space.frozen.maps[&id].map.is_dirty(0);
        dirty += u32::from(is_dirty);
        space.device_mut().is_full = true;
        let result = space.checkpoint(b"");
        space.device_mut().is_full = false;
        match result {
            Ok(()) => {}
            Err(SpaceError::NoRoom) => {
                refused += u32::from(is_dirty);
                // The host is asked again once a caller was told (H3).
                space.retry_growth();
                space.checkpoint(b"").unwrap();
            }
            // No room for the record.
            Err(_) => space = Space::mount(space.into_device()).unwrap().0,
        }
        let (mut mounted, _) = Space::mount(space.device().clone()).unwrap();
        let mut bytes = Vec::new();
        for page in (0..PAGES).map(LogicalPage) {
            mounted.read_frozen(id, page, &mut bytes).unwrap();
            assert!(bytes == content(page, 1, bytes.len()), "round {round}, {page:?}");
        }
    }
    assert!(refused > 3, "{refused} of {dirty}");
}

/// Goal: a mapping that is frozen twice with nothing between is there twice.
#[test]
fn mappings_that_are_the_same_are_two() {
    let mut space = filled(0);
    let one = space.freeze(b"one", &mut NoOwner).unwrap();
    let two = space.freeze(b"two", &mut NoOwner).unwrap();
    let both = [(one, b"one".to_vec()), (two, b"two".to_vec())];
    assert_eq!(space.frozen(), both);
    let (mut space, _) = Space::mount(space.into_device()).unwrap();
    assert_eq!(space.frozen(), both);
    space.thaw(one).unwrap();
    let (space, _) = Space::mount(space.into_device()).unwrap();
    assert_eq!(space.frozen(), both[1..]);
}

/// Goal: a frozen mapping whose end found no room is gone, durably with the next checkpoint. Method: a host that has no
/// room for a block meanwhile.
#[test]
fn a_frozen_mapping_whose_end_found_no_room_is_gone() {
    let mut space = Space::format(Protectable::new(false), &options()).unwrap();
    let (mut draw, mut refused) = (Draw(6), 0);
    for _ in 0..100 {
        let mut write_some = |space: &mut Space<_>| {
            (0..6).for_each(|_| write(space, draw.below(PAGES.into()) as u32, 2).unwrap());
        };
        write_some(&mut space);
        let id = space.freeze(b"kept", &mut NoOwner).unwrap();
        write_some(&mut space);
        space.device_mut().is_full = true;
        let result = space.thaw(id);
        space.device_mut().is_full = false;
        match result {
            Ok(()) => {}
            Err(SpaceError::NoRoom) => {
                refused += 1;
                space.retry_growth();
                assert_eq!(space.frozen(), Vec::new());
                assert_eq!(space.thaw(id), Err(SpaceError::UnknownFrozen(id)));
                space.checkpoint(b"").unwrap();
                assert_eq!(space.verify().unwrap(), []);
                let (mut mounted, report) = Space::mount(space.device().clone()).unwrap();
                assert_eq!((report.lost_pages, mounted.frozen()), (0, Vec::new()));
                assert_eq!(mounted.verify().unwrap(), []);
            }
            // No room for the record: it may be there or not.
            Err(_) => {
                space = Space::mount(space.into_device()).unwrap().0;
                let left = space.frozen();
                left.into_iter().for_each(|(id, _)| space.thaw(id).unwrap());
            }
        }
    }
    assert!(refused > 3, "{refused}");
}

/// Goal (rule D7): where failed blocks and frozen mappings together leave too little, the device is full, and goes on
/// without them. Method: as many pages as there may be beside some, half of them as they were frozen; then blocks fail.
#[test]
fn blocks_that_fail_beside_frozen_mappings_leave_no_room_but_wear_nothing_out() {
    let profile = profile("tiny").with_block_count(64).unwrap();
    let mut space = Space::format(sim(&profile), &options()).unwrap();
    let half = space.capacity_pages() / 2;
    (0..half).for_each(|page| write(&mut space, page, 1).unwrap());
    let ids = [0, 1, 2, 3].map(|label| {
        write(&mut space, 0, 1).unwrap();
        space.freeze(&[label], &mut NoOwner).unwrap()
    });
    let mut pages = half;
    while space.taken_pages() < space.capacity_pages() {
        write(&mut space, pages, 1).unwrap();
        pages += 1;
    }
    let faults = [20, 30].map(|block| (BlockIndex(block), BlockFault::ProgramFails));
    let plan = FaultPlan { block_faults: faults.into_iter().collect(), ..FaultPlan::default() };
    space.device_mut().set_plan(plan);
    let full = (0..pages).cycle().take(9_000).find_map(|page| write(&mut space, page, 2).err());
    assert!(space.live_pages() > space.capacity_pages(), "nothing has failed");
    assert_eq!(full, Some(SpaceError::Full));
    ids.into_iter().for_each(|id| space.thaw(id).unwrap());
    (0..pages).cycle().take(3_000).for_each(|page| write(&mut space, page, 3).unwrap());
    assert_eq!(space.verify().unwrap(), []);
}
