//! The floors of ARCHITECTURE.md: which crate names which, and how long a file may be.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Crates of this repository that each crate names, for itself and for its tests.
const ARROWS: [(&str, &[&str]); 9] = [
    ("flagstone-nand", &[]),
    ("flagstone-space", &["flagstone-nand"]),
    ("flagstone-engine", &["flagstone-nand", "flagstone-space"]),
    ("flagstone-derive", &[]),
    ("flagstone", &["flagstone-derive", "flagstone-engine", "flagstone-nand", "flagstone-space"]),
    (
        "flagstone-opponents",
        &["flagstone", "flagstone-engine", "flagstone-nand", "flagstone-space"],
    ),
    (
        "flagstone-lab",
        &["flagstone-engine", "flagstone-nand", "flagstone-opponents", "flagstone-space"],
    ),
    ("flagstone-judges", &["flagstone", "flagstone-nand"]),
    (
        "flagstone-cli",
        &["flagstone", "flagstone-engine", "flagstone-lab", "flagstone-nand", "flagstone-space"],
    ),
];

/// Goal: no crate names one of a floor above it, and none passes the public interface by but the lab. Method: the
/// manifests, against the table above.
#[test]
fn crates_name_those_below_them() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(&crates).expect("readable") {
        let manifest = entry.expect("readable").path().join("Cargo.toml");
        let text = fs::read_to_string(&manifest).expect("a manifest");
        let name = text.split("name = \"").nth(1).and_then(|rest| rest.split('"').next());
        found.insert(name.expect("a name").to_owned(), named(&text));
    }
    let known = ARROWS.map(|(name, below)| {
        (name.to_owned(), below.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    });
    assert_eq!(found, BTreeMap::from(known));
}

/// Our crates among the dependencies of a manifest, each once, in order.
fn named(manifest: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_inside = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_inside = line.trim_end_matches(']').ends_with("dependencies");
        } else if is_inside && line.starts_with("flagstone") {
            let end = line.find([' ', '.', '=']).unwrap_or(line.len());
            names.push(line[..end].to_owned());
        }
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// Lines of a source file beyond which its head says why it is long.
const LINES_MAX: usize = 600;

/// Beginning of the line that says it.
const REASON: &str = "//! Longer than 600 lines: ";

/// Files that are too long and give no reason yet: their parts still belong to one mechanism each, whose state is being
/// divided. The list may only become shorter.
const STILL_LONG: [&str; 7] = [
    "flagstone-engine/src/engine.rs",
    "flagstone-engine/src/engine/checkpoint.rs",
    "flagstone-engine/src/engine/claim.rs",
    "flagstone-engine/src/engine/merge.rs",
    "flagstone-engine/src/engine/merge/reshape.rs",
    "flagstone-engine/src/engine/spill.rs",
    "flagstone/src/typed/index.rs",
];

/// Goal: a source file holds one responsibility, and a long one says why it is long. Method: the lines of every file,
/// and the heads of the long ones.
#[test]
fn long_files_say_why() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut lengths = BTreeMap::new();
    for entry in fs::read_dir(&crates).expect("readable") {
        let entry = entry.expect("readable");
        let name = entry.file_name().into_string().expect("a name");
        measure(&entry.path().join("src"), &format!("{name}/src"), &mut lengths);
    }
    assert!(lengths.len() > 400, "only {} files were found", lengths.len());
    let unexplained = lengths
        .into_iter()
        .filter(|(_, (lines, is_explained))| *lines > LINES_MAX && !is_explained);
    let found: Vec<_> = unexplained.map(|(name, _)| name).collect();
    assert_eq!(found, STILL_LONG, "divide a long file, or give the reason in its head: {REASON}…");
}

/// Lines of each Rust file below a directory, and whether its head gives a reason for them.
fn measure(directory: &Path, name: &str, lengths: &mut BTreeMap<String, (usize, bool)>) {
    for entry in fs::read_dir(directory).expect("readable") {
        let entry = entry.expect("readable");
        let (path, own) = (entry.path(), entry.file_name().into_string().expect("a name"));
        let name = format!("{name}/{own}");
        if path.is_dir() {
            measure(&path, &name, lengths);
        } else if own.ends_with(".rs") {
            let text = fs::read_to_string(&path).expect("text");
            let mut head = text.lines().take_while(|line| line.starts_with("//!"));
            let is_explained =
                head.any(|line| line.strip_prefix(REASON).is_some_and(|reason| !reason.is_empty()));
            lengths.insert(name, (text.lines().count(), is_explained));
        }
    }
}
