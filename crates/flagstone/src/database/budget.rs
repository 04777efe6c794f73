//! A budget of wear: how much a database may do to its flash in a day.
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

use super::Database;
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
    /// Nothing is refused. [`Database::wear_status`] says how far the budget is overdrawn, and a
    /// `tracing` event at level WARN says when it begins to be.
    Report,
}

/// How much a database may do to its flash: see [`Database::set_wear_budget`].
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
            warn!(left = self.left(), "the wear budget is used up");
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

impl<D: Nand> Database<D> {
    /// Gives the database a budget of wear, or another one; the account begins now.
    ///
    /// The budget is a property of this opening, shared by its clones; `clock` says the time since any
    /// moment of the caller's choice, and is asked when a transaction makes its first change. What counts
    /// is everything that is done to the flash: log, merges, garbage collection. Only changes by
    /// transactions are refused, so that work which is due goes on, and is paid back.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use std::time::Duration;
    ///
    /// use flagstone::{Allowance, AtLimit, EngineError, WearBudget};
    ///
    /// let table = db.table("t")?;
    /// let hour = Arc::new(AtomicU64::new(0));
    /// let clock = Arc::clone(&hour);
    /// let budget =
    ///     WearBudget { per_day: Allowance::Bytes(50_000), at_limit: AtLimit::Refuse, left: None };
    /// db.set_wear_budget(budget, move || Duration::from_secs(3_600 * clock.load(Ordering::Relaxed)));
    ///
    /// let change = || {
    ///     let mut txn = db.begin();
    ///     txn.put(table, b"key", b"value")?;
    ///     txn.commit()
    /// };
    /// let refused = loop {
    ///     if let Err(error) = change() {
    ///         break error;
    ///     }
    /// };
    /// assert!(matches!(refused, EngineError::WearBudget { wait } if wait > Duration::ZERO));
    /// assert!(db.snapshot()?.get(table, b"key")?.is_some(), "reading goes on");
    /// hour.store(12, Ordering::Relaxed);
    /// change()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_wear_budget(
        &self,
        budget: WearBudget,
        clock: impl Fn() -> Duration + Send + Sync + 'static,
    ) {
        let bill = self.runtime.space().bill();
        let account = WearAccount::open(budget, Box::new(clock), &bill);
        *self.runtime.wear.lock() = Some(account);
    }

    /// Lifts the budget.
    pub fn clear_wear_budget(&self) {
        *self.runtime.wear.lock() = None;
    }

    /// What is left of the budget now; none without one.
    #[must_use]
    pub fn wear_status(&self) -> Option<WearStatus> {
        let bill = self.runtime.space().bill();
        let mut account = self.runtime.wear.lock();
        account.as_mut().map(|account| {
            account.settle(&bill);
            WearStatus { left: account.left(), refused: account.refused }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use flagstone_nand::{Profile, SimNand};

    use super::*;
    use crate::{Options, Table};

    struct Rig {
        database: Database<SimNand>,
        table: Table,
        second: Arc<AtomicU64>,
    }

    impl Rig {
        fn new(budget: WearBudget) -> Self {
            let profile = Profile::named("slc-2k").and_then(|profile| profile.with_block_count(32));
            let device = SimNand::new(&profile.expect("a profile"), 1);
            let options = Options::default().with_memory(128 << 10);
            let database = Database::create_on(device, &options).expect("fits");
            let table = database.table("t").expect("made");
            let second = Arc::new(AtomicU64::new(1_000_000));
            let clock = Arc::clone(&second);
            database.set_wear_budget(budget, move || {
                Duration::from_secs(clock.load(Ordering::Relaxed))
            });
            Self { database, table, second }
        }

        fn change(&self, number: u32) -> Result<Bill, EngineError> {
            let mut transaction = self.database.begin();
            let key = (number.wrapping_mul(2_654_435_761) % 2_000).to_be_bytes();
            transaction.put(self.table, &key, &[number as u8; 200])?;
            Ok(transaction.commit()?.bill)
        }

        fn spent(&self) -> Bill {
            self.database.runtime().space().bill()
        }

        fn left(&self) -> i64 {
            self.database.wear_status().expect("there is one").left
        }
    }

    fn budget(per_day: Allowance, at_limit: AtLimit) -> WearBudget {
        WearBudget { per_day, at_limit, left: None }
    }

    /// Goal: over many days, bytes and erases stay within what the days allow (G1).
    ///
    /// Method: whenever a change is refused, the clock goes on by what the refusal says. The overrun of
    /// one admitted transaction is bounded by its bill.
    #[test]
    fn what_is_done_stays_within_what_the_time_earns() {
        for per_day in [Allowance::Bytes(2_000_000), Allowance::Erases(12)] {
            let rig = Rig::new(budget(per_day, AtLimit::Refuse));
            let (before, begun) = (rig.spent(), rig.second.load(Ordering::Relaxed));
            let (mut largest, mut refused) = (0, 0);
            for number in 0..12_000 {
                match rig.change(number) {
                    Ok(bill) => largest = largest.max(per_day.of(&bill)),
                    Err(EngineError::WearBudget { wait }) => {
                        refused += 1;
                        rig.second.fetch_add(wait.as_secs() + 1, Ordering::Relaxed);
                        assert!(rig.change(number).is_ok(), "the wait it named was long enough");
                    }
                    Err(error) => panic!("{error}"),
                }
                let elapsed = rig.second.load(Ordering::Relaxed) - begun;
                let earned = per_day.amount() * (86_400 + elapsed) / 86_400;
                let spent = per_day.of(&(rig.spent() - before));
                assert!(spent <= earned + 2 * largest + 1, "{per_day:?}: {spent} of {earned}");
            }
            assert!(refused > 2, "{per_day:?}: the budget was never used up");
        }
    }

    #[test]
    fn a_report_refuses_nothing_and_says_what_is_missing() {
        let rig = Rig::new(budget(Allowance::Bytes(10_000), AtLimit::Report));
        for number in 0..100 {
            rig.change(number).expect("nothing is refused");
        }
        let status = rig.database.wear_status().expect("there is one");
        assert!(status.left < 0 && status.refused == 0, "{status:?}");
        rig.second.fetch_add(86_400 * 1_000, Ordering::Relaxed);
        assert_eq!(rig.left(), 10_000, "a day's allowance is all that is saved up");
        rig.database.clear_wear_budget();
        assert_eq!(rig.database.wear_status(), None);
    }

    /// Goal: no budget and no clock make the account overflow. Method: the largest and smallest of each.
    #[test]
    fn budgets_and_clocks_without_end_are_accounts() {
        for per_day in
            [Allowance::Bytes(u64::MAX), Allowance::Erases(u64::MAX), Allowance::Bytes(0)]
        {
            for left in [None, Some(i64::MIN), Some(i64::MAX)] {
                let rig = Rig::new(WearBudget { per_day, at_limit: AtLimit::Refuse, left });
                rig.second.store(u64::MAX, Ordering::Relaxed);
                let admitted = rig.change(1).is_ok();
                assert_eq!(admitted, per_day.amount() > 0, "{per_day:?} {left:?}");
                assert!(admitted || rig.left() <= 0);
            }
        }
    }

    #[test]
    fn a_clock_that_goes_back_earns_nothing() {
        let rig = Rig::new(budget(Allowance::Bytes(1_000_000), AtLimit::Refuse));
        rig.change(1).expect("there is a day's allowance");
        let left = rig.left();
        rig.second.fetch_sub(500_000, Ordering::Relaxed);
        assert_eq!(rig.left(), left);
        rig.second.fetch_add(500_000, Ordering::Relaxed);
        assert_eq!(rig.left(), left, "the same second is not paid for twice");
    }

    #[test]
    fn an_account_goes_on_where_it_was_left() {
        let spent = WearBudget { left: Some(-5), ..budget(Allowance::Erases(24), AtLimit::Refuse) };
        let rig = Rig::new(spent);
        assert_eq!(rig.left(), -5);
        let Err(EngineError::WearBudget { wait }) = rig.change(1) else { panic!("not refused") };
        assert_eq!(wait.as_secs(), 5 * 3_600);
        let never =
            Rig::new(WearBudget { left: Some(0), ..budget(Allowance::Bytes(0), AtLimit::Refuse) });
        let refused = never.change(1).unwrap_err();
        assert_eq!(refused, EngineError::WearBudget { wait: Duration::MAX });
        assert_eq!(refused.to_string(), "the wear budget is used up for good");
        let soon = EngineError::WearBudget { wait: Duration::from_millis(20) };
        assert_eq!(soon.to_string(), "the wear budget is used up for 1 s");
    }

    #[test]
    fn reading_and_transactions_that_were_admitted_go_on() {
        let rig = Rig::new(budget(Allowance::Bytes(20_000), AtLimit::Refuse));
        let mut admitted = rig.database.begin();
        admitted.put(rig.table, b"one", b"1").expect("admitted");
        while rig.change(7).is_ok() {}
        admitted.put(rig.table, b"two", b"2").expect("it was admitted");
        admitted.commit().expect("it was admitted");
        let reader = rig.database.begin();
        assert!(reader.get(rig.table, b"two").expect("readable").is_some());
        reader.commit().expect("it changes nothing");
        assert!(rig.database.snapshot().is_ok());
    }

    /// Goal: nothing is charged twice. Method: two threads that looked at the flash in one order and book it
    /// in the other.
    #[test]
    fn bills_may_come_out_of_order() {
        let rig = Rig::new(WearBudget {
            per_day: Allowance::Bytes(1 << 40),
            at_limit: AtLimit::Refuse,
            left: None,
        });
        let before = rig.database.runtime().space().bill();
        rig.change(1).expect("within the budget");
        let after = rig.database.runtime().space().bill();
        let mut account = rig.database.runtime().wear.lock();
        let account = account.as_mut().expect("a budget");
        account.settle(&after);
        let left = account.left();
        account.settle(&before);
        account.settle(&after);
        assert!(after.bytes() > before.bytes());
        assert_eq!(account.left(), left);
    }
}
