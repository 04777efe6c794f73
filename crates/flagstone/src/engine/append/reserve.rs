//! The room that leaves leave free for appends although their content would fill it.
//!
//! Owns what a table's merges are known for, and the choice. A leaf that its content does not fill has
//! room for nothing; this is about leaves that a split fills, which are the tables that only grow at
//! their end, or in ascending runs.
//!
//! Slots make a table larger: as many more leaves gather fewer changes each and are merged more often,
//! and a fuller chip makes each page dearer. They save pages in turn, as often as changes are small. Both
//! sides are reckoned with what the device took lately; without having seen any merges of a table they are
//! taken to be small as often as not, and without having seen collection, what it takes is reckoned from
//! how full the chip is.

use flagstone_space::AppendRoom;

/// What the merges of a table are known for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Habit {
    /// Share of the latest merges whose change fits one slot.
    small: f64,
}

impl Default for Habit {
    fn default() -> Self {
        Self { small: 0.5 }
    }
}

/// Weight of a merge in the share of small ones.
const WEIGHT: f64 = 1.0 / 64.0;

/// What a page and an append cost at present.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AppendCosts {
    /// Device time of a page written, its share of collection included, and of one read.
    pub(crate) whole: f64,
    pub(crate) read: f64,
    /// Device time of an append.
    pub(crate) append: f64,
    /// Relocations that a page written brings with it.
    pub(crate) moves: f64,
    /// Share of the pages that may be live which are.
    pub(crate) fill: f64,
}

impl AppendCosts {
    /// Device time of a page on a chip whose content takes `growth` times the room: with less of it
    /// dead, collection finds less in each block.
    fn whole_at(&self, growth: f64) -> f64 {
        let alone = (self.whole - self.moves * self.read) / (1.0 + self.moves);
        let moves = match self.moves {
            // Collection has not begun: what a split leaves free is there when it has.
            0.0 => moves_at(growth * self.fill),
            moves => moves * moves_at(growth * self.fill) / moves_at(self.fill),
        };
        alone + moves * (alone + self.read)
    }
}

/// Relocations that a page written brings with it on a chip that is filled so far, when all pages are
/// written alike and the block with most dead ones is collected: a share `v` of a victim is live where
/// `fill = (v - 1) / ln v` (Menon, "A Performance Comparison of RAID-5 and Log-Structured Arrays", 1995).
fn moves_at(fill: f64) -> f64 {
    if fill >= 1.0 {
        return f64::INFINITY;
    }
    let (mut low, mut high) = (f64::EPSILON, 1.0 - f64::EPSILON);
    for _ in 0..VICTIM_STEPS {
        let live = f64::midpoint(low, high);
        if mean_with_one(live) < fill { low = live } else { high = live }
    }
    low / (1.0 - low)
}

/// Logarithmic mean of a share and one, `(v - 1) / ln v`, by its product of roots (Carlson, "The Logarithmic
/// Mean", 1972): a root is the same to the last bit on every machine, a logarithm is not.
fn mean_with_one(share: f64) -> f64 {
    let mut root = share;
    (0..VICTIM_STEPS).fold(1.0, |product, _| {
        root = root.sqrt();
        product * f64::midpoint(1.0, root)
    })
}

/// Halvings after which the share is known as well as it has to be.
const VICTIM_STEPS: u32 = 32;

impl Habit {
    /// A leaf was merged; whether its change fits one slot.
    pub(crate) fn note(&mut self, is_small: bool) {
        self.small += WEIGHT * (f64::from(u8::from(is_small)) - self.small);
    }

    /// Slots to leave free with which a change costs least. A page is written as a whole once in
    /// `1 + small + small² + …` merges, one for each slot.
    pub(crate) fn slots(self, room: AppendRoom, page_size: usize, prices: AppendCosts) -> u8 {
        let cost = |slots: u8| {
            let left = page_size.saturating_sub(room.size_of(slots)).max(1);
            let growth = page_size as f64 / left as f64;
            let merges: f64 = (0..=i32::from(slots)).map(|slot| self.small.powi(slot)).sum();
            growth * (prices.whole_at(growth) + (merges - 1.0) * prices.append) / merges
        };
        (0..=room.slots_max).min_by(|one, two| cost(*one).total_cmp(&cost(*two))).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLC: AppendRoom = AppendRoom { slots_max: 3, slot_size: 512, record_size_max: 498 };
    const IDLE: AppendCosts =
        AppendCosts { whole: 230.0, read: 80.0, append: 200.0, moves: 0.0, fill: 0.3 };
    const BUSY: AppendCosts = AppendCosts { whole: 900.0, moves: 1.5, fill: 0.8, ..IDLE };

    fn known(is_small: bool) -> Habit {
        let mut habit = Habit::default();
        (0..1_000).for_each(|_| habit.note(is_small));
        habit
    }

    #[test]
    fn room_is_left_where_it_costs_little_and_saves_much() {
        assert_eq!(known(true).slots(SLC, 2_048, IDLE), 0, "a quarter of each page for little");
        assert!(
            known(true).slots(SLC, 16_384, BUSY) > 0,
            "a thirtieth of each page for collection"
        );
        assert_eq!(known(false).slots(SLC, 16_384, BUSY), 0, "there is nothing to append");
    }

    #[test]
    fn collection_is_reckoned_from_the_fill_until_it_is_seen() {
        assert!(moves_at(0.1) < 0.01 && moves_at(1.0).is_infinite());
        assert!((moves_at(0.8) - 1.7).abs() < 0.2, "{}", moves_at(0.8));
        let loading = AppendCosts { fill: 0.6, ..IDLE };
        assert!(Habit::default().slots(SLC, 16_384, loading) > 0);
        assert_eq!(Habit::default().slots(SLC, 2_048, loading), 0);
    }

    #[test]
    fn no_room_is_left_where_it_would_fill_the_chip() {
        let full = AppendCosts { fill: 0.99, ..BUSY };
        assert_eq!(known(true).slots(SLC, 16_384, full), 0);
    }

    #[test]
    fn the_mean_of_a_share_and_one_is_the_logarithmic_one() {
        for share in [0.001, 0.1, 0.5, 0.9, 0.999] {
            let expected = (share - 1.0) / f64::ln(share);
            assert!((mean_with_one(share) - expected).abs() < 1e-8, "{share}");
        }
    }
}
