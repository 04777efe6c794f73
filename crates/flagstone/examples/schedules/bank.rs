//! Schedules of threads: at every latch a scheduler draws the thread that goes on (scoreboard E3).
//!
//! Owns a small bank and the threads that use it through the public interface: transfers of every durability,
//! snapshots, checkpoints and flushes, on a chip with less memory than rows, whose power goes in half of the
//! schedules. Never decides where threads meet: that is the part of the engine's latches, which ask the
//! scheduler (`--cfg shuttle`).
//!
//! - **S1** The rows name the transfers that they hold: a mark of each stands beside the money. The balances
//!   that are read by a snapshot, at the end and after a restart are the sum of exactly these transfers.
//! - **S2** A transfer that was acknowledged as durable is there after a restart and in every snapshot that
//!   was made later; a refused transfer is nowhere; of one thread's other commits the last ones may be gone.
//! - **S3** A thread that is never woken is a deadlock, and a thread that spins runs out of steps: both fail.
//! - **S4** One number draws a whole schedule: the same number fails again.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flagstone::device::AnyNand;
use flagstone::{Database, Durability, Error, Options, ReadError, Table};
use flagstone_engine::{Runtime, SeededBug};
use flagstone_nand::{Crashable as _, Ending, FaultPlan, Nand as _, Profile, SimNand};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng as _, SeedableRng as _};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner, thread};

/// Schedules that one number draws; the scheduler by ranks uses the first of them to learn how many steps
/// there are.
pub(crate) const BATCH: u64 = 500;

/// Blocks of the chip.
const BLOCK_COUNT: u32 = 48;

/// Pages of the log.
const LOG_PAGES: u32 = 24;

/// Pages that fit the memory.
const MEMORY_PAGES: usize = 32;

/// Share of the memory for frames.
const FRAME_SHARE: f64 = 0.8;

/// Threads that make transfers.
const TELLERS: usize = 3;

/// Transfers of each.
const TRANSFERS: u8 = 3;

/// Accounts: few, so that transfers meet.
const ACCOUNTS: u64 = 4;

/// Balance of each account at first.
const OPENING_BALANCE: i64 = 100;

/// Rows between two accounts, so that they stand in leaves of their own.
const BETWEEN: u64 = 28;

/// Rows in all.
const ROWS: u64 = (ACCOUNTS + TELLERS as u64) * BETWEEN;

/// Bytes of such a row.
const ROW_SIZE: usize = 60;

/// Range of the device operation in which the power goes, if a schedule has that many.
const OPERATIONS: u64 = 100;

/// Steps after which threads are taken for spinning.
const STEPS_MAX: usize = 300_000;

/// Memory of a thread's stack.
const STACK_SIZE: usize = 256 << 10;

/// Places at which a scheduler that ranks threads changes the ranks.
const DEPTH: usize = 4;

/// Results of schedules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Schedules run.
    pub(crate) schedules: u64,
    /// Schedules in which the power went before the threads had ended.
    pub(crate) cuts: u64,
    /// Commits that were acknowledged.
    pub(crate) commits: u64,
    /// Transfers given up for a deadlock.
    pub(crate) deadlocks: u64,
    /// Snapshots read.
    pub(crate) snapshots: u64,
    /// Failures, each with the batch and the schedule that show it again.
    pub(crate) failures: Vec<String>,
}

impl Found {
    fn add(&mut self, other: Self) {
        self.schedules += other.schedules;
        self.cuts += other.cuts;
        self.commits += other.commits;
        self.deadlocks += other.deadlocks;
        self.snapshots += other.snapshots;
        self.failures.extend(other.failures);
    }
}

/// State of one teller's transfers: a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Said {
    /// Transfers whose commit was asked for, and was not refused.
    asked: u8,
    /// Transfers whose commit returned.
    committed: u8,
    /// Transfers whose commit is durable.
    durable: u8,
}

/// Content of all accounts and marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Books {
    balances: [i64; ACCOUNTS as usize],
    marks: [u8; TELLERS],
}

#[derive(Clone, Copy)]
struct Transfer {
    from: u64,
    to: u64,
    amount: i64,
    durability: Durability,
    locks_first: bool,
}

fn below(random: &mut Pcg64Mcg, bound: u64) -> u64 {
    random.next_u64() % bound
}

fn transfer_of(seed: u64, teller: usize, number: u8) -> Transfer {
    let stream = seed.wrapping_mul(1 << 8) + (teller as u64 * 16) + u64::from(number);
    let mut random = Pcg64Mcg::seed_from_u64(stream);
    let from = below(&mut random, ACCOUNTS);
    Transfer {
        from,
        to: (from + 1 + below(&mut random, ACCOUNTS - 1)) % ACCOUNTS,
        amount: 1 + below(&mut random, 50) as i64,
        durability: match below(&mut random, 5) {
            0 | 1 => Durability::Immediate,
            2 => Durability::Group,
            _ => Durability::Deferred,
        },
        locks_first: below(&mut random, 2) == 0,
    }
}

/// Key of an account, which stands among rows that are never changed; marks stand behind all of them.
fn account_key(account: u64) -> [u8; 4] {
    row_key(account * BETWEEN)
}

fn mark_key(teller: usize) -> [u8; 4] {
    row_key((ACCOUNTS + teller as u64) * BETWEEN)
}

fn row_key(row: u64) -> [u8; 4] {
    (row as u32).to_be_bytes()
}

/// A chip with the bank, in its state when the power goes.
#[derive(Clone, Debug)]
struct Bank {
    chip: SimNand,
    options: Options,
    bug: Option<SeededBug>,
}

/// State that the threads of one schedule share.
struct Shared<'a> {
    seed: u64,
    database: &'a Database,
    table: Table,
    said: Mutex<[Said; TELLERS]>,
    found: Mutex<Found>,
}

/// A failure, in words.
type Wrong = String;

fn latched<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Threads of a schedule take turns; no thread holds this mutex across a latch of the engine.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bank {
    fn founded() -> Result<Self, Wrong> {
        let text = |error: Error| error.to_string();
        let profile = Profile::named("tiny").and_then(|chip| chip.with_block_count(BLOCK_COUNT));
        let chip = SimNand::new(&profile.map_err(|error| error.to_string())?, 1);
        let memory = MEMORY_PAGES * chip.geometry().page_size as usize;
        let mut options = Options::default().with_seed(1).with_memory(memory);
        options = options.with_log_pages(LOG_PAGES);
        options = options.with_techniques(|techniques| techniques.frame_share = FRAME_SHARE);
        let database = Database::create_on(chip, &options);
        let database = database.map_err(|error| error.to_string())?;
        let table = database.table("bank").map_err(|error| text(error.into()))?;
        for row in 0..ROWS {
            let value = match row % BETWEEN {
                0 if row / BETWEEN < ACCOUNTS => OPENING_BALANCE.to_le_bytes().to_vec(),
                0 => vec![0],
                _ => vec![row as u8; ROW_SIZE],
            };
            let mut transaction = database.begin();
            let put = transaction.put(table, &row_key(row), &value);
            put.map_err(|error| format!("row {row}: {error}"))?;
            let committed = transaction.commit();
            committed.map_err(|error| format!("row {row}: {error}"))?;
        }
        database.flush().map_err(|error| text(error.into()))?;
        let chip = chip_of(&database)?;
        Ok(Self { chip, options, bug: None })
    }

    fn open(&self, chip: SimNand) -> Result<Database, Wrong> {
        let runtime = Runtime::open_planted(AnyNand::new(chip), &self.options, self.bug, None);
        Ok(Database::over(runtime.map_err(|error| format!("not opened: {error}"))?))
    }

    /// One schedule of the threads, as the scheduler draws it; their work is drawn from `seed`.
    fn schedule(&self, seed: u64) -> Result<Found, Wrong> {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let database = self.open(self.chip.clone())?;
        if below(&mut random, 2) == 0 {
            let ending = [Ending::Untouched, Ending::Complete][below(&mut random, 2) as usize];
            let mut space = database.runtime().space();
            let chip = space.device_mut().downcast_mut::<SimNand>();
            let chip = chip.ok_or("another device")?;
            let operation = chip.operation_count() + below(&mut random, OPERATIONS);
            chip.set_plan(FaultPlan::power_cut(seed, operation, ending));
        }
        let (said, mut found) = day(seed, &database)?;
        found.schedules = 1;
        found.cuts = u64::from(is_off(&database));
        let mut chip = chip_of(&database)?;
        drop(database);
        chip.power_cycle();
        chip.set_plan(FaultPlan::default());
        let database = self.open(chip).map_err(|wrong| format!("after a restart, {wrong}"))?;
        let table = table_of(&database)?;
        let transaction = database.begin();
        let books = books(|key| transaction.get(table, key))?;
        drop(transaction);
        settle(seed, &books, &said, |said| (said.durable, said.asked))
            .map_err(|wrong| format!("after a restart, {wrong}"))?;
        if said.iter().zip(books.marks).any(|(said, mark)| !is_first_part(said.committed, mark)) {
            return Err(format!("after a restart, {:?} of {said:?}", books.marks));
        }
        if seed.is_multiple_of(16) {
            check_all(&database, table)?;
        }
        Ok(found)
    }
}

/// Whether the surviving commits of one thread are the first ones of its sequence.
fn is_first_part(committed: u8, mark: u8) -> bool {
    let kept = u32::from(committed & mark);
    let all_before = (1 << (u32::BITS - kept.leading_zeros())) - 1;
    u32::from(committed) & all_before == kept
}

/// Runs the threads until all have ended, or the power is gone.
fn day(seed: u64, database: &Database) -> Result<([Said; TELLERS], Found), Wrong> {
    let table = table_of(database)?;
    let (said, found) = (Mutex::default(), Mutex::default());
    let shared = Shared { seed, database, table, said, found };
    thread::scope(|scope| {
        let shared = &shared;
        let mut threads: Vec<_> =
            (0..TELLERS).map(|teller| scope.spawn(move || shared.transfers(teller))).collect();
        threads.push(scope.spawn(move || shared.look()));
        threads.push(scope.spawn(move || shared.upkeep()));
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(ended) => ended,
            Err(_) => Err(String::from("a thread panicked")),
        });
        ended.collect::<Vec<_>>().into_iter().collect::<Result<(), Wrong>>()
    })?;
    let said = *latched(&shared.said);
    let transaction = database.begin();
    match books(|key| transaction.get(table, key)) {
        Ok(books) if !is_off(database) => {
            settle(seed, &books, &said, |said| (said.committed, said.committed))
                .map_err(|wrong| format!("at the end, {wrong}"))?;
        }
        Ok(books) => settle(seed, &books, &said, |said| (said.durable, said.asked))
            .map_err(|wrong| format!("without power, {wrong}"))?,
        Err(missed) if !is_off(database) => return Err(missed.into()),
        Err(_) => {}
    }
    let found = latched(&shared.found).clone();
    Ok((said, found))
}

fn chip_of(database: &Database) -> Result<SimNand, Wrong> {
    let space = database.runtime().space();
    let chip = space.device().downcast_ref::<SimNand>();
    chip.cloned().ok_or_else(|| String::from("another device"))
}

fn is_off(database: &Database) -> bool {
    let space = database.runtime().space();
    space.device().downcast_ref().is_some_and(SimNand::is_off)
}

fn table_of(database: &Database) -> Result<Table, Wrong> {
    let table = database.existing_table("bank").map_err(|error| error.to_string())?;
    table.ok_or_else(|| String::from("the table is gone"))
}

/// Why the books cannot be read.
#[derive(Debug)]
enum Missed {
    Refused(Error),
    Gone([u8; 4]),
}

impl From<Missed> for Wrong {
    fn from(missed: Missed) -> Self {
        match missed {
            Missed::Refused(error) => format!("not read: {error}"),
            Missed::Gone(key) => format!("row {key:?} is gone"),
        }
    }
}

/// Values of every account and mark, as `get` gives them.
fn books(get: impl Fn(&[u8]) -> Result<Option<Vec<u8>>, ReadError>) -> Result<Books, Missed> {
    let read = |key: [u8; 4]| {
        get(&key).map_err(|error| Missed::Refused(error.into()))?.ok_or(Missed::Gone(key))
    };
    let mut books = Books { balances: Default::default(), marks: Default::default() };
    for (account, balance) in (0..).zip(&mut books.balances) {
        *balance = amount(&read(account_key(account))?);
    }
    for (teller, mark) in books.marks.iter_mut().enumerate() {
        *mark = read(mark_key(teller))?.first().copied().unwrap_or_default();
    }
    Ok(books)
}

fn amount(value: &[u8]) -> i64 {
    value.first_chunk().map_or(i64::MIN, |bytes| i64::from_le_bytes(*bytes))
}

/// Whether the books are the sum of the transfers whose marks they have (S1), and these lie within the least
/// and most that `bounds` gives.
fn settle(
    seed: u64,
    books: &Books,
    said: &[Said; TELLERS],
    bounds: impl Fn(&Said) -> (u8, u8),
) -> Result<(), Wrong> {
    let mut balances = [OPENING_BALANCE; ACCOUNTS as usize];
    for (teller, mark) in books.marks.iter().enumerate() {
        let (least, most) = bounds(&said[teller]);
        if least & !mark != 0 || mark & !most != 0 {
            return Err(format!("transfers {mark:b} of teller {teller}: {:?}", said[teller]));
        }
        for number in (0..TRANSFERS).filter(|number| mark & 1 << number != 0) {
            let Transfer { from, to, amount, .. } = transfer_of(seed, teller, number);
            balances[from as usize] -= amount;
            balances[to as usize] += amount;
        }
    }
    if balances != books.balances {
        return Err(format!("balances {:?} instead of {balances:?}: {books:?}", books.balances));
    }
    Ok(())
}

/// Checks every row that no transfer changes, and the structure.
fn check_all(database: &Database, table: Table) -> Result<(), Wrong> {
    let transaction = database.begin();
    let mut count = 0;
    for row in transaction.range(table, ..) {
        let (key, value) = row.map_err(|error| error.to_string())?;
        let number = key.first_chunk().map_or(u32::MAX, |bytes| u32::from_be_bytes(*bytes));
        if u64::from(number) % BETWEEN != 0 && value != [number as u8; ROW_SIZE] {
            return Err(format!("row {number} has changed"));
        }
        count += 1;
    }
    drop(transaction);
    let report = database.check().map_err(|error| error.to_string())?;
    match report.is_sound() && count == ROWS {
        true => Ok(()),
        false => Err(format!("{count} rows, {:?}", report.faults)),
    }
}

impl Shared<'_> {
    /// An error is allowed while the power is gone.
    fn excused<E: std::fmt::Display>(&self, result: Result<(), E>) -> Result<(), Wrong> {
        match result {
            Err(error) if !is_off(self.database) => Err(format!("refused: {error}")),
            _ => Ok(()),
        }
    }

    fn transfers(&self, teller: usize) -> Result<(), Wrong> {
        for number in 0..TRANSFERS {
            let transfer = transfer_of(self.seed, teller, number);
            let result = self.transfer(teller, number, transfer);
            if let Err(Error::Deadlock) = result {
                latched(&self.said)[teller].asked &= !(1 << number);
                latched(&self.found).deadlocks += 1;
                continue;
            }
            let is_over = result.is_err();
            self.excused(result)?;
            if is_over {
                break;
            }
            latched(&self.found).commits += 1;
            let said = &mut latched(&self.said)[teller];
            said.committed |= 1 << number;
            if transfer.durability != Durability::Deferred {
                said.durable |= said.committed;
            }
        }
        Ok(())
    }

    fn transfer(&self, teller: usize, number: u8, transfer: Transfer) -> Result<(), Error> {
        let mut transaction = self.database.begin();
        let Transfer { from, to, amount: sum, durability, locks_first } = transfer;
        for (account, change) in [(from, -sum), (to, sum)] {
            let key = account_key(account);
            if locks_first {
                transaction.lock_key(self.table, &key)?;
            }
            let before =
                transaction.get(self.table, &key)?.map_or(i64::MIN, |value| amount(&value));
            transaction.put(self.table, &key, &before.wrapping_add(change).to_le_bytes())?;
        }
        let key = mark_key(teller);
        let mark = transaction.get(self.table, &key)?.and_then(|value| value.first().copied());
        transaction.put(self.table, &key, &[mark.unwrap_or_default() | 1 << number])?;
        latched(&self.said)[teller].asked |= 1 << number;
        Ok(transaction.commit_with(durability).map(drop)?)
    }

    /// Two snapshots, the second no older than the first, and a transaction that only reads.
    fn look(&self) -> Result<(), Wrong> {
        let mut seen = [0; TELLERS];
        for _ in 0..2 {
            let before = *latched(&self.said);
            let snapshot = match self.database.snapshot() {
                Ok(snapshot) => snapshot,
                Err(error) => return self.excused(Err(error)),
            };
            let books = match books(|key| snapshot.get(self.table, key)) {
                Ok(books) => books,
                // The device may need the room of the versions that a snapshot keeps.
                Err(Missed::Refused(Error::SnapshotTooOld)) => continue,
                Err(_) if is_off(self.database) => return Ok(()),
                Err(missed) => return Err(Wrong::from(missed) + ", by a snapshot"),
            };
            self.must_show(&books, before).map_err(|wrong| format!("in a snapshot, {wrong}"))?;
            if seen.iter().zip(books.marks).any(|(seen, mark)| seen & !mark != 0) {
                return Err(format!("snapshots go back from {seen:?} to {:?}", books.marks));
            }
            seen = books.marks;
            latched(&self.found).snapshots += 1;
        }
        self.look_and_commit()
    }

    /// A transaction has read right balances, even where the device fails meanwhile, and durable ones once
    /// its commit returns.
    fn look_and_commit(&self) -> Result<(), Wrong> {
        let before = *latched(&self.said);
        let transaction = self.database.begin();
        let books = match books(|key| transaction.get(self.table, key)) {
            Ok(books) => books,
            Err(Missed::Refused(Error::Deadlock)) => return Ok(()),
            Err(_) if is_off(self.database) => return Ok(()),
            Err(missed) => return Err(missed.into()),
        };
        self.must_show(&books, before).map_err(|wrong| format!("read, {wrong}"))?;
        match transaction.commit() {
            Ok(_) => {
                for (said, mark) in latched(&self.said).iter_mut().zip(books.marks) {
                    said.durable |= mark;
                }
                Ok(())
            }
            Err(error) => self.excused(Err(error)),
        }
    }

    /// Whether the rows have all transfers that were durable `before`, and none that was not asked for.
    fn must_show(&self, books: &Books, before: [Said; TELLERS]) -> Result<(), Wrong> {
        let mut said = *latched(&self.said);
        for (said, before) in said.iter_mut().zip(before) {
            said.durable = before.durable;
        }
        settle(self.seed, books, &said, |said| (said.durable, said.asked))
    }

    /// A checkpoint, or a flush, after which all earlier commits are durable.
    fn upkeep(&self) -> Result<(), Wrong> {
        if self.seed.is_multiple_of(3) {
            return self.excused(self.database.runtime().checkpoint_now());
        }
        let before = *latched(&self.said);
        let flushed = self.database.flush();
        if flushed.is_ok() {
            for (said, before) in latched(&self.said).iter_mut().zip(before) {
                said.durable |= before.committed;
            }
        }
        self.excused(flushed)
    }
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = STACK_SIZE;
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.silence_warnings = true;
    config
}

/// Calls `run` once, as the only thread of a schedule.
fn alone<T: Send + 'static>(run: impl Fn() -> T + Send + Sync + 'static) -> Option<T> {
    let answer = Arc::new(Mutex::new(None));
    let inner = Arc::clone(&answer);
    let runner = Runner::new(RandomScheduler::new_from_seed(0, 1), config());
    runner.run(move || *latched(&inner) = Some(run()));
    latched(&answer).take()
}

/// The schedules of one batch: in batches of even numbers each step is drawn with equal chances, in the
/// others by ranks of the threads. In two of four batches every wait may run out.
fn batch(bank: &Bank, number: u64) -> Found {
    flagstone_engine::let_long_waits_end(number / 2 % 2 == 1);
    let total = Arc::new(Mutex::new(Found::default()));
    let begun = Arc::new(AtomicU64::new(0));
    let run = {
        let (total, begun, bank) = (Arc::clone(&total), Arc::clone(&begun), bank.clone());
        move || {
            let seed = number * BATCH + begun.fetch_add(1, Ordering::Relaxed);
            let found = bank.schedule(seed).unwrap_or_else(|wrong| Found {
                schedules: 1,
                failures: vec![format!("batch {number}, schedule {seed}: {wrong}")],
                ..Found::default()
            });
            latched(&total).add(found);
        }
    };
    let count = BATCH as usize;
    let ended = catch_unwind(AssertUnwindSafe(|| match number % 2 {
        0 => Runner::new(RandomScheduler::new_from_seed(number, count), config()).run(run),
        _ => Runner::new(PctScheduler::new_from_seed(number, DEPTH, count), config()).run(run),
    }));
    let mut total = latched(&total).clone();
    if let Err(panic) = ended {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let seed = number * BATCH + begun.load(Ordering::Relaxed).saturating_sub(1);
        let text = text.unwrap_or_default();
        total.schedules += 1;
        total.failures.push(format!("batch {number}, schedule {seed}: {text}"));
    }
    total
}

/// Runs batches on `threads` threads of the machine, until one fails.
///
/// # Errors
///
/// When the bank cannot be made.
pub(crate) fn run(
    batches: Range<u64>,
    threads: usize,
    bug: Option<SeededBug>,
) -> Result<Found, Wrong> {
    let bank = alone(Bank::founded).ok_or_else(|| String::from("no bank"))??;
    let bank = Bank { bug, ..bank };
    let (next, total) = (AtomicU64::new(batches.start), Mutex::new(Found::default()));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= batches.end || !latched(&total).failures.is_empty() {
                break;
            }
            let found = batch(&bank, number);
            latched(&total).add(found);
        }
    };
    std::thread::scope(|scope| (0..threads.max(1)).for_each(|_| drop(scope.spawn(work))));
    Ok(latched(&total).clone())
}

/// The line of `found` that row E3 reads.
pub(crate) fn line(found: &Found, seconds: f64) -> String {
    let Found { schedules, cuts, commits, deadlocks, snapshots, failures } = found;
    format!(
        "{schedules} schedules in {seconds:.0} s, {} failures; {commits} commits, {deadlocks} deadlocks \
         given up, {snapshots} snapshots, {cuts} power cuts",
        failures.len()
    )
}
