//! One client: a drawn transaction or snapshot, taken a call at a time.
//!
//! Owns the client's remaining acts and the event it waits for. Never decides whose turn it is.

use std::collections::VecDeque;

use flagstone_engine::{
    Direction, Durability, Engine, Fetch, Fetched, Read, Row, RowValue, Savepoint, ScanRange,
    SnapshotId, Stop, Table, Ticket, Wait, Xid,
};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;

use super::graph::{Anomaly, Element, History, ListKey, NodeIndex, Reader};

/// Lists of a history.
pub(super) const LIST_COUNT: u16 = 120;

/// Elements that a list holds; an append to a full one only reads.
pub(super) const LIST_SIZE_MAX: usize = 24;

/// Lists that most operations go to at a time, so that clients meet.
const HOT_COUNT: u64 = 8;

/// Operations of a transaction, at most.
const ACT_COUNT_MAX: u64 = 7;

/// Lists of a scan, at most.
const SCAN_COUNT_MAX: u64 = 12;

/// Rows that a scan takes a call.
const BATCH_COUNT: usize = 5;

/// Act of one step.
#[derive(Clone, Copy, Debug)]
enum Act {
    Get(ListKey),
    Scan(ListKey, u16, Direction),
    Append(ListKey, How),
    Savepoint,
    RollBack,
    Commit(Durability),
    Abort,
}

/// How an append is done.
#[derive(Clone, Copy, Debug)]
struct How {
    /// Locks for the change before it reads, rather than after.
    locks_first: bool,
    /// Changes the bytes of the element, rather than the whole value.
    patches: bool,
}

/// Handle by which the engine knows a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handle {
    Transaction(Xid),
    Snapshot(SnapshotId),
}

/// Event that a client waits for.
#[derive(Debug)]
pub(super) enum Waiting {
    Nothing,
    Lock,
    Room,
    /// A page that is not read yet; slowly, when it is overtaken by much.
    Read(Fetch, Pace),
    /// A page that was read and not handed over yet.
    Page(Fetched),
}

/// How soon a page is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    AtTheNextTurn,
    Slow,
}

/// Why a turn ended before its step was done.
#[derive(Debug)]
pub(super) enum Halt {
    Stop(Stop),
    Anomaly(Anomaly),
}

impl From<Stop> for Halt {
    fn from(stop: Stop) -> Self {
        Self::Stop(stop)
    }
}

impl From<Anomaly> for Halt {
    fn from(anomaly: Anomaly) -> Self {
        Self::Anomaly(anomaly)
    }
}

/// Result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// There is more to do.
    GoesOn,
    /// It ended; the commit's ticket, when it committed and wants to be told.
    Over(Option<Ticket>),
}

/// A scan that is under way.
#[derive(Debug)]
struct Scanning {
    rest: Option<ScanRange>,
    rows: Vec<Row>,
}

/// A transaction or snapshot under way.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) node: NodeIndex,
    pub(super) handle: Handle,
    pub(super) waiting: Waiting,
    acts: VecDeque<Act>,
    scanning: Option<Scanning>,
    /// The list that an append under way has read.
    appending: Option<Vec<Element>>,
    savepoint: Option<(Savepoint, usize)>,
}

pub(super) fn below(random: &mut Pcg64Mcg, bound: u64) -> u64 {
    random.next_u64() % bound
}

pub(super) fn draw_key(random: &mut Pcg64Mcg, hot: u64) -> ListKey {
    let number = match below(random, 4) {
        0 => below(random, u64::from(LIST_COUNT)),
        _ => hot + below(random, HOT_COUNT),
    };
    ListKey((number % u64::from(LIST_COUNT)) as u16)
}

fn draw_act(random: &mut Pcg64Mcg, reader: Reader, hot: u64) -> Act {
    let key = draw_key(random, hot);
    let direction = [Direction::Forward, Direction::Backward][below(random, 2) as usize];
    let scan = Act::Scan(key, 1 + below(random, SCAN_COUNT_MAX) as u16, direction);
    let how = How { locks_first: below(random, 2) == 0, patches: below(random, 2) == 0 };
    match (reader, below(random, 16)) {
        (_, 0..2) => scan,
        (Reader::Snapshot, _) | (_, 2..6) => Act::Get(key),
        (_, 6) => Act::Savepoint,
        (_, 7) => Act::RollBack,
        _ => Act::Append(key, how),
    }
}

fn draw_end(random: &mut Pcg64Mcg, reader: Reader) -> Option<Act> {
    match (reader, below(random, 16)) {
        (Reader::Snapshot, _) => None,
        (_, 0) => Some(Act::Abort),
        (_, 1..5) => Some(Act::Commit(Durability::Deferred)),
        _ => Some(Act::Commit(Durability::Immediate)),
    }
}

/// Key of a list in the table.
pub(super) fn key_of(key: ListKey) -> [u8; 2] {
    key.0.to_be_bytes()
}

/// The list that a value holds.
pub(super) fn list_of(value: &[u8]) -> Vec<Element> {
    let words = value.as_chunks::<4>().0.iter().map(|bytes| Element(u32::from_le_bytes(*bytes)));
    words.take_while(|element| *element != Element(0)).collect()
}

pub(super) fn value_of(list: &[Element]) -> Vec<u8> {
    let mut value: Vec<u8> = list.iter().flat_map(|element| element.0.to_le_bytes()).collect();
    value.resize(4 * LIST_SIZE_MAX, 0);
    value
}

impl Client {
    /// Draws the acts of a client that begins as `handle`.
    pub(super) fn drawn(
        random: &mut Pcg64Mcg,
        history: &mut History,
        (reader, handle): (Reader, Handle),
        hot: u64,
    ) -> Self {
        let count = 1 + below(random, ACT_COUNT_MAX);
        let mut acts: VecDeque<Act> = (0..count).map(|_| draw_act(random, reader, hot)).collect();
        acts.extend(draw_end(random, reader));
        let (scanning, appending, savepoint) = (None, None, None);
        let (node, waiting) = (history.begin(reader), Waiting::Nothing);
        Self { node, handle, waiting, acts, scanning, appending, savepoint }
    }

    pub(super) fn is_named(&self, woken: &[Xid]) -> bool {
        matches!(self.handle, Handle::Transaction(xid) if woken.contains(&xid))
    }

    /// Takes one call of the step that is due.
    pub(super) fn go_on(
        &mut self,
        engine: &mut Engine,
        table: Table,
        history: &mut History,
    ) -> Result<Turn, Halt> {
        let Some(act) = self.acts.front().copied() else { return Ok(self.end(engine, history)) };
        let is_done = match act {
            Act::Get(key) => self.get(engine, table, history, key).map(|_| true),
            Act::Scan(low, count, way) => self.scan(engine, table, history, (low, count, way)),
            Act::Append(key, how) => self.append(engine, table, history, (key, how)),
            Act::Savepoint | Act::RollBack => self.savepoint(engine, history, act).map(|()| true),
            Act::Commit(durability) => return self.commit(engine, history, durability),
            Act::Abort => return Ok(self.abort(engine, history)),
        }?;
        if is_done {
            self.acts.pop_front();
        }
        Ok(Turn::GoesOn)
    }

    fn get(
        &self,
        engine: &mut Engine,
        table: Table,
        history: &mut History,
        key: ListKey,
    ) -> Result<Vec<Element>, Halt> {
        let mut value = Vec::new();
        let read = match self.handle {
            Handle::Transaction(xid) => engine.get(xid, table, &key_of(key), &mut value),
            Handle::Snapshot(id) => engine.get_snapshot(id, table, &key_of(key), &mut value),
        }?;
        let list = if read == Read::Inline { list_of(&value) } else { Vec::new() };
        history.read(self.node, key, list.clone())?;
        Ok(list)
    }

    /// Takes a part of a scan; at its end every list of the range has been read, absent ones too.
    fn scan(
        &mut self,
        engine: &mut Engine,
        table: Table,
        history: &mut History,
        (low, count, way): (ListKey, u16, Direction),
    ) -> Result<bool, Halt> {
        let high = ListKey(low.0 + count);
        let scanning = self.scanning.get_or_insert_with(|| {
            let range = ScanRange { low: key_of(low).into(), high: Some(key_of(high).into()) };
            Scanning { rest: Some(range), rows: Vec::new() }
        });
        if let Some(rest) = &scanning.rest {
            let rows = &mut scanning.rows;
            scanning.rest = match self.handle {
                Handle::Transaction(xid) => engine.scan(xid, table, rest, way, BATCH_COUNT, rows),
                Handle::Snapshot(id) => {
                    engine.scan_snapshot(id, table, rest, way, BATCH_COUNT, rows)
                }
            }?;
        }
        if scanning.rest.is_some() {
            return Ok(false);
        }
        let rows = self.scanning.take().map(|scanning| scanning.rows).unwrap_or_default();
        for key in (low.0..high.0).map(ListKey) {
            let row = rows.iter().find(|row| row.key == key_of(key));
            let list = match row.map(|row| &row.value) {
                Some(RowValue::Inline(value)) => list_of(value),
                _ => Vec::new(),
            };
            history.read(self.node, key, list)?;
        }
        Ok(true)
    }

    fn append(
        &mut self,
        engine: &mut Engine,
        table: Table,
        history: &mut History,
        (key, how): (ListKey, How),
    ) -> Result<bool, Halt> {
        let Handle::Transaction(xid) = self.handle else { return Ok(true) };
        let Some(list) = &self.appending else {
            if how.locks_first {
                engine.lock_key(xid, table, &key_of(key))?;
            }
            self.appending = Some(self.get(engine, table, history, key)?);
            return Ok(false);
        };
        if list.len() < LIST_SIZE_MAX {
            // Asked for anew after a stop: an element counts when its change is made.
            let element = history.next_element();
            let bytes = element.0.to_le_bytes();
            if how.patches && !list.is_empty() {
                engine.patch(xid, table, &key_of(key), 4 * list.len(), &bytes)?;
            } else {
                let longer: Vec<Element> = list.iter().copied().chain([element]).collect();
                engine.put(xid, table, &key_of(key), &value_of(&longer))?;
            }
            history.append(self.node, key);
        }
        self.appending = None;
        Ok(true)
    }

    fn savepoint(
        &mut self,
        engine: &mut Engine,
        history: &mut History,
        act: Act,
    ) -> Result<(), Halt> {
        let Handle::Transaction(xid) = self.handle else { return Ok(()) };
        match (act, self.savepoint) {
            (Act::Savepoint, _) => {
                let count = history.append_count(self.node);
                self.savepoint = Some((engine.savepoint(xid)?, count));
            }
            (_, Some((savepoint, count))) => {
                engine.rollback_to(xid, savepoint)?;
                history.roll_back(self.node, count);
            }
            _ => {}
        }
        Ok(())
    }

    fn commit(
        &mut self,
        engine: &mut Engine,
        history: &mut History,
        durability: Durability,
    ) -> Result<Turn, Halt> {
        let Handle::Transaction(xid) = self.handle else { return Ok(Turn::Over(None)) };
        let step = engine.commit(xid, durability);
        if matches!(step, Err(Stop::Wait(Wait::CommitPages))) {
            history.committing(self.node);
        }
        let ticket = step?;
        history.committed_at(self.node, ticket.place);
        Ok(Turn::Over(Some(ticket)))
    }

    fn abort(&self, engine: &mut Engine, history: &mut History) -> Turn {
        if let Handle::Transaction(xid) = self.handle {
            engine.abort(xid);
        }
        history.aborted(self.node);
        Turn::Over(None)
    }

    /// A snapshot has nothing left to read.
    fn end(&self, engine: &mut Engine, history: &mut History) -> Turn {
        if let Handle::Snapshot(id) = self.handle {
            engine.end_snapshot(id);
            history.snapshot_ended(self.node);
        }
        Turn::Over(None)
    }
}
