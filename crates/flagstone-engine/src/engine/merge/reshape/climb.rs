//! The climb from leaves that split or join to the root: inner nodes that are written with them, and nodes
//! that a node above has to name.

use flagstone_space::{GroupId, LogicalPage, Lsn};

use crate::delta::KeyRange;
use crate::engine::merge::Merges;
use crate::engine::merge::reshape::{JOIN_PAGES, ReshapePlan};
use crate::engine::step::{Step, Stop, Wait};
use crate::engine::store::catalog::Table;
use crate::engine::store::descent::{Seek, corrupt};
use crate::engine::store::groups::{Grouped, InnerRange, OldBase, PageWrite, Reshape};
use crate::node;
use crate::node::{Built, FillPolicy, NodeView};

/// Results of a climb from a leaf to the root.
#[derive(Default)]
pub(in crate::engine) struct Climb {
    /// Page numbers taken for the job.
    pub(in crate::engine) taken: Vec<LogicalPage>,
    pub(in crate::engine) writes: Vec<PageWrite>,
    written: Vec<InnerRange>,
    /// Page of the right one of two inner nodes that joined, until its fate is known.
    right: Option<LogicalPage>,
    /// The part of the leaf that did not merge.
    rest: Option<OldBase>,
}

impl Climb {
    /// A page that is complete to `lsn`; a page with a part that did not merge keeps its older LSN.
    fn write(&mut self, page: LogicalPage, image: Vec<u8>, lsn: Lsn) {
        let view = NodeView::trusted(&image);
        let rest = self.rest.as_ref().filter(|rest| view.is_leaf() && view.low() >= &rest.low[..]);
        let lsn = rest.map_or(lsn, |rest| rest.lsn);
        self.writes.push(PageWrite::new(page, image, lsn));
    }
}

/// Two inner nodes that share their children anew.
pub(in crate::engine) struct Joined {
    left: LogicalPage,
    right: LogicalPage,
    /// Old separator of the right one.
    separator: Vec<u8>,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    built: Vec<Built>,
}

impl Merges {
    /// Climbs from leaves below one node to the first node that takes their new separators; none when a
    /// reshape under way writes one of the nodes on the way, or changes a node that this one would
    /// write.
    pub(super) fn climb(
        &mut self,
        plan: ReshapePlan,
        beside: Vec<ReshapePlan>,
        gone: Vec<(Vec<u8>, LogicalPage)>,
        climb: &mut Climb,
    ) -> Step<Option<(GroupId, Reshape)>> {
        let ReshapePlan { table, upto, low: key, mut dropped, mut old, rest, .. } = plan;
        let (mut grown, mut frees) = (plan.grown, plan.frees);
        climb.rest = rest;
        let root = self.root_of(table)?;
        let (mut deletes, mut trims): (Vec<_>, Vec<_>) = gone.into_iter().unzip();
        let mut level = 0;
        let mut built = vec![(plan.page, plan.pages)];
        for other in beside {
            built.push((other.page, other.pages));
            dropped.extend(other.dropped);
            old.extend(other.old);
            grown += other.grown;
            frees += other.frees;
        }
        // Every structure change up to the durable LSN is installed in the nodes that are written.
        // Where restart merges, a node may hold later changes too.
        let mut lsn = upto;
        let mut puts: Vec<(Vec<u8>, LogicalPage)>;
        let parent = loop {
            puts = self.place_nodes((table, level), built, lsn, root, climb)?;
            trims.extend(climb.right.take());
            if puts.is_empty() && deletes.is_empty() {
                break None;
            }
            level += 1;
            let index = self.node_for(table, Seek::At(&key), level)?;
            let frame = self.pool.frame(index);
            lsn = upto.max(frame.lsn);
            let view = NodeView::trusted(&frame.image);
            let put_refs: Vec<_> =
                puts.iter().map(|(key, child)| (key.as_slice(), *child)).collect();
            let delete_refs: Vec<_> = deletes.iter().map(Vec::as_slice).collect();
            let next = node::inner_with(&view, &put_refs, &delete_refs, self.payload_size)
                .map_err(|_| corrupt(frame.page, "inner node does not take its separators"))?;
            let (low, high) = (view.low().to_vec(), view.high().map(<[u8]>::to_vec));
            let page = frame.page;
            if self.groups.busy.contains(&page)
                || !self.takes_beside(page, &view, &put_refs, next.len())?
            {
                return Ok(None);
            }
            if next.len() > 1 {
                climb.written.push((level, low, high, lsn));
                deletes.clear();
                built = vec![(page, next)];
                continue;
            }
            if deletes.is_empty() || page == root || !self.is_small(&next[0]) {
                break Some(page);
            }
            let Some(joined) = self.join_neighbour(table, level, &next[0], upto)? else {
                break Some(page);
            };
            (built, lsn) = (vec![(joined.left, joined.built)], upto);
            climb.right = Some(joined.right);
            climb.written.push((level, joined.low, joined.high, lsn));
            deletes = vec![joined.separator];
        };
        let reshape = Reshape {
            table,
            upto,
            written: std::mem::take(&mut climb.written),
            parent,
            level,
            puts,
            deletes,
            trims,
            taken: std::mem::take(&mut climb.taken),
            dropped,
            old,
            rest: climb.rest.take(),
            grown,
            frees,
            claim: None,
        };
        let waits = !reshape.is_shared() && !self.tree(table)?.reshaping.is_none();
        let group = if waits { Ok(None) } else { self.take_group().map(Some) };
        let Ok(Some(group)) = group else {
            climb.taken = reshape.taken;
            return group.map(|_| None);
        };
        Ok(Some((group, reshape)))
    }

    /// Whether an inner node, which becomes `node_count` nodes with these separators, takes them beside
    /// the separators that reshapes under way are about to add.
    pub(super) fn takes_beside(
        &self,
        page: LogicalPage,
        view: &NodeView<'_>,
        puts: &[(&[u8], LogicalPage)],
        node_count: usize,
    ) -> Step<bool> {
        let is_here = |job: &&Grouped| job.reshape.parent == Some(page);
        let waiting = self.open_groups().filter(is_here).flat_map(|job| &job.reshape.puts);
        let waiting: Vec<_> = waiting.map(|(key, page)| (key.as_slice(), *page)).collect();
        if waiting.is_empty() || node_count > 1 {
            return Ok(waiting.is_empty());
        }
        let mut all = [&waiting, puts].concat();
        all.sort_unstable();
        let nodes = node::inner_with(view, &all, &[], self.payload_size)
            .map_err(|_| corrupt(page, "inner node does not take its separators"))?;
        Ok(nodes.len() == 1)
    }

    /// Pages for the nodes that replace nodes of one level. Returns the separators that their parent
    /// lacks, in order.
    pub(super) fn place_nodes(
        &mut self,
        (table, level): (Table, u8),
        nodes: Vec<(LogicalPage, Vec<Built>)>,
        lsn: Lsn,
        root: LogicalPage,
        climb: &mut Climb,
    ) -> Step<Vec<(Vec<u8>, LogicalPage)>> {
        let more: usize = nodes.iter().map(|(_, built)| built.len().saturating_sub(1)).sum();
        self.require_pages(more.saturating_sub(usize::from(climb.right.is_some())), climb)?;
        let mut puts = Vec::new();
        for (page, built) in nodes {
            if built.len() == 1 || page != root {
                puts.extend(self.place_siblings(page, built, lsn, climb)?);
            } else {
                self.grow_root(table, level, built, lsn, root, climb)?;
            }
        }
        puts.sort_unstable();
        Ok(puts)
    }

    /// Joins an inner node that became too small with its neighbour under the same parent: the result
    /// is one node, or two nodes that share the children. None when it has no neighbour, or the
    /// neighbour cannot be had now.
    pub(super) fn join_neighbour(
        &mut self,
        table: Table,
        level: u8,
        small: &Built,
        upto: Lsn,
    ) -> Step<Option<Joined>> {
        if !self.has_pages_for(JOIN_PAGES) {
            // Separators of other lengths may take more pages: a merge that frees pages waits for none.
            return Ok(None);
        }
        let index = self.node_for(table, Seek::At(&small.low_key), level + 1)?;
        let view = NodeView::trusted(&self.pool.frame(index).image);
        let Some((place, page)) = view.child_for(&small.low_key) else { return Ok(None) };
        let is_left = place + 1 < view.count();
        let right = if is_left { place + 1 } else { place };
        if right == 0 {
            return Ok(None);
        }
        let separator = view.separator(right);
        let other_place = if is_left { right } else { place - 1 };
        let other_key = view.separator(other_place);
        let passes = |other| self.obstacles.passes_over(other) || self.reads_enough(other);
        if view.child(other_place).is_none_or(passes) {
            return Ok(None);
        }
        let other = self.node_for(table, Seek::At(&other_key), level)?;
        let Some(own) = self.pool.peek(page) else { return Ok(None) };
        let (own, other) = (self.pool.frame(own), self.pool.frame(other));
        let is_apart = own.lsn > upto || other.lsn > upto;
        if is_apart || self.groups.busy.contains(&other.page) || other.ahead.is_some() {
            // One of the two already holds changes that restart has not put back yet (rule D2), or it
            // is being written.
            return Ok(None);
        }
        let (small, neighbour) = (NodeView::trusted(&small.image), NodeView::trusted(&other.image));
        let [first, second] = if is_left { [small, neighbour] } else { [neighbour, small] };
        let (left, right) = if is_left { (page, other.page) } else { (other.page, page) };
        let built = node::join_inner(&first, &second, self.payload_size)
            .map_err(|_| corrupt(other.page, "inner node does not join its neighbour"))?;
        let (low, high) = (first.low().to_vec(), second.high().map(<[u8]>::to_vec));
        Ok(Some(Joined { left, right, separator, low, high, built }))
    }

    /// Asks for all pages of a level at once: a climb that stops begins again from its start.
    pub(super) fn require_pages(&self, count: usize, climb: &Climb) -> Step<()> {
        if self.room.unused_pages.len() >= count {
            return Ok(());
        }
        Err(Stop::Wait(Wait::Pages(climb.taken.len() + count)))
    }

    pub(super) fn take_page_for(&mut self, climb: &mut Climb) -> Step<LogicalPage> {
        let page = self.take_page()?;
        climb.taken.push(page);
        Ok(page)
    }

    /// The first image stays on `page`, the second goes to the page of a neighbour that joined it, the
    /// others get pages of their own.
    pub(super) fn place_siblings(
        &mut self,
        page: LogicalPage,
        built: Vec<Built>,
        lsn: Lsn,
        climb: &mut Climb,
    ) -> Step<Vec<(Vec<u8>, LogicalPage)>> {
        let mut puts = Vec::new();
        for (index, built) in built.into_iter().enumerate() {
            let at = match (index, climb.right) {
                (0, _) => page,
                (1, Some(right)) => {
                    climb.right = None;
                    right
                }
                _ => self.take_page_for(climb)?,
            };
            if index > 0 {
                puts.push((built.low_key, at));
            }
            climb.write(at, built.image, lsn);
        }
        Ok(puts)
    }

    /// The root's content moves to new pages, the root names them.
    pub(super) fn grow_root(
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
            climb.write(at, built.image, lsn);
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
        climb.write(root, image, lsn);
        Ok(())
    }
}
