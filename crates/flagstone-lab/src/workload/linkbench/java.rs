//! `java.util.Random`, as the Java platform specifies it: the shuffles are drawn with it.

const MULTIPLIER: u64 = 0x5_DEEC_E66D;
const MASK: u64 = (1 << 48) - 1;

/// The linear congruential generator of 48 bits.
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: (seed ^ MULTIPLIER) & MASK }
    }

    /// The upper `bits` of the next state.
    fn next(&mut self, bits: u32) -> u32 {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(11) & MASK;
        (self.state >> (48 - bits)) as u32
    }

    /// A number below `bound`, which is positive and below 2^31.
    pub(super) fn next_int(&mut self, bound: u32) -> u32 {
        if bound.is_power_of_two() {
            return ((u64::from(bound) * u64::from(self.next(31))) >> 31) as u32;
        }
        loop {
            let bits = self.next(31);
            let value = bits % bound.max(1);
            // A number beyond the last whole run of `bound` numbers below 2^31 is drawn again.
            if bits - value <= (1 << 31) - bound {
                return value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the generator equals Java's. Method: the first results of `nextInt()` and
    /// `nextInt(10)` as published for the seeds 0 and 42.
    #[test]
    fn it_draws_the_published_numbers() {
        let ints = |seed| {
            let mut random = Random::new(seed);
            [0; 4].map(|_| random.next(32) as i32)
        };
        assert_eq!(ints(42), [-1_170_105_035, 234_785_527, -1_360_544_799, 205_897_768]);
        assert_eq!(ints(0), [-1_155_484_576, -723_955_400, 1_033_096_058, -1_690_734_402]);
        let mut random = Random::new(42);
        assert_eq!([0; 10].map(|_| random.next_int(10)), [0, 3, 8, 4, 0, 5, 5, 8, 9, 3]);
        let mut random = Random::new(42);
        let eighths = [0; 4].map(|_| random.next_int(8));
        // The upper three bits of the first four numbers.
        assert_eq!(eighths, ints(42).map(|int| int as u32 >> 29));
    }
}
