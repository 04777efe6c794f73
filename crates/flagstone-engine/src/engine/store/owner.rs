//! The owner of a handle.
//!
//! Tables, transactions and snapshots are named by numbers that begin alike in every database. So every
//! handle names the engine that gave it out: no two engines of a process are the same owner, and
//! neither are two sessions of the same database. Transactions have numbers that no other engine gives.
//! A table outlives the session: a database has an identity of its own on flash, by which it knows its
//! tables when it is opened again.

use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock::Xid;

/// An engine, or a named snapshot, among all of this process.
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

/// A database among all others: a random number, drawn when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Identity(NonZeroU64);

impl Identity {
    /// The identity of a new database: from `seed` if there is one, else from the randomness of the system.
    pub(crate) fn draw(seed: Option<u64>) -> Self {
        let drawn = seed.unwrap_or_else(|| RandomState::new().hash_one("identity"));
        Self(NonZeroU64::new(drawn).unwrap_or(NonZeroU64::MIN))
    }

    /// The identity with this number; 0 is none.
    pub(crate) fn of(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// The number, which is not 0.
    pub(crate) fn number(self) -> u64 {
        self.0.get()
    }
}

/// Owner that gives out tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableOwner {
    pub(crate) owner: Owner,
    /// Identity of its database, if the database knows its tables again.
    pub(crate) database: Option<Identity>,
}

impl TableOwner {
    /// An owner that keeps its tables to itself.
    pub(crate) fn alone() -> Self {
        Self { owner: Owner::unique(), database: None }
    }
}

/// The number of a transaction: above that of every one before.
pub(in crate::engine) fn next_xid() -> Xid {
    Xid(TRANSACTIONS.fetch_add(1, Ordering::Relaxed) + 1)
}
