//! Costs of pages, as the device has charged them of late.
//!
//! Owns the averages. Never asks the device: callers report the time of each operation.

use crate::policy::AccessCosts;

/// Recent device time for a page, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PageCosts {
    read: Average,
    write: Average,
    /// Whole pages and appends, among the writes.
    whole: Average,
    append: Average,
    log: Average,
}

impl PageCosts {
    /// Nanoseconds of a read.
    pub(crate) fn read(&self) -> f64 {
        self.read.each()
    }

    /// Nanoseconds of a write, with its share of collection.
    pub(crate) fn write(&self) -> f64 {
        self.write.each()
    }

    /// Costs of a read and of a write.
    pub(super) fn of_access(&self) -> AccessCosts {
        AccessCosts { read_ns: self.read(), write_ns: self.write() }
    }

    /// Nanoseconds of a program of the log.
    pub(crate) fn log(&self) -> f64 {
        self.log.each()
    }

    /// A page was read in `ns`.
    pub(crate) fn note_read(&mut self, ns: u64) {
        self.read.add(1, ns);
    }

    /// So many pages were written in `ns`; none where there was nothing but collection.
    pub(crate) fn note_write(&mut self, pages: u64, ns: u64) {
        self.write.add(pages, ns);
        self.whole.add(pages, ns);
    }

    /// A page took an append in `ns`.
    pub(crate) fn note_append(&mut self, ns: u64) {
        self.write.add(1, ns);
        self.append.add(1, ns);
    }

    /// Whether an append costs less than a page and its share of collection, as far as is known.
    pub(crate) fn favour_appends(&self) -> bool {
        self.whole.count == 0 || self.append.each() < self.whole.each()
    }

    /// The log was programmed so many times in `ns`.
    pub(crate) fn note_log(&mut self, programs: u64, ns: u64) {
        self.log.add(programs, ns);
    }
}

/// An average that forgets: of the last operations, up to twice as many as `REMEMBERED`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Average {
    count: u64,
    sum_ns: u64,
}

/// Collection comes in bursts: enough operations that a burst is one of several.
const REMEMBERED: u64 = 256;

impl Average {
    fn add(&mut self, count: u64, ns: u64) {
        if self.count >= 2 * REMEMBERED {
            (self.count, self.sum_ns) = (self.count / 2, self.sum_ns / 2);
        }
        self.count += count;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    fn each(self) -> f64 {
        self.sum_ns as f64 / self.count.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appends_are_favoured_while_they_cost_less_than_pages() {
        let mut costs = PageCosts::default();
        costs.note_append(250);
        assert!(costs.favour_appends(), "what a page costs is not known yet");
        costs.note_write(1, 200);
        assert!(!costs.favour_appends());
        costs.note_write(1, 900);
        assert!(costs.favour_appends(), "collection makes pages dear");
    }
}
