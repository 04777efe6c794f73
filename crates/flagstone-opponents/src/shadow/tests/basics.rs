//! Behaviour of a store as long as the power stays on.

use flagstone_nand::{Nand, Profile, SimNand};
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::{Lack, Restart, ShadowError, ShadowOptions, ShadowProtocol, ShadowStore};
use super::harness::{Pair, Step, chip, options, script, variants};
use flagstone_space::LogicalPage;

/// Goal: contents equal the model's, over many collections, and both ways of restart find them.
/// Method: seeded scripts of three transactions at a time over all pages.
#[test]
fn long_scripts_agree_with_the_model() {
    for options in variants() {
        for seed in 1..4 {
            let mut pair = Pair::format(chip(14), options);
            let pages = pair.store.page_count();
            for (index, step) in script(seed, 900, pages * 3 / 4).iter().enumerate() {
                pair.apply(step).unwrap_or_else(|err| panic!("{options:?} {seed} {index}: {err}"));
                if index % 50 == 49 {
                    pair.check();
                }
            }
            assert!(pair.model.full_count < 90, "{options:?}: {}", pair.model.full_count);
            assert!(pair.store.stats().collections > 20, "{:?}", pair.store.stats());
            let mut pair = pair.reopen(Restart::Scan).reopen(Restart::Summaries);
            for step in script(seed + 50, 200, pages * 3 / 4) {
                pair.apply(&step).unwrap();
            }
            pair.check();
        }
    }
}

#[test]
fn a_device_without_a_capability_is_refused_by_name() {
    let lack = |name: &str, protocol| {
        let device = SimNand::new(&Profile::named(name).unwrap(), 1);
        match ShadowStore::format(device, options(protocol)) {
            Err(ShadowError::Lacks { lack, .. }) => Some(lack),
            Err(error) => panic!("{name}: {error}"),
            Ok(_) => None,
        }
    };
    assert_eq!(lack("tiny-nop1", ShadowProtocol::Cfc), Some(Lack::PartialPrograms));
    assert_eq!(lack("tiny-ordered", ShadowProtocol::Afc), Some(Lack::ReprogramOrder));
    assert_eq!(lack("tiny-risk", ShadowProtocol::Cfc), Some(Lack::IsolatedCuts));
    assert_eq!(lack("tiny", ShadowProtocol::Cfc), Some(Lack::RawSpare));
    assert_eq!(lack("tiny-mlc", ShadowProtocol::Scc), Some(Lack::Cells));
    assert_eq!(lack("slc-2k", ShadowProtocol::Cfc), None);
}

/// Goal: a full store says so, and an abort helps.
#[test]
fn a_full_store_goes_on_after_an_abort() {
    for options in variants() {
        let mut store = ShadowStore::format(chip(14), options).unwrap();
        let pages = store.page_count();
        let image = std::vec![7; store.page_size()];
        store.prefill(0..pages, 9).unwrap();
        let xid = store.begin();
        let mut result = Ok(());
        for page in 0..pages {
            result = store.write(xid, LogicalPage(page), &image);
            if result.is_err() {
                break;
            }
        }
        assert_eq!(result, Err(ShadowError::Full), "{options:?}");
        store.abort(xid);
        for page in 0..pages {
            let xid = store.begin();
            store.commit(xid, &[(LogicalPage(page), &image)]).unwrap();
        }
    }
}

/// Goal: the cost model. CFC commits with the flag that its last page carries, AFC with one flag
/// program, cycles with none; dies work side by side.
#[test]
fn a_commit_costs_what_its_protocol_says() {
    for (protocol, flags) in [
        (ShadowProtocol::Cfc, 0),
        (ShadowProtocol::Afc, 1),
        (ShadowProtocol::Scc, 0),
        (ShadowProtocol::Bpcc, 0),
    ] {
        let mut store = ShadowStore::format(chip(24), options(protocol)).unwrap();
        let image = std::vec![7; store.page_size()];
        let start_ns = store.device().now_ns();
        store.device_mut().reset_counters();
        let xid = store.begin();
        store.write(xid, LogicalPage(1), &image).unwrap();
        let rest = [2, 3, 4].map(|page| (LogicalPage(page), &image[..]));
        store.commit(xid, &rest).unwrap();
        let stats = store.stats();
        assert_eq!(stats.flags_commit, flags, "{protocol}");
        assert_eq!(stats.host_writes, 4, "{protocol}");
        assert_eq!(store.device().counters().partial_programs, flags, "{protocol}");
        assert!(store.end_ns() - start_ns >= 2 * 200_000 + 1_500_000, "{protocol}");
    }
}

#[test]
fn names_of_protocols_are_read_and_written() {
    for protocol in ShadowProtocol::ALL {
        assert_eq!(std::format!("{protocol}").parse(), Ok(protocol));
    }
    assert!("wal".parse::<ShadowProtocol>().is_err());
    let device = chip(14);
    let options = ShadowOptions { unit_pages: 9, ..options(ShadowProtocol::Cfc) };
    assert!(matches!(ShadowStore::format(device, options), Err(ShadowError::Option(_))));
}

#[test]
fn a_device_without_a_store_or_with_another_is_not_mounted() {
    let blank = chip(14);
    let cfc = options(ShadowProtocol::Cfc);
    let error = ShadowStore::mount(blank.clone(), cfc, Restart::Scan).unwrap_err();
    assert_eq!(error, ShadowError::NotFormatted);
    let device = ShadowStore::format(blank, cfc).unwrap().into_device();
    let error = ShadowStore::mount(device, options(ShadowProtocol::Afc), Restart::Scan);
    assert_eq!(error.unwrap_err(), ShadowError::OtherOptions);
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (slot, page) = (0..3_usize, 0..16_u32);
    let step = prop_oneof![
        6 => (slot.clone(), page.clone()).prop_map(|(slot, page)| Step::Write { slot, page }),
        3 => (slot.clone(), vec(page, 0..4)).prop_map(|(slot, rest)| Step::Commit { slot, rest }),
        1 => slot.prop_map(|slot| Step::Abort { slot }),
    ];
    vec(step, 0..250)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Any script of transactions leaves the contents of the model, before and after a mount.
    #[test]
    fn any_script_agrees_with_the_model(steps in steps(), variant in 0..10_usize) {
        let mut pair = Pair::format(chip(15), variants()[variant]);
        for step in &steps {
            pair.apply(step).unwrap();
        }
        pair.check();
        pair.reopen(Restart::Summaries).reopen(Restart::Scan);
    }
}
