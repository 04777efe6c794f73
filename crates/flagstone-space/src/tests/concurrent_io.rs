//! Goal: reads and syncs beside the space are as good as ordinary ones, or report the opposite.
//! Method: a real file; the work of another thread is done between the steps of a ticket.

use std::vec::Vec;

use flagstone_nand::{FileStorage, Nand, NandError, SegmentFile};
use tempfile::TempDir;

use super::devices::{options, profile};
use super::harness::{REGION, content};
use crate::{CheckpointUnderWay, LogRead, LogicalPage, Lsn, NoOwner, Space, SpaceError, WriteTag};

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

const APPENDS: [&[u8]; 2] = [&[5; 700], &[6; 512]];

fn log_bytes(space: &mut FileSpace, page: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let read = space.log_read(page, &mut out).unwrap();
    assert!(matches!(read, LogRead::Present { damaged_slots: 0, .. }), "{read:?}");
    out
}

/// Goal (Z3): a flush beside the space appends the same bytes at the same place as any append, and leaves
/// nothing to sync. Method: the same appends to two files.
#[test]
fn a_flush_beside_the_space_appends_what_any_append_does() {
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [mut space, mut other] = directories.each_ref().map(self::space);
    let addresses = APPENDS.map(|bytes| other.log_append(bytes).unwrap());
    other.sync().unwrap();
    let syncs = space.device().counters().syncs;
    let mut ticket = space.begin_flush(APPENDS.into_iter()).unwrap().unwrap();
    let result = ticket.run();
    assert_eq!(space.end_flush(ticket, result), Ok(addresses.last().copied()));
    space.fence().unwrap();
    assert!(
        space.device().counters().syncs <= syncs + 2,
        "one to begin the session, one of the flush"
    );
    assert_eq!(space.log_slots_left(), other.log_slots_left());
    let page = addresses[0].page;
    assert_eq!(log_bytes(&mut space, page), log_bytes(&mut other, page));
    assert_eq!(space.bill(), other.bill(), "and what it did is counted");
}

/// Goal (Z3): a sync of others does not cover the programs of an unfinished flush, nor the flush programs
/// that others made meanwhile. Method: syncs are counted.
#[test]
fn what_is_appended_during_a_sync_of_others_waits_for_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let mut space = space(&directory);
    write(&mut space, LogicalPage(1), 1);
    let mut ticket = space.begin_flush(APPENDS.into_iter()).unwrap().unwrap();
    space.fence().unwrap();
    let syncs = space.device().counters().syncs;
    space.fence().unwrap();
    assert_eq!(space.device().counters().syncs, syncs, "nothing was programmed yet");
    write(&mut space, LogicalPage(2), 2);
    let result = ticket.run();
    space.end_flush(ticket, result).unwrap();
    let syncs = space.device().counters().syncs;
    space.fence().unwrap();
    assert_eq!(space.device().counters().syncs, syncs + 1, "one page was programmed too late");
}

/// Goal (Z3, rule D11): a session that ends during a flush does not count as closed. Method: a kill between
/// the last record and the end of the flush.
#[test]
fn a_session_is_not_closed_during_a_flush() {
    for is_flushing in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let mut space = space(&directory);
        let mut ticket = space.begin_flush(APPENDS.into_iter()).unwrap().unwrap();
        let result = ticket.run();
        let ticket = match is_flushing {
            true => Some(ticket),
            false => space.end_flush(ticket, result).map(|_| None).unwrap(),
        };
        space.close(b"user").unwrap();
        drop((space, ticket));
        let storage = FileStorage::open(&directory.path().join("file")).unwrap();
        let mounted = Space::mount(SegmentFile::open(storage).unwrap()).unwrap();
        assert_eq!(mounted.1.closed, !is_flushing);
    }
}

#[test]
fn a_failed_flush_beside_the_space_poisons_it() {
    for error in [NandError::SyncFailed, NandError::Host { errno: 5 }] {
        let directory = tempfile::tempdir().unwrap();
        let mut space = space(&directory);
        let ticket = space.begin_flush(APPENDS.into_iter()).unwrap().unwrap();
        let failed = space.end_flush(ticket, Err(error.clone()));
        assert_eq!(failed, Err(SpaceError::Device(error)));
        assert!(matches!(space.begin_flush(APPENDS.into_iter()), Err(SpaceError::Poisoned)));
    }
}

/// Goal (H4): appends of a flush that the host had no room for stand behind their places, in order and durable.
#[test]
fn appends_without_room_are_made_again_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let mut space = space(&directory);
    let before = space.log_append(b"before").unwrap();
    let ticket = space.begin_flush([&b"one"[..], b"two"].into_iter()).unwrap().unwrap();
    let last = space.end_flush(ticket, Err(NandError::NoSpace)).unwrap().unwrap();
    assert_eq!((last.page, last.slot), (before.page + 1, 1));
    let bytes = log_bytes(&mut space, last.page);
    let size = space.log_slot_size();
    assert_eq!([&bytes[..3], &bytes[size..size + 3]], [b"one", b"two"]);
}

/// A space with a bit of everything: changed pages, a forgotten one, an open group, a log, an older record.
fn worked(directory: &TempDir) -> FileSpace {
    let mut space = space(directory);
    (0..40).for_each(|page| write(&mut space, LogicalPage(page), 1));
    space.checkpoint(b"older").unwrap();
    (20..60).for_each(|page| write(&mut space, LogicalPage(page), 2));
    assert_eq!(space.trim(LogicalPage(3), None), Ok(true));
    let group = space.new_group().unwrap();
    space
        .write_in_group(group, LogicalPage(70), b"group", &WriteTag::data(Lsn(3), REGION))
        .unwrap();
    let log = space.log_append(&[5; 700]).unwrap();
    space.log_skip_page();
    space.log_append(&[6; 700]).unwrap();
    space.log_release(log.page + 1);
    space
}

/// Goes on with a checkpoint until it is durable; how many syncs it took.
fn finish(space: &mut FileSpace, checkpoint: Option<CheckpointUnderWay>) -> usize {
    let (mut next, mut syncs) = (checkpoint, 0);
    while let Some(checkpoint) = next {
        let synced = checkpoint.run();
        next = space.advance_checkpoint(checkpoint, synced).unwrap();
        syncs += 1;
    }
    syncs
}

fn mounted(directory: &TempDir) -> (FileSpace, crate::MountReport) {
    let storage = FileStorage::open(&directory.path().join("file")).unwrap();
    Space::mount(SegmentFile::open(storage).unwrap()).unwrap()
}

fn read_all(space: &mut FileSpace) -> Vec<Option<Vec<u8>>> {
    let read = |page| {
        let mut image = Vec::new();
        space.read(LogicalPage(page), &mut image).is_ok().then_some(image)
    };
    (0..80).map(read).collect()
}

/// Goal (K7): a checkpoint that leaves the space during its syncs writes what any checkpoint does, in the same
/// number of syncs. Method: the same work on two files; their bytes and what a mount finds are compared.
#[test]
fn a_checkpoint_in_steps_writes_what_any_checkpoint_does() {
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [mut space, mut other] = directories.each_ref().map(worked);
    other.checkpoint(b"user").unwrap();
    let begun = space.begin_checkpoint(b"user").unwrap();
    assert_eq!(finish(&mut space, begun), 2);
    assert_eq!(space.durable, other.durable);
    assert_eq!(space.bill(), other.bill());
    assert_eq!(space.stats().checkpoints, other.stats().checkpoints);
    assert_eq!(space.device().counters().syncs, other.device().counters().syncs);
    assert_eq!(space.live_pages(), other.live_pages());
    assert_eq!(space.log_used_pages(), other.log_used_pages());
    drop((space, other));
    let [bytes, expected] =
        directories.each_ref().map(|it| std::fs::read(it.path().join("file")).unwrap());
    assert!(bytes == expected, "the files differ");
    let [(mut space, report), (mut other, expected)] = directories.each_ref().map(mounted);
    assert_eq!(report, expected);
    assert_eq!(report.user, b"user");
    assert_eq!(read_all(&mut space), read_all(&mut other));
}

/// Goal (K7): readers find every page while a checkpoint waits for a sync.
#[test]
fn pages_are_read_during_a_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let mut space = worked(&directory);
    let expected = read_all(&mut space);
    let mut next = space.begin_checkpoint(b"user").unwrap();
    while let Some(checkpoint) = next {
        for (page, expected) in (0..).zip(&expected) {
            let mut ticket = space.begin_read(LogicalPage(page));
            ticket.iter_mut().for_each(|ticket| ticket.run());
            let read = ticket.and_then(|ticket| space.end_read(ticket)).map(|(_, image)| image);
            assert_eq!(read, *expected, "page {page}");
        }
        let synced = checkpoint.run();
        next = space.advance_checkpoint(checkpoint, synced).unwrap();
    }
}

/// Goal (K2, D10): a sync that fails in a checkpoint poisons the space, and its record does not count.
#[test]
fn a_checkpoint_whose_sync_fails_poisons_the_space() {
    for syncs in 0..2 {
        let directory = tempfile::tempdir().unwrap();
        let mut space = worked(&directory);
        let (before, used) = (space.durable.clone(), space.log_used_pages());
        let mut checkpoint = space.begin_checkpoint(b"user").unwrap().unwrap();
        for _ in 0..syncs {
            let synced = checkpoint.run();
            checkpoint = space.advance_checkpoint(checkpoint, synced).unwrap().unwrap();
        }
        let failed = space.advance_checkpoint(checkpoint, Err(NandError::SyncFailed));
        assert_eq!(failed.err(), Some(SpaceError::Device(NandError::SyncFailed)));
        assert!(matches!(space.begin_checkpoint(b"user"), Err(SpaceError::Poisoned)));
        assert_eq!((&space.durable, space.log_used_pages()), (&before, used));
    }
}

/// Goal (K2): a checkpoint that was given up frees nothing, and the next one starts anew. Method: one is given
/// up before each of its syncs; before the next one pages change.
#[test]
fn a_checkpoint_that_was_given_up_is_made_anew() {
    for syncs in 0..2 {
        let directory = tempfile::tempdir().unwrap();
        let mut space = worked(&directory);
        let mut checkpoint = space.begin_checkpoint(b"lost").unwrap().unwrap();
        for _ in 0..syncs {
            let synced = checkpoint.run();
            checkpoint = space.advance_checkpoint(checkpoint, synced).unwrap().unwrap();
        }
        drop(checkpoint);
        write(&mut space, LogicalPage(5), 9);
        let begun = space.begin_checkpoint(b"user").unwrap();
        finish(&mut space, begun);
        let expected = read_all(&mut space);
        assert!(space.verify().unwrap().is_empty());
        drop(space);
        let (mut space, report) = mounted(&directory);
        assert_eq!(report.user, b"user");
        assert_eq!(read_all(&mut space), expected);
    }
}

/// Goal (K7): a change in the middle of a checkpoint is noticed before its record frees anything.
#[test]
fn a_change_during_a_checkpoint_is_refused() {
    let changes: [fn(&mut FileSpace); 2] = [
        |space| write(space, LogicalPage(5), 9),
        |space| assert_eq!(space.trim(LogicalPage(5), None), Ok(true)),
    ];
    for change in changes {
        let directory = tempfile::tempdir().unwrap();
        let mut space = worked(&directory);
        let checkpoint = space.begin_checkpoint(b"user").unwrap().unwrap();
        change(&mut space);
        let advance = || space.advance_checkpoint(checkpoint, Ok(())).map(|_| ());
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(advance)).is_err());
    }
}
