//! Changes of page images: the same code before a crash and in redo.
//!
//! Owns pure functions from an image to the next. Never looks at a pool or a log.

use std::collections::BTreeMap;

use flagstone_engine::node::{self as node_format, NodeView, ValueRef};
use flagstone_space::LogicalPage;

use super::record::{Edit, OwnCell, Part};

/// Result of an edit of a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Edited {
    /// These bytes of the image change.
    Bytes(usize, Vec<u8>),
    /// A new image.
    Image(Vec<u8>),
}

/// Why an edit is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoEdit {
    /// The leaf has to be split first.
    TooFull,
    /// The leaf lacks the content that the edit changes.
    Mismatch,
}

/// Longest key that parts leaves whole: as in the engine that this one is compared with.
const WHOLE_SEPARATOR_SIZE_MAX: usize = 16;

/// The value of `key` in a leaf.
pub(crate) fn cell_of(image: &[u8], key: &[u8]) -> Option<OwnCell> {
    let node = NodeView::trusted(image);
    let cell = node.value(node.search(key).ok()?)?;
    Some(OwnCell { bytes: cell.bytes().to_vec(), is_ref: cell.is_ref() })
}

/// Applies an edit to the entry of `key`.
pub(crate) fn edit(image: &[u8], key: &[u8], edit: &Edit) -> Result<Edited, NoEdit> {
    let node = NodeView::trusted(image);
    let place = node.search(key);
    let (index, cell) = match (place, edit) {
        (Err(index), Edit::Insert(new)) => return with_cell(&node, index, 0, key, Some(new)),
        (Ok(_), Edit::Insert(_)) | (Err(_), _) => return Err(NoEdit::Mismatch),
        (Ok(index), _) => (index, node.value(index).ok_or(NoEdit::Mismatch)?),
    };
    match edit {
        Edit::Insert(_) => Err(NoEdit::Mismatch),
        Edit::Remove => with_cell(&node, index, 1, key, None),
        Edit::Replace(new) => with_cell(&node, index, 1, key, Some(new)),
        Edit::Splice { offset, old_size, new } => {
            let end = offset.checked_add(*old_size).ok_or(NoEdit::Mismatch)?;
            let range = cell.bytes().get(*offset..end).ok_or(NoEdit::Mismatch)?;
            if range.len() == new.len() {
                let start = node.value_range(index).ok_or(NoEdit::Mismatch)?.start;
                return Ok(Edited::Bytes(start + offset, new.clone()));
            }
            let mut bytes = cell.bytes().to_vec();
            bytes.splice(*offset..end, new.iter().copied());
            with_cell(&node, index, 1, key, Some(&OwnCell { bytes, is_ref: cell.is_ref() }))
        }
    }
}

/// The keys of a node, one behind the other.
struct Keys {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Keys {
    fn of(node: &NodeView<'_>) -> Self {
        let mut keys = Self { bytes: Vec::new(), ends: Vec::with_capacity(node.count()) };
        for index in 0..node.count() {
            node.key_into(index, &mut keys.bytes);
            keys.ends.push(keys.bytes.len());
        }
        keys
    }

    fn get(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[index]]
    }
}

/// The leaf with `removed` entries from `index` on taken out and one put there.
fn with_cell(
    node: &NodeView<'_>,
    index: usize,
    removed: usize,
    key: &[u8],
    new: Option<&OwnCell>,
) -> Result<Edited, NoEdit> {
    let cell = new.map(|new| new.as_value());
    if let (0, Some(cell)) = (removed, cell)
        && let Some(image) = node_format::with_inserted(node, index, key, cell)
    {
        return Ok(Edited::Image(image));
    }
    let keys = Keys::of(node);
    let entry = |at: usize| node.value(at).map(|cell| (keys.get(at), cell));
    let new = cell.map(|cell| (key, cell));
    let before = (0..index).filter_map(entry);
    let after = (index + removed..node.count()).filter_map(entry);
    let entries = before.chain(new).chain(after);
    let image =
        node_format::leaf(node.tree(), (node.low(), node.high()), entries, node.bytes().len());
    image.map(Edited::Image).ok_or(NoEdit::TooFull)
}

/// The node with other fences, and the entries inside them; none when it needs more than a page.
pub(crate) fn with_fences(image: &[u8], low: &[u8], high: Option<&[u8]>) -> Option<Vec<u8>> {
    let node = NodeView::trusted(image);
    let keys = Keys::of(&node);
    let inside = |index: &usize| {
        let key = keys.get(*index);
        key >= low && high.is_none_or(|high| key < high)
    };
    let entries = (0..node.count()).filter(inside);
    let entries = entries.filter_map(|index| node.value(index).map(|cell| (keys.get(index), cell)));
    node_format::leaf(node.tree(), (low, high), entries, image.len())
}

/// Whether the leaf would fit a page if the entries of `sizes` had values of these sizes.
pub(crate) fn fits_with(image: &[u8], sizes: &BTreeMap<Vec<u8>, usize>) -> bool {
    let node = NodeView::trusted(image);
    let keys = Keys::of(&node);
    let mut all = sizes.clone();
    for index in 0..node.count() {
        let size = node.value(index).map_or(0, |cell| cell.bytes().len());
        let entry = all.entry(keys.get(index).to_vec()).or_default();
        *entry = size.max(*entry);
    }
    let filler = vec![0; all.values().copied().max().unwrap_or(0)];
    let cell = |size: &usize| ValueRef::Inline(&filler[..*size]);
    let entries = all.iter().map(|(key, size)| (key.as_slice(), cell(size)));
    node_format::leaf(node.tree(), (node.low(), node.high()), entries, image.len()).is_some()
}

/// Two halves of a leaf.
#[derive(Debug)]
pub(crate) struct Halves {
    /// First key of the right one.
    pub(crate) separator: Vec<u8>,
    pub(crate) left: Vec<u8>,
    pub(crate) right: Vec<u8>,
}

/// Splits a leaf for an entry of `key`: behind its last entry when the key comes after all of
/// them, else in the middle of its bytes.
pub(crate) fn split(image: &[u8], key: &[u8]) -> Option<Halves> {
    let node = NodeView::trusted(image);
    let keys = Keys::of(&node);
    let count = node.count();
    let last = keys.get(count.checked_sub(1)?);
    if key > last
        && let Some(halves) = halves(image, separator(last, key))
    {
        return Some(halves);
    }
    let weight = |index: usize| {
        keys.get(index).len() + node.value(index).map_or(0, |cell| cell.bytes().len()) + 4
    };
    let total: usize = (0..count).map(weight).sum();
    let mut sum = 0;
    let middle = (0..count).position(|index| {
        sum += weight(index);
        2 * sum >= total
    });
    let middle = (middle.unwrap_or(0) + 1).min(count - 1).max(1);
    if count < 2 {
        // One entry that leaves no room for another: they part between the two.
        let (left, right) = if key < last { (key, last) } else { (last, key) };
        return halves(image, separator(left, right));
    }
    halves(image, separator(keys.get(middle - 1), keys.get(middle)))
}

fn halves(image: &[u8], separator: Vec<u8>) -> Option<Halves> {
    let node = NodeView::trusted(image);
    let left = with_fences(image, node.low(), Some(&separator))?;
    let right = with_fences(image, &separator, node.high())?;
    Some(Halves { separator, left, right })
}

/// The shortest key that parts two; short ones of one size stay whole.
fn separator(left: &[u8], right: &[u8]) -> Vec<u8> {
    if left.len() == right.len() && right.len() <= WHOLE_SEPARATOR_SIZE_MAX {
        return right.to_vec();
    }
    let common = left.iter().zip(right).take_while(|(left, right)| left == right).count();
    right.get(..=common).unwrap_or(right).to_vec()
}

/// A node that was made: the first key of its range, and its image.
pub(crate) type NewNode = (Vec<u8>, Vec<u8>);

/// An inner node with separators removed, then children set; several when one is too small.
pub(crate) fn with_children(
    image: &[u8],
    deletes: &[Vec<u8>],
    puts: &[(Vec<u8>, LogicalPage)],
) -> Option<Vec<NewNode>> {
    let deletes: Vec<&[u8]> = deletes.iter().map(Vec::as_slice).collect();
    let puts: Vec<(&[u8], LogicalPage)> = puts.iter().map(|(k, c)| (k.as_slice(), *c)).collect();
    let built = node_format::inner_with(&NodeView::trusted(image), &puts, &deletes, image.len());
    Some(built.ok()?.into_iter().map(|node| (node.low_key, node.image)).collect())
}

/// Repeats one page's part of a change of shape; `image` is the page's content. None when the page
/// lacks the content that the part changes.
pub(crate) fn reshape(image: &[u8], part: &Part, page_size: usize) -> Option<Vec<u8>> {
    match part {
        Part::Image { image, .. } => {
            let mut whole = image.clone();
            whole.resize(page_size, 0xFF);
            NodeView::parse(&whole).ok()?;
            Some(whole)
        }
        Part::Fences { low, high, .. } => with_fences(image, low, high.as_deref()),
        Part::Children { deletes, puts, .. } => {
            let mut built = with_children(image, deletes, puts)?;
            let only = built.pop()?.1;
            built.is_empty().then_some(only)
        }
        Part::Free { .. } => None,
    }
}

/// An image without the 0xFF that fill it up.
pub(crate) fn trimmed(image: &[u8]) -> Vec<u8> {
    image[..NodeView::trusted(image).used_bytes().min(image.len())].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 512;

    fn put(image: &mut Vec<u8>, key: &[u8], value: &[u8]) -> Result<(), NoEdit> {
        let cell = OwnCell { bytes: value.to_vec(), is_ref: false };
        apply(image, edit(image, key, &Edit::Insert(cell))?);
        Ok(())
    }

    fn apply(image: &mut Vec<u8>, edited: Edited) {
        match edited {
            Edited::Image(new) => *image = new,
            Edited::Bytes(at, bytes) => image[at..at + bytes.len()].copy_from_slice(&bytes),
        }
    }

    fn full() -> Vec<u8> {
        let mut image = node_format::empty_leaf(3, SIZE);
        for number in 0_u64.. {
            if put(&mut image, &number.to_be_bytes(), &[7; 20]).is_err() {
                break;
            }
        }
        image
    }

    #[test]
    fn edits_change_one_entry() {
        let mut image = node_format::empty_leaf(3, SIZE);
        put(&mut image, b"b", b"two").unwrap();
        put(&mut image, b"a", b"one").unwrap();
        let splice = Edit::Splice { offset: 1, old_size: 1, new: b"N".to_vec() };
        let edited = edit(&image, b"a", &splice).unwrap();
        assert!(matches!(edited, Edited::Bytes(..)), "bytes of one size change in place");
        apply(&mut image, edited);
        assert_eq!(cell_of(&image, b"a").unwrap().bytes, b"oNe");
        let removed = edit(&image, b"b", &Edit::Remove).unwrap();
        apply(&mut image, removed);
        assert_eq!(cell_of(&image, b"b"), None);
        assert_eq!(edit(&image, b"b", &Edit::Remove), Err(NoEdit::Mismatch));
    }

    #[test]
    fn ascending_keys_leave_full_leaves_behind() {
        let image = full();
        let count = NodeView::trusted(&image).count();
        let halves = split(&image, &u64::MAX.to_be_bytes()).unwrap();
        assert_eq!(NodeView::trusted(&halves.left).count(), count);
        assert_eq!(NodeView::trusted(&halves.right).count(), 0);
    }

    #[test]
    fn other_keys_split_a_leaf_in_the_middle() {
        let image = full();
        let count = NodeView::trusted(&image).count();
        let halves = split(&image, &[0; 4]).unwrap();
        let (left, right) = (NodeView::trusted(&halves.left), NodeView::trusted(&halves.right));
        assert_eq!(left.count() + right.count(), count);
        assert!(left.count().abs_diff(right.count()) <= 2);
        assert_eq!(left.high(), Some(halves.separator.as_slice()));
        assert_eq!(right.low(), halves.separator);
    }

    #[test]
    fn a_reshaped_page_is_what_was_built_before_the_crash() {
        let image = full();
        let halves = split(&image, &[0; 4]).unwrap();
        let page = LogicalPage(1);
        let fences = Part::Fences { page, low: vec![], high: Some(halves.separator) };
        assert_eq!(reshape(&image, &fences, SIZE).unwrap(), halves.left);
        let whole = Part::Image { page, image: trimmed(&halves.right) };
        assert_eq!(reshape(&[], &whole, SIZE).unwrap(), halves.right);
        let damaged = Part::Image { page, image: vec![1, 2, 3] };
        assert_eq!(reshape(&[], &damaged, SIZE), None);
    }
}
