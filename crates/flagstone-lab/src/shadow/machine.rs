//! The engine on a store of shadow pages: reads, commits, page writes, and operations run to their
//! end.
//!
//! Owns the two latches (store before engine, never held across a call from outside). What the store
//! is told of a transaction: nothing before its first page goes out; then every write under its
//! number; then its commit, or its abort, once.

use flagstone::{
    EngineError, EngineStats, Fetch, Fetched, OpenError, OptionsError, RecoveryReport, Step, Stop,
    Wait, Xid,
};
use flagstone_nand::Nand;
use flagstone_space::shadow::{
    Lack, Restart, ShadowError, ShadowOptions, ShadowStats, ShadowStore,
};
use flagstone_space::{
    Cause, LogicalPage, Lsn, PageInfo, RegionId, SpaceError, SpaceStats, Version,
};
use parking_lot::{Mutex, MutexGuard};

use super::Config;
use super::engine::Engine;

/// Tag of cold pages.
const COLD_TAG: u64 = 0xC01D;

/// Fruitless rounds after which a wait is given up.
const IDLE_COUNT_MAX: u32 = 1_000;

/// A shadow engine on a device.
#[derive(Debug)]
pub struct Machine<D: Nand> {
    engine: Mutex<Engine>,
    store: Mutex<ShadowStore<D>>,
    recovery: RecoveryReport,
}

/// A commit whose pages and flags are issued.
#[derive(Debug)]
pub struct Flush(Xid);

/// A page whose write is issued.
#[derive(Debug)]
pub struct Work(LogicalPage);

impl<D: Nand> Machine<D> {
    /// Formats `device` and makes an empty database on it.
    ///
    /// # Errors
    ///
    /// The device cannot carry the protocol, or failed.
    pub fn create(device: D, config: &Config) -> Result<Self, OpenError> {
        let store = ShadowStore::format(device, shadow_options(config));
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
        let store = ShadowStore::mount(device, shadow_options(config), how);
        let store = store.map_err(|error| of_open(config, error))?;
        let report = *store.restart_report();
        let recovery = RecoveryReport {
            pages_read: report.page_reads + report.spare_reads,
            commits: report.committed,
            time_ns: report.device_ns,
            ..RecoveryReport::default()
        };
        let machine = Self::around(store, config, recovery);
        let xid = machine.engine().begin();
        machine.run(|engine| engine.load_trees(xid))?;
        machine.abort(xid);
        Ok(machine)
    }

    fn around(store: ShadowStore<D>, config: &Config, recovery: RecoveryReport) -> Self {
        let (page_size, end) = (store.page_size(), store.page_count());
        let engine = Engine::new(config.clone(), page_size, store.mapped_pages(), end);
        Self { engine: Mutex::new(engine), store: Mutex::new(store), recovery }
    }

    /// The engine. Do not hold it across calls of the machine.
    pub fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock()
    }

    /// The store with its device. Do not hold it across calls of the machine.
    pub fn store(&self) -> MutexGuard<'_, ShadowStore<D>> {
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
        let mapping = tables_size(&self.store().stats());
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

    /// Reads a page that an operation missed: its running version if there is one.
    ///
    /// # Errors
    ///
    /// Those of the store; the engine has been told that nothing comes.
    pub fn read(&self, fetch: Fetch) -> Result<Fetched, EngineError> {
        let Fetch::Page(page, _) = fetch else { return Ok(Fetched { fetch, found: None }) };
        let mut store = self.store();
        let group = self.engine().owner(page).and_then(|(_, group)| group);
        let mut image = vec![0; store.page_size()];
        match store.read(group, page, &mut image) {
            Ok(true) => Ok(Fetched { fetch, found: Some((info(), image)) }),
            Ok(false) => Ok(Fetched { fetch, found: None }),
            Err(error) => {
                self.engine().fetch_failed(fetch);
                Err(of_engine(error))
            }
        }
    }

    /// Writes the pages of the next commit and commits; none when nobody waits.
    ///
    /// # Errors
    ///
    /// `Full`: the transaction is aborted. Otherwise the device failed: the engine is poisoned.
    pub fn flush_begin(&self) -> Result<Option<Flush>, EngineError> {
        let mut store = self.store();
        self.forget_aborted(&mut store);
        let Some(job) = self.engine().commit_begin() else { return Ok(None) };
        let group = job.group.unwrap_or_else(|| store.begin());
        let pages: Vec<_> = job.pages.iter().map(|(page, image)| (*page, &image[..])).collect();
        match store.commit(group, &pages) {
            Ok(()) => Ok(Some(Flush(job.xid))),
            Err(ShadowError::Full) => {
                let mut engine = self.engine();
                engine.named(job.xid, group);
                engine.commit_failed(job.xid);
                Err(EngineError::Full)
            }
            Err(error) => self.poison_for(error),
        }
    }

    /// A commit is on flash.
    pub fn flush_end(&self, flush: Flush) {
        self.engine().commit_end(flush.0);
    }

    /// Whether old dirty pages should be written.
    pub fn has_work(&self) -> bool {
        let engine = self.engine();
        !engine.is_poisoned() && !engine.crowding_pages().is_empty()
    }

    /// Writes the oldest dirty page (steal); none when there is none.
    ///
    /// # Errors
    ///
    /// The device is full or failed.
    pub fn work_begin(&self) -> Step<Option<Work>> {
        let mut store = self.store();
        self.forget_aborted(&mut store);
        let mut engine = self.engine();
        let Some(page) = engine.crowding_pages().into_iter().next() else { return Ok(None) };
        let owner = engine.owner(page);
        let image = engine.pool.peek(page).map(|frame| frame.image.clone());
        let (Some((xid, group)), Some(image)) = (owner, image) else { return Ok(None) };
        let group = group.unwrap_or_else(|| store.begin());
        engine.named(xid, group);
        match store.write(group, page, &image) {
            Ok(()) => {
                engine.pool.write_begun(page);
                Ok(Some(Work(page)))
            }
            Err(ShadowError::Full) => Err(EngineError::Full.into()),
            Err(error) => {
                drop(engine);
                self.poison_for(error).map_err(Stop::Error)
            }
        }
    }

    /// The page is on flash.
    pub fn work_end(&self, work: Work) {
        self.engine().pool.write_ended(work.0);
    }

    /// Tells the store what was aborted.
    fn forget_aborted(&self, store: &mut ShadowStore<D>) {
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
                Err(Stop::Miss(fetch)) => {
                    let fetched = self.read(fetch)?;
                    self.engine().fill(fetched)?;
                    true
                }
            };
            idle_count = if is_further { 0 } else { idle_count + 1 };
        }
        Err(EngineError::Full)
    }

    /// As [`Machine::attempt`], where nobody else holds locks.
    ///
    /// # Errors
    ///
    /// As [`Machine::attempt`]; `Deadlock` when somebody does.
    pub fn run<T>(&self, operation: impl FnMut(&mut Engine) -> Step<T>) -> Result<T, EngineError> {
        self.attempt(operation)?.ok_or(EngineError::Deadlock)
    }

    /// Writes a commit's pages or old dirty ones; false when there is nothing to do.
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
            Ok(None) | Err(Stop::Wait(_) | Stop::Miss(_)) => Ok(false),
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
        Ok(())
    }
}

fn shadow_options(config: &Config) -> ShadowOptions {
    ShadowOptions {
        block_flags: config.block_flags,
        unit_pages: config.options.parts,
        ..ShadowOptions::new(config.protocol)
    }
}

/// What the engine need not know of a page: the store keeps it.
fn info() -> PageInfo {
    PageInfo::elsewhere(Version(0), Lsn::ZERO, RegionId(0))
}

/// Counters of the store in the form of the space floor.
fn space_stats(stats: &ShadowStats, page_count: u32) -> SpaceStats {
    let mut programs = [0; 7];
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
        erases: stats.collection.erases,
        live_pages: stats.mapped_pages,
        capacity_pages: page_count,
        free_blocks: stats.free_blocks,
        mapping_bytes: tables_size(stats),
        ..SpaceStats::default()
    }
}

/// Bytes of everything that the store keeps in memory.
fn tables_size(stats: &ShadowStats) -> usize {
    stats.mapping_size
        + stats.version_table_size
        + stats.record_table_size
        + stats.transaction_table_size
        + stats.block_table_size
}

/// What the store reports, as the engine says it.
fn of_engine(error: ShadowError) -> EngineError {
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
        // The engine holds the page's lock and ends no transaction twice.
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
        Lack::PartialPrograms => ("three programs of a page between erases (NOP)", "bpcc"),
        Lack::ReprogramOrder => ("re-programs in any order", "bpcc"),
        Lack::IsolatedCuts => ("partial programs whose cut harms nothing else", "bpcc"),
        Lack::RawSpare => ("38 spare bytes outside the ECC", "bpcc"),
        Lack::Spare => ("33 spare bytes", "flagstone"),
        Lack::Cells => ("cells of one bit each", "flagstone"),
        Lack::Room => ("more blocks, or larger pages", "flagstone"),
    }
}
