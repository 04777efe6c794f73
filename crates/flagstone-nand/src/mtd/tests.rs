//! Goal: the kernel's verdict on a read is told right, by `MEMREAD` and, as before Linux 6.1, by counters; in
//! raw mode bytes are as in the cells, and code words of our own are kept in them.
//!
//! Method: on the device that `FLAGSTONE_MTD_DEVICE` names, whose content is lost; without it the tests
//! pass unseen. `tests/mtd/run` runs them in a guest.

use std::path::PathBuf;

use super::*;
use crate::EccNand;
use crate::ecc::Bch;

const WAYS: [Reading; 2] = [Reading::Counted, Reading::Watched];

fn device() -> Option<MtdNand> {
    let path = PathBuf::from(std::env::var_os("FLAGSTONE_MTD_DEVICE")?);
    Some(MtdNand::open_to_probe(&path).unwrap())
}

/// Bytes that are no others' and look random.
fn bytes(count: u32, seed: u32) -> Vec<u8> {
    let byte = |index: u32| ((index + seed).wrapping_mul(0x9E37_79B1) >> 24) as u8;
    (0..count).map(byte).collect()
}

fn erased_page(device: &mut MtdNand, block: u32) -> PhysicalPage {
    device.erase(BlockIndex(block)).unwrap();
    device.geometry().page(BlockIndex(block), 0).unwrap()
}

#[test]
fn both_ways_of_reading_give_what_was_programmed() {
    let Some(mut device) = device() else { return };
    let page = erased_page(&mut device, 3);
    let (geometry, rules) = (device.geometry(), device.capabilities());
    let (word, free) = (rules.code_word.data_size, rules.spare_raw);
    let (data, spare) = (bytes(geometry.page_size, 1), bytes(free.size, 77));
    let part =
        ProgramPart { data_offset: 0, data: &data, spare_offset: free.offset, spare: &spare };
    device.program(page, part).unwrap();
    for way in WAYS {
        device.reading = way;
        let (mut read, mut read_spare) = (vec![0; word as usize], vec![0; 3]);
        let part = ReadPart {
            data_offset: geometry.page_size - word,
            data: &mut read,
            spare_offset: free.offset + 2,
            spare: &mut read_spare,
        };
        assert_eq!(device.read(page, part).unwrap().corrected_bits_max, 0, "{way:?}");
        assert_eq!(read, data[(geometry.page_size - word) as usize..], "{way:?}");
        assert_eq!(read_spare, spare[2..5], "{way:?}");
        assert_eq!(device.reading, way, "the kernel of the guest knows both ways");
    }
}

#[test]
fn what_the_ecc_gives_up_on_is_an_error_either_way() {
    let Some(mut device) = device() else { return };
    let page = erased_page(&mut device, 4);
    let page_size = device.geometry().page_size;
    for seed in [1, 2_000_003] {
        // The second program is a violation that only a device whose past is not known lets through:
        // data and parity become the conjunction of two pages.
        device.known.clear();
        let data = bytes(page_size, seed);
        let part = ProgramPart { data_offset: 0, data: &data, spare_offset: 0, spare: &[] };
        device.program(page, part).unwrap();
    }
    for way in WAYS {
        device.reading = way;
        let mut data = vec![0; page_size as usize];
        let part = ReadPart { data_offset: 0, data: &mut data, spare_offset: 0, spare: &mut [] };
        let read = device.read(page, part).map(|_| ());
        assert_eq!(read, Err(NandError::Uncorrectable { page }), "{way:?}");
    }
}

/// As many data bytes as the device has them, and the whole spare area.
fn read_whole(device: &mut MtdNand, page: PhysicalPage) -> (Vec<u8>, Vec<u8>) {
    let geometry = device.geometry();
    let mut data = vec![0; geometry.page_size as usize];
    let mut spare = vec![0; geometry.spare_size as usize];
    let part = ReadPart { data_offset: 0, data: &mut data, spare_offset: 0, spare: &mut spare };
    device.read(page, part).unwrap();
    (data, spare)
}

/// Our parity is that of the kernel's software BCH code, byte for byte.
#[test]
fn parity_is_that_of_the_kernel() {
    const STEP: usize = 512;
    let Some(mut device) = device() else { return };
    let page = erased_page(&mut device, 6);
    let (geometry, word) = (device.geometry(), device.capabilities().code_word);
    let data = bytes(geometry.page_size, 99);
    let part = ProgramPart { data_offset: 0, data: &data, spare_offset: 0, spare: &[] };
    device.program(page, part).unwrap();
    let (file, profile) = (device.file, device.profile);
    let (mut raw, _) = Found { file, profile, step: word }.raw();
    let code = Bch::new(STEP, word.strength).unwrap();
    for way in WAYS {
        if way == Reading::Watched {
            raw.watch().unwrap();
        }
        let (found, spare) = read_whole(&mut raw, page);
        assert_eq!(found, data, "{way:?}");
        let parity: Vec<u8> = data
            .chunks(STEP)
            .flat_map(|step| {
                let mut parity = vec![0; code.parity_size()];
                code.encode(step.iter().map(|byte| !byte), &mut parity);
                parity.into_iter().map(|byte| !byte)
            })
            .collect();
        assert!(spare.ends_with(&parity), "{way:?}: {spare:x?} does not end with {parity:x?}");
    }
}

#[test]
fn code_words_of_our_own_stand_on_a_chip_read_raw() {
    let Some(probed) = device() else { return };
    let path = PathBuf::from(std::env::var_os("FLAGSTONE_MTD_DEVICE").unwrap());
    let own = Profile { name: String::from("own"), ..probed.profile }.with_own_ecc().unwrap();
    drop(probed.file);
    for way in WAYS {
        let mut device = EccNand::<MtdNand>::open_to_probe(&path, &own).unwrap();
        if way == Reading::Watched {
            device.device_mut().watch().unwrap();
        }
        let (geometry, rules) = (device.geometry(), device.capabilities());
        device.erase(BlockIndex(7)).unwrap();
        let page = geometry.page(BlockIndex(7), 0).unwrap();
        let data = bytes(geometry.page_size, 5);
        let size = rules.code_word.data_size;
        let spare_offset = rules.spare_raw.offset;
        for (data_offset, word) in (0..).step_by(size as usize).zip(data.chunks(size as usize)) {
            let spare = &[!(1 << (data_offset / size)); 1][..usize::from(rules.spare_raw.size > 0)];
            let part = ProgramPart { data_offset, data: word, spare_offset, spare };
            device.program(page, part).unwrap();
            let (mut found, mut mark) = (vec![0; geometry.page_size as usize], [0]);
            let part =
                ReadPart { data_offset: 0, data: &mut found, spare_offset, spare: &mut mark };
            assert_eq!(device.read(page, part).unwrap().corrected_bits_max, 0, "{way:?}");
            let end = (data_offset + size) as usize;
            assert_eq!(found[..end], data[..end], "{way:?}");
            assert!(found[end..].iter().all(|byte| *byte == 0xFF), "{way:?}");
        }
        let (_, spare) = read_whole(device.device_mut(), page);
        let vendors = rules.spare_raw.offset as usize - 4;
        assert!(spare[..vendors].iter().all(|byte| *byte == 0xFF), "{way:?}: {spare:x?}");
    }
}

#[test]
fn a_bad_block_is_marked_for_the_next_opening_too() {
    let Some(mut marking) = device() else { return };
    let block = BlockIndex(marking.geometry().block_count - 1);
    assert!(!marking.is_bad(block).unwrap());
    marking.mark_bad(block).unwrap();
    drop(marking);
    let Some(mut device) = device() else { return };
    assert!(device.is_bad(block).unwrap());
    assert_eq!(device.erase(block), Err(NandError::EraseFailed { block }));
}

#[test]
fn a_block_that_is_bad_afterwards_is_marked_whatever_the_call_said() {
    let told = |marked, is_bad| marked_bad(marked, || is_bad);
    assert_eq!(told(Err(Errno::IO), Ok(true)), Ok(()));
    assert_eq!(told(Err(Errno::IO), Ok(false)), Err(Errno::IO));
    assert_eq!(told(Err(Errno::IO), Err(Errno::NODEV)), Err(Errno::IO));
    // The device is not ours, or gone: nothing was marked.
    assert_eq!(told(Err(Errno::ROFS), Ok(true)), Err(Errno::ROFS));
    assert_eq!(told(Ok(()), Ok(false)), Ok(()));
}

/// Goal: a chip whose ECC cannot be switched off is opened and created under that ECC; only ECC of our own is
/// refused on it. Method: the error numbers of the kernel's drivers for a raw read.
#[test]
fn a_chip_that_cannot_be_read_raw_carries_the_devices_code_words() {
    let told = |errno| if_read_raw(Err(NandError::Host { errno }));
    assert_eq!([told(95), told(524)], [Ok(None), Ok(None)]);
    assert_eq!(told(5), Err(NandError::Host { errno: 5 }));
    assert_eq!(if_read_raw(Ok(Carried::Nothing)), Ok(Some(Carried::Nothing)));
    assert!(lacks_counted_reads(Err(Errno::NOTTY)));
    assert!(!lacks_counted_reads(Err(Errno::OPNOTSUPP)), "the raw mode alone is missing");

    let device = Profile::named("slc-2k").unwrap();
    let own = device.clone().with_own_ecc().unwrap();
    let refused = Err(OpenDeviceError::Io { errno: 95 });
    assert_eq!(open::gives_way(None, &device), Ok(true));
    assert_eq!(open::gives_way(None, &own), refused);
    assert_eq!(open::gives_way(Some(Carried::Others), &own), Ok(false));
}

#[test]
fn a_profile_promises_no_more_corrected_bits_than_the_driver() {
    let profile = Profile::named("slc-2k").unwrap();
    let limited = |asked, found| {
        let (mut capabilities, mut driver) = (profile.capabilities, profile.clone());
        capabilities.code_word.strength = asked;
        driver.capabilities.code_word.strength = found;
        limit(&mut capabilities, &driver);
        capabilities.code_word.strength
    };
    assert_eq!([limited(8, 4), limited(4, 8), limited(4, 4)], [4; 3]);
    assert_eq!(limited(8, 0), 8, "a driver that does not say");
}

/// Goal: a block that does not take its mark ends nothing; a chip that takes none is write-protected, and
/// none of its blocks is to blame. Method: the kernel's error numbers for marks.
#[test]
fn a_mark_that_is_not_taken_is_told_from_a_protected_chip() {
    assert_eq!(left_out(Err(host(Errno::IO))), Ok(()));
    assert_eq!(left_out(Ok(())), Ok(()));
    assert_eq!(left_out(Err(host(Errno::ROFS))), Err(NandError::WriteProtected));
}
