//! Clusters of dirty pages: CFDC's priority region (Ou, Härder, Jin, DaMoN 2009, section 3).
//!
//! A cluster holds the dirty pages of the window whose numbers are neighbours. The cluster of lowest
//! priority `IPD / (n² · age)` is written first: large, sequential, old ones. `n` is the number of
//! its pages, `IPD` the sum of the distances between pages in the order in which they came, and age
//! counts dirty pages that came to the window since the cluster was made or one of its pages was
//! used. A cluster of age 0 counts as one of age 1.
//!
//! - **C1** A cluster that gave a victim keeps priority 0 until it is empty, so that the next ones
//!   are its neighbours.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_space::LogicalPage;

/// Pages of a cluster: neighbours by number.
const CLUSTER_PAGES: u32 = 64;

#[derive(Debug, Default)]
struct Cluster {
    /// Pages and their frames, in the order in which they came.
    pages: Vec<(u32, u32)>,
    /// Dirty pages that had come when the cluster was made or used.
    since: u64,
    /// Key of the cluster in the order of priorities.
    priority: u64,
    is_draining: bool,
}

impl Cluster {
    /// Priority at `now`: a positive number's bits sort as the number.
    fn priority_at(&self, now: u64) -> u64 {
        if self.is_draining {
            return 0;
        }
        let pairs = self.pages.windows(2);
        let distance: u64 = pairs.map(|pair| u64::from(pair[0].0.abs_diff(pair[1].0))).sum();
        let age = now.saturating_sub(self.since).max(1);
        let pages = self.pages.len() as u64;
        (distance.max(1) as f64 / (pages * pages * age) as f64).to_bits()
    }
}

/// Dirty pages of a window.
#[derive(Debug, Default)]
pub(super) struct Clusters {
    clusters: BTreeMap<u32, Cluster>,
    order: BTreeSet<(u64, u32)>,
    /// Dirty pages that have come.
    now: u64,
}

impl Clusters {
    /// A dirty page comes to the window.
    pub(super) fn insert(&mut self, page: LogicalPage, frame: u32) {
        self.now += 1;
        let now = self.now;
        self.change(page, |cluster| {
            if cluster.pages.is_empty() {
                cluster.since = now;
            }
            cluster.pages.push((page.0, frame));
        });
    }

    /// A dirty page leaves the window: used again, written, or gone.
    pub(super) fn remove(&mut self, page: LogicalPage, frame: u32) {
        let now = self.now;
        self.change(page, |cluster| {
            cluster.since = now;
            cluster.pages.retain(|(_, other)| *other != frame);
        });
    }

    /// The frame to be written next: the oldest of the cluster of lowest priority (C1).
    pub(super) fn victim(&mut self) -> Option<u32> {
        let (_, number) = *self.order.first()?;
        let first = LogicalPage(number * CLUSTER_PAGES);
        self.change(first, |cluster| cluster.is_draining = true);
        self.clusters.get(&number)?.pages.first().map(|(_, frame)| *frame)
    }

    fn change(&mut self, page: LogicalPage, change: impl FnOnce(&mut Cluster)) {
        let number = page.0 / CLUSTER_PAGES;
        let cluster = self.clusters.entry(number).or_default();
        self.order.remove(&(cluster.priority, number));
        change(cluster);
        if cluster.pages.is_empty() {
            self.clusters.remove(&number);
            return;
        }
        cluster.priority = cluster.priority_at(self.now);
        self.order.insert((cluster.priority, number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_old_clusters_go_first_and_as_a_whole() {
        let mut clusters = Clusters::default();
        clusters.insert(LogicalPage(1000), 0);
        for page in 0..8 {
            clusters.insert(LogicalPage(page), 1 + page);
        }
        clusters.insert(LogicalPage(5000), 9);
        assert_eq!(clusters.victim(), Some(1));
        clusters.remove(LogicalPage(0), 1);
        for page in 1001..1040 {
            clusters.insert(LogicalPage(page), page);
        }
        for frame in 2..=8 {
            assert_eq!(clusters.victim(), Some(frame), "the cluster is written to its end");
            clusters.remove(LogicalPage(frame - 1), frame);
        }
        assert_eq!(clusters.victim(), Some(0), "forty neighbours before a page alone");
    }

    #[test]
    fn sequential_clusters_go_before_scattered_ones() {
        let mut clusters = Clusters::default();
        for (at, page) in [0, 40, 3, 60].into_iter().enumerate() {
            clusters.insert(LogicalPage(page), at as u32);
        }
        for (at, page) in [640, 641, 642, 643].into_iter().enumerate() {
            clusters.insert(LogicalPage(page), 10 + at as u32);
        }
        assert_eq!(clusters.victim(), Some(10));
    }
}
