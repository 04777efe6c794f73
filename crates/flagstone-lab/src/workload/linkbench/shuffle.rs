//! The invertible shuffle: ids in 1024 groups, each rotated by its own distance.

use super::java::Random;

/// Groups; neighbours are in different ones.
pub(super) const GROUPS: u64 = 1024;

/// A permutation of the numbers below a bound.
#[derive(Clone, Debug)]
pub(super) struct Shuffle {
    count: u64,
    /// Distance of each group, in steps of [`GROUPS`].
    rotations: Vec<u32>,
}

impl Shuffle {
    /// The permutation of the numbers below `count` that `seed` gives; there are at least as many as
    /// groups.
    #[must_use]
    pub(super) fn new(seed: u64, count: u64) -> Self {
        let mut random = Random::new(seed);
        let size = u32::try_from(count / GROUPS).unwrap_or(u32::MAX).clamp(1, i32::MAX as u32);
        Self { count, rotations: (0..GROUPS).map(|_| random.next_int(size)).collect() }
    }

    /// Where `number` goes.
    #[must_use]
    pub(super) fn permute(&self, number: u64) -> u64 {
        self.rotate(number, self.rotation(number % GROUPS))
    }

    /// The number that is mapped to `number`.
    #[must_use]
    pub(super) fn invert(&self, number: u64) -> u64 {
        let group = number % GROUPS;
        let size = self.count / GROUPS + u64::from(self.is_big(group));
        self.rotate(number, size - self.rotation(group))
    }

    fn rotation(&self, group: u64) -> u64 {
        self.rotations.get(group as usize).copied().map_or(0, u64::from)
    }

    /// Whether the group has one number more than others.
    fn is_big(&self, group: u64) -> bool {
        group < self.count % GROUPS
    }

    fn rotate(&self, number: u64, distance: u64) -> u64 {
        let group = number % GROUPS;
        let moved = number + GROUPS * distance;
        if moved < self.count {
            return moved;
        }
        let whole = self.count / GROUPS * GROUPS;
        let bound = if self.is_big(group) { whole + GROUPS } else { whole };
        let wrapped = moved % bound;
        if wrapped < self.count { wrapped } else { group }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_permutation_and_its_inverse_undoes_it() {
        for count in [1024, 1025, 2047, 2048, 5000, 100_000] {
            let shuffle = Shuffle::new(20_343_988_438_726_021, count);
            let mut seen = vec![false; count as usize];
            for number in 0..count {
                let there = shuffle.permute(number);
                assert_eq!(shuffle.invert(there), number, "{count}");
                assert_eq!(shuffle.permute(shuffle.invert(number)), number, "{count}");
                assert!(!std::mem::replace(&mut seen[there as usize], true), "{there} of {count}");
            }
        }
    }

    #[test]
    fn seeds_shuffle_differently() {
        let moved = |seed| (0..100).map(|it| Shuffle::new(seed, 100_000).permute(it)).collect();
        let (one, two): (Vec<u64>, Vec<u64>) = (moved(1), moved(2));
        assert_ne!(one, two);
    }
}
