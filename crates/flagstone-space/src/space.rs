//! The space: logical pages on flash.
//!
//! Owns the state of the floor and the operations on single pages. Garbage collection, groups, the
//! log, checkpoints and mounting stand in modules of their own, as further methods.
//!
//! S1. A mapping entry points to a live unit whose metadata name the page.
//! S2. A live unit is mapped, now or in a frozen mapping, or belongs to an open group, or is pinned, or holds a
//!     page of the mapping that a durable record needs, or was forgotten since; nothing else is live.
//! S3. Nothing is programmed or erased before the session's first record is durable: it reserves
//!     the numbers of the session (rule D3).
//! S4. After a failure that leaves the device's state unknown nothing is written any more.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use flagstone_nand::{Nand, NandError};

use crate::blocks::{BlockState, BlockTable};
use crate::error::SpaceError;
use crate::flash::{Flash, ReadFault};
use crate::frontier::{Frontier, Stream};
use crate::frozen::FrozenMaps;
use crate::groups::Groups;
use crate::layout::Layout;
use crate::level::LevelCredit;
use crate::log::LogArea;
use crate::mapping::{Mapping, UNMAPPED};
use crate::meta::{Origin, PageKind, PageMeta, Standing};
use crate::numbers::Numbers;
use crate::options::SpaceOptions;
use crate::pins::Pins;
use crate::place::Entitlement;
use crate::record::Record;
use crate::ring::Ring;
use crate::stats::ReadPurpose;
use crate::{GroupId, LogicalPage, PageInfo, PinId, RegionId, SpaceBug, Version, WriteTag};

/// Pages that wait for scrubbing; a page that finds no place is noticed again at its next read.
const WORN_MAX: usize = 64;

/// Whether this session has written anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Session {
    /// Mounted: the device is as the last session left it.
    Mounted,
    /// Numbers are reserved, suspects are copied away.
    Begun,
    /// The last checkpoint is being written (K6).
    Closing,
    /// Nothing is written to the device, for any request.
    ReadOnly,
}

/// Unit that may have been in flight when power went, with the content a mount read (rule D11).
#[derive(Clone, Debug)]
pub(crate) struct Suspect {
    pub(crate) at: u32,
    pub(crate) meta: PageMeta,
    pub(crate) image: Vec<u8>,
    /// Pins on older versions, for the case that power goes again before the copy is made.
    pub(crate) fallbacks: Vec<PinId>,
}

/// Logical pages on a flash device.
///
/// A clone is a snapshot of the state in memory, and of the device where its clone is one.
#[derive(Clone, Debug)]
pub struct Space<D> {
    pub(crate) flash: Flash<D>,
    pub(crate) options: SpaceOptions,
    pub(crate) blocks: BlockTable,
    pub(crate) map: Mapping,
    pub(crate) frontiers: [Option<Frontier>; 3],
    pub(crate) log: LogArea,
    pub(crate) groups: Groups,
    pub(crate) pins: Pins,
    pub(crate) frozen: FrozenMaps,
    pub(crate) ring: Ring,
    pub(crate) numbers: Numbers,
    pub(crate) session: Session,
    /// Sequence of the first block that this session takes.
    pub(crate) first_sequence: u32,
    pub(crate) poisoned: bool,
    /// Appends to the log are under way (Z3).
    pub(crate) is_flushing: bool,
    /// Newest durable record; `None` after a full scan.
    pub(crate) durable: Option<Record>,
    /// Units of mapping pages, then table pages, then directory pages.
    pub(crate) meta_units: Vec<u32>,
    /// Directory and table pages to be written although no content changed: their unit must move.
    pub(crate) meta_moving: Vec<u32>,
    /// Units of mapping pages that are freed once the next record is durable (rule D4).
    pub(crate) meta_old: Vec<u32>,
    /// Units of forgotten pages: a cut brings them back until a record is durable, so they stay.
    pub(crate) trimmed_unsaved: BTreeSet<u32>,
    /// Units whose flag commits a group that no durable record covers yet.
    pub(crate) flags: BTreeMap<u32, GroupId>,
    pub(crate) suspects: Vec<Suspect>,
    /// Pages that records of this restart say are lost: each belongs to its last writer only.
    pub(crate) lost_since: BTreeSet<LogicalPage>,
    /// Units that needed many corrections.
    pub(crate) worn: Vec<u32>,
    /// Budget of wear levelling in this session.
    pub(crate) level_credit: Option<LevelCredit>,
    /// The host had no room for more blocks when it was asked last.
    pub(crate) growth_refused: bool,
    /// A host is told which blocks hold nothing.
    pub(crate) discards: bool,
    /// Scratch buffers, kept for their memory.
    pub(crate) move_buffer: Vec<u8>,
    pub(crate) meta_buffer: Vec<u8>,
}

impl<D: Nand> Space<D> {
    /// Bytes of a logical page that the caller may use.
    #[must_use]
    pub fn payload_size(&self) -> usize {
        self.layout().payload_size
    }

    /// The device, to look at.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.flash.device
    }

    /// The device: for its clock and its faults, not for its pages.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.flash.device
    }

    /// Gives the device back; the next mount finds the pages that no checkpoint covers.
    #[must_use]
    pub fn into_device(self) -> D {
        self.flash.device
    }

    /// From now on the host below a file or block device is told which blocks hold nothing; other devices
    /// have none.
    pub fn discard_free_blocks(&mut self) {
        self.discards = true;
        if self.session == Session::Begun {
            self.report_dead();
        }
    }

    /// Options that the space was formatted with.
    #[must_use]
    pub fn options(&self) -> &SpaceOptions {
        &self.options
    }

    /// Device time at which everything programmed and erased so far is complete, in nanoseconds.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        self.flash.end_ns
    }

    /// Device time that all operations of this floor took so far, reads included, in nanoseconds:
    /// each by as much as it put off the end of all.
    #[must_use]
    pub fn busy_ns(&self) -> u64 {
        self.flash.busy.total_ns
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.flash.layout
    }

    /// Refuses every write from now on. To be called before the first one.
    pub fn forbid_writes(&mut self) {
        debug_assert_eq!(self.session, Session::Mounted, "nothing was written");
        self.session = Session::ReadOnly;
    }

    /// Plants a deliberate bug, for the tests that have to find it.
    #[cfg(feature = "seeded-bugs")]
    pub fn plant(&mut self, bug: SpaceBug) {
        self.flash.bugs.plant(bug);
    }

    /// Takes a number without a version. It is free again after a mount.
    ///
    /// # Errors
    ///
    /// `Full` when as many pages are taken as may be live, and the device does not grow.
    pub fn allocate(&mut self, region: RegionId) -> Result<LogicalPage, SpaceError> {
        self.flash.tally.region(region);
        self.grow_for(1)?;
        if self.taken_pages() >= self.capacity_pages() {
            return Err(SpaceError::Full);
        }
        self.map.allocate().ok_or(SpaceError::Full)
    }

    /// Frees a number that was taken and has no version.
    pub fn release(&mut self, page: LogicalPage) {
        self.map.release(page);
    }

    /// Takes this very number; whether it was free.
    pub fn reserve(&mut self, page: LogicalPage) -> bool {
        self.map.reserve(page)
    }

    /// Whether the page has a valid version.
    #[must_use]
    pub fn is_mapped(&self, page: LogicalPage) -> bool {
        self.map.get(page).is_some()
    }

    /// Whether damage took the page's version.
    #[must_use]
    pub fn is_lost(&self, page: LogicalPage) -> bool {
        self.map.is_lost(page)
    }

    /// Every page with a valid version, in order of numbers.
    pub fn mapped_pages(&self) -> impl Iterator<Item = LogicalPage> + '_ {
        self.map.iter().map(|(page, _)| page)
    }

    /// Logical pages that may be live: shrinks when blocks fail.
    #[must_use]
    pub fn capacity_pages(&self) -> u32 {
        let lost = self.lost_blocks() + self.blocks.withheld_count();
        self.layout().capacity(self.blocks.len() - lost)
    }

    /// As [`Space::capacity_pages`] without frozen mappings: more than that may not be live because blocks failed.
    #[must_use]
    pub fn capacity_alone(&self) -> u32 {
        self.layout().capacity_alone(self.blocks.len() - self.lost_blocks())
    }

    /// Reads the valid version of `page` into `out`, which gets `payload_size` bytes.
    ///
    /// # Errors
    ///
    /// `Unmapped` without a version, `Lost` when damage took it; `Corrupt` when its bytes cannot be
    /// trusted.
    pub fn read(&mut self, page: LogicalPage, out: &mut Vec<u8>) -> Result<PageInfo, SpaceError> {
        let at = self.map.get(page).ok_or_else(|| self.absent(page))?;
        let meta = self.read_at(at, page, out)?;
        self.flash.tally.region(meta.region).reads += 1;
        Ok(PageInfo { appends: self.map.appends(page), ..info_of(&meta, at) })
    }

    /// Why there is no version of a page.
    fn absent(&self, page: LogicalPage) -> SpaceError {
        match self.map.is_lost(page) {
            true => SpaceError::Lost(page),
            false => SpaceError::Unmapped(page),
        }
    }

    /// Writes a new version of `page`, out of place, valid by itself. Shorter payloads are padded.
    ///
    /// # Errors
    ///
    /// `NoRoom` without a call of `ensure_room` before; `TooLong`; `OutOfRange`.
    pub fn write(
        &mut self,
        page: LogicalPage,
        payload: &[u8],
        tag: &WriteTag,
    ) -> Result<PageInfo, SpaceError> {
        self.ready()?;
        self.check_write(page, payload, tag)?;
        let meta = self.new_version(page, tag, GroupId::NONE);
        let at = self.place(tag.temperature.into(), Entitlement::User, meta, payload, tag.cause)?;
        self.map_to(page, at, meta.version);
        self.flash.tally.region(tag.region).writes += 1;
        Ok(self.info_of_placed(&meta, at))
    }

    /// Identity of the version that was placed at `at` a moment ago.
    pub(crate) fn info_of_placed(&self, meta: &PageMeta, at: u32) -> PageInfo {
        let sequence = self.blocks.get(self.blocks.block_of(at)).sequence;
        info_of(&PageMeta { sequence, ..*meta }, at)
    }

    /// Forgets `page` and frees its number; whether the page had a version to forget, or a lost one.
    ///
    /// With a group given, a version is forgotten only if this group wrote it (rule D12), or if it does not
    /// read or was lost before this session. Until the next checkpoint a mount shows the page again: the
    /// replay of a log forgets it again.
    ///
    /// # Errors
    ///
    /// Only where the version's group has to be read.
    pub fn trim(
        &mut self,
        page: LogicalPage,
        only_if_group: Option<GroupId>,
    ) -> Result<bool, SpaceError> {
        if page.0 >= self.map.len() {
            return Err(SpaceError::OutOfRange(page));
        }
        if let (Some(group), Some(at)) = (only_if_group, self.map.get(page)) {
            let mut buffer = core::mem::take(&mut self.move_buffer);
            let meta = self.read_at(at, page, &mut buffer);
            self.move_buffer = buffer;
            match meta {
                Ok(meta) if meta.group != group => return Ok(false),
                Ok(_) | Err(SpaceError::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let is_lost = self.map.is_lost(page);
        if is_lost && only_if_group.is_some() && self.lost_since.contains(&page) {
            return Ok(false);
        }
        let Some(old) = self.map.clear(page) else { return Ok(is_lost) };
        self.displace(old);
        self.trimmed_unsaved.insert(old);
        Ok(true)
    }

    /// Forgets a page that was lost before this session and frees its number; whether it was. Used for a
    /// record that frees the page and was made after the checkpoint: the page was lost by the owner that the
    /// number had then.
    pub fn trim_lost(&mut self, page: LogicalPage) -> bool {
        let is_lost = self.map.is_lost(page) && !self.lost_since.contains(&page);
        if is_lost {
            self.map.clear(page);
        }
        is_lost
    }

    /// Keeps the valid version of `page` readable through all later writes. Not across mounts.
    ///
    /// # Errors
    ///
    /// `Unmapped` without a version.
    pub fn pin(&mut self, page: LogicalPage) -> Result<PinId, SpaceError> {
        let at = self.map.get(page).ok_or(SpaceError::Unmapped(page))?;
        Ok(self.pins.add(page, at, self.map.appends(page)))
    }

    /// Reads a pinned version.
    ///
    /// # Errors
    ///
    /// `UnknownPin`; `Corrupt` when its bytes cannot be trusted.
    pub fn read_pinned(&mut self, pin: PinId, out: &mut Vec<u8>) -> Result<PageInfo, SpaceError> {
        let found = self.pins.get(pin).ok_or(SpaceError::UnknownPin(pin))?;
        let meta = self.read_at_with(found.at, found.page, out, Some(found.appends))?;
        Ok(info_of(&meta, found.at))
    }

    /// Lets a pinned version go.
    pub fn unpin(&mut self, pin: PinId) {
        let Some((pin, last)) = self.pins.remove(pin) else { return };
        let held = self.map.get(pin.page) == Some(pin.at)
            || self.trimmed_unsaved.contains(&pin.at)
            || self.is_frozen(pin.at);
        if last && !held && !self.flash.bugs.has(SpaceBug::PinsIgnored) {
            self.blocks.drop_live(pin.at);
        }
    }

    /// Makes everything written so far durable.
    ///
    /// # Errors
    ///
    /// A failed sync poisons the space (rule D10).
    pub fn sync(&mut self) -> Result<(), SpaceError> {
        self.require_writable()?;
        self.settle_pairs()?;
        self.flash.sync().map_err(|error| self.fail(error))
    }

    /// Waits until everything written so far is complete, where dies work side by side.
    pub fn await_dies(&mut self) {
        self.flash.await_dies();
    }

    /// Makes sure that every write so far completes before any later one.
    ///
    /// # Errors
    ///
    /// As [`Space::sync`].
    pub fn fence(&mut self) -> Result<(), SpaceError> {
        self.require_writable()?;
        self.settle_pairs()?;
        self.flash.fence().map_err(|error| self.fail(error))
    }

    /// Refuses writes of a poisoned space, begins the session, reserves numbers (S3, S4).
    pub(crate) fn ready(&mut self) -> Result<(), SpaceError> {
        self.require_writable()?;
        if self.session == Session::Mounted {
            self.begin_session()?;
        }
        self.tell_dead();
        if self.numbers.are_short() {
            self.reserve_numbers()?;
        }
        Ok(())
    }

    pub(crate) fn require_writable(&self) -> Result<(), SpaceError> {
        match self.session {
            _ if self.poisoned => Err(SpaceError::Poisoned),
            Session::ReadOnly => Err(SpaceError::ReadOnly),
            _ => Ok(()),
        }
    }

    pub(crate) fn check_write(
        &self,
        page: LogicalPage,
        payload: &[u8],
        tag: &WriteTag,
    ) -> Result<(), SpaceError> {
        if page.0 >= self.map.len() {
            return Err(SpaceError::OutOfRange(page));
        }
        if tag.append_slots > 0
            && let Some(lack) = self.append_lack(tag.append_slots)
        {
            return Err(SpaceError::Appends(lack));
        }
        let limit = self.layout().payload_size_with(tag.append_slots);
        if payload.len() > limit {
            return Err(SpaceError::TooLong { size: payload.len(), limit });
        }
        Ok(())
    }

    pub(crate) fn new_version(
        &mut self,
        page: LogicalPage,
        tag: &WriteTag,
        group: GroupId,
    ) -> PageMeta {
        PageMeta {
            kind: PageKind::Data,
            part: 0,
            parts: self.options.parts,
            standing: Standing::Plain,
            origin: Origin::Original,
            region: tag.region,
            slots: tag.append_slots,
            page,
            version: self.next_version(),
            lsn: tag.lsn,
            group,
            sequence: 0,
        }
    }

    pub(crate) fn next_version(&mut self) -> Version {
        self.numbers.next_version()
    }

    /// Reads the unit at `at`, which must hold a version of `page`.
    pub(crate) fn read_at(
        &mut self,
        at: u32,
        page: LogicalPage,
        out: &mut Vec<u8>,
    ) -> Result<PageMeta, SpaceError> {
        self.read_at_with(at, page, out, None)
    }

    /// As [`Space::read_at`], with so many appends, if that is said.
    pub(crate) fn read_at_with(
        &mut self,
        at: u32,
        page: LogicalPage,
        out: &mut Vec<u8>,
        appends: Option<u8>,
    ) -> Result<PageMeta, SpaceError> {
        let mut suspects = self.suspects.iter();
        if let Some(suspect) = suspects.find(|it| it.at == at && self.still_holds(it)) {
            out.clear();
            out.extend_from_slice(&suspect.image);
            return Ok(suspect.meta);
        }
        let meta = self.read_unit_with(at, out, appends, ReadPurpose::Data)?;
        self.check_identity(at, &meta)?;
        if meta.kind != PageKind::Data || meta.page != page {
            return Err(self.corrupt(at, crate::Check::Identity));
        }
        Ok(meta)
    }

    /// Whether the suspect's unit counts: its block may have been freed and taken since.
    pub(crate) fn still_holds(&self, suspect: &Suspect) -> bool {
        let block = self.blocks.get(self.blocks.block_of(suspect.at));
        self.blocks.is_live(suspect.at) && block.sequence == suspect.meta.sequence
    }

    /// A unit of an earlier life of its block does not belong there.
    pub(crate) fn check_identity(&self, at: u32, meta: &PageMeta) -> Result<(), SpaceError> {
        let block = self.blocks.block_of(at);
        let stale = meta.sequence != self.blocks.get(block).sequence;
        if stale && !self.flash.bugs.has(SpaceBug::StaleSequenceAccepted) {
            return Err(self.corrupt(at, crate::Check::Identity));
        }
        Ok(())
    }

    /// Reads a unit, a second time if the first read fails: some failures do not repeat. Appends that
    /// belong to the mapped or the pinned version are folded in (A2, A5).
    pub(crate) fn read_unit_twice(
        &mut self,
        at: u32,
        out: &mut Vec<u8>,
        purpose: ReadPurpose,
    ) -> Result<PageMeta, SpaceError> {
        self.read_unit_with(at, out, None, purpose)
    }

    /// As [`Space::read_unit_twice`], with so many appends, if that is said.
    pub(crate) fn read_unit_with(
        &mut self,
        at: u32,
        out: &mut Vec<u8>,
        appends: Option<u8>,
        purpose: ReadPurpose,
    ) -> Result<PageMeta, SpaceError> {
        let (map, pins, frozen) = (&self.map, &self.pins, &self.frozen);
        let appends = |meta: &PageMeta| match (appends, map.get(meta.page) == Some(at)) {
            (Some(count), _) => count,
            (None, true) => map.appends(meta.page),
            (None, false) => {
                let held = frozen.appends(meta.page, at).or_else(|| pins.appends(at));
                held.unwrap_or(0)
            }
        };
        let first = self.flash.read_unit(at, out, &appends, purpose);
        let read = match first {
            Err((_, ReadFault::Bad(_))) => self.flash.read_unit(at, out, &appends, purpose),
            first => first,
        };
        match read {
            Ok(read) => {
                if read.worn && self.worn.len() < WORN_MAX && !self.worn.contains(&at) {
                    self.worn.push(at);
                }
                Ok(read.meta)
            }
            Err((page, ReadFault::Bad(check))) => Err(self.corrupt(page, check)),
            Err((_, ReadFault::Device(error))) => Err(SpaceError::Device(error)),
        }
    }

    pub(crate) fn corrupt(&self, number: u32, check: crate::Check) -> SpaceError {
        match self.layout().geometry.page_from_number(number) {
            Some(page) => SpaceError::Corrupt { page, check },
            None => SpaceError::OutOfRange(LogicalPage(number)),
        }
    }

    /// Points the mapping of `page` to the unit at `at` and lets the old unit go.
    pub(crate) fn map_to(&mut self, page: LogicalPage, at: u32, version: Version) {
        debug_assert!(at != UNMAPPED && self.blocks.is_live(at), "S1");
        self.groups.overtake(page, version);
        if let Some(old) = self.map.set(page, at) {
            self.displace(old);
            self.release_unit(old);
        }
    }

    /// The unit lost its place in mapping or group; a frozen mapping or a pin may still hold it (S2).
    pub(crate) fn release_unit(&mut self, at: u32) {
        if self.is_evidence(at) {
            self.trimmed_unsaved.insert(at);
        } else if self.is_frozen(at) {
            // Y1
        } else if !self.pins.is_pinned(at) || self.flash.bugs.has(SpaceBug::PinsIgnored) {
            self.blocks.drop_live(at);
        }
    }

    /// Takes note of a device error that leaves the state unknown (S4).
    pub(crate) fn fail(&mut self, error: NandError) -> SpaceError {
        self.poisoned = true;
        SpaceError::Device(error)
    }

    pub(crate) fn frontier(&self, stream: Stream) -> Option<&Frontier> {
        self.frontiers[stream as usize].as_ref()
    }

    /// Blocks that failed: marked bad, or about to be.
    #[must_use]
    pub fn lost_blocks(&self) -> u32 {
        self.blocks.count(BlockState::Bad) + self.blocks.count(BlockState::Retired)
    }
}

/// Identity of a version at `at` that has taken no appends.
pub(crate) fn info_of(meta: &PageMeta, at: u32) -> PageInfo {
    let &PageMeta { version, lsn, group, region, sequence, slots, .. } = meta;
    PageInfo { version, lsn, group, region, append_slots: slots, appends: 0, at, sequence }
}
