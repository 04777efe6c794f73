//! The edges of the graph: between writers and readers of a row, and edges of time.

use hashbrown::HashSet;

use super::super::record::{Area, Key, Look, Op, Outcome, Txn, Version};
use super::rows::{At, Row, Rows};
use super::{Checker, Edge, Viewer, Why};

/// Edges by rows.
pub(super) fn between(checker: &mut Checker<'_>, rows: &Rows) -> Vec<Edge> {
    let mut edges = Vec::new();
    for (number, row) in (0..).zip(&rows.rows) {
        for pair in row.entries.windows(2) {
            let [before, after] = pair else { continue };
            push(&mut edges, before.node, after.node, Why::Ww, number);
        }
    }
    let times = Times::of(checker, rows);
    let readers: Vec<(u32, &[Op])> = checker.readers().collect();
    for (reader, ops) in readers {
        let mut seen = Vec::new();
        let written = |op: &Op| if let Op::Write(key, ..) = op { Some(*key) } else { None };
        let own: HashSet<Key> = ops.iter().filter_map(written).collect();
        for op in ops {
            match op {
                Op::Read(key, look) => seen.push((*key, *look)),
                Op::Scan { first, last, rows: found } => {
                    take_scan(checker, rows, reader, (*first, *last), found, &own, &mut seen);
                }
                _ => {}
            }
        }
        let place = place_of(checker, rows, reader, &seen, times.place_before(checker, reader));
        read_edges(checker, rows, (reader, place), &seen, &mut edges);
    }
    edges
}

fn push(edges: &mut Vec<Edge>, from: u32, to: u32, why: Why, row: u32) {
    if from != to {
        edges.push(Edge { from, to, why, row: Some(row) });
    }
}

/// Reads of a scan: the rows that it found, and no row everywhere else. The reader's own writes are left out.
fn take_scan(
    checker: &Checker<'_>,
    rows: &Rows,
    reader: u32,
    (first, last): (Key, Key),
    found: &[(Key, Look)],
    own: &HashSet<Key>,
    seen: &mut Vec<(Key, Look)>,
) {
    let is_own = |version: &Version| checker.nodes.get(&version.writer()) == Some(&reader);
    for (key, look) in found {
        if !matches!(look, Look::Version(version) if is_own(version)) {
            seen.push((*key, *look));
        }
    }
    let start = rows.sorted.partition_point(|(key, _)| *key < first);
    let mut found = found.iter().map(|(key, _)| *key).peekable();
    for (key, _) in rows.sorted[start..].iter().take_while(|(key, _)| *key <= last) {
        while found.next_if(|other| other < key).is_some() {}
        if found.peek() != Some(key) && !own.contains(key) {
            seen.push((*key, Look::Absent));
        }
    }
}

/// Edges of one reader, which saw these rows at one moment.
fn read_edges(
    checker: &mut Checker<'_>,
    rows: &Rows,
    (reader, place): (u32, u64),
    seen: &[(Key, Look)],
    edges: &mut Vec<Edge>,
) {
    for (key, look) in seen {
        let Some(number) = rows.numbers.get(key).copied() else { continue };
        let row = &rows.rows[number as usize];
        if *look == Look::Absent
            && row.look(row.newest(place)) != *look
            && row.adrift.iter().any(|(_, written)| written == look)
        {
            // The transaction that deleted it never returned, so the time of the delete is unknown (C1).
            continue;
        }
        let place = match look {
            Look::Version(_) if row.base == *look => Some(At::Base),
            Look::Version(version) => {
                let place = rows.places.get(version).filter(|(row, _)| *row == number);
                place.map(|(_, index)| At::Entry(*index))
            }
            Look::Absent => row.nearest(row.newest(place), Look::Absent),
            Look::Content(_) => None,
        };
        // The tables may have looked like this several times: the read is behind the first time, and before the end
        // of the last.
        let (first, last) = match look {
            Look::Content(_) => (row.alike(*look).last(), row.alike(*look).next()),
            _ => (place, place),
        };
        let (Some(first), Some(last)) = (first, last) else {
            if let Some((node, _)) = row.adrift.iter().find(|(_, written)| written == look) {
                push(edges, *node, reader, Why::Wr, number);
            }
            missed(checker, row, reader, *look);
            continue;
        };
        if let At::Entry(index) = first {
            push(edges, row.entries[index].node, reader, Why::Wr, number);
        }
        if let Some(next) = row.next(last) {
            push(edges, reader, next.node, Why::Rw, number);
        }
        adrift(checker, row, reader, last, number, edges);
    }
}

/// A place in the order of commits that explains a reader's reads: behind all writes that it read or had to see, and
/// where its missing rows were missing.
fn place_of(
    checker: &Checker<'_>,
    rows: &Rows,
    reader: u32,
    seen: &[(Key, Look)],
    place_min: u64,
) -> u64 {
    let row = |key: &Key| rows.numbers.get(key).map(|number| &rows.rows[*number as usize]);
    let place = |look: &Look| match look {
        Look::Version(version) => rows.places.get(version),
        _ => None,
    };
    let places = seen.iter().filter_map(|(_, look)| place(look));
    let places = places.map(|(row, index)| rows.rows[*row as usize].entries[*index].place);
    let seen_place = places.max().unwrap_or(0).max(place_min);
    let mut place = seen_place;
    if (reader as usize) < checker.notes.txns.len() {
        let txn = checker.txn(reader);
        match (checker.places[reader as usize], txn.outcome) {
            // Another commit that is told the same place may come before it.
            (own @ 1.., _) => return seen_place.min(own).max(own - 1),
            (0, Outcome::Committed { lsn: Some(lsn) }) => {
                return checker.place_by(lsn, txn.ended.unwrap_or(u64::MAX)).max(seen_place);
            }
            _ => {}
        }
    }
    loop {
        let before = place;
        for (key, look) in seen.iter().filter(|(_, look)| *look == Look::Absent) {
            let Some(row) = row(key) else { continue };
            let newest = row.newest(place);
            if row.look(newest) != *look
                && let Some(entry) = row.later(newest).find(|entry| entry.look == *look)
            {
                place = place.max(entry.place);
            }
        }
        if place == before {
            return place;
        }
    }
}

/// A reader saw a row as it never was.
fn missed(checker: &mut Checker<'_>, row: &Row, reader: u32, look: Look) {
    let is_adrift = row.adrift.iter().any(|(_, written)| *written == look);
    // A version that no write made is reported where its write is looked for.
    if is_adrift || matches!(look, Look::Version(_)) {
        return;
    }
    let form = match checker.views().find(|(node, _)| *node == reader) {
        Some((_, view)) => format!("{}: never was", view.viewer.name()),
        None => "never was".into(),
    };
    let text = format!("{} sees {} as {look}, which it never was", checker.label(reader), row.key);
    checker.found(&form, text);
}

/// A write without a place comes behind the base of the session, and behind all writes that were over before.
fn adrift(
    checker: &Checker<'_>,
    row: &Row,
    reader: u32,
    at: At,
    number: u32,
    edges: &mut Vec<Edge>,
) {
    if row.key.area == Area::Churn {
        return;
    }
    for (node, look) in &row.adrift {
        let begun = checker.txn(*node).begun;
        let is_before = match at {
            At::Base => true,
            At::Entry(index) => {
                checker.txn(row.entries[index].node).ended.is_some_and(|ended| ended < begun)
            }
        };
        if is_before && checker.took_place(*node) && row.look(at) != *look {
            push(edges, reader, *node, Why::Rw, number);
        }
    }
}

/// Adds the edges of time, of durability and of the order of commits; gives the number of all nodes.
///
/// A transaction that is over joins a chain, and one that begins comes behind the last link at that time.
pub(super) fn of_time(checker: &Checker<'_>, edges: &mut Vec<Edge>) -> usize {
    let plain = |from, to, why| Edge { from, to, why, row: None };
    let mut placed: Vec<(u64, u32)> = Vec::new();
    let (mut over, mut durable) = (Vec::new(), Vec::new());
    for (node, txn) in (0..).zip(&checker.notes.txns) {
        if let (Outcome::Committed { lsn: Some(lsn) }, true) = (txn.outcome, writes(txn)) {
            placed.push((lsn, node));
        }
        let Some(ended) = txn.ended.filter(|_| txn.outcome != Outcome::Unknown) else { continue };
        over.push((ended, node));
        // A transaction that saw and changed nothing waits for nobody.
        let waits = !matches!(txn.outcome, Outcome::Aborted | Outcome::Committed { lsn: Some(0) });
        if txn.is_durable && waits {
            durable.push((ended, node));
        }
    }
    placed.sort_unstable();
    // Commits by flags have the place of the commit before them: commits of one place are in any order.
    let groups: Vec<_> = placed.chunk_by(|one, other| one.0 == other.0).collect();
    for pair in groups.windows(2) {
        for (_, before) in pair[0] {
            edges.extend(pair[1].iter().map(|(_, after)| plain(*before, *after, Why::Order)));
        }
    }
    for (node, view) in checker.views() {
        match view.viewer {
            Viewer::Snapshot | Viewer::Kept => durable.push((view.ended, node)),
            Viewer::Backup | Viewer::Cut | Viewer::Closed => {}
        }
    }
    let mut nodes = (checker.notes.txns.len() + checker.notes.views.len()) as u32;
    let over = Chain::new(over, &mut nodes, Why::Time, edges);
    for flush in &checker.notes.flushes {
        if let Some(link) = over.before(flush.begun) {
            edges.push(plain(link, nodes, Why::Durable));
        }
        durable.push((flush.ended, nodes));
        nodes += 1;
    }
    let durable = Chain::new(durable, &mut nodes, Why::Durable, edges);
    for (node, txn) in (0..).zip(&checker.notes.txns) {
        edges.extend(over.before(txn.begun).map(|link| plain(link, node, Why::Time)));
    }
    for (node, view) in checker.views() {
        let link = match view.viewer {
            Viewer::Kept | Viewer::Closed => over.before(view.begun),
            Viewer::Snapshot | Viewer::Backup | Viewer::Cut => durable.before(view.begun),
        };
        edges.extend(link.map(|link| plain(link, node, Why::Durable)));
    }
    nodes as usize
}

fn writes(txn: &Txn) -> bool {
    txn.ops.iter().any(|op| matches!(op, Op::Write(..)))
}

/// The highest place in the order of commits among commits that were over, or durable, by a stamp.
struct Times {
    over: Vec<(u64, u64)>,
    durable: Vec<(u64, u64)>,
}

impl Times {
    fn of(checker: &Checker<'_>, rows: &Rows) -> Self {
        let (mut over, mut durable) = (Vec::new(), Vec::new());
        for (txn, place) in checker.notes.txns.iter().zip(&checker.places) {
            let Some(ended) = txn.ended.filter(|_| *place > 0) else { continue };
            over.push((ended, *place));
            if txn.is_durable {
                durable.push((ended, *place));
            }
        }
        let over = rising(over);
        for flush in &checker.notes.flushes {
            durable.push((flush.ended, highest(&over, flush.begun)));
        }
        for txn in &checker.notes.txns {
            // It was told no place, but it is behind all commits that were over before.
            if let (Outcome::Committed { lsn: None }, Some(ended)) = (txn.outcome, txn.ended) {
                durable.push((ended, highest(&over, txn.begun)));
            }
        }
        for (_, view) in checker.views() {
            if matches!(view.viewer, Viewer::Snapshot | Viewer::Kept) {
                durable.push((view.ended, newest_seen(rows, &view.ops)));
            }
        }
        Self { over, durable: rising(durable) }
    }

    /// The place that a reader is behind in any order.
    fn place_before(&self, checker: &Checker<'_>, reader: u32) -> u64 {
        if (reader as usize) < checker.notes.txns.len() {
            return highest(&self.over, checker.txn(reader).begun);
        }
        let view = &checker.notes.views[reader as usize - checker.notes.txns.len()];
        match view.viewer {
            Viewer::Kept | Viewer::Closed => highest(&self.over, view.begun),
            Viewer::Snapshot | Viewer::Backup | Viewer::Cut => highest(&self.durable, view.begun),
        }
    }
}

/// The highest place among the versions that a view shows.
fn newest_seen(rows: &Rows, ops: &[Op]) -> u64 {
    let place = |look: &Look| {
        let Look::Version(version) = look else { return None };
        let (row, index) = rows.places.get(version)?;
        Some(rows.rows[*row as usize].entries[*index].place)
    };
    let newest = |op: &Op| match op {
        Op::Read(_, look) => place(look),
        Op::Scan { rows, .. } => rows.iter().filter_map(|(_, look)| place(look)).max(),
        _ => None,
    };
    ops.iter().filter_map(newest).max().unwrap_or(0)
}

fn rising(mut places: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    places.sort_unstable();
    let mut highest = 0;
    for (_, place) in &mut places {
        highest = highest.max(*place);
        *place = highest;
    }
    places
}

fn highest(places: &[(u64, u64)], stamp: u64) -> u64 {
    let count = places.partition_point(|(ended, _)| *ended < stamp);
    count.checked_sub(1).map_or(0, |index| places[index].1)
}

/// Transactions that are over, in the order of their ends.
struct Chain {
    links: Vec<(u64, u32)>,
}

impl Chain {
    fn new(mut ends: Vec<(u64, u32)>, nodes: &mut u32, why: Why, edges: &mut Vec<Edge>) -> Self {
        ends.sort_unstable();
        let mut links: Vec<(u64, u32)> = Vec::with_capacity(ends.len());
        for (stamp, node) in ends {
            let link = *nodes;
            *nodes += 1;
            edges.push(Edge { from: node, to: link, why, row: None });
            if let Some((_, before)) = links.last() {
                edges.push(Edge { from: *before, to: link, why, row: None });
            }
            links.push((stamp, link));
        }
        Self { links }
    }

    /// The last link before a stamp.
    fn before(&self, stamp: u64) -> Option<u32> {
        let count = self.links.partition_point(|(ended, _)| *ended < stamp);
        count.checked_sub(1).map(|index| self.links[index].1)
    }
}
