//! From a configuration to the engine's options and the chip that fits.

use flagstone_engine::blocking::Database;
use flagstone_engine::{Appends, Budget};
use flagstone_engine::{OpenError, Options, OptionsError};
use flagstone_nand::{Nand, Profile};

use super::{BenchError, ChipUse, Job, MemoryBudget, Warmup};
use crate::medium::{Medium, real_block_count, real_pages_per_block};
use crate::preset::{self, EngineKind};
use crate::sizing::{self, ChipSize, Estimate, FixedBlocks, PageShape};
use crate::store::Store;
use crate::workload::Workload;
use crate::workload::tpcc::Mix;

/// Blocks of the scratch chip that is asked for the shape of its pages.
const SCRATCH_BLOCKS: u32 = 256;

fn without_appends(options: &Options) -> Options {
    options.clone().with_techniques(|techniques| techniques.append_scheme = Appends::default())
}

impl<W: Workload> Job<'_, W> {
    /// `options` with the memory and the seed of this configuration.
    pub(crate) fn engine_options(&self, options: &Options) -> Options {
        let mut options = options.clone();
        options.memory = match self.config.memory {
            MemoryBudget::Bytes(bytes) => bytes,
            MemoryBudget::Share(share) => (self.workload.loaded_bytes() as f64 * share) as usize,
        };
        if let Some(held_back) = self.config.held_back {
            let frames = options.memory.saturating_sub(held_back) as f64;
            let share = frames / options.memory.max(1) as f64;
            options = options.with_techniques(|techniques| {
                (techniques.frame_share, techniques.budget) = (share, Budget::Divided);
            });
        }
        options.seed = Some(self.config.seed);
        options
    }

    /// The chip for this workload, as far as `estimate` is right.
    pub(crate) fn chip(
        &self,
        options: &Options,
        estimate: &Estimate,
    ) -> Result<(Profile, ChipSize), BenchError> {
        let (shape, fixed) = self.scratch(options)?;
        if self.config.chip != ChipUse::Fitted {
            let profile = self.config.profile.clone();
            let size = ChipSize::whole(profile.geometry.block_count, &shape, self.config.txns);
            return Ok((profile, size));
        }
        let mut size = ChipSize::of(*self, &shape, fixed, estimate);
        loop {
            let profile = &self.config.profile;
            let blocks = real_block_count(profile, size.block_count());
            // Every die of the device is there, however little the workload needs.
            let blocks = blocks.max(profile.geometry.die_count);
            let profile = self.config.profile.clone().with_block_count(blocks)?;
            if self.has_room(&profile, &shape, &size, options)? {
                return Ok((profile, size));
            }
            size.data_blocks += 1;
        }
    }

    /// Whether the live pages fit beside the blocks kept back: on a chip of a few large blocks
    /// these take more than `fill` leaves free.
    fn has_room(
        &self,
        profile: &Profile,
        shape: &PageShape,
        size: &ChipSize,
        options: &Options,
    ) -> Result<bool, BenchError> {
        let options = without_appends(options);
        let database = match Database::create_on(Medium::new(profile, 0)?, &options) {
            Ok(database) => database,
            Err(OpenError::Options(OptionsError::TooFewBlocks { .. })) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let capacity = u64::from(database.runtime().space().capacity_pages());
        let live = size.live_pages / u64::from(shape.parts.max(1));
        Ok(live + live / ROOM_SHARE <= capacity)
    }

    /// Fills the room that the workload leaves free, where the configuration asks for it.
    pub(crate) fn prefill(&self, store: &impl Store, options: &Options) -> Result<(), BenchError> {
        if self.config.chip != ChipUse::Prefilled {
            return Ok(());
        }
        let warmup = if let Warmup::Txns(txns) = self.config.warmup { txns } else { 0 };
        let loaded = self.full_pages(options, 0)?;
        let grown = self.full_pages(options, warmup + self.config.txns)?;
        let pages = grown.saturating_sub(loaded) / u64::from(options.parts.max(1));
        // Leaves that split are half full, New-Orders without Payments make twice as many, and leaves
        // with a section for pending records are smaller.
        let has_sections = matches!(preset::engine_of(options), EngineKind::Records(_));
        let growth = GROWTH + u64::from(has_sections);
        let growth = if self.config.mix == Mix::Long { 2 * growth } else { growth };
        let spare_count = u32::try_from(growth * pages).unwrap_or(u32::MAX);
        Ok(store.prefill(spare_count.saturating_add(SPARE_PAGES_MIN))?)
    }

    /// Physical pages that full leaves would take after `txns` commits.
    pub(crate) fn full_pages(&self, options: &Options, txns: u64) -> Result<u64, BenchError> {
        let (shape, _) = self.scratch(options)?;
        Ok(sizing::live_pages(&self.workload.contents(txns, self.config.clients), &shape))
    }

    /// Shape of the pages, and the blocks on top, as the engine lays them out on such a chip.
    fn scratch(&self, options: &Options) -> Result<(PageShape, FixedBlocks), BenchError> {
        let profile = self.config.profile.clone().with_block_count(SCRATCH_BLOCKS)?;
        // The layout is the space floor's, with any engine above it. Slots for appends are left
        // out, so that schemes are compared on chips of one size (rule Z1); a table that has some
        // is larger.
        let options = without_appends(options);
        let database = Database::create_on(Medium::new(&profile, 0)?, &options)?;
        let space = database.runtime().space();
        let geometry = space.device().geometry();
        let shape = PageShape {
            payload_size: u32::try_from(space.payload_size()).unwrap_or(u32::MAX),
            parts: options.parts,
            pages_per_block: real_pages_per_block(&profile, &geometry),
        };
        // A head that stands within a block holds the whole block: one block more than the budget.
        let held = geometry.pages_per_block / shape.pages_per_block;
        let log_blocks = space.log_budget_pages().div_ceil(u64::from(shape.pages_per_block));
        let log = u32::try_from(log_blocks).unwrap_or(u32::MAX).saturating_add(held);
        Ok((shape, FixedBlocks { log, ring: RING_BLOCKS }))
    }
}

/// Logical pages that stay free on a prefilled chip, beyond the workload's need.
const SPARE_PAGES_MIN: u32 = 64;

/// Pages that a workload may grow by, for each that full leaves would take.
const GROWTH: u64 = 2;

/// Of the live pages, the share that stays free for pages that transactions book before they
/// commit.
const ROOM_SHARE: u64 = 16;

/// Blocks of the anchor ring.
const RING_BLOCKS: u32 = 4;
