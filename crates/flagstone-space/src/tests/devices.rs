//! Small devices for the tests of the floor, and the options for their format.

use flagstone_nand::{Profile, SegmentFile, SimNand, SimSsd, SimStorage, Translation};

use crate::SpaceOptions;

pub(super) fn profile(name: &str) -> Profile {
    let profile = Profile::named(name).unwrap();
    // Paired cells cost reserves: half the log's pages, and the rest of a block at each sync.
    let blocks = if name == "tiny-mlc" { 40 } else { profile.geometry.block_count };
    profile.with_block_count(blocks).unwrap()
}

/// Tiny geometry with the spare area of `slc-2k`, so that metadata stand in the spare area.
pub(super) fn spare_profile() -> Profile {
    let mut profile = profile("tiny");
    profile.geometry.spare_size = 64;
    profile.capabilities.spare_raw = flagstone_nand::SpareRange { offset: 2, size: 38 };
    profile
}

pub(super) fn sim(profile: &Profile) -> SimNand {
    SimNand::new(profile, 1)
}

/// A small file with the page size of `tiny`, so that scripts fill it.
pub(super) fn file() -> SegmentFile<SimStorage> {
    let mut profile = profile("segment-file");
    profile.geometry.page_size = 512;
    profile.geometry.pages_per_block = 8;
    profile.geometry.block_count = 24;
    profile.capabilities.code_word.data_size = 512;
    let storage = SimStorage::new(profile.timing);
    SegmentFile::create(storage, &profile).unwrap()
}

/// The same as a file that grows from `blocks` blocks to `limit`, with the options for its format.
pub(super) fn growing_file(blocks: u32, limit: u32) -> (SegmentFile<SimStorage>, SpaceOptions) {
    let mut profile = profile("segment-file");
    profile.geometry.page_size = 512;
    profile.geometry.pages_per_block = 8;
    profile.geometry.block_count = limit;
    profile.capabilities.code_word.data_size = 512;
    let storage = SimStorage::new(profile.timing);
    let device = SegmentFile::create_growing(storage, &profile, blocks).unwrap();
    (device, SpaceOptions { grows: true, ..options() })
}

/// An SSD of chips like `tiny`, with so few blocks that it collects all the time.
pub(super) fn ssd(block_count: u32) -> SimSsd {
    let mut profile = profile("tiny").with_block_count(block_count).unwrap();
    profile.geometry.die_count = 2;
    let translation = Translation { reserve_percent: 7, in_place_appends: false, copy_back: true };
    SimSsd::new(&profile, translation, 1)
}

pub(super) fn options() -> SpaceOptions {
    SpaceOptions { log_pages: 14, ..SpaceOptions::default() }
}
