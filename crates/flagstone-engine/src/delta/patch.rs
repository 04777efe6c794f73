//! Byte runs inside a value: the form of a partial change.
//!
//! A patch states the value's absolute size and the bytes it sets. Bytes between the runs stay,
//! growth is filled with zeros. A patch is packed (see `op`), so a run costs two or three bytes
//! more than its content.

use super::op::{VALUE_SIZE_MAX, put_varint, size_of_slice, take_varint};

/// Most equal bytes between two changed ones that are cheaper to repeat than to begin a new run
/// for.
const JOIN_GAP_MAX: usize = 2;

/// A set of byte runs with the size of the value they leave behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patch<'a> {
    value_size: u32,
    runs: &'a [u8],
}

/// Bytes of a value from `offset` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run<'a> {
    /// Offset of the run in the value.
    pub(crate) offset: u32,
    /// New bytes of the run.
    pub(crate) bytes: &'a [u8],
}

/// Violation of the rule for runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum PatchFault {
    /// A run ends past the size of the value.
    #[error("run of a patch lies outside its value of {value_size} bytes")]
    Outside {
        /// Size of the value the patch leaves behind.
        value_size: u32,
    },
    /// The packed runs are cut short, or a run is empty.
    #[error("packed runs of a patch are malformed")]
    Malformed,
    /// The value would be larger than any value may be.
    #[error("patch describes a value of {value_size} bytes")]
    TooLarge {
        /// Size claimed.
        value_size: u32,
    },
}

impl<'a> Run<'a> {
    fn end(&self) -> u32 {
        self.offset + size_of_slice(self.bytes)
    }

    /// The part before `offset` and the part from it on; either may be empty.
    fn split(self, offset: u32) -> (Self, Self) {
        let cut = (offset.saturating_sub(self.offset) as usize).min(self.bytes.len());
        let (left, right) = self.bytes.split_at(cut);
        (Run { bytes: left, ..self }, Run { offset: self.offset + cut as u32, bytes: right })
    }
}

impl<'a> Patch<'a> {
    /// Takes well-packed runs, unchecked.
    pub(super) fn from_packed(value_size: u32, runs: &'a [u8]) -> Self {
        Self { value_size, runs }
    }

    /// Size of the value after the patch.
    pub(crate) fn value_size(&self) -> u32 {
        self.value_size
    }

    /// The runs in their packed form.
    pub(super) fn packed_runs(&self) -> &'a [u8] {
        self.runs
    }

    /// The runs in ascending order.
    pub(crate) fn runs(&self) -> Runs<'a> {
        Runs { rest: self.runs, end: 0 }
    }

    /// Whether every run is whole and inside the value (O1).
    pub(super) fn check(&self) -> Result<(), PatchFault> {
        if self.value_size > VALUE_SIZE_MAX {
            return Err(PatchFault::TooLarge { value_size: self.value_size });
        }
        let mut runs = self.runs();
        while !runs.rest.is_empty() {
            let run = runs.next().ok_or(PatchFault::Malformed)?;
            if run.end() > self.value_size {
                return Err(PatchFault::Outside { value_size: self.value_size });
            }
        }
        Ok(())
    }

    /// Gives `value` its new size, then sets the runs.
    pub(crate) fn apply(&self, value: &mut Vec<u8>) {
        value.resize(self.value_size as usize, 0);
        self.apply_in_place(value);
    }

    /// Sets the runs in a value that already has its new size.
    pub(crate) fn apply_in_place(&self, value: &mut [u8]) {
        debug_assert_eq!(value.len(), self.value_size as usize, "the patch states the size");
        for run in self.runs() {
            let start = run.offset as usize;
            if let Some(target) = value.get_mut(start..start + run.bytes.len()) {
                target.copy_from_slice(run.bytes);
            }
        }
    }

    /// Whether both patches set the same bytes of a value of the same size, to any content.
    fn has_shape_of(&self, other: &Patch<'_>) -> bool {
        self.value_size == other.value_size
            && self.runs.len() == other.runs.len()
            && self
                .runs()
                .map(|run| (run.offset, run.bytes.len()))
                .eq(other.runs().map(|run| (run.offset, run.bytes.len())))
    }
}

/// Iterator over the runs of a patch.
#[derive(Clone, Debug)]
pub(crate) struct Runs<'a> {
    rest: &'a [u8],
    end: u32,
}

impl<'a> Iterator for Runs<'a> {
    type Item = Run<'a>;

    #[inline]
    fn next(&mut self) -> Option<Run<'a>> {
        let (gap, rest) = take_varint(self.rest)?;
        let (size, rest) = take_varint(rest)?;
        let (bytes, rest) = rest.split_at_checked(size as usize)?;
        let offset = self.end.checked_add(gap)?;
        let end = offset.checked_add(size)?;
        if size == 0 {
            return None;
        }
        (self.rest, self.end) = (rest, end);
        Some(Run { offset, bytes })
    }
}

/// A patch that owns its runs; grows run by run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PatchBuf {
    value_size: u32,
    runs: Vec<u8>,
}

impl PatchBuf {
    /// A patch that only sets the size of the value.
    ///
    /// # Errors
    ///
    /// `TooLarge` when no value may have that size.
    pub(crate) fn new(value_size: u32) -> Result<Self, PatchFault> {
        if value_size > VALUE_SIZE_MAX {
            return Err(PatchFault::TooLarge { value_size });
        }
        Ok(Self { value_size, runs: Vec::new() })
    }

    /// A patch with one run.
    ///
    /// # Errors
    ///
    /// `Outside` when the run ends past `value_size`.
    pub(crate) fn of_run(value_size: u32, offset: u32, bytes: &[u8]) -> Result<Self, PatchFault> {
        let mut patch = Self::new(value_size)?;
        patch.set(offset, bytes)?;
        Ok(patch)
    }

    /// Adds a run; where it overlaps earlier runs, the new bytes win.
    ///
    /// # Errors
    ///
    /// `Outside` when the run ends past the value; the patch is unchanged then.
    pub(crate) fn set(&mut self, offset: u32, bytes: &[u8]) -> Result<(), PatchFault> {
        let size = u32::try_from(bytes.len()).ok();
        let end = size.and_then(|size| offset.checked_add(size));
        if end.is_none_or(|end| end > self.value_size) {
            return Err(PatchFault::Outside { value_size: self.value_size });
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let segments = overlay(self.as_patch().runs(), [Run { offset, bytes }].into_iter());
        let mut packed = Vec::new();
        pack_runs(&segments, &mut packed);
        self.runs = packed;
        Ok(())
    }

    /// The patch that turns `old` into `new`.
    ///
    /// # Errors
    ///
    /// `TooLarge` when `new` is larger than any value may be.
    pub(crate) fn between(old: &[u8], new: &[u8]) -> Result<Self, PatchFault> {
        let value_size = u32::try_from(new.len()).unwrap_or(u32::MAX);
        let mut patch = Self::new(value_size)?;
        pack_runs(&changed_runs(old, new), &mut patch.runs);
        Ok(patch)
    }

    /// Borrows the buffer as a patch.
    pub(crate) fn as_patch(&self) -> Patch<'_> {
        Patch { value_size: self.value_size, runs: &self.runs }
    }
}

/// The runs in which `new` differs from `old`. Bytes past the end of `old` count as different, so
/// that the patch stays true when it is applied to a longer value (O2).
fn changed_runs<'a>(old: &[u8], new: &'a [u8]) -> Vec<Run<'a>> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for index in (0..new.len()).filter(|index| old.get(*index) != new.get(*index)) {
        match runs.last_mut() {
            Some((_, end)) if index - *end <= JOIN_GAP_MAX => *end = index + 1,
            _ => runs.push((index, index + 1)),
        }
    }
    runs.into_iter()
        .map(|(start, end)| Run { offset: start as u32, bytes: &new[start..end] })
        .collect()
}

/// Result of folding two patches of one value.
pub(super) enum PatchFold {
    /// The newer patch alone says everything.
    Newer,
    /// The union of both, with the size of the newer.
    Packed(Vec<u8>),
    /// Both stay: folding would write out more zeros than it saves.
    Keep,
}

/// Most zeros that a fold may write out, in bytes: beyond this, two patches are cheaper than one.
const ZERO_FILL_MAX: u32 = 4096;

/// Folds `newer` onto `older`.
///
/// Where the value shrank and grew again, the bytes in between are set to zero explicitly: the
/// value below may be longer than the older patch left it.
pub(super) fn fold_patches(older: &Patch<'_>, newer: &Patch<'_>) -> PatchFold {
    if newer.has_shape_of(older) {
        return PatchFold::Newer;
    }
    let grown = newer.value_size.saturating_sub(older.value_size);
    if grown > ZERO_FILL_MAX {
        return PatchFold::Keep;
    }
    let zeros = vec![0; grown as usize];
    let growth = Run { offset: older.value_size, bytes: &zeros };
    let kept = older.runs().map(|run| run.split(newer.value_size).0);
    let below = kept.chain([growth]).filter(|run| !run.bytes.is_empty());
    let mut packed = Vec::new();
    pack_runs(&overlay(below, newer.runs()), &mut packed);
    PatchFold::Packed(packed)
}

/// Lays `newer` over `older`; both ascend without overlap, and so does the result.
fn overlay<'a>(
    mut older: impl Iterator<Item = Run<'a>>,
    newer: impl Iterator<Item = Run<'a>>,
) -> Vec<Run<'a>> {
    let mut result = Vec::new();
    let mut below = older.next();
    for run in newer {
        while let Some(old) = below.filter(|old| old.offset < run.end()) {
            let (left, _) = old.split(run.offset);
            if !left.bytes.is_empty() {
                result.push(left);
            }
            let (_, right) = old.split(run.end());
            if right.bytes.is_empty() {
                below = older.next();
            } else {
                below = Some(right);
                break;
            }
        }
        result.push(run);
    }
    result.extend(below);
    result.extend(older);
    result
}

/// Packs ascending runs, joining adjacent ones.
fn pack_runs(runs: &[Run<'_>], out: &mut Vec<u8>) {
    let mut end = 0;
    for group in runs.chunk_by(|left, right| left.end() == right.offset) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        debug_assert!(first.offset >= end, "runs ascend without overlap (O1)");
        put_varint(out, first.offset - end);
        put_varint(out, last.end() - first.offset);
        group.iter().for_each(|run| out.extend_from_slice(run.bytes));
        end = last.end();
    }
}
