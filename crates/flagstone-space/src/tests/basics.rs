//! Single operations, and long scripts without cuts.

use std::vec::Vec;

use super::devices::{file, options, profile, sim, spare_profile};
use super::harness::{Pair, REGION, Sight, content};
use super::script::{Draw, script};
use crate::{
    Cause, GroupId, LogRead, LogicalPage, Lsn, MountError, NewerImage, NoOwner, Owner, PageInfo,
    ReadPurpose, Space, SpaceError, SpaceOptions, WriteTag,
};
use flagstone_nand::{BlockIndex, Crashable, Nand, OperationKind, PageContent, Profile, SimNand};

fn tag(lsn: u64) -> WriteTag {
    WriteTag::data(Lsn(lsn), REGION)
}

fn tiny_space() -> Space<SimNand> {
    Space::format(sim(&profile("tiny")), &options()).unwrap()
}

#[test]
fn a_written_page_reads_back_and_survives_a_mount() {
    let mut space = tiny_space();
    let page = space.allocate(REGION).unwrap();
    let bytes = content(page, 1, space.payload_size());
    space.ensure_room(1, &mut NoOwner).unwrap();
    let written = space.write(page, &bytes, &tag(9)).unwrap();
    let (mut space, report) = Space::mount(space.into_device()).unwrap();
    let mut read = Vec::new();
    assert_eq!(space.read(page, &mut read).unwrap(), written);
    assert_eq!(read, bytes);
    assert!(!report.full_scan);
    assert_eq!(report.suspects, 1, "the last page may have been in flight");
}

#[test]
fn a_device_without_a_space_is_not_formatted() {
    let result = Space::mount(sim(&profile("tiny")));
    assert_eq!(result.err(), Some(MountError::NotFormatted));
}

#[test]
fn a_mount_writes_nothing() {
    let mut space = tiny_space();
    space.write(LogicalPage(3), b"x", &tag(1)).unwrap();
    let device = space.into_device();
    let before = device.operation_count();
    let (space, _) = Space::mount(device).unwrap();
    assert_eq!(space.device().operation_count(), before);
}

/// Goal (rule D10): writes of a killed process, read by a mount from a cache, are durable before this session
/// writes anything, so that none of them has to be copied.
#[test]
fn a_session_on_a_file_begins_with_a_sync() {
    let mut space = Space::format(file(), &options()).unwrap();
    space.write(LogicalPage(3), b"x", &tag(1)).unwrap();
    let mut device = space.into_device();
    assert!(device.storage().unsynced_count() > 0);
    device.record_operations();
    let first = device.operation_count();
    let (mut space, report) = Space::mount(device).unwrap();
    assert_eq!(report.suspects, 0);
    space.ensure_room(1, &mut NoOwner).unwrap();
    assert_eq!(space.device().operation_kind(first), Some(OperationKind::Sync));
}

#[test]
fn an_uncommitted_group_is_not_seen_and_a_committed_one_is_seen_whole() {
    let mut space = tiny_space();
    for page in 0..3 {
        space.write(LogicalPage(page), b"old", &tag(1)).unwrap();
    }
    let group = space.new_group().unwrap();
    for page in 0..3 {
        space.write_in_group(group, LogicalPage(page), b"new", &tag(2)).unwrap();
    }
    let mut read = Vec::new();
    space.read(LogicalPage(1), &mut read).unwrap();
    assert_eq!(&read[..3], b"old");
    let (mut space, report) = Space::mount(space.into_device()).unwrap();
    assert_eq!(report.open_groups, [group]);
    assert_eq!(space.commit_group(group).unwrap().len(), 3);
    for page in 0..3 {
        space.read(LogicalPage(page), &mut read).unwrap();
        assert_eq!(&read[..3], b"new");
    }
    assert_eq!(space.commit_group(group), Err(SpaceError::UnknownGroup(group)));
}

#[test]
fn a_group_page_does_not_replace_a_newer_version() {
    let mut space = tiny_space();
    let group = space.new_group().unwrap();
    space.write_in_group(group, LogicalPage(0), b"group", &tag(1)).unwrap();
    space.write(LogicalPage(0), b"newer", &tag(2)).unwrap();
    assert_eq!(space.commit_group(group).unwrap(), []);
    let mut read = Vec::new();
    space.read(LogicalPage(0), &mut read).unwrap();
    assert_eq!(&read[..5], b"newer");
}

#[test]
fn trim_keeps_a_page_that_another_group_wrote() {
    let mut space = tiny_space();
    let group = space.new_group().unwrap();
    space.write_in_group(group, LogicalPage(5), b"value", &tag(1)).unwrap();
    space.commit_group(group).unwrap();
    assert!(!space.trim(LogicalPage(5), Some(GroupId(999))).unwrap());
    assert!(space.is_mapped(LogicalPage(5)));
    assert!(space.trim(LogicalPage(5), Some(group)).unwrap());
    assert!(!space.is_mapped(LogicalPage(5)));
}

#[test]
fn a_pinned_version_survives_rewrites_and_collections() {
    let mut space = tiny_space();
    space.write(LogicalPage(0), b"pinned", &tag(1)).unwrap();
    let pin = space.pin(LogicalPage(0)).unwrap();
    for round in 0..400_u32 {
        space.ensure_room(1, &mut NoOwner).unwrap();
        space.write(LogicalPage(round % 7), &round.to_le_bytes(), &tag(2)).unwrap();
    }
    let mut read = Vec::new();
    space.read_pinned(pin, &mut read).unwrap();
    assert_eq!(&read[..6], b"pinned");
    space.unpin(pin);
    assert_eq!(space.read_pinned(pin, &mut read), Err(SpaceError::UnknownPin(pin)));
    assert_eq!(space.verify().unwrap(), []);
}

/// Keeps newer content of one page, once.
struct OneNewer(LogicalPage, bool);

impl Owner for OneNewer {
    fn newer_image(
        &mut self,
        page: LogicalPage,
        _: &PageInfo,
        image: &mut Vec<u8>,
    ) -> Option<NewerImage> {
        if page != self.0 || self.1 {
            return None;
        }
        image[..6].copy_from_slice(b"merged");
        Some(NewerImage { lsn: Lsn(99), append_slots: 0 })
    }

    fn moved(&mut self, page: LogicalPage, lsn: Lsn) {
        assert_eq!((page, lsn), (self.0, Lsn(99)));
        self.1 = true;
    }
}

#[test]
fn relocation_takes_the_newer_image_of_the_owner() {
    let mut space = tiny_space();
    space.write(LogicalPage(0), b"base..", &tag(1)).unwrap();
    let mut owner = OneNewer(LogicalPage(0), false);
    let mut draw = Draw(3);
    for round in 0..2000_u32 {
        space.ensure_room(1, &mut owner).unwrap();
        let page = LogicalPage(1 + draw.below(u64::from(space.capacity_pages() - 2)) as u32);
        space.write(page, &round.to_le_bytes(), &tag(2)).unwrap();
    }
    assert!(owner.1, "a full space moves every page sooner or later");
    let mut read = Vec::new();
    let info = space.read(LogicalPage(0), &mut read).unwrap();
    assert_eq!((&read[..6], info.lsn), (&b"merged"[..], Lsn(99)));
}

#[test]
fn log_pages_read_back_and_numbers_go_on_after_a_mount() {
    let mut space = tiny_space();
    let first = space.log_append(b"one").unwrap();
    let second = space.log_append(b"two").unwrap();
    assert_eq!((first.page, first.slot, second.page, second.slot), (0, 0, 0, 1));
    let (mut space, report) = Space::mount(space.into_device()).unwrap();
    assert_eq!(report.log_pages, 0..1);
    assert_eq!(report.log_suspect, Some(0));
    let mut page = Vec::new();
    space.log_read(0, &mut page).unwrap();
    assert_eq!(&page[..3], b"one");
    let slot = space.log_slot_size();
    assert_eq!(&page[slot..slot + 3], b"two");
    let third = space.log_append(b"three").unwrap();
    assert!(third.page > 0, "a fresh page number");
}

#[test]
fn the_log_budget_is_kept_and_released_blocks_come_back() {
    let mut space = tiny_space();
    let page = vec![7; space.log_slot_size() * space.log_slots_per_page() as usize];
    let mut count = 0;
    loop {
        match space.log_append(&page) {
            Ok(_) => count += 1,
            Err(SpaceError::LogFull) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(count >= space.log_budget_pages(), "{count}");
    for _ in 0..20 {
        space.log_release(space.log_range().end);
        space.checkpoint(b"").unwrap();
        for _ in 0..space.log_budget_pages() {
            space.log_append(&page).unwrap();
        }
    }
}

#[test]
fn the_blob_of_the_newest_checkpoint_comes_back() {
    let mut space = tiny_space();
    space.checkpoint(b"first").unwrap();
    let big = vec![0xAB; 2000];
    space.checkpoint(&big).unwrap();
    let (_, report) = Space::mount(space.into_device()).unwrap();
    assert_eq!(report.user, big);
}

/// Runs a script on a device and compares with the model as it goes, with a mount now and then.
fn long_run<D: Crashable>(device: D, options: &SpaceOptions, seed: u64) {
    let mut pair = Pair::format(device, options);
    let pages = (pair.space.capacity_pages() - 8).min(40);
    for (index, step) in script(seed, 1500, pages).into_iter().enumerate() {
        let result = pair.apply(step);
        assert!(result.is_ok(), "seed {seed} step {index} {step:?}: {result:?}");
        if index % 40 == 0 {
            pair.check(Sight::Running);
        }
        if index % 173 == 172 {
            pair = pair.reopen();
        }
    }
    assert!(pair.space.stats().erases > 0);
}

#[test]
fn long_scripts_agree_with_the_model_on_every_tiny_profile() {
    let names = ["tiny", "tiny-nop1", "tiny-ordered", "tiny-risk", "tiny-nospare", "tiny-mlc"];
    let profiles = names.map(profile).into_iter().chain([spare_profile()]);
    for (seed, profile) in (1..).zip(profiles) {
        long_run(sim(&profile), &options(), seed);
    }
}

#[test]
fn long_scripts_agree_with_the_model_on_a_file() {
    long_run(file(), &options(), 11);
}

#[test]
fn long_scripts_agree_with_the_model_with_pages_of_several_parts() {
    for parts in [2, 3] {
        let profile = profile("tiny").with_block_count(48).unwrap();
        long_run(sim(&profile), &SpaceOptions { parts, ..options() }, u64::from(parts));
    }
}

#[test]
fn long_scripts_agree_with_the_model_under_policies_of_age_and_static_wear() {
    for gc_policy in [crate::GcPolicy::CostBenefit, crate::GcPolicy::CostAgeTimes] {
        let options = SpaceOptions { gc_policy, static_wear: Some(4), ..options() };
        long_run(sim(&profile("tiny")), &options, 5);
    }
}

#[test]
fn mapping_pages_behind_a_directory_come_back() {
    let mut profile: Profile = profile("tiny").with_block_count(1200).unwrap();
    profile.geometry.pages_per_block = 16;
    let mut space = Space::format(sim(&profile), &options()).unwrap();
    assert!(space.layout().directory_pages > 0, "the directory has pages of its own");
    let pages: Vec<u32> = (0..space.capacity_pages()).step_by(97).collect();
    for (index, page) in pages.iter().enumerate() {
        space.ensure_room(1, &mut NoOwner).unwrap();
        space.write(LogicalPage(*page), &page.to_le_bytes(), &tag(1)).unwrap();
        if index % 50 == 0 {
            space.checkpoint(b"").unwrap();
        }
    }
    space.checkpoint(b"").unwrap();
    let (mut space, report) = Space::mount(space.into_device()).unwrap();
    assert_eq!(report.blocks_scanned as usize, 2, "only the open blocks");
    let mut read = Vec::new();
    for page in pages {
        space.read(LogicalPage(page), &mut read).unwrap();
        assert_eq!(read[..4], page.to_le_bytes());
    }
}

#[test]
fn a_format_over_a_used_device_hides_what_was_there() {
    let mut device = sim(&profile("tiny"));
    for round in 0..4_u32 {
        let mut space = Space::format(device, &options()).unwrap();
        assert!(!space.is_mapped(LogicalPage(1)));
        for page in 0..30 {
            space.ensure_room(1, &mut NoOwner).unwrap();
            space.write(LogicalPage(page), &round.to_le_bytes(), &tag(1)).unwrap();
        }
        let mut fresh = Space::format(space.into_device(), &options()).unwrap();
        fresh.write(LogicalPage(0), b"only", &tag(1)).unwrap();
        let (space, _) = Space::mount(fresh.into_device()).unwrap();
        assert_eq!(space.mapped_pages().collect::<Vec<_>>(), [LogicalPage(0)]);
        device = space.into_device();
    }
}

#[test]
fn the_device_sees_no_allocation_of_time_from_reads_of_memory() {
    let mut space = tiny_space();
    let before = space.device().counters();
    assert!(!space.is_mapped(LogicalPage(0)));
    assert_eq!(space.device().counters(), before);
    assert_eq!(space.allocate(REGION).unwrap(), LogicalPage(0));
    space.release(LogicalPage(0));
    assert!(space.reserve(LogicalPage(0)));
    assert!(!space.reserve(LogicalPage(0)));
}

/// Goal: an erased page is never taken for an unwritten page.
#[test]
fn a_page_whose_only_version_was_erased_is_lost() {
    let mut space = tiny_space();
    space.ensure_room(1, &mut NoOwner).unwrap();
    space.write(LogicalPage(3), b"only", &tag(1)).unwrap();
    let at = space.map.get(LogicalPage(3)).unwrap();
    space.checkpoint(b"").unwrap();
    let mut device = space.into_device();
    let page = device.geometry().page_from_number(at).unwrap();
    device.poke(page, &PageContent { data: Vec::new(), spare: Vec::new() });
    for _ in 0..2 {
        let (mut space, report) = Space::mount(device).unwrap();
        let read = space.read(LogicalPage(3), &mut Vec::new());
        assert_eq!(read, Err(SpaceError::Lost(LogicalPage(3))), "{report:?}");
        assert_eq!(space.allocate(REGION).unwrap(), LogicalPage(0), "its number is taken");
        space.checkpoint(b"").unwrap();
        device = space.into_device();
    }
    let (mut space, _) = Space::mount(device).unwrap();
    space.ensure_room(1, &mut NoOwner).unwrap();
    space.write(LogicalPage(3), b"again", &tag(2)).unwrap();
    let mut read = Vec::new();
    space.read(LogicalPage(3), &mut read).unwrap();
    assert_eq!(read[..5], *b"again");
}

/// Goal: a block of the log whose head is damaged once is a block of the log. Method: where metadata
/// stand in the data area, the first copy of the head is erased, or changes places with the second.
#[test]
fn a_log_block_outlives_damage_to_its_head() {
    let mut space = tiny_space();
    let at = space.log_append(&[7; 100]).unwrap();
    let place = space.log_place(at.page).unwrap();
    let written = space.into_device();
    let geometry = written.geometry();
    let block = geometry.block_of(place);
    let head = |copy| geometry.page(block, copy).unwrap();
    let erase = |device: &mut SimNand| {
        device.poke(head(0), &PageContent { data: Vec::new(), spare: Vec::new() });
    };
    let swap = |device: &mut SimNand| device.swap_pages(head(0), head(1));
    for harm in [&erase as &dyn Fn(&mut SimNand), &swap] {
        let mut device = written.clone();
        harm(&mut device);
        let (mut space, report) = Space::mount(device).unwrap();
        let mut bytes = Vec::new();
        assert!(
            matches!(space.log_read(at.page, &mut bytes), Ok(LogRead::Present { .. })),
            "{report:?}"
        );
        assert_eq!(bytes[..100], [7; 100]);
    }
}

/// Goal: a block of the ring that went bad since the newest record is not replaced by one of the log. Method:
/// each of them is marked, as before a record that a cut kept from being written; the log is read after the
/// mount, and after a session began, which goes on in the next block of the ring.
#[test]
fn a_bad_block_of_the_ring_costs_no_block_of_the_log() {
    let mut space = tiny_space();
    let at = space.log_append(&[7; 100]).unwrap();
    let ring = space.ring.blocks();
    let written = space.into_device();
    for block in ring {
        let mut device = written.clone();
        device.mark_bad(BlockIndex(block)).unwrap();
        let (mut space, _) = Space::mount(device).unwrap();
        let mut bytes = Vec::new();
        space.log_read(at.page, &mut bytes).unwrap();
        assert_eq!(bytes[..100], [7; 100], "ring block {block}, mounted");
        for _ in 0..2 {
            space.ensure_room(1, &mut NoOwner).unwrap();
            space.checkpoint(b"").unwrap();
            space.log_read(at.page, &mut bytes).unwrap();
            assert_eq!(bytes[..100], [7; 100], "ring block {block}");
            space = Space::mount(space.into_device()).unwrap().0;
        }
        assert_eq!(space.verify().unwrap(), []);
    }
}

/// Goal: a page that reads as erased before a programmed page is damage, and the later page is found.
#[test]
fn an_erased_page_does_not_hide_those_behind_it() {
    let mut space = tiny_space();
    space.ensure_room(3, &mut NoOwner).unwrap();
    for page in 1..4 {
        space.write(LogicalPage(page), b"page", &tag(page.into())).unwrap();
    }
    let at = space.map.get(LogicalPage(2)).unwrap();
    let mut device = space.into_device();
    let page = device.geometry().page_from_number(at).unwrap();
    device.poke(page, &PageContent { data: Vec::new(), spare: Vec::new() });
    let (space, report) = Space::mount(device).unwrap();
    assert_eq!(report.damaged_units, 1, "{report:?}");
    let found: Vec<_> = space.mapped_pages().collect();
    assert_eq!(found, [LogicalPage(1), LogicalPage(3)]);
}

/// Goal: no erase waits for another die while a free block is there whose replacements are complete. Method:
/// a block is freed by a page that is still on its way to another die; the next block taken is another one,
/// although the freed block is less worn.
#[test]
fn a_block_is_taken_that_need_not_wait_for_other_dies() {
    use crate::blocks::Purpose;
    let mut space = Space::format(sim(&profile("tiny-dies")), &options()).unwrap();
    let geometry = space.device().geometry();
    let first = space.write(LogicalPage(0), b"old", &tag(1)).unwrap();
    let block = geometry.block_of(geometry.page_from_number(first.at).unwrap());
    let units = space.layout().units_per_block;
    for page in 1..units {
        space.write(LogicalPage(page), b"old", &tag(1)).unwrap();
    }
    for page in 0..units {
        space.await_dies();
        space.write(LogicalPage(page), b"new", &tag(2)).unwrap();
    }
    let now_ns = space.flash.safe_until();
    assert!(space.blocks.get(block).replaced_at > now_ns, "the last page is on its way");
    let chosen = space.blocks.choose_free(Purpose::Hot, now_ns).unwrap();
    assert_ne!(chosen, block);
    assert!(space.blocks.get(chosen).replaced_at <= now_ns);
}

/// Goal: a commit by the flag of a single page stays when that page was moved, and a record written,
/// before the mapping had moved to it.
#[test]
fn a_flag_counts_in_a_copy_that_a_record_still_calls_open() {
    let mut space = Space::format(sim(&profile("tiny-flags")), &options()).unwrap();
    let page = space.allocate(REGION).unwrap();
    let bytes = content(page, 1, space.payload_size());
    let group = space.new_group().unwrap();
    space.ensure_room(1, &mut NoOwner).unwrap();
    space.write_claimed(group, page, &bytes, &tag(9)).unwrap();
    space.fence().unwrap();
    space.flag_group(group).unwrap();
    let (at, mut image) = (space.groups.get(group, page).unwrap().at, Vec::new());
    let meta = space.read_at(at, page, &mut image).unwrap();
    space.move_unit(at, &meta, &image, Cause::Relocation).unwrap();
    space.checkpoint(&[]).unwrap();
    space.commit_group(group).unwrap();
    let (mut space, report) = Space::mount(space.into_device()).unwrap();
    assert_eq!(report.flagged_groups, [group]);
    let mut read = Vec::new();
    space.read(page, &mut read).unwrap();
    assert_eq!(read, bytes);
}

/// Goal: the time of collection is work and no wait. Method: a chip of several dies that is written
/// without a pause, so that collections begin behind writes on every die; its upper bound is the
/// time of its reads, programs and erases by the counters.
#[test]
fn collection_is_not_charged_for_dies_that_others_keep_busy() {
    let chip = profile("tiny-dies");
    assert!(chip.geometry.die_count > 1);
    let mut space = Space::format(sim(&chip), &options()).unwrap();
    let tag = WriteTag::data(Lsn(1), REGION);
    let count = space.capacity_pages() * 7 / 10;
    let mut draw = Draw(5);
    for number in 0..20 * u64::from(count) {
        let page = if number < u64::from(count) { number } else { draw.below(u64::from(count)) };
        space.ensure_room(1, &mut NoOwner).unwrap();
        space.write(LogicalPage(page as u32), &[3], &tag).unwrap();
    }
    let (stats, timing) = (space.stats(), chip.timing);
    let moved = stats.programs_by_cause[Cause::Relocation as usize];
    let read = stats.reads_by_purpose[ReadPurpose::Relocation as usize];
    let least = timing.read_ns * read + timing.program_ns * moved;
    // Forgotten units are freed by checkpoints, which collection may have to make.
    let metadata = stats.programs_by_cause[Cause::Metadata as usize];
    let most = least + timing.erase_ns * stats.erases + timing.program_ns * metadata;
    assert!(stats.gc_victims > 20 && moved > 100);
    assert!(stats.gc_time_ns >= least, "{} of {least} ns", stats.gc_time_ns);
    assert!(stats.gc_time_ns <= most, "{} of {most} ns", stats.gc_time_ns);
    space.reset_stats();
    assert_eq!(space.stats().gc_time_ns, 0);
}
