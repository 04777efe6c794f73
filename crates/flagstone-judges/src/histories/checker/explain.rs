//! Cycles, told to people: the shortest one of the worst kind, for whoever is part of one.

use super::super::record::{Key, Look, Op};
use super::graph::{Edge, Graph, SEARCHES, Why, name};
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
        let form = form_of(view.viewer, &cycle);
        if !told.contains(&form) {
            checker.findings.push(tale(checker, rows, &form, &cycle));
            told.push(form);
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
    let search = |(rank, kinds): (usize, &_)| Some((rank, graph.cycle(node, *kinds, may_pass)?));
    SEARCHES.iter().enumerate().find_map(search)
}

/// What a cycle means to who looked.
fn form_of(viewer: Viewer, cycle: &[Edge]) -> String {
    let lacks = cycle.iter().any(|edge| matches!(edge.why, Why::Durable | Why::Time));
    let what = match (viewer, lacks) {
        (Viewer::Cut | Viewer::Closed, true) => "lost",
        (Viewer::Cut | Viewer::Closed, false) => "half",
        (_, true) => "stale",
        (_, false) => "torn",
    };
    format!("{}: {what}", viewer.name())
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

/// How a reader saw a row.
fn seen(checker: &Checker<'_>, reader: u32, key: Key) -> Look {
    let ops = checker.readers().nth(reader as usize).map_or(&[][..], |(_, ops)| ops);
    let look = ops.iter().find_map(|op| match op {
        Op::Read(read, look) if *read == key => Some(*look),
        Op::Scan { rows, .. } => rows.iter().find(|(read, _)| *read == key).map(|(_, look)| *look),
        _ => None,
    });
    look.unwrap_or(Look::Absent)
}
