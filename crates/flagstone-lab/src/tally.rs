//! Transactions of clients in a stretch of a run, by class.
//!
//! Owns counts and latencies; never decides the classes or the stretches.

use std::collections::BTreeMap;

use hdrhistogram::{CreationError, Histogram};

use crate::run::{ClassRun, Latency};

/// Counts and latencies of all classes.
#[derive(Clone, Debug)]
pub struct Tally {
    names: &'static [&'static str],
    classes: Vec<Class>,
    /// Latencies of all classes together, in nanoseconds.
    latency: Histogram<u32>,
    /// Commits, and the time from asking for each to its being durable, summed in nanoseconds.
    waits: (u64, u64),
}

/// Counts and latencies of one class.
#[derive(Clone, Debug)]
struct Class {
    counts: Counts,
    latency: Histogram<u32>,
}

/// How transactions ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Durable commits.
    pub commits: u64,
    /// Transactions given up.
    pub aborts: u64,
    /// Transactions begun again after a deadlock.
    pub restarts: u64,
}

impl Tally {
    /// Nothing done yet in any of the classes called `names`.
    ///
    /// # Errors
    ///
    /// When a histogram cannot be made.
    pub fn new(names: &'static [&'static str]) -> Result<Self, CreationError> {
        let class = || Ok(Class { counts: Counts::default(), latency: latency_histogram()? });
        let classes = names.iter().map(|_| class()).collect::<Result<_, _>>()?;
        Ok(Self { names, classes, latency: latency_histogram()?, waits: (0, 0) })
    }

    /// A commit was durable `wait_ns` after it was asked for.
    pub fn waited(&mut self, wait_ns: u64) {
        self.waits.0 += 1;
        self.waits.1 += wait_ns;
    }

    /// Mean time from asking for a commit to its being durable, in microseconds.
    #[must_use]
    pub fn commit_wait_us(&self) -> f64 {
        self.waits.1 as f64 / self.waits.0.max(1) as f64 / 1e3
    }

    /// A transaction of `class` is durable, `latency_ns` after its first begin.
    pub fn committed(&mut self, class: usize, latency_ns: u64) {
        self.latency.saturating_record(latency_ns);
        if let Some(class) = self.classes.get_mut(class) {
            class.counts.commits += 1;
            class.latency.saturating_record(latency_ns);
        }
    }

    /// A transaction of `class` was given up.
    pub fn aborted(&mut self, class: usize) {
        if let Some(class) = self.classes.get_mut(class) {
            class.counts.aborts += 1;
        }
    }

    /// A transaction of `class` begins again after a deadlock.
    pub fn restarted(&mut self, class: usize) {
        if let Some(class) = self.classes.get_mut(class) {
            class.counts.restarts += 1;
        }
    }

    /// Adds the counts of another tally of the same classes.
    pub fn add(&mut self, other: &Self) {
        // Same bounds on both sides, so that every value fits.
        let _ = self.latency.add(&other.latency);
        self.waits.0 += other.waits.0;
        self.waits.1 += other.waits.1;
        for (class, more) in self.classes.iter_mut().zip(&other.classes) {
            class.counts.commits += more.counts.commits;
            class.counts.aborts += more.counts.aborts;
            class.counts.restarts += more.counts.restarts;
            let _ = class.latency.add(&more.latency);
        }
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.latency.reset();
        self.waits = (0, 0);
        for class in &mut self.classes {
            class.counts = Counts::default();
            class.latency.reset();
        }
    }

    /// Counts of all classes together.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let sum = |count: fn(&Counts) -> u64| {
            self.classes.iter().map(|class| count(&class.counts)).sum::<u64>()
        };
        Counts {
            commits: sum(|counts| counts.commits),
            aborts: sum(|counts| counts.aborts),
            restarts: sum(|counts| counts.restarts),
        }
    }

    /// Latencies of all classes together.
    #[must_use]
    pub fn latency(&self) -> Latency {
        Latency::of(&self.latency)
    }

    /// Each class, as reported.
    #[must_use]
    pub fn by_class(&self) -> BTreeMap<String, ClassRun> {
        let report = |class: &Class| ClassRun {
            commits: class.counts.commits,
            aborts: class.counts.aborts,
            restarts: class.counts.restarts,
            latency_us: Latency::of(&class.latency),
        };
        let classes = self.names.iter().zip(&self.classes);
        classes.map(|(name, class)| ((*name).to_owned(), report(class))).collect()
    }
}

/// Latencies in nanoseconds up to an hour, to three significant digits.
fn latency_histogram() -> Result<Histogram<u32>, CreationError> {
    const LATENCY_NS_MAX: u64 = 3_600_000_000_000;
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_told_apart_and_summed() {
        let mut tally = Tally::new(&["short", "long"]).expect("histograms");
        tally.committed(0, 1_000);
        tally.committed(1, 9_000);
        tally.aborted(1);
        let more = tally.clone();
        tally.restarted(0);
        tally.add(&more);
        assert_eq!(tally.counts(), Counts { commits: 4, aborts: 2, restarts: 1 });
        let by_class = tally.by_class();
        assert_eq!((by_class["short"].commits, by_class["long"].aborts), (2, 2));
        assert!(by_class["short"].latency_us.p50 < by_class["long"].latency_us.p50);
        tally.reset();
        assert_eq!(tally.counts(), Counts::default());
    }
}
