//! A whole-state store: the smallest engine that keeps the promise, and six that break it.
//!
//! Owns the toy engine of the harness's own tests. It writes its whole content at every commit, to
//! six slots in turn, so that it is right by inspection for two cuts in a row.

use flagstone_engine::{Durability, EngineError, OpenError};
use flagstone_nand::{BlockIndex, Nand, NandError, ProgramPart, ReadPart};

use super::overlay::{Overlay, Store};
use super::subject::Setup;
use crate::model::{Change, Contents, TableIndex};

/// Mistake of a toy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToyBug {
    /// Nothing.
    None,
    /// Two slots are too few: the newest may be unstable while the other is written over.
    TwoSlots,
    /// Checksums are not looked at.
    NoChecksum,
    /// Opening relies on programs that may have been in flight.
    NoCopy,
    /// Commits return before they are written.
    EarlyReturn,
    /// An abort leaves its changes behind.
    LeakyAbort,
    /// Once opened, it has no room to give its contents.
    NoAnswer,
    /// Once opened, it has no room for a change. This breaks no promise.
    NoRoom,
}

const SLOT_COUNT: u64 = 6;
const HEADER_SIZE: usize = 20;
const BLOCKS_A_SLOT: u32 = 4;

/// The store with its transactions.
pub(super) type Toy<D, const BUG: u8> = Overlay<Whole<D, BUG>>;

/// The store; `BUG` is the index of a [`ToyBug`].
#[derive(Debug)]
pub(super) struct Whole<D, const BUG: u8> {
    device: D,
    generation: u64,
    unwritten: u32,
    is_opened: bool,
}

const fn bug(index: u8) -> ToyBug {
    match index {
        0 => ToyBug::None,
        1 => ToyBug::TwoSlots,
        2 => ToyBug::NoChecksum,
        3 => ToyBug::NoCopy,
        4 => ToyBug::EarlyReturn,
        5 => ToyBug::LeakyAbort,
        6 => ToyBug::NoAnswer,
        _ => ToyBug::NoRoom,
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

fn encode(contents: &Contents) -> Vec<u8> {
    let mut bytes = Vec::new();
    for ((table, key), value) in contents.iter() {
        bytes.push(table.0);
        for part in [key.as_slice(), value] {
            bytes.extend((part.len() as u32).to_le_bytes());
            bytes.extend(part);
        }
    }
    bytes
}

fn decode(mut bytes: &[u8]) -> Option<Contents> {
    fn take<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
        let (size, rest) = bytes.split_at_checked(4)?;
        let size = u32::from_le_bytes(size.try_into().ok()?) as usize;
        let (part, rest) = rest.split_at_checked(size)?;
        *bytes = rest;
        Some(part)
    }
    let mut contents = Contents::default();
    while let Some((table, rest)) = bytes.split_first() {
        bytes = rest;
        let key = take(&mut bytes)?.to_vec();
        contents.insert(TableIndex(*table), key, take(&mut bytes)?.to_vec());
    }
    Some(contents)
}

impl<D: Nand, const BUG: u8> Whole<D, BUG> {
    fn empty(device: D) -> Self {
        Self { device, generation: 0, unwritten: 0, is_opened: false }
    }

    fn slot_count() -> u64 {
        if bug(BUG) == ToyBug::TwoSlots { 2 } else { SLOT_COUNT }
    }

    /// Writes all as the next generation, over the oldest slot.
    fn write(&mut self, contents: &Contents) -> Result<(), EngineError> {
        let page_size = self.device.geometry().page_size as usize;
        let pages = self.device.geometry().pages_per_block;
        let payload = encode(contents);
        let mut bytes = (self.generation + 1).to_le_bytes().to_vec();
        bytes.extend((payload.len() as u32).to_le_bytes());
        let mut summed = bytes.clone();
        summed.extend(&payload);
        bytes.extend(checksum(&summed).to_le_bytes());
        bytes.extend(payload);
        self.generation += 1;
        let first = (self.generation % Self::slot_count()) as u32 * BLOCKS_A_SLOT;
        for block in first..first + BLOCKS_A_SLOT {
            self.device.erase(BlockIndex(block))?;
        }
        bytes.resize(bytes.len().next_multiple_of(page_size), 0xFF);
        for (index, data) in bytes.chunks(page_size).enumerate() {
            let block = BlockIndex(first + index as u32 / pages);
            let page = self.device.geometry().page(block, index as u32 % pages);
            let part = ProgramPart { data_offset: 0, data, spare_offset: 0, spare: &[] };
            self.device.program(page.unwrap(), part)?;
        }
        self.device.sync()?;
        self.unwritten = 0;
        Ok(())
    }

    fn read_page(&mut self, block: u32, index: u32, page: &mut [u8]) -> Result<bool, NandError> {
        let place = self.device.geometry().page(BlockIndex(block), index).unwrap();
        let part = ReadPart { data_offset: 0, data: page, spare_offset: 0, spare: &mut [] };
        match self.device.read(place, part) {
            Ok(_) => Ok(true),
            Err(NandError::Uncorrectable { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn read(&mut self, slot: u32) -> Result<Option<(u64, Contents)>, NandError> {
        let geometry = self.device.geometry();
        let mut bytes = Vec::new();
        let mut page = vec![0; geometry.page_size as usize];
        let (mut size, mut index) = (HEADER_SIZE, 0);
        while bytes.len() < size && index < geometry.pages_per_block * BLOCKS_A_SLOT {
            let block = slot * BLOCKS_A_SLOT + index / geometry.pages_per_block;
            if !self.read_page(block, index % geometry.pages_per_block, &mut page)? {
                return Ok(None);
            }
            bytes.extend(&page);
            size = HEADER_SIZE + u32::from_le_bytes(bytes[8..12].try_into().unwrap()) as usize;
            index += 1;
        }
        if bytes.len() < size {
            return Ok(None);
        }
        let generation = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let sum = u64::from_le_bytes(bytes[12..20].try_into().unwrap());
        let payload = &bytes[HEADER_SIZE..size];
        let mut summed = bytes[..12].to_vec();
        summed.extend(payload);
        let is_whole = sum == checksum(&summed) || bug(BUG) == ToyBug::NoChecksum;
        Ok(decode(payload).filter(|_| is_whole && generation != 0).map(|found| (generation, found)))
    }

    fn has_room(&self, contents: &Contents) -> bool {
        let geometry = self.device.geometry();
        let room = geometry.page_size * geometry.pages_per_block * BLOCKS_A_SLOT;
        HEADER_SIZE + encode(contents).len() <= room as usize
    }
}

impl<D: Nand, const BUG: u8> Store<D> for Whole<D, BUG> {
    fn create(device: D, _: &Setup) -> Result<Self, OpenError> {
        let mut store = Self::empty(device);
        store.write(&Contents::default())?;
        Ok(store)
    }

    fn open(device: D, _: &Setup) -> Result<(Self, Contents), OpenError> {
        let mut store = Self::empty(device);
        let mut newest = Contents::default();
        for slot in 0..Self::slot_count() as u32 {
            if let Some((generation, contents)) = store.read(slot).map_err(EngineError::from)?
                && generation > store.generation
            {
                (store.generation, newest) = (generation, contents);
            }
        }
        if store.generation == 0 {
            return Err(OpenError::Engine(EngineError::NoTable));
        }
        if bug(BUG) != ToyBug::NoCopy {
            store.write(&newest)?;
        }
        store.is_opened = true;
        Ok((store, newest))
    }

    fn commit(
        &mut self,
        _: &Change,
        after: &Contents,
        durability: Durability,
    ) -> Result<(), EngineError> {
        let is_full = bug(BUG) == ToyBug::NoRoom && self.is_opened;
        if is_full || !self.has_room(after) {
            return Err(EngineError::Full);
        }
        self.unwritten += 1;
        let too_early = bug(BUG) == ToyBug::EarlyReturn && self.unwritten < 3;
        if too_early || durability == Durability::Deferred { Ok(()) } else { self.write(after) }
    }

    fn abort(&mut self, mut before: Contents, change: &Change) -> Contents {
        if bug(BUG) == ToyBug::LeakyAbort {
            before.apply(change);
        }
        before
    }

    fn checkpoint(&mut self, contents: &Contents) -> Result<(), EngineError> {
        self.write(contents)
    }

    fn collect(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn contents(&mut self, contents: &Contents) -> Result<Contents, EngineError> {
        match bug(BUG) {
            ToyBug::NoAnswer if self.is_opened => Err(EngineError::Full),
            _ => Ok(contents.clone()),
        }
    }

    fn check(&mut self) -> Result<Vec<String>, EngineError> {
        Ok(Vec::new())
    }
}
