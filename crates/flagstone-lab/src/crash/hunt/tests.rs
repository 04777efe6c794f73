use super::own_test::OWN_TESTS;
use super::ways::Pace;
use super::*;
use crate::crash::histories::{self, HistoryConfig};

/// Bugs that one of a few drawn scripts shows, most of them the first script.
const AT_A_GLANCE: [Quarry; 17] = [
    Quarry::Engine(SeededBug::MergeBeforeDurable),
    Quarry::Engine(SeededBug::ClaimTooMuch),
    Quarry::Engine(SeededBug::ReuseEpoch),
    Quarry::Engine(SeededBug::SkipCopies),
    Quarry::Engine(SeededBug::SkipInnerNodes),
    Quarry::Engine(SeededBug::CommitGroupsAtMount),
    Quarry::Engine(SeededBug::AcknowledgeEarly),
    Quarry::Engine(SeededBug::SkipInstalls),
    Quarry::Engine(SeededBug::TrimAnyGroup),
    Quarry::Engine(SeededBug::ScanWithoutLock),
    Quarry::Engine(SeededBug::PatchUnread),
    Quarry::Space(SpaceBug::DiesNotAwaited),
    Quarry::Space(SpaceBug::OpenGroupCounts),
    Quarry::Space(SpaceBug::ChecksumIgnored),
    Quarry::Space(SpaceBug::GroupsNotListed),
    Quarry::Space(SpaceBug::FreeBlockNotErased),
    Quarry::Space(SpaceBug::PinsIgnored),
];

/// Goal (T1): a test that did not run, or failed, finds nothing.
#[test]
fn a_test_finds_a_bug_when_it_ran_and_passed() {
    for (quarry, test) in OWN_TESTS {
        let passed = format!("running 1 test\ntest {} ... ok\n", test.name);
        let by = |printed: Option<&str>| test.found(quarry, |_| printed.map(String::from)).by;
        assert_eq!(by(Some(&passed)), Some(test.name));
        assert_eq!(by(Some(&passed.replace("ok", "FAILED"))), None);
        assert_eq!(by(Some("running 0 tests\n")), None);
        assert_eq!(by(None), None);
    }
}

/// Goal (T1): histories run on the devices that the hunt has them on: one that cannot hides
/// every bug behind it. Method: the first few transactions of as many as a round has.
#[test]
fn histories_of_the_hunt_run_where_there_is_no_bug() {
    let quarry = Quarry::Engine(SeededBug::ReaderNotHeld);
    let target = Target { quarry, planting: Planting::LeftOut };
    for (seed, pace) in (0..36)
        .flat_map(|seed| [Pace::Drawn, Pace::ManyCuts, Pace::LittleWork].map(|pace| (seed, pace)))
    {
        let config = pace.config(target, seed).unwrap();
        let config = HistoryConfig { transactions: 5, histories: 1, ..config };
        assert!(histories::run(&config).is_ok(), "seed {seed}, {:?}", config.profile.name);
    }
}

/// Goal (T1): the harness sees. Method: the cheapest ways of the hunt, on the bugs that show
/// there; `cargo run --release -p flagstone-lab --features seeded-bugs --example hunt` looks
/// for all bugs in every way.
#[test]
fn bugs_that_one_script_shows_are_found() {
    let hunted: Vec<_> = AT_A_GLANCE.iter().map(|quarry| glance(*quarry).unwrap()).collect();
    let missed: Vec<_> = hunted.iter().filter(|found| found.by.is_none()).collect();
    assert!(missed.is_empty(), "{missed:?}");
}
