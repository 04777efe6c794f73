//! Locks on key intervals of one tree.
//!
//! Adjacent or overlapping intervals of one transaction are kept as one, so that an advancing scan
//! holds a single interval. Intervals are few and are searched one by one. The record locks that
//! conflict with a new interval are found in an ordered index, which exists only where intervals
//! do.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::records::{Entry, Records, Slot, Space};
use super::{Mode, Rank, Xid};

/// Most locks that are searched one by one instead of being ordered. Small in tests, so that short
/// schedules reach both ways.
pub(super) const SCAN_COUNT_MAX: usize = if cfg!(test) { 3 } else { 64 };

/// One interval lock, held or queued.
#[derive(Clone, Debug)]
pub(super) struct Interval {
    pub(super) low: Box<[u8]>,
    pub(super) high: Option<Box<[u8]>>,
    pub(super) xid: Xid,
    pub(super) mode: Mode,
    /// `None` for a held interval.
    pub(super) rank: Option<Rank>,
}

impl Interval {
    pub(super) fn new(low: &[u8], high: Option<&[u8]>, xid: Xid, mode: Mode, rank: Rank) -> Self {
        Self { low: low.into(), high: high.map(Into::into), xid, mode, rank: Some(rank) }
    }

    /// A held lock on one key, as an interval.
    pub(super) fn at(key: &[u8], xid: Xid, mode: Mode) -> Self {
        let high = [key, &[0]].concat();
        Self { low: key.into(), high: Some(high.into()), xid, mode, rank: None }
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        *self.low <= *key && self.high.as_deref().is_none_or(|high| key < high)
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.starts_before_end(other.high.as_deref())
            && other.starts_before_end(self.high.as_deref())
    }

    /// Whether a request of `rank` has to wait for this interval, apart from the modes.
    pub(super) fn comes_before(&self, rank: Rank) -> bool {
        self.rank.is_none_or(|own| own < rank)
    }

    fn is_held_by(&self, xid: Xid) -> bool {
        self.xid == xid && self.rank.is_none()
    }

    fn starts_before_end(&self, high: Option<&[u8]>) -> bool {
        high.is_none_or(|high| *self.low < *high)
    }

    /// Whether the union of both is an interval.
    fn touches(&self, other: &Self) -> bool {
        let reaches = |end: Option<&[u8]>, start: &[u8]| end.is_none_or(|end| start <= end);
        reaches(self.high.as_deref(), &other.low) && reaches(other.high.as_deref(), &self.low)
    }

    fn covers(&self, low: &[u8], high: Option<&[u8]>) -> bool {
        let high_inside = match (self.high.as_deref(), high) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(other)) => other <= own,
        };
        *self.low <= *low && high_inside
    }

    pub(super) fn extend(&mut self, other: Self) {
        if other.low < self.low {
            self.low = other.low;
        }
        self.high = match (self.high.take(), other.high) {
            (Some(own), Some(other)) => Some(own.max(other)),
            _ => None,
        };
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.low.len() + self.high.as_ref().map_or(0, |high| high.len())
    }
}

/// Interval locks of one tree, and its record locks in key order when they are many.
#[derive(Debug, Default)]
pub(super) struct TreeLocks {
    pub(super) intervals: Vec<Interval>,
    ordered: Option<BTreeMap<Box<[u8]>, Slot>>,
}

impl TreeLocks {
    /// Orders the record locks of the tree when searching them all would take long.
    pub(super) fn order_records(&mut self, space: Space, records: &Records) {
        if self.ordered.is_none() && records.len() > SCAN_COUNT_MAX {
            let keys =
                records.in_space(space).map(|(slot, entry)| (entry.key.as_slice().into(), slot));
            self.ordered = Some(keys.collect());
        }
    }

    pub(super) fn record_added(&mut self, key: &[u8], slot: Slot) {
        if let Some(ordered) = &mut self.ordered {
            ordered.insert(key.into(), slot);
        }
    }

    pub(super) fn record_removed(&mut self, key: &[u8]) {
        if let Some(ordered) = &mut self.ordered {
            ordered.remove(key);
        }
    }

    /// Visits the record locks inside an interval.
    pub(super) fn each_record(
        &self,
        space: Space,
        records: &Records,
        interval: &Interval,
        mut visit: impl FnMut(&Entry),
    ) {
        let Some(ordered) = &self.ordered else {
            let inside = records.in_space(space).filter(|(_, entry)| interval.contains(&entry.key));
            inside.for_each(|(_, entry)| visit(entry));
            return;
        };
        let high = interval.high.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        for slot in ordered.range::<[u8], _>((Bound::Included(&*interval.low), high)) {
            visit(records.entry(*slot.1));
        }
    }

    /// Strongest mode in which a transaction holds an interval around `key`.
    pub(super) fn held_mode_at(&self, xid: Xid, key: &[u8]) -> Option<Mode> {
        let around = |interval: &&Interval| interval.is_held_by(xid) && interval.contains(key);
        self.intervals.iter().filter(around).map(|interval| interval.mode).max()
    }

    /// Strongest mode in which one held interval of a transaction covers all keys from `low` to
    /// `high`.
    pub(super) fn held_cover(&self, xid: Xid, low: &[u8], high: Option<&[u8]>) -> Option<Mode> {
        let cover = |interval: &&Interval| interval.is_held_by(xid) && interval.covers(low, high);
        self.intervals.iter().filter(cover).map(|interval| interval.mode).max()
    }

    /// The queued request of a transaction.
    pub(super) fn queued(&self, xid: Xid) -> Option<&Interval> {
        self.intervals.iter().find(|interval| interval.xid == xid && interval.rank.is_some())
    }

    pub(super) fn set_rank(&mut self, xid: Xid, rank: Rank) {
        for interval in &mut self.intervals {
            if interval.xid == xid && interval.rank.is_some() {
                interval.rank = Some(rank);
            }
        }
    }

    /// Turns the queued request of a transaction into a held interval, joined with its neighbours.
    pub(super) fn hold(&mut self, xid: Xid) {
        for mut interval in self.remove_queued(xid) {
            interval.rank = None;
            self.absorb(&mut interval);
            self.intervals.push(interval);
        }
    }

    /// Intervals that a transaction holds in one mode.
    pub(super) fn held_by(&self, xid: Xid, mode: Mode) -> impl Iterator<Item = Interval> {
        let is_held = move |interval: &&Interval| interval.is_held_by(xid) && interval.mode == mode;
        self.intervals.iter().filter(is_held).cloned()
    }

    pub(super) fn remove_held(&mut self, xid: Xid) -> Vec<Interval> {
        self.intervals.extract_if(.., |interval| interval.is_held_by(xid)).collect()
    }

    pub(super) fn remove_queued(&mut self, xid: Xid) -> Vec<Interval> {
        let queued = |interval: &mut Interval| interval.xid == xid && interval.rank.is_some();
        self.intervals.extract_if(.., queued).collect()
    }

    pub(super) fn note_waiters_at(&self, key: &[u8], candidates: &mut Vec<(Rank, Xid)>) {
        self.note_waiters(|interval| interval.contains(key), candidates);
    }

    pub(super) fn note_waiters_in(&self, gone: &Interval, candidates: &mut Vec<(Rank, Xid)>) {
        self.note_waiters(|interval| interval.overlaps(gone), candidates);
    }

    pub(super) fn has_waiters(&self) -> bool {
        self.intervals.iter().any(|interval| interval.rank.is_some())
    }

    pub(super) fn bytes(&self) -> usize {
        let ordered_size = self.ordered.as_ref().map_or(0, |ordered| {
            ordered.keys().map(|key| key.len() + size_of::<(Box<[u8]>, Slot)>()).sum()
        });
        self.intervals.iter().map(Interval::bytes).sum::<usize>() + ordered_size
    }

    /// Extends `interval` by the adjacent intervals of its transaction in its mode, and drops the
    /// intervals that it makes superfluous.
    fn absorb(&mut self, interval: &mut Interval) {
        let mut index = 0;
        while index < self.intervals.len() {
            let other = &self.intervals[index];
            let own = other.is_held_by(interval.xid);
            let weaker =
                other.mode < interval.mode && interval.covers(&other.low, other.high.as_deref());
            if own && weaker {
                self.intervals.swap_remove(index);
            } else if own && other.mode == interval.mode && interval.touches(other) {
                interval.extend(self.intervals.swap_remove(index));
                index = 0;
            } else {
                index += 1;
            }
        }
    }

    fn note_waiters(&self, near: impl Fn(&Interval) -> bool, candidates: &mut Vec<(Rank, Xid)>) {
        for interval in &self.intervals {
            if let Some(rank) = interval.rank.filter(|_| near(interval)) {
                candidates.push((rank, interval.xid));
            }
        }
    }
}
