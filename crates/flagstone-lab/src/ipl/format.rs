//! Bytes of data pages and log sectors, and the checks that tell torn ones.
//!
//! Owns both forms. Bytes from flash are untrusted: any bytes give a part, a sector, or none.

use std::hash::{DefaultHasher, Hasher};

use super::Mistake;

/// Bytes of a log sector: one program, and a code word or several.
pub(super) const SECTOR_SIZE: usize = 512;

/// Bytes of a sector that records may take.
pub(super) const SECTOR_ROOM: usize = SECTOR_SIZE - SECTOR_HEAD;

const SECTOR_HEAD: usize = 24;

/// Bytes of a record at least: size, transaction and number.
pub(super) const RECORD_MIN: usize = 12;

/// Bytes that a part's metadata take in the spare area.
pub(super) const META_SIZE: usize = 27;

/// Bytes of a part that describe it; the rest repeats a word that follows from them.
const PART_HEAD: usize = 24;

/// Content of a page: the changes made to it, in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// How many changes.
    pub changes: u64,
    /// Sum of the mixed numbers of the changes.
    pub sum: u64,
}

impl Version {
    /// Makes change `number` of `page`.
    pub fn add(&mut self, page: u32, number: u64) {
        self.changes = self.changes.wrapping_add(1);
        self.sum = self.sum.wrapping_add(mixed(page, number));
    }

    /// Takes change `number` of `page` back.
    pub fn remove(&mut self, page: u32, number: u64) {
        self.changes = self.changes.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(mixed(page, number));
    }
}

/// Unlike that of any other change, as far as 64 bits tell.
fn mixed(page: u32, number: u64) -> u64 {
    hash(&[&page.to_le_bytes(), &number.to_le_bytes()])
}

fn hash(parts: &[&[u8]]) -> u64 {
    // SipHash with fixed keys: another program never reads the chip.
    let mut hasher = DefaultHasher::new();
    parts.iter().for_each(|part| hasher.write(part));
    hasher.finish()
}

fn check_of(parts: &[&[u8]]) -> [u8; 4] {
    (hash(parts) as u32).to_le_bytes()
}

/// Little-endian number of any width; bytes that are not there count as 0.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Appends the low `width` bytes of a number.
fn put(target: &mut Vec<u8>, value: u64, width: usize) {
    target.extend_from_slice(&value.to_le_bytes()[..width]);
}

/// Takes `width` bytes as a number.
fn take(source: &mut &[u8], width: usize) -> Option<u64> {
    let (first, rest) = source.split_at_checked(width)?;
    *source = rest;
    Some(number(first))
}

/// Description of a part, one flash page of a data page, in its spare area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartMeta {
    /// Life of the block.
    pub(super) life: u64,
    /// Order of pages and sectors; the parts of a page share it.
    pub(super) sequence: u64,
    pub(super) unit: u32,
    pub(super) page: u32,
    /// Slots that the merge which began the block's life wrote (I1).
    pub(super) merged: u16,
}

/// A part: data and metadata.
pub(super) fn encode_part(
    meta: &PartMeta,
    version: Version,
    index: u32,
    data: &mut [u8],
) -> Vec<u8> {
    let mut head = Vec::with_capacity(PART_HEAD);
    put(&mut head, version.changes, 8);
    put(&mut head, version.sum, 8);
    let word = hash(&[&head, &meta.page.to_le_bytes(), &index.to_le_bytes()]);
    put(&mut head, word, 8);
    let word = word.to_le_bytes();
    data.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&word[..chunk.len()]));
    data[..PART_HEAD].copy_from_slice(&head);
    let mut spare = Vec::with_capacity(META_SIZE);
    put(&mut spare, meta.life, 6);
    put(&mut spare, meta.sequence, 6);
    put(&mut spare, meta.unit.into(), 4);
    put(&mut spare, meta.page.into(), 4);
    put(&mut spare, meta.merged.into(), 2);
    put(&mut spare, index.into(), 1);
    spare.extend(check_of(&[data, &spare]));
    spare
}

/// Reads part `index` of a block; none when it is erased or torn.
pub(super) fn decode_part(
    data: &[u8],
    spare: &[u8],
    index: u32,
    mistake: Mistake,
) -> Option<(PartMeta, Version)> {
    let (mut meta, check) = spare.split_last_chunk::<4>()?;
    if *check != check_of(&[data, meta]) && mistake != Mistake::ChecksumIgnored {
        return None;
    }
    let meta = &mut meta;
    let life = take(meta, 6)?;
    let sequence = take(meta, 6)?;
    let (unit, page) = (take(meta, 4)? as u32, take(meta, 4)? as u32);
    let merged = take(meta, 2)? as u16;
    (take(meta, 1)? == u64::from(index)).then_some(())?;
    let version = Version { changes: number(data.get(..8)?), sum: number(data.get(8..16)?) };
    Some((PartMeta { life, sequence, unit, page, merged }, version))
}

/// Purpose of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SectorKind {
    /// Records of a page, in its unit.
    Log,
    /// Records of a page, elsewhere.
    Overflow,
    /// Transactions that have committed.
    Status,
}

/// Head of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SectorHead {
    pub(super) kind: SectorKind,
    /// Slot of the page in its unit.
    pub(super) slot: u8,
    /// Life of the unit's block (I2).
    pub(super) life: u64,
    pub(super) sequence: u64,
    pub(super) page: u32,
}

/// A log record on flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) xid: u64,
    pub(super) number: u64,
    pub(super) size: u16,
}

/// A sector with `records`, which fit.
pub(super) fn encode_sector(head: &SectorHead, records: &[Record]) -> Vec<u8> {
    let mut body = Vec::with_capacity(SECTOR_SIZE);
    for record in records {
        let end = body.len() + usize::from(record.size).max(RECORD_MIN);
        put(&mut body, record.size.into(), 2);
        put(&mut body, record.xid, 5);
        put(&mut body, record.number, 5);
        // The bytes of the change itself.
        body.resize(end, record.number as u8);
    }
    let mut sector = Vec::with_capacity(SECTOR_SIZE);
    let kind = match head.kind {
        SectorKind::Log => 1,
        SectorKind::Overflow => 2,
        SectorKind::Status => 3,
    };
    sector.extend([kind, head.slot]);
    put(&mut sector, body.len() as u64, 2);
    put(&mut sector, head.life, 6);
    put(&mut sector, head.sequence, 6);
    put(&mut sector, head.page.into(), 4);
    sector.extend(body);
    assert!(sector.len() + 4 <= SECTOR_SIZE, "records fit their sector");
    sector.resize(SECTOR_SIZE - 4, 0xFF);
    sector.extend(check_of(&[&sector]));
    sector
}

/// Reads a sector; none when it is erased or torn.
pub(super) fn decode_sector(bytes: &[u8], mistake: Mistake) -> Option<(SectorHead, Vec<Record>)> {
    let (mut source, check) = bytes.split_last_chunk::<4>()?;
    if *check != check_of(&[source]) && mistake != Mistake::ChecksumIgnored {
        return None;
    }
    let source = &mut source;
    let kind = match take(source, 1)? {
        1 => SectorKind::Log,
        2 => SectorKind::Overflow,
        3 => SectorKind::Status,
        _ => return None,
    };
    let slot = take(source, 1)? as u8;
    let size = take(source, 2)? as usize;
    let (life, sequence) = (take(source, 6)?, take(source, 6)?);
    let page = take(source, 4)? as u32;
    let mut body = source.get(..size)?;
    let mut records = Vec::new();
    while !body.is_empty() {
        let size = take(&mut body, 2)?;
        let (xid, number) = (take(&mut body, 5)?, take(&mut body, 5)?);
        let rest = (size as usize).saturating_sub(RECORD_MIN);
        body = body.get(rest..)?;
        records.push(Record { xid, number, size: size as u16 });
    }
    Some((SectorHead { kind, slot, life, sequence, page }, records))
}

/// Bytes that records take in a sector.
pub(super) fn size_of(records: &[Record]) -> usize {
    records.iter().map(|record| usize::from(record.size).max(RECORD_MIN)).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NONE: Mistake = Mistake::None;

    #[test]
    fn parts_read_back_and_show_one_wrong_bit() {
        let meta = PartMeta { life: 7, sequence: 9, unit: 3, page: 41, merged: 0x7FFF };
        let mut version = Version::default();
        version.add(41, 5);
        let mut data = vec![0; 2048];
        let spare = encode_part(&meta, version, 6, &mut data);
        assert_eq!(spare.len(), META_SIZE);
        assert_eq!(decode_part(&data, &spare, 6, NONE), Some((meta, version)));
        assert_eq!(decode_part(&data, &spare, 7, NONE), None, "another flash page");
        data[2047] ^= 1;
        assert_eq!(decode_part(&data, &spare, 6, NONE), None);
    }

    proptest! {
        #[test]
        fn sectors_read_back(sizes in prop::collection::vec(0_u16..200, 0..20)) {
            let head = SectorHead {
                kind: SectorKind::Overflow, slot: 4, life: 1 << 40, sequence: 77, page: 12,
            };
            let mut records: Vec<Record> = Vec::new();
            for (at, size) in (1..).zip(sizes) {
                records.push(Record { xid: at + 1, number: at << 20, size });
            }
            while size_of(&records) > SECTOR_ROOM {
                records.pop();
            }
            let mut bytes = encode_sector(&head, &records);
            prop_assert_eq!(bytes.len(), SECTOR_SIZE);
            prop_assert_eq!(decode_sector(&bytes, NONE), Some((head, records)));
            bytes[100] ^= 4;
            prop_assert_eq!(decode_sector(&bytes, NONE), None);
        }

        #[test]
        fn any_bytes_give_a_sector_or_none(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = decode_sector(&bytes, Mistake::ChecksumIgnored);
            let _ = decode_part(&bytes, &bytes, 0, Mistake::ChecksumIgnored);
        }
    }
}
