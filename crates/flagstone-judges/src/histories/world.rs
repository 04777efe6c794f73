//! Shared state of a session's threads, and views of the whole database.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flagstone::{
    Database, Error, Index, IndexedTable, MultiTable, OpenError, Options, Snapshot, Table,
    TableError, verify_backup,
};
use flagstone_nand::{Profile, SimNand};

use super::draw::{Draw, mixed};
use super::medium::Medium;
use super::program::Program;
use super::record::{Area, Finding, Key, Look, Op, Version};
use super::value::Value;

/// A row of [`Area::Members`]: version, group, filler.
pub(crate) type Member = (u64, u64, Vec<u8>);

/// Groups of members.
pub(crate) const GROUPS: u64 = 9;

/// Finds members by their group.
pub(crate) const GROUP: Index<u32, Member, u64> = Index::new("group", |_, member| vec![member.1]);

/// Tables that one thread may have in [`Area::Churn`].
pub(crate) const CHURN_TABLES: u32 = 3;

/// Why an operation of a history stops.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The transaction, or the look, is given up; the session goes on.
    Retry,
    /// The device is gone, or does not work: the session ends.
    Over(Error),
    /// A broken promise.
    Found(Finding),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        match error {
            Error::Deadlock
            | Error::LockTimeout
            | Error::Full
            | Error::TooLarge
            | Error::TooManySnapshots
            | Error::SnapshotTooOld => Self::Retry,
            error @ (Error::Poisoned
            | Error::OutcomeUnknown
            | Error::Device(_)
            | Error::Storage(_)) => Self::Over(error),
            error => Self::Found(Finding::new("refused", format!("an operation failed: {error}"))),
        }
    }
}

macro_rules! stop_of {
    ($($error:ident)*) => {$(
        impl From<flagstone::$error> for Stop {
            fn from(error: flagstone::$error) -> Self {
                Error::from(error).into()
            }
        }
    )*};
}

stop_of! { ReadError WriteError CommitError TableError SnapshotError }

impl Stop {
    /// The finding where no stop is allowed: on a working device, without other threads.
    pub(crate) fn finding(self, form: &str) -> Finding {
        match self {
            Self::Retry => Finding::new(form, "an operation was refused"),
            Self::Over(error) => Finding::new(form, format!("an operation failed: {error}")),
            Self::Found(found) => found,
        }
    }
}

impl From<Finding> for Stop {
    fn from(finding: Finding) -> Self {
        Self::Found(finding)
    }
}

/// The tables of a history.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    pub(crate) plain: [Table; 4],
    pub(crate) members: IndexedTable<u32, Member>,
    pub(crate) tags: MultiTable<u32, u64>,
}

impl Tables {
    /// Opens the tables, and makes the missing ones.
    ///
    /// # Errors
    /// As [`Database::indexed`].
    pub(crate) fn open(db: &Database) -> Result<Self, TableError> {
        let plain = [
            db.table(Area::Lists.name())?,
            db.table(Area::Registers.name())?,
            db.table(Area::Bank.name())?,
            db.table(Area::Counters.name())?,
        ];
        let members = db.indexed(Area::Members.name(), &[&GROUP])?;
        Ok(Self { plain, members, tags: db.multi(Area::Tags.name())? })
    }

    /// Table of an area that holds [`Value`]s.
    pub(crate) fn of(&self, area: Area) -> Table {
        self.plain[(area as usize).min(3)]
    }
}

/// Pause of a thread before it looks again whether all others have stopped.
const PAUSE: Duration = Duration::from_micros(100);

/// Pauses after which a thread no longer waits for the others to stop.
const HUSH_PAUSES_MAX: u32 = 2_000;

/// Shared state of a session's threads.
pub(crate) struct World<'a> {
    pub(crate) db: Database,
    pub(crate) tables: Tables,
    pub(crate) program: &'a Program,
    pub(crate) session: u64,
    pub(crate) medium: Option<&'a dyn Medium>,
    pub(crate) deadline: Instant,
    /// The process ends itself where the power would go.
    pub(crate) may_abort: bool,
    /// The power goes during the session: operations may fail from then on.
    pub(crate) loses_power: bool,
    clock: AtomicU64,
    is_over: AtomicBool,
    falls: AtomicBool,
    /// Threads in a step, and the number of them that want all others to stop for a moment.
    busy: AtomicU64,
    hushing: AtomicU64,
    /// Stamp and device of the cut that ended the session while threads were at work.
    last_cut: Mutex<Option<(u64, Box<dyn Medium>)>>,
}

impl<'a> World<'a> {
    pub(crate) fn new(
        db: Database,
        tables: Tables,
        program: &'a Program,
        session: u64,
        medium: Option<&'a dyn Medium>,
    ) -> Self {
        Self {
            db,
            tables,
            program,
            session,
            medium,
            deadline: Instant::now() + program.session_time,
            may_abort: false,
            loses_power: false,
            clock: AtomicU64::new(1),
            is_over: AtomicBool::new(false),
            falls: AtomicBool::new(false),
            busy: AtomicU64::new(0),
            hushing: AtomicU64::new(0),
            last_cut: Mutex::new(None),
        }
    }

    /// Ends the session with a cut at this moment, unless somebody did before.
    pub(crate) fn cut(&self, draw: &mut Draw) {
        if let (Some(medium), Ok(mut last_cut)) = (self.medium, self.last_cut.lock())
            && last_cut.is_none()
        {
            *last_cut = Some((self.stamp(), medium.cut(draw)));
        }
        self.finish();
    }

    /// Does `step`; waits first while another thread wants all others to stop.
    pub(crate) fn step<T>(&self, step: impl FnOnce() -> T) -> T {
        while self.hushing.load(Ordering::SeqCst) > 0 && !self.is_over() {
            thread::sleep(PAUSE);
        }
        self.busy.fetch_add(1, Ordering::SeqCst);
        let done = step();
        self.busy.fetch_sub(1, Ordering::SeqCst);
        done
    }

    /// Does `moment` when all other threads are between steps, or after a while: their unfinished work stays so
    /// meanwhile.
    pub(crate) fn hush<T>(&self, moment: impl FnOnce() -> T) -> T {
        self.hushing.fetch_add(1, Ordering::SeqCst);
        for _ in 0..HUSH_PAUSES_MAX {
            if self.busy.load(Ordering::SeqCst) <= self.hushing.load(Ordering::SeqCst) {
                break;
            }
            thread::sleep(PAUSE);
        }
        let done = moment();
        self.hushing.fetch_sub(1, Ordering::SeqCst);
        done
    }

    /// Lets the power go within the next operations.
    pub(crate) fn cut_soon(&self, draw: &mut Draw) {
        if let Some(medium) = self.medium {
            self.falls.store(true, Ordering::SeqCst);
            medium.cut_soon(draw);
        }
    }

    /// Whether the power may be gone. Commits that were not durable are gone with it, and later readers may miss
    /// them.
    pub(crate) fn may_have_fallen(&self) -> bool {
        self.falls.load(Ordering::SeqCst)
    }

    /// The cut that the session ended with.
    pub(crate) fn take_cut(&self) -> Option<(u64, Box<dyn Medium>)> {
        self.last_cut.lock().ok()?.take()
    }

    /// The next stamp.
    pub(crate) fn stamp(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    pub(crate) fn finish(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// Name of a table of a thread in [`Area::Churn`].
pub(crate) fn churn_name(thread: u64, number: u32) -> String {
    format!("churn-{thread}-{number}")
}

/// Tables of one thread in [`Area::Churn`]: by number, then by row.
pub(crate) type Churn = BTreeMap<u32, BTreeMap<u32, Version>>;

/// The hash by which the tables of a thread are recognised.
pub(crate) fn churn_hash(churn: &Churn) -> u64 {
    let mut hash = 1;
    for (number, rows) in churn {
        hash = mixed(hash ^ u64::from(*number) << 40);
        for (row, version) in rows {
            hash = mixed(hash ^ u64::from(*row));
            hash = mixed(hash ^ version.0);
        }
    }
    hash
}

/// The value of a row, every byte of it checked.
///
/// # Errors
/// Bytes that nobody wrote.
pub(crate) fn decoded(key: Key, bytes: &[u8]) -> Result<Value, Finding> {
    Value::decode(bytes).ok_or_else(|| {
        let head: Vec<u8> = bytes.iter().take(48).copied().collect();
        Finding::new(
            "bytes",
            format!("{key} has bytes that nobody wrote: {head:02x?}, {} in all", bytes.len()),
        )
    })
}

/// The filler of a member.
pub(crate) fn member_filler(version: Version, size: u32) -> Vec<u8> {
    (0..size).map(|index| mixed(version.0 ^ u64::from(index)) as u8).collect()
}

/// A row of four bytes.
pub(crate) fn row_of(key: &[u8]) -> Result<u32, Finding> {
    let row = key.try_into().map(u32::from_be_bytes);
    row.map_err(|_| Finding::new("bytes", format!("a key that nobody wrote: {key:02x?}")))
}

/// Reads with a snapshot, and notes down what it saw.
pub(crate) struct Looker<'a> {
    snapshot: &'a Snapshot,
    pub(crate) ops: Vec<Op>,
}

impl<'a> Looker<'a> {
    pub(crate) fn new(snapshot: &'a Snapshot) -> Self {
        Self { snapshot, ops: Vec::new() }
    }

    /// Reads one row of a table.
    ///
    /// # Errors
    /// Errors of reading, and findings.
    pub(crate) fn row(&mut self, tables: &Tables, key: Key) -> Result<Option<Value>, Stop> {
        let found = self.snapshot.get(tables.of(key.area), &key.row.to_be_bytes())?;
        let value = found.map(|bytes| decoded(key, &bytes)).transpose()?;
        note_read(&mut self.ops, key, value.as_ref());
        Ok(value)
    }

    /// Reads rows of a table, from `first` to `last`; gives the sum of their numbers.
    ///
    /// # Errors
    /// As [`Looker::row`].
    pub(crate) fn rows(&mut self, table: Table, first: Key, last: Key) -> Result<i64, Stop> {
        let (start, end) = (first.row.to_be_bytes(), last.row.to_be_bytes());
        let (mut rows, mut sum, mut broken) = (Vec::new(), 0_i64, None);
        for row in self.snapshot.range(table, &start[..]..=&end[..]) {
            let (key, bytes) = row?;
            let key = Key::new(first.area, row_of(&key)?);
            let value = match decoded(key, &bytes) {
                Ok(value) => value,
                Err(found) => {
                    // The version it names is noted all the same: other readers may lack more than this row does.
                    rows.extend(
                        Value::version_of(&bytes).map(|version| (key, Look::Version(version))),
                    );
                    broken.get_or_insert(found);
                    continue;
                }
            };
            sum = sum.wrapping_add(value.number);
            rows.push((key, Look::Version(value.version)));
            if key.area == Area::Lists {
                self.ops.push(Op::List(key, value.to_list()));
            }
        }
        self.ops.push(Op::Scan { first, last, rows });
        broken.map_or(Ok(sum), |found| Err(found.into()))
    }

    /// Reads all accounts, whose sum has to be 0.
    ///
    /// # Errors
    /// As [`Looker::row`]; another sum.
    pub(crate) fn bank(&mut self, bank: Table, who: &str) -> Result<(), Stop> {
        let (first, last) = (Key::new(Area::Bank, 0), Key::new(Area::Bank, u32::MAX));
        let sum = self.rows(bank, first, last)?;
        if sum == 0 {
            return Ok(());
        }
        Err(Finding::new(
            &format!("{who}: sum"),
            format!("the accounts of a {who} add up to {sum}"),
        )
        .into())
    }

    fn members(&mut self, members: &IndexedTable<u32, Member>) -> Result<(), Stop> {
        let area = Area::Members;
        let (mut rows, mut by_group) = (Vec::new(), Vec::new());
        for row in members.range(self.snapshot, ..) {
            let (row, (version, group, filler)) = row?;
            let version = Version(version);
            if filler != member_filler(version, filler.len() as u32) {
                let text = format!("member {row} has bytes that nobody wrote");
                return Err(Finding::new("bytes", text).into());
            }
            rows.push((Key::new(area, row), Look::Version(version)));
            by_group.push((group, row));
        }
        by_group.sort_unstable();
        let mut found = Vec::new();
        for group in 0..GROUPS {
            for row in members.find_keys(self.snapshot, &GROUP, &group)? {
                found.push((group, row?));
            }
        }
        if found != by_group {
            let text = format!("an index finds {} members of {}", found.len(), by_group.len());
            return Err(Finding::new("index", text).into());
        }
        self.ops.push(Op::Scan { first: Key::new(area, 0), last: Key::new(area, u32::MAX), rows });
        Ok(())
    }

    /// Reads all values of one row, or of all, of [`Area::Tags`].
    ///
    /// # Errors
    /// As [`Looker::row`].
    pub(crate) fn tags(
        &mut self,
        tags: MultiTable<u32, u64>,
        row: Option<u32>,
    ) -> Result<(), Stop> {
        let key = |row, value| Key { area: Area::Tags, row, value };
        let looked = |row, value| (key(row, value), Look::Version(Version(value)));
        let mut rows = Vec::new();
        match row {
            Some(row) => {
                for value in tags.values(self.snapshot, &row) {
                    rows.push(looked(row, value?));
                }
            }
            None => {
                for pair in tags.pairs(self.snapshot) {
                    let (row, value) = pair?;
                    rows.push(looked(row, value));
                }
            }
        }
        let first = key(row.unwrap_or(0), 0);
        let last = key(row.unwrap_or(u32::MAX), u64::MAX);
        self.ops.push(Op::Scan { first, last, rows });
        Ok(())
    }

    fn churn(&mut self, thread: u64) -> Result<Churn, Stop> {
        let mut churn = Churn::new();
        for number in 0..CHURN_TABLES {
            let Some(table) = self.snapshot.table(&churn_name(thread, number))? else { continue };
            let rows = churn.entry(number).or_default();
            for row in self.snapshot.range(table, ..) {
                let (key, bytes) = row?;
                let row = row_of(&key)?;
                let value = decoded(Key::new(Area::Churn, row), &bytes)?;
                rows.insert(row, value.version);
            }
        }
        let key = Key::new(Area::Churn, thread as u32);
        self.ops.push(Op::Read(key, Look::Content(churn_hash(&churn))));
        Ok(churn)
    }

    /// Reads everything that a history writes; gives what each thread has in [`Area::Churn`].
    ///
    /// # Errors
    /// As [`Looker::row`].
    pub(crate) fn everything(&mut self, who: &str, threads: u64) -> Result<Vec<Churn>, Stop> {
        for area in [Area::Lists, Area::Registers, Area::Counters] {
            if let Some(table) = self.snapshot.table(area.name())? {
                self.rows(table, Key::new(area, 0), Key::new(area, u32::MAX))?;
            }
        }
        if let Some(tags) = self.snapshot.table(Area::Tags.name())? {
            self.tags(MultiTable::over(tags), None)?;
        }
        let churn = (0..threads).map(|thread| self.churn(thread)).collect::<Result<_, _>>()?;
        if let Some(bank) = self.snapshot.table(Area::Bank.name())? {
            // A wrong sum is reported only at the end of the look: the rows seen explain it.
            self.bank(bank, who)?;
        }
        Ok(churn)
    }

    /// Reads members by their rows and by their index, which have to agree.
    ///
    /// # Errors
    /// As [`Looker::row`].
    pub(crate) fn everybody(&mut self, tables: &Tables) -> Result<(), Stop> {
        self.members(&tables.members)
    }
}

/// Notes that a row was read.
pub(crate) fn note_read(ops: &mut Vec<Op>, key: Key, value: Option<&Value>) {
    let look = value.map_or(Look::Absent, |value| Look::Version(value.version));
    ops.push(Op::Read(key, look));
    if let Some(value) = value
        && key.area == Area::Lists
    {
        ops.push(Op::List(key, value.to_list()));
    }
}

/// Contents of a whole database, and findings.
pub(crate) struct Whole {
    pub(crate) ops: Vec<Op>,
    pub(crate) churn: Vec<Churn>,
    pub(crate) found: Option<Finding>,
}

/// Reads all that a snapshot shows.
///
/// # Errors
/// Errors of reading.
pub(crate) fn seen(
    snapshot: &Snapshot,
    tables: &Tables,
    who: &str,
    threads: u64,
) -> Result<Whole, Stop> {
    let mut looker = Looker::new(snapshot);
    let seen = looker.everybody(tables).and_then(|()| looker.everything(who, threads));
    match seen {
        Ok(churn) => Ok(Whole { ops: looker.ops, churn, found: None }),
        Err(Stop::Found(mut found)) => {
            if !found.form.starts_with(who) {
                found.form = format!("{who}: {}", found.form);
            }
            Ok(Whole { ops: looker.ops, churn: Vec::new(), found: Some(found) })
        }
        Err(stop) => Err(stop),
    }
}

/// Reads a whole database.
///
/// # Errors
/// Errors of reading.
pub(crate) fn whole(db: &Database, who: &str, threads: u64) -> Result<Whole, Stop> {
    seen(&db.snapshot()?, &Tables::open(db)?, who, threads)
}

/// Reads the whole of a copy that a backup makes; tells the stamp of its end.
///
/// # Errors
/// Errors of reading; a backup that does not verify, or does not restore.
pub(crate) fn copied(world: &World<'_>) -> Result<(Whole, u64), Stop> {
    let refused = |text: String| Stop::Found(Finding::new("backup: refused", text));
    let mut backup = Vec::new();
    match world.db.backup_to(&mut backup) {
        Ok(_) => {}
        Err(flagstone::BackupError::Database(error)) => return Err(error.into()),
        Err(error) => return Err(refused(format!("a backup failed: {error}"))),
    }
    let taken = world.stamp();
    verify_backup(&backup[..])
        .map_err(|error| refused(format!("a backup does not verify: {error}")))?;
    let copy = empty().map_err(|error| refused(format!("no place for a copy: {error}")))?;
    copy.restore_from(&backup[..])
        .map_err(|error| refused(format!("a backup is not restored: {error}")))?;
    let copy = whole(&copy, "backup", world.program.threads);
    Ok((copy.map_err(|stop| stop.finding("backup: refused"))?, taken))
}

fn empty() -> anyhow::Result<Database> {
    let profile = Profile::named("slc-4k")?.with_block_count(400)?;
    let chip = SimNand::new(&profile, 1);
    Ok(Database::create_on(chip, &Options::default())?)
}

/// The finding of an opening that fails.
pub(crate) fn refused(error: &OpenError) -> Finding {
    Finding::new("restart: refused", format!("a database is not opened: {error}"))
}
