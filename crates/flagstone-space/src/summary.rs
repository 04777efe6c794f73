//! Block summaries: the inverse mapping of a data block, on its last pages.
//!
//! Owns the byte form. Never decides which copy of a page wins.
//!
//! ```text
//! header   0..4 "FSUM"  4..6 version  6 parts  7 ring blocks  8..12 log pages
//!          12..16 logical pages  16..20 entries  20..24 sequence of the block
//!          24..28 sequence floor of the format  28..32 CRC-32C over everything else
//! entry    0..4 logical page  4..10 version  10..17 LSN  17..22 group  22 region, append slots
//!          23 kind (low nibble), standing (2 bits), copy (1 bit)
//! ```

use alloc::vec::Vec;

use crate::bytes::crc32c;
use crate::bytes::{get_uint, put_uint};
use crate::meta::{Origin, PageKind, PageMeta, REGION_MAX, Standing, region_byte};
use crate::{GroupId, LogicalPage, Lsn, RegionId, Version};

const MAGIC: &[u8; 4] = b"FSUM";
const HEADER_SIZE: usize = 32;
const ENTRY_SIZE: usize = 24;

/// Bit beside the parts of a unit: the device grows.
const GROWS: u8 = 0x80;

/// Bit of an entry's last byte: the unit is a copy.
const COPY: u8 = 0x40;

/// Bytes of a summary of `units` units.
pub(crate) const fn size(units: u32) -> usize {
    HEADER_SIZE + ENTRY_SIZE * units as usize
}

/// Facts of the format that a summary repeats, for a mount that finds no checkpoint record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SummaryHead {
    pub(crate) parts: u8,
    pub(crate) grows: bool,
    pub(crate) ring_blocks: u8,
    pub(crate) log_pages: u32,
    pub(crate) logical_pages: u32,
    pub(crate) sequence: u32,
    pub(crate) sequence_floor: u32,
}

/// Byte form of a summary.
pub(crate) fn encode(head: &SummaryHead, units: &[PageMeta], target: &mut Vec<u8>) {
    target.clear();
    target.resize(HEADER_SIZE, 0);
    target[..4].copy_from_slice(MAGIC);
    put_uint(&mut target[4..6], 1);
    target[6] = head.parts | if head.grows { GROWS } else { 0 };
    target[7] = head.ring_blocks;
    put_uint(&mut target[8..12], head.log_pages.into());
    put_uint(&mut target[12..16], head.logical_pages.into());
    put_uint(&mut target[16..20], units.len() as u64);
    put_uint(&mut target[20..24], head.sequence.into());
    put_uint(&mut target[24..28], head.sequence_floor.into());
    for unit in units {
        let mut entry = [0; ENTRY_SIZE];
        put_uint(&mut entry[..4], unit.page.0.into());
        put_uint(&mut entry[4..10], unit.version.0);
        put_uint(&mut entry[10..17], unit.lsn.0);
        put_uint(&mut entry[17..22], unit.group.0);
        entry[22] = region_byte(unit.region, unit.slots);
        let copy = if unit.origin == Origin::Copy { COPY } else { 0 };
        entry[23] = kind_number(unit.kind) | unit.standing.number() << 4 | copy;
        target.extend_from_slice(&entry);
    }
    let crc = crc_of(target);
    put_uint(&mut target[28..32], crc.into());
}

fn crc_of(bytes: &[u8]) -> u32 {
    crc32c(&bytes[..28]) ^ crc32c(&bytes[HEADER_SIZE..]).rotate_left(1)
}

/// Makes the checksum fit the summary, or the bytes in its place.
#[cfg(feature = "seeded-bugs")]
pub(crate) fn reseal(bytes: &mut [u8]) {
    let Some(header) = bytes.get(..HEADER_SIZE) else { return };
    let count = get_uint(&header[16..20]) as usize;
    let Some(whole) = bytes.get_mut(..HEADER_SIZE + count * ENTRY_SIZE) else { return };
    let crc = crc_of(whole);
    put_uint(&mut whole[28..32], crc.into());
}

const fn kind_number(kind: PageKind) -> u8 {
    match kind {
        PageKind::Map => 1,
        _ => 0,
    }
}

/// Units of a summary from untrusted bytes; `None` when they are no whole summary.
pub(crate) fn decode(source: &[u8]) -> Option<(SummaryHead, Vec<PageMeta>)> {
    let (header, rest) = source.split_at_checked(HEADER_SIZE)?;
    if &header[..4] != MAGIC || get_uint(&header[4..6]) != 1 {
        return None;
    }
    let count = usize::try_from(get_uint(&header[16..20])).ok()?;
    let entries = rest.get(..count.checked_mul(ENTRY_SIZE)?)?;
    if u64::from(crc_of(&source[..HEADER_SIZE + entries.len()])) != get_uint(&header[28..32]) {
        return None;
    }
    let head = SummaryHead {
        parts: header[6] & !GROWS,
        grows: header[6] & GROWS != 0,
        ring_blocks: header[7],
        log_pages: get_uint(&header[8..12]) as u32,
        logical_pages: get_uint(&header[12..16]) as u32,
        sequence: get_uint(&header[20..24]) as u32,
        sequence_floor: get_uint(&header[24..28]) as u32,
    };
    let units = entries.chunks_exact(ENTRY_SIZE).map(|entry| unit(entry, &head));
    Some((head, units.collect::<Option<_>>()?))
}

fn unit(entry: &[u8], head: &SummaryHead) -> Option<PageMeta> {
    let kind = if entry[23] & 0xF == 1 { PageKind::Map } else { PageKind::Data };
    Some(PageMeta {
        kind,
        part: 0,
        parts: head.parts,
        standing: Standing::from_number(entry[23] >> 4 & 3)?,
        origin: if entry[23] & COPY == 0 { Origin::Original } else { Origin::Copy },
        region: RegionId(entry[22] & REGION_MAX),
        slots: entry[22] >> 5,
        page: LogicalPage(get_uint(&entry[..4]) as u32),
        version: Version(get_uint(&entry[4..10])),
        lsn: Lsn(get_uint(&entry[10..17])),
        group: GroupId(get_uint(&entry[17..22])),
        sequence: head.sequence,
    })
}
