//! From a key to the frame of its leaf, and from a page read to a frame.

use flagstone_space::{LogicalPage, Lsn, PageInfo};

use crate::bugs::SeededBug;
use crate::delta::KeyRange;
use crate::engine::step::{Fetch, Step, Stop};
use crate::engine::store::Store;
use crate::engine::store::catalog::Table;
use crate::engine::store::pool::{Class, FrameIndex};
use crate::engine::store::scan::{Direction, ScanRange};
use crate::error::EngineError;
use crate::node;
use crate::node::NodeView;

/// A leaf as its parent names it: page and fences.
pub(in crate::engine) struct LeafPlace {
    pub(in crate::engine) page: LogicalPage,
    pub(in crate::engine) low: Vec<u8>,
    pub(in crate::engine) high: Option<Vec<u8>>,
}

/// Where a search wants to arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Seek<'a> {
    /// The node whose range holds the key.
    At(&'a [u8]),
    /// The node that holds the largest keys below the bound (none = the last node).
    Below(Option<&'a [u8]>),
}

/// Levels of the deepest tree that is believed: bounds a walk over damaged nodes.
pub(crate) const DEPTH_MAX: u8 = 24;

impl<'a> Seek<'a> {
    /// The leaf at the near end of a range.
    pub(crate) fn near(range: &'a ScanRange, direction: Direction) -> Self {
        match direction {
            Direction::Forward => Self::At(&range.low),
            Direction::Backward => Self::Below(range.high.as_deref()),
        }
    }

    /// The child of the inner node `page` that leads to the target, and the child's place.
    pub(crate) fn child_of(
        self,
        page: LogicalPage,
        view: &NodeView<'_>,
    ) -> Result<(usize, LogicalPage), EngineError> {
        let missing = EngineError::Corrupt { page, check: "inner node has no child" };
        self.child(view).ok_or(missing)
    }

    fn child(self, view: &NodeView<'_>) -> Option<(usize, LogicalPage)> {
        match self {
            Seek::At(key) => view.child_for(key),
            Seek::Below(bound) => view.child_below(bound),
        }
    }
}

/// Fences that a node must have: the bounds of its place in its parent, or of a root (rule D15).
///
/// A node with other fences is of another time than its parent: damage took the version that belongs
/// there, and an older one was found. Keys that it holds outside its place, or lacks inside it, are not
/// to be believed.
fn has_its_fences(view: &NodeView<'_>, place: Option<(&NodeView<'_>, usize)>) -> bool {
    match place {
        None => view.low().is_empty() && view.high().is_none(),
        Some((parent, index)) => {
            parent.is_separator(index, view.low())
                && match view.high() {
                    Some(high) if index + 1 < parent.count() => {
                        parent.is_separator(index + 1, high)
                    }
                    high => index + 1 == parent.count() && high == parent.high(),
                }
        }
    }
}

/// Passes when a node has the tree, the level and the fences that its place in its parent, or at the
/// root, demands.
pub(crate) fn check_node(
    table: Table,
    page: LogicalPage,
    view: &NodeView<'_>,
    place: Option<(&NodeView<'_>, usize)>,
) -> Result<(), EngineError> {
    if view.tree() == table.id && has_its_fences(view, place) {
        return Ok(());
    }
    Err(EngineError::Corrupt { page, check: "node differs from its parent's separators" })
}

impl Store {
    /// The leaf of `key`, without reading it.
    pub(in crate::engine) fn place_of(&mut self, table: Table, key: &[u8]) -> Step<LeafPlace> {
        let index = self.node_for(table, Seek::At(key), 1)?;
        let frame = self.pool.frame(index);
        let view = NodeView::trusted(&frame.image);
        if view.is_leaf() {
            return Ok(LeafPlace { page: frame.page, low: Vec::new(), high: None });
        }
        let (place, page) =
            view.child_for(key).ok_or_else(|| corrupt(frame.page, "inner node has no child"))?;
        Ok(LeafPlace { page, low: view.separator(place), high: end_of_child(&view, key) })
    }

    /// The frame of the leaf that `seek` names.
    ///
    /// # Errors
    ///
    /// `Miss` when a node on the way is not in memory.
    pub(crate) fn leaf_for(&mut self, table: Table, seek: Seek<'_>) -> Step<FrameIndex> {
        let leaf = self.node_for(table, seek, 0);
        match &leaf {
            Ok(_) => self.pool.note_found(),
            Err(Stop::Miss(_)) => self.pool.note_missed(),
            Err(_) => {}
        }
        leaf
    }

    /// The frame of the node at `level` that `seek` names; the root when the tree is lower.
    pub(crate) fn node_for(&mut self, table: Table, seek: Seek<'_>, level: u8) -> Step<FrameIndex> {
        let mut page = self.root_of(table)?;
        let mut parent: Option<(FrameIndex, usize)> = None;
        for _ in 0..DEPTH_MAX {
            let index = self.frame_of(page)?;
            let view_of = |(at, place)| (NodeView::trusted(&self.pool.frame(at).image), place);
            let view = self.node_at(table, index, parent.map(view_of))?;
            if view.level() <= level {
                return Ok(index);
            }
            let (place, child) = seek.child_of(page, &view)?;
            (parent, page) = (Some((index, place)), child);
        }
        Err(corrupt(page, "tree is deeper than any tree can be"))
    }

    /// Where the child of `key` ends in the node at `level`, or where the node ends if it is a leaf;
    /// none at the end of the tree.
    pub(crate) fn end_of_child(
        &mut self,
        table: Table,
        key: &[u8],
        level: u8,
    ) -> Step<Option<Vec<u8>>> {
        let table = self.own(table)?;
        let index = self.node_for(table, Seek::At(key), level)?;
        Ok(end_of_child(&NodeView::trusted(&self.pool.frame(index).image), key))
    }

    /// The node in a frame, if it fits its place in `parent`.
    fn node_at(
        &self,
        table: Table,
        index: FrameIndex,
        parent: Option<(NodeView<'_>, usize)>,
    ) -> Step<NodeView<'_>> {
        let frame = self.pool.frame(index);
        let view = NodeView::trusted(&frame.image);
        let place = parent.as_ref().map(|(view, place)| (view, *place));
        check_node(table, frame.page, &view, place)?;
        Ok(view)
    }

    /// The leaf's frame if the whole path to it is in memory.
    pub(crate) fn leaf_at_hand(&self, table: Table, key: &[u8]) -> Option<FrameIndex> {
        self.leaf_sought(table, Seek::At(key), |_| {}).ok()
    }

    /// The frame of the leaf that `seek` names, or the page on the way that is not in memory; neither
    /// where the way is damaged. Each frame on the way is shown to `see`.
    pub(in crate::engine) fn leaf_sought(
        &self,
        table: Table,
        seek: Seek<'_>,
        mut see: impl FnMut(FrameIndex),
    ) -> Result<FrameIndex, Option<LogicalPage>> {
        let mut page = self.root_of(table).map_err(|_| None)?;
        let mut parent = None;
        for _ in 0..DEPTH_MAX {
            let index = self.pool.peek(page).ok_or(Some(page))?;
            see(index);
            let view = self.node_at(table, index, parent).map_err(|_| None)?;
            if view.level() == 0 {
                return Ok(index);
            }
            let (place, child) = seek.child(&view).ok_or(None)?;
            (parent, page) = (Some((view, place)), child);
        }
        Err(None)
    }

    pub(crate) fn root_of(&self, table: Table) -> Step<LogicalPage> {
        self.tree(table)?.root.ok_or(Stop::Error(EngineError::NoTable))
    }

    /// The frame of `page`, or a miss that is noted as under way.
    pub(crate) fn frame_of(&mut self, page: LogicalPage) -> Step<FrameIndex> {
        if let Some(index) = self.pool.get(page) {
            self.pool.hits += 1;
            return Ok(index);
        }
        self.pool.misses += 1;
        Err(Stop::Miss(Fetch::Page(page, self.reads.begin(page))))
    }

    /// A read that was asked for failed: no page will come.
    pub fn fetch_failed(&mut self, fetch: Fetch) {
        if let Fetch::Page(page, number) = fetch {
            self.reads.end(page, number);
        }
    }

    /// Whether a group whose record is not durable is about to replace a page: until then the page
    /// reads as before.
    fn awaits_install(&self, page: LogicalPage) -> bool {
        self.open_groups().any(|job| job.replaces(page))
    }

    pub(in crate::engine) fn fill_page(
        &mut self,
        page: LogicalPage,
        info: PageInfo,
        mut image: Vec<u8>,
    ) -> Result<(), EngineError> {
        self.widen(&mut image);
        let fault = |_| EngineError::Corrupt { page, check: "node does not parse" };
        let view = NodeView::parse(&image).map_err(fault)?;
        let (tree, level) = (view.tree(), view.level());
        if self.trees.get(tree as usize).is_none() {
            return Err(EngineError::Corrupt { page, check: "node of a tree that does not exist" });
        }
        if self.groups.busy.contains(&page)
            && self.hides_from_snapshot(info.lsn)
            && !self.awaits_install(page)
        {
            // A merge has written the page but is not installed: snapshots still need the version that
            // it replaces.
            return Ok(());
        }
        self.obstacles.found_again(page);
        if level == 0 {
            self.meet_base(page, info.lsn, &image);
            self.place(page, info.lsn, image, Class::Leaf);
            self.note_version(page, Some(&info));
            return Ok(());
        }
        let of_tree = self.trees.get(tree as usize);
        let applied = of_tree.and_then(|tree| tree.structure.apply(&image, info.lsn));
        let (image, lsn) = applied.unwrap_or((image, info.lsn));
        self.place(page, lsn, image, Class::Inner);
        Ok(())
    }

    /// A root that was never written is an empty leaf.
    pub(in crate::engine) fn fill_absent(&mut self, page: LogicalPage) -> Result<(), EngineError> {
        let Some(tree) = self.tree_with_root(page) else {
            return Err(missing(page));
        };
        let image = node::empty_leaf(tree, self.payload_size);
        self.place(page, Lsn::ZERO, image, Class::Leaf);
        Ok(())
    }

    pub(crate) fn place(&mut self, page: LogicalPage, lsn: Lsn, image: Vec<u8>, class: Class) {
        if class == Class::Inner {
            self.note_level(NodeView::trusted(&image).level());
        }
        self.pool.keep_held();
        let is_background = self.pool.is_background();
        self.pool.set_background(is_background || self.pool.is_held(page));
        let index = self.pool.insert(page, lsn, image, class);
        self.pool.set_background(is_background);
        if class == Class::Leaf {
            self.tell_base(index);
        }
        self.pool.shrink(self.frames_max());
        self.note_memory();
    }

    /// Restart put deltas back without knowing the content of their bases: now it is known (rule D2).
    pub(in crate::engine) fn meet_base(&mut self, page: LogicalPage, lsn: Lsn, image: &[u8]) {
        let view = NodeView::trusted(image);
        debug_assert_eq!(view.level(), 0, "only leaves have user deltas, {page:?}");
        let range = KeyRange { low: view.low(), high: view.high() };
        self.drop_redundant(Table::of(view.tree()), range, lsn);
    }

    /// Drops deltas of a range that restart put back although the range's base, complete to `lsn`,
    /// holds them.
    pub(in crate::engine) fn drop_redundant(
        &mut self,
        table: Table,
        range: KeyRange<'_>,
        lsn: Lsn,
    ) {
        let is_possible = self.frontier.recovered > Lsn::ZERO && lsn > Lsn::ZERO;
        if is_possible && !self.bugs.has(SeededBug::KeepStaleDeltas) {
            // The leaf is the same: its group changes only by the deltas that go.
            if self.drop_deltas(table, range, lsn) > 0 {
                self.tell_deltas_went(table, range);
            }
        }
    }

    /// Removes the deltas of a range that its base holds; the leaves of the range may be others now.
    pub(crate) fn remove_deltas(&mut self, table: Table, range: KeyRange<'_>, upto: Lsn) -> usize {
        let count = self.drop_deltas(table, range, upto);
        self.tell_deltas_went(table, range);
        count
    }

    fn drop_deltas(&mut self, table: Table, range: KeyRange<'_>, upto: Lsn) -> usize {
        let Some(tree) = self.trees.get_mut(table.id as usize) else { return 0 };
        let before = tree.deltas.size();
        let totals = tree.deltas.remove_range(range, upto);
        let after = tree.deltas.size();
        let waiting = self.runs.pages_left() * self.payload_size;
        self.room.growth.merged(totals.bytes, self.memory.deltas + waiting);
        self.note_deltas_size(before, after);
        totals.count
    }
}

/// Where the child of `key` ends in an inner node, or where a leaf does.
pub(crate) fn end_of_child(view: &NodeView<'_>, key: &[u8]) -> Option<Vec<u8>> {
    match view.child_for(key) {
        Some((place, _)) if place + 1 < view.count() => Some(view.separator(place + 1)),
        _ => view.high().map(<[u8]>::to_vec),
    }
}

pub(crate) fn corrupt(page: LogicalPage, check: &'static str) -> Stop {
    Stop::Error(EngineError::Corrupt { page, check })
}

pub(in crate::engine) fn missing(page: LogicalPage) -> EngineError {
    EngineError::Corrupt { page, check: "page is referred to but was never written" }
}
