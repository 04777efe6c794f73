//! The shipped profiles, their text, and the reasons to refuse a profile.

use super::*;
use crate::{BlockIndex, Nand, NandError, ProgramPart, ReadPart, SimNand, SimSsd};

#[test]
fn every_shipped_profile_is_consistent_and_survives_its_own_text() {
    for name in Profile::names() {
        let profile = Profile::named(name).unwrap_or_else(|err| panic!("{name}: {err}"));
        assert_eq!(profile.name, name);
        assert!(!profile.source.is_empty(), "{name} names no source");
        let again = Profile::from_toml(&profile.to_toml()).unwrap();
        assert_eq!(profile, again, "{name} changes when written and read");
    }
}

#[test]
fn an_unknown_name_is_answered_with_the_nearest() {
    let Err(ProfileError::UnknownName { nearest, .. }) = Profile::named("slc2k") else {
        panic!("a name that does not exist was found");
    };
    assert_eq!(nearest.as_deref(), Some("slc-2k"));
}

#[test]
fn an_unknown_key_is_answered_with_the_nearest() {
    let text = Profile::named("tiny").unwrap().to_toml();
    let text = text.replace("endurance", "endurnace");
    let error = Profile::from_toml(&text).unwrap_err();
    let expected = ProfileError::UnknownKey {
        key: "rules.endurnace".into(),
        nearest: Some("rules.endurance".into()),
    };
    assert_eq!(error, expected);
}

#[test]
fn contradictions_are_refused() {
    let tiny = Profile::named("tiny").unwrap();
    assert!(tiny.clone().with_block_count(0).is_err());
    assert!(tiny.clone().with_capacity(u64::MAX).is_err());
    let mut odd_words = tiny.clone();
    odd_words.capabilities.code_word.data_size = 300;
    assert_eq!(odd_words.checked(), Err(ProfileError::Inconsistent(Inconsistency::CodeWords)));
    let mut wide_spare = tiny;
    wide_spare.capabilities.spare_raw.size = 31;
    assert_eq!(wide_spare.checked(), Err(ProfileError::Inconsistent(Inconsistency::Spare)));
}

#[test]
fn code_words_of_our_own_are_no_weaker_than_the_drivers() {
    let mut profile = Profile::named("slc-2k").unwrap();
    profile.geometry.spare_size = 64;
    profile.capabilities.spare_raw = SpareRange { offset: 2, size: 38 };
    profile.capabilities.spare_covered = SpareRange { offset: 0, size: 0 };
    profile.capabilities.code_word = CodeWord { data_size: 2048, strength: 4 };
    let strength = |profile: Profile| profile.capabilities.code_word.strength;
    // Four bits in 2048 bytes leave room for flags; the same in 512 do not.
    assert_eq!(strength(profile.clone().with_own_ecc().unwrap()), 3);
    let driver = CodeWord { data_size: 512, strength: 4 };
    assert_eq!(strength(profile.clone().with_own_ecc_over(driver).unwrap()), 8);
    profile.capabilities.code_word = driver;
    let weaker = CodeWord { data_size: 256, strength: 1 };
    assert_eq!(strength(profile.with_own_ecc_over(weaker).unwrap()), 8);
}

#[test]
fn a_chip_gets_code_words_of_our_own_where_they_fit() {
    let inconsistent = ProfileError::Inconsistent(Inconsistency::Ecc);
    let own = Profile::named("slc-2k").unwrap().with_own_ecc().unwrap();
    assert_eq!(own.capabilities.code_word, CodeWord { data_size: 512, strength: 8 });
    assert_eq!(own.device_capabilities().spare_raw, SpareRange { offset: 2, size: 62 });
    assert_eq!(own.device_capabilities().code_word.strength, 0);
    assert_eq!(Profile::from_toml(&own.to_toml()), Ok(own.clone()));
    assert_eq!(own.clone().with_own_ecc(), Ok(own.clone()));
    for name in ["segment-file", "otf-ssd"] {
        assert_eq!(Profile::named(name).unwrap().with_own_ecc(), Err(inconsistent.clone()));
    }
    let mut into_parity = own.clone();
    into_parity.capabilities.spare_raw.size += 1;
    assert_eq!(into_parity.checked(), Err(inconsistent.clone()));
    let mut too_strong = own;
    too_strong.capabilities.code_word.strength = 9;
    assert_eq!(too_strong.checked(), Err(inconsistent));
}

#[test]
fn capacity_rounds_up_to_whole_blocks() {
    let profile = Profile::named("slc-2k").unwrap().with_capacity(128 * 1024 * 3 + 1).unwrap();
    assert_eq!(profile.geometry.block_count, 4);
}

#[test]
fn small_files_have_small_segments() {
    let segments = |bytes| {
        let profile = Profile::named("segment-file").unwrap().with_capacity(bytes).unwrap();
        (profile.geometry.block_count, profile.geometry.pages_per_block)
    };
    assert_eq!(segments(1 << 20), (32, 8));
    assert_eq!(segments(8 << 20), (128, 16));
    assert_eq!(segments(64 << 20), (256, 64));
}

/// Goal: every shipped profile is a device that works. Method: with four blocks a die, the first page is
/// programmed and read; both take as long as the profile says.
#[test]
fn every_shipped_profile_makes_a_device() {
    for name in Profile::names() {
        let profile = Profile::named(name).unwrap();
        let dies = profile.geometry.die_count;
        let profile = profile.with_block_count(4 * dies).unwrap();
        let times = first_page(&profile);
        let Timing { read_ns, program_ns, transfer_page_ns, host_page_ns, .. } = profile.timing;
        // On a chip, the data area's share of the transfer.
        let Geometry { page_size, spare_size, .. } = profile.geometry;
        let is_drive = profile.translation.is_some();
        let whole = if is_drive { page_size } else { page_size + spare_size };
        let transfer_ns = transfer_page_ns * u64::from(page_size) / u64::from(whole);
        let expected = [program_ns, read_ns].map(|array_ns| array_ns + transfer_ns + host_page_ns);
        assert_eq!(times, Ok(expected), "{name}");
    }
}

/// Times of a program and of a read of the first page, which holds the programmed bytes.
fn first_page(profile: &Profile) -> Result<[u64; 2], NandError> {
    let mut device: Box<dyn Nand> = match profile.translation {
        Some(translation) => Box::new(SimSsd::new(profile, translation, 1)),
        None => Box::new(SimNand::new(profile, 1)),
    };
    let page = device.geometry().page(BlockIndex(0), 0).ok_or(NandError::PowerOff)?;
    let written = vec![0x3C; profile.geometry.page_size as usize];
    let mut found = vec![0; written.len()];
    let part = ProgramPart { data_offset: 0, data: &written, spare_offset: 0, spare: &[] };
    let programmed = device.program(page, part)?;
    device.advance_to(programmed.end_ns);
    let part = ReadPart { data_offset: 0, data: &mut found, spare_offset: 0, spare: &mut [] };
    let read = device.read(page, part)?;
    assert_eq!(found, written, "{}", profile.name);
    Ok([programmed.end_ns, read.end_ns - programmed.end_ns])
}

#[test]
fn a_channel_serves_as_many_dies_as_every_other() {
    let inconsistent = ProfileError::Inconsistent(Inconsistency::Channels);
    let mut chip = Profile::named("tiny-dies").unwrap();
    for (channel_count, expected) in [(1, true), (2, true), (3, false), (4, true), (8, false)] {
        chip.timing.channel_count = channel_count;
        let checked = chip.clone().checked();
        assert_eq!(checked.is_ok(), expected, "{channel_count} channels of 4 dies");
        assert!(expected || checked == Err(inconsistent.clone()));
        let again = Profile::from_toml(&chip.to_toml());
        assert_eq!(again.is_ok_and(|again| again == chip), expected);
    }
}

/// Goal: a chip has no rules of a file, and a file none of a chip. Method: one rule changed.
#[test]
fn rules_of_another_kind_of_device_are_refused() {
    let with = |name, change: fn(&mut Profile)| {
        let mut profile = Profile::named(name).unwrap();
        change(&mut profile);
        profile.checked()
    };
    let inconsistent = |fault| Err(ProfileError::Inconsistent(fault));
    let chip = |change| with("tiny", change);
    let translated = chip(|it| it.capabilities.cell_mode = CellMode::Translated);
    assert_eq!(translated, inconsistent(Inconsistency::Translated));
    let tail = chip(|it| it.capabilities.rewrite_tail = true);
    assert_eq!(tail, inconsistent(Inconsistency::FilesAlone { key: "rewrite_tail" }));
    let mortal = chip(|it| it.capabilities.endurance = 0);
    assert_eq!(mortal, inconsistent(Inconsistency::Endurance));
    let file = |change| with("segment-file", change);
    assert!(file(|it| it.capabilities.rewrite_tail = false).is_ok());
    let unsynced = file(|it| it.capabilities.needs_sync = false);
    assert_eq!(unsynced, inconsistent(Inconsistency::File { key: "needs_sync", must: "true" }));
    let twice = file(|it| it.capabilities.programs_data = 2);
    assert_eq!(twice, inconsistent(Inconsistency::File { key: "programs_data", must: "1" }));
}

/// Goal: no figure of a profile makes a simulated device overflow. Method: the times and the size that did.
#[test]
fn absurd_times_and_sizes_are_refused() {
    let inconsistent = |fault| Err(ProfileError::Inconsistent(fault));
    let with = |timing| Profile { timing, ..Profile::named("slc-2k").unwrap() }.checked();
    let usual = Profile::named("slc-2k").unwrap().timing;
    let hour = 3_600_000_000_000;
    assert!(with(Timing { transfer_page_ns: hour, ..usual }).is_ok());
    for timing in [
        Timing { transfer_page_ns: hour + 1, ..usual },
        Timing { program_ns: u64::MAX, ..usual },
        Timing { read_upper_center_ns: hour + 1, ..usual },
        Timing { host_page_ns: hour + 1, ..usual },
        Timing { sync_ns: hour + 1, ..usual },
    ] {
        assert_eq!(with(timing), inconsistent(Inconsistency::Times), "{timing:?}");
    }
    let mut ssd = Profile::named("otf-ssd").unwrap();
    ssd.geometry.pages_per_block = 1024;
    let shown = u32::MAX / 1024 / THIN_FACTOR;
    assert!(ssd.clone().with_block_count(shown).is_ok());
    let too_many = ssd.with_block_count(shown + 1);
    assert_eq!(too_many, inconsistent(Inconsistency::PageCount));
}
