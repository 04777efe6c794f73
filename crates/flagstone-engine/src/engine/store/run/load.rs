//! Runs come back into memory, a part at a time: for the keys that an operation needs, or in key order.

use std::ops::Bound;

use flagstone_space::{GroupId, LogicalPage, Lsn};

use crate::bugs::SeededBug;
use crate::delta::{DroppedRefs, KeyRange, Op};
use crate::engine::step::{Fetch, Step, Stop, Wait};
use crate::engine::store::Store;
use crate::engine::store::catalog::Table;
use crate::engine::store::private_key::{private_bounds, private_key, split_private_key};
use crate::engine::store::run::{entries, fault, is_rolled_back};
use crate::lock::Xid;

/// Commits of that size that go by the log after a read has asked for runs.
pub(in crate::engine) const PAUSE: u32 = 64;

/// Runs wait until their pages are one part in this many of the leaves' pages. Leaves are merged one
/// after the other: when its turn comes, changes of its own size wait for a leaf.
const WAITING_SHARE: u64 = 2;

/// A page of each run takes at most one part in this many of the memory for deltas: one key may need
/// that many pages loaded.
const RUNS_SHARE: usize = 4;

/// Reads that look into runs beside their tables before runs wait no longer.
const READS_MAX: u32 = 10_000;

/// Part of the waiting runs' bound above which leaves are merged for them.
const MERGED_ABOVE: f64 = 0.8;

/// The transactions that commit by a run, and whether runs wait.
#[derive(Debug, Default)]
pub(crate) struct RunCommits {
    /// Transactions whose changes leave memory before their commit.
    pub(in crate::engine) leaving: Vec<Xid>,
    /// A read needs changes that runs hold.
    pub(in crate::engine) is_asked: bool,
    /// Commits yet to come that go by the log.
    pub(in crate::engine) pause: u32,
    /// Reads since runs began to wait.
    reads: u32,
}

/// Changes loaded for one merge, or for one part of a scan, take one part in this many of the memory
/// for deltas, together with the deltas already in their range. The parts that hold the range's first
/// key come in any case, one of each run at most.
const LOAD_SHARE: usize = 8;

impl Store {
    /// Waiting runs, as a fraction of their bound (B2).
    pub(in crate::engine) fn waiting(&self) -> f64 {
        let keys = self.runs.waiting_count() * RUNS_SHARE * self.payload_size;
        let in_memory = keys as f64 / self.memory.limits.deltas_hard as f64;
        let pages = self.runs.pages_left() as f64 / self.waiting_pages_max() as f64;
        pages.max(in_memory).max(self.waiting_part())
    }

    /// Pages of runs that may wait: a share of the leaves' pages, as far as memory can hold them all.
    fn waiting_pages_max(&self) -> u64 {
        let pages = |bytes: usize| (bytes / self.payload_size / 2) as u64;
        let (least, most) = (self.memory.limits.deltas_hard, self.options.memory);
        (self.leaf_pages() / WAITING_SHARE).clamp(pages(least.min(most)), pages(most))
    }

    /// Approximate number of pages that belong to no run.
    pub(in crate::engine) fn leaf_pages(&self) -> u64 {
        self.used_pages().saturating_sub(self.runs.page_count() as u64)
    }

    /// Whether the runs that a checkpoint would free take more pages than the bound of waiting runs.
    pub(in crate::engine) fn are_loaded_many(&self) -> bool {
        // A restart finds these runs waiting.
        self.runs.loaded_pages() > self.waiting_pages_max()
    }

    /// Memory that is kept for parts of runs, while some wait.
    pub(in crate::engine::store) fn kept_for_parts(&self) -> usize {
        let is_waiting = !self.runs.is_empty() && !self.run_commit.is_asked;
        if is_waiting { self.memory.limits.deltas_hard / RUNS_SHARE } else { 0 }
    }

    /// A read needs changes that runs hold.
    pub(crate) fn ask_for_runs(&mut self) {
        if !self.runs.is_empty() {
            self.run_commit.is_asked = true;
            self.run_commit.pause = PAUSE;
        }
    }

    pub(in crate::engine) fn is_asked_for_runs(&self) -> bool {
        self.run_commit.is_asked
    }

    /// A read looks into waiting runs beside its table, or needs a part that is not loaded. Each read
    /// has to look.
    pub(in crate::engine::store) fn note_run_read(&mut self, is_left: bool) {
        self.run_commit.reads += 1;
        if is_left || self.run_commit.reads > READS_MAX {
            self.ask_for_runs();
        }
    }

    /// No run waits any more.
    fn note_all_loaded(&mut self) {
        (self.run_commit.is_asked, self.run_commit.reads) = (false, 0);
    }

    /// Whether so much waits that leaves have to be merged.
    pub(in crate::engine) fn are_runs_many(&self) -> bool {
        let is_open = !self.frontier.is_opening && !self.is_replaying();
        is_open && !self.runs.is_empty() && self.waiting() > MERGED_ABOVE
    }

    /// Forgets LSNs of recovered commits with no older change in memory, now or later (R4).
    pub(crate) fn forget_met_runs(&mut self) {
        let mut bare: Vec<Lsn> = self.runs.bare_lsns().collect();
        bare.sort_unstable();
        let Some(last) = bare.last().copied() else { return };
        // Without a change between two such LSNs, one of them keeps apart the same versions as the
        // other.
        let mut is_met = vec![true; bare.len()];
        for tree in &self.trees {
            for (_, at, _) in tree.deltas.older_than(Lsn(last.0 + 1), Bound::Unbounded) {
                is_met[bare.partition_point(|lsn| *lsn < at)] = false;
            }
        }
        let is_gone = |lsn: &Lsn| bare.binary_search(lsn).is_ok_and(|at| is_met[at]);
        self.runs.forget_apart(is_gone);
    }

    /// Loads the parts of runs that may change `[low, high)` into the tree's deltas.
    pub(crate) fn load_runs(&mut self, table: Table, range: KeyRange<'_>) -> Step<()> {
        self.load_runs_until(table, range, Lsn(u64::MAX))
    }

    /// As `Store::load_runs`, for commits up to `upto` alone: all changes that a base complete to
    /// `upto` needs (R1). Restart merges while it knows of later commits, whose changes could go
    /// nowhere yet.
    pub(crate) fn load_runs_until(
        &mut self,
        table: Table,
        range: KeyRange<'_>,
        upto: Lsn,
    ) -> Step<()> {
        if self.runs.is_empty() {
            return Ok(());
        }
        let (low, high) = private_bounds(table, range);
        self.load_parts(KeyRange { low: &low, high: Some(&high) }, upto)
    }

    /// As `Store::load_runs_until` in key order, until the loaded changes and the changes already
    /// there reach their memory limit. Returns the key at which the first part begins that is not
    /// loaded, if there is one.
    pub(crate) fn load_some_runs(
        &mut self,
        table: Table,
        range: KeyRange<'_>,
        upto: Lsn,
    ) -> Step<Option<Vec<u8>>> {
        if self.runs.is_empty() {
            return Ok(None);
        }
        let (low, high) = private_bounds(table, range);
        let inside = KeyRange { low: &low, high: Some(&high) };
        let most = self.memory.limits.deltas_hard / LOAD_SHARE;
        while let Some((number, part)) = self.next_part(inside, upto) {
            let left = self.runs.part(number, part);
            if left.first > low {
                let begin = split_private_key(&left.first).1.to_vec();
                let below = KeyRange { high: Some(&begin), ..range };
                let there = self.tree(table)?.deltas.range_bytes(below);
                if there > 0 && there + left.pages.len() * self.payload_size > most {
                    return Ok(Some(begin));
                }
            }
            self.load_part(number, part)?;
        }
        Ok(None)
    }

    /// As `Store::load_some_runs`, from the end of the range. Returns the key at which the last part
    /// ends that is not loaded, if there is one.
    pub(crate) fn load_last_runs(
        &mut self,
        table: Table,
        range: KeyRange<'_>,
    ) -> Step<Option<Vec<u8>>> {
        if self.runs.is_empty() {
            return Ok(None);
        }
        let (low, high) = private_bounds(table, range);
        let most = self.memory.limits.deltas_hard / LOAD_SHARE;
        let deltas = &self.tree(table)?.deltas;
        let end =
            self.runs.left_from_end(KeyRange { low: &low, high: Some(&high) }, |end, pages| {
                let behind = KeyRange { low: split_private_key(end).1, ..range };
                deltas.range_bytes(behind) + pages * self.payload_size > most
            });
        let end = end.map(|end| split_private_key(&end).1.to_vec());
        self.load_runs(table, KeyRange { low: end.as_deref().unwrap_or(range.low), ..range })?;
        Ok(end)
    }

    /// Loads the parts of runs that may change `key` into the tree's deltas.
    pub(crate) fn load_runs_at(&mut self, table: Table, key: &[u8]) -> Step<()> {
        if self.runs.is_empty() {
            return Ok(());
        }
        let mut low = Vec::new();
        private_key(table, key, &mut low);
        let high = [low.as_slice(), &[0]].concat();
        let range = KeyRange { low: &low, high: Some(&high) };
        let is_left = self.runs.has_left(range, Lsn(u64::MAX));
        self.note_run_read(is_left);
        self.load_parts(range, Lsn(u64::MAX))
    }

    fn load_parts(&mut self, range: KeyRange<'_>, upto: Lsn) -> Step<()> {
        while let Some((number, part)) = self.next_part(range, upto) {
            self.load_part(number, part)?;
        }
        Ok(())
    }

    /// The part of `range` to load next; memory is freed for it, where any can be.
    fn next_part(&mut self, range: KeyRange<'_>, upto: Lsn) -> Option<(usize, usize)> {
        let next = self.runs.next_left(range, upto)?;
        match self.make_room_for_part(range) {
            true => self.runs.next_left(range, upto),
            false => Some(next),
        }
    }

    /// Lets go of parts that hold no key of `range`, if nothing else frees memory (R6). Returns whether
    /// runs have other places now.
    fn make_room_for_part(&mut self, range: KeyRange<'_>) -> bool {
        if !self.runs.may_unload() || self.memory.deltas <= self.memory.limits.deltas_soft {
            return false;
        }
        for (lsn, low, high) in self.runs.unload_outside(range) {
            let (first, _) = split_private_key(&low);
            let (last, _) = split_private_key(&high);
            let named = self.trees.from(first.id as usize).map(|tree| tree.id);
            let ids: Vec<u32> = named.take_while(|id| *id <= last.id).collect();
            for id in ids {
                let table = Table::of(id);
                let bounds = private_bounds(table, KeyRange::ALL);
                let begin = low.as_slice().max(&bounds.0);
                let end = high.as_slice().min(&bounds.1);
                if begin >= end {
                    continue;
                }
                let end = (end < bounds.1.as_slice()).then(|| split_private_key(end).1);
                let part = KeyRange { low: split_private_key(begin).1, high: end };
                let Some(tree) = self.trees.get_mut(id as usize) else { continue };
                let before = tree.deltas.size();
                tree.deltas.remove_at(part, lsn);
                let after = tree.deltas.size();
                self.note_deltas_size(before, after);
                self.tell_deltas_went(table, part);
            }
        }
        true
    }

    /// Whether a part of a range is not loaded, among commits up to `upto`.
    pub(in crate::engine) fn has_left_runs(
        &self,
        table: Table,
        range: KeyRange<'_>,
        upto: Lsn,
    ) -> bool {
        if self.runs.is_empty() {
            return false;
        }
        let (low, high) = private_bounds(table, range);
        self.runs.has_left(KeyRange { low: &low, high: Some(&high) }, upto)
    }

    pub(in crate::engine) fn load_part(&mut self, number: usize, part: usize) -> Step<()> {
        while let Some(page) = self.runs.next_page(number, part) {
            self.load_run_page(number, part, page)?;
        }
        let (lsn, page) = (self.runs.lsn(number), self.runs.part(number, part).pages.iter().next());
        let changes = self.runs.take_changes(number, part);
        for entry in changes.range(KeyRange::ALL) {
            // The catalog itself may lie in this part, beside changes of a tree that it names: then the
            // tree is not registered yet.
            let (table, _) = split_private_key(entry.key());
            let tree = self.tree_slot(table.id);
            tree.ok_or(fault(page.unwrap_or(LogicalPage(u32::MAX))))?;
            self.add_entry(&entry, lsn);
        }
        if self.runs.note_loaded(number, part) {
            self.refresh_boundaries();
            if self.runs.is_empty() {
                self.note_all_loaded();
            }
        }
        Ok(())
    }

    /// Reads the next page of a part. Savepoints kept versions of a key apart; under the run's one LSN
    /// only the folded version counts (R5).
    fn load_run_page(&mut self, number: usize, part: usize, page: LogicalPage) -> Step<()> {
        let run = self.runs.get(number);
        let (group, lsn) = (run.run.group, run.lsn);
        let mut rolled_back = run.rolled_back.clone();
        if self.bugs.has(SeededBug::KeepRolledBack) {
            rolled_back.clear();
        }
        let frame = self.run_frame(group, page)?;
        self.pool.remove(page);
        self.pool.let_go(page);
        let loading = self.runs.loading(number, part);
        let mut dropped = DroppedRefs::new();
        for entry in entries(&frame).ok_or(fault(page))? {
            let entry = entry.ok_or(fault(page))?;
            match entry.op {
                Op::PutRef(descriptor) if is_rolled_back(&rolled_back, entry.number) => {
                    dropped.push(descriptor.to_vec());
                }
                _ if is_rolled_back(&rolled_back, entry.number) => {}
                op => dropped.extend(loading.changes.insert(entry.key, op, Lsn(entry.number), &[])),
            }
        }
        loading.page_count += 1;
        self.drop_refs(dropped, lsn);
        Ok(())
    }

    pub(in crate::engine) fn run_frame(
        &mut self,
        group: GroupId,
        page: LogicalPage,
    ) -> Step<Vec<u8>> {
        match self.pool.get(page) {
            Some(index) => Ok(self.pool.frame(index).image.clone()),
            None => Err(Stop::Miss(Fetch::Grouped(group, page))),
        }
    }

    /// A spill waits for room in a checkpoint's record: asks for the work that makes it.
    pub(in crate::engine) fn hurry_names(&mut self, wait: Wait) {
        match wait {
            // The next checkpoint's record is shorter than the last one, and names fewer runs of
            // others.
            Wait::Log => {
                self.ask_for_runs();
                if !self.is_checkpointing() {
                    self.want_checkpoint();
                }
            }
            Wait::Durable(_) => self.want_flush(),
            _ => {}
        }
    }
}
