//! Leaves that join a neighbour.

use flagstone_space::LogicalPage;

use crate::delta::KeyRange;
use crate::engine::merge::reshape::ReshapePlan;
use crate::engine::merge::{MERGED_PERCENT, Merges};
use crate::engine::step::Step;
use crate::engine::store::catalog::Table;
use crate::engine::store::descent::{Seek, corrupt};
use crate::engine::store::groups::OldBase;
use crate::node;
use crate::node::{MergeRequest, NoOutline, NodeView};

/// Neighbours that one leaf joins, at most: a leaf that fills little of its page joins the first, and an
/// empty leaf one after the other as long as nothing is left of them either. One group takes them all; its
/// record names them in about a page.
pub(in crate::engine) const NEIGHBOURS_MAX: usize = 64;

/// A leaf beside the leaf of a plan, under the same parent.
pub(in crate::engine) struct Neighbour {
    page: LogicalPage,
    is_right: bool,
    /// Separator of the right one of the two.
    separator: Vec<u8>,
}

impl Merges {
    /// Widens a plan to a neighbour of the leaf under the same parent, when the two fit one page.
    ///
    /// Returns the separator and the page that go.
    pub(super) fn merge_with_neighbour(
        &mut self,
        plan: &mut ReshapePlan,
    ) -> Step<Option<(Vec<u8>, LogicalPage)>> {
        let parent = self.node_for(plan.table, Seek::At(&plan.low), 1)?;
        let view = NodeView::trusted(&self.pool.frame(parent).image);
        let Some((child, _)) = view.child_for(&plan.low) else { return Ok(None) };
        let left = child.checked_sub(1).and_then(|at| view.child(at)).map(|other| Neighbour {
            page: other,
            is_right: false,
            separator: view.separator(child),
        });
        let high = plan.high.as_deref().filter(|high| view.high().is_none_or(|end| *high < end));
        let right = high.and_then(|high| view.child_for(high)).map(|(place, other)| Neighbour {
            page: other,
            is_right: true,
            separator: view.separator(place),
        });
        // The left neighbour first: where rows go in the order of their keys, it is the remnant of many
        // leaves.
        for neighbour in [left, right].into_iter().flatten() {
            let gone = self.take_in(plan, neighbour)?;
            if gone.is_some() || !plan.is_empty() {
                return Ok(gone);
            }
        }
        Ok(None)
    }

    pub(super) fn take_in(
        &mut self,
        plan: &mut ReshapePlan,
        neighbour: Neighbour,
    ) -> Step<Option<(Vec<u8>, LogicalPage)>> {
        let (table, Neighbour { page: other, is_right, separator }) = (plan.table, neighbour);
        let (left_page, right_page) =
            if is_right { (plan.page, other) } else { (other, plan.page) };
        if self.groups.busy.contains(&other)
            || self.obstacles.passes_over(other)
            || self.reads_enough(other)
        {
            return Ok(None);
        }
        let index = self.frame_of(other)?;
        if self.pool.frame(index).ahead.is_some() {
            return Ok(None);
        }
        if self.has_neighbour_runs(table, other) {
            return Ok(None);
        }
        self.meet_neighbour(table, other);
        let (Some(own), Some(index)) = (self.pool.peek(plan.page), self.pool.peek(other)) else {
            return Ok(None);
        };
        let (own, neighbour) = (self.pool.frame(own), self.pool.frame(index));
        // A leaf that is merged already needs no second merge where nothing is left in it.
        let was_empty = plan.is_empty();
        let own = if was_empty { &plan.pages[0].image } else { &own.image };
        if neighbour.lsn > plan.upto {
            // This image already holds changes that restart has not put back yet (rule D2).
            return Ok(None);
        }
        let (own_view, other_view) = (NodeView::trusted(own), NodeView::trusted(&neighbour.image));
        let bases = if is_right { [own_view, other_view] } else { [other_view, own_view] };
        let range = KeyRange { low: bases[0].low(), high: bases[1].high() };
        let entries = (bases[0].count() + bases[1].count()) as i64;
        let deltas = &self.tree(table)?.deltas;
        let theirs = KeyRange { low: other_view.low(), high: other_view.high() };
        if deltas.range_bytes(theirs) > self.payload_size {
            // With so many changes it is merged by itself.
            return Ok(None);
        }
        // The changes of a leaf that is merged already are in its image.
        let only_theirs = was_empty.then(|| deltas.copy_range(theirs, plan.upto));
        let deltas = only_theirs.as_ref().unwrap_or(deltas);
        let request =
            MergeRequest { tree: table.id, range, upto: plan.upto, page_size: self.payload_size };
        let merged = node::merge_leaves(&bases, deltas, request, &mut NoOutline)
            .map_err(|_| corrupt(other, "leaf does not merge with its neighbour"))?;
        let used = NodeView::trusted(&merged.pages[0].image).used_bytes();
        let is_crowded = used * 100 > self.payload_size * MERGED_PERCENT;
        if merged.pages.len() > 1 || is_crowded && !was_empty {
            return Ok(None);
        }
        let old = OldBase {
            page: other,
            low: NodeView::trusted(&neighbour.image).low().to_vec(),
            high: NodeView::trusted(&neighbour.image).high().map(<[u8]>::to_vec),
            lsn: neighbour.lsn,
        };
        plan.low = range.low.to_vec();
        plan.high = range.high.map(<[u8]>::to_vec);
        plan.page = left_page;
        plan.pages = merged.pages;
        if !was_empty {
            // Both leaves were merged anew.
            (plan.dropped, plan.grown) = (Vec::new(), 0);
        }
        plan.dropped.extend(merged.dropped_refs);
        plan.grown += merged.entry_count as i64 - entries;
        plan.old.push(old);
        Ok(Some((separator, right_page)))
    }

    /// Drops changes that restart put back although the neighbour's base holds them.
    pub(super) fn meet_neighbour(&mut self, table: Table, page: LogicalPage) {
        let Some(index) = self.pool.peek(page) else { return };
        let frame = self.pool.frame(index);
        let view = NodeView::trusted(&frame.image);
        let (low, high) = (view.low().to_vec(), view.high().map(<[u8]>::to_vec));
        let lsn = frame.lsn;
        self.drop_redundant(table, KeyRange { low: &low, high: high.as_deref() }, lsn);
    }

    /// Whether changes of a neighbour are left outside memory.
    pub(super) fn has_neighbour_runs(&self, table: Table, page: LogicalPage) -> bool {
        let Some(index) = self.pool.peek(page) else { return true };
        let view = NodeView::trusted(&self.pool.frame(index).image);
        let range = KeyRange { low: view.low(), high: view.high() };
        self.has_left_runs(table, range, self.merge_lsn())
    }
}
