//! B+-tree pages: the layout of entries in the payload of a logical page.
//!
//! Owns the bytes of leaves and inner nodes: reading them (`NodeView`), building them, and making
//! the new image of a leaf out of its base and its deltas (step one of a merge). Never reads or
//! writes flash, never picks a page, never decides when to merge.
//!
//! ```text
//! 0        20         +low       +high
//! ┌────────┬──────────┬──────────┬──────────────────────────────┬──────────────┐
//! │ header │ low key  │ high key │ entries, ascending           │ 0xFF to the  │
//! │        │          │ (or none)│ fixed: suffix value …        │ page's end   │
//! │        │          │          │ slotted: offsets[2], records │              │
//! └────────┴──────────┴──────────┴──────────────────────────────┴──────────────┘
//! record, leaf  = suffix_size value_size*2+is_ref suffix value     (varints)
//! record, inner = child[4] suffix                                  (reaches to the next offset)
//! ```
//!
//! A key is the prefix that both fences share, then its suffix. The rest of the page stays 0xFF, so
//! that flash leaves those cells unprogrammed.
//!
//! Invariants:
//! - N1: keys ascend strictly and lie in `[low, high)`; no high key means infinity, an empty low
//!   key is below every key.
//! - N2: the first separator of an inner node is its low key and takes no bytes; child `i` covers
//!   the keys from separator `i` to the next.
//! - N3: the fixed layout holds only inline values of one size under suffixes of one size; a build
//!   takes it whenever the entries allow.
//! - N4: `NodeView::parse` accepts only pages that keep N1 to N3 and stay inside their bytes;
//!   afterwards no access can fail. On other bytes access gives empty slices, never a panic.
//! - N5: any entry within `key_size_max` and `value_size_max` fits an empty page under any fences,
//!   and so do two children: a build always ends. Each fence may take a quarter of the page, key
//!   and value together half of it.

mod build;
mod check;
mod inner;
mod insert;
mod layout;
mod merge;
#[cfg(test)]
mod tests;
mod view;
mod whole;

use flagstone_space::LogicalPage;

pub use build::empty_leaf;
pub(crate) use build::{build_inner, build_leaves, separator_of};
pub use inner::inner_with;
pub(crate) use inner::join_inner;
pub use insert::with_inserted;
pub(crate) use merge::{
    MergeRequest, NoOutline, fold_in_place, merge_leaf, merge_leaf_alone, merge_leaves,
};
pub use view::NodeView;
pub(crate) use view::Shape;
pub use whole::{inner, leaf};

/// Smallest payload a node may have, in bytes.
pub(crate) const PAGE_SIZE_MIN: usize = 464;
/// Largest payload a node may have, in bytes: offsets have 16 bits.
pub(crate) const PAGE_SIZE_MAX: usize = 32_768;

/// Bytes of a quarter page kept back for header and bookkeeping (N5).
const QUARTER_RESERVE: usize = 8;

/// A quarter of a page of `page_size`, less its share of header and bookkeeping.
const fn quarter(page_size: usize) -> usize {
    (page_size / 4).saturating_sub(QUARTER_RESERVE)
}

/// Longest key a page of `page_size` takes, in bytes.
#[must_use]
pub const fn key_size_max(page_size: usize) -> usize {
    if quarter(page_size) < 1024 { quarter(page_size) } else { 1024 }
}

/// Longest inline value that a page of `page_size` takes under a key of `key_size`, in bytes.
#[must_use]
pub const fn value_size_max(page_size: usize, key_size: usize) -> usize {
    (2 * quarter(page_size)).saturating_sub(key_size)
}

/// Longest descriptor that a page of `page_size` takes under any key, in bytes.
pub(crate) const fn descriptor_size_max(page_size: usize) -> usize {
    quarter(page_size)
}

const _: () = assert!(
    layout::HEADER_SIZE + 2 + 3 + 3 <= 4 * QUARTER_RESERVE,
    "header, slot and sizes of one entry fit what four quarters keep back (N5)"
);

/// A value in a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueRef<'a> {
    /// The bytes themselves.
    Inline(&'a [u8]),
    /// The descriptor of a value on pages of its own.
    Ref(&'a [u8]),
}

impl<'a> ValueRef<'a> {
    /// The bytes in the leaf: value or descriptor.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        match self {
            ValueRef::Inline(bytes) | ValueRef::Ref(bytes) => bytes,
        }
    }

    /// Whether the bytes are the descriptor of an out-of-line value.
    #[must_use]
    pub fn is_ref(&self) -> bool {
        matches!(self, Self::Ref(_))
    }
}

/// Fill of the pages of a build that needs more than one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FillPolicy {
    /// Even: the next inserts may fall anywhere.
    Balanced,
    /// Full from the left: the next inserts fall behind the last key.
    Append,
    /// A page ends before entry `end`, and pages are full up to there: the next inserts fall there.
    /// Even when that would take more pages.
    Behind {
        /// First entry behind the place of the next inserts.
        end: usize,
    },
}

/// A page that was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// Low fence: the separator that leads to the page.
    pub low_key: Vec<u8>,
    /// Payload, of the full page size.
    pub image: Vec<u8>,
}

/// Reason for which a page cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// No node has this size.
    #[error("no node has a payload of {page_size} bytes")]
    PageSize {
        /// Size asked for.
        page_size: usize,
    },
    /// A key or a fence is longer than the page allows.
    #[error("key of {size} bytes where {size_max} are possible")]
    KeyTooLarge {
        /// Size of the key.
        size: usize,
        /// `key_size_max` of the page.
        size_max: usize,
    },
    /// The value is too large for the leaf and must be stored out of line.
    #[error("inline value of {size} bytes where {size_max} are possible")]
    ValueTooLarge {
        /// Size of the value.
        size: usize,
        /// `value_size_max` of the page under its key, or `descriptor_size_max`.
        size_max: usize,
    },
    /// A patch meets an out-of-line value that the caller could not read.
    #[error("patch of an out-of-line value that is not at hand")]
    OutOfLinePatch,
    /// The changes leave an inner node whose first child does not cover its low key.
    #[error("no child covers the low key of an inner node")]
    LowUncovered,
    /// An entry fits no page: N5 is broken.
    #[error("an entry within the limits fits no page")]
    NoRoom,
}

/// The check that a page failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeFault {
    /// The page is shorter than a header, or has no valid node size.
    #[error("not the size of a node")]
    Size,
    /// The first byte is unknown, or of another format version.
    #[error("not a node of this format version")]
    Magic,
    /// Unknown flags, or a level that does not go with the kind.
    #[error("kind and level contradict each other")]
    Kind,
    /// Fences reach past the page, are out of order, or do not share the prefix.
    #[error("fence keys are damaged")]
    Fences,
    /// Entries reach past the page.
    #[error("entries reach past the page")]
    Bounds,
    /// The record behind slot `index` does not fill its place.
    #[error("record {index} does not fill its place")]
    Record {
        /// Index of the entry.
        index: usize,
    },
    /// Entry `index` is not above its predecessor, or outside the fences (N1).
    #[error("entry {index} is out of order")]
    Order {
        /// Index of the entry.
        index: usize,
    },
    /// An inner node without children.
    #[error("inner node without children")]
    Childless,
}

/// Payload of a key while a page is being built.
#[derive(Clone, Copy, Debug)]
enum Payload<'a> {
    Value(ValueRef<'a>),
    Child(LogicalPage),
}
