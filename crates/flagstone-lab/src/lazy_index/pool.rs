//! The pool of requests and its orthogonal list: blocks that mirror the nodes of the tree that are
//! known to have requests.
//!
//! Owns requests and blocks. All requests lie in one ordered map; a block's own list is the
//! requests in its range and in no block below it, and is only counted.

use std::collections::BTreeMap;

use super::cache::Cache;
use super::tree::{NodeId, Tree};
use super::{Config, Counts, Together};

/// Effect of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Insert,
    Delete,
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) change: Change,
    /// Number of its coming.
    pub(super) number: u64,
}

/// A block of the list.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Block {
    /// Requests in its own list.
    pub(super) count: usize,
    /// Keys that these requests add, less the keys that they take.
    pub(super) net: i64,
    /// Number of the oldest request.
    pub(super) first: u64,
    /// Number of the last request that came to the block.
    pub(super) hit: u64,
    /// Entries that its leaf has, where known.
    pub(super) size: Option<usize>,
}

impl Block {
    /// A block with `requests` in its own list.
    fn of(requests: impl Iterator<Item = Request>) -> Self {
        let mut block = Self { first: u64::MAX, ..Self::default() };
        requests.for_each(|request| block.add(request));
        block
    }

    fn add(&mut self, request: Request) {
        self.count += 1;
        self.net += request.change.net();
        self.first = self.first.min(request.number);
        self.hit = self.hit.max(request.number);
    }
}

impl Change {
    const fn net(self) -> i64 {
        match self {
            Self::Insert => 1,
            Self::Delete => -1,
        }
    }
}

/// An index with its pool.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) config: Config,
    pub(super) tree: Tree,
    pub(super) cache: Cache,
    pub(super) requests: BTreeMap<u64, Request>,
    /// Blocks by the number of their node.
    pub(super) blocks: Vec<Option<Block>>,
    clock: u64,
}

impl Pool {
    pub(super) fn new(config: Config, keys: &[u64]) -> Self {
        let tree = Tree::new(config.order, keys);
        let blocks = vec![None; tree.nodes.len()];
        let (cache, requests) = (Cache::new(config.nodes), BTreeMap::new());
        Self { config, tree, cache, requests, blocks, clock: 0 }
    }

    pub(super) const fn counts(&self) -> Counts {
        self.cache.counts
    }

    /// Algorithm 1 and 2: a change waits.
    pub(super) fn update(&mut self, key: u64, change: Change) {
        if self.config.requests == 0 {
            return self.update_now(key, change);
        }
        if self.requests.len() >= self.config.requests {
            self.commit_next();
        }
        self.clock += 1;
        let (number, clock) = (self.clock, self.clock);
        let at = self.block_for(key);
        let request = Request { change, number };
        let block = self.blocks[at].get_or_insert(Block { first: number, ..Block::default() });
        match self.requests.get(&key).map(|old| old.change) {
            None => {
                block.add(request);
                self.requests.insert(key, request);
            }
            Some(Change::Insert) if change == Change::Delete => {
                block.count -= 1;
                block.net -= 1;
                self.requests.remove(&key);
            }
            // A delete before an insert is one change of a key that is there.
            Some(old) => {
                block.net -= old.net();
                self.requests.insert(key, request);
            }
        }
        block.hit = clock;
        self.drop_if_empty(at);
    }

    /// The traditional tree.
    fn update_now(&mut self, key: u64, change: Change) {
        let leaf = self.search(self.tree.root, key);
        self.tree.change(leaf, &[(key, change == Change::Insert)]);
        self.cache.change(leaf);
        self.tree.rebalance(leaf, &mut self.cache);
        self.blocks.resize(self.tree.nodes.len(), None);
        self.settle();
    }

    /// Algorithm 4.
    pub(super) fn query(&mut self, key: u64) {
        if self.requests.contains_key(&key) {
            return;
        }
        let start = if self.config.requests == 0 { self.tree.root } else { self.block_for(key) };
        let leaf = self.search(start, key);
        let mut at = start;
        while let Some(child) = self.tree.child_for(at, key) {
            self.distribute(at);
            at = child;
        }
        if let Some(block) = &mut self.blocks[leaf] {
            block.size = Some(self.tree.nodes[leaf].keys.len());
        }
        self.settle();
    }

    /// Reads from a node down to the leaf of `key`.
    fn search(&mut self, from: NodeId, key: u64) -> NodeId {
        let mut at = from;
        self.cache.read(at);
        while let Some(child) = self.tree.child_for(at, key) {
            at = child;
            self.cache.read(at);
        }
        at
    }

    /// The lowest block whose range holds `key`; the root's, if there is none.
    fn block_for(&self, key: u64) -> NodeId {
        let mut at = self.tree.root;
        while let Some(child) = self.tree.child_for(at, key) {
            if self.blocks[child].is_none() {
                break;
            }
            at = child;
        }
        at
    }

    fn in_range(&self, at: NodeId) -> impl Iterator<Item = (u64, Request)> + '_ {
        let node = &self.tree.nodes[at];
        let (low, high) = (node.low, node.high);
        let inside = move |key: &u64| high.is_none_or(|high| *key < high);
        self.requests
            .range(low..)
            .map(|(key, request)| (*key, *request))
            .take_while(move |(key, _)| inside(key))
    }

    /// Algorithm 3, lines 6 to 11: an index block whose node is known hands its list down.
    pub(super) fn distribute(&mut self, at: NodeId) {
        if self.tree.nodes[at].is_leaf() || self.blocks[at].is_none_or(|block| block.count == 0) {
            return;
        }
        let found: Vec<(u64, Request)> = self.in_range(at).collect();
        for (key, request) in found {
            let Some(child) = self.tree.child_for(at, key) else { continue };
            let is_new = self.blocks[child].is_none_or(|block| block.size == FILLING);
            if is_new {
                let new = Block { size: FILLING, first: u64::MAX, ..Block::default() };
                self.blocks[child].get_or_insert(new).add(request);
            }
        }
        for child in self.tree.nodes[at].children.clone() {
            if let Some(block) = &mut self.blocks[child]
                && block.size == FILLING
            {
                block.size = None;
            }
        }
        if let Some(block) = &mut self.blocks[at] {
            (block.count, block.net) = (0, 0);
        }
    }

    /// Removes a block with neither requests nor blocks below it.
    fn drop_if_empty(&mut self, at: NodeId) {
        let has_below =
            self.tree.nodes[at].children.iter().any(|child| self.blocks[*child].is_some());
        if !has_below && self.blocks[at].is_some_and(|block| block.count == 0) {
            self.blocks[at] = None;
            if let Some(parent) = self.tree.nodes[at].parent {
                self.drop_if_empty(parent);
            }
        }
    }

    fn commit_next(&mut self) {
        let before = self.cache.counts.reads;
        let victims = self.choose();
        self.cache.counts.reads_to_choose += self.cache.counts.reads - before;
        for leaf in victims {
            if self.blocks[leaf].is_some() {
                self.cache.read(leaf);
                self.commit(leaf);
            }
        }
        self.settle();
    }

    /// Writes the waiting requests of a leaf into it.
    fn commit(&mut self, leaf: NodeId) {
        if self.blocks[leaf].is_none() {
            // It went with another leaf that left the cache meanwhile.
            return;
        }
        let changes: Vec<(u64, bool)> = self
            .in_range(leaf)
            .map(|(key, request)| (key, request.change == Change::Insert))
            .collect();
        for (key, _) in &changes {
            self.requests.remove(key);
        }
        self.blocks[leaf] = None;
        self.tree.change(leaf, &changes);
        self.cache.change(leaf);
        let touched = self.tree.rebalance(leaf, &mut self.cache);
        self.blocks.resize(self.tree.nodes.len(), None);
        if !touched.is_empty() {
            self.regroup(&touched);
        }
        if let Some(parent) = self.tree.nodes[leaf].parent {
            self.drop_if_empty(parent);
        }
    }

    /// Blocks of nodes whose ranges have moved, which are all at hand.
    fn regroup(&mut self, touched: &[NodeId]) {
        let (leaves, inner): (Vec<NodeId>, Vec<NodeId>) =
            touched.iter().partition(|at| self.tree.nodes[**at].is_leaf());
        for at in leaves {
            let is_gone = self.tree.nodes[at].parent.is_none();
            let size = Some(self.tree.nodes[at].keys.len());
            let own = Block::of(self.in_range(at).map(|(_, request)| request));
            self.blocks[at] = (own.count > 0 && !is_gone).then_some(Block { size, ..own });
        }
        for at in inner.into_iter().chain([self.tree.root]) {
            self.recount(at);
            if let Some(parent) = self.tree.nodes[at].parent {
                self.recount(parent);
            }
        }
        for at in touched {
            if let Some(parent) = self.tree.nodes[*at].parent {
                self.recount(parent);
            }
        }
    }

    /// The own list of an index block.
    fn recount(&mut self, at: NodeId) {
        let node = &self.tree.nodes[at];
        if node.is_leaf() {
            return;
        }
        let is_own = |key: u64| {
            self.tree.child_for(at, key).is_none_or(|child| self.blocks[child].is_none())
        };
        let own = self.in_range(at).filter(|(key, _)| is_own(*key));
        let own = Block::of(own.map(|(_, request)| request));
        let has_below = node.children.iter().any(|child| self.blocks[*child].is_some());
        self.blocks[at] = (own.count > 0 || has_below).then_some(own);
    }

    /// Nodes leave the cache; with a changed leaf go its waiting requests (section 4.4.2.2).
    pub(super) fn settle(&mut self) {
        while let Some((node, is_dirty)) = self.cache.leaving() {
            if !is_dirty {
                continue;
            }
            self.cache.counts.writes += 1;
            if self.blocks[node].is_some() && self.tree.nodes[node].is_leaf() {
                self.commit(node);
                // Written above, unless it was merged away or changed its shape.
                self.cache.forget(node);
            }
        }
    }

    /// Entries that a leaf has after its requests.
    pub(super) fn size_after(&self, leaf: NodeId) -> usize {
        let net = self.blocks[leaf].map_or(0, |block| block.net);
        self.tree.nodes[leaf].keys.len().saturating_add_signed(net as isize)
    }

    pub(super) fn is_together(&self) -> bool {
        self.config.together != Together::Off
    }
}

/// Size of a block that is being filled.
const FILLING: Option<usize> = Some(usize::MAX);
