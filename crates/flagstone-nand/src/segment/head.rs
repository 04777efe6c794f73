//! The head of a file: the device's shape, and its bad segments.
//!
//! Owns the places of both, each written twice, and the choice of the copy that is believed. Never
//! knows the content of a segment.
//!
//! - **H1** Content of any one sector or page of 4 KiB stands in the other copy as well.
//! - **H2** The checksum is looked at first: magic and version say something in a copy that is whole alone.
//! - **H3** A copy says where it stands; the leftovers of an older device elsewhere are no copy.
//! - **H4** Marks are set and never taken back: the marks of both copies count, as far as the copies are
//!   whole.
//!
//! ```text
//! byte 0       4096              mirror - 4096 - marks      mirror - 4096     mirror       head size
//! | superblock | marks | zeros … | marks                    | superblock      | zeros …    | segment 0
//! ```
//!
//! `mirror` is a power of two, so that the second copy is found without the first.
//!
//! | superblock bytes | content (little-endian) |
//! | --- | --- |
//! | 0..8 | magic `FLAGSEG\0` |
//! | 8..12 | version, 3 |
//! | 12..16 | page size |
//! | 16..20 | pages of a segment |
//! | 20..24 | segments; of a file that grows, as many as it can have |
//! | 24..28 | sector size |
//! | 28..32 | 1 = the tail may be rewritten |
//! | 32..40 | head size |
//! | 40..44 | of a file that grows: segments that it was made with; 0 = the size is fixed |
//! | 44..52 | mirror |
//! | 52..56 | 0 = first copy, 1 = second |
//! | 508..512 | CRC-32C of the bytes before |
//!
//! A sector of marks has 508 bytes of them, one bit a segment, and their CRC-32C; one of zeros has no marks.

use crate::profile::check;
use crate::storage::{OpenDeviceError, Storage, StorageError};
use crate::{BlockIndex, Geometry, Profile};

use super::{GROWING_PAGES_MAX, SECTOR_SIZE, capabilities};

pub(crate) const MAGIC: [u8; 8] = *b"FLAGSEG\0";
pub(super) const VERSION: u32 = 3;

/// Bytes that a superblock has to itself.
pub(super) const SUPERBLOCK_SIZE: u64 = 4096;

const SECTOR: usize = SECTOR_SIZE as usize;
const CRC_OFFSET: usize = SECTOR - 4;
const MARKS_PER_SECTOR: u32 = CRC_OFFSET as u32 * 8;

/// Exponents of the mirrors that there can be: of the smallest head, and of one with a mark for each of 2^32 segments.
const MIRRORS: std::ops::Range<u32> = 14..32;

const _: () = assert!(1 << MIRRORS.start >= 2 * SUPERBLOCK_SIZE + 2 * SECTOR as u64);

/// A sector of a head.
pub(super) type Sector = [u8; SECTOR];

/// Content of the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) geometry: Geometry,
    pub(super) rewrite_tail: bool,
    /// Segments that a file which grows was made with; none where the size is fixed.
    pub(super) made_with: Option<u32>,
}

/// A copy of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copy {
    First,
    Second,
}

/// A head as it was found.
pub(super) struct Found {
    pub(super) head: Head,
    /// Marks of bad segments, one bit each.
    pub(super) marks: Vec<u8>,
    /// Sectors that differ from the other copy, and their places.
    pub(super) repairs: Vec<(u64, Sector)>,
}

impl Head {
    pub(super) const fn new(profile: &Profile, made_with: Option<u32>) -> Self {
        let rewrite_tail = profile.capabilities.rewrite_tail;
        Self { geometry: profile.geometry, rewrite_tail, made_with }
    }

    /// Sectors of one copy of the marks.
    const fn mark_sectors(&self) -> usize {
        self.geometry.block_count.div_ceil(MARKS_PER_SECTOR) as usize
    }

    /// No marks at all.
    pub(super) fn no_marks(&self) -> Vec<u8> {
        vec![0; self.mark_sectors() * CRC_OFFSET]
    }

    pub(super) const fn segment_size(&self) -> u64 {
        self.geometry.block_size()
    }

    /// Bytes of two copies.
    const fn copies_size(&self) -> u64 {
        2 * (SUPERBLOCK_SIZE + (self.mark_sectors() * SECTOR) as u64)
    }

    /// Bytes before the first segment: whole segments, so that segments stay aligned.
    pub(super) fn size(&self) -> u64 {
        self.copies_size().next_power_of_two().next_multiple_of(self.segment_size())
    }

    /// Where the second copy ends: the first one has nothing to do with the pages around it.
    fn mirror(&self) -> u64 {
        1 << self.size().ilog2()
    }

    /// Bytes of a file with `block_count` segments.
    pub(super) fn size_of(&self, block_count: u32) -> u64 {
        self.size() + u64::from(block_count) * self.segment_size()
    }

    /// Segments that are there in any case.
    pub(super) fn present_min(&self) -> u32 {
        self.made_with.unwrap_or(self.geometry.block_count)
    }

    /// Segments that are there in a file of `size` bytes (G5).
    pub(super) fn present_in(&self, size: u64) -> u32 {
        let whole = size.saturating_sub(self.size()) / self.segment_size();
        let limit = self.geometry.block_count;
        u32::try_from(whole).unwrap_or(limit).min(limit)
    }

    fn offset_of(&self, copy: Copy) -> u64 {
        match copy {
            Copy::First => 0,
            Copy::Second => self.mirror() - SUPERBLOCK_SIZE,
        }
    }

    fn marks_offset(&self, copy: Copy, sector: usize) -> u64 {
        let first = match copy {
            Copy::First => SUPERBLOCK_SIZE,
            Copy::Second => self.mirror() - self.copies_size() / 2,
        };
        first + (sector * SECTOR) as u64
    }

    /// Where the marks of a segment stand in `marks`: byte and bit.
    pub(super) const fn place_of(block: BlockIndex) -> (usize, u8) {
        (block.0 as usize / 8, 1 << (block.0 % 8))
    }

    /// Writes the superblocks, the second one first: a device is there once the whole head is.
    pub(super) fn write(&self, storage: &mut impl Storage) -> Result<(), StorageError> {
        for copy in [Copy::Second, Copy::First] {
            storage.write_at(self.offset_of(copy), &self.encode(copy))?;
        }
        storage.sync().map(drop)
    }

    /// The sector that has the mark of a segment, and where its copies stand.
    pub(super) fn marks_of(&self, marks: &[u8], block: BlockIndex) -> (Sector, [u64; 2]) {
        let sector = (block.0 / MARKS_PER_SECTOR) as usize;
        let places = [Copy::First, Copy::Second].map(|copy| self.marks_offset(copy, sector));
        (sealed_marks(marks, sector), places)
    }

    pub(super) fn encode(&self, copy: Copy) -> Sector {
        let mut raw = [0; SECTOR];
        raw[..8].copy_from_slice(&MAGIC);
        let numbers = [
            VERSION,
            self.geometry.page_size,
            self.geometry.pages_per_block,
            self.geometry.block_count,
            SECTOR_SIZE,
            u32::from(self.rewrite_tail),
        ];
        for (target, number) in raw[8..32].chunks_mut(4).zip(numbers) {
            target.copy_from_slice(&number.to_le_bytes());
        }
        raw[32..40].copy_from_slice(&self.size().to_le_bytes());
        raw[40..44].copy_from_slice(&self.made_with.unwrap_or(0).to_le_bytes());
        raw[44..52].copy_from_slice(&self.mirror().to_le_bytes());
        raw[52] = u8::from(copy == Copy::Second);
        seal(&mut raw);
        raw
    }

    /// Reads a superblock that stands at `offset`; any bytes give an answer, never a panic (H2, H3).
    fn decode(raw: &Sector, offset: u64) -> Result<Self, OpenDeviceError> {
        let is_whole = is_sealed(raw);
        if !is_whole && let Some(found) = version_of_before(raw) {
            return Err(OpenDeviceError::Version { found, known: VERSION });
        }
        // Anywhere else than in front a magic alone is a coincidence.
        let says_its_place = offset == 0
            || u64::from(word(raw, 44)) | u64::from(word(raw, 48)) << 32
                == offset + SUPERBLOCK_SIZE;
        if !raw.starts_with(&MAGIC) || !says_its_place {
            return Err(OpenDeviceError::NotFlagstone);
        }
        if !is_whole {
            return Err(OpenDeviceError::Damaged);
        }
        let found = word(raw, 8);
        if found != VERSION {
            return Err(OpenDeviceError::Version { found, known: VERSION });
        }
        let geometry = Geometry {
            page_size: word(raw, 12),
            spare_size: 0,
            pages_per_block: word(raw, 16),
            block_count: word(raw, 20),
            die_count: 1,
        };
        let made_with = Some(word(raw, 40)).filter(|blocks| *blocks > 0);
        let head = Self { geometry, rewrite_tail: word(raw, 28) == 1, made_with };
        check(&geometry, &capabilities()).map_err(|_| OpenDeviceError::Damaged)?;
        let grows_far = geometry.page_count() > GROWING_PAGES_MAX;
        let fits = made_with.is_none_or(|blocks| blocks <= geometry.block_count && !grows_far);
        let is_here = [Copy::First, Copy::Second]
            .iter()
            .any(|copy| offset == head.offset_of(*copy) && *raw == head.encode(*copy));
        if fits && is_here { Ok(head) } else { Err(OpenDeviceError::Damaged) }
    }

    /// Shapes and head sizes that a file of `size` bytes may have: the profile for files, with segments of
    /// any size, since pages of a segment do not say where it ends.
    pub(super) fn guesses(size: u64) -> impl Iterator<Item = (Self, u64)> {
        let profile = Profile::named("segment-file").ok();
        let shapes = profile.into_iter().flat_map(move |profile| {
            let head_sizes = MIRRORS.map(|exponent| 1 << exponent).filter(move |head| *head < size);
            head_sizes.map(move |head_size| (profile.geometry, head_size))
        });
        shapes.filter_map(move |(geometry, head_size): (Geometry, u64)| {
            let segments = (size - head_size).div_ceil(geometry.block_size()).max(1);
            let geometry = Geometry { block_count: u32::try_from(segments).ok()?, ..geometry };
            check(&geometry, &capabilities()).ok()?;
            Some((Self { geometry, rewrite_tail: true, made_with: Some(1) }, head_size))
        })
    }

    /// Looks for a superblock in each place where one may stand.
    ///
    /// # Errors
    ///
    /// Of the errors at all places the most telling: another version, damage, no device of ours.
    pub(super) fn find(storage: &mut impl Storage) -> Result<Self, OpenDeviceError> {
        let mut told = Err(OpenDeviceError::NotFlagstone);
        for offset in places() {
            let mut raw = [0; SECTOR];
            let found = match storage.read_at(offset, &mut raw) {
                Ok(_) => Self::decode(&raw, offset),
                // Behind the end of a short file.
                Err(StorageError::BeyondEnd) => continue,
                Err(error) => Err(error.into()),
            };
            match found {
                Ok(head) => return Ok(head),
                Err(error) if rank(&error) > told.as_ref().map_or_else(rank, |_| 0) => {
                    told = Err(error);
                }
                Err(_) => {}
            }
        }
        told
    }

    /// The head that storage has, with the repairs that it needs (H1, H4).
    pub(super) fn load(storage: &mut impl Storage) -> Result<Found, OpenDeviceError> {
        let head = Self::find(storage)?;
        let mut repairs = Vec::new();
        for copy in [Copy::First, Copy::Second] {
            let (offset, wanted) = (head.offset_of(copy), head.encode(copy));
            let mut raw = [0; SECTOR];
            // An unreadable sector may read again once it is written.
            if storage.read_at(offset, &mut raw).is_err() || raw != wanted {
                repairs.push((offset, wanted));
            }
        }
        let marks = head.load_marks(storage, &mut repairs);
        Ok(Found { head, marks, repairs })
    }

    /// The marks of both copies (H4).
    pub(super) fn load_marks(
        &self,
        storage: &mut impl Storage,
        repairs: &mut Vec<(u64, Sector)>,
    ) -> Vec<u8> {
        let copies = [Copy::First, Copy::Second].map(|copy| {
            let mut raw = vec![0; self.mark_sectors() * SECTOR];
            if storage.read_at(self.marks_offset(copy, 0), &mut raw).is_err() {
                // Sector by sector: an unreadable sector does not hide the others.
                for (sector, target) in raw.chunks_mut(SECTOR).enumerate() {
                    if storage.read_at(self.marks_offset(copy, sector), target).is_err() {
                        target.fill(0xFF);
                    }
                }
            }
            raw
        });
        let mut marks = self.no_marks();
        for raw in &copies {
            let sectors = raw.as_chunks::<SECTOR>().0.iter().zip(marks.chunks_mut(CRC_OFFSET));
            for (raw, marks) in sectors.filter(|(raw, _)| is_sealed(raw)) {
                marks.iter_mut().zip(raw).for_each(|(mark, found)| *mark |= found);
            }
        }
        for (copy, raw) in [Copy::First, Copy::Second].into_iter().zip(&copies) {
            for (sector, raw) in raw.as_chunks::<SECTOR>().0.iter().enumerate() {
                let wanted = sealed_marks(&marks, sector);
                let is_blank = |sector: &Sector| sector[..CRC_OFFSET].iter().all(|byte| *byte == 0);
                // Where there are no marks, zeros say so as well.
                let is_right = *raw == wanted || is_blank(&wanted) && *raw == [0; SECTOR];
                if !is_right {
                    repairs.push((self.marks_offset(copy, sector), wanted));
                }
            }
        }
        marks
    }
}

/// Whether storage holds a device of ours, whole or not; asked before storage is overwritten.
///
/// # Errors
///
/// Host errors: the answer is unknown.
pub(crate) fn is_ours(storage: &mut impl Storage) -> Result<bool, OpenDeviceError> {
    match Head::find(storage) {
        Err(OpenDeviceError::NotFlagstone) => Ok(false),
        Err(error @ OpenDeviceError::Io { .. }) => Err(error),
        Ok(_) | Err(_) => Ok(true),
    }
}

/// Whether storage begins with a superblock, whole or not: the second one alone may be content of something else.
pub(crate) fn begins_like_ours(storage: &mut impl Storage) -> bool {
    let mut raw = [0; SECTOR];
    storage.read_at(0, &mut raw).is_ok()
        && !matches!(Head::decode(&raw, 0), Err(OpenDeviceError::NotFlagstone))
}

/// Has storage forget the device that it holds: no place says any more that there is one.
pub(super) fn forget(storage: &mut impl Storage) -> Result<(), StorageError> {
    for offset in places() {
        let mut raw = [0; SECTOR];
        let is_copy = match storage.read_at(offset, &mut raw) {
            Ok(_) => !matches!(Head::decode(&raw, offset), Err(OpenDeviceError::NotFlagstone)),
            Err(StorageError::BeyondEnd) => false,
            Err(error) => return Err(error),
        };
        if is_copy {
            storage.write_at(offset, &[0; SECTOR])?;
        }
    }
    storage.sync().map(drop)
}

/// Bytes at which superblocks may stand.
fn places() -> impl Iterator<Item = u64> {
    std::iter::once(0).chain(MIRRORS.map(|exponent| (1 << exponent) - SUPERBLOCK_SIZE))
}

/// How much an error tells: an unreadable place may have been the one that counts.
const fn rank(error: &OpenDeviceError) -> u8 {
    match error {
        OpenDeviceError::NotFlagstone => 0,
        OpenDeviceError::Io { .. } => 1,
        OpenDeviceError::Damaged => 2,
        _ => 3,
    }
}

/// Version of a superblock of versions 1 and 2, whose checksum stands elsewhere.
fn version_of_before(raw: &Sector) -> Option<u32> {
    let found = word(raw, 8);
    let checked_size = match found {
        1 => 40,
        2 => 44,
        _ => return None,
    };
    let is_whole = crc32c(&raw[..checked_size]) == word(raw, checked_size);
    (is_whole && raw.starts_with(&MAGIC)).then_some(found)
}

fn sealed_marks(marks: &[u8], sector: usize) -> Sector {
    let mut raw = [0; SECTOR];
    let own = marks.chunks(CRC_OFFSET).nth(sector).unwrap_or(&[]);
    raw[..own.len()].copy_from_slice(own);
    seal(&mut raw);
    raw
}

fn seal(raw: &mut Sector) {
    let crc = crc32c(&raw[..CRC_OFFSET]);
    raw[CRC_OFFSET..].copy_from_slice(&crc.to_le_bytes());
}

fn is_sealed(raw: &Sector) -> bool {
    crc32c(&raw[..CRC_OFFSET]) == word(raw, CRC_OFFSET)
}

/// The number at a place of a sector.
fn word(raw: &Sector, offset: usize) -> u32 {
    raw.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u32::from_le_bytes(*raw))
}

/// CRC-32C, a nibble at a time: of a few hundred sectors at opening.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 16] = nibbles();
    let step = |crc: u32, nibble: u32| (crc >> 4) ^ TABLE[((crc ^ nibble) & 0xF) as usize];
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        let byte = u32::from(*byte);
        step(step(crc, byte), byte >> 4)
    })
}

const fn nibbles() -> [u32; 16] {
    const POLYNOMIAL: u32 = 0x82F6_3B78;
    let mut table = [0; 16];
    let mut index = 0;
    while index < table.len() {
        let (mut crc, mut bit) = (index as u32, 0);
        while bit < 4 {
            crc = (crc >> 1) ^ (POLYNOMIAL & 0_u32.wrapping_sub(crc & 1));
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
}
