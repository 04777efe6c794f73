//! The redo log's buffer, and its records.
//!
//! ```text
//! batch   LSN of the first record (8), then records
//! record  LSN beyond the first (varint)   kind
//! 1 Change   transaction | page | key | edit     redo of one entry
//! 2 Commit   transaction
//! 3 Shape    parts                              a change of the tree's shape: never undone
//! ```
//!
//! - **B1** A record that a version on flash carries leaves the buffer; other records leave it only
//!   by a force.
//! - **B2** Edits name whole values, or bytes of one at a place: repeated, they give the same again.

use std::collections::BTreeSet;

use flagstone_engine::Xid;
use flagstone_space::{LogicalPage, Lsn};

use crate::classic::record::OwnCell;

/// A change of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Edit {
    /// It has this value.
    Put(Vec<u8>),
    /// Bytes of its value from an offset on.
    Patch(usize, Vec<u8>),
    /// It is gone.
    Remove,
}

impl Edit {
    /// The edit that makes `new` of `old`.
    pub(super) fn between(old: Option<&OwnCell>, new: Option<&OwnCell>) -> Self {
        match (old, new) {
            (_, None) => Self::Remove,
            (Some(old), Some(new)) if old.bytes.len() == new.bytes.len() => {
                let differs = |(old, new): (&u8, &u8)| old != new;
                let pairs = || old.bytes.iter().zip(&new.bytes);
                let start = pairs().position(differs).unwrap_or(0);
                let end = pairs().rposition(differs).map_or(start, |last| last + 1);
                Self::Patch(start, new.bytes[start..end].to_vec())
            }
            (_, Some(new)) => Self::Put(new.bytes.clone()),
        }
    }

    /// The value afterwards. A patch of a missing value changes nothing: a later record of the log
    /// removes or replaces it.
    pub(super) fn apply(&self, old: Option<Vec<u8>>) -> Option<Vec<u8>> {
        match self {
            Self::Put(bytes) => Some(bytes.clone()),
            Self::Remove => None,
            Self::Patch(offset, bytes) => old.map(|mut old| {
                let end = offset.saturating_add(bytes.len());
                if let Some(target) = old.get_mut(*offset..end) {
                    target.copy_from_slice(bytes);
                }
                old
            }),
        }
    }
}

/// One page's part of a change of shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The page begins anew with this image, whose rest is 0xFF.
    Image { page: LogicalPage, image: Vec<u8> },
    /// Entries from the key on are gone; it is the upper fence now.
    Below { page: LogicalPage, high: Vec<u8> },
    /// Children are added to an inner node.
    Children { page: LogicalPage, puts: Vec<(Vec<u8>, LogicalPage)> },
}

impl Part {
    pub(super) const fn page(&self) -> LogicalPage {
        match self {
            Self::Image { page, .. } | Self::Below { page, .. } | Self::Children { page, .. } => {
                *page
            }
        }
    }
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Change { xid: Xid, page: LogicalPage, key: Vec<u8>, edit: Edit },
    Commit { xid: Xid },
    Shape { parts: Vec<Part> },
}

/// A record in the buffer.
#[derive(Debug)]
struct Entry {
    lsn: Lsn,
    /// Whose change of which page it is.
    change: Option<(Xid, LogicalPage)>,
    bytes: Vec<u8>,
}

/// Records that are not on flash.
#[derive(Debug)]
pub(super) struct Buffer {
    entries: Vec<Entry>,
    last: Lsn,
    pub(super) bytes_appended: u64,
    pub(super) records_dropped: u64,
}

impl Buffer {
    /// A buffer whose first record comes after `last`.
    pub(super) const fn new(last: Lsn) -> Self {
        Self { entries: Vec::new(), last, bytes_appended: 0, records_dropped: 0 }
    }

    /// Number of the last record.
    pub(super) const fn last(&self) -> Lsn {
        self.last
    }

    pub(super) fn append(&mut self, record: &Record) -> Lsn {
        self.last = Lsn(self.last.0 + 1);
        let change = match record {
            Record::Change { xid, page, .. } => Some((*xid, *page)),
            _ => None,
        };
        let bytes = record.encode();
        self.bytes_appended += bytes.len() as u64;
        self.entries.push(Entry { lsn: self.last, change, bytes });
        self.last
    }

    /// Forgets changes of a page up to `lsn`: a version carries them (B1).
    pub(super) fn drop_page(&mut self, page: LogicalPage, lsn: Lsn) {
        let is_carried =
            |entry: &Entry| entry.change.is_some_and(|(_, own)| own == page) && entry.lsn <= lsn;
        let before = self.entries.len();
        self.entries.retain(|entry| !is_carried(entry));
        self.records_dropped += (before - self.entries.len()) as u64;
    }

    /// Forgets the changes of transactions that were aborted.
    pub(super) fn drop_xid(&mut self, xid: Xid) {
        self.entries.retain(|entry| entry.change.is_none_or(|(own, _)| own != xid));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes everything out as one batch, for a force.
    pub(super) fn seal(&mut self) -> Sealed {
        Sealed { entries: std::mem::take(&mut self.entries), last: self.last }
    }

    /// Puts back the records that could not be forced, without the commits of `refused`.
    pub(super) fn put_back(&mut self, sealed: Sealed) {
        let is_commit = |entry: &Entry| entry.bytes.first() == Some(&COMMIT);
        let mut entries = sealed.entries;
        entries.retain(|entry| !is_commit(entry));
        entries.append(&mut self.entries);
        self.entries = entries;
    }
}

/// Records on their way to flash.
#[derive(Debug)]
pub(super) struct Sealed {
    entries: Vec<Entry>,
    /// Everything up to here is on flash afterwards, or needs not be.
    pub(super) last: Lsn,
}

impl Sealed {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn payload(&self) -> Vec<u8> {
        let Some(first) = self.entries.first().map(|entry| entry.lsn.0) else { return Vec::new() };
        let mut out = Out(first.to_le_bytes().to_vec());
        for entry in &self.entries {
            out.number(entry.lsn.0 - first);
            out.0.extend_from_slice(&entry.bytes);
        }
        out.0
    }
}

/// Records of a batch, as far as they decode.
pub(super) fn decode(payload: &[u8]) -> Vec<(Lsn, Record)> {
    let Some((first, rest)) = payload.split_first_chunk::<8>() else { return Vec::new() };
    let first = u64::from_le_bytes(*first);
    let mut input = In(rest);
    let mut records = Vec::new();
    while !input.0.is_empty() {
        let Some(beyond) = input.number() else { break };
        let Some(record) = Record::decode(&mut input) else { break };
        records.push((Lsn(first.saturating_add(beyond)), record));
    }
    records
}

/// Transactions whose commit is among `records`.
pub(super) fn committed(records: &[(Lsn, Record)]) -> BTreeSet<Xid> {
    let commit = |(_, record): &(Lsn, Record)| match record {
        Record::Commit { xid } => Some(*xid),
        _ => None,
    };
    records.iter().filter_map(commit).collect()
}

const CHANGE: u8 = 1;
const COMMIT: u8 = 2;
const SHAPE: u8 = 3;

impl Record {
    fn encode(&self) -> Vec<u8> {
        let mut out = Out(Vec::with_capacity(48));
        match self {
            Self::Change { xid, page, key, edit } => {
                out.0.push(CHANGE);
                out.number(xid.0);
                out.number(page.0.into());
                out.bytes(key);
                out.edit(edit);
            }
            Self::Commit { xid } => {
                out.0.push(COMMIT);
                out.number(xid.0);
            }
            Self::Shape { parts } => {
                out.0.push(SHAPE);
                out.number(parts.len() as u64);
                parts.iter().for_each(|part| out.part(part));
            }
        }
        out.0
    }

    fn decode(input: &mut In<'_>) -> Option<Self> {
        Some(match input.byte()? {
            CHANGE => Self::Change {
                xid: Xid(input.number()?),
                page: input.page()?,
                key: input.bytes()?.to_vec(),
                edit: input.edit()?,
            },
            COMMIT => Self::Commit { xid: Xid(input.number()?) },
            SHAPE => {
                let count = input.number()?;
                let mut parts = Vec::new();
                for _ in 0..count {
                    parts.push(input.part()?);
                }
                Self::Shape { parts }
            }
            _ => return None,
        })
    }
}

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

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn edit(&mut self, edit: &Edit) {
        match edit {
            Edit::Put(bytes) => {
                self.0.push(1);
                self.bytes(bytes);
            }
            Edit::Patch(offset, bytes) => {
                self.0.push(2);
                self.number(*offset as u64);
                self.bytes(bytes);
            }
            Edit::Remove => self.0.push(3),
        }
    }

    fn part(&mut self, part: &Part) {
        match part {
            Part::Image { page, image } => {
                self.0.push(1);
                self.number(page.0.into());
                self.bytes(image);
            }
            Part::Below { page, high } => {
                self.0.push(2);
                self.number(page.0.into());
                self.bytes(high);
            }
            Part::Children { page, puts } => {
                self.0.push(3);
                self.number(page.0.into());
                self.number(puts.len() as u64);
                for (key, child) in puts {
                    self.bytes(key);
                    self.number(child.0.into());
                }
            }
        }
    }
}

/// Untrusted bytes, read from front to back.
struct In<'a>(&'a [u8]);

impl<'a> In<'a> {
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

    fn page(&mut self) -> Option<LogicalPage> {
        self.number()?.try_into().ok().map(LogicalPage)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let size = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(bytes)
    }

    fn edit(&mut self) -> Option<Edit> {
        Some(match self.byte()? {
            1 => Edit::Put(self.bytes()?.to_vec()),
            2 => Edit::Patch(usize::try_from(self.number()?).ok()?, self.bytes()?.to_vec()),
            3 => Edit::Remove,
            _ => return None,
        })
    }

    fn part(&mut self) -> Option<Part> {
        let kind = self.byte()?;
        let page = self.page()?;
        Some(match kind {
            1 => Part::Image { page, image: self.bytes()?.to_vec() },
            2 => Part::Below { page, high: self.bytes()?.to_vec() },
            3 => {
                let count = self.number()?;
                let mut puts = Vec::new();
                for _ in 0..count {
                    puts.push((self.bytes()?.to_vec(), self.page()?));
                }
                Part::Children { page, puts }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Record> {
        let (xid, page) = (Xid(1 << 26 | 7), LogicalPage(300));
        let change = |edit| Record::Change { xid, page, key: b"key".to_vec(), edit };
        let parts = vec![
            Part::Image { page, image: vec![1; 200] },
            Part::Below { page, high: b"m".to_vec() },
            Part::Children { page, puts: vec![(b"m".to_vec(), LogicalPage(5))] },
        ];
        vec![
            change(Edit::Put(vec![9; 300])),
            change(Edit::Patch(200, vec![1, 2])),
            change(Edit::Remove),
            Record::Shape { parts },
            Record::Commit { xid },
        ]
    }

    #[test]
    fn a_batch_reads_back_and_its_prefixes_read_as_prefixes() {
        let mut buffer = Buffer::new(Lsn(1 << 32));
        let records = records();
        records.iter().for_each(|record| {
            buffer.append(record);
        });
        let payload = buffer.seal().payload();
        let found: Vec<Record> = decode(&payload).into_iter().map(|(_, record)| record).collect();
        assert_eq!(found, records);
        for size in 0..payload.len() {
            let found = decode(&payload[..size]);
            assert!(found.iter().zip(&records).all(|((_, found), record)| found == record));
        }
    }

    #[test]
    fn what_a_version_carries_and_what_aborted_leaves_the_buffer() {
        let mut buffer = Buffer::new(Lsn(0));
        let change = |xid, page| Record::Change {
            xid: Xid(xid),
            page: LogicalPage(page),
            key: Vec::new(),
            edit: Edit::Remove,
        };
        for (xid, page) in [(1, 1), (1, 2), (2, 1), (2, 1)] {
            buffer.append(&change(xid, page));
        }
        buffer.drop_page(LogicalPage(1), Lsn(3));
        buffer.drop_xid(Xid(1));
        let left = decode(&buffer.seal().payload());
        assert_eq!(left, [(Lsn(4), change(2, 1))]);
    }

    #[test]
    fn edits_repeated_give_the_same_again() {
        let cell = |bytes: &[u8]| OwnCell { bytes: bytes.to_vec(), is_ref: false };
        let pairs: [(&[u8], &[u8]); 3] = [(b"abcd", b"aXYd"), (b"ab", b"abc"), (b"same", b"same")];
        for (old, new) in pairs {
            let edit = Edit::between(Some(&cell(old)), Some(&cell(new)));
            let once = edit.apply(Some(old.to_vec()));
            assert_eq!(once.as_deref(), Some(new));
            assert_eq!(edit.apply(once.clone()), once);
        }
    }
}
