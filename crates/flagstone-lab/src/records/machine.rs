//! The engine on a store of shared pages: reads, commits, page writes, checkpoints, and operations
//! run to their end.
//!
//! Owns the two latches (store before engine, never held across a call from outside), and the order
//! of a commit: its versions complete, its record durable, then its flags.

use flagstone::{
    EngineError, EngineStats, Fetch, Fetched, OpenError, OptionsError, RecoveryReport, Step, Stop,
    Wait, Xid,
};
use flagstone_nand::Nand;
#[cfg(feature = "seeded-bugs")]
use flagstone_space::shadow::records::RecordBug;
use flagstone_space::shadow::records::{Batch, RecordOptions, RecordStats, RecordStore};
use flagstone_space::shadow::{Lack, Restart, ShadowError};
use flagstone_space::{
    Cause, GroupId, LogicalPage, Lsn, PageInfo, RegionId, SpaceError, SpaceStats, Version,
};
use parking_lot::{Mutex, MutexGuard};

use super::Config;
use super::engine::{CommitJob, Committed, Engine, Shape};
use super::frames::FRAMES_MIN;
use super::page;
use super::resolve::{self, Wanted};
use super::restart::{self, LSN_SHIFT};

/// Tag of cold pages.
const COLD_TAG: u64 = 0xC01D;

/// Pieces of background work that a commit does on behalf of all, at most.
const WORK_AFTER_COMMIT: u32 = 4;

/// The same where the log is longer than it may be: a checkpoint writes every noted page.
const WORK_FOR_LOG: u32 = 64;

/// Fruitless rounds after which a wait is given up.
const IDLE_COUNT_MAX: u32 = 1_000;

/// An engine of shared pages on a device.
#[derive(Debug)]
pub struct Machine<D: Nand> {
    engine: Mutex<Engine>,
    store: Mutex<RecordStore<D>>,
    recovery: RecoveryReport,
}

/// Commits whose records and flags are issued.
#[derive(Debug)]
pub struct Flush(Committed);

/// Background work whose programs are issued.
#[derive(Debug)]
pub enum Work {
    /// A version of a page.
    Written(LogicalPage),
    /// Something that is done.
    Nothing,
}

impl<D: Nand> Machine<D> {
    /// Formats `device` and makes an empty database on it.
    ///
    /// # Errors
    ///
    /// The device cannot carry the protocol, or failed.
    pub fn create(device: D, config: &Config) -> Result<Self, OpenError> {
        let options = record_options(&device, config);
        let store = RecordStore::format(device, options);
        let store = store.map_err(|error| of_open(config, error))?;
        Ok(Self::around(store, config, RecoveryReport::default()))
    }

    /// Opens the database on `device`.
    ///
    /// # Errors
    ///
    /// No database, one of another protocol, or a damaged one.
    pub fn open(device: D, config: &Config) -> Result<Self, OpenError> {
        Self::open_by(device, config, Restart::Summaries)
    }

    /// As [`Machine::open`], with pages found as `how` says.
    ///
    /// # Errors
    ///
    /// As [`Machine::open`].
    pub fn open_by(device: D, config: &Config, how: Restart) -> Result<Self, OpenError> {
        let options = record_options(&device, config);
        Self::restarted(RecordStore::mount(device, options, how), config)
    }

    /// As [`Machine::open_by`], with a bug planted that the crash exploration must find.
    #[cfg(feature = "seeded-bugs")]
    pub(crate) fn open_planted(
        device: D,
        config: &Config,
        how: Restart,
        bug: RecordBug,
    ) -> Result<Self, OpenError> {
        let options = record_options(&device, config);
        Self::restarted(RecordStore::mount_planted(device, options, how, bug), config)
    }

    fn restarted(
        mounted: Result<(RecordStore<D>, Vec<Batch>), ShadowError>,
        config: &Config,
    ) -> Result<Self, OpenError> {
        let (store, batches) = mounted.map_err(|error| of_open(config, error))?;
        let (store, recovery) = restart::restart(store, &batches)?;
        let machine = Self::around(store, config, recovery);
        machine.run(Engine::load_trees)?;
        Ok(machine)
    }

    fn around(store: RecordStore<D>, config: &Config, recovery: RecoveryReport) -> Self {
        let block_pages = store.device().geometry().pages_per_block;
        let log_blocks_max = match config.options.log_pages {
            0 => store.log_budget(),
            pages => pages.div_ceil(block_pages).max(2),
        };
        let shape = Shape {
            content_size: store.image_size(),
            members_max: store.members_max(),
            first_xid: store.first_xid(),
            lsn: Lsn(store.epoch() << LSN_SHIFT),
            mapped: store.mapped_pages().collect(),
            end: store.page_count(),
            log_blocks_max,
        };
        let mut engine = Engine::new(config.clone(), &shape);
        engine.checkpoint.batch = store.next_batch();
        Self { engine: Mutex::new(engine), store: Mutex::new(store), recovery }
    }

    /// The engine. Do not hold it across calls of the machine.
    pub fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock()
    }

    /// The store with its device. Do not hold it across calls of the machine.
    pub fn store(&self) -> MutexGuard<'_, RecordStore<D>> {
        self.store.lock()
    }

    /// What restart read and found.
    #[must_use]
    pub fn recovery(&self) -> RecoveryReport {
        self.recovery
    }

    /// Fills the page numbers behind the last one in use, but for `spare_count`, with cold pages.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub fn prefill(&self, spare_count: u32) -> Result<(), EngineError> {
        let mut store = self.store();
        let end = store.page_count();
        let first = self.engine().give_up_pages(spare_count);
        store.prefill(first..end, COLD_TAG).map_err(of_engine)
    }

    /// What the engine counted.
    pub fn stats(&self) -> EngineStats {
        let mapping = self.store().stats().tables_size;
        self.engine().stats(mapping)
    }

    /// What the store counted, in the form of the space floor.
    pub fn space_stats(&self) -> SpaceStats {
        let store = self.store();
        space_stats(&store.stats(), store.page_count())
    }

    /// Gives the device back as it is.
    #[must_use]
    pub fn into_device(self) -> D {
        self.store.into_inner().into_device()
    }

    /// Reads a page that an operation missed: with the records of running transactions, or, where it
    /// is in memory already, as it was committed.
    ///
    /// # Errors
    ///
    /// Those of the store; the engine has been told that nothing comes.
    pub fn read(&self, fetch: Fetch) -> Result<Fetched, EngineError> {
        let Fetch::Page(page, _) = fetch else { return Ok(Fetched { fetch, found: None }) };
        let mut store = self.store();
        self.forget_aborted(&mut store);
        let is_there = self.engine().wants_committed(page);
        let wanted = if is_there { Wanted::Committed } else { Wanted::Running };
        let resolved = match resolve::resolved(&mut store, page, wanted) {
            Ok(resolved) => resolved,
            Err(error) => {
                self.engine().fetch_failed(fetch);
                return Err(error);
            }
        };
        let Some(resolved) = resolved else { return Ok(Fetched { fetch, found: None }) };
        self.engine().merged(resolved.version_count);
        let bytes = match wanted {
            Wanted::Committed => Some(resolved.node),
            Wanted::Running => page::content(&resolved.node, &resolved.running, store.image_size()),
        };
        let check = "its pending records need more room than there is";
        let bytes = bytes.ok_or(EngineError::Corrupt { page, check })?;
        Ok(Fetched { fetch, found: Some((info(resolved.lsn), bytes)) })
    }

    /// Forces the log for the commits that wait, and commits; none when nobody waits.
    ///
    /// # Errors
    ///
    /// `Full`: the transactions are aborted. Otherwise the device failed: the engine is poisoned.
    pub fn flush_begin(&self) -> Result<Option<Flush>, EngineError> {
        let mut store = self.store();
        self.forget_aborted(&mut store);
        let Some(job) = self.engine().commit_begin() else { return Ok(None) };
        match force(&mut store, &job) {
            Ok(batch) => {
                let mut engine = self.engine();
                engine.log_blocks = store.log_blocks();
                let durable = match &job.records {
                    Some(records) => records.last,
                    None => engine.durable,
                };
                if batch.is_some() {
                    engine.unflagged.extend(&job.by_record);
                }
                engine.counts.by_flags += job.by_flags.len() as u64;
                let xids = job.by_record.into_iter().chain(job.by_flags).collect();
                Ok(Some(Flush(Committed { xids, durable })))
            }
            Err(ShadowError::Full) => {
                self.engine().commit_failed(job);
                self.forget_aborted(&mut store);
                Err(EngineError::Full)
            }
            Err(error) => self.poison_for(error),
        }
    }

    /// Commits are durable.
    pub fn flush_end(&self, flush: Flush) {
        self.engine().commit_end(&flush.0);
    }

    /// Whether there is background work to do.
    pub fn has_work(&self) -> bool {
        let engine = self.engine();
        !engine.is_poisoned()
            && (!engine.unflagged.is_empty()
                || !engine.crowding_pages().is_empty()
                || engine.is_checkpoint_due())
    }

    /// Does the I/O of one piece of background work; none when there is nothing to do now.
    ///
    /// # Errors
    ///
    /// Stops like any operation.
    pub fn work_begin(&self) -> Step<Option<Work>> {
        let mut store = self.store();
        self.forget_aborted(&mut store);
        if self.engine().is_poisoned() {
            return Ok(None);
        }
        let crowding = self.engine().crowding_pages();
        for page in crowding {
            if let Some(work) = self.write(&mut store, page)? {
                return Ok(Some(work));
            }
        }
        let unflagged = self.engine().unflagged.pop_front();
        if let Some(xid) = unflagged {
            return match store.finish(GroupId(xid.0)) {
                Ok(()) => Ok(Some(Work::Nothing)),
                Err(error) => self.poison_for(error).map_err(Stop::Error),
            };
        }
        self.go_on_with_checkpoint(&mut store)
    }

    /// Writes a page that was dirty at the last checkpoint, or takes the next one (H5).
    fn go_on_with_checkpoint(&self, store: &mut RecordStore<D>) -> Step<Option<Work>> {
        if !self.engine().is_checkpoint_due() {
            return Ok(None);
        }
        let noted = self.engine().noted_page();
        if let Some(page) = noted {
            let work = self.write(store, page)?;
            return match work {
                Some(work) => Ok(Some(work)),
                None => {
                    let wanted = self.engine().wanted;
                    Err(Stop::Wait(Wait::Durable(wanted)))
                }
            };
        }
        if self.engine().has_noted_page() {
            return Ok(None);
        }
        self.take_checkpoint(store).map(Some).map_err(Stop::Error)
    }

    fn take_checkpoint(&self, store: &mut RecordStore<D>) -> Result<Work, EngineError> {
        let (start, batch) = (self.engine().checkpoint.batch, store.next_batch());
        match store.checkpoint(start) {
            Ok(_) => {
                let mut engine = self.engine();
                engine.log_blocks = store.log_blocks();
                engine.checkpointed(batch);
                Ok(Work::Nothing)
            }
            Err(ShadowError::Full) => Err(EngineError::Full),
            Err(error) => self.poison_for(error),
        }
    }

    /// Writes the next version of a page (steal); none when it has to wait for the log.
    fn write(&self, store: &mut RecordStore<D>, page: LogicalPage) -> Step<Option<Work>> {
        let mut engine = self.engine();
        let Some(job) = engine.write_begin(page)? else { return Ok(None) };
        job.members.iter().for_each(|xid| store.admit(*xid));
        match store.write(page, &job.content, job.lsn, &job.members) {
            Ok(()) => {
                engine.write_begun(&job);
                Ok(Some(Work::Written(page)))
            }
            Err(ShadowError::Full) => Err(EngineError::Full.into()),
            Err(error) => {
                drop(engine);
                self.poison_for(error).map_err(Stop::Error)
            }
        }
    }

    /// Background work is done.
    pub fn work_end(&self, work: Work) {
        if let Work::Written(page) = work {
            self.engine().write_end(page);
        }
    }

    /// Has the next checkpoint taken as soon as may be.
    pub fn checkpoint_begin(&self) {
        self.engine().checkpoint.commits = u64::MAX / 2;
    }

    /// Writes every dirty page and empties the log, as far as it can.
    ///
    /// # Errors
    ///
    /// The device is full or failed.
    pub fn checkpoint_now(&self) -> Result<(), EngineError> {
        for _ in 0..2 {
            self.checkpoint_begin();
            let taken = self.engine().counts.checkpoints;
            let mut idle_count = 0;
            while self.engine().counts.checkpoints == taken && idle_count <= IDLE_COUNT_MAX {
                idle_count += u32::from(!self.advance()?);
            }
        }
        Ok(())
    }

    /// Tells the store what was aborted.
    fn forget_aborted(&self, store: &mut RecordStore<D>) {
        let aborted = self.engine().take_aborted();
        aborted.into_iter().for_each(|group| store.abort(group));
    }

    fn poison_for<T>(&self, error: ShadowError) -> Result<T, EngineError> {
        self.engine().poison();
        Err(of_engine(error))
    }

    /// Aborts.
    pub fn abort(&self, xid: Xid) {
        self.engine().abort(xid);
        self.forget_aborted(&mut self.store());
    }
}

/// Makes commits durable, in the order of R3; the batch with their records.
fn force<D: Nand>(store: &mut RecordStore<D>, job: &CommitJob) -> Result<Option<u64>, ShadowError> {
    let mut batch = None;
    if let Some(records) = job.records.as_ref().filter(|records| !records.is_empty()) {
        job.by_record.iter().for_each(|xid| store.await_members(GroupId(xid.0)));
        let number = store.append(&records.payload())?;
        store.await_log();
        job.by_record.iter().for_each(|xid| store.commit_by_record(GroupId(xid.0), number));
        batch = Some(number);
    }
    for xid in &job.by_flags {
        store.commit_by_flags(GroupId(xid.0))?;
    }
    Ok(batch)
}

/// Operations on the calling thread.
impl<D: Nand> Machine<D> {
    /// Runs an operation to its end; none when it has to wait for another transaction's lock.
    ///
    /// # Errors
    ///
    /// Those of the operation; `Full` when no wait makes room.
    pub fn attempt<T>(
        &self,
        mut operation: impl FnMut(&mut Engine) -> Step<T>,
    ) -> Result<Option<T>, EngineError> {
        let mut idle_count = 0;
        while idle_count <= IDLE_COUNT_MAX {
            let step = operation(&mut self.engine());
            let is_further = match step {
                Ok(value) => return Ok(Some(value)),
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Wait(Wait::Lock)) => return Ok(None),
                Err(Stop::Wait(_)) => self.advance()?,
                Err(Stop::Miss(fetch)) => self.supply(fetch)?,
            };
            idle_count = if is_further { 0 } else { idle_count + 1 };
        }
        Err(EngineError::Full)
    }

    fn supply(&self, fetch: Fetch) -> Result<bool, EngineError> {
        let fetched = self.read(fetch)?;
        self.engine().fill(fetched)?;
        Ok(true)
    }

    /// As [`Machine::attempt`], where nobody else holds locks.
    ///
    /// # Errors
    ///
    /// As [`Machine::attempt`]; `Deadlock` when somebody does.
    pub fn run<T>(&self, operation: impl FnMut(&mut Engine) -> Step<T>) -> Result<T, EngineError> {
        self.attempt(operation)?.ok_or(EngineError::Deadlock)
    }

    /// Commits what waits, or does a piece of background work; false when there is nothing to do.
    ///
    /// # Errors
    ///
    /// The device is full or failed.
    pub fn advance(&self) -> Result<bool, EngineError> {
        if let Some(flush) = self.flush_begin()? {
            self.flush_end(flush);
            return Ok(true);
        }
        match self.work_begin() {
            Ok(Some(work)) => {
                self.work_end(work);
                Ok(true)
            }
            Ok(None) | Err(Stop::Wait(_)) => Ok(false),
            Err(Stop::Miss(fetch)) => self.supply(fetch),
            Err(Stop::Error(error)) => Err(error),
        }
    }

    /// Commits; durable when it returns.
    ///
    /// # Errors
    ///
    /// Nothing is committed, or `OutcomeUnknown`.
    pub fn commit(&self, xid: Xid) -> Result<(), EngineError> {
        let place = self.run(|engine| engine.commit(xid))?;
        while !self.engine().is_committed(place) {
            match self.flush_begin() {
                Ok(Some(flush)) => self.flush_end(flush),
                Err(EngineError::Full) => return Err(EngineError::Full),
                _ => return Err(EngineError::OutcomeUnknown),
            }
        }
        match self.work_some() {
            // The commit is durable, and who needs the room will learn of it.
            Err(EngineError::Full) => Ok(()),
            done => done,
        }
    }

    /// Does background work until little is left to do, but not for long.
    fn work_some(&self) -> Result<(), EngineError> {
        let is_long = self.engine().is_log_long();
        for _ in 0..if is_long { WORK_FOR_LOG } else { WORK_AFTER_COMMIT } {
            if !self.has_work() || !self.advance()? {
                break;
            }
        }
        Ok(())
    }

    /// How much of what the extended protocols are about has happened.
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        let (stats, engine) = (self.store().stats(), self.engine());
        Sharing {
            transactions_max: stats.shared_max,
            versions_max: engine.counts.merged_max,
            collections: stats.collections,
            flag_commits: engine.counts.by_flags,
            befores_written: engine.counts.befores_written,
        }
    }
}

/// How much of what the extended protocols are about has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// Most transactions that one version carried.
    pub transactions_max: u64,
    /// Most versions that one read merged.
    pub versions_max: u64,
    /// Blocks collected.
    pub collections: u64,
    /// Commits that needed no log write.
    pub flag_commits: u64,
    /// Versions written so that a value before is on flash (H1).
    pub befores_written: u64,
}

fn record_options<D: Nand>(device: &D, config: &Config) -> RecordOptions {
    let unit_pages = config.options.parts;
    let page_size = (device.geometry().page_size * unit_pages).max(1) as usize;
    let frames = (config.options.memory / page_size).max(FRAMES_MIN);
    RecordOptions {
        unit_pages,
        restart_pages: u32::try_from(frames).unwrap_or(u32::MAX),
        ..RecordOptions::new(config.flags)
    }
}

/// What the engine need not know of a page: the store keeps it.
fn info(lsn: Lsn) -> PageInfo {
    PageInfo::elsewhere(Version(0), lsn, RegionId(0))
}

/// Counters of the store in the form of the space floor.
fn space_stats(stats: &RecordStats, page_count: u32) -> SpaceStats {
    let mut programs = [0; 7];
    programs[Cause::Log as usize] = stats.log_programs;
    programs[Cause::Data as usize] = stats.host.page_programs;
    programs[Cause::Relocation as usize] = stats.collection.page_programs;
    programs[Cause::Metadata as usize] = stats.restart.page_programs;
    programs[Cause::Flag as usize] =
        stats.host.flag_programs + stats.collection.flag_programs + stats.restart.flag_programs;
    SpaceStats {
        programs_by_cause: programs,
        gc_migrations: stats.relocations,
        gc_victims: stats.collections,
        gc_time_ns: stats.collection.busy_ns,
        erases: stats.collection.erases + stats.host.erases,
        live_pages: stats.mapped_pages,
        capacity_pages: page_count,
        free_blocks: stats.free_blocks,
        mapping_bytes: stats.tables_size,
        ..SpaceStats::default()
    }
}

/// What the store reports, as the engine says it.
pub(super) fn of_engine(error: ShadowError) -> EngineError {
    match error {
        ShadowError::Full => EngineError::Full,
        ShadowError::Poisoned => EngineError::Poisoned,
        ShadowError::Device(error) => EngineError::Device(error),
        ShadowError::OutOfRange(page) => EngineError::Space(SpaceError::OutOfRange(page)),
        ShadowError::Corrupt { page, check } => {
            EngineError::Space(SpaceError::Corrupt { page, check })
        }
        ShadowError::Size { size, page_size } => {
            EngineError::Space(SpaceError::TooLong { size, limit: page_size })
        }
        ShadowError::FlagRefused(_) => EngineError::WornOut,
        ShadowError::Option(check) => EngineError::Corrupt { page: LogicalPage(0), check },
        _ => EngineError::Ended,
    }
}

fn of_open(config: &Config, error: ShadowError) -> OpenError {
    let preset = config.options.preset.clone();
    match error {
        ShadowError::Lacks { lack, .. } => {
            let (capability, instead) = needs(lack);
            OptionsError::Capability { preset, capability, instead }.into()
        }
        error => of_engine(error).into(),
    }
}

/// What the device lacks, and the preset that does without.
fn needs(lack: Lack) -> (&'static str, &'static str) {
    match lack {
        Lack::PartialPrograms => ("three programs of a page between erases (NOP)", "flagstone"),
        Lack::ReprogramOrder => ("re-programs in any order", "flagstone"),
        Lack::IsolatedCuts => ("partial programs whose cut harms nothing else", "flagstone"),
        Lack::RawSpare | Lack::Spare => ("38 spare bytes outside the ECC", "flagstone"),
        Lack::Cells => ("cells of one bit each", "flagstone"),
        Lack::Room => ("more blocks, or larger pages", "flagstone"),
    }
}
