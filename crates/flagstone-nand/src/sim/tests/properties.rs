//! Goal: the simulated chip keeps its content under any script and any cut. Method: random scripts on the `tiny`
//! profiles against a plain model. Replay: proptest prints the script.

use proptest::prelude::*;

use super::*;

/// One step of a random script.
#[derive(Clone, Copy, Debug)]
enum Step {
    Program { page: u32, word: u32, words: u32, byte: u8, spare: Option<u8> },
    Erase { block: u32 },
    Read { page: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..32_u32, 0..2_u32, 0..3_u32, any::<u8>(), any::<Option<u8>>()).prop_map(
            |(page, word, words, byte, spare)| Step::Program { page, word, words, byte, spare }
        ),
        1 => (0..4_u32).prop_map(|block| Step::Erase { block }),
        3 => (0..32_u32).prop_map(|page| Step::Read { page }),
    ]
}

/// Runs a script and compares every accepted step with plain arrays.
fn follow(nand: &mut SimNand, script: &[Step]) {
    let mut model = vec![(vec![0xFF_u8; 512], 0xFF_u8); 32];
    for step in script {
        match *step {
            Step::Program { page, word, words, byte, spare } => {
                let target = nand.geometry().page_from_number(page).unwrap();
                let data = vec![byte; (words * 256) as usize];
                let spare = spare.map(|byte| [byte]);
                let part = ProgramPart {
                    data_offset: word * 256,
                    data: &data,
                    spare_offset: 5,
                    spare: spare.as_ref().map_or(&[], |spare| &spare[..]),
                };
                if nand.program(target, part).is_ok() {
                    let (bytes, flag) = &mut model[page as usize];
                    let start = (word * 256) as usize;
                    bytes[start..start + data.len()].copy_from_slice(&data);
                    *flag &= spare.map_or(0xFF, |[byte]| byte);
                }
            }
            Step::Erase { block } => {
                nand.erase(BlockIndex(block)).unwrap();
                let pages = (block * 8) as usize..(block * 8 + 8) as usize;
                model[pages].fill((vec![0xFF; 512], 0xFF));
            }
            Step::Read { page } => {
                let target = nand.geometry().page_from_number(page).unwrap();
                let (data, spare, _) = read(nand, target).unwrap();
                assert_eq!((&data, spare[5]), (&model[page as usize].0, model[page as usize].1));
            }
        }
    }
}

proptest! {
    #[test]
    fn accepted_programs_read_back_under_any_script(
        script in proptest::collection::vec(step(), 1..120),
        name in prop_oneof![Just("tiny"), Just("tiny-ordered"), Just("tiny-mlc")],
    ) {
        follow(&mut chip(name), &script);
    }

    #[test]
    fn equal_runs_have_equal_hashes(
        script in proptest::collection::vec(step(), 1..60),
        cut in 0..40_u64,
        seed in any::<u64>(),
    ) {
        let run = || {
            let mut nand = chip("tiny");
            nand.set_plan(FaultPlan::power_cut(seed, cut, Ending::RandomBits));
            for step in &script {
                if let Step::Program { page, byte, .. } = step {
                    let target = nand.geometry().page_from_number(*page).unwrap();
                    let _ = nand.program(target, whole(&[*byte; 256]));
                }
            }
            (nand.state_hash(), nand.trace_hash(), nand.now_ns())
        };
        prop_assert_eq!(run(), run());
    }
}

/// Every page of the first four blocks, as reads show it.
fn contents(nand: &mut SimNand) -> Vec<Reading> {
    let pages = (0..32).map(|number| nand.geometry().page_from_number(number).unwrap());
    pages.collect::<Vec<_>>().into_iter().map(|page| read(nand, page)).collect()
}

proptest! {
    /// Goal: a cut harms only the operation in flight. Method: a random history, then one program
    /// or erase with each of its endings; all pages but the page, its pair and the block are
    /// compared.
    #[test]
    fn a_cut_harms_nothing_that_was_not_in_flight(
        script in proptest::collection::vec(step(), 0..40),
        last in 0..32_u32,
        act in 0..4_u8,
        seed in any::<u64>(),
        name in prop_oneof![Just("tiny"), Just("tiny-risk"), Just("tiny-mlc")],
    ) {
        let mut nand = chip(name);
        follow(&mut nand, &script);
        let before = contents(&mut nand);
        let target = nand.geometry().page_from_number(last).unwrap();
        let block = nand.geometry().block_of(target);
        let erases = act == 0;
        let act = |nand: &mut SimNand| match act {
            0 => nand.erase(block),
            1 => nand.program(target, whole(&[0x24; 512])),
            2 => nand.program(target, ProgramPart { data_offset: 256, ..whole(&[0x24; 256]) }),
            _ => nand.program(target, spare_only(9, &[0x24])),
        };
        let number = nand.operation_count();
        nand.record_operations();
        let mut probe = nand.clone();
        prop_assume!(act(&mut probe).is_ok());
        for ending in probe.endings_at(number) {
            let mut nand = nand.clone();
            nand.set_plan(FaultPlan::power_cut(seed, number, ending));
            prop_assert_eq!(act(&mut nand), Err(NandError::PowerOff));
            nand.power_cycle();
            let pair = match nand.capabilities().cell_role(last % 8, 8) {
                CellRole::Msb { partner } if ending == Ending::PairLost => last / 8 * 8 + partner,
                _ => last,
            };
            let after = contents(&mut nand);
            for (number, (before, after)) in (0..).zip(before.iter().zip(&after)) {
                let in_flight = number == last || number == pair || (erases && number / 8 == block.0);
                prop_assert!(in_flight || before == after, "{} {}: page {}", name, ending, number);
            }
        }
    }
}
