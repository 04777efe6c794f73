//! How long operations take, and the clock that adds them up.
//!
//! Owns the latencies of a device and the virtual time of simulated ones. Never looks at the wall
//! clock.
//!
//! - **T1** Time is whole nanoseconds and depends on the operations alone: same calls, same times.
//! - **T2** An operation starts when both the caller and its die are ready.
//! - **T3** Reads and syncs move the caller's time, because it depends on their result; programs
//!   and erases are posted: they occupy their die and report when they end.

use alloc::vec;
use alloc::vec::Vec;

use crate::Completion;

/// Latencies of a device in nanoseconds, array time; transfers come on top.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Read of a page from the array.
    pub read_ns: u64,
    /// Read of an MSB page; equal to `read_ns` on single-level cells.
    pub read_msb_ns: u64,
    /// Program of a whole data area.
    pub program_ns: u64,
    /// Program of an MSB page; equal to `program_ns` on single-level cells.
    pub program_msb_ns: u64,
    /// Program of part of a page, or of its spare area alone.
    pub partial_program_ns: u64,
    /// Erase of a block.
    pub erase_ns: u64,
    /// Transfer of a whole page with its spare area; parts take their share. 0 where the other
    /// figures include it.
    pub transfer_page_ns: u64,
    /// A sync of a device that needs one (files); 0 on NAND.
    pub sync_ns: u64,
}

/// Virtual time of a simulated device: the caller's clock and one horizon for each die.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    now_ns: u64,
    free_at_ns: Vec<u64>,
}

impl Timeline {
    pub(crate) fn new(die_count: u32) -> Self {
        Self { now_ns: 0, free_at_ns: vec![0; die_count.max(1) as usize] }
    }

    pub(crate) const fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Occupies `die`; the caller goes on at once (T3).
    pub(crate) fn post(&mut self, die: u32, duration_ns: u64) -> Completion {
        let Some(free_at_ns) = self.free_at_ns.get_mut(die as usize) else {
            return Completion { end_ns: self.now_ns, corrected_bits_max: 0 };
        };
        *free_at_ns = (*free_at_ns).max(self.now_ns).saturating_add(duration_ns);
        Completion { end_ns: *free_at_ns, corrected_bits_max: 0 }
    }

    /// Occupies `die` and waits for the end (T3).
    pub(crate) fn wait(&mut self, die: u32, duration_ns: u64) -> Completion {
        let completion = self.post(die, duration_ns);
        self.now_ns = completion.end_ns;
        completion
    }

    /// Waits until every die is idle, then for `duration_ns` more.
    pub(crate) fn drain(&mut self, duration_ns: u64) -> Completion {
        let idle_ns = self.free_at_ns.iter().copied().fold(self.now_ns, u64::max);
        self.now_ns = idle_ns.saturating_add(duration_ns);
        Completion { end_ns: self.now_ns, corrected_bits_max: 0 }
    }

    pub(crate) fn advance_to(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Another caller's time, which may be earlier: its operations wait for their dies alone (T2).
    pub(crate) fn resume_at(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// After a power cycle no die is busy.
    pub(crate) fn idle(&mut self) {
        self.free_at_ns.fill(self.now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dies_work_in_parallel_and_each_die_in_turn() {
        let mut timeline = Timeline::new(2);
        assert_eq!(timeline.post(0, 100).end_ns, 100);
        assert_eq!(timeline.post(1, 150).end_ns, 150);
        assert_eq!(timeline.post(0, 100).end_ns, 200);
        assert_eq!(timeline.now_ns(), 0, "posting must not wait");
        assert_eq!(timeline.wait(1, 50).end_ns, 200);
        assert_eq!(timeline.drain(0).end_ns, 200);
    }

    #[test]
    fn callers_that_take_turns_wait_for_their_dies_alone() {
        let mut timeline = Timeline::new(2);
        assert_eq!(timeline.wait(0, 100).end_ns, 100);
        timeline.resume_at(10);
        assert_eq!(timeline.wait(1, 100).end_ns, 110, "the other die is idle");
        timeline.resume_at(20);
        assert_eq!(timeline.wait(0, 100).end_ns, 200, "this die is busy until 100");
    }

    #[test]
    fn time_never_runs_back() {
        let mut timeline = Timeline::new(1);
        timeline.advance_to(500);
        timeline.advance_to(300);
        assert_eq!(timeline.now_ns(), 500);
        assert_eq!(timeline.post(0, 10).end_ns, 510);
    }
}
