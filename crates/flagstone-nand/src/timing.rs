//! How long operations take, and the clock that adds them up.
//!
//! Owns the latencies of a device and the virtual time of simulated ones. Never looks at the wall
//! clock.
//!
//! - **T1** Time is whole nanoseconds and depends on the operations alone: same calls, same times.
//! - **T2** An operation starts when both the caller and its die are ready.
//! - **T3** Reads and syncs move the caller's time, because it depends on their result; programs
//!   and erases are posted: they occupy their die and report when they end.
//! - **T4** A transfer takes the bus to its die and keeps the die busy: before a program's cells work, after
//!   a read's. Dies may share a bus, which serves one transfer at a time and each in the first gap that holds
//!   it.

use alloc::vec;
use alloc::vec::Vec;

mod bus;

use crate::{Completion, PageType};
use bus::Bus;

/// Latencies of a device in nanoseconds, array time; transfers come on top.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Read of a page from the array.
    pub read_ns: u64,
    /// Read of a page of the second type of three or four.
    pub read_center_ns: u64,
    /// Read of a page of the third type of four.
    pub read_upper_center_ns: u64,
    /// Read of an MSB page; equal to `read_ns` on single-level cells.
    pub read_msb_ns: u64,
    /// Program of a whole data area.
    pub program_ns: u64,
    /// Program of a page of the second type of three or four.
    pub program_center_ns: u64,
    /// Program of a page of the third type of four.
    pub program_upper_center_ns: u64,
    /// Program of an MSB page; equal to `program_ns` on single-level cells.
    pub program_msb_ns: u64,
    /// Program of part of a page, or of its spare area alone; of other than lower pages as of a whole.
    pub partial_program_ns: u64,
    /// Erase of a block.
    pub erase_ns: u64,
    /// Transfer of a whole page with its spare area; parts take their share. 0 where the other
    /// figures include it.
    pub transfer_page_ns: u64,
    /// Transfer of a whole page between a drive and its host; 0 on bare chips.
    pub host_page_ns: u64,
    /// Buses that the dies share, die by die in turn; 0 where each has its own (rule T4).
    pub channel_count: u32,
    /// A sync of a device that needs one (files); 0 on NAND.
    pub sync_ns: u64,
}

impl Timing {
    /// Time of the slowest operation.
    pub(crate) fn longest_ns(&self) -> u64 {
        let &Self {
            read_ns,
            read_center_ns,
            read_upper_center_ns,
            read_msb_ns,
            program_ns,
            program_center_ns,
            program_upper_center_ns,
            program_msb_ns,
            partial_program_ns,
            erase_ns,
            transfer_page_ns,
            host_page_ns,
            channel_count: _,
            sync_ns,
        } = self;
        let reads = [read_ns, read_center_ns, read_upper_center_ns, read_msb_ns];
        let programs = [program_ns, program_center_ns, program_upper_center_ns, program_msb_ns];
        let others = [partial_program_ns, erase_ns, transfer_page_ns, host_page_ns, sync_ns];
        reads.into_iter().chain(programs).chain(others).max().unwrap_or(0)
    }

    /// Read of a page of this type from the array.
    #[must_use]
    pub const fn read_of(&self, page_type: PageType) -> u64 {
        match page_type {
            PageType::Lower => self.read_ns,
            PageType::Center => self.read_center_ns,
            PageType::UpperCenter => self.read_upper_center_ns,
            PageType::Upper => self.read_msb_ns,
        }
    }

    /// Program of the whole data area of a page of this type.
    #[must_use]
    pub const fn program_of(&self, page_type: PageType) -> u64 {
        match page_type {
            PageType::Lower => self.program_ns,
            PageType::Center => self.program_center_ns,
            PageType::UpperCenter => self.program_upper_center_ns,
            PageType::Upper => self.program_msb_ns,
        }
    }
}

/// Virtual time of a simulated device: the caller's clock, one horizon for each die, and the buses.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    now_ns: u64,
    free_at_ns: Vec<u64>,
    /// Empty where each die has a bus of its own: that is free whenever the die is.
    channels: Vec<Bus>,
    /// Between a drive and its host.
    link: Bus,
}

impl Timeline {
    pub(crate) fn new(die_count: u32, channel_count: u32) -> Self {
        Self {
            now_ns: 0,
            free_at_ns: vec![0; die_count.max(1) as usize],
            channels: vec![Bus::default(); channel_count as usize],
            link: Bus::default(),
        }
    }

    pub(crate) const fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Occupies `die`; the caller goes on at once (T3).
    pub(crate) fn post(&mut self, die: u32, duration_ns: u64) -> Completion {
        self.occupy(self.now_ns, die, duration_ns)
    }

    /// As [`Timeline::post`], from `from_ns` at the earliest.
    pub(crate) fn occupy(&mut self, from_ns: u64, die: u32, duration_ns: u64) -> Completion {
        let end_ns = self.ready_ns(from_ns, die).saturating_add(duration_ns);
        self.busy_until(die, end_ns)
    }

    /// Programs `die` with data that are there at `from_ns`: the page crosses its bus, then the cells work
    /// (T4). The caller goes on at once.
    pub(crate) fn program(
        &mut self,
        from_ns: u64,
        die: u32,
        transfer_ns: u64,
        array_ns: u64,
    ) -> Completion {
        self.transfer(die, self.ready_ns(from_ns, die), transfer_ns);
        self.post(die, array_ns)
    }

    /// Reads from `die`: the cells work, then the page crosses its bus (T4). The caller goes on at once.
    pub(crate) fn fetch(&mut self, die: u32, array_ns: u64, transfer_ns: u64) -> Completion {
        let cells_ns = self.post(die, array_ns).end_ns;
        self.transfer(die, cells_ns, transfer_ns)
    }

    /// Takes the host's link for a page that comes; when it is there.
    pub(crate) fn receive(&mut self, link_ns: u64) -> u64 {
        self.link.book(self.now_ns, link_ns)
    }

    /// Reads from `die` a page that crosses the host's link in the end, and waits (T3).
    pub(crate) fn send(
        &mut self,
        die: u32,
        array_ns: u64,
        transfer_ns: u64,
        link_ns: u64,
    ) -> Completion {
        let fetched_ns = self.fetch(die, array_ns, transfer_ns).end_ns;
        self.now_ns = self.link.book(fetched_ns, link_ns);
        Completion { end_ns: self.now_ns, corrected_bits_max: 0 }
    }

    /// A transfer from or to `die`, which is ready for it at `from_ns`.
    fn transfer(&mut self, die: u32, from_ns: u64, transfer_ns: u64) -> Completion {
        let channel = (die as usize).checked_rem(self.channels.len()).unwrap_or_default();
        let end_ns = match self.channels.get_mut(channel) {
            Some(bus) => bus.book(from_ns, transfer_ns),
            None => from_ns.saturating_add(transfer_ns),
        };
        self.busy_until(die, end_ns)
    }

    /// When `die` can begin work that is there at `from_ns` (T2).
    fn ready_ns(&self, from_ns: u64, die: u32) -> u64 {
        let free_at_ns = self.free_at_ns.get(die as usize).copied().unwrap_or_default();
        free_at_ns.max(from_ns).max(self.now_ns)
    }

    fn busy_until(&mut self, die: u32, end_ns: u64) -> Completion {
        if let Some(free_at_ns) = self.free_at_ns.get_mut(die as usize) {
            *free_at_ns = end_ns;
        }
        Completion { end_ns, corrected_bits_max: 0 }
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

    /// After a power cycle all dies and buses are idle.
    pub(crate) fn idle(&mut self) {
        self.free_at_ns.fill(self.now_ns);
        self.channels.fill(Bus::default());
        self.link = Bus::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dies_work_in_parallel_and_each_die_in_turn() {
        let mut timeline = Timeline::new(2, 0);
        assert_eq!(timeline.post(0, 100).end_ns, 100);
        assert_eq!(timeline.post(1, 150).end_ns, 150);
        assert_eq!(timeline.post(0, 100).end_ns, 200);
        assert_eq!(timeline.now_ns(), 0, "posting must not wait");
        assert_eq!(timeline.send(1, 50, 0, 0).end_ns, 200);
        assert_eq!(timeline.drain(0).end_ns, 200);
    }

    #[test]
    fn callers_that_take_turns_wait_for_their_dies_alone() {
        let mut timeline = Timeline::new(2, 0);
        assert_eq!(timeline.send(0, 100, 0, 0).end_ns, 100);
        timeline.resume_at(10);
        assert_eq!(timeline.send(1, 100, 0, 0).end_ns, 110, "the other die is idle");
        timeline.resume_at(20);
        assert_eq!(timeline.send(0, 100, 0, 0).end_ns, 200, "this die is busy until 100");
    }

    #[test]
    fn dies_of_a_channel_take_turns_on_its_bus() {
        // Dies 0 and 2 share channel 0, dies 1 and 3 channel 1.
        let mut timeline = Timeline::new(4, 2);
        let ends = [0, 1, 2, 3].map(|die| timeline.program(0, die, 10, 100).end_ns);
        assert_eq!(ends, [110, 110, 120, 120]);
        let ends = [0, 2].map(|die| timeline.fetch(die, 50, 10).end_ns);
        assert_eq!(ends, [170, 180]);
        assert_eq!(timeline.now_ns(), 0, "nobody waits");
    }

    #[test]
    fn a_bus_that_is_booked_for_later_serves_whoever_comes_before() {
        let mut timeline = Timeline::new(2, 1);
        timeline.post(0, 1000);
        assert_eq!(timeline.program(0, 0, 10, 100).end_ns, 1110);
        assert_eq!(timeline.program(0, 1, 10, 100).end_ns, 110);
    }

    #[test]
    fn a_page_crosses_the_link_of_the_host_once() {
        let mut timeline = Timeline::new(2, 0);
        let received = [timeline.receive(5), timeline.receive(5)];
        assert_eq!(received, [5, 10], "one behind the other");
        let ends = [0, 1].map(|die| timeline.program(received[die], die as u32, 10, 100).end_ns);
        assert_eq!(ends, [115, 120]);
        assert_eq!(timeline.send(0, 50, 10, 5).end_ns, 180);
        assert_eq!(timeline.now_ns(), 180);
    }

    #[test]
    fn time_never_runs_back() {
        let mut timeline = Timeline::new(1, 0);
        timeline.advance_to(500);
        timeline.advance_to(300);
        assert_eq!(timeline.now_ns(), 500);
        assert_eq!(timeline.post(0, 10).end_ns, 510);
    }
}
