//! State of a page in memory beside its image: pending records, and the changes that flash has or
//! lacks.
//!
//! Owns the byte form of a version's section of pending records, and the room that a leaf must keep
//! for every outcome (H4). Never looks at a pool or a log.
//!
//! ```text
//! content  node │ section
//! section  transactions (1), 5 bytes each   entries (2), 5 bytes each and a key where one is absent
//! entry    which transaction, 0x80 when absent (1)   size of the value before, or absent (2)
//!          index in the node (2)  |  size of the key (2), key
//! ```

use std::collections::{BTreeMap, BTreeSet};

use flagstone_engine::Xid;
use flagstone_engine::node::NodeView;
use flagstone_space::Lsn;

use crate::classic::page::{self, Edited};
use crate::classic::record::{Change, OwnCell};

const ABSENT_SIZE: u16 = u16::MAX;
const IS_ABSENT: u8 = 0x80;

const XID_SIZE: usize = 5;

/// Bytes of a leaf beside entries and fences, and of an entry of many sizes beside its lengths.
const LEAF_OVERHEAD: usize = 20;
const SLOT_SIZE: usize = 2;

/// Bytes of a version's content that are kept for its section.
pub(super) fn section_size(content_size: usize) -> usize {
    (content_size / 8).max(128)
}

/// The value that a pending record replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// It is this one, or none.
    Known(Option<OwnCell>),
    /// It stands in a version on flash.
    OnFlash,
}

/// A pending record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) xid: Xid,
    pub(super) before: Before,
    /// Size of the value before; none when there is none.
    pub(super) before_size: Option<usize>,
    /// Flash has the value before, in the newest version or one that it leads back to (H1).
    pub(super) is_before_on_flash: bool,
    /// Its log records.
    pub(super) first: Lsn,
    pub(super) last: Lsn,
    /// The newest version carries it as it is.
    pub(super) is_written: bool,
    /// The page has no such entry now.
    pub(super) is_absent: bool,
}

/// State of a page in memory.
#[derive(Debug, Default)]
pub(super) struct Side {
    /// The newest version is complete up to here; none when there is no version.
    pub(super) flash: Option<Lsn>,
    /// Last change of its shape.
    pub(super) shape: Lsn,
    pub(super) pending: BTreeMap<Vec<u8>, Pending>,
    /// Keys with committed changes that flash lacks.
    pub(super) unwritten: BTreeSet<Vec<u8>>,
    /// Keys whose value was an aborted transaction's: flash has the right one.
    pub(super) invalid: BTreeSet<Vec<u8>>,
    /// Values before are to be read.
    pub(super) wants_befores: bool,
    /// First log record that flash lacks.
    pub(super) lacks: Option<Lsn>,
    /// The same once the write under way is complete; none when no write is.
    pub(super) writing: Option<Option<Lsn>>,
}

impl Side {
    /// The page changes by a log record.
    pub(super) fn touched(&mut self, lsn: Lsn) {
        self.lacks.get_or_insert(lsn);
        if let Some(lacks) = &mut self.writing {
            lacks.get_or_insert(lsn);
        }
    }

    /// A transaction committed: its records are plain content from now on.
    pub(super) fn committed(&mut self, xid: Xid) {
        let own = self.pending.iter().filter(|(_, pending)| pending.xid == xid);
        let fresh = own.filter(|(_, pending)| !pending.is_written).map(|(key, _)| key.clone());
        self.unwritten.extend(fresh);
        self.pending.retain(|_, pending| pending.xid != xid);
    }

    /// Whether the page has to be read before it is used.
    pub(super) fn wants_read(&self) -> bool {
        self.wants_befores || !self.invalid.is_empty()
    }

    /// Whether only `xid` has changed the page since flash had it.
    pub(super) fn is_changed_by_one(&self, xid: Xid) -> bool {
        let is_foreign = |pending: &Pending| pending.xid != xid && !pending.is_written;
        self.flash.is_some_and(|flash| self.shape <= flash)
            && self.unwritten.is_empty()
            && !self.pending.values().any(is_foreign)
    }

    /// Transactions with pending records, ascending.
    pub(super) fn members(&self) -> BTreeSet<Xid> {
        self.pending.values().map(|pending| pending.xid).collect()
    }

    /// Whether `leaf` has room for every outcome of the pending records (H4).
    pub(super) fn has_room(&self, leaf: &[u8]) -> bool {
        let node = NodeView::trusted(leaf);
        let size_of = |key: &[u8]| {
            let cell = node.search(key).ok().and_then(|index| node.value(index));
            cell.map(|cell| cell.bytes().len())
        };
        let shrinks = |(key, pending): (&Vec<u8>, &Pending)| {
            pending.before_size.is_some() && pending.before_size != size_of(key)
        };
        if !self.pending.iter().any(shrinks) {
            return true;
        }
        let mut most = Most::of(&node);
        let mut key = Vec::new();
        for index in 0..node.count() {
            key.clear();
            node.key_into(index, &mut key);
            let now = node.value(index).map_or(0, |cell| cell.bytes().len());
            let before = self.pending.get(&key).and_then(|pending| pending.before_size);
            most.add(key.len(), now, before.unwrap_or(now));
        }
        for (key, pending) in &self.pending {
            if let (Some(before), None) = (pending.before_size, size_of(key)) {
                most.add(key.len(), before, before);
            }
        }
        most.size() <= node.bytes().len()
    }

    /// Bytes of a section with all pending records, one of which, `key`, is to be absent or present.
    pub(super) fn section_need(&self, xid: Xid, key: &[u8], is_absent: bool) -> usize {
        let entry = |key: &[u8], is_absent| 5 + if is_absent { key.len() } else { 0 };
        let (mut need, mut members) = (3 + entry(key, is_absent), vec![xid]);
        for (other, pending) in self.pending.iter().filter(|(other, _)| *other != key) {
            need += entry(other, pending.is_absent);
            if !members.contains(&pending.xid) {
                members.push(pending.xid);
            }
        }
        need + XID_SIZE * members.len()
    }
}

/// Bytes of a leaf for any outcome of its pending records. Entries of one size stand side by side;
/// where one may have another size, each may need a slot and its lengths.
struct Most {
    fences: usize,
    prefix: usize,
    even: usize,
    uneven: usize,
    /// Sizes of key and value that all entries have so far.
    shape: Option<(usize, usize)>,
    is_mixed: bool,
}

impl Most {
    fn of(node: &NodeView<'_>) -> Self {
        let (low, high) = (node.low(), node.high());
        let common =
            |high: &[u8]| low.iter().zip(high).take_while(|(low, high)| low == high).count();
        Self {
            fences: low.len() + high.map_or(0, <[u8]>::len),
            prefix: high.map_or(0, common),
            even: 0,
            uneven: 0,
            shape: None,
            is_mixed: false,
        }
    }

    fn add(&mut self, key: usize, now: usize, before: usize) {
        let shape = *self.shape.get_or_insert((key, now));
        self.is_mixed |= shape != (key, now) || now != before;
        let (suffix, value) = (key.saturating_sub(self.prefix), now.max(before));
        self.even += suffix + value;
        self.uneven += SLOT_SIZE + length_size(key) + length_size(2 * value) + suffix + value;
    }

    fn size(&self) -> usize {
        LEAF_OVERHEAD + self.fences + if self.is_mixed { self.uneven } else { self.even }
    }
}

/// Bytes of a length in the nodes' format.
const fn length_size(length: usize) -> usize {
    match length {
        0..=0x7F => 1,
        0x80..=0x3FFF => 2,
        _ => 3,
    }
}

/// The leaf with another value of `key`; none when it does not fit.
pub(super) fn with_value(leaf: &[u8], key: &[u8], value: Option<&OwnCell>) -> Option<Vec<u8>> {
    let old = page::cell_of(leaf, key);
    let Some(change) = Change::between(old, value.cloned()) else { return Some(leaf.to_vec()) };
    match page::edit(leaf, key, &change.redo()).ok()? {
        Edited::Image(image) => Some(image),
        Edited::Bytes(offset, bytes) => {
            let mut image = leaf.to_vec();
            image.get_mut(offset..offset + bytes.len())?.copy_from_slice(&bytes);
            Some(image)
        }
    }
}

/// An entry of a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) key: Vec<u8>,
    pub(super) xid: Xid,
    pub(super) before_size: Option<usize>,
}

/// The content of a version: node and section; none when the section does not fit.
pub(super) fn content(node: &[u8], listed: &[Listed], size: usize) -> Option<Vec<u8>> {
    let xids: BTreeSet<Xid> = listed.iter().map(|entry| entry.xid).collect();
    let xids: Vec<Xid> = xids.into_iter().collect();
    let mut bytes = node.to_vec();
    bytes.push(u8::try_from(xids.len()).ok()?);
    xids.iter().for_each(|xid| bytes.extend_from_slice(&xid.0.to_le_bytes()[..XID_SIZE]));
    bytes.extend_from_slice(&u16::try_from(listed.len()).ok()?.to_le_bytes());
    let view = NodeView::trusted(node);
    for Listed { key, xid, before_size } in listed {
        let slot = u8::try_from(xids.iter().position(|other| other == xid)?).ok()?;
        let index = view.search(key).ok();
        bytes.push(if index.is_some() { slot } else { slot | IS_ABSENT });
        let before = before_size.map_or(Some(ABSENT_SIZE), |size| u16::try_from(size).ok())?;
        bytes.extend_from_slice(&before.to_le_bytes());
        let number = u16::try_from(index.unwrap_or(key.len())).ok()?;
        bytes.extend_from_slice(&number.to_le_bytes());
        if index.is_none() {
            bytes.extend_from_slice(key);
        }
    }
    (bytes.len() <= size).then(|| {
        bytes.resize(size, 0);
        bytes
    })
}

/// Entries of the section behind a node of `node_size` bytes; none when it does not parse.
pub(super) fn listed(content: &[u8], node_size: usize) -> Option<Vec<Listed>> {
    let (node, section) = content.split_at_checked(node_size)?;
    let node = NodeView::parse(node).ok()?;
    let (xid_count, rest) = section.split_first()?;
    let (xids, rest) = rest.split_at_checked(usize::from(*xid_count) * XID_SIZE)?;
    let (count, mut rest) = rest.split_first_chunk::<2>()?;
    let mut entries = Vec::new();
    for _ in 0..u16::from_le_bytes(*count) {
        let (head, behind) = rest.split_first_chunk::<5>()?;
        rest = behind;
        let before = u16::from_le_bytes([head[1], head[2]]);
        let number = usize::from(u16::from_le_bytes([head[3], head[4]]));
        let mut key = Vec::new();
        if head[0] & IS_ABSENT == 0 {
            (number < node.count()).then_some(())?;
            node.key_into(number, &mut key);
        } else {
            let (bytes, behind) = rest.split_at_checked(number)?;
            key.extend_from_slice(bytes);
            rest = behind;
        }
        let xid = xids.chunks_exact(XID_SIZE).nth(usize::from(head[0] & !IS_ABSENT))?;
        let mut number = [0; 8];
        number[..XID_SIZE].copy_from_slice(xid);
        let before_size = (before != ABSENT_SIZE).then_some(usize::from(before));
        entries.push(Listed { key, xid: Xid(u64::from_le_bytes(number)), before_size });
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 512;

    fn cell(size: usize) -> OwnCell {
        OwnCell { bytes: vec![7; size], is_ref: false }
    }

    fn leaf(sizes: &[usize]) -> Vec<u8> {
        let mut image = flagstone_engine::node::empty_leaf(2, SIZE);
        for (key, size) in (0_u8..).zip(sizes) {
            image = with_value(&image, &[key], Some(&cell(*size))).unwrap();
        }
        image
    }

    #[test]
    fn a_section_reads_back_with_entries_that_are_there_and_that_are_not() {
        let node = leaf(&[10, 20]);
        let entries = vec![
            Listed { key: vec![1], xid: Xid(2), before_size: Some(20) },
            Listed { key: b"gone".to_vec(), xid: Xid(9), before_size: Some(9) },
            Listed { key: vec![0], xid: Xid(2), before_size: None },
        ];
        let bytes = content(&node, &entries, SIZE + 128).unwrap();
        assert_eq!(listed(&bytes, SIZE).unwrap(), entries);
        assert_eq!(content(&node, &entries, SIZE + 20), None);
    }

    #[test]
    fn room_that_a_running_transaction_made_is_nobody_elses() {
        let mut side = Side::default();
        let mut image = leaf(&[100, 100, 100]);
        let pending = |size| Pending {
            xid: Xid(1),
            before: Before::OnFlash,
            before_size: Some(size),
            is_before_on_flash: true,
            first: Lsn(1),
            last: Lsn(1),
            is_written: false,
            is_absent: true,
        };
        image = with_value(&image, &[0], None).unwrap();
        side.pending.insert(vec![0], pending(100));
        assert!(side.has_room(&image));
        image = with_value(&image, &[9], Some(&cell(190))).unwrap();
        assert!(!side.has_room(&image));
        side.pending.clear();
        assert!(side.has_room(&image));
    }

    #[test]
    fn a_section_needs_what_its_bytes_take() {
        let node = leaf(&[10, 20]);
        let listed =
            |key: &[u8], xid| Listed { key: key.to_vec(), xid: Xid(xid), before_size: None };
        let entries = [listed(&[1], 2), listed(b"gone", 9), listed(&[0], 2)];
        let mut side = Side::default();
        for Listed { key, xid, .. } in &entries[..2] {
            let is_absent = NodeView::trusted(&node).search(key).is_err();
            let pending = Pending {
                xid: *xid,
                before: Before::OnFlash,
                before_size: None,
                is_before_on_flash: true,
                first: Lsn(1),
                last: Lsn(1),
                is_written: false,
                is_absent,
            };
            side.pending.insert(key.clone(), pending);
        }
        let need = side.section_need(Xid(2), &[0], false);
        assert!(content(&node, &entries, SIZE + need).is_some());
        assert!(content(&node, &entries, SIZE + need - 1).is_none());
        // Without its entry in the node, the key stands in the section.
        assert_eq!(side.section_need(Xid(2), &[0], true), need + 1);
    }
}
