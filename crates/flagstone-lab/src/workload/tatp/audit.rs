//! Conditions that hold in every state of the database (rule P3).
//!
//! Owns the comparison of all rows with the load and with the clients' requests since. An input has
//! *ended* where a later input of its client is known to have committed; its successors, up to the
//! next input that is bound to commit, *may* have ended, and no later input has begun.
//!
//! - Columns that no transaction changes, access data and the index are as loaded.
//! - A bit, a location, a facility's data hold a value that their writers leave ([`Claims`]); a
//!   subscriber and a facility that one transaction in flight changes are changed both or neither.
//! - A forwarded call has a facility. Where all inputs for its key have ended it is there if these
//!   only insert, and gone if they only delete; the number of all forwarded calls is the number
//!   loaded and inserted but not deleted, give or take one a client.

use std::collections::BTreeMap;

use thiserror::Error;

use super::rows::{digits, facility, forwarding_row, subscriber};
use super::{Class, Inputs, Stream, Subscriber, TABLE_NAMES, Tatp};
use crate::workload::claims::{Claims, Standing};
use crate::workload::{Acknowledged, GivingUp};

/// How a database contradicts TATP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// A row that was neither loaded nor inserted, or differs from its loaded form.
    #[error("{table} has a row of subscriber {subscriber} that nobody wrote so")]
    Row {
        /// Table.
        table: &'static str,
        /// Subscriber.
        subscriber: u32,
    },
    /// Rows are missing or too many.
    #[error("{table} has {found} rows, {expected} give or take {tolerance} are expected")]
    Rows {
        /// Table.
        table: &'static str,
        /// Rows found.
        found: u64,
        /// Rows loaded, and by the commits that returned.
        expected: u64,
        /// Transactions in flight.
        tolerance: u64,
    },
    /// A value that no client leaves there: a commit is lost.
    #[error("{cell:?} holds {found}, which no client left there")]
    Lost {
        /// Where.
        cell: Cell,
        /// Value found in the cell.
        found: u32,
    },
    /// A subscriber has changed and the facility has not, or the other way round.
    #[error("half of a transaction of client {client} is there, at {cell:?}")]
    Torn {
        /// Client.
        client: u64,
        /// A cell it wrote.
        cell: Cell,
    },
    /// A forwarded call is missing that was inserted, or there that was deleted.
    #[error("the calls of subscriber {subscriber}'s facility {kind} from {start} are wrong")]
    Forwarding {
        /// Subscriber.
        subscriber: u32,
        /// Facility.
        kind: u8,
        /// Hour.
        start: u8,
    },
}

/// A column that updates overwrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cell {
    /// The first bit of a subscriber.
    Bit(u32),
    /// The location of a subscriber.
    Location(u32),
    /// The data of a subscriber's facility of a type.
    Data(u32, u8),
}

/// Key of a forwarded call.
type ForwardKey = (u32, u8, u8);

/// Requests of clients on the forwarded calls under a key.
#[derive(Clone, Debug, Default)]
struct Asked {
    /// Rows of the inserts.
    rows: Vec<Vec<u8>>,
    has_inserts: bool,
    has_deletes: bool,
    /// Some input may not have ended.
    is_open: bool,
}

/// A transaction in flight that writes several cells.
#[derive(Clone, Copy, Debug)]
struct Flight {
    client: u64,
    cells: [Cell; 2],
}

/// Everything the checks need of all rows.
#[derive(Clone, Debug)]
pub struct Audit {
    tatp: Tatp,
    /// The subscriber that rows were compared with last.
    loaded: Option<Subscriber>,
    fault: Option<Fault>,
    rows: [u64; 5],
    claims: Claims<Cell, u32>,
    /// Values that claimed cells hold, and held when loaded.
    cells: BTreeMap<Cell, (u32, u32)>,
    flights: Vec<Flight>,
    asked: BTreeMap<ForwardKey, Asked>,
    /// Forwarded calls found under keys that were asked for.
    forwards: BTreeMap<ForwardKey, Vec<u8>>,
    clients: u64,
    /// Commits that returned: inserts and deletes of forwarded calls.
    changes: [u64; 2],
}

impl Audit {
    /// Nothing seen yet; `acknowledged` are the commits that returned.
    #[must_use]
    pub fn new(tatp: Tatp, acknowledged: &Acknowledged) -> Self {
        let mut audit = Self {
            tatp,
            loaded: None,
            fault: None,
            rows: [0; 5],
            claims: Claims::new(),
            cells: BTreeMap::new(),
            flights: Vec::new(),
            asked: BTreeMap::new(),
            forwards: BTreeMap::new(),
            clients: acknowledged.len() as u64,
            changes: [0; 2],
        };
        for (client, counts) in acknowledged {
            let count = |class: Class| counts.get(class as usize).copied().unwrap_or(0);
            audit.changes[0] += count(Class::InsertCallForwarding);
            audit.changes[1] += count(Class::DeleteCallForwarding);
            if tatp.giving_up == GivingUp::Never {
                audit.replay(*client, counts);
            }
        }
        audit
    }

    /// Goes through the inputs of a client as far as they may have ended.
    fn replay(&mut self, client: u64, counts: &[u64]) {
        let mut stream = Stream::new(self.tatp, client);
        let mut left = counts.to_vec();
        loop {
            let is_open = bound_classes().all(|class| left.get(class).is_none_or(|it| *it == 0));
            let inputs = stream.inputs();
            let one = self.tatp.subscriber(inputs.subscriber);
            let is_bound = self.is_bound_to_commit(&inputs, &one);
            let standing = if is_open { Standing::InFlight } else { Standing::Returned };
            if is_bound {
                self.claim(client, standing, &inputs, &one);
                if is_open {
                    return;
                }
                if let Some(count) = left.get_mut(inputs.class as usize) {
                    *count = count.saturating_sub(1);
                }
            }
            self.ask(&inputs, is_open);
        }
    }

    /// Whether a transaction commits, independent of the others.
    fn is_bound_to_commit(&self, inputs: &Inputs, one: &Subscriber) -> bool {
        match inputs.class {
            Class::GetSubscriberData | Class::UpdateLocation => true,
            Class::GetAccessData => one.has_access(inputs.kind),
            Class::UpdateSubscriberData => {
                self.tatp.dialect.commits_update(one.facility(inputs.kind).is_some())
            }
            _ => false,
        }
    }

    fn claim(&mut self, client: u64, standing: Standing, inputs: &Inputs, one: &Subscriber) {
        let id = inputs.subscriber;
        match inputs.class {
            Class::UpdateLocation => {
                self.claims.add(Cell::Location(id), client, standing, inputs.location);
            }
            Class::UpdateSubscriberData => {
                let bit = Cell::Bit(id);
                self.claims.add(bit, client, standing, u32::from(inputs.bit));
                if one.facility(inputs.kind).is_some() {
                    let data = Cell::Data(id, inputs.kind);
                    self.claims.add(data, client, standing, u32::from(inputs.data));
                    if standing == Standing::InFlight {
                        self.flights.push(Flight { client, cells: [bit, data] });
                    }
                }
            }
            _ => {}
        }
    }

    fn ask(&mut self, inputs: &Inputs, is_open: bool) {
        let is_insert = match inputs.class {
            Class::InsertCallForwarding => true,
            Class::DeleteCallForwarding => false,
            _ => return,
        };
        let key = (inputs.subscriber, inputs.kind, inputs.start);
        let asked = self.asked.entry(key).or_default();
        asked.is_open |= is_open;
        asked.has_inserts |= is_insert;
        asked.has_deletes |= !is_insert;
        if is_insert {
            asked.rows.push(forwarding_row(self.tatp.dialect, inputs.end, inputs.number));
        }
    }

    /// Adds a row of the table that is number `table` in [`TABLE_NAMES`].
    pub fn add(&mut self, table: usize, key: &[u8], value: &[u8]) {
        if let Some(count) = self.rows.get_mut(table) {
            *count += 1;
        }
        let id = if table == 1 { value } else { key };
        let id = id.first_chunk().map_or(0, |id| u32::from_be_bytes(*id));
        let one = match self.loaded.take() {
            Some(one) if one.id == id => one,
            _ => self.tatp.subscriber(id),
        };
        let is_known = (1..=self.tatp.subscribers).contains(&id);
        let is_right = is_known
            && match table {
                0 => self.subscriber(&one, key, value),
                1 => key == digits(u64::from(id)) && value.len() == 4,
                2 => matches!(key, [_, _, _, _, kind]
                    if one.access.iter().any(|(of, row)| of == kind && row == value)),
                3 => matches!(key, [_, _, _, _, kind] if self.facility(&one, *kind, value)),
                _ => matches!(key, [_, _, _, _, kind, start]
                    if self.forward(&one, *kind, *start, value)),
            };
        if !is_right {
            let table = TABLE_NAMES.get(table).copied().unwrap_or_default();
            self.fault.get_or_insert(Fault::Row { table, subscriber: id });
        }
        self.loaded = Some(one);
    }

    /// Checks the value of a cell, and keeps it where a transaction in flight claims the cell.
    fn look(&mut self, cell: Cell, found: u32, loaded: u32) {
        if self.tatp.giving_up == GivingUp::AtWill {
            return;
        }
        if !self.claims.explains(&cell, &found, &loaded) {
            self.fault.get_or_insert(Fault::Lost { cell, found });
        }
        if self.flights.iter().any(|flight| flight.cells.contains(&cell)) {
            self.cells.insert(cell, (found, loaded));
        }
    }

    fn subscriber(&mut self, one: &Subscriber, key: &[u8], value: &[u8]) -> bool {
        let (bit, vlr) = (subscriber::BIT_1.offset, subscriber::VLR_LOCATION.offset);
        let location = |row: &[u8]| {
            let bytes = row.get(vlr..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        let first = |row: &[u8]| row.get(bit).copied().map_or(0, u32::from);
        self.look(Cell::Bit(one.id), first(value), first(&one.row));
        self.look(Cell::Location(one.id), location(value), location(&one.row));
        let changes = |place: &usize| *place == bit || (vlr..vlr + 4).contains(place);
        key.len() == 4 && is_alike(value, &one.row, changes)
    }

    fn facility(&mut self, one: &Subscriber, kind: u8, value: &[u8]) -> bool {
        let Some(loaded) = one.facility(kind) else { return false };
        let offset = facility::DATA_A.offset;
        let data = |row: &[u8]| {
            let bytes = row.get(offset..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |bytes| u32::from(u16::from_le_bytes(*bytes)))
        };
        self.look(Cell::Data(one.id, kind), data(value), data(loaded));
        is_alike(value, loaded, |place| (offset..offset + 2).contains(place))
    }

    fn forward(&mut self, one: &Subscriber, kind: u8, start: u8, value: &[u8]) -> bool {
        if one.facility(kind).is_none() {
            return false;
        }
        if self.tatp.giving_up == GivingUp::AtWill {
            return value.len() == forwarding_row(self.tatp.dialect, 0, 0).len();
        }
        let key = (one.id, kind, start);
        let is_loaded = one.forward(kind, start) == Some(value);
        let Some(asked) = self.asked.get(&key) else { return is_loaded };
        let is_inserted = asked.rows.iter().any(|row| row == value);
        self.forwards.insert(key, value.to_vec());
        is_loaded || is_inserted
    }

    /// Rows expected of each table, but for transactions in flight.
    fn expected(&self) -> [u64; 5] {
        let mut rows = super::load::volume(&self.tatp).map(|(rows, _)| rows);
        rows[4] = (rows[4] + self.changes[0]).saturating_sub(self.changes[1]);
        rows
    }

    /// Checks everything, and that every commit that returned is there.
    ///
    /// # Errors
    ///
    /// The first contradiction.
    pub fn verify(&self) -> Result<(), Fault> {
        self.fault.map_or(Ok(()), Err)?;
        for (place, (found, expected)) in self.rows.into_iter().zip(self.expected()).enumerate() {
            let tolerance = if place == 4 { self.clients } else { 0 };
            if found.abs_diff(expected) > tolerance {
                let table = TABLE_NAMES[place];
                return Err(Fault::Rows { table, found, expected, tolerance });
            }
        }
        self.flights.iter().try_for_each(|flight| self.verify_flight(flight))?;
        self.asked.iter().try_for_each(|(key, asked)| self.verify_forwarding(*key, asked))
    }

    /// A transaction in flight is there completely or not at all.
    fn verify_flight(&self, flight: &Flight) -> Result<(), Fault> {
        let Flight { client, cells } = *flight;
        let held = |cell: &Cell| self.cells.get(cell).copied().unwrap_or((0, 0));
        let is_there = cells.iter().all(|it| self.claims.explains_with(it, &held(it).0, client));
        let is_absent = cells.iter().all(|it| {
            let (found, loaded) = held(it);
            self.claims.explains_without(it, &found, &loaded, client)
        });
        if is_there || is_absent { Ok(()) } else { Err(Fault::Torn { client, cell: cells[0] }) }
    }

    fn verify_forwarding(&self, key: ForwardKey, asked: &Asked) -> Result<(), Fault> {
        let (subscriber, kind, start) = key;
        let one = self.tatp.subscriber(subscriber);
        let found = self.forwards.get(&key);
        let can_exist = one.facility(kind).is_some();
        let is_right = match (asked.has_inserts, asked.has_deletes) {
            _ if asked.is_open => true,
            // A call that was loaded and never deleted is still the same.
            (true, false) => match one.forward(kind, start) {
                Some(loaded) => found.is_some_and(|row| row == loaded),
                None => found.is_some() == can_exist,
            },
            (false, true) => found.is_none(),
            _ => true,
        };
        if is_right { Ok(()) } else { Err(Fault::Forwarding { subscriber, kind, start }) }
    }
}

/// Classes of transactions that are bound to commit, or bound not to.
fn bound_classes() -> impl Iterator<Item = usize> {
    [
        Class::GetSubscriberData,
        Class::GetAccessData,
        Class::UpdateSubscriberData,
        Class::UpdateLocation,
    ]
    .into_iter()
    .map(|class| class as usize)
}

/// Whether two rows agree but in places that `changes` names.
fn is_alike(one: &[u8], other: &[u8], changes: impl Fn(&usize) -> bool) -> bool {
    let mut pairs = one.iter().zip(other).enumerate();
    one.len() == other.len() && pairs.all(|(place, (one, other))| one == other || changes(&place))
}
