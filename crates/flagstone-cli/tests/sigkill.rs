//! A process that is killed at any moment, on a real file (A6).
//!
//! Goal: SIGKILL loses no acknowledged commit and half-shows no transaction.
//!
//! Method: this test binary runs itself as a child that commits numbered transactions and says on
//! its output what it is about to commit and what has returned as durable. The parent kills it at a
//! random moment, opens the file, and compares it with the transactions done on a map.
//! `FLAGSTONE_EFFORT=N` makes it N times as many kills. `FLAGSTONE_KILL_DEVICE=/dev/mtdN` takes raw NAND
//! of Linux instead of a file, and destroys what is on it; `tests/mtd/run` does that in a guest.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use flagstone::{AnyNand, Database, Durability, EngineError, Options, Table};
#[cfg(target_os = "linux")]
use flagstone_nand::MtdNand;
use flagstone_nand::{FileStorage, Profile, SegmentFile};

const FILE: &str = "FLAGSTONE_KILL_FILE";
const FIRST: &str = "FLAGSTONE_KILL_FIRST";
const DEVICE: &str = "FLAGSTONE_KILL_DEVICE";

/// Kills of one run of the test.
const KILL_COUNT: u64 = 30;

/// The child is killed after so many milliseconds, at most: while it opens, or while it commits.
const DELAY_MS_MAX: u64 = 150;

/// The same on a device, which may be one of an emulated machine.
const DEVICE_DELAY_MS_MAX: u64 = 2000;

const FILE_SIZE: u64 = 16 << 20;

/// Key that holds the number of the last transaction.
const NUMBER: &[u8] = b"number";

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    Options::default().with_memory(1 << 20)
}

/// A number that looks random, of two numbers.
fn mixed(seed: u64, index: u64) -> u64 {
    let mut state =
        seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ index.wrapping_mul(0xD1B5_4A32_D192_ED03);
    state = (state ^ (state >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    state ^ (state >> 32)
}

/// What transaction `number` does to its rows: none deletes.
fn changes(number: u64) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let change = |index| {
        let draw = mixed(number, index);
        let key = format!("row/{:03}", draw % 300).into_bytes();
        let size = if draw >> 20 & 63 == 0 { 20_000 } else { 10 + (draw >> 32) as usize % 400 };
        let fill = (number as u8) ^ (index as u8);
        (key, (draw >> 12 & 7 != 0).then(|| vec![fill; size]))
    };
    let count = 1 + mixed(number, 99) % 6;
    let number = (NUMBER.to_vec(), Some(number.to_be_bytes().to_vec()));
    (0..count).map(change).chain([number]).collect()
}

fn durability(number: u64) -> Durability {
    if mixed(number, 98).is_multiple_of(3) { Durability::Deferred } else { Durability::Immediate }
}

fn commit(database: &Database<AnyNand>, table: Table, number: u64) -> Result<(), EngineError> {
    let mut transaction = database.begin();
    for (key, value) in changes(number) {
        match value {
            Some(value) => transaction.put(table, &key, &value)?,
            None => transaction.delete(table, &key)?,
        }
    }
    transaction.commit_with(durability(number)).map(drop)
}

/// The child, when the parent asks for it: commits until it is killed.
#[test]
fn child() {
    let (Ok(file), Ok(first)) = (std::env::var(FILE), std::env::var(FIRST)) else { return };
    let database = Database::open(file, &options()).unwrap();
    let table = database.table("rows").unwrap();
    for number in first.parse::<u64>().unwrap().. {
        println!("trying {number}");
        commit(&database, table, number).unwrap();
        if durability(number) == Durability::Immediate {
            println!("durable {number}");
        }
    }
}

/// What a child said before it died: the last number it tried, and the last that is durable.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    tried: u64,
    durable: u64,
}

impl Said {
    /// Takes a whole line in; the test harness may have begun it with words of its own.
    fn hear(&mut self, line: &str) {
        let number = |word| line.split_once(word).and_then(|(_, rest)| rest.parse().ok());
        self.tried = number("trying ").unwrap_or(self.tried);
        self.durable = number("durable ").unwrap_or(self.durable);
    }
}

/// Runs a child from transaction `first` on, and kills it.
fn run_and_kill(file: &Path, first: u64, delay: Duration) -> Said {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture"])
        .env(FILE, file)
        .env(FIRST, first.to_string())
        .env("RUST_BACKTRACE", "0")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let listener = thread::spawn(move || {
        let mut said = Said { tried: first - 1, durable: first - 1 };
        let mut line = String::new();
        while output.read_line(&mut line).is_ok_and(|size| size > 0) {
            // A line that the kill cut short says nothing.
            if let Some(whole) = line.strip_suffix('\n') {
                said.hear(whole);
            }
            line.clear();
        }
        said
    });
    thread::sleep(delay);
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), None, "the child ended by itself");
    listener.join().unwrap()
}

fn rows(database: &Database<AnyNand>) -> Rows {
    let table = database.table("rows").unwrap();
    let transaction = database.begin();
    transaction.range(table, ..).map(|row| row.unwrap()).collect()
}

fn advance(rows: &mut Rows, number: u64) {
    for (key, value) in changes(number) {
        match value {
            Some(value) => rows.insert(key, value),
            None => rows.remove(&key),
        };
    }
}

/// An empty database in a fresh file.
fn create_file(file: &Path) {
    let profile = Profile::named("segment-file").unwrap().with_capacity(FILE_SIZE).unwrap();
    let device = SegmentFile::create(FileStorage::create(file).unwrap(), &profile).unwrap();
    drop(Database::create_on(device, &options()).unwrap());
}

/// An empty database on the device that the environment names, if it names one.
#[cfg(target_os = "linux")]
fn create_on_device() -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os(DEVICE)?);
    drop(Database::create_on(MtdNand::open(&path).unwrap(), &options()).unwrap());
    Some(path)
}

#[cfg(not(target_os = "linux"))]
fn create_on_device() -> Option<PathBuf> {
    None
}

#[test]
fn a_killed_process_loses_nothing_that_was_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let device = create_on_device();
    let delay_ms_max = if device.is_some() { DEVICE_DELAY_MS_MAX } else { DELAY_MS_MAX };
    let file = device.unwrap_or_else(|| {
        let file = directory.path().join("killed.flag");
        create_file(&file);
        file
    });
    let effort = std::env::var("FLAGSTONE_EFFORT").ok().and_then(|text| text.parse().ok());
    let (mut last, mut model, mut in_flight) = (0, Rows::new(), 0);
    let kill_count = KILL_COUNT * effort.unwrap_or(1);
    for kill in 0..kill_count {
        let delay = Duration::from_micros(mixed(kill, 1) % (1000 * delay_ms_max));
        let said = run_and_kill(&file, last + 1, delay);
        let database = Database::open(&file, &options()).unwrap();
        let found = rows(&database);
        let number = found.get(NUMBER).and_then(|bytes| bytes.first_chunk());
        let number = number.map_or(0, |bytes| u64::from_be_bytes(*bytes));
        let context = format!("kill {kill} after {delay:?}: {said:?}, found {number}");
        assert!(said.durable <= number && number <= said.tried.max(last), "{context}");
        in_flight += u64::from(number < said.tried);
        (last + 1..=number).for_each(|number| advance(&mut model, number));
        assert!(found == model, "{context}: the rows are not those of that transaction");
        let report = database.check().unwrap();
        assert!(report.is_sound(), "{context}: {report:?}");
        last = number;
    }
    println!("{kill_count} kills, {last} commits survived, {in_flight} kills took some in flight");
    assert!(last > kill_count, "only {last} commits: the child is killed too early");
}
