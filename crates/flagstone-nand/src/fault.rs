//! Faults and their moments: seeded plans that devices carry out.
//!
//! Owns the catalogue of faults, the numbering of operations and the switch that a power cut
//! throws. Never touches cells: a device asks for the fate of an operation, then carries it out.
//!
//! - **X1** Programs, erases, bad-block marks and syncs are numbered from 0 over the life of the
//!   device, whether they succeed or not; a call that breaks a rule of flash has no number.
//! - **X2** After a cut nothing works until the power is cycled.
//! - **X3** A plan with the same seed does the same to the same operations.

use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::{BlockIndex, Capabilities, CellMode, Nand, PartialCut, PhysicalPage};

/// A numbered operation, with the facts that decide how it may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// Program of a page or a part of it.
    Program {
        /// Code words in the part.
        code_words: u8,
        /// Whether spare bytes were in the part.
        spare: bool,
        /// Whether the page had been programmed before.
        again: bool,
        /// Whether an LSB page programmed earlier shares its cells.
        paired: bool,
    },
    /// Erase of a block.
    Erase,
    /// Bad-block mark.
    MarkBad,
    /// Sync.
    Sync,
}

/// How the operation in flight ends when the power goes.
///
/// Each ending has a name ([`fmt::Display`], [`FromStr`]) under which a failure is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ending {
    /// Nothing happened.
    Untouched,
    /// Everything happened; only the answer was lost.
    Complete,
    /// The first `units` code words are programmed and the rest reads as before; the spare bytes
    /// count as one unit after the last code word.
    Torn {
        /// Units that made it, from 1.
        units: u8,
    },
    /// The spare bytes are programmed, the data is not.
    SpareOnly,
    /// Some of the bits that had to fall did. By seed each code word reads as garbage, as if ECC
    /// had not noticed, or is uncorrectable.
    RandomBits,
    /// The part reads as before for a few reads, then its code words become uncorrectable and its
    /// spare bytes settle on a mixture.
    LooksUntouched,
    /// The part reads as programmed for a few reads, then as for `LooksUntouched`.
    LooksComplete,
    /// As `RandomBits`, and the paired LSB page, programmed earlier, is uncorrectable.
    PairLost,
    /// As `RandomBits`, and all other code words of the page are uncorrectable
    /// ([`PartialCut::PageAtRisk`]).
    PageLost,
    /// Erase: by seed each page keeps its bytes, reads as erased or holds garbage.
    PartlyErased,
    /// Erase: all pages read as erased for a few reads, then become uncorrectable.
    LooksErased,
    /// Bad-block mark: the block was erased for it, but not marked.
    EraseWithoutMark,
    /// File: every write since the last sync is lost.
    UnsyncedLost,
    /// File: a subset of the writes since the last sync survives, torn at 512 bytes.
    UnsyncedSubset512 {
        /// Which subset: drawn from the plan's seed and this number.
        draw: u8,
    },
    /// File: a subset of the writes since the last sync survives, torn at 4096 bytes.
    UnsyncedSubset4096 {
        /// Which subset: drawn from the plan's seed and this number.
        draw: u8,
    },
}

/// Subsets drawn for each file operation and each tear size.
const SUBSET_DRAWS: u8 = 4;

impl Ending {
    /// All endings that an operation of `kind` may have on a device with `capabilities`, in a
    /// fixed order.
    #[must_use]
    pub fn applicable(kind: OperationKind, capabilities: &Capabilities) -> Vec<Self> {
        if capabilities.needs_sync {
            return Self::on_files(kind);
        }
        let mut endings = alloc::vec![Self::Untouched, Self::Complete];
        if capabilities.cell_mode == CellMode::Translated {
            // Commands are atomic; a sync that is cut has nothing left to lose.
            endings.truncate(if kind == OperationKind::Sync { 1 } else { 2 });
            return endings;
        }
        match kind {
            OperationKind::Program { code_words, spare, again, paired } => {
                let units = code_words + u8::from(spare);
                endings.extend((1..units).map(|units| Self::Torn { units }));
                if spare && code_words > 0 {
                    endings.push(Self::SpareOnly);
                }
                endings.extend([Self::RandomBits, Self::LooksUntouched, Self::LooksComplete]);
                if paired {
                    endings.push(Self::PairLost);
                }
                if again && capabilities.partial_cut == PartialCut::PageAtRisk {
                    endings.push(Self::PageLost);
                }
            }
            OperationKind::Erase => endings.extend([Self::PartlyErased, Self::LooksErased]),
            OperationKind::MarkBad => endings.push(Self::EraseWithoutMark),
            OperationKind::Sync => endings.truncate(1),
        }
        endings
    }

    fn on_files(kind: OperationKind) -> Vec<Self> {
        let mut endings = alloc::vec![Self::Complete, Self::UnsyncedLost];
        if kind != OperationKind::Sync {
            // The write in flight is lost, earlier writes are not. A sync has no write of its own.
            endings.push(Self::Untouched);
        }
        endings.extend((0..SUBSET_DRAWS).map(|draw| Self::UnsyncedSubset512 { draw }));
        endings.extend((0..SUBSET_DRAWS).map(|draw| Self::UnsyncedSubset4096 { draw }));
        endings
    }
}

/// Endings that carry no number, with their names.
const PLAIN_NAMES: &[(Ending, &str)] = &[
    (Ending::Untouched, "untouched"),
    (Ending::Complete, "complete"),
    (Ending::SpareOnly, "spare-only"),
    (Ending::RandomBits, "random-bits"),
    (Ending::LooksUntouched, "looks-untouched"),
    (Ending::LooksComplete, "looks-complete"),
    (Ending::PairLost, "pair-lost"),
    (Ending::PageLost, "page-lost"),
    (Ending::PartlyErased, "partly-erased"),
    (Ending::LooksErased, "looks-erased"),
    (Ending::EraseWithoutMark, "erase-without-mark"),
    (Ending::UnsyncedLost, "unsynced-lost"),
];

impl Ending {
    /// Names of all endings; `N` is a number.
    pub fn names() -> impl Iterator<Item = &'static str> {
        let numbered = ["torn-N", "subset512-N", "subset4096-N"];
        PLAIN_NAMES.iter().map(|(_, name)| *name).chain(numbered)
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((_, name)) = PLAIN_NAMES.iter().find(|(ending, _)| ending == self) {
            return formatter.write_str(name);
        }
        match self {
            Self::Torn { units } => write!(formatter, "torn-{units}"),
            Self::UnsyncedSubset512 { draw } => write!(formatter, "subset512-{draw}"),
            Self::UnsyncedSubset4096 { draw } => write!(formatter, "subset4096-{draw}"),
            _ => formatter.write_str("unnamed"),
        }
    }
}

/// A name that is no ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no ending has this name")]
pub struct UnknownEnding;

impl FromStr for Ending {
    type Err = UnknownEnding;

    fn from_str(text: &str) -> Result<Self, UnknownEnding> {
        if let Some((ending, _)) = PLAIN_NAMES.iter().find(|(_, name)| *name == text) {
            return Ok(*ending);
        }
        let (name, number) = text.rsplit_once('-').ok_or(UnknownEnding)?;
        let number: u8 = number.parse().map_err(|_| UnknownEnding)?;
        match name {
            "torn" => Ok(Self::Torn { units: number }),
            "subset512" => Ok(Self::UnsyncedSubset512 { draw: number }),
            "subset4096" => Ok(Self::UnsyncedSubset4096 { draw: number }),
            _ => Err(UnknownEnding),
        }
    }
}

/// A power cut: at which numbered operation, and how that one ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerCut {
    /// Number of the operation in flight.
    pub operation: u64,
    /// How it ends.
    pub ending: Ending,
}

/// Whether an injected fault passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// The fault happens once.
    Once,
    /// Once it happened, the same address fails for ever.
    ForEver,
}

/// A program, erase or sync that the device reports as failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Number of the operation that fails first.
    pub operation: u64,
    /// Whether the block (or the device, for a sync) goes on failing.
    pub persistence: Persistence,
}

/// Fate of the unsynced writes of a file whose sync fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncFailure {
    /// The pages are marked clean and dropped: reads show the old bytes (ext4, XFS after a while).
    #[default]
    Dropped,
    /// The pages stay in the cache and read as written, but are never stored.
    Kept,
}

/// A lasting fault of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockFault {
    /// Programs report failure.
    ProgramFails,
    /// Erases report failure.
    EraseFails,
    /// Reads are uncorrectable.
    ReadFails,
    /// Programs report success and do nothing.
    ProgramIgnored,
    /// Erases report success and do nothing.
    EraseIgnored,
}

/// A fault of a page when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFault {
    /// The next read is uncorrectable, later ones are not.
    UncorrectableOnce,
    /// Every read is uncorrectable.
    Uncorrectable,
    /// Reads return another page's content.
    Misdirected {
        /// Page whose content is returned.
        instead: PhysicalPage,
    },
}

/// Whether blocks die of wear.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WearOut {
    /// Blocks last for ever.
    #[default]
    Never,
    /// A block's erases fail from a count on that is drawn once for each block: from the rated
    /// endurance to an eighth above it.
    AtEndurance,
}

/// Everything that goes wrong on a device. The default is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Seed of all draws.
    pub seed: u64,
    /// The next power cut.
    pub cut: Option<PowerCut>,
    /// Operations that report failure.
    pub failures: Vec<Failure>,
    /// Blocks that misbehave from now on.
    pub block_faults: Vec<(BlockIndex, BlockFault)>,
    /// Pages that read wrongly.
    pub read_faults: Vec<(PhysicalPage, ReadFault)>,
    /// Wear.
    pub wear: WearOut,
    /// Effect of a failed sync on a file.
    pub sync_failure: SyncFailure,
}

impl FaultPlan {
    /// A plan with one power cut and no other fault.
    #[must_use]
    pub fn power_cut(seed: u64, operation: u64, ending: Ending) -> Self {
        Self { seed, cut: Some(PowerCut { operation, ending }), ..Self::default() }
    }

    /// A plan with one failing operation and no other fault.
    #[must_use]
    pub fn failure(seed: u64, operation: u64, persistence: Persistence) -> Self {
        let failures = alloc::vec![Failure { operation, persistence }];
        Self { seed, failures, ..Self::default() }
    }
}

/// A device that a crash explorer can drive: numbered operations, cuts, cheap snapshots.
///
/// `Clone` takes a snapshot of everything: contents, clock, counters, plan.
pub trait Crashable: Nand + Clone {
    /// Replaces the plan. Operation numbers go on counting (X1).
    fn set_plan(&mut self, plan: FaultPlan);

    /// Numbered operations so far: the number of the next one.
    fn operation_count(&self) -> u64;

    /// Starts to keep the kind of every operation.
    fn record_operations(&mut self);

    /// Kind of operation `number`, if it was recorded.
    fn operation_kind(&self, number: u64) -> Option<OperationKind>;

    /// Whether a cut took the power away.
    fn is_off(&self) -> bool;

    /// Restores the power: the content of the cells stays, the cut of the plan is spent.
    fn power_cycle(&mut self);

    /// Hash of everything stored: equal runs end with equal hashes.
    fn state_hash(&self) -> u64;

    /// Running hash of all operations: equal runs have equal hashes (T6).
    fn trace_hash(&self) -> u64;

    /// All endings of operation `number`, if it was recorded.
    fn endings_at(&self, number: u64) -> Vec<Ending> {
        let kind = self.operation_kind(number);
        kind.map_or_else(Vec::new, |kind| Ending::applicable(kind, &self.capabilities()))
    }
}

/// Fate of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The operation works.
    Works,
    /// The operation reports failure.
    Fails,
    /// The operation reports success and does nothing.
    Ignored,
    /// The power goes while it runs.
    Cut(Ending),
}

/// A device's plan under way: the next number, and whether there is power.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    plan: FaultPlan,
    next: u64,
    off: bool,
    recorded: Option<(u64, Vec<OperationKind>)>,
    /// Blocks that fail for ever because an operation on them did.
    failed_blocks: Vec<BlockIndex>,
    sync_failed: bool,
    /// Whether any operation needs a closer look: one test on the fast path.
    armed: bool,
}

impl Faults {
    pub(crate) fn set_plan(&mut self, plan: FaultPlan) {
        self.plan = plan;
        self.arm();
    }

    fn arm(&mut self) {
        self.armed = self.recorded.is_some()
            || self.sync_failed
            || self.plan.cut.is_some()
            || !self.plan.failures.is_empty()
            || !self.plan.block_faults.is_empty()
            || !self.failed_blocks.is_empty();
    }

    pub(crate) const fn plan(&self) -> &FaultPlan {
        &self.plan
    }

    pub(crate) const fn count(&self) -> u64 {
        self.next
    }

    pub(crate) const fn is_off(&self) -> bool {
        self.off
    }

    pub(crate) fn record(&mut self) {
        self.recorded = Some((self.next, Vec::new()));
        self.arm();
    }

    pub(crate) fn kind(&self, number: u64) -> Option<OperationKind> {
        let (first, kinds) = self.recorded.as_ref()?;
        let index = usize::try_from(number.checked_sub(*first)?).ok()?;
        kinds.get(index).copied()
    }

    /// Restores the power. A cut that happened does not happen again; one still ahead stays.
    pub(crate) fn power_cycle(&mut self) {
        let is_spent = |cut: &PowerCut| cut.operation < self.next;
        if self.plan.cut.as_ref().is_some_and(is_spent) {
            self.plan.cut = None;
        }
        self.off = false;
        self.sync_failed = false;
        self.arm();
    }

    /// Seed of the draws for the operation just numbered.
    pub(crate) const fn seed(&self) -> u64 {
        self.plan.seed ^ self.next.wrapping_mul(0x9E37_79B9)
    }

    /// Numbers an operation and decides its fate.
    #[inline]
    pub(crate) fn next(&mut self, kind: OperationKind, block: Option<BlockIndex>) -> Verdict {
        let number = self.next;
        self.next += 1;
        if !self.armed {
            return Verdict::Works;
        }
        if let Some((_, kinds)) = &mut self.recorded {
            kinds.push(kind);
        }
        if let Some(cut) = self.plan.cut.filter(|cut| cut.operation == number) {
            self.off = true;
            return Verdict::Cut(cut.ending);
        }
        if self.fails(number, kind, block) {
            return Verdict::Fails;
        }
        block.map_or(Verdict::Works, |block| self.block_verdict(kind, block))
    }

    fn fails(&mut self, number: u64, kind: OperationKind, block: Option<BlockIndex>) -> bool {
        if kind == OperationKind::MarkBad {
            return false;
        }
        let lasting = match block {
            Some(block) => self.failed_blocks.contains(&block),
            None => self.sync_failed,
        };
        let failure = self.plan.failures.iter().find(|failure| failure.operation == number);
        if failure.is_some_and(|failure| failure.persistence == Persistence::ForEver) {
            match block {
                Some(block) => self.failed_blocks.push(block),
                None => self.sync_failed = true,
            }
        }
        lasting || failure.is_some()
    }

    fn block_verdict(&self, kind: OperationKind, block: BlockIndex) -> Verdict {
        let faults = self.plan.block_faults.iter().filter(|(faulty, _)| *faulty == block);
        let mut verdicts = faults.map(|(_, fault)| match (kind, fault) {
            (OperationKind::Program { .. }, BlockFault::ProgramFails)
            | (OperationKind::Erase, BlockFault::EraseFails) => Verdict::Fails,
            (OperationKind::Program { .. }, BlockFault::ProgramIgnored)
            | (OperationKind::Erase, BlockFault::EraseIgnored) => Verdict::Ignored,
            _ => Verdict::Works,
        });
        verdicts.find(|verdict| *verdict != Verdict::Works).unwrap_or(Verdict::Works)
    }

    /// Whether reads of `block` fail.
    pub(crate) fn reads_fail(&self, block: BlockIndex) -> bool {
        self.plan.block_faults.contains(&(block, BlockFault::ReadFails))
    }

    /// The fault of a read of `page`; a fault that happens once is spent by asking.
    pub(crate) fn read_fault(&mut self, page: PhysicalPage) -> Option<ReadFault> {
        let index = self.plan.read_faults.iter().position(|(faulty, _)| *faulty == page)?;
        let (_, fault) = *self.plan.read_faults.get(index)?;
        if fault == ReadFault::UncorrectableOnce {
            self.plan.read_faults.swap_remove(index);
        }
        Some(fault)
    }

    /// Whether reads need a closer look.
    pub(crate) const fn reads_armed(&self) -> bool {
        !self.plan.read_faults.is_empty() || !self.plan.block_faults.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ending_has_a_name_that_reads_back() {
        let numbered = [
            Ending::Torn { units: 3 },
            Ending::UnsyncedSubset512 { draw: 2 },
            Ending::UnsyncedSubset4096 { draw: 0 },
        ];
        let plain = PLAIN_NAMES.iter().map(|(ending, _)| *ending);
        for ending in plain.chain(numbered) {
            let name = alloc::format!("{ending}");
            assert_eq!(name.parse(), Ok(ending), "{name}");
        }
        assert_eq!("torn".parse::<Ending>(), Err(UnknownEnding));
        assert_eq!("torn-999".parse::<Ending>(), Err(UnknownEnding));
    }

    #[test]
    fn numbers_count_on_and_a_spent_cut_stays_spent() {
        let mut faults = Faults::default();
        assert_eq!(faults.next(OperationKind::Erase, None), Verdict::Works);
        faults.set_plan(FaultPlan::power_cut(1, 2, Ending::Complete));
        assert_eq!(faults.next(OperationKind::Sync, None), Verdict::Works);
        assert_eq!(faults.next(OperationKind::Sync, None), Verdict::Cut(Ending::Complete));
        assert!(faults.is_off(), "the cut left the power on");
        faults.power_cycle();
        assert_eq!(faults.next(OperationKind::Sync, None), Verdict::Works);
        assert_eq!(faults.count(), 4);
    }

    #[test]
    fn a_failure_for_ever_takes_its_block_along() {
        let block = Some(BlockIndex(3));
        let mut faults = Faults::default();
        faults.set_plan(FaultPlan::failure(1, 0, Persistence::ForEver));
        assert_eq!(faults.next(OperationKind::Erase, block), Verdict::Fails);
        assert_eq!(faults.next(OperationKind::Erase, block), Verdict::Fails);
        assert_eq!(faults.next(OperationKind::Erase, Some(BlockIndex(4))), Verdict::Works);
        faults.set_plan(FaultPlan::failure(1, 3, Persistence::Once));
        assert_eq!(faults.next(OperationKind::Erase, Some(BlockIndex(5))), Verdict::Fails);
        assert_eq!(faults.next(OperationKind::Erase, Some(BlockIndex(5))), Verdict::Works);
    }
}
