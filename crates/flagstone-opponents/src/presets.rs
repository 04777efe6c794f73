//! Presets of the papers that the engine itself runs: options, techniques and guests by name.
//!
//! Owns their values. Never names an engine of the lab: those presets stand there.

use flagstone_engine::{
    AbsentLeaf, Appends, Budget, CommitBy, Compaction, Durability, MergeTo, Options,
    RelocationFolding,
};

use crate::policies::{ReplacementRule, SuperGroup, VictimRule, WithPolicies as _};

/// A preset: its name, its purpose, and its options.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Name on the command line.
    pub name: &'static str,
    /// One line for people.
    pub summary: &'static str,
    make: fn() -> Options,
}

/// Every preset.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "otf-immediate",
        summary: "on-the-fly redo: dirty pages leave memory unwritten, checkpoints compact the log (lab)",
        make: otf_immediate,
    },
    Preset {
        name: "otf-group",
        summary: "on-the-fly redo with group commit: flushes wait for company (lab)",
        make: otf_group,
    },
    Preset {
        name: "lazy-biggest",
        summary: "lazy-update B+-tree: half the memory holds changes, the biggest group leaves first (lab)",
        make: lazy_biggest,
    },
    Preset {
        name: "lazy-cost",
        summary: "as lazy-biggest: the cheapest group leaves first, with those that belong with it (lab)",
        make: lazy_cost,
    },
    Preset {
        name: "ls-lru",
        summary: "lazy-split LRU: base copies leave before changes, which leave for fewest page writes (lab)",
        make: ls_lru,
    },
];

/// Options of the preset called `name`, if it is one of these.
#[must_use]
pub fn options(name: &str) -> Option<Options> {
    let preset = PRESETS.iter().find(|preset| preset.name == name)?;
    let mut options = (preset.make)();
    name.clone_into(&mut options.preset);
    Some(options)
}

/// Commits between the checkpoints of on-the-fly redo.
pub const OTF_CHECKPOINT_COMMITS: u64 = 5_000;

/// On-the-fly redo as in its paper: changes go to pages in memory, so pages are read before they
/// are changed; redo records and frames share one budget; checkpoints merge the deltas that are
/// due; relocation moves pages unchanged.
fn otf_immediate() -> Options {
    let options = Options::default().with_checkpoint_commits(OTF_CHECKPOINT_COMMITS);
    options.with_techniques(|techniques| {
        techniques.append_scheme = Appends::default();
        techniques.frame_share = 0.5;
        techniques.budget = Budget::Shared;
        techniques.merge_batch = 0.0;
        techniques.absent = AbsentLeaf::Read;
        techniques.relocation = RelocationFolding::Keep;
        techniques.compaction = Compaction::Merge;
        techniques.commit = CommitBy::Log;
    })
}

fn otf_group() -> Options {
    otf_immediate().with_durability(Durability::Group)
}

/// The lazy-update B+-tree with the defaults of its paper (table 2): half of the memory is its pool.
fn lazy_biggest() -> Options {
    let options = Options::default().with_techniques(|techniques| {
        techniques.append_scheme = Appends::default();
        techniques.frame_share = 0.5;
        techniques.budget = Budget::Divided;
        techniques.merge_batch = 0.0;
        techniques.merge_to = MergeTo::Frame;
        techniques.relocation = RelocationFolding::Keep;
        techniques.commit = CommitBy::Log;
    });
    options.with_policies(|policies| policies.victim = VictimRule::Biggest)
}

fn lazy_cost() -> Options {
    lazy_biggest().with_policies(|policies| {
        policies.victim = VictimRule::Cost;
        policies.super_group = SuperGroup::Victim;
    })
}

/// Lazy-Split LRU with the values of its paper: half of the memory is cold (section 4.1), the
/// changes of a leaf may grow to three times the leaf's size (section 3.2.2), a leaf in memory
/// begins with its base.
fn ls_lru() -> Options {
    let options = Options::default().with_techniques(|techniques| {
        techniques.append_scheme = Appends::default();
        techniques.frame_share = 0.05;
        techniques.merge_batch = 0.0;
        techniques.budget = Budget::Shared;
        techniques.absent = AbsentLeaf::ReadOnce;
        techniques.relocation = RelocationFolding::Keep;
        techniques.commit = CommitBy::Log;
    });
    options.with_policies(|policies| {
        policies.victim = VictimRule::Cover;
        policies.unit_pages = 3.0;
        policies.replacement = ReplacementRule::LsLru;
        policies.replacement_window = 0.5;
    })
}
