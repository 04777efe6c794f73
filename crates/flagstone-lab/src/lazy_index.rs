//! The lazy-update B+-tree with the structure of its paper, as counts of nodes read and written.
//!
//! Owns the parts that Flagstone does otherwise: an orthogonal list that mirrors the tree and finds
//! groups by reading nodes, with or without pruning; leaves that are linked both ways and borrow
//! from each other; inner nodes that are written when a child splits; one LRU for all nodes. It
//! tells which part of the paper's figures follows from that structure. Never represents
//! Flagstone's engine: it stores no pointers, knows no transactions and no device, and the engine's
//! costs are measured on the chip.
//!
//! - **L1** A request waits in the lowest block of the list whose range holds it, and is in no other.
//! - **L2** A node is read when it is looked at and not in the cache; it is written when it leaves the
//!   cache after a change. Nothing else counts.

mod cache;
mod pool;
mod select;
mod tree;

use crate::workload::index::{Index, Step};

use pool::Pool;

/// Which group is committed next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The one whose oldest request came first.
    Fifo,
    /// The one that a request joined least recently.
    Lru,
    /// The biggest; of equal ones the least recently hit.
    Biggest,
    /// The one that writes least leaves a request; of equal ones the least recently hit.
    Cost,
}

/// Whether a victim is looked for among all groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pruning {
    /// Blocks that cannot win are left as they are (algorithm 5).
    On,
    /// All groups are formed, and all their leaves known (algorithm 3).
    Off,
}

/// Whether groups are committed with others (section 4.4.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Together {
    /// Each by itself.
    Off,
    /// The victim with its super group.
    Victim,
    /// The best super group of all.
    All,
}

/// An index of the paper: sizes and policies.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Half of the entries that a node holds at most.
    pub order: usize,
    /// Nodes that the cache holds.
    pub nodes: usize,
    /// Requests that the pool holds; none for the traditional tree.
    pub requests: usize,
    /// Which group is committed next.
    pub policy: Policy,
    /// How it is looked for.
    pub pruning: Pruning,
    /// Groups committed together with it.
    pub together: Together,
}

/// Nodes read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Nodes read.
    pub reads: u64,
    /// Of these, for finding victims alone.
    pub reads_to_choose: u64,
    /// Nodes written.
    pub writes: u64,
}

/// Counts of so many requests of `index`, after `warmup`.
#[must_use]
pub fn count(index: &Index, config: Config, warmup: u64, requests: u64) -> Counts {
    let mut pool = Pool::new(config, &index.keys_in_order());
    let mut steps = index.steps();
    let mut run = |pool: &mut Pool, count: u64| {
        for step in steps.by_ref().take(count as usize) {
            match step {
                Step::Select(key) => pool.query(key),
                Step::Insert(key) => pool.update(key, pool::Change::Insert),
                Step::Delete(key) => pool.update(key, pool::Change::Delete),
            }
        }
    };
    run(&mut pool, warmup);
    let before = pool.counts();
    run(&mut pool, requests);
    let after = pool.counts();
    Counts {
        reads: after.reads - before.reads,
        reads_to_choose: after.reads_to_choose - before.reads_to_choose,
        writes: after.writes - before.writes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::index::Dialect;

    const CONFIG: Config = Config {
        order: 8,
        nodes: 8,
        requests: 200,
        policy: Policy::Cost,
        pruning: Pruning::On,
        together: Together::Off,
    };

    fn counted(config: Config) -> Counts {
        count(&Index::small(Dialect::WUpdateMix, 10, 1), config, 2_000, 10_000)
    }

    #[test]
    fn a_pool_saves_writes_and_pruning_saves_reads() {
        let traditional = counted(Config { nodes: 20, requests: 0, ..CONFIG });
        let lazy = counted(CONFIG);
        assert!(lazy.writes * 10 < traditional.writes * 8, "{lazy:?} {traditional:?}");
        for policy in [Policy::Biggest, Policy::Cost] {
            let pruned = counted(Config { policy, ..CONFIG });
            let whole = counted(Config { policy, pruning: Pruning::Off, ..CONFIG });
            assert!(pruned.reads < whole.reads, "{policy:?}: {pruned:?} {whole:?}");
            let off = whole.writes.abs_diff(pruned.writes) * 100;
            assert!(off < whole.writes * 3, "the same victims but for ties: {pruned:?} {whole:?}");
        }
    }

    #[test]
    fn super_groups_save_writes_and_the_second_way_reads_more() {
        let alone = counted(CONFIG);
        let [one, two] = [Together::Victim, Together::All]
            .map(|together| counted(Config { together, ..CONFIG }));
        assert!(one.writes < alone.writes && two.reads > one.reads, "{alone:?} {one:?} {two:?}");
    }
}
