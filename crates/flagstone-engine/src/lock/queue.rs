//! Queued requests: their order, their grants, their end.
//!
//! Owns the order of service (I3) and the requests that a release lets in (I2). Never looks for a cycle: the wait-for
//! graph does.

use super::intervals::Interval;
use super::records::{Queued, Slot, Space};
use super::{LockOutcome, LockTable, Mode, Pending, Place, Rank, Xid};

impl LockTable {
    /// Records a new request and looks for a cycle, unless no transaction can wait for `xid`.
    pub(super) fn queue(&mut self, xid: Xid, pending: Pending) -> LockOutcome {
        let replaced = self.waiting.insert(xid, pending);
        debug_assert!(replaced.is_none(), "I5: one queued request a transaction");
        if self.is_waited_for(xid) { self.judge_wait(xid) } else { LockOutcome::Wait }
    }

    /// Decides whether a queued request may wait (I3, I4).
    ///
    /// A cycle through the order of the queue alone is no deadlock: the request goes ahead.
    pub(super) fn judge_wait(&mut self, xid: Xid) -> LockOutcome {
        let Some(victim) = self.cycle_victim(xid) else { return LockOutcome::Wait };
        let Some(pending) = self.waiting.get(&xid).copied() else { return LockOutcome::Granted };
        if pending.rank.is_ahead() {
            return LockOutcome::Deadlock { victim };
        }
        let pending = self.move_ahead(xid, pending);
        if !self.is_blocked(xid, &pending) {
            self.grant(xid, pending);
            return LockOutcome::Granted;
        }
        match self.cycle_victim(xid) {
            Some(victim) => LockOutcome::Deadlock { victim },
            None => LockOutcome::Wait,
        }
    }

    fn move_ahead(&mut self, xid: Xid, pending: Pending) -> Pending {
        let moved = Pending { rank: pending.rank.ahead(), ..pending };
        match pending.place {
            Place::Point(slot) => {
                let entry = self.records.entry_mut(slot);
                entry.dequeue(xid);
                entry.enqueue(Queued { xid, mode: moved.mode, rank: moved.rank });
            }
            Place::Interval(space) => {
                if let Some(tree) = self.trees.get_mut(&space) {
                    tree.set_rank(xid, moved.rank);
                }
            }
        }
        self.waiting.insert(xid, moved);
        moved
    }

    /// Whether this very request is queued already. Any other queued request is given up.
    pub(super) fn is_queued_for_point(
        &mut self,
        xid: Xid,
        space: Space,
        key: &[u8],
        mode: Mode,
    ) -> bool {
        let Some(pending) = self.waiting.get(&xid).copied() else { return false };
        let same = match pending.place {
            Place::Point(slot) => {
                let entry = self.records.entry(slot);
                entry.space == space && entry.key == key && pending.mode == mode
            }
            Place::Interval(_) => false,
        };
        self.give_up_unless(same, xid)
    }

    pub(super) fn is_queued_for_interval(
        &mut self,
        xid: Xid,
        space: Space,
        low: &[u8],
        high: Option<&[u8]>,
        mode: Mode,
    ) -> bool {
        let Some(pending) = self.waiting.get(&xid).copied() else { return false };
        let queued = match pending.place {
            Place::Interval(queued_space) if queued_space == space => {
                self.queued_interval(xid, space)
            }
            _ => None,
        };
        let same =
            queued.is_some_and(|i| *i.low == *low && i.high.as_deref() == high && i.mode == mode);
        self.give_up_unless(same, xid)
    }

    fn give_up_unless(&mut self, same: bool, xid: Xid) -> bool {
        if !same {
            let woken = self.cancel_wait(xid);
            self.missed.extend(woken);
        }
        same
    }

    pub(super) fn next_rank(&mut self, upgrade: bool) -> Rank {
        self.requests += 1;
        let rank = Rank(self.requests | Rank::IN_LINE);
        if upgrade { rank.ahead() } else { rank }
    }

    fn grant(&mut self, xid: Xid, pending: Pending) {
        debug_assert!(
            !self.is_blocked(xid, &pending),
            "I1: only what conflicts with nothing is held"
        );
        self.waiting.remove(&xid);
        match pending.place {
            Place::Point(slot) => {
                self.records.entry_mut(slot).dequeue(xid);
                self.hold_point(xid, slot, pending.mode);
            }
            Place::Interval(space) => self.hold_interval(xid, space),
        }
    }

    pub(super) fn grant_candidates(&mut self, mut candidates: Vec<(Rank, Xid)>) -> Vec<Xid> {
        let mut woken = std::mem::take(&mut self.missed);
        candidates.sort_unstable();
        candidates.dedup();
        for (_, xid) in candidates {
            let Some(pending) = self.waiting.get(&xid).copied() else { continue };
            if !self.is_blocked(xid, &pending) {
                self.grant(xid, pending);
                woken.push(xid);
            }
        }
        woken
    }

    fn queued_interval(&self, xid: Xid, space: Space) -> Option<&Interval> {
        self.trees.get(&space)?.queued(xid)
    }

    /// Withdraws the queued request of `xid` and notes the requests that this may let in.
    pub(super) fn withdraw(&mut self, xid: Xid, candidates: &mut Vec<(Rank, Xid)>) {
        if self.waiting.is_empty() {
            return;
        }
        let Some(pending) = self.waiting.remove(&xid) else { return };
        match pending.place {
            Place::Point(slot) => {
                self.records.entry_mut(slot).dequeue(xid);
                self.note_point_waiters(slot, candidates);
                self.drop_unused_point(slot);
            }
            Place::Interval(space) => {
                let removed = self.trees.get_mut(&space).map(|tree| tree.remove_queued(xid));
                self.note_interval_waiters(space, removed.as_deref().unwrap_or(&[]), candidates);
            }
        }
    }

    pub(super) fn note_point_waiters(&self, slot: Slot, candidates: &mut Vec<(Rank, Xid)>) {
        let entry = self.records.entry(slot);
        entry.note_first_waiters(candidates);
        if let Some(tree) = self.trees.get(&entry.space) {
            tree.note_waiters_at(&entry.key, candidates);
        }
    }

    pub(super) fn note_interval_waiters(
        &self,
        space: Space,
        removed: &[Interval],
        candidates: &mut Vec<(Rank, Xid)>,
    ) {
        let Some(tree) = self.trees.get(&space) else { return };
        for interval in removed {
            tree.note_waiters_in(interval, candidates);
            tree.each_record(space, &self.records, interval, |entry| {
                entry.note_first_waiters(candidates);
            });
        }
    }
}
