//! Randomness and hashes, with which equal seeds give equal runs on every machine.
//!
//! Owns a seeded generator for faults and a fast hash for traces and contents. Never draws from
//! the host, and promises nothing against an adversary.

/// Odd constant of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Bytes folded at a time: four independent lanes keep the multiplier busy.
const LANE_SIZE: usize = 8;
const STRIDE: usize = 4 * LANE_SIZE;

/// Final mix of SplitMix64: every input bit reaches every output bit.
pub(crate) const fn scramble(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// Seeded generator (SplitMix64): equal seeds, equal draws.
#[derive(Clone, Debug)]
pub(crate) struct Draw(u64);

impl Draw {
    /// A generator for one purpose: `purpose` keeps draws for different ones apart.
    pub(crate) const fn new(seed: u64, purpose: u64) -> Self {
        Self(seed ^ scramble(purpose.wrapping_add(GOLDEN)))
    }

    /// The next 64 bits.
    pub(crate) const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        scramble(self.0)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub(crate) const fn below(&mut self, bound: u32) -> u32 {
        // Multiply-shift: the bias is below bound / 2^32, of no consequence for faults.
        (((self.bits() >> 32) * bound as u64) >> 32) as u32
    }

    /// A fair coin.
    pub(crate) const fn coin(&mut self) -> bool {
        self.bits() >> 63 == 1
    }

    /// Overwrites `target` with random bytes.
    pub(crate) fn fill(&mut self, target: &mut [u8]) {
        for chunk in target.chunks_mut(LANE_SIZE) {
            let bytes = self.bits().to_le_bytes();
            for (target, byte) in chunk.iter_mut().zip(bytes) {
                *target = byte;
            }
        }
    }
}

/// Adds `value` to a running hash.
pub(crate) const fn mix(hash: u64, value: u64) -> u64 {
    (hash.rotate_left(23) ^ value).wrapping_mul(GOLDEN)
}

/// Adds `bytes` to a running hash; four lanes, so that a page costs tens of nanoseconds.
pub(crate) fn mix_bytes(hash: u64, bytes: &[u8]) -> u64 {
    let mut lanes = [hash, !hash, hash ^ GOLDEN, hash.rotate_left(32)];
    let mut strides = bytes.chunks_exact(STRIDE);
    for stride in &mut strides {
        for (lane, word) in lanes.iter_mut().zip(stride.chunks_exact(LANE_SIZE)) {
            *lane = mix(*lane, word_of(word));
        }
    }
    for rest in strides.remainder().chunks(LANE_SIZE) {
        lanes[0] = mix(lanes[0], word_of(rest));
    }
    let folded = lanes.into_iter().fold(hash, mix);
    mix(folded, bytes.len() as u64)
}

/// Little-endian word of up to eight bytes.
fn word_of(bytes: &[u8]) -> u64 {
    if let Ok(whole) = <[u8; LANE_SIZE]>::try_from(bytes) {
        return u64::from_le_bytes(whole);
    }
    bytes.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_depends_on_every_byte_and_on_the_length() {
        let base = [7_u8; 70];
        let clean = mix_bytes(1, &base);
        for index in 0..base.len() {
            let mut changed = base;
            changed[index] ^= 0x10;
            assert_ne!(clean, mix_bytes(1, &changed), "byte {index} is ignored");
        }
        assert_ne!(mix_bytes(1, &[0; 8]), mix_bytes(1, &[0; 9]));
    }

    #[test]
    fn equal_seeds_draw_alike_and_purposes_differ() {
        let (mut one, mut same, mut other) = (Draw::new(3, 1), Draw::new(3, 1), Draw::new(3, 2));
        assert_eq!(one.bits(), same.bits());
        assert_ne!(one.bits(), other.bits());
        assert!((0..1000).all(|_| one.below(7) < 7), "a draw reached its bound");
    }
}
