//! The B+-tree: descents, changes of one entry, and changes of shape.
//!
//! A leaf is split as soon as an entry does not fit (eager), and freed when its last entry goes. The
//! root of a tree never moves: when it splits, its content moves down.
//!
//! ```text
//! split    leaf ─▶ Fences(leaf) Image(new) Children(parent)      a full parent: Image of each half
//! root     root ─▶ Image(new) Image(new) Image(root)             and its own parent, and so on
//! free     leaf ─▶ Fences(neighbour) Children(parent) Free(leaf)
//! ```

use flagstone_engine::node::{self as node_format, NodeView};
use flagstone_engine::{EngineError, Step, Stop, Wait, Xid};
use flagstone_space::{LogicalPage, Lsn};

use super::Locking;
use super::engine::{Engine, Undo};
use super::page::{self, Edited, Halves, NoEdit};
use super::record::{Change, Edit, Part, Place, Record};

/// Where a search wants to arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Seek<'a> {
    /// The leaf whose range holds the key.
    At(&'a [u8]),
    /// The leaf that holds the largest keys below the bound, or of all.
    Below(Option<&'a [u8]>),
}

/// Whether a change is made or taken back.
#[derive(Clone, Debug)]
pub(super) enum How {
    /// By a running transaction.
    Forward(Change),
    /// By its rollback, which goes on with the record `next`.
    Undo { edit: Edit, next: Lsn },
}

/// Levels of the deepest tree that is believed.
pub(crate) const DEPTH_MAX: usize = 24;

/// Splits after which any entry fits.
pub(crate) const SPLITS_MAX: usize = 8;

/// Splits that make room for undoing; after them a change that fits is made.
const SPLITS_FOR_UNDO: usize = 4;

/// Bytes of a record beside key and values, at most.
const RECORD_OVERHEAD: usize = 48;

/// A change of shape: the logged part of each page, and its image afterwards.
type Shape = Vec<(Part, Vec<u8>)>;

pub(crate) fn corrupt(page: LogicalPage, check: &'static str) -> Stop {
    Stop::Error(EngineError::Corrupt { page, check })
}

impl Seek<'_> {
    /// Where the search goes on from an inner node.
    pub(crate) fn child(self, node: &NodeView<'_>) -> Option<LogicalPage> {
        match self {
            Seek::At(key) => node.child_for(key).map(|(_, child)| child),
            Seek::Below(bound) => node.child_below(bound).map(|(_, child)| child),
        }
    }

    /// Whether the search may pass through the node.
    pub(crate) fn fits(self, node: &NodeView<'_>) -> bool {
        match self {
            Seek::At(key) => node.low() <= key && node.high().is_none_or(|high| key < high),
            Seek::Below(None) => node.high().is_none(),
            Seek::Below(Some(bound)) => {
                node.low() < bound && node.high().is_none_or(|high| bound <= high)
            }
        }
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

    /// Changes one entry, with its record (A3).
    pub(super) fn perform(&mut self, xid: Xid, tree: u32, key: &[u8], how: &How) -> Step<()> {
        let edit = match how {
            How::Forward(change) => change.redo(),
            How::Undo { edit, .. } => edit.clone(),
        };
        for attempt in 0..SPLITS_MAX {
            let path = self.path_to(tree, Seek::At(key))?;
            let Some(leaf) = path.last().copied() else { break };
            match page::edit(self.image(leaf)?, key, &edit) {
                Ok(edited) => {
                    if attempt < SPLITS_FOR_UNDO
                        && self.takes_owed_room(xid, leaf, &edited, key, how)
                    {
                        self.split(tree, key, false)?;
                        continue;
                    }
                    let unlink = match edit {
                        Edit::Remove => self.plan_unlink(&path, key)?,
                        _ => None,
                    };
                    let lsn =
                        self.log_change(xid, Place { tree, page: leaf, key: key.to_vec() }, how)?;
                    self.apply(leaf, lsn, edited);
                    if let Some(shape) = unlink {
                        if matches!(how, How::Forward(_)) {
                            self.debts.take_page();
                        }
                        self.install(shape);
                    }
                    return Ok(());
                }
                Err(NoEdit::TooFull) => self.split(tree, key, matches!(how, How::Undo { .. }))?,
                Err(NoEdit::Mismatch) => {
                    return Err(corrupt(leaf, "leaf does not hold what a change replaces"));
                }
            }
        }
        Err(corrupt(self.root(tree)?, "an entry within the limits fits no leaf"))
    }

    /// Whether a change grows a leaf into the room that undoing may need there (A7).
    fn takes_owed_room(
        &self,
        xid: Xid,
        leaf: LogicalPage,
        edited: &Edited,
        key: &[u8],
        how: &How,
    ) -> bool {
        let (How::Forward(change), Edited::Image(image)) = (how, edited) else { return false };
        let before = self.pool.peek(leaf).map(|frame| NodeView::trusted(&frame.image));
        let node = NodeView::trusted(image);
        let grows = before.is_some_and(|it| it.used_bytes() < node.used_bytes() && it.count() > 1);
        grows && !self.leaves_owed_room(xid, image, key, &change.undo())
    }

    /// Appends the record of a change; for an undo there is always room (A7).
    fn log_change(&mut self, xid: Xid, place: Place, how: &How) -> Step<Lsn> {
        let previous = self.last_of(xid);
        match how {
            How::Forward(change) => {
                let edit = change.undo();
                self.admit_log(
                    RECORD_OVERHEAD + 2 * place.key.len() + change.size() + edit.size(),
                )?;
                let (tree, key) = (place.tree, place.key.clone());
                let change = change.clone();
                let lsn = self.append(&Record::Update { xid, previous, place, change });
                self.link(xid, lsn);
                self.push_undo(xid, Undo { lsn, tree, key, edit });
                Ok(lsn)
            }
            How::Undo { edit, next } => {
                let (undo_next, edit) = (*next, edit.clone());
                let lsn = self.append(&Record::Clr { xid, previous, undo_next, place, edit });
                self.link(xid, lsn);
                self.counts.undone += 1;
                Ok(lsn)
            }
        }
    }

    fn apply(&mut self, page: LogicalPage, lsn: Lsn, edited: Edited) {
        match edited {
            Edited::Bytes(offset, bytes) => self.pool.patch(page, lsn, offset, &bytes),
            Edited::Image(image) => self.pool.change(page, lsn, image),
        }
    }

    /// Splits the leaf of `key` so that an entry may fit.
    fn split(&mut self, tree: u32, key: &[u8], is_undo: bool) -> Step<()> {
        let depth = self.path_to(tree, Seek::At(key))?.len();
        self.make_room(depth + 1)?;
        let path = self.path_to(tree, Seek::At(key))?;
        if !is_undo {
            self.admit_pages(depth + 1)?;
            self.admit_log((depth + 1) * self.page_size)?;
        }
        let unused = self.unused_pages().to_vec();
        let shape = self.split_at(tree, key, &path).map_err(|stop| {
            // Undoing asks for one page after the other: the last that are free may suffice.
            let count = unused.len() + 1;
            self.restore_unused(unused);
            match stop {
                Stop::Wait(Wait::Pages(_)) => Stop::Wait(Wait::Pages(count)),
                stop => stop,
            }
        })?;
        self.install(shape);
        self.counts.splits += 1;
        Ok(())
    }

    /// The change of shape that splits the leaf at the end of `path`.
    fn split_at(&mut self, tree: u32, key: &[u8], path: &[LogicalPage]) -> Step<Shape> {
        let no_leaf = Stop::Error(EngineError::NoTable);
        let (leaf, above) = path.split_last().ok_or(no_leaf)?;
        let image = self.image(*leaf)?.to_vec();
        let no_split = || corrupt(*leaf, "leaf cannot be split");
        let halves = page::split(&image, key).ok_or_else(no_split)?;
        match above.is_empty() {
            true => self.split_root_leaf(tree, *leaf, halves),
            false => self.split_leaf(*leaf, above, &image, halves),
        }
    }

    fn split_leaf(
        &mut self,
        leaf: LogicalPage,
        above: &[LogicalPage],
        image: &[u8],
        halves: Halves,
    ) -> Step<Shape> {
        let Halves { separator, left, right } = halves;
        let sibling = self.take_page()?;
        let low = NodeView::trusted(image).low().to_vec();
        let fences = Part::Fences { page: leaf, low, high: Some(separator.clone()) };
        let whole = Part::Image { page: sibling, image: page::trimmed(&right) };
        let mut shape = vec![(fences, left), (whole, right)];
        self.inherit_locks(leaf, &[sibling]);
        self.add_children(above, vec![(separator, sibling)], &mut shape)?;
        Ok(shape)
    }

    fn split_root_leaf(&mut self, tree: u32, root: LogicalPage, halves: Halves) -> Step<Shape> {
        let Halves { separator, left, right } = halves;
        let parts = vec![(Vec::new(), left), (separator, right)];
        let mut shape = Shape::new();
        let below = self.move_down(root, (tree, 1), parts, &mut shape)?;
        self.inherit_locks(root, &below);
        Ok(shape)
    }

    /// Gives the parts of a root that was split pages of their own, and makes them its children.
    fn move_down(
        &mut self,
        root: LogicalPage,
        (tree, level): (u32, u8),
        parts: Vec<page::NewNode>,
        shape: &mut Shape,
    ) -> Step<Vec<LogicalPage>> {
        let mut children = Vec::new();
        for (low, image) in parts {
            let page = self.take_page()?;
            shape.push((Part::Image { page, image: page::trimmed(&image) }, image));
            children.push((low, page));
        }
        let rows = children.iter().map(|(low, page)| (low.as_slice(), *page));
        let image = node_format::inner((tree, level), (&[], None), rows, self.node_size(tree));
        let image = image.ok_or_else(|| corrupt(root, "root cannot be split"))?;
        shape.push((Part::Image { page: root, image: page::trimmed(&image) }, image));
        Ok(children.into_iter().map(|(_, page)| page).collect())
    }

    /// Adds children to the last of the nodes `path`; it may have to be split too, and so on up.
    fn add_children(
        &mut self,
        path: &[LogicalPage],
        puts: Vec<(Vec<u8>, LogicalPage)>,
        shape: &mut Shape,
    ) -> Step<()> {
        let Some((page, above)) = path.split_last() else { return Ok(()) };
        let image = self.image(*page)?;
        let node = NodeView::trusted(image);
        let (tree, level) = (node.tree(), node.level());
        let no_split = || corrupt(*page, "inner node cannot be split");
        let mut built = page::with_children(image, &[], &puts).ok_or_else(no_split)?;
        if built.len() == 1 {
            let image = built.pop().map(|part| part.1).unwrap_or_default();
            shape.push((Part::Children { page: *page, deletes: Vec::new(), puts }, image));
            return Ok(());
        }
        if above.is_empty() {
            self.move_down(*page, (tree, level + 1), built, shape)?;
            return Ok(());
        }
        let mut separators = Vec::new();
        for (low, image) in built.drain(1..).collect::<Vec<_>>() {
            let sibling = self.take_page()?;
            shape.push((Part::Image { page: sibling, image: page::trimmed(&image) }, image));
            separators.push((low, sibling));
        }
        let first = built.pop().map(|part| part.1).unwrap_or_default();
        shape.push((Part::Image { page: *page, image: page::trimmed(&first) }, first));
        self.add_children(above, separators, shape)
    }

    /// With locks on pages, new pages are locked like the one they came from (rule D13).
    fn inherit_locks(&mut self, from: LogicalPage, to: &[LogicalPage]) {
        if self.config.locking == Locking::Page {
            to.iter().for_each(|page| self.locks.inherit_page(from, *page));
        }
    }

    /// How the leaf at the end of `path` is freed when its last entry goes; none when it stays.
    ///
    /// With locks on pages it stays: its lock guards the range.
    fn plan_unlink(&mut self, path: &[LogicalPage], key: &[u8]) -> Step<Option<Shape>> {
        let [.., parent, leaf] = path else { return Ok(None) };
        let locks_pages = self.config.locking == Locking::Page;
        let node = NodeView::trusted(self.image(*leaf)?);
        if node.count() != 1 || locks_pages {
            return Ok(None);
        }
        let (low, high) = (node.low().to_vec(), node.high().map(<[u8]>::to_vec));
        let node = NodeView::trusted(self.image(*parent)?);
        let Some((index, _)) = node.child_for(key).filter(|_| node.count() > 1) else {
            return Ok(None);
        };
        let neighbour = if index > 0 { index - 1 } else { 1 };
        let Some(page) = node.child(neighbour) else { return Ok(None) };
        let mut separator = Vec::new();
        node.key_into(index.max(1), &mut separator);
        let puts = if index > 0 { Vec::new() } else { vec![(low.clone(), page)] };
        let node = NodeView::trusted(self.image(page)?);
        let (low, high) = match index {
            0 => (low, node.high().map(<[u8]>::to_vec)),
            _ => (node.low().to_vec(), high),
        };
        Ok(self.unlinked(*parent, *leaf, Part::Fences { page, low, high }, separator, puts))
    }

    /// The shape without `leaf`, whose range the page of `fences` takes over.
    fn unlinked(
        &self,
        parent: LogicalPage,
        leaf: LogicalPage,
        fences: Part,
        separator: Vec<u8>,
        puts: Vec<(Vec<u8>, LogicalPage)>,
    ) -> Option<Shape> {
        let children = Part::Children { page: parent, deletes: vec![separator], puts };
        let mut shape = Shape::new();
        for part in [fences, children] {
            let image = &self.pool.peek(part.page())?.image;
            let image = page::reshape(image, &part, self.page_size)?;
            shape.push((part, image));
        }
        shape.push((Part::Free { page: leaf }, Vec::new()));
        Some(shape)
    }

    /// Logs a change of shape and makes it, in one go (A5).
    pub(super) fn install(&mut self, shape: Shape) {
        let parts = shape.iter().map(|(part, _)| part.clone()).collect();
        let lsn = self.append(&Record::Shape { parts });
        for (part, image) in shape {
            match part {
                Part::Free { page } => {
                    self.pool.remove(page);
                    self.mark_stale(page);
                    self.freed.push_back((lsn, page));
                }
                other => self.pool.change(other.page(), lsn, image),
            }
        }
    }
}
