//! Transactions with pages on flash that are not proven committed.
//!
//! Owns the transaction table: running transactions, and aborted ones until their last page is
//! erased. Never touches the device. A unit without an entry is committed.
//!
//! T1. A unit on flash of a transaction of the table is in that transaction's list, and
//!     `owner` finds it by its place.
//! T2. A logical page has at most one running writer.

use std::collections::{BTreeMap, BTreeSet};

use super::note::{NOWHERE, Note};
use crate::evidence::{Flag, Flags, Shadow};
use flagstone_space::{GroupId, LogicalPage, Version};

/// A unit that a transaction wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) at: u32,
    pub(super) note: Note,
    /// Its present flag.
    pub(super) flag: Flag,
}

impl Written {
    pub(super) fn shadow(&self) -> Shadow<u32> {
        self.note.shadow(self.at, self.flag)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Running,
    Aborted,
}

/// Page of a cycle that waits for the one after it.
#[derive(Clone, Debug)]
pub(super) struct HeldBack {
    pub(super) page: LogicalPage,
    pub(super) version: Version,
    pub(super) image: Vec<u8>,
}

#[derive(Clone, Debug)]
pub(super) struct Transaction {
    pub(super) standing: Standing,
    /// In the order of programs; copies stand where their originals stood.
    pub(super) written: Vec<Written>,
    pub(super) next_order: u32,
    pub(super) held_back: Option<HeldBack>,
    /// Wrote a record a second time (cycles).
    pub(super) has_revisions: bool,
    /// A copy of one of its pages cannot be erased (rule E4): it must not commit.
    pub(super) has_stale_copies: bool,
    /// When its first page is complete on its die.
    pub(super) first_ns: u64,
    /// When everything it wrote is complete, and stale copies are erased (rule E4).
    pub(super) ready_ns: u64,
}

impl Transaction {
    pub(super) const fn new(standing: Standing) -> Self {
        Self {
            standing,
            written: Vec::new(),
            next_order: 0,
            held_back: None,
            has_revisions: false,
            has_stale_copies: false,
            first_ns: 0,
            ready_ns: 0,
        }
    }

    /// The newest unit of a page.
    pub(super) fn newest(&self, page: LogicalPage) -> Option<&Written> {
        let own = self.written.iter().filter(|written| written.note.page == page);
        own.max_by_key(|written| (written.note.version, written.note.order))
    }
}

/// Kind of node that a chain links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grain {
    Page,
    /// Pages of a transaction within a block of so many pages.
    Block(u32),
}

impl Grain {
    /// Number of the node that a unit belongs to.
    pub(super) const fn node(self, at: u32) -> u32 {
        match self {
            Self::Page => at,
            Self::Block(pages) => at / pages,
        }
    }

    /// The units of one transaction as nodes of its chain.
    ///
    /// A cluster has the order of its first page, so that a block that a transaction left and
    /// enters again is never taken for the old one (rule E1); a unit that is moved while its
    /// transaction runs has no link, so that clusters never link in a circle.
    pub(super) fn nodes(self, flags: Flags, units: &[Written]) -> Vec<Shadow<u32>> {
        if self == Self::Page {
            return units.iter().map(Written::shadow).collect();
        }
        let mut clusters: BTreeMap<u32, Shadow<u32>> = BTreeMap::new();
        for unit in units {
            let at = self.node(unit.at);
            let link = (unit.note.link != NOWHERE).then(|| self.node(unit.note.link));
            let link = link.filter(|link| *link != at);
            let shadow = Shadow { at, link, ..unit.shadow() };
            let cluster = clusters.entry(at).or_insert(shadow);
            cluster.order = cluster.order.min(shadow.order);
            cluster.link = cluster.link.or(link);
            cluster.flag = joint(flags, cluster.flag, shadow.flag);
        }
        clusters.into_values().collect()
    }
}

/// Flag of a cluster: one page that is `True` decides (CFC), or one that is not (AFC).
fn joint(flags: Flags, one: Flag, other: Flag) -> Flag {
    match (flags, one, other) {
        (Flags::Cfc, Flag::True, _) | (Flags::Cfc, _, Flag::True) => Flag::True,
        (_, Flag::False, _) | (_, _, Flag::False) => Flag::False,
        (_, Flag::First, _) | (_, _, Flag::First) => Flag::First,
        (_, Flag::True, Flag::True) => Flag::True,
    }
}

/// The table.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    transactions: BTreeMap<GroupId, Transaction>,
    running: BTreeSet<GroupId>,
    owners: BTreeMap<u32, GroupId>,
    writers: BTreeMap<LogicalPage, GroupId>,
}

impl Table {
    pub(super) fn begin(&mut self, xid: GroupId) {
        self.transactions.insert(xid, Transaction::new(Standing::Running));
        self.running.insert(xid);
    }

    /// Enters an aborted transaction that a restart found.
    pub(super) fn enter_aborted(&mut self, xid: GroupId, written: Vec<Written>) {
        written.iter().for_each(|written| {
            self.owners.insert(written.at, xid);
        });
        let transaction = Transaction { written, ..Transaction::new(Standing::Aborted) };
        self.transactions.insert(xid, transaction);
    }

    pub(super) fn get(&self, xid: GroupId) -> Option<&Transaction> {
        self.transactions.get(&xid)
    }

    pub(super) fn get_mut(&mut self, xid: GroupId) -> Option<&mut Transaction> {
        self.transactions.get_mut(&xid)
    }

    pub(super) fn running(&self, xid: GroupId) -> Option<&Transaction> {
        self.get(xid).filter(|transaction| transaction.standing == Standing::Running)
    }

    /// The oldest running transaction.
    pub(super) fn oldest_running(&self) -> Option<GroupId> {
        self.running.first().copied()
    }

    /// Running transaction that wrote a page (T2).
    pub(super) fn writer(&self, page: LogicalPage) -> Option<GroupId> {
        self.writers.get(&page).copied()
    }

    pub(super) fn set_writer(&mut self, page: LogicalPage, xid: GroupId) {
        self.writers.insert(page, xid);
    }

    /// Transaction of the table that a unit belongs to (T1).
    pub(super) fn owner(&self, at: u32) -> Option<(GroupId, Standing)> {
        let xid = *self.owners.get(&at)?;
        self.get(xid).map(|transaction| (xid, transaction.standing))
    }

    /// Adds a unit that a running transaction wrote.
    pub(super) fn wrote(&mut self, xid: GroupId, written: Written, end_ns: u64) {
        let Some(transaction) = self.transactions.get_mut(&xid) else { return };
        if transaction.written.is_empty() {
            transaction.first_ns = end_ns;
        }
        transaction.ready_ns = transaction.ready_ns.max(end_ns);
        transaction.written.push(written);
        self.owners.insert(written.at, xid);
    }

    /// A unit of a running transaction has a copy; `end_ns` is when the copy is complete.
    pub(super) fn moved(&mut self, xid: GroupId, from: u32, copy: Written, end_ns: u64) {
        let Some(transaction) = self.transactions.get_mut(&xid) else { return };
        transaction.ready_ns = transaction.ready_ns.max(end_ns);
        let own = transaction.written.iter_mut().find(|written| written.at == from);
        if let Some(written) = own {
            if written.note.order == 0 {
                transaction.first_ns = transaction.first_ns.max(end_ns);
            }
            *written = copy;
        }
        self.owners.remove(&from);
        self.owners.insert(copy.at, xid);
    }

    /// The transaction runs no more; its units stay until they are erased.
    pub(super) fn abort(&mut self, xid: GroupId) {
        self.running.remove(&xid);
        let Some(transaction) = self.transactions.get_mut(&xid) else { return };
        transaction.standing = Standing::Aborted;
        if let Some(held_back) = transaction.held_back.take() {
            self.writers.remove(&held_back.page);
        }
        for written in &transaction.written {
            self.writers.remove(&written.note.page);
        }
        if transaction.written.is_empty() {
            self.transactions.remove(&xid);
        }
    }

    /// The transaction committed: takes it out.
    pub(super) fn commit(&mut self, xid: GroupId) -> Vec<Written> {
        self.running.remove(&xid);
        let Some(transaction) = self.transactions.remove(&xid) else { return Vec::new() };
        for written in &transaction.written {
            self.owners.remove(&written.at);
            self.writers.remove(&written.note.page);
        }
        transaction.written
    }

    /// Takes out the units of aborted transactions in the pages `first..end`, which were erased.
    pub(super) fn erased(&mut self, first: u32, end: u32) -> Vec<(GroupId, Written)> {
        let gone: Vec<_> = self.owners.range(first..end).map(|(at, xid)| (*at, *xid)).collect();
        let mut out = Vec::with_capacity(gone.len());
        for (at, xid) in gone {
            self.owners.remove(&at);
            let Some(transaction) = self.transactions.get_mut(&xid) else { continue };
            debug_assert_eq!(transaction.standing, Standing::Aborted, "others were moved out");
            let own = transaction.written.iter().position(|written| written.at == at);
            out.extend(own.map(|index| (xid, transaction.written.remove(index))));
            if transaction.written.is_empty() {
                self.transactions.remove(&xid);
            }
        }
        out
    }

    /// Running transactions with units in the pages `first..end`.
    pub(super) fn runners_in(&self, first: u32, end: u32) -> BTreeSet<GroupId> {
        let owners = self.owners.range(first..end).map(|(_, xid)| *xid);
        owners.filter(|xid| self.running.contains(xid)).collect()
    }

    /// Aborted transactions with units in the pages `first..end`.
    pub(super) fn aborted_in(&self, first: u32, end: u32) -> BTreeSet<GroupId> {
        let owners = self.owners.range(first..end).map(|(_, xid)| *xid);
        owners.filter(|xid| !self.running.contains(xid)).collect()
    }

    /// Stale copies of pages that running transactions wrote are gone at `end_ns`, or will never
    /// be.
    pub(super) fn settled(&mut self, runners: &BTreeSet<GroupId>, end_ns: Option<u64>) {
        for xid in runners {
            let Some(transaction) = self.transactions.get_mut(xid) else { continue };
            match end_ns {
                Some(end_ns) => transaction.ready_ns = transaction.ready_ns.max(end_ns),
                None => transaction.has_stale_copies = true,
            }
        }
    }

    /// Images held back, and bytes of the table.
    pub(super) fn sizes(&self) -> (u64, usize) {
        let all = self.transactions.values();
        let held_back = all.clone().filter(|transaction| transaction.held_back.is_some());
        let units: usize = all.map(|transaction| transaction.written.len()).sum();
        let size = self.transactions.len() * size_of::<Transaction>()
            + units * size_of::<Written>()
            + self.owners.len() * 12
            + self.writers.len() * 12;
        (held_back.count() as u64, size)
    }
}
