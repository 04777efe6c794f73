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
    let seen: Vec<Seen> =
        checker.readers().map(|(reader, ops)| seen_by(checker, rows, reader, ops)).collect();
    let places = places_of(checker, rows, &seen);
    for (reader, (seen, places)) in (0..).zip(seen.iter().zip(places)) {
        read_edges(checker, rows, (reader, places), seen, &mut edges);
    }
    edges
}

/// Rows as a reader saw them.
type Seen = Vec<(Key, Look)>;

fn seen_by(checker: &Checker<'_>, rows: &Rows, reader: u32, ops: &[Op]) -> Seen {
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
    seen
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
    (reader, places): (u32, Places),
    seen: &[(Key, Look)],
    edges: &mut Vec<Edge>,
) {
    for (key, look) in seen {
        let Some(number) = rows.numbers.get(key).copied() else { continue };
        let row = &rows.rows[number as usize];
        if *look == Look::Absent
            && row.look(row.newest(places.least)) != *look
            && row.adrift.iter().any(|(_, written)| written == look)
        {
            // The transaction that deleted it never returned, so the time of the delete is unknown (C1).
            continue;
        }
        // A look that several versions have in turn: the read is behind the first of them, and before the end of the
        // last.
        let (first, last) = match look {
            Look::Version(_) if row.base == *look => (Some(At::Base), Some(At::Base)),
            Look::Version(version) => {
                let place = rows.places.get(version).filter(|(row, _)| *row == number);
                let at = place.map(|(_, index)| At::Entry(*index));
                (at, at)
            }
            Look::Absent => {
                let run = |place| row.nearest(row.newest(place), *look).map(|at| row.run(at));
                (run(places.least).map(|run| run.0), run(places.most).map(|run| run.1))
            }
            Look::Content(_) => (row.alike(*look).last(), row.alike(*look).next()),
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

/// The places in the order of commits that may explain the reads of a reader.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    /// Behind all writes that it read or had to see, and where its missing rows were missing.
    least: u64,
    /// Before all writes that it would have seen, as far as the versions that it read tell.
    most: u64,
}

impl Places {
    fn of(
        checker: &Checker<'_>,
        rows: &Rows,
        reader: u32,
        seen: &[(Key, Look)],
        place_min: u64,
    ) -> Self {
        let read = |(_, look): &(Key, Look)| match look {
            Look::Version(version) => rows.places.get(version).copied(),
            _ => None,
        };
        let (mut least, mut most) = (place_min, u64::MAX);
        for (row, index) in seen.iter().filter_map(read) {
            let row = &rows.rows[row as usize];
            let place = row.entries[index].place;
            least = least.max(place);
            // A version whose place is unknown has the place of the one before.
            let next = row.later(At::Entry(index)).find(|next| next.place > place);
            most = most.min(next.map_or(u64::MAX, |next| next.place - 1));
        }
        if (reader as usize) < checker.notes.txns.len()
            && let own @ 1.. = checker.places[reader as usize]
        {
            return Self { least: own - 1, most: own - 1 };
        }
        loop {
            let before = least;
            for (key, look) in seen.iter().filter(|(_, look)| *look == Look::Absent) {
                let Some(number) = rows.numbers.get(key) else { continue };
                let row = &rows.rows[*number as usize];
                let newest = row.newest(least);
                if row.look(newest) != *look
                    // A delete whose time is unknown explains it at any place.
                    && !row.adrift.iter().any(|(_, written)| written == look)
                    && let Some(entry) = row.later(newest).find(|entry| entry.look == *look)
                {
                    least = least.max(entry.place);
                }
            }
            if least == before {
                return Self { least, most: most.max(least) };
            }
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
        if waits(txn) {
            durable.push((ended, node));
        }
    }
    placed.sort_unstable();
    let pairs = placed.windows(2).filter_map(|pair| <&[_; 2]>::try_from(pair).ok());
    edges.extend(pairs.map(|[(_, before), (_, after)]| plain(*before, *after, Why::Order)));
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

/// The places of each reader: none before those of a reader that it comes behind by time, none behind a commit that
/// began when the reader was through.
fn places_of(checker: &Checker<'_>, rows: &Rows, seen: &[Seen]) -> Vec<Places> {
    let txns = checker.notes.txns.len();
    let view = |node: u32| &checker.notes.views[node as usize - txns];
    let mut events = Vec::new();
    for (node, txn) in (0..).zip(&checker.notes.txns) {
        events.push((txn.begun, Event::Begun(node)));
        let ended = txn.ended.filter(|_| txn.outcome != Outcome::Unknown);
        events.extend(ended.map(|ended| (ended, Event::Ended(node))));
    }
    for (node, view) in checker.views() {
        events.push((view.begun, Event::Begun(node)));
        events.push((view.ended, Event::Ended(node)));
    }
    for (number, flush) in checker.notes.flushes.iter().enumerate() {
        events.push((flush.begun, Event::FlushBegun(number)));
        events.push((flush.ended, Event::FlushEnded(number)));
    }
    events.sort_unstable();
    // The highest places of commits that began, and of readers that were over, or durable.
    let (mut begun, mut over, mut durable) = (0, 0, 0);
    let mut places = vec![Places::default(); seen.len()];
    let mut flushes = vec![0; checker.notes.flushes.len()];
    for (_, event) in events {
        match event {
            Event::Begun(node) => {
                let is_txn = (node as usize) < txns;
                let is_behind_all =
                    is_txn || matches!(view(node).viewer, Viewer::Kept | Viewer::Closed);
                let place_min = if is_behind_all { over } else { durable };
                let seen = &seen[node as usize];
                places[node as usize] = Places::of(checker, rows, node, seen, place_min);
                if is_txn {
                    begun = begun.max(checker.places[node as usize]);
                }
            }
            Event::Ended(node) => {
                let Places { least, most } = &mut places[node as usize];
                *most = (*most).min(begun).max(*least);
                let mut place = *least;
                let is_durable = if (node as usize) < txns {
                    place = place.max(checker.places[node as usize]);
                    over = over.max(place);
                    waits(checker.txn(node))
                } else {
                    matches!(view(node).viewer, Viewer::Snapshot | Viewer::Kept)
                };
                if is_durable {
                    durable = durable.max(place);
                }
            }
            Event::FlushBegun(number) => flushes[number] = over,
            Event::FlushEnded(number) => durable = durable.max(flushes[number]),
        }
    }
    places
}

/// Beginnings and ends. Of one stamp, beginnings come first: they do not come behind the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Begun(u32),
    FlushBegun(usize),
    Ended(u32),
    FlushEnded(usize),
}

/// Whether the end of a transaction says that all it saw is durable.
fn waits(txn: &Txn) -> bool {
    txn.outcome != Outcome::Aborted && txn.waits()
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
