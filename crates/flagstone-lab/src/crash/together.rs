//! Leaves that change together: groups of three leaves and more, and a leaf that merges in parts.
//!
//! Owns scenarios in which leaves do so in every run: the earlier contents of the leaves, and the
//! script. Never explores: the tests and the hunt do.

use flagstone_engine::CommitBy;
use flagstone_engine::{Durability, Options};
use flagstone_nand::Crashable;

use super::explore::Scenario;
use super::script::{KEY_COUNT, KeyIndex, Op, Part, Script, Size};
use super::{CLAIM_SHARES, small};
use crate::model::{SlotIndex, TableIndex};

/// Way in which leaves change together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Together {
    /// Several split, with one record.
    Split,
    /// Several groups of leaves wait for one sync.
    Groups,
    /// The successors of one leaf are installed in parts.
    Parts,
    /// A transaction commits with several, as pages that a record names.
    ClaimedPages,
    /// The same by a flag.
    Flagged,
}

/// The table whose rows have any size.
const ROWS: TableIndex = TableIndex(1);

const SLOT: SlotIndex = SlotIndex(0);

/// A number without a common divisor with that of the keys: rows come in no order, all over the leaves.
const STRIDE: u16 = 11;

/// Memory beside that of other scenarios: leaves split together where it has room for their images.
const MEMORY_TIMES: usize = 6;

/// The same where several groups are to have room for theirs, and changes for little.
const GROUPS_MEMORY_TIMES: usize = 12;
const GROUPS_FRAME_SHARE: f64 = 0.985;

/// Log pages where changes have to gather in memory before they are merged.
const LOG_PAGES: u32 = 32;

impl Together {
    /// A chip on which it happens.
    pub(super) const fn profile(self) -> &'static str {
        match self {
            Self::Split | Self::Groups | Self::Parts | Self::ClaimedPages => "tiny",
            Self::Flagged => "tiny-flags",
        }
    }

    /// The scenario on a device, and the script whose changes have to be in their leaves before.
    pub(super) fn scenario<C: Crashable>(self, device: C, seed: u64) -> (Scenario<C>, Script) {
        let options = self.options(small(Options::default().with_seed(seed), &device));
        let (before, ops) = self.scripts();
        let scenario = Scenario { device, model: None, setup: options.into(), script: Script(ops) };
        (scenario, Script(before))
    }

    fn options(self, options: Options) -> Options {
        let commit = match self {
            Self::Split | Self::Groups | Self::Parts => CommitBy::Log,
            Self::ClaimedPages => CommitBy::Claims,
            Self::Flagged => CommitBy::Flags,
        };
        let log_pages = match self {
            Self::Split => options.log_pages,
            // Few checkpoints ask for installs.
            Self::Groups => LOG_PAGES,
            _ => LOG_PAGES,
        };
        let options = options.with_log_pages(log_pages);
        let options = options.with_techniques(|techniques| techniques.commit = commit);
        if commit == CommitBy::Log {
            let (times, frame_share) = match self {
                Self::Groups => (GROUPS_MEMORY_TIMES, GROUPS_FRAME_SHARE),
                _ => (MEMORY_TIMES, options.techniques().frame_share),
            };
            let memory = times * options.memory;
            let options =
                options.with_techniques(|techniques| techniques.frame_share = frame_share);
            return options.with_memory(memory);
        }
        // A transaction that spills is not claimed.
        options.with_techniques(|techniques| {
            (techniques.frame_share, techniques.uncommitted_share) = CLAIM_SHARES;
        })
    }

    /// The preceding operations, and the explored ones.
    fn scripts(self) -> (Vec<Op>, Vec<Op>) {
        let all = || 0..KEY_COUNT;
        match self {
            // Rows all over the tree grow.
            Self::Split => {
                let grown = [120, 180, 255].map(|size| commits(all(), 5, put(size)));
                (commits(all(), 5, put(40)), grown.concat())
            }
            // The same, and no transaction waits for the log.
            Self::Groups => {
                let grown = [90, 150, 200, 255].map(|size| deferred(all(), 4, put(size)));
                (commits(all(), 5, put(20)), grown.concat())
            }
            // Many rows come to a leaf, beside changes of its own rows.
            Self::Parts => {
                let few = 0..KEY_COUNT / 3;
                let ops = [
                    commits(0..KEY_COUNT / 6, 8, patch(0)),
                    commits(KEY_COUNT / 3..KEY_COUNT, 4, put(255)),
                    commits(few.clone(), 4, put(255)),
                    commits(all(), 4, patch(100)),
                ];
                (commits(few, 8, put(16)), ops.concat())
            }
            // A row in each of many leaves.
            Self::ClaimedPages | Self::Flagged => {
                let ops = commits(all().chain(all()), 12, put(120));
                (commits(all(), 8, put(120)), ops)
            }
        }
    }
}

fn put(size: u8) -> impl Fn(KeyIndex) -> Op {
    move |key| Op::Put(SLOT, ROWS, key, Size(size))
}

fn patch(offset: u8) -> impl Fn(KeyIndex) -> Op {
    move |key| Op::Patch(SLOT, ROWS, key, Part { offset, size: 8 })
}

/// As [`commits`] with more work, of which the last one alone waits for the log.
fn deferred(
    numbers: impl Iterator<Item = u8>,
    rows: usize,
    change: impl Fn(KeyIndex) -> Op,
) -> Vec<Op> {
    let mut ops = commits(numbers, rows, change);
    let last = ops.len() - 2;
    for op in &mut ops[..last] {
        match op {
            Op::Commit(_, durability) => *durability = Durability::Deferred,
            Op::Work(pieces) => *pieces = 3,
            _ => {}
        }
    }
    ops
}

/// Transactions of so many rows, with these numbers, and a piece of work behind each; every third
/// one waits for the log, and the last one.
fn commits(
    numbers: impl Iterator<Item = u8>,
    rows: usize,
    change: impl Fn(KeyIndex) -> Op,
) -> Vec<Op> {
    let numbers: Vec<u8> = numbers.collect();
    let key = |number: u8| KeyIndex((u16::from(number) * STRIDE % u16::from(KEY_COUNT)) as u8);
    let mut ops = Vec::new();
    let last = numbers.len().div_ceil(rows);
    for (numbers, count) in numbers.chunks(rows).zip(1..) {
        ops.extend(numbers.iter().map(|number| change(key(*number))));
        let durability = match count % 3 == 0 || count == last {
            true => Durability::Immediate,
            false => Durability::Deferred,
        };
        ops.extend([Op::Commit(SLOT, durability), Op::Work(1)]);
    }
    ops
}

#[cfg(test)]
mod tests;
