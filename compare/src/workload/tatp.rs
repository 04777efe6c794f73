//! TATP: five tables, seven transactions, four in five of them read. A step is any of them; commits
//! count.

use anyhow::Result;

use super::{Client, Step, Workload, draws_of, filler};
use crate::store::Store;

const SUBSCRIBER: usize = 0;
const NUMBER: usize = 1;
const ACCESS: usize = 2;
const FACILITY: usize = 3;
const FORWARDING: usize = 4;
const TABLES: usize = 5;
const STARTS: [u8; 3] = [0, 8, 16];
/// Where columns that change lie in their rows.
const BIT_1: usize = 0;
const LOCATION: usize = 44;
const DATA_A: usize = 3;

pub struct Tatp {
    pub count: u64,
}

fn subscriber(id: u64) -> [u8; 4] {
    (id as u32).to_be_bytes()
}

fn number(id: u64) -> Vec<u8> {
    format!("{id:015}").into_bytes()
}

fn detail(id: u64, kind: u8) -> Vec<u8> {
    [&subscriber(id)[..], &[kind]].concat()
}

fn forwarding(id: u64, kind: u8, start: u8) -> Vec<u8> {
    [&subscriber(id)[..], &[kind, start]].concat()
}

/// What subscriber `id` begins with: its types of access, its facilities, and their forwardings.
fn details(id: u64) -> (Vec<u8>, Vec<(u8, Vec<u8>)>) {
    let mut client = Client { draws: draws_of(TABLES, id), number: 0, sequence: 0 };
    let mut some = |least: u64, values: &[u8]| {
        let mut left = values.to_vec();
        let wanted = least + client.below(values.len() as u64 - least + 1);
        let mut chosen: Vec<u8> = (0..wanted)
            .map(|_| left.swap_remove(client.below(left.len() as u64) as usize))
            .collect();
        chosen.sort_unstable();
        chosen
    };
    let access = some(1, &[1, 2, 3, 4]);
    let facilities = some(1, &[1, 2, 3, 4]);
    let facilities = facilities.into_iter().map(|kind| (kind, some(0, &STARTS))).collect();
    (access, facilities)
}

fn row(table: usize, id: u64, size: usize) -> Vec<u8> {
    filler(&mut draws_of(table, id), size)
}

impl Tatp {
    fn read(&self, store: &dyn Store, client: &mut Client, id: u64, draw: u64) -> Result<Step> {
        let kind = 1 + client.below(4) as u8;
        let (start, end) = (STARTS[client.below(3) as usize], 1 + client.below(24) as u8);
        let mut value = Vec::new();
        store.read(&mut |txn| {
            match draw {
                0..35 => drop(txn.get(SUBSCRIBER, &subscriber(id), &mut value)?),
                35..45 => {
                    let key = detail(id, kind);
                    if txn.get(FACILITY, &key, &mut value)? && value[0] == 1 {
                        let from = forwarding(id, kind, 0);
                        txn.scan(FORWARDING, &from, &mut |found, value| {
                            found[..5] == key[..] && found[5] <= start && value[0] <= end
                        })?;
                    }
                }
                _ => drop(txn.get(ACCESS, &detail(id, kind), &mut value)?),
            }
            Ok(())
        })?;
        Ok(Step::Reads(1))
    }
}

impl Workload for Tatp {
    fn tables(&self) -> usize {
        TABLES
    }

    fn bytes(&self, _commits: u64) -> u64 {
        self.count * (67 + 19 + 5 * 17 / 2 + 5 * 15 / 2 + 15 * 22 / 4)
    }

    fn load(&self, store: &dyn Store) -> Result<()> {
        let ids = || 1..=self.count;
        store.load(
            SUBSCRIBER,
            &mut ids().map(|id| (subscriber(id).into(), row(SUBSCRIBER, id, 63))),
        )?;
        store.load(NUMBER, &mut ids().map(|id| (number(id), subscriber(id).into())))?;
        let access =
            ids().flat_map(|id| details(id).0.into_iter().map(move |kind| detail(id, kind)));
        store.load(ACCESS, &mut access.map(|key| (key, row(ACCESS, 0, 12))))?;
        let facilities = ids().flat_map(|id| {
            details(id).1.into_iter().map(move |(kind, _)| {
                let mut value = row(FACILITY, id << 8 | u64::from(kind), 10);
                value[0] = u8::from(value[1] % 100 < 85);
                (detail(id, kind), value)
            })
        });
        store.load(FACILITY, &mut { facilities })?;
        let forwardings = ids().flat_map(|id| {
            details(id).1.into_iter().flat_map(move |(kind, starts)| {
                starts.into_iter().map(move |start| {
                    let mut value =
                        row(FORWARDING, id << 16 | u64::from(kind) << 8 | u64::from(start), 16);
                    value[0] = start + 1 + value[1] % 8;
                    (forwarding(id, kind, start), value)
                })
            })
        });
        store.load(FORWARDING, &mut { forwardings })
    }

    fn step(&self, store: &dyn Store, client: &mut Client) -> Result<Step> {
        // The non-uniform choice of the specification for up to a million subscribers.
        let id = (client.below(65_536) | (1 + client.below(self.count))) % self.count + 1;
        let draw = client.below(100);
        if draw < 80 {
            return self.read(store, client, id, draw);
        }
        let kind = 1 + client.below(4) as u8;
        let start = STARTS[client.below(3) as usize];
        let bytes = filler(&mut client.draws, 16);
        let mut value = Vec::new();
        let commits = store.write(&mut |txn| match draw {
            80..82 => {
                txn.patch(SUBSCRIBER, &subscriber(id), BIT_1, &mut |_| vec![bytes[0] & 1], 1)?;
                let key = detail(id, kind);
                let is_there = txn.get_for_update(FACILITY, &key, &mut value)?;
                if is_there {
                    txn.patch(FACILITY, &key, DATA_A, &mut |_| bytes[1..3].to_vec(), 2)?;
                }
                Ok(is_there)
            }
            82..96 => {
                txn.get(NUMBER, &number(id), &mut value)?;
                let location = &mut |_: &[u8]| bytes[..4].to_vec();
                txn.patch(SUBSCRIBER, &subscriber(id), LOCATION, location, 4)?;
                Ok(true)
            }
            _ => {
                txn.get(NUMBER, &number(id), &mut value)?;
                let key = forwarding(id, kind, start);
                let has_type = draw >= 98 || txn.get(FACILITY, &detail(id, kind), &mut value)?;
                let is_there = txn.get_for_update(FORWARDING, &key, &mut value)?;
                let commits = has_type && is_there == (draw >= 98);
                if commits && is_there {
                    txn.delete(FORWARDING, &key)?;
                } else if commits {
                    let mut row = bytes.clone();
                    row[0] = start + 1 + row[1] % 8;
                    txn.put(FORWARDING, &key, &row)?;
                }
                Ok(commits)
            }
        })?;
        Ok(if commits { Step::Commit } else { Step::Failed })
    }
}
