//! All trees of a database, by their numbers.
//!
//! A number names one table for ever: a handle, a named snapshot or a record of the log that still
//! knows the number means that table or none. So a table that is gone takes neither memory nor time.

use std::collections::{BTreeMap, btree_map};

use crate::engine::store::catalog::{TREE_ID_MAX, Tree};

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Trees {
    trees: BTreeMap<u32, Tree>,
    /// No table ever had this number or a higher one.
    next: u32,
}

impl Trees {
    /// The catalog alone.
    pub(crate) fn new() -> Self {
        let catalog = Tree::catalog();
        Self { next: catalog.id + 1, trees: BTreeMap::from([(catalog.id, catalog)]) }
    }

    /// How many there are, the catalog among them.
    pub(crate) fn len(&self) -> usize {
        self.trees.len()
    }

    pub(crate) fn get(&self, number: usize) -> Option<&Tree> {
        self.trees.get(&u32::try_from(number).ok()?)
    }

    pub(crate) fn get_mut(&mut self, number: usize) -> Option<&mut Tree> {
        self.trees.get_mut(&u32::try_from(number).ok()?)
    }

    /// In the order of their numbers.
    pub(crate) fn iter(&self) -> btree_map::Values<'_, u32, Tree> {
        self.trees.values()
    }

    /// Trees with this number or a higher one, in order.
    pub(crate) fn from(&self, number: usize) -> impl Iterator<Item = &Tree> {
        let first = u32::try_from(number).unwrap_or(u32::MAX);
        self.trees.range(first..).map(|(_, tree)| tree)
    }

    /// The first of these trees.
    pub(crate) fn first_from(&self, number: usize) -> Option<&Tree> {
        self.trees.range(u32::try_from(number).ok()?..).next().map(|(_, tree)| tree)
    }

    /// The number of the next table.
    pub(crate) const fn next(&self) -> u32 {
        self.next
    }

    /// Numbers below this one have had their table.
    pub(crate) fn note_next(&mut self, next: u32) {
        self.next = self.next.max(next);
    }

    /// The tree of that number, made where there is none; none where no table may have it.
    pub(crate) fn slot(&mut self, id: u32) -> Option<&mut Tree> {
        if id > TREE_ID_MAX {
            return None;
        }
        self.note_next(id + 1);
        Some(self.trees.entry(id).or_insert_with(|| Tree::new(id, None)))
    }

    pub(crate) fn remove(&mut self, id: u32) -> Option<Tree> {
        self.trees.remove(&id)
    }

    /// Takes out trees that the catalog does not name.
    pub(crate) fn take_nameless(&mut self) -> Vec<Tree> {
        let ids: Vec<u32> =
            self.trees.values().filter(|tree| tree.root.is_none()).map(|tree| tree.id).collect();
        ids.into_iter().filter_map(|id| self.trees.remove(&id)).collect()
    }
}

impl<'a> IntoIterator for &'a Trees {
    type Item = &'a Tree;
    type IntoIter = btree_map::Values<'a, u32, Tree>;

    fn into_iter(self) -> Self::IntoIter {
        self.trees.values()
    }
}

impl<'a> IntoIterator for &'a mut Trees {
    type Item = &'a mut Tree;
    type IntoIter = btree_map::ValuesMut<'a, u32, Tree>;

    fn into_iter(self) -> Self::IntoIter {
        self.trees.values_mut()
    }
}
