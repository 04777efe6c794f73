//! Goal: the engine of shared pages is a database under both protocols. Method: random transactions
//! against a map, several at a time, with aborts and reopening, on a chip so small that blocks are
//! collected and in memory so small that pages are written while transactions run on them.

use std::collections::BTreeMap;

use flagstone_engine::{EngineError, Options, Table, Xid};
use flagstone_nand::{Profile, SimNand};

use super::Machine;
use crate::bench::{self, BenchConfig, ChipUse, Warmup};
use crate::crash;
use crate::pages::{PageEngine, PageMachine};
use crate::preset;
use crate::store::{RecordDatabase, Stopping, Store, WHOLE};
use crate::workload::Draws;

const PRESETS: [&str; 2] = ["cfc-ex", "afc-ex"];

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Values that a transaction gave, or took.
type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

fn chip(blocks: u32) -> SimNand {
    let profile = Profile::named("tiny-shared").unwrap().with_block_count(blocks).unwrap();
    SimNand::new(&profile, 1)
}

fn contents(store: &impl Store) -> Rows {
    let mut rows = Rows::new();
    store
        .visit(&["t"], &mut |_, key, value| {
            rows.insert(key.to_vec(), value.to_vec());
        })
        .unwrap();
    rows
}

/// Memory of a dozen pages, for some thirty pages.
const MEMORY: usize = 12 * 1024;

/// Transactions at a time, keys, and keys next to each other that are written more often.
const OPEN_MAX: u64 = 5;
const KEYS: u64 = 400;
const HOT_KEYS: u64 = 24;

/// Several transactions at a time against a map.
struct Pair {
    machine: Machine<SimNand>,
    options: Options,
    table: Table,
    model: Rows,
    open: Vec<(Xid, Changes)>,
    draws: Draws,
    refused: u32,
}

impl Pair {
    fn new(name: &str, seed: u64) -> Self {
        let device = chip(26);
        let options = crash::small(preset::options(name).unwrap(), &device).with_memory(MEMORY);
        let machine = Machine::create(device, &options).unwrap();
        let xid = machine.engine().begin();
        let table = machine.run(|engine| engine.create_table(xid, "t")).unwrap();
        machine.commit(xid).unwrap();
        let (model, open, draws) = (Rows::new(), Vec::new(), Draws::new(seed, 0));
        Self { machine, options, table, model, open, draws, refused: 0 }
    }

    fn step(&mut self) {
        let at = self.draws.below(OPEN_MAX) as usize;
        while self.open.len() <= at {
            let xid = self.machine.engine().begin();
            self.open.push((xid, BTreeMap::new()));
        }
        match self.draws.below(12) {
            0..=7 => self.write(at),
            8..=9 => self.commit(at),
            10 => {
                let (xid, _) = self.open.remove(at);
                self.machine.abort(xid);
            }
            _ => {
                self.machine.advance().unwrap();
            }
        }
    }

    fn write(&mut self, at: usize) {
        // Half of the keys next to each other, so that transactions meet on pages.
        let keys = if self.draws.below(2) == 0 { HOT_KEYS } else { KEYS };
        let key = self.draws.below(keys).to_be_bytes().to_vec();
        let (xid, table) = (self.open[at].0, self.table);
        let is_delete = self.draws.below(4) == 0;
        let value = vec![self.draws.below(256) as u8; self.draws.below(90) as usize];
        let done = self.machine.attempt(|engine| match is_delete {
            true => engine.delete(xid, table, &key),
            false => engine.put(xid, table, &key, &value),
        });
        match done {
            Ok(Some(())) => {
                self.open[at].1.insert(key, (!is_delete).then_some(value));
            }
            Ok(None) | Err(EngineError::Full) => self.refused += 1,
            Err(EngineError::Deadlock) => {
                self.open.remove(at);
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn commit(&mut self, at: usize) {
        let (xid, changes) = self.open.remove(at);
        match self.machine.commit(xid) {
            Ok(()) => {
                for (key, value) in changes {
                    match value {
                        Some(value) => self.model.insert(key, value),
                        None => self.model.remove(&key),
                    };
                }
            }
            Err(EngineError::Full | EngineError::Deadlock) => self.refused += 1,
            Err(error) => panic!("{error}"),
        }
    }

    fn reopen(self) -> Self {
        let Self { machine, options, model, draws, refused, .. } = self;
        let machine = Machine::open(machine.into_device(), &options).unwrap();
        let xid = machine.engine().begin();
        let table = machine.run(|engine| engine.open_table(xid, "t")).unwrap().unwrap();
        machine.abort(xid);
        let pair = Self { machine, options, table, model, open: Vec::new(), draws, refused };
        pair.check();
        pair
    }

    fn check(&self) {
        let xid = self.machine.engine().begin();
        for key in (0..KEYS).map(u64::to_be_bytes) {
            let mut value = Vec::new();
            let read = |engine: &mut super::Engine| {
                engine.get_part(xid, self.table, &key, WHOLE, &mut value)
            };
            let is_there = self.machine.run(read).unwrap();
            assert_eq!(is_there.then_some(&value), self.model.get(&key[..]), "key {key:?}");
        }
        self.machine.abort(xid);
    }
}

#[test]
fn shared_pages_agree_with_a_map() {
    for name in PRESETS {
        let (mut shared, mut merged, mut collected, mut flagged) = (0, 0, 0, 0);
        for seed in 0..6 {
            let mut pair = Pair::new(name, seed);
            for round in 0..12 {
                for _ in 0..80 {
                    pair.step();
                }
                if round % 3 == 2 {
                    let open = std::mem::take(&mut pair.open);
                    open.into_iter().for_each(|(xid, _)| pair.machine.abort(xid));
                    pair.check();
                }
                let sharing = pair.machine.sharing();
                shared = shared.max(sharing.transactions_max);
                collected += sharing.collections;
                merged = merged.max(sharing.versions_max);
                flagged += sharing.flag_commits;
                pair = pair.reopen();
            }
            assert!(pair.refused < 300, "{name}, seed {seed}: {} refused", pair.refused);
        }
        assert!(shared >= 3, "{name}: {shared} transactions shared a page");
        assert!(merged >= 3, "{name}: {merged} versions were merged");
        assert!(collected > 0, "{name}: nothing was collected");
        assert!(flagged > 0, "{name}: nothing was committed by flags alone");
    }
}

#[test]
fn clients_keep_the_sums() {
    for name in PRESETS {
        let profile = Profile::named("flagcommit-slc").unwrap().with_block_count(1024).unwrap();
        let options = preset::options(name).unwrap().with_parts(4);
        let config = BenchConfig {
            clients: 8,
            txns: 600,
            warmup: Warmup::Txns(100),
            abort_ratio: 0.05,
            chip: ChipUse::Prefilled,
            ..BenchConfig::tpcb(profile, Vec::new())
        };
        let run = bench::run(&config, &options, &mut |_| ()).unwrap();
        assert_eq!(run.commits, 600, "{name}");
        assert!(run.aborts > 0, "{name}");
        assert!(run.programs_by_cause.log > 0, "{name}");
    }
}

#[test]
fn a_store_reopens_with_what_was_committed() {
    for name in PRESETS {
        let device = chip(40);
        let options = crash::small(preset::options(name).unwrap(), &device);
        let store = RecordDatabase::create(device, &options).unwrap();
        let table = store.table("t").unwrap();
        for key in 0..200_u64 {
            let mut transaction = store.begin();
            crate::workload::Operations::put(&mut transaction, table, &key.to_be_bytes(), b"value")
                .unwrap();
            store.commit(transaction, flagstone_engine::Durability::Immediate).unwrap();
        }
        let store = RecordDatabase::open(store.into_device().unwrap(), &options).unwrap();
        assert_eq!(contents(&store).len(), 200, "{name}");
    }
}
