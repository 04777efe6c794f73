//! Snapshots: reads at one durable commit that never wait for another transaction.
//!
//! While a snapshot lives, a merge that would bury versions that the snapshot reads keeps the old leaf:
//! its page is pinned on flash, and the merged deltas move aside with it. A reader looks for the oldest
//! kept leaf that is young enough, else reads the current one. When kept leaves take more than their
//! share of memory, or the device needs their pages, the oldest snapshot ends with a typed error.

use std::collections::VecDeque;

use flagstone_space::{LogicalPage, Lsn, PinId};

use crate::delta::{DeltaMap, DeltaSize, KeyRange, Value, apply};
use crate::engine::step::{Fetch, Step, Stop, Wait};
use crate::engine::store::Store;
use crate::engine::store::catalog::{Table, Tree};
use crate::engine::store::owner::Owner;
use crate::engine::store::read::{Read, value_in};
use crate::engine::store::scan::{Direction, ScanRange};
use crate::engine::store::value::Descriptor;
use crate::error::EngineError;
use crate::node::NodeView;
use crate::sync::Mutex;

/// Names a snapshot; the younger the snapshot, the larger its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId {
    number: u64,
    /// The commit that the snapshot reads at.
    lsn: Lsn,
    owner: Owner,
}

/// Images of old leaves kept in memory, so that a scan does not read one leaf once a row.
const OLD_IMAGES_MAX: usize = 4;

/// Kept leaves may take one part in this many of the memory for deltas.
const RETAINED_SHARE: usize = 4;

#[derive(Debug)]
struct OldImage {
    pin: PinId,
    image: Vec<u8>,
}

/// Snapshots that are being read. They begin and end under a shared latch too.
#[derive(Debug)]
pub(crate) struct Snapshots {
    owner: Owner,
    live: Mutex<Live>,
    /// Snapshots with smaller numbers were ended to free the leaves that they kept: a read of one gets
    /// the error.
    ended_before: u64,
    images: VecDeque<OldImage>,
    unpins: Vec<PinId>,
}

#[derive(Debug, Default)]
struct Live {
    next: u64,
    /// Oldest first, by number and by LSN: the durable frontier only rises.
    ids: Vec<SnapshotId>,
    /// Snapshots came or went since the boundaries were taken.
    has_changed: bool,
}

impl Live {
    fn remove(&mut self, snapshot: SnapshotId) {
        if let Ok(at) = self.ids.binary_search(&snapshot) {
            self.ids.remove(at);
            self.has_changed = true;
        }
    }
}

impl Snapshots {
    pub(in crate::engine) fn of(owner: Owner) -> Self {
        let (live, images, unpins) = (Mutex::default(), VecDeque::new(), Vec::new());
        Self { owner, live, ended_before: 0, images, unpins }
    }

    fn begin(&self, lsn: Lsn) -> SnapshotId {
        let mut live = self.live.lock();
        let id = SnapshotId { number: live.next, lsn, owner: self.owner };
        debug_assert!(live.ids.last().is_none_or(|last| *last < id && last.lsn <= lsn), "in order");
        live.next += 1;
        live.ids.push(id);
        live.has_changed = true;
        id
    }

    /// The oldest snapshot.
    fn first(&self) -> Option<SnapshotId> {
        self.live.lock().ids.first().copied()
    }

    pub(crate) fn oldest(&self) -> Option<Lsn> {
        self.first().map(|id| id.lsn)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    /// Whether boundaries that were taken before the call may be others now.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.live.get_mut().has_changed)
    }

    pub(crate) fn boundaries(&mut self, boundaries: &mut Vec<Lsn>) {
        let live = self.live.get_mut();
        live.has_changed = false;
        boundaries.extend(live.ids.iter().map(|id| id.lsn));
    }

    /// The commit that a snapshot reads at, unless the snapshot was ended to free its leaves. A
    /// snapshot that its own owner has ended is not looked for: nothing can be read with it.
    pub(crate) fn lsn(&self, snapshot: SnapshotId) -> Result<Lsn, EngineError> {
        if snapshot.owner != self.owner {
            return Err(EngineError::NoSnapshot);
        }
        match snapshot.number < self.ended_before {
            true => Err(EngineError::SnapshotTooOld),
            false => Ok(snapshot.lsn),
        }
    }

    pub(crate) fn keep_old(&mut self, pin: PinId, _lsn: Lsn, image: Vec<u8>) {
        if self.images.len() == OLD_IMAGES_MAX {
            self.images.pop_front();
        }
        self.images.push_back(OldImage { pin, image });
    }

    pub(crate) fn old_image(&self, old: &OldLeaf) -> Option<&[u8]> {
        let found = self.images.iter().find(|image| Some(image.pin) == old.pin.map(|pin| pin.0));
        found.map(|image| image.image.as_slice())
    }

    fn holds(&self, pin: PinId) -> bool {
        self.images.iter().any(|image| image.pin == pin)
    }

    /// Pins that no snapshot needs any more.
    pub(crate) fn take_unpins(&mut self) -> Vec<PinId> {
        std::mem::take(&mut self.unpins)
    }

    pub(crate) fn has_unpins(&self) -> bool {
        !self.unpins.is_empty()
    }
}

/// A leaf as it was before a merge, for snapshots older than the merge.
#[derive(Debug)]
pub(crate) struct RetainedLeaf {
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    /// Its page; none when the page had never been written.
    pin: Option<(PinId, LogicalPage)>,
    base_lsn: Lsn,
    /// Snapshots below this LSN need the leaf.
    until: Lsn,
    /// Deltas that the merge folded in.
    pub(crate) deltas: DeltaMap,
}

impl RetainedLeaf {
    fn covers(&self, key: &[u8]) -> bool {
        KeyRange { low: &self.low, high: self.high.as_deref() }.contains(key)
    }
}

/// Old leaves of one tree.
#[derive(Debug, Default)]
pub(crate) struct Retained {
    leaves: Vec<RetainedLeaf>,
}

/// Place of an old leaf; valid until the engine is changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OldLeaf {
    index: usize,
    pub(crate) pin: Option<(PinId, LogicalPage)>,
    pub(crate) base_lsn: Lsn,
}

impl Retained {
    pub(crate) fn leaf(&self, old: &OldLeaf) -> &RetainedLeaf {
        &self.leaves[old.index]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    pub(in crate::engine) fn bytes(&self) -> usize {
        let each = |leaf: &RetainedLeaf| leaf.deltas.bytes() + size_of::<RetainedLeaf>() + 64;
        self.leaves.iter().map(each).sum()
    }

    fn until_max(&self) -> Option<Lsn> {
        self.leaves.iter().map(|leaf| leaf.until).max()
    }

    /// The leaf that a snapshot at `upto` reads `key` from, when it is not the current one.
    fn find(&self, key: &[u8], upto: Lsn) -> Option<OldLeaf> {
        let fits = |leaf: &RetainedLeaf| leaf.until > upto && leaf.covers(key);
        let candidates = self.leaves.iter().enumerate().filter(|(_, leaf)| fits(leaf));
        let (index, leaf) = candidates.min_by_key(|(_, leaf)| leaf.until)?;
        Some(OldLeaf { index, pin: leaf.pin, base_lsn: leaf.base_lsn })
    }

    /// The bounds at which the answer of [`Retained::find`] may change inside `range`.
    fn bounds_in<'a>(&'a self, range: KeyRange<'a>, upto: Lsn) -> impl Iterator<Item = &'a [u8]> {
        let seen = self.leaves.iter().filter(move |leaf| leaf.until > upto);
        let ends = seen.flat_map(|leaf| [Some(leaf.low.as_slice()), leaf.high.as_deref()]);
        ends.flatten().filter(move |key| *key > range.low && range.is_below_high(key))
    }
}

impl Store {
    /// Commits wait from now on: every committed change is to reach its page.
    pub(crate) fn begin_commit_barrier(&mut self) {
        self.commit_barriers += 1;
    }

    pub(crate) fn end_commit_barrier(&mut self) {
        self.commit_barriers -= 1;
    }

    /// Asks for all spilled changes to be merged into leaves. Returns the number of their pages that
    /// have to be loaded before.
    pub(crate) fn ask_for_all_runs(&mut self) -> usize {
        self.ask_for_runs();
        self.runs.pages_left()
    }

    /// Begins a snapshot at the durable frontier.
    ///
    /// # Errors
    ///
    /// `Wait::Durable` when frames hold commits that are not durable yet, or when a claim committed by
    /// a flag has kept old leaves up to a marker that is not durable yet.
    pub fn begin_snapshot(&mut self) -> Step<SnapshotId> {
        self.snapshot_at_hand().map_err(|upto| {
            self.frontier.flush_to = self.frontier.flush_to.max(upto);
            Stop::Wait(Wait::Durable(upto))
        })
    }

    /// Begins a snapshot at the durable frontier, under the shared latch.
    ///
    /// # Errors
    ///
    /// The commit that has to be durable first.
    pub(crate) fn snapshot_at_hand(&self) -> Result<SnapshotId, Lsn> {
        if self.holds_images_ahead() && self.durable() < self.frontier.committed {
            return Err(self.frontier.committed);
        }
        // A flag committed changes that the snapshot has to see: old leaves are kept up to its marker.
        let until = self.trees.iter().filter_map(|tree| tree.retained.until_max()).max();
        match until.filter(|until| *until > self.durable()) {
            Some(until) => Err(until),
            None => Ok(self.snapshots.begin(self.durable())),
        }
    }

    /// Passes while `snapshot` lives.
    pub(crate) fn require_snapshot(&self, snapshot: SnapshotId) -> Result<(), EngineError> {
        self.snapshots.lsn(snapshot).map(drop)
    }

    /// Ends a snapshot, under the shared latch; false, and the snapshot lives on, while old leaves are
    /// kept that its end may free.
    pub(crate) fn ends_snapshot(&self, snapshot: SnapshotId) -> bool {
        let is_all_current = self.trees.iter().all(|tree| tree.retained.is_empty());
        if is_all_current {
            self.snapshots.live.lock().remove(snapshot);
        }
        is_all_current
    }

    /// Ends a snapshot; old leaves that only this snapshot needed become free.
    pub fn end_snapshot(&mut self, snapshot: SnapshotId) {
        self.snapshots.live.get_mut().remove(snapshot);
        let oldest = self.snapshots.oldest();
        for tree in &mut self.trees {
            let before = tree.retained.bytes();
            let gone = |leaf: &mut RetainedLeaf| oldest.is_none_or(|oldest| leaf.until <= oldest);
            let unpins = tree.retained.leaves.extract_if(.., gone).filter_map(|leaf| leaf.pin);
            self.snapshots.unpins.extend(unpins.map(|(pin, _)| pin));
            self.memory.deltas = self.memory.deltas + tree.retained.bytes() - before;
        }
    }

    /// Old leaves that no snapshot reads any more.
    pub(in crate::engine) fn let_go(&mut self, retained: Retained) {
        self.memory.deltas -= retained.bytes();
        let pins = retained.leaves.into_iter().filter_map(|leaf| leaf.pin);
        self.snapshots.unpins.extend(pins.map(|(pin, _)| pin));
    }

    /// Ends the oldest snapshot to free the leaves that it keeps; false when there is none.
    pub fn end_oldest_snapshot(&mut self) -> bool {
        let Some(id) = self.snapshots.first() else { return false };
        self.snapshots.ended_before = id.number + 1;
        self.end_snapshot(id);
        true
    }

    /// Ends the oldest snapshot if a checkpoint's record names pages or values that it alone keeps;
    /// false when it names none.
    pub(crate) fn end_snapshot_for_names(&mut self) -> bool {
        let durable = self.durable();
        let oldest = self.snapshots.oldest();
        let is_of_use = oldest.is_some_and(|oldest| self.trims.awaits_snapshot(durable, oldest));
        is_of_use && self.end_oldest_snapshot()
    }

    /// Ends the oldest snapshot if it keeps pages of the device, be they values, old leaves or dropped
    /// tables; false when it keeps none.
    pub(crate) fn end_snapshot_for_room(&mut self) -> bool {
        let Some(oldest) = self.snapshots.oldest() else { return false };
        let is_kept = |tree: &Tree| {
            let is_dropped = tree.dropped.as_ref().is_some_and(|dropped| dropped.lsn > oldest);
            is_dropped || !tree.retained.is_empty()
        };
        let keeps =
            self.trims.awaits_snapshot(self.durable(), oldest) || self.trees.iter().any(is_kept);
        keeps && self.end_oldest_snapshot()
    }

    /// Whether background work gives pages back; if need be, the oldest snapshot ends for that.
    pub(crate) fn frees_room(&mut self) -> bool {
        self.has_release() || self.snapshots.has_unpins() || self.end_snapshot_for_room()
    }

    /// Reads `key` as the snapshot sees it.
    ///
    /// # Errors
    ///
    /// Stops for pages; `SnapshotTooOld` when the snapshot was ended; `NoSnapshot` or `ForeignTable`
    /// for a snapshot or a table of another engine.
    pub fn get_snapshot(
        &mut self,
        snapshot: SnapshotId,
        table: Table,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Step<Read> {
        self.check_key(key)?;
        let (table, upto) = (self.own(table)?, self.snapshots.lsn(snapshot)?);
        self.require_table_at(table, upto)?;
        let value = match self.tree(table)?.retained.find(key, upto) {
            None => self.committed_value(table, key, upto)?,
            Some(old) => self.old_value(table, old, key, upto)?,
        };
        out.clear();
        match value {
            None => Ok(Read::Absent),
            Some(Value::Inline(bytes)) => {
                out.extend_from_slice(&bytes);
                Ok(Read::Inline)
            }
            Some(Value::Ref(descriptor)) => Ok(Read::Large(Descriptor::decode(&descriptor)?)),
        }
    }

    fn old_value(
        &mut self,
        table: Table,
        old: OldLeaf,
        key: &[u8],
        upto: Lsn,
    ) -> Step<Option<Value>> {
        self.require_old(&old)?;
        let image = self.snapshots.old_image(&old);
        let mut value = image.and_then(|image| value_in(&NodeView::trusted(image), key));
        for (lsn, op) in self.tree(table)?.retained.leaf(&old).deltas.versions(key) {
            if lsn > old.base_lsn && lsn <= upto {
                let _ = apply(op, &mut value);
            }
        }
        Ok(value)
    }

    /// The image of an old leaf must be in memory.
    fn require_old(&self, old: &OldLeaf) -> Step<()> {
        match old.pin {
            Some((pin, page)) if !self.snapshots.holds(pin) => {
                Err(Stop::Miss(Fetch::Pinned(pin, page)))
            }
            _ => Ok(()),
        }
    }

    /// The old leaf from which a snapshot's scan reads the near end of `part`, and the range for which
    /// that holds.
    pub(crate) fn old_leaf_for(
        &mut self,
        table: Table,
        upto: Lsn,
        part: &ScanRange,
        direction: Direction,
    ) -> Step<(Option<OldLeaf>, ScanRange)> {
        let retained = &self.tree(table)?.retained;
        let bounds = retained.bounds_in(part.as_key_range(), upto);
        let mut clipped = part.clone();
        match direction {
            Direction::Forward => {
                if let Some(bound) = bounds.min() {
                    clipped.high = Some(bound.to_vec());
                }
            }
            Direction::Backward => {
                if let Some(bound) = bounds.max() {
                    clipped.low = bound.to_vec();
                }
            }
        }
        let old = retained.find(&clipped.low, upto);
        if let Some(old) = &old {
            self.require_old(old)?;
        }
        Ok((old, clipped))
    }

    /// Whether some old leaf lies on this pin.
    pub(crate) fn retains(&self, pin: PinId) -> bool {
        let mut leaves = self.trees.iter().flat_map(|tree| &tree.retained.leaves);
        leaves.any(|leaf| leaf.pin.is_some_and(|(other, _)| other == pin))
    }

    /// Whether a merge up to `upto` buries versions that some snapshot reads.
    pub(crate) fn hides_from_snapshot(&self, upto: Lsn) -> bool {
        self.snapshots.oldest().is_some_and(|oldest| oldest < upto)
    }

    /// Sets an old leaf aside with the deltas that a merge up to `until` folds in, if a snapshot still
    /// needs it.
    pub(crate) fn retain_leaf(
        &mut self,
        table: Table,
        range: KeyRange<'_>,
        pin: Option<(PinId, LogicalPage)>,
        base_lsn: Lsn,
        until: Lsn,
    ) {
        self.retain(table, range, (pin, base_lsn), until, DeltaMap::extract_range);
    }

    /// As `Store::retain_leaf`, but readers of the new leaf need the deltas as well.
    pub(crate) fn retain_copy(
        &mut self,
        table: Table,
        range: KeyRange<'_>,
        pin: Option<(PinId, LogicalPage)>,
        base_lsn: Lsn,
        until: Lsn,
    ) {
        let copy =
            |deltas: &mut DeltaMap, range: KeyRange<'_>, upto| deltas.copy_range(range, upto);
        self.retain(table, range, (pin, base_lsn), until, copy);
    }

    fn retain(
        &mut self,
        table: Table,
        range: KeyRange<'_>,
        (pin, base_lsn): (Option<(PinId, LogicalPage)>, Lsn),
        until: Lsn,
        take: impl FnOnce(&mut DeltaMap, KeyRange<'_>, Lsn) -> DeltaMap,
    ) {
        if self.lets_go_of(pin, until) {
            return;
        }
        let Some(tree) = self.trees.get_mut(table.id as usize) else { return };
        let before = tree.size();
        let deltas = take(&mut tree.deltas, range, until);
        let (low, high) = (range.low.to_vec(), range.high.map(<[u8]>::to_vec));
        tree.retained.leaves.push(RetainedLeaf { low, high, pin, base_lsn, until, deltas });
        self.bound_retained(table, before);
    }

    /// Whether no snapshot below `until` is left, so that the version that was pinned for it goes. The
    /// last such snapshot may have ended while the new leaf was written, or because kept leaves of the
    /// same install took too much memory.
    fn lets_go_of(&mut self, pin: Option<(PinId, LogicalPage)>, until: Lsn) -> bool {
        let is_free = !self.hides_from_snapshot(until);
        if is_free {
            self.snapshots.unpins.extend(pin.map(|(pin, _)| pin));
        }
        is_free
    }

    /// Kept leaves take no more than their share of memory. `before` is the size of the table's deltas
    /// and old leaves before the change.
    fn bound_retained(&mut self, table: Table, before: DeltaSize) {
        let Some(tree) = self.trees.get(table.id as usize) else { return };
        let (retained, after) = (tree.retained.bytes(), tree.size());
        self.note_deltas_size(before, after);
        if retained > self.memory.limits.deltas_hard / RETAINED_SHARE {
            self.end_oldest_snapshot();
        }
    }
}
