//! The account of a budget of wear.
//!
//! Owns the account and the decision at its end; what is done to the flash is counted by the space floor
//! ([`Bill`]). Time comes from the caller: nothing here reads a clock of its own.
//!
//! Invariants:
//! - **G1** Over any time, what is admitted is at most a day's allowance, and what the time has earned; what
//!   goes on after that is work of transactions that were admitted, and is paid back.
//! - **G2** A transaction is refused at its first change or not at all; reading and restart never are.
//! - **G3** A clock that stands still or goes back earns nothing, and takes nothing away.

use std::fmt;
use std::time::Duration;

use flagstone_nand::Nand;
use flagstone_space::Bill;
use tracing::warn;

use super::{EVENTS, Runtime};
use crate::error::EngineError;

/// What a day's allowance counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// Bytes programmed, data and spare, for whatever cause.
    Bytes(u64),
    /// Blocks erased. On a device that needs no erases, such as a file, segments that are used again.
    Erases(u64),
}

impl Allowance {
    const fn amount(self) -> u64 {
        match self {
            Self::Bytes(amount) | Self::Erases(amount) => amount,
        }
    }

    fn of(self, bill: &Bill) -> u64 {
        match self {
            Self::Bytes(_) => bill.bytes(),
            Self::Erases(_) => bill.erases(),
        }
    }
}

/// What happens when the allowance is used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtLimit {
    /// Transactions are refused at their first change, with [`EngineError::WearBudget`], which says how
    /// long to wait.
    #[default]
    Refuse,
    /// Nothing is refused. `Database::wear_status` says how far the budget is overdrawn, and a
    /// `tracing` event at level WARN says when it begins to be.
    Report,
}

/// How much a database may do to its flash: see `Database::set_wear_budget`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WearBudget {
    /// What is earned in a day, evenly, and saved up for a day at most.
    pub per_day: Allowance,
    /// What happens when nothing is left.
    pub at_limit: AtLimit,
    /// What is left now, below 0 when it is overdrawn; none: a whole day's allowance. A program that
    /// wants the budget to hold over restarts keeps [`WearStatus::left`] and gives it back.
    pub left: Option<i64>,
}

/// State of a wear budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WearStatus {
    /// Bytes or erases left, below 0 when the budget is overdrawn.
    pub left: i64,
    /// Transactions refused.
    pub refused: u64,
}

/// Nanoseconds of a day.
const DAY_NS: i128 = 86_400 * 1_000_000_000;

/// Where the time comes from.
type Clock = Box<dyn Fn() -> Duration + Send + Sync>;

/// The account of a budget. Amounts are kept multiplied by the nanoseconds of a day, so that what any
/// time earns is a whole number.
pub(crate) struct WearAccount {
    budget: WearBudget,
    clock: Clock,
    now: Duration,
    spent: u64,
    credit: i128,
    refused: u64,
    is_warned: bool,
}

impl fmt::Debug for WearAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WearAccount").field("budget", &self.budget).finish_non_exhaustive()
    }
}

impl WearAccount {
    fn open(budget: WearBudget, clock: Clock, bill: &Bill) -> Self {
        let allowance = i128::from(budget.per_day.amount());
        let left = budget.left.map_or(allowance, i128::from).min(allowance);
        Self {
            budget,
            now: clock(),
            clock,
            spent: budget.per_day.of(bill),
            credit: left * DAY_NS,
            refused: 0,
            is_warned: false,
        }
    }

    /// Books what time has earned and what the flash has seen since the last look.
    fn settle(&mut self, bill: &Bill) {
        let now = (self.clock)();
        // A time that goes back is looked at again when it has caught up (G3).
        let elapsed = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        let amount = i128::from(self.budget.per_day.amount());
        let elapsed_ns =
            i128::try_from(elapsed.as_nanos()).unwrap_or(DAY_NS).min(DAY_NS * 1_000_000);
        // Threads look at the flash in one order and come here in another.
        let spent = self.budget.per_day.of(bill).max(self.spent);
        let cost = i128::from(spent - self.spent) * DAY_NS;
        self.spent = spent;
        // An allowance without end earns more than a number holds, and keeps no more than that of a day.
        let earned = amount.saturating_mul(elapsed_ns);
        self.credit = self.credit.saturating_add(earned).min(amount * DAY_NS) - cost;
        if self.credit > 0 {
            self.is_warned = false;
        } else if !self.is_warned {
            self.is_warned = true;
            warn!(target: EVENTS, left = self.left(), "the wear budget is used up");
        }
    }

    fn left(&self) -> i64 {
        let left = self.credit.div_euclid(DAY_NS);
        i64::try_from(left).unwrap_or(if left < 0 { i64::MIN } else { i64::MAX })
    }

    /// Lets a transaction that wants to change something in, or says how long it has to wait.
    pub(crate) fn admit(&mut self, bill: &Bill) -> Result<(), EngineError> {
        self.settle(bill);
        if self.credit > 0 || self.budget.at_limit == AtLimit::Report {
            return Ok(());
        }
        self.refused += 1;
        let amount = i128::from(self.budget.per_day.amount());
        // Until the credit is above 0; never, without an allowance.
        let wait_ns = (1 - self.credit).checked_div(amount).map(|whole| whole + 1);
        let wait = wait_ns.and_then(|wait_ns| u64::try_from(wait_ns).ok());
        Err(EngineError::WearBudget { wait: wait.map_or(Duration::MAX, Duration::from_nanos) })
    }
}

impl<D: Nand> Runtime<D> {
    /// Gives the database a budget of wear, or another one; the account begins now. `clock` says the time since any
    /// moment, and is asked when a transaction makes its first change.
    pub fn set_wear_budget(
        &self,
        budget: WearBudget,
        clock: impl Fn() -> Duration + Send + Sync + 'static,
    ) {
        let bill = self.space().bill();
        let account = WearAccount::open(budget, Box::new(clock), &bill);
        *self.wear.lock() = Some(account);
    }

    /// Lifts the budget.
    pub fn clear_wear_budget(&self) {
        *self.wear.lock() = None;
    }

    /// What is left of the budget now; none without one.
    #[must_use]
    pub fn wear_status(&self) -> Option<WearStatus> {
        let bill = self.space().bill();
        let mut account = self.wear.lock();
        account.as_mut().map(|account| {
            account.settle(&bill);
            WearStatus { left: account.left(), refused: account.refused }
        })
    }

    /// Lets a transaction that is about to change something in, unless the budget of wear is used up (G2).
    ///
    /// # Errors
    ///
    /// `WearBudget`, which says how long to wait.
    pub fn admit_change(&self) -> Result<(), EngineError> {
        if self.wear.lock().is_none() {
            return Ok(());
        }
        let bill = self.space().bill();
        self.wear.lock().as_mut().map_or(Ok(()), |account| account.admit(&bill))
    }
}

#[cfg(test)]
mod tests {
    use flagstone_nand::{Profile, SimNand};

    use super::*;
    use crate::options::Options;
    use crate::testing::Database;

    /// Goal: nothing is charged twice. Method: two threads that looked at the flash in one order and book it
    /// in the other.
    #[test]
    fn bills_may_come_out_of_order() {
        let profile = Profile::named("slc-2k").and_then(|profile| profile.with_block_count(32));
        let device = SimNand::new(&profile.expect("a profile"), 1);
        let options = Options::default().with_memory(128 << 10);
        let database = Database::create_on(device, &options).expect("fits");
        let table = database.table("t").expect("made");
        let per_day = Allowance::Bytes(1 << 40);
        let budget = WearBudget { per_day, at_limit: AtLimit::Refuse, left: None };
        database.runtime().set_wear_budget(budget, || Duration::from_secs(1_000_000));
        let before = database.runtime().space().bill();
        let mut transaction = database.begin();
        transaction.put(table, b"key", &[1; 200]).expect("within the budget");
        transaction.commit().expect("within the budget");
        let after = database.runtime().space().bill();
        let mut account = database.runtime().wear.lock();
        let account = account.as_mut().expect("a budget");
        account.settle(&after);
        let left = account.left();
        account.settle(&before);
        account.settle(&after);
        assert!(after.bytes() > before.bytes());
        assert_eq!(account.left(), left);
    }
}
