//! Goal: a file behaves as the device trait says, and may lose writes that no sync covered. Method:
//! small scripts on simulated storage and on a temporary file.

mod growth;

use super::*;
use crate::storage::OpenDeviceError;
use crate::{Ending, FileStorage, Persistence, Profile};

fn profile() -> Profile {
    Profile::named("segment-file").unwrap().with_block_count(8).unwrap()
}

fn device() -> SegmentFile<SimStorage> {
    SegmentFile::create(SimStorage::new(profile().timing), &profile()).unwrap()
}

fn page(number: u32) -> PhysicalPage {
    profile().geometry.page_from_number(number).unwrap()
}

fn at(data_offset: u32, data: &[u8]) -> ProgramPart<'_> {
    ProgramPart { data_offset, data, spare_offset: 0, spare: &[] }
}

fn content(nand: &mut impl Nand, page: PhysicalPage) -> Vec<u8> {
    let mut data = vec![0; 4096];
    let part = ReadPart { data_offset: 0, data: &mut data, spare_offset: 0, spare: &mut [] };
    nand.read(page, part).unwrap();
    data
}

#[test]
fn the_profile_and_the_device_agree() {
    assert_eq!(profile().capabilities, capabilities());
    assert_eq!(device().capabilities(), capabilities());
}

#[test]
fn crc_is_the_published_one() {
    assert_eq!(head::crc32c(b"123456789"), 0xE306_9283);
}

#[test]
fn the_tail_is_rewritten_in_sectors_that_keep_their_bytes() {
    let mut nand = device();
    nand.program(page(0), at(0, &[1; 512])).unwrap();
    nand.program(page(0), at(512, &[2; 1024])).unwrap();
    let mut all = [3; 4096];
    all[..512].fill(1);
    all[512..1536].fill(2);
    nand.program(page(0), at(0, &all)).unwrap();
    assert_eq!(content(&mut nand, page(0)), all);
    all[600] = 9;
    let refused = nand.program(page(0), at(0, &all));
    assert_eq!(refused, Err(NandError::Rule { page: page(0), rule: FlashRule::CodeWordReuse }));
    nand.erase(BlockIndex(0)).unwrap();
    nand.program(page(0), at(0, &all)).unwrap();
    let counters = nand.counters();
    assert_eq!((counters.page_programs, counters.partial_programs), (1, 3));
}

#[test]
fn an_erase_leaves_old_bytes_readable() {
    let mut nand = device();
    nand.program(page(0), at(0, &[7; 4096])).unwrap();
    nand.erase(BlockIndex(0)).unwrap();
    assert_eq!(content(&mut nand, page(0)), [7; 4096]);
    assert_eq!(content(&mut nand, page(1)), [0; 4096]);
}

#[test]
fn only_synced_programs_survive_a_cut() {
    let mut nand = device();
    nand.program(page(0), at(0, &[1; 4096])).unwrap();
    nand.sync().unwrap();
    nand.program(page(1), at(0, &[2; 4096])).unwrap();
    nand.set_plan(FaultPlan::power_cut(1, nand.operation_count(), Ending::UnsyncedLost));
    assert_eq!(nand.sync(), Err(NandError::PowerOff));
    assert_eq!(nand.erase(BlockIndex(3)), Err(NandError::PowerOff));
    nand.power_cycle();
    assert_eq!(content(&mut nand, page(0)), [1; 4096]);
    assert_eq!(content(&mut nand, page(1)), [0; 4096]);
}

#[test]
fn a_failed_sync_ends_all_writing() {
    let mut nand = device();
    nand.program(page(0), at(0, &[1; 4096])).unwrap();
    let number = nand.operation_count();
    nand.set_plan(FaultPlan::failure(1, number, Persistence::Once));
    assert_eq!(nand.sync(), Err(NandError::SyncFailed));
    assert_eq!(nand.sync(), Err(NandError::SyncFailed));
    assert_eq!(nand.program(page(1), at(0, &[1; 4096])), Err(NandError::SyncFailed));
    assert_eq!(content(&mut nand, page(0)), [0; 4096], "reads go on");
}

#[test]
fn every_operation_has_file_endings() {
    let mut nand = device();
    nand.record_operations();
    let first = nand.operation_count();
    nand.program(page(0), at(0, &[1; 4096])).unwrap();
    nand.sync().unwrap();
    let subset = Ending::UnsyncedSubset512 { draw: 1 };
    assert!(nand.endings_at(first).contains(&subset));
    assert!(nand.endings_at(first).contains(&Ending::Untouched));
    assert!(!nand.endings_at(first + 1).contains(&Ending::Untouched), "same as UnsyncedLost");
}

/// Goal (`rewrite_tail`): an acknowledged sector of a page survives any fate of the next one, written alone
/// or together with it. Method: every ending of the second write and of its sync.
#[test]
fn an_acknowledged_sector_survives_the_next_one() {
    for size in [512, 1024] {
        let mut nand = device();
        nand.program(page(0), at(0, &[1; 512])).unwrap();
        nand.sync().unwrap();
        nand.record_operations();
        let first = nand.operation_count();
        let next = [[1; 512], [2; 512]].concat();
        let write = |nand: &mut SegmentFile<SimStorage>| {
            let part = at(1024 - size, &next[next.len() - size as usize..]);
            nand.program(page(0), part).and_then(|_| nand.sync())
        };
        let mut whole = nand.clone();
        write(&mut whole).unwrap();
        let cuts = (first..whole.operation_count()).flat_map(|number| {
            whole.endings_at(number).into_iter().map(move |ending| (number, ending))
        });
        let cuts: Vec<_> = cuts.collect();
        assert!(cuts.len() > 4, "{cuts:?}");
        for (number, ending) in cuts {
            let mut cut = nand.clone();
            cut.set_plan(FaultPlan::power_cut(1, number, ending));
            assert_eq!(write(&mut cut).err(), Some(NandError::PowerOff));
            cut.power_cycle();
            let found = content(&mut cut, page(0));
            assert_eq!(found[..512], [1; 512], "{number} {ending:?}");
            let second = &found[512..1024];
            assert!(second == [2; 512] || second == [0; 512], "{number} {ending:?}");
        }
    }
}

#[test]
fn a_file_reopens_with_its_bytes_marks_and_geometry() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("device");
    let profile = profile().with_block_count(3).unwrap();
    let storage = FileStorage::create(&path).unwrap();
    let mut nand = SegmentFile::create(storage, &profile).unwrap();
    nand.program(page(65), at(0, &[5; 4096])).unwrap();
    nand.mark_bad(BlockIndex(2)).unwrap();
    assert_eq!(FileStorage::open(&path).unwrap_err(), OpenDeviceError::Locked);
    drop(nand);
    let mut nand = SegmentFile::open(FileStorage::open(&path).unwrap()).unwrap();
    assert_eq!(nand.geometry(), profile.geometry);
    assert_eq!(content(&mut nand, page(65)), [5; 4096]);
    assert_eq!(nand.is_bad(BlockIndex(2)), Ok(true));
    assert_eq!(nand.is_bad(BlockIndex(1)), Ok(false));
}

fn opened(bytes: &[u8]) -> Result<SegmentFile<SimStorage>, OpenDeviceError> {
    SegmentFile::open(SimStorage::from_bytes(profile().timing, bytes))
}

/// Where the second superblock of these files ends.
const MIRROR: usize = 256 << 10;

/// First bytes of both copies, and their places.
const COPIES: [usize; 2] = [0, MIRROR - 4096];

/// The checksum of both superblocks fits again.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    for at in COPIES {
        let crc = head::crc32c(&bytes[at..at + 508]).to_le_bytes();
        bytes[at + 508..at + 512].copy_from_slice(&crc);
    }
    bytes
}

/// Goal: wrong files are refused with the right name. Method: single changes to both copies of a good head.
#[test]
fn wrong_files_are_refused_by_kind() {
    let good = device().into_storage().to_bytes();
    let open = |bytes: &[u8]| opened(bytes).map(|_| ()).unwrap_err();
    assert_eq!(open(&[]), OpenDeviceError::NotFlagstone);
    assert_eq!(open(&[0; 5000]), OpenDeviceError::NotFlagstone);
    let short = &good[..good.len() - 1];
    assert!(matches!(open(short), OpenDeviceError::Size { .. }));
    let changed = |byte: usize, value: u8| {
        let mut bytes = good.clone();
        COPIES.iter().for_each(|copy| bytes[copy + byte] ^= value);
        bytes
    };
    assert_eq!(open(&sealed(changed(8, 7))), OpenDeviceError::Version { found: 4, known: 3 });
    assert_eq!(open(&changed(8, 7)), OpenDeviceError::Damaged, "the checksum comes first");
    assert_eq!(open(&changed(0, 7)), OpenDeviceError::NotFlagstone);
    for byte in 12..56 {
        assert_eq!(open(&changed(byte, 4)), OpenDeviceError::Damaged, "byte {byte}");
        // Of others a whole head could be made.
        if !(20..24).contains(&byte) && !(40..44).contains(&byte) {
            let forged = open(&sealed(changed(byte, 4)));
            assert!(matches!(forged, OpenDeviceError::Damaged), "byte {byte}: {forged}");
        }
    }
}

/// Goal: a file of another version is told as such, though its checksum stands elsewhere. Method: the superblocks of
/// versions 1 and 2.
#[test]
fn files_of_before_are_told_by_their_version() {
    for (version, checked) in [(1_u32, 40), (2, 44)] {
        let mut bytes = device().into_storage().to_bytes();
        COPIES.iter().for_each(|at| bytes[*at..at + 512].fill(0));
        bytes[..8].copy_from_slice(b"FLAGSEG\0");
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        let crc = head::crc32c(&bytes[..checked]).to_le_bytes();
        bytes[checked..checked + 4].copy_from_slice(&crc);
        let refused = opened(&bytes).map(|_| ()).unwrap_err();
        assert_eq!(refused, OpenDeviceError::Version { found: version, known: 3 });
    }
}

/// Goal (H1, H4): no sector and no page of 4 KiB hides a device or a mark, and its content is there again
/// after the next opening. Method: each that holds anything of the head damaged in turn, in three ways, on
/// files of both kinds.
#[test]
fn no_part_of_the_head_stands_once() {
    for mut nand in [device(), growing()] {
        nand.mark_bad(BlockIndex(1)).unwrap();
        nand.program(page(5), at(0, &[9; 4096])).unwrap();
        nand.sync().unwrap();
        let good = nand.into_storage().to_bytes();
        let damages: [fn(usize, u8) -> u8; 3] = [
            |_, _| 0,
            |index, _| (index * 151 % 251) as u8,
            |index, byte| byte ^ u8::from(index == 11),
        ];
        for (size, damage) in [512, 4096].iter().flat_map(|size| damages.map(|it| (*size, it))) {
            let is_used = |start: &usize| good[*start..start + size].iter().any(|byte| *byte != 0);
            for start in (0..MIRROR).step_by(size).filter(is_used) {
                let mut bytes = good.clone();
                for (index, byte) in bytes[start..start + size].iter_mut().enumerate() {
                    *byte = damage(index, *byte);
                }
                let mut nand = opened(&bytes).unwrap_or_else(|error| panic!("{start}: {error}"));
                assert_eq!(nand.is_bad(BlockIndex(1)), Ok(true), "{start}");
                assert_eq!(nand.is_bad(BlockIndex(0)), Ok(false), "{start}");
                assert_eq!(content(&mut nand, page(5)), [9; 4096]);
                let repaired = nand.into_storage().to_bytes();
                for at in [0, 4096, MIRROR - 4096 - 512, MIRROR - 4096] {
                    assert_eq!(repaired[at..at + 512], good[at..at + 512], "{start}");
                }
            }
        }
    }
}

/// A file that grows from three segments to eight.
fn growing() -> SegmentFile<SimStorage> {
    SegmentFile::create_growing(SimStorage::new(profile().timing), &profile(), 3).unwrap()
}

/// Goal (H3): a device that was made anew is not taken for its predecessor. Method: a superblock of another
/// place.
#[test]
fn a_superblock_counts_where_it_says_that_it_stands() {
    let good = device().into_storage().to_bytes();
    let mut moved = good.clone();
    moved.copy_within(COPIES[1]..COPIES[1] + 512, (128 << 10) - 4096);
    COPIES.iter().for_each(|at| moved[*at..at + 512].fill(0));
    assert_eq!(opened(&moved).map(|_| ()).unwrap_err(), OpenDeviceError::NotFlagstone);
    let storage = SimStorage::from_bytes(profile().timing, &good);
    SegmentFile::forget(storage).unwrap();
}

#[test]
fn chips_are_no_files() {
    let chip = Profile::named("slc-2k").unwrap();
    let refused = SegmentFile::create(SimStorage::new(chip.timing), &chip);
    assert_eq!(refused.map(|_| ()), Err(OpenDeviceError::Unsuitable));
}

/// Goal: the cost of one crash state. Method: snapshot, cut, power cycle; printed, not judged.
#[test]
fn a_crash_state_costs_microseconds() {
    const STATES: u32 = 2000;
    let mut nand = device();
    nand.program(page(0), at(0, &[1; 4096])).unwrap();
    let number = nand.operation_count();
    let start = std::time::Instant::now();
    for seed in 0..STATES {
        let mut state = nand.clone();
        let ending = Ending::UnsyncedSubset512 { draw: 0 };
        state.set_plan(FaultPlan::power_cut(seed.into(), number, ending));
        assert_eq!(state.sync(), Err(NandError::PowerOff));
        state.power_cycle();
    }
    println!("file crash state: {} ns", start.elapsed().as_nanos() / u128::from(STATES));
}

/// Goal: threads that read and sync beside the device see the programmed bytes and are counted.
#[test]
fn reads_and_syncs_are_shared_on_a_real_file() {
    assert!(device().shared().is_none(), "simulated operations take turns");
    let directory = tempfile::tempdir().unwrap();
    let storage = FileStorage::create(&directory.path().join("file")).unwrap();
    let mut nand = SegmentFile::create(storage, &profile()).unwrap();
    nand.reset_counters();
    let shared = nand.shared().unwrap();
    nand.program(page(3), at(0, &[5; 4096])).unwrap();
    nand.program(page(4), at(512, &[6; 512])).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut data = vec![0; 4096];
                shared.read(page(3), &mut data).unwrap();
                assert_eq!(data, [5; 4096]);
                shared.read(page(4), &mut data).unwrap();
                assert_eq!((data[511], data[512], data[1024]), (0, 6, 0));
                shared.sync().unwrap();
            });
        }
    });
    let outside = profile().with_block_count(9).unwrap().geometry.page_from_number(8 * 64).unwrap();
    assert!(shared.read(outside, &mut [0; 512]).is_err());
    assert!(shared.read(page(3), &mut [0; 4608]).is_err());
    assert_eq!((nand.counters().page_reads, nand.counters().syncs), (4, 2));
}

/// Goal: a sync that failed beside the device ends its writing (rule D10).
#[test]
fn a_sync_that_failed_beside_it_poisons_the_device() {
    #[derive(Debug)]
    struct Failing;
    impl crate::SharedStorage for Failing {
        fn write_at(&self, _: u64, _: &[u8]) -> Result<(), crate::StorageError> {
            Ok(())
        }

        fn read_at(&self, _: u64, _: &mut [u8]) -> Result<(), crate::StorageError> {
            Ok(())
        }
        fn sync(&self) -> Result<(), crate::StorageError> {
            Err(crate::StorageError::SyncFailed)
        }
    }
    let mut nand = device();
    let shared = Shared::new(Arc::new(Failing), nand.geometry(), 0);
    nand.shared = Some(Arc::clone(&shared));
    nand.program(page(0), at(0, &[1; 512])).unwrap();
    assert_eq!(shared.sync(), Err(NandError::SyncFailed));
    assert_eq!(nand.program(page(0), at(512, &[1; 512])), Err(NandError::SyncFailed));
    assert_eq!(nand.sync(), Err(NandError::SyncFailed));
    assert_eq!(shared.sync(), Err(NandError::SyncFailed));
}

/// Goal: bytes that a medium does not give back are the loss of their page, as beyond the strength of an ECC,
/// and other failures are failures of the device. Method: a host that answers a read with each of them.
#[test]
fn a_sector_that_does_not_read_is_a_page_that_does_not() {
    #[derive(Debug)]
    struct Answering(i32);
    impl crate::SharedStorage for Answering {
        fn write_at(&self, _: u64, _: &[u8]) -> Result<(), crate::StorageError> {
            Ok(())
        }

        fn read_at(&self, _: u64, _: &mut [u8]) -> Result<(), crate::StorageError> {
            Err(crate::StorageError::Host { errno: self.0 })
        }
        fn sync(&self) -> Result<(), crate::StorageError> {
            Ok(())
        }
    }
    for (errno, is_page) in [(5, true), (61, true), (74, true), (84, true), (19, false), (9, false)]
    {
        let shared = Shared::new(Arc::new(Answering(errno)), device().geometry(), 0);
        let read = shared.read(page(0), &mut [0; 512]);
        let wanted = match is_page {
            true => NandError::Uncorrectable { page: page(0) },
            false => NandError::Host { errno },
        };
        assert_eq!(read, Err(wanted), "errno {errno}");
    }
}

#[test]
fn a_file_that_cannot_be_made_does_not_stay() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let chip = Profile::named("slc-2k").unwrap();
    let unsuitable = SegmentFile::create_file(&path, &chip, Extent::Fixed).unwrap_err();
    assert_eq!(unsuitable, OpenDeviceError::Unsuitable);
    let endless = Profile::named("segment-file").unwrap().with_capacity(2 << 40).unwrap();
    let too_large = SegmentFile::create_file(&path, &endless, Extent::Growing).unwrap_err();
    assert!(matches!(too_large, OpenDeviceError::TooLarge { .. }), "{too_large}");
    assert!(!path.exists());
    std::fs::write(&path, "mine").unwrap();
    let small = Profile::named("segment-file").unwrap().with_capacity(1 << 20).unwrap();
    assert!(SegmentFile::create_file(&path, &small, Extent::Fixed).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
}

/// Goal: a program beside the device writes the same bytes as any program, obeys the same rules, and is
/// counted.
#[test]
fn programs_are_shared_on_a_real_file() {
    assert_eq!(device().begin_program(page(1), &at(0, &[1; 512])), Ok(false), "they take turns");
    let directory = tempfile::tempdir().unwrap();
    let storage = FileStorage::create(&directory.path().join("file")).unwrap();
    let mut nand = SegmentFile::create(storage, &profile()).unwrap();
    nand.reset_counters();
    let shared = nand.shared().unwrap();
    for (offset, byte) in [(512, 6), (1024, 7)] {
        assert_eq!(nand.begin_program(page(4), &at(offset, &[byte; 512])), Ok(true));
        shared.program(page(4), offset, &[byte; 512]).unwrap();
    }
    let data = content(&mut nand, page(4));
    assert_eq!((data[511], data[512], data[1023], data[1024], data[1536]), (0, 6, 6, 7, 0));
    let again = nand.begin_program(page(4), &at(512, &[8; 512]));
    assert!(
        matches!(again, Err(NandError::Rule { rule: FlashRule::CodeWordReuse, .. })),
        "{again:?}"
    );
    let counters = nand.counters();
    assert_eq!((counters.partial_programs, counters.bytes_programmed), (2, 1024));
    let beyond = shared.program(page(4), 4000, &[0; 512]);
    assert!(matches!(beyond, Err(NandError::Rule { .. })), "{beyond:?}");
}
