//! Export and import: rows leave and come back byte for byte, and a line that is no row costs none of the rows before
//! it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flagstone::{Database, Index, Options};
use serde_json::{Value, json};

use crate::command::{DEVICES, Place, Ran, binary, flagstone, run};

type Model = BTreeMap<(String, Vec<u8>), Vec<u8>>;

fn line(table: &str, key: &[u8], value: &[u8]) -> String {
    let (key, value) = (STANDARD.encode(key), STANDARD.encode(value));
    format!("{}\n", json!({ "table": table, "key": key, "value": value }))
}

/// Content of an export, whose lines are in order.
fn model_of(text: &str) -> Model {
    let row = |line: &str| {
        let row: Value = serde_json::from_str(line).expect("one object a line");
        let bytes =
            |member: &str| STANDARD.decode(row[member].as_str().expect("a text")).expect("base64");
        let table = row["table"].as_str().expect("a text").to_owned();
        ((table, bytes("key")), bytes("value"))
    };
    let rows: Vec<_> = text.lines().map(row).collect();
    assert!(rows.is_sorted_by(|one, next| one.0 < next.0), "tables and keys ascend");
    rows.into_iter().collect()
}

/// The database, given `text` on standard input.
fn import_text(place: &Place, text: &str, arguments: &[&str]) -> Ran {
    fs::write(place.file("lines"), text).expect("written");
    let input = fs::File::open(place.file("lines")).expect("there");
    let path = place.path("db");
    run(binary(&[&["import", &path, "-"], arguments].concat()).stdin(input))
}

/// Goal: import and export agree with a map, on each kind of device.
///
/// Method: 2,000 lines from a fixed sequence put few keys many times, in several tables, with empty
/// keys and values, bytes that are no text, and values larger than pages. One batch size makes
/// many transactions, the other few; a second database takes what the first one exports.
#[test]
fn what_is_exported_is_what_was_imported() {
    for (device, batch) in DEVICES.into_iter().zip(["7", "100000"]) {
        let (mut model, mut text, mut state) = (Model::new(), String::new(), 1_u64);
        let mut next = |bound: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        for _ in 0..2_000 {
            let table = ["", "users", "caf\u{e9} \"\\\n"][next(3) as usize];
            let key: Vec<u8> = (0..next(3)).map(|_| next(256) as u8).collect();
            let size = if next(100) == 0 { 9_000 } else { next(40) };
            let value: Vec<u8> = (0..size).map(|_| next(256) as u8).collect();
            text.push_str(&line(table, &key, &value));
            model.insert((table.to_owned(), key), value);
        }
        let place = Place::with_database(device);
        let report = import_text(&place, &text, &["--batch", batch, "--json"]).ok().json();
        assert_eq!((&report["rows"], &report["lines"]), (&2_000.into(), &2_000.into()), "{report}");
        assert!(report["bill"]["programs"].as_u64() > Some(50), "{report}");
        let exported = place.run("export", &[]).ok().stdout;
        assert!(model_of(&exported) == model, "{device:?}");

        let report = place.run("export", &[&place.path("out"), "--json"]).ok().json();
        assert_eq!(report["rows"], model.len(), "{report}");
        assert!(fs::read(place.file("out")).expect("there") == exported.as_bytes());
        let copy = Place::with_database(device);
        copy.run("import", &[&place.path("out")]).ok();
        assert!(copy.run("export", &["-"]).ok().stdout == exported, "{device:?}");
        assert_eq!(copy.run("check", &["--json"]).ok().json()["sound"], true);
    }
}

#[test]
fn an_export_can_be_of_some_tables() {
    let place = Place::with_database(DEVICES[0]);
    for table in ["a", "b", "c"] {
        place.run("put", &[table, "k", table]).ok();
    }
    let rows = model_of(&place.run("export", &["--table", "a", "--table", "c"]).ok().stdout);
    assert_eq!(rows.values().collect::<Vec<_>>(), [b"a", b"c"]);
    place.run("export", &["--table", "d"]).fails(3);
}

#[test]
fn an_export_writes_over_nothing_and_leaves_nothing_half_done() {
    let place = Place::with_database(DEVICES[0]);
    place.run("put", &["t", "k", "v"]).ok();
    fs::write(place.file("taken"), "mine").expect("written");
    place.run("export", &[&place.path("taken")]).fails(18);
    assert_eq!(fs::read(place.file("taken")).expect("there"), b"mine");
    place.run("export", &[&place.path("no/such/directory")]).fails(19);
    place.run("export", &[&place.path("out"), "--table", "absent"]).fails(3);
    place.run("export", &["--json"]).fails(2);
    let names = fs::read_dir(place.file("")).expect("readable");
    let mut names: Vec<_> = names.map(|entry| entry.expect("readable").file_name()).collect();
    names.sort();
    assert_eq!(names, ["db", "db.toml", "taken"]);
}

#[test]
fn a_line_that_is_no_row_is_named_and_what_stands_before_it_is_stored() {
    for (bad, code) in [
        ("nonsense\n".to_owned(), 20),
        ("{\"table\":\"t\",\"key\":\"YQ==\"}\n".to_owned(), 20),
        ("{\"table\":\"t\",\"key\":\"YQ\",\"value\":\"\"}\n".to_owned(), 20),
        (line("t", &[7; 2_000], b""), 13),
        (line(&"t".repeat(2_000), b"", b""), 13),
        (format!("{}\n", "x".repeat(64 << 20)), 13),
    ] {
        let place = Place::with_database(DEVICES[0]);
        let mut text = String::new();
        for key in 0..5_u8 {
            text.push_str(&line("t", &[key], b"before"));
        }
        text.push_str(&bad);
        text.push_str(&line("t", b"z", b"after"));
        let error = import_text(&place, &text, &["--batch", "2"]).fails(code).stderr;
        assert!(error.contains("line 6:") && error.contains("--from-line 6"), "{error}");
        assert_eq!(model_of(&place.run("export", &[]).ok().stdout).len(), 5);
        import_text(&place, &text, &["--from-line", "7"]).ok();
        assert_eq!(model_of(&place.run("export", &[]).ok().stdout).len(), 6);
    }
}

#[test]
fn an_atomic_import_stores_all_rows_or_none() {
    let place = Place::with_database(&["--capacity", "32MiB"]);
    place.run("put", &["t", "kept", "yes"]).ok();
    let mut text: String = (0..3_000_u32).fold(String::new(), |mut text, key| {
        let _ = write!(text, "{}", line("t", &key.to_be_bytes(), &[1; 700]));
        text
    });
    let error = import_text(&place, &format!("{text}x"), &["--atomic"]).fails(20).stderr;
    assert!(error.contains("line 3001:") && error.contains("nothing is stored"), "{error}");
    assert_eq!(model_of(&place.run("export", &[]).ok().stdout).len(), 1);
    text.push('\n');
    let report = import_text(&place, &text, &["--atomic", "--json"]).ok().json();
    assert_eq!((&report["rows"], &report["transactions"]), (&3_000.into(), &1.into()));
    assert_eq!(model_of(&place.run("export", &[]).ok().stdout).len(), 3_001);
    import_text(&place, &text, &["--atomic", "--batch", "5"]).fails(2);
}

#[test]
fn an_import_that_does_not_fit_says_how_far_it_came() {
    let place = Place::with_database(&["--profile", "tiny"]);
    let mut text = String::new();
    for key in 0..4_000_u32 {
        text.push_str(&line("t", &key.to_be_bytes(), &[key as u8; 200]));
    }
    let error = import_text(&place, &text, &["--batch", "10"]).fails(11).stderr;
    let stored = error.split("up to line ").nth(1).and_then(|rest| rest.split(' ').next());
    let stored: usize = stored.and_then(|count| count.parse().ok()).expect("a line");
    assert!(stored > 0 && error.contains(&format!("line {}:", stored + 1)), "{error}");
    assert_eq!(model_of(&place.run("export", &[]).ok().stdout).len(), stored);
}

/// Goal: an import that is killed leaves whole transactions in order, and can be run again as it is.
///
/// Method: rows are fed through a pipe, one a transaction, and the process is killed when all have gone into the
/// pipe: then all rows but the last ones, which fit the pipe and one buffer, have been stored.
#[test]
fn an_import_that_is_killed_leaves_its_first_rows() {
    const ROWS: u32 = 400;
    let place = Place::with_database(DEVICES[1]);
    let mut text = String::new();
    for key in 0..ROWS {
        text.push_str(&line("t", &key.to_be_bytes(), &[key as u8; 900]));
    }
    let mut command = binary(&["import", &place.path("db"), "-", "--batch", "1"]);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("runs");
    let mut pipe = child.stdin.take().expect("piped");
    pipe.write_all(text.as_bytes()).expect("the import reads");
    child.kill().expect("alive until its input ends");
    child.wait().expect("ends");
    drop(pipe);

    let rows = model_of(&place.run("export", &[]).ok().stdout);
    let keys: Vec<&[u8]> = rows.keys().map(|(_, key)| key.as_slice()).collect();
    let first: Vec<_> = (0..keys.len() as u32).map(u32::to_be_bytes).collect();
    assert_eq!(keys, first, "no row without those before it");
    assert!(keys.len() > 200, "{} rows: the kill came too early to prove anything", keys.len());
    import_text(&place, &text, &[]).ok();
    assert_eq!(model_of(&place.run("export", &[]).ok().stdout).len(), ROWS as usize);
}

#[test]
fn an_empty_import_is_an_import() {
    let place = Place::with_database(DEVICES[0]);
    assert_eq!(import_text(&place, "", &["--json"]).ok().json()["rows"], 0);
    assert_eq!(
        import_text(&place, "\n \n\n", &[]).ok().stdout,
        "imported 0 rows in 0 transactions, 0 pages programmed\n"
    );
    assert_eq!(place.run("export", &[]).ok().stdout, "");
    place.run("import", &[&place.path("absent")]).fails(19);
    flagstone(&["import", &place.path("db")]).fails(2);
    place.run("import", &["-", "--batch", "0"]).fails(2);
}

/// Goal: an error of a file that finds no room has the name that the file was to get. Method: a file system of 2 MiB,
/// where this user may mount one; elsewhere there is nothing to test.
#[test]
#[cfg(target_os = "linux")]
fn a_file_that_finds_no_room_is_told_by_its_name() {
    let place = Place::with_database(DEVICES[1]);
    let rows: String = (0..3_000_u32).map(|key| line("t", &key.to_be_bytes(), &[7; 900])).collect();
    import_text(&place, &rows, &[]).ok();
    fs::create_dir(place.file("small")).expect("made");
    let mount = ["-t", "tmpfs", "-o", "size=2m", "none", &place.path("small")];
    let mounted = run(std::process::Command::new("mount").args(mount));
    if mounted.code != 0 {
        return;
    }
    let ran = ["backup", "export"].map(|command| place.run(command, &[&place.path("small/out")]));
    let left = fs::read_dir(place.file("small")).expect("readable").count();
    run(std::process::Command::new("umount").arg(place.file("small"))).ok();
    for ran in ran {
        let ran = ran.fails(11);
        assert!(ran.stderr.contains("small/out: No space left"), "{ran:?}");
        assert!(!ran.stderr.contains(".flagstone-"), "nobody knows that name: {ran:?}");
    }
    assert_eq!(left, 0);
}

/// Goal: no import writes to an index, whole or cut short: the index of a table that is there is left out, and the
/// program makes it anew. Method: a table with an index is exported, and every first part of the lines imported.
#[test]
fn an_import_leaves_indexes_to_the_program() {
    const LENGTH: Index<String, String, u64> =
        Index::new("length", |_, text| vec![text.len() as u64]);
    let place = Place::with_database(DEVICES[1]);
    let open = |place: &Place| {
        let database = Database::open(place.file("db"), &Options::default()).expect("opens");
        let words = database.indexed("words", &[&LENGTH]).expect("indexed");
        (database, words)
    };
    let (database, words) = open(&place);
    let mut transaction = database.begin();
    for key in ["a", "b", "c"] {
        words.put(&mut transaction, &key.into(), &"word".into()).expect("put");
    }
    transaction.commit().expect("commits");
    drop(words);
    database.copied_table("mail@home").expect("made");
    database.close().expect("closes");
    place.run("put", &["mail@home", "k", "v"]).ok();

    let text = place.run("export", &[]).ok().stdout;
    assert_eq!(text.lines().count(), 7);
    for count in [4, 5, 7] {
        let copy = Place::with_database(DEVICES[0]);
        let lines: String = text.split_inclusive('\n').take(count).collect();
        let report = import_text(&copy, &lines, &["--json", "--batch", "1"]).ok().json();
        assert_eq!((&report["rows"], &report["left_out"]), (&4.into(), &(count - 4).into()));
        assert_eq!(copy.run("tables", &[]).ok().stdout, "mail@home\nwords\n");
        let (database, words) = open(&copy);
        let found = words.check_indexes(&database.snapshot().expect("reads")).expect("reads");
        assert!(found.is_sound() && found.entries == 3, "{found:?}");
        drop((words, database));
        let again = import_text(&copy, &lines, &[]);
        assert_eq!(again.code, 0, "{}", again.stderr);
        assert!(again.stderr.contains("(words@length)"), "{}", again.stderr);
        assert!(!again.stderr.contains("mail"), "{}", again.stderr);
    }
}
