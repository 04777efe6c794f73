//! Policies of memory: which leaf's deltas are merged next, and which frame leaves memory next.
//!
//! Owns the two seams by which a policy plugs in. The engine has a policy of its own at each: a
//! window over the trees chooses the leaf, and the least recently used frame leaves. A guest takes
//! the place of either one. Guests keep their own state, and learn of the engine by calls: they
//! never read a page themselves, and no rule of durability rests on their answers.
//!
//! ```text
//!   Options ──▶ Policies ──make──▶ Guests ─┬─ victim:      asked by the planner of merges
//!                                          └─ replacement: asked by the pool of frames
//! ```
//!
//! - **G1** A wrong answer costs time, never data: a leaf that cannot be merged is refused when its
//!   merge is prepared, and a frame that is ahead of flash is written before it leaves.
//! - **G2** A guest is asked again after every stop, with the page that its last question lacked.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use flagstone_space::LogicalPage;

pub use crate::delta::KeyRange;
pub use crate::engine::{
    Change, Chosen, Extent, LEAVES_MIN, LeafPlace, Lru, MergeSearch, MergeView, Siblings,
    UNDERFULL_PERCENT, VictimChoice,
};
use crate::engine::{Step, Table};
use crate::options::{Options, OptionsError};

/// Chooses the leaves whose deltas meet their base.
///
/// The engine tells a policy of every committed delta, and asks it for a leaf when memory is short.
/// Notifications do nothing by default: a policy implements those that its rule rests on.
pub trait VictimPolicy: fmt::Debug + Send + Sync {
    /// A delta is about to join its tree.
    fn delta_comes(&mut self, _view: &MergeView<'_>, _change: &Change<'_>) {}

    /// The delta of a key has joined its tree.
    fn delta_came(&mut self, _view: &MergeView<'_>, _table: Table, _key: &[u8]) {}

    /// Deltas of a range went; others may be left.
    fn deltas_went(&mut self, _view: &MergeView<'_>, _table: Table, _range: KeyRange<'_>) {}

    /// The leaves of a range are others now.
    fn leaves_changed(&mut self, _view: &MergeView<'_>, _table: Table, _range: KeyRange<'_>) {}

    /// A query met the leaf of a key.
    fn leaf_used(&mut self, _table: Table, _key: &[u8]) {}

    /// The base of a leaf came to memory, with so many used bytes.
    fn base_came(&mut self, _page: LogicalPage, _used: usize) {}

    /// Whether the policy knows of deltas that wait for the leaf of a key.
    fn knows(&self, _table: Table, _key: &[u8]) -> bool {
        false
    }

    /// Whether some leaf has to be merged, however much memory is free.
    fn has_due(&self) -> bool {
        false
    }

    /// Whether a set of leaves that was chosen together is not merged to its end.
    fn is_under_way(&self) -> bool {
        false
    }

    /// The leaf to be merged next.
    ///
    /// # Errors
    ///
    /// Stops where a question to `search` stopped; the engine asks again.
    fn choose(&mut self, search: &mut MergeSearch<'_>) -> Step<VictimChoice>;

    /// Largest memory that the policy has taken so far.
    fn bytes_peak(&self) -> usize {
        0
    }
}

/// How much a frame has to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Memory is almost full: only frames that the policy gives readily.
    Soon,
    /// Memory is full.
    Now,
}

/// Orders frames by their index, and names the frame that leaves next.
///
/// A policy never sees an image, and never evicts: the pool tells it the fate of a victim.
pub trait Replacement: fmt::Debug + Send + Sync {
    /// Frames in this order.
    fn count(&self) -> usize;

    /// A frame of `size` bytes came to memory.
    fn insert(&mut self, index: u32, page: LogicalPage, size: usize);

    /// A frame's image was replaced by a newer one.
    fn replace(&mut self, index: u32, page: LogicalPage, size: usize) {
        self.remove(index);
        self.insert(index, page, size);
    }

    /// A frame was used.
    fn touch(&mut self, index: u32);

    /// A frame left memory.
    fn remove(&mut self, index: u32);

    /// A frame is ahead of flash, or flash has caught up with it.
    fn set_dirty(&mut self, _index: u32, _is_dirty: bool) {}

    /// The frame to leave memory next.
    fn victim(&mut self, urgency: Urgency) -> Option<u32>;

    /// A frame was evicted, and a page costs so much at the moment.
    fn evicted(&mut self, _costs: AccessCosts) {}

    /// The frames of these pages stay, however old they are, and no others.
    fn keep_only(&mut self, _pages: &[LogicalPage]) {}

    /// Frames used from now on are used by background work, or by operations again.
    fn set_background(&mut self, _is_background: bool) {}

    /// Whether changes have to meet their pages before a frame leaves.
    fn is_dry(&self) -> bool {
        false
    }

    /// Memory that stays free as long as the policy has victims that it gives readily.
    fn slack(&self) -> usize {
        0
    }

    /// Whether the policy may learn of a frame's use as late as at the frame's eviction. Readers
    /// then share the engine.
    fn allows_late_touch(&self) -> bool {
        false
    }

    /// Largest memory so far of the policy's knowledge beside frames.
    fn bytes_peak(&self) -> usize {
        0
    }
}

/// Recent device time for a page, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AccessCosts {
    /// Of a read.
    pub read_ns: f64,
    /// Of a write, with its share of collection.
    pub write_ns: f64,
}

/// The guests of one engine. None stands for the engine's own policy.
#[derive(Debug, Default)]
pub struct Guests {
    /// Chooses leaves in place of the window.
    pub victim: Option<Box<dyn VictimPolicy>>,
    /// Orders leaves in memory in place of the order of last use.
    pub replacement: Option<Box<dyn Replacement>>,
}

/// Sizes of an engine that its policies may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicySizes {
    /// Memory budget in bytes.
    pub memory: usize,
    /// Bytes of a node.
    pub payload_size: usize,
}

/// A configuration of guests, from which each engine gets its own.
pub trait PolicySet: Any + fmt::Debug + Send + Sync {
    /// New guests for one engine.
    fn guests(&self, sizes: PolicySizes) -> Guests;

    /// Checks the configuration, and that the guests can work with the options.
    ///
    /// # Errors
    ///
    /// `OutOfRange`, with the name of an option.
    fn require(&self, options: &Options) -> Result<(), OptionsError>;
}

/// The policies of an engine: its own ones, unless a set of guests is given.
///
/// Two values are equal if they have no guests, or if their configurations print alike.
#[derive(Clone, Debug, Default)]
pub struct Policies(Option<Arc<dyn PolicySet>>);

impl Policies {
    /// The policies of a set of guests.
    #[must_use]
    pub fn of(set: impl PolicySet) -> Self {
        Self(Some(Arc::new(set)))
    }

    /// The configuration, if it is a `T`.
    #[must_use]
    pub fn configuration<T: PolicySet>(&self) -> Option<&T> {
        let set: &dyn Any = &**self.0.as_ref()?;
        set.downcast_ref()
    }

    pub(crate) fn guests(&self, sizes: PolicySizes) -> Guests {
        self.0.as_ref().map_or_else(Guests::default, |set| set.guests(sizes))
    }

    pub(crate) fn require(&self, options: &Options) -> Result<(), OptionsError> {
        self.0.as_ref().map_or(Ok(()), |set| set.require(options))
    }
}

impl PartialEq for Policies {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(other)) => {
                Arc::ptr_eq(one, other) || format!("{one:?}") == format!("{other:?}")
            }
            _ => false,
        }
    }
}
