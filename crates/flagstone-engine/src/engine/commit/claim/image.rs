//! The new image of a claimed leaf: its base, durable deltas and the changes of the transaction.

use flagstone_space::Lsn;

use crate::bugs::SeededBug;
use crate::delta::{DeltaMap, KeyRange};
use crate::engine::commit::Commits;
use crate::engine::merge::reshape::ReshapePlan;
use crate::engine::step::Step;
use crate::engine::store::catalog::Table;
use crate::engine::store::descent::{LeafPlace, Seek};
use crate::engine::store::groups::{OldBase, PageWrite, WriteJob};
use crate::engine::store::private_key::split_private_key;
use crate::engine::txn::claim::ClaimedLeaf;
use crate::lock::Xid;
use crate::node;
use crate::node::{MergeRequest, NoOutline, NodeView};

/// Inner nodes that may have to be written with the leaves that one leaf becomes, one a level.
const INNER_PAGES: usize = 4;

/// Result of claiming a leaf.
pub(in crate::engine) enum Claimed {
    /// The leaf's changes are left to the log.
    Nothing,
    /// One page.
    Leaf(Box<(ClaimedLeaf, PageWrite)>),
    /// Several pages, and the transaction has no change outside them.
    Several(Box<WriteJob>),
    /// Another change of the tree's shape comes first, as soon as its record is durable.
    Later,
}

impl Commits {
    /// The leaf's new image; none when its changes are left to the log.
    pub(super) fn claimed_image(
        &mut self,
        table: Table,
        place: &LeafPlace,
        inside: KeyRange<'_>,
    ) -> Step<Claimed> {
        let Some(xid) = self.claim.as_ref().map(|claim| claim.xid) else {
            return Ok(Claimed::Nothing);
        };
        if self.is_left_alone(xid, place.page, inside)
            || self.gain_of(xid, table, place, inside)? <= 0.0
        {
            return Ok(Claimed::Nothing);
        }
        let index = self.leaf_for(table, Seek::At(&place.low))?;
        let base_lsn = self.pool.frame(index).lsn;
        let range = KeyRange { low: &place.low, high: place.high.as_deref() };
        if self.load_some_runs(table, range, Lsn(u64::MAX))?.is_some() {
            return Ok(Claimed::Nothing);
        }
        self.drop_redundant(table, range, base_lsn);
        let Some(index) = self.pool.peek(place.page) else { return Ok(Claimed::Nothing) };
        let upto = match self.bugs.has(SeededBug::ClaimBeforeDurable) {
            true => self.frontier.committed,
            false => self.merge_lsn(),
        };
        let Some(changes) = self.changes_of(table, range, inside, upto) else {
            return Ok(Claimed::Nothing);
        };
        let view = NodeView::trusted(&self.pool.frame(index).image);
        let own_lsn = Lsn(upto.0 + 1);
        let request =
            MergeRequest { tree: table.id, range, upto: own_lsn, page_size: self.payload_size };
        let merged = match self.may_become_several(xid, inside) {
            true => node::merge_leaf(Some(view), &changes, request, &mut NoOutline).map(Some),
            false => node::merge_leaf_alone(view, &changes, request, &mut NoOutline),
        };
        let merged = match merged {
            Ok(Some(merged)) => merged,
            Ok(None) => {
                self.must_split.insert(place.page);
                return Ok(Claimed::Nothing);
            }
            Err(_) => return Ok(Claimed::Nothing),
        };
        let is_root = self.root_of(table)? == place.page;
        let grown = merged.entry_count as i64 - view.count() as i64;
        if !merged.dropped_refs.is_empty() {
            return Ok(Claimed::Nothing);
        }
        let (low, high) = (place.low.clone(), place.high.clone());
        let page = place.page;
        if merged.pages.len() > 1 {
            let old = vec![OldBase { page, low: low.clone(), high: high.clone(), lsn: base_lsn }];
            let (pages, dropped) = (merged.pages, Vec::new());
            let plan = ReshapePlan {
                table,
                page,
                low,
                high,
                upto,
                pages,
                dropped,
                old,
                rest: None,
                grown,
                frees: 0,
                is_due: true,
            };
            return self.claimed_pages(xid, plan, inside);
        }
        let Some(built) = merged.pages.into_iter().next() else { return Ok(Claimed::Nothing) };
        if self.is_small(&built) && !is_root {
            // The merge of such a leaf looks for a neighbour.
            return Ok(Claimed::Nothing);
        }
        let leaf = ClaimedLeaf { table, page, low, high, upto, base_lsn, grown };
        let lsn = match self.bugs.has(SeededBug::ClaimOverwritesNewer) {
            true => Lsn(upto.0 + 8),
            false => upto,
        };
        let write = PageWrite::new(page, built.image, lsn);
        Ok(Claimed::Leaf(Box::new((leaf, write))))
    }

    /// The pages that one leaf becomes, if they are all that the transaction changed (Q5).
    pub(super) fn claimed_pages(
        &mut self,
        xid: Xid,
        plan: ReshapePlan,
        inside: KeyRange<'_>,
    ) -> Step<Claimed> {
        if !self.may_become_several(xid, inside)
            || !self.may_claim(xid, plan.pages.len() + INNER_PAGES)
        {
            return Ok(Claimed::Nothing);
        }
        let Some(job) = self.claim_reshape(xid, plan)? else { return Ok(Claimed::Later) };
        Ok(Claimed::Several(Box::new(job)))
    }

    /// Durable deltas of a leaf with the claiming transaction's changes on top.
    pub(super) fn changes_of(
        &self,
        table: Table,
        range: KeyRange<'_>,
        inside: KeyRange<'_>,
        upto: Lsn,
    ) -> Option<DeltaMap> {
        let own = &self.transactions.get(&self.claim.as_ref()?.xid)?.writes;
        let mut changes = self.trees.get(table.id as usize)?.deltas.copy_range(range, upto);
        for entry in own.range(inside) {
            // Versions that savepoints kept apart become one.
            let mut whole = DeltaMap::new();
            let mut versions = entry.versions();
            if versions.clone().nth(1).is_some() {
                for (number, op) in versions {
                    whole.insert(entry.key(), op, number, &[]);
                }
                versions = whole.versions(entry.key());
            }
            for (_, op) in versions {
                changes.insert(split_private_key(entry.key()).1, op, Lsn(upto.0 + 1), &[]);
            }
        }
        Some(changes)
    }
}
