//! Everything random of a history, from one seed.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng as _, SeedableRng as _};

/// A stream of draws.
#[derive(Clone, Debug)]
pub(crate) struct Draw {
    stream: Pcg64Mcg,
}

impl Draw {
    /// The stream of a seed and a purpose.
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        Self { stream: Pcg64Mcg::seed_from_u64(mixed(seed ^ mixed(purpose))) }
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.stream.next_u64()
    }

    /// A number below `end`; 0 for 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// A number from `first` to `last`.
    pub(crate) fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// True once in `count` times; never for 0.
    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        count > 0 && self.below(count) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// An index, each as often as its weight says.
    pub(crate) fn weighted(&mut self, weights: &[u32]) -> usize {
        let mut left = self.below(weights.iter().map(|weight| u64::from(*weight)).sum());
        for (index, weight) in weights.iter().enumerate() {
            match left.checked_sub(u64::from(*weight)) {
                Some(rest) => left = rest,
                None => return index,
            }
        }
        0
    }
}

/// A hash of one number (the finalizer of SplitMix64, Steele, Lea and Flood 2014).
pub(crate) fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}
