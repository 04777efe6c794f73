//! The interface as a whole: its names, and the threads that may share its values.

use flagstone::report::*;
use flagstone::salvage::*;
use flagstone::typed::*;
use flagstone::wear::*;
use flagstone::*;

/// Names that the crate exports, by module, in order; none is the root. A name that is added to the interface is
/// added here, and is a promise from then on.
const NAMES: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "BackupError",
            "Bill",
            "Cause",
            "Commit",
            "CommitError",
            "CompactError",
            "Corruption",
            "Cursor",
            "CursorMut",
            "Database",
            "DecodeError",
            "Durability",
            "EncodeKey",
            "Entry",
            "Error",
            "FileLock",
            "FileSize",
            "Index",
            "IndexedTable",
            "Key",
            "KeyValue",
            "Limits",
            "LoadError",
            "Lsn",
            "MountError",
            "MultiTable",
            "OpenError",
            "Options",
            "OptionsError",
            "PRESETS",
            "Preset",
            "Range",
            "ReadError",
            "RowPart",
            "RowRef",
            "Savepoint",
            "SeededBug",
            "Snapshot",
            "SnapshotError",
            "Stats",
            "StorageError",
            "Table",
            "TableError",
            "Transaction",
            "TypedTable",
            "Value",
            "VerifyOnOpen",
            "WriteError",
            "verify_backup",
        ],
    ),
    (
        "device",
        &[
            "AnyNand",
            "BlockIndex",
            "Capabilities",
            "Completion",
            "Counters",
            "EccNand",
            "Geometry",
            "ImageNand",
            "Nand",
            "NandError",
            "OpenDeviceError",
            "PhysicalPage",
            "Profile",
            "ProfileError",
            "ProgramPart",
            "ReadPart",
            "SegmentFile",
            "SimNand",
        ],
    ),
    (
        "report",
        &[
            "BackupReport",
            "BlockReport",
            "CheckFault",
            "CheckReport",
            "CompactReport",
            "EngineStats",
            "LoadReport",
            "LogicalPage",
            "Memory",
            "RecoveryReport",
            "SpaceStats",
        ],
    ),
    (
        "salvage",
        &[
            "DoubtCause",
            "KeySpan",
            "MissingCause",
            "MissingRange",
            "SalvageError",
            "SalvageMethod",
            "SalvageReport",
            "SalvagedTable",
            "SoundRow",
            "SoundRows",
        ],
    ),
    (
        "typed",
        &[
            "AnyIndex",
            "Finds",
            "Found",
            "FoundRows",
            "IndexFault",
            "IndexReport",
            "Pairs",
            "Reads",
            "StartsWith",
            "TypedRange",
            "Values",
        ],
    ),
    ("wear", &["Allowance", "AtLimit", "WearBudget", "WearLevelling", "WearStatus"]),
];

/// Goal: no name becomes part of the interface unseen. Method: what the root and each module export, by their source.
#[test]
fn the_interface_has_the_names_of_the_list() {
    let source = |name: &str| {
        let path = format!("{}/src/{name}.rs", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).expect("a source file")
    };
    let root = source("lib");
    let mut modules = root.split("\npub mod ");
    let mut found = vec![(String::new(), exported(modules.next().unwrap_or_default()))];
    for module in modules {
        let (name, rest) = module.split_once([';', ' ']).expect("a name");
        match rest.split_once("\n}\n").filter(|_| rest.starts_with('{')) {
            Some((body, behind)) => {
                found.push((name.to_owned(), exported(body)));
                found[0].1.extend(exported(behind));
            }
            None => {
                let text = source(name);
                let text = text.split("#[cfg(test)]").next().unwrap_or_default();
                found.push((name.to_owned(), exported(text)));
                found[0].1.extend(exported(rest));
            }
        }
    }
    for (_, names) in &mut found {
        names.sort_unstable();
        names.dedup();
    }
    found.sort_unstable();
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let known: Vec<_> =
        NAMES.iter().map(|(module, names)| ((*module).to_owned(), owned(names))).collect();
    assert_eq!(found, known);
}

/// Names that a piece of source exports: by `pub use`, and types of its own.
fn exported(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for list in text.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next()) {
        let list = list.rsplit_once('{').map_or(list, |(_, list)| list);
        let list = list.trim_end_matches('}').split(',').map(str::trim);
        for name in list.filter(|name| !name.is_empty()) {
            let name = name.rsplit_once(" as ").map_or(name, |(_, name)| name);
            names.push(name.rsplit_once("::").map_or(name, |(_, name)| name).to_owned());
        }
    }
    for kind in ["\npub struct ", "\npub enum ", "\npub trait ", "\npub fn "] {
        let is_end = |letter: char| !letter.is_alphanumeric() && letter != '_';
        let own = text.split(kind).skip(1).filter_map(|rest| rest.split(is_end).next());
        names.extend(own.map(str::to_owned));
    }
    names
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
    are_sent::<(Range<'_>, Cursor<'_>, CursorMut<'_>, Entry<'_>, flagstone::device::AnyNand)>();
    are_sent::<(TypedRange<'_, u32, u32>, Values<'_, u32>, Pairs<'_, u32, u32>)>();
}
