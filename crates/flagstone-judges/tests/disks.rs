//! The judge of disks: it finds nothing in the engine as it is, and sees planted bugs.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

use std::process::{Command, Output};

/// Runs the judge; none where the kernel lets no process follow another.
fn judge(arguments: &[&str]) -> Option<Output> {
    let keep = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_judges"));
    command.arg("disks").args(arguments).arg("--keep").arg(keep.path());
    let output = command.output().unwrap();
    if String::from_utf8_lossy(&output.stderr).contains("ptrace is refused here") {
        eprintln!("skipped: ptrace is refused here");
        return None;
    }
    Some(output)
}

/// Goal: states of all workloads keep the promises. Method: a few hundred of each; CI judges for longer.
#[test]
fn states_that_a_cut_leaves_are_whole() {
    let Some(output) = judge(&["--states", "600"]) else { return };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("together"), "{said}");
}

/// Goal: the judge finds faults. Method: bugs planted in the process that is recorded, each with a workload that it
/// breaks.
#[cfg(feature = "seeded-bugs")]
#[test]
fn planted_bugs_are_found() {
    let bugs = [
        ("SkipSync", "commits"),
        ("AcknowledgeEarly", "pressure"),
        ("RecordBeforePages", "pressure"),
        ("MergeBeforeDurable", "pressure"),
        ("SkipInnerNodes", "pressure"),
        ("SkipCopies", "large"),
    ];
    for (bug, script) in bugs {
        let arguments = ["--bug", bug, "--script", script, "--states", "3000"];
        let Some(output) = judge(&arguments) else { return };
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success(), "{bug} is not seen: {said}");
        assert!(
            said.contains("BROKEN"),
            "{bug}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
