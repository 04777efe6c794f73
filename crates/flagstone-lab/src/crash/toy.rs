//! A whole-state store: the smallest engine that keeps the promise, and five that break it.
//!
//! Owns what the harness's own tests run on. It writes its whole content at every commit, to six
//! slots in turn, so that it is right by inspection for two cuts in a row.

use std::collections::BTreeMap;

use flagstone::{Durability, EngineError, OpenError};
use flagstone_nand::{BlockIndex, Nand, NandError, ProgramPart, ReadPart};

use super::script::Direction;
use super::subject::{Pairs, Setup, Subject};
use crate::model::{Contents, KeyRange, SlotIndex, TableIndex};

/// What a toy does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToyBug {
    /// Nothing.
    None,
    /// Two slots are too few: the newest may be unstable while the other is written over.
    TwoSlots,
    /// Checksums are not looked at.
    NoChecksum,
    /// Opening relies on what may have been in flight.
    NoCopy,
    /// Commits return before they are written.
    EarlyReturn,
    /// An abort leaves its changes behind.
    LeakyAbort,
}

type State = BTreeMap<(u8, Vec<u8>), Vec<u8>>;
type Change = BTreeMap<(u8, Vec<u8>), Option<Vec<u8>>>;

const SLOT_COUNT: u64 = 6;
const HEADER_SIZE: usize = 20;
const BLOCKS_A_SLOT: u32 = 4;

/// The store; `BUG` is the index of a [`ToyBug`].
#[derive(Debug)]
pub(super) struct Toy<D, const BUG: u8> {
    device: D,
    state: State,
    generation: u64,
    open: BTreeMap<SlotIndex, (Change, Vec<Change>)>,
    snapshots: BTreeMap<SlotIndex, State>,
    unwritten: u32,
}

const fn bug(index: u8) -> ToyBug {
    match index {
        0 => ToyBug::None,
        1 => ToyBug::TwoSlots,
        2 => ToyBug::NoChecksum,
        3 => ToyBug::NoCopy,
        4 => ToyBug::EarlyReturn,
        _ => ToyBug::LeakyAbort,
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

fn encode(state: &State) -> Vec<u8> {
    let mut bytes = Vec::new();
    for ((table, key), value) in state {
        bytes.push(*table);
        for part in [key, value] {
            bytes.extend((part.len() as u32).to_le_bytes());
            bytes.extend(part);
        }
    }
    bytes
}

fn decode(mut bytes: &[u8]) -> Option<State> {
    fn take<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
        let (size, rest) = bytes.split_at_checked(4)?;
        let size = u32::from_le_bytes(size.try_into().ok()?) as usize;
        let (part, rest) = rest.split_at_checked(size)?;
        *bytes = rest;
        Some(part)
    }
    let mut state = State::new();
    while let Some((table, rest)) = bytes.split_first() {
        bytes = rest;
        let key = take(&mut bytes)?.to_vec();
        state.insert((*table, key), take(&mut bytes)?.to_vec());
    }
    Some(state)
}

impl<D: Nand, const BUG: u8> Toy<D, BUG> {
    fn empty(device: D) -> Self {
        let (open, snapshots) = (BTreeMap::new(), BTreeMap::new());
        Self { device, state: State::new(), generation: 0, open, snapshots, unwritten: 0 }
    }

    fn slot_count() -> u64 {
        if bug(BUG) == ToyBug::TwoSlots { 2 } else { SLOT_COUNT }
    }

    /// Writes the state as the next generation, over the oldest slot.
    fn write(&mut self) -> Result<(), EngineError> {
        let page_size = self.device.geometry().page_size as usize;
        let pages = self.device.geometry().pages_per_block;
        let payload = encode(&self.state);
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

    fn read(&mut self, slot: u32) -> Result<Option<(u64, State)>, NandError> {
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
        Ok(decode(payload).filter(|_| is_whole && generation != 0).map(|state| (generation, state)))
    }

    fn change(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
        value: Option<Vec<u8>>,
    ) -> Result<(), EngineError> {
        let (change, _) = self.open.get_mut(&slot).ok_or(EngineError::Ended)?;
        change.insert((table.0, key.to_vec()), value);
        Ok(())
    }

    /// What a transaction sees.
    fn view(&self, slot: SlotIndex) -> Result<State, EngineError> {
        let (change, _) = self.open.get(&slot).ok_or(EngineError::Ended)?;
        Ok(applied(&self.state, change))
    }

    fn has_room(&self, state: &State) -> bool {
        let geometry = self.device.geometry();
        let room = geometry.page_size * geometry.pages_per_block * BLOCKS_A_SLOT;
        HEADER_SIZE + encode(state).len() <= room as usize
    }
}

fn applied(state: &State, change: &Change) -> State {
    let mut state = state.clone();
    for (address, value) in change {
        match value {
            Some(value) => state.insert(address.clone(), value.clone()),
            None => state.remove(address),
        };
    }
    state
}

fn scan(state: &State, range: &KeyRange, direction: Direction) -> Pairs {
    let inside = |(table, key): &(u8, Vec<u8>)| {
        *table == range.table.0
            && *key >= range.low
            && range.high.as_ref().is_none_or(|high| key < high)
    };
    let mut pairs: Pairs = state
        .iter()
        .filter(|(address, _)| inside(address))
        .map(|((_, key), value)| (key.clone(), value.clone()))
        .collect();
    if direction == Direction::Backward {
        pairs.reverse();
    }
    pairs
}

impl<D: Nand, const BUG: u8> Subject<D> for Toy<D, BUG> {
    fn create(device: D, _: &Setup) -> Result<Self, OpenError> {
        let mut toy = Self::empty(device);
        toy.write()?;
        Ok(toy)
    }

    fn open(device: D, _: &Setup) -> Result<Self, OpenError> {
        let mut toy = Self::empty(device);
        for slot in 0..Self::slot_count() as u32 {
            if let Some((generation, state)) = toy.read(slot).map_err(EngineError::from)?
                && generation > toy.generation
            {
                (toy.generation, toy.state) = (generation, state);
            }
        }
        if toy.generation == 0 {
            return Err(OpenError::Engine(EngineError::NoTable));
        }
        if bug(BUG) != ToyBug::NoCopy {
            toy.write()?;
        }
        Ok(toy)
    }

    fn prepare_tables(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn begin(&mut self, slot: SlotIndex) -> Result<(), EngineError> {
        self.open.insert(slot, (Change::new(), Vec::new()));
        Ok(())
    }

    fn get(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, EngineError> {
        Ok(self.view(slot)?.remove(&(table.0, key.to_vec())))
    }

    fn get_part(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
        offset: usize,
        size: usize,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let whole = self.get(slot, table, key)?;
        Ok(whole.map(|value| value[offset..offset + size].to_vec()))
    }

    fn put(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), EngineError> {
        self.change(slot, table, key, Some(value.to_vec()))
    }

    fn patch(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        let size = bytes.len();
        let mut value = self.get(slot, table, key)?.unwrap_or_default();
        let part = value.get_mut(offset..offset + size);
        part.ok_or(EngineError::PatchOutOfRange { offset, size })?.copy_from_slice(bytes);
        self.change(slot, table, key, Some(value))
    }

    fn delete(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
    ) -> Result<(), EngineError> {
        self.change(slot, table, key, None)
    }

    fn scan(
        &mut self,
        slot: SlotIndex,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Pairs, EngineError> {
        Ok(scan(&self.view(slot)?, range, direction))
    }

    fn savepoint(&mut self, slot: SlotIndex) -> Result<(), EngineError> {
        if let Some((change, savepoints)) = self.open.get_mut(&slot) {
            savepoints.push(change.clone());
        }
        Ok(())
    }

    fn rollback_to(&mut self, slot: SlotIndex, index: usize) -> Result<(), EngineError> {
        let (change, savepoints) = self.open.get_mut(&slot).ok_or(EngineError::Ended)?;
        change.clone_from(savepoints.get(index).ok_or(EngineError::NoSavepoint)?);
        savepoints.truncate(index + 1);
        Ok(())
    }

    fn commit(&mut self, slot: SlotIndex, durability: Durability) -> Result<(), EngineError> {
        let state = self.view(slot)?;
        self.open.remove(&slot);
        if !self.has_room(&state) {
            return Err(EngineError::Full);
        }
        self.state = state;
        self.unwritten += 1;
        let too_early = bug(BUG) == ToyBug::EarlyReturn && self.unwritten < 3;
        if too_early || durability == Durability::Deferred { Ok(()) } else { self.write() }
    }

    fn abort(&mut self, slot: SlotIndex) {
        if bug(BUG) == ToyBug::LeakyAbort
            && let Ok(state) = self.view(slot)
        {
            self.state = state;
        }
        self.open.remove(&slot);
    }

    fn snapshot(&mut self, slot: SlotIndex) -> Result<(), EngineError> {
        self.snapshots.insert(slot, self.state.clone());
        Ok(())
    }

    fn snapshot_get(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let state = self.snapshots.get(&slot).ok_or(EngineError::Ended)?;
        Ok(state.get(&(table.0, key.to_vec())).cloned())
    }

    fn snapshot_scan(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        direction: Direction,
    ) -> Result<Pairs, EngineError> {
        let state = self.snapshots.get(&slot).ok_or(EngineError::Ended)?;
        Ok(scan(state, &KeyRange { table, low: Vec::new(), high: None }, direction))
    }

    fn snapshot_close(&mut self, slot: SlotIndex) {
        self.snapshots.remove(&slot);
    }

    fn checkpoint(&mut self) -> Result<(), EngineError> {
        self.write()
    }

    fn collect(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn contents(&mut self) -> Result<Contents, EngineError> {
        let mut contents = Contents::default();
        for ((table, key), value) in &self.state {
            contents.insert(TableIndex(*table), key.clone(), value.clone());
        }
        Ok(contents)
    }

    fn check(&mut self) -> Result<Vec<String>, EngineError> {
        Ok(Vec::new())
    }

    fn close(mut self) -> Result<(), EngineError> {
        self.write()
    }
}
