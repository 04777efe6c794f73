//! Cursors over a map. They hold no state beyond a key: an operation that let go of the map
//! continues with `Bound::Excluded(last key)`.

use std::ops::Bound;

use flagstone_space::Lsn;

use super::chunk::{Record, Records, key_head};
use super::index::{Index, Position};
use super::op::Op;

/// A key with its versions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    key: &'a [u8],
    span: &'a [u8],
}

impl<'a> Entry<'a> {
    /// The key.
    pub(crate) fn key(&self) -> &'a [u8] {
        self.key
    }

    /// The versions, oldest first.
    pub(crate) fn versions(&self) -> Versions<'a> {
        Versions::of(self.span)
    }

    pub(super) fn records(&self) -> Records<'a> {
        Records::of(self.span)
    }

    /// The records as stored in their chunk.
    pub(super) fn bytes(&self) -> &'a [u8] {
        self.span
    }
}

/// Versions of one key, oldest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Versions<'a> {
    records: Records<'a>,
}

impl<'a> Versions<'a> {
    pub(super) fn of(span: &'a [u8]) -> Self {
        Self { records: Records::of(span) }
    }

    /// Whether the key has no versions.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

impl<'a> Iterator for Versions<'a> {
    type Item = (Lsn, Op<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let record: Record<'a> = self.records.next()?;
        Some((record.lsn, record.op()?))
    }
}

/// Keys in ascending order.
#[derive(Clone, Debug)]
pub(crate) struct Forward<'a> {
    index: &'a Index,
    at: Option<Position>,
    records: Records<'a>,
    lsn_below: Option<Lsn>,
}

impl<'a> Forward<'a> {
    pub(super) fn new(index: &'a Index, from: Bound<&[u8]>) -> Self {
        Self::starting(index, from, None)
    }

    /// Skips chunks without a version below `lsn`.
    pub(super) fn with_lsn_below(index: &'a Index, from: Bound<&[u8]>, lsn: Lsn) -> Self {
        Self::starting(index, from, Some(lsn))
    }

    fn starting(index: &'a Index, from: Bound<&[u8]>, lsn_below: Option<Lsn>) -> Self {
        let at = match from {
            Bound::Unbounded => index.first(),
            Bound::Included(key) | Bound::Excluded(key) => index.locate(key),
        };
        let bytes = at.and_then(|at| index.chunk(at)).map_or(&[][..], |chunk| {
            let start = match from {
                Bound::Unbounded => 0,
                Bound::Included(key) => chunk.find(key).bytes.start,
                Bound::Excluded(key) => chunk.find(key).bytes.end,
            };
            chunk.bytes().get(start..).unwrap_or(&[])
        });
        Self { index, at, records: Records::of(bytes), lsn_below }
    }

    fn next_chunk(&mut self) -> Option<()> {
        loop {
            self.at = self.index.next(self.at?);
            let chunk = self.index.chunk(self.at?)?;
            if self.lsn_below.is_none_or(|lsn| chunk.lsn_min() < lsn) {
                self.records = chunk.records();
                return Some(());
            }
        }
    }
}

impl<'a> Iterator for Forward<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        if self.records.is_empty() {
            self.next_chunk()?;
        }
        let (key, span) = self.records.take_key()?;
        Some(Entry { key, span })
    }
}

/// Number and packed size of versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    /// Number of versions.
    pub(crate) count: usize,
    /// Bytes of their records.
    pub(crate) bytes: usize,
}

/// Sums over consecutive key ranges. Of a chunk that lies inside a range only the totals are read, unless
/// some versions do not count.
#[derive(Debug)]
pub(crate) struct Sums<'a> {
    index: &'a Index,
    at: Option<Position>,
    /// Records of the chunk that are still to come; none where all of them are.
    rest: Option<Records<'a>>,
    upto: Lsn,
}

impl<'a> Sums<'a> {
    /// Sums of versions up to `upto`; the first range begins at `low`.
    pub(super) fn new(index: &'a Index, low: &[u8], upto: Lsn) -> Self {
        let Forward { index, at, records, .. } = Forward::new(index, Bound::Included(low));
        Self { index, at, rest: Some(records), upto }
    }

    /// Whether no chunks are left.
    pub(crate) fn is_over(&self) -> bool {
        self.at.is_none()
    }

    /// The sum over the remaining keys below `bound` (`None`: all). Bounds ascend.
    pub(crate) fn below(&mut self, bound: Option<&[u8]>) -> Sum {
        let mut sum = Sum::default();
        while let Some(at) = self.at
            && let Some(chunk) = self.index.chunk(at)
        {
            let next = self.index.next(at);
            let low = next.and_then(|next| self.index.low(next));
            // Keys of the chunk lie below the low key of the next one.
            let end = bound.filter(|bound| low.is_none_or(|low| low > *bound));
            if end.is_none() && self.rest.is_none() && self.upto == Lsn(u64::MAX) {
                sum.count += chunk.count();
                sum.bytes += chunk.bytes().len();
            } else {
                let rest = self.rest.unwrap_or(chunk.records());
                self.rest = Some(add_below(rest, end, self.upto, &mut sum));
            }
            if end.is_some() {
                break;
            }
            (self.at, self.rest) = (next, None);
        }
        sum
    }
}

/// Adds the records below `bound` that are not above `upto`; returns the others.
fn add_below<'a>(
    mut rest: Records<'a>,
    bound: Option<&[u8]>,
    upto: Lsn,
    sum: &mut Sum,
) -> Records<'a> {
    let head = bound.map_or(u64::MAX, key_head);
    let is_below = |key: &[u8]| {
        let other = key_head(key);
        other < head || other == head && bound.is_none_or(|bound| key < bound)
    };
    let mut ahead = rest;
    while let Some(record) = ahead.next().filter(|record| is_below(record.key)) {
        if record.lsn <= upto {
            sum.count += 1;
            sum.bytes += record.size;
        }
        rest = ahead;
    }
    rest
}

/// Keys in descending order.
#[derive(Clone, Debug)]
pub(crate) struct Backward<'a> {
    index: &'a Index,
    at: Option<Position>,
    /// Entries of the current chunk that are still to come, ascending.
    entries: Vec<Entry<'a>>,
}

impl<'a> Backward<'a> {
    pub(super) fn new(index: &'a Index, from: Bound<&[u8]>) -> Self {
        let at = match from {
            Bound::Unbounded => index.last(),
            Bound::Included(key) | Bound::Excluded(key) => index.locate(key),
        };
        let mut cursor = Self { index, at, entries: Vec::new() };
        cursor.load();
        cursor.entries.retain(|entry| match from {
            Bound::Unbounded => true,
            Bound::Included(key) => entry.key <= key,
            Bound::Excluded(key) => entry.key < key,
        });
        cursor
    }

    fn load(&mut self) {
        let Some(chunk) = self.at.and_then(|at| self.index.chunk(at)) else { return };
        let mut records = chunk.records();
        while let Some((key, span)) = records.take_key() {
            self.entries.push(Entry { key, span });
        }
    }
}

impl<'a> Iterator for Backward<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        loop {
            if let Some(entry) = self.entries.pop() {
                return Some(entry);
            }
            self.at = self.index.previous(self.at?);
            self.load();
        }
    }
}
