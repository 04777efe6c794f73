//! The runtime: carries out the engine's requests on the space floor.
//!
//! Owns the two latches, of the engine and of the space, and the order between them. Never decides
//! which page to read, write or merge: the engine does. Threads drive the runtime with their calls,
//! the lab with a virtual clock; both run exactly these functions.
//!
//! Invariants:
//! - **W1** The engine's latch is never held across I/O. Where both latches are held, the space's
//!   was taken first, and nothing but memory is touched under both. Where the device serves several
//!   requests at a time, the space's latch is free, too, during page reads, flushes, and syncs. A
//!   checkpoint lends it during its syncs: to threads that read a page, and to nobody else. It is held
//!   during the syncs of the last checkpoint, of one that the space floor makes itself, and of an erase.
//! - **W2** A page is handed to the engine only together with the metadata read with it; the engine
//!   discards a page that was overtaken (rule D15).
//! - **W3** On devices that need a sync, a group's record is appended only after its pages are
//!   synced, and a flush completes only after its own sync (rules D1, D10).

use flagstone_nand::Nand;
use flagstone_space::{
    Cause, GroupId, LogicalPage, Lsn, NewerImage, Owner, PageInfo, PinId, RegionId, Space,
    SpaceError, WriteTag,
};
use tracing::warn;

use crate::engine::{Engine, Fetch, Fetched, SpaceView, SpillJob, Step, Stop, Wait, WriteJob};
use crate::error::{EngineError, OpenError};
use crate::lock::Xid;
use crate::log::LogGeometry;
use crate::options::Options;
use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use latch::Latch;
use sleep::Sleepers;

mod check;
mod drive;
mod flush;
mod jobs;
mod latch;
mod meter;
mod named_snapshot;
mod open;
mod reader;
mod restart;
mod sizing;
mod sleep;
mod values;
mod wear;
mod writer;

pub use check::{CheckFault, CheckReport};
pub use flush::Flush;
pub use meter::{Meter, SpaceGuard};
pub use open::RecoveryReport;
pub use reader::Reader;
pub use sizing::space_options;
use wear::WearAccount;
pub use wear::{Allowance, AtLimit, WearBudget, WearStatus};

/// Region of system pages: the catalog, and spilled changes. Each region has its own counters.
pub const REGION_SYSTEM: RegionId = RegionId(0);
/// Nodes of tables.
pub const REGION_TABLES: RegionId = RegionId(1);
/// Large values.
pub const REGION_VALUES: RegionId = RegionId(2);

/// Target of the events: the name of the database crate.
pub(crate) const EVENTS: &str = "flagstone";

/// Unused logical pages that the engine gets at a time, when the device has that many.
const PAGES_AT_HAND: usize = 16;

/// An engine on a device.
#[derive(Debug)]
pub struct Runtime<D: Nand> {
    engine: RwLock<Engine>,
    space: Latch<Space<D>>,
    /// Threads that wait for a lock, a flush, or the work of another thread.
    sleepers: Sleepers,
    /// Held by the thread that does background work.
    working: Mutex<()>,
    /// The wear budget, if one is set.
    wear: Mutex<Option<WearAccount>>,
    /// Nodes and catalogs read last from named snapshots.
    named: Mutex<named_snapshot::NamedReads>,
    geometry: LogGeometry,
    needs_sync: bool,
    /// Dies work side by side: the page programmed first may be complete last.
    has_dies: bool,
    has_pairs: bool,
    recovery: RecoveryReport,
    /// Number of the process that opened the database.
    opened_by: u32,
}

/// Background work whose I/O is issued.
#[derive(Debug)]
pub struct Work {
    done: Done,
    end_ns: u64,
}

impl Work {
    /// Device time at which the I/O is complete, in nanoseconds.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        self.end_ns
    }
}

#[derive(Debug)]
enum Done {
    Written(Box<WriteJob>, Option<PinId>),
    /// The pages of every group up to this one are durable.
    Synced(GroupId),
    Spilled(SpillJob),
    Checkpoint,
    /// The pages of a claim are durable.
    Sealed,
    /// The flag that commits the claim is durable.
    Flagged,
    Nothing,
}

/// The engine as garbage collection sees it.
struct Folding<'a>(&'a RwLock<Engine>);

impl Owner for Folding<'_> {
    fn newer_image(
        &mut self,
        page: LogicalPage,
        info: &PageInfo,
        image: &mut Vec<u8>,
    ) -> Option<NewerImage> {
        self.0.write().newer_image(page, info, image)
    }

    fn relocated(&mut self, page: LogicalPage, info: &PageInfo) {
        self.0.write().relocated(page, info);
    }

    fn moved(&mut self, page: LogicalPage, lsn: Lsn) {
        self.0.write().moved(page, lsn);
    }
}

impl<D: Nand> Runtime<D> {
    /// Refuses a child of a fork: its commits would never be flushed.
    fn require_own_process(&self) -> Result<(), EngineError> {
        if self.opened_by == std::process::id() { Ok(()) } else { Err(EngineError::OtherProcess) }
    }

    /// The engine: pure state, never does I/O. The guard must not be held across calls of the
    /// runtime.
    pub fn engine(&self) -> RwLockWriteGuard<'_, Engine> {
        self.engine.write()
    }

    /// The engine for shared reading: several threads at a time.
    pub(crate) fn engine_shared(&self) -> RwLockReadGuard<'_, Engine> {
        self.engine.read()
    }

    /// The space floor with its device. The guard must not be held across calls of the runtime.
    /// Flash work done through the guard is charged to this thread's bill.
    pub fn space(&self) -> SpaceGuard<'_, D> {
        SpaceGuard::over(self.space.lock())
    }

    /// The space floor for the two ends of a read beside it, and nothing else: a checkpoint may be
    /// under way.
    fn space_to_read(&self) -> SpaceGuard<'_, D> {
        SpaceGuard::over(self.space.lock_to_read())
    }

    pub(crate) fn log_page_size(&self) -> usize {
        self.geometry.slot_size() * usize::from(self.geometry.slots_per_page())
    }

    /// Report of the restart.
    #[must_use]
    pub fn recovery(&self) -> RecoveryReport {
        self.recovery
    }

    /// Returns the device as it is: nothing is flushed.
    #[must_use]
    pub fn into_device(self) -> D {
        self.space.into_inner().into_device()
    }

    /// Reads a page that an operation missed.
    ///
    /// # Errors
    ///
    /// Errors of the space floor; the engine has then been told that the page will not come.
    pub fn read(&self, fetch: Fetch) -> Result<Fetched, EngineError> {
        if let Some(fetched) = self.read_beside(fetch) {
            return Ok(fetched);
        }
        let mut image = Vec::new();
        let mut space = self.space();
        let begun_ns = space.busy_ns();
        let read = match fetch {
            Fetch::Page(page, _) => space.read(page, &mut image),
            Fetch::Pinned(pin, _) => space.read_pinned(pin, &mut image),
            Fetch::Grouped(group, page) => match space.read_in_group(group, page, &mut image) {
                Err(SpaceError::NotInGroup(..)) => space.read(page, &mut image),
                other => other,
            },
        };
        let cost_ns = space.busy_ns() - begun_ns;
        drop(space);
        match read {
            Ok(info) => Ok(Fetched { fetch, found: Some((info, image)), cost_ns }),
            Err(SpaceError::Unmapped(_) | SpaceError::UnknownPin(_)) => Ok(Fetched::absent(fetch)),
            Err(error) => {
                self.engine().fetch_failed(fetch);
                Err(error.into())
            }
        }
    }

    /// Reads without holding the space's latch, where the device serves several requests at a time; also
    /// during the syncs of a checkpoint.
    fn read_beside(&self, fetch: Fetch) -> Option<Fetched> {
        let Fetch::Page(page, _) = fetch else { return None };
        let mut ticket = self.space_to_read().begin_read(page)?;
        ticket.run();
        let mut space = self.space_to_read();
        let begun_ns = space.busy_ns();
        let found = Some(space.end_read(ticket)?);
        let cost_ns = space.busy_ns() - begun_ns;
        Some(Fetched { fetch, found, cost_ns })
    }

    /// Makes everything programmed so far durable, without holding the space's latch where the
    /// device syncs beside other work. Pages programmed meanwhile wait for the next sync.
    fn sync<'a>(&'a self, mut space: SpaceGuard<'a, D>) -> Result<SpaceGuard<'a, D>, SpaceError> {
        let Some(ticket) = space.begin_sync()? else {
            space.sync()?;
            return Ok(space);
        };
        drop(space);
        let result = ticket.run();
        let mut space = self.space();
        space.end_sync(ticket, result)?;
        Ok(space)
    }

    /// Restores the log's reserve. On a device full of data nothing happens: the log still has
    /// room.
    fn restore_reserves(&self, space: &mut Space<D>) -> Result<(), EngineError> {
        match space.ensure_room(1, &mut Folding(&self.engine)) {
            Ok(()) | Err(SpaceError::Full | SpaceError::NoRoom) => Ok(()),
            Err(error) => self.poison_for(error.into()),
        }
    }

    /// Waits until the programs are complete; a driver with a virtual clock has already advanced to
    /// that time.
    fn await_end(&self, end_ns: u64) {
        if self.has_dies {
            self.space().device_mut().advance_to(end_ns);
        }
    }

    /// Moves mapping and engine to the committed claim that `which` names, if any.
    fn install_claim(&self, which: impl Fn(&Engine) -> Option<GroupId>) {
        let mut space = self.space();
        let mut engine = self.engine();
        if let Some(group) = which(&engine) {
            Self::move_claim(&mut space, &mut engine, group);
        }
    }

    fn move_claim(space: &mut Space<D>, engine: &mut Engine, group: GroupId) {
        let pages = engine.claim_pins();
        let pins: Vec<Option<PinId>> = pages.iter().map(|page| space.pin(*page).ok()).collect();
        let moved = space.commit_group(group);
        debug_assert!(moved.is_ok(), "a claim has pages");
        engine.install_claim(&pins);
    }

    /// Issues the I/O of one piece of background work; `None` when there is nothing to do now.
    ///
    /// # Errors
    ///
    /// Stops like any operation. `Full` leaves the state unchanged.
    pub fn work_begin(&self) -> Step<Option<Work>> {
        let job = loop {
            let next = self.engine().next_job();
            match next {
                Err(Stop::Wait(wait)) if wait.is_at_hand() => match self.supply(wait) {
                    Err(EngineError::Full) if self.engine().go_without_pages() => {}
                    supplied => supplied?,
                },
                other => break other?,
            }
        };
        let Some(job) = job else { return Ok(None) };
        let done = self.carry_out(job)?;
        let space = self.space();
        let end_ns = space.end_ns();
        self.observe(&space);
        Ok(Some(Work { done, end_ns }))
    }

    /// Installs background work whose I/O is complete.
    pub fn work_end(&self, work: Work) {
        self.await_end(work.end_ns);
        if matches!(work.done, Done::Flagged) {
            self.install_claim(|engine| engine.flagging_claim());
        }
        let mut engine = self.engine();
        match work.done {
            Done::Written(job, pin) => engine.written(*job, pin),
            Done::Synced(last) => engine.synced(last),
            Done::Spilled(job) => engine.spilled(&job),
            Done::Checkpoint => engine.checkpoint_done(),
            Done::Sealed => engine.claim_sealed(),
            Done::Flagged | Done::Nothing => {}
        }
        self.sleepers.wake_changed();
    }

    /// Gives the engine unused logical pages, a group number, or a larger device.
    ///
    /// # Errors
    ///
    /// `Full` when no page is free. A device that cannot grow is not an error: the engine sees it
    /// in its view of the space.
    pub fn supply(&self, wait: Wait) -> Result<(), EngineError> {
        let mut space = self.space();
        match wait {
            Wait::Group => {
                let group = space.new_group()?;
                self.engine().supply_group(group);
            }
            Wait::Reserve => {
                let prepared = space.prepare_reserve(&mut Folding(&self.engine));
                self.note_growth(&space, prepared)?;
            }
            Wait::Room(pages) => {
                let grown = space.grow_for(u32::try_from(pages).unwrap_or(u32::MAX)).map(drop);
                self.note_growth(&space, grown)?;
            }
            // Another waiting thread may have made the log larger already.
            Wait::LargerLog(budget) => {
                let grown = space.grow_log(budget);
                self.note_growth(&space, grown)?;
            }
            Wait::Garbage(xid) => {
                drop(space);
                self.give_back(xid)?;
            }
            Wait::Seal(xid) => {
                drop(space);
                self.seal_group()?;
                self.engine().sealed(xid);
            }
            Wait::ShorterLog => {
                let mut engine = self.engine();
                // Another thread may have filled the log meanwhile.
                if engine.may_shorten_log() {
                    space.shorten_log();
                    engine.observe(self.view_of(&space));
                }
            }
            Wait::Pages(count) => {
                let have = self.engine().unused_page_count();
                let more = u32::try_from(count.saturating_sub(have)).unwrap_or(u32::MAX);
                if let Err(error) = space.grow_for(more) {
                    return self.poison_for(error.into());
                }
                let mut pages = Vec::new();
                while have + pages.len() < count.max(PAGES_AT_HAND) {
                    match space.allocate(REGION_TABLES) {
                        Ok(page) => pages.push(page),
                        Err(_) if have + pages.len() >= count => break,
                        Err(error) => {
                            self.engine().supply_pages(pages);
                            return Err(error.into());
                        }
                    }
                }
                self.engine().supply_pages(pages);
            }
            _ => {}
        }
        Ok(())
    }

    fn note_growth(
        &self,
        space: &Space<D>,
        grown: Result<(), SpaceError>,
    ) -> Result<(), EngineError> {
        self.observe(space);
        grown.or_else(|error| self.fail(error.into()))
    }

    /// Aborts a transaction. Its pages become free room at once: no other thread may be left to
    /// free them.
    pub fn abort(&self, xid: Xid) {
        self.abort_now(xid);
        // A claim without a waiting thread keeps its locks until some thread does its work.
        while self.engine().is_claiming(xid) && matches!(self.work_now(), Ok(true)) {}
    }

    fn abort_now(&self, xid: Xid) {
        let discarded = {
            let mut engine = self.engine();
            engine.abort(xid);
            engine.take_discarded()
        };
        if !discarded.is_empty() {
            let mut space = self.space();
            discarded.into_iter().for_each(|group| space.discard_group(group));
            self.observe(&space);
        }
        self.wake_others();
    }

    /// Updates the engine's view of the space floor.
    fn observe(&self, space: &Space<D>) {
        let view = self.view_of(space);
        self.engine().observe(view);
    }

    fn view_of(&self, space: &Space<D>) -> SpaceView {
        SpaceView {
            log_used: space.log_used_pages(),
            log_budget: space.log_budget_pages(),
            log_least: space.log_least_pages(),
            log_block_pages: space.log_block_pages(),
            log_page_size: self.log_page_size(),
            record_room: space.record_room(),
            record_room_least: space.record_room_least(),
            record_said: space.saved_size(),
            record_listed: space.listed_size(),
            taken_pages: u64::from(space.taken_pages()),
            capacity_pages: u64::from(space.capacity_pages()),
            can_grow: space.can_grow(),
            log_grows: space.log_grows(),
            lacks_reserve: space.lacks_reserve(),
            has_lost_blocks: space.lost_blocks() > 0,
            mapping_bytes: space.mapping_bytes(),
            carries_flags: space.carries_flags(),
            needs_sync: self.needs_sync,
            moves_per_write: space.moves_per_write(),
        }
    }

    /// A caller was refused because the device is full. The next caller asks the host for room
    /// again.
    fn ask_host_again(&self) {
        let mut space = self.space();
        if space.was_refused() {
            space.retry_growth();
            self.observe(&space);
        }
    }

    /// Handles a write that did not happen: after `Full` nothing is lost and the engine goes on.
    fn fail<T>(&self, error: EngineError) -> Result<T, EngineError> {
        match error {
            EngineError::Full => Err(error),
            other => self.poison_for(other),
        }
    }

    /// Poisons the engine: the device failed in a way that leaves its state unknown (rule D8), or
    /// has no spare blocks.
    fn poison_for<T>(&self, error: EngineError) -> Result<T, EngineError> {
        warn!(target: EVENTS, %error, "the device failed: nothing is written any more");
        let fault = match &error {
            EngineError::WornOut | EngineError::OtherProcess => error.clone(),
            _ => EngineError::Poisoned,
        };
        self.engine().poison(fault);
        self.sleepers.wake_all();
        self.sleepers.wake_changed();
        Err(error)
    }
}

fn tag_of(lsn: Lsn, region: RegionId, cause: Cause) -> WriteTag {
    WriteTag { cause, ..WriteTag::data(lsn, region) }
}
