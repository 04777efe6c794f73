//! The graph of transactions and views that must come before others, and its cycles.
//!
//! The names of cycles come from Adya, Liskov and O'Neil (Generalized Isolation Level Definitions, ICDE 2000) and
//! from Elle (Kingsbury and Alvaro, VLDB 2020).

use std::collections::VecDeque;

/// Why one comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Why {
    /// It wrote a row, the other one wrote it next.
    Ww,
    /// It wrote the version that the other one read.
    Wr,
    /// It read a row that the other one wrote next.
    Rw,
    /// Its commit has the lower place in the order of commits.
    Order,
    /// It was over before the other one began.
    Time,
    /// It was durable before the other one began.
    Durable,
}

impl Why {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ww => "ww",
            Self::Wr => "wr",
            Self::Rw => "rw",
            Self::Order => "commit order",
            Self::Time => "real time",
            Self::Durable => "durable before",
        }
    }
}

/// Kinds of edges that a search may follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kinds(u8);

impl Kinds {
    pub(crate) const fn of(kinds: &[Why]) -> Self {
        let (mut set, mut index) = (0, 0);
        while index < kinds.len() {
            set |= 1 << kinds[index] as u8;
            index += 1;
        }
        Self(set)
    }

    pub(crate) const fn has(self, why: Why) -> bool {
        self.0 >> why as u8 & 1 == 1
    }
}

/// An edge of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) why: Why,
    /// Number of its row; none for edges of time and order.
    pub(crate) row: Option<u32>,
}

/// Edges by the node that they begin at.
#[derive(Debug)]
pub(crate) struct Graph {
    edges: Vec<Edge>,
    starts: Vec<u32>,
}

impl Graph {
    pub(crate) fn new(nodes: usize, mut edges: Vec<Edge>) -> Self {
        edges.sort_unstable_by_key(|edge| (edge.from, edge.to, edge.why));
        edges.dedup_by_key(|edge| (edge.from, edge.to, edge.why));
        let mut starts = vec![0; nodes + 1];
        for edge in &edges {
            starts[edge.from as usize + 1] += 1;
        }
        for node in 0..nodes {
            starts[node + 1] += starts[node];
        }
        Self { edges, starts }
    }

    pub(crate) fn nodes(&self) -> usize {
        self.starts.len() - 1
    }

    fn from(&self, node: u32) -> &[Edge] {
        &self.edges[self.starts[node as usize] as usize..self.starts[node as usize + 1] as usize]
    }

    /// Strongly connected components of more than one node (Tarjan 1972), without nodes that are left out.
    pub(crate) fn components(&self, left_out: impl Fn(u32) -> bool) -> Vec<Vec<u32>> {
        const NEW: u32 = u32::MAX;
        let count = self.nodes();
        let (mut index, mut low) = (vec![NEW; count], vec![0_u32; count]);
        let mut on_stack = vec![false; count];
        let (mut stack, mut calls, mut found) = (Vec::new(), Vec::new(), Vec::new());
        let mut next = 0;
        for root in 0..count as u32 {
            if index[root as usize] != NEW || left_out(root) {
                continue;
            }
            calls.push((root, 0_usize));
            while let Some((node, edge)) = calls.last_mut() {
                let at = *node as usize;
                if *edge == 0 {
                    (index[at], low[at]) = (next, next);
                    next += 1;
                    stack.push(*node);
                    on_stack[at] = true;
                }
                if let Some(followed) = self.from(*node).get(*edge) {
                    *edge += 1;
                    let to = followed.to as usize;
                    if left_out(followed.to) {
                    } else if index[to] == NEW {
                        calls.push((followed.to, 0));
                    } else if on_stack[to] {
                        low[at] = low[at].min(index[to]);
                    }
                    // The first edge marks a node as begun.
                    continue;
                }
                let node = *node;
                calls.pop();
                if let Some((parent, _)) = calls.last() {
                    low[*parent as usize] = low[*parent as usize].min(low[at]);
                }
                if low[at] == index[at] {
                    let start = stack.iter().rposition(|other| *other == node).unwrap_or(0);
                    let members = stack.split_off(start);
                    for member in &members {
                        on_stack[*member as usize] = false;
                    }
                    if members.len() > 1 {
                        found.push(members);
                    }
                }
            }
        }
        found
    }

    /// The shortest cycle through `node` along edges that `follows` takes.
    pub(crate) fn cycle(&self, node: u32, follows: impl Fn(&Edge) -> bool) -> Option<Vec<Edge>> {
        let mut came_by: hashbrown::HashMap<u32, Edge> = hashbrown::HashMap::new();
        let mut queue = VecDeque::from([node]);
        while let Some(at) = queue.pop_front() {
            for edge in self.from(at).iter().filter(|edge| follows(edge)) {
                if edge.to == node {
                    let mut cycle = vec![*edge];
                    let mut back = at;
                    while back != node {
                        let edge = came_by.get(&back)?;
                        cycle.push(*edge);
                        back = edge.from;
                    }
                    cycle.reverse();
                    return Some(cycle);
                }
                if !came_by.contains_key(&edge.to) {
                    came_by.insert(edge.to, *edge);
                    queue.push_back(edge.to);
                }
            }
        }
        None
    }
}

/// The searches for a cycle, from the worst kind to the mildest.
pub(crate) const SEARCHES: [Kinds; 5] = [
    Kinds::of(&[Why::Ww]),
    Kinds::of(&[Why::Ww, Why::Wr]),
    Kinds::of(&[Why::Ww, Why::Wr, Why::Rw]),
    Kinds::of(&[Why::Ww, Why::Wr, Why::Rw, Why::Order]),
    Kinds::of(&[Why::Ww, Why::Wr, Why::Rw, Why::Order, Why::Time, Why::Durable]),
];

/// The name of a cycle.
pub(crate) fn name(cycle: &[Edge]) -> String {
    let count = |why| cycle.iter().filter(|edge| edge.why == why).count();
    let mut name = String::from(match (count(Why::Rw), count(Why::Wr)) {
        (0, 0) => "G0",
        (0, _) => "G1c",
        (1, _) => "G-single",
        _ => "G2",
    });
    if count(Why::Order) > 0 {
        name.push_str("-order");
    }
    if count(Why::Time) > 0 {
        name.push_str("-realtime");
    }
    if count(Why::Durable) > 0 {
        name.push_str("-durable");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(from: u32, to: u32, why: Why) -> Edge {
        Edge { from, to, why, row: None }
    }

    #[test]
    fn components_and_cycles_are_found_in_a_long_chain() {
        let mut edges: Vec<Edge> = (0..200_000).map(|at| edge(at, at + 1, Why::Order)).collect();
        let chain = Graph::new(200_001, edges.clone());
        assert!(chain.components(|_| false).is_empty());
        edges.push(edge(1_000, 900, Why::Rw));
        edges.push(edge(900, 1_000, Why::Wr));
        let graph = Graph::new(200_001, edges);
        assert_eq!(graph.components(|_| false).iter().map(Vec::len).collect::<Vec<_>>(), [101]);
        assert!(graph.components(|node| node == 1_000).is_empty());
        let cycle = |node, kinds: Kinds| graph.cycle(node, |edge| kinds.has(edge.why));
        assert_eq!(cycle(900, SEARCHES[1]), None);
        let short = cycle(900, SEARCHES[2]).unwrap();
        assert_eq!((short.len(), name(&short).as_str()), (2, "G-single"));
        let long = cycle(950, SEARCHES[3]).unwrap();
        assert_eq!((long.len(), name(&long).as_str()), (101, "G-single-order"));
    }
}
