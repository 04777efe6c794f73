//! Goal: each rule refuses the programs that it names and no others. Method: single judgements.

use super::*;
use crate::{CellMode, CodeWord, PartialCut, SpareRange};

const ERASED: PageState = PageState { words: 0, data_programs: 0, spare_programs: 0 };

fn geometry() -> Geometry {
    Geometry { page_size: 2048, spare_size: 64, pages_per_block: 8, block_count: 4, die_count: 1 }
}

fn capabilities() -> Capabilities {
    Capabilities {
        programs_data: 4,
        programs_spare: 4,
        first_program_order: ProgramOrder::Any,
        reprogram_order: ProgramOrder::Any,
        cell_mode: CellMode::Slc,
        code_word: CodeWord { data_size: 512, strength: 4 },
        spare_raw: SpareRange { offset: 2, size: 38 },
        spare_covered: SpareRange { offset: 0, size: 0 },
        partial_cut: PartialCut::Isolated,
        endurance: 100_000,
        rewrite_tail: false,
        needs_sync: false,
    }
}

fn part(data_offset: u32, data: &[u8]) -> ProgramPart<'_> {
    ProgramPart { data_offset, data, spare_offset: 0, spare: &[] }
}

fn flag(offset: u32, spare: &[u8]) -> ProgramPart<'_> {
    ProgramPart { data_offset: 0, data: &[], spare_offset: offset, spare }
}

#[test]
fn parts_are_made_of_whole_code_words_inside_the_page() {
    let rules = Rules::new(geometry(), capabilities());
    for (offset, size) in [(1, 512), (0, 511), (2048, 512), (1536, 1024), (u32::MAX - 511, 512)] {
        let data = [0; 1024];
        let judged = rules.judge(0, ERASED, 0, &part(offset, &data[..size]), &[]);
        assert_eq!(judged.unwrap_err(), FlashRule::Alignment, "{offset}+{size}");
    }
    let judged = rules.judge(0, ERASED, 0, &flag(60, &[0; 5]), &[]);
    assert_eq!(judged.unwrap_err(), FlashRule::Alignment);
}

#[test]
fn nop_counts_data_and_spare_apart_and_parity_as_spare() {
    let rules = Rules::new(geometry(), capabilities());
    let mut state = ERASED;
    for word in 0..3 {
        state = rules.judge(0, state, 1, &part(word * 512, &[0; 512]), &[0xFF; 64]).unwrap().after;
    }
    assert_eq!((state.data_programs, state.spare_programs), (3, 3));
    state = rules.judge(0, state, 1, &flag(2, &[0]), &[0xFF; 64]).unwrap().after;
    assert_eq!((state.data_programs, state.spare_programs), (3, 4));
    let judged = rules.judge(0, state, 1, &flag(3, &[0]), &[0xFF; 64]);
    assert_eq!(judged.unwrap_err(), FlashRule::SparePrograms);
    let judged = rules.judge(0, state, 1, &part(1536, &[0; 512]), &[0xFF; 64]);
    assert_eq!(judged.unwrap_err(), FlashRule::SparePrograms);
}

#[test]
fn the_data_area_is_programmed_as_often_as_nop_allows() {
    let once = Capabilities { programs_data: 1, ..capabilities() };
    let rules = Rules::new(geometry(), once);
    let state = rules.judge(0, ERASED, 0, &part(0, &[0; 512]), &[]).unwrap().after;
    let judged = rules.judge(0, state, 1, &part(512, &[0; 512]), &[0xFF; 64]);
    assert_eq!(judged.unwrap_err(), FlashRule::DataPrograms);
}

#[test]
fn a_code_word_of_ones_is_used_as_well() {
    let rules = Rules::new(geometry(), capabilities());
    let state = rules.judge(0, ERASED, 0, &part(0, &[0xFF; 2048]), &[]).unwrap().after;
    let judged = rules.judge(0, state, 1, &part(512, &[0; 512]), &[0xFF; 64]);
    assert_eq!(judged.unwrap_err(), FlashRule::CodeWordReuse);
}

#[test]
fn order_rules_of_first_programs_and_of_later_ones_are_separate() {
    let used = PageState { words: 1, data_programs: 1, spare_programs: 1 };
    let ascending = ProgramOrder::Ascending;
    let first = Capabilities { first_program_order: ascending, ..capabilities() };
    let rules = Rules::new(geometry(), first);
    let judged = rules.judge(2, ERASED, 4, &part(0, &[0; 512]), &[]);
    assert_eq!(judged.unwrap_err(), FlashRule::FirstProgramOrder);
    rules.judge(2, used, 4, &flag(2, &[0]), &[0xFF; 64]).unwrap();
    rules.judge(6, ERASED, 4, &part(0, &[0; 512]), &[]).unwrap();
    let later = Capabilities { reprogram_order: ascending, ..capabilities() };
    let rules = Rules::new(geometry(), later);
    let judged = rules.judge(2, used, 4, &flag(2, &[0]), &[0xFF; 64]);
    assert_eq!(judged.unwrap_err(), FlashRule::ReprogramOrder);
    rules.judge(3, used, 4, &flag(2, &[0]), &[0xFF; 64]).unwrap();
}

#[test]
fn spare_bits_only_fall_and_ones_leave_cells_alone() {
    let rules = Rules::new(geometry(), capabilities());
    let used = PageState { words: 0, data_programs: 0, spare_programs: 1 };
    let mut now = [0xFF; 64];
    now[2] = 0x0F;
    rules.judge(0, used, 1, &flag(2, &[0xFF, 0x00]), &now).unwrap();
    rules.judge(0, used, 1, &flag(2, &[0x0E]), &now).unwrap();
    let judged = rules.judge(0, used, 1, &flag(2, &[0x10]), &now);
    assert_eq!(judged.unwrap_err(), FlashRule::BitsOnlyFall);
}

#[test]
fn spare_bytes_of_the_ecc_and_of_the_bad_block_mark_are_not_for_users() {
    let rules = Rules::new(geometry(), capabilities());
    for offset in [0, 1, 40, 63] {
        let judged = rules.judge(0, ERASED, 0, &flag(offset, &[0]), &[]);
        assert_eq!(judged.unwrap_err(), FlashRule::Alignment, "spare byte {offset}");
    }
}

#[test]
fn covered_spare_bytes_travel_with_the_whole_page() {
    let covered = Capabilities {
        spare_raw: SpareRange { offset: 0, size: 0 },
        spare_covered: SpareRange { offset: 2, size: 24 },
        ..capabilities()
    };
    let rules = Rules::new(geometry(), covered);
    let whole = ProgramPart { spare_offset: 2, spare: &[0; 24], ..part(0, &[0; 2048]) };
    rules.judge(0, ERASED, 0, &whole, &[]).unwrap();
    for lonely in [flag(2, &[0]), ProgramPart { data: &[0; 512], ..whole }] {
        let judged = rules.judge(0, ERASED, 0, &lonely, &[]);
        assert_eq!(judged.unwrap_err(), FlashRule::CodeWordReuse);
    }
}

#[test]
fn msb_pages_allow_one_program_where_lsb_pages_allow_more() {
    let odd = Capabilities { cell_mode: CellMode::OddMlc { distance: 3 }, ..capabilities() };
    let rules = Rules::new(geometry(), odd);
    let used = PageState { words: 1, data_programs: 1, spare_programs: 1 };
    rules.judge(3, used, 4, &part(512, &[0; 512]), &[0xFF; 64]).unwrap();
    let judged = rules.judge(4, used, 5, &part(512, &[0; 512]), &[0xFF; 64]);
    assert_eq!(judged.unwrap_err(), FlashRule::DataPrograms);
}

#[test]
fn a_rewritable_tail_reports_what_is_rewritten() {
    let tail = Capabilities { rewrite_tail: true, programs_data: 1, ..capabilities() };
    let rules = Rules::new(geometry(), tail);
    let used = PageState { words: 0b11, data_programs: 9, spare_programs: 0 };
    let span = rules.judge(0, used, 1, &part(512, &[0; 1024]), &[0xFF; 64]).unwrap();
    assert_eq!((span.rewritten, span.after.words), (0b10, 0b111));
}
