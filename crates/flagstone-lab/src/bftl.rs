//! BFTL, an opponent of indexes that defer their updates.
//!
//! Wu, Chang and Kuo, "An efficient B-tree layer for flash-memory storage systems" (RTCSA 2003). A
//! layer between a B-tree and the translation layer: a change of a node is an *index unit*, units
//! wait in a *reservation buffer*, and a full buffer is packed into pages, units of several nodes
//! in each. The *node translation table* lists the pages that hold units of a node.
//!
//! ```text
//! page     groups 2 │ group │ group │ …                  as the space floor's payload
//! group    node 4 │ level 1 │ base? 1 │ count 2 │ units
//! unit     operation 1 │ key 4 or 8 │ pointer 4
//! ```
//!
//! | question | rule |
//! | --- | --- |
//! | When are units written? | When the buffer is full; or after each request. |
//! | Into which page? | The first that still has room for all units of the node (first fit). |
//! | What does reading a node cost? | Every page on its list; none while a copy is in memory. |
//! | When is a node compacted? | Before its list would exceed its bound: its units go as a base. |
//! | When is a page free? | When no node lists it: its number is taken for the next page. |
//!
//! Where the paper is silent or leaves room for gain, the choice is BFTL's best: the tree is a
//! B+-tree, so that units need no parent and no siblings; a group names its node once; a compacted
//! node fills a page at most; a split takes one unit off the old node, however many entries move;
//! nodes in memory take the part of the budget that buffer and table leave, the one used last in
//! front.
//!
//! Invariants:
//! - **B1** A node is the content of its listed pages, oldest first, then of its units in the
//!   buffer; a copy in memory equals these.
//! - **B2** The first page of a list holds a base. A base takes the place of all that was listed
//!   before.
//! - **B3** A list is no longer than its bound.
//! - **B4** A page is written again only when no list names it.
//!
//! BFTL has no log, no transactions, and no order among the pages of a flush. A power cut loses the
//! units in the buffer, and a cut within a flush may leave a split half done. Only after
//! [`Bftl::flush`] has returned is everything there, until the next flush begins. The table is in
//! memory alone: [`Bftl::open`] reads every page to make it again.

mod buffer;
mod cache;
mod format;
mod node;
pub mod replay;
mod store;
mod table;

use flagstone_space::{MountError, SpaceError};

pub use store::Bftl;

/// When units are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushAt {
    /// When the buffer is full, as in the paper: a power cut loses the units that wait.
    #[default]
    Full,
    /// After each request with a change, before it returns.
    Request,
}

/// How a store is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of a key: 4 or 8.
    pub key_size: usize,
    /// Bytes of memory: buffer, table and copies of nodes.
    pub memory: usize,
    /// Units that the reservation buffer holds.
    pub buffer_units: usize,
    /// Pages that a node's list holds at most.
    pub list_max: usize,
    /// When units are written.
    pub flush_at: FlushAt,
    /// Entries that a node holds at most; none is as many as fit a page.
    pub node_max: Option<usize>,
    /// A deliberate mistake that tests have to find.
    pub mistake: Mistake,
}

impl Config {
    /// The paper's experiments: 60 units, lists of four pages.
    #[must_use]
    pub const fn new(key_size: usize, memory: usize) -> Self {
        Self {
            key_size,
            memory,
            buffer_units: 60,
            list_max: 4,
            flush_at: FlushAt::Full,
            node_max: None,
            mistake: Mistake::None,
        }
    }

    /// Bytes of memory of a unit that waits: as on flash, and its node.
    #[must_use]
    pub const fn waiting_size(&self) -> usize {
        format::unit_size(self.key_size) + size_of::<node::NodeId>()
    }
}

/// A rule broken on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mistake {
    /// None.
    #[default]
    None,
    /// Pages are applied newest first (B1).
    NewestFirst,
    /// A node is read without its units in the buffer (B1).
    BufferIgnored,
    /// A compaction leaves out the units in the buffer (B1).
    CompactionDropsWaiting,
    /// Pages listed before a base stay listed (B2).
    ListKept,
    /// Opening takes units from before a base (B2).
    BaseIgnored,
    /// A page is free when the first of its nodes gives it up (B4).
    SharedPageFreed,
}

/// Why an operation failed. The store can only be opened again afterwards.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BftlError {
    /// The configuration does not fit the device; names the device's shortcoming.
    #[error("the device cannot carry BFTL: {0}")]
    Unfit(&'static str),
    /// A page does not hold the units that its node needs.
    #[error("{check} in page {page}")]
    Corrupt {
        /// Page concerned.
        page: u32,
        /// Check that found it.
        check: &'static str,
    },
    /// A node that is referred to does not exist.
    #[error("node {0} does not exist")]
    NoNode(u32),
    /// The floor below failed.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// The device holds no space that can be mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
}

/// Counters of a store since it was made or opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BftlStats {
    /// Nodes that were asked for.
    pub references: u64,
    /// Of these, answered without a read.
    pub hits: u64,
    /// Pages read for nodes.
    pub pages_read: u64,
    /// Flushes of the buffer.
    pub flushes: u64,
    /// Pages written.
    pub pages_written: u64,
    /// Units written, units of compactions among them.
    pub units_written: u64,
    /// Compactions.
    pub compactions: u64,
    /// Nodes split.
    pub splits: u64,
    /// Nodes merged into a neighbour.
    pub merges: u64,
}

#[cfg(test)]
mod tests;
