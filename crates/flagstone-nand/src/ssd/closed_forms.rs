//! Latencies of the drive `disksim-ssd` that follow from its profile on paper.
//!
//! Method of all tests: a formula over the figures of the profile, in its comment, against the virtual
//! clock, to the nanosecond. In the formulas `r` reads a page from the cells, `w` programs it, `e` erases
//! a block, `x` takes a page over the pins of an element, `l` over the host's link.

use super::*;

/// Read of a page from the cells: 25 us.
const R: u64 = 25_000;
/// Program: 200 us.
const W: u64 = 200_000;
/// Erase: 1.5 ms.
const E: u64 = 1_500_000;
/// Transfer over the pins: 8 sectors of 528 bytes at 25 ns a byte.
const X: u64 = 8 * 528 * 25;
/// Transfer over the link: 8 sectors of 238.4 ns, in whole nanoseconds (rule T1).
const L: u64 = 8 * 2384 / 10;

/// Elements of the drive.
const ELEMENTS: u32 = 8;
/// Pages of a block.
const PAGES: u32 = 64;

fn profile() -> Profile {
    Profile::named("disksim-ssd").unwrap().with_block_count(ELEMENTS * 6).unwrap()
}

fn drive() -> SimSsd {
    made(&profile())
}

fn made(profile: &Profile) -> SimSsd {
    SimSsd::new(profile, profile.translation.unwrap(), 1)
}

/// Writes page `number` at `now_ns`; when it is on the chips.
fn write_at(ssd: &mut SimSsd, now_ns: u64, number: u32) -> u64 {
    ssd.resume_at(now_ns);
    let page = ssd.geometry().page_from_number(number).unwrap();
    let data = [7; 4096];
    let part = ProgramPart { data_offset: 0, data: &data, spare_offset: 0, spare: &[] };
    ssd.program(page, part).unwrap().end_ns
}

/// Reads page `number` at `now_ns`; when the host has it.
fn read_at(ssd: &mut SimSsd, now_ns: u64, number: u32) -> u64 {
    ssd.resume_at(now_ns);
    let page = ssd.geometry().page_from_number(number).unwrap();
    let mut data = [0; 4096];
    let part = ReadPart { data_offset: 0, data: &mut data, spare_offset: 0, spare: &mut [] };
    ssd.read(page, part).unwrap().end_ns
}

/// The time at which everything so far is done.
fn rest(ssd: &mut SimSsd) -> u64 {
    ssd.sync().unwrap().end_ns
}

#[test]
fn the_profile_has_the_figures_of_the_formulas() {
    let Timing { read_ns, program_ns, erase_ns, transfer_page_ns, host_page_ns, .. } =
        profile().timing;
    assert_eq!([read_ns, program_ns, erase_ns, transfer_page_ns, host_page_ns], [R, W, E, X, L]);
}

/// `r + x + l`: 132.5 us, where DiskSim's validation has a mean of 132 us for sequential reads.
#[test]
fn a_lone_read_takes_cells_pins_and_link() {
    let mut ssd = drive();
    write_at(&mut ssd, 0, 3);
    let idle_ns = rest(&mut ssd);
    assert_eq!(read_at(&mut ssd, idle_ns, 3) - idle_ns, R + X + L);
    assert_eq!(R + X + L, 132_507);
}

/// `l + x + w`: 307.5 us, where DiskSim's validation has a mean of 310 us with summary pages.
#[test]
fn a_lone_write_takes_link_pins_and_cells() {
    let mut ssd = drive();
    assert_eq!(write_at(&mut ssd, 0, 3), L + X + W);
    assert_eq!(L + X + W, 307_507);
}

/// Requests at one element are served one after the other, cells and pins: the read of number `k`
/// ends at `k (r + x) + l`.
#[test]
fn reads_queued_on_one_element_wait_for_each_other() {
    let mut ssd = drive();
    for number in 0..ELEMENTS * 4 {
        write_at(&mut ssd, 0, number);
    }
    let idle_ns = rest(&mut ssd);
    // Pages go to the elements in turn, so these are on one of them.
    for k in 1..=4 {
        let end_ns = read_at(&mut ssd, idle_ns, (k - 1) * ELEMENTS);
        assert_eq!(end_ns - idle_ns, u64::from(k) * (R + X) + L, "read {k}");
    }
}

/// Elements work side by side and each has pins of its own; the link takes one page at a time. With
/// `n = 8 m` reads, the `k`-th of round `i` ends at `i (r + x) + k l`, for `8 l < r + x`.
#[test]
fn reads_spread_over_all_elements_share_nothing_but_the_link() {
    let mut ssd = drive();
    for number in 0..ELEMENTS * 3 {
        write_at(&mut ssd, 0, number);
    }
    let idle_ns = rest(&mut ssd);
    assert!(u64::from(ELEMENTS) * L < R + X, "the link keeps up");
    for number in 0..ELEMENTS * 3 {
        let (round, k) = (u64::from(number / ELEMENTS + 1), u64::from(number % ELEMENTS + 1));
        let end_ns = read_at(&mut ssd, idle_ns, number);
        assert_eq!(end_ns - idle_ns, round * (R + X) + k * L, "read {number}");
    }
}

/// On one bus for all elements (a gang) the transfers come one after the other: the `k`-th of `n <= 8`
/// reads ends at `r + k x + l`, the `k`-th write at `l + k x + w`.
#[test]
fn elements_that_share_pins_take_turns_on_them() {
    let mut gang = profile();
    gang.timing.channel_count = 1;
    let mut ssd = made(&gang);
    for k in 1..=ELEMENTS {
        assert_eq!(write_at(&mut ssd, 0, k - 1), L + u64::from(k) * X + W, "write {k}");
    }
    let idle_ns = rest(&mut ssd);
    for k in 1..=ELEMENTS {
        let end_ns = read_at(&mut ssd, idle_ns, k - 1);
        assert_eq!(end_ns - idle_ns, R + u64::from(k) * X + L, "read {k}");
    }
}

/// The link takes one page at a time, then the elements work side by side: the `k`-th of `n <= 8` writes
/// ends at `k l + x + w`.
#[test]
fn writes_spread_over_all_elements_share_nothing_but_the_link() {
    let mut ssd = drive();
    for k in 1..=ELEMENTS {
        assert_eq!(write_at(&mut ssd, 0, k - 1), u64::from(k) * L + X + W, "write {k}");
    }
}

/// A drive on which every closed block holds `cold` pages that are never written again, and whose other
/// pages are dead by the time they are looked at: all of the `6 - 2` blocks of an element that hold data.
///
/// The host rewrites `hot` pages, in order; their number is the second value.
fn steady(profile: &Profile, cold: u32) -> (SimSsd, u32) {
    let mut ssd = made(profile);
    let hot = ELEMENTS * (PAGES - cold);
    let mut next_cold = hot;
    for _ in 0..5 {
        for _ in 0..ELEMENTS * cold {
            write_at(&mut ssd, 0, next_cold);
            next_cold += 1;
        }
        for number in 0..hot {
            write_at(&mut ssd, 0, number);
        }
    }
    (ssd, hot)
}

/// Time of `rounds` times all hot pages of [`steady`], and the pages moved meanwhile.
fn rewrite(ssd: &mut SimSsd, hot: u32, rounds: u32) -> (u64, u64) {
    let begun_ns = rest(ssd);
    let moved = ssd.translation().unwrap().gc_programs;
    for number in (0..rounds).flat_map(|_| 0..hot) {
        write_at(ssd, begun_ns, number);
    }
    (rest(ssd) - begun_ns, ssd.translation().unwrap().gc_programs - moved)
}

/// A victim with `v` valid pages costs `v (r + w) + e` and makes room for `64 - v` writes, so that a
/// steady write takes `x + w + (v (r + w) + e) / (64 - v)` of its element.
#[test]
fn a_steady_write_carries_its_share_of_the_collection() {
    const ROUNDS: u32 = 20;
    for valid in [0, 1, 16, 32, 48] {
        let (mut ssd, hot) = steady(&profile(), valid);
        let (elapsed_ns, moved) = rewrite(&mut ssd, hot, ROUNDS);
        assert_eq!(moved, u64::from(ROUNDS * ELEMENTS * valid), "{valid} valid pages a victim");
        let victim_ns = u64::from(valid) * (R + W) + E;
        let writes_ns = u64::from(PAGES - valid) * (X + W);
        assert_eq!(elapsed_ns, u64::from(ROUNDS) * (victim_ns + writes_ns), "{valid} valid");
    }
}

/// Copy-back takes `r + w` a page, a copy over the pins `r + 2 x + w`; all else stays.
#[test]
fn a_copy_over_the_pins_takes_two_transfers_more() {
    const VALID: u32 = 16;
    assert_eq!([R + W, R + 2 * X + W], [225_000, 436_200]);
    let mut over_the_pins = profile();
    over_the_pins.translation.as_mut().unwrap().copy_back = false;
    let times = [profile(), over_the_pins].map(|profile| {
        let (mut ssd, hot) = steady(&profile, VALID);
        rewrite(&mut ssd, hot, 1).0
    });
    assert_eq!(times[1] - times[0], u64::from(VALID) * 2 * X);
}

/// An erase takes `e`, on the chips as in a collection with nothing to move.
#[test]
fn an_erase_takes_neither_pins_nor_link() {
    let mut chips = SimNand::new(&profile(), 1);
    assert_eq!(chips.erase(BlockIndex(0)).unwrap().end_ns, E);
    assert_eq!(chips.erase(BlockIndex(ELEMENTS)).unwrap().end_ns, 2 * E, "the same element");
    assert_eq!(chips.erase(BlockIndex(1)).unwrap().end_ns, E, "another one");
}
