//! Questions of a guest that chooses leaves: for an answer a page may have to be read.
//!
//! Never decides anything: the answer of a guest is a hint (G1).

use std::collections::VecDeque;

use crate::engine::merge::{Merges, Reason, Target};
use crate::engine::step::Step;
use crate::engine::store::catalog::Table;
use crate::engine::store::descent::Seek;
use crate::engine::store::guest::{LeafPlace, MergeView};
use crate::node::NodeView;

/// How many leaves below an inner node a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The leaf of the key alone.
    Leaf,
    /// Every leaf below the same inner node.
    Siblings,
}

/// Leaves below one inner node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Siblings {
    /// The leaves that were asked for, in key order.
    pub leaves: Vec<LeafPlace>,
    /// Key at which the next inner node begins; none at the end of the tree.
    pub next: Option<Vec<u8>>,
}

/// Leaf that a guest has chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Table of the leaf.
    pub table: Table,
    /// A key of the leaf.
    pub key: Vec<u8>,
    /// First keys of leaves of the same table that are to be merged after it, in place of those that
    /// an earlier choice left; none leaves these.
    pub joined: Option<Vec<Vec<u8>>>,
}

/// Answer of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VictimChoice {
    /// This leaf.
    Leaf(Chosen),
    /// No leaf can be merged now.
    None,
    /// The leaf that the engine's window chooses.
    Window,
}

/// Answers of the engine for which a page may have to be read.
#[derive(Debug)]
pub struct MergeSearch<'a> {
    merges: &'a mut Merges,
}

impl MergeSearch<'_> {
    /// The same answers as a view.
    #[must_use]
    pub fn view(&self) -> MergeView<'_> {
        MergeView { store: self.merges }
    }

    /// Whether memory is short, as far as the engine alone can say.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.merges.is_short()
    }

    /// Leaves below the inner node of a key; nothing below it is read.
    ///
    /// # Errors
    ///
    /// Stops for an inner node that is not in memory.
    pub fn siblings(&mut self, table: Table, key: &[u8], extent: Extent) -> Step<Siblings> {
        let index = self.merges.node_for(table, Seek::At(key), 1)?;
        let frame = self.merges.pool.frame(index);
        let view = NodeView::trusted(&frame.image);
        let next = view.high().map(<[u8]>::to_vec);
        let parent = frame.page;
        if view.is_leaf() {
            let low = view.low().to_vec();
            let leaf = LeafPlace { low, high: next.clone(), page: parent, parent, child: 0 };
            return Ok(Siblings { leaves: vec![leaf], next });
        }
        let children = match view.child_for(key) {
            Some((child, _)) if extent == Extent::Leaf => child..child + 1,
            _ => 0..view.count(),
        };
        let leaves = children.filter_map(|child| {
            let low = if child == 0 { view.low().to_vec() } else { view.separator(child) };
            let high = (child + 1 < view.count()).then(|| view.separator(child + 1));
            let page = view.child(child)?;
            Some(LeafPlace { low, high: high.or_else(|| next.clone()), page, parent, child })
        });
        Ok(Siblings { leaves: leaves.collect(), next: next.clone() })
    }

    /// Used bytes of the leaf of a key. Pages that were read for this may leave memory again.
    ///
    /// # Errors
    ///
    /// Stops for a page that is not in memory.
    pub fn used_bytes(&mut self, table: Table, key: &[u8]) -> Step<usize> {
        let index = self.merges.leaf_for(table, Seek::At(key))?;
        let used = NodeView::trusted(&self.merges.pool.frame(index).image).used_bytes();
        self.merges.pool.let_all_go();
        Ok(used)
    }
}

impl Merges {
    /// Asks the guest for a leaf; the window's turn where there is no guest.
    pub(super) fn ask_guest(&mut self) -> Step<GuestAnswer> {
        let Some(mut guest) = self.guest.take() else { return Ok(GuestAnswer::Window) };
        let choice = guest.choose(&mut MergeSearch { merges: self });
        self.guest = Some(guest);
        Ok(match choice? {
            VictimChoice::None => GuestAnswer::None,
            VictimChoice::Window => GuestAnswer::Window,
            VictimChoice::Leaf(Chosen { table, key, joined }) => {
                if let Some(joined) = joined {
                    let targets = joined.into_iter();
                    let targets = targets.map(|key| Target::new(table, key, Reason::Joined));
                    self.planner.joined = targets.collect::<VecDeque<_>>();
                }
                GuestAnswer::Leaf(Target::new(table, key, Reason::Memory))
            }
        })
    }
}

/// Answer of a guest to the planner.
pub(super) enum GuestAnswer {
    Leaf(Target),
    None,
    Window,
}
