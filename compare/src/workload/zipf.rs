//! Zipfian ranks, drawn as YCSB does.

use rand::{Rng, RngExt as _};

const THETA: f64 = 0.99;
/// Items of YCSB's own distribution and the constant that it gives for them.
const YCSB_ITEMS: f64 = 1e10;
const YCSB_ZETA: f64 = 26.469_028_201_783_02;
/// Terms of the sum that are added one by one; an integral stands for the others.
const TERMS: u64 = 1000;

pub struct Zipf {
    items: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// Ranks below `items`.
    pub fn new(items: u64) -> Self {
        let first: f64 = (1..=items.min(TERMS)).map(|rank| (rank as f64).powf(-THETA)).sum();
        let power = |x: f64| (x + 0.5).powf(1.0 - THETA) / (1.0 - THETA);
        let others = power(items.max(TERMS) as f64) - power(TERMS as f64);
        Self::with(items as f64, first + others)
    }

    /// Ranks of YCSB, which are scattered over far fewer records.
    pub fn ycsb() -> Self {
        Self::with(YCSB_ITEMS, YCSB_ZETA)
    }

    fn with(items: f64, zeta: f64) -> Self {
        let zeta_2 = 1.0 + 0.5_f64.powf(THETA);
        let eta = (1.0 - (2.0 / items).powf(1.0 - THETA)) / (1.0 - zeta_2 / zeta);
        Self { items, zeta, eta }
    }

    pub fn rank(&self, draws: &mut impl Rng) -> u64 {
        let u: f64 = draws.random();
        let uz = u * self.zeta;
        if uz < 1.0 {
            0
        } else if uz < 1.0 + 0.5_f64.powf(THETA) {
            1
        } else {
            (self.items * (self.eta * u - self.eta + 1.0).powf(1.0 / (1.0 - THETA))) as u64
        }
    }
}
