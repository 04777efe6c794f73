//! The floors of ARCHITECTURE.md: which crate names which.

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
    ("flagstone-opponents", &["flagstone-nand", "flagstone-space"]),
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
