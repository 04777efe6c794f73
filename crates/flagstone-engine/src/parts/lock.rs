//! The lock table.

use flagstone_space::LogicalPage;

use crate::lock::{LockOutcome, LockTable, Mode, Target, Xid};

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Any number of holders, none of them exclusive.
    Shared,
    /// One holder.
    Exclusive,
}

/// What a lock is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockOn<'a> {
    /// One key of a tree, whether it exists or not.
    Record {
        /// Tree of the key.
        tree: u32,
        /// The key.
        key: &'a [u8],
    },
    /// Keys of a tree from `low` on, below `high` where there is one.
    Range {
        /// Tree of the keys.
        tree: u32,
        /// First key.
        low: &'a [u8],
        /// First key behind the range.
        high: Option<&'a [u8]>,
    },
    /// One page.
    Page(LogicalPage),
}

/// Answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum LockAnswer {
    /// The lock is held.
    Granted,
    /// The request is queued; a later release names the transaction.
    Wait,
    /// The request is queued and closes a cycle: this transaction has to go.
    Deadlock(Xid),
}

/// All locks of a database.
#[derive(Debug)]
pub struct Locks(LockTable);

impl Default for Locks {
    fn default() -> Self {
        Self(LockTable::within(usize::MAX))
    }
}

impl Locks {
    /// Requests a lock, or asks again for one that is held or queued.
    pub fn acquire(&mut self, xid: Xid, on: LockOn<'_>, mode: LockMode) -> LockAnswer {
        let target = match on {
            LockOn::Record { tree, key } => Target::Record { tree, key },
            LockOn::Range { tree, low, high } => Target::Interval { tree, low, high },
            LockOn::Page(page) => Target::Page(page),
        };
        let mode = match mode {
            LockMode::Shared => Mode::Shared,
            LockMode::Exclusive => Mode::Exclusive,
        };
        match self.0.acquire(xid, target, mode) {
            LockOutcome::Granted => LockAnswer::Granted,
            LockOutcome::Wait => LockAnswer::Wait,
            LockOutcome::Deadlock { victim } => LockAnswer::Deadlock(victim),
        }
    }

    /// Drops the locks and the queued request of a transaction; returns those it lets in.
    pub fn release_all(&mut self, xid: Xid) -> Vec<Xid> {
        self.0.release_all(xid)
    }

    /// Gives up the queued request of a transaction; returns those it lets in.
    pub fn cancel_wait(&mut self, xid: Xid) -> Vec<Xid> {
        self.0.cancel_wait(xid)
    }

    /// Gives every holder of page `from` the same lock on the new page `to` (rule D13).
    pub fn inherit_page(&mut self, from: LogicalPage, to: LogicalPage) {
        self.0.inherit_page(from, to);
    }

    /// Memory it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }
}
