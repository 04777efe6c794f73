//! Signals in the middle of a command.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::command::flagstone;

/// Files of a directory.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("read").map(|entry| entry.expect("an entry"));
    let mut names: Vec<_> = entries.map(|it| it.file_name().into_string().expect("text")).collect();
    names.sort_unstable();
    names
}

/// Sends `signal` to a command once it has made something in `directory`; gives the signal that ended it, and the
/// files left.
fn interrupted(directory: &Path, signal: &str, arguments: &[&str]) -> (Option<i32>, Vec<String>) {
    let before = names(directory);
    let mut command = Command::new(env!("CARGO_BIN_EXE_flagstone"));
    let command = command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("it runs");
    while names(directory) == before {
        assert_eq!(child.try_wait().expect("a child"), None, "it ended before it made anything");
        std::thread::sleep(Duration::from_millis(1));
    }
    let killed = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(killed.expect("kill runs").success());
    let status = child.wait().expect("it ends");
    (status.signal(), names(directory))
}

/// Goal: a database whose making was interrupted is not there, and the parent process sees the signal. Method: one
/// too large to be finished when the signal comes, a plain file and an image.
#[test]
fn a_database_half_made_is_gone() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("large");
    let path = path.to_str().expect("text");
    for (signal, number) in [("-TERM", 15), ("-INT", 2)] {
        let file = ["create", path, "--capacity", "2GiB"];
        assert_eq!(interrupted(directory.path(), signal, &file), (Some(number), vec![]));
        let image = ["create", path, "--profile", "slc-2k", "--capacity", "2GiB"];
        assert_eq!(interrupted(directory.path(), signal, &image), (Some(number), vec![]));
    }
}

/// Goal: a file that was being written is not there either. Method: a backup of a database that takes a while, and
/// its compaction.
#[test]
fn a_backup_and_a_compaction_half_written_are_gone() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("text").to_owned();
    flagstone(&["create", &path("db")]).ok();
    let rows = (0..60_000).map(|row| {
        format!("{{\"table\":\"t\",\"key\":\"{row:08}\",\"value\":\"{}\"}}\n", "AAAA".repeat(50))
    });
    fs::write(path("rows"), rows.collect::<String>()).expect("written");
    flagstone(&["import", &path("db"), &path("rows")]).ok();
    let left = vec!["db".to_owned(), "rows".to_owned()];
    let backup = ["backup", &path("db"), &path("out")];
    assert_eq!(interrupted(directory.path(), "-INT", &backup), (Some(2), left.clone()));
    let compact = ["compact", &path("db")];
    assert_eq!(interrupted(directory.path(), "-INT", &compact), (Some(2), left));
    flagstone(&["check", &path("db")]).ok();
}
