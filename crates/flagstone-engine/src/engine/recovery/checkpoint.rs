//! Checkpoints: how the head of the log advances although live deltas stay unmerged.
//!
//! ```text
//!  Idle ──▶ Merging ──▶ Copying ──▶ Settling ──▶ Saving ──▶ Idle
//!           leaves with  copies of    inner nodes  mapping checkpoint with the master record,
//!           old deltas,  live deltas  and frames   then the log's head moves to where the cycle
//!           if asked for to the tail  on flash     began
//! ```
//!
//! | transition | function | afterwards |
//! | --- | --- | --- |
//! | Idle → Merging | `begin_cycle` | cutoff = durable LSN; versions at or below it stay apart |
//! | Merging → Copying | `merge_step` | deltas ≤ cutoff are left only where a merge had to wait |
//! | Copying → Settling | `copy_step` | every live delta ≤ cutoff is in a copy record behind `begin` |
//! | Settling → Saving | `settle_cycle` | no node on flash needs a record before `begin` |
//! | Saving → Idle | `checkpoint_done` | restart reads from `begin` (rule D4) |
//!
//! Invariants:
//! - **C1** The master record is written only after every copy of its cycle is durable, every
//!   structure change at or below the cutoff is in an inner node on flash, every install record
//!   before it is installed, and every large transaction's group is current.
//! - **C2** Restart ignores commit records at or below the cutoff: their live changes were copied.

use std::ops::Bound;

use flagstone_space::Lsn;

use crate::bugs::SeededBug;
use crate::engine::commit::job::{CheckpointJob, Job, Next};
use crate::engine::recovery::Recovery;
use crate::engine::recovery::master::{COUNT_MAX, Master};
use crate::engine::step::Step;
use crate::engine::store::catalog::{Table, Tree};
use crate::engine::store::cycle::Phase;
use crate::engine::store::frontier::Frontier;
use crate::engine::store::groups::WriteJob;
use crate::engine::store::run::committed::CommittedRun;
use crate::engine::store::run::record::MasterRun;
use crate::engine::store::value::Release;
use crate::engine::store::{Store, log_records};
use crate::log::LogPosition;
use crate::options::Compaction;

impl Recovery {
    /// A commit waits for room in the log: the cycle under way frees some, or else the next one does.
    pub fn want_log_room(&mut self) {
        self.cycle.is_wanted |= self.cycle.phase == Phase::Idle;
        if !self.cycle.is_awaited || !self.must_checkpoint() {
            self.await_cycle();
        }
    }

    /// Asks for a checkpoint after which nothing is written.
    pub(crate) fn want_last_checkpoint(&mut self) {
        self.cycle.is_last = true;
        self.want_checkpoint();
    }

    /// Whether merges wait until a checkpoint is made. A search for merges meanwhile would read pages,
    /// and drive out the pages that the checkpoint has read (rule D7). Where changes wait outside
    /// memory, and the log fills or leaves find no page to split, merging all of these changes may
    /// bring back more than the log has room to copy.
    pub(in crate::engine) fn goes_before_merges(&self) -> bool {
        let may_overfill =
            !self.runs.is_empty() && (self.obstacles.is_out_of_pages() || self.is_log_filling());
        self.cycle.goes_first || may_overfill && self.must_checkpoint()
    }

    /// Asks for a checkpoint that merges every leaf with durable deltas (Lazy-Split LRU: full merge
    /// commit).
    pub fn want_full_merge(&mut self) {
        self.cycle.merges_all = true;
        self.want_checkpoint();
    }

    pub(crate) fn checkpoint_step(&mut self) -> Step<Next> {
        if !self.must_checkpoint() {
            return Ok(Next::Idle);
        }
        match self.cycle.phase.clone() {
            Phase::Idle => {
                self.begin_cycle();
                Ok(Next::Stepped)
            }
            Phase::Merging { tree, from } => self.merge_step(tree, &from),
            Phase::Copying { tree, after } => {
                self.copy_step(tree, after);
                Ok(Next::Stepped)
            }
            Phase::Settling { copied } => {
                Ok(self.settle_cycle(copied)?.map_or(Next::Idle, Next::Job))
            }
            Phase::Saving => Ok(Next::Idle),
        }
    }

    fn begin_cycle(&mut self) {
        self.cycle.is_wanted = false;
        self.cycle.number = self.cycle.number.wrapping_add(1);
        self.cycle.cutoff = self.durable();
        self.cycle.begin = LogPosition { page: self.frontier.log_page, chain: self.durable_chain };
        self.cycle.begin_commits = self.counts.commits;
        self.cycle.owed = self.memory.packed;
        self.cycle.owed_first = self.cycle.owed;
        self.cycle.room_first = self.room_beside(self.cycle.owed);
        self.cycle.tail_size = 0;
        // Copies that have to be made where the log is full leave no room for the record that lets it go: the
        // fewer there are, the sooner it is there (D7).
        let merges = std::mem::take(&mut self.cycle.merges_all)
            || self.is_log_full()
            || self.lacks_room_for_copies()
            || self.are_many_apart()
            || self.options.techniques.compaction == Compaction::Merge;
        self.cycle.phase = match merges {
            false => Phase::Copying { tree: 0, after: None },
            true => Phase::Merging { tree: 0, from: Vec::new() },
        };
        let cutoff = self.cycle.cutoff;
        self.cycle.loaded = self.runs.take_loaded(cutoff);
        self.forget_met_runs();
        self.drops_covered();
        self.refresh_boundaries();
    }

    /// Merges the next leaf with deltas at or below the cutoff. A leaf whose merge has to wait, or is
    /// not possible, is passed over: its deltas are copied.
    fn merge_step(&mut self, number: usize, from: &[u8]) -> Step<Next> {
        let Some((number, key)) = self.next_old_delta(number, from) else {
            // Merged changes need nothing kept apart. From the first copy on, the record has to go on
            // naming the LSNs that keep the copies apart.
            self.forget_met_runs();
            self.refresh_boundaries();
            self.cycle.owed = self.cycle.owed.min(self.memory.packed);
            self.cycle.phase = Phase::Copying { tree: 0, after: None };
            return Ok(Next::Stepped);
        };
        let table = Table::of(number as u32);
        let mut next = Next::Stepped;
        let high = match self.behind_unreadable(table, &key) {
            Some(high) => high,
            None => {
                let place = self.place_of(table, &key)?;
                if !self.obstacles.passes_over(place.page) {
                    let job = self.merge_at(table, key)?;
                    if job.is_none() && self.has_installs() {
                        // A split of this tree comes first, as soon as its record is durable.
                        self.await_installs();
                        return Ok(Next::Idle);
                    }
                    let end = job.as_ref().and_then(WriteJob::end).map(<[u8]>::to_vec);
                    next = job.map_or(Next::Stepped, |job| Next::Job(Job::Write(Box::new(job))));
                    end.or(place.high)
                } else {
                    place.high
                }
            }
        };
        let (tree, from) = high.map_or((number + 1, Vec::new()), |high| (number, high));
        self.cycle.phase = Phase::Merging { tree, from };
        Ok(next)
    }

    /// The first delta at or below the cutoff, by tree and key, from a key of a tree on.
    fn next_old_delta(&self, number: usize, from: &[u8]) -> Option<(usize, Vec<u8>)> {
        let below = Lsn(self.cycle.cutoff.0 + 1);
        self.trees.from(number).filter(|tree| tree.root.is_some()).find_map(|tree| {
            let at = tree.id as usize;
            let from = if at == number { from } else { &[] };
            let (key, ..) = tree.deltas.older_than(below, Bound::Included(from)).next()?;
            Some((at, key.to_vec()))
        })
    }

    /// Copies live deltas at or below the cutoff until a batch is full.
    fn copy_step(&mut self, mut number: usize, mut after: Option<Vec<u8>>) {
        let below = Lsn(self.cycle.cutoff.0 + 1);
        let room = self.copy_record_size();
        if self.bugs.has(SeededBug::SkipCopies) {
            number = usize::MAX;
        }
        loop {
            let Store { trees, frontier: Frontier { log, .. }, cycle, .. }: &mut Store = self;
            let Some(tree) = trees.first_from(number) else { break };
            if number != tree.id as usize {
                (number, after) = (tree.id as usize, None);
            }
            let before = log.pending_bytes();
            let (copied, last) =
                log_records::append_copies(log, cycle.number, tree, below, after, room);
            self.counts.copied_deltas += copied as u64;
            if self.frontier.log.marker().is_some() {
                self.refresh_boundaries();
            }
            let bytes = self.frontier.log.pending_bytes() - before;
            self.cycle.owed = self.cycle.owed.saturating_sub(bytes);
            self.commit_costs.copied(bytes);
            let log_page_size = self.room.view.log_page_size.max(1);
            self.memory.tuner.copied(bytes as f64 / log_page_size as f64);
            after = last;
            if after.is_none() {
                number += 1;
            }
            let is_more = bytes > 0 && self.trees.first_from(number).is_some();
            if is_more && self.frontier.log.pending_bytes() >= self.copy_batch_size() {
                self.cycle.phase = Phase::Copying { tree: number, after };
                self.want_flush();
                return;
            }
        }
        self.cycle.phase = Phase::Settling { copied: self.frontier.log.appended() };
        self.want_flush();
    }

    fn settle_cycle(&mut self, copied: Lsn) -> Step<Option<Job>> {
        if self.has_installs() {
            self.await_installs();
            return Ok(None);
        }
        if copied > self.durable() {
            self.want_flush();
            return Ok(None);
        }
        let cutoff = self.cycle.cutoff;
        let skips_nodes = self.bugs.has(SeededBug::SkipInnerNodes);
        if !skips_nodes && let Some(job) = self.inner_job(cutoff)? {
            return Ok(Some(Job::Write(Box::new(job))));
        }
        let (is_waiting, job) = self.old_frame_job(cutoff)?;
        let is_reshaping = !skips_nodes && self.is_reshaping_anywhere();
        if is_waiting || is_reshaping || self.trims.has_groups() {
            return Ok(job.map(|job| Job::Write(Box::new(job))));
        }
        if self.record_size() > self.room.view.record_room && self.end_oldest_snapshot() {
            // The values that only this snapshot could read go first.
            return Ok(None);
        }
        self.cycle.phase = Phase::Saving;
        self.note_given_saved();
        self.cycle.grouped_saved = self.cycle.grouped_pages;
        let master = self.master().encode();
        let release_before = self.cycle.begin.page;
        let is_last = !self.cycle.is_wanted && std::mem::take(&mut self.cycle.is_last);
        Ok(Some(Job::Checkpoint(CheckpointJob { master, is_last, release_before })))
    }

    fn is_reshaping_anywhere(&self) -> bool {
        let cutoff = self.cycle.cutoff;
        self.trees.iter().any(|tree| tree.structure.first_until(cutoff).is_some())
    }

    pub(crate) fn master(&self) -> Master {
        let value = |(lsn, release): (Lsn, &Release)| match release {
            Release::Value(descriptor) => Some((lsn, descriptor.clone())),
            _ => None,
        };
        let pages = |(lsn, release): (Lsn, &Release)| match release {
            Release::Pages(group, pages) => Some((lsn, *group, pages.clone())),
            _ => None,
        };
        let covered = self
            .cycle
            .loaded
            .iter()
            .map(|covered| (covered.lsn, covered.run.group, covered.run.pages().collect()));
        let run = |run: &CommittedRun| MasterRun {
            lsn: run.lsn,
            run: run.run.clone(),
            rolled_back: run.rolled_back.clone(),
        };
        let bare = self.runs.bare_lsns().map(MasterRun::bare);
        let count = |tree: &Tree| {
            let rows = u64::try_from(tree.entry_count).unwrap_or(0);
            (tree.id, rows.min(COUNT_MAX))
        };
        Master {
            cycle: self.cycle.number,
            cutoff: self.cycle.cutoff,
            begin: self.cycle.begin,
            epoch: self.frontier.log.epoch(),
            durable: self.durable(),
            next_table: self.trees.next(),
            identity: Some(self.identity),
            entry_counts: self.trees.iter().map(count).collect(),
            runs: self.runs.unfinished().map(run).chain(bare).collect(),
            values: self.trims.deferred().filter_map(value).collect(),
            pages: self.trims.deferred().filter_map(pages).chain(covered).collect(),
        }
    }

    /// The checkpoint is durable: the log's head has moved.
    pub(crate) fn checkpoint_done(&mut self) {
        self.end_cycle();
        self.counts.checkpoints += 1;
        self.cycle.grouped_pages -= std::mem::take(&mut self.cycle.grouped_saved);
        self.cycle.end_page = Some(self.frontier.log_page);
        self.drops_saved();
        self.take_given_saved();
        if self.frontier.freed_lsn <= self.cycle.cutoff {
            self.frontier.freed_lsn = Lsn::ZERO;
        }
        for run in std::mem::take(&mut self.cycle.loaded) {
            self.trims.add_pages(run.lsn, run.run.group, run.run.pages().collect());
        }
        self.refresh_boundaries();
    }

    /// The checkpoint could not be written; the next one starts anew.
    pub(crate) fn checkpoint_failed(&mut self) {
        self.end_cycle();
        self.cycle.grouped_saved = 0;
        self.drops_uncovered();
        self.keep_given_saved();
        for run in std::mem::take(&mut self.cycle.loaded) {
            self.runs.keep_loaded(run);
        }
        self.refresh_boundaries();
    }

    fn end_cycle(&mut self) {
        self.cycle.phase = Phase::Idle;
        self.cycle.is_awaited = self.cycle.is_wanted;
        self.cycle.goes_first = false;
    }

    /// Whether the pages on flash hold every committed change. The rest of a table that was dropped
    /// does not count.
    pub(crate) fn is_all_in_pages(&self) -> bool {
        let is_still = |tree: &Tree| {
            tree.deltas.is_empty() && tree.structure.is_empty() && tree.reshaping.is_none()
        };
        let mut named = self.trees.iter().filter(|tree| tree.dropped.is_none());
        self.frontier.committed <= self.durable()
            && self.claim.is_none()
            && self.open_groups().next().is_none()
            && self.runs.is_empty()
            && !self.trims.has_groups()
            && named.all(is_still)
            && self.pool.ahead_since(Lsn(u64::MAX)).next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use flagstone_nand::{Profile, SimNand};

    use super::*;
    use crate::engine::step::{Stop, Wait};
    use crate::testing::Database;
    use crate::{Durability, Options};

    /// Goal (rule D7): a cycle of a full log copies as little as it can. Method: the same cycle with room in
    /// the log and without.
    #[test]
    fn where_the_log_is_full_leaves_are_merged_before_the_rest_is_copied() {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
        let database = Database::create_on(SimNand::new(&profile, 1), &Options::default()).unwrap();
        let mut engine = database.runtime().engine();
        engine.begin_cycle();
        assert!(matches!(engine.cycle.phase, Phase::Copying { .. }), "there was room");
        engine.cycle.phase = Phase::Idle;
        engine.room.view.log_used = engine.room.view.log_budget;
        engine.begin_cycle();
        assert!(matches!(engine.cycle.phase, Phase::Merging { .. }), "copies come first");
    }

    /// Goal (rule D7): commits leave the log room for the copies that a cycle still has to make, and a
    /// cycle copies only as much as there is room for, on a device without room beside the log. Method:
    /// changes of a few log pages in a log of 100, a cycle from its begin until they are copied, and
    /// one that begins later.
    #[test]
    fn commits_leave_room_for_copies() {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
        let database = Database::create_on(SimNand::new(&profile, 1), &Options::default()).unwrap();
        let table = database.table("t").unwrap();
        for row in 0..1_000_u32 {
            let mut transaction = database.begin();
            transaction.put(table, &row.wrapping_mul(0x9E37_79B9).to_be_bytes(), &[7; 12]).unwrap();
            transaction.commit_with(Durability::Deferred).unwrap();
        }
        database.flush().unwrap();
        let mut engine = database.runtime().engine();
        let xid = engine.begin();
        let copies = (engine.memory.packed / engine.room.view.log_page_size) as u64;
        assert!((10..20).contains(&copies), "{copies} pages of changes");
        (engine.room.view.log_budget, engine.room.view.log_block_pages) = (100, 1);
        engine.room.view.capacity_pages = 0;
        engine.room.view.log_used = 85 - copies;
        engine.begin_cycle();
        assert!(matches!(engine.cycle.phase, Phase::Copying { .. }), "there is room for copies");
        assert!(engine.admit_commit(xid).is_ok(), "and for commits beside");
        engine.room.view.log_used = 99 - copies;
        assert!(matches!(engine.admit_commit(xid), Err(Stop::Wait(Wait::Log))), "room of copies");
        while let Phase::Copying { tree, after } = engine.cycle.phase.clone() {
            engine.copy_step(tree, after);
        }
        engine.room.view.log_used = 80;
        assert!(engine.admit_commit(xid).is_ok(), "all that is owed is copied");
        engine.cycle.phase = Phase::Idle;
        engine.room.view.log_used = 103 - copies;
        engine.begin_cycle();
        assert!(matches!(engine.cycle.phase, Phase::Merging { .. }), "copies find no room");
    }
}
