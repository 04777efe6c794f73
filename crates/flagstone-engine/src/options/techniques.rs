//! Techniques: how the engine treats deltas, frames and commits, beyond the options of a user.
//!
//! Owns the switches that tell the product from the engines that it is compared with. A user picks
//! them together, by the name of a preset; the lab sets them one by one. They may change in any
//! release.

use flagstone_nand::Nand;
use flagstone_space::{FlagLack, append_lack, flag_lack};
use serde::{Deserialize, Serialize};

use super::{Options, OptionsError, share_of};
use crate::appends::{self, AppendScheme, Appends};
use crate::policy::Policies;

/// Content of a frame in memory, and so the place where committed changes wait for their page
/// write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FrameKind {
    /// Frames are clean copies of their base; changes wait as deltas, also for absent leaves.
    #[default]
    Base,
    /// Frames are images ahead of flash: changes are folded in at commit and the whole page is
    /// written when the frame leaves memory.
    Ahead,
}

/// Whether garbage collection may ask for a newer image of a page that it moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RelocationFolding {
    /// Durable deltas are folded into leaves that are moved anyway: the merge is free.
    #[default]
    Fold,
    /// Pages move unchanged.
    Keep,
}

/// Which block garbage collection cleans next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Collection {
    /// Fewest live pages.
    #[default]
    Greedy,
    /// Highest `(1 - u) * age / 2u` (Rosenblum and Ousterhout 1992, Kawaguchi et al. 1995).
    CostBenefit,
    /// As `cost-benefit`, divided by the number of erases of the block (Chiang, Lee, Chang 1999):
    /// worn blocks wait longer.
    CostAgeTimes,
}

/// Where deltas that leave memory meet their base.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MergeTo {
    /// On flash: the page is written at once.
    #[default]
    Flash,
    /// In the leaf's frame, as long as the merged leaf fits one page. The page is written when the
    /// frame leaves memory, with the deltas that came meanwhile (lazy-update B+-tree, section
    /// 4.4.2.2).
    Frame,
}

/// How the memory budget is divided between frames and deltas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Budget {
    /// Frames have their share, deltas the rest; deltas that the log has no room for leave their
    /// memory to frames.
    Divided,
    /// Frames begin with their share; then memory goes where it saves most, learned from the cost
    /// of misses and of merges. As `divided` where frames hold changes that flash lacks.
    #[default]
    Adaptive,
    /// Frames have all memory that deltas do not take at the moment: at least their share, except
    /// after a restart that put more deltas back.
    Shared,
}

/// Treatment of a change whose leaf is not in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AbsentLeaf {
    /// The change waits for the leaf as a delta; nothing is read.
    #[default]
    Wait,
    /// The leaf is read first, as in an engine whose changes go to frames.
    Read,
    /// The change waits where other changes already wait for the leaf; for the first change the
    /// leaf is read (Lazy-Split LRU: a leaf enters memory with its base copy).
    ReadOnce,
}

/// How a checkpoint lets the log's head advance past live deltas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compaction {
    /// Copies live deltas densely to the log's tail: no page is written for their age alone.
    #[default]
    Copy,
    /// Merges live deltas into their pages, and copies the deltas that cannot be merged at that
    /// moment (on-the-fly redo: log compaction).
    Merge,
}

/// How a transaction with many changes is committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CommitBy {
    /// The way with the fewest programs, by measured costs. Leaves that are worth a page write are
    /// written at once, all other changes are logged. Where nothing is logged and the chip carries
    /// flags, a flag commits. Many scattered changes to a table larger than the memory for changes
    /// are written as a run of sorted pages, to be merged later.
    #[default]
    Auto,
    /// The log holds every change.
    Log,
    /// Leaves are written at once wherever possible; a record commits.
    Claims,
    /// As `claims`; a flag commits where nothing has to be logged. For chips that carry flags.
    Flags,
}

/// Techniques of an engine: shares of the memory budget are between 0 and 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Techniques {
    /// Share of the budget for page frames under [`FrameKind::Base`], above 0 and at most 1; deltas
    /// get the rest. Under [`FrameKind::Ahead`] deltas get the share and frames the rest. Under
    /// [`Budget::Adaptive`] the share at the beginning. Default: 0.15.
    pub frame_share: f64,
    /// Share of the budget that uncommitted changes may take before transactions spill, above 0 and
    /// at most 1. Bounded by half the memory for deltas, and never less than a page. Default: 0.25.
    pub uncommitted_share: f64,
    /// Content of frames. Default: `base`.
    pub frames: FrameKind,
    /// Share of the memory for deltas that one batch of merges frees when this memory is full, 0 to
    /// 0.5; 0 merges one leaf at a time, as soon as there is no room. Default: 0.125, the share
    /// that Lazy-Split LRU frees at a time.
    pub merge_batch: f64,
    /// Where deltas meet their base. Default: `flash`.
    pub merge_to: MergeTo,
    /// How the budget is divided between frames and deltas. Default: `adaptive`.
    pub budget: Budget,
    /// Whether a change reads a leaf that is not in memory. Default: `wait`.
    pub absent: AbsentLeaf,
    /// Whether garbage collection merges deltas into the leaves that it moves. Default: `fold`.
    pub relocation: RelocationFolding,
    /// Victim policy of garbage collection. Default: `greedy`.
    pub collection: Collection,
    /// How checkpoints treat live deltas. Default: `copy`.
    pub compaction: Compaction,
    /// How transactions with many changes are committed. Default: `auto`.
    pub commit: CommitBy,
    /// Whether small changes are appended to their page, where an append costs less than a page:
    /// `auto` (default), or `0x0` for never.
    pub append_scheme: Appends,
    /// The policies that choose leaves and frames. Default: the engine's own.
    #[serde(skip)]
    pub policies: Policies,
}

impl Default for Techniques {
    fn default() -> Self {
        Self {
            frame_share: 0.15,
            uncommitted_share: 0.25,
            frames: FrameKind::Base,
            merge_batch: 0.125,
            merge_to: MergeTo::Flash,
            budget: Budget::Adaptive,
            absent: AbsentLeaf::Wait,
            relocation: RelocationFolding::Fold,
            collection: Collection::Greedy,
            compaction: Compaction::Copy,
            commit: CommitBy::Auto,
            append_scheme: Appends::auto(),
            policies: Policies::default(),
        }
    }
}

impl Techniques {
    /// Every technique off: whole pages are written when they leave memory.
    pub(super) fn traditional() -> Self {
        Self {
            append_scheme: Appends::default(),
            frames: FrameKind::Ahead,
            budget: Budget::Divided,
            merge_batch: 0.0,
            relocation: RelocationFolding::Keep,
            commit: CommitBy::Log,
            ..Self::default()
        }
    }

    /// Checks the values, that `device` can carry them, and that the policies accept `options`.
    pub(super) fn require(
        &self,
        options: &Options,
        device: &impl Nand,
    ) -> Result<(), OptionsError> {
        share_of("frame_share", self.frame_share)?;
        share_of("uncommitted_share", self.uncommitted_share)?;
        if !(0.0..=0.5).contains(&self.merge_batch) {
            let value = self.merge_batch.to_string();
            return Err(OptionsError::out_of_range("merge_batch", value, "between 0 and 0.5"));
        }
        self.policies.require(options)?;
        if self.commit == CommitBy::Flags
            && let Some(lack) = flag_lack(&device.geometry(), &device.capabilities())
        {
            return Err(OptionsError::Capability {
                preset: options.preset.clone(),
                capability: capability_of(lack),
                instead: "flagstone-claims",
            });
        }
        self.require_slots(&options.preset, device, self.append_scheme.records_min())
    }

    /// Checks that `device` carries the appends that are asked for, including the appends that
    /// `auto` makes only where a device carries them.
    pub(super) fn require_appends(
        &self,
        preset: &str,
        device: &impl Nand,
    ) -> Result<(), OptionsError> {
        self.require_slots(preset, device, self.append_scheme.records_max())
    }

    fn require_slots(
        &self,
        preset: &str,
        device: &impl Nand,
        slots: u8,
    ) -> Result<(), OptionsError> {
        match append_lack(&device.geometry(), &device.capabilities(), slots) {
            Some(lack) if slots > 0 => Err(OptionsError::Capability {
                preset: preset.to_owned(),
                capability: appends::capability_of(lack),
                instead: if preset.starts_with("ipa") { "ipa-0x0" } else { "flagstone" },
            }),
            _ => Ok(()),
        }
    }

    /// Checks that the scheme is `auto` or `0x0` for all tables: other forms belong to the lab's
    /// classic engine.
    pub(super) fn require_own_appends(&self) -> Result<(), OptionsError> {
        let Appends { scheme, tables } = &self.append_scheme;
        if matches!(scheme, AppendScheme::None | AppendScheme::Auto) && tables.is_empty() {
            return Ok(());
        }
        let must = "auto or 0x0 with this preset; others are for those called ipa-…";
        let value = self.append_scheme.to_string();
        Err(OptionsError::out_of_range("append_scheme", value, must))
    }
}

/// The capability that a device lacks for commits by flag.
fn capability_of(lack: FlagLack) -> &'static str {
    match lack {
        FlagLack::Cells => "cells of one bit each, programmed page by page, for commit flags",
        FlagLack::PartialPrograms => "a second program of the spare area (NOP) for commit flags",
        FlagLack::ReprogramOrder => "later programs in any order for commit flags",
        FlagLack::IsolatedCuts => "partial programs whose cut harms nothing else for commit flags",
        FlagLack::RawSpare => "38 spare bytes outside the ECC for commit flags",
    }
}
