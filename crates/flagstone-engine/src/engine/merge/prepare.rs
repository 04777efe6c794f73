//! Preparing: the images of a merge, of a frame that flash lags behind, and of an inner node.

use flagstone_space::{GroupId, LogicalPage, Lsn};

use crate::bugs::SeededBug;
use crate::delta::{DeltaMap, KeyRange};
use crate::engine::merge::reshape::ReshapePlan;
use crate::engine::merge::{Merges, Reason, Target, UNDERFULL_PERCENT};
use crate::engine::step::Step;
use crate::engine::store::catalog::{Table, Tree};
use crate::engine::store::descent::{Seek, corrupt};
use crate::engine::store::groups::{OldBase, Outcome, PageWrite, Reshaping, WriteJob};
use crate::engine::store::pool::{Class, FrameIndex};
use crate::engine::store::room::grown_by;
use crate::node;
use crate::node::{Built, MergeRequest, NoOutline, NodeView};

impl Merges {
    /// Merges the leaf that holds `key`, however little that frees; none when it cannot be done now.
    pub(crate) fn merge_at(&mut self, table: Table, key: Vec<u8>) -> Step<Option<WriteJob>> {
        self.prepare_merge(&Target::new(table, key, Reason::Memory))
    }

    /// Builds the new images of the leaf that holds `target`'s key.
    pub(super) fn prepare_merge(&mut self, target: &Target) -> Step<Option<WriteJob>> {
        let table = target.table;
        let tree = self.trees.get(table.id as usize);
        if tree.is_none_or(|tree| tree.root.is_none()) {
            // The table was dropped since the leaf was chosen.
            return Ok(None);
        }
        if target.reason == Reason::Emptied
            && (self.is_dropped(table) || self.behind_unreadable(table, &target.key).is_some())
        {
            // A table that is being freed keeps its shape, and so does one with a page on the way that
            // cannot be read.
            return Ok(None);
        }
        let index = self.leaf_for(table, Seek::At(&target.key))?;
        let frame = self.pool.frame(index);
        let (page, base_lsn) = (frame.page, frame.lsn);
        if self.groups.busy.contains(&page) {
            return Ok(None);
        }
        let is_ahead = frame.ahead.is_some();
        if is_ahead && !self.merges_to_frames() {
            // The image derives from commits up to its LSN, and snapshots read its page on flash.
            return self.catch_up(page);
        }
        let upto = self.merge_lsn();
        let view = NodeView::trusted(&frame.image);
        let (low, high) = (view.low().to_vec(), view.high().map(<[u8]>::to_vec));
        let range = KeyRange { low: &low, high: high.as_deref() };
        let end = match self.may_cut(table, base_lsn)? {
            true => self.load_some_runs(table, range, upto)?,
            false => self.load_runs_until(table, range, upto).map(|()| None)?,
        };
        let Some(index) = self.pool.peek(page) else { return Ok(None) };
        // These deltas were put back after the frame was read.
        self.drop_redundant(table, range, base_lsn);
        debug_assert_eq!(self.pool.peek(page), Some(index), "frames stay while a merge uses them");
        let view = NodeView::trusted(&self.pool.frame(index).image);
        let deltas = &self.tree(table)?.deltas;
        let is_due = deltas.has_upto(range, upto);
        // At restart, changes that the image already holds may not be put back yet (rule D2).
        let is_reached = !is_ahead && base_lsn <= upto && end.is_none();
        let may_join = target.reason == Reason::Emptied && is_reached && view.count() == 0;
        if !is_due && !may_join {
            if target.reason == Reason::Eager && deltas.has_upto(range, self.frontier.committed) {
                // The change that did not fit is not durable yet.
                self.want_flush();
                self.planner.target = Some(target.clone());
            }
            return Ok(None);
        }
        if is_due && self.merge_to_frame(index, upto)? {
            return Ok(None);
        }
        if is_ahead {
            return self.catch_up(page);
        }
        if self.is_put_off(table, range)? {
            if !is_due {
                self.note_emptied(table, &low);
            }
            self.await_installs();
            return Ok(None);
        }
        let plan = self.plan_of(table, index, upto, end)?;
        let is_single = plan.pages.len() == 1 && plan.dropped.is_empty();
        if is_single && !self.is_underfull(table, page, &plan.pages[0])? {
            return Ok(is_due.then(|| self.single_job(index, plan)));
        }
        let beside = self.plans_beside(&plan, &target.beside)?;
        let merged: Vec<_> =
            beside.iter().chain([&plan]).map(|plan| self.count_deltas(plan)).collect();
        let job = self.reshape(plan, beside)?;
        if job.is_some() {
            merged.into_iter().for_each(|deltas| self.count_merge(deltas));
        }
        Ok(job)
    }

    /// New pages of a leaf in memory with its durable deltas, or of the part of the leaf below
    /// `loaded_to`.
    pub(super) fn plan_of(
        &self,
        table: Table,
        index: FrameIndex,
        upto: Lsn,
        loaded_to: Option<Vec<u8>>,
    ) -> Step<ReshapePlan> {
        let frame = self.pool.frame(index);
        let (page, lsn) = (frame.page, frame.lsn);
        let view = NodeView::trusted(&frame.image);
        let range = KeyRange { low: view.low(), high: view.high() };
        let deltas = &self.tree(table)?.deltas;
        let end = match (self.end_of_merge(table, range, upto), loaded_to) {
            (Some(end), Some(loaded_to)) => Some(end.min(loaded_to)),
            (end, loaded_to) => end.or(loaded_to),
        };
        let taken = KeyRange { high: end.as_deref().or(range.high), ..range };
        let is_due = deltas.has_upto(taken, upto);
        let request =
            MergeRequest { tree: table.id, range: taken, upto, page_size: self.payload_size };
        let mut merged = node::merge_leaf(Some(view), deltas, request, &mut NoOutline)
            .map_err(|_| corrupt(page, "leaf does not merge with its deltas"))?;
        let mut entry_count = merged.entry_count;
        if let Some(end) = &end {
            let request = MergeRequest { range: KeyRange { low: end, ..range }, ..request };
            let rest = node::merge_leaf(Some(view), &DeltaMap::new(), request, &mut NoOutline)
                .map_err(|_| corrupt(page, "leaf does not part"))?;
            merged.pages.extend(rest.pages);
            entry_count += rest.entry_count;
        }
        let base = |low: &[u8], high: Option<&[u8]>| OldBase {
            page,
            low: low.to_vec(),
            high: high.map(<[u8]>::to_vec),
            lsn,
        };
        let grown = entry_count as i64 - view.count() as i64;
        Ok(ReshapePlan {
            table,
            page,
            old: vec![base(taken.low, taken.high)],
            rest: end.as_ref().map(|end| base(end, range.high)),
            low: taken.low.to_vec(),
            high: taken.high.map(<[u8]>::to_vec),
            upto,
            pages: merged.pages,
            dropped: merged.dropped_refs,
            grown,
            frees: deltas.range_bytes(taken),
            is_due,
        })
    }

    /// Key at which the merge of a leaf ends whose deltas become more pages than a checkpoint could
    /// name, should one come before the install (rule D4). The keys behind keep their deltas.
    fn end_of_merge(&self, table: Table, range: KeyRange<'_>, upto: Lsn) -> Option<Vec<u8>> {
        let deltas = &self.trees.get(table.id as usize)?.deltas;
        // Each page but the last is half full at least.
        let most = self.split_max() * self.payload_size / 2;
        if deltas.bytes() <= most {
            return None;
        }
        let (mut bytes, mut last) = (0, range.low);
        for entry in deltas.range(range) {
            if bytes > most {
                return Some(node::separator_of(last, entry.key()).to_vec());
            }
            bytes += usize::try_from(grown_by(&entry, upto)).unwrap_or(0);
            last = entry.key();
        }
        None
    }

    /// The job of a leaf that keeps to its page, by an append where the change fits one.
    fn single_job(&mut self, index: FrameIndex, plan: ReshapePlan) -> WriteJob {
        let deltas = self.count_deltas(&plan);
        self.count_merge(deltas);
        let is_buried =
            self.hides_from_snapshot(plan.upto) && !self.bugs.has(SeededBug::AppendBuries);
        let append = match plan.pages.first() {
            Some(built) if !is_buried => self.append_onto(index, &built.image),
            _ => None,
        };
        self.write_alone(plan, append)
    }

    /// Number of deltas that a merge takes.
    fn count_deltas(&self, plan: &ReshapePlan) -> u64 {
        let range = KeyRange { low: &plan.low, high: plan.high.as_deref() };
        let tree = self.trees.get(plan.table.id as usize);
        tree.map_or(0, |tree| tree.deltas.range_totals(range, plan.upto).count as u64)
    }

    /// A merge of so many deltas is made.
    fn count_merge(&mut self, deltas: u64) {
        self.counts.merges += 1;
        self.counts.merged_deltas += deltas;
    }

    pub(super) fn is_underfull(
        &self,
        table: Table,
        page: LogicalPage,
        built: &Built,
    ) -> Step<bool> {
        // While room is being reclaimed, and when it becomes empty, the leaf waits for its turn to be
        // merged away.
        let must_wait =
            self.room.growth.is_reclaiming() || NodeView::trusted(&built.image).count() == 0;
        let may_reshape = must_wait || self.tree(table)?.reshaping.is_none();
        Ok(self.is_small(built) && self.root_of(table)? != page && may_reshape)
    }

    /// Whether a node fills so little of its page that a neighbour should take it in, or holds nothing but
    /// its fences, however long.
    pub(in crate::engine) fn is_small(&self, built: &Built) -> bool {
        let view = NodeView::trusted(&built.image);
        let least = usize::from(!view.is_leaf());
        view.count() <= least || view.used_bytes() * 100 < self.payload_size * UNDERFULL_PERCENT
    }

    /// The frame of a page as a job, so that flash catches up with it.
    fn catch_up(&mut self, page: LogicalPage) -> Step<Option<WriteJob>> {
        let Some(index) = self.pool.peek(page) else { return Ok(None) };
        let frame = self.pool.frame(index);
        if frame.lsn > self.durable() {
            // Commits go to the deltas meanwhile, so that the frame's LSN stays and is reached.
            let lsn = frame.lsn;
            self.groups.busy.insert(page);
            self.planner.waiting.push((page, lsn));
            self.want_flush();
            return Ok(None);
        }
        let write = PageWrite::new(page, frame.image.clone(), frame.lsn);
        self.groups.busy.insert(page);
        Ok(Some(WriteJob::new(GroupId::NONE, vec![write], Outcome::CaughtUp)))
    }

    /// A page whose frame is ahead and has to leave memory, or holds back the log.
    pub(in crate::engine) fn evict_job(&mut self) -> Step<Option<WriteJob>> {
        let durable = self.durable();
        if let Some(index) = self.planner.waiting.iter().position(|(_, lsn)| *lsn <= durable) {
            let (page, _) = self.planner.waiting.swap_remove(index);
            self.groups.busy.remove(&page);
            return self.catch_up(page);
        }
        let frames_max = self.frames_max();
        match self.pool.shrink(frames_max) {
            Some(page) if !self.groups.busy.contains(&page) => {
                self.take_along(page)?;
                self.catch_up(page)
            }
            _ => Ok(None),
        }
    }

    /// A frame is about to be written: the durable deltas that came for it meanwhile go with it.
    fn take_along(&mut self, page: LogicalPage) -> Step<()> {
        let Some(index) = self.pool.peek(page) else { return Ok(()) };
        self.merge_to_frame(index, self.merge_lsn()).map(drop)
    }

    pub(in crate::engine) fn must_evict(&self) -> bool {
        self.pool.bytes() > self.frames_max()
            || self.planner.waiting.iter().any(|(_, lsn)| *lsn <= self.durable())
    }

    /// Inner nodes as jobs: the log's head may pass their structure changes afterwards.
    pub(crate) fn inner_job(&mut self, cutoff: Lsn) -> Step<Option<WriteJob>> {
        let old = |tree: &Tree| Some((tree.id, tree.structure.first_until(cutoff)?));
        if let Some((id, (level, key))) = self.trees.iter().find_map(old) {
            let table = Table::of(id);
            let tree = self.tree(table)?;
            if !tree.reshaping.is_none() {
                self.await_installs();
                return Ok(None);
            }
            let index = self.node_for(table, Seek::At(&key), level)?;
            let frame = self.pool.frame(index);
            let view = NodeView::trusted(&frame.image);
            if view.level() != level {
                return Err(corrupt(frame.page, "structure change of a level the tree lacks"));
            }
            // A split at restart wrote the node with changes newer than its LSN: without them the node
            // would be written again and again.
            let index = self.with_structure(table, index);
            let frame = self.pool.frame(index);
            let view = NodeView::trusted(&frame.image);
            let (low, high) = (view.low().to_vec(), view.high().map(<[u8]>::to_vec));
            let (page, upto) = (frame.page, frame.lsn);
            let write = PageWrite::new(page, frame.image.clone(), upto);
            let outcome = Outcome::InnerWritten { table, level, low, high, upto };
            if let Some(tree) = self.trees.get_mut(id as usize) {
                tree.reshaping = Reshaping::Alone;
            }
            return Ok(Some(WriteJob::new(GroupId::NONE, vec![write], outcome)));
        }
        Ok(None)
    }

    /// The frame of an inner node, with every structure change of its range.
    fn with_structure(&mut self, table: Table, index: FrameIndex) -> FrameIndex {
        let frame = self.pool.frame(index);
        let page = frame.page;
        let tree = self.trees.get(table.id as usize);
        match tree.and_then(|tree| tree.structure.apply(&frame.image, frame.lsn)) {
            Some((image, lsn)) => self.pool.insert(page, lsn, image, Class::Inner),
            None => index,
        }
    }

    /// The frame that is ahead for longest, if since `cutoff` or before, as a job; and whether any
    /// frame is ahead.
    pub(crate) fn old_frame_job(&mut self, cutoff: Lsn) -> Step<(bool, Option<WriteJob>)> {
        let (mut is_any, mut oldest) = (false, None);
        for candidate in self.pool.ahead_since(cutoff) {
            is_any = true;
            if oldest.is_none_or(|oldest| candidate < oldest)
                && !self.groups.busy.contains(&candidate.1)
            {
                oldest = Some(candidate);
            }
        }
        match oldest {
            Some((_, page)) => Ok((true, self.catch_up(page)?)),
            None => Ok((is_any, None)),
        }
    }
}
