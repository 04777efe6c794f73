//! Page metadata: a physical page's description of itself.
//!
//! Owns the byte form of the metadata and where it stands on a page. Never reads a device.
//!
//! M1. The checksum covers the payload, the metadata and the physical page number, so two swapped
//!     pages are both detected.
//! M2. Decoding any bytes gives metadata, "erased" or "damaged"; it never panics.
//! M3. A code of its own repairs one flipped bit of the metadata, wherever it stands.
//!
//! ```text
//!  0      kind (3 bits), copy (1 bit), format version (high nibble)
//!  1      part (3 bits), parts - 1 (3 bits), standing (2 bits)
//!  2      region (5 bits), append slots (3 bits)
//!  3..7   logical page
//!  7..13  version
//! 13..20  LSN
//! 20..25  group
//! 25..29  sequence of the block
//! 29..33  CRC-32C
//! 33..35  SECDED code over 0..33
//! 35..38  append count, link, flag: left erased by the first program
//! ```

use flagstone_nand::{Capabilities, Geometry, PhysicalPage};

use crate::bytes::code::{self, Correction};
use crate::bytes::crc32c;
use crate::bytes::{get_uint, put_uint};
use crate::{GroupId, LogicalPage, Lsn, RegionId, Version};

/// Bytes that the first program of a page writes.
pub(crate) const META_SIZE: usize = 35;

/// Bytes with the place left for append count, link and flag.
pub(crate) const META_SIZE_WITH_FLAGS: usize = 38;

/// Bytes that metadata take at the front of the data area, where no spare area holds them.
pub(crate) const HEADER_SIZE: usize = 40;

const CRC_OFFSET: usize = 29;
const CODE_OFFSET: usize = 33;
const FORMAT_NIBBLE: u8 = 1;

/// Bits of byte 0 that name the kind, and the one that marks a copy.
const KIND_MASK: u8 = 7;
const COPY_BIT: u8 = 8;

const _: () = assert!(META_SIZE == CODE_OFFSET + 2);
const _: () = assert!(CODE_OFFSET <= code::DATA_SIZE_MAX);
const _: () = assert!(HEADER_SIZE >= META_SIZE_WITH_FLAGS);

/// Content of a physical page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageKind {
    /// Part of a logical page.
    Data,
    /// First page of a log block.
    Log,
    /// Part of a page of the mapping, the block table or the directory.
    Map,
    /// Part of a checkpoint record.
    Anchor,
    /// Inverse mapping of a block.
    Summary,
}

/// Standing of a data page without further evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Valid by itself in group 0; otherwise only once its group is committed.
    Plain,
    /// Its group was committed when this copy was made: valid by itself.
    Committed,
    /// Kept for a pin only: no mount may take it for the page's newest version.
    History,
    /// As `Plain`; a flag on one page of the group may commit it.
    Flagged,
}

/// Whether the version was written here first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// The unit was programmed here first.
    #[default]
    Original,
    /// The unit was moved here: its source may still be found.
    Copy,
}

/// Metadata of one physical page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageMeta {
    pub(crate) kind: PageKind,
    pub(crate) part: u8,
    pub(crate) parts: u8,
    pub(crate) standing: Standing,
    pub(crate) origin: Origin,
    pub(crate) region: RegionId,
    /// Code words at its end that the first program leaves to appends.
    pub(crate) slots: u8,
    pub(crate) page: LogicalPage,
    pub(crate) version: Version,
    pub(crate) lsn: Lsn,
    pub(crate) group: GroupId,
    pub(crate) sequence: u32,
}

/// Metadata as read: not yet checked against the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RawMeta {
    /// Nothing was programmed here, as far as the bytes tell.
    Erased,
    /// Metadata, and the checksum the payload has to match.
    Found(PageMeta, u32),
    /// Neither.
    Damaged,
}

/// Where metadata stand on a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// In spare bytes outside the device's ECC, with room for flags.
    RawSpare {
        /// First byte within the spare area.
        offset: u32,
    },
    /// In spare bytes that the device's ECC covers.
    CoveredSpare {
        /// First byte within the spare area.
        offset: u32,
    },
    /// At the front of the data area.
    Header,
}

impl Placement {
    /// The first place that is large enough on such a device.
    pub(crate) fn choose(geometry: &Geometry, capabilities: &Capabilities) -> Self {
        let fits = |offset: u32, size: u32, needed: usize| {
            size as usize >= needed
                && u64::from(offset) + u64::from(size) <= geometry.spare_size.into()
        };
        let (raw, covered) = (capabilities.spare_raw, capabilities.spare_covered);
        if fits(raw.offset, raw.size, META_SIZE) {
            Self::RawSpare { offset: raw.offset }
        } else if fits(covered.offset, covered.size, META_SIZE) {
            Self::CoveredSpare { offset: covered.offset }
        } else {
            Self::Header
        }
    }

    /// Bytes of the data area that metadata take.
    pub(crate) const fn header_size(self) -> usize {
        match self {
            Self::Header => HEADER_SIZE,
            Self::RawSpare { .. } | Self::CoveredSpare { .. } => 0,
        }
    }

    /// Byte that names the placement on flash, with the spare offset.
    pub(crate) const fn number(self) -> (u8, u32) {
        match self {
            Self::Header => (0, 0),
            Self::RawSpare { offset } => (1, offset),
            Self::CoveredSpare { offset } => (2, offset),
        }
    }
}

/// Highest number of a region.
pub(crate) const REGION_MAX: u8 = 31;

/// A region and the append slots of one of its pages, in one byte.
pub(crate) const fn region_byte(region: RegionId, slots: u8) -> u8 {
    region.0 & REGION_MAX | slots << 5
}

impl PageKind {
    const fn number(self) -> u8 {
        match self {
            Self::Data => 1,
            Self::Log => 2,
            Self::Map => 3,
            Self::Anchor => 4,
            Self::Summary => 5,
        }
    }

    const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Data),
            2 => Some(Self::Log),
            3 => Some(Self::Map),
            4 => Some(Self::Anchor),
            5 => Some(Self::Summary),
            _ => None,
        }
    }
}

impl Standing {
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Plain => 0,
            Self::Committed => 1,
            Self::History => 2,
            Self::Flagged => 3,
        }
    }

    pub(crate) const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Plain),
            1 => Some(Self::Committed),
            2 => Some(Self::History),
            3 => Some(Self::Flagged),
            _ => None,
        }
    }
}

impl PageMeta {
    /// Metadata of a page that belongs to the floor itself.
    pub(crate) const fn own(kind: PageKind, page: LogicalPage, version: Version) -> Self {
        Self {
            kind,
            part: 0,
            parts: 1,
            standing: Standing::Plain,
            origin: Origin::Original,
            region: RegionId(0),
            slots: 0,
            page,
            version,
            lsn: Lsn::ZERO,
            group: GroupId::NONE,
            sequence: 0,
        }
    }

    /// Byte form for `page`, whose payload has checksum `payload_crc` (M1).
    pub(crate) fn encode(&self, page: PhysicalPage, payload_crc: u32) -> [u8; META_SIZE] {
        let mut bytes = self.fields();
        let crc = seal(&bytes, page, payload_crc);
        put_uint(&mut bytes[CRC_OFFSET..CODE_OFFSET], crc.into());
        let code = code::encode(&bytes[..CODE_OFFSET]);
        put_uint(&mut bytes[CODE_OFFSET..], code.into());
        bytes
    }

    /// Byte form without checksum and code.
    fn fields(&self) -> [u8; META_SIZE] {
        debug_assert!(self.part < self.parts && self.parts <= 8, "parts are counted in three bits");
        let mut bytes = [0; META_SIZE];
        let copy = if self.origin == Origin::Copy { COPY_BIT } else { 0 };
        bytes[0] = self.kind.number() | copy | FORMAT_NIBBLE << 4;
        bytes[1] = self.part | (self.parts - 1) << 3 | self.standing.number() << 6;
        bytes[2] = region_byte(self.region, self.slots);
        put_uint(&mut bytes[3..7], self.page.0.into());
        put_uint(&mut bytes[7..13], self.version.0);
        put_uint(&mut bytes[13..20], self.lsn.0);
        put_uint(&mut bytes[20..25], self.group.0);
        put_uint(&mut bytes[25..29], self.sequence.into());
        bytes
    }

    /// Metadata from untrusted bytes (M2, M3).
    pub(crate) fn decode(source: &[u8]) -> RawMeta {
        let Some(Ok(mut bytes)) = source.get(..META_SIZE).map(<[u8; META_SIZE]>::try_from) else {
            return RawMeta::Damaged;
        };
        // Raw spare bytes may have a flipped bit even where nothing was programmed.
        let mut zeros = bytes.iter().filter(|byte| **byte != 0xFF).map(|byte| byte.count_zeros());
        if zeros.next().is_none_or(|count| count == 1) && zeros.next().is_none() {
            return RawMeta::Erased;
        }
        let code = get_uint(&bytes[CODE_OFFSET..]) as u16;
        if code::correct(&mut bytes[..CODE_OFFSET], code) == Correction::Failed {
            return RawMeta::Damaged;
        }
        match Self::parse(&bytes) {
            Some(meta) => RawMeta::Found(meta, get_uint(&bytes[CRC_OFFSET..CODE_OFFSET]) as u32),
            None => RawMeta::Damaged,
        }
    }

    fn parse(bytes: &[u8; META_SIZE]) -> Option<Self> {
        if bytes[0] >> 4 != FORMAT_NIBBLE {
            return None;
        }
        let (part, parts) = (bytes[1] & 7, (bytes[1] >> 3 & 7) + 1);
        (part < parts).then_some(())?;
        Some(Self {
            kind: PageKind::from_number(bytes[0] & KIND_MASK)?,
            part,
            parts,
            standing: Standing::from_number(bytes[1] >> 6)?,
            origin: if bytes[0] & COPY_BIT == 0 { Origin::Original } else { Origin::Copy },
            region: RegionId(bytes[2] & REGION_MAX),
            slots: bytes[2] >> 5,
            page: LogicalPage(get_uint(&bytes[3..7]) as u32),
            version: Version(get_uint(&bytes[7..13])),
            lsn: Lsn(get_uint(&bytes[13..20])),
            group: GroupId(get_uint(&bytes[20..25])),
            sequence: get_uint(&bytes[25..29]) as u32,
        })
    }

    /// Kind that these metadata bytes give their page.
    #[cfg(feature = "seeded-bugs")]
    pub(crate) fn kind_of(bytes: &[u8]) -> Option<PageKind> {
        bytes.first().and_then(|byte| PageKind::from_number(byte & KIND_MASK))
    }

    /// Makes checksum and code of these metadata fit their bytes and the payload.
    #[cfg(feature = "seeded-bugs")]
    pub(crate) fn reseal(target: &mut [u8], page: PhysicalPage, payload_crc: u32) {
        let Some(bytes) = target.first_chunk_mut::<META_SIZE>() else { return };
        let crc = seal(bytes, page, payload_crc);
        put_uint(&mut bytes[CRC_OFFSET..CODE_OFFSET], crc.into());
        let code = code::encode(&bytes[..CODE_OFFSET]);
        put_uint(&mut bytes[CODE_OFFSET..], code.into());
    }

    /// Whether `crc`, read beside these metadata, fits them, the page and the payload (M1).
    pub(crate) fn matches(&self, page: PhysicalPage, payload_crc: u32, crc: u32) -> bool {
        seal(&self.fields(), page, payload_crc) == crc
    }
}

fn seal(bytes: &[u8; META_SIZE], page: PhysicalPage, payload_crc: u32) -> u32 {
    let mut sealed = [0; CRC_OFFSET + 8];
    sealed[..CRC_OFFSET].copy_from_slice(&bytes[..CRC_OFFSET]);
    put_uint(&mut sealed[CRC_OFFSET..CRC_OFFSET + 4], page.number().into());
    put_uint(&mut sealed[CRC_OFFSET + 4..], payload_crc.into());
    crc32c(&sealed)
}
