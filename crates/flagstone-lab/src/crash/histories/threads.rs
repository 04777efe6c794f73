//! Histories of threads: the blocking interface under schedules that a seed shuffles.
//!
//! Goal (promise 8): what threads read and append is serializable too; none of them hangs, and none
//! is refused without need where there is room.
//!
//! Method: the lists and the graph of the other histories. The device yields the processor inside
//! its operations, and the threads between theirs, at moments drawn from a seed.

use std::ops::Range;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use flagstone::{Database, Durability, EngineError, Options, Snapshot, Table, Transaction};
use flagstone_nand::{
    BlockIndex, Capabilities, Completion, Counters, FileStorage, Geometry, Nand, NandError,
    PhysicalPage, Profile, ProgramPart, ReadPart, SegmentFile, SimNand,
};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;

use super::super::small;
use super::client::{LIST_COUNT, LIST_SIZE_MAX, below, draw_key, key_of, list_of, value_of};
use super::graph::{Checked, Element, History, ListKey, Lists, NodeIndex, Reader};
use super::tests::effort;

/// A device that gives way to other threads inside its operations.
struct Yielding<D> {
    device: D,
    random: Pcg64Mcg,
}

impl<D> Yielding<D> {
    fn new(device: D, seed: u64) -> Self {
        Self { device, random: Pcg64Mcg::seed_from_u64(seed) }
    }

    fn give_way(&mut self) -> &mut D {
        give_way(&mut self.random);
        &mut self.device
    }
}

fn give_way(random: &mut Pcg64Mcg) {
    match below(random, 16) {
        0 => thread::sleep(Duration::from_micros(below(random, 200))),
        1..6 => thread::yield_now(),
        _ => {}
    }
}

impl<D: Nand> Nand for Yielding<D> {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn read(&mut self, page: PhysicalPage, part: ReadPart<'_>) -> Result<Completion, NandError> {
        self.give_way().read(page, part)
    }

    fn program(
        &mut self,
        page: PhysicalPage,
        part: ProgramPart<'_>,
    ) -> Result<Completion, NandError> {
        self.give_way().program(page, part)
    }

    fn erase(&mut self, block: BlockIndex) -> Result<Completion, NandError> {
        self.give_way().erase(block)
    }

    fn is_bad(&mut self, block: BlockIndex) -> Result<bool, NandError> {
        self.device.is_bad(block)
    }

    fn mark_bad(&mut self, block: BlockIndex) -> Result<(), NandError> {
        self.device.mark_bad(block)
    }

    fn sync(&mut self) -> Result<Completion, NandError> {
        self.give_way().sync()
    }

    fn erase_count(&self, block: BlockIndex) -> u32 {
        self.device.erase_count(block)
    }

    fn counters(&self) -> Counters {
        self.device.counters()
    }

    fn reset_counters(&mut self) {
        self.device.reset_counters();
    }

    fn now_ns(&self) -> u64 {
        self.device.now_ns()
    }

    fn advance_to(&mut self, now_ns: u64) {
        self.device.advance_to(now_ns);
    }
}

/// Whether a transaction may be refused for want of room.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// On a small chip with little memory the spilled changes of all may be too many to name.
    Scarce,
    /// There is room for all of them.
    Ample,
}

/// What all threads share.
struct Shared<D: Nand> {
    room: Room,
    database: Database<D>,
    table: Table,
    history: std::sync::Mutex<History>,
}

impl<D: Nand + Send> Shared<D> {
    fn note<T>(&self, note: impl FnOnce(&mut History) -> T) -> T {
        note(&mut self.history.lock().unwrap())
    }

    fn note_rows(&self, node: NodeIndex, range: Range<u16>, rows: &[(Vec<u8>, Vec<u8>)]) {
        for key in range.map(ListKey) {
            let row = rows.iter().find(|(other, _)| *other == key_of(key));
            let list = row.map(|(_, value)| list_of(value)).unwrap_or_default();
            self.note(|history| history.read(node, key, list)).unwrap();
        }
    }

    fn get(
        &self,
        node: NodeIndex,
        transaction: &Transaction<D>,
        key: ListKey,
    ) -> Result<Vec<Element>, EngineError> {
        let value = transaction.get(self.table, &key_of(key))?;
        let list = value.map(|value| list_of(&value)).unwrap_or_default();
        self.note(|history| history.read(node, key, list.clone())).unwrap();
        Ok(list)
    }

    fn append(
        &self,
        node: NodeIndex,
        transaction: &mut Transaction<D>,
        key: ListKey,
        random: &mut Pcg64Mcg,
    ) -> Result<(), EngineError> {
        if below(random, 2) == 0 {
            transaction.lock_key(self.table, &key_of(key))?;
        }
        let mut list = self.get(node, transaction, key)?;
        if list.len() == LIST_SIZE_MAX {
            return Ok(());
        }
        let element = self.note(|history| history.append(node, key));
        if below(random, 2) == 0 && !list.is_empty() {
            let bytes = element.0.to_le_bytes();
            return transaction.patch(self.table, &key_of(key), 4 * list.len(), &bytes);
        }
        list.push(element);
        transaction.put(self.table, &key_of(key), &value_of(&list))
    }

    fn act(
        &self,
        node: NodeIndex,
        mut transaction: Transaction<D>,
        durability: Durability,
        (random, hot): (&mut Pcg64Mcg, u64),
    ) -> Result<(), EngineError> {
        for _ in 0..=below(random, 5) {
            let key = draw_key(random, hot);
            give_way(random);
            match below(random, 8) {
                0 => {
                    let range = key.0..key.0 + 6;
                    let (low, high) = (key_of(key), key_of(ListKey(range.end)));
                    let rows = transaction.range(self.table, &low[..]..&high[..]);
                    let rows: Vec<_> = rows.collect::<Result<_, _>>()?;
                    self.note_rows(node, range, &rows);
                }
                1..4 => drop(self.get(node, &transaction, key)?),
                _ => self.append(node, &mut transaction, key, random)?,
            }
        }
        transaction.commit_with(durability).map(drop)
    }

    fn transaction(&self, random: &mut Pcg64Mcg, hot: u64) {
        let node = self.note(|history| history.begin(Reader::Transaction));
        let deferred = below(random, 3) == 0;
        let durability = if deferred { Durability::Deferred } else { Durability::Immediate };
        match self.act(node, self.database.begin(), durability, (random, hot)) {
            Ok(()) => self.note(|history| {
                history.committed(node);
                if !deferred {
                    history.durable(node);
                }
            }),
            Err(EngineError::Deadlock) => self.note(|history| history.aborted(node)),
            Err(EngineError::Full) if self.room == Room::Scarce => {
                self.note(|history| history.aborted(node));
            }
            Err(error) => panic!("refused without need: {error}"),
        }
    }

    fn read_snapshot(&self, snapshot: &Snapshot<D>, node: NodeIndex) -> Result<(), EngineError> {
        for start in (0..LIST_COUNT).step_by(40) {
            let range = start..start + 40;
            let (low, high) = (key_of(ListKey(range.start)), key_of(ListKey(range.end)));
            let rows = snapshot.range(self.table, &low[..]..&high[..]);
            let rows: Vec<_> = rows.collect::<Result<_, _>>()?;
            self.note_rows(node, range, &rows);
        }
        Ok(())
    }

    fn snapshot(&self) {
        let node = self.note(|history| history.begin(Reader::Snapshot));
        let snapshot = self.database.snapshot().unwrap();
        match self.read_snapshot(&snapshot, node) {
            Ok(()) | Err(EngineError::SnapshotTooOld) => {}
            Err(error) => panic!("refused without need: {error}"),
        }
        self.note(|history| history.snapshot_ended(node));
    }

    /// What one thread does: most commit, one reads snapshots, one asks for checkpoints.
    fn work(&self, thread: u64, count: u64, seed: u64) {
        let mut random = Pcg64Mcg::seed_from_u64(seed ^ (thread << 32));
        for number in 0..count {
            match thread {
                0 => self.snapshot(),
                1 if number.is_multiple_of(8) => self.database.runtime().checkpoint_now().unwrap(),
                _ => self.transaction(&mut random, number / 4),
            }
        }
    }

    fn lists(&self) -> Lists {
        let transaction = self.database.begin();
        let row = |row: Result<(Vec<u8>, Vec<u8>), EngineError>| {
            let (key, value) = row.unwrap();
            (ListKey(u16::from_be_bytes(*key.first_chunk().unwrap())), list_of(&value))
        };
        transaction.range(self.table, ..).map(row).collect()
    }
}

const THREAD_COUNT: u64 = 6;

/// Lets threads loose on a new database, and checks what they did.
fn let_loose<D: Nand + Send>(device: D, room: Room, count: u64, seed: u64) -> Checked {
    let mut options = small(Options::default(), &device);
    if room == Room::Ample {
        options.memory *= 4;
        options.log_pages *= 4;
    }
    let database = Database::create_on(device, &options).unwrap();
    let table = database.table("lists").unwrap();
    let shared = Shared { room, database, table, history: std::sync::Mutex::default() };
    thread::scope(|scope| {
        for thread in 0..THREAD_COUNT {
            let shared = &shared;
            scope.spawn(move || shared.work(thread, count, seed));
        }
    });
    let lists = shared.lists();
    shared.database.flush().unwrap();
    let checked = shared.note(|history| history.check(&lists)).unwrap();
    let report = shared.database.check().unwrap();
    assert!(report.is_sound(), "{report:?}");
    checked
}

/// A hang fails rather than hanging the test.
fn in_time(run: impl FnOnce() -> Checked + Send + 'static) -> Checked {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(run()));
    receiver.recv_timeout(Duration::from_secs(300)).expect("the threads hang or failed")
}

/// Method: a chip in memory, so that all time goes into the code between the latches.
#[test]
fn shuffled_threads_are_serializable() {
    let mut total = Checked::default();
    for seed in 0..4 * effort() {
        let checked = in_time(move || {
            let profile = Profile::named("tiny").unwrap().with_block_count(128).unwrap();
            let_loose(Yielding::new(SimNand::new(&profile, seed), seed), Room::Scarce, 100, seed)
        });
        total.add(&checked);
    }
    println!("{total:?}");
    assert!(total.transactions > 1_000 * effort(), "{total:?}");
}

/// Method: a regular file with its real syncs.
#[test]
fn threads_on_a_file_are_serializable() {
    for seed in 0..effort() {
        let checked = in_time(move || {
            let directory = tempfile::tempdir().unwrap();
            let file = FileStorage::create(&directory.path().join("threads.flag")).unwrap();
            let profile = Profile::named("segment-file").unwrap();
            let profile = profile.with_capacity(32 << 20).unwrap();
            let_loose(SegmentFile::create(file, &profile).unwrap(), Room::Ample, 150, seed)
        });
        println!("{checked:?}");
        assert!(checked.transactions > 400 && checked.snapshots > 100, "{checked:?}");
    }
}
