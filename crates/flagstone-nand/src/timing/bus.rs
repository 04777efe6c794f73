//! A bus that serves one transfer at a time.
//!
//! Owns the order of transfers on a bus. Never knows the users of the bus.
//!
//! - **B1** Bookings do not overlap.
//! - **B2** A transfer is booked into the first gap that holds it: a transfer that is ready late, because its
//!   die has other work, does not keep earlier ones from the bus.

use alloc::collections::VecDeque;

/// Bookings that are remembered; the oldest are forgotten first. Callers that take turns book in the past
/// of each other, but by no more than an operation.
const BOOKINGS_MAX: usize = 1024;

/// Times at which a bus is taken, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Bus {
    bookings: VecDeque<Booking>,
}

#[derive(Clone, Copy, Debug)]
struct Booking {
    start_ns: u64,
    end_ns: u64,
}

impl Bus {
    /// Takes the bus for `duration_ns`, from `from_ns` at the earliest; when the transfer ends.
    pub(super) fn book(&mut self, from_ns: u64, duration_ns: u64) -> u64 {
        if duration_ns == 0 {
            return from_ns;
        }
        let mut index = self.bookings.partition_point(|booking| booking.end_ns <= from_ns);
        let mut start_ns = from_ns;
        while let Some(booking) = self.bookings.get(index) {
            if booking.start_ns >= start_ns.saturating_add(duration_ns) {
                break;
            }
            start_ns = booking.end_ns;
            index += 1;
        }
        let end_ns = start_ns.saturating_add(duration_ns);
        self.insert(index, Booking { start_ns, end_ns });
        end_ns
    }

    /// Puts a booking before number `index`, merged with the bookings that it touches.
    fn insert(&mut self, index: usize, booking: Booking) {
        let mut joined = booking;
        let next = self.bookings.get(index).copied();
        if let Some(next) = next.filter(|next| next.start_ns == booking.end_ns) {
            joined.end_ns = next.end_ns;
            self.bookings.remove(index);
        }
        let before = index.checked_sub(1).and_then(|before| self.bookings.get_mut(before));
        match before.filter(|before| before.end_ns == booking.start_ns) {
            Some(before) => before.end_ns = joined.end_ns,
            None => self.bookings.insert(index, joined),
        }
        if self.bookings.len() > BOOKINGS_MAX {
            self.bookings.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::Draw;

    #[test]
    fn a_transfer_takes_the_first_gap_that_holds_it() {
        let mut bus = Bus::default();
        assert_eq!(bus.book(100, 50), 150);
        assert_eq!(bus.book(0, 40), 40);
        assert_eq!(bus.book(0, 60), 100, "between the two, to the nanosecond");
        assert_eq!(bus.book(0, 1), 151);
        assert_eq!(bus.book(500, 0), 500, "nothing to transfer");
        assert_eq!(bus.bookings.len(), 1);
    }

    /// Goal: B1 and B2. Method: random bookings against an array of nanoseconds.
    #[test]
    fn bookings_agree_with_an_array_of_nanoseconds() {
        let mut taken = vec![false; 40_000];
        let mut bus = Bus::default();
        let mut draw = Draw::new(11, 0);
        for _ in 0..1000 {
            let (from, size) = (draw.below(10_000) as usize, 1 + draw.below(20) as usize);
            let is_free = |start: &usize| !taken[*start..*start + size].contains(&true);
            let start = (from..).find(is_free).unwrap();
            taken[start..start + size].fill(true);
            assert_eq!(bus.book(from as u64, size as u64), (start + size) as u64);
        }
    }
}
