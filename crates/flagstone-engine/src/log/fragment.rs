//! Fragments: one program each.
//!
//! ```text
//!  0        4      6              10            13       16       20              28           32
//!  | crc32c | "Lg" | flush index  | payload size | first  | epoch  | sequence      | predecessor | payload
//!  | 4      | 2    | 4            | 3            | 3      | 4      | 8             | 4           |
//! ```
//!
//! Little-endian. The checksum covers all bytes after it, to the end of the payload. `first` is the
//! offset in the payload of the first record that starts there, or 0xFFFFFF.

use crc_fast::{CrcAlgorithm, checksum};

use super::EPOCH_MAX;

/// Bytes of a fragment before its payload.
pub(crate) const HEADER_SIZE: usize = 32;

/// Pages are smaller than this, so that three bytes hold any size or offset.
pub(super) const SIZE_END: usize = 0xFF_FFFF;

const MAGIC: [u8; 2] = *b"Lg";
const NO_RECORD: u32 = 0xFF_FFFF;

const _: () = assert!(4 + MAGIC.len() + 4 + 3 + 3 + 4 + 8 + 4 == HEADER_SIZE);
const _: () = assert!(NO_RECORD as usize >= SIZE_END, "no offset may mean that there is none");

/// The header fields before the payload, except the checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Index of the fragment in its flush.
    pub(crate) flush_index: u32,
    pub(crate) payload_size: u32,
    /// Offset of the first record that starts in the payload.
    pub(crate) first_record: Option<u32>,
    pub(crate) epoch: u32,
    pub(crate) sequence: u64,
    /// Checksum of the fragment before.
    pub(crate) predecessor: u32,
}

impl Header {
    /// Sequence of the first fragment of the flush: all fragments before it were complete (I2).
    pub(crate) fn flush_start(&self) -> u64 {
        self.sequence.saturating_sub(u64::from(self.flush_index))
    }
}

/// Fills in the header of `fragment`, whose payload is in place. Returns the checksum.
pub(super) fn write_header(fragment: &mut [u8], header: &Header) -> u32 {
    debug_assert!(header.payload_size < NO_RECORD, "the size fits in three bytes");
    let first = header.first_record.unwrap_or(NO_RECORD);
    fragment[4..6].copy_from_slice(&MAGIC);
    fragment[6..10].copy_from_slice(&header.flush_index.to_le_bytes());
    fragment[10..13].copy_from_slice(&header.payload_size.to_le_bytes()[..3]);
    fragment[13..16].copy_from_slice(&first.to_le_bytes()[..3]);
    fragment[16..20].copy_from_slice(&header.epoch.to_le_bytes());
    fragment[20..28].copy_from_slice(&header.sequence.to_le_bytes());
    fragment[28..32].copy_from_slice(&header.predecessor.to_le_bytes());
    let end = HEADER_SIZE + header.payload_size as usize;
    let crc = crc32c(&fragment[4..end]);
    fragment[..4].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// A fragment that passed its checks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parsed<'a> {
    pub(crate) header: Header,
    pub(crate) crc: u32,
    pub(crate) payload: &'a [u8],
}

/// The fragment that starts at the front of `bytes`; `None` for anything else.
///
/// Erased, torn and foreign bytes all mean the same: there is no fragment here.
pub(crate) fn parse(bytes: &[u8]) -> Option<Parsed<'_>> {
    let (crc, rest) = take::<4>(bytes)?;
    let (magic, rest) = take::<2>(rest)?;
    let (flush_index, rest) = take::<4>(rest)?;
    let ([size0, size1, size2], rest) = take::<3>(rest)?;
    let ([first0, first1, first2], rest) = take::<3>(rest)?;
    let (epoch, rest) = take::<4>(rest)?;
    let (sequence, rest) = take::<8>(rest)?;
    let (predecessor, rest) = take::<4>(rest)?;
    let payload_size = u32::from_le_bytes([size0, size1, size2, 0]);
    let first = u32::from_le_bytes([first0, first1, first2, 0]);
    let payload = rest.get(..payload_size as usize)?;
    let covered = bytes.get(4..HEADER_SIZE + payload.len())?;
    let crc = u32::from_le_bytes(crc);
    let first_inside = first == NO_RECORD || first < payload_size;
    let epoch = u32::from_le_bytes(epoch);
    let plausible = magic == MAGIC && first_inside && epoch <= EPOCH_MAX;
    if !plausible || crc32c(covered) != crc {
        return None;
    }
    let header = Header {
        flush_index: u32::from_le_bytes(flush_index),
        payload_size,
        first_record: (first != NO_RECORD).then_some(first),
        epoch,
        sequence: u64::from_le_bytes(sequence),
        predecessor: u32::from_le_bytes(predecessor),
    };
    Some(Parsed { header, crc, payload })
}

/// Corrects checksums and chain of the fragments in `pages` for any bytes in them, and returns the
/// changed pages: the checks behind the checksums are tested too.
#[cfg(feature = "seeded-bugs")]
pub fn reseal_all(pages: &mut [&mut [u8]], slot_size: usize) -> Vec<usize> {
    let mut places = Vec::new();
    for (index, page) in pages.iter().enumerate() {
        for offset in (0..page.len()).step_by(slot_size.max(1)) {
            let sequence = page.get(offset + 20..).and_then(|bytes| bytes.first_chunk());
            let is_fragment = page.get(offset + 4..offset + 6) == Some(&MAGIC[..]);
            places.extend(
                sequence
                    .filter(|_| is_fragment)
                    .map(|bytes| (u64::from_le_bytes(*bytes), index, offset)),
            );
        }
    }
    places.sort_unstable();
    let mut renamed = hashbrown::HashMap::new();
    let mut changed = Vec::new();
    for (_, index, offset) in places {
        if let Some((before, after)) = reseal(&mut pages[index][offset..], &renamed)
            && before != after
        {
            renamed.insert(before, after);
            changed.push(index);
        }
    }
    changed
}

/// Seals one fragment; if the checksum of its predecessor changed, `renamed` gives the new one.
/// Returns the fragment's own checksum before and after.
#[cfg(feature = "seeded-bugs")]
fn reseal(bytes: &mut [u8], renamed: &hashbrown::HashMap<u32, u32>) -> Option<(u32, u32)> {
    let size = u32::from_le_bytes(*bytes.get(10..)?.first_chunk()?) & 0xFF_FFFF;
    let whole = bytes.get_mut(..HEADER_SIZE + size as usize)?;
    let before = u32::from_le_bytes(*whole.first_chunk()?);
    let predecessor = u32::from_le_bytes(*whole.get(28..)?.first_chunk()?);
    if let Some(after) = renamed.get(&predecessor) {
        whole[28..32].copy_from_slice(&after.to_le_bytes());
    }
    let after = crc32c(&whole[4..]);
    whole[..4].copy_from_slice(&after.to_le_bytes());
    Some((before, after))
}

fn take<const N: usize>(bytes: &[u8]) -> Option<([u8; N], &[u8])> {
    bytes.split_first_chunk::<N>().map(|(head, rest)| (*head, rest))
}

fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}
