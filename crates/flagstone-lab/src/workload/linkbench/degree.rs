//! How many links an id has.
//!
//! Owns the distribution measured at Facebook, at 69 of its 19,951 points. Between two of these
//! points that are not neighbours a power law stands for the rest; the mean is 4.08 links, of the
//! original 4.097.

use super::Dialect;
use super::access::DEGREE_SEED;
use super::shuffle::Shuffle;
use crate::workload::numeric::{ln, pow};

/// Most links of an id.
pub(super) const DEGREE_MAX: u64 = 961_963;

/// Links, and the percent of the ids that have at most as many.
const POINTS: [(u64, f64); 69] = [
    (0, 45.3316),
    (1, 77.4626),
    (2, 86.9581),
    (3, 91.9931),
    (4, 94.4508),
    (5, 95.8281),
    (6, 96.7225),
    (7, 97.3201),
    (8, 97.7614),
    (9, 98.0777),
    (10, 98.3280),
    (11, 98.5370),
    (12, 98.7003),
    (13, 98.8254),
    (14, 98.9336),
    (15, 99.0269),
    (16, 99.1080),
    (17, 99.1799),
    (18, 99.2367),
    (19, 99.2833),
    (20, 99.3270),
    (25, 99.4702),
    (30, 99.5569),
    (35, 99.6169),
    (40, 99.6614),
    (50, 99.7216),
    (60, 99.7596),
    (70, 99.7861),
    (80, 99.8052),
    (100, 99.8314),
    (120, 99.8485),
    (150, 99.8662),
    (200, 99.8851),
    (250, 99.8973),
    (300, 99.9061),
    (400, 99.9187),
    (500, 99.9275),
    (700, 99.9394),
    (1_000, 99.9507),
    (1_500, 99.9621),
    (2_000, 99.9694),
    (3_000, 99.9785),
    (5_000, 99.9875),
    (7_000, 99.9917),
    (10_000, 99.9950),
    (15_000, 99.9975),
    (19_998, 99.99854),
    (30_000, 99.99938),
    (41_297, 99.99970432),
    (49_994, 99.99981396),
    (60_056, 99.99987718),
    (70_034, 99.99991505),
    (80_066, 99.9999404),
    (90_193, 99.99995456),
    (99_383, 99.99996279),
    (110_334, 99.99996806),
    (120_456, 99.99997399),
    (131_124, 99.99997728),
    (140_538, 99.99997991),
    (150_078, 99.99998222),
    (164_152, 99.99998485),
    (181_268, 99.99998683),
    (202_547, 99.99999111),
    (235_153, 99.99999374),
    (278_496, 99.99999605),
    (315_801, 99.99999802),
    (485_372, 99.99999934),
    (906_857, 99.99999967),
    (DEGREE_MAX, 100.0),
];

/// Types of links.
pub(super) const TYPES: u64 = 2;

/// Links of every id.
#[derive(Clone, Debug)]
pub struct Degrees {
    dialect: Dialect,
    nodes: u64,
    degree_max: u64,
    shuffle: Shuffle,
}

impl Degrees {
    /// Of the ids from 1 to `nodes`, none with more than `degree_max` links.
    #[must_use]
    pub fn new(dialect: Dialect, nodes: u64, degree_max: u64) -> Self {
        Self { dialect, nodes, degree_max, shuffle: Shuffle::new(DEGREE_SEED, nodes) }
    }

    /// Links of the distribution for an id.
    #[must_use]
    pub fn total(&self, id: u64) -> u64 {
        self.of_rank(self.shuffle.invert(id - 1))
    }

    /// Links of the distribution for a rank, from 0, which has most.
    fn of_rank(&self, rank: u64) -> u64 {
        quantile(rank as f64 / self.nodes as f64).min(self.degree_max)
    }

    /// Links of an id that are of a type, 0 or 1.
    #[must_use]
    pub fn of_type(&self, id: u64, kind: u64) -> u64 {
        self.share(self.total(id), kind)
    }

    /// Links of a type, of `total` links.
    fn share(&self, total: u64, kind: u64) -> u64 {
        let each = total / TYPES;
        let left = match self.dialect {
            Dialect::Spec => total - each * TYPES,
            // The program forgets to multiply.
            Dialect::Linkbench => total - each,
        };
        each + u64::from(kind < left)
    }
}

/// The fewest links such that at most a share `rest` of the ids have more.
fn quantile(rest: f64) -> u64 {
    let more = |percent: f64| (100.0 - percent) / 100.0;
    let place = POINTS.partition_point(|(_, percent)| more(*percent) > rest);
    let Some((links, percent)) = POINTS.get(place).copied() else { return DEGREE_MAX };
    let before = place.checked_sub(1).and_then(|place| POINTS.get(place).copied());
    let Some((low, low_percent)) = before else { return links };
    if links == low + 1 || percent == 100.0 {
        return links;
    }
    // Between the points the share that has more falls by a power of the links.
    let fall = ln(more(low_percent) / more(percent)) / ln(links as f64 / low as f64);
    let between = low as f64 * pow(more(low_percent) / rest, 1.0 / fall);
    (between.ceil() as u64).clamp(low + 1, links)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_types_share_the_links_and_the_program_hands_out_too_many() {
        let handed_out = |dialect| {
            let degrees = Degrees::new(dialect, 1024, DEGREE_MAX);
            [1, 2, 3, 4, 5].map(|total| degrees.share(total, 0) + degrees.share(total, 1))
        };
        assert_eq!(handed_out(Dialect::Spec), [1, 2, 3, 4, 5]);
        assert_eq!(handed_out(Dialect::Linkbench), [1, 3, 4, 6, 6]);
    }

    /// Goal: the distribution has the published mean, 4.097, and in the program's dialect the
    /// program's own, 4.371.
    /// Method: its values at ten million shares; half a percent, since 69 points stand for 19,951.
    #[test]
    fn ids_have_4_10_links_on_average_and_4_37_in_the_program() {
        const SHARES: u64 = 10_000_000;
        let of = |dialect| Degrees::new(dialect, 1024, DEGREE_MAX);
        let (spec, program) = (of(Dialect::Spec), of(Dialect::Linkbench));
        let mut sums = [0; 2];
        for share in 0..SHARES {
            let total = quantile((share as f64 + 0.5) / SHARES as f64);
            sums[0] += spec.share(total, 0) + spec.share(total, 1);
            sums[1] += program.share(total, 0) + program.share(total, 1);
        }
        for (sum, mean) in sums.into_iter().zip([4.097, 4.371]) {
            let found = sum as f64 / SHARES as f64;
            assert!((found / mean - 1.0).abs() < 0.005, "{found}, not {mean}");
        }
    }

    #[test]
    fn points_are_met_and_ranks_descend() {
        for window in POINTS.windows(2) {
            let [(low, low_percent), (links, percent)] = window else { continue };
            assert!(low < links && low_percent < percent, "ascending");
            assert_eq!(quantile((100.0 - percent) / 100.0), *links);
        }
        assert_eq!((quantile(0.0), quantile(0.999)), (DEGREE_MAX, 0));
        let degrees = Degrees::new(Dialect::Spec, 100_000, DEGREE_MAX);
        let ranks: Vec<u64> = (0..100_000).map(|rank| degrees.of_rank(rank)).collect();
        assert!(ranks.is_sorted_by(|one, two| one >= two));
    }
}
