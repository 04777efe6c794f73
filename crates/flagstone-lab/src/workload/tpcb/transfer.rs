//! The transaction, as a state machine that goes on where it stopped (rule W2).
//!
//! ```text
//! ReadAccount → PatchAccount → PutHistory → ReadTeller → PatchTeller
//!      │                                                     ↓
//!      └─ absent → abort                Done ← PatchBranch ← ReadBranch
//! ```

use super::{BalanceKind, HistoryKey, HistoryRow, Inputs, Table, Tables};
use crate::workload::{Intent, Operations, Outcome, Part};

/// Where a balance stands in its row (rule T3).
const BALANCE: Part = Part { offset: 0, size: 8 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    ReadAccount,
    PatchAccount,
    PutHistory,
    ReadTeller,
    PatchTeller,
    ReadBranch,
    PatchBranch,
    Done,
}

/// One transaction under way.
#[derive(Clone, Debug)]
pub struct Transfer {
    inputs: Inputs,
    history: HistoryKey,
    kind: BalanceKind,
    step: Step,
    /// Balance read by the last read step.
    balance: Vec<u8>,
}

impl Transfer {
    /// A transaction with `inputs`, whose history row goes under `history`.
    #[must_use]
    pub fn new(kind: BalanceKind, inputs: Inputs, history: HistoryKey) -> Self {
        let balance = Vec::with_capacity(BALANCE.size);
        Self { inputs, history, kind, step: Step::ReadAccount, balance }
    }

    /// Turns this into another transaction, keeping its buffer.
    pub fn reset(&mut self, inputs: Inputs, history: HistoryKey) {
        self.inputs = inputs;
        self.history = history;
        self.restart();
    }

    /// Goes back to the first step: the engine has aborted the transaction.
    pub fn restart(&mut self) {
        self.step = Step::ReadAccount;
    }

    /// Key of the history row.
    #[must_use]
    pub fn history(&self) -> HistoryKey {
        self.history
    }

    /// Goes on until all is written, or until an operation stops; then it is called again once
    /// the reason has gone. Aborts when the account does not exist, which Shore-Kits provokes.
    ///
    /// # Errors
    ///
    /// The engine's reason to stop.
    pub fn advance<O: Operations>(
        &mut self,
        tables: &Tables,
        engine: &mut O,
    ) -> Result<Outcome, O::Stop> {
        let Inputs { account, teller, branch, .. } = self.inputs;
        loop {
            self.step = match self.step {
                Step::ReadAccount => {
                    if !self.read(engine, tables.account, account)? {
                        return Ok(Outcome::Abort);
                    }
                    Step::PatchAccount
                }
                Step::PatchAccount => {
                    self.patch(engine, tables.account, account)?;
                    Step::PutHistory
                }
                Step::PutHistory => {
                    self.put_history(engine, tables.history)?;
                    Step::ReadTeller
                }
                Step::ReadTeller => {
                    self.read(engine, tables.teller, teller)?;
                    Step::PatchTeller
                }
                Step::PatchTeller => {
                    self.patch(engine, tables.teller, teller)?;
                    Step::ReadBranch
                }
                Step::ReadBranch => {
                    self.read(engine, tables.branch, branch)?;
                    Step::PatchBranch
                }
                Step::PatchBranch => {
                    self.patch(engine, tables.branch, branch)?;
                    Step::Done
                }
                Step::Done => return Ok(Outcome::Commit),
            };
        }
    }

    fn read<O: Operations>(
        &mut self,
        engine: &mut O,
        table: Table,
        key: u64,
    ) -> Result<bool, O::Stop> {
        engine.get_part(table, &key.to_be_bytes(), BALANCE, Intent::Change, &mut self.balance)
    }

    /// Patches the row of `key`, whose balance the step before has read.
    fn patch<O: Operations>(
        &mut self,
        engine: &mut O,
        table: Table,
        key: u64,
    ) -> Result<(), O::Stop> {
        let balance = self.kind.decode(&self.balance) + self.inputs.delta;
        engine.patch(table, &key.to_be_bytes(), BALANCE.offset, &self.kind.encode(balance))
    }

    fn put_history<O: Operations>(&self, engine: &mut O, table: Table) -> Result<(), O::Stop> {
        let row = HistoryRow { inputs: self.inputs, time: self.history.sequence };
        engine.put(table, &self.history.encode(), &row.encode(self.kind))
    }
}
