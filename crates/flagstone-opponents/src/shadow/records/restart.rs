//! Restart: the contents of flash, the transactions that committed, and the verdict that makes both
//! final (R5).
//!
//! Owns the order of a restart. [`crate::evidence`] decides which transactions flags prove
//! committed; the engine, which reads the records, decides which ones the log proves committed.
//!
//! 1. [`RecordStore::mount`]: every block is looked at, the log is read, an epoch is taken (R4).
//!    Blocks of restarts that gave no verdict are emptied: nothing in them counts.
//! 2. [`RecordStore::judge`]: which transactions committed, hence which versions are needed.
//! 3. [`RecordStore::rebuild`]: the engine writes pages whose needed versions may have been in
//!    flight at the cut ([`RecordStore::restless_pages`]), and pages that lack records of the log.
//! 4. [`RecordStore::finish_restart`]: the verdict. Only then is anything erased.
//!
//! - **M1** Of a block without a summary only the last unit may have been in flight; of summaries
//!   only the last one of each die. The former is rewritten, the block of the latter is adopted: its
//!   units count from then on whether its summary reads or not.
//! - **M2** A unit of an earlier epoch in a block without a summary counts only if the block was
//!   adopted: the restart before did not see other units, and they may prove a commit that it has
//!   denied.
//! - **M3** Where two copies of a version stand, both in blocks without a summary, an erase may
//!   have been cut in one of the two blocks: the page is rewritten.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_nand::{BlockIndex, Nand};

use super::log::{self, Batch, LogPage, Said, Verdict};
use super::note::{self, Body, Header, Kind, NO_VERSION, RawNote, SLOT_STRIDE};
use super::place::Line;
use super::table::{Entry, shadow};
use super::{
    Flag, Flags, GroupId, LogicalPage, Lsn, NOWHERE, RecordBug, RecordOptions, RecordStore, Shadow,
    ShadowError, Standing, State, Unit, Work, epoch_of,
};
use crate::shadow::flash::Fault;
use crate::shadow::{Restart, RestartReport};

/// A restart that has not given its verdict.
#[derive(Clone, Debug, Default)]
pub(super) struct Pending {
    /// Epoch of the verdict that counts until then.
    epoch: u64,
    verdict: Verdict,
    found: Vec<Found>,
    /// Units that may have been in flight, and copies in doubt.
    suspects: BTreeSet<u32>,
    /// Bytes of units that may not read a second time.
    held: BTreeMap<u32, Vec<u8>>,
    /// Blocks without a summary, with how many of their units are beyond doubt.
    open: BTreeMap<BlockIndex, u16>,
    /// Flags that a scan saw on units of blocks with a summary.
    scanned: BTreeMap<u32, Vec<Flag>>,
    /// Blocks of the log before.
    old_log: Vec<BlockIndex>,
    issued_ns: u64,
}

impl Pending {
    pub(super) fn held(&self, at: u32) -> Option<&[u8]> {
        self.held.get(&at).map(Vec::as_slice)
    }
}

#[derive(Clone, Debug)]
struct Found {
    at: u32,
    body: Body,
    /// Its flags, where it was read whole: in a block without a summary.
    flags: Option<Vec<Flag>>,
}

impl Found {
    const fn is_open(&self) -> bool {
        self.flags.is_some()
    }
}

/// A unit of a block without a summary: its place, its kind, its flags and its bytes.
type OpenUnit = (u32, Body, Vec<Flag>, Vec<u8>);

/// A block with a summary: the summary's number, and the units.
type SealedBlock = (BlockIndex, u64, Vec<(u32, Body)>);

/// Contents of a block.
enum Look {
    Blank,
    /// Number of its summary, and its units.
    Sealed(u64, Vec<(u32, Body)>),
    Log(Vec<LogPage>),
    /// Units that read whole, with their bytes.
    Open(Vec<OpenUnit>),
}

/// Findings of the first step.
#[derive(Default)]
struct Around {
    log: Vec<(BlockIndex, Vec<LogPage>)>,
    sealed: Vec<SealedBlock>,
    open: Vec<(BlockIndex, Vec<OpenUnit>)>,
    scanned: BTreeMap<u32, Vec<Flag>>,
}

impl Around {
    /// Highest epoch of anything found.
    fn epoch_max(&self) -> u64 {
        let pages = self.log.iter().flat_map(|(_, pages)| pages).map(|page| page.number);
        let sealed = self.sealed.iter().flat_map(|(_, _, units)| units);
        let sealed = sealed.map(|(_, body)| body.header.stamp);
        let open = self.open.iter().flat_map(|(_, units)| units);
        let open = open.map(|(_, body, ..)| body.header.stamp);
        epoch_of(pages.chain(sealed).chain(open).max().unwrap_or(0))
    }
}

impl<D: Nand> RecordStore<D> {
    /// Opens the store that is on a device, as far as its log: the batches that count. The store's
    /// pages are found as `how` says; the header of a unit stands in its first page, so a scan
    /// reads that.
    ///
    /// # Errors
    ///
    /// `NotFormatted`, `OtherOptions`, or an error of the device.
    pub fn mount(
        device: D,
        options: RecordOptions,
        how: Restart,
    ) -> Result<(Self, Vec<Batch>), ShadowError> {
        Self::empty(device, options)?.found(how)
    }

    /// As [`RecordStore::mount`], with a bug planted before the first read.
    ///
    /// # Errors
    ///
    /// As [`RecordStore::mount`].
    #[cfg(feature = "seeded-bugs")]
    #[doc(hidden)]
    pub fn mount_planted(
        device: D,
        options: RecordOptions,
        how: Restart,
        bug: RecordBug,
    ) -> Result<(Self, Vec<Batch>), ShadowError> {
        let mut store = Self::empty(device, options)?;
        store.plant(bug);
        store.found(how)
    }

    /// Plants a bug.
    #[cfg(feature = "seeded-bugs")]
    #[doc(hidden)]
    pub const fn plant(&mut self, bug: RecordBug) {
        self.flash.bugs.plant(bug);
    }

    pub(super) fn found(mut self, how: Restart) -> Result<(Self, Vec<Batch>), ShadowError> {
        let store = &mut self;
        let options = store.options;
        store.flash.work = Work::Restart;
        let issued_ns = store.flash.now();
        let around = store.look_around(how)?;
        let pages: Vec<LogPage> =
            around.log.iter().flat_map(|(_, pages)| pages.iter().cloned()).collect();
        let said = log::read(&pages).ok_or(ShadowError::NotFormatted)?;
        if said.verdict.flags != log::number_of(options.flags)
            || u32::from(said.verdict.unit_pages) != options.unit_pages
        {
            return Err(ShadowError::OtherOptions);
        }
        let Said { epoch, verdict, batches } = said;
        store.set_page_count(verdict.page_count);
        let takes_again = store.flash.bugs.has(RecordBug::EpochTakenAgain);
        let before = if takes_again { epoch } else { around.epoch_max() };
        store.begin_epoch(before + 1);
        let pending = Pending { epoch, verdict, issued_ns, ..Pending::default() };
        store.restart = Some(pending);
        store.append_batch(log::Kind::Intent, &[], store.next_batch())?;
        store.await_programs();
        store.sort_out(around)?;
        Ok((self, batches))
    }

    fn look_around(&mut self, how: Restart) -> Result<Around, ShadowError> {
        let mut around = Around::default();
        let sizes = self.flash.sizes;
        let mut times = vec![self.flash.now(); sizes.geometry.die_count as usize];
        for block in sizes.geometry.blocks() {
            if self.flash.device.is_bad(block)? {
                continue;
            }
            self.blocks.erased(block, self.flash.device.erase_count(block));
            let die = sizes.geometry.die_of(block) as usize;
            self.flash.device.resume_at(times[die]);
            let look = self.look(block)?;
            if let (Restart::Scan, Look::Sealed(_, units)) = (how, &look) {
                self.scan(units, &mut around.scanned)?;
            }
            times[die] = self.flash.now();
            let state = match look {
                Look::Blank => State::Free { clean: false },
                Look::Log(pages) => {
                    around.log.push((block, pages));
                    State::Open
                }
                Look::Sealed(stamp, units) => {
                    around.sealed.push((block, stamp, units));
                    State::Closed
                }
                Look::Open(units) => {
                    around.open.push((block, units));
                    State::Closed
                }
            };
            self.blocks.set_state(block, state);
        }
        self.flash.wait(times.into_iter().max().unwrap_or_default());
        Ok(around)
    }

    fn look(&mut self, block: BlockIndex) -> Result<Look, ShadowError> {
        let (first, last) = (self.flash.sizes.first_of(block), self.flash.sizes.last_of(block));
        let mut data = vec![0; self.flash.sizes.geometry.page_size as usize];
        let found = match self.flash.read_page(last, &mut data) {
            Ok(note) => Some(note),
            Err(Fault::Bad(..)) => None,
            Err(Fault::Device(error)) => return Err(self.fail(error)),
        };
        match found.map(|note| (note.kind, note.version)) {
            Some((Kind::Summary, stamp)) => {
                if let Some(bodies) = note::decode_summary(&data) {
                    let units = self.flash.sizes.units_of(block).zip(bodies).collect();
                    return Ok(Look::Sealed(stamp.0, units));
                }
            }
            Some((Kind::Log, _)) => return self.read_log(block),
            _ => {}
        }
        let head = self.flash.peek(first)?.0;
        let tail = self.flash.peek(last)?.0;
        match head {
            RawNote::Found(note, _) if note.kind == Kind::Log => self.read_log(block),
            RawNote::Erased if tail == RawNote::Erased => Ok(Look::Blank),
            _ => self.read_units(block),
        }
    }

    /// Reads the headers of the units of a sealed block. Remains of a header after a cut erase may
    /// decode by chance: a header has to be the one that the summary names.
    fn scan(
        &mut self,
        units: &[(u32, Body)],
        scanned: &mut BTreeMap<u32, Vec<Flag>>,
    ) -> Result<(), ShadowError> {
        let mut data = vec![0; self.flash.sizes.geometry.page_size as usize];
        for (at, body) in units {
            match self.flash.read_flagged(*at, &mut data) {
                Ok((note, flags)) => {
                    let is_it = (note.page, note.version) == (body.page, body.version)
                        && Header::decode(&data).as_ref() == Some(&body.header);
                    if is_it && !body.header.members.is_empty() {
                        scanned.insert(*at, flags);
                    }
                }
                Err(Fault::Bad(..)) => {}
                Err(Fault::Device(error)) => return Err(self.fail(error)),
            }
        }
        Ok(())
    }

    fn read_log(&mut self, block: BlockIndex) -> Result<Look, ShadowError> {
        let (first, end) = self.flash.sizes.range_of(block);
        let mut data = vec![0; self.flash.sizes.geometry.page_size as usize];
        let mut pages = Vec::new();
        for number in first..end {
            match self.flash.read_page(number, &mut data) {
                Ok(note) if note.kind == Kind::Log => {
                    pages.extend(LogPage::decode(note.version.0, &data));
                }
                Ok(_) | Err(Fault::Bad(..)) => {}
                Err(Fault::Device(error)) => return Err(self.fail(error)),
            }
        }
        Ok(Look::Log(pages))
    }

    fn read_units(&mut self, block: BlockIndex) -> Result<Look, ShadowError> {
        let mut units = Vec::new();
        let mut bytes = vec![0; self.flash.sizes.unit_size];
        for at in self.flash.sizes.units_of(block) {
            match self.flash.read_unit_flagged(at, &mut bytes) {
                Ok((note, header, flags)) => {
                    let body = Body { page: note.page, version: note.version, header };
                    units.push((at, body, flags, bytes.clone()));
                }
                Err(Fault::Bad(..)) => {}
                Err(Fault::Device(error)) => return Err(self.fail(error)),
            }
        }
        Ok(Look::Open(units))
    }

    /// Keeps the units that count; frees blocks of restarts without a verdict, their log first:
    /// should their verdict appear later, every unit that it counts on must still be there.
    fn sort_out(&mut self, around: Around) -> Result<(), ShadowError> {
        let Some(mut pending) = self.restart.take() else { return Ok(()) };
        pending.scanned = around.scanned;
        for (block, pages) in around.log {
            if pages.iter().any(|page| epoch_of(page.number) > pending.epoch) {
                self.blocks.set_state(block, State::Closed);
                self.erase(block)?;
            } else {
                pending.old_log.push(block);
            }
        }
        let mut idle = Vec::new();
        self.sort_sealed(&mut pending, around.sealed, &mut idle);
        for (block, units) in around.open {
            let count = pending.found.len();
            self.sort_open(&mut pending, block, units);
            if pending.found.len() == count {
                idle.push(block);
            }
        }
        for block in idle {
            self.blocks.set_state(block, State::Free { clean: false });
        }
        self.restart = Some(pending);
        Ok(())
    }

    fn sort_sealed(
        &self,
        pending: &mut Pending,
        sealed: Vec<SealedBlock>,
        idle: &mut Vec<BlockIndex>,
    ) {
        let mut newest: BTreeMap<u32, (u64, BlockIndex)> = BTreeMap::new();
        for (block, stamp, units) in sealed {
            let counts = |body: &Body| epoch_of(body.header.stamp) <= pending.epoch;
            let own = units.into_iter().filter(|(_, body)| counts(body));
            let own: Vec<Found> = own.map(|(at, body)| Found { at, body, flags: None }).collect();
            if own.is_empty() {
                idle.push(block);
                continue;
            }
            pending.found.extend(own);
            let die = self.flash.sizes.geometry.die_of(block);
            let last = newest.entry(die).or_insert((stamp, block));
            *last = (*last).max((stamp, block));
        }
        for (_, block) in newest.into_values() {
            pending.open.insert(block, self.flash.sizes.units_per_block as u16);
        }
    }

    /// Units of a block without a summary (M1, M2).
    fn sort_open(&self, pending: &mut Pending, block: BlockIndex, units: Vec<OpenUnit>) {
        let index_of =
            |at: u32| ((at - self.flash.sizes.first_of(block)) / self.flash.sizes.parts) as u16;
        let adopted = pending.verdict.adopted.get(&block).copied();
        let epoch = pending.epoch;
        let counts = |at: u32, body: &Body| match adopted {
            Some(count) => index_of(at) < count,
            None => epoch_of(body.header.stamp) == epoch,
        };
        let own = units.into_iter().filter(|(at, body, ..)| counts(*at, body));
        let own: Vec<OpenUnit> = own.collect();
        let Some((last, ..)) = own.last() else { return };
        let sure = match adopted {
            Some(count) => count,
            None => {
                if !self.flash.bugs.has(RecordBug::SuspectsKept) {
                    pending.suspects.insert(*last);
                }
                index_of(*last)
            }
        };
        pending.open.insert(block, sure);
        for (at, body, flags, bytes) in own {
            pending.held.insert(at, bytes);
            pending.found.push(Found { at, body, flags: Some(flags) });
        }
    }

    /// Decides who committed; `recorded` are the transactions whose commit record the log has.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    pub fn judge(&mut self, recorded: &BTreeSet<GroupId>) -> Result<(), ShadowError> {
        let Some(mut pending) = self.restart.take() else { return Ok(()) };
        let mut found = std::mem::take(&mut pending.found);
        let mut shadows: BTreeMap<GroupId, Vec<Shadow<u32>>> = BTreeMap::new();
        for unit in &found {
            let is_doubtful = |xid: GroupId| {
                epoch_of(xid.0) == pending.epoch
                    && !recorded.contains(&xid)
                    && !pending.verdict.dead.contains(&xid)
                    && !pending.verdict.proven.contains(&xid)
            };
            let members = &unit.body.header.members;
            if !members.iter().any(|member| is_doubtful(member.xid)) {
                continue;
            }
            let body = &unit.body;
            let flags = match unit.flags.as_ref().or_else(|| pending.scanned.get(&unit.at)) {
                Some(flags) => Some(flags.clone()),
                None => self.flash.peek_flags(unit.at, (body.page, body.version))?,
            };
            // A unit that a cut erase took proves nothing.
            let Some(flags) = flags else { continue };
            for (slot, member) in members.iter().enumerate() {
                if is_doubtful(member.xid) {
                    let address = unit.at * SLOT_STRIDE + slot as u32;
                    let own = shadows.entry(member.xid).or_default();
                    own.push(shadow(address, body, slot, flags[slot]));
                }
            }
        }
        let mut dead = pending.verdict.dead.clone();
        for (xid, own) in &shadows {
            if !self.options.flags.committed(own).contains(xid) {
                dead.insert(*xid);
            }
        }
        self.report.uncommitted = dead.len() as u64;
        self.report.committed = (shadows.len() as u64).saturating_sub(dead.len() as u64);
        self.enter_dead(&found, &dead);
        self.choose_copies(&mut pending, &mut found)?;
        self.restart = Some(pending);
        self.map_newest(found);
        Ok(())
    }

    /// Enters the transactions that did not commit, so that they stay known as long as flash holds
    /// a unit of theirs.
    fn enter_dead(&mut self, found: &[Found], dead: &BTreeSet<GroupId>) {
        for unit in found {
            for (slot, member) in unit.body.header.members.iter().enumerate() {
                if !dead.contains(&member.xid) {
                    continue;
                }
                if self.table.get(member.xid).is_none() {
                    self.table.insert(member.xid, Entry::new(Standing::Aborted));
                }
                let address = unit.at * SLOT_STRIDE + slot as u32;
                let own = shadow(address, &unit.body, slot, Flag::First);
                if let Some(entry) = self.table.get_mut(member.xid) {
                    entry.members.push(own);
                }
            }
        }
    }

    /// Leaves one copy of each version (M3).
    fn choose_copies(
        &mut self,
        pending: &mut Pending,
        found: &mut Vec<Found>,
    ) -> Result<(), ShadowError> {
        let rank = |unit: &Found| (unit.body.page, std::cmp::Reverse(unit.body.version));
        found.sort_by_key(|unit| (rank(unit), unit.is_open(), unit.at));
        let mut chosen: Vec<Found> = Vec::with_capacity(found.len());
        for unit in found.drain(..) {
            let Some(before) = chosen.last_mut().filter(|before| rank(before) == rank(&unit))
            else {
                chosen.push(unit);
                continue;
            };
            if before.is_open() {
                pending.suspects.insert(before.at);
            } else if !self.flash.bugs.has(RecordBug::CopyNotRead)
                && !self.is_there(before.at, &before.body)?
            {
                *before = unit;
            }
        }
        *found = chosen;
        Ok(())
    }

    /// Whether a unit that a summary names reads whole.
    fn is_there(&mut self, at: u32, body: &Body) -> Result<bool, ShadowError> {
        let mut bytes = vec![0; self.flash.sizes.unit_size];
        match self.flash.read_unit(at, &mut bytes) {
            Ok((note, _)) => Ok((note.page, note.version) == (body.page, body.version)),
            Err(Fault::Bad(..)) => Ok(false),
            Err(Fault::Device(error)) => Err(self.fail(error)),
        }
    }

    /// The mapping, and the versions that are needed (R1); `found` has the newest of a page first.
    fn map_newest(&mut self, found: Vec<Found>) {
        for unit in found {
            let Found { at, body: Body { page, version, header }, .. } = unit;
            let index = page.0 as usize;
            if index >= self.map.len() {
                continue;
            }
            let members: Vec<GroupId> = header.members.iter().map(|member| member.xid).collect();
            let known = Unit { page, version, back: header.back, members };
            if self.map[index] == NOWHERE {
                self.map[index] = at;
                self.versions[index] = version.0;
                if !known.members.is_empty() {
                    self.units.insert(at, known);
                }
            } else {
                self.units.insert(at, known);
                self.olds.entry(page).or_default().push(at);
            }
            self.add_live(at);
        }
        let pages: Vec<LogicalPage> = self.olds.keys().copied().collect();
        pages.into_iter().for_each(|page| self.settle(page));
    }

    /// Pages of which a needed version may have been in flight: they are to be rebuilt.
    #[must_use]
    pub fn restless_pages(&self) -> BTreeSet<LogicalPage> {
        let Some(pending) = &self.restart else { return BTreeSet::new() };
        let newest = (0..).zip(&self.map).filter(|(_, at)| pending.suspects.contains(at));
        let newest = newest.map(|(page, _)| LogicalPage(page));
        let is_restless = |olds: &Vec<u32>| olds.iter().any(|at| pending.suspects.contains(at));
        let olds = self.olds.iter().filter(|(_, olds)| is_restless(olds)).map(|(page, _)| *page);
        newest.chain(olds).collect()
    }

    /// Writes a page whole, complete up to `lsn`: it counts with the verdict.
    ///
    /// # Errors
    ///
    /// `Full`, or an error of the device.
    pub fn rebuild(
        &mut self,
        page: LogicalPage,
        image: &[u8],
        lsn: Lsn,
    ) -> Result<(), ShadowError> {
        self.check_write(page, image, &[])?;
        let version = self.next_version();
        let header = Header { back: NO_VERSION, stamp: version.0, lsn, members: Vec::new() };
        let body = Body { page, version, header };
        let (at, end_ns) = self.put(Line::Moved, &body, &[], image)?;
        self.supersede(at, body, end_ns);
        Ok(())
    }

    /// Gives the verdict (step 4).
    ///
    /// # Errors
    ///
    /// Errors of the device.
    pub fn finish_restart(&mut self) -> Result<(), ShadowError> {
        let Some(pending) = self.restart.clone() else { return Ok(()) };
        let is_used = |block: &BlockIndex| self.blocks.live(*block) > 0;
        // A block once adopted stays adopted: its summary may read now, and not the next time.
        let adopted = pending.verdict.adopted.iter().chain(&pending.open);
        let adopted = adopted.filter(|(block, _)| is_used(block));
        let adopts = !self.flash.bugs.has(RecordBug::BlocksNotAdopted);
        self.adopted = adopted.filter(|_| adopts).map(|(block, count)| (*block, *count)).collect();
        if self.flash.bugs.has(RecordBug::LogErasedEarly) {
            for block in &pending.old_log {
                self.blocks.set_state(*block, State::Closed);
                self.erase(*block)?;
            }
        }
        self.give_verdict()?;
        self.restart = None;
        self.flash.work = Work::Host;
        for block in pending.old_log {
            self.blocks.set_state(block, State::Closed);
            self.erase(block)?;
        }
        for block in pending.open.into_keys() {
            if self.blocks.state(block) == State::Closed && self.blocks.live(block) == 0 {
                self.blocks.set_state(block, State::Free { clean: false });
            }
        }
        let tally = self.flash.tally(Work::Restart);
        self.report.page_reads = tally.page_reads;
        self.report.spare_reads = tally.spare_reads;
        self.report.device_ns = self.flash.now().saturating_sub(pending.issued_ns);
        Ok(())
    }

    /// Report of the restart that opened this store; all zero after a format.
    #[must_use]
    pub const fn restart_report(&self) -> &RestartReport {
        &self.report
    }

    /// Protocol of the flags.
    #[must_use]
    pub const fn flags(&self) -> Flags {
        self.options.flags
    }
}
