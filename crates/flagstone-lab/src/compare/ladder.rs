//! From the lazy-update paper's policy to the default, one option after the other, with the worth
//! of each.

use flagstone_engine::{
    CommitBy, MergeTo, Options, OptionsError, RelocationFolding, SuperGroup, Victim,
};
use serde::Serialize;

use super::Policy;
use crate::preset;

/// Worth of a change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Workload.
    pub workload: String,
    /// The change.
    pub change: &'static str,
    /// Flash time of a request before it, in microseconds.
    pub before_us: f64,
    /// And after it.
    pub after_us: f64,
}

/// Makes one change.
type Change = fn(Options) -> Options;

/// The changes, in the order in which they are made.
pub const STEPS: [(&str, Change); 8] = [
    ("groups that go together", |options| Options { super_group: SuperGroup::Off, ..options }),
    ("merges written at once", |options| Options { merge_to: MergeTo::Flash, ..options }),
    ("which group is merged", |options| Options { victim: Victim::Window, ..options }),
    ("merges in batches", |options| Options {
        merge_batch: Options::default().merge_batch,
        ..options
    }),
    ("split of memory", |options| Options {
        frame_share: Options::default().frame_share,
        budget: Options::default().budget,
        ..options
    }),
    ("collection folds changes in", |options| Options {
        relocation: RelocationFolding::Fold,
        ..options
    }),
    ("large transactions commit their leaves", |options| Options {
        commit: CommitBy::Auto,
        ..options
    }),
    ("small changes stay on their page", |options| Options {
        append_scheme: Options::default().append_scheme,
        ..options
    }),
];

/// `lazy-cost`, then with each change up to the last but one: the last is the default.
pub(super) fn policies() -> Result<Vec<Policy>, OptionsError> {
    let mut options = preset::options("lazy-cost")?;
    let mut policies = vec![Policy::new("step 0", options.clone())];
    for (number, (_, change)) in STEPS.iter().enumerate().take(STEPS.len() - 1) {
        options = change(options);
        policies.push(Policy::new(format!("step {}", number + 1), options.clone()));
    }
    Ok(policies)
}

/// Worth of each change; `flash_us` of each policy, then of the default.
pub(super) fn steps(workload: &str, flash_us: &[f64], default_us: f64) -> Vec<Step> {
    let after = flash_us.iter().skip(1).copied().chain([default_us]);
    let pairs = STEPS.iter().zip(flash_us.iter().copied().zip(after));
    pairs
        .map(|((change, _), (before_us, after_us))| Step {
            workload: workload.to_owned(),
            change,
            before_us,
            after_us,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::Engine;
    use super::*;

    #[test]
    fn the_last_change_makes_the_default() {
        let last = policies().unwrap().pop().unwrap();
        let preset = String::from("flagstone");
        let Engine::Options(options) = last.engine else { panic!("a step has options") };
        assert_eq!(Options { preset, ..STEPS[7].1(*options) }, Options::default());
    }

    #[test]
    fn changes_follow_each_other() {
        let steps = steps("w", &[10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.5, 4.2], 4.0);
        assert_eq!((steps[0].before_us, steps[7].after_us), (10.0, 4.0));
        assert!(steps.windows(2).all(|pair| pair[0].after_us == pair[1].before_us));
    }
}
