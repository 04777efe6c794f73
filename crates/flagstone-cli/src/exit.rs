//! Exit codes: one number for each way a command can end.
//!
//! Owns the one table behind `flagstone exit-codes`, `docs/EXIT_CODES.md` and the process itself; a test compares the
//! document with it.
//!
//! Invariant I1: a number, once published, never changes its meaning.

/// How a command ended. The number is the exit code of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Done.
    Ok = 0,
    /// A failure without a code of its own.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The key, the table or the snapshot is not there.
    Missing = 3,
    /// The file holds no database, or is not a device of this kind.
    NotADatabase = 4,
    /// Stored bytes contradict themselves.
    Damaged = 5,
    /// Another version of the format.
    Version = 6,
    /// The profile does not match the image.
    ProfileMismatch = 7,
    /// The device lacks a capability that the preset needs.
    Capability = 8,
    /// Another process holds the file.
    Locked = 9,
    /// The file or the device may not be written.
    ReadOnly = 10,
    /// No room for the change.
    Full = 11,
    /// No spare blocks left.
    WornOut = 12,
    /// A key, a value or a name is longer than the database stores.
    TooLong = 13,
    /// The device failed while it was written.
    Poisoned = 14,
    /// A run that was asked to be steady was not.
    NotSteady = 15,
    /// A promise was broken: a crash state or a verification failed.
    PromiseBroken = 16,
    /// This build cannot do it.
    NotBuilt = 17,
    /// The file to be created is there already.
    Exists = 18,
    /// The file is not there.
    NoFile = 19,
    /// The input of an import or a restore is wrong.
    BadInput = 20,
    /// The file has several names, which a new one in its place would part.
    Linked = 21,
}

/// One line of the table: code, short name, meaning and remedy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExitRow {
    /// Code.
    pub(crate) exit: Exit,
    /// Short name, as in JSON errors.
    pub(crate) name: &'static str,
    /// Meaning, and remedy for the caller.
    pub(crate) meaning: &'static str,
}

const fn row(exit: Exit, name: &'static str, meaning: &'static str) -> ExitRow {
    ExitRow { exit, name, meaning }
}

/// Every exit code, ascending.
pub(crate) const EXIT_ROWS: &[ExitRow] = &[
    row(Exit::Ok, "ok", "done; also when the reader of the output closed its end early"),
    row(Exit::Failed, "failed", "a failure without a code of its own; the message says which"),
    row(
        Exit::Usage,
        "usage",
        "wrong command line: unknown command, option, preset, profile or key in a profile \
         (the nearest name is given, where one is near), or a value outside its range",
    ),
    row(Exit::Missing, "missing", "the key, the table or the snapshot is not in the database"),
    row(
        Exit::NotADatabase,
        "not-a-database",
        "the file is no image, or the device has never been formatted; nothing was written",
    ),
    row(
        Exit::Damaged,
        "damaged",
        "bytes on the device contradict themselves, or `check` found faults; restore a copy, or `salvage` what is left",
    ),
    row(Exit::Version, "version", "written by another version of the format; use that version"),
    row(
        Exit::ProfileMismatch,
        "profile-mismatch",
        "the profile given does not describe the device that the image holds",
    ),
    row(
        Exit::Capability,
        "capability",
        "the device lacks a capability that the preset needs; the message names both",
    ),
    row(Exit::Locked, "locked", "another process has the file open; try again when it is done"),
    row(Exit::ReadOnly, "read-only", "the file or the device may not be written"),
    row(
        Exit::Full,
        "full",
        "no room for the change, or as many tables or snapshots as there may be; everything committed is there, and \
         deleting works",
    ),
    row(
        Exit::WornOut,
        "worn-out",
        "no spare blocks left: read-only from now on; copy the data to another device",
    ),
    row(
        Exit::TooLong,
        "too-long",
        "the key, the value or the name is longer than this database stores",
    ),
    row(
        Exit::Poisoned,
        "poisoned",
        "the device failed during a write, so the outcome of the last commits is unknown; \
         open the database again",
    ),
    row(
        Exit::NotSteady,
        "not-steady",
        "the run was not steady: its figures are printed but must not be compared; lengthen the \
         warm-up or the run, or ask for `--warmup none`",
    ),
    row(
        Exit::PromiseBroken,
        "promise-broken",
        "a crash state lost or half-showed a transaction, or a verification failed: a bug",
    ),
    row(Exit::NotBuilt, "not-built", "this build cannot do it; the message names what is missing"),
    row(
        Exit::Exists,
        "exists",
        "the file to be created, or a table or snapshot of the new name, is there already; nothing was \
         written",
    ),
    row(Exit::NoFile, "no-file", "there is no such file"),
    row(
        Exit::BadInput,
        "bad-input",
        "the input is not what the command reads: a line is no row, or a backup is none, cut short or \
         damaged; the message says where, and what is stored",
    ),
    row(
        Exit::Linked,
        "linked",
        "the file has several names (hard links), and a new file in its place would part them; \
         remove the other ones, or work on a copy",
    ),
];

impl Exit {
    /// Number that the process ends with.
    #[must_use]
    pub(crate) const fn code(self) -> u8 {
        self as u8
    }

    /// Short name, as in JSON errors and in the table.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        EXIT_ROWS.iter().find(|row| row.exit == self).map_or("failed", |row| row.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_ascend_without_a_gap() {
        for (index, row) in EXIT_ROWS.iter().enumerate() {
            assert_eq!(usize::from(row.exit.code()), index, "{}", row.name);
        }
    }

    #[test]
    fn the_document_holds_the_same_table() {
        let document = include_str!("../../../docs/EXIT_CODES.md");
        let lines: Vec<&str> = document.lines().filter(|line| line.starts_with("| ")).collect();
        let rows = EXIT_ROWS
            .iter()
            .map(|row| format!("| {} | `{}` | {} |", row.exit.code(), row.name, row.meaning));
        let expected: Vec<String> = rows.collect();
        // The first two lines are the head and its rule.
        assert_eq!(lines.get(2..).unwrap_or_default(), expected, "docs/EXIT_CODES.md differs");
    }
}
