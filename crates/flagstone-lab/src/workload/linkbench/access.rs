//! Which ids operations go to.

use super::Dialect;
use super::shuffle::Shuffle;
use crate::workload::Draws;
use crate::workload::zipf::Zipf;

/// Seed of the shuffle by which ids have their degrees.
pub(super) const DEGREE_SEED: u64 = 20_343_988_438_726_021;
/// Seed of the shuffle of links whose use has nothing to do with their number.
const UNCORRELATED_SEED: u64 = 53_238_253_823_453;
/// Seed of the shuffle of nodes.
const NODE_SEED: u64 = 4_766_565_305_853_767_165;

/// A share is drawn in these units.
const SHARE_UNITS: u64 = 1 << 53;

/// Kind of access: read or write, of a link or of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Reads links.
    LinkRead,
    /// Writes a link.
    LinkWrite,
    /// Reads a node.
    NodeRead,
    /// Updates a node.
    NodeUpdate,
    /// Deletes a node.
    NodeDelete,
}

/// Links are used by rank among all ids or by rank among the ids with many links.
#[derive(Clone, Copy, Debug)]
struct Blend {
    /// Draws of a thousand that have nothing to do with the number of links.
    uncorrelated: u64,
    uncorrelated_zipf: Zipf,
    correlated_zipf: Zipf,
}

/// Distributions of the ids.
#[derive(Clone, Debug)]
pub struct Access {
    nodes: u64,
    link_read: Blend,
    link_write: Blend,
    node_read: Zipf,
    node_update: Zipf,
    by_degree: Shuffle,
    uncorrelated: Shuffle,
    by_node: Shuffle,
}

impl Access {
    /// Distributions over the ids from 1 to `nodes`.
    #[must_use]
    pub fn new(dialect: Dialect, nodes: u64) -> Self {
        let (read, write) = (Zipf::new(nodes, 0.8), Zipf::new(nodes, 0.741));
        let link_read = Blend { uncorrelated: 995, uncorrelated_zipf: read, correlated_zipf: read };
        let link_write = match dialect {
            Dialect::Spec => {
                Blend { uncorrelated: 950, uncorrelated_zipf: write, correlated_zipf: write }
            }
            // The program looks the second distribution of writes up under the name of the reads'
            // one.
            Dialect::Linkbench => Blend { correlated_zipf: write, ..link_read },
        };
        Self {
            nodes,
            link_read,
            link_write,
            node_read: Zipf::new(nodes, 0.625),
            node_update: Zipf::new(nodes, 0.606),
            by_degree: Shuffle::new(DEGREE_SEED, nodes),
            uncorrelated: Shuffle::new(UNCORRELATED_SEED, nodes),
            by_node: Shuffle::new(NODE_SEED, nodes),
        }
    }

    /// An id for an operation.
    pub fn draw(&self, to: Use, draws: &mut Draws) -> u64 {
        let (zipf, shuffle) = match to {
            Use::LinkRead => self.blended(&self.link_read, draws),
            Use::LinkWrite => self.blended(&self.link_write, draws),
            Use::NodeRead => (&self.node_read, &self.by_node),
            Use::NodeUpdate => (&self.node_update, &self.by_node),
            Use::NodeDelete => return 1 + draws.below(self.nodes),
        };
        1 + shuffle.permute(zipf.quantile(share(draws)))
    }

    fn blended<'a>(&'a self, blend: &'a Blend, draws: &mut Draws) -> (&'a Zipf, &'a Shuffle) {
        if draws.below(1000) < blend.uncorrelated {
            (&blend.uncorrelated_zipf, &self.uncorrelated)
        } else {
            (&blend.correlated_zipf, &self.by_degree)
        }
    }
}

/// A number from 0 to 1, 1 excluded.
pub(super) fn share(draws: &mut Draws) -> f64 {
    draws.below(SHARE_UNITS) as f64 / SHARE_UNITS as f64
}
