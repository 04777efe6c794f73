//! Reads and appends of transactions, and the dependency graph that follows from them.
//!
//! Owns the observations of one history over lists (after Elle, Kingsbury and Alvaro 2020): values
//! that are only appended to show the order of their versions, so that every dependency can be read
//! off. Never asks an engine, and assumes nothing about the way an engine works.
//!
//! - **H1** An edge leads from the node that comes first in every equivalent serial order: version
//!   order (ww), writer to reader (wr), reader to the next writer (rw), and time, from a node to
//!   one that began after its end. A cycle is an anomaly.
//! - **H2** Every acknowledged append is in the final lists; of commits not yet acknowledged when
//!   the power went, a prefix in commit order.
//! - **H3** A snapshot comes after everything that was acknowledged as durable before it began.

use flagstone_space::Lsn;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// Names a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListKey(pub u16);

/// An appended element; each one is appended once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Element(pub u32);

/// Lists by key; an absent list is empty.
pub type Lists = BTreeMap<ListKey, Vec<Element>>;

/// Place of a transaction, a snapshot or a tick in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(usize);

/// Reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A read-write transaction.
    Transaction,
    /// A snapshot.
    Snapshot,
}

/// Fate of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Under way: none of its appends may show.
    Running,
    /// Its commit was called and has not returned: a power cut may leave all of its appends or
    /// none.
    Committing,
    /// None of its appends may ever show, and its reads do not count.
    Aborted,
    /// Its commit returned; a power cut may take it.
    Committed,
    /// It has to be there.
    Kept,
    /// A snapshot: its reads count in any case.
    Snapshot,
    /// A moment: nodes before it lead to it, nodes after it follow from it.
    Tick,
}

#[derive(Debug)]
struct Node {
    fate: Fate,
    reads: Vec<(ListKey, Vec<Element>)>,
    appends: Vec<(ListKey, Element)>,
}

impl Node {
    fn counts(&self) -> bool {
        matches!(self.fate, Fate::Committed | Fate::Kept | Fate::Snapshot)
    }

    /// Whether its first append is there: then all of them must be, else none.
    fn is_in(&self, found: &Lists) -> bool {
        self.appends
            .first()
            .is_some_and(|(key, element)| found.get(key).is_some_and(|list| list.contains(element)))
    }

    fn own(&self, key: ListKey) -> impl DoubleEndedIterator<Item = Element> {
        self.appends.iter().filter(move |(other, _)| *other == key).map(|(_, element)| *element)
    }
}

/// Why one node comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edge {
    /// It wrote the version before.
    WriteWrite,
    /// It wrote the version that the other read.
    WriteRead,
    /// It read the version that the other replaced.
    ReadWrite,
    /// It ended before the other began.
    Time,
}

/// How a history contradicts every serial order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Anomaly {
    /// A transaction does not see its own appends.
    #[error("{0:?} reads {1:?} without its own appends: {2:?}")]
    OwnLost(NodeIndex, ListKey, Vec<Element>),
    /// G1a: an append of an aborted transaction was read, or is in the final state.
    #[error("G1a: {0:?} reads {1:?} of {2:?}, which nobody committed")]
    AbortedRead(NodeIndex, ListKey, Element),
    /// G1b: a version was read that its transaction replaced later.
    #[error("G1b: {0:?} reads {1:?} up to {2:?}, an intermediate version")]
    IntermediateRead(NodeIndex, ListKey, Element),
    /// A list was read that is no prefix of the final one.
    #[error("{0:?} reads {1:?} as {2:?}, which is no prefix of {3:?}")]
    NoPrefix(NodeIndex, ListKey, Vec<Element>, Vec<Element>),
    /// An append that must be there is not.
    #[error("{0:?} appended {2:?} to {1:?}, and it is gone")]
    Lost(NodeIndex, ListKey, Element),
    /// The power took a commit and left a later one.
    #[error("the power took {0:?}, and not {1:?}, which was committed later")]
    Gap(NodeIndex, NodeIndex),
    /// Dependencies go round in a circle.
    #[error("{name}: {path}")]
    Cycle {
        /// Name of the anomaly.
        name: &'static str,
        /// The circle.
        path: String,
    },
}

/// A history without anomaly, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Transactions that count.
    pub transactions: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// Lists read by them.
    pub reads: u64,
    /// Dependencies between them.
    pub edges: u64,
}

impl Checked {
    /// Adds the counters of another history.
    pub fn add(&mut self, other: &Self) {
        self.transactions += other.transactions;
        self.snapshots += other.snapshots;
        self.reads += other.reads;
        self.edges += other.edges;
    }
}

/// Everything observed.
#[derive(Debug, Default)]
pub struct History {
    nodes: Vec<Node>,
    owners: HashMap<Element, NodeIndex>,
    element_next: u32,
    time: Vec<(NodeIndex, NodeIndex)>,
    /// Commits that returned and are not acknowledged as durable, in order: with their places in
    /// the log, where these are known.
    later: Vec<(Lsn, NodeIndex)>,
    last_commit: Option<NodeIndex>,
    last_durable: Option<NodeIndex>,
}

impl History {
    /// A transaction or a snapshot begins.
    pub fn begin(&mut self, reader: Reader) -> NodeIndex {
        let (fate, before) = match reader {
            Reader::Transaction => (Fate::Running, self.last_commit),
            Reader::Snapshot => (Fate::Snapshot, self.last_durable),
        };
        let node = self.add(fate);
        self.time.extend(before.map(|tick| (tick, node)));
        node
    }

    /// As [`History::begin`] where the order in time is not known.
    pub fn begin_unordered(&mut self, reader: Reader) -> NodeIndex {
        match reader {
            Reader::Transaction => self.add(Fate::Running),
            Reader::Snapshot => self.add(Fate::Snapshot),
        }
    }

    fn add(&mut self, fate: Fate) -> NodeIndex {
        self.nodes.push(Node { fate, reads: Vec::new(), appends: Vec::new() });
        NodeIndex(self.nodes.len() - 1)
    }

    /// A list was read.
    ///
    /// # Errors
    ///
    /// When the reader's own appends are not at its end.
    pub fn read(
        &mut self,
        node: NodeIndex,
        key: ListKey,
        mut list: Vec<Element>,
    ) -> Result<(), Anomaly> {
        let reader = &mut self.nodes[node.0];
        for own in reader.own(key).rev() {
            if list.pop() != Some(own) {
                return Err(Anomaly::OwnLost(node, key, list));
            }
        }
        reader.reads.push((key, list));
        Ok(())
    }

    /// The element that the next append will be given.
    #[must_use]
    pub fn next_element(&self) -> Element {
        Element(self.element_next + 1)
    }

    /// A new element, appended to a list.
    pub fn append(&mut self, node: NodeIndex, key: ListKey) -> Element {
        let element = self.next_element();
        self.element_next = element.0;
        self.owners.insert(element, node);
        self.nodes[node.0].appends.push((key, element));
        element
    }

    /// Appends so far, as [`History::roll_back`] takes them.
    #[must_use]
    pub fn append_count(&self, node: NodeIndex) -> usize {
        self.nodes[node.0].appends.len()
    }

    /// Takes back all but the first `count` appends.
    pub fn roll_back(&mut self, node: NodeIndex, count: usize) {
        self.nodes[node.0].appends.truncate(count);
    }

    /// The transaction is gone.
    pub fn aborted(&mut self, node: NodeIndex) {
        self.nodes[node.0].fate = Fate::Aborted;
    }

    /// The commit is under way.
    pub fn committing(&mut self, node: NodeIndex) {
        self.nodes[node.0].fate = Fate::Committing;
    }

    /// The commit has its place; a power cut may take it.
    pub fn committed(&mut self, node: NodeIndex) {
        let last = self.later.last().map_or(Lsn::ZERO, |(lsn, _)| *lsn);
        self.committed_at(node, last);
    }

    /// The commit has this place; a power cut may take it. Commits need not return in their order.
    pub fn committed_at(&mut self, node: NodeIndex, lsn: Lsn) {
        self.nodes[node.0].fate = Fate::Committed;
        let place = self.later.partition_point(|(other, _)| *other <= lsn);
        self.later.insert(place, (lsn, node));
        self.last_commit = Some(self.tick(self.last_commit, node));
    }

    /// The commit is acknowledged as durable.
    pub fn durable(&mut self, node: NodeIndex) {
        self.nodes[node.0].fate = Fate::Kept;
        self.later.retain(|(_, other)| *other != node);
        self.last_durable = Some(self.tick(self.last_durable, node));
    }

    /// The snapshot has ended.
    pub fn snapshot_ended(&mut self, node: NodeIndex) {
        self.last_commit = Some(self.tick(self.last_commit, node));
    }

    fn tick(&mut self, before: Option<NodeIndex>, node: NodeIndex) -> NodeIndex {
        let tick = self.add(Fate::Tick);
        self.time.push((node, tick));
        self.time.extend(before.map(|before| (before, tick)));
        tick
    }

    /// The power went, and `found` was found: settles the transactions under way (H2).
    ///
    /// # Errors
    ///
    /// When a lost commit comes before one that is there.
    pub fn power_off(&mut self, found: &Lists) -> Result<(), Anomaly> {
        let mut lost = None;
        for (_, node) in std::mem::take(&mut self.later) {
            let first = self.nodes[node.0].appends.first().copied();
            let is_there = self.nodes[node.0].is_in(found);
            self.nodes[node.0].fate = if is_there { Fate::Kept } else { Fate::Aborted };
            match lost {
                Some(lost) if is_there => return Err(Anomaly::Gap(lost, node)),
                None if first.is_some() && !is_there => lost = Some(node),
                _ => {}
            }
        }
        for node in &mut self.nodes {
            match node.fate {
                Fate::Running => node.fate = Fate::Aborted,
                Fate::Committing if node.is_in(found) => node.fate = Fate::Kept,
                Fate::Committing => node.fate = Fate::Aborted,
                _ => {}
            }
        }
        Ok(())
    }

    /// Looks for anomalies; `finals` are the contents of all lists in the end.
    ///
    /// # Errors
    ///
    /// The first one found.
    pub fn check(&self, finals: &Lists) -> Result<Checked, Anomaly> {
        let mut graph = Graph::new(self.nodes.len());
        for (from, to) in &self.time {
            let is_out = |node: &NodeIndex| self.nodes[node.0].fate == Fate::Aborted;
            if !is_out(from) && !is_out(to) {
                graph.add(*from, *to, Edge::Time);
            }
        }
        self.add_versions(finals, &mut graph)?;
        let mut checked = Checked::default();
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.counts()) {
            match node.fate {
                Fate::Snapshot => checked.snapshots += 1,
                _ => checked.transactions += 1,
            }
            checked.reads += node.reads.len() as u64;
            for (key, list) in &node.reads {
                self.add_read(NodeIndex(index), *key, list, finals, &mut graph)?;
            }
        }
        checked.edges = graph.edge_count;
        graph.find_cycle().map_or(Ok(checked), Err)
    }

    /// Version order, and everything that must be in it.
    fn add_versions(&self, finals: &Lists, graph: &mut Graph) -> Result<(), Anomaly> {
        let mut there = HashMap::new();
        for (key, list) in finals {
            let mut before = None;
            for element in list {
                let owner = self.writer_of(NodeIndex(0), *key, *element)?;
                if let Some(before) = before {
                    graph.add(before, owner, Edge::WriteWrite);
                }
                before = Some(owner);
                there.insert(*element, *key);
            }
        }
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.counts()) {
            for (key, element) in &node.appends {
                if there.get(element) != Some(key) {
                    return Err(Anomaly::Lost(NodeIndex(index), *key, *element));
                }
            }
        }
        Ok(())
    }

    fn add_read(
        &self,
        reader: NodeIndex,
        key: ListKey,
        list: &[Element],
        finals: &Lists,
        graph: &mut Graph,
    ) -> Result<(), Anomaly> {
        let whole = finals.get(&key).map_or(&[][..], Vec::as_slice);
        if !whole.starts_with(list) {
            for element in list {
                self.writer_of(reader, key, *element)?;
            }
            return Err(Anomaly::NoPrefix(reader, key, list.to_vec(), whole.to_vec()));
        }
        if let Some(last) = list.last() {
            let writer = self.writer_of(reader, key, *last)?;
            if self.nodes[writer.0].own(key).next_back() != Some(*last) {
                return Err(Anomaly::IntermediateRead(reader, key, *last));
            }
            graph.add(writer, reader, Edge::WriteRead);
        }
        if let Some(next) = whole.get(list.len()) {
            graph.add(reader, self.writer_of(reader, key, *next)?, Edge::ReadWrite);
        }
        Ok(())
    }

    /// The node that committed an element.
    fn writer_of(
        &self,
        reader: NodeIndex,
        key: ListKey,
        element: Element,
    ) -> Result<NodeIndex, Anomaly> {
        let writer = self.owners.get(&element).filter(|writer| {
            let node = &self.nodes[writer.0];
            node.counts() && node.appends.contains(&(key, element))
        });
        writer.copied().ok_or(Anomaly::AbortedRead(reader, key, element))
    }
}

/// Edges between nodes.
struct Graph {
    after: Vec<Vec<(NodeIndex, Edge)>>,
    edge_count: u64,
}

impl Graph {
    fn new(node_count: usize) -> Self {
        Self { after: vec![Vec::new(); node_count], edge_count: 0 }
    }

    fn add(&mut self, from: NodeIndex, to: NodeIndex, edge: Edge) {
        if from != to {
            self.after[from.0].push((to, edge));
            self.edge_count += u64::from(edge != Edge::Time);
        }
    }

    /// Some circle, if there is one.
    fn find_cycle(&self) -> Option<Anomaly> {
        let before = self.tangled();
        let mut node = before.iter().position(|edge| edge.is_some())?;
        // Every node here has a predecessor: a walk back long enough enters a circle.
        let step = |node: usize| before[node].map(|(NodeIndex(from), edge)| (from, edge));
        for _ in 0..before.len() {
            node = step(node)?.0;
        }
        let mut circle = Vec::new();
        let (start, mut edges) = (node, Vec::new());
        loop {
            let (from, edge) = step(node)?;
            circle.push(format!("{node} <-{edge:?}- "));
            edges.push(edge);
            node = from;
            if node == start {
                break;
            }
        }
        let path = circle.concat() + &start.to_string();
        Some(Anomaly::Cycle { name: name_of(&edges), path })
    }

    /// For each node that cannot be put in order: an edge from another such node.
    fn tangled(&self) -> Vec<Option<(NodeIndex, Edge)>> {
        let mut counts = vec![0_usize; self.after.len()];
        self.after.iter().flatten().for_each(|(to, _)| counts[to.0] += 1);
        let mut free: Vec<usize> = (0..counts.len()).filter(|node| counts[*node] == 0).collect();
        while let Some(node) = free.pop() {
            for (to, _) in &self.after[node] {
                counts[to.0] -= 1;
                if counts[to.0] == 0 {
                    free.push(to.0);
                }
            }
        }
        let mut before = vec![None; counts.len()];
        for (from, edges) in self.after.iter().enumerate().filter(|(from, _)| counts[*from] > 0) {
            for (to, edge) in edges {
                before[to.0] = Some((NodeIndex(from), *edge));
            }
        }
        before
    }
}

/// Adya's name for a circle.
fn name_of(edges: &[Edge]) -> &'static str {
    let count = |edge| edges.iter().filter(|other| **other == edge).count();
    if count(Edge::Time) > 0 {
        return "an order that contradicts time";
    }
    match (count(Edge::ReadWrite), count(Edge::WriteRead)) {
        (0, 0) => "G0",
        (0, _) => "G1c",
        (1, _) => "G-single",
        _ => "G2",
    }
}

impl fmt::Display for NodeIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests;
