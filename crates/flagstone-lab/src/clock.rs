//! The virtual clock: events in the order of device time.
//!
//! Owns the order of events and nothing else; never looks at the wall clock.
//!
//! - **C1** Time never runs back.
//! - **C2** Events of the same time come in the order in which they were set, so that equal runs
//!   are equal to the last event.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Events ahead, and the time reached.
#[derive(Debug)]
pub struct Clock<E> {
    now_ns: u64,
    next_sequence: u64,
    timers: BinaryHeap<Timer<E>>,
}

#[derive(Debug)]
struct Timer<E> {
    at_ns: u64,
    sequence: u64,
    event: E,
}

impl<E> Clock<E> {
    /// A clock that stands at `now_ns` with nothing ahead.
    #[must_use]
    pub fn new(now_ns: u64) -> Self {
        Self { now_ns, next_sequence: 0, timers: BinaryHeap::new() }
    }

    /// Time reached.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Sets `event` for `at_ns`; for now when that has passed (C1).
    pub fn set(&mut self, at_ns: u64, event: E) {
        let at_ns = at_ns.max(self.now_ns);
        self.timers.push(Timer { at_ns, sequence: self.next_sequence, event });
        self.next_sequence += 1;
    }

    /// Goes on to the next event; none when nothing is ahead.
    pub fn advance(&mut self) -> Option<E> {
        let Timer { at_ns, event, .. } = self.timers.pop()?;
        debug_assert!(at_ns >= self.now_ns, "C1: time runs back");
        self.now_ns = at_ns;
        Some(event)
    }
}

impl<E> Ord for Timer<E> {
    /// Reversed, because the heap gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at_ns, other.sequence).cmp(&(self.at_ns, self.sequence))
    }
}

impl<E> PartialOrd for Timer<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Timer<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Timer<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_in_the_order_they_were_set() {
        let mut clock = Clock::new(100);
        clock.set(300, 'c');
        clock.set(200, 'a');
        clock.set(200, 'b');
        clock.set(50, 'x');
        let order: Vec<(char, u64)> =
            std::iter::from_fn(|| clock.advance().map(|event| (event, clock.now_ns()))).collect();
        assert_eq!(order, [('x', 100), ('a', 200), ('b', 200), ('c', 300)]);
    }
}
