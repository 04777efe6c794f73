//! Chains: shadow pages linked to the one before, and the flags that commit them.
//!
//! Owns the order of a commit. Which flags are needed is decided by [`crate::evidence::Flags`].

use std::collections::BTreeMap;

use flagstone_nand::{BlockIndex, Nand};

use super::blocks::Cells;
use super::bugs::ShadowBug;
use super::note::{NOWHERE, Note};
use super::place::ATTEMPTS;
use super::table::{Grain, Standing, Written};
use super::{ShadowError, ShadowStore};
use crate::evidence::{Flag, Flags};
use flagstone_space::{GroupId, LogicalPage};

/// Outcome of setting a transaction's flags.
enum Flagged {
    All,
    /// A page of the block does not take its flag.
    Refused(BlockIndex),
}

impl<D: Nand> ShadowStore<D> {
    /// Writes a page of a chain. `carried` is `True` when the page commits its transaction.
    pub(super) fn put_chain(
        &mut self,
        flags: Flags,
        xid: GroupId,
        page: LogicalPage,
        image: &[u8],
        carried: Flag,
    ) -> Result<(), ShadowError> {
        let (written, end_ns) = self.put_host(xid, image, |store, at| {
            let note = store.chain_note(flags, xid, page, at, carried)?;
            store.await_before(xid, &note, carried);
            Ok(note)
        })?;
        if let Some(transaction) = self.table.get_mut(xid) {
            transaction.next_order += 1;
        }
        self.table.wrote(xid, written, end_ns);
        self.table.set_writer(page, xid);
        Ok(())
    }

    fn chain_note(
        &mut self,
        flags: Flags,
        xid: GroupId,
        page: LogicalPage,
        at: u32,
        carried: Flag,
    ) -> Result<Note, ShadowError> {
        let mark = self.floor();
        let note = self.note(page);
        let grain = self.grain;
        let Some(own) = self.table.running(xid) else { return Err(ShadowError::NotRunning(xid)) };
        let order = u16::try_from(own.next_order).map_err(|_| ShadowError::TooManyPages(xid))?;
        // A later page of a cluster has the cluster's link.
        let cluster = own
            .written
            .iter()
            .find(|other| grain != Grain::Page && grain.node(other.at) == grain.node(at));
        let before = own.written.last().map_or(NOWHERE, |before| before.at);
        let link = cluster.map_or(before, |other| other.note.link);
        let is_head = cluster.is_none() || is_head(flags, grain, &own.written, at);
        let initial = match carried {
            Flag::True if is_head => Flag::True,
            _ => flags.initial(order.into()),
        };
        Ok(Note { initial, owner: xid.0, order, link, mark, ..note })
    }

    /// Waits for the pages that a page vouches for (H2).
    fn await_before(&mut self, xid: GroupId, note: &Note, carried: Flag) {
        let Some(own) = self.table.running(xid) else { return };
        let (first_ns, ready_ns) = (own.first_ns, own.ready_ns);
        if carried == Flag::True {
            self.flash.wait(ready_ns);
        } else if note.initial == Flag::True {
            // Alone on flash it would prove its transaction committed (AFC).
            self.flash.wait(first_ns);
        }
    }

    pub(super) fn commit_chain(
        &mut self,
        flags: Flags,
        xid: GroupId,
        rest: &[(LogicalPage, &[u8])],
    ) -> Result<(), ShadowError> {
        if self.table.get(xid).is_some_and(|own| own.has_stale_copies) {
            return Err(ShadowError::FlagRefused(xid));
        }
        if let Some(((page, image), before)) = rest.split_last() {
            for (page, image) in before {
                self.put_chain(flags, xid, *page, image, Flag::First)?;
            }
            let carried = if flags == Flags::Cfc { Flag::True } else { Flag::First };
            self.put_chain(flags, xid, *page, image, carried)?;
        }
        self.flag_all(flags, xid)?;
        self.end_ns = self.table.get(xid).map_or(0, |own| own.ready_ns).max(self.flash.now());
        self.flash.wait(self.end_ns);
        self.settle_committed(xid);
        Ok(())
    }

    /// Sets the flags that the transaction still needs; a block whose page takes no flag is
    /// emptied.
    fn flag_all(&mut self, flags: Flags, xid: GroupId) -> Result<(), ShadowError> {
        for _ in 0..ATTEMPTS {
            match self.flag_once(flags, xid)? {
                Flagged::All => return Ok(()),
                Flagged::Refused(block) => {
                    self.close(block)?;
                    self.collect(block)?;
                }
            }
        }
        Err(ShadowError::FlagRefused(xid))
    }

    fn flag_once(&mut self, flags: Flags, xid: GroupId) -> Result<Flagged, ShadowError> {
        let Some(own) = self.table.get(xid) else { return Ok(Flagged::All) };
        let (units, ready_ns) = (own.written.clone(), own.ready_ns);
        let nodes = self.grain.nodes(flags, &units);
        let wanted: BTreeMap<u32, Flag> = flags.to_commit(&nodes).into_iter().collect();
        let missing =
            nodes.iter().filter(|node| wanted.get(&node.at).is_some_and(|f| *f != node.flag));
        let missing: Vec<u32> = missing.map(|node| node.at).collect();
        for node in missing {
            self.flash.wait(ready_ns);
            let Some(at) = self.page_to_flag(&units, node) else { continue };
            self.counts.flags_commit += 1;
            if !self.set_flag(at, Flag::True)? {
                return Ok(Flagged::Refused(self.flash.sizes.block_of(at)));
            }
            self.note_flag(xid, at, Flag::True);
        }
        Ok(Flagged::All)
    }

    /// Page of a node that takes its flag: of the pages not yet set, the one written last.
    pub(super) fn page_to_flag(&self, units: &[Written], node: u32) -> Option<u32> {
        let own = units.iter().filter(|unit| self.grain.node(unit.at) == node);
        let unset = own.filter(|unit| unit.flag == Flag::First || node == unit.at);
        unset.max_by_key(|unit| unit.note.order).map(|unit| unit.at)
    }

    /// Programs a flag; whether it is verified. Where an erase was cut, nothing is programmed: a
    /// flag that such a page shows was complete before that erase (H3).
    pub(super) fn set_flag(&mut self, at: u32, flag: Flag) -> Result<bool, ShadowError> {
        let verified = match self.cells_of(self.flash.sizes.block_of(at))? {
            Cells::Spent => self.flash.shows_flag(at, flag),
            Cells::Sound | Cells::Unknown => self.flash.program_flag(at, flag),
        };
        let verified = verified.map_err(|error| self.fail(error))?;
        Ok(verified || self.flash.bugs.has(ShadowBug::FlagNotVerified))
    }

    /// Whether pages of a block may be programmed again; looks if that is not known yet (B3).
    fn cells_of(&mut self, block: BlockIndex) -> Result<Cells, ShadowError> {
        if self.blocks.cells(block) == Cells::Unknown {
            let notes = self.read_summary(block)?;
            let was_cut = self.flash.erase_was_cut(block, notes);
            let was_cut = was_cut.map_err(|error| self.fail(error))?;
            self.blocks.set_cells(block, if was_cut { Cells::Spent } else { Cells::Sound });
        }
        Ok(self.blocks.cells(block))
    }

    /// Takes note of a flag of a transaction of the table.
    pub(super) fn note_flag(&mut self, xid: GroupId, at: u32, flag: Flag) {
        let Some(own) = self.table.get_mut(xid) else { return };
        let written = own.written.iter_mut().find(|written| written.at == at);
        if let Some(written) = written {
            written.flag = flag;
        }
    }

    /// A transaction is committed on flash: its newest pages are the committed ones from now on.
    pub(super) fn settle_committed(&mut self, xid: GroupId) {
        debug_assert!(
            self.table.get(xid).is_none_or(|own| own.standing == Standing::Running),
            "what aborted stays so"
        );
        let units = self.table.commit(xid);
        let mut newest: BTreeMap<LogicalPage, Written> = BTreeMap::new();
        for unit in &units {
            let best = newest.entry(unit.note.page).or_insert(*unit);
            let rank = |unit: &Written| (unit.note.version, unit.note.order);
            if rank(best) < rank(unit) {
                *best = *unit;
            }
        }
        for unit in units {
            match newest.get(&unit.note.page) {
                Some(best) if best.at == unit.at => self.remap(best),
                _ => self.drop_live(unit.at),
            }
        }
    }
}

/// Whether the cluster that a new unit at `at` joins is a head.
fn is_head(flags: Flags, grain: Grain, own: &[Written], at: u32) -> bool {
    let nodes = grain.nodes(flags, own);
    flags.to_commit(&nodes).iter().any(|(node, _)| *node == grain.node(at))
}
