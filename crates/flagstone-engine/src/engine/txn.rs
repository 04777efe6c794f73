//! Layer 2 of the engine, the transactions: their private changes, their locks, and the one that is being committed with
//! its leaves.
//!
//! A transaction changes nothing of the store: its commit does (layer 4).

use hashbrown::HashMap;

use crate::engine::store::Store;
use crate::engine::txn::transaction::Transaction;
use crate::lock::{LockTable, Xid};

pub(in crate::engine) mod access;
pub(in crate::engine) mod claim;
pub(in crate::engine) mod dropped;
pub(in crate::engine) mod scan;
pub(in crate::engine) mod spill;
pub(in crate::engine) mod tables;
pub(in crate::engine) mod transaction;
pub(in crate::engine) mod value;

/// Layer 2 of the engine, the transactions: their private changes, their locks, and the one that is being committed
/// with its leaves.
#[derive(Debug)]
pub struct Transactions {
    pub(in crate::engine) store: Store,
    pub(in crate::engine) transactions: HashMap<Xid, Transaction>,
    locks: LockTable,
    pub(in crate::engine) woken: Vec<Xid>,
    pub(in crate::engine) claim: Option<claim::Claim>,
    pub(in crate::engine) drops: dropped::Drops,
    scratch: Vec<u8>,
}

stands_on!(Transactions, store: Store);

/// Locks of one transaction may take one part in this many of the memory beside it.
const LOCKS_SHARE: usize = 16;

impl Transactions {
    /// No transaction yet, above a store with `memory` bytes.
    pub(in crate::engine) fn new(store: Store, memory: usize) -> Self {
        Self {
            store,
            transactions: HashMap::new(),
            locks: LockTable::within(memory / LOCKS_SHARE),
            woken: Vec::new(),
            claim: None,
            drops: dropped::Drops::default(),
            scratch: Vec::new(),
        }
    }

    /// Transactions that may call their operation again, each named once.
    pub fn take_woken(&mut self) -> Vec<Xid> {
        std::mem::take(&mut self.woken)
    }

    /// Whether there are transactions to call again that were not named yet.
    pub(crate) fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }
}
