//! From the lazy-update paper's policy to the default, one option after the other, with the worth
//! of each.

use flagstone_engine::{CommitBy, MergeTo, RelocationFolding, Techniques};
use flagstone_engine::{Options, OptionsError};
use flagstone_opponents::policies::{SuperGroup, VictimRule, WithPolicies as _};
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
    ("groups that go together", |options| {
        options.with_policies(|policies| policies.super_group = SuperGroup::Off)
    }),
    ("merges written at once", |options| {
        options.with_techniques(|techniques| techniques.merge_to = MergeTo::Flash)
    }),
    ("which group is merged", |options| {
        options.with_policies(|policies| policies.victim = VictimRule::Window)
    }),
    ("merges in batches", |options| {
        options.with_techniques(|techniques| {
            techniques.merge_batch = Techniques::default().merge_batch;
        })
    }),
    ("split of memory", |options| {
        options.with_techniques(|techniques| {
            techniques.frame_share = Techniques::default().frame_share;
            techniques.budget = Techniques::default().budget;
        })
    }),
    ("collection folds changes in", |options| {
        options.with_techniques(|techniques| techniques.relocation = RelocationFolding::Fold)
    }),
    ("large transactions commit their leaves", |options| {
        options.with_techniques(|techniques| techniques.commit = CommitBy::Auto)
    }),
    ("small changes stay on their page", |options| {
        options.with_techniques(|techniques| {
            techniques.append_scheme = Techniques::default().append_scheme;
        })
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
        let Engine::Options(options) = last.engine else { panic!("a step has options") };
        let mut options = STEPS[7].1(*options);
        options.preset = String::from("flagstone");
        assert_eq!(options, Options::default());
    }

    #[test]
    fn changes_follow_each_other() {
        let steps = steps("w", &[10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.5, 4.2], 4.0);
        assert_eq!((steps[0].before_us, steps[7].after_us), (10.0, 4.0));
        assert!(steps.windows(2).all(|pair| pair[0].after_us == pair[1].before_us));
    }
}
