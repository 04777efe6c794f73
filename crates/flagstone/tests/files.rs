//! Files of databases: what a creation that fails leaves.

use std::fs;

use flagstone::{Database, FileSize, OpenError, Options};

#[test]
fn a_database_that_cannot_be_created_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let options = Options::default();
    let too_small = Database::create_sized(&path, &options, FileSize::Fixed(4096)).unwrap_err();
    assert!(matches!(too_small, OpenError::Options(_)), "{too_small}");
    assert!(!path.exists(), "the name is free again");
    fs::write(&path, "mine").unwrap();
    assert!(matches!(Database::create(&path, &options), Err(OpenError::Device(_))));
    assert_eq!(fs::read(&path).unwrap(), b"mine");
}
