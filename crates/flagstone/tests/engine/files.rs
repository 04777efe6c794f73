//! Files of databases: the remains of a creation that fails, and how files are recognised.

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

/// Goal: a file of segments is recognised with any file beside it; an image is recognised by the profile
/// beside it. Method: a foreign TOML file beside either.
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

/// Goal: making a file removes no file of another owner. Method: whole databases and other files under every
/// name that unfinished ones had; a creation, a compaction and a save of an image beside them.
#[test]
fn making_a_database_takes_nothing_from_others() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let options = Options::default().with_memory(1 << 20);
    let others = ["db.flagstone-creating", "db.restoring", ".flagstone-1", "db.compacting-1"];
    for name in others {
        let database = Database::create(at(name), &options).unwrap();
        database.table("mine").unwrap();
        database.close().unwrap();
    }
    fs::write(at("image.toml.new"), "mine").unwrap();
    for _ in 0..2 {
        Database::open_or_create(at("db"), &options).unwrap().close().unwrap();
        Database::compact(at("db"), &options).unwrap();
    }
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    let device = EccNand::create_image(&at("image"), &profile).unwrap();
    Database::create_on(device, &options).unwrap().close().unwrap();
    for name in others {
        assert_eq!(Database::open(at(name), &options).unwrap().tables().unwrap(), ["mine"]);
    }
    assert_eq!(fs::read(at("image.toml.new")).unwrap(), b"mine");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), others.len() + 4);
}

/// Goal: the room of a dropped table is given back to the file system, where the option asks for that, and is
/// there again when rows need it. Method: the blocks that the system counts, with the option and without.
#[test]
#[cfg(target_os = "linux")]
fn room_that_holds_nothing_is_given_back() {
    use std::os::unix::fs::MetadataExt as _;

    let left = |discard: bool| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("db");
        let options = Options::default().with_memory(1 << 20).with_discard(discard);
        let database = Database::create(&path, &options).unwrap();
        let fill = |table| {
            for first in (0..12_000_u32).step_by(500) {
                let mut transaction = database.begin();
                for row in first..first + 500 {
                    transaction.put(table, &row.to_be_bytes(), &[7; 1_000]).unwrap();
                }
                transaction.commit().unwrap();
            }
        };
        fill(database.table("old").unwrap());
        database.drop_table("old").unwrap();
        database.merge().unwrap();
        let file = std::fs::metadata(&path).unwrap();
        fill(database.table("new").unwrap());
        assert!(database.check().unwrap().is_sound());
        database.close().unwrap();
        assert!(Database::open(&path, &options).unwrap().check().unwrap().is_sound());
        (file.blocks() * 512, file.len())
    };
    let (kept, size) = left(false);
    assert!(kept >= size, "{kept} of {size} bytes");
    let (kept, size) = left(true);
    assert!(kept < size / 2, "{kept} of {size} bytes");
}
