//! What the harness needs from an engine, and the engine's side of it.
//!
//! Owns the interface between scripts and engines. Never decides what is right: that is the
//! model's part.

use flagstone::{Durability, EngineError, OpenError, Options};

use super::script::Direction;
use crate::model::{Contents, KeyRange, SlotIndex, TableIndex};

/// Pairs in the order of a scan.
pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// An engine under test. Transactions and snapshots live in slots; dropping it is a power loss.
///
/// No call may wait: the runner asks for nothing that another slot's locks forbid.
pub trait Subject<D>: Sized {
    /// Makes an empty database.
    fn create(device: D, options: &Options) -> Result<Self, OpenError>;

    /// Opens what is there.
    fn open(device: D, options: &Options) -> Result<Self, OpenError>;

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

    /// Takes back what came after savepoint `index`; later ones go.
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

    /// Makes the mapping durable and lets the log's head advance.
    fn checkpoint(&mut self) -> Result<(), EngineError>;

    /// Merges and collects garbage, as far as there is any.
    fn collect(&mut self) -> Result<(), EngineError>;

    /// Everything the database holds, by whatever tables it has.
    fn contents(&mut self) -> Result<Contents, EngineError>;

    /// Structural check of the whole image; what it found.
    fn check(&mut self) -> Result<Vec<String>, EngineError>;

    /// Closes cleanly: all commits are durable when it returns.
    fn close(self) -> Result<(), EngineError>;
}
