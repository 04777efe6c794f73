//! Workloads: seeded generators, loaders and transactions that any engine can carry.
//!
//! Owns what a transaction does and in which order; never owns time, threads or retries, which
//! belong to whoever drives it.
//!
//! - **W1** Randomness comes from an explicit seed and one stream a client; the wall clock is never
//!   read. Equal seeds give equal inputs on every machine.
//! - **W2** A transaction is a state machine over [`Operations`]: an operation that stops leaves it
//!   where it was, and the same call made again goes on from there.

pub mod tpcb;

use flagstone::Table;

/// What a workload asks of an engine, inside one transaction.
///
/// `Stop` is whatever ends a call early: a wait that the caller resolves before it calls again, or
/// an error.
pub trait Operations {
    /// Why an operation did not complete.
    type Stop;

    /// Reads `size` bytes at `offset` of a value into `out`; `false` when the key is absent.
    ///
    /// # Errors
    ///
    /// The engine's reason to stop.
    fn get_part(
        &mut self,
        table: Table,
        key: &[u8],
        part: Part,
        out: &mut Vec<u8>,
    ) -> Result<bool, Self::Stop>;

    /// Writes a whole value.
    ///
    /// # Errors
    ///
    /// The engine's reason to stop.
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), Self::Stop>;

    /// Overwrites `bytes` at `offset` of a value that exists.
    ///
    /// # Errors
    ///
    /// The engine's reason to stop.
    fn patch(
        &mut self,
        table: Table,
        key: &[u8],
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), Self::Stop>;
}

/// A run of bytes within a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First byte.
    pub offset: usize,
    /// Number of bytes.
    pub size: usize,
}

/// Seeded generator of one client: PCG-64 with the client as its stream (rule W1).
#[derive(Clone, Debug)]
pub struct Draws(rand_pcg::Pcg64);

impl Draws {
    /// The generator of stream `stream` under `seed`.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        // Streams of one PCG that start from the same state are correlated; a scrambled state
        // for each keeps clients independent.
        let state = u128::from(scramble(seed)) << 64 | u128::from(scramble(seed ^ !stream));
        Self(rand_pcg::Pcg64::new(state, u128::from(stream)))
    }

    /// A number below `bound`, without bias; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        use rand::Rng as _;
        // Lemire's multiply-shift with rejection (ACM TOMACS 29(1), 2019).
        let threshold = bound.wrapping_neg().checked_rem(bound).unwrap_or(0);
        loop {
            let product = u128::from(self.0.next_u64()) * u128::from(bound);
            if product as u64 >= threshold {
                return (product >> 64) as u64;
            }
        }
    }

    /// A number between `low` and `high`, both included.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        let span = high.abs_diff(low).saturating_add(1);
        low.wrapping_add_unsigned(self.below(span))
    }
}

/// Final mix of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn scramble(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_stay_in_bounds_and_reach_both_ends() {
        let mut draws = Draws::new(1, 0);
        let seen: std::collections::BTreeSet<i64> =
            (0..1000).map(|_| draws.between(-2, 2)).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [-2, -1, 0, 1, 2]);
        assert_eq!(draws.below(0), 0);
    }

    #[test]
    fn equal_seeds_draw_alike_and_streams_differ() {
        let draw = |seed, stream| {
            let mut draws = Draws::new(seed, stream);
            [draws.below(u64::MAX), draws.below(u64::MAX)]
        };
        assert_eq!(draw(7, 3), draw(7, 3));
        assert_ne!(draw(7, 3), draw(7, 4));
        assert_ne!(draw(7, 3), draw(8, 3));
    }
}
