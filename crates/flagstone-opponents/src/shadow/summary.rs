//! Summary of a closed block, on its last page: the notes of its units as first written.
//!
//! Owns the byte form of a summary, which holds no final flags: they are programmed later.
//!
//! ```text
//! 0..4 "SHSM"  4..8 units  8..12 CRC-32C over the rest  12..16 zero, then 27 bytes a unit
//! ```

use super::note::{BODY_SIZE, Note};
use flagstone_space::bytes::crc32c;
use flagstone_space::bytes::{get_uint, put_uint};

const MAGIC: &[u8; 4] = b"SHSM";
const HEADER_SIZE: usize = 16;

/// Bytes of a summary of `units` units.
pub(super) const fn size(units: u32) -> usize {
    HEADER_SIZE + BODY_SIZE * units as usize
}

/// Byte form, padded to a page.
pub(super) fn encode(notes: &[Note], page_size: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(page_size);
    bytes.resize(HEADER_SIZE, 0);
    bytes[..4].copy_from_slice(MAGIC);
    put_uint(&mut bytes[4..8], notes.len() as u64);
    notes.iter().for_each(|note| bytes.extend_from_slice(&note.body()));
    let crc = crc32c(&bytes[HEADER_SIZE..]);
    put_uint(&mut bytes[8..12], crc.into());
    debug_assert!(bytes.len() <= page_size, "sizes leave room for it");
    bytes.resize(page_size, 0);
    bytes
}

/// Notes from untrusted bytes, or `None`.
pub(super) fn decode(source: &[u8]) -> Option<Vec<Note>> {
    let (header, rest) = source.split_at_checked(HEADER_SIZE)?;
    (&header[..4] == MAGIC).then_some(())?;
    let size = (get_uint(&header[4..8]) as usize).checked_mul(BODY_SIZE)?;
    let bodies = rest.get(..size)?;
    (u64::from(crc32c(bodies)) == get_uint(&header[8..12])).then_some(())?;
    bodies.chunks_exact(BODY_SIZE).map(Note::from_body).collect()
}
