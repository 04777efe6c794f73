//! Full devices, failing operations, bad blocks, damaged pages, wear.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::vec::Vec;

use flagstone_nand::{
    BlockFault, BlockIndex, Crashable, FaultPlan, Nand, NandError, Persistence, Profile, ReadFault,
    SegmentFile, SimNand, WearOut,
};
use proptest::prelude::*;

use super::devices::{file, options, profile, sim, spare_profile};
use super::harness::{Pair, REGION, Sight};
use super::script::{Draw, script};
use crate::frontier::Stream;
use crate::groups::{GroupPage, Rank};
#[cfg(feature = "seeded-bugs")]
use crate::meta::Placement;
use crate::place::Entitlement;
use crate::{
    BlockState, LogicalPage, Lsn, NoOwner, Space, SpaceError, SpaceOptions, Version, WriteTag,
};

const TAG: WriteTag = WriteTag::data(Lsn(1), REGION);

fn write<D: Nand>(space: &mut Space<D>, page: u32, value: u32) -> Result<(), SpaceError> {
    space.ensure_room(1, &mut NoOwner)?;
    space.write(LogicalPage(page), &value.to_le_bytes(), &TAG).map(|_| ())
}

fn value<D: Nand>(space: &mut Space<D>, page: u32) -> Result<u32, SpaceError> {
    let mut read = Vec::new();
    space.read(LogicalPage(page), &mut read)?;
    Ok(u32::from_le_bytes(read[..4].try_into().unwrap()))
}

#[test]
fn a_full_space_still_overwrites_and_forgets() {
    let mut space = Space::format(sim(&profile("tiny")), &options()).unwrap();
    let mut pages = Vec::new();
    while let Ok(page) = space.allocate(REGION) {
        write(&mut space, page.0, page.0).unwrap();
        pages.push(page.0);
    }
    assert_eq!(pages.len() as u32, space.capacity_pages());
    let mut draw = Draw(1);
    for round in 0..3000 {
        let page = pages[draw.below(pages.len() as u64) as usize];
        write(&mut space, page, round).unwrap();
        if round % 300 == 0 {
            space.checkpoint(b"").unwrap();
        }
    }
    assert_eq!(space.allocate(REGION), Err(SpaceError::Full));
    assert!(space.trim(LogicalPage(pages[0]), None).unwrap());
    assert!(space.allocate(REGION).is_ok());
    assert_eq!(space.verify().unwrap(), []);
}

/// Goal: a full space finds room although each sync leaves holes beside paired cells, and the mapping's
/// pages alone keep blocks from being empty. Method: overwrite on chips of several sizes, with a sync
/// after each write; a write that would be refused stands beside garbage on most blocks.
#[test]
fn a_full_space_on_paired_cells_overwrites_with_a_sync_after_each_write() {
    for block_count in (40..72).step_by(4) {
        let chip = Profile::named("tiny-mlc").unwrap();
        let chip = chip.with_block_count(block_count).unwrap();
        let options = SpaceOptions { log_pages: 42, ..options() };
        let mut space = Space::format(sim(&chip), &options).unwrap();
        let mut pages = Vec::new();
        while let Ok(page) = space.allocate(REGION) {
            write(&mut space, page.0, page.0).unwrap();
            pages.push(page.0);
        }
        let mut draw = Draw(1);
        for round in 0..1000 {
            let page = pages[draw.below(pages.len() as u64) as usize];
            let written = write(&mut space, page, round);
            assert_eq!(written, Ok(()), "{block_count} blocks, write {round}");
            space.sync().unwrap();
        }
        assert_eq!(space.verify().unwrap(), []);
    }
}

/// Goal: blocks that collection has emptied are free after a mount too, although the pages that it moved
/// still stand in them (rule D7). Method: overwrite a full space whose log leaves many blocks free, and
/// mount a copy of the chip again and again.
#[test]
fn a_mount_finds_as_many_free_blocks_as_there_were() {
    let chip = profile("tiny").with_block_count(96).unwrap();
    let options = SpaceOptions { log_pages: 160, ..options() };
    let mut space = Space::format(sim(&chip), &options).unwrap();
    let pages = space.capacity_pages();
    for _ in 0..pages {
        let page = space.allocate(REGION).unwrap();
        write(&mut space, page.0, page.0).unwrap();
    }
    let mut draw = Draw(1);
    for round in 0..4000 {
        // Some are overwritten more often than others, so that collection moves the pages that
        // stay.
        let page = draw.below(pages.into()).min(draw.below(pages.into()));
        write(&mut space, page as u32, round).unwrap();
        if round % 20 == 0 {
            let free_count = space.blocks.free_count();
            let mounted = Space::mount(space.device().clone()).unwrap().0;
            let found = mounted.blocks.free_count();
            // A version that may have been in flight keeps older ones until it is copied, and no mount can
            // tell whether the pages of an open block were moved there or away.
            let fallbacks = mounted.suspects.iter().map(|suspect| suspect.fallbacks.len());
            let kept = fallbacks.sum::<usize>() + Stream::ALL.len();
            assert!(found + kept as u32 >= free_count, "write {round}: {found} of {free_count}");
        }
    }
}

/// Goal: a log that has used up its budget finds a block to go on in, which a restart needs.
///
/// Method: the log takes all its blocks; then writes take all others that users may have, and at
/// no moment is the last block gone that the log may take.
#[test]
fn a_log_that_used_its_budget_finds_a_block_to_go_on_in() {
    let mut space = Space::format(sim(&profile("tiny")), &options()).unwrap();
    let pages = space.capacity_pages() / 2;
    let page = vec![7; space.log_slot_size() * space.log_slots_per_page() as usize];
    for _ in 0..space.log_budget_pages() + space.log_block_pages() {
        space.log_append(&page).unwrap();
    }
    let mut draw = Draw(1);
    for round in 0..40 * pages {
        write(&mut space, draw.below(pages.into()) as u32, round).unwrap();
        space.ensure_room(1, &mut NoOwner).unwrap();
        assert!(space.blocks.free_count() > space.reserved_blocks(Entitlement::Surplus), "{round}");
    }
    space.log_append(&page).unwrap();
}

/// Runs a script in which one operation fails, once or for ever, and compares with the model.
fn survives_failure(operation: u64, persistence: Persistence, steps: usize) {
    let mut pair = Pair::format(sim(&profile("tiny")), &options());
    let number = pair.space.device().operation_count() + operation;
    pair.space.device_mut().set_plan(FaultPlan::failure(1, number, persistence));
    for step in script(6, steps, 30) {
        match pair.apply(step) {
            Ok(()) => {}
            // A failed sync is never retried (rule D10): the space refuses to go on.
            Err(SpaceError::Device(NandError::SyncFailed)) => {
                assert_eq!(pair.space.checkpoint(b""), Err(SpaceError::Poisoned));
                Pair::recover(pair.space.into_device(), pair.model);
                return;
            }
            Err(error) => panic!("{step:?}: {error}"),
        }
    }
    pair.check(Sight::Running);
    pair.reopen();
}

#[test]
fn every_operation_may_fail_once_or_for_ever_and_nothing_is_lost() {
    for operation in 0..200 {
        for persistence in [Persistence::Once, Persistence::ForEver] {
            let run = || survives_failure(operation, persistence, 160);
            let result = catch_unwind(AssertUnwindSafe(run));
            assert!(result.is_ok(), "operation {operation} {persistence:?}");
        }
    }
}

#[test]
fn a_block_that_fails_from_the_start_is_left_out() {
    for fault in [BlockFault::ProgramFails, BlockFault::EraseFails] {
        for block in 0..24 {
            let mut device = sim(&profile("tiny"));
            let block_faults = vec![(BlockIndex(block), fault)];
            device.set_plan(FaultPlan { block_faults, ..FaultPlan::default() });
            let mut pair = Pair::format(device, &options());
            for step in script(7, 300, 30) {
                pair.apply(step).unwrap();
            }
            pair.check(Sight::Running);
            pair.reopen();
        }
    }
}

#[test]
fn factory_bad_blocks_are_never_used() {
    let device = sim(&profile("tiny")).with_bad_block_count(2);
    let mut pair = Pair::format(device, &options());
    for step in script(9, 600, 20) {
        pair.apply(step).unwrap();
    }
    assert_eq!(pair.space.stats().bad_blocks, 2);
    pair.check(Sight::Running);
    pair.reopen();
}

#[test]
fn a_device_that_wears_out_ends_readable() {
    let mut profile = profile("tiny");
    profile.capabilities.endurance = 60;
    let mut device = sim(&profile);
    device.set_plan(FaultPlan { wear: WearOut::AtEndurance, ..FaultPlan::default() });
    let mut space = Space::format(device, &options()).unwrap();
    let mut written = [None; 20];
    let mut draw = Draw(2);
    let error = loop {
        let page = draw.below(20) as u32;
        let stamp = draw.next() as u32;
        match write(&mut space, page, stamp) {
            Ok(()) => written[page as usize] = Some(stamp),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(error, SpaceError::WornOut | SpaceError::Full | SpaceError::NoRoom),
        "{error}"
    );
    for (page, stamp) in written.into_iter().enumerate() {
        assert_eq!(value(&mut space, page as u32).ok(), stamp, "page {page}");
    }
    let stats = space.stats();
    assert!(stats.erase_count.mean > 35.0, "wear is spread: {:?}", stats.erase_count);
    let (mut space, _) = Space::mount(space.into_device()).unwrap();
    for (page, stamp) in written.into_iter().enumerate() {
        assert_eq!(value(&mut space, page as u32).ok(), stamp, "page {page} after a mount");
    }
}

#[test]
fn static_wear_levelling_moves_cold_pages() {
    let options = SpaceOptions { static_wear: Some(5), ..options() };
    let mut space = Space::format(sim(&profile("tiny")), &options).unwrap();
    for page in 0..space.capacity_pages() {
        write(&mut space, page, page).unwrap();
    }
    let mut draw = Draw(5);
    for round in 0..4000 {
        write(&mut space, draw.below(8) as u32, round).unwrap();
        space.background(&mut NoOwner).unwrap();
    }
    let stats = space.stats();
    assert!(stats.programs_by_cause[crate::Cause::Wear as usize] > 0);
    let levelled = [BlockState::Closed, BlockState::Free];
    let data = space.block_report().into_iter().filter(|block| levelled.contains(&block.state));
    let erases: Vec<u32> = data.map(|block| block.erases).collect();
    let (min, max) = (erases.iter().min().unwrap(), erases.iter().max().unwrap());
    assert!(min * 3 >= max * 2, "{erases:?}");
}

#[test]
fn a_page_that_needs_many_corrections_is_rewritten_elsewhere() {
    let mut space = Space::format(sim(&profile("tiny")), &options()).unwrap();
    write(&mut space, 0, 7).unwrap();
    let at = space.map.get(LogicalPage(0)).unwrap();
    let page = space.device().geometry().page_from_number(at).unwrap();
    space.device_mut().flip_bits(page, 0, 3);
    assert_eq!(value(&mut space, 0).unwrap(), 7);
    assert!(space.background(&mut NoOwner).unwrap());
    assert_ne!(space.map.get(LogicalPage(0)), Some(at), "scrubbed");
    assert_eq!(space.stats().scrubs, 1);
    assert_eq!(value(&mut space, 0).unwrap(), 7);
}

/// Goal: a page of the mapping that decays is rewritten while it can still be read. Method: a mapping page of
/// cold pages alone needs corrections at a mount; the session writes pages of another one.
#[test]
fn a_page_of_the_mapping_that_needs_many_corrections_is_rewritten_elsewhere() {
    let profile = profile("tiny").with_block_count(80).unwrap();
    let mut space = Space::format(sim(&profile), &options()).unwrap();
    let entries = space.layout().entries_per_page();
    assert!(space.layout().map_pages > 1, "the mapping takes one page");
    for page in 0..entries + 2 {
        space.allocate(REGION).unwrap();
        write(&mut space, page, page).unwrap();
    }
    space.close(b"").unwrap();
    let (cold, at) = (0, space.meta_units[0]);
    let page = space.device().geometry().page_from_number(at).unwrap();
    space.device_mut().flip_bits(page, 0, 3);
    let mut space = Space::mount(space.into_device()).unwrap().0;
    assert_eq!(value(&mut space, cold).unwrap(), cold);
    assert_eq!(space.meta_units[0], at, "a session that only reads writes nothing");
    write(&mut space, entries + 1, 7).unwrap();
    space.checkpoint(b"").unwrap();
    assert_ne!(space.meta_units[0], at, "not rewritten");
    let mut space = Space::mount(space.into_device()).unwrap().0;
    assert_eq!(value(&mut space, cold).unwrap(), cold);
}

/// Goal: when numbers end, writes say so, and stored pages stay. Method: a space near their end.
#[test]
fn numbers_that_are_used_up_end_writes_alone() {
    let mut space = Space::format(sim(&profile("tiny")), &options()).unwrap();
    write(&mut space, 0, 7).unwrap();
    space.checkpoint(b"").unwrap();
    let near = (1 << 31) - 4_000;
    (space.numbers.sequence, space.numbers.sequence_reserved) = (near, near);
    assert_eq!(write(&mut space, 1, 8), Err(SpaceError::NumbersUsedUp));
    assert_eq!(space.checkpoint(b""), Err(SpaceError::NumbersUsedUp));
    assert_eq!(value(&mut space, 0).unwrap(), 7);
    let mut space = Space::mount(space.into_device()).unwrap().0;
    assert_eq!(value(&mut space, 0).unwrap(), 7);
}

/// Goal: a database may be opened and closed for ever. Method: the numbers that sessions of one write take.
#[test]
fn closed_sessions_leave_their_numbers() {
    let mut space = Space::format(sim(&profile("tiny")), &options()).unwrap();
    space.close(b"").unwrap();
    let before = space.numbers.sequence;
    for session in 0..50 {
        space = Space::mount(space.into_device()).unwrap().0;
        write(&mut space, 0, session).unwrap();
        space.close(b"").unwrap();
    }
    let taken = space.numbers.sequence - before;
    assert!(taken < 50 * 300, "{taken} numbers for 50 sessions");
    assert_eq!(value(&mut space, 0).unwrap(), 49);
}

/// Goal: erases of log blocks are counted however sessions end. Method: a device that counts none itself,
/// sessions that end before their second checkpoint.
#[test]
fn erases_of_the_log_are_not_forgotten() {
    let mut space = Space::format(file(), &options()).unwrap();
    write(&mut space, 0, 0).unwrap();
    space.checkpoint(b"").unwrap();
    let before = space.blocks.erases_total();
    let mut erases = 0;
    for session in 0..40 {
        let storage = space.into_device().into_storage();
        space = Space::mount(SegmentFile::open(storage).unwrap()).unwrap().0;
        let next = space.log_range().end;
        space.log_release(next);
        write(&mut space, 0, session).unwrap();
        space.checkpoint(b"").unwrap();
        space.log_append(b"record").unwrap();
        space.sync().unwrap();
        erases += space.stats().erases;
    }
    assert!(erases > 40, "{erases} erases");
    assert_eq!(space.blocks.erases_total(), before + erases);
}

/// A space with data, groups, log pages and a checkpoint behind it.
fn busy_device(seed: u64, profile: &flagstone_nand::Profile) -> (SimNand, Pair<SimNand>) {
    let mut pair = Pair::format(sim(profile), &options());
    for step in script(seed, 220, 30) {
        pair.apply(step).unwrap();
    }
    (pair.space.device().clone(), pair)
}

/// Goal: a page that cannot be read, or that returns another page's content, never makes wrong
/// bytes come out as right ones. Method: each page of the device in turn.
#[test]
fn any_one_unreadable_or_misdirected_page_gives_right_bytes_or_an_error() {
    for profile in [profile("tiny"), spare_profile()] {
        let (device, pair) = busy_device(12, &profile);
        let geometry = device.geometry();
        for number in 0..geometry.page_count() {
            let page = geometry.page_from_number(number).unwrap();
            let other = (number * 7 + 3) % geometry.page_count();
            let instead = geometry.page_from_number(other).unwrap();
            for fault in [ReadFault::Uncorrectable, ReadFault::Misdirected { instead }] {
                let mut device = device.clone();
                let read_faults = vec![(page, fault)];
                device.set_plan(FaultPlan { read_faults, ..FaultPlan::default() });
                pair.check_damaged(device, &std::format!("{page:?} {fault:?}"));
            }
        }
    }
}

#[test]
fn an_uncorrectable_read_that_does_not_repeat_is_invisible() {
    let mut space = Space::format(sim(&profile("tiny")), &options()).unwrap();
    write(&mut space, 0, 7).unwrap();
    let at = space.map.get(LogicalPage(0)).unwrap();
    let page = space.device().geometry().page_from_number(at).unwrap();
    let read_faults = vec![(page, ReadFault::UncorrectableOnce)];
    space.device_mut().set_plan(FaultPlan { read_faults, ..FaultPlan::default() });
    assert_eq!(value(&mut space, 0).unwrap(), 7);
}

/// Without any readable record the mapping comes from a scan, and is the same.
#[test]
fn a_full_scan_finds_what_the_checkpoint_names() {
    for profile in [profile("tiny"), spare_profile()] {
        let mut space = Space::format(sim(&profile), &options()).unwrap();
        let mut draw = Draw(21);
        for round in 0..800 {
            write(&mut space, draw.below(30) as u32, round).unwrap();
            if round % 100 == 0 {
                space.checkpoint(b"").unwrap();
                space.log_append(b"log").unwrap();
            }
        }
        let expected: Vec<_> = (0..30).map(|page| value(&mut space, page)).collect();
        let ring = space.ring.blocks();
        let log = space.log_range();
        let mut device = space.into_device();
        for block in ring {
            device.erase(BlockIndex(block)).unwrap();
        }
        let (mut space, report) = Space::mount(device).unwrap();
        assert!(report.full_scan);
        assert_eq!(space.options().log_pages, options().log_pages);
        assert!(report.log_pages.start <= log.start && report.log_pages.end >= log.end);
        let found: Vec<_> = (0..30).map(|page| value(&mut space, page)).collect();
        assert_eq!(found, expected);
        for round in 0..500 {
            write(&mut space, draw.below(30) as u32, round).unwrap();
        }
        assert_eq!(space.verify().unwrap(), []);
        let (_, report) = Space::mount(space.into_device()).unwrap();
        assert!(!report.full_scan, "the session began with a checkpoint");
    }
}

#[test]
fn any_two_swapped_pages_give_right_bytes_or_an_error() {
    for profile in [profile("tiny"), spare_profile()] {
        let (device, pair) = busy_device(13, &profile);
        let geometry = device.geometry();
        for number in 0..geometry.page_count() {
            for step in [1, 5, 8, 31] {
                let one = geometry.page_from_number(number).unwrap();
                let other = (number + step) % geometry.page_count();
                let other = geometry.page_from_number(other).unwrap();
                let mut device = device.clone();
                device.swap_pages(one, other);
                pair.check_damaged(device, &std::format!("{one:?} and {other:?} swapped"));
            }
        }
    }
}

/// Metadata in the raw spare area stand any one flipped bit, without any loss.
#[test]
fn one_flipped_bit_in_the_raw_spare_area_is_invisible() {
    let (device, pair) = busy_device(14, &spare_profile());
    let geometry = device.geometry();
    let mut draw = Draw(4);
    for number in 0..geometry.page_count() {
        let page = geometry.page_from_number(number).unwrap();
        for _ in 0..4 {
            let mut device = device.clone();
            device.flip_spare(page, 2 + draw.below(35) as u32, 1 << draw.below(8));
            Pair::recover(device, pair.model.clone());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any bytes anywhere on the device: a mount refuses or accepts, reads answer, nothing panics.
    #[test]
    fn random_bytes_on_the_device_never_make_it_panic(
        changes in prop::collection::vec((any::<u32>(), any::<u32>(), any::<u8>()), 1..40),
        seed in 0_u64..4,
    ) {
        let (mut device, _) = busy_device(30 + seed, &profile("tiny"));
        let geometry = device.geometry();
        for (page, byte, value) in changes {
            let page = geometry.page_from_number(page % geometry.page_count()).unwrap();
            let mut content = device.peek(page);
            content.data[(byte % geometry.page_size) as usize] = value;
            device.poke(page, &content);
        }
        if let Ok((mut space, report)) = Space::mount(device) {
            for group in report.open_groups {
                let _ = space.commit_group(group);
            }
            for page in 0..40 {
                let _ = value(&mut space, page);
            }
            for page in 0..40 {
                let _ = write(&mut space, page, page);
            }
            let _ = space.checkpoint(b"after");
        }
    }
}

/// Goal (M2): a page that does not read is damaged, even if its metadata claim slots. Method: metadata that
/// fit the page's bytes, and code words that do not read, each in turn.
#[cfg(feature = "seeded-bugs")]
#[test]
fn a_damaged_page_that_claims_slots_is_reported() {
    for profile in
        ["tiny", "tiny-mlc", "tiny-nop1"].map(profile).into_iter().chain([spare_profile()])
    {
        let mut space = Space::format(sim(&profile), &options()).unwrap();
        write(&mut space, 1, 7).unwrap();
        let at = space.read(LogicalPage(1), &mut Vec::new()).unwrap().at;
        let (geometry, capabilities) = (profile.geometry, profile.capabilities);
        let page = geometry.page_from_number(at).unwrap();
        for word in 0..geometry.page_size / capabilities.code_word.data_size {
            for slots in 1..8 {
                let mut space = space.clone();
                let device = space.device_mut();
                let mut content = device.peek(page);
                let meta = match Placement::choose(&geometry, &capabilities) {
                    Placement::Header => &mut content.data[..],
                    Placement::RawSpare { offset } | Placement::CoveredSpare { offset } => {
                        &mut content.spare[offset as usize..]
                    }
                };
                meta[2] |= slots << 5;
                let (data, spare) = (&mut content.data, &mut content.spare);
                crate::forge::reseal((&geometry, &capabilities), page, data, spare);
                device.poke(page, &content);
                device.flip_bits(page, word, capabilities.code_word.strength + 1);
                let read = space.read(LogicalPage(1), &mut Vec::new());
                assert!(
                    matches!(read, Err(SpaceError::Corrupt { .. })),
                    "{}, word {word}, {slots} slots: {read:?}",
                    profile.name
                );
            }
        }
    }
}

/// Goal (D5): a record's list of open groups is doubted: no unit stands on a summary, or inside another one.
/// Method: a checkpoint of a session that believes it, which names every page of a closed block.
#[test]
fn a_group_page_where_no_unit_stands_is_refused() {
    for name in ["tiny", "tiny-mlc", "tiny-nop1"] {
        let mut space = Space::format(sim(&profile(name)), &options()).unwrap();
        let group = space.new_group().unwrap();
        (0..40).for_each(|page| write(&mut space, page, page).unwrap());
        let block = (0..space.blocks.len())
            .map(BlockIndex)
            .find(|block| space.blocks.get(*block).state == BlockState::Closed)
            .unwrap();
        let pages = space.layout().geometry.pages_per_block;
        for (number, at) in (50..).zip(block.0 * pages..(block.0 + 1) * pages) {
            let entry = GroupPage { at, version: Version(1), rank: Rank::Newest };
            space.groups.insert(group, LogicalPage(number), entry);
        }
        space.checkpoint(b"").unwrap();
        let (space, _) = Space::mount(space.into_device()).unwrap();
        let units = space.layout().units_per_block;
        assert!(units < pages, "{name}: no page of a block is a summary");
        assert!(space.group_pages(group).len() as u32 <= units, "{name}");
    }
}

/// Goal (S3): a session that goes on after it was closed is not closed any more. Method: a page written after the
/// close, on a chip and on a file; a mount.
#[test]
fn a_session_that_goes_on_is_not_closed() {
    fn check<D: Nand>(device: D) {
        let mut space = Space::format(device, &options()).unwrap();
        write(&mut space, 0, 7).unwrap();
        space.close(b"").unwrap();
        let (mut space, report) = Space::mount(space.into_device()).unwrap();
        assert!(report.closed);
        space.close(b"").unwrap();
        write(&mut space, 1, 8).unwrap();
        let (mut space, report) = Space::mount(space.into_device()).unwrap();
        assert!(!report.closed, "it wrote since");
        assert_eq!(value(&mut space, 1).unwrap(), 8);
    }
    check(sim(&profile("tiny")));
    check(file());
}

/// Goal (G3): groups that were decided leave the record of open groups before it is too small for the next ones.
/// Method: as many groups as fill several records, one after the other, each given up.
#[test]
fn decided_groups_make_room_in_the_record() {
    let profile = profile("tiny").with_block_count(400).unwrap();
    let mut space = Space::format(sim(&profile), &options()).unwrap();
    let record_pages = (space.record_room() / crate::OPEN_GROUP_PAGE_SIZE) as u32;
    let before = space.stats().checkpoints;
    for round in 0..3 * record_pages {
        space.ensure_room(1, &mut NoOwner).unwrap();
        let group = space.new_group().unwrap();
        space.write_in_group(group, LogicalPage(round % 8), &[7], &TAG).unwrap();
        space.discard_group(group);
        let (listed, _) = space.groups.listed();
        let size = listed * crate::OPEN_GROUP_PAGE_SIZE;
        assert!(size <= space.record_room(), "round {round}: {listed} entries");
    }
    assert!(space.stats().checkpoints > before, "no record forgot them");
}
