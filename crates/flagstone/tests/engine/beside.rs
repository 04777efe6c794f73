//! Threads on a file that serves several at a time: their commits and reads when power fails.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use flagstone::{Durability, Error, Options, Table};
use flagstone_nand::{
    Completion, Ending, FaultPlan, Profile, SegmentFile, SharedStorage, SimStorage, Storage,
    StorageError,
};

use crate::on::Database;

/// A simulated file as a real one is: several threads read, write and sync it at a time.
#[derive(Clone, Debug)]
struct Together {
    file: Arc<Mutex<SimStorage>>,
    gate: Arc<Gate>,
}

impl Together {
    fn new(file: SimStorage) -> Self {
        Self { file: Arc::new(Mutex::new(file)), gate: Arc::default() }
    }

    fn with<T>(&self, call: impl FnOnce(&mut SimStorage) -> T) -> T {
        // Another thread could take the space here, too.
        thread::yield_now();
        call(&mut self.file.lock().unwrap())
    }
}

/// Holds up syncs on request.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    is_shut: bool,
    has_ended: bool,
    waiting: usize,
    /// Syncs that may pass although the gate is shut.
    passes: usize,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        self.changed.notify_all();
        let is_held = |state: &mut GateState| state.is_shut && state.passes == 0;
        let mut state = self.changed.wait_while(state, is_held).unwrap();
        state.passes = state.passes.saturating_sub(1);
        state.waiting -= 1;
    }

    fn change(&self, change: impl FnOnce(&mut GateState)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    /// Waits for a sync that is held up; false when none comes any more.
    fn holds_one(&self) -> bool {
        let state = self.state.lock().unwrap();
        let is_open = |state: &mut GateState| state.waiting <= state.passes && !state.has_ended;
        !self.changed.wait_while(state, is_open).unwrap().has_ended
    }
}

impl Storage for Together {
    fn read_at(&mut self, offset: u64, target: &mut [u8]) -> Result<Completion, StorageError> {
        self.with(|file| file.read_at(offset, target))
    }

    fn write_at(&mut self, offset: u64, source: &[u8]) -> Result<Completion, StorageError> {
        self.with(|file| file.write_at(offset, source))
    }

    fn sync(&mut self) -> Result<Completion, StorageError> {
        self.with(Storage::sync)
    }

    fn size(&self) -> Result<u64, StorageError> {
        self.with(|file| file.size())
    }

    fn preallocate(&mut self, size: u64) -> Result<(), StorageError> {
        self.with(|file| file.preallocate(size))
    }

    fn extend(&mut self, from: u64, to: u64) -> Result<(), StorageError> {
        self.with(|file| file.extend(from, to))
    }

    fn discard(&mut self, offset: u64, size: u64) -> Result<(), StorageError> {
        self.with(|file| file.discard(offset, size))
    }

    fn reserve(&mut self, offset: u64, size: u64) -> Result<(), StorageError> {
        self.with(|file| file.reserve(offset, size))
    }

    fn shared(&self) -> Option<Arc<dyn SharedStorage>> {
        Some(Arc::new(self.clone()))
    }

    fn now_ns(&self) -> u64 {
        self.with(|file| file.now_ns())
    }

    fn advance_to(&mut self, now_ns: u64) {
        self.with(|file| file.advance_to(now_ns));
    }
}

impl SharedStorage for Together {
    fn read_at(&self, offset: u64, target: &mut [u8]) -> Result<(), StorageError> {
        self.with(|file| file.read_at(offset, target).map(drop))
    }

    fn write_at(&self, offset: u64, source: &[u8]) -> Result<(), StorageError> {
        self.with(|file| file.write_at(offset, source).map(drop))
    }

    fn sync(&self) -> Result<(), StorageError> {
        self.gate.pass();
        self.with(|file| Storage::sync(file).map(drop))
    }
}

type Shared = Database<SegmentFile<Together>>;

const WRITERS: u64 = 3;
const ROWS: u64 = 4_000;

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn draw(state: &mut u64, end: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
    (*state >> 33) % end
}

/// Commits until an operation fails. Each commit writes its number under two keys of the thread, and a row
/// that all threads share; `acknowledged` is the last that returned.
fn write(database: &Shared, table: Table, thread: u64, seed: u64, acknowledged: &AtomicU64) {
    let mut state = seed ^ (thread << 32);
    for number in 1..100_000_u64 {
        let mut commit = || -> Result<_, Error> {
            let mut txn = database.begin();
            let bytes = number.to_le_bytes();
            txn.put(table, &key(ROWS + 2 * thread), &bytes)?;
            txn.put(table, &key(draw(&mut state, ROWS)), &[thread as u8; 120])?;
            txn.put(table, &key(ROWS + 2 * thread + 1), &bytes)?;
            Ok(txn.commit_with(Durability::Immediate)?)
        };
        match commit() {
            Ok(_) => acknowledged.store(number, Ordering::Relaxed),
            Err(_) => return,
        }
    }
    panic!("power does not fail");
}

/// Reads rows until a read fails or all writers have ended: with an early cut all rows are in memory, and
/// every read succeeds without power.
fn read(database: &Shared, table: Table, seed: u64, writers: &AtomicU64) {
    let mut state = seed;
    while writers.load(Ordering::Relaxed) > 0 {
        let Ok(snapshot) = database.snapshot() else { return };
        match snapshot.get(table, &key(draw(&mut state, ROWS))) {
            Ok(value) => assert_eq!(value.map(|value| value.len()), Some(120)),
            // A page that is not in memory cannot be read without power.
            Err(_) => return,
        }
    }
}

/// Goal (D1, D10): whenever power fails, and whichever writes since the last sync survive, each commit that
/// returned is there, and the one behind it completely or not at all. Method: threads that write and one that
/// reads, on a file that serves them at the same time; a seed draws the place and the kind of the cut.
#[test]
fn commits_of_threads_survive_cuts_of_a_shared_file() {
    for seed in 0..24 {
        let profile = Profile::named("segment-file").unwrap().with_block_count(64).unwrap();
        let file = Together::new(SimStorage::new(profile.timing));
        let options = Options::default().with_memory(256 << 10);
        let device = SegmentFile::create(file.clone(), &profile).unwrap();
        let database = Database::create_on(device, &options).unwrap();
        let table = database.table("t").unwrap();
        let mut txn = database.begin();
        (0..ROWS).for_each(|number| txn.put(table, &key(number), &[7; 120]).unwrap());
        txn.commit().unwrap();

        let mut state = seed;
        let ending = match draw(&mut state, 4) {
            0 => Ending::UnsyncedLost,
            1 => Ending::UnsyncedSubset4096 { draw: seed as u8 },
            _ => Ending::UnsyncedSubset512 { draw: seed as u8 },
        };
        let count = file.with(|file| file.operation_count());
        let cut = FaultPlan::power_cut(seed, count + draw(&mut state, 900), ending);
        file.with(|file| file.set_plan(cut));
        let acknowledged = [const { AtomicU64::new(0) }; WRITERS as usize];
        let (writers, barrier) = (AtomicU64::new(WRITERS), Barrier::new(WRITERS as usize + 1));
        thread::scope(|scope| {
            for (thread, acknowledged) in (0..).zip(&acknowledged) {
                let (database, writers, barrier) = (&database, &writers, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    write(database, table, thread, seed, acknowledged);
                    writers.fetch_sub(1, Ordering::Relaxed);
                });
            }
            barrier.wait();
            read(&database, table, seed, &writers);
        });
        drop(database);

        file.with(SimStorage::power_cycle);
        let device = SegmentFile::open(file).unwrap();
        let database = Database::open_on(device, &options).unwrap();
        let table = database.table("t").unwrap();
        let snapshot = database.snapshot().unwrap();
        for (thread, acknowledged) in (0..).zip(acknowledged) {
            let number = |key: [u8; 8]| {
                let value = snapshot.get(table, &key).unwrap();
                value.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
            };
            let (one, other) = (number(key(ROWS + 2 * thread)), number(key(ROWS + 2 * thread + 1)));
            let acknowledged = acknowledged.into_inner();
            assert_eq!(one, other, "seed {seed}: half a commit of thread {thread}");
            assert!(
                one == acknowledged || one == acknowledged + 1,
                "seed {seed}: thread {thread} has commit {one}, {acknowledged} was acknowledged"
            );
        }
        assert!(database.check().unwrap().is_sound(), "seed {seed}");
    }
}

/// A database whose table `t` has rows that memory does not hold, and an empty table.
fn opened_anew() -> (Together, Shared, [Table; 2]) {
    let profile = Profile::named("segment-file").unwrap().with_block_count(64).unwrap();
    let file = Together::new(SimStorage::new(profile.timing));
    let options = Options::default().with_memory(256 << 10);
    let device = SegmentFile::create(file.clone(), &profile).unwrap();
    let database = Database::create_on(device, &options).unwrap();
    let table = database.table("t").unwrap();
    let mut txn = database.begin();
    (0..ROWS).for_each(|number| txn.put(table, &key(number), &[7; 120]).unwrap());
    txn.commit().unwrap();
    drop(database);
    let device = SegmentFile::open(file.clone()).unwrap();
    let database = Database::open_on(device, &options).unwrap();
    let tables = ["t", "other"].map(|name| database.table(name).unwrap());
    (file, database, tables)
}

/// Does `work` while each of its syncs is held up until a reader has gone over all rows of `table`; returns the
/// number of syncs. With a reader that waits for one, this does not go on.
fn read_beside_syncs<E: std::fmt::Debug + Send>(
    file: &Together,
    database: &Shared,
    table: Table,
    work: impl FnOnce() -> Result<(), E> + Send,
) -> usize {
    let mut syncs = 0;
    file.gate.change(|gate| (gate.is_shut, gate.has_ended) = (true, false));
    thread::scope(|scope| {
        let gate = &file.gate;
        let writer = scope.spawn(move || {
            let done = work();
            gate.change(|gate| gate.has_ended = true);
            done
        });
        while gate.holds_one() {
            let (sender, receiver) = mpsc::channel();
            scope.spawn(move || {
                let snapshot = database.snapshot().unwrap();
                sender.send(snapshot.range(table, ..).filter_map(Result::ok).count())
            });
            let count = receiver.recv_timeout(Duration::from_secs(60));
            let is_held = count != Ok(ROWS as usize);
            gate.change(|gate| (gate.is_shut, gate.passes) = (!is_held, 1));
            assert_eq!(count, Ok(ROWS as usize), "beside sync {syncs}");
            syncs += 1;
        }
        gate.change(|gate| gate.is_shut = false);
        writer.join().unwrap().unwrap();
    });
    syncs
}

/// Goal (W1): a reader of a page waits for no sync, whether of a flush, of the spilled changes of a large
/// transaction, or of leaves that commit one. Method: syncs are held up; a reader goes over a table that
/// memory does not hold. With a reader that waits this test does not go on.
#[test]
fn readers_wait_for_no_sync() {
    let (file, database, [table, other]) = opened_anew();
    for rows in [1, 200, ROWS] {
        read_beside_syncs(&file, &database, table, || {
            let mut txn = database.begin();
            (0..rows).try_for_each(|row| txn.put(other, &key(row), &[8; 120]))?;
            txn.commit()?;
            Ok::<_, Error>(())
        });
    }
}

/// Goal (W1): a reader of a page waits for no sync of a checkpoint, before its record or behind it. Method: as
/// above, beside checkpoints of few changes and of many.
#[test]
fn readers_wait_for_no_sync_of_a_checkpoint() {
    let (file, database, [table, other]) = opened_anew();
    let checkpoints = || database.stats().space.checkpoints;
    for rows in [1, 200, ROWS] {
        let mut txn = database.begin();
        (0..rows).for_each(|row| txn.put(other, &key(row), &[9; 120]).unwrap());
        txn.commit().unwrap();
        let before = checkpoints();
        let syncs =
            read_beside_syncs(&file, &database, table, || database.runtime().checkpoint_now());
        assert!(checkpoints() > before, "a checkpoint was asked for");
        assert!(syncs >= 2, "{syncs} syncs: one before the record, and one behind it");
    }
}
