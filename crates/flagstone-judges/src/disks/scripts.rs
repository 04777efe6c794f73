//! All scripts.

use std::collections::BTreeMap;

use flagstone::{Durability, FileSize, Options};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::script::{Bytes, COUNTER, Change, Script, Step};

/// Names of the scripts, each with its subject.
pub(super) const NAMES: [(&str, &str); 13] = [
    ("creation", "a file is made, tables in it, first commits"),
    ("commits", "small transactions of all durabilities, default options"),
    ("deferred", "long runs of deferred commits, a durable one now and then"),
    ("pressure", "little memory: merges, checkpoints, collection, spills"),
    ("growth", "a file that grows"),
    ("large", "large values, sorted loads, transactions larger than memory, savepoints"),
    ("tables", "tables come, change their names and go"),
    ("snapshots", "snapshots are kept and dropped"),
    ("compaction", "files written anew"),
    ("backups", "backups and their restoration"),
    ("sessions", "openings after sessions that were closed or not"),
    ("threads", "four threads, durable and deferred commits mixed"),
    ("discard", "room that is given back"),
];

/// Makes scripts.
struct Writer {
    chain: usize,
    draws: Pcg64Mcg,
    steps: Vec<Step>,
    /// Sizes of the values that are there.
    live: BTreeMap<(String, Vec<u8>), usize>,
    tables: Vec<String>,
    /// Keys of a table.
    keys: u32,
    value_size: usize,
    changes: usize,
}

impl Writer {
    fn new(seed: u64, chain: usize) -> Self {
        let draws = Pcg64Mcg::seed_from_u64(seed ^ (chain as u64) << 48);
        let tables = vec![String::from("a"), String::from("b")];
        let (live, steps) = (BTreeMap::new(), Vec::new());
        Self { chain, draws, steps, live, tables, keys: 400, value_size: 200, changes: 8 }
    }

    fn begin(&mut self) {
        self.steps.push(Step::Create);
        for name in [COUNTER, "a", "b"] {
            self.steps.push(Step::CreateTable(name.to_owned()));
        }
    }

    fn below(&mut self, count: u32) -> u32 {
        self.draws.random_range(0..count.max(1))
    }

    fn bytes(&mut self, size: usize) -> Bytes {
        Bytes { seed: self.draws.random(), size }
    }

    fn key(&mut self) -> Vec<u8> {
        format!("{:06}.{}", self.below(self.keys), self.chain).into_bytes()
    }

    fn change(&mut self) -> Change {
        let number = self.below(self.tables.len() as u32);
        let table = self.tables[number as usize].clone();
        let key = self.key();
        let old = self.live.get(&(table.clone(), key.clone())).copied();
        let (kind, place) = (self.below(10), (table.clone(), key.clone()));
        match old {
            Some(_) if kind < 3 => {
                self.live.remove(&place);
                Change::Delete { table, key }
            }
            Some(size) if kind < 5 && size > 16 => {
                let offset = self.below(size as u32 - 8) as usize;
                Change::Patch { table, key, offset, bytes: self.bytes(8) }
            }
            _ => {
                let size = self.below(2 * self.value_size as u32) as usize;
                self.live.insert(place, size);
                Change::Put { table, key, value: self.bytes(size) }
            }
        }
    }

    fn some_changes(&mut self, count: usize) -> Vec<Change> {
        (0..count).map(|_| self.change()).collect()
    }

    /// Changes that are undone or given up.
    fn lost_changes(&mut self, count: usize) -> Vec<Change> {
        let live = self.live.clone();
        let changes = self.some_changes(count);
        self.live = live;
        changes
    }

    fn commit(&mut self, durability: Durability) {
        let undone = if self.below(8) == 0 { self.lost_changes(3) } else { Vec::new() };
        let count = 1 + self.below(2 * self.changes as u32) as usize;
        let changes = self.some_changes(count);
        self.steps.push(Step::Commit { durability, changes, undone });
    }

    /// Transactions of all durabilities.
    fn mixed(&mut self, count: usize) {
        for _ in 0..count {
            match self.below(12) {
                0 => {
                    let changes = self.lost_changes(4);
                    self.steps.push(Step::Abort(changes));
                }
                1..5 => self.commit(Durability::Deferred),
                5 => self.commit(Durability::Group),
                _ => self.commit(Durability::Immediate),
            }
        }
    }

    fn load(&mut self, table: &str, count: usize, size: usize) {
        let rows = (0..count).map(|row| (format!("{row:08}").into_bytes(), self.bytes(size)));
        let rows = rows.collect();
        self.steps.push(Step::CreateTable(table.to_owned()));
        self.steps.push(Step::Load { table: table.to_owned(), rows });
    }

    fn reopen(&mut self) {
        let closes = self.below(2) == 0;
        // A dropped database loses its deferred commits, and later steps would find other rows.
        self.steps.extend([Step::Flush, Step::Reopen { closes }]);
    }

    fn drop_table(&mut self, name: &str) {
        self.live.retain(|(table, _), _| table != name);
        self.tables.retain(|table| table != name);
        self.steps.push(Step::DropTable(name.to_owned()));
    }

    fn create_table(&mut self, name: &str) {
        self.tables.push(name.to_owned());
        self.steps.push(Step::CreateTable(name.to_owned()));
    }

    fn rename_table(&mut self, from: &str, to: &str) {
        let live = std::mem::take(&mut self.live).into_iter().map(|((table, key), size)| {
            ((if table == from { to.to_owned() } else { table }, key), size)
        });
        self.live = live.collect();
        for table in self.tables.iter_mut().filter(|table| *table == from) {
            to.clone_into(table);
        }
        self.steps.push(Step::RenameTable(from.to_owned(), to.to_owned()));
    }
}

/// The script of a name.
///
/// # Errors
/// No script has that name.
pub(super) fn script(name: &str, seed: u64) -> anyhow::Result<Script> {
    let mut writer = Writer::new(seed, 0);
    writer.begin();
    match name {
        "creation" => writer.mixed(20),
        "commits" => {
            writer.mixed(400);
            writer.reopen();
            writer.mixed(200);
        }
        "deferred" => deferred(&mut writer),
        "pressure" => pressure(&mut writer),
        "growth" => growth(&mut writer),
        "large" => large(&mut writer),
        "tables" => tables(&mut writer),
        "snapshots" => snapshots(&mut writer),
        "compaction" => compaction(&mut writer),
        "backups" => backups(&mut writer),
        "sessions" => (0..30).for_each(|_| {
            writer.mixed(12);
            writer.reopen();
        }),
        "threads" => {}
        "guest" => guest(&mut writer),
        "discard" => discard(&mut writer),
        _ => anyhow::bail!("there is no script `{name}`"),
    }
    let thread_count = if name == "threads" { 4 } else { 0 };
    let others = (1..=thread_count).map(|chain| thread(seed, chain)).collect();
    let (options, size) = settings(name);
    Ok(Script { options, size, first: writer.steps, others })
}

/// Options and size of the database that a script is about.
fn settings(name: &str) -> (Options, FileSize) {
    const SMALL: FileSize = FileSize::Fixed(6 << 20);
    let memory = |bytes| Options::default().with_memory(bytes);
    match name {
        "creation" => (Options::default(), FileSize::default()),
        "deferred" => (memory(128 << 10), SMALL),
        "growth" => (memory(256 << 10), FileSize::Growing { limit: 1 << 30 }),
        "large" => (memory(512 << 10), FileSize::Growing { limit: 64 << 20 }),
        "snapshots" => (memory(256 << 10), FileSize::Fixed(10 << 20)),
        "threads" => (memory(1 << 20), SMALL),
        "guest" => (memory(256 << 10), FileSize::Growing { limit: 24 << 20 }),
        "discard" => (memory(256 << 10).with_discard(true), SMALL),
        "pressure" | "tables" | "sessions" => (memory(256 << 10), SMALL),
        _ => (Options::default(), SMALL),
    }
}

fn deferred(writer: &mut Writer) {
    (writer.keys, writer.value_size, writer.changes) = (1_000, 80, 2);
    for _ in 0..4 {
        for _ in 0..800 {
            writer.commit(Durability::Deferred);
        }
        writer.commit(Durability::Immediate);
    }
}

fn pressure(writer: &mut Writer) {
    (writer.keys, writer.value_size, writer.changes) = (4_000, 120, 16);
    for _ in 0..6 {
        writer.mixed(90);
        let size = writer.changes;
        // Larger than the memory for waiting changes.
        writer.changes = 400;
        writer.commit(Durability::Immediate);
        writer.changes = size;
        writer.steps.push(Step::Merge);
    }
}

fn growth(writer: &mut Writer) {
    (writer.keys, writer.value_size, writer.changes) = (20_000, 1_200, 40);
    for number in 0..6 {
        writer.mixed(40);
        writer.load(&format!("load{number}"), 2_000, 900);
    }
    writer.mixed(60);
}

fn large(writer: &mut Writer) {
    for number in 0..5 {
        (writer.value_size, writer.changes) = (200, 8);
        writer.mixed(15);
        (writer.value_size, writer.changes) = (30_000, 3);
        writer.mixed(12);
        (writer.value_size, writer.changes, writer.keys) = (150, 900, 4_000);
        writer.commit(Durability::Immediate);
        writer.commit(Durability::Deferred);
        writer.load(&format!("load{number}"), 1_500, 250);
    }
    writer.mixed(20);
}

fn tables(writer: &mut Writer) {
    for number in 0..14 {
        let name = format!("t{number}");
        writer.create_table(&name);
        writer.mixed(16);
        if number % 3 == 1 {
            writer.rename_table(&name, &format!("r{number}"));
            writer.mixed(4);
        }
        if number >= 2 {
            let old = if (number - 2) % 3 == 1 { "r" } else { "t" };
            writer.drop_table(&format!("{old}{}", number - 2));
        }
        if number % 5 == 4 {
            writer.reopen();
        }
    }
}

fn snapshots(writer: &mut Writer) {
    (writer.keys, writer.changes) = (1_500, 12);
    for number in 0..10 {
        writer.mixed(25);
        writer.steps.push(Step::Keep(format!("s{number}")));
        if number >= 3 {
            writer.mixed(3);
            writer.steps.push(Step::Forget(format!("s{}", number - 3)));
        }
        if number % 4 == 3 {
            writer.reopen();
        }
    }
    writer.mixed(20);
}

fn backups(writer: &mut Writer) {
    (writer.keys, writer.value_size) = (1_000, 250);
    for number in 0..3 {
        writer.mixed(60);
        writer.steps.push(Step::Flush);
        let (backup, copy) = (format!("backup{number}"), format!("copy{number}"));
        writer.steps.push(Step::Backup(backup.clone()));
        writer.mixed(5);
        writer.steps.push(Step::Restore { backup, copy });
    }
    writer.mixed(10);
}

fn compaction(writer: &mut Writer) {
    for _ in 0..6 {
        writer.mixed(40);
        writer.steps.push(Step::Compact);
    }
    writer.mixed(20);
}

/// A little of everything: a guest without hardware of its own is slow.
fn guest(writer: &mut Writer) {
    writer.mixed(24);
    writer.load("load", 400, 300);
    writer.steps.push(Step::Keep(String::from("s")));
    writer.mixed(10);
    writer.reopen();
    writer.create_table("c");
    writer.mixed(8);
    writer.steps.push(Step::Forget(String::from("s")));
    writer.rename_table("c", "d");
    writer.mixed(4);
    writer.drop_table("d");
    writer.steps.push(Step::Merge);
    writer.steps.extend([Step::Flush, Step::Backup(String::from("backup"))]);
    let (backup, copy) = (String::from("backup"), String::from("copy"));
    writer.steps.push(Step::Restore { backup, copy });
    writer.mixed(4);
    writer.steps.push(Step::Compact);
    writer.value_size = 3_000;
    writer.mixed(12);
}

fn discard(writer: &mut Writer) {
    writer.keys = 2_000;
    for number in 0..5 {
        let name = format!("t{number}");
        writer.create_table(&name);
        writer.value_size = 600;
        writer.mixed(30);
        writer.value_size = 60;
        writer.mixed(20);
        writer.drop_table(&name);
        writer.steps.push(Step::Merge);
    }
    writer.mixed(30);
}

fn thread(seed: u64, chain: usize) -> Vec<Step> {
    let mut writer = Writer::new(seed, chain);
    if chain.is_multiple_of(2) {
        writer.mixed(150);
    } else {
        for _ in 0..300 {
            writer.commit(Durability::Deferred);
        }
        writer.commit(Durability::Immediate);
    }
    writer.steps
}
