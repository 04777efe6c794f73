//! Garbage collection: needed versions are moved, flags are handed on, the block is erased.
//!
//! Owns the order of a collection (R7). [`crate::evidence`] decides which flags are handed on.
//!
//! V1. Flags first, while nothing has changed.
//! V2. A victim is taken only when the free room holds all its units that stay, so its collection
//!     always finishes.
//! V3. A copy keeps its version and the links of its members; members that committed are left out:
//!     their writes are plain content from then on.

use std::collections::BTreeSet;

use flagstone_nand::{BlockIndex, Nand};

use super::note::{self, Body, Header, Kind, Member};
use super::place::{ATTEMPTS, Line};
use super::{
    Check, Flag, Flags, GroupId, RecordBug, RecordStore, SLOT_STRIDE, ShadowError, Standing, State,
    Unit, Work, epoch_of,
};
use crate::shadow::flash::Fault;

impl<D: Nand> RecordStore<D> {
    /// Collects the best victim; whether there was room to gain.
    pub(super) fn collect_one(&mut self) -> Result<bool, ShadowError> {
        for _ in 0..ATTEMPTS {
            let Some(victim) = self.blocks.victim() else { return Ok(false) };
            if self.blocks.live(victim) >= self.flash.sizes.units_per_block {
                return Ok(false);
            }
            if self.collect(victim)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Empties and erases a closed block; false when a unit of the block cannot be read, or there
    /// is no room (V2): the block is left as it was.
    pub(super) fn collect(&mut self, block: BlockIndex) -> Result<bool, ShadowError> {
        if self.blocks.state(block) != State::Closed || self.blocks.live(block) > self.moved_room()
        {
            return Ok(false);
        }
        let (issued_ns, work) = (self.flash.now(), self.flash.work);
        let runners = self.members_in(block);
        self.flash.work = Work::Collection;
        let result = self.empty_and_erase(block);
        self.flash.work = work;
        // Collections occupy dies; a caller that asked for room waits for these dies alone.
        self.flash.device.resume_at(issued_ns);
        match result {
            Ok(()) => {
                self.counts.collections += 1;
                Ok(true)
            }
            Err(ShadowError::Corrupt { .. } | ShadowError::Full) => {
                self.blocks.set_stuck(block);
                self.table.copied_in_vain(&runners);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn empty_and_erase(&mut self, block: BlockIndex) -> Result<(), ShadowError> {
        let bodies = self.bodies_in(block)?;
        let xids = self.members_in(block);
        if !self.flash.bugs.has(RecordBug::FlagsNotHandedOn) {
            xids.iter().try_for_each(|xid| self.hand_on(block, *xid))?;
        }
        let die = self.flash.sizes.geometry.die_of(block);
        for (at, body) in &bodies {
            self.moved.aim(die);
            self.move_out(*at, body)?;
        }
        self.flash.wait(self.flash.programs_end_ns);
        debug_assert_eq!(self.blocks.live(block), 0, "what is needed was moved out");
        let end_ns = self.erase(block)?;
        self.forget_members(block, &xids, end_ns);
        Ok(())
    }

    /// Forgets the units of a block that was erased: its places are given again.
    pub(super) fn forget_erased(&mut self, block: BlockIndex, end_ns: u64) {
        let xids = self.members_in(block);
        let (first, end) = self.flash.sizes.range_of(block);
        let gone: Vec<u32> = self.units.range(first..end).map(|(at, _)| *at).collect();
        gone.iter().for_each(|at| {
            self.units.remove(at);
        });
        self.forget_members(block, &xids, end_ns);
    }

    /// Forgets members that stood in an erased block; moved members stand elsewhere (rule E4).
    fn forget_members(&mut self, block: BlockIndex, xids: &BTreeSet<GroupId>, end_ns: u64) {
        let sizes = self.flash.sizes;
        for xid in xids {
            self.table.erased(*xid, end_ns, |address| sizes.block_of_member(address) == block);
        }
    }

    /// Transactions of the table with members in a block.
    fn members_in(&self, block: BlockIndex) -> BTreeSet<GroupId> {
        let (first, end) = self.flash.sizes.range_of(block);
        let units = self.units.range(first..end).map(|(_, unit)| unit);
        let xids = units.flat_map(|unit| &unit.members).copied();
        xids.filter(|xid| self.table.get(*xid).is_some()).collect()
    }

    /// Units of a closed block, with their places.
    fn bodies_in(&mut self, block: BlockIndex) -> Result<Vec<(u32, Body)>, ShadowError> {
        let places = self.flash.sizes.units_of(block);
        let mut data = vec![0; self.flash.sizes.geometry.page_size as usize];
        match self.flash.read_page(self.flash.sizes.last_of(block), &mut data) {
            Ok(note) if note.kind == Kind::Summary => {
                if let Some(bodies) = note::decode_summary(&data) {
                    return Ok(places.zip(bodies).collect());
                }
            }
            Ok(_) | Err(Fault::Bad(..)) => {}
            Err(Fault::Device(error)) => return Err(self.fail(error)),
        }
        let mut bytes = vec![0; self.flash.sizes.unit_size];
        let mut bodies = Vec::new();
        for at in places {
            match self.flash.read_unit(at, &mut bytes) {
                Ok((note, header)) => {
                    bodies.push((at, Body { page: note.page, version: note.version, header }));
                }
                Err(Fault::Bad(..)) => {}
                Err(Fault::Device(error)) => return Err(self.fail(error)),
            }
        }
        Ok(bodies)
    }

    /// Programs the flags that the members of a transaction in `block` leave to others (V1). A
    /// transaction that a verdict has decided needs none.
    fn hand_on(&mut self, block: BlockIndex, xid: GroupId) -> Result<(), ShadowError> {
        let Some(entry) = self.table.get(xid) else { return Ok(()) };
        let is_decided = epoch_of(xid.0) < self.epoch || self.testified.contains_key(&xid);
        if entry.standing == Standing::Running || is_decided {
            return Ok(());
        }
        let sizes = self.flash.sizes;
        let standing = entry.standing;
        let (going, stay): (Vec<_>, Vec<_>) =
            entry.members.iter().copied().partition(|m| sizes.block_of_member(m.at) == block);
        let is_committed = standing == Standing::Committed;
        if is_committed && self.options.flags == Flags::Cfc && entry.record.is_some() {
            // Its record proves it until its flags are set.
            return Ok(());
        }
        for (address, flag) in self.options.flags.before_reclaim(&stay, &going, is_committed) {
            self.counts.flags_collection += 1;
            if !self.set_flag(xid, address, flag)? {
                return self.testify(xid, standing);
            }
        }
        Ok(())
    }

    /// Moves a unit that is needed.
    fn move_out(&mut self, at: u32, body: &Body) -> Result<(), ShadowError> {
        let index = body.page.0 as usize;
        let is_newest = self.map.get(index) == Some(&at);
        let is_old = self.olds.get(&body.page).is_some_and(|olds| olds.contains(&at));
        if !is_newest && !is_old {
            return Ok(());
        }
        let mut bytes = vec![0; self.flash.sizes.unit_size];
        let (note, header) = self.flash.read_unit(at, &mut bytes)?;
        if (note.page, note.version) != (body.page, body.version) {
            return Err(self.corrupt(at, Check::Identity));
        }
        let skipped = self.flash.sizes.unit_size - self.image_size();
        let (members, flags) = self.kept_members(at, &header);
        let places = members.iter().map(|(_, member)| *member).collect();
        let stamp = self.next_version().0;
        let copy = Body { header: Header { stamp, members: places, ..header }, ..body.clone() };
        let (to, end_ns) = self.put(Line::Moved, &copy, &flags, &bytes[skipped..])?;
        self.add_live(to);
        self.drop_live(at);
        self.rename(at, to, &copy, is_newest);
        for (slot, (from, member)) in (0..).zip(members) {
            self.table.moved(member.xid, from, to * SLOT_STRIDE + slot, end_ns);
        }
        self.ends_at(body.page, end_ns);
        self.counts.relocations += 1;
        Ok(())
    }

    /// Members of a unit that are not committed, with their addresses, and their flags as they are.
    fn kept_members(&self, at: u32, header: &Header) -> (Vec<(u32, Member)>, Vec<Flag>) {
        let mut members = Vec::new();
        let mut flags = Vec::new();
        for (slot, member) in (0..).zip(&header.members) {
            let address = at * SLOT_STRIDE + slot;
            let entry = self.table.get(member.xid);
            let entry = entry.filter(|entry| entry.standing != Standing::Committed);
            let own = entry.and_then(|entry| entry.members.iter().find(|own| own.at == address));
            if let Some(own) = own {
                members.push((address, *member));
                flags.push(own.flag);
            }
        }
        (members, flags)
    }

    fn rename(&mut self, from: u32, to: u32, copy: &Body, is_newest: bool) {
        let Body { page, version, header } = copy;
        let before = self.units.remove(&from);
        let members: Vec<GroupId> = header.members.iter().map(|member| member.xid).collect();
        if !members.is_empty() || !is_newest {
            let back = before.map_or(header.back, |unit| unit.back);
            self.units.insert(to, Unit { page: *page, version: *version, back, members });
        }
        if is_newest {
            self.map[page.0 as usize] = to;
        } else if let Some(olds) = self.olds.get_mut(page) {
            olds.iter_mut().filter(|old| **old == from).for_each(|old| *old = to);
        }
    }
}
