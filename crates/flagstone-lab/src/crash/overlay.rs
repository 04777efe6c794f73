//! Transactions over a store that keeps all it holds in memory.
//!
//! Owns slots, savepoints and snapshots of the small subjects of the harness, so that each subject
//! is only a way of making a change durable. Never does I/O.

use std::collections::BTreeMap;

use flagstone_engine::{Durability, EngineError, OpenError};

use super::script::Direction;
use super::subject::{Pairs, Setup, Subject};
use crate::model::{Address, Change, Contents, KeyRange, SlotIndex, TableIndex};

/// How a small subject keeps its contents.
pub trait Store<D>: Sized {
    /// Makes an empty store.
    fn create(device: D, setup: &Setup) -> Result<Self, OpenError>;

    /// Opens the store on the device; gives it with its contents.
    fn open(device: D, setup: &Setup) -> Result<(Self, Contents), OpenError>;

    /// Makes `change`, which leads to `after`, as durable as asked for. An error leaves all as it
    /// was.
    fn commit(
        &mut self,
        change: &Change,
        after: &Contents,
        durability: Durability,
    ) -> Result<(), EngineError>;

    /// Contents after an abort of `change`: the contents before.
    fn abort(&mut self, before: Contents, _: &Change) -> Contents {
        before
    }

    /// Makes all that was committed durable.
    fn checkpoint(&mut self, contents: &Contents) -> Result<(), EngineError>;

    /// Makes durable contents cheap to restart from; changes that are not durable stay as they are.
    fn checkpoint_begin(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Does one piece of background work, if there is any.
    fn work(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Collects garbage, as far as there is any.
    fn collect(&mut self) -> Result<(), EngineError>;

    /// Everything, read back from the device where that is possible.
    fn contents(&mut self, contents: &Contents) -> Result<Contents, EngineError>;

    /// Structural check; gives the faults it found.
    fn check(&mut self) -> Result<Vec<String>, EngineError>;
}

/// A transaction: its changes, and its changes at each savepoint.
type Open = (Change, Vec<Change>);

/// A store with transactions.
#[derive(Debug)]
pub struct Overlay<S> {
    store: S,
    contents: Contents,
    open: BTreeMap<SlotIndex, Open>,
    snapshots: BTreeMap<SlotIndex, Contents>,
}

impl<S> Overlay<S> {
    fn around(store: S, contents: Contents) -> Self {
        Self { store, contents, open: BTreeMap::new(), snapshots: BTreeMap::new() }
    }

    fn slot(&mut self, slot: SlotIndex) -> Result<&mut Open, EngineError> {
        self.open.get_mut(&slot).ok_or(EngineError::Ended)
    }

    fn set(
        &mut self,
        slot: SlotIndex,
        address: Address,
        value: Option<Vec<u8>>,
    ) -> Result<(), EngineError> {
        let (change, _) = self.slot(slot)?;
        change.insert(address, value.map(Into::into));
        Ok(())
    }

    fn pinned(&self, slot: SlotIndex) -> Result<&Contents, EngineError> {
        self.snapshots.get(&slot).ok_or(EngineError::Ended)
    }
}

fn pairs_of(contents: &Contents, range: &KeyRange, direction: Direction) -> Pairs {
    let found = contents.range(range.table, &range.low, range.high.as_deref());
    let mut pairs: Pairs =
        found.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    if direction == Direction::Backward {
        pairs.reverse();
    }
    pairs
}

impl<D, S: Store<D>> Subject<D> for Overlay<S> {
    fn create(device: D, setup: &Setup) -> Result<Self, OpenError> {
        Ok(Self::around(S::create(device, setup)?, Contents::default()))
    }

    fn open(device: D, setup: &Setup) -> Result<Self, OpenError> {
        let (store, contents) = S::open(device, setup)?;
        Ok(Self::around(store, contents))
    }

    fn prepare_tables(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn begin(&mut self, slot: SlotIndex) -> Result<(), EngineError> {
        self.open.insert(slot, Open::default());
        Ok(())
    }

    fn get(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let address = (table, key.to_vec());
        let (change, _) = self.open.get(&slot).ok_or(EngineError::Ended)?;
        Ok(match change.get(&address) {
            Some(own) => own.as_deref().map(<[u8]>::to_vec),
            None => self.contents.get(&address).map(<[u8]>::to_vec),
        })
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
        self.set(slot, (table, key.to_vec()), Some(value.to_vec()))
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
        self.set(slot, (table, key.to_vec()), Some(value))
    }

    fn delete(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
    ) -> Result<(), EngineError> {
        self.set(slot, (table, key.to_vec()), None)
    }

    fn scan(
        &mut self,
        slot: SlotIndex,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Pairs, EngineError> {
        let mut seen = self.contents.clone();
        seen.apply(&self.slot(slot)?.0);
        Ok(pairs_of(&seen, range, direction))
    }

    fn savepoint(&mut self, slot: SlotIndex) -> Result<(), EngineError> {
        let (change, savepoints) = self.slot(slot)?;
        savepoints.push(change.clone());
        Ok(())
    }

    fn rollback_to(&mut self, slot: SlotIndex, index: usize) -> Result<(), EngineError> {
        let (change, savepoints) = self.slot(slot)?;
        change.clone_from(savepoints.get(index).ok_or(EngineError::NoSavepoint)?);
        savepoints.truncate(index + 1);
        Ok(())
    }

    fn commit(&mut self, slot: SlotIndex, durability: Durability) -> Result<(), EngineError> {
        let (change, _) = self.open.remove(&slot).ok_or(EngineError::Ended)?;
        let mut after = self.contents.clone();
        after.apply(&change);
        self.store.commit(&change, &after, durability)?;
        self.contents = after;
        Ok(())
    }

    fn abort(&mut self, slot: SlotIndex) {
        if let Some((change, _)) = self.open.remove(&slot) {
            self.contents = self.store.abort(std::mem::take(&mut self.contents), &change);
        }
    }

    fn snapshot(&mut self, slot: SlotIndex) -> Result<(), EngineError> {
        self.snapshots.insert(slot, self.contents.clone());
        Ok(())
    }

    fn snapshot_get(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, EngineError> {
        Ok(self.pinned(slot)?.get(&(table, key.to_vec())).map(<[u8]>::to_vec))
    }

    fn snapshot_scan(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        direction: Direction,
    ) -> Result<Pairs, EngineError> {
        let range = KeyRange { table, low: Vec::new(), high: None };
        Ok(pairs_of(self.pinned(slot)?, &range, direction))
    }

    fn snapshot_close(&mut self, slot: SlotIndex) {
        self.snapshots.remove(&slot);
    }

    fn checkpoint(&mut self) -> Result<(), EngineError> {
        self.store.checkpoint(&self.contents)
    }

    fn checkpoint_begin(&mut self) -> Result<(), EngineError> {
        self.store.checkpoint_begin()
    }

    fn work(&mut self) -> Result<(), EngineError> {
        self.store.work()
    }

    fn collect(&mut self) -> Result<(), EngineError> {
        self.store.collect()
    }

    fn contents(&mut self) -> Result<Contents, EngineError> {
        self.store.contents(&self.contents)
    }

    fn check(&mut self) -> Result<Vec<String>, EngineError> {
        self.store.check()
    }

    fn close(mut self) -> Result<(), EngineError> {
        self.store.checkpoint(&self.contents)
    }
}
