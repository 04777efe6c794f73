//! Which transactions the pages on flash prove committed, and which pages count.
//!
//! Owns the second step of a restart. The proof itself is in [`crate::evidence`].
//!
//! J1. A summary holds flags as first written, and may name pages that a half-done erase took. So
//!     CFC reads the flags of heads again, and all where no head is `True`; AFC reads all; and of
//!     two copies only one that is there counts.
//! J2. A flag of a transaction above the floor may have been in flight at the cut, set or not.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use flagstone_nand::Nand;

use super::bugs::ShadowBug;
use super::note::Note;
use super::options::Evidence;
use super::restart::{Dies, Repairs, Restart};
use super::table::Written;
use super::{ShadowError, ShadowStore};
use crate::evidence::{Cycles, Flag, Flags, Intention, Intentions};
use flagstone_space::{GroupId, LogicalPage, Version};

/// Versions that a restart leaves out: more than the units that can have been in flight, so that a
/// unit that appears later outranks nothing.
const VERSION_GAP: u64 = 1 << 10;

impl<D: Nand> ShadowStore<D> {
    /// Builds mapping and transaction table out of the units found.
    pub(super) fn judge(
        &mut self,
        units: Vec<Written>,
        how: Restart,
        dies: &mut Dies,
    ) -> Result<Repairs, ShadowError> {
        let versions = units.iter().map(|unit| unit.note.version.0);
        self.version = self.version.max(versions.max().unwrap_or(0));
        match self.evidence {
            Evidence::Chain(flags) => self.judge_chains(flags, units, how, dies),
            Evidence::Cycle(cycles) => {
                self.judge_cycles(cycles, units)?;
                Ok(Repairs::default())
            }
        }
    }

    fn judge_chains(
        &mut self,
        flags: Flags,
        mut units: Vec<Written>,
        how: Restart,
        dies: &mut Dies,
    ) -> Result<Repairs, ShadowError> {
        let floors = units.iter().map(|unit| unit.note.mark);
        let floor = self.restart_floor.into_iter().chain(floors).max();
        self.restart_floor = floor;
        self.version += VERSION_GAP;
        units.sort_unstable_by_key(|unit| (unit.note.owner, unit.note.order, unit.at));
        let newest = units.last().map_or(0, |unit| unit.note.owner);
        self.next_xid = self.next_xid.max(newest + 1);
        let mut repairs = Repairs::default();
        let mut committed = Vec::new();
        for own in units.chunk_by(|one, other| one.note.owner == other.note.owner) {
            let own = self.see_flags(flags, own, how, dies)?;
            self.judge_chain(flags, own, &mut repairs, &mut committed);
        }
        self.take_newest(committed)?;
        Ok(repairs)
    }

    /// Reads the flags that decide (J1).
    fn see_flags(
        &mut self,
        flags: Flags,
        own: &[Written],
        how: Restart,
        dies: &mut Dies,
    ) -> Result<Vec<Written>, ShadowError> {
        let mut own = Vec::from(own);
        let mut seen = BTreeSet::new();
        if how == Restart::Scan {
            return Ok(own);
        }
        while let Some(at) = self.unseen(flags, &own, &seen) {
            seen.insert(at);
            let block = self.flash.sizes.block_of(at);
            let found = dies.on(self, block, |store| store.flash.peek_first(at))?;
            own.retain_mut(|unit| {
                if unit.at != at {
                    return true;
                }
                let same = found.filter(|(note, _)| *note == unit.note);
                unit.flag = same.map_or(unit.flag, |(_, flag)| flag);
                same.is_some()
            });
        }
        Ok(own)
    }

    /// A unit whose flag decides and was not read: CFC a head that did not begin as `True`, and any
    /// unit where no head is, because a cut erase may have left units that never were heads (rule
    /// E6).
    fn unseen(&self, flags: Flags, own: &[Written], seen: &BTreeSet<u32>) -> Option<u32> {
        let is_unseen = |unit: &&Written| !seen.contains(&unit.at);
        if flags == Flags::Afc {
            return own.iter().find(is_unseen).map(|unit| unit.at);
        }
        let heads = flags.to_commit(&self.grain.nodes(flags, own));
        let heads: BTreeSet<u32> = heads.into_iter().map(|(node, _)| node).collect();
        let is_head = |unit: &&Written| heads.contains(&self.grain.node(unit.at));
        let may_rise = |unit: &&Written| unit.note.initial != Flag::True && is_unseen(unit);
        let head = own.iter().filter(is_head).find(may_rise);
        let is_proven = own.iter().any(|unit| unit.flag == Flag::True);
        let any = || own.iter().filter(|_| !is_proven).find(may_rise);
        head.or_else(any).map(|unit| unit.at)
    }

    fn judge_chain(
        &mut self,
        flags: Flags,
        mut own: Vec<Written>,
        repairs: &mut Repairs,
        committed: &mut Vec<Written>,
    ) {
        let Some(xid) = own.first().map(|unit| unit.note.xid()) else { return };
        let nodes = self.grain.nodes(flags, &own);
        let mut is_committed = flags.committed(&nodes).contains(&xid);
        let heads: BTreeSet<u32> = flags.to_commit(&nodes).iter().map(|(node, _)| *node).collect();
        self.doubt_flags(flags, &own, &heads, is_committed, repairs);
        if self.flash.bugs.has(ShadowBug::HalfFlaggedAborts) {
            let is_true = |at: &u32| nodes.iter().any(|n| n.at == *at && n.flag == Flag::True);
            is_committed &= flags == Flags::Afc || heads.iter().all(is_true);
        }
        if is_committed {
            self.report.committed += 1;
            // Below the floor flags are complete: a head may be one since a cut erase.
            let is_recent = own.first().is_some_and(|unit| self.is_recent(&unit.note));
            let unfinished = if is_recent { flags.to_finish(&nodes) } else { Vec::new() };
            for (node, flag) in unfinished {
                let place = self.page_to_flag(&own, node);
                repairs.finish.extend(place.map(|at| (xid, at, flag)));
            }
            committed.append(&mut own);
        } else {
            self.report.uncommitted += 1;
            doubt_false(flags, &mut own);
            self.table.enter_aborted(xid, own);
        }
    }

    /// Whether flags of a unit's transaction may have been in flight (J2).
    pub(super) fn is_recent(&self, note: &Note) -> bool {
        self.restart_floor.is_none_or(|floor| note.owner >= floor)
    }

    /// Lists flags that may have been in flight: they are programmed again, as they are taken now
    /// (J2).
    fn doubt_flags(
        &self,
        flags: Flags,
        own: &[Written],
        heads: &BTreeSet<u32>,
        is_committed: bool,
        repairs: &mut Repairs,
    ) {
        for unit in own {
            let takes_flag = match flags {
                Flags::Cfc => heads.contains(&self.grain.node(unit.at)),
                Flags::Afc => true,
            };
            if !takes_flag || !self.is_recent(&unit.note) || unit.note.initial != Flag::First {
                continue;
            }
            let xid = unit.note.xid();
            match (is_committed, unit.flag) {
                (true, Flag::True) => repairs.finish.push((xid, unit.at, Flag::True)),
                (true, _) => {}
                (false, _) => repairs.dismiss.push((xid, unit.at, Flag::False)),
            }
        }
    }

    /// The newest of the committed units of each page is its current one; of two copies, one that
    /// is there (J1).
    fn take_newest(&mut self, mut committed: Vec<Written>) -> Result<(), ShadowError> {
        let rank = |unit: &Written| (unit.note.version, unit.note.order);
        committed.sort_unstable_by_key(|unit| (unit.note.page, Reverse(rank(unit)), unit.at));
        for own in committed.chunk_by(|one, other| one.note.page == other.note.page) {
            let Some(best) = own.first().copied() else { continue };
            let mut copies = own.iter().take_while(|unit| rank(unit) == rank(&best)).copied();
            let mut taken = copies.next().unwrap_or(best);
            for other in copies {
                let there = self.flash.peek_unit(taken.at)?;
                if there.is_none_or(|(note, _)| note != taken.note) {
                    taken = other;
                }
            }
            if (taken.note.page.0 as usize) < self.map.len() {
                self.remap(&taken);
                self.add_live(taken.at);
            }
        }
        Ok(())
    }

    fn judge_cycles(&mut self, cycles: Cycles, units: Vec<Written>) -> Result<(), ShadowError> {
        let named = units.iter().map(|unit| unit.note.intention());
        let named: BTreeSet<LogicalPage> = named
            .filter(|record| record.next.0 != record.page)
            .map(|record| record.next.0)
            .collect();
        let linked = |unit: &&Written| unit.note.link != unit.note.page.0;
        let linking: BTreeSet<LogicalPage> =
            units.iter().filter(linked).map(|unit| unit.note.page).collect();
        // A record that names itself is a closed cycle where no other record concerns its page.
        let is_plain = |page: LogicalPage| !named.contains(&page) && !linking.contains(&page);
        let records: Intentions = units
            .iter()
            .filter(|unit| !is_plain(unit.note.page))
            .map(|unit| unit.note.intention())
            .collect();
        let current = cycles.current(&records);
        let (mut committed, mut dead) = (Vec::new(), BTreeMap::<Intention, Vec<Written>>::new());
        for unit in units {
            let (page, version) = (unit.note.page, unit.note.version);
            self.version = self.version.max(unit.note.owner);
            if is_plain(page) || is_committed(cycles, &records, &current, (page, version)) {
                committed.push(unit);
            } else {
                dead.entry(unit.note.intention()).or_default().push(unit);
            }
        }
        self.report.committed = committed.len() as u64;
        self.report.uncommitted = dead.len() as u64;
        self.bury(dead);
        let all = committed.clone();
        self.take_newest(committed)?;
        self.hold_straddling(&all);
        Ok(())
    }

    /// Records that did not commit: each a transaction of its own from now on.
    fn bury(&mut self, dead: BTreeMap<Intention, Vec<Written>>) {
        for copies in dead.into_values() {
            let xid = GroupId(self.next_xid);
            self.next_xid += 1;
            copies.iter().for_each(|copy| self.cycles.died(xid, copy));
            self.table.enter_aborted(xid, copies);
        }
    }

    /// Superseded records that straddle one that did not commit stay.
    fn hold_straddling(&mut self, committed: &[Written]) {
        for unit in committed {
            let is_superseded = self.map.get(unit.note.page.0 as usize) != Some(&unit.at);
            if is_superseded && self.holds(unit.note.page) {
                let record = unit.note.intention();
                if self.hold_if_needed(unit.at, &record) {
                    self.add_live(unit.at);
                }
            }
        }
    }
}

/// Whether a record committed, given the current version of each page.
fn is_committed(
    cycles: Cycles,
    records: &Intentions,
    current: &BTreeMap<LogicalPage, Version>,
    (page, version): (LogicalPage, Version),
) -> bool {
    match (cycles, current.get(&page)) {
        (_, None) => false,
        (_, Some(current)) if version >= *current => version == *current,
        // All but the highest are committed: uncommitted records are erased before a page is
        // written.
        (Cycles::Scc, _) => true,
        (Cycles::Bpcc, _) => cycles.is_committed(records, (page, version)),
    }
}

/// A `False` beside another page that is not `True` may have been in flight: it does not count, and
/// is programmed again when that page goes.
fn doubt_false(flags: Flags, own: &mut [Written]) {
    let unset = own.iter().filter(|unit| unit.flag != Flag::True).count();
    if flags == Flags::Afc && unset > 1 {
        for unit in own.iter_mut().filter(|unit| unit.note.initial == Flag::True) {
            unit.flag = Flag::True;
        }
    }
}
