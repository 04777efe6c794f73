//! The four sums (rule T4), and which history rows each client has.

use std::collections::BTreeMap;

use thiserror::Error;

use super::{BalanceKind, HistoryKey, Tpcb};
use crate::workload::Acknowledged;

/// Findings of a scan of the four tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sums {
    kind: BalanceKind,
    /// Sum of the branches' balances.
    pub branches: i64,
    /// Sum of the tellers' balances.
    pub tellers: i64,
    /// Sum of the accounts' balances.
    pub accounts: i64,
    /// Sum of the history's deltas.
    pub history: i64,
    /// Accounts found.
    pub account_rows: u64,
    /// History rows of each client, which must be the first ones.
    pub history_rows: BTreeMap<u64, u64>,
    account_rows_expected: u64,
    gap: Option<HistoryKey>,
}

/// How a database contradicts TPC-B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SumsFault {
    /// The sums differ: part of a transaction is missing.
    #[error(
        "the four sums differ: branches {branches}, tellers {tellers}, accounts {accounts}, \
         history {history}"
    )]
    Unequal {
        /// Sum of the branches.
        branches: i64,
        /// Sum of the tellers.
        tellers: i64,
        /// Sum of the accounts.
        accounts: i64,
        /// Sum of the history.
        history: i64,
    },
    /// A client's history has a gap: a transaction is missing that a later one followed.
    #[error("client {client} has no history row before {sequence}")]
    Gap {
        /// Client concerned.
        client: u64,
        /// Row that follows the gap.
        sequence: u64,
    },
    /// Fewer history rows than acknowledged commits: a durable commit is lost.
    #[error("client {client} has {found} history rows, but {acknowledged} commits returned")]
    Lost {
        /// Client concerned.
        client: u64,
        /// Rows found.
        found: u64,
        /// Commits that returned.
        acknowledged: u64,
    },
    /// Accounts are missing.
    #[error("{found} accounts of {expected} are there")]
    Accounts {
        /// Rows found.
        found: u64,
        /// Rows loaded.
        expected: u64,
    },
}

impl Sums {
    /// Nothing scanned yet.
    #[must_use]
    pub fn new(tpcb: &Tpcb) -> Self {
        Self {
            kind: tpcb.dialect.balance_kind(),
            branches: 0,
            tellers: 0,
            accounts: 0,
            history: 0,
            account_rows: 0,
            account_rows_expected: tpcb.account_count(),
            history_rows: BTreeMap::new(),
            gap: None,
        }
    }

    /// Adds a branch row.
    pub fn add_branch(&mut self, value: &[u8]) {
        self.branches += self.kind.decode(value);
    }

    /// Adds a teller row.
    pub fn add_teller(&mut self, value: &[u8]) {
        self.tellers += self.kind.decode(value);
    }

    /// Adds an account row.
    pub fn add_account(&mut self, value: &[u8]) {
        self.accounts += self.kind.decode(value);
        self.account_rows += 1;
    }

    /// Adds a history row; rows come in key order.
    pub fn add_history(&mut self, key: &[u8], value: &[u8]) {
        self.history += self.kind.decode(value);
        let Some(key) = HistoryKey::decode(key) else {
            return;
        };
        let rows = self.history_rows.entry(key.client).or_default();
        if *rows != key.sequence && self.gap.is_none() {
            self.gap = Some(key);
        }
        *rows += 1;
    }

    /// Checks rule T4, and that every commit of `acknowledged` is there.
    ///
    /// # Errors
    ///
    /// The first contradiction.
    pub fn verify(&self, acknowledged: &Acknowledged) -> Result<(), SumsFault> {
        let Self { branches, tellers, accounts, history, .. } = *self;
        let (found, expected) = (self.account_rows, self.account_rows_expected);
        if found != expected {
            return Err(SumsFault::Accounts { found, expected });
        }
        if [branches, tellers, accounts].iter().any(|sum| *sum != history) {
            return Err(SumsFault::Unequal { branches, tellers, accounts, history });
        }
        if let Some(HistoryKey { client, sequence }) = self.gap {
            return Err(SumsFault::Gap { client, sequence });
        }
        for (&client, acknowledged) in acknowledged {
            let acknowledged = acknowledged.iter().sum();
            let found = self.history_rows.get(&client).copied().unwrap_or(0);
            if found < acknowledged {
                return Err(SumsFault::Lost { client, found, acknowledged });
            }
        }
        Ok(())
    }
}
