//! Snapshots that are kept under a name: their content stays the same, through any change of the database.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use flagstone::{
    CommitError, CompactError, Durability, Error, Options, PRESETS, ReadError, Snapshot,
    SnapshotError, Table,
};
use flagstone_nand::{
    Crashable, Ending, FaultPlan, Nand, NandError, Profile, SegmentFile, SimNand, SimStorage,
};
use flagstone_space::SpaceError;

use crate::hooked::{Call, Hook, Hooked};
use crate::on::Database;

/// Tables, by their names, with their rows.
type Tables = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

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

fn rows_of(snapshot: &Snapshot, table: Table) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let rows: Vec<_> = snapshot.range(table, ..).map(Result::unwrap).collect();
    let back: Vec<_> = snapshot.range(table, ..).rev().map(Result::unwrap).collect();
    assert!(rows.iter().eq(back.iter().rev()), "both ways");
    assert_eq!(snapshot.len(table).unwrap(), rows.len() as u64);
    rows.into_iter().collect()
}

fn tables_of(snapshot: &Snapshot) -> Tables {
    let named = |name: String| {
        let table = snapshot.table(&name).unwrap().unwrap();
        (name, rows_of(snapshot, table))
    };
    snapshot.tables().unwrap().into_iter().map(named).collect()
}

/// A database, its content, and its content at the time of each kept snapshot.
struct Life<D: Crashable + Send + 'static> {
    name: String,
    database: Database<D>,
    options: Options,
    draws: Draws,
    now: Tables,
    kept: BTreeMap<String, Tables>,
    /// The state with a commit or a snapshot that a cut may have prevented.
    perhaps: Option<Tables>,
    perhaps_kept: Option<(String, Tables)>,
    number: u64,
}

const TABLES: u64 = 3;

impl<D: Crashable + Send + 'static> Life<D> {
    fn new(name: &str, device: D, options: &Options, seed: u64) -> Self {
        let database = Database::create_on(device, options).unwrap();
        Self {
            name: format!("{name}, seed {seed}"),
            database,
            options: options.clone(),
            draws: Draws(seed * 0x9E37_79B9 + 1),
            now: Tables::new(),
            kept: BTreeMap::new(),
            perhaps: None,
            perhaps_kept: None,
            number: 0,
        }
    }

    fn commit(&mut self) -> Result<(), Error> {
        let name = format!("table {}", self.draws.below(TABLES));
        let table = self.database.table(&name)?;
        self.now.entry(name.clone()).or_default();
        let mut after = self.now.clone();
        let rows = after.entry(name).or_default();
        let mut transaction = self.database.begin();
        let count = match self.draws.below(4) {
            0 => 1 + self.draws.below(200),
            _ => 1 + self.draws.below(5),
        };
        for _ in 0..count {
            let key = self.draws.below(600).to_be_bytes().to_vec();
            self.number += 1;
            match self.draws.below(20) {
                0..=3 => {
                    transaction.delete(table, &key)?;
                    rows.remove(&key);
                }
                4 if count < 10 => {
                    let value = self.number.to_le_bytes().repeat(800);
                    transaction.put(table, &key, &value)?;
                    rows.insert(key, value);
                }
                _ => {
                    let value = self.number.to_le_bytes().repeat(1 + self.draws.below(8) as usize);
                    transaction.put(table, &key, &value)?;
                    rows.insert(key, value);
                }
            }
        }
        self.perhaps = Some(after.clone());
        transaction.commit_with(Durability::Immediate)?;
        (self.now, self.perhaps) = (after, None);
        Ok(())
    }

    fn keep(&mut self) -> Result<(), Error> {
        self.number += 1;
        let name = format!("snapshot {}", self.number);
        self.perhaps_kept = Some((name.clone(), self.now.clone()));
        self.database.create_named_snapshot(&name)?;
        self.perhaps_kept = None;
        self.kept.insert(name.clone(), self.now.clone());
        assert_eq!(self.database.create_named_snapshot(&name), Err(SnapshotError::SnapshotExists));
        Ok(())
    }

    fn drop_one(&mut self) -> Result<(), Error> {
        let index = self.draws.below(self.kept.len() as u64) as usize;
        let name = self.kept.keys().nth(index).unwrap().clone();
        self.perhaps_kept = self.kept.remove(&name).map(|tables| (name.clone(), tables));
        self.database.delete_named_snapshot(&name)?;
        self.perhaps_kept = None;
        assert_eq!(self.database.delete_named_snapshot(&name), Err(SnapshotError::NoSnapshot));
        Ok(())
    }

    fn drop_table(&mut self) -> Result<(), Error> {
        let name = format!("table {}", self.draws.below(TABLES));
        if !self.now.contains_key(&name) {
            return Ok(());
        }
        let mut after = self.now.clone();
        after.remove(&name);
        self.perhaps = Some(after.clone());
        self.database.drop_table(&name)?;
        (self.now, self.perhaps) = (after, None);
        Ok(())
    }

    fn act(&mut self) -> Result<(), Error> {
        match self.draws.below(40) {
            0 if self.kept.len() < 3 => self.keep(),
            1 if !self.kept.is_empty() => self.drop_one(),
            2 => self.drop_table(),
            3 => Ok(self.database.merge()?),
            _ => self.commit(),
        }
    }

    /// Compares the database, and each kept snapshot, with the model.
    fn check(&mut self) {
        let snapshot = self.database.snapshot().unwrap();
        let seen = tables_of(&snapshot);
        if seen != self.now {
            let is_perhaps = self.perhaps.take().is_some_and(|perhaps| perhaps == seen);
            // A table is made by a commit of its own.
            let names = |tables: &Tables| {
                let full = tables.iter().filter(|(_, rows)| !rows.is_empty());
                full.map(|(name, rows)| (name.clone(), rows.clone())).collect::<Tables>()
            };
            assert!(is_perhaps || names(&seen) == names(&self.now), "{}: rows", self.name);
            self.now = seen;
        }
        self.perhaps = None;
        let names = self.database.named_snapshots();
        if let Some((name, tables)) = self.perhaps_kept.take().filter(|it| names.contains(&it.0)) {
            self.kept.insert(name, tables);
        }
        let expected: Vec<_> = self.kept.keys().collect();
        let mut sorted: Vec<_> = names.iter().collect();
        sorted.sort_unstable();
        assert_eq!(sorted, expected, "{}", self.name);
        for (name, tables) in &self.kept {
            let kept = self.database.open_named_snapshot(name).unwrap();
            assert!(tables_of(&kept) == *tables, "{}: {name}", self.name);
            for (table, rows) in tables {
                let table = kept.table(table).unwrap().unwrap();
                for (key, value) in rows.iter().take(5) {
                    assert_eq!(kept.get(table, key).unwrap().as_ref(), Some(value));
                }
                assert_eq!(kept.get(table, b"none").unwrap(), None);
            }
        }
        let report = self.database.check().unwrap();
        assert!(report.is_sound(), "{}: {:?}", self.name, report.faults);
    }

    /// A session that ends by a cut, or with its process.
    fn session(mut self, acts: u64) -> Self {
        let is_cut = self.draws.below(3) > 0;
        if is_cut {
            let count = self.database.at_device(|device| device.operation_count());
            let operation = count + 1 + self.draws.below(3_000);
            let endings = [
                Ending::Untouched,
                Ending::Complete,
                Ending::Torn { units: 1 },
                Ending::LooksComplete,
            ];
            let ending = endings[self.draws.below(4) as usize];
            let plan = FaultPlan::power_cut(self.draws.below(1 << 20), operation, ending);
            self.database.at_device(|device| device.set_plan(plan));
        }
        let mut failed = None;
        for _ in 0..acts {
            if let Err(error) = self.act() {
                failed = Some(error);
                break;
            }
        }
        let is_off = self.database.at_device(|device| device.is_off());
        assert!(failed.is_none() || is_off, "{}: {failed:?}", self.name);
        if !is_off {
            self.check();
        }
        let Self { database, name, .. } = self;
        let mut device = database.into_device().unwrap();
        device.power_cycle();
        let database = Database::open_on(device, &self.options);
        let database = database.unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut next = Self { database, name, ..self };
        next.check();
        next
    }
}

fn chip(profile: &str, blocks: u32) -> SimNand {
    let profile = Profile::named(profile).unwrap().with_block_count(blocks).unwrap();
    SimNand::new(&profile, 1)
}

fn growing_file() -> SegmentFile<SimStorage> {
    let mut profile = Profile::named("segment-file").unwrap();
    profile.geometry.pages_per_block = 32;
    let profile = profile.with_block_count(2_000).unwrap();
    SegmentFile::create_growing(SimStorage::new(profile.timing), &profile, 2).unwrap()
}

fn live<D: Crashable + Send + 'static>(
    name: &str,
    device: impl Fn() -> D,
    options: &Options,
    seeds: u64,
) {
    for seed in 1..=seeds {
        let mut life = Life::new(name, device(), options, seed);
        for _ in 0..6 {
            life = life.session(60);
        }
    }
}

/// Goal: kept snapshots show the database as it was, after any later change, and after power cuts at any
/// moment. Method: lives of each preset, with tables that come and go.
#[test]
fn kept_snapshots_show_what_was() {
    for preset in PRESETS {
        let options = Options::preset(preset.name).unwrap().with_memory(256 << 10);
        let device = || chip("slc-2k", 160);
        if Database::create_on(device(), &options).is_ok() {
            live(preset.name, device, &options, 8);
        }
    }
    let options = Options::default().with_memory(512 << 10);
    live("file", growing_file, &options, 3);
}

/// Goal: a snapshot is kept, and dropped, as a whole, and everything else stays untouched. Method: a cut at
/// each operation of a session that drops one and keeps another, with every ending; then a second session.
#[test]
fn every_cut_while_snapshots_are_kept_and_dropped_recovers() {
    let options = Options::default().with_memory(128 << 10);
    for device in [chip("slc-2k", 64), chip("mlc-2k", 96)] {
        let mut life = Life::new("cuts", device, &options, 7);
        (0..40).for_each(|_| life.commit().unwrap());
        life.keep().unwrap();
        (0..40).for_each(|_| life.commit().unwrap());
        let Life { database, name, now, kept, number, .. } = life;
        let chip = database.into_device().unwrap();
        let begin = |chip: SimNand| Life {
            database: Database::open_on(chip, &options).unwrap(),
            options: options.clone(),
            draws: Draws(5),
            name: name.clone(),
            now: now.clone(),
            kept: kept.clone(),
            perhaps: None,
            perhaps_kept: None,
            number,
        };
        let work = |life: &mut Life<SimNand>| -> Result<(), Error> {
            life.drop_one()?;
            life.commit()?;
            life.keep()?;
            life.commit()
        };
        let mut calm = begin(chip.clone());
        let first = calm.database.at_device(|device| device.operation_count());
        calm.database.at_device(|device| device.record_operations());
        work(&mut calm).unwrap();
        let done = calm.database.into_device().unwrap();
        let mut states = 0;
        for operation in first..done.operation_count() {
            for ending in done.endings_at(operation) {
                let mut life = begin(chip.clone());
                let plan = FaultPlan::power_cut(operation, operation, ending);
                life.database.at_device(|device| device.set_plan(plan));
                assert!(work(&mut life).is_err(), "{operation} {ending:?}");
                let Life { database, name, .. } = life;
                let mut device = database.into_device().unwrap();
                device.power_cycle();
                let database = Database::open_on(device, &options).unwrap();
                let name = format!("{name}, {operation} {ending:?}");
                let mut life = Life { database, name, ..life };
                life.check();
                life.commit().unwrap();
                life.keep().unwrap();
                life.check();
                states += 1;
            }
        }
        assert!(states > 100, "{states}");
    }
}

/// Goal: a kept snapshot is of one moment between commits. Method: threads that move amounts between rows
/// while snapshots are kept.
#[test]
fn a_kept_snapshot_is_of_one_moment() {
    let options = Options::default().with_memory(256 << 10);
    let database = Database::create_on(chip("slc-2k", 256), &options).unwrap();
    let table = database.table("accounts").unwrap();
    let mut transaction = database.begin();
    (0..2_000_u32).for_each(|row| {
        transaction.put(table, &row.to_be_bytes(), &100_u64.to_le_bytes()).unwrap()
    });
    transaction.commit().unwrap();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 1..4 {
            let (database, ends) = (&database, &ends);
            scope.spawn(move || {
                let mut draws = Draws(seed);
                while !ends.load(Ordering::Relaxed) {
                    let _ = database_move(database, table, &mut draws);
                }
            });
        }
        for name in ["one", "two", "three"] {
            let before = database.stats().engine.commits;
            while database.stats().engine.commits < before + 200 {
                std::thread::yield_now();
            }
            database.create_named_snapshot(name).unwrap();
        }
        ends.store(true, Ordering::Relaxed);
    });
    for name in ["one", "two", "three"] {
        let kept = database.open_named_snapshot(name).unwrap();
        let table = kept.table("accounts").unwrap().unwrap();
        let rows = rows_of(&kept, table);
        let sum: u64 = rows.values().map(|it| u64::from_le_bytes(it[..].try_into().unwrap())).sum();
        assert_eq!((rows.len(), sum), (2_000, 200_000), "{name}");
    }
    assert!(database.check().unwrap().is_sound());
}

fn database_move(
    database: &Database<SimNand>,
    table: Table,
    draws: &mut Draws,
) -> Result<(), Error> {
    let mut transaction = database.begin();
    let (from, to) = (draws.below(2_000) as u32, draws.below(2_000) as u32);
    for (row, change) in [(from, -1_i64), (to, 1)] {
        let key = row.to_be_bytes();
        transaction.lock_key(table, &key)?;
        let value = transaction.get(table, &key)?.unwrap();
        let amount = u64::from_le_bytes(value[..].try_into().unwrap()).wrapping_add_signed(change);
        transaction.put(table, &key, &amount.to_le_bytes())?;
    }
    Ok(transaction.commit_with(Durability::Deferred).map(drop)?)
}

/// Goal (rule D7): a device that a kept snapshot has filled takes writes again once the snapshot is dropped.
/// Method: every row is written anew until there is no room.
#[test]
fn a_device_that_a_kept_snapshot_fills_is_freed_by_its_end() {
    let options = Options::default().with_memory(128 << 10);
    let database = Database::create_on(chip("slc-2k", 48), &options).unwrap();
    let table = database.table("t").unwrap();
    let put = |row: u32, fill: u8| {
        let mut transaction = database.begin();
        transaction.put(table, &row.to_be_bytes(), &[fill; 700]).unwrap();
        transaction.commit().map(drop)
    };
    let rows = (0..).take_while(|row| put(*row, 1).is_ok()).count() as u32 * 2 / 3;
    for row in rows..rows * 2 {
        let mut transaction = database.begin();
        transaction.delete(table, &row.to_be_bytes()).unwrap();
        transaction.commit().unwrap();
    }
    database.create_named_snapshot("before").unwrap();
    let full = (0..rows).cycle().take(4 * rows as usize).find_map(|row| put(row, 2).err());
    assert!(matches!(full, Some(CommitError::Full)), "{full:?}");
    let check = |database: &Database<SimNand>| {
        let kept = database.open_named_snapshot("before").unwrap();
        let found = rows_of(&kept, kept.table("t").unwrap().unwrap());
        assert_eq!(found.len(), rows as usize);
        assert!(found.values().all(|value| *value == [1; 700]));
        assert!(database.check().unwrap().is_sound());
    };
    check(&database);
    database.delete_named_snapshot("before").unwrap();
    (0..rows).for_each(|row| put(row, 3).unwrap());
    let snapshot = database.snapshot().unwrap();
    assert!(rows_of(&snapshot, table).values().all(|value| *value == [3; 700]));
    drop(snapshot);
    // The same once more, with a restart on the full device.
    database.create_named_snapshot("before").unwrap();
    let put_on = |database: &Database<SimNand>, row: u32, fill: u8| {
        let table = database.table("t").unwrap();
        let mut transaction = database.begin();
        transaction.put(table, &row.to_be_bytes(), &[fill; 700]).unwrap();
        transaction.commit().map(drop)
    };
    let _ = (0..rows).cycle().take(4 * rows as usize).find_map(|row| put(row, 4).err());
    let device = database.into_device().unwrap();
    let database = Database::open_on(device, &options).unwrap();
    database.delete_named_snapshot("before").unwrap();
    (0..rows).for_each(|row| put_on(&database, row, 5).unwrap());
    assert!(database.check().unwrap().is_sound());
}

/// Goal: a snapshot costs its mapping, not its pages. Method: programs of a chip without waiting changes, and
/// the cost of the same changes with a snapshot and without.
#[test]
fn a_snapshot_costs_its_mapping() {
    let options = Options::default().with_memory(1 << 20);
    let database = Database::create_on(chip("slc-2k", 256), &options).unwrap();
    let table = database.table("t").unwrap();
    let rows = (0..40_000_u32).map(|row| (row.to_be_bytes(), [7; 100]));
    database.load_sorted(table, rows).unwrap();
    database.merge().unwrap();
    let programs =
        |database: &Database<SimNand>| database.at_device(|device| device.counters().page_programs);
    let pages = database.stats().space.live_pages;
    let before = programs(&database);
    database.create_named_snapshot("kept").unwrap();
    let cost = programs(&database) - before;
    println!("{cost} programs for a snapshot of {pages} pages");
    assert!(pages > 2_000 && cost < u64::from(pages) / 50, "{cost} programs, {pages} pages");
    let change = |database: &Database<SimNand>| {
        let (mut draws, before) = (Draws(3), programs(database));
        for _ in 0..3_000 {
            let mut transaction = database.begin();
            let row = draws.below(40_000) as u32;
            transaction.put(table, &row.to_be_bytes(), &[8; 100]).unwrap();
            transaction.commit_with(Durability::Deferred).unwrap();
        }
        database.merge().unwrap();
        programs(database) - before
    };
    let with = change(&database);
    let alone = database.stats().space.frozen_pages;
    assert!(alone > 1_000 && alone <= pages, "{alone} of {pages}");
    database.delete_named_snapshot("kept").unwrap();
    let without = change(&database);
    println!("{with} programs with it, {without} without");
    assert_eq!(database.stats().space.frozen_pages, 0);
    assert!(with < without + without / 4, "{with} programs with it, {without} without");
}

/// Goal: snapshots of both kinds, and readers, do not stand in each other's way. Method: one of each kind,
/// old and new, over changes.
#[test]
fn live_snapshots_and_open_transactions_stay_what_they_are() {
    let options = Options::default().with_memory(256 << 10);
    let database = Database::create_on(chip("slc-2k", 128), &options).unwrap();
    let table = database.table("t").unwrap();
    let fill = |value: u8| {
        let mut transaction = database.begin();
        (0..500_u32)
            .for_each(|row| transaction.put(table, &row.to_be_bytes(), &[value; 60]).unwrap());
        transaction.commit().unwrap();
    };
    fill(1);
    let live = database.snapshot().unwrap();
    let mut open = database.begin();
    open.put(table, b"open", b"uncommitted").unwrap();
    open.put(table, b"large", &[9; 20_000]).unwrap();
    fill(2);
    database.create_named_snapshot("kept").unwrap();
    fill(3);
    database.merge().unwrap();
    let kept = database.open_named_snapshot("kept").unwrap();
    for (snapshot, value) in [(&live, 1), (&kept, 2), (&database.snapshot().unwrap(), 3)] {
        let rows = rows_of(snapshot, table);
        assert_eq!(rows.len(), 500);
        assert!(rows.values().all(|found| *found == [value; 60]), "{value}");
    }
    open.commit().unwrap();
    assert_eq!(kept.get(table, b"open").unwrap(), None);
    assert_eq!(
        kept.get(Table::clone(&database.table("later").unwrap()), b"k"),
        Err(ReadError::NoTable)
    );
    let mut cursor = kept.cursor(table);
    assert!(cursor.seek(&7_u32.to_be_bytes()).is_ok());
    let name = "n".repeat(256);
    assert_eq!(
        database.create_named_snapshot(&name),
        Err(SnapshotError::NameTooLong { size: 256, size_max: 255 })
    );
    drop(live);
    assert_eq!(database.named_snapshots(), ["kept"]);
}

/// Goal (T1): changes that left memory before their commit are in the snapshot. Method: a transaction many
/// times as large as memory, right before.
#[test]
fn what_was_spilled_reaches_the_pages_first() {
    let options = Options::default().with_memory(128 << 10);
    let database = Database::create_on(chip("slc-2k", 256), &options).unwrap();
    let table = database.table("t").unwrap();
    let mut transaction = database.begin();
    for row in 0..10_000_u32 {
        transaction.put(table, &row.wrapping_mul(7_919).to_be_bytes(), &[3; 90]).unwrap();
    }
    transaction.commit().unwrap();
    assert!(database.stats().engine.spilled_pages > 100, "it fits memory");
    database.create_named_snapshot("kept").unwrap();
    assert_eq!(rows_of(&database.open_named_snapshot("kept").unwrap(), table).len(), 10_000);
    let device = database.into_device().unwrap();
    let database = Database::open_on(device, &options).unwrap();
    let kept = database.open_named_snapshot("kept").unwrap();
    assert_eq!(rows_of(&kept, kept.table("t").unwrap().unwrap()).len(), 10_000);
}

/// Goal: the remains of a dropped table do not stop a snapshot. Method: a live snapshot holds the table, and
/// changes that it does not see.
#[test]
fn a_dropped_table_that_a_reader_holds_is_in_nobodys_way() {
    let options = Options::default().with_memory(1 << 20);
    let database = Database::create_on(chip("slc-2k", 128), &options).unwrap();
    let gone = database.table("gone").unwrap();
    let fill = |rows: u32, value: u8| {
        let mut transaction = database.begin();
        (0..rows).for_each(|row| transaction.put(gone, &row.to_be_bytes(), &[value; 200]).unwrap());
        transaction.commit().unwrap();
    };
    fill(300, 1);
    let live = database.snapshot().unwrap();
    fill(50, 2);
    database.drop_table("gone").unwrap();
    database.table("t").unwrap();
    database.create_named_snapshot("kept").unwrap();
    assert_eq!(database.open_named_snapshot("kept").unwrap().tables().unwrap(), ["t"]);
    let rows = rows_of(&live, gone);
    assert!(rows.len() == 300 && rows.values().all(|value| *value == [1; 200]));
    drop(live);
    assert!(database.check().unwrap().is_sound());
}

/// Goal: damage in a page that a kept snapshot alone has is reported by a check, and costs the database
/// nothing. Method: each of its pages in turn, until one was hit.
#[test]
fn damage_in_a_kept_snapshot_is_told() {
    let options = Options::default().with_memory(256 << 10);
    let database = Database::create_on(chip("slc-2k", 64), &options).unwrap();
    let table = database.table("t").unwrap();
    let fill = |value: u8| {
        let mut transaction = database.begin();
        (0..300_u32)
            .for_each(|row| transaction.put(table, &row.to_be_bytes(), &[value; 60]).unwrap());
        transaction.commit().unwrap();
    };
    fill(1);
    database.create_named_snapshot("kept").unwrap();
    fill(2);
    database.merge().unwrap();
    let report = database.check().unwrap();
    assert!(report.is_sound() && report.snapshots == 1, "{report:?}");
    let device = database.into_device().unwrap();
    let (geometry, strength) = (device.geometry(), device.capabilities().code_word.strength);
    let mut told = 0;
    for number in 0..geometry.page_count() {
        let mut damaged = device.clone();
        let page = geometry.page_from_number(number).unwrap();
        let is_old = damaged.peek(page).data.windows(60).any(|bytes| bytes == [1; 60]);
        if !is_old {
            continue;
        }
        (0..4).for_each(|word| damaged.flip_bits(page, word, strength + 1));
        let database = Database::open_on(damaged, &options).unwrap();
        let table = database.table("t").unwrap();
        let live = database.snapshot().unwrap();
        assert!(rows_of(&live, table).values().all(|value| *value == [2; 60]));
        drop(live);
        told += u32::from(!database.check().unwrap().is_sound());
    }
    assert!(told > 5, "{told}");
}

/// Goal: a compaction does not lose snapshots silently, and a read-only session sees them.
#[test]
fn compaction_refuses_and_readers_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let options = Options::default();
    let database = flagstone::Database::create(&path, &options).unwrap();
    let table = database.table("t").unwrap();
    let mut transaction = database.begin();
    transaction.put(table, b"key", b"old").unwrap();
    transaction.commit().unwrap();
    database.create_named_snapshot("kept").unwrap();
    let mut transaction = database.begin();
    transaction.put(table, b"key", b"new").unwrap();
    transaction.commit().unwrap();
    database.close().unwrap();
    let refused = flagstone::Database::compact(&path, &options);
    assert!(matches!(refused, Err(CompactError::Snapshots { count: 1 })), "{refused:?}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left behind");
    let database = flagstone::Database::open_read_only(&path, &options).unwrap();
    let kept = database.open_named_snapshot("kept").unwrap();
    let found = kept.get(kept.table("t").unwrap().unwrap(), b"key").unwrap();
    assert_eq!(found.as_deref(), Some(&b"old"[..]));
    assert_eq!(database.create_named_snapshot("other"), Err(SnapshotError::ReadOnly));
    assert_eq!(database.delete_named_snapshot("kept"), Err(SnapshotError::ReadOnly));
    drop((kept, database));
    let database = flagstone::Database::open(&path, &options).unwrap();
    database.delete_named_snapshot("kept").unwrap();
    database.close().unwrap();
    flagstone::Database::compact(&path, &options).unwrap();
}

/// Goal: a large value whose transaction was open when one snapshot was kept is in the next snapshot. Method:
/// sessions that end without a checkpoint, while collection moves its pages.
#[test]
fn a_large_value_that_was_open_across_a_snapshot_is_in_the_next() {
    let options = Options::default().with_memory(128 << 10);
    let mut database = Database::create_on(chip("slc-2k", 40), &options).unwrap();
    let table = database.table("t").unwrap();
    let value = vec![9; 20_000];
    let mut open = database.begin();
    open.put(table, b"large", &value).unwrap();
    database.create_named_snapshot("before").unwrap();
    open.commit().unwrap();
    database.create_named_snapshot("after").unwrap();
    let mut draws = Draws(3);
    for round in 0..60_u32 {
        let table = database.table("t").unwrap();
        for _ in 0..40 + draws.below(100) {
            let mut transaction = database.begin();
            for _ in 0..4 {
                let row = draws.below(2_500) as u32;
                transaction.put(table, &row.to_be_bytes(), &[round as u8; 500]).unwrap();
            }
            transaction.commit().unwrap();
        }
        let device = database.into_device().unwrap();
        database = Database::open_on(device, &options).unwrap();
        let found = |name| {
            let kept = database.open_named_snapshot(name).unwrap();
            kept.get(kept.table("t").unwrap().unwrap(), b"large")
        };
        assert_eq!(found("before"), Ok(None));
        assert!(found("after") == Ok(Some(value.clone())), "round {round}: {:?}", found("after"));
        assert!(database.check().unwrap().is_sound());
    }
}

/// Goal: two snapshots with nothing between are two.
#[test]
fn snapshots_of_nothing_are_kept_each() {
    let options = Options::default();
    let database = Database::create_on(chip("slc-2k", 64), &options).unwrap();
    database.create_named_snapshot("one").unwrap();
    database.create_named_snapshot("two").unwrap();
    assert_eq!(database.named_snapshots(), ["one", "two"]);
    let database = Database::open_on(database.into_device().unwrap(), &options).unwrap();
    database.delete_named_snapshot("one").unwrap();
    assert_eq!(database.named_snapshots(), ["two"]);
}

/// Goal (rule D7): a device that is worn out with a snapshot on it has room again after the snapshot is
/// dropped. Method: so many programs in a row fail that a write gives up; later programs succeed.
#[test]
fn a_snapshot_on_a_worn_device_can_be_dropped() {
    let options = Options::default().with_memory(128 << 10);
    let failing = Arc::new(AtomicU32::new(0));
    let left = Arc::clone(&failing);
    let hook: Hook = Arc::new(move |call| match call {
        Call::Program(page) => {
            let is_failing = |left: u32| left.checked_sub(1);
            match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_failing) {
                Ok(_) => Err(NandError::ProgramFailed { page }),
                Err(_) => Ok(()),
            }
        }
        _ => Ok(()),
    });
    let device = Hooked { device: chip("slc-2k", 64), hook };
    let database = Database::create_on(device, &options).unwrap();
    database.table("t").unwrap();
    let fill = |database: &Database<Hooked<SimNand>>, value: u8| -> Result<(), Error> {
        let table = database.table("t")?;
        let mut transaction = database.begin();
        for row in 0..300_u32 {
            transaction.put(table, &row.to_be_bytes(), &[value; 60])?;
        }
        Ok(transaction.commit_with(Durability::Immediate).map(drop)?)
    };
    fill(&database, 1).unwrap();
    database.create_named_snapshot("kept").unwrap();
    fill(&database, 2).unwrap();
    failing.store(12, Ordering::Relaxed);
    let worn = (0..100).find_map(|_| fill(&database, 3).and_then(|()| Ok(database.merge()?)).err());
    assert!(worn.is_some(), "no program failed");
    failing.store(0, Ordering::Relaxed);
    assert!(matches!(fill(&database, 4), Err(Error::WornOut)));
    database.delete_named_snapshot("kept").unwrap();
    assert_eq!(database.named_snapshots(), Vec::<String>::new());
    let database = Database::open_on(database.into_device().unwrap(), &options).unwrap();
    assert_eq!(database.named_snapshots(), Vec::<String>::new());
    fill(&database, 5).unwrap();
    assert!(database.check().unwrap().is_sound());
}

/// A database whose leaves do not read any more, and its table.
fn with_unreadable_leaves(options: &Options) -> (Database<SimNand>, Table) {
    let database = Database::create_on(chip("slc-2k", 64), options).unwrap();
    let table = database.table("t").unwrap();
    let mut transaction = database.begin();
    (0..300_u32).for_each(|row| transaction.put(table, &row.to_be_bytes(), &[1; 60]).unwrap());
    transaction.commit().unwrap();
    database.merge().unwrap();
    database.runtime().checkpoint_now().unwrap();
    let mut device = database.into_device().unwrap();
    let (geometry, strength) = (device.geometry(), device.capabilities().code_word.strength);
    for number in 0..geometry.page_count() {
        let page = geometry.page_from_number(number).unwrap();
        if device.peek(page).data.windows(60).any(|bytes| bytes == [1; 60]) {
            (0..4).for_each(|word| device.flip_bits(page, word, strength + 1));
        }
    }
    let database = Database::open_on(device, options).unwrap();
    let table = database.table("t").unwrap();
    (database, table)
}

fn is_damage(error: &Error) -> bool {
    match error {
        Error::Corrupt { .. } => true,
        Error::Storage(error) => matches!(error, SpaceError::Corrupt { .. }),
        _ => false,
    }
}

/// Goal: a snapshot that cannot be kept because a page does not read gives an error that names the page.
/// Method: damage in every leaf, and a change that waits for one.
#[test]
fn a_page_that_does_not_read_is_why_no_snapshot_is_kept() {
    let (database, table) = with_unreadable_leaves(&Options::default().with_memory(256 << 10));
    let mut transaction = database.begin();
    transaction.put(table, &7_u32.to_be_bytes(), &[2; 60]).unwrap();
    transaction.commit().unwrap();
    let refused = database.create_named_snapshot("kept").unwrap_err();
    assert!(is_damage(&refused.clone().into()), "{refused}");
    assert_eq!(database.named_snapshots(), Vec::<String>::new());
    // The engine still works.
    let mut transaction = database.begin();
    transaction.put(table, &8_u32.to_be_bytes(), &[2; 60]).unwrap();
    transaction.commit().unwrap();
}

/// Goal: a commit that waits in vain for changes of a page that does not read gets the error of that page,
/// and not that the device is full. Method: damage in every leaf, and changes until no more fit: rows, then
/// deletes, then the drop of the table.
#[test]
fn a_page_that_does_not_read_is_why_there_is_no_room() {
    let (database, table) = with_unreadable_leaves(&Options::default().with_memory(256 << 10));
    let refusal = |value: Option<&[u8]>| {
        let change = |row: u32| -> Result<(), Error> {
            let mut transaction = database.begin();
            match value {
                Some(value) => transaction.put(table, &(row * 7).to_be_bytes(), value)?,
                None => transaction.delete(table, &(row * 5 + 1).to_be_bytes())?,
            }
            Ok(transaction.commit().map(drop)?)
        };
        (0..100_000).find_map(|row| change(row).err()).unwrap()
    };
    for value in [Some(&[3; 60][..]), None] {
        let error = refusal(value);
        assert!(is_damage(&error), "{error}");
    }
    let error = database.drop_table("t").unwrap_err();
    assert!(is_damage(&error.clone().into()), "{error}");
}

/// Goal: one snapshot more than the limit gives an error that says so, not that the device is full, and
/// dropping one helps. Method: an empty database.
#[test]
fn there_are_as_many_kept_snapshots_as_there_may_be() {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    let options = Options::default().with_memory(1 << 20);
    let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
    let refused =
        (0..).find_map(|number| database.create_named_snapshot(&format!("{number}")).err());
    assert_eq!(refused, Some(SnapshotError::TooManySnapshots));
    assert_eq!(database.named_snapshots().len(), 32);
    database.delete_named_snapshot("7").unwrap();
    database.create_named_snapshot("7 again").unwrap();
}
