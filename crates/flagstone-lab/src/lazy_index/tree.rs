//! A B+-tree of order d: between d and 2d entries a node, leaves linked both ways.
//!
//! Owns nodes and their rebalancing. Tells the cache which nodes it looks at and changes, and its
//! caller which nodes have other ranges than before.

use super::cache::Cache;

/// Number of a node.
pub(super) type NodeId = usize;

/// One node. A leaf has keys; an inner node has children with the keys at which they begin.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) keys: Vec<u64>,
    pub(super) children: Vec<NodeId>,
    pub(super) parent: Option<NodeId>,
    /// First key of its range, and the first one above it.
    pub(super) low: u64,
    pub(super) high: Option<u64>,
    previous: Option<NodeId>,
    next: Option<NodeId>,
}

impl Node {
    pub(super) fn is_leaf(&self) -> bool {
        self.children.is_empty()
    }

    /// Place of the child whose range holds `key`.
    pub(super) fn place_for(&self, key: u64) -> usize {
        self.keys.partition_point(|low| *low <= key).saturating_sub(1)
    }
}

/// The nodes.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) nodes: Vec<Node>,
    pub(super) root: NodeId,
    order: usize,
}

impl Tree {
    /// A tree of `keys`, which come in this order.
    pub(super) fn new(order: usize, keys: &[u64]) -> Self {
        let mut tree = Self { nodes: vec![Node::default()], root: 0, order };
        for key in keys {
            let leaf = tree.leaf_for(*key);
            tree.change(leaf, &[(*key, true)]);
            if tree.nodes[leaf].keys.len() > 2 * order {
                tree.rebalance(leaf, &mut Cache::new(usize::MAX));
            }
        }
        tree
    }

    /// The leaf whose range holds `key`.
    pub(super) fn leaf_for(&self, key: u64) -> NodeId {
        let mut at = self.root;
        while let Some(child) = self.child_for(at, key) {
            at = child;
        }
        at
    }

    /// The child of `at` whose range holds `key`; none below a leaf.
    pub(super) fn child_for(&self, at: NodeId, key: u64) -> Option<NodeId> {
        let node = &self.nodes[at];
        (!node.is_leaf()).then(|| node.children[node.place_for(key)])
    }

    /// Puts keys into a leaf (`true`) or takes them out.
    pub(super) fn change(&mut self, leaf: NodeId, changes: &[(u64, bool)]) {
        let keys = &mut self.nodes[leaf].keys;
        for (key, is_put) in changes {
            match (keys.binary_search(key), is_put) {
                (Err(place), true) => keys.insert(place, *key),
                (Ok(place), false) => {
                    keys.remove(place);
                }
                _ => {}
            }
        }
    }

    /// Entries that a node holds at most.
    pub(super) const fn most(&self) -> usize {
        2 * self.order
    }

    /// Entries that a node holds at least.
    pub(super) const fn least(&self) -> usize {
        self.order
    }

    /// The neighbours of a node below the same inner node.
    pub(super) fn neighbours(&self, at: NodeId) -> [Option<NodeId>; 2] {
        let Some(parent) = self.nodes[at].parent else { return [None, None] };
        let children = &self.nodes[parent].children;
        let place = self.nodes[parent].place_for(self.nodes[at].low);
        [place.checked_sub(1), Some(place + 1)]
            .map(|place| place.and_then(|place| children.get(place).copied()))
    }

    /// Splits, fills or merges a node that has too many or too few entries; nodes with other ranges.
    pub(super) fn rebalance(&mut self, at: NodeId, cache: &mut Cache) -> Vec<NodeId> {
        let mut touched = Vec::new();
        let mut next = Some(at);
        while let Some(at) = next {
            let count = self.nodes[at].keys.len();
            next = if count > self.most() {
                self.split(at, cache, &mut touched)
            } else if count < self.least() && self.nodes[at].parent.is_some() {
                self.refill(at, cache, &mut touched)
            } else {
                self.shrink_root(at, cache);
                None
            };
        }
        touched
    }

    /// A root with one child gives way to the child.
    fn shrink_root(&mut self, at: NodeId, cache: &mut Cache) {
        if at == self.root && self.nodes[at].children.len() == 1 {
            self.root = self.nodes[at].children[0];
            self.nodes[self.root].parent = None;
            cache.forget(at);
        }
    }

    fn split(
        &mut self,
        at: NodeId,
        cache: &mut Cache,
        touched: &mut Vec<NodeId>,
    ) -> Option<NodeId> {
        let parent = self.parent_of(at, cache);
        let pieces = self.nodes[at].keys.len().div_ceil(self.most());
        let each = self.nodes[at].keys.len().div_ceil(pieces);
        touched.push(at);
        cache.change(at);
        let mut left = at;
        while self.nodes[left].keys.len() > each {
            let new = self.nodes.len();
            let node = &mut self.nodes[left];
            let keys = node.keys.split_off(each);
            let children = if node.is_leaf() { Vec::new() } else { node.children.split_off(each) };
            let low = keys[0];
            let high = node.high.replace(low);
            let (previous, next) = (Some(left), node.next.replace(new));
            for child in &children {
                self.nodes[*child].parent = Some(new);
            }
            let is_leaf = children.is_empty();
            self.nodes.push(Node {
                keys,
                children,
                parent: Some(parent),
                low,
                high,
                previous,
                next,
            });
            if let Some(next) = next.filter(|_| is_leaf) {
                self.nodes[next].previous = Some(new);
                cache.read(next);
                cache.change(next);
            }
            let above = &mut self.nodes[parent];
            let place = above.place_for(low) + 1;
            above.keys.insert(place, low);
            above.children.insert(place, new);
            touched.push(new);
            cache.change(new);
            left = new;
        }
        cache.change(parent);
        (self.nodes[parent].keys.len() > self.most()).then_some(parent)
    }

    /// The node above, or a new root.
    fn parent_of(&mut self, at: NodeId, cache: &mut Cache) -> NodeId {
        if let Some(parent) = self.nodes[at].parent {
            cache.read(parent);
            return parent;
        }
        let root = self.nodes.len();
        self.nodes.push(Node { keys: vec![0], children: vec![at], ..Node::default() });
        self.nodes[at].parent = Some(root);
        self.root = root;
        cache.change(root);
        root
    }

    /// Borrows from a neighbour that has more than it must, or merges with one.
    fn refill(
        &mut self,
        at: NodeId,
        cache: &mut Cache,
        touched: &mut Vec<NodeId>,
    ) -> Option<NodeId> {
        let parent = self.parent_of(at, cache);
        let [left, right] = self.neighbours(at);
        let other = right.or(left)?;
        cache.read(other);
        let (left, right) = if Some(other) == right { (at, other) } else { (other, at) };
        touched.extend([left, right]);
        let is_rich = self.nodes[other].keys.len() > self.least();
        let moved = std::mem::take(&mut self.nodes[right].keys);
        let children = std::mem::take(&mut self.nodes[right].children);
        let is_leaf = children.is_empty();
        for child in &children {
            self.nodes[*child].parent = Some(left);
        }
        self.nodes[left].keys.extend(moved);
        self.nodes[left].children.extend(children);
        let place = self.nodes[parent].place_for(self.nodes[right].low);
        cache.change(left);
        cache.change(parent);
        let count = self.nodes[left].keys.len();
        if is_rich || count > self.most() {
            let node = &mut self.nodes[left];
            let keys = node.keys.split_off(count / 2);
            let children = if is_leaf { Vec::new() } else { node.children.split_off(count / 2) };
            node.high = Some(keys[0]);
            for child in &children {
                self.nodes[*child].parent = Some(right);
            }
            self.nodes[parent].keys[place] = keys[0];
            let node = &mut self.nodes[right];
            (node.low, node.keys, node.children) = (keys[0], keys, children);
            cache.change(right);
            return None;
        }
        let (high, next) = (self.nodes[right].high, self.nodes[right].next);
        (self.nodes[left].high, self.nodes[left].next) = (high, next);
        if let Some(next) = next.filter(|_| is_leaf) {
            self.nodes[next].previous = Some(left);
            cache.read(next);
            cache.change(next);
        }
        self.nodes[parent].keys.remove(place);
        self.nodes[parent].children.remove(place);
        self.nodes[right] = Node::default();
        cache.forget(right);
        Some(parent)
    }

    /// Every key, in order.
    #[cfg(test)]
    fn keys(&self) -> Vec<u64> {
        let mut at = self.leaf_for(0);
        let mut keys = self.nodes[at].keys.clone();
        while let Some(next) = self.nodes[at].next {
            assert_eq!(self.nodes[next].previous, Some(at), "links lead both ways");
            keys.extend(&self.nodes[next].keys);
            at = next;
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn keys_come_and_go_in_nodes_that_are_at_least_half_full() {
        let mut tree = Tree::new(3, &[]);
        let mut cache = Cache::new(usize::MAX);
        let mut model = BTreeSet::new();
        let mut random = 1_u64;
        for step in 0..20_000_u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = random >> 54;
            let is_put = (random >> 20) % 100 < if step < 10_000 { 70 } else { 20 };
            if is_put {
                model.insert(key)
            } else {
                model.remove(&key)
            };
            let leaf = tree.leaf_for(key);
            tree.change(leaf, &[(key, is_put)]);
            tree.rebalance(leaf, &mut cache);
        }
        assert_eq!(tree.keys(), model.into_iter().collect::<Vec<_>>());
        let mut at = tree.leaf_for(0);
        while let Some(next) = tree.nodes[at].next {
            assert_eq!(tree.nodes[at].high, Some(tree.nodes[next].low));
            assert!((3..=6).contains(&tree.nodes[next].keys.len()));
            let parent = tree.nodes[next].parent.unwrap();
            assert!(tree.nodes[parent].children.contains(&next));
            at = next;
        }
    }
}
