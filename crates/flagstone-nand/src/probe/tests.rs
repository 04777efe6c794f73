//! Goal: a probe finds the facts of a chip's profile, and leaves every other block alone.
//!
//! Method: chips of known rules, simulated; programs that the rules refuse stand for programs that
//! a real chip would spoil.

use super::*;
use crate::{CellMode, SimNand};

fn chip(name: &str) -> SimNand {
    SimNand::new(&Profile::named(name).unwrap(), 1)
}

fn found(name: &str) -> Findings {
    probe(&mut chip(name), &[BlockIndex(3), BlockIndex(5)]).unwrap()
}

#[test]
fn what_the_rules_of_a_chip_allow_is_found() {
    for name in ["slc-2k", "flagcommit-slc", "tiny", "tiny-nop1", "tiny-ordered", "spi-nand"] {
        let profile = Profile::named(name).unwrap();
        let rules = profile.capabilities;
        let found = found(name);
        let words = profile.geometry.page_size / rules.code_word.data_size;
        assert_eq!(found.programs_data, rules.programs_data.min(words), "{name}");
        assert_eq!(found.first_program_order, rules.first_program_order, "{name}");
        assert_eq!(
            found.spare_is_free(),
            rules.spare_raw.size > 0 && rules.programs_spare > 1,
            "{name}"
        );
        if found.spare_is_free() {
            assert_eq!(found.programs_spare, rules.programs_spare, "{name}");
        }
        assert_eq!(
            found.times.read_ns,
            profile.timing.read_ns + profile.timing.transfer_page_ns,
            "{name}"
        );
        assert_eq!(found.times.erase_ns, profile.timing.erase_ns, "{name}");
    }
}

#[test]
fn no_block_but_the_scratch_blocks_is_touched() {
    let mut chip = chip("tiny");
    let page = |block, index| chip.geometry().page(BlockIndex(block), index).unwrap();
    let (before, inside) = (page(2, 0), page(3, 0));
    let geometry = chip.geometry();
    let data = vec![7; geometry.page_size as usize];
    for page in [before, inside] {
        let part = crate::ProgramPart { data_offset: 0, data: &data, spare_offset: 0, spare: &[] };
        chip.program(page, part).unwrap();
    }
    let image = chip.to_image();
    probe(&mut chip, &[BlockIndex(3)]).unwrap();
    for block in geometry.blocks() {
        assert_eq!(chip.erase_count(block) > 0, block == BlockIndex(3), "{block:?}");
    }
    let after = chip.to_image();
    let size = (geometry.image_size() / u64::from(geometry.block_count)) as usize;
    let blocks = image.chunks(size).zip(after.chunks(size)).enumerate();
    for (block, (one, other)) in blocks.filter(|(block, _)| *block != 3) {
        assert!(one == other, "block {block} changed");
    }
    assert!(after.chunks(size).nth(3).unwrap().iter().all(|byte| *byte == 0xFF), "not erased");
}

#[test]
fn blocks_that_cannot_be_used_are_refused_before_anything_changes() {
    let mut chip = chip("tiny").with_bad_blocks(&[BlockIndex(4)]);
    let good = BlockIndex(3);
    let outside = BlockIndex(chip.geometry().block_count);
    assert_eq!(probe(&mut chip, &[]), Err(ProbeError::NoScratch));
    assert_eq!(probe(&mut chip, &[good, outside]), Err(ProbeError::Outside(outside)));
    assert_eq!(probe(&mut chip, &[good, BlockIndex(4)]), Err(ProbeError::Bad(BlockIndex(4))));
    assert_eq!(chip.erase_count(good), 0);
    assert!(read_time(&mut chip, 8).unwrap() > 0);
    assert_eq!(chip.counters().page_programs + chip.counters().block_erases, 0);
}

#[test]
fn a_profile_takes_no_more_than_data_sheets_allow() {
    let known = Profile::named("tiny").unwrap();
    let mut found = found("tiny");
    found.programs_spare = SPARE_PROGRAMS_MAX;
    found.first_program_order = ProgramOrder::Any;
    let profile = found.profile(&known, "probed").checked().unwrap();
    assert_eq!(profile.capabilities.programs_spare, NOP_USUAL);
    assert_eq!(profile.capabilities.first_program_order, ProgramOrder::Ascending);
    assert_eq!(profile.capabilities.cell_mode, CellMode::Slc);
    assert_eq!(profile, Profile::from_toml(&profile.to_toml()).unwrap());
    found.programs_spare = 1;
    let covered = found.profile(&known, "probed").checked().unwrap().capabilities;
    assert_eq!((covered.spare_raw.size, covered.spare_covered), (0, known.capabilities.spare_raw));
}

#[test]
fn errors_name_the_address_in_words() {
    let geometry = crate::Profile::named("tiny").unwrap().geometry;
    let page = geometry.page_from_number(100).unwrap();
    for (error, text) in [
        (ProbeError::Outside(BlockIndex(9999)), "block 9999 lies outside the device"),
        (NandError::Uncorrectable { page }.into(), "uncorrectable bit errors on physical page 100"),
        (
            NandError::Rule { page, rule: crate::FlashRule::BadBlock }.into(),
            "a rule of flash would be broken on physical page 100: its block is marked bad",
        ),
    ] {
        assert_eq!(error.to_string(), text);
    }
}

#[cfg(feature = "std")]
#[test]
fn errors_of_the_host_are_in_its_words() {
    let errno = 28;
    let said = std::io::Error::from_raw_os_error(errno).to_string();
    assert_eq!(NandError::Host { errno }.to_string(), said);
    assert_eq!(crate::StorageError::Host { errno }.to_string(), said);
}
