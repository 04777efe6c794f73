//! The B+-tree over shadow pages: descents, changes of one entry, and splits.
//!
//! A leaf is split as soon as an entry does not fit (eager). It stays when its last entry goes: its
//! lock guards the range. The root of a tree never moves: when it splits, its content moves down.

use flagstone_engine::lock::Mode;
use flagstone_engine::node::{self as node_format, NodeView};
use flagstone_engine::{EngineError, Step, Stop, Xid};
use flagstone_space::LogicalPage;

use super::engine::Engine;
use crate::classic::page::{self, Edited, NoEdit};
use crate::classic::record::Edit;
use crate::classic::tree::{DEPTH_MAX, SPLITS_MAX, Seek, corrupt};

/// A split that is being planned: nothing is changed until the whole split is known and locked
/// (H3).
#[derive(Debug, Default)]
struct Plan {
    /// Images of pages that exist.
    changed: Vec<(LogicalPage, Vec<u8>)>,
    /// Images of new pages.
    new: Vec<(LogicalPage, Vec<u8>)>,
    /// Numbers for new pages.
    numbers: Vec<LogicalPage>,
}

impl Plan {
    /// Gives an image a page of its own.
    fn add(&mut self, image: Vec<u8>) -> Step<LogicalPage> {
        let page = self.numbers.pop().ok_or(Stop::Error(EngineError::Full))?;
        self.new.push((page, image));
        Ok(page)
    }
}

impl Engine {
    /// The pages from the root of a tree to a leaf, none of them changed by another transaction
    /// (H2); the leaf is about to be locked as `mode`.
    pub(super) fn path_to(
        &mut self,
        xid: Xid,
        tree: u32,
        seek: Seek<'_>,
        mode: Mode,
    ) -> Step<Vec<LogicalPage>> {
        let mut page = self.root(tree)?;
        let mut path = Vec::with_capacity(4);
        let mut is_leaf = self.is_leaf_in_memory(page);
        while path.len() < DEPTH_MAX {
            path.push(page);
            self.see(xid, page, if is_leaf { mode } else { Mode::Shared })?;
            self.pool.hits += u64::from(self.pool.peek(page).is_some());
            let node = NodeView::trusted(self.image(page)?);
            if node.tree() != tree || !seek.fits(&node) {
                return Err(corrupt(page, "node lies outside its parent's range"));
            }
            if node.level() == 0 {
                return Ok(path);
            }
            is_leaf = node.level() == 1;
            page = seek.child(&node).ok_or_else(|| corrupt(page, "inner node has no child"))?;
        }
        Err(corrupt(page, "tree is deeper than any tree can be"))
    }

    /// Whether a page is in memory and a leaf; its content may be another transaction's.
    fn is_leaf_in_memory(&self, page: LogicalPage) -> bool {
        self.pool.peek(page).is_some_and(|frame| NodeView::trusted(&frame.image).level() == 0)
    }

    /// The leaf where a search arrives, locked.
    pub(super) fn leaf_to(
        &mut self,
        xid: Xid,
        tree: u32,
        seek: Seek<'_>,
        mode: Mode,
    ) -> Step<LogicalPage> {
        let path = self.path_to(xid, tree, seek, mode)?;
        let leaf = path.last().copied().ok_or(Stop::Error(EngineError::NoTable))?;
        self.lock(xid, leaf, mode)?;
        Ok(leaf)
    }

    /// Changes one entry.
    pub(super) fn perform(&mut self, xid: Xid, tree: u32, key: &[u8], edit: &Edit) -> Step<()> {
        for _ in 0..SPLITS_MAX {
            let leaf = self.leaf_to(xid, tree, Seek::At(key), Mode::Exclusive)?;
            match page::edit(self.image(leaf)?, key, edit) {
                Ok(Edited::Bytes(offset, bytes)) => {
                    self.patch_page(xid, leaf, offset, &bytes);
                    return Ok(());
                }
                Ok(Edited::Image(image)) => {
                    self.change(xid, leaf, image);
                    return Ok(());
                }
                Err(NoEdit::TooFull) => self.split(xid, tree, key)?,
                Err(NoEdit::Mismatch) => {
                    return Err(corrupt(leaf, "leaf does not hold what a change replaces"));
                }
            }
        }
        Err(corrupt(self.root(tree)?, "an entry within the limits fits no leaf"))
    }

    /// Splits the leaf of `key`, which is locked, so that an entry may fit.
    fn split(&mut self, xid: Xid, tree: u32, key: &[u8]) -> Step<()> {
        let depth = self.path_to(xid, tree, Seek::At(key), Mode::Exclusive)?.len();
        self.make_room(depth + 2)?;
        let path = self.path_to(xid, tree, Seek::At(key), Mode::Exclusive)?;
        let plan = self.plan(tree, key, &path)?;
        for (page, _) in &plan.changed {
            self.lock(xid, *page, Mode::Exclusive)?;
        }
        for (page, _) in &plan.new {
            // No other transaction knows the number: the lock is there at once.
            self.lock(xid, *page, Mode::Exclusive)?;
            self.take_page(xid, *page);
        }
        for (page, image) in plan.changed.into_iter().chain(plan.new) {
            self.change(xid, page, image);
        }
        self.counts.splits += 1;
        Ok(())
    }

    fn plan(&mut self, tree: u32, key: &[u8], path: &[LogicalPage]) -> Step<Plan> {
        let Some((leaf, above)) = path.split_last() else { return Ok(Plan::default()) };
        // A new page for each level, and one more when the root moves down.
        let numbers = self.next_pages(path.len() + 1)?.into_iter().rev().collect();
        let mut plan = Plan { numbers, ..Plan::default() };
        let halves = page::split(self.image(*leaf)?, key);
        let halves = halves.ok_or_else(|| corrupt(*leaf, "leaf cannot be split"))?;
        let page::Halves { separator, left, right } = halves;
        if above.is_empty() {
            let halves = vec![(Vec::new(), left), (separator, right)];
            self.move_down(*leaf, (tree, 1), halves, &mut plan)?;
        } else {
            let sibling = plan.add(right)?;
            plan.changed.push((*leaf, left));
            self.add_children(above, vec![(separator, sibling)], &mut plan)?;
        }
        Ok(plan)
    }

    /// Gives the parts of a root that was split pages of their own, and makes them its children.
    fn move_down(
        &self,
        root: LogicalPage,
        (tree, level): (u32, u8),
        halves: Vec<page::NewNode>,
        plan: &mut Plan,
    ) -> Step<()> {
        let mut children = Vec::new();
        for (low, image) in halves {
            children.push((low, plan.add(image)?));
        }
        let rows = children.iter().map(|(low, page)| (low.as_slice(), *page));
        let image = node_format::inner((tree, level), (&[], None), rows, self.page_size);
        let image = image.ok_or_else(|| corrupt(root, "root cannot be split"))?;
        plan.changed.push((root, image));
        Ok(())
    }

    /// Adds children to the last of the nodes `path`; it may have to be split too, and so on up.
    fn add_children(
        &mut self,
        path: &[LogicalPage],
        puts: Vec<(Vec<u8>, LogicalPage)>,
        plan: &mut Plan,
    ) -> Step<()> {
        let Some((page, above)) = path.split_last() else { return Ok(()) };
        let image = self.image(*page)?;
        let node = NodeView::trusted(image);
        let (tree, level) = (node.tree(), node.level());
        let no_split = || corrupt(*page, "inner node cannot be split");
        let built = page::with_children(image, &[], &puts).ok_or_else(no_split)?;
        if built.len() > 1 && above.is_empty() {
            return self.move_down(*page, (tree, level + 1), built, plan);
        }
        let mut built = built.into_iter();
        let first = built.next().ok_or_else(no_split)?.1;
        plan.changed.push((*page, first));
        let mut separators = Vec::new();
        for (low, image) in built {
            separators.push((low, plan.add(image)?));
        }
        if separators.is_empty() {
            return Ok(());
        }
        self.add_children(above, separators, plan)
    }
}
