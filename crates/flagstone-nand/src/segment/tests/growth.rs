//! Goal: a file grows by whole segments and has room for each write (G5 to G8). Method: small scripts on simulated
//! storage and on a temporary file.

use super::*;

/// Goal: G5. Method: pages before, in and behind the segments that are there, before and after a growth.
#[test]
fn segments_are_there_as_far_as_the_file_reaches() {
    let mut nand = growing();
    assert_eq!((nand.present_blocks(), nand.geometry().block_count), (3, 8));
    nand.program(page(2 * 64), at(0, &[1; 4096])).unwrap();
    let behind = page(3 * 64);
    assert!(matches!(nand.program(behind, at(0, &[2; 4096])), Err(NandError::Rule { .. })));
    assert!(nand.erase(BlockIndex(3)).is_err());
    let mut data = [0; 512];
    let part = ReadPart { data_offset: 0, data: &mut data, spare_offset: 0, spare: &mut [] };
    assert_eq!(nand.read(behind, part), Err(NandError::Uncorrectable { page: behind }));
    nand.extend(5).unwrap();
    nand.extend(4).unwrap();
    assert_eq!(nand.present_blocks(), 5);
    assert_eq!(content(&mut nand, behind), [0; 4096]);
    nand.program(behind, at(0, &[2; 4096])).unwrap();
    nand.sync().unwrap();
    assert_eq!(nand.extend(9), Err(NandError::NoSpace));
    nand.extend(8).unwrap();
    let mut nand = SegmentFile::open(nand.into_storage()).unwrap();
    assert_eq!(nand.present_blocks(), 8);
    assert_eq!(content(&mut nand, page(2 * 64)), [1; 4096]);
    assert_eq!(content(&mut nand, behind), [2; 4096]);
    assert_eq!(device().extend(9), Err(NandError::NoSpace), "a file of a fixed size");
}

/// Goal: G5, G6. Method: a growth is cut at each of its operations, and refused for want of room; old
/// segments stay, remains of a cut are written over by the next growth.
#[test]
fn a_growth_is_there_as_a_whole_or_not_at_all() {
    let mut clean = growing();
    clean.program(page(5), at(0, &[9; 4096])).unwrap();
    clean.sync().unwrap();
    let first = clean.operation_count();
    let mut counted = clean.clone();
    counted.extend(5).unwrap();
    let numbers = first..counted.operation_count();
    assert!(numbers.end > first + 8, "{numbers:?}");
    let endings = Ending::applicable(OperationKind::Sync, &capabilities());
    for (number, ending) in numbers.flat_map(|number| endings.iter().map(move |it| (number, *it))) {
        let mut nand = clean.clone();
        nand.set_plan(FaultPlan::power_cut(number, number, ending));
        assert_eq!(nand.extend(5), Err(NandError::PowerOff));
        nand.power_cycle();
        assert!((3..=5).contains(&nand.present_blocks()), "{number} {ending}");
        let reopened = SegmentFile::open(nand.storage().clone()).unwrap();
        assert_eq!(reopened.present_blocks(), nand.present_blocks());
        nand.extend(6).unwrap();
        assert_eq!(content(&mut nand, page(5)), [9; 4096]);
        for number in 3 * 64..6 * 64 {
            assert_eq!(content(&mut nand, page(number)), [0; 4096], "page {number} {ending}");
        }
    }
    let mut storage = clean.into_storage();
    storage.set_size_max(storage.size().unwrap() + 300_000);
    let mut nand = SegmentFile::open(storage).unwrap();
    assert_eq!(nand.extend(5), Err(NandError::NoSpace));
    assert_eq!(nand.present_blocks(), 3);
    nand.extend(4).unwrap();
    nand.program(page(3 * 64), at(0, &[1; 512])).unwrap();
}

/// Goal: a file that grows is refused for the same reasons as others, and for an invalid limit. Method:
/// single changes; cuts before the segments that it was made with; limits above 1 TiB.
#[test]
fn wrong_files_that_grow_are_refused_by_kind() {
    let good = growing().into_storage().to_bytes();
    let open = |bytes: &[u8]| opened(bytes).map(|_| ()).unwrap_err();
    assert!(matches!(open(&good[..good.len() - 1]), OpenDeviceError::Size { .. }));
    let geometry = Geometry { block_count: (1 << 22) + 1, ..profile().geometry };
    let mut forged = good;
    let head = Head { geometry, rewrite_tail: true, made_with: Some(3) };
    forged[..512].copy_from_slice(&head.encode(head::Copy::First));
    forged[COPIES[1]..COPIES[1] + 512].fill(0);
    assert_eq!(open(&forged), OpenDeviceError::Damaged);
    let large = Profile { geometry, ..profile() };
    let made = SegmentFile::create_growing(SimStorage::new(large.timing), &large, 3);
    let refused = OpenDeviceError::TooLarge { size: (1 << 40) + (256 << 10), size_max: 1 << 40 };
    assert_eq!(made.map(|_| ()), Err(refused));
}

/// Goal: a real file grows from where its segments end, and ends there again when there is no room.
/// Method: a tail that is no whole segment; a size that no file system has.
#[test]
fn a_real_file_grows_from_its_last_segment() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let storage = FileStorage::create(&path).unwrap();
    let mut nand = SegmentFile::create_growing(storage, &profile(), 3).unwrap();
    nand.program(page(1), at(0, &[7; 4096])).unwrap();
    nand.sync().unwrap();
    let shared = nand.shared().unwrap();
    drop(nand.into_storage());
    let size = std::fs::metadata(&path).unwrap().len();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.extend_from_slice(&[5; 10_000]);
    std::fs::write(&path, bytes).unwrap();
    drop(shared);
    let mut nand = SegmentFile::open(FileStorage::open(&path).unwrap()).unwrap();
    assert_eq!(nand.present_blocks(), 3);
    let mut beside = [1; 4096];
    let shared = nand.shared().unwrap();
    nand.extend(4).unwrap();
    shared.read(page(3 * 64), &mut beside).unwrap();
    assert_eq!(beside, [0; 4096], "what is read beside the device grows with it");
    let mut storage = nand.into_storage();
    assert_eq!(storage.size(), Ok(size + (256 << 10)));
    assert_eq!(storage.extend(size, 1 << 60), Err(crate::StorageError::NoSpace));
    assert_eq!(storage.size(), Ok(size));
    let mut nand = SegmentFile::open(storage).unwrap();
    assert_eq!(content(&mut nand, page(1)), [7; 4096]);
}

/// Goal: an empty segment takes no room of the host, and has room again when it is written. Method: a file
/// with holes, as the system counts its blocks.
#[test]
#[cfg(target_os = "linux")]
fn whole_segments_are_given_back_to_the_host() {
    use std::os::unix::fs::MetadataExt as _;

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let taken = || std::fs::metadata(&path).unwrap().blocks() * 512;
    let mut nand = SegmentFile::create_file(&path, &profile(), Extent::Fixed).unwrap();
    let (pages, segment) = (profile().geometry.pages_per_block, profile().geometry.block_size());
    for number in [0, pages, 2 * pages, 3 * pages] {
        nand.program(page(number), at(0, &[7; 4096])).unwrap();
    }
    nand.sync().unwrap();
    let whole = taken();
    // Two segments and parts of two others.
    nand.trim(page(1), 4 * pages - 2);
    assert_eq!(nand.counters().bytes_discarded, 2 * segment);
    for (number, byte) in [(0, 7), (pages, 0), (2 * pages, 0), (3 * pages, 7)] {
        assert_eq!(content(&mut nand, page(number)), [byte; 4096], "page {number}");
    }
    assert!(taken() <= whole - 2 * segment, "{} of {whole} bytes", taken());
    nand.erase(BlockIndex(1)).unwrap();
    assert!(taken() > whole - 2 * segment, "{} of {whole} bytes", taken());
    nand.program(page(pages), at(0, &[9; 4096])).unwrap();
    nand.sync().unwrap();
    let mut nand = SegmentFile::open(nand.into_storage()).unwrap();
    assert_eq!(content(&mut nand, page(pages)), [9; 4096]);
    nand.trim(page(0), u32::MAX);
    assert_eq!(content(&mut nand, page(0)), [0; 4096]);
}

/// Goal (G7): new segments do not take the room that old ones gave back, or a full host has no room to write
/// the old ones again. Method: the room of a file before a discard, after it and after a growth, as the
/// system counts its blocks.
#[test]
#[cfg(target_os = "linux")]
fn a_file_does_not_grow_into_room_that_it_gave_back() {
    use std::os::unix::fs::MetadataExt as _;

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let taken = || std::fs::metadata(&path).unwrap().blocks() * 512;
    let profile = profile().with_block_count(80).unwrap();
    let mut nand = SegmentFile::create_file(&path, &profile, Extent::Growing).unwrap();
    let segment = profile.geometry.block_size();
    let whole = taken();
    nand.trim(page(0), 2 * profile.geometry.pages_per_block);
    assert!(taken() <= whole - 2 * segment, "{} of {whole} bytes", taken());
    nand.extend(65).unwrap();
    assert!(taken() >= whole + segment, "{} bytes, {whole} without the new segment", taken());
}

#[test]
fn a_host_that_takes_nothing_back_is_asked_once() {
    let mut nand = device();
    nand.program(page(0), at(0, &[7; 4096])).unwrap();
    nand.set_plan(FaultPlan::failure(1, nand.operation_count(), Persistence::Once));
    for _ in 0..2 {
        nand.trim(page(0), 64);
        assert_eq!(content(&mut nand, page(0)), [7; 4096]);
    }
    assert_eq!(nand.counters().bytes_discarded, 0);
}
