//! The note of a record store's page in its spare area, and the header of a unit in front of its
//! content.
//!
//! Owns both byte forms. Never reads a device.
//!
//! ```text
//! spare  0 kind, format   1 part, parts - 1   2..6 logical page   6..11 version or log number
//!       11..15 CRC-32C over payload, note and page number   15..17 SECDED code over 0..15
//!       17..   flags: five cells each, one flag a slot
//!
//! unit   0..5 version before it (back)   5..10 stamp: order of programs   10..17 LSN   17 members,
//!        then 11 bytes a member: transaction (5), its number in the transaction (2), link: place of
//!        the member before (4)
//! ```
//!
//! The flags of a unit stand on its first page, and count against the programs that page takes.

use flagstone_nand::PhysicalPage;

use crate::evidence::Flag;
use crate::shadow::note::{FLAG_SIZE, NUMBER_MAX, flag_cells, vote};
use flagstone_space::bytes::code::{self, Correction};
use flagstone_space::bytes::crc32c;
use flagstone_space::bytes::{get_uint, put_uint};
use flagstone_space::{GroupId, LogicalPage, Lsn, Version};

/// Spare bytes that the first program of a page writes, flags apart.
pub(super) const NOTE_SIZE: usize = 17;
const BODY_SIZE: usize = 11;
const CODE_OFFSET: usize = 15;
const FORMAT_NIBBLE: u8 = 3;

/// Transactions that one unit may carry, even where the device allows more.
pub(super) const SLOTS_MAX: usize = 7;

/// Slots by which an address is told from the next unit's.
pub(super) const SLOT_STRIDE: u32 = 8;

const _: () = assert!(SLOTS_MAX < SLOT_STRIDE as usize);

const HEADER_FIXED: usize = 18;
const MEMBER_SIZE: usize = 11;

/// Bytes that a unit of up to `slots` members says of itself.
pub(super) const fn header_size(slots: usize) -> usize {
    HEADER_FIXED + slots * MEMBER_SIZE
}

/// Spare bytes of a note with `slots` flags.
pub(super) const fn spare_size(slots: usize) -> usize {
    NOTE_SIZE + slots * FLAG_SIZE
}

/// No version.
pub(super) const NO_VERSION: u64 = NUMBER_MAX;
const NO_LINK: u32 = u32::MAX;

/// Content of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Part of a version of a logical page.
    Unit,
    /// Contents of the block.
    Summary,
    /// A page of the log.
    Log,
}

/// Note of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) kind: Kind,
    pub(super) part: u8,
    pub(super) parts: u8,
    pub(super) page: LogicalPage,
    pub(super) version: Version,
}

/// A note as read: not yet checked against the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RawNote {
    Erased,
    Damaged,
    /// Note and checksum.
    Found(Note, u32),
}

impl Note {
    fn body(&self) -> [u8; BODY_SIZE] {
        let mut bytes = [0; BODY_SIZE];
        bytes[0] = self.kind as u8 | FORMAT_NIBBLE << 4;
        bytes[1] = self.part | (self.parts - 1) << 4;
        put_uint(&mut bytes[2..6], self.page.0.into());
        put_uint(&mut bytes[6..11], self.version.0);
        bytes
    }

    fn from_body(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..BODY_SIZE)?;
        (bytes[0] >> 4 == FORMAT_NIBBLE).then_some(())?;
        let kind = match bytes[0] & 0xF {
            0 => Kind::Unit,
            1 => Kind::Summary,
            2 => Kind::Log,
            _ => return None,
        };
        let (part, parts) = (bytes[1] & 0xF, (bytes[1] >> 4) + 1);
        (part < parts).then_some(())?;
        let page = LogicalPage(get_uint(&bytes[2..6]) as u32);
        Some(Self { kind, part, parts, page, version: Version(get_uint(&bytes[6..11])) })
    }

    /// Byte form for `page`, whose payload has checksum `payload_crc`.
    pub(super) fn encode(&self, page: PhysicalPage, payload_crc: u32) -> [u8; NOTE_SIZE] {
        let mut bytes = [0; NOTE_SIZE];
        bytes[..BODY_SIZE].copy_from_slice(&self.body());
        let crc = seal(&bytes[..BODY_SIZE], page, payload_crc);
        put_uint(&mut bytes[BODY_SIZE..CODE_OFFSET], crc.into());
        let code = code::encode(&bytes[..CODE_OFFSET]);
        put_uint(&mut bytes[CODE_OFFSET..], code.into());
        bytes
    }

    /// A note from untrusted bytes.
    pub(super) fn decode(source: &[u8]) -> RawNote {
        let Some(Ok(mut bytes)) = source.get(..NOTE_SIZE).map(<[u8; NOTE_SIZE]>::try_from) else {
            return RawNote::Damaged;
        };
        if bytes.iter().map(|byte| byte.count_zeros()).sum::<u32>() <= 1 {
            return RawNote::Erased;
        }
        let code = get_uint(&bytes[CODE_OFFSET..]) as u16;
        if code::correct(&mut bytes[..CODE_OFFSET], code) == Correction::Failed {
            return RawNote::Damaged;
        }
        let crc = get_uint(&bytes[BODY_SIZE..CODE_OFFSET]) as u32;
        Self::from_body(&bytes).map_or(RawNote::Damaged, |note| RawNote::Found(note, crc))
    }

    /// Whether `crc`, read beside this note, fits it, the page and the payload.
    pub(super) fn matches(&self, page: PhysicalPage, payload_crc: u32, crc: u32) -> bool {
        seal(&self.body(), page, payload_crc) == crc
    }
}

fn seal(body: &[u8], page: PhysicalPage, payload_crc: u32) -> u32 {
    let mut sealed = [0; BODY_SIZE + 8];
    sealed[..BODY_SIZE].copy_from_slice(body);
    put_uint(&mut sealed[BODY_SIZE..BODY_SIZE + 4], page.number().into());
    put_uint(&mut sealed[BODY_SIZE + 4..], payload_crc.into());
    crc32c(&sealed)
}

/// Flags of the slots, from the spare bytes of a unit's first page.
pub(super) fn flags(spare: &[u8], slots: usize) -> Vec<Flag> {
    let cells = spare.get(NOTE_SIZE..).unwrap_or_default();
    let mut flags: Vec<Flag> = cells.chunks_exact(FLAG_SIZE).take(slots).map(vote).collect();
    flags.resize(slots, Flag::First);
    flags
}

/// Spare bytes of a slot's flag: their offset behind the note, and the cells to program.
pub(super) const fn cells_of(slot: usize, flag: Flag) -> (usize, [u8; FLAG_SIZE]) {
    (NOTE_SIZE + slot * FLAG_SIZE, flag_cells(flag))
}

/// A transaction's share of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) xid: GroupId,
    /// Its number among the members of its transaction.
    pub(super) order: u16,
    /// Member before it.
    pub(super) link: Option<u32>,
}

/// Header of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) back: u64,
    /// Number of the program: copies have one of their own.
    pub(super) stamp: u64,
    pub(super) lsn: Lsn,
    pub(super) members: Vec<Member>,
}

impl Header {
    /// Writes the header at the front of `target`, which has room for `slots` members.
    pub(super) fn encode(&self, target: &mut [u8]) {
        put_uint(&mut target[..5], self.back);
        put_uint(&mut target[5..10], self.stamp);
        put_uint(&mut target[10..17], self.lsn.0);
        target[17] = self.members.len() as u8;
        let places = target[HEADER_FIXED..].chunks_exact_mut(MEMBER_SIZE);
        for (member, place) in self.members.iter().zip(places) {
            put_uint(&mut place[..5], member.xid.0);
            put_uint(&mut place[5..7], member.order.into());
            put_uint(&mut place[7..11], member.link.unwrap_or(NO_LINK).into());
        }
    }

    /// A header from untrusted bytes.
    pub(super) fn decode(source: &[u8]) -> Option<Self> {
        let fixed = source.get(..HEADER_FIXED)?;
        let count = usize::from(fixed[17]);
        (count <= SLOTS_MAX).then_some(())?;
        let rest = source.get(HEADER_FIXED..HEADER_FIXED + count * MEMBER_SIZE)?;
        let member = |place: &[u8]| {
            let link = get_uint(&place[7..11]) as u32;
            Member {
                xid: GroupId(get_uint(&place[..5])),
                order: get_uint(&place[5..7]) as u16,
                link: (link != NO_LINK).then_some(link),
            }
        };
        let members = rest.chunks_exact(MEMBER_SIZE).map(member).collect();
        let (back, stamp) = (get_uint(&fixed[..5]), get_uint(&fixed[5..10]));
        Some(Self { back, stamp, lsn: Lsn(get_uint(&fixed[10..17])), members })
    }

    /// Bytes that the header takes.
    pub(super) fn size(&self) -> usize {
        header_size(self.members.len())
    }
}

/// A unit as the summary of its block repeats it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Body {
    pub(super) page: LogicalPage,
    pub(super) version: Version,
    pub(super) header: Header,
}

const SUMMARY_MAGIC: &[u8; 4] = b"SHRS";
const SUMMARY_HEADER: usize = 12;

/// Most bytes of a summary.
pub(super) const fn summary_size(units: u32, slots: usize) -> usize {
    SUMMARY_HEADER + units as usize * (9 + header_size(slots))
}

/// Byte form of a block's summary, padded to a page.
pub(super) fn encode_summary(bodies: &[Body], page_size: usize) -> Vec<u8> {
    let mut bytes = vec![0; SUMMARY_HEADER];
    bytes[..4].copy_from_slice(SUMMARY_MAGIC);
    put_uint(&mut bytes[4..8], bodies.len() as u64);
    for body in bodies {
        let start = bytes.len();
        bytes.resize(start + 9 + body.header.size(), 0);
        put_uint(&mut bytes[start..start + 4], body.page.0.into());
        put_uint(&mut bytes[start + 4..start + 9], body.version.0);
        body.header.encode(&mut bytes[start + 9..]);
    }
    let crc = crc32c(&bytes[SUMMARY_HEADER..]);
    put_uint(&mut bytes[8..12], crc.into());
    bytes.resize(page_size.max(bytes.len()), 0);
    bytes
}

/// Units of a block from untrusted bytes, or `None`.
pub(super) fn decode_summary(source: &[u8]) -> Option<Vec<Body>> {
    let (head, mut rest) = source.split_at_checked(SUMMARY_HEADER)?;
    (&head[..4] == SUMMARY_MAGIC).then_some(())?;
    let all = rest;
    let mut bodies = Vec::new();
    for _ in 0..get_uint(&head[4..8]) {
        let (place, behind) = rest.split_at_checked(9)?;
        let header = Header::decode(behind)?;
        rest = behind.get(header.size()..)?;
        bodies.push(Body {
            page: LogicalPage(get_uint(&place[..4]) as u32),
            version: Version(get_uint(&place[4..9])),
            header,
        });
    }
    let size = all.len() - rest.len();
    (u64::from(crc32c(&all[..size])) == get_uint(&head[8..12])).then_some(bodies)
}
