//! Goal: what the kernel says of a read is told right, by `MEMREAD` and, as before Linux 6.1, by counters.
//!
//! Method: on the device that `FLAGSTONE_MTD_DEVICE` names, whose content is lost; without it the tests
//! pass unseen. `tests/mtd/run` runs them in a guest.

use std::path::PathBuf;

use super::*;

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
