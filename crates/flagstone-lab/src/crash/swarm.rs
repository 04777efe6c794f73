//! The swarm: explorations whose every setting is drawn from one seed.
//!
//! Owns the drawing of configurations. Never keeps state between seeds: a seed is a replay.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use flagstone_engine::{
    AbsentLeaf, Budget, Collection, CommitBy, FrameKind, MergeTo, RelocationFolding,
};
use flagstone_engine::{OpenError, Options, OptionsError};
use flagstone_nand::{Profile, ProfileError, SegmentFile, SimNand, SimStorage};
use flagstone_opponents::policies::{
    ReplacementRule, SuperGroup, VictimRule, WithPolicies as _, WriteCount,
};

use super::explore::{Limits, Scenario, Tally, explore};
use super::run::RunnerRig;
use super::script::{GROWING, Mix, Script};
use super::subject::{Setup, Subject};
use super::{CrashError, growing_file_of};

/// Chips of the exhaustive explorer: every capability there, or one taken away.
pub const CHIP_PROFILES: [&str; 6] =
    ["tiny", "tiny-nop1", "tiny-ordered", "tiny-risk", "tiny-nospare", "tiny-mlc"];

/// Chip that carries commit flags.
pub const FLAGS_PROFILE: &str = "tiny-flags";

/// Draw of a seed.
#[derive(Clone, Debug)]
pub struct Draw {
    /// Chip.
    pub profile: &'static str,
    /// Blocks of the chip, unless the options need more.
    pub block_count: u32,
    /// Dies that work side by side, at least.
    pub die_count: u32,
    /// Options of the database.
    pub options: Options,
    /// Weights of the operations.
    pub mix: Mix,
    /// Operations of the script.
    pub ops: usize,
    /// Factory bad blocks.
    pub bad_block_count: u32,
    /// Limits of the exploration.
    pub limits: Limits,
}

/// Policies that order frames alone.
const FRAME_POLICIES: [ReplacementRule; 5] = [
    ReplacementRule::Lru,
    ReplacementRule::Clock,
    ReplacementRule::Cflru,
    ReplacementRule::CflruAdaptive,
    ReplacementRule::Cfdc,
];

/// Policies that choose one group at a time.
const GROUP_POLICIES: [VictimRule; 5] =
    [VictimRule::Window, VictimRule::Fifo, VictimRule::Lru, VictimRule::Biggest, VictimRule::Cost];

/// One order for frames and changes, in a third of the options that allow it; sets of groups, and a
/// limit of changes that wait for a leaf, in a third of all.
fn with_units(options: Options, below: &mut impl FnMut(u64) -> u64) -> Options {
    let (is_drawn, absent) = (below(3) == 0, below(2));
    let (is_cover, is_paper, unit_pages) = (below(3) == 0, below(2) == 0, below(9));
    let unit_pages = if unit_pages < 6 { 0.0 } else { unit_pages as f64 - 5.0 };
    let count_writes = if is_paper { WriteCount::Paper } else { WriteCount::Exact };
    let options = options.with_policies(|policies| {
        if is_cover {
            (policies.victim, policies.super_group) = (VictimRule::Cover, SuperGroup::Off);
        }
        (policies.unit_pages, policies.count_writes) = (unit_pages, count_writes);
    });
    if !is_drawn || options.techniques().frames != FrameKind::Base {
        return options;
    }
    let options = options.with_techniques(|techniques| {
        (techniques.merge_to, techniques.budget) = (MergeTo::Flash, Budget::Shared);
        if absent == 0 {
            techniques.absent = AbsentLeaf::ReadOnce;
        }
    });
    options.with_policies(|policies| policies.replacement = ReplacementRule::LsLru)
}

/// Bytes of a page of the tiny chips: the unit of the drawn memory.
const PAGE_SIZE: u32 = 512;

/// Logical pages that memory holds at least; see [`Options::require`].
const MEMORY_PAGES_MIN: usize = 24;

impl Draw {
    /// The configuration of `seed`; `effort` is the number of states at each level.
    #[must_use]
    pub fn seeded(seed: u64, effort: u64) -> Self {
        let mut generator = Pcg64Mcg::seed_from_u64(seed);
        let mut below = |bound: u64| generator.next_u64() % bound;
        let profile = CHIP_PROFILES[below(CHIP_PROFILES.len() as u64) as usize];
        let preset = ["flagstone", "traditional"][below(2) as usize];
        let mut options = Options::preset(preset).unwrap_or_default();
        options.parts = 1 + u32::from(below(6) == 0);
        let page_size = (PAGE_SIZE * options.parts) as usize;
        options.memory = page_size * (MEMORY_PAGES_MIN + below(48) as usize);
        options.log_pages = 24 + below(16) as u32 * u32::from(profile != "tiny-mlc");
        options.seed = Some(seed);
        let options = options.with_techniques(|techniques| {
            techniques.frame_share = 0.1 + below(70) as f64 / 100.0;
            techniques.uncommitted_share = 0.1 + below(40) as f64 / 100.0;
            if below(3) == 0 {
                techniques.collection = Collection::CostBenefit;
            }
            if below(4) == 0 {
                techniques.relocation = RelocationFolding::Keep;
            }
        });
        let mut weight = || below(160) as u8;
        let mix = Mix {
            changes: 40 + weight(),
            reads: weight() / 4,
            ends: 10 + weight() / 2,
            savepoints: weight() / 8,
            large: weight() / 8,
            snapshots: weight() / 8,
            upkeep: weight() / 6,
            deferred: weight(),
            hot: 0,
            pieces: 0,
            small: 0,
            kept: 0,
        };
        let limits = Limits { depth: 2, seed, states_max: effort, ..Limits::default() };
        let drawn = Self {
            profile,
            block_count: (1 + u32::from(profile == "tiny-mlc")) * (32 + below(24) as u32),
            die_count: 1,
            options,
            mix,
            ops: 10 + below(190) as usize,
            bad_block_count: below(3) as u32,
            limits,
        };
        // Drawn last, so that the other draws of a seed stay as they were without these.
        let pieces = below(40) as u8;
        let replacement = FRAME_POLICIES[below(FRAME_POLICIES.len() as u64) as usize];
        let window = below(11) as f64 / 10.0;
        let budget = if below(2) == 0 { Budget::Divided } else { Budget::Adaptive };
        let victim = GROUP_POLICIES[below(GROUP_POLICIES.len() as u64) as usize];
        let commit = match below(8) {
            0 => CommitBy::Log,
            1 => CommitBy::Claims,
            2 => CommitBy::Flags,
            _ => CommitBy::Auto,
        };
        let is_flagged = commit == CommitBy::Flags || below(6) == 0;
        let profile = if is_flagged { FLAGS_PROFILE } else { drawn.profile };
        let super_group = SuperGroup::ALL[below(SuperGroup::ALL.len() as u64) as usize];
        let merge_to = if below(3) == 0 { MergeTo::Frame } else { MergeTo::Flash };
        let options = drawn.options.clone().with_techniques(|techniques| {
            (techniques.budget, techniques.commit) = (budget, commit);
            techniques.merge_to = merge_to;
        });
        let options = options.with_policies(|policies| {
            (policies.victim, policies.super_group) = (victim, super_group);
            (policies.replacement, policies.replacement_window) = (replacement, window);
        });
        let options = with_units(options, &mut below);
        let die_count = [1, 1, 2, 4][below(4) as usize];
        let options = options.with_discard(below(2) == 0);
        Self { mix: Mix { pieces, ..drawn.mix }, options, profile, die_count, ..drawn }
    }

    /// The chip that was drawn, with as many good blocks as the options need.
    ///
    /// # Errors
    ///
    /// When the profile is not there.
    pub fn device(&self) -> Result<SimNand, ProfileError> {
        let chip = |block_count| {
            let mut profile = Profile::named(self.profile)?.with_block_count(block_count)?;
            profile.geometry.die_count = profile.geometry.die_count.max(self.die_count);
            let chip = SimNand::new(&profile, self.limits.seed);
            Ok(chip.with_bad_block_count(self.bad_block_count))
        };
        let mut device = chip(self.block_count)?;
        match flagstone_engine::space_options(&mut device, &self.options) {
            Err(OpenError::Options(OptionsError::TooFewBlocks { needed, .. })) => {
                chip(needed + self.bad_block_count)
            }
            _ => Ok(device),
        }
    }

    /// Explores the draw on a file that grows instead of the chip, with more large values.
    ///
    /// # Errors
    ///
    /// When the file cannot be made.
    pub fn explore_growing<S>(&self) -> Result<Tally, CrashError>
    where
        S: Subject<RunnerRig<SegmentFile<SimStorage>>>,
    {
        let device = growing_file_of(PAGE_SIZE)?;
        let options = self.options.clone().with_techniques(|techniques| {
            // Files carry no flags.
            if techniques.commit == CommitBy::Flags {
                techniques.commit = CommitBy::Claims;
            }
        });
        let setup = options.into();
        let mix = Mix { large: self.mix.large + GROWING.large, ..self.mix };
        let script = Script::seeded(self.limits.seed, self.ops, &mix);
        let scenario = Scenario { device, model: None, setup, script };
        Ok(explore::<S, _>(&scenario, &self.limits, &|_, _| {}))
    }

    /// Explores the draw.
    ///
    /// # Errors
    ///
    /// When the profile is not there.
    pub fn explore<S>(&self) -> Result<Tally, ProfileError>
    where
        S: Subject<RunnerRig<SimNand>>,
    {
        self.explore_with::<S>(self.options.clone().into())
    }

    /// Explores the draw, on an engine that is set up otherwise.
    ///
    /// # Errors
    ///
    /// When the profile is not there.
    pub fn explore_with<S>(&self, setup: Setup) -> Result<Tally, ProfileError>
    where
        S: Subject<RunnerRig<SimNand>>,
    {
        let device = self.device()?;
        let script = Script::seeded(self.limits.seed, self.ops, &self.mix);
        let scenario = Scenario { device, model: None, setup, script };
        Ok(explore::<S, SimNand>(&scenario, &self.limits, &|_, _| {}))
    }
}
