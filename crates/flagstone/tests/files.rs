//! Files of databases: what a creation that fails leaves, and how they are recognised.

use std::fs;

use flagstone::{Database, FileSize, OpenError, Options};
use flagstone_nand::{EccNand, Profile};

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

/// Goal: a file of segments is one whatever lies beside it; an image is told by the profile beside it. Method: a
/// TOML file of somebody else's beside either.
#[test]
fn a_file_is_known_by_its_content_first() {
    let directory = tempfile::tempdir().unwrap();
    let (plain, image) = (directory.path().join("plain"), directory.path().join("image"));
    let options = Options::default().with_memory(1 << 20);
    Database::create(&plain, &options).unwrap().close().unwrap();
    fs::write(directory.path().join("plain.toml"), "name = \"shop\"\n").unwrap();
    Database::open(&plain, &options).unwrap().close().unwrap();
    Database::compact(&plain, &options).unwrap();

    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    let device = EccNand::create_image(&image, &profile).unwrap();
    Database::create_on(device, &options).unwrap().close().unwrap();
    Database::open(&image, &options).unwrap().close().unwrap();
    fs::write(directory.path().join("image.toml"), "name = \"shop\"\n").unwrap();
    let refused = Database::open(&image, &options).unwrap_err();
    assert!(refused.to_string().starts_with("the profile beside the image, "), "{refused}");
    assert!(refused.to_string().contains("image.toml: "), "{refused}");
}
