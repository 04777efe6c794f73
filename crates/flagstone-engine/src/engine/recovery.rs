//! Layer 5 of the engine, recovery: checkpoints, and the restart that begins with the last one.
//!
//! Owns the numbers that only a restart needs. Never chooses between checkpoints and other work: `engine.rs`
//! does.

use flagstone_space::{GroupId, GroupSpan, LogicalPage};

use crate::engine::commit::Commits;
use crate::log::ChainPoint;

pub(in crate::engine) mod checkpoint;
pub(in crate::engine) mod master;
pub(in crate::engine) mod restart;

/// Layer 5 of the engine, recovery: checkpoints, and the restart that begins with the last one.
#[derive(Debug)]
pub struct Recovery {
    commits: Commits,
    /// Where the chain of durable fragments ends.
    pub(in crate::engine) durable_chain: ChainPoint,
    /// Numbers that no page gets while restart puts commits back.
    held_numbers: Vec<LogicalPage>,
    /// Group and pages of the claim whose marker was replayed last: the next record commits it.
    replayed_claim: Option<(GroupId, Vec<GroupSpan>)>,
}

stands_on!(Recovery, commits: Commits);

impl Recovery {
    /// Recovery of an engine whose log ends at `chain`.
    pub(in crate::engine) fn new(commits: Commits, chain: ChainPoint) -> Self {
        Self { commits, durable_chain: chain, held_numbers: Vec::new(), replayed_claim: None }
    }
}
