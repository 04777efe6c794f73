//! Recent costs of the log's way of committing, and the saving of claiming a leaf.
//!
//! A change that is logged takes its bytes of a log page, is copied by checkpoints while it is live,
//! and has a part in the page write that merges its leaf at last. All three are measured, as sums over
//! the log written lately: older events count less and less.

/// Log written, in bytes for each byte of memory, after which earlier counts count half.
const WINDOW: f64 = 4.0;

/// Sums over the log written lately.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommitCosts {
    /// Bytes of commit records.
    logged: f64,
    /// Bytes of copies that checkpoints appended.
    copied: f64,
    /// Pages that merges wrote.
    merged_pages: f64,
}

/// Sizes by which a leaf's claim is weighed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LeafBytes {
    /// Bytes of the transaction's own changes.
    pub(crate) own: usize,
    /// Bytes of changes that wait for the leaf anyway: its image takes them along.
    pub(crate) others: usize,
}

impl CommitCosts {
    /// A commit record of `bytes` was appended; `memory` is the budget.
    pub(crate) fn logged(&mut self, bytes: usize, memory: usize) {
        self.logged += bytes as f64;
        if self.logged > WINDOW * memory as f64 {
            let half = |sum: f64| sum / 2.0;
            *self = Self {
                logged: half(self.logged),
                copied: half(self.copied),
                merged_pages: half(self.merged_pages),
            };
        }
    }

    /// A checkpoint appended copies of `bytes`.
    pub(crate) fn copied(&mut self, bytes: usize) {
        self.copied += bytes as f64;
    }

    /// A merge wrote `pages`.
    pub(crate) fn merged(&mut self, pages: usize) {
        self.merged_pages += pages as f64;
    }

    /// Log pages that changes of `bytes` take in the end, copies included.
    pub(crate) fn log_pages(&self, bytes: usize, log_page_size: usize) -> f64 {
        let copies = self.copied / self.logged.max(1.0);
        bytes as f64 * (1.0 + copies) / log_page_size.max(1) as f64
    }

    /// Programs that claiming a leaf saves: at most the programs of its log. A page written takes
    /// `moves` relocations along, on average.
    pub(crate) fn gain(&self, leaf: LeafBytes, log_page_size: usize, moves: f64) -> f64 {
        let each = self.merged_pages / self.logged.max(1.0);
        let merges = ((leaf.own + leaf.others) as f64 * each).min(1.0);
        self.log_pages(leaf.own, log_page_size) + (merges - 1.0) * (1.0 + moves)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: usize = 1 << 20;

    fn prices(bytes_a_merge: usize) -> CommitCosts {
        let mut prices = CommitCosts::default();
        for _ in 0..100 {
            prices.logged(bytes_a_merge, MEMORY);
            prices.merged(1);
        }
        prices
    }

    #[test]
    fn a_leaf_that_would_be_merged_for_itself_is_claimed() {
        let dense = LeafBytes { own: 1_500, others: 0 };
        assert!(prices(1_500).gain(dense, 2_048, 0.3) > 0.0, "its log is saved");
        assert!(prices(15_000).gain(dense, 2_048, 0.3) < 0.0, "ten commits share a merge");
    }

    #[test]
    fn a_leaf_with_a_small_change_is_logged_unless_others_wait_for_it() {
        let small = LeafBytes { own: 50, others: 0 };
        assert!(prices(500).gain(small, 2_048, 0.0) < 0.0);
        assert!(prices(500).gain(LeafBytes { others: 600, ..small }, 2_048, 0.0) > 0.0);
    }

    #[test]
    fn no_leaves_save_more_than_their_log() {
        for (bytes_a_merge, moves) in [(1, 0.0), (500, 0.5), (15_000, 2.0)] {
            let prices = prices(bytes_a_merge);
            let leaf = |own| LeafBytes { own, others: own * 7 };
            let owns = [20, 300, 1_500];
            let gains: f64 = owns.map(|own| prices.gain(leaf(own), 2_048, moves)).iter().sum();
            let most = prices.log_pages(owns.iter().sum(), 2_048);
            assert!(gains <= most + 1e-9, "{gains} of {most}");
        }
    }

    #[test]
    fn copies_speak_for_claims() {
        let leaf = LeafBytes { own: 1_000, others: 0 };
        let mut copied = prices(1_500);
        copied.copied(600 * 1_500);
        assert!(prices(1_500).gain(leaf, 2_048, 0.5) < copied.gain(leaf, 2_048, 0.5));
    }

    #[test]
    fn what_was_long_ago_counts_less() {
        let mut prices = prices(1_000);
        for _ in 0..100 {
            prices.logged(MEMORY, MEMORY);
        }
        assert!(prices.merged_pages < 1.0);
    }
}
