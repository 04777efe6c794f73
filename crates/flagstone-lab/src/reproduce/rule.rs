//! The rules by which a measured figure holds or differs.
//!
//! Owns the rules, their tolerances and the words of a judgement; never measures. They were written
//! down before the first run and are the same for every paper.
//!
//! - **V1** A claim about a change holds when ours goes the same way and its size is within a third
//!   of the paper's.
//! - **V2** A range holds when every measured change goes its way and lies between the smaller bound
//!   less a third and the larger bound and a third.
//! - **V3** "Up to" speaks of the largest measured change, which is judged by V1.
//! - **V4** "No difference" holds when every measured change is at most [`NO_CHANGE_MAX`].
//! - **V5** A value, a share or a turning point holds when ours is within a third of the paper's.
//! - **V6** "More than" and "less than" hold when ours is beyond the bound, or short of it by at
//!   most a third.
//! - **V7** A claim of order (best, worst) holds when the named one is in front; a tie is none.
//! - **V8** An exact claim holds when ours is equal.
//! - **V9** "Less", without a size, holds when every measured change is one for less.
//! - **V10** A value that was not measured, or is no number, differs.

use serde::Serialize;

/// Share of the paper's figure by which ours may miss it.
pub const TOLERANCE: f64 = 1.0 / 3.0;

/// Largest change that counts as none.
pub const NO_CHANGE_MAX: f64 = 0.05;

/// Whether a claim of the paper is found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Found again, by the rule.
    Holds,
    /// Not found again.
    Differs,
}

/// A claim of the paper. Changes are shares: -0.2 is a fifth less.
#[derive(Clone, Debug, PartialEq)]
pub enum Claim {
    /// A change of this size (V1).
    Change(f64),
    /// Changes between the two, the smaller first in size (V2).
    ChangeBetween(f64, f64),
    /// Changes of at most this size, which the largest of them has (V3).
    ChangeUpTo(f64),
    /// No visible change (V4).
    NoChange,
    /// Less than the value it is compared with, by any amount (V9).
    Less,
    /// A value with its unit (V5).
    Value(f64, &'static str),
    /// A share of a whole (V5).
    Share(f64),
    /// A share above this one (V6).
    ShareAbove(f64),
    /// A share below this one (V6).
    ShareBelow(f64),
    /// Exactly this count (V8).
    Exactly(f64),
}

/// Claim and measurement side by side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Judgement {
    /// The paper's claim in words.
    pub paper: String,
    /// The measurement in words.
    pub ours: String,
    /// Whether the claim holds.
    pub verdict: Verdict,
    /// The rule, with the numbers that decided.
    pub why: String,
}

/// Which end of an order is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// The largest of all.
    Highest,
    /// The smallest of all.
    Lowest,
}

impl Claim {
    /// Judges the measurement, one number for each point that the claim speaks of.
    #[must_use]
    pub fn judge(&self, ours: &[f64]) -> Judgement {
        if ours.is_empty() || ours.iter().any(|value| !value.is_finite()) {
            return self.conclude(String::from("-"), false, String::from("not measured"));
        }
        match *self {
            Self::Change(paper) => self.judge_change(paper, ours[0]),
            Self::ChangeUpTo(paper) => self.judge_change(paper, largest_towards(paper, ours)),
            Self::ChangeBetween(least, most) => self.judge_range(least, most, ours),
            Self::NoChange => {
                let size = ours.iter().fold(0.0_f64, |size, change| size.max(change.abs()));
                let why = format!("at most {} is no change", percent(NO_CHANGE_MAX));
                self.conclude(span(ours), size <= NO_CHANGE_MAX, why)
            }
            Self::Less => {
                let why = String::from("the rule asks for less, by whatever");
                self.conclude(span(ours), ours.iter().all(|change| *change < 0.0), why)
            }
            Self::Value(paper, unit) => self.judge_value(paper, ours[0], |value| {
                format!("{} {unit}", number(value)).trim_end().to_owned()
            }),
            Self::Share(paper) => self.judge_value(paper, ours[0], percent),
            Self::ShareAbove(bound) => {
                let least = bound * (1.0 - TOLERANCE);
                let why = format!("the rule asks for at least {}", percent(least));
                self.conclude(percent(ours[0]), ours[0] >= least, why)
            }
            Self::ShareBelow(bound) => {
                let most = bound * (1.0 + TOLERANCE);
                let why = format!("the rule asks for at most {}", percent(most));
                self.conclude(percent(ours[0]), ours[0] <= most, why)
            }
            Self::Exactly(paper) => {
                let why = String::from("the rule asks for equality");
                let away = |value: &f64| (value - paper).abs();
                let worst = ours.iter().copied().max_by(|one, two| away(one).total_cmp(&away(two)));
                let worst = worst.unwrap_or(paper);
                self.conclude(number(worst), worst == paper, why)
            }
        }
    }

    /// The claim in words.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Change(paper) => signed(*paper),
            Self::ChangeBetween(least, most) => format!("{} to {}", signed(*least), signed(*most)),
            Self::ChangeUpTo(paper) => format!("up to {}", signed(*paper)),
            Self::NoChange => String::from("no difference"),
            Self::Less => String::from("less"),
            Self::Value(paper, unit) => format!("{} {unit}", number(*paper)).trim_end().to_owned(),
            Self::Share(paper) => percent(*paper),
            Self::ShareAbove(bound) => format!("over {}", percent(*bound)),
            Self::ShareBelow(bound) => format!("under {}", percent(*bound)),
            Self::Exactly(paper) => number(*paper),
        }
    }

    /// Rule V1.
    fn judge_change(&self, paper: f64, ours: f64) -> Judgement {
        let same_way = ours * paper > 0.0;
        let (miss, allowed) = ((ours - paper).abs(), paper.abs() * TOLERANCE);
        let why = if same_way {
            format!("same direction, {} apart, {} allowed", points(miss), points(allowed))
        } else {
            String::from("not in the same direction")
        };
        self.conclude(signed(ours), same_way && miss <= allowed, why)
    }

    /// Rule V2.
    fn judge_range(&self, least: f64, most: f64, ours: &[f64]) -> Judgement {
        let low = least.abs() * (1.0 - TOLERANCE);
        let high = most.abs() * (1.0 + TOLERANCE);
        let same_way = ours.iter().all(|change| change * most > 0.0);
        let inside = ours.iter().all(|change| (low..=high).contains(&change.abs()));
        let sign = most.signum();
        let why = if same_way {
            format!("the rule asks for {} to {}", signed(sign * low), signed(sign * high))
        } else {
            String::from("not all in the same direction")
        };
        self.conclude(span(ours), same_way && inside, why)
    }

    /// Rule V5.
    fn judge_value(&self, paper: f64, ours: f64, text: impl Fn(f64) -> String) -> Judgement {
        let allowed = paper.abs() * TOLERANCE;
        let (low, high) = (text(paper - allowed), text(paper + allowed));
        let why = format!("the rule asks for {low} to {high}");
        self.conclude(text(ours), (ours - paper).abs() <= allowed, why)
    }

    fn conclude(&self, ours: String, holds: bool, why: String) -> Judgement {
        let verdict = if holds { Verdict::Holds } else { Verdict::Differs };
        Judgement { paper: self.text(), ours, verdict, why }
    }
}

/// Judges a claim of order (V7): `claimed` is the highest or lowest of `values`.
#[must_use]
pub fn judge_rank(rank: Rank, claimed: &str, values: &[(&str, f64)]) -> Judgement {
    let word = match rank {
        Rank::Highest => "highest",
        Rank::Lowest => "lowest",
    };
    let ahead = |one: f64, other: f64| match rank {
        Rank::Highest => one > other,
        Rank::Lowest => one < other,
    };
    let ours = values.iter().find(|(name, _)| *name == claimed).map(|(_, value)| *value);
    let others = || values.iter().filter(|(name, _)| *name != claimed);
    let holds = ours.is_some_and(|ours| others().all(|(_, value)| ahead(ours, *value)));
    let list: Vec<String> =
        values.iter().map(|(name, value)| format!("{name} {}", number(*value))).collect();
    Judgement {
        paper: format!("{claimed} {word}"),
        ours: list.join(", "),
        verdict: if holds && values.len() > 1 { Verdict::Holds } else { Verdict::Differs },
        why: format!("the rule asks for {claimed} to be {word}, without a tie"),
    }
}

/// Change from `base` to `ours`, as a share of `base`.
#[must_use]
pub fn change(base: f64, ours: f64) -> f64 {
    if base == 0.0 { f64::NAN } else { ours / base - 1.0 }
}

/// The largest change in the direction of `paper`.
fn largest_towards(paper: f64, ours: &[f64]) -> f64 {
    let towards = |change: &f64| change * paper.signum();
    ours.iter().copied().max_by(|one, two| towards(one).total_cmp(&towards(two))).unwrap_or(0.0)
}

fn span(changes: &[f64]) -> String {
    let least = changes.iter().copied().min_by(|one, two| one.abs().total_cmp(&two.abs()));
    let most = changes.iter().copied().max_by(|one, two| one.abs().total_cmp(&two.abs()));
    match (least, most) {
        (Some(least), Some(most)) if changes.len() > 1 => {
            format!("{} to {}", signed(least), signed(most))
        }
        (Some(only), _) => signed(only),
        _ => String::from("-"),
    }
}

fn signed(share: f64) -> String {
    format!("{:+.1} %", 100.0 * share)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn points(share: f64) -> String {
    format!("{:.1} points", 100.0 * share)
}

/// A number with as many digits as tell it from its neighbours.
#[must_use]
pub fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else if size >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.4}")
    }
}

#[cfg(test)]
mod tests {
    use super::Verdict::{Differs, Holds};
    use super::*;

    fn verdict(claim: Claim, ours: &[f64]) -> Verdict {
        claim.judge(ours).verdict
    }

    #[test]
    fn a_change_holds_within_a_third_in_the_same_direction() {
        let claim = || Claim::Change(-0.3);
        assert_eq!(verdict(claim(), &[-0.3]), Holds);
        assert_eq!(verdict(claim(), &[-0.201]), Holds);
        assert_eq!(verdict(claim(), &[-0.399]), Holds);
        assert_eq!(verdict(claim(), &[-0.199]), Differs);
        assert_eq!(verdict(claim(), &[-0.401]), Differs);
        assert_eq!(verdict(claim(), &[0.3]), Differs);
    }

    #[test]
    fn a_range_binds_every_point() {
        let claim = || Claim::ChangeBetween(-0.2, -0.53);
        assert_eq!(verdict(claim(), &[-0.2, -0.4, -0.53]), Holds);
        assert_eq!(verdict(claim(), &[-0.14, -0.7]), Holds);
        assert_eq!(verdict(claim(), &[-0.13, -0.5]), Differs);
        assert_eq!(verdict(claim(), &[-0.3, -0.71]), Differs);
        assert_eq!(verdict(claim(), &[-0.3, 0.3]), Differs);
    }

    #[test]
    fn up_to_speaks_of_the_largest_change() {
        assert_eq!(verdict(Claim::ChangeUpTo(0.45), &[0.02, 0.4]), Holds);
        assert_eq!(verdict(Claim::ChangeUpTo(0.45), &[0.02, 0.1]), Differs);
        assert_eq!(verdict(Claim::ChangeUpTo(-0.3), &[0.5, -0.28]), Holds);
        assert_eq!(verdict(Claim::ChangeUpTo(-0.3), &[-0.28, -0.9]), Differs);
    }

    #[test]
    fn no_difference_is_at_most_five_percent() {
        assert_eq!(verdict(Claim::NoChange, &[0.049, -0.05]), Holds);
        assert_eq!(verdict(Claim::NoChange, &[0.0, 0.051]), Differs);
    }

    #[test]
    fn less_is_a_direction_without_a_size() {
        assert_eq!(verdict(Claim::Less, &[-0.001, -0.9]), Holds);
        assert_eq!(verdict(Claim::Less, &[-0.5, 0.0]), Differs);
        assert_eq!(Claim::Less.judge(&[]).paper, "less");
    }

    #[test]
    fn values_bounds_and_counts() {
        assert_eq!(verdict(Claim::Value(60.0, "MB"), &[79.0]), Holds);
        assert_eq!(verdict(Claim::Value(60.0, "MB"), &[81.0]), Differs);
        assert_eq!(verdict(Claim::Share(0.9), &[0.7]), Holds);
        assert_eq!(verdict(Claim::ShareAbove(0.7), &[0.99]), Holds);
        assert_eq!(verdict(Claim::ShareAbove(0.7), &[0.4]), Differs);
        assert_eq!(verdict(Claim::ShareBelow(0.1), &[0.0]), Holds);
        assert_eq!(verdict(Claim::ShareBelow(0.1), &[0.2]), Differs);
        assert_eq!(verdict(Claim::Exactly(0.0), &[0.0, 0.0]), Holds);
        assert_eq!(verdict(Claim::Exactly(0.0), &[0.0, 1.0]), Differs);
    }

    #[test]
    fn an_exact_claim_shows_the_count_that_breaks_it() {
        let judgement = Claim::Exactly(0.0).judge(&[0.0, 7.0, 3.0]);
        assert_eq!((judgement.ours.as_str(), judgement.verdict), ("7", Differs));
    }

    #[test]
    fn what_was_not_measured_differs() {
        assert_eq!(verdict(Claim::NoChange, &[]), Differs);
        assert_eq!(verdict(Claim::Change(0.1), &[change(0.0, 1.0)]), Differs);
    }

    #[test]
    fn an_order_needs_a_clear_winner() {
        let values = [("a", 3.0), ("b", 2.0), ("c", 2.0)];
        assert_eq!(judge_rank(Rank::Highest, "a", &values).verdict, Holds);
        assert_eq!(judge_rank(Rank::Highest, "b", &values).verdict, Differs);
        assert_eq!(judge_rank(Rank::Lowest, "b", &values).verdict, Differs);
        assert_eq!(judge_rank(Rank::Lowest, "d", &values).verdict, Differs);
    }

    #[test]
    fn a_judgement_says_both_numbers_and_the_rule() {
        let judgement = Claim::Change(-0.53).judge(&[-0.25]);
        assert_eq!(judgement.paper, "-53.0 %");
        assert_eq!(judgement.ours, "-25.0 %");
        assert_eq!(judgement.why, "same direction, 28.0 points apart, 17.7 points allowed");
    }
}
