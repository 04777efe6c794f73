//! The long commands, in their shortest forms.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use crate::command::{Place, binary, flagstone, run};

const RUN_KEYS: &[&str] = &[
    "commits",
    "aborts",
    "restarts",
    "elapsed_s",
    "wall_s",
    "tps",
    "latency_us",
    "user_bytes",
    "log_bytes",
    "page_reads",
    "page_programs",
    "partial_programs",
    "block_erases",
    "gc_migrations",
    "gc_time_s",
    "bytes_programmed",
    "write_amplification",
    "delta_appends",
    "out_of_place_writes",
    "pool_hits",
    "pool_misses",
    "erase_count",
    "lifetime_txns",
    "recovery",
    "memory",
    "programs_by_cause",
    "steady",
    "by_region",
    "config",
];

#[test]
fn a_benchmark_prints_the_agreed_object() {
    let run = flagstone(&[
        "bench", "tpcb", "--txns", "300", "--warmup", "none", "--memory", "1MiB", "--json",
    ]);
    let run = run.ok().json();
    for key in RUN_KEYS {
        assert!(run.get(key).is_some(), "`{key}` is missing");
    }
    assert_eq!(run["commits"], 300);
    assert_eq!(run["config"]["seed"], 1);
}

#[test]
fn subscribers_are_counted_and_failures_shown() {
    let arguments = ["--subscribers", "2000", "--txns", "400", "--warmup", "none"];
    let run =
        flagstone(&[&["bench", "tatp", "--json", "--memory", "1MiB"], &arguments[..]].concat());
    let run = run.ok().json();
    assert_eq!(run["config"]["workload"], "tatp/spec");
    assert_eq!(run["config"]["scale"], 2000);
    let table = flagstone(&[&["bench", "tatp", "--memory", "1MiB"], &arguments[..]].concat());
    assert!(table.ok().stdout.contains("committed, % of those that ended"));
}

#[test]
fn two_presets_run_one_after_the_other() {
    let runs = flagstone(&[
        "bench",
        "tpcb",
        "--preset",
        "flagstone,traditional",
        "--txns",
        "200",
        "--warmup",
        "none",
        "--memory",
        "1MiB",
        "--json",
    ]);
    let runs = runs.ok().json();
    assert_eq!(runs["runs"][0]["config"]["preset"], "flagstone");
    assert_eq!(runs["runs"][1]["config"]["preset"], "traditional");
}

#[test]
fn a_run_that_is_not_steady_has_a_code_of_its_own() {
    let ran = flagstone(&["bench", "tpcb", "--txns", "100", "--warmup", "100", "--memory", "1MiB"]);
    assert_eq!(ran.code, 15, "{}", ran.stderr);
    assert!(ran.stdout.contains("commits"), "its figures are printed all the same");
}

#[test]
fn the_crash_explorer_prints_the_agreed_object() {
    let tally = flagstone(&["crash", "--profile", "tiny", "--ops", "6", "--seed", "3", "--json"]);
    let tally = tally.ok().json();
    let counts = ["points", "states", "probes_refused", "failures", "lost_commits"];
    for key in ["preset", "elapsed_s"].iter().chain(&counts) {
        assert!(tally.get(key).is_some(), "`{key}` is missing");
    }
    assert_eq!(tally["failures"], 0);
    assert!(tally["states"].as_u64() > tally["points"].as_u64());
}

/// Goal: a profile with a translation layer is explored as a drive, not as its bare chips. Method: a
/// drive's write is all there or not at all, so that each cut has exactly two endings.
#[test]
fn the_crash_explorer_cuts_a_drive_as_a_drive() {
    let words = ["crash", "--profile", "otf-ssd", "--ops", "6", "--seed", "3", "--json"];
    let tally = flagstone(&words).ok().json();
    assert_eq!(tally["failures"], 0);
    let points = tally["points"].as_u64().expect("a number");
    assert_eq!(tally["states"].as_u64(), Some(2 * points));
}

#[test]
fn the_quickstart_keeps_its_images_where_it_is_told_to() {
    let place = Place::empty();
    let directory = place.file("").join(OsStr::from_bytes(b"not\xfftext"));
    let mut quickstart = binary(&["quickstart", "--txns", "400", "--json", "--dir"]);
    let report = run(quickstart.arg(&directory)).ok().json();
    assert!(report["runs"].as_array().is_some_and(|runs| runs.len() == 2), "{report}");
    let images = std::fs::read_dir(directory).expect("made").count();
    assert!(images >= 2, "one image for each preset");
}
