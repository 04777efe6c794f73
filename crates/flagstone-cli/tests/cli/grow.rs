//! Plain files that grow: small at first, full at their limit, refused when cut short.

use std::fs;

use crate::command::{DEVICES, Place, flagstone};

const MIB: u64 = 1 << 20;

/// A file of `size` bytes that nothing compresses.
fn value(place: &Place, size: u64) -> String {
    let mut state = 7_u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    fs::write(place.file("value"), (0..size).map(|_| next()).collect::<Vec<u8>>())
        .expect("written");
    place.path("value")
}

fn file_size(place: &Place) -> u64 {
    fs::metadata(place.file("db")).expect("there").len()
}

#[test]
fn a_file_begins_small_and_grows_with_what_it_holds() {
    let place = Place::empty();
    let created = flagstone(&["create", &place.path("db")]).ok().stdout;
    assert!(created.contains("16 MiB, grows to 256 GiB"), "{created}");
    assert!(file_size(&place) < 17 * MIB);
    let value = value(&place, MIB);
    for key in 0..40 {
        place.run("put", &["t", &key.to_string(), "--file", &value]).ok();
    }
    let size = file_size(&place);
    assert!(size > 40 * MIB && size < 84 * MIB, "about twice what it holds: {size}");
    let device = &place.run("stats", &["--json"]).ok().json()["device"];
    assert!(device["data_size"].as_u64().is_some_and(|found| found < size && found + MIB > size));
    assert_eq!(device["data_size_max"], 256_u64 << 30);
    assert!(place.run("stats", &[]).ok().stdout.contains("grows to"));
    assert_eq!(place.run("check", &["--json"]).ok().json()["sound"], true);
    for key in 0..36 {
        place.run("del", &["t", &key.to_string()]).ok();
    }
    let report = place.run("compact", &["--json"]).ok().json();
    assert!(file_size(&place) < 20 * MIB, "{report}");
    assert_eq!(report["size"], file_size(&place));
    place.run("get", &["t", "39"]).ok();
    // Deleted rows made room in the file, for the same rows again.
    for key in 0..20 {
        place.run("put", &["t", &key.to_string(), "--file", &value]).ok();
    }
    assert_eq!(place.run("check", &["--json"]).ok().json()["sound"], true);
}

/// Goal: a file at its limit is a full device, and deleting makes room. Method: values of 1 MiB.
#[test]
fn a_file_at_its_limit_is_full() {
    let place = Place::with_database(&["--limit", "6MiB"]);
    let value = value(&place, MIB);
    let mut count = 0;
    loop {
        let ran = place.run("put", &["t", &count.to_string(), "--file", &value]);
        if ran.code != 0 {
            ran.fails(11);
            break;
        }
        count += 1;
    }
    assert!(count >= 2, "{count} values");
    assert!(file_size(&place) <= 6 * MIB + 64 * 1024, "{}", file_size(&place));
    for round in 0..4 {
        place.run("del", &["t", &(round % count).to_string()]).ok();
        place.run("put", &["t", &(round % count).to_string(), "--file", &value]).ok();
    }
    assert_eq!(place.run("check", &["--json"]).ok().json()["sound"], true);
    let device = &place.run("stats", &["--json"]).ok().json()["device"];
    assert_eq!(device["data_size"], device["data_size_max"]);
    // Written anew with a higher limit it takes more.
    place.run("compact", &["--limit", "1GiB"]).ok();
    for key in 0..10 {
        place.run("put", &["t", &key.to_string(), "--file", &value]).ok();
    }
    place.run("compact", &["--capacity", "4MiB"]).fails(11);
    place.run("compact", &["--capacity", "32MiB"]).ok();
    let device = &place.run("stats", &["--json"]).ok().json()["device"];
    assert_eq!(
        (&device["data_size"], &device["data_size_max"]),
        (&(32 * MIB).into(), &(32 * MIB).into())
    );
    assert_eq!(place.run("check", &["--json"]).ok().json()["sound"], true);
}

#[test]
fn a_file_that_was_cut_short_is_damaged() {
    let place = Place::with_database(&["--limit", "1GiB"]);
    let value = value(&place, MIB);
    for key in 0..20 {
        place.run("put", &["t", &key.to_string(), "--file", &value]).ok();
    }
    let file = fs::OpenOptions::new().write(true).open(place.file("db")).expect("there");
    for lost in [1, 100_000, 10 * MIB] {
        file.set_len(file_size(&place) - lost).expect("shorter");
        place.run("stats", &[]).fails(5);
    }
}

#[test]
fn limits_that_make_no_sense_are_refused() {
    let place = Place::empty();
    let create =
        |arguments: &[&str]| flagstone(&[&["create", &place.path("db")], arguments].concat());
    create(&["--limit", "1GiB", "--capacity", "1GiB"]).fails(2);
    create(&["--limit", "1GiB", "--profile", "slc-2k"]).fails(2);
    create(&["--limit", "1GiB", "--device", "mtd"]).fails(2);
    let ran = create(&["--limit", "2048GiB"]).fails(2);
    assert!(ran.stderr.contains("at most"), "{}", ran.stderr);
    assert!(!place.file("db").exists());
    let image = Place::with_database(DEVICES[0]);
    image.run("compact", &["--limit", "1GiB"]).fails(2);
}
