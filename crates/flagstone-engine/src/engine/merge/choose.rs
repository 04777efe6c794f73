//! Choosing: the leaf whose merge frees most memory for each page that it writes.

use std::cmp::Reverse;

use flagstone_space::{LogicalPage, Lsn};

use crate::delta::{DeltaMap, KeyRange, Sum};
use crate::engine::merge::guest::GuestAnswer;
use crate::engine::merge::{EMPTIED_MAX, Merges, Reason, TOGETHER_MAX, Target, WINDOWS_MAX};
use crate::engine::step::{Step, Stop};
use crate::engine::store::catalog::{CATALOG, Table, Tree};
use crate::engine::store::descent::Seek;
use crate::engine::store::groups::WriteJob;
use crate::error::EngineError;
use crate::node::NodeView;

impl Merges {
    pub(in crate::engine) fn merge_job(&mut self) -> Step<Option<WriteJob>> {
        let target = self.planner.target.take().or_else(|| self.take_joined());
        let target = match target.or_else(|| self.take_emptied()) {
            Some(target) => target,
            None => match self.choose()? {
                Some(target) => {
                    self.planner.empty_searches = 0;
                    target
                }
                None => {
                    // Everything mergeable waits for an install or for the log.
                    if self.is_at_rest() {
                        self.note_empty_search();
                    }
                    let is_out =
                        self.is_short() && self.obstacles.lacks_pages() && self.is_at_rest();
                    self.obstacles.note_search(is_out);
                    self.await_installs();
                    return Ok(None);
                }
            },
        };
        match self.prepare_merge(&target) {
            Ok(job) => Ok(job),
            Err(
                stop @ (Stop::Miss(_) | Stop::Wait(_) | Stop::Error(EngineError::Corrupt { .. })),
            ) => {
                self.planner.target = Some(target);
                Err(stop)
            }
            Err(stop) => Err(stop),
        }
    }

    fn choose(&mut self) -> Step<Option<Target>> {
        match self.ask_guest()? {
            GuestAnswer::Leaf(target) => Ok(Some(target)),
            GuestAnswer::Window if self.is_short() => self.choose_leaf(),
            GuestAnswer::Window | GuestAnswer::None => Ok(None),
        }
    }

    /// Whether a leaf that goes with the last one chosen can be tried now.
    pub(super) fn has_joined(&self) -> bool {
        self.planner.joined.front().is_some_and(|next| self.may_reshape(next))
    }

    /// Whether a leaf that was emptied can be tried now.
    pub(super) fn has_emptied(&self) -> bool {
        self.planner.emptied.front().is_some_and(|next| self.may_reshape(next))
    }

    /// A leaf of a table that is gone can be tried: nothing comes of it.
    fn may_reshape(&self, target: &Target) -> bool {
        self.trees.get(target.table.id as usize).is_none_or(|tree| tree.reshaping.is_none())
    }

    /// The next leaf that goes with the last one chosen: one reshape of a tree follows the other.
    fn take_joined(&mut self) -> Option<Target> {
        if self.has_joined() { self.planner.joined.pop_front() } else { None }
    }

    fn take_emptied(&mut self) -> Option<Target> {
        if self.has_emptied() { self.planner.emptied.pop_front() } else { None }
    }

    /// Flash holds an image of a node: an empty leaf gets a turn to be merged away.
    pub(super) fn note_leaf(&mut self, image: &[u8]) {
        let view = NodeView::trusted(image);
        let is_root = view.low().is_empty() && view.high().is_none();
        if view.is_leaf() && view.count() == 0 && !is_root {
            self.note_emptied(Table::of(view.tree()), view.low());
        }
    }

    pub(super) fn note_emptied(&mut self, table: Table, key: &[u8]) {
        let mut known = self.planner.emptied.iter();
        if self.planner.emptied.len() < EMPTIED_MAX
            && !known.any(|target| target.table.id == table.id && target.key == key)
        {
            let target = Target::new(table, key.to_vec(), Reason::Emptied);
            self.planner.emptied.push_back(target);
        }
    }

    /// The leaf whose merge frees most bytes a page, among those found last, or among the next windows
    /// where none of these frees as much as recent merges did.
    fn choose_leaf(&mut self) -> Step<Option<Target>> {
        if !self.runs.is_empty() {
            return self.choose_in_order();
        }
        let chosen = match self.take_found(self.planner.freed_average.max(1)) {
            None => {
                self.search_windows()?;
                self.take_found(1)
            }
            known => known,
        };
        let Some((score, target)) = chosen else { return Ok(None) };
        self.planner.freed_average = (self.planner.freed_average * 15 + score) / 16;
        Ok(Some(target))
    }

    /// Looks at windows until the best leaf of one is not much worse than recent ones.
    fn search_windows(&mut self) -> Step<()> {
        while self.planner.search.tree_count <= self.trees.len()
            && self.planner.search.window_count < WINDOWS_MAX
            && self.skip_empty_trees()
        {
            self.search_window()?;
            let average = self.planner.freed_average;
            if self.planner.search.found.best().is_some_and(|score| score * 2 >= average) {
                break;
            }
        }
        self.planner.found = std::mem::take(&mut self.planner.search).found;
        Ok(())
    }

    /// The best leaf of the last search that was not taken, if its merge frees at least this much for each
    /// page now; leaves that were merged since, or free less, are forgotten.
    fn take_found(&mut self, least: usize) -> Option<(usize, Target)> {
        loop {
            let leaf = self.planner.found.leaves.pop()?;
            let table = self.planner.found.table;
            let score = self.trees.get(table.id as usize).map_or(0, |tree| {
                let sum = tree.deltas.sums(&leaf.low, Lsn(u64::MAX)).below(leaf.high.as_deref());
                self.score(freed_by(sum))
            });
            if score < least {
                continue;
            }
            let rest = self.planner.found.leaves.iter().rev();
            let beside = rest.take_while(|other| other.score * 100 >= score * TOGETHER_PERCENT);
            let beside = beside.map(|other| other.low.clone()).collect();
            let target = Target::new(table, leaf.low, Reason::Memory);
            return Some((score, Target { beside, ..target }));
        }
    }

    /// The next leaf in key order, while changes are left outside memory: changes loaded for one leaf
    /// are for the leaves behind it as well, and are merged before any others are loaded.
    fn choose_in_order(&mut self) -> Step<Option<Target>> {
        for _ in 0..LEAVES_PASSED_MAX {
            if !self.skip_empty_trees() {
                break;
            }
            let table = Table::of(self.planner.tree as u32);
            if let Some(next) = self.behind_unreadable(table, &self.planner.key) {
                self.planner.pass_to(next);
                continue;
            }
            self.load_ahead(table)?;
            let ahead = KeyRange { low: &self.planner.key, high: None };
            let next = self.tree(table)?.deltas.range(ahead).next();
            let Some(key) = next.map(|entry| entry.key().to_vec()) else {
                self.planner.pass_to(None);
                continue;
            };
            let place = self.place_of(table, &key)?;
            self.pool.let_all_go();
            let is_free =
                !self.groups.busy.contains(&place.page) && !self.obstacles.passes_over(place.page);
            let range = KeyRange { low: &place.low, high: place.high.as_deref() };
            let is_due = self.tree(table)?.deltas.has_upto(range, self.merge_lsn());
            self.planner.pass_to(place.high);
            if is_free && is_due {
                return Ok(Some(Target::new(table, key, Reason::Memory)));
            }
        }
        Ok(None)
    }

    /// Where many changes wait outside memory, loads the changes whose keys lie before the next key
    /// with a change in memory.
    fn load_ahead(&mut self, table: Table) -> Step<()> {
        if !self.are_runs_many() || self.memory.deltas > self.memory.limits.deltas_hard {
            return Ok(());
        }
        let ahead = KeyRange { low: &self.planner.key, high: None };
        let next = self.tree(table)?.deltas.range(ahead).next();
        let next = next.map(|entry| entry.key().to_vec());
        let from = self.planner.key.clone();
        let before = KeyRange { low: &from, high: next.as_deref() };
        if self.has_left_runs(table, before, Lsn(u64::MAX)) {
            self.load_some_runs(table, KeyRange { low: &from, high: None }, Lsn(u64::MAX))?;
        }
        Ok(())
    }

    /// Looks at the window below the hand and moves the hand to the next one.
    fn search_window(&mut self) -> Step<()> {
        let table = Table::of(self.planner.tree as u32);
        let (found, next) = self.best_below(table)?;
        self.pool.let_all_go();
        let search = &mut self.planner.search;
        search.window_count += 1;
        search.tree_count += usize::from(next.is_none());
        let found = Found { table, leaves: found };
        if found.best() > search.found.best() {
            search.found = found;
        }
        self.planner.pass_to(next);
        Ok(())
    }

    /// Moves the hand to a tree that has deltas; false when no tree has.
    fn skip_empty_trees(&mut self) -> bool {
        let has_deltas = |tree: &&Tree| !tree.deltas.is_empty() && tree.root.is_some();
        let trees = &self.trees;
        let next = trees.from(self.planner.tree).chain(trees).find(has_deltas);
        let Some(next) = next.map(|tree| tree.id as usize) else { return false };
        if next != self.planner.tree {
            (self.planner.tree, self.planner.key) = (next, Vec::new());
        }
        true
    }

    /// Best leaves below the lowest inner node at the hand, the best one last, and the key at which the next
    /// node begins.
    fn best_below(&mut self, table: Table) -> Step<(Vec<Leaf>, Option<Vec<u8>>)> {
        let durable = self.merge_lsn();
        if let Some(next) = self.behind_unreadable(table, &self.planner.key) {
            return Ok((Vec::new(), next));
        }
        let key = std::mem::take(&mut self.planner.key);
        let index = self.node_for(table, Seek::At(&key), 1);
        self.planner.key = key;
        let frame = self.pool.frame(index?);
        let view = NodeView::trusted(&frame.image);
        let deltas = &self.tree(table)?.deltas;
        let next = view.high().map(<[u8]>::to_vec);
        if view.is_leaf() {
            if self.obstacles.passes_over(frame.page) {
                return Ok((Vec::new(), next));
            }
            let score = self.score(freed_by(deltas.sums(&[], durable).below(None)));
            let only = (score > 0).then_some(Leaf { score, low: Vec::new(), high: None });
            return Ok((only.into_iter().collect(), next));
        }
        // Where every change is durable, sums are those of whole chunks.
        let is_all = self.frontier.newest_delta <= durable;
        let tally = Tally::of(&view, deltas, if is_all { Lsn(u64::MAX) } else { durable });
        let is_any_busy = !self.groups.busy.is_empty() || self.obstacles.passes_over_any();
        let busy = |page: &LogicalPage| {
            self.groups.busy.contains(page) || self.obstacles.passes_over(*page)
        };
        let is_busy = |child| is_any_busy && view.child(child).as_ref().is_some_and(busy);
        let best = tally.best(1 + TOGETHER_MAX, is_busy).into_iter().rev();
        let best = best.map(|(child, bytes)| Leaf {
            score: self.score(bytes),
            low: view.separator(child),
            high: if child + 1 < view.count() {
                Some(view.separator(child + 1))
            } else {
                next.clone()
            },
        });
        Ok((best.filter(|leaf| leaf.score > 0).collect(), next))
    }

    /// Bytes freed for each page that the merge is likely to write.
    fn score(&self, bytes: usize) -> usize {
        bytes / (1 + bytes / self.payload_size)
    }
}

/// Leaves that are passed over in key order for one that can be merged now, at most.
const LEAVES_PASSED_MAX: usize = 64;

/// A leaf splits together with a chosen leaf if it frees at least this share, in percent, of the memory
/// that the chosen leaf frees.
const TOGETHER_PERCENT: usize = 75;

/// Memory of a delta beside its record, roughly: enough to compare groups.
const DELTA_OVERHEAD: usize = 7;

/// Bytes that a merge of these changes frees.
const fn freed_by(sum: Sum) -> usize {
    sum.bytes + sum.count * DELTA_OVERHEAD
}

/// A leaf that a search found, with the bytes that its merge frees for each page.
#[derive(Debug)]
struct Leaf {
    score: usize,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
}

/// Leaves below one inner node.
#[derive(Debug)]
pub(super) struct Found {
    table: Table,
    /// The best one last.
    leaves: Vec<Leaf>,
}

impl Default for Found {
    fn default() -> Self {
        Self { table: CATALOG, leaves: Vec::new() }
    }
}

impl Found {
    /// Bytes that the merge of the best leaf frees.
    fn best(&self) -> Option<usize> {
        self.leaves.last().map(|leaf| leaf.score)
    }
}

/// Bytes of deltas by child.
struct Tally {
    bytes: Vec<usize>,
}

impl Tally {
    /// Deltas up to `upto` by the child of `view` that they belong to.
    fn of(view: &NodeView<'_>, deltas: &DeltaMap, upto: Lsn) -> Self {
        let mut bytes = vec![0; view.count()];
        let mut sums = deltas.sums(view.low(), upto);
        let mut bound = Vec::new();
        for (child, bytes) in bytes.iter_mut().enumerate() {
            if sums.is_over() {
                break;
            }
            let sum = if child + 1 < view.count() {
                bound.clear();
                view.key_into(child + 1, &mut bound);
                sums.below(Some(&bound))
            } else {
                sums.below(view.high())
            };
            *bytes = freed_by(sum);
        }
        Self { bytes }
    }

    /// The children with most bytes that are not busy, with these bytes.
    fn best(&self, count: usize, is_busy: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
        let all = self.bytes.iter().copied().enumerate();
        let mut free: Vec<_> = all.filter(|(child, _)| !is_busy(*child)).collect();
        let by_rank = |(child, bytes): &(usize, usize)| (Reverse(*bytes), *child);
        if free.len() > count {
            free.select_nth_unstable_by_key(count - 1, by_rank);
            free.truncate(count);
        }
        free.sort_unstable_by_key(by_rank);
        free
    }
}

#[cfg(test)]
mod tests {
    use flagstone_nand::{Profile, SimNand};

    use super::*;
    use crate::testing::Database;
    use crate::{CommitBy, Durability, Options};

    /// Goal (rule D7): a leaf that a search found is not taken once its page is known not to read: the thread
    /// that works in the background would get the error of a page that it never asked for. Method: all leaves of
    /// a table have changes, one is taken, and the next one is given up before its turn.
    #[test]
    fn a_leaf_found_before_an_obstacle_is_forgotten() {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
        let options = Options::default();
        let options = options.with_techniques(|techniques| techniques.commit = CommitBy::Log);
        let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
        let table = database.table("t").unwrap();
        let commit = |value: &[u8]| {
            let mut transaction = database.begin();
            (0..400_u32).for_each(|row| transaction.put(table, &row.to_be_bytes(), value).unwrap());
            transaction.commit_with(Durability::Deferred).unwrap();
        };
        commit(&[1; 60]);
        database.merge().unwrap();
        commit(&[2; 60]);
        database.flush().unwrap();
        let runtime = database.runtime();
        let next = || runtime.run(|engine| engine.choose_leaf()).unwrap();
        let page_of = |key: &[u8]| runtime.run(|engine| engine.place_of(table, key)).unwrap().page;
        assert!(next().is_some());
        let waiting: Vec<_> =
            runtime.engine().planner.found.leaves.iter().map(|leaf| leaf.low.clone()).collect();
        let lost = page_of(waiting.last().expect("leaves that free as much"));
        runtime.engine().give_up_page(lost, &EngineError::Full);
        for _ in 0..4 * waiting.len() {
            let target = next();
            assert!(target.is_none_or(|target| page_of(&target.key) != lost), "a lost page");
        }
    }
}
