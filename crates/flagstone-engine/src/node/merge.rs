//! Base ⊕ deltas: the new image of a leaf, without I/O and without touching the map.
//!
//! Owns the choice of how full the pages of an overflowing leaf become. The inserts of one merge
//! tell where the next inserts will fall:
//!
//! | inserts of the merge | next inserts | pages |
//! | --- | --- | --- |
//! | one run at the right end | behind the last key | full from the left |
//! | one run that goes on from the entry before it | behind the run | cut behind it, full up to there |
//! | anything else | anywhere | even |
//!
//! The second row is a key space in which several sequences grow, each behind a prefix of its own:
//! even cuts would part a sequence from its full pages again and again and leave all of them half
//! full. After the cut the sequence ends its page and goes on as in the first row. A run goes on
//! from the entry before it when their keys agree at least as far as the keys of the run do, and
//! farther than with the entry behind it; inserts at random places do not. No cut takes more pages
//! than an even one.

use std::iter::Peekable;
use std::ops::Range;

use flagstone_space::Lsn;

use super::build::build_leaf;
use super::layout::common_size;
use super::{Built, FillPolicy, NodeError, NodeView, ValueRef, build_leaves, value_size_max};
use crate::delta::{self, DeltaMap, KeyRange, Op, Patch, Value, Versions};

/// Reads the out-of-line values that patches meet.
pub(crate) trait Outline {
    /// The value behind `descriptor` with `patch` applied, written anew when it stays out of line;
    /// `None` when the value cannot be read now.
    fn patched(&mut self, descriptor: &[u8], patch: Patch<'_>) -> Option<Value>;
}

/// Refuses: for callers whose patches never meet an out-of-line value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoOutline;

impl Outline for NoOutline {
    fn patched(&mut self, _descriptor: &[u8], _patch: Patch<'_>) -> Option<Value> {
        None
    }
}

/// Input of a merge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MergeRequest<'a> {
    /// The tree of the result.
    pub(crate) tree: u32,
    /// The fences of the result.
    pub(crate) range: KeyRange<'a>,
    /// Deltas above this LSN stay out; at or below the durable LSN (rule D1).
    pub(crate) upto: Lsn,
    /// Payload of a page in bytes.
    pub(crate) page_size: usize,
}

/// Result of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Merged {
    /// The pages, in key order; at least one.
    pub(crate) pages: Vec<Built>,
    /// Entries in all of them.
    pub(crate) entry_count: usize,
    /// Descriptors of out-of-line values that the deltas superseded.
    pub(crate) dropped_refs: Vec<Vec<u8>>,
}

/// Result of folding deltas into an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fold {
    /// Entries in the image.
    pub(crate) entry_count: usize,
    /// Descriptors of out-of-line values that the deltas superseded.
    pub(crate) dropped_refs: Vec<Vec<u8>>,
}

/// Merges one leaf, or makes the first leaf of a range.
///
/// # Errors
///
/// `OutOfLinePatch` when `outline` refused, `ValueTooLarge`, `KeyTooLarge`, `PageSize`.
pub(crate) fn merge_leaf(
    base: Option<NodeView<'_>>,
    deltas: &DeltaMap,
    request: MergeRequest<'_>,
    outline: &mut dyn Outline,
) -> Result<Merged, NodeError> {
    if let Some(patched) = base.and_then(|view| patched(&view, deltas, &request)) {
        return Ok(patched);
    }
    merge_leaves(base.as_slice(), deltas, request, outline)
}

/// Merges one leaf if the result takes one page; `None`, with no page built, when it takes more.
///
/// # Errors
///
/// As `merge_leaf`.
pub(crate) fn merge_leaf_alone(
    base: NodeView<'_>,
    deltas: &DeltaMap,
    request: MergeRequest<'_>,
    outline: &mut dyn Outline,
) -> Result<Option<Merged>, NodeError> {
    if let Some(patched) = patched(&base, deltas, &request) {
        return Ok(Some(patched));
    }
    let rows = Rows::merged(&[base], deltas, &request, outline)?;
    let page = build_leaf(request.tree, request.range, rows.iter(), request.page_size)?;
    let (entry_count, dropped_refs) = (rows.rows.len(), rows.dropped_refs);
    Ok(page.map(|page| Merged { pages: vec![page], entry_count, dropped_refs }))
}

/// Merges neighbouring leaves, in key order, into the pages of `request.range`.
///
/// Entries of the bases outside the range stay out.
///
/// # Errors
///
/// As `merge_leaf`.
pub(crate) fn merge_leaves<'a>(
    bases: &[NodeView<'a>],
    deltas: &'a DeltaMap,
    request: MergeRequest<'_>,
    outline: &mut dyn Outline,
) -> Result<Merged, NodeError> {
    let rows = Rows::merged(bases, deltas, &request, outline)?;
    let fill = rows.fill();
    let pages = build_leaves(request.tree, request.range, rows.iter(), request.page_size, fill)?;
    Ok(Merged { pages, entry_count: rows.rows.len(), dropped_refs: rows.dropped_refs })
}

/// Folds deltas into an image; when the result needs more than one page, leaves the image alone and
/// gives `None`. For frames ahead of flash, and for pages that garbage collection moves anyway.
///
/// # Errors
///
/// As `merge_leaf`.
pub(crate) fn fold_in_place(
    image: &mut Vec<u8>,
    deltas: &DeltaMap,
    upto: Lsn,
    outline: &mut dyn Outline,
) -> Result<Option<Fold>, NodeError> {
    let view = NodeView::trusted(image);
    let range = KeyRange { low: view.low(), high: view.high() };
    let request = MergeRequest { tree: view.tree(), range, upto, page_size: image.len() };
    let Some(merged) = merge_leaf_alone(view, deltas, request, outline)? else { return Ok(None) };
    let Merged { pages, entry_count, dropped_refs } = merged;
    Ok(pages.into_iter().next().map(|page| {
        *image = page.image;
        Fold { entry_count, dropped_refs }
    }))
}

/// The leaf with values changed in place, if the deltas change nothing else.
fn patched(view: &NodeView<'_>, deltas: &DeltaMap, request: &MergeRequest<'_>) -> Option<Merged> {
    let image = patched_copy(view, deltas, request)?;
    let pages = vec![Built { low_key: view.low().to_vec(), image }];
    Some(Merged { pages, entry_count: view.count(), dropped_refs: Vec::new() })
}

/// The image with values changed in place; `None` when a key comes or goes, a size changes, or the
/// page itself would change.
fn patched_copy(
    view: &NodeView<'_>,
    deltas: &DeltaMap,
    request: &MergeRequest<'_>,
) -> Option<Vec<u8>> {
    let same_page = view.low() == request.range.low
        && view.high() == request.range.high
        && view.tree() == request.tree
        && view.bytes().len() == request.page_size;
    if !same_page {
        return None;
    }
    let mut image = view.bytes().to_vec();
    let mut next = 0;
    for entry in deltas.range(request.range) {
        let place = view.search_behind(next, entry.key());
        next = place.unwrap_or_else(|at| at);
        let found = place.ok().map(|index| view.parts(index));
        for (_, op) in entry.versions().take_while(|(lsn, _)| *lsn <= request.upto) {
            match &found {
                Some(parts) if parts.is_ref => return None,
                Some(parts) => set_in_place(image.get_mut(parts.value.clone())?, op)?,
                None => is_nothing_for_absent(op).then_some(())?,
            }
        }
    }
    Some(image)
}

/// Whether an operation leaves an absent key absent (rule D2).
fn is_nothing_for_absent(op: Op<'_>) -> bool {
    matches!(op, Op::Patch(_) | Op::Delete)
}

/// Applies an operation that keeps the size of the value; `None` for any other.
fn set_in_place(target: &mut [u8], op: Op<'_>) -> Option<()> {
    match op {
        Op::Patch(patch) if patch.value_size() as usize == target.len() => {
            patch.apply_in_place(target);
            Some(())
        }
        Op::Put(value) if value.len() == target.len() => {
            target.copy_from_slice(value);
            Some(())
        }
        _ => None,
    }
}

/// Place of a row's value.
enum RowValue<'a> {
    /// In its base, or in a delta.
    Lent(ValueRef<'a>),
    /// In the buffer of the rows.
    Inline(Range<usize>),
    /// In the buffer of the rows, a descriptor.
    Ref(Range<usize>),
}

/// The entries of the result while they are collected; keys and new values lie in one buffer.
struct Rows<'a> {
    buffer: Vec<u8>,
    rows: Vec<(Range<usize>, RowValue<'a>)>,
    dropped_refs: Vec<Vec<u8>>,
    /// Limit under the shortest key; a build checks each value.
    value_size_max: usize,
    inserts: Inserts,
}

/// Place of the rows that a merge inserted.
#[derive(Default)]
struct Inserts {
    /// From the first inserted row to just behind the last.
    span: Range<usize>,
    count: usize,
}

impl Inserts {
    fn add(&mut self, row: usize) {
        if self.count == 0 {
            self.span.start = row;
        }
        self.span.end = row + 1;
        self.count += 1;
    }

    /// Whether the inserted rows are adjacent, without an older row in between.
    fn are_one_run(&self) -> bool {
        self.count > 0 && self.count == self.span.len()
    }
}

impl<'a> Rows<'a> {
    fn merged(
        bases: &[NodeView<'a>],
        deltas: &'a DeltaMap,
        request: &MergeRequest<'_>,
        outline: &mut dyn Outline,
    ) -> Result<Self, NodeError> {
        let entry_count = bases.iter().map(NodeView::count).sum::<usize>();
        let mut rows = Self {
            buffer: Vec::with_capacity(request.page_size),
            rows: Vec::with_capacity(entry_count + 8),
            dropped_refs: Vec::new(),
            value_size_max: value_size_max(request.page_size, 0),
            inserts: Inserts::default(),
        };
        let mut changes = deltas.range(request.range).peekable();
        for (index, base) in bases.iter().enumerate() {
            let below = bases.get(index + 1).map(NodeView::low);
            rows.take_base(base, below, &mut changes, request, outline)?;
        }
        for change in changes {
            rows.change(change.key(), None, change.versions(), request.upto, outline)?;
        }
        Ok(rows)
    }

    /// Takes the entries of one base with the changes below `below`.
    fn take_base(
        &mut self,
        base: &NodeView<'a>,
        below: Option<&[u8]>,
        changes: &mut Peekable<impl Iterator<Item = delta::Entry<'a>>>,
        request: &MergeRequest<'_>,
        outline: &mut dyn Outline,
    ) -> Result<(), NodeError> {
        let place = |key: &[u8]| base.search(key).unwrap_or_else(|at| at);
        let mut next = place(request.range.low);
        let end = request.range.high.map_or(base.count(), place);
        let is_mine = |key: &[u8]| below.is_none_or(|below| key < below);
        while let Some(change) = changes.next_if(|change| is_mine(change.key())) {
            let found = base.search_behind(next, change.key());
            let (Ok(at) | Err(at)) = found;
            self.copy(base, next..at);
            let was = found.ok().and_then(|at| base.entry(at)).map(|entry| entry.value);
            next = at + usize::from(was.is_some());
            self.change(change.key(), was, change.versions(), request.upto, outline)?;
        }
        self.copy(base, next..end);
        Ok(())
    }

    fn copy(&mut self, base: &NodeView<'a>, entries: Range<usize>) {
        for entry in entries.map_while(|index| base.entry(index)) {
            let start = self.buffer.len();
            self.buffer.extend_from_slice(entry.prefix);
            self.buffer.extend_from_slice(entry.suffix);
            self.rows.push((start..self.buffer.len(), RowValue::Lent(entry.value)));
        }
    }

    /// Applies the versions of one key to its value in the base.
    fn change(
        &mut self,
        key: &[u8],
        was: Option<ValueRef<'a>>,
        versions: Versions<'a>,
        upto: Lsn,
        outline: &mut dyn Outline,
    ) -> Result<(), NodeError> {
        let mut versions = versions.take_while(|(lsn, _)| *lsn <= upto);
        let key = self.store(key);
        let lent = match (versions.clone().next(), versions.clone().nth(1)) {
            (None, _) => was,
            (Some((_, Op::Put(bytes))), None) if !matches!(was, Some(ValueRef::Ref(_))) => {
                self.check_size(bytes.len())?;
                if was.is_none() {
                    self.inserts.add(self.rows.len());
                }
                Some(ValueRef::Inline(bytes))
            }
            _ => return self.apply_all(key, was, &mut versions, outline),
        };
        self.rows.extend(lent.map(|value| (key, RowValue::Lent(value))));
        Ok(())
    }

    /// Applies consecutive versions.
    fn apply_all(
        &mut self,
        key: Range<usize>,
        was: Option<ValueRef<'_>>,
        versions: &mut dyn Iterator<Item = (Lsn, Op<'_>)>,
        outline: &mut dyn Outline,
    ) -> Result<(), NodeError> {
        let mut refs = RefTrail::default();
        let mut value = was.map(owned);
        refs.note(&value);
        for (_, op) in versions {
            self.apply(op, &mut value, outline)?;
            refs.note(&value);
        }
        refs.drop_all_but(&value, &mut self.dropped_refs);
        self.keep(key, value, was.is_some());
        Ok(())
    }

    fn apply(
        &self,
        op: Op<'_>,
        value: &mut Option<Value>,
        outline: &mut dyn Outline,
    ) -> Result<(), NodeError> {
        let size = match op {
            Op::Put(bytes) => bytes.len(),
            Op::Patch(patch) if matches!(value, Some(Value::Inline(_))) => {
                patch.value_size() as usize
            }
            _ => 0,
        };
        self.check_size(size)?;
        if let Err(delta::OutOfLine { patch }) = delta::apply(op, value)
            && let Some(Value::Ref(descriptor)) = value
        {
            let patched = outline.patched(descriptor, patch);
            *value = Some(patched.ok_or(NodeError::OutOfLinePatch)?);
        }
        Ok(())
    }

    fn check_size(&self, size: usize) -> Result<(), NodeError> {
        let size_max = self.value_size_max;
        if size > size_max { Err(NodeError::ValueTooLarge { size, size_max }) } else { Ok(()) }
    }

    fn keep(&mut self, key: Range<usize>, value: Option<Value>, is_old: bool) {
        let value = match value {
            Some(Value::Inline(bytes)) => RowValue::Inline(self.store(&bytes)),
            Some(Value::Ref(descriptor)) => RowValue::Ref(self.store(&descriptor)),
            None => return,
        };
        if !is_old {
            self.inserts.add(self.rows.len());
        }
        self.rows.push((key, value));
    }

    fn store(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(bytes);
        start..self.buffer.len()
    }

    /// Predicts the place of the next inserts (see the table above).
    fn fill(&self) -> FillPolicy {
        let inserts = &self.inserts;
        let has_base = inserts.count < self.rows.len();
        if !has_base || !inserts.are_one_run() {
            FillPolicy::Balanced
        } else if inserts.span.end == self.rows.len() {
            FillPolicy::Append
        } else if self.goes_on(&inserts.span) {
            FillPolicy::Behind { end: inserts.span.end }
        } else {
            FillPolicy::Balanced
        }
    }

    /// Whether a run of inserts goes on from the row before it, and not towards the row behind it.
    fn goes_on(&self, run: &Range<usize>) -> bool {
        let key =
            |row: usize| self.rows.get(row).map_or(&[][..], |row| &self.buffer[row.0.clone()]);
        let (Some(before), Some(last)) = (run.start.checked_sub(1), run.end.checked_sub(1)) else {
            return false;
        };
        let joint = common_size(key(before), key(run.start));
        run.len() > 1
            && joint >= common_size(key(run.start), key(last))
            && joint > common_size(key(last), key(run.end))
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], ValueRef<'_>)> {
        let at = |place: &Range<usize>| &self.buffer[place.clone()];
        self.rows.iter().map(move |(key, value)| {
            let value = match value {
                RowValue::Lent(value) => *value,
                RowValue::Inline(place) => ValueRef::Inline(at(place)),
                RowValue::Ref(place) => ValueRef::Ref(at(place)),
            };
            (at(key), value)
        })
    }
}

fn owned(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Inline(bytes) => Value::Inline(bytes.to_vec()),
        ValueRef::Ref(descriptor) => Value::Ref(descriptor.to_vec()),
    }
}

/// The descriptors a key had on the way to its new value.
#[derive(Default)]
struct RefTrail(Vec<Vec<u8>>);

impl RefTrail {
    fn note(&mut self, value: &Option<Value>) {
        if let Some(Value::Ref(descriptor)) = value
            && !self.0.contains(descriptor)
        {
            self.0.push(descriptor.clone());
        }
    }

    fn drop_all_but(self, value: &Option<Value>, dropped: &mut Vec<Vec<u8>>) {
        let kept = match value {
            Some(Value::Ref(descriptor)) => Some(descriptor),
            _ => None,
        };
        dropped.extend(self.0.into_iter().filter(|descriptor| Some(descriptor) != kept));
    }
}
