//! The runtime: carries out the engine's requests on the space floor.
//!
//! Owns the two latches, of the engine and of the space, and the order between them. Never decides
//! which page to read, write or merge: the engine does. Threads drive the runtime with their calls,
//! the lab with a virtual clock; both run exactly these functions.
//!
//! Invariants:
//! - **W1** The engine's latch is never held across I/O. Where both latches are held, the space's
//!   was taken first, and nothing but memory is touched under both. Where the device serves several
//!   requests at a time, the space's latch is free, too, during page reads, flushes, and all syncs
//!   but those of a checkpoint.
//! - **W2** A page is handed to the engine only together with the metadata read with it; the engine
//!   discards a page that was overtaken (rule D15).
//! - **W3** On devices that need a sync, a group's record is appended only after its pages are
//!   synced, and a flush completes only after its own sync (rules D1, D10).

use flagstone_nand::Nand;
use flagstone_space::{
    Cause, GcPolicy, GroupId, LogicalPage, Lsn, NewerImage, Owner, PageInfo, PinId, RegionId,
    Space, SpaceError, SpaceOptions, WriteTag,
};
use tracing::{debug, warn};

use crate::bugs::SeededBug;
use crate::engine::{
    Append, CheckpointJob, ClaimJob, Descriptor, Engine, Fetch, Fetched, Freed, InstallJob, Job,
    PageWrite, Release, SpaceView, SpillJob, Step, Stop, Table, Visited, Wait, WriteJob,
};
use crate::error::{EngineError, OpenError};
use crate::lock::Xid;
use crate::log::{Flush as LogFlush, LogGeometry};
use crate::options::{Collection, Options, WearLevelling};
use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use sleep::Sleepers;

mod check;
mod drive;
mod kept;
mod meter;
mod open;
mod reader;
mod sleep;
mod values;
mod wear;
mod writer;

pub use check::{CheckFault, CheckReport};
pub use meter::{Meter, SpaceGuard};
pub use open::{RecoveryReport, space_options};
pub use reader::Reader;
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
    space: Mutex<Space<D>>,
    /// Threads that wait for a lock, a flush, or the work of another thread.
    sleepers: Sleepers,
    /// Held by the thread that does background work.
    working: Mutex<()>,
    /// The wear budget, if one is set.
    wear: Mutex<Option<WearAccount>>,
    /// Nodes and catalogs read last from named snapshots.
    kept: Mutex<kept::KeptReads>,
    geometry: LogGeometry,
    needs_sync: bool,
    /// Dies work side by side: the page programmed first may be complete last.
    has_dies: bool,
    has_pairs: bool,
    recovery: RecoveryReport,
    /// Number of the process that opened the database.
    opened_by: u32,
}

/// A flush whose programs are issued.
#[derive(Debug)]
pub struct Flush {
    flush: LogFlush,
    log_page: u64,
    end_ns: u64,
}

impl Flush {
    /// Device time at which the flush is durable, in nanoseconds.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        self.end_ns
    }
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

    /// Reads without holding the space's latch, where the device serves several requests at a time.
    fn read_beside(&self, fetch: Fetch) -> Option<Fetched> {
        let Fetch::Page(page, _) = fetch else { return None };
        let mut ticket = self.space().begin_read(page)?;
        ticket.run();
        let mut space = self.space();
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

    /// Appends the fragments of a flush and makes them durable, without holding the space's latch
    /// where the device does both beside other work. Returns the log page on which the fragments
    /// end.
    fn write_log<'a>(
        &'a self,
        mut space: SpaceGuard<'a, D>,
        flush: &LogFlush,
        syncs: bool,
    ) -> Result<(SpaceGuard<'a, D>, u64), SpaceError> {
        let fragments = || flush.fragments.iter().map(|fragment| fragment.bytes.as_slice());
        if syncs && let Some(mut ticket) = space.begin_flush(fragments())? {
            drop(space);
            let result = ticket.run();
            let mut space = self.space();
            let end = space.end_flush(ticket, result)?;
            return Ok((space, end.map_or(0, |address| address.page)));
        }
        let mut log_page = 0;
        for fragment in fragments() {
            log_page = space.log_append(fragment)?.page;
        }
        if syncs {
            space.sync()?;
        }
        Ok((space, log_page))
    }

    /// Seals the pending log records into a flush and programs it; `None` when nothing is pending
    /// or a flush is in flight.
    ///
    /// # Errors
    ///
    /// The device failed: the engine is poisoned.
    pub fn flush_begin(&self) -> Result<Option<Flush>, EngineError> {
        self.flush_after(|_| {})
    }

    /// As [`Runtime::flush_begin`], for all pending records.
    fn flush_all(&self) -> Result<Option<Flush>, EngineError> {
        self.flush_after(Engine::want_flush)
    }

    fn flush_after(&self, ask: impl FnOnce(&mut Engine)) -> Result<Option<Flush>, EngineError> {
        let mut space = self.space();
        let begun_ns = space.busy_ns();
        self.restore_reserves(&mut space)?;
        let collected_ns = space.busy_ns() - begun_ns;
        let slots_left = u16::try_from(space.log_slots_left()).unwrap_or(u16::MAX);
        let mut engine = self.engine();
        ask(&mut engine);
        let Some(flush) = engine.seal(self.geometry, slots_left) else { return Ok(None) };
        let (wants_log, skips_sync) =
            (engine.take_log_wish(), engine.bugs.has(SeededBug::SkipSync));
        drop(engine);
        if wants_log {
            space.want_log();
        }
        let syncs = (self.needs_sync || self.has_pairs) && !skips_sync;
        let (space, log_page) = match self.write_log(space, &flush, syncs) {
            Ok(written) => written,
            Err(error) => return self.poison_for(error.into()),
        };
        let end_ns = space.end_ns();
        let flushed_ns = space.busy_ns() - begun_ns - collected_ns;
        let view = self.view_of(&space);
        let mut engine = self.engine();
        engine.note_write_cost(0, collected_ns);
        engine.note_log_cost(flush.fragments.len(), flushed_ns);
        engine.observe(view);
        Ok(Some(Flush { flush, log_page, end_ns }))
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

    /// Completes a durable flush: commits up to its LSN are acknowledged.
    pub fn flush_end(&self, flush: Flush) {
        self.await_end(flush.end_ns);
        // A record's claim becomes current in the same moment as the record becomes durable: a
        // snapshot that begins now has to see the claim.
        let awaits_record = self.engine_shared().awaits_record();
        let space = awaits_record.then(|| self.space());
        let mut engine = self.engine();
        if engine.is_poisoned() {
            // The flush's commits were forgotten when the device failed elsewhere: they are not
            // acknowledged.
            return;
        }
        engine.flushed(flush.flush);
        engine.note_log_page(flush.log_page);
        if let (Some(mut space), Some(group)) = (space, engine.recorded_claim()) {
            Self::move_claim(&mut space, &mut engine, group);
        }
        let durable = engine.durable();
        // The woken threads want the engine: its latch is free by then.
        drop(engine);
        self.sleepers.wake_durable(durable);
        self.sleepers.wake_changed();
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
            self.install_claim(Engine::flagging_claim);
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

    fn carry_out(&self, job: Job) -> Step<Done> {
        match job {
            Job::Write(job) => Ok(self.write(job)?),
            Job::Sync(last) => Ok(self.sync_groups(last)?),
            Job::Install(job) => Ok(self.install(*job)?),
            Job::Checkpoint(job) => Ok(self.checkpoint(&job)?),
            Job::Spill(job) => {
                // The tag's LSN lies above the record that freed the page numbers: that record,
                // replayed, must not free them.
                let tag = tag_of(self.engine().durable(), REGION_SYSTEM, Cause::Data);
                let images = job.images.iter().map(|(page, image)| (*page, image));
                let written = self.write_group(job.group, images, tag);
                let written = written.and_then(|()| self.seal_group());
                match written {
                    Ok(()) => Ok(Done::Spilled(job)),
                    Err(EngineError::Full) => {
                        self.engine().spill_failed(&job);
                        Ok(Done::Nothing)
                    }
                    Err(error) => Err(error.into()),
                }
            }
            Job::Claim(job) => Ok(self.claim(job)?),
            Job::Release(release, is_new) => {
                self.release(release, is_new)?;
                Ok(Done::Nothing)
            }
            Job::Visit(table, page) => {
                self.visit(table, page)?;
                Ok(Done::Nothing)
            }
            Job::Free(freed) => {
                self.free(freed)?;
                Ok(Done::Nothing)
            }
            Job::Unpin(pins) => {
                let mut space = self.space();
                pins.into_iter().for_each(|pin| space.unpin(pin));
                Ok(Done::Nothing)
            }
        }
    }

    /// Reads a node of a dropped table.
    fn visit(&self, table: Table, page: LogicalPage) -> Result<(), EngineError> {
        let mut image = Vec::new();
        let read = self.space().read(page, &mut image);
        let (found, failed) = match read {
            Ok(_) => (Visited::Node(image), Ok(())),
            Err(SpaceError::Device(error)) => (Visited::Nothing, Err(error)),
            Err(SpaceError::Corrupt { .. } | SpaceError::Lost(_)) => (Visited::Damage, Ok(())),
            Err(_) => (Visited::Nothing, Ok(())),
        };
        self.engine().visited(table, found);
        Ok(failed?)
    }

    /// Frees pages of a dropped table; mapping and engine move together.
    fn free(&self, freed: Freed) -> Result<(), EngineError> {
        let mut space = self.space();
        for page in &freed.pages {
            if !space.trim(*page, None)? {
                // A root that was never written still has a number.
                space.release(*page);
            }
        }
        self.engine().freed(freed);
        Ok(())
    }

    fn write(&self, mut job: Box<WriteJob>) -> Result<Done, EngineError> {
        let mut space = self.space();
        let begun_ns = space.busy_ns();
        let written = match self.append(&mut space, &mut job) {
            Ok(true) => {
                let cost_ns = space.busy_ns() - begun_ns;
                self.engine().note_append_cost(cost_ns);
                return Ok(Done::Written(job, None));
            }
            Ok(false) => self.write_pages(&mut space, &mut job),
            Err(error) => Err(error),
        };
        match written.and_then(|pin| Ok((self.seal_job(space, &mut job)?, pin))) {
            Ok((space, pin)) => {
                let cost_ns = space.busy_ns() - begun_ns;
                self.engine().note_write_cost(job.pages.len(), cost_ns);
                Ok(Done::Written(job, pin))
            }
            Err(error) => {
                let goes_on = self.engine().write_failed(&job);
                match EngineError::from(error) {
                    EngineError::Full if goes_on => Ok(Done::Nothing),
                    error => self.fail(error),
                }
            }
        }
    }

    /// Appends a job's changes to the page that holds their leaf; false when the page takes no
    /// append.
    fn append(&self, space: &mut Space<D>, job: &mut WriteJob) -> Result<bool, SpaceError> {
        let [write] = job.pages.as_mut_slice() else { return Ok(false) };
        let Some(append) = write.append.take() else { return Ok(false) };
        let Append { onto, records } = append;
        write.version = space.append(write.page, &onto, write.lsn, Append::FORM, &records)?;
        Ok(write.version.is_some())
    }

    fn write_pages(
        &self,
        space: &mut Space<D>,
        job: &mut WriteJob,
    ) -> Result<Option<PinId>, SpaceError> {
        let count = u32::try_from(job.pages.len()).unwrap_or(u32::MAX);
        space.ensure_room(count, &mut Folding(&self.engine))?;
        let pin = job.pin.and_then(|page| space.pin(page).ok());
        for write in &mut job.pages {
            let append_slots = self.engine().slots_behind(&write.image);
            let tag = WriteTag { append_slots, ..tag_of(write.lsn, REGION_TABLES, job.cause) };
            let body = write.image.get(..space.payload_size_with(append_slots));
            let body = body.unwrap_or(&write.image);
            let info = if job.group == GroupId::NONE {
                space.write(write.page, body, &tag)?
            } else {
                space.write_in_group(job.group, write.page, body, &tag)?
            };
            write.version = Some(info);
        }
        Ok(pin)
    }

    /// Makes the pages of a group durable unless the job may wait for a later sync, while other
    /// threads read.
    fn seal_job<'a>(
        &'a self,
        space: SpaceGuard<'a, D>,
        job: &mut WriteJob,
    ) -> Result<SpaceGuard<'a, D>, SpaceError> {
        let skips_sync = self.engine().bugs.has(SeededBug::RecordBeforePages);
        // Where pages of a block are paired, programs that follow must not endanger their
        // neighbours.
        let may_wait = job.may_wait && self.needs_sync && !self.has_pairs && !skips_sync;
        job.is_durable = job.group != GroupId::NONE && !may_wait;
        match job.is_durable && (self.needs_sync || self.has_pairs) && !skips_sync {
            true => self.sync(space),
            false => Ok(space),
        }
    }

    /// Makes the pages of all groups up to `last` durable, while other threads read and write.
    fn sync_groups(&self, last: GroupId) -> Result<Done, EngineError> {
        match self.sync(self.space()) {
            Ok(_) => Ok(Done::Synced(last)),
            Err(error) => self.fail(error.into()),
        }
    }

    /// Writes pages under a transaction's group; they count only after [`Runtime::seal_group`].
    fn write_group<'a>(
        &self,
        group: GroupId,
        images: impl ExactSizeIterator<Item = (LogicalPage, &'a Vec<u8>)>,
        tag: WriteTag,
    ) -> Result<(), EngineError> {
        let mut space = self.space();
        let count = u32::try_from(images.len()).unwrap_or(u32::MAX);
        let result = (|| {
            space.ensure_room(count, &mut Folding(&self.engine))?;
            for (page, image) in images {
                space.write_in_group(group, page, image, &tag)?;
            }
            Ok(())
        })();
        result.or_else(|error: SpaceError| self.fail(error.into()))
    }

    /// Makes the pages of a group durable before a record commits them (rule D1), while other
    /// threads read.
    fn seal_group(&self) -> Result<(), EngineError> {
        if self.engine().bugs.has(SeededBug::RecordBeforePages) {
            return Ok(());
        }
        let mut space = self.space();
        let sealed = match self.needs_sync || self.has_pairs {
            true => self.sync(space).map(drop),
            false => space.fence(),
        };
        sealed.or_else(|error| self.fail(error.into()))
    }

    /// Does one job of a claim: a write, the sync, or the flag. Without room the log takes all
    /// changes.
    fn claim(&self, job: ClaimJob) -> Result<Done, EngineError> {
        let done = match job {
            ClaimJob::Reshape(job) => return self.claim_unless_full(self.write(job)),
            ClaimJob::Write(group, write) => self.claim_page(group, write).map(|()| Done::Nothing),
            ClaimJob::Seal => self.seal_claim().map(|()| Done::Sealed),
            ClaimJob::Flag(group) => self.space().flag_group(group).map(|()| Done::Flagged),
        };
        self.claim_unless_full(done.map_err(EngineError::from))
    }

    /// Passes a job's result on; without room for the claim, the log takes all changes.
    fn claim_unless_full(&self, done: Result<Done, EngineError>) -> Result<Done, EngineError> {
        match done {
            Ok(done) => Ok(done),
            Err(EngineError::Full) => {
                self.engine().claim_failed();
                Ok(Done::Nothing)
            }
            Err(error) => self.fail(error),
        }
    }

    fn seal_claim(&self) -> Result<(), SpaceError> {
        let skips_sync = self.engine().bugs.has(SeededBug::RecordBeforePages);
        match (self.needs_sync || self.has_pairs) && !skips_sync {
            true => self.sync(self.space()).map(drop),
            false => Ok(()),
        }
    }

    fn claim_page(&self, group: GroupId, write: PageWrite) -> Result<(), SpaceError> {
        let mut space = self.space();
        let begun_ns = space.busy_ns();
        space.ensure_room(1, &mut Folding(&self.engine))?;
        let append_slots = self.engine().slots_behind(&write.image);
        let tag = WriteTag { append_slots, ..tag_of(write.lsn, REGION_TABLES, Cause::Data) };
        let body = write.image.get(..space.payload_size_with(append_slots));
        let written = space.write_claimed(group, write.page, body.unwrap_or(&write.image), &tag)?;
        let cost_ns = space.busy_ns() - begun_ns;
        let mut engine = self.engine();
        engine.note_write_cost(1, cost_ns);
        engine.claim_written(write.page, written.version);
        Ok(())
    }

    /// Moves mapping and engine together, under both latches (rule D15).
    fn install(&self, job: InstallJob) -> Result<Done, EngineError> {
        let mut space = self.space();
        let mut engine = self.engine();
        let grouped = &job.grouped;
        let pins: Vec<Option<PinId>> = match engine.must_pin(grouped) {
            true => grouped.pins().map(|page| space.pin(page).ok()).collect(),
            false => Vec::new(),
        };
        space.commit_group(grouped.group)?;
        for page in grouped.trims() {
            space.trim(*page, None)?;
            hold_number(&mut space, &mut engine, *page);
        }
        engine.install(job, &pins);
        Ok(Done::Nothing)
    }

    fn checkpoint(&self, job: &CheckpointJob) -> Result<Done, EngineError> {
        let mut space = self.space();
        space.log_release(job.release_before);
        let written = match job.is_last {
            true => space.close(&job.master),
            false => space.checkpoint(&job.master),
        };
        if let Err(error) = written {
            self.engine().checkpoint_failed();
            return self.fail(error.into());
        }
        debug!(target: EVENTS, log_used = space.log_used_pages(), live = space.live_pages(), "checkpoint written");
        // Upkeep that the space floor noted is rare, and cheap beside a checkpoint. A page that
        // cannot be repaired now is met again by its next reader.
        while !job.is_last && space.background(&mut Folding(&self.engine)).is_ok_and(|more| more) {}
        Ok(Done::Checkpoint)
    }

    fn release(&self, release: Release, is_new: bool) -> Result<(), EngineError> {
        match release {
            Release::CommitGroup(group) => match self.space().commit_group(group) {
                Ok(_) | Err(SpaceError::UnknownGroup(_)) => Ok(()),
                Err(error) => Err(error.into()),
            },
            Release::DiscardGroup(group) => {
                self.space().discard_group(group);
                Ok(())
            }
            Release::Pages(group, pages) => self.trim_all(pages.iter(), group, is_new),
            Release::Value(descriptor) => {
                let (group, pages) = self.value_pages(&descriptor)?;
                self.trim_all(pages.into_iter(), group, is_new)
            }
        }
    }

    /// The group of a value, and its pages as far as they are found: list pages last.
    fn value_pages(&self, descriptor: &[u8]) -> Result<(GroupId, Vec<LogicalPage>), EngineError> {
        let descriptor = Descriptor::decode(descriptor)?;
        let mut pages = match self.chunks_of(&descriptor) {
            Ok(chunks) => chunks,
            // The value was trimmed before a crash, and its release is replayed.
            Err(EngineError::Corrupt { .. } | EngineError::Space(_)) => Vec::new(),
            Err(error) => return Err(error),
        };
        if descriptor.is_indirect() {
            pages.extend(descriptor.pages());
        }
        Ok((descriptor.group(), pages))
    }

    /// Takes the values that a transaction stored and no longer refers to out of its group.
    fn give_back(&self, xid: Xid) -> Result<(), EngineError> {
        loop {
            let Some(garbage) = self.engine().next_garbage(xid) else { return Ok(()) };
            let (group, pages) = self.value_pages(&garbage)?;
            let mut space = self.space();
            // Both latches are held throughout: a commit in between would make the pages current.
            let mut engine = self.engine();
            if engine.give_back(xid, &garbage, &pages) {
                space.discard_pages(group, &pages);
            }
            drop(engine);
            self.observe(&space);
        }
    }

    fn trim_all(
        &self,
        pages: impl Iterator<Item = LogicalPage>,
        group: GroupId,
        is_new: bool,
    ) -> Result<(), EngineError> {
        let mut space = self.space();
        let guard = (!self.engine().bugs.has(SeededBug::TrimAnyGroup)).then_some(group);
        let mut image = Vec::new();
        for page in pages {
            // For a release that restart found, the number may have had another owner since. An
            // unreadable page may be the new owner's: trimmed, the root of a table would pass for a
            // root that was never written.
            let is_there = match is_new {
                true => space.is_mapped(page) || space.is_lost(page),
                false => match space.read(page, &mut image) {
                    Err(SpaceError::Device(error)) => return Err(error.into()),
                    read => read.is_ok(),
                },
            };
            if is_there && space.trim(page, guard)? {
                hold_number(&mut space, &mut self.engine(), page);
            }
        }
        Ok(())
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

/// Keeps a page number from a new owner until the restart has ended (rule D11): the images that
/// restart writes are complete only to LSNs below the record that frees the number.
fn hold_number<D: Nand>(space: &mut Space<D>, engine: &mut Engine, page: LogicalPage) {
    if engine.is_replaying() {
        space.reserve(page);
        engine.hold_number(page);
    }
}

fn tag_of(lsn: Lsn, region: RegionId, cause: Cause) -> WriteTag {
    WriteTag { cause, ..WriteTag::data(lsn, region) }
}
