//! Merging: which leaf's deltas meet their base next, and how the result becomes current.
//!
//! ```text
//!  choose ──▶ prepare ──▶ Write job ──▶ written ─┬─ one page, group none ──▶ installed
//!  (hand)     (images)    (no latch)             └─ several: install record in the log
//!                                                     └─ durable ──▶ Install job ──▶ installed
//! ```
//!
//! | transition | function | what may be relied on |
//! | --- | --- | --- |
//! | choose | `choose_leaf` | nothing: only a hint |
//! | prepare | `prepare_merge` | images derive from durable deltas up to `upto` (D1), pages are busy |
//! | written | `written` | pages are on flash; a group's are not current yet |
//! | installed | `install` | mapping moved, merged deltas gone, what arrived meanwhile stays |
//!
//! Victims: a hand walks over the trees, one lowest inner node at a time. Of the leaves below the
//! nodes it passes, the one whose merge frees most memory for each page written is taken: the
//! biggest group of a window, without any state a leaf, and bounded work a choice.

use flagstone_space::{Cause, GroupId, LogicalPage, Lsn, PinId};

use super::checkpoint::CheckpointJob;
use super::descent::{Seek, corrupt};
use super::journal::InstallParts;
use super::pool::Class;
use super::spill::SpillJob;
use super::value::Release;
use super::{Engine, Fetch, MERGE_PAGES, Step, Stop, Table, Wait};
use crate::bugs::SeededBug;
use crate::delta::KeyRange;
use crate::node::{self, Built, FillPolicy, MergeRequest, NoOutline, NodeView};
use hashbrown::HashSet;

/// One piece of background work that does I/O.
#[derive(Debug)]
pub(crate) enum Job {
    /// Program pages, then [`Engine::written`].
    Write(Box<WriteJob>),
    /// Move the mapping to a group's pages, then [`Engine::install`], both at once.
    Install(Box<InstallJob>),
    /// Program a transaction's changes.
    Spill(SpillJob),
    /// Free or switch pages after a commit.
    Release(Release),
    /// Let go of pages that only ended snapshots needed.
    Unpin(Vec<PinId>),
    /// Write a mapping checkpoint with this master record, then release the log's head.
    Checkpoint(CheckpointJob),
}

/// What the search for work came to.
#[derive(Debug)]
pub(crate) enum Next {
    /// I/O to be done.
    Job(Job),
    /// Something moved on without I/O: look again.
    Stepped,
    /// Nothing can be done now.
    Idle,
}

/// Steps without I/O that one search takes, at most.
const STEPS_MAX: usize = 16;

/// One page to be programmed.
#[derive(Debug)]
pub(crate) struct PageWrite {
    pub(crate) page: LogicalPage,
    pub(crate) image: Vec<u8>,
    pub(crate) lsn: Lsn,
}

/// Pages to be programmed, all in one group.
#[derive(Debug)]
pub(crate) struct WriteJob {
    /// `GroupId::NONE`: one page, current as soon as it is written.
    pub(crate) group: GroupId,
    pub(crate) pages: Vec<PageWrite>,
    pub(crate) cause: Cause,
    /// The old version of this page must stay readable: pin it first.
    pub(crate) pin: Option<LogicalPage>,
    outcome: Outcome,
}

/// What a written job means for the engine.
#[derive(Debug)]
enum Outcome {
    /// A leaf's base moved up.
    Merged {
        table: Table,
        low: Vec<u8>,
        high: Option<Vec<u8>>,
        upto: Lsn,
        grown: i64,
        base_lsn: Lsn,
    },
    /// Flash caught up with a frame.
    CaughtUp,
    /// An inner node's base moved up.
    InnerWritten { table: Table, level: u8, low: Vec<u8>, high: Option<Vec<u8>>, upto: Lsn },
    /// The tree changed its shape.
    Reshaped(Reshape),
}

/// An inner node that was written: level, fences, and what its image is complete to.
type InnerRange = (u8, Vec<u8>, Option<Vec<u8>>, Lsn);

/// A change of a tree's shape.
#[derive(Debug)]
struct Reshape {
    table: Table,
    /// Key ranges whose deltas up to `upto` are in the new leaves.
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    upto: Lsn,
    /// Inner nodes written with it: their structure deltas are in their images.
    written: Vec<InnerRange>,
    /// Node that `puts` and `deletes` change, and its level.
    parent: Option<LogicalPage>,
    level: u8,
    puts: Vec<(Vec<u8>, LogicalPage)>,
    deletes: Vec<Vec<u8>>,
    /// Leaves that merged into their neighbour.
    trims: Vec<LogicalPage>,
    /// Page numbers taken for it.
    taken: Vec<LogicalPage>,
    dropped: Vec<Vec<u8>>,
    old: Vec<OldBase>,
    grown: i64,
}

/// A base that a reshape replaces.
#[derive(Debug)]
struct OldBase {
    page: LogicalPage,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    lsn: Lsn,
}

/// A reshape whose pages are written and whose install record is in the log.
#[derive(Debug)]
pub(crate) struct InstallJob {
    pub(crate) group: GroupId,
    /// LSN of the install record.
    pub(crate) lsn: Lsn,
    pages: Vec<PageWrite>,
    reshape: Reshape,
}

impl InstallJob {
    /// Pages of its group.
    pub(crate) fn page_count(&self) -> usize {
        self.pages.len()
    }

    /// Pages to be trimmed with the install.
    pub(crate) fn trims(&self) -> &[LogicalPage] {
        &self.reshape.trims
    }

    /// Pages whose old versions snapshots need: to be pinned before the mapping moves.
    pub(crate) fn pins(&self) -> impl Iterator<Item = LogicalPage> + '_ {
        self.reshape.old.iter().map(|old| old.page)
    }
}

/// Where the search for victims goes on.
#[derive(Debug, Default)]
pub(crate) struct Hand {
    tree: usize,
    key: Vec<u8>,
    /// Leaf chosen but not prepared yet: a page is being read for it, or the log written.
    target: Option<Target>,
    /// Frames that wait until what they hold is durable; busy meanwhile.
    waiting: Vec<(LogicalPage, Lsn)>,
    /// What a merge freed lately, in bytes: below a share of it a window is passed over.
    freed_average: usize,
    /// The search under way.
    search: Search,
    /// Pages read for the next job: they stay in memory until it is prepared (rule D7).
    held: Vec<LogicalPage>,
    /// Leaves that must split and found no page for it.
    stuck: HashSet<LogicalPage>,
    /// The leaf that the last merge found no page for.
    short: Option<LogicalPage>,
    /// Only stuck leaves are left to merge.
    is_stuck: bool,
    /// There are no pages that transactions could spill to.
    has_no_spill: bool,
}

/// A search for a victim, as far as it has come. It is kept while a page is read for it: the nodes
/// of all its windows need not fit in memory together (rule D7).
#[derive(Debug, Default)]
struct Search {
    best: Option<(usize, Target)>,
    window_count: usize,
    /// Trees that the hand has come to the end of.
    tree_count: usize,
}

impl Hand {
    /// Pages that were read for the next job.
    pub(super) fn held_count(&self) -> usize {
        self.held.len()
    }

    /// The search for a job came to `next`: what was read for it stays until it is found.
    fn hold_for<T>(&mut self, next: &Step<T>) {
        match next {
            Err(Stop::Miss(Fetch::Page(page, _) | Fetch::Grouped(_, page))) => {
                if !self.held.contains(page) {
                    self.held.push(*page);
                }
            }
            Err(Stop::Wait(_)) => {}
            _ => self.held.clear(),
        }
    }

    /// Something shrank: every leaf may be tried again.
    pub(super) fn forget_stuck(&mut self) {
        self.stuck.clear();
        (self.is_stuck, self.has_no_spill) = (false, false);
    }

    /// What a transaction has spilled is spilled no more, or committed.
    pub(super) fn allow_spilling(&mut self) {
        self.has_no_spill = false;
    }

    /// Transactions stay in memory until something shrinks.
    pub(super) fn stop_spilling(&mut self) {
        self.has_no_spill = true;
    }
}

#[derive(Clone, Debug)]
struct Target {
    table: Table,
    key: Vec<u8>,
    reason: Reason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Memory,
    Eager,
}

/// Windows looked at for one victim, at most.
const WINDOWS_MAX: usize = 4;

/// A leaf below this share of its page, in percent, looks for a neighbour to merge with.
const UNDERFULL_PERCENT: usize = 25;

/// Merged neighbours fill at most this share of the page, in percent: room to grow again.
const MERGED_PERCENT: usize = 80;

impl Engine {
    /// Whether there is background work: whether `Runtime::work_begin` would find any.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.is_poisoned()
            && (self.installs.front().is_some_and(|install| self.may_install(install))
                || self.has_release()
                || self.snapshots.has_unpins()
                || self.must_spill()
                || self.must_merge()
                || self.hand.target.is_some()
                || self.must_evict()
                || self.must_load_runs()
                || self.must_checkpoint())
    }

    /// The next piece of background work; none when there is nothing to do before something else
    /// happens: a flush, the end of a read, a commit.
    ///
    /// # Errors
    ///
    /// Stops like any operation: see to it and call again.
    pub(crate) fn next_job(&mut self) -> Step<Option<Job>> {
        let next = self.search_job();
        self.hand.hold_for(&next);
        next
    }

    fn search_job(&mut self) -> Step<Option<Job>> {
        for _ in 0..STEPS_MAX {
            if self.is_poisoned() {
                break;
            }
            match self.next_step()? {
                Next::Job(job) => return Ok(Some(job)),
                Next::Stepped => {}
                Next::Idle => break,
            }
        }
        Ok(None)
    }

    fn next_step(&mut self) -> Step<Next> {
        if self.installs.front().is_some_and(|install| self.may_install(install))
            && let Some(install) = self.installs.pop_front()
        {
            return Ok(Next::Job(Job::Install(Box::new(install))));
        }
        if self.snapshots.has_unpins() {
            return Ok(Next::Job(Job::Unpin(self.snapshots.take_unpins())));
        }
        if let Some(release) = self.take_release() {
            return Ok(Next::Job(Job::Release(release)));
        }
        if self.must_spill()
            && let Some(xid) = self.largest_transaction()
            && let Some(job) = self.plan_spill(xid)?
        {
            return Ok(Next::Job(Job::Spill(job)));
        }
        let is_merging = self.must_merge() || self.hand.target.is_some();
        if is_merging && let Some(job) = self.merge_job()? {
            return Ok(Next::Job(Job::Write(Box::new(job))));
        }
        if let Some(job) = self.evict_job()? {
            return Ok(Next::Job(Job::Write(Box::new(job))));
        }
        if self.must_load_runs() {
            self.load_next_run()?;
            return Ok(Next::Stepped);
        }
        match self.checkpoint_step()? {
            Next::Idle if is_merging && !self.is_flush_wanted() => Ok(Next::Stepped),
            next => Ok(next),
        }
    }

    fn may_install(&self, install: &InstallJob) -> bool {
        install.lsn <= self.durable() || self.bugs.has(SeededBug::InstallBeforeDurable)
    }

    fn must_spill(&self) -> bool {
        self.uncommitted_size > self.limits.uncommitted && !self.hand.has_no_spill
    }

    /// Whether transactions cannot grow before something shrinks.
    pub(super) fn has_no_spill(&self) -> bool {
        self.hand.has_no_spill
    }

    fn must_merge(&self) -> bool {
        let total = self.deltas_size + self.uncommitted_size;
        let is_wanted = total > self.limits.deltas_soft || self.growth.is_settling();
        is_wanted && self.has_deltas() && !self.is_stuck()
    }

    /// Whether no leaf can be merged before something shrinks (rule D7).
    pub(super) fn is_stuck(&self) -> bool {
        self.hand.is_stuck
    }

    /// There are no pages for the job that asked for them; false when it cannot be put off.
    pub(crate) fn go_without_pages(&mut self) -> bool {
        match self.hand.short.take() {
            Some(page) => {
                self.hand.target = None;
                self.hand.stuck.insert(page)
            }
            None => !std::mem::replace(&mut self.hand.has_no_spill, true),
        }
    }

    /// Whether nothing that is under way can free a leaf for a merge.
    fn is_at_rest(&self) -> bool {
        self.busy.is_empty() && self.installs.is_empty() && self.durable() >= self.committed
    }

    fn must_load_runs(&self) -> bool {
        !self.runs.is_empty() && !self.must_merge()
    }

    /// Asks for a leaf to be merged as soon as possible: an insert did not fit it.
    pub(crate) fn want_merge(&mut self, table: Table, key: &[u8]) {
        if self.hand.target.is_none() {
            self.hand.target = Some(Target { table, key: key.to_vec(), reason: Reason::Eager });
        }
    }

    fn merge_job(&mut self) -> Step<Option<WriteJob>> {
        let target = match self.hand.target.take() {
            Some(target) => target,
            None => match self.choose_leaf()? {
                Some(target) => target,
                None => {
                    // Everything mergeable waits for an install or for the log.
                    self.hand.is_stuck = !self.hand.stuck.is_empty() && self.is_at_rest();
                    self.want_flush();
                    return Ok(None);
                }
            },
        };
        match self.prepare_merge(&target) {
            Ok(job) => Ok(job),
            Err(stop @ (Stop::Miss(_) | Stop::Wait(_))) => {
                self.hand.target = Some(target);
                Err(stop)
            }
            Err(stop) => Err(stop),
        }
    }

    /// The leaf whose merge frees most bytes a page among the next windows.
    fn choose_leaf(&mut self) -> Step<Option<Target>> {
        while self.hand.search.tree_count <= self.trees.len()
            && self.hand.search.window_count < WINDOWS_MAX
            && self.skip_empty_trees()
        {
            self.search_window()?;
            let average = self.hand.freed_average;
            let best = self.hand.search.best.as_ref();
            if best.is_some_and(|(score, _)| *score > 0 && score * 2 >= average) {
                break;
            }
        }
        let best = std::mem::take(&mut self.hand.search).best;
        if let Some((score, _)) = &best {
            self.hand.freed_average = (self.hand.freed_average * 15 + *score) / 16;
        }
        Ok(best.map(|(_, target)| target))
    }

    /// Looks at the window below the hand and moves the hand to the next one.
    fn search_window(&mut self) -> Step<()> {
        let table = Table { id: self.hand.tree as u32 };
        let (found, next) = self.best_below(table)?;
        self.hand.held.clear();
        let search = &mut self.hand.search;
        search.window_count += 1;
        if let Some((score, key)) = found
            && search.best.as_ref().is_none_or(|(best, _)| score > *best)
        {
            search.best = Some((score, Target { table, key, reason: Reason::Memory }));
        }
        match next {
            Some(key) => self.hand.key = key,
            None => {
                search.tree_count += 1;
                self.hand.tree += 1;
                self.hand.key.clear();
            }
        }
        Ok(())
    }

    /// What was read for the next job counts as used last.
    pub(super) fn touch_held(&mut self) {
        for page in &self.hand.held {
            self.pool.get(*page);
        }
    }

    /// Moves the hand to a tree that has deltas; false when none has.
    fn skip_empty_trees(&mut self) -> bool {
        for _ in 0..=self.trees.len() {
            if self.hand.tree >= self.trees.len() {
                self.hand.tree = 0;
                self.hand.key.clear();
            }
            let tree = &self.trees[self.hand.tree];
            if !tree.deltas.is_empty() && tree.root.is_some() {
                return true;
            }
            self.hand.tree += 1;
            self.hand.key.clear();
        }
        false
    }

    /// Best leaf below the lowest inner node at the hand, and where the next node begins.
    #[expect(clippy::type_complexity, reason = "score and key of the best, start of the next node")]
    fn best_below(&mut self, table: Table) -> Step<(Option<(usize, Vec<u8>)>, Option<Vec<u8>>)> {
        let durable = self.merge_lsn();
        let key = std::mem::take(&mut self.hand.key);
        let index = self.node_for(table, Seek::At(&key), 1);
        self.hand.key = key;
        let frame = self.pool.frame(index?);
        let view = NodeView::trusted(&frame.image);
        let deltas = &self.tree(table)?.deltas;
        let next = view.high().map(<[u8]>::to_vec);
        if view.is_leaf() {
            if self.hand.stuck.contains(&frame.page) {
                return Ok((None, next));
            }
            let totals = deltas.range_totals(KeyRange::ALL, durable);
            let score = self.score(totals.bytes);
            return Ok(((score > 0).then(|| (score, Vec::new())), next));
        }
        let range = KeyRange { low: view.low(), high: view.high() };
        let mut tally = Tally::new(&view);
        for entry in deltas.range(range) {
            let child = tally.advance(entry.key());
            let size: usize = entry
                .versions()
                .filter(|(lsn, _)| *lsn <= durable)
                .map(|(_, op)| entry.key().len() + op.encoded_size() + DELTA_OVERHEAD)
                .sum();
            tally.add(child, size);
        }
        let busy = |page: &LogicalPage| self.busy.contains(page) || self.hand.stuck.contains(page);
        let best = tally.best(|child| view.child(child).as_ref().is_some_and(busy));
        let best = best.map(|(child, bytes)| (self.score(bytes), view.separator(child)));
        Ok((best.filter(|(score, _)| *score > 0), next))
    }

    /// Bytes freed for each page that the merge is likely to write.
    fn score(&self, bytes: usize) -> usize {
        bytes / (1 + bytes / self.payload_size)
    }

    /// Merges the leaf that holds `key`, whatever that frees; none when it cannot be done now.
    pub(crate) fn merge_at(&mut self, table: Table, key: Vec<u8>) -> Step<Option<WriteJob>> {
        self.prepare_merge(&Target { table, key, reason: Reason::Memory })
    }

    /// Builds the new images of the leaf that holds `target`'s key.
    fn prepare_merge(&mut self, target: &Target) -> Step<Option<WriteJob>> {
        let table = target.table;
        let index = self.leaf_for(table, Seek::At(&target.key))?;
        let frame = self.pool.frame(index);
        let (page, base_lsn) = (frame.page, frame.lsn);
        if self.busy.contains(&page) {
            return Ok(None);
        }
        if frame.ahead.is_some() {
            // The image derives from commits up to its LSN, and snapshots read its page on flash.
            return self.catch_up(page);
        }
        let upto = self.merge_lsn();
        let view = NodeView::trusted(&frame.image);
        let (low, high) = (view.low().to_vec(), view.high().map(<[u8]>::to_vec));
        let range = KeyRange { low: &low, high: high.as_deref() };
        self.load_runs(table, range)?;
        let Some(index) = self.pool.peek(page) else { return Ok(None) };
        if self.recovered > Lsn::ZERO {
            // Put back after the frame was read.
            self.remove_deltas(table, range, base_lsn);
        }
        let view = NodeView::trusted(&self.pool.frame(index).image);
        let deltas = &self.tree(table)?.deltas;
        if deltas.range_totals(range, upto).count == 0 {
            if target.reason == Reason::Eager
                && deltas.range_totals(range, self.committed).count > 0
            {
                // What did not fit is not durable yet.
                self.want_flush();
                self.hand.target = Some(target.clone());
            }
            return Ok(None);
        }
        let request = MergeRequest { tree: table.id, range, upto, page_size: self.payload_size };
        let before = view.count() as i64;
        let merged = node::merge_leaf(Some(view), deltas, request, &mut NoOutline)
            .map_err(|_| corrupt(page, "leaf does not merge with its deltas"))?;
        let grown = merged.entry_count as i64 - before;
        self.counts.merged_deltas += deltas.range_totals(range, upto).count as u64;
        self.counts.merges += 1;
        let is_single = merged.pages.len() == 1 && merged.dropped_refs.is_empty();
        if is_single && !self.is_underfull(table, page, &merged.pages[0])? {
            let pin = self.buries(upto).then_some(page);
            self.busy.insert(page);
            let image = merged.pages.into_iter().next().map(|built| built.image);
            let lsn = match self.bugs.has(SeededBug::ClaimTooMuch) {
                true => Lsn(upto.0 + 8),
                false => upto,
            };
            let pages = vec![PageWrite { page, image: image.unwrap_or_default(), lsn }];
            let outcome = Outcome::Merged { table, low, high, upto, grown, base_lsn };
            let cause = Cause::Data;
            return Ok(Some(WriteJob { group: GroupId::NONE, pages, cause, pin, outcome }));
        }
        let old = OldBase { page, low: low.clone(), high: high.clone(), lsn: base_lsn };
        let plan = ReshapePlan {
            table,
            page,
            low,
            high,
            upto,
            pages: merged.pages,
            dropped: merged.dropped_refs,
            old: vec![old],
            grown,
        };
        self.reshape(plan)
    }

    /// The LSN that a merge prepared now is complete to: everything at or below is durable, and in
    /// the tree's deltas or its base.
    pub(super) fn merge_lsn(&self) -> Lsn {
        if self.bugs.has(SeededBug::MergeBeforeDurable) {
            self.committed
        } else {
            self.replaying.unwrap_or(self.durable())
        }
    }

    fn is_underfull(&self, table: Table, page: LogicalPage, built: &Built) -> Step<bool> {
        let used = NodeView::trusted(&built.image).used_bytes();
        let is_small = used * 100 < self.payload_size * UNDERFULL_PERCENT;
        // Short of room, the leaf waits for its turn to be merged away.
        let may_reshape = self.growth.is_settling() || !self.tree(table)?.is_reshaping;
        Ok(is_small && self.root_of(table)? != page && may_reshape)
    }

    /// The frame of a page as a job, so that flash catches up with it.
    fn catch_up(&mut self, page: LogicalPage) -> Step<Option<WriteJob>> {
        let Some(index) = self.pool.peek(page) else { return Ok(None) };
        let frame = self.pool.frame(index);
        if frame.lsn > self.durable() {
            // Commits go to the deltas meanwhile, so that the frame's LSN stays and is reached.
            let lsn = frame.lsn;
            self.busy.insert(page);
            self.hand.waiting.push((page, lsn));
            self.want_flush();
            return Ok(None);
        }
        let write = PageWrite { page, image: frame.image.clone(), lsn: frame.lsn };
        self.busy.insert(page);
        Ok(Some(WriteJob {
            group: GroupId::NONE,
            pages: vec![write],
            cause: Cause::Data,
            pin: None,
            outcome: Outcome::CaughtUp,
        }))
    }

    /// A page whose frame is ahead and has to leave memory, or holds back the log.
    fn evict_job(&mut self) -> Step<Option<WriteJob>> {
        let durable = self.durable();
        if let Some(index) = self.hand.waiting.iter().position(|(_, lsn)| *lsn <= durable) {
            let (page, _) = self.hand.waiting.swap_remove(index);
            self.busy.remove(&page);
            return self.catch_up(page);
        }
        match self.pool.shrink(self.frames_max()) {
            Some(page) if !self.busy.contains(&page) => self.catch_up(page),
            _ => Ok(None),
        }
    }

    /// Whether frames that are ahead of flash take more than their share and what is kept for
    /// merges: whoever wants to change more waits until some are written.
    pub(crate) fn frames_exceed(&self) -> bool {
        self.pool.bytes() > self.frames_max() + MERGE_PAGES * self.payload_size
    }

    fn must_evict(&self) -> bool {
        self.pool.bytes() > self.frames_max()
            || self.hand.waiting.iter().any(|(_, lsn)| *lsn <= self.durable())
    }

    /// The pages of a job are on flash.
    pub(crate) fn written(&mut self, job: WriteJob, pin: Option<PinId>) {
        let is_buried = job.pin.is_some();
        let WriteJob { group, mut pages, outcome, .. } = job;
        for write in &pages {
            self.busy.remove(&write.page);
        }
        match outcome {
            Outcome::Merged { table, low, high, upto, grown, base_lsn } => {
                let Some(write) = pages.pop() else { return };
                let range = KeyRange { low: &low, high: high.as_deref() };
                if is_buried {
                    let pin = pin.map(|pin| (pin, write.page));
                    self.retain_leaf(table, range, pin, base_lsn, upto);
                }
                self.remove_deltas(table, range, upto);
                self.count_entries(table, grown);
                self.replace_leaf(write);
            }
            Outcome::CaughtUp => {
                for write in pages {
                    self.caught_up(&write);
                }
            }
            Outcome::InnerWritten { table, level, low, high, upto } => {
                let Some(tree) = self.trees.get_mut(table.id as usize) else { return };
                tree.structure.forget(level, &low, high.as_deref(), upto);
                tree.is_reshaping = false;
            }
            Outcome::Reshaped(reshape) => {
                for write in &pages {
                    self.busy.insert(write.page);
                }
                let lsn = self.append_install_record(&InstallParts {
                    group,
                    tree: reshape.table.id,
                    level: reshape.level,
                    puts: &reshape.puts,
                    deletes: &reshape.deletes,
                    trims: &reshape.trims,
                    dropped: &reshape.dropped,
                });
                self.installs.push_back(InstallJob { group, lsn, pages, reshape });
                if self.must_merge() || self.is_checkpointing() {
                    // Memory or the checkpoint waits for the install, nobody else may ever flush.
                    self.want_flush();
                }
            }
        }
    }

    /// A job's pages could not be written: everything is as before.
    pub(crate) fn write_failed(&mut self, job: &WriteJob) {
        for write in &job.pages {
            self.busy.remove(&write.page);
        }
        let table = match &job.outcome {
            Outcome::Reshaped(reshape) => Some(reshape.table),
            Outcome::InnerWritten { table, .. } => Some(*table),
            _ => None,
        };
        if let Outcome::Reshaped(reshape) = &job.outcome {
            for page in &reshape.trims {
                self.busy.remove(page);
            }
            self.unused_pages.extend(&reshape.taken);
        }
        if let Some(tree) = table.and_then(|table| self.trees.get_mut(table.id as usize)) {
            tree.is_reshaping = false;
        }
        if job.group != GroupId::NONE {
            self.trims.discard_group(job.group);
        }
    }

    /// Whether snapshots need what an install replaces.
    pub(crate) fn must_pin(&self, job: &InstallJob) -> bool {
        self.buries(job.reshape.upto)
    }

    /// The group's pages have become current: the engine follows.
    pub(crate) fn install(&mut self, job: InstallJob, pins: &[Option<PinId>]) {
        let InstallJob { lsn, pages, reshape, .. } = job;
        let table = reshape.table;
        let range = KeyRange { low: &reshape.low, high: reshape.high.as_deref() };
        if self.buries(reshape.upto) {
            for (old, pin) in reshape.old.iter().zip(pins) {
                let range = KeyRange { low: &old.low, high: old.high.as_deref() };
                let pin = pin.map(|pin| (pin, old.page));
                self.retain_leaf(table, range, pin, old.lsn, reshape.upto);
            }
        }
        self.remove_deltas(table, range, reshape.upto);
        self.count_entries(table, reshape.grown);
        for page in &reshape.trims {
            self.busy.remove(page);
            self.forget_page(*page);
        }
        for write in pages {
            self.busy.remove(&write.page);
            let class =
                if NodeView::trusted(&write.image).is_leaf() { Class::Leaf } else { Class::Inner };
            self.mark_stale(write.page);
            self.pool.remove(write.page);
            self.place(write.page, write.lsn, write.image, class);
        }
        if let Some(tree) = self.trees.get_mut(table.id as usize) {
            for (level, low, high, upto) in &reshape.written {
                tree.structure.forget(*level, low, high.as_deref(), *upto);
            }
            for key in &reshape.deletes {
                tree.structure.note(reshape.level, key, lsn, None);
            }
            for (key, child) in &reshape.puts {
                tree.structure.note(reshape.level, key, lsn, Some(*child));
            }
            tree.is_reshaping = false;
        }
        self.refresh_parent(table, &reshape);
        for descriptor in reshape.dropped {
            self.trims.add(reshape.upto, descriptor);
        }
        self.counts.splits += 1;
    }

    /// Brings the frame of the node that a reshape changed up to date, if it is in memory: it may be
    /// there without its ancestors. Else its next reader applies the structure deltas.
    fn refresh_parent(&mut self, table: Table, reshape: &Reshape) {
        let Some(page) = reshape.parent else { return };
        let Some(index) = self.pool.peek(page) else { return };
        let frame = self.pool.frame(index);
        let structure = &self.trees[table.id as usize].structure;
        if let Some((image, lsn)) = structure.apply(&frame.image, frame.lsn) {
            self.place(page, lsn, image, Class::Inner);
        }
    }

    fn replace_leaf(&mut self, write: PageWrite) {
        self.mark_stale(write.page);
        if self.pool.peek(write.page).is_some() {
            self.place(write.page, write.lsn, write.image, Class::Leaf);
        }
    }

    /// Flash holds a frame's image; what was committed meanwhile is in the deltas.
    fn caught_up(&mut self, write: &PageWrite) {
        self.mark_stale(write.page);
        if let Some(index) = self.pool.peek(write.page) {
            debug_assert_eq!(self.pool.frame(index).lsn, write.lsn, "a busy frame does not change");
            self.pool.mark_clean(index);
        }
        self.absorb(write.page);
    }

    fn count_entries(&mut self, table: Table, grown: i64) {
        if let Some(tree) = self.trees.get_mut(table.id as usize) {
            tree.entry_count += grown;
        }
    }
}

/// Memory of a delta beside its key and operation, roughly: enough to compare groups.
const DELTA_OVERHEAD: usize = 16;

/// Counts bytes of deltas by child while both are walked in key order.
struct Tally<'a> {
    view: &'a NodeView<'a>,
    child: usize,
    next: Option<Vec<u8>>,
    bytes: Vec<usize>,
}

impl<'a> Tally<'a> {
    fn new(view: &'a NodeView<'a>) -> Self {
        let mut tally = Self { view, child: 0, next: None, bytes: vec![0; view.count()] };
        tally.load_next();
        tally
    }

    fn load_next(&mut self) {
        let has_next = self.child + 1 < self.view.count();
        self.next = has_next.then(|| self.view.separator(self.child + 1));
    }

    /// The child that holds `key`; keys come in ascending order.
    fn advance(&mut self, key: &[u8]) -> usize {
        while self.next.as_deref().is_some_and(|next| key >= next) {
            self.child += 1;
            self.load_next();
        }
        self.child
    }

    fn add(&mut self, child: usize, bytes: usize) {
        self.bytes[child] += bytes;
    }

    fn best(&self, is_busy: impl Fn(usize) -> bool) -> Option<(usize, usize)> {
        let free = self.bytes.iter().enumerate().filter(|(child, _)| !is_busy(*child));
        free.max_by_key(|(child, bytes)| (**bytes, usize::MAX - child)).map(|(c, b)| (c, *b))
    }
}

/// A merge that does not end in the page it began with.
struct ReshapePlan {
    table: Table,
    page: LogicalPage,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    upto: Lsn,
    pages: Vec<Built>,
    dropped: Vec<Vec<u8>>,
    old: Vec<OldBase>,
    grown: i64,
}

impl Engine {
    /// Several pages at once: the leaves, and the inner nodes that become too small.
    fn reshape(&mut self, plan: ReshapePlan) -> Step<Option<WriteJob>> {
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
        let pages = vec![PageWrite { page, image, lsn: upto }];
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
        if self.recovered > Lsn::ZERO {
            self.remove_deltas(table, KeyRange { low: &low, high: high.as_deref() }, lsn);
        }
    }

    fn load_neighbour_runs(&mut self, table: Table, page: LogicalPage) -> Step<()> {
        let Some(index) = self.pool.peek(page) else { return Ok(()) };
        let view = NodeView::trusted(&self.pool.frame(index).image);
        let (low, high) = (view.low().to_vec(), view.high().map(<[u8]>::to_vec));
        self.load_runs(table, KeyRange { low: &low, high: high.as_deref() })
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
        // Every structure change up to the durable LSN is installed: one reshape a tree at a time.
        let lsn = plan.upto;
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
            climb.writes.push(PageWrite { page: at, image: built.image, lsn });
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
            climb.writes.push(PageWrite { page: at, image: built.image, lsn });
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
        climb.writes.push(PageWrite { page: root, image, lsn });
        Ok(())
    }

    /// Inner nodes as jobs: the log's head may pass their structure changes afterwards.
    pub(crate) fn inner_job(&mut self, cutoff: Lsn) -> Step<Option<WriteJob>> {
        for number in 0..self.trees.len() {
            let tree = &self.trees[number];
            if tree.structure.is_empty() {
                continue;
            }
            let Some((level, key)) = tree.structure.first_until(cutoff) else { continue };
            if tree.is_reshaping {
                self.want_flush();
                return Ok(None);
            }
            let table = Table { id: number as u32 };
            let index = self.node_for(table, Seek::At(&key), level)?;
            let frame = self.pool.frame(index);
            let view = NodeView::trusted(&frame.image);
            if view.level() != level {
                return Err(corrupt(frame.page, "structure change of a level the tree lacks"));
            }
            let (low, high) = (view.low().to_vec(), view.high().map(<[u8]>::to_vec));
            let (page, upto) = (frame.page, frame.lsn);
            let write = PageWrite { page, image: frame.image.clone(), lsn: upto };
            let outcome = Outcome::InnerWritten { table, level, low, high, upto };
            self.trees[number].is_reshaping = true;
            let (group, cause, pages) = (GroupId::NONE, Cause::Data, vec![write]);
            return Ok(Some(WriteJob { group, pages, cause, pin: None, outcome }));
        }
        Ok(None)
    }

    /// A frame that is ahead since `cutoff` or before, as a job.
    pub(crate) fn old_frame_job(&mut self, cutoff: Lsn) -> Step<(bool, Option<WriteJob>)> {
        let old: Vec<LogicalPage> = self.pool.ahead_since(cutoff).collect();
        let free = old.iter().find(|page| !self.busy.contains(*page)).copied();
        match free {
            Some(page) => Ok((true, self.catch_up(page)?)),
            None => Ok((!old.is_empty(), None)),
        }
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
