//! Transactions with pending records on flash.
//!
//! Owns the transaction table: running transactions, the outcome of ended ones, and the places of
//! their members. Never touches the device. A transaction without an entry is committed.
//!
//! T1. A member's address is its unit's address times [`SLOT_STRIDE`], plus its slot.

use std::collections::{BTreeMap, BTreeSet};

use super::note::{Body, SLOT_STRIDE};
use crate::evidence::{Flag, Shadow};
use flagstone_space::GroupId;

/// How a transaction stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It may still do either.
    Running,
    /// Its changes count.
    Committed,
    /// Its changes never count.
    Aborted,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) standing: Standing,
    /// In the order of programs; copies stand where their originals stood.
    pub(super) members: Vec<Shadow<u32>>,
    pub(super) next_order: u32,
    /// When its first member is complete.
    pub(super) first_ns: u64,
    /// When everything it wrote is complete, and stale copies are erased (rule E4).
    pub(super) ready_ns: u64,
    /// Batch of the log with its commit record, while a flag is unset (R3).
    pub(super) record: Option<u64>,
    /// A copy of one of its members cannot be erased (rule E4): no flag speaks for the transaction.
    pub(super) has_stale_copies: bool,
}

impl Entry {
    pub(super) const fn new(standing: Standing) -> Self {
        Self {
            standing,
            members: Vec::new(),
            next_order: 0,
            first_ns: 0,
            ready_ns: 0,
            record: None,
            has_stale_copies: false,
        }
    }
}

/// The table.
#[derive(Clone, Debug, Default)]
pub(super) struct Table(BTreeMap<GroupId, Entry>);

impl Table {
    pub(super) fn insert(&mut self, xid: GroupId, entry: Entry) {
        self.0.insert(xid, entry);
    }

    pub(super) fn get(&self, xid: GroupId) -> Option<&Entry> {
        self.0.get(&xid)
    }

    pub(super) fn get_mut(&mut self, xid: GroupId) -> Option<&mut Entry> {
        self.0.get_mut(&xid)
    }

    pub(super) fn remove(&mut self, xid: GroupId) {
        self.0.remove(&xid);
    }

    pub(super) fn standing(&self, xid: GroupId) -> Standing {
        self.0.get(&xid).map_or(Standing::Committed, |entry| entry.standing)
    }

    /// Aborted transactions with members on flash.
    pub(super) fn aborted(&self) -> impl Iterator<Item = GroupId> + '_ {
        let aborted = self.0.iter().filter(|(_, entry)| entry.standing == Standing::Aborted);
        aborted.map(|(xid, _)| *xid)
    }

    /// First batch that a commit record without its flags stands in (R3).
    pub(super) fn first_record(&self) -> Option<u64> {
        self.0.values().filter_map(|entry| entry.record).min()
    }

    /// Adds the members of a unit that was written at `at`.
    pub(super) fn wrote(&mut self, at: u32, body: &Body, flags: &[Flag], end_ns: u64) {
        for ((slot, member), flag) in (0..).zip(&body.header.members).zip(flags) {
            let Some(entry) = self.0.get_mut(&member.xid) else { continue };
            if entry.members.is_empty() {
                entry.first_ns = end_ns;
            }
            entry.ready_ns = entry.ready_ns.max(end_ns);
            entry.next_order = u32::from(member.order) + 1;
            entry.members.push(shadow(at * SLOT_STRIDE + slot, body, slot as usize, *flag));
        }
    }

    /// A member has a copy, complete at `end_ns`.
    pub(super) fn moved(&mut self, xid: GroupId, from: u32, to: u32, end_ns: u64) {
        let Some(entry) = self.0.get_mut(&xid) else { return };
        entry.ready_ns = entry.ready_ns.max(end_ns);
        if let Some(member) = entry.members.iter_mut().find(|member| member.at == from) {
            if member.order == 0 {
                entry.first_ns = entry.first_ns.max(end_ns);
            }
            member.at = to;
        }
    }

    pub(super) fn flagged(&mut self, xid: GroupId, address: u32, flag: Flag) {
        let entry = self.0.get_mut(&xid);
        let member = entry.and_then(|entry| entry.members.iter_mut().find(|m| m.at == address));
        if let Some(member) = member {
            member.flag = flag;
        }
    }

    /// Copies of members stay beside their originals.
    pub(super) fn copied_in_vain(&mut self, xids: &BTreeSet<GroupId>) {
        for xid in xids {
            if let Some(entry) = self.0.get_mut(xid) {
                entry.has_stale_copies = true;
            }
        }
    }

    /// Members at addresses that `is_gone` are erased; moved ones stand elsewhere already.
    pub(super) fn erased(&mut self, xid: GroupId, end_ns: u64, is_gone: impl Fn(u32) -> bool) {
        let Some(entry) = self.0.get_mut(&xid) else { return };
        entry.members.retain(|member| !is_gone(member.at));
        if entry.standing == Standing::Running {
            entry.ready_ns = entry.ready_ns.max(end_ns);
        } else if entry.members.is_empty() && entry.record.is_none() {
            self.0.remove(&xid);
        }
    }

    /// Bytes of memory.
    pub(super) fn size(&self) -> usize {
        let members: usize = self.0.values().map(|entry| entry.members.len()).sum();
        self.0.len() * size_of::<Entry>() + members * size_of::<Shadow<u32>>()
    }
}

/// Member `slot` of a unit, as the rules of evidence see it.
pub(super) fn shadow(address: u32, body: &Body, slot: usize, flag: Flag) -> Shadow<u32> {
    let member = body.header.members[slot];
    Shadow {
        at: address,
        page: body.page,
        version: body.version,
        xid: member.xid,
        order: member.order.into(),
        link: member.link,
        flag,
    }
}
