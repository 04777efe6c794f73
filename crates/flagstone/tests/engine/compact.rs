//! Compaction: the same rows in a denser file, under the same name.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use flagstone::{CompactError, Database, OpenError, Options};
use flagstone_nand::{
    EccNand, FileLock, FileStorage, Making, OpenDeviceError, Profile, SegmentFile,
};
use tempfile::TempDir;

type Model = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

fn options() -> Options {
    Options::default().with_memory(1 << 20)
}

/// A directory with a database of 16 MiB: rows in no order, three quarters of them deleted again.
fn thinned() -> (TempDir, PathBuf, Model) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let profile = Profile::named("segment-file").unwrap().with_capacity(16 << 20).unwrap();
    let device = SegmentFile::create(FileStorage::create(&path).unwrap(), &profile).unwrap();
    let device = flagstone::device::AnyNand::new(device);
    let database = Database::create_on(device, &options()).unwrap();
    let mut model = Model::new();
    for name in ["first", "first@index", "\u{e9}mpty"] {
        let table = database.copied_table(name).unwrap();
        let rows = model.entry(name.to_owned()).or_default();
        let count = if name == "\u{e9}mpty" { 0 } else { 12_000 };
        let mut transaction = database.begin();
        for number in 0..count {
            let key = (number * 7_919 % 12_007_u32).to_be_bytes();
            let value = vec![number as u8; 100 + usize::from(number % 997 == 0) * 30_000];
            transaction.put(table, &key, &value).unwrap();
            rows.insert(key.to_vec(), value);
            if number % 500 == 499 {
                std::mem::replace(&mut transaction, database.begin()).commit().unwrap();
            }
        }
        let gone: Vec<_> = rows.keys().filter(|key| key[3] % 4 != 0).cloned().collect();
        for key in gone {
            transaction.delete(table, &key).unwrap();
            rows.remove(&key);
        }
        transaction.commit().unwrap();
    }
    database.merge().unwrap();
    database.close().unwrap();
    (directory, path, model)
}

fn content(path: &Path) -> Model {
    let database = Database::open(path, &options()).unwrap();
    let report = database.check().unwrap();
    assert!(report.is_sound(), "{:?}", report.faults);
    let snapshot = database.snapshot().unwrap();
    let rows = |name: &str| {
        let table = database.existing_table(name).unwrap().unwrap();
        snapshot.range(table, ..).map(Result::unwrap).collect()
    };
    let names = database.tables().unwrap().into_iter();
    names.map(|name| (name.clone(), rows(&name))).collect()
}

fn names(directory: &TempDir) -> Vec<String> {
    let names = fs::read_dir(directory.path()).unwrap();
    let mut names: Vec<_> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Leaves the remains of a compaction that is killed: an unfinished file with a number of its own.
fn left_unfinished(path: &Path) {
    let (making, mut storage) = Making::begin(path, FileLock::Required).unwrap();
    storage.fill(10_000, 1).unwrap();
    let (unfinished, kept) = (making.path().to_owned(), path.with_extension("kept"));
    fs::rename(&unfinished, &kept).unwrap();
    drop((making, storage));
    fs::rename(&kept, &unfinished).unwrap();
}

/// Goal: all rows and tables are there, in fewer pages, in a file of the same size and access, which a link
/// still points to. Method: a tree thinned out; an earlier half-written copy lies in the way, and beside it a
/// foreign file with nearly its name.
#[test]
fn a_compacted_database_holds_the_same_in_fewer_pages() {
    let (directory, path, model) = thinned();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let before = fs::metadata(&path).unwrap();
    let copy = || -> Vec<_> {
        let names = names(&directory).into_iter();
        names.filter(|name| name.starts_with(".flagstone-")).collect()
    };
    left_unfinished(&path);
    assert_eq!(copy().len(), 1);
    let others = directory.path().join("db.compacting");
    fs::write(&others, [2; 10_000]).unwrap();
    let link = directory.path().join("link");
    symlink(&path, &link).unwrap();
    let mut told = (0, 0);
    let report = Database::compact_watched(&link, &options(), |done, total| {
        if total == 0 {
            assert_eq!(told, (0, 0), "before anything is made");
            return;
        }
        let copies = copy();
        assert_eq!(copies.len(), 1, "what was left is gone");
        let copy = fs::metadata(directory.path().join(&copies[0])).unwrap();
        assert_eq!(copy.mode() & 0o777, 0o640, "as closed as the original");
        told = (done, total);
    })
    .unwrap();
    let rows: usize = model.values().map(BTreeMap::len).sum();
    assert_eq!((report.tables, report.rows), (3, rows as u64));
    assert!(told.0 > 0 && told.0 <= told.1, "{told:?}");
    assert!(report.used * 2 < report.used_before, "{report:?}");
    let after = fs::metadata(&path).unwrap();
    assert_eq!((report.size_before, report.size), (before.len(), after.len()));
    assert_eq!((after.len(), after.mode()), (before.len(), before.mode()));
    assert_ne!(after.ino(), before.ino(), "the old file was written over");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(names(&directory), ["db", "db.compacting", "link"]);
    assert_eq!(fs::read(&others).unwrap(), [2; 10_000]);
    assert_eq!(content(&path), model);
}

/// Goal: a file with two names is not made two databases. Method: a hard link to it, before; a link that
/// comes while the file is written anew; afterwards both names have all rows, and without the link the file
/// is compacted.
#[test]
fn a_file_with_two_names_is_not_compacted() {
    let (directory, path, model) = thinned();
    let link = directory.path().join("link");
    fs::hard_link(&path, &link).unwrap();
    for name in [&path, &link] {
        let refused = Database::compact(name, &options()).unwrap_err();
        assert!(matches!(refused, CompactError::Linked { count: 2 }), "{refused}");
    }
    fs::remove_file(&link).unwrap();
    let refused = Database::compact_watched(&path, &options(), |_, _| {
        let _ = fs::hard_link(&path, &link);
    });
    assert!(matches!(refused, Err(CompactError::Linked { count: 2 })), "{refused:?}");
    assert_eq!(names(&directory), ["db", "link"]);
    assert_eq!(content(&link), model);
    fs::remove_file(&link).unwrap();
    Database::compact(&path, &options()).unwrap();
    assert_eq!(content(&path), model);
}

/// Goal: a name as long as the host takes is as good as any. Method: a name of 255 bytes, created, opened,
/// compacted, in a directory with nothing else.
#[test]
fn a_database_may_have_the_longest_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("n".repeat(255));
    Database::create(&path, &options()).unwrap().close().unwrap();
    for _ in 0..2 {
        Database::open_or_create(&path, &options()).unwrap().close().unwrap();
        Database::compact(&path, &options()).unwrap();
    }
    assert_eq!(names(&directory).len(), 1);
}

/// Goal: a database that cannot be compacted stays as it is. Method: an image, an open database, no database,
/// and options that the database does not take.
#[test]
fn what_is_not_compacted_is_left_alone() {
    let (directory, path, model) = thinned();
    let image = directory.path().join("chip");
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    Database::create_on(EccNand::create_image(&image, &profile).unwrap(), &options()).unwrap();
    let all = names(&directory);
    assert!(matches!(Database::compact(&image, &options()), Err(CompactError::NotAFile)));
    let device = Path::new("/dev/null");
    assert!(matches!(Database::compact(device, &options()), Err(CompactError::NotAFile)));
    let absent = directory.path().join("absent");
    assert!(matches!(Database::compact(absent, &options()), Err(CompactError::Io { .. })));
    let open = Database::open(&path, &options()).unwrap();
    let locked = Database::compact(&path, &options()).unwrap_err();
    let is_locked = CompactError::Open(OpenError::Device(OpenDeviceError::Locked));
    assert_eq!(locked.to_string(), is_locked.to_string());
    open.close().unwrap();
    let bad = options().with_memory(1);
    assert!(matches!(Database::compact(&path, &bad), Err(CompactError::Open(_))));
    assert_eq!(names(&directory), all);
    assert_eq!(content(&path), model);
}
