//! Inserting one entry into a leaf by moving bytes: a build would walk every entry again.
//!
//! Owns the case in which the layout stays. Every other case is left to a build, which picks the
//! layout by looking at all entries (N3). Both give the same image.

use super::layout::{HEADER_SIZE, Layout, SLOT_SIZE};
use super::{NodeView, ValueRef, key_size_max, value_size_max};
use crate::delta::put_varint;

/// Offset of the entry count in the header.
const COUNT_OFFSET: usize = 8;
/// Offset of the last record's end in the header.
const END_OFFSET: usize = super::layout::LAYOUT_OFFSET;

/// Keys shorter than this take one byte for their size, with or without a prefix.
const SHORT_KEY_SIZE: usize = 128;

const _: () = assert!(COUNT_OFFSET < END_OFFSET && END_OFFSET + 2 <= HEADER_SIZE);

/// The leaf with an entry added before entry `index`, its place in key order; `None` when a build
/// has to decide, even if only that the entry does not fit.
#[must_use]
pub fn with_inserted(
    view: &NodeView<'_>,
    index: usize,
    key: &[u8],
    value: ValueRef<'_>,
) -> Option<Vec<u8>> {
    debug_assert_eq!(view.search(key), Err(index), "the entry belongs there (N1)");
    let page_size = view.bytes().len();
    let size_max = value_size_max(page_size, key.len());
    let is_plain = key.len() < SHORT_KEY_SIZE.min(key_size_max(page_size) + 1)
        && matches!(value, ValueRef::Inline(bytes) if bytes.len() <= size_max);
    if !is_plain || view.count() == 0 || !view.is_leaf() || index > view.count() {
        return None;
    }
    let suffix = key.strip_prefix(view.prefix())?;
    match view.header().layout {
        Layout::Fixed { suffix_size, value_size } => {
            let sizes = (usize::from(suffix_size), usize::from(value_size));
            let is_same = (suffix.len(), value.bytes().len()) == sizes;
            is_same.then(|| insert_fixed(view, index, suffix, value.bytes()))?
        }
        Layout::Slotted { .. } => insert_slotted(view, index, suffix, value.bytes()),
    }
}

fn insert_fixed(view: &NodeView<'_>, index: usize, suffix: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    let stride = suffix.len() + value.len();
    let (start, end) = (view.header().entries_start(), view.used_bytes());
    let (before, after) = view.bytes().get(..end)?.split_at_checked(start + index * stride)?;
    let mut image = Vec::with_capacity(view.bytes().len());
    for part in [before, suffix, value, after] {
        image.extend_from_slice(part);
    }
    finish(view, image)
}

fn insert_slotted(
    view: &NodeView<'_>,
    index: usize,
    suffix: &[u8],
    value: &[u8],
) -> Option<Vec<u8>> {
    let bytes = view.bytes();
    let (start, end) = (view.header().entries_start(), view.used_bytes());
    let records = start + view.count() * SLOT_SIZE;
    let (before, after) = bytes.get(start..records)?.split_at_checked(index * SLOT_SIZE)?;
    let place = match after.first_chunk() {
        Some(slot) => usize::from(u16::from_le_bytes(*slot)),
        None => end,
    };
    let mut record = Vec::with_capacity(suffix.len() + value.len() + 4);
    put_varint(&mut record, suffix.len() as u32);
    put_varint(&mut record, 2 * value.len() as u32);
    record.extend_from_slice(suffix);
    record.extend_from_slice(value);
    if end + SLOT_SIZE + record.len() > bytes.len() {
        return None;
    }
    let mut image = Vec::with_capacity(bytes.len());
    image.extend_from_slice(bytes.get(..start)?);
    push_slots(&mut image, before, SLOT_SIZE);
    image.extend(((place + SLOT_SIZE) as u16).to_le_bytes());
    push_slots(&mut image, after, SLOT_SIZE + record.len());
    image.extend_from_slice(bytes.get(records..place)?);
    image.extend_from_slice(&record);
    image.extend_from_slice(bytes.get(place..end)?);
    let end = (image.len() as u16).to_le_bytes();
    image.get_mut(END_OFFSET..END_OFFSET + 2)?.copy_from_slice(&end);
    finish(view, image)
}

/// Appends slots whose records lie `more` bytes farther on.
fn push_slots(out: &mut Vec<u8>, slots: &[u8], more: usize) {
    for slot in slots.chunks_exact(SLOT_SIZE) {
        let old = slot.first_chunk().map_or(0, |slot| u16::from_le_bytes(*slot));
        out.extend((old + more as u16).to_le_bytes());
    }
}

/// Counts the new entry and fills the page up.
fn finish(view: &NodeView<'_>, mut image: Vec<u8>) -> Option<Vec<u8>> {
    let page_size = view.bytes().len();
    if image.len() > page_size {
        return None;
    }
    let count = (view.count() as u16 + 1).to_le_bytes();
    image.get_mut(COUNT_OFFSET..COUNT_OFFSET + 2)?.copy_from_slice(&count);
    image.resize(page_size, 0xFF);
    Some(image)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delta::KeyRange;
    use crate::node::{FillPolicy, build_leaves};

    const PAGE_SIZE: usize = 512;

    fn built(range: KeyRange<'_>, rows: &[(Vec<u8>, Vec<u8>)]) -> Option<Vec<u8>> {
        let rows = rows.iter().map(|(key, value)| (&key[..], ValueRef::Inline(value)));
        let mut pages = build_leaves(3, range, rows, PAGE_SIZE, FillPolicy::Balanced).unwrap();
        let page = pages.pop()?;
        pages.is_empty().then_some(page.image)
    }

    /// Goal: an insert gives the same image as a build, and leaves to a build only the cases that
    /// need one. Method: rows of one size and of many, with and without a prefix, inserted one by
    /// one at seeded places until the page is full.
    #[test]
    fn an_insert_gives_what_a_build_gives() {
        let mut state = 7_u64;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let prefixed = KeyRange { low: b"key-00", high: Some(b"key-99") };
        for (range, is_mixed) in
            [(KeyRange::ALL, false), (KeyRange::ALL, true), (prefixed, false), (prefixed, true)]
        {
            let mut rows: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
            let mut moved = 0;
            while let Some(image) = built(range, &rows) {
                let extra = if is_mixed { draw(5) } else { 0 };
                let key = format!("key-{:06}{}", draw(980_000), "x".repeat(extra)).into_bytes();
                let Err(index) = rows.binary_search_by(|row| row.0.cmp(&key)) else { continue };
                let value = vec![draw(255) as u8; 9 + extra];
                let view = NodeView::parse(&image).unwrap();
                let inserted = with_inserted(&view, index, &key, ValueRef::Inline(&value));
                rows.insert(index, (key, value));
                if let Some(inserted) = inserted {
                    assert_eq!(Some(inserted), built(range, &rows), "{} rows", rows.len());
                    moved += 1;
                }
            }
            // Left to a build: the first entry, the first entry of another size, and the entry that
            // does not fit.
            assert!(moved + 3 >= rows.len(), "{moved} of {} rows were moved in", rows.len());
        }
    }

    #[test]
    fn what_a_build_has_to_decide_is_left_to_it() {
        let row = |key: &str, size: usize| (key.as_bytes().to_vec(), vec![1; size]);
        let image = built(KeyRange::ALL, &[row("b", 4)]).unwrap();
        let view = NodeView::parse(&image).unwrap();
        let insert = |value| with_inserted(&view, 0, b"a", value);
        assert!(insert(ValueRef::Inline(&[0; 4])).is_some());
        assert!(insert(ValueRef::Inline(&[0; 5])).is_none(), "another layout");
        assert!(insert(ValueRef::Ref(&[0; 4])).is_none(), "a descriptor");
        assert!(insert(ValueRef::Inline(&[0; 500])).is_none(), "more than a page takes");
    }
}
