//! The judges of kills and of failing calls, for a short while, and the proof that they find faults.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

use std::process::{Command, Output};

/// Runs a judge to its end.
fn judge(arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_judges"));
    command.args(arguments).arg("--directory").arg(directory.path());
    command.output().unwrap()
}

fn require_success(arguments: &[&str]) {
    let output = judge(arguments);
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
}

/// Goal: at every moment of a kill, no acknowledged commit is lost, and none is there in part. Replay: the judge
/// prints its seed, and the life in which it found something.
#[test]
fn a_killed_process_loses_nothing_that_was_acknowledged() {
    require_success(&["kills", "--kills", "40"]);
}

/// Goal: for every failing system call and every kind of failure, no acknowledged commit is lost.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn a_system_call_that_fails_loses_nothing_that_was_acknowledged() {
    require_success(&["calls", "--failures", "60"]);
}

/// Goal: the judges see an engine that acknowledges before it has written, and one in which a frontier stops where no
/// state was kept.
#[cfg(feature = "seeded-bugs")]
#[test]
fn deliberate_bugs_are_seen() {
    for bug in ["AcknowledgeEarly", "FrontierBetween"] {
        let output = judge(&["kills", "--kills", "2000", "--seed", "1", "--bug", bug]);
        assert!(!output.status.success(), "kills do not see {bug}");
    }
}
