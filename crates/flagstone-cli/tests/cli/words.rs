//! Texts for users: in words, not in the notation of the program.

use std::fs;
use std::path::Path;

/// Goal: no message shows a value as Rust writes it. Method: the texts of all errors that a user of library or
/// command can meet, read off their sources.
#[test]
fn errors_speak_no_rust() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut count = 0;
    for name in
        ["flagstone-nand", "flagstone-space", "flagstone-engine", "flagstone", "flagstone-cli"]
    {
        look(&crates.join(name).join("src"), &mut count);
    }
    assert!(count > 200, "only {count} texts were found");
}

fn look(directory: &Path, count: &mut usize) {
    for entry in fs::read_dir(directory).expect("readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            look(&path, count);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let source = fs::read_to_string(&path).expect("text");
            for attribute in source.split("#[error(").skip(1) {
                let text = attribute.split(")]").next().unwrap_or_default();
                assert!(!text.contains(":?}"), "{}: {text}", path.display());
                *count += 1;
            }
        }
    }
}
