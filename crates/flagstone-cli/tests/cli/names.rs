//! Names of files: a power cut after a command takes none of the names that it made or changed.

use std::fs;
use std::process::Command;

use crate::command::{DEVICES, Place, run};

/// Calls that change names or sync, of the command with these arguments; none where they cannot be watched.
#[cfg(target_os = "linux")]
fn calls(place: &Place, arguments: &[String]) -> Option<Vec<String>> {
    Command::new("strace").arg("-V").output().ok()?;
    let trace = place.file("trace");
    let mut command = Command::new("strace");
    command.args(["-f", "-y", "-e", "trace=openat,fsync,rename,renameat,renameat2,link,linkat"]);
    command.arg("-o").arg(&trace).arg(env!("CARGO_BIN_EXE_flagstone")).args(arguments);
    let ran = run(&mut command);
    if ran.stderr.contains("ptrace") {
        return None;
    }
    ran.ok();
    let text = fs::read_to_string(trace).expect("readable");
    Some(text.lines().map(str::to_owned).collect())
}

/// Goal: every command that gives a file its name makes the name durable. Method: the calls to the system, where
/// `strace` is at hand: the directory is synced behind each change of a name in it.
#[test]
#[cfg(target_os = "linux")]
fn names_of_files_are_durable() {
    let place = Place::empty();
    let [image, file] = DEVICES;
    let steps: [(&[&str], &[&str], &[&str]); 7] = [
        (&["create", "@chip"], image, &["chip", "chip.toml"]),
        (&["create", "@file"], file, &["file"]),
        (&["create", "@grows"], &[], &["grows"]),
        (&["backup", "@file", "@out"], &[], &["out"]),
        (&["restore", "@new", "@out"], image, &["new", "new.toml"]),
        (&["restore", "@newer", "@out"], file, &["newer"]),
        (&["compact", "@file"], &[], &["file"]),
    ];
    for (arguments, device, names) in steps {
        let in_place = |argument: &&str| match argument.strip_prefix('@') {
            Some(name) => place.path(name),
            None => (*argument).to_owned(),
        };
        let arguments: Vec<_> = arguments.iter().chain(device).map(in_place).collect();
        let Some(calls) = calls(&place, &arguments) else { return };
        for name in names {
            let named = format!("\"{}\"", place.path(name));
            let names_it = |call: &String| {
                call.contains(&named) && (!call.contains("openat") || call.contains("O_EXCL"))
            };
            let first = calls.iter().position(names_it);
            let first = first.unwrap_or_else(|| panic!("{arguments:?} makes no {name}: {calls:?}"));
            let synced = format!("<{}>)", place.path("").trim_end_matches('/'));
            let is_synced =
                |call: &String| call.contains("fsync(") && call.contains(synced.as_str());
            assert!(calls[first..].iter().any(is_synced), "{arguments:?}: {name} in {calls:#?}");
        }
    }
}

/// Goal: a table is found under its printed name, with any characters in it. Method: a control character, a letter
/// beyond ASCII and a backslash, in each command that takes a name.
#[test]
fn names_of_tables_are_taken_as_they_are_printed() {
    let place = Place::with_database(DEVICES[0]);
    let printed = "t\\x0a\\xc3\\xa9\\\\";
    place.run("put", &["t\\x0aé\\\\", "k", "v"]).ok();
    assert!(place.run("tables", &[]).ok().stdout.lines().any(|line| line == printed));
    assert_eq!(place.run("get", &[printed, "k"]).ok().stdout, "v\n");
    assert_eq!(place.run("scan", &[printed]).ok().stdout, "k\tv\n");
    place.run("export", &["-", "--table", printed]).ok();
    place.run("rename", &[printed, "\\x41b"]).ok();
    assert_eq!(place.run("get", &["Ab", "k"]).ok().stdout, "v\n");
    place.run("get", &["\\xff", "k"]).fails(2);
    place.run("drop", &["\\x41b"]).ok();
}
