//! TPC-B: the generator, the rows, the transaction and the four sums.
//!
//! Owns the workload to the letter, with the quirks of the implementations that the papers ran.
//!
//! - **T1** The order within a transaction is account, history, teller, branch.
//! - **T2** Keys are big-endian u64; a history key is (client, sequence), and a client's sequence
//!   numbers are spent by commits alone, so that its rows are always `0..n` without a gap.
//! - **T3** A balance is the first eight bytes of its row and the only bytes that change.
//! - **T4** The sums of branches, tellers, accounts and history deltas are equal whenever no
//!   transaction is in flight, and in every snapshot.

mod rows;
mod sums;
mod teller;
#[cfg(test)]
mod tests;
mod transfer;

use std::fmt;

use flagstone_engine::{EngineError, Table};
use serde::{Deserialize, Serialize};

use super::{Acknowledged, Draws, Put, Workload};
use crate::bench::BenchError;
use crate::sizing::Content;
use crate::store::Store;

pub use rows::{HISTORY_SIZE, HistoryKey, HistoryRow, ROW_SIZE, Row, Rows};
pub use sums::{Sums, SumsFault};
pub use teller::Teller;
pub use transfer::Transfer;

/// Tellers of a branch.
pub const TELLERS_PER_BRANCH: u64 = 10;
/// Accounts of a branch.
pub const ACCOUNTS_PER_BRANCH: u64 = 100_000;
/// Largest amount of a transfer in the specification.
const DELTA_MAX: i64 = 999_999;

/// Which implementation's habits the workload follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    /// The specification: teller uniform, 85 % of the accounts in the teller's branch, balances
    /// 64-bit integers.
    #[default]
    Spec,
    /// Shore-Kits: branch first; an account is remote when a draw of 0..=100 exceeds 85; the
    /// remote branch is drawn from 0..=scale, one too many, so that some transactions find no
    /// account and abort; deltas from -1,000,000 to 1,000,000; balances 64-bit floats.
    ShoreKits,
    /// Shore-Kits compiled with `ONLY_LOCAL_TCPB`: the same, with every account local.
    ShoreKitsLocal,
}

impl Dialect {
    /// Every dialect.
    pub const ALL: [Self; 3] = [Self::Spec, Self::ShoreKits, Self::ShoreKitsLocal];

    /// Name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Spec => "spec",
            Self::ShoreKits => "shore-kits",
            Self::ShoreKitsLocal => "shore-kits-local",
        }
    }

    /// The dialect called `name`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.name() == name)
    }

    pub(crate) const fn balance_kind(self) -> BalanceKind {
        match self {
            Self::Spec => BalanceKind::Integer,
            Self::ShoreKits | Self::ShoreKitsLocal => BalanceKind::Float,
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// How eight bytes of a row hold an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalanceKind {
    /// Little-endian i64.
    Integer,
    /// Little-endian f64. Amounts are whole numbers far below 2^53, so sums are exact.
    Float,
}

impl BalanceKind {
    /// The amount in `bytes`; 0 when fewer than eight are given.
    #[must_use]
    pub fn decode(self, bytes: &[u8]) -> i64 {
        let Some(Ok(bytes)) = bytes.get(..8).map(<[u8; 8]>::try_from) else {
            return 0;
        };
        match self {
            Self::Integer => i64::from_le_bytes(bytes),
            Self::Float => f64::from_le_bytes(bytes) as i64,
        }
    }

    /// The eight bytes that hold `amount`.
    #[must_use]
    pub fn encode(self, amount: i64) -> [u8; 8] {
        match self {
            Self::Integer => amount.to_le_bytes(),
            Self::Float => (amount as f64).to_le_bytes(),
        }
    }
}

/// The four tables, in the order of the transaction (rule T1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables {
    /// Accounts: 100,000 a branch.
    pub account: Table,
    /// History: one row a commit.
    pub history: Table,
    /// Tellers: ten a branch.
    pub teller: Table,
    /// Branches.
    pub branch: Table,
}

/// Names of the four tables, in the order of [`Tables`].
pub const TABLE_NAMES: [&str; 4] = ["account", "history", "teller", "branch"];

impl Tables {
    /// Opens the four tables with `open`, which is given each name.
    ///
    /// # Errors
    ///
    /// The first error of `open`.
    pub fn open<E>(mut open: impl FnMut(&'static str) -> Result<Table, E>) -> Result<Self, E> {
        let [account, history, teller, branch] = TABLE_NAMES;
        Ok(Self {
            account: open(account)?,
            history: open(history)?,
            teller: open(teller)?,
            branch: open(branch)?,
        })
    }
}

/// A TPC-B workload: dialect, size and seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tpcb {
    /// Whose habits to follow.
    pub dialect: Dialect,
    /// Branches.
    pub scale: u32,
    /// Seed of every stream.
    pub seed: u64,
}

/// Inputs of one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// Account to change.
    pub account: u64,
    /// Teller to change.
    pub teller: u64,
    /// The teller's branch.
    pub branch: u64,
    /// Amount to add to all three.
    pub delta: i64,
}

/// Endless inputs of one client.
#[derive(Clone, Debug)]
pub struct Stream {
    tpcb: Tpcb,
    draws: Draws,
}

impl Tpcb {
    /// Inputs of stream `client`.
    #[must_use]
    pub fn stream(&self, client: u64) -> Stream {
        Stream { tpcb: *self, draws: Draws::new(self.seed, client) }
    }

    /// Accounts at this scale.
    #[must_use]
    pub fn account_count(&self) -> u64 {
        u64::from(self.scale) * ACCOUNTS_PER_BRANCH
    }

    /// Tellers at this scale.
    #[must_use]
    pub fn teller_count(&self) -> u64 {
        u64::from(self.scale) * TELLERS_PER_BRANCH
    }

    /// Branches at this scale.
    #[must_use]
    pub fn branch_count(&self) -> u64 {
        u64::from(self.scale)
    }
}

impl Tpcb {
    /// Scans the four tables in one state of the database.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub fn sums<S: Store>(&self, store: &S) -> Result<Sums, EngineError> {
        let mut sums = Sums::new(self);
        store.visit(&TABLE_NAMES, &mut |table, key, value| match table {
            0 => sums.add_account(value),
            1 => sums.add_history(key, value),
            2 => sums.add_teller(value),
            _ => sums.add_branch(value),
        })?;
        Ok(sums)
    }
}

impl Workload for Tpcb {
    type Tables = Tables;
    type Terminal = Teller;

    fn name(&self) -> String {
        format!("tpcb/{}", self.dialect)
    }

    fn identity(&self) -> String {
        format!("{self:?}")
    }

    fn classes(&self) -> &'static [&'static str] {
        &["transfer"]
    }

    fn tables<E>(&self, open: impl FnMut(&'static str) -> Result<Table, E>) -> Result<Tables, E> {
        Tables::open(open)
    }

    fn load(&self, tables: Tables, put: Put<'_>) -> Result<(), EngineError> {
        self.rows(tables).try_for_each(|row| put(row.table, &row.key, &row.value))
    }

    fn row_count(&self) -> u64 {
        self.branch_count() + self.teller_count() + self.account_count()
    }

    fn loaded_bytes(&self) -> u64 {
        self.row_count() * (8 + ROW_SIZE as u64)
    }

    fn contents(&self, txns: u64, clients: u32) -> Vec<Content> {
        let full = |rows| Content { rows, entry_size: ROW_ENTRY_SIZE, edges: 0 };
        vec![
            full(self.account_count()),
            full(self.teller_count()),
            full(self.branch_count()),
            Content { rows: txns, entry_size: HISTORY_ENTRY_SIZE, edges: clients },
        ]
    }

    fn terminal(&self, tables: Tables, number: u64) -> Teller {
        Teller::new(self, tables, number, 0, 0)
    }

    fn verify<S: Store>(&self, store: &S, acknowledged: &Acknowledged) -> Result<(), BenchError> {
        self.sums(store)?.verify(acknowledged)?;
        Ok(())
    }
}

/// Bytes of an account, teller or branch entry in a leaf.
const ROW_ENTRY_SIZE: u32 = 8 + ROW_SIZE as u32;
/// Bytes of a history entry in a leaf: fences cut a key to its last two bytes.
const HISTORY_ENTRY_SIZE: u32 = 2 + HISTORY_SIZE as u32;

impl Stream {
    /// Inputs of the next transaction.
    pub fn inputs(&mut self) -> Inputs {
        match self.tpcb.dialect {
            Dialect::Spec => self.spec(),
            Dialect::ShoreKits => self.shore_kits(),
            Dialect::ShoreKitsLocal => self.shore_kits_local(),
        }
    }

    fn spec(&mut self) -> Inputs {
        let branch_count = self.tpcb.branch_count();
        let teller = self.draws.below(self.tpcb.teller_count());
        let branch = teller / TELLERS_PER_BRANCH;
        let is_remote = branch_count > 1 && self.draws.below(100) >= 85;
        let home = if is_remote {
            // Uniform over the branches other than the teller's.
            let other = self.draws.below(branch_count - 1);
            if other >= branch { other + 1 } else { other }
        } else {
            branch
        };
        let account = home * ACCOUNTS_PER_BRANCH + self.draws.below(ACCOUNTS_PER_BRANCH);
        let delta = self.draws.between(-DELTA_MAX, DELTA_MAX);
        Inputs { account, teller, branch, delta }
    }

    fn shore_kits(&mut self) -> Inputs {
        let mut inputs = self.shore_kits_local();
        // `URand(0, 100) > 85`: 15 of 101 draws. `URand(0, sf)` includes a branch that is not
        // there; its accounts are not found.
        if self.draws.below(101) > 85 {
            let branch = self.draws.below(self.tpcb.branch_count() + 1);
            inputs.account = branch * ACCOUNTS_PER_BRANCH + inputs.account % ACCOUNTS_PER_BRANCH;
        }
        inputs
    }

    fn shore_kits_local(&mut self) -> Inputs {
        let branch = self.draws.below(self.tpcb.branch_count());
        let teller = branch * TELLERS_PER_BRANCH + self.draws.below(TELLERS_PER_BRANCH);
        let account = branch * ACCOUNTS_PER_BRANCH + self.draws.below(ACCOUNTS_PER_BRANCH);
        let delta = self.draws.between(-1_000_000, 1_000_000);
        Inputs { account, teller, branch, delta }
    }
}
