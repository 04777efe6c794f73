//! The wait-for graph: derived from the lock table when a cycle has to be looked for, never stored.

use hashbrown::HashSet;

use super::intervals::Interval;
use super::records::{Entry, Slot, Space};
use super::{LockTable, Mode, Pending, Place, Rank, Xid};

/// The part of a request that is compared to find its blockers.
#[derive(Clone, Copy)]
struct Request {
    xid: Xid,
    mode: Mode,
    rank: Rank,
}

impl Request {
    fn conflicts(&self, xid: Xid, mode: Mode) -> bool {
        self.xid != xid && self.mode.conflicts(mode)
    }

    fn waits_for(&self, interval: &Interval) -> bool {
        self.conflicts(interval.xid, interval.mode) && interval.comes_before(self.rank)
    }
}

/// Most locks of a transaction that are inspected before a cycle search is cheaper.
const DEPENDANT_CHECK_COUNT_MAX: usize = 64;

impl LockTable {
    /// The youngest transaction of a cycle through `xid`, if there is one.
    pub(super) fn cycle_victim(&self, xid: Xid) -> Option<Xid> {
        let mut path = vec![(xid, self.waits_of(xid))];
        let mut seen = HashSet::new();
        while let Some((_, open)) = path.last_mut() {
            let Some(next) = open.pop() else {
                path.pop();
                continue;
            };
            if next == xid {
                return path.iter().map(|(member, _)| *member).max();
            }
            if seen.insert(next) {
                path.push((next, self.waits_of(next)));
            }
        }
        None
    }

    /// Whether a holder or another request blocks a request (I2).
    pub(super) fn is_blocked(&self, xid: Xid, pending: &Pending) -> bool {
        let request = Request { xid, mode: pending.mode, rank: pending.rank };
        match pending.place {
            Place::Point(slot) => self.is_point_blocked(&request, slot),
            Place::Interval(space) => {
                let mut blocked = false;
                self.interval_blockers(&request, space, &mut |_| blocked = true);
                blocked
            }
        }
    }

    /// Whether any transaction may wait for `xid`: false only when none does.
    pub(super) fn is_waited_for(&self, xid: Xid) -> bool {
        let Some(owned) = self.owners.get(&xid) else { return false };
        !owned.interval_trees.is_empty()
            || owned.points.len() > DEPENDANT_CHECK_COUNT_MAX
            || owned.points.iter().any(|slot| self.is_point_wanted(*slot))
    }

    fn is_point_wanted(&self, slot: Slot) -> bool {
        let entry = self.records.entry(slot);
        let tree = self.trees.get(&entry.space);
        !entry.queue.is_empty() || tree.is_some_and(|tree| tree.has_waiters())
    }

    /// Transactions that `xid` waits for, each once, in order.
    fn waits_of(&self, xid: Xid) -> Vec<Xid> {
        let mut found = Vec::new();
        if let Some(pending) = self.waiting.get(&xid) {
            let request = Request { xid, mode: pending.mode, rank: pending.rank };
            match pending.place {
                Place::Point(slot) => self.point_blockers(&request, slot, &mut |b| found.push(b)),
                Place::Interval(s) => self.interval_blockers(&request, s, &mut |b| found.push(b)),
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn is_point_blocked(&self, request: &Request, slot: Slot) -> bool {
        let entry = self.records.entry(slot);
        let ahead = |q: &super::Queued| q.rank < request.rank && request.conflicts(q.xid, q.mode);
        entry.holders.iter().any(|holder| request.conflicts(holder.xid, holder.mode))
            || entry.queue.iter().any(ahead)
            || self
                .intervals_around(entry)
                .iter()
                .any(|interval| request.waits_for(interval) && interval.contains(&entry.key))
    }

    fn point_blockers(&self, request: &Request, slot: Slot, visit: &mut dyn FnMut(Xid)) {
        let entry = self.records.entry(slot);
        nearest_blockers(request, entry, visit);
        for interval in self.intervals_around(entry) {
            if request.waits_for(interval) && interval.contains(&entry.key) {
                visit(interval.xid);
            }
        }
    }

    fn interval_blockers(&self, request: &Request, space: Space, visit: &mut dyn FnMut(Xid)) {
        let Some(tree) = self.trees.get(&space) else { return };
        let Some(wanted) = tree.queued(request.xid) else { return };
        for interval in &tree.intervals {
            if request.waits_for(interval) && interval.overlaps(wanted) {
                visit(interval.xid);
            }
        }
        tree.each_record(space, &self.records, wanted, |entry| {
            nearest_blockers(request, entry, visit);
        });
    }

    fn intervals_around(&self, entry: &Entry) -> &[Interval] {
        if self.trees.is_empty() {
            return &[];
        }
        self.trees.get(&entry.space).map_or(&[], |tree| &tree.intervals)
    }
}

/// Blockers at one entry, without the ones that the nearest exclusive request ahead waits for anyway:
/// a hot record with many waiters then has a chain of edges, not their square.
fn nearest_blockers(request: &Request, entry: &Entry, visit: &mut dyn FnMut(Xid)) {
    let end = entry.queue.partition_point(|queued| queued.rank < request.rank);
    for queued in entry.queue[..end].iter().rev() {
        if request.conflicts(queued.xid, queued.mode) {
            visit(queued.xid);
            if queued.mode == Mode::Exclusive {
                return;
            }
        }
    }
    for holder in &entry.holders {
        if request.conflicts(holder.xid, holder.mode) {
            visit(holder.xid);
        }
    }
}
