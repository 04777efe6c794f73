//! Choosing a victim: algorithms 3, 5 and 6.

use super::pool::Pool;
use super::tree::NodeId;
use super::{Policy, Pruning, Together};

/// Effect of a group on its leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Same,
    Split,
    Borrow,
    Merge,
}

/// Cost of a group, then its last hit: the least is committed.
type Rank = (f64, u64);

impl Pool {
    /// The leaves whose groups are committed together.
    pub(super) fn choose(&mut self) -> Vec<NodeId> {
        if self.config.together == Together::All {
            self.form_all();
            return self.best_super_group();
        }
        let victim = match (self.config.policy, self.config.pruning) {
            (Policy::Biggest | Policy::Cost, Pruning::On) => self.pruned(),
            _ => {
                self.form_all();
                self.best()
            }
        };
        match victim {
            Some(victim) if self.is_together() => self.super_group(victim),
            victim => victim.into_iter().collect(),
        }
    }

    /// Algorithm 3: every request is in the block of its leaf; the cost policy knows all leaves.
    fn form_all(&mut self) {
        let mut stack = vec![self.tree.root];
        while let Some(at) = stack.pop() {
            let Some(block) = self.blocks[at] else { continue };
            if self.tree.nodes[at].is_leaf() {
                if self.config.policy == Policy::Cost {
                    self.read_size(at);
                }
                continue;
            }
            if block.count > 0 {
                self.cache.read(at);
                self.distribute(at);
            }
            stack.extend(&self.tree.nodes[at].children);
        }
        self.settle();
    }

    fn read_size(&mut self, leaf: NodeId) {
        let size = self.tree.nodes[leaf].keys.len();
        if let Some(block) = &mut self.blocks[leaf]
            && block.size.is_none()
        {
            block.size = Some(size);
            self.cache.read(leaf);
        }
    }

    fn groups(&self) -> impl Iterator<Item = NodeId> + '_ {
        let blocks = self.blocks.iter().enumerate().filter(|(_, block)| block.is_some());
        blocks.map(|(at, _)| at).filter(|at| self.tree.nodes[*at].is_leaf())
    }

    fn best(&self) -> Option<NodeId> {
        let rank = |at: &NodeId| self.rank(*at, self.gain(*at));
        self.groups().min_by(|one, other| {
            rank(one).partial_cmp(&rank(other)).unwrap_or(std::cmp::Ordering::Equal)
        })
    }

    /// Algorithm 5.
    fn pruned(&mut self) -> Option<NodeId> {
        let mut best: Option<(Rank, NodeId)> = None;
        let mut stack = vec![self.tree.root];
        while let Some(at) = stack.pop() {
            let Some(block) = self.blocks[at] else { continue };
            let may_win = |count: usize, best: &Option<(Rank, NodeId)>| {
                best.is_none_or(|((cost, _), _)| cost * count as f64 >= 1.0)
            };
            if !self.tree.nodes[at].is_leaf() {
                if block.count > 0 && may_win(block.count, &best) {
                    self.cache.read(at);
                    self.distribute(at);
                }
                stack.extend(&self.tree.nodes[at].children);
                continue;
            }
            if !may_win(block.count, &best) {
                continue;
            }
            if self.config.policy == Policy::Cost {
                self.read_size(at);
            }
            let rank = self.rank(at, self.gain(at));
            if best.is_none_or(|(other, _)| rank < other) {
                best = Some((rank, at));
            }
        }
        self.settle();
        best.map(|(_, at)| at)
    }

    fn rank(&self, at: NodeId, gain: usize) -> Rank {
        let block = self.blocks[at].unwrap_or_default();
        match self.config.policy {
            Policy::Fifo => (block.first as f64, block.first),
            Policy::Lru => (block.hit as f64, block.hit),
            Policy::Biggest | Policy::Cost => (gain as f64 / block.count.max(1) as f64, block.hit),
        }
    }

    /// Leaves written when a group is committed, by the cost policy.
    fn gain(&self, at: NodeId) -> usize {
        if self.config.policy != Policy::Cost {
            return 1;
        }
        match self.kind(at) {
            Kind::Same => 1,
            // Its pieces and the leaf after them, which points back to the last.
            Kind::Split => self.size_after(at).div_ceil(self.tree.most()) + 1,
            Kind::Borrow | Kind::Merge => 2,
        }
    }

    fn kind(&self, at: NodeId) -> Kind {
        let size = self.size_after(at);
        if size > self.tree.most() {
            return Kind::Split;
        }
        let [left, right] = self.tree.neighbours(at);
        match right.or(left) {
            Some(other) if size < self.tree.least() => {
                let is_rich = self.tree.nodes[other].keys.len() > self.tree.least();
                if is_rich { Kind::Borrow } else { Kind::Merge }
            }
            _ => Kind::Same,
        }
    }

    /// Algorithm 6: the victim's siblings are retrieved as far as they may belong to its super
    /// group.
    fn super_group(&mut self, victim: NodeId) -> Vec<NodeId> {
        let Some(parent) = self.tree.nodes[victim].parent else { return vec![victim] };
        if self.blocks[parent].is_some_and(|block| block.count > 0) {
            self.cache.read(parent);
            self.distribute(parent);
        }
        self.read_size(victim);
        let siblings = self.tree.nodes[parent].children.clone();
        let own = siblings.iter().position(|at| *at == victim).unwrap_or(0);
        let is_moving = self.kind(victim) != Kind::Same;
        for (place, at) in siblings.iter().enumerate() {
            // A leaf that stays one leaf belongs only to a moving leaf beside it, or one further.
            if self.blocks[*at].is_some() && (is_moving || place.abs_diff(own) <= 2) {
                self.read_size(*at);
            }
        }
        self.settle();
        self.together(&siblings, victim)
    }

    /// The super group of `victim` among the children of one node. All moving leaves belong
    /// together; a staying leaf belongs to moving leaves near it.
    fn together(&self, siblings: &[NodeId], victim: NodeId) -> Vec<NodeId> {
        let known = |at: NodeId| self.blocks[at].is_some_and(|block| block.size.is_some());
        let kinds: Vec<Option<Kind>> =
            siblings.iter().map(|at| known(*at).then(|| self.kind(*at))).collect();
        let joins = |place: usize| match kinds[place] {
            None => false,
            Some(Kind::Same) => kinds.iter().enumerate().any(|(other, kind)| match kind {
                None | Some(Kind::Same) => false,
                Some(Kind::Merge) => place.abs_diff(other) <= 2,
                Some(_) => place.abs_diff(other) == 1,
            }),
            Some(_) => true,
        };
        let own = siblings.iter().position(|at| *at == victim).unwrap_or(0);
        if !joins(own) {
            return vec![victim];
        }
        let mut group = vec![victim];
        let joined = (0..siblings.len()).filter(|place| joins(*place)).map(|place| siblings[place]);
        group.extend(joined.filter(|at| *at != victim));
        group
    }

    /// The second approach: the best of all super groups.
    fn best_super_group(&mut self) -> Vec<NodeId> {
        let groups: Vec<NodeId> = self.groups().collect();
        for at in &groups {
            self.read_size(*at);
        }
        self.settle();
        let mut best: Option<(Rank, Vec<NodeId>)> = None;
        let mut parents: Vec<NodeId> =
            groups.iter().filter_map(|at| self.tree.nodes[*at].parent).collect();
        parents.sort_unstable();
        parents.dedup();
        for parent in parents {
            let siblings = &self.tree.nodes[parent].children;
            let mut is_moving_done = false;
            for at in siblings.iter().filter(|at| self.blocks[**at].is_some()) {
                let is_moving = self.kind(*at) != Kind::Same;
                if is_moving && std::mem::replace(&mut is_moving_done, true) {
                    continue;
                }
                let group = if is_moving { self.together(siblings, *at) } else { vec![*at] };
                let gain: usize = group.iter().map(|at| self.gain(*at)).sum();
                let blocks = group.iter().filter_map(|at| self.blocks[*at]);
                let (count, hit) = blocks.fold((0, u64::MAX), |(count, hit), block| {
                    (count + block.count, hit.min(block.hit))
                });
                let rank = (gain as f64 / count.max(1) as f64, hit);
                if best.as_ref().is_none_or(|(other, _)| rank < *other) {
                    best = Some((rank, group));
                }
            }
        }
        best.map(|(_, group)| group).unwrap_or_default()
    }
}
