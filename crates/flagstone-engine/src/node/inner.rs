//! Changing the children of an inner node.

use std::ops::Range;

use flagstone_space::LogicalPage;

use super::{Built, FillPolicy, NodeError, NodeView, build_inner};
use crate::delta::KeyRange;

/// Separators and children while they change; keys lie in one buffer.
struct Children {
    keys: Vec<u8>,
    rows: Vec<(Range<usize>, LogicalPage)>,
}

impl Children {
    fn of(view: &NodeView<'_>) -> Self {
        let mut children = Self { keys: Vec::new(), rows: Vec::with_capacity(view.count() + 1) };
        children.extend(view);
        children
    }

    /// Adds the children of a node whose keys lie after all others.
    fn extend(&mut self, view: &NodeView<'_>) {
        for index in 0..view.count() {
            let start = self.keys.len();
            view.key_into(index, &mut self.keys);
            let Some(child) = view.child(index) else { continue };
            self.rows.push((start..self.keys.len(), child));
        }
    }

    fn build(
        &self,
        (tree, level): (u32, u8),
        range: KeyRange<'_>,
        page_size: usize,
        fill: FillPolicy,
    ) -> Result<Vec<Built>, NodeError> {
        let rows = self.rows.iter().map(|(place, child)| (&self.keys[place.clone()], *child));
        build_inner((tree, level), range, rows, page_size, fill)
    }

    fn search(&self, key: &[u8]) -> Result<usize, usize> {
        self.rows.binary_search_by(|(place, _)| self.keys[place.clone()].cmp(key))
    }

    fn remove(&mut self, key: &[u8]) {
        if let Ok(index) = self.search(key) {
            self.rows.remove(index);
        }
    }

    /// Sets the child of a separator and returns the separator's place.
    fn put(&mut self, key: &[u8], child: LogicalPage) -> Arrival {
        match self.search(key) {
            Ok(index) => {
                self.rows[index].1 = child;
                Arrival::Replaced
            }
            Err(index) => {
                let start = self.keys.len();
                self.keys.extend_from_slice(key);
                self.rows.insert(index, (start..self.keys.len(), child));
                if index + 1 == self.rows.len() { Arrival::Last } else { Arrival::Inside }
            }
        }
    }
}

/// Place at which a separator was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    Replaced,
    Inside,
    Last,
}

/// The inner node with separators removed, then children set; several nodes when one is too small.
///
/// # Errors
///
/// `LowUncovered` when no child is left for the low key; `KeyTooLarge`, `PageSize`.
pub fn inner_with(
    view: &NodeView<'_>,
    puts: &[(&[u8], LogicalPage)],
    deletes: &[&[u8]],
    page_size: usize,
) -> Result<Vec<Built>, NodeError> {
    let mut children = Children::of(view);
    deletes.iter().for_each(|key| children.remove(key));
    let mut fill = FillPolicy::Append;
    for (key, child) in puts {
        if children.put(key, *child) == Arrival::Inside {
            fill = FillPolicy::Balanced;
        }
    }
    let range = KeyRange { low: view.low(), high: view.high() };
    children.build((view.tree(), view.level()), range, page_size, fill)
}

/// The children of two neighbours in one inner node, or in several equally full ones when one is
/// too small.
///
/// # Errors
///
/// As [`inner_with`].
pub(crate) fn join_inner(
    left: &NodeView<'_>,
    right: &NodeView<'_>,
    page_size: usize,
) -> Result<Vec<Built>, NodeError> {
    let mut children = Children::of(left);
    children.extend(right);
    let range = KeyRange { low: left.low(), high: right.high() };
    children.build((left.tree(), left.level()), range, page_size, FillPolicy::Balanced)
}
