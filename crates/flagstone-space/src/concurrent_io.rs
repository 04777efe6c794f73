//! Reads, syncs and flushes of the log beside the thread that has the space, on devices that allow
//! it.
//!
//! Each has three steps: a ticket is made, the device works without the space, and the ticket is
//! turned in. Never trusts the state in between.
//!
//! Z1. A page that was read this way counts only if its place is still the page's, in the same life of the
//! block: bytes that an erase and a program may have left meanwhile are never believed (rule D15). The checks
//! are those of any read; its bytes are judged without the space. Z2. A sync covers the programs made before
//! its ticket. Something programmed since leaves the device unsynced; a failed sync poisons the space (rule
//! D10). Z3. The bytes of a flush get their place in the log when its ticket is made, before all later
//! appends. They count as programmed once the flush is over: a sync by another thread meanwhile does not make
//! them durable. Until then no record says that the session is closed (rule D11).

use alloc::sync::Arc;
use alloc::vec::Vec;

use flagstone_nand::{Nand, NandError, PhysicalPage, SharedNand};

use crate::bugs::SpaceBug;
use crate::bytes::crc32c;
use crate::error::SpaceError;
use crate::flash::{Flash, SlotProgram};
use crate::meta::{HEADER_SIZE, PageKind, PageMeta, Placement, RawMeta};
use crate::space::{Space, info_of};
use crate::stats::ReadPurpose;
use crate::{LogAddress, LogicalPage, PageInfo};

/// A sync under way.
#[derive(Debug)]
#[must_use]
pub struct SyncTicket {
    device: Arc<dyn SharedNand>,
    changes: u64,
    begun_ns: u64,
}

impl SyncTicket {
    /// Makes the programs durable that were made before the ticket.
    ///
    /// # Errors
    ///
    /// To be handed to [`Space::end_sync`].
    pub fn run(&self) -> Result<(), NandError> {
        self.device.sync()
    }
}

/// Appends to the log under way, and the sync behind them.
#[derive(Debug)]
#[must_use]
pub struct FlushTicket {
    sync: SyncTicket,
    programs: Vec<SlotProgram>,
    /// How many of them are done.
    done: usize,
    end: Option<LogAddress>,
}

impl FlushTicket {
    /// Makes the appended programs, in order, and makes them durable with all programs made before the
    /// ticket.
    ///
    /// # Errors
    ///
    /// To be handed to [`Space::end_flush`].
    pub fn run(&mut self) -> Result<(), NandError> {
        for program in &self.programs {
            program.run(&*self.sync.device)?;
            self.done += 1;
        }
        self.sync.run()
    }
}

/// A read under way.
#[derive(Debug)]
#[must_use]
pub struct ReadTicket {
    device: Arc<dyn SharedNand>,
    page: LogicalPage,
    place: PhysicalPage,
    sequence: u32,
    begun_ns: u64,
    payload_size: usize,
    /// The page's metadata, and whether its bytes are as they were programmed.
    found: Option<(PageMeta, bool)>,
    image: Vec<u8>,
}

impl ReadTicket {
    /// Reads. [`Space::end_read`] decides whether the page counts.
    pub fn run(&mut self) {
        if self.fetch().is_ok() {
            self.judge();
        }
    }

    fn fetch(&mut self) -> Result<(), NandError> {
        self.image.resize(HEADER_SIZE + self.payload_size, 0);
        self.device.read(self.place, &mut self.image)
    }

    fn judge(&mut self) {
        let Some((head, body)) = self.image.split_at_checked(HEADER_SIZE) else { return };
        if let RawMeta::Found(meta, crc) = PageMeta::decode(head) {
            self.found = Some((meta, meta.matches(self.place, crc32c(body), crc)));
            // An image that is kept takes no more memory than it is counted for.
            self.image = body.to_vec();
        }
    }

    /// As [`ReadTicket::run`], while the page is programmed over.
    #[cfg(test)]
    pub(crate) fn run_torn(&mut self) {
        assert_eq!(self.fetch(), Ok(()));
        let half = self.image.len() / 2;
        self.image[half..].fill(0);
        self.judge();
    }
}

impl<D: Nand> Space<D> {
    /// A sync that needs the space at its beginning and its end only; none where the device works
    /// for one at a time: [`Space::sync`] does it there.
    ///
    /// # Errors
    ///
    /// `Poisoned`.
    pub fn begin_sync(&mut self) -> Result<Option<SyncTicket>, SpaceError> {
        self.require_writable()?;
        let Some(device) = self.flash.device.shared() else { return Ok(None) };
        let (changes, begun_ns) = (self.flash.changes, self.flash.device.now_ns());
        Ok(Some(SyncTicket { device, changes, begun_ns }))
    }

    /// Notes how a sync ended (Z2).
    ///
    /// # Errors
    ///
    /// A failed sync poisons the space.
    pub fn end_sync(
        &mut self,
        ticket: SyncTicket,
        result: Result<(), NandError>,
    ) -> Result<(), SpaceError> {
        result.map_err(|error| self.fail(error))?;
        self.flash.synced(ticket.changes, ticket.begun_ns);
        Ok(())
    }

    /// Appends to the log, and a sync, that need the space at their beginning and their end only; none
    /// where the device works for one at a time: [`Space::log_append`] and [`Space::sync`] do it there.
    /// One flush at a time: nothing else is appended before it has ended.
    ///
    /// # Errors
    ///
    /// The errors of [`Space::log_append`].
    pub fn begin_flush<'a>(
        &mut self,
        appends: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Option<FlushTicket>, SpaceError> {
        if self.flash.device.shared().is_none() {
            return Ok(None);
        }
        assert!(!self.is_flushing, "appends of two flushes would stand between each other");
        let (mut programs, mut end) = (Vec::new(), None);
        for bytes in appends {
            let (address, program) = self.log_append_concurrent(bytes)?;
            programs.extend(program);
            end = Some(address);
        }
        let sync = self.begin_sync()?;
        self.is_flushing = sync.is_some();
        Ok(sync.map(|sync| FlushTicket { sync, programs, done: 0, end }))
    }

    /// Notes how a flush ended (Z3): where its last append begins. An append for which the host had no room
    /// is made again, elsewhere, and made durable (H4).
    ///
    /// # Errors
    ///
    /// A failed program or sync poisons the space; the errors of [`Space::log_append`].
    pub fn end_flush(
        &mut self,
        ticket: FlushTicket,
        result: Result<(), NandError>,
    ) -> Result<Option<LogAddress>, SpaceError> {
        self.is_flushing = false;
        let FlushTicket { sync, programs, done, end } = ticket;
        if let (Err(NandError::NoSpace), Some(left)) = (&result, programs.get(done..)) {
            self.flash.changes += done as u64;
            let end = self.log_append_again(left)?;
            self.sync()?;
            return Ok(end);
        }
        result.map_err(|error| self.fail(error))?;
        self.flash.flushed(&sync, programs.len());
        Ok(end)
    }

    /// A read of `page` that needs the space at its beginning and its end only; none where
    /// [`Space::read`] has to do it.
    #[must_use]
    pub fn begin_read(&self, page: LogicalPage) -> Option<ReadTicket> {
        let layout = self.layout();
        if layout.placement != Placement::Header || layout.parts != 1 || !self.suspects.is_empty() {
            return None;
        }
        let at = self.map.get(page).filter(|_| self.map.appends(page) == 0)?;
        Some(ReadTicket {
            device: self.flash.device.shared()?,
            page,
            place: layout.geometry.page_from_number(at)?,
            sequence: self.blocks.get(self.blocks.block_of(at)).sequence,
            begun_ns: self.flash.device.now_ns(),
            payload_size: layout.payload_size,
            found: None,
            image: Vec::new(),
        })
    }

    /// The page that was read; none when [`Space::read`] has to do it after all: the page moved meanwhile, or
    /// its bytes cannot be trusted (Z1).
    pub fn end_read(&mut self, ticket: ReadTicket) -> Option<(PageInfo, Vec<u8>)> {
        let at = ticket.place.number();
        let sequence = self.blocks.get(self.blocks.block_of(at)).sequence;
        let is_current = self.map.get(ticket.page) == Some(at)
            && self.map.appends(ticket.page) == 0
            && sequence == ticket.sequence;
        let (meta, fits) = ticket.found.filter(|_| is_current)?;
        let is_wanted = meta.kind == PageKind::Data
            && (meta.page, meta.sequence, meta.parts) == (ticket.page, sequence, 1)
            && meta.slots == 0;
        if !is_wanted || !(fits || self.flash.bugs.has(SpaceBug::ChecksumIgnored)) {
            return None;
        }
        self.flash.note_read(ReadPurpose::Data, ticket.begun_ns);
        self.flash.tally.region(meta.region).reads += 1;
        Some((info_of(&meta, at), ticket.image))
    }
}

impl<D: Nand> Flash<D> {
    /// A sync that began at `begun_ns`, after so many changes, is over (Z2).
    fn synced(&mut self, changes: u64, begun_ns: u64) {
        let now_ns = self.device.now_ns();
        self.busy.count(begun_ns, now_ns);
        self.end_ns = self.end_ns.max(now_ns);
        self.synced = self.synced.max(changes);
    }

    /// Programs of the log are over, and the sync behind them (Z3).
    fn flushed(&mut self, sync: &SyncTicket, programs: usize) {
        let is_alone = self.changes == sync.changes;
        self.changes += programs as u64;
        self.last_end_ns = self.device.now_ns();
        self.synced(if is_alone { self.changes } else { sync.changes }, sync.begun_ns);
    }

    fn note_read(&mut self, purpose: ReadPurpose, begun_ns: u64) {
        self.tally.read(purpose);
        let now_ns = self.device.now_ns();
        self.busy.count(begun_ns, now_ns);
    }
}
