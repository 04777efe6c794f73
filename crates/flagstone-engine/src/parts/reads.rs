//! Reads under way.

use flagstone_space::LogicalPage;

use crate::engine::{ReadNumber, reads};

/// Reads of pages that are under way.
#[derive(Debug, Default)]
pub struct Reads(reads::Reads);

impl Reads {
    /// Notes a read of `page`.
    pub fn begin(&mut self, page: LogicalPage) -> ReadNumber {
        self.0.begin(page)
    }

    /// Ends a read of `page`; true when what it brought is stale.
    pub fn end(&mut self, page: LogicalPage, number: ReadNumber) -> bool {
        self.0.end(page, number)
    }

    /// The page changes: reads of it that are under way bring an old version.
    pub fn mark_stale(&mut self, page: LogicalPage) {
        self.0.mark_stale(page);
    }

    /// Whether the page is being read.
    #[must_use]
    pub fn contains(&self, page: LogicalPage) -> bool {
        self.0.contains(page)
    }

    /// Pages being read.
    #[must_use]
    pub fn page_count(&self) -> usize {
        self.0.page_count()
    }
}
