//! Reading a page: its newest version, and values that older versions hold.
//!
//! Owns the merging of committed records that stand in several versions. Never writes.

use flagstone_engine::{EngineError, Xid};
use flagstone_nand::Nand;
use flagstone_opponents::shadow::records::{Read, RecordStore, Standing};
use flagstone_space::{GroupId, LogicalPage, Lsn};

use super::page::{self, Listed};
use crate::classic::page::cell_of;
use crate::classic::record::OwnCell;
use crate::pages::of_store;

/// Which pending records a reader wants to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Committed records.
    Committed,
    /// These, and records of running transactions, with their transaction.
    Running,
}

/// A page as it was read.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) lsn: Lsn,
    pub(super) node: Vec<u8>,
    /// Records of running transactions in it.
    pub(super) running: Vec<Listed>,
    /// Versions that were read.
    pub(super) version_count: usize,
}

/// A version, taken apart.
struct Level {
    read: Read,
    listed: Vec<Listed>,
}

/// The versions of a page, as far as they were read.
struct Levels<'s, D: Nand> {
    store: &'s mut RecordStore<D>,
    page: LogicalPage,
    node_size: usize,
    levels: Vec<Level>,
}

/// Reads a page; none when it was never written.
pub(super) fn resolved<D: Nand>(
    store: &mut RecordStore<D>,
    page: LogicalPage,
    wanted: Wanted,
) -> Result<Option<Resolved>, EngineError> {
    let Some(read) = store.read(page).map_err(of_store)? else { return Ok(None) };
    let node_size = store.image_size() - page::section_size(store.image_size());
    let mut levels = Levels { store, page, node_size, levels: Vec::new() };
    levels.add(read)?;
    let (lsn, mut node) = match levels.levels.first() {
        Some(newest) => (newest.read.lsn, newest.read.image[..node_size].to_vec()),
        None => return Ok(None),
    };
    let mut running = Vec::new();
    for entry in levels.levels[0].listed.clone() {
        match (levels.store.standing(GroupId(entry.xid.0)), wanted) {
            (Standing::Committed, _) => {}
            (Standing::Running, Wanted::Running) => running.push(entry),
            _ => {
                let value = levels.value(1, &entry.key)?;
                let merged = page::with_value(&node, &entry.key, value.as_ref());
                node = merged.ok_or_else(|| corrupt(page, "versions do not merge"))?;
            }
        }
    }
    Ok(Some(Resolved { lsn, node, running, version_count: levels.levels.len() }))
}

const fn corrupt(page: LogicalPage, check: &'static str) -> EngineError {
    EngineError::Corrupt { page, check }
}

impl<D: Nand> Levels<'_, D> {
    fn add(&mut self, read: Read) -> Result<(), EngineError> {
        let listed = page::listed(&read.image, self.node_size);
        let listed = listed.ok_or_else(|| corrupt(self.page, "version does not parse"))?;
        self.levels.push(Level { read, listed });
        Ok(())
    }

    /// The committed value of a key, from the version `depth` steps before the newest on.
    fn value(&mut self, depth: usize, key: &[u8]) -> Result<Option<OwnCell>, EngineError> {
        for depth in depth.. {
            if depth == self.levels.len() {
                let back = self.levels.last().and_then(|level| level.read.back);
                let back = back.ok_or_else(|| corrupt(self.page, "version leads nowhere"))?;
                let read = self.store.read_back(self.page, back).map_err(of_store)?;
                self.add(read)?;
            }
            let level = &self.levels[depth];
            let own = level.listed.iter().find(|entry| entry.key == key);
            let is_committed =
                |xid: Xid| self.store.standing(GroupId(xid.0)) == Standing::Committed;
            if own.is_none_or(|entry| is_committed(entry.xid)) {
                return Ok(cell_of(&level.read.image[..self.node_size], key));
            }
        }
        Ok(None)
    }
}
