//! Rows of the index, and the requests that follow from them.
//!
//! Owns the keys that are there and the draws; never touches an engine. The same draws from the same
//! rows give the same requests, so that a check repeats them (rule X2).

use std::collections::BTreeMap;

use super::oltp::Oltp;
use super::{Dialect, Index, Keys, Mix, RANGE_ROWS, names};
use crate::workload::Draws;

/// Stream of the rows to begin with.
const LOAD_STREAM: u64 = u64::MAX;

/// Keys that are there, with their pointers.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    keys: Keys,
    /// Pointer of each key, and its place in `order`.
    entries: BTreeMap<u64, (u32, usize)>,
    /// The keys in no order, to draw from.
    order: Vec<u64>,
    pointer_next: u32,
    /// Present where the requests are TPC-C's.
    oltp: Option<Oltp>,
}

/// One request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Look a key up.
    Select(u64),
    /// Read a range from a key on.
    SelectRange(u64),
    /// New keys, in ascending order.
    Insert(Vec<(u64, u32)>),
    /// Keys that go.
    Delete(Vec<u64>),
    /// New pointers of keys that are there.
    Modify(Vec<(u64, u32)>),
}

impl Rows {
    /// The rows that `index` begins with.
    pub(super) fn loaded(index: &Index) -> Self {
        let mut rows = Self {
            keys: index.dialect.keys(),
            entries: BTreeMap::new(),
            order: Vec::new(),
            pointer_next: 0,
            oltp: (index.dialect == Dialect::Oltp).then(|| Oltp::new(index.thousandths)),
        };
        if let Some(oltp) = rows.oltp.clone() {
            for key in oltp.keys() {
                let pointer = rows.pointer();
                rows.put(key, pointer);
            }
            return rows;
        }
        let mut draws = Draws::new(index.seed, LOAD_STREAM);
        while (rows.order.len() as u64) < index.loaded_count() {
            let key = rows.new_key(&mut draws);
            let pointer = rows.pointer();
            rows.put(key, pointer);
        }
        rows
    }

    /// Keys and pointers, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.entries.iter().map(|(key, (pointer, _))| (*key, *pointer))
    }

    /// As [`Rows::iter`], from `key` on.
    pub(super) fn iter_from(&self, key: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.entries.range(key..).map(|(key, (pointer, _))| (*key, *pointer))
    }

    /// The pointer of a key.
    pub(super) fn get(&self, key: u64) -> Option<u32> {
        self.entries.get(&key).map(|(pointer, _)| *pointer)
    }

    /// The keys in the order in which they came, as long as none went.
    pub(super) fn in_order(&self) -> &[u64] {
        &self.order
    }

    /// Keys and pointers to begin with, in the order in which they were drawn.
    pub(super) fn drawn(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let pointer = |key: &u64| self.entries.get(key).map_or(0, |(pointer, _)| *pointer);
        self.order.iter().map(move |key| (*key, pointer(key)))
    }

    fn pointer(&mut self) -> u32 {
        self.pointer_next = self.pointer_next.wrapping_add(1);
        self.pointer_next
    }

    /// A key that is not there.
    fn new_key(&self, draws: &mut Draws) -> u64 {
        loop {
            let key = match self.keys {
                Keys::Names => names::draw(draws),
                Keys::Uniform => draws.below(1 << 32),
            };
            if !self.entries.contains_key(&key) {
                return key;
            }
        }
    }

    fn put(&mut self, key: u64, pointer: u32) {
        let order = &mut self.order;
        let entry = self.entries.entry(key).or_insert_with(|| {
            order.push(key);
            (pointer, order.len() - 1)
        });
        entry.0 = pointer;
    }

    fn remove(&mut self, key: u64) {
        let Some((_, place)) = self.entries.remove(&key) else { return };
        self.order.swap_remove(place);
        if let Some(moved) = self.order.get(place)
            && let Some(entry) = self.entries.get_mut(moved)
        {
            entry.1 = place;
        }
    }

    /// The next request of a client that draws from `draws`.
    pub(super) fn request(&mut self, mix: &Mix, draws: &mut Draws) -> Request {
        if let Some(oltp) = &mut self.oltp {
            let next = &mut self.pointer_next;
            return oltp.request(draws, &mut || {
                *next = next.wrapping_add(1);
                *next
            });
        }
        let kind = draws.below(1000);
        let is_range = draws.below(1000) < u64::from(mix.range);
        let count = if is_range { RANGE_ROWS } else { 1 };
        let anchor = draws.below(self.order.len() as u64) as usize;
        let Some(anchor) = self.order.get(anchor).copied() else {
            return Request::Insert(self.new_rows(1, draws));
        };
        let (selects, inserts) = (u64::from(mix.select), u64::from(mix.insert));
        let deletes = u64::from(mix.delete);
        match kind {
            _ if kind < selects && is_range => Request::SelectRange(anchor),
            _ if kind < selects => Request::Select(anchor),
            _ if kind < selects + inserts => Request::Insert(self.new_rows(count, draws)),
            _ if kind < selects + inserts + deletes => {
                Request::Delete(self.from(anchor, count).collect())
            }
            _ => {
                let keys: Vec<u64> = self.from(anchor, count).collect();
                Request::Modify(keys.into_iter().map(|key| (key, self.pointer())).collect())
            }
        }
    }

    /// Keys that are there from `key` on.
    fn from(&self, key: u64, count: usize) -> impl Iterator<Item = u64> + '_ {
        self.entries.range(key..).take(count).map(|(key, _)| *key)
    }

    /// New keys: one drawn, and the keys that follow.
    fn new_rows(&mut self, count: usize, draws: &mut Draws) -> Vec<(u64, u32)> {
        let first = self.new_key(draws);
        let keys = (first..=self.keys.max()).filter(|key| !self.entries.contains_key(key));
        let keys: Vec<u64> = keys.take(count).collect();
        keys.into_iter().map(|key| (key, self.pointer())).collect()
    }

    /// The request has been committed.
    pub(super) fn apply(&mut self, request: &Request) {
        match request {
            Request::Select(_) | Request::SelectRange(_) => {}
            Request::Insert(rows) | Request::Modify(rows) => {
                rows.iter().for_each(|(key, pointer)| self.put(*key, *pointer));
            }
            Request::Delete(keys) => keys.iter().for_each(|key| self.remove(*key)),
        }
    }
}
