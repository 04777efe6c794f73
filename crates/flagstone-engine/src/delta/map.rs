//! The ordered map of deltas: insertion with folding, removal, totals.

use std::borrow::Cow;
use std::ops::Bound;

use flagstone_space::Lsn;

use super::chunk::{
    Arrival, CHUNK_SIZE_MAX, Chunk, Record, Records, Span, write_op_record, write_record,
};
use super::cursor::{Backward, Entry, Forward, Sums, Versions};
use super::index::{Index, Position, separator};
use super::op::Op;
use super::patch::{PatchFold, fold_patches};

/// Scratch kept between insertions, in bytes.
const SCRATCH_SIZE_MAX: usize = 1024;

/// Descriptors of out-of-line values that the map no longer refers to. An empty list allocates
/// nothing.
pub(crate) type DroppedRefs = Vec<Vec<u8>>;

/// Size of the deltas in a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeTotals {
    /// Number of deltas.
    pub(crate) count: usize,
    /// Packed size of the deltas in bytes.
    pub(crate) bytes: usize,
}

impl RangeTotals {
    fn add(&mut self, record: &Record<'_>) {
        self.count += 1;
        self.bytes += record.size;
    }
}

/// Size of a map, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeltaSize {
    /// Memory, index included.
    pub(crate) memory: usize,
    /// Packed records, a part of the memory: a copy of them in the log takes no more.
    pub(crate) packed: usize,
}

/// Keys from `low` (inclusive) to `high` (exclusive; `None` is infinity).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange<'a> {
    /// First key inside.
    pub low: &'a [u8],
    /// First key above the range, if any.
    pub high: Option<&'a [u8]>,
}

impl KeyRange<'_> {
    /// Every key.
    pub const ALL: KeyRange<'static> = KeyRange { low: &[], high: None };

    /// Whether `key` lies inside.
    #[inline]
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.low <= key && self.is_below_high(key)
    }

    /// Whether `key` lies below the upper end.
    #[inline]
    #[must_use]
    pub fn is_below_high(&self, key: &[u8]) -> bool {
        self.high.is_none_or(|high| key < high)
    }
}

/// Deltas of one tree, by key and commit order. See the head of `delta`.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeltaMap {
    index: Index,
    len: usize,
    scratch: Vec<u8>,
}

impl DeltaMap {
    /// An empty map; allocates nothing.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Number of deltas.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether the map holds no deltas.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All memory of the map, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.index.memory_size() + self.scratch.capacity()
    }

    /// Size of memory and of records.
    pub(crate) fn size(&self) -> DeltaSize {
        DeltaSize { memory: self.bytes(), packed: self.index.packed_size() }
    }

    /// Whether the index is consistent.
    #[cfg(test)]
    pub(super) fn is_sound(&self) -> bool {
        self.index.is_sound()
    }

    /// Lowest LSN in the map: the log must reach back to it. O(chunks).
    pub(crate) fn lsn_min(&self) -> Option<Lsn> {
        let positions = std::iter::successors(self.index.first(), |at| self.index.next(*at));
        positions.filter_map(|at| Some(self.index.chunk(at)?.lsn_min())).min()
    }

    /// Adds a version and, when it is the newest, folds the versions of its key.
    ///
    /// Two neighbouring versions become one, with the newer LSN, when no boundary separates them: a
    /// boundary `f` separates `older <= f < newer`. Boundaries come in ascending order. An older version
    /// (a checkpoint's copy that redo meets late) takes its place unfolded: a version between it
    /// and its neighbour might still come (M5). A version with an LSN that the key already has is a
    /// copy and is ignored, except that a patch joins the out-of-line put of its own commit.
    pub(crate) fn insert(
        &mut self,
        key: &[u8],
        op: Op<'_>,
        lsn: Lsn,
        boundaries: &[Lsn],
    ) -> DroppedRefs {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let dropped = self.insert_with(key, op, lsn, boundaries, &mut scratch);
        if scratch.capacity() <= SCRATCH_SIZE_MAX {
            self.scratch = scratch;
        }
        dropped
    }

    fn insert_with(
        &mut self,
        key: &[u8],
        op: Op<'_>,
        lsn: Lsn,
        boundaries: &[Lsn],
        scratch: &mut Vec<u8>,
    ) -> DroppedRefs {
        let Some(at) = self.index.locate(key) else {
            write_op_record(key, lsn, &op, scratch);
            self.index.push(&[], Chunk::of(scratch));
            self.len = 1;
            return DroppedRefs::new();
        };
        let Some(chunk) = self.index.chunk(at) else { return DroppedRefs::new() };
        let span = chunk.find(key);
        let is_last = span.bytes.start == chunk.bytes().len() && self.index.next(at).is_none();
        let arrival = if is_last { Arrival::AtEnd } else { Arrival::Inside };
        if span.count == 0 {
            write_op_record(key, lsn, &op, scratch);
            self.index.update(at, |chunk| chunk.insert(span.bytes.start, scratch, lsn));
            self.len += 1;
            self.split_at(at, arrival);
            return DroppedRefs::new();
        }
        let chain = Records::of(&chunk.bytes()[span.bytes.clone()]);
        if let Some(kept) = kept_below(chain, &op, lsn, boundaries) {
            write_op_record(key, lsn, &op, scratch);
            let covered = span.bytes.start + kept.size..span.bytes.end;
            self.index.update(at, |chunk| chunk.replace(covered, scratch));
            self.len = self.len + kept.count + 1 - span.count;
            self.split_at(at, arrival);
            return DroppedRefs::new();
        }
        let mut folded = Chain::with(chain, op, lsn);
        if folded.arrival_is_newest {
            folded.fold(boundaries);
        }
        folded.write(key, scratch);
        let Chain { versions, dropped, .. } = folded;
        let count = versions.len();
        self.replace_chain(at, &span, scratch, count);
        self.split_at(at, arrival);
        dropped
    }

    fn replace_chain(&mut self, at: Position, span: &Span, records: &[u8], count: usize) {
        self.index.update(at, |chunk| chunk.replace(span.bytes.clone(), records));
        self.len = self.len + count - span.count;
    }

    fn split_at(&mut self, at: Position, arrival: Arrival) {
        let parts = self.index.chunk(at).map(|chunk| chunk.split(arrival)).unwrap_or_default();
        if !parts.is_empty() {
            self.index.split(at, parts);
        }
    }

    /// The versions of `key`, oldest first.
    pub(crate) fn versions(&self, key: &[u8]) -> Versions<'_> {
        let chunk = self.index.locate(key).and_then(|at| self.index.chunk(at));
        let span = chunk.and_then(|chunk| chunk.bytes().get(chunk.find(key).bytes));
        Versions::of(span.unwrap_or(&[]))
    }

    /// Keys with their versions, ascending from `from`.
    pub(crate) fn forward(&self, from: Bound<&[u8]>) -> Forward<'_> {
        Forward::new(&self.index, from)
    }

    /// Keys with their versions, descending from `from`.
    pub(crate) fn backward(&self, from: Bound<&[u8]>) -> Backward<'_> {
        Backward::new(&self.index, from)
    }

    /// Keys with their versions inside `range`, ascending.
    pub(crate) fn range<'a>(&'a self, range: KeyRange<'_>) -> impl Iterator<Item = Entry<'a>> {
        let from = if range.low.is_empty() { Bound::Unbounded } else { Bound::Included(range.low) };
        self.forward(from).take_while(move |entry| range.is_below_high(entry.key()))
    }

    /// Versions with an LSN below `lsn`, in key order from `from`: the input of a checkpoint's
    /// copies.
    pub(crate) fn older_than(
        &self,
        lsn: Lsn,
        from: Bound<&[u8]>,
    ) -> impl Iterator<Item = (&[u8], Lsn, Op<'_>)> {
        Forward::with_lsn_below(&self.index, from, lsn).flat_map(move |entry| {
            let old = entry.versions().take_while(move |(version, _)| *version < lsn);
            old.map(move |(version, op)| (entry.key(), version, op))
        })
    }

    /// Totals of the versions up to `upto` inside `range`.
    pub(crate) fn range_totals(&self, range: KeyRange<'_>, upto: Lsn) -> RangeTotals {
        let mut totals = RangeTotals::default();
        for entry in self.range(range) {
            let records = entry.records().take_while(|record| record.lsn <= upto);
            records.for_each(|record| totals.add(&record));
        }
        totals
    }

    /// Sums of the versions up to `upto` in consecutive ranges, the first one from `low` on.
    pub(crate) fn sums(&self, low: &[u8], upto: Lsn) -> Sums<'_> {
        Sums::new(&self.index, low, upto)
    }

    /// Packed size of all versions inside `range`, in bytes. Adds up sizes of chunks without
    /// walking their records.
    pub(crate) fn range_bytes(&self, range: KeyRange<'_>) -> usize {
        let first = self.index.locate(range.low);
        let last = range.high.map_or_else(|| self.index.last(), |high| self.index.locate(high));
        let (Some(first), Some(last)) = (first, last) else { return 0 };
        if last < first {
            return 0;
        }
        let begin_of = |at, key| self.index.chunk(at).map_or(0, |it| it.find(key).bytes.start);
        let before = begin_of(first, range.low);
        let end = range.high.map(|high| begin_of(last, high));
        let whole = std::iter::successors(Some(first), |at| self.index.next(*at));
        let whole = whole.take_while(|at| *at < last || *at == last && end.is_none());
        let sizes = whole.filter_map(|at| self.index.chunk(at)).map(|chunk| chunk.bytes().len());
        (sizes.sum::<usize>() + end.unwrap_or(0)).saturating_sub(before)
    }

    /// Whether any version inside `range` is at or below `upto`.
    pub(crate) fn has_upto(&self, range: KeyRange<'_>, upto: Lsn) -> bool {
        let mut oldest = self.range(range).filter_map(|entry| entry.records().next());
        oldest.any(|record| record.lsn <= upto)
    }

    /// Removes the versions up to `upto` inside `range`: a base holds them now (rule D2).
    pub(crate) fn remove_range(&mut self, range: KeyRange<'_>, upto: Lsn) -> RangeTotals {
        let mut totals = RangeTotals::default();
        self.retain_in(range, |record| {
            let goes = record.lsn <= upto;
            if goes {
                totals.add(record);
            }
            !goes
        });
        totals
    }

    /// Moves the versions up to `upto` inside `range` into a map of their own.
    pub(crate) fn extract_range(&mut self, range: KeyRange<'_>, upto: Lsn) -> DeltaMap {
        let copy = self.copy_range(range, upto);
        self.remove_range(range, upto);
        copy
    }

    /// Copies the versions up to `upto` inside `range` into a map of their own.
    pub(crate) fn copy_range(&self, range: KeyRange<'_>, upto: Lsn) -> DeltaMap {
        let mut copy = DeltaMap::new();
        // The records of the chunk being filled, its lowest key, and the last key so far.
        let (mut packed, mut low, mut last) = (Vec::new(), &[][..], &[][..]);
        for entry in self.range(range) {
            let records = entry.records().take_while(|record| record.lsn <= upto);
            let (count, size) =
                records.fold((0, 0), |(count, size), it| (count + 1, size + it.size));
            if count == 0 {
                continue;
            }
            if packed.is_empty() {
                low = entry.key();
            } else if packed.len() + size > CHUNK_SIZE_MAX {
                copy.index.push(low, Chunk::of(&packed));
                packed.clear();
                low = separator(last, entry.key());
            }
            packed.extend_from_slice(entry.bytes().get(..size).unwrap_or(&[]));
            copy.len += count;
            last = entry.key();
        }
        if !packed.is_empty() {
            copy.index.push(low, Chunk::of(&packed));
        }
        copy
    }

    /// Removes every version above `lsn`: a rollback to a savepoint of a private map, or the end of
    /// a database that was poisoned (rule D8).
    pub(crate) fn remove_newer(&mut self, lsn: Lsn) -> DroppedRefs {
        let mut dropped = DroppedRefs::new();
        self.retain_in(KeyRange::ALL, |record| {
            let stays = record.lsn <= lsn;
            if !stays && let Some(Op::PutRef(descriptor)) = record.op() {
                dropped.push(descriptor.to_vec());
            }
            stays
        });
        dropped
    }

    /// Removes the changes of one commit in `range`.
    pub(crate) fn remove_at(&mut self, range: KeyRange<'_>, lsn: Lsn) {
        self.retain_in(range, |record| record.lsn != lsn);
    }

    fn retain_in(&mut self, range: KeyRange<'_>, mut keep: impl FnMut(&Record<'_>) -> bool) {
        let mut next = self.index.locate(range.low);
        let first = next;
        while let Some(at) = next {
            let begins_above = self.index.low(at).is_none_or(|low| !range.is_below_high(low));
            if begins_above && first != Some(at) {
                break;
            }
            let removed = self.index.update(at, |chunk| {
                chunk.retain(|record| !range.contains(record.key) || keep(record))
            });
            let removed = removed.unwrap_or(0);
            self.len -= removed;
            next = if removed > 0 { self.index.tidy(at) } else { self.index.next(at) };
        }
    }
}

/// The oldest versions of a key.
#[derive(Default)]
struct Oldest {
    size: usize,
    count: usize,
}

/// The versions that stay when `op` arrives as the newest one and covers all versions above the
/// next lower boundary; `None` where each version needs a look.
fn kept_below(chain: Records<'_>, op: &Op<'_>, lsn: Lsn, boundaries: &[Lsn]) -> Option<Oldest> {
    if matches!(op, Op::Patch(_)) {
        return None;
    }
    let boundary = boundaries[..boundaries.partition_point(|boundary| *boundary < lsn)].last();
    let mut kept = Oldest::default();
    for record in chain {
        if record.lsn >= lsn || matches!(record.op(), Some(Op::PutRef(_)) | None) {
            return None;
        }
        if boundary.is_some_and(|boundary| record.lsn <= *boundary) {
            kept.size += record.size;
            kept.count += 1;
        }
    }
    // Two remaining versions may be folded now, if the boundary between them has gone.
    (kept.count <= 1).then_some(kept)
}

/// The versions of one key while one is added, oldest first.
struct Chain<'a> {
    versions: Vec<(Lsn, Cow<'a, [u8]>)>,
    arrival_is_newest: bool,
    dropped: DroppedRefs,
}

impl<'a> Chain<'a> {
    /// The chain of a key with one more version.
    fn with(records: Records<'a>, op: Op<'_>, lsn: Lsn) -> Self {
        let mut versions: Vec<_> =
            records.map(|record| (record.lsn, Cow::Borrowed(record.body))).collect();
        let at = versions.partition_point(|(version, _)| *version <= lsn);
        let twins = versions.iter().take(at).filter(|(version, _)| *version == lsn);
        let twins: Vec<_> = twins.map(|(_, body)| Op::decode_trusted(body)).collect();
        let arrival_is_newest = at == versions.len();
        let joins = matches!((twins.as_slice(), &op), ([Ok(Op::PutRef(_))], Op::Patch(_)));
        if twins.is_empty() || joins {
            let mut body = Vec::with_capacity(op.encoded_size());
            op.encode(&mut body);
            versions.insert(at, (lsn, Cow::Owned(body)));
        }
        Self { versions, arrival_is_newest, dropped: DroppedRefs::new() }
    }

    /// Folds neighbours that no boundary separates, from the newest down.
    fn fold(&mut self, boundaries: &[Lsn]) {
        let mut folded: Vec<(Lsn, Cow<'a, [u8]>)> = Vec::with_capacity(1);
        for (lsn, body) in std::mem::take(&mut self.versions).into_iter().rev() {
            let Some((newer_lsn, newer)) = folded.last_mut() else {
                folded.push((lsn, body));
                continue;
            };
            let next = boundaries.partition_point(|boundary| *boundary < lsn);
            let is_separate = boundaries.get(next).is_some_and(|boundary| *boundary < *newer_lsn);
            if is_separate || !fold_bodies(&body, newer, &mut self.dropped) {
                folded.push((lsn, body));
            }
        }
        folded.reverse();
        self.versions = folded;
    }

    fn write(&self, key: &[u8], out: &mut Vec<u8>) {
        for (lsn, body) in &self.versions {
            write_record(key, *lsn, body, out);
        }
    }
}

/// Folds `older` into `newer`, both encoded; false when both must stay.
fn fold_bodies(older: &[u8], newer: &mut Cow<'_, [u8]>, dropped: &mut DroppedRefs) -> bool {
    let (Ok(old), Ok(new)) = (Op::decode_trusted(older), Op::decode_trusted(newer)) else {
        return false;
    };
    match (old, new) {
        (Op::PutRef(_), Op::Patch(_)) => return false,
        (Op::PutRef(was), Op::PutRef(is)) if was == is => {}
        (Op::PutRef(descriptor), _) => dropped.push(descriptor.to_vec()),
        (Op::Delete, Op::Patch(_)) => *newer = Cow::Owned(older.to_vec()),
        (Op::Put(value), Op::Patch(patch)) => {
            let mut value = value.to_vec();
            patch.apply(&mut value);
            *newer = Cow::Owned(encoded(Op::Put(&value)));
        }
        (Op::Patch(below), Op::Patch(above)) => match fold_patches(&below, &above) {
            PatchFold::Newer => {}
            PatchFold::Keep => return false,
            PatchFold::Packed(runs) => {
                let both = super::patch::Patch::from_packed(above.value_size(), &runs);
                *newer = Cow::Owned(encoded(Op::Patch(both)));
            }
        },
        (Op::Delete | Op::Put(_) | Op::Patch(_), _) => {}
    }
    true
}

fn encoded(op: Op<'_>) -> Vec<u8> {
    let mut body = Vec::with_capacity(op.encoded_size());
    op.encode(&mut body);
    body
}
