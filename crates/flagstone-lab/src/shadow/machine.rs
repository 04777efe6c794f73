//! The engine on a store of shadow pages: reads, commits, page writes, and operations run to their
//! end.
//!
//! Owns the two latches (store before engine, never held across a call from outside). The store
//! hears nothing of a transaction before its first page goes out; then every write under its
//! number; then its commit, or its abort, once.

use flagstone_engine::{
    EngineError, EngineStats, Fetch, Fetched, OpenError, Options, RecoveryReport, Step, Stop, Xid,
};
use flagstone_nand::Nand;
use flagstone_opponents::shadow::{Restart, ShadowError, ShadowOptions, ShadowStats, ShadowStore};
use flagstone_space::{
    BlockReport, Cause, LogicalPage, Lsn, PageInfo, RegionId, SpaceStats, Version,
};
use parking_lot::{Mutex, MutexGuard};

use super::Config;
use super::engine::Engine;
use crate::pages::{COLD_TAG, PageEngine, PageMachine, of_open, of_store};

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
    fn around(store: ShadowStore<D>, config: &Config, recovery: RecoveryReport) -> Self {
        let (page_size, end) = (store.page_size(), store.page_count());
        let engine = Engine::new(config.clone(), page_size, store.mapped_pages(), end);
        Self { engine: Mutex::new(engine), store: Mutex::new(store), recovery }
    }

    /// The store with its device. Do not hold it across calls of the machine.
    pub fn store(&self) -> MutexGuard<'_, ShadowStore<D>> {
        self.store.lock()
    }

    /// Tells the store which transactions were aborted.
    fn forget_aborted(&self, store: &mut ShadowStore<D>) {
        let aborted = self.engine().take_aborted();
        aborted.into_iter().for_each(|group| store.abort(group));
    }

    fn poison_for<T>(&self, error: ShadowError) -> Result<T, EngineError> {
        self.engine().poison();
        Err(of_store(error))
    }
}

impl<D: Nand> PageMachine for Machine<D> {
    type Device = D;
    type Engine = Engine;
    type Flush = Flush;
    type Work = Work;

    /// No client of an experiment waits for another.
    const FLUSHES_MAX: usize = 256;

    fn create(device: D, options: &Options) -> Result<Self, OpenError> {
        let config = &Config::of(options);
        let store = ShadowStore::format(device, shadow_options(config));
        let store = store.map_err(|error| of_open(&config.options, error, "bpcc"))?;
        Ok(Self::around(store, config, RecoveryReport::default()))
    }

    fn open_by(device: D, options: &Options, how: Restart) -> Result<Self, OpenError> {
        let config = &Config::of(options);
        let store = ShadowStore::mount(device, shadow_options(config), how);
        let store = store.map_err(|error| of_open(&config.options, error, "bpcc"))?;
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
        let mapping = tables_size(&self.store().stats());
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
        let group = self.engine().owner(page).and_then(|(_, group)| group);
        let mut image = vec![0; store.page_size()];
        match store.read(group, page, &mut image) {
            Ok(true) => Ok(Fetched { fetch, found: Some((info(), image)), cost_ns: 0 }),
            Ok(false) => Ok(Fetched::absent(fetch)),
            Err(error) => {
                self.engine().fetch_failed(fetch);
                Err(of_store(error))
            }
        }
    }

    fn flush_begin(&self) -> Result<Option<Flush>, EngineError> {
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

    fn flush_end(&self, flush: Flush) {
        self.engine().commit_end(flush.0);
    }

    fn has_work(&self) -> bool {
        let engine = self.engine();
        !engine.is_poisoned() && !engine.crowding_pages().is_empty()
    }

    fn work_begin(&self) -> Step<Option<Work>> {
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

    fn work_end(&self, work: Work) {
        self.engine().pool.write_ended(work.0);
    }

    fn abort(&self, xid: Xid) {
        self.engine().abort(xid);
        self.forget_aborted(&mut self.store());
    }
}

fn shadow_options(config: &Config) -> ShadowOptions {
    ShadowOptions {
        block_flags: config.block_flags,
        unit_pages: config.options.parts,
        ..ShadowOptions::new(config.protocol)
    }
}

/// Metadata of a page that the engine need not know: the store keeps it.
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
