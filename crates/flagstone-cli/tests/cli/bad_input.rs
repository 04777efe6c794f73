//! Bad input: each kind has a typed error and a code of its own, and costs no stored row.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use flagstone::{Database, Options};

use crate::command::{DEVICES, Place, binary, flagstone, run};

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
    let pipe = run(std::process::Command::new("mkfifo").arg(place.file("pipe")));
    assert_eq!(pipe.code, 0, "{pipe:?}");
    for name in ["dir", "pipe"] {
        let ran = flagstone(&["get", &place.path(name), "t", "k"]).fails(4);
        assert!(ran.stderr.contains("no plain file, block device or MTD node"), "{}", ran.stderr);
    }
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

/// Goal: a scan that meets damage on its way prints whole JSON, which says that rows are missing. Method: the bytes
/// of a row in the middle of many are overwritten, in each place where they stand.
#[test]
fn a_scan_that_damage_ends_is_json_and_says_so() {
    let place = Place::with_database(DEVICES[1]);
    let line = |row: u32| format!("{{\"table\":\"t\",\"key\":\"{row:08}\",\"value\":\"AAAA\"}}\n");
    fs::write(place.file("rows"), (0..5_000).map(line).collect::<String>()).expect("written");
    place.run("import", &[&place.path("rows")]).ok();
    place.run("put", &["t", "\\xd3M4\\xdb\\x9d3", "the one in the middle"]).ok();
    place.run("merge", &[]).ok();
    let mut bytes = fs::read(place.file("db")).expect("readable");
    let wanted = b"the one in the middle";
    let found = |bytes: &[u8]| bytes.windows(wanted.len()).position(|window| window == wanted);
    while let Some(at) = found(&bytes) {
        bytes[at..at + wanted.len()].fill(0);
    }
    fs::write(place.file("db"), &bytes).expect("written");
    let ran = place.run("scan", &["t", "--json"]).fails(5);
    let json = ran.json();
    let rows = json["rows"].as_array().expect("rows").len();
    assert!(rows > 100 && rows < 5_000, "{rows}");
    assert_eq!((&json["count"], &json["complete"]), (&rows.into(), &false.into()));
    let json = place.run("scan", &["t", "--json", "--limit", "10"]).ok().json();
    assert_eq!((&json["count"], json.get("complete")), (&10.into(), None));
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
        (vec!["create", &new, "--preset", "cfc"], "`bench`, `crash` and `lab` alone"),
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

/// Goal: a file is recognised by its content. Method: a foreign TOML file beside a plain file, under every command
/// that asks for the kind of the file.
#[test]
fn a_stray_toml_file_beside_a_plain_file_is_not_asked() {
    let place = place_with_a_row(DEVICES[1]);
    fs::write(place.file("db.toml"), "[shop]\nname = \"corner\"\n").expect("written");
    row_is_there(&place);
    place.run("stats", &["--profile", "segment-file"]).ok();
    place.run("compact", &[]).ok();
    let error = place.run("probe", &[]).fails(4).stderr;
    assert!(error.contains("no chip"), "{error}");
    place.run("backup", &[&place.path("out")]).ok();
    fs::write(place.file("new.toml"), "").expect("written");
    flagstone(&["restore", &place.path("new"), &place.path("out")]).ok();
    flagstone(&["restore", &place.path("new"), &place.path("out"), "--device", "image"]).fails(18);
    row_is_there(&place);
}

#[test]
fn an_image_without_its_profile_is_told_what_it_lacks() {
    let place = place_with_a_row(DEVICES[0]);
    let side = place.file("db.toml");
    let profile = fs::read(&side).expect("readable");
    fs::remove_file(&side).expect("removed");
    let error = place.run("get", &["t", "kept"]).fails(4).stderr;
    assert!(error.contains(".toml"), "{error}");
    fs::write(&side, profile).expect("written");
    row_is_there(&place);
}

#[test]
fn a_file_too_small_is_told_the_least_size() {
    let place = Place::empty();
    let new = place.path("new");
    let error = flagstone(&["create", &new, "--capacity", "64KiB"]).fails(8).stderr;
    let size = error.split(", ").last().and_then(|text| text.split(' ').next());
    let size = size.expect("the message ends with a size");
    flagstone(&["create", &new, "--capacity", size]).ok();
    flagstone(&["stats", &new, "--profile", "segment-file"]).ok();
}

#[test]
fn values_outside_their_range_are_refused() {
    let place = Place::empty();
    let new = place.path("new");
    for arguments in [
        vec!["create", &new, "--capacity", "lots"],
        vec!["create", &new, "--memory", "1 parsec"],
        vec!["create", &new, "-o", "durability=sideways"],
        vec!["create", &new, "-o", "group_fill=2"],
        vec!["create", &new, "-o", "frames=ahead"],
        vec!["bench", "tpcb", "-o", "frames=sideways"],
        vec!["create", &new, "--device", "sim"],
        vec!["bench", "tpch"],
        vec!["bench", "tpcb", "--fill", "7"],
        vec!["bench", "tpcb", "--warmup", "some"],
        vec!["bench", "tpcb", "--clients", "0"],
        vec!["bench", "tpcb", "--clients", "70000", "--device", "image"],
        vec!["bench", "tpcb", "--clients", "70000", "--device", "file"],
        vec!["bench", "tpcb", "--subscribers", "9"],
        vec!["bench", "tatp", "--scale", "9"],
        vec!["bench", "tatp", "--dialect", "dbt2"],
        vec!["bench", "linkbench", "--subscribers", "9"],
        vec!["bench", "linkbench", "--nodes", "1000"],
        vec!["crash", "--depth", "9"],
        vec!["crash", "--cut", "1"],
    ] {
        flagstone(&arguments).fails(2);
    }
    assert!(!place.file("new").exists(), "a refused command creates nothing");
    flagstone(&["bench", "tpcb", "--device", "mtd"]).fails(2);
    flagstone(&["bench", "tpcb", "--node", "/dev/mtd0"]).fails(2);
    flagstone(&["bench", "tpcb", "--device", "mtd", "--node", &new]).fails(19);
    let error = flagstone(&["crash", "--preset", "cfc", "--profile", "tiny"]).fails(8).stderr;
    assert!(error.contains("`cfc` needs") && error.contains("try `"), "{error}");
    flagstone(&["create", &new, "--device", "mtd", "--capacity", "1MiB"]).fails(2);
}

/// Goal: a message names the fault and the remedy. Method: texts that it must contain.
#[test]
fn messages_say_what_would_be_right() {
    let place = Place::with_database(&["--limit", "64MiB"]);
    let (db, new) = (place.path("db"), place.path("new"));
    for (code, arguments, words) in [
        (8, vec!["create", &new, "--capacity", "0"], "at least"),
        (8, vec!["create", &new, "--limit", "0"], "at least"),
        (2, vec!["create", &new, "--memory", "1"], "at least 98304"),
        (2, vec!["create", &new, "--limit", "-1"], "`-1` is not a size"),
        (7, vec!["create", &new, "--profile", "nandsim", "--device", "file"], "kind of device"),
        (2, vec!["create", &new, "--preset", "nonsense"], "no preset `nonsense`\n"),
        (2, vec!["create", &new, "-o", "nonsense=1"], "no option `nonsense`\n"),
        (2, vec!["create", &new, "--profile", "nonsense"], "no file is named `nonsense`\n"),
        (2, vec!["bench", "tpcb", "--seconds", "-3"], "--seconds cannot be `-3`"),
        (2, vec!["bench", "tpcb", "--clients", "-1"], "-1 is not in"),
        (2, vec!["bench", "tpcb", "--clients", "1001", "--device", "file"], "1,000 at most"),
        (2, vec!["bench", "tpcb", "--txns", "18446744073709551615"], "is not in"),
        (2, vec!["quickstart", "--txns", "18446744073709551615"], "is not in"),
        (2, vec!["crash", "--ops", "4294967295"], "is not in"),
        (2, vec!["crash", "--cut", "3", "--ending", "foo"], "partly-erased"),
        (2, vec!["crash", "--cut", "99999", "--ending", "complete"], "the last"),
        (2, vec!["crash", "--cut", "9", "--ending", "unsynced-lost"], "untouched, complete"),
        (2, vec!["lab", "reproduce", "nonsense"], "no paper `nonsense`\n"),
        (3, vec!["get", &db, "nonsense", "k"], "no table `nonsense`\n"),
        (2, vec!["get", &db, "t", "k", "-o", "parts=2"], "`parts` is decided when"),
        (2, vec!["compact", &db, "-o", "log-pages=512"], "`log_pages` is decided when"),
        (13, vec!["put", &db, "t", "k", "--file", "/dev/zero"], "longer than the longest value"),
    ] {
        let ran = flagstone(&arguments).fails(code);
        assert!(ran.stderr.contains(words), "{arguments:?}: {}", ran.stderr);
        assert!(!ran.stderr.contains("did you mean"), "{arguments:?}: {}", ran.stderr);
    }
    assert!(!place.file("new").exists());
    place.run("compact", &["--limit", "128MiB", "-o", "log-pages=512"]).ok();
    let ran = place.run("wear", &["--svg", &place.path("none/x.svg")]).fails(19);
    assert!(ran.stderr.contains("none/x.svg: ") && !ran.stderr.contains(".flagstone-"), "{ran:?}");
    let ran = flagstone(&["create", &new, "--limit", "1MiB"]).ok();
    assert!(ran.stdout.contains("1 MiB, its limit"), "{ran:?}");
}

#[test]
fn what_is_no_raw_nand_is_refused_and_stays() {
    let place = Place::empty();
    let (none, plain) = (place.path("none"), place.path("plain"));
    flagstone(&["create", &none, "--device", "mtd"]).fails(19);
    std::fs::write(&plain, b"mine").unwrap();
    for refused in [
        flagstone(&["create", &plain, "--device", "mtd"]).fails(4),
        flagstone(&["stats", "/dev/null"]).fails(4),
    ] {
        assert!(refused.stderr.contains("no MTD device"), "{}", refused.stderr);
    }
    assert_eq!(std::fs::read(&plain).unwrap(), b"mine");
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

/// Goal: a creation that fails changes no file and leaves none; once the fault is repaired, the same name is free.
#[test]
fn a_creation_that_fails_takes_and_leaves_no_file() {
    let place = Place::empty();
    let own = flagstone(&["profiles", "slc-2k"]).ok().stdout;
    fs::write(place.file("own.toml"), &own).expect("written");
    let (new, profile) = (place.path("own"), place.path("own.toml"));
    let ran = flagstone(&["create", &new, "--profile", &profile]).fails(18);
    assert!(ran.stderr.contains("own.toml: File exists"), "{}", ran.stderr);
    assert_eq!(fs::read_to_string(place.file("own.toml")).expect("still there"), own);
    assert!(!place.file("own").exists(), "no image stays");

    let db = place.path("db");
    flagstone(&["create", &db, "--device", "file", "--profile", "slc-2k"]).fails(7);
    assert!(!place.file("db").exists(), "no file stays");
    flagstone(&["create", &db, "--limit", "1GiB"]).ok();

    // The file may not become as long as it has to be.
    let command = env!("CARGO_BIN_EXE_flagstone");
    let small = place.path("small");
    for device in ["--profile slc-2k", "--device file --capacity 8MiB", "--limit 1GiB"] {
        let script =
            format!("trap '' XFSZ; ulimit -f 16; exec '{command}' create '{small}' {device}");
        let ran = run(std::process::Command::new("sh").args(["-c", &script]));
        assert_ne!(ran.code, 0, "{device}: {ran:?}");
        assert!(!place.file("small").exists() && !place.file("small.toml").exists(), "{device}");
    }
}

#[test]
fn keys_and_values_that_are_too_long_are_refused() {
    for device in DEVICES {
        let place = place_with_a_row(device);
        let limits = &place.run("stats", &["--json"]).ok().json()["limits"];
        let limit = |name: &str| limits[name].as_u64().expect("a size") as usize;
        let longest = "k".repeat(limit("key_size_max"));
        place.run("put", &["t", &longest, "v"]).ok();
        place.run("put", &["t", &format!("{longest}k"), "v"]).fails(13);
        place.run("get", &["t", &format!("{longest}k")]).fails(13);
        // A sparse file: it stores nothing, and only so much of it is read as shows that it is too long.
        let long = fs::File::create(place.file("long")).expect("created");
        long.set_len(limit("value_size_max") as u64 + 10).expect("a sparse file");
        let ran = place.run("put", &["t", "big", "--file", &place.path("long")]);
        assert!([11, 13].contains(&ran.code), "{device:?}: {ran:?}");
        row_is_there(&place);
    }
}

/// Goal: a name that is too long is called a name. Method: each command that makes one.
#[test]
fn names_that_are_too_long_are_refused_as_names() {
    let place = place_with_a_row(DEVICES[1]);
    let long = "n".repeat(20_000);
    let row = format!("{{\"table\":\"{long}\",\"key\":\"\",\"value\":\"\"}}\n");
    fs::write(place.file("rows"), row).expect("written");
    let (db, rows) = (place.path("db"), place.path("rows"));
    for arguments in [
        vec!["put", &db, &long, "k", "v"],
        vec!["rename", &db, "t", &long],
        vec!["snapshot", "keep", &db, &long],
        vec!["import", &db, &rows],
    ] {
        let error = flagstone(&arguments).fails(13).stderr;
        assert!(error.contains("name of 20000 bytes is longer than"), "{arguments:?}: {error}");
    }
    row_is_there(&place);
}

/// Goal: a profile that no device can honour is refused, with the key at fault. Method: shipped profiles with a key
/// changed.
#[test]
fn a_profile_that_no_device_honours_is_refused() {
    let place = Place::empty();
    let (new, odd) = (place.path("new"), place.path("odd.toml"));
    for (name, from, to, key) in [
        ("slc-2k", "cell_mode = \"slc\"", "cell_mode = \"translated\"", "`cell_mode`"),
        ("slc-2k", "needs_sync = false", "needs_sync = true", "`needs_sync`"),
        ("slc-2k", "rewrite_tail = false", "rewrite_tail = true", "`rewrite_tail`"),
        ("slc-2k", "programs_spare = 4", "programs_spare = 0", "`programs_spare`"),
        ("slc-2k", "endurance = 100000", "endurance = 0", "`endurance`"),
        ("slc-2k", "code_word_strength = 4", "code_word_strength = 4097", "`code_word_strength`"),
        ("slc-2k", "code_word_size = 512", "code_word_size = 300", "`code_word_size`"),
        ("slc-2k", "cell_mode =", "pair_distance = 2\ncell_mode =", "`rules.pair_distance`"),
        ("slc-2k", "spare_raw_size = 38", "spare_raw_size = 63", "`spare_raw`"),
        ("segment-file", "needs_sync = true", "needs_sync = false", "`needs_sync`"),
        ("segment-file", "programs_data = 1", "programs_data = 2", "`programs_data`"),
        ("segment-file", "code_word_size = 512", "code_word_size = 1024", "`code_word_size`"),
        ("segment-file", "spare_size = 0", "spare_size = 64", "`spare_size`"),
        ("segment-file", "die_count = 1", "die_count = 0", "`die_count`"),
    ] {
        let text = flagstone(&["profiles", name]).ok().stdout;
        assert!(text.contains(from), "{name} has no {from}: {text}");
        fs::write(&odd, text.replace(from, to)).expect("written");
        let spare = if to == "spare_size = 64" { "`programs_spare`" } else { key };
        let error = flagstone(&["create", &new, "--profile", &odd]).fails(2).stderr;
        assert!(error.contains(key) || error.contains(spare), "{to}: {error}");
        assert!(!place.file("new").exists());
    }
}

/// Goal: a file for which the host has no room is refused before it is written, and a large one is announced. Method:
/// sizes beyond what the file system has; a creation that is ended after its announcement.
#[test]
fn large_files_are_announced_or_refused() {
    let place = Place::empty();
    let new = place.path("new");
    for arguments in [
        vec!["create", &new, "--capacity", "12TiB", "--device", "file"],
        vec!["create", &new, "--capacity", "4TiB", "--profile", "mqsim-mlc"],
    ] {
        let ran = flagstone(&arguments).fails(11);
        assert!(ran.stderr.contains("TiB, and the file system has"), "{arguments:?}: {ran:?}");
        assert!(!place.file("new").exists() && !place.file("new.toml").exists());
    }
    let large = ["create", &new, "--capacity", "1GiB", "--profile", "slc-2k", "--json"];
    let mut command = binary(&large);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("runs");
    let mut said = String::new();
    let mut messages = BufReader::new(child.stderr.take().expect("piped"));
    messages.read_line(&mut said).expect("text");
    child.kill().expect("ours");
    child.wait().expect("ends");
    assert!(said.contains("warning") && said.contains("1.03 GiB"), "{said}");
}

/// CRC-32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let shifted = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
    let step = |crc, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| shifted(crc));
    !bytes.iter().fold(!0, step)
}

#[test]
fn another_version_of_the_format_is_named() {
    let place = place_with_a_row(DEVICES[1]);
    let whole = fs::read(place.file("db")).expect("readable");
    let mut newer = whole.clone();
    let mirror = u64::from_le_bytes(whole[44..52].try_into().expect("eight bytes")) as usize - 4096;
    for copy in [0, mirror] {
        newer[copy + 8] = 4;
        let crc = crc32c(&newer[copy..copy + 508]);
        newer[copy + 508..copy + 512].copy_from_slice(&crc.to_le_bytes());
    }
    fs::write(place.file("db"), &newer).expect("written");
    let error = place.run("put", &["t", "k", "v"]).fails(6).stderr;
    assert!(error.contains("version 4"), "{error}");
    assert_eq!(fs::read(place.file("db")).expect("readable"), newer, "nothing was written");
    fs::write(place.file("db"), &whole).expect("written");
    row_is_there(&place);
}

#[test]
fn an_image_whose_description_is_gone_or_wrong_is_refused() {
    let place = place_with_a_row(DEVICES[0]);
    let side = place.file("db.toml");
    let text = fs::read_to_string(&side).expect("readable");
    for (wrong, code) in [
        (text.replace("page_size", "page_sise"), 5),
        (text.replace("block_count = 32", "block_count = 31"), 5),
        (String::from("not = [toml"), 5),
    ] {
        assert_ne!(wrong, text, "the text was changed");
        fs::write(&side, wrong).expect("written");
        let ran = place.run("put", &["t", "kept", "no"]).fails(code);
        let names_it = ran.stderr.contains("db.toml: ") || ran.stderr.contains("its geometry");
        assert!(names_it, "{}", ran.stderr);
    }
    fs::remove_file(&side).expect("removed");
    place.run("put", &["t", "kept", "no"]).fails(4);
    fs::write(&side, text).expect("written");
    row_is_there(&place);
}

/// Goal: a file that cannot be written any more gives a typed error and loses no commit.
///
/// Method: the shell forbids the process to write beyond the first 8 KiB of any file.
#[test]
fn a_device_that_fails_while_it_is_written_poisons_and_keeps_every_commit() {
    let place = place_with_a_row(DEVICES[1]);
    let script = format!(
        "trap '' XFSZ; ulimit -f 16; exec '{}' put '{}' t other v",
        env!("CARGO_BIN_EXE_flagstone"),
        place.path("db")
    );
    run(std::process::Command::new("sh").args(["-c", &script])).fails(14);
    row_is_there(&place);
    place.run("check", &[]).ok();
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
fn a_read_only_file_is_refused_to_those_who_write() {
    for device in DEVICES {
        let place = place_with_a_row(device);
        let path = place.file("db");
        let mut permissions = fs::metadata(&path).expect("there").permissions();
        permissions.set_readonly(true);
        fs::set_permissions(&path, permissions).expect("changed");
        place.run("put", &["t", "kept", "no"]).fails(10);
        place.run("stats", &[]).ok();
        let opened = Database::open(&path, &Options::default());
        let error = opened.expect_err("the library refuses it too");
        assert_eq!(error.to_string(), "the device cannot be written");
        let mut permissions = fs::metadata(&path).expect("there").permissions();
        permissions.set_mode(0o644);
        fs::set_permissions(&path, permissions).expect("changed");
        row_is_there(&place);
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
fn a_paper_that_is_unknown_is_named() {
    let ran = flagstone(&["lab", "reproduce", "flag-comit"]);
    assert!(ran.stderr.contains("did you mean `flag-commit`?"), "{}", ran.stderr);
    ran.fails(2);
}

#[test]
fn a_port_that_is_taken_is_said() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("it has an address").port().to_string();
    let ran = flagstone(&["demo", "--port", &port]).fails(1);
    assert!(ran.stderr.contains("cannot listen on this port"), "{}", ran.stderr);
    flagstone(&["demo", "--port", "65536"]).fails(2);
}

#[test]
fn in_place_appends_are_refused_where_nothing_makes_them() {
    let bench = |preset: &str, profile: &str, scheme: &str| {
        let scheme = format!("append_scheme={scheme}");
        let args = ["bench", "tpcb", "--preset", preset, "--profile", profile, "-o", &scheme];
        let size =
            ["--txns", "2000", "--warmup", "none", "--fill", "0.3", "--clients", "4", "--json"];
        flagstone(&[&args[..], &size].concat())
    };
    for preset in ["flagstone", "cfc"] {
        let ran = bench(preset, "openssd-jasmine-pslc", "2x4");
        assert!(ran.stderr.contains("append_scheme"), "{}", ran.stderr);
        ran.fails(2);
    }
    let ran = bench("ipa-2x4", "openssd-jasmine-mlc", "2x4");
    assert!(ran.stderr.contains("in-place appends"), "{}", ran.stderr);
    assert!(ran.stderr.contains("ipa-0x0"), "{}", ran.stderr);
    ran.fails(8);
    let ran = bench("ipa-2x4", "openssd-jasmine-pslc", "9x4");
    assert!(ran.stderr.contains("no append scheme"), "{}", ran.stderr);
    ran.fails(2);
    let ran = bench("ipa-2x4", "openssd-jasmine-pslc", "2x4").ok();
    assert!(ran.json()["delta_appends"].as_u64() > Some(500), "{}", ran.stdout);
}
