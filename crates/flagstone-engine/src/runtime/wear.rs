//! The account of a budget of wear.
//!
//! Owns the account and the decision when it is used up; the space floor counts the work on the
//! flash ([`Bill`]). Time comes from the caller: nothing here reads a clock of its own.
//!
//! Invariants:
//! - **G1** Over any period, the admitted wear is at most one day's allowance plus the allowance
//!   earned in that period. Wear beyond that comes from transactions admitted before, and is paid
//!   back.
//! - **G2** A transaction is refused at its first change or not at all; reading and restart are
//!   never refused.
//! - **G3** A clock that stands still or goes back earns nothing and costs nothing.

use std::fmt;
use std::time::Duration;

use flagstone_nand::Nand;
use flagstone_space::Bill;
use tracing::warn;

use super::{EVENTS, Runtime};
use crate::error::EngineError;

/// Unit and amount of a day's allowance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// Bytes programmed, data and spare, for any cause.
    Bytes(u64),
    /// Blocks erased. On a device without erases, such as a file: segments that are reused.
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

/// Behaviour when the allowance is used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtLimit {
    /// Transactions are refused at their first change with [`EngineError::WearBudget`], which gives
    /// the time to wait.
    #[default]
    Refuse,
    /// Nothing is refused. `Database::wear_status` gives the amount overdrawn, and a `tracing`
    /// event at level WARN marks the moment when the budget becomes overdrawn.
    Report,
}

/// Limit on the wear of the flash: see `Database::set_wear_budget`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WearBudget {
    /// Allowance earned per day, evenly over the day. At most one day's allowance is saved up.
    pub per_day: Allowance,
    /// Behaviour when nothing is left.
    pub at_limit: AtLimit,
    /// Balance to begin with, in the unit of `per_day`, below 0 when overdrawn; `None`: a whole
    /// day's allowance. A program that wants the budget to hold over restarts stores
    /// [`WearStatus::left`] and passes it here.
    pub left: Option<i64>,
}

/// State of a wear budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WearStatus {
    /// Bytes or erases left, in the unit of [`WearBudget::per_day`]; below 0 when the budget is
    /// overdrawn.
    pub left: i64,
    /// Number of refused transactions.
    pub refused: u64,
}

/// Nanoseconds of a day.
const DAY_NS: i128 = 86_400 * 1_000_000_000;

/// Source of the time.
type Clock = Box<dyn Fn() -> Duration + Send + Sync>;

/// The account of a budget. Amounts are kept multiplied by the nanoseconds of a day, so that any
/// period earns a whole number.
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

    /// Books the allowance earned and the wear caused since the last call.
    fn settle(&mut self, bill: &Bill) {
        let now = (self.clock)();
        // After a clock goes back, nothing is earned until it has caught up (G3).
        let elapsed = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        let amount = i128::from(self.budget.per_day.amount());
        let elapsed_ns =
            i128::try_from(elapsed.as_nanos()).unwrap_or(DAY_NS).min(DAY_NS * 1_000_000);
        // Threads may arrive here in another order than the one in which they read the counters.
        let spent = self.budget.per_day.of(bill).max(self.spent);
        let cost = i128::from(spent - self.spent) * DAY_NS;
        self.spent = spent;
        // An allowance without end earns more than fits the number; the credit is capped at one
        // day's amount.
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

    /// Admits a transaction that wants to make a change, or gives the time it has to wait.
    pub(crate) fn admit(&mut self, bill: &Bill) -> Result<(), EngineError> {
        self.settle(bill);
        if self.credit > 0 || self.budget.at_limit == AtLimit::Report {
            return Ok(());
        }
        self.refused += 1;
        let amount = i128::from(self.budget.per_day.amount());
        // Time until the credit is above 0; without an allowance that time never comes.
        let wait_ns = (1 - self.credit).checked_div(amount).map(|whole| whole + 1);
        let wait = wait_ns.and_then(|wait_ns| u64::try_from(wait_ns).ok());
        Err(EngineError::WearBudget { wait: wait.map_or(Duration::MAX, Duration::from_nanos) })
    }
}

impl<D: Nand> Runtime<D> {
    /// Sets or replaces the budget of wear; its account begins now. `clock` returns the time since
    /// any fixed moment, and is called when a transaction makes its first change.
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

    /// Balance of the budget now; `None` without a budget.
    #[must_use]
    pub fn wear_status(&self) -> Option<WearStatus> {
        let bill = self.space().bill();
        let mut account = self.wear.lock();
        account.as_mut().map(|account| {
            account.settle(&bill);
            WearStatus { left: account.left(), refused: account.refused }
        })
    }

    /// Admits a transaction that is about to make a change, unless the budget of wear is used up
    /// (G2).
    ///
    /// # Errors
    ///
    /// `WearBudget`, which gives the time to wait.
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

    /// Goal: no work is charged twice. Method: two threads that read the counters in one order and
    /// book them in the other.
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
