//! The note of a shadow page, in its spare area.
//!
//! Owns the byte form and the vote over a flag's cells. Never reads a device.
//!
//! N1. The checksum covers payload, note and page number; a code of its own repairs one bit.
//! N2. Any bytes decode into a note, "erased" or "damaged".
//! N3. A flag has cells outside every checksum: three bytes that fall for `True`, two that fall for
//! `False`, which wins. Fewer than three quarters of their bits are not enough: a flag in between
//! is not set, and a torn `False` never looks like `True`.
//!
//! ```text
//!  0      kind (low nibble), format version (high nibble)
//!  1      part (3 bits), parts - 1 (3 bits), flag as first written (2 bits)
//!  2..6   logical page
//!  6..11  version
//! 11..16  transaction                  | version of the next record   (cycles)
//! 16..18  order in its transaction     | revision of the record
//! 18..22  link: page before it         | page of the next record
//! 22..27  floor: all below have ended  | back: version committed before
//! 27..31  CRC-32C
//! 31..33  SECDED code over 0..31
//! 33..38  flag: left erased by the first program
//! ```

use flagstone_nand::PhysicalPage;

use crate::evidence::{Flag, Intention, Shadow};
use flagstone_space::bytes::code::{self, Correction};
use flagstone_space::bytes::crc32c;
use flagstone_space::bytes::{get_uint, put_uint};
use flagstone_space::{GroupId, LogicalPage, Version};

/// Bytes that the first program writes.
pub(super) const NOTE_SIZE: usize = 33;

/// Cells of a flag.
pub(super) const FLAG_SIZE: usize = 5;

/// Bytes with the flag.
pub(super) const NOTE_SIZE_WITH_FLAG: usize = NOTE_SIZE + FLAG_SIZE;

/// Bytes that a block summary repeats.
pub(super) const BODY_SIZE: usize = 27;

/// Highest number that five bytes hold, which stands for none.
pub(super) const NUMBER_MAX: u64 = (1 << 40) - 1;

const CODE_OFFSET: usize = 31;
const FORMAT_NIBBLE: u8 = 2;

/// No page.
pub(super) const NOWHERE: u32 = u32::MAX;

const _: () = assert!(NOTE_SIZE == CODE_OFFSET + 2);
const _: () = assert!(CODE_OFFSET <= code::DATA_SIZE_MAX);

/// Content of a physical page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Part of a logical page.
    Data,
    /// Contents of the block.
    Summary,
    /// Numbers that the store reserves, and its options at format.
    Mark,
}

/// Note of a page. `owner`, `order`, `link` and `mark` get their meaning from the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) kind: Kind,
    pub(super) part: u8,
    pub(super) parts: u8,
    pub(super) initial: Flag,
    pub(super) page: LogicalPage,
    pub(super) version: Version,
    pub(super) owner: u64,
    pub(super) order: u16,
    pub(super) link: u32,
    pub(super) mark: u64,
}

/// A note as read: not yet checked against the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RawNote {
    Erased,
    Damaged,
    /// Note, flag, checksum.
    Found(Note, Flag, u32),
}

impl Note {
    /// Note of a page that belongs to the store itself.
    pub(super) const fn own(kind: Kind, version: Version) -> Self {
        Self {
            kind,
            part: 0,
            parts: 1,
            initial: Flag::First,
            page: LogicalPage(NOWHERE),
            version,
            owner: NUMBER_MAX,
            order: 0,
            link: NOWHERE,
            mark: 0,
        }
    }

    /// Transaction (chains).
    pub(super) const fn xid(&self) -> GroupId {
        GroupId(self.owner)
    }

    /// As the rules of chains see it.
    pub(super) fn shadow(&self, at: u32, flag: Flag) -> Shadow<u32> {
        Shadow {
            at,
            page: self.page,
            version: self.version,
            xid: self.xid(),
            order: self.order.into(),
            link: (self.link != NOWHERE).then_some(self.link),
            flag,
        }
    }

    /// As the rules of cycles see it.
    pub(super) fn intention(&self) -> Intention {
        Intention {
            page: self.page,
            version: self.version,
            next: (LogicalPage(self.link), Version(self.owner)),
            back: Version(self.mark),
        }
    }

    /// The bytes that a summary repeats.
    pub(super) fn body(&self) -> [u8; BODY_SIZE] {
        debug_assert!(self.part < self.parts && self.parts <= 8, "parts are counted in three bits");
        let mut bytes = [0; BODY_SIZE];
        bytes[0] = self.kind.number() | FORMAT_NIBBLE << 4;
        bytes[1] = self.part | (self.parts - 1) << 3 | flag_number(self.initial) << 6;
        put_uint(&mut bytes[2..6], self.page.0.into());
        put_uint(&mut bytes[6..11], self.version.0);
        put_uint(&mut bytes[11..16], self.owner);
        put_uint(&mut bytes[16..18], self.order.into());
        put_uint(&mut bytes[18..22], self.link.into());
        put_uint(&mut bytes[22..27], self.mark);
        bytes
    }

    /// A note from the bytes that a summary repeats.
    pub(super) fn from_body(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..BODY_SIZE)?;
        (bytes[0] >> 4 == FORMAT_NIBBLE).then_some(())?;
        let (part, parts) = (bytes[1] & 7, (bytes[1] >> 3 & 7) + 1);
        (part < parts).then_some(())?;
        Some(Self {
            kind: Kind::from_number(bytes[0] & 0xF)?,
            part,
            parts,
            initial: flag_from_number(bytes[1] >> 6)?,
            page: LogicalPage(get_uint(&bytes[2..6]) as u32),
            version: Version(get_uint(&bytes[6..11])),
            owner: get_uint(&bytes[11..16]),
            order: get_uint(&bytes[16..18]) as u16,
            link: get_uint(&bytes[18..22]) as u32,
            mark: get_uint(&bytes[22..27]),
        })
    }

    /// Byte form for `page`, whose payload has checksum `payload_crc` (N1).
    pub(super) fn encode(&self, page: PhysicalPage, payload_crc: u32) -> [u8; NOTE_SIZE] {
        let mut bytes = [0; NOTE_SIZE];
        bytes[..BODY_SIZE].copy_from_slice(&self.body());
        let crc = seal(&bytes[..BODY_SIZE], page, payload_crc);
        put_uint(&mut bytes[BODY_SIZE..CODE_OFFSET], crc.into());
        let code = code::encode(&bytes[..CODE_OFFSET]);
        put_uint(&mut bytes[CODE_OFFSET..], code.into());
        bytes
    }

    /// A note from untrusted bytes, with or without the cells of a flag (N2).
    pub(super) fn decode(source: &[u8]) -> RawNote {
        let Some(Ok(mut bytes)) = source.get(..NOTE_SIZE).map(<[u8; NOTE_SIZE]>::try_from) else {
            return RawNote::Damaged;
        };
        // Spare bytes may have a flipped bit even where nothing was programmed.
        if bytes.iter().map(|byte| byte.count_zeros()).sum::<u32>() <= 1 {
            return RawNote::Erased;
        }
        let code = get_uint(&bytes[CODE_OFFSET..]) as u16;
        if code::correct(&mut bytes[..CODE_OFFSET], code) == Correction::Failed {
            return RawNote::Damaged;
        }
        let crc = get_uint(&bytes[BODY_SIZE..CODE_OFFSET]) as u32;
        match Self::from_body(&bytes) {
            Some(note) => {
                let flag = vote(source.get(NOTE_SIZE..).unwrap_or_default());
                let flag = if flag == Flag::First { note.initial } else { flag };
                RawNote::Found(note, flag, crc)
            }
            None => RawNote::Damaged,
        }
    }

    /// Whether `crc`, read beside this note, fits it, the page and the payload (N1).
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

/// Cells that fall for `True`; the others fall for `False`.
const TRUE_SIZE: usize = 3;

/// Cells to program for a flag.
pub(super) const fn flag_cells(flag: Flag) -> [u8; FLAG_SIZE] {
    match flag {
        Flag::First => [0xFF; FLAG_SIZE],
        Flag::True => [0, 0, 0, 0xFF, 0xFF],
        Flag::False => [0xFF, 0xFF, 0xFF, 0, 0],
    }
}

/// The flag that its cells show (N3).
pub(super) fn vote(cells: &[u8]) -> Flag {
    let has_fallen = |cells: &[u8]| {
        let fallen: u32 = cells.iter().map(|cell| cell.count_zeros()).sum();
        !cells.is_empty() && fallen as usize * 4 >= cells.len() * 8 * 3
    };
    match cells.split_at_checked(TRUE_SIZE) {
        Some((_, falses)) if has_fallen(falses) => Flag::False,
        Some((trues, _)) if has_fallen(trues) => Flag::True,
        _ => Flag::First,
    }
}

const fn flag_number(flag: Flag) -> u8 {
    match flag {
        Flag::First => 3,
        Flag::True => 2,
        Flag::False => 0,
    }
}

const fn flag_from_number(number: u8) -> Option<Flag> {
    match number {
        3 => Some(Flag::First),
        2 => Some(Flag::True),
        0 => Some(Flag::False),
        _ => None,
    }
}

impl Kind {
    const fn number(self) -> u8 {
        match self {
            Self::Data => 1,
            Self::Summary => 2,
            Self::Mark => 3,
        }
    }

    const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Data),
            2 => Some(Self::Summary),
            3 => Some(Self::Mark),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTE: Note = Note {
        kind: Kind::Data,
        part: 2,
        parts: 4,
        initial: Flag::First,
        page: LogicalPage(0x1234_5678),
        version: Version(0x11_2233_4455),
        owner: 0x66_7788_99AA,
        order: 0xBBCC,
        link: 0xDDEE_FF00,
        mark: 0x12_3456_789A,
    };

    fn page() -> PhysicalPage {
        let profile = flagstone_nand::Profile::named("tiny").unwrap();
        profile.geometry.page_from_number(17).unwrap()
    }

    #[test]
    fn a_note_survives_its_bytes_and_any_flipped_bit() {
        let bytes = NOTE.encode(page(), 99);
        for bit in 0..NOTE_SIZE * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            let RawNote::Found(note, flag, crc) = Note::decode(&flipped) else {
                panic!("bit {bit} is not repaired");
            };
            assert_eq!((note, flag), (NOTE, Flag::First), "bit {bit}");
            assert!(note.matches(page(), 99, crc), "bit {bit}");
        }
    }

    #[test]
    fn a_flag_is_what_three_quarters_of_its_cells_show() {
        let note = NOTE.encode(page(), 0);
        let read = |cells: [u8; FLAG_SIZE]| {
            let mut bytes = note.to_vec();
            bytes.extend(cells);
            let RawNote::Found(_, flag, _) = Note::decode(&bytes) else { panic!("damaged") };
            flag
        };
        for flag in [Flag::First, Flag::True, Flag::False] {
            assert_eq!(read(flag_cells(flag)), flag);
        }
        assert_eq!(read([0x00, 0x00, 0xFF, 0xFF, 0xFF]), Flag::First, "in between is not set");
        assert_eq!(read([0x00, 0x00, 0xF0, 0xFF, 0xFF]), Flag::True);
        assert_eq!(read([0xFF, 0xFF, 0xFF, 0x00, 0xFF]), Flag::First, "half is not enough");
        assert_eq!(read([0xFF, 0xFF, 0xFF, 0x00, 0x0F]), Flag::False);
        assert_eq!(read([0x00, 0x00, 0x00, 0x00, 0x00]), Flag::False, "it wins");
    }
}
