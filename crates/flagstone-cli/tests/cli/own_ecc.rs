//! Images of chips under ECC of our own; `tests/mtd/run` does the same on raw NAND.

use std::fs;

use crate::command::{Place, flagstone};

const CHIP: &[&str] = &["--profile", "slc-2k", "--ecc", "own", "--capacity", "4MiB"];

/// Bytes of a page of `slc-2k` with its spare area, and of a code word.
const PAGE: usize = 2048 + 64;
const WORD: usize = 512;

#[test]
fn flipped_bits_of_an_image_are_repaired() {
    let place = Place::with_database(CHIP);
    let value = "v".repeat(9000);
    place.run("put", &["t", "large", &value]).ok();
    let mut image = fs::read(place.file("db")).expect("an image");
    for page in image.chunks_mut(PAGE) {
        for word in page[..4 * WORD].chunks_mut(WORD) {
            for bit in 0..8 {
                word[13 + 60 * bit] ^= 1 << bit;
            }
        }
    }
    fs::write(place.file("db"), &image).expect("written");
    assert_eq!(place.run("get", &["t", "large"]).ok().stdout, format!("{value}\n"));
    assert_eq!(place.run("check", &["--json"]).ok().json()["sound"], true);
}

#[test]
fn whose_ecc_it_is_need_not_be_said_again() {
    let place = Place::with_database(CHIP);
    place.run("put", &["t", "a", "1"]).ok();
    let side = fs::read_to_string(place.file("db.toml")).expect("a side file");
    assert!(side.contains("ecc = \"own\"\n"), "{side}");
    assert_eq!(place.run("probe", &["--json"]).ok().json()["ecc"]["own"], true);
    // A profile that leaves the ECC to the device allows ours.
    place.run("get", &["t", "a", "--profile", "slc-2k"]).ok();
    place.run("get", &["t", "a", "--profile", "spi-nand"]).fails(7);
    let plain = flagstone(&["profiles", "slc-2k"]).ok().stdout.replace("1024", "32");
    fs::write(place.file("db.toml"), plain).expect("written");
    assert_eq!(place.run("get", &["t", "a"]).ok().stdout, "1\n");
    let other = side.replace("code_word_strength = 8", "code_word_strength = 7");
    fs::write(place.file("db.toml"), other).expect("written");
    let error = place.run("get", &["t", "a"]).fails(7).stderr;
    assert!(error.contains("8 bits in 512 bytes") && error.contains("7 bits"), "{error}");
}

#[test]
fn ecc_of_our_own_is_for_chips() {
    let place = Place::empty();
    let db = place.path("db");
    flagstone(&["create", &db, "--ecc", "own"]).fails(2);
    flagstone(&["create", &db, "--ecc", "own", "--profile", "otf-ssd"]).fails(2);
    flagstone(&["create", &db, "--ecc", "device", "--profile", "tiny-own"]).fails(2);
    assert!(!place.file("db").exists());
    flagstone(&["create", &db, "--profile", "tiny-own", "--capacity", "512KiB"]).ok();
    place.run("put", &["t", "a", "1"]).ok();
    place.run("check", &[]).ok();
}
