//! The command `probe` on the image of a chip; `tests/mtd/run` does the same on raw NAND.

use std::process::Command;

use crate::command::{Place, flagstone, run};

const CHIP: &[&str] = &["--profile", "slc-2k", "--capacity", "4MiB"];

#[test]
fn without_scratch_blocks_a_probe_reads_alone() {
    let place = Place::with_database(CHIP);
    place.run("put", &["t", "a", "1"]).ok();
    let before = std::fs::read(place.file("db")).expect("an image");
    let found = place.run("probe", &["--json"]).ok().json();
    assert_eq!(found["device"]["page_size"], 2048);
    assert_eq!(found["ecc"]["free_spare_size"], 38);
    assert!(found["scratch"].is_null(), "{found}");
    assert!(place.run("probe", &[]).ok().stdout.contains("--scratch"));
    assert!(
        std::fs::read(place.file("db")).expect("an image") == before,
        "a probe changed the chip"
    );
}

#[test]
fn a_probed_chip_carries_a_database_with_the_profile_that_was_written() {
    let place = Place::with_database(CHIP);
    let own = place.path("own.toml");
    let arguments = ["--scratch", "30-31", "--overwrite", "--out", &own, "--json"];
    let found = place.run("probe", &arguments).ok().json()["scratch"].clone();
    assert_eq!((&found["programs_data"], &found["programs_spare"]), (&4.into(), &4.into()));
    assert_eq!(
        (&found["spare_outside_ecc"], &found["reprogram_order"]),
        (&true.into(), &"any".into())
    );
    assert!(found["partial_cut"].is_null(), "nothing of power cuts was tried");
    place.run("probe", &["--out", &own]).fails(18);
    let other = place.path("other");
    flagstone(&["create", &other, "--device", "image", "--profile", &own]).ok();
    flagstone(&["put", &other, "t", "a", "1"]).ok();
    assert_eq!(flagstone(&["check", &other, "--json"]).ok().json()["sound"], true);
}

/// Goal: a probe that fails leaves no file for its profile. Method: an image in which the host lets no block be
/// written.
#[test]
fn a_probe_that_fails_leaves_no_profile() {
    let place = Place::with_database(CHIP);
    let (own, db) = (place.path("own.toml"), place.path("db"));
    let script = "trap '' XFSZ; ulimit -f 64; exec \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh", env!("CARGO_BIN_EXE_flagstone"), "probe", &db]);
    run(shell.args(["--scratch", "30", "--overwrite", "--out", &own])).fails(11);
    assert!(!place.file("own.toml").exists());
    place.run("probe", &["--out", &own]).ok();
}

#[test]
fn scratch_blocks_that_cannot_be_are_refused() {
    let place = Place::with_database(CHIP);
    for blocks in ["32", "x", "3-1", ""] {
        place.run("probe", &["--scratch", blocks]).fails(2);
    }
    flagstone(&["probe", &place.path("none")]).fails(19);
    let plain = Place::with_database(&["--device", "file", "--capacity", "8MiB"]);
    plain.run("probe", &[]).fails(4);
    place.run("check", &[]).ok();
}

/// Goal: a probe uses up blocks of a database only if the user gives it up. Method: the image of a chip with a
/// database, and one without.
#[test]
fn a_chip_that_holds_a_database_is_probed_only_when_asked() {
    let place = Place::with_database(CHIP);
    place.run("put", &["t", "a", "1"]).ok();
    let own = place.path("own.toml");
    let ran = place.run("probe", &["--scratch", "0-12", "--out", &own]).fails(18);
    assert!(ran.stderr.contains("--overwrite"), "{}", ran.stderr);
    assert!(!place.file("own.toml").exists(), "a refused probe writes no profile");
    assert_eq!(place.run("get", &["t", "a"]).ok().stdout, "1\n");
    place.run("probe", &["--overwrite"]).fails(2);

    // A dump of an erased chip, and its profile.
    let image = std::fs::metadata(place.file("db")).expect("an image").len();
    std::fs::write(place.file("bare"), vec![0xFF; image as usize]).expect("written");
    std::fs::copy(place.file("db.toml"), place.file("bare.toml")).expect("copied");
    flagstone(&["probe", &place.path("bare"), "--scratch", "0-12"]).ok();
    place.run("probe", &["--scratch", "0-12", "--overwrite"]).ok();
}
