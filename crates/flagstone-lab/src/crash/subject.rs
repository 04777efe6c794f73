//! The interface that the harness needs of an engine, and the engine's side of the interface.
//!
//! Owns the interface between scripts and engines. Never decides which answers are right: that is
//! the model's part.

use std::collections::BTreeMap;

use flagstone_engine::{Durability, EngineError, OpenError, Options, Runtime};
use flagstone_nand::Nand;
use flagstone_opponents::shadow::Restart;

use super::script::Direction;
use crate::model::{Access, Contents, KeyRange, SlotIndex, TableIndex};

/// How an engine is made: its options, and a bug that is planted to be found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Setup {
    /// Options of the database.
    pub options: Options,
    /// How a store of shadow pages finds them.
    pub restart: Restart,
    /// A bug of the engine, or none.
    #[cfg(feature = "seeded-bugs")]
    pub engine_bug: Option<flagstone_engine::SeededBug>,
    /// A bug of the space floor, or none.
    #[cfg(feature = "seeded-bugs")]
    pub space_bug: Option<flagstone_space::SpaceBug>,
    /// A bug of the store of shared pages, or none.
    #[cfg(feature = "seeded-bugs")]
    pub record_bug: Option<flagstone_opponents::shadow::records::RecordBug>,
}

impl From<Options> for Setup {
    fn from(options: Options) -> Self {
        Self {
            options,
            restart: Restart::default(),
            #[cfg(feature = "seeded-bugs")]
            engine_bug: None,
            #[cfg(feature = "seeded-bugs")]
            space_bug: None,
            #[cfg(feature = "seeded-bugs")]
            record_bug: None,
        }
    }
}

#[cfg(not(feature = "seeded-bugs"))]
impl Setup {
    pub(super) fn open<D: Nand>(&self, device: D) -> Result<Runtime<D>, OpenError> {
        Runtime::open(device, &self.options)
    }

    pub(super) fn plant<D: Nand>(&self, _: &Runtime<D>) {}
}

#[cfg(feature = "seeded-bugs")]
impl Setup {
    pub(super) fn open<D: Nand>(&self, device: D) -> Result<Runtime<D>, OpenError> {
        Runtime::open_planted(device, &self.options, self.engine_bug, self.space_bug)
    }

    pub(super) fn plant<D: Nand>(&self, runtime: &Runtime<D>) {
        runtime.plant(self.engine_bug);
        if let Some(bug) = self.space_bug {
            runtime.space().plant(bug);
        }
    }
}

/// Pairs in the order of a scan.
pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// An engine under test. Transactions and snapshots live in slots; dropping it is a power loss.
///
/// No call may wait: the runner asks for nothing that another slot's locks forbid.
pub trait Subject<D>: Sized {
    /// Whether another slot's transaction may lock rows that it never touched, because they share its
    /// pages: the engine then answers `Full`, to reads as well.
    const LOCKS_PAGES: bool = false;

    /// Makes an empty database.
    fn create(device: D, setup: &Setup) -> Result<Self, OpenError>;

    /// Opens the database on a device.
    fn open(device: D, setup: &Setup) -> Result<Self, OpenError>;

    /// Makes the tables of scripts, as far as they are not there.
    fn prepare_tables(&mut self) -> Result<(), EngineError>;

    /// Begins a transaction in a free slot.
    fn begin(&mut self, slot: SlotIndex) -> Result<(), EngineError>;

    /// Value of a key.
    fn get(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, EngineError>;

    /// Up to `size` bytes of a value from `offset` on.
    fn get_part(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
        offset: usize,
        size: usize,
    ) -> Result<Option<Vec<u8>>, EngineError>;

    /// Sets a value.
    fn put(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), EngineError>;

    /// Sets bytes of a value.
    fn patch(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), EngineError>;

    /// Deletes a key.
    fn delete(&mut self, slot: SlotIndex, table: TableIndex, key: &[u8])
    -> Result<(), EngineError>;

    /// Pairs of a range.
    fn scan(
        &mut self,
        slot: SlotIndex,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Pairs, EngineError>;

    /// Sets a savepoint; the slot's savepoints are numbered from 0.
    fn savepoint(&mut self, slot: SlotIndex) -> Result<(), EngineError>;

    /// Takes back the changes after savepoint `index`; later savepoints go.
    fn rollback_to(&mut self, slot: SlotIndex, index: usize) -> Result<(), EngineError>;

    /// Commits; the slot is free afterwards.
    fn commit(&mut self, slot: SlotIndex, durability: Durability) -> Result<(), EngineError>;

    /// Aborts; the slot is free afterwards.
    fn abort(&mut self, slot: SlotIndex);

    /// Opens a snapshot in a free slot of its own kind.
    fn snapshot(&mut self, slot: SlotIndex) -> Result<(), EngineError>;

    /// Value of a key in a snapshot.
    fn snapshot_get(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, EngineError>;

    /// All pairs of a table in a snapshot.
    fn snapshot_scan(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        direction: Direction,
    ) -> Result<Pairs, EngineError>;

    /// Closes a snapshot.
    fn snapshot_close(&mut self, slot: SlotIndex);

    /// Keeps a snapshot under a name.
    fn keep(&mut self, _: &str) -> Result<(), EngineError> {
        Ok(())
    }

    /// Drops a kept snapshot.
    fn drop_kept(&mut self, _: &str) -> Result<(), EngineError> {
        Ok(())
    }

    /// Contents of kept snapshots, by their names; none for an engine without kept snapshots.
    fn kept(&mut self) -> Result<Option<BTreeMap<String, Contents>>, EngineError> {
        Ok(None)
    }

    /// Whether a transaction of its own could lock the range now; none when the engine cannot tell.
    ///
    /// For writing, the range's first key is meant.
    fn could_lock(&mut self, _: &KeyRange, _: Access) -> Result<Option<bool>, EngineError> {
        Ok(None)
    }

    /// Makes the mapping durable and lets the log's head advance.
    fn checkpoint(&mut self) -> Result<(), EngineError>;

    /// Begins a checkpoint and does its first piece: the checkpoint goes on with the calls that
    /// follow.
    fn checkpoint_begin(&mut self) -> Result<(), EngineError> {
        self.checkpoint()
    }

    /// Does one piece of background work, if there is any.
    fn work(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Merges and collects garbage, as far as there is any.
    fn collect(&mut self) -> Result<(), EngineError>;

    /// Merges all deltas that wait for their page, as far as the device has room.
    fn merge_all(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Everything the database holds, of every table it has.
    fn contents(&mut self) -> Result<Contents, EngineError>;

    /// Structural check of the whole image; gives the faults it found.
    fn check(&mut self) -> Result<Vec<String>, EngineError>;

    /// Closes cleanly: all commits are durable when it returns.
    fn close(self) -> Result<(), EngineError>;
}
