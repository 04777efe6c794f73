//! Backup and restore: another device gets the same rows, and an incomplete backup creates nothing.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread;

use flagstone::{Database, Options};

use crate::command::{DEVICES, Place, binary, flagstone, run};

/// Names of the files in a directory.
fn names(place: &Place) -> Vec<String> {
    let names = fs::read_dir(place.file("")).expect("readable");
    let mut names: Vec<_> = names
        .map(|entry| entry.expect("readable").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    names
}

fn filled(device: &[&str]) -> Place {
    let place = Place::with_database(device);
    place.run("put", &["users", "ada", "countess"]).ok();
    place.run("put", &["users", r"\x00", ""]).ok();
    fs::write(place.file("value"), vec![7; 100_000]).expect("written");
    place.run("put", &["photos", "ada", "--file", &place.path("value")]).ok();
    place
}

#[test]
fn what_was_backed_up_is_restored_on_the_other_device() {
    for (device, other) in DEVICES.iter().zip(DEVICES.iter().rev()) {
        let place = filled(device);
        let report = place.run("backup", &[&place.path("out"), "--json"]).ok().json();
        assert_eq!((&report["tables"], &report["rows"]), (&2.into(), &3.into()), "{report}");
        flagstone(&["restore", "--verify", &place.path("out")]).ok();
        let restored = place.path("new");
        flagstone(&[&["restore", &restored, &place.path("out")], *other].concat()).ok();
        let export = flagstone(&["export", &restored]).ok().stdout;
        assert!(export == place.run("export", &[]).ok().stdout, "{device:?}");
        assert_eq!(flagstone(&["check", &restored, "--json"]).ok().json()["sound"], true);
        assert!(names(&place).iter().all(|name| !name.starts_with(".flagstone-")));
    }
}

#[test]
fn backups_pass_through_pipes() {
    let place = filled(DEVICES[1]);
    let mut writer = binary(&["backup", &place.path("db"), "-"]);
    let mut writer = writer.stdout(Stdio::piped()).spawn().expect("runs");
    let pipe = writer.stdout.take().expect("piped");
    run(binary(&["restore", &place.path("new"), "-", "--capacity", "8MiB"]).stdin(pipe)).ok();
    assert!(writer.wait().expect("ends").success());
    let row = flagstone(&["get", &place.path("new"), "users", "ada"]).ok();
    assert_eq!(row.stdout, "countess\n");
}

/// Goal: an input that can be read once is read once. Method: a backup and an export through named pipes, whose
/// writers end when they have written once.
#[test]
fn what_comes_through_a_named_pipe_is_read_once() {
    let place = filled(DEVICES[1]);
    let pipe = place.path("pipe");
    let made = run(std::process::Command::new("mkfifo").arg(&pipe));
    assert_eq!(made.code, 0, "{made:?}");
    let (out, rows) = (place.path("out"), place.path("rows"));
    place.run("backup", &[&out]).ok();
    place.run("export", &[&rows]).ok();
    flagstone(&["create", &place.path("other")]).ok();
    for (command, name, source) in [("restore", "new", &out), ("import", "other", &rows)] {
        let mut writer = std::process::Command::new("cp").args([source, &pipe]).spawn();
        let writer = writer.as_mut().expect("runs");
        run(std::process::Command::new("timeout")
            .args(["60", env!("CARGO_BIN_EXE_flagstone")])
            .args([command, &place.path(name), &pipe]))
        .ok();
        assert!(writer.wait().expect("ends").success());
        let row = flagstone(&["get", &place.path(name), "users", "ada"]).ok();
        assert_eq!(row.stdout, "countess\n");
    }
}

#[test]
fn what_is_not_a_whole_backup_creates_nothing() {
    let place = filled(DEVICES[0]);
    place.run("backup", &[&place.path("good")]).ok();
    let good = fs::read(place.file("good")).expect("there");
    let mut turned = good.clone();
    turned[50_000] ^= 1;
    let before = names(&place);
    for (bad, code) in [
        (&good[..good.len() - 1], 20),
        (&turned, 20),
        (b"hello", 20),
        (&[b"\x8aFLAG\r\n\x1a\x07\0\0\0", &good[12..]].concat(), 6),
    ] {
        fs::write(place.file("good"), bad).expect("written");
        let input = fs::File::open(place.file("good")).expect("there");
        flagstone(&["restore", &place.path("new"), &place.path("good")]).fails(code);
        flagstone(&["restore", "--verify", &place.path("good")]).fails(code);
        run(binary(&["restore", &place.path("new"), "-"]).stdin(input)).fails(code);
        assert_eq!(names(&place), before, "nothing of it stays");
    }
}

#[test]
fn nothing_is_written_over() {
    let place = filled(DEVICES[0]);
    place.run("backup", &[&place.path("out")]).ok();
    place.run("backup", &[&place.path("out")]).fails(18);
    place.run("restore", &[&place.path("out")]).fails(18);
    place.run("get", &["users", "ada"]).ok();
    let (new, out) = (place.path("new"), place.path("out"));
    flagstone(&["restore", &new, &place.path("absent")]).fails(19);
    flagstone(&["restore", &new]).fails(2);
    flagstone(&["restore", "--verify", &new, &out]).fails(2);
    place.run("backup", &["-", "--json"]).fails(2);
    let before = names(&place);
    flagstone(&["restore", &new, &out, "--profile", "tiny"]).fails(13);
    assert_eq!(names(&place), before, "a restore that does not fit leaves nothing");
}

/// Goal: the leftovers of an interrupted restore harm nobody and go; other files stay. Method: a restore that is
/// killed half way, and another file under the name of such a leftover.
#[test]
fn what_a_restore_left_is_replaced() {
    let place = filled(DEVICES[0]);
    let (new, out) = (place.path("new"), place.path("out"));
    place.run("backup", &[&out]).ok();
    let before = names(&place);
    let ran = flagstone(&["restore", &new, &out, "--device", "file", "--profile", "slc-2k"]);
    assert!(ran.stderr.contains("new: "), "{ran:?}");
    assert!(!ran.fails(7).stderr.contains(".flagstone-"), "nobody knows that name");
    assert_eq!(names(&place), before, "a restore that cannot begin leaves nothing");
    let mut killed = binary(&["restore", &new, "-"]).stdin(Stdio::piped()).spawn().expect("runs");
    while names(&place) == before {
        assert!(killed.try_wait().expect("ours").is_none(), "it waits for the backup");
        thread::yield_now();
    }
    killed.kill().expect("may be killed");
    killed.wait().expect("ends");
    let left = names(&place);
    assert!(left.len() == before.len() + 1 && !place.file("new").exists(), "{left:?}");
    Database::create(place.file("new.restoring"), &Options::default()).expect("created");
    flagstone(&["restore", &new, &out]).ok();
    let mut expected = [before, vec!["new".into(), "new.restoring".into()]].concat();
    expected.sort();
    assert_eq!(names(&place), expected);
    assert_eq!(flagstone(&["get", &new, "users", "ada"]).ok().stdout, "countess\n");
}

/// Goal: a block device gets a database by `create` and by `restore`, and gives one up only when asked. Method: a
/// loop device, where this user may make one; elsewhere there is nothing to test.
#[test]
#[cfg(target_os = "linux")]
fn a_block_device_is_restored_to_and_given_up_when_asked() {
    let place = filled(DEVICES[1]);
    place.run("backup", &[&place.path("out")]).ok();
    fs::write(place.file("disk"), vec![0; 12 << 20]).expect("written");
    let losetup = |arguments: &[&str]| {
        let output = Command::new("losetup").args(arguments).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(text)
    };
    let Some(disk) = losetup(&["--find", "--show", &place.path("disk")]) else { return };
    let out = place.path("out");
    let test = || {
        let size = ["--capacity", "8MiB"];
        flagstone(&[&["restore", &disk, &out], &size[..]].concat()).ok();
        for command in [&["restore", &disk, &out][..], &["create", &disk]] {
            let ran = flagstone(&[command, &size].concat()).fails(18);
            assert!(ran.stderr.contains("--overwrite"), "{}", ran.stderr);
        }
        assert_eq!(flagstone(&["get", &disk, "users", "ada"]).ok().stdout, "countess\n");
        flagstone(&[&["create", &disk, "--overwrite"], &size[..]].concat()).ok();
        flagstone(&["get", &disk, "users", "ada"]).fails(3);
        flagstone(&[&["restore", &disk, &out, "--overwrite"], &size[..]].concat()).ok();
        assert_eq!(flagstone(&["check", &disk, "--json"]).ok().json()["sound"], true);
    };
    let result = std::panic::catch_unwind(test);
    losetup(&["-d", &disk]);
    assert!(result.is_ok());
    place.run("restore", &[&out, "--overwrite"]).fails(2);
}

/// Goal: a database that takes the name of another one during its restore keeps it, on both kinds of device. Method:
/// half of the backup comes through a pipe, then the other database is made, then the rest comes.
#[test]
fn a_name_that_is_taken_meanwhile_is_not_written_over() {
    for device in DEVICES {
        let place = filled(device);
        place.run("backup", &[&place.path("out")]).ok();
        let whole = fs::read(place.file("out")).expect("there");
        let (half, rest) = whole.split_at(whole.len() / 2);
        let new = place.path("new");
        let mut restore = binary(&[&["restore", &new, "-"], device].concat());
        let restore = restore.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut restore = restore.spawn().expect("runs");
        let mut pipe = restore.stdin.take().expect("piped");
        pipe.write_all(half).expect("it reads");
        while !names(&place).iter().any(|name| name.starts_with(".flagstone-")) {
            assert!(restore.try_wait().expect("ours").is_none(), "it waits for the rest");
            thread::yield_now();
        }
        flagstone(&[&["create", &new], device].concat()).ok();
        flagstone(&["put", &new, "t", "mine", "yes"]).ok();
        let before = names(&place);
        pipe.write_all(rest).expect("it reads");
        drop(pipe);
        let ended = restore.wait_with_output().expect("ends");
        let message = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(18), "{message}");
        assert!(message.contains("File exists"), "{message}");
        let left: Vec<_> =
            before.into_iter().filter(|name| !name.starts_with(".flagstone-")).collect();
        assert_eq!(names(&place), left, "{device:?}");
        assert_eq!(flagstone(&["get", &new, "t", "mine"]).ok().stdout, "yes\n");
        flagstone(&["get", &new, "users", "ada"]).fails(3);
    }
}

/// Goal: rows beyond the limits of the target give an error that says so, and no file of the target stays.
#[test]
fn a_backup_does_not_fit_where_its_keys_are_too_long() {
    let place = Place::with_database(DEVICES[1]);
    place.run("put", &["t", &"k".repeat(900), "v"]).ok();
    place.run("backup", &[&place.path("out")]).ok();
    let before = names(&place);
    let (new, out) = (place.path("new"), place.path("out"));
    let error = flagstone(&[&["restore", &new, &out], DEVICES[0]].concat()).fails(13).stderr;
    assert!(error.contains("key of 900 bytes is longer than 504"), "{error}");
    assert_eq!(names(&place), before);
}

/// Goal: with `verify_on_open` a command refuses a database with a damaged leaf.
#[test]
fn verification_on_opening_can_be_asked_for() {
    let place = filled(DEVICES[1]);
    place.run("merge", &[]).ok();
    let asked = ["users", "ada", "-o", "verify-on-open=check"];
    place.run("get", &asked).ok();
    let mut file = fs::read(place.file("db")).expect("there");
    for at in 0..file.len() - 3_000 {
        // The middle of the large value, on each page that holds it.
        if file[at..at + 3_000].iter().all(|byte| *byte == 7) {
            file[at + 1_500] = 8;
        }
    }
    fs::write(place.file("db"), file).expect("written");
    place.run("get", &asked).fails(5);
    place.run("get", &["users", "ada", "-o", "verify-on-open=maybe"]).fails(2);
    // The findings of a check are printed, and its failure is reported like any command's.
    let ran = place.run("check", &["--json"]).fails(5);
    assert_eq!(ran.json()["sound"], false);
    let error: serde_json::Value = serde_json::from_str(&ran.stderr).expect("one line of JSON");
    assert_eq!(error["error"]["code"], 5, "{error}");
    let ran = place.run("check", &[]).fails(5);
    assert!(ran.stdout.contains("damaged: ") && ran.stderr.contains("the check found"), "{ran:?}");
}
