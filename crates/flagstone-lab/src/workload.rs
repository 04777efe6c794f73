//! Workloads: seeded generators, loaders and transactions that any engine can carry.
//!
//! Owns the operations of a transaction and their order; never owns time, threads or retries, which
//! belong to the driver.
//!
//! - **W1** Randomness comes from an explicit seed and one stream a client; the wall clock is never
//!   read. Equal seeds give equal inputs on every machine.
//! - **W2** A transaction is a state machine over [`Operations`]: an operation that stops leaves it
//!   where it was, and the same call made again goes on from there.
//! - **W3** A workload knows the contents that its database must have after any number of commits,
//!   and can tell from the database alone and the commits that returned ([`Workload::verify`]).

mod claims;
#[cfg(test)]
pub(crate) mod cuts;
pub mod index;
pub mod linkbench;
mod numeric;
mod operations;
#[cfg(test)]
pub(crate) mod stuttering;
pub mod tatp;
pub mod tpcb;
pub mod tpcc;
pub mod ycsb;
mod zipf;

use std::collections::BTreeMap;

use flagstone_engine::{EngineError, Table};

use crate::bench::BenchError;
use crate::sizing::{Content, Estimate};
use crate::store::Store;

pub use claims::GivingUp;
pub use operations::{Intent, Operations, Part, Scan};

/// Tables, rows, clients and the check that belong together.
pub trait Workload: Send + Sync {
    /// Handles of its tables.
    type Tables: Copy + Send + Sync;
    /// Endless transactions of one client.
    type Terminal: Terminal + Send;

    /// Name and dialect, such as `tpcb/spec`.
    fn name(&self) -> String;

    /// All that its fresh database depends on.
    fn identity(&self) -> String;

    /// Names of the classes of transactions, which are reported apart.
    fn classes(&self) -> &'static [&'static str];

    /// Opens the tables with `open`, which is given each name.
    ///
    /// # Errors
    ///
    /// The first error of `open`.
    fn tables<E>(
        &self,
        open: impl FnMut(&'static str) -> Result<Table, E>,
    ) -> Result<Self::Tables, E>;

    /// Hands the rows of a fresh database to `put`, each table in key order.
    ///
    /// # Errors
    ///
    /// The first error of `put`.
    fn load(&self, tables: Self::Tables, put: Put<'_>) -> Result<(), EngineError>;

    /// How many rows [`Workload::load`] hands over.
    fn row_count(&self) -> u64;

    /// Bytes of their keys and values.
    fn loaded_bytes(&self) -> u64;

    /// Contents of the tables after `txns` commits of `clients` clients.
    fn contents(&self, txns: u64, clients: u32) -> Vec<Content>;

    /// Estimate by which the first chip is sized; the figures of a first run replace it.
    fn first_estimate(&self, clients: u32) -> Estimate {
        Estimate::for_clients(clients)
    }

    /// Client `number` before its first transaction.
    fn terminal(&self, tables: Self::Tables, number: u64) -> Self::Terminal;

    /// Checks the database right after the load.
    ///
    /// # Errors
    ///
    /// The first contradiction.
    fn verify_loaded<S: Store>(&self, _store: &S) -> Result<(), BenchError> {
        Ok(())
    }

    /// Checks that the database contradicts neither itself nor the commits that returned.
    ///
    /// # Errors
    ///
    /// The first contradiction.
    fn verify<S: Store>(&self, store: &S, acknowledged: &Acknowledged) -> Result<(), BenchError>;
}

/// Takes one row of a fresh database.
pub type Put<'a> = &'a mut dyn FnMut(Table, &[u8], &[u8]) -> Result<(), EngineError>;

/// Commits that returned: for each client a count a class.
pub type Acknowledged = BTreeMap<u64, Vec<u64>>;

/// Endless transactions of one client, each a state machine (rule W2).
pub trait Terminal {
    /// Class of the transaction under way, as an index into [`Workload::classes`].
    fn class(&self) -> usize;

    /// Goes on until everything is read and written, or until an operation stops; then it is
    /// called again once the reason has gone.
    ///
    /// # Errors
    ///
    /// The engine's reason to stop.
    fn advance<O: Operations>(&mut self, engine: &mut O) -> Result<Outcome, O::Stop>;

    /// The engine has aborted the transaction: the same one begins again.
    fn restart(&mut self);

    /// The transaction is over: the next one takes its place.
    fn next(&mut self, ended: Outcome);
}

/// How a transaction's operations ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything is written: commit.
    Commit,
    /// It was meant to fail, or has nothing to do: abort, and do not try again.
    Abort,
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
