//! The rows of a fresh database, a subscriber at a time (rule P1).

use super::rows::{
    detail_key, digits, forwarding_key, forwarding_row, subscriber_key, value_sizes,
};
use super::{Dialect, Tatp, input::NUMBER_COUNT};
use crate::workload::Draws;

/// First of the streams that draw subscribers; the clients' count up from 0.
const LOAD_STREAM: u64 = 1 << 41;
/// Facilities in use, of a hundred.
const ACTIVE_PERCENT: u64 = 85;
/// The types of access data and facilities.
const KINDS: [u8; 4] = [1, 2, 3, 4];

/// Takes a row: the place of its table, key and value.
type Put<'a, E> = &'a mut dyn FnMut(usize, &[u8], &[u8]) -> Result<(), E>;

/// All that a subscriber begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscriber {
    /// Number of the subscriber, from 1.
    pub id: u32,
    /// The row.
    pub row: Vec<u8>,
    /// Access data by type, ascending.
    pub access: Vec<(u8, Vec<u8>)>,
    /// Facilities by type, ascending.
    pub facilities: Vec<(u8, Vec<u8>)>,
    /// Forwarded calls by the facility's type and hour, ascending.
    pub forwards: Vec<(u8, u8, Vec<u8>)>,
}

impl Subscriber {
    /// Whether there are access data of a type.
    #[must_use]
    pub fn has_access(&self, kind: u8) -> bool {
        self.access.iter().any(|(found, _)| *found == kind)
    }

    /// The facility of a type.
    #[must_use]
    pub fn facility(&self, kind: u8) -> Option<&[u8]> {
        self.facilities.iter().find(|(found, _)| *found == kind).map(|(_, row)| row.as_slice())
    }

    /// The forwarded call of a facility from an hour.
    #[must_use]
    pub fn forward(&self, kind: u8, start: u8) -> Option<&[u8]> {
        let mut forwards = self.forwards.iter();
        forwards.find(|(of, from, _)| (*of, *from) == (kind, start)).map(|(_, _, row)| &**row)
    }
}

impl Tatp {
    /// Subscriber `id` as loaded.
    #[must_use]
    pub fn subscriber(&self, id: u32) -> Subscriber {
        let draws = &mut Draws::new(self.seed, LOAD_STREAM + u64::from(id));
        let sizes = value_sizes(self.dialect);
        let row = subscriber_row(draws, id, sizes[0]);
        let types = match self.dialect {
            Dialect::Benchbase => self.shared_access(),
            _ => subset(draws, KINDS, 1),
        };
        let access = types.into_iter().map(|kind| (kind, access_row(draws, sizes[2]))).collect();
        let (mut facilities, mut forwards) = (Vec::new(), Vec::new());
        for kind in subset(draws, KINDS, 1) {
            facilities.push((kind, facility_row(draws, sizes[3])));
            for start in subset(draws, self.dialect.loaded_starts(), 0) {
                let end = start + 1 + draws.below(8) as u8;
                let row = forwarding_row(self.dialect, end, draws.below(NUMBER_COUNT));
                forwards.push((kind, start, row));
            }
        }
        Subscriber { id, row, access, facilities, forwards }
    }

    /// Types of the access data that all subscribers have in BenchBase.
    pub(super) fn shared_access(&self) -> Vec<u8> {
        subset(&mut Draws::new(self.seed, LOAD_STREAM), KINDS, 1)
    }

    /// Every subscriber, ascending.
    fn all(&self) -> impl Iterator<Item = Subscriber> + '_ {
        (1..=self.subscribers).map(|id| self.subscriber(id))
    }
}

/// Between `least` and all of `values`, each count equally likely, ascending.
fn subset<const N: usize>(draws: &mut Draws, values: [u8; N], least: usize) -> Vec<u8> {
    let mut values = values;
    let count = least + draws.below((N - least + 1) as u64) as usize;
    for place in 0..count {
        values.swap(place, place + draws.below((N - place) as u64) as usize);
    }
    let mut chosen = values[..count].to_vec();
    chosen.sort_unstable();
    chosen
}

fn subscriber_row(draws: &mut Draws, id: u32, size: usize) -> Vec<u8> {
    let mut row = Vec::with_capacity(size);
    row.extend((0..10).map(|_| draws.below(2) as u8));
    row.extend((0..10).map(|_| draws.below(16) as u8));
    (0..10).for_each(|_| row.extend_from_slice(&(draws.below(256) as u16).to_le_bytes()));
    (0..2).for_each(|_| row.extend_from_slice(&(draws.below(1 << 32) as u32).to_le_bytes()));
    row.extend_from_slice(&digits(u64::from(id)));
    row.resize(size, b' ');
    row
}

fn access_row(draws: &mut Draws, size: usize) -> Vec<u8> {
    let mut row = Vec::with_capacity(size);
    (0..2).for_each(|_| row.extend_from_slice(&(draws.below(256) as u16).to_le_bytes()));
    row.extend((0..8).map(|_| letter(draws)));
    row.resize(size, b' ');
    row
}

fn facility_row(draws: &mut Draws, size: usize) -> Vec<u8> {
    let mut row = Vec::with_capacity(size);
    row.push(u8::from(draws.below(100) < ACTIVE_PERCENT));
    (0..2).for_each(|_| row.extend_from_slice(&(draws.below(256) as u16).to_le_bytes()));
    row.extend((0..5).map(|_| letter(draws)));
    row.resize(size, b' ');
    row
}

fn letter(draws: &mut Draws) -> u8 {
    b'A' + draws.below(26) as u8
}

/// Hands every row to `put`, each table in key order.
pub(super) fn load<E>(tatp: &Tatp, put: Put<'_, E>) -> Result<(), E> {
    for one in tatp.all() {
        put(0, &subscriber_key(one.id), &one.row)?;
    }
    for id in 1..=tatp.subscribers {
        put(1, &digits(u64::from(id)), &subscriber_key(id))?;
    }
    for one in tatp.all() {
        for (kind, row) in &one.access {
            put(2, &detail_key(one.id, *kind), row)?;
        }
    }
    for one in tatp.all() {
        for (kind, row) in &one.facilities {
            put(3, &detail_key(one.id, *kind), row)?;
        }
    }
    for one in tatp.all() {
        for (kind, start, row) in &one.forwards {
            put(4, &forwarding_key(one.id, *kind, *start), row)?;
        }
    }
    Ok(())
}

/// Rows of each table of a fresh database, and the bytes of their keys and values.
pub(super) fn volume(tatp: &Tatp) -> [(u64, u64); 5] {
    let mut rows = [u64::from(tatp.subscribers), u64::from(tatp.subscribers), 0, 0, 0];
    for one in tatp.all() {
        let details = [one.access.len(), one.facilities.len(), one.forwards.len()];
        rows[2..].iter_mut().zip(details).for_each(|(sum, count)| *sum += count as u64);
    }
    let sizes = super::rows::entry_sizes(tatp.dialect);
    std::array::from_fn(|place| (rows[place], rows[place] * u64::from(sizes[place])))
}
