//! Whether a commit is worth a claim: programs that its leaves save, beside the pages of log that its changes
//! fill.

use flagstone_space::LogicalPage;

use crate::bugs::SeededBug;
use crate::delta::{DeltaMap, KeyRange};
use crate::engine::commit::Commits;
use crate::engine::commit::claim::first_from;
use crate::engine::commit::costs::LeafBytes;
use crate::engine::step::Step;
use crate::engine::store::catalog::{CATALOG, Table};
use crate::engine::store::descent::LeafPlace;
use crate::engine::store::private_key::{private_bounds, split_private_key};
use crate::lock::Xid;
use crate::options::CommitBy;

/// Whether all of `writes` lies inside a range.
fn is_all(writes: &DeltaMap, inside: KeyRange<'_>) -> bool {
    let first = |low| writes.range(KeyRange { low, high: None }).next();
    let is_none_below = first(&[]).is_some_and(|first| first.key() >= inside.low);
    is_none_below && inside.high.is_none_or(|high| first(high).is_none())
}

impl Commits {
    /// Whether claiming leaves may save as much as a program, or is asked for by the options.
    pub(super) fn is_worth_a_claim(&self, xid: Xid) -> bool {
        let Some(own) = self.transactions.get(&xid) else { return false };
        // Runs, and values with pages of their own, have a group that commits them already.
        let is_plain = own.group.is_none() && own.runs.is_empty() && own.dropped.is_empty();
        if !is_plain
            || !own.drops.is_empty()
            || own.is_refused
            || self.may_be_ahead()
            || self.room.view.log_page_size == 0
        {
            return false;
        }
        match self.options.techniques.commit {
            CommitBy::Log => false,
            CommitBy::Claims | CommitBy::Flags => true,
            CommitBy::Auto => {
                let fills_a_page =
                    |bytes| self.commit_costs.log_pages(bytes, self.room.view.log_page_size) >= 1.0;
                // The memory of its changes is larger than the changes, and is known without counting.
                fills_a_page(own.size) && fills_a_page(own.writes.range_bytes(KeyRange::ALL))
            }
        }
    }

    /// The first private key whose leaf is worth its page, where all such leaves together save at least
    /// one program, as far as can be told without reading them: a claim without that prospect is not
    /// begun. The search ends where the remaining changes cannot save that much; after a stop for a
    /// node it goes on where it stopped.
    pub(super) fn first_worth(&mut self, xid: Xid) -> Step<Option<Vec<u8>>> {
        let changes = self.transaction(xid)?.writes.range_bytes(KeyRange::ALL);
        loop {
            let own = self.transaction(xid)?;
            let Some(key) = first_from(&own.writes, &own.prospect.looked) else { return Ok(None) };
            let gain = own.prospect.gain;
            let left = changes.saturating_sub(own.prospect.looked_bytes);
            let gain_max = gain + self.commit_costs.log_pages(left, self.room.view.log_page_size);
            if self.options.techniques.commit == CommitBy::Auto && gain_max < 1.0 {
                return Ok(None);
            }
            let (table, user_key) = split_private_key(&key);
            let place = self.place_of(table, user_key)?;
            let range = KeyRange { low: &place.low, high: place.high.as_deref() };
            let (low, high) = private_bounds(table, range);
            let inside = KeyRange { low: &low, high: Some(&high) };
            let gain = self.gain_of(xid, table, &place, inside)?;
            let own = self.transaction(xid)?;
            let looked_bytes = own.writes.range_bytes(inside);
            let prospect = &mut own.prospect;
            prospect.looked_bytes += looked_bytes;
            prospect.looked = high;
            if gain > 0.0 {
                prospect.gain += gain;
                prospect.first.get_or_insert(key);
            }
            if prospect.gain >= 1.0 {
                return Ok(prospect.first.take());
            }
        }
    }

    /// Programs that a leaf's claim saves; zero or less when its changes are better in the log. Where
    /// the options ask for claims: one if the leaf can be claimed, else zero.
    pub(super) fn gain_of(
        &self,
        xid: Xid,
        table: Table,
        place: &LeafPlace,
        inside: KeyRange<'_>,
    ) -> Step<f64> {
        let Some(writes) = self.transactions.get(&xid).map(|own| &own.writes) else {
            return Ok(0.0);
        };
        let own = writes.range_bytes(inside);
        let pages = 1 + own / self.payload_size;
        let is_possible = table != CATALOG
            && !self.groups.busy.contains(&place.page)
            && !self.obstacles.passes_over(place.page)
            && self.may_claim(xid, self.claimed_page_count() + pages);
        if !is_possible || self.options.techniques.commit != CommitBy::Auto {
            return Ok(f64::from(u8::from(is_possible)));
        }
        if own > self.payload_size * 2 {
            // A leaf that outgrows its page is left to merges, unless it has all changes of the
            // transaction: then the old page alone may have to be written again.
            let saved = self.commit_costs.log_pages(own, self.room.view.log_page_size) - 1.0;
            return Ok(if is_all(writes, inside) { saved } else { 0.0 });
        }
        let range = KeyRange { low: &place.low, high: place.high.as_deref() };
        let others = self.tree(table)?.deltas.range_bytes(range);
        let leaf = LeafBytes { own, others };
        Ok(self.commit_costs.gain(
            leaf,
            self.room.view.log_page_size,
            self.room.view.moves_per_write,
        ))
    }

    /// Whether the claim of `xid` may come to have so many pages. A cut brings back every group that no
    /// checkpoint covers, committed groups too, and the first record afterwards names them all, beside
    /// the groups of spills that come meanwhile. Spills may have as much room as `can_name_more` gives
    /// to all.
    pub(super) fn may_claim(&self, xid: Xid, pages: usize) -> bool {
        let more = pages - self.claimed_page_count() + self.cycle.grouped_pages();
        self.has_room_to_claim(pages as u64) && self.can_name_more(xid, 2 * more, 0)
    }

    /// Whether a leaf that becomes several may be claimed: it must have all changes of the transaction
    /// (Q5).
    pub(super) fn may_become_several(&self, xid: Xid, inside: KeyRange<'_>) -> bool {
        self.transactions.get(&xid).is_some_and(|own| is_all(&own.writes, inside))
            || self.bugs.has(SeededBug::ClaimInPart)
    }

    /// Whether the engine leaves to merges a leaf that it found to become several: the leaf's waiting
    /// deltas only grow until then. The leaf counts all the same when a claim is weighed: other leaves
    /// are written along with it.
    pub(super) fn is_left_alone(&self, xid: Xid, page: LogicalPage, inside: KeyRange<'_>) -> bool {
        self.options.techniques.commit == CommitBy::Auto
            && self.must_split.contains(&page)
            && !self.may_become_several(xid, inside)
    }
}
