//! Running the binary.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// Result of a run of the binary.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code().expect("no signal ends the command"),
            stdout: String::from_utf8(output.stdout).expect("output is text"),
            stderr: String::from_utf8(output.stderr).expect("messages are text"),
        }
    }

    /// The run, which must have succeeded in silence on the error stream.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""), "{}", self.stdout);
        self
    }

    /// The run, which must have failed with `code`, one message and no output.
    #[track_caller]
    pub(crate) fn fails(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}{}", self.stdout, self.stderr);
        assert!(!self.stderr.is_empty(), "a failure says why");
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        self
    }

    /// Standard output as one JSON object.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|err| panic!("{err}: {}", self.stdout))
    }
}

/// The binary with these arguments.
pub(crate) fn binary(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flagstone"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs the binary with these arguments.
pub(crate) fn flagstone(arguments: &[&str]) -> Ran {
    run(&mut binary(arguments))
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Ran {
    Ran::of(command.output().expect("the command runs"))
}

/// A directory of a test's own, with a database in it.
#[derive(Debug)]
pub(crate) struct Place {
    dir: TempDir,
}

impl Place {
    /// An empty directory.
    pub(crate) fn empty() -> Self {
        Self { dir: TempDir::new().expect("a temporary directory") }
    }

    /// A directory with an empty database, created with `arguments` beside its path.
    #[track_caller]
    pub(crate) fn with_database(arguments: &[&str]) -> Self {
        let place = Self::empty();
        flagstone(&[&["create", &place.path("db")], arguments].concat()).ok();
        place
    }

    /// Path of a file in the directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Path of a file in the directory, as an argument.
    pub(crate) fn path(&self, name: &str) -> String {
        as_text(&self.file(name))
    }

    /// Runs `command` on the database, with `arguments` after its path.
    pub(crate) fn run(&self, command: &str, arguments: &[&str]) -> Ran {
        flagstone(&[&[command, &self.path("db")], arguments].concat())
    }
}

fn as_text(path: &Path) -> String {
    path.to_str().expect("temporary directories have plain names").to_owned()
}

/// A small device of each kind that a file can be.
pub(crate) const DEVICES: [&[&str]; 2] =
    [&["--profile", "slc-2k", "--capacity", "4MiB"], &["--device", "file", "--capacity", "8MiB"]];
