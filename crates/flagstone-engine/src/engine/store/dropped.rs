//! A dropped table in memory: how far its release has come. The steps are layer 4's (`commit/dropped.rs`).

use flagstone_space::{LogicalPage, Lsn};

use crate::delta::DroppedRefs;

/// Pages that one record frees, at most: the record stays small beside the log.
pub(in crate::engine) const BATCH_PAGES: usize = 128;

/// How far a dropped table has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Phase {
    Waiting,
    Cleared,
    Covered,
    Releasing,
}

/// Next step of the walk over the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Visit {
    /// Read a node; the level is known where a parent named the node.
    Enter(LogicalPage, Option<u8>),
    /// Everything below the node is in a record, or in the batch before it.
    Leave(LogicalPage),
}

impl Visit {
    pub(in crate::engine) const fn page(self) -> LogicalPage {
        match self {
            Self::Enter(page, _) | Self::Leave(page) => page,
        }
    }
}

/// Result of looking for a node of a dropped table.
#[derive(Debug)]
pub(crate) enum Visited {
    /// An image, of that node or of another one.
    Node(Vec<u8>),
    /// A page that cannot be read.
    Damage,
    /// No page.
    Nothing,
}

/// A table that was dropped, until its last page is free.
#[derive(Debug)]
pub(crate) struct Dropped {
    /// Commit of the drop; zero when restart found it.
    pub(crate) lsn: Lsn,
    pub(in crate::engine) phase: Phase,
    /// Steps of the walk still to take; the next one last.
    pub(in crate::engine) open: Vec<Visit>,
    /// The node that is being read.
    pub(in crate::engine) reading: Option<Visit>,
    /// Pages and values that the next record frees.
    pub(in crate::engine) pages: Vec<LogicalPage>,
    pub(in crate::engine) values: DroppedRefs,
}

impl Dropped {
    pub(crate) const fn since(lsn: Lsn) -> Self {
        Self {
            lsn,
            phase: Phase::Waiting,
            open: Vec::new(),
            reading: None,
            pages: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Whether the next record has enough to free.
    pub(in crate::engine) fn is_full(&self, payload_size: usize) -> bool {
        self.pages.len() >= BATCH_PAGES
            || self.values.iter().map(Vec::len).sum::<usize>() >= payload_size
    }
}
