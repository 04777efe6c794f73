//! The versions of each row, in the order in which they were written.
//!
//! - **V1** A list shows the order of its appends: all reads of it have to agree. Other rows go by the places of
//!   their writers in the order of commits. These places are checked, not believed: a wrong place makes a cycle with
//!   the reads. The tables of a thread are changed by that thread alone.
//! - **V2** A write whose place is not known, because its transaction never returned, stands behind the version that
//!   its transaction had read. If it had read none, the write has no place.

use hashbrown::HashMap;

use super::super::record::{Area, Finding, Key, List, Look, Op, Outcome, Version};
use super::Checker;

/// A version of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) node: u32,
    /// Place in the order of commits; where it is unknown, the place of the version before.
    pub(super) place: u64,
    pub(super) look: Look,
}

/// The versions of one row in a session, behind the one at its beginning.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) key: Key,
    pub(super) base: Look,
    pub(super) entries: Vec<Entry>,
    /// Writes without a place (V2).
    pub(super) adrift: Vec<(u32, Look)>,
}

/// Which version of a row: the one at the beginning of the session, or one of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    Base,
    Entry(usize),
}

impl Row {
    pub(super) fn look(&self, at: At) -> Look {
        match at {
            At::Base => self.base,
            At::Entry(index) => self.entries[index].look,
        }
    }

    /// The version that is the newest one at a place in the order of commits.
    pub(super) fn newest(&self, place: u64) -> At {
        match self.entries.partition_point(|entry| entry.place <= place) {
            0 => At::Base,
            count => At::Entry(count - 1),
        }
    }

    /// All later versions.
    pub(super) fn later(&self, at: At) -> impl Iterator<Item = &Entry> {
        let start = match at {
            At::Base => 0,
            At::Entry(index) => index + 1,
        };
        self.entries[start..].iter()
    }

    /// The next version.
    pub(super) fn next(&self, at: At) -> Option<&Entry> {
        self.later(at).next()
    }

    /// All versions, the newest first.
    fn all(&self) -> impl Iterator<Item = At> {
        (0..self.entries.len()).rev().map(At::Entry).chain([At::Base])
    }

    /// The version of this look that is the newest one up to `at`; else the first one behind it.
    pub(super) fn nearest(&self, at: At, look: Look) -> Option<At> {
        let rank = |at: At| match at {
            At::Base => 0,
            At::Entry(index) => index + 1,
        };
        let same = |other: &At| self.look(*other) == look;
        self.all()
            .filter(|other| rank(*other) <= rank(at))
            .find(same)
            .or_else(|| self.all().filter(|other| rank(*other) > rank(at) && same(other)).last())
    }

    /// The first and the last of the versions around `at` that follow one another with its look: a reader cannot
    /// tell them apart.
    pub(super) fn run(&self, at: At) -> (At, At) {
        let look = self.look(at);
        let start = match at {
            At::Base => 0,
            At::Entry(index) => index + 1,
        };
        let alike = self.entries[..start].iter().rev().take_while(|entry| entry.look == look);
        let first = match start - alike.count() {
            0 if self.base == look => At::Base,
            first => At::Entry(first),
        };
        let more = self.entries[start..].iter().take_while(|entry| entry.look == look).count();
        let last = (start + more).checked_sub(1).map_or(At::Base, At::Entry);
        (first, last)
    }

    /// All versions of this look, the newest first.
    pub(super) fn alike(&self, look: Look) -> impl Iterator<Item = At> {
        self.all().filter(move |at| self.look(*at) == look)
    }
}

/// All rows of a session.
pub(super) struct Rows {
    pub(super) rows: Vec<Row>,
    pub(super) numbers: HashMap<Key, u32>,
    /// All keys, in order.
    pub(super) sorted: Vec<(Key, u32)>,
    /// Place of each version that a value carries.
    pub(super) places: HashMap<Version, (u32, usize)>,
    pub(super) conflicts: Vec<Finding>,
}

impl Rows {
    pub(super) fn of(checker: &Checker<'_>) -> Self {
        let mut rows = Self {
            rows: Vec::new(),
            numbers: HashMap::new(),
            sorted: Vec::new(),
            places: HashMap::new(),
            conflicts: Vec::new(),
        };
        for key in checker.base.rows.keys() {
            rows.number(checker, *key);
        }
        let lists = rows.lists(checker);
        rows.take_writes(checker);
        rows.sort(&lists);
        rows.place_unknown(checker);
        for (number, row) in (0..).zip(&rows.rows) {
            for (index, entry) in row.entries.iter().enumerate() {
                if let Look::Version(version) = entry.look {
                    rows.places.insert(version, (number, index));
                }
            }
        }
        rows.sorted = rows.numbers.iter().map(|(key, number)| (*key, *number)).collect();
        rows.sorted.sort_unstable();
        rows
    }

    fn number(&mut self, checker: &Checker<'_>, key: Key) -> u32 {
        let next = self.rows.len() as u32;
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            let base = checker.base_look(key);
            self.rows.push(Row { key, base, entries: Vec::new(), adrift: Vec::new() });
        }
        number
    }

    /// Position of each element that was ever seen in a list (V1).
    fn lists(&mut self, checker: &Checker<'_>) -> HashMap<Version, u64> {
        let mut positions: HashMap<(Key, u64), Version> = HashMap::new();
        let mut found = HashMap::new();
        let mut take = |key: Key, list: &List, reader: Option<u32>| {
            for (position, element) in (list.before..).zip(&list.elements) {
                found.insert(*element, position);
                let known = *positions.entry((key, position)).or_insert(*element);
                if known != *element && self.conflicts.len() < super::FINDINGS_MAX {
                    let who =
                        reader.map_or_else(|| "the beginning".into(), |node| checker.label(node));
                    let text = format!("{key} has at {position} {known}, and for {who} {element}");
                    self.conflicts.push(Finding::new("incompatible order", text));
                }
            }
        };
        for (key, list) in &checker.base.lists {
            take(*key, list, None);
        }
        for (reader, ops) in checker.readers() {
            let aborts = (reader as usize) < checker.notes.txns.len()
                && checker.txn(reader).outcome == Outcome::Aborted;
            for op in ops {
                if let Op::List(key, list) = op {
                    // Its own append went with it.
                    let own = list
                        .elements
                        .last()
                        .is_some_and(|last| checker.nodes.get(&last.writer()) == Some(&reader));
                    if !(own && (aborts || !checker.took_place_or_view(reader))) {
                        take(*key, list, Some(reader));
                    }
                }
            }
        }
        found
    }

    fn take_writes(&mut self, checker: &Checker<'_>) {
        for (node, txn) in (0..).zip(&checker.notes.txns) {
            if !checker.took_place(node) && txn.outcome != Outcome::Unknown {
                continue;
            }
            for op in &txn.ops {
                let Op::Write(key, _, look) = op else { continue };
                let number = self.number(checker, *key);
                let row = &mut self.rows[number as usize];
                match txn.outcome {
                    Outcome::Committed { .. } => {
                        let place = checker.places[node as usize];
                        row.entries.push(Entry { node, place, look: *look });
                    }
                    _ => row.adrift.push((node, *look)),
                }
            }
        }
    }

    fn sort(&mut self, lists: &HashMap<Version, u64>) {
        for row in &mut self.rows {
            let position = |entry: &Entry| match entry.look {
                Look::Version(version) => lists.get(&version).copied(),
                _ => None,
            };
            match row.key.area {
                // One thread changes them: its transactions are in the order of its calls.
                Area::Churn => row.entries.sort_by_key(|entry| entry.node),
                Area::Lists if row.entries.iter().all(|entry| position(entry).is_some()) => {
                    row.entries.sort_by_key(|entry| (position(entry), entry.place));
                }
                _ => row.entries.sort_by_key(|entry| entry.place),
            }
            let mut place = 0;
            for entry in &mut row.entries {
                place = place.max(entry.place);
                entry.place = place;
            }
        }
    }

    /// Places writes of transactions that never returned (V2).
    fn place_unknown(&mut self, checker: &Checker<'_>) {
        for row in &mut self.rows {
            let adrift = std::mem::take(&mut row.adrift);
            for (node, look) in adrift {
                let read = read_before(checker, row.key, node);
                let behind = match (row.key.area, read) {
                    (Area::Churn, _) => Some(row.entries.len()),
                    (_, Some(read)) if read == row.base && !matches!(read, Look::Absent) => Some(0),
                    (_, Some(Look::Version(_))) => {
                        let found = row.entries.iter().position(|entry| Some(entry.look) == read);
                        found.map(|index| index + 1)
                    }
                    _ => None,
                };
                let is_seen = checker.took_place(node)
                    || row.key.area == Area::Churn && seen_content(checker, row.key, look);
                match behind {
                    Some(index) if is_seen => {
                        let before = index.checked_sub(1).and_then(|index| row.entries.get(index));
                        let place = before.map_or(0, |entry| entry.place);
                        row.entries.insert(index, Entry { node, place, look });
                    }
                    _ => row.adrift.push((node, look)),
                }
            }
        }
    }
}

/// The look of a row that a transaction read before it wrote the row, if it read it.
fn read_before(checker: &Checker<'_>, key: Key, node: u32) -> Option<Look> {
    checker.txn(node).ops.iter().find_map(|op| match op {
        Op::Read(read, look) if *read == key => Some(*look),
        _ => None,
    })
}

/// Whether a view shows the tables of a thread with this content.
fn seen_content(checker: &Checker<'_>, key: Key, look: Look) -> bool {
    checker.views().any(|(_, view)| {
        view.ops
            .iter()
            .any(|op| matches!(op, Op::Read(read, seen) if *read == key && *seen == look))
    })
}

impl Checker<'_> {
    fn took_place_or_view(&self, node: u32) -> bool {
        node as usize >= self.notes.txns.len() || self.took_place(node)
    }
}
