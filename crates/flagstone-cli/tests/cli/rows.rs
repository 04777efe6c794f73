//! Rows: a stored row is there, in order, in every later process.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Stdio;

use flagstone::typed::AnyIndex;
use flagstone::{Database, Index, Options};

use crate::command::{DEVICES, Place, binary, flagstone, run};

/// Goal: a message shows names in their written form, and steers no terminal. Method: a table and a snapshot whose
/// names hold control characters, requested with a letter more.
#[test]
fn names_in_messages_are_written_as_everywhere() {
    let place = Place::with_database(DEVICES[0]);
    place.run("put", &["a\u{1b}[31mred", "k", "v"]).ok();
    let error = place.run("get", &["a\u{1b}[31mredd", "k"]).fails(3).stderr;
    let expected = "no table `a\\x1b[31mredd`; did you mean `a\\x1b[31mred`?";
    assert!(error.contains(expected), "{error}");
    let error = place.run("get", &["a\u{1b}[31mred", "l"]).fails(3).stderr;
    assert!(error.contains("table `a\\x1b[31mred` has no key `l`"), "{error}");
    let error = place.run("get", &["t", "k", "--snapshot", "x\n"]).fails(3).stderr;
    assert!(error.contains("no snapshot `x\\x0a` is kept"), "{error}");
}

#[test]
fn what_one_process_puts_the_next_one_gets() {
    for device in DEVICES {
        let place = Place::with_database(device);
        place.run("put", &["users", "ada", "countess"]).ok();
        assert_eq!(place.run("get", &["users", "ada"]).ok().stdout, "countess\n", "{device:?}");
        place.run("put", &["users", "ada", "analyst"]).ok();
        assert_eq!(place.run("get", &["users", "ada"]).ok().stdout, "analyst\n", "{device:?}");
        place.run("del", &["users", "ada"]).ok();
        place.run("get", &["users", "ada"]).fails(3);
        place.run("check", &[]).ok();
    }
}

#[test]
fn bytes_outside_printable_ascii_go_in_and_come_out_as_hexadecimal() {
    let place = Place::with_database(DEVICES[0]);
    place.run("put", &["t", r"k\x00\xff", r"\\ \x0a"]).ok();
    assert_eq!(place.run("get", &["t", r"k\x00\xFF"]).ok().stdout, "\\\\ \\x0a\n");
    assert_eq!(place.run("scan", &["t"]).ok().stdout, "k\\x00\\xff\t\\\\ \\x0a\n");
    let error = place.run("get", &["t", r"k\n"]).fails(2).stderr;
    assert!(error.contains("position 1"), "{error}");
}

#[test]
fn values_go_in_from_files_and_come_out_as_they_are() {
    let place = Place::with_database(&["--capacity", "32MiB"]);
    let value: Vec<u8> = (0..1_500_000_u32).map(|n| (n.wrapping_mul(n) >> 3) as u8).collect();
    std::fs::write(place.file("value"), &value).expect("written");
    place.run("put", &["t", "large", "--file", &place.path("value")]).ok();
    let mut piped = binary(&["put", &place.path("db"), "t", "piped", "--file", "-"]);
    let input = std::fs::File::open(place.file("value")).expect("there");
    assert_eq!(run(piped.stdin(input)).code, 0);
    for key in ["large", "piped"] {
        let output = binary(&["get", &place.path("db"), "t", key, "--raw"]).output().expect("runs");
        assert!(output.stdout == value, "{key} comes out as it went in");
    }
    let report = place.run("check", &["--json"]).ok().json();
    assert_eq!((&report["rows"], &report["values"]), (&2.into(), &2.into()), "{report}");
    place.run("put", &["t", "k", "v", "--file", &place.path("value")]).fails(2);
    place.run("put", &["t", "k", "--file", &place.path("absent")]).fails(19);
    place.run("put", &["t", "k"]).fails(2);
    place.run("get", &["t", "large", "--raw", "--json"]).fails(2);
}

#[test]
fn paths_keys_and_values_need_not_be_text() {
    let place = Place::empty();
    let bytes = |bytes: &'static [u8]| OsStr::from_bytes(bytes);
    let path = place.file("").join(bytes(b"caf\xe9.db"));
    let on = |command: &str| {
        let mut binary = binary(&[command]);
        binary.arg(&path);
        binary
    };
    run(on("create").args(["--capacity", "8MiB"])).ok();
    run(on("put").arg("t").arg(bytes(b"\xff")).arg(bytes(b"\xfe"))).ok();
    assert_eq!(run(on("get").args(["t", r"\xff"])).ok().stdout, "\\xfe\n");
    let file = |name: &'static [u8]| place.file("").join(bytes(name));
    let (copy, lines, pages) = (file(b"\xe9.backup"), file(b"\xe9.jsonl"), file(b"\xe9"));
    fs::create_dir(&pages).expect("made");
    for ran in [
        run(on("backup").arg(&copy).arg("--json")),
        run(on("export").arg(&lines).arg("--json")),
        run(on("wear").arg("--svg").arg(file(b"\xe9.svg")).arg("--json")),
        run(binary(&["restore", "--verify", "--json"]).arg(&copy)),
        run(binary(&["man", "--json", "--dir"]).arg(&pages)),
    ] {
        let json = ran.ok().json();
        let path = json.get("file").or(json.get("directory")).and_then(|path| path.as_str());
        assert!(path.is_some_and(|path| path.contains('\u{fffd}')), "{json}");
    }
    run(on("import").arg(&lines)).ok();
    run(on("compact").arg("--json")).ok();
    let image = file(b"chip\xe9");
    run(binary(&["create", "--profile", "tiny", "--json"]).arg(&image)).ok();
    run(binary(&["probe", "--json"]).arg(&image)).ok();
}

/// Goal: a link stands for the database it points to, side file and lock included. Method: on each kind of device, a
/// link in another directory, and one to that link.
#[test]
fn a_link_to_a_database_is_that_database() {
    for device in DEVICES {
        let place = Place::with_database(device);
        fs::create_dir(place.file("links")).expect("made");
        symlink("../db", place.file("links/one")).expect("made");
        symlink("one", place.file("links/two")).expect("made");
        for link in [place.path("links/one"), place.path("links/two")] {
            flagstone(&["put", &link, "t", "k", &link]).ok();
            assert_eq!(place.run("get", &["t", "k"]).ok().stdout, format!("{link}\n"));
            assert_eq!(flagstone(&["get", &link, "t", "k"]).ok().stdout, format!("{link}\n"));
            flagstone(&["check", &link]).ok();
            flagstone(&["create", &link]).fails(18);
        }
        let profile = if device == DEVICES[0] { "slc-2k" } else { "segment-file" };
        flagstone(&["stats", &place.path("links/two"), "--profile", profile]).ok();
        assert_eq!(fs::read_dir(place.file("links")).expect("readable").count(), 2);
    }
}

#[test]
fn empty_keys_values_and_tables_are_rows_like_any_other() {
    for device in DEVICES {
        let place = Place::with_database(device);
        for (table, key, value) in [("", "", ""), ("", "k", ""), ("t", "", "v"), ("t", "-5", "-7")]
        {
            place.run("put", &[table, key, value]).ok();
            assert_eq!(place.run("get", &[table, key]).ok().stdout, format!("{value}\n"));
        }
        assert_eq!(place.run("scan", &["t"]).ok().stdout, "\tv\n-5\t-7\n");
        place.run("del", &["t", ""]).ok();
        place.run("get", &["t", ""]).fails(3);
    }
}

#[test]
fn check_counts_rows_that_are_pending_and_rows_in_leaves() {
    for device in DEVICES {
        let place = Place::with_database(&[device, &["--memory", "256KiB"]].concat());
        for key in 0..3 {
            place.run("put", &["a", &key.to_string(), "v"]).ok();
        }
        place.run("put", &["b", "k", "v"]).ok();
        let report = place.run("check", &["--json"]).ok().json();
        assert_eq!(report["sound"], true);
        assert_eq!((&report["tables"], &report["rows"]), (&2.into(), &4.into()), "{report}");
        assert!(report["pending"].as_u64() >= Some(4), "{report}");
    }
}

#[test]
fn a_scan_is_ordered_and_keeps_its_bounds() {
    let place = Place::with_database(DEVICES[1]);
    for key in ["cherry", "apple", "fig", "banana"] {
        place.run("put", &["fruit", key, "1"]).ok();
    }
    let keys = |arguments: &[&str]| {
        let text = place.run("scan", &[&["fruit"], arguments].concat()).ok().stdout;
        let keys = text.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned());
        keys.collect::<Vec<_>>()
    };
    assert_eq!(keys(&[]), ["apple", "banana", "cherry", "fig"]);
    assert_eq!(keys(&["--from", "banana", "--to", "fig"]), ["banana", "cherry"]);
    assert_eq!(keys(&["--limit", "1"]), ["apple"]);
    assert_eq!(keys(&["--reverse", "--limit", "2"]), ["fig", "cherry"]);
    assert_eq!(keys(&["--from", "x"]), Vec::<String>::new());
}

#[test]
fn json_says_the_same_as_text() {
    let place = Place::with_database(DEVICES[0]);
    let put = place.run("put", &["t", "a", r"\x01", "--json"]).ok().json();
    assert_eq!(put["bill"]["programs_by_cause"]["log"], 1, "one page of log commits a row: {put}");
    let row = place.run("get", &["t", "a", "--json"]).ok().json();
    assert_eq!((row["key"].as_str(), row["value"].as_str()), (Some("a"), Some(r"\x01")));
    let rows = place.run("scan", &["t", "--json"]).ok().json();
    assert_eq!((rows["count"].as_u64(), rows["rows"][0]["key"].as_str()), (Some(1), Some("a")));
    let error = place.run("get", &["t", "b", "--json"]).fails(3).stderr;
    let error: serde_json::Value = serde_json::from_str(&error).expect("an error is one object");
    assert_eq!(error["error"]["name"], "missing");
}

#[test]
fn a_table_that_is_not_there_is_answered_with_the_nearest() {
    let place = Place::with_database(DEVICES[0]);
    place.run("put", &["users", "a", "1"]).ok();
    for command in ["get", "del"] {
        let error = place.run(command, &["user", "a"]).fails(3).stderr;
        assert!(error.contains("`users`"), "{error}");
    }
    place.run("scan", &["user"]).fails(3);
    let tables = place.run("stats", &["--json"]).ok().json();
    assert_eq!(tables["tables"].as_array().map(Vec::len), Some(1), "reading creates no table");
}

#[test]
fn create_leaves_a_file_that_is_there_alone() {
    let place = Place::with_database(DEVICES[0]);
    place.run("put", &["t", "a", "1"]).ok();
    for device in DEVICES {
        place.run("create", device).fails(18);
    }
    assert_eq!(place.run("get", &["t", "a"]).ok().stdout, "1\n");
}

/// Goal: `flagstone scan | head` ends without a panic and without a message.
///
/// Method: the reader's end of the pipe is closed before the first row is written.
#[test]
fn a_closed_pipe_ends_a_command_in_silence() {
    let place = Place::with_database(DEVICES[1]);
    let value = "x".repeat(500);
    for key in 0..20 {
        place.run("put", &["t", &key.to_string(), &value]).ok();
    }
    let mut command = binary(&["scan", &place.path("db"), "t"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("ends");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}

/// Goal: output that could not be written is a failure, help among it. Method: a device that is always full, where
/// there is one.
#[test]
fn output_that_is_lost_is_a_failure() {
    let Ok(full) = fs::OpenOptions::new().write(true).open("/dev/full") else { return };
    let place = Place::with_database(DEVICES[0]);
    let db = place.path("db");
    for arguments in [vec!["--help"], vec!["get", "--help"], vec!["--version"], vec!["stats", &db]]
    {
        let full = full.try_clone().expect("one more");
        run(binary(&arguments).stdout(full)).fails(1);
    }
}

#[test]
fn changes_that_were_pending_are_counted_in_words() {
    let place = Place::with_database(DEVICES[0]);
    place.run("put", &["t", "a", "1"]).ok();
    assert!(place.run("merge", &[]).ok().stdout.ends_with(" pending, 0 are left\n"));
    place.run("put", &["t", "a", "2"]).ok();
    assert_eq!(place.run("merge", &[]).ok().stdout, "1 change was pending, 0 are left\n");
}

#[test]
fn the_chip_and_its_counters_can_be_looked_at() {
    for device in DEVICES {
        let place = Place::with_database(device);
        place.run("put", &["t", "a", "1"]).ok();
        let stats = place.run("stats", &["--json"]).ok().json();
        assert!(stats["space"]["live_pages"].is_u64(), "{stats}");
        let wear = place.run("wear", &["--json"]).ok().json();
        assert!(wear["blocks"].as_array().is_some_and(|blocks| blocks.len() > 8), "{wear}");
        let anchors = wear["blocks"].as_array().expect("a list").iter();
        let anchors = anchors.filter(|block| block["state"] == "anchors").count();
        let text = place.run("wear", &[]).ok().stdout;
        assert!(text.contains("A anchors") && text.contains("erases"), "{text}");
        let drawn = text.split("\n\n").next().unwrap_or_default().lines().skip(1);
        assert_eq!(drawn.map(|line| line.matches('A').count()).sum::<usize>(), anchors);
        assert!(anchors > 0, "{wear}");
        assert_eq!(
            place.run("check", &["--json"]).ok().json()["faults"].as_array().map(Vec::len),
            Some(0)
        );
    }
    flagstone(&["check", "/no/such/file"]).fails(19);
}

/// Goal: the longest value that `stats` names can be stored, and a longer one is told apart from a
/// full device, however small the pages are.
#[test]
fn the_longest_value_fits_and_a_longer_one_is_too_long() {
    for profile in ["tiny", "slc-2k"] {
        let place = Place::with_database(&["--profile", profile, "--capacity", "8MiB"]);
        place.run("put", &["t", "a", "1"]).ok();
        let stats = place.run("stats", &["--json"]).ok().json();
        let longest = stats["limits"]["value_size_max"].as_u64().expect("a limit");
        let fits = longest.min(2 << 20);
        std::fs::write(place.file("value"), vec![7; fits as usize]).expect("writes");
        place.run("put", &["t", "long", "--file", &place.path("value")]).ok();
        if fits == longest {
            std::fs::write(place.file("value"), vec![7; fits as usize + 1]).expect("writes");
            place.run("put", &["t", "longer", "--file", &place.path("value")]).fails(13);
        }
        assert_eq!(place.run("check", &["--json"]).ok().json()["sound"], true);
    }
}

/// Goal: commands that read work without the right to write, and change nothing where they have it. Method: files
/// without write permission, and their bytes before and after; commands that write are refused.
#[test]
fn commands_that_read_write_nothing() {
    let set_mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
    };
    for device in DEVICES {
        let place = Place::with_database(device);
        place.run("put", &["t", "a", "1"]).ok();
        let files = ["db", "db.toml"].map(|name| place.file(name));
        let files: Vec<_> = files.into_iter().filter(|file| file.exists()).collect();
        let contents =
            || files.iter().map(|file| fs::read(file).expect("there")).collect::<Vec<_>>();
        let before = contents();
        files.iter().for_each(|file| set_mode(file, 0o444));
        let (picture, copy, rows) = (place.path("svg"), place.path("copy"), place.path("rows"));
        assert_eq!(place.run("get", &["t", "a"]).ok().stdout, "1\n");
        assert_eq!(place.run("scan", &["t"]).ok().stdout, "a\t1\n");
        for (command, arguments) in [
            ("stats", &[][..]),
            ("check", &[]),
            ("wear", &[]),
            ("wear", &["--svg", &picture]),
            ("backup", &[&copy]),
            ("export", &[&rows]),
        ] {
            place.run(command, arguments).ok();
        }
        for (command, arguments) in
            [("put", &["t", "b", "2"][..]), ("del", &["t", "a"]), ("merge", &[])]
        {
            place.run(command, arguments).fails(10);
        }
        assert!(contents() == before, "{device:?}");
        files.iter().for_each(|file| set_mode(file, 0o644));
        place.run("put", &["t", "b", "2"]).ok();
    }
}

#[test]
fn tables_are_listed_renamed_and_dropped() {
    for device in DEVICES {
        let place = Place::with_database(device);
        for (table, key) in [("b", "1"), ("a", "2"), ("c", "3")] {
            place.run("put", &[table, key, "row"]).ok();
        }
        assert_eq!(place.run("tables", &[]).ok().stdout, "a\nb\nc\n");
        place.run("rename", &["b", "a"]).fails(18);
        place.run("rename", &["d", "e"]).fails(3);
        place.run("rename", &["b", "z"]).ok();
        assert_eq!(place.run("scan", &["z"]).ok().stdout, "1\trow\n");
        place.run("drop", &["b"]).fails(3);
        let dropped = place.run("drop", &["a", "--json"]).ok().json();
        assert_eq!(dropped["table"], "a");
        assert_eq!(dropped["indexes"], serde_json::json!([]));
        let tables = place.run("tables", &["--json"]).ok().json();
        assert_eq!(tables["tables"], serde_json::json!(["c", "z"]));
        let report = place.run("check", &["--json"]).ok().json();
        assert_eq!((&report["rows"], &report["leaked_pages"]), (&2.into(), &0.into()), "{report}");
    }
}

const LENGTH: Index<String, String, u64> = Index::new("length", |_, text| vec![text.len() as u64]);
const INDEXES: [&dyn AnyIndex<String, String>; 1] = [&LENGTH];

/// Goal: indexes go with their table, and this is said; no other table gets the name of one; a change past them is
/// warned of.
#[test]
fn indexes_of_a_table_are_named() {
    let place = Place::with_database(DEVICES[1]);
    let database = Database::open(place.file("db"), &Options::default()).expect("opens");
    let words = database.indexed("words", &INDEXES).expect("made");
    let mut transaction = database.begin();
    words.put(&mut transaction, &"a".into(), &"one".into()).expect("put");
    transaction.commit().expect("commits");
    drop(words);
    database.close().expect("closes");

    for (command, arguments) in [("put", &["words", "b", "two"][..]), ("del", &["words", "b"])] {
        let ran = place.run(command, arguments);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{}", ran.stderr);
        assert!(
            ran.stderr.contains("warning") && ran.stderr.contains("(words@length)"),
            "{}",
            ran.stderr
        );
    }
    let ran = place.run("put", &["words", "b", "two", "--json"]);
    let warning: serde_json::Value = serde_json::from_str(&ran.stderr).expect("JSON");
    assert!(warning["warning"]["message"].is_string(), "{warning}");
    place.run("put", &["other", "b", "two"]).ok();
    place.run("del", &["words", "absent"]).fails(3);

    for arguments in [["words@home", "k", "v"], ["mail@home", "k", "v"]] {
        let error = place.run("put", &arguments).fails(2).stderr;
        assert!(error.contains("index"), "{error}");
    }
    place.run("rename", &["other", "words@home"]).fails(2);
    assert_eq!(
        place.run("rename", &["words", "texts"]).ok().stdout,
        "renamed with it: words@length\n"
    );
    assert_eq!(place.run("drop", &["other"]).ok().stdout, "");
    let dropped = place.run("drop", &["texts", "--json"]).ok().json();
    assert_eq!(dropped["indexes"], serde_json::json!(["texts@length"]));
    assert_eq!(place.run("tables", &[]).ok().stdout, "");
}

#[test]
fn names_of_tables_break_no_line() {
    let place = Place::with_database(DEVICES[0]);
    place.run("put", &["a\nb\\\\", "k", "v"]).ok();
    assert_eq!(place.run("tables", &[]).ok().stdout, "a\\x0ab\\\\\n");
    assert_eq!(place.run("tables", &["--json"]).ok().json()["tables"][0], "a\nb\\");
}

/// Goal: a row is deleted without its value. Method: the value has pages of its own that do not read.
#[test]
fn a_value_that_does_not_read_is_deleted() {
    let place = Place::with_database(DEVICES[1]);
    std::fs::write(place.file("value"), vec![7; 100_000]).expect("written");
    place.run("put", &["t", "k", "--file", &place.path("value")]).ok();
    place.run("merge", &[]).ok();
    let mut file = fs::read(place.file("db")).expect("there");
    for at in 0..file.len() - 3_000 {
        if file[at..at + 3_000].iter().all(|byte| *byte == 7) {
            file[at + 1_500] = 8;
        }
    }
    fs::write(place.file("db"), file).expect("written");
    place.run("get", &["t", "k"]).fails(5);
    place.run("del", &["t", "k"]).ok();
    place.run("get", &["t", "k"]).fails(3);
}
