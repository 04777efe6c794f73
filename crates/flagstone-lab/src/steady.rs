//! Whether a measured window is steady.
//!
//! Owns the rule and nothing else. The window is cut into [`SLICE_COUNT`] slices of equal commits.
//!
//! - **S1** Garbage collection ran throughout: every quarter of the window has an erase.
//! - **S2** The erases per commit of the two halves differ by at most 3 % of their mean, or by the
//!   sampling error where that is larger.
//! - **S3** The sampling error is two standard errors of the difference of the two halves' means,
//!   taken from the scatter of the slices within each half, so that a drift between the halves
//!   does not excuse itself.
//!
//! Where the slices scatter much, the window cannot tell whether it drifts: it passes the rule and
//! says little. The papers' figures take it for steady only below [`Steadiness::ALLOWED_MAX`].

use serde::{Deserialize, Serialize};

/// Slices of a window; a multiple of eight, so that halves and quarters are whole slices.
pub const SLICE_COUNT: usize = 16;
const _: () = assert!(SLICE_COUNT.is_multiple_of(8));

/// Largest difference that needs no excuse (rule S2).
const DRIFT_MAX: f64 = 0.03;

/// Work of one slice of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Commits of the slice.
    pub commits: u64,
    /// Block erases of the slice.
    pub erases: u64,
}

/// Outcome of the rule, with its figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Steadiness {
    /// Whether the window is steady.
    pub steady: bool,
    /// Difference of the halves' erases per commit, as a share of their mean.
    pub drift: f64,
    /// Difference that is allowed; beyond [`Steadiness::ALLOWED_MAX`] little can be told.
    pub drift_max: f64,
}

impl Steadiness {
    /// Largest sampling error with which a window tells whether it drifts.
    pub const ALLOWED_MAX: f64 = 0.10;

    /// Judges a window by its slices, in order.
    #[must_use]
    pub fn of(slices: &[Slice]) -> Self {
        let (early, late) = slices.split_at(slices.len() / 2);
        let (early, late) = (Half::of(early), Half::of(late));
        let mean = f64::midpoint(early.mean, late.mean);
        if mean <= 0.0 {
            return Self::default();
        }
        let drift = (early.mean - late.mean).abs() / mean;
        let sampling = 2.0 * (early.mean_variance + late.mean_variance).sqrt() / mean;
        let drift_max = sampling.max(DRIFT_MAX);
        Self { steady: collects_throughout(slices) && drift <= drift_max, drift, drift_max }
    }
}

/// Rule S1.
fn collects_throughout(slices: &[Slice]) -> bool {
    let quarter = (slices.len() / 4).max(1);
    !slices.is_empty()
        && slices.chunks(quarter).all(|part| part.iter().any(|slice| slice.erases > 0))
}

/// Erases per commit of half a window.
struct Half {
    mean: f64,
    /// Variance of the mean, from the scatter of the slices.
    mean_variance: f64,
}

impl Half {
    fn of(slices: &[Slice]) -> Self {
        let count = slices.len() as f64;
        let rate = |slice: &Slice| slice.erases as f64 / (slice.commits as f64).max(1.0);
        let mean = slices.iter().map(rate).sum::<f64>() / count.max(1.0);
        let squares = slices.iter().map(|slice| (rate(slice) - mean).powi(2)).sum::<f64>();
        let mean_variance = squares / (count - 1.0).max(1.0) / count.max(1.0);
        Self { mean, mean_variance }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(erases: [u64; SLICE_COUNT]) -> Steadiness {
        let slices = erases.map(|erases| Slice { commits: 1000, erases });
        Steadiness::of(&slices)
    }

    #[test]
    fn even_collection_is_steady() {
        let steadiness = window([9; SLICE_COUNT]);
        assert!(steadiness.steady);
        assert_eq!(steadiness.drift, 0.0);
    }

    #[test]
    fn a_window_without_erases_is_not_steady() {
        assert!(!window([0; SLICE_COUNT]).steady);
        assert!(!Steadiness::of(&[]).steady);
    }

    #[test]
    fn collection_that_starts_late_is_not_steady() {
        let mut erases = [8; SLICE_COUNT];
        erases[..SLICE_COUNT / 4].fill(0);
        assert!(!window(erases).steady, "rule S1");
    }

    #[test]
    fn a_clear_drift_is_not_steady() {
        let mut erases = [100; SLICE_COUNT];
        erases[SLICE_COUNT / 2..].fill(110);
        let steadiness = window(erases);
        assert!((steadiness.drift - 10.0 / 105.0).abs() < 1e-9);
        assert!(!steadiness.steady, "rule S2");
    }

    /// Goal: a window whose bursts would hide any drift is known by the drift it allows. Method:
    /// collection that comes all at once, in two slices of each half, and twice as much in the
    /// second half.
    #[test]
    fn bursts_that_hide_any_drift_are_told() {
        let mut erases = [1; SLICE_COUNT];
        for (slice, count) in [(1, 100), (6, 100), (9, 200), (14, 200)] {
            erases[slice] = count;
        }
        let steadiness = window(erases);
        assert!(steadiness.drift > 0.6 && steadiness.drift <= steadiness.drift_max);
        assert!(steadiness.drift_max > Steadiness::ALLOWED_MAX);
        let even = window(std::array::from_fn(|index| if index % 8 == 3 { 100 } else { 1 }));
        assert!(even.drift == 0.0 && even.drift_max > Steadiness::ALLOWED_MAX, "{even:?}");
    }

    #[test]
    fn scatter_excuses_a_small_difference() {
        let erases = std::array::from_fn(|index| {
            let index = index as u64;
            30 + 2 * (index * 7 % 5) + 2 * (index / 8)
        });
        let steadiness = window(erases);
        assert!(steadiness.drift > DRIFT_MAX && steadiness.drift_max > DRIFT_MAX);
        assert!(steadiness.steady, "rule S3");
    }
}
