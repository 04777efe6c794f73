//! Bad input: each kind has a typed error and a code of its own, and costs nothing that was stored.

use std::fs;

use flagstone::{Database, Options};

use crate::command::{DEVICES, Place, flagstone};

/// A database with one row, whose survival a test checks at its end.
fn place_with_a_row(device: &[&str]) -> Place {
    let place = Place::with_database(device);
    place.run("put", &["t", "kept", "yes"]).ok();
    place
}

#[track_caller]
fn row_is_there(place: &Place) {
    assert_eq!(place.run("get", &["t", "kept"]).ok().stdout, "yes\n");
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let place = Place::empty();
    let noise: Vec<u8> =
        (0..100_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for content in [b"".as_slice(), b"hello\n", &noise, &[0_u8; 70_000], &[0xFF_u8; 70_000]] {
        fs::write(place.file("db"), content).expect("written");
        for command in ["stats", "check", "wear"] {
            place.run(command, &[]).fails(4);
        }
        place.run("put", &["t", "k", "v"]).fails(4);
        assert_eq!(fs::read(place.file("db")).expect("still there"), content);
    }
    flagstone(&["stats", &place.path("absent")]).fails(19);
    fs::create_dir(place.file("dir")).expect("created");
    assert_ne!(flagstone(&["stats", &place.path("dir")]).code, 0);
}

#[test]
fn a_truncated_database_is_refused() {
    for device in DEVICES {
        let place = place_with_a_row(device);
        let whole = fs::read(place.file("db")).expect("readable");
        fs::write(place.file("db"), &whole[..whole.len() / 3]).expect("written");
        let ran = place.run("get", &["t", "kept"]);
        assert!([4, 5, 7].contains(&ran.code), "{device:?}: {ran:?}");
        fs::write(place.file("db"), &whole).expect("written");
        row_is_there(&place);
    }
}

/// Goal: damage is answered with a code, never with wrong rows.
///
/// Method: a run of bytes in the middle of each eighth of the file is overwritten in turn.
#[test]
fn a_damaged_database_gives_the_row_or_a_typed_error() {
    for device in DEVICES {
        let place = place_with_a_row(device);
        let whole = fs::read(place.file("db")).expect("readable");
        for eighth in 0..8 {
            let mut damaged = whole.clone();
            let at = whole.len() * eighth / 8;
            damaged[at..at + whole.len() / 8].fill(0x5A);
            fs::write(place.file("db"), &damaged).expect("written");
            let ran = place.run("get", &["t", "kept"]);
            let is_right = ran.code == 0 && ran.stdout == "yes\n";
            assert!(is_right || [4, 5, 6, 7].contains(&ran.code), "{device:?} {eighth}: {ran:?}");
        }
        fs::write(place.file("db"), &whole).expect("written");
        row_is_there(&place);
    }
}

#[test]
fn a_profile_that_does_not_match_the_image_is_refused() {
    let place = place_with_a_row(DEVICES[0]);
    let error = place.run("get", &["t", "kept", "--profile", "spi-nand"]).fails(7).stderr;
    assert!(error.contains("spi-nand") && error.contains("slc-2k"), "{error}");
    place.run("get", &["t", "kept", "--profile", "slc-2k"]).ok();
    row_is_there(&place);
}

#[test]
fn unknown_names_are_answered_with_the_nearest() {
    let place = place_with_a_row(DEVICES[0]);
    let profile = flagstone(&["profiles", "tiny"]).ok().stdout.replace("endurance", "endurence");
    fs::write(place.file("typo.toml"), profile).expect("written");
    let typo = place.path("typo.toml");
    let new = place.path("new");
    for (arguments, nearest) in [
        (vec!["create", &new, "--profile", "slc2k"], "slc-2k"),
        (vec!["create", &new, "--profile", &typo], "endurance"),
        (vec!["create", &new, "--preset", "tradtional"], "traditional"),
        (vec!["create", &new, "-o", "memroy=1MiB"], "memory"),
        (vec!["creat", &new], "create"),
        (vec!["create", &new, "--profil", "tiny"], "--profile"),
        (vec!["bench", "tpcb", "--preset", "flagston"], "flagstone"),
    ] {
        let error = flagstone(&arguments).fails(2).stderr;
        assert!(error.contains(nearest), "{arguments:?}: {error}");
    }
    assert!(!place.file("new").exists(), "a refused command creates nothing");
}

#[test]
fn values_outside_their_range_are_refused() {
    let place = Place::empty();
    let new = place.path("new");
    for arguments in [
        vec!["create", &new, "--capacity", "lots"],
        vec!["create", &new, "--memory", "1 parsec"],
        vec!["create", &new, "-o", "frames=sideways"],
        vec!["create", &new, "-o", "frame_share=2"],
        vec!["create", &new, "--device", "sim"],
        vec!["bench", "tpcc"],
        vec!["bench", "tpcb", "--fill", "7"],
        vec!["bench", "tpcb", "--warmup", "some"],
        vec!["bench", "tpcb", "--clients", "0"],
        vec!["crash", "--depth", "9"],
        vec!["crash", "--cut", "1"],
    ] {
        flagstone(&arguments).fails(2);
    }
    assert!(!place.file("new").exists(), "a refused command creates nothing");
    flagstone(&["create", &new, "--device", "mtd"]).fails(17);
}

#[test]
fn a_preset_that_the_device_cannot_carry_is_refused() {
    let place = Place::empty();
    let new = place.path("new");
    let ran = flagstone(&[
        "create",
        &new,
        "--profile",
        "tiny",
        "--memory",
        "1MiB",
        "-o",
        "log_pages=100000",
    ]);
    ran.fails(8);
    assert!(!place.file("new").exists(), "a refused command leaves no file");
}

#[test]
fn keys_and_values_that_are_too_long_are_refused() {
    let place = place_with_a_row(DEVICES[0]);
    let key = "k".repeat(5_000);
    place.run("put", &["t", &key, "v"]).fails(13);
    row_is_there(&place);
}

#[test]
fn a_full_device_says_so_and_can_be_emptied() {
    let place =
        Place::with_database(&["--profile", "slc-2k", "--capacity", "3MiB", "--memory", "256KiB"]);
    place.run("put", &["t", "kept", "yes"]).ok();
    let value = "v".repeat(60_000);
    let mut count = 0;
    let code = loop {
        let ran = place.run("put", &["t", &format!("big{count}"), &value]);
        if ran.code != 0 {
            break ran.code;
        }
        count += 1;
        assert!(count < 200, "3 MiB hold no {count} values of 60 000 bytes");
    };
    assert_eq!(code, 11);
    row_is_there(&place);
    for key in 0..count {
        place.run("del", &["t", &format!("big{key}")]).ok();
    }
    place.run("put", &["t", "again", &value]).ok();
    row_is_there(&place);
    place.run("check", &[]).ok();
}

#[test]
fn a_read_only_file_is_refused() {
    for device in DEVICES {
        let place = place_with_a_row(device);
        let path = place.file("db");
        let mut permissions = fs::metadata(&path).expect("there").permissions();
        permissions.set_readonly(true);
        fs::set_permissions(&path, permissions).expect("changed");
        place.run("put", &["t", "kept", "no"]).fails(10);
        place.run("stats", &[]).fails(10);
    }
}

#[test]
fn a_file_that_another_process_holds_is_refused() {
    for device in DEVICES {
        let place = place_with_a_row(device);
        let held = Database::open(place.file("db"), &Options::default()).expect("opens");
        place.run("put", &["t", "kept", "no"]).fails(9);
        place.run("get", &["t", "kept"]).fails(9);
        held.close().expect("closes");
        row_is_there(&place);
    }
}

#[test]
fn a_paper_that_is_unknown_or_not_built_is_named() {
    let ran = flagstone(&["lab", "reproduce", "flag-comit"]);
    assert!(ran.stderr.contains("did you mean `flag-commit`?"), "{}", ran.stderr);
    ran.fails(2);
    let ran = flagstone(&["lab", "reproduce", "flag-commit", "--quick"]);
    assert!(ran.stderr.contains("flag-commit"), "{}", ran.stderr);
    ran.fails(17);
}
