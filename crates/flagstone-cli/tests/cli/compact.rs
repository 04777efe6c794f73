//! Compaction: a file is replaced as a whole, or not at all.

use std::process::Stdio;
use std::thread;
use std::time::Duration;

use crate::command::{DEVICES, Place, binary, flagstone};

/// A database with `count` rows, put in at once.
fn filled(device: &[&str], count: u32) -> Place {
    let place = Place::with_database(device);
    let line = |number: u32| {
        let key = (number * 7_919 % 99_991).to_string();
        format!("{{\"table\":\"t\",\"key\":\"{key:0>8}\",\"value\":\"{}\"}}\n", "YWJj".repeat(20))
    };
    let lines: String = (0..count).map(line).collect();
    std::fs::write(place.file("rows"), lines).expect("written");
    place.run("import", &[&place.path("rows"), "--batch", "5000"]).ok();
    place
}

#[test]
fn compacting_says_what_it_did() {
    let place = filled(DEVICES[1], 3_000);
    let before = place.run("export", &[]).ok().stdout;
    let text = place.run("compact", &[]).ok().stdout;
    assert!(text.starts_with("compacted 3000 rows of 1 table\nfile: "), "{text}");
    let report = place.run("compact", &["--json"]).ok().json();
    assert_eq!((&report["tables"], &report["rows"]), (&1.into(), &3_000.into()), "{report}");
    assert!(report["size"].as_u64() >= Some(8 << 20), "{report}");
    assert!(place.run("export", &[]).ok().stdout == before);
    assert_eq!(place.run("check", &["--json"]).ok().json()["sound"], true);
    place.run("compact", &["--profile", "segment-file"]).fails(2);
    let absent = place.path("absent");
    let error = flagstone(&["compact", &absent]).fails(19).stderr;
    assert_eq!(error.matches(&absent).count(), 1, "{error}");
}

#[test]
fn chips_are_not_compacted() {
    let place = Place::with_database(DEVICES[0]);
    let ran = place.run("compact", &[]).fails(2);
    assert!(ran.stderr.contains("backup"), "{}", ran.stderr);
}

/// Goal: a compaction that is killed leaves a whole database, and the next one goes through. Method:
/// later and later kills, until one comes too late.
#[test]
fn a_killed_compaction_leaves_a_whole_database() {
    let place = filled(DEVICES[1], 6_000);
    let before = place.run("export", &[]).ok().stdout;
    for step in 0..40 {
        let mut child = binary(&["compact", &place.path("db")]);
        let mut child = child.stdout(Stdio::null()).spawn().expect("runs");
        thread::sleep(Duration::from_millis(step * 10));
        let is_done = child.try_wait().expect("runs").is_some();
        child.kill().expect("may be killed");
        child.wait().expect("ends");
        assert!(place.run("export", &[]).ok().stdout == before, "killed after {step} steps");
        if is_done {
            break;
        }
    }
    place.run("compact", &[]).ok();
    assert!(place.run("export", &[]).ok().stdout == before);
    let names = std::fs::read_dir(place.file("")).expect("readable");
    let mut names = names.map(|entry| entry.expect("readable").file_name());
    assert!(names.all(|name| !name.to_string_lossy().starts_with(".flagstone-")));
}

/// Goal: a creation that is killed at any moment leaves the database or no file of that name, and the name stays free
/// for the next creation. Method: later and later kills, of a file that is written as a whole and of one that grows,
/// until one comes too late.
#[test]
fn a_killed_creation_is_in_nobodys_way() {
    for size in [&["--capacity", "256MiB"][..], &[]] {
        for step in 0..40 {
            let place = Place::empty();
            let path = place.path("db");
            let create = [&["create", path.as_str()], size].concat();
            let mut child = binary(&create).stdout(Stdio::null()).spawn().expect("runs");
            thread::sleep(Duration::from_millis(step * 3));
            let is_done = child.try_wait().expect("runs").is_some();
            child.kill().expect("may be killed");
            child.wait().expect("ends");
            if place.file("db").exists() {
                place.run("check", &[]).ok();
            } else {
                flagstone(&create).ok();
            }
            let names = std::fs::read_dir(place.file("")).expect("readable");
            let names: Vec<_> = names.map(|entry| entry.expect("readable").file_name()).collect();
            assert_eq!(names, ["db"], "killed after {step} steps");
            if is_done {
                break;
            }
        }
    }
}

/// Goal: two names of one file stay names of one database. Method: a hard link; a symbolic one is followed.
#[test]
fn a_file_with_two_names_stays_one_database() {
    let place = filled(DEVICES[1], 100);
    std::fs::hard_link(place.file("db"), place.file("link")).expect("linked");
    let ran = place.run("compact", &["--json"]).fails(21);
    assert!(ran.stderr.contains("\"linked\"") && ran.stderr.contains("2 names"), "{}", ran.stderr);
    place.run("put", &["t", "by-one", "x"]).ok();
    flagstone(&["put", &place.path("link"), "t", "by-two", "x"]).ok();
    place.run("get", &["t", "by-two"]).ok();
    std::fs::remove_file(place.file("link")).expect("removed");
    std::os::unix::fs::symlink(place.file("db"), place.file("link")).expect("linked");
    flagstone(&["compact", &place.path("link")]).ok();
    place.run("get", &["t", "by-one"]).ok();
}
