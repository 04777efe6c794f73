//! The anchor ring: where checkpoint records stand.
//!
//! Owns which blocks the ring has and where the next record goes. Never knows the content of a
//! record.
//!
//! A1. The ring has two halves, each with a whole copy of the newest record: a torn record, an unreadable
//! page or a failed block harms one of them. A2. A ring block is erased only when the newest record of its
//! half stands in another block. A3. A session goes on in a fresh block: nothing is programmed behind a page
//! that a cut may have hit. A4. Where a page may hold a record that is newer than the one mounted and does
//! not read now, the session's first record erases every block of the ring before anything rests on it (rule
//! D11). Both records would have the same number, and the mapping of the record that reads later is
//! overwritten.

use alloc::vec::Vec;

use flagstone_nand::{BlockIndex, Nand, NandError};

use crate::blocks::{BlockState, Purpose};
use crate::error::SpaceError;
use crate::meta::{PageKind, PageMeta};
use crate::place::Entitlement;
use crate::record::{HEAD_SIZE, OPEN_GROUP_PAGE_SIZE, Record};
use crate::space::{Session, Space};
use crate::{Cause, LogicalPage, SpaceBug, Version};

/// Failed blocks in a row after which a record gives up.
const ATTEMPTS_MAX: u32 = 8;

/// One half of the ring.
#[derive(Clone, Debug, Default)]
pub(crate) struct RingHalf {
    pub(crate) blocks: Vec<u32>,
    /// Block that takes the next record, by index.
    pub(crate) current: usize,
    /// Next page of the current block; the block's size when it must not be used further.
    pub(crate) next_page: u32,
    /// Block with the newest record of the half, by index: it is not erased (A2).
    newest: usize,
}

/// The ring.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ring {
    pub(crate) halves: [RingHalf; 2],
    /// Blocks of a lower sequence belong to an earlier format.
    pub(crate) sequence_floor: u32,
    /// A page may hold a newer record that did not read at the mount (A4).
    pub(crate) doubtful: bool,
}

/// A record whose copies are programmed, and not known to be durable.
#[derive(Debug)]
#[must_use]
pub(crate) struct ProgrammedRecord {
    record: Record,
    /// Numbers up to which it reserves: of versions, sequences and groups.
    reserves: (u64, u32, u64),
}

impl RingHalf {
    /// The block behind the current one that does not hold the newest record (A2), by index: the current one itself, where
    /// a record did not fit it, and the half has no third block.
    fn next(&self) -> usize {
        let count = self.blocks.len();
        let next = (self.current + 1) % count;
        if next == self.newest { (next + 1) % count } else { next }
    }
}

impl Ring {
    /// Ring over `blocks`, with the newest copies in `newest`; nothing is programmed behind them (A3).
    pub(crate) fn new(blocks: &[u32], newest: &[u32], floor: u32, pages_per_block: u32) -> Self {
        let half = |parity: usize| {
            let blocks: Vec<u32> = blocks.iter().copied().skip(parity).step_by(2).collect();
            let current = blocks.iter().position(|block| newest.contains(block));
            let current = current.unwrap_or(blocks.len().saturating_sub(1));
            RingHalf { current, blocks, next_page: pages_per_block, newest: current }
        };
        Self { halves: [half(0), half(1)], sequence_floor: floor, doubtful: false }
    }

    /// The next record goes into the next block of each half.
    fn seal(&mut self, pages_per_block: u32) {
        self.halves.iter_mut().for_each(|half| half.next_page = pages_per_block);
    }

    /// All blocks, so that [`Ring::new`] finds the halves again.
    pub(crate) fn blocks(&self) -> Vec<u32> {
        let [first, second] = &self.halves;
        first.blocks.iter().zip(&second.blocks).flat_map(|(a, b)| [*a, *b]).collect()
    }
}

impl<D: Nand> Space<D> {
    /// Bytes that a record has for the caller's blob and the pages of open groups, beside mappings that are frozen.
    #[must_use]
    pub fn record_room(&self) -> usize {
        self.shared_record_room().saturating_sub(self.frozen_record_size())
    }

    /// [`Self::record_room`] beside as many mappings as may be frozen: fixed for the lifetime of a
    /// space.
    #[must_use]
    pub fn record_room_least(&self) -> usize {
        let room = self.shared_record_room();
        room - self.frozen_record_max(room)
    }

    /// Room of [`Self::record_room`] together with the list of frozen mappings.
    pub(crate) fn shared_record_room(&self) -> usize {
        let layout = self.layout();
        let roots = match layout.directory_pages {
            0 => layout.directory_start,
            pages => pages,
        };
        let lists = 4 * (usize::from(self.options.ring_blocks) + roots as usize)
            + 16 * self.frontiers.len();
        let limit = layout.chunk_size * layout.geometry.pages_per_block as usize;
        limit.saturating_sub(HEAD_SIZE + lists + 2 * size_of::<u32>())
    }

    /// Bytes of a record that list the pages of the groups that are open now.
    #[must_use]
    pub fn listed_size(&self) -> usize {
        self.groups.listed_open() * OPEN_GROUP_PAGE_SIZE
    }

    /// Bytes of the caller's blob in the last record.
    #[must_use]
    pub fn saved_size(&self) -> usize {
        self.durable.as_ref().map_or(0, |record| record.user.len())
    }

    /// Writes the record that a session starts with (A3): once, or into every block (A4).
    pub(crate) fn write_first_record(&mut self, record: &Record) -> Result<(), SpaceError> {
        let rounds = if self.ring.doubtful { self.ring.halves[0].blocks.len() } else { 1 };
        for _ in 0..rounds {
            self.ring.seal(self.layout().geometry.pages_per_block);
            self.write_record(record.clone())?;
        }
        self.ring.doubtful = false;
        Ok(())
    }

    /// Writes both copies of a record and makes them durable (A1).
    pub(crate) fn write_record(&mut self, record: Record) -> Result<(), SpaceError> {
        let programmed = self.program_record(record)?;
        self.flash.fence().map_err(|error| self.fail(error))?;
        self.record_durable(programmed);
        Ok(())
    }

    /// Programs both copies of a record. It counts once they are durable.
    pub(crate) fn program_record(
        &mut self,
        mut record: Record,
    ) -> Result<ProgrammedRecord, SpaceError> {
        record.closed = self.session == Session::Closing && !self.is_flushing;
        let reserves = match record.closed {
            true => self.numbers.last_reserves(),
            false => self.numbers.next_reserves(),
        };
        (record.version_reserved, record.sequence_reserved, record.group_reserved) =
            if self.flash.bugs.has(SpaceBug::NumbersNotReserved) {
                (self.numbers.version, self.numbers.sequence, self.numbers.group)
            } else {
                reserves
            };
        if !record.leaves_numbers() {
            return Err(SpaceError::NumbersUsedUp);
        }
        let mut bytes = core::mem::take(&mut self.meta_buffer);
        let result = self.write_copies(&mut record, &mut bytes);
        self.meta_buffer = bytes;
        result?;
        Ok(ProgrammedRecord { record, reserves })
    }

    /// Both copies of a record are durable.
    pub(crate) fn record_durable(&mut self, programmed: ProgrammedRecord) {
        let ProgrammedRecord { record, reserves } = programmed;
        self.numbers.reserved(reserves);
        self.durable = Some(record);
    }

    fn write_copies(&mut self, record: &mut Record, bytes: &mut Vec<u8>) -> Result<(), SpaceError> {
        let mut attempts = 0;
        loop {
            let ring = self.ring.blocks();
            record.ring.clone_from(&ring);
            record.encode(bytes);
            let (chunk_size, pages) =
                (self.layout().chunk_size, self.layout().geometry.pages_per_block);
            let limit = chunk_size * pages as usize;
            if bytes.len() > limit {
                return Err(SpaceError::TooLong { size: bytes.len(), limit });
            }
            let number = self.numbers.next_record();
            self.write_half(0, number, bytes)?;
            // Never both copies in flight: a page that a cut takes from one copy stands in the
            // other.
            self.flash.await_dies();
            self.write_half(1, number, bytes)?;
            // A block that failed was replaced: the record has to name the new one.
            if self.ring.blocks() == ring {
                return Ok(());
            }
            attempts += 1;
            if attempts > ATTEMPTS_MAX {
                return Err(SpaceError::WornOut);
            }
        }
    }

    fn write_half(&mut self, half: usize, number: Version, bytes: &[u8]) -> Result<(), SpaceError> {
        let pages_per_block = self.layout().geometry.pages_per_block;
        let pages = bytes.len().div_ceil(self.layout().chunk_size) as u32;
        let mut lacks_room = false;
        for _ in 0..ATTEMPTS_MAX {
            if self.ring.halves[half].next_page + pages > pages_per_block {
                self.advance_ring(half)?;
            }
            let RingHalf { blocks, current, next_page, .. } = &self.ring.halves[half];
            let first = blocks[*current] * pages_per_block + next_page;
            match self.program_copy(first, number, bytes) {
                Ok(()) => {
                    let ring = &mut self.ring.halves[half];
                    (ring.newest, ring.next_page) = (ring.current, ring.next_page + pages);
                    return Ok(());
                }
                Err(NandError::ProgramFailed { .. }) => self.replace_ring_block(half)?,
                // The next record of the half, and this one, go to another block (H4).
                Err(NandError::NoSpace) => {
                    self.ring.halves[half].next_page = pages_per_block;
                    lacks_room = true;
                }
                Err(error) => return Err(self.fail(error)),
            }
        }
        Err(if lacks_room { SpaceError::NoRoom } else { SpaceError::WornOut })
    }

    fn program_copy(&mut self, first: u32, number: Version, bytes: &[u8]) -> Result<(), NandError> {
        let chunk_size = self.layout().chunk_size;
        let total = bytes.len().div_ceil(chunk_size) as u32;
        let block = self.blocks.block_of(first);
        let sequence = self.blocks.get(block).sequence;
        for (index, chunk) in bytes.chunks(chunk_size).enumerate() {
            let page = LogicalPage(total << 16 | index as u32);
            let meta = PageMeta { sequence, ..PageMeta::own(PageKind::Anchor, page, number) };
            self.flash.program_page(first + index as u32, &meta, chunk, Cause::Metadata)?;
        }
        Ok(())
    }

    /// Goes on to the next block of the half, which holds older records only (A2).
    fn advance_ring(&mut self, half: usize) -> Result<(), SpaceError> {
        let ring = &mut self.ring.halves[half];
        let before = ring.current;
        ring.current = ring.next();
        ring.next_page = 0;
        let block = BlockIndex(ring.blocks[ring.current]);
        // At a second attempt, the pages of the first may not be durable.
        let pages_per_block = self.layout().geometry.pages_per_block;
        let is_synced = self.flash.layout.capabilities.needs_sync;
        let replaced = if is_synced { self.flash.moment() } else { 0 };
        match self.flash.erase(block, Some(replaced)) {
            Ok(()) => {
                self.blocks.erased(block);
                let sequence = self.numbers.next_sequence();
                let erases = self.blocks.get(block).erases;
                self.blocks.restore(block, BlockState::Ring, sequence, erases);
                Ok(())
            }
            Err(NandError::EraseFailed { .. }) => self.replace_ring_block(half),
            Err(NandError::NoSpace) => self.exchange_ring_block(half).inspect_err(|_| {
                // The newest record stays where it is (A2).
                let ring = &mut self.ring.halves[half];
                (ring.current, ring.next_page) = (before, pages_per_block);
            }),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Puts a block that has room in the place of the current one, which holds nothing that counts.
    fn exchange_ring_block(&mut self, half: usize) -> Result<(), SpaceError> {
        let fresh = self.take_block(Entitlement::Reserve, Purpose::Ring, BlockState::Ring);
        let fresh = fresh.map_err(|error| match error {
            SpaceError::NoRoom => SpaceError::Full,
            error => error,
        })?;
        let ring = &mut self.ring.halves[half];
        let left = core::mem::replace(&mut ring.blocks[ring.current], fresh.0);
        self.blocks.free(BlockIndex(left));
        self.blocks.withhold(BlockIndex(left));
        Ok(())
    }

    /// Puts a fresh block in the place of the current one, which failed.
    fn replace_ring_block(&mut self, half: usize) -> Result<(), SpaceError> {
        let fresh = self.take_block(Entitlement::Reserve, Purpose::Ring, BlockState::Ring);
        // Without a fresh block nothing more is written: the newest record is in the other one (A2).
        let fresh = fresh.inspect_err(|_| self.poisoned = true)?;
        let ring = &mut self.ring.halves[half];
        let failed = core::mem::replace(&mut ring.blocks[ring.current], fresh.0);
        ring.next_page = 0;
        self.mark_bad(BlockIndex(failed))
    }
}
