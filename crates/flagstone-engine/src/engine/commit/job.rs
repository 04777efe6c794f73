//! Background work that does I/O, as the runtime carries it out.

use flagstone_space::{GroupId, LogicalPage, PinId};

use crate::engine::store::catalog::Table;
use crate::engine::store::groups::{InstallJob, PageWrite, WriteJob};
use crate::engine::store::value::Release;
use crate::engine::txn::dropped::Freed;
use crate::engine::txn::spill::SpillJob;

/// A checkpoint to be written by the space floor.
#[derive(Debug)]
pub(crate) struct CheckpointJob {
    /// The master record, kept by the mapping checkpoint.
    pub(crate) master: Vec<u8>,
    /// Nothing is written after it.
    pub(crate) is_last: bool,
    /// Log pages below this are not needed once it is durable.
    pub(crate) release_before: u64,
}

/// I/O for a claim.
#[derive(Debug)]
pub(crate) enum ClaimJob {
    /// Program one page of the group.
    Write(GroupId, PageWrite),
    /// Make the group's pages durable, then `Commits::claim_sealed`.
    Seal,
    /// Program the group's flag and read it back; then the claim is installed. The pages are durable
    /// already: each was waited for.
    Flag(GroupId),
    /// Write the leaves that one leaf became, and the inner nodes that lead to them.
    Reshape(Box<WriteJob>),
}

/// One piece of background work that does I/O.
#[derive(Debug)]
pub(crate) enum Job {
    /// Program pages, then `Merges::written`.
    Write(Box<WriteJob>),
    /// Make the pages of groups durable, up to this group's, then `Merges::synced`.
    Sync(GroupId),
    /// Move the mapping to a group's pages, then `Merges::install`, both at once.
    Install(Box<InstallJob>),
    /// Program a transaction's changes.
    Spill(SpillJob),
    /// Write or commit the leaves of a large transaction.
    Claim(ClaimJob),
    /// Free or switch pages after a commit; the flag says whether the commit is of this session.
    Release(Release, bool),
    /// Read a node of a table that was dropped, then `Commits::visited`.
    Visit(Table, LogicalPage),
    /// Free pages of a table that was dropped, then `Commits::freed`.
    Free(Freed),
    /// Let go of pages that only ended snapshots needed.
    Unpin(Vec<PinId>),
    /// Write a mapping checkpoint with this master record, then release the log's head.
    Checkpoint(CheckpointJob),
}

/// Result of the search for work.
#[derive(Debug)]
pub(crate) enum Next {
    /// I/O to be done.
    Job(Job),
    /// The engine moved on without I/O: look again.
    Stepped,
    /// Nothing can be done now.
    Idle,
}
