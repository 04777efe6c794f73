//! A budget of wear: how much a database may do to its flash in a day.
//!
//! Owns the calls; the account and its rules (G1 to G3) are in the engine's runtime.

use std::time::Duration;

use flagstone_engine::{WearBudget, WearStatus};

use super::Database;

impl Database {
    /// Gives the database a budget of wear, or another one; the account begins now.
    ///
    /// The budget is a property of this opening, shared by its clones; `clock` gives the time since any
    /// moment of the caller's choice, and is asked when a transaction makes its first change. All work on the
    /// flash counts: log, merges, garbage collection. Only changes by transactions are refused, so that work
    /// which is due goes on, and is paid back later.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use std::time::Duration;
    ///
    /// use flagstone::Error;
    /// use flagstone::wear::{Allowance, AtLimit, WearBudget};
    ///
    /// let table = db.table("t")?;
    /// let hour = Arc::new(AtomicU64::new(0));
    /// let clock = Arc::clone(&hour);
    /// let budget =
    ///     WearBudget { per_day: Allowance::Bytes(50_000), at_limit: AtLimit::Refuse, left: None };
    /// db.set_wear_budget(budget, move || Duration::from_secs(3_600 * clock.load(Ordering::Relaxed)));
    ///
    /// let change = || -> Result<_, Error> {
    ///     let mut txn = db.begin();
    ///     txn.put(table, b"key", b"value")?;
    ///     Ok(txn.commit()?)
    /// };
    /// let refused = loop {
    ///     if let Err(error) = change() {
    ///         break error;
    ///     }
    /// };
    /// assert!(matches!(refused, Error::WearBudget { wait } if wait > Duration::ZERO));
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
        self.runtime().set_wear_budget(budget, clock);
    }

    /// Lifts the budget.
    pub fn clear_wear_budget(&self) {
        self.runtime().clear_wear_budget();
    }

    /// Rest of the budget now; none without a budget.
    #[must_use]
    pub fn wear_status(&self) -> Option<WearStatus> {
        self.runtime().wear_status()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use flagstone_nand::{Profile, SimNand};

    use super::*;
    use crate::wear::{Allowance, AtLimit};
    use crate::{Bill, Error, Options, Table, WriteError};

    struct Rig {
        database: Database,
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

        fn change(&self, number: u32) -> Result<Bill, Error> {
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

    fn amount(per_day: Allowance) -> u64 {
        match per_day {
            Allowance::Bytes(amount) | Allowance::Erases(amount) => amount,
        }
    }

    fn spent(per_day: Allowance, bill: &Bill) -> u64 {
        match per_day {
            Allowance::Bytes(_) => bill.bytes(),
            Allowance::Erases(_) => bill.erases(),
        }
    }

    /// Goal: over many days, bytes and erases stay within the allowance of these days (G1).
    ///
    /// Method: whenever a change is refused, the clock advances by the wait that the refusal names. The
    /// overrun of one admitted transaction is bounded by its bill.
    #[test]
    fn what_is_done_stays_within_what_the_time_earns() {
        for per_day in [Allowance::Bytes(2_000_000), Allowance::Erases(12)] {
            let rig = Rig::new(budget(per_day, AtLimit::Refuse));
            let (before, begun) = (rig.spent(), rig.second.load(Ordering::Relaxed));
            let (mut largest, mut refused) = (0, 0);
            for number in 0..12_000 {
                match rig.change(number) {
                    Ok(bill) => largest = largest.max(spent(per_day, &bill)),
                    Err(Error::WearBudget { wait }) => {
                        refused += 1;
                        rig.second.fetch_add(wait.as_secs() + 1, Ordering::Relaxed);
                        assert!(rig.change(number).is_ok(), "the wait it named was long enough");
                    }
                    Err(error) => panic!("{error}"),
                }
                let elapsed = rig.second.load(Ordering::Relaxed) - begun;
                let earned = amount(per_day) * (86_400 + elapsed) / 86_400;
                let spent = spent(per_day, &(rig.spent() - before));
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

    /// Goal: no budget and no time of the clock overflows the account. Method: the largest and smallest of
    /// each.
    #[test]
    fn budgets_and_clocks_without_end_are_accounts() {
        for per_day in
            [Allowance::Bytes(u64::MAX), Allowance::Erases(u64::MAX), Allowance::Bytes(0)]
        {
            for left in [None, Some(i64::MIN), Some(i64::MAX)] {
                let rig = Rig::new(WearBudget { per_day, at_limit: AtLimit::Refuse, left });
                rig.second.store(u64::MAX, Ordering::Relaxed);
                let admitted = rig.change(1).is_ok();
                assert_eq!(admitted, amount(per_day) > 0, "{per_day:?} {left:?}");
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
        let Err(Error::WearBudget { wait }) = rig.change(1) else { panic!("not refused") };
        assert_eq!(wait.as_secs(), 5 * 3_600);
        let never =
            Rig::new(WearBudget { left: Some(0), ..budget(Allowance::Bytes(0), AtLimit::Refuse) });
        let refused = never.change(1).unwrap_err();
        assert!(matches!(refused, Error::WearBudget { wait: Duration::MAX }), "{refused}");
        assert_eq!(refused.to_string(), "the wear budget is used up for good");
        let soon = WriteError::WearBudget { wait: Duration::from_millis(20) };
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
}
