//! The cost of opening at worst (scoreboard C5).
//!
//! Owns the formula and the search for states that come near it. Never looks at the contents of the
//! database: the explorer does.
//!
//! - **N1** Opening reads of each block its first page, and a second one or its summary where it
//!   was written since the record; all pages of the ring and of the few blocks that are open; the
//!   pages of the mapping; the log, twice where it does not fit the memory.
//! - **N2** Otherwise only the catalog is read: the cost of opening does not grow with the data.

use std::sync::Mutex;

use flagstone_engine::{Options, Runtime};
use flagstone_nand::{Nand, SimNand};

use super::explore::{Limits, Scenario, each_state};
use super::run::{RunnerRig, Violation};
use super::script::{Mix, Script};
use super::{CrashError, Flagstone, small};

/// Reads of each block: its first page, a second look, two pages of a summary.
const PER_BLOCK: u64 = 4;

/// Blocks of which every page may be read: four of the ring, and the open ones.
const WHOLE_BLOCKS: u64 = 9;

/// Times that a page of the log may be read: its end is found, it is replayed, and once more.
const PER_LOG_PAGE: u64 = 3;

/// Pages that the mapping and the catalog take at most of chips that are explored.
const FIXED: u64 = 16;

/// Reads that opening may take: the formula of the scoreboard.
pub const FORMULA: &str = "4 · blocks + 9 · pages a block + 3 · log pages + 16";

/// The worst case found on one chip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// States opened.
    pub states: u64,
    /// States that did not open.
    pub failures: u64,
    /// Most reads that opening took.
    pub reads_max: u64,
    /// Reads that it may take.
    pub bound: u64,
    /// Pages of the chip.
    pub pages: u64,
}

/// Opens states of a seeded script on a chip in use, and counts their reads.
///
/// # Errors
///
/// When the options are refused, or the script fails without a cut.
pub fn opening_reads(chip: SimNand, limits: &Limits, ops: usize) -> Result<Opening, CrashError> {
    type Engine = Flagstone<RunnerRig<SimNand>>;
    let geometry = chip.geometry();
    let options = small(Options::default().with_seed(limits.seed), &chip);
    let setup = options.clone().into();
    let script = Script::seeded(limits.seed, ops, &Mix::default());
    let scenario = Scenario { device: chip, model: None, setup, script };
    let before = Script::seeded(!limits.seed, 4 * ops, &Mix::default());
    let worst = Mutex::new(Opening { pages: geometry.page_count().into(), ..Opening::default() });
    let scenario = match scenario.in_use::<Engine>(&before) {
        Ok(scenario) => scenario,
        Err(_) => return Ok(Opening { failures: 1, ..Opening::default() }),
    };
    let open = |device: SimNand| {
        let opened = Runtime::open(device, &options);
        let mut worst = worst.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        worst.states += 1;
        match opened {
            Err(_) => worst.failures += 1,
            Ok(runtime) => {
                worst.reads_max = worst.reads_max.max(runtime.recovery().pages_read);
                let space = runtime.space();
                let log_pages = space.log_budget_pages() + space.log_block_pages();
                worst.bound = PER_BLOCK * u64::from(geometry.block_count)
                    + WHOLE_BLOCKS * u64::from(geometry.pages_per_block)
                    + PER_LOG_PAGE * log_pages
                    + FIXED;
            }
        }
    };
    let ran: Result<(), Violation> = each_state::<Engine, SimNand>(&scenario, limits, &open);
    let mut worst = worst.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    worst.failures += u64::from(ran.is_err());
    Ok(worst)
}
