//! Large values that a transaction stored, and pages that it gives back.

use flagstone_space::{GroupId, LogicalPage};

use crate::engine::step::{Step, Stop, Wait};
use crate::engine::store::value::Descriptor;
use crate::engine::txn::Transactions;
use crate::error::EngineError;
use crate::lock::Xid;

/// Pages a value is to be written to, and the descriptor that will name them.
#[derive(Debug)]
pub(crate) struct ValuePlan {
    pub(crate) descriptor: Descriptor,
    pub(crate) chunks: Vec<LogicalPage>,
    pub(crate) chunk_size: usize,
}

impl ValuePlan {
    /// Lists that lead to the pages of the value.
    fn lists(&self) -> &[LogicalPage] {
        if self.descriptor.is_indirect { &self.descriptor.pages } else { &[] }
    }

    /// Pages of the value, and of the lists that lead to them.
    pub(crate) fn pages(&self) -> Vec<LogicalPage> {
        [&self.chunks, self.lists()].concat()
    }
}

impl Transactions {
    /// The pages are on flash now, or their write has failed.
    pub(crate) fn end_part(&mut self, xid: Xid, pages: usize) {
        if let Some(own) = self.transactions.get_mut(&xid).filter(|own| own.doom.is_none()) {
            own.unwritten -= pages;
        }
    }

    /// Takes the result of writing a value's pages: no page stays that nothing will refer to.
    pub(crate) fn stored(
        &mut self,
        xid: Xid,
        plan: &ValuePlan,
        result: Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let own = self.transactions.get_mut(&xid).filter(|own| own.doom.is_none());
        match (&result, own) {
            // The transaction was ended while the pages were written: its group was given up without
            // them.
            (_, None) => self.trims.discard_group(plan.descriptor.group),
            // Lists may not lead to all pages that were written.
            (Err(_), Some(_)) => {
                let all = Descriptor::of_pages(plan.descriptor.group, plan.pages());
                self.drop_stored(xid, &all);
            }
            (Ok(()), Some(own)) => own.is_unsealed = true,
        }
        result
    }

    /// A value was stored, but no row refers to it.
    pub(crate) fn drop_stored(&mut self, xid: Xid, descriptor: &Descriptor) {
        if let Some(own) = self.transactions.get_mut(&xid) {
            own.dropped.push(descriptor.encode());
        }
    }

    /// Waits until the pages of values that `xid` stored and no longer names are given back.
    pub(in crate::engine) fn demand_no_garbage(&mut self, xid: Xid) -> Step<()> {
        match self.transaction(xid)?.dropped.is_empty() {
            true => Ok(()),
            false => Err(Stop::Wait(Wait::Garbage(xid))),
        }
    }

    /// Waits until the pages of values that `xid` stored are durable: its record names them (rule D1).
    pub(in crate::engine) fn demand_sealed(&mut self, xid: Xid) -> Step<()> {
        match self.transaction(xid)?.is_unsealed {
            true => Err(Stop::Wait(Wait::Seal(xid))),
            false => Ok(()),
        }
    }

    /// The pages of values that `xid` stored are durable.
    pub(crate) fn sealed(&mut self, xid: Xid) {
        if let Some(own) = self.transactions.get_mut(&xid) {
            own.is_unsealed = false;
        }
    }

    /// The next value whose pages `xid` gives back.
    pub(crate) fn next_garbage(&self, xid: Xid) -> Option<Vec<u8>> {
        self.transactions.get(&xid)?.dropped.last().cloned()
    }

    /// A checkpoint is being written that no longer lists the pages given back so far: a mount by it
    /// finds nothing in them.
    pub(in crate::engine) fn note_given_saved(&mut self) {
        for own in self.transactions.values_mut() {
            own.given_saved.append(&mut own.given_back);
        }
    }

    /// That checkpoint is durable.
    pub(in crate::engine) fn take_given_saved(&mut self) {
        let each = self.transactions.values_mut().map(|own| std::mem::take(&mut own.given_saved));
        let pages: Vec<_> = each.flatten().collect();
        self.take_back(pages.into_iter());
    }

    /// That checkpoint failed.
    pub(in crate::engine) fn keep_given_saved(&mut self) {
        for own in self.transactions.values_mut() {
            own.given_back.append(&mut own.given_saved);
        }
    }

    /// The group of the pages that a transaction writes before its commit.
    pub(crate) fn group_of(&mut self, xid: Xid) -> Step<GroupId> {
        if let Some(group) = self.transaction(xid)?.group {
            return Ok(group);
        }
        let group = self.take_group()?;
        self.transaction(xid)?.group = Some(group);
        Ok(group)
    }
}
