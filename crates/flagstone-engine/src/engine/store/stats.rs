//! Counters of the engine, and outlines of nodes for a check.

use flagstone_space::LogicalPage;

use crate::delta::{KeyRange, Op};
use crate::engine::step::Step;
use crate::engine::store::Store;
use crate::engine::store::catalog::Table;
use crate::engine::store::descent::corrupt;
use crate::engine::store::value::Release;
use crate::node::{NodeView, ValueRef};

/// Memory in bytes; peaks since the engine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Page frames.
    pub bases: usize,
    /// Changes, committed and not, with their index.
    pub deltas: usize,
    /// Frames and changes at the moment when they took most together: the size that the budget bounds.
    pub both: usize,
    /// Memory of the victim policies' knowledge of each leaf's changes: beside the budget, as their
    /// papers count.
    pub groups: usize,
    /// Logical to physical pages, and the block table: beside the budget.
    pub mapping: usize,
}

/// Counters of an engine since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Transactions committed with changes.
    pub commits: u64,
    /// Transactions aborted by their owner.
    pub aborts: u64,
    /// Transactions aborted to end a deadlock.
    pub deadlocks: u64,
    /// Bytes of keys and values that users wrote; of a patch, the bytes patched.
    pub user_bytes: u64,
    /// Bytes of log records.
    pub log_bytes: u64,
    /// Node and value look-ups answered from memory.
    pub pool_hits: u64,
    /// Node look-ups that needed a read.
    pub pool_misses: u64,
    /// Leaves, with their waiting changes, that operations asked for; background work does not count.
    pub leaf_references: u64,
    /// The part of these leaves for which a page had to be read.
    pub leaf_misses: u64,
    /// Merges prepared.
    pub merges: u64,
    /// Deltas they merged.
    pub merged_deltas: u64,
    /// Moved pages that took their deltas along.
    pub folds: u64,
    /// Deltas merged that way.
    pub folded_deltas: u64,
    /// Changes of a tree's shape.
    pub reshapes: u64,
    /// Most leaves that split at once, under one group.
    pub split_together: u64,
    /// Most changes of trees' shapes that were under way at once.
    pub reshapes_at_once: u64,
    /// Commits of many scattered changes, whose sorted pages wait to be merged with those of others.
    pub run_commits: u64,
    /// Merges that left the rest of a leaf, with its waiting changes, to later merges.
    pub merges_in_parts: u64,
    /// Checkpoints finished.
    pub checkpoints: u64,
    /// Live deltas they copied to the log's tail.
    pub copied_deltas: u64,
    /// Pages of changes that left memory before their commit.
    pub spilled_pages: u64,
    /// Leaves that commits wrote themselves, instead of logging their changes.
    pub claimed_pages: u64,
    /// Commits by a flag in the spare area.
    pub flag_commits: u64,
    /// Deltas in memory now.
    pub deltas: u64,
    /// Peaks of memory.
    pub memory: Memory,
}

impl Store {
    /// Entries of a table, roughly: no more than bases and pending changes together, in O(1). Zero for
    /// a table of another engine.
    #[must_use]
    pub fn len_estimate(&self, table: Table) -> u64 {
        self.own(table).map_or(0, |table| self.entry_estimate(table))
    }

    /// Root pages of all tables, by tree id.
    pub(crate) fn roots(&self) -> Vec<(u32, LogicalPage)> {
        self.trees.iter().filter_map(|tree| tree.root.map(|root| (tree.id, root))).collect()
    }

    /// Whether an image is a node of this tree.
    pub(crate) fn is_node_of(&self, tree: u32, image: &[u8]) -> bool {
        let mut image = image.to_vec();
        self.widen(&mut image);
        NodeView::parse(&image).is_ok_and(|view| view.tree() == tree)
    }

    /// The outline of a node, read if need be.
    pub(crate) fn outline_of(&mut self, page: LogicalPage) -> Step<NodeOutline> {
        let index = self.frame_of(page)?;
        let view = NodeView::parse(&self.pool.frame(index).image)
            .map_err(|_| corrupt(page, "node does not parse"))?;
        let child = |index| view.child(index).map(|child| (view.separator(index), child));
        let children = match view.is_leaf() {
            true => Vec::new(),
            false => (0..view.count()).filter_map(child).collect(),
        };
        let descriptors = view.entries().filter_map(|entry| match entry.value {
            ValueRef::Ref(descriptor) => Some(descriptor.to_vec()),
            ValueRef::Inline(_) => None,
        });
        Ok(NodeOutline {
            tree: view.tree(),
            level: view.level(),
            low: view.low().to_vec(),
            high: view.high().map(<[u8]>::to_vec),
            values: descriptors.collect(),
            children,
            entry_count: if view.is_leaf() { view.count() } else { 0 },
        })
    }

    /// Descriptors of large values that pending changes name, and pages that wait to be freed.
    pub(crate) fn pending_references(&self) -> (Vec<Vec<u8>>, Vec<LogicalPage>) {
        let mut values = Vec::new();
        for tree in &self.trees {
            for entry in tree.deltas.range(KeyRange::ALL) {
                values.extend(entry.versions().filter_map(|(_, op)| match op {
                    Op::PutRef(descriptor) => Some(descriptor.to_vec()),
                    _ => None,
                }));
            }
        }
        let mut pages: Vec<LogicalPage> = Vec::new();
        for run in self.runs.unfinished() {
            pages.extend(run.run.pages());
        }
        for (_, release) in self.trims.deferred() {
            match release {
                Release::Value(descriptor) => values.push(descriptor.clone()),
                Release::Pages(_, freed) => pages.extend(freed.iter()),
                _ => {}
            }
        }
        (values, pages)
    }
}

/// Description of a node for a structural check.
#[derive(Clone, Debug)]
pub(crate) struct NodeOutline {
    pub(crate) tree: u32,
    pub(crate) level: u8,
    pub(crate) low: Vec<u8>,
    pub(crate) high: Option<Vec<u8>>,
    /// Children with the keys at which they begin.
    pub(crate) children: Vec<(Vec<u8>, LogicalPage)>,
    /// Descriptors of large values. A pending change may have replaced one: then its pages may be
    /// gone already.
    pub(crate) values: Vec<Vec<u8>>,
    pub(crate) entry_count: usize,
}
