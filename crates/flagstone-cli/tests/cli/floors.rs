//! The floors of ARCHITECTURE.md: which crate names which, how long a file may be, and whether documents name files that
//! are there.

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
    assert!(
        found.is_empty(),
        "divide a long file, or give the reason in its head ({REASON}…): {found:?}"
    );
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

/// Floors of the engine, from the lowest: folder and type.
const ENGINE_FLOORS: [(&str, &str); 5] = [
    ("store", "Store"),
    ("txn", "Transactions"),
    ("merge", "Merges"),
    ("commit", "Commits"),
    ("recovery", "Recovery"),
];

/// Goal: a reader of one floor of the engine needs none above it. Method: the code of each file, without comments,
/// against the names of the folders and types above its floor.
#[test]
fn floors_of_the_engine_name_none_above_them() {
    let engine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../flagstone-engine/src/engine");
    for (number, (folder, _)) in ENGINE_FLOORS.iter().enumerate() {
        let files = files_of(&engine, folder);
        assert!(files.len() >= 4, "{folder}: {} files", files.len());
        for (name, code) in files {
            let above = ENGINE_FLOORS[number + 1..].iter().flat_map(|(folder, of_type)| {
                [format!("engine::{folder}"), format!("super::{folder}"), (*of_type).to_owned()]
            });
            let names = above.filter(|name| has_word(&code, name)).collect::<Vec<_>>();
            assert!(names.is_empty(), "{name} names {names:?}");
        }
    }
}

/// Goal: nobody adds a method to the whole engine where a floor would do. Method: the files with such methods.
#[test]
fn the_whole_engine_is_one_file() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../flagstone-engine/src");
    let mut found = files_of(&source, "engine");
    found.retain(|(_, code)| code.lines().any(|line| line.starts_with("impl Engine ")));
    let found: Vec<_> = found.into_iter().map(|(name, _)| name).collect();
    assert_eq!(found, ["engine.rs"]);
}

/// Code of `folder.rs` and of each Rust file below `folder`, without comments and unit tests.
fn files_of(parent: &Path, folder: &str) -> Vec<(String, String)> {
    let mut paths = vec![parent.join(folder), parent.join(format!("{folder}.rs"))];
    let mut files = Vec::new();
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).expect("readable");
            paths.extend(entries.map(|entry| entry.expect("readable").path()));
        } else if path.file_name().is_some_and(|name| name != "tests.rs") {
            let text = fs::read_to_string(&path).expect("text");
            let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let name = path.strip_prefix(parent).expect("below").display().to_string();
            files.push((name, code.collect::<Vec<_>>().join("\n")));
        }
    }
    files
}

/// Whether `code` has `word`, not as a part of a longer name.
fn has_word(code: &str, word: &str) -> bool {
    let is_part = |other: char| other.is_alphanumeric() || other == '_';
    code.match_indices(word).any(|(at, _)| {
        !code[..at].ends_with(is_part) && !code[at + word.len()..].starts_with(is_part)
    })
}

/// Goal: a reader of the documents finds the file that they name. Method: each word with a slash that ends as a file
/// does, from the root, from the document, and from each crate.
#[test]
fn documents_name_files_that_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut documents = vec![root.join("README.md"), root.join("ARCHITECTURE.md")];
    for directory in ["docs", "tests/failures"] {
        let entries = fs::read_dir(root.join(directory)).expect("readable");
        documents.extend(entries.map(|entry| entry.expect("readable").path()));
    }
    let mut places = vec![root.clone(), root.join("compare"), root.join("fuzz")];
    for entry in fs::read_dir(root.join("crates")).expect("readable") {
        let path = entry.expect("readable").path();
        places.extend([path.join("src"), path]);
    }
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || "_./-".contains(letter);
    let (mut named, mut missing) = (0, Vec::new());
    for document in documents {
        let text = fs::read_to_string(&document).expect("text");
        for word in text.split(|letter| !is_part(letter)) {
            let is_file = [".rs", ".md", ".toml"].iter().any(|end| word.ends_with(end));
            if !is_file || !word.contains('/') || word.starts_with("//") {
                continue;
            }
            named += 1;
            let beside = document.parent().expect("a directory");
            let mut all = places.iter().map(|path| path.as_path()).chain([beside]);
            if !all.any(|place| place.join(word).exists()) {
                missing.push(format!("{}: {word}", document.display()));
            }
        }
    }
    assert!(named > 100, "only {named} names of files were found");
    assert!(missing.is_empty(), "{missing:#?}");
}
