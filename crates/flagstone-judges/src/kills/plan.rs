//! The life of one database from its creation to its end: all of it follows from a seed and a number.
//!
//! Both processes, the worker and the keeper of the ledger, make the plan anew: only the seed passes between them.

use std::path::PathBuf;
use std::time::Duration;

use flagstone::{Durability, FileSize, Options, VerifyOnOpen};

use super::draw::Draw;

/// Place of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// A file that grows.
    Growing,
    /// A file of this many bytes.
    Fixed(u64),
    /// The image of a chip with this many blocks.
    Image(u32),
    /// Raw NAND behind the kernel.
    Node(PathBuf),
}

impl Device {
    pub(crate) fn is_plain_file(&self) -> bool {
        matches!(self, Self::Growing | Self::Fixed(_))
    }
}

/// Durability of the commits of one database.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mix {
    /// All of them when they return.
    Durable,
    /// None of them when they return.
    Deferred,
    /// Some of each kind, one in so many durable.
    Mixed(u64),
}

/// Life of one database.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) life: u64,
    pub(crate) device: Device,
    pub(crate) threads: u8,
    /// Keys of each thread's table.
    pub(crate) keys: u64,
    pub(crate) value_size_max: u64,
    /// One value in so many is larger than a page.
    pub(crate) large_every: u64,
    pub(crate) accounts: u64,
    /// Bytes of a row of the bank beside its balance.
    pub(crate) padding: usize,
    /// Changes of a transaction, at most.
    pub(crate) changes_max: u64,
    /// One transaction in so many changes hundreds of rows.
    pub(crate) big_every: u64,
    pub(crate) mix: Mix,
    /// The first thread does a chore after so many of its transactions.
    pub(crate) chore_every: u64,
    /// Number of kills.
    pub(crate) kills: u64,
    pub(crate) preset: &'static str,
}

/// Process of one generation of a life.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) options: Options,
    /// The database is compacted before it is opened.
    pub(crate) compacts: bool,
    /// The database is closed, and opened again, after so many transactions of each thread.
    pub(crate) closes_after: u64,
    /// A process that only reads looks at the database before it is opened.
    pub(crate) is_looked_at: bool,
    pub(crate) kill: Kill,
}

/// Moment of a kill: both conditions have to hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kill {
    /// So many transactions and chores have begun in it.
    pub(crate) after_begun: u64,
    /// So long a time has passed since, in parts of a thousand of the time that an opening takes.
    pub(crate) delay_permille: u64,
}

/// Presets that work on any device.
const PRESETS: [&str; 3] = ["flagstone", "flagstone-claims", "traditional"];

/// Memory budgets in KiB; the smallest is about the least that the engine takes.
const MEMORY_KIB: [usize; 8] = [128, 128, 192, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10];

impl Plan {
    pub(crate) fn of(seed: u64, life: u64, node: Option<PathBuf>) -> Self {
        let mut draw = Draw::of(&[seed, life, 1]);
        let device = match draw.below(10) {
            0..6 => Device::Growing,
            6..8 => Device::Fixed(draw.between(16, 32) << 20),
            _ => Device::Image(draw.between(160, 320) as u32),
        };
        let mix = match draw.below(4) {
            0 => Mix::Durable,
            1 => Mix::Deferred,
            _ => Mix::Mixed(draw.pick(&[2, 3, 10, 50])),
        };
        let is_short = draw.one_in(3);
        Self {
            seed,
            life,
            device: node.map_or(device, Device::Node),
            threads: draw.pick(&[1, 1, 1, 2, 3, 4]),
            keys: draw.between(40, 400),
            value_size_max: draw.pick(&[30, 120, 400, 900]),
            large_every: draw.pick(&[30, 200, 1 << 40]),
            accounts: draw.pick(&[10, 100, 1_000, 3_000]),
            padding: draw.pick(&[0, 8, 100, 300]),
            changes_max: draw.pick(&[1, 4, 12]),
            big_every: draw.pick(&[40, 300, 1 << 40]),
            mix,
            chore_every: draw.pick(&[3, 10, 40, 200]),
            kills: if is_short { draw.between(1, 4) } else { draw.between(20, 100) },
            preset: if draw.one_in(3) { draw.pick(&PRESETS) } else { PRESETS[0] },
        }
    }

    pub(crate) fn session(&self, generation: u64) -> Session {
        let mut draw = Draw::of(&[self.seed, self.life, 2, generation]);
        let mut options = Options::preset(self.preset).unwrap_or_default();
        options.memory = draw.pick(&MEMORY_KIB) << 10;
        options.discard = draw.one_in(3);
        options.checkpoint_commits = draw.pick(&[0, 0, 0, 20, 200]);
        options.group_delay = Duration::from_micros(draw.pick(&[100, 1_000, 5_000]));
        options.seed = Some(draw.below(1 << 40));
        if draw.one_in(20) {
            options.verify_on_open = VerifyOnOpen::Check;
        }
        let kill = match draw.below(16) {
            // Within the opening, repairs included.
            0..5 => Kill { after_begun: 0, delay_permille: draw.below(1_000) },
            5..7 => Kill { after_begun: draw.between(1, 5), delay_permille: draw.below(50) },
            7..13 => Kill { after_begun: draw.between(1, 200), delay_permille: draw.below(50) },
            13 => Kill { after_begun: draw.between(200, 2_000), delay_permille: draw.below(50) },
            // A chore or a large transaction goes on for some time after it has begun.
            _ => Kill { after_begun: draw.between(1, 100), delay_permille: draw.below(1_000) },
        };
        Session {
            options,
            compacts: draw.one_in(8),
            closes_after: if draw.one_in(6) { draw.between(1, 100) } else { u64::MAX },
            is_looked_at: draw.one_in(10),
            kill,
        }
    }

    /// Size of the file, where it is one.
    pub(crate) fn file_size(&self) -> FileSize {
        match self.device {
            Device::Fixed(size) => FileSize::Fixed(size),
            _ => FileSize::Growing { limit: 1 << 30 },
        }
    }

    /// Durability of a commit.
    pub(crate) fn durability(&self, draw: &mut Draw) -> Durability {
        let is_durable = match self.mix {
            Mix::Durable => true,
            Mix::Deferred => false,
            Mix::Mixed(one_in) => draw.one_in(one_in),
        };
        match (is_durable, draw.one_in(4)) {
            (false, _) => Durability::Deferred,
            (true, false) => Durability::Immediate,
            (true, true) => Durability::Group,
        }
    }
}
