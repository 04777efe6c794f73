//! Damage to one place of a device: the cases that hide the whole database.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use flagstone::{Database, FileSize, OpenError, Options};
use flagstone_nand::{EccNand, NandError, Profile, SegmentFile, SimStorage};

use crate::hooked::{Call, Hook, Hooked};

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
    if end == End::Closed {
        database.close().unwrap();
    }
}

/// Places of a file that are not empty, of `size` bytes each.
fn places(path: &Path, size: usize) -> Vec<u64> {
    let bytes = fs::read(path).unwrap();
    let chunks = bytes.chunks(size).enumerate();
    let is_used = |chunk: &[u8]| chunk.iter().any(|byte| *byte != chunk[0]);
    chunks.filter(|(_, chunk)| is_used(chunk)).map(|(at, _)| (at * size) as u64).collect()
}

/// Goal: damage to one place hides no database, unless the place holds rows or the way to them; then
/// `salvage` gives all rows but the ones in that place. Method: each place that is not empty is set to zeros
/// in turn.
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

                fill(Database::create_on(image, &options()).unwrap(), end);
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
                    OpenError::Corrupt(_) | OpenError::Mount(_) | OpenError::Restart(_)
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

/// Goal: the same where a place does not read: an opening gives every row but the ones in that place, or an
/// error, and `salvage` goes past it. Method: each page that an opening or a scan reads fails in turn.
#[test]
fn a_page_that_does_not_read_hides_no_other() {
    for end in [End::Closed, End::Cut] {
        let mut profile = Profile::named("segment-file").unwrap();
        profile.geometry.pages_per_block = 32;
        let profile = profile.with_block_count(256).unwrap();
        let storage = SimStorage::new(profile.timing);
        let file = SegmentFile::create_growing(storage, &profile, 2).unwrap();
        let database = Database::create_on(file, &options()).unwrap();
        fill(database.clone(), end);
        let device = database.into_device().unwrap();
        let chip: SegmentFile<SimStorage> = device.downcast().unwrap();
        let opened = |hook: Hook| {
            let device = Hooked { device: chip.clone(), hook };
            Database::open_read_only_on(device, &options())
        };
        let rows_of = |database: &Database, name| {
            let table = database.existing_table(name)?.ok_or(flagstone::Error::NoTable)?;
            let snapshot = database.snapshot()?;
            let mut rows = 0;
            for row in 0..ROWS {
                match snapshot.get(table, &row.to_be_bytes()) {
                    Ok(value) => {
                        let wanted = if name == "t" && row < 20 { 8 } else { 7 };
                        assert_eq!(value, Some(vec![wanted; 100]), "{name}, row {row}");
                        rows += 1;
                    }
                    Err(error) => assert!(error.to_string().contains("page"), "{error}"),
                }
            }
            Ok::<_, flagstone::Error>(rows)
        };
        let read = Arc::new(Mutex::new(BTreeSet::new()));
        let reads = Arc::clone(&read);
        let database = opened(Arc::new(move |call| {
            if let Call::Read(page) = call {
                reads.lock().unwrap().insert(page);
            }
            Ok(())
        }));
        let database = database.unwrap();
        assert_eq!(rows_of(&database, "t").unwrap(), ROWS);
        assert_eq!(rows_of(&database, "u").unwrap(), ROWS);
        drop(database);
        let pages = read.lock().unwrap().clone();
        let (mut hidden, mut partly) = (0, 0);
        for lost in &pages {
            let lost = *lost;
            let hook: Hook = Arc::new(move |call| match call {
                Call::Read(page) if page == lost => Err(NandError::Uncorrectable { page }),
                _ => Ok(()),
            });
            let found = opened(Arc::clone(&hook)).map(|database| {
                [rows_of(&database, "t"), rows_of(&database, "u")].map(|rows| rows.unwrap_or(0))
            });
            match found {
                Ok([ROWS, ROWS]) => {}
                Ok(_) => partly += 1,
                Err(_) => {
                    hidden += 1;
                    let target =
                        SegmentFile::create_growing(SimStorage::new(profile.timing), &profile, 2);
                    let target = Database::create_on(target.unwrap(), &options()).unwrap();
                    let source = Hooked { device: chip.clone(), hook };
                    let report = target.salvage_from(source, &options(), |_| ()).unwrap();
                    assert!(report.rows >= 2 * u64::from(ROWS) - 60, "{lost}: {report:?}");
                }
            }
        }
        println!(
            "{end:?}: of {} pages {hidden} hide the database, {partly} some rows",
            pages.len()
        );
        assert!(hidden * 4 < pages.len(), "{hidden} of {}", pages.len());
    }
}
