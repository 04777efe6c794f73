//! The interface as a whole: its names, and the threads that may share its values.

use flagstone::*;

/// Names that the crate exports, module `device` included, in order. A name that is added to the interface is
/// added here, and is a promise from then on.
const NAMES: &[&str] = &[
    "Allowance",
    "AnyIndex",
    "AnyNand",
    "AtLimit",
    "BackupError",
    "BackupReport",
    "Bill",
    "BlockIndex",
    "BlockReport",
    "Capabilities",
    "Cause",
    "CheckFault",
    "CheckReport",
    "Commit",
    "CommitError",
    "CompactError",
    "CompactReport",
    "Completion",
    "Corruption",
    "Counters",
    "Cursor",
    "CursorMut",
    "Database",
    "DecodeError",
    "DoubtCause",
    "Durability",
    "EccNand",
    "EncodeKey",
    "EngineStats",
    "Entry",
    "Error",
    "FileLock",
    "FileSize",
    "Finds",
    "Found",
    "FoundRows",
    "Geometry",
    "ImageNand",
    "Index",
    "IndexFault",
    "IndexReport",
    "IndexedTable",
    "Key",
    "KeySpan",
    "KeyValue",
    "Limits",
    "LoadError",
    "LoadReport",
    "LogicalPage",
    "Lsn",
    "Memory",
    "MissingCause",
    "MissingRange",
    "MountError",
    "MultiTable",
    "Nand",
    "NandError",
    "OpenDeviceError",
    "OpenError",
    "Options",
    "OptionsError",
    "PRESETS",
    "Pairs",
    "PhysicalPage",
    "Preset",
    "Profile",
    "ProfileError",
    "ProgramPart",
    "Range",
    "ReadError",
    "ReadPart",
    "Reads",
    "RecoveryReport",
    "RowPart",
    "RowRef",
    "SalvageError",
    "SalvageMethod",
    "SalvageReport",
    "SalvagedTable",
    "Savepoint",
    "SeededBug",
    "SegmentFile",
    "SimNand",
    "Snapshot",
    "SnapshotError",
    "SoundRow",
    "SoundRows",
    "SpaceStats",
    "StartsWith",
    "Stats",
    "StorageError",
    "Table",
    "TableError",
    "Transaction",
    "TypedRange",
    "TypedTable",
    "Value",
    "Values",
    "VerifyOnOpen",
    "WearBudget",
    "WearLevelling",
    "WearStatus",
    "WriteError",
    "verify_backup",
];

/// Goal: no name becomes part of the interface unseen. Method: the lists of `pub use` of the crate.
#[test]
fn the_interface_has_the_names_of_the_list() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/lib.rs")).unwrap();
    let mut names: Vec<&str> = Vec::new();
    for list in text.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next()) {
        let list = list.rsplit_once('{').map_or(list, |(_, list)| list);
        let list = list.trim_end_matches('}').split(',').map(str::trim);
        for name in list.filter(|name| !name.is_empty()) {
            let name = name.rsplit_once(" as ").map_or(name, |(_, name)| name);
            names.push(name.rsplit_once("::").map_or(name, |(_, name)| name));
        }
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names, NAMES);
}

fn are_shared<T: Send + Sync>() {}

fn are_sent<T: Send>() {}

/// Goal: values may go to other threads, and be shared by them, as the documentation says. Method: the compiler.
#[test]
fn values_may_be_sent_and_shared() {
    are_shared::<(Database, Transaction, Snapshot, Table, Savepoint, Commit)>();
    are_shared::<(Options, Stats, EngineStats, SpaceStats, RecoveryReport, CheckReport)>();
    are_shared::<(BackupReport, CompactReport, LoadReport, SalvageReport, IndexReport)>();
    are_shared::<(Error, OpenError, ReadError, WriteError, CommitError, TableError)>();
    are_shared::<(SnapshotError, LoadError, BackupError, CompactError, SalvageError)>();
    are_shared::<(TypedTable<u32, u32>, MultiTable<u32, u32>, Index<u32, u32, u32>)>();
    are_shared::<(IndexedTable<u32, u32>, Bill, WearBudget, WearStatus, MissingRange, SoundRow)>();
    are_sent::<(Range<'_>, Cursor<'_>, CursorMut<'_>, Entry<'_>, AnyNand)>();
    are_sent::<(TypedRange<'_, u32, u32>, Values<'_, u32>, Pairs<'_, u32, u32>)>();
}
