//! A packed run of neighbouring deltas: the storage of the map.
//!
//! ```text
//! chunk  = record*                              ascending by (key, LSN)
//! record = key_size body_size lsn[7] key body   sizes are varints, body is an encoded op
//! ```
//!
//! Owns one growing allocation of about `CHUNK_SIZE_MAX` bytes. Never decides which chunk a key
//! belongs to.
//!
//! Invariants:
//! - C1: records ascend by key, and by LSN within a key (equal LSNs only for an out-of-line put and
//!   the patch behind it).
//! - C2: `count` and `lsn_min` describe the records exactly.
//! - C3: a mark other than 0 is the offset of a key's first record, so that a search may begin
//!   there.

use std::cmp::Ordering;
use std::ops::Range;

use flagstone_space::Lsn;

use super::op::{Op, put_varint, size_of_slice, take_varint, varint_size};

/// Size past which a chunk with more than one key splits, in bytes.
pub(super) const CHUNK_SIZE_MAX: usize = 1024;
/// Step in which the allocation grows, in bytes: on average half a step is unused.
const GROWTH_STEP: usize = 64;
/// Places in a chunk where a search may begin.
const MARK_COUNT: usize = 2;
/// Width of a stored LSN; an LSN has 56 bits.
const LSN_SIZE: usize = 7;
const LSN_MAX: u64 = (1 << (8 * LSN_SIZE)) - 1;
/// Bytes of a record before its key where both sizes take one byte. No record is shorter.
const SHORT_HEAD_SIZE: usize = 2 + LSN_SIZE;

/// One version of one key, read from a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    pub(super) key: &'a [u8],
    pub(super) lsn: Lsn,
    pub(super) body: &'a [u8],
    /// Bytes of the record in its chunk.
    pub(super) size: usize,
}

impl<'a> Record<'a> {
    /// The operation; `None` only if C1 is broken.
    pub(super) fn op(&self) -> Option<Op<'a>> {
        let op = Op::decode_trusted(self.body).ok();
        debug_assert!(op.is_some(), "chunks hold encoded operations");
        op
    }
}

/// Records one behind the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether nothing is left.
    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Cuts off all records of the first key; returns the key and the bytes of these records.
    pub(super) fn take_key(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        let (key, mut end) = first_key(self.rest)?;
        let head = key_head(key);
        while let Some((other, size)) = self.rest.get(end..).and_then(first_key)
            && key_head(other) == head
            && other == key
        {
            end += size;
        }
        let (records, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        Some((key, records))
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    #[inline]
    fn next(&mut self) -> Option<Record<'a>> {
        let (head, rest) = self.rest.split_first_chunk::<SHORT_HEAD_SIZE>()?;
        let [key_size, body_size, ..] = *head;
        if key_size | body_size >= 0x80 {
            return self.next_long();
        }
        // The LSN is the last part of the head: bytes before it are shifted out.
        let (_, lsn) = head.split_last_chunk::<8>()?;
        let lsn = Lsn(u64::from_le_bytes(*lsn) >> (8 * (8 - LSN_SIZE)));
        let (key, rest) = rest.split_at_checked(usize::from(key_size))?;
        let (body, rest) = rest.split_at_checked(usize::from(body_size))?;
        self.rest = rest;
        Some(Record { key, lsn, body, size: SHORT_HEAD_SIZE + key.len() + body.len() })
    }
}

impl<'a> Records<'a> {
    /// The next record, with sizes of any length.
    fn next_long(&mut self) -> Option<Record<'a>> {
        let (key_size, rest) = take_varint(self.rest)?;
        let (body_size, rest) = take_varint(rest)?;
        let (lsn, rest) = rest.split_first_chunk::<LSN_SIZE>()?;
        let (key, rest) = rest.split_at_checked(key_size as usize)?;
        let (body, rest) = rest.split_at_checked(body_size as usize)?;
        let size = self.rest.len() - rest.len();
        self.rest = rest;
        let mut wide = [0; 8];
        wide[..LSN_SIZE].copy_from_slice(lsn);
        Some(Record { key, lsn: Lsn(u64::from_le_bytes(wide)), body, size })
    }
}

/// The first record's key, and the bytes of the record; `None` where there is none.
#[inline]
fn first_key(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (&[key_size, body_size], _) = bytes.split_first_chunk()?;
    if key_size | body_size >= 0x80 {
        let record = Records::of(bytes).next()?;
        return Some((record.key, record.size));
    }
    let begin = SHORT_HEAD_SIZE;
    let end = begin + usize::from(key_size);
    Some((bytes.get(begin..end)?, end + usize::from(body_size)))
}

/// Appends a record around an encoded operation.
pub(super) fn write_record(key: &[u8], lsn: Lsn, body: &[u8], out: &mut Vec<u8>) {
    write_head(key, lsn, body.len(), out);
    out.extend_from_slice(body);
}

/// Appends a record, encoding the operation in place.
pub(super) fn write_op_record(key: &[u8], lsn: Lsn, op: &Op<'_>, out: &mut Vec<u8>) {
    write_head(key, lsn, op.encoded_size(), out);
    op.encode(out);
}

/// Appends a record without its body, and reserves room for the body.
fn write_head(key: &[u8], lsn: Lsn, body_size: usize, out: &mut Vec<u8>) {
    debug_assert!(lsn.0 <= LSN_MAX, "an LSN has 56 bits (rule D3)");
    let (key_size, body_len) = (size_of_slice(key), body_size as u32);
    let head_size = varint_size(key_size) + varint_size(body_len) + LSN_SIZE;
    out.reserve(head_size + key.len() + body_size);
    put_varint(out, key_size);
    put_varint(out, body_len);
    out.extend_from_slice(&lsn.0.min(LSN_MAX).to_le_bytes()[..LSN_SIZE]);
    out.extend_from_slice(key);
}

/// First eight bytes of a key as a number, short keys padded with zeros.
///
/// Different heads order their keys; equal heads say nothing. Heads spare a search most of its
/// comparisons of slices.
#[inline]
pub(crate) fn key_head(key: &[u8]) -> u64 {
    if let Some(head) = key.first_chunk() {
        return u64::from_be_bytes(*head);
    }
    let shift = 8 * (8 - key.len());
    match (key.first_chunk(), key.last_chunk()) {
        // For four to eight bytes the halves overlap in the middle.
        (Some(front), Some(back)) => {
            u64::from(u32::from_be_bytes(*front)) << 32
                | u64::from(u32::from_be_bytes(*back)) << shift
        }
        _ => key.iter().rev().fold(0, |head, byte| head >> 8 | u64::from(*byte) << 56),
    }
}

/// The figures that C2 keeps.
struct Totals {
    count: u32,
    lsn_min: Lsn,
}

impl Totals {
    const NONE: Self = Self { count: 0, lsn_min: Lsn(LSN_MAX) };

    fn with(self, record: Record<'_>) -> Self {
        Self { count: self.count + 1, lsn_min: self.lsn_min.min(record.lsn) }
    }
}

/// Place of a key's records in a chunk, or the place where they would go.
pub(super) struct Span {
    /// Byte range of the key's records; empty when it has none.
    pub(super) bytes: Range<usize>,
    /// Number of these records.
    pub(super) count: usize,
}

/// A packed run of records.
#[derive(Clone, Debug, Default)]
pub(super) struct Chunk {
    data: Vec<u8>,
    count: u32,
    /// Offsets about a third and two thirds of the way through.
    marks: [u16; MARK_COUNT],
    lsn_min: Lsn,
}

impl Chunk {
    /// A chunk of these records, sized to fit.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut chunk = Self::default();
        chunk.reserve(bytes.len());
        chunk.data.extend_from_slice(bytes);
        chunk.recount();
        chunk
    }

    pub(super) fn records(&self) -> Records<'_> {
        Records { rest: &self.data }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.data
    }

    pub(super) fn count(&self) -> usize {
        self.count as usize
    }

    /// Lowest LSN of the records.
    pub(super) fn lsn_min(&self) -> Lsn {
        self.lsn_min
    }

    /// Bytes allocated.
    pub(super) fn capacity(&self) -> usize {
        self.data.capacity()
    }

    /// Finds the records of `key`.
    pub(super) fn find(&self, key: &[u8]) -> Span {
        let head = key_head(key);
        let mut offset = 0;
        for mark in self.marks.map(usize::from).into_iter().filter(|mark| *mark > 0) {
            match self.data.get(mark..).and_then(first_key) {
                Some((other, _)) if other <= key => offset = mark,
                _ => break,
            }
        }
        let (mut start, mut count) = (offset, 0);
        while let Some((other, size)) = self.data.get(offset..).and_then(first_key) {
            match key_head(other).cmp(&head).then_with(|| other.cmp(key)) {
                Ordering::Less => start = offset + size,
                Ordering::Equal => count += 1,
                Ordering::Greater => break,
            }
            offset += size;
        }
        let end = if count == 0 { start } else { offset };
        Span { bytes: start..end, count }
    }

    /// Puts one record at `offset`.
    pub(super) fn insert(&mut self, offset: usize, record: &[u8], lsn: Lsn) {
        self.splice(offset..offset, record);
        self.lsn_min = if self.count == 0 { lsn } else { self.lsn_min.min(lsn) };
        self.count += 1;
    }

    /// Replaces the records in `range` with `records`.
    pub(super) fn replace(&mut self, range: Range<usize>, records: &[u8]) {
        let old = self.data.get(range.clone()).map(Records::of);
        let gone = old.into_iter().flatten().fold(Totals::NONE, Totals::with);
        let come = Records::of(records).fold(Totals::NONE, Totals::with);
        self.splice(range, records);
        // The lowest LSN may change only if its record goes: otherwise the other records need no
        // look.
        if self.count == 0 || gone.lsn_min <= self.lsn_min {
            self.recount();
        } else {
            self.count = self.count - gone.count + come.count;
            self.lsn_min = self.lsn_min.min(come.lsn_min);
        }
    }

    /// Keeps the records for which `keep` holds; returns the number removed.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Record<'_>) -> bool) -> usize {
        let before = self.count();
        let mut kept = Vec::with_capacity(self.data.len());
        let mut offset = 0;
        for record in self.records() {
            if keep(&record) {
                kept.extend_from_slice(self.data.get(offset..offset + record.size).unwrap_or(&[]));
            }
            offset += record.size;
        }
        if kept.len() < self.data.len() {
            *self = Self::of(&kept);
        }
        before - self.count()
    }

    fn splice(&mut self, range: Range<usize>, bytes: &[u8]) {
        self.move_marks(&range, bytes.len());
        let (old_size, tail_start) = (self.data.len(), range.end);
        let target = range.start + bytes.len();
        if target >= tail_start {
            let grown = target - tail_start;
            self.reserve(old_size + grown);
            self.data.resize(old_size + grown, 0);
            self.data.copy_within(tail_start..old_size, target);
        } else {
            self.data.copy_within(tail_start..old_size, target);
            self.data.truncate(old_size - (tail_start - target));
        }
        self.data[range.start..target].copy_from_slice(bytes);
        if self.data.capacity() > self.data.len() + 4 * GROWTH_STEP {
            self.data.shrink_to(self.data.len().next_multiple_of(GROWTH_STEP));
        }
    }

    fn reserve(&mut self, size: usize) {
        if size > self.data.capacity() {
            let wanted = size.next_multiple_of(GROWTH_STEP);
            self.data.reserve_exact(wanted - self.data.len());
        }
    }

    /// Moves the marks: `range`, the records of one key or none, is about to become `size` bytes
    /// long.
    fn move_marks(&mut self, range: &Range<usize>, size: usize) {
        for mark in &mut self.marks {
            let at = usize::from(*mark);
            if at >= range.end && at > 0 {
                *mark = u16::try_from(at + size - range.len()).unwrap_or(0);
            }
        }
    }

    fn recount(&mut self) {
        let mut totals = Totals::NONE;
        let (mut marks, mut mark_count) = ([0; MARK_COUNT], 0);
        let (mut offset, mut previous) = (0, &[][..]);
        for record in self.records() {
            let is_due = offset * (MARK_COUNT + 1) > self.data.len() * (mark_count + 1);
            if is_due && mark_count < MARK_COUNT && record.key != previous {
                marks[mark_count] = u16::try_from(offset).unwrap_or(0);
                mark_count += 1;
            }
            (offset, previous) = (offset + record.size, record.key);
            totals = totals.with(record);
        }
        (self.count, self.lsn_min, self.marks) = (totals.count, totals.lsn_min, marks);
    }

    /// Whether the marks keep C3.
    #[cfg(test)]
    pub(super) fn is_sound(&self) -> bool {
        let mut records = self.records();
        let begins = std::iter::from_fn(|| {
            let begin = self.data.len() - records.rest.len();
            records.take_key().map(|_| begin)
        });
        let begins: Vec<usize> = begins.collect();
        let marks = self.marks.iter().filter(|mark| **mark > 0);
        marks.clone().is_sorted()
            && marks.map(|mark| usize::from(*mark)).all(|mark| begins.contains(&mark))
    }

    /// Splits a chunk that grew too large, between keys; returns the parts in order, or nothing.
    ///
    /// `Arrival::AtEnd` leaves the left part full, so that ascending inserts fill chunks.
    pub(super) fn split(&self, arrival: Arrival) -> Vec<Chunk> {
        let total = self.data.len();
        if total <= CHUNK_SIZE_MAX {
            return Vec::new();
        }
        let part_count = match arrival {
            Arrival::AtEnd => 2,
            Arrival::Inside => total.div_ceil(CHUNK_SIZE_MAX),
        };
        let mut parts = Vec::new();
        let mut records = self.records();
        let (mut start, mut end) = (0, 0);
        while let Some((_, span)) = records.take_key() {
            let is_full = match arrival {
                Arrival::AtEnd => end - start + span.len() > CHUNK_SIZE_MAX,
                Arrival::Inside => end - start + span.len() / 2 > total / part_count,
            };
            if is_full && end > start && parts.len() + 1 < part_count {
                parts.push(Chunk::of(&self.data[start..end]));
                start = end;
            }
            end += span.len();
        }
        if start == 0 {
            return Vec::new();
        }
        parts.push(Chunk::of(&self.data[start..end]));
        parts
    }
}

/// Place of the record that made a chunk too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// After every key of the map.
    AtEnd,
    /// Any other place.
    Inside,
}
