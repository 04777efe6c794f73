//! Reshaping: merges that take several pages, leaves that join a neighbour, and the inner nodes that
//! become too small.

use flagstone_space::{GroupId, LogicalPage, Lsn};

use crate::bugs::SeededBug;
use crate::delta::KeyRange;
use crate::engine::merge::reshape::climb::Climb;
use crate::engine::merge::reshape::neighbour::NEIGHBOURS_MAX;
use crate::engine::merge::{Merges, TOGETHER_MAX};
use crate::engine::step::{Step, Stop, Wait};
use crate::engine::store::append::Append;
use crate::engine::store::catalog::Table;
use crate::engine::store::descent::Seek;
use crate::engine::store::groups::{
    Grouped, IMAGES_SHARE, OldBase, Outcome, PageWrite, Reshape, Reshaping, WriteJob,
};
use crate::engine::store::memory::MERGE_PAGES;
use crate::engine::store::pool::frame_size;
use crate::lock::Xid;
use crate::node::{Built, NodeView};

mod climb;
mod neighbour;

/// Pages read for one merge, beyond which it does without further reads where it can: memory may not
/// hold all pages.
const READS_MAX: usize = 8;

/// Frames of memory for each page that is read so that its leaf may split with another one.
const FRAMES_A_READ: usize = 16;

/// The pages of one split take at most one part in this many of the pages that a checkpoint can name;
/// the splits of all trees before an install take at most half of these pages.
const NAMED_SHARE: usize = 8;

/// Pages that a join takes at most, where nodes above the joined leaves have to split.
const JOIN_PAGES: u64 = 8;

impl ReshapePlan {
    /// Whether nothing is left of the leaf.
    fn is_empty(&self) -> bool {
        let [only] = self.pages.as_slice() else { return false };
        NodeView::trusted(&only.image).count() == 0
    }
}

impl Merges {
    /// Several pages at once: the leaves of `plan`, the leaves of `beside` that split as well, and the
    /// inner nodes that become too small.
    pub(in crate::engine) fn reshape(
        &mut self,
        plan: ReshapePlan,
        beside: Vec<ReshapePlan>,
    ) -> Step<Option<WriteJob>> {
        let table = plan.table;
        let is_crowded = self.are_images_many() || self.are_many_open(plan.pages.len());
        if is_crowded || !self.may_begin(&plan)? {
            if !plan.is_due {
                self.note_emptied(table, &plan.low);
            }
            self.await_installs();
            return Ok(None);
        }
        if plan.rest.as_ref().is_some_and(|rest| !self.may_keep_lsn(rest.lsn)) {
            self.want_checkpoint_before_merges();
            return Ok(None);
        }
        let own_page = plan.page;
        let mut plan = plan;
        let mut gone = Vec::new();
        // Beside others a leaf keeps its place: it joins a neighbour when its turn comes.
        let may_join = plan.pages.len() == 1 && self.tree(table)?.reshaping.is_none();
        if may_join && self.is_underfull(table, plan.page, &plan.pages[0])? {
            let mut separators = 0;
            let named = |plan: &ReshapePlan| plan.dropped.iter().map(Vec::len).sum::<usize>();
            while gone.len() < NEIGHBOURS_MAX
                && separators + named(&plan) < self.payload_size
                && (gone.is_empty() || plan.is_empty())
                && let Some(merged) = self.merge_with_neighbour(&mut plan)?
            {
                separators += merged.0.len();
                gone.push(merged);
            }
            if gone.is_empty() && plan.dropped.is_empty() {
                return Ok(plan.is_due.then(|| self.write_alone(plan, None)));
            }
        }
        self.plan_reshape(plan, beside, gone, own_page)
    }

    /// Whether a merge may begin beside the reshapes of its tree that are under way: splits go on
    /// beside each other as long as they change different nodes.
    fn may_begin(&self, plan: &ReshapePlan) -> Step<bool> {
        Ok(match self.tree(plan.table)?.reshaping {
            Reshaping::None => true,
            // A leaf that gives up large values keeps its place, whatever is split beside it.
            Reshaping::Splits(_) => {
                (plan.pages.len() > 1 || !plan.dropped.is_empty()) && plan.rest.is_none()
            }
            Reshaping::Alone => false,
        })
    }

    /// Whether the changes of a leaf are so many that its merge would have to wait for reshapes under way:
    /// its images need not be made before.
    pub(super) fn is_put_off(&self, table: Table, range: KeyRange<'_>) -> Step<bool> {
        let tree = self.tree(table)?;
        if tree.reshaping.is_none() && self.open_groups().next().is_none() {
            return Ok(false);
        }
        let pages = tree.deltas.range_bytes(range) / self.payload_size;
        let is_alone = match tree.reshaping {
            Reshaping::None => false,
            // Parts of a leaf reach flash one after the other.
            Reshaping::Splits(_) => 2 * pages > self.split_max(),
            Reshaping::Alone => true,
        };
        Ok(pages > 0 && (is_alone || self.are_images_many() || self.are_many_open(pages)))
    }

    /// Whether a checkpoint would have to name so many pages of other trees that `pages` more wait for
    /// their install.
    fn are_many_open(&self, pages: usize) -> bool {
        let open: usize = self.open_groups().map(Grouped::page_count).sum();
        open > 0 && open + pages > self.nameable_pages() / 2
    }

    /// Whether the merge of a leaf may end before all its changes are loaded. Where the rest would have
    /// to wait for a reshape, for merges that reclaim room, or for pages, all changes are loaded and
    /// merged at once.
    pub(super) fn may_cut(&self, table: Table, lsn: Lsn) -> Step<bool> {
        let is_free = self.tree(table)?.reshaping.is_none() && !self.room.growth.is_reclaiming();
        Ok(is_free && self.may_keep_lsn(lsn) && self.has_pages_for(JOIN_PAGES))
    }

    /// Whether a page number may be given to a page that is complete to no more than `lsn`. A restart
    /// frees the number again if the tail of the log has a younger record that freed it from an earlier
    /// owner.
    fn may_keep_lsn(&self, lsn: Lsn) -> bool {
        self.frontier.freed_lsn <= lsn || self.is_replaying()
    }

    /// The job of a merge whose result stays in the leaf's own page; the page on flash takes `append`,
    /// if any.
    pub(super) fn write_alone(&mut self, plan: ReshapePlan, append: Option<Append>) -> WriteJob {
        let ReshapePlan { table, page, low, high, upto, pages, grown, old, .. } = plan;
        let base_lsn = old.first().map_or(Lsn::ZERO, |old| old.lsn);
        let pin = (self.hides_from_snapshot(upto) && append.is_none()).then_some(page);
        self.groups.busy.insert(page);
        let image = pages.into_iter().next().map(|built| built.image).unwrap_or_default();
        let lsn = match self.bugs.has(SeededBug::ClaimTooMuch) {
            true => Lsn(upto.0 + 8),
            false => upto,
        };
        let outcome = Outcome::Merged { table, low, high, upto, grown, base_lsn };
        let pages = vec![PageWrite { append, ..PageWrite::new(page, image, lsn) }];
        WriteJob { pin, ..WriteJob::new(GroupId::NONE, pages, outcome) }
    }

    /// Plans for the leaves of `keys` that have to split too, below the same node as `plan`'s leaf. One
    /// record installs them all, so that a device that has to be synced before is synced once for all.
    pub(super) fn plans_beside(
        &mut self,
        plan: &ReshapePlan,
        keys: &[Vec<u8>],
    ) -> Step<Vec<ReshapePlan>> {
        let mut plans: Vec<ReshapePlan> = Vec::new();
        let is_alone = keys.is_empty() || plan.pages.len() < 2 || plan.rest.is_some();
        if is_alone || !self.may_split_several(plan.table)? {
            return Ok(plans);
        }
        let mut page_count = plan.pages.len();
        for key in keys.iter().take(self.beside_max()) {
            let Some(page) = self.sibling_of(plan, key)? else { continue };
            let is_taken = page == plan.page || plans.iter().any(|other| other.page == page);
            if is_taken || !self.may_read_beside(page) {
                continue;
            }
            let Some(other) = self.split_of(plan.table, key, plan.upto)? else { continue };
            page_count += other.pages.len();
            if page_count > self.together_max() || !self.has_pages_for(page_count as u64) {
                break;
            }
            plans.push(other);
        }
        Ok(plans)
    }

    fn may_split_several(&self, table: Table) -> Step<bool> {
        let is_free = !self.obstacles.are_splits_single() && !self.room.growth.is_reclaiming();
        let may_split = self.tree(table)?.reshaping != Reshaping::Alone;
        Ok(is_free && !self.merges_to_frames() && may_split)
    }

    /// Pages that leaves which split together become, at most; where memory is small, the pages of two
    /// leaves. A checkpoint names these pages beside the pages of open transactions, until they are
    /// installed.
    fn together_max(&self) -> usize {
        let in_memory = self.options.memory / IMAGES_SHARE / self.payload_size;
        in_memory.min(self.nameable_pages() / NAMED_SHARE).max(MERGE_PAGES)
    }

    /// Pages that the deltas of one leaf become at once, at most.
    pub(super) fn split_max(&self) -> usize {
        (self.nameable_pages() / NAMED_SHARE).max(MERGE_PAGES)
    }

    /// Leaves that may split together with one, at most.
    fn beside_max(&self) -> usize {
        (self.together_max() / 2).min(TOGETHER_MAX) - 1
    }

    /// The leaf of `key`, if it lies below the same node as `plan`'s and may be merged.
    fn sibling_of(&mut self, plan: &ReshapePlan, key: &[u8]) -> Step<Option<LogicalPage>> {
        let parent = self.node_for(plan.table, Seek::At(&plan.low), 1)?;
        let view = NodeView::trusted(&self.pool.frame(parent).image);
        let range = KeyRange { low: view.low(), high: view.high() };
        if view.is_leaf() || !range.contains(key) {
            return Ok(None);
        }
        let page = view.child_for(key).map(|(_, page)| page);
        Ok(page
            .filter(|page| !self.groups.busy.contains(page) && !self.obstacles.passes_over(*page)))
    }

    /// Plan of the merge of the leaf of `key`, if the merge takes several pages.
    fn split_of(&mut self, table: Table, key: &[u8], upto: Lsn) -> Step<Option<ReshapePlan>> {
        let index = self.leaf_for(table, Seek::At(key))?;
        let frame = self.pool.frame(index);
        if frame.ahead.is_some() || frame.lsn > upto {
            // A newer image already holds changes that restart has not put back yet (rule D2).
            return Ok(None);
        }
        let (page, lsn, view) = (frame.page, frame.lsn, NodeView::trusted(&frame.image));
        let (low, high) = (view.low().to_vec(), view.high().map(<[u8]>::to_vec));
        let range = KeyRange { low: &low, high: high.as_deref() };
        if self.has_left_runs(table, range, upto) {
            return Ok(None);
        }
        self.drop_redundant(table, range, lsn);
        let Some(index) = self.pool.peek(page) else { return Ok(None) };
        let plan = self.plan_of(table, index, upto, None)?;
        Ok((plan.is_due && plan.pages.len() > 1 && plan.rest.is_none()).then_some(plan))
    }

    /// Assigns pages, climbs as far as inner nodes overflow, and makes the job.
    fn plan_reshape(
        &mut self,
        plan: ReshapePlan,
        beside: Vec<ReshapePlan>,
        gone: Vec<(Vec<u8>, LogicalPage)>,
        own_page: LogicalPage,
    ) -> Step<Option<WriteJob>> {
        let mut climb = Climb::default();
        let stop = match self.climb(plan, beside, gone, &mut climb) {
            Ok(Some((group, reshape))) => {
                self.planner.short = None;
                return Ok(Some(self.reshape_job(group, reshape, climb.writes)));
            }
            Ok(None) => {
                self.room.unused_pages.append(&mut climb.taken);
                self.await_installs();
                return Ok(None);
            }
            Err(stop @ Stop::Wait(Wait::Pages(_))) => {
                self.planner.short = Some(own_page);
                stop
            }
            Err(stop) => stop,
        };
        self.room.unused_pages.append(&mut climb.taken);
        Err(stop)
    }

    /// The job that writes the several pages which a transaction's changes make of a leaf; none while
    /// the tree changes its shape.
    pub(in crate::engine) fn claim_reshape(
        &mut self,
        xid: Xid,
        plan: ReshapePlan,
    ) -> Step<Option<WriteJob>> {
        if !self.tree(plan.table)?.reshaping.is_none() {
            return Ok(None);
        }
        let mut climb = Climb::default();
        let climbed = self.climb(plan, Vec::new(), Vec::new(), &mut climb);
        if let Ok(Some((group, mut reshape))) = climbed {
            reshape.claim = Some(xid);
            return Ok(Some(self.reshape_job(group, reshape, climb.writes)));
        }
        self.room.unused_pages.append(&mut climb.taken);
        climbed.map(|_| None)
    }

    fn reshape_job(&mut self, group: GroupId, reshape: Reshape, pages: Vec<PageWrite>) -> WriteJob {
        self.groups.busy.extend(pages.iter().map(|write| write.page));
        self.groups.busy.extend(reshape.trims.iter().copied());
        if let Some(tree) = self.trees.get_mut(reshape.table.id as usize) {
            tree.reshaping.begin(reshape.is_shared());
        }
        // A transaction with a claim waits for the record, and so does a restart.
        let may_wait = reshape.claim.is_none() && !self.is_replaying();
        let outcome = Outcome::Reshaped(Box::new(reshape));
        WriteJob { may_wait, ..WriteJob::new(group, pages, outcome) }
    }

    /// Whether a leaf that may split with another one is in memory, or can be read without driving out
    /// the pages that were read for the same job, the last used of many frames.
    fn may_read_beside(&self, page: LogicalPage) -> bool {
        let frames = (self.pool.held_count() + 1) * FRAMES_A_READ;
        let is_roomy = frames * frame_size(self.payload_size) <= self.frames_max();
        self.pool.peek(page).is_some() || is_roomy && !self.reads_enough(page)
    }

    /// Whether the read of a page would be one too many for this merge.
    fn reads_enough(&self, page: LogicalPage) -> bool {
        self.pool.held_count() >= READS_MAX && self.pool.peek(page).is_none()
    }
}

/// A merge whose result takes other pages than the leaf's own.
pub(in crate::engine) struct ReshapePlan {
    pub(in crate::engine) table: Table,
    pub(in crate::engine) page: LogicalPage,
    pub(in crate::engine) low: Vec<u8>,
    pub(in crate::engine) high: Option<Vec<u8>>,
    pub(in crate::engine) upto: Lsn,
    pub(in crate::engine) pages: Vec<Built>,
    pub(in crate::engine) dropped: Vec<Vec<u8>>,
    pub(in crate::engine) old: Vec<OldBase>,
    /// The part of the leaf that did not merge: its last pages hold this part as it was, for keys from
    /// its low fence on.
    pub(in crate::engine) rest: Option<OldBase>,
    pub(in crate::engine) grown: i64,
    /// Bytes of deltas that go when it is installed.
    pub(in crate::engine) frees: usize,
    /// Whether the leaf is written even if no neighbour joins it.
    pub(in crate::engine) is_due: bool,
}

#[cfg(test)]
mod tests {
    use flagstone_nand::{Profile, SimNand};
    use flagstone_space::OPEN_GROUP_PAGE_SIZE;

    use super::{Grouped, Reshaping};
    use crate::delta::KeyRange;
    use crate::engine::Engine;
    use crate::engine::merge::{Reason, Target};
    use crate::options::Durability;
    use crate::testing::{Database, Snapshot};
    use crate::{Options, Table};

    /// Blocks so small that the bound of their record is the tighter one.
    fn small_blocks(name: &str, pages_per_block: u32) -> Profile {
        let mut profile = Profile::named(name).unwrap();
        profile.geometry.pages_per_block = pages_per_block;
        profile.with_block_count(4_096).unwrap()
    }

    /// Goal: a checkpoint that comes before leaves which split together are installed can name them
    /// all, beside the pages that other rules leave to transactions; else the device could not be
    /// opened after a cut.
    #[test]
    fn leaves_that_split_together_can_be_named() {
        for (name, pages_per_block) in [("slc-512", 32), ("slc-2k", 8), ("slc-2k", 64)] {
            let profile = small_blocks(name, pages_per_block);
            let options = Options::default().with_memory(16 << 20);
            let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
            let room = database.runtime().space().record_room();
            let most = database.runtime().engine().together_max() * OPEN_GROUP_PAGE_SIZE;
            assert!(
                most <= room / 4,
                "{name}, {pages_per_block} pages a block: {most} of {room} bytes"
            );
        }
    }

    /// Goal: the same for one leaf with all changes that memory holds back: it merges in parts, no
    /// change of the rest is lost, and the rest keeps its page, also under a number that a record of
    /// the log's tail freed before. Method: cuts before one of the parts is installed, with and without
    /// tables that were dropped before.
    #[test]
    fn a_leaf_of_many_deltas_merges_in_parts() {
        for (number, has_dropped) in [(1, false), (6, false), (1, true), (6, true)] {
            let mut load = Load::new();
            if has_dropped {
                let old = load.database.table("old").unwrap();
                for row in 0..3_000_u32 {
                    let mut transaction = load.database.begin();
                    transaction.put(old, &row.to_be_bytes(), &[1; 200]).unwrap();
                    transaction.commit_with(Durability::Deferred).unwrap();
                }
                load.database.merge().unwrap();
                load.database.drop_table("old").unwrap();
                // Numbers are given out from the first one on again.
                load = load.reopen();
            }
            load.commit(3_000);
            load.merge_until(number);
            load = load.cut();
            load.commit(1_000);
            assert!(load.cut().database.check().unwrap().is_sound());
        }
    }

    /// Goal: a full merge leaves no delta of such a leaf behind. Method: its last key has a row
    /// already, so that no part of the leaf is ever empty.
    #[test]
    fn a_full_merge_takes_all_parts() {
        let mut load = Load::new();
        let mut transaction = load.database.begin();
        transaction.put(load.table, &[0xff; 4], &[0; 200]).unwrap();
        transaction.commit().unwrap();
        load.database.merge().unwrap();
        load.commit(3_000);
        load.database.merge().unwrap();
        assert!(load.database.runtime().engine().trees.iter().all(|tree| tree.deltas.is_empty()));
    }

    /// Goal: a reader of a snapshot finds the rows as they were, on both sides of the key at which a
    /// merge ended.
    #[test]
    fn snapshots_read_leaves_that_merged_in_parts() {
        let mut load = Load::new();
        load.commit(1_000);
        let snapshot = load.database.snapshot().unwrap();
        for row in (0..load.row).step_by(100) {
            let mut transaction = load.database.begin();
            transaction.put(load.table, &row.to_be_bytes(), &[0xee; 200]).unwrap();
            transaction.commit_with(Durability::Deferred).unwrap();
        }
        load.database.merge().unwrap();
        assert!(load.database.runtime().engine().counts.splits > 3, "in parts");
        load.check(&snapshot);
    }

    /// Goal: empty leaves go together, a group for many of them, and no other row goes with them. Method: a queue
    /// loses its first rows, those of 150 leaves.
    #[test]
    fn leaves_that_are_emptied_go_together() {
        let mut load = Load::new();
        load.commit(2_000);
        load.database.merge().unwrap();
        let before = load.database.runtime().engine().counts.splits;
        for row in 0..1_500_u32 {
            let mut transaction = load.database.begin();
            transaction.delete(load.table, &row.to_be_bytes()).unwrap();
            transaction.commit_with(Durability::Deferred).unwrap();
        }
        load.database.merge().unwrap();
        let engine = load.database.runtime().engine();
        let groups = engine.counts.splits - before;
        assert!(groups <= 150 / 10, "{groups} groups");
        drop(engine);
        let load = load.reopen();
        let rows = load.database.snapshot().unwrap();
        let kept: Vec<_> = rows.range(load.table, ..).map(|row| row.unwrap().0).collect();
        assert!(
            kept.iter()
                .eq((1_500..2_000_u32).map(|row| row.to_be_bytes()).collect::<Vec<_>>().iter())
        );
        assert!(load.database.check().unwrap().is_sound());
    }

    /// Goal: no image is made of a leaf with many changes while its merge would have to wait for reshapes
    /// under way. Method: the answer for leaves with few and with many changes, before and beside a reshape of
    /// every kind.
    #[test]
    fn a_leaf_of_many_deltas_is_put_off_before_its_images_are_made() {
        let mut load = Load::new();
        load.commit(3_000);
        let mut engine = load.database.runtime().engine();
        let table = load.table;
        let few = 4_u32.to_be_bytes();
        let [few, all] = [KeyRange { low: &[], high: Some(&few) }, KeyRange::ALL];
        let says =
            |engine: &Engine| [few, all].map(|range| engine.is_put_off(table, range).unwrap());
        assert_eq!(says(&engine), [false; 2]);
        for reshaping in [Reshaping::Alone, Reshaping::Splits(1)] {
            engine.trees.get_mut(table.id as usize).unwrap().reshaping = reshaping;
            assert_eq!(says(&engine), [false, true], "{reshaping:?}");
        }
    }

    /// Goal (rule D7): with little memory, a search for merges that finds none must not drive out pages
    /// that a checkpoint has read, or neither would end. Method: a leaf to merge, and a checkpoint that
    /// merges wait for, which goes first.
    #[test]
    fn merges_that_wait_for_a_checkpoint_are_not_looked_for() {
        let mut load = Load::new();
        load.commit(100);
        let runtime = load.database.runtime();
        let mut engine = runtime.engine();
        engine.planner.target = Some(Target::new(load.table, Vec::new(), Reason::Memory));
        engine.want_checkpoint_before_merges();
        drop(engine);
        runtime.checkpoint_now().unwrap();
        assert_eq!(runtime.engine().counts.merges, 0, "the checkpoint goes first");
        while runtime.advance().unwrap() {}
        assert_eq!(runtime.engine().counts.merges, 1, "then merges go on");
    }

    /// Rows that come in the order of their keys, far more than a checkpoint can name pages of.
    struct Load {
        database: Database<SimNand>,
        table: Table,
        row: u32,
    }

    impl Load {
        fn options() -> Options {
            Options::default().with_memory(4 << 20)
        }

        fn new() -> Self {
            let device = SimNand::new(&small_blocks("slc-2k", 8), 1);
            let database = Database::create_on(device, &Self::options()).unwrap();
            let table = database.table("t").unwrap();
            Self { database, table, row: 0 }
        }

        /// Commits rows one by one, so that none of them is claimed.
        fn commit(&mut self, rows: u32) {
            for row in self.row..self.row + rows {
                let mut transaction = self.database.begin();
                transaction.put(self.table, &row.to_be_bytes(), &[row as u8; 200]).unwrap();
                transaction.commit_with(Durability::Deferred).unwrap();
            }
            self.database.flush().unwrap();
            self.row += rows;
        }

        /// Merges until the group of this number waits for its install.
        fn merge_until(&self, number: usize) {
            let runtime = self.database.runtime();
            runtime.engine().want_full_merge();
            let (mut count, mut was_open) = (0, false);
            while count < number && runtime.advance().unwrap() {
                let engine = runtime.engine();
                let open: usize = engine.open_groups().map(Grouped::page_count).sum();
                let most = 2 * engine.split_max();
                assert!(open <= most, "{open} of {most} pages wait for their install");
                for job in engine.open_groups() {
                    let rest = job.reshape.rest.as_ref();
                    let is_young = rest.is_none_or(|rest| engine.frontier.freed_lsn <= rest.lsn);
                    assert!(
                        is_young,
                        "the tail of the log has a record that would free the rest's page"
                    );
                }
                count += usize::from(open > 0 && !was_open);
                was_open = open > 0;
            }
            assert_eq!(count, number);
        }

        /// Cuts the power, so that the next session begins where this one was.
        fn reopen(self) -> Self {
            let device = self.database.into_device().unwrap();
            let database = Database::open_on(device, &Self::options()).unwrap();
            let table = database.existing_table("t").unwrap().unwrap();
            Self { database, table, row: self.row }
        }

        /// Cuts the power twice; the last session can be written to and has all rows.
        fn cut(self) -> Self {
            let mut load = self.reopen();
            load.commit(1);
            let load = load.reopen();
            load.database.runtime().checkpoint_now().unwrap();
            load.check(&load.database.snapshot().unwrap());
            load
        }

        fn check(&self, snapshot: &Snapshot<SimNand>) {
            let mut found = snapshot.range(self.table, ..);
            for row in 0..self.row {
                let (key, value) = found.next().unwrap().unwrap();
                assert_eq!(key, row.to_be_bytes());
                assert!(value == [row as u8; 200], "row {row}");
            }
            assert!(found.next().is_none());
        }
    }
}
