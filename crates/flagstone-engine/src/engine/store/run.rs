//! Changes of transactions larger than memory: sorted pages written under the transaction's group.
//!
//! While the transaction runs, its own reads look into these pages. Its commit record names them, and
//! from then on they are deltas that happen to lie on flash: an operation that needs a key range loads
//! the parts that overlap it into the tree's deltas, and background work loads the rest. When all parts
//! are loaded and a checkpoint has covered them, the pages are trimmed. A part is some pages named by
//! their first key alone: names take a thousandth of the pages' bytes.
//!
//! ```text
//! page:   'R' | 1 | count u16 | entry ...
//! entry:  key size varint | key (tree id u32 BE, key) | change number varint | op size varint | op
//! ```
//!
//! Invariants:
//! - **R1** A base claims completeness beyond a run's commit only after every part of the run that
//!   overlaps the base was loaded (rule D2). Where these parts are large, a merge takes the keys below
//!   the first part that is not loaded, and leaves the rest of its leaf to later merges.
//! - **R2** Versions of a key on both sides of a run that is not loaded are never folded: the run's
//!   own change comes between them.
//! - **R3** A run stays in the master record until a checkpoint that began after it was loaded.
//! - **R4** A base that restart finds may already hold changes of a run that is loaded only later, and
//!   commits after that run: the run's change, older than the base, is not folded into a newer one. A
//!   checkpoint copies such a change, so its master record names the run, without pages, while any such
//!   change is unmerged.
//! - **R5** The versions of a key that savepoints kept apart come under one LSN, folded: they lie in one
//!   part, and a part becomes deltas as a whole, once all its pages are read.
//! - **R6** A session that only reads lets go of parts again, when others are read and memory is short:
//!   their changes are folded with nothing, older or newer, so loading them again gives the same
//!   changes. Where a checkpoint has copied changes of a run, and the session that wrote that
//!   checkpoint may have folded them with older changes, the run stays.

use flagstone_space::{GroupId, LogicalPage};

use crate::delta::{DeltaMap, KeyRange, Op, take_varint};
use crate::engine::store::run::build::BuiltPages;
use crate::engine::store::spans::PageSpans;
use crate::error::EngineError;

pub(in crate::engine) mod build;
pub(in crate::engine) mod committed;
pub(in crate::engine) mod load;
pub(in crate::engine) mod names;
pub(in crate::engine) mod record;

pub(in crate::engine) const RUN_MAGIC: u8 = b'R';

const RUN_VERSION: u8 = 1;

const RUN_HEADER_SIZE: usize = 4;

/// Sorted pages of changes, in key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) group: GroupId,
    pub(crate) parts: Vec<RunPart>,
    /// Last private key of the run.
    pub(crate) last: Vec<u8>,
}

/// Pages of a run that are loaded together. No key has changes in two parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunPart {
    /// First private key, or the prefix that tells it from the keys before.
    pub(crate) first: Vec<u8>,
    pub(crate) pages: PageSpans,
}

impl Run {
    pub(crate) fn pages(&self) -> impl Iterator<Item = LogicalPage> + '_ {
        self.parts.iter().flat_map(|part| part.pages.iter())
    }

    pub(crate) fn page_count(&self) -> usize {
        self.parts.iter().map(|part| part.pages.len()).sum()
    }

    /// A run of these pages under these numbers, in order.
    pub(in crate::engine) fn of(
        group: GroupId,
        built: &BuiltPages,
        numbers: impl IntoIterator<Item = LogicalPage>,
        part_pages: usize,
    ) -> Self {
        let mut parts: Vec<RunPart> = Vec::new();
        for (built, page) in built.pages.iter().zip(numbers) {
            match parts.last_mut() {
                Some(part) if built.goes_on || part.pages.len() < part_pages => {
                    part.pages.push(page);
                }
                _ => {
                    let (first, pages) = (built.first.clone(), PageSpans::from_iter([page]));
                    parts.push(RunPart { first, pages });
                }
            }
        }
        Self { group, parts, last: built.last.clone() }
    }

    /// The parts that may hold private keys from `low` on, up to `high` (exclusive) if there is one.
    pub(in crate::engine) fn parts_in(&self, range: KeyRange<'_>) -> std::ops::Range<usize> {
        if self.last.as_slice() < range.low {
            return 0..0;
        }
        let above = self.parts.partition_point(|part| part.first.as_slice() <= range.low);
        let below = |high: &[u8]| self.parts.partition_point(|part| part.first.as_slice() < high);
        let first = above.saturating_sub(1);
        first..range.high.map_or(self.parts.len(), below).max(first)
    }
}

/// Whether no key has two versions.
pub(crate) fn keys_are_unique(map: &DeltaMap) -> bool {
    map.range(KeyRange::ALL).all(|entry| entry.versions().count() == 1)
}

pub(in crate::engine) fn fault(page: LogicalPage) -> EngineError {
    EngineError::Corrupt { page, check: "page of spilled changes" }
}

/// One entry of a run page.
pub(crate) struct RunEntry<'a> {
    /// The private key.
    pub(crate) key: &'a [u8],
    pub(crate) number: u64,
    pub(crate) op: Op<'a>,
}

/// Entries of a run page, in order; stops at the first fault.
pub(crate) fn entries(image: &[u8]) -> Option<impl Iterator<Item = Option<RunEntry<'_>>>> {
    let (header, mut rest) = image.split_first_chunk::<RUN_HEADER_SIZE>()?;
    if header[0] != RUN_MAGIC || header[1] != RUN_VERSION {
        return None;
    }
    let count = u16::from_le_bytes([header[2], header[3]]);
    Some((0..count).map(move |_| {
        let (key, after) = take_bytes(rest)?;
        let (number, after) = take_varint(after)?;
        let (op, after) = take_bytes(after)?;
        rest = after;
        Some(RunEntry { key, number: u64::from(number), op: Op::decode(op).ok()? })
    }))
}

fn take_bytes(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (size, rest) = take_varint(bytes)?;
    rest.split_at_checked(size as usize)
}

pub(crate) fn is_rolled_back(ranges: &[(u64, u64)], number: u64) -> bool {
    ranges.iter().any(|(above, upto)| number > *above && number <= *upto)
}
