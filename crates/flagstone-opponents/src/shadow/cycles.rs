//! Cycles: records that name the next one, closed by the last.
//!
//! Owns the records known to be uncommitted, and the superseded ones that must outlive them. The
//! rules are in [`crate::evidence::Cycles`].
//!
//! C1. The last new record of a running transaction is held back in memory, because it names the
//!     one after it.
//! C2. A page written twice by one transaction gives two copies of one record; the later revision
//!     is the one that counts. Nothing closes the cycle before the later copy is complete.
//! C3. SCC: before a page is written, its uncommitted records and the records that name it are
//!     erased.
//! C4. BPCC: a superseded record that straddles an uncommitted one stays (is *held*) until the
//!     uncommitted one is erased.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_nand::{BlockIndex, Nand};

use super::bugs::ShadowBug;
use super::note::Note;
use super::table::{HeldBack, Written};
use super::{ShadowError, ShadowProtocol, ShadowStore};
use crate::evidence::{Cycles, Flag, Intention, Intentions};
use flagstone_space::{GroupId, LogicalPage, Version};

/// State of cyclic protocols.
#[derive(Clone, Debug, Default)]
pub(super) struct CycleState {
    /// Records on flash that did not commit.
    dead: Intentions,
    /// Transaction of the table that each belongs to.
    dead_in: BTreeMap<(LogicalPage, Version), GroupId>,
    /// Superseded committed records that stay (C4), by place.
    held: BTreeMap<u32, Intention>,
    /// Version committed last of each page, five bytes each (BPCC).
    backs: Vec<[u8; 5]>,
}

impl CycleState {
    pub(super) fn set_page_count(&mut self, protocol: ShadowProtocol, page_count: u32) {
        if protocol == ShadowProtocol::Bpcc {
            self.backs = vec![[0; 5]; page_count as usize];
        }
    }

    pub(super) fn back(&self, page: LogicalPage) -> Version {
        let back = self.backs.get(page.0 as usize);
        Version(back.map_or(0, |bytes| flagstone_space::bytes::get_uint(bytes)))
    }

    pub(super) fn set_back(&mut self, page: LogicalPage, version: Version) {
        if let Some(bytes) = self.backs.get_mut(page.0 as usize) {
            flagstone_space::bytes::put_uint(bytes, version.0);
        }
    }

    pub(super) fn is_held(&self, at: u32) -> bool {
        self.held.contains_key(&at)
    }

    /// A record will not commit any more.
    pub(super) fn died(&mut self, xid: GroupId, written: &Written) {
        let record = written.note.intention();
        self.dead.insert(record);
        self.dead_in.insert((record.page, record.version), xid);
    }

    /// A held record has moved.
    pub(super) fn moved(&mut self, from: u32, to: u32) {
        if let Some(record) = self.held.remove(&from) {
            self.held.insert(to, record);
        }
    }

    /// Bytes of the version table, and of records that are kept for others.
    pub(super) fn sizes(&self) -> (usize, usize) {
        let records = self.dead_in.len() * (2 * size_of::<Intention>() + 24);
        (self.backs.len() * 5, records + self.held.len() * (size_of::<Intention>() + 4))
    }
}

impl<D: Nand> ShadowStore<D> {
    /// Writes a page of a cycle (C1, C2).
    pub(super) fn put_cycle(
        &mut self,
        cycles: Cycles,
        xid: GroupId,
        page: LogicalPage,
        image: &[u8],
    ) -> Result<(), ShadowError> {
        let Some(own) = self.table.get_mut(xid) else { return Err(ShadowError::NotRunning(xid)) };
        if let Some(held_back) = own.held_back.as_mut().filter(|held_back| held_back.page == page) {
            held_back.image.copy_from_slice(image);
            return Ok(());
        }
        if let Some(written) = own.newest(page).copied() {
            return self.put_revision(xid, &written, image);
        }
        self.erase_before_write(cycles, page)?;
        let version = self.version_of(page);
        self.put_held_back(xid, (page, version))?;
        if let Some(own) = self.table.get_mut(xid) {
            own.held_back = Some(HeldBack { page, version, image: image.into() });
        }
        self.table.set_writer(page, xid);
        Ok(())
    }

    /// Version of a new record: above all that were ever given.
    fn version_of(&mut self, page: LogicalPage) -> Version {
        if self.flash.bugs.has(ShadowBug::NamedVersionReused) {
            let back = self.cycles.back(page);
            let highest = Cycles::Scc.next_version(&self.cycles.dead, page);
            return highest.max(Version(back.0 + 1));
        }
        self.next_version()
    }

    /// Writes a record again: same version, same next, new content (C2).
    fn put_revision(
        &mut self,
        xid: GroupId,
        old: &Written,
        image: &[u8],
    ) -> Result<(), ShadowError> {
        let order = old.note.order.checked_add(1).ok_or(ShadowError::TooManyPages(xid))?;
        let note = Note { order, ..old.note };
        let (written, end_ns) = self.put_host(xid, image, |_, _| Ok(note))?;
        self.table.wrote(xid, written, end_ns);
        if let Some(own) = self.table.get_mut(xid) {
            own.has_revisions = true;
        }
        Ok(())
    }

    /// Writes the record that was held back, if there is one: `next` is the one after it.
    fn put_held_back(
        &mut self,
        xid: GroupId,
        next: (LogicalPage, Version),
    ) -> Result<(), ShadowError> {
        let Some(own) = self.table.get_mut(xid) else { return Ok(()) };
        let Some(held_back) = own.held_back.take() else { return Ok(()) };
        let back = self.cycles.back(held_back.page);
        let parts = self.flash.sizes.parts as u8;
        let note = Note {
            parts,
            page: held_back.page,
            owner: next.1.0,
            link: next.0.0,
            mark: back.0,
            initial: Flag::First,
            ..Note::own(super::note::Kind::Data, held_back.version)
        };
        match self.put_host(xid, &held_back.image, |_, _| Ok(note)) {
            Ok((written, end_ns)) => {
                self.table.wrote(xid, written, end_ns);
                Ok(())
            }
            Err(error) => {
                if let Some(own) = self.table.get_mut(xid) {
                    own.held_back = Some(held_back);
                }
                Err(error)
            }
        }
    }

    pub(super) fn commit_cycle(
        &mut self,
        cycles: Cycles,
        xid: GroupId,
        rest: &[(LogicalPage, &[u8])],
    ) -> Result<(), ShadowError> {
        for (page, image) in rest {
            self.put_cycle(cycles, xid, *page, image)?;
        }
        self.close_cycle(xid)?;
        self.end_ns = self.table.get(xid).map_or(0, |own| own.ready_ns).max(self.flash.now());
        self.flash.wait(self.end_ns);
        self.settle_committed(xid);
        Ok(())
    }

    /// Writes the last record, which names the first: committed.
    fn close_cycle(&mut self, xid: GroupId) -> Result<(), ShadowError> {
        let Some(own) = self.table.get(xid) else { return Ok(()) };
        let Some(held_back) = &own.held_back else { return Ok(()) };
        let first = own.written.first();
        let last = (held_back.page, held_back.version);
        let first = first.map_or(last, |first| (first.note.page, first.note.version));
        let (has_revisions, ready_ns) = (own.has_revisions, own.ready_ns);
        if has_revisions {
            self.flash.wait(ready_ns);
        }
        self.put_held_back(xid, first)
    }

    /// Erases the records that must be gone before a page is written (C3).
    fn erase_before_write(&mut self, cycles: Cycles, page: LogicalPage) -> Result<(), ShadowError> {
        let in_the_way = cycles.before_write(&self.cycles.dead, page, |_| false);
        let in_the_way = in_the_way.into_iter().filter(|record| {
            record.page == page || !self.flash.bugs.has(ShadowBug::NamingNotErased)
        });
        let blocks: BTreeSet<BlockIndex> =
            in_the_way.flat_map(|record| self.blocks_of(&record)).collect();
        for block in blocks {
            self.close(block)?;
            self.counts.forced_collections += 1;
            match self.collect(block)? {
                Some(end_ns) => self.flash.wait(end_ns),
                None => return Err(ShadowError::Full),
            }
        }
        Ok(())
    }

    /// Blocks with copies of a record that did not commit.
    fn blocks_of(&self, record: &Intention) -> Vec<BlockIndex> {
        let xid = self.cycles.dead_in.get(&(record.page, record.version));
        let own = xid.and_then(|xid| self.table.get(*xid));
        let copies = own.into_iter().flat_map(|own| &own.written);
        let copies = copies.filter(|written| written.note.intention() == *record);
        copies.map(|written| self.flash.sizes.block_of(written.at)).collect()
    }

    /// Whether a record that was just superseded has to stay (C4); it is held then.
    pub(super) fn hold_superseded(&mut self, page: LogicalPage, at: u32) -> bool {
        if !self.holds(page) {
            return false;
        }
        let Ok(Some((note, _))) = self.flash.peek_first(at) else {
            // To a restart, too, an unreadable record straddles nothing; but it may read again.
            return false;
        };
        self.hold_if_needed(at, &note.intention())
    }

    /// Whether superseded records of a page may have to stay.
    pub(super) fn holds(&self, page: LogicalPage) -> bool {
        self.options.protocol == ShadowProtocol::Bpcc && self.cycles.dead.are_named(page)
    }

    /// Holds a superseded record that straddles one that did not commit.
    pub(super) fn hold_if_needed(&mut self, at: u32, record: &Intention) -> bool {
        let is_victim = |other: &Intention| other == record;
        let dead = &self.cycles.dead;
        let is_needed = !Cycles::Bpcc.before_reclaim(dead, record, is_victim).is_empty();
        if is_needed && !self.flash.bugs.has(ShadowBug::StraddlerReclaimed) {
            self.cycles.held.insert(at, *record);
            return true;
        }
        false
    }

    /// Units of aborted transactions were erased: forgets records whose last copy is gone, and lets
    /// go the records that were held for them.
    pub(super) fn forget_erased(&mut self, gone: &[(GroupId, Written)]) {
        for (xid, written) in gone {
            let record = written.note.intention();
            let mut others = self.table.get(*xid).into_iter().flat_map(|own| &own.written);
            if others.any(|other| other.note.intention() == record) {
                continue;
            }
            self.cycles.dead.remove(&record);
            self.cycles.dead_in.remove(&(record.page, record.version));
            self.release_held(record.next.0);
        }
    }

    fn release_held(&mut self, page: LogicalPage) {
        let concerned = self.cycles.held.iter().filter(|(_, record)| record.page == page);
        let concerned: Vec<(u32, Intention)> =
            concerned.map(|(at, record)| (*at, *record)).collect();
        for (at, record) in concerned {
            self.cycles.held.remove(&at);
            if !self.hold_if_needed(at, &record) {
                self.drop_live(at);
            }
        }
    }
}
