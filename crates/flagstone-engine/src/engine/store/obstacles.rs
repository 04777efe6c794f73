//! Obstacles to merges, and to transactions that have to leave memory.
//!
//! Owns the leaves that found no pages for a split, the pages that cannot be read, and the reason why
//! no transaction spills. Never clears a reason by itself: the step that makes room, or that reads the
//! page, says so (rule D7).

use std::collections::BTreeMap;

use flagstone_space::LogicalPage;
use hashbrown::HashSet;

use crate::error::EngineError;

/// Obstacles to merges, and to transactions that have to leave memory.
#[derive(Debug, Default)]
pub(crate) struct Obstacles {
    /// Leaves that must split and found no pages for the split.
    lacking_pages: HashSet<LogicalPage>,
    /// Pages that cannot be read, each with its error: nothing below them is merged.
    unreadable: BTreeMap<LogicalPage, EngineError>,
    /// There was no room to split several leaves together.
    are_splits_single: bool,
    /// Only leaves that lack pages are left to merge.
    is_out_of_pages: bool,
    /// A commit made leaves shrink: leaves that lacked pages may fit again.
    may_fit: bool,
    /// Why transactions cannot spill.
    no_spill: Option<EngineError>,
}

impl Obstacles {
    /// Whether the leaf `page` found no pages for its split, or cannot be read.
    pub(in crate::engine) fn passes_over(&self, page: LogicalPage) -> bool {
        self.lacking_pages.contains(&page) || self.is_unreadable(page)
    }

    /// Whether there are any such leaves.
    pub(in crate::engine) fn passes_over_any(&self) -> bool {
        !self.lacking_pages.is_empty() || !self.unreadable.is_empty()
    }

    /// Whether any leaf found no pages for its split.
    pub(in crate::engine) fn lacks_pages(&self) -> bool {
        !self.lacking_pages.is_empty()
    }

    /// A leaf found no pages for its split; false when that was known.
    pub(in crate::engine) fn note_lack(&mut self, page: LogicalPage) -> bool {
        self.lacking_pages.insert(page)
    }

    /// A search for a leaf ended: whether only leaves that lack pages are left.
    pub(in crate::engine) fn note_search(&mut self, is_out_of_pages: bool) {
        self.is_out_of_pages = is_out_of_pages;
    }

    /// Whether no leaf can be merged before something shrinks (rule D7).
    pub(in crate::engine) fn is_out_of_pages(&self) -> bool {
        self.is_out_of_pages
    }

    /// Leaves that were to split together found no room: from now on one splits after the other.
    pub(in crate::engine) fn split_singly(&mut self) {
        self.are_splits_single = true;
    }

    /// Whether leaves split one after the other for want of room.
    pub(in crate::engine) fn are_splits_single(&self) -> bool {
        self.are_splits_single
    }

    /// A page cannot be read; false when that was known.
    pub(in crate::engine) fn note_unreadable(
        &mut self,
        page: LogicalPage,
        error: &EngineError,
    ) -> bool {
        self.unreadable.insert(page, error.clone()).is_none()
    }

    /// Whether a page cannot be read.
    pub(in crate::engine) fn is_unreadable(&self, page: LogicalPage) -> bool {
        self.unreadable.contains_key(&page)
    }

    /// Error of an unreadable page that changes wait for, if there is one.
    pub(in crate::engine) fn unreadable_error(&self) -> Option<EngineError> {
        self.unreadable.values().next().cloned()
    }

    /// A page has been read, or has another owner.
    pub(super) fn found_again(&mut self, page: LogicalPage) {
        if !self.unreadable.is_empty() {
            self.unreadable.remove(&page);
        }
    }

    /// A commit makes leaves shrink.
    pub(in crate::engine) fn note_shrinking(&mut self) {
        self.may_fit = true;
    }

    /// Memory is full, and only leaves that lack pages are left: if changes make leaves shrink, they
    /// fit again (rule D7).
    pub(in crate::engine) fn retry_shrinking(&mut self) {
        if self.is_out_of_pages && std::mem::take(&mut self.may_fit) {
            self.forget_lack();
        }
    }

    /// Something shrank: every leaf may be tried again.
    pub(in crate::engine) fn forget_lack(&mut self) {
        self.lacking_pages.clear();
        (self.is_out_of_pages, self.are_splits_single) = (false, false);
        self.no_spill = None;
    }

    /// Why transactions cannot grow before something shrinks, if they cannot.
    pub(in crate::engine) fn no_spill(&self) -> Option<&EngineError> {
        self.no_spill.as_ref()
    }

    /// A transaction's spilled changes are given up, or committed.
    pub(in crate::engine) fn allow_spilling(&mut self) {
        self.no_spill = None;
    }

    /// Transactions stay in memory until something shrinks; false when they do already.
    pub(in crate::engine) fn stop_spilling(&mut self, why: EngineError) -> bool {
        self.no_spill.replace(why).is_none()
    }
}
