//! Damaged databases: reads past damage, and salvage. Each row has a value of its own, so that every row that
//! comes back is compared with a model, and every row that stands whole on the device has to come back.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use flagstone::salvage::{DoubtCause, MissingCause, SalvageMethod, SalvageReport, SoundRow};
use flagstone::{Database, FileSize, Options};
use flagstone_nand::{EccNand, Profile};

const ROWS: u32 = 3_000;

fn options() -> Options {
    Options::default().with_memory(256 << 10)
}

/// Kinds of devices, each with the size of a page in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    Image,
}

impl Kind {
    const ALL: [Self; 2] = [Self::File, Self::Image];

    fn page_size(self) -> usize {
        match self {
            Self::File => 4096,
            Self::Image => 2112,
        }
    }

    fn create(self, path: &Path) -> Database {
        match self {
            Self::File => {
                let size = FileSize::Growing { limit: 1 << 30 };
                Database::create_sized(path, &options(), size).unwrap()
            }
            Self::Image => {
                let profile = Profile::named("slc-2k").unwrap().with_block_count(128).unwrap();
                let image = EccNand::create_image(path, &profile).unwrap();
                Database::create_on(image, &options()).unwrap()
            }
        }
    }
}

/// Value of a row that is set for the `generation`th time: bytes that occur nowhere else.
fn value_of(table: &str, row: u32, generation: u32) -> Vec<u8> {
    let mut value = format!("<{table} {row} {generation}>").into_bytes();
    let mut state = u64::from(row) << 32 | u64::from(generation) << 8 | table.len() as u64;
    let size = if row.is_multiple_of(500) { 9_000 } else { 90 };
    while value.len() < size {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        value.push((state >> 56) as u8);
    }
    value
}

/// Newest value of each row of each table, and how often it was set.
type Model = BTreeMap<(String, Vec<u8>), (Vec<u8>, u32)>;

/// Rows that came back, by table and key.
type Rows = BTreeMap<(String, Vec<u8>), Vec<u8>>;

struct Saved {
    directory: tempfile::TempDir,
    path: PathBuf,
    kind: Kind,
    model: Model,
}

/// A database with two tables, of which every third row was changed once and some were deleted.
fn database(kind: Kind, end: impl FnOnce(Database, &mut Model)) -> Saved {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let database = kind.create(&path);
    let mut model = Model::new();
    for (name, generation) in [("one", 0), ("second", 0), ("one", 1)] {
        let table = database.table(name).unwrap();
        for begin in (0..ROWS).step_by(100) {
            let mut transaction = database.begin();
            for row in (begin..begin + 100).filter(|row| generation == 0 || row.is_multiple_of(3)) {
                let (key, value) = (row.to_be_bytes(), value_of(name, row, generation));
                transaction.put(table, &key, &value).unwrap();
                model.insert((name.into(), key.to_vec()), (value, generation));
            }
            transaction.commit().unwrap();
        }
        database.merge().unwrap();
    }
    end(database, &mut model);
    Saved { directory, path, kind, model }
}

fn closed(database: Database, _: &mut Model) {
    database.close().unwrap();
}

/// Commits behind the last checkpoint, then the process ends.
fn cut(database: Database, model: &mut Model) {
    let table = database.existing_table("second").unwrap().unwrap();
    for row in (0..ROWS).step_by(40) {
        let (key, value) = (row.to_be_bytes(), value_of("second", row, 7));
        let mut transaction = database.begin();
        transaction.put(table, &key, &value).unwrap();
        transaction.commit().unwrap();
        model.insert(("second".into(), key.to_vec()), (value, 7));
    }
}

fn is_in(low: &[u8], high: Option<&[u8]>, key: &[u8]) -> bool {
    key >= low && high.is_none_or(|high| key < high)
}

impl Saved {
    /// Salvages, and compares the result with the model: a row that is not the newest is reported as doubtful
    /// and was committed once; a row that is not there is reported as missing or doubtful.
    fn salvage(&self) -> (SalvageReport, Rows) {
        let out = self.directory.path().join("out");
        let _ = fs::remove_file(&out);
        let before = fs::read(&self.path).unwrap();
        let report = Database::salvage(&self.path, &out, &options()).unwrap();
        assert_eq!(fs::read(&self.path).unwrap(), before, "the damaged database is left alone");
        let database = Database::open_read_only(&out, &options()).unwrap();
        assert!(database.check().unwrap().is_sound());
        let snapshot = database.snapshot().unwrap();
        let mut rows = BTreeMap::new();
        for name in snapshot.tables().unwrap() {
            let table = snapshot.table(&name).unwrap().unwrap();
            for row in snapshot.range(table, ..) {
                let (key, value) = row.unwrap();
                rows.insert((name.clone(), key), value);
            }
        }
        assert_eq!(report.rows, rows.len() as u64);
        self.compare(&report, &rows);
        (report, rows)
    }

    fn compare(&self, report: &SalvageReport, rows: &Rows) {
        let is_doubtful = |table: &str, key: &[u8]| {
            let spans = report.doubtful.iter().filter(|span| span.table == table);
            spans.into_iter().any(|span| is_in(&span.low, span.high.as_deref(), key))
        };
        let is_missing = |table: &str, key: &[u8]| {
            let spans = report.missing.iter().filter(|span| span.table == table);
            spans.into_iter().any(|span| is_in(&span.low, span.high.as_deref(), key))
        };
        for ((table, key), value) in rows {
            let row = u32::from_be_bytes(key.as_slice().try_into().unwrap());
            if report.tables.iter().any(|it| it.name == *table && it.is_invented) {
                let of_any = ["one", "second"].iter().any(|name| {
                    [0, 1, 7].iter().any(|generation| *value == value_of(name, row, *generation))
                });
                assert!(of_any, "{table} {row} is torn");
                continue;
            }
            let (newest, _) = &self.model[&(table.clone(), key.clone())];
            if value != newest {
                assert!(is_doubtful(table, key), "{table} {row} is old and not told");
                let was_there =
                    [0, 1, 7].iter().any(|generation| *value == value_of(table, row, *generation));
                assert!(was_there, "{table} {row} is torn");
            }
        }
        for (table, key) in self.model.keys().filter(|key| !rows.contains_key(*key)) {
            let is_known = report.tables.iter().any(|it| it.name == *table);
            let is_told = !is_known || is_missing(table, key) || is_doubtful(table, key);
            assert!(is_told, "{table} {key:?} is not there and not told");
        }
    }

    /// Every row whose newest value stands whole somewhere comes back with it, possibly under another name of
    /// its table.
    fn all_that_stands_came_back(&self, rows: &Rows) -> (usize, usize) {
        let mut bytes = fs::read(&self.path).unwrap();
        bytes.truncate(bytes.len() - bytes.len() % self.kind.page_size());
        let found = found_in(&bytes);
        let back: std::collections::BTreeSet<&[u8]> = rows.values().map(Vec::as_slice).collect();
        let mut standing = 0;
        for ((table, key), (value, generation)) in &self.model {
            let row = u32::from_be_bytes(key.as_slice().try_into().unwrap());
            if value.len() > 1_000 {
                continue;
            }
            let places = found.get(format!("<{table} {row} {generation}>").as_str());
            // A record in a page of the log may go on elsewhere.
            let is_log =
                |at: usize| bytes[at - at % self.kind.page_size() + 4..].starts_with(b"Lg");
            let is_whole = |at: &usize| bytes[*at..].starts_with(value) && !is_log(*at);
            if places.is_some_and(|places| places.iter().any(is_whole)) {
                standing += 1;
                assert!(back.contains(value.as_slice()), "{table} {row} stands and is not back");
            }
        }
        (standing, self.model.len())
    }

    /// Replaces the bytes of pages as `damage` does.
    fn damage(&self, mut damage: impl FnMut(usize, &mut [u8])) {
        let mut bytes = fs::read(&self.path).unwrap();
        for (index, page) in bytes.chunks_mut(self.kind.page_size()).enumerate() {
            damage(index, page);
        }
        fs::write(&self.path, bytes).unwrap();
    }

    /// Pages that are not empty.
    fn used_pages(&self) -> Vec<usize> {
        let bytes = fs::read(&self.path).unwrap();
        let pages = bytes.chunks(self.kind.page_size()).enumerate();
        let is_used = |page: &[u8]| page.iter().any(|byte| *byte != page[0]);
        pages.filter(|(_, page)| is_used(page)).map(|(index, _)| index).collect()
    }
}

/// Where each `<table row generation>` stands.
fn found_in(bytes: &[u8]) -> BTreeMap<&str, Vec<usize>> {
    let mut found: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for at in (0..bytes.len()).filter(|at| bytes[*at] == b'<') {
        let end = bytes[at..].iter().take(30).position(|byte| *byte == b'>');
        let name = end.and_then(|end| std::str::from_utf8(&bytes[at..=at + end]).ok());
        if let Some(name) = name {
            found.entry(name).or_default().push(at);
        }
    }
    found
}

#[test]
fn a_sound_database_is_salvaged_as_it_is() {
    for kind in Kind::ALL {
        for end in [closed, cut] as [fn(Database, &mut Model); 2] {
            let saved = database(kind, end);
            let (report, rows) = saved.salvage();
            assert_eq!(report.method, SalvageMethod::Opened);
            assert!(report.is_complete(), "{report:?}");
            assert_eq!(rows.len(), saved.model.len());
        }
    }
}

/// Goal: one bad byte in one leaf takes the rows of that leaf and no others, from `sound_rows`, from a backup
/// that goes on past damage, and from a salvage.
#[test]
fn one_bad_byte_takes_one_leaf() {
    for kind in Kind::ALL {
        let saved = database(kind, closed);
        let bytes = fs::read(&saved.path).unwrap();
        let found = found_in(&bytes);
        let at = *found["<second 1501 0>"].last().unwrap() / kind.page_size();
        saved.damage(|index, page| page[100] ^= u8::from(index == at));
        let database = Database::open_read_only(&saved.path, &options()).unwrap();
        assert!(database.backup_to(Vec::new()).is_err());
        let (mut stream, mut passed) = (Vec::new(), Vec::new());
        let snapshot = database.snapshot().unwrap();
        let pass = |table: &str, range: flagstone::salvage::MissingRange| {
            passed.push((table.to_owned(), range));
            Ok(())
        };
        let report = database.backup_sound(&snapshot, &mut stream, |_| {}, pass).unwrap();
        assert_eq!(flagstone::verify_backup(stream.as_slice()).unwrap(), report);
        let lost = saved.model.len() as u64 - report.rows;
        assert!((1..60).contains(&lost), "{lost} rows of {}", saved.model.len());
        let [(table, range)] = passed.as_slice() else { panic!("{passed:?}") };
        assert_eq!(table, "second");
        assert!(is_in(&range.low, range.high.as_deref(), &1501_u32.to_be_bytes()));
        let table = database.existing_table("second").unwrap().unwrap();
        let rows: Vec<_> = snapshot.sound_rows(table).map(Result::unwrap).collect();
        let missing = rows.iter().filter(|row| matches!(row, SoundRow::Missing(_))).count();
        assert_eq!((missing, rows.len() as u64), (1, u64::from(ROWS) - lost + 1));
        drop((snapshot, database));

        let (report, rows) = saved.salvage();
        assert_eq!(report.method, SalvageMethod::Opened);
        assert!(rows.len() as u64 >= saved.model.len() as u64 - lost);
        assert_eq!(report.doubtful.len(), 1, "{:?}", report.doubtful);
        assert_eq!(report.doubtful[0].cause, DoubtCause::OlderPage);
        saved.all_that_stands_came_back(&rows);
    }
}

/// Goal: the first megabyte is zeros.
#[test]
fn zeros_in_front_take_what_stood_there() {
    for kind in Kind::ALL {
        let saved = database(kind, closed);
        let pages = (1 << 20) / kind.page_size();
        saved.damage(|index, page| {
            if index < pages {
                page.fill(0);
            }
        });
        assert!(Database::open_read_only(&saved.path, &options()).is_err());
        let (report, rows) = saved.salvage();
        assert_eq!(report.method, SalvageMethod::Scanned);
        let (standing, all) = saved.all_that_stands_came_back(&rows);
        println!("{kind:?}: {} rows back, {standing} stand, of {all}", rows.len());
        assert!(standing > all / 2, "{standing} of {all}");
    }
}

/// Goal: a file ends in its middle, and in the middle of a page.
#[test]
fn a_file_that_was_cut_short_gives_what_is_left() {
    for kind in Kind::ALL {
        for end in [closed, cut] as [fn(Database, &mut Model); 2] {
            let saved = database(kind, end);
            let last = *saved.used_pages().last().unwrap() * kind.page_size();
            let file = fs::OpenOptions::new().write(true).open(&saved.path).unwrap();
            file.set_len(last as u64 / 2 + 700).unwrap();
            let (report, rows) = saved.salvage();
            assert_eq!(report.method, SalvageMethod::Scanned);
            assert!(!report.is_complete());
            let (standing, all) = saved.all_that_stands_came_back(&rows);
            println!("{kind:?}: {} rows back, {standing} stand, of {all}", rows.len());
        }
    }
}

/// Goal: a page of the log does not read. Method: each page that holds commits behind the checkpoint, one at
/// a time; no other commit is lost with it, and all rows in leaves come back.
#[test]
fn a_page_of_the_log_takes_its_own_commits() {
    for kind in Kind::ALL {
        let saved = database(kind, cut);
        let good = fs::read(&saved.path).unwrap();
        let found = found_in(&good);
        let mut pages: Vec<usize> = (0..ROWS)
            .step_by(40)
            .filter(|row| !row.is_multiple_of(500))
            .filter_map(|row| found.get(format!("<second {row} 7>").as_str()))
            .flat_map(|places| places.iter().map(|at| at / kind.page_size()))
            .collect();
        pages.dedup();
        assert!(pages.len() > 2, "{pages:?}");
        for at in pages {
            fs::write(&saved.path, &good).unwrap();
            saved.damage(|index, page| {
                if index == at {
                    page.fill(0x5A);
                }
            });
            let (report, rows) = saved.salvage();
            assert_eq!(rows.len(), saved.model.len(), "{report:?}");
            let newest = saved.model.iter().filter(|(key, (value, _))| rows[*key] == *value);
            let stale = saved.model.len() - newest.count();
            assert!(stale <= 4_096 / 90, "{stale} rows are old");
        }
    }
}

/// Goal: ten pages of a hundred are damaged. Method: as the seeds draw them.
#[test]
fn ten_percent_of_the_pages_take_what_they_held() {
    for kind in Kind::ALL {
        for seed in 0..4_usize {
            let saved = database(kind, closed);
            let draw =
                |index: usize| (index * 7_919 + seed * 104_729).wrapping_mul(2_654_435_761) >> 7;
            saved.damage(|index, page| {
                if draw(index) % 10 == 0 {
                    page.fill(0);
                }
            });
            let (report, rows) = saved.salvage();
            let (standing, all) = saved.all_that_stands_came_back(&rows);
            println!(
                "{kind:?}: {:?} {} rows back, {standing} stand, of {all}",
                report.method,
                rows.len()
            );
            assert!(standing > all / 2, "{standing} of {all}");
        }
    }
}

/// Goal: a large value of which a page is gone is reported, by its key.
#[test]
fn a_value_without_all_its_pages_is_told() {
    let saved = database(Kind::File, closed);
    let bytes = fs::read(&saved.path).unwrap();
    let part = &value_of("second", 1_500, 0)[5_000..5_100];
    let at = bytes.windows(100).position(|window| window == part).unwrap() / 4096;
    saved.damage(|index, page| page[200] ^= u8::from(index == at));
    let (report, rows) = saved.salvage();
    assert_eq!(rows.len(), saved.model.len() - 1);
    let causes: Vec<_> = report.missing.iter().map(|span| (span.cause, span.low.clone())).collect();
    assert_eq!(causes, [(MissingCause::Value, 1_500_u32.to_be_bytes().to_vec())]);
}
