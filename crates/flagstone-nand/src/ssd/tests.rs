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

fn ssd() -> SimSsd {
    SimSsd::new(&profile(), 7, 1)
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
            ssd.trim(at);
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
                ssd.trim(at);
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
