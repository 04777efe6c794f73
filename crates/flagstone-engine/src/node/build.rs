//! Building pages out of sorted entries: sizes, cuts, separators, bytes.

use flagstone_space::LogicalPage;

use super::layout::{
    CHILD_SIZE, HEADER_SIZE, Header, LAYOUT_OFFSET, Layout, SLOT_SIZE, common_size,
};
use super::{
    Built, FillPolicy, NodeError, PAGE_SIZE_MAX, PAGE_SIZE_MIN, Payload, ValueRef,
    descriptor_size_max, key_size_max, value_size_max,
};
use crate::delta::{KeyRange, put_varint, varint_size};

/// Longest key taken whole as a separator: short keys of one size keep the parent in the fixed
/// layout, which is worth more than the bytes saved by a shorter separator.
const WHOLE_SEPARATOR_SIZE_MAX: usize = 16;

/// Properties shared by all pages of one build.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) tree: u32,
    pub(super) level: u8,
    pub(super) page_size: usize,
    pub(super) fill: FillPolicy,
}

/// One entry to be placed.
pub(super) type Item<'a> = (&'a [u8], Payload<'a>);

/// Packs sorted entries into as few leaves as they need; at least one.
///
/// # Errors
///
/// `KeyTooLarge`, `ValueTooLarge`, `PageSize`.
pub(crate) fn build_leaves<'a>(
    tree: u32,
    range: KeyRange<'_>,
    entries: impl Iterator<Item = (&'a [u8], ValueRef<'a>)>,
    page_size: usize,
    fill: FillPolicy,
) -> Result<Vec<Built>, NodeError> {
    let items: Vec<Item<'_>> = entries.map(|(key, value)| (key, Payload::Value(value))).collect();
    build(Shape { tree, level: 0, page_size, fill }, range, &items)
}

/// Packs sorted entries into one leaf; `None` when they need more than one.
///
/// # Errors
///
/// As `build_leaves`.
pub(super) fn build_leaf<'a>(
    tree: u32,
    range: KeyRange<'_>,
    entries: impl Iterator<Item = (&'a [u8], ValueRef<'a>)>,
    page_size: usize,
) -> Result<Option<Built>, NodeError> {
    let items: Vec<Item<'_>> = entries.map(|(key, value)| (key, Payload::Value(value))).collect();
    let shape = Shape { tree, level: 0, page_size, fill: FillPolicy::Balanced };
    check_sizes(page_size, range, &items)?;
    let fits = Sizes::of(&items).page_size(range) <= page_size;
    Ok(fits.then(|| Built { low_key: range.low.to_vec(), image: write_page(shape, range, &items) }))
}

/// A leaf without entries for all keys of a tree: the content of a root before its first write.
#[must_use]
pub fn empty_leaf(tree: u32, page_size: usize) -> Vec<u8> {
    let fill = FillPolicy::Balanced;
    let built = build_leaves(tree, KeyRange::ALL, std::iter::empty(), page_size, fill);
    built.ok().and_then(|pages| pages.into_iter().next()).map(|page| page.image).unwrap_or_default()
}

/// Packs sorted separators with their children into as few inner nodes as they need.
///
/// # Errors
///
/// `LowUncovered` unless the first separator is the low key; else as `build_leaves`.
pub(crate) fn build_inner<'a>(
    (tree, level): (u32, u8),
    range: KeyRange<'_>,
    children: impl Iterator<Item = (&'a [u8], LogicalPage)>,
    page_size: usize,
    fill: FillPolicy,
) -> Result<Vec<Built>, NodeError> {
    debug_assert!(level > 0, "level 0 are the leaves");
    let items: Vec<Item<'_>> = children.map(|(key, child)| (key, Payload::Child(child))).collect();
    if items.first().is_none_or(|(key, _)| *key != range.low) {
        return Err(NodeError::LowUncovered);
    }
    build(Shape { tree, level, page_size, fill }, range, &items)
}

fn build(shape: Shape, range: KeyRange<'_>, items: &[Item<'_>]) -> Result<Vec<Built>, NodeError> {
    check_sizes(shape.page_size, range, items)?;
    debug_assert!(items.is_sorted_by(|left, right| left.0 < right.0), "entries ascend (N1)");
    debug_assert!(items.iter().all(|(key, _)| range.contains(key)), "entries lie inside (N1)");
    let cuts = plan(shape, range, items)?;
    let mut pages = Vec::with_capacity(cuts.len() + 1);
    let (mut start, mut low) = (0, range.low);
    for end in cuts.into_iter().chain([items.len()]) {
        let high = if end == items.len() { range.high } else { Some(fence(items, end)) };
        let content = items.get(start..end).unwrap_or(&[]);
        pages.push(Built {
            low_key: low.to_vec(),
            image: write_page(shape, KeyRange { low, high }, content),
        });
        (start, low) = (end, high.unwrap_or(&[]));
    }
    Ok(pages)
}

fn check_sizes(page_size: usize, range: KeyRange<'_>, items: &[Item<'_>]) -> Result<(), NodeError> {
    if !(PAGE_SIZE_MIN..=PAGE_SIZE_MAX).contains(&page_size) {
        return Err(NodeError::PageSize { page_size });
    }
    let size_max = key_size_max(page_size);
    let keys = items.iter().map(|item| item.0);
    let longest = keys.chain([range.low]).chain(range.high).map(<[u8]>::len).max();
    if let Some(size) = longest.filter(|size| *size > size_max) {
        return Err(NodeError::KeyTooLarge { size, size_max });
    }
    items.iter().try_for_each(|(key, payload)| {
        let size_max = match payload {
            Payload::Value(ValueRef::Inline(_)) => value_size_max(page_size, key.len()),
            Payload::Value(ValueRef::Ref(_)) | Payload::Child(_) => descriptor_size_max(page_size),
        };
        let size = payload_size(payload);
        if size > size_max { Err(NodeError::ValueTooLarge { size, size_max }) } else { Ok(()) }
    })
}

fn payload_size(payload: &Payload<'_>) -> usize {
    match payload {
        Payload::Value(value) => value.bytes().len(),
        Payload::Child(_) => CHILD_SIZE,
    }
}

/// The fence before item `at` when a page begins there: for inner nodes the separator itself, for
/// leaves the shortest key between the neighbours.
fn fence<'a>(items: &[Item<'a>], at: usize) -> &'a [u8] {
    let Some((right, payload)) = items.get(at) else { return &[] };
    let left = at.checked_sub(1).and_then(|before| items.get(before)).map_or(&[][..], |it| it.0);
    if matches!(payload, Payload::Child(_)) { right } else { separator_of(left, right) }
}

/// The separator of two neighbouring keys of leaves: the shortest key above the left one, or the
/// right key itself.
pub(crate) fn separator_of<'a>(left: &[u8], right: &'a [u8]) -> &'a [u8] {
    if left.len() == right.len() && right.len() <= WHOLE_SEPARATOR_SIZE_MAX {
        return right;
    }
    right.get(..=common_size(left, right)).unwrap_or(right)
}

/// Sizes of a run of entries, updated in O(1) for one more entry.
#[derive(Clone, Debug, Default)]
struct Sizes {
    count: usize,
    key_bytes: usize,
    value_bytes: usize,
    /// Varints of a slotted leaf, before prefix truncation.
    varint_bytes: usize,
    /// Number of entries whose suffix is stored; all but the first of an inner node.
    suffix_count: usize,
    key_size: usize,
    value_size: usize,
    is_mixed: bool,
}

impl Sizes {
    fn add(&mut self, (key, payload): &Item<'_>) {
        let value_size = payload_size(payload);
        let is_ref = matches!(payload, Payload::Value(ValueRef::Ref(_)));
        self.value_bytes += value_size;
        self.is_mixed |= is_ref || (self.count > 0 && self.value_size != value_size);
        self.value_size = value_size;
        self.count += 1;
        if matches!(payload, Payload::Child(_)) && self.count == 1 {
            return;
        }
        self.is_mixed |= self.suffix_count > 0 && self.key_size != key.len();
        self.key_size = key.len();
        self.key_bytes += key.len();
        self.suffix_count += 1;
        if let Payload::Value(_) = payload {
            self.varint_bytes += varint_size(key.len() as u32) + varint_size(2 * value_size as u32);
        }
    }

    fn of(items: &[Item<'_>]) -> Self {
        let mut sizes = Self::default();
        items.iter().for_each(|item| sizes.add(item));
        sizes
    }

    /// Bytes of the entries in the fixed layout, when they allow it (N3).
    fn fixed_size(&self, prefix_size: usize) -> Option<usize> {
        let suffix_size = self.key_size.saturating_sub(prefix_size);
        (!self.is_mixed).then_some(self.count * (suffix_size + self.value_size))
    }

    /// Bytes of the entries in the slotted layout, at most.
    fn slotted_size(&self, prefix_size: usize) -> usize {
        let suffix_bytes = self.key_bytes - self.suffix_count * prefix_size;
        self.count * SLOT_SIZE + self.varint_bytes + suffix_bytes + self.value_bytes
    }

    /// The layout of the entries; the end of a slotted one is not known yet.
    fn layout(&self, prefix_size: usize) -> Layout {
        let slotted = self.slotted_size(prefix_size);
        if self.fixed_size(prefix_size).is_none_or(|fixed| fixed > slotted) {
            return Layout::Slotted { end: 0 };
        }
        let suffix_size = self.key_size.saturating_sub(prefix_size) as u16;
        Layout::Fixed { suffix_size, value_size: self.value_size as u16 }
    }

    /// Bytes of a page of these entries, at most.
    fn page_size(&self, range: KeyRange<'_>) -> usize {
        let fences = range.low.len() + range.high.map_or(0, <[u8]>::len);
        self.page_size_with(fences, shared_prefix(range))
    }

    /// As `page_size`, for fences of `fence_bytes`; a shorter prefix never makes the page smaller.
    fn page_size_with(&self, fence_bytes: usize, prefix_size: usize) -> usize {
        let slotted = self.slotted_size(prefix_size);
        let entries = self.fixed_size(prefix_size).map_or(slotted, |fixed| fixed.min(slotted));
        HEADER_SIZE + fence_bytes + entries
    }
}

/// Size of the prefix that every key between the fences shares.
fn shared_prefix(range: KeyRange<'_>) -> usize {
    range.high.map_or(0, |high| common_size(range.low, high))
}

/// The ends of all pages but the last.
fn plan(shape: Shape, range: KeyRange<'_>, items: &[Item<'_>]) -> Result<Vec<usize>, NodeError> {
    if Sizes::of(items).page_size(range) <= shape.page_size {
        return Ok(Vec::new());
    }
    let full = plan_full(shape, range, items)?;
    let page_count = full.len() + 1;
    let other = match shape.fill {
        FillPolicy::Append => None,
        FillPolicy::Balanced => plan_even(shape, range, items, page_count),
        FillPolicy::Behind { end } => plan_behind(shape, range, items, end, page_count)?
            .or_else(|| plan_even(shape, range, items, page_count)),
    };
    Ok(other.unwrap_or(full))
}

/// Cuts before item `end` and fills the pages on either side from the left; `None` when this takes
/// more than `page_count` pages.
fn plan_behind(
    shape: Shape,
    range: KeyRange<'_>,
    items: &[Item<'_>],
    end: usize,
    page_count: usize,
) -> Result<Option<Vec<usize>>, NodeError> {
    let (Some(left), Some(right)) = (items.get(..end), items.get(end..)) else { return Ok(None) };
    let fence = fence(items, end);
    let mut cuts = plan_full(shape, KeyRange { high: Some(fence), ..range }, left)?;
    cuts.push(end);
    let behind = plan_full(shape, KeyRange { low: fence, ..range }, right)?;
    cuts.extend(behind.into_iter().map(|cut| end + cut));
    Ok((cuts.len() < page_count).then_some(cuts))
}

/// Fills page after page from the left.
fn plan_full(
    shape: Shape,
    range: KeyRange<'_>,
    items: &[Item<'_>],
) -> Result<Vec<usize>, NodeError> {
    let mut cuts = Vec::new();
    let (mut start, mut low) = (0, range.low);
    while start < items.len() {
        let end = page_end(shape, KeyRange { low, high: range.high }, items, start);
        if end == start {
            return Err(NodeError::NoRoom);
        }
        if end < items.len() {
            cuts.push(end);
            low = fence(items, end);
        }
        start = end;
    }
    Ok(cuts)
}

/// End of a page that begins at `start`; `start` itself when nothing fits.
fn page_end(shape: Shape, range: KeyRange<'_>, items: &[Item<'_>], start: usize) -> usize {
    let mut sizes = Sizes::default();
    let mut end = start;
    for (index, item) in items.iter().enumerate().skip(start) {
        sizes.add(item);
        let next = index + 1;
        let fits_any = |(behind, _): &Item<'_>| {
            // Upper bound: the whole key as the fence, and no prefix shared with the low fence.
            sizes.page_size_with(range.low.len() + behind.len(), 0) <= shape.page_size
        };
        if items.get(next).is_some_and(fits_any) {
            end = next;
            continue;
        }
        let high = if next == items.len() { range.high } else { Some(fence(items, next)) };
        if sizes.page_size(KeyRange { low: range.low, high }) <= shape.page_size {
            end = next;
        } else if end > start {
            break;
        }
    }
    end
}

/// Cuts into `page_count` pages of about the same weight; `None` when one of them would not fit.
fn plan_even(
    shape: Shape,
    range: KeyRange<'_>,
    items: &[Item<'_>],
    page_count: usize,
) -> Option<Vec<usize>> {
    let weight = |item: &Item<'_>| item.0.len() + payload_size(&item.1) + SLOT_SIZE;
    let total: usize = items.iter().map(weight).sum();
    let mut cuts = Vec::with_capacity(page_count - 1);
    let goal_of = |cut_count: usize| total * (cut_count + 1) / page_count;
    let (mut sum, mut goal) = (0, goal_of(0));
    for (index, item) in items.iter().enumerate() {
        let own = weight(item);
        if cuts.len() + 1 < page_count && sum + own / 2 >= goal && index > 0 {
            cuts.push(index);
            goal = goal_of(cuts.len());
        }
        sum += own;
    }
    pages_fit(shape, range, items, &cuts).then_some(cuts)
}

fn pages_fit(shape: Shape, range: KeyRange<'_>, items: &[Item<'_>], cuts: &[usize]) -> bool {
    let (mut start, mut low) = (0, range.low);
    cuts.iter().copied().chain([items.len()]).all(|end| {
        let high = if end == items.len() { range.high } else { Some(fence(items, end)) };
        let content = items.get(start..end).unwrap_or(&[]);
        let fits = Sizes::of(content).page_size(KeyRange { low, high }) <= shape.page_size;
        (start, low) = (end, high.unwrap_or(&[]));
        fits && !content.is_empty()
    })
}

/// Writes one page; the entries are known to fit.
fn write_page(shape: Shape, range: KeyRange<'_>, items: &[Item<'_>]) -> Vec<u8> {
    let prefix_size = shared_prefix(range);
    let layout = Sizes::of(items).layout(prefix_size);
    let mut image = Vec::with_capacity(shape.page_size);
    header_of(shape, range, items.len(), layout).encode(&mut image);
    image.extend_from_slice(range.low);
    image.extend_from_slice(range.high.unwrap_or(&[]));
    match layout {
        Layout::Fixed { suffix_size, .. } => {
            write_fixed(items, prefix_size, usize::from(suffix_size), &mut image);
        }
        Layout::Slotted { .. } => {
            write_slotted(items, prefix_size, &mut image);
            let end = (image.len() as u16).to_le_bytes();
            image[LAYOUT_OFFSET..LAYOUT_OFFSET + end.len()].copy_from_slice(&end);
        }
    }
    assert!(image.len() <= shape.page_size, "a planned page fits");
    image.resize(shape.page_size, 0xFF);
    image
}

fn header_of(shape: Shape, range: KeyRange<'_>, count: usize, layout: Layout) -> Header {
    Header {
        is_inner: shape.level > 0,
        has_high: range.high.is_some(),
        level: shape.level,
        tree: shape.tree,
        count: count as u16,
        prefix_size: shared_prefix(range) as u16,
        low_size: range.low.len() as u16,
        high_size: range.high.map_or(0, <[u8]>::len) as u16,
        layout,
    }
}

fn write_fixed(items: &[Item<'_>], prefix_size: usize, suffix_size: usize, out: &mut Vec<u8>) {
    for (index, (key, payload)) in items.iter().enumerate() {
        match payload {
            Payload::Value(value) => {
                out.extend_from_slice(&key[prefix_size..]);
                out.extend_from_slice(value.bytes());
            }
            Payload::Child(child) => {
                if index == 0 {
                    // The low fence holds the first separator (N2).
                    out.resize(out.len() + suffix_size, 0);
                } else {
                    out.extend_from_slice(&key[prefix_size..]);
                }
                out.extend_from_slice(&child.0.to_le_bytes());
            }
        }
    }
}

fn write_slotted(items: &[Item<'_>], prefix_size: usize, out: &mut Vec<u8>) {
    let slots = out.len();
    out.resize(slots + items.len() * SLOT_SIZE, 0);
    for (index, (key, payload)) in items.iter().enumerate() {
        let offset = (out.len() as u16).to_le_bytes();
        let slot = slots + index * SLOT_SIZE;
        out[slot..slot + SLOT_SIZE].copy_from_slice(&offset);
        match payload {
            Payload::Value(value) => write_leaf_record(&key[prefix_size..], value, out),
            Payload::Child(child) => {
                out.extend_from_slice(&child.0.to_le_bytes());
                let suffix = if index == 0 { &[] } else { &key[prefix_size..] };
                out.extend_from_slice(suffix);
            }
        }
    }
}

fn write_leaf_record(suffix: &[u8], value: &ValueRef<'_>, out: &mut Vec<u8>) {
    let is_ref = u32::from(matches!(value, ValueRef::Ref(_)));
    put_varint(out, suffix.len() as u32);
    put_varint(out, 2 * value.bytes().len() as u32 + is_ref);
    out.extend_from_slice(suffix);
    out.extend_from_slice(value.bytes());
}
