//! The lock table: access to records, key intervals and pages (rule D13).
//!
//! Owns: granted locks, queued requests, and the wait-for graph over them. A wait for memory,
//! claims or log room is a wait for work that any thread does, never for a transaction (rule D7),
//! and no part of the graph. Never does: block, sleep, read a clock or do I/O. A request that
//! cannot be granted is queued, and [`LockTable::release_all`] returns the transactions that a
//! release let in.
//!
//! ```text
//!             acquire               release_all / cancel_wait of others
//!   (none) ─────────────▶ Queued ──────────────────────────────────────▶ Held
//!      │                    │ cancel_wait, release_all                     │ release_all
//!      └──── acquire ───────┼──────────────────────────────────────────────┤
//!                           ▼                                              ▼
//!                         (none)                                         (none)
//! ```
//!
//! Invariants:
//! - **I1** Two transactions never hold conflicting locks: shared with exclusive, or exclusive with
//!   exclusive, on the same record or page, on a record and an interval of its tree that contains
//!   the record, or on two overlapping intervals of one tree.
//! - **I2** A queued request has a blocker: a conflicting holder, or a conflicting request ahead of
//!   it. A call that takes the last blocker away grants the request at once.
//! - **I3** First come, first served: a request waits for conflicting requests queued before it.
//!   Upgrades, and requests whose only deadlock would come from queueing, go ahead of the queue.
//! - **I4** Every cycle is found by the call that closes it, because the edges a call adds all start
//!   or end at its transaction. The victim is the youngest transaction of the cycle.
//! - **I5** A transaction has at most one queued request.
//! - **I6** Outcomes do not depend on hash order: equal calls give equal answers.
//! - **I7** A transaction with very many record locks holds intervals around them instead, in the
//!   gaps between the locks of others. These take little memory, however many records the
//!   transaction touches.

mod coarsen;
mod graph;
mod intervals;
mod queue;
mod records;
#[cfg(test)]
mod tests;

use flagstone_space::LogicalPage;
use hashbrown::HashMap;

use self::intervals::{Interval, TreeLocks};
use self::records::{Queued, Records, Slot, Space};

/// Number of a transaction, never reused (rule D3); a larger one began later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Xid(pub u64);

/// Mode of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Any number of holders, none of them exclusive.
    Shared,
    /// One holder.
    Exclusive,
}

impl Mode {
    /// Whether two transactions conflict when they hold these modes on the same target.
    #[must_use]
    pub(crate) fn conflicts(self, other: Self) -> bool {
        self == Self::Exclusive || other == Self::Exclusive
    }
}

/// Target of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// One key of a tree, whether it exists or not.
    Record {
        /// Tree of the key.
        tree: u32,
        /// The key.
        key: &'a [u8],
    },
    /// All keys of a tree from `low` on, up to but not including `high`.
    Interval {
        /// Tree of the keys.
        tree: u32,
        /// First key of the interval.
        low: &'a [u8],
        /// First key after the interval; `None` reaches to the end of the tree.
        high: Option<&'a [u8]>,
    },
    /// One logical page, for page-level locking.
    Page(LogicalPage),
}

impl Target<'_> {
    /// Tree of the keys; that of the catalog for a page.
    pub(crate) const fn tree(&self) -> u32 {
        match self {
            Self::Record { tree, .. } | Self::Interval { tree, .. } => *tree,
            Self::Page(_) => 0,
        }
    }
}

/// Answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum LockOutcome {
    /// The lock is held.
    Granted,
    /// The request is queued. A later release or cancellation names the transaction when the
    /// request is granted; asking again then answers `Granted`.
    Wait,
    /// The request is queued and closes a cycle that only an abort of `victim` breaks.
    ///
    /// The caller aborts the victim with [`LockTable::release_all`]. If the victim is another
    /// transaction, the caller then asks again, because one request may close several cycles.
    Deadlock {
        /// The youngest transaction of the cycle.
        victim: Xid,
    },
}

/// Position in the order of service: upgrades first, then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank(u64);

impl Rank {
    const IN_LINE: u64 = 1 << 63;
    /// Ahead of all other requests.
    const FIRST: Self = Self(0);

    fn is_ahead(self) -> bool {
        self.0 & Self::IN_LINE == 0
    }

    fn ahead(self) -> Self {
        Self(self.0 & !Self::IN_LINE)
    }
}

/// Place of a queued request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the queue of a record or page.
    Point(Slot),
    /// Among the intervals of a tree.
    Interval(Space),
}

/// The queued request of a transaction (I5).
#[derive(Clone, Copy, Debug)]
struct Pending {
    place: Place,
    mode: Mode,
    rank: Rank,
}

/// Locks of one transaction, so that a release needs no search.
#[derive(Debug, Default)]
struct Owned {
    points: Vec<Slot>,
    interval_trees: Vec<Space>,
    /// Bytes of the record locks in `points`.
    size: usize,
    /// Bytes of record locks at which intervals are tried again.
    tried_at: usize,
}

/// Lists kept for reuse when transactions end.
const SPARE_OWNED_COUNT_MAX: usize = 64;
/// Longest list kept for reuse.
const SPARE_OWNED_SIZE_MAX: usize = 256;

/// Bytes of a record lock beside its key: 226 with a key of 8, as measured over 30,000 of them.
const POINT_SIZE: usize = 218;
/// Record locks that a transaction may have in any case, in bytes, some 500 locks: intervals make
/// others wait.
const POINTS_SIZE_MIN: usize = 128 << 10;
/// All locks of a database.
#[derive(Debug)]
pub struct LockTable {
    /// Bytes of record locks above which a transaction gets intervals (I7).
    points_size_max: usize,
    records: Records,
    trees: HashMap<Space, TreeLocks>,
    owners: HashMap<Xid, Owned>,
    waiting: HashMap<Xid, Pending>,
    spare: Vec<Owned>,
    missed: Vec<Xid>,
    requests: u64,
}

impl Default for LockTable {
    /// A table whose record locks never become intervals.
    fn default() -> Self {
        Self::within(usize::MAX)
    }
}

impl LockTable {
    /// An empty table, in which the locks of one transaction take about `bytes` at most, as far as
    /// locks of others allow.
    #[must_use]
    pub(crate) fn within(bytes: usize) -> Self {
        Self {
            points_size_max: bytes.max(POINTS_SIZE_MIN),
            records: Records::default(),
            trees: HashMap::new(),
            owners: HashMap::new(),
            waiting: HashMap::new(),
            spare: Vec::new(),
            missed: Vec::new(),
            requests: 0,
        }
    }

    /// Requests a lock, or asks again for a lock that is held or queued.
    ///
    /// A held lock of at least this strength answers `Granted`. A transaction that asks for another
    /// lock while a request of its own is queued gives the queued request up.
    pub fn acquire(&mut self, xid: Xid, target: Target<'_>, mode: Mode) -> LockOutcome {
        match target {
            Target::Record { tree, key } => self.acquire_point(xid, Space::tree(tree), key, mode),
            Target::Page(page) => {
                self.acquire_point(xid, Space::PAGES, &page.0.to_be_bytes(), mode)
            }
            Target::Interval { high: Some(high), low, .. } if low >= high => LockOutcome::Granted,
            Target::Interval { tree, low, high } => {
                self.acquire_interval(xid, Space::tree(tree), low, high, mode)
            }
        }
    }

    /// Ends a transaction: drops its locks and its queued request.
    ///
    /// Returns the transactions whose queued requests this grants, in order of service.
    pub fn release_all(&mut self, xid: Xid) -> Vec<Xid> {
        let mut candidates = Vec::new();
        self.withdraw(xid, &mut candidates);
        if let Some(mut owned) = self.owners.remove(&xid) {
            for slot in owned.points.drain(..) {
                self.release_point(xid, slot, &mut candidates);
            }
            for space in owned.interval_trees.drain(..) {
                self.release_intervals(xid, space, &mut candidates);
            }
            self.keep_spare(owned);
        }
        self.drop_idle_trees();
        self.grant_candidates(candidates)
    }

    /// Gives up the queued request of a transaction; its locks stay.
    ///
    /// Returns the transactions whose queued requests this grants, in order of service.
    pub fn cancel_wait(&mut self, xid: Xid) -> Vec<Xid> {
        let mut candidates = Vec::new();
        self.withdraw(xid, &mut candidates);
        self.drop_idle_trees();
        self.grant_candidates(candidates)
    }

    /// Gives every holder of page `from` the same lock on page `to` (rule D13).
    ///
    /// Called before a new sibling is installed: no transaction can hold or want `to` yet. Queued
    /// requests stay with `from`.
    pub fn inherit_page(&mut self, from: LogicalPage, to: LogicalPage) {
        let Some(source) = self.records.find(Space::PAGES, &from.0.to_be_bytes()) else { return };
        let holders = self.records.entry(source).holders.clone();
        if from == to || holders.is_empty() {
            return;
        }
        let slot = self.records.find_or_insert(Space::PAGES, &to.0.to_be_bytes()).0;
        debug_assert!(self.records.entry(slot).holders.is_empty(), "a new sibling has no holder");
        for holder in holders {
            self.hold_point(holder.xid, slot, holder.mode);
        }
    }

    /// Whether `xid` has a queued request.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn is_waiting(&self, xid: Xid) -> bool {
        self.waiting.contains_key(&xid)
    }

    /// Queued requests.
    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no lock is held and no request queued.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.owners.is_empty() && self.waiting.is_empty()
    }

    /// Memory the table takes, for the budget of the engine.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let owned_size =
            |owned: &Owned| 4 * owned.points.capacity() + 8 * owned.interval_trees.len();
        self.records.bytes()
            + self.trees.values().map(TreeLocks::bytes).sum::<usize>()
            + self.owners.values().map(owned_size).sum::<usize>()
            + self.owners.capacity() * size_of::<(Xid, Owned)>()
            + self.waiting.capacity() * size_of::<(Xid, Pending)>()
    }

    fn acquire_point(&mut self, xid: Xid, space: Space, key: &[u8], mode: Mode) -> LockOutcome {
        if !self.waiting.is_empty() && self.is_queued_for_point(xid, space, key, mode) {
            return self.judge_wait(xid);
        }
        let covered = self.own_interval_mode(xid, space, key);
        if covered >= Some(mode) {
            return LockOutcome::Granted;
        }
        let slot = self.insert_point(space, key);
        let held = self.records.entry(slot).mode_of(xid);
        if held >= Some(mode) {
            return LockOutcome::Granted;
        }
        let rank = self.next_rank(held.is_some() || covered.is_some());
        let pending = Pending { place: Place::Point(slot), mode, rank };
        if !self.is_blocked(xid, &pending) {
            if self.hold_point(xid, slot, mode) {
                self.coarsen(xid);
            }
            return LockOutcome::Granted;
        }
        self.records.entry_mut(slot).enqueue(Queued { xid, mode, rank });
        self.queue(xid, pending)
    }

    fn acquire_interval(
        &mut self,
        xid: Xid,
        space: Space,
        low: &[u8],
        high: Option<&[u8]>,
        mode: Mode,
    ) -> LockOutcome {
        if self.is_queued_for_interval(xid, space, low, high, mode) {
            return self.judge_wait(xid);
        }
        let tree = self.trees.entry(space).or_default();
        let held = tree.held_cover(xid, low, high);
        if held >= Some(mode) {
            return LockOutcome::Granted;
        }
        tree.order_records(space, &self.records);
        let rank = self.next_rank(held.is_some());
        let interval = Interval::new(low, high, xid, mode, rank);
        self.trees.entry(space).or_default().intervals.push(interval);
        let pending = Pending { place: Place::Interval(space), mode, rank };
        if !self.is_blocked(xid, &pending) {
            self.hold_interval(xid, space);
            return LockOutcome::Granted;
        }
        self.queue(xid, pending)
    }

    fn insert_point(&mut self, space: Space, key: &[u8]) -> Slot {
        let (slot, inserted) = self.records.find_or_insert(space, key);
        if inserted
            && !self.trees.is_empty()
            && let Some(tree) = self.trees.get_mut(&space)
        {
            tree.record_added(key, slot);
        }
        slot
    }

    fn drop_unused_point(&mut self, slot: Slot) {
        let entry = self.records.entry(slot);
        if !entry.is_unused() {
            return;
        }
        if !self.trees.is_empty()
            && let Some(tree) = self.trees.get_mut(&entry.space)
        {
            tree.record_removed(&entry.key);
        }
        self.records.remove(slot);
    }

    /// Adds a record lock; returns whether the transaction has very many by now (I7).
    fn hold_point(&mut self, xid: Xid, slot: Slot, mode: Mode) -> bool {
        let entry = self.records.entry_mut(slot);
        if !entry.hold(xid, mode) {
            return false;
        }
        let (size, size_max) = (POINT_SIZE + entry.key.len(), self.points_size_max);
        let owned = self.owned_mut(xid);
        owned.points.push(slot);
        owned.size += size;
        owned.size >= owned.tried_at.max(size_max)
    }

    fn hold_interval(&mut self, xid: Xid, space: Space) {
        if let Some(tree) = self.trees.get_mut(&space) {
            tree.hold(xid);
        }
        let owned = self.owned_mut(xid);
        if !owned.interval_trees.contains(&space) {
            owned.interval_trees.push(space);
        }
    }

    fn owned_mut(&mut self, xid: Xid) -> &mut Owned {
        let spare = &mut self.spare;
        self.owners.entry(xid).or_insert_with(|| spare.pop().unwrap_or_default())
    }

    fn keep_spare(&mut self, mut owned: Owned) {
        (owned.size, owned.tried_at) = (0, 0);
        let small = owned.points.capacity() <= SPARE_OWNED_SIZE_MAX;
        if small && self.spare.len() < SPARE_OWNED_COUNT_MAX {
            self.spare.push(owned);
        }
    }

    fn own_interval_mode(&self, xid: Xid, space: Space, key: &[u8]) -> Option<Mode> {
        if self.trees.is_empty() {
            return None;
        }
        self.trees.get(&space)?.held_mode_at(xid, key)
    }

    fn release_point(&mut self, xid: Xid, slot: Slot, candidates: &mut Vec<(Rank, Xid)>) {
        self.records.entry_mut(slot).release(xid);
        if !self.waiting.is_empty() {
            self.note_point_waiters(slot, candidates);
        }
        self.drop_unused_point(slot);
    }

    fn release_intervals(&mut self, xid: Xid, space: Space, candidates: &mut Vec<(Rank, Xid)>) {
        let removed = self.trees.get_mut(&space).map(|tree| tree.remove_held(xid));
        if !self.waiting.is_empty() {
            self.note_interval_waiters(space, removed.as_deref().unwrap_or(&[]), candidates);
        }
    }

    fn drop_idle_trees(&mut self) {
        if !self.trees.is_empty() && self.records.len() <= intervals::SCAN_COUNT_MAX / 2 {
            self.trees.retain(|_, tree| !tree.intervals.is_empty());
        }
    }
}
