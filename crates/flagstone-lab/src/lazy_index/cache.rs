//! The page cache: nodes by last use, and which nodes flash lacks (rule L2).

use super::Counts;
use super::tree::NodeId;

/// The cached nodes, the one used last in front.
#[derive(Debug)]
pub(super) struct Cache {
    nodes: Vec<(NodeId, bool)>,
    size: usize,
    pub(super) counts: Counts,
}

impl Cache {
    pub(super) const fn new(size: usize) -> Self {
        Self { nodes: Vec::new(), size, counts: Counts { reads: 0, reads_to_choose: 0, writes: 0 } }
    }

    /// A node is looked at.
    pub(super) fn read(&mut self, node: NodeId) {
        self.counts.reads += u64::from(!self.use_node(node, false));
    }

    /// A node is changed that was looked at, or is new.
    pub(super) fn change(&mut self, node: NodeId) {
        self.use_node(node, true);
    }

    /// A node is gone.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.nodes.retain(|(other, _)| *other != node);
    }

    /// The node that leaves next, and whether flash lacks it; none while there is room.
    pub(super) fn leaving(&mut self) -> Option<(NodeId, bool)> {
        (self.nodes.len() > self.size).then(|| self.nodes.pop()).flatten()
    }

    /// Whether it was there before.
    fn use_node(&mut self, node: NodeId, is_changed: bool) -> bool {
        let place = self.nodes.iter().position(|(other, _)| *other == node);
        let was_dirty = place.is_some_and(|place| self.nodes.remove(place).1);
        self.nodes.insert(0, (node, was_dirty || is_changed));
        place.is_some()
    }
}
