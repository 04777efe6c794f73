//! The judge of histories: the proof that it finds faults.

#![cfg(feature = "seeded-bugs")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

use std::process::{Command, Output};

/// Histories of a seed, until one of them shows something.
fn judge(bug: &str, seed: u64, histories: u64) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_judges"));
    command.args(["histories", "--bug", bug]);
    command.args(["--seed", &seed.to_string(), "--histories", &histories.to_string()]);
    command.arg("--directory").arg(directory.path());
    command.output().unwrap()
}

/// Goal: the judge finds faults. Method: bugs planted in the engine, each with the seed of a history that it breaks,
/// and some more behind it, because threads take other turns each time.
#[test]
fn planted_bugs_are_found() {
    let bugs = [
        ("FrontierBetween", 2),
        ("AcknowledgeEarly", 2),
        ("SkipSync", 3),
        ("MergeBeforeDurable", 2),
        ("SkipCopies", 1),
        ("SkipInnerNodes", 1),
        ("ReaderNotHeld", 4),
        ("KeepStaleReads", 1),
        ("ScanWithoutLock", 3),
        ("KeepRolledBack", 11),
    ];
    std::thread::scope(|scope| {
        for (bug, seed) in bugs {
            scope.spawn(move || {
                let output = judge(bug, seed, 60);
                let said = String::from_utf8_lossy(&output.stdout);
                let failed = String::from_utf8_lossy(&output.stderr);
                assert!(!output.status.success(), "{bug} is not seen: {said}{failed}");
                assert!(said.contains("again: judges histories"), "{bug}: {said}{failed}");
            });
        }
    });
}
