//! Checks one session of a history: does some order of its transactions explain every read?
//!
//! Every write carries a version, so that each read names the transaction that it read from. The nodes of a graph are
//! transactions and views; an edge from A to B says that A comes before B:
//!
//! | edge | reason |
//! | --- | --- |
//! | ww | B wrote a row next after A |
//! | wr | B read a write of A |
//! | rw | A read a version that B replaced |
//! | order | A has the lower place in the order of commits |
//! | time | A was over before B began |
//! | durable | A was durable before B began |
//!
//! A snapshot, a backup and a database after a cut are readers of one moment. Without a cycle in the graph the
//! promises hold: the transactions have a serial order, and each view shows a prefix of it, of whole commits in the
//! order of commits, with all that were durable before.
//!
//! - **C1** A transaction whose end is unknown counts only after somebody has seen one of its writes.
//! - **C2** An edge holds in every order that could explain the reads. A look that a row had several times, such
//!   as no row, puts its reader behind the first of these times that may explain it, and before the end of the last.

use hashbrown::{HashMap, HashSet};

use super::record::{
    Area, Base, Finding, Key, Look, Notes, Op, Outcome, Txn, TxnId, Version, View, Viewer,
};

mod edges;
mod explain;
mod graph;
mod rows;
#[cfg(test)]
mod tests;

use graph::{Edge, Graph, Why};
use rows::Rows;

/// One session of a history.
pub(crate) struct Session<'a> {
    pub(crate) number: u64,
    /// Every row at its beginning.
    pub(crate) base: &'a Base,
    pub(crate) notes: &'a Notes,
}

/// Result of a check.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// Transactions that committed.
    pub(crate) committed: u64,
    pub(crate) findings: Vec<Finding>,
}

/// Checks a session.
pub(crate) fn check(session: &Session<'_>) -> Verdict {
    let mut checker = Checker::new(session);
    checker.require_written();
    checker.require_places();
    let rows = Rows::of(&checker);
    checker.findings.extend(rows.conflicts.iter().cloned());
    let mut edges = edges::between(&mut checker, &rows);
    let nodes = edges::of_time(&checker, &mut edges);
    let graph = Graph::new(nodes, edges);
    explain::cycles(&mut checker, &rows, &graph);
    let is_committed = |txn: &&Txn| matches!(txn.outcome, Outcome::Committed { .. });
    let committed = session.notes.txns.iter().filter(is_committed).count() as u64;
    Verdict { committed, findings: checker.findings }
}

/// Numbers the commits that wrote, by the places that they were told.
fn places(txns: &[Txn]) -> Vec<u64> {
    let mut order: Vec<(u64, usize)> = Vec::new();
    for (node, txn) in txns.iter().enumerate() {
        if let Outcome::Committed { lsn: Some(lsn) } = txn.outcome
            && txn.ops.iter().any(|op| matches!(op, Op::Write(..)))
        {
            order.push((lsn, node));
        }
    }
    order.sort_unstable();
    let mut places = vec![0; txns.len()];
    for (place, (_, node)) in (1..).zip(order) {
        places[node] = place;
    }
    places
}

/// Fate of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Others may see it, in this row.
    Written(Key),
    /// Nobody else may: it was taken back, or written over in the same transaction.
    Hidden,
}

/// A session, with tables for frequent questions.
struct Checker<'a> {
    number: u64,
    base: &'a Base,
    notes: &'a Notes,
    /// Node of each transaction: its index among those of the session.
    nodes: HashMap<TxnId, u32>,
    fates: HashMap<Version, Fate>,
    /// Place of each transaction among all writes that committed; 0 for others.
    places: Vec<u64>,
    /// Transactions whose end is unknown, and that somebody has seen (C1).
    seen: HashSet<u32>,
    findings: Vec<Finding>,
}

/// Most findings of one kind that are reported for a session.
const FINDINGS_MAX: usize = 3;

impl<'a> Checker<'a> {
    fn new(session: &Session<'a>) -> Self {
        let notes = session.notes;
        let nodes = (0..).zip(&notes.txns).map(|(node, txn)| (txn.id, node)).collect();
        let mut fates = HashMap::new();
        for op in notes.txns.iter().flat_map(|txn| &txn.ops) {
            match op {
                Op::Write(key, version, _) => {
                    fates.insert(*version, Fate::Written(*key));
                }
                Op::Hidden(version) => {
                    fates.insert(*version, Fate::Hidden);
                }
                _ => {}
            }
        }
        let (number, base) = (session.number, session.base);
        let (seen, findings) = (HashSet::new(), Vec::new());
        let places = places(&notes.txns);
        Self { number, base, notes, nodes, fates, places, seen, findings }
    }

    fn txn(&self, node: u32) -> &'a Txn {
        &self.notes.txns[node as usize]
    }

    fn views(&self) -> impl Iterator<Item = (u32, &'a View)> + use<'a> {
        (self.notes.txns.len() as u32..).zip(&self.notes.views)
    }

    /// All readers with their operations.
    fn readers(&self) -> impl Iterator<Item = (u32, &'a [Op])> + use<'a> {
        let txns = (0..).zip(self.notes.txns.iter().map(|txn| &txn.ops[..]));
        txns.chain(self.views().map(|(node, view)| (node, &view.ops[..])))
    }

    /// A row at the beginning of the session.
    fn base_look(&self, key: Key) -> Look {
        let missing = if key.area == Area::Churn { EMPTY_CHURN } else { Look::Absent };
        self.base.rows.get(&key).copied().unwrap_or(missing)
    }

    /// Whether others may have seen the writes of a transaction.
    fn took_place(&self, node: u32) -> bool {
        match self.txn(node).outcome {
            Outcome::Committed { .. } => true,
            Outcome::Aborted => false,
            Outcome::Unknown => self.seen.contains(&node),
        }
    }

    fn found(&mut self, form: &str, text: String) {
        let count = self.findings.iter().filter(|finding| finding.form == form).count();
        if count < FINDINGS_MAX {
            self.findings.push(Finding::new(form, text));
        }
    }

    /// Requires that every version read was written by a transaction whose writes others may see; notes these (C1).
    fn require_written(&mut self) {
        let mut checked = HashSet::new();
        for (reader, ops) in self.readers() {
            for op in ops {
                match op {
                    Op::Read(key, Look::Version(version)) => {
                        self.require(reader, *key, *version, &mut checked);
                    }
                    Op::Scan { rows, .. } => {
                        for (key, look) in rows {
                            if let Look::Version(version) = look {
                                self.require(reader, *key, *version, &mut checked);
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    /// Requires that no two commits that wrote have one place in the order of commits.
    fn require_places(&mut self) {
        let mut placed: HashMap<u64, u32> = HashMap::new();
        for (node, txn) in (0..).zip(&self.notes.txns) {
            let Outcome::Committed { lsn: Some(lsn) } = txn.outcome else { continue };
            if !txn.ops.iter().any(|op| matches!(op, Op::Write(..))) {
                continue;
            }
            if let Some(other) = placed.insert(lsn, node) {
                let text = format!("{} and {}", self.label(other), self.label(node));
                self.found("two commits of one place", text);
            }
        }
    }

    fn require(
        &mut self,
        reader: u32,
        key: Key,
        version: Version,
        checked: &mut HashSet<(Key, Version)>,
    ) {
        let writer = version.writer();
        if self.nodes.get(&writer) == Some(&reader) || !checked.insert((key, version)) {
            return;
        }
        let who = || self.label(reader);
        if self.base_look(key) == Look::Version(version) {
            return;
        }
        if writer.session() != self.number {
            let text = format!("{} reads {key} as {version}, which was gone before", who());
            return self.found("dead write read", text);
        }
        let Some(node) = self.nodes.get(&writer).copied() else {
            let text =
                format!("{} reads {key} as {version}, which nobody was asked to commit", who());
            return self.found("unwritten read", text);
        };
        match (self.fates.get(&version), self.txn(node).outcome) {
            (Some(Fate::Hidden), _) => {
                let text =
                    format!("{} reads {key} as {version}, which is not what was committed", who());
                self.found("G1b intermediate read", text);
            }
            (Some(Fate::Written(row)), _) if *row != key => {
                let text = format!("{} reads {key} as {version}, which is of {row}", who());
                self.found("misplaced", text);
            }
            (Some(Fate::Written(_)), Outcome::Aborted) => {
                let text = format!("{} reads {key} as {version}, which was aborted", who());
                self.found("G1a aborted read", text);
            }
            (Some(Fate::Written(_)), Outcome::Unknown) => {
                self.seen.insert(node);
            }
            (Some(Fate::Written(_)), Outcome::Committed { .. }) => {}
            (None, _) => {
                let text = format!("{} reads {key} as {version}, which was never written", who());
                self.found("unwritten read", text);
            }
        }
    }

    /// A transaction or a view, for people.
    fn label(&self, node: u32) -> String {
        let count = self.notes.txns.len() as u32;
        if node < count {
            let txn = self.txn(node);
            let outcome = match txn.outcome {
                Outcome::Committed { lsn: Some(lsn) } => format!("lsn {lsn:#x}"),
                Outcome::Committed { lsn: None } => "committed".into(),
                Outcome::Aborted => "aborted".into(),
                Outcome::Unknown => "end unknown".into(),
            };
            let durable = if txn.is_durable { ", durable" } else { "" };
            let count = |is: fn(&Op) -> bool| txn.ops.iter().filter(|op| is(op)).count();
            let writes = count(|op| matches!(op, Op::Write(..)));
            let hidden = count(|op| matches!(op, Op::Hidden(_)));
            return format!("{} ({outcome}{durable}, {writes} writes, {hidden} hidden)", txn.id);
        }
        match self.notes.views.get((node - count) as usize) {
            Some(view) => format!("{} at {}", view.viewer.name(), view.begun),
            None => "time".into(),
        }
    }
}

/// Look of the tables of a thread that has none.
pub(crate) const EMPTY_CHURN: Look = Look::Content(1);
