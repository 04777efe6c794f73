//! Log records: the changes that restart repeats and undoes.
//!
//! ```text
//! 1 Update      xid | previous | tree | page | key | change         redo and undo
//! 2 Clr         xid | previous | undo next | tree | page | key | edit      redo only
//! 3 Commit      xid | previous        a commit is its own end: nothing is left to do for it
//! 4 Abort       xid | previous
//! 5 End         xid | previous
//! 6 Shape       parts                 a change of the tree's shape: one record, never undone
//! 7 Begin       (checkpoint)
//! 8 Checkpoint  begin | dirty pages | transactions
//! 9 Open        first record of an epoch
//! ```
//!
//! Redo is physiological: the page is named, and the entry within it by its key. Undo is logical:
//! by tree and key, because splits move entries.

use flagstone_engine::Xid;
use flagstone_engine::node::ValueRef;
use flagstone_space::{LogicalPage, Lsn};

/// A value as a leaf holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnCell {
    pub(crate) bytes: Vec<u8>,
    /// The bytes describe a value that lies in chunks.
    pub(crate) is_ref: bool,
}

impl OwnCell {
    /// As a node takes it.
    pub(crate) fn as_value(&self) -> ValueRef<'_> {
        match self.is_ref {
            true => ValueRef::Ref(&self.bytes),
            false => ValueRef::Inline(&self.bytes),
        }
    }
}

/// A change of one entry, with all data that undoing needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Insert(OwnCell),
    Remove(OwnCell),
    Replace {
        old: OwnCell,
        new: OwnCell,
    },
    /// Bytes from `offset` on give way to others: only the differing bytes are logged.
    Splice {
        offset: usize,
        old: Vec<u8>,
        new: Vec<u8>,
    },
}

/// A change of one entry: redo only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    Insert(OwnCell),
    Remove,
    Replace(OwnCell),
    Splice { offset: usize, old_size: usize, new: Vec<u8> },
}

impl Change {
    /// The change from one value to another; none when they are equal.
    pub(crate) fn between(old: Option<OwnCell>, new: Option<OwnCell>) -> Option<Self> {
        match (old, new) {
            (None, None) => None,
            (None, Some(new)) => Some(Self::Insert(new)),
            (Some(old), None) => Some(Self::Remove(old)),
            (Some(old), Some(new)) if old == new => None,
            (Some(old), Some(new)) if old.is_ref != new.is_ref => Some(Self::Replace { old, new }),
            (Some(old), Some(new)) => Some(splice(&old.bytes, &new.bytes)),
        }
    }

    /// Its redo part.
    pub(crate) fn redo(&self) -> Edit {
        match self {
            Self::Insert(cell) => Edit::Insert(cell.clone()),
            Self::Remove(_) => Edit::Remove,
            Self::Replace { new, .. } => Edit::Replace(new.clone()),
            Self::Splice { offset, old, new } => {
                Edit::Splice { offset: *offset, old_size: old.len(), new: new.clone() }
            }
        }
    }

    /// Its undo part.
    pub(crate) fn undo(&self) -> Edit {
        match self {
            Self::Insert(_) => Edit::Remove,
            Self::Remove(cell) => Edit::Insert(cell.clone()),
            Self::Replace { old, .. } => Edit::Replace(old.clone()),
            Self::Splice { offset, old, new } => {
                Edit::Splice { offset: *offset, old_size: new.len(), new: old.clone() }
            }
        }
    }

    /// Bytes that it carries.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Insert(cell) | Self::Remove(cell) => cell.bytes.len(),
            Self::Replace { old, new } => old.bytes.len() + new.bytes.len(),
            Self::Splice { old, new, .. } => old.len() + new.len(),
        }
    }
}

/// Bytes that an entry takes in a leaf beside key and value, at most.
const ENTRY_OVERHEAD: usize = 8;

impl Edit {
    /// Bytes that it carries.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Insert(cell) | Self::Replace(cell) => cell.bytes.len(),
            Self::Remove => 0,
            Self::Splice { new, .. } => new.len(),
        }
    }

    /// Size of the value that it makes of one of `size`; none for no entry.
    pub(crate) fn size_after(&self, size: Option<usize>) -> Option<usize> {
        match self {
            Self::Insert(cell) | Self::Replace(cell) => Some(cell.bytes.len()),
            Self::Remove => None,
            Self::Splice { old_size, new, .. } => {
                size.map(|size| (size + new.len()).saturating_sub(*old_size))
            }
        }
    }

    /// Bytes by which a leaf may grow by it.
    pub(crate) fn growth(&self, key: &[u8]) -> usize {
        match self {
            Self::Insert(cell) => ENTRY_OVERHEAD + key.len() + cell.bytes.len(),
            Self::Replace(cell) => cell.bytes.len(),
            Self::Remove => 0,
            Self::Splice { old_size, new, .. } => new.len().saturating_sub(*old_size),
        }
    }
}

/// The middle in which two values differ.
fn splice(old: &[u8], new: &[u8]) -> Change {
    let start = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let (old, new) = (&old[start..], &new[start..]);
    let end = old.iter().rev().zip(new.iter().rev()).take_while(|(old, new)| old == new).count();
    let middle = |bytes: &[u8]| bytes[..bytes.len() - end].to_vec();
    Change::Splice { offset: start, old: middle(old), new: middle(new) }
}

/// One page's part of a change of shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The page begins anew with this image, whose rest is 0xFF.
    Image { page: LogicalPage, image: Vec<u8> },
    /// The page has other fences; entries outside them are gone.
    Fences { page: LogicalPage, low: Vec<u8>, high: Option<Vec<u8>> },
    /// Separators of an inner node go, then others are set.
    Children { page: LogicalPage, deletes: Vec<Vec<u8>>, puts: Vec<(Vec<u8>, LogicalPage)> },
    /// The page is given up.
    Free { page: LogicalPage },
}

impl Part {
    pub(super) fn page(&self) -> LogicalPage {
        match self {
            Self::Image { page, .. }
            | Self::Fences { page, .. }
            | Self::Children { page, .. }
            | Self::Free { page } => *page,
        }
    }
}

/// A transaction that was running when a checkpoint was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Active {
    pub(super) xid: Xid,
    pub(super) last: Lsn,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Update { xid: Xid, previous: Lsn, place: Place, change: Change },
    Clr { xid: Xid, previous: Lsn, undo_next: Lsn, place: Place, edit: Edit },
    Commit { xid: Xid, previous: Lsn },
    Abort { xid: Xid, previous: Lsn },
    End { xid: Xid, previous: Lsn },
    Shape { parts: Vec<Part> },
    Begin,
    Checkpoint { begin: Lsn, dirty: Vec<(LogicalPage, Lsn)>, active: Vec<Active> },
    Open,
}

/// Where a change applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) tree: u32,
    pub(super) page: LogicalPage,
    pub(super) key: Vec<u8>,
}

impl Record {
    /// The transaction whose chain it belongs to, and the record before it in that chain.
    pub(super) fn chain(&self) -> Option<(Xid, Lsn)> {
        match self {
            Self::Update { xid, previous, .. }
            | Self::Clr { xid, previous, .. }
            | Self::Commit { xid, previous }
            | Self::Abort { xid, previous }
            | Self::End { xid, previous } => Some((*xid, *previous)),
            _ => None,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Out(Vec::with_capacity(64));
        match self {
            Self::Update { xid, previous, place, change } => {
                out.link(1, *xid, *previous);
                out.place(place);
                out.change(change);
            }
            Self::Clr { xid, previous, undo_next, place, edit } => {
                out.link(2, *xid, *previous);
                out.lsn(*undo_next);
                out.place(place);
                out.edit(edit);
            }
            Self::Commit { xid, previous } => out.link(3, *xid, *previous),
            Self::Abort { xid, previous } => out.link(4, *xid, *previous),
            Self::End { xid, previous } => out.link(5, *xid, *previous),
            Self::Shape { parts } => {
                out.0.push(6);
                out.list(parts, Out::part);
            }
            Self::Begin => out.0.push(7),
            Self::Checkpoint { begin, dirty, active } => {
                out.0.push(8);
                out.lsn(*begin);
                out.list(dirty, |out, (page, lsn)| {
                    out.number(page.0.into());
                    out.lsn(*lsn);
                });
                out.list(active, |out, active| {
                    out.number(active.xid.0);
                    out.lsn(active.last);
                });
            }
            Self::Open => out.0.push(9),
        }
        out.0
    }

    /// Reads a record; any bytes give one or none.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let mut input = In(rest);
        let record = Self::decode_body(*kind, &mut input)?;
        input.0.is_empty().then_some(record)
    }

    fn decode_body(kind: u8, input: &mut In<'_>) -> Option<Self> {
        if kind == 0 || kind > 9 {
            return None;
        }
        if kind <= 5 {
            let (xid, previous) = (Xid(input.number()?), input.lsn()?);
            return Some(match kind {
                1 => Self::Update { xid, previous, place: input.place()?, change: input.change()? },
                2 => {
                    let (undo_next, place) = (input.lsn()?, input.place()?);
                    Self::Clr { xid, previous, undo_next, place, edit: input.edit()? }
                }
                3 => Self::Commit { xid, previous },
                4 => Self::Abort { xid, previous },
                _ => Self::End { xid, previous },
            });
        }
        Some(match kind {
            6 => Self::Shape { parts: input.list(In::part)? },
            7 => Self::Begin,
            8 => Self::Checkpoint {
                begin: input.lsn()?,
                dirty: input.list(|input| Some((input.page()?, input.lsn()?)))?,
                active: input
                    .list(|input| Some(Active { xid: Xid(input.number()?), last: input.lsn()? }))?,
            },
            _ => Self::Open,
        })
    }
}

const EPOCH_BITS: u32 = 32;

/// Bytes under construction.
struct Out(Vec<u8>);

impl Out {
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// Epoch and counter apart: four bytes for most.
    fn lsn(&mut self, lsn: Lsn) {
        self.number(lsn.0 >> EPOCH_BITS);
        self.number(lsn.0 & u64::from(u32::MAX));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn list<T>(&mut self, items: &[T], mut put: impl FnMut(&mut Self, &T)) {
        self.number(items.len() as u64);
        items.iter().for_each(|item| put(self, item));
    }

    fn link(&mut self, kind: u8, xid: Xid, previous: Lsn) {
        self.0.push(kind);
        self.number(xid.0);
        self.lsn(previous);
    }

    fn place(&mut self, place: &Place) {
        self.number(place.tree.into());
        self.number(place.page.0.into());
        self.bytes(&place.key);
    }

    fn cell(&mut self, cell: &OwnCell) {
        self.number(2 * cell.bytes.len() as u64 + u64::from(cell.is_ref));
        self.0.extend_from_slice(&cell.bytes);
    }

    fn change(&mut self, change: &Change) {
        match change {
            Change::Insert(new) => {
                self.0.push(1);
                self.cell(new);
            }
            Change::Remove(old) => {
                self.0.push(2);
                self.cell(old);
            }
            Change::Replace { old, new } => {
                self.0.push(3);
                self.cell(old);
                self.cell(new);
            }
            Change::Splice { offset, old, new } => {
                self.0.push(4);
                self.number(*offset as u64);
                self.bytes(old);
                self.bytes(new);
            }
        }
    }

    fn edit(&mut self, edit: &Edit) {
        match edit {
            Edit::Insert(new) => {
                self.0.push(1);
                self.cell(new);
            }
            Edit::Remove => self.0.push(2),
            Edit::Replace(new) => {
                self.0.push(3);
                self.cell(new);
            }
            Edit::Splice { offset, old_size, new } => {
                self.0.push(4);
                self.number(*offset as u64);
                self.number(*old_size as u64);
                self.bytes(new);
            }
        }
    }

    fn part(&mut self, part: &Part) {
        match part {
            Part::Image { page, image } => {
                self.0.push(1);
                self.number(page.0.into());
                self.bytes(image);
            }
            Part::Fences { page, low, high } => {
                self.0.push(2);
                self.number(page.0.into());
                self.bytes(low);
                self.list(high.as_slice(), |out, high| out.bytes(high));
            }
            Part::Children { page, deletes, puts } => {
                self.0.push(3);
                self.number(page.0.into());
                self.list(deletes, |out, key| out.bytes(key));
                self.list(puts, |out, (key, child)| {
                    out.bytes(key);
                    out.number(child.0.into());
                });
            }
            Part::Free { page } => {
                self.0.push(4);
                self.number(page.0.into());
            }
        }
    }
}

/// Untrusted bytes, read from front to back.
struct In<'a>(&'a [u8]);

impl In<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn small(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    fn size(&mut self) -> Option<usize> {
        self.number()?.try_into().ok()
    }

    fn page(&mut self) -> Option<LogicalPage> {
        self.small().map(LogicalPage)
    }

    fn lsn(&mut self) -> Option<Lsn> {
        let (epoch, counter) = (self.small()?, self.small()?);
        Some(Lsn(u64::from(epoch) << EPOCH_BITS | u64::from(counter)))
    }

    fn take(&mut self, size: usize) -> Option<Vec<u8>> {
        let (taken, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(taken.to_vec())
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let size = self.size()?;
        self.take(size)
    }

    fn list<T>(&mut self, mut get: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.number()?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(get(self)?);
        }
        Some(items)
    }

    fn place(&mut self) -> Option<Place> {
        Some(Place { tree: self.small()?, page: self.page()?, key: self.bytes()? })
    }

    fn cell(&mut self) -> Option<OwnCell> {
        let code = self.size()?;
        Some(OwnCell { bytes: self.take(code / 2)?, is_ref: code % 2 == 1 })
    }

    fn change(&mut self) -> Option<Change> {
        Some(match self.byte()? {
            1 => Change::Insert(self.cell()?),
            2 => Change::Remove(self.cell()?),
            3 => Change::Replace { old: self.cell()?, new: self.cell()? },
            4 => Change::Splice { offset: self.size()?, old: self.bytes()?, new: self.bytes()? },
            _ => return None,
        })
    }

    fn edit(&mut self) -> Option<Edit> {
        Some(match self.byte()? {
            1 => Edit::Insert(self.cell()?),
            2 => Edit::Remove,
            3 => Edit::Replace(self.cell()?),
            4 => {
                let (offset, old_size) = (self.size()?, self.size()?);
                Edit::Splice { offset, old_size, new: self.bytes()? }
            }
            _ => return None,
        })
    }

    fn part(&mut self) -> Option<Part> {
        let (kind, page) = (self.byte()?, self.page()?);
        Some(match kind {
            1 => Part::Image { page, image: self.bytes()? },
            2 => {
                let low = self.bytes()?;
                Part::Fences { page, low, high: self.list(Self::bytes)?.pop() }
            }
            3 => {
                let deletes = self.list(Self::bytes)?;
                let puts = self.list(|input| Some((input.bytes()?, input.page()?)))?;
                Part::Children { page, deletes, puts }
            }
            4 => Part::Free { page },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests;
