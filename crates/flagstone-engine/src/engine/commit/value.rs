//! Pages of large values before the commit, and the pages that a transaction gives back. The format of
//! values is layer 1's (`engine/store/value.rs`).

use flagstone_space::LogicalPage;

use crate::engine::commit::Commits;
use crate::engine::step::{Step, Stop, Wait};
use crate::engine::store::value::{DESCRIPTOR_HEADER_SIZE, Descriptor, VALUE_PAGE_HEADER_SIZE};
use crate::engine::txn::value::ValuePlan;
use crate::error::EngineError;
use crate::lock::Xid;
use crate::node;

impl Commits {
    /// Chooses the pages for a value of `size` bytes that `xid` is going to store.
    pub(crate) fn plan_value(&mut self, xid: Xid, size: usize) -> Step<ValuePlan> {
        let size_max = self.value_size_max();
        if size > size_max {
            return Err(EngineError::ValueTooLong { size, size_max }.into());
        }
        self.require_sound()?;
        self.demand_no_garbage(xid)?;
        let chunk_size = self.payload_size - VALUE_PAGE_HEADER_SIZE;
        let chunk_count = size.div_ceil(chunk_size);
        let direct_max =
            (node::descriptor_size_max(self.payload_size) - DESCRIPTOR_HEADER_SIZE) / 4;
        let list_count =
            if chunk_count > direct_max { chunk_count.div_ceil(chunk_size / 4) } else { 0 };
        let page_count = chunk_count + list_count;
        self.admit_pages(page_count as u64)?;
        if self.room.unused_pages.len() < page_count {
            return Err(Stop::Wait(Wait::Pages(page_count)));
        }
        let group = self.group_of(xid)?;
        // Numbers are taken in the order in which they came: where neighbours follow each other, one
        // entry of a record names many.
        let chunks: Vec<LogicalPage> = self.room.unused_pages.drain(..chunk_count).collect();
        let lists: Vec<LogicalPage> = self.room.unused_pages.drain(..list_count).collect();
        let own = self.transaction(xid)?;
        own.pages.extend(chunks.iter().chain(&lists));
        let is_indirect = list_count > 0;
        let pages = if is_indirect { lists } else { chunks.clone() };
        let descriptor = Descriptor { size: size as u32, group, is_indirect, pages };
        Ok(ValuePlan { descriptor, chunks, chunk_size })
    }

    /// Lets `xid` write the next `pages` of a value. The record's entries for the pages before are
    /// known by then: most page numbers follow each other and share one entry, so a value needs less
    /// room than entries for its single pages would.
    pub(crate) fn begin_part(&mut self, xid: Xid, pages: usize) -> Step<()> {
        self.demand_log(xid, 0)?;
        self.demand_names(xid, pages, 0)?;
        self.transaction(xid)?.unwritten += pages;
        Ok(())
    }

    /// The pages of the value that `Transactions::next_garbage` named are no longer in the group of `xid`.
    /// Their numbers stay with the transaction until a checkpoint no longer lists them: before that, a
    /// mount finds their old content in the group, and would take it for later pages that the group
    /// wrote and lost. False when the pages are no longer the transaction's.
    pub(crate) fn give_back(&mut self, xid: Xid, garbage: &[u8], pages: &[LogicalPage]) -> bool {
        let Some(own) = self.transactions.get_mut(&xid) else { return false };
        let is_own = own.dropped.pop_if(|last| last.as_slice() == garbage).is_some();
        if is_own {
            own.given_back.extend(pages.iter().filter(|page| own.pages.remove(*page)));
        }
        is_own
    }

    /// Whether a checkpoint frees pages that open transactions gave back.
    pub(super) fn has_given_back(&self) -> bool {
        self.transactions.values().any(|own| own.garbage_size() > 0)
    }
}
