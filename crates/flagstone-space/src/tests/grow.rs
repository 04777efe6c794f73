//! Files that grow: however a cut ends a growth, nothing that counted is missed.

use std::vec;
use std::vec::Vec;

use flagstone_nand::{Crashable, FaultPlan, Nand as _, SegmentFile, SimStorage, Storage as _};

use super::cuts::{Depth, Exploration, explore_pages};
use super::devices::growing_file;
use super::harness::{Pair, Sight};
use super::script::{Step, script};
use crate::{LogicalPage, Lsn, MountError, NoOwner, RegionId, Space, SpaceError, WriteTag};

type File = SegmentFile<SimStorage>;

/// Blocks of the smallest file that the options of these tests fit.
const BLOCKS: u32 = 22;

fn pair(limit: u32) -> Pair<File> {
    let (device, options) = growing_file(BLOCKS, limit);
    Pair::format(device, &options)
}

fn write(space: &mut Space<File>, page: u32, byte: u8) -> Result<(), SpaceError> {
    let payload = vec![byte; space.payload_size()];
    space.ensure_room(1, &mut NoOwner)?;
    let tag = WriteTag::data(Lsn(7), RegionId(0));
    space.write(LogicalPage(page), &payload, &tag).map(drop)
}

/// Writes the pages of `pages`, each with its own byte.
fn fill(space: &mut Space<File>, pages: core::ops::Range<u32>) -> Result<u32, SpaceError> {
    for page in pages.clone() {
        write(space, page, page as u8)?;
    }
    Ok(pages.end)
}

fn reads_back(space: &mut Space<File>, pages: core::ops::Range<u32>) {
    let mut bytes = Vec::new();
    for page in pages {
        space.read(LogicalPage(page), &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == page as u8), "page {page}");
    }
    let faults = space.verify().unwrap();
    assert!(faults.is_empty(), "{faults:?}");
}

/// Goal: E1, E4. Method: every cut, with every ending, of a script that grows a young file several times.
#[test]
fn every_cut_while_a_file_grows_recovers() {
    for seed in [3, 5] {
        let mut grown = pair(120);
        for step in script(seed, 160, 90) {
            grown.apply(step).unwrap();
        }
        assert!(grown.space.present_blocks() >= BLOCKS + 8, "{}", grown.space.present_blocks());
        let what = Exploration { seed, warm_up: 10, steps: 180, depth: Depth::One };
        let states = explore_pages(pair(120), &what, 90);
        assert!(states > 2_000, "{states}");
    }
}

/// Goal: the same where all old blocks have been used, so that new ones are used at once. Method: a script
/// of few pages, then one of many.
#[test]
fn every_cut_while_a_file_in_use_grows_recovers() {
    for seed in [1, 4, 15] {
        let mut pair = pair(120);
        for step in script(seed, 200, 20) {
            pair.apply(step).unwrap();
        }
        let present = pair.space.present_blocks();
        let mut grown = pair.clone();
        for step in script(seed, 80, 90) {
            grown.apply(step).unwrap();
        }
        assert!(grown.space.present_blocks() >= present + 4, "seed {seed}");
        let what = Exploration { seed, warm_up: 0, steps: 80, depth: Depth::One };
        let states = explore_pages(pair, &what, 90);
        assert!(states > 1_000, "{states}");
    }
}

/// Goal: the same where the recovery is cut too. Method: only a few steps, where blocks are fewest.
#[test]
fn every_second_cut_while_a_file_grows_recovers() {
    for warm_up in [20, 60] {
        let what = Exploration { seed: 4, warm_up, steps: 10, depth: Depth::Two };
        let states = explore_pages(pair(120), &what, 90);
        assert!(states > 500, "{states}");
    }
}

/// Goal: a file at its limit is a file of that size. Method: as everywhere, over as many pages as fit.
#[test]
fn every_cut_at_the_limit_recovers() {
    let what = Exploration { seed: 3, warm_up: 150, steps: 60, depth: Depth::One };
    let states = explore_pages(pair(26), &what, 30);
    assert!(states > 500, "{states}");
}

/// Goal: a nearly full file opens again however often it is opened, and dead groups stay dead when it grows
/// between. Method: rows of short sessions, each cut somewhere; the model knows which groups count.
#[test]
fn rows_of_restarts_always_open_again() {
    for seed in 0..12 {
        let mut pair = pair(if seed % 2 == 0 { 30 } else { 60 });
        for step in script(seed, 60, 34) {
            pair.apply(step).unwrap();
        }
        for (round, steps) in script(seed ^ 0x5EED, 400, 34).chunks(5).enumerate() {
            let first = pair.space.device().operation_count();
            let cut = first + (round as u64 * 7 + seed) % 23;
            let ending = match round % 3 {
                0 => flagstone_nand::Ending::UnsyncedLost,
                1 => flagstone_nand::Ending::Complete,
                _ => flagstone_nand::Ending::UnsyncedSubset512 { draw: 1 },
            };
            let plan = FaultPlan::power_cut(seed + round as u64, cut, ending);
            pair.space.device_mut().set_plan(plan);
            for step in steps {
                match pair.apply(*step) {
                    Ok(()) => {}
                    Err(SpaceError::Device(_) | SpaceError::Poisoned) => break,
                    Err(error) => panic!("seed {seed} round {round} {step:?}: {error}"),
                }
            }
            pair = pair.reopen();
        }
        pair.space.device_mut().set_plan(FaultPlan::default());
        pair.apply(Step::Checkpoint).unwrap();
        pair.check(Sight::Running);
    }
}

/// Goal: E2, E3. Method: a drive with room for a few blocks more than the file begins with; then with more.
#[test]
fn a_host_without_room_is_a_full_device() {
    let (device, options) = growing_file(BLOCKS, 120);
    let mut storage = device.into_storage();
    let room = storage.size().unwrap() + 6 * 8 * 512;
    storage.set_size_max(room);
    let mut space = Space::format(SegmentFile::open(storage).unwrap(), &options).unwrap();
    let mut count = 0;
    let error = loop {
        match write(&mut space, count, count as u8) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
        assert!(count < 200, "it has no end");
    };
    assert_eq!(error, SpaceError::Full);
    assert!(!space.can_grow());
    assert!(space.present_blocks() > BLOCKS && space.present_blocks() <= BLOCKS + 6);
    reads_back(&mut space, 0..count);
    // Trimmed pages are room again, and a later request gets more when there is more.
    space.trim(LogicalPage(0), None).unwrap();
    write(&mut space, 0, 0).unwrap();
    let (mut space, _) = Space::mount(space.into_device()).unwrap();
    reads_back(&mut space, 0..count);
    let mut storage = space.into_device().into_storage();
    storage.set_size_max(u64::MAX);
    let (mut space, _) = Space::mount(SegmentFile::open(storage).unwrap()).unwrap();
    let end = fill(&mut space, count..count + 60).unwrap();
    reads_back(&mut space, 0..end);
}

/// Goal: a file that was cut short is refused. Method: after a checkpoint a grown file loses its end, first
/// half a block of it, then more; the bytes behind the last whole block are no loss.
#[test]
fn a_grown_file_that_was_cut_short_is_refused() {
    let (device, options) = growing_file(BLOCKS, 120);
    let timing = flagstone_nand::Profile::named("segment-file").unwrap().timing;
    let mut space = Space::format(device, &options).unwrap();
    let end = fill(&mut space, 0..80).unwrap();
    space.checkpoint(b"user").unwrap();
    let present = space.present_blocks();
    assert!(present > BLOCKS + 4, "{present}");
    let bytes = space.into_device().storage().to_bytes();
    let open = |bytes: &[u8]| {
        let storage = SimStorage::from_bytes(timing, bytes);
        Space::mount(SegmentFile::open(storage).unwrap())
    };
    for lost in [1, 2_000, 3 * 8 * 512] {
        let blocks = present - u32::try_from(lost / (8 * 512)).unwrap().max(1);
        let cut = open(&bytes[..bytes.len() - lost]);
        let expected = MountError::Truncated { blocks, needed: present };
        assert_eq!(cut.map(drop).unwrap_err(), expected, "{lost} bytes");
    }
    let longer = [&bytes[..], &[7; 1_000]].concat();
    let (mut space, _) = open(&longer).unwrap();
    assert_eq!(space.present_blocks(), present);
    reads_back(&mut space, 0..end);
    // The growth begins where the blocks end, not where the file does.
    let end = fill(&mut space, end..end + 60).unwrap();
    reads_back(&mut space, 0..end);
    let (mut space, _) = Space::mount(space.into_device()).unwrap();
    reads_back(&mut space, 0..end);
}

/// Goal: without any record all pages are found, in grown blocks too. Method: the ring's blocks are written
/// over.
#[test]
fn a_grown_file_without_a_record_is_scanned() {
    let (device, options) = growing_file(BLOCKS, 120);
    let timing = flagstone_nand::Profile::named("segment-file").unwrap().timing;
    let mut space = Space::format(device, &options).unwrap();
    let end = fill(&mut space, 0..80).unwrap();
    space.sync().unwrap();
    let (ring, limit) = (space.ring.blocks(), space.layout().logical_pages);
    let mut bytes = space.into_device().storage().to_bytes();
    // The head takes whole blocks.
    let head = bytes.len() % (8 * 512) + 2 * 8 * 512;
    for block in ring {
        let first = head + block as usize * 8 * 512;
        bytes[first..first + 8 * 512].fill(0);
    }
    let device = SegmentFile::open(SimStorage::from_bytes(timing, &bytes)).unwrap();
    let (mut space, report) = Space::mount(device).unwrap();
    assert!(report.full_scan);
    assert!(space.options().grows && space.layout().logical_pages == limit);
    reads_back(&mut space, 0..end);
}

/// Goal: blocks that could exist cost little. Method: an empty space of the highest limit.
#[test]
fn a_high_limit_takes_little_memory() {
    let mut profile = flagstone_nand::Profile::named("segment-file").unwrap();
    profile = profile.with_capacity(1 << 40).unwrap();
    let storage = SimStorage::new(profile.timing);
    let device = SegmentFile::create_growing(storage, &profile, 40).unwrap();
    let options = crate::SpaceOptions { grows: true, log_pages: 1 << 16, ..Default::default() };
    let space = Space::format(device, &options).unwrap();
    assert!(
        space.mapping_bytes() + 4 * space.meta_units.len() < 2 << 20,
        "{}",
        space.mapping_bytes()
    );
    let (mut space, _) = Space::mount(space.into_device()).unwrap();
    let before = space.present_blocks();
    let tag = WriteTag::data(Lsn(7), RegionId(0));
    for page in 0..2_000 {
        space.ensure_room(1, &mut NoOwner).unwrap();
        space.write(LogicalPage(page), &[page as u8; 100], &tag).unwrap();
    }
    assert!(space.present_blocks() > before);
    let mut bytes = Vec::new();
    let (mut space, _) = Space::mount(space.into_device()).unwrap();
    space.read(LogicalPage(1_999), &mut bytes).unwrap();
    assert_eq!(bytes[..100], [1_999_u32 as u8; 100]);
}

/// Goal: growths are few, and leave little unused. Method: a file grows tenfold.
#[test]
fn a_file_grows_in_few_steps() {
    let (device, options) = growing_file(BLOCKS, 400);
    let mut space = Space::format(device, &options).unwrap();
    let (mut steps, mut present) = (0, space.present_blocks());
    for page in 0..1_500 {
        write(&mut space, page, 1).unwrap();
        steps += u32::from(space.present_blocks() != present);
        present = space.present_blocks();
    }
    assert!(present > 250 && present < 400, "{present}");
    assert!((10..40).contains(&steps), "{steps}");
    // Live pages and reserves take most of it.
    let live = space.live_pages() / space.layout().units_per_block;
    assert!(present * 10 < live * 16 + 10 * 24, "{present} blocks for {live}");
}

/// Goal: where nothing was ever written nothing was replaced, so that nothing has to be durable before it is
/// written (D10). Method: the syncs of a file that takes new blocks, and then used ones.
#[test]
fn blocks_that_were_never_used_wait_for_no_sync() {
    let (device, options) = growing_file(200, 200);
    let mut space = Space::format(device, &options).unwrap();
    write(&mut space, 0, 0).unwrap();
    let begun = space.flash.device.counters().syncs;
    fill(&mut space, 1..500).unwrap();
    assert_eq!(space.flash.device.counters().syncs, begun, "new blocks");
    for _ in 0..4 {
        fill(&mut space, 0..500).unwrap();
    }
    assert!(space.flash.device.counters().syncs > begun, "used blocks");
    reads_back(&mut space, 0..500);
}

/// Goal (E6): the log takes more blocks where it fills its own, and not because data grow; live pages keep
/// their room, and a mount keeps the log. Method: a file that holds pages, then log.
#[test]
fn the_log_takes_more_where_it_fills_what_it_has() {
    let (device, options) = growing_file(BLOCKS, 800);
    let options = crate::SpaceOptions { log_pages: 2_000, ..options };
    let mut space = Space::format(device, &options).unwrap();
    let share = |space: &Space<File>| 100 * space.layout().log_blocks / space.present_blocks();
    fill(&mut space, 0..1_000).unwrap();
    assert!(share(&space) <= 25, "beside data alone: {} %", share(&space));
    let entry = vec![7; space.log_slot_size()];
    let mut appended = 0;
    while space.log_used_pages() + 2 * space.log_block_pages() < space.log_budget_pages() {
        space.log_append(&entry).unwrap();
        appended += 1;
        assert!(appended < 4_000, "the log goes up to its share");
    }
    assert!((45..=50).contains(&share(&space)), "filled: {} %", share(&space));
    fill(&mut space, 0..1_000).unwrap();
    space.sync().unwrap();
    let (mut space, _) = Space::mount(space.into_device()).unwrap();
    assert!(space.layout().log_blocks >= space.log.block_count());
    reads_back(&mut space, 0..1_000);
}
