//! Devices that are full most of their life, and lose power again and again: with any content they open, are
//! sound, and hold all commits.

use std::collections::BTreeMap;

use flagstone::{Durability, Error, Options, Table};
use flagstone_nand::{Crashable, Ending, FaultPlan, Profile, SegmentFile, SimNand, SimStorage};

use crate::on::Database;

const KEYS: u64 = 20_000;

/// Least memory of a session.
const MEMORY_MIN: usize = 96 << 10;

/// Parameters of a session.
#[derive(Clone, Copy, Debug)]
struct Style {
    txns: u64,
    /// Rows of a transaction, at most.
    rows: u64,
    /// Bytes of one value in ten, at most.
    large: u64,
    durability: Durability,
}

const STYLES: [Style; 4] = [
    Style { txns: 100, rows: 50, large: 1_500, durability: Durability::Immediate },
    Style { txns: 100, rows: 50, large: 1_500, durability: Durability::Deferred },
    Style { txns: 100, rows: 1, large: 300_000, durability: Durability::Immediate },
    Style { txns: 100, rows: 50, large: 300_000, durability: Durability::Immediate },
];

/// Xorshift: a run is its seed.
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

type Rows = BTreeMap<u64, Option<u64>>;

/// The database under test beside the rows that it has to hold.
struct Life {
    /// Name of the run in a failure message.
    name: String,
    options: Options,
    style: Style,
    draws: Draws,
    /// Size of each value in bytes, by key; the bytes themselves follow from the size.
    rows: BTreeMap<u64, u64>,
    /// Transactions whose end is not known, or need not be durable yet, in order.
    open: Vec<Rows>,
    is_full: bool,
}

fn value(size: u64) -> Vec<u8> {
    size.to_le_bytes().into_iter().cycle().take(size as usize).collect()
}

impl Life {
    /// One session on `device`, from opening to a cut, or to the end of a process.
    fn session<D: Crashable + Send + 'static>(&mut self, mut device: D, endings: &[Ending]) -> D {
        let operation = device.operation_count() + 20 + self.draws.below(5_000);
        let ending = endings[self.draws.below(endings.len() as u64) as usize];
        let is_cut = self.draws.below(2) == 0;
        device.set_plan(match is_cut {
            true => FaultPlan::power_cut(self.draws.below(1 << 20), operation, ending),
            false => FaultPlan::default(),
        });
        let kept = device.clone();
        // With little memory a restart merges the changes that it puts back.
        let memory = self.options.memory >> (3 * self.draws.below(2));
        let options = self.options.clone().with_memory(memory.max(MEMORY_MIN));
        let database = match Database::open_on(device, &options) {
            Ok(database) => database,
            Err(_) if is_cut => return self.opened_in_peace(kept),
            Err(error) => panic!("it opens, {}: {error:?}", self.name),
        };
        if let Ok(table) = database.table("t")
            && self.agrees(&database, table)
        {
            self.work(&database, table);
        }
        let mut device = database.into_device().unwrap();
        if device.is_off() {
            device.power_cycle();
        }
        device
    }

    /// An opening that a cut may have ended is begun again without one.
    fn opened_in_peace<D: Crashable + Send + 'static>(&mut self, mut device: D) -> D {
        device.set_plan(FaultPlan::default());
        let database = Database::open_on(device, &self.options).unwrap();
        database.into_device().unwrap()
    }

    /// Whether the rows could be compared, which a cut may prevent.
    fn agrees<D: Crashable + Send + 'static>(
        &mut self,
        database: &Database<D>,
        table: Table,
    ) -> bool {
        let mut found = BTreeMap::new();
        for row in database.snapshot().unwrap().range(table, ..) {
            let Ok((key, bytes)) = row else { return false };
            let key = u64::from_be_bytes(key.try_into().unwrap());
            assert_eq!(bytes, value(bytes.len() as u64), "the value of {key}");
            found.insert(key, bytes.len() as u64);
        }
        while found != self.rows {
            assert!(!self.open.is_empty(), "the rows are those that were committed");
            let next = self.open.remove(0);
            self.take(next);
        }
        self.open.clear();
        let Ok(report) = database.check() else { return false };

        assert!(report.is_sound(), "{report:?}");
        true
    }

    fn take(&mut self, rows: Rows) {
        for (key, size) in rows {
            match size {
                Some(size) => self.rows.insert(key, size),
                None => self.rows.remove(&key),
            };
        }
    }

    fn work<D: Crashable + Send + 'static>(&mut self, database: &Database<D>, table: Table) {
        for _ in 0..self.style.txns {
            let mut transaction = database.begin();
            let mut rows = Rows::new();
            let mut result = Ok(());
            for _ in 0..1 + self.draws.below(self.style.rows) {
                let key = self.draws.below(KEYS);
                let limit = if self.draws.below(10) == 0 { self.style.large } else { 1_500 };
                let size = (self.draws.below(10) > 0).then(|| self.draws.below(limit));
                result = match size {
                    Some(size) => transaction.put(table, &key.to_be_bytes(), &value(size)),
                    None => transaction.delete(table, &key.to_be_bytes()).map(|_| ()),
                };
                rows.insert(key, size);
                if result.is_err() {
                    break;
                }
            }
            let is_whole = result.is_ok();
            let ended = result.map_err(Error::from);
            let ended = ended
                .and_then(|()| Ok(transaction.commit_with(self.style.durability).map(drop)?));
            match ended {
                Ok(()) if self.style.durability == Durability::Deferred => self.open.push(rows),
                Ok(()) => self.take(rows),
                Err(Error::Full) => self.is_full = true,
                Err(_) => {
                    // The session was cut off: a transaction that has not begun to commit is not there.
                    self.open.extend(is_whole.then_some(rows));
                    return;
                }
            }
        }
    }
}

/// Sessions on one device, each with its own transactions and its own end; says whether the device was ever
/// full.
fn live<D: Crashable + Send + 'static>(
    device: D,
    endings: &[Ending],
    style: Style,
    options: Options,
    seed: u64,
) -> bool {
    let database = Database::create_on(device, &options).unwrap();
    database.table("t").unwrap();
    let mut device = database.into_device().unwrap();
    let draws = Draws(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let (rows, open) = (BTreeMap::new(), Vec::new());
    let name = format!("{style:?}, seed {seed}");
    let mut life = Life { name, options, style, draws, rows, open, is_full: false };
    for _ in 0..sessions() {
        device = life.session(device, endings);
    }
    life.is_full
}

const ON_CHIPS: [Ending; 5] = [
    Ending::Untouched,
    Ending::Complete,
    Ending::RandomBits,
    Ending::LooksUntouched,
    Ending::LooksComplete,
];
const ON_FILES: [Ending; 3] =
    [Ending::Complete, Ending::UnsyncedLost, Ending::UnsyncedSubset4096 { draw: 1 }];

#[test]
fn full_files_open_however_often_they_are_cut() {
    let mut full_count = 0;
    for (seed, block_count) in (0..).zip([74, 99]) {
        for style in STYLES {
            let profile = Profile::named("segment-file").unwrap();
            let profile = profile.with_block_count(block_count).unwrap();
            let storage = SimStorage::new(profile.timing);
            let device = SegmentFile::create(storage, &profile).unwrap();
            full_count += u32::from(live(
                device,
                &ON_FILES,
                style,
                Options::default().with_memory(4 << 20),
                seed,
            ));
        }
    }
    assert!(full_count > 4, "{full_count} of the files were ever full");
}

/// Goal: older versions of pages are given up before a restart needs room, once commits have made newer ones
/// current. Method: files whose older versions went to collection while the log still named the groups that
/// replaced them.
#[test]
fn files_full_of_replaced_versions_open() {
    for (block_count, seed) in [(60, 7), (60, 8), (60, 9), (80, 1), (80, 6), (80, 8), (80, 9)] {
        let profile = Profile::named("segment-file").unwrap();
        let profile = profile.with_block_count(block_count).unwrap();
        let device = SegmentFile::create(SimStorage::new(profile.timing), &profile).unwrap();
        let options = Options::default().with_memory(4 << 20);
        live(device, &ON_FILES, STYLES[1], options, seed);
    }
}

/// Files that grow to a limit, and are full from then on.
#[test]
fn files_that_grew_to_their_limit_open() {
    let mut full_count = 0;
    for seed in 0..2 {
        for style in STYLES {
            let profile = Profile::named("segment-file").unwrap().with_block_count(74).unwrap();
            let storage = SimStorage::new(profile.timing);
            let device = SegmentFile::create_growing(storage, &profile, 30).unwrap();
            let options = Options::default().with_memory(4 << 20);
            full_count += u32::from(live(device, &ON_FILES, style, options, seed));
        }
    }
    assert!(full_count > 3, "{full_count} of the files were ever full");
}

#[test]
fn full_chips_open_however_often_they_are_cut() {
    let mut full_count = 0;
    for seed in 0..2 {
        for style in STYLES {
            let profile = Profile::named("slc-2k").unwrap();
            let mut profile = profile.with_block_count(40).unwrap();
            profile.geometry.die_count = 1 + seed as u32;
            let device = SimNand::new(&profile, seed);
            full_count += u32::from(live(
                device,
                &ON_CHIPS,
                style,
                Options::default().with_memory(512 << 10),
                seed,
            ));
        }
    }
    assert!(full_count > 4, "{full_count} of the chips were ever full");
}

/// Sessions of a device; `FLAGSTONE_EFFORT` multiplies them.
fn sessions() -> u32 {
    let effort = std::env::var("FLAGSTONE_EFFORT").ok().and_then(|effort| effort.parse().ok());
    12 * effort.unwrap_or(1)
}

/// Goal: rows that come at one end and go at the other leave nothing behind, inner nodes included: a queue
/// may run for ever on a device that holds it. Method: the pages in use by the same window after two
/// distances, both so long that no node of the first tree is left, and the number of reads for the first row
/// in a session that has just begun.
#[test]
fn a_window_that_moves_on_takes_no_more_room() {
    run_a_window(&[]);
}

/// The same where the fences of an empty leaf alone take more than leaves may have that join others.
#[test]
fn a_window_of_long_keys_takes_no_more_room() {
    run_a_window(&[b'x'; 260]);
}

/// A row that a transaction changed again and again takes the room of its last value.
#[test]
fn changes_that_replace_each_other_take_no_room() {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    let options = Options::default().with_durability(Durability::Deferred);
    let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
    let table = database.table("t").unwrap();
    let mut transaction = database.begin();
    for way in 0..60_000_u32 {
        transaction.put(table, b"counter", &[&way.to_be_bytes()[..], &[0; 296]].concat()).unwrap();
    }
    transaction.commit().unwrap();
}

/// Goal (rule D7): deletes empty a device on which no leaf finds a page to split, and whose memory is full of
/// changes that wait for one. Method: small rows in no order, a transaction each, until 20 are refused in a
/// row; then deletes in key order, and rows again.
#[test]
fn deletes_empty_a_device_that_has_no_page_left() {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    for (memory, size) in [(MEMORY_MIN, 20), (512 << 10, 40)] {
        let options = Options::default().with_memory(memory);
        let options = options.with_durability(Durability::Deferred);
        let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
        let table = database.table("t").unwrap();
        let fill = |from: u64| {
            let mut rows = BTreeMap::new();
            let (mut number, mut refused) = (from, 0);
            while refused < 20 {
                number += 1;
                let key = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
                let mut transaction = database.begin();
                let put = transaction.put(table, &key.to_be_bytes(), &value(size));
                match put.map_err(Error::from).and_then(|()| Ok(transaction.commit()?)) {
                    Ok(_) => {
                        rows.insert(key, size);
                        refused = 0;
                    }
                    Err(Error::Full) => refused += 1,
                    Err(error) => panic!("{memory} bytes: {error}"),
                }
            }
            rows
        };
        let rows = fill(0);
        let keys: Vec<u64> = rows.keys().copied().collect();
        for (index, keys) in keys.chunks(20).enumerate() {
            let mut transaction = database.begin();
            for key in keys {
                transaction.delete(table, &key.to_be_bytes()).unwrap();
            }
            let deleted = transaction.commit();
            assert!(deleted.is_ok(), "{memory} bytes, {size}, {index} of {}", rows.len() / 20);
        }
        let again = fill(1 << 30).len();
        assert!(again * 4 > rows.len() * 3, "{memory} bytes: {} rows, then {again}", rows.len());
        let report = database.check().unwrap();
        assert!(report.is_sound(), "{:?}", report.faults);
    }
}

fn run_a_window(prefix: &[u8]) {
    const WINDOW: u64 = 500;
    let key = |row: u64| [prefix, &row.to_be_bytes()].concat();
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    let options = Options::default().with_memory(MEMORY_MIN).with_durability(Durability::Deferred);
    let mut database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
    let (mut next, mut pages) = (0, Vec::new());
    for until in [30_000, 45_000] {
        let table = database.table("queue").unwrap();
        while next < until {
            let mut transaction = database.begin();
            for row in next..next + 20 {
                transaction.put(table, &key(row), &value(400)).unwrap();
                if let Some(old) = row.checked_sub(WINDOW) {
                    transaction.delete(table, &key(old)).unwrap();
                }
            }
            transaction.commit().unwrap();
            next += 20;
        }
        // Pages of changes that left memory go with the checkpoint behind the one that covers them.
        database.merge().unwrap();
        database.merge().unwrap();
        let report = database.check().unwrap();
        assert!(report.is_sound(), "{:?}", report.faults);
        pages.push(database.stats().space.live_pages);
        let device = database.into_device().unwrap();
        database = Database::open_on(device, &options).unwrap();
        let table = database.table("queue").unwrap();
        let before = database.stats().space.reads_by_purpose[0];
        let first = database.begin().first(table).unwrap().unwrap();
        assert_eq!(first.0, key(until - WINDOW));
        let reads = database.stats().space.reads_by_purpose[0] - before;
        assert!(reads < 10, "{reads} reads to the first row");
    }
    assert!(pages[1] <= pages[0] + 8, "pages in use: {pages:?}");
}
