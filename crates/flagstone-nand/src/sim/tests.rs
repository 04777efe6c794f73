//! Goal: the simulated chip keeps the rules, its times and its faults. Method: small scripts on the
//! `tiny` profiles.

mod properties;

use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::{BlockFault, Persistence};

fn chip(name: &str) -> SimNand {
    SimNand::new(&Profile::named(name).unwrap(), 7)
}

fn page(nand: &SimNand, block: u32, index: u32) -> PhysicalPage {
    nand.geometry().page(BlockIndex(block), index).unwrap()
}

fn whole(data: &[u8]) -> ProgramPart<'_> {
    ProgramPart { data_offset: 0, data, spare_offset: 0, spare: &[] }
}

fn spare_only(offset: u32, spare: &[u8]) -> ProgramPart<'_> {
    ProgramPart { data_offset: 0, data: &[], spare_offset: offset, spare }
}

/// Data, spare bytes and corrected bits of a page.
type Reading = Result<(Vec<u8>, Vec<u8>, u32), NandError>;

fn read(nand: &mut SimNand, page: PhysicalPage) -> Reading {
    let geometry = nand.geometry();
    let mut data = vec![0; geometry.page_size as usize];
    let mut spare = vec![0; geometry.spare_size as usize];
    let part = ReadPart { data_offset: 0, data: &mut data, spare_offset: 0, spare: &mut spare };
    let completion = nand.read(page, part)?;
    Ok((data, spare, completion.corrected_bits_max))
}

fn rule(result: Result<Completion, NandError>) -> FlashRule {
    match result {
        Err(NandError::Rule { rule, .. }) => rule,
        other => panic!("expected a broken rule, found {other:?}"),
    }
}

#[test]
fn erased_pages_read_as_ones_and_programs_read_back() {
    let mut nand = chip("tiny");
    let target = page(&nand, 3, 2);
    assert_eq!(read(&mut nand, target).unwrap().0, vec![0xFF; 512]);
    let part = ProgramPart { spare_offset: 2, spare: &[1, 2, 3], ..whole(&[0xA5; 512]) };
    nand.program(target, part).unwrap();
    let (data, spare, _) = read(&mut nand, target).unwrap();
    assert_eq!((data, &spare[..6]), (vec![0xA5; 512], &[0xFF, 0xFF, 1, 2, 3, 0xFF][..]));
    nand.erase(BlockIndex(3)).unwrap();
    assert_eq!(read(&mut nand, target).unwrap().1, vec![0xFF; 32]);
    assert_eq!(nand.erase_count(BlockIndex(3)), 1);
}

#[test]
fn programs_are_posted_and_reads_wait_for_their_die() {
    let mut nand = chip("tiny");
    let target = page(&nand, 0, 0);
    assert_eq!(nand.program(target, whole(&[0; 512])).unwrap().end_ns, 200_000);
    assert_eq!(nand.now_ns(), 0);
    read(&mut nand, target).unwrap();
    assert_eq!(nand.now_ns(), 280_000);
    assert_eq!(nand.erase(BlockIndex(1)).unwrap().end_ns, 1_780_000);
    nand.sync().unwrap();
    assert_eq!(nand.now_ns(), 1_780_000);
}

#[test]
fn counters_tell_whole_programs_from_partial_ones() {
    let mut nand = chip("tiny");
    let first = page(&nand, 0, 0);
    nand.program(first, whole(&[0; 512])).unwrap();
    nand.program(first, spare_only(2, &[0])).unwrap();
    nand.program(page(&nand, 0, 1), whole(&[0; 256])).unwrap();
    let counters = nand.counters();
    assert_eq!((counters.page_programs, counters.partial_programs), (1, 2));
    assert_eq!(counters.bytes_programmed, 512 + 1 + 256);
    nand.reset_counters();
    assert_eq!(nand.counters(), Counters::default());
}

#[test]
fn a_broken_rule_changes_and_counts_nothing() {
    let mut nand = chip("tiny");
    let target = page(&nand, 0, 0);
    nand.program(target, whole(&[0x0F; 512])).unwrap();
    let (state, count) = (nand.state_hash(), nand.operation_count());
    assert_eq!(rule(nand.program(target, whole(&[0; 512]))), FlashRule::CodeWordReuse);
    assert_eq!((state, count), (nand.state_hash(), nand.operation_count()));
    assert_eq!(nand.counters().page_programs, 1);
}

#[test]
fn a_snapshot_keeps_its_bytes_when_the_chip_goes_on() {
    let mut nand = chip("tiny");
    let target = page(&nand, 0, 0);
    nand.program(target, whole(&[1; 512])).unwrap();
    let mut snapshot = nand.clone();
    let hash = snapshot.state_hash();
    nand.erase(BlockIndex(0)).unwrap();
    nand.program(target, whole(&[2; 512])).unwrap();
    assert_eq!(snapshot.state_hash(), hash);
    assert_eq!(read(&mut snapshot, target).unwrap().0, vec![1; 512]);
    assert_eq!(read(&mut nand, target).unwrap().0, vec![2; 512]);
}

#[test]
fn bit_errors_are_repaired_up_to_the_strength_and_no_further() {
    let mut nand = chip("tiny");
    let target = page(&nand, 0, 0);
    nand.program(target, whole(&[9; 512])).unwrap();
    nand.flip_bits(target, 1, 3);
    let (data, _, corrected) = read(&mut nand, target).unwrap();
    assert_eq!((data, corrected), (vec![9; 512], 3));
    nand.flip_bits(target, 1, 2);
    assert!(matches!(read(&mut nand, target), Err(NandError::Uncorrectable { .. })));
    nand.erase(BlockIndex(0)).unwrap();
    assert_eq!(read(&mut nand, target).unwrap().2, 0, "an erase must clear bit errors");
}

#[test]
fn a_page_that_repeats_a_word_behind_a_head_reads_back_wherever_it_is_read() {
    for (block, head_size) in (0..).zip([0_usize, 1, 51, 120, 127, 128, 129, 200, 256, 505]) {
        let mut nand = chip("tiny");
        let target = page(&nand, block, 0);
        let cold = (0..512).map(|at| if at < head_size { at as u8 ^ 0x5A } else { at as u8 % 8 });
        let cold: Vec<u8> = cold.collect();
        nand.program(target, whole(&cold)).unwrap();
        assert_eq!(read(&mut nand, target).unwrap().0, cold, "head of {head_size}");
        for offset in [0_u32, 256] {
            let mut data = vec![0; 256];
            let part =
                ReadPart { data_offset: offset, data: &mut data, spare_offset: 0, spare: &mut [] };
            nand.read(target, part).unwrap();
            assert_eq!(data, cold[offset as usize..][..256], "head of {head_size}, at {offset}");
        }
        nand.erase(BlockIndex(block)).unwrap();
        let mut warm = cold.clone();
        warm[..=head_size].fill(7);
        nand.program(target, whole(&warm)).unwrap();
        assert_eq!(read(&mut nand, target).unwrap().0, warm, "head of {head_size}");
    }
}

#[test]
fn raw_spare_bytes_show_their_bit_errors() {
    let mut nand = chip("tiny");
    let target = page(&nand, 0, 0);
    nand.program(target, spare_only(2, &[0xF0])).unwrap();
    nand.flip_spare(target, 2, 0x01);
    assert_eq!(read(&mut nand, target).unwrap().1[2], 0xF1);
}

#[test]
fn nothing_works_between_a_cut_and_a_power_cycle() {
    let mut nand = chip("tiny");
    nand.set_plan(FaultPlan::power_cut(1, 0, Ending::Complete));
    let target = page(&nand, 0, 0);
    assert_eq!(nand.program(target, whole(&[3; 512])), Err(NandError::PowerOff));
    assert_eq!(read(&mut nand, target), Err(NandError::PowerOff));
    assert_eq!(nand.sync(), Err(NandError::PowerOff));
    assert!(nand.is_off(), "the power is back by itself");
    nand.power_cycle();
    assert_eq!(read(&mut nand, target).unwrap().0, vec![3; 512]);
}

/// Goal: each ending leaves the content that its description says, and never touches another page.
/// Method: all endings of a whole program with spare bytes, on a block with a neighbour page in
/// use.
#[test]
fn every_ending_of_a_program_leaves_the_neighbours_alone() {
    for name in ["tiny", "tiny-risk", "tiny-nop1", "tiny-ordered"] {
        let mut clean = chip(name);
        let (neighbour, target) = (page(&clean, 0, 0), page(&clean, 0, 1));
        clean.program(neighbour, whole(&[0x3C; 512])).unwrap();
        clean.record_operations();
        let part = ProgramPart { spare_offset: 2, spare: &[0x55; 8], ..whole(&[0x11; 512]) };
        clean.clone().program(target, part).unwrap();
        let mut probe = clean.clone();
        probe.program(target, part).unwrap();
        let endings = probe.endings_at(1);
        assert!(endings.len() >= 7, "{name}: endings are missing: {endings:?}");
        for ending in endings {
            let mut nand = clean.clone();
            nand.set_plan(FaultPlan::power_cut(5, 1, ending));
            assert_eq!(nand.program(target, part), Err(NandError::PowerOff), "{ending}");
            nand.power_cycle();
            assert_eq!(read(&mut nand, neighbour).unwrap().0, vec![0x3C; 512], "{ending}");
            let content = nand.peek(target);
            match ending {
                Ending::Untouched => assert_eq!(nand.state_hash(), clean.state_hash()),
                Ending::Complete => assert_eq!(nand.state_hash(), probe.state_hash()),
                Ending::Torn { units: 1 } => {
                    assert_eq!(content.data, [[0x11; 256], [0xFF; 256]].concat());
                    assert_eq!(content.spare, vec![0xFF; 32]);
                }
                Ending::SpareOnly => assert_eq!(content.spare[2..10], [0x55; 8]),
                Ending::RandomBits => {
                    let kept = content.data.iter().all(|byte| byte & 0x11 == 0x11);
                    assert!(kept, "bits fell that nobody programmed");
                }
                _ => {}
            }
            if ending != Ending::Untouched {
                assert!(nand.program(target, part).is_err(), "{name} {ending}: E1 is broken");
            }
        }
    }
}

#[test]
fn unstable_words_read_well_at_first_and_never_in_the_end() {
    for (seed, ending, expected) in [
        (1, Ending::LooksComplete, 0x11),
        (2, Ending::LooksUntouched, 0xFF),
        (3, Ending::LooksComplete, 0x11),
    ] {
        let mut good_reads = 0;
        for attempt in 0..8 {
            let mut nand = SimNand::new(&Profile::named("tiny").unwrap(), attempt);
            let target = page(&nand, 0, 0);
            nand.set_plan(FaultPlan::power_cut(seed, 0, ending));
            assert_eq!(nand.program(target, whole(&[0x11; 512])), Err(NandError::PowerOff));
            nand.power_cycle();
            if let Ok((data, ..)) = read(&mut nand, target) {
                assert_eq!(data, vec![expected; 512]);
                good_reads += 1;
            }
            let last = (0..20).map(|_| read(&mut nand, target)).last().unwrap();
            assert!(last.is_err(), "seed {seed} {ending}: unstable words became stable");
        }
        assert!(good_reads > 0, "seed {seed} {ending}: unstable words never read well");
    }
}

#[test]
fn an_unstable_flag_reads_both_ways_until_it_is_programmed_again() {
    let mut seen = [false; 2];
    for seed in 0..16 {
        let mut nand = SimNand::new(&Profile::named("tiny").unwrap(), seed);
        let target = page(&nand, 0, 0);
        nand.program(target, whole(&[0x11; 512])).unwrap();
        nand.set_plan(FaultPlan::power_cut(seed, 1, Ending::LooksUntouched));
        assert_eq!(nand.program(target, spare_only(4, &[0])), Err(NandError::PowerOff));
        nand.power_cycle();
        let byte = read(&mut nand, target).unwrap().1[4];
        seen[usize::from(byte == 0xFF)] = true;
        nand.program(target, spare_only(4, &[0])).unwrap();
        assert_eq!(read(&mut nand, target).unwrap().1[4], 0, "seed {seed}");
    }
    assert_eq!(seen, [true; 2], "a flag in doubt always reads alike");
}

#[test]
fn a_cut_on_an_msb_page_takes_its_partner_along() {
    let mut nand = chip("tiny-mlc");
    for index in 0..4 {
        nand.program(page(&nand, 0, index), whole(&[index as u8; 512])).unwrap();
    }
    nand.record_operations();
    let number = nand.operation_count();
    let msb = page(&nand, 0, 4);
    let mut probe = nand.clone();
    probe.program(msb, whole(&[4; 512])).unwrap();
    assert!(probe.endings_at(number).contains(&Ending::PairLost));
    nand.set_plan(FaultPlan::power_cut(1, number, Ending::PairLost));
    assert_eq!(nand.program(msb, whole(&[4; 512])), Err(NandError::PowerOff));
    nand.power_cycle();
    let (lost, kept) = (page(&nand, 0, 1), page(&nand, 0, 3));
    assert!(matches!(read(&mut nand, lost), Err(NandError::Uncorrectable { .. })));
    assert_eq!(read(&mut nand, kept).unwrap().0, vec![3; 512]);
}

#[test]
fn a_page_at_risk_loses_what_was_programmed_before() {
    let mut nand = chip("tiny-risk");
    let target = page(&nand, 0, 0);
    nand.program(target, whole(&[1; 256])).unwrap();
    nand.set_plan(FaultPlan::power_cut(1, 1, Ending::PageLost));
    let part = ProgramPart { data_offset: 256, ..whole(&[2; 256]) };
    assert_eq!(nand.program(target, part), Err(NandError::PowerOff));
    nand.power_cycle();
    assert!(read(&mut nand, target).is_err(), "the first code word survived");
}

#[test]
fn a_block_in_doubt_accepts_nothing_before_it_is_erased_again() {
    for ending in [Ending::PartlyErased, Ending::LooksErased] {
        let mut nand = chip("tiny");
        for index in 0..8 {
            nand.program(page(&nand, 0, index), whole(&[1; 512])).unwrap();
        }
        nand.set_plan(FaultPlan::power_cut(1, 8, ending));
        assert_eq!(nand.erase(BlockIndex(0)), Err(NandError::PowerOff));
        nand.power_cycle();
        for index in 0..8 {
            let target = page(&nand, 0, index);
            assert!(nand.program(target, whole(&[2; 512])).is_err(), "{ending}: page {index}");
            assert!(nand.program(target, spare_only(2, &[0])).is_err(), "{ending}: page {index}");
        }
        nand.erase(BlockIndex(0)).unwrap();
        let target = page(&nand, 0, 0);
        nand.program(target, whole(&[2; 512])).unwrap();
        assert_eq!(read(&mut nand, target).unwrap().0, vec![2; 512]);
    }
}

#[test]
fn failed_operations_name_their_address_and_spare_the_neighbours() {
    let mut nand = chip("tiny");
    let (first, second) = (page(&nand, 0, 0), page(&nand, 0, 1));
    nand.program(first, whole(&[1; 512])).unwrap();
    nand.set_plan(FaultPlan::failure(1, 1, Persistence::ForEver));
    let failed = nand.program(second, whole(&[2; 512]));
    assert_eq!(failed, Err(NandError::ProgramFailed { page: second }));
    let failed = nand.erase(BlockIndex(0));
    assert_eq!(failed, Err(NandError::EraseFailed { block: BlockIndex(0) }));
    nand.erase(BlockIndex(1)).unwrap();
}

#[test]
fn an_ignored_erase_shows_in_the_next_reads() {
    let mut nand = chip("tiny");
    let target = page(&nand, 0, 0);
    nand.program(target, whole(&[1; 512])).unwrap();
    let fault = (BlockIndex(0), BlockFault::EraseIgnored);
    nand.set_plan(FaultPlan { block_faults: vec![fault], ..FaultPlan::default() });
    nand.erase(BlockIndex(0)).unwrap();
    assert_eq!(read(&mut nand, target).unwrap().0, vec![1; 512]);
    nand.program(target, whole(&[2; 512])).unwrap();
    assert!(matches!(read(&mut nand, target), Err(NandError::Uncorrectable { .. })));
}

#[test]
fn read_faults_happen_as_planned() {
    let mut nand = chip("tiny");
    let (first, second) = (page(&nand, 0, 0), page(&nand, 0, 1));
    nand.program(first, whole(&[1; 512])).unwrap();
    nand.program(second, whole(&[2; 512])).unwrap();
    let faults = vec![
        (first, ReadFault::UncorrectableOnce),
        (second, ReadFault::Misdirected { instead: first }),
    ];
    nand.set_plan(FaultPlan { read_faults: faults, ..FaultPlan::default() });
    assert_eq!(read(&mut nand, first), Err(NandError::Uncorrectable { page: first }));
    assert_eq!(read(&mut nand, first).unwrap().0, vec![1; 512]);
    assert_eq!(read(&mut nand, second).unwrap().0, vec![1; 512]);
}

#[test]
fn blocks_die_between_the_rated_endurance_and_an_eighth_above() {
    let mut nand = chip("tiny-mlc");
    nand.set_plan(FaultPlan { wear: WearOut::AtEndurance, ..FaultPlan::default() });
    for block in nand.geometry().blocks() {
        nand.set_erase_count(block, 2990);
        let mut lived = 2990;
        while nand.erase(block).is_ok() {
            lived += 1;
        }
        assert!((3000..=3375).contains(&lived), "{block:?} lived {lived} erases");
    }
}

#[test]
fn bad_blocks_refuse_programs_and_erases() {
    let mut nand = chip("tiny").with_bad_block_count(5);
    let bad: Vec<_> =
        nand.geometry().blocks().filter(|block| nand.is_bad(*block) == Ok(true)).collect();
    assert_eq!(bad.len(), 5);
    assert!(!bad.contains(&BlockIndex(0)), "vendors guarantee block 0");
    let target = page(&nand, bad[0].0, 0);
    assert_eq!(rule(nand.program(target, whole(&[0; 512]))), FlashRule::BadBlock);
    assert_eq!(rule(nand.erase(bad[0])), FlashRule::BadBlock);
    nand.mark_bad(BlockIndex(0)).unwrap();
    assert_eq!(nand.is_bad(BlockIndex(0)), Ok(true));
}

#[test]
fn an_image_carries_all_bytes() {
    let mut nand = chip("tiny");
    let part = ProgramPart { spare_offset: 2, spare: &[5; 3], ..whole(&[0x77; 512]) };
    nand.program(page(&nand, 2, 3), part).unwrap();
    let image = nand.to_image();
    assert_eq!(image.len() as u64, nand.geometry().image_size());
    let mut copy = chip("tiny");
    copy.load_image(&image);
    assert_eq!(copy.to_image(), image);
    copy.load_image(&image[..image.len() / 3]);
}

#[test]
fn devices_work_behind_a_box_and_a_reference() {
    fn page_count(nand: impl Nand) -> u32 {
        nand.geometry().page_count()
    }
    let boxed: alloc::boxed::Box<dyn Nand + Send> = alloc::boxed::Box::new(chip("tiny"));
    assert_eq!(page_count(boxed), 192);
    assert_eq!(page_count(&mut chip("tiny")), 192);
}

#[test]
fn a_partial_erase_leaves_old_pages_ones_and_garbage() {
    let mut nand = chip("tiny");
    for index in 0..8 {
        nand.program(page(&nand, 0, index), whole(&[1; 512])).unwrap();
    }
    let mut seen = [0; 3];
    for seed in 0..10 {
        let mut nand = nand.clone();
        nand.set_plan(FaultPlan::power_cut(seed, 8, Ending::PartlyErased));
        assert_eq!(nand.erase(BlockIndex(0)), Err(NandError::PowerOff));
        for index in 0..8 {
            let data = nand.peek(page(&nand, 0, index)).data;
            let kind = [vec![1; 512], vec![0xFF; 512]].iter().position(|bytes| *bytes == data);
            seen[kind.unwrap_or(2)] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > 10), "{seen:?}");
}

#[test]
fn a_page_that_repeats_one_word_is_read_back_like_any_other() {
    let mut nand = chip("slc-2k");
    let filled = [1, 2, 3, 4, 5, 6, 7, 8].repeat(256);
    let mut mixed = filled.clone();
    mixed[2047] ^= 1;
    for (index, data) in [(0, &filled), (1, &mixed), (2, &filled)] {
        nand.program(page(&nand, 0, index), whole(data)).unwrap();
    }
    nand.flip_bits(page(&nand, 0, 2), 0, 1);
    for (index, data) in [(0, &filled), (1, &mixed), (2, &filled)] {
        assert_eq!(nand.peek(page(&nand, 0, index)).data, *data, "page {index}");
    }
    // Part of a page keeps its place in the word.
    let mut target = [0; 512];
    let part = ReadPart { data_offset: 512, data: &mut target, spare_offset: 0, spare: &mut [] };
    nand.read(page(&nand, 0, 0), part).unwrap();
    assert_eq!(target[..], filled[512..1024]);
    // Bytes of its own from the first change on.
    nand.poke(page(&nand, 0, 0), &PageContent { data: mixed.clone(), spare: vec![0; 64] });
    assert_eq!(nand.peek(page(&nand, 0, 0)).data, mixed);
}

#[test]
fn part_of_an_msb_page_takes_as_long_as_all_of_it() {
    let profile = Profile::named("openssd-jasmine-odd-mlc").unwrap().with_block_count(8).unwrap();
    let timing = profile.timing;
    for (index, expected) in [(0, timing.partial_program_ns), (2, timing.program_msb_ns)] {
        let mut nand = SimNand::new(&profile, 1);
        let completion = nand.program(page(&nand, 0, index), whole(&[7; 1024])).unwrap();
        assert_eq!(completion.end_ns, expected, "page {index}");
    }
}

/// A block whose pages all hold something, their last code words left out.
fn filled(name: &str) -> SimNand {
    let profile = Profile::named(name).unwrap().with_block_count(8).unwrap();
    let mut nand = SimNand::new(&profile, 3);
    for index in 0..profile.geometry.pages_per_block {
        nand.program(page(&nand, 0, index), whole(&[7; 12_288])).unwrap();
    }
    nand
}

const TAIL: ProgramPart<'static> =
    ProgramPart { data_offset: 12_288, data: &[1; 512], spare_offset: 0, spare: &[] };

/// Goal: a second program of a page on plain MLC is refused, and harms its neighbours where it is done
/// all the same; in the modes that take appends nothing is harmed. Method: an append to one page of a full
/// block, bit errors of all pages of it.
#[test]
fn an_append_that_is_forced_on_mlc_disturbs_its_neighbours() {
    let mut nand = filled("openssd-jasmine-mlc");
    let target = page(&nand, 0, 41);
    assert_eq!(rule(nand.program(target, TAIL)), FlashRule::ReprogramOrder);
    nand.force_program(target, TAIL).unwrap();
    let errors: Vec<u32> = (0..128).map(|index| nand.bit_errors(page(&nand, 0, index))).collect();
    // The pair is (41, 44); the word lines beside it hold (39, 42) and (43, 46).
    let near = [39, 42, 43, 44, 46];
    for (index, count) in errors.iter().enumerate() {
        assert_eq!(*count > 0, near.contains(&index), "page {index}: {count} bit errors");
    }
    assert!(errors[44] > 2 * errors[42], "{errors:?}");
    (0..30).for_each(|_| drop(nand.force_program(target, TAIL)));
    let pair = page(&nand, 0, 44);
    assert!(matches!(read(&mut nand, pair), Err(NandError::Uncorrectable { .. })));
    nand.erase(BlockIndex(0)).unwrap();
    assert_eq!(nand.bit_errors(pair), 0);
    for name in ["openssd-jasmine-pslc", "openssd-jasmine-odd-mlc"] {
        let mut nand = filled(name);
        nand.program(page(&nand, 0, 41), TAIL).unwrap();
        nand.force_program(page(&nand, 0, 43), TAIL).unwrap();
        let pages = nand.geometry().pages_per_block;
        let errors: u32 = (0..pages).map(|index| nand.bit_errors(page(&nand, 0, index))).sum();
        assert_eq!(errors, 0, "{name}");
    }
}
