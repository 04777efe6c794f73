//! The promise of serializability, in random histories.
//!
//! `FLAGSTONE_EFFORT=N` makes them N times as many. A failure prints the seed and its settings.

use super::{HistoryConfig, Totals, run};

pub(super) fn effort() -> u64 {
    std::env::var("FLAGSTONE_EFFORT").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Goal (promise 8): read-write transactions are serializable in the order of time, snapshots are
/// consistent and not stale, through deadlocks, aborts, merges, checkpoints and power cuts.
///
/// Method: seeded histories over lists that are only appended to, on every preset and chip; every
/// dependency is read off the lists, and a cycle of dependencies is a failure.
#[test]
fn random_histories_are_serializable() {
    let mut totals = Totals::default();
    for seed in 0..12 * effort() {
        match run(&HistoryConfig::drawn(seed).unwrap()) {
            Ok(found) => totals.add(&found),
            Err(failure) => panic!("history of seed {seed}: {failure}"),
        }
    }
    println!("{totals:?}");
    assert!(totals.checked.transactions > 5_000 * effort(), "{totals:?}");
    assert!(totals.victims > 0 && totals.cuts > 0 && totals.lock_waits > 0, "{totals:?}");
}

/// Goal: equal seeds give equal histories (Y1).
#[test]
fn equal_seeds_give_equal_histories() {
    let once = || run(&HistoryConfig::drawn(8).unwrap()).unwrap();
    assert_eq!(once(), once());
}

/// Goal (T1): a scan that locks nothing is found. Method: the planted bug, growing seeds.
#[cfg(feature = "seeded-bugs")]
#[test]
fn scans_without_locks_are_found() {
    let planted = |seed| {
        let mut config = HistoryConfig::drawn(seed).unwrap();
        config.setup.engine_bug = Some(flagstone_engine::SeededBug::ScanWithoutLock);
        run(&config)
    };
    let found = (0..20).find_map(|seed| planted(seed).err());
    assert!(matches!(found, Some(super::Failure::Anomaly(_))), "{found:?}");
}
