//! Garbage collection: live units are moved, flags are handed on, the block is erased.
//!
//! Owns the order of a collection (H3, H4). [`crate::evidence`] decides which flags are handed on.
//!
//! V1. Flags first, while nothing has changed: a flag that cannot be set leaves the block as it
//!     was.
//! V2. A victim is taken only when the free room holds all its units that stay, so its collection
//!     always finishes.
//! V3. A flag that is set although the page which links to it still stands may have been in flight:
//!     it is programmed again.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_nand::{BlockIndex, Nand};

use super::blocks::{Cells, State};
use super::bugs::ShadowBug;
use super::flash::{Fault, Work};
use super::note::{Kind, NOWHERE, Note};
use super::options::Evidence;
use super::place::{ATTEMPTS, Line};
use super::table::{Grain, Standing, Written};
use super::{ShadowError, ShadowProtocol, ShadowStore, summary};
use crate::evidence::{Flag, Flags};
use flagstone_space::{Check, GroupId};

/// Role of a unit in a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Running(GroupId),
    /// The committed version of its page.
    Current,
    /// Kept for another one (BPCC).
    Held,
    Mark,
    Dead,
}

/// Knowledge about a unit that is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copied {
    /// It was complete.
    Settled,
    /// It may have been in flight at a cut, and others of its transaction too.
    Suspect,
}

/// Outcome of handing on the flags that a victim leaves to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handed {
    All,
    /// A page of the block does not take its flag.
    Refused(GroupId, BlockIndex),
}

impl<D: Nand> ShadowStore<D> {
    /// Collects the best victim; whether there was room to gain.
    pub(super) fn collect_one(&mut self) -> Result<bool, ShadowError> {
        for _ in 0..ATTEMPTS {
            let Some(victim) = self.blocks.victim() else { return Ok(false) };
            if self.blocks.live(victim) >= self.flash.sizes.units_per_block {
                return Ok(false);
            }
            if self.collect(victim)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Empties and erases a closed block; gives the time at which the erase is complete. `None`
    /// when a unit of the block cannot be read or flagged, or there is no room (V2): the block is
    /// left as it was.
    pub(super) fn collect(&mut self, block: BlockIndex) -> Result<Option<u64>, ShadowError> {
        if self.blocks.state(block) != State::Closed || self.blocks.live(block) > self.moved_room()
        {
            return Ok(None);
        }
        let issued_ns = self.flash.now();
        let (first, end) = self.flash.sizes.range_of(block);
        let runners = self.table.runners_in(first, end);
        let work = self.flash.work;
        if work == Work::Host {
            self.flash.work = Work::Collection;
        }
        let result = self.empty_and_erase(block);
        self.flash.work = work;
        match result {
            Ok(end_ns) => {
                self.table.settled(&runners, Some(end_ns));
                self.counts.collections += 1;
                self.counts.collection_ns += self.flash.now().saturating_sub(issued_ns);
                // Collections occupy dies; a caller that asked for room waits for these dies alone.
                self.flash.device.resume_at(issued_ns);
                Ok(Some(end_ns))
            }
            Err(ShadowError::Corrupt { .. } | ShadowError::FlagRefused(_) | ShadowError::Full) => {
                self.table.settled(&runners, None);
                self.blocks.set_stuck(block);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn empty_and_erase(&mut self, block: BlockIndex) -> Result<u64, ShadowError> {
        let units = self.units_in(block)?;
        let issued_ns = self.flash.now();
        if !self.is_emptying {
            let blocks = self.doomed.iter().copied().chain([block]).collect();
            self.hand_on_all(&blocks, &units)?;
        }
        // Flags go on beside the copies; the erase waits for both (H3).
        let flagged_ns = self.flash.now();
        self.flash.device.resume_at(issued_ns);
        if self.blocks.live(block) > self.moved_room() {
            return Err(ShadowError::Full);
        }
        let (first, end) = self.flash.sizes.range_of(block);
        let has_runners = !self.table.runners_in(first, end).is_empty();
        // Copies stay on the victim's die, where there is room: the other dies go on for hosts.
        let die = self.flash.sizes.geometry.die_of(block);
        let mut end_ns = flagged_ns;
        for unit in &units {
            self.moved.aim(die);
            end_ns = end_ns.max(self.move_out(unit)?);
        }
        self.flash.wait(end_ns);
        self.erase_empty(block, has_runners)
    }

    /// Leaves to other pages the evidence in `blocks`, as if one erase took them all; `units` are
    /// the units of the victim, or of all blocks.
    pub(super) fn hand_on_all(
        &mut self,
        blocks: &BTreeSet<BlockIndex>,
        units: &[Written],
    ) -> Result<(), ShadowError> {
        for depth in 0.. {
            let Handed::Refused(xid, heir) = self.hand_on(blocks, units)? else { break };
            // The units there leave their evidence to others, and the link then leads nowhere.
            let is_hopeless = depth == ATTEMPTS || self.nested == ATTEMPTS;
            if is_hopeless || self.collect_heir(heir)?.is_none() {
                return Err(ShadowError::FlagRefused(xid));
            }
        }
        Ok(())
    }

    fn collect_heir(&mut self, heir: BlockIndex) -> Result<Option<u64>, ShadowError> {
        self.nested += 1;
        let result = self.close(heir).and_then(|()| self.collect(heir));
        self.nested -= 1;
        result
    }

    /// Erases a block whose units were moved out, and forgets the units that were not.
    fn erase_empty(&mut self, block: BlockIndex, has_runners: bool) -> Result<u64, ShadowError> {
        let (first, end) = self.flash.sizes.range_of(block);
        debug_assert_eq!(self.blocks.live(block), 0, "what stays was moved out");
        debug_assert!(self.table.runners_in(first, end).is_empty(), "rule E4");
        if has_runners && self.flash.bugs.has(ShadowBug::StaleCopyKept) {
            self.blocks.set_stuck(block);
            return Ok(self.flash.now());
        }
        if self.is_mark_due {
            self.write_mark()?;
            self.flash.wait(self.end_ns);
        }
        let end_ns = self.erase(block)?;
        let gone = self.table.erased(first, end);
        if matches!(self.evidence, Evidence::Cycle(_)) {
            self.forget_erased(&gone);
        }
        Ok(end_ns)
    }

    /// Units of a closed block, as they were first written.
    pub(super) fn units_in(&mut self, block: BlockIndex) -> Result<Vec<Written>, ShadowError> {
        let sizes = self.flash.sizes;
        let notes = match self.read_summary(block)? {
            Some(notes) => sizes.units_of(block).zip(notes).collect(),
            // A torn program left no unit there, even where a note shows.
            None => {
                let mut image = vec![0; sizes.image_size];
                let mut notes = Vec::new();
                for at in sizes.units_of(block) {
                    match self.flash.read_unit(at, &mut image) {
                        Ok((note, _)) => notes.push((at, note)),
                        Err(Fault::Bad(..)) => {}
                        Err(Fault::Device(error)) => return Err(self.fail(error)),
                    }
                }
                notes
            }
        };
        let written = |(at, note): (u32, Note)| Written { at, note, flag: note.initial };
        Ok(notes.into_iter().map(written).collect())
    }

    /// Notes in a block's summary, if the block has a readable one.
    pub(super) fn read_summary(
        &mut self,
        block: BlockIndex,
    ) -> Result<Option<Vec<Note>>, ShadowError> {
        let at = self.flash.sizes.summary_of(block);
        let mut data = vec![0; self.flash.sizes.geometry.page_size as usize];
        match self.flash.read_page(at, &mut data) {
            Ok((note, _)) if note.kind == Kind::Summary => Ok(summary::decode(&data)),
            Ok(_) | Err(Fault::Bad(..)) => Ok(None),
            Err(Fault::Device(error)) => Err(self.fail(error)),
        }
    }

    fn place_of(&self, unit: &Written) -> Place {
        match self.table.owner(unit.at) {
            Some((xid, Standing::Running)) => Place::Running(xid),
            Some((_, Standing::Aborted)) => Place::Dead,
            None if self.mark_at == Some(unit.at) => Place::Mark,
            None if unit.note.kind != Kind::Data => Place::Dead,
            None if self.map.get(unit.note.page.0 as usize) == Some(&unit.at) => Place::Current,
            None if self.cycles.is_held(unit.at) => Place::Held,
            None => Place::Dead,
        }
    }

    /// Moves a unit that stays; gives the time at which its copy is complete.
    pub(super) fn move_out(&mut self, unit: &Written) -> Result<u64, ShadowError> {
        if matches!(self.place_of(unit), Place::Dead | Place::Mark) {
            return Ok(self.write_again(unit, &[], Copied::Settled)?.1);
        }
        let mut image = std::mem::take(&mut self.buffer);
        let result = self.flash.read_unit(unit.at, &mut image).map_err(ShadowError::from);
        let result = result.and_then(|(note, _)| {
            if (note.page, note.version) != (unit.note.page, unit.note.version) {
                return Err(self.corrupt(unit.at, Check::Identity));
            }
            self.write_again(&Written { note, ..*unit }, &image, Copied::Settled)
        });
        self.buffer = image;
        Ok(result?.1)
    }

    /// Writes a unit that stays to another place, with the same content; gives the time at which
    /// the copy is complete.
    pub(super) fn write_again(
        &mut self,
        unit: &Written,
        image: &[u8],
        copied: Copied,
    ) -> Result<(Option<Written>, u64), ShadowError> {
        let place = self.place_of(unit);
        match place {
            Place::Dead => return Ok((None, 0)),
            Place::Mark => {
                self.write_mark()?;
                return Ok((None, self.end_ns));
            }
            Place::Running(_) | Place::Current | Place::Held => {}
        }
        let note = match self.evidence {
            Evidence::Cycle(_) => unit.note,
            Evidence::Chain(_) if copied == Copied::Suspect && unit.flag != Flag::True => {
                Note { initial: Flag::First, mark: self.floor(), ..unit.note }
            }
            Evidence::Chain(flags) => self.copied_note(flags, unit, place),
        };
        let (copy, end_ns) = self.put(Line::Moved, image, |_, _| Ok(note))?;
        match place {
            Place::Running(xid) => self.table.moved(xid, unit.at, copy, end_ns),
            Place::Held => self.cycles.moved(unit.at, copy.at),
            _ => self.map[unit.note.page.0 as usize] = copy.at,
        }
        self.drop_live(unit.at);
        self.counts.relocations += 1;
        Ok((Some(copy), end_ns))
    }

    /// Note of a copy: a committed page needs no chain any more, and gets its final flag.
    fn copied_note(&self, flags: Flags, unit: &Written, place: Place) -> Note {
        let is_committed = !matches!(place, Place::Running(_));
        let own = match place {
            Place::Running(xid) => self.table.get(xid),
            _ => None,
        };
        let now = own.and_then(|own| own.written.iter().find(|own| own.at == unit.at));
        let now = now.unwrap_or(unit);
        let keeps_link = !is_committed && self.grain == Grain::Page;
        Note {
            initial: flags.relocated(&now.shadow(), is_committed),
            link: if keeps_link { unit.note.link } else { NOWHERE },
            mark: self.floor(),
            ..unit.note
        }
    }

    /// Programs the flags that the pages of `blocks` leave to others (V1, rule E5).
    pub(super) fn hand_on(
        &mut self,
        blocks: &BTreeSet<BlockIndex>,
        units: &[Written],
    ) -> Result<Handed, ShadowError> {
        match self.options.protocol {
            ShadowProtocol::Cfc => self.hand_on_committed(blocks, units),
            ShadowProtocol::Afc => self.hand_on_aborted(blocks).map(|()| Handed::All),
            ShadowProtocol::Scc | ShadowProtocol::Bpcc => Ok(Handed::All),
        }
    }

    /// CFC: pages that a committed transaction's pages link to become `True`.
    fn hand_on_committed(
        &mut self,
        blocks: &BTreeSet<BlockIndex>,
        units: &[Written],
    ) -> Result<Handed, ShadowError> {
        let issued_ns = self.flash.now();
        let mut end_ns = issued_ns;
        let mut going: BTreeMap<GroupId, Vec<Written>> = BTreeMap::new();
        for unit in units.iter().filter(|unit| unit.note.kind == Kind::Data) {
            // Not the unit's entry: a torn unit has none, but its transaction may.
            if self.table.get(unit.note.xid()).is_none() {
                going.entry(unit.note.xid()).or_default().push(*unit);
            }
        }
        for (xid, going) in going {
            // Programs for one transaction wait for none of another.
            self.flash.device.resume_at(issued_ns);
            let links: BTreeSet<u32> = going.iter().map(|unit| unit.note.link).collect();
            let mut stay = Vec::new();
            for link in links {
                if link != NOWHERE && !blocks.contains(&self.flash.sizes.block_of(link)) {
                    stay.extend(self.linked(xid, link)?);
                }
            }
            let handed = self.flag_heirs(Flags::Cfc, xid, &stay, &going, true)?;
            end_ns = end_ns.max(self.flash.now());
            if handed != Handed::All {
                return Ok(handed);
            }
        }
        self.flash.wait(end_ns);
        Ok(Handed::All)
    }

    /// The unit that a link leads to, if it is one of the transaction.
    fn linked(&mut self, xid: GroupId, link: u32) -> Result<Option<Written>, ShadowError> {
        let found = self.flash.peek_first(link).map_err(|error| self.fail(error))?;
        let ignores = self.flash.bugs.has(ShadowBug::LinkNotChecked);
        let own = found.filter(|(note, _)| note.kind == Kind::Data);
        let own = own.filter(|(note, _)| note.xid() == xid || ignores);
        Ok(own.map(|(note, flag)| {
            let note = if ignores { Note { owner: xid.0, order: 0, ..note } } else { note };
            // V3.
            let flag = if note.initial == Flag::First { Flag::First } else { flag };
            Written { at: link, note, flag }
        }))
    }

    /// AFC: another page of an aborted transaction becomes `False`, or is written as a witness.
    fn hand_on_aborted(&mut self, blocks: &BTreeSet<BlockIndex>) -> Result<(), ShadowError> {
        let sizes = self.flash.sizes;
        let ranges = blocks.iter().map(|block| sizes.range_of(*block));
        let aborted = ranges.flat_map(|(first, end)| self.table.aborted_in(first, end));
        for xid in aborted.collect::<BTreeSet<GroupId>>() {
            let Some(own) = self.table.get(xid) else { continue };
            let is_going = |unit: &&Written| blocks.contains(&sizes.block_of(unit.at));
            let (going, stay): (Vec<_>, Vec<_>) = own.written.iter().partition(is_going);
            let handed = match self.flash.bugs.has(ShadowBug::PagesReclaimedAlone) {
                true => self.flag_one_by_one(xid, &stay, &going)?,
                false => self.flag_heirs(Flags::Afc, xid, &stay, &going, false)?,
            };
            if let (Handed::Refused(..), [unit, ..]) = (handed, &going[..]) {
                self.leave_witness(xid, unit)?;
            }
        }
        Ok(())
    }

    /// Writes a page of an aborted AFC transaction that is never read and that no flag makes
    /// `True`.
    fn leave_witness(&mut self, xid: GroupId, unit: &Written) -> Result<(), ShadowError> {
        let note = Note { initial: Flag::First, link: NOWHERE, mark: self.floor(), ..unit.note };
        let image = vec![0; self.page_size()];
        let (witness, end_ns) = self.put(Line::Moved, &image, |_, _| Ok(note))?;
        self.drop_live(witness.at);
        self.table.wrote(xid, witness, end_ns);
        self.flash.wait(end_ns);
        Ok(())
    }

    /// Without rule E5: pages that go together rely on each other.
    fn flag_one_by_one(
        &mut self,
        xid: GroupId,
        stay: &[Written],
        going: &[Written],
    ) -> Result<Handed, ShadowError> {
        for page in going.iter().filter(|page| page.flag != Flag::True) {
            let others = going.iter().filter(|other| other.at != page.at);
            let stay: Vec<Written> = stay.iter().chain(others).copied().collect();
            self.flag_heirs(Flags::Afc, xid, &stay, &[*page], false)?;
        }
        Ok(Handed::All)
    }

    fn flag_heirs(
        &mut self,
        flags: Flags,
        xid: GroupId,
        stay: &[Written],
        going: &[Written],
        is_committed: bool,
    ) -> Result<Handed, ShadowError> {
        // AFC's rules look at pages one by one: a cut erase leaves any pages (rule E6).
        let grain = if flags == Flags::Afc { Grain::Page } else { self.grain };
        let (stay_nodes, going_nodes) = (grain.nodes(flags, stay), grain.nodes(flags, going));
        let going = if self.flash.bugs.has(ShadowBug::CutEraseIgnored) { &[] } else { going };
        for (node, flag) in flags.before_reclaim(&stay_nodes, &going_nodes, is_committed) {
            let heirs = stay.iter().chain(going).filter(|unit| grain.node(unit.at) == node);
            let Some(heir) = heirs.max_by_key(|unit| unit.note.order) else { continue };
            let block = self.flash.sizes.block_of(heir.at);
            if self.doomed.contains(&block) {
                return Ok(Handed::Refused(xid, block));
            }
            self.counts.flags_collection += 1;
            if !self.set_flag(heir.at, flag)? {
                // Where an erase was cut, all that counts was moved, and its evidence handed on.
                if flags == Flags::Cfc && self.blocks.cells(block) == Cells::Spent {
                    continue;
                }
                return Ok(Handed::Refused(xid, block));
            }
            self.note_flag(xid, heir.at, flag);
        }
        Ok(Handed::All)
    }
}
