//! The order in which frames leave memory, by the rules that see frames alone.
//!
//! Owns places and ages of frames, by their index. Never sees an image, never evicts: it names the next
//! victim, and learns the victim's fate from the pool.
//!
//! ```text
//!            used again
//!       ┌──────────────────┐
//!       ▼                  │
//!   hot list ──oldest──▶ window: clean by age │ dirty by age, or by cluster
//!                          └── victim: clean first, then dirty
//! ```
//!
//! CLOCK has no window: all frames are in the hot list. CFLRU (Park et al., CASES 2006) has a
//! window of a fixed or a learned share of the frames; CFDC (Ou, Härder, Jin, DaMoN 2009) gathers the
//! window's dirty pages in clusters of neighbours. LS-LRU has an order of its own (`units`).
//!
//! - **O1** Every frame is in exactly one place; `count` frames in all.
//! - **O2** Within hot list and window the order is the order of last use, even where frames became
//!   clean or dirty in between.
//! - **O3** The few frames that were used last are never in the window, however wide it is: a page that
//!   was just read is clean, and would leave before it is used (P3). CLOCK's hand passes such a page by
//!   once for the same reason.
//! - **O4** A choice looks at no frame that it does not move: the cost of `victim` is amortised by the
//!   frames that entered the window or were used since the last choice.

use std::collections::BTreeSet;

use flagstone_engine::policy::{AccessCosts, LEAVES_MIN, Replacement, Urgency};
use flagstone_space::LogicalPage;

use super::ReplacementRule;
use super::clusters::Clusters;

const NONE: u32 = u32::MAX;

/// Where a frame stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In no list: the index is free.
    Nowhere,
    /// In the hot list.
    Hot,
    /// In the window.
    Window,
}

#[derive(Clone, Copy, Debug)]
struct Spot {
    page: LogicalPage,
    place: Place,
    is_dirty: bool,
    /// Used since CLOCK's hand last came by.
    is_used: bool,
    /// Number of the last use.
    used: u64,
    previous: u32,
    next: u32,
}

const NOWHERE: Spot = Spot {
    page: LogicalPage(NONE),
    place: Place::Nowhere,
    is_dirty: false,
    is_used: false,
    used: 0,
    previous: NONE,
    next: NONE,
};

/// Order of frames of one class.
#[derive(Debug)]
pub(super) struct Order {
    rule: ReplacementRule,
    spots: Vec<Spot>,
    /// Most recently used of the hot list.
    head: u32,
    /// Least recently used of the hot list.
    tail: u32,
    count: usize,
    window_count: usize,
    clean: BTreeSet<(u64, u32)>,
    dirty: BTreeSet<(u64, u32)>,
    clusters: Clusters,
    uses: u64,
    share: Share,
}

impl Order {
    pub(super) fn new(rule: ReplacementRule, window: f64) -> Self {
        Self {
            rule,
            spots: Vec::new(),
            head: NONE,
            tail: NONE,
            count: 0,
            window_count: 0,
            clean: BTreeSet::new(),
            dirty: BTreeSet::new(),
            clusters: Clusters::default(),
            uses: 0,
            share: Share::new(window),
        }
    }

    fn give_second_chances(&mut self) {
        for _ in 0..self.count {
            let index = self.tail;
            if index == NONE || !std::mem::take(&mut self.spots[index as usize].is_used) {
                break;
            }
            self.unlink(index);
            self.link(index);
        }
    }

    fn victim_of_window(&mut self) -> Option<u32> {
        let wanted = (self.share.window * self.count as f64).ceil() as usize;
        let wanted = wanted.min(self.count.saturating_sub(LEAVES_MIN)); // O3
        while self.window_count < wanted && self.tail != NONE {
            let index = self.tail;
            self.leave(index);
            self.enter_window(index);
        }
        let oldest = |set: &BTreeSet<(u64, u32)>| set.first().map(|(_, index)| *index);
        oldest(&self.clean)
            .or_else(|| self.clusters.victim())
            .or_else(|| oldest(&self.dirty))
            .or_else(|| (self.tail != NONE).then_some(self.tail))
    }

    /// Puts a frame that is nowhere at the head of the hot list.
    fn enter(&mut self, index: u32) {
        self.uses += 1;
        let spot = &mut self.spots[index as usize];
        (spot.place, spot.used) = (Place::Hot, self.uses);
        self.link(index);
    }

    /// Takes a frame out of its list.
    fn leave(&mut self, index: u32) {
        match self.spots[index as usize].place {
            Place::Nowhere => {}
            Place::Hot => self.unlink(index),
            Place::Window => self.leave_window(index),
        }
        self.spots[index as usize].place = Place::Nowhere;
    }

    fn enter_window(&mut self, index: u32) {
        let spot = &mut self.spots[index as usize];
        spot.place = Place::Window;
        self.window_count += 1;
        match (spot.is_dirty, self.rule) {
            (false, _) => _ = self.clean.insert((spot.used, index)),
            (true, ReplacementRule::Cfdc) => self.clusters.insert(spot.page, index),
            (true, _) => _ = self.dirty.insert((spot.used, index)),
        }
    }

    fn leave_window(&mut self, index: u32) {
        let spot = &self.spots[index as usize];
        self.window_count -= 1;
        match (spot.is_dirty, self.rule) {
            (false, _) => _ = self.clean.remove(&(spot.used, index)),
            (true, ReplacementRule::Cfdc) => self.clusters.remove(spot.page, index),
            (true, _) => _ = self.dirty.remove(&(spot.used, index)),
        }
    }

    fn unlink(&mut self, index: u32) {
        let Spot { previous, next, .. } = self.spots[index as usize];
        match previous {
            NONE => self.head = next,
            _ => self.spots[previous as usize].next = next,
        }
        match next {
            NONE => self.tail = previous,
            _ => self.spots[next as usize].previous = previous,
        }
    }

    fn link(&mut self, index: u32) {
        let head = std::mem::replace(&mut self.head, index);
        let spot = &mut self.spots[index as usize];
        (spot.previous, spot.next) = (NONE, head);
        match head {
            NONE => self.tail = index,
            _ => self.spots[head as usize].previous = index,
        }
    }
}

impl Replacement for Order {
    fn count(&self) -> usize {
        self.count
    }

    fn insert(&mut self, index: u32, page: LogicalPage, _size: usize) {
        let at = index as usize;
        if self.spots.len() <= at {
            self.spots.resize(at + 1, NOWHERE);
        }
        // The reader of a page is about to use it: CLOCK's hand spares the page once (O3).
        self.spots[at] = Spot { page, is_used: true, ..NOWHERE };
        self.count += 1;
        self.share.period.reads += 1;
        self.enter(index);
    }

    fn touch(&mut self, index: u32) {
        if self.rule == ReplacementRule::Clock {
            self.spots[index as usize].is_used = true;
        } else if self.head != index {
            self.leave(index);
            self.enter(index);
        }
    }

    fn remove(&mut self, index: u32) {
        self.leave(index);
        self.spots[index as usize] = NOWHERE;
        self.count -= 1;
    }

    /// Its age stays (O2).
    fn set_dirty(&mut self, index: u32, is_dirty: bool) {
        let spot = self.spots[index as usize];
        if spot.is_dirty == is_dirty {
            return;
        }
        if spot.place == Place::Window {
            self.leave_window(index);
        }
        self.spots[index as usize].is_dirty = is_dirty;
        if spot.place == Place::Window {
            self.enter_window(index);
        }
        self.share.period.writes += u64::from(!is_dirty);
    }

    fn victim(&mut self, _urgency: Urgency) -> Option<u32> {
        match self.rule {
            ReplacementRule::Lru => {}
            ReplacementRule::Clock => self.give_second_chances(),
            _ => return self.victim_of_window(),
        }
        (self.tail != NONE).then_some(self.tail)
    }

    fn evicted(&mut self, costs: AccessCosts) {
        if self.rule == ReplacementRule::CflruAdaptive {
            self.share.learn(self.count, self.uses, costs);
        }
    }
}

/// Cost of frames in a period.
#[derive(Clone, Copy, Debug, Default)]
struct Period {
    /// Frames that had to be read.
    reads: u64,
    /// Frames that had to be written.
    writes: u64,
    /// Uses of frames when the period began.
    uses: u64,
}

/// Share of the frames in the window; a learned share climbs towards the least cost of a use.
#[derive(Debug)]
struct Share {
    window: f64,
    step: f64,
    period: Period,
    /// Nanoseconds a use in the period before.
    cost_before: Option<f64>,
}

/// Step by which a learned window changes.
const STEP: f64 = 0.1;

impl Share {
    fn new(window: f64) -> Self {
        Self { window, step: STEP, period: Period::default(), cost_before: None }
    }

    /// Ends the period when as many frames came as there are: compares the cost of a use with the
    /// period before, and turns round where it has risen.
    fn learn(&mut self, frames: usize, uses: u64, costs: AccessCosts) {
        let Period { reads, writes, uses: begun } = self.period;
        if reads < frames as u64 || uses == begun {
            return;
        }
        let total = reads as f64 * costs.read_ns + writes as f64 * costs.write_ns;
        let cost = total / (uses - begun) as f64;
        if self.cost_before.is_some_and(|before| cost > before) {
            self.step = -self.step;
        }
        self.window = (self.window + self.step).clamp(0.0, 1.0);
        self.cost_before = Some(cost);
        self.period = Period { uses, ..Period::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer of `size` frames that are named by their page.
    struct Buffer {
        order: Order,
        size: usize,
        /// Dirty pages that were victims: writes.
        writes: u32,
        misses: u32,
    }

    impl Buffer {
        fn new(rule: ReplacementRule, window: f64, size: usize) -> Self {
            Self { order: Order::new(rule, window), size, writes: 0, misses: 0 }
        }

        fn holds(&self, page: u32) -> bool {
            let spot = self.order.spots.get(page as usize);
            spot.is_some_and(|spot| spot.place != Place::Nowhere)
        }

        /// One reference; returns the page that left for it.
        fn refer(&mut self, page: u32, writes: bool) -> Option<u32> {
            let mut gone = None;
            if self.holds(page) {
                self.order.touch(page);
            } else {
                self.misses += 1;
                if self.order.count() == self.size {
                    gone = self.order.victim(Urgency::Now);
                    let victim = gone.unwrap();
                    if self.order.spots[victim as usize].is_dirty {
                        self.writes += 1;
                        self.order.set_dirty(victim, false);
                        assert_eq!(
                            self.order.victim(Urgency::Now),
                            Some(victim),
                            "what was written goes"
                        );
                    }
                    self.order.remove(victim);
                    self.order.evicted(AccessCosts { read_ns: 80.0, write_ns: 300.0 });
                }
                self.order.insert(page, LogicalPage(page), 1);
            }
            if writes {
                self.order.set_dirty(page, true);
            }
            assert_eq!(
                self.order.count(),
                self.order.spots.iter().filter(|s| s.place != Place::Nowhere).count(),
                "O1"
            );
            gone
        }
    }

    /// A reference string with locality: an eighth of the pages takes most references.
    fn references(count: u32) -> impl Iterator<Item = (u32, bool)> {
        let mut state = 7u32;
        let mut draw = move |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        (0..count).map(move |_| {
            let page = if draw(4) > 0 { draw(40) } else { draw(320) };
            (page, draw(3) == 0)
        })
    }

    #[test]
    fn an_empty_window_is_lru() {
        let mut lru = Buffer::new(ReplacementRule::Lru, 0.0, 30);
        let mut others = [ReplacementRule::Cflru, ReplacementRule::Cfdc]
            .map(|policy| Buffer::new(policy, 0.0, 30));
        for (page, writes) in references(5_000) {
            let gone = lru.refer(page, writes);
            for other in &mut others {
                assert_eq!(other.refer(page, writes), gone);
            }
        }
    }

    /// CFLRU by its definition: a scan of the window from the least recently used end.
    #[test]
    fn the_window_gives_its_oldest_clean_page() {
        const SIZE: usize = 30;
        for window in [0.1, 0.5, 1.0] {
            let mut buffer = Buffer::new(ReplacementRule::Cflru, window, SIZE);
            let mut model: Vec<(u32, bool)> = Vec::new();
            for (page, writes) in references(5_000) {
                let known = model.iter().position(|(other, _)| *other == page);
                let mut expected = None;
                if known.is_none() && model.len() == SIZE {
                    let width = (window * SIZE as f64).ceil() as usize;
                    let width = width.min(SIZE - LEAVES_MIN);
                    let clean = model[..width].iter().position(|(_, is_dirty)| !is_dirty);
                    expected = Some(model.remove(clean.unwrap_or(0)).0);
                }
                let was_dirty = known.is_some_and(|at| model.remove(at).1);
                model.push((page, was_dirty || writes));
                assert_eq!(buffer.refer(page, writes), expected, "window {window}");
            }
        }
    }

    #[test]
    fn second_chances_go_to_what_was_used() {
        let mut buffer = Buffer::new(ReplacementRule::Clock, 0.0, 3);
        for page in [1, 2, 3] {
            assert_eq!(buffer.refer(page, false), None);
        }
        assert_eq!(buffer.refer(4, false), Some(1), "all were used when they came");
        assert_eq!(buffer.refer(2, false), None);
        assert_eq!(buffer.refer(5, false), Some(3), "2 came first, but was used since");
        assert_eq!(buffer.refer(6, false), Some(2), "its second chance is gone");
    }

    /// Clean-first policies save writes; a learned window costs less than none.
    #[test]
    fn clean_first_saves_writes() {
        let run = |policy| {
            let mut buffer = Buffer::new(policy, 0.5, 60);
            for (page, writes) in references(40_000) {
                buffer.refer(page, writes);
            }
            (buffer.writes, buffer.misses, 80 * buffer.misses + 300 * buffer.writes)
        };
        let [lru, cflru, adaptive, cfdc] = [
            ReplacementRule::Lru,
            ReplacementRule::Cflru,
            ReplacementRule::CflruAdaptive,
            ReplacementRule::Cfdc,
        ]
        .map(run);
        assert!(cflru.0 < lru.0, "{cflru:?} against {lru:?}");
        assert!(cfdc.0 < lru.0, "{cfdc:?} against {lru:?}");
        assert!(adaptive.2 < lru.2, "{adaptive:?} against {lru:?}");
    }
}
