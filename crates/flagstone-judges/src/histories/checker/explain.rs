//! Cycles, explained to people: the shortest one of the worst kind, for each node of a cycle.

use super::super::record::{Key, Look, Op};
use super::graph::{Edge, Graph, Kinds, SEARCHES, Why, name};
use super::rows::{Entry, Rows};
use super::{Checker, Viewer};

/// Readers and transactions of a component that are tried.
const TRIED_MAX: usize = 200;

/// Finds the cycles of a graph: one for each way to look at the whole, and one among transactions.
pub(super) fn cycles(checker: &mut Checker<'_>, rows: &Rows, graph: &Graph) {
    let components = graph.components(|_| false);
    if components.is_empty() {
        return;
    }
    let txns = checker.notes.txns.len() as u32;
    let views = txns..txns + checker.notes.views.len() as u32;
    let mut told = Vec::new();
    for node in components.iter().flatten().filter(|node| views.contains(*node)).take(TRIED_MAX) {
        let view = &checker.notes.views[(node - txns) as usize];
        let others = |other: u32| !views.contains(&other);
        let cycle = shortest(graph, *node, others).or_else(|| shortest(graph, *node, |_| true));
        let Some((_, cycle)) = cycle else { continue };
        let cycle = (form_of(view.viewer, &cycle), cycle);
        let lost = lost(checker, graph, *node);
        let is_told = lost.is_some() && is_of_time(&cycle.1);
        for (form, cycle) in Some(cycle).filter(|_| !is_told).into_iter().chain(lost) {
            if !told.contains(&form) {
                checker.findings.push(tale(checker, rows, &form, &cycle));
                told.push(form);
            }
        }
    }
    let among = graph.components(|node| views.contains(&node));
    for component in among.iter().take(2) {
        let members = component.iter().filter(|node| **node < txns).take(TRIED_MAX);
        let cycles =
            members.filter_map(|node| shortest(graph, *node, |other| !views.contains(&other)));
        if let Some((_, cycle)) = cycles.min_by_key(|(rank, cycle)| (*rank, cycle.len())) {
            let form = format!("transactions: {}", name(&cycle));
            checker.findings.push(tale(checker, rows, &form, &cycle));
        }
    }
}

/// The shortest cycle of the worst kind through a node, and how bad that kind is.
fn shortest(
    graph: &Graph,
    node: u32,
    may_pass: impl Fn(u32) -> bool + Copy,
) -> Option<(usize, Vec<Edge>)> {
    let follows = |kinds: Kinds| {
        move |edge: &Edge| kinds.has(edge.why) && (edge.to == node || may_pass(edge.to))
    };
    let search = |(rank, kinds): (usize, &_)| Some((rank, graph.cycle(node, follows(*kinds))?));
    SEARCHES.iter().enumerate().find_map(search)
}

/// A write that a cut took away although it was durable: by the promise of its own commit, of a reader's commit, or
/// of a flush behind it. It is lost even if another part of its transaction is there.
fn lost(checker: &Checker<'_>, graph: &Graph, node: u32) -> Option<(String, Vec<Edge>)> {
    let txns = checker.notes.txns.len() as u32;
    let viewer = checker.notes.views[(node - txns) as usize].viewer;
    if !matches!(viewer, Viewer::Cut | Viewer::Closed) {
        return None;
    }
    let times = txns + checker.notes.views.len() as u32;
    let acknowledged = |to: u32| to < txns && checker.txn(to).is_durable;
    let itself = |edge: &Edge| match edge.why {
        Why::Rw => edge.from == node && acknowledged(edge.to),
        Why::Durable => edge.from != node,
        _ => false,
    };
    // Other views are no witnesses: one of them may itself be wrong.
    let is_view = |other: u32| (txns..times).contains(&other) && other != node;
    let by_others = |edge: &Edge| match edge.why {
        Why::Rw => edge.from == node,
        Why::Wr | Why::Durable => edge.from != node && !is_view(edge.to),
        Why::Time => edge.to >= times,
        Why::Ww | Why::Order => false,
    };
    let is_promised = |cycle: &Vec<Edge>| cycle.last().is_some_and(|edge| edge.why == Why::Durable);
    let own = graph.cycle(node, itself).filter(is_promised);
    if let Some(cycle) = own {
        return Some((format!("{}: acknowledged commit lost", viewer.name()), cycle));
    }
    let cycle = graph.cycle(node, by_others).filter(is_promised)?;
    Some((form_of(viewer, &cycle), cycle))
}

/// The form of a cycle, by the kind of view.
fn form_of(viewer: Viewer, cycle: &[Edge]) -> String {
    let what = match (viewer, is_of_time(cycle)) {
        (Viewer::Cut | Viewer::Closed, true) => "lost",
        (Viewer::Cut | Viewer::Closed, false) => "half",
        (_, true) => "stale",
        (_, false) => "torn",
    };
    format!("{}: {what}", viewer.name())
}

fn is_of_time(cycle: &[Edge]) -> bool {
    cycle.iter().any(|edge| matches!(edge.why, Why::Durable | Why::Time))
}

fn tale(checker: &Checker<'_>, rows: &Rows, form: &str, cycle: &[Edge]) -> super::Finding {
    let mut text = name(cycle);
    let is_time = |node: u32| node as usize >= checker.notes.txns.len() + checker.notes.views.len();
    for edge in cycle.iter().take(40) {
        if is_time(edge.from) {
            continue;
        }
        let row = edge.row.and_then(|row| rows.rows.get(row as usize));
        let row = row.map_or_else(String::new, |row| match edge.why {
            Why::Rw => format!(" {} as {}", row.key, seen(checker, edge.from, row.key)),
            _ => format!(" {}", row.key),
        });
        text.push_str(&format!("\n    {} --{}{row}-->", checker.label(edge.from), edge.why.name()));
    }
    for row in cycle.iter().filter(|edge| edge.why == Why::Rw).filter_map(|edge| edge.row).take(2) {
        let row = &rows.rows[row as usize];
        text.push_str(&format!("\n    {} was {}", row.key, row.base));
        let is_near =
            |entry: &&Entry| cycle.iter().any(|edge| edge.from.abs_diff(entry.node) < 400);
        for entry in row.entries.iter().filter(is_near).take(12) {
            text.push_str(&format!(", {} by {}", entry.look, checker.label(entry.node)));
        }
    }
    super::Finding::new(form, text)
}

/// A row as a reader saw it.
fn seen(checker: &Checker<'_>, reader: u32, key: Key) -> Look {
    let ops = checker.readers().nth(reader as usize).map_or(&[][..], |(_, ops)| ops);
    let look = ops.iter().find_map(|op| match op {
        Op::Read(read, look) if *read == key => Some(*look),
        Op::Scan { rows, .. } => rows.iter().find(|(read, _)| *read == key).map(|(_, look)| *look),
        _ => None,
    });
    look.unwrap_or(Look::Absent)
}
