//! Damage to one place of a device: what hides the whole database.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use flagstone::{Database, FileSize, OpenError, Options};
use flagstone_nand::{EccNand, Profile};

const ROWS: u32 = 400;

fn options() -> Options {
    Options::default().with_memory(256 << 10)
}

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Closed,
    Cut,
}

/// Fills a new database: leaves of two tables, a large value, a checkpoint on the way, commits behind it.
fn fill(database: Database, end: End) {
    for name in ["t", "u"] {
        let table = database.table(name).unwrap();
        for begin in (0..ROWS).step_by(50) {
            let mut transaction = database.begin();
            for row in begin..begin + 50 {
                transaction.put(table, &row.to_be_bytes(), &[7; 100]).unwrap();
            }
            transaction.put(table, b"large", &[begin as u8; 9_000]).unwrap();
            transaction.commit().unwrap();
        }
        database.merge().unwrap();
    }
    let table = database.table("t").unwrap();
    for row in 0..20_u32 {
        let mut transaction = database.begin();
        transaction.put(table, &row.to_be_bytes(), &[8; 100]).unwrap();
        transaction.commit().unwrap();
    }
    match end {
        End::Closed => database.close().unwrap(),
        End::Cut => drop(database),
    }
}

/// Places of a file that hold something, of `size` bytes each.
fn places(path: &Path, size: usize) -> Vec<u64> {
    let bytes = fs::read(path).unwrap();
    let chunks = bytes.chunks(size).enumerate();
    let is_used = |chunk: &[u8]| chunk.iter().any(|byte| *byte != chunk[0]);
    chunks.filter(|(_, chunk)| is_used(chunk)).map(|(at, _)| (at * size) as u64).collect()
}

/// Opens the database with each place damaged in turn, in three ways; the errors of those that hide it.
fn hidden_by(path: &Path, size: usize) -> Vec<(u64, usize, OpenError)> {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut hidden = Vec::new();
    for at in places(path, size) {
        let mut good = vec![0; size];
        let size = file.read_at(&mut good, at).unwrap();
        good.truncate(size);
        let mut flipped = good.clone();
        flipped[13 * size / 512] ^= 0x5A;
        let random = (0..size).map(|index| (index * index * 131 % 251) as u8).collect();
        for (kind, bad) in [vec![0; size], random, flipped].into_iter().enumerate() {
            file.write_all_at(&bad, at).unwrap();
            if let Err(error) = Database::open_read_only(path, &options()) {
                hidden.push((at, kind, error));
            }
        }
        file.write_all_at(&good, at).unwrap();
    }
    hidden
}

#[test]
fn experiment() {
    for end in [End::Closed, End::Cut] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let size = FileSize::Growing { limit: 1 << 30 };
        fill(Database::create_sized(&path, &options(), size).unwrap(), end);
        for size in [512, 4096] {
            let hidden = hidden_by(&path, size);
            println!("file {end:?} {size}: {} of {}", hidden.len(), places(&path, size).len());
            for (at, kind, error) in hidden {
                println!("   {at:#x} {kind} {error}");
            }
        }
        let path = directory.path().join("image");
        let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
        let image = EccNand::create_image(&path, &profile).unwrap();
        fill(Database::create_on(Box::new(image) as _, &options()).unwrap(), end);
        let hidden = hidden_by(&path, 2112);
        println!("image {end:?}: {} of {}", hidden.len(), places(&path, 2112).len());
        for (at, kind, error) in hidden {
            println!("   {at:#x} {kind} {error}");
        }
    }
}
