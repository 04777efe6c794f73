//! The bytes of the rows, and the rows of a fresh database in key order.

use super::{ACCOUNTS_PER_BRANCH, BalanceKind, Inputs, TELLERS_PER_BRANCH, Table, Tables, Tpcb};
use crate::workload::Workload as _;

/// Bytes of a branch, teller or account row without its key.
pub const ROW_SIZE: usize = 100;
/// Bytes of a history row without its key.
pub const HISTORY_SIZE: usize = 50;

/// One row of a fresh database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Table the row belongs to.
    pub table: Table,
    /// Big-endian key.
    pub key: [u8; 8],
    /// Balance, branch, filler.
    pub value: [u8; ROW_SIZE],
}

/// Rows of a fresh database: branches, tellers, accounts, each in key order.
#[derive(Clone, Debug)]
pub struct Rows {
    tpcb: Tpcb,
    tables: Tables,
    next: u64,
}

impl Tpcb {
    /// Rows to load into `tables`.
    #[must_use]
    pub fn rows(&self, tables: Tables) -> Rows {
        Rows { tpcb: *self, tables, next: 0 }
    }
}

impl Iterator for Rows {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        let (branches, tellers) = (self.tpcb.branch_count(), self.tpcb.teller_count());
        let number = self.next;
        if number >= self.tpcb.row_count() {
            return None;
        }
        self.next += 1;
        let (table, index, per_branch) = if number < branches {
            (self.tables.branch, number, 1)
        } else if number < branches + tellers {
            (self.tables.teller, number - branches, TELLERS_PER_BRANCH)
        } else {
            (self.tables.account, number - branches - tellers, ACCOUNTS_PER_BRANCH)
        };
        let value = row(self.tpcb.dialect.balance_kind(), index, index / per_branch);
        Some(Row { table, key: index.to_be_bytes(), value })
    }
}

/// A row with balance 0: the balance, the branch, and filler that differs from row to row.
fn row(kind: BalanceKind, index: u64, branch: u64) -> [u8; ROW_SIZE] {
    let mut value = [0; ROW_SIZE];
    let (balance, rest) = value.split_at_mut(8);
    balance.copy_from_slice(&kind.encode(0));
    let (home, filler) = rest.split_at_mut(8);
    home.copy_from_slice(&branch.to_le_bytes());
    filler.fill(b'a' + (index % 26) as u8);
    value
}

/// Key of a history row (rule T2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HistoryKey {
    /// Client that committed.
    pub client: u64,
    /// How many commits it had made before.
    pub sequence: u64,
}

impl HistoryKey {
    /// The key's sixteen bytes.
    #[must_use]
    pub fn encode(self) -> [u8; 16] {
        (u128::from(self.client) << 64 | u128::from(self.sequence)).to_be_bytes()
    }

    /// The key in `bytes`, when they are sixteen.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let both = u128::from_be_bytes(bytes.try_into().ok()?);
        Some(Self { client: (both >> 64) as u64, sequence: both as u64 })
    }
}

/// A history row: delta, account, teller, branch, logical time, filler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryRow {
    /// Inputs of the transaction.
    pub inputs: Inputs,
    /// Logical time: the client's sequence number.
    pub time: u64,
}

impl HistoryRow {
    /// The row's fifty bytes.
    #[must_use]
    pub fn encode(&self, kind: BalanceKind) -> [u8; HISTORY_SIZE] {
        let mut value = [b'h'; HISTORY_SIZE];
        let fields = [
            kind.encode(self.inputs.delta),
            self.inputs.account.to_le_bytes(),
            self.inputs.teller.to_le_bytes(),
            self.inputs.branch.to_le_bytes(),
            self.time.to_le_bytes(),
        ];
        for (target, field) in value.chunks_exact_mut(8).zip(fields) {
            target.copy_from_slice(&field);
        }
        value
    }
}
