//! Wear: how evenly erases are spread, and how many levelling adds.

use std::vec;
use std::vec::Vec;

use flagstone_nand::{BlockIndex, Profile, SimNand};

use super::devices::{profile, sim};
use super::harness::REGION;
use super::script::Draw;
use crate::blocks::BlockTable;
use crate::{BlockState, Cause, LogicalPage, Lsn, NoOwner, Space, SpaceOptions, WriteTag};

/// Pages that blocks are erased for, of which levelling may take one.
const SHARE: u32 = 64;

/// Load of a chip.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// Percent of the pages that may be live and are.
    fill: u32,
    /// Percent of the pages that are written once.
    cold: u32,
    /// Log pages for each page that is written.
    log: u32,
    /// How many numbers are drawn for a page, the smallest of which counts.
    skew: u32,
}

fn chips() -> [Profile; 3] {
    let chip = |name, block_count, pages_per_block| {
        let mut profile = profile(name).with_block_count(block_count).unwrap();
        profile.geometry.pages_per_block = pages_per_block;
        profile
    };
    [chip("tiny", 64, 8), chip("tiny", 400, 8), chip("slc-2k", 192, 32)]
}

/// A chip that was overwritten as a whole ten times.
fn overwritten(chip: &Profile, load: Load, static_wear: Option<u32>) -> Space<SimNand> {
    let block_count = chip.geometry.block_count;
    let log_pages = block_count / 8 * chip.geometry.pages_per_block;
    let options = SpaceOptions { log_pages, static_wear, ..SpaceOptions::default() };
    let mut space = Space::format(sim(chip), &options).unwrap();
    let tag = WriteTag::data(Lsn(1), REGION);
    let count = space.capacity_pages() * load.fill / 100;
    for page in 0..count {
        space.ensure_room(1, &mut NoOwner).unwrap();
        space.write(LogicalPage(page), &[1], &tag).unwrap();
    }
    let hot = u64::from((count * (100 - load.cold) / 100).max(1));
    let log = vec![7; space.log_slot_size() * space.log_slots_per_page() as usize];
    let mut draw = Draw(3);
    while space.stats().erase_count.mean < 10.0 {
        for _ in 0..block_count {
            let page = (0..load.skew).map(|_| draw.below(hot)).min().unwrap();
            space.ensure_room(1, &mut NoOwner).unwrap();
            space.write(LogicalPage(page as u32), &[2], &tag).unwrap();
            for _ in 0..load.log {
                space.log_append(&log).unwrap();
            }
            let range = space.log_range();
            if range.end - range.start >= u64::from(log_pages / 2) {
                space.log_release(range.end);
                space.checkpoint(b"").unwrap();
            }
        }
    }
    assert_eq!(space.verify().unwrap(), []);
    check_counts(&space);
    space
}

/// The running counts of the block table are right.
fn check_counts(space: &Space<SimNand>) {
    let report = space.block_report();
    for state in [BlockState::Free, BlockState::Open, BlockState::Closed, BlockState::Log] {
        let found = report.iter().filter(|block| block.state == state).count();
        assert_eq!(space.blocks.count(state) as usize, found, "{state:?}");
    }
    let erases: u64 = report.iter().map(|block| u64::from(block.erases)).sum();
    assert_eq!(space.blocks.erases_total(), erases);
}

/// Largest erase count, in percent of the mean, and programs for levelling in 10,000 of all.
fn wear_of(space: &Space<SimNand>) -> (u32, u64) {
    let stats = space.stats();
    let programs: u64 = stats.programs_by_cause.iter().sum();
    let levelled = stats.programs_by_cause[Cause::Wear as usize];
    let share = f64::from(stats.erase_count.max) / stats.erase_count.mean * 100.0;
    (share as u32, levelled * 10_000 / programs)
}

/// Goal: after ten overwrites no block saw more than half as many erases again as the mean, for any share of
/// data that stays, where levelling is paid out of one page in 64. Method: chips of three shapes, under a log
/// and without one, evenly and unevenly written; every case is counted.
#[test]
fn ten_overwrites_wear_no_block_much_more_than_the_mean() {
    let load = |fill, cold, log, skew| Load { fill, cold, log, skew };
    let mixed = [load(40, 0, 1, 1), load(40, 50, 1, 1), load(40, 80, 1, 1), load(70, 0, 1, 4)];
    let loads = [
        load(45, 90, 10, 1),
        load(30, 50, 10, 1),
        load(70, 0, 0, 1),
        load(70, 50, 0, 1),
        load(95, 0, 0, 1),
        load(95, 0, 1, 4),
    ];
    for chip in chips() {
        for load in mixed.into_iter().chain(loads) {
            let (largest, levelled) = wear_of(&overwritten(&chip, load, Some(SHARE)));
            let shape = (chip.geometry.block_count, chip.geometry.pages_per_block);
            std::println!("{shape:?} {load:?}: {largest} {levelled}");
            assert!(largest <= 150, "{shape:?} {load:?}: {largest} % of the mean");
            assert!(levelled <= 200, "{shape:?} {load:?}: {levelled} of 10,000 programs");
        }
    }
}

/// Goal: where nearly all of a full chip stays, levelling gets on as far as its share of the erases
/// carries it, and takes no more. Method: the same chip with it and without.
#[test]
fn levelling_a_chip_that_is_mostly_cold_keeps_to_its_share() {
    for chip in chips() {
        for load in [
            Load { fill: 95, cold: 95, log: 0, skew: 1 },
            Load { fill: 70, cold: 95, log: 1, skew: 1 },
        ] {
            let (before, none) = wear_of(&overwritten(&chip, load, None));
            let (after, levelled) = wear_of(&overwritten(&chip, load, Some(SHARE)));
            std::println!("{:?} {load:?}: {before} {after} {levelled}", chip.geometry.block_count);
            assert_eq!(none, 0);
            assert!(after * 10 < before * 19 / 2, "{load:?}: {before} % without, {after} % with");
            assert!((50..=10_000 / u64::from(SHARE)).contains(&levelled), "{load:?}: {levelled}");
        }
    }
}

/// Goal: blocks that hold next to nothing do not rest: emptying them costs next to nothing. Method: most
/// blocks of a chip keep one page that is never written again, and so no block has to be collected; the
/// rest of the chip is the log's.
#[test]
fn blocks_that_keep_one_page_are_worn_like_others() {
    let [.., chip] = chips();
    let log_pages = 8 * chip.geometry.pages_per_block;
    let static_wear = Some(SHARE);
    let options = SpaceOptions { log_pages, static_wear, ..SpaceOptions::default() };
    let mut space = Space::format(sim(&chip), &options).unwrap();
    let tag = WriteTag::data(Lsn(1), REGION);
    let (kept, units) = (chip.geometry.block_count * 2 / 3, space.layout().units_per_block);
    for page in (0..kept).flat_map(|page| (kept + 1..kept + units).chain([page])) {
        space.ensure_room(1, &mut NoOwner).unwrap();
        space.write(LogicalPage(page), &[1], &tag).unwrap();
    }
    let log = vec![7; space.log_slot_size() * space.log_slots_per_page() as usize];
    while space.stats().erase_count.mean < 10.0 {
        space.ensure_room(1, &mut NoOwner).unwrap();
        space.log_append(&log).unwrap();
        let range = space.log_range();
        if range.end - range.start >= u64::from(log_pages / 2) {
            space.log_release(range.end);
            space.checkpoint(b"").unwrap();
        }
    }
    assert_eq!(space.verify().unwrap(), []);
    let (largest, levelled) = wear_of(&space);
    std::println!("{largest} {levelled}");
    assert!(largest <= 150, "{largest} % of the mean");
    assert!(levelled <= 10_000 / u64::from(SHARE), "{levelled} of 10,000 programs");
}

/// Goal: sessions too short to earn a block level wear all the same, at the same share. Method: the
/// space is mounted again after every few writes.
#[test]
fn short_sessions_level_wear_too() {
    let [chip, ..] = chips();
    let load = Load { fill: 70, cold: 80, log: 0, skew: 1 };
    let mut space = overwritten(&chip, load, None);
    space.options.static_wear = Some(SHARE);
    space.checkpoint(b"").unwrap();
    let hot = space.capacity_pages() / 10;
    let tag = WriteTag::data(Lsn(1), REGION);
    let before = space.blocks.erases_total();
    let (mut levelled, mut erases) = (0, 0);
    for session in 0..400 {
        space = Space::mount(space.into_device()).unwrap().0;
        for page in 0..hot {
            space.ensure_room(1, &mut NoOwner).unwrap();
            space.write(LogicalPage((page * 7 + session) % hot), &[3], &tag).unwrap();
        }
        let stats = space.stats();
        levelled += stats.programs_by_cause[Cause::Wear as usize];
        erases += stats.erases;
    }
    assert_eq!(
        space.blocks.erases_total(),
        before + erases,
        "a mount neither loses nor invents any"
    );
    assert!(erases < 400 * u64::from(SHARE), "{erases} erases: the sessions are not short");
    assert!(levelled > 0, "nothing was levelled in {erases} erases");
    let filled = erases * u64::from(space.layout().units_per_block);
    assert!(
        levelled * u64::from(SHARE) <= 2 * filled,
        "{levelled} pages levelled in {erases} erases: more than the share and what short sessions lost"
    );
}

/// Goal: levelling moves pages that stay, not recent writes or pages of the mapping.
#[test]
fn a_block_with_pages_of_the_mapping_does_not_rest() {
    let [chip, ..] = chips();
    let space = overwritten(&chip, Load { fill: 70, cold: 80, log: 1, skew: 1 }, None);
    let rested = |units: &[u32]| space.blocks.rested(u32::MAX, u32::MAX, units.iter().copied());
    let victims: Vec<_> = rested(&[]).into_iter().collect();
    let first = victims[0].0 * chip.geometry.pages_per_block;
    assert_ne!(rested(&[first]), rested(&[]));
    assert_eq!(space.blocks.rested(0, u32::MAX, [].into_iter()), None, "nothing is that old");
    assert_eq!(space.blocks.rested(u32::MAX, 0, [].into_iter()), None, "nothing saw fewer erases");
}

/// Goal: of blocks that are as full and as old, cost-age-times takes the less worn one. Method: two
/// blocks, either of which is the worn one; cost-benefit does not tell them apart.
#[test]
fn cost_age_times_leaves_worn_blocks_alone() {
    for (erases, expected) in [([10, 5], 1), ([5, 10], 0)] {
        let mut table = BlockTable::new(2, 8, 8);
        for (block, count) in (0..2).map(BlockIndex).zip(erases) {
            table.restore(block, BlockState::Closed, 1 + block.0, count);
            table.add_live(block.0 * 8);
        }
        let worn = table.aged_victim(8, 100, |block| block.erases);
        assert_eq!(worn, Some(BlockIndex(expected)));
        assert_eq!(table.aged_victim(8, 100, |_| 1), Some(BlockIndex(1)), "the last of equals");
    }
}
