//! Restart: the contents of flash, and the repairs due before anything else happens.
//!
//! Owns the order of a restart. `judge` decides which transactions committed.
//!
//! 1. Every block is looked at: its spare areas, or its summary. A block without a summary was
//!    open; its pages are read whole.
//! 2. Transactions are judged, the mapping and the transaction table are built.
//! 3. The last unit of each open block may have been in flight: where it counts, it is copied.
//! 4. Flags of transactions that were committing are finished (rule E3). Flags that may have been in
//!    flight are programmed again, as they were taken: nothing is erased before that. A unit that
//!    does not read whole may do so next time: where it would prove a transaction committed that
//!    counts as uncommitted now, it becomes `False` first (rule R1).
//! 5. The evidence in pages of open blocks is left elsewhere, as if one erase took them all. Only
//!    then are blocks erased whose pages took no flag.
//! 6. A mark reserves new numbers, and says that all flags below are complete, and that blocks are
//!    being emptied.
//! 7. Blocks that were open are emptied (H5). Another mark says so.
//!
//! A restart that is cut starts again from the pages it finds; nothing before step 6 raises the
//! floor.
//!
//! R1. A unit that a restart did not see must prove nothing to the next one, which finds fewer
//!     pages: a torn unit that is `True`, or that shows no note at all, is dismissed before any
//!     page of its transaction is erased, and before the erase of its own block, which may leave
//!     the unit (rule E6). A block that holds only such a unit is erased first. A place that shows
//!     nothing takes no flag, because the number of its programs is unknown: marks name the place
//!     until its block is erased, and a unit that appears there belongs to no transaction.
//! R2. No flag is programmed where an erase may have been cut: a block that shows a cut erase takes
//!     none, and a block with too few pages to show one was open. From step 6 on no flag goes into
//!     such blocks, and the next restart finds no flag there that it has to program again.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_nand::{BlockIndex, Nand};

use super::blocks::{Cells, State};
use super::bugs::ShadowBug;
use super::collect::{Copied, Handed};
use super::flash::{Fault, Work};
use super::note::{Kind, RawNote};
use super::place::{ATTEMPTS, Hidden, Mark};
use super::table::Written;
use super::{ShadowError, ShadowOptions, ShadowStore};
use crate::evidence::Flag;
use flagstone_space::{Check, GroupId, Version};

/// Source from which a restart learns which pages there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Restart {
    /// From the spare area of every page, checked against the summary of its block.
    Scan,
    /// From the summary of every block; flags are read where they decide.
    #[default]
    Summaries,
}

/// Report of a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestartReport {
    /// Pages read whole.
    pub page_reads: u64,
    /// Spare areas read.
    pub spare_reads: u64,
    /// Device time from the first read to the last program.
    pub device_ns: u64,
    /// Device time of the reads alone: the mapping stands.
    pub judged_ns: u64,
    /// Transactions that the pages prove committed (records, for cyclic protocols).
    pub committed: u64,
    /// Transactions with pages on flash that did not commit (records, for cyclic protocols).
    pub uncommitted: u64,
    /// Flags of committing transactions that were finished.
    pub flags_finished: u64,
    /// Blocks emptied because a unit in them may have been in flight.
    pub blocks_emptied: u64,
}

/// Contents of a block.
pub(super) enum Look {
    Free,
    /// It has a summary: all its units were complete.
    Sealed(Vec<Written>),
    /// It was open, or half erased. Its last unit was read once, and may not read again.
    Open(Opened),
}

/// A block without a summary.
#[derive(Debug, Default)]
pub(super) struct Opened {
    /// Units that read whole.
    units: Vec<Written>,
    /// Bytes of the last of `units`.
    image: Vec<u8>,
    /// Units that show a note, but did not read whole.
    torn: Vec<Written>,
    /// The place behind the last unit, if it shows no note: a unit may appear there.
    hidden: Option<Hidden>,
}

/// Findings of the first step.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) units: Vec<Written>,
    marks: Vec<Written>,
    /// Blocks without a summary in which no unit reads whole.
    hollow: Vec<BlockIndex>,
    /// Other blocks that were open.
    open: Vec<BlockIndex>,
    /// Last units of the blocks in `open`, with their bytes.
    suspects: Vec<(Written, Vec<u8>)>,
    /// All their units.
    opened: Vec<Written>,
    /// Their units that did not read whole.
    torn: Vec<Written>,
    /// Places in open blocks where a unit may appear.
    hidden: Vec<Hidden>,
}

/// Repairs due before the store is used.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    /// Flags of committed transactions to be finished, and flags that may have been in flight.
    pub(super) finish: Vec<(GroupId, u32, Flag)>,
    /// Flags of other transactions that may have been in flight: they never become `True`.
    pub(super) dismiss: Vec<(GroupId, u32, Flag)>,
}

/// Dies that are read side by side, each with its own time.
#[derive(Debug)]
pub(super) struct Dies(Vec<u64>);

impl Dies {
    /// Does the work on one block in the time of its die.
    pub(super) fn on<D: Nand, T>(
        &mut self,
        store: &mut ShadowStore<D>,
        block: BlockIndex,
        act: impl FnOnce(&mut ShadowStore<D>) -> T,
    ) -> T {
        let die = store.flash.sizes.geometry.die_of(block) as usize;
        if let Some(time) = self.0.get(die) {
            store.flash.device.resume_at(*time);
        }
        let result = act(store);
        if let Some(time) = self.0.get_mut(die) {
            *time = store.flash.now();
        }
        result
    }

    fn join<D: Nand>(self, store: &mut ShadowStore<D>) {
        let end_ns = self.0.into_iter().max().unwrap_or_default();
        store.flash.wait(end_ns);
    }
}

impl<D: Nand> ShadowStore<D> {
    /// Opens the store that is on a device.
    ///
    /// # Errors
    ///
    /// `NotFormatted`, `OtherOptions`, or an error of the device.
    pub fn mount(device: D, options: ShadowOptions, how: Restart) -> Result<Self, ShadowError> {
        Self::empty(device, options)?.restart(how)
    }

    /// As [`ShadowStore::mount`], with a bug planted before the first read.
    #[cfg(feature = "seeded-bugs")]
    #[doc(hidden)]
    pub fn mount_planted(
        device: D,
        options: ShadowOptions,
        how: Restart,
        bug: ShadowBug,
    ) -> Result<Self, ShadowError> {
        let mut store = Self::empty(device, options)?;
        store.plant(bug);
        store.restart(how)
    }

    /// Plants a deliberate bug.
    #[cfg(feature = "seeded-bugs")]
    #[doc(hidden)]
    pub fn plant(&mut self, bug: ShadowBug) {
        self.flash.bugs.plant(bug);
    }

    /// Report of the restart that opened this store; all zero after a format.
    #[must_use]
    pub const fn restart_report(&self) -> &RestartReport {
        &self.report
    }

    fn restart(mut self, how: Restart) -> Result<Self, ShadowError> {
        let issued_ns = self.flash.now();
        self.flash.work = Work::Restart;
        let mut dies = Dies(vec![issued_ns; self.flash.sizes.geometry.die_count as usize]);
        let mut found = self.look_around(how, &mut dies)?;
        self.read_mark(&mut found.marks)?;
        self.forget_hidden(&mut found);
        let units = std::mem::take(&mut found.units);
        let repairs = self.judge(units, how, &mut dies)?;
        dies.join(&mut self);
        self.report.judged_ns = self.flash.now() - issued_ns;
        self.repair(&found, repairs)?;
        let tally = self.flash.tally(Work::Restart);
        self.report.page_reads = tally.page_reads;
        self.report.spare_reads = tally.spare_reads;
        self.flash.wait(self.end_ns);
        self.report.device_ns = self.flash.now() - issued_ns;
        self.flash.work = Work::Host;
        Ok(self)
    }

    /// Step 1.
    fn look_around(&mut self, how: Restart, dies: &mut Dies) -> Result<Found, ShadowError> {
        let mut found = Found::default();
        for block in self.flash.sizes.geometry.blocks() {
            if self.flash.device.is_bad(block)? {
                continue;
            }
            let erases = self.flash.device.erase_count(block);
            self.blocks.erased(block, erases);
            let units = match dies.on(self, block, |store| store.look(block, how))? {
                Look::Free => {
                    self.blocks.set_state(block, State::Free { clean: false });
                    continue;
                }
                Look::Sealed(units) => units,
                Look::Open(Opened { units, image, torn, hidden }) => {
                    let list = if units.is_empty() { &mut found.hollow } else { &mut found.open };
                    list.push(block);
                    found.suspects.extend(units.last().map(|last| (*last, image)));
                    found.opened.extend(&units);
                    found.torn.extend(torn);
                    found.hidden.extend(hidden);
                    units
                }
            };
            self.blocks.set_state(block, State::Closed);
            for unit in units {
                match unit.note.kind {
                    Kind::Data => found.units.push(unit),
                    Kind::Mark => found.marks.push(unit),
                    Kind::Summary => {}
                }
            }
        }
        Ok(found)
    }

    fn look(&mut self, block: BlockIndex, how: Restart) -> Result<Look, ShadowError> {
        if let Some(notes) = self.read_summary(block)? {
            let places = self.flash.sizes.units_of(block).zip(notes);
            let units: Vec<Written> =
                places.map(|(at, note)| Written { at, note, flag: note.initial }).collect();
            return match how {
                Restart::Scan => self.peek_units(units).map(Look::Sealed),
                Restart::Summaries => Ok(Look::Sealed(units)),
            };
        }
        let (first, last) = (self.flash.sizes.first_of(block), self.flash.sizes.summary_of(block));
        for place in [last, first] {
            if self.flash.peek(place)? != RawNote::Erased {
                return self.read_units(block);
            }
        }
        Ok(Look::Free)
    }

    /// Units of a sealed block that their spare areas show, with their flags. Remains of a note
    /// after a cut erase may decode by chance: a note has to be the one that the summary names.
    fn peek_units(&mut self, units: Vec<Written>) -> Result<Vec<Written>, ShadowError> {
        let mut seen = Vec::with_capacity(units.len());
        for unit in units {
            let found = self.flash.peek_unit(unit.at)?.filter(|(note, _)| *note == unit.note);
            seen.extend(found.map(|(_, flag)| Written { flag, ..unit }));
        }
        Ok(seen)
    }

    /// Units of a block that was open, as far as they read whole.
    fn read_units(&mut self, block: BlockIndex) -> Result<Look, ShadowError> {
        let mut opened = Opened::default();
        let mut image = vec![0; self.page_size()];
        for at in self.flash.sizes.units_of(block) {
            let behind = opened.units.last().map(|last| Hidden {
                at: last.at + self.flash.sizes.parts,
                behind: last.note.version,
            });
            match self.flash.read_unit(at, &mut image) {
                Ok((note, flag)) => {
                    opened.units.push(Written { at, note, flag });
                    opened.image.clone_from(&image);
                    opened.hidden = None;
                }
                Err(Fault::Bad(_, check)) => {
                    let is_blank = check == Check::Erased;
                    let torn = if is_blank { None } else { self.look_again(at)? };
                    if torn.is_none() {
                        opened.hidden = behind.filter(|hidden| hidden.at == at).or(opened.hidden);
                    }
                    opened.torn.extend(torn);
                }
                Err(Fault::Device(error)) => return Err(self.fail(error)),
            }
        }
        Ok(Look::Open(opened))
    }

    /// Note and flag of a unit that did not read whole. Cells in doubt may show them only at a
    /// later attempt.
    fn look_again(&mut self, at: u32) -> Result<Option<Written>, ShadowError> {
        for _ in 0..ATTEMPTS {
            if let Some((note, flag)) = self.flash.peek_first(at)? {
                return Ok(Some(Written { at, note, flag }));
            }
        }
        Ok(None)
    }

    /// Finds the newest mark that reads whole, and checks the options the store was made with.
    fn read_mark(&mut self, marks: &mut [Written]) -> Result<(), ShadowError> {
        marks.sort_unstable_by_key(|unit| std::cmp::Reverse(unit.note.version));
        let mut image = vec![0; self.page_size()];
        for unit in marks.iter() {
            let Ok((note, _)) = self.flash.read_unit(unit.at, &mut image) else { continue };
            if note.version != unit.note.version {
                continue;
            }
            let mark = Mark::decode(&image).ok_or(ShadowError::OtherOptions)?;
            let options = &self.options;
            let is_same = mark.protocol == options.protocol.number()
                && mark.block_flags == options.block_flags
                && mark.unit_pages == options.unit_pages;
            if !is_same {
                return Err(ShadowError::OtherOptions);
            }
            self.set_page_count(mark.page_count);
            self.next_xid = mark.xid_bound;
            self.mark_at = Some(unit.at);
            self.add_live(unit.at);
            self.version = self.version.max(note.version.0);
            self.restart_floor = Some(note.mark);
            self.was_emptying = mark.is_emptying;
            self.hidden = mark.hidden;
            return Ok(());
        }
        Err(ShadowError::NotFormatted)
    }

    /// Steps 3 to 7.
    fn repair(&mut self, found: &Found, mut repairs: Repairs) -> Result<(), ShadowError> {
        let keeps = self.flash.bugs.has(ShadowBug::SuspectsKept);
        self.doomed = found.hollow.iter().chain(&found.open).copied().collect();
        if !keeps {
            self.copy_suspects(&found.suspects, &mut repairs)?;
            repairs.dismiss.extend(self.torn_proofs(&found.torn));
            self.dismiss_hidden(&found.hidden)?;
        }
        let mut refused = Vec::new();
        if !self.flash.bugs.has(ShadowBug::FlagsNotFinished) {
            self.report.flags_finished += repairs.finish.len() as u64;
            refused.extend(self.program_again(&repairs.finish)?);
        }
        if !keeps && !self.flash.bugs.has(ShadowBug::HalfFlaggedAborts) {
            refused.extend(self.program_again(&repairs.dismiss)?);
        }
        if !keeps {
            self.leave_evidence(&found.opened, !refused.is_empty())?;
        }
        self.collect_refused(refused)?;
        if !keeps {
            self.is_emptying = true;
            self.raise_floor()?;
            self.empty_all(&found.hollow)?;
            self.empty_all(&found.open)?;
            self.is_emptying = false;
        }
        self.doomed.clear();
        self.raise_floor()
    }

    /// Step 5. Blocks whose pages take no flag go as well, with their evidence: blocks found now,
    /// and, if `more_go`, blocks found before.
    fn leave_evidence(&mut self, opened: &[Written], more_go: bool) -> Result<(), ShadowError> {
        let blocks = self.doomed.clone();
        let is_refused = self.hand_on(&blocks, opened)? != Handed::All;
        if self.flash.sizes.has_flags {
            self.move_evidence(opened, more_go || is_refused)?;
        }
        if is_refused { self.hand_on_all(&blocks, opened) } else { Ok(()) }
    }

    /// Moves out one page of each committed transaction with units in several of these blocks: one
    /// block may go before another whose pages it proves. Of a transaction in a single block, every
    /// page that counts is moved before that block goes; with `more_go` its proof may stand in
    /// another block, so one page is moved beforehand, too.
    fn move_evidence(&mut self, opened: &[Written], more_go: bool) -> Result<(), ShadowError> {
        let mut places: BTreeMap<GroupId, BTreeSet<BlockIndex>> = BTreeMap::new();
        let data = || opened.iter().filter(|unit| unit.note.kind == Kind::Data);
        for unit in data() {
            places.entry(unit.note.xid()).or_default().insert(self.flash.sizes.block_of(unit.at));
        }
        places.retain(|_, blocks| blocks.len() > 1 || more_go);
        for unit in data() {
            let is_current = self.map.get(unit.note.page.0 as usize) == Some(&unit.at);
            let is_committed = self.table.get(unit.note.xid()).is_none();
            if is_current && is_committed && places.remove(&unit.note.xid()).is_some() {
                match self.move_out(unit) {
                    Ok(end_ns) => self.flash.wait(end_ns),
                    // It stays where it is, and its block too.
                    Err(ShadowError::Corrupt { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Says in a mark that all flags are complete.
    fn raise_floor(&mut self) -> Result<(), ShadowError> {
        self.restart_floor = None;
        self.write_mark()?;
        self.flash.wait(self.end_ns);
        Ok(())
    }

    /// Step 3. A copy that is `True` proves its transaction committed: it comes after the copies of
    /// the pages it vouches for, which get their flags in the next step.
    fn copy_suspects(
        &mut self,
        suspects: &[(Written, Vec<u8>)],
        repairs: &mut Repairs,
    ) -> Result<(), ShadowError> {
        let (proofs, others): (Vec<_>, Vec<_>) =
            suspects.iter().partition(|(unit, _)| unit.flag == Flag::True);
        for (unit, image) in others.into_iter().chain(proofs) {
            let (copy, end_ns) = self.write_again(unit, image, Copied::Suspect)?;
            self.flash.wait(end_ns);
            let late = copy.filter(|copy| self.flash.sizes.has_flags && copy.flag != Flag::True);
            let late = late.filter(|copy| copy.note.kind == Kind::Data);
            repairs.finish.extend(late.map(|copy| (copy.note.xid(), copy.at, Flag::True)));
        }
        Ok(())
    }

    /// Flags to be dismissed (R1). A torn copy of a committed page, and a torn unit that is not
    /// `True`, says nothing new; nor does a torn unit of a transaction below the floor, for it was
    /// dismissed before.
    fn torn_proofs(&self, torn: &[Written]) -> impl Iterator<Item = (GroupId, u32, Flag)> {
        let has_flags = self.flash.sizes.has_flags;
        let proofs = torn.iter().filter(move |unit| has_flags && unit.flag == Flag::True);
        let proofs = proofs.filter(|unit| self.is_recent(&unit.note));
        let proofs = proofs.filter(|unit| self.table.get(unit.note.xid()).is_some());
        proofs.map(|unit| (unit.note.xid(), unit.at, Flag::False))
    }

    /// The next mark names the places that show nothing (R1). Where a restart was emptying blocks,
    /// only copies of units that stand elsewhere too were in flight.
    fn dismiss_hidden(&mut self, hidden: &[Hidden]) -> Result<(), ShadowError> {
        if self.was_emptying || !self.flash.sizes.has_flags {
            return Ok(());
        }
        let known = self.hidden.len();
        for place in hidden {
            if !self.hidden.contains(place) {
                self.hidden.push(*place);
            }
        }
        self.is_mark_due = self.hidden.len() > known;
        if self.hidden.len() > Mark::places(self.page_size()) {
            return Err(ShadowError::Full);
        }
        Ok(())
    }

    /// Forgets units that a mark dismissed before they showed (R1), but no whole ones: where another
    /// unit stands before the place by now, its block was erased since.
    fn forget_hidden(&mut self, found: &mut Found) {
        let stand = found.units.iter().chain(&found.marks);
        let stand: BTreeMap<u32, Version> =
            stand.map(|unit| (unit.at, unit.note.version)).collect();
        let before = |place: &Hidden| stand.get(&(place.at.checked_sub(self.flash.sizes.parts)?));
        self.hidden.retain(|place| before(place).is_none_or(|version| *version == place.behind));
        let is_nobodys = |unit: &Written| self.hidden.iter().any(|place| place.at == unit.at);
        found.units.retain(|unit| !is_nobodys(unit));
        found.opened.retain(|unit| !is_nobodys(unit));
        found.suspects.retain(|(unit, _)| !is_nobodys(unit));
        found.torn.retain(|unit| !is_nobodys(unit));
    }

    /// Step 4; gives the blocks of pages that took no flag.
    fn program_again(
        &mut self,
        flags: &[(GroupId, u32, Flag)],
    ) -> Result<Vec<(GroupId, BlockIndex)>, ShadowError> {
        let mut refused = Vec::new();
        for (xid, at, flag) in flags {
            self.counts.flags_restart += 1;
            let block = self.flash.sizes.block_of(*at);
            if self.set_flag(*at, *flag)? {
                self.note_flag(*xid, *at, *flag);
            } else if self.blocks.cells(block) != Cells::Spent {
                refused.push((*xid, block));
            }
        }
        Ok(refused)
    }

    /// Moves pages that took no flag, unless an erase was cut there: then nothing in their block was
    /// in flight. Called once all other pages have their flags and blocks to be emptied prove
    /// nothing: pages there count as gone already.
    fn collect_refused(&mut self, refused: Vec<(GroupId, BlockIndex)>) -> Result<(), ShadowError> {
        for (xid, block) in refused {
            self.close(block)?;
            if self.blocks.state(block) == State::Closed && self.collect(block)?.is_none() {
                return Err(ShadowError::FlagRefused(xid));
            }
        }
        Ok(())
    }

    /// Step 7: the emptiest first, so that there is room for the others.
    fn empty_all(&mut self, blocks: &[BlockIndex]) -> Result<(), ShadowError> {
        let mut blocks = Vec::from(blocks);
        blocks.sort_by_key(|block| (self.blocks.live(*block), *block));
        for block in blocks {
            // Collecting one may have taken another, which is in use again.
            if self.blocks.state(block) != State::Closed {
                continue;
            }
            if self.collect(block)?.is_none() && self.blocks.live(block) > self.moved_room() {
                return Err(ShadowError::Full);
            }
            self.report.blocks_emptied += 1;
        }
        Ok(())
    }
}
