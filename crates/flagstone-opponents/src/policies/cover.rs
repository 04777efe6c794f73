//! The write-minimised commit of Lazy-Split LRU: which groups free enough memory for fewest pages.
//!
//! Owns the choice alone, over pairs of pages written and memory freed. The choice is a minimum
//! knapsack cover: among groups with a weight and a cost, the cheapest set whose weights reach a goal.
//! Groups of one cost are taken largest first, independently of the other costs, so a set is a number
//! of groups for each cost, and dynamic programming over these numbers is exact.
//!
//! - **K1** A choice looks at no more groups of a cost than the writes of the set allow, and at the
//!   lowest costs: its work is bounded, however many groups there are.

/// Pages that one set writes, at most: a larger goal is reached by several sets.
pub(super) const WRITES_MAX: usize = 512;

/// Different costs that are looked at, from the lowest.
const COSTS_MAX: usize = 32;

/// Groups of one cost, the group that frees most first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bucket<T> {
    /// Pages that each group writes.
    pub(super) writes: usize,
    /// Groups, with the memory that each frees.
    pub(super) groups: Vec<(T, usize)>,
}

/// The buckets of groups that come by cost, and within a cost by memory freed, largest first. `from`
/// gives the groups from a cost on.
pub(super) fn buckets<T, I>(from: impl Fn(usize) -> I) -> Vec<Bucket<T>>
where
    I: Iterator<Item = (T, usize, usize)>,
{
    let mut buckets: Vec<Bucket<T>> = Vec::new();
    let mut cost = 0;
    while buckets.len() < COSTS_MAX && cost <= WRITES_MAX {
        let mut groups = Vec::new();
        for (group, writes, size) in from(cost) {
            if groups.is_empty() {
                cost = writes.max(1);
            }
            if writes.max(1) != cost || groups.len() >= WRITES_MAX / cost {
                break;
            }
            groups.push((group, size));
        }
        if groups.is_empty() {
            break;
        }
        buckets.push(Bucket { writes: cost, groups });
        cost += 1;
    }
    buckets
}

/// The groups that free `goal` bytes for fewest pages; among sets with equal writes, the set that frees
/// most. Where no set within `WRITES_MAX` pages frees so much: the set that frees most.
pub(super) fn cover<T>(buckets: Vec<Bucket<T>>, goal: usize) -> Vec<T> {
    // For each number of pages: the most memory that the buckets so far free, and the groups of the
    // last bucket in that set.
    let mut freed = vec![0; WRITES_MAX + 1];
    let mut counts: Vec<Vec<usize>> = Vec::new();
    for bucket in &buckets {
        let mut best = freed.clone();
        let mut taken = vec![0; WRITES_MAX + 1];
        let mut size = 0;
        for (index, (_, group_size)) in bucket.groups.iter().enumerate() {
            let count = index + 1;
            size += group_size;
            for writes in count * bucket.writes..=WRITES_MAX {
                let sum = freed[writes - count * bucket.writes] + size;
                if sum > best[writes] {
                    (best[writes], taken[writes]) = (sum, count);
                }
            }
        }
        freed = best;
        counts.push(taken);
    }
    let most = freed.last().copied().unwrap_or(0);
    let goal = goal.min(most);
    let mut writes = freed.iter().position(|sum| *sum >= goal).unwrap_or(0);
    let mut chosen = Vec::new();
    for (bucket, taken) in buckets.into_iter().zip(&counts).rev() {
        let count = taken[writes];
        writes -= count * bucket.writes;
        chosen.extend(bucket.groups.into_iter().take(count).map(|(group, _)| group));
    }
    chosen
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Groups in the order in which they are kept.
    fn ordered(groups: &[(usize, usize)]) -> Vec<Bucket<usize>> {
        let mut order: Vec<(usize, usize)> = groups.to_vec();
        order.sort_by_key(|(writes, size)| (*writes, usize::MAX - size));
        buckets(|from| {
            let rest = order.iter().enumerate().filter(move |(_, (writes, _))| *writes >= from);
            rest.map(|(index, (writes, size))| (index, *writes, *size))
        })
    }

    fn totals(groups: &[(usize, usize)], chosen: &[usize]) -> (usize, usize) {
        let mut order: Vec<(usize, usize)> = groups.to_vec();
        order.sort_by_key(|(writes, size)| (*writes, usize::MAX - size));
        let sum = |part: fn(&(usize, usize)) -> usize| {
            chosen.iter().map(|index| part(&order[*index])).sum()
        };
        (sum(|group| group.0), sum(|group| group.1))
    }

    /// Fewest writes of any set that frees `goal`; none when all together do not.
    fn by_force(groups: &[(usize, usize)], goal: usize) -> Option<usize> {
        let sets = 0..1_u32 << groups.len();
        let inside = |set: u32| {
            groups.iter().enumerate().filter(move |(at, _)| set >> at & 1 == 1).map(|(_, g)| *g)
        };
        sets.filter(|set| inside(*set).map(|(_, size)| size).sum::<usize>() >= goal)
            .map(|set| inside(set).map(|(writes, _)| writes).sum())
            .min()
    }

    proptest! {
        /// Goal: no set writes less for the goal. Method: all sets.
        #[test]
        fn no_set_writes_less(
            groups in vec((1..6usize, 1..100usize), 0..12),
            goal in 0..500usize,
        ) {
            let chosen = cover(ordered(&groups), goal);
            let (writes, freed) = totals(&groups, &chosen);
            match by_force(&groups, goal) {
                Some(least) => prop_assert!(freed >= goal && writes == least),
                None => prop_assert_eq!(chosen.len(), groups.len(), "all are too few"),
            }
        }
    }

    /// The example of the paper's figure 5: four entries for one write are better than five for three.
    #[test]
    fn few_entries_for_one_write_go_before_many_that_split() {
        let chosen = cover(ordered(&[(1, 4), (3, 5)]), 4);
        assert_eq!(totals(&[(1, 4), (3, 5)], &chosen), (1, 4));
    }

    #[test]
    fn what_frees_too_much_for_one_set_is_chosen_in_several() {
        let many = vec![(1, 10); 3 * WRITES_MAX];
        let chosen = cover(ordered(&many), 20 * WRITES_MAX);
        assert_eq!(totals(&many, &chosen), (WRITES_MAX, 10 * WRITES_MAX));
        assert_eq!(cover(ordered(&[(2 * WRITES_MAX, 10)]), 10), [0usize; 0], "too dear for any");
    }
}
