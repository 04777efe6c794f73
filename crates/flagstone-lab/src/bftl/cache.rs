//! Copies of nodes in memory, by last use. They are never written: the buffer has the units that
//! flash lacks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::node::{Node, NodeId};

/// Copies, each with the moment of its last use.
#[derive(Clone, Debug, Default)]
pub(super) struct Cache {
    nodes: HashMap<NodeId, (Arc<Node>, u64)>,
    by_use: BTreeMap<u64, NodeId>,
    now: u64,
}

impl Cache {
    /// The copy of a node, which counts as a use.
    pub(super) fn get(&mut self, node: NodeId) -> Option<Arc<Node>> {
        let (copy, used) = self.nodes.get_mut(&node)?;
        self.now += 1;
        self.by_use.remove(used);
        self.by_use.insert(self.now, node);
        *used = self.now;
        Some(Arc::clone(copy))
    }

    /// The copy of a node, to be changed.
    pub(super) fn get_mut(&mut self, node: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(&node).map(|(copy, _)| Arc::make_mut(copy))
    }

    pub(super) fn insert(&mut self, node: NodeId, copy: Arc<Node>) {
        self.forget(node);
        self.now += 1;
        self.by_use.insert(self.now, node);
        self.nodes.insert(node, (copy, self.now));
    }

    pub(super) fn forget(&mut self, node: NodeId) {
        if let Some((_, used)) = self.nodes.remove(&node) {
            self.by_use.remove(&used);
        }
    }

    /// Copies that were used longest ago leave until there are no more than `count`.
    pub(super) fn shrink(&mut self, count: usize) {
        while self.nodes.len() > count {
            let Some((_, node)) = self.by_use.pop_first() else { return };
            self.nodes.remove(&node);
        }
    }
}
