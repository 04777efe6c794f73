//! Every deliberate bug is found by the exploration of power cuts or of faults.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::super::{ShadowBug, ShadowProtocol};
use super::cuts::{Exploration, Restarts, explore_from};
use super::faults::flag_that_does_not_take;
use super::harness::{Pair, chip, options};

/// Whether any of a few explorations trips over the bug, from a seed on: one that holds without it.
fn is_found(protocol: ShadowProtocol, bug: ShadowBug, what: &Exploration) -> bool {
    let holds = |seed: u64, bug: Option<ShadowBug>| {
        let pair = Pair::format(chip(what.block_count), options(protocol));
        let pair = if let Some(bug) = bug { pair.planted(bug) } else { pair };
        let what = Exploration { seed, ..*what };
        catch_unwind(AssertUnwindSafe(|| explore_from(pair, &what))).is_ok()
    };
    (what.seed..=60).any(|seed| !holds(seed, Some(bug)) && holds(seed, None))
}

const LONG: Exploration = Exploration {
    seed: 1,
    block_count: 12,
    warm_up: 60,
    steps: 60,
    after: 60,
    pages: 14,
    restarts: Restarts::Whole,
};

const DEEP: Exploration = Exploration { steps: 6, after: 6, restarts: Restarts::Cut, ..LONG };

#[test]
fn every_planted_bug_is_found() {
    use ShadowBug as Bug;
    use ShadowProtocol::{Afc, Bpcc, Cfc, Scc};
    let cases = [
        (Cfc, Bug::LinkNotChecked, LONG),
        (Cfc, Bug::HalfFlaggedAborts, DEEP),
        (Cfc, Bug::FlagsNotFinished, LONG),
        (Afc, Bug::StaleCopyKept, LONG),
        (Afc, Bug::PagesReclaimedAlone, LONG),
        (Afc, Bug::CutEraseIgnored, DEEP),
        (Bpcc, Bug::NamedVersionReused, LONG),
        (Bpcc, Bug::StraddlerReclaimed, LONG),
        (Scc, Bug::NamingNotErased, LONG),
        (Cfc, Bug::SuspectsKept, LONG),
    ];
    let mut missed = Vec::new();
    for (protocol, bug, what) in cases {
        let begun = std::time::Instant::now();
        if !is_found(protocol, bug, &what) {
            missed.push(bug);
        }
        std::println!("{bug:?}: {:?} {:?}", !missed.contains(&bug), begun.elapsed());
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn a_flag_that_is_not_read_back_is_missed() {
    for protocol in [ShadowProtocol::Cfc, ShadowProtocol::Afc] {
        let pair = Pair::format(chip(14), options(protocol)).planted(ShadowBug::FlagNotVerified);
        let run = || flag_that_does_not_take(pair);
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "{protocol}");
    }
}
