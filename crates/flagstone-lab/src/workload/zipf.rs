//! Ranks by Zipf's law (Gray et al., "Quickly generating billion-record synthetic databases",
//! SIGMOD 1994, section 3.2).

use super::numeric::pow;

/// Items up to which the harmonic number is summed.
const EXACT_COUNT: u64 = 100_000;
/// Constant that LinkBench adds to the integral that stands for a longer sum.
const APPROXIMATION: f64 = 0.58;

/// Ranks below a bound, 0 the most likely.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Zipf {
    count: u64,
    theta: f64,
    zetan: f64,
    eta: f64,
}

impl Zipf {
    /// `count` ranks, each as likely as its number, counted from 1, to the power of minus `theta`.
    #[must_use]
    pub(super) fn new(count: u64, theta: f64) -> Self {
        Self::with_sum(count, theta, harmonic(count, theta))
    }

    /// The same without the approximation, in time that grows with `count`.
    #[must_use]
    pub(super) fn exact(count: u64, theta: f64) -> Self {
        Self::with_sum(count, theta, (1..=count).map(|number| pow(number as f64, -theta)).sum())
    }

    /// The same, of which the sum over all ranks is known.
    #[must_use]
    pub(super) fn with_sum(count: u64, theta: f64, zetan: f64) -> Self {
        let rest = pow(2.0 / count.max(1) as f64, 1.0 - theta);
        let eta = (1.0 - rest) / (1.0 - harmonic(2, theta) / zetan);
        Self { count, theta, zetan, eta }
    }

    /// There is one rank more.
    pub(super) fn grow(&mut self) {
        let zetan = self.zetan + pow((self.count + 1) as f64, -self.theta);
        *self = Self::with_sum(self.count + 1, self.theta, zetan);
    }

    /// The rank below which a share `share` of the draws lie.
    #[must_use]
    pub(super) fn quantile(&self, share: f64) -> u64 {
        let place = share * self.zetan;
        if place < 1.0 {
            return 0;
        }
        if place < 1.0 + pow(0.5, self.theta) {
            return 1;
        }
        let base = self.eta * share - self.eta + 1.0;
        let rank = self.count as f64 * pow(base, 1.0 / (1.0 - self.theta));
        (rank as u64).min(self.count.saturating_sub(1))
    }
}

/// Sum of the first `count` numbers to the power of minus `theta`.
fn harmonic(count: u64, theta: f64) -> f64 {
    if count < EXACT_COUNT {
        return (1..=count).map(|number| pow(number as f64, -theta)).sum();
    }
    let rest = 1.0 - theta;
    pow(count as f64, rest) / rest + APPROXIMATION - 1.0 / rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ranks_get_their_share() {
        let zipf = Zipf::new(10_000, 0.8);
        let below = |rank| {
            (0..100_000).filter(|step| zipf.quantile(f64::from(*step) / 1e5) < rank).count() as f64
                / 1e5
        };
        let share = |rank| harmonic(rank, 0.8) / harmonic(10_000, 0.8);
        assert!((below(1) - share(1)).abs() < 1e-4);
        assert!((below(2) - share(2)).abs() < 1e-4);
        // Beyond the second rank the law is an approximation.
        assert!((below(100) - share(100)).abs() < 0.02, "{} {}", below(100), share(100));
        assert!((below(1000) - share(1000)).abs() < 0.02);
        assert_eq!(zipf.quantile(1.0), 9_999);
    }

    #[test]
    fn the_approximation_continues_the_sum() {
        let sum: f64 = (1..=EXACT_COUNT).map(|it| pow(it as f64, -0.8)).sum();
        assert!((harmonic(EXACT_COUNT, 0.8) / sum - 1.0).abs() < 0.01);
    }
}
