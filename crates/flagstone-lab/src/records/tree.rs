//! The B+-tree over shared pages: descents, changes of one entry, and splits.
//!
//! A leaf is split as soon as an entry does not fit, for any outcome of its pending records (H4). It
//! stays when its last entry goes. The root of a tree never moves: when it splits, its content moves
//! down. A split is one log record that holds committed content; pending records that move are
//! logged anew for their new page, by their transactions.

use std::collections::BTreeMap;

use flagstone_engine::node::{self as node_format, NodeView};
use flagstone_engine::{EngineError, Step, Stop, Wait, Xid};
use flagstone_space::{LogicalPage, Lsn};

use super::engine::Engine;
use super::log::{Edit, Part, Record};
use super::page::{self, Before, Pending, Side};
use crate::classic::page::{self as nodes, Halves, cell_of, trimmed};
use crate::classic::record::OwnCell;
use crate::classic::tree::{DEPTH_MAX, SPLITS_MAX, Seek, corrupt};

/// A split that is being planned: nothing is changed until the whole split is known.
#[derive(Debug, Default)]
struct Plan {
    /// The logged part of each page, and its image afterwards.
    shape: Vec<(Part, Vec<u8>)>,
    /// Numbers for new pages.
    numbers: Vec<LogicalPage>,
    /// Leaves that take over entries.
    leaves: Vec<LogicalPage>,
}

impl Plan {
    /// Gives an image a page of its own.
    fn add(&mut self, image: Vec<u8>) -> Step<LogicalPage> {
        let page = self.numbers.pop().ok_or(Stop::Error(EngineError::Full))?;
        self.shape.push((Part::Image { page, image: trimmed(&image) }, image));
        Ok(page)
    }
}

impl Engine {
    /// The pages from the root of a tree to a leaf.
    pub(super) fn path_to(&mut self, tree: u32, seek: Seek<'_>) -> Step<Vec<LogicalPage>> {
        let mut page = self.root(tree)?;
        let mut path = Vec::with_capacity(4);
        while path.len() < DEPTH_MAX {
            path.push(page);
            self.pool.hits += u64::from(self.pool.peek(page).is_some());
            let node = NodeView::trusted(self.image(page)?);
            if node.tree() != tree || !seek.fits(&node) {
                return Err(corrupt(page, "node lies outside its parent's range"));
            }
            if node.level() == 0 {
                return Ok(path);
            }
            page = seek.child(&node).ok_or_else(|| corrupt(page, "inner node has no child"))?;
        }
        Err(corrupt(page, "tree is deeper than any tree can be"))
    }

    /// The leaf whose range holds `key`.
    pub(super) fn leaf_of(&mut self, tree: u32, key: &[u8]) -> Step<LogicalPage> {
        let path = self.path_to(tree, Seek::At(key))?;
        path.last().copied().ok_or(Stop::Error(EngineError::NoTable))
    }

    /// Gives an entry, whose lock is held, a value or none.
    pub(super) fn perform(
        &mut self,
        xid: Xid,
        tree: u32,
        key: &[u8],
        new: Option<&OwnCell>,
    ) -> Step<()> {
        for _ in 0..SPLITS_MAX {
            let leaf = self.leaf_of(tree, key)?;
            let old = cell_of(self.image(leaf)?, key);
            if old.as_ref() == new {
                return Ok(());
            }
            self.take_slot(xid, leaf)?;
            let changed = page::with_value(self.image(leaf)?, key, new);
            let changed = changed.filter(|image| self.is_room(xid, leaf, key, (&old, new), image));
            match changed {
                Some(image) => {
                    self.change(xid, leaf, key, (old, new), image);
                    return Ok(());
                }
                None => self.split(tree, key)?,
            }
        }
        // Values before leave no room, however often the leaf is split.
        Err(EngineError::Full.into())
    }

    /// Whether a leaf has room for an entry's change beside every outcome of the others (H4).
    fn is_room(
        &mut self,
        xid: Xid,
        leaf: LogicalPage,
        key: &[u8],
        (old, new): (&Option<OwnCell>, Option<&OwnCell>),
        image: &[u8],
    ) -> bool {
        let section_size = self.content_size - self.node_size;
        let Some(side) = self.sides.get_mut(&leaf) else { return false };
        if side.section_need(xid, key, new.is_none()) > section_size {
            return false;
        }
        let is_new = !side.pending.contains_key(key);
        if is_new {
            side.pending.insert(key.to_vec(), pending(xid, old.clone(), false, Lsn::ZERO));
        }
        let has_room = side.has_room(image);
        if is_new {
            side.pending.remove(key);
        }
        has_room
    }

    /// Makes a change, with its record.
    fn change(
        &mut self,
        xid: Xid,
        leaf: LogicalPage,
        key: &[u8],
        (old, new): (Option<OwnCell>, Option<&OwnCell>),
        image: Vec<u8>,
    ) {
        let edit = Edit::between(old.as_ref(), new);
        let lsn = self.log.append(&Record::Change { xid, page: leaf, key: key.to_vec(), edit });
        self.pool.change(leaf, lsn, image);
        self.changes(xid, leaf);
        let Some(side) = self.sides.get_mut(&leaf) else { return };
        side.touched(lsn);
        let is_on_flash = side.flash.is_some() && !side.unwritten.contains(key);
        let own =
            side.pending.entry(key.to_vec()).or_insert_with(|| pending(xid, old, is_on_flash, lsn));
        debug_assert_eq!(own.xid, xid, "the entry's lock is held");
        own.last = lsn;
        own.is_written = false;
        own.is_absent = new.is_none();
    }

    /// Splits the leaf of `key` so that an entry may fit.
    fn split(&mut self, tree: u32, key: &[u8]) -> Step<()> {
        let depth = self.path_to(tree, Seek::At(key))?.len();
        self.make_room(depth + 2)?;
        let path = self.path_to(tree, Seek::At(key))?;
        let Some((leaf, above)) = path.split_last() else { return Ok(()) };
        self.learn_befores(*leaf)?;
        // A new page for each level, and one more when the root moves down.
        let numbers = self.next_pages(path.len() + 1)?.into_iter().rev().collect();
        let mut plan = Plan { numbers, ..Plan::default() };
        let halves = nodes::split(self.image(*leaf)?, key);
        let Halves { separator, left, right } =
            halves.ok_or_else(|| corrupt(*leaf, "leaf cannot be split"))?;
        if above.is_empty() {
            let halves = vec![(Vec::new(), left), (separator, right)];
            plan.leaves = self.move_down(*leaf, (tree, 1), halves, &mut plan)?;
        } else {
            plan.shape.push((Part::Below { page: *leaf, high: separator.clone() }, left));
            let sibling = plan.add(right)?;
            plan.leaves = vec![*leaf, sibling];
            self.add_children(above, vec![(separator, sibling)], &mut plan)?;
        }
        self.counts.splits += 1;
        self.install(*leaf, plan)
    }

    /// Reads the values that the pending records of a leaf replace, as far as they are not known:
    /// the records move.
    fn learn_befores(&mut self, leaf: LogicalPage) -> Step<()> {
        let members = self.sides.get(&leaf).map(Side::members).unwrap_or_default();
        if members.iter().any(|xid| self.is_committing(*xid)) {
            // Records on their way to be committed stay where they are; that state does not last.
            return Err(Stop::Wait(Wait::Memory));
        }
        let Some(side) = self.sides.get_mut(&leaf) else { return Ok(()) };
        if side.pending.values().any(|pending| pending.before == Before::OnFlash) {
            side.wants_befores = true;
            return Err(self.miss(leaf));
        }
        Ok(())
    }

    /// Gives the parts of a root that was split pages of their own, and makes them its children.
    fn move_down(
        &self,
        root: LogicalPage,
        (tree, level): (u32, u8),
        halves: Vec<nodes::NewNode>,
        plan: &mut Plan,
    ) -> Step<Vec<LogicalPage>> {
        let mut children = Vec::new();
        for (low, image) in halves {
            children.push((low, plan.add(image)?));
        }
        let rows = children.iter().map(|(low, page)| (low.as_slice(), *page));
        let image = node_format::inner((tree, level), (&[], None), rows, self.node_size);
        let image = image.ok_or_else(|| corrupt(root, "root cannot be split"))?;
        plan.shape.push((Part::Image { page: root, image: trimmed(&image) }, image));
        Ok(children.into_iter().map(|(_, page)| page).collect())
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
        let mut built = nodes::with_children(image, &[], &puts).ok_or_else(no_split)?.into_iter();
        let first = built.next().ok_or_else(no_split)?;
        let rest: Vec<nodes::NewNode> = built.collect();
        if rest.is_empty() {
            plan.shape.push((Part::Children { page: *page, puts }, first.1));
            return Ok(());
        }
        if above.is_empty() {
            let all = std::iter::once(first).chain(rest).collect();
            return self.move_down(*page, (tree, level + 1), all, plan).map(drop);
        }
        plan.shape.push((Part::Image { page: *page, image: trimmed(&first.1) }, first.1));
        let mut separators = Vec::new();
        for (low, image) in rest {
            separators.push((low, plan.add(image)?));
        }
        self.add_children(above, separators, plan)
    }

    /// Logs a split and makes it, in one go; then its pending records move.
    fn install(&mut self, leaf: LogicalPage, plan: Plan) -> Step<()> {
        let pending = self.sides.get(&leaf).map(|side| side.pending.clone()).unwrap_or_default();
        let mut parts = Vec::with_capacity(plan.shape.len());
        for (part, image) in &plan.shape {
            parts.push(match part {
                Part::Image { page, .. } if plan.leaves.contains(page) => {
                    let committed = committed(image, &pending).ok_or(EngineError::Full)?;
                    Part::Image { page: *page, image: trimmed(&committed) }
                }
                part => part.clone(),
            });
        }
        let lsn = self.log.append(&Record::Shape { parts });
        for (part, image) in plan.shape {
            let page = part.page();
            self.take_page(page);
            self.reads.mark_stale(page);
            if self.pool.peek(page).is_none() {
                self.sides.insert(page, Side::default());
            }
            self.pool.change(page, lsn, image);
            if let Some(side) = self.sides.get_mut(&page) {
                side.shape = lsn;
                side.touched(lsn);
            }
        }
        for page in plan.leaves.iter().filter(|page| **page != leaf) {
            self.take_over(*page, &pending);
            self.inherit_slots(leaf, *page);
        }
        self.stay(leaf, plan.leaves.contains(&leaf));
        Ok(())
    }

    /// Pending records in the range of a new leaf: logged anew, as its own.
    fn take_over(&mut self, page: LogicalPage, from: &BTreeMap<Vec<u8>, Pending>) {
        let Some(image) = self.pool.peek(page).map(|frame| frame.image.clone()) else { return };
        let node = NodeView::trusted(&image);
        let is_inside = |key: &[u8]| node.low() <= key && node.high().is_none_or(|high| key < high);
        for (key, before) in from.iter().filter(|(key, _)| is_inside(key)) {
            let edit = Edit::between(None, cell_of(&image, key).as_ref());
            let (xid, key) = (before.xid, key.clone());
            let lsn = self.log.append(&Record::Change { xid, page, key: key.clone(), edit });
            self.pool.patch(page, lsn, 0, &[]);
            self.changes(xid, page);
            let moved = Pending {
                is_before_on_flash: false,
                is_written: false,
                first: lsn,
                last: lsn,
                ..before.clone()
            };
            if let Some(side) = self.sides.get_mut(&page) {
                side.touched(lsn);
                side.pending.insert(key, moved);
            }
        }
    }

    /// Keeps the records that remain with the leaf that was split: none, when it is an inner node
    /// now.
    fn stay(&mut self, leaf: LogicalPage, is_leaf: bool) {
        let Some(image) = self.pool.peek(leaf).map(|frame| frame.image.clone()) else { return };
        let node = NodeView::trusted(&image);
        let is_inside = |key: &[u8]| is_leaf && node.high().is_none_or(|high| key < high);
        let Some(side) = self.sides.get_mut(&leaf) else { return };
        side.pending.retain(|key, _| is_inside(key));
        side.unwritten.retain(|key| is_inside(key));
    }
}

fn pending(xid: Xid, before: Option<OwnCell>, is_before_on_flash: bool, lsn: Lsn) -> Pending {
    let before_size = before.as_ref().map(|cell| cell.bytes.len());
    Pending {
        xid,
        before: Before::Known(before),
        before_size,
        is_before_on_flash,
        first: lsn,
        last: lsn,
        is_written: false,
        is_absent: false,
    }
}

/// A leaf as it is committed: with the values before of the pending records in its range.
fn committed(leaf: &[u8], pending: &BTreeMap<Vec<u8>, Pending>) -> Option<Vec<u8>> {
    let node = NodeView::trusted(leaf);
    let (low, high) = (node.low().to_vec(), node.high().map(<[u8]>::to_vec));
    let is_inside = |key: &[u8]| {
        low.as_slice() <= key && high.as_ref().is_none_or(|high| key < high.as_slice())
    };
    let mut image = leaf.to_vec();
    for (key, pending) in pending.iter().filter(|(key, _)| is_inside(key)) {
        let Before::Known(before) = &pending.before else { return None };
        image = page::with_value(&image, key, before.as_ref())?;
    }
    Some(image)
}
