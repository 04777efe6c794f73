//! Reads of pages that are under way.
//!
//! Owns the reads that were asked for, and their order. When a page changes, the reads of it that were
//! asked for before become worthless; later reads are not held up by them, however many reads of the
//! page overlap (rule D15). Reads begin under a shared latch too; pages change under the exclusive one.

use flagstone_space::LogicalPage;
use hashbrown::HashMap;

use crate::sync::Mutex;

/// Order in which reads of pages were asked for: a read from before a change of its page is thrown away
/// (rule D15), and it does not hold up later reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadNumber(u64);

/// Reads of one page.
#[derive(Clone, Copy, Debug, Default)]
struct Outstanding {
    count: u32,
    /// The page changed: the results of reads asked for before this one are thrown away.
    fresh: ReadNumber,
}

/// Reads under way.
#[derive(Debug, Default)]
pub struct Reads(Mutex<UnderWay>);

#[derive(Debug, Default)]
struct UnderWay {
    pages: HashMap<LogicalPage, Outstanding>,
    next: ReadNumber,
}

impl Reads {
    /// Notes a read of `page`.
    pub fn begin(&self, page: LogicalPage) -> ReadNumber {
        let mut reads = self.0.lock();
        reads.pages.entry(page).or_default().count += 1;
        let number = reads.next;
        reads.next = ReadNumber(number.0 + 1);
        number
    }

    /// Ends a read of `page`; true when its result is stale.
    pub fn end(&mut self, page: LogicalPage, number: ReadNumber) -> bool {
        let pages = &mut self.0.get_mut().pages;
        let Some(read) = pages.get_mut(&page) else { return false };
        let is_stale = number < read.fresh;
        read.count = read.count.saturating_sub(1);
        if read.count == 0 {
            pages.remove(&page);
        }
        is_stale
    }

    /// The page changes: reads of it that are under way bring an old version.
    pub fn mark_stale(&mut self, page: LogicalPage) {
        let UnderWay { pages, next } = self.0.get_mut();
        if let Some(read) = pages.get_mut(&page) {
            read.fresh = *next;
        }
    }
}

/// Questions of engines that make room before they read: the engines of the lab.
impl Reads {
    /// Whether the page is being read.
    #[must_use]
    pub fn contains(&self, page: LogicalPage) -> bool {
        self.0.lock().pages.contains_key(&page)
    }

    /// Pages being read.
    #[must_use]
    pub fn page_count(&self) -> usize {
        self.0.lock().pages.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_asked_for_after_a_change_is_fresh_though_older_ones_still_run() {
        let (mut reads, page) = (Reads::default(), LogicalPage(7));
        let old = reads.begin(page);
        reads.mark_stale(page);
        let new = reads.begin(page);
        assert!(reads.end(page, old));
        assert!(!reads.end(page, new));
        assert!(reads.0.get_mut().pages.is_empty());
    }
}
