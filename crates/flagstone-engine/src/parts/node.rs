//! The node formats.

use std::ops::Range;

use flagstone_space::LogicalPage;

use crate::delta::KeyRange;
use crate::node::{self, Built, FillPolicy, NodeView, ValueRef};

/// Longest key that a page of `page_size` bytes takes.
#[must_use]
pub fn key_size_max(page_size: usize) -> usize {
    node::key_size_max(page_size)
}

/// Longest value that a leaf of `page_size` bytes takes under a key of `key_size` bytes.
#[must_use]
pub fn value_size_max(page_size: usize, key_size: usize) -> usize {
    node::value_size_max(page_size, key_size)
}

/// A value as a leaf holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// Whether they describe a value that lies elsewhere.
    pub is_ref: bool,
}

/// A page made of entries: the first key of its range, and its image.
pub type Part = (Vec<u8>, Vec<u8>);

/// A node over the payload of a page.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a>(NodeView<'a>);

impl<'a> Node<'a> {
    /// Reads untrusted bytes after checking all of them.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        NodeView::parse(bytes).ok().map(Self)
    }

    /// Reads bytes that `parse` has accepted, or that were built here.
    #[must_use]
    pub fn trusted(bytes: &'a [u8]) -> Self {
        Self(NodeView::trusted(bytes))
    }

    /// The tree it belongs to.
    #[must_use]
    pub fn tree(&self) -> u32 {
        self.0.tree()
    }

    /// Height above the leaves.
    #[must_use]
    pub fn level(&self) -> u8 {
        self.0.level()
    }

    /// Entries or children.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.count()
    }

    /// No key is below it.
    #[must_use]
    pub fn low(&self) -> &'a [u8] {
        self.0.low()
    }

    /// Every key is below it; none is infinity.
    #[must_use]
    pub fn high(&self) -> Option<&'a [u8]> {
        self.0.high()
    }

    /// Bytes of the page.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.0.bytes().len()
    }

    /// Bytes in use.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.0.used_bytes()
    }

    /// Finds an entry of a leaf, or where it would stand.
    pub fn search(&self, key: &[u8]) -> Result<usize, usize> {
        self.0.search(key)
    }

    /// Appends the key of entry `index`, or the separator of a child.
    pub fn key_into(&self, index: usize, out: &mut Vec<u8>) {
        self.0.key_into(index, out);
    }

    /// The value of entry `index` of a leaf.
    #[must_use]
    pub fn cell(&self, index: usize) -> Option<Cell<'a>> {
        let value = self.0.entry(index)?.value;
        Some(Cell { bytes: value.bytes(), is_ref: matches!(value, ValueRef::Ref(_)) })
    }

    /// Where the value of entry `index` of a leaf lies in the page.
    #[must_use]
    pub fn value_range(&self, index: usize) -> Option<Range<usize>> {
        self.0.value_range(index)
    }

    /// Child `index` of an inner node.
    #[must_use]
    pub fn child(&self, index: usize) -> Option<LogicalPage> {
        self.0.child(index)
    }

    /// The child that covers `key`, with its index.
    #[must_use]
    pub fn child_for(&self, key: &[u8]) -> Option<(usize, LogicalPage)> {
        self.0.child_for(key)
    }

    /// The child that holds the largest keys below `bound`, or of all.
    #[must_use]
    pub fn child_below(&self, bound: Option<&[u8]>) -> Option<(usize, LogicalPage)> {
        self.0.child_below(bound)
    }
}

/// A leaf without entries for all keys of a tree.
#[must_use]
pub fn empty_leaf(tree: u32, page_size: usize) -> Vec<u8> {
    node::empty_leaf(tree, page_size)
}

/// One leaf of ascending entries between two fences; none when they do not fit.
#[must_use]
pub fn leaf<'a>(
    tree: u32,
    (low, high): (&[u8], Option<&[u8]>),
    entries: impl Iterator<Item = (&'a [u8], Cell<'a>)>,
    page_size: usize,
) -> Option<Vec<u8>> {
    let entries = entries.map(|(key, cell)| match cell.is_ref {
        true => (key, ValueRef::Ref(cell.bytes)),
        false => (key, ValueRef::Inline(cell.bytes)),
    });
    let range = KeyRange { low, high };
    let built = node::build_leaves(tree, range, entries, page_size, FillPolicy::Balanced);
    single(built.ok()?)
}

/// The leaf with an entry put before entry `index`, where it belongs: what [`leaf`] gives, sooner.
/// None when it has to be asked.
#[must_use]
pub fn leaf_with(node: &Node<'_>, index: usize, key: &[u8], cell: Cell<'_>) -> Option<Vec<u8>> {
    let value = match cell.is_ref {
        true => ValueRef::Ref(cell.bytes),
        false => ValueRef::Inline(cell.bytes),
    };
    node::with_inserted(&node.0, index, key, value)
}

/// One inner node of ascending separators with their children; none when they do not fit.
#[must_use]
pub fn inner<'a>(
    (tree, level): (u32, u8),
    (low, high): (&[u8], Option<&[u8]>),
    children: impl Iterator<Item = (&'a [u8], LogicalPage)>,
    page_size: usize,
) -> Option<Vec<u8>> {
    let range = KeyRange { low, high };
    let fill = FillPolicy::Balanced;
    single(node::build_inner((tree, level), range, children, page_size, fill).ok()?)
}

/// An inner node with separators removed, then children set; several when one is too small.
#[must_use]
pub fn inner_with(
    node: &Node<'_>,
    puts: &[(&[u8], LogicalPage)],
    deletes: &[&[u8]],
    page_size: usize,
) -> Option<Vec<Part>> {
    let built = node::inner_with(&node.0, puts, deletes, page_size).ok()?;
    Some(built.into_iter().map(|page| (page.low_key, page.image)).collect())
}

fn single(mut built: Vec<Built>) -> Option<Vec<u8>> {
    let first = built.pop()?;
    built.is_empty().then_some(first.image)
}
