//! Operations of a test on a database: one type, drawn from a seed or from bytes.
//!
//! Owns the operations and how they are drawn. Never runs them. The exhaustive explorer, the
//! swarm, the fault campaigns and the fuzzer all use these operations, so that each can replay the
//! findings of all.
//!
//! - **S1** Equal seeds give equal scripts; any bytes give a script.
//! - **S2** Every operation is legal in every state: the runner skips an operation that makes no
//!   sense.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use flagstone_engine::Durability;

use crate::model::{SlotIndex, TableIndex};

/// Tables that scripts use: fixed-size rows, rows of any size, and one with long keys.
pub const TABLE_COUNT: u8 = 3;

/// Transactions that may be open at a time.
pub const SLOT_COUNT: u8 = 3;

/// Different keys of a table.
pub const KEY_COUNT: u8 = 48;

/// Pieces of background work that a step does at most.
const WORK_MAX: u8 = 12;

/// Keys of a table that everybody goes to.
pub(crate) const HOT_KEY_COUNT: u8 = 2;

/// Which way a scan runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the low end.
    Forward,
    /// From the high end.
    Backward,
}

/// Key of a table by number; [`key_bytes`] spells it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyIndex(pub u8);

/// One step of a script. A step on a slot without a transaction begins one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Begins a transaction.
    Begin(SlotIndex),
    /// Puts a value of the table's usual size.
    Put(SlotIndex, TableIndex, KeyIndex, Size),
    /// Puts a value of several pages.
    PutLarge(SlotIndex, TableIndex, KeyIndex, Size),
    /// Changes bytes of a value.
    Patch(SlotIndex, TableIndex, KeyIndex, Part),
    /// Deletes a key.
    Delete(SlotIndex, TableIndex, KeyIndex),
    /// Reads a value.
    Get(SlotIndex, TableIndex, KeyIndex),
    /// Reads part of a value.
    GetPart(SlotIndex, TableIndex, KeyIndex, Part),
    /// Reads the keys from the first to the second.
    Scan(SlotIndex, TableIndex, KeyIndex, KeyIndex, Direction),
    /// Sets a savepoint.
    Savepoint(SlotIndex),
    /// Returns to the savepoint of that number, modulo the number of savepoints.
    RollbackTo(SlotIndex, u8),
    /// Commits.
    Commit(SlotIndex, Durability),
    /// Aborts.
    Abort(SlotIndex),
    /// Puts every key of a table within one transaction, larger than memory, and leaves it open.
    Fill(SlotIndex, TableIndex, Size),
    /// Opens a snapshot.
    SnapshotOpen(SlotIndex),
    /// Reads a table through the snapshot.
    SnapshotScan(SlotIndex, TableIndex, Direction),
    /// Reads a value through the snapshot.
    SnapshotGet(SlotIndex, TableIndex, KeyIndex),
    /// Closes the snapshot.
    SnapshotClose(SlotIndex),
    /// Keeps a snapshot under a name.
    Keep,
    /// Drops the kept snapshot of that number, modulo the number of kept snapshots.
    DropKept(u8),
    /// Makes the engine write a checkpoint.
    Checkpoint,
    /// Makes the engine begin a checkpoint: later operations meet it half way.
    CheckpointBegin,
    /// Makes the engine do so many pieces of background work while no flush comes.
    Work(u8),
    /// Makes the engine merge and collect garbage.
    Collect,
    /// Closes the database cleanly and opens it again.
    Reopen,
    /// Lets the power go between two device operations and opens again.
    PowerLoss,
}

/// Size of a value, as a share of the size that the operation allows: 0 is the smallest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size(pub u8);

/// Part of a value, as shares of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// Where it begins.
    pub offset: u8,
    /// How long it is.
    pub size: u8,
}

/// How often each kind of operation is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Puts, patches and deletes of rows.
    pub changes: u8,
    /// Reads and scans.
    pub reads: u8,
    /// Commits of either durability, and aborts.
    pub ends: u8,
    /// Savepoints and returns to them.
    pub savepoints: u8,
    /// Large values and transactions larger than memory.
    pub large: u8,
    /// Snapshots.
    pub snapshots: u8,
    /// Checkpoints, collections, reopenings.
    pub upkeep: u8,
    /// Of the commits, how many in 256 are deferred.
    pub deferred: u8,
    /// Of the keys, how many in 256 are among a few that all transactions use.
    pub hot: u8,
    /// Checkpoints that are only begun, and pieces of background work.
    pub pieces: u8,
    /// Of the puts and patches, how many in 256 are patches of a few bytes.
    pub small: u8,
    /// Snapshots that are kept, and dropped.
    pub kept: u8,
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            changes: 110,
            reads: 30,
            ends: 60,
            savepoints: 8,
            large: 6,
            snapshots: 10,
            upkeep: 14,
            deferred: 80,
            hot: 0,
            pieces: 12,
            small: 0,
            kept: 0,
        }
    }
}

/// Transactions of many changes, few of them spilled: leaves are claimed.
pub const CLAIMS: Mix = Mix {
    changes: 150,
    reads: 20,
    ends: 36,
    savepoints: 8,
    large: 2,
    snapshots: 14,
    upkeep: 14,
    deferred: 100,
    hot: 0,
    pieces: 16,
    small: 0,
    kept: 0,
};

/// More rows and larger ones: the file is soon too small.
pub const GROWING: Mix = Mix {
    changes: 110,
    reads: 8,
    ends: 40,
    savepoints: 4,
    large: 50,
    snapshots: 6,
    upkeep: 8,
    deferred: 80,
    hot: 0,
    pieces: 14,
    small: 0,
    kept: 0,
};

/// Small changes of a few rows, whose pages are written often: they are appended.
pub const APPENDS: Mix = Mix {
    changes: 90,
    reads: 8,
    ends: 50,
    savepoints: 2,
    large: 0,
    snapshots: 2,
    upkeep: 90,
    deferred: 80,
    hot: 160,
    pieces: 10,
    small: 190,
    kept: 0,
};

/// Transactions of several small changes: leaves are claimed.
pub const SMALL_CLAIMS: Mix = Mix { changes: 140, ends: 36, snapshots: 10, upkeep: 40, ..APPENDS };

/// Snapshots that are kept and dropped among changes that collection moves.
pub const KEEPING: Mix = Mix {
    changes: 110,
    reads: 8,
    ends: 60,
    savepoints: 4,
    large: 6,
    snapshots: 8,
    upkeep: 24,
    deferred: 80,
    hot: 0,
    pieces: 12,
    small: 0,
    kept: 18,
};

/// Where the draws come from.
#[derive(Debug)]
pub enum Source<'a> {
    /// A seeded generator: never ends.
    Seeded(Box<Pcg64Mcg>),
    /// Bytes of a fuzzer: end.
    Bytes(std::slice::Iter<'a, u8>),
}

impl<'a> Source<'a> {
    /// Draws from a seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self::Seeded(Box::new(Pcg64Mcg::seed_from_u64(seed)))
    }

    /// Draws from bytes.
    #[must_use]
    pub fn bytes(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes.iter())
    }

    /// The next byte, or `None` at the end.
    pub fn byte(&mut self) -> Option<u8> {
        match self {
            Self::Seeded(generator) => Some(generator.next_u64().to_be_bytes()[0]),
            Self::Bytes(bytes) => bytes.next().copied(),
        }
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u8) -> Option<u8> {
        // Multiply-shift: the bias is of no consequence here.
        self.byte().map(|byte| ((u16::from(byte) * u16::from(bound)) >> 8) as u8)
    }
}

/// A sequence of operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script(pub Vec<Op>);

impl Script {
    /// `count` operations drawn from `seed`.
    #[must_use]
    pub fn seeded(seed: u64, count: usize, mix: &Mix) -> Self {
        let mut source = Source::seeded(seed);
        Self(std::iter::from_fn(|| Op::draw(&mut source, mix)).take(count).collect())
    }

    /// The script that the bytes spell, at most `count_max` operations.
    #[must_use]
    pub fn from_bytes(bytes: &[u8], count_max: usize) -> Self {
        let mut source = Source::bytes(bytes);
        let mix = Mix::default();
        Self(std::iter::from_fn(|| Op::draw(&mut source, &mix)).take(count_max).collect())
    }
}

impl Op {
    /// Draws one operation; `None` when the source ends.
    pub fn draw(source: &mut Source<'_>, mix: &Mix) -> Option<Self> {
        let slot = SlotIndex(source.below(SLOT_COUNT)?);
        type Family = fn(SlotIndex, &Mix, &mut Source<'_>) -> Option<Op>;
        let families: [(u8, Family); 9] = [
            (mix.changes, draw_change),
            (mix.reads, draw_read),
            (mix.ends, draw_end),
            (mix.savepoints, draw_savepoint),
            (mix.large, draw_large),
            (mix.snapshots, draw_snapshot),
            (mix.upkeep, draw_upkeep),
            (mix.pieces, draw_piece),
            (mix.kept, draw_kept),
        ];
        let total: u32 = families.iter().map(|(weight, _)| u32::from(*weight)).sum();
        let mut point = (u32::from(source.byte()?) * total) >> 8;
        for (weight, family) in families {
            if point < u32::from(weight) {
                return family(slot, mix, source);
            }
            point -= u32::from(weight);
        }
        draw_change(slot, mix, source)
    }
}

fn draw_table(source: &mut Source<'_>) -> Option<TableIndex> {
    source.below(TABLE_COUNT).map(TableIndex)
}

fn draw_key(mix: &Mix, source: &mut Source<'_>) -> Option<KeyIndex> {
    let byte = source.byte()?;
    let (point, width, count) = match byte.checked_sub(mix.hot) {
        None => (byte, u16::from(mix.hot), HOT_KEY_COUNT),
        Some(rest) => (rest, 256 - u16::from(mix.hot), KEY_COUNT),
    };
    Some(KeyIndex((u16::from(point) * u16::from(count) / width) as u8))
}

fn draw_part(source: &mut Source<'_>) -> Option<Part> {
    Some(Part { offset: source.byte()?, size: source.byte()? })
}

fn draw_change(slot: SlotIndex, mix: &Mix, source: &mut Source<'_>) -> Option<Op> {
    let kind = source.below(8)?;
    let (table, key) = (draw_table(source)?, draw_key(mix, source)?);
    let is_small = mix.small > 0 && kind < 6 && source.byte()? < mix.small;
    Some(match kind {
        _ if is_small => Op::Patch(slot, table, key, Part { offset: source.byte()?, size: 8 }),
        0..4 => Op::Put(slot, table, key, Size(source.byte()?)),
        4..6 => Op::Patch(slot, table, key, draw_part(source)?),
        _ => Op::Delete(slot, table, key),
    })
}

fn draw_read(slot: SlotIndex, mix: &Mix, source: &mut Source<'_>) -> Option<Op> {
    let kind = source.below(5)?;
    let (table, key) = (draw_table(source)?, draw_key(mix, source)?);
    Some(match kind {
        0..2 => Op::Get(slot, table, key),
        2 => Op::GetPart(slot, table, key, draw_part(source)?),
        3 => Op::Scan(slot, table, key, draw_key(mix, source)?, Direction::Forward),
        _ => Op::Scan(slot, table, key, draw_key(mix, source)?, Direction::Backward),
    })
}

fn draw_end(slot: SlotIndex, mix: &Mix, source: &mut Source<'_>) -> Option<Op> {
    if source.below(6)? == 0 {
        return Some(Op::Abort(slot));
    }
    let deferred = source.byte()? < mix.deferred;
    let durability = if deferred { Durability::Deferred } else { Durability::Immediate };
    Some(Op::Commit(slot, durability))
}

fn draw_savepoint(slot: SlotIndex, _: &Mix, source: &mut Source<'_>) -> Option<Op> {
    let kind = source.below(2)?;
    Some(if kind == 0 { Op::Savepoint(slot) } else { Op::RollbackTo(slot, source.byte()?) })
}

fn draw_large(slot: SlotIndex, mix: &Mix, source: &mut Source<'_>) -> Option<Op> {
    let kind = source.below(4)?;
    let (table, key, size) = (draw_table(source)?, draw_key(mix, source)?, Size(source.byte()?));
    Some(match kind {
        0 => Op::Fill(slot, table, size),
        _ => Op::PutLarge(slot, table, key, size),
    })
}

fn draw_snapshot(slot: SlotIndex, mix: &Mix, source: &mut Source<'_>) -> Option<Op> {
    Some(match source.below(8)? {
        0..2 => Op::SnapshotOpen(slot),
        2..4 => Op::SnapshotScan(slot, draw_table(source)?, Direction::Forward),
        4 => Op::SnapshotScan(slot, draw_table(source)?, Direction::Backward),
        5..7 => Op::SnapshotGet(slot, draw_table(source)?, draw_key(mix, source)?),
        _ => Op::SnapshotClose(slot),
    })
}

fn draw_upkeep(_: SlotIndex, _: &Mix, source: &mut Source<'_>) -> Option<Op> {
    Some(match source.below(8)? {
        0..3 => Op::Checkpoint,
        3..6 => Op::Collect,
        6 => Op::Reopen,
        _ => Op::PowerLoss,
    })
}

fn draw_piece(_: SlotIndex, _: &Mix, source: &mut Source<'_>) -> Option<Op> {
    Some(match source.below(2)? {
        0 => Op::CheckpointBegin,
        _ => Op::Work(1 + source.below(WORK_MAX)?),
    })
}

fn draw_kept(_: SlotIndex, _: &Mix, source: &mut Source<'_>) -> Option<Op> {
    Some(match source.below(5)? {
        0..3 => Op::Keep,
        _ => Op::DropKept(source.byte()?),
    })
}

/// Spells a key out: eight bytes, a short text of varying length, or a long text.
#[must_use]
pub fn key_bytes(table: TableIndex, key: KeyIndex) -> Vec<u8> {
    let number = key.0;
    match table.0 {
        0 => u64::from(number).to_be_bytes().to_vec(),
        1 => format!("row/{}{}", number, "-".repeat(usize::from(number % 5))).into_bytes(),
        _ => format!("{}/{number:03}", "shelf".repeat(4)).into_bytes(),
    }
}

/// A value of `size` bytes that no other `tag` gives: it changes along its length, so that a mixed
/// or shifted value is seen.
#[must_use]
pub fn value_bytes(tag: u64, size: usize) -> Vec<u8> {
    let mut generator = Pcg64Mcg::seed_from_u64(tag);
    let mut value = vec![0; size];
    generator.fill_bytes(&mut value);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_scripts() {
        let mix = Mix::default();
        assert_eq!(Script::seeded(7, 200, &mix), Script::seeded(7, 200, &mix));
        assert_ne!(Script::seeded(7, 200, &mix), Script::seeded(8, 200, &mix));
        assert_eq!(Script::seeded(7, 200, &mix).0.len(), 200);
    }

    #[test]
    fn any_bytes_give_a_script() {
        for length in 0..64 {
            let bytes = value_bytes(length as u64, length);
            assert!(Script::from_bytes(&bytes, 10).0.len() <= 10);
        }
    }

    #[test]
    fn keys_of_a_table_differ() {
        for table in (0..TABLE_COUNT).map(TableIndex) {
            let keys: std::collections::BTreeSet<_> =
                (0..KEY_COUNT).map(|key| key_bytes(table, KeyIndex(key))).collect();
            assert_eq!(keys.len(), usize::from(KEY_COUNT));
        }
    }
}
