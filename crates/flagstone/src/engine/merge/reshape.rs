//! Reshaping: merges that take several pages, leaves that join a neighbour, and the inner nodes that
//! become too small.

use flagstone_space::{Cause, GroupId, LogicalPage, Lsn};

use super::{
    InnerRange, MERGED_PERCENT, OldBase, Outcome, PageWrite, Reshape, ReshapePlan, WriteJob,
};
use crate::delta::KeyRange;
use crate::engine::descent::{Seek, corrupt};
use crate::engine::{Engine, Step, Stop, Table, Wait};
use crate::lock::Xid;
use crate::node::{self, Built, FillPolicy, MergeRequest, NoOutline, NodeView};

impl Engine {
    /// Several pages at once: the leaves, and the inner nodes that become too small.
    pub(super) fn reshape(&mut self, plan: ReshapePlan) -> Step<Option<WriteJob>> {
        let table = plan.table;
        if self.tree(table)?.is_reshaping {
            self.want_flush();
            return Ok(None);
        }
        let mut plan = plan;
        let mut neighbour = None;
        if plan.pages.len() == 1 && self.is_underfull(table, plan.page, &plan.pages[0])? {
            neighbour = self.merge_with_neighbour(&mut plan)?;
            if neighbour.is_none() && plan.dropped.is_empty() {
                return self.write_alone(plan);
            }
        }
        self.plan_reshape(plan, neighbour)
    }

    fn write_alone(&mut self, plan: ReshapePlan) -> Step<Option<WriteJob>> {
        let ReshapePlan { table, page, low, high, upto, pages, grown, old, .. } = plan;
        let base_lsn = old.first().map_or(Lsn::ZERO, |old| old.lsn);
        let pin = self.buries(upto).then_some(page);
        self.busy.insert(page);
        let image = pages.into_iter().next().map(|built| built.image).unwrap_or_default();
        let outcome = Outcome::Merged { table, low, high, upto, grown, base_lsn };
        let pages = vec![PageWrite::new(page, image, upto)];
        Ok(Some(WriteJob { group: GroupId::NONE, pages, cause: Cause::Data, pin, outcome }))
    }

    /// Widens a plan to the leaf's neighbour under the same parent, when both fit one page.
    ///
    /// Returns the separator and page that go.
    fn merge_with_neighbour(
        &mut self,
        plan: &mut ReshapePlan,
    ) -> Step<Option<(Vec<u8>, LogicalPage)>> {
        let table = plan.table;
        let parent = self.node_for(table, Seek::At(&plan.low), 1)?;
        let view = NodeView::trusted(&self.pool.frame(parent).image);
        let Some((child, _)) = view.child_for(&plan.low) else { return Ok(None) };
        let right = if child + 1 < view.count() { child + 1 } else { child };
        if right == 0 || view.count() < 2 {
            return Ok(None);
        }
        let separator = view.separator(right);
        let (Some(left_page), Some(right_page)) = (view.child(right - 1), view.child(right)) else {
            return Ok(None);
        };
        let other = if left_page == plan.page { right_page } else { left_page };
        if self.busy.contains(&other) {
            return Ok(None);
        }
        let index = self.frame_of(other)?;
        if self.pool.frame(index).ahead.is_some() {
            return Ok(None);
        }
        self.load_neighbour_runs(table, other)?;
        self.meet_neighbour(table, other);
        let (Some(own), Some(index)) = (self.pool.peek(plan.page), self.pool.peek(other)) else {
            return Ok(None);
        };
        let (own, neighbour) = (self.pool.frame(own), self.pool.frame(index));
        if neighbour.lsn > plan.upto {
            // Restart has not put back yet what this image holds already (rule D2).
            return Ok(None);
        }
        let (own_view, other_view) =
            (NodeView::trusted(&own.image), NodeView::trusted(&neighbour.image));
        let bases =
            if other == right_page { [own_view, other_view] } else { [other_view, own_view] };
        let range = KeyRange { low: bases[0].low(), high: bases[1].high() };
        let entries = (bases[0].count() + bases[1].count()) as i64;
        let deltas = &self.tree(table)?.deltas;
        let request =
            MergeRequest { tree: table.id, range, upto: plan.upto, page_size: self.payload_size };
        let merged = node::merge_leaves(&bases, deltas, request, &mut NoOutline)
            .map_err(|_| corrupt(other, "leaf does not merge with its neighbour"))?;
        let used = NodeView::trusted(&merged.pages[0].image).used_bytes();
        let is_crowded = used * 100 > self.payload_size * MERGED_PERCENT;
        let was_empty = NodeView::trusted(&plan.pages[0].image).count() == 0;
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
        plan.dropped = merged.dropped_refs;
        plan.grown = merged.entry_count as i64 - entries;
        plan.old.push(old);
        Ok(Some((separator, right_page)))
    }

    /// Drops what restart put back although the neighbour's base holds it.
    fn meet_neighbour(&mut self, table: Table, page: LogicalPage) {
        let Some(index) = self.pool.peek(page) else { return };
        let frame = self.pool.frame(index);
        let view = NodeView::trusted(&frame.image);
        let (low, high) = (view.low().to_vec(), view.high().map(<[u8]>::to_vec));
        let lsn = frame.lsn;
        self.drop_held(table, KeyRange { low: &low, high: high.as_deref() }, lsn);
    }

    fn load_neighbour_runs(&mut self, table: Table, page: LogicalPage) -> Step<()> {
        let Some(index) = self.pool.peek(page) else { return Ok(()) };
        let view = NodeView::trusted(&self.pool.frame(index).image);
        let (low, high) = (view.low().to_vec(), view.high().map(<[u8]>::to_vec));
        let range = KeyRange { low: &low, high: high.as_deref() };
        self.load_runs_until(table, range, self.merge_lsn())
    }

    /// Assigns pages, climbs as far as inner nodes overflow, and makes the job.
    fn plan_reshape(
        &mut self,
        plan: ReshapePlan,
        gone: Option<(Vec<u8>, LogicalPage)>,
    ) -> Step<Option<WriteJob>> {
        let mut climb = Climb::default();
        let page = plan.page;
        let stop = match self.climb(plan, gone, &mut climb) {
            Ok((group, reshape)) => {
                self.hand.short = None;
                return Ok(Some(self.reshape_job(group, reshape, climb.writes)));
            }
            Err(stop @ Stop::Wait(Wait::Pages(_))) => {
                self.hand.short = Some(page);
                stop
            }
            Err(stop) => stop,
        };
        self.unused_pages.append(&mut climb.taken);
        Err(stop)
    }

    /// The job that writes what a transaction makes of a leaf.
    pub(in crate::engine) fn claim_reshape(
        &mut self,
        xid: Xid,
        plan: ReshapePlan,
    ) -> Step<WriteJob> {
        let mut climb = Climb::default();
        match self.climb(plan, None, &mut climb) {
            Ok((group, mut reshape)) => {
                reshape.claim = Some(xid);
                Ok(self.reshape_job(group, reshape, climb.writes))
            }
            Err(stop) => {
                self.unused_pages.append(&mut climb.taken);
                Err(stop)
            }
        }
    }

    fn reshape_job(&mut self, group: GroupId, reshape: Reshape, pages: Vec<PageWrite>) -> WriteJob {
        self.busy.extend(pages.iter().map(|write| write.page));
        self.busy.extend(reshape.trims.iter().copied());
        if let Some(tree) = self.trees.get_mut(reshape.table.id as usize) {
            tree.is_reshaping = true;
        }
        let outcome = Outcome::Reshaped(reshape);
        WriteJob { group, pages, cause: Cause::Data, pin: None, outcome }
    }

    /// Climbs from the leaf to the first node that takes its new separators.
    fn climb(
        &mut self,
        plan: ReshapePlan,
        gone: Option<(Vec<u8>, LogicalPage)>,
        climb: &mut Climb,
    ) -> Step<(GroupId, Reshape)> {
        let table = plan.table;
        let root = self.root_of(table)?;
        let mut deletes = Vec::new();
        let mut trims = Vec::new();
        if let Some((separator, page)) = gone {
            deletes.push(separator);
            trims.push(page);
        }
        let mut level = 0;
        let mut page = plan.page;
        let mut built = plan.pages;
        // Every structure change up to the durable LSN is installed: one reshape a tree at a time. Where
        // restart merges, a node may hold more than that.
        let mut lsn = plan.upto;
        let mut puts: Vec<(Vec<u8>, LogicalPage)>;
        let parent = loop {
            if built.len() == 1 || page != root {
                puts = self.place_siblings(page, built, lsn, climb)?;
            } else {
                self.grow_root(table, level, built, lsn, root, climb)?;
                puts = Vec::new();
            }
            if puts.is_empty() && deletes.is_empty() {
                break None;
            }
            level += 1;
            let index = self.node_for(table, Seek::At(&plan.low), level)?;
            let frame = self.pool.frame(index);
            lsn = plan.upto.max(frame.lsn);
            let view = NodeView::trusted(&frame.image);
            let put_refs: Vec<_> =
                puts.iter().map(|(key, child)| (key.as_slice(), *child)).collect();
            let delete_refs: Vec<_> = deletes.iter().map(Vec::as_slice).collect();
            let next = node::inner_with(&view, &put_refs, &delete_refs, self.payload_size)
                .map_err(|_| corrupt(frame.page, "inner node does not take its separators"))?;
            if next.len() == 1 {
                break Some(frame.page);
            }
            let (low, high) = (view.low().to_vec(), view.high().map(<[u8]>::to_vec));
            climb.written.push((level, low, high, lsn));
            (page, built) = (frame.page, next);
            deletes.clear();
        };
        let group = self.take_group()?;
        let reshape = Reshape {
            table,
            low: plan.low,
            high: plan.high,
            upto: plan.upto,
            written: std::mem::take(&mut climb.written),
            parent,
            level,
            puts,
            deletes,
            trims,
            taken: std::mem::take(&mut climb.taken),
            dropped: plan.dropped,
            old: plan.old,
            grown: plan.grown,
            claim: None,
        };
        Ok((group, reshape))
    }

    /// Asks for all pages of a level at once: a climb that stops is done again from its start.
    fn require_pages(&self, count: usize, climb: &Climb) -> Step<()> {
        if self.unused_pages.len() >= count {
            return Ok(());
        }
        Err(Stop::Wait(Wait::Pages(climb.taken.len() + count)))
    }

    fn take_page_for(&mut self, climb: &mut Climb) -> Step<LogicalPage> {
        let page = self.take_page()?;
        climb.taken.push(page);
        Ok(page)
    }

    /// The first image stays on `page`, the others get pages of their own.
    fn place_siblings(
        &mut self,
        page: LogicalPage,
        built: Vec<Built>,
        lsn: Lsn,
        climb: &mut Climb,
    ) -> Step<Vec<(Vec<u8>, LogicalPage)>> {
        let mut puts = Vec::new();
        self.require_pages(built.len() - 1, climb)?;
        for (index, built) in built.into_iter().enumerate() {
            let at = if index == 0 { page } else { self.take_page_for(climb)? };
            if index > 0 {
                puts.push((built.low_key, at));
            }
            climb.writes.push(PageWrite::new(at, built.image, lsn));
        }
        Ok(puts)
    }

    /// The root's content moves to new pages, the root names them.
    fn grow_root(
        &mut self,
        table: Table,
        level: u8,
        built: Vec<Built>,
        lsn: Lsn,
        root: LogicalPage,
        climb: &mut Climb,
    ) -> Step<()> {
        let mut children = Vec::new();
        self.require_pages(built.len(), climb)?;
        for built in built {
            let at = self.take_page_for(climb)?;
            children.push((built.low_key, at));
            climb.writes.push(PageWrite::new(at, built.image, lsn));
        }
        let range = KeyRange::ALL;
        let rows = children.iter().map(|(key, child)| (key.as_slice(), *child));
        let fill = FillPolicy::Append;
        let images = node::build_inner((table.id, level + 1), range, rows, self.payload_size, fill)
            .map_err(|_| corrupt(root, "root does not take its children"))?;
        if images.len() > 1 {
            return self.grow_root(table, level + 1, images, lsn, root, climb);
        }
        let image = images.into_iter().next().map(|built| built.image).unwrap_or_default();
        climb.writes.push(PageWrite::new(root, image, lsn));
        Ok(())
    }
}

/// What a climb from a leaf to the root collects.
#[derive(Default)]
struct Climb {
    /// Page numbers taken for it.
    taken: Vec<LogicalPage>,
    writes: Vec<PageWrite>,
    written: Vec<InnerRange>,
}
