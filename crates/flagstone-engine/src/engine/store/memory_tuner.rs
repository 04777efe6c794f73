//! The split of memory between frames and deltas, learned from the cost of misses and merges.
//!
//! Owns the share of the frames and the evidence for changing it. Never moves memory itself: limits
//! follow the share, frames and deltas follow their limits.
//!
//! More memory for frames would have saved the reads of pages that left a moment before: such pages are
//! remembered for as long as a few frames more would have kept them. More memory for deltas would have
//! let every merge wait a little longer, by the time that deltas take to fill that memory: a leaf that
//! is merged every T would have been merged every T + D, and D / (T + D) of its merges saved. The LSN
//! of a leaf's base tells how long the leaf was left alone. Leaves that are written once and never
//! again (rows that only arrive) therefore ask for nothing, and new pages would be written later all
//! the same. Checkpoints copy the deltas that there are: that is evidence against more of them. Prices
//! are the times that the device took lately, collection included.
//!
//! A period moves the share a part of the way to the point where a byte would be worth the same on both
//! sides. The part grows while periods agree and shrinks when they do not, and paid costs count for as
//! many periods as the part asks for: far from the balance few are enough, near it many are needed.
//!
//! - **S1** Only recent costs count; no period goes further than half the way to the balance, and none
//!   moves the share for a difference that chance explains.
//! - **S2** The list of pages that left is bounded by a share of the frames.
//! - **S3** A restart begins to count the log anew: no time is measured across it.

use std::collections::BTreeMap;

use flagstone_space::{LogicalPage, Lsn};
use hashbrown::HashMap;

use crate::engine::store::pool::Class;
use crate::engine::store::pool::costs::PageCosts;
use crate::log;

/// Smallest share of memory that frames may have, and the largest. With fewer frames than clients, each
/// client would read a page that another is about to drop.
const SHARE_MIN: f64 = 0.1;

const SHARE_MAX: f64 = 0.9;

/// Saved reads and merges, together, that make a period.
const PERIOD_EVENTS: u64 = 50;

/// Standard errors by which one side must be dearer before memory goes to it: less is chance.
const ERRORS_MIN: f64 = 2.0;

/// Least and most of the way to the balance that a period goes. The least makes paid costs count for
/// sixteen periods, the most for two.
const GAIN_MIN: f64 = 1.0 / 16.0;

const GAIN_MAX: f64 = 0.5;

/// Factor by which the gain grows while periods agree, and factor by which it shrinks when they do not.
const GAIN_GROWTH: f64 = 1.5;

const GAIN_LOSS: f64 = 0.5;

/// Pages that left memory lately: as many as one part in this many of the frames.
const GHOST_SHARE: usize = 8;

/// Least number of remembered pages.
const GHOSTS_MIN: usize = 8;

/// Pages of one class that left memory, each with a number in the order of leaving.
#[derive(Debug, Default)]
struct Left {
    order: BTreeMap<u64, LogicalPage>,
    numbers: HashMap<LogicalPage, u64>,
}

impl Left {
    fn insert(&mut self, page: LogicalPage, number: u64) {
        self.take(page);
        self.order.insert(number, page);
        self.numbers.insert(page, number);
    }

    fn take(&mut self, page: LogicalPage) -> bool {
        let number = self.numbers.remove(&page);
        number.is_some_and(|number| self.order.remove(&number).is_some())
    }

    fn forget_oldest(&mut self) -> bool {
        let oldest = self.order.pop_first();
        oldest.is_some_and(|(_, page)| self.numbers.remove(&page).is_some())
    }

    fn len(&self) -> usize {
        self.order.len()
    }
}

/// Pages that a few frames more would have kept: inner nodes before leaves, as the pool does (P3).
#[derive(Debug, Default)]
pub(crate) struct Ghosts {
    leaves: Left,
    inner: Left,
    count: u64,
    hits: u64,
}

impl Ghosts {
    /// A page left memory that holds `frames` now.
    pub(crate) fn left(&mut self, page: LogicalPage, class: Class, frames: usize) {
        self.count += 1;
        match class {
            Class::Leaf => self.leaves.insert(page, self.count),
            Class::Inner => self.inner.insert(page, self.count),
        }
        while self.leaves.len() + self.inner.len() > Self::room(frames)
            && (self.leaves.forget_oldest() || self.inner.forget_oldest())
        {}
    }

    /// A page came to memory.
    pub(crate) fn came(&mut self, page: LogicalPage) {
        let was_left = self.leaves.take(page) || self.inner.take(page);
        self.hits += u64::from(was_left);
    }

    fn room(frames: usize) -> usize {
        (frames / GHOST_SHARE).max(GHOSTS_MIN)
    }
}

/// Recent costs and events.
#[derive(Clone, Copy, Debug, Default)]
struct Paid {
    /// Ghosts that came back.
    hits: f64,
    /// Merges for want of memory.
    merges: f64,
    /// Pages whose writing and reading a little more memory for deltas would have saved.
    written: f64,
    read: f64,
    /// Log pages that copies of deltas took.
    copied: f64,
    /// Bytes of deltas that met their page.
    freed: f64,
    /// Log written, as LSNs count it.
    logged: f64,
}

impl Paid {
    /// A period is over: this part of the sums is forgotten.
    fn fade(&mut self, part: f64) {
        let Self { hits, merges, written, read, copied, freed, logged } = self;
        for sum in [hits, merges, written, read, copied, freed, logged] {
            *sum *= 1.0 - part;
        }
    }
}

/// How far a period moves the share, and how long paid costs count. While periods want the same side,
/// the share moves far and costs count briefly; when periods disagree, the share is about right, and
/// only many periods can tell more.
#[derive(Clone, Copy, Debug)]
struct Gain {
    gain: f64,
    /// Side that the period before wanted memory for.
    side: Side,
}

/// Where memory is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Frames,
    Deltas,
    /// Nowhere more than elsewhere.
    Neither,
}

impl Gain {
    const fn new() -> Self {
        Self { gain: GAIN_MIN, side: Side::Neither }
    }

    /// Gain where a period wants memory for `side`.
    fn toward(&self, side: Side) -> f64 {
        let does_agree = side == self.side && side != Side::Neither;
        let factor = if does_agree { GAIN_GROWTH } else { GAIN_LOSS };
        (self.gain * factor).clamp(GAIN_MIN, GAIN_MAX)
    }

    /// A period went toward `side`.
    fn follow(&mut self, side: Side) {
        (self.gain, self.side) = (self.toward(side), side);
    }
}

/// The merge of a leaf for want of memory; the cost of a job for several leaves is divided among them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MergeCost {
    /// Written pages that had a version before: new pages would have been written later.
    pub(crate) pages_again: f64,
    pub(crate) pages_read: f64,
    /// Log written since the leaf's previous write, as LSNs count it; none if that was before a
    /// restart.
    pub(crate) age: Option<u64>,
}

/// The little more memory is one part in this many of the deltas' limit.
const DELTAS_SHARE: usize = 16;

/// Saved share of the merges of a leaf whose groups grow in proportion to the memory.
const SAVED_EVENLY: f64 = 1.0 / (DELTAS_SHARE + 1) as f64;

/// Memory to be split, and the size of its pieces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Memory that deltas may take.
    pub(crate) deltas: usize,
    /// Memory of a frame.
    pub(crate) frame: usize,
    /// Frames in memory.
    pub(crate) frame_count: usize,
}

impl Sizes {
    /// A little more memory for deltas.
    fn more_deltas(&self) -> usize {
        (self.deltas / DELTAS_SHARE).max(1)
    }
}

/// The learned share.
#[derive(Debug)]
pub(crate) struct MemoryTuner {
    share: f64,
    gain: Gain,
    paid: Paid,
    /// Merges of the period.
    merges: u64,
    /// Ghost hits before the period.
    hits_before: u64,
    /// Position in the log where the period began.
    begin: Lsn,
    /// How much longer merges could wait with a little more memory, as LSNs count it; none before
    /// the first period is over.
    delay: Option<f64>,
}

impl MemoryTuner {
    pub(crate) fn new(share: f64) -> Self {
        let paid = Paid::default();
        let gain = Gain::new();
        Self { share, gain, paid, merges: 0, hits_before: 0, begin: Lsn::ZERO, delay: None }
    }

    /// Share of memory for frames.
    pub(crate) fn share(&self) -> f64 {
        self.share
    }

    /// A leaf is merged for want of memory.
    pub(crate) fn merged(&mut self, cost: MergeCost) {
        let saved = self.delay.map_or(0.0, |delay| match cost.age {
            Some(age) => delay / (age as f64 + delay),
            None => SAVED_EVENLY,
        });
        self.merges += 1;
        self.paid.written += saved * cost.pages_again;
        self.paid.read += saved * cost.pages_read;
    }

    /// Deltas of so many bytes met their page.
    pub(crate) fn freed(&mut self, bytes: usize) {
        self.paid.freed += bytes as f64;
    }

    /// A checkpoint copied deltas that take so many log pages.
    pub(crate) fn copied(&mut self, log_pages: f64) {
        self.paid.copied += log_pages;
    }

    /// Ends the period when enough has happened. `lsn` is the log's end.
    pub(crate) fn learn(&mut self, ghosts: &Ghosts, costs: PageCosts, sizes: Sizes, lsn: Lsn) {
        let hits = ghosts.hits - self.hits_before;
        if hits + self.merges < PERIOD_EVENTS {
            return;
        }
        self.hits_before = ghosts.hits;
        let merges = std::mem::take(&mut self.merges);
        let begin = std::mem::replace(&mut self.begin, lsn);
        self.paid.hits += hits as f64;
        self.paid.merges += merges as f64;
        self.paid.logged += log::distance(begin, lsn).unwrap_or(0) as f64;
        let frames = self.worth_of_frames(costs, sizes);
        let deltas = self.worth_of_deltas(costs, sizes);
        let is_known = self.delay.is_some();
        // A change waits half the time between two merges of its leaf, on average.
        let more = 2.0 * sizes.more_deltas() as f64;
        self.delay = Some(more / self.paid.freed.max(1.0) * self.paid.logged);
        if is_known {
            self.move_share(frames, deltas);
        }
        self.paid.fade(self.gain.gain);
    }

    /// Moves memory to the side where a byte is worth more. If worth falls in inverse proportion to the
    /// memory, both sides are worth the same at `balance`.
    fn move_share(&mut self, frames: f64, deltas: f64) {
        let deltas = deltas.max(0.0);
        let side = self.dearer_side(frames, deltas);
        let before = self.share;
        if side != Side::Neither {
            let balance = before * frames / (before * frames + (1.0 - before) * deltas);
            let share = before + self.gain.toward(side) * (balance - before);
            self.share = share.clamp(SHARE_MIN, SHARE_MAX);
        }
        // Where the share cannot move there is time to look.
        self.gain.follow(if self.share == before { Side::Neither } else { side });
    }

    /// Side where a byte is worth more, by more than chance explains: the error of a count of n events
    /// is the square root of n.
    fn dearer_side(&self, frames: f64, deltas: f64) -> Side {
        let errors = [(frames, self.paid.hits), (deltas, self.paid.merges)];
        let variance: f64 =
            errors.map(|(worth, count)| worth * worth / count.max(1.0)).iter().sum();
        let chance = ERRORS_MIN * variance.sqrt();
        if frames > deltas + chance {
            Side::Frames
        } else if deltas > frames + chance {
            Side::Deltas
        } else {
            Side::Neither
        }
    }

    /// Nanoseconds that a byte more for frames would have saved.
    fn worth_of_frames(&self, costs: PageCosts, sizes: Sizes) -> f64 {
        let more = Ghosts::room(sizes.frame_count) * sizes.frame;
        self.paid.hits * costs.read() / more as f64
    }

    /// Nanoseconds that a byte more for deltas would have saved.
    fn worth_of_deltas(&self, costs: PageCosts, sizes: Sizes) -> f64 {
        let Paid { written, read, copied, .. } = self.paid;
        let merges = written * costs.write() + read * costs.read();
        merges / sizes.more_deltas() as f64 - copied * costs.log() / sizes.deltas.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use flagstone_nand::{Profile, SimNand};

    use super::*;
    use crate::options::{Durability, Options};
    use crate::testing::Database;

    const SIZES: Sizes = Sizes { deltas: 100_000, frame: 2_000, frame_count: 100 };

    fn costs() -> PageCosts {
        let mut costs = PageCosts::default();
        costs.note_read(80);
        costs.note_write(1, 300);
        costs.note_log(1, 200);
        costs
    }

    fn page(number: u32) -> LogicalPage {
        LogicalPage(number)
    }

    /// Two periods: the first one teaches how fast deltas come.
    fn periods(
        tuner: &mut MemoryTuner,
        ghosts: &mut Ghosts,
        mut event: impl FnMut(&mut MemoryTuner, &mut Ghosts),
    ) {
        for lsn in 0..2 * PERIOD_EVENTS {
            event(tuner, ghosts);
            tuner.learn(ghosts, costs(), SIZES, Lsn(100 * lsn));
        }
    }

    #[test]
    fn pages_that_come_back_soon_ask_for_frames() {
        let (mut tuner, mut ghosts) = (MemoryTuner::new(0.2), Ghosts::default());
        periods(&mut tuner, &mut ghosts, |_, ghosts| {
            ghosts.left(page(1), Class::Leaf, 100);
            ghosts.came(page(1));
        });
        assert!(tuner.share() > 0.2);
    }

    #[test]
    fn pages_that_come_back_late_ask_for_nothing() {
        let mut ghosts = Ghosts::default();
        for round in 0..1_000 {
            ghosts.left(page(round % 50), Class::Leaf, 100);
            ghosts.came(page((round + 30) % 50));
        }
        assert_eq!(ghosts.hits, 0, "twenty pages ago is longer than twelve frames would have kept");
        assert!(ghosts.leaves.len() <= 12 && ghosts.leaves.numbers.len() <= 12, "S2");
    }

    /// Share after merges of leaves that are as old as given, beside a few pages that come back.
    fn after_merges(age: u64, copied: f64) -> f64 {
        let (mut tuner, mut ghosts) = (MemoryTuner::new(0.2), Ghosts::default());
        let mut number = 0;
        periods(&mut tuner, &mut ghosts, |tuner, ghosts| {
            number += 1;
            if number % 10 == 0 {
                ghosts.left(page(1), Class::Leaf, 100);
                ghosts.came(page(1));
            }
            tuner.freed(1_000);
            tuner.merged(MergeCost { pages_again: 1.0, pages_read: 1.0, age: Some(age) });
            tuner.copied(copied);
        });
        tuner.share()
    }

    #[test]
    fn merges_of_leaves_that_were_just_written_ask_for_deltas() {
        assert!(after_merges(2_000, 0.0) < 0.2);
        assert!(after_merges(10_000_000, 0.0) > 0.2, "those of leaves written once do not");
    }

    #[test]
    fn inner_nodes_that_left_outlive_leaves() {
        let mut ghosts = Ghosts::default();
        ghosts.left(page(1), Class::Inner, 0);
        for number in 2..100 {
            ghosts.left(page(number), Class::Leaf, 0);
        }
        ghosts.came(page(1));
        assert_eq!(ghosts.hits, 1, "more frames would go to inner nodes first (P3)");
        ghosts.came(page(50));
        assert_eq!(ghosts.hits, 1);
        ghosts.came(page(99));
        assert_eq!(ghosts.hits, 2);
    }

    /// Goal: a restart is no time (S3). Method: the log's end jumps as it does when an epoch begins.
    #[test]
    fn a_restart_is_no_time_that_deltas_took() {
        let (mut tuner, ghosts) = (MemoryTuner::new(0.2), Ghosts::default());
        for lsn in [crate::log::lsn(1, 500), crate::log::lsn(2, 100), crate::log::lsn(2, 200)] {
            for _ in 0..PERIOD_EVENTS {
                tuner.freed(1_000);
                tuner.merged(MergeCost { pages_again: 1.0, pages_read: 1.0, age: None });
            }
            tuner.learn(&ghosts, costs(), SIZES, lsn);
        }
        assert!(tuner.delay.is_some_and(|delay| delay < 1_000.0), "{tuner:?}");
    }

    /// Goal: prices are the times that the device takes. Method: a chip that does nothing else while
    /// pages are read, after a restart.
    #[test]
    fn a_read_costs_what_the_chip_takes() {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
        let options = Options::default().with_memory(24 * 2048);
        let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
        let table = database.table("t").unwrap();
        let rows = || (0..2_000_u32).map(u32::to_be_bytes);
        for row in rows() {
            let mut transaction = database.begin();
            transaction.put(table, &row, &[0; 50]).unwrap();
            transaction.commit_with(Durability::Deferred).unwrap();
        }
        database.runtime().checkpoint_now().unwrap();
        let database = Database::open_on(database.into_device().unwrap(), &options).unwrap();
        let table = database.existing_table("t").unwrap().unwrap();
        for row in rows() {
            assert!(database.begin().get(table, &row).unwrap().is_some());
        }
        let costs = database.runtime().engine().pool.costs;
        assert_eq!(costs.read(), profile.timing.read_ns as f64);
    }

    /// Requests whose balance is at a given share: hits and merges come at random, as many of each as
    /// make a byte worth the same on both sides there.
    struct Requests {
        tuner: MemoryTuner,
        ghosts: Ghosts,
        state: u32,
        lsn: u64,
    }

    impl Requests {
        const MEMORY: f64 = 400_000.0;

        fn new() -> Self {
            Self { tuner: MemoryTuner::new(0.15), ghosts: Ghosts::default(), state: 7, lsn: 0 }
        }

        fn draw(&mut self) -> f64 {
            self.state = self.state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(self.state >> 8) / f64::from(1 << 24)
        }

        /// A period; the share after it.
        fn period(&mut self, balance: f64) -> f64 {
            let costs = costs();
            let share = self.tuner.share();
            let sizes = Sizes {
                deltas: ((1.0 - share) * Self::MEMORY) as usize,
                frame: 2_000,
                frame_count: (share * Self::MEMORY / 2_000.0) as usize,
            };
            let hit = costs.read() * GHOST_SHARE as f64;
            let merge = (costs.write() + costs.read()) * SAVED_EVENLY * DELTAS_SHARE as f64;
            let hits = balance / hit / (balance / hit + (1.0 - balance) / merge);
            for _ in 0..PERIOD_EVENTS {
                if self.draw() < hits {
                    self.ghosts.left(page(1), Class::Leaf, sizes.frame_count);
                    self.ghosts.came(page(1));
                } else {
                    self.tuner.merged(MergeCost { pages_again: 1.0, pages_read: 1.0, age: None });
                }
            }
            self.lsn += 1_000;
            self.tuner.learn(&self.ghosts, costs, sizes, Lsn(self.lsn));
            self.tuner.share()
        }
    }

    #[test]
    fn the_share_is_at_the_balance_after_a_few_periods() {
        let mut requests = Requests::new();
        for balance in [0.6, 0.2, 0.7, 0.12] {
            let share = (0..16).map(|_| requests.period(balance)).last().unwrap();
            assert!((share - balance).abs() < 0.1, "{share} is far from {balance}");
        }
    }

    #[test]
    fn the_share_stays_at_the_balance() {
        for balance in [0.3, 0.5, 0.8] {
            let mut requests = Requests::new();
            (0..32).for_each(|_| _ = requests.period(balance));
            let mut before = requests.tuner.share();
            let mut way = 0.0;
            for _ in 0..400 {
                let share = requests.period(balance);
                assert!((share - balance).abs() < 0.12, "{share} is far from {balance}");
                way += (share - before).abs();
                before = share;
            }
            assert!(way / 400.0 < 0.005, "{} a period around {balance}", way / 400.0);
        }
    }

    #[test]
    fn one_odd_period_moves_little_where_the_share_rests_at_its_end() {
        let mut requests = Requests::new();
        (0..100).for_each(|_| _ = requests.period(0.02));
        assert_eq!(requests.tuner.share(), SHARE_MIN);
        let share = requests.period(0.6);
        assert!(share < SHARE_MIN + 0.05, "{share}");
    }

    #[test]
    fn what_chance_explains_moves_nothing() {
        let (mut tuner, mut ghosts) = (MemoryTuner::new(0.2), Ghosts::default());
        ghosts.hits = 2;
        periods(&mut tuner, &mut ghosts, |tuner, _| {
            tuner.freed(1_000);
            tuner.merged(MergeCost { pages_again: 0.0, pages_read: 0.0, age: Some(1_000) });
        });
        assert_eq!(tuner.share(), 0.2, "two pages that came back beside merges that cost nothing");
    }

    #[test]
    fn what_checkpoints_copy_speaks_against_deltas() {
        assert!(after_merges(2_000, 10.0) > 0.2);
    }
}
