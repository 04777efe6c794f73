//! The reservation buffer: units that wait, by node.

use std::collections::BTreeMap;

use super::format::Group;
use super::node::{NodeId, Unit};

/// Units in the order in which they came, of each node.
#[derive(Clone, Debug, Default)]
pub(super) struct Buffer {
    groups: BTreeMap<NodeId, Group>,
    count: usize,
}

impl Buffer {
    /// Units that wait.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Units that wait for a node.
    pub(super) fn get(&self, node: NodeId) -> Option<&Group> {
        self.groups.get(&node)
    }

    pub(super) fn nodes(&self) -> Vec<NodeId> {
        self.groups.keys().copied().collect()
    }

    pub(super) fn push(&mut self, node: NodeId, level: u8, unit: Unit) {
        let new = || Group { node, level, is_base: false, units: Vec::new() };
        self.groups.entry(node).or_insert_with(new).units.push(unit);
        self.count += 1;
    }

    /// A node begins anew: nothing that was written or waits counts.
    pub(super) fn begin(&mut self, node: NodeId, level: u8, units: Vec<Unit>) {
        self.forget(node);
        self.count += units.len();
        self.groups.insert(node, Group { node, level, is_base: true, units });
    }

    /// Drops the units that wait for a node.
    pub(super) fn forget(&mut self, node: NodeId) {
        let old = self.groups.remove(&node);
        self.count -= old.map_or(0, |group| group.units.len());
    }
}
