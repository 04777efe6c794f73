//! The engine on a device: reads, flushes, page writes, and operations run to their end.
//!
//! Owns the two latches (space before engine, never held across a call from outside) and the order
//! of device operations. Adds one rule of its own, A1: a page is written once its LSN is durable.

mod drive;

use flagstone_engine::log::LogGeometry;
use flagstone_engine::{EngineError, Fetch, Fetched, RecoveryReport, Step, Stop, Wait};
use flagstone_nand::Nand;
use flagstone_space::{LogicalPage, NoOwner, Space, SpaceError};
use parking_lot::{Mutex, MutexGuard};

use super::appends::{REGION_TABLES, write_page};
use super::engine::{Engine, Sealed, View};

/// Unused page numbers that the engine gets at a time, when the device has that many.
const PAGES_AT_HAND: usize = 16;

/// Rollback steps done in one piece of work.
const UNDO_STEPS_MAX: usize = 64;

/// Demands of a device on the machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceNeeds {
    /// A flush is durable only after a sync.
    pub(super) needs_sync: bool,
    /// Log pages that the options ask for.
    pub(super) log_pages: u64,
}

/// A classic engine on a device.
#[derive(Debug)]
pub struct Machine<D: Nand> {
    engine: Mutex<Engine>,
    space: Mutex<Space<D>>,
    pub(super) shape: LogGeometry,
    needs_sync: bool,
    /// Log pages that the options ask for.
    log_pages: u64,
    pub(super) recovery: RecoveryReport,
    pub(super) restarted: Restarted,
}

/// Effects of restart on pages and transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restarted {
    /// Changes repeated.
    pub redone: u64,
    /// Changes undone, with a compensation each.
    pub undone: u64,
    /// Transactions undone.
    pub losers: u64,
    /// Data pages read for redo and undo.
    pub pages_read: u64,
    /// Data pages written because redo needed their frames.
    pub pages_written: u64,
}

/// A flush whose programs are issued.
#[derive(Debug)]
pub struct Flush {
    sealed: Sealed,
    log_page: u64,
    end_ns: u64,
}

/// Background work whose I/O is issued.
#[derive(Debug)]
pub enum Work {
    /// A page is written.
    Written(LogicalPage),
    /// A checkpoint is saved.
    Saved,
    /// A piece of work without I/O is done.
    Nothing,
}

impl<D: Nand> Machine<D> {
    pub(super) fn around(
        engine: Engine,
        space: Space<D>,
        shape: LogGeometry,
        device: DeviceNeeds,
    ) -> Self {
        Self {
            engine: Mutex::new(engine),
            space: Mutex::new(space),
            shape,
            needs_sync: device.needs_sync,
            log_pages: device.log_pages,
            recovery: RecoveryReport::default(),
            restarted: Restarted::default(),
        }
    }

    /// The engine. Do not hold it across calls of the machine.
    pub fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock()
    }

    /// The space floor with its device. Do not hold it across calls of the machine.
    pub fn space(&self) -> MutexGuard<'_, Space<D>> {
        self.space.lock()
    }

    /// Reads, writes and findings of restart.
    #[must_use]
    pub fn recovery(&self) -> RecoveryReport {
        self.recovery
    }

    /// Changes that restart repeated and undid.
    #[must_use]
    pub fn restarted(&self) -> Restarted {
        self.restarted
    }

    /// Gives the device back as it is: nothing is flushed.
    #[must_use]
    pub fn into_device(self) -> D {
        self.space.into_inner().into_device()
    }

    /// Reads a page that an operation missed.
    ///
    /// # Errors
    ///
    /// Errors of the space floor; the engine has been told that nothing comes.
    pub fn read(&self, fetch: Fetch) -> Result<Fetched, EngineError> {
        let Fetch::Page(page, _) = fetch else {
            return Ok(Fetched::absent(fetch));
        };
        let mut image = Vec::new();
        let read = self.space().read(page, &mut image);
        match read {
            Ok(info) => {
                self.engine().note_read(page);
                Ok(Fetched { fetch, found: Some((info, image)), cost_ns: 0 })
            }
            Err(SpaceError::Unmapped(_)) => Ok(Fetched::absent(fetch)),
            Err(error) => {
                self.engine().fetch_failed(fetch);
                Err(error.into())
            }
        }
    }

    /// Cuts the log's pending records into a flush and programs it; none when no record is pending
    /// or a flush is in flight.
    ///
    /// # Errors
    ///
    /// The device failed: the engine is poisoned.
    pub fn flush_begin(&self) -> Result<Option<Flush>, EngineError> {
        let mut space = self.space();
        self.ensure_room(&mut space, 1)?;
        let slots_left = u16::try_from(space.log_slots_left()).unwrap_or(u16::MAX);
        let Some(sealed) = self.engine().seal(self.shape, slots_left) else { return Ok(None) };
        let mut log_page = 0;
        for fragment in sealed.fragments() {
            match space.log_append(fragment) {
                Ok(address) => log_page = address.page,
                Err(error) => return self.poison_for(error.into()),
            }
        }
        if self.needs_sync
            && let Err(error) = space.sync()
        {
            return self.poison_for(error.into());
        }
        self.observe(&space);
        Ok(Some(Flush { sealed, log_page, end_ns: space.end_ns() }))
    }

    /// A flush is durable: commits up to it are acknowledged.
    pub fn flush_end(&self, flush: Flush) {
        let mut space = self.space();
        // Dies work side by side: a driver that follows the device's times has waited already.
        if space.device().geometry().die_count > 1 {
            space.device_mut().advance_to(flush.end_ns);
        }
        drop(space);
        self.engine().flushed(flush.sealed, flush.log_page);
    }

    /// Gives the log its reserve back, and room for `pages` pages. A device full of data keeps
    /// the reserve: the log still has room.
    pub(super) fn ensure_room(&self, space: &mut Space<D>, pages: u32) -> Result<(), EngineError> {
        match space.ensure_room(pages, &mut NoOwner) {
            Ok(()) | Err(SpaceError::Full) => Ok(()),
            Err(error) => self.poison_for(error.into()),
        }
    }

    /// Whether there is background work to do.
    pub fn has_work(&self) -> bool {
        let engine = self.engine();
        let durable = engine.durable();
        !engine.is_poisoned()
            && (!engine.rollbacks.is_empty()
                || engine.must_checkpoint()
                || engine.freed.front().is_some_and(|(lsn, _)| *lsn <= durable)
                || engine.crowding_page().is_some())
    }

    /// Does the I/O of one piece of background work; none when there is nothing to do now.
    ///
    /// # Errors
    ///
    /// Stops like any operation.
    pub fn work_begin(&self) -> Step<Option<Work>> {
        if self.engine().is_poisoned() {
            return Ok(None);
        }
        let crowding = self.engine().crowding_page();
        if let Some(page) = crowding
            && let Some(work) = self.write(page)?
        {
            return Ok(Some(work));
        }
        if let Some(work) = self.roll_back()? {
            return Ok(Some(work));
        }
        if let Some(work) = self.trim()? {
            return Ok(Some(work));
        }
        if let Some(work) = self.go_on_with_checkpoint()? {
            return Ok(Some(work));
        }
        // The remaining pages wait for the log.
        let durable = self.engine().durable();
        if self.engine().is_flush_wanted() {
            Err(Stop::Wait(Wait::Durable(durable)))
        } else {
            Ok(None)
        }
    }

    /// Background work is done.
    pub fn work_end(&self, work: Work) {
        let mut engine = self.engine();
        match work {
            Work::Written(page) => engine.pool.write_ended(page),
            Work::Saved => engine.checkpoint_done(),
            Work::Nothing => {}
        }
    }

    /// Writes a page, by an append if it takes one, if its last record is durable (A1); asks for a
    /// flush if not.
    fn write(&self, page: LogicalPage) -> Result<Option<Work>, EngineError> {
        let mut space = self.space();
        let mut engine = self.engine();
        let Some(frame) = engine.pool.peek(page) else { return Ok(None) };
        let lsn = frame.lsn;
        if !engine.may_write(frame) {
            engine.want_durable(lsn);
            return Ok(None);
        }
        engine.learn_from(page);
        let Some(frame) = engine.pool.peek(page) else { return Ok(None) };
        let placing = engine.placing_of(&frame.image);
        let info = match write_page(&mut space, page, frame, placing) {
            Ok(info) => info,
            Err(error) => {
                drop(engine);
                return self.fail(error.into());
            }
        };
        engine.pool.write_begun(page);
        engine.note_write(page, &info);
        engine.track(page, info);
        engine.mark_stale(page);
        drop(engine);
        self.observe(&space);
        Ok(Some(Work::Written(page)))
    }

    /// Undoes some changes of the first transaction that is being rolled back.
    fn roll_back(&self) -> Step<Option<Work>> {
        for _ in 0..UNDO_STEPS_MAX {
            let mut engine = self.engine();
            let Some(xid) = engine.rollbacks.front().copied() else { break };
            let step = engine.roll_back(xid);
            if matches!(step, Ok(true)) {
                engine.rollbacks.pop_front();
                return Ok(Some(Work::Nothing));
            }
            drop(engine);
            match step {
                Ok(_) => {}
                Err(Stop::Wait(wait @ Wait::Pages(_))) => {
                    if let Err(error) = self.supply(wait) {
                        self.free_pages(error)?;
                    }
                }
                Err(stop) => return Err(stop),
            }
        }
        Ok((!self.engine().rollbacks.is_empty()).then_some(Work::Nothing))
    }

    /// Forgets pages whose freeing is durable.
    fn trim(&self) -> Result<Option<Work>, EngineError> {
        let mut space = self.space();
        let mut work = None;
        loop {
            let mut engine = self.engine();
            let durable = engine.durable();
            let Some((_, page)) = engine.freed.front().copied().filter(|(lsn, _)| *lsn <= durable)
            else {
                break;
            };
            engine.freed.pop_front();
            drop(engine);
            if space.is_mapped(page) {
                space.trim(page, None)?;
            } else {
                space.release(page);
            }
            work = Some(Work::Nothing);
        }
        Ok(work)
    }

    fn go_on_with_checkpoint(&self) -> Step<Option<Work>> {
        if !self.engine().must_checkpoint() {
            return Ok(None);
        }
        let old = self.engine().old_page();
        if let Some(page) = old {
            return Ok(self.write(page)?);
        }
        if self.engine().checkpoint_step() {
            return Ok(Some(Work::Nothing));
        }
        let Some((master, head)) = self.engine().save_job() else { return Ok(None) };
        self.save(&master, head).map(|()| Some(Work::Saved)).map_err(Stop::Error)
    }

    fn save(&self, master: &[u8], head: u64) -> Result<(), EngineError> {
        let mut space = self.space();
        space.log_release(head);
        if let Err(error) = space.checkpoint(master) {
            self.engine().checkpoint_failed();
            return self.fail(error.into());
        }
        // Work that the space floor noticed on the way, as in the engine that this one is compared
        // with.
        while let Ok(true) = space.background(&mut NoOwner) {}
        self.observe(&space);
        Ok(())
    }

    /// Gives the engine unused page numbers.
    ///
    /// # Errors
    ///
    /// `Full` when no page is free.
    pub fn supply(&self, wait: Wait) -> Result<(), EngineError> {
        let Wait::Pages(count) = wait else { return Ok(()) };
        let mut space = self.space();
        let have = self.engine().unused_pages().len();
        let mut pages = Vec::new();
        let mut outcome = Ok(());
        while have + pages.len() < count.max(PAGES_AT_HAND) {
            match space.allocate(REGION_TABLES) {
                Ok(page) => pages.push(page),
                Err(_) if have + pages.len() >= count => break,
                Err(error) => {
                    outcome = Err(error.into());
                    break;
                }
            }
        }
        self.engine().supply_pages(pages);
        outcome
    }

    /// Tells the engine how the space floor stands.
    pub(super) fn observe(&self, space: &Space<D>) {
        self.engine().observe(View {
            log_used: space.log_used_pages(),
            // A space with unreadable records has lost its options.
            log_budget: space.log_budget_pages().max(self.log_pages),
            log_block_pages: space.log_block_pages(),
            log_page_size: self.shape.slot_size() * usize::from(self.shape.slots_per_page()),
            mapping_bytes: space.mapping_bytes(),
        });
    }

    /// A write did not happen. Where nothing is lost by it the engine goes on.
    fn fail<T>(&self, error: EngineError) -> Result<T, EngineError> {
        match error {
            EngineError::Full | EngineError::WornOut => Err(error),
            other => self.poison_for(other),
        }
    }

    fn poison_for<T>(&self, error: EngineError) -> Result<T, EngineError> {
        self.engine().poison();
        Err(error)
    }
}
