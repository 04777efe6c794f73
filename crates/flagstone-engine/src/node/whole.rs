//! Nodes built whole or not at all: for an engine that decides itself where nodes split.

use flagstone_space::LogicalPage;

use super::{Built, FillPolicy, ValueRef, build_inner, build_leaves};
use crate::delta::KeyRange;

/// One leaf of ascending entries between two fences; `None` when they do not fit.
#[must_use]
pub fn leaf<'a>(
    tree: u32,
    (low, high): (&[u8], Option<&[u8]>),
    entries: impl Iterator<Item = (&'a [u8], ValueRef<'a>)>,
    page_size: usize,
) -> Option<Vec<u8>> {
    let range = KeyRange { low, high };
    single(build_leaves(tree, range, entries, page_size, FillPolicy::Balanced).ok()?)
}

/// One inner node of ascending separators with their children; `None` when they do not fit.
#[must_use]
pub fn inner<'a>(
    (tree, level): (u32, u8),
    (low, high): (&[u8], Option<&[u8]>),
    children: impl Iterator<Item = (&'a [u8], LogicalPage)>,
    page_size: usize,
) -> Option<Vec<u8>> {
    let range = KeyRange { low, high };
    single(build_inner((tree, level), range, children, page_size, FillPolicy::Balanced).ok()?)
}

fn single(mut built: Vec<Built>) -> Option<Vec<u8>> {
    let first = built.pop()?;
    built.is_empty().then_some(first.image)
}
