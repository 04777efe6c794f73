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

/// Goal: no place hides a database, but those whose loss is the loss of rows or of the way to them; there `salvage` gives
/// all rows but those that stood in the place. Method: each place that holds anything set to zeros in turn.
#[test]
fn what_one_place_hides_is_salvaged() {
    for (end, is_file) in [(End::Closed, true), (End::Cut, true), (End::Cut, false)] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("db");
        let size = match is_file {
            true => {
                let size = FileSize::Growing { limit: 1 << 30 };
                fill(Database::create_sized(&path, &options(), size).unwrap(), end);
                4096
            }
            false => {
                let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
                let image = EccNand::create_image(&path, &profile).unwrap();
                fill(Database::create_on(Box::new(image) as _, &options()).unwrap(), end);
                2112
            }
        };
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let (mut hidden, places) = (0, places(&path, size));
        for at in &places {
            let mut good = vec![0; size];
            file.read_exact_at(&mut good, *at).unwrap();
            file.write_all_at(&vec![0; size], *at).unwrap();
            if let Err(error) = Database::open_read_only(&path, &options()) {
                hidden += 1;
                let is_known = matches!(
                    error,
                    OpenError::Corrupt(_) | OpenError::Mount(_) | OpenError::Engine(_)
                );
                assert!(is_known, "{at:#x}: {error}");
                let out = directory.path().join("out");
                let report = Database::salvage(&path, &out, &options()).unwrap();
                assert!(report.rows >= 2 * u64::from(ROWS) - 60, "{at:#x} {error}: {report:?}");
                fs::remove_file(&out).unwrap();
            }
            file.write_all_at(&good, *at).unwrap();
        }
        println!("{end:?}: {hidden} of {} places hide the database", places.len());
        assert!(hidden * 4 < places.len(), "{hidden} of {}", places.len());
    }
}
