//! Tables that were dropped and still have pages. The steps are layer 4's (`commit/dropped.rs`).

use std::collections::VecDeque;

use flagstone_space::{LogicalPage, Lsn};

use crate::delta::DroppedRefs;
use crate::engine::store::catalog::Table;
use crate::engine::store::dropped::Dropped;
use crate::engine::txn::Transactions;

/// Pages that are freed as soon as their record is durable.
#[derive(Debug)]
pub(crate) struct Freed {
    /// The record, or the commit behind it that takes the table's entry away.
    pub(in crate::engine) lsn: Lsn,
    pub(in crate::engine) table: Table,
    pub(crate) pages: Vec<LogicalPage>,
    pub(in crate::engine) values: DroppedRefs,
    pub(in crate::engine) is_last: bool,
}

/// Tables that were dropped, and freed pages that wait for the log.
#[derive(Debug, Default)]
pub(crate) struct Drops {
    pub(in crate::engine) tables: Vec<u32>,
    pub(in crate::engine) freed: VecDeque<Freed>,
}

impl Drops {
    /// Whether a table that was dropped still has pages.
    pub(in crate::engine) fn has_tables(&self) -> bool {
        !self.tables.is_empty()
    }

    /// Whether the log holds records whose pages are not free yet.
    pub(super) fn has_freed(&self) -> bool {
        !self.freed.is_empty()
    }
}

impl Transactions {
    /// A table is dropped since `lsn`.
    pub(crate) fn mark_dropped(&mut self, table: Table, lsn: Lsn) {
        let Some(tree) = self.trees.get_mut(table.id as usize) else { return };
        tree.dropped = Some(Box::new(Dropped::since(lsn)));
        self.drops.tables.push(table.id);
    }
}
