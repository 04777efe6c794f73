//! Damaged databases on the command line: saved rows, and messages.

use std::fs::{self, OpenOptions};

use crate::command::{DEVICES, Place, flagstone};

fn filled(device: &[&str]) -> Place {
    let place = Place::with_database(device);
    let line = |key: u32| {
        let value = "YWJj".repeat(20);
        format!("{{\"table\":\"t\",\"key\":\"{key:0>8}\",\"value\":\"{value}\"}}\n")
    };
    fs::write(place.file("rows"), (0..3_000).map(line).collect::<String>()).expect("written");
    place.run("import", &[&place.path("rows")]).ok();
    place.run("merge", &[]).ok();
    place
}

#[test]
fn a_sound_database_is_saved_as_it_is() {
    for device in DEVICES {
        let place = filled(device);
        let before = place.run("export", &[]).ok().stdout;
        assert!(place.run("export", &["--skip-damaged"]).ok().stdout == before);
        let out = place.path("saved");
        let text = place.run("salvage", &[&out]).ok().stdout;
        assert!(text.starts_with("saved 3000 rows of 1 table to "), "{text}");
        assert!(flagstone(&["export", &out]).ok().stdout == before);
        place.run("salvage", &[&out]).fails(18);
        assert!(flagstone(&["export", &out]).ok().stdout == before, "it is left alone");
        place.run("backup", &[&place.path("copy"), "--skip-damaged"]).ok();
        flagstone(&["restore", "--verify", &place.path("copy")]).ok();
    }
}

#[test]
fn a_file_that_was_cut_short_is_saved_with_what_is_missing() {
    let place = filled(DEVICES[1]);
    let file = OpenOptions::new().write(true).open(place.file("db")).expect("there");
    file.set_len(file.metadata().expect("there").len() / 2).expect("cut");
    place.run("export", &[]).fails(5);
    let ran = place.run("salvage", &[&place.path("saved"), "--json"]).fails(5);
    let report = ran.json();
    assert_eq!(report["complete"], false, "{report}");
    assert_eq!(report["method"], "scanned", "{report}");
    let told = [&report["missing"], &report["doubtful"]];
    let count: usize = told.iter().filter_map(|list| list.as_array()).map(Vec::len).sum();
    assert!(count > 0, "{report}");
    flagstone(&["check", &place.path("saved")]).ok();
}
