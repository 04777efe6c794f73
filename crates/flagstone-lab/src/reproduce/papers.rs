//! The papers, and the experiment of each.
//!
//! Owns the list of names. An experiment stands in a module of its own.

mod flag_commit;
mod in_place_appends;
mod lazy_split_lru;
mod lazy_update;
mod on_the_fly_redo;

use flagstone_nand::nearest;

use super::{Effort, Experiment, ReproduceError};

type Make = fn(Effort, u64) -> Result<Experiment, ReproduceError>;

/// A paper that the lab knows.
#[derive(Clone, Copy, Debug)]
pub struct Paper {
    /// Name on the command line.
    pub name: &'static str,
    /// Title.
    pub title: &'static str,
    make: Make,
}

/// Every paper.
pub const PAPERS: &[Paper] = &[
    Paper { name: "on-the-fly-redo", title: "On-the-fly redo", make: on_the_fly_redo::experiment },
    Paper { name: "flag-commit", title: "Flag commit", make: flag_commit::experiment },
    Paper {
        name: "lazy-update-btree",
        title: "Lazy-update B+-tree",
        make: lazy_update::experiment,
    },
    Paper { name: "lazy-split-lru", title: "Lazy-Split LRU", make: lazy_split_lru::experiment },
    Paper {
        name: "in-place-appends",
        title: "In-Place Appends",
        make: in_place_appends::experiment,
    },
];

/// The experiment of the paper called `name`.
pub(super) fn experiment(
    name: &str,
    effort: Effort,
    seed: u64,
) -> Result<Experiment, ReproduceError> {
    let paper = PAPERS.iter().find(|paper| paper.name == name);
    let paper = paper.ok_or_else(|| ReproduceError::UnknownPaper {
        name: name.to_owned(),
        nearest: nearest(name, PAPERS.iter().map(|paper| paper.name)),
    })?;
    (paper.make)(effort, seed)
}
