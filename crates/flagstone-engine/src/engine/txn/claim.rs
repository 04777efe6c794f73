//! The transaction that is being committed with its leaves, as far as other transactions and merges look at
//! it. The steps are layer 4's (`commit/claim.rs`).

use flagstone_space::{GroupId, GroupSpan, LogicalPage, Lsn};

use crate::delta::KeyRange;
use crate::engine::store::catalog::Table;
use crate::engine::store::groups::InstallJob;
use crate::engine::txn::Transactions;
use crate::engine::txn::transaction::Transaction;
use crate::lock::Xid;

/// How far a claim has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Phase {
    /// Waits until this commit is durable.
    Settling(Lsn),
    /// Looks at leaf after leaf.
    Writing,
    /// Its last page is being written, or made durable; its record follows.
    Sealing,
    /// Its record has this LSN.
    Recorded(Lsn),
    /// Its flag is being programmed. No record has this LSN, its place in the order of commits (Q7).
    Flagging(Lsn),
}

/// Fate of the claim when its transaction is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Owner {
    Waits,
    Gone,
}

/// A leaf whose new image is in the group.
#[derive(Debug)]
pub(in crate::engine) struct ClaimedLeaf {
    pub(in crate::engine) table: Table,
    pub(in crate::engine) page: LogicalPage,
    pub(in crate::engine) low: Vec<u8>,
    pub(in crate::engine) high: Option<Vec<u8>>,
    /// LSN that the image is complete to.
    pub(in crate::engine) upto: Lsn,
    pub(in crate::engine) base_lsn: Lsn,
    /// Entries more than before.
    pub(in crate::engine) grown: i64,
}

impl ClaimedLeaf {
    pub(in crate::engine) fn range(&self) -> KeyRange<'_> {
        KeyRange { low: &self.low, high: self.high.as_deref() }
    }
}

/// A transaction that is being committed with its leaves.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(in crate::engine) xid: Xid,
    pub(in crate::engine) group: Option<GroupId>,
    pub(in crate::engine) phase: Phase,
    pub(in crate::engine) owner: Owner,
    /// First of its private keys that was not looked at.
    pub(in crate::engine) next: Option<Vec<u8>>,
    /// Some of its changes have to be logged.
    pub(in crate::engine) has_rest: bool,
    pub(in crate::engine) leaves: Vec<ClaimedLeaf>,
    /// Pages of these leaves, as versions that its record names (Q6).
    pub(in crate::engine) pages: Vec<GroupSpan>,
    /// Install of the one leaf that became several, once its pages are on flash.
    pub(in crate::engine) reshaped: Option<InstallJob>,
}

impl Claim {
    /// Whether its last page is written: the claim is about to be committed, or is committed.
    pub(in crate::engine) fn is_decided(&self) -> bool {
        !matches!(self.phase, Phase::Settling(_) | Phase::Writing)
    }

    /// Whether restart may find the claim committed.
    pub(in crate::engine) fn may_be_committed(&self) -> bool {
        matches!(self.phase, Phase::Recorded(_) | Phase::Flagging(_))
    }

    /// Pages of its group.
    pub(crate) fn page_count(&self) -> usize {
        self.leaves.len() + self.reshaped.as_ref().map_or(0, |job| job.grouped.page_count())
    }
}

impl Transactions {
    /// Whether `xid` is being committed with its leaves.
    pub(crate) fn is_claiming(&self, xid: Xid) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.xid == xid)
    }

    /// The pages of a leaf that became several are durable, and the record that names them is in the
    /// log: it commits the transaction (Q5).
    pub(in crate::engine) fn claim_reshaped(&mut self, install: InstallJob) {
        let Some(claim) = &mut self.claim else { return };
        let lsn = install.lsn;
        (claim.group, claim.phase) = (Some(install.grouped.group), Phase::Recorded(lsn));
        claim.reshaped = Some(install);
        let placeholder = Transaction { is_refused: true, ..Transaction::default() };
        if let Some(own) = self.transactions.insert(claim.xid, placeholder) {
            self.memory.uncommitted -= own.size;
        }
        (self.frontier.committed, self.frontier.flush_to) = (lsn, self.frontier.flush_to.max(lsn));
    }

    /// Whether a change of some tree's shape is written and not installed.
    pub(in crate::engine) fn has_installs(&self) -> bool {
        self.open_groups().next().is_some()
            || self.drops.has_freed()
            || self.claim.as_ref().is_some_and(|claim| claim.reshaped.is_some())
    }
}
