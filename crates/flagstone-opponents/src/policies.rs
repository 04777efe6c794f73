//! Policies of the papers, as guests of the engine: which leaf is merged next, which frame leaves next.
//!
//! Owns their configuration ([`PolicyOptions`]) and the way from it to guests. Each guest keeps its own
//! state, and asks the engine by the traits of [`flagstone_engine::policy`].
//!
//! | rule | guest |
//! | --- | --- |
//! | [`VictimRule`] but `window` | [`groups`](self) of deltas by leaf, ranked; alone, as super groups, or as a set that a knapsack chooses |
//! | [`ReplacementRule`] but `lru` and `ls-lru` | an order of frames with a window of clean or dirty ones |
//! | `ls-lru` | units: base copies and changes in one order, which both guests share |

use std::sync::Arc;

use flagstone_engine::policy::{Guests, Policies, PolicySet, PolicySizes, Replacement};
use flagstone_engine::{Budget, FrameKind, MergeTo, Options, OptionsError, Techniques};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use order::Order;
use units::{SharedUnits, Units};
use victim::GroupVictim;

mod clusters;
mod cover;
mod groups;
mod order;
mod units;
mod victim;

/// Which frame leaves memory next, among leaves. Inner nodes stay longer, by last use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplacementRule {
    /// Least recently used: the engine's own.
    #[default]
    Lru,
    /// Second chance: in the order of arrival, but a frame used since then goes round once more.
    Clock,
    /// Clean frames first, among the `replacement_window` of least recently used ones (Park et al.,
    /// CASES 2006).
    Cflru,
    /// As `cflru`, with a window that adapts to the cost of reads and writes in the last periods.
    CflruAdaptive,
    /// As `cflru`, and dirty frames leave by clusters of neighbours (Ou, Härder, Jin, DaMoN 2009).
    Cfdc,
    /// Base copies and changes of a leaf share one order of use. In the least recently used
    /// `replacement_window` of memory, base copies leave first; without any, changes are merged
    /// into their pages (Lazy-Split LRU). Needs [`FrameKind::Base`] and [`Budget::Shared`].
    LsLru,
}

impl ReplacementRule {
    /// Every rule.
    pub const ALL: [Self; 6] =
        [Self::Lru, Self::Clock, Self::Cflru, Self::CflruAdaptive, Self::Cfdc, Self::LsLru];
}

/// The leaf whose deltas are merged next, when memory runs short. The deltas of a leaf are a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VictimRule {
    /// The biggest group in the part of the tree under a moving window: the engine's own.
    #[default]
    Window,
    /// The oldest group.
    Fifo,
    /// The group whose last change is oldest.
    Lru,
    /// The biggest group of all; of equal groups the least recently changed (lazy-update B+-tree).
    Biggest,
    /// The group with the fewest page writes for each byte that it frees (lazy-update B+-tree).
    Cost,
    /// The set of groups with the fewest page writes for the memory that has to be freed, splits
    /// counted (Lazy-Split LRU: write-minimised commit).
    Cover,
}

impl VictimRule {
    /// Every rule.
    pub const ALL: [Self; 6] =
        [Self::Window, Self::Fifo, Self::Lru, Self::Biggest, Self::Cost, Self::Cover];
}

/// Whether groups that save a write together are committed together (lazy-update B+-tree, section
/// 4.4.2.3), under the rules that rank groups. Two groups below one inner node belong together in
/// three cases: both split or both merge their leaf; one does and the other is its neighbour; or one
/// merges its leaf and the other follows the leaf it is merged with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SuperGroup {
    /// Each group by itself.
    #[default]
    Off,
    /// The rule chooses a group and adds the groups that belong with it. A bounded number of leaves
    /// is read for this (the paper's first approach).
    Victim,
    /// The super group with the fewest page writes for each byte that it frees. The leaf of every
    /// group is read once, and each choice looks at all groups (the paper's second approach).
    All,
}

impl SuperGroup {
    /// Every way.
    pub const ALL: [Self; 3] = [Self::Off, Self::Victim, Self::All];
}

/// How the page writes of a group are counted, under [`VictimRule::Cover`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteCount {
    /// One page where the merged leaf fits its page, else the leaves it is split into and their
    /// parent.
    #[default]
    Exact,
    /// The paper's formula (3.11): used bytes of the leaf plus all its changes, in pages, rounded
    /// down, plus two. The formula counts deletes and replaced values as growth, and a leaf that
    /// fits as split.
    Paper,
}

/// Configuration of the guests. The default stands for the engine's own policies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyOptions {
    /// Rule for the next leaf to merge. Default: `window`.
    pub victim: VictimRule,
    /// Which groups of deltas are merged together. Default: `off`.
    pub super_group: SuperGroup,
    /// How the page writes of a merge are estimated. Default: `exact`.
    pub count_writes: WriteCount,
    /// Changes that may wait for one leaf before they are merged, all splits of the leaf at once:
    /// in pages, 1 to 1000, or 0 for as many as memory holds. Default: 0.
    pub unit_pages: f64,
    /// Rule for the next frame to leave memory. Default: `lru`.
    pub replacement: ReplacementRule,
    /// Least recently used share of the frames, or of the memory of frames and changes, in which
    /// clean frames leave first: 0 to 1. Default: 0.5.
    pub replacement_window: f64,
}

/// Largest limit of the changes that wait for one leaf, in pages.
const UNIT_PAGES_MAX: f64 = 1000.0;

impl Default for PolicyOptions {
    fn default() -> Self {
        Self {
            victim: VictimRule::Window,
            super_group: SuperGroup::Off,
            count_writes: WriteCount::Exact,
            unit_pages: 0.0,
            replacement: ReplacementRule::Lru,
            replacement_window: 0.5,
        }
    }
}

impl PolicyOptions {
    /// The configuration of the guests that `options` carry.
    #[must_use]
    pub fn of(options: &Options) -> Self {
        options.techniques().policies.configuration().copied().unwrap_or_default()
    }

    /// `options` with the guests of this configuration; without any where it is the default.
    #[must_use]
    pub fn apply_to(self, options: Options) -> Options {
        let policies = match self == Self::default() {
            true => Policies::default(),
            false => Policies::of(self),
        };
        options.with_techniques(|techniques| techniques.policies = policies)
    }

    /// Whether groups are told to an order of units, or have a limit of their own.
    fn follows_units(&self) -> bool {
        self.replacement == ReplacementRule::LsLru
            || self.victim == VictimRule::Cover
            || self.unit_pages > 0.0
    }
}

/// Options whose guests can be configured.
pub trait WithPolicies {
    /// The same options with another configuration of the guests.
    #[must_use]
    fn with_policies(self, change: impl FnOnce(&mut PolicyOptions)) -> Self;
}

impl WithPolicies for Options {
    fn with_policies(self, change: impl FnOnce(&mut PolicyOptions)) -> Self {
        let mut policies = PolicyOptions::of(&self);
        change(&mut policies);
        policies.apply_to(self)
    }
}

impl PolicySet for PolicyOptions {
    fn guests(&self, sizes: PolicySizes) -> Guests {
        let units = (self.replacement == ReplacementRule::LsLru).then(|| {
            let units = Units::new(self.replacement_window, sizes.memory);
            SharedUnits(Arc::new(Mutex::new(units)))
        });
        let replacement: Option<Box<dyn Replacement>> = match (self.replacement, &units) {
            (ReplacementRule::Lru, _) => None,
            (_, Some(units)) => Some(Box::new(units.clone())),
            (rule, None) => Some(Box::new(Order::new(rule, self.replacement_window))),
        };
        let is_ranked = self.victim != VictimRule::Window || self.follows_units();
        Guests {
            victim: is_ranked.then(|| Box::new(GroupVictim::new(self, sizes, units)) as _),
            replacement,
        }
    }

    fn require(&self, options: &Options) -> Result<(), OptionsError> {
        let refuse = |option, value: &str, must| {
            Err(OptionsError::OutOfRange { option, value: value.to_owned(), must })
        };
        if !(0.0..=1.0).contains(&self.replacement_window) {
            let value = self.replacement_window.to_string();
            return refuse("replacement_window", &value, "between 0 and 1");
        }
        if !(self.unit_pages == 0.0 || (1.0..=UNIT_PAGES_MAX).contains(&self.unit_pages)) {
            return refuse("unit_pages", &self.unit_pages.to_string(), "0, or between 1 and 1000");
        }
        if self.victim == VictimRule::Cover && self.super_group != SuperGroup::Off {
            let value = if self.super_group == SuperGroup::All { "all" } else { "victim" };
            return refuse("super_group", value, "off where victim is cover");
        }
        let Techniques { frames, budget, merge_to, .. } = options.techniques();
        if self.replacement != ReplacementRule::LsLru {
            return Ok(());
        }
        if *frames != FrameKind::Base {
            return refuse("frames", "ahead", "base where replacement is ls-lru");
        }
        if *budget != Budget::Shared {
            let value = if *budget == Budget::Divided { "divided" } else { "adaptive" };
            return refuse("budget", value, "shared where replacement is ls-lru");
        }
        if *merge_to != MergeTo::Flash {
            return refuse("merge_to", "frame", "flash where replacement is ls-lru");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
