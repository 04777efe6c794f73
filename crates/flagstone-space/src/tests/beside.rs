//! Goal: reads and syncs beside the space are as good as those that have it, or say that they are
//! not. Method: a real file; what another thread would do is done between the steps of a ticket.

use std::vec::Vec;

use flagstone_nand::{FileStorage, Nand, NandError, SegmentFile};
use tempfile::TempDir;

use super::harness::{REGION, content, options, profile};
use crate::{LogicalPage, Lsn, NoOwner, Space, SpaceError, WriteTag};

type FileSpace = Space<SegmentFile<FileStorage>>;

fn space(directory: &TempDir) -> FileSpace {
    let profile = profile("segment-file").with_block_count(32).unwrap();
    let storage = FileStorage::create(&directory.path().join("file")).unwrap();
    Space::format(SegmentFile::create(storage, &profile).unwrap(), &options()).unwrap()
}

fn write(space: &mut FileSpace, page: LogicalPage, number: u64) {
    let bytes = content(page, number, space.payload_size());
    space.ensure_room(1, &mut NoOwner).unwrap();
    space.write(page, &bytes, &WriteTag::data(Lsn(number), REGION)).unwrap();
}

#[test]
fn a_read_beside_the_space_brings_what_any_read_does() {
    let directory = tempfile::tempdir().unwrap();
    let mut space = space(&directory);
    let page = LogicalPage(3);
    assert!(space.begin_read(page).is_none(), "there is no version to read");
    write(&mut space, page, 7);
    let mut image = Vec::new();
    let info = space.read(page, &mut image).unwrap();
    let mut ticket = space.begin_read(page).unwrap();
    ticket.run();
    let read = space.end_read(ticket);
    assert!(read.iter().all(|(_, image)| image.capacity() == image.len()), "room for a header");
    assert_eq!(read, Some((info, image)));
}

#[test]
fn a_page_that_moved_meanwhile_is_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut space = space(&directory);
    let page = LogicalPage(3);
    write(&mut space, page, 1);
    let mut ticket = space.begin_read(page).unwrap();
    ticket.run();
    write(&mut space, page, 2);
    assert_eq!(space.end_read(ticket), None);
}

/// Its place is the page's again, but in another life of the block.
#[test]
fn a_place_that_was_used_again_meanwhile_does_not_count() {
    let directory = tempfile::tempdir().unwrap();
    let mut space = space(&directory);
    let page = LogicalPage(3);
    write(&mut space, page, 1);
    let at = |space: &mut FileSpace| space.read(page, &mut Vec::new()).unwrap().at;
    let place = at(&mut space);
    let mut ticket = space.begin_read(page).unwrap();
    ticket.run();
    let again = (2..100_000).find(|number| {
        write(&mut space, page, *number);
        at(&mut space) == place
    });
    assert!(again.is_some(), "blocks are taken in turn");
    assert_eq!(space.end_read(ticket), None);
}

#[test]
fn a_torn_page_is_left_to_a_read_that_has_the_space() {
    let directory = tempfile::tempdir().unwrap();
    let mut space = space(&directory);
    let page = LogicalPage(3);
    write(&mut space, page, 1);
    let mut ticket = space.begin_read(page).unwrap();
    ticket.run_torn();
    assert_eq!(space.end_read(ticket), None);
}

#[test]
fn what_is_programmed_during_a_sync_waits_for_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let mut space = space(&directory);
    write(&mut space, LogicalPage(1), 1);
    let ticket = space.begin_sync().unwrap().unwrap();
    let result = ticket.run();
    space.end_sync(ticket, result).unwrap();
    let syncs = space.device().counters().syncs;
    space.fence().unwrap();
    assert_eq!(space.device().counters().syncs, syncs, "nothing was left to sync");

    let ticket = space.begin_sync().unwrap().unwrap();
    write(&mut space, LogicalPage(2), 2);
    let result = ticket.run();
    space.end_sync(ticket, result).unwrap();
    let syncs = space.device().counters().syncs;
    space.fence().unwrap();
    assert_eq!(space.device().counters().syncs, syncs + 1, "one page was programmed too late");
}

#[test]
fn a_failed_sync_beside_the_space_poisons_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut space = space(&directory);
    let ticket = space.begin_sync().unwrap().unwrap();
    let failed = space.end_sync(ticket, Err(NandError::SyncFailed));
    assert_eq!(failed, Err(SpaceError::Device(NandError::SyncFailed)));
    assert!(matches!(space.begin_sync(), Err(SpaceError::Poisoned)));
}
