//! The engine on a store of shared pages: reads, commits, page writes, checkpoints, and operations
//! run to their end.
//!
//! Owns the two latches (store before engine, never held across a call from outside), and the order
//! of a commit: its versions complete, its record durable, then its flags.

use flagstone_engine::{
    EngineError, EngineStats, Fetch, Fetched, OpenError, Options, RecoveryReport, Step, Stop, Wait,
    Xid,
};
use flagstone_nand::Nand;
#[cfg(feature = "seeded-bugs")]
use flagstone_opponents::shadow::records::RecordBug;
use flagstone_opponents::shadow::records::{Batch, RecordOptions, RecordStats, RecordStore};
use flagstone_opponents::shadow::{Restart, ShadowError};
use flagstone_space::{
    BlockReport, Cause, GroupId, LogicalPage, Lsn, PageInfo, RegionId, SpaceStats, Version,
};
use parking_lot::{Mutex, MutexGuard};

use super::Config;
use super::engine::{CommitJob, Committed, Engine, Shape};
use super::frames::FRAMES_MIN;
use super::page;
use super::resolve::{self, Wanted};
use super::restart::{self, LSN_SHIFT};
use crate::pages::{COLD_TAG, IDLE_COUNT_MAX, PageMachine, of_open, of_store};

/// Pieces of background work that a commit does on behalf of all, at most.
const WORK_AFTER_COMMIT: u32 = 4;

/// The same where the log is longer than it may be: a checkpoint writes every noted page.
const WORK_FOR_LOG: u32 = 64;

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
    /// A finished piece of work.
    Nothing,
}

impl<D: Nand> Machine<D> {
    fn restarted(
        mounted: Result<(RecordStore<D>, Vec<Batch>), ShadowError>,
        config: &Config,
    ) -> Result<Self, OpenError> {
        let (store, batches) =
            mounted.map_err(|error| of_open(&config.options, error, "flagstone"))?;
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

    /// The store with its device. Do not hold it across calls of the machine.
    pub fn store(&self) -> MutexGuard<'_, RecordStore<D>> {
        self.store.lock()
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

    /// Tells the store which transactions were aborted.
    fn forget_aborted(&self, store: &mut RecordStore<D>) {
        let aborted = self.engine().take_aborted();
        aborted.into_iter().for_each(|group| store.abort(group));
    }

    fn poison_for<T>(&self, error: ShadowError) -> Result<T, EngineError> {
        self.engine().poison();
        Err(of_store(error))
    }

    /// Counts of the sharing that the extended protocols are about.
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

impl<D: Nand> PageMachine for Machine<D> {
    type Device = D;
    type Engine = Engine;
    type Flush = Flush;
    type Work = Work;

    const FLUSHES_MAX: usize = 1;

    fn create(device: D, options: &Options) -> Result<Self, OpenError> {
        let config = &Config::of(options);
        let options = record_options(&device, config);
        let store = RecordStore::format(device, options);
        let store = store.map_err(|error| of_open(&config.options, error, "flagstone"))?;
        Ok(Self::around(store, config, RecoveryReport::default()))
    }

    fn open_by(device: D, options: &Options, how: Restart) -> Result<Self, OpenError> {
        let config = &Config::of(options);
        let options = record_options(&device, config);
        Self::restarted(RecordStore::mount(device, options, how), config)
    }

    #[cfg(feature = "seeded-bugs")]
    fn open_planted(
        device: D,
        options: &Options,
        how: Restart,
        bug: RecordBug,
    ) -> Result<Self, OpenError> {
        let config = &Config::of(options);
        let options = record_options(&device, config);
        Self::restarted(RecordStore::mount_planted(device, options, how, bug), config)
    }

    #[cfg(feature = "seeded-bugs")]
    fn plant(&self, bug: RecordBug) {
        self.store().plant(bug);
    }

    fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock()
    }

    fn with_device<R>(&self, look: impl FnOnce(&mut D) -> R) -> R {
        look(self.store().device_mut())
    }

    fn into_device(self) -> D {
        self.store.into_inner().into_device()
    }

    fn recovery(&self) -> RecoveryReport {
        self.recovery
    }

    fn prefill(&self, spare_count: u32) -> Result<(), EngineError> {
        let mut store = self.store();
        let end = store.page_count();
        let first = self.engine().give_up_pages(spare_count);
        store.prefill(first..end, COLD_TAG).map_err(of_store)
    }

    fn stats(&self) -> EngineStats {
        let mapping = self.store().stats().tables_size;
        self.engine().stats(mapping)
    }

    fn space_stats(&self) -> SpaceStats {
        let store = self.store();
        space_stats(&store.stats(), store.page_count())
    }

    fn block_report(&self) -> Vec<BlockReport> {
        self.store().block_report()
    }

    fn read(&self, fetch: Fetch) -> Result<Fetched, EngineError> {
        let Fetch::Page(page, _) = fetch else {
            return Ok(Fetched::absent(fetch));
        };
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
        let Some(resolved) = resolved else {
            return Ok(Fetched::absent(fetch));
        };
        self.engine().merged(resolved.version_count);
        let bytes = match wanted {
            Wanted::Committed => Some(resolved.node),
            Wanted::Running => page::content(&resolved.node, &resolved.running, store.image_size()),
        };
        let check = "its pending records need more room than there is";
        let bytes = bytes.ok_or(EngineError::Corrupt { page, check })?;
        Ok(Fetched { fetch, found: Some((info(resolved.lsn), bytes)), cost_ns: 0 })
    }

    fn flush_begin(&self) -> Result<Option<Flush>, EngineError> {
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

    fn flush_end(&self, flush: Flush) {
        self.engine().commit_end(&flush.0);
    }

    fn has_work(&self) -> bool {
        let engine = self.engine();
        !engine.is_poisoned()
            && (!engine.unflagged.is_empty()
                || !engine.crowding_pages().is_empty()
                || engine.is_checkpoint_due())
    }

    fn work_begin(&self) -> Step<Option<Work>> {
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

    fn work_end(&self, work: Work) {
        if let Work::Written(page) = work {
            self.engine().write_end(page);
        }
    }

    fn abort(&self, xid: Xid) {
        self.engine().abort(xid);
        self.forget_aborted(&mut self.store());
    }

    fn checkpoint_begin(&self) {
        self.engine().checkpoint.commits = u64::MAX / 2;
    }

    fn checkpoint_now(&self) -> Result<(), EngineError> {
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

    fn after_commit(&self) -> Result<(), EngineError> {
        let is_long = self.engine().is_log_long();
        for _ in 0..if is_long { WORK_FOR_LOG } else { WORK_AFTER_COMMIT } {
            if !self.has_work() || !self.advance()? {
                break;
            }
        }
        Ok(())
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

/// Counts of the sharing that the extended protocols are about.
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

/// Metadata of a page that the engine need not know: the store keeps it.
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
