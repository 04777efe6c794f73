//! Reading a node in place.

use std::cmp::Ordering;
use std::ops::Range;

use flagstone_space::LogicalPage;

use super::layout::{CHILD_SIZE, HEADER_SIZE, Header, Layout, SLOT_SIZE};
use super::{NodeFault, ValueRef, check};
use crate::delta::{key_head, take_varint};

/// Fewest entries for which a search begins with a guess.
const GUESS_COUNT_MIN: usize = 16;

/// A guess counts as right within one part in this many of the entries.
const GUESS_SHARE: usize = 16;

/// Layout of a node, as in its header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape(Header);

impl Shape {
    /// The shape of bytes without a node.
    pub(crate) const NOTHING: Self = Self(Header::NOTHING);

    /// The node of this shape in `bytes`.
    #[inline]
    pub(crate) fn over(self, bytes: &[u8]) -> NodeView<'_> {
        NodeView { bytes, header: self.0 }
    }
}

/// A node over the payload of a page.
#[derive(Clone, Copy, Debug)]
pub struct NodeView<'a> {
    bytes: &'a [u8],
    header: Header,
}

/// One entry of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// First part of the key.
    pub(crate) prefix: &'a [u8],
    /// Rest of the key.
    pub(crate) suffix: &'a [u8],
    /// The value.
    pub(crate) value: ValueRef<'a>,
}

impl<'a> NodeView<'a> {
    /// Reads untrusted bytes after checking all of them (N4).
    ///
    /// # Errors
    ///
    /// The first check that failed.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, NodeFault> {
        let header = check::check_header(bytes)?;
        let view = Self { bytes, header };
        check::check_entries(&view)?;
        Ok(view)
    }

    /// Reads bytes that `parse` has accepted, or that this module built.
    #[inline]
    #[must_use]
    pub fn trusted(bytes: &'a [u8]) -> Self {
        Self { bytes, header: Header::decode(bytes).unwrap_or(Header::NOTHING) }
    }

    /// Layout of the node.
    pub(crate) fn shape(&self) -> Shape {
        Shape(self.header)
    }

    pub(super) fn header(&self) -> &Header {
        &self.header
    }

    /// Bytes of the page.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Tree of the node.
    #[must_use]
    pub fn tree(&self) -> u32 {
        self.header.tree
    }

    /// Height above the leaves; 0 is a leaf.
    #[must_use]
    pub fn level(&self) -> u8 {
        self.header.level
    }

    /// Whether the node is a leaf.
    pub(crate) fn is_leaf(&self) -> bool {
        !self.header.is_inner
    }

    /// Number of entries or children.
    #[inline]
    #[must_use]
    pub fn count(&self) -> usize {
        usize::from(self.header.count)
    }

    /// Low fence: no key is below it; empty below every key.
    #[inline]
    #[must_use]
    pub fn low(&self) -> &'a [u8] {
        self.slice(HEADER_SIZE, usize::from(self.header.low_size))
    }

    /// High fence: every key is below it; `None` is infinity.
    #[inline]
    #[must_use]
    pub fn high(&self) -> Option<&'a [u8]> {
        let start = HEADER_SIZE + usize::from(self.header.low_size);
        self.header.has_high.then(|| self.slice(start, usize::from(self.header.high_size)))
    }

    #[cfg(test)]
    /// Whether `key` lies between the fences.
    pub(crate) fn covers(&self, key: &[u8]) -> bool {
        self.low() <= key && self.high().is_none_or(|high| key < high)
    }

    /// Bytes in use, header and fences included.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.header.entries_end()
    }

    /// Prefix of all keys.
    #[inline]
    pub(crate) fn prefix(&self) -> &'a [u8] {
        self.slice(HEADER_SIZE, usize::from(self.header.prefix_size.min(self.header.low_size)))
    }

    #[inline]
    fn slice(&self, start: usize, size: usize) -> &'a [u8] {
        self.bytes.get(start..start + size).unwrap_or(&[])
    }

    #[inline]
    fn half(&self, at: usize) -> usize {
        self.slice(at, 2).first_chunk().map_or(0, |raw| usize::from(u16::from_le_bytes(*raw)))
    }

    /// Bytes of the record behind slot `index`; none when they lie outside.
    #[inline]
    pub(super) fn record_range(&self, index: usize, end: u16) -> Range<usize> {
        let slot = self.header.entries_start() + index * SLOT_SIZE;
        let is_last = index + 1 >= self.count();
        let stop = if is_last { usize::from(end) } else { self.half(slot + SLOT_SIZE) };
        self.half(slot)..stop
    }

    /// Places of an entry's suffix and value, and whether the value is a descriptor.
    #[inline]
    pub(super) fn parts(&self, index: usize) -> Parts {
        match self.header.layout {
            Layout::Fixed { suffix_size, value_size } => {
                let (suffix, value) = (usize::from(suffix_size), usize::from(value_size));
                let start = self.header.entries_start() + index * (suffix + value);
                let middle = start + suffix;
                Parts { suffix: start..middle, value: middle..middle + value, is_ref: false }
            }
            Layout::Slotted { end } => {
                let record = self.record_range(index, end);
                let parts = if self.header.is_inner {
                    inner_parts(&record)
                } else {
                    self.bytes.get(record.clone()).and_then(|raw| leaf_parts(raw, record.start))
                };
                parts.unwrap_or(Parts { suffix: 0..0, value: 0..0, is_ref: false })
            }
        }
    }

    /// The key of entry `index` without the prefix; for a child, its separator.
    #[inline]
    pub(crate) fn suffix(&self, index: usize) -> &'a [u8] {
        if self.header.is_inner && index == 0 {
            return self.low().get(self.prefix().len()..).unwrap_or(&[]);
        }
        self.stored_suffix(index)
    }

    /// The stored part of the key of entry `index`: none for the first child.
    #[inline]
    fn stored_suffix(&self, index: usize) -> &'a [u8] {
        match self.header.layout {
            Layout::Fixed { suffix_size, value_size } => {
                let (suffix, value) = (usize::from(suffix_size), usize::from(value_size));
                self.slice(self.header.entries_start() + index * (suffix + value), suffix)
            }
            Layout::Slotted { end } => {
                let record = self.bytes.get(self.record_range(index, end)).unwrap_or(&[]);
                let suffix = match self.header.is_inner {
                    true => record.get(CHILD_SIZE..),
                    false => leaf_suffix(record),
                };
                suffix.unwrap_or(&[])
            }
        }
    }

    /// Entry `index` of a leaf.
    #[inline]
    pub(crate) fn entry(&self, index: usize) -> Option<Entry<'a>> {
        if index >= self.count() || self.header.is_inner {
            return None;
        }
        let parts = self.parts(index);
        let suffix = self.bytes.get(parts.suffix)?;
        let value = self.bytes.get(parts.value)?;
        let value = if parts.is_ref { ValueRef::Ref(value) } else { ValueRef::Inline(value) };
        Some(Entry { prefix: self.prefix(), suffix, value })
    }

    /// Value of entry `index` of a leaf.
    #[must_use]
    pub fn value(&self, index: usize) -> Option<ValueRef<'a>> {
        Some(self.entry(index)?.value)
    }

    /// Place of the value of entry `index` of a leaf in the page.
    #[must_use]
    pub fn value_range(&self, index: usize) -> Option<Range<usize>> {
        (index < self.count() && self.is_leaf()).then(|| self.parts(index).value)
    }

    /// The entries of a leaf, ascending.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry<'a>> {
        let view = *self;
        (0..view.count()).map_while(move |index| view.entry(index))
    }

    /// Appends the key of entry `index`, or the separator of a child, to `out`.
    pub fn key_into(&self, index: usize, out: &mut Vec<u8>) {
        let (prefix, suffix) = (self.prefix(), self.suffix(index));
        out.reserve(prefix.len() + suffix.len());
        out.extend_from_slice(prefix);
        out.extend_from_slice(suffix);
    }

    /// The separator of child `index`: the low fence of its page.
    pub(crate) fn separator(&self, index: usize) -> Vec<u8> {
        let mut key = Vec::new();
        self.key_into(index, &mut key);
        key
    }

    /// Whether `key` is the separator of child `index`.
    #[inline]
    pub(crate) fn is_separator(&self, index: usize, key: &[u8]) -> bool {
        key.strip_prefix(self.prefix()) == Some(self.suffix(index))
    }

    /// Finds an entry of a leaf.
    ///
    /// # Errors
    ///
    /// The place where the key would stand.
    #[inline]
    pub fn search(&self, key: &[u8]) -> Result<usize, usize> {
        self.search_from(0, key)
    }

    /// Finds an entry, or the place where it would stand, at or behind entry `first`. The key of
    /// `first` is at or below the key sought, or does not matter. Entries near `first` are found
    /// first: for keys that come in order.
    pub(super) fn search_behind(&self, first: usize, key: &[u8]) -> Result<usize, usize> {
        let prefix = self.prefix();
        let Some(suffix) = key.strip_prefix(prefix) else {
            return Err(if key < prefix { first } else { self.count() });
        };
        let head = key_head(suffix);
        let (mut low, mut step) = (first, 1);
        while low < self.count() {
            let probe = (low + step).min(self.count()) - 1;
            match self.compare(probe, head, suffix) {
                Ordering::Less => (low, step) = (probe + 1, 2 * step),
                Ordering::Equal => return Ok(probe),
                Ordering::Greater => return self.search_between(low, probe, head, suffix),
            }
        }
        Err(low)
    }

    /// Compares the key of entry `index` with a key, given its suffix and the head of the suffix.
    #[inline]
    fn compare(&self, index: usize, head: u64, suffix: &[u8]) -> Ordering {
        let found = self.stored_suffix(index);
        key_head(found).cmp(&head).then_with(|| found.cmp(suffix))
    }

    /// Binary search among the entries from `low` to before `high`.
    #[inline]
    fn search_between(
        &self,
        mut low: usize,
        mut high: usize,
        head: u64,
        suffix: &[u8],
    ) -> Result<usize, usize> {
        while low < high {
            let middle = (low + high) / 2;
            match self.compare(middle, head, suffix) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    fn search_from(&self, first: usize, key: &[u8]) -> Result<usize, usize> {
        let prefix = self.prefix();
        let Some(suffix) = key.strip_prefix(prefix) else {
            return Err(if key < prefix { first } else { self.count() });
        };
        let head = key_head(suffix);
        let (mut low, mut high) = (first, self.count());
        if let Some(guess) =
            self.guess(head, prefix.len()).filter(|guess| (low..high).contains(guess))
        {
            // Each probe likely misses the processor's cache. Three probes where evenly spaced keys
            // would lie are fewer than a binary search takes.
            let near = (high - low) / GUESS_SHARE + 1;
            for probe in [guess, guess.saturating_sub(near), guess + near] {
                if !(low..high).contains(&probe) {
                    continue;
                }
                match self.compare(probe, head, suffix) {
                    Ordering::Less => low = probe + 1,
                    Ordering::Equal => return Ok(probe),
                    Ordering::Greater => high = probe,
                }
            }
        }
        self.search_between(low, high, head, suffix)
    }

    /// Place of a key that begins with `head` if keys were evenly spaced between the fences; `None`
    /// where the fences do not tell.
    #[inline]
    fn guess(&self, head: u64, prefix_size: usize) -> Option<usize> {
        if self.count() < GUESS_COUNT_MIN {
            return None;
        }
        let low = key_head(self.low().get(prefix_size..)?);
        let high = key_head(self.high()?.get(prefix_size..)?);
        let (span, offset) = (high.checked_sub(low)?, head.checked_sub(low)?);
        if span == 0 || offset >= span {
            return None;
        }
        let place = u128::from(offset) * self.count() as u128 / u128::from(span);
        Some(place as usize)
    }

    /// Number of child `index` of an inner node.
    #[must_use]
    pub fn child(&self, index: usize) -> Option<LogicalPage> {
        if index >= self.count() || !self.header.is_inner {
            return None;
        }
        let raw = self.bytes.get(self.parts(index).value)?.first_chunk::<CHILD_SIZE>()?;
        Some(LogicalPage(u32::from_le_bytes(*raw)))
    }

    /// The child that holds the largest keys below `bound` (`None`: of all), and its place.
    #[inline]
    #[must_use]
    pub fn child_below(&self, bound: Option<&[u8]>) -> Option<(usize, LogicalPage)> {
        let end = bound.map_or(self.count(), |bound| {
            // The page stores no key of the first child, which qualifies for every bound.
            let (Ok(at) | Err(at)) = self.search_from(1, bound);
            at
        });
        let index = end.checked_sub(1)?;
        self.child(index).map(|child| (index, child))
    }

    /// The child of an inner node that covers `key`, with its index.
    #[must_use]
    pub fn child_for(&self, key: &[u8]) -> Option<(usize, LogicalPage)> {
        let index = match self.search_from(1, key) {
            Ok(index) => index,
            Err(above) => above.max(1) - 1,
        };
        Some((index, self.child(index)?))
    }
}

/// Places of an entry's parts in the page.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    pub(super) suffix: Range<usize>,
    pub(super) value: Range<usize>,
    pub(super) is_ref: bool,
}

#[inline]
fn inner_parts(record: &Range<usize>) -> Option<Parts> {
    let middle = record.start + CHILD_SIZE;
    (middle <= record.end).then_some(Parts {
        suffix: middle..record.end,
        value: record.start..middle,
        is_ref: false,
    })
}

#[inline]
fn leaf_suffix(record: &[u8]) -> Option<&[u8]> {
    let (size, rest) = take_varint(record)?;
    let (_, rest) = take_varint(rest)?;
    rest.get(..size as usize)
}

/// Splits a leaf's record into its parts; `None` unless they fill it.
#[inline]
fn leaf_parts(raw: &[u8], start: usize) -> Option<Parts> {
    let (suffix_size, rest) = take_varint(raw)?;
    let (value_code, rest) = take_varint(rest)?;
    let (suffix_size, value_size) = (suffix_size as usize, (value_code >> 1) as usize);
    let suffix_start = start + raw.len() - rest.len();
    let middle = suffix_start.checked_add(suffix_size)?;
    let end = middle.checked_add(value_size)?;
    (end == start + raw.len()).then_some(Parts {
        suffix: suffix_start..middle,
        value: middle..end,
        is_ref: value_code & 1 == 1,
    })
}
