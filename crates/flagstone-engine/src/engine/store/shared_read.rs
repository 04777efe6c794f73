//! Reads that change nothing of the engine, so that several threads do them at a time.
//!
//! Owns the short way for snapshots: all pages are in memory, and few changes or none wait for the
//! rows. Never decides anything: where a page is missing it names the page, and where an order of
//! frames has to learn of each use it gives nothing; the caller then asks the engine in the ordinary
//! way.
//!
//! - **V1** A shared read gives the result that `Store::get_snapshot` or `Store::scan_snapshot`
//!   would give at the same moment.
//! - **V2** A frame that a shared read used is as recently used as any: it is marked, and moves when the
//!   pool looks for one to evict.
//! - **V3** A missing page was noted as being read within the same shared read: a later change of the
//!   page makes the read worthless, like any other read (rule D15).

use flagstone_space::Lsn;

use crate::delta::{Op, Value, apply};
use crate::engine::step::Fetch;
use crate::engine::store::Store;
use crate::engine::store::catalog::Table;
use crate::engine::store::descent::Seek;
use crate::engine::store::pool::FrameIndex;
use crate::engine::store::read::{Read, value_in};
use crate::engine::store::scan::{Direction, ScanRange, clip};
use crate::engine::store::snapshot::SnapshotId;
use crate::engine::store::value::Descriptor;
use crate::error::EngineError;
use crate::node::{NodeView, Shape, ValueRef};

/// Rows of one leaf, copied as they lie there.
#[derive(Debug)]
pub struct LeafRows {
    image: Vec<u8>,
    shape: Shape,
    /// Entries not given out yet.
    next: usize,
    end: usize,
    is_backward: bool,
    key: Vec<u8>,
}

/// Value of a row of [`LeafRows`].
#[derive(Debug)]
pub enum LeafValue<'a> {
    /// The bytes.
    Inline(&'a [u8]),
    /// Pages of its own, which the caller reads; or why they are not known.
    Large(Result<Descriptor, EngineError>),
}

impl Default for LeafRows {
    fn default() -> Self {
        let (image, key, shape) = (Vec::new(), Vec::new(), Shape::NOTHING);
        Self { image, shape, next: 0, end: 0, is_backward: false, key }
    }
}

impl LeafRows {
    /// Rows left.
    #[inline]
    #[must_use]
    pub fn count(&self) -> usize {
        self.end - self.next
    }

    /// Takes the rows of a leaf that lie in `range`; returns the rest of the range beyond the leaf.
    pub(crate) fn take_from(
        &mut self,
        view: &NodeView<'_>,
        range: &ScanRange,
        direction: Direction,
    ) -> Option<ScanRange> {
        let part = clip(range, view.low(), view.high());
        let place = |key: &[u8]| view.search(key).unwrap_or_else(|at| at);
        self.next = if part.low.is_empty() { 0 } else { place(&part.low) };
        self.end = part.high.as_deref().map_or(view.count(), place).max(self.next);
        self.is_backward = direction == Direction::Backward;
        self.shape = view.shape();
        self.image.clear();
        self.image.extend_from_slice(view.bytes());
        let rest = match (direction, part) {
            (Direction::Forward, part) => {
                part.high.map(|low| ScanRange { low, high: range.high.clone() })
            }
            (Direction::Backward, part) if part.low.is_empty() => None,
            (Direction::Backward, part) => {
                Some(ScanRange { low: range.low.clone(), high: Some(part.low) })
            }
        };
        rest.filter(|rest| !rest.is_empty())
    }

    /// Leaves out all that is left.
    pub fn clear(&mut self) {
        self.next = self.end;
    }

    /// The next row: key and value.
    #[inline]
    pub fn take(&mut self) -> Option<(&[u8], LeafValue<'_>)> {
        if self.next >= self.end {
            return None;
        }
        let index = if self.is_backward {
            self.end -= 1;
            self.end
        } else {
            self.next += 1;
            self.next - 1
        };
        let entry = self.shape.over(&self.image).entry(index)?;
        let value = match entry.value {
            ValueRef::Inline(bytes) => LeafValue::Inline(bytes),
            ValueRef::Ref(descriptor) => LeafValue::Large(Descriptor::decode(descriptor)),
        };
        let key = if entry.prefix.is_empty() {
            entry.suffix
        } else {
            self.key.clear();
            self.key.extend_from_slice(entry.prefix);
            self.key.extend_from_slice(entry.suffix);
            &self.key
        };
        Some((key, value))
    }
}

impl Store {
    /// Whether nothing has to learn that a page or a change was used.
    fn allows_shared_reads(&self) -> bool {
        self.pool.allows_shared_reads() && self.runs.is_empty()
    }

    /// Reads `key` as the snapshot sees it, into `out`.
    ///
    /// # Errors
    ///
    /// The page to read first (V3); none when it takes more than a shared read.
    pub(crate) fn read_shared(
        &self,
        snapshot: SnapshotId,
        table: Table,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Read, Option<Fetch>> {
        self.check_key(key).map_err(|_| None)?;
        let table = self.own(table).map_err(|_| None)?;
        let upto = self.snapshots.lsn(snapshot).map_err(|_| None)?;
        let tree = self.tree(table).map_err(|_| None)?;
        if !self.allows_shared_reads() || tree.dropped.is_some() || !tree.retained.is_empty() {
            return Err(None);
        }
        let versions = tree.deltas.versions(key);
        let is_whole = |(lsn, op): (Lsn, Op<'_>)| {
            lsn > self.frontier.recovered && lsn <= upto && !matches!(op, Op::Patch(_))
        };
        let has_versions = versions.clone().next().is_some();
        out.clear();
        if !has_versions {
            return self.read_base_shared(table, key, out);
        }
        let (base_lsn, mut value) = if versions.clone().any(is_whole) {
            (Lsn::ZERO, None)
        } else {
            let frame = self.pool.frame(self.leaf_shared(table, key)?);
            (frame.lsn, value_in(&NodeView::trusted(&frame.image), key))
        };
        for (_, op) in versions.filter(|(lsn, _)| *lsn > base_lsn && *lsn <= upto) {
            let _ = apply(op, &mut value);
        }
        match value {
            None => Ok(Read::Absent),
            Some(Value::Inline(bytes)) => {
                out.extend_from_slice(&bytes);
                Ok(Read::Inline)
            }
            Some(Value::Ref(descriptor)) => large(&descriptor),
        }
    }

    /// The value of a key that no change waits for.
    fn read_base_shared(
        &self,
        table: Table,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Read, Option<Fetch>> {
        let index = self.leaf_shared(table, key)?;
        let view = NodeView::trusted(&self.pool.frame(index).image);
        let Ok(place) = view.search(key) else { return Ok(Read::Absent) };
        match view.entry(place).ok_or(None)?.value {
            ValueRef::Inline(bytes) => {
                out.extend_from_slice(bytes);
                Ok(Read::Inline)
            }
            ValueRef::Ref(descriptor) => large(descriptor),
        }
    }

    /// The frame of the leaf of `key`, which is marked (V2); else as `Store::read_shared`.
    fn leaf_shared(&self, table: Table, key: &[u8]) -> Result<FrameIndex, Option<Fetch>> {
        let sought = self.leaf_sought(table, Seek::At(key), |_| {});
        let index = sought.map_err(|missing| {
            missing.map(|page| {
                self.pool.count_shared_miss();
                Fetch::Page(page, self.reads.begin(page))
            })
        })?;
        self.pool.mark_used(index);
        Ok(index)
    }

    /// The rows of the leaf at the near end of `range`, as the snapshot sees them, and the rest of the
    /// range; none when that takes more than a shared read.
    pub(crate) fn read_leaf_shared(
        &self,
        snapshot: SnapshotId,
        table: Table,
        range: &ScanRange,
        direction: Direction,
        out: &mut LeafRows,
    ) -> Option<Option<ScanRange>> {
        self.snapshots.lsn(snapshot).ok()?;
        let table = self.own(table).ok()?;
        let tree = self.tree(table).ok()?;
        if !self.allows_shared_reads()
            || tree.dropped.is_some()
            || !tree.retained.is_empty()
            || range.is_empty()
        {
            return None;
        }
        let index = self.leaf_sought(table, Seek::near(range, direction), |_| {}).ok()?;
        let view = NodeView::trusted(&self.pool.frame(index).image);
        let part = clip(range, view.low(), view.high());
        if tree.deltas.range(part.as_key_range()).next().is_some() {
            return None;
        }
        self.pool.mark_used(index);
        Some(out.take_from(&view, range, direction))
    }
}

fn large(descriptor: &[u8]) -> Result<Read, Option<Fetch>> {
    Descriptor::decode(descriptor).map(Read::Large).map_err(|_| None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::testing::Database;
    use flagstone_nand::{Profile, SimNand};

    fn key(number: u64) -> Vec<u8> {
        format!("key{number:05}").into_bytes()
    }

    /// Goal: a shared read serves rows from memory, and gives way where it has to.
    #[test]
    fn a_shared_read_needs_everything_in_memory() {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(96).unwrap();
        let options = Options::default().with_memory(1 << 20);
        let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
        let table = database.table("t").unwrap();
        let mut txn = database.begin();
        (0..100).for_each(|number| txn.put(table, &key(number), b"value").unwrap());
        txn.commit().unwrap();
        database.merge().unwrap();
        let snapshot = database.snapshot().unwrap();
        let mut out = Vec::new();
        let mut read = |number| {
            let engine = database.runtime().engine_shared();
            engine.read_shared(snapshot.id(), table, &key(number), &mut out)
        };
        assert_eq!(snapshot.get(table, &key(7)).unwrap().as_deref(), Some(&b"value"[..]));
        assert_eq!(read(7), Ok(Read::Inline), "its leaf was read just now");
        assert_eq!(read(100), Ok(Read::Absent));
        database.runtime().engine().pool.shrink(0);
        let missed = read(7);
        assert!(matches!(missed, Err(Some(Fetch::Page(..)))), "its leaf left memory: {missed:?}");
    }

    /// Goal (V3): a shared read missed a page, and the page changes: the old version is not read.
    /// Method: a merge between the shared read and the end of its page read.
    #[test]
    fn a_page_that_changes_after_a_shared_read_missed_it_is_read_again() {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(96).unwrap();
        let options = Options::default().with_memory(1 << 20);
        let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
        let table = database.table("t").unwrap();
        let put = |value: &[u8]| {
            let mut txn = database.begin();
            txn.put(table, &key(7), value).unwrap();
            txn.commit().unwrap();
            database.merge().unwrap();
        };
        put(b"old");
        let snapshot = database.snapshot().unwrap();
        let (id, runtime) = (snapshot.id(), database.runtime());
        runtime.engine().pool.shrink(0);
        let missed = runtime.engine_shared().read_shared(id, table, &key(7), &mut Vec::new());
        let Err(Some(fetch)) = missed else { panic!("{missed:?}") };
        let fetched = runtime.read(fetch).unwrap();
        drop(snapshot);
        put(b"new");
        runtime.engine().pool.shrink(0);
        runtime.engine().fill(fetched).unwrap();
        assert_eq!(runtime.engine().pool.count(), 0, "it is thrown away");
        let snapshot = database.snapshot().unwrap();
        assert_eq!(snapshot.get(table, &key(7)).unwrap().as_deref(), Some(&b"new"[..]));
    }

    /// Goal (rule D15): a read of an inner node that a checkpoint overtook is thrown away. Method: the
    /// root is read before leaves split and a checkpoint writes it, and arrives afterwards.
    #[test]
    fn an_inner_node_that_is_written_after_a_read_missed_it_is_read_again() {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(96).unwrap();
        let options = Options::default().with_memory(1 << 20);
        let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
        let table = database.table("t").unwrap();
        let fill = |numbers: std::ops::Range<u64>| {
            let mut txn = database.begin();
            numbers.for_each(|number| txn.put(table, &key(number), &[7; 60]).unwrap());
            txn.commit().unwrap();
            database.merge().unwrap();
        };
        fill(0..200);
        let runtime = database.runtime();
        let snapshot = database.snapshot().unwrap();
        let read_shared = || {
            let engine = runtime.engine_shared();
            engine.read_shared(snapshot.id(), table, &key(7), &mut Vec::new())
        };
        runtime.engine().pool.shrink(0);
        let Err(Some(fetch)) = read_shared() else { panic!("the root left memory") };
        let fetched = runtime.read(fetch).unwrap();
        let splits = runtime.engine().counts.splits;
        drop(snapshot);
        fill(200..400);
        assert!(runtime.engine().counts.splits > splits, "leaves split");
        runtime.engine().pool.shrink(0);
        runtime.engine().fill(fetched).unwrap();
        assert_eq!(runtime.engine().pool.count(), 0, "it is thrown away");
        let snapshot = database.snapshot().unwrap();
        for number in 0..400 {
            let value = snapshot.get(table, &key(number));
            assert_eq!(value.unwrap().as_deref(), Some(&[7; 60][..]), "{number}");
        }
    }
}
