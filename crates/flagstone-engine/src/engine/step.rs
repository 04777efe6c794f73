//! Results of an operation that may have to stop: for a page, for a condition, for an error. All layers of the
//! engine share them.

use flagstone_space::{GroupId, LogicalPage, Lsn, PageInfo, PinId};

use crate::engine::store::reads::ReadNumber;
use crate::error::EngineError;
use crate::lock::Xid;

/// Result of an operation that may have to stop.
pub type Step<T> = Result<T, Stop>;

/// Why an operation could not complete now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A page must be read first: read it, hand it to `Transactions::fill`, call again.
    Miss(Fetch),
    /// A condition must hold first: see to that, call again.
    Wait(Wait),
    /// The operation fails.
    Error(EngineError),
}

impl<E: Into<EngineError>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

/// Condition that an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A lock; the transaction is named by `Transactions::take_woken` when it may try again.
    Lock,
    /// Memory: background work frees it.
    Memory,
    /// Room in the log: a checkpoint frees it.
    Log,
    /// Unused logical pages, so many; the runtime supplies them.
    Pages(usize),
    /// A group number; the runtime supplies it.
    Group,
    /// Room for so many pages more on a device that grows; the runtime asks for it.
    Room(u64),
    /// A log of more pages than so many, on a device that grows; the runtime asks for it.
    LargerLog(u64),
    /// Room that the log has beyond its share; the runtime takes it.
    ShorterLog,
    /// Pages of values that a transaction stored and no longer names; the runtime gives them back.
    Garbage(Xid),
    /// Pages of values that a transaction stored to become durable; the runtime sees to it.
    Seal(Xid),
    /// Room on the host for the blocks that a commit brings with it; the runtime makes sure of it.
    Reserve,
    /// The log to become durable up to a commit.
    Durable(Lsn),
    /// Pages of a commit on their way to flash, of its leaves or of a run: background work gets there.
    CommitPages,
    /// Changes on their way to the pages of a named snapshot.
    CommitBarrier,
}

impl Wait {
    /// Whether [`crate::Runtime::supply`] ends the wait at once.
    #[must_use]
    pub const fn is_at_hand(self) -> bool {
        use Wait::{Garbage, Group, LargerLog, Pages, Reserve, Room, Seal, ShorterLog};
        matches!(
            self,
            Pages(_) | Group | Room(_) | LargerLog(_) | ShorterLog | Garbage(_) | Seal(_) | Reserve
        )
    }
}

/// A page to read from the space floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fetch {
    /// The current version of a page, asked for as this read.
    Page(LogicalPage, ReadNumber),
    /// The version that an open group wrote.
    Grouped(GroupId, LogicalPage),
    /// An old version that a snapshot keeps.
    Pinned(PinId, LogicalPage),
}

/// A page that was read; `found` is none for a page that was never written.
#[derive(Debug)]
pub struct Fetched {
    /// The request.
    pub fetch: Fetch,
    /// Metadata and payload.
    pub found: Option<(PageInfo, Vec<u8>)>,
    /// Device time of the read; 0 where no estimate uses it.
    pub cost_ns: u64,
}

impl Fetched {
    /// The requested page was never written.
    #[must_use]
    pub const fn absent(fetch: Fetch) -> Self {
        Self { fetch, found: None, cost_ns: 0 }
    }
}
