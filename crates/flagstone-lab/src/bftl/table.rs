//! The node translation table: which pages hold units of which node, and which page no node needs.

use std::collections::BTreeSet;

use super::node::NodeId;
use super::{BftlError, Mistake};

/// Bytes of a place on a list, and of its head.
const ADDRESS_SIZE: usize = 4;

/// Lists of pages by node, and nodes by page as counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    /// Pages of each node, oldest first; none where the number is free.
    lists: Vec<Option<Vec<u32>>>,
    /// Lists that name each page.
    users: Vec<u16>,
    /// Free numbers of nodes.
    free_nodes: Vec<NodeId>,
    /// Pages that were written and that no list names any more.
    free_pages: Vec<u32>,
    /// Places on all lists.
    places: usize,
    mistake: Mistake,
}

impl Table {
    pub(super) fn new(mistake: Mistake) -> Self {
        Self { mistake, ..Self::default() }
    }

    /// A number for a new node, whose list is empty.
    pub(super) fn new_node(&mut self) -> NodeId {
        let node = self.free_nodes.pop().unwrap_or(self.lists.len() as NodeId);
        self.take(node);
        node
    }

    /// Makes `node` exist.
    pub(super) fn take(&mut self, node: NodeId) {
        let place = node as usize;
        if self.lists.len() <= place {
            self.lists.resize(place + 1, None);
        }
        self.lists[place].get_or_insert_default();
    }

    /// The pages of a node, oldest first.
    pub(super) fn list(&self, node: NodeId) -> Result<&[u32], BftlError> {
        let list = self.lists.get(node as usize).and_then(Option::as_deref);
        list.ok_or(BftlError::NoNode(node))
    }

    /// A page was written with units of a node; `is_base` when nothing before it counts (B2).
    pub(super) fn add(&mut self, node: NodeId, page: u32, is_base: bool) -> Result<(), BftlError> {
        let list = self.lists.get_mut(node as usize).and_then(Option::as_mut);
        let list = list.ok_or(BftlError::NoNode(node))?;
        let keep = !is_base || self.mistake == Mistake::ListKept;
        let old = if keep { Vec::new() } else { core::mem::take(list) };
        list.push(page);
        self.places += 1;
        let place = page as usize;
        if self.users.len() <= place {
            self.users.resize(place + 1, 0);
        }
        self.users[place] += 1;
        self.give_up(&old);
        Ok(())
    }

    /// A node is no more.
    pub(super) fn forget(&mut self, node: NodeId) {
        let Some(old) = self.lists.get_mut(node as usize).and_then(Option::take) else { return };
        self.give_up(&old);
        self.free_nodes.push(node);
    }

    fn give_up(&mut self, pages: &[u32]) {
        self.places -= pages.len();
        for page in pages {
            let users = &mut self.users[*page as usize];
            *users = users.saturating_sub(1);
            // Rule B4.
            if *users == 0 || self.mistake == Mistake::SharedPageFreed {
                self.free_pages.push(*page);
            }
        }
    }

    /// A page to be written again, if there is any.
    pub(super) fn free_page(&mut self) -> Option<u32> {
        self.free_pages.pop()
    }

    /// A page was written; it may be written again where no list names it.
    pub(super) fn free_if_unused(&mut self, page: u32) {
        if self.users.get(page as usize).is_none_or(|users| *users == 0) {
            self.free_pages.push(page);
        }
    }

    /// Nodes other than these are no more.
    pub(super) fn keep(&mut self, nodes: &BTreeSet<NodeId>) {
        let others: Vec<NodeId> =
            (0..self.lists.len() as NodeId).filter(|node| !nodes.contains(node)).collect();
        others.iter().for_each(|node| self.forget(*node));
        self.free_nodes = others;
    }

    /// The longest list.
    #[cfg(test)]
    pub(super) fn longest(&self) -> usize {
        self.lists.iter().flatten().map(Vec::len).max().unwrap_or(0)
    }

    /// Bytes of memory: a head a node, a place a page on its list, a byte a page for its users.
    pub(super) fn bytes(&self) -> usize {
        (self.lists.len() + self.places + self.free_pages.len()) * ADDRESS_SIZE + self.users.len()
    }
}
