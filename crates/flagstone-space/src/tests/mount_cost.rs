//! Goal: the reads of a mount of a file do not grow with the free space, however it was used.
//! Method: the reads of a mount are compared with the block counts of the session before it.

use std::vec::Vec;

use flagstone_nand::{BlockIndex, Nand, Profile, SegmentFile, SimStorage};

use super::devices::profile;
use super::harness::REGION;
use super::script::Draw;
use crate::{BlockState, LogicalPage, Lsn, MountReport, NoOwner, Space, SpaceOptions, WriteTag};

type File = SegmentFile<SimStorage>;

const TAG: WriteTag = WriteTag::data(Lsn(1), REGION);

fn file_profile() -> Profile {
    profile("segment-file").with_block_count(256).unwrap()
}

/// A file of 64 MiB.
fn large_file() -> File {
    let profile = file_profile();
    SegmentFile::create(SimStorage::new(profile.timing), &profile).unwrap()
}

fn write(space: &mut Space<File>, page: u32, value: u32) {
    space.ensure_room(1, &mut NoOwner).unwrap();
    space.write(LogicalPage(page), &value.to_le_bytes(), &TAG).unwrap();
}

fn value(space: &mut Space<File>, page: u32) -> u32 {
    let mut read = Vec::new();
    space.read(LogicalPage(page), &mut read).unwrap();
    u32::from_le_bytes(read[..4].try_into().unwrap())
}

/// As after another process opens the file.
fn mount_again(device: &File) -> (Space<File>, MountReport) {
    Space::mount(SegmentFile::open(device.storage().clone()).unwrap()).unwrap()
}

/// Fills the space and rewrites it, then forgets most of it.
fn use_up(space: &mut Space<File>) {
    let pages = space.capacity_pages() * 3 / 4;
    let mut draw = Draw(17);
    for round in 0..2 * pages {
        let page = if round < pages { round } else { draw.below(pages.into()) as u32 };
        write(space, page, round);
        if round % 1000 == 999 {
            space.log_append(b"log").unwrap();
            space.log_release(space.log_range().end);
            space.checkpoint(b"").unwrap();
        }
    }
    for page in 0..pages {
        space.trim(LogicalPage(page), None).unwrap();
    }
    space.checkpoint(b"").unwrap();
    for page in 0..1000 {
        write(space, page, page);
    }
    space.checkpoint(b"").unwrap();
}

/// Pages a mount may read of the anchors: the programmed pages of the ring and the one behind them,
/// the pages of the record once more.
fn anchor_pages(space: &Space<File>) -> u32 {
    let pages_per_block = space.layout().geometry.pages_per_block;
    let used = |half: &crate::ring::RingHalf| {
        let used =
            half.blocks.iter().filter(|block| space.blocks.get(BlockIndex(**block)).erases > 0);
        (used.count() as u32 - 1) * pages_per_block + half.next_page + 1
    };
    let mut record = Vec::new();
    space.durable.as_ref().unwrap().encode(&mut record);
    let record_pages = record.len().div_ceil(space.layout().chunk_size) as u32;
    space.ring.halves.iter().map(used).sum::<u32>() + record_pages
}

/// Reads that a mount may take: anchors, mapping, one page of each block, the pages of blocks taken
/// since sequence `since` or open at that time, and a second look at the front of a log block.
fn bound(space: &Space<File>, since: u32) -> u64 {
    let layout = space.layout();
    let open = space.durable.as_ref().unwrap().open.len() as u32;
    let is_new = |block: &crate::blocks::Block| block.sequence >= since;
    let units = space.blocks.iter().filter(|(_, block)| block.state != BlockState::Ring);
    let new = units.filter(|(_, block)| is_new(block)).count() as u32;
    let log = space.blocks.count(BlockState::Log);
    let scanned = (new + open) * layout.geometry.pages_per_block;
    let pages = anchor_pages(space) + layout.meta_pages() + space.blocks.len() + scanned + log;
    u64::from(pages)
}

#[test]
fn a_mount_of_a_fresh_file_reads_one_page_of_a_block() {
    let mut space = Space::format(large_file(), &SpaceOptions::default()).unwrap();
    for page in 0..10 {
        write(&mut space, page, page);
    }
    space.checkpoint(b"").unwrap();
    let since = space.numbers.sequence;
    let limit = bound(&space, since);
    let (_, report) = mount_again(space.device());
    assert!(report.pages_read <= limit, "{} of {limit}", report.pages_read);
    assert!(limit < 512, "{limit} of 16,384 pages");
    assert_eq!(report.torn_units, 0, "what was never written is not torn");
}

#[test]
fn a_mount_of_a_used_file_reads_no_second_page_of_a_free_block() {
    let mut space = Space::format(large_file(), &SpaceOptions::default()).unwrap();
    use_up(&mut space);
    let since = space.numbers.sequence;
    let free = space.blocks.iter().filter(|(_, block)| block.state == BlockState::Free);
    let stale = free.filter(|(_, block)| block.sequence > 0).count();
    assert!(stale > 100, "{stale} free blocks hold old pages");
    let (_, report) = mount_again(space.device());
    assert!(report.pages_read <= bound(&space, since), "{} pages read", report.pages_read);

    for page in 0..200 {
        write(&mut space, page, page + 7);
    }
    space.log_append(b"log").unwrap();
    space.sync().unwrap();
    let limit = bound(&space, since);
    let (mut space, report) = mount_again(space.device());
    assert!(report.pages_read <= limit, "{} of {limit}", report.pages_read);
    assert!(limit < 1600, "{limit} of 16,384 pages");
    for page in 0..200 {
        assert_eq!(value(&mut space, page), page + 7);
    }
}

#[test]
fn a_mount_of_a_file_formatted_anew_reads_no_second_page_of_an_old_block() {
    let mut space = Space::format(large_file(), &SpaceOptions::default()).unwrap();
    use_up(&mut space);
    let mut space = Space::format(space.into_device(), &SpaceOptions::default()).unwrap();
    write(&mut space, 0, 1);
    space.checkpoint(b"").unwrap();
    let limit = bound(&space, space.numbers.sequence);
    let (mut space, report) = mount_again(space.device());
    // The second block of a half still holds anchors of the earlier format.
    let earlier = 2 * u64::from(space.layout().geometry.pages_per_block);
    assert!(report.pages_read <= limit + earlier, "{} of {limit}", report.pages_read);
    assert_eq!(value(&mut space, 0), 1);
}

/// Unsynced writes survive in any subset: here all of a new block but its first page.
#[test]
fn a_block_whose_first_page_did_not_survive_is_free() {
    let mut space = Space::format(large_file(), &SpaceOptions::default()).unwrap();
    use_up(&mut space);
    let expected: Vec<u32> = (0..100).map(|page| value(&mut space, page)).collect();
    let (before, since) = (space.device().storage().to_bytes(), space.numbers.sequence);
    for page in 0..200 {
        write(&mut space, page, 1);
    }
    let mut after = space.device().storage().to_bytes();
    let geometry = space.device().geometry();
    let head = after.len() - geometry.data_size() as usize;
    let new = space.blocks.iter().filter(|(_, block)| block.sequence >= since);
    for (block, _) in new {
        let at = head + (block.0 * geometry.pages_per_block * geometry.page_size) as usize;
        let page = at..at + geometry.page_size as usize;
        after[page.clone()].copy_from_slice(&before[page]);
    }
    let storage = SimStorage::from_bytes(file_profile().timing, &after);
    let (mut space, report) = Space::mount(SegmentFile::open(storage).unwrap()).unwrap();
    let open = space.durable.as_ref().unwrap().open.iter().map(|open| open.block);
    let open: Vec<u32> = open.collect();
    assert_eq!(report.blocks_scanned as usize, open.len(), "only what was open at the record");
    for (page, expected) in (0..).zip(expected) {
        let at = space.map.get(LogicalPage(page)).unwrap();
        let found = value(&mut space, page);
        let in_open = open.contains(&space.blocks.block_of(at).0);
        assert!(found == expected || found == 1 && in_open, "page {page}: {found}");
    }
    for page in 0..200 {
        write(&mut space, page, 2);
    }
    space.sync().unwrap();
    let (mut space, _) = mount_again(space.device());
    assert!((0..200).all(|page| value(&mut space, page) == 2));
}
