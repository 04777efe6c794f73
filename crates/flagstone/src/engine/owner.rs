//! Whom a handle belongs to.
//!
//! Tables, transactions and snapshots are named by numbers that begin alike in every database. So what is handed
//! out says who gave it out: no two engines of a process are the same owner, the same database opened again
//! among them. Transactions have numbers that no other engine gives.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock::Xid;

/// An engine, or a kept snapshot, among all of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Owner(NonZeroU64);

/// The last number given to an owner, and to a transaction.
static OWNERS: AtomicU64 = AtomicU64::new(0);
static TRANSACTIONS: AtomicU64 = AtomicU64::new(0);

impl Owner {
    /// One that was not there before.
    pub(crate) fn unique() -> Self {
        // Numbers of 64 bits do not come round.
        let before = OWNERS.fetch_add(1, Ordering::Relaxed);
        Self(NonZeroU64::MIN.saturating_add(before))
    }
}

/// The number of a transaction: above that of every one before.
pub(super) fn next_xid() -> Xid {
    Xid(TRANSACTIONS.fetch_add(1, Ordering::Relaxed) + 1)
}
