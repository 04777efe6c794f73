//! A database put together from its pages: the image of each key, and the later changes in log and
//! runs.
//!
//! - **SS1** A change counts if its LSN lies above the LSN up to which the image of its key is
//!   complete (rule D2). Changes apply in the order of LSNs.
//! - **SS2** In a transaction that spilled, the changes of its runs come before the changes of its
//!   record.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;

use flagstone_nand::{Nand, NandError};
use flagstone_space::{GroupId, Lsn, Survey};

use super::log::SalvagedLog;
use super::pages::{Piece, SalvagedPages, piece_at};
use super::{DoubtCause, MissingCause};
use crate::delta::{Op, Unpacker, Value, apply};
use crate::engine::{
    CATALOG, Input, Master, MasterRun, Table, is_name, is_rolled_back, named_table, run_entries,
    split_private_key, successor,
};
use crate::log::{Cursor, Record};
use crate::node::{NodeView, ValueRef};

/// A change of a key: its place among others, and its operation.
#[derive(Debug)]
struct Change {
    lsn: Lsn,
    /// Number of the change within its run; for a change from the log, above all of these (SS2).
    number: u64,
    op: Vec<u8>,
}

/// Number of a change from a record of the log.
const LOGGED: u64 = u64::MAX;

type Changed = BTreeMap<Vec<u8>, Vec<Change>>;

/// Rows of a part of a table; `None` for a deleted key.
type Rows = BTreeMap<Vec<u8>, Option<Value>>;

/// A row or a gap found in a range of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Salvaged {
    /// A row.
    Row {
        /// The key.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
    },
    /// A range whose rows, if any, do not come back.
    Missing {
        /// First key.
        low: Vec<u8>,
        /// First key behind the range; `None`: to the end of the table.
        high: Option<Vec<u8>>,
        /// Reason of the loss.
        cause: MissingCause,
    },
}

/// A database read page by page.
#[derive(Debug)]
pub struct Scanned<D> {
    survey: Survey<D>,
    pages: SalvagedPages,
    changes: BTreeMap<u32, Changed>,
    /// Unreadable pages of unknown content.
    unknown_pages: u64,
    has_gap: bool,
    has_lost_run: bool,
}

impl<D: Nand> Scanned<D> {
    /// Reads everything: units, then the log, for groups and for changes, then the runs.
    ///
    /// # Errors
    ///
    /// The device failed, other than by unreadable pages.
    pub fn of(mut survey: Survey<D>) -> Result<Self, NandError> {
        let mut pages = SalvagedPages::find(&mut survey)?;
        let log = SalvagedLog::find(&mut survey)?;
        let master = survey.user().and_then(Master::decode);
        let begin = master.as_ref().map(|master| master.begin.chain);
        let (mut committed, mut runs) = (HashSet::new(), Vec::new());
        let extent = log.each_record(&mut survey, begin, |lsn, record| {
            take_groups(lsn, record, &mut committed, &mut runs);
        })?;
        let durable = master.as_ref().map_or(Lsn::ZERO, |master| master.durable);
        let cutoff = master.as_ref().map_or(Lsn::ZERO, |master| master.cutoff);
        runs.extend(master.into_iter().flat_map(|master| master.runs));
        pages.settle(&committed);
        let mut scanned = Self {
            survey,
            pages,
            changes: BTreeMap::new(),
            unknown_pages: log.damaged_pages,
            has_gap: extent.has_gap || extent.last.max(cutoff) < durable,
            has_lost_run: false,
        };
        let Self { survey, pages, changes, .. } = &mut scanned;
        log.each_record(survey, begin, |lsn, record| {
            let mut put = |tree: u32, key: &[u8], op: Op<'_>, lsn: Lsn| {
                put(pages, changes, tree, key, op, (lsn, LOGGED));
            };
            // A record that does not decode although its checksum holds is ignored.
            let _ = take_changes(lsn, record, &mut put);
        })?;
        for run in &runs {
            scanned.take_run(run)?;
        }
        Ok(scanned)
    }

    /// Whether an unreadable page may have been part of the log: an end of the log left by a cut
    /// looks like one left by damage. A database that was closed has no commits there.
    #[must_use]
    pub fn may_lack_commits(&self) -> bool {
        self.unknown_pages > 0 && !self.survey.is_closed()
    }

    /// Whether nothing of a database was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages.trees.is_empty() && self.changes.is_empty()
    }

    /// Number of unreadable pages.
    #[must_use]
    pub fn damaged_pages(&self) -> u64 {
        self.unknown_pages + self.survey.lost_parts()
    }

    /// Reasons to doubt that these are the newest rows. There is always at least one: a page that
    /// was given up may be as readable as others.
    #[must_use]
    pub fn doubts(&self) -> Vec<DoubtCause> {
        let damage = self.damage();
        if damage.is_empty() { vec![DoubtCause::Unmounted] } else { damage }
    }

    /// The known damage.
    fn damage(&self) -> Vec<DoubtCause> {
        let (known, present) = self.survey.blocks();
        let causes = [
            (known.is_none(), DoubtCause::NoCheckpoint),
            (known.is_some_and(|known| known > present), DoubtCause::CutShort),
            (self.has_gap, DoubtCause::LogGap),
            (self.damaged_pages() > 0, DoubtCause::LostPages),
            (self.has_lost_run, DoubtCause::LostRun),
        ];
        causes.into_iter().filter_map(|(is_there, cause)| is_there.then_some(cause)).collect()
    }

    fn take_run(&mut self, run: &MasterRun) -> Result<(), NandError> {
        let mut image = Vec::new();
        for page in run.run.pages() {
            let unit = self.pages.grouped(run.run.group, page);
            let is_read = match &unit {
                Some(unit) => self.survey.read(unit, &mut image)?,
                None => false,
            };
            let Some(entries) = run_entries(&image).filter(|_| is_read) else {
                self.has_lost_run = true;
                continue;
            };
            for entry in entries {
                let Some(entry) = entry else {
                    self.has_lost_run = true;
                    break;
                };
                if !is_rolled_back(&run.rolled_back, entry.number) {
                    let (table, key) = split_private_key(entry.key);
                    let place = (run.lsn, entry.number);
                    put(&self.pages, &mut self.changes, table.id, key, entry.op, place);
                }
            }
        }
        Ok(())
    }

    /// Tables with their names; the last field is true for a made-up name. Where the catalog may be
    /// incomplete, trees that it does not name may be tables too.
    ///
    /// # Errors
    ///
    /// As [`Scanned::of`].
    pub fn tables(&mut self) -> Result<Vec<(String, Table, bool)>, NandError> {
        let mut catalog = BTreeMap::new();
        let mut is_whole = self.damage().is_empty();
        self.each_part(CATALOG, &[], None, |_, part| {
            is_whole &= part.is_covered;
            catalog.extend(part.rows);
            Ok(())
        })?;
        let (mut tables, mut known) = (Vec::new(), HashSet::from([CATALOG.id]));
        for (key, value) in catalog {
            let Some(Value::Inline(entry)) = value else { continue };
            if let Some((name, table)) = named_table(&key, &entry) {
                // An outdated catalog may name a tree twice.
                if known.insert(table.id) {
                    tables.push((name, table, false));
                }
            } else if !is_name(&key)
                && let Some(tree) = key.get(1..).and_then(|it| it.first_chunk())
            {
                known.insert(u32::from_be_bytes(*tree));
            }
        }
        if !is_whole {
            let found = self.pages.trees.keys().chain(self.changes.keys());
            let left: BTreeSet<u32> =
                found.filter(|tree| !known.contains(*tree)).copied().collect();
            for id in left {
                let mut name = format!("table-{id}");
                while tables.iter().any(|(taken, ..)| *taken == name) {
                    name.push('-');
                }
                tables.push((name, Table::of(id), true));
            }
        }
        Ok(tables)
    }

    /// Hands out the rows of a range and its gaps, in key order where nothing is missing.
    ///
    /// # Errors
    ///
    /// The device failed, other than by unreadable pages.
    pub fn rows(
        &mut self,
        table: Table,
        low: &[u8],
        high: Option<&[u8]>,
        mut take: impl FnMut(Salvaged),
    ) -> Result<(), NandError> {
        // A table whose pages were never written has no rows.
        let is_new = !self.pages.trees.contains_key(&table.id) && self.damage().is_empty();
        self.each_part(table, low, high, |scanned, part| {
            if !part.is_covered && !is_new {
                let (low, high) = (part.low, part.high);
                take(Salvaged::Missing { low, high, cause: MissingCause::Unreadable });
            }
            for (key, value) in part.rows {
                let value = match value {
                    None => continue,
                    Some(Value::Inline(bytes)) => Some(bytes),
                    Some(Value::Ref(descriptor)) => {
                        scanned.pages.value(&mut scanned.survey, &descriptor)?
                    }
                };
                take(match value {
                    Some(value) => Salvaged::Row { key, value },
                    None => {
                        let (high, cause) = (Some(successor(&key)), MissingCause::Value);
                        Salvaged::Missing { low: key, high, cause }
                    }
                });
            }
            Ok(())
        })
    }

    /// Hands out the parts of a range in order, each with one image or none.
    fn each_part(
        &mut self,
        table: Table,
        low: &[u8],
        high: Option<&[u8]>,
        mut take: impl FnMut(&mut Self, Part) -> Result<(), NandError>,
    ) -> Result<(), NandError> {
        let pieces = self.pages.trees.get(&table.id).cloned().unwrap_or_default();
        let mut low = low.to_vec();
        loop {
            if high.is_some_and(|high| low.as_slice() >= high) {
                return Ok(());
            }
            let behind = (Bound::Excluded(low.as_slice()), Bound::Unbounded);
            let (piece, end) = match piece_at(&pieces, &low) {
                Some(piece) => (Some(piece), piece.high.clone()),
                None => {
                    (None, pieces.range::<[u8], _>(behind).next().map(|(next, _)| next.clone()))
                }
            };
            let end = match (end, high) {
                (Some(end), Some(high)) => Some(end.min(high.to_vec())),
                (end, high) => end.or_else(|| high.map(<[u8]>::to_vec)),
            };
            let part = self.part(table, piece, low, end.clone())?;
            take(self, part)?;
            match end {
                Some(end) => low = end,
                None => return Ok(()),
            }
        }
    }

    /// The rows of one image, with the later changes applied.
    fn part(
        &mut self,
        table: Table,
        piece: Option<&Piece>,
        low: Vec<u8>,
        high: Option<Vec<u8>>,
    ) -> Result<Part, NandError> {
        let is_inside =
            |key: &[u8]| key >= low.as_slice() && high.as_deref().is_none_or(|high| key < high);
        let mut rows = Rows::new();
        let mut image = Vec::new();
        let is_covered = match piece {
            Some(piece) => self.survey.read(&piece.unit, &mut image)?,
            None => false,
        };
        image.resize(self.survey.payload_size(), 0xFF);
        if let Some(view) = NodeView::parse(&image).ok().filter(|_| is_covered) {
            for entry in view.entries() {
                let key = [entry.prefix, entry.suffix].concat();
                let value = match entry.value {
                    ValueRef::Inline(bytes) => Value::Inline(bytes.to_vec()),
                    ValueRef::Ref(descriptor) => Value::Ref(descriptor.to_vec()),
                };
                if is_inside(&key) {
                    rows.insert(key, Some(value));
                }
            }
        }
        let changes = self.changes.get(&table.id);
        let changed = changes.into_iter().flat_map(|changes| changes.range(low.clone()..));
        for (key, changes) in changed.take_while(|(key, _)| is_inside(key)) {
            let value = rows.entry(key.clone()).or_default();
            for change in changes {
                if let Ok(op) = Op::decode(&change.op) {
                    let _ = apply(op, value);
                }
            }
        }
        Ok(Part { low, high, is_covered, rows })
    }
}

/// Rows of the keys from `low` to `high`.
struct Part {
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    /// Whether an image holds them.
    is_covered: bool,
    rows: Rows,
}

/// Stores a change that the image of its key lacks (SS1), in order.
fn put(
    pages: &SalvagedPages,
    changes: &mut BTreeMap<u32, Changed>,
    tree: u32,
    key: &[u8],
    op: Op<'_>,
    (lsn, number): (Lsn, u64),
) {
    if pages.lsn_at(tree, key).is_some_and(|held| lsn <= held) {
        return;
    }
    let mut bytes = Vec::with_capacity(op.encoded_size());
    op.encode(&mut bytes);
    let of_key = changes.entry(tree).or_default().entry(key.to_vec()).or_default();
    let place = of_key.binary_search_by_key(&(lsn, number), |change| (change.lsn, change.number));
    match place {
        Err(at) => of_key.insert(at, Change { lsn, number, op: bytes }),
        // Another copy of the same change may have older changes folded in.
        Ok(at) if !matches!(op, Op::Patch(_)) => of_key[at].op = bytes,
        Ok(_) => {}
    }
}

/// Collects groups and runs from a record.
fn take_groups(
    lsn: Lsn,
    record: &[u8],
    committed: &mut HashSet<GroupId>,
    runs: &mut Vec<MasterRun>,
) {
    match Record::decode(record) {
        Ok(Record::Commit { group, runs: named, .. }) => {
            committed.insert(group);
            for run in named.iter().flatten() {
                let mut input = Input(Cursor::new(run.0));
                runs.extend(MasterRun::decode(&mut input).map(|run| MasterRun { lsn, ..run }));
            }
        }
        Ok(Record::Install(install)) => drop(committed.insert(install.group)),
        Ok(Record::Claimed { .. } | Record::Copy { .. } | Record::Open { .. }) | Err(_) => {}
    }
}

/// Hands every change of a record to `put`; `None` where decoding fails at some point.
fn take_changes(
    lsn: Lsn,
    record: &[u8],
    put: &mut impl FnMut(u32, &[u8], Op<'_>, Lsn),
) -> Option<()> {
    match Record::decode(record).ok()? {
        Record::Commit { changes, .. } => {
            let mut changes = Unpacker::new(changes);
            while let Some(change) = changes.next() {
                let change = change.ok()?;
                put(u32::try_from(change.number).ok()?, change.key, change.op, lsn);
            }
        }
        Record::Copy { tree, newest, changes, .. } => {
            let mut changes = Unpacker::new(changes);
            while let Some(change) = changes.next() {
                let change = change.ok()?;
                put(tree, change.key, change.op, Lsn(newest.0.checked_sub(change.number)?));
            }
        }
        Record::Install(_) | Record::Claimed { .. } | Record::Open { .. } => {}
    }
    Some(())
}
