//! The checkpoint record: the starting point of a mount.
//!
//! Owns the byte form. Never reads or writes a device: see `ring.rs`.
//!
//! R1. A record is accepted only whole: its checksum covers every byte of it. R2. Numbers at or above the
//! reserved ones were never used before this record (rule D3). R3. Open groups stand in the record with all
//! their pages (rule D4). R4. The numbers of a record are low enough that later ones still fit the fields of
//! pages that name them. R5. A record names no more frozen mappings than [`FROZEN_MAX`]: sizes are computed
//! from their number. R6. Pages of open groups that follow each other in number, place and version stand as
//! one entry. There are no more of them than pages of the device: a record that is not whole is never
//! unfolded.

use alloc::vec::Vec;

use flagstone_nand::Geometry;

use crate::bytes::crc32c;
use crate::bytes::{get_uint, put_uint};
use crate::groups::Rank;
use crate::options::{GcPolicy, SpaceOptions};
use crate::{FROZEN_MAX, GroupId, LogicalPage, Version};

const MAGIC: &[u8; 4] = b"FLAG";

/// Version of everything this floor writes.
pub(crate) const FORMAT_VERSION: u16 = 4;

/// Bytes of an entry in the record: consecutive pages of an open group, or a single page.
pub const OPEN_GROUP_PAGE_SIZE: usize = 24;

/// Limit of the pages that one entry of the record stands for.
const STRETCH_MAX: usize = 1 << STRETCH_BITS;

/// Bits of an entry's version that say how many pages follow the first one.
const STRETCH_BITS: u32 = 15;

/// Bits of a version in a page's metadata; a log block's first page number stands there too.
const VERSION_BITS: u32 = 48;

/// Bits of a group in a page's metadata.
const GROUP_BITS: u32 = 40;

/// Bytes in front of the lists.
pub(crate) const HEAD_SIZE: usize = 104;

/// Block that was open when the record was made, and how far it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenBlock {
    pub(crate) block: u32,
    pub(crate) sequence: u32,
    pub(crate) erases: u32,
    /// First page of the block that this record does not cover.
    pub(crate) next_page: u32,
}

/// Page of an open group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenGroupPage {
    pub(crate) group: GroupId,
    pub(crate) page: LogicalPage,
    pub(crate) at: u32,
    pub(crate) version: Version,
    /// Whether a newer version of the page was valid when the record was made.
    pub(crate) rank: Rank,
}

impl OpenGroupPage {
    /// Whether `next` is of the same group and follows in number, place and version, where a unit takes
    /// `parts` pages.
    pub(crate) fn is_followed_by(&self, next: &Self, parts: u8) -> bool {
        *next == self.behind(1, parts)
    }

    /// The page that is `distance` behind this one in a stretch.
    fn behind(&self, distance: u32, parts: u8) -> Self {
        Self {
            page: LogicalPage(self.page.0.wrapping_add(distance)),
            at: self.at.wrapping_add(distance.wrapping_mul(parts.into())),
            version: Version(self.version.0.saturating_add(distance.into())),
            ..*self
        }
    }
}

/// Everything a mount needs besides the pages themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Shape of the device, with the blocks that were there.
    pub(crate) geometry: Geometry,
    pub(crate) options: SpaceOptions,
    /// Number and spare offset of the metadata placement.
    pub(crate) placement: (u8, u32),
    /// Blocks of a lower sequence belong to an earlier format.
    pub(crate) sequence_floor: u32,
    pub(crate) sequence_reserved: u32,
    pub(crate) version_reserved: u64,
    pub(crate) group_reserved: u64,
    /// First log page that a restart needs.
    pub(crate) log_head: u64,
    /// The session that wrote the record wrote nothing more: all its writes were complete (K6).
    pub(crate) closed: bool,
    /// No log page at or above this number existed.
    pub(crate) log_next: u64,
    pub(crate) ring: Vec<u32>,
    pub(crate) open: Vec<OpenBlock>,
    /// Units of the mapping, table and directory pages that the record points to directly.
    pub(crate) roots: Vec<u32>,
    pub(crate) groups: Vec<OpenGroupPage>,
    pub(crate) frozen: Vec<FrozenRecord>,
    pub(crate) user: Vec<u8>,
}

/// Bits of byte 11: the session wrote nothing after the record; a list of frozen mappings stands in front of
/// the caller's bytes.
const CLOSED: u8 = 1;
const HAS_FROZEN: u8 = 2;

/// A frozen mapping as the record names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrozenRecord {
    pub(crate) slot: u8,
    pub(crate) frontier: Version,
    /// Units of the pages of its directory.
    pub(crate) roots: Vec<u32>,
    pub(crate) label: Vec<u8>,
}

impl FrozenRecord {
    /// Bytes of a frozen mapping in a record.
    pub(crate) const fn size(roots: usize, label_size: usize) -> usize {
        14 + 4 * roots + label_size
    }

    fn encode(&self, target: &mut Vec<u8>) {
        target.extend_from_slice(&[self.slot, self.label.len() as u8]);
        target.extend_from_slice(&self.frontier.0.to_le_bytes());
        target.extend_from_slice(&(self.roots.len() as u32).to_le_bytes());
        for root in &self.roots {
            target.extend_from_slice(&root.to_le_bytes());
        }
        target.extend_from_slice(&self.label);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, RecordFault> {
        let head = reader.take(2)?;
        let (slot, label_size) = (head[0], usize::from(head[1]));
        let (frontier, mut roots) = (Version(reader.u64()?), Vec::new());
        for _ in 0..reader.u32()? {
            roots.push(reader.u32()?);
        }
        Ok(Self { slot, frontier, roots, label: reader.take(label_size)?.to_vec() })
    }
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordFault {
    /// Torn, or no record at all.
    Damaged,
    /// Whole, of another format version.
    Version(u16),
}

impl Record {
    /// Byte form.
    pub(crate) fn encode(&self, target: &mut Vec<u8>) {
        target.clear();
        target.resize(HEAD_SIZE, 0);
        self.encode_head(target);
        for block in &self.ring {
            target.extend_from_slice(&block.to_le_bytes());
        }
        for open in &self.open {
            for field in [open.block, open.sequence, open.erases, open.next_page] {
                target.extend_from_slice(&field.to_le_bytes());
            }
        }
        for root in &self.roots {
            target.extend_from_slice(&root.to_le_bytes());
        }
        for stretch in self.stretches() {
            let first = stretch[0];
            target.extend_from_slice(&first.group.0.to_le_bytes());
            target.extend_from_slice(&first.page.0.to_le_bytes());
            target.extend_from_slice(&first.at.to_le_bytes());
            let overtaken = u64::from(first.rank == Rank::Overtaken) << 63;
            let more = (stretch.len() as u64 - 1) << VERSION_BITS;
            target.extend_from_slice(&(first.version.0 | more | overtaken).to_le_bytes());
        }
        if !self.frozen.is_empty() {
            target.extend_from_slice(&(self.frozen.len() as u32).to_le_bytes());
            self.frozen.iter().for_each(|frozen| frozen.encode(target));
        }
        target.extend_from_slice(&self.user);
        let crc = crc32c(target);
        target.extend_from_slice(&crc.to_le_bytes());
    }

    /// Pages of open groups; pages that follow each other come together (R6).
    fn stretches(&self) -> impl Iterator<Item = &[OpenGroupPage]> {
        let parts = self.options.parts;
        let follow = self.groups.chunk_by(move |page, next| page.is_followed_by(next, parts));
        follow.flat_map(|stretch| stretch.chunks(STRETCH_MAX))
    }

    fn encode_head(&self, head: &mut [u8]) {
        head[..4].copy_from_slice(MAGIC);
        put_uint(&mut head[4..6], FORMAT_VERSION.into());
        head[6] = self.options.parts;
        head[7] = self.options.ring_blocks;
        head[8] = match self.options.gc_policy {
            GcPolicy::Greedy => 0,
            GcPolicy::CostBenefit => 1,
            GcPolicy::CostAgeTimes => 2,
        };
        head[9] = self.placement.0;
        head[10] = self.options.grows.into();
        let frozen = if self.frozen.is_empty() { 0 } else { HAS_FROZEN };
        head[11] = frozen | if self.closed { CLOSED } else { 0 };
        put_uint(&mut head[12..16], self.placement.1.into());
        put_uint(&mut head[16..20], self.geometry.page_size.into());
        put_uint(&mut head[20..24], self.geometry.spare_size.into());
        put_uint(&mut head[24..28], self.geometry.pages_per_block.into());
        put_uint(&mut head[28..32], self.geometry.block_count.into());
        put_uint(&mut head[32..36], self.options.log_pages.into());
        put_uint(&mut head[36..40], self.options.static_wear.unwrap_or(u32::MAX).into());
        put_uint(&mut head[40..44], self.sequence_floor.into());
        put_uint(&mut head[44..48], self.sequence_reserved.into());
        put_uint(&mut head[48..56], self.version_reserved);
        put_uint(&mut head[56..64], self.group_reserved);
        put_uint(&mut head[64..72], self.log_head);
        put_uint(&mut head[72..80], self.log_next);
        put_uint(&mut head[80..84], self.ring.len() as u64);
        put_uint(&mut head[84..88], self.open.len() as u64);
        put_uint(&mut head[88..92], self.roots.len() as u64);
        put_uint(&mut head[92..96], self.stretches().count() as u64);
        put_uint(&mut head[96..100], self.user.len() as u64);
        put_uint(&mut head[100..104], self.geometry.die_count.into());
    }

    /// Record from untrusted bytes, which may be followed by padding (R1).
    pub(crate) fn decode(source: &[u8]) -> Result<Self, RecordFault> {
        let mut reader = Reader(source);
        let head = reader.take(HEAD_SIZE)?;
        if &head[..4] != MAGIC {
            return Err(RecordFault::Damaged);
        }
        let count = |from: usize| get_uint(&head[from..from + 4]) as usize;
        let mut record = Self::decode_head(head);
        let mut stretches = Vec::new();
        for _ in 0..count(80) {
            record.ring.push(reader.u32()?);
        }
        for _ in 0..count(84) {
            let (block, sequence) = (reader.u32()?, reader.u32()?);
            let (erases, next_page) = (reader.u32()?, reader.u32()?);
            record.open.push(OpenBlock { block, sequence, erases, next_page });
        }
        for _ in 0..count(88) {
            record.roots.push(reader.u32()?);
        }
        for _ in 0..count(92) {
            let (group, page) = (GroupId(reader.u64()?), LogicalPage(reader.u32()?));
            let (at, packed) = (reader.u32()?, reader.u64()?);
            let rank = if packed >> 63 == 1 { Rank::Overtaken } else { Rank::Newest };
            let version = Version(packed & ((1 << VERSION_BITS) - 1));
            let more = (packed >> VERSION_BITS) as u32 & (STRETCH_MAX as u32 - 1);
            stretches.push((OpenGroupPage { group, page, at, version, rank }, more));
        }
        if head[11] & HAS_FROZEN != 0 {
            for _ in 0..reader.u32()? {
                record.frozen.push(FrozenRecord::decode(&mut reader)?);
            }
        }
        record.user = reader.take(count(96))?.to_vec();
        let size = source.len() - reader.0.len();
        if reader.u32()? != crc32c(&source[..size]) {
            return Err(RecordFault::Damaged);
        }
        record.unfold(&stretches)?;
        match get_uint(&head[4..6]) as u16 {
            FORMAT_VERSION if !record.leaves_numbers() || record.has_too_many_frozen() => {
                Err(RecordFault::Damaged)
            }
            FORMAT_VERSION => Ok(record),
            other => Err(RecordFault::Version(other)),
        }
    }

    /// Lists the pages of these stretches (R6).
    fn unfold(&mut self, stretches: &[(OpenGroupPage, u32)]) -> Result<(), RecordFault> {
        let count = stretches.iter().map(|(_, more)| u64::from(*more) + 1).sum::<u64>();
        let Geometry { pages_per_block, block_count, .. } = self.geometry;
        if count > u64::from(pages_per_block) * u64::from(block_count) {
            return Err(RecordFault::Damaged);
        }
        for (first, more) in stretches {
            self.groups.extend((0..=*more).map(|it| first.behind(it, self.options.parts)));
        }
        Ok(())
    }

    /// Whether the record names more frozen mappings than [`FROZEN_MAX`] (R5).
    fn has_too_many_frozen(&self) -> bool {
        self.frozen.len() > usize::from(FROZEN_MAX)
    }

    /// Whether there are numbers left for this session and many more (R4).
    pub(crate) fn leaves_numbers(&self) -> bool {
        let is_low = |number: u64, bits: u32| number < 1 << (bits - 1);
        is_low(self.version_reserved, VERSION_BITS)
            && is_low(self.log_head.max(self.log_next), VERSION_BITS)
            && is_low(self.group_reserved, GROUP_BITS)
            && is_low(self.sequence_reserved.max(self.sequence_floor).into(), u32::BITS)
    }

    fn decode_head(head: &[u8]) -> Self {
        let number = |from: usize, to: usize| get_uint(&head[from..to]);
        let short = |from: usize| get_uint(&head[from..from + 4]) as u32;
        let policy = match head[8] {
            1 => GcPolicy::CostBenefit,
            2 => GcPolicy::CostAgeTimes,
            _ => GcPolicy::Greedy,
        };
        Self {
            geometry: Geometry {
                page_size: short(16),
                spare_size: short(20),
                pages_per_block: short(24),
                block_count: short(28),
                die_count: short(100),
            },
            options: SpaceOptions {
                parts: head[6],
                log_pages: short(32),
                ring_blocks: head[7],
                gc_policy: policy,
                static_wear: Some(short(36)).filter(|limit| *limit != u32::MAX),
                grows: head[10] == 1,
            },
            placement: (head[9], short(12)),
            sequence_floor: short(40),
            sequence_reserved: short(44),
            version_reserved: number(48, 56),
            group_reserved: number(56, 64),
            closed: head[11] & CLOSED != 0,
            log_head: number(64, 72),
            log_next: number(72, 80),
            ring: Vec::new(),
            open: Vec::new(),
            roots: Vec::new(),
            groups: Vec::new(),
            frozen: Vec::new(),
            user: Vec::new(),
        }
    }
}

/// Takes bytes from the front, never more than there are.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, size: usize) -> Result<&'a [u8], RecordFault> {
        let (taken, rest) = self.0.split_at_checked(size).ok_or(RecordFault::Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, RecordFault> {
        self.take(4).map(|bytes| get_uint(bytes) as u32)
    }

    fn u64(&mut self) -> Result<u64, RecordFault> {
        self.take(8).map(get_uint)
    }
}

/// Makes the checksum fit the record at the beginning of these bytes, or any other bytes in its place.
#[cfg(feature = "seeded-bugs")]
pub(crate) fn reseal(bytes: &mut [u8]) {
    let Some(head) = bytes.get(..HEAD_SIZE) else { return };
    let sizes = [(80, 4), (84, 16), (88, 4), (92, 24)];
    let list = |(from, size): (usize, usize)| get_uint(&head[from..from + 4]) as usize * size;
    let mut end = HEAD_SIZE + sizes.into_iter().map(list).sum::<usize>();
    if head[11] & HAS_FROZEN != 0 {
        let mut reader = Reader(bytes.get(end..).unwrap_or_default());
        let count = reader.u32().unwrap_or(0);
        let frozen = (0..count).map_while(|_| FrozenRecord::decode(&mut reader).ok());
        end +=
            4 + frozen.map(|it| FrozenRecord::size(it.roots.len(), it.label.len())).sum::<usize>();
    }
    end += list((96, 1));
    let Some(whole) = bytes.get_mut(..end + 4) else { return };
    let crc = crc32c(&whole[..end]);
    put_uint(&mut whole[end..], crc.into());
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn sample() -> Record {
        Record {
            geometry: Geometry {
                page_size: 512,
                spare_size: 32,
                pages_per_block: 8,
                block_count: 24,
                die_count: 1,
            },
            options: SpaceOptions::default(),
            placement: (0, 0),
            sequence_floor: 3,
            sequence_reserved: 1000,
            version_reserved: 1 << 40,
            group_reserved: 77,
            closed: true,
            log_head: 12,
            log_next: 99,
            ring: vec![0, 1, 2, 3],
            open: vec![OpenBlock { block: 5, sequence: 6, erases: 7, next_page: 8 }],
            roots: vec![40, 41],
            groups: open_pages(),
            frozen: vec![FrozenRecord {
                slot: 3,
                frontier: Version(12),
                roots: vec![44],
                label: b"before".to_vec(),
            }],
            user: b"user".to_vec(),
        }
    }

    /// A single page, three that follow each other, and a page that would follow but for its rank.
    fn open_pages() -> Vec<OpenGroupPage> {
        let page = |page, at, version, rank| OpenGroupPage {
            group: GroupId(9),
            page: LogicalPage(page),
            at,
            version: Version(version),
            rank,
        };
        vec![
            page(2, 43, 11, Rank::Overtaken),
            page(3, 80, 20, Rank::Newest),
            page(4, 81, 21, Rank::Newest),
            page(5, 82, 22, Rank::Newest),
            page(6, 83, 23, Rank::Overtaken),
        ]
    }

    #[test]
    fn pages_that_follow_each_other_take_the_room_of_one() {
        let size = |groups: Vec<OpenGroupPage>| {
            let mut bytes = Vec::new();
            Record { groups, ..sample() }.encode(&mut bytes);
            bytes.len()
        };
        let single = size(vec![open_pages()[0]]);
        assert_eq!(size(open_pages()), single + 2 * OPEN_GROUP_PAGE_SIZE);
    }

    #[test]
    fn a_stretch_longer_than_an_entry_survives() {
        let first = open_pages()[1];
        let groups = (0..STRETCH_MAX as u32 + 3).map(|it| first.behind(it, 1)).collect();
        let (mut record, mut bytes) = (Record { groups, ..sample() }, Vec::new());
        record.geometry.block_count = 8_192;
        record.encode(&mut bytes);
        assert_eq!(Record::decode(&bytes), Ok(record));
    }

    /// Goal: a damaged count takes no more memory than a record can need.
    #[test]
    fn more_open_pages_than_a_record_may_list_are_damage() {
        let first = open_pages()[1];
        let decoded = |count: u32| {
            let (mut bytes, groups) = (Vec::new(), (0..count).map(|it| first.behind(it, 1)));
            Record { groups: groups.collect(), ..sample() }.encode(&mut bytes);
            Record::decode(&bytes).map(|record| record.groups.len())
        };
        // 24 blocks of 8 pages.
        assert_eq!(decoded(192), Ok(192));
        assert_eq!(decoded(193), Err(RecordFault::Damaged));
    }

    #[test]
    fn a_record_survives_the_round_trip_with_padding_behind_it() {
        let mut bytes = Vec::new();
        sample().encode(&mut bytes);
        bytes.extend_from_slice(&[0xFF; 33]);
        assert_eq!(Record::decode(&bytes), Ok(sample()));
    }

    #[test]
    fn more_frozen_mappings_than_there_may_be_are_damage() {
        let decoded = |count: u8| {
            let mut record = sample();
            let frozen = record.frozen.remove(0);
            let frozen = (0..count).map(|slot| FrozenRecord { slot, ..frozen.clone() });
            let mut bytes = Vec::new();
            Record { frozen: frozen.collect(), ..record }.encode(&mut bytes);
            Record::decode(&bytes).map(|record| record.frozen.len())
        };
        assert_eq!(decoded(FROZEN_MAX), Ok(FROZEN_MAX.into()));
        assert_eq!(decoded(FROZEN_MAX + 1), Err(RecordFault::Damaged));
    }

    #[test]
    fn every_collection_policy_is_recorded() {
        for gc_policy in [GcPolicy::Greedy, GcPolicy::CostBenefit, GcPolicy::CostAgeTimes] {
            let options = SpaceOptions { gc_policy, ..SpaceOptions::default() };
            let mut bytes = Vec::new();
            Record { options, ..sample() }.encode(&mut bytes);
            let found = Record::decode(&bytes).map(|record| record.options);
            assert_eq!(found, Ok(options));
        }
    }

    #[test]
    fn every_changed_byte_is_refused() {
        let mut bytes = Vec::new();
        sample().encode(&mut bytes);
        for index in 0..bytes.len() {
            for change in [1, 0x80, 0xFF] {
                bytes[index] ^= change;
                assert!(Record::decode(&bytes).is_err(), "byte {index} xor {change}");
                bytes[index] ^= change;
            }
        }
    }

    #[test]
    fn every_prefix_is_refused() {
        let mut bytes = Vec::new();
        sample().encode(&mut bytes);
        for size in 0..bytes.len() {
            assert_eq!(Record::decode(&bytes[..size]), Err(RecordFault::Damaged), "{size} bytes");
        }
    }
}
