//! In-place appends: which of them a page takes, which a mount counts, and the states that a cut may leave.

use std::vec::Vec;

use flagstone_nand::{
    BlockIndex, Capabilities, Completion, Counters, Crashable, FaultPlan, Geometry, Nand,
    NandError, Persistence, PhysicalPage, Profile, ProgramPart, ReadPart, SimNand, SimSsd,
};

use super::cuts::{Depth, Exploration, explore_from};
use super::devices::{options, profile, sim, spare_profile};
use super::harness::{Pair, REGION, content};
use super::script::Draw;
use crate::runs::{self, ChangeForm};
use crate::{
    AppendLack, Check, LogicalPage, Lsn, NoOwner, PageInfo, Space, SpaceError, SpaceOptions,
    WriteTag, append_lack,
};

const PAGE: LogicalPage = LogicalPage(3);

/// A tiny chip with four code words a page, three of which may take appends.
fn fine_profile() -> Profile {
    let mut profile = profile("tiny");
    profile.capabilities.code_word.data_size = 128;
    profile
}

fn tag(slots: u8) -> WriteTag {
    WriteTag { append_slots: slots, ..WriteTag::data(Lsn(1), REGION) }
}

/// A space with one page that takes `slots` appends, its identity and its content.
fn page_with(slots: u8) -> (Space<SimNand>, PageInfo, Vec<u8>) {
    let mut space = Space::format(sim(&fine_profile()), &options()).unwrap();
    let image = content(PAGE, 1, space.payload_size_with(slots));
    space.ensure_room(1, &mut NoOwner).unwrap();
    let info = space.write(PAGE, &image, &tag(slots)).unwrap();
    (space, info, image)
}

/// Sets byte `at` of the page by an append.
fn poke(
    space: &mut Space<SimNand>,
    info: &PageInfo,
    image: &mut [u8],
    at: usize,
    value: u8,
) -> Option<PageInfo> {
    let old = image.to_vec();
    image[at] = value;
    let form = ChangeForm::Pairs { bytes_max: 4 };
    let records = runs::encode(&old, image, form, 1, space.append_size_max()).unwrap();
    let lsn = Lsn(info.lsn.0 + 1);
    space.append(PAGE, info, lsn, form, &records).unwrap()
}

fn read(space: &mut Space<SimNand>) -> (PageInfo, Vec<u8>) {
    let mut bytes = Vec::new();
    let info = space.read(PAGE, &mut bytes).unwrap();
    (info, bytes)
}

#[test]
fn appends_change_the_page_without_another_page() {
    let (mut space, mut info, mut image) = page_with(3);
    let before = space.device().counters();
    for (at, appends) in [(0, 1), (80, 2), (5, 3)] {
        info = poke(&mut space, &info, &mut image, at, 0x5A).unwrap();
        assert_eq!((info.appends, info.lsn), (appends, Lsn(1 + u64::from(appends))));
        assert_eq!(read(&mut space), (info, image.clone()));
    }
    let spent = space.device().counters();
    assert_eq!(spent.page_programs, before.page_programs, "no whole page was programmed");
    assert_eq!(spent.partial_programs, before.partial_programs + 3);
    assert_eq!(poke(&mut space, &info, &mut image, 7, 1), None, "all slots are taken");
    assert_eq!(space.stats().delta_appends, 3);
}

#[test]
fn a_mount_counts_what_a_checkpoint_counted() {
    let (mut space, info, mut image) = page_with(3);
    let info = poke(&mut space, &info, &mut image, 0, 0x5A).unwrap();
    space.checkpoint(&[]).unwrap();
    let durable = image.clone();
    poke(&mut space, &info, &mut image, 1, 0x5B).unwrap();
    let (mut space, _) = Space::mount(space.into_device()).unwrap();
    let (found, bytes) = read(&mut space);
    assert_eq!(
        (found, bytes),
        (info, durable.clone()),
        "the second one is the log's to bring back"
    );
    assert_eq!(poke(&mut space, &found, &mut image, 2, 1), None, "an older session's page");
    assert_eq!(read(&mut space).1, durable);
}

#[test]
fn an_append_to_a_page_that_changed_meanwhile_is_refused() {
    let (mut space, info, mut image) = page_with(3);
    let appended = poke(&mut space, &info, &mut image, 0, 0x5A).unwrap();
    assert_eq!(poke(&mut space, &info, &mut image, 1, 1), None, "another append came first");
    image[1] = 1;
    let written = space.write(PAGE, &image, &tag(3)).unwrap();
    assert_eq!(poke(&mut space, &appended, &mut image, 2, 1), None, "it stands elsewhere now");
    assert!(poke(&mut space, &written, &mut image, 2, 2).is_some());
    let elsewhere = PageInfo::elsewhere(written.version, Lsn(1), REGION);
    assert_eq!(poke(&mut space, &elsewhere, &mut image, 3, 1), None);
}

#[test]
fn a_pinned_version_does_not_change() {
    let (mut space, info, mut image) = page_with(3);
    let info = poke(&mut space, &info, &mut image, 0, 0x5A).unwrap();
    let pinned = image.clone();
    let pin = space.pin(PAGE).unwrap();
    assert_eq!(poke(&mut space, &info, &mut image, 1, 1), None);
    space.write(PAGE, &content(PAGE, 2, 80), &tag(3)).unwrap();
    for page in 20..60 {
        space.ensure_room(1, &mut NoOwner).unwrap();
        space.write(LogicalPage(page % 24 + 20), b"fill", &tag(0)).unwrap();
    }
    let mut bytes = Vec::new();
    space.read_pinned(pin, &mut bytes).unwrap();
    assert_eq!(bytes, pinned, "with the append that it had");
}

#[test]
fn a_move_folds_the_appends_in() {
    let (mut space, info, mut image) = page_with(2);
    let info = poke(&mut space, &info, &mut image, 0, 0x5A).unwrap();
    let (mut draw, pages) = (Draw(1), space.capacity_pages() - 20);
    let mut turn = 0;
    let moved = loop {
        space.ensure_room(1, &mut NoOwner).unwrap();
        let page = LogicalPage(10 + draw.below(pages.into()) as u32);
        space.write(page, b"other", &tag(0)).unwrap();
        turn += 1;
        assert!(turn < 5000, "the page is never moved");
        let (found, bytes) = read(&mut space);
        assert_eq!(bytes, image);
        if found.appends == 0 {
            break found;
        }
    };
    assert_eq!((moved.version, moved.lsn), (info.version, info.lsn), "rule D6");
    let info = poke(&mut space, &moved, &mut image, 1, 0x5B).unwrap();
    assert_eq!((info.appends, read(&mut space).1), (1, image), "its slots are free again");
}

#[test]
fn damage_in_an_append_that_counts_is_reported_and_in_any_other_ignored() {
    let (mut space, info, mut image) = page_with(3);
    let info = poke(&mut space, &info, &mut image, 0, 0x5A).unwrap();
    space.checkpoint(&[]).unwrap();
    let durable = image.clone();
    poke(&mut space, &info, &mut image, 1, 0x5B).unwrap();
    let mut device = space.into_device();
    let page = device.geometry().page_from_number(info.at).unwrap();
    let strength = device.capabilities().code_word.strength;
    device.flip_bits(page, 2, strength + 1);
    let (mut space, _) = Space::mount(device.clone()).unwrap();
    assert_eq!(read(&mut space).1, durable, "the second append does not count");
    device.flip_bits(page, 1, strength);
    let (mut space, _) = Space::mount(device.clone()).unwrap();
    assert_eq!(read(&mut space).1, durable, "the ECC repairs the first one");
    device.flip_bits(page, 1, 1);
    let (mut space, _) = Space::mount(device).unwrap();
    let failed = space.read(PAGE, &mut Vec::new());
    assert_eq!(failed, Err(SpaceError::Corrupt { page, check: Check::Ecc }));
}

#[test]
fn without_a_record_whole_appends_count() {
    let (mut space, info, mut image) = page_with(3);
    space.checkpoint(&[]).unwrap();
    poke(&mut space, &info, &mut image, 0, 0x5A).unwrap();
    let ring = space.ring.halves.clone();
    let mut device = space.into_device();
    for block in ring.iter().flat_map(|half| &half.blocks) {
        device.erase(flagstone_nand::BlockIndex(*block)).unwrap();
    }
    let (mut space, report) = Space::mount(device).unwrap();
    assert!(report.full_scan);
    assert_eq!(read(&mut space).1, image);
}

#[test]
fn devices_without_the_means_refuse() {
    let lack = |name: &str, slots| {
        let profile = Profile::named(name).unwrap();
        append_lack(&profile.geometry, &profile.capabilities, slots)
    };
    assert_eq!(lack("slc-2k", 3), None);
    assert_eq!(lack("slc-2k", 4), Some(AppendLack::PartialPrograms));
    assert_eq!(lack("openssd-jasmine-pslc", 2), None);
    assert_eq!(lack("openssd-jasmine-odd-mlc", 2), None);
    assert_eq!(lack("openssd-jasmine-mlc", 2), Some(AppendLack::Cells));
    assert_eq!(lack("tlc-3d", 1), Some(AppendLack::Cells));
    assert_eq!(lack("segment-file", 1), Some(AppendLack::Cells));
    assert_eq!(lack("spi-nand", 1), Some(AppendLack::PartialPrograms));
    assert_eq!(lack("tiny-risk", 1), Some(AppendLack::IsolatedCuts));
    assert_eq!(lack("tiny", 2), Some(AppendLack::CodeWords));
    let mut space = Space::format(sim(&profile("tiny-risk")), &options()).unwrap();
    let refused = space.write(PAGE, b"x", &tag(1));
    assert_eq!(refused, Err(SpaceError::Appends(AppendLack::IsolatedCuts)));
}

/// Goal: the upper pages of pairs take no appends, the lower ones do.
#[test]
fn of_paired_pages_the_lower_ones_take_appends() {
    let mut profile = Profile::named("tiny-mlc").unwrap().with_block_count(40).unwrap();
    let distance = match profile.capabilities.cell_mode {
        flagstone_nand::CellMode::Mlc { distance } => distance,
        mode => panic!("{mode:?}"),
    };
    profile.capabilities.cell_mode = flagstone_nand::CellMode::OddMlc { distance };
    profile.capabilities.partial_cut = flagstone_nand::PartialCut::Isolated;
    (profile.capabilities.programs_data, profile.capabilities.programs_spare) = (4, 4);
    profile.capabilities.reprogram_order = flagstone_nand::ProgramOrder::Any;
    let mut space = Space::format(sim(&profile), &options()).unwrap();
    let mut taken = Vec::new();
    for _ in 0..6 {
        space.ensure_room(1, &mut NoOwner).unwrap();
        let mut image = content(PAGE, 1, space.payload_size_with(1));
        let info = space.write(PAGE, &image, &tag(1)).unwrap();
        let page = space.device().geometry().page_from_number(info.at).unwrap();
        let index = space.device().geometry().index_in_block(page);
        let role = profile.capabilities.cell_role(index, profile.geometry.pages_per_block);
        let is_lower = !matches!(role, flagstone_nand::CellRole::Msb { .. });
        assert_eq!(poke(&mut space, &info, &mut image, 0, 9).is_some(), is_lower, "{index}");
        taken.push(is_lower);
    }
    assert!(taken.contains(&true) && taken.contains(&false), "{taken:?}");
}

/// Goal: a block whose page does not take an append takes no further writes, open or not, and loses nothing.
#[test]
fn a_failed_append_retires_the_open_block() {
    let (mut space, info, mut image) = page_with(3);
    let written = image.clone();
    let next = space.device().operation_count();
    space.device_mut().set_plan(FaultPlan::failure(1, next, Persistence::ForEver));
    assert_eq!(
        poke(&mut space, &info, &mut image, 0, 0x5A),
        None,
        "it has to be written as a whole"
    );
    let geometry = space.device().geometry();
    let block = geometry.block_of(geometry.page_from_number(info.at).unwrap());
    for page in 10..40 {
        space.ensure_room(1, &mut NoOwner).unwrap();
        let other = space.write(LogicalPage(page), b"other", &tag(3)).unwrap();
        let found = geometry.block_of(geometry.page_from_number(other.at).unwrap());
        assert_ne!(found, block, "nothing more goes there");
    }
    while space.background(&mut NoOwner).unwrap() {}
    assert!(space.device_mut().is_bad(block).unwrap());
    assert_eq!(read(&mut space).1, written);
    assert_eq!(space.verify().unwrap(), []);
}

/// Goal: an append names the version that it changes, even where the unit is in use again (D6).
#[test]
fn an_append_to_an_earlier_life_of_the_block_is_refused() {
    let (mut space, info, mut image) = page_with(3);
    let (mut draw, mut turn) = (Draw(2), 0);
    let again = loop {
        space.ensure_room(2, &mut NoOwner).unwrap();
        let now = space.write(PAGE, &image, &tag(3)).unwrap();
        if now.at == info.at {
            break now;
        }
        space.write(LogicalPage(20 + draw.below(20) as u32), b"other", &tag(0)).unwrap();
        turn += 1;
        assert!(turn < 20_000, "the unit is never used again");
    };
    assert_eq!(poke(&mut space, &info, &mut image, 0, 0x5A), None);
    image[0] = 1;
    assert!(poke(&mut space, &again, &mut image, 0, 0x5B).is_some());
    assert_eq!(read(&mut space).1, image);
}

/// Goal: an append and an open group do not overwrite each other's change.
#[test]
fn a_page_of_an_open_group_takes_no_append() {
    let (mut space, info, mut image) = page_with(3);
    let group = space.new_group().unwrap();
    let later = content(PAGE, 2, space.payload_size_with(3));
    space.write_in_group(group, PAGE, &later, &tag(3)).unwrap();
    assert_eq!(poke(&mut space, &info, &mut image, 0, 0x5A), None);
    space.commit_group(group).unwrap();
    assert_eq!(read(&mut space).1, later);
}

/// Goal: without a record an append of several records counts as a whole or not at all.
#[test]
fn half_an_append_does_not_count_without_a_record() {
    let (mut space, info, image) = page_with(3);
    space.checkpoint(&[]).unwrap();
    let mut new = image.clone();
    new[..6].fill(0x5A);
    let form = ChangeForm::Pairs { bytes_max: 4 };
    let records = runs::encode(&image, &new, form, 2, space.append_size_max()).unwrap();
    assert_eq!(records.len(), 2);
    space.append(PAGE, &info, Lsn(2), form, &records).unwrap().unwrap();
    assert_eq!(read(&mut space).1, new);
    let ring = space.ring.halves.clone();
    let mut device = space.into_device();
    for block in ring.iter().flat_map(|half| &half.blocks) {
        device.erase(flagstone_nand::BlockIndex(*block)).unwrap();
    }
    let whole = Space::mount(device.clone()).unwrap().0;
    assert_eq!(read(&mut { whole }).1, new);
    let page = device.geometry().page_from_number(info.at).unwrap();
    let strength = device.capabilities().code_word.strength;
    device.flip_bits(page, 2, strength + 1);
    let half = Space::mount(device).unwrap().0;
    assert_eq!(read(&mut { half }).1, image);
}

/// Goal: a cut at any operation, appends included, leaves a state that the model allows. Method: scripts
/// mostly of small changes, every ending of every operation, twice for some.
#[test]
fn every_cut_among_appends_recovers() {
    let mut spare = spare_profile();
    spare.capabilities.code_word.data_size = 128;
    let what = Exploration { seed: 3, warm_up: 150, steps: 60, depth: Depth::One };
    for (profile, slots) in [(profile("tiny"), 1), (fine_profile(), 3), (spare.clone(), 3)] {
        let pair = Pair::format(sim(&profile), &options()).with_slots(slots);
        let states = explore_from(pair, &what);
        assert!(states > 300, "{} {slots}: {states}", profile.name);
    }
    let wide = fine_profile().with_block_count(40).unwrap();
    let two_parts = SpaceOptions { parts: 2, ..options() };
    explore_from(Pair::format(sim(&wide), &two_parts).with_slots(2), &what);
    let twice = Exploration { seed: 4, warm_up: 150, steps: 6, depth: Depth::Two };
    explore_from(Pair::format(sim(&spare), &options()).with_slots(3), &twice);
}

/// A drive that takes only an address and a whole page: it has no command for a native append.
#[derive(Debug)]
struct WholePages(SimSsd);

impl Nand for WholePages {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn read(&mut self, page: PhysicalPage, part: ReadPart<'_>) -> Result<Completion, NandError> {
        self.0.read(page, part)
    }

    fn program(
        &mut self,
        page: PhysicalPage,
        part: ProgramPart<'_>,
    ) -> Result<Completion, NandError> {
        let page_size = self.0.geometry().page_size as usize;
        assert_eq!((part.data_offset, part.data.len()), (0, page_size), "part of {page:?}");
        self.0.program(page, part)
    }

    fn erase(&mut self, block: BlockIndex) -> Result<Completion, NandError> {
        self.0.erase(block)
    }

    fn trim(&mut self, first: PhysicalPage, count: u32) {
        self.0.trim(first, count);
    }

    fn is_bad(&mut self, block: BlockIndex) -> Result<bool, NandError> {
        self.0.is_bad(block)
    }

    fn mark_bad(&mut self, block: BlockIndex) -> Result<(), NandError> {
        self.0.mark_bad(block)
    }

    fn sync(&mut self) -> Result<Completion, NandError> {
        self.0.sync()
    }

    fn erase_count(&self, block: BlockIndex) -> u32 {
        self.0.erase_count(block)
    }

    fn counters(&self) -> Counters {
        self.0.counters()
    }

    fn reset_counters(&mut self) {
        self.0.reset_counters();
    }

    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    fn advance_to(&mut self, now_ns: u64) {
        self.0.advance_to(now_ns);
    }
}

/// Pages on a drive with room for half as many more.
const PAGES: u32 = 240;

/// Goal: A6. Method: appends, new versions and a mount on a drive that refuses parts of pages; its own
/// collection moves pages with appends.
#[test]
fn a_drive_appends_what_the_host_gives_it_as_whole_pages() {
    let mut profile = Profile::named("openssd-jasmine-pslc-ssd").unwrap();
    profile.geometry.page_size = 4096;
    profile.geometry.pages_per_block = 8;
    profile.geometry.die_count = 2;
    let profile = profile.with_block_count(48).unwrap();
    let drive = SimSsd::new(&profile, profile.translation.unwrap(), 5);
    assert_eq!(append_lack(&drive.geometry(), &drive.capabilities(), 3), None);
    let options = SpaceOptions { log_pages: 8, ..options() };
    let mut space = Space::format(WholePages(drive), &options).unwrap();
    let mut draw = Draw(7);
    let mut model: Vec<(PageInfo, Vec<u8>)> = Vec::new();
    for page in (0..PAGES).map(LogicalPage) {
        let image = content(page, 1, space.payload_size_with(3));
        space.ensure_room(1, &mut NoOwner).unwrap();
        model.push((space.write(page, &image, &tag(3)).unwrap(), image));
    }
    let mut appended = 0;
    for round in 2..5000_u64 {
        let number = draw.below(PAGES.into()) as usize;
        let (page, (info, image)) = (LogicalPage(number as u32), model[number].clone());
        let mut new = image.clone();
        new[draw.below(1000) as usize] = round as u8;
        let form = ChangeForm::Pairs { bytes_max: 4 };
        let records = runs::encode(&image, &new, form, 1, space.append_size_max()).unwrap();
        let lsn = Lsn(round);
        let done = match records.is_empty() {
            true => Some(info),
            false => space.append(page, &info, lsn, form, &records).unwrap(),
        };
        appended += u64::from(done.is_some() && !records.is_empty());
        let info = done.unwrap_or_else(|| {
            space.ensure_room(1, &mut NoOwner).unwrap();
            let tag = WriteTag { append_slots: 3, ..WriteTag::data(lsn, REGION) };
            space.write(page, &new, &tag).unwrap()
        });
        model[number] = (info, new);
    }
    space.checkpoint(&[]).unwrap();
    let counted = space.device().0.translation().unwrap();
    assert!(appended > 2500 && counted.gc_programs > 100, "{appended} appends, {counted:?}");
    assert_eq!(counted.appends, appended, "the chips took each of them in place");
    let (mut space, _) = Space::mount(space.into_device()).unwrap();
    for (page, (info, image)) in (0..PAGES).map(LogicalPage).zip(&model) {
        let mut bytes = Vec::new();
        let found = space.read(page, &mut bytes).unwrap();
        assert_eq!((found.version, found.appends, &bytes), (info.version, info.appends, image));
    }
}
