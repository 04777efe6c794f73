//! Intervals in place of very many record locks (I7).
//!
//! Owns the choice of the intervals. Never makes a transaction wait.

use super::intervals::Interval;
use super::records::Slot;
use super::records::Space;
use super::{LockTable, Mode, POINT_SIZE, Pending, Place, Rank, Xid};

/// Fewest locks that are worth an interval.
const JOINED_MIN: usize = if cfg!(test) { 2 } else { 16 };

impl LockTable {
    /// Gives a transaction with many record locks intervals instead (I7).
    pub(super) fn coarsen(&mut self, xid: Xid) {
        let Some(owned) = self.owners.get(&xid) else { return };
        let mut spaces: Vec<_> =
            owned.points.iter().map(|slot| self.records.entry(*slot).space).collect();
        spaces.sort_unstable();
        spaces.dedup();
        for space in spaces.into_iter().filter(|space| *space != Space::PAGES) {
            for mode in [Mode::Exclusive, Mode::Shared] {
                self.coarsen_in(xid, space, mode);
            }
        }
        if let Some(owned) = self.owners.get_mut(&xid) {
            owned.tried_at = 2 * owned.size;
        }
    }

    /// Gives the transaction intervals around its locks in one mode: one around all of them, or
    /// several between the keys that others hold or want.
    fn coarsen_in(&mut self, xid: Xid, space: Space, mode: Mode) {
        let Some(owned) = self.owners.get(&xid) else { return };
        let entries = owned.points.iter().map(|slot| self.records.entry(*slot));
        let mut held: Vec<Interval> = entries
            .filter(|entry| entry.space == space && entry.mode_of(xid) == Some(mode))
            .map(|entry| Interval::at(&entry.key, xid, mode))
            .collect();
        if held.is_empty() {
            return;
        }
        let tree = self.trees.entry(space).or_default();
        tree.order_records(space, &self.records);
        held.extend(tree.held_by(xid, mode));
        held.sort_unstable_by(|one, other| one.low.cmp(&other.low));
        self.join(space, &held);
        self.drop_idle_trees();
    }

    /// Locks one interval around intervals that a transaction holds, or else around parts of them.
    fn join(&mut self, space: Space, held: &[Interval]) {
        let Some((first, rest)) = held.split_first() else { return };
        let mut wanted = first.clone();
        rest.iter().for_each(|other| wanted.extend(other.clone()));
        if !self.hold_at_once(space, wanted) && held.len() >= JOINED_MIN {
            let (front, back) = held.split_at(held.len() / 2);
            self.join(space, front);
            self.join(space, back);
        }
    }

    /// Locks an interval if no other transaction is in the way, and releases the records in it.
    fn hold_at_once(&mut self, space: Space, wanted: Interval) -> bool {
        let Interval { xid, mode, .. } = wanted;
        let rank = Rank::FIRST;
        let queued = Interval { rank: Some(rank), ..wanted.clone() };
        self.trees.entry(space).or_default().intervals.push(queued);
        if self.is_blocked(xid, &Pending { place: Place::Interval(space), mode, rank }) {
            if let Some(tree) = self.trees.get_mut(&space) {
                tree.remove_queued(xid);
            }
            return false;
        }
        self.hold_interval(xid, space);
        let Some(owned) = self.owners.get_mut(&xid) else { return true };
        let records = &self.records;
        let is_covered = |slot: &mut Slot| {
            let entry = records.entry(*slot);
            let is_inside = entry.space == space && wanted.contains(&entry.key);
            is_inside && entry.mode_of(xid) <= Some(mode)
        };
        let covered: Vec<Slot> = owned.points.extract_if(.., is_covered).collect();
        let sizes = covered.iter().map(|slot| POINT_SIZE + records.entry(*slot).key.len());
        owned.size -= sizes.sum::<usize>();
        for slot in covered {
            // Requests that waited for the record now wait for the interval (I2).
            self.records.entry_mut(slot).release(xid);
            self.drop_unused_point(slot);
        }
        true
    }
}
