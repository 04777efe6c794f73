//! Numbers that look random and follow from a seed.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng as _, SeedableRng as _};

/// Draws decided by several words: the same words give the same draws again.
pub(crate) struct Draw(Pcg64Mcg);

impl Draw {
    pub(crate) fn of(words: &[u64]) -> Self {
        let mixed = words.iter().fold(0x9E37_79B9_7F4A_7C15_u64, |state, word| {
            let state = (state ^ word).wrapping_mul(0xD6E8_FEB8_6659_FD93);
            (state ^ (state >> 32)).wrapping_mul(0xD1B5_4A32_D192_ED03)
        });
        Self(Pcg64Mcg::seed_from_u64(mixed))
    }

    /// A number below `bound`; 0 where that is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64().checked_rem(bound).unwrap_or(0)
    }

    /// A number of these, both ends included.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most.saturating_sub(least) + 1)
    }

    /// Whether this is one of `count` cases.
    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    pub(crate) fn bytes(&mut self, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        self.0.fill_bytes(&mut bytes);
        bytes
    }
}
