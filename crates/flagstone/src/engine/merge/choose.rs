//! Choosing: the leaf whose merge frees most memory for each page that it writes.

use flagstone_space::LogicalPage;

use super::{Reason, Target, WINDOWS_MAX, WriteJob};
use crate::delta::KeyRange;
use crate::engine::descent::Seek;
use crate::engine::{Engine, Step, Stop, Table};
use crate::node::NodeView;

impl Engine {
    pub(super) fn merge_job(&mut self) -> Step<Option<WriteJob>> {
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
    pub(in crate::engine) fn touch_held(&mut self) {
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
