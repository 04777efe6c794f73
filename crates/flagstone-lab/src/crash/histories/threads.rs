//! Histories of threads: the blocking interface under schedules that a seed shuffles.
//!
//! Owns threads that read and append to the lists of the other histories, and their delays: the
//! device gives way to other threads inside its operations, and the threads between theirs, at
//! moments drawn from a seed. Never decides which reads are allowed: that is the part of
//! [`super::graph`].
//!
//! - **H1** Reads and appends of threads are serializable, too (promise 8); no thread hangs, and
//!   none is refused where there is room.
//! - **H2** A seed draws the operations and the moments at which threads give way. Which thread
//!   goes on then is up to the machine, so that a failure may need several runs to be seen again.

use std::ops::Range;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use flagstone_engine::blocking::{Database, Snapshot, Transaction};
use flagstone_engine::{Durability, EngineError, Options, Table};
use flagstone_nand::{
    BlockIndex, Capabilities, Completion, Counters, Geometry, Nand, NandError, PhysicalPage,
    Profile, ProgramPart, ReadPart, SimNand,
};
use parking_lot::Mutex;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;

use super::super::small;
use super::client::{LIST_COUNT, LIST_SIZE_MAX, below, draw_key, key_of, list_of, value_of};
use super::graph::{Checked, Element, History, ListKey, Lists, NodeIndex, Reader};
use super::{Failure, open_failed};

/// A device that gives way to other threads inside its operations.
#[derive(Debug)]
pub struct Yielding<D> {
    device: D,
    random: Pcg64Mcg,
    pace: Pace,
    /// Operations that delay no thread: the ones that make the database.
    calm: u32,
}

/// How often threads give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// At every third opportunity, now and then for a while.
    Often,
    /// Once in so many opportunities.
    Once(u64),
}

impl<D> Yielding<D> {
    /// The device, which gives way at moments drawn from `seed`, once it has done `calm` operations.
    pub fn new(device: D, pace: Pace, calm: u32, seed: u64) -> Self {
        Self { device, random: Pcg64Mcg::seed_from_u64(seed), pace, calm }
    }

    fn give_way(&mut self) -> &mut D {
        match self.calm.checked_sub(1) {
            Some(left) => self.calm = left,
            None => self.pace.give_way(&mut self.random),
        }
        &mut self.device
    }
}

impl Pace {
    fn give_way(self, random: &mut Pcg64Mcg) {
        match self {
            Self::Often => match below(random, 16) {
                0 => thread::sleep(Duration::from_micros(below(random, 200))),
                1..6 => thread::yield_now(),
                _ => {}
            },
            Self::Once(period) if below(random, period) == 0 => thread::yield_now(),
            Self::Once(_) => {}
        }
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

    fn takes_spare(&mut self, page: PhysicalPage) -> Result<bool, NandError> {
        self.device.takes_spare(page)
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

    fn present_blocks(&self) -> u32 {
        self.device.present_blocks()
    }

    fn extend(&mut self, block_count: u32) -> Result<(), NandError> {
        self.device.extend(block_count)
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// On a small chip with little memory the spilled changes of all may be too many to name.
    Scarce,
    /// There is room for all threads.
    Ample,
}

/// State that all threads share.
struct Shared<D: Nand> {
    room: Room,
    pace: Pace,
    database: Database<D>,
    table: Table,
    history: Mutex<History>,
}

impl<D: Nand + Send> Shared<D> {
    fn note<T>(&self, note: impl FnOnce(&mut History) -> T) -> T {
        note(&mut self.history.lock())
    }

    fn note_rows(
        &self,
        node: NodeIndex,
        range: Range<u16>,
        rows: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<(), Failure> {
        for key in range.map(ListKey) {
            let row = rows.iter().find(|(other, _)| *other == key_of(key));
            let list = row.map(|(_, value)| list_of(value)).unwrap_or_default();
            self.note(|history| history.read(node, key, list))?;
        }
        Ok(())
    }

    fn get(
        &self,
        node: NodeIndex,
        transaction: &Transaction<D>,
        key: ListKey,
    ) -> Result<Vec<Element>, Failure> {
        let value = transaction.get(self.table, &key_of(key))?;
        let list = value.map(|value| list_of(&value)).unwrap_or_default();
        self.note(|history| history.read(node, key, list.clone()))?;
        Ok(list)
    }

    fn append(
        &self,
        node: NodeIndex,
        transaction: &mut Transaction<D>,
        key: ListKey,
        random: &mut Pcg64Mcg,
    ) -> Result<(), Failure> {
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
            return Ok(transaction.patch(self.table, &key_of(key), 4 * list.len(), &bytes)?);
        }
        list.push(element);
        Ok(transaction.put(self.table, &key_of(key), &value_of(&list))?)
    }

    fn act(
        &self,
        node: NodeIndex,
        mut transaction: Transaction<D>,
        durability: Durability,
        (random, hot): (&mut Pcg64Mcg, u64),
    ) -> Result<(), Failure> {
        for _ in 0..=below(random, 5) {
            let key = draw_key(random, hot);
            self.pace.give_way(random);
            match below(random, 8) {
                0 => {
                    let range = key.0..key.0 + 6;
                    let (low, high) = (key_of(key), key_of(ListKey(range.end)));
                    let rows = transaction.range(self.table, &low[..]..&high[..]);
                    let rows: Vec<_> = rows.collect::<Result<_, _>>()?;
                    self.note_rows(node, range, &rows)?;
                }
                1..4 => drop(self.get(node, &transaction, key)?),
                _ => self.append(node, &mut transaction, key, random)?,
            }
        }
        Ok(transaction.commit_with(durability).map(drop)?)
    }

    fn transaction(&self, random: &mut Pcg64Mcg, hot: u64) -> Result<(), Failure> {
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
            Err(Failure::Refused(EngineError::Deadlock)) => {
                self.note(|history| history.aborted(node));
            }
            Err(Failure::Refused(EngineError::Full | EngineError::TooLarge))
                if self.room == Room::Scarce =>
            {
                self.note(|history| history.aborted(node));
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    fn read_snapshot(&self, snapshot: &Snapshot<D>, node: NodeIndex) -> Result<(), Failure> {
        for start in (0..LIST_COUNT).step_by(40) {
            let range = start..start + 40;
            let (low, high) = (key_of(ListKey(range.start)), key_of(ListKey(range.end)));
            let rows = snapshot.range(self.table, &low[..]..&high[..]);
            let rows: Vec<_> = rows.collect::<Result<_, _>>()?;
            self.note_rows(node, range, &rows)?;
        }
        Ok(())
    }

    fn snapshot(&self) -> Result<(), Failure> {
        let node = self.note(|history| history.begin(Reader::Snapshot));
        let snapshot = self.database.snapshot()?;
        match self.read_snapshot(&snapshot, node) {
            Ok(()) | Err(Failure::Refused(EngineError::SnapshotTooOld)) => {}
            Err(failure) => return Err(failure),
        }
        self.note(|history| history.snapshot_ended(node));
        Ok(())
    }

    /// Work of one thread: most commit, one reads snapshots, one asks for checkpoints.
    fn work(&self, thread: u64, count: u64, seed: u64) -> Result<(), Failure> {
        let mut random = Pcg64Mcg::seed_from_u64(seed ^ (thread << 32));
        for number in 0..count {
            match thread {
                0 => self.snapshot()?,
                1 if number.is_multiple_of(8) => self.database.runtime().checkpoint_now()?,
                _ => self.transaction(&mut random, number / 4)?,
            }
        }
        Ok(())
    }
}

/// Threads of a history, and operations of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crowd {
    /// Threads: the first reads snapshots, the second asks for checkpoints too.
    pub threads: u64,
    /// Transactions or snapshots of each.
    pub count: u64,
    /// Whether there is room for all they do.
    pub room: Room,
    /// How often they give way between their operations.
    pub pace: Pace,
}

/// Lets threads loose on a new database, and checks their history (H1).
///
/// # Errors
///
/// The first failure; that of a thread before that of the history.
pub fn let_loose<D: Nand + Send>(device: D, crowd: Crowd, seed: u64) -> Result<Checked, Failure> {
    let mut options = small(Options::default(), &device);
    if crowd.room == Room::Ample {
        options.memory *= 4;
        options.log_pages *= 4;
    }
    let database = Database::create_on(device, &options).map_err(open_failed)?;
    let table = database.table("lists")?;
    let Crowd { room, pace, .. } = crowd;
    let shared = Shared { room, pace, database, table, history: Mutex::default() };
    thread::scope(|scope| {
        let shared = &shared;
        let run = |thread| scope.spawn(move || shared.work(thread, crowd.count, seed));
        let threads: Vec<_> = (0..crowd.threads).map(run).collect();
        let ended =
            threads.into_iter().map(|thread| thread.join().unwrap_or(Err(Failure::Panicked)));
        ended.collect::<Vec<_>>().into_iter().collect::<Result<(), Failure>>()
    })?;
    let lists = lists_in(&shared.database, shared.table)?;
    shared.database.flush()?;
    let checked = shared.note(|history| history.check(&lists))?;
    match shared.database.check()?.is_sound() {
        true => Ok(checked),
        false => Err(Failure::Unsound),
    }
}

/// Every list of a table.
pub(super) fn lists_in<D: Nand>(
    database: &Database<D>,
    table: Table,
) -> Result<Lists, EngineError> {
    let transaction = database.begin();
    let mut lists = Lists::new();
    for row in transaction.range(table, ..) {
        let (key, value) = row?;
        let number = key.first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes));
        lists.insert(ListKey(number), list_of(&value));
    }
    Ok(lists)
}

/// Calls `run` on a thread of its own: one that hangs fails instead.
///
/// # Errors
///
/// That of `run`, or `Stalled`.
pub fn in_time<T: Send + 'static>(
    limit: Duration,
    run: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(run()));
    let stalled = |_| Failure::Stalled(String::from("the threads hang or one has panicked"));
    receiver.recv_timeout(limit).map_err(stalled)?
}

/// Blocks of the chip that short schedules run on.
const BLOCK_COUNT: u32 = 48;

/// Operations of the chip that making a database takes.
const CALM: u32 = 100;

/// One short schedule: a new database on a small chip, a few threads, a few operations. Which ones
/// meet depends on how often they give way, so that is drawn too.
///
/// # Errors
///
/// As [`let_loose`].
pub fn short_schedule(seed: u64) -> Result<Checked, Failure> {
    let profile = Profile::named("tiny").and_then(|chip| chip.with_block_count(BLOCK_COUNT));
    let profile = profile.map_err(|error| Failure::Open(error.to_string()))?;
    let pace = Pace::Once(2 << (seed % 5));
    let crowd = Crowd { threads: 4, count: 3, room: Room::Scarce, pace };
    let_loose(Yielding::new(SimNand::new(&profile, seed), pace, CALM, seed), crowd, seed)
}

#[cfg(test)]
mod tests;
