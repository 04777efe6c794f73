//! The SSD against a plain array of pages, its collection, its time and its power cuts.

use super::*;

/// Two dies of 12 blocks of 4 pages.
fn profile() -> Profile {
    let mut profile = Profile::named("otf-ssd").unwrap();
    profile.geometry.block_count = 24;
    profile.geometry.pages_per_block = 4;
    profile.geometry.die_count = 2;
    profile.geometry.page_size = 1024;
    profile.checked().unwrap()
}

const PLAIN: Translation =
    Translation { reserve_percent: 7, in_place_appends: false, copy_back: true };

fn ssd() -> SimSsd {
    SimSsd::new(&profile(), PLAIN, 1)
}

/// Two dies of 12 blocks of 8 pages of eight code words, in the mode of `name`.
fn appending(name: &str) -> SimSsd {
    let mut profile = Profile::named(name).unwrap();
    profile.geometry.block_count = 24;
    profile.geometry.pages_per_block = 8;
    profile.geometry.die_count = 2;
    profile.geometry.page_size = 4096;
    let profile = profile.checked().unwrap();
    SimSsd::new(&profile, profile.translation.unwrap(), 1)
}

/// A page of `body` code words of one fill, then code words of others, erased behind.
fn image(body: u8, fill: u8, appended: &[u8]) -> Vec<u8> {
    let words = (0..body).map(|_| fill).chain(appended.iter().copied());
    let mut data: Vec<u8> = words.flat_map(|fill| [fill; 512]).collect();
    data.resize(4096, 0xFF);
    data
}

fn put(ssd: &mut SimSsd, number: u32, data: &[u8]) -> Completion {
    let at = page(ssd, number);
    ssd.program(at, ProgramPart { data_offset: 0, data, spare_offset: 0, spare: &[] }).unwrap()
}

fn get(ssd: &mut SimSsd, number: u32) -> Vec<u8> {
    let at = page(ssd, number);
    let mut data = vec![0; 4096];
    let part = ReadPart { data_offset: 0, data: &mut data, spare_offset: 0, spare: &mut [] };
    ssd.read(at, part).unwrap();
    data
}

fn page(ssd: &SimSsd, number: u32) -> PhysicalPage {
    ssd.geometry().page_from_number(number).unwrap()
}

fn write(ssd: &mut SimSsd, number: u32, fill: u8) -> Result<Completion, NandError> {
    let at = page(ssd, number);
    let data = vec![fill; 1024];
    ssd.program(at, ProgramPart { data_offset: 0, data: &data, spare_offset: 0, spare: &[] })
}

fn read(ssd: &mut SimSsd, number: u32) -> Vec<u8> {
    let at = page(ssd, number);
    let mut data = vec![0; 1024];
    let part = ReadPart { data_offset: 0, data: &mut data, spare_offset: 0, spare: &mut [] };
    ssd.read(at, part).unwrap();
    data
}

/// Goal: F1 to F4 and H1 under collection. Method: random writes and trims at 80 % fill against an
/// array; every page is compared at the end, and in between after each trim.
#[test]
fn random_writes_and_trims_agree_with_an_array_of_pages() {
    let mut ssd = ssd();
    let count = ssd.capacity_pages() * 8 / 10;
    let mut model = vec![0xFF_u8; count as usize];
    let mut draw = Draw::new(3, 0);
    for round in 0..4000_u32 {
        let number = draw.below(count);
        if draw.below(8) == 0 {
            let at = page(&ssd, number);
            ssd.trim(at, 1);
            model[number as usize] = 0xFF;
            assert_eq!(read(&mut ssd, number), [0xFF; 1024]);
        } else {
            let fill = (round % 251) as u8;
            write(&mut ssd, number, fill).unwrap();
            model[number as usize] = fill;
        }
    }
    for number in 0..count {
        assert_eq!(read(&mut ssd, number), vec![model[number as usize]; 1024], "page {number}");
    }
    let live = model.iter().filter(|fill| **fill != 0xFF).count();
    assert_eq!(ssd.live_pages() as usize, live);
}

/// Goal: H5. Method: programs of the chips are the host's and the collection's, nothing else.
#[test]
fn every_program_of_the_chips_has_a_cause() {
    let mut ssd = ssd();
    let count = ssd.capacity_pages() * 9 / 10;
    let mut draw = Draw::new(5, 0);
    for number in (0..count).chain((0..2000).map(|_| draw.below(count))) {
        write(&mut ssd, number, 1).unwrap();
    }
    let (chips, causes) = (ssd.counters(), ssd.translation().unwrap());
    assert_eq!(causes.host_writes, u64::from(count) + 2000);
    assert_eq!(chips.page_programs, causes.host_writes + causes.gc_programs);
    assert_eq!(chips.page_reads, causes.gc_programs);
    assert_eq!(chips.block_erases, causes.erases);
    assert!(causes.gc_programs > 500, "{causes:?}: 90 % fill and no collection to speak of");
}

#[test]
fn pages_that_die_together_cost_no_move() {
    let mut ssd = ssd();
    let count = ssd.capacity_pages() / 2;
    for round in 0..20 {
        for number in 0..count {
            write(&mut ssd, number, round).unwrap();
        }
    }
    assert!(ssd.translation().unwrap().erases > 50);
    assert_eq!(ssd.translation().unwrap().gc_programs, 0);
}

/// Goal: H2. Method: the same updates in place, and to fresh addresses with trims.
#[test]
fn fresh_addresses_with_trims_cost_what_writing_in_place_costs() {
    let cost = |fresh: bool| {
        let mut ssd = ssd();
        let count = ssd.capacity_pages() * 8 / 10;
        let mut places: Vec<u32> = (0..count).collect();
        let mut free: alloc::collections::VecDeque<u32> =
            (count..ssd.geometry().page_count()).collect();
        let mut draw = Draw::new(7, 0);
        let updates = (0..count).chain((0..3000).map(|_| draw.below(count)));
        for logical in updates {
            let old = places[logical as usize];
            let new = if fresh { free.pop_front().unwrap() } else { old };
            write(&mut ssd, new, 1).unwrap();
            if fresh {
                let at = page(&ssd, old);
                ssd.trim(at, 1);
                free.push_back(old);
                places[logical as usize] = new;
            }
        }
        ssd.translation().unwrap().gc_programs
    };
    let (in_place, fresh) = (cost(false), cost(true));
    assert!(in_place > 500, "{in_place}: no collection to compare");
    assert!(fresh.abs_diff(in_place) * 20 <= in_place, "{fresh} against {in_place}");
}

#[test]
fn a_full_device_refuses_new_pages_and_takes_old_ones() {
    let mut ssd = ssd();
    let capacity = ssd.capacity_pages();
    for number in 0..capacity {
        write(&mut ssd, number, 1).unwrap();
    }
    assert_eq!(write(&mut ssd, capacity, 1), Err(NandError::Host { errno: ENOSPC }));
    for number in 0..capacity {
        write(&mut ssd, number, 2).unwrap();
    }
    assert_eq!(read(&mut ssd, capacity - 1), [2; 1024]);
}

#[test]
fn dies_work_in_parallel_and_collection_takes_time() {
    let mut ssd = ssd();
    let timing = profile().timing;
    let one = timing.program_ns + timing.transfer_page_ns;
    let ends: Vec<u64> = (0..4).map(|n| write(&mut ssd, n, 1).unwrap().end_ns).collect();
    assert_eq!(ends, [one, one, 2 * one, 2 * one]);
    assert_eq!(ssd.now_ns(), 0, "writes are posted");
    read(&mut ssd, 0);
    assert_eq!(ssd.now_ns(), 2 * one + timing.read_ns + timing.transfer_page_ns);
    let before = ssd.now_ns();
    read(&mut ssd, 80);
    assert_eq!(ssd.now_ns(), before, "a page that holds nothing is not read");
}

/// Goal: H1. Method: a write is cut with each ending it may have.
#[test]
fn a_cut_leaves_the_old_page_or_the_new_one() {
    let kind = OperationKind::Program { code_words: 2, spare: false, again: false, paired: false };
    let endings = Ending::applicable(kind, &ssd().capabilities());
    assert_eq!(endings, [Ending::Untouched, Ending::Complete]);
    for ending in endings {
        let mut ssd = ssd();
        write(&mut ssd, 7, 1).unwrap();
        ssd.set_plan(FaultPlan::power_cut(1, 1, ending));
        assert_eq!(write(&mut ssd, 7, 2), Err(NandError::PowerOff));
        assert_eq!(write(&mut ssd, 7, 3), Err(NandError::PowerOff));
        ssd.power_cycle();
        let expected = if ending == Ending::Complete { 2 } else { 1 };
        assert_eq!(read(&mut ssd, 7), [expected; 1024]);
    }
}

#[test]
fn part_of_a_page_keeps_the_rest() {
    let mut ssd = ssd();
    write(&mut ssd, 3, 1).unwrap();
    let at = page(&ssd, 3);
    let part = ProgramPart { data_offset: 512, data: &[2; 512], spare_offset: 0, spare: &[] };
    ssd.program(at, part).unwrap();
    assert_eq!(read(&mut ssd, 3), [[1; 512], [2; 512]].concat());
    assert_eq!(ssd.counters().page_reads, 1, "the host's cache holds the page");
    let odd = ProgramPart { data_offset: 0, data: &[2; 100], spare_offset: 0, spare: &[] };
    assert!(matches!(ssd.program(at, odd), Err(NandError::Rule { .. })));
}

#[test]
fn a_used_drive_has_no_fresh_block_and_counts_from_zero() {
    let mut ssd = ssd();
    ssd.precondition(1).unwrap();
    assert_eq!((ssd.live_pages(), ssd.counters()), (0, Counters::default()));
    assert_eq!((ssd.translation().unwrap(), ssd.now_ns()), (SsdCounters::default(), 0));
    for number in 0..20 {
        write(&mut ssd, number, 1).unwrap();
    }
    assert!(ssd.translation().unwrap().erases > 0, "a fresh drive would not collect yet");
}

#[test]
fn an_erase_trims_the_block() {
    let mut ssd = ssd();
    for number in 0..16 {
        write(&mut ssd, number, 1).unwrap();
    }
    ssd.erase(BlockIndex(0)).unwrap();
    assert_eq!((ssd.live_pages(), ssd.translation().unwrap().trims), (0, 16));
    assert_eq!(read(&mut ssd, 5), [0xFF; 1024]);
    assert_eq!(ssd.counters().block_erases, 0, "nothing wears");
}

/// Goal: H6. Method: pages of a drive whose chips take four programs, written again and again.
#[test]
fn an_overwrite_that_fills_erased_code_words_stays_where_it_is() {
    let mut ssd = appending("openssd-jasmine-pslc-ssd");
    let versions: Vec<Vec<u8>> =
        (0..=5).map(|count| image(2, 7, &[1, 2, 3, 4, 5][..count])).collect();
    let mut places = Vec::new();
    for version in &versions {
        put(&mut ssd, 3, version);
        assert_eq!(get(&mut ssd, 3), *version);
        places.push(ssd.ftl.lookup(3));
    }
    // One program and three more; then a new page, which takes the last word in its turn.
    assert!(places[..4].iter().all(|place| *place == places[0]), "{places:?}");
    assert_ne!(places[4], places[0]);
    assert_eq!(places[5], places[4]);
    assert_eq!(ssd.translation().unwrap().appends, 4);
    assert_eq!(ssd.translation().unwrap().host_writes, 6);
}

#[test]
fn an_overwrite_that_changes_a_programmed_code_word_goes_to_a_new_page() {
    let mut ssd = appending("openssd-jasmine-pslc-ssd");
    for (old, new) in [
        (image(2, 7, &[]), image(2, 6, &[])),
        (image(2, 7, &[1]), image(2, 7, &[0])),
        (image(2, 7, &[1]), image(2, 6, &[1, 2])),
        (image(3, 7, &[]), image(2, 7, &[])),
    ] {
        ssd.trim(page(&ssd, 3), 1);
        put(&mut ssd, 3, &old);
        let place = ssd.ftl.lookup(3);
        put(&mut ssd, 3, &new);
        assert_eq!(get(&mut ssd, 3), new);
        assert_ne!(ssd.ftl.lookup(3), place);
    }
    assert_eq!(ssd.translation().unwrap().appends, 0);
}

/// Goal: MSB pages take no second program, and the host does not see which these are. Method: every
/// page of a block is appended to.
#[test]
fn on_odd_mlc_pages_on_msb_cells_move_and_others_stay() {
    let mut ssd = appending("openssd-jasmine-odd-mlc-ssd");
    for number in 0..16 {
        put(&mut ssd, number, &image(2, 7, &[]));
    }
    for number in 0..16 {
        let place = ssd.ftl.lookup(number).unwrap();
        put(&mut ssd, number, &image(2, 7, &[9]));
        assert_eq!(get(&mut ssd, number), image(2, 7, &[9]));
        let stays = ssd.ftl.lookup(number) == Some(place);
        assert_eq!(stays, ssd.page_type(place) == PageType::Lower, "page {place} of the chips");
    }
    assert_eq!(ssd.translation().unwrap().appends, 8);
}

/// Goal: H1 and F1 to F4 with appends. Method: random overwrites, appends and trims at 80 % fill
/// against an array.
#[test]
fn appends_and_overwrites_agree_with_an_array_of_pages() {
    for name in ["openssd-jasmine-pslc-ssd", "openssd-jasmine-odd-mlc-ssd"] {
        let mut ssd = appending(name);
        let count = ssd.capacity_pages() * 8 / 10;
        let erased = vec![0xFF; 4096];
        let mut model = vec![erased.clone(); count as usize];
        let mut draw = Draw::new(3, 0);
        for round in 0..6000_u32 {
            let number = draw.below(count);
            let page_now = &mut model[number as usize];
            let used = without_erased_end(page_now, 512).len();
            let fill = (round % 251) as u8;
            match draw.below(8) {
                0 => {
                    ssd.trim(page(&ssd, number), 1);
                    page_now.clone_from(&erased);
                    continue;
                }
                1..=4 if used < 4096 => page_now[used..used + 512].fill(fill),
                _ => *page_now = image(3, fill, &[]),
            }
            put(&mut ssd, number, &model[number as usize]);
        }
        for number in 0..count {
            assert_eq!(get(&mut ssd, number), model[number as usize], "{name}, page {number}");
        }
        let counted = ssd.translation().unwrap();
        assert!(counted.appends > 500 && counted.gc_programs > 300, "{name}: {counted:?}");
    }
}

#[test]
fn a_cut_leaves_the_page_without_the_append_or_with_it() {
    for ending in [Ending::Untouched, Ending::Complete] {
        let mut ssd = appending("openssd-jasmine-pslc-ssd");
        put(&mut ssd, 7, &image(2, 1, &[]));
        ssd.set_plan(FaultPlan::power_cut(1, 1, ending));
        let (at, data) = (page(&ssd, 7), image(2, 1, &[5]));
        let part = ProgramPart { data_offset: 0, data: &data, spare_offset: 0, spare: &[] };
        assert_eq!(ssd.program(at, part), Err(NandError::PowerOff));
        ssd.power_cycle();
        let expected = image(2, 1, if ending == Ending::Complete { &[5] } else { &[] });
        assert_eq!(get(&mut ssd, 7), expected);
    }
}

#[test]
fn an_append_takes_a_comparison_and_a_program() {
    let mut ssd = appending("openssd-jasmine-pslc-ssd");
    let timing = Profile::named("openssd-jasmine-pslc-ssd").unwrap().timing;
    let first = put(&mut ssd, 0, &image(2, 1, &[])).end_ns;
    let second = put(&mut ssd, 0, &image(2, 1, &[4])).end_ns;
    assert_eq!(first, timing.program_ns + timing.transfer_page_ns);
    let append_ns = timing.read_ns + timing.partial_program_ns + timing.transfer_page_ns;
    assert_eq!(second - first, append_ns);
}
